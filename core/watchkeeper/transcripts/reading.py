"""Reading one log: whose it is, from where to go on, and its records in pieces that become transactions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from watchkeeper.records.redact import Redactor
from watchkeeper.store import transcripts as rows
from watchkeeper.transcripts import finding, lines, packed
from watchkeeper.transcripts.applying import Chunk
from watchkeeper.transcripts.jsontext import parse
from watchkeeper.transcripts.keptraw import KeptRaw
from watchkeeper.transcripts.records import LineReader, Program, Raw, Record, Session, Source
from watchkeeper.transcripts.registry import program_of, programs
from watchkeeper.transcripts.suspicion import suspicion, with_suspicion

NOTHING_GIVEN = Raw("?", "the reader gave nothing for it")
TOO_LONG = Raw("?", "longer than 64 MiB: its beginning is kept")


def open_log(
    found: finding.Found, row: rows.FileRow | None, only: Program | None, redactor: Redactor
) -> OpenLog | None:
    """The log with its program and what goes with it; None where it is no log of a program that is asked for
    (or empty).

    `redactor` takes secrets out of each line before its reader sees it.

    Raises:
        OSError: it cannot be read.
    """
    source = Source(found.path, finding.read_head(found.path))
    known = next((each for each in programs() if row is not None and each.name == row.program), None)
    program = known or program_of(source)
    few = (
        known is None
        and found.path.suffix == ".jsonl"
        and source.head.find(b"\n", source.head.find(b"\n") + 1) < 0
    )
    if (program is None or few) and (head := finding.read_past(found.path, source.head)):
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
        found: finding.Found,
        row: rows.FileRow | None,
        program: Program,
        source: Source,
        redactor: Redactor,
    ) -> None:
        self._found = found
        self._redactor = redactor
        self._suspects = suspicion(redactor)
        self._row = row
        self._program = program
        self._source = source
        self._stored_path = finding.stored_path(found.path)
        self._mark = program.fingerprint(found.path)

    @property
    def of_one_session(self) -> bool:
        """All of it belongs to one session."""
        return self._mark is None

    @property
    def unchanged(self) -> bool:
        """Nothing is new in it, as far as that can be told without reading."""
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
            with packed.open_log(self._found.path, lines.BUFFER_BYTES) as file:
                yield from self._lines(file, size)

    def _lines(self, file: BinaryIO, size: int) -> Iterator[Chunk]:
        found, row = self._found, self._row
        again = row is not None and (
            file.seek(0, os.SEEK_END) < row.read_bytes
            or not lines.still_holds(file, row.read_bytes, row.head_digest, row.tail_digest)
        )
        before = None if again else row
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
        for suspect, (data, line_end, line_size, ended) in with_suspicion(
            lines.read_lines(file, start), self._suspects
        ):
            if open_end or not ended:
                if open_end and not data and ended:
                    # The newline of a last line that was whole without it.
                    open_end, place = False, line_end
                    continue
                if not ended and (line_size > lines.LONGEST_LINE or parse(data) is None):
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
            if self._suspects(data):
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
            first=True, again=again, kept=KeptRaw() if reread else None, written_at=self._found.modified_at,
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
    chunk.head, chunk.tail = lines.mark(file, place), lines.mark(file, place, at_end=True)
    chunk.state = {"reader": reader.save(), "open_end": open_end} | ({"reread": reread} if reread else {})
    file.seek(here)
    return chunk


def _feed(reader: LineReader, number: int, data: bytes, size: int) -> list[Record]:
    try:
        found = reader.feed(number, data)
        if size > lines.LONGEST_LINE:
            return [
                *(each for each in found if type(each) is Session),
                TOO_LONG,
            ]  # its beginning alone says nothing
    except Exception as error:  # a reader must not; one that does loses no line for it
        return [Raw("?", f"the reader failed on it ({type(error).__name__})")]
    return found or [NOTHING_GIVEN]


def _companions(program: Program, path: Path) -> dict[str, bytes]:
    found = {}
    for each in program.companions(path):
        try:
            found[each.name] = finding.read_head(each)
        except OSError:
            continue  # most files have none
    return found
