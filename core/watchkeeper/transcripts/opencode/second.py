"""OpenCode 2: a session's messages are rows of one table, each with its parts inside; here they become what
they were before.

`session_message` holds a row for each message by its `seq`: what a person or the program said, a reply with
its content (texts, reasoning, tools) and its usage, a compaction with its summary, and notes of switches.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.jsontext import parse, text_of
from watchkeeper.transcripts.opencode.partreading import Part, Stored
from watchkeeper.transcripts.opencode.parts import NOT_FOR_US

ROWS = {"id", "session_id", "type", "data"}
"""Columns that `session_message` needs."""
NEEDED = tuple({table: {"id"}, "session_message": ROWS} for table in ("session_v2", "session"))
"""Tables that a database needs to hold such sessions: their own are named `session_v2`, or as before."""
NOTES = frozenset({"agent-switched", "display", "idle", "invocation", "location-switched", "model-switched"})
"""Types of rows that are known, and of no use here."""
_SAID_BY_PROGRAM = frozenset({"skill", "synthetic", "system"})
_ASKED = "#asked"
_STATUS = {"streaming": "pending"}

_SPOKEN = ("assistant", "compaction", "shell", "skill", "synthetic", "system", "user")
"""Types of rows that say something."""
SAID_AGAIN = "said again by a message of its session"

Value = dict[str, Any]


def sessions_of(connection: Connection, columns: dict[str, set[str]]) -> dict[str, str]:
    """Sessions whose messages are rows of `session_message`, and the table that each one's own row is in.

    Rows of the tables from before may stand beside for the same session: with `session_v2` they are what it
    was before it was carried over, without it they say the same as these, and go before.
    """
    if not columns["session_message"] >= ROWS:
        return {}
    of_message = "SELECT DISTINCT session_id FROM session_message WHERE type IN (?, ?, ?, ?, ?, ?, ?)"
    spoken = {str(row[0]) for row in connection.execute(of_message, _SPOKEN)}
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
    return NOT_FOR_US if kind in NOTES else SAID_AGAIN if kind in _SPOKEN else "unknown record type"


class Row(NamedTuple):
    """One row of `session_message`."""

    id: str
    type: str
    created: Any
    data: bytes


def stored(row: Row, *, changed: bool, model: Value) -> Stored | None:
    """The row as a message with parts; None where it is none (a note, a type that nobody knows).

    `model` is the one that the last reply before it names.
    """
    value = parse(row.data)
    if value is None:
        return Stored(row.id, row.data, None, [], changed)
    times = value.get("time")
    times = dict(times) if isinstance(times, dict) else {"created": row.created}
    info: Value = {"id": row.id, "time": times, "role": "user"}
    if row.type == "user":
        pieces = [_text(value), *map(_file, _list(value.get("files")))]
    elif row.type in _SAID_BY_PROGRAM:
        pieces = [_text(value) | {"synthetic": True}, *map(_file, _list(value.get("files")))]
    elif row.type == "shell":
        pieces = [_shell(value)]
    elif row.type == "assistant":
        info |= _reply(value)
        ended = times.get("completed") is not None or isinstance(value.get("error"), dict)
        pieces = [_content(each, times, ended=ended) for each in _list(value.get("content"))]
        if isinstance(value.get("retry"), dict):
            pieces.append(_retry(value["retry"]))
    elif row.type == "compaction":
        info |= _compaction(row, value, times, model)
        pieces = [
            {"type": "text", "text": value[name]}
            for name in ("summary", "recent")
            if text_of(value.get(name))
        ]
    else:
        return None
    # A row says at once what it says: its parts tell nothing of their own.
    parts = [Part(f"{row.id}.{place}", _json(piece), piece, changed) for place, piece in enumerate(pieces)]
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
    about = model if isinstance(model, dict) else {}
    return {"modelID": about.get("id"), "providerID": about.get("providerID")}


def _error(error: Value) -> Value:
    kind = str(error.get("type") or "")
    stopped = "abort" in kind or "interrupt" in kind
    return {"name": "MessageAbortedError" if stopped else kind, "message": error.get("message") or kind}


def _compaction(row: Row, value: Value, times: Value, model: Value) -> Value:
    """As the reply that held the summary: done, failed, or still being written."""
    info = _reply(value) | _model(model) | {"summary": True, "parentID": f"{row.id}{_ASKED}"}
    if value.get("status", "completed") == "completed" and value.get("summary"):
        info["time"] = {"completed": times.get("created"), **times}
    return info


def _text(value: Value) -> Value:
    return {"type": "text", "text": value.get("text")}


def _file(value: Any) -> Value:
    about = value if isinstance(value, dict) else {}
    return {
        "type": "file",
        "mime": about.get("mime"),
        "url": about.get("uri") or about.get("url"),
        "filename": about.get("name"),
    }


def _shell(value: Value) -> Value:
    """A command that the person ran themselves."""
    output = value.get("output")
    said = output.get("output") or output.get("text") if isinstance(output, dict) else output
    return {"type": "text", "text": f"$ {value.get('command')}\n{said or ''}".rstrip(), "synthetic": True}


def _retry(value: Value) -> Value:
    error = value.get("error")
    return {
        "type": "retry",
        "error": _error(error if isinstance(error, dict) else {}),
        "time": {"created": value.get("at")},
    }


def _content(piece: Any, times: Value, *, ended: bool) -> Value:
    """A piece of a reply as a part; what has no end is finished where the reply is."""
    if not isinstance(piece, dict):
        return {"type": "?", "value": piece}
    own = piece.get("time")
    own = own if isinstance(own, dict) else {}
    start = own.get("ran") or own.get("created") or times.get("created")
    end = own.get("completed") or (times.get("completed") or start if ended else None)
    span = {"start": start} | ({"end": end} if end is not None else {})
    if own.get("pruned") is not None:
        span["compacted"] = own["pruned"]
    kind = piece.get("type")
    if kind in ("text", "reasoning"):
        native = piece.get("native") or piece.get("state")
        return {"type": kind, "text": piece.get("text"), "time": span, "metadata": {"provider": native}}
    if kind == "tool":
        call_id = piece.get("callID") or piece.get("id")
        return {
            "type": "tool",
            "callID": call_id,
            "tool": piece.get("name"),
            "state": _state(piece.get("state"), span),
        }
    return piece


def _state(value: Any, span: Value) -> Value:
    """What became of a call."""
    value = value if isinstance(value, dict) else {}
    state: Value = {
        **value,
        "status": _STATUS.get(str(value.get("status")), value.get("status")),
        "time": span,
    }
    if "metadata" not in value:
        state["metadata"] = value.get("structured")
    content = _list(value.get("content"))
    texts = [each["text"] for each in content if isinstance(each, dict) and isinstance(each.get("text"), str)]
    state["output"] = "\n".join(texts)
    state["attachments"] = [
        _file(each) for each in content if isinstance(each, dict) and each.get("type") == "file"
    ]
    error = value.get("error")
    if isinstance(error, dict):
        told = _error(error)
        state["error"] = told["message"]
        metadata = state["metadata"]
        state["metadata"] = (metadata if isinstance(metadata, dict) else {}) | {
            "interrupted": told["name"] == "MessageAbortedError",
            "denied": "permission" in told["name"] or "reject" in told["name"],
        }
    return state


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
