"""A `compaction` block of the Messages API: all before it is replaced, in what is shown and in what is counted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.memory.support import (
    Words,
    assert_covered,
    assert_pairs_whole,
    assert_valid,
    call,
    fill,
    result,
    text_of,
)
from tests.support.agent_rows import create_agent
from tests.support.places import workspace_in

from watchkeeper.agents.agent_state import AgentMemory
from watchkeeper.memory.compactor import Compactor
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits, Rejection
from watchkeeper.memory.tokens import count_message
from watchkeeper.records.ports import ManualClock
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.store.transaction import SessionStore

TEXT = "They mend src/cache.py; the tests of the parser are next."


def compacted(*after: dict[str, Any], text: str | None = TEXT) -> list[dict[str, Any]]:
    return [{"type": "compaction", "content": text, "signature": "Qm9" * 400}, *after]


def state_of(count: int, window: int = 4_000) -> ContextState:
    state = ContextState(ContextLimits(window, 0), Words(), agent_id="me", pin_first=False)
    fill(state, count)
    return state


def checked(state: ContextState) -> str:
    context = state.render()
    assert_valid(context)
    counted = sum(count_message(one["role"], one["content"], state.counter) for one in context)
    assert counted == state.tokens <= state.limit
    assert_covered(state.view, state.last_seq)
    assert_pairs_whole(state.view, state.messages)
    return text_of(context)


@pytest.mark.parametrize("after", [[], [{"type": "text", "text": "Going on."}], call("c1")])
def test_its_text_takes_the_place_of_everything_before(after: list[dict[str, Any]]) -> None:
    state = state_of(9)
    before = state.tokens
    change = state.append("assistant", compacted(*after), at=1.0)
    if after and after[0]["type"] == "tool_use":
        state.append("user", result("c1"), at=1.0)
    shown = checked(state)
    assert TEXT in shown
    assert "m3 " not in shown
    assert state.tokens < before / 2
    assert (change.reason, change.messages_removed, change.high_water) == (
        "summary",
        *([9, 9] if after else [10, 10]),
    )
    assert [one.text for one in change.observations] == [TEXT]
    assert state.messages[9].content == compacted(*after), "what is stored is what was said"
    fill(state, 3)
    assert "m3 " not in checked(state)


def test_it_can_be_undone_and_what_was_said_before_is_shown_again() -> None:
    state = state_of(9)
    state.append("assistant", compacted({"type": "text", "text": "Going on."}), at=1.0)
    state.undo(at=2.0)
    shown = checked(state)
    assert "m3 " in shown
    assert TEXT not in shown


@pytest.mark.parametrize("text", [None, " ", "I'm sorry, but I can't help with that."])
def test_one_that_failed_replaces_nothing(text: str | None) -> None:
    state = state_of(9)
    state.append("assistant", compacted({"type": "text", "text": "Going on."}, text=text), at=1.0)
    assert "m3 " in checked(state)
    assert state.view.observations == ()


async def test_a_pass_that_was_running_is_void() -> None:
    state = state_of(9)
    compactor = Compactor(state)
    run = compactor.begin(6)
    assert not isinstance(run, Rejection)
    state.append("assistant", compacted({"type": "text", "text": "Going on."}), at=1.0)
    prepared = await compactor.prepare(run)
    assert not compactor.publish(prepared, at=2.0).applied
    assert TEXT in checked(state)


@given(st.lists(st.sampled_from(["say", "call", "compact", "alone", "fail", "undo", "digest"]), max_size=30))
def test_whatever_comes_around_it_the_promises_hold(steps: list[str]) -> None:
    state = ContextState(ContextLimits(500, 0), Words(), agent_id="me", pin_first=False)
    for number, step in enumerate(steps):
        if step == "say":
            fill(state, 1)
        elif step == "call":
            state.append("assistant", call(f"c{number}"), at=0.0)
            state.append("user", result(f"c{number}", text="long " * 40), at=0.0)
        elif step == "undo":
            try:
                state.undo(at=0.0)
            except ValueError:
                continue
        elif step == "digest":
            state.digest(at=0.0)
        else:
            after = [] if step == "alone" else [{"type": "text", "text": "Going on. " * 20}]
            text = None if step == "fail" else f"{TEXT} {number}"
            state.append("assistant", compacted(*after, text=text), at=0.0)
            assert text is None or text in checked(state)
        if state.last_seq:
            checked(state)


async def test_it_is_stored_with_its_message_and_a_restart_shows_the_same(tmp_path: Path) -> None:
    path = tmp_path / "watchkeeper.db"
    session = create_session(path, NewSession("goal", workspace_in(tmp_path), "test/model"))
    store = SessionStore.claim(path, session, ManualClock(), pid=os.getpid(), host_name="here")
    agent, limits = f"reader_{session}", ContextLimits(4_000, 0)
    memory = AgentMemory.empty(limits, Words(), agent, 0.0)

    def begin(tx: Any) -> None:
        create_agent(tx, agent, name="reader", context_limit=4_000)
        memory.start(tx)

    await store.commit(begin)
    for content in ["Mend it. " * 40, "I will. " * 40, "Go on. " * 40, compacted(*call("c1")), result("c1")]:
        change = memory.append("user" if memory.state.last_seq % 2 == 0 else "assistant", content, at=0.0)
        await store.commit(lambda tx, change=change: change.write(tx))
    loaded = AgentMemory.load(store, agent, limits, Words())
    assert TEXT in text_of(loaded.state.render())
    assert loaded.state.render() == memory.state.render()
    loaded.move(store, "undo", at=1.0)
    assert "Go on." in text_of(loaded.state.render())
    store.close()
