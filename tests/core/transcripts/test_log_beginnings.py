"""A log whose beginning is damaged, or written by a careful editor, is the log that it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.core.transcripts.conftest import SESSION, Log, Store, text, work

from watchkeeper.transcripts.records import seconds

CODEX = (
    b'{"timestamp":"2026-02-03T04:00:00.000Z","type":"session_meta","payload":{"id":"5973b6c0-94b8-487b-a530-2aeb6098ae0e",'
    b'"timestamp":"2026-02-03T04:00:00.000Z","cwd":"/w","cli_version":"0.60.0"}}\n'
    b'{"timestamp":"2026-02-03T04:00:01.000Z","type":"response_item","payload":{"type":"message","role":"user","content":'
    b'[{"type":"input_text","text":"Mend the cache"}]}}\n'
)


def _log() -> Log:
    log = Log()
    log.user("Mend the cache")
    log.reply(text("Mended."), id="m1")
    return log


@pytest.mark.parametrize(
    ("before", "raw", "skipped"),
    [
        (b'{"type":"user","mess\n', 1, 0),
        (b"\n \n\n", 0, 3),
        (b'{"type":"user","message":"' + b"x" * 200_000 + b"\n", 1, 0),
        (b"\0" * 512 + b"\n", 1, 0),
    ],
    ids=["broken", "empty", "broken and long", "nothing but NULs"],
)
@pytest.mark.parametrize("name", [f"{SESSION}.jsonl", "renamed.jsonl"])
def test_a_log_with_a_damaged_beginning_makes_one_session(store, logs, before, raw, skipped, name):
    path = logs / name
    path.write_bytes(before + _log().bytes)
    report = store.run(logs)
    assert (report.read, report.raw.total(), report.skipped.total()) == (2, raw, skipped)
    assert store.all("SELECT source, goal FROM sessions") == [(f"claude-code:{SESSION}", "Mend the cache")]
    assert store.one("SELECT count(*) FROM agents") == 1
    assert store.one("SELECT count(*) FROM raw_records WHERE session_id = (SELECT id FROM sessions)") == raw


@pytest.mark.parametrize(
    "mark", [b"\xef\xbb\xbf", b"\0" * 4_096], ids=["a byte order mark", "a hole left by a crash"]
)
def test_what_stands_before_a_record_on_its_line_does_not_hide_the_record(store, logs, mark):
    (logs / f"{SESSION}.jsonl").write_bytes(mark + _log().bytes)
    (logs / "rollout-2026-02-03T04-00-00-5973b6c0-94b8-487b-a530-2aeb6098ae0e.jsonl").write_bytes(
        mark + CODEX
    )
    report = store.run(logs)
    assert (report.read, report.raw.total(), report.unknown) == (4, 0, [])
    assert store.one("SELECT count(*) FROM messages") == 3


@pytest.mark.parametrize("name", [f"{SESSION}.jsonl", "renamed.jsonl"])
def test_a_log_that_begins_with_long_lines_is_the_log_that_it_is(store: Store, logs: Path, name: str) -> None:
    queued = b'{"type":"queue-operation","operation":"enqueue","sessionId":"%s","content":"%s"}\n'
    long = [queued % (SESSION.encode(), b"x" * size) for size in (80_000, 70_000, 2 << 20, 90_000)]
    (logs / name).write_bytes(b"".join(long) + _log().bytes)
    report = store.run(logs)
    assert (report.read, report.raw.total(), report.unknown) == (2, 4, [])
    assert store.all("SELECT source, goal FROM sessions") == [(f"claude-code:{SESSION}", "Mend the cache")]


def test_a_log_of_titles_alone_is_as_old_as_its_file(store: Store, logs: Path) -> None:
    path = logs / f"{SESSION}.jsonl"
    path.write_bytes(b'{"type":"summary","summary":"Mending the cache","leafUuid":"somewhere"}\n')
    os.utime(path, (1_700_000_000, 1_700_000_000))
    store.run(path)
    assert store.all("SELECT title, last_active FROM sessions") == [("Mending the cache", 1_700_000_000.0)]


def test_a_file_of_empty_lines_makes_no_session(store: Store, logs: Path) -> None:
    log = _log()
    path = log.write(logs)
    store.run(path)
    (logs / "blank.jsonl").write_bytes(b"\n\n\n")
    store.run(logs)
    assert store.one("SELECT count(*) FROM sessions") == 1


IMPOSSIBLE_TIMES = [None, "never", *(f"{at}T00:00:00.000Z" for at in (
    "0001-01-01", "1970-01-01", "2019-05-05", "2026-02-01", "9999-01-01")), "2026-02-03T04:00:00.000Z"]  # fmt: skip


@pytest.mark.parametrize("place", [0, 1, 5, 9])
@pytest.mark.parametrize("odd", IMPOSSIBLE_TIMES)
def test_an_impossible_time_begins_and_ends_nothing(store, logs, odd, place):
    """The recorded log `entire-4b7d5121b42a` has times from before their predecessors'."""
    if not place and odd is not None and "2000" < odd < "2027":
        return  # a first time that may be true is taken for true
    log = work()
    expected = [seconds(log.records[at]["timestamp"]) for at in (0 if place else 1, -1)]
    log.records[place]["timestamp"] = odd
    store.run(log.write(logs))
    for table in ("sessions", "agents"):
        assert store.one(f"SELECT created_at, last_active FROM {table}") == tuple(expected)
    if odd is None or odd < "2000" or odd > "2027":
        assert store.one("SELECT min(created_at) >= ? AND max(created_at) <= ? FROM messages", *expected) == 1
        assert not place or store.one("SELECT max(at) <= ? FROM events", expected[1]) == 1
