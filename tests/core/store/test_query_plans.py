"""What is asked of one session costs the same however many other sessions the file holds."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.core.export.conftest import Made
from tests.core.export.documents import full

from watchkeeper.memory.recall import recall
from watchkeeper.store import artifacts, database, state
from watchkeeper.store.agent_snapshot import (
    AgentSnapshotReader,
    ReportReader,
    compaction_detail,
    newest_messages,
    newest_turns,
)
from watchkeeper.store.driver import Connection, Queries, sqlite3
from watchkeeper.store.library import compare
from watchkeeper.store.prune import purge_rows
from watchkeeper.store.replay import open_recording
from watchkeeper.store.search import passages
from watchkeeper.store.snapshot import SessionSnapshotReader
from watchkeeper.transcripts.export import WRITERS

SESSION = "sessn001"


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A database with one session, something in most of its tables, and something waiting."""
    one, planner = full(lambda: Made(tmp_path / "watchkeeper.db", SESSION))
    one.connection.execute(
        "INSERT INTO inbox VALUES (1, ?, ?, 'steer', '{}', 1.0, NULL, NULL)", (SESSION, planner)
    )
    one.connection.close()
    opened = database.open_writable(tmp_path / "watchkeeper.db")
    yield opened
    opened.close()


def screen(connection: Connection) -> None:
    reading = SessionSnapshotReader(SESSION).read(connection, 0.0)
    assert reading is not None
    for agent in reading.agents:
        AgentSnapshotReader(SESSION, agent.id).read(connection)
        ReportReader(SESSION, agent.id).read(connection, agent)
        newest_messages(connection, agent.id, 10)
        newest_turns(connection, agent.id)
    for each in reading.compactions:
        compaction_detail(connection, each.id)


def replay(connection: Connection) -> None:
    recording = open_recording(connection, SESSION)
    assert recording is not None
    then = recording.at(connection, 3)
    for agent in then.reading.agents:
        recording.agent(connection, then, agent.id, 10)


def show(connection: Connection) -> None:
    connection.row_factory = sqlite3.Row
    state.session_state(Queries(connection), SESSION)
    connection.row_factory = None


def purge(connection: Connection) -> None:
    connection.execute("BEGIN")
    for _ in purge_rows(connection, SESSION):
        pass
    connection.execute("ROLLBACK")


READINGS: list[Callable[[Connection], Any]] = [
    screen, replay, show, purge, lambda connection: compare(connection, SESSION, SESSION),
    lambda connection: artifacts.held_by(connection, SESSION),
    lambda connection: passages.calls_of(Queries(connection), SESSION, ["recall"]),
    lambda connection: recall(Queries(connection), SESSION, "harbour src/a.py TodoWrite"),
    lambda connection: WRITERS["html"](connection, SESSION, io.StringIO(), None),
    lambda connection: WRITERS["json"](connection, SESSION, io.StringIO(), None),
]  # fmt: skip
NAMES = ["screen", "replay", "show", "purge", "compare", "references", "calls", "recall", "page", "document"]


@pytest.mark.parametrize("reading", READINGS, ids=NAMES)
def test_no_reading_of_a_session_walks_through_the_rows_of_others(connection, reading):
    asked: list[str] = []
    connection.set_trace_callback(asked.append)
    reading(connection)
    connection.set_trace_callback(None)
    statements = [sql for sql in asked if re.match(r"\s*(SELECT|WITH|UPDATE|DELETE)", sql)]
    assert statements
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    tables.remove("message_index")  # one row
    walked = {
        (sql, plan[3])
        for sql in statements
        for plan in connection.execute(f"EXPLAIN QUERY PLAN {sql}")
        if (found := re.match(r"SCAN (\w+)(?! VIRTUAL)", plan[3])) and real(found[1], sql) in tables
    }
    assert walked == set()


def real(name: str, sql: str) -> str:
    """The table that `name` stands for in a statement."""
    found = re.search(rf"\b(?:FROM|JOIN) (\w+) (?:AS )?{name}\b", sql)
    return found[1] if found else name
