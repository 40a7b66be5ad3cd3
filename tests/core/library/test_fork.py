"""A fork begins exactly where the first session stood, has names of its own, and can be carried on."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.core.library.conftest import NOT_FORKED, differing, rows_of, without_names
from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, said, task, turns

from watchkeeper.records.errors import BadInput, DrivenElsewhere, NotFound
from watchkeeper.records.messages import Purpose
from watchkeeper.records.ports import random_id
from watchkeeper.store import artifacts, database, sessions
from watchkeeper.store import fork as fork_module
from watchkeeper.store.driver import Queries
from watchkeeper.store.fork import fork_session
from watchkeeper.store.history import History, RowsAt
from watchkeeper.store.lease import Lease
from watchkeeper.store.library import in_short_transactions, opened
from watchkeeper.store.prune import plan_prune, prune_sessions, remove_unfinished, unfinished_sessions
from watchkeeper.store.search.messages import list_sessions

CHANGED = re.compile(
    r"'(origin|forked_from|forked_at_seq|created_at|last_active|lease_epoch|host_pid|host_name|event_seq|title|source|ordinal)': ('[^']*'|[^,}]*)"
)


def worker(name: str, request: Any) -> Any:
    """Reads, remembers, saves, says so: a function of the request, so that a fork can be carried on."""
    turn = turns(request)
    if turn == 0:
        return [said("I look."), call("list_folder", {"path": "."}, f"toolu_{name}_0")]
    if turn == 1:
        return [
            call("remember", {"text": f"{name} is about numbers"}, f"toolu_{name}_1"),
            call("save_artifact", {"name": f"{name}.json", "content": {"made": name}}, f"toolu_{name}_2"),
        ]
    if turn == 2:
        return [call("recall", {"query": f"{name} numbers"}, f"toolu_{name}_3")]
    return [said(f"{name} is done")]


def script() -> PlannedRun:
    tasks = [task("alpha", outputs=("alpha.json",)), task("beta"), task("gamma", needs=("alpha", "beta"))]
    return PlannedRun(tasks, work=worker)


class Long:
    """Sub-agents that say so much that their contexts are compacted, with a model's summaries and without."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        self._planned = PlannedRun([task("alpha"), task("beta", needs=("alpha",))], self.work)

    def __call__(self, request: Any) -> Any:
        if request.purpose is Purpose.REFLECTOR:
            return [said("The agent saved notes (#3).")]
        return self._planned(request)

    def work(self, name: str, request: Any) -> Any:
        turn = self._turns[name] = self._turns.get(name, 0) + 1
        if turn == 3:
            return [call("remember", {"text": f"{name} is about numbers"}, f"t{name}{turn}")]
        if turn <= 22:
            return [
                call(
                    "save_artifact",
                    {"name": f"{name}{turn}", "content": f"note {turn} " + "words " * 450},
                    f"t{name}{turn}",
                )
            ]
        return [said(f"{name} is done")]


async def ran(bench: Bench, script: Any, **options: Any) -> str:
    session = bench.start(script, **options)
    result = await asyncio.wait_for(bench.run(), 20)
    assert result.exit_code == 0
    return session


def same_but_for_the_row(left: Path, one: str, other: str) -> list[str]:
    """How two sessions differ, apart from what must."""
    a, b = without_names(rows_of(left, one)), without_names(rows_of(left, other))
    for side in (a, b):
        side["events"] = [row for row in side["events"] if "session.forked" not in row]
    for table in NOT_FORKED:
        a[table] = b[table] = []
    return differing(a, b, lambda text: CHANGED.sub("", text))


async def test_a_fork_of_a_finished_session_is_an_exact_copy(bench: Bench) -> None:
    session = await ran(bench, Long(), window=12_000)
    assert bench.query("SELECT count(*) FROM observations")[0][0]
    made = fork_session(bench.path, session)
    assert same_but_for_the_row(bench.path, session, made.session_id) == []
    assert made.status == "done"
    row = rows_of(bench.path, made.session_id)["sessions"][0]
    assert (row["origin"], row["forked_from"], row["deleted_at"]) == ("fork", session, None)
    last = rows_of(bench.path, made.session_id)["events"][-1]
    assert (last["kind"], json.loads(last["data"])["from"]) == ("session.forked", session)
    bench.assert_sound()


async def test_what_the_events_tell_of_the_end_is_how_the_rows_stand(bench: Bench) -> None:
    """The rows as they are rebuilt from the events alone, at the last event, against the rows themselves."""
    session = await ran(bench, Long(), window=12_000)
    rows = rows_of(bench.path, session)
    with opened(bench.path) as connection:
        cut = RowsAt(connection, History(connection, session).at_event(rows["events"][-1]["seq"]))
        rebuilt = {
            table: [kept for kept in (cut.keep(table, row) for row in found) if kept is not None]
            for table, found in rows.items()
            if table not in ("task_dependencies", *NOT_FORKED)
        }
    expected = {table: rows[table] for table in rebuilt}
    for row in [*rebuilt["sessions"], *expected["sessions"]]:
        row["hosted_seconds"] = 0.0
    for row in [*rebuilt["agents"], *expected["agents"]]:
        row["last_active"] = 0.0
    for table, found in expected.items():
        for row, then in zip(found, rebuilt[table], strict=True):
            assert {key: (row[key], then[key]) for key in row if _near(row[key]) != _near(then[key])} == {}, (
                table
            )


def _near(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


async def test_every_pointer_of_a_fork_leads_to_the_forks_own_rows(bench: Bench) -> None:
    session = await ran(bench, Long(), window=12_000)
    made = fork_session(bench.path, session)
    old, new = rows_of(bench.path, session), rows_of(bench.path, made.session_id)
    theirs = {row["id"] for table in ("agents", "tasks", "plans") for row in old[table]} | {session}
    for table, found in new.items():
        for row in found:
            text = str(
                {key: value for key, value in row.items() if key not in ("forked_from", "status_reason")}
            )
            if row.get("kind") != "session.forked":
                assert not [name for name in theirs if name in text], (table, text)
    mine = {row["id"]: row["last_seq"] for row in new["agents"]}
    pointers = set(re.findall(r"message://(\w+)/(\d+)(?:-(\d+))?", str(new)))
    assert pointers
    for agent, first, last in pointers:
        assert 1 <= int(first) <= int(last or first) <= mine[agent]
    connection = database.open_readonly(bench.path)

    for ref in set(re.findall(r"artifact://sha256/[0-9a-f]{64}", str(new))):
        data = artifacts.get(Queries(connection), ref)
        assert data is not None
        assert not [name for name in theirs if name.encode() in data]
    connection.close()


async def test_a_fork_at_any_event_is_sound_and_runs_to_the_same_end(bench: Bench) -> None:
    session = await ran(bench, script())
    rows = rows_of(bench.path, session)
    wanted = [
        (one["name"], one["status"], one["result"])
        for one in sorted(rows["tasks"], key=lambda one: one["position"])
    ]
    made_at = next(row["seq"] for row in rows["events"] if row["kind"] == "agent.created")
    for seq in range(made_at, len(rows["events"]) + 1, 5):
        made = fork_session(bench.path, session, at_seq=seq)
        bench.session = made.session_id
        bench.assert_sound()
        if made.status == "paused":
            bench.model.script = script()
            result = await bench.run(resume=True)
            assert result.exit_code == 0, f"forked at #{seq}: {result}"
        bench.assert_sound()
        done = rows_of(bench.path, made.session_id)
        assert [
            (one["name"], one["status"], one["result"])
            for one in sorted(done["tasks"], key=lambda one: one["position"])
        ] == wanted
        assert {one["name"] for one in done["outputs"]} == {one["name"] for one in rows["outputs"]}
        assert all(one["attempt"] == 1 for one in done["tasks"])
    again = rows_of(bench.path, session)
    assert again == rows


async def test_a_fork_in_the_middle_shares_the_past_and_nothing_after_it(bench: Bench) -> None:
    session = await ran(bench, Long(), window=12_000)
    rows = rows_of(bench.path, session)
    done = next(row["seq"] for row in rows["events"] if row["kind"] == "task.done")
    middle = max(row["seq"] for row in rows["events"][:done] if row["kind"] == "tool.done")
    made = fork_session(bench.path, session, at_seq=middle)
    forked = rows_of(bench.path, made.session_id)
    assert made.status == "paused"
    found = [row["kind"] for row in forked["events"]]
    assert found == [row["kind"] for row in rows["events"][: made.at_seq]] + ["session.forked"]
    assert not [row for row in forked["tasks"] if row["status"] == "done"]
    assert len(forked["messages"]) < len(rows["messages"])
    totals = [sum(row[name] for row in forked["model_calls"]) for name in ("input_tokens", "output_tokens")]
    assert totals == [forked["sessions"][0]["input_tokens"], forked["sessions"][0]["output_tokens"]]


async def test_a_fork_at_a_turn_holds_that_turns_results_and_no_later_reply(bench: Bench) -> None:
    session = await ran(bench, script())
    agent, name = next(
        (row["id"], row["name"])
        for row in rows_of(bench.path, session)["agents"]
        if row["role"] == "explorer"
    )
    made = fork_session(bench.path, session, at_turn=(agent, 2))
    forked = rows_of(bench.path, made.session_id)
    mine = next(row for row in forked["agents"] if row["name"] == name)
    assert mine["turn"] == 2
    last = [row for row in forked["messages"] if row["agent_id"] == mine["id"]][-1]
    assert last["role"] == "user"
    assert "tool_result" in last["content"]
    assert "alpha is about numbers" in str(forked["facts"])


async def test_a_fork_before_a_rerun_has_the_result_of_the_first_attempt(bench: Bench) -> None:
    class Again(PlannedRun):
        def plan(self, request: Any) -> Any:
            text = str(request.messages)
            if "task_done" in text and "toolu_again" not in text:
                return [
                    call("rerun_task", {"task": "alpha", "reason": "again", "fresh": True}, "toolu_again")
                ]
            return super().plan(request)

    answers = iter(["the first answer", "the second answer"])
    session = bench.start(Again([task("alpha")], work=lambda name, request: [said(next(answers))]))
    assert (await bench.run()).exit_code == 0
    rows = rows_of(bench.path, session)
    assert rows["tasks"][0]["result"] == "the second answer"
    done = next(row["seq"] for row in rows["events"] if row["kind"] == "task.done")
    made = rows_of(bench.path, fork_session(bench.path, session, at_seq=done).session_id)["tasks"][0]
    assert (made["status"], made["attempt"], made["result"]) == ("done", 1, "the first answer")
    assert len(json.loads(made["artifact_refs"])) == 1
    later = next(row["seq"] for row in rows["events"] if row["kind"] == "task.pending")
    again = rows_of(bench.path, fork_session(bench.path, session, at_seq=later).session_id)["tasks"][0]
    left = (again["status"], again["attempt"], again["result"], again["assigned_agent"])
    assert left == ("pending", 2, None, None)


async def test_what_cannot_be_forked_is_refused_with_the_reason(bench: Bench) -> None:
    session = await ran(bench, script())
    with pytest.raises(NotFound, match="no event #99999; its events are #1 to #"):
        fork_session(bench.path, session, at_seq=99_999)
    with pytest.raises(NotFound, match="no session"):
        fork_session(bench.path, "nothing2")
    with pytest.raises(BadInput, match="no agent yet"):
        fork_session(bench.path, session, at_seq=1)
    agent = rows_of(bench.path, session)["agents"][0]["id"]
    with pytest.raises(NotFound, match="has no turn 77"):
        fork_session(bench.path, session, at_turn=(agent, 77))
    before = bench.query("SELECT count(*) FROM sessions")
    lease = Lease.acquire(bench.path, session)
    with pytest.raises(DrivenElsewhere, match="wk pause"):
        fork_session(bench.path, session)
    lease.release()
    assert bench.query("SELECT count(*) FROM sessions") == before


async def test_a_fork_that_fails_half_way_leaves_nothing_behind(bench, monkeypatch):
    session = await ran(bench, script())
    counts = {
        table: bench.query(f"SELECT count(*) FROM {table}")
        for table in ("messages", "agents", "sessions", "events", "facts")
    }

    def broken(self: Any, status: str) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(fork_module._Copy, "_reveal", broken)
    with pytest.raises(RuntimeError):
        fork_session(bench.path, session)
    assert {table: bench.query(f"SELECT count(*) FROM {table}") for table in counts} == counts


def counts_of(bench: Bench) -> dict[str, Any]:
    return {
        table: bench.query(f"SELECT count(*) FROM {table}")
        for table in (
            "sessions",
            "messages",
            "agents",
            "events",
            "facts",
            "plans",
            "outputs",
            "artifacts",
            "views",
        )
    }


def cut_after(bench: Bench, session: str, batches: int) -> str:
    """What `kill -9` leaves of a fork after so many of its transactions; returns its id."""
    with opened(bench.path) as connection:
        copy = fork_module._Copy(connection, session, None, 10, None, random_id, time.time)
        for batch in itertools.islice(copy.batches(), batches):
            for _ in batch:
                pass
    return copy.made.session_id


@pytest.mark.parametrize("batches", [1, 2, 3, 8, 15])
async def test_a_fork_that_was_killed_is_never_listed_but_named_and_removed(
    bench: Bench, batches: int
) -> None:
    """By the next fork, or by a prune, with what it rewrote of notes."""
    session = await ran(bench, Long(), window=12_000)
    before = counts_of(bench)
    assert artifacts.notes_of(database.open_readonly(bench.path), session)
    for next_one in (prune, fork_session):
        cut = cut_after(bench, session, batches)
        assert counts_of(bench) != before
        with opened(bench.path) as connection:
            assert [row.id for row in list_sessions(Queries(connection))] == [session]
            assert sessions.find(connection, "last") == session
            with pytest.raises(NotFound):
                sessions.find(connection, cut)
            assert unfinished_sessions(bench.path, connection) == (cut,)
            lease = Lease.acquire(bench.path, cut)  # while it is being made
            assert unfinished_sessions(bench.path, connection) == ()
            assert remove_unfinished(bench.path) == ()
            lease.release()
        made = next_one(bench.path, session)
        with opened(bench.path) as connection:
            assert unfinished_sessions(bench.path, connection) == ()
        if made is None:
            assert counts_of(bench) == before
        else:
            assert same_but_for_the_row(bench.path, session, made.session_id) == []
            assert bench.query("SELECT count(*) FROM sessions") == [(2,)]
    bench.assert_sound()


def prune(path: Path, session_id: str) -> None:
    prune_sessions(path, plan_prune(path))


async def test_a_fork_made_a_row_at_a_time_is_the_fork_made_in_one_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await ran(bench, Long(), window=12_000)
    middle = bench.query("SELECT max(seq) FROM events")[0][0] // 2
    for at_seq in (None, middle):
        made = []
        for rows in (1, 1_000_000):
            for name in ("FIRST_BATCH_ROWS", "LARGEST_BATCH_ROWS", "ROWS_AT_ONCE"):
                monkeypatch.setattr(fork_module, name, rows)
            monkeypatch.setitem(in_short_transactions.__kwdefaults__, "longest_seconds", rows / 1_000)
            monkeypatch.setattr(fork_module, "BATCH_CHARACTERS", 1 << 20 if rows == 1 else 1 << 60)
            progress: list[tuple[int, int]] = []
            fork = fork_session(
                bench.path, session, at_seq=at_seq, on_progress=lambda *far, to=progress: to.append(far)
            )
            made.append(fork.session_id)
            assert progress == sorted(progress)
            assert len(progress) > (200 if rows == 1 else 1)
            assert progress[-1][0] <= progress[-1][1]
        assert same_but_for_the_row(bench.path, *made) == []


async def test_a_fork_reads_and_rewrites_while_others_may_write(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction of it only inserts, so that hosts of other sessions wait for nothing else."""
    session = await ran(bench, Long(), window=12_000)
    held: list[str] = []
    for name in ("_rows", "_pages", "_rewritten"):
        real = getattr(fork_module._Copy, name)

        def noted(self: Any, *given: Any, name: str = name, real: Any = real) -> Any:
            if self._connection.in_transaction:
                held.append(name)
            return real(self, *given)

        monkeypatch.setattr(fork_module._Copy, name, noted)
    fork_session(bench.path, session)
    assert held == []


async def test_a_fork_of_a_session_that_was_continued_meanwhile_is_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its lease lapsed, since the server was away."""
    session = await ran(bench, script())
    before = counts_of(bench)

    def continued(done: int, rows: int) -> None:
        with opened(bench.path) as connection:
            connection.execute("UPDATE sessions SET lease_epoch = 77 WHERE id = ?", (session,))

    with pytest.raises(DrivenElsewhere, match="continued during the fork"):
        fork_session(bench.path, session, on_progress=continued)
    assert counts_of(bench) == before


async def test_a_fork_of_a_fork_is_a_copy_too(bench: Bench) -> None:
    session = await ran(bench, script())
    first = fork_session(bench.path, session)
    second = fork_session(bench.path, first.session_id, title="another way")
    assert same_but_for_the_row(bench.path, session, second.session_id) == []
    row = rows_of(bench.path, second.session_id)["sessions"][0]
    assert (row["title"], row["forked_from"]) == ("another way", first.session_id)
    prune_sessions(bench.path, plan_prune(bench.path, names=[session, first.session_id]))
    found = same_but_for_the_row(
        bench.path, second.session_id, fork_session(bench.path, second.session_id).session_id
    )
    assert found == []


async def test_a_fork_in_the_middle_of_compactions_can_be_carried_on(bench: Bench) -> None:
    session = await ran(bench, Long(), window=12_000)
    rows = rows_of(bench.path, session)
    applied = [row["seq"] for row in rows["events"] if row["kind"].startswith("compaction.")]
    for seq in applied[:: max(1, len(applied) // 5)]:
        made = fork_session(bench.path, session, at_seq=seq)
        bench.session = made.session_id
        bench.assert_sound()
        bench.model.script = Long()
        result = await asyncio.wait_for(bench.run(resume=True), 20)
        assert result.exit_code == 0
        bench.assert_sound()
        assert {one["status"] for one in rows_of(bench.path, made.session_id)["tasks"]} == {"done"}
