"""Receipts: what agents claim, and the evidence for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.benchmarks.receipts import CHANGED, COMMANDS, DONE, TESTED, UNTOUCHED
from tests.core.cli.conftest import _a_user_of_its_own, wk
from tests.core.export.conftest import Made, export, made

from watchkeeper.records.states import ToolCallStatus
from watchkeeper.store.driver import Queries
from watchkeeper.store.receipts import ClaimKind, Receipt, Verdict, claims_in, session_receipts

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
    one.done()
    return session_receipts(Queries(one.connection), one.session_id)


def bash(command: str, result: str = "", failed: bool = False) -> Calls:
    return [("Bash", {"command": command}, result, failed)]


@pytest.mark.parametrize("own", [True, False])
def test_a_done_without_any_call_is_always_flagged(made: Callable[..., Made], own: bool) -> None:
    one = made()
    phrases = [*DONE, *(phrase.format("src/a.py") for phrase in CHANGED), *TESTED, *COMMANDS]
    for number, phrase in enumerate(phrases):
        worked(one, [], phrase, own=own, name=f"agent{number}")
    found = receipts(one)
    assert len(found) == len(phrases)
    assert [each.agent for each in found if not each.flagged] == []


WORK_PROMPTS = (
    "Fix the login bug",
    "Could you please add a retry to the client?",
    "ok, now update the README",
    "continue",
)
IN_OTHER_WORDS = (
    "All taken care of.", "Fix is in.", "✅", "The endpoint now validates its input.", "Listo.", "Old parser out, new parser in.",
    "We're down to zero warnings.", "Every item on your list is checked off.", "You will find the new module under src/net.",
    "That should do it.", "3,210 rows imported.", "The flaky test no longer flakes.", "修好了。", "Ran it; works.", "I made the button blue.",
)  # fmt: skip
NO_WORD_OF_IT = (
    "I can't reach the repository.", "Which file do you mean?", "Would you like me to go on?", "API Error: 529 overloaded_error",
    "I'll start with the parser.", "It is not done yet.", "[Request interrupted by user]", "No response requested.",
)  # fmt: skip
ANSWERS = (
    "It was fixed in version 3.2 of the library.", "The bug is in the parser: it never checks for the end.", "Nothing was changed.",
    "Let me know when you are done.", "To complete the migration, run it again.", "The default branch was renamed to main in 2020.",
    "The config is loaded at startup.", "A done task is marked with x.", *NO_WORD_OF_IT,
)  # fmt: skip


def test_a_reply_to_an_order_without_a_call_is_flagged_in_whatever_words(made: Callable[..., Made]) -> None:
    one = made()
    for number, phrase in enumerate(IN_OTHER_WORDS):
        worked(one, [], phrase, own=False, name=phrase, prompt=WORK_PROMPTS[number % len(WORK_PROMPTS)])
    for number, phrase in enumerate(NO_WORD_OF_IT):
        worked(one, [], phrase, own=False, name=phrase, prompt=WORK_PROMPTS[number % len(WORK_PROMPTS)])
    questions = (
        "Why does the login fail?",
        "Open question: is it the cache?",
        "Do you know why?",
        "Test results differ, why?",
    )
    for number, phrase in enumerate(ANSWERS):
        worked(one, [], phrase, own=False, name=phrase, prompt=questions[number % len(questions)])
    assert [each.agent for each in receipts(one) if each.flagged] == list(IN_OTHER_WORDS)


@settings(max_examples=60)
@given(
    st.text(max_size=60), st.text(max_size=60), st.sampled_from([*CHANGED, *TESTED, *COMMANDS, "no claim"])
)
def test_any_text_is_read_and_what_it_quotes_is_no_claim(before: str, after: str, phrase: str) -> None:
    claims_in(f"{before}{phrase.format('a.py')}{after}")
    assert claims_in(f"```\n{phrase.format('a.py')}\n```") == []


CASES: list[tuple[str, Calls, ClaimKind, Verdict]] = [
    ("I updated `src/a.py`.", WROTE, ClaimKind.FILE, Verdict.EVIDENCE),
    ("I updated `src/b.py`.", WROTE, ClaimKind.FILE, Verdict.NONE),
    ("I updated `src/a.py`.", [("Write", {"file_path": "src/a.py", "content": "x"}, "denied", True)], ClaimKind.FILE, Verdict.CONTRADICTED),
    ("I updated `src/a.py`.", [("Read", {"file_path": "src/a.py"}, "text", False)], ClaimKind.FILE, Verdict.NONE),
    ("I updated `src/a.py`.", bash("cat src/a.py", "a.py"), ClaimKind.FILE, Verdict.NONE),
    ("I updated `src/a.py`.", bash("sed -i s/a/b/ src/a.py"), ClaimKind.FILE, Verdict.EVIDENCE),
    ("`src/a.py` has been created.", bash("python generate.py", "wrote src/a.py"), ClaimKind.FILE, Verdict.EVIDENCE),
    ("Renamed x in src/a.py.", [("apply_patch", {"input": "*** Begin Patch\n*** Update File: src/a.py\n"}, "", False)], ClaimKind.FILE, Verdict.EVIDENCE),
    ("All tests pass.", bash("pytest -q", "12 passed"), ClaimKind.TESTS, Verdict.EVIDENCE),
    ("All tests pass.", bash("ls tests", "test_a.py"), ClaimKind.TESTS, Verdict.NONE),
    ("All tests pass.", bash("pytest -q", "1 failed, 11 passed"), ClaimKind.TESTS, Verdict.CONTRADICTED),
    ("All tests pass.", bash("pytest", "1 failed") + bash("pytest", "2 passed"), ClaimKind.TESTS, Verdict.EVIDENCE),
    ("All tests pass.", [("Task", {"prompt": "run the tests"}, "all pass", False)], ClaimKind.TESTS, Verdict.EVIDENCE),
    ("I updated `src/a.py`.", [("Task", {"subagent_type": "Explore", "prompt": "find it"}, "src/a.py: the cache", False)], ClaimKind.FILE, Verdict.NONE),
    ("I updated `src/a.py`.", [("Task", {"subagent_type": "coder", "prompt": "change it"}, "changed src/a.py", False)], ClaimKind.FILE, Verdict.EVIDENCE),
    ("I've tested it and it works.", bash("python app.py"), ClaimKind.COMMAND, Verdict.EVIDENCE),
    ("I've tested it and it works.", bash("cat app.py"), ClaimKind.COMMAND, Verdict.NONE),
    ("`pytest` passes.", bash("pytest -q", "12 passed"), ClaimKind.TESTS, Verdict.EVIDENCE),
    ("The build succeeds.", bash("npm run build"), ClaimKind.COMMAND, Verdict.EVIDENCE),
    ("The build succeeds.", WROTE, ClaimKind.COMMAND, Verdict.NONE),
    ("I committed the changes.", bash("git add -A && git commit -m x"), ClaimKind.COMMAND, Verdict.EVIDENCE),
    ("I committed the changes.", bash("git log"), ClaimKind.COMMAND, Verdict.NONE),
    ("I ran `terraform plan`.", bash("cd infra && terraform plan -out x"), ClaimKind.COMMAND, Verdict.EVIDENCE),
]  # fmt: skip


@pytest.mark.parametrize("own", [True, False])
def test_a_claim_is_judged_by_the_calls(made: Callable[..., Made], own: bool) -> None:
    one = made()
    for number, (report, calls, _, _) in enumerate(CASES):
        worked(one, calls, report, own=own, name=f"agent{number}")
    for case, receipt in zip(CASES, receipts(one), strict=True):
        (claim,) = receipt.claims
        assert (claim.kind, claim.verdict) == case[2:], case
        assert receipt.flagged == (case[3] is not Verdict.EVIDENCE)
        assert claim.evidence or claim.verdict is Verdict.NONE


def test_the_calls_of_an_agent_below_are_evidence(made: Callable[..., Made]) -> None:
    one = made()
    parent = worked(one, bash("ls"), f"I updated `src/a.py` and {UNTOUCHED[0]}.")
    worked(one, WROTE, "Wrote it.", name="child", parent_agent_id=parent)
    first, _ = receipts(one)
    assert first.summary == f"1 of 2 claims have evidence; no call wrote {UNTOUCHED[0]}"
    assert first.mark == "!"


def test_a_promised_artifact_that_was_not_saved_is_named(made: Callable[..., Made]) -> None:
    one = made()
    agent = worked(one, WROTE, "Done.")
    one.tx.execute(
        "UPDATE tasks SET expected_outputs = ? WHERE assigned_agent = ?",
        (json.dumps(["a.md", "b.md"]), agent),
    )
    one.tx.execute("UPDATE outputs SET agent_id = ? WHERE name = 'a.md'", (agent,))
    one.artifact("a.md", "x")
    one.tx.execute("UPDATE outputs SET agent_id = ? WHERE name = 'a.md'", (agent,))
    (receipt,) = receipts(one)
    assert receipt.summary == "1 of 2 claims have evidence; b.md was promised, and not saved"


@pytest.mark.parametrize(
    "report",
    [
        "Next I will update `src/b.py`, then all tests should pass.", "`src/b.py` is not changed.", "To run: `terraform plan`",
        "The type comes from `src/b.py`.", "I created the cache, using the types from `src/b.py`.", "You can now edit `src/b.py`.",
        "If the tests pass, push.", "See `src/b.py` for what changed.", "This PR adds a flag.\n- `src/b.py`: Added a flag",
        "- [ ] Update `src/b.py`\n- [ ] Run tests", "| File | Purpose |\n|---|---|\n| `src/b.py` | the cache |", "I moved on to `src/b.py`.",
        "Files to change: `src/b.py`", "The flag is documented in `src/b.py`.", "`src/b.py` is generated by the build.", "**`src/b.py`**\n- the cache",
        "Would you like me to commit? The changes are not committed yet.", "Once CI is green, merge.", "The bug in `src/b.py` is known.",
        "The hook that `src/b.py` registered runs first.", "What changed in the last release is in `src/b.py`.", "I read it from `src/b.py`.",
    ],
)  # fmt: skip
def test_plans_hints_and_the_work_of_others_are_no_claims(report: str) -> None:
    assert claims_in(report) == []


def test_an_agent_that_works_or_only_answers_has_no_flag(made: Callable[..., Made]) -> None:
    one = made()
    worked(one, [], "Four.", own=False, name="answers", prompt="What is two and two?")
    working = worked(one, [], "All tests pass.", own=False, name="works")
    one.tx.execute("UPDATE agents SET status = 'working' WHERE id = ?", (working,))
    assert [(each.agent, each.mark) for each in receipts(one)] == [("answers", "·")]


def test_show_and_export_have_the_receipts_and_no_escape_sequences(made, wk, tmp_path):
    one = made()
    worked(one, bash("ls"), "All tests pass \x1b[31m now.\nI updated `src/<b>.py`, and src/b.py was changed.")
    connection = one.done()
    shown = wk("show", "sessn001")
    assert "Receipts" in shown.out
    assert "no call ran the tests" in shown.out
    assert "\x1b" not in shown.out
    (receipt,) = wk("show", "sessn001", "--json").json["receipts"]
    assert (receipt["mark"], receipt["flagged"]) == ("!", True)
    for form in ("md", "html"):
        text = export(connection, "sessn001", form).text
        assert "no call ran the tests" in text
        assert "\x1b" not in text
