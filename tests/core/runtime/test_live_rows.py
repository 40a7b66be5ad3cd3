"""The live rows: what agents do this moment, and nothing of those that have ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.places import workspace_in

from watchkeeper.records.ports import ManualClock
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.runtime.live import LiveRows
from watchkeeper.store.session_store import SessionStore


@pytest.fixture
def store(tmp_path: Path) -> Any:
    session = create_session(tmp_path / "w.db", NewSession("goal", workspace_in(tmp_path), "test/model"))
    claimed = SessionStore.claim(tmp_path / "w.db", session, ManualClock(), pid=os.getpid(), host_name="h")
    yield claimed
    claimed.close()


async def test_what_an_agent_showed_last_stays_in_its_row_and_nothing_of_it_is_held_once_it_has_ended(store):
    live = LiveRows(store, ManualClock())
    for number in range(100):
        live.show(f"a{number}", "working")
        live.stream(f"a{number}", "words " * 2_000)
        live.end(f"a{number}")
    await live.flush()
    assert store.one("SELECT count(*), min(length(text)) FROM live WHERE activity = 'working'")[:] == (
        100,
        2_000,
    )
    live.stream("a0", "late")  # what is not held is not added to
    await live.flush()
    assert store.one("SELECT substr(text, -6) FROM live WHERE agent_id = 'a0'")[:] == ("words ",)


async def test_an_agent_that_works_again_is_shown_again(store: SessionStore) -> None:
    live = LiveRows(store, ManualClock())
    live.show("a", "paused")
    live.end("a")
    live.show("a", "working")
    live.stream("a", "again")
    await live.flush()
    live.stream("a", " and again")
    await live.flush()
    assert store.one("SELECT activity, text FROM live")[:] == ("working", "again and again")
