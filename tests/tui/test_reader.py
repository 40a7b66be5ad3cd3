"""The reader: whole snapshots, only when something changed, and nothing written."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import cast

import pytest
from tests.tui.conftest import Desk, text_of, until
from tests.tui.fake_store import FakeSession

from watchkeeper.store.database import open_readonly
from watchkeeper.store.driver import Connection
from watchkeeper.store.snapshot import EVENTS_KEPT
from watchkeeper_tui.app import WatchkeeperApp
from watchkeeper_tui.reader import Reader
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.snapshot import SessionState, Snapshot, agent_condition, session_state, task_condition


class Published(list[Snapshot]):
    def until(self, true: Callable[[Snapshot], bool], seconds: float = 10.0) -> Snapshot:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self and true(self[-1]):
                return self[-1]
            time.sleep(0.005)
        raise AssertionError(f"not published: {self[-1] if self else None}")


@pytest.fixture
def published() -> Published:
    return Published()


@pytest.fixture
def start(desk: Desk, published: Published) -> Iterator[Callable[[], Reader]]:
    """Starts a reader of the desk's session."""
    threads: list[Reader] = []

    def begin() -> Reader:
        threads.append(Reader(
            desk.path, desk.session.id, published.append, feed_factory=lambda _: desk.feed, probe=lambda _, __: desk.host_pid,
            now=lambda: desk.time, tick_seconds=0.005,
        ))  # fmt: skip
        threads[-1].start()
        return threads[-1]

    yield begin
    for thread in threads:
        thread.close()
        thread.join(5)
        assert not thread.is_alive()


@pytest.fixture
def reader(start: Callable[[], Reader]) -> Reader:
    return start()


def read_again(reader: Reader) -> None:
    """Return when the reader has read everything once more: a question is answered before each reading."""
    for _ in range(2):
        answered = threading.Event()
        reader.ask(lambda _: None, lambda _, answered=answered: answered.set())  # type: ignore[misc]
        assert answered.wait(10)


def test_events_are_each_seen_once_and_in_order(desk: Desk, reader: Reader, published: Published) -> None:
    published.until(lambda snapshot: len(snapshot.events) == 4)
    for number in range(300):
        desk.session.event("tool.done", tool="bash", preview=str(number))
        if number % 50 == 0:
            desk.feed.wake()
    desk.feed.wake()
    last = published.until(lambda snapshot: len(snapshot.events) == 304)
    assert [event.seq for event in last.events] == list(range(1, 305))


def test_a_burst_larger_than_what_is_kept_shows_its_end(desk, reader, published):
    published.until(lambda snapshot: len(snapshot.events) == 4)
    desk.session.connection.execute("BEGIN")
    for number in range(EVENTS_KEPT + 500):
        desk.session.event("tool.done", tool="bash", preview=str(number))
    desk.session.connection.execute("COMMIT")
    desk.feed.wake()
    last = published.until(lambda snapshot: snapshot.events[-1].seq == EVENTS_KEPT + 504)
    seqs = [event.seq for event in last.events]
    assert seqs == list(range(seqs[0], EVENTS_KEPT + 505))
    assert len(seqs) == EVENTS_KEPT


def test_nothing_is_published_while_nothing_changes(desk: Desk, reader: Reader, published: Published) -> None:
    published.until(lambda snapshot: snapshot.session is not None)
    read_again(reader)
    before = len(published)
    read_again(reader)
    assert len(published) == before


def test_an_uncommitted_change_is_never_shown(desk: Desk, reader: Reader, published: Published) -> None:
    published.until(lambda snapshot: snapshot.session is not None)
    desk.session.connection.execute("BEGIN")
    desk.session.set(goal="half done")
    read_again(reader)
    assert all(each.session is None or each.session.goal != "half done" for each in published)
    desk.session.connection.execute("COMMIT")
    desk.feed.wake()
    published.until(lambda snapshot: snapshot.session is not None and snapshot.session.goal == "half done")


def test_looking_at_another_agent_reads_it_without_waiting_for_the_next_look(
    monkeypatch: pytest.MonkeyPatch, desk: Desk, start: Callable[[], Reader], published: Published
) -> None:
    monkeypatch.setattr("watchkeeper_tui.reader.LOOK_SECONDS", 1e6)
    reader = start()
    published.until(lambda snapshot: snapshot.session is not None)
    reader.look_at("explorer1")
    last = published.until(lambda snapshot: snapshot.detail is not None)
    assert last.detail is not None
    assert [block.kind for block in last.detail.transcript][:4] == [
        "user", "thinking", "assistant", "tool_use",
    ]  # fmt: skip


def test_a_session_that_has_just_begun_is_starting_and_not_dead(desk, start, published):
    desk.session.set(host_pid=None, created_at=desk.time - 1)
    desk.host_pid = None
    start()
    published.until(lambda snapshot: snapshot.state is SessionState.OPENING and snapshot.session is not None)
    desk.time += 60
    published.until(lambda snapshot: snapshot.state is SessionState.DEAD)


def test_rates_die_away_while_nothing_else_is_read(desk, start, published, monkeypatch):
    monkeypatch.setattr("watchkeeper_tui.reader.LOOK_SECONDS", 0.01)
    desk.session.call("planner", started_at=desk.time - 2)
    start()
    first = published.until(lambda snapshot: snapshot.rates.tokens_per_minute > 0)
    desk.session.set(goal="not yet read")  # and the feed says nothing
    desk.time += 120
    last = published.until(lambda snapshot: snapshot.rates.is_still)
    assert last.session is first.session
    assert last.agents is first.agents
    assert last.read_at == desk.time
    desk.feed.wake()
    published.until(lambda snapshot: snapshot.session is not None and snapshot.session.goal == "not yet read")


def test_the_reader_cannot_write(desk: Desk, reader: Reader, published: Published) -> None:
    published.until(lambda snapshot: snapshot.session is not None)
    answers: list[object] = []
    reader.ask(lambda connection: connection.execute("DELETE FROM sessions"), answers.append)
    deadline = time.monotonic() + 5
    while not answers and time.monotonic() < deadline:
        time.sleep(0.01)
    assert isinstance(answers[0], Exception)
    assert desk.session.connection.execute("SELECT count(*) FROM sessions").fetchone()[0] == 1


def test_a_host_that_works_for_one_command_on_a_paused_session_is_live_and_no_other(desk, reader, published):
    published.until(lambda snapshot: snapshot.session is not None)
    desk.session.connection.execute("UPDATE sessions SET status = 'paused'")
    desk.session.connection.execute(
        "UPDATE agents SET status = 'working' WHERE id = (SELECT max(id) FROM agents)"
    )
    desk.feed.wake()
    published.until(lambda snapshot: snapshot.state is SessionState.LIVE)
    desk.session.connection.execute(
        "UPDATE agents SET status = 'paused' WHERE status IN ('working', 'waiting')"
    )
    desk.feed.wake()
    published.until(lambda snapshot: snapshot.state is SessionState.PAUSED)


def test_another_programs_session_that_nobody_follows_is_over_and_not_dead() -> None:
    assert session_state("running", hosted=False, working=False, origin="codex") is SessionState.ENDED
    assert session_state("done", hosted=False, working=False, origin="codex") is SessionState.ENDED
    assert session_state("done", hosted=False, working=False, origin="fork") is SessionState.DONE
    assert session_state("running", hosted=True, working=False, origin="codex") is SessionState.IDLE
    assert session_state("running", hosted=True, working=True, origin="codex") is SessionState.LIVE
    assert session_state("running", hosted=False, working=False) is SessionState.DEAD
    assert session_state("held", hosted=False, working=False) is SessionState.UNKNOWN


def test_an_unknown_state_of_an_agent_or_a_task_is_its_own_word(desk, reader, published):
    read = published.until(lambda snapshot: bool(snapshot.agents and snapshot.tasks))
    agent = replace(read.agents[0], status="held")
    task = replace(read.tasks[0], status="held")
    shown = (agent_condition(agent, SessionState.LIVE, desk.time), task_condition(task, SessionState.LIVE))
    assert {(each.glyph, each.word, each.role) for each in shown} == {("?", "held", "muted")}


async def test_one_reading_is_told_compared_and_drawn_though_a_newer_one_comes_meanwhile(desk, monkeypatch):
    """The reader's thread puts a newer snapshot in place at any moment: here, while the news of one are
    told."""
    async with desk.shown("explorer") as pilot:
        app = cast("WatchkeeperApp", pilot.app)
        app.reader.close()
        before = app.snapshot
        first, newer = (replace(before, version=before.version + more) for more in (1, 2))
        told: list[tuple[Snapshot, Snapshot]] = []

        def news(compared: Snapshot, shown: Snapshot, settings: object) -> list[object]:
            told.append((compared, shown))
            if shown is first:
                app._receive(newer)
            return []

        monkeypatch.setattr("watchkeeper_tui.app.news", news)
        app._receive(first)
        await until(pilot, lambda: len(told) == 2)
        assert told == [(before, first), (first, newer)]
        screen = app.screen
        assert isinstance(screen, LiveScreen)
        assert screen.newest is screen.snapshot is app.snapshot is newer


@pytest.mark.parametrize(("screen", "key"), [("s", "j"), ("dollar_sign", "w")])
async def test_a_question_of_a_screen_that_has_gone_is_answered_all_the_same(desk, monkeypatch, screen, key):
    """Widgets may be gone when the reader comes to a question: neither it nor its answer touches one."""
    held: list[tuple[Callable[[Connection], object], Callable[[object], object]]] = []
    FakeSession(desk.session.connection, "older234", goal="nightly audit")
    async with desk.shown("explorer-1") as pilot:
        live = pilot.app.screen
        await pilot.press(screen)
        await until(pilot, lambda: "nightly audit" in text_of(pilot) or "Usage  Days" in text_of(pilot))
        monkeypatch.setattr(Reader, "ask", lambda _, *asked: held.append(asked))
        await pilot.press(key)
        await until(pilot, lambda: bool(held))
        pilot.app.pop_screen()
        await until(pilot, lambda: pilot.app.screen is live)

        def answer_all() -> None:
            with closing(open_readonly(desk.path)) as connection:
                for question, answer in held:
                    answer(question(connection))

        await asyncio.to_thread(answer_all)
