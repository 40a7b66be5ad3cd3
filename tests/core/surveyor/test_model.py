"""The surveyor as a `Model`: pace, usage, determinism, and the roles that shorten texts."""

from __future__ import annotations

import json

import pytest
from tests.core.surveyor.session import TOOLS, spec

from watchkeeper.models.surveyor import SurveyorModel
from watchkeeper.records.messages import Delta, ErrorKind, ModelError, ModelRequest, Purpose, Reply
from watchkeeper.records.ports import ManualClock


def request(
    role: str = "planner", text: str = "# Goal\nSurvey it.", *, tools=None, purpose=Purpose.TURN
) -> ModelRequest:
    names = TOOLS.get(role, ()) if tools is None else tools
    return ModelRequest(
        system=f"Role: {role}\nWork.",
        messages=[{"role": "user", "content": text}],
        tools=[spec(name) for name in names],
        purpose=purpose,
    )


async def events(model: SurveyorModel, asked: ModelRequest):
    return [event async for event in model.stream(asked)]


async def reply_to(asked: ModelRequest, **settings) -> Reply:
    found = await events(SurveyorModel(speed=None, clock=ManualClock(), **settings), asked)
    assert isinstance(found[-1], Reply)
    return found[-1]


async def test_the_same_request_gets_the_same_reply_whoever_asks():
    one, two = await reply_to(request()), await reply_to(request())
    assert one == two


async def test_ids_of_calls_differ_when_the_conversation_does():
    ids = set()
    for text in ("a", "b", "c"):
        reply = await reply_to(request("planner", text))
        ids |= {block["id"] for block in reply.content if block["type"] == "tool_use"}
    assert len(ids) == 3


async def test_deltas_add_up_to_the_reply():
    found = await events(SurveyorModel(speed=None, clock=ManualClock()), request())
    text = "".join(event.text for event in found if isinstance(event, Delta) and event.kind == "text")
    calls = "".join(event.text for event in found if isinstance(event, Delta) and event.kind == "tool_input")
    reply = found[-1]
    assert text == reply.content[0]["text"]
    assert json.loads(calls) == reply.content[1]["input"]
    assert 2 <= len(found) <= 45


@pytest.mark.parametrize(("speed", "least", "most"), [(1.0, 0.5, 6.0), (10.0, 0.05, 0.6)])
async def test_it_streams_at_a_models_pace_times_the_speed(speed, least, most):
    clock = ManualClock()
    started = clock.now()
    found = await events(SurveyorModel(speed=speed, clock=clock), request())
    assert least < clock.now() - started < most
    assert found[-1].latency_seconds == pytest.approx(clock.now() - started)
    assert 0 < found[-1].first_token_seconds < found[-1].latency_seconds


async def test_at_full_speed_it_waits_for_nothing():
    clock = ManualClock()
    started = clock.now()
    await events(SurveyorModel(speed=None, clock=clock), request())
    assert clock.now() == started


@pytest.mark.parametrize("speed", [0, -1.0, float("nan")])
def test_a_speed_that_is_none_is_refused(speed):
    with pytest.raises(ValueError, match="above 0"):
        SurveyorModel(speed=speed, clock=ManualClock())


async def test_usage_is_deterministic_and_grows_with_the_prompt():
    short, long = await reply_to(request("explorer", "a")), await reply_to(request("explorer", "a" * 4_000))
    assert long.usage.input_tokens - short.usage.input_tokens == pytest.approx(1_000, abs=2)
    assert short.usage_exact
    assert short.usage.output_tokens > 10


async def test_a_prompt_far_beyond_the_window_is_refused_as_a_provider_would():
    with pytest.raises(ModelError, match="prompt is too long") as raised:
        await reply_to(request(text="a" * 200_000))
    assert raised.value.kind is ErrorKind.COMPACT


async def test_it_says_plainly_that_it_is_a_script():
    for asked in (request(), request("poet", "Write a poem.", tools=())):
        reply = await reply_to(asked)
        assert "script" in reply.content[0]["text"]


async def test_without_the_tools_of_its_role_it_ends_its_turn():
    reply = await reply_to(request("explorer", tools=("read",)))
    assert reply.stop_reason == "end_turn"


async def test_a_role_may_follow_from_the_tools():
    asked = request()
    without_role = ModelRequest(system="You plan.", messages=asked.messages, tools=asked.tools)
    reply = await reply_to(without_role)
    assert reply.content[1]["name"] == "list_folder"


LOG = "\n".join(
    f"#{n} assistant: looked at src/file_{n}.py, and found nothing of note; error E{n}" for n in range(1, 60)
)


@pytest.mark.parametrize("role", ["observer", "reflector", "summarizer"])
async def test_as_observer_it_shortens_and_cites(role):
    reply = await reply_to(request(role, LOG, tools=()))
    text = reply.content[0]["text"]
    assert len(text) < len(LOG) * 0.6
    assert "#59" in text
    assert "src/file_59.py" in text
    assert reply.stop_reason == "end_turn"


async def test_the_purpose_makes_an_observer_where_the_prompt_names_no_role():
    asked = ModelRequest(
        system="Condense.", messages=[{"role": "user", "content": LOG}], purpose=Purpose.OBSERVER
    )
    reply = await reply_to(asked)
    assert "#59" in reply.content[0]["text"]


async def test_hostile_text_neither_crashes_nor_stalls_it():
    hostile = [
        "part: {", "part: [[[[", "[" * 100_000, '{"inbox": [' * 1_000, "#" * 50_000, "a\udcffb",
        "part: " * 10_000,
    ]  # fmt: skip
    for text in hostile:
        for role in ("planner", "explorer", "writer", "observer"):
            for block in (
                text,
                [{"type": "text", "text": text}],
                [{"type": "tool_result", "tool_use_id": "x", "content": text}],
            ):
                asked = ModelRequest(
                    system=f"Role: {role}",
                    messages=[
                        {"role": "user", "content": "Survey."},
                        {"role": "assistant", "content": [{"type": "text", "text": text[:20_000]}]},
                        {"role": "user", "content": block},
                    ],
                    tools=[spec(name) for name in TOOLS.get(role, ())],
                )
                await reply_to(asked, context_window=200_000)
