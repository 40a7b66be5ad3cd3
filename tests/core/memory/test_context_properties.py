"""Whatever happens to a context, its invariants hold. `WATCHKEEPER_HYPOTHESIS=thorough` runs thousands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.memory.support import (
    Characters,
    Words,
    assert_covered,
    assert_pairs_whole,
    assert_valid,
    call,
    result,
)

from watchkeeper.memory.compactor import Compactor
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import (
    BY_HAND,
    Change,
    CompactionPass,
    ContextLimits,
    Prepared,
    Rejection,
    WindowTooSmall,
    last_change,
)
from watchkeeper.memory.rendering import elide
from watchkeeper.memory.tokens import TokenCounter, count_message, default_counter
from watchkeeper.records.messages import Message, View

SIZES = st.one_of(st.integers(0, 60), st.integers(0, 60), st.integers(100, 9_000))
COUNTERS: list[TokenCounter] = [Words(), Characters(), default_counter()]


def text(size: int, number: int) -> str:
    """Text of about that many characters, told apart by its number, with things that a digest picks out."""
    return (f"<{number}> decided on src/a{number}.py, error: {number}\n- [ ] next\n" * (size // 50 + 1))[
        :size
    ]


class Context(RuleBasedStateMachine):
    """Random messages, tool pairs, sizes, passes, undo, redo, limits and restarts."""

    @initialize(
        window=st.sampled_from([400, 1_000, 4_000]),
        reserve=st.integers(0, 100),
        counter=st.sampled_from(COUNTERS),
        pin=st.booleans(),
    )
    def begin(self, window: int, reserve: int, counter: TokenCounter, pin: bool) -> None:
        self.pin = pin
        self.window = window
        self.state = ContextState(ContextLimits(window, reserve), counter, pin_first=pin)
        self.compactor = Compactor(self.state)
        self.messages: list[Message] = []
        self.views: dict[int, View] = {1: self.state.view}
        self.open: list[str] = []
        self.calls = 0
        self.running: CompactionPass | None = None
        self.asked: dict[str, int] = {}
        self.pairs: dict[str, tuple[int, int]] = {}
        self.orphans: set[str] = set()
        """Calls after which the assistant spoke again before there was a result: nobody waited for it any
        more."""
        self.least_limit = self.state.limit
        self.lasting: list[int] = []

    def took(self, change: Change) -> None:
        """What a caller stores is exactly what there is."""
        assert change.view == self.state.view
        assert change.tokens == self.state.tokens
        self.messages.extend(change.messages)
        for view in change.views:
            assert view.version not in self.views, "versions are never reused"
            self.views[view.version] = view
        assert self.views[change.view.version] == change.view

    def say(self, role: str, content: Any, *, lasting: bool = False) -> None:
        before, tokens = (self.state.view, self.state.last_seq), self.state.tokens
        if role == "assistant":
            self.orphans |= set(self.open)
        change = self.state.append(role, content, at=float(self.state.last_seq), lasting=lasting)  # type: ignore[arg-type]
        assert change.messages[0].seq == before[1] + 1
        assert change.messages[0].content == content, "a message is stored as it was said"
        assert change.cache_tokens_invalidated <= tokens, "no more than there was could be cached"
        compacted = change.observations or change.view.elided != before[0].elided
        assert compacted or change.tokens_before == change.tokens
        assert not change.observations or change.tokens_before > self.state.limit
        self.took(change)

    @rule(size=SIZES, role=st.sampled_from(["user", "assistant"]))
    def talk(self, size: int, role: str) -> None:
        self.say(role, text(size, self.state.last_seq + 1))

    @rule(size=st.integers(1, 60))
    def say_for_good(self, size: int) -> None:
        self.lasting.append(self.state.last_seq + 1)
        self.say("user", text(size, self.state.last_seq + 1), lasting=True)

    @invariant()
    def the_newest_lasting_message_is_always_pinned(self) -> None:
        if getattr(self, "lasting", None):
            assert self.lasting[-1] in self.state.view.pins

    @rule(count=st.integers(1, 3), size=SIZES)
    def call_tools(self, count: int, size: int) -> None:
        names = [f"c{self.calls + index}" for index in range(count)]
        self.calls += count
        self.say(
            "assistant",
            [{"type": "thinking", "thinking": "hm", "signature": "s"}, *call(*names, path=text(size, 0))],
        )
        self.open += names
        self.asked |= dict.fromkeys(names, self.state.last_seq)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), size=SIZES)
    def bring_results(self, data: st.DataObject, size: int) -> None:
        names = data.draw(st.lists(st.sampled_from(self.open), min_size=1, unique=True))
        self.open = [name for name in self.open if name not in names]
        self.pairs |= {name: (self.asked[name], self.state.last_seq + 1) for name in names}
        self.say("user", result(*names, text=text(size, self.state.last_seq + 1)))

    @rule(size=SIZES)
    def bring_an_orphan(self, size: int) -> None:
        self.say("user", result("ghost", text=text(size, 0)))

    @rule(data=st.data(), keep=st.booleans())
    def digest_by_hand(self, data: st.DataObject, keep: bool) -> None:
        up_to = data.draw(st.one_of(st.none(), st.integers(0, self.state.last_seq + 1)))
        before = self.state.tokens
        change = self.state.digest(up_to=up_to, at=0.0, keep_newest=keep)
        if change is None:
            assert self.state.last_refusal
        else:
            assert change.tokens < before
            assert up_to is None or (change.high_water or 0) <= up_to
            self.took(change)

    @precondition(lambda self: self.running is None)
    @rule(data=st.data())
    def begin_a_pass(self, data: st.DataObject) -> None:
        up_to = data.draw(st.one_of(st.none(), st.integers(0, self.state.last_seq + 1)))
        run = self.compactor.begin(up_to)
        if isinstance(run, Rejection):
            assert run.reason
            return
        assert_valid(run.request)
        assert up_to is None or run.high_water <= up_to
        kept = [o for o in self.state.view.observations if o.covers[1] < run.covers[0]]
        assert run.covers[0] == (kept[-1].covers[1] + 1 if kept else 1), "a pass covers what is new"
        assert self.compactor.begin(up_to) == Rejection(
            f"A compaction up to message {run.high_water} is already running."
        ), "single flight"
        self.running = run

    @precondition(lambda self: self.running is not None)
    @rule(size=st.integers(0, 400))
    def publish_the_pass(self, size: int) -> None:
        assert self.running is not None
        run, self.running = self.running, None
        before = self.state.view
        behind = [m for m in self.state.verbatim if m.seq > run.high_water]
        earlier = [o for o in before.observations if o.covers[1] < run.covers[0]]
        later = [o for o in before.observations if o.covers[0] > run.high_water]
        outcome = self.compactor.publish(self.prepared(run, size), at=0.0)
        assert not self.compactor.is_compacting
        if outcome.change is None:
            assert outcome.reason
            assert self.state.view is before, "a rejected pass leaves no trace"
        else:
            self.took(outcome.change)
            assert outcome.high_water == run.high_water
            assert list(self.state.verbatim) == behind, "messages behind the mark are never touched"
            summary = self.state.view.observations[len(earlier)]
            assert summary.covers == run.covers
            assert list(self.state.view.observations) == [*earlier, summary, *later]

    def prepared(self, run: CompactionPass, size: int) -> Prepared:
        summary = text(size, 0)
        return Prepared(
            text=summary,
            tokens=self.state.counter.count(summary),
            covers=run.covers,
            citations=run.covers,
            replaces=tuple(o.id for o in run.earlier),
            source_tokens=run.source_tokens,
            base_version=run.base_version,
            epoch=run.epoch,
        )

    @precondition(lambda self: self.running is not None)
    @rule()
    def abandon_the_pass(self) -> None:
        before = self.state.view
        self.compactor.end()
        self.running = None
        assert self.state.view is before

    @rule(again=st.booleans())
    def undo(self, again: bool) -> None:
        before, context = self.state.view, self.rendered()
        try:
            change = self.state.undo(at=0.0)
        except ValueError:
            assert self.state.view is before
            return
        self.took(change)
        assert self.state.held or last_change(self.views, before).reason in BY_HAND, "undone by hand"
        if again:
            self.took(self.state.redo(at=0.0))
            assert self.state.view.observations == before.observations
            assert self.rendered() == context, "undo and redo lead back exactly"

    @rule(window=st.sampled_from([300, 1_000, 3_000]), calibration=st.sampled_from([0.8, 1.0, 1.4]))
    def change_limits(self, window: int, calibration: float) -> None:
        self.state.set_limits(ContextLimits(window, 0), calibration)
        self.least_limit = min(self.least_limit, self.state.limit)
        change = self.state.fit(at=0.0)
        if change is not None:
            self.took(change)

    @rule(data=st.data(), back=st.booleans(), kind=st.sampled_from(["pin", "pin", "unpin", "drop", "texts"]))
    def operate_by_hand(self, data: st.DataObject, back: bool, kind: str) -> None:
        state, seqs = self.state, st.lists(st.integers(1, self.state.last_seq + 1), min_size=1, max_size=3)
        how: dict[str, Any] = {kind: data.draw(seqs, label=kind)}
        if kind == "unpin" and state.view.pins:
            how[kind] = [data.draw(st.sampled_from(state.view.pins))]
        if kind == "texts":
            how[kind] = {one.id: text(data.draw(SIZES), one.id) for one in state.view.observations[:1]}
        if kind == "pin":
            how["among"] = list(self.messages)
        before, context = state.view, self.rendered()
        try:
            foretold = state.preview_edit(**how)
        except ValueError:
            assert state.view is before, "what is refused changes nothing"
            return
        assert (state.view, self.rendered()) == (before, context), "a preview changes nothing"
        self.took(state.edit(at=0.0, **how))
        assert state.render() == foretold.messages
        assert state.tokens == foretold.tokens <= foretold.limit
        assert kind != "pin" or set(how["pin"]) <= set(state.view.pins)
        assert kind != "unpin" or not set(how["unpin"]) & set(state.view.pins)
        if "unpin" in how:  # an older one that a newer one displaced does not come back
            self.lasting = [seq for seq in self.lasting if seq in self.state.view.pins]
        if back and context is not None:
            self.took(state.undo(at=0.0))
            assert (state.view, self.rendered()) == (before, context), "undo leads back exactly"

    def pinned(self) -> set[int]:
        """What any version pins."""
        return {seq for view in self.views.values() for seq in view.pins}

    @invariant()
    def pins_are_shown_as_they_are_in_order_and_in_whole_pairs(self) -> None:
        if not hasattr(self, "state") or not self.state.view.pins or (context := self.rendered()) is None:
            return
        view = self.state.view
        start = view.verbatim_from or self.state.last_seq + 1
        place = 0
        for seq in view.pins:
            if seq not in view.elided:
                place = place_of(context, self.messages[seq - 1], place)
        whole = sum(self.messages[seq - 1].tokens for seq in view.pins)
        if self.least_limit >= 500:  # else the newest messages alone may need the room
            assert whole > self.least_limit // 3 or not set(view.pins) & set(view.elided)
        for name, (asked, answered) in self.pairs.items():
            if asked in view.pins and name not in self.orphans:
                assert answered in view.pins or (answered >= start and answered not in view.elided)
            if answered in view.pins and name not in self.orphans:
                assert asked in view.pins

    @rule(everything=st.booleans())
    def restart(self, everything: bool) -> None:
        if not self.messages:
            return
        run, self.running = self.running, None
        start = self.state.view.verbatim_from or self.state.last_seq
        context, tokens = self.rendered(), self.state.tokens
        self.state = ContextState.restore(
            self.state.limits,
            self.state.counter,
            agent_id="agent",
            messages=[
                m
                for m in self.messages
                if everything or m.seq == 1 or m.seq >= start or m.seq in self.pinned()
            ],
            views=list(self.views.values()),
            current=self.state.view.version,
            calibration=self.state.calibration,
            pin_first=self.pin,
        )
        self.compactor = Compactor(self.state)
        assert (self.rendered(), self.state.tokens) == (context, tokens)
        if run is not None:
            before = self.state.view
            outcome = self.compactor.republish(self.prepared(run, 40), at=0.0)
            if outcome.change is None:
                assert outcome.reason
                assert self.state.view is before
            else:
                self.took(outcome.change)

    def rendered(self) -> list[dict[str, Any]] | None:
        try:
            return self.state.render()
        except WindowTooSmall:
            return None

    @invariant()
    def every_message_is_verbatim_elided_or_covered(self) -> None:
        if hasattr(self, "state"):
            assert_covered(self.state.view, self.state.last_seq)

    @invariant()
    def a_digest_splits_at_the_mark_of_a_running_pass(self) -> None:
        if hasattr(self, "state") and self.running is not None and self.running.epoch == self.state.epoch:
            mark = self.running.high_water
            for observation in self.state.view.observations:
                first, last = observation.covers
                assert not (observation.provisional and first <= mark < last)

    @invariant()
    def pairs_are_whole_and_the_bound_holds(self) -> None:
        if not hasattr(self, "state") or not self.messages:
            return
        context = self.rendered()
        if context is None:
            return
        assert_valid(context)
        counted = sum(count_message(m["role"], m["content"], self.state.counter) for m in context)
        assert counted == self.state.tokens <= self.state.limit
        start = self.state.view.verbatim_from or self.state.last_seq + 1
        shown = [(m["role"], m["content"]) for m in context]
        for message in self.messages[start - 1 :]:
            if (
                message.seq not in self.state.view.elided
                and isinstance(message.content, str)
                and message.content.strip()
            ):
                assert (message.role, message.content) in shown, "verbatim means verbatim, in order"

    @invariant()
    def totals_equal_recounts(self) -> None:
        if hasattr(self, "state") and self.messages:
            last = self.messages[-1]
            assert last.total_tokens == sum(m.tokens for m in self.messages) == self.state.total_tokens
            assert last.tokens == count_message(last.role, last.content, self.state.counter)
            parts = self.state.composition()
            assert all(tokens >= 0 for tokens in parts.values())

    @rule(data=st.data())
    def ask_where_a_cut_may_be(self, data: st.DataObject) -> None:
        cut = self.state.cut_before(data.draw(st.integers(0, self.state.last_seq + 1)))
        if cut:
            start = self.state.last_seq + 1 - len(self.state.verbatim) + cut
            assert_pairs_whole(
                replace(self.state.view, verbatim_from=start), self.messages[start - cut - 1 :]
            )
            before = self.messages[start - cut - 1 : start - 1]
            called = {b["id"] for m in before for b in m.content if isinstance(b, dict) and "id" in b}
            assert not called & set(self.open), "a call still unanswered straddles"

    @invariant()
    def no_cut_separates_a_pair(self) -> None:
        if not hasattr(self, "state"):
            return
        start = self.state.view.verbatim_from or self.state.last_seq + 1
        for name, (asked, answered) in self.pairs.items():
            if asked < start <= answered and name not in self.orphans:
                # Only a pair that the window cannot hold, however short it is made, may be cut.
                between = self.messages[asked - 1 : answered]
                least = sum(elide(m, "agent", 0, self.state.counter).tokens for m in between)
                beside = 6 if self.pinned() else 3
                assert least > self.least_limit // beside, f"cut at {start} in {asked}-{answered}"


def late(block: dict[str, Any]) -> dict[str, Any]:
    """How a result is shown for which no assistant waits any more."""
    return {"type": "text", "text": f"[result of call {block.get('tool_use_id')}]\n{block.get('content')}"}


def place_of(context: list[dict[str, Any]], message: Message, start: int) -> int:
    """Where a message is shown as it is, from `start` on."""
    if isinstance(message.content, str):
        if not message.content.strip():
            return start
        wanted = [{"type": "text", "text": message.content}]
    else:
        wanted = [block for block in message.content if block["type"] in ("tool_use", "tool_result")]
    for place, item in enumerate(context[start:], start):
        here = (
            [{"type": "text", "text": item["content"]}]
            if isinstance(item["content"], str)
            else item["content"]
        )
        if all(block in here or late(block) in here for block in wanted):
            return place
    raise AssertionError(f"message {message.seq} is not shown as it is")


TestContext = Context.TestCase
