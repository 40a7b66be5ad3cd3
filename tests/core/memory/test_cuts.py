"""Where a history may be cut, which part of it is the newest, and where a summary may take its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.memory.support import Words, call, fill, prepared, result

from watchkeeper.memory.compactor import Compactor
from watchkeeper.memory.content import cut_points, newest_group, newest_turn
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits, Prepared, Rejection
from watchkeeper.memory.validation import spliced
from watchkeeper.records.messages import Message, Observation, ObservationKind, View


def history(*contents: Any, first: int = 1) -> list[Message]:
    """Messages of ten tokens: a list of calls is the assistant's, `say` its text, anything else the user's."""
    made = []
    for seq, content in enumerate(contents, first):
        calls = isinstance(content, list) and content[-1]["type"] == "tool_use"
        role = "assistant" if calls or content == "say" else "user"
        made.append(Message(seq, role, content, 10, 10 * seq, 0.0))
    return made


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Calls with ids of their own, of which some get results, in any order and however late."""
    contents: list[Any] = []
    open_ones: list[str] = []
    for place in range(draw(st.integers(0, 9))):
        kind = draw(st.sampled_from(["ask", "say", "call", "call", "result", "result"]))
        if kind == "call":
            made = [f"{place}.{number}" for number in range(draw(st.integers(1, 2)))]
            open_ones += made
            contents.append(call(*made))
        elif kind == "result" and open_ones:
            given_now = draw(st.lists(st.sampled_from(open_ones), min_size=1, unique=True))
            open_ones = [one for one in open_ones if one not in given_now]
            contents.append(result(*given_now))
        else:
            contents.append(kind)
    return history(*contents)


def places(messages: Sequence[Message], kind: str, name: str) -> dict[str, int]:
    return {
        block[name]: place
        for place, message in enumerate(messages)
        if isinstance(message.content, list)
        for block in message.content
        if block["type"] == kind
    }


@given(messages=histories(), orphans=st.booleans())
def test_a_cut_is_allowed_just_where_no_call_before_it_has_its_result_after_it_or_none(messages, orphans):
    asked, answered = places(messages, "tool_use", "id"), places(messages, "tool_result", "tool_use_id")
    spoke = max((place for place, one in enumerate(messages) if one.role == "assistant"), default=-1)

    def forbids(name: str, cut: int) -> bool:
        if name in answered:
            return asked[name] < cut <= answered[name]
        return asked[name] < cut and (not orphans or asked[name] == spoke)

    expected = [not any(forbids(name, cut) for name in asked) for cut in range(len(messages) + 1)]
    assert cut_points(messages, orphans=orphans) == expected
    assert orphans or cut_points(messages) == expected


@pytest.mark.parametrize(
    ("contents", "group", "turn"),
    [
        (["ask"], 0, 0), (["ask", "say"], 1, 1), (["ask", "say", "ask"], 2, 1),
        (["ask", "say", "ask", "ask"], 3, 1), (["ask", "say", "ask", "ask", "ask"], 4, 4),
        (["ask", call("a"), result("a")], 1, 1), (["ask", call("a", "b"), result("a"), result("b")], 1, 1),
        (["ask", "say", call("a"), result("a"), "ask"], 4, 2),
        (["ask", call("a"), result("a"), "say"], 3, 3), ([result("a")], 0, 0), (["ask", result("a")], 1, 1),
        (["ask", "ask", result("a")], 2, 2), ([call("a"), result("a")], 0, 0),
    ],
)  # fmt: skip
def test_the_newest_group_is_what_the_api_takes_alone_and_the_newest_turn_the_models_last_words(
    contents: list[Any], group: int, turn: int
) -> None:
    messages = history(*contents)
    assert (newest_group(messages), newest_turn(messages)) == (group, turn)


def seen(number: int, covers: tuple[int, int], *, provisional: bool = False) -> Observation:
    return Observation(
        number, ObservationKind.SUMMARY, "seen", 5, covers, (covers[0],), provisional=provisional
    )


TAIL = history("ask", call("a"), result("a"), "say", first=5)
"""Messages 5 to 8; between 6 and 7 no cut is allowed."""
EARLIER = (seen(1, (1, 2)), seen(2, (3, 4)))


@pytest.mark.parametrize(
    ("covers", "about", "expected"),
    [
        ((5, 5), {}, ([1, 2, 9], 6)), ((5, 7), {}, ([1, 2, 9], 8)), ((5, 8), {}, ([1, 2, 9], None)),
        ((3, 5), {"replaces": (2,)}, ([1, 9], 6)), ((3, 4), {"replaces": (2,)}, ([1, 9], 5)),
        ((1, 2), {"replaces": (1,)}, ([9, 2], 5)), ((1, 4), {"replaces": (1, 2)}, ([9], 5)),
        ((1, 8), {"replaces": (1, 2)}, ([9], None)), ((5, 5), {"tokens": 95}, ([1, 2, 9], 6)),
        ((5, 5), {"tokens": 96}, "at least 5% smaller"), ((5, 5), {"text": " \n"}, "is empty"),
        ((5, 5), {"citations": ()}, "is empty"), ((5, 6), {}, "separate a tool call"),
        ((5, 9), {}, "message 9, which does not exist"), ((6, 7), {}, "must cover them from 5"),
        ((4, 5), {"replaces": (2,)}, "before and after"), ((1, 3), {"replaces": (1, 2)}, "before and after"),
        ((3, 5), {}, "Observation 2 was added during"),
    ],
)  # fmt: skip
def test_a_summary_takes_the_place_of_what_it_covers_or_it_is_said_why_not(covers, about, expected):
    values: dict[str, Any] = {
        "text": "new", "tokens": 5, "citations": (covers[0],), "source_tokens": 100,
    } | about  # fmt: skip
    prepared = Prepared(covers=covers, base_version=1, epoch=0, **values)
    got = spliced(prepared, seen(9, covers), View(1, EARLIER, 5), TAIL, 9)
    if isinstance(got, Rejection):
        assert isinstance(expected, str), got.reason
        assert expected in got.reason
    else:
        assert ([one.id for one in got[0]], got[1]) == expected


@pytest.mark.parametrize("first", [1, 3])
def test_a_summary_may_take_the_place_of_a_digest_that_came_while_it_was_written(first: int) -> None:
    view = View(1, (seen(1, (1, 2)), seen(2, (3, 4), provisional=True)), 5)
    replaces = (1,) if first == 1 else ()
    prepared = Prepared(
        text="new", tokens=5, covers=(first, 4), citations=(first,), source_tokens=100, base_version=1, epoch=0, replaces=replaces
    )  # fmt: skip
    got = spliced(prepared, seen(9, (first, 4)), view, TAIL, 9)
    assert not isinstance(got, Rejection)
    assert [one.id for one in got[0]] == ([9] if first == 1 else [1, 9])


def test_a_summary_leaves_no_message_that_nothing_covers() -> None:
    prepared = Prepared(
        text="new", tokens=5, covers=(3, 3), citations=(3,), source_tokens=100, base_version=1, epoch=0
    )
    for later, verbatim, tail in (((seen(2, (5, 8)),), None, []), ((), 5, TAIL)):
        got = spliced(prepared, seen(9, (3, 3)), View(1, (EARLIER[0], *later), verbatim), tail, 9)
        assert isinstance(got, Rejection)
        assert "Nothing would cover" in got.reason


def published(state: ContextState, text: str, last: int) -> Any:
    return state.publish(prepared(state, text, (1, last)), at=0.0)


def test_automatic_passes_wait_after_an_undo_until_all_is_redone(state: ContextState) -> None:
    fill(state, 12)
    for last in (3, 6):
        assert not isinstance(published(state, "They talked.", last), Rejection)
    held = [state.held]
    for move in (state.undo, state.undo, state.redo, state.redo):
        move(at=0.0)
        held.append(state.held)
    assert held == [False, True, True, True, False]
    assert state.view.verbatim_from == 7


def test_a_summary_that_leaves_the_context_as_large_as_it_was_is_not_taken(state: ContextState) -> None:
    fill(state, 12)
    before, text = state.tokens, "word"
    while not isinstance(published(state, text, 4), Rejection):
        assert state.tokens < before
        state.undo(at=0.0)
        text += " word"
    assert state.tokens == before


def test_a_summary_leaves_what_is_shown_short_as_it_is_and_forgets_what_it_covers() -> None:
    state = ContextState(ContextLimits(4_000, 0), Words())
    state.append("user", "the goal " * 5_000, at=0.0)
    fill(state, 11)
    state.edit(drop=[3, 7, 10], at=0.0)
    assert set(state.view.elided) == {1, 3, 7, 10}
    assert not isinstance(published(state, "They talked.", 6), Rejection)
    assert set(state.view.elided) == {1, 7, 10}


def test_a_view_that_covered_everything_shows_what_came_since_when_it_is_gone_back_to(state):
    fill(state, 4)
    published(state, "They talked.", 4)
    assert state.view.verbatim_from is None
    state.append("user", "the fifth", at=5.0)
    published(state, "They talked on.", 5)
    state.undo(at=6.0)
    assert (state.view.verbatim_from, [one.seq for one in state.verbatim]) == (5, [5])
    assert "the fifth" in str(state.render())


async def test_a_pass_is_expected_to_take_what_the_slowest_of_the_last_twenty_took(state):
    fill(state, 12)
    clock = [100.0]
    took = iter([9.0, *range(20, 0, -1), 30.0])

    async def summarize(messages: Any, **_: Any) -> str:
        clock[0] += next(took)
        return "They talked."

    compactor = Compactor(state, summarize, monotonic=lambda: clock[0])
    assert compactor.expected_seconds() == 0.0
    found = []
    for _ in range(22):
        run = compactor.begin()
        assert not isinstance(run, Rejection)
        await compactor.prepare(run)
        compactor.end()
        found.append(compactor.expected_seconds())
    assert (found[0], found[1], found[20], found[21]) == (9.0, 20.0, 20.0, 30.0)
    assert compactor.durations == [*range(19, 0, -1), 30.0]


@pytest.mark.parametrize(("source", "tokens"), [(100, 95), (100, 96)])
async def test_a_summary_that_is_not_smaller_by_a_twentieth_gives_way_to_a_digest(counter, source, tokens):
    state = ContextState(ContextLimits(100_000, 100), Words())
    for number in range(8):
        state.append("user" if number % 2 == 0 else "assistant", f"m{number} " + "word " * 200, at=0.0)
    measuring = Compactor(state)
    run = measuring.begin(6)
    assert not isinstance(run, Rejection)
    measuring.end()
    size = 4 * (run.source_tokens * tokens // source)
    text = ("abcdefgh " + " ".join(map(str, range(size))))[:size]

    async def summarize(messages: Any, **_: Any) -> str:
        return text

    compactor = Compactor(state, summarize)
    again = compactor.begin(6)
    assert not isinstance(again, Rejection)
    written = await compactor.prepare(again)
    if tokens == 95:
        assert (written.kind, written.text[:8]) == (ObservationKind.SUMMARY, "abcdefgh")
    else:
        assert written.kind is ObservationKind.DIGEST
        assert written.tokens <= again.source_tokens // 2
        assert len(written.refused) == compactor.attempts
