"""Letting go of what the view covers: memory is bounded by the window, and nothing else changes."""

from __future__ import annotations

from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st
from tests.core.memory.support import Words, call, fill, result

from watchkeeper.memory.compactor import Compactor
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits, Prepared, Rejection, WindowTooSmall, needed_from
from watchkeeper.records.messages import Message

LIMITS = ContextLimits(2_000, 0)

STEPS = st.one_of(
    st.tuples(st.just("say"), st.integers(0, 400)),
    st.tuples(st.just("say"), st.integers(0, 3_000)),
    st.tuples(st.just("work"), st.integers(0, 300)),
    st.tuples(st.just("pass"), st.one_of(st.none(), st.integers(0, 60))),
    st.tuples(st.just("digest"), st.one_of(st.none(), st.integers(0, 60))),
    st.tuples(st.just("undo"), st.just(0)),
    st.tuples(st.just("redo"), st.just(0)),
    st.tuples(st.just("limits"), st.sampled_from([700, 1_000, 2_000])),
    st.tuples(st.just("restart"), st.just(0)),
)


class Agent:
    """A context with what was stored of it."""

    def __init__(self, forgets: bool) -> None:
        self.state = ContextState(LIMITS, Words())
        self.stored: list[Message] = []
        self._forgets = forgets

    def append(self, role: Literal["user", "assistant"], content: Any) -> None:
        self.stored += self.state.append(role, content, at=0.0).messages

    def take(self, kind: str, size: Any) -> object:
        """One step; what it says of itself."""
        if kind == "say":
            self.append("user", f"<{len(self.stored)}> " + "w " * (size // 2))
        elif kind == "work":
            self.append("assistant", call(f"c{len(self.stored)}"))
            self.append("user", result(f"c{len(self.stored) - 1}", text="found " * size))
        elif kind == "pass":
            return self._compact(size)
        elif kind == "digest":
            change = self.state.digest(up_to=size, at=0.0)
            return None if change is None else (change.tokens, change.messages_removed, change.high_water)
        elif kind in ("undo", "redo"):
            return self._move("undo" if kind == "undo" else "redo")
        elif kind == "limits":
            self.state.set_limits(ContextLimits(size, 0), 1.0)
            self.state.fit(at=0.0)
        elif kind == "restart" and self.stored:
            self._restart()
        return None

    def _compact(self, up_to: int | None) -> object:
        compactor = Compactor(self.state)
        run = compactor.begin(up_to)
        if isinstance(run, Rejection):
            return run.reason
        text = f"They talked up to {run.high_water}."
        prepared = Prepared(
            text=text, tokens=Words().count(text), covers=run.covers, citations=run.covers,
            replaces=tuple(o.id for o in run.earlier), source_tokens=run.source_tokens, base_version=run.base_version,
            epoch=run.epoch,
        )  # fmt: skip
        outcome = compactor.publish(prepared, at=0.0)
        return (run.request, outcome.applied, outcome.reason, outcome.tokens_after)

    def _move(self, move: Literal["undo", "redo"]) -> object:
        try:
            missing = self.state.missing_for(move)
            if missing is not None:
                self.state.load_earlier(self.stored[missing[0] - 1 : missing[1]])
            change = self.state.undo(at=0.0) if move == "undo" else self.state.redo(at=0.0)
        except ValueError as refused:
            return str(refused)
        return (change.tokens, change.messages_removed, change.view.verbatim_from)

    def _restart(self) -> None:
        """As a host does it: the first message, and what the view needs."""
        kept = self.stored
        if self._forgets:
            start = max(2, needed_from(self.state.view))
            kept = [self.stored[0], *self.stored[start - 1 :]]
        self.state = ContextState.restore(
            self.state.limits, Words(), agent_id="agent", messages=kept, views=self.state.views, current=self.state.view.version,
            total_tokens=self.stored[-1].total_tokens,
        )  # fmt: skip

    @property
    def first(self) -> int:
        """The first message that is there, the assignment apart."""
        return self.state.messages[0].seq if self.state.messages else self.state.last_seq + 1

    @property
    def stands_in_for_more(self) -> bool:
        """Whether a digest was folded over a summary, whose messages were let go when it was made: the next
        summary then reads the digest, where one that keeps everything could read them again."""
        return self.first > needed_from(self.state.view)

    def shown(self) -> object:
        if self._forgets:
            self.state.forget_covered()
            assert self.first >= needed_from(self.state.view)
        try:
            return (
                self.state.render(),
                self.state.tokens,
                self.state.total_tokens,
                self.state.view,
                self.state.composition(),
            )
        except WindowTooSmall as small:
            return str(small)


@given(steps=st.lists(STEPS, min_size=15, max_size=70))
def test_a_context_that_lets_go_of_what_it_covers_is_the_same_context(steps: list[tuple[str, Any]]) -> None:
    whole, forgetting = Agent(forgets=False), Agent(forgets=True)
    for kind, size in steps:
        assert forgetting.take(kind, size) == whole.take(kind, size)
        assert forgetting.shown() == whole.shown()
        if forgetting.stands_in_for_more:
            return


def test_what_is_kept_in_memory_is_bounded_by_the_window_however_long_the_history() -> None:
    state = ContextState(LIMITS, Words())
    most = 0
    for _ in range(100):
        fill(state, 10, 40)
        state.forget_covered()
        most = max(most, len(state.messages))
    assert state.last_seq == 1_000
    assert most < 200


def test_the_assignment_is_kept_however_much_is_let_go() -> None:
    state = ContextState(LIMITS, Words())
    state.append("user", "Survey the tools.", at=0.0)
    fill(state, 60, 40)
    state.digest(at=0.0)
    state.forget_covered()
    assert state.messages[0].seq > 1
    assert "Survey the tools." in str(state.render()[0])
