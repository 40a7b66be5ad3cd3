"""OpenCode's databases and trees as they are found: both, in use, older, later, broken."""

from __future__ import annotations

import json
from pathlib import Path

from tests.core.transcripts.conftest import Store
from tests.core.transcripts.opencode_book import Layout, family, simple

from watchkeeper.store.driver import sqlite3


def test_the_tree_and_the_database_that_it_became_are_the_same_sessions(store: Store, logs: Path) -> None:
    book, _, _ = family()
    book.database(logs)
    book.tree(logs)
    report = store.run(logs)
    assert tuple(store.one("SELECT count(*), sum(output_tokens), sum(model_calls) FROM sessions")) == (1, 7, 3)
    assert store.counts()["messages"] == 7
    assert not report.unknown


def test_a_database_in_use_is_read_with_what_is_not_checkpointed_yet(store: Store, logs: Path) -> None:
    book, session = simple()
    path = book.database(logs)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    try:
        store.run(path)
        row = ("msg_z", session, book.tick(), book.now, json.dumps({"role": "user", "time": {"created": book.now}}))
        connection.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", row)
        part = ("prt_z", "msg_z", session, book.now, book.now, json.dumps({"type": "text", "text": "on"}))
        connection.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", part)
        connection.commit()
        connection.execute("BEGIN IMMEDIATE")  # it writes at this moment
        store.run(path)
        assert store.counts()["messages"] == 2
    finally:
        connection.close()


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


def test_broken_rows_and_files_are_kept_raw_and_counted(store: Store, logs: Path, write: Layout) -> None:
    book, session = simple()
    answer = book.assistant(session)
    part = book.part(answer, "telepathy", text="x")
    tool = book.tool(answer, "c1")
    lost = book.user(session, "Gone")
    path = write(book, logs)
    if path.suffix == ".db":
        connection = sqlite3.connect(path)
        connection.execute("UPDATE part SET data = substr(data, 1, 20) WHERE id = ?", (tool,))
        connection.execute("UPDATE message SET data = '{\"role\"' WHERE id = ?", (lost,))
        connection.commit()
        connection.close()
    else:
        for file in (
            logs / "storage" / "part" / answer / f"{tool}.json",
            logs / "storage" / "message" / session / f"{lost}.json",
        ):
            file.write_bytes(file.read_bytes()[:20])
    report = store.run(path)
    assert {tuple(each) for each in report.raw} == {
        ("part/telepathy", "unknown record type"),
        ("part", "broken JSON"),
        ("message", "broken JSON"),
        ("part/text", "its message is missing or broken"),
    }
    assert report.read + report.raw.total() + report.skipped.total() == book.records
    assert part


def test_messages_of_a_session_whose_file_is_lost_are_read(store: Store, logs: Path) -> None:
    book, session = simple()
    book.tree(logs)
    (logs / "storage" / "session" / "p" / f"{session}.json").unlink()
    report = store.run(logs)
    assert store.all("SELECT source, goal FROM sessions") == [(f"opencode:{session}", "Mend the cache")]
    assert not report.unknown


def test_the_usual_place_follows_the_environment(tmp_path: Path) -> None:
    from watchkeeper.transcripts.opencode import PROGRAM

    share = tmp_path / ".local" / "share" / "opencode"
    assert PROGRAM.places({}, tmp_path) == [share / "opencode.db", share / "storage", share / "project"]
    (tmp_path / "opencode").mkdir()
    (tmp_path / "opencode" / "opencode-beta.db").touch()
    found = PROGRAM.places({"XDG_DATA_HOME": str(tmp_path)}, Path("/home/a"))
    assert found[:2] == [tmp_path / "opencode" / "opencode.db", tmp_path / "opencode" / "opencode-beta.db"]


def test_the_older_tree_has_sessions_messages_and_parts_below_one_folder(store: Store, logs: Path) -> None:
    book, session, _ = family()
    book.tree(logs)
    storage, older = logs / "storage", logs / "project" / "p" / "storage" / "session"
    older.mkdir(parents=True)
    (storage / "session" / "p").rename(older / "info")
    for name in ("message", "part"):
        (storage / name).rename(older / name)
    report = store.run(logs)
    assert store.all("SELECT source, output_tokens FROM sessions") == [(f"opencode:{session}", 7)]
    assert report.lines == book.records
    assert (report.unknown, report.left) == ([], {})


def test_a_reading_that_was_interrupted_goes_on_where_it_was(logs: Path) -> None:
    from watchkeeper.transcripts.opencode.database import DatabaseReader

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
