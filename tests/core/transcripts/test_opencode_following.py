"""A session of OpenCode or Codex that somebody works in is shown as it grows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.core.transcripts.codex_rollout import Rollout
from tests.core.transcripts.conftest import Store
from tests.core.transcripts.opencode_book import Book
from tests.core.transcripts.test_following import Following

from watchkeeper.store.driver import sqlite3
from watchkeeper.transcripts.importer import Importer, Report
from watchkeeper.transcripts.opencode import PROGRAM


@pytest.fixture
def stopping() -> Iterator[list[Following]]:
    made: list[Following] = []
    yield made
    for each in made:
        each.end()


@contextmanager
def writing(store: Store, logs: Path, stopping: list[Following]) -> Iterator[Callable[[], None]]:
    """A followed database that a program has open; what is given writes a message and awaits it."""
    book = Book()
    session = book.session()
    book.user(session, "Mend the cache")
    path = book.database(logs)
    program = sqlite3.connect(path)

    def go_on() -> None:
        message = json.dumps({"role": "user", "time": {"created": book.tick()}})
        program.execute(
            "INSERT INTO message VALUES ('msg_z', ?, ?, ?, ?)", (session, book.now, book.now, message)
        )
        part = json.dumps({"type": "text", "text": "on"})
        program.execute(
            "INSERT INTO part VALUES ('prt_z', 'msg_z', ?, ?, ?, ?)", (session, book.now, book.now, part)
        )
        program.commit()
        stopping[0].until("SELECT count(*) FROM messages", 2)

    try:
        program.execute("PRAGMA wal_autocheckpoint = 0")
        store.run(path)
        stopping.append(Following(store, [path]))
        yield go_on
    finally:
        program.close()


def test_rows_that_stand_in_the_write_ahead_log_alone_are_followed(store, logs, stopping):
    with writing(store, logs, stopping) as go_on:
        go_on()
        assert store.one("SELECT count(*) FROM transcript_files") == 1


def test_rows_that_could_not_be_read_yet_when_they_were_told_of_are_read_soon(
    store: Store, logs: Path, stopping: list[Following], monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(store, logs, stopping) as go_on:
        told: list[float] = []

        def too_early(importer: Importer, places: list[Path]) -> Report:
            told.append(time.monotonic())
            return run(importer, places) if told[-1] - told[0] > 0.5 else Report()

        run = Importer.run
        monkeypatch.setattr(Importer, "run", too_early)
        go_on()
        assert len(told) > 1


def test_a_reply_of_codex_ends_the_work_of_its_agent(store, logs, stopping):
    log = Rollout().event("task_started", turn_id="t", model_context_window=272_000).user("go")
    path = log.write(logs)
    store.run(path)
    stopping.append(Following(store, [path]))
    written = len(log.lines)

    def write() -> None:
        nonlocal written
        with path.open("ab") as file:
            file.writelines(json.dumps(line).encode() + b"\n" for line in log.lines[written:])
        written = len(log.lines)

    log.call("c1").tokens(100, 0, 5)
    write()
    stopping[0].until("SELECT status FROM tool_calls", "running")
    assert store.one("SELECT status FROM agents") == "working"
    log.output("c1").says("Done.").tokens(200, 100, 9).event("task_complete", turn_id="t")
    write()
    stopping[0].until("SELECT status FROM agents", "idle")
    assert store.one("SELECT output_tokens FROM sessions") == 14


def test_a_transaction_that_became_readable_after_its_log_was_written_is_something_new(tmp_path):
    """Its log was looked at before the log's index named it: sizes and times stay as they were."""
    database = Book().database(tmp_path)
    log, index = (database.with_name(f"{database.name}-{name}") for name in ("wal", "shm"))
    log.write_bytes(b"frames")
    index.write_bytes(b"\0" * 200)
    before = PROGRAM.fingerprint(database)
    assert PROGRAM.fingerprint(database) == before
    index.write_bytes(b"\0" * 100 + b"\1" * 100)  # somebody reads it
    assert PROGRAM.fingerprint(database) == before
    index.write_bytes(b"\0" * 16 + b"\1" * 184)
    assert PROGRAM.fingerprint(database) != before
