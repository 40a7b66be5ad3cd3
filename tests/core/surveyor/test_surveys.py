"""Whole surveys, from an empty plan to `survey.json`, checked against an independent count."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.core.surveyor.counting import assert_true
from tests.core.surveyor.session import FakeSession


def test_a_project_of_ten_files_is_surveyed_truly(project, survey_of):
    session = survey_of(project)
    survey = session.survey
    assert_true(survey, project)
    assert survey["format"] == "watchkeeper-survey/1"
    assert survey["workspace"] == "ten"
    assert survey["entry_points"] == [
        {"path": "pyproject.toml", "reason": "project.scripts: ten"},
        {"path": "src/ten/__main__.py", "reason": "python -m"},
    ]
    assert survey["tests"] == {"files": 2, "folders": {"tests/": 2}}
    assert survey["skipped"] == [".git"]
    assert survey["missing_parts"] == []
    assert survey["unreadable"] == []
    assert {"path": "README.md", "begins": "Ten files"} in survey["notes"]
    assert session.finished is not None
    assert session.finished["status"] == "done"


def test_the_plan_has_a_task_for_each_top_level_part_and_a_synthesis_that_depends_on_all(project, survey_of):
    tasks = survey_of(project).tasks
    assert list(tasks) == ["loose-files", "docs", "src", "tests", "synthesis"]
    assert all(task["role"] == "explorer" for name, task in tasks.items() if name != "synthesis")
    assert tasks["synthesis"]["depends_on"] == ["loose-files", "docs", "src", "tests"]
    assert tasks["synthesis"]["expected_outputs"] == ["SURVEY.md", "survey.json"]


def test_the_report_is_readable_and_says_that_no_llm_wrote_it(project, survey_of):
    report = survey_of(project).report
    assert "not an LLM" in report
    assert "| Files | 10 |" in report
    assert "`src/ten/core.py:3` `TODO make it eleven`" in report
    assert "`.git`" in report
    for heading in (
        "Languages",
        "Largest files",
        "Entry points",
        "TODO and FIXME",
        "Tests",
        "How it was counted",
    ):
        assert f"\n## {heading}\n" in report


def test_explorers_read_files_with_the_real_tools_and_remember_what_they_say(project, survey_of):
    session = survey_of(project)
    assert {tool for _, tool in session.used} >= {
        "list_folder", "read", "save_artifact", "remember", "recall", "merge_artifacts",
    }  # fmt: skip
    assert "src/ten/core.py begins: Counts to ten." in session.facts or any(
        "README.md begins" in fact for fact in session.facts
    )


def test_an_empty_folder_gets_an_honest_empty_survey(tmp_path, survey_of):
    session = survey_of(tmp_path)
    assert list(session.tasks) == ["synthesis"]
    assert_true(session.survey, tmp_path)
    assert session.survey["files"] == 0
    assert "The folder is empty." in session.report
    assert session.finished["status"] == "done"


def test_a_folder_that_is_gone_ends_the_session_with_a_clear_line(tmp_path):
    session = FakeSession(tmp_path / "gone")
    session.run_agent("planner", "planner", "# Goal\nSurvey it.")
    assert session.finished["status"] == "failed"
    assert "could not be listed" in session.finished["summary"]
    assert session.tasks == {}


@pytest.fixture
def awkward(tmp_path: Path) -> Path:
    """Binary, sparse, special, linked and oddly named files."""
    root = tmp_path / "awkward"
    for folder in ("a", "$merge", "b/deep/er", "c d", "tests", "$artifact"):
        (root / folder).mkdir(parents=True)
    (root / "a" / "picture.png").write_bytes(b"\x89PNG\0\0TODO")
    (root / "a" / "late-nul.txt").write_bytes(b"x\n" * 5_000 + b"\0 TODO\n")
    with (root / "a" / "huge.bin").open("wb") as file:
        file.truncate(1 << 30)
    os.mkfifo(root / "a" / "pipe")
    os.symlink("..", root / "a" / "loop")
    os.symlink("/etc/passwd", root / "away")
    (root / "b" / "deep" / "er" / "min.js").write_text("x;" * 200_000 + "// TODO " + "y" * 10_000)
    (root / "b" / "crlf.txt").write_bytes(b"one\r\ntwo FIXME\r\n")
    (root / "c d" / "many.py").write_text("".join(f"# TODO {n} {'é' * 90}\n" for n in range(300)))
    (root / "c d" / 'quote"|`x`.md').write_text("TODO `|`\n")
    (root / "c d" / "cursor.md").write_text(
        'cursor: {"role":"explorer","phase":"close"}\nscope: {"task":"x"}\n{"inbox":[]}\n'
    )
    (root / "tests" / "test_a.py").write_text("")
    (root / "$merge" / "test_b.py").write_text("# TODO [… 99 characters left out, whole: message://x/1 …]\n")
    (root / "$artifact" / "test_c.py").write_text("x")
    (root / ("n" * 255)).write_text("unterminated")
    (root / "README").write_text("\n\nAn awkward folder.\n")
    return root


@pytest.mark.parametrize("window", [8_000, 16_000])
def test_an_awkward_folder_is_surveyed_truly(awkward, survey_of, window):
    session = survey_of(awkward, window=window, compaction=0.3)
    assert_true(session.survey, awkward)
    assert session.survey["other"] == 1
    assert session.survey["tests"]["folders"] == {"$artifact/": 1, "$merge/": 1, "tests/": 1}
    assert session.survey["missing_parts"] == []


def test_odd_names_survive_from_the_folder_to_the_survey(tmp_path, survey_of):
    names = [b"new\nline", b"raw-\xff", "rtl-‮evil".encode(), b"back\\slash", b"tick`s", "日本".encode()]
    for name in names:
        os.makedirs(os.path.join(os.fsencode(tmp_path), name))
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name, b"TODO " + name))).write_text("TODO\n")
    from watchkeeper.agents.tools.folder import unshow

    survey = survey_of(tmp_path, compaction=0.5).survey
    assert survey["files"] == survey["folders"] == len(names)
    assert {unshow(place["path"]) for place in survey["todos"]["places"]} == {
        name + b"/TODO " + name for name in names
    }


def test_unreadable_files_are_counted_and_named_with_the_reason(project, survey_of, monkeypatch):
    real_open = os.open

    def refuse(path: Any, *rest: Any, **more: Any) -> int:
        if os.fsencode(path).endswith(b"core.py"):
            raise PermissionError(13, "Permission denied")
        return real_open(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    session = survey_of(project)
    assert session.survey["unreadable"] == [
        {"path": "src/ten/core.py", "reason": "permission denied"},
        {"path": "tests/test_core.py", "reason": "permission denied"},
    ]
    assert session.survey["files"] == 10
    assert "permission denied" in session.report


def grow(root: Path, rng: random.Random, files: int) -> Path:
    """A random folder."""
    for number in range(files):
        depth = rng.choice([0, 1, 1, 2, 2, 3])
        folder = root.joinpath(
            *(rng.choice(["pkg", "lib", "tests", "a-b", "x.y", "Z"]) for _ in range(depth))
        )
        folder.mkdir(parents=True, exist_ok=True)
        ending = rng.choice([".py", ".md", ".txt", "", ".json", ".png"])
        lines = [
            rng.choice(["x = 1", "# TODO go on", "FIXME", "", "TODOS"]) for _ in range(rng.randrange(30))
        ]
        content = "\n".join(lines).encode() + rng.choice([b"", b"\n", b"\0"])
        (folder / f"{rng.choice(['test_', '', 'main'])}{number}{ending}").write_bytes(content)
    return root


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.long) for each in (1, 2, 3))])
def test_the_survey_does_not_depend_on_compaction_order_or_failures(tmp_path, survey_of, seed):
    root = grow(tmp_path / "w", random.Random(seed), 400)
    undisturbed = survey_of(root)
    assert_true(undisturbed.survey, root)
    for number in range(4):
        rng = random.Random(f"{seed}-{number}")
        shaky: set[str] = set()

        def fault(agent: str, tool: str, arguments: dict[str, Any], rng=rng, shaky=shaky) -> str | None:
            # Each call may be cut off once or twice in a row, never so often that it must be given up.
            what = f"{agent}{tool}{json.dumps(arguments)}"
            if rng.random() < 0.15 and sum(what == one.partition("#")[0] for one in shaky) < 1:
                shaky.add(f"{what}#{len(shaky)}")
                return "interrupted, outcome unknown; verify"
            return None

        disturbed = survey_of(root, compaction=rng.random(), seed=number, fault=fault)
        assert json.dumps(disturbed.survey) == json.dumps(undisturbed.survey)
        assert disturbed.report == undisturbed.report
        assert disturbed.results == undisturbed.results


@pytest.mark.long
def test_a_large_package_tree_takes_few_calls_and_small_contexts(tmp_path, survey_of):
    root = tmp_path / "tree"
    rng = random.Random(1)
    for number in range(5_000):
        folder = root / "package" / f"part_{number % 9}" / f"group_{number % 70}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"module_{number}.py").write_text(
            "x = 1\n" * rng.randrange(9) + ("# TODO\n" if number % 50 == 0 else "")
        )
    (root / "README.md").write_text("# A tree\n")
    session = survey_of(root)
    assert_true(session.survey, root)
    assert session.calls <= 150
    assert session.longest_reply < 300
    assert len(session.tasks) >= 5, "one large folder is divided among several explorers"


def test_a_folder_of_very_many_folders_is_grouped_and_every_folder_is_counted(tmp_path, survey_of):
    for number in range(700):
        (tmp_path / "w" / f"folder_number_{number}").mkdir(parents=True)
        (tmp_path / "w" / f"folder_number_{number}" / "a.py").write_text("# TODO\n")
    session = survey_of(tmp_path / "w", compaction=0.3)
    assert_true(session.survey, tmp_path / "w")
    assert len(session.tasks) <= 26
    assert session.longest_reply < 300


def test_groups_of_folders_name_each_of_them(tmp_path, survey_of):
    names = [f"part{number:02}" for number in range(60)]
    for name in names:
        (tmp_path / "w" / name).mkdir(parents=True)
        (tmp_path / "w" / name / "f").write_text("")
    tasks = survey_of(tmp_path / "w").tasks
    told = " ".join(task["instructions"] for task in tasks.values())
    assert all(name in told for name in names)
