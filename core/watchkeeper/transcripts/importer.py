"""Importing logs: found, recognised, read from where the last import ended, and written batch by batch.

A batch is one transaction of a few megabytes of log: its rows, and how far each file was read. What was
committed is whole, so an import may be interrupted anywhere and run again; two importers of one file take
turns, since a batch that does not begin where the file's row says is given up and read again.
"""

from __future__ import annotations

import gc
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from watchkeeper.records.errors import DrivenElsewhere, StoreUnusable, WatchkeeperError, reason_of
from watchkeeper.records.messages import Cost, PriceStatus
from watchkeeper.records.redact import Redactor
from watchkeeper.store import database, driver, imports
from watchkeeper.store import imports as rows
from watchkeeper.store.driver import Connection
from watchkeeper.store.lease import Lease, probe
from watchkeeper.store.place import user_redactor
from watchkeeper.store.writer import Group, Writer
from watchkeeper.transcripts import files
from watchkeeper.transcripts.batch import Batch, Pricing, Windows
from watchkeeper.transcripts.files import packed_name
from watchkeeper.transcripts.reading import Chunk, Overtaken, apply, by_name, open_log, programs
from watchkeeper.transcripts.records import ModelCall, Program

# What an import did, counted, and the line that reports it.


@dataclass(slots=True)
class Report:
    """Counts of one import. `read + raw + skipped + waiting` are all lines of the logs that were looked
    into."""

    files: int = 0
    """Logs of which something was read."""
    unchanged: int = 0
    """Logs that hold nothing new."""
    deleted: int = 0
    """Logs of sessions that were deleted here: left alone until they are restored."""
    sessions: set[str] = field(default_factory=set)
    """Ids of the sessions that were added to."""
    read: int = 0
    raw: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kind of record and reason → lines that are kept as they are."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason → lines that are not kept, since what they say is."""
    changed: int = 0
    """Records among those read that are here already, and say something else now: each is kept as a new
    revision."""
    waiting: int = 0
    """Last lines without an end."""
    left: dict[str, str] = field(default_factory=dict)
    """Files and folders that could not be read → why."""
    unknown: list[str] = field(default_factory=list)
    """Files that are no log of a known program."""
    bytes_read: int = 0
    seconds: float = 0.0

    @property
    def lines(self) -> int:
        """All lines looked at."""
        return self.read + self.raw.total() + self.skipped.total() + self.waiting

    def line(self) -> str:
        """What happened to every line, in counts."""
        parts = [f"{_count(self.files, 'log')} of {_count(len(self.sessions), 'session')}"]
        if self.unchanged:
            parts[0] += f" ({self.unchanged:,} unchanged)"
        parts.append(f"{self.read:,} records read")
        if self.changed:
            parts.append(f"{_count(self.changed, 'record')} changed (kept as new revisions)")
        if self.raw:
            parts.append(f"{self.raw.total():,} kept but hidden")
        if self.skipped:
            parts.append(f"{self.skipped.total():,} skipped")
        if self.waiting:
            parts.append(f"{_count(self.waiting, 'unfinished last line')} waiting")
        if self.deleted:
            parts.append(f"{_count(self.deleted, 'log')} of deleted sessions")
        if self.unknown:
            parts.append(f"{_count(len(self.unknown), 'unsupported file')}")
        if self.left:
            parts.append(f"{len(self.left):,} unreadable")
        if not (self.files or self.unknown or self.left):
            parts.append("no log found, or the log is empty")
        return "; ".join(parts)


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


# Logs that were renamed or moved since their import (Codex archives threads) are recognised as the same logs.


class MovedLogs:
    """Logs that are no longer where they were when they were imported, by how they begin."""

    def __init__(self, writer: Writer, connection: Connection) -> None:
        self._writer = writer
        self._connection = connection
        self._gone: dict[str, str] = {}
        for path, head in rows.file_heads(connection):
            if not os.path.lexists(files.packed_name(Path(path))):
                self._gone[head] = path
        self._sizes = {int(head.partition(":")[0]) for head in self._gone}

    def adopt(self, path: Path) -> rows.FileRow | None:
        """How far a log was read under its name before, which is this one from now on; None where it had
        none.

        Raises:
            OSError: it cannot be read.
        """
        if not self._gone:
            return None
        with files.open_log(path, beginning=True) as file:
            head = file.read(files.MARK_BYTES)
            marks = (
                f"{size}:{blake2b(head[:size], digest_size=12).hexdigest()}"
                for size in self._sizes
                if size <= len(head)
            )
            before = next((self._gone[mark] for mark in marks if mark in self._gone), None)
            row = rows.load_file(self._connection, before) if before is not None else None
            if row is None or not files.still_holds(file, row.read_bytes, row.head_digest, row.tail_digest):
                return None
        now = files.stored_path(path)
        self._writer.submit(lambda group: rows.move_file(group.connection, row, now)).result()
        del self._gone[row.head_digest]
        return rows.load_file(self._connection, now)


# Sessions that are shown as live while their logs grow: the importer holds their leases, as a host does for a run.

LEASES = 32
"""Sessions that are held at once: those that grew last."""
QUIET_SECONDS = 1_800.0
"""A session that did not grow for so long is over, until it grows again."""


class LeasePool:
    """The sessions that one follower holds."""

    def __init__(
        self,
        writer: Writer,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._now = now
        self._held: OrderedDict[str, tuple[Lease, float]] = OrderedDict()
        """By what was said of each last, the newest at the end; and when that was."""

    def grew(self, session_ids: Iterable[str]) -> None:
        """Something of these sessions was read. A session is live if its newest record is recent, whenever its file was
        copied or touched."""
        wanted = list(session_ids)
        if not wanted:
            return
        ages = self._writer.submit(
            lambda group: imports.seconds_since_active(group.connection, wanted, self._now())
        ).result()
        over = [each for each in wanted if ages.get(each, 0.0) >= QUIET_SECONDS and each not in self._held]
        if over:
            self._writer.submit(lambda group: imports.end(group.connection, over)).result()
        taken = []
        for session_id, age in ages.items():
            if age >= QUIET_SECONDS:
                continue
            at = self._clock() - max(0.0, age)
            held = self._held.pop(session_id, None)
            if held is None:
                try:
                    lease = Lease.acquire(self._writer.path, session_id)
                except (DrivenElsewhere, StoreUnusable):
                    continue  # another follower holds it: two may follow one log, and take turns
                taken.append(session_id)
            else:
                lease, at = held[0], max(held[1], at)
            self._held[session_id] = (lease, at)
        if taken:
            self._writer.submit(lambda group: imports.begin(group.connection, taken)).result()
        self._let_go(list(self._held)[: max(0, len(self._held) - LEASES)])

    def end(self, session_ids: Iterable[str]) -> None:
        """These sessions have ended."""
        self._let_go(list(session_ids))

    def settle(self) -> None:
        """Release those that are quiet."""
        before = self._clock() - QUIET_SECONDS
        self._let_go([session_id for session_id, (_, grew) in self._held.items() if grew < before])

    def close(self) -> None:
        """Nothing is followed any more: no agent is at work as far as anybody here knows."""
        self._let_go(list(self._held))

    def _let_go(self, session_ids: list[str]) -> None:
        if not session_ids:
            return
        self._writer.submit(lambda group: imports.end(group.connection, session_ids)).result()
        for session_id in session_ids:
            held = self._held.pop(session_id, None)
            if held is not None:
                held[0].release()


def end_abandoned(writer: Writer, connection: Connection) -> None:
    """Whatever a follower that was killed left as live is over."""
    alone = [each for each in imports.followed(connection) if probe(writer.path, each) is None]
    if alone:
        writer.submit(lambda group: imports.end(group.connection, alone)).result()


BATCH_BYTES = 4 << 20
"""As much as is written in some 60 ms: other writers wait no longer for the lock."""
BATCH_FILES = 200
FEW_FILES = 20
ATTEMPTS = 5
BREATH_SECONDS = 0.003
"""The write lock is left free for at least so long between two batches: runs go on beside an import, and ask
every millisecond. Reading the next batch mostly takes longer."""
CACHE = "PRAGMA cache_size = -32768"
"""KiB: what a batch touches stays in memory."""
LIVE_CACHE = "PRAGMA cache_size = -4096"
"""A follower writes a few lines at a time, and runs all day."""
CHECKPOINT = "PRAGMA wal_autocheckpoint = 2000"
"""Pages, as many as the log may keep: a batch has five hundred, and many of them again and again."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an import is."""

    files: int
    files_done: int
    bytes: int
    bytes_done: int
    seconds: float

    @property
    def seconds_left(self) -> float | None:
        """By the speed so far; None before it is known."""
        if not self.bytes_done or self.seconds < 0.5:
            return None
        return max(0, self.bytes - self.bytes_done) * self.seconds / self.bytes_done


def unpriced(call: ModelCall) -> Cost:
    """The pricing that knows no prices."""
    return Cost(None, PriceStatus.UNPRICED)


def unknown_window(model_ref: str) -> int | None:
    """The windows of models, where none is known."""
    return None


def _prepare(group: Group, *, live: bool) -> None:
    group.connection.execute(LIVE_CACHE if live else CACHE)
    group.connection.execute(CHECKPOINT)


@dataclass(slots=True)
class _Pending:
    """Chunks that go into the next transaction."""

    chunks: list[Chunk] = field(default_factory=list)
    size: int = 0


class Importer:
    """Imports logs into one database. Used from one thread.

    Args:
        writer: the process's writer to that database.
        pricing: what a model call cost.
        windows: tokens of a model's context window, where the log does not report them.
        user_id: whose sessions they are.
        live: the logs are followed as they grow (see `Batch.live`).
        progress: called now and then.
        only: the one program whose logs are taken; None: any.
        redactor: takes secrets out of what is read: by default, the values of this process's secret
            variables, those of the user's configuration, and whatever has a key's shape.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        pricing: Pricing = unpriced,
        windows: Windows = unknown_window,
        user_id: str = "local",
        live: bool = False,
        progress: Callable[[Progress], None] | None = None,
        only: Program | None = None,
        now: Callable[[], float] = time.time,
        redactor: Redactor | None = None,
    ) -> None:
        self._writer = writer
        self._redactor = redactor or user_redactor()
        self._pricing = pricing
        self._windows = windows
        self._user_id = user_id
        self._live = live
        self._progress = progress
        self._only = only
        self._now = now
        self._reading: Connection | None = None
        self._prepared = False
        self._prices_loaded = False
        self._waiting: Any = None
        """The batch that is being written."""
        self._free_until = 0.0
        self._totals = (0, 0)
        self._done = [0, 0]
        self._began = time.monotonic()
        self._moved: MovedLogs | None = None
        self.report = Report()
        """The report of all runs so far."""

    def run(self, places: list[Path]) -> Report:
        """Import every log in these places (files and folders) that holds something new."""
        # A batch is a hundred thousand small objects without a cycle among them: looking for one costs a
        # fifth.
        collecting = gc.isenabled()
        gc.disable()
        try:
            return self._run(places)
        finally:
            if collecting:
                gc.enable()

    def _run(self, places: list[Path]) -> Report:
        began = time.monotonic()
        report = self.report
        self._began, self._done, self._moved = began, [0, 0], None
        if not self._prepared:
            self._writer.submit(lambda group: _prepare(group, live=self._live)).result()
            end_abandoned(self._writer, self._connection())
            self._prepared = True
        found = list(files.find(places, self.may_be_log, report.left.__setitem__))
        marks = self.marks(found)
        # The oldest first: what a session repeats of an earlier one then counts for the earlier one.
        found.sort(key=lambda each: (each.modified_at, str(each.path)))
        fresh = []
        for each in found:
            known = marks.get(files.stored_path(each.path))
            if known is not None and known[:2] == (each.size, each.modified_at):
                report.unchanged += 1
            else:
                fresh.append((each, known[2] if known else 0))
        self._totals = (len(fresh), sum(max(0, each.size - done) for each, done in fresh))
        pending = _Pending()
        for each, _ in fresh:
            for chunk in self._chunks(each, is_new=files.stored_path(each.path) not in marks):
                pending.chunks.append(chunk)
                pending.size += chunk.bytes
                if pending.size >= BATCH_BYTES or len(pending.chunks) >= BATCH_FILES:
                    self._write(pending)
                    pending = _Pending()
            self._done[0] += 1
            self._tell()
        self._write(pending)
        report.seconds += time.monotonic() - began
        self._tell()
        return report

    def close(self) -> None:
        """Give the connection back; the caller keeps the writer."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def may_be_log(self, path: Path) -> bool:
        """Whether a file in a folder is worth opening, by its name."""
        return any(kind.may_be_log(path) for kind in self._programs())

    def log_of(self, path: Path) -> Path | None:
        """The log that is to be read when this file changes; None where it belongs to no log."""
        return next((log for kind in self._programs() if (log := kind.log_of(path)) is not None), None)

    def _programs(self) -> tuple[Program, ...]:
        return (self._only,) if self._only is not None else programs()

    def session_of(self, path: Path) -> str | None:
        """The session that a log belongs to, once it was imported."""
        row = rows.load_file(self._connection(), files.stored_path(path))
        return row.session_id if row is not None else None

    def is_over(self, path: Path) -> bool:
        """Whether a log that was imported is of a session that has ended and cannot go on by itself."""
        row = rows.load_file(self._connection(), files.stored_path(path))
        program = by_name(row.program) if row is not None else None
        return row is not None and program is not None and program.is_over(row.state.get("reader") or {})

    def marks(self, found: list[files.Found]) -> dict[str, tuple[int, float, int]]:
        """The size, time of change and bytes read of those files that were imported, as they were then, by stored
        path."""
        connection = self._connection()
        if len(found) > FEW_FILES:
            return rows.file_marks(connection)
        known = (rows.load_file(connection, files.stored_path(each.path)) for each in found)
        return {row.path: (row.size, row.modified_at, row.read_bytes) for row in known if row is not None}

    def _connection(self) -> Connection:
        if self._reading is None:
            self._reading = database.open_readonly(self._writer.path)
        return self._reading

    def release_memory(self) -> None:
        """Give back what the last run needed: for a process that has nothing to do now."""
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        self._moved = None
        self._writer.submit(lambda group: driver.release_memory(group.connection)).result()

    def settle(self) -> None:
        """Wait for the batch that is being written, and count it: also after an interruption."""
        if self._waiting is not None:
            self._waiting[1].exception()  # an interruption here leaves it to be counted
        waiting, self._waiting = self._waiting, None
        self._settle(waiting)

    # Writing.

    def _write(self, pending: _Pending) -> None:
        """Nothing is read meanwhile: two threads of Python in turns cost a tenth more, and keep the lock half
        as long again."""
        self._waiting = self._submit(pending)
        self.settle()

    def _submit(self, pending: _Pending) -> Any:
        if not pending.chunks:
            return None
        chunks = pending.chunks
        self._load_prices(chunks)
        early = self._free_until - time.monotonic()
        if early > 0 and not self._live:
            time.sleep(early)

        def batch(group: Group) -> Any:
            return apply(
                Batch(group.cursor, self._pricing, self._windows, self._now(), self._user_id, self._live),
                group.connection,
                chunks,
            )

        return chunks, self._writer.submit(batch)

    def _load_prices(self, chunks: list[Chunk]) -> None:
        """Whatever the pricing has to load, it loads before the write lock is taken: a third of a second, which a
        follower may need for each model."""
        if self._prices_loaded and not self._live:
            return
        for call in (
            each
            for chunk in chunks
            for _, _, group in chunk.groups
            for each in group
            if type(each) is ModelCall
        ):
            self._pricing(call)
            self._prices_loaded = True
            if not self._live:
                return

    def _settle(self, submitted: Any) -> None:
        """Wait for a batch, and count it. Where it did not succeed, each of its files is read again by
        itself."""
        if submitted is None:
            return
        try:
            self._count(submitted)
            self._free_until = time.monotonic() + BREATH_SECONDS
        except WatchkeeperError:
            raise
        except Exception:
            for path in dict.fromkeys(chunk.path for chunk in submitted[0]):
                self._again(path)

    def _count(self, submitted: Any) -> None:
        chunks, future = submitted
        counts = future.result()
        self.report.read += counts.read
        self.report.raw += counts.raw
        self.report.skipped += counts.skipped
        self.report.sessions |= counts.sessions
        self.report.waiting += counts.waiting
        self.report.changed += counts.changed
        for chunk in chunks:
            self.report.bytes_read += chunk.bytes
            self.report.files += int(chunk.first)

    def _again(self, path: Path) -> None:
        """Read a file by itself: another importer was faster, or one file of the batch could not be
        written."""
        for _ in range(ATTEMPTS):
            try:
                found = packed_name(path).stat()
                for chunk in self._chunks(files.Found(path, found.st_size, found.st_mtime)):
                    self._count(self._submit(_Pending([chunk])))
            except Overtaken:
                continue
            except OSError as error:
                self.report.left[str(path)] = reason_of(error).lower()
            except WatchkeeperError:
                raise
            except Exception as error:  # one log must not keep a thousand others out
                self.report.left[str(path)] = (
                    f"its content could not be stored ({type(error).__name__}: {error})"
                )
            return
        self.report.left[str(path)] = "another importer is reading it"

    def _tell(self) -> None:
        if self._progress is not None:
            files, size = self._totals
            self._progress(
                Progress(files, self._done[0], size, self._done[1], time.monotonic() - self._began)
            )

    # Reading.

    def _chunks(self, found: files.Found, *, is_new: bool = False) -> Iterator[Chunk]:
        """One file in pieces of at most `BATCH_BYTES`; one that is new was not read when this run began."""
        try:
            yield from self._read(found, is_new)
        except OSError as error:
            self.report.left[str(found.path)] = reason_of(error).lower()
        except WatchkeeperError:
            raise
        except Exception as error:  # a fault of its reader; one log must not keep a thousand others out
            self.report.left[str(found.path)] = f"its reader failed ({type(error).__name__}: {error})"

    def _moved_logs(self) -> MovedLogs:
        if self._moved is None:
            self._moved = MovedLogs(self._writer, self._connection())
        return self._moved

    def _read(self, found: files.Found, is_new: bool) -> Iterator[Chunk]:
        path = files.stored_path(found.path)
        row = (None if is_new else rows.load_file(self._connection(), path)) or self._moved_logs().adopt(
            found.path
        )
        log = open_log(found, row, self._only, self._redactor)
        if (
            log is not None
            and log.of_one_session
            and row is not None
            and rows.is_deleted(self._connection(), row.session_id)
        ):
            self.report.deleted += 1  # read no further, so that nothing is missing once it is restored
        elif log is None:
            if found.size:
                self.report.unknown.append(path)
        elif log.unchanged:
            self.report.unchanged += 1
        else:
            for chunk in log.chunks(BATCH_BYTES):
                self._done[1] += chunk.bytes
                self._tell()
                yield chunk
