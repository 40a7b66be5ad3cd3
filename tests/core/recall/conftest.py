from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_rows import create_agent

from watchkeeper.agents.memory_tools import RecallTool, memory_tools
from watchkeeper.agents.tools.contract import ToolContext
from watchkeeper.records.messages import Content, Message, View
from watchkeeper.records.ports import ManualClock
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.store import messages
from watchkeeper.store.transaction import SessionStore, Transaction


@dataclass
class Session:
    """A session with the agents `ann` and `bob`, whose messages and tools are used as an agent loop would."""

    store: SessionStore
    id: str
    workspace: Path
    seqs: dict[str, int] = field(default_factory=lambda: {"ann": 0, "bob": 0})

    def do(self, change: Callable[[Transaction], Any]) -> Any:
        return asyncio.run(self.store.commit(change))

    def name(self, agent: str) -> str:
        return f"{agent}_{self.id}"

    def say(self, agent: str, content: Content, role: Any = "assistant") -> str:
        """Add a message; returns its pointer."""
        self.seqs[agent] += 1
        seq, name = self.seqs[agent], self.name(agent)

        def write(tx: Transaction) -> None:
            messages.add_messages(tx, name, [Message(seq, role, content, 1, seq, float(seq))])
            tx.execute("UPDATE agents SET last_seq = ? WHERE id = ?", (seq, name))

        self.do(write)
        return f"message://{name}/{seq}"

    def show_from(self, agent: str, seq: int | None) -> None:
        """The agent's context holds its messages from `seq` on."""
        self.do(
            lambda tx: messages.add_view(
                tx, self.name(agent), View(1, (), seq, {}, None, "test", 0.0), tokens=0
            )
        )

    def use(self, agent: str, tool: str, **arguments: Any) -> str:
        """What the tool says to the agent."""
        context = ToolContext(self.id, self.name(agent), None, self.workspace)
        if tool == "recall":
            return str(asyncio.run(RecallTool(self.store).run(arguments, context)).content)
        found = next(one for one in memory_tools() if one.spec.name == tool)
        return str(self.do(lambda tx: found.apply(tx, arguments, context)).content)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Make a session, by default always on the same workspace."""
    made: list[SessionStore] = []

    def start(workspace: str = "here") -> Session:
        folder = tmp_path / workspace
        folder.mkdir(exist_ok=True)
        path = tmp_path / "watchkeeper.db"
        session_id = create_session(path, NewSession("goal", folder, "test/model"))
        store = SessionStore.claim(path, session_id, ManualClock(), pid=os.getpid(), host_name="here")
        made.append(store)
        session = Session(store, session_id, folder)

        def people(tx: Transaction) -> None:
            for name in session.seqs:
                create_agent(tx, session.name(name), name=name)

        session.do(people)
        return session

    yield start
    for store in made:
        store.close()


@pytest.fixture
def session(start: Callable[..., Session]) -> Session:
    return start()
