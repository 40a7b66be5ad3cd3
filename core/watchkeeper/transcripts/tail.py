"""Finding one session of a program in its own records, and reading it from where the last reading stopped.

Nothing is stored: the caller takes from the records what it needs. The files may grow meanwhile; a line without an
end is read the next time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import cast

from watchkeeper.transcripts import files
from watchkeeper.transcripts.reading import by_name
from watchkeeper.transcripts.records import LineReader, Program, PullReader, Record, Session, Source

SESSION_LINES = 50
"""Lines at the beginning of a log among which one says whose it is."""


@dataclass(frozen=True, slots=True)
class FoundSession:
    """A session of another program."""

    session: str
    """The program's own id of it."""
    path: Path
    folder: str
    """Where it works; empty where its record does not say."""
    changed_at: float
    """When its record changed last (wall time)."""


def find_sessions(program: Program, name: str, environ: Mapping[str, str], home: Path) -> list[FoundSession]:
    """The sessions that `name` may mean: the path of a log, an id or the beginning of one.

    Raises:
        OSError: a record cannot be read.
    """
    given = Path(name).expanduser()
    places = [given] if given.is_file() else program.places(environ, home)
    prefix = "" if given.is_file() else name
    found: list[FoundSession] = []
    for place in places:
        if place.is_file() and program.fingerprint(place) is not None:
            found += _in_database(place, prefix)
        elif place.is_file():
            found += _in_log(program, place, prefix)
        elif place.is_dir():
            for path in sorted(place.rglob("*.jsonl")):
                if path.stem.startswith(prefix) or f"-{prefix}" in path.stem:
                    found += _in_log(program, path, prefix)
    exact = [one for one in found if one.session == name]
    return exact or found


def _in_log(program: Program, path: Path, prefix: str) -> Iterator[FoundSession]:
    reader = cast(LineReader, program.reader(_source(program, path), None))
    key, folder = "", ""
    with path.open("rb") as file:
        for number, line in enumerate(islice(file, SESSION_LINES), 1):
            for record in reader.feed(number, line.rstrip(b"\r\n")):
                if isinstance(record, Session):
                    key, folder = record.key or key, record.workspace or folder
            if key and folder:
                break
    if key.startswith(prefix) and key:
        yield FoundSession(key, path, folder, path.stat().st_mtime)


def _in_database(path: Path, prefix: str) -> Iterator[FoundSession]:
    from watchkeeper.transcripts import opencode

    with closing(opencode.connect(path)) as connection:
        if not {"id", "directory", "time_updated"} <= opencode.columns_of(connection)["session"]:
            return
        rows = connection.execute(
            "SELECT id, directory, time_updated FROM session WHERE substr(id, 1, length(?)) = ?",
            (prefix, prefix),
        )
        for session, folder, changed in rows.fetchall():
            yield FoundSession(str(session), path, str(folder or ""), float(changed or 0) / 1000)


@dataclass(slots=True)
class _File:
    """One file of JSON lines that grows."""

    reader: LineReader
    read_bytes: int = 0
    line: int = 0


@dataclass(slots=True)
class SessionTail:
    """What is new in the record of one session.

    Args:
        program: the name of a reader (`claude-code`, `codex`, `opencode`).
        path: the log, or the database that holds the session among others.
        session: the program's own id of the session.
    """

    program: str
    path: Path
    session: str
    _files: dict[Path, _File] = field(default_factory=dict)
    _passed: set[Path] = field(default_factory=set)
    _pull: PullReader | None = None
    _size: tuple[int, float] | None = None

    def read(self) -> list[Record]:
        """The records since the last call; empty where there is nothing yet.

        Raises:
            OSError: a file cannot be read.
        """
        program = by_name(self.program)
        if program is None or not self.path.exists():
            return []
        if program.fingerprint(self.path) is not None:
            return list(self._pulled(program))
        paths = [self.path, *program.logs_of_agents(self.path, self.session, self._passed)]
        return [record for path in paths for record in self._lines(program, path)]

    def _lines(self, program: Program, path: Path) -> Iterator[Record]:
        known = self._files.get(path)
        if known is None:
            known = self._files[path] = _File(cast(LineReader, program.reader(_source(program, path), None)))
        with path.open("rb") as file:
            file.seek(known.read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                known.read_bytes += len(line)
                known.line += 1
                yield from known.reader.feed(known.line, line.rstrip(b"\r\n"))

    def _pulled(self, program: Program) -> Iterator[Record]:
        found = program.fingerprint(self.path)
        if found == self._size:
            return
        self._size = found
        state = self._pull.save() if self._pull is not None else None
        reader = self._pull = cast(PullReader, program.reader(_source(program, self.path), state))
        mine = False
        for _, _, group in reader.pull():
            for record in group:
                if isinstance(record, Session):
                    mine = record.key == self.session
                if mine:
                    yield record


def _source(program: Program, path: Path) -> Source:
    companions = {one.name: one.read_bytes() for one in program.companions(path) if one.is_file()}
    return Source(path, files.read_file_head(path), companions)
