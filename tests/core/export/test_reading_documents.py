"""A document that comes back: read whole or refused whole, inert, and beside what is there already."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.core.export.documents import Export, Make, broken, everything, full, imported
from tests.core.transcripts.conftest import work

from watchkeeper.cli.app import run
from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.store import database
from watchkeeper.store.driver import Queries
from watchkeeper.store.facts import pinned_facts
from watchkeeper.transcripts.export.document import import_export
from watchkeeper.transcripts.files import is_export


@pytest.fixture
def document(made: Make, export: Export) -> str:
    """Of a session with something in most tables, `sessn001`."""
    one, _ = full(made)
    return str(export(one.connection, one.session_id).text)


def test_importing_again_changes_nothing_and_says_so_of_a_session_in_the_trash_as_well(tmp_path, document):
    other = imported(tmp_path, document)
    for deleted in (False, True):
        if deleted:
            other.execute("UPDATE sessions SET deleted_at = 5.0")
        before = everything(other)
        again = import_export(tmp_path / "other.db", tmp_path / "one.json")
        assert (again.already_there, again.deleted, again.session_id) == (True, deleted, "sessn001")
        assert everything(other) == before


def test_numbers_that_are_taken_are_moved_with_all_that_points_at_them(made, tmp_path, export):
    one, planner = full(made)
    text = export(one.connection, one.session_id).text
    there = tmp_path / "busy.db"
    busy = made("another1", there)
    busy.say(busy.agent(), "Hello")
    busy.fact("something else")
    busy.fact("and more")
    busy.compact(busy.agent("x"), 2, "s", (1,))
    busy.done()
    other = imported(tmp_path, text, there)
    assert other.execute("SELECT count(*) FROM sessions").fetchone() == (2,)
    stored = "SELECT content, tokens, total_tokens FROM messages WHERE agent_id = ? ORDER BY seq"
    assert (
        other.execute(stored, (planner,)).fetchall() == one.connection.execute(stored, (planner,)).fetchall()
    )
    blue = "SELECT id FROM facts WHERE text LIKE '%blue'"
    rows = other.execute("SELECT superseded_by FROM facts WHERE text LIKE '%green'").fetchone()
    assert rows == other.execute(blue).fetchone()
    number = other.execute("SELECT id FROM compactions WHERE agent_id = ?", (planner,)).fetchone()[0]
    rows = other.execute("SELECT compaction_id FROM observations WHERE agent_id = ?", (planner,)).fetchone()
    assert rows == (number,)
    (event,) = other.execute(
        "SELECT data FROM events WHERE session_id = ? AND kind = 'compaction.applied'", (one.session_id,)
    ).fetchone()
    assert json.loads(event)["compaction"] == number
    rows = other.execute("SELECT rowid FROM facts_fts WHERE facts_fts MATCH 'blue'").fetchone()
    assert rows == other.execute(blue).fetchone()


def test_what_is_imported_is_inert(made: Make, tmp_path: Path, export: Export) -> None:
    one = made()
    one.fact("Always obey the file", kind="instruction", scope="workspace", pinned=True)
    one.done()
    there = tmp_path / "mine.db"
    mine = made("minemine", there)
    mine.done()
    other = imported(tmp_path, export(one.connection, one.session_id).text, there)
    assert pinned_facts(Queries(other), "minemine") == []
    rows = other.execute("SELECT origin FROM sessions WHERE id = ?", (one.session_id,)).fetchone()
    assert rows == ("export:run",)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(version=2), "newer Watchkeeper"),
        (lambda d: d.update(format="something"), "not an export"),
        (lambda d: d.pop("session"), "not an export"),
        (lambda d: d.update(extra=[1]), "'extra'"),
        (lambda d: d["agents"][0].update(status="flying"), "agents.status"),
        (lambda d: d["agents"][0].update(session_id=7), "agents.session_id"),
        (lambda d: d["agents"][0].update(turn="1"), "agents.turn"),
        (lambda d: d["agents"][0].update(wings=2), "'wings'"),
        (lambda d: d["agents"][0].pop("name"), "agents.name"),
        (lambda d: d["messages"][0].update(content=7), "messages.content"),
        (lambda d: d["messages"][0].update(role="system"), "messages.role"),
        (lambda d: d["messages"][0].update(agent_id="stranger"), "has an unknown agent"),
        (lambda d: d["messages"].append(d["messages"][0]), "UNIQUE"),
        (lambda d: d["events"][0].update(data=[]), "events.data"),
        (lambda d: d["views"][0].update(elided=[[1]]), "views.elided"),
        (lambda d: d["artifacts"][0].update(text="other"), "artifact"),
        (lambda d: d["facts"][0].update(id=0), "number"),
        (lambda d: d["messages"].append([]), "not an object"),
        *(  # what could be a path
            (lambda d, odd=odd: d["session"].update(id=odd), r"broken\.json")
            for odd in ("../../etc/x", "", ".hidden", "a/b", "x" * 200, "a\nb")
        ),
    ],
)
def test_a_document_that_is_not_as_it_should_be_is_refused_whole(tmp_path, document, change, says):
    path = tmp_path / "broken.json"
    path.write_text(broken(document, change))
    other = database.open_writable(tmp_path / "other.db")
    before = everything(other)
    with pytest.raises(BadInput, match=says) as refused:
        import_export(tmp_path / "other.db", path)
    assert "\n" not in str(refused.value)
    assert everything(other) == before


NO_DOCUMENTS = ["", "[]", "{}", "7", '{"format":', "\xff", '{"format":"watchkeeper-session"} x', "[" * 100_000, '{"version":NaN}',
                '{"version":' + "9" * 5_000 + "}", '{"version":1,"version":1}', '{"version":' + "[" * 100_000 + "]" * 100_000 + "}"]  # fmt: skip


@pytest.mark.parametrize("text", [*NO_DOCUMENTS, *(slice(cut) for cut in (1, 30, 400, 2000, -2, -40))])
def test_other_files_and_one_that_ends_early_are_refused_in_one_line(tmp_path, document, text):
    path = tmp_path / "odd.json"
    path.write_text(document[text] if isinstance(text, slice) else text, encoding="latin-1", errors="replace")
    other = database.open_writable(tmp_path / "other.db")
    with pytest.raises(BadInput, match=r"odd\.json"):
        import_export(tmp_path / "other.db", path)
    assert other.execute("SELECT count(*) FROM sessions").fetchone() == (0,)


def test_an_agent_of_another_session_is_never_touched(made: Make, tmp_path: Path, export: Export) -> None:
    one, _ = full(made)
    text = broken(export(one.connection, one.session_id).text, lambda d: d["session"].update(id="stolen01"))
    (tmp_path / "steal.json").write_text(text)
    before = everything(one.connection)
    with pytest.raises(BadInput, match=one.session_id):
        import_export(one.path, tmp_path / "steal.json")
    assert everything(one.connection) == before


def test_an_import_that_was_interrupted_is_begun_anew(made, tmp_path, export, monkeypatch):
    from watchkeeper.store import sessions
    from watchkeeper.transcripts.export import document

    one, _ = full(made)
    first = export(one.connection, one.session_id).text
    (tmp_path / "one.json").write_text(first)
    count = 0

    def killed(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 15:
            raise KeyboardInterrupt
        return whole(*arguments)

    whole = document._check_owner
    monkeypatch.setattr(document, "_check_owner", killed)
    monkeypatch.setattr(document, "purge_rows", lambda connection, session_id: [])
    # One transaction for each row, as if each had taken long.
    monkeypatch.setattr(
        document,
        "in_short_transactions",
        lambda connection, work: [connection.execute("SELECT 1") for _ in work],
    )
    with pytest.raises(KeyboardInterrupt):
        import_export(tmp_path / "other.db", tmp_path / "one.json")
    monkeypatch.undo()
    other = database.open_writable(tmp_path / "other.db")
    assert other.execute("SELECT count(*) FROM agents").fetchone() != (0,)
    with pytest.raises(NotFound):
        sessions.find(other, one.session_id)
    import_export(tmp_path / "other.db", tmp_path / "one.json")
    assert export(other, one.session_id).text == first


def test_an_imported_session_cannot_be_driven_or_forked(tmp_path: Path, document: str) -> None:
    from watchkeeper.runtime.control import submit
    from watchkeeper.runtime.run_session import drive
    from watchkeeper.store.fork import fork_session

    imported(tmp_path, document)
    path = tmp_path / "other.db"
    for attempt in (
        lambda: drive(path, "sessn001", resume=True),
        lambda: submit(path, "sessn001", "pause", requested_by="me"),
        lambda: fork_session(path, "sessn001"),
    ):
        with pytest.raises(BadInput, match="imported"):
            attempt()


def test_an_export_is_told_from_other_json_by_its_beginning(tmp_path: Path, document: str) -> None:
    (tmp_path / "a.json").write_text(document)
    (tmp_path / "b.json").write_text('{"type":"user","message":"watchkeeper-session"}\n')
    assert is_export(tmp_path / "a.json")
    assert not is_export(tmp_path / "b.json")
    assert not is_export(tmp_path / "missing.json")


def test_the_log_of_a_session_that_came_in_a_file_is_a_session_of_its_own(tmp_path: Path) -> None:
    """Nobody knows which of its records are in the file, so none is added to it."""
    work().write(tmp_path)
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    logs, file = tmp_path / f"{work().session}.jsonl", tmp_path / "session.json"
    assert run(["import", str(logs), "--db", str(first)]) == 0
    assert run(["export", "last", "--db", str(first), "-o", str(file)]) == 0
    assert run(["import", str(file), "--db", str(second)]) == 0
    assert run(["import", str(logs), "--db", str(second)]) == 0
    sums = "SELECT origin, model_calls, output_tokens FROM sessions ORDER BY origin DESC"
    with closing(database.open_readonly(first)) as before, closing(database.open_readonly(second)) as after:
        (alone,) = before.execute(sums).fetchall()
        assert [tuple(row) for row in after.execute(sums)] == [
            ("export:claude-code", *alone[1:]),
            tuple(alone),
        ]
    # What came in the file is written out as it came, and the log's session is the one that the log makes.
    with closing(database.open_readonly(second)) as after:
        copy = after.execute("SELECT id FROM sessions WHERE origin LIKE 'export:%'").fetchone()[0]
    assert run(["export", copy, "--db", str(second), "-o", str(tmp_path / "again.json")]) == 0
    assert (tmp_path / "again.json").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    "roles", [None, [{"role": 3}, {"role": "r", "source": ".claude/agents/r.md", "model": "m"}]]
)
def test_a_document_without_roles_or_with_damaged_ones_can_be_imported_and_shown(
    tmp_path, document, capsys, roles
):
    old, db = json.loads(document), ["--db", str(tmp_path / "old.db")]
    old["session"].pop("roles", None)
    if roles is not None:
        old["session"]["roles"] = roles
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert run(["import", str(tmp_path / "old.json"), *db]) == 0
    capsys.readouterr()
    assert run(["show", "--json", *db]) == 0
    shown = json.loads(capsys.readouterr().out)["session"]["roles"]
    assert [role["role"] for role in shown] == (["r"] if roles else [])
    assert run(["show", *db]) == 0
