"""OpenCode's tree of JSON files: a session's own file, a folder of its messages, and a folder of parts for
each message.

`storage/session/<project>/<session>.json`, `storage/message/<session>/<message>.json`,
`storage/part/<message>/<part>.json`, `storage/todo/<session>.json`; before, all of it below
`storage/session`, with `info` in the project's place and parts in `part/<session>/<message>`; at first, parts
stood inside their messages (see `early`). Each session is a log of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import deepcopy
from functools import lru_cache
from glob import escape
from hashlib import blake2b
from pathlib import Path
from typing import Any

from watchkeeper.transcripts.jsontext import parse, text_of, write
from watchkeeper.transcripts.opencode.conversation import Conversation, Group, Part, Stored
from watchkeeper.transcripts.opencode.parts import digest, time_of
from watchkeeper.transcripts.records import Raw, Record

# --- OpenCode's earliest messages: each with its parts inside its own file, as its later versions rewrite them ---
#
# In the first form (before 0.2) all that is known of a message stands in `metadata`, and calls are
# `tool-invocation` parts; in the second, only the parts stand inside.

Value = dict[str, Any]
_STATUS = {"partial-call": "pending", "call": "running", "result": "completed"}


def info_of(value: Value) -> Value:
    """What a message's file says of it besides its parts, in the later form."""
    info = {name: each for name, each in value.items() if name != "parts"}
    about = value.get("metadata")
    if not isinstance(about, dict) or "time" in value:
        return info
    answer = about.get("assistant")
    told = answer if isinstance(answer, dict) else {}
    info |= {
        name: told[name] for name in ("cost", "tokens", "modelID", "providerID", "summary") if name in told
    }
    info |= {name: about[name] for name in ("sessionID", "time", "error") if name in about}
    return info


def parts_of(message_id: str, value: Value, *, changed: bool) -> list[Part]:
    """The parts inside a message's file; none where they have files of their own."""
    inside = value.get("parts")
    about = value.get("metadata")
    tools = about.get("tool") if isinstance(about, dict) else None
    found = []
    for place, part in enumerate(inside if isinstance(inside, list) else ()):
        if not isinstance(part, dict):
            part = {"type": "?", "value": part}
        elif part.get("type") == "tool-invocation":
            part = _call(part, tools if isinstance(tools, dict) else {})
        elif part.get("type") == "tool" and "callID" not in part:
            part = part | {"callID": part.get("id")}
        found.append(Part(f"{message_id}.{place}", write(part)[0].encode("utf-8", "replace"), part, changed))
    return found


def _call(part: Value, tools: Value) -> Value:
    """A call of the first form; how long it took stands beside the message's parts."""
    called = part.get("toolInvocation")
    called = called if isinstance(called, dict) else {}
    call_id = text_of(called.get("toolCallId"))
    told = tools.get(call_id or "")
    told = told if isinstance(told, dict) else {}
    state: Value = {
        "status": _STATUS.get(str(called.get("state"))),
        "input": called.get("args"),
        "metadata": told,
    }
    if isinstance(told.get("time"), dict):
        state["time"] = told["time"]
    if "result" in called:
        state |= (
            {"status": "error", "error": called["result"]}
            if told.get("error") is True
            else {"output": called["result"]}
        )
    return {"type": "tool", "callID": call_id, "tool": called.get("toolName"), "state": state}


LARGEST_FILE = 64 << 20
GENERATIONS = 20
EDGE_KEPT = 300


class Tree:
    """Where the files of one session lie.

    Args:
        path: the session's file, or, where that is lost, the first of its messages'.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        above = path.parents[1]
        self.lost = above.name == "message"
        """The session has messages and no file."""
        self.base = above if path.parent.name == "info" else above.parent
        """The folder that holds `message` and `part`."""
        self._listed: dict[Path, list[Path]] = {}
        """What the last look at `everything` found in each folder: whoever goes on from it sees the same
        files."""

    def session_value(self) -> tuple[bytes, dict[str, Any] | None]:
        """The session's own record."""
        data = b"" if self.lost else read(self.path)
        return data, parse(data) if data else {}

    def session_id(self, value: dict[str, Any] | None) -> str:
        """Its id, where its record is broken by its file's name."""
        return self.path.parent.name if self.lost else text_of((value or {}).get("id")) or self.path.stem

    def parent_file(self, session_id: str) -> Path | None:
        """The file of another session."""
        name = f"{session_id}.json"
        near = self.path.parent / name
        if not self.lost and near.is_file():
            return near
        return next((self.base / "session").glob(f"*/{name}"), None) if "/" not in session_id else None

    def messages(self, session_id: str) -> list[Path]:
        return self._files_in(self.base / "message" / session_id)

    def parts(self, session_id: str, message_id: str) -> list[Path]:
        folder = self.base / "part"
        loose = _loose_parts(folder, _changed_at(folder)).get(message_id, ())
        return [
            *(self._files_in(folder / message_id) or self._files_in(folder / session_id / message_id)),
            *loose,
        ]

    def _files_in(self, folder: Path) -> list[Path]:
        found = self._listed.get(folder)
        if found is None:
            found = self._listed[folder] = files_in(folder)
        return found

    def todo(self, session_id: str) -> Path:
        return self.base / "todo" / f"{session_id}.json"

    def root_of(self, session_id: str, value: dict[str, Any] | None) -> tuple[str, str | None]:
        """The session at the top of the tree, and the one above this."""
        parent = text_of((value or {}).get("parentID"))
        top, current, seen = session_id, parent, {session_id}
        for _ in range(GENERATIONS):
            if current is None or current in seen:
                break
            seen.add(current)
            top = current
            file = self.parent_file(current)
            current = text_of((parse(read(file)) or {}).get("parentID")) if file is not None else None
        return top, parent

    def everything(self, session_id: str) -> Iterator[Path]:
        """Every file that tells of the session as it is now, named as cheaply as possible."""
        self._listed.clear()
        if not self.lost:
            yield self.path
        for message in self.messages(session_id):
            yield message
            found = self.parts(session_id, message.stem)
            # A message's file is named by its id as a rule, so that none needs to be opened for this.
            yield from found or self.parts(
                session_id, text_of((parse(read(message)) or {}).get("id")) or message.stem
            )
        yield self.todo(session_id)


def session_file(path: Path) -> Path | None:
    """The log that a message, a part or a to-do list belongs to: its session's file, or where that is lost,
    the first message; None where it is none of these."""
    kind, base = path.parents[1].name, path.parents[2]
    if path.parent.name == "todo":
        base, session_id = path.parents[1], path.stem
    elif kind == "message":
        session_id = path.parent.name
    elif kind == "part" or path.parent.name == "part" or base.name == "part":
        base = base if kind == "part" else path.parents[1] if path.parent.name == "part" else path.parents[3]
        session_id = text_of((parse(read(path)) or {}).get("sessionID")) or ""
    else:
        return None
    if not session_id or "/" in session_id:
        return None
    named = f"*{escape(session_id)}.json"
    found = sorted(
        [*(base / "session").glob(f"*/{named}"), *(base / "info").glob(named)],
        key=lambda each: len(each.name),
    )
    return next(iter(found or files_in(base / "message" / session_id)), None)


class TreeReader:
    """A `PullReader` of one session's files."""

    def __init__(self, path: Path, state: dict[str, Any] | None) -> None:
        self._tree = Tree(path)
        self._state: dict[str, Any] = deepcopy(
            state or {"line": 0, "mark": 0, "edge": {}, "count": 0, "memory": {}}
        )

    def save(self) -> dict[str, Any]:
        return self._state

    def pull(self) -> Iterator[tuple[int, bytes, list[Record]]]:
        """What is new. An interrupted pull is begun again, and what it gave is recognised."""
        state = dict(self._state)
        data, value = self._tree.session_value()
        session_id = self._tree.session_id(value)
        stamps = _stamps(self._tree.everything(session_id))
        if sum(stamp <= state["mark"] for stamp in stamps.values()) > state["count"]:
            state["mark"], state["edge"] = 0, {}  # files came with an old time: all of it is looked at again
        news = _News(state["mark"], state["edge"], stamps)
        line = state["line"]
        for data_of, records in self._groups(data, value, session_id, news, state):
            line += 1
            self._state = self._state | {"line": line}
            yield line, data_of, records
        mark = max(stamps.values(), default=0)
        self._state = {
            "line": line,
            "mark": mark,
            "edge": news.edge(mark),
            "count": len(stamps),
            "memory": state["memory"],
        }

    def _groups(
        self, data: bytes, value: dict[str, Any] | None, session_id: str, news: _News, state: dict[str, Any]
    ) -> Iterator[Group]:
        root, parent = self._tree.root_of(session_id, value)
        names = self._tree.messages(session_id)
        stored = [self._message(name, news) for name in names]
        stored.sort(key=lambda each: (time_of((each.value or {}).get("time"), "created") or 0.0, each.id))
        by_id = {each.id: each for each in stored}

        def find(message_id: str) -> Stored | None:
            found = by_id.get(message_id)
            return self._with_parts(found, news, session_id) if found is not None else None

        ends = _tells_ends(self._with_parts(each, news, session_id) for each in reversed(stored))
        conversation = Conversation(session_id, root, parent, state["memory"], find, ends)
        named = False
        if not self._tree.lost and news.of(self._tree.path, data):
            named = True
            broken: list[Record] = [Raw("session", "broken JSON")] if value is None else []
            yield data, [*conversation.session(value or {}), *broken]
        ids = [each.id for each in stored]
        for data_of, records in conversation.gone(
            value or {}, ids, {each.id for each in stored if each.changed}
        ):
            yield data_of, records if named else [conversation.naming(), *records]
            named = True
        for place, each in enumerate(stored):
            touched = each.changed or each.id in conversation.open
            if not touched and not any(news.perhaps(path) for path in self._tree.parts(session_id, each.id)):
                continue
            whole = self._with_parts(each, news, session_id)
            if not touched and not any(part.changed for part in whole.parts):
                continue
            for data_of, records in conversation.message(whole, last=place == len(stored) - 1):
                yield data_of, records if named else [conversation.naming(), *records]
                named = True
        for data_of, records in (*conversation.finish(), *conversation.undone(value or {}, ids)):
            yield data_of, records if named else [conversation.naming(), *records]
            named = True
        todo = self._tree.todo(session_id)
        if todo in news.stamps and news.of(todo, data := read(todo)):
            listed = _todos(data)
            records = (
                [Raw("todo", "broken JSON")]
                if listed is None
                else conversation.todos(listed, news.stamps[todo] / 1e9)
            )
            yield data, records if named else [conversation.naming(), *records]
        state["memory"] = conversation.memory()

    def _message(self, path: Path, news: _News) -> Stored:
        data = read(path)
        value = parse(data)
        message_id = text_of((value or {}).get("id")) or path.stem
        if value is not None:
            value = info_of(value) | {"id": message_id}
        return Stored(message_id, data, value, [], news.of(path, data))

    def _with_parts(self, message: Stored, news: _News, session_id: str) -> Stored:
        found = []
        for path in self._tree.parts(session_id, message.id):
            data = read(path)
            found.append(Part(path.stem, data, parse(data), news.of(path, data)))
        if not found and message.value is not None:
            found = parts_of(message.id, parse(message.data) or {}, changed=message.changed)
        return message._replace(parts=found)


class _News:
    """Which files are otherwise than when they were read before."""

    def __init__(self, mark: int, edge: dict[str, str], stamps: dict[Path, int]) -> None:
        self._mark = mark
        self._edge = edge
        self.stamps = stamps
        self._seen: dict[str, str] = {}

    def perhaps(self, path: Path) -> bool:
        """Whether a file may be so, told without opening it."""
        return self.stamps.get(path, self._mark + 1) >= self._mark

    def of(self, path: Path, data: bytes) -> bool:
        stamp = self.stamps.get(path, self._mark + 1)  # one that came meanwhile is new
        name = digest(str(path))
        self._seen[name] = said = blake2b(data, digest_size=12).hexdigest()
        if stamp == self._mark and self._edge:
            return self._edge.get(name) != said
        return stamp > self._mark

    def edge(self, mark: int) -> dict[str, str]:
        """The files of the newest time, which may be written once more within it."""
        newest = [digest(str(path)) for path, stamp in self.stamps.items() if stamp == mark]
        return (
            {name: self._seen[name] for name in newest if name in self._seen}
            if len(newest) <= EDGE_KEPT
            else {}
        )


def _changed_at(folder: Path) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=16)
def _loose_parts(folder: Path, _: int) -> dict[str, list[Path]]:
    """Parts that lie in no message's folder, by the message that they name."""
    found: dict[str, list[Path]] = {}
    for path in files_in(folder):
        owner = text_of((parse(read(path)) or {}).get("messageID"))
        if owner is not None:
            found.setdefault(owner, []).append(path)
    return found


def _stamps(paths: Iterator[Path]) -> dict[Path, int]:
    return {path: found.st_mtime_ns for path in paths if (found := stat_of(path)) is not None}


def _tells_ends(messages: Iterator[Stored]) -> bool:
    """Whether parts of text tell when they ended; those of some versions do not."""
    for message in messages:
        if (message.value or {}).get("role") != "assistant":
            continue
        for part in message.parts:
            if part.value is not None and part.value.get("type") in ("text", "reasoning"):
                times = part.value.get("time")
                if isinstance(times, dict) and "end" in times:
                    return True
    return False


def _todos(data: bytes) -> list[dict[str, Any]] | None:
    """The list in a file: bare, or in an object."""
    value = parse(b'{"todos":' + data + b"}")
    if value is None:
        return None
    inner = value["todos"]
    listed = inner.get("todos") if isinstance(inner, dict) else inner
    return listed if isinstance(listed, list) else None


def files_in(folder: Path) -> list[Path]:
    """JSON files of a folder, by name; none where there is no such folder."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    except OSError:
        return []
    return [folder / name for name in names]


def stat_of(path: Path) -> os.stat_result | None:
    """A file that can be read; None for any other: it is as if it were not there, until it can be."""
    try:
        return path.stat() if os.access(path, os.R_OK) else None
    except OSError:
        return None


def read(path: Path, most: int = LARGEST_FILE) -> bytes:
    """A file's bytes, as far as it can be read."""
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:
        return b""
