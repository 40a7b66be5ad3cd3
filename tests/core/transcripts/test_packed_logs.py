"""Logs that were compressed after they were written are the same logs."""

from __future__ import annotations

import gzip
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from tests.core.transcripts.codex_rollout import Rollout
from tests.core.transcripts.conftest import SESSION, Log, Store, text

from watchkeeper.transcripts import files

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Pack = Callable[[bytes], bytes]
PACKED = [pytest.param(".zst", zstd.compress, id="zst"), pytest.param(".gz", gzip.compress, id="gz")]


def _pack(path: Path, suffix: str, pack: Pack) -> Path:
    packed_path = path.with_name(path.name + suffix)
    packed_path.write_bytes(pack(path.read_bytes()))
    path.unlink()
    return packed_path


@pytest.mark.parametrize(("suffix", "pack"), PACKED)
def test_a_packed_log_is_read_as_the_log_that_it_was(store, logs, suffix, pack):
    log = Log()
    log.user("Mend the cache")
    log.reply(text("Mended."), id="m1")
    _pack(log.write(logs), suffix, pack)
    _pack(Rollout().user("go").says("Gone.").tokens(100, 0, 5).write(logs), suffix, pack)
    report = store.run(logs)
    assert (report.unknown, report.left) == ([], {})
    assert store.one("SELECT count(*) FROM sessions") == 2
    assert store.one("SELECT sum(output_tokens) FROM sessions") == 15
    before = store.counts()
    assert store.run(logs).unchanged == 2
    assert store.counts() == before


@pytest.mark.parametrize(("suffix", "pack"), PACKED)
def test_a_log_that_is_packed_between_two_imports_holds_nothing_new(store, logs, suffix, pack):
    log = Log()
    log.user("Mend the cache")
    log.add("new-kind")
    path = log.write(logs)
    store.run(logs)
    before = store.counts()
    held = _pack(path, suffix, pack)
    store.run(held)
    assert store.counts() == before
    # It is unpacked beside it, and goes on.
    log.user("more")
    log.write(logs)
    store.run(logs)
    assert store.one("SELECT count(*) FROM messages") == 2
    assert store.one("SELECT count(*) FROM transcript_files") == 1


@pytest.mark.parametrize("suffix", [".zst", ".gz"])
def test_a_packed_log_that_is_broken_is_named_with_the_reason(store: Store, logs: Path, suffix: str) -> None:
    (logs / f"{SESSION}.jsonl{suffix}").write_bytes(b"no such thing" * 100)
    report = store.run(logs)
    assert len(report.left) == 1
    assert store.one("SELECT count(*) FROM sessions") == 0


def _long_log() -> Log:
    """One that packs into many blocks."""
    rng, log = random.Random(6), Log()
    for _ in range(400):
        log.user(rng.randbytes(1_500).hex())
    return log


@pytest.mark.parametrize(("suffix", "pack"), PACKED)
def test_of_a_packed_log_that_was_cut_all_that_can_be_unpacked_is_read(store, logs, suffix, pack):
    log = _long_log()
    whole = pack(log.bytes)
    path = logs / f"{SESSION}.jsonl{suffix}"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    report = store.run(logs)
    said = store.one("SELECT count(*) FROM messages")
    assert 200 < said < 300
    assert (report.read, report.waiting, report.raw.total()) == (said, 1, 0)
    assert list(report.left.values()) == ["only the beginning can be decompressed"]
    assert "1 unreadable" in report.line()
    assert "only the beginning can be decompressed" in next(iter(report.left.values()))
    assert store.run(logs).unchanged == 1
    path.write_bytes(whole)  # it was still being written
    report = store.run(logs)
    assert (report.read, report.left, report.waiting) == (400 - said, {}, 0)
    assert store.one("SELECT count(*) FROM messages") == 400


@pytest.mark.parametrize(("suffix", "pack"), PACKED)
def test_a_packed_log_that_is_damaged_in_its_middle_is_read_up_to_there(store, logs, suffix, pack):
    log = _long_log()
    damaged = bytearray(pack(log.bytes))
    middle = len(damaged) // 2
    damaged[middle : middle + 4_000] = b"\xff" * 4_000
    (logs / f"{SESSION}.jsonl{suffix}").write_bytes(damaged)
    report = store.run(logs)
    assert len(report.left) == 1
    assert 100 < store.one("SELECT count(*) FROM messages") < 300


def test_a_packed_log_that_is_named_beside_the_unpacked_one_is_that_one(store, logs):
    log = Log()
    log.user("Mend the cache")
    path = log.write(logs)
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    store.run(path.with_name(path.name + ".gz"))
    assert store.one("SELECT count(*) FROM messages") == 1
    assert store.run(logs).unchanged == 1
    assert store.one("SELECT count(*) FROM messages") == 1


def test_a_packed_log_that_would_fill_the_disk_is_left_alone(store, logs, monkeypatch):
    log = Log()
    log.user("x" * 3_000_000)
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    _pack(log.write(logs), ".gz", gzip.compress)
    report = store.run(logs)
    assert "200 times its size" in next(iter(report.left.values()))


class _Counted:
    """An unpacked stream that counts what was taken from it."""

    taken = 0

    def __init__(self, file: IO[bytes], unpack: Callable[[IO[bytes]], Any]) -> None:
        self._stream = unpack(file)

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *about: Any) -> None:
        self._stream.close()

    def read1(self, size: int) -> bytes:
        piece: bytes = self._stream.read1(size)
        _Counted.taken += len(piece)
        return piece


@pytest.mark.parametrize(("suffix", "pack"), PACKED)
@pytest.mark.parametrize("megabytes", [1, 40])
def test_unpacking_stops_at_two_hundred_times_the_packed_size(
    store: Store, logs: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, pack: Pack, megabytes: int
) -> None:
    log = Log()
    log.user("go")
    log.user("x" * (megabytes << 20))
    path = _pack(log.write(logs), suffix, pack)
    unpack = files._UNPACK[suffix]
    monkeypatch.setitem(files._UNPACK, suffix, lambda file: _Counted(file, unpack))
    most = 200 * path.stat().st_size
    assert most < megabytes << 20
    for read in (lambda: files.open_log(path), lambda: files.read_head(path, 1 << 30)):
        _Counted.taken = 0
        with pytest.raises(OSError, match="expands to more than 200 times its size"):
            read()
        assert _Counted.taken <= most + 1
    report = store.run(logs)
    assert list(report.left.values()) == ["expands to more than 200 times its size"]
    assert store.one("SELECT count(*) FROM sessions") == 0


@pytest.mark.parametrize(("suffix", "pack"), PACKED)
def test_unpacking_stops_at_a_tenth_of_the_free_disk(store, logs, monkeypatch, suffix, pack):
    log = _long_log()
    path = _pack(log.write(logs), suffix, pack)
    free = 10 * len(log.bytes)
    usage = shutil.disk_usage(logs)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free - 10))
    assert "a tenth of the free disk space" in next(iter(store.run(logs).left.values()))
    assert store.one("SELECT count(*) FROM sessions") == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    assert store.run(path).read == 400
