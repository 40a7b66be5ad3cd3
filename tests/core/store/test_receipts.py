"""Receipts: what is missing, how tests and builds ended, and an ending without a call."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.cli.conftest import _a_user_of_its_own, wk
from tests.core.export.conftest import Made, export, made

from watchkeeper.records.states import ToolCallStatus
from watchkeeper.store.driver import Queries
from watchkeeper.store.receipts import Outcome, Presence, Receipt, session_receipts, test_commands

__all__ = ["_a_user_of_its_own", "made", "wk"]

Calls = list[tuple[str, dict[str, Any], str, bool]]
WROTE: Calls = [("Write", {"file_path": "/w/src/a.py", "content": "x"}, "ok", False)]


def worked(
    one: Made,
    calls: Calls,
    report: str,
    *,
    own: bool = True,
    name: str = "worker",
    prompt: str = "Do it",
    **about: Any,
) -> str:
    """An agent that made these calls (tool, input, result, whether it failed) and then said a report."""
    agent = one.agent(name, **about)
    one.say(agent, prompt)
    for number, (tool, wanted, result, failed) in enumerate(calls):
        use = {"type": "tool_use", "id": f"{agent}c{number}", "name": tool, "input": wanted}
        one.say(agent, [{"type": "text", "text": "Working."}, use])
        seq = 2 + 2 * number
        one.tx.execute(
            "INSERT INTO tool_calls (session_id, agent_id, turn, position, seq, tool_use_id, name, idempotent, status, result_seq, is_error)"
            " VALUES (?, ?, ?, 0, ?, ?, ?, 0, ?, ?, ?)",
            (one.session_id, agent, number + 1, seq, use["id"], tool, ToolCallStatus.DONE, seq + 1, int(failed)),
        )  # fmt: skip
        one.say(
            agent, [{"type": "tool_result", "tool_use_id": use["id"], "content": result, "is_error": failed}]
        )
    one.say(agent, [{"type": "text", "text": report}])
    one.tx.execute("UPDATE agents SET status = 'done' WHERE id = ?", (agent,))
    if own:
        one.task(f"task of {agent}", agent, status="done", result=report)
    else:
        one.tx.execute("UPDATE sessions SET origin = 'claude-code'")
    return agent


def receipts(one: Made) -> list[Receipt]:
    return session_receipts(Queries(one.connection), one.session_id)


def bash(command: str, *, failed: bool = False) -> Calls:
    return [("Bash", {"command": command}, "output", failed)]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    "report", ["Done.", "I changed nothing; I could not.", "All tests pass, `src/a.py` is fixed."]
)
def test_no_word_of_an_agent_decides_anything(made: Callable[..., Made], own: bool, report: str) -> None:
    one = made()
    worked(one, [*WROTE, *bash("pytest -q")], report, own=own)
    worked(one, [], report, own=own, name="idle")
    first, second = receipts(one)
    assert (first.mark, first.summary) == ("✓", "passed after the last edit: pytest -q")
    assert (second.flagged, second.summary) == (own, "ended without a tool call")


def test_the_last_outcome_of_each_command_counts_and_an_edit_puts_it_in_the_past(made) -> None:
    one = made()
    before = [*bash("cargo test", failed=True), *bash("pytest -q"), *bash("ruff check .", failed=True)]
    after = [*bash("cd src && pytest -q", failed=True), *bash("cargo test")]
    worked(one, [*before, *WROTE, *after], "All good.")
    (receipt,) = receipts(one)
    assert [(run.command, run.outcome, run.after_last_edit) for run in receipt.commands] == [
        ("cargo test", Outcome.PASSED, True), ("pytest -q", Outcome.FAILED, True),
        ("ruff check .", Outcome.FAILED, False),
    ]  # fmt: skip
    assert receipt.failed == ["pytest -q"]
    assert receipt.summary == "failed after the last edit: pytest -q; passed after the last edit: cargo test"
    assert receipt.flagged


def test_an_edit_that_failed_changes_nothing_and_one_after_the_tests_is_said(made) -> None:
    one = made()
    failed = [(*WROTE[0][:3], True)]
    worked(one, [*bash("make test"), *failed], "Done.", name="failed")
    worked(one, [*bash("make test"), *WROTE], "Done.", name="later")
    first, second = receipts(one)
    assert first.summary == "passed after the last edit: make test"
    assert second.summary == "no test or build command ran after the last edit"


def test_the_calls_of_an_agent_below_count(made: Callable[..., Made]) -> None:
    one = made()
    parent = worked(one, [], "Done.")
    worked(one, [*WROTE, *bash("pytest")], "Wrote it.", name="child", parent_agent_id=parent)
    first, _ = receipts(one)
    assert (first.calls, first.summary, first.mark) == (2, "passed after the last edit: pytest", "✓")


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("pytest -q", [("pytest -q", True)]),
        ("cd x && PYTHONPATH=src python3 -m pytest -q 2>&1", [("python3 -m pytest -q", True)]),
        ("pytest -q | tail -n 5", [("pytest -q", False)]),
        ("pytest || true", [("pytest", False)]),
        ("make\nnpm test", [("make", False), ("npm test", True)]),
        ("pytest && git commit -m done", [("pytest", True)]),
        ("pytest;", [("pytest", True)]),
        ("uv run pytest tests/a.py", [("pytest tests/a.py", True)]),
        ("bash -c 'pytest'", []),
        ("echo 'pytest; make'", []),
        ("git log --grep make", []),
        ("cargo run", []),
        ("go vet ./...", [("go vet ./...", True)]),
        ("cat <<'EOF' > run.sh\npytest\nEOF", []),
        ("python -m pytest - <<'EOF'\nx\nEOF\ntrue", [("python -m pytest -", False)]),
        ("pytest &", [("pytest", False)]),
        ("(cd a && pytest)", [("pytest", True)]),
        ("pytest 'unclosed", []),
        ("", []),
    ],
)  # fmt: skip
def test_only_a_command_whose_exit_code_is_reported_has_an_outcome(command: str, wanted: Any) -> None:
    assert test_commands(command) == wanted


@given(st.text(max_size=60) | st.text("pytest&|;<>()'\\\"\n =make", max_size=40))
def test_any_command_is_read(command: str) -> None:
    for name, _ in test_commands(command):
        assert name


def test_an_interrupted_command_has_an_unknown_outcome(made: Callable[..., Made]) -> None:
    one = made()
    worked(one, bash("pytest"), "Done.")
    one.tx.execute("UPDATE tool_calls SET status = ?", (ToolCallStatus.UNKNOWN,))
    (receipt,) = receipts(one)
    assert receipt.commands[0].outcome is Outcome.UNKNOWN
    assert not receipt.flagged


def test_missing_outputs_are_named_and_a_file_that_a_command_may_have_written_is_unknown(made) -> None:
    one = made()
    expected = json.dumps(["a.md", "b.md", "file:src/a.py", "file:src/b.py"])
    for name, calls in (("writes", WROTE), ("runs", [*WROTE, *bash("make")])):
        agent = worked(one, calls, "I saved b.md and src/b.py.", name=name)
        one.tx.execute("UPDATE tasks SET expected_outputs = ? WHERE assigned_agent = ?", (expected, agent))
        one.artifact("a.md", "x")
        one.tx.execute("UPDATE outputs SET agent_id = ? WHERE name = 'a.md' AND agent_id IS NULL", (agent,))
    first, second = receipts(one)
    assert [output.presence for output in first.outputs] == [
        Presence.THERE, Presence.MISSING, Presence.THERE, Presence.MISSING,
    ]  # fmt: skip
    assert first.summary == "missing: b.md, src/b.py"
    assert second.missing == ["b.md"]
    assert second.outputs[3].presence is Presence.UNKNOWN


def test_show_export_and_their_json_have_the_facts_and_no_escape_sequences(made, wk, tmp_path):
    one = made()
    agent = worked(one, bash("pytest 'x\x1b[31m<hostile>'", failed=True), "All tests pass.")
    expected = json.dumps(["gone \x1b[31m.md"])
    one.tx.execute("UPDATE tasks SET expected_outputs = ? WHERE assigned_agent = ?", (expected, agent))
    connection = one.done()
    shown = wk("show", "sessn001")
    assert "Receipts" in shown.out
    assert "missing: gone" in shown.out
    assert "failed: pytest" in shown.out
    assert "\x1b" not in shown.out
    (receipt,) = wk("show", "sessn001", "--json").json["receipts"]
    assert (receipt["mark"], receipt["flagged"]) == ("!", True)
    assert receipt["commands"][0]["outcome"] == "failed"
    for form in ("md", "html"):
        text = export(connection, "sessn001", form).text
        assert "missing: gone" in text
        assert "failed" in text
        assert "\x1b" not in text
        assert "<hostile>" not in text or form == "md"
