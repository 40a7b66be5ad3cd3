"""Databases made by hand: sessions of any size, hostile text included, without any other room of the
program."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from watchkeeper.store.database import APPLICATION_ID
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.migrations import SCHEMA_VERSION
from watchkeeper.store.schema import creation

NOW = 1_790_000_000.0

HOSTILE = (
    "\x1b[2J\x1b[31mred\x1b[0m \x1b]0;pwned title\x07 \x1b]52;c;ZXZpbA==\x07 \x9b5A \x90q\x9c"
    " \u202egnp.exe\u2066x\u2069"
    " zero\u200bwidth\u2060 \ufeff [@click=app.exit]click[/] [/nowhere] [bold]b[/bold]"
    " [link=http://x]l[/link]"
    " tab\there\r\x7f\x08 \ud800 漢字テスト 👩\u200d👩\u200d👧 e\u0301\u0301\u0301\u0301\u0301\u0301 \U000e0041tag"
)


@functools.cache
def _schema() -> Connection:
    """The program's schema in memory, made once."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    for statement in creation():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
    return connection


def create(path: Path) -> Connection:
    """A database with the program's schema and no rows."""
    connection = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
    _schema().backup(connection)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")
    return connection


def insert(connection: Connection, table: str, **values: Any) -> None:
    names = ", ".join(values)
    marks = ", ".join("?" * len(values))
    sql = f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})"
    connection.execute(sql, tuple(map(bindable, values.values())))


def bindable(value: Any) -> Any:
    """As the store does it: what no UTF-8 binding takes becomes U+FFFD."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


class FakeSession:
    """One session that a test changes row by row."""

    def __init__(
        self, connection: Connection, session_id: str = "abcd2345", *, now: float = NOW, **values: Any
    ) -> None:
        self.connection = connection
        self.id = session_id
        self.now = now
        self.seq = 0
        row: dict[str, Any] = {
            "id": session_id, "user_id": "test", "goal": "migrate billing to cents",
            "workspace": "/srv/billing", "model": "offline/surveyor", "status": "running",
            "created_at": now - 764, "last_active": now, "planner_agent_id": "planner1",
            "current_plan_id": "plan1", "host_pid": 991, "host_name": "box", "input_tokens": 1_100_000,
            "output_tokens": 90_000, "cache_read_tokens": 710_000, "cost_usd": 4.82, "model_calls": 412,
            **values,
        }  # fmt: skip
        insert(connection, "sessions", **row)

    def agent(self, agent_id: str, name: str, **values: Any) -> str:
        row: dict[str, Any] = {
            "id": agent_id,
            "session_id": self.id,
            "parent_agent_id": None if agent_id == "planner1" else "planner1",
            "name": name,
            "role": "explorer",
            "model": "offline/surveyor",
            "status": "working",
            "turn": 12,
            "current_goal": f"do what {name} does",
            "context_limit": 32_000,
            "context_tokens": 14_000,
            "composition": json.dumps(
                {"observations": 2100, "messages": 10_900, "elided": 0, "headroom": 17_000, "overhead": 1000}
            ),
            "created_at": self.now - 700,
            "started_at": self.now - 690,
            "last_active": self.now - 0.3,
            "input_tokens": 120_000,
            "output_tokens": 8_000,
            "cost_usd": 0.11,
            "model_calls": 12,
            "view_version": 1,
            **values,
        }
        insert(self.connection, "agents", **row)
        insert(
            self.connection, "views", agent_id=agent_id, version=1, observations="[]", verbatim_from=1,
            reason="start", created_at=self.now,
        )  # fmt: skip
        return agent_id

    def task(
        self,
        task_id: str,
        title: str,
        *,
        agent: str | None = None,
        needs: tuple[str, ...] = (),
        **values: Any,
    ) -> str:
        """Without another `name`, a task is named as its `agent` was made, and so is that."""
        doer = self.connection.execute("SELECT name FROM agents WHERE id = ?", (agent,)).fetchone()
        row: dict[str, Any] = {
            "id": task_id,
            "session_id": self.id,
            "parent_plan_id": "plan1",
            "name": doer[0] if doer else task_id,
            "position": int(self.connection.execute("SELECT count(*) FROM tasks").fetchone()[0]),
            "title": title,
            "instructions": title,
            "role": "explorer",
            "status": "running" if agent else "pending",
            "assigned_agent": agent,
            "created_at": self.now - 700,
            **values,
        }
        insert(self.connection, "tasks", **row)
        for need in needs:
            insert(self.connection, "task_dependencies", task_id=task_id, depends_on=need)
        if agent:
            self.connection.execute("UPDATE agents SET task_id = ? WHERE id = ?", (task_id, agent))
        return task_id

    def live(self, agent_id: str, activity: str, detail: str = "", text: str = "", **values: Any) -> None:
        row: dict[str, Any] = {"since": self.now - 3, "until": None, "updated_at": self.now - 0.2, **values}
        insert(
            self.connection, "live", agent_id=agent_id, session_id=self.id, activity=activity,
            detail=detail, text=text, **row,
        )  # fmt: skip

    def event(
        self,
        kind: str,
        agent_id: str | None = None,
        task_id: str | None = None,
        at: float | None = None,
        **data: Any,
    ) -> int:
        self.seq += 1
        insert(
            self.connection, "events", session_id=self.id, seq=self.seq, at=self.now if at is None else at, kind=kind,
            agent_id=agent_id, task_id=task_id, data=json.dumps(data),
        )  # fmt: skip
        self.connection.execute("UPDATE sessions SET event_seq = ? WHERE id = ?", (self.seq, self.id))
        return self.seq

    def message(self, agent_id: str, role: str, content: Any, tokens: int = 120) -> int:
        last, total = self.connection.execute(
            "SELECT coalesce(max(seq), 0), coalesce(max(total_tokens), 0) FROM messages WHERE agent_id = ?",
            (agent_id,),
        ).fetchone()
        insert(
            self.connection, "messages", agent_id=agent_id, seq=last + 1, role=role, content=json.dumps(content),
            tokens=tokens, total_tokens=total + tokens, created_at=self.now - 60 + last,
        )  # fmt: skip
        self.connection.execute(
            "UPDATE agents SET last_seq = ?, message_tokens = ? WHERE id = ?",
            (last + 1, total + tokens, agent_id),
        )
        return int(last) + 1

    def call(self, agent_id: str, **values: Any) -> None:
        row: dict[str, Any] = {
            "session_id": self.id, "agent_id": agent_id, "turn": 1, "purpose": "turn", "model": "offline/surveyor",
            "status": "done", "stop_reason": "tool_use", "input_tokens": 9000, "output_tokens": 320, "cost_usd": 0.009,
            "price_status": "exact", "started_at": self.now - 20, "latency_seconds": 2.4, "first_token_seconds": 0.5, **values,
        }  # fmt: skip
        insert(self.connection, "model_calls", **row)

    def compaction(self, agent_id: str, **values: Any) -> None:
        row: dict[str, Any] = {
            "session_id": self.id, "agent_id": agent_id, "trigger": "threshold", "status": "applied", "high_water": 40,
            "messages_removed": 38, "tokens_before": 24_000, "tokens_after": 6_100, "view_before": 1, "view_after": 2,
            "requested_at": self.now - 120, "ended_at": self.now - 119, **values,
        }  # fmt: skip
        insert(self.connection, "compactions", **row)
        self.connection.execute("UPDATE agents SET compactions = compactions + 1 WHERE id = ?", (agent_id,))
        if row["status"] == "applied":
            self.connection.execute(
                "UPDATE agents SET view_version = max(view_version, ?) WHERE id = ?",
                (row["view_after"] or 0, agent_id),
            )

    def approval(
        self, agent_id: str, question: str = "rm -rf build", approval_id: str = "appr1", tool: str = "bash"
    ) -> None:
        insert(
            self.connection, "approvals", id=approval_id, session_id=self.id, agent_id=agent_id, tool_call_id=1, tool=tool,
            question=question, created_at=self.now - 5,
        )  # fmt: skip

    def fact(self, agent_id: str | None, text: str, **values: Any) -> None:
        row: dict[str, Any] = {
            "session_id": self.id, "agent_id": agent_id, "workspace": "/srv/billing", "scope": "session", "kind": "fact",
            "text": text, "digest": str(abs(hash(text))), "created_at": self.now - 30, **values,
        }  # fmt: skip
        insert(self.connection, "facts", **row)

    def set(self, **values: Any) -> None:
        for name, value in values.items():
            self.connection.execute(f"UPDATE sessions SET {name} = ? WHERE id = ?", (value, self.id))

    def set_agent(self, agent_id: str, **values: Any) -> None:
        for name, value in values.items():
            self.connection.execute(f"UPDATE agents SET {name} = ? WHERE id = ?", (bindable(value), agent_id))

    def commands(self) -> list[tuple[Any, ...]]:
        return self.connection.execute(
            "SELECT kind, agent_id, task_id, payload FROM commands WHERE session_id = ? ORDER BY id",
            (self.id,),
        ).fetchall()


def small_session(connection: Connection, now: float = NOW, **values: Any) -> FakeSession:
    """A planner, four tasks in various states, and something on every tab of `explorer1`."""
    session = FakeSession(connection, now=now, **values)
    session.agent("planner1", "planner", role="planner", status="idle", context_tokens=9000)
    session.agent("explorer1", "explorer-1")
    session.agent("explorer2", "explorer-2", status="paused", status_reason="paused by dashboard")
    session.agent("explorer3", "explorer-3", status="done", ended_at=now - 100)
    session.agent(
        "writer01", "writer-1", role="writer", status="failed", status_reason="credit balance is too low"
    )
    session.task("t-core", "Explore core", agent="explorer1")
    session.task("t-tui", "Explore tui", agent="explorer2", status="paused")
    session.task("t-docs", "Explore docs", agent="explorer3", status="done", result="12 files, 800 lines")
    session.task(
        "t-draft", "Write the draft", agent="writer01", status="failed", error="credit balance is too low"
    )
    session.task("t-survey", "Write the survey", needs=("t-core", "t-tui"))
    session.message("explorer1", "user", "Explore core: what is there?")
    session.message("explorer1", "assistant", [
        {"type": "thinking", "thinking": "start with the folder"},
        {"type": "text", "text": "I list the folder first."},
        {"type": "tool_use", "id": "tu1", "name": "list_folder", "input": {"path": "core", "page": 1}},
    ])  # fmt: skip
    session.message(
        "explorer1",
        "user",
        [
            {
                "type": "tool_result",
                "tool_use_id": "tu1",
                "content": "\n".join(f"core/file{n}.py {n * 12} lines" for n in range(30)),
            }
        ],
    )
    session.message("explorer1", "assistant", "Thirty files of Python.")
    session.live("explorer1", "working", text="Next I read the largest")
    for n in range(12):
        session.call(
            "explorer1", turn=n + 1, input_tokens=4000 + n * 900, output_tokens=200 + n * 31,
            latency_seconds=1 + n % 4,
        )  # fmt: skip
    session.compaction("explorer1")
    session.fact("explorer1", "core has 30 Python files")
    session.fact(None, "keep cents as integers", pinned=1, kind="instruction")
    session.event("session.running")
    session.event("plan.revised", "planner1", revision=1, reason="first plan", tasks=5)
    session.event("tool.done", "explorer1", "t-core", tool="list_folder", preview="30 files", seconds=0.2)
    session.event(
        "task.failed", "writer01", "t-draft", title="Write the draft", reason="credit balance is too low"
    )
    return session


def large_session(
    connection: Connection, agents: int = 40, now: float = NOW, *, hostile: bool = True
) -> FakeSession:
    """Many agents in every state, with hostile text wherever a model or a tool could have put it."""
    text = HOSTILE if hostile else "calm"
    session = FakeSession(connection, now=now, goal=f"survey everything {text}")
    session.agent(
        "planner1", "planner", role="planner", model="anthropic/claude-opus-4-1", context_tokens=19_500
    )
    for n in range(1, agents):
        agent_id = f"agent{n:03d}"
        status = ("working", "working", "working", "paused", "done", "failed", "waiting")[n % 7]
        session.agent(
            agent_id, f"coder-{n} {text if n % 5 == 0 else ''}", status=status, context_tokens=(n * 731) % 31_000,
            composition="{}", status_reason=text if status in ("failed", "waiting") else None,
            model="anthropic/claude-sonnet-4-5", cost_usd=0.03 * n, current_goal=text,
        )  # fmt: skip
        session.task(f"task{n:03d}", f"part {n} of the work {text if n % 3 == 0 else ''}", agent=agent_id,
                     status={"working": "running", "waiting": "running"}.get(status, status), error=text if status == "failed" else None)  # fmt: skip
        if n % 7 == 1:
            session.live(agent_id, "rate_limited", f"429 {text}", until=now + 20)
        elif n % 7 == 2:
            session.live(agent_id, "tool", f"bash {text}", text=text)
        session.event("tool.done", agent_id, f"task{n:03d}", tool="bash", preview=text)
        session.event("model.error", agent_id, error=text)
    session.approval("agent006", text, tool=f"bash {text[:20]}")
    for agent_id in ("planner1", "agent001", "agent002"):
        session.message(agent_id, "user", text)
        session.message(
            agent_id, "assistant", [{"type": "text", "text": text},
             {"type": "tool_use", "id": text, "name": text, "input": {text: text}}],
        )  # fmt: skip
        session.message(
            agent_id,
            "user",
            [
                {
                    "type": "tool_result",
                    "tool_use_id": text,
                    "content": [{"type": "text", "text": text}],
                    "is_error": True,
                }
            ],
        )
        session.call(agent_id, error=text, status="error", model=text, stop_reason=text)
        session.compaction(agent_id, reason=text, instructions=text, trigger=text[:30], model=text)
        session.fact(agent_id, f"{agent_id} {text}")
        insert(
            connection, "observations", agent_id=agent_id, id=1, kind="digest", text=text, tokens=300,
            first_seq=1, last_seq=2, citations="[1]", created_at=now,
        )  # fmt: skip
        insert(
            connection, "views", agent_id=agent_id, version=2, observations="[1]", verbatim_from=3,
            reason=text, created_at=now,
        )  # fmt: skip
    return session
