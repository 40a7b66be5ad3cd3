"""Real sessions of other agents, fed message by message: the bound, the API's rules, and that nothing becomes
unreachable.

The transcripts are not part of the project: `WATCHKEEPER_TRANSCRIPTS` names a folder of them, or they lie
beside the checkout as `../shared/transcripts`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.core.memory.support import assert_covered
from tests.support.agent_rows import create_agent
from tests.support.message_rules import broken_rule
from tests.support.places import workspace_in
from tests.support.recorded_sessions import (
    Scripted,
    Thread,
    folder,
    identifiers,
    shown_text,
    squeezed,
    threads,
)

from watchkeeper import HierarchicalContextManager
from watchkeeper.agents.agent_state import AgentMemory
from watchkeeper.agents.memory_tools import memory_tools
from watchkeeper.agents.tools.contract import ToolContext
from watchkeeper.memory.content import texts_of
from watchkeeper.memory.history import ContextLimits
from watchkeeper.memory.tokens import default_counter, o200k_encoding
from watchkeeper.records.messages import Content, Message, View
from watchkeeper.records.ports import ManualClock
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.store.transaction import SessionStore

PLACE = folder()
pytestmark = pytest.mark.skipif(
    PLACE is None,
    reason="there are no recorded sessions beside the checkout, and WATCHKEEPER_TRANSCRIPTS names none",
)
WINDOWS = [16_000, 64_000, 200_000]
KINDS = ["none", "good", "slow", "failing", "babbling"]
POINTER = re.compile(r"message://([\w.-]+)/(\d+)(?:-(\d+))?")


@cache
def recorded(whole_replies: bool) -> list[Thread]:
    assert PLACE is not None
    found = threads(PLACE, whole_replies=whole_replies)
    assert found, f"{PLACE} holds no transcripts"
    return found


@cache
def _encoded(text: str) -> int:
    return len(o200k_encoding().encode_ordinary(text))


def counted(context: list[dict[str, Any]]) -> int:
    """Tokens of all texts of a context by tiktoken itself: what a reader sees, roles and braces left out."""
    return sum(_encoded(text) for message in context for text in texts_of(message["content"]))


def check(manager: HierarchicalContextManager, window: int) -> None:
    """After each message: the bound by two counts, and the API's rules."""
    limit = window - window // 10
    context = manager.get_context()
    assert manager.tokens <= limit
    assert counted(context) <= limit
    if _calls(context[-1]["content"]):  # a context may end in calls, whose results the next message brings
        results = [
            {"type": "tool_result", "tool_use_id": name, "content": "."}
            for name in _calls(context[-1]["content"])
        ]
        context = [*context, {"role": "user", "content": results}]
    assert broken_rule({"max_tokens": 1, "messages": context}) is None


def _calls(content: Content) -> list[str]:
    return (
        [] if isinstance(content, str) else [block["id"] for block in content if block["type"] == "tool_use"]
    )


def unreachable(
    context: list[dict[str, Any]], view: View, messages: list[Message], read_back: Any
) -> list[tuple[int, str]]:
    """Identifiers that neither stand in the context nor in what its pointers give."""
    shown = shown_text(context)
    behind: dict[int, set[str]] = {}
    for match in POINTER.finditer(shown):
        first, last = int(match[2]), int(match[3] or match[2])
        for seq in range(first, last + 1):
            behind.setdefault(seq, set()).add(match[0])
    given: dict[str, str] = {}
    covered = {seq: o for o in view.observations for seq in range(o.covers[0], o.covers[1] + 1)}
    lost: list[tuple[int, str]] = []
    for message in messages:
        for wanted in identifiers(message.content):
            if wanted in shown:
                continue
            stands_for = covered.get(message.seq)
            if stands_for is not None:
                assert stands_for.citations
                assert all(
                    stands_for.covers[0] <= seq <= stands_for.covers[1] for seq in stands_for.citations
                )
            elif message.seq not in view.elided:
                lost.append((message.seq, wanted))
                continue
            for pointer in behind.get(message.seq, ()):
                if pointer not in given:
                    given[pointer] = squeezed(read_back(pointer))
                if wanted in given[pointer]:
                    break
            else:
                lost.append((message.seq, wanted))
    return lost


def read_from(manager: HierarchicalContextManager) -> Any:
    """What a user of the library does with a pointer: look up `manager.messages`."""

    def read_back(pointer: str) -> str:
        match = POINTER.fullmatch(pointer)
        assert match is not None
        found = manager.messages[int(match[2]) - 1 : int(match[3] or match[2])]
        assert len(found) == int(match[3] or match[2]) - int(match[2]) + 1, (
            f"{pointer} points at what does not exist"
        )
        return "\n".join(text for message in found for text in texts_of(message.content))

    return read_back


async def play(thread: Thread, window: int, kind: str) -> list[str]:
    """Feed one thread; returns the reasons of all swaps."""
    write = None if kind == "none" else Scripted(kind)
    manager = HierarchicalContextManager(
        window, summarizer=write, reserve_tokens=window // 10, agent_id="reader"
    )
    reasons: list[str] = []
    manager.on("swap:complete", lambda swap: reasons.append(swap.reason))
    sampled = max(1, len(thread.messages) // 3)
    for number, message in enumerate(thread.messages, 1):
        assert await manager.add_message(message) == number
        check(manager, window)
        if number % sampled == 0:
            assert not unreachable(
                manager.get_context(), manager.view, list(manager.messages), read_from(manager)
            )
    if write is not None:
        write.release()
    await manager.idle()
    check(manager, window)
    assert_covered(manager.view, len(thread.messages))
    assert [message.content for message in manager.messages] == [
        message["content"] for message in thread.messages
    ]
    assert not unreachable(manager.get_context(), manager.view, list(manager.messages), read_from(manager))
    await manager.close()
    return reasons


def cases() -> Iterator[Any]:
    """All of them with `WATCHKEEPER_HYPOTHESIS=thorough`; else each window and each summariser at least
    once, most of them marked `long`."""
    thorough = os.environ.get("WATCHKEEPER_HYPOTHESIS") == "thorough"
    for window in WINDOWS:
        for kind in KINDS:
            for whole in (True, False):
                if (
                    thorough
                    or (whole and (window == 16_000 or kind == "good"))
                    or (window, kind) == (16_000, "good")
                ):
                    is_short = (window, kind) in ((16_000, "good"), (16_000, "failing")) and whole
                    yield pytest.param(
                        window, kind, whole, id=f"{window}-{kind}-{'replies' if whole else 'lines'}",
                        marks=[] if is_short else [pytest.mark.long],
                    )  # fmt: skip


@pytest.mark.parametrize(("window", "kind", "whole_replies"), cases())
def test_a_recorded_session_stays_within_its_window_and_loses_no_identifier(window, kind, whole_replies):
    swaps = 0
    for thread in recorded(whole_replies):
        swaps += len(asyncio.run(play(thread, window, kind)))
    total = max(
        sum(_encoded(text) for m in thread.messages for text in texts_of(m["content"]))
        for thread in recorded(True)
    )
    assert swaps or total < window * 0.75, "something was compacted"


@pytest.mark.long
def test_summaries_go_on_to_the_end_of_a_long_session() -> None:
    thread = max(recorded(True), key=lambda thread: len(thread.messages))
    reasons = asyncio.run(play(thread, 16_000, "good"))
    assert "summary" in reasons[len(reasons) // 2 :], (
        f"{reasons.count('summary')} summaries, all early, and {len(reasons)} swaps"
    )


# --- on SQLite ----------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    path = tmp_path / "watchkeeper.db"
    session = create_session(path, NewSession("goal", workspace_in(tmp_path), "test/model"))
    store = SessionStore.claim(path, session, ManualClock(), pid=os.getpid(), host_name="here")
    yield store
    store.close()


@pytest.mark.parametrize("window", [16_000])
@pytest.mark.long
async def test_on_sqlite_every_pointer_is_read_back_and_a_restart_shows_the_same(store, tmp_path, window):
    thread = max(recorded(True), key=lambda thread: len(thread.messages))
    agent = f"reader_{store.session_id}"
    limits = ContextLimits(window, window // 10)
    memory = AgentMemory.empty(limits, default_counter(), agent, 0.0)

    def begin(tx: Any) -> None:
        create_agent(tx, agent, name="reader", context_limit=window)
        memory.start(tx)

    await store.commit(begin)
    for start in range(0, len(thread.messages), 20):
        changes = [
            memory.append(m["role"], m["content"], at=0.0) for m in thread.messages[start : start + 20]
        ]
        await store.commit(lambda tx, changes=changes: [change.write(tx) for change in changes])
    loaded = AgentMemory.load(store, agent, limits, default_counter())
    assert loaded.state.render() == memory.state.render()
    assert loaded.state.tokens == memory.state.tokens
    tool = next(one for one in memory_tools() if one.spec.name == "read_back")
    context = ToolContext(store.session_id, agent, None, tmp_path)

    def read_whole(tx: Any) -> Any:
        def read_back(pointer: str) -> str:
            text, offset = "", 0
            while True:
                page = str(tool.apply(tx, {"pointer": pointer, "offset": offset}, context).content)
                piece, more, rest = page.rpartition("\n[")
                following = (
                    re.fullmatch(r"\d+ characters in total; continue at offset (\d+)\]", rest)
                    if more
                    else None
                )
                if following is None:
                    return (text + page).replace("\\n", " ").replace('\\"', '"')
                text, offset = text + piece, int(following[1])

        return unreachable(loaded.state.render(), loaded.state.view, memory.state.messages, read_back)

    assert await store.commit(read_whole) == []
