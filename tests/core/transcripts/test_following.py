"""Following logs: what is written is soon in the store, and the session stands as live meanwhile."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.core.transcripts.codex_rollout import Rollout
from tests.core.transcripts.conftest import SESSION, Log, Store, call, dollar_a_token, imported, text

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store.imports import begin
from watchkeeper.store.lease import probe
from watchkeeper.transcripts.follow import Follower, Pace
from watchkeeper.transcripts.importer import QUIET_SECONDS, Importer, LeasePool

PATIENCE_SECONDS = 20.0
NOW = datetime(2026, 2, 3, 4, 10, tzinfo=UTC).timestamp()
"""Ten minutes after the first record of a log."""


class Following:
    """A follower in a thread of its own, and the log that it follows."""

    def __init__(self, store: Store, places: list[Path], now: float = NOW, pace: Pace | None = None) -> None:
        self.store = store
        self._stop = threading.Event()
        importer = Importer(store.writer, pricing=dollar_a_token, live=True)
        self._follower = Follower(store.writer, importer, places, pace=pace, now=lambda: now)
        self._thread = threading.Thread(target=self._follower.run, args=(self._stop,), daemon=True)
        self._thread.start()
        assert self._follower.ready.wait(PATIENCE_SECONDS)

    def until(self, sql: str, wanted: object) -> float:
        """Wait until the query gives that; how long it took."""
        began = time.monotonic()
        while (found := self.store.one(sql)) != wanted:
            if time.monotonic() - began > PATIENCE_SECONDS:
                raise AssertionError(f"{sql} gives {found!r}, not {wanted!r}")
            time.sleep(0.002)
        return time.monotonic() - began

    def until_true(self, holds: Callable[[], bool]) -> None:
        """Wait until it holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def end(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()


@pytest.fixture
def follow(store: Store) -> Iterator[Callable[..., Following]]:
    made: list[Following] = []

    def begin(*places: Path, pace: Pace | None = None) -> Following:
        made.append(Following(store, list(places), pace=pace))
        return made[-1]

    yield begin
    for each in made:
        each.end()


def _append(path: Path, record: dict[str, object]) -> None:
    with path.open("ab") as file:
        file.write(json.dumps(record).encode() + b"\n")


def _age(path: Path, seconds: float = 86_400.0) -> None:
    written = time.time() - seconds
    os.utime(path, (written, written))


def test_a_line_that_is_written_is_in_the_store_before_the_next_look_at_all_files(store, logs, follow):
    log, path = imported(store, logs)
    following = follow(path, pace=Pace(look_seconds=1e6))
    for number in range(2, 12):
        _append(path, log.user(f"more {number}"))
        following.until("SELECT count(*) FROM messages", number)


def test_a_session_that_grows_is_live_and_its_agents_are_at_work(store, logs, follow):
    log = Log()
    log.user("Mend the cache")
    path = log.write(logs)
    _age(path)
    store.run(path)
    session_id = store.one("SELECT id FROM sessions")
    following = follow(logs)
    assert probe(store.path, session_id) is None
    _append(path, log.reply(call("Bash", "t1"), id="msg_1", stop="tool_use"))
    following.until("SELECT status FROM tool_calls", "running")
    assert store.one("SELECT status FROM agents") == "working"
    following.until_true(lambda: probe(store.path, session_id) is not None)
    _append(path, log.result("t1"))
    _append(path, log.reply(text("Done."), id="msg_2", stop="end_turn"))
    following.until("SELECT status FROM agents", "idle")
    assert store.one("SELECT status FROM tool_calls") == "done"
    _append(path, log.reply(call("Bash", "t2"), id="msg_3", stop="tool_use"))
    following.until("SELECT count(*) FROM tool_calls", 2)
    assert store.all("SELECT status, ended_at FROM sessions") == [("running", None)]
    following.end()
    assert probe(store.path, session_id) is None
    assert store.one("SELECT status FROM agents") == "done"
    assert store.one("SELECT status FROM sessions") == "done"
    assert store.one("SELECT status FROM tool_calls WHERE tool_use_id = 't2'") == "unknown"


def test_new_sessions_and_sub_agents_are_followed_as_they_appear(store, logs, follow):
    log = Log()
    log.user("Mend the cache")
    path = log.write(logs / "project")
    store.run(path)
    following = follow(path)
    child = Log(SESSION, isSidechain=True, agentId="abc")
    child.user("Look")
    child.write(logs / "project", f"{SESSION}/subagents/agent-abc.jsonl")
    following.until("SELECT count(*) FROM agents", 2)
    elsewhere = follow(logs)
    Log("0c0c0c0c-1111-4222-8333-444444444444").write(logs / "another")
    fresh = Log("0d0d0d0d-1111-4222-8333-444444444444")
    fresh.user("Something else")
    fresh.write(logs / "another")
    elsewhere.until("SELECT count(*) FROM sessions", 2)


def test_where_no_file_events_come_the_files_are_looked_at(store, logs, follow, monkeypatch):
    def exhausted(*places: object, **options: object) -> Iterator[object]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("watchfiles.watch", exhausted)
    log, path = imported(store, logs)
    following = follow(logs)
    _append(path, log.user("more"))
    following.until("SELECT count(*) FROM messages", 2)


def test_a_store_that_cannot_be_written_for_a_while_loses_nothing(store, logs, follow, monkeypatch):
    log, path = imported(store, logs)
    run, refused = Importer.run, threading.Event()

    def fail_once(importer: Importer, places: list[Path]) -> object:
        if not refused.is_set():
            refused.set()
            raise StoreUnusable("locked")
        return run(importer, places)

    following = follow(logs)
    monkeypatch.setattr(Importer, "run", fail_once)
    _append(path, log.user("more"))
    following.until("SELECT count(*) FROM messages", 2)
    assert refused.is_set()


OTHER = "0b0b0b0b-1111-4222-8333-444444444444"


def test_every_session_that_is_live_is_followed_from_the_start_and_no_old_one(store, logs, follow):
    for session in (SESSION, OTHER, "0c0c0c0c-1111-4222-8333-444444444444"):
        log = Log(session)
        log.user(f"Mend {session[:4]}")
        path = log.write(logs / "project")
    _age(path)
    _age(logs / "project" / f"{OTHER}.jsonl", 600.0)
    following = follow(logs)
    assert store.all("SELECT goal, status FROM sessions ORDER BY 1") == [
        ("Mend 0a0a", "running"),
        ("Mend 0b0b", "running"),
    ]
    _append(path, log.user("more"))
    following.until(
        "SELECT count(*) FROM messages WHERE agent_id IN (SELECT id FROM agents WHERE current_goal = 'Mend"
        " 0c0c')",
        2,
    )


@pytest.mark.parametrize(("open_call", "status"), [(True, "working"), (False, "idle")])
def test_a_session_that_is_live_when_somebody_begins_to_watch_it_stands_as_live(
    store: Store, logs: Path, follow: Callable[..., Following], open_call: bool, status: str
) -> None:
    log = Log()
    log.user("Mend the cache")
    log.reply(call("Bash", "t1"), id="msg_1", stop="tool_use")
    if not open_call:
        log.result("t1")
        log.reply(text("Mended."), id="msg_2")
    path = log.write(logs)
    store.run(path)
    following = follow(path)
    assert probe(store.path, store.one("SELECT id FROM sessions")) is not None
    assert store.one("SELECT status FROM sessions") == "running"
    assert store.one("SELECT status FROM agents") == status
    following.end()
    assert store.one("SELECT status FROM agents") == store.one("SELECT status FROM sessions") == "done"


@pytest.mark.parametrize("age_seconds", [QUIET_SECONDS, 277 * 86_400.0])
@pytest.mark.parametrize("known", [False, True])
def test_a_log_that_was_copied_just_now_is_as_old_as_its_last_record(
    store: Store, logs: Path, age_seconds: float, known: bool
) -> None:
    log = Log()
    log.user("Mend the cache")
    log.reply(call("Bash", "t1"), id="msg_1", stop="tool_use")
    path = log.write(logs)
    if known:
        store.run(path)
    following = Following(store, [path], now=NOW + age_seconds)
    following.until("SELECT count(*) FROM messages", 2)
    following.until("SELECT status FROM agents", "done")
    assert store.all("SELECT status FROM tool_calls") == [("unknown",)]
    assert probe(store.path, store.one("SELECT id FROM sessions")) is None
    following.end()


def test_what_a_follower_that_was_killed_left_as_live_is_over_with_the_next_import(store, logs):
    log = Log()
    log.user("Mend the cache")
    log.reply(call("Bash", "t1"), id="msg_1", stop="tool_use")
    store.run(log.write(logs), live=True)
    session_id = store.one("SELECT id FROM sessions")
    store.writer.submit(lambda group: begin(group.connection, [session_id])).result()
    assert store.one("SELECT status FROM sessions") == "running"
    store.run(logs)
    assert store.one("SELECT status FROM sessions") == store.one("SELECT status FROM agents") == "done"
    assert store.one("SELECT status FROM tool_calls") == "unknown"


def test_a_session_that_was_quiet_for_long_is_over_until_it_grows(store: Store, logs: Path) -> None:
    log = Log()
    log.user("Mend the cache")
    path = log.write(logs)
    store.run(path, live=True)
    session_id, now = store.one("SELECT id FROM sessions"), [0.0]
    holding = LeasePool(store.writer, lambda: now[0], lambda: NOW)
    for wanted in ("running", "done", "running"):
        if wanted == "running":
            holding.grew([session_id])
        else:
            now[0] += QUIET_SECONDS + 1
        holding.settle()
        assert store.one("SELECT status FROM sessions") == wanted
        assert (probe(store.path, session_id) is not None) == (wanted == "running")
    holding.close()


@pytest.mark.parametrize("source", ["exec", "cli"])
def test_a_session_of_one_turn_is_over_with_it_also_for_a_follower_that_begins_later(
    store, logs, follow, source
):
    log = Rollout(source=source).event("task_started", turn_id="one").user("Mend it")
    path = log.write(logs)
    first = follow(logs)
    state = "SELECT s.status, a.status FROM sessions s JOIN agents a ON a.session_id = s.id"
    first.until(state, ("running", "working"))
    log.says("Mended.").tokens(100, 0, 5).event("task_complete", turn_id="one").write(logs)
    over = ("done", "done") if source == "exec" else ("running", "idle")
    first.until(state, over)
    first.end()
    os.utime(path)
    second = follow(logs)
    second.until(state, over)
    log.event("task_started", turn_id="two").user("Go on").write(logs)  # `codex exec resume`
    second.until(state, ("running", "working"))
