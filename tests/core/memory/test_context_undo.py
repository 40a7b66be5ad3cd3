"""Undo, redo and restoring of a context: exact, and true to every later turn."""

from __future__ import annotations

import pytest
from tests.core.memory.support import (
    fill,
    prepared,
)

from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits, Rejection
from watchkeeper.memory.tokens import TokenCounter


def test_undo_restores_exactly_and_keeps_later_turns(state: ContextState) -> None:
    fill(state, 12)
    before_view, before = state.view, state.render()
    change = state.digest(at=0.0)
    assert change is not None
    state.append("user", "after the digest", at=0.0)
    undone = state.undo(at=0.0)
    assert undone.view == before_view
    assert state.render() == [*before, {"role": "user", "content": "after the digest"}]
    again = state.redo(at=0.0)
    assert again.view == change.view
    assert state.render()[-1]["content"] == "after the digest"


def undo_all(state: ContextState) -> None:
    while True:
        state.undo(at=0.0)


def test_undo_says_by_how_much_a_view_does_not_fit_any_more(state: ContextState) -> None:
    fill(state, 12)
    state.digest(at=0.0)
    while state.last_seq < 60:
        view = state.view
        fill(state, 1)
        if state.view is not view:
            break
    with pytest.raises(ValueError, match=r"does not fit any more: it would take \d+ tokens, \d+ more"):
        undo_all(state)
    assert state.tokens <= state.limit


def test_undo_without_a_compaction_says_so(state: ContextState) -> None:
    fill(state, 4)
    with pytest.raises(ValueError, match="nothing to undo"):
        state.undo(at=0.0)
    with pytest.raises(ValueError, match="nothing to redo"):
        state.redo(at=0.0)


def test_undo_skips_views_in_which_a_digest_only_stood_in(counter: TokenCounter) -> None:
    state = ContextState(ContextLimits(1_000, 0), counter)
    fill(state, 16)
    assert state.digest(at=0.0) is not None
    solid = state.view
    while not any(o.provisional for o in state.view.observations):
        fill(state, 1)
    covered = state.view.observations[-1].covers[1]
    change = state.publish(prepared(state, "all of it", (1, covered)), at=0.0)
    assert not isinstance(change, Rejection)
    state.set_limits(ContextLimits(100_000, 0), 1.0)
    assert state.undo(at=0.0).view == solid


def test_a_new_view_clears_redo_and_an_undo_holds_automatic_passes(state: ContextState) -> None:
    fill(state, 12)
    state.digest(at=0.0)
    state.undo(at=0.0)
    state.set_limits(ContextLimits(1_000, 100, summarization_threshold=0.01), 1.0)
    assert not state.needs_compaction(), "somebody undid one a moment ago"
    state.digest(at=0.0)
    assert state.needs_compaction()
    with pytest.raises(ValueError, match="nothing to redo"):
        state.redo(at=0.0)


def test_a_state_restored_from_its_tail_goes_on_as_if_nothing_had_happened(counter: TokenCounter) -> None:
    limits = ContextLimits(1_000, 100)
    state = ContextState(limits, counter, agent_id="a")
    fill(state, 90)
    start = state.view.verbatim_from or state.last_seq
    kept = [m for m in state.messages if m.seq == 1 or m.seq >= start]
    again = ContextState.restore(
        limits, counter, agent_id="a", messages=kept, views=[state.view], current=state.view.version
    )
    assert (again.render(), again.tokens, again.last_seq) == (state.render(), state.tokens, state.last_seq)
    for number in range(60):
        assert again.append("user", f"later {number} " * 9, at=0.0) == state.append(
            "user", f"later {number} " * 9, at=0.0
        )
    assert again.render() == state.render()


def test_a_state_whose_view_covers_everything_is_restored_without_its_messages(state: ContextState) -> None:
    fill(state, 10)
    state.digest(up_to=10, at=0.0, keep_newest=False)
    again = ContextState.restore(
        state.limits,
        state.counter,
        agent_id="explorer",
        messages=state.messages[:1],
        views=state.views,
        current=state.view.version,
        total_tokens=state.total_tokens,
    )
    assert again.render() == state.render()
    assert again.append("user", "next", at=0.0) == state.append("user", "next", at=0.0)
    assert again.render() == state.render()


def test_redo_survives_a_restart(state: ContextState) -> None:
    fill(state, 12)
    state.digest(at=0.0)
    newest = state.view
    state.undo(at=0.0)
    again = ContextState.restore(
        state.limits,
        state.counter,
        agent_id="explorer",
        messages=state.messages,
        views=state.views,
        current=state.view.version,
    )
    assert again.held
    assert again.redo(at=0.0).view == newest


def test_undo_beyond_what_is_loaded_says_so(counter: TokenCounter) -> None:
    limits = ContextLimits(1_000, 0)
    state = ContextState(limits, counter)
    fill(state, 12)
    state.digest(at=0.0)
    tail = state.messages[state.view.verbatim_from - 1 :]  # type: ignore[operator]
    again = ContextState.restore(
        limits, counter, agent_id="agent", messages=tail, views=state.views, current=2
    )
    with pytest.raises(ValueError, match="not loaded"):
        again.undo(at=0.0)
