"""OpenCode's sessions: the database `~/.local/share/opencode/opencode.db`, with sessions, messages, parts and to-do lists as
rows, most of what they hold as JSON in `data`.

It is opened for reading only, and another process may write to it meanwhile. What is new is found by
`time_updated`, and by row numbers where a clock went back. What was given is saved session by session, so
that a reading may be interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from copy import deepcopy
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.transcripts.opencode.conversation import (
    NOT_FOR_US,
    Conversation,
    Group,
    Part,
    Stored,
    digest,
)
from watchkeeper.transcripts.records import (
    Program,
    PullReader,
    Raw,
    Record,
    Source,
    list_of,
    object_of,
    parse,
    text_of,
)

# --- The database ---------------------------------------------------------------------------------------

# The database as a file: opened for reading only, and recognised by its tables.

BUSY_SECONDS = 5.0
TABLES = ("session", "session_v2", "message", "part", "todo", "session_message")
_FORMAT_AT, _WAL = 18, b"\x02\x02"
"""Where a database's head tells that it has a write-ahead log."""
_NEEDED = {"session": {"id"}, "message": {"id", "session_id", "data"}, "part": {"id", "message_id", "data"}}


def connect(path: Path) -> Connection:
    """The database, for reading only.

    Raises:
        OSError: it cannot be opened or is none.
    """
    name = quote(str(path))
    # Where no process has it open and the folder cannot be written to, only `immutable` reads a database in WAL
    # mode.
    for options in ("mode=ro", "mode=ro&immutable=1"):
        try:
            connection = sqlite3.connect(
                f"file:{name}?{options}", uri=True, timeout=BUSY_SECONDS, isolation_level=None
            )
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            failure = error
            continue
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        return connection
    raise OSError(f"not a readable database: {failure}")


def columns_of(connection: Connection) -> dict[str, set[str]]:
    """The columns of those tables that are there."""
    return {table: {row[1] for row in connection.execute(f"PRAGMA table_info({table})")} for table in TABLES}


def is_database(path: Path) -> bool:
    """Whether it is OpenCode's."""
    try:
        with closing(connect(path)) as connection:
            columns = columns_of(connection)
    except (OSError, sqlite3.Error):
        return False
    return _has_sessions(columns)


def lacks_log(path: Path, head: bytes) -> bool:
    """Whether it may be OpenCode's, by its name alone: what makes it so may be in a write-ahead log that is
    not here."""
    return (
        path.name.startswith("opencode")
        and head[_FORMAT_AT : _FORMAT_AT + 2] == _WAL
        and not is_database(path)
    )


def check_sessions(columns: dict[str, set[str]], path: Path) -> None:
    """Raises:
    OSError: no table of sessions is there.
    """
    if not _has_sessions(columns):
        raise OSError(
            f"it contains no sessions; they may be in its write-ahead log: also copy {path.name}-wal"
        )


def _has_sessions(columns: dict[str, set[str]]) -> bool:
    return any(
        all(needed <= columns[table] for table, needed in wanted.items()) for wanted in (_NEEDED, *NEEDED)
    )


# OpenCode 2: messages are rows of one table, each with its parts inside. They are converted to the earlier form.
#
# `session_message` holds a row for each message by its `seq`: what a person or the program said, a reply with
# its content (texts, reasoning, tools) and its usage, a compaction with its summary, and notes of switches.

ROWS = {"id", "session_id", "type", "data"}
"""Columns that `session_message` needs."""
NEEDED = tuple({table: {"id"}, "session_message": ROWS} for table in ("session_v2", "session"))
"""Tables that a database needs to hold such sessions: their own are named `session_v2`, or as before."""
NOTES = frozenset({"agent-switched", "display", "idle", "invocation", "location-switched", "model-switched"})
"""Types of rows that are known, not shown."""
_ASKED = "#asked"
_STATUS = {"streaming": "pending"}

SAID_AGAIN = "duplicated in a message of its session"

Value = dict[str, Any]
Converted = tuple[Value, list[Value]]
"""What a row says of its message beside its id and time, and its parts."""


def sessions_of(connection: Connection, columns: dict[str, set[str]]) -> dict[str, str]:
    """Sessions whose messages are rows of `session_message`, and the table that each one's own row is in.

    Rows of the tables from before may stand beside for the same session: with `session_v2` they are what it
    was before it was carried over, without it they say the same as these, and go before.
    """
    if not columns["session_message"] >= ROWS:
        return {}
    of_message = "SELECT DISTINCT session_id FROM session_message WHERE type IN (?, ?, ?, ?, ?, ?, ?)"
    spoken = {str(row[0]) for row in connection.execute(of_message, tuple(_ROWS))}
    own = _distinct(connection, columns, "session_v2", "id")
    before = _distinct(connection, columns, "session", "id")
    if not columns["message"]:
        spoken |= before  # nothing else can have been said in them
    twice = _distinct(connection, columns, "message", "session_id") if spoken - own else set()
    found = dict.fromkeys(spoken - twice, "session" if columns["session"] else "session_v2")
    return found | {each: "session_v2" for each in own if each in spoken or each not in before}


def _distinct(connection: Connection, columns: dict[str, set[str]], table: str, column: str) -> set[str]:
    if column not in columns[table]:
        return set()
    return {str(row[0]) for row in connection.execute(f"SELECT DISTINCT {column} FROM {table}")}  # noqa: S608


def reason_of(kind: str) -> str:
    """Why a row beside a session's messages is kept raw."""
    return NOT_FOR_US if kind in NOTES else SAID_AGAIN if kind in _ROWS else "unknown record type"


class Row(NamedTuple):
    """One row of `session_message`."""

    id: str
    type: str
    created: Any
    data: bytes


def stored(row: Row, *, changed: bool, model: Value) -> Stored | None:
    """The row as a message with parts; None where it is none (a note, an unknown type).

    `model` is the one that the last reply before it names.
    """
    value = parse(row.data)
    if value is None:
        return Stored(row.id, row.data, None, [], changed)
    converted = _ROWS.get(row.type)
    if converted is None:
        return None
    times = value.get("time")
    times = dict(times) if isinstance(times, dict) else {"created": row.created}
    about, pieces = converted(row.id, value, times, model)
    info = {"id": row.id, "time": times, "role": "user"} | about
    # A row says at once what it says: its parts tell nothing of their own.
    parts = [
        Part(f"{row.id}.{place}", _json_of_v2(piece), piece, changed) for place, piece in enumerate(pieces)
    ]
    return Stored(row.id, row.data, info, parts, changed)


def asked(message_id: str, reason: Any) -> Stored:
    """What asked for a compaction: its own row tells."""
    value = {"type": "compaction", "auto": reason != "manual"}
    return Stored(
        message_id, b"", {"id": message_id, "role": "user", "time": {}}, [Part(message_id, b"", value)]
    )


def compaction_of(message_id: str) -> str | None:
    """The compaction that a name of what asked for one belongs to."""
    return message_id.removesuffix(_ASKED) if message_id.endswith(_ASKED) else None


def _of_person(row_id: str, value: Value, times: Value, model: Value) -> Converted:
    return {}, [_text(value), *map(_file, list_of(value.get("files")))]


def _of_program(row_id: str, value: Value, times: Value, model: Value) -> Converted:
    return {}, [_text(value) | {"synthetic": True}, *map(_file, list_of(value.get("files")))]


def _shell(row_id: str, value: Value, times: Value, model: Value) -> Converted:
    """A command that the person ran themselves."""
    output = value.get("output")
    said = output.get("output") or output.get("text") if isinstance(output, dict) else output
    text = f"$ {value.get('command')}\n{said or ''}".rstrip()
    return {}, [{"type": "text", "text": text, "synthetic": True}]


def _assistant(row_id: str, value: Value, times: Value, model: Value) -> Converted:
    ended = times.get("completed") is not None or isinstance(value.get("error"), dict)
    pieces = [_content(each, times, ended=ended) for each in list_of(value.get("content"))]
    if isinstance(value.get("retry"), dict):
        pieces.append(_retry(value["retry"]))
    return _reply(value), pieces


def _compaction(row_id: str, value: Value, times: Value, model: Value) -> Converted:
    """As the reply that held the summary: done, failed, or still being written."""
    info = _reply(value) | _model(model) | {"summary": True, "parentID": f"{row_id}{_ASKED}"}
    if value.get("status", "completed") == "completed" and value.get("summary"):
        info["time"] = {"completed": times.get("created"), **times}
    names = ("summary", "recent")
    return info, [{"type": "text", "text": value[name]} for name in names if text_of(value.get(name))]


_ROWS: dict[str, Callable[[str, Value, Value, Value], Converted]] = {
    "user": _of_person,
    "assistant": _assistant,
    "compaction": _compaction,
    "shell": _shell,
    "skill": _of_program,
    "synthetic": _of_program,
    "system": _of_program,
}
"""How a row that says something is converted, by its type: from its id, value, times and the model before it."""


def _reply(value: Value) -> Value:
    info: Value = {
        "role": "assistant",
        **{name: value[name] for name in ("finish", "cost", "tokens") if name in value},
    }
    info |= _model(value.get("model"))
    error = value.get("error")
    if isinstance(error, dict):
        info["error"] = _error(error)
    return info


def _model(model: Any) -> Value:
    about = object_of(model)
    return {"modelID": about.get("id"), "providerID": about.get("providerID")}


def _error(error: Value) -> Value:
    kind = str(error.get("type") or "")
    stopped = "abort" in kind or "interrupt" in kind
    return {"name": "MessageAbortedError" if stopped else kind, "message": error.get("message") or kind}


def _text(value: Value) -> Value:
    return {"type": "text", "text": value.get("text")}


def _file(value: Any) -> Value:
    about = object_of(value)
    return {
        "type": "file",
        "mime": about.get("mime"),
        "url": about.get("uri") or about.get("url"),
        "filename": about.get("name"),
    }


def _retry(value: Value) -> Value:
    return {
        "type": "retry",
        "error": _error(object_of(value.get("error"))),
        "time": {"created": value.get("at")},
    }


def _content(piece: Any, times: Value, *, ended: bool) -> Value:
    """A piece of a reply as a part; what has no end is finished where the reply is."""
    if not isinstance(piece, dict):
        return {"type": "?", "value": piece}
    own = object_of(piece.get("time"))
    start = own.get("ran") or own.get("created") or times.get("created")
    end = own.get("completed") or (times.get("completed") or start if ended else None)
    span = {"start": start} | ({"end": end} if end is not None else {})
    if own.get("pruned") is not None:
        span["compacted"] = own["pruned"]
    convert = _PIECES.get(str(piece.get("type")))
    return piece if convert is None else convert(piece, span)


def _words(piece: Value, span: Value) -> Value:
    native = piece.get("native") or piece.get("state")
    about = {"provider": native}
    return {"type": piece["type"], "text": piece.get("text"), "time": span, "metadata": about}


def _call(piece: Value, span: Value) -> Value:
    state, call_id = _state(piece.get("state"), span), piece.get("callID") or piece.get("id")
    return {"type": "tool", "callID": call_id, "tool": piece.get("name"), "state": state}


_PIECES = {"text": _words, "reasoning": _words, "tool": _call}
"""How a piece of a reply becomes a part, by its type."""


def _state(value: Any, span: Value) -> Value:
    """What became of a call."""
    value = object_of(value)
    state: Value = {
        **value,
        "status": _STATUS.get(str(value.get("status")), value.get("status")),
        "time": span,
    }
    if "metadata" not in value:
        state["metadata"] = value.get("structured")
    content = list_of(value.get("content"))
    texts = [each["text"] for each in content if isinstance(each, dict) and isinstance(each.get("text"), str)]
    state["output"] = "\n".join(texts)
    state["attachments"] = [
        _file(each) for each in content if isinstance(each, dict) and each.get("type") == "file"
    ]
    error = value.get("error")
    if isinstance(error, dict):
        reported = _error(error)
        state["error"] = reported["message"]
        metadata = state["metadata"]
        state["metadata"] = object_of(metadata) | {
            "interrupted": reported["name"] == "MessageAbortedError",
            "denied": "permission" in reported["name"] or "reject" in reported["name"],
        }
    return state


def _json_of_v2(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


RECENT = 48
"""Sessions of which something is remembered between two readings."""
LATE = 8
"""Sessions of those that are looked at whether or not their messages changed: results are emptied after a
turn's end."""

EDGE_KEPT = 300
GENERATIONS = 50


class DatabaseReader:
    """A `PullReader` of one database."""

    def __init__(self, path: Path, state: dict[str, Any] | None) -> None:
        self._path = path
        self._state: dict[str, Any] = deepcopy(
            state or {"line": 0, "marks": {}, "next": None, "done": None, "recent": {}}
        )

    def save(self) -> dict[str, Any]:
        return self._state

    def pull(self) -> Iterator[tuple[int, bytes, list[Record]]]:
        """What is new.

        Raises:
            OSError: the database cannot be read.
        """
        try:
            with closing(connect(self._path)) as connection:
                check_sessions(columns_of(connection), self._path)
                interrupted = self._state["next"] is not None
                yield from self._pass(connection)
                if interrupted:
                    yield from self._pass(connection)  # whatever came since that reading began
        except sqlite3.Error as error:
            raise OSError(f"cannot read the database: {error}") from error

    def _pass(self, connection: Connection) -> Iterator[tuple[int, bytes, list[Record]]]:
        connection.execute("BEGIN")
        try:
            reading = _Reading(connection, self._state)
            if self._state["next"] is None:
                self._state = self._state | {"next": reading.marks()}
            for session_id, place in reading.sessions(self._state["done"]):
                for data, records in reading.groups(session_id):
                    line = self._state["line"] + 1
                    self._state = self._state | {"line": line}
                    yield line, data, records
                self._state = self._state | {"done": place, "recent": reading.recent}
            marks = self._state["next"]
            self._state = self._state | {"marks": marks, "next": None, "done": None}
        finally:
            connection.execute("ROLLBACK")


class _Reading:
    """One look at the database: a snapshot."""

    def __init__(self, connection: Connection, state: dict[str, Any]) -> None:
        self._connection = connection
        self._columns = columns_of(connection)
        self._marks: dict[str, Any] = state["marks"]
        self.recent: dict[str, Any] = dict(state["recent"])
        self._parents: dict[str, str | None] = {}
        for table in ("session", "session_v2"):
            if "parent_id" in self._columns[table]:
                rows = connection.execute(f"SELECT id, parent_id FROM {table}")  # noqa: S608
                self._parents |= {str(row[0]): None if not row[1] else str(row[1]) for row in rows}
        self._second = sessions_of(connection, self._columns)
        """Sessions as OpenCode 2 keeps them, and the table of each one's own row."""

    # What is new.

    def marks(self) -> dict[str, Any]:
        """How far each table goes, and the newest rows, which may be written once more at the same time."""
        found: dict[str, Any] = {}
        for table in TABLES:
            if not self._columns[table]:
                continue
            timed = "time_updated" in self._columns[table]
            newest = self._one(f"SELECT max(time_updated) FROM {table}") if timed else None  # noqa: S608
            edge: dict[str, str] = {}
            if newest is not None and table != "todo":
                rows = self._connection.execute(
                    f"SELECT * FROM {table} WHERE time_updated = ? LIMIT {EDGE_KEPT + 1}",  # noqa: S608
                    (newest,),
                ).fetchall()
                edge = {digest(row[0]): digest(repr(row)) for row in rows} if len(rows) <= EDGE_KEPT else {}
            last = self._one(f"SELECT max(rowid) FROM {table}") if table != "todo" else None  # noqa: S608
            found[table] = {"time": newest, "row": last, "edge": edge}
        return found

    def _one(self, sql: str, *parameters: Any) -> Any:
        row = self._connection.execute(sql, parameters).fetchone()
        return row[0] if row is not None else None

    def _new(self, table: str) -> tuple[str, tuple[Any, ...]]:
        """A condition that new and changed rows meet."""
        mark = self._marks.get(table)
        if mark is None or not mark.get("row", mark.get("time")):
            return "1", ()
        timed = "time_updated" in self._columns[table]
        if table == "todo":
            return ("time_updated > ?", (mark["time"],)) if timed and mark["time"] is not None else ("1", ())
        if not timed:
            return "rowid > ?", (mark["row"],)
        sign = ">=" if mark["edge"] else ">"
        return f"(time_updated {sign} ? OR rowid > ?)", (mark["time"] or 0, mark["row"] or 0)

    def _fresh(self, table: str, where: str, *parameters: Any, owner: str = "id") -> dict[str, str]:
        """Ids of new and changed rows, and another column of each."""
        condition, values = self._new(table)
        timed = "time_updated" if "time_updated" in self._columns[table] else "NULL"
        rows = self._connection.execute(
            f"SELECT id, {owner}, {timed} FROM {table} WHERE {where} AND {condition}",  # noqa: S608
            (*parameters, *values),
        ).fetchall()
        mark = self._marks.get(table) or {"edge": {}, "time": None}
        return {
            str(row[0]): str(row[1])
            for row in rows
            if not (
                mark["edge"]
                and row[2] == mark["time"]
                and mark["edge"].get(digest(row[0])) == self._digest(table, row[0])
            )
        }

    def _digest(self, table: str, row_id: str) -> str:
        row = self._connection.execute(f"SELECT * FROM {table} WHERE id = ?", (row_id,)).fetchone()  # noqa: S608
        return digest(repr(row))

    def sessions(self, after: list[Any] | None) -> Iterator[tuple[str, list[Any]]]:
        """Sessions with something new: tree by tree, the oldest first, each session before those that it
        started."""
        found: set[str] = set()
        for table, column in (
            ("session", "id"),
            ("session_v2", "id"),
            ("message", "session_id"),
            ("part", "session_id"),
            ("todo", "session_id"),
            ("session_message", "session_id"),
        ):
            if column not in self._columns[table]:
                continue
            condition, values = self._new(table)
            if table == "part" and condition != "1":
                # Parts are many. New ones have new numbers; one is changed where its message is, or in a
                # session of late.
                condition, values = "rowid > ?", (self._marks[table]["row"] or 0,)
            found |= {
                str(row[0])
                for row in self._connection.execute(
                    f"SELECT DISTINCT {column} FROM {table} WHERE {condition}",  # noqa: S608
                    values,  # noqa: RUF100, S608
                )  # noqa: RUF100, S608
            }
        found |= {session_id for session_id, memory in self.recent.items() if memory.get("open")}
        found |= set(list(self.recent)[-LATE:])
        times: dict[str, Any] = {}
        for table in ("session", "session_v2"):
            if "time_created" in self._columns[table]:
                rows = self._connection.execute(f"SELECT id, time_created FROM {table}")  # noqa: S608
                times |= {str(row[0]): row[1] for row in rows if isinstance(row[1], int | float)}
        places: list[list[Any]] = []
        for each in found:
            above = self._above(each)
            root = above[-1] if above else each
            places.append([times.get(root, 0), root, len(above), times.get(each, 0), each])
        for place in sorted(places):
            if after is None or place > after:
                yield str(place[-1]), place

    def _above(self, session_id: str) -> list[str]:
        """The sessions above one, the next first; a circle is cut where it closes."""
        found: list[str] = []
        current = self._parents.get(session_id)
        while (
            current is not None
            and current not in found
            and current != session_id
            and len(found) < GENERATIONS
        ):
            found.append(current)
            current = self._parents.get(current)
        return found

    # One session.

    def groups(self, session_id: str) -> Iterator[Group]:
        """What is new of a session."""
        above = self._above(session_id)
        conversation = Conversation(
            session_id,
            above[-1] if above else session_id,
            above[0] if above else None,
            self.recent.pop(session_id, {}),
            self._find,
        )
        named = False
        reading = self._rows_of_session if session_id in self._second else self._parts_of_session
        for data, records in reading(conversation):
            yield data, records if named else [conversation.naming(), *records]
            named = True
        self.recent[session_id] = conversation.memory()
        while len(self.recent) > RECENT:
            closed = next(
                (each for each, memory in self.recent.items() if not _is_needed(memory)),
                next(iter(self.recent)),
            )
            self.recent.pop(closed)

    def _parts_of_session(self, conversation: Conversation) -> Iterator[Group]:
        session_id = conversation.id
        if session_id in self._fresh("session", "id = ?", session_id):
            value = self._row("session", session_id)
            yield _json(value), conversation.session(_session(value))
        changed = self._fresh("message", "session_id = ?", session_id)
        by_session = "session_id" in self._columns["part"]
        where = (
            "session_id = ?" if by_session else "message_id IN (SELECT id FROM message WHERE session_id = ?)"
        )
        parts = self._fresh("part", where, session_id, owner="message_id")
        about = self._about("session", session_id)
        touched, fresh_parts = {*changed, *conversation.open, *parts.values()}, set(parts)
        order = "time_created, id" if "time_created" in self._columns["message"] else "rowid"
        ordered = f"SELECT id FROM message WHERE session_id = ? ORDER BY {order}"  # noqa: S608
        ids = [row[0] for row in self._connection.execute(ordered, (session_id,))]
        yield from conversation.gone(about, ids, changed)
        for message_id in ids:
            if message_id in touched:
                stored = self._message(message_id, message_id in changed, fresh_parts)
                if stored is not None:
                    yield from conversation.message(stored, last=message_id == ids[-1])
        yield from conversation.finish()
        yield from conversation.undone(about, ids)
        if by_session:
            yield from self._orphans(session_id, fresh_parts)
        yield from self._rest(conversation)

    def _rows_of_session(self, conversation: Conversation) -> Iterator[Group]:
        """As `_parts_of_session`, of a session that OpenCode 2 keeps."""
        session_id = conversation.id
        table = self._second[session_id]
        if session_id in self._fresh(table, "id = ?", session_id):
            value = self._row(table, session_id)
            yield _json(value), conversation.session(_session(value))
        about = self._about(table, session_id)
        fresh = self._fresh("session_message", "session_id = ?", session_id)
        touched = {*fresh, *conversation.open}
        order = "seq" if "seq" in self._columns["session_message"] else "rowid"
        rows = self._connection.execute(
            f"SELECT id, type FROM session_message WHERE session_id = ? ORDER BY {order}",  # noqa: S608
            (session_id,),
        ).fetchall()
        last = next(
            (row_id for row_id, kind in reversed(rows) if kind in ("assistant", "compaction", "user")), None
        )
        ids = [row[0] for row in rows]
        yield from conversation.gone(about, ids, fresh)
        model: dict[str, Any] = {}
        for row_id, kind in rows:
            row = self._row("session_message", row_id) if kind == "assistant" or row_id in touched else {}
            if row_id in touched:
                data = _bytes(row.get("data"))
                found = stored(Row(row_id, kind, row.get("time_created"), data), changed=True, model=model)
                if found is not None:
                    yield from conversation.message(found, last=row_id == last)
                else:
                    yield data, [Raw(f"session_message/{kind}"[:80], reason_of(kind))]
            if kind == "assistant":
                reported = (parse(_bytes(row.get("data"))) or {}).get("model")
                model = reported if isinstance(reported, dict) else model
        yield from conversation.finish()
        yield from conversation.undone(about, ids)
        yield from self._todos(conversation)

    def _orphans(self, session_id: str, parts: set[str]) -> Iterator[Group]:
        rows = self._connection.execute(
            "SELECT p.id, p.data FROM part p WHERE p.session_id = ? AND NOT EXISTS (SELECT 1 FROM message m"
            " WHERE m.id = p.message_id)",
            (session_id,),
        )
        for part_id, data in rows:
            if part_id in parts:
                yield _bytes(data), [Raw("part", "its message is missing or broken")]

    def _rest(self, conversation: Conversation) -> Iterator[Group]:
        """The to-do list, and what a table of later versions holds beside."""
        yield from self._todos(conversation)
        if {"id", "session_id", "data"} <= self._columns["session_message"]:
            for row_id in sorted(self._fresh("session_message", "session_id = ?", conversation.id)):
                value = self._row("session_message", row_id)
                kind = value.get("type", "?")
                yield _json(value), [Raw(f"session_message/{kind}"[:80], reason_of(str(kind)))]

    def _todos(self, conversation: Conversation) -> Iterator[Group]:
        """The to-do list."""
        if {"session_id", "content", "status"} <= self._columns["todo"]:
            condition, values = self._new("todo")
            fresh = self._one(
                f"SELECT 1 FROM todo WHERE session_id = ? AND {condition}",  # noqa: S608
                conversation.id,
                *values,  # noqa: RUF100, S608
            )  # noqa: RUF100, S608
            if fresh:
                timed = "time_updated" if "time_updated" in self._columns["todo"] else "NULL"
                order = "position" if "position" in self._columns["todo"] else "rowid"
                rows = self._connection.execute(
                    f"SELECT content, status, {timed} FROM todo WHERE session_id = ? ORDER BY {order}",  # noqa: S608
                    (conversation.id,),
                ).fetchall()
                listed = [{"content": row[0], "status": row[1]} for row in rows]
                at = max((row[2] for row in rows if isinstance(row[2], int | float)), default=None)
                yield _json({"todos": listed}), conversation.todos(listed, at / 1000 if at else None)

    def _about(self, table: str, session_id: str) -> dict[str, Any]:
        """What a session's row says of what was undone."""
        return _session(self._row(table, session_id)) if "revert" in self._columns[table] else {}

    def _row(self, table: str, row_id: str) -> dict[str, Any]:
        cursor = self._connection.execute(f"SELECT * FROM {table} WHERE id = ?", (row_id,))  # noqa: S608
        row = cursor.fetchone()
        return (
            dict(zip([each[0] for each in cursor.description], row, strict=True)) if row is not None else {}
        )

    def _find(self, message_id: str) -> Stored | None:
        compaction = compaction_of(message_id)
        if compaction is not None:
            value = parse(_bytes(self._row("session_message", compaction).get("data")))
            return asked(message_id, (value or {}).get("reason"))
        if (
            self._second
            and (row := self._row("session_message", message_id)).get("session_id") in self._second
        ):
            found = Row(message_id, str(row.get("type")), row.get("time_created"), _bytes(row.get("data")))
            return stored(found, changed=False, model={})
        if not self._columns["message"]:
            return None
        return self._message(message_id, False, set())

    def _message(self, message_id: str, changed: bool, parts: set[str]) -> Stored | None:
        row = self._row("message", message_id)
        if not row:
            return None
        data = _bytes(row.get("data"))
        value = parse(data)
        if value is not None:
            value = value | {"id": message_id}
            if not isinstance(value.get("time"), dict) and row.get("time_created"):
                value["time"] = {"created": row["time_created"]}
        rows = self._connection.execute(
            "SELECT id, data FROM part WHERE message_id = ? ORDER BY id", (message_id,)
        )
        found = []
        for part_id, part_data in rows:
            encoded = _bytes(part_data)
            found.append(Part(part_id, encoded, parse(encoded), part_id in parts))
        return Stored(message_id, data, value, found, changed)


def _is_needed(memory: dict[str, Any]) -> bool:
    """Whether what comes next of a session cannot be reported without it."""
    return bool(memory.get("open") or memory.get("undone"))


def _session(row: dict[str, Any]) -> dict[str, Any]:
    """A session's row as its file in the tree was."""
    return row | {"time": {"created": row.get("time_created"), "updated": row.get("time_updated")}}


def _bytes(value: Any) -> bytes:
    return (
        value
        if isinstance(value, bytes)
        else str(value if value is not None else "").encode("utf-8", "replace")
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=repr).encode("utf-8", "replace")


# --- The program ----------------------------------------------------------------------------------------

SQLITE = b"SQLite format 3\x00"
INDEX_HEAD_BYTES = 48
"""The part of a write-ahead log's index that says how far the log goes and how often it changed. The marks of
its readers follow."""


class OpenCode(Program):
    """OpenCode, from 1.2 on, which keeps its sessions in a database."""

    name = "opencode"
    alias = "opencode"
    label = "OpenCode"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """The databases in the data folder: `OPENCODE_DATA_DIR`, else `opencode` in `XDG_DATA_HOME` or
        `~/.local/share`.

        Not the folder itself: it also holds snapshots of workspaces, many thousand files.
        """
        chosen, data = environ.get("OPENCODE_DATA_DIR", "").strip(), environ.get("XDG_DATA_HOME", "").strip()
        folder = Path(chosen).expanduser() if chosen else None
        if folder is None:
            folder = (Path(data).expanduser() if data else home / ".local" / "share") / "opencode"
        return [folder / "opencode.db", *sorted(folder.glob("opencode-*.db"))]

    def may_be_log(self, path: Path) -> bool:
        return path.suffix == ".db" and path.name.startswith("opencode")

    def log_of(self, path: Path) -> Path | None:
        """The database, also for SQLite's write-ahead log beside it."""
        return super().log_of(
            path.with_name(path.name.removesuffix("-wal")) if path.name.endswith(".db-wal") else path
        )

    def recognises(self, source: Source) -> bool:
        return source.head.startswith(SQLITE) and (
            is_database(source.path) or lacks_log(source.path, source.head)
        )

    def reader(self, source: Source, state: dict[str, Any] | None) -> PullReader:
        return DatabaseReader(source.path, state)

    def fingerprint(self, path: Path) -> tuple[int, float]:
        """The sizes of a database and its write-ahead log together, and a number for their times.

        A transaction becomes readable a moment after its log was written, when the log's index (`-shm`) names
        it. The number covers the index too, so that a look in between does not hide the transaction.
        """
        digest, size = blake2b(digest_size=6), 0
        for each in (path, path.with_name(f"{path.name}-wal")):
            try:
                found = each.stat()
            except OSError:
                continue
            size += found.st_size
            digest.update(f"{found.st_mtime_ns} ".encode())
        try:
            with path.with_name(f"{path.name}-shm").open("rb") as index:
                digest.update(index.read(INDEX_HEAD_BYTES))
        except OSError:
            pass  # no other process has the database open
        return size, float(int.from_bytes(digest.digest(), "big"))


PROGRAM = OpenCode()
