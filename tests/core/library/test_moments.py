"""What the events tell of a moment, against the rows as they really stood then: read after every commit of a
run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.core.library.conftest import NOT_FORKED, rows_of
from tests.core.runtime.conftest import Bench
from tests.support import eventful_runs
from tests.support.eventful_runs import all_states, jump_wall_clock, same

from watchkeeper.store.history import History, RowsAt
from watchkeeper.store.library import opened
from watchkeeper.store.migrations import _TIMES, number_rows

Rows = dict[str, list[dict[str, Any]]]

APPROXIMATE = {
    "sessions": {"hosted_seconds", "last_active", "host_pid", "host_name", "lease_epoch", "ended_at"},
    "agents": {"context_tokens", "composition", "last_active", "started_at"},
    "plans": {"updated_at"},
    "tasks": {"resume_token", "started_at"},
    "steps": {"started_at"},
    "task_dependencies": {"commit_seq", "position"},
    "tool_calls": {"started_at", "ended_at"},
    "model_calls": set(),
    "compactions": {"prepared", "tokens_spent", "cost_usd"},
}
"""What a fork has only about, or what a host sets in a step that no event tells of."""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Rows]]:
    """All states that a session stood in, by its newest event."""

    def read(path: Path, session_id: str) -> tuple[int, Rows] | None:
        rows = rows_of(path, session_id)
        return (rows["events"][-1]["seq"], rows) if rows["events"] else None

    return all_states(monkeypatch, read)


def told_at(path: Path, session_id: str, seq: int) -> tuple[int, Rows]:
    """The rows that the events tell of, and the event that ends the step."""
    with opened(path) as connection:
        cut = RowsAt(connection, History(connection, session_id).at_event(seq), ahead=False)
        now = rows_of(path, session_id)
        told = {
            table: [kept for kept in (cut.keep(table, row) for row in rows) if kept is not None]
            for table, rows in now.items()
            if table not in (*NOT_FORKED, "task_dependencies")
        }
        told["task_dependencies"] = cut.dependencies()
    return cut.moment.seq, told


def differences(told: Rows, stood: Rows) -> list[str]:
    found: list[str] = []
    for table, rows in stood.items():
        if table in ("commands", "memory_snapshots", "budgets", *NOT_FORKED):
            continue
        if len(rows) != len(told[table]):
            found.append(f"{table}: {len(told[table])} told, {len(rows)} stood")
            continue
        for mine, real in zip(told[table], rows, strict=True):
            for column, value in real.items():
                if table == "compactions" and column == "status" and value == "prepared":
                    value = mine[
                        column
                    ]  # what it had prepared is gone since: in a fork it is given up, as after a kill
                if column not in APPROXIMATE.get(table, ()) and not same(mine.get(column), value):
                    found.append(
                        f"{table}.{column} of {real.get('id') or real.get('seq')}: {mine[column]!r} told,"
                        f" {value!r} stood"
                    )
    return found


def check(bench: Bench, recorded: dict[int, list[Rows]]) -> int:
    """Compare every moment; returns how many there were."""
    count = 0
    for seq, states in sorted(recorded.items()):
        try:
            end, told = told_at(bench.path, bench.session, seq)
        except KeyError as error:
            raise AssertionError(f"at event #{seq}: {error!r}") from error
        assert end == seq, "a step was cut in two"
        if not told["agents"]:
            continue
        best = min((differences(told, stood) for stood in states), key=len)
        kind = states[0]["events"][-1]["kind"]
        assert best == [], f"after event #{seq} {kind}:\n" + "\n".join(best[:12])
        count += 1
    return count


async def test_a_plain_run_is_told_at_every_moment(bench: Bench, recorded: dict[int, list[Rows]]) -> None:
    await eventful_runs.plain(bench)
    assert check(bench, recorded) > 20


async def test_failures_resumes_and_reruns_are_told_at_every_moment(bench, recorded):
    await eventful_runs.failing_and_run_again(bench)
    assert check(bench, recorded) > 20


async def test_compactions_undo_and_steering_are_told_at_every_moment(bench, recorded):
    await eventful_runs.compacted_and_steered(bench)
    assert check(bench, recorded) > 40


async def test_digests_of_a_full_context_are_told_at_every_moment(bench, recorded):
    await eventful_runs.digested(bench)
    assert check(bench, recorded) > 80


async def test_pauses_and_questions_are_told_at_every_moment(bench, recorded):
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


async def test_rows_of_an_earlier_schema_are_numbered_once_by_their_times(bench, recorded):
    await eventful_runs.plain(bench)
    with opened(bench.path) as connection:
        connection.execute("DROP TRIGGER messages_are_immutable")
        for table in ("events", *_TIMES):
            connection.execute(f"UPDATE {table} SET commit_seq = NULL")
        assert [None for _ in number_rows(connection)] == [None]
        for table in ("events", *_TIMES):
            found = connection.execute(f"SELECT count(*) FROM {table} WHERE commit_seq IS NULL").fetchone()
            assert found == (0,)
        assert connection.execute("SELECT history_inferred FROM sessions").fetchone() == (1,)
    for states in recorded.values():
        for rows in (row for state in states for table in state.values() for row in table):
            rows.pop("commit_seq", None)
            rows.pop("history_inferred", None)
    assert check(bench, recorded) > 20
