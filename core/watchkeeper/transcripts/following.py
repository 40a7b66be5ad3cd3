"""Following logs as they grow: a line that is written stands in the store some tens of milliseconds later.

`watchfiles` tells which files changed, and those are imported; a slow look at all of them is the truth beside it, for
file systems that tell nothing. While a session grows, its lease is held, so that dashboards show it as live and nobody
deletes it meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from watchkeeper.records.errors import DrivenElsewhere, StoreUnusable
from watchkeeper.store import transcripts as rows
from watchkeeper.store.lease import Lease
from watchkeeper.store.writer import Writer
from watchkeeper.transcripts import finding
from watchkeeper.transcripts.importer import Importer

LOOK_SECONDS = 2.0
"""How often all files are looked at where no event came."""

POLL_SECONDS = 0.15
"""How often, where no events come at all."""
DEBOUNCE_MILLISECONDS = 20
STEP_MILLISECONDS = 5
RECENT_SECONDS = 60.0
"""A log that was never imported is followed from its beginning if it was written to so lately."""
LEASES = 32
"""Sessions that are held as live at once: those that grew last."""


def roots_of(places: list[Path]) -> list[Path]:
    """The folders to be watched: of a file, its folder, where its sub-agents' files appear too."""
    found: dict[Path, None] = {}
    for place in places:
        folder = place if place.is_dir() else place.parent
        found[folder.resolve()] = None
    return list(found)


class Follower:
    """Imports what is written to logs from now on.

    Args:
        importer: made with `live=True`.
        places: files and folders; of a file, the folder named like it (its sub-agents) belongs to it.
        go_on: asked now and then; False ends the following.
    """

    def __init__(
        self, writer: Writer, importer: Importer, places: list[Path], *, go_on: Callable[[], bool] = lambda: True
    ) -> None:
        self._writer = writer
        self._importer = importer
        self._places = [place.resolve() for place in places]
        self._go_on = go_on
        self._leases: OrderedDict[str, Lease | None] = OrderedDict()
        self._seen: dict[Path, tuple[int, float]] = {}
        self._grown: set[str] = set()
        self.ready = threading.Event()
        """Set when every line written from then on is followed."""

    def run(self, stop: threading.Event) -> None:
        """Follow until `stop` is set or `go_on` says no; then leave the sessions as finished ones."""
        self._seen = self._left_alone()
        look_at = 0.0
        try:
            for paths in self._changes(stop):
                if not self._go_on():
                    return
                self._take(paths)
                if time.monotonic() >= look_at:
                    began = time.monotonic()
                    self._look()
                    # Ten thousand logs are looked at less often: a few in a hundred of the time, at most.
                    look_at = time.monotonic() + max(LOOK_SECONDS, 30 * (time.monotonic() - began))
                self.ready.set()
        finally:
            self.close()

    def _changes(self, stop: threading.Event) -> Iterator[list[Path]]:
        """Files that changed, and now and then nothing, until `stop` is set."""
        from watchfiles import watch

        try:
            for changes in watch(
                *roots_of(self._places),
                watch_filter=lambda _, name: self._is_ours(Path(name)),
                debounce=DEBOUNCE_MILLISECONDS,
                step=STEP_MILLISECONDS,
                rust_timeout=500,
                yield_on_timeout=True,
                stop_event=stop,
                recursive=True,
                raise_interrupt=False,
            ):
                yield [Path(name) for _, name in changes]
        except (OSError, RuntimeError):
            # No file events here (watches exhausted, a folder gone): look at the files themselves.
            while not stop.wait(POLL_SECONDS):
                yield [each.path for each in self._find() if self._seen.get(each.path) != (each.size, each.modified_at)]

    def _left_alone(self) -> dict[Path, tuple[int, float]]:
        """Files that hold nothing new: imported as they are, or old and never imported. What was written to the others
        since they were imported, or while this began, is taken with the first look."""
        found = self._find()
        known = self._importer.marks(found)
        recent = time.time() - RECENT_SECONDS
        alone = {}
        for each in found:
            mark = known.get(finding.stored_path(each.path))
            if mark[:2] == (each.size, each.modified_at) if mark is not None else each.modified_at < recent:
                alone[each.path] = (each.size, each.modified_at)
        return alone

    def _find(self) -> list[finding.Found]:
        places = [*self._places, *(place.with_suffix("") for place in self._places if place.is_file())]
        return list(finding.find([place for place in places if place.exists()], self._may_be_log, lambda name, why: None))

    def _may_be_log(self, path: Path) -> bool:
        return self._importer.may_be_log(path)

    def _is_ours(self, path: Path) -> bool:
        path = _log_of(path)
        if not self._may_be_log(path):
            return False
        return any(path == place or place in path.parents or place.with_suffix("") in path.parents for place in self._places)

    def _look(self) -> None:
        """Whatever no event told of."""
        changed = [each.path for each in self._find() if self._seen.get(each.path) != (each.size, each.modified_at)]
        self._take(changed)

    def _take(self, paths: list[Path]) -> None:
        there: list[Path] = []
        for path in dict.fromkeys(map(_log_of, paths)):
            try:
                found = path.stat()
            except OSError:
                continue  # gone again
            self._seen[path] = (found.st_size, found.st_mtime)
            there.append(path)
        if not there:
            return
        try:
            report = self._importer.run(there)
        except StoreUnusable:
            for path in there:
                self._seen.pop(path, None)  # a lock or a full disk may pass: the next look tries again
            return
        for session_id in report.sessions - self._grown:
            self._hold(session_id)
        self._grown |= report.sessions
        for session_id in report.sessions:
            if session_id in self._leases:
                self._leases.move_to_end(session_id)
        report.sessions.clear()
        report.unknown.clear()

    def _hold(self, session_id: str) -> None:
        try:
            self._leases[session_id] = Lease.acquire(self._writer.path, session_id)
        except (DrivenElsewhere, StoreUnusable):
            return  # another follower holds it: two may follow one log, and take turns
        while len(self._leases) > LEASES:
            oldest, lease = self._leases.popitem(last=False)
            self._grown.discard(oldest)
            self._finish({oldest})
            if lease is not None:
                lease.release()

    def _finish(self, sessions: set[str]) -> None:
        self._writer.submit(lambda group: rows.end_following(group.connection, sorted(sessions))).result()

    def close(self) -> None:
        """Nothing is followed any more: no agent is at work as far as anybody here knows."""
        held = set(self._leases)
        if held:
            self._finish(held)
        for lease in self._leases.values():
            if lease is not None:
                lease.release()
        self._leases.clear()
        self._grown.clear()


def _log_of(path: Path) -> Path:
    """What is read when this file changes: of SQLite's write-ahead log, the database that it belongs to."""
    return path.with_name(path.name.removesuffix("-wal")) if path.name.endswith(".db-wal") else path
