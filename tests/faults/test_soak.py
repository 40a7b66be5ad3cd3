"""A short sample of the soak, and a host that says when somebody holds its write-ahead log back."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.faults.soak import soak_for
from tests.support.places import query, workspace_in
from tests.support.scripted import PlannedRun, ScriptedModel, said, task

from watchkeeper.runtime import background
from watchkeeper.runtime.lifecycle import SessionSettings
from watchkeeper.runtime.run_session import Runtime
from watchkeeper.store import database


@pytest.mark.long
def test_a_round_of_disturbances_loses_nothing(tmp_path: Path) -> None:
    soak = soak_for(120, tmp_path, seed=3, rounds=1)
    assert soak.problems == []
    assert len(soak.done) >= 1


async def test_a_reader_that_never_ends_its_read_is_told_of(tmp_path, monkeypatch):
    """It holds the write-ahead log back, which then grows without bound: not unnoticed."""
    monkeypatch.setattr(background, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(background, "WAL_WARNING_BYTES", 200_000)
    told = asyncio.Event()
    words = "word " * 3_000

    def work(name: str, request: Any) -> Any:
        return [said(words)] if told.is_set() else told

    tasks = [task(f"t{number}") | {"instructions": f"{number} {words}"} for number in range(12)]
    runtime = Runtime(
        tmp_path / "watchkeeper.db", model=ScriptedModel(PlannedRun(tasks, work), context_window=100_000)
    )
    session = runtime.start(
        "wal",
        workspace=workspace_in(tmp_path),
        settings=SessionSettings(max_parallel=12, approval_timeout_seconds=0.0),
    )
    with closing(database.open_readonly(runtime.path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchone()
        running = asyncio.ensure_future(runtime.run(session))
        texts: list[str] = []
        for _ in range(1_000):
            await asyncio.wait([running], timeout=0.02)
            texts = [
                row[0] for row in query(runtime.path, "SELECT data FROM events WHERE kind = 'host.warning'")
            ]
            if texts or running.done():
                break
        told.set()
        assert (await asyncio.wait_for(running, 60)).exit_code == 0
        reader.execute("COMMIT")
    assert "write-ahead log has grown" in texts[0]
    assert len(texts) <= 3, "once, and at each doubling"
