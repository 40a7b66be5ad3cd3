"""Whatever left a context, after any number of compactions, is two tool calls away at most."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.agent_rows import create_agent
from tests.support.places import workspace_in

from watchkeeper.agents.agent_state import AgentMemory
from watchkeeper.agents.memory_tools import RecallTool, memory_tools
from watchkeeper.agents.tools.contract import ToolContext
from watchkeeper.memory.history import ContextLimits
from watchkeeper.records.messages import Content, Role
from watchkeeper.records.ports import ManualClock
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.store.transaction import SessionStore, Transaction

POINTER = re.compile(r"message://[\w-]+/\d+(?:-\d+)?|artifact://sha256/[0-9a-f]{64}")
NUMBERS = itertools.count(1)


class Words:
    """A tokenizer: a token a word."""

    def count(self, text: str) -> int:
        return len(text.split())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionStore]:
    folder = tmp_path_factory.mktemp("pointers")
    path = folder / "watchkeeper.db"
    session_id = create_session(path, NewSession("goal", workspace_in(folder), "test/model"))
    store = SessionStore.claim(path, session_id, ManualClock(), pid=os.getpid(), host_name="here")
    yield store
    store.close()


class Agent:
    """An agent's memory in a small window, and the two tools that reach behind it."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self.id = f"agent{next(NUMBERS)}"
        limits = ContextLimits(
            max_tokens=700, reserve_tokens=50, summarization_threshold=0.75, overhead_tokens=0
        )
        self.memory = AgentMemory.empty(limits, Words(), self.id, 0.0)
        self.markers: dict[int, str] = {}

        def create(tx: Transaction) -> None:
            create_agent(tx, self.id, name=self.id, context_limit=700)
            self.memory.start(tx)

        self.do(create)

    def do(self, change: Any) -> Any:
        return asyncio.run(self.store.commit(change))

    def write(self, recorded: Any) -> None:
        self.do(recorded.write)

    def say(self, role: Role, words: int, *, tool: bool = False) -> None:
        seq = self.memory.state.last_seq + 1
        marker = f"mark{self.id}x{seq}"
        text = f"{'filler ' * (words // 2)}{marker} {'padding ' * (words - words // 2)}".strip()
        content: Content = text
        if tool:
            self.write(
                self.memory.append(
                    "assistant", [{"type": "tool_use", "id": f"u{seq}", "name": "read", "input": {}}], at=1.0
                )
            )
            seq += 1
            role, content = "user", [{"type": "tool_result", "tool_use_id": f"u{seq - 1}", "content": text}]
        self.write(self.memory.append(role, content, at=1.0))
        self.markers[seq] = marker

    def compact(self) -> None:
        change = self.memory.state.digest(at=2.0, reason="digest")
        if change is not None:
            self.write(self.memory.record(change))

    def fold(self) -> None:
        change = self.memory.state.fold(at=2.0)
        if change is not None:
            self.write(self.memory.record(change))

    def undo(self) -> None:
        try:
            change = self.memory.state.undo(at=3.0)
        except ValueError:
            return
        self.write(self.memory.record(change))

    def fit(self) -> None:
        change = self.memory.state.fit(at=2.0)
        if change is not None:
            self.write(self.memory.record(change))

    @property
    def context(self) -> str:
        return str(self.memory.state.render())

    def read_back(self, pointer: str) -> str:
        tool = next(one for one in memory_tools() if one.spec.name == "read_back")
        return str(self.do(lambda tx: tool.apply(tx, {"pointer": pointer}, self._context())).content)

    def recall(self, query: str) -> str:
        return str(asyncio.run(RecallTool(self.store).run({"query": query}, self._context())).content)

    def _context(self) -> ToolContext:
        return ToolContext(self.store.session_id, self.id, None, Path("."))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(1, 120)),
        st.tuples(st.just("tool"), st.integers(1, 1500)),
        st.tuples(st.sampled_from(["compact", "fold", "undo"]), st.just(0)),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_what_left_the_context_is_read_back_in_two_calls_after_any_sequence_of_compactions(
    store: SessionStore, steps: list[tuple[str, int]]
) -> None:
    agent = Agent(store)
    agent.say("user", 5)
    for step, size in steps:
        match step:
            case "say":
                agent.say("user" if agent.memory.state.last_seq % 2 else "assistant", size)
            case "tool":
                agent.say("user", size, tool=True)
            case "compact":
                agent.compact()
            case "fold":
                agent.fold()
            case "undo":
                agent.undo()
        agent.fit()
    context = agent.context
    for pointer in set(POINTER.findall(context)):
        assert agent.read_back(pointer), pointer
    for seq, marker in agent.markers.items():
        if marker in context:
            continue
        (pointer,) = set(re.findall(rf"message://{agent.id}/{seq}\b", agent.recall(marker)))
        assert marker in agent.read_back(pointer)


def test_the_window_of_these_tests_is_small_enough_for_messages_to_leave_it(store: SessionStore) -> None:
    agent = Agent(store)
    for _ in range(30):
        agent.say("user", 100)
        agent.fit()
    assert sum(marker in agent.context for marker in agent.markers.values()) < 15


def test_a_pointer_that_leads_nowhere_says_what_pointers_look_like(store: SessionStore) -> None:
    agent = Agent(store)
    agent.say("user", 5)
    for wrong in (
        "message://nobody/1",
        f"message://{agent.id}/99",
        "artifact://sha256/" + "0" * 64,
        "fact://" + "0" * 12,
        "12",
    ):
        with pytest.raises(ValueError, match=r"no |pointer|nothing|not found"):
            agent.read_back(wrong)
