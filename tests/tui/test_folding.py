"""Incremental reading: whatever is written, in whichever order, it gives what a first reading would give."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tui.fake_store import NOW, FakeSession, create, insert, small_session

from watchkeeper.store.database import open_readonly
from watchkeeper.store.driver import Connection
from watchkeeper.store.snapshot import EVENTS_KEPT, SessionReading, SessionSnapshotReader, accept_any_text
from watchkeeper_tui.reader import DetailFold
from watchkeeper_tui.snapshot import AgentDetail

TEXTS = st.sampled_from(
    ["", "calm", "naïve 漢字", "a\x00b", "\x1b[2J", '"quoted" \\ back', "line\nbreak", "x" * 5000]
)
NUMBERS = st.one_of(st.integers(-5, 2**53), st.floats(allow_nan=False, allow_infinity=False, width=64))
AGENT_COLUMNS = {
    "name": TEXTS, "current_goal": TEXTS, "status": st.sampled_from(["idle", "working", "waiting", "paused", "done"]),
    "status_reason": st.none() | TEXTS, "context_tokens": st.integers(0, 10**6), "active_seconds": NUMBERS,
    "cost_usd": st.none() | NUMBERS, "last_active": NUMBERS, "composition": st.sampled_from(["{}", "[]", '{"messages": 1e999}', "x", '{"a": 3}']),
    "task_id": st.none() | st.sampled_from(["t-core", "t-tui"]), "compactions": st.integers(0, 9), "ended_at": st.none() | NUMBERS,
}  # fmt: skip
TASK_COLUMNS = {
    "title": TEXTS, "position": st.integers(-3, 9), "status": st.sampled_from(["pending", "running", "done", "stale"]),
    "result": st.none() | TEXTS, "assigned_agent": st.none() | st.sampled_from(["explorer1", "explorer2"]),
}  # fmt: skip
AGENTS = ["planner1", "explorer1", "explorer2"]
ACTIONS = ["agent", "task", "new agent", "new task", "need", "event", "live", "unlive", "call", "pass", "approval", "answered",
           "command", "budget", "unbudget", "message", "fact", "inbox", "tool", "session", "time", "other session"]  # fmt: skip


class Folds:
    """The readings of one connection: renewed ones, and first ones to hold them against."""

    def __init__(self, connection: Connection, session: FakeSession) -> None:
        self.connection = connection
        self.session = session
        self.fold, self.details = (
            SessionSnapshotReader(session.id),
            {name: DetailFold(session.id, name) for name in AGENTS},
        )
        self.events: list[Any] = []

    def check(self, now: float) -> None:
        renewed, first = self._read(self.fold, now), self._read(SessionSnapshotReader(self.session.id), now)
        self.events = (list(renewed.events) if renewed.events_anew else self.events + list(renewed.events))[
            -EVENTS_KEPT:
        ]
        assert self.events == list(first.events)
        for part in (
            "session", "tasks", "agents", "compactions", "approvals", "commands", "budgets", "rates",
        ):  # fmt: skip
            assert getattr(renewed, part) == getattr(first, part), part
        for name, fold in self.details.items():
            agent = next(each for each in renewed.agents if each.id == name)
            assert self._detail(fold, agent) == self._detail(DetailFold(self.session.id, name), agent)

    def _read(self, fold: SessionSnapshotReader, now: float) -> SessionReading:
        self.connection.execute("BEGIN")
        reading = fold.read(self.connection, now)
        self.connection.execute("COMMIT")
        assert reading is not None
        return reading

    def _detail(self, fold: DetailFold, agent: Any) -> AgentDetail:
        return fold.read(self.connection, agent)


def act(session: FakeSession, what: str, data: st.DataObject, number: int) -> float:
    """Write something; returns the seconds that pass meanwhile."""
    connection, agent = session.connection, data.draw(st.sampled_from(AGENTS))

    def change(table: str, key: str, columns: dict[str, Any]) -> None:
        column = data.draw(st.sampled_from(sorted(columns)))
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (data.draw(columns[column]), key))

    text = data.draw(TEXTS)
    if what == "agent":
        change("agents", agent, AGENT_COLUMNS)
    elif what == "task":
        change("tasks", data.draw(st.sampled_from(["t-core", "t-tui"])), TASK_COLUMNS)
    elif what == "new agent":
        session.agent(f"new{number}", text)
    elif what == "new task":
        session.task(f"t-new{number}", text, needs=("t-core",))
    elif what == "need":
        insert(connection, "task_dependencies", task_id="t-core", depends_on=f"t-{number}")
    elif what == "event":
        for count in range(data.draw(st.sampled_from([1, 3, EVENTS_KEPT + 7]))):
            session.event("tool.done", agent, preview=f"{text[:50]}{count}")
    elif what == "live":
        session.live(agent, "working", text=text, since=data.draw(NUMBERS))
    elif what == "unlive":
        connection.execute("DELETE FROM live WHERE agent_id = ?", (agent,))
    elif what == "call":
        session.call(
            agent,
            started_at=session.now - data.draw(st.sampled_from([0, 30, 59, 100])),
            cost_usd=data.draw(st.none() | st.just(0.25)),
        )
    elif what == "pass":
        session.compaction(agent, reason=text)
    elif what == "approval":
        session.approval(agent, text, f"appr{number}")
    elif what == "answered":
        connection.execute("UPDATE approvals SET status = 'approved'")
    elif what == "command":
        insert(
            connection, "commands", session_id=session.id, kind="pause", requested_by="test",
            created_at=NOW, result=text,
        )  # fmt: skip
    elif what == "budget":
        insert(
            connection, "budgets", session_id=session.id, kind="usd", amount=data.draw(NUMBERS),
            created_at=NOW,
        )  # fmt: skip
    elif what == "unbudget":
        connection.execute("DELETE FROM budgets")
    elif what == "message":
        session.message(agent, "user", [{"type": "text", "text": text}])
    elif what == "fact":
        session.fact(data.draw(st.sampled_from([agent, None])), text, pinned=number % 2, digest=str(number))
    elif what == "inbox":
        insert(
            connection, "inbox", session_id=session.id, agent_id=agent, kind="note",
            payload=json.dumps(text), created_at=NOW,
        )  # fmt: skip
    elif what == "tool":
        insert(connection, "tool_calls", session_id=session.id, agent_id=agent, turn=number, position=0, seq=1, tool_use_id=text,
               name=text, idempotent=1, status="running", is_error=number % 2)  # fmt: skip
    elif what == "session":
        session.set(model_calls=number, title=text, status_reason=text)
    elif what == "other session":
        FakeSession(connection, f"other{number:03d}")
    return 45.0 if what == "time" else 1.5


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_renewed_readings_equal_first_ones_whatever_was_written(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_and_compare(Path(folder) / "w.db", data)


def write_and_compare(path: Path, data: st.DataObject) -> None:
    connection = create(path)
    viewer = accept_any_text(open_readonly(path))
    try:
        session = small_session(connection)
        folds = Folds(viewer, session)
        folds.check(session.now)
        for number, what in enumerate(data.draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=12))):
            session.now += act(session, what, data, number)
            if data.draw(st.booleans()):
                folds.check(session.now)
        folds.check(session.now + 2)
    finally:
        viewer.close()
        connection.close()


def test_a_reading_shares_with_the_one_before_all_that_did_not_change(tmp_path: Path) -> None:
    connection = create(tmp_path / "w.db")
    session = small_session(connection)
    fold = SessionSnapshotReader(session.id)
    before = fold.read(connection, session.now)
    session.set_agent("explorer1", turn=99)
    after = fold.read(connection, session.now)
    assert before is not None
    assert after is not None
    assert after.tasks is before.tasks
    assert after.compactions is before.compactions
    assert after.rates is before.rates
    changed = [now for then, now in zip(before.agents, after.agents, strict=True) if now is not then]
    assert [(agent.id, agent.turn) for agent in changed] == [("explorer1", 99)]
    connection.close()


def test_text_that_is_no_utf8_is_read_with_marks_and_stops_nothing(tmp_path: Path) -> None:
    connection = create(tmp_path / "w.db")
    session = small_session(connection)
    connection.execute("UPDATE tasks SET name = CAST(x'66ff6f' AS TEXT) WHERE id = 't-core'")
    viewer = accept_any_text(open_readonly(tmp_path / "w.db"))
    reading = SessionSnapshotReader(session.id).read(viewer, session.now)
    assert reading is not None
    assert next(agent.name for agent in reading.agents if agent.id == "explorer1") == "f\ufffdo"
    viewer.close()
    connection.close()


def test_rates_die_away_when_nothing_is_written(tmp_path: Path) -> None:
    connection = create(tmp_path / "w.db")
    session = small_session(connection)
    fold = SessionSnapshotReader(session.id)
    session.call("explorer1", started_at=session.now - 5, latency_seconds=1, cost_usd=0.5)
    session.set(model_calls=1)
    now = fold.read(connection, session.now)
    later = fold.read(connection, session.now + 61)
    assert now is not None
    assert later is not None
    assert now.rates.cost_per_minute >= 0.5
    assert now.rates.events_per_second > 0
    assert later.rates.is_still
    connection.close()
