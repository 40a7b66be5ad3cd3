"""One batch of an import as one transaction: rows of every session in it, and how far each file was read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.store import transcripts as rows
from watchkeeper.store.driver import Connection
from watchkeeper.store.message_index import index_inserted
from watchkeeper.transcripts.batch import Batch
from watchkeeper.transcripts.keptraw import KeptRaw
from watchkeeper.transcripts.records import Raw, Record, Session, Skipped
from watchkeeper.transcripts.sessionfold import SessionFold


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
    kept: KeptRaw | None = None
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
    counts = Counts()
    sessions: dict[tuple[str, str], SessionFold] = {}
    for chunk in chunks:
        _apply_chunk(batch, connection, chunk, sessions, counts)
    counts.changed = batch.revised
    folds = [fold for fold in sessions.values() if fold.changed and not fold.deleted]
    finished = [fold.finish() for fold in folds]
    batch.into.flush(
        batch.cursor, [row for row, _ in finished], [agent for _, agents in finished for agent in agents]
    )
    index_inserted(connection, batch.indexed)
    return counts


def _apply_chunk(
    batch: Batch,
    connection: Connection,
    chunk: Chunk,
    sessions: dict[tuple[str, str], SessionFold],
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
        fold = sessions[chunk.program, key] = SessionFold(batch, chunk.program, key)
    kept = chunk.kept
    if kept is not None:
        kept.begin(chunk.begins)
    last: SessionFold | None = None
    tally = [0, 0]
    named_first = next(
        (each.key for _, _, group in chunk.groups for each in group if type(each) is Session), None
    )
    anchors = batch.look_up(chunk.program, key or named_first or chunk.stored_path, chunk.groups)
    for (number, data, group), anchor in zip(chunk.groups, anchors, strict=True):
        if type(group[0]) is Session and (fold is None or fold.key != group[0].key):
            fold = sessions.get((chunk.program, group[0].key))
            if fold is None:
                fold = sessions[chunk.program, group[0].key] = SessionFold(batch, chunk.program, group[0].key)
        if fold is None and type(group[0]) is Skipped:
            counts.skipped[group[0].reason] += 1
            tally[1] += 1
            continue  # nothing is kept of it, so that no session is needed yet
        if fold is None:
            fold = sessions[chunk.program, chunk.stored_path] = SessionFold(
                batch, chunk.program, chunk.stored_path
            )
        if fold is not last:
            last = fold
            fold.begin(chunk.written_at, chunk.rereads, goes_on=chunk.follows or chunk.rereads is None)
            if not fold.deleted:
                counts.sessions.add(fold.id)
        if fold.deleted:
            counts.skipped["of a session that was deleted here"] += 1
            tally[1] += 1
            continue
        outcome = fold.take(group, data, anchor)
        if outcome is None:
            counts.read += 1
        elif type(outcome) is Raw:
            text = _text(data)
            if kept is not None and kept.holds(batch.cursor, chunk.stored_path, fold.id, text):
                counts.skipped["kept raw already"] += 1
                tally[1] += 1
                continue
            counts.raw[outcome] += 1
            tally[0] += 1
            batch.into["raw"].append((fold.id, chunk.stored_path, number, outcome.kind, outcome.reason, text))
        else:
            counts.skipped[outcome.reason] += 1
            tally[1] += 1
    if fold is not None and not fold.deleted:
        counts.sessions.add(fold.id)
    counts.waiting += int(chunk.waiting)
    old = row if row is not None and not chunk.again else None
    rows.save_file(
        connection,
        rows.FileRow(
            chunk.stored_path, chunk.program, fold.id if fold is not None else None, chunk.size, chunk.modified_at,
            chunk.read_bytes, chunk.head, chunk.tail, chunk.state | {"session": fold.key if fold is not None else key},
            chunk.line, (old.lines_raw if old else 0) + tally[0], (old.lines_skipped if old else 0) + tally[1], batch.now,
        ),
    )  # fmt: skip


def _text(data: bytes) -> str:
    """A line as it is kept raw."""
    return data.decode("utf-8", "backslashreplace")
