"""The writer: group commit, acknowledgement, and batches that never harm their neighbours."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchkeeper.records.errors import BadInput, StoreUnusable
from watchkeeper.store import database, driver
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.writer import Group, Writer


def note(value: Any) -> Any:
    def batch(group: Group) -> Any:
        group.connection.execute("INSERT INTO notes VALUES (?)", (value,))
        return value

    return batch


def notes(connection: Any) -> list[Any]:
    return [row[0] for row in connection.execute("SELECT value FROM notes ORDER BY rowid")]


class Gate:
    """A batch that holds the writer until opened, so that what is queued meanwhile forms one group."""

    def __init__(self, writer: Writer) -> None:
        self._entered, self._open = threading.Event(), threading.Event()
        self._done = writer.submit(self._wait)
        assert self._entered.wait(10)

    def _wait(self, group: Group) -> None:
        self._entered.set()
        assert self._open.wait(10)

    def open(self) -> None:
        self._open.set()
        self._done.result(10)


def test_batches_queued_together_share_one_commit(writer: Writer, other: Any) -> None:
    gate = Gate(writer)
    waiting = [writer.submit(note(number)) for number in range(40)]
    before = writer.commits
    gate.open()
    assert [one.result(10) for one in waiting] == list(range(40))
    assert writer.commits == before + 2  # the gate's and the group's
    assert notes(other) == list(range(40))


def test_what_comes_while_the_lock_is_waited_for_shares_the_commit(path, writer, other, monkeypatch):
    real, asked, go = driver.begin_immediate, threading.Event(), threading.Event()

    def held_up(connection: Any, **about: Any) -> None:
        asked.set()
        assert go.wait(10)
        real(connection, **about)

    monkeypatch.setattr(driver, "begin_immediate", held_up)
    before = writer.commits
    first = writer.submit(note(0))
    assert asked.wait(10)
    waiting = [first, *(writer.submit(note(number)) for number in range(1, 10))]
    go.set()
    assert [one.result(10) for one in waiting] == list(range(10))
    assert writer.commits == before + 1
    assert notes(other) == list(range(10))


async def test_whoever_a_person_waits_for_asks_for_the_lock_more_often_than_others_do(
    path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a command waits for the transaction that is under way, and not for its turn among busy hosts."""
    asked: list[tuple[float, float]] = []
    holder = sqlite3.connect(str(path), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    enough = {driver.ASK_SECONDS: threading.Event(), driver.URGENT_ASK_SECONDS: threading.Event()}

    def uniform(least: float, most: float) -> float:
        asked.append((least, most))
        enough[least, most].set()
        return least

    monkeypatch.setattr(random, "uniform", uniform)
    plain = asyncio.ensure_future(writer.commit(note("a step")))
    assert await asyncio.to_thread(enough[driver.ASK_SECONDS].wait, 10)
    urgent = asyncio.ensure_future(writer.commit(note("a command"), urgent=True))
    assert await asyncio.to_thread(enough[driver.URGENT_ASK_SECONDS].wait, 10)
    holder.execute("ROLLBACK")
    before = writer.commits
    assert await asyncio.gather(plain, urgent) == ["a step", "a command"]
    assert writer.commits == before + 1
    assert asked[0] == driver.ASK_SECONDS
    assert asked[-1] == driver.URGENT_ASK_SECONDS
    assert max(driver.URGENT_ASK_SECONDS) <= min(driver.ASK_SECONDS)
    holder.close()


def test_what_is_acknowledged_is_seen_by_every_other_connection(writer: Writer, other: Any) -> None:
    for number in range(20):
        writer.submit(note(number)).result(10)
        assert notes(other)[-1] == number


def test_nobody_is_told_done_before_the_commit(writer: Writer, other: Any) -> None:
    gate = Gate(writer)
    first = writer.submit(note(1))
    second_gate = threading.Event()
    inside = threading.Event()

    def slow(group: Group) -> None:
        inside.set()
        assert second_gate.wait(10)

    slow_one = writer.submit(slow)
    gate.open()
    assert inside.wait(10)  # `first` has run, in the same group, and is not committed
    assert not first.done()
    assert notes(other) == []
    second_gate.set()
    slow_one.result(10)
    assert first.result(10) == 1
    assert notes(other) == [1]


def test_one_bad_batch_never_harms_its_neighbours(writer: Writer, other: Any) -> None:
    gate = Gate(writer)

    def bad(group: Group) -> None:
        group.connection.execute("INSERT INTO notes VALUES ('half done')")
        raise BadInput("no")

    before, failing, after = writer.submit(note("before")), writer.submit(bad), writer.submit(note("after"))
    gate.open()
    assert (before.result(10), after.result(10)) == ("before", "after")
    with pytest.raises(BadInput, match="no"):
        failing.result(10)
    assert notes(other) == ["before", "after"]


def test_a_batch_that_ends_the_transaction_by_itself_leaves_the_writer_usable(writer, other):
    def disloyal(group: Group) -> None:
        group.connection.execute("ROLLBACK")
        raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        writer.submit(disloyal).result(10)
    writer.submit(note(1)).result(10)
    assert notes(other) == [1]


def test_a_breach_of_a_constraint_keeps_its_type_and_other_database_errors_are_one_line(writer):
    writer.submit(note(1)).result(10)
    with pytest.raises(sqlite3.IntegrityError):
        writer.submit(note(1)).result(10)
    with pytest.raises(StoreUnusable) as told:
        writer.submit(lambda group: group.connection.execute("SELECT * FROM no_such_table")).result(10)
    assert str(writer.path) in str(told.value)
    assert "\n" not in str(told.value)


def test_many_threads_and_event_loops_may_write_at_once(writer: Writer, other: Any) -> None:
    def plainly(base: int) -> None:
        for number in range(25):
            writer.submit(note(base + number)).result(20)

    def in_a_loop(base: int) -> None:
        async def several() -> None:
            await asyncio.gather(*(writer.commit(note(base + number)) for number in range(25)))

        asyncio.run(several())

    threads = [threading.Thread(target=plainly, args=(1000 * n,)) for n in range(3)]
    threads += [threading.Thread(target=in_a_loop, args=(1000 * n,)) for n in range(3, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(notes(other)) == [1000 * n + number for n in range(6) for number in range(25)]


def test_close_commits_what_was_queued_and_refuses_what_comes_later(path, writer, other):
    gate = Gate(writer)
    waiting = [writer.submit(note(number)) for number in range(30)]
    closing = threading.Thread(target=writer.close)
    closing.start()
    gate.open()
    closing.join(10)
    assert [one.result(0) for one in waiting] == list(range(30))
    assert notes(other) == list(range(30))
    with pytest.raises(StoreUnusable, match="closed"):
        writer.submit(note("late"))


def test_every_submission_that_races_with_close_is_either_committed_or_refused(path: Path) -> None:
    for _ in range(5):
        writer = Writer(path)
        accepted: list[Future[None]] = []

        def press(writer: Writer = writer, accepted: list[Future[None]] = accepted) -> None:
            while True:
                try:
                    accepted.append(writer.submit(lambda group: None))
                except StoreUnusable:
                    return

        thread = threading.Thread(target=press)
        thread.start()
        writer.close()
        thread.join(10)
        assert all(one.done() for one in accepted)


async def test_a_waiter_that_is_cancelled_does_not_take_its_batch_back(writer: Writer, other: Any) -> None:
    gate = await asyncio.to_thread(Gate, writer)
    waiter = asyncio.ensure_future(writer.commit(note("kept")))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await asyncio.to_thread(gate.open)
    await writer.commit(note("next"))
    assert notes(other) == ["kept", "next"]


def test_a_future_that_is_cancelled_does_not_stop_the_writer(writer: Writer, other: Any) -> None:
    gate = Gate(writer)
    left = writer.submit(note("kept"))
    assert left.cancel()
    gate.open()
    writer.submit(note("next")).result(10)
    assert notes(other) == ["kept", "next"]


def test_a_loop_that_closed_while_its_batch_was_queued_does_not_stop_the_writer(writer, other):
    gate = Gate(writer)

    async def leave() -> None:
        waiter = asyncio.ensure_future(writer.commit(note("kept")))
        await asyncio.sleep(0)
        waiter.cancel()

    asyncio.run(leave())
    gate.open()
    writer.submit(note("next")).result(10)
    assert notes(other) == ["kept", "next"]


def test_a_lock_that_is_never_given_up_is_waited_for_once_for_the_whole_group(path, writer, monkeypatch):
    real = driver.begin_immediate
    attempts: list[int] = []
    queued = threading.Event()

    def impatient(connection: Any, **about: Any) -> None:
        attempts.append(1)
        assert queued.wait(10)
        real(connection, timeout_seconds=0.0)

    holder = sqlite3.connect(str(path), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(driver, "begin_immediate", impatient)
    waiting = [writer.submit(note(number)) for number in range(10)]
    queued.set()
    errors = [one.exception(10) for one in waiting]
    assert all(
        isinstance(error, StoreUnusable) and "locked by another program" in str(error) for error in errors
    )
    assert len(attempts) <= 3  # groups, not batches
    holder.execute("ROLLBACK")
    holder.close()
    assert writer.submit(note("after")).result(10) == "after"


BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["ok", "raise", "sql"])), max_size=4), max_size=14
)


@settings(max_examples=40)
@given(batches=BATCHES)
def test_any_mixture_of_good_and_bad_batches_ends_as_if_each_had_run_alone(batches, tmp_path_factory):
    path = tmp_path_factory.mktemp("mixture") / "w.db"
    writer = Writer(path, gather_seconds=(0.0, 0.0))
    writer.submit(
        lambda group: group.connection.execute("CREATE TABLE notes (value UNIQUE)") and None
    ).result(10)

    def made(steps: list[tuple[int, str]]) -> Any:
        def batch(group: Group) -> int:
            for value, kind in steps:
                group.connection.execute("INSERT INTO notes VALUES (?)", (value,))
                if kind == "raise":
                    raise BadInput("bad")
                if kind == "sql":
                    group.connection.execute("INSERT INTO nowhere VALUES (1)")
            return len(steps)

        return batch

    gate = Gate(writer)
    waiting = [writer.submit(made(steps)) for steps in batches]
    gate.open()
    model: list[int] = []
    for steps, one in zip(batches, waiting, strict=True):
        trial = list(model)
        fine = True
        for value, kind in steps:
            fine = fine and kind == "ok" and value not in trial
            trial.append(value)
            if not fine:
                break
        assert (one.exception(10) is None) == fine
        if fine:
            model = trial
    connection = database.open_readonly(path)
    assert notes(connection) == model
    connection.close()
    writer.close()


def test_a_file_deleted_or_replaced_under_the_writer_is_never_written_as_if_it_were_there(path, writer):
    moved = path.with_name("moved.db")
    path.rename(moved)
    with pytest.raises(StoreUnusable, match="deleted or replaced"):
        writer.submit(note(1)).result(10)
    path.write_bytes(b"")
    with pytest.raises(StoreUnusable, match="deleted or replaced"):
        writer.submit(note(1)).result(10)
    path.unlink()
    moved.rename(path)
    assert writer.submit(note(1)).result(10) == 1


def test_a_copy_of_the_file_alone_has_everything_once_its_writer_is_closed(path, writer, other):
    """SQLite leaves the log where it is when the last connection to close cannot write, as a viewer's."""
    writer.submit(note(1)).result(10)
    assert notes(other) == [1]
    writer.close()
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    copied = database.open_readonly(copy)
    assert notes(copied) == [1]
    copied.close()


@pytest.mark.parametrize("fails", [True, False])
def test_a_query_that_is_not_read_to_its_end_holds_up_no_later_commit(
    path, writer, other, monkeypatch, fails
):
    """It kept its snapshot: once the index was written, the writer got no lock for 30 s."""
    for number in range(3):
        writer.submit(note(number)).result(10)

    def looks_at_the_first(group: Group) -> None:
        assert group.cursor.execute("SELECT value FROM notes").fetchone() is not None
        if fails:
            raise ValueError("refused")

    looked = writer.submit(looks_at_the_first)
    if fails:
        with pytest.raises(ValueError, match="refused"):
            looked.result(10)
    else:
        looked.result(10)
    with closing(sqlite3.connect(path)) as index, index:
        index.execute("INSERT INTO notes VALUES (3)")
    monkeypatch.setattr(driver, "LOCK_TIMEOUT_SECONDS", 0.0)
    writer.submit(note(4)).result(10)
    assert notes(other) == [0, 1, 2, 3, 4]
