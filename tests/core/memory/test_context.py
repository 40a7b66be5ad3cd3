"""`ContextState`: what holds for every agent's context, one promise a test; undo, redo and restoring."""

from __future__ import annotations

import pytest
from tests.core.memory.support import (
    Characters,
    Words,
    assert_covered,
    assert_pairs_whole,
    assert_valid,
    call,
    fill,
    prepared,
    result,
    text_of,
)

from watchkeeper.memory.context import NOTES_A_MESSAGE, ContextState
from watchkeeper.memory.history import ContextLimits, Rejection, WindowTooSmall
from watchkeeper.memory.tokens import TokenCounter, count_block
from watchkeeper.records.messages import ObservationKind, View


def test_a_new_message_is_verbatim_and_numbered_from_one(state: ContextState) -> None:
    change = state.append("user", "hello", at=5.0)
    (message,) = change.messages
    assert (message.seq, message.role, message.content, message.created_at) == (1, "user", "hello", 5.0)
    assert state.render() == [{"role": "user", "content": "hello"}]
    assert change.views == ()
    assert change.view.version == 1


def test_the_bound_holds_and_the_digest_comes_in_the_same_change(state: ContextState) -> None:
    for number in range(200):
        change = state.append(
            "user" if number % 2 == 0 else "assistant", f"fact {number} " * 10, at=float(number)
        )
        assert change.tokens == state.tokens <= state.limit
        if change.high_water is not None:
            break
    assert change.messages
    assert change.views == (state.view,)
    assert change.observations == state.view.observations
    assert change.observations[0].provisional
    assert change.messages_removed > 0
    assert change.tokens < state.limit < change.tokens_before
    assert 0 < change.cache_tokens_invalidated <= change.tokens_before - change.messages[0].tokens


@pytest.mark.parametrize("filled", [0, 12, 40])
def test_what_a_large_message_compacts_counts_that_message_before_and_after(state, filled):
    fill(state, filled)
    before = state.tokens
    change = state.append("user", "line of a log\n" * 5_000, at=0.0)
    assert change.tokens_before == before + change.messages[0].tokens
    assert change.tokens == state.tokens <= state.limit
    assert change.cache_tokens_invalidated <= before, "the message itself was in no cache"


def test_the_assignment_stays_in_front_of_the_observations(state: ContextState) -> None:
    state.append("user", "ASSIGNMENT: survey the folder", at=0.0)
    for number in range(100):
        state.append("assistant" if number % 2 == 0 else "user", f"step {number} " * 12, at=float(number))
    first = state.render()[0]
    assert first["role"] == "user"
    assert first["content"][0] == {"type": "text", "text": "ASSIGNMENT: survey the folder"}
    assert first["content"][1]["text"] == "# Memory of earlier messages"


def test_a_huge_assignment_is_shortened_to_a_quarter_of_the_window(state: ContextState) -> None:
    state.append("user", "assignment " * 400, at=0.0)
    fill(state, 60)
    pinned = state.view.elided[1]
    assert pinned.tokens <= state.limit // 4
    assert pinned.pointer == "message://explorer/1"
    assert "message://explorer/1 " in text_of(state.render()[:1])


def test_without_pinning_the_first_message_is_observed_like_any_other(counter: TokenCounter) -> None:
    state = ContextState(ContextLimits(1_000, 0), counter, pin_first=False)
    fill(state, 100)
    assert state.render()[0]["content"][0] == {"type": "text", "text": "# Memory of earlier messages"}


def test_after_a_digest_the_last_words_and_their_answer_are_verbatim(state: ContextState) -> None:
    for number in range(60):
        state.append("assistant", call(f"c{number}", text=f"I look at file {number}. " * 4), at=0.0)
        change = state.append("user", result(f"c{number}", text=f"content {number} " * 12), at=0.0)
        assert change.tokens <= state.limit
        context = state.render()
        assert_valid(context)
        assert context[-2:] == [{"role": m.role, "content": m.content} for m in state.messages[-2:]], (
            "the newest turn is as it was said"
        )
    assert state.view.version > 1


def test_a_message_larger_than_the_window_shows_head_tail_and_pointer(state: ContextState) -> None:
    whole = "BEGIN " + "middle " * 5_000 + "END"
    change = state.append("user", whole, at=0.0)
    assert change.reason == "elision"
    (shown,) = state.render()
    assert shown["content"].startswith("BEGIN")
    assert shown["content"].endswith("END")
    assert "message://explorer/1" in shown["content"]
    assert state.tokens <= state.limit
    elision = state.view.elided[1]
    assert elision.head_chars > elision.tail_chars > 0
    assert elision.tokens == state.tokens
    assert state.messages[0].content == whole, "the stored message is untouched"


def test_of_a_call_only_texts_are_shortened_and_thinking_never(state: ContextState) -> None:
    thinking = {"type": "thinking", "thinking": "think " * 50, "signature": "s" * 60}
    content = [
        thinking,
        {
            "type": "tool_use",
            "id": "c1",
            "name": "write",
            "input": {"path": "a.py", "mode": 7, "text": "x y " * 9_000},
        },
    ]
    state.append("user", "go", at=0.0)
    state.append("assistant", content, at=0.0)
    state.append("user", result("c1", text="written " * 4_000), at=0.0)
    context = state.render()
    assert_valid(context)
    said = context[-2]["content"]
    assert said[0] == thinking
    assert said[1]["id"] == "c1"
    assert said[1]["input"]["mode"] == 7
    assert said[1]["input"]["path"] == "a.py"
    assert len(said[1]["input"]["text"]) < 9_000
    assert state.tokens <= state.limit


OPAQUE = [
    {"type": "thinking", "thinking": "hm", "signature": "Qm9" * 20_000},
    {"type": "redacted_thinking", "data": "Qm9" * 20_000},
]


@pytest.mark.parametrize("opaque", OPAQUE)
@pytest.mark.parametrize("filled", [0, 10, 40])
def test_thinking_larger_than_the_window_is_left_out_of_a_reply_without_calls(counter, opaque, filled):
    state = ContextState(ContextLimits(2_000, 0), counter, agent_id="me")
    fill(state, filled)
    words = {"type": "text", "text": "The parser loses its state. " * 20}
    state.append("user", "Why?", at=0.0)
    state.append("assistant", [opaque, words], at=0.0)
    assert state.tokens <= state.limit
    assert_valid(state.render())
    assert words in state.render()[-1]["content"], "what was said is shown whole"
    assert f"full text: message://me/{filled + 2}" in str(state.render()[-1])
    state.append("user", "Go on.", at=0.0)
    assert_valid(state.render())
    assert state.messages[-2].content == [opaque, words], "what is stored keeps it"


@pytest.mark.parametrize("opaque", OPAQUE)
def test_thinking_before_calls_that_are_answered_stays_whole_or_is_named_with_its_size(state, opaque):
    state.append("user", "go", at=0.0)
    state.append("assistant", [opaque, *call("c1")], at=0.0)
    state.append("user", result("c1"), at=0.0)
    size = count_block(opaque, state.counter)
    with pytest.raises(WindowTooSmall, match=f"Message 2 contains a {opaque['type']} block of {size} tokens"):
        state.render()
    state.set_limits(ContextLimits(size + 400, 0), 1.0)
    assert state.render()[1]["content"][0] == opaque
    state.set_limits(ContextLimits(1_000, 0), 1.0)
    state.append("assistant", "Done.", at=0.0)
    state.append("user", "Go on.", at=0.0)
    assert_valid(state.render())
    assert state.tokens <= state.limit


def test_the_newest_group_is_verbatim_where_it_fits(state: ContextState) -> None:
    state.append("user", "old " * 300, at=0.0)
    state.append("assistant", "old too " * 300, at=0.0)
    newest = "new " * 500
    state.append("user", newest, at=0.0)
    assert state.render()[-1] == {"role": "user", "content": newest}


def test_a_window_too_small_for_anything_says_what_it_needs() -> None:
    state = ContextState(ContextLimits(20, 0), Characters())
    change = state.append("user", [{"type": "tool_result", "tool_use_id": "x" * 30, "content": "y"}], at=0.0)
    assert change.messages, "the message is kept"
    with pytest.raises(WindowTooSmall, match="Raise max_tokens") as caught:
        state.render()
    assert caught.value.needed > 20
    state.set_limits(ContextLimits(caught.value.needed, 0), 1.0)
    assert_valid(state.render())


def test_a_digest_by_hand_covers_up_to_the_mark_and_never_cuts_a_pair(state: ContextState) -> None:
    fill(state, 6)
    state.append("user", "please read", at=0.0)
    state.append("assistant", call("c1", "c2"), at=0.0)
    state.append("user", result("c1", "c2", text="long " * 30), at=0.0)
    fill(state, 2)
    change = state.digest(up_to=8, at=1.0)
    assert change is not None
    assert change.high_water == 7, "the mark moved back before the call"
    assert change.view.verbatim_from == 8
    assert not change.observations[0].provisional, "somebody asked for it: undo leads back to it"
    assert_pairs_whole(change.view, state.messages)


def test_a_digest_with_nothing_to_gain_says_so(state: ContextState) -> None:
    state.append("user", "only this", at=0.0)
    assert state.digest(at=0.0) is None
    assert "newest messages stay" in state.last_refusal


def test_notes_for_a_digest_are_made_from_half_of_the_threshold_on_and_are_there_when_it_is_due() -> None:
    state, made = ContextState(ContextLimits(10_000, 0), Words()), 0
    while state.tokens < state.limit - 200:
        expected = (
            min(made + NOTES_A_MESSAGE, state.last_seq + 1) if state.tokens >= state.threshold // 2 else 0
        )
        fill(state, 1, 100)
        made = len(state.notebook._notes)
        assert made == expected
    assert (made, state.view.observations) == (state.last_seq, ())


def test_later_digests_fold_earlier_ones_and_stay_within_their_share(counter: TokenCounter) -> None:
    state = ContextState(ContextLimits(2_000, 0), counter)
    fill(state, 2_000)
    assert len(state.view.observations) == 1
    assert state.view.observations[0].covers[0] == 1
    assert state.view.observations[0].tokens <= 0.15 * state.limit


def test_the_threshold_is_a_fraction_of_the_whole_window(counter: TokenCounter) -> None:
    state = ContextState(ContextLimits(1_000, 100, summarization_threshold=0.5), counter)
    while state.tokens < 500:
        assert not state.needs_compaction()
        fill(state, 1, words=5)
    assert state.needs_compaction()


def test_calibration_scales_the_limit_and_leaves_the_ledger_raw(state: ContextState) -> None:
    fill(state, 20)
    raw = state.total_tokens
    state.set_limits(ContextLimits(1_000, 100, overhead_tokens=50), 1.5)
    assert state.limit == int(900 / 1.5) - 50
    change = state.fit(at=0.0)
    assert state.tokens <= state.limit
    assert state.total_tokens == raw
    assert (change is not None) == (state.view.version > 1)
    assert state.fit(at=0.0) is None


def test_the_composition_adds_up_to_the_limit(state: ContextState) -> None:
    fill(state, 70)
    state.append("user", "x " * 4_000, at=0.0)
    parts = state.composition()
    assert set(parts) == {"observations", "messages", "elided", "headroom", "overhead"}
    assert sum(parts.values()) - parts["overhead"] == state.limit
    assert parts["observations"] > 0
    assert parts["elided"] > 0


def test_the_stable_prefix_is_byte_identical_in_the_next_turn(state: ContextState) -> None:
    fill(state, 5)
    state.append("assistant", call("a", "b"), at=0.0)
    state.append("user", result("a"), at=0.0)
    stable = state.stable_prefix()
    before = state.render()[:stable]
    state.append("user", result("b"), at=0.0)
    assert state.render()[:stable] == before
    assert stable == 6, "the last message still waits for a result"


def test_everything_may_be_covered_and_the_next_message_is_verbatim_again(state: ContextState) -> None:
    fill(state, 10)
    change = state.digest(up_to=10, at=0.0, keep_newest=False)
    assert change is not None
    assert change.view.verbatim_from is None
    assert_valid(state.render())
    later = state.append("user", "next", at=0.0)
    assert state.view.verbatim_from == 11
    assert later.views == (state.view,)
    assert_covered(state.view, 11)
    assert state.undo(at=0.0).view.observations == ()


def test_a_summary_takes_the_place_of_the_digests_that_stood_in_for_it(counter: TokenCounter) -> None:
    state = ContextState(ContextLimits(1_000, 0), counter)
    fill(state, 20)
    state.begin_pass(10)
    waiting = prepared(state, "summary of ten", (1, 10))
    while not state.view.observations or state.view.observations[-1].covers[1] < 20:
        fill(state, 1)
    assert state.view.observations[0].covers[1] == 10, "digests split at the mark in flight"
    state.end_pass(10)
    change = state.publish(waiting, at=0.0)
    assert not isinstance(change, Rejection)
    assert [o.kind for o in state.view.observations] == [ObservationKind.SUMMARY, ObservationKind.DIGEST]
    assert_covered(state.view, state.last_seq)


def test_a_digest_is_deterministic() -> None:
    contexts = []
    for _ in range(2):
        state = ContextState(ContextLimits(2_000, 0), Words())
        fill(state, 300)
        contexts.append(state.render())
    assert contexts[0] == contexts[1]


def test_hostile_text_reaches_observations_as_something_that_can_be_stored(state: ContextState) -> None:
    for number in range(80):
        state.append("user", f"\ud800 decided \x1b[31m {number} src/\udfff.py error: \ud801 " * 4, at=0.0)
    for observation in state.view.observations:
        observation.text.encode()
    assert state.view.observations


def test_content_nested_beyond_any_encoder_is_refused_and_changes_nothing(state: ContextState) -> None:
    deep: dict[str, object] = {}
    for _ in range(5_000):
        deep = {"inner": deep}
    with pytest.raises(ValueError, match="nested too deeply"):
        state.append("assistant", [{"type": "tool_use", "id": "a", "name": "x", "input": deep}], at=0.0)
    assert (state.last_seq, state.tokens) == (0, 0)


def test_twenty_large_results_of_one_reply_are_shortened_together(counter: TokenCounter) -> None:
    state = ContextState(ContextLimits(2_000, 0), counter)
    names = [f"c{number}" for number in range(20)]
    state.append("user", "go", at=0.0)
    state.append("assistant", call(*names), at=0.0)
    for name in names:
        state.append("user", result(name, text="found " * 200), at=0.0)
        assert state.tokens <= state.limit
        assert_valid(state.render())


def test_what_a_swap_costs_a_prompt_cache_is_told(state: ContextState) -> None:
    fill(state, 12)
    before = state.tokens
    change = state.digest(at=0.0)
    assert change is not None
    assert change.cache_tokens_invalidated == before, "the first message is another one now"


def test_what_tools_brought_is_shortened_before_what_the_agent_said(state: ContextState) -> None:
    state.append("user", "go", at=0.0)
    said = [{"type": "text", "text": "cursor: " + "page 7 " * 60}, *call("c1")]
    state.append("assistant", said, at=0.0)
    state.append("user", result("c1", text="line of a listing\n" * 2_000), at=0.0)
    context = state.render()
    assert context[-2]["content"] == said
    assert len(context[-1]["content"][0]["content"]) < 4_000
    assert state.tokens <= state.limit


def test_an_agents_words_outlast_what_it_passed_to_a_tool(state: ContextState) -> None:
    words = "cursor: " + "page 7 " * 60
    state.append("user", "go", at=0.0)
    state.append(
        "assistant",
        [
            {
                "type": "tool_use",
                "id": "c1",
                "name": "save",
                "input": {"content": ["a long line of figures " * 9] * 90},
            },
            {"type": "text", "text": words},
        ],
        at=0.0,
    )
    assert state.render()[-1]["content"][1] == {"type": "text", "text": words}
    assert state.tokens <= state.limit


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
    with pytest.raises(ValueError, match=r"no longer fits: it would take \d+ tokens, \d+ over"):
        undo_all(state)
    assert state.tokens <= state.limit


def test_undo_without_a_compaction_says_so(state: ContextState) -> None:
    fill(state, 4)
    with pytest.raises(ValueError, match="Nothing to undo"):
        state.undo(at=0.0)
    with pytest.raises(ValueError, match="Nothing to redo"):
        state.redo(at=0.0)


def _with_digest_and_summary(counter: TokenCounter) -> tuple[ContextState, list[View]]:
    """A context that was digested by hand, then by the bound, then summarised; and the view after each."""
    state = ContextState(ContextLimits(1_000, 0), counter)
    fill(state, 16)
    assert state.digest(at=0.0) is not None
    views = [state.view]
    while not any(o.provisional for o in state.view.observations):
        fill(state, 1)
    views.append(state.view)
    covered = state.view.observations[-1].covers[1]
    change = state.publish(prepared(state, "all of it", (1, covered)), at=0.0)
    assert not isinstance(change, Rejection)
    return state, [*views, state.view]


def test_undo_goes_to_the_parent_also_where_a_digest_stood_in(counter: TokenCounter) -> None:
    state, (_, digested, summarised) = _with_digest_and_summary(counter)
    before = state.render()
    assert state.undo(at=0.0).view == digested
    assert state.redo(at=0.0).view == summarised
    assert state.render() == before


def test_undo_of_several_compactions_is_redone_one_by_one(counter: TokenCounter) -> None:
    state, (by_hand, digested, summarised) = _with_digest_and_summary(counter)
    state.set_limits(ContextLimits(100_000, 0), 1.0)
    assert state.undo_fits(by_hand.version)
    assert state.undo(at=0.0, to=by_hand.version).view == by_hand
    again = ContextState.restore(
        state.limits,
        counter,
        agent_id=state.agent_id,
        messages=state.messages,
        views=state.views,
        current=state.view.version,
    )
    for each in (state, again):
        assert each.redo(at=0.0).view == digested
        assert each.redo(at=0.0).view == summarised


def test_undo_to_a_version_that_no_compaction_began_with_says_so(counter: TokenCounter) -> None:
    state, (_, _, summarised) = _with_digest_and_summary(counter)
    for version in (summarised.version, 99):
        with pytest.raises(ValueError, match="No compaction of this context started"):
            state.undo(at=0.0, to=version)


def test_a_new_view_clears_redo_and_an_undo_holds_automatic_passes(state: ContextState) -> None:
    fill(state, 12)
    state.digest(at=0.0)
    state.undo(at=0.0)
    state.set_limits(ContextLimits(1_000, 100, summarization_threshold=0.01), 1.0)
    assert not state.needs_compaction(), "somebody undid one a moment ago"
    state.digest(at=0.0)
    assert state.needs_compaction()
    with pytest.raises(ValueError, match="Nothing to redo"):
        state.redo(at=0.0)


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


# --- Edits by hand ------------------------------------------------------------------------------------------


def _with_tools(counter: TokenCounter) -> ContextState:
    state = ContextState(ContextLimits(4_000, 0), counter)
    state.append("user", "survey the folder", at=0.0)
    for number in range(4):
        state.append("assistant", call(f"c{number}"), at=0.0)
        state.append("user", result(f"c{number}", text="line " * 200), at=0.0)
    return state


def test_a_dropped_result_is_a_pointer_and_its_call_keeps_it(counter: TokenCounter) -> None:
    state = _with_tools(counter)
    before, tokens = state.render(), state.tokens
    foretold = state.preview_edit(drop=[3, 5])
    assert state.render() == before, "a preview changes nothing"
    change = state.edit(drop=[3, 5], at=0.0)
    assert (change.tokens, change.cache_tokens_invalidated) == (foretold.tokens, foretold.cache_tokens_void)
    prompt = foretold.messages
    assert state.render() == prompt
    assert state.tokens < tokens - 300
    assert_valid(prompt)
    assert "message://agent/3" in text_of(prompt)
    assert state.messages[2].content == result("c0", text="line " * 200), "what is stored stays"
    state.undo(at=0.0)
    assert state.render() == before
    state.redo(at=0.0)
    assert state.render() == prompt


def test_an_edited_summary_takes_the_place_of_the_old_one_and_undo_brings_it_back(state):
    fill(state, 12)
    state.digest(at=0.0)
    (old,) = state.view.observations
    change = state.edit(texts={old.id: "The user wants tests first (#1)."}, at=0.0)
    (new,) = state.view.observations
    assert change.observations == (new,)
    assert (new.text, new.covers, new.replaces) == ("The user wants tests first (#1).", old.covers, (old.id,))
    assert not new.provisional, "no pass replaces what a person wrote"
    assert "tests first" in text_of(state.render())
    assert state.undo(at=0.0).view.observations == (old,)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"drop": [99]}, "Message 99 is not shown"),
        ({"drop": [1]}, "Message 1 is not shown"),
        ({"texts": {77: "x"}}, "Observation 77 is not in this context"),
        ({"texts": {1: "  "}}, "The text is empty"),
        ({"texts": {1: "word " * 2_000}}, "over the limit"),
        ({}, "Nothing would change"),
    ],
)
def test_an_edit_that_cannot_be_made_says_why_and_changes_nothing(state, how, why):
    fill(state, 12)
    state.digest(at=0.0)
    view, context = state.view, state.render()
    with pytest.raises(ValueError, match=why):
        state.edit(at=0.0, **how)
    assert state.view is view
    assert state.render() == context


# --- Pins -----------------------------------------------------------------------------------------------------


def test_a_pin_costs_the_cache_nothing_and_later_summaries_keep_the_prompt_up_to_it(counter):
    state = ContextState(ContextLimits(4_000, 0), counter)
    fill(state, 12)
    assert state.edit(pin=[4], at=0.0).cache_tokens_invalidated == 0, "it is shown already"
    before = state.render()
    for first, last in ((1, 6), (7, 14)):
        fill(state, 8)
        assert not isinstance(
            state.publish(prepared(state, f"up to {last}", (first, last)), at=0.0), Rejection
        )
    shown = state.render()
    assert shown[1] == before[3], "the pinned message stands behind the summary that covers it"
    assert "up to 6" in text_of(shown[:1])
    assert "up to 14" in text_of(shown[2:3])
    after_one = ContextState.restore(
        state.limits, counter, agent_id="agent", messages=state.messages, views=state.views, current=3
    )
    assert after_one.render()[:2] == shown[:2], "the second summary changes the prompt behind the pin only"


def restored(state: ContextState) -> ContextState:
    """The same context, as another host loads it."""
    return ContextState.restore(
        state.limits, state.counter, agent_id="agent", messages=state.messages, views=state.views,
        current=state.view.version,
    )  # fmt: skip


def test_a_lasting_message_is_pinned_as_it_comes_and_survives_summaries_digests_undo_and_restarts(counter):
    state = ContextState(ContextLimits(3_000, 0), counter)
    fill(state, 6)
    said = state.append("user", "Use the port 7411.", at=0.0, lasting=True)
    assert said.cache_tokens_invalidated == 0
    assert said.views[-1].pins == (7,)
    fill(state, 8)
    assert not isinstance(state.publish(prepared(state, "up to 10", (1, 10)), at=0.0), Rejection)
    state.append("user", "Never touch vendor/.", at=0.0, lasting=True)
    state.undo(at=0.0)
    assert len(state.view.pins) == 2, "undo leads back to other messages, not to what a person did not say"
    fill(state, 30)
    assert state.digest(at=0.0) is not None
    for context in (state, restored(state)):
        shown = context.render()
        for words in ("Use the port 7411.", "Never touch vendor/."):
            assert any(words in text_of([message]) for message in shown[1:]), "in its own place"
        assert len(context.pins) == 2


def test_of_lasting_messages_without_room_the_oldest_are_unpinned(counter: TokenCounter) -> None:
    state = ContextState(ContextLimits(2_000, 0), counter)
    fill(state, 2)
    state.edit(pin=[1], at=0.0)
    for number in range(60):
        state.append("user", f"Rule {number}: " + "word " * 20, at=0.0, lasting=True)
    assert sum(pin.tokens for pin in state.pins) <= state.limit // 3 + 1
    assert state.pins[0].seq == 1, "what was pinned by hand stays"
    assert state.pins[-1].seq == state.last_seq
    assert state.tokens <= state.limit
    assert restored(state).pins == state.pins


def test_pins_that_leave_too_little_room_are_refused_with_both_numbers(counter: TokenCounter) -> None:
    state = _with_tools(counter)
    state.set_limits(ContextLimits(3_000, 0), 1.0)
    state.edit(pin=[3], at=0.0)
    sizes = sum(state.messages[place].tokens for place in range(1, 9))
    with pytest.raises(
        ValueError, match=rf"would take {sizes} tokens\. Pins may take 1000, a third of the limit of 3000"
    ):
        state.edit(pin=[5, 7, 8], at=0.0)
    assert [pin.seq for pin in state.pins] == [2, 3]
    for how, why in (
        ({"pin": [3]}, "already pinned"),
        ({"pin": [99]}, "not in this context"),
        ({"unpin": [5]}, "Message 5 is not pinned"),
        ({"drop": [3]}, "Message 3 is pinned; unpin it first"),
    ):
        with pytest.raises(ValueError, match=why):
            state.edit(at=0.0, **how)  # type: ignore[arg-type]


def test_a_window_that_became_too_small_for_the_pins_shortens_them_and_says_which(counter):
    state = _with_tools(counter)
    state.edit(pin=[3], at=0.0)
    (_, pinned) = state.pins
    state.set_limits(ContextLimits(pinned.tokens + 100, 0), 1.0)
    change = state.fit(at=0.0)
    assert change is not None
    assert change.pins_shortened == (3,)
    assert state.tokens <= state.limit
    assert state.pins[1].shown_tokens < pinned.tokens
    assert_valid(state.render())
    state.set_limits(ContextLimits(4_000, 0), 1.0)
    fill(state, 12)
    assert state.digest(at=0.0) is not None
    assert state.pins[1] == pinned, "whole again as soon as there is room"
    assert {"role": "user", "content": result("c0", text="line " * 200)} in state.render()
