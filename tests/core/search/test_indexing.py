"""The indexer of a host: it follows what is written, gives way, and stops nothing when it cannot go on."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.core.search.conftest import Library

from watchkeeper.runtime import background
from watchkeeper.runtime.background import Indexing
from watchkeeper.store import database
from watchkeeper.store.engine import index_of


async def test_what_is_written_while_a_host_runs_is_indexed(library, tmp_path, monkeypatch):
    monkeypatch.setattr(background, "INDEX_SECONDS", 0.0)
    agent = library.session("s1")
    beside = Indexing(tmp_path / "watchkeeper.db")
    running = asyncio.create_task(beside.run())
    for number in range(3):
        library.say(agent, f"kraken {number}")
        async with asyncio.timeout(20):
            while index_of(library.connection).unindexed():  # noqa: ASYNC110 - it is another connection that changes it
                await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await beside.close()


async def test_what_is_left_is_indexed_when_the_host_ends(library: Library, tmp_path: Path) -> None:
    library.say(library.session("s1"), "kraken")
    await Indexing(tmp_path / "watchkeeper.db").close()
    assert index_of(library.connection).unindexed() == 0


async def test_an_index_that_cannot_be_written_is_said_once_and_stops_nothing(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "INDEX_SECONDS", 0.0)
    library.say(library.session("s1"), "kraken")
    library.connection.execute("DROP TABLE messages_fts")
    beside = Indexing(tmp_path / "watchkeeper.db")
    with caplog.at_level(logging.INFO):
        await beside.run()
        await beside.close()
    told = [record for record in caplog.records if record.name == "watchkeeper.runtime.background"]
    assert [record.message.partition(":")[0] for record in told] == ["message indexing stopped"]


async def test_a_writer_that_keeps_the_lock_only_delays_the_index(library, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(background, "LOCK_SECONDS", 0.0)
    monkeypatch.setattr(background, "LAST_SECONDS", 0.0)
    library.say(library.session("s1"), "kraken")
    library.connection.execute("BEGIN IMMEDIATE")
    beside = Indexing(tmp_path / "watchkeeper.db")
    connection = database.open_writable(tmp_path / "watchkeeper.db", check_same_thread=False)
    monkeypatch.setattr(beside, "_connection", connection)
    await beside._in_thread(beside._round)
    library.connection.execute("COMMIT")
    assert index_of(library.connection).unindexed() == 1
    await beside._in_thread(beside._round)
    assert index_of(library.connection).unindexed() == 0
    await beside.close()
    assert caplog.records == []
