"""What is told of a moment, against how it really stood: read after every commit of runs in which much happens.

Two tell of it: a recording, to the dashboard, and the rows as of an event, which a fork copies.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.core.library.conftest import NOT_FORKED, rows_of
from tests.core.runtime.conftest import Bench
from tests.support import eventful_runs
from tests.support.eventful_runs import all_states, jump_wall_clock, same

from watchkeeper.store import database
from watchkeeper.store.agent_snapshot import AgentSnapshotReader, newest_messages, place_of_event, read_event
from watchkeeper.store.driver import Connection
from watchkeeper.store.history import History, RowsAt
from watchkeeper.store.library import opened
from watchkeeper.store.replay import Recording, open_recording
from watchkeeper.store.snapshot import SessionSnapshotReader

State = dict[str, Any]
Recorded = dict[int, list[tuple[State, State]]]
MESSAGES = 40

NOT_TOLD = {
    "session": {"hosted_seconds", "last_active", "host_pid", "host_name", "lease_epoch", "ended_at"},
    "agents": {"context_tokens", "composition", "last_active", "started_at", "live"},
    "tasks": {"started_at"},
    "compactions": {"cost_usd"},
    "budgets": {"amount"},
    "tool_calls": {"started_at", "ended_at"},
}
"""What a host sets in a step that no event tells of, or what is counted anew at every step."""

NOT_COPIED = {
    "sessions": {"hosted_seconds", "last_active", "host_pid", "host_name", "lease_epoch", "ended_at"},
    "agents": {"context_tokens", "composition", "last_active", "started_at"},
    "plans": {"updated_at"},
    "tasks": {"resume_token", "started_at"},
    "steps": {"started_at"},
    "task_dependencies": {"commit_seq", "position"},
    "tool_calls": {"started_at", "ended_at"},
    "compactions": {"prepared", "tokens_spent", "cost_usd"},
}
"""What a fork has only about, or what a host sets in a step that no event tells of."""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    return Bench(tmp_path)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """What the dashboard read and all rows, by the newest event."""

    def read(path: Path, session_id: str) -> tuple[int, tuple[State, State]] | None:
        rows = rows_of(path, session_id)
        if not rows["events"]:
            return None
        with closing(database.open_readonly(path)) as connection:
            return rows["events"][-1]["seq"], (state_now(connection, session_id), rows)

    return all_states(monkeypatch, read)


PARTS = ("tool_calls", "calls", "facts", "views", "inbox")


def state_now(connection: Any, session_id: str) -> State:
    """All that the dashboard reads of a session."""
    reading = SessionSnapshotReader(session_id).read(connection, 0.0)
    assert reading is not None
    state: State = {"session": asdict(reading.session)}
    for name in ("tasks", "agents", "compactions", "approvals", "budgets"):
        state[name] = [asdict(each) for each in getattr(reading, name)]
    for agent in reading.agents:
        more = AgentSnapshotReader(session_id, agent.id).read(connection)
        state |= {f"{name} of {agent.id}": [asdict(each) for each in getattr(more, name)] for name in PARTS}
        state[f"messages of {agent.id}"] = [
            asdict(each) for each in newest_messages(connection, agent.id, MESSAGES)
        ]
    return state


def state_then(connection: Any, recording: Recording, position: int) -> State:
    """The same, as the recording tells it."""
    then = recording.at(connection, position)
    state: State = {"session": asdict(then.reading.session)}
    for name in ("tasks", "agents", "compactions", "approvals", "budgets"):
        state[name] = [asdict(each) for each in getattr(then.reading, name)]
    for agent in then.reading.agents:
        more = recording.agent(connection, then, agent.id, MESSAGES)
        assert more is not None
        state |= {
            f"{name} of {agent.id}": [asdict(each) for each in getattr(more.reading, name)] for name in PARTS
        }
        state[f"messages of {agent.id}"] = [asdict(each) for each in more.messages]
    return state


def leads_somewhere(connection: Connection, session_id: str, seq: int) -> None:
    """An event leads to what it is about, unless it is of the run as a whole."""
    event = read_event(connection, session_id, seq)
    assert event is not None
    place, data = place_of_event(connection, session_id, event), json.loads(event.data)
    is_of_run = event.agent_id is None and event.task_id is None and not event.kind.startswith("plan.")
    assert place.seq or place.compaction_id or place.digest or is_of_run, event
    if "call" in data:
        row = connection.execute(
            "SELECT name FROM tool_calls WHERE tool_use_id = ? AND agent_id = ?",
            (place.tool_use_id, place.agent_id),
        )
        assert row.fetchone() == (data["tool"],)
    assert event.kind.startswith("compaction.") == (place.compaction_id is not None)


def rows_then(path: Path, session_id: str, seq: int) -> tuple[int, State]:
    """The rows that the events tell of, and the event that ends the step."""
    with opened(path) as connection:
        cut = RowsAt(connection, History(connection, session_id).at_event(seq), ahead=False)
        told = {
            table: [kept for kept in (cut.keep(table, row) for row in rows) if kept is not None]
            for table, rows in rows_of(path, session_id).items()
            if table not in (*NOT_FORKED, "task_dependencies")
        }
        told["task_dependencies"] = cut.dependencies()
    return cut.moment.seq, told


def differences(told: State, stood: State, skipped: dict[str, set[str]]) -> list[str]:
    found: list[str] = []
    for part, real in stood.items():
        rows, mine = (real, told.get(part, [])) if isinstance(real, list) else ([real], [told[part]])
        if len(rows) != len(mine):
            found.append(f"{part}: {len(mine)} told, {len(rows)} stood")
            continue
        for row, other in zip(rows, mine, strict=True):
            for column, value in row.items():
                if (
                    part == "compactions"
                    and skipped is NOT_COPIED
                    and (column, value) == ("status", "prepared")
                ):
                    continue  # what it had prepared is gone since: in a fork it is given up, as after a kill
                if column not in skipped.get(part.partition(" ")[0], ()) and not same(
                    other.get(column), value
                ):
                    name = row.get("id") or row.get("seq")
                    found.append(f"{part}.{column} of {name}: {other.get(column)!r} told, {value!r} stood")
    return found


def assert_told(seq: int, told: State, stood: list[State], skipped: dict[str, set[str]]) -> None:
    best = min((differences(told, one, skipped) for one in stood), key=len)
    assert best == [], f"after event #{seq}:\n" + "\n".join(best[:12])


def check_recording(bench: Bench, recorded: Recorded) -> int:
    """Compare every moment, in no order; returns how many there were."""
    seqs = sorted(recorded, key=lambda seq: (seq * 7919) % 1009)
    with closing(database.open_readonly(bench.path)) as connection:
        recording = open_recording(connection, bench.session)
        assert recording is not None
        for seq in seqs:
            told = state_then(connection, recording, seq)
            assert told["session"]["event_seq"] == seq, "a step was cut in two"
            assert_told(seq, told, [read for read, _ in recorded[seq]], NOT_TOLD)
        for (seq,) in connection.execute(
            "SELECT seq FROM events WHERE session_id = ?", (bench.session,)
        ).fetchall():
            leads_somewhere(connection, bench.session, seq)
    return len(seqs)


def check_rows(bench: Bench, recorded: Recorded) -> int:
    """Compare every moment at which there was an agent; returns how many there were."""
    count = 0
    for seq, states in sorted(recorded.items()):
        end, told = rows_then(bench.path, bench.session, seq)
        assert end == seq, "a step was cut in two"
        if told["agents"]:
            left_out = ("commands", "memory_snapshots", "budgets", *NOT_FORKED)
            stood = [
                {name: found for name, found in rows.items() if name not in left_out} for _, rows in states
            ]
            assert_told(seq, told, stood, NOT_COPIED)
            count += 1
    return count


Scene = list[tuple[Callable[[Bench], Awaitable[None]], int]]
SCENES: dict[str, Scene] = {
    "plain": [(eventful_runs.plain, 20)],
    "failures, revisions, reruns": [(eventful_runs.failing_and_run_again, 20)],
    "compactions, undo, steering": [(eventful_runs.compacted_and_steered, 40)],
    "digests of a full context": [(eventful_runs.digested, 60)],
    "pauses and questions": [
        (eventful_runs.paused_at_a_question, 10),
        (eventful_runs.resumed_and_denied, 25),
    ],
}
"""Runs, and how many moments each must at least have."""


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(scene, id=name, marks=[pytest.mark.long] if name == "digests of a full context" else [])
        for name, scene in SCENES.items()
    ],
)
async def test_every_moment_of_a_run_is_told_as_it_was_whatever_its_clock_said(
    bench: Bench, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, scene: Scene
) -> None:
    jump_wall_clock(monkeypatch)
    for run, least in scene:
        await run(bench)
        assert min(check_recording(bench, recorded), check_rows(bench, recorded)) > least


async def test_a_fact_is_replayed_as_it_was_before_it_was_pinned_or_superseded(bench: Bench) -> None:
    await eventful_runs.plain(bench)
    with closing(database.open_writable(bench.path)) as connection:
        fact, agent_id, seq = connection.execute("SELECT id, agent_id, commit_seq FROM facts").fetchone()
        (last,) = connection.execute("SELECT max(seq) FROM events").fetchone()
        for commit_seq, old in ((seq + 3, 0), (seq + 6, 1)):
            values = f'{{"scope": "session", "pinned": {old}, "superseded_by": null}}'
            connection.execute(
                "INSERT INTO state_changes (session_id, commit_seq, table_name, row_id, old_values)"
                " VALUES (?, ?, 'facts', ?, ?)",
                (bench.session, commit_seq, str(fact), values),
            )
        (other,) = connection.execute("SELECT max(id) FROM facts").fetchone()
        connection.execute("UPDATE facts SET superseded_by = ? WHERE id = ?", (other, fact))
        recording = open_recording(connection, bench.session)
        assert recording is not None
        pinned: list[bool | None] = []
        for position in (seq, seq + 4, last):
            more = recording.agent(connection, recording.at(connection, position), agent_id, 1)
            assert more is not None
            pinned.append(next((one.pinned for one in more.reading.facts if one.id == fact), None))
    assert pinned == [False, True, None]
