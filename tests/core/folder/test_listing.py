"""What `list_folder` tells of ordinary folders."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.agents.tools.contract import validate_arguments
from watchkeeper.agents.tools.folder import LIST_FOLDER, _size, list_page, scan_page


def test_the_top_level_shows_files_with_figures_and_folders_with_all_that_is_below(project, entries):
    found = {entry["path"]: entry for entry in entries(project)}
    assert list(found) == ["README.md", "docs", "pyproject.toml", "run", "src", "tests"]
    assert found["README.md"] == {
        "path": "README.md",
        "kind": "file",
        "bytes": 29,
        "lines": 3,
        "language": "Markdown",
    }
    below = [path for path in (project / "src").rglob("*") if path.is_file()]
    assert found["src"] == {
        "path": "src",
        "kind": "dir",
        "files": len(below),
        "bytes": sum(path.stat().st_size for path in below),
    }


def test_a_recursive_listing_gives_each_parent_before_its_children_in_byte_order(project, entries):
    found = [entry["path"] for entry in entries(project, recursive=True)]
    expected = sorted(
        (str(path.relative_to(project)) for path in project.rglob("*") if ".git" not in path.parts),
        key=lambda path: path.encode().split(b"/"),
    )
    assert found == expected


def test_lines_are_newlines_plus_an_unterminated_last_line(tmp_path, entries):
    for name, content in {"a": b"", "b": b"x", "c": b"x\n", "d": b"\n\nx", "e": b"\r\n"}.items():
        (tmp_path / name).write_bytes(content)
    assert [entry["lines"] for entry in entries(tmp_path)] == [0, 1, 1, 3, 1]


def test_todos_are_whole_words_in_upper_case_one_a_line(project, entries):
    found = {entry["path"]: entry.get("todos") for entry in entries(project, recursive=True)}
    assert found["src/p/tool.py"] == [[1, "TODO", "TODO: more"]]
    assert found["tests/test_tool.py"] == [[1, "FIXME", "FIXME later, TODO never"]]
    assert found["docs/index.md"] is None


def test_entry_points_and_tests_are_told_with_the_reason(project, entries):
    found = {entry["path"]: entry for entry in entries(project, recursive=True)}
    reasons = {path: entry["entry_point"] for path, entry in found.items() if "entry_point" in entry}
    assert reasons == {
        "pyproject.toml": "project.scripts: act, zed",
        "run": "executable script",
        "src/p/__main__.py": "python -m",
        "src/p/tool.py": 'if __name__ == "__main__"',
    }
    assert found["run"]["language"] == "Python"
    assert [path for path, entry in found.items() if entry.get("test")] == ["tests/test_tool.py"]


def test_version_control_is_skipped_and_said_to_be_once(project, pages):
    for arguments in ({}, {"recursive": True}, {"recursive": True, "max_bytes": 1_000}, {"only": "files"}):
        skipped = [path for page in pages(project, **arguments) for path in page.get("skipped", [])]
        assert skipped == [".git"]


def test_an_empty_folder_has_no_entries(tmp_path):
    page = json.loads(scan_page(tmp_path))
    assert page["entries"] == []
    assert page["next"] is None


def test_pages_of_any_size_hold_the_same_entries_and_totals_add_up(tmp_path, pages):
    rng = random.Random(5)
    for _ in range(300):
        folder = tmp_path / "w" / rng.choice("abc") / rng.choice(["x", "y.z", "y", "-"])
        folder.mkdir(parents=True, exist_ok=True)
        name = f"f{rng.randrange(10**6)}.{rng.choice(['py', 'md', 'bin'])}"
        (folder / name).write_bytes(rng.randbytes(rng.randrange(60)) + b"\n# TODO x\n")
    whole = pages(tmp_path / "w", recursive=True, max_bytes=60_000, limit=200)
    everything = [entry for page in whole for entry in page["entries"]]
    for arguments in ({"max_bytes": 1_000}, {"limit": 1}, {"limit": 7}, {}):
        parts = pages(tmp_path / "w", recursive=True, **arguments)
        assert [entry for page in parts for entry in page["entries"]] == everything
        for name in whole[0]["totals"]:
            assert sum(page["totals"][name] for page in parts) == sum(page["totals"][name] for page in whole)


def test_no_page_is_larger_than_was_asked_for(tmp_path):
    for number in range(200):
        (tmp_path / f"a_rather_long_name_{number:04}_é.py").write_text("# TODO é\n" * 5)
    cursor, sizes = None, []
    while True:
        text = scan_page(tmp_path, cursor=cursor, max_bytes=3_000)
        sizes.append(len(text.encode()))
        cursor = json.loads(text)["next"]
        if cursor is None:
            break
    assert max(sizes) <= 3_000
    assert min(sizes[:-1]) > 2_000


def test_a_listing_goes_on_although_the_folder_changed_between_pages(project):
    first = json.loads(scan_page(project, recursive=True, limit=3))
    assert [entry["path"] for entry in first["entries"]] == ["README.md", "docs", "docs/index.md"]
    (project / "docs" / "index.md").unlink()
    (project / "docs").rmdir()
    (project / "AAA").write_text("")
    second = json.loads(scan_page(project, ".", first["next"], recursive=True))
    assert [entry["path"] for entry in second["entries"]][:3] == ["pyproject.toml", "run", "src"]


def test_a_range_of_folders_can_be_listed_alone(tmp_path, entries):
    for name in ("a/1", "b/2", "b.c/3", "c/4", "d/5", "loose"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    found = entries(tmp_path, recursive=True, only="folders", cursor="from:b", until="c")
    assert [entry["path"] for entry in found] == ["b", "b/2", "b.c", "b.c/3", "c", "c/4"]
    assert [entry["path"] for entry in entries(tmp_path, only="files")] == ["loose"]


def test_listing_folders_alone_says_how_much_lies_loose(project):
    page = json.loads(scan_page(project, only="folders"))
    assert [entry["path"] for entry in page["entries"]] == ["docs", "src", "tests"]
    assert page["loose"] == 4  # three files, and .git, which counts as no folder


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"path": "/etc"}, "is absolute"),
        ({"path": "src/../../x"}, "'..' is not allowed"),
        ({"path": "out"}, "leads out of the workspace"),
        ({"path": "nowhere"}, "There is no 'nowhere'"),
        ({"path": "README.md"}, "is not a folder"),
        ({"path": "a\0b"}, "NUL"),
        ({"cursor": "src"}, "cursor='src' is none of list_folder's"),
        ({"path": "src", "cursor": "after:docs/x"}, "does not lie below"),
        ({"until": "../x"}, "'..' is not allowed"),
    ],
)
def test_what_cannot_be_listed_is_one_clear_line(project, arguments, complaint):
    os.symlink("/etc", project / "out")
    with pytest.raises(ValueError, match=complaint) as raised:
        scan_page(project, **arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": 3},
        {"limit": True},
        {"limit": 0},
        {"limit": 201},
        {"only": "both"},
        {"recursive": "yes"},
        {"colour": "red"},
        {"cursor": 5},
    ],
)
def test_arguments_of_a_wrong_kind_are_refused(wrong):
    assert validate_arguments(LIST_FOLDER.input_schema, wrong)


def test_a_folder_behind_a_link_inside_the_workspace_can_be_listed(project: Path, entries):
    os.symlink("src/p", project / "short")
    assert next(entry["path"] for entry in entries(project, "short")) == "short/__init__.py"


def test_paths_to_skip_are_left_out_and_said_to_be(project, entries, pages):
    skip = ["src/p", "docs", "README.md", "no/such"]
    found = [entry["path"] for entry in entries(project, recursive=True, skip=skip)]
    assert found == ["pyproject.toml", "run", "src", "tests", "tests/test_tool.py"]
    for arguments in ({}, {"limit": 1}):
        listed = pages(project, recursive=True, skip=skip, **arguments)
        skipped = [path for page in listed for path in page.get("skipped", [])]
        assert skipped == [".git", "README.md", "docs", "src/p"]
    assert [entry["path"] for entry in entries(project, "src", recursive=True, skip=["src/p"])] == []
    with pytest.raises(ValueError, match="leaves the workspace"):
        scan_page(project, skip=["../x"])


@pytest.mark.parametrize("is_repository", [True, False])
def test_what_git_would_not_list_and_virtual_environments_are_left_out(
    tmp_path: Path, entries: Callable[..., list[dict[str, Any]]], is_repository: bool
) -> None:
    for name in (
        "src/a.py", "src/a.o", "src/build/b.py", ".venv/lib/c.py", "env/pyvenv.cfg", "env/d.py", "node_modules/e.js", "kept.o",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    (tmp_path / ".gitignore").write_text("*.o\nbuild/\nnode_modules\n")
    if is_repository:
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        subprocess.run(["git", "add", "-f", "kept.o"], cwd=tmp_path, check=True)
    files = {each["path"] for each in entries(tmp_path, recursive=True) if each["kind"] == "file"}
    assert files == {".gitignore", "src/a.py"} | ({"kept.o"} if is_repository else set())
    (folder,) = entries(tmp_path, only="folders")
    assert (folder["path"], folder["files"]) == ("src", 1)
    assert [each["path"] for each in entries(tmp_path, "src", recursive=True)] == ["src/a.py"]


def test_a_short_listing_has_a_line_an_entry(project: Path) -> None:
    (project / "src" / "link").symlink_to("p")
    (project / "src" / "big.bin").write_bytes(b"\0" * 5_000)
    assert list_page(project).split("\n") == [
        "README.md  29", "docs/  1 file, 39", "pyproject.toml  69", "run  34", "src/  5 files, 5.0K",
        "tests/  1 file, 47", "[skipped: .git]",
    ]  # fmt: skip
    assert list_page(project, "src", recursive=True).split("\n") == [
        "src/ holds:", "big.bin  4.9K", "link  (link)", "p/", "p/__init__.py  0", "p/__main__.py  9", "p/data.json  3",
        "p/tool.py  58",
    ]  # fmt: skip
    (project / "empty").mkdir()
    assert list_page(project, "empty") == "empty/ holds:\n[nothing]"


def test_a_short_listing_says_how_many_more_there_are_and_pages_hold_each_entry_once(tmp_path: Path) -> None:
    for number in range(44):
        (tmp_path / f"module_{number:02}.py").write_text("x" * number)
    whole = list_page(tmp_path)
    assert len(whole) < 44 * 18
    names: list[str] = []
    cursor = None
    for more in (34, 24, 14, 4, None):
        lines = list_page(tmp_path, ".", cursor, 10).split("\n")
        end = lines.pop() if more else ""
        cursor = end.partition("cursor: ")[2].rstrip("]")
        assert end == (f"[and {more} more; cursor: {cursor}]" if more else "")
        names += lines
    assert names == whole.split("\n")


def test_sizes_are_short() -> None:
    sizes = [0, 999, 1_000, 1_500, 10_300, 999_999, 1_050_000, 10**12]
    assert [_size(one) for one in sizes] == ["0", "999", "1.0K", "1.5K", "10K", "977K", "1.0M", "931G"]
