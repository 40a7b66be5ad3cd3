"""Sessions of OpenCode, made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from watchkeeper.store.driver import sqlite3

BEGAN = 1_770_000_000_000


SCHEMA = """
CREATE TABLE project (id TEXT PRIMARY KEY);
CREATE TABLE session (id TEXT PRIMARY KEY, project_id TEXT, parent_id TEXT, slug TEXT, directory TEXT, title TEXT, version TEXT,
  time_created INTEGER, time_updated INTEGER, revert TEXT);
CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER, time_updated INTEGER, data TEXT);
CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, time_created INTEGER, time_updated INTEGER, data TEXT);
CREATE TABLE todo (session_id TEXT, content TEXT, status TEXT, priority TEXT, position INTEGER, time_created INTEGER,
  time_updated INTEGER, PRIMARY KEY (session_id, position));
CREATE INDEX message_session_time_created_id_idx ON message (session_id, time_created, id);
CREATE INDEX part_message_id_id_idx ON part (message_id, id);
CREATE INDEX part_session_idx ON part (session_id);
"""


def _tokens(input: int, output: int, reasoning: int = 0, read: int = 0, write: int = 0) -> dict[str, Any]:
    return {"input": input, "output": output, "reasoning": reasoning, "cache": {"read": read, "write": write}}


class Book:
    """Sessions as OpenCode holds them."""

    def __init__(self) -> None:
        self.now = BEGAN
        self.sessions: dict[str, dict[str, Any]] = {}
        self.messages: dict[str, dict[str, Any]] = {}
        self.parts: dict[str, dict[str, Any]] = {}
        self.todos: dict[str, list[dict[str, Any]]] = {}
        self.times: dict[str, int] = {}
        self._count = 0
        self._gone: list[str] = []

    def tick(self) -> int:
        self.now += 1_000
        return self.now

    def _id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count:06d}"

    def session(self, title: str = "A title", parent: str | None = None) -> str:
        session, at = self._id("ses"), self.tick()
        about = {
            "id": session,
            "projectID": "p",
            "directory": "/home/somebody/project",
            "title": title,
            "version": "1.2.0",
        }
        self.sessions[session] = (
            about | {"time": {"created": at, "updated": at}} | ({"parentID": parent} if parent else {})
        )
        self.times[session] = at
        return session

    def _message(self, session: str, role: str, ended: dict[str, int], about: dict[str, Any]) -> str:
        message, at = self._id("msg"), self.now
        times = {"created": at, **ended}
        self.messages[message] = {"id": message, "sessionID": session, "role": role, "time": times, **about}
        self.times[message] = at
        return message

    def user(self, session: str, text: str | None = None, **about: Any) -> str:
        self.tick()
        message = self._message(session, "user", {}, about)
        if text is not None:
            self.part(message, "text", text=text)
        return message

    def assistant(self, session: str, *, completed: bool = True, **about: Any) -> str:
        at = self.tick()
        ended = {"completed": at + 900} if completed else {}
        tokens = _tokens(0, 0)
        return self._message(
            session,
            "assistant",
            ended,
            {"modelID": "claude-opus-4-6", "providerID": "anthropic", "cost": 0, "tokens": tokens} | about,
        )

    def part(self, message: str, kind: str, **about: Any) -> str:
        part, owner = self._id("prt"), self.messages[message]
        if kind in ("text", "reasoning") and owner["role"] == "assistant" and "time" not in about:
            about["time"] = {"start": self.now, "end": self.now + 100}
        self.parts[part] = {
            "id": part,
            "messageID": message,
            "sessionID": owner["sessionID"],
            "type": kind,
            **about,
        }
        self.times[part] = self.tick()
        return part

    def tool(
        self, message: str, call: str, name: str = "bash", status: str = "completed", **state: Any
    ) -> str:
        times = {"start": self.now} | ({"end": self.now + 500} if status in ("completed", "error") else {})
        times |= state.pop("time", {})
        outcome = {"completed": {"output": "fine"}, "error": {"error": "it failed"}}.get(status, {})
        inside = {"status": status, "input": {"command": "ls"}, "time": times, **outcome, **state}
        return self.part(message, "tool", callID=call, tool=name, state=inside)

    def step(self, message: str, input: int, output: int, *, cost: float = 0.0, **tokens: int) -> str:
        return self.part(
            message, "step-finish", reason="stop", cost=cost, tokens=_tokens(input, output, **tokens)
        )

    def touch(self, name: str) -> None:
        self.times[name] = self.tick()

    # Taking back.

    def undo(self, session: str, message: str, part: str | None = None) -> None:
        """From a message on (or from one of its parts), nothing is in the context any more."""
        about = {"messageID": message, "snapshot": "abc", "diff": "--- a"} | (
            {"partID": part} if part else {}
        )
        self.sessions[session]["revert"] = about
        self.touch(session)
        self.sessions[session]["time"]["updated"] = self.now

    def redo(self, session: str) -> None:
        """All of it is, again."""
        del self.sessions[session]["revert"]
        self.touch(session)
        self.sessions[session]["time"]["updated"] = self.now

    def clean_up(self, session: str) -> None:
        """What the next prompt does first: what was taken back is removed."""
        place = self.sessions[session]["revert"]
        message, part = place["messageID"], place.get("partID")
        mine = [each for each in self.messages if self.messages[each]["sessionID"] == session]
        gone = [each for each in mine if each > message or (each == message and not part)]
        gone += [
            each for each, about in self.parts.items()
            if about["messageID"] in gone or (part and about["messageID"] == message and each >= part)
        ]  # fmt: skip
        for each in gone:
            self.messages.pop(each, None)
            self.parts.pop(each, None)
        self._gone += gone
        self.redo(session)

    # Writing.

    def database(self, folder: Path, name: str = "opencode.db") -> Path:
        path = folder / name
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'session'").fetchone():
            connection.executescript(SCHEMA)
        for session, about in self.sessions.items():
            revert = json.dumps(about["revert"]) if "revert" in about else None
            self._put(connection, "session", session, "p", about.get("parentID"), "slug", about["directory"], about["title"],
                      about["version"], about["time"]["created"], self.times[session], revert)  # fmt: skip
        for message, about in self.messages.items():
            times = about["time"]["created"], self.times[message]
            self._put(connection, "message", message, about["sessionID"], *times, _data(about))
        for part, about in self.parts.items():
            owners, at = (about["messageID"], about["sessionID"]), self.times[part]
            self._put(connection, "part", part, *owners, at, at, _data(about))
        for session, todos in self.todos.items():
            connection.execute("DELETE FROM todo WHERE session_id = ?", (session,))
            for place, todo in enumerate(todos):
                row = (session, todo["content"], todo["status"], place, self.now, self.now)
                connection.execute("INSERT INTO todo VALUES (?, ?, ?, 'high', ?, ?, ?)", row)
        for gone in self._gone:
            connection.execute("DELETE FROM message WHERE id = ?", (gone,))
            connection.execute("DELETE FROM part WHERE id = ?", (gone,))
        connection.commit()
        connection.close()
        return path

    @staticmethod
    def _put(connection: Any, table: str, *row: Any) -> None:
        names = [each[1] for each in connection.execute(f"PRAGMA table_info({table})")]
        sets = ", ".join(f"{name} = excluded.{name}" for name in names if name != "id")
        marks = ", ".join("?" * len(names))
        connection.execute(f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {sets}", row)

    @property
    def records(self) -> int:
        return len(self.sessions) + len(self.messages) + len(self.parts) + len(self.todos)


def _data(about: dict[str, Any]) -> str:
    return json.dumps(
        {name: value for name, value in about.items() if name not in ("id", "sessionID", "messageID")}
    )


def simple() -> tuple[Book, str]:
    book = Book()
    session = book.session("Cache mended")
    book.user(session, "Mend the cache")
    return book, session


def family() -> tuple[Book, str, str]:
    book, session = simple()
    answer = book.assistant(session)
    child = book.session("Find it (@explore subagent)", parent=session)
    deep = book.session("Deeper", parent=child)
    arguments = {"description": "Find it", "prompt": "Look for it", "subagent_type": "explore"}
    book.tool(answer, "c1", "task", input=arguments, metadata={"sessionId": child})
    book.step(answer, 10, 1)
    for each, tokens in ((child, 2), (deep, 4)):
        book.user(each, "Look for it")
        found = book.assistant(each)
        book.part(found, "text", text="Found.")
        book.step(found, 10, tokens)
    return book, session, child


def compacted(book: Book, session: str, *, tail: str | None = None, auto: bool = True) -> None:
    asked = book.user(session)
    book.part(asked, "compaction", auto=auto, **({"tail_start_id": tail} if tail else {}))
    summary = book.assistant(session, summary=True, mode="compaction", agent="compaction", parentID=asked)
    book.step(summary, 160_000, 900)
    book.part(summary, "text", text="So far: half.")


def lively() -> tuple[Book, list[Callable[[], Any]]]:
    """A session that grows, and the steps in which it does."""
    book = Book()
    session = book.session()
    names: dict[str, str] = {}

    def begin() -> None:
        names["a"] = book.assistant(session, completed=False)
        names["start"] = book.part(names["a"], "step-start")
        names["text"] = book.part(names["a"], "text", text="", time={"start": book.now})

    def text() -> None:
        book.parts[names["text"]] |= {"text": "Looking.", "time": {"start": book.now, "end": book.now + 1}}
        book.touch(names["text"])
        names["tool"] = book.tool(names["a"], "c1", status="pending", input={})

    def run() -> None:
        book.parts[names["tool"]]["state"] = {
            "status": "running",
            "input": {"command": "ls"},
            "time": {"start": BEGAN + 1},
        }
        book.touch(names["tool"])

    def result() -> None:
        times = {"start": BEGAN + 1, "end": BEGAN + 2}
        book.parts[names["tool"]]["state"] |= {"status": "completed", "output": "a", "time": times}
        book.touch(names["tool"])

    def end() -> None:
        book.step(names["a"], 10, 5)
        book.messages[names["a"]]["time"]["completed"] = book.now
        book.touch(names["a"])

    def again() -> None:
        answer = book.assistant(session)
        book.part(answer, "text", text="Done.")
        book.step(answer, 20, 6)

    def summary() -> None:
        first = next(iter(book.messages))
        book.messages[first]["summary"] = {"title": "x", "diffs": []}
        book.touch(first)
        book.sessions[session]["title"] = "Another title"
        book.touch(session)

    asks = [lambda text=text: book.user(session, text) for text in ("Mend the cache", "on")]  # type: ignore[misc]
    return book, [asks[0], begin, text, run, result, end, asks[1], again, summary]
