"""Pruning takes whole finished sessions and nothing else, in small steps, and says so before."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.core.library.conftest import OF_AGENT, OF_SESSION, add_session, put
from tests.core.library.test_fork import ran, script
from tests.core.runtime.conftest import Bench

from watchkeeper.records.errors import DrivenElsewhere, NotFound
from watchkeeper.store import database, driver
from watchkeeper.store.engine import index_of
from watchkeeper.store.fork import fork_session
from watchkeeper.store.lease import Lease, lock_path
from watchkeeper.store.library import delete_session, in_short_transactions, restore_session
from watchkeeper.store.prune import plan_prune, prune_sessions, vacuum

DAY = 86_400.0
NOW = 1_000 * DAY


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "watchkeeper.db"


def ids(plan: Any) -> list[str]:
    return sorted(one.id for one in plan.doomed)


def several(connection: Any) -> None:
    add_session(connection, "young234", last_active=NOW - DAY)
    add_session(connection, "oldone23", last_active=NOW - 40 * DAY)
    add_session(connection, "oldfail2", last_active=NOW - 50 * DAY, status="failed")
    add_session(connection, "oldpause", last_active=NOW - 60 * DAY, status="paused")
    add_session(connection, "olddead2", last_active=NOW - 60 * DAY, status="running")


def test_only_finished_sessions_that_meet_every_condition_go(connection: Any, path: Path) -> None:
    several(connection)
    assert ids(plan_prune(path, now=NOW)) == []
    assert ids(plan_prune(path, older_than_seconds=30 * DAY, now=NOW)) == ["oldfail2", "oldone23"]
    assert ids(plan_prune(path, older_than_seconds=45 * DAY, now=NOW)) == ["oldfail2"]
    assert ids(plan_prune(path, keep=0, now=NOW)) == ["oldfail2", "oldone23", "young234"]
    assert ids(plan_prune(path, keep=2, now=NOW)) == ["oldfail2"]
    assert ids(plan_prune(path, names=["oldpause"], now=NOW)) == ["oldpause"]
    put(connection, "messages", agent_id="oldone23-a", seq=2, role="user", content='"' + "x" * 50_000 + '"', tokens=1, total_tokens=1, created_at=1.0)  # fmt: skip
    assert ids(plan_prune(path, larger_than_bytes=40_000, now=NOW)) == ["oldone23"]
    assert ids(plan_prune(path, larger_than_bytes=40_000, older_than_seconds=45 * DAY, now=NOW)) == []
    (one,) = plan_prune(path, larger_than_bytes=40_000, now=NOW).doomed
    assert 50_000 < one.bytes < 60_000
    with pytest.raises(NotFound):
        plan_prune(path, names=["nothing2"])


def test_a_plan_changes_nothing(connection: Any, path: Path) -> None:
    several(connection)
    before = connection.execute("PRAGMA data_version").fetchone(), connection.total_changes
    plan_prune(path, older_than_seconds=0, now=NOW)
    assert (connection.execute("PRAGMA data_version").fetchone(), connection.total_changes) == before


def test_a_live_session_is_never_pruned(connection: Any, path: Path) -> None:
    several(connection)
    plan = plan_prune(path, keep=0, now=NOW)
    lease = Lease.acquire(path, "oldone23")
    assert ids(plan_prune(path, keep=0, now=NOW)) == ["oldfail2", "young234"]
    with pytest.raises(DrivenElsewhere):
        plan_prune(path, names=["oldone23"])
    done = prune_sessions(path, plan)
    assert sorted(done.sessions) == ["oldfail2", "young234"]
    assert "oldone23" in done.refused[0]
    lease.release()
    left = [row[0] for row in connection.execute("SELECT id FROM sessions ORDER BY id")]
    assert left == ["olddead2", "oldone23", "oldpause"]


async def test_nothing_of_a_pruned_session_stays_and_nothing_of_another_goes(bench: Bench) -> None:
    session = await ran(bench, script())
    other = fork_session(bench.path, session).session_id
    writer = database.open_writable(bench.path)
    assert index_of(writer).index_until(seconds=10)
    kept = {table: bench.query(f"SELECT * FROM {table} WHERE session_id = ?", other) for table in OF_SESSION}
    of_agent = {
        table: bench.query(
            f"SELECT * FROM {table} WHERE agent_id IN (SELECT id FROM agents WHERE session_id = ?)", other
        )
        for table in OF_AGENT
    }
    named = {row[0] for row in bench.query("SELECT digest FROM outputs WHERE session_id = ?", session)}

    def count(table: str, where: str) -> int:
        return int(bench.query(f"SELECT count(*) FROM {table} WHERE {where}")[0][0])

    words = count("messages_fts", "messages_fts MATCH 'numbers'")
    lock = lock_path(bench.path, session)
    assert lock.exists()
    prune_sessions(bench.path, plan_prune(bench.path, names=[session]))
    writer.close()
    for table in OF_SESSION:
        assert bench.query(f"SELECT * FROM {table} WHERE session_id = ?", other) == kept[table], table
    for table, rows in of_agent.items():
        assert (
            bench.query(
                f"SELECT * FROM {table} WHERE agent_id IN (SELECT id FROM agents WHERE session_id = ?)", other
            )
            == rows
        ), table
    for (table,) in bench.query("SELECT name FROM sqlite_master WHERE type = 'table'"):
        if "session_id" in {row[1] for row in bench.query(f"SELECT * FROM pragma_table_info('{table}')")}:
            assert count(table, f"session_id = '{session}'") == 0, table
    for table, column, owners in (
        *((table, "agent_id", "agents") for table in OF_AGENT),
        ("plan_revisions", "plan_id", "plans"),
        ("task_dependencies", "task_id", "tasks"),
    ):
        assert count(table, f"{column} NOT IN (SELECT id FROM {owners})") == 0, table
    assert count("facts_fts", "facts_fts MATCH 'numbers'") == 3
    assert count("messages_fts", "messages_fts MATCH 'numbers'") == words // 2
    assert not lock.exists()
    bench.session = other
    bench.assert_sound()
    # Artifacts go with the last session that refers to them.
    left = {row[0] for row in bench.query("SELECT digest FROM artifacts")}
    tables = ("inbox", "handoffs", "memory_snapshots", "tasks")
    text = str([bench.query(f"SELECT * FROM {table}") for table in tables])
    assert set(re.findall(r"sha256/([0-9a-f]{64})", text)) | named <= left
    done = prune_sessions(bench.path, plan_prune(bench.path, names=[other]))
    assert (count("artifacts", "1"), done.artifacts) == (0, len(left))


def test_a_deleted_session_goes_for_good_when_its_window_is_over(connection: Any, path: Path) -> None:
    add_session(connection, "abcd2345")
    add_session(connection, "efgh2345")
    delete_session(path, "abcd2345", now=NOW - 6 * DAY)
    delete_session(path, "efgh2345", now=NOW - 8 * DAY)
    plan = plan_prune(path, now=NOW)
    assert ids(plan) == ["efgh2345"]
    prune_sessions(path, plan)
    restore_session(path, "abcd2345")
    with pytest.raises(NotFound):
        restore_session(path, "efgh2345")


def test_a_prune_that_was_stopped_is_finished_by_the_next(connection: Any, path: Path) -> None:
    from watchkeeper.store.prune import purge_rows

    add_session(connection, "abcd2345")
    rows = purge_rows(connection, "abcd2345")
    next(rows)
    next(rows)
    with pytest.raises(NotFound, match="permanently deleted"):
        restore_session(path, "abcd2345")
    assert ids(plan_prune(path)) == ["abcd2345"]
    assert plan_prune(path).doomed[0].why == "left over from an interrupted fork, import or prune"
    prune_sessions(path, plan_prune(path))
    assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)


def test_a_large_prune_leaves_the_lock_to_others_again_and_again(connection: Any, path: Path) -> None:
    add_session(connection, "abcd2345", last_active=NOW - DAY)
    connection.execute("BEGIN")
    for seq in range(2, 4_000):
        put(connection, "messages", agent_id="abcd2345-a", seq=seq, role="user", content='"' + "x" * 400 + '"', tokens=1, total_tokens=seq, created_at=1.0)  # fmt: skip
    connection.execute("COMMIT")
    waits: list[float] = []
    over = threading.Event()

    def host() -> None:
        mine = database.open_writable(path, check_same_thread=False)
        while not over.is_set():
            began = time.monotonic()
            driver.begin_immediate(mine)
            mine.execute("COMMIT")
            waits.append(time.monotonic() - began)
            time.sleep(0.002)
        mine.close()

    thread = threading.Thread(target=host)
    thread.start()
    done = prune_sessions(path, plan_prune(path, names=["abcd2345"]))
    over.set()
    thread.join()
    assert done.transactions > 1
    assert len(waits) >= done.transactions // 2
    assert sorted(waits)[len(waits) * 9 // 10] < 0.5


def test_a_transaction_ends_when_its_time_is_over_and_keeps_what_came_before_a_failure(connection):
    connection.execute("CREATE TABLE t (n)")
    clock = iter(range(1000))

    def work() -> Any:
        for number in range(10):
            connection.execute("INSERT INTO t VALUES (?)", (number,))
            yield
        raise ValueError("no more")

    slept: list[float] = []
    with pytest.raises(ValueError, match="no more"):
        in_short_transactions(
            connection, work(), longest_seconds=3, monotonic=lambda: next(clock), sleep=slept.append
        )
    assert connection.execute("SELECT count(*) FROM t").fetchone()[0] >= 6
    assert len(slept) >= 2
    assert not connection.in_transaction


def test_vacuum_gives_room_back_unless_a_host_is_live(connection: Any, path: Path) -> None:
    add_session(connection, "abcd2345")
    add_session(connection, "efgh2345")
    connection.execute("BEGIN")
    for seq in range(2, 600):
        filler = hashlib.sha256(str(seq).encode()).hexdigest() * 20
        put(connection, "messages", agent_id="abcd2345-a", seq=seq, role="user", content=f'"{filler}"', tokens=1, total_tokens=seq, created_at=1.0)  # fmt: skip
    connection.execute("COMMIT")
    prune_sessions(path, plan_prune(path, names=["abcd2345"]))
    lease = Lease.acquire(path, "efgh2345")
    with pytest.raises(DrivenElsewhere, match="not vacuumed: session efgh2345 is running"):
        vacuum(path)
    lease.release()
    before, after = vacuum(path)
    assert after < before - 500_000
    assert path.stat().st_size == after
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
