"""`wk export`: where the file goes, and what is said."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.cli.app import run
from watchkeeper.transcripts import export

SECRET = "hunter2-hunter2"


@pytest.fixture
def here(made: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to export into, and the session `sessn001`, in which a secret was said."""
    monkeypatch.setenv("DEPLOY_PASSWORD", SECRET)
    one = made()
    one.say(one.agent(), f"log in with {SECRET}", "Done.")
    one.done()
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_it_goes_into_this_folder_under_the_sessions_id(here, capsys):
    assert run(["export", "last"]) == 0
    assert run(["export", "last", "--format", "md"]) == 0
    assert run(["export", "sess", "--format", "json"]) == 0
    assert sorted(os.listdir(here)) == ["sessn001.html", "sessn001.json", "sessn001.md"]
    said = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"{here}/sessn001.") and "1 secret removed" in line for line in said)
    for path in here.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert SECRET not in path.read_text()


def test_the_form_follows_the_ending_of_the_name(here: Path) -> None:
    assert run(["export", "last", "-o", "a.html"]) == 0
    assert run(["export", "last", "-o", "b.json"]) == 0
    assert (here / "a.html").read_text().startswith("<!doctype html>")
    assert json.loads((here / "b.json").read_text())["format"] == "watchkeeper-session"


def test_a_folder_takes_the_file_under_its_usual_name(here: Path) -> None:
    (here / "out").mkdir()
    assert run(["export", "last", "-o", "out"]) == 0
    assert os.listdir(here / "out") == ["sessn001.html"]


def test_secrets_stay_only_if_that_was_asked_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "last", "--no-redact"]) == 0
    assert "secrets were kept" in capsys.readouterr().out
    assert SECRET in (here / "sessn001.html").read_text()


def test_secrets_that_were_taken_out_as_the_session_was_imported_are_counted_as_well(here, capsys):
    record = {
        "type": "user",
        "uuid": "u1",
        "sessionId": "0a0a0a0a-1111-4222-8333-444444444444",
        "timestamp": "2026-02-03T04:05:06Z",
    }
    said = record | {"message": {"role": "user", "content": f"log in with {SECRET}, or with {SECRET}"}}
    (here / "0a0a0a0a-1111-4222-8333-444444444444.jsonl").write_text(json.dumps(said) + "\n")
    assert run(["import", "0a0a0a0a-1111-4222-8333-444444444444.jsonl"]) == 0
    assert run(["export", "last", "-o", "a.md"]) == 0
    assert capsys.readouterr().out.endswith("2 secrets removed before storage\n")


def test_an_export_in_which_nothing_is_found_says_that_only_known_forms_were_looked_for(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEPLOY_PASSWORD")
    assert run(["export", "last", "-o", "a.html"]) == 0
    assert capsys.readouterr().out.endswith("no known secret patterns found\n")
    assert "No known secret patterns were found in the stored text." in (here / "a.html").read_text()


def test_a_file_that_is_there_is_replaced_only_by_force(here, capsys):
    (here / "sessn001.html").write_text("mine")
    assert run(["export", "last"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (here / "sessn001.html").read_text() == "mine"
    assert run(["export", "last", "--force"]) == 0
    assert (here / "sessn001.html").read_text() != "mine"


def test_a_file_that_comes_to_be_meanwhile_is_not_replaced(here, monkeypatch):
    write = export.WRITERS["html"]

    def beside(*arguments: Any) -> Any:
        (here / "sessn001.html").write_text("somebody else's")
        return write(*arguments)

    monkeypatch.setattr(export, "WRITERS", {"html": beside})
    assert run(["export", "last"]) == 2
    assert os.listdir(here) == ["sessn001.html"]
    assert (here / "sessn001.html").read_text() == "somebody else's"


def test_an_export_that_fails_leaves_nothing_behind(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(connection: Any, session_id: str, out: Any, redactor: Any) -> int:
        out.write("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "WRITERS", {"html": fails})
    assert run(["export", "last"]) == 130
    assert os.listdir(here) == []


def test_what_is_no_plain_file_is_neither_written_through_nor_replaced(here: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (here / "sessn001.html").symlink_to(tmp_path / "target")
    os.mkfifo(here / "pipe")
    assert run(["export", "last"]) == 2
    assert run(["export", "last", "--force"]) == 2
    assert run(["export", "last", "--force", "-o", "pipe"]) == 2
    assert (tmp_path / "target").read_text() == "mine"
    assert (here / "sessn001.html").is_symlink()
    assert sorted(os.listdir(here)) == ["pipe", "sessn001.html"]


def test_a_dash_prints_the_session_and_nothing_else(here, capfdbinary):
    assert run(["export", "last", "--format", "json", "-o", "-"]) == 0
    told = capfdbinary.readouterr()
    assert json.loads(told.out)["session"]["id"] == "sessn001"
    assert told.err.decode().splitlines()[1:] == ["wk: 1 secret removed"]
    assert os.listdir(here) == []


def test_a_reader_that_leaves_is_told_nothing_of_secrets(here, monkeypatch, capfd):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        assert run(["export", "sess", "-o", "-"]) == 0
    assert capfd.readouterr().err == ""


def test_the_machine_form_names_the_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "last", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"session": "sessn001", "format": "html", "path": f"{here}/sessn001.html", "bytes": (here / "sessn001.html").stat().st_size,
                    "redacted": 1, "redacted_before": 0}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nonesuch"], 3, "nonesuch"),
        (["last", "--format", "pdf"], 2, "pdf"),
        (["last", "-o", "no/such/folder/x.md"], 2, "no/such/folder"),
        (["last", "-o", "-", "--json"], 2, "--json"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(here, capsys, arguments, code, says):
    assert run(["export", *arguments]) == code
    line = capsys.readouterr().err.splitlines()[-1]
    assert says in line


def test_a_session_of_an_odd_id_stays_in_the_folder(made: Callable[..., Any], here: Path) -> None:
    odd = made("../../x/..")
    odd.say(odd.agent(), "Hello")
    odd.done()
    assert run(["export", "../../x/.."]) == 0
    assert len(os.listdir(here)) == 1


def test_wk_import_reads_an_export_back(here, tmp_path, capsys):
    assert run(["export", "last", "--format", "json"]) == 0
    other = ["--db", str(tmp_path / "other.db")]
    assert run(["import", "sessn001.json", *other]) == 0
    assert "session sessn001 imported: 2 messages" in capsys.readouterr().out
    assert run(["import", "sessn001.json", *other]) == 0
    assert "already exists; nothing imported" in capsys.readouterr().out
    assert run(["export", "last", "-o", "again.json", *other]) == 0
    assert (here / "again.json").read_bytes() == (here / "sessn001.json").read_bytes()
    (here / "bad.json").write_text('{"format":"watchkeeper-session","version":1,')
    assert run(["import", "bad.json", *other]) == 2
    assert "bad.json" in capsys.readouterr().err
