"""OpenCode's databases and trees as they are found: both, in use, older, later, broken."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.conftest import Store
from tests.core.transcripts.opencode_book import Layout, family, simple

from watchkeeper.store.driver import sqlite3
from watchkeeper.transcripts.opencode import tree


def test_the_tree_and_the_database_that_it_became_are_the_same_sessions(store: Store, logs: Path) -> None:
    book, _, _ = family()
    book.database(logs)
    book.tree(logs)
    report = store.run(logs)
    assert tuple(store.one("SELECT count(*), sum(output_tokens), sum(model_calls) FROM sessions")) == (
        1,
        7,
        3,
    )
    assert store.counts()["messages"] == 7
    assert not report.unknown


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
        said = (
            "it holds no sessions: they may stand in its log, which is to be copied with it (opencode.db-wal)"
        )
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
    (storage / "message").rename(older / "message")
    for message in list((storage / "part").iterdir()):
        owner = older / "part" / str(book.messages[message.name]["sessionID"])
        owner.mkdir(parents=True, exist_ok=True)
        message.rename(owner / message.name)
    report = store.run(logs)
    assert store.counts()["messages"] == 7
    assert store.all("SELECT source, output_tokens FROM sessions") == [(f"opencode:{session}", 7)]
    assert report.lines == book.records
    assert (report.unknown, report.left) == ([], {})


def _inside(message: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A message of the second form: its parts inside, calls named by their part's id."""
    return message | {"parts": [
        {name: value for name, value in (part | {"id": part.get("callID")}).items() if name not in ("callID", "messageID")}
        for part in parts
    ]}  # fmt: skip


def _first_form(message: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A message of the first form: what is known of it in `metadata`."""
    about: dict[str, Any] = {"time": message["time"], "sessionID": message["sessionID"], "tool": {}}
    if message["role"] == "assistant":
        tokens = next((part["tokens"] for part in parts if part["type"] == "step-finish"), message["tokens"])
        about["assistant"] = {name: message[name] for name in ("modelID", "providerID", "cost")} | {
            "tokens": tokens
        }
    inside: list[dict[str, Any]] = []
    for part in parts:
        if part["type"] == "tool":
            about["tool"][part["callID"]] = {
                "title": "t",
                "time": part["state"]["time"],
                **part["state"].get("metadata", {}),
            }
            called = {"toolCallId": part["callID"], "toolName": part["tool"], "args": part["state"]["input"]}
            inside.append(
                {"type": "tool-invocation", "toolInvocation": called | {"state": "result", "result": "fine"}}
            )
        elif part["type"] == "text":
            inside.append({"type": "text", "text": part["text"]})
    return {"id": message["id"], "role": message["role"], "parts": inside, "metadata": about}


@pytest.mark.parametrize("form", [_inside, _first_form])
def test_the_earliest_messages_hold_their_parts(
    store: Store, logs: Path, form: Callable[[dict[str, Any], list[dict[str, Any]]], dict[str, Any]]
) -> None:
    book, session, _ = family()
    older = logs / "project" / "p" / "storage" / "session"
    (older / "info").mkdir(parents=True)
    for name, about in book.sessions.items():
        (older / "info" / f"{name}.json").write_text(json.dumps(about))
    for name, about in book.messages.items():
        folder = older / "message" / about["sessionID"]
        folder.mkdir(parents=True, exist_ok=True)
        parts = [part for part in book.parts.values() if part["messageID"] == name]
        (folder / f"{name}.json").write_text(json.dumps(form(about, parts)))
    report = store.run(logs)
    assert (report.unknown, report.left, report.raw.total()) == ([], {}, 0)
    assert store.all("SELECT source, output_tokens, model_calls FROM sessions") == [
        (f"opencode:{session}", 7, 3)
    ]
    assert store.counts()["messages"] == 7
    assert store.all("SELECT name, status FROM tool_calls") == [("task", "done")]
    assert store.one("SELECT count(*) FROM agents WHERE parent_agent_id IS NOT NULL") == 2
    assert store.run(logs).lines == 0


def test_parts_that_lie_in_no_folder_belong_to_the_message_that_they_name(store: Store, logs: Path) -> None:
    book, session = simple()
    answer = book.assistant(session)
    book.tool(answer, "c1", status="success", output="all of it")
    book.tree(logs)
    for path in list((logs / "storage" / "part").rglob("*.json")):
        path.rename(logs / "storage" / "part" / path.name)
    store.run(logs)
    assert store.counts()["messages"] == 3
    assert "all of it" in store.one("SELECT content FROM messages WHERE seq = 3")
    assert store.run(logs).lines == 0


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


def test_a_file_that_could_not_be_read_is_read_once_it_can_be(
    store: Store, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, session = simple()
    lost = book.user(session, "Gone for now")
    part = next(reversed(book.parts))
    book.tree(logs)
    closed = {f"{lost}.json", f"{part}.json"}
    access, reading = os.access, tree.read
    monkeypatch.setattr(os, "access", lambda path, mode: path.name not in closed and access(path, mode))
    monkeypatch.setattr(tree, "read", lambda path: b"" if path.name in closed else reading(path))
    report = store.run(logs)
    assert report.raw["message", "empty, or not to be read"] == 1  # type: ignore[index]
    assert store.counts()["messages"] == 1
    monkeypatch.undo()
    store.run(logs)
    assert store.counts()["messages"] == 2
    assert store.run(logs).lines == 0
