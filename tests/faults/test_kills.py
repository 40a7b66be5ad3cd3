"""A sample of the kill trials (`kill_trials.py` runs them all): SIGKILL, resume, and nothing is lost or done
twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.kill_trials import Outcome, Trial, killed_at, undisturbed

SAMPLE = [("writer.before_commit", 2), ("writer.after_commit", 28), ("tool.after_run", 3)]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    for part in ("alpha", "beta", "gamma"):
        (folder / part).mkdir()
        for number in range(30):
            (folder / part / f"module_{number:02d}.py").write_text(
                f"# TODO: look at {part} {number}\nvalue = {number}\n" * 3
            )
    return folder


@pytest.fixture(scope="module")
def reference(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    trial = Trial.in_folder(tmp_path_factory.mktemp("undisturbed") / "trial")
    outcome, _ = undisturbed(workspace, trial)
    assert not outcome.problems
    return outcome


@pytest.mark.parametrize(
    ("point", "hit"),
    [pytest.param(*each, marks=[] if each is SAMPLE[0] else [pytest.mark.long]) for each in SAMPLE],
)
def test_a_host_killed_there_is_resumed_to_the_same_end_with_nothing_done_twice(
    point: str, hit: int, workspace: Path, reference: Outcome, tmp_path: Path
) -> None:
    reached, problems = killed_at(point, hit, workspace, Trial.in_folder(tmp_path / "trial"), reference)
    assert reached
    assert not problems
