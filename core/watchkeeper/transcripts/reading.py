"""Reading one log: whose it is, from where to go on, and its records in pieces that become transactions."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import islice, repeat
from pathlib import Path
from typing import Any, BinaryIO, cast

from watchkeeper.records.readers import ENTRY_POINTS, READERS
from watchkeeper.records.redact import Redactor
from watchkeeper.store import imports as rows
from watchkeeper.store.driver import Connection, Queries
from watchkeeper.store.engine import index_of
from watchkeeper.store.quota import note_readings
from watchkeeper.transcripts import files
from watchkeeper.transcripts.batch import Batch, write_calls
from watchkeeper.transcripts.files import Line
from watchkeeper.transcripts.records import (
    LineReader,
    Program,
    PullReader,
    QuotaReport,
    Raw,
    Record,
    Session,
    Skipped,
    Source,
    parse,
    same_bytes,
)
from watchkeeper.transcripts.session_importer import DRIVEN, SessionImporter

# Which programs can be read, and which of them wrote a file: its content decides, not its place.


def _any_packaged() -> bool:
    """Whether an installed package may add a reader. Asked first: loading `importlib.metadata` takes 30 ms and 3 MB."""
    group = f"[{ENTRY_POINTS}]".encode()
    for folder in dict.fromkeys(sys.path):
        for names in Path(folder).glob("*-info/entry_points.txt"):
            try:
                if group in names.read_bytes():
                    return True
            except OSError:
                continue
    return False


@cache
def packaged() -> tuple[dict[str, Program], dict[str, str]]:
    """The readers that packages of others add by entry points: programs by name, and why others are not used."""
    if not _any_packaged():
        return {}, {}
    from importlib.metadata import entry_points

    taken = {word for each in READERS for word in (each.name, each.alias)}
    found: dict[str, Program] = {}
    left: dict[str, str] = {}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda each: (each.name, each.value)):
        try:
            program = point.load()
            if not isinstance(program, Program):
                raise TypeError(f"{point.value} is not a Program")
            if program.name != point.name:
                raise ValueError(f"the entry point must have the name of its program, {program.name}")
            if clash := taken & {program.name, program.alias}:
                raise ValueError(f"another reader is already called {min(clash)}")
        except Exception as error:  # a package of others must not keep the rest from being read
            left[point.name] = f"{type(error).__name__}: {error}"
            continue
        taken |= {program.name, program.alias}
        found[program.name] = program
    return found, left


@cache
def programs() -> tuple[Program, ...]:
    """Every program whose logs can be read, in the order of the table, packages of others last."""
    return (*(import_module(each.module).PROGRAM for each in READERS), *packaged()[0].values())


def by_name(name: str) -> Program | None:
    """The program of that name or alias."""
    return next((each for each in programs() if name in (each.name, each.alias)), None)


def program_of(source: Source) -> Program | None:
    """The program that wrote this log, or None if it is unknown.

    The last of the table is asked first: a form that resembles another one is recognised by more than that one.
    """
    return next((each for each in reversed(programs()) if _recognises(each, source)), None)


def _recognises(program: Program, source: Source) -> bool:
    try:
        return program.recognises(source)
    except Exception:  # it cannot read what it fails on, and another one may
        return False


# Which lines may hold a secret: several lines are searched at once, because most hold none.

_AT_ONCE = 32 * 1024
"""Bytes of lines that are searched together: fewer cost more calls, and more are searched again where one is
suspected."""


def search_lines(lines: Iterable[Line], suspects: Callable[[bytes], bool]) -> Iterator[tuple[Line, bool]]:
    """Each line, and whether it may hold a secret. Reads a few lines ahead."""
    waiting: list[Line] = []
    size = 0
    for line in lines:
        waiting.append(line)
        size += len(line[0])
        if size >= _AT_ONCE:
            yield from _searched(waiting, suspects)
            waiting, size = [], 0
    yield from _searched(waiting, suspects)


def _searched(lines: list[Line], suspects: Callable[[bytes], bool]) -> Iterable[tuple[Line, bool]]:
    # Together they hold none, as a rule. A line alone is searched once.
    if len(lines) > 1 and not suspects(b"\n".join([line[0] for line in lines])):
        return zip(lines, repeat(False), strict=False)
    return ((line, suspects(line[0])) for line in lines)


# Which lines are stored raw already, when a log is read again.


class RawDedup:
    """The lines that were kept raw of one log, each to be found once more as often as it is kept.

    They are read once for a reading, as a number each. A batch may be run twice: what a chunk found is there
    again when the chunk begins again.
    """

    def __init__(self) -> None:
        self._left: dict[str, Counter[int]] = {}
        """By session."""
        self._found: dict[int, list[tuple[str, int]]] = {}
        """By where in the log the chunk begins that found them."""
        self._place = 0

    def begin(self, place: int) -> None:
        """A chunk begins at this place of the log."""
        for later in [each for each in self._found if each >= place]:
            for session_id, number in self._found.pop(later):
                self._left[session_id][number] += 1
        self._place = place

    def holds(self, cursor: Any, path: str, session_id: str, text: str) -> bool:
        """Whether this line is kept already."""
        left = self._left.get(session_id)
        if left is None:
            left = self._left[session_id] = rows.raw_kept(cursor, path, session_id, _number_of)
        number = _number_of(text)
        if left[number] <= 0:
            return False
        left[number] -= 1
        self._found.setdefault(self._place, []).append((session_id, number))
        return True


def _number_of(text: str) -> int:
    """A number for what a line says, however its JSON is written."""
    record = parse(text.encode("utf-8", "replace"))
    return hash(text if record is None else same_bytes(record))


# One batch of an import as one transaction: rows of every session in it, and how far each file was read.


class Overtaken(Exception):
    """Another importer read one of the files meanwhile; nothing was written."""


@dataclass(slots=True)
class Chunk:
    """A piece of one file, read and understood, with where it ends."""

    path: Path
    stored_path: str
    program: str
    before: rows.FileRow | None
    """The file's row as it must be when this is written; of a later chunk of the same file, see `follows`."""
    first: bool = False
    """The first of its file in this import."""
    again: bool = False
    """The file was rewritten or cut: all of it is read once more, and what is here already is recognised."""
    kept: RawDedup | None = None
    """What was kept raw before, for every chunk of a reading once more."""
    rereads: dict[str, bool] | None = None
    """By session, for every chunk of a reading from the log's beginning: whether something of it was here
    before."""
    follows: bool = False
    """An earlier chunk of this import comes before it."""
    begins: int = 0
    session: str | None = None
    """Key of the session to which its first records belong."""
    groups: list[tuple[int, bytes, list[Record]]] = field(default_factory=list)
    line: int = 0
    written_at: float = 0.0
    """When its file was last written to: the time of records that have none."""
    waiting: bool = False
    bytes: int = 0
    read_bytes: int = 0
    size: int = 0
    modified_at: float = 0.0
    head: str = ""
    tail: str = ""
    state: dict[str, Any] = field(default_factory=dict)

    def next(self) -> Chunk:
        """The chunk that begins where this one ends."""
        return Chunk(
            self.path, self.stored_path, self.program, None, kept=self.kept, rereads=self.rereads, follows=True,
            begins=self.read_bytes, line=self.line, written_at=self.written_at,
        )  # fmt: skip


@dataclass(slots=True)
class Counts:
    """What one batch did with its lines."""

    read: int = 0
    raw: Counter[tuple[str, str]] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    sessions: set[str] = field(default_factory=set)
    waiting: int = 0
    changed: int = 0


def apply(batch: Batch, connection: Connection, chunks: list[Chunk]) -> Counts:
    """Write a batch, and index what it says.

    Raises:
        Overtaken: a file's row says otherwise than when the file was read.
    """
    batch.ids.update(rows.last_ids(connection))
    batch.stored_tool_calls = batch.ids["tool_calls"]
    counts = Counts()
    sessions: dict[tuple[str, str], SessionImporter] = {}
    for chunk in chunks:
        _apply_chunk(batch, connection, chunk, sessions, counts)
    counts.changed = batch.revised
    folds = [fold for fold in sessions.values() if fold.changed and not fold.left_out]
    finished = [fold.finish() for fold in folds]
    write_calls(batch)
    batch.into.flush(
        batch.cursor, [row for row, _ in finished], [agent for _, agents in finished for agent in agents]
    )
    if batch.quota:
        note_readings(Queries(connection), batch.cursor.execute, batch.quota)
    rows.roll_up(batch.cursor, [fold.id for fold in folds], live=batch.live)
    index_of(connection).index_inserted(batch.indexed)
    return counts


def _apply_chunk(
    batch: Batch,
    connection: Connection,
    chunk: Chunk,
    sessions: dict[tuple[str, str], SessionImporter],
    counts: Counts,
) -> None:
    row = rows.load_file(connection, chunk.stored_path)
    if chunk.follows:
        if row is None or row.read_bytes != chunk.begins:
            raise Overtaken
    elif row != chunk.before:
        raise Overtaken
    key = chunk.session or (row.state.get("session") if row is not None and chunk.follows else None)
    fold = sessions.get((chunk.program, key)) if key else None
    if key and fold is None:
        fold = sessions[chunk.program, key] = SessionImporter(batch, chunk.program, key)
    kept = chunk.kept
    if kept is not None:
        kept.begin(chunk.begins)
    last: SessionImporter | None = None
    tally = [0, 0]
    named_first = next(
        (each.key for _, _, group in chunk.groups for each in group if type(each) is Session), None
    )
    anchors = batch.look_up(chunk.program, key or named_first or chunk.stored_path, chunk.groups)
    for (number, data, group), anchor in zip(chunk.groups, anchors, strict=True):
        if type(group[0]) is Session and (fold is None or fold.key != group[0].key):
            fold = sessions.get((chunk.program, group[0].key))
            if fold is None:
                fold = sessions[chunk.program, group[0].key] = SessionImporter(
                    batch, chunk.program, group[0].key
                )
        if fold is None and type(group[0]) is Skipped:
            counts.skipped[group[0].reason] += 1
            tally[1] += 1
            continue  # nothing is kept of it, so that no session is needed yet
        if fold is None:
            fold = sessions[chunk.program, chunk.stored_path] = SessionImporter(
                batch, chunk.program, chunk.stored_path
            )
        if fold is not last:
            last = fold
            fold.begin(chunk.written_at, chunk.rereads, goes_on=chunk.follows or chunk.rereads is None)
            if not fold.left_out:
                counts.sessions.add(fold.id)
        if fold.left_out:
            counts.skipped[fold.left_out] += 1
            tally[1] += 1
            batch.quota += [one for each in group if type(each) is QuotaReport for one in each.readings]
            continue
        outcome = fold.take(group, data, anchor)
        if outcome is None:
            counts.read += 1
        elif type(outcome) is Raw:
            text = _text(data)
            if kept is not None and kept.holds(batch.cursor, chunk.stored_path, fold.id, text):
                counts.skipped["stored already"] += 1
                tally[1] += 1
                continue
            counts.raw[outcome] += 1
            tally[0] += 1
            batch.into["raw"].append((fold.id, chunk.stored_path, number, outcome.kind, outcome.reason, text))
        else:
            counts.skipped[outcome.reason] += 1
            tally[1] += 1
    if fold is not None and not fold.left_out:
        counts.sessions.add(fold.id)
    counts.waiting += int(chunk.waiting)
    old = row if row is not None and not chunk.again else None
    rows.save_file(
        connection,
        rows.FileRow(
            chunk.stored_path, chunk.program, fold.id if fold is not None and fold.left_out != DRIVEN else None, chunk.size, chunk.modified_at,
            chunk.read_bytes, chunk.head, chunk.tail, chunk.state | {"session": fold.key if fold is not None else key},
            chunk.line, (old.lines_raw if old else 0) + tally[0], (old.lines_skipped if old else 0) + tally[1], batch.now,
        ),
    )  # fmt: skip


def _text(data: bytes) -> str:
    """A line as it is kept raw."""
    return data.decode("utf-8", "backslashreplace")


NOTHING_GIVEN = Raw("?", "the reader returned nothing for it")
TOO_LONG = Raw("?", "larger than 64 MiB: only its beginning is kept")


def open_log(
    found: files.Found, row: rows.FileRow | None, only: Program | None, redactor: Redactor
) -> OpenLog | None:
    """The log with its program and what goes with it; None where it is no log of a program that is asked for
    (or empty).

    `redactor` takes secrets out of each line before its reader sees it.

    Raises:
        OSError: it cannot be read.
    """
    source = Source(found.path, files.read_file_head(found.path))
    known = next((each for each in programs() if row is not None and each.name == row.program), None)
    if known is not None and not (known.may_be_log(found.path) or known.recognises(source)):
        known = None  # an earlier version read logs of this form
    program = known or program_of(source)
    few = (
        known is None
        and found.path.suffix == ".jsonl"
        and source.head.find(b"\n", source.head.find(b"\n") + 1) < 0
    )
    if (program is None or few) and (head := files.read_past(found.path, source.head)):
        source = Source(found.path, head)
        program = program_of(source)
    if program is None or (only is not None and program is not only):
        return None
    companions = {name: redactor.line(data) for name, data in _companions(program, found.path).items()}
    return OpenLog(found, row, program, Source(source.path, source.head, companions), redactor)


class OpenLog:
    """One log that is about to be read.

    Args:
        row: how far it was read before.
    """

    def __init__(
        self,
        found: files.Found,
        row: rows.FileRow | None,
        program: Program,
        source: Source,
        redactor: Redactor,
    ) -> None:
        self._found = found
        self._redactor = redactor
        self._row = row
        self._program = program
        self._source = source
        self._stored_path = files.stored_path(found.path)
        self._mark = program.fingerprint(found.path)

    @property
    def of_one_session(self) -> bool:
        """All of it belongs to one session."""
        return self._mark is None

    @property
    def unchanged(self) -> bool:
        """Nothing is new in it, as far as that is known without reading."""
        row, mark = self._row, self._mark
        return (
            row is not None
            and mark is not None
            and (row.read_bytes, row.head_digest) == (mark[0], repr(mark[1]))
        )

    def chunks(self, size: int) -> Iterator[Chunk]:
        """What is new, in pieces of about `size` bytes; the last one ends the reading, also when it holds
        nothing.

        Raises:
            OSError: it cannot be read any further.
        """
        if self._mark is not None:
            yield from self._pulled(self._mark, size)
        else:
            with files.open_log(self._found.path, files.BUFFER_BYTES) as file:
                yield from self._lines(file, size)

    def _lines(self, file: BinaryIO, size: int) -> Iterator[Chunk]:
        found, row = self._found, self._row
        again = row is not None and (
            file.seek(0, os.SEEK_END) < row.read_bytes
            or not files.still_holds(file, row.read_bytes, row.head_digest, row.tail_digest)
        )
        # A first line that is not whole yet says nothing: what its reader guessed is not kept.
        before = row if row is not None and row.read_bytes and not again else None
        reader: Any = self._program.reader(self._source, before.state["reader"] if before else None)
        # How far it was read before: a log that was cut may grow back to what it was, in any number of steps.
        reread = (
            max(row.read_bytes, row.state.get("reread", 0))
            if again and row
            else before.state.get("reread", 0)
            if before
            else 0
        )
        chunk = self._first(again, bool(reread))
        open_end = bool(before and before.state.get("open_end"))
        start = place = before.read_bytes if before else 0
        number, taken, add = chunk.line, 0, chunk.groups.append
        for (data, line_end, line_size, ended), suspect in search_lines(
            files.read_lines(file, start), self._redactor.suspects
        ):
            if open_end or not ended:
                if open_end and not data and ended:
                    # The newline of a last line that was whole without it.
                    open_end, place = False, line_end
                    continue
                if not ended and (line_size > files.LONGEST_LINE or parse(data) is None):
                    chunk.waiting, open_end = True, False
                    break
                open_end = not ended
            place = line_end
            if suspect:
                data = self._redactor.line(data)
            number += 1
            add((number, data, _feed(reader, number, data, line_size)))
            taken += line_size + 1
            if taken >= size:
                # Before its end, a file's row must not look like the whole file's.
                chunk.line, chunk.bytes = number, taken
                yield _ended(chunk, file, place, reader, open_end, (place, 0.0), reread)
                chunk = chunk.next()
                taken, add = 0, chunk.groups.append
        chunk.line, chunk.bytes = number, taken
        yield _ended(
            chunk,
            file,
            place,
            reader,
            open_end,
            (found.size, found.modified_at),
            reread if place < reread else 0,
        )

    def _pulled(self, mark: tuple[int, float], size: int) -> Iterator[Chunk]:
        row = self._row
        reader: Any = self._program.reader(self._source, row.state["reader"] if row is not None else None)
        chunk = self._first(again=False, reread=False)

        def end(read_bytes: int, head: str) -> Chunk:
            # The file alone does not tell whether something is new, so that its size says nothing.
            chunk.size, chunk.modified_at = -1, self._found.modified_at
            chunk.read_bytes, chunk.head = read_bytes, head
            chunk.state = {"reader": reader.save(), "open_end": False}
            return chunk

        for line, data, records in reader.pull():
            if self._redactor.suspects(data):
                data, records = self._redactor.line(data), self._redactor(records)
            chunk.line = line
            chunk.groups.append((line, data, records or [NOTHING_GIVEN]))
            chunk.bytes += len(data)
            if chunk.bytes >= size:
                yield end(0, "")
                chunk = chunk.next()
        yield end(mark[0], repr(mark[1]))

    def _first(self, again: bool, reread: bool) -> Chunk:
        row = self._row
        chunk = Chunk(
            self._found.path, self._stored_path, self._program.name, row,
            first=True, again=again, kept=RawDedup() if reread else None, written_at=self._found.modified_at,
        )  # fmt: skip
        if row is not None and not again:
            chunk.session, chunk.line = row.state["session"], row.lines
        else:
            chunk.rereads = {}
        return chunk


def _ended(
    chunk: Chunk,
    file: BinaryIO,
    place: int,
    reader: LineReader,
    open_end: bool,
    looks: tuple[int, float],
    reread: int = 0,
) -> Chunk:
    """The chunk with where it ends and what the file looks like then; `reread`: what comes up to there was
    read before as well."""
    here = file.tell()
    chunk.read_bytes = place
    chunk.size, chunk.modified_at = looks
    chunk.head, chunk.tail = files.mark(file, place), files.mark(file, place, at_end=True)
    chunk.state = {"reader": reader.save(), "open_end": open_end} | ({"reread": reread} if reread else {})
    file.seek(here)
    return chunk


def _feed(reader: LineReader, number: int, data: bytes, size: int) -> list[Record]:
    try:
        found = reader.feed(number, data)
        if size > files.LONGEST_LINE:
            return [
                *(each for each in found if type(each) is Session),
                TOO_LONG,
            ]  # its beginning alone says nothing
    except Exception as error:  # a reader must not; one that does loses no line for it
        return [Raw("?", f"reader error ({type(error).__name__})")]
    return found or [NOTHING_GIVEN]


def _companions(program: Program, path: Path) -> dict[str, bytes]:
    found = {}
    for each in program.companions(path):
        try:
            found[each.name] = files.read_file_head(each)
        except OSError:
            continue  # most files have none
    return found


# --- One session of a program, from where the last reading stopped --------------------------------------
#
# Nothing is stored here: the caller takes from the records what it needs. The files may grow meanwhile; a line without an
# end is read the next time.

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
