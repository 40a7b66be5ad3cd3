"""The history checker finds a fence that was taken out, and nothing where all holds; on both databases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.history import read, recorded, violations
from tests.support.places import workspace_in

from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.store.place import Place

TWO_HOSTS = """
import os, socket, sys, time
from watchkeeper.records.ports import SystemClock
from watchkeeper.store import database
from watchkeeper.store.place import place_of
from watchkeeper.store.transaction import SessionStore
from watchkeeper.store.transaction import Transaction
place, session_id = place_of(sys.argv[1]), sys.argv[2]

def commit(store):
    change = lambda group: Transaction(group, session_id, store.epoch, time.time()).event("said")
    try:
        return store.writer.submit(change).result(20)
    except Exception as error:
        return type(error).__name__

def claim():
    return SessionStore.claim(place, session_id, SystemClock(), pid=os.getpid(), host_name=socket.gethostname())

first = claim()
commit(first)
# The lease goes to another host while the first one goes on, as one that was stopped for long does.
first._lease.release()
second = claim()
print(*(commit(store) for store in (second, first, second, first, second)))
"""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return tmp_path / "w.db" if request.param == "sqlite" else request.getfixturevalue("postgres_place")


@pytest.mark.parametrize("fenced", [True, False])
def test_a_fence_that_is_taken_out_is_found(place: Place, tmp_path: Path, fenced: bool) -> None:
    session_id = create_session(place, NewSession("goal", workspace_in(tmp_path), "test/model"))
    environ = recorded(tmp_path / "history") | ({} if fenced else {"WATCHKEEPER_TEST_NO_FENCE": "1"})
    where = str(place) if isinstance(place, Path) else place.dsn
    done = subprocess.run(
        [sys.executable, "-c", TWO_HOSTS, where, session_id], env=environ, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ("LeaseLost" in done.stdout) is fenced
    assert {one["op"] for one in read(tmp_path / "history")} == {"claim", "commit"}
    found = violations(tmp_path / "history", place)
    assert found == [] if fenced else any("epoch" in one for one in found)


@pytest.mark.parametrize(
    ("change", "wanted"), [("DELETE FROM events WHERE seq = 2", "is gone"),
     ("UPDATE sessions SET event_seq = event_seq + 1", "were counted")],
)  # fmt: skip
def test_a_commit_that_is_taken_back_is_found(tmp_path: Path, change: str, wanted: str) -> None:
    from contextlib import closing

    from watchkeeper.store import database

    place = tmp_path / "w.db"
    session_id = create_session(place, NewSession("goal", workspace_in(tmp_path), "test/model"))
    subprocess.run(
        [sys.executable, "-c", TWO_HOSTS, str(place), session_id], env=recorded(tmp_path / "history"), check=True, timeout=60,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    with closing(database.open_writable(place)) as connection:
        connection.execute(change)
    assert any(wanted in one for one in violations(tmp_path / "history", place))
    assert (
        violations(tmp_path / "history", place, ["t1"])[-1]
        == "the effect of t1 was seen 1 times, and it ran 0 times"
    )
