"""Which files an approved command is bound to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from watchkeeper.records.premises import ABSENT, UNREADABLE, Premises, command_files, read_files

FILES = ("check.sh", "sub/run.sh", "tools/x.py", "a.js", "hook.js", "make")


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("./check.sh", ["check.sh"]),
        ('"./check.sh" --fast', ["check.sh"]),
        ("bash check.sh a b", ["check.sh"]),
        ("sh -x check.sh", ["check.sh"]),
        ("sh < check.sh", ["check.sh"]),
        (". check.sh", ["check.sh"]),
        ("source ./check.sh", ["check.sh"]),
        ("$PWD/check.sh", ["check.sh"]),
        ('bash -c "./check.sh && sub/run.sh"', ["check.sh", "sub/run.sh"]),
        ('bash -lc "cd tools; python x.py"', ["tools/x.py"]),
        ("eval './check.sh'", ["check.sh"]),
        ("cd sub && ./run.sh", ["sub/run.sh"]),
        ("VAR=1 ./check.sh | tail -n 5", ["check.sh"]),
        ("python -W ignore tools/x.py", ["tools/x.py"]),
        ("python3.11 tools/x.py", ["tools/x.py"]),
        ("python -m tools.x", ["tools/x.py", "tools/x/__main__.py"]),
        ("python gen.py", ["gen.py"]),
        ("node --require ./hook.js a.js", ["hook.js", "a.js"]),
        ("timeout 5 ./check.sh", ["check.sh"]),
        ("nohup ./check.sh &", ["check.sh"]),
        ("env A=1 python3 tools/x.py", ["tools/x.py"]),
        ("uv run tools/x.py", ["tools/x.py"]),
        ("xargs -n1 ./check.sh < list.txt", ["check.sh"]),
        ("find . -name '*.py' -exec ./check.sh {} ;", ["check.sh"]),
        ("if ./check.sh; then sub/run.sh; fi", ["check.sh", "sub/run.sh"]),
        ("echo $(./check.sh) `sub/run.sh`", ["check.sh", "sub/run.sh"]),
        ("cat <<EOF\nit's\nEOF\n./check.sh", ["check.sh"]),
        ("make test", []),
        ("git add check.sh", []),
        ("echo hi > check.sh", []),
        ("/usr/bin/env true", []),
        ("~/check.sh", []),
        ("", []),
    ],
)
def test_a_command_is_bound_to_the_scripts_that_it_runs(tmp_path: Path, command: str, files: list[str]):
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = command_files(command, str(tmp_path), str(tmp_path))
    assert [os.path.relpath(one, tmp_path) for one in found] == files


def test_a_state_tells_a_file_its_absence_and_what_cannot_be_read_apart(tmp_path: Path):
    text, folder, absent, binary = (str(tmp_path / name) for name in ("text", "folder", "absent", "binary"))
    Path(text).write_text("key=1")
    Path(folder).mkdir()
    Path(binary).write_bytes(b"a\0b")
    states = read_files([text, folder, absent, binary], lambda value: value.replace("1", "*"))
    assert [state.text for state in states.values()] == ["key=*", None, "", None]
    assert (states[folder].digest, states[absent].digest) == (UNREADABLE, ABSENT)
    before = Premises("/w", "1 2", states)
    Path(text).write_text("key=2")
    now = Premises("/w", "1 2", read_files([text, binary], str))
    assert before.changed_files(now) == [text]
    assert Premises.decoded(before.encoded()) == before


def test_a_link_that_leads_elsewhere_is_another_file(tmp_path: Path):
    for name in ("one", "two"):
        (tmp_path / name).write_text("same")
    link = tmp_path / "link"
    link.symlink_to("one")
    before = Premises(None, None, read_files([str(link)], str))
    link.unlink()
    link.symlink_to("two")
    assert before.changed_files(Premises(None, None, read_files([str(link)], str))) == [str(link)]
