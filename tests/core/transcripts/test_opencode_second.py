"""Sessions of OpenCode 2: rows of `session_v2` and `session_message`, with totals computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.conftest import Store

from watchkeeper.store.driver import sqlite3

BEGAN = 1_790_000_000_000
SCHEMA = """
CREATE TABLE session_v2 (id TEXT PRIMARY KEY, project_id TEXT, parent_id TEXT, fork_session_id TEXT, directory TEXT, title TEXT,
  version TEXT, agent TEXT, model TEXT, time_created INTEGER, time_updated INTEGER);
CREATE TABLE session_message (id TEXT PRIMARY KEY, session_id TEXT, type TEXT, seq INTEGER, time_created INTEGER,
  time_updated INTEGER, data TEXT);
CREATE TABLE todo (session_id TEXT, content TEXT, status TEXT, priority TEXT, position INTEGER, time_created INTEGER,
  time_updated INTEGER, PRIMARY KEY (session_id, position));
"""
MODEL = {"id": "claude-opus-4-6", "providerID": "anthropic"}


class Second:
    """A database that is written to row by row."""

    def __init__(self, folder: Path, sessions: str = "session_v2") -> None:
        self.path = folder / "opencode.db"
        self._sessions = sessions
        self.connection = sqlite3.connect(self.path)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.executescript(SCHEMA.replace("session_v2", sessions))
        self.now = BEGAN
        self._seq = 0

    def tick(self) -> int:
        self.now += 1_000
        return self.now

    def session(self, name: str = "ses_1", parent: str | None = None, **about: Any) -> str:
        at, title = self.tick(), about.get("title", "A title")
        row = (name, "p", parent, about.get("fork"), "/w", title, "2.0.26", about.get("agent"), None, at, at)
        self.connection.execute(f"INSERT INTO {self._sessions} VALUES ({', '.join('?' * len(row))})", row)
        self.connection.commit()
        return name

    def add(
        self, session: str, kind: str, *, name: str | None = None, completed: bool = True, **data: Any
    ) -> str:
        self._seq += 1
        at = self.tick()
        row_id = name or f"msg_{self._seq:04d}"
        times = {"created": at} | ({"completed": at + 500} if completed else {})
        row = (row_id, session, kind, self._seq, at, at, json.dumps({"time": times} | data))
        self.connection.execute("INSERT OR REPLACE INTO session_message VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        self.connection.commit()
        return row_id

    def change(self, row_id: str, **data: Any) -> None:
        value = json.loads(
            self.connection.execute("SELECT data FROM session_message WHERE id = ?", (row_id,)).fetchone()[0]
        )
        self.connection.execute(
            "UPDATE session_message SET data = ?, time_updated = ? WHERE id = ?",
            (json.dumps(value | data), self.tick(), row_id),
        )
        self.connection.commit()

    def reply(self, session: str, *content: dict[str, Any], **data: Any) -> str:
        tokens = {"input": 100, "output": 30, "reasoning": 5, "cache": {"read": 1_000, "write": 20}}
        about = {"agent": "build", "model": MODEL, "finish": "stop", "cost": 0, "tokens": tokens}
        return self.add(session, "assistant", content=list(content), **(about | data))


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def tool(name: str, call: str, status: str = "completed", **about: Any) -> dict[str, Any]:
    given = {"status": status, "input": about.pop("input", {})}
    if status == "completed":
        given["content"] = [text(about.pop("output", "fine"))]
    times = {"created": BEGAN, "completed": BEGAN + 9}
    return {"type": "tool", "id": call, "name": name, "state": given | about, "time": times}


FIRST_TABLES = (
    "CREATE TABLE message (id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER, time_updated INTEGER, data TEXT);"
    "CREATE TABLE part (id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, time_created INTEGER, time_updated INTEGER,"
    " data TEXT);"
)


@pytest.mark.parametrize("tables", ["alone", "beside empty ones", "beside its own"])
def test_messages_whose_sessions_stand_in_the_table_of_before_are_read_once(store, logs, tables):
    book = Second(logs, "session")
    session = book.session()
    book.add(session, "user", text="Mend the cache")
    tokens = {"input": 100, "output": 5, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    book.reply(session, text("Mended."), cost=0.5, tokens=tokens)
    if tables != "alone":
        book.connection.executescript(FIRST_TABLES)
    if tables == "beside its own":
        at = book.tick()
        reply = {"role": "assistant", "modelID": "x", "providerID": "y", "tokens": tokens, "finish": "stop"}
        for name, info, said in (("m1", {"role": "user"}, "Mend the cache"), ("m2", reply, "Mended.")):
            data = json.dumps({**info, "time": {"created": at, "completed": at}})
            insert = book.connection.execute
            insert("INSERT INTO message VALUES (?, ?, ?, ?, ?)", (name, session, at, at, data))
            part = (f"p{name}", name, session, at, at, json.dumps(text(said)))
            insert("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", part)
        book.connection.commit()
    for _ in range(2):
        report = store.run(book.path)
        assert store.one("SELECT goal, title, model_calls, output_tokens FROM sessions") == (
            "Mend the cache",
            "A title",
            1,
            5,
        )
        assert store.counts()["messages"] == 2
        assert not [kind for kind, reason in report.raw if reason == "unknown record type"]
    book.add(session, "user", text="And on")
    store.run(book.path)
    assert store.counts()["messages"] == (2 if tables == "beside its own" else 3)


def test_messages_tools_usage_and_cost_are_read(store: Store, logs: Path) -> None:
    book = Second(logs)
    session = book.session()
    book.add(session, "model-switched", model=MODEL)
    book.add(session, "user", text="Mend the cache", files=[])
    todos = [{"content": "Look", "status": "completed"}, {"content": "Mend", "status": "in_progress"}]
    times = {"created": BEGAN, "completed": BEGAN + 1}
    book.reply(
        session,
        {"type": "reasoning", "text": "Hm.", "state": {"signature": "sealed"}, "time": times},
        tool("todowrite", "c1", input={"todos": todos}),
        tool("shell", "c2", output="hi"),
        finish="tool-calls",
    )
    error = {"type": "tool.execution", "message": "no such file"}
    book.reply(session, tool("read", "c3", "error", error=error), cost=0.25)
    book.add(session, "idle", outcome="succeeded")
    report = store.run(logs)
    assert report.unknown == []
    assert dict(report.raw) == {
        ("session_message/model-switched", "known, not shown"): 1,
        ("session_message/idle", "known, not shown"): 1,
    }
    rows = store.all("SELECT goal, title, workspace, model FROM sessions")
    assert rows == [("Mend the cache", "A title", "/w", "anthropic/claude-opus-4-6")]
    assert store.all("SELECT tool_use_id, name, status FROM tool_calls ORDER BY id") == [
        ("c1", "todowrite", "done"), ("c2", "shell", "done"), ("c3", "read", "error"),
    ]  # fmt: skip
    assert store.all("SELECT title, status FROM tasks ORDER BY position") == [
        ("Look", "done"),
        ("Mend", "paused"),
    ]
    sums = (
        "SELECT model_calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens FROM sessions"
    )
    assert store.all(sums) == [(2, 200, 70, 2_000, 40)]
    results = [
        json.loads(row[0])
        for row in store.all("SELECT content FROM messages WHERE role = 'user' AND seq > 1 ORDER BY seq")
    ]
    assert [block["content"] for blocks in results for block in blocks] == ["fine", "hi", "no such file"]
    assert '"signature":"sealed"' in store.one("SELECT content FROM messages WHERE content LIKE '%thinking%'")
    before = store.counts()
    store.run(logs)
    assert store.counts() == before


def test_sub_agents_and_compactions_stand_where_they_belong(store: Store, logs: Path) -> None:
    book = Second(logs)
    session, child = book.session(), "ses_2"
    book.add(session, "user", text="Mend the cache")
    given = {"agent": "explore", "description": "Look around", "prompt": "List the files."}
    book.reply(
        session, tool("subagent", "c1", input=given, metadata={"sessionID": child}), finish="tool-calls"
    )
    book.session(child, session, title="Look around", agent="explore")
    book.add(child, "user", text="List the files.")
    book.reply(child, text("Two files."))
    book.add(
        session, "compaction", status="completed", reason="manual", summary="All of it.", recent="Its end."
    )
    book.reply(session, text("On it."))
    store.run(logs)
    assert store.all("SELECT name, role, status FROM agents ORDER BY created_at") == [
        ("main", "main", "done"), ("Look around", "explore", "done"),
    ]  # fmt: skip
    assert store.one("SELECT count(*) FROM sessions") == 1
    rows = store.all("SELECT trigger, tokens_before, tokens_after, messages_removed FROM compactions")
    assert rows == [("manual", 1_155, 1_120, 3)]
    assert store.one("SELECT text FROM observations") == "All of it.\nIts end."
    assert store.one("SELECT model_calls FROM sessions") == 3


def test_a_reply_that_is_being_written_is_told_as_it_grows(store: Store, logs: Path) -> None:
    book = Second(logs)
    session = book.session()
    book.add(session, "user", text="Mend the cache")
    running = tool("shell", "c1", "running")
    running["time"].pop("completed")
    going = book.reply(session, text("I look"), running, completed=False, finish=None, tokens=None)
    store.run(logs)
    assert store.one("SELECT count(*) FROM model_calls") == 0
    times = {"created": book.now, "completed": book.now + 900}
    ended = [text("I look at it."), tool("shell", "c1")]
    tokens = {"input": 7, "output": 3, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    book.change(going, content=ended, time=times, tokens=tokens, finish="stop")
    for _ in range(2):
        store.run(logs)
        assert store.all("SELECT status FROM tool_calls") == [("done",)]
        assert store.all("SELECT input_tokens, output_tokens FROM sessions") == [(7, 3)]
        said = " ".join(row[0] for row in store.all("SELECT content FROM messages ORDER BY seq"))
        assert said.count("I look at it.") == 1
        assert '"I look"' not in said


def test_what_the_first_store_still_holds_of_a_session_is_not_read_again(store: Store, logs: Path) -> None:
    book = Second(logs)
    session = book.session()
    book.add(session, "user", text="Mend the cache")
    book.connection.executescript(
        "CREATE TABLE session (id TEXT, time_created INTEGER); CREATE TABLE message (id TEXT, session_id"
        " TEXT, data TEXT);"
        "CREATE TABLE part (id TEXT, message_id TEXT, session_id TEXT, data TEXT);"
        "INSERT INTO session VALUES ('ses_1', 1), ('ses_old', 2);"
        """INSERT INTO message VALUES ('m1', 'ses_1', '{"role":"user"}'), ('m2', 'ses_old', '{"role":"user"}');"""
        """INSERT INTO part VALUES ('p1', 'm1', 'ses_1', '{"type":"text","text":"A copy"}'),"""
        """ ('p2', 'm2', 'ses_old', '{"type":"text","text":"Older"}');"""
    )
    store.run(logs)
    assert sorted(store.all("SELECT goal FROM sessions")) == [("Mend the cache",), ("Older",)]


def test_broken_rows_errors_and_interruptions_are_kept(store: Store, logs: Path) -> None:
    book = Second(logs)
    session = book.session()
    book.add(session, "user", text="Mend the cache")
    book.reply(session, text("I"), error={"type": "aborted", "message": "stopped"}, tokens=None)
    book.reply(session, error={"type": "provider.rate-limit", "message": "too fast"}, tokens=None)
    book.add(
        session, "compaction", status="failed", reason="auto", error={"type": "provider", "message": "no"}
    )
    row = ("msg_x", session, "assistant", 90, book.tick(), book.now, "{half")
    book.connection.execute("INSERT INTO session_message VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    book.add(session, "news-of-tomorrow", text="?")
    report = store.run(logs)
    assert report.raw["message", "broken JSON"] == 1
    assert report.raw["session_message/news-of-tomorrow", "unknown record type"] == 1
    assert store.one("SELECT count(*) FROM compactions") == 0
    kinds = store.all(
        "SELECT kind FROM events WHERE kind IN ('agent.interrupted', 'model.error') ORDER BY seq"
    )
    assert [kind for (kind,) in kinds] == ["agent.interrupted", "model.error", "model.error"]


def test_rows_of_its_first_form_name_calls_children_and_emptied_results_by_fields_of_their_own(store, logs):
    book = Second(logs)
    session = book.session()
    child = book.session("ses_2", parent=session, title="Look (@explore subagent)")
    book.add(session, "user", text="Mend the cache")
    at = book.now
    times = {"created": at, "completed": at}
    tool: dict[str, Any] = {
        "type": "tool",
        "id": "evt_c_1",
        "callID": "call_1",
        "name": "subagent",
        "time": times,
    }
    done: dict[str, Any] = {
        "status": "completed",
        "input": {"description": "Look"},
        "structured": {"sessionID": child},
    }
    done["content"] = [{"type": "text", "text": "Found."}]
    reply = book.add(session, "assistant", model=MODEL, content=[tool | {"state": done}], finish="tool-calls")
    book.add(session, "user", text="On")
    store.run(book.path)
    assert store.all("SELECT tool_use_id, name, status FROM tool_calls") == [("call_1", "subagent", "done")]
    rows = store.one("SELECT count(*) FROM agents WHERE current_goal <> '' OR parent_agent_id IS NOT NULL")
    assert rows == 2
    book.change(reply, content=[tool | {"state": done, "time": times | {"pruned": book.tick()}}])
    store.run(book.path)
    assert store.all("SELECT trigger FROM compactions") == [("prune",)]


def test_a_compaction_without_a_status_is_one_that_is_done(store: Store, logs: Path) -> None:
    book = Second(logs)
    session = book.session()
    book.add(session, "user", text="Mend the cache")
    book.add(
        session, "compaction", reason="manual", summary="All of it.", recent="The end of it.", completed=False
    )
    store.run(book.path)
    assert store.all("SELECT trigger, messages_removed FROM compactions") == [("manual", 1)]
    assert store.one("SELECT text FROM observations") == "All of it.\nThe end of it."


@pytest.mark.parametrize("sessions", ["session_v2", "session"])
def test_a_session_in_which_nothing_was_said_yet_keeps_no_other_out(store, logs, sessions):
    book = Second(logs, sessions)
    book.session("ses_0", title="Empty")
    book.add(book.session(), "user", text="Mend the cache")
    book.add("ses_lost", "user", text="Whose?")
    assert not store.run(book.path).left
    assert sorted(store.all("SELECT goal FROM sessions")) == [("",), ("Mend the cache",), ("Whose?",)]
