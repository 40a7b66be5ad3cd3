"""What a recording tells of a step, against the rows as they really stood then: read after every commit of a
run."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.support import eventful_runs
from tests.support.eventful_runs import all_states, jump_wall_clock, same

from watchkeeper.store import database
from watchkeeper.store.agent_snapshot import AgentSnapshotReader, newest_messages, place_of_event, read_event
from watchkeeper.store.driver import Connection
from watchkeeper.store.replay import Recording, open_recording
from watchkeeper.store.snapshot import SessionSnapshotReader

State = dict[str, Any]
MESSAGES = 40

APPROXIMATE = {
    "session": {"hosted_seconds", "last_active", "host_pid", "host_name", "ended_at"},
    "agents": {"context_tokens", "composition", "last_active", "started_at", "live"},
    "tasks": {"started_at"},
    "compactions": {"cost_usd"},
    "budgets": {"amount"},
    "tool_calls": {"started_at", "ended_at"},
}
"""What a host sets in a step that no event tells of, or what is counted anew at every step."""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    return Bench(tmp_path)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[State]]:
    """All states that a session stood in, by its newest event."""

    def read(path: Path, session_id: str) -> tuple[int, State]:
        with closing(database.open_readonly(path)) as connection:
            stood = state_now(connection, session_id)
        return stood["session"]["event_seq"], stood

    return all_states(monkeypatch, read)


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


PARTS = ("tool_calls", "calls", "facts", "views", "inbox")


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


def differences(told: State, stood: State) -> list[str]:
    found: list[str] = []
    for part, real in stood.items():
        rows, mine = (real, told.get(part, [])) if isinstance(real, list) else ([real], [told[part]])
        if len(rows) != len(mine):
            found.append(f"{part}: {len(mine)} told, {len(rows)} stood")
            continue
        skipped = APPROXIMATE.get(part.partition(" ")[0], set())
        for row, other in zip(rows, mine, strict=True):
            for column, value in row.items():
                if column not in skipped and not same(other[column], value):
                    found.append(
                        f"{part}.{column} of {row.get('id')}: {other[column]!r} told, {value!r} stood"
                    )
    return found


def check(bench: Bench, recorded: dict[int, list[State]]) -> int:
    """Compare every moment, in no order; returns how many there were."""
    connection = database.open_readonly(bench.path)
    recording = open_recording(connection, bench.session)
    assert recording is not None
    seqs = sorted((seq for seq in recorded if seq), key=lambda seq: (seq * 7919) % 1009)
    for seq in seqs:
        told = state_then(connection, recording, seq)
        assert told["session"]["event_seq"] == seq, "a step was cut in two"
        best = min((differences(told, stood) for stood in recorded[seq]), key=len)
        (event,) = recording.events(connection, seq, 1)
        assert best == [], f"after event #{seq} {event.kind}:\n" + "\n".join(best[:12])
    for (seq,) in connection.execute(
        "SELECT seq FROM events WHERE session_id = ?", (bench.session,)
    ).fetchall():
        leads_somewhere(connection, bench.session, seq)
    connection.close()
    return len(seqs)


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


async def test_a_plain_run_is_replayed_as_it_was(bench: Bench, recorded: dict[int, list[State]]) -> None:
    await eventful_runs.plain(bench)
    assert check(bench, recorded) > 20


async def test_failures_revisions_and_reruns_are_replayed_as_they_were(bench, recorded):
    await eventful_runs.failing_and_run_again(bench)
    assert check(bench, recorded) > 20


async def test_compactions_undo_and_steering_are_replayed_as_they_were(bench, recorded):
    await eventful_runs.compacted_and_steered(bench)
    assert check(bench, recorded) > 40


async def test_digests_of_a_full_context_are_replayed_as_they_were(bench, recorded):
    await eventful_runs.digested(bench)
    assert check(bench, recorded) > 60


async def test_pauses_and_questions_are_replayed_as_they_were(bench, recorded):
    await eventful_runs.paused_at_a_question(bench)
    assert check(bench, recorded) > 10
    await eventful_runs.resumed_and_denied(bench)
    assert check(bench, recorded) > 25


async def test_no_moment_depends_on_the_wall_clock(bench, recorded, monkeypatch):
    jump_wall_clock(monkeypatch)
    await eventful_runs.compacted_and_steered(bench)
    assert check(bench, recorded) > 40


async def test_reruns_under_a_clock_that_jumps_keep_their_order(bench, recorded, monkeypatch):
    jump_wall_clock(monkeypatch)
    await eventful_runs.failing_and_run_again(bench)
    assert check(bench, recorded) > 20


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
