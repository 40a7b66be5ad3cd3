"""Whole surveys, from an empty plan to `survey.json`, checked against an independent count."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.core.surveyor.session import FakeSession, assignment

from watchkeeper.models.surveyor import START_AGAIN

TOTALS = ("files", "bytes", "folders", "links", "other")


def count(root: Path) -> dict[str, Any]:
    """What `survey.json` must say, written apart from the code that it checks."""
    found: dict[str, Any] = dict.fromkeys(TOTALS, 0) | {"extensions": {}}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder) / name
            if name == ".git":
                continue
            if path.is_symlink():
                found["links"] += 1
            elif path.is_dir():
                found["folders"] += 1
            elif not path.is_file():
                found["other"] += 1
            else:
                size = path.stat().st_size
                row = found["extensions"].setdefault(
                    path.suffix.lower() or "(none)", {"files": 0, "bytes": 0}
                )
                for sums in (found, row):
                    sums["files"] += 1
                    sums["bytes"] += size
        folders[:] = [name for name in folders if name != ".git"]
    return found


def assert_true(survey: dict[str, Any], root: Path) -> None:
    truth = count(root)
    assert {name: survey[name] for name in truth} == truth


def survey_of(workspace: Path, **settings: Any) -> FakeSession:
    return FakeSession(workspace, **settings).run()


def test_a_project_of_ten_files_is_surveyed_truly(project: Path) -> None:
    session = survey_of(project)
    assert_true(session.survey, project)
    assert session.survey["files"] == 10
    assert session.survey["extensions"][".py"] == {"files": 5, "bytes": 49}
    assert session.survey["missing_parts"] == []
    assert session.finished == {
        "summary": "The survey is in SURVEY.md and survey.json: 10 files, 108 bytes.", "status": "done",
    }  # fmt: skip


def test_the_plan_has_a_task_for_each_folder_and_a_synthesis_that_depends_on_all(project: Path) -> None:
    tasks = survey_of(project).tasks
    assert list(tasks) == ["docs", "src", "tests", "loose-files", "synthesis"]
    assert tasks["synthesis"]["depends_on"] == ["docs", "src", "tests", "loose-files"]
    assert tasks["synthesis"]["expected_outputs"] == ["SURVEY.md", "survey.json"]


def test_the_report_says_that_a_script_wrote_it(project: Path) -> None:
    report = survey_of(project).report
    assert "a script, not a language model" in report
    assert "- Files: 10" in report
    assert "| `.py` | 5 | 49 |" in report


def test_agents_read_files_with_the_real_tools_and_remember_what_they_counted(project: Path) -> None:
    for number in range(60):
        (project / "src" / f"more_{number}.py").write_text("x = 1\n")
    session = survey_of(project)
    assert {tool for _, tool in session.used} >= {
        "list_folder",
        "read",
        "save_artifact",
        "remember",
        "merge_artifacts",
    }
    assert "src: 64 files, most of them .py" in session.facts


def test_an_empty_folder_gets_an_empty_survey(tmp_path: Path) -> None:
    session = survey_of(tmp_path)
    assert list(session.tasks) == ["synthesis"]
    assert_true(session.survey, tmp_path)


def test_a_folder_that_is_gone_ends_the_session_with_a_clear_line(tmp_path: Path) -> None:
    session = FakeSession(tmp_path / "gone")
    session.run_agent("planner", "planner", "# Goal\nSurvey it.")
    assert session.finished is not None
    assert session.finished["status"] == "failed"
    assert "list_folder" in session.finished["summary"]


def awkward(root: Path) -> Path:
    """Special, linked and oddly named files."""
    for name in ("a", "$merge", "b/deep/er", "c  d", "A", "$artifact"):
        (root / name).mkdir(parents=True)
    with (root / "a" / "huge.bin").open("wb") as file:
        file.truncate(1 << 30)
    os.mkfifo(root / "a" / "pipe")
    os.symlink("..", root / "a" / "loop")
    os.symlink("/etc/passwd", root / "away")
    for name in (
        "[and 3 more; cursor: after:z]",
        "x  12",
        "y  (link)",
        "rtl-\u202e.py",
        "日本.TXT",
        "part: {}",
    ):
        (root / "c  d" / name).write_text("12345")
    (root / "c  d" / "[nothing]").mkdir()
    (root / os.fsdecode(b"raw-\xff")).mkdir()
    (root / os.fsdecode(b"raw-\xff") / "new\nline.py").write_text("1")
    (root / ("n" * 255)).write_text("unterminated")
    return root


@pytest.mark.parametrize("window", [8_000, 16_000])
def test_an_awkward_folder_is_surveyed_truly(tmp_path: Path, window: int) -> None:
    root = awkward(tmp_path / "awkward")
    session = survey_of(root, window=window, compaction=0.3)
    assert_true(session.survey, root)
    assert (session.survey["links"], session.survey["other"]) == (2, 1)


def grow(root: Path, rng: random.Random, files: int) -> Path:
    """A random folder."""
    for number in range(files):
        depth = rng.choice([0, 1, 1, 2, 2, 3])
        folder = root.joinpath(
            *(rng.choice(["pkg", "lib", "tests", "a-b", "x.y", "Z"]) for _ in range(depth))
        )
        folder.mkdir(parents=True, exist_ok=True)
        name = f"f{number}{rng.choice(['.py', '.md', '.txt', '', '.json'])}"
        (folder / name).write_bytes(b"x" * rng.randrange(900))
    return root


def test_the_survey_does_not_depend_on_compaction_order_or_failures(tmp_path: Path) -> None:
    root = grow(tmp_path / "w", random.Random(0), 400)
    undisturbed = survey_of(root)
    assert_true(undisturbed.survey, root)
    for number in range(6):
        rng = random.Random(number)
        failed: set[str] = set()

        def fault(agent: str, tool: str, given: dict[str, Any], rng=rng, failed=failed) -> str | None:
            # Each call may be cut off once, never so often that it must be given up.
            what = f"{agent}{tool}{json.dumps(given)}"
            if rng.random() < 0.15 and what not in failed:
                failed.add(what)
                return "interrupted, outcome unknown; verify"
            return None

        disturbed = survey_of(root, compaction=rng.random(), seed=number, fault=fault)
        assert disturbed.survey == undisturbed.survey
        assert disturbed.report == undisturbed.report


@pytest.mark.parametrize("folders", [20, 400])
def test_many_folders_share_a_few_agents_and_each_is_counted(tmp_path: Path, folders: int) -> None:
    for number in range(folders):
        (tmp_path / "w" / f"folder_{number}").mkdir(parents=True)
        (tmp_path / "w" / f"folder_{number}" / "a.py").write_text("x")
    session = survey_of(tmp_path / "w", compaction=0.3)
    assert_true(session.survey, tmp_path / "w")
    assert len(session.tasks) <= 11
    assert session.longest_reply < 200


Fault = Callable[[str, str, dict[str, Any]], str | None]


def failing(agent: str, tool: str, times: int) -> Fault:
    """So many calls of one agent's tool fail."""
    left = [times]

    def fault(who: str, name: str, given: dict[str, Any]) -> str | None:
        if (who, name) == (agent, tool) and left[0] > 0:
            left[0] -= 1
            return "the disk is full"
        return None

    return fault


def test_a_task_that_fails_is_run_again(project: Path) -> None:
    session = survey_of(project, fault=failing("src", "save_artifact", 3))
    assert ("planner", "rerun_task") in session.used
    assert_true(session.survey, project)


def test_the_survey_names_the_part_of_a_task_that_failed_twice(project: Path) -> None:
    session = survey_of(project, fault=failing("src", "save_artifact", 1_000))
    assert session.tasks["src"]["status"] == "dropped"
    assert session.survey["missing_parts"] == ["src"]
    assert "Missing, and not counted: `src`." in session.report
    assert session.survey["files"] == 6


@pytest.mark.parametrize("tool", ["read", "remember"])
def test_a_tool_that_a_survey_can_do_without_may_fail(project: Path, tool: str) -> None:
    assert_true(survey_of(project, fault=failing("src", tool, 1_000)).survey, project)


def test_a_survey_that_an_earlier_version_began_says_start_again(project: Path) -> None:
    session = FakeSession(project)
    old = {
        "name": "src", "title": "Explore src", "expected_outputs": ["figures/src"],
        "instructions": 'Survey src.\n\nscope: {"task": "src", "parts": [{"path": "src"}]}',
    }  # fmt: skip
    assert START_AGAIN in session.run_agent("src", "explorer", assignment(old))
    session.run_agent("planner", "planner", "# Goal\nSurvey it.")
    failed = "Task src failed: expected outputs are missing: figures/src."
    session.tasks.clear()
    session.run_agent("planner", "planner", failed)
    assert session.finished == {"summary": START_AGAIN, "status": "failed"}
