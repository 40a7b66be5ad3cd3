"""Folders that would stop, fool or swamp a careless reader."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import psutil
import pytest

from watchkeeper.agents.tools import folder
from watchkeeper.agents.tools.folder import scan_page


def test_links_are_listed_and_never_followed(tmp_path, entries):
    (tmp_path / "d").mkdir()
    os.symlink("..", tmp_path / "d" / "loop")
    os.symlink("/etc", tmp_path / "away")
    os.symlink("nothing", tmp_path / "broken")
    found = entries(tmp_path, recursive=True)
    assert [(entry["path"], entry["kind"]) for entry in found] == [
        ("away", "link"),
        ("broken", "link"),
        ("d", "dir"),
        ("d/loop", "link"),
    ]


def test_pipes_and_sockets_are_never_opened(tmp_path, entries, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
        assert [(entry["path"], entry["kind"]) for entry in entries(tmp_path)] == [
            ("pipe", "other"),
            ("sock", "other"),
        ]


def test_a_file_that_became_a_pipe_since_it_was_listed_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    figures = folder.examine(os.fsencode(tmp_path / "pipe"), size=3, mode=0, max_todos=9)
    assert figures.unreadable


@pytest.mark.skipif(sys.platform != "linux", reason="counts what the process reads")
def test_of_a_gigabyte_of_nothing_little_is_read(tmp_path, entries):
    with open(tmp_path / "huge.py", "wb") as file:
        file.truncate(1 << 30)
    read_before = psutil.Process().io_counters().read_chars
    assert entries(tmp_path) == [
        {
            "path": "huge.py",
            "kind": "file",
            "bytes": 1 << 30,
            "lines": None,
            "language": "binary",
            "binary": True,
        }
    ]
    assert psutil.Process().io_counters().read_chars - read_before < 50_000_000


def test_a_long_text_is_counted_whole_in_pieces(tmp_path, entries, monkeypatch):
    monkeypatch.setattr(folder, "CHUNK_BYTES", 1_000)
    lines = [f"line {number}" + (" TODO" if number % 97 == 0 else "") for number in range(3_000)]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    (entry,) = entries(tmp_path, max_bytes=60_000)
    assert entry["lines"] == 3_000
    assert [todo[0] for todo in entry["todos"]] == [number + 1 for number in range(0, 3_000, 97)]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 500, 521, 1_000])
def test_marks_are_found_however_the_chunks_fall(chunk):
    from watchkeeper.agents.tools.folder import TodoScanner

    text = b"xTODO TODOx\nTODO one FIXME\n" + b"y" * 700 + b" FIXME " + b"z" * 900
    text += b" TODO\n\n\nTODO" + "é".encode() * 300 + b"\nFIXME"
    scanner, found = TodoScanner(), []
    for start in range(0, len(text), chunk):
        found += scanner.feed(text[start : start + chunk])
    found += scanner.feed(b"", last=True)
    assert [(todo.line, todo.kind) for todo in found] == [
        (2, "TODO"),
        (3, "FIXME"),
        (6, "TODO"),
        (7, "FIXME"),
    ]
    assert found[0].text == "TODO one FIXME"
    assert len(found[2].text) == 120
    assert all(text[todo.offset - len(todo.kind) : todo.offset].decode() == todo.kind for todo in found)


def test_a_file_with_very_many_todos_is_told_in_parts_and_none_is_lost(tmp_path, pages):
    (tmp_path / "a.py").write_text("".join(f"x = {n}  # TODO number {n}\n" for n in range(500)) + "TODO TODO")
    (tmp_path / "b.py").write_text("# FIXME\n")
    for size in (1_000, 3_000, 60_000):
        parts = pages(tmp_path, max_bytes=size)
        entries = [entry for page in parts for entry in page["entries"]]
        todos = [todo for entry in entries if entry["path"] == "a.py" for todo in entry["todos"]]
        assert [todo[0] for todo in todos] == list(range(1, 502))
        assert all(len(json.dumps(page["entries"])) <= size for page in parts)
        assert (
            sum(entry.get("bytes", 0) for entry in entries if entry["path"] == "a.py")
            == (tmp_path / "a.py").stat().st_size
        )
        told = 0
        for entry in entries[:-1]:
            assert entry.get("todos_from", 0) == told
            told += len(entry["todos"])
        assert sum(page["totals"]["files"] for page in parts) == 2
        assert sum(page["totals"]["todos"] for page in parts) == 502


def test_one_endless_line_costs_no_more_than_its_text(tmp_path, entries):
    (tmp_path / "min.js").write_text("a=1;" * 500_000 + "/* TODO */" * 1_000)
    (entry,) = entries(tmp_path)
    assert entry["lines"] == 1
    assert len(entry["todos"]) == 1
    assert len(entry["todos"][0][2]) == 120


ODD = [
    b"new\nline.py",
    b"not-\xff\xfe-utf8",
    "עברית‮gpj.exe".encode(),
    b"tab\tand\\backslash",
    b"quote\"'`|<b>",
    b"\xf0\x9f\x90\x8d.py",
    b"-rf",
    b" ",
    b"x" * 255,
    "zero​width".encode(),
    b"\\x41",
    b"a:b",
    b"line\xe2\x80\xa8separator",
]


def test_odd_names_are_shown_on_one_harmless_line_and_read_back_exactly(tmp_path, entries):
    for name in ODD:
        os.makedirs(os.path.join(os.fsencode(tmp_path), name))
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name, name))).write_text("1\n")
    found = entries(tmp_path, recursive=True, limit=1)
    assert {folder.unshow(entry["path"]) for entry in found} == {*ODD, *(name + b"/" + name for name in ODD)}
    assert all(entry["path"].isprintable() for entry in found)
    for entry in found:
        if entry["kind"] == "dir":
            (only,) = entries(tmp_path, entry["path"])
            assert only["lines"] == 1


def test_an_unreadable_file_or_folder_is_told_with_the_reason(tmp_path, entries, monkeypatch):
    (tmp_path / "closed.py").write_text("x\n")
    (tmp_path / "shut").mkdir()
    real_open, real_scan = os.open, os.scandir

    def refuse(path, *rest, **more):
        if b"closed" in os.fsencode(path):
            raise PermissionError(13, "Permission denied")
        return real_open(path, *rest, **more)

    def refuse_folder(path):
        if not isinstance(path, int) and os.fsencode(path).endswith(b"shut"):
            raise PermissionError(13, "Permission denied")
        return real_scan(path)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "scandir", refuse_folder)
    closed, shut = entries(tmp_path, recursive=True)
    assert closed == {
        "path": "closed.py",
        "kind": "file",
        "bytes": 2,
        "lines": None,
        "language": "Python",
        "unreadable": "permission denied",
    }
    assert shut == {"path": "shut", "kind": "dir", "unreadable": "permission denied"}
    assert json.loads(scan_page(tmp_path, "shut"))["unreadable"] == "Permission denied".lower()


def test_manifests_that_are_no_good_declare_nothing(tmp_path, entries):
    for name, content in {
        "pyproject.toml": "[project.scripts\n",
        "package.json": '{"bin": 3, "main": []}',
        "entry_points.txt": "no section\n",
    }.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "package.json").write_text("[" * 100_000)
    assert not [entry for entry in entries(tmp_path, recursive=True) if "entry_point" in entry]


def test_a_very_deep_folder_is_walked(tmp_path, entries):
    deep = tmp_path
    for _ in range(150):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "f").write_text("")
    assert len(entries(tmp_path, recursive=True)) == 151
