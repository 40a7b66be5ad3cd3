"""What OpenCode's sessions become, from its database and from its tree of files, with totals computed by hand."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.conftest import Store

from watchkeeper.cli.pricing import list_pricing
from watchkeeper.store.driver import sqlite3
from watchkeeper.transcripts.importer import Importer

BEGAN = 1_770_000_000_000
SCHEMA = """
CREATE TABLE project (id TEXT PRIMARY KEY);
CREATE TABLE session (id TEXT PRIMARY KEY, project_id TEXT, parent_id TEXT, slug TEXT, directory TEXT, title TEXT, version TEXT,
  time_created INTEGER, time_updated INTEGER);
CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER, time_updated INTEGER, data TEXT);
CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, time_created INTEGER, time_updated INTEGER, data TEXT);
CREATE TABLE todo (session_id TEXT, content TEXT, status TEXT, priority TEXT, position INTEGER, time_created INTEGER,
  time_updated INTEGER, PRIMARY KEY (session_id, position));
CREATE INDEX message_session_time_created_id_idx ON message (session_id, time_created, id);
CREATE INDEX part_message_id_id_idx ON part (message_id, id);
CREATE INDEX part_session_idx ON part (session_id);
"""


class Book:
    """Sessions as OpenCode holds them, to be written as a database or as a tree."""

    def __init__(self) -> None:
        self.now = BEGAN
        self.sessions: dict[str, dict[str, Any]] = {}
        self.messages: dict[str, dict[str, Any]] = {}
        self.parts: dict[str, dict[str, Any]] = {}
        self.todos: dict[str, list[dict[str, Any]]] = {}
        self.times: dict[str, int] = {}
        self._count = 0

    def tick(self) -> int:
        self.now += 1_000
        return self.now

    def _id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count:06d}"

    def session(self, title: str = "A title", parent: str | None = None) -> str:
        session = self._id("ses")
        at = self.tick()
        about = {"id": session, "projectID": "p", "directory": "/home/somebody/project", "title": title, "version": "1.2.0"}
        self.sessions[session] = about | {"time": {"created": at, "updated": at}}
        if parent is not None:
            self.sessions[session]["parentID"] = parent
        self.times[session] = at
        return session

    def user(self, session: str, text: str | None = None, **about: Any) -> str:
        message = self._id("msg")
        at = self.tick()
        self.messages[message] = {"id": message, "sessionID": session, "role": "user", "time": {"created": at}, **about}
        self.times[message] = at
        if text is not None:
            self.part(message, "text", text=text)
        return message

    def assistant(self, session: str, *, completed: bool = True, **about: Any) -> str:
        message = self._id("msg")
        at = self.tick()
        times = {"created": at} | ({"completed": at + 900} if completed else {})
        self.messages[message] = {
            "id": message, "sessionID": session, "role": "assistant", "time": times, "modelID": "claude-opus-4-6",
            "providerID": "anthropic", "cost": 0, "tokens": {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}},
            **about,
        }  # fmt: skip
        self.times[message] = at
        return message

    def part(self, message: str, kind: str, **about: Any) -> str:
        part = self._id("prt")
        owner = self.messages[message]
        if kind in ("text", "reasoning") and owner["role"] == "assistant" and "time" not in about:
            about["time"] = {"start": self.now, "end": self.now + 100}
        self.parts[part] = {"id": part, "messageID": message, "sessionID": owner["sessionID"], "type": kind, **about}
        self.times[part] = self.tick()
        return part

    def tool(self, message: str, call: str, name: str = "bash", status: str = "completed", **state: Any) -> str:
        times: dict[str, Any] = {"start": self.now}
        if status in ("completed", "error"):
            times["end"] = self.now + 500
        inside = {"status": status, "input": state.pop("input", {"command": "ls"}), "time": times | state.pop("time", {})}
        inside |= {"output": "fine"} if status == "completed" else {"error": "it failed"} if status == "error" else {}
        return self.part(message, "tool", callID=call, tool=name, state=inside | state)

    def step(
        self, message: str, input: int, output: int, *, reasoning: int = 0, read: int = 0, write: int = 0, cost: float = 0.0
    ) -> str:
        tokens = {"input": input, "output": output, "reasoning": reasoning, "cache": {"read": read, "write": write}}
        return self.part(message, "step-finish", reason="stop", cost=cost, tokens=tokens)

    def touch(self, name: str) -> None:
        self.times[name] = self.tick()

    # Writing.

    def database(self, folder: Path, name: str = "opencode.db") -> Path:
        path = folder / name
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = WAL")
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'session'").fetchone():
            connection.executescript(SCHEMA)
        for session, about in self.sessions.items():
            self._put(connection, "session", (session, "p", about.get("parentID"), "slug", about["directory"], about["title"],
                      about["version"], about["time"]["created"], self.times[session]))  # fmt: skip
        for message, about in self.messages.items():
            data = json.dumps({name: value for name, value in about.items() if name not in ("id", "sessionID")})
            self._put(connection, "message", (message, about["sessionID"], about["time"]["created"], self.times[message], data))
        for part, about in self.parts.items():
            data = json.dumps({name: value for name, value in about.items() if name not in ("id", "sessionID", "messageID")})
            self._put(
                connection, "part", (part, about["messageID"], about["sessionID"], self.times[part], self.times[part], data)
            )
        for session, todos in self.todos.items():
            connection.execute("DELETE FROM todo WHERE session_id = ?", (session,))
            for place, todo in enumerate(todos):
                connection.execute(
                    "INSERT INTO todo VALUES (?, ?, ?, 'high', ?, ?, ?)",
                    (session, todo["content"], todo["status"], place, self.now, self.now),
                )
        connection.commit()
        connection.close()
        return path

    @staticmethod
    def _put(connection: Any, table: str, row: tuple[Any, ...]) -> None:
        names = [each[1] for each in connection.execute(f"PRAGMA table_info({table})")]
        sets = ", ".join(f"{name} = excluded.{name}" for name in names if name != "id")
        marks = ", ".join("?" * len(names))
        connection.execute(f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {sets}", row)

    def tree(self, folder: Path) -> Path:
        for session, about in self.sessions.items():
            self._file(folder / "storage" / "session" / "p" / f"{session}.json", about, session)
        for message, about in self.messages.items():
            self._file(folder / "storage" / "message" / about["sessionID"] / f"{message}.json", about, message)
        for part, about in self.parts.items():
            self._file(folder / "storage" / "part" / about["messageID"] / f"{part}.json", about, part)
        for session, todos in self.todos.items():
            self._file(folder / "storage" / "todo" / f"{session}.json", todos, session)
        return folder

    def _file(self, path: Path, value: Any, name: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(value)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            os.utime(path, ns=(self.times[name] * 1_000_000,) * 2)

    @property
    def records(self) -> int:
        return len(self.sessions) + len(self.messages) + len(self.parts) + len(self.todos)


Layout = Callable[[Book, Path], Path]


@pytest.fixture(params=["database", "tree"])
def write(request: pytest.FixtureRequest) -> Layout:
    return Book.database if request.param == "database" else Book.tree


def _simple() -> tuple[Book, str]:
    book = Book()
    session = book.session("Cache mended")
    book.user(session, "Mend the cache")
    return book, session


def test_a_session_has_its_folder_goal_title_and_model(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    answer = book.assistant(session)
    book.part(answer, "step-start")
    book.part(answer, "reasoning", text="Hm.", metadata={"anthropic": {"signature": "c2ln"}})
    book.part(answer, "text", text="Done.")
    book.step(answer, 10, 5)
    report = store.run(write(book, logs))
    row = store.one("SELECT goal, title, workspace, origin, source, model FROM sessions")
    assert tuple(row) == (
        "Mend the cache", "Cache mended", "/home/somebody/project", "opencode", f"opencode:{session}", "anthropic/claude-opus-4-6",
    )  # fmt: skip
    assert [(row[0], json.loads(row[1])) for row in store.all("SELECT role, content FROM messages ORDER BY seq")] == [
        ("user", [{"type": "text", "text": "Mend the cache"}]),
        ("assistant", [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}]),
        ("assistant", [{"type": "text", "text": "Done."}]),
    ]
    assert report.read + report.raw.total() + report.skipped.total() == book.records


def test_steps_are_model_calls_with_reasoning_as_output(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    answer = book.assistant(session, tokens={"input": 7, "output": 7, "reasoning": 0, "cache": {"read": 7, "write": 7}})
    book.step(answer, 100, 20, reasoning=5, read=1_000, write=30)
    book.step(answer, 10, 2, read=2_000)
    store.run(write(book, logs))
    # 100 + 25 + 30 + 1000 / 10 = 255 and 10 + 2 + 2000 / 10 = 212 at a dollar a token; the message's own figures repeat them.
    assert store.all(
        "SELECT input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd, price_status FROM model_calls"
    ) == [(100, 25, 1_000, 30, 255.0, "exact"), (10, 2, 2_000, 0, 212.0, "exact")]
    assert tuple(store.one("SELECT model_calls, cost_usd FROM sessions")) == (2, 467.0)


def test_a_message_without_steps_is_one_call(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    book.assistant(session, tokens={"input": 50, "output": 6, "reasoning": 4, "total": 56, "cache": {"read": 0, "write": 0}})
    store.run(write(book, logs))
    assert store.all("SELECT input_tokens, output_tokens FROM model_calls") == [(50, 6)]  # the sum says: 4 of the 6


def test_a_cost_that_was_logged_is_taken_and_none_is_never_nothing(store: Store, logs: Path) -> None:
    book, session = _simple()
    answer = book.assistant(session, providerID="opencode", modelID="big-pickle")
    book.step(answer, 1_000_000, 0, cost=0.25)
    book.step(answer, 2_000_000, 0)
    other = book.assistant(session)
    book.step(other, 100_000, 0)
    importer = Importer(store.writer, pricing=list_pricing())
    importer.run([book.database(logs)])
    importer.close()
    assert store.all("SELECT price_status, cost_usd FROM model_calls ORDER BY id") == [
        ("exact", 0.25), ("unpriced", None), ("exact", pytest.approx(0.5)),
    ]  # fmt: skip


def test_tools_are_paired_with_their_results(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    answer = book.assistant(session)
    book.tool(answer, "c1", attachments=[{"type": "file", "mime": "image/png", "url": "data:image/png;base64,QUJD"}])
    book.tool(answer, "c2", status="error")
    book.tool(answer, "c3", status="error", error="The user rejected permission to use this specific tool call.")
    book.tool(answer, "c4", status="error", error="Tool execution aborted")
    book.tool(answer, "c5", status="running")
    store.run(write(book, logs))
    assert store.all("SELECT tool_use_id, status, seq, result_seq FROM tool_calls ORDER BY id") == [
        ("c1", "done", 2, 3), ("c2", "error", 4, 5), ("c3", "denied", 6, 7), ("c4", "cancelled", 8, 9), ("c5", "unknown", 10, None),
    ]  # fmt: skip
    result = json.loads(store.one("SELECT content FROM messages WHERE seq = 3"))
    assert result[0]["content"][1]["source"]["data"] == "QUJD"


def test_files_are_images_or_told_by_name(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    asked = book.user(session)
    book.part(asked, "file", mime="image/png", filename="a.png", url="data:image/png;base64,QUJD")
    book.part(asked, "file", mime="text/plain", filename="a.txt", url="file:///tmp/a.txt")
    store.run(write(book, logs))
    contents = [json.loads(row[0]) for row in store.all("SELECT content FROM messages ORDER BY seq")]
    assert contents[1][0]["source"] == {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    assert contents[2] == [{"type": "text", "text": "[attached text/plain: a.txt at file:///tmp/a.txt]"}]


AGENTS = "SELECT a.name, a.role, a.status, a.current_goal, a.output_tokens, p.name FROM agents a LEFT JOIN agents p ON p.id = a.parent_agent_id ORDER BY a.created_at"


def _family() -> tuple[Book, str, str]:
    book, session = _simple()
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


def test_sub_agents_stand_below_the_agent_that_started_them(store: Store, logs: Path, write: Layout) -> None:
    book, session, _ = _family()
    store.run(write(book, logs))
    assert store.all("SELECT source, output_tokens FROM sessions") == [(f"opencode:{session}", 7)]
    assert store.all(AGENTS) == [
        ("main", "main", "done", "Mend the cache", 1, None),
        ("Find it", "explore", "done", "Look for it", 2, "main"),
        ("Deeper", "agent", "done", "Look for it", 4, "Find it"),
    ]


def test_a_session_whose_parent_is_lost_is_kept_below_an_empty_agent(store: Store, logs: Path, write: Layout) -> None:
    book, session, _ = _family()
    for each in [name for name, about in book.messages.items() if about["sessionID"] == session]:
        book.parts = {name: part for name, part in book.parts.items() if part["messageID"] != each}
        del book.messages[each]
    del book.sessions[session]
    store.run(write(book, logs))
    assert store.one("SELECT count(*) FROM sessions") == 1
    assert sorted((row[4], row[0], row[5]) for row in store.all(AGENTS)) == [
        (0, "main", None),
        (2, "Find it", "main"),
        (4, "Deeper", "Find it"),
    ]


def test_sessions_that_are_each_others_parents_stand_in_no_circle(store: Store, logs: Path, write: Layout) -> None:
    book = Book()
    one, two = book.session(), book.session()
    book.sessions[one]["parentID"], book.sessions[two]["parentID"] = two, one
    book.user(one, "x")
    book.user(two, "y")
    store.run(write(book, logs))
    assert store.counts()["messages"] == 2
    parents = dict(store.all("SELECT id, parent_agent_id FROM agents"))
    for agent in parents:
        seen: set[str] = set()
        while agent is not None:
            assert agent not in seen
            seen.add(agent)
            agent = parents[agent]


def test_to_do_lists_become_tasks_with_their_history(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    answer = book.assistant(session)
    for place, states in enumerate((["in_progress", "pending"], ["completed", "in_progress"])):
        todos = [{"content": name, "status": status, "priority": "high"} for name, status in zip("ab", states, strict=True)]
        book.tool(answer, f"t{place}", "todowrite", input={"todos": todos})
    book.todos[session] = [{"content": "a", "status": "completed"}, {"content": "b", "status": "cancelled"}]
    store.run(write(book, logs))
    assert store.all("SELECT title, status FROM tasks ORDER BY position") == [("a", "done"), ("b", "cancelled")]
    snapshots = [json.loads(row[0]) for row in store.all("SELECT plan_graph_snapshot FROM plan_revisions ORDER BY revision")]
    assert [[item["status"] for item in snapshot] for snapshot in snapshots] == [
        ["running", "pending"], ["done", "running"], ["done", "cancelled"],
    ]  # fmt: skip


def _compacted(book: Book, session: str, *, tail: str | None = None, auto: bool = True) -> None:
    asked = book.user(session)
    book.part(asked, "compaction", auto=auto, **({"tail_start_id": tail} if tail else {}))
    summary = book.assistant(session, summary=True, mode="compaction", agent="compaction", parentID=asked)
    book.step(summary, 160_000, 900)
    book.part(summary, "text", text="So far: half.")


def test_a_compaction_drops_what_came_before_its_summary_and_tells_its_sizes(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    answer = book.assistant(session)
    book.part(answer, "text", text="Half done.")
    book.step(answer, 1_000, 50, read=149_000)
    _compacted(book, session)
    after = book.assistant(session)
    book.part(after, "text", text="Done.")
    book.step(after, 2_000, 30, read=1_000)
    store.run(write(book, logs))
    assert store.all("SELECT trigger, tokens_before, tokens_after, messages_removed, high_water FROM compactions") == [
        ("auto", 150_050, 3_000, 2, 2)
    ]
    assert store.one("SELECT text FROM observations") == "So far: half."
    assert store.counts()["messages"] == 3
    assert store.one("SELECT output_tokens FROM sessions") == 50 + 900 + 30


def test_a_compaction_keeps_the_messages_from_its_tail_on(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    tail = book.user(session, "And the tests")
    _compacted(book, session, tail=tail, auto=False)
    store.run(write(book, logs))
    assert store.all("SELECT trigger, messages_removed, high_water FROM compactions") == [("manual", 1, 1)]
    assert store.one("SELECT verbatim_from FROM views ORDER BY version DESC") == 2


def test_a_summary_that_failed_compacted_nothing(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    asked = book.user(session)
    book.part(asked, "compaction", auto=True)
    book.assistant(session, summary=True, parentID=asked, error={"name": "APIError", "data": {"message": "Overloaded"}})
    store.run(write(book, logs))
    assert store.counts()["compactions"] == 0
    assert store.one("SELECT json_extract(data, '$.error') FROM events WHERE kind = 'model.error'") == "Overloaded"


def test_emptied_tool_results_are_one_compaction_that_elides_them(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    answer = book.assistant(session)
    for call in ("c1", "c2", "c3"):
        book.tool(answer, call)
    path = write(book, logs)
    store.run(path)
    for part in [name for name, about in book.parts.items() if about.get("callID") in ("c1", "c2")]:
        book.parts[part]["state"]["time"]["compacted"] = book.now
        book.touch(part)
    book.user(session, "Go on")
    write(book, logs)
    store.run(path)
    assert store.all("SELECT trigger, reason, messages_removed FROM compactions") == [("prune", "2 tool results emptied", 0)]
    assert [each[0] for each in json.loads(store.one("SELECT elided FROM views ORDER BY version DESC"))] == [3, 5]
    book.touch(session)
    write(book, logs)
    store.run(path)
    assert store.counts()["compactions"] == 1
    assert store.counts()["messages"] == 8


def test_errors_interruptions_and_retries_are_events(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    answer = book.assistant(session, error={"name": "MessageAbortedError", "data": {"message": "The operation was aborted."}})
    book.part(
        answer, "retry", attempt=1, error={"name": "APIError", "data": {"message": "Overloaded"}}, time={"created": book.now}
    )
    store.run(write(book, logs))
    events = store.all("SELECT kind, json_extract(data, '$.error') FROM events WHERE kind NOT LIKE 'agent.created' ORDER BY seq")
    assert events == [("model.retrying", "Overloaded"), ("agent.interrupted", "The operation was aborted.")]


def test_a_fork_repeats_messages_and_counts_no_call_twice(store: Store, logs: Path) -> None:
    book, session = _simple()
    answer = book.assistant(session)
    book.tool(answer, "c1")
    book.part(answer, "text", text="Done.")
    book.step(answer, 10, 5)
    fork = book.session("Cache mended (fork #1)")
    for message, about in [(name, about) for name, about in book.messages.items() if about["sessionID"] == session]:
        copy = book._id("msg")
        book.messages[copy] = about | {"id": copy, "sessionID": fork}
        book.times[copy] = book.tick()
        for part in [each for each in book.parts.values() if each["messageID"] == message]:
            name = book._id("prt")
            book.parts[name] = part | {"id": name, "messageID": copy, "sessionID": fork}
            book.times[name] = book.tick()
    book.user(fork, "Another way")
    store.run(book.database(logs))
    rows = store.all(
        "SELECT s.model_calls, f.source, a.last_seq FROM sessions s LEFT JOIN sessions f ON f.id = s.forked_from JOIN agents a ON a.session_id = s.id ORDER BY s.source"
    )
    assert rows == [(1, None, 4), (0, f"opencode:{session}", 5)]
    assert store.counts()["tool_calls"] == 1


def test_sub_agents_that_were_told_the_same_at_once_are_not_taken_for_each_other(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    for _ in range(2):
        child = book.session(parent=session)
        book.now = BEGAN + 50_000
        book.user(child, "Look for it")
        answer = book.assistant(child)
        book.step(answer, 10, 5)
    store.run(write(book, logs))
    assert tuple(store.one("SELECT model_calls, output_tokens FROM sessions")) == (2, 10)
    assert store.counts()["messages"] == 3


def _lively() -> tuple[Book, list[Callable[[], Any]]]:
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
        book.parts[names["tool"]]["state"] = {"status": "running", "input": {"command": "ls"}, "time": {"start": BEGAN + 1}}
        book.touch(names["tool"])

    def result() -> None:
        book.parts[names["tool"]]["state"] |= {
            "status": "completed",
            "output": "a",
            "time": {"start": BEGAN + 1, "end": BEGAN + 2},
        }
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

    return book, [
        lambda: book.user(session, "Mend the cache"),
        begin,
        text,
        run,
        result,
        end,
        lambda: book.user(session, "on"),
        again,
        summary,
    ]


def test_a_session_that_grew_adds_what_is_new_and_ends_as_when_read_at_once(
    store: Store, logs: Path, write: Layout, open_store: Callable[[str], Store], tmp_path: Path
) -> None:
    book, steps = _lively()
    path = write(book, logs)
    for step in steps:
        step()
        write(book, logs)
        store.run(path)
        report = store.run(path)
        assert report.lines == 0
    (tmp_path / "other").mkdir()
    whole = open_store("whole")
    whole.run(write(book, tmp_path / "other"))
    for sql in (
        "SELECT id, last_seq, message_tokens, output_tokens, model_calls FROM agents ORDER BY id",
        "SELECT agent_id, seq, role, content FROM messages ORDER BY agent_id, seq",
        "SELECT tool_use_id, status, seq, result_seq FROM tool_calls ORDER BY id",
        "SELECT title, goal, input_tokens, output_tokens, model_calls FROM sessions",
    ):
        assert store.all(sql) == whole.all(sql)
    assert store.one("SELECT title FROM sessions") == "Another title"


def test_a_tool_that_runs_is_there_before_its_result(store: Store, logs: Path, write: Layout) -> None:
    book, steps = _lively()
    for step in steps[:4]:
        step()
    store.run(write(book, logs))
    assert store.all("SELECT tool_use_id, status, result_seq FROM tool_calls") == [("c1", "unknown", None)]
    assert store.counts()["messages"] == 3


def test_text_that_no_end_is_told_of_is_shown_as_it_grows_and_never_twice(store: Store, logs: Path) -> None:
    book, session = _simple()
    answer = book.assistant(session, completed=False)
    part = book.part(answer, "text", text="Loo", time={"start": book.now})
    path = book.tree(logs)
    for text in ("Loo", "Looking", "Looking.", "Looking."):
        book.parts[part]["text"] = text
        book.touch(part)
        book.tree(logs)
        store.run(path)
    book.user(session, "on")
    book.tree(logs)
    store.run(path)
    texts = [json.loads(row[0])[0]["text"] for row in store.all("SELECT content FROM messages ORDER BY seq")]
    assert texts == ["Mend the cache", "Loo", "king", ".", "on"]


def test_rows_that_a_clock_set_back_wrote_are_found(store: Store, logs: Path) -> None:
    book, session = _simple()
    path = book.database(logs)
    store.run(path)
    book.now = BEGAN - 10_000_000
    book.user(session, "From yesterday")
    book.database(logs)
    store.run(path)
    assert store.counts()["messages"] == 2


def test_the_tree_and_the_database_that_it_became_are_the_same_sessions(store: Store, logs: Path) -> None:
    book, _, _ = _family()
    book.database(logs)
    book.tree(logs)
    report = store.run(logs)
    assert tuple(store.one("SELECT count(*), sum(output_tokens), sum(model_calls) FROM sessions")) == (1, 7, 3)
    assert store.counts()["messages"] == 7
    assert not report.unknown


def test_a_database_in_use_is_read_with_what_is_not_checkpointed_yet(store: Store, logs: Path) -> None:
    book, session = _simple()
    path = book.database(logs)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    try:
        store.run(path)
        row = ("msg_z", session, book.tick(), book.now, json.dumps({"role": "user", "time": {"created": book.now}}))
        connection.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", row)
        part = ("prt_z", "msg_z", session, book.now, book.now, json.dumps({"type": "text", "text": "on"}))
        connection.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", part)
        connection.commit()
        connection.execute("BEGIN IMMEDIATE")  # it writes at this moment
        store.run(path)
        assert store.counts()["messages"] == 2
    finally:
        connection.close()


def test_a_database_without_times_and_later_tables_is_read(store: Store, logs: Path) -> None:
    path = logs / "opencode-beta.db"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE session (id TEXT); CREATE TABLE message (id TEXT, session_id TEXT, data TEXT);"
        "CREATE TABLE part (id TEXT, message_id TEXT, data TEXT);"
        "CREATE TABLE session_message (id TEXT, session_id TEXT, type TEXT, data TEXT)"
    )
    connection.execute("INSERT INTO message VALUES ('m', 's', '{\"role\": \"user\"}')")
    connection.execute('INSERT INTO part VALUES (\'p\', \'m\', \'{"type": "text", "text": "x"}\')')
    connection.execute("INSERT INTO session_message VALUES ('x', 's', 'news', '{}')")
    connection.commit()
    connection.close()
    report = store.run(logs)
    assert store.counts()["messages"] == 1
    assert report.raw["session_message/news", "unknown record type"] == 1  # type: ignore[index]


def test_what_is_no_database_of_opencode_is_left_alone(store: Store, logs: Path) -> None:
    sqlite3.connect(logs / "opencode.db").execute("CREATE TABLE notes (x)").connection.close()
    (logs / "opencode-dev.db").write_bytes(b"SQLite format 3\x00" + b"\xff" * 5_000)
    report = store.run(logs)
    assert len(report.unknown) == 2
    assert store.counts()["sessions"] == 0


def test_broken_rows_and_files_are_kept_raw_and_counted(store: Store, logs: Path, write: Layout) -> None:
    book, session = _simple()
    answer = book.assistant(session)
    part = book.part(answer, "telepathy", text="x")
    tool = book.tool(answer, "c1")
    lost = book.user(session, "Gone")
    path = write(book, logs)
    if path.suffix == ".db":
        connection = sqlite3.connect(path)
        connection.execute("UPDATE part SET data = substr(data, 1, 20) WHERE id = ?", (tool,))
        connection.execute("UPDATE message SET data = '{\"role\"' WHERE id = ?", (lost,))
        connection.commit()
        connection.close()
    else:
        for file in (
            logs / "storage" / "part" / answer / f"{tool}.json",
            logs / "storage" / "message" / session / f"{lost}.json",
        ):
            file.write_bytes(file.read_bytes()[:20])
    report = store.run(path)
    assert {tuple(each) for each in report.raw} == {
        ("part/telepathy", "unknown record type"),
        ("part", "broken JSON"),
        ("message", "broken JSON"),
        ("part/text", "its message is missing or broken"),
    }
    assert report.read + report.raw.total() + report.skipped.total() == book.records
    assert part


def test_messages_of_a_session_whose_file_is_lost_are_read(store: Store, logs: Path) -> None:
    book, session = _simple()
    book.tree(logs)
    (logs / "storage" / "session" / "p" / f"{session}.json").unlink()
    report = store.run(logs)
    assert store.all("SELECT source, goal FROM sessions") == [(f"opencode:{session}", "Mend the cache")]
    assert not report.unknown


def test_the_usual_place_follows_the_environment(tmp_path: Path) -> None:
    from watchkeeper.transcripts.opencode import PROGRAM

    share = tmp_path / ".local" / "share" / "opencode"
    assert PROGRAM.places({}, tmp_path) == [share / "opencode.db", share / "storage", share / "project"]
    (tmp_path / "opencode").mkdir()
    (tmp_path / "opencode" / "opencode-beta.db").touch()
    found = PROGRAM.places({"XDG_DATA_HOME": str(tmp_path)}, Path("/home/a"))
    assert found[:2] == [tmp_path / "opencode" / "opencode.db", tmp_path / "opencode" / "opencode-beta.db"]


def test_the_older_tree_has_sessions_messages_and_parts_below_one_folder(store: Store, logs: Path) -> None:
    book, session, _ = _family()
    book.tree(logs)
    storage, older = logs / "storage", logs / "project" / "p" / "storage" / "session"
    older.mkdir(parents=True)
    (storage / "session" / "p").rename(older / "info")
    for name in ("message", "part"):
        (storage / name).rename(older / name)
    report = store.run(logs)
    assert store.all("SELECT source, output_tokens FROM sessions") == [(f"opencode:{session}", 7)]
    assert report.lines == book.records
    assert (report.unknown, report.left) == ([], {})


def test_a_reading_that_was_interrupted_goes_on_where_it_was(logs: Path) -> None:
    from watchkeeper.transcripts.opencode.database import DatabaseReader

    book, session = _simple()
    for _ in range(3):
        book.user(book.session(), "x")
    path = book.database(logs)
    reader, got = DatabaseReader(path, None), []
    for line, _, records in reader.pull():
        got.append((line, records))
        if len(got) == 5:
            break
    state = json.loads(json.dumps(reader.save()))
    again = DatabaseReader(path, state)
    rest = [(line, records) for line, _, records in again.pull()]
    whole = [records for _, _, records in DatabaseReader(path, None).pull()]
    told = [records for _, records in got + rest]
    assert all(records in told for records in whole)
    assert len(told) <= len(whole) + 3
    assert not list(DatabaseReader(path, json.loads(json.dumps(again.save()))).pull())
    assert session
