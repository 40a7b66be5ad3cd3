"""One table names the programs whose sessions are read; packages of others add to it by an entry point."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.core.transcripts.conftest import Store

from watchkeeper.cli.app import COMMANDS
from watchkeeper.interop.mcp import INSTRUCTIONS, READING
from watchkeeper.records.readers import READERS, aliases, is_foreign, labels, program_label, some_labels
from watchkeeper.store.imports import imported_from
from watchkeeper.transcripts.reading import by_name, programs

ROOT = Path(__file__).resolve().parents[3]

READER = """
import json
from pathlib import Path
from watchkeeper.transcripts.records import MAIN, ImportedMessage, Program, Session, Skipped


class Reader:
    def feed(self, line, data):
        said = json.loads(data)
        return [Session("one"), ImportedMessage(MAIN, said["id"], said["role"], said["text"])]

    def save(self):
        return {{}}


class Aide(Program):
    name, alias, label = {name!r}, {alias!r}, "Aide"

    def places(self, environ, home):
        return [Path(environ.get("AIDE_HOME") or home / ".aide")]

    def recognises(self, source):
        return source.head.startswith(b'{{"aide"')

    def reader(self, source, state):
        return Reader()


PROGRAM = Aide()
"""


def install(
    folder: Path, name: str = "aide", alias: str = "aide", *, code: str = READER, point: str = "aide"
) -> None:
    """A package in a folder of its own, as pip leaves one."""
    (folder / "wk_aide.py").write_text(code.format(name=name, alias=alias))
    info = folder / "wk_aide-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wk-aide\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[watchkeeper.readers]\n{point} = wk_aide:PROGRAM\n")


def wk(arguments: list[str], folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "watchkeeper", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_each_row_of_the_table_names_the_program_of_its_module() -> None:
    assert [(each.name, each.alias, each.label) for each in programs()[: len(READERS)]] == [
        (each.name, each.alias, each.label) for each in READERS
    ]
    words = [word for each in READERS for word in {each.name, each.alias}]
    assert len(words) == len(set(words))


def test_commands_tools_and_pages_name_every_program_of_the_table() -> None:
    assert some_labels() in COMMANDS["import"][1]
    assert labels("or") in INSTRUCTIONS
    assert labels() in READING[0].description
    read_me, page = ((ROOT / name).read_text() for name in ("README.md", "docs/watch.md"))
    for each in READERS:
        assert f"| {each.label} | `{each.alias}` |" in page, each.label
        assert re.search(rf"wk watch .*\b{each.alias}\b", read_me), each.alias
    assert aliases().endswith(f" or {READERS[-1].alias}")


def test_every_origin_but_our_own_is_of_another_program() -> None:
    assert [is_foreign(each) for each in ("run", "fork", "export:run", "pi", "export:codex", "aide")] == [
        False, False, False, True, True, True,
    ]  # fmt: skip
    assert imported_from("run") is None
    assert imported_from("aide") == program_label("aide") == "aide"
    assert [imported_from(each.name) for each in READERS] == [each.label for each in READERS]


def test_a_package_adds_a_reader_that_every_command_knows(tmp_path: Path) -> None:
    folder, home = tmp_path / "site", tmp_path / "home"
    folder.mkdir()
    install(folder)
    log = home / ".aide" / "one.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"aide": 1, "id": "a", "role": "user", "text": "mend the gate"}\n')
    database = str(tmp_path / "w.db")
    done = wk(["import", "aide", "--db", database, "--json"], folder, home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["read"] == 1
    (session,) = json.loads(wk(["sessions", "--json", "--db", database], folder, home).stdout)
    assert (session["origin"], session["goal"]) == ("aide", "mend the gate")
    refused = wk(["pause", "last", "--db", database], folder, home)
    assert "was imported from aide" in refused.stderr
    said = wk(["doctor", "--quick", "--db", database], folder, home).stdout
    assert "Aide (package)" in said
    assert "logs found: Aide" in said
    assert "1 logs imported" in said


def test_the_reader_of_the_guide_finds_the_totals_that_the_guide_counts(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "readers.md").read_text()
    log, code = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("json", "python"))  # type: ignore[index]
    folder, home, database = tmp_path / "site", tmp_path / "home", str(tmp_path / "w.db")
    folder.mkdir()
    install(folder)
    (folder / "wk_aide.py").write_text(code)
    path = tmp_path / "aide.jsonl"
    path.write_text(log)
    done = wk(["import", str(path), "--db", database, "--json"], folder, home)
    said = json.loads(done.stdout)
    assert (said["read"], said["raw"]) == (6, [{"kind": "beep", "reason": "known, not shown", "lines": 1}]), (
        done
    )
    with closing(Store(tmp_path / "w.db")) as store:
        sums = (
            "SELECT count(*), sum(input_tokens), sum(cache_read_tokens), sum(output_tokens) FROM model_calls"
        )
        assert store.one(sums) == (2, 600, 600, 50)
        assert store.all("SELECT name, status FROM tool_calls") == [("ls", "done")]
        assert store.one("SELECT count(*) FROM messages") == 4
        assert store.one("SELECT messages_removed FROM compactions") == 2


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"code": "import nothing_of_that_name"}, "No module named"),
        ({"code": "PROGRAM = 1"}, "is not a Program"),
        ({"point": "other"}, "must have the name of its program"),
        ({"alias": "claude"}, "another reader is already called claude"),
    ],
)
def test_a_reader_that_cannot_be_used_is_reported_and_keeps_no_other_one_from_reading(
    about, reason, tmp_path
):
    folder, home = tmp_path / "site", tmp_path / "home"
    folder.mkdir()
    install(folder, **about)
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"type":"user","uuid":"1","sessionId":"s","message":{"role":"user","content":"a word"}}\n'
    )
    done = wk(["import", str(log), "--db", str(tmp_path / "w.db"), "--json"], folder, home)
    assert json.loads(done.stdout)["read"] == 1, done.stderr
    done = wk(["doctor", "--quick", "--db", str(tmp_path / "w.db")], folder, home)
    assert reason in done.stdout
    assert done.returncode == 0


def test_a_program_is_found_by_its_name_and_by_what_commands_call_it() -> None:
    for each in READERS:
        assert by_name(each.name) is by_name(each.alias)
    assert by_name("nothing") is None
