"""`judge`: refusals, loops and texts that say less than a digest are refused; what real programs wrote is not."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.memory.support import Words, fill
from tests.support.recorded_sessions import folder

from watchkeeper.memory.compactor import Compactor
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import CompactionPass, ContextLimits, Prepared, Rejection
from watchkeeper.memory.tokens import count_message, default_counter
from watchkeeper.memory.validation import (
    degenerate,
    identifiers_of,
    judge,
    refusal,
    unusable,
    with_identifiers,
)
from watchkeeper.records.messages import Message

APOLOGIES = [
    "", "I'm sorry, but ", "I’m sorry. ", "Sorry, ", "I apologize, but ", "Unfortunately, ", "I am afraid ",
]  # fmt: skip
DENIALS = [
    "I can't help with that", "I can’t assist with this request", "I cannot fulfill your request",
    "I am unable to assist with that", "I'm not able to provide a summary of this conversation",
    "I won't be able to do that, and I cannot comply with this request", "we can not process that request",
    "I don't feel comfortable summarizing this",
]  # fmt: skip
AROUND = ["", "Sure! ", "Here is the summary:\n\n", "Summary: ", "**", '"', "- "]
REPORTS = [
    'The model answered: "{0}." The user then asked again (#4).',
    "The first summariser replied “{0}”, so another model was used.",
    "Goal: tell refusals such as `{0}` from summaries.",
    "The tool returned the error: {0}.",
    "The assistant said that {0} (#7).",
]
NO_REFUSALS = [
    "The assistant cannot help with that request, so the user asked someone else.",
    "I cannot run the tests here because Docker is missing.",
    "I could not reproduce the bug; the next step is to ask for a log.",
    "Decisions: we can't continue using version 2, since the API changed.",
    "The user declined the offer. I fixed src/a.py.",
]


@given(
    st.sampled_from(AROUND),
    st.sampled_from(APOLOGIES),
    st.sampled_from(DENIALS),
    st.sampled_from(["", ".", "!"]),
)
def test_a_refusal_is_no_summary_whatever_stands_around_it(before, sorry, denial, end):
    text = f"{before}{sorry}{denial}{end}{before.strip() if before in ('**', chr(34)) else ''}"
    assert refusal(text)
    assert refusal(text.replace("'", "’"))
    assert refusal(f"{text}\nThe user works on src/parse.py and wants the tests to pass.")
    assert refusal(f"The user works on src/parse.py and wants the tests to pass.\n{text}")


@given(st.sampled_from(REPORTS), st.sampled_from(APOLOGIES), st.sampled_from(DENIALS))
def test_a_summary_may_report_a_refusal(report: str, sorry: str, denial: str) -> None:
    assert refusal(report.format(f"{sorry}{denial}")) is None


@pytest.mark.parametrize("text", NO_REFUSALS)
def test_what_the_agent_cannot_do_is_no_refusal_to_summarise(text: str) -> None:
    assert refusal(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "Please provide the conversation that you want me to summarize.",
        "I don't see any conversation to summarize.",
        "Sure, I can help with that! How can I assist you today?",
        "As an AI language model, I have no access to files.",
        "Es tut mir leid, aber dabei kann ich nicht helfen.",
        "Lo siento, pero no puedo ayudar con eso.",
        "Je suis désolé, mais je ne peux pas vous aider.",
        "很抱歉，我无法帮助您完成这个请求。",
        "申し訳ありませんが、お手伝いできません。",
        "I'm sorry, but I can't help with that (#1).",
    ],
)
def test_other_forms_of_a_refusal(text: str) -> None:
    assert refusal(text)


VOCABULARY = [
    f"{stem}{ending}"
    for stem in ["parse", "read", "write", "test", "move", "fold", "count", "mark"]
    for ending in ("r", "s", "d_by", "ing", "_at", "1")
]
"""Words of made-up sentences."""


def prose(seed: int, words: int) -> str:
    """Sentences that do not repeat one another."""
    chance = random.Random(seed)
    made = [
        f"{chance.choice(VOCABULARY)}{chance.choice(['', '', ',', '.', f' in src/m{chance.randrange(99)}.py'])}"
        for _ in range(words)
    ]
    return " ".join(made)


@given(st.integers(0, 10**6), st.integers(1, 500), st.integers(0, 60), st.integers(0, 40))
def test_a_loop_of_any_period_is_found_wherever_it_stands(seed, period, before, after):
    times = 16 if period <= 8 else 5 if period <= 40 else 3
    unit = prose(seed, period)
    assert degenerate(f"{prose(seed + 1, before)} {' '.join([unit] * times)} {prose(seed + 2, after)}")


@given(st.integers(0, 10**6), st.integers(1, 1_500))
def test_prose_that_does_not_repeat_itself_is_no_loop(seed: int, words: int) -> None:
    assert unusable(prose(seed, words)) is None


@pytest.mark.parametrize(
    "text",
    [
        "and then we " * 8,
        "Summary. " * 20,
        "ha" * 500,
        "好的。" * 50,
        "\n".join(f"{number}. The user asked to go on (#{number})" for number in range(1, 62)),
        prose(1, 2_000)[:3_000] * 2,
        prose(2, 900) + "\n\n" + "The tests pass now. " * 60,
        "\n\n".join([prose(3, 60), prose(4, 60)] * 3),
    ],
)
def test_forms_of_a_loop(text: str) -> None:
    assert degenerate(text)


@pytest.mark.parametrize(
    "text",
    [
        "They talked.",
        "They talked. They talked.",
        "| file | lines |\n|---|---|\n" + "\n".join(f"| src/m{n}.py | {n * 37} |" for n in range(30)),
        "\n".join(f"- src/m{n}.py: edited (#{n})" for n in range(1, 40)),
        "\n".join(f"[-] ran the tests (#{n})" for n in range(1, 12)),
        "=" * 80 + "\nGoals\n" + "=" * 80,
    ],
)
def test_lists_and_tables_are_no_loops(text: str) -> None:
    assert degenerate(text) is None


# --- less than the digest -----------------------------------------------------------------------------------


def busy(count: int = 24) -> ContextState:
    """A context whose messages name files, hashes and errors."""
    state = ContextState(ContextLimits(40_000, 0), default_counter(), pin_first=False)
    for number in range(1, count + 1):
        said = (
            f"I decided to change src/part{number}.py in commit {number:07x}abc because of PROJ-{number}00. "
        )
        state.append("assistant" if number % 2 else "user", said + prose(number, 60), at=0.0)
    return state


def passed(state: ContextState, up_to: int | None = None) -> CompactionPass:
    run = Compactor(state).begin(up_to)
    assert isinstance(run, CompactionPass)
    return run


@pytest.mark.parametrize(
    "text", ["The user and the assistant worked on the code. Files were changed and the work goes on.",
     prose(5, 300).replace("src/", "")],
)  # fmt: skip
async def test_a_summary_that_says_less_than_the_digest_is_refused(text: str) -> None:
    judged = await judge(text, passed(busy()), default_counter(), 1_000)
    assert isinstance(judged, Rejection)
    assert "a digest without a model names" in judged.reason


@pytest.mark.parametrize(
    "text", ["They changed src/part1.py to src/part9.py (#1).", "No more than PROJ-100 is open."]
)
async def test_a_short_summary_that_names_what_matters_is_taken(text: str) -> None:
    assert not isinstance(await judge(text, passed(busy()), default_counter(), 1_000), Rejection)


async def test_appended_identifiers_hold_no_noise() -> None:
    state = busy(4)
    for text in (
        "We decided on a limit of 34, a port of 8443, version 2.0 and #4, see #4679 and toolu_01AbCdEf99.",
        "Fixed in step-1, see src/deep/part1.py.",
    ):
        state.append("assistant", text + "\n" + prose(9, 80), at=0.0)
        state.append("user", "Go on. " + prose(8, 80), at=0.0)
    run = passed(state, 8)
    found = await identifiers_of(run)
    listed = (await with_identifiers("Text.", found, 500, default_counter())).splitlines()[2:]
    names = {line.rpartition(" → ")[0] for line in listed}
    assert {"8443", "#4679", "src/deep/part1.py"} <= names
    assert not names & {"34", "2.0", "#4", "toolu_01AbCdEf99"}


async def test_appended_identifiers_take_no_more_than_an_eighth_of_what_is_covered() -> None:
    run = passed(busy(), 4)
    judged = await judge("They changed src/part1.py.", run, default_counter(), 5_000)
    assert not isinstance(judged, Rejection)
    assert judged.tokens <= max(run.source_tokens // 8, 100) + 10


# --- a pass over few messages -------------------------------------------------------------------------------


@given(st.integers(20, 90), st.integers(1, 4), st.integers(1, 400))
def test_a_pass_over_few_of_many_messages_never_grows_the_context(count, covered, words):
    state = ContextState(ContextLimits(100_000, 0), Words(), pin_first=False)
    state.append("user", "An assignment. " * 400, at=0.0)
    fill(state, covered - 1)
    state.digest(up_to=covered, at=0.0, keep_newest=False)
    state.view = _provisional(state)
    fill(state, count - covered)
    before = state.tokens
    text = prose(count, words)
    prepared = Prepared(
        text=text,
        tokens=Words().count(text),
        covers=(1, covered),
        citations=(1,),
        replaces=tuple(one.id for one in state.view.observations),
        source_tokens=10_000,
        base_version=state.view.version,
        epoch=state.epoch,
    )
    outcome = state.publish(prepared, at=0.0)
    if isinstance(outcome, Rejection):
        assert state.tokens == before
    else:
        assert state.tokens <= before + 40, "no more than the label with its pointer"


def _provisional(state: ContextState) -> Any:
    from dataclasses import replace

    return replace(
        state.view, observations=tuple(replace(one, provisional=True) for one in state.view.observations)
    )


# --- what real programs wrote -------------------------------------------------------------------------------

PLACE = folder()


def recorded_summaries(place: Path) -> Iterator[tuple[list[Message], str]]:
    """Messages up to a compaction of the recording program, and the summary that it wrote."""
    for path in sorted(place.rglob("*.jsonl")):
        messages: list[Message] = []
        for line in path.read_text("utf-8", "replace").splitlines():
            record = json.loads(line)
            message = record.get("message")
            if record.get("type") not in ("user", "assistant") or record.get("isSidechain") or not message:
                continue
            content = message["content"]
            if record.get("isCompactSummary"):
                yield messages, content if isinstance(content, str) else content[0]["text"]
                messages = []
            tokens = count_message("user", content)
            messages.append(Message(len(messages) + 1, record["type"], content, tokens, 0, 0.0))


@pytest.mark.skipif(PLACE is None, reason="there are no recorded sessions beside the checkout")
async def test_no_summary_that_a_real_program_wrote_is_refused() -> None:
    assert PLACE is not None
    found = [(messages, text) for messages, text in recorded_summaries(PLACE) if len(text) > 400]
    assert found
    for messages, text in found:
        run = CompactionPass(
            covers=(1, len(messages)),
            messages=tuple(messages),
            source_tokens=sum(message.tokens for message in messages),
            base_version=1,
            epoch=0,
        )
        judged = await judge(text, run, default_counter(), 500)
        assert not isinstance(judged, Rejection), judged
        assert isinstance(await judge(f"{text}\n{text}\n{text}", run, default_counter()), Rejection)
        sorry = "I’m sorry, but I can’t help with that."
        assert isinstance(await judge(f"{text}\n{sorry}", run, default_counter()), Rejection)
