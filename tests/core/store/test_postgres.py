"""The store on PostgreSQL: what only a server can do to it. What both databases promise is tested on both (`ON_BOTH`)."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.core.store.conftest import run
from tests.core.store.test_portable_sql import CORE, IS_SQL, OF_SQLITE, texts
from tests.support.agent_rows import create_agent
from tests.support.places import workspace_in
from tests.support.postgres import ScratchServer, on_server, programs
from tests.support.proxy import Proxy

from watchkeeper.records.errors import DrivenElsewhere, LeaseLost, StoreUnusable
from watchkeeper.records.messages import Message
from watchkeeper.records.ports import SystemClock
from watchkeeper.runtime.control import submit
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.store import database, driver, external, messages, postgres
from watchkeeper.store.change_feed import ChangeFeed
from watchkeeper.store.fork import fork_session
from watchkeeper.store.lease import Lease, LeaseHolder, Presence, is_watched, probe, probe_all
from watchkeeper.store.library import delete_session, in_short_transactions, outlast, restore_session
from watchkeeper.store.place import DatabaseUrl, place_of
from watchkeeper.store.postgres import (
    EXPECTING_FENCE,
    LEASE_HOLDER,
    LEASE_LEFT,
    FenceFailed,
    ask_ahead,
    pipelined,
    translated,
)
from watchkeeper.store.prune import plan_prune, prune_sessions, unfinished_sessions
from watchkeeper.store.snapshot import FleetReader, SessionSnapshotReader
from watchkeeper.store.transaction import SessionStore, Transaction
from watchkeeper.store.writer import Group, Writer
from watchkeeper_tui.reader import Reader
from watchkeeper_tui.snapshot import Snapshot


@pytest.fixture
def proxy(postgres_place: DatabaseUrl) -> Iterator[Proxy]:
    parts = urlsplit(postgres_place.dsn)
    made = Proxy((parts.hostname or "127.0.0.1", parts.port or 5432))
    yield made
    made.close()


@pytest.fixture
def far(postgres_place: DatabaseUrl, proxy: Proxy) -> DatabaseUrl:
    """The database, through the proxy."""
    parts = urlsplit(postgres_place.dsn)
    user = f"{parts.username}@" if parts.username else ""
    place = place_of(f"postgresql://{user}127.0.0.1:{proxy.port}{parts.path}")
    assert isinstance(place, DatabaseUrl)
    return place


def claimed(place: DatabaseUrl, folder: Path) -> SessionStore:
    session_id = create_session(place, NewSession("goal", workspace_in(folder), "test/model"))
    return SessionStore.claim(place, session_id, SystemClock(), pid=1, host_name="elsewhere")


def numbers(place: DatabaseUrl, session_id: str) -> list[tuple[int, int | None]]:
    """Each event, with the number that its commit wrote into it."""
    with closing(database.open_readonly(place)) as connection:
        rows = connection.execute(
            "SELECT seq, data FROM events WHERE session_id = ? ORDER BY seq", (session_id,)
        )
        return [(seq, json.loads(data).get("number")) for seq, data in rows.fetchall()]


@pytest.mark.parametrize("seed", range(3))
async def test_cut_connections_lose_no_acknowledged_commit_and_repeat_none(
    seed: int, far: DatabaseUrl, proxy: Proxy, postgres_place: DatabaseUrl, tmp_path: Path
) -> None:
    store, chance = claimed(far, tmp_path), random.Random(seed)
    acknowledged: dict[int, int] = {}

    async def agent(first: int) -> None:
        for number in range(first, first + 40):
            seq = await store.commit(lambda tx, number=number: tx.event("counted", number=number))
            acknowledged[seq] = number
            if chance.random() < 0.05:
                asyncio.get_running_loop().call_later(chance.uniform(0, 0.004), proxy.cut)

    await asyncio.gather(*(agent(100 * worker) for worker in range(4)))
    found = numbers(postgres_place, store.session_id)
    store.close()
    assert [seq for seq, _ in found] == list(range(1, len(found) + 1))
    written = [number for _, number in found if number is not None]
    assert sorted(written) == sorted(acknowledged.values())
    assert all(dict(found)[seq] == number for seq, number in acknowledged.items())


async def test_a_batch_beside_one_that_fails_is_made_once_though_its_connection_is_lost(
    far: DatabaseUrl, proxy: Proxy, postgres_place: DatabaseUrl, tmp_path: Path
) -> None:
    store, held, times = claimed(far, tmp_path), threading.Event(), iter(range(9))

    def fails(tx: Transaction) -> None:
        raise ValueError("no")

    def cuts(tx: Transaction) -> int:
        if next(times) == 0:
            proxy.cut()
        return tx.event("counted", number=1)

    waiting = [asyncio.ensure_future(store.commit(batch)) for batch in (lambda _: held.wait(10), fails, cuts)]
    await asyncio.sleep(0)
    held.set()
    _, failed, seq = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(failed, ValueError)
    store.close()
    assert numbers(postgres_place, store.session_id)[-1] == (seq, 1)
    assert next(times) == 2


@pytest.mark.parametrize("loses", ["requests", "answers"])
async def test_a_first_commit_whose_answer_never_came_is_found_or_made_once(
    loses: str, far: DatabaseUrl, proxy: Proxy, postgres_place: DatabaseUrl, tmp_path: Path
) -> None:
    store, times = claimed(far, tmp_path), iter(range(9))

    def batch(tx: Transaction) -> int:
        seq = tx.event("counted", number=1)
        if next(times) == 0:
            proxy.loses = loses  # the fence is answered, its COMMIT or the answer to it is lost
        return seq

    waiting = asyncio.ensure_future(store.commit(batch))
    assert await asyncio.to_thread(proxy.has_lost.wait, 10)
    proxy.loses = ""
    proxy.cut()
    seq = await waiting
    assert postgres.is_lost(store.writer.connection) is False
    store.close()
    assert postgres.is_lost(store.writer.connection), "nothing of it is left on the server"
    assert [one for one in numbers(postgres_place, store.session_id) if one[1]] == [(seq, 1)]
    assert next(times) == (2 if loses == "requests" else 1)


@pytest.mark.parametrize("loses", ["requests", "answers"])
async def test_a_commit_whose_answer_never_came_is_found_or_made_once(
    loses: str, far: DatabaseUrl, proxy: Proxy, postgres_place: DatabaseUrl, tmp_path: Path
) -> None:
    store = claimed(far, tmp_path)
    known = await store.commit(lambda tx: tx.event("before", number=0))
    proxy.loses = loses
    waiting = [
        asyncio.ensure_future(store.commit(lambda tx, number=number: tx.event("counted", number=number)))
        for number in (1, 2)
    ]
    assert await asyncio.to_thread(proxy.has_lost.wait, 10)
    proxy.loses = ""
    proxy.cut()
    assert await asyncio.gather(*waiting) == [known + 1, known + 2]
    store.close()
    assert numbers(postgres_place, store.session_id)[-3:] == [(known, 0), (known + 1, 1), (known + 2, 2)]


async def test_a_step_commits_in_one_round_trip(far: DatabaseUrl, proxy: Proxy, tmp_path: Path) -> None:
    store = claimed(far, tmp_path)
    for number in range(8):  # statements are prepared, and ids reserved
        await store.commit(lambda tx, number=number: _step(tx, number))
    before = proxy.round_trips
    for number in range(8, 18):
        await store.commit(lambda tx, number=number: _step(tx, number))
    assert proxy.round_trips - before == 10
    store.close()


def test_a_reading_of_the_dashboard_takes_two_round_trips_and_all_leases_one(far, proxy, tmp_path):
    stores = [claimed(far, tmp_path / name) for name in "ab"]
    ids = {store.session_id for store in stores}
    with closing(database.open_readonly(far)) as connection:
        fold, outside, moment = SessionSnapshotReader(stores[0].session_id), external.ExternalReader(far), 6.0

        def read() -> None:
            asked = (LEASE_HOLDER, (stores[0].session_id,))
            ask_ahead(connection, [*outside.asked(moment), asked])
            outside.read(connection, moment)
            assert probe(far, stores[0].session_id, connection) is not None
            connection.execute("BEGIN")
            assert fold.read(connection, moment) is not None
            connection.execute("COMMIT")  # is sent, and waited for by nobody

        for _ in range(3):
            read()
        taken = []
        # On a slow machine, the answer to the last COMMIT may arrive after the next request.
        for _ in range(5):
            before = proxy.round_trips
            read()
            taken.append(proxy.round_trips - before)
        assert min(taken) <= 3, taken
        assert probe_all(far, []) == {}
        for _ in range(3):
            assert probe_all(far, ids) == dict.fromkeys(ids, LeaseHolder(1, "elsewhere"))
        before = proxy.round_trips
        probe_all(far, ids)
        assert proxy.round_trips - before == 1
        proxy.cut()
        read()  # a lost connection is opened again
    for store in stores:
        store.close()


def test_a_reading_of_the_dashboard_with_one_agent_takes_three_round_trips(far, proxy, tmp_path):
    store = claimed(far, tmp_path)
    run(
        store,
        lambda tx: create_agent(
            tx, "a1", name="a1", role="explorer", model="test/model", current_goal="g",
            context_limit=9000,
        ),
    )  # fmt: skip

    def said(tx: Transaction, number: int) -> None:
        _step(tx, number)
        tx.execute("UPDATE agents SET last_seq = ? WHERE id = 'a1'", (number,))

    run(store, lambda tx: said(tx, 1))
    read: list[Snapshot] = []
    taken: list[int] = []
    reader = Reader(far, store.session_id, read.append)
    reader.look_at("a1")
    for number in range(2, 6):
        reader._read(True)
        run(store, lambda tx, number=number: said(tx, number))
        before = proxy.round_trips
        reader._read(True)
        taken.append(proxy.round_trips - before)
    assert read[-1].detail is not None
    assert read[-1].detail.transcript[-1].seq == 5
    assert min(taken) <= 3, taken
    reader.close()
    store.close()


def _step(tx: Transaction, number: int) -> None:
    messages.add_messages(tx, "a1", [Message(number, "user", "text", 1, 1, tx.now)])
    tx.event("said", message=number)


@pytest.mark.parametrize(
    "change", ["lease_epoch = lease_epoch + 1", "event_seq = event_seq + 1", "lease_until = lease_until - 6"]
)
def test_what_a_host_sent_arrives_too_late_to_be_written(postgres_place, tmp_path, change):
    store = claimed(postgres_place, tmp_path)
    run(store, lambda tx: tx.event("before"))
    seq = store.one("SELECT event_seq FROM sessions")[0]
    with closing(database.open_writable(postgres_place)) as connection:
        fence = (EXPECTING_FENCE, (1.0, store.session_id, store.epoch, seq))
        connection.execute(*fence)
        connection.execute(f"UPDATE sessions SET {change}")
        with pytest.raises(FenceFailed), pipelined(connection):
            connection.execute(*fence)
    store.close()


async def test_a_host_that_reaches_no_server_gives_up_before_its_lease_ends_and_writes_nothing_after(
    far: DatabaseUrl,
    proxy: Proxy,
    postgres_place: DatabaseUrl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WATCHKEEPER_LEASE_SECONDS", "3")
    store = claimed(far, tmp_path)
    await store.commit(lambda tx: tx.event("before"))
    proxy.silent.set()
    with pytest.raises(LeaseLost, match="will stop before its lease expires"):
        await store.commit(lambda tx: tx.event("late", number=1))
    assert probe(postgres_place, store.session_id) is not None  # the lease holds still
    proxy.silent.clear()
    with pytest.raises(LeaseLost):
        await store.commit(lambda tx: tx.event("late", number=2))
    store.close()
    assert [number for _, number in numbers(postgres_place, store.session_id)] == [None]


async def test_a_writer_that_gives_up_fails_at_once_what_waits_for_a_silent_server(far, proxy, tmp_path):
    store, asks = claimed(far, tmp_path), threading.Event()
    await store.commit(lambda tx: tx.event("before"))

    def batch(group: Group) -> None:
        asks.set()
        group.connection.execute("SELECT 1").fetchone()

    proxy.silent.set()
    waiting = store.writer.submit(batch)
    assert asks.wait(10)
    store.writer.give_up()
    with pytest.raises(StoreUnusable):
        waiting.result(5)
    proxy.silent.clear()
    store.close()


def test_one_host_has_a_session_until_its_lease_is_over_and_then_never_again(postgres_place, tmp_path):
    first = claimed(postgres_place, tmp_path)
    session_id = first.session_id
    run(first, lambda tx: tx.event("first"))
    with pytest.raises(DrivenElsewhere, match="pid 1 on elsewhere"):
        SessionStore.claim(postgres_place, session_id, SystemClock(), pid=2, host_name="h")
    with closing(database.open_writable(postgres_place)) as connection:
        connection.execute("UPDATE sessions SET lease_until = 1")  # its time is over
    assert probe(postgres_place, session_id) is None
    second = SessionStore.claim(postgres_place, session_id, SystemClock(), pid=2, host_name="h")
    assert second.epoch == first.epoch + 1
    with pytest.raises(LeaseLost):
        run(first, lambda tx: tx.event("zombie"))
    first.close()
    assert probe(postgres_place, session_id) is not None  # what it gives up is not its any more
    run(second, lambda tx: tx.event("second"))
    second.close()
    assert probe(postgres_place, session_id) is None


def test_a_session_that_was_deleted_or_made_by_a_fork_is_free_at_once(postgres_place, tmp_path):
    session_id = create_session(postgres_place, NewSession("goal", workspace_in(tmp_path), "test/model"))
    delete_session(postgres_place, session_id)
    assert probe(postgres_place, session_id) is None
    restore_session(postgres_place, session_id)
    fork = fork_session(postgres_place, session_id).session_id
    assert probe(postgres_place, fork) is None


def test_a_fork_takes_a_round_trip_for_many_rows(
    far: DatabaseUrl, proxy: Proxy, postgres_place: DatabaseUrl, tmp_path: Path
) -> None:
    store = claimed(postgres_place, tmp_path)
    run(store, lambda tx: [tx.event("counted", number=number) for number in range(1_000)])
    store.close()
    before = proxy.round_trips
    fork = fork_session(far, store.session_id).session_id
    assert proxy.round_trips - before < 200
    assert len(numbers(postgres_place, fork)) == 1_001


def test_what_a_killed_fork_left_is_removed_before_its_lease_lapses(
    postgres_place: DatabaseUrl, tmp_path: Path
) -> None:
    session_id = create_session(postgres_place, NewSession("goal", workspace_in(tmp_path), "test/model"))
    fork = f"""
import os
from watchkeeper.store.fork import fork_session
from watchkeeper.store.place import place_of
fork_session(place_of({postgres_place.dsn!r}), {session_id!r}, on_progress=lambda done, rows: os.kill(os.getpid(), 9))
"""
    assert subprocess.run([sys.executable, "-c", fork], check=False).returncode == -signal.SIGKILL
    with closing(database.open_readonly(postgres_place)) as connection:
        (left,) = unfinished_sessions(postgres_place, connection)
        assert connection.execute(LEASE_LEFT, (left,)).fetchone()[1] > 0
        made = fork_session(postgres_place, session_id).session_id
        found = connection.execute("SELECT id FROM sessions WHERE id <> ?", (session_id,)).fetchall()
        assert [row[0] for row in found] == [made]


def test_a_host_of_this_machine_that_was_killed_goes_on_with_nothing(postgres_place, tmp_path):
    session_id = create_session(postgres_place, NewSession("goal", workspace_in(tmp_path), "test/model"))
    with subprocess.Popen(["true"]) as killed:
        killed.wait()
    with closing(database.open_writable(postgres_place)) as connection:
        connection.execute(
            "UPDATE sessions SET host_pid = ?, host_name = ?, lease_until = extract(epoch FROM now()) + 1 WHERE id = ?",
            (killed.pid, socket.gethostname(), session_id),
        )
    waited_for: list[object] = []
    assert (outlast(postgres_place, session_id, waited_for.append), waited_for) == (None, [])


def test_small_sessions_are_pruned_in_transactions_that_end_before_their_leases(
    postgres_place: DatabaseUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(in_short_transactions.__kwdefaults__, "longest_seconds", 60.0)
    wanted = NewSession("goal", workspace_in(tmp_path), "test/model")
    small = [create_session(postgres_place, wanted) for _ in range(2)]
    pruned = prune_sessions(postgres_place, plan_prune(postgres_place, names=small))
    assert (sorted(pruned.sessions), pruned.refused) == (sorted(small), ())


@pytest.mark.parametrize("of_host", [False, True])
def test_a_lease_is_extended_until_it_is_given_up_though_its_holder_commits_nothing(
    of_host: bool, postgres_place: DatabaseUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a host does not while it starts, or reads a large session."""
    monkeypatch.setenv("WATCHKEEPER_LEASE_SECONDS", "1")
    until = "SELECT lease_until FROM sessions"
    if of_host:
        store = claimed(postgres_place, tmp_path)
        session_id, release = store.session_id, store.close
    else:
        session_id = create_session(postgres_place, NewSession("goal", workspace_in(tmp_path), "test/model"))
        release = Lease.acquire(postgres_place, session_id).release
    with closing(database.open_readonly(postgres_place)) as connection:
        taken = extended = connection.execute(until).fetchone()[0]
        feed = ChangeFeed(postgres_place)
        while extended == taken and feed.wait(5):
            extended = connection.execute(until).fetchone()[0]
        feed.close()
        assert extended > taken
        assert probe(postgres_place, session_id) is not None
        release()
        assert connection.execute(until).fetchone()[0] is None


def test_a_viewer_is_known_while_its_connection_lives(postgres_place: DatabaseUrl) -> None:
    for session_id in ("one", "häß"):
        assert not is_watched(postgres_place, session_id)
        viewer = Presence(postgres_place, session_id)
        assert is_watched(postgres_place, session_id)
        viewer.close()
        assert not is_watched(postgres_place, session_id)


def test_a_role_that_may_only_read_sees_everything_and_is_told_what_it_may_not(
    postgres_place: DatabaseUrl, postgres_server: str, tmp_path: Path
) -> None:
    store = claimed(postgres_place, tmp_path)
    role = f"viewer_{random.randrange(10**9)}"
    parts = urlsplit(postgres_place.dsn)
    on_server(
        postgres_place.dsn,
        f"CREATE ROLE {role} LOGIN",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
    )
    viewer = place_of(f"postgresql://{role}@{parts.hostname}:{parts.port}{parts.path}")
    try:
        with closing(database.open_readonly(viewer)) as connection:
            assert connection.execute("SELECT count(*) FROM sessions").fetchone()[0] == 1
        with pytest.raises(StoreUnusable, match="is read-only"):
            submit(viewer, store.session_id, "pause")
    finally:
        store.close()
        on_server(postgres_place.dsn, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_texts_that_the_server_cannot_hold_are_kept_without_what_it_cannot(postgres_place, tmp_path):
    store = claimed(postgres_place, tmp_path)
    hostile = "a\x00b\ud800c'; DROP TABLE events; -- $1 ? \\ \u202e"
    await store.commit(lambda tx: tx.execute("UPDATE sessions SET title = ?", (hostile,)))
    await store.commit(lambda tx: tx.event("said", text=hostile))
    kept = store.one("SELECT title FROM sessions")["title"]
    assert kept == hostile.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    rows = store.all(
        f"SELECT title FROM sessions WHERE title {driver.IN_LIST}", (driver.list_of([kept, '"x"', "{}"]),)
    )
    assert [row[0] for row in rows] == [kept]
    said = store.one("SELECT data FROM events WHERE kind = 'said'")["data"]
    assert json.loads(said)["text"] == hostile
    store.close()


def test_every_statement_of_core_that_is_written_whole_is_prepared(postgres_place: DatabaseUrl) -> None:
    import psycopg

    whole = re.compile(r"\s*(SELECT|INSERT INTO|UPDATE \w+ SET|DELETE FROM|WITH)\b")
    of_sqlite = re.compile(r"\{|vec_distance|_fts\b|pragma_|FROM session ")
    refused, count = [], 0
    with psycopg.connect(postgres_place.dsn, autocommit=True) as connection:
        for path in sorted(CORE.rglob("*.py")):
            source = path.read_text("utf-8")
            if path.relative_to(CORE).as_posix() in OF_SQLITE or "SELECT" not in source:
                continue
            for text in texts(ast.parse(source), whole=True):
                if not (IS_SQL.search(text) and whole.match(text)) or of_sqlite.search(text):
                    continue
                count += 1
                try:
                    connection.execute(f"PREPARE one AS {translated(text)}")  # type: ignore[call-overload]
                    connection.execute("DEALLOCATE one")
                except psycopg.Error as error:
                    refused.append((path.name, text[:100], str(error).splitlines()[0]))
    assert refused == []
    assert count > 150


def test_the_fleet_and_the_sessions_of_other_terminals_are_read(postgres_place: DatabaseUrl) -> None:
    state = external.SessionState("claude-code", "s1", "idX", 4, "/f", "/t", "waiting", "permission", {}, 5.0)
    asked = external.ExternalQuestion(
        "a" * 32, "claude-code", "s1", "idX", 4, "", "Bash", {"command": "x"}, "waiting", {}, "", "", 2.0
    )
    writer = Writer(postgres_place)
    writer.submit(lambda group: external.save_states(group.connection, [state])).result()
    writer.submit(lambda group: external.add_question(group.connection, asked)).result()
    writer.close()
    with closing(database.open_readonly(postgres_place)) as connection:
        reader = external.ExternalReader(postgres_place, probe=lambda place: True)
        found = reader.read(connection, 6.0)
        assert ([each.session_id for each in found.sessions], found.questions) == (["idX"], (asked,))
        assert reader.read(connection, 6.0) is found
        assert external.load_external_question(connection, asked.id) == asked
        assert FleetReader().read(connection, 6.0, ["idX"]) == ()


@pytest.fixture
def own_server() -> Iterator[ScratchServer]:
    """A server that was started, so that its port is known, and is stopped; a test starts it again."""
    binaries = programs()
    if binaries is None:
        pytest.skip("no PostgreSQL is installed here")
    server = ScratchServer(binaries)
    try:
        server.start()
        on_server(server.url, "CREATE ROLE guest LOGIN PASSWORD 'right'")
        access = server.data / "pg_hba.conf"
        access.write_text("host all guest 127.0.0.1/32 scram-sha-256\n" + access.read_text())
        server.stop(signal.SIGINT)
        yield server
    finally:
        server.remove()


def test_a_server_that_is_down_is_awaited_with_one_line_and_one_that_refuses_is_not(
    own_server: ScratchServer,
) -> None:
    lines: list[str] = []

    def started(line: str) -> None:
        lines.append(line)
        own_server.start()

    place = place_of(own_server.url)
    database.await_server(place, started)
    database.await_server(place, lines.append)
    assert len(lines) == 1
    assert lines[0].startswith(f"waiting for {place}, which is not responding: ")
    for refused, reason in (
        ("//wk@", "database .nothing. does not exist"),
        ("//nobody@", "role .nobody. does not exist"),
        ("//guest:wrong@", "the server rejected the user name or password; correct them"),
    ):
        address = own_server.url.replace("//wk@", refused)
        if refused == "//wk@":
            address = address.replace("/postgres", "/nothing")
        with pytest.raises(StoreUnusable, match=reason) as said:
            database.await_server(place_of(address), lines.append)
        assert "wrong" not in str(said.value)
    assert len(lines) == 1


def test_a_worker_that_starts_before_the_server_waits_and_goes_on_when_it_answers(
    own_server: ScratchServer, tmp_path: Path
) -> None:
    environment = os.environ | {"WATCHKEEPER_DB": own_server.url, "WATCHKEEPER_CONFIG_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "watchkeeper", "worker"]
    for number, code in ((signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130), (None, 0)):
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as worker:
            assert worker.stdout is not None
            assert worker.stderr is not None
            assert worker.stderr.readline().startswith(f"wk: waiting for {own_server.url}, which is not")
            if number is None:
                own_server.start()
                assert worker.stdout.readline().startswith("worker w-")
            worker.send_signal(number or signal.SIGTERM)
            assert worker.wait(60) == code
