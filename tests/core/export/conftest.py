"""A finished demo with compactions, and a small session made row by row with whatever a test wants in it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_rows import create_agent

from watchkeeper.cli.app import run
from watchkeeper.records.compactions import CompactionRecord
from watchkeeper.records.messages import Cost, Message, Observation, ObservationKind, PriceStatus, Usage, View
from watchkeeper.records.model_calls import ModelCallRecord
from watchkeeper.records.redact import Redactor
from watchkeeper.records.states import ModelCallStatus
from watchkeeper.store import agents, artifacts, database, facts, messages, plans, sessions
from watchkeeper.store.driver import Connection
from watchkeeper.store.transaction import Transaction
from watchkeeper.store.writer import Group
from watchkeeper.transcripts.export import WRITERS


@pytest.fixture(autouse=True)
def _a_user_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WATCHKEEPER_DB", str(tmp_path / "watchkeeper.db"))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a demo that ran to its end in small contexts. Read-only."""
    folder = tmp_path_factory.mktemp("demo")
    workspace = folder / "workspace"
    for part in ("one", "two", "three"):
        (workspace / part).mkdir(parents=True)
        for number in range(120):
            (workspace / part / f"module_{number}.py").write_text(f"VALUE = {number}  # TODO: explain\n" * 20)
    code = run(
        [
            "demo",
            "--headless",
            "--speed",
            "max",
            "--context-tokens",
            "6000",
            "--workspace",
            str(workspace),
            "--db",
            str(folder / "d.db"),
        ]
    )
    assert code == 0
    return folder / "d.db"


class Made:
    """A session made row by row."""

    def __init__(self, path: Path, session_id: str = "sessn001") -> None:
        self.path = path
        self.session_id = session_id
        self.connection: Connection = database.open_writable(path)
        self._id = 0
        self.connection.execute("BEGIN IMMEDIATE")
        self.group = Group(self.connection)
        sessions.create(
            self.group, session_id=session_id, user_id="somebody", goal="Reach the goal", workspace="/w", model="offline/surveyor",
            settings={}, budgets={"usd": 5.0}, now=1000.0,
        )  # fmt: skip
        self.tx = Transaction(self.group, session_id, 0, 1000.0)

    def agent(self, name: str = "planner", **about: Any) -> str:
        self._id += 1
        agent_id = f"{self.session_id[:4]}{name[:3]}{self._id}"
        create_agent(
            self.tx, agent_id, name=name, role=name, model="anthropic/claude-x", system="Role: x", current_goal="a goal",
            context_limit=1000, **about,
        )  # fmt: skip
        return agent_id

    def say(self, agent_id: str, *contents: Any) -> None:
        row = self.tx.one("SELECT last_seq, message_tokens FROM agents WHERE id = ?", (agent_id,))
        seq, total = row
        for content in contents:
            seq, total = seq + 1, total + 10
            role = "user" if seq % 2 else "assistant"
            messages.add_messages(self.tx, agent_id, [Message(seq, role, content, 10, total, 1000.0 + seq)])
        self.tx.execute(
            "UPDATE agents SET last_seq = ?, message_tokens = ? WHERE id = ?", (seq, total, agent_id)
        )

    def compact(self, agent_id: str, last: int, text: str, citations: tuple[int, ...]) -> None:
        """Messages 1 to `last` are replaced by a summary."""
        summary = Observation(1, ObservationKind.SUMMARY, text, 5, (1, last), citations, created_at=1100.0)
        messages.add_view(self.tx, agent_id, View(1, (), 1), tokens=10 * last + 10)
        number = messages.add_compaction(self.tx, agent_id, CompactionRecord(
            trigger="manual", status="applied", high_water=last, messages_removed=last, tokens_before=10 * last,
            tokens_after=5, view_before=1, view_after=2, model="anthropic/claude-x",
        ))  # fmt: skip
        messages.add_observations(self.tx, agent_id, [summary], compaction_id=number)
        messages.add_view(
            self.tx, agent_id, View(2, (summary,), last + 1, parent=1), tokens=15, compaction_id=number
        )
        self.tx.event("compaction.applied", agent_id=agent_id, compaction=number)

    def task(self, title: str, agent_id: str | None = None, **about: Any) -> str:
        if self.tx.one("SELECT current_plan_id FROM sessions WHERE id = ?", (self.session_id,))[0] is None:
            plans.create_plan(self.tx, f"{self.session_id}-plan", "the plan's goal")
        self._id += 1
        task_id = f"{self.session_id}t{self._id}"
        plans.add_task(
            self.tx, task_id=task_id, plan_id=f"{self.session_id}-plan", name=about.pop("name", f"task-{self._id}"), position=self._id,
            title=title, instructions=about.pop("instructions", "do it"), role="explorer", model=None, expected_outputs=(),
        )  # fmt: skip
        for column, value in about.items():
            self.tx.execute(f"UPDATE tasks SET {column} = ? WHERE id = ?", (value, task_id))
        if agent_id:
            self.tx.execute("UPDATE tasks SET assigned_agent = ? WHERE id = ?", (agent_id, task_id))
            self.tx.execute("UPDATE agents SET task_id = ? WHERE id = ?", (task_id, agent_id))
        return task_id

    def call(self, agent_id: str, usage: Usage, cost: Cost, *, exact: bool = True) -> None:
        agents.add_model_call(self.tx, ModelCallRecord(
            agent_id=agent_id, turn=1, purpose="turn", model="anthropic/claude-x", status=ModelCallStatus.DONE, usage=usage,
            cost=cost, started_at=1000.0, latency_seconds=1.0, usage_exact=exact,
        ))  # fmt: skip

    def fact(self, text: str, agent_id: str | None = None, **about: Any) -> int:
        values: dict[str, Any] = {
            "workspace": "/w",
            "scope": "session",
            "kind": "fact",
            "sources": [],
        } | about
        return facts.add_fact(self.tx, agent_id=agent_id, text=text, **values)[0]

    def artifact(self, name: str, text: str, media_type: str = "text/plain") -> str:
        return artifacts.save_output(
            self.tx, name=name, data=text.encode(), media_type=media_type, agent_id=None, task_id=None
        )

    def done(self) -> Connection:
        """Commit; returns the connection."""
        self.group.flush()
        self.connection.execute("COMMIT")
        return self.connection


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., Made]]:
    """Make a session in a database (by default this test's own)."""
    opened: list[Made] = []

    def make(session_id: str = "sessn001", path: Path | None = None) -> Made:
        opened.append(Made(path or tmp_path / "watchkeeper.db", session_id))
        return opened[-1]

    yield make
    for one in opened:
        one.connection.close()


EXACT = PriceStatus.EXACT


@dataclass(frozen=True)
class Exported:
    text: str
    redacted: int | None


def export(
    connection: Connection,
    session_id: str,
    form: str = "json",
    secrets: dict[str, str] | None = None,
    **options: Any,
) -> Exported:
    """A session in a form; `secrets` by name are taken out, and nothing else is where `redact=False`."""
    out = io.StringIO()
    redactor = (lambda: Redactor({}, secrets or {})) if options.get("redact", True) else None
    count = WRITERS[form](connection, session_id, out, redactor)
    return Exported(out.getvalue(), count)


@pytest.fixture(name="export")
def _export() -> Callable[..., Exported]:
    return export
