"""Replay of sessions of other programs, whose events tell little."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.core.library.conftest import put

from watchkeeper.store import database
from watchkeeper.store.replay import Recording, open_recording


@pytest.fixture
def imported(tmp_path: Path) -> Iterator[Any]:
    """Two agents, who wrote by turns; one task, one compaction, one failed call."""
    connection = database.open_writable(tmp_path / "watchkeeper.db")
    put(
        connection, "sessions", id="imported", user_id="ada", goal="g", workspace="/w", model="m", status="done", created_at=100.0,
        last_active=200.0, ended_at=200.0, origin="claude-code", planner_agent_id="main",
    )  # fmt: skip
    for agent_id, begins, seqs in (("main", 100.0, 4), ("helper", 120.0, 3)):
        put(
            connection, "agents", id=agent_id, session_id="imported", name=agent_id, role="main", model="m", status="done",
            created_at=begins, last_active=begins + 10 * seqs, ended_at=begins + 10 * seqs, last_seq=seqs, turn=2,
            parent_agent_id=None if agent_id == "main" else "main", view_version=1,
        )  # fmt: skip
        for seq in range(1, seqs + 1):
            put(
                connection, "messages", agent_id=agent_id, seq=seq, role="user" if seq % 2 else "assistant",
                content=json.dumps([{"type": "text", "text": f"{agent_id} says {seq}"}]), tokens=10, total_tokens=10 * seq,
                created_at=begins + 10 * (seq - 1),
            )  # fmt: skip
        for turn in (1, 2):
            put(
                connection, "model_calls", session_id="imported", agent_id=agent_id, turn=turn, purpose="turn", model="m",
                status="done" if turn == 1 else "error", input_tokens=100, cost_usd=0.5, started_at=begins + 10 * turn, latency_seconds=1,
            )  # fmt: skip
        put(
            connection, "views", agent_id=agent_id, version=1, observations="[]", verbatim_from=1,
            reason="start", created_at=begins,
        )  # fmt: skip
    put(connection, "plans", id="p", session_id="imported", goal="g", created_at=100.0, updated_at=100.0)
    put(
        connection, "tasks", id="t", session_id="imported", parent_plan_id="p", name="t", position=0, title="T", instructions="",
        role="r", status="done", result="well", created_at=105.0, started_at=121.0, ended_at=141.0,
    )  # fmt: skip
    put(
        connection, "compactions", session_id="imported", agent_id="main", trigger="auto", status="applied", tokens_before=50,
        tokens_after=20, requested_at=112.0, ended_at=119.0,
    )  # fmt: skip
    put(
        connection, "events", session_id="imported", seq=1, at=119.0, kind="compaction.applied",
        agent_id="main",
    )  # fmt: skip
    yield connection
    connection.close()


@pytest.fixture
def recording(imported: Any) -> Recording:
    found = open_recording(imported, "imported")
    assert found is not None
    return found


def test_an_imported_session_is_replayed_by_the_times_of_messages_and_calls(imported, recording):
    assert not recording.by_event
    assert list(recording.times) == [100, 110, 111, 119, 120, 120, 121, 130, 130, 131, 140, 141]
    told: dict[float, list[Any]] = {}
    for position, at in enumerate(recording.times, 1):
        then = recording.at(imported, position).reading
        session, tasks = then.session, [each.status for each in then.tasks]
        seen = [(each.name, each.status, each.turn, each.last_seq, each.input_tokens) for each in then.agents]
        passes = [each.status for each in then.compactions]
        told.setdefault(at, [session.status, session.input_tokens, session.cost_usd, tasks, passes, seen])
    assert told[100] == ["running", 0, None, [], [], [("main", "working", 0, 1, 0)]]
    assert told[111] == ["running", 100, 0.5, ["pending"], [], [("main", "working", 1, 2, 100)]]
    assert told[120][3:] == [
        ["pending"],
        ["applied"],
        [("main", "working", 1, 3, 100), ("helper", "working", 0, 1, 0)],
    ]
    assert told[121][3] == ["running"]
    assert told[141][:4] == ["done", 400, 2.0, ["done"]]
    assert [mark.kind for mark in recording.marks] == ["compaction", "failure", "failure", "task"]
    assert [recording.times[position - 1] for position in recording.turns] == [110, 130]


def test_tasks_of_an_imported_session_stand_as_their_events_tell(imported: Any) -> None:
    for seq, at, state in (
        (2, 121.0, "running"),
        (3, 131.0, "pending"),
        (4, 140.0, "running"),
        (5, 141.0, "done"),
    ):
        about = {"session_id": "imported", "task_id": "t", "agent_id": "main"}
        put(imported, "events", seq=seq, at=at, kind=f"task.{state}", **about)
    recording = open_recording(imported, "imported")
    assert recording is not None
    stood: list[tuple[float, str]] = []
    for position, at in enumerate(recording.times, 1):
        for one in recording.at(imported, position).reading.tasks:
            if not stood or stood[-1][1] != one.status:
                stood.append((at, one.status))
    assert stood == [(110, "pending"), (121, "running"), (131, "pending"), (140, "running"), (141, "done")]


def test_what_an_imported_session_said_stands_among_its_events(imported, recording):
    events = recording.events(imported, len(recording.times), 100)
    assert [event.seq for event in events] == list(range(1, 13))
    assert [event.kind for event in events[:4]] == [
        "user.message",
        "assistant.message",
        "model.replied",
        "compaction.applied",
    ]
    assert "main says 1" in events[0].data
    then = recording.at(imported, 5)
    main = recording.agent(imported, then, "main", 2)
    assert main is not None
    assert [message.seq for message in main.messages] == [2, 3]
    assert recording.agent(imported, then, "nobody", 2) is None


def test_a_result_in_blocks_is_told_by_its_text(imported: Any) -> None:
    content = [{"type": "text", "text": "42 files"}, {"type": "image"}]
    result = {"type": "tool_result", "tool_use_id": "t", "content": content}
    about = {"tokens": 10, "total_tokens": 50, "created_at": 145.0, "content": json.dumps([result])}
    put(imported, "messages", agent_id="main", seq=5, role="user", **about)
    recording = open_recording(imported, "imported")
    assert recording is not None
    said = [
        event.data for event in recording.events(imported, len(recording.times), 100) if "#5" in event.data
    ]
    assert [json.loads(data)["text"] for data in said] == ["#5 ← 42 files [image]"]


def test_a_jump_reads_no_more_in_a_longer_session(tmp_path: Path) -> None:
    """Counted in steps of SQLite's machine, which no busy processor changes."""

    def steps(turns: int) -> int:
        connection = database.open_writable(tmp_path / f"{turns}.db")
        connection.execute("BEGIN")
        put(
            connection, "sessions", id="s", user_id="ada", goal="g", workspace="/w", model="m", status="done", created_at=0.0,
            last_active=0.0,
        )  # fmt: skip
        put(connection, "agents", id="a", session_id="s", name="a", role="r", model="m", status="done", created_at=0.0, last_active=0.0,
            last_seq=turns, turn=turns)  # fmt: skip
        put(connection, "events", session_id="s", seq=1, at=0.0, kind="agent.created", agent_id="a")
        for turn in range(1, turns + 1):
            put(connection, "messages", agent_id="a", seq=turn, role="assistant", content='"hm"', tokens=1, total_tokens=turn,
                created_at=float(turn))  # fmt: skip
            put(connection, "model_calls", session_id="s", agent_id="a", turn=turn, purpose="turn", model="m", status="done",
                started_at=turn - 0.5)  # fmt: skip
            put(connection, "steps", agent_id="a", turn=turn, reply_seq=turn, started_at=float(turn))
            put(connection, "events", session_id="s", seq=turn + 1, at=float(turn), kind="model.replied", agent_id="a",
                data=json.dumps({"turn": turn}))  # fmt: skip
        connection.execute("COMMIT")
        recording = open_recording(connection, "s")
        assert recording is not None
        count = itertools.count()
        connection.set_progress_handler(lambda: next(count) and 0, 100)
        then = recording.at(connection, turns - 100)
        recording.agent(connection, then, "a", 80)
        recording.events(connection, turns - 100, 300)
        connection.set_progress_handler(None, 0)
        connection.close()
        assert then.reading.agents[0].turn == turns - 101
        return next(count)

    assert steps(4_000) < steps(1_000) * 1.5
