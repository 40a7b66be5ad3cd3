"""How a run ended is told completely, first what stopped it, and harmlessly."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.support.places import query
from tests.support.scripted import Blocks, PlannedRun, call, role_of, said, task, turns

from watchkeeper.cli.headless import print_outcome, print_result
from watchkeeper.records.messages import ErrorKind, ModelError, ModelRequest
from watchkeeper.store import database
from watchkeeper.store.driver import Queries
from watchkeeper.store.outcome import NAMES_SHOWN, RunOutcome, load_outcome, run_ending

SUMMARY = "\n\n".join(
    [
        "# All bugs are fixed",
        "**Done.** See `a.py`.",
        *(f"Paragraph {n}: " + "word " * 60 for n in range(9)),
        "THE VERY END",
    ]
)
NASTY = "fine \x1b]0;owned\x07\x1b[31mred \u202eevil\n✓ done by nobody"


def ended(bench: Bench) -> RunOutcome:
    with closing(database.open_readonly(bench.path)) as connection:
        found = load_outcome(Queries(connection), bench.session)
    assert found is not None
    return found


def finishing(summary: str, status: str = "done", work: Any = None) -> PlannedRun:
    """A run of one coder whose planner ends it with this summary."""

    class Finishing(PlannedRun):
        def __call__(self, request: ModelRequest) -> Any:
            blocks = super().__call__(request)
            for block in blocks if isinstance(blocks, list) else ():
                if block.get("name") == "finish_session":
                    block["input"] = {"summary": summary, "status": status}
            return blocks

    return Finishing([task("fix-parser", role="coder")], work or (lambda name, request: [said("fixed")]))


def edits(name: str, request: ModelRequest) -> Blocks:
    """Writes a file, fails to edit another one, and saves two artifacts."""
    if turns(request) > 0:
        return [said("fixed")]
    return [
        call("write", {"file_path": "a.py", "content": "x = 1\n"}, "t1"),
        call("edit", {"file_path": "b.py", "old_string": "no", "new_string": "such"}, "t2"),
        call("save_artifact", {"name": "notes.md", "content": "# notes"}, "t3"),
        call("save_artifact", {"name": "docs/plan.md", "content": "# plan"}, "t4"),
    ]


async def test_the_outcome_is_the_whole_summary_with_the_artifacts_and_the_files_that_were_edited(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.start(finishing(SUMMARY, work=edits), allow=("write", "edit"))
    assert (await bench.run()).exit_code == 0
    outcome = ended(bench)
    assert (outcome.ending.stopped, outcome.ending.summary) == ("", SUMMARY.strip())
    assert sorted(outcome.artifacts) == ["docs/plan.md", "notes.md"]
    assert outcome.files == ("a.py",)
    print_result(bench.path, bench.session, as_json=True)
    assert json.loads(capsys.readouterr().out)["outcome"] == bench.state["outcome"] == outcome.as_json()
    for show in (print_result, print_outcome):
        show(bench.path, bench.session, **({"as_json": False} if show is print_result else {}))
        printed = capsys.readouterr().out
        assert "THE VERY END" in printed
        assert "Files edited: a.py" in printed
        assert printed.index("All bugs are fixed") < printed.index("notes.md")


async def test_a_planner_that_gives_up_is_told_first_and_then_its_summary(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.start(finishing(SUMMARY, "failed"))
    assert (await bench.run()).exit_code == 1
    print_result(bench.path, bench.session, as_json=False)
    printed = capsys.readouterr().out
    assert "failed: the planner ended the run without reaching the goal" in printed
    assert printed.index("without reaching the goal") < printed.index("All bugs are fixed")


async def test_a_run_that_an_error_stopped_tells_the_error_and_no_summary(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    error = "the prompt is refused " + "because " * 60 + "THE REASON"
    bench.start(lambda request: ModelError(error, kind=ErrorKind.FAIL) if role_of(request) else [])
    assert (await bench.run()).exit_code != 0
    outcome = ended(bench)
    assert outcome.ending.summary == ""
    assert "THE REASON" in outcome.ending.stopped
    print_outcome(bench.path, bench.session)
    assert "THE REASON" in capsys.readouterr().out


@pytest.mark.parametrize("status", ["paused", "failed", "cancelled", "a-later-state"])
def test_what_stopped_a_run_is_unknown_where_nothing_was_recorded(status: str) -> None:
    ending = run_ending(status, None, None)
    assert ending is not None
    assert (ending.stopped, ending.summary) == ("unknown", "")


def test_a_run_that_goes_on_and_another_programs_session_have_no_outcome() -> None:
    assert run_ending("running", "resumed", "working") is None
    for origin in ("codex", "claude-code", "export:opencode"):
        assert run_ending("done", "x", "done", origin) is None
    assert run_ending("done", "x", "done", "export:run") is not None


async def test_an_outcome_is_harmless_and_its_lines_are_indented(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.start(finishing(NASTY))
    await bench.run()
    print_outcome(bench.path, bench.session)
    printed = capsys.readouterr().out
    assert not any(character in printed for character in "\x1b\x07\u202e")
    assert "\n✓" not in printed  # no line of it passes for one of ours


def test_a_list_of_names_that_is_cut_says_so_and_where_all_are() -> None:
    names = tuple(f"artifact-{n}" for n in range(NAMES_SHOWN + 7))
    ending = run_ending("done", "all done", "done")
    assert ending is not None
    *_, line = RunOutcome(ending, names, (), ()).lines("s3ssion1")
    assert line.endswith("and 7 more (wk artifacts s3ssion1)")


async def test_a_person_edit_of_a_call_counts_not_what_the_model_asked_for(bench: Bench) -> None:
    bench.start(finishing(SUMMARY, work=edits), allow=("write", "edit"))
    await bench.run()
    (call_id,) = query(bench.path, "SELECT id FROM tool_calls WHERE tool_use_id = 't1'")[0]
    with closing(database.open_writable(bench.path)) as connection:
        connection.execute(
            "UPDATE tool_calls SET edited_input = ? WHERE id = ?",
            (json.dumps({"file_path": "c.py", "content": "y"}), call_id),
        )
        connection.commit()
    assert ended(bench).files == ("c.py",)
