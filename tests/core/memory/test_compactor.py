"""`Compactor`: passes beside the loop, checked before they are published, with no trace where they are abandoned."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.memory.support import (
    Summariser,
    Words,
    assert_covered,
    assert_pairs_whole,
    assert_valid,
    call,
    fill,
    result,
    text_of,
)
from tests.support.message_rules import broken_rule

from watchkeeper.memory.buffering import BufferingCoordinator
from watchkeeper.memory.compactor import Compactor
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import CompactionPass, ContextLimits, Prepared, Rejection
from watchkeeper.memory.tokens import TokenCounter
from watchkeeper.records.errors import LeaseLost, StoreUnusable
from watchkeeper.records.messages import ObservationKind


def begun(compactor: Compactor, up_to: int | None = None) -> CompactionPass:
    run = compactor.begin(up_to)
    assert isinstance(run, CompactionPass)
    return run


async def test_a_pass_replaces_what_lies_up_to_the_mark_and_nothing_after_it(state: ContextState) -> None:
    fill(state, 12)
    outcome = await Compactor(state, Summariser("They talked.")).run(8, at=0.0)
    assert outcome.applied
    assert (outcome.high_water, outcome.reason, outcome.messages_removed) == (8, "summary", 8)
    assert outcome.tokens_after < outcome.tokens_before
    assert "They talked." in text_of(state.render())
    assert [m["content"] for m in state.render()[1:]] == [m.content for m in state.messages[8:]]
    assert_covered(state.view, 12)
    assert outcome.change is not None
    assert outcome.change.views == (state.view,)


async def test_the_request_is_itself_valid_and_ends_in_no_open_call(state: ContextState) -> None:
    state.append("assistant", "I begin", at=0.0)
    state.append("user", result("ghost"), at=0.0)
    for number in range(4):
        state.append("assistant", call(f"c{number}"), at=0.0)
        state.append("user", result(f"c{number}", text="long " * 20), at=0.0)
    summarise = Summariser("They read.")
    assert (await Compactor(state, summarise).run(at=0.0)).applied
    ((messages, _, _),) = summarise.requests
    assert_valid(messages)


async def test_a_second_request_while_one_runs_is_a_no_op_that_says_so(state: ContextState) -> None:
    fill(state, 12)
    summarise = Summariser("They talked.")
    summarise.open.clear()
    compactor = Compactor(state, summarise)
    first = asyncio.create_task(compactor.run(8, at=0.0))
    await asyncio.sleep(0)
    assert compactor.is_compacting
    second = await compactor.run(4, at=0.0)
    assert not second.applied
    assert second.reason == "A compaction up to message 8 is already running."
    summarise.open.set()
    assert (await first).applied
    assert len(summarise.requests) == 1


@pytest.mark.parametrize("change", ["undo", "digest"])
async def test_a_change_of_view_by_hand_voids_a_pass(state: ContextState, change: str) -> None:
    fill(state, 12)
    state.digest(up_to=6, at=0.0)
    compactor = Compactor(state, Summariser("They talked."))
    prepared = await compactor.prepare(begun(compactor, 9))
    state.undo(at=0.0) if change == "undo" else state.digest(up_to=10, at=0.0)
    view = state.view
    assert not compactor.publish(prepared, at=0.0).applied
    assert state.view is view


async def test_a_resumed_session_publishes_a_pass_that_was_prepared(state: ContextState) -> None:
    fill(state, 12)
    compactor = Compactor(state, Summariser("They talked."))
    prepared = await compactor.prepare(begun(compactor, 8))
    again = ContextState.restore(
        state.limits,
        state.counter,
        agent_id="explorer",
        messages=state.messages,
        views=state.views,
        current=state.view.version,
    )
    assert Compactor(again, Summariser("")).republish(replace(prepared, epoch=17), at=0.0).applied


async def test_a_prepared_pass_older_than_the_view_is_refused(state: ContextState) -> None:
    fill(state, 12)
    compactor = Compactor(state, Summariser("They talked."))
    prepared = await compactor.prepare(begun(compactor, 8))
    compactor.end()
    state.digest(up_to=10, at=0.0)
    outcome = compactor.republish(prepared, at=0.0)
    assert not outcome.applied
    assert "has changed since version" in outcome.reason


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (RuntimeError("no credit"), "RuntimeError: no credit"),
        ("", "empty"),
        (None, "NoneType instead of text"),
        ("word " * 5_000, "smaller|characters|degenerate"),
        ("It failed [#99] and then [#98].", "do not exist"),
    ],
    ids=["fails", "empty", "none", "babbles", "invents"],
)
async def test_a_text_that_cannot_be_used_is_asked_for_again_more_strongly(state, bad, why):
    fill(state, 12)
    summarise = Summariser(bad, "They talked.")
    compactor = Compactor(state, summarise)
    prepared = await compactor.prepare(begun(compactor, 8))
    assert prepared.kind is ObservationKind.SUMMARY
    assert re.search(why, prepared.refused[0])
    assert summarise.requests[0][1] is None
    assert "much shorter" in str(summarise.requests[1][1])


async def test_progress_is_guaranteed_by_the_digest(state: ContextState) -> None:
    fill(state, 12)
    outcome = await Compactor(state, Summariser(RuntimeError("no credit"))).run(8, at=0.0)
    assert outcome.applied
    assert outcome.reason == "digest: The summariser failed: RuntimeError: no credit"
    assert outcome.tokens_after < outcome.tokens_before
    assert state.view.observations[0].kind is ObservationKind.DIGEST
    assert state.undo(at=0.0).view.observations == ()


async def test_a_summariser_that_hangs_counts_as_failed(state: ContextState) -> None:
    fill(state, 12)
    summarise = Summariser("never said")
    summarise.open.clear()
    outcome = await Compactor(state, summarise, timeout_seconds=0.001).run(8, at=0.0)
    assert outcome.applied
    assert "longer than 0.001 seconds" in outcome.reason


async def test_identifiers_that_a_summary_drops_are_appended_with_their_message(counter):
    state = ContextState(ContextLimits(4_000, 0), counter)
    state.append("user", "Fix src/parse.py, see PROJ-123 and commit 00e1145a. " + "Please. " * 60, at=0.0)
    state.append("assistant", "I decided on a limit of 8192 tokens. " + "Well. " * 60, at=0.0)
    fill(state, 4)
    await Compactor(state, Summariser("They fixed src/parse.py.")).run(4, at=0.0)
    text = state.view.observations[0].text
    assert "PROJ-123 → #1" in text
    assert "00e1145a → #1" in text
    assert "8192 → #2" in text
    assert "src/parse.py →" not in text


async def test_citations_come_from_the_text_and_else_from_the_range(state: ContextState) -> None:
    fill(state, 12)
    compactor = Compactor(
        state, Summariser("Begun (#2).\nAgreed [3, 5].\nInvented [#77].\nSee message://explorer/7-8.")
    )
    prepared = await compactor.prepare(begun(compactor, 8))
    assert prepared.citations == (2, 3, 5, 7, 8)
    assert "Invented" not in prepared.text
    compactor = Compactor(state, Summariser("They talked."))
    prepared = await compactor.prepare(begun(compactor, 8))
    assert prepared.citations == (1, 8)


async def test_the_next_summary_stands_beside_the_last_one(state: ContextState) -> None:
    fill(state, 10)
    summarise = Summariser("First part.", "Second part.")
    compactor = Compactor(state, summarise)
    await compactor.run(6, at=0.0)
    fill(state, 6)
    outcome = await compactor.run(12, at=0.0)
    assert outcome.applied
    assert summarise.requests[1][2] == "First part."
    assert len(summarise.requests[1][0]) == 6
    assert [(o.text, o.covers) for o in state.view.observations] == [
        ("First part.", (1, 6)),
        ("Second part.", (7, 12)),
    ]


class Extracting:
    """A summariser that keeps the facts of the messages that it is given, and never looks at `previous`."""

    def __init__(self) -> None:
        self.merges = 0

    async def __call__(
        self, messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> str:
        said = text_of(messages)
        self.merges += said.startswith("Memory of earlier messages")
        facts = dict.fromkeys(re.findall(r"fact-\d+", said))
        return "Facts: " + " ".join([*facts, *(f"said{number}" for number in range(20))])


@pytest.mark.parametrize("due", [True, False])
async def test_a_summariser_that_ignores_what_is_remembered_loses_nothing_in_twenty_passes(due: bool) -> None:
    state = ContextState(ContextLimits(1_000, 0), Words(), pin_first=False)
    summarise = Extracting()
    compactor = Compactor(state, summarise)
    passes, told = 0, {}
    while passes < 20:
        fill(state, 3, 40)
        state.append("user", f"note fact-{len(told)} " + "w " * 40, at=0.0)
        told[f"fact-{len(told)}"] = state.last_seq
        fill(state, 3, 40)
        while state.tokens > 500:
            run = compactor.begin(due=due)
            if isinstance(run, Rejection):
                break
            outcome = compactor.publish(await compactor.prepare(run), at=0.0)
            passes += bool(outcome.applied and run.messages)
    known = " ".join(one.text for one in state.view.observations)
    covered = state.view.observations[-1].covers[1]
    assert [fact for fact, seq in told.items() if seq <= covered and f"{fact} " not in known] == []
    assert summarise.merges
    assert sum(one.tokens for one in state.view.observations) < 500


async def test_the_oldest_summaries_alone_are_merged_and_stand_before_the_others() -> None:
    state = ContextState(ContextLimits(1_000, 0), Words(), pin_first=False)
    compactor = Compactor(state, Extracting())
    while not (run := compactor.begin(due=True)) or isinstance(run, Rejection) or run.messages:
        if not isinstance(run, Rejection):
            compactor.publish(await compactor.prepare(run), at=0.0)
        fill(state, 4, 40)
    before = state.view.observations
    assert compactor.publish(await compactor.prepare(run), at=0.0).applied
    merged, *others = state.view.observations
    assert merged.covers == (1, run.high_water)
    assert merged.level == 1
    assert tuple(others) == before[len(run.merged) :]
    assert others


async def test_a_summary_reads_the_messages_that_a_digest_stands_in_for(counter: TokenCounter) -> None:
    state = ContextState(ContextLimits(1_000, 0), counter)
    while not state.view.observations:
        fill(state, 1)
    summarise = Summariser("They talked.")
    assert (await Compactor(state, summarise).run(at=0.0)).applied
    ((messages, _, previous),) = summarise.requests
    assert previous is None
    assert messages[0]["content"] == state.messages[0].content
    assert not any(o.provisional for o in state.view.observations)


async def test_a_summary_that_reads_what_a_digest_stands_in_for_stands_beside_the_summary_before(counter):
    state = ContextState(ContextLimits(1_000, 0), counter)
    fill(state, 8)
    summarise = Summariser("First part.", "Second part.")
    compactor = Compactor(state, summarise)
    assert (await compactor.run(4, at=0.0)).applied
    while len(state.view.observations) == 1:
        fill(state, 1)
    assert (await compactor.run(at=0.0)).applied
    assert summarise.requests[1][2] == "First part."
    assert [one.text[:12] for one in state.view.observations] == ["First part.", "Second part."]


async def test_a_summary_can_take_the_place_of_a_digest_alone(counter: TokenCounter) -> None:
    state = ContextState(ContextLimits(1_000, 0), counter)
    while not state.view.observations:
        fill(state, 1)
    covered = state.view.observations[0].covers[1]
    outcome = await Compactor(state, Summariser("They talked.")).run(covered, at=0.0)
    assert (outcome.applied, outcome.high_water) == (True, covered)
    assert state.view.observations[0].text.startswith("They talked.")


@pytest.mark.parametrize(
    ("up_to", "why"), [(0, "already summarised"), (3, "already summarised"), (None, "newest messages")]
)
async def test_a_request_with_nothing_to_do_says_why(state, up_to, why):
    fill(state, 6)
    compactor = Compactor(state, Summariser("Talk."))
    await compactor.run(5, at=0.0)
    outcome = await compactor.run(up_to, at=0.0)
    assert not outcome.applied
    assert why in outcome.reason
    await compactor.run(6, at=0.0)
    assert (await compactor.run(at=0.0)).reason == "All messages are already summarised."
    empty = Compactor(ContextState(state.limits, state.counter), Summariser("")).begin()
    assert empty == Rejection("There are no messages yet.")


async def test_the_long_text_of_a_model_that_is_stuck_is_refused() -> None:
    state = ContextState(ContextLimits(40_000, 0), Words())
    fill(state, 40, words=500)
    compactor = Compactor(state, Summariser("Same line of the log again\n" * 400, "They talked."))
    prepared = await compactor.prepare(begun(compactor, 39))
    assert "degenerate" in prepared.refused[0]


async def test_a_short_summary_may_say_a_thing_twice(state: ContextState) -> None:
    fill(state, 12)
    outcome = await Compactor(state, Summariser("They talked. They talked.")).run(8, at=0.0)
    assert outcome.reason == "summary"


@pytest.mark.parametrize(
    "error", [StoreUnusable("the database is gone"), LeaseLost("another host took over")]
)
async def test_a_store_that_takes_nothing_more_is_no_refusal_of_a_summary(state, error):
    fill(state, 12)
    summarise = Summariser(error)
    compactor = Compactor(state, summarise)
    with pytest.raises(type(error)):
        await compactor.prepare(begun(compactor, 8))
    assert len(summarise.requests) == 1


def context(window: int = 2_000, count: int = 20) -> ContextState:
    state = ContextState(ContextLimits(window, 0), Words())
    fill(state, count)
    return state


async def says(messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None) -> str:
    for _ in range(3):
        await asyncio.sleep(0)
    return "They went on."


async def test_a_pass_given_up_at_any_await_leaves_no_trace() -> None:
    given_up = 0
    for steps in range(40):
        state = context()
        compactor = Compactor(state, says)
        before, shown, epoch = state.view, state.render(), state.epoch
        task = asyncio.create_task(compactor.run(at=1.0))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert not compactor.is_compacting
        if not task.cancelled():
            assert task.result().applied
            break
        given_up += 1
        assert (state.view, state.render(), state.epoch) == (before, shown, epoch)
        assert [m.seq for m in state.messages] == list(range(1, 21))
        assert (await compactor.run(at=2.0)).applied, "the next one runs as if nothing had been"
    assert given_up > 3


async def test_a_pass_is_published_once() -> None:
    state = context()
    compactor = Compactor(state, says)
    run = compactor.begin()
    assert isinstance(run, CompactionPass)
    prepared = await compactor.prepare(run)
    assert compactor.publish(prepared, at=1.0).applied
    view = state.view
    for publish in (compactor.publish, compactor.republish):
        outcome = publish(prepared, at=2.0)
        assert not outcome.applied
        assert outcome.reason
        assert state.view is view


async def test_of_two_compactors_over_one_context_the_first_to_publish_wins() -> None:
    state = context()
    one, other = Compactor(state, says), Compactor(state, says)
    first, second = one.begin(8), other.begin(12)
    assert isinstance(first, CompactionPass)
    assert isinstance(second, CompactionPass)
    later = await other.prepare(second)
    assert one.publish(await one.prepare(first), at=1.0).applied
    outcome = other.publish(later, at=2.0)
    assert not outcome.applied
    assert "was added during the compaction" in outcome.reason
    assert_covered(state.view, state.last_seq)


async def test_the_request_of_a_summariser_never_ends_in_a_call_without_its_result() -> None:
    state = ContextState(ContextLimits(300, 0), Words())
    fill(state, 4, 2)
    state.append("assistant", call("lost"), at=0.0)
    state.append("assistant", "There was no result; I go on." * 5, at=0.0)
    state.append("user", "y" * 900, at=0.0)
    assert state.view.observations[0].provisional, "the bound has forced a digest"
    run = Compactor(state, says).begin()
    assert isinstance(run, CompactionPass)
    asked = [*run.request, {"role": "user", "content": "Summarise this."}]
    assert broken_rule({"max_tokens": 1, "messages": asked}) is None


@pytest.mark.parametrize("instructions", [None, "Keep the port."])
async def test_every_word_of_an_instruction_reaches_each_attempt(instructions: str | None) -> None:
    summarise = Summariser("", "They went on.")
    assert (await Compactor(context(), summarise).run(None, instructions, at=0.0)).applied
    first, second = (asked for _, asked, _ in summarise.requests)
    assert first == instructions
    assert second is not None
    assert (instructions or "") in second


async def test_what_read_timed_out_elsewhere_is_not_told_as_our_own_time_out() -> None:
    closed = Summariser(TimeoutError("the provider closed the connection"))
    outcome = await Compactor(context(), closed, timeout_seconds=120.0).run(at=0.0)
    assert outcome.reason.startswith("digest")
    assert "longer than 120" not in outcome.reason or "provider" in outcome.reason


async def test_a_trackers_number_outlives_two_summaries() -> None:
    still = "Still open: #4679, and nobody mends it.\nThe tests pass."
    summarise = Summariser("They found issue #4679 of openai-agents.", still)
    state = ContextState(ContextLimits(8_000, 0), Words(), pin_first=False)
    state.append("user", "Look at #4679 of openai-agents. " + "word " * 200, at=0.0)
    fill(state, 5, 200)
    compactor = Compactor(state, summarise)
    assert (await compactor.run(up_to=5, at=0.0)).reason == "summary"
    fill(state, 5, 200)
    assert (await compactor.run(up_to=10, at=0.0)).reason == "summary"
    assert "Still open: #4679" in state.view.observations[1].text


def _prepared(run: CompactionPass, size: int) -> Prepared:
    text = ("word " * (size // 5 + 1)).strip()
    return Prepared(
        text=text,
        tokens=Words().count(text),
        covers=run.covers,
        citations=tuple(dict.fromkeys(run.covers)),
        replaces=tuple(o.id for o in run.earlier),
        source_tokens=run.source_tokens,
        base_version=run.base_version,
        epoch=run.epoch,
    )


@given(
    sizes=st.lists(st.integers(1, 3_000), min_size=2, max_size=30),
    up_to=st.integers(0, 32),
    window=st.sampled_from([500, 2_000, 8_000]),
)
def test_a_mark_is_never_moved_forward_and_never_cuts_a_pair(sizes, up_to, window):
    state = ContextState(ContextLimits(window, 0), Words())
    for number, size in enumerate(sizes):
        if number % 3 == 1:
            state.append("assistant", call(f"c{number}"), at=0.0)
        elif number % 3 == 2:
            state.append("user", result(f"c{number - 1}", text="x" * size), at=0.0)
        else:
            state.append("user", "y" * size, at=0.0)
    compactor = Compactor(state)
    begun = compactor.begin(up_to)
    if isinstance(begun, Rejection):
        assert begun.reason.endswith((".", ")"))
        return
    assert begun.high_water <= up_to
    outcome = compactor.publish(replace(_prepared(begun, 0), text="ok", tokens=1), at=0.0)
    if outcome.applied:
        assert_pairs_whole(state.view, state.messages)
        assert state.view.verbatim_from is None or state.view.verbatim_from > begun.high_water


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda: Compactor([{"role": "user", "content": "a"}]),
            "use Compactor.of(messages, max_tokens) for a list",
        ),
        (lambda: Compactor.of("hello", 100), "takes a list of messages, not str"),
        (lambda: Compactor.of(cast(Any, ["hello"]), 100), "must be a dict with role and content, not str"),
        (
            lambda: Compactor.of([{"role": "robot", "content": "a"}], 100),
            "must be 'user' or 'assistant', not 'robot'",
        ),
        (lambda: Compactor.of([], 0), "max_tokens must be 1 or more"),
        (lambda: Compactor.of([], 100, 5), "summarizer must be a function"),
        (lambda: Compactor.of([], 100, tokenizer=5), "tokenizer must be a callable"),
        (lambda: BufferingCoordinator(counter=5), "tokenizer must be a callable"),
        (lambda: BufferingCoordinator().launch_observer(None, [], 0), "takes a function observe"),
    ],
)
def test_a_wrong_shape_is_said_in_one_line(call: Callable[[], Any], line: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(line)) as raised:
        call()
    assert "\n" not in str(raised.value)
