"""`wk resume`, and what else needs a session to itself, while a host is about to end: it is waited for, and
the wait is told of."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.core.cli.conftest import Wk
from tests.core.messages_api.ground import Ground, wait_until

from watchkeeper.records.ports import SystemClock
from watchkeeper.runtime import control, lifecycle
from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session
from watchkeeper.runtime.run_session import drive
from watchkeeper.store import library
from watchkeeper.store.lease import probe
from watchkeeper.store.transaction import SessionStore, Transaction


@pytest.fixture
def session(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> str:
    """A session that a host began to drive and did not end."""
    monkeypatch.setenv("WATCHKEEPER_DB", str(ground.path))
    settings = SessionSettings(speed=None)
    made = create_session(ground.path, NewSession("survey", ground.workspace, "offline/surveyor", settings))
    store = SessionStore.claim(ground.path, made, SystemClock(), pid=1, host_name="here")
    try:
        change(store, lambda tx: lifecycle.open_session(tx, resume=True))
    finally:
        store.close()
    return made


def change(store: SessionStore, work: Callable[[Transaction], None]) -> None:
    """One transaction of a host."""
    store.writer.submit(
        lambda group: work(Transaction(group, store.session_id, store.epoch, time.time()))
    ).result()


HOST = """
import sys, time
from pathlib import Path
from watchkeeper.records.ports import SystemClock
from watchkeeper.runtime import lifecycle as recovery
from watchkeeper.store.transaction import SessionStore
from watchkeeper.store.transaction import Transaction
path, session, drives = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "drives"
store = SessionStore.claim(path, session, SystemClock(), pid=1, host_name="here")
if drives:
    begin = lambda group: recovery.open_session(Transaction(group, session, store.epoch, time.time()), resume=True)
    store.writer.submit(begin).result()
print("has it", flush=True)
sys.stdin.read()
store.close()
"""


@contextmanager
def hosted(path: Path, session: str, *, drives: bool) -> Iterator[subprocess.Popen[str]]:
    """A host that has the session: one that drives it, or one that was started for a single command."""
    command = [sys.executable, "-c", HOST, str(path), session, "drives" if drives else "once"]
    host = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert host.stdin is not None
    assert host.stdout is not None
    try:
        assert host.stdout.readline() == "has it\n"
        yield host
    finally:
        host.stdin.close()
        host.wait(30)
        host.stdout.close()


@contextmanager
def ending_soon(path: Path, session: str) -> Iterator[None]:
    """Such a host of a single command, which ends beside what is done meanwhile."""
    with hosted(path, session, drives=False) as host:
        assert host.stdin is not None
        timer = threading.Timer(0.3, host.stdin.close)
        timer.start()
        yield
        timer.join()


def last_line(out: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(out.splitlines()[-1])
    return found


def test_a_resume_waits_for_the_host_of_an_earlier_command_and_says_so(wk, ground, session):
    with ending_soon(ground.path, session):
        resumed = wk("resume", session, "--headless", "--json")
    assert resumed.code == 0, resumed.err
    assert last_line(resumed.out)["status"] == "done"
    (said,) = resumed.err.splitlines()
    assert said.startswith("wk: waiting for the background process")
    assert "to finish an earlier command" in said
    ground.assert_sound()


def test_a_resume_does_not_wait_for_ever(wk, ground, session, monkeypatch):
    monkeypatch.setattr(library, "SOON_SECONDS", 0.1)
    with hosted(ground.path, session, drives=False):
        resumed = wk("resume", session, "--headless", "--json")
    assert resumed.code == 4
    assert "an earlier command" in resumed.err.splitlines()[-1]
    assert "Traceback" not in resumed.err


def test_a_resume_does_not_wait_for_a_host_that_drives(wk, ground, session, monkeypatch):
    monkeypatch.setattr(library, "SOON_SECONDS", 60.0)
    with hosted(ground.path, session, drives=True):
        refused = wk("resume", session, "--headless")
    assert refused.code == 4
    assert "is already running in a background process" in refused.error


@pytest.mark.parametrize("kind", ["fork", "delete", "edit"])
def test_what_needs_the_session_to_itself_waits_for_such_a_host_too(wk, ground, session, kind):
    with ending_soon(ground.path, session):
        done = wk(kind, session, *(["--title", "a title"] if kind == "edit" else []))
    assert done.code == 0, done.err


def test_a_command_and_the_resume_right_behind_it_both_work(wk: Wk, ground: Ground, session: str) -> None:
    """As in `wk compact S planner && wk resume S`, with hosts of their own in the background."""
    for _ in range(2):
        assert wk("memory", "sync", session).code == 0
    resumed = wk("resume", session, "--detach")
    assert resumed.code == 0, resumed.err
    wait_until(lambda: probe(ground.path, session) is None)
    assert ground.query("SELECT status FROM sessions") == [("done",)]


@pytest.mark.parametrize("first", ["command", "resume"])
def test_a_dashboards_resume_that_meets_the_host_of_another_command_is_not_forgotten(ground, session, first):
    """The dashboard sees that a host lives, and so only queues its wish: that host goes on when its command
    is done."""
    asked = {}
    for kind in (first, "resume" if first == "command" else "command"):
        asked[kind] = control.submit(ground.path, session, "memory_sync" if kind == "command" else "resume")
    result = drive(ground.path, session, resume=False, once=asked["command"])
    assert (result.status, result.exit_code) == ("done", 0)
    assert control.state(ground.path, asked["resume"]).status == "applied"
    assert control.state(ground.path, asked["command"]).status == "applied"
    ground.assert_sound()
