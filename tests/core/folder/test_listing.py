"""What `list_folder` says of a folder, an ordinary one and a hostile one."""

from __future__ import annotations

import os
import random
import socket
import subprocess
from pathlib import Path

import pytest
from tests.core.folder.conftest import Lines

from watchkeeper.agents.tools import folder
from watchkeeper.agents.tools.contract import validate_arguments
from watchkeeper.agents.tools.folder import LIST_FOLDER, _size, list_page


def test_a_listing_has_a_line_an_entry(project: Path) -> None:
    (project / "src" / "link").symlink_to("p")
    (project / "src" / "big.bin").write_bytes(b"\0" * 5_000)
    assert list_page(project).split("\n") == [
        "README.md  29", "docs/  1 file, 5", "pyproject.toml  21", "src/  4 files, 4.9K", "tests/  1 file, 21",
        "[skipped: .git]",
    ]  # fmt: skip
    assert list_page(project, "src", recursive=True).split("\n") == [
        "src/ holds:", "big.bin  5000", "link  (link)", "p/", "p/__init__.py  0", "p/__main__.py  9", "p/data.json  3",
    ]  # fmt: skip
    (project / "empty").mkdir()
    assert list_page(project, "empty") == "empty/ holds:\n[nothing]"


def test_a_recursive_listing_gives_each_parent_before_its_children_in_byte_order(
    project: Path, lines: Lines
) -> None:
    found = [line.partition("  ")[0].rstrip("/") for line in lines(project, recursive=True)][:-1]
    assert found == sorted(
        (str(path.relative_to(project)) for path in project.rglob("*") if ".git" not in path.parts),
        key=lambda path: path.encode().split(b"/"),
    )


@pytest.mark.parametrize("recursive", [False, True])
def test_pages_of_any_size_hold_each_entry_once(tmp_path: Path, lines: Lines, recursive: bool) -> None:
    rng = random.Random(5)
    for _ in range(300):
        place = tmp_path / "w" / rng.choice("abc") / rng.choice(["x", "y.z", "y", "-"])
        place.mkdir(parents=True, exist_ok=True)
        (place / f"f{rng.randrange(10**6)}.{rng.choice(['py', 'md'])}").write_bytes(
            rng.randbytes(rng.randrange(60))
        )
    whole = lines(tmp_path / "w", recursive=recursive)
    assert len(whole) == (len([*(tmp_path / "w").rglob("*")]) if recursive else 3)
    for limit in (1, 7, 50):
        assert lines(tmp_path / "w", recursive=recursive, limit=limit) == whole


def test_a_page_says_how_many_more_there_are(tmp_path: Path) -> None:
    for number in range(44):
        (tmp_path / f"module_{number:02}.py").write_text("x" * number)
    assert list_page(tmp_path, limit=10).split("\n")[-1] == "[and 34 more; cursor: after:module_09.py]"


def test_no_page_is_larger_than_its_bound(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"a_rather_long_name_{number:04}_{'é' * 40}.py").write_text("")
    assert len(list_page(tmp_path).encode()) < folder.PAGE_BYTES + 400


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"path": "/etc"}, "is an absolute path"),
        ({"path": "src/../.."}, "leaves the workspace"),
        ({"path": "out"}, "leads outside the workspace"),
        ({"path": "nowhere"}, "'nowhere' does not exist"),
        ({"path": "README.md"}, "is not a folder"),
        ({"path": "a\0b"}, "NUL"),
        ({"cursor": "src"}, "cursor='src' does not belong to this folder"),
        ({"path": "src", "cursor": "after:docs/x"}, "does not belong to this folder"),
        ({"cursor": "after:../x"}, "'..' is not allowed"),
    ],
)
def test_what_cannot_be_listed_is_one_clear_line(
    project: Path, arguments: dict[str, str], complaint: str
) -> None:
    os.symlink("/etc", project / "out")
    with pytest.raises(ValueError, match=complaint) as raised:
        list_page(project, **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": 3}, {"limit": True}, {"limit": 0}, {"limit": 201}, {"recursive": "yes"}, {"colour": "red"}, {"cursor": 5},
        {"details": True},
    ],
)  # fmt: skip
def test_arguments_of_a_wrong_kind_are_refused(wrong: dict[str, object]) -> None:
    assert validate_arguments(LIST_FOLDER.input_schema, wrong)


def test_a_folder_behind_a_link_inside_the_workspace_can_be_listed(project: Path, lines: Lines) -> None:
    os.symlink("src/p", project / "short")
    assert lines(project, "short")[:2] == ["short/ holds:", "__init__.py  0"]


@pytest.mark.parametrize("is_repository", [True, False])
def test_what_git_would_not_list_and_virtual_environments_are_left_out(
    tmp_path: Path, lines: Lines, is_repository: bool
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
    files = {line.partition("  ")[0] for line in lines(tmp_path, recursive=True) if line[-1].isdigit()}
    assert files == {".gitignore", "src/a.py"} | ({"kept.o"} if is_repository else set())
    assert "src/  1 file, 2" in lines(tmp_path)
    assert lines(tmp_path, "src", recursive=True) == ["src/ holds:", "a.py  2"]


def test_links_are_listed_and_never_followed_and_pipes_never_opened(
    tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir()
    os.symlink("..", tmp_path / "d" / "loop")
    os.symlink("nothing", tmp_path / "broken")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        assert lines(tmp_path, recursive=True) == [
            "broken  (link)", "d/", "d/loop  (link)", "pipe  (other)", "sock  (other)",
        ]  # fmt: skip


ODD = [
    b"new\nline.py", b"not-\xff\xfe-utf8", "עברית\u202egpj.exe".encode(), b"tab\tand\\backslash", b"quote\"'`|<b>",
    b"\xf0\x9f\x90\x8d.py", b"-rf", b" ", b"x" * 255, "zero\u200bwidth".encode(), b"\\x41", b"a:b", b"line\xe2\x80\xa8separator",
]  # fmt: skip


def test_odd_names_are_shown_on_one_harmless_line_and_read_back_exactly(tmp_path: Path, lines: Lines) -> None:
    for name in ODD:
        os.makedirs(os.path.join(os.fsencode(tmp_path), name))
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name, name))).write_text("1\n")
    found = lines(tmp_path, recursive=True, limit=1)
    assert all(line.isprintable() for line in found)
    folders = [line.removesuffix("/") for line in found if line.endswith("/")]
    assert {folder.unshow(name) for name in folders} == {*ODD}
    for name in folders:
        assert len(lines(tmp_path, name)) == 2


def test_an_unreadable_folder_is_listed_with_the_reason(
    tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shut").mkdir()
    real = os.scandir

    def refuse(path: object) -> object:
        if not isinstance(path, int) and os.fsencode(path).endswith(b"shut"):  # type: ignore[call-overload]
            raise PermissionError(13, "Permission denied")
        return real(path)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", refuse)
    assert lines(tmp_path, recursive=True) == ["shut/  (permission denied)"]
    assert "cannot be listed: permission denied" in list_page(tmp_path, "shut")


def test_a_very_deep_folder_is_walked(tmp_path: Path, lines: Lines) -> None:
    deep = tmp_path.joinpath(*["d"] * 150)
    deep.mkdir(parents=True)
    (deep / "f").write_text("")
    assert len(lines(tmp_path, recursive=True)) == 151


def test_sizes_are_short() -> None:
    sizes = [0, 999, 1_000, 1_500, 10_300, 999_999, 1_050_000, 10**12]
    assert [_size(one) for one in sizes] == ["0", "999", "1.0K", "1.5K", "10K", "977K", "1.0M", "931G"]
