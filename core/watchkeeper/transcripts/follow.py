"""Following logs as they grow: a line that is written is in the store some tens of milliseconds later.

`watchfiles` tells which files changed, and those are imported; a slow look at all of them is the truth beside
it, for file systems that tell nothing. The look goes on a little at a time, so that no line waits for ten
thousand files. While a session grows, its lease is held, so that dashboards show it as live and no host
deletes it meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store.writer import Writer
from watchkeeper.transcripts import files
from watchkeeper.transcripts.files import packed_name
from watchkeeper.transcripts.importer import LEASES, QUIET_SECONDS, Importer, LeasePool

SLICE_SECONDS = 0.02
"""For how long at a time, while events may be waiting."""

POLL_SECONDS = 0.15
"""How often, where no events come at all."""
DEBOUNCE_MILLISECONDS = 20


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a follower looks. The default reads a line some tens of milliseconds after it was written."""

    look_seconds: float = 2.0
    """How often all files are looked at where no event came."""
    step_milliseconds: int = 5
    timeout_milliseconds: int = 100
    rest_seconds: float | None = None
    """After so long without anything to read, memory is given back to the system."""


BACKGROUND = Pace(look_seconds=60.0, step_milliseconds=50, timeout_milliseconds=1_000, rest_seconds=3.0)
"""For a process that runs all day: a tenth of a second later, and nearly no work while nothing is written."""


class Follower:
    """Imports what is written to logs from now on, and at first whatever is live: written to within
    `QUIET_SECONDS`.

    Args:
        importer: made with `live=True`.
        places: files and folders; of a file, the folder named like it (its sub-agents) belongs to it.
        go_on: asked now and then; False ends the following.
        pace: how soon what is written must be read.
        now: the time by which the age of a record is judged.
    """

    def __init__(
        self,
        writer: Writer,
        importer: Importer,
        places: list[Path],
        *,
        go_on: Callable[[], bool] = lambda: True,
        pace: Pace | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._pace = pace or Pace()
        self._importer = importer
        self._places = [place.resolve() for place in places]
        self._go_on = go_on
        self._holding = LeasePool(writer, now=now)
        self._seen: dict[Path, tuple[int, float]] = {}
        self._growing: dict[Path, None] = {}
        """Logs that grew last. What is logged beside a log's own file is looked for in these alone."""
        self._databases: set[Path] = set()
        """What a write-ahead log tells of can be read only a moment after that was written."""
        self._soon: list[Path] = []
        """Those of them that were reported just now: they are looked at once more."""
        self._look: Iterator[files.Found] | None = None
        self._look_at = self._look_began = 0.0
        self._worked_at: float | None = time.monotonic()
        """When something was read last; None: memory was given back since."""
        self.ready = threading.Event()
        """Set when every line written from then on is followed."""

    def run(self, stop: threading.Event) -> None:
        """Follow until `stop` is set or `go_on` says no; then leave the sessions as finished ones."""
        try:
            waiting = self._begin()
            for paths in self._changes(stop):
                if not self._go_on():
                    return
                soon, self._soon = self._soon, [each for each in paths if each in self._databases]
                self._take([*paths, *soon])
                if waiting:
                    self._take([waiting.pop()])
                elif time.monotonic() >= self._look_at:
                    self._look_on(SLICE_SECONDS if self.ready.is_set() else 1.0)
                else:
                    self._rest()
        finally:
            self._holding.close()

    def _begin(self) -> list[Path]:
        """What holds something new and is live, the newest last. Of the other files, what comes is
        followed."""
        found = self._find()
        known = self._importer.marks(found)
        recent = time.time() - QUIET_SECONDS
        live: list[files.Found] = []
        for each in found:
            mark = known.get(files.stored_path(each.path))
            if mark is None and each.modified_at >= recent:
                live.append(each)
            elif mark is None or mark[:2] == (each.size, each.modified_at):
                self._seen[each.path] = (each.size, each.modified_at)
            if mark is not None and each.modified_at >= recent and not self._importer.is_over(each.path):
                session = self._importer.session_of(each.path)
                self._holding.grew([session] if session is not None else [])
        return [each.path for each in sorted(live, key=lambda each: each.modified_at)]

    def _changes(self, stop: threading.Event) -> Iterator[list[Path]]:
        """Files that changed, and now and then nothing, until `stop` is set."""
        from watchfiles import watch

        try:
            for changes in watch(
                *self._roots(),
                watch_filter=None,
                debounce=DEBOUNCE_MILLISECONDS,
                step=self._pace.step_milliseconds,
                rust_timeout=self._pace.timeout_milliseconds,
                yield_on_timeout=True,
                stop_event=stop,
                recursive=True,
                raise_interrupt=False,
            ):
                yield list(filter(None, (self._told(Path(name)) for _, name in changes)))
        except (OSError, RuntimeError):
            # No file events here (watches exhausted, a folder gone): look at the files themselves.
            while not stop.wait(POLL_SECONDS):
                yield [
                    each.path
                    for each in self._find()
                    if self._seen.get(each.path) != (each.size, each.modified_at)
                ]

    def _roots(self) -> list[Path]:
        """The folders to be watched: of a file, the one in which all lies that belongs to it."""
        return list(dict.fromkeys(place if place.is_dir() else place.parent for place in self._places))

    def _find(self) -> list[files.Found]:
        return list(self._find_on())

    def _find_on(self) -> Iterator[files.Found]:
        places = [*self._places, *(place.with_suffix("") for place in self._places if place.is_file())]
        return files.find(
            [place for place in places if place.exists()], self._importer.may_be_log, lambda name, why: None
        )

    def _told(self, path: Path) -> Path | None:
        """The log of ours that an event tells of. One that a file beside it tells of is looked at once
        more."""
        log = self._log_of(path)
        if log is not None and log != path:
            self._growing.setdefault(log)
            if path.name.endswith("-wal"):
                self._databases.add(log)
        return log

    def _log_of(self, path: Path) -> Path | None:
        """The log of ours that this file belongs to."""
        log = self._importer.log_of(path)
        if log is None:
            return None
        ours = any(
            log == place or place in log.parents or place.with_suffix("") in log.parents
            for place in self._places
        )
        return log if ours else None

    def _look_on(self, seconds: float) -> None:
        """Go on with the look at whatever no event reported, for about so long."""
        began = time.monotonic()
        if self._look is None:
            self._look, self._look_began = self._find_on(), began
        changed: list[Path] = []
        for each in self._look:
            if self._seen.get(each.path) != (each.size, each.modified_at):
                changed.append(each.path)
            if time.monotonic() - began > seconds:
                self._take(changed)
                return
        self._look = None
        self._take([*changed, *self._growing])
        self._holding.settle()
        # Ten thousand logs are looked at less often.
        self._look_at = time.monotonic() + max(self._pace.look_seconds, time.monotonic() - self._look_began)
        self.ready.set()

    def _rest(self) -> None:
        """Give memory back once nothing was read for a while."""
        quiet, worked_at = self._pace.rest_seconds, self._worked_at
        if quiet is None or worked_at is None or time.monotonic() - worked_at < quiet:
            return
        self._worked_at = None
        with contextlib.suppress(StoreUnusable):
            self._importer.release_memory()

    def _take(self, paths: list[Path]) -> None:
        there: list[Path] = []
        for path in dict.fromkeys(paths):
            try:
                found = packed_name(path).stat()
            except OSError:
                continue  # gone again
            self._seen[path] = (found.st_size, found.st_mtime)
            there.append(path)
        if not there:
            return
        self._worked_at = time.monotonic()
        try:
            report = self._importer.run(there)
        except StoreUnusable:
            for path in there:
                self._seen.pop(path, None)  # a lock or a full disk may pass: the next look tries again
            return
        over = {self._importer.session_of(path) for path in there if self._importer.is_over(path)}
        self._holding.grew(report.sessions - over)
        self._holding.end(report.sessions & over)
        if report.sessions:
            self._growing = dict.fromkeys(
                [*(each for each in self._growing if each not in there), *there][-LEASES:]
            )
        report.sessions.clear()
        report.unknown.clear()
