"""OpenCode's databases as they are found: in use, older, later, broken."""

from __future__ import annotations

import json
from pathlib import Path

from tests.core.transcripts.conftest import Store
from tests.core.transcripts.opencode_book import simple

from watchkeeper.store.driver import sqlite3


def test_a_database_in_use_is_read_with_what_is_not_checkpointed_yet(store: Store, logs: Path) -> None:
    book, session = simple()
    path = book.database(logs)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    try:
        store.run(path)
        row = (
            "msg_z",
            session,
            book.tick(),
            book.now,
            json.dumps({"role": "user", "time": {"created": book.now}}),
        )
        connection.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", row)
        part = ("prt_z", "msg_z", session, book.now, book.now, json.dumps({"type": "text", "text": "on"}))
        connection.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", part)
        connection.commit()
        connection.execute("BEGIN IMMEDIATE")  # it writes at this moment
        store.run(path)
        assert store.counts()["messages"] == 2
    finally:
        connection.close()


def test_a_database_that_was_copied_without_its_log_says_what_is_missing(store: Store, logs: Path) -> None:
    whole = sqlite3.connect(logs / "whole.db")
    try:
        whole.execute("PRAGMA journal_mode = WAL")
        whole.execute("CREATE TABLE session (id TEXT PRIMARY KEY)")
        whole.commit()
        copy = logs / "opencode.db"
        copy.write_bytes((logs / "whole.db").read_bytes())
        report = store.run(copy)
        said = "it contains no sessions; they may be in its write-ahead log: also copy opencode.db-wal"
        assert (report.unknown, report.left) == ([], {str(copy): said})
    finally:
        whole.close()
    book, _ = simple()
    copy.unlink()
    book.database(logs)
    assert store.run(copy).left == {}
    assert store.counts()["sessions"] == 1


def test_a_database_without_times_and_later_tables_is_read(store: Store, logs: Path) -> None:
    path = logs / "opencode-beta.db"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE session (id TEXT); CREATE TABLE message (id TEXT, session_id TEXT, data TEXT);"
        "CREATE TABLE part (id TEXT, message_id TEXT, data TEXT);"
        "CREATE TABLE session_message (id TEXT, session_id TEXT, type TEXT, data TEXT)"
    )
    connection.execute("INSERT INTO message VALUES ('m', 's', '{\"role\": \"user\"}')")
    connection.execute('INSERT INTO part VALUES (\'p\', \'m\', \'{"type": "text", "text": "x"}\')')
    connection.execute("INSERT INTO session_message VALUES ('x', 's', 'news', '{}')")
    connection.commit()
    connection.close()
    report = store.run(logs)
    assert store.counts()["messages"] == 1
    assert report.raw["session_message/news", "unknown record type"] == 1  # type: ignore[index]


def test_what_is_no_database_of_opencode_is_left_alone(store: Store, logs: Path) -> None:
    sqlite3.connect(logs / "opencode.db").execute("CREATE TABLE notes (x)").connection.close()
    (logs / "opencode-dev.db").write_bytes(b"SQLite format 3\x00" + b"\xff" * 5_000)
    report = store.run(logs)
    assert len(report.unknown) == 2
    assert store.counts()["sessions"] == 0


def test_broken_rows_are_kept_raw_and_counted(store: Store, logs: Path) -> None:
    book, session = simple()
    answer = book.assistant(session)
    part = book.part(answer, "telepathy", text="x")
    tool = book.tool(answer, "c1")
    lost = book.user(session, "Gone")
    path = book.database(logs)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE part SET data = substr(data, 1, 20) WHERE id = ?", (tool,))
    connection.execute("UPDATE message SET data = '{\"role\"' WHERE id = ?", (lost,))
    connection.commit()
    connection.close()
    report = store.run(path)
    assert {tuple(each) for each in report.raw} == {
        ("part/telepathy", "unknown record type"),
        ("part", "broken JSON"),
        ("message", "broken JSON"),
        ("part/text", "its message is missing or broken"),
    }
    assert report.read + report.raw.total() + report.skipped.total() == book.records
    assert part


def test_the_usual_place_follows_the_environment(tmp_path: Path) -> None:
    from watchkeeper.transcripts.opencode import PROGRAM

    share = tmp_path / ".local" / "share" / "opencode"
    assert PROGRAM.places({}, tmp_path) == [share / "opencode.db"]
    (tmp_path / "opencode").mkdir()
    (tmp_path / "opencode" / "opencode-beta.db").touch()
    found = PROGRAM.places({"XDG_DATA_HOME": str(tmp_path)}, Path("/home/a"))
    assert found == [tmp_path / "opencode" / "opencode.db", tmp_path / "opencode" / "opencode-beta.db"]


def test_a_reading_that_was_interrupted_goes_on_where_it_was(logs: Path) -> None:
    from watchkeeper.transcripts.opencode import DatabaseReader

    book, session = simple()
    for _ in range(3):
        book.user(book.session(), "x")
    path = book.database(logs)
    reader, got = DatabaseReader(path, None), []
    for line, _, records in reader.pull():
        got.append((line, records))
        if len(got) == 5:
            break
    state = json.loads(json.dumps(reader.save()))
    again = DatabaseReader(path, state)
    rest = [(line, records) for line, _, records in again.pull()]
    whole = [records for _, _, records in DatabaseReader(path, None).pull()]
    told = [records for _, records in got + rest]
    assert all(records in told for records in whole)
    assert len(told) <= len(whole) + 3
    assert not list(DatabaseReader(path, json.loads(json.dumps(again.save()))).pull())
    assert session


def test_a_session_that_was_imported_from_files_before_stays_and_its_files_are_no_log(store, logs):
    book, session = simple()
    store.run(book.database(logs))
    old = logs / "storage" / "session" / "p" / f"{session}.json"
    old.parent.mkdir(parents=True)
    old.write_text(json.dumps(book.sessions[session]))
    connection = sqlite3.connect(store.path)
    connection.execute(
        "UPDATE transcript_files SET path = ?, state = ?",
        (str(old), json.dumps({"reader": {"mark": 7}, "session": None})),
    )
    connection.commit()
    connection.close()
    report = store.run(old)
    assert (report.unknown, report.left) == ([str(old)], {})
    assert store.counts()["messages"] == 1
