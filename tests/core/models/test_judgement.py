"""Judging failures, waiting between tries, and reading hostile streams: pure functions, tried hard."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.message_rules import broken_rule

from watchkeeper.models.anthropic import request_body
from watchkeeper.models.failures import (
    Failure,
    RetryPolicy,
    body_reset_seconds,
    classify,
    describe,
    failure_of,
    header_reset_seconds,
    retry_after_seconds,
)
from watchkeeper.models.stream import BrokenStream, ReplyAssembler, StreamedError, without_lone_surrogates
from watchkeeper.records.messages import ErrorKind, ModelRequest, Purpose, ToolSpec

OVERFLOWS = [
    "prompt is too long: 201000 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length",
    "the request exceeds the available context size, try increasing it",
    "request (5012 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "This model's maximum context length is 32768 tokens. However, your request has 40000 input tokens.",
    "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "the input length exceeds the context length",
    "The number of tokens to keep from the initial prompt is greater than the context length.",
    "Reached context length of 4096 tokens with this model",
    "litellm.ContextWindowExceededError: context window exceeded",
    "`inputs` must have less than 4096 tokens. Given: 5000",
    "`inputs` tokens + `max_new_tokens` must be <= 8192 max total tokens",
    "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
]
NO_OVERFLOWS = [
    "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens",
    "messages: at least one message is required",
    "too many tools: at most 128",
]


@pytest.mark.parametrize("message", OVERFLOWS)
@pytest.mark.parametrize("status", [400, 413, 422, 500, 200])
def test_every_known_wording_of_overflow_asks_for_compaction(message: str, status: int) -> None:
    assert classify(Failure(message, status=status)).kind is ErrorKind.COMPACT


@pytest.mark.parametrize("message", NO_OVERFLOWS)
def test_other_bad_requests_do_not(message: str) -> None:
    assert classify(Failure(message, status=400, error_type="invalid_request_error")).kind is ErrorKind.FAIL


def test_too_many_tokens_a_minute_is_a_rate_limit_and_no_overflow() -> None:
    verdict = classify(Failure("too many tokens, exceeds context limit per minute", status=429))
    assert (verdict.kind, verdict.rule.rate_limited) == (ErrorKind.RETRY, True)


@given(
    message=st.text(max_size=80),
    status=st.none() | st.integers(100, 999),
    error_type=st.none() | st.text(max_size=20),
    error_code=st.none() | st.text(max_size=20),
    should_retry=st.none() | st.booleans(),
)
def test_there_is_an_answer_to_whatever_a_server_sends(message, status, error_type, error_code, should_retry):
    failure = Failure(message, status, error_type, error_code, should_retry=should_retry)
    verdict = classify(failure)
    said = describe(failure, verdict)
    assert said.isprintable()
    assert verdict.rule.name in said
    if verdict.kind is ErrorKind.PAUSE:
        assert "resume" in said
    assert not (verdict.retry_now and verdict.kind is not ErrorKind.RETRY)


@given(retry=st.integers(1, 6), seed=st.integers(), asked=st.none() | st.floats(0, 2000))
def test_a_wait_is_bounded_and_never_shorter_than_the_server_asks(retry, seed, asked):
    policy = RetryPolicy()
    wait = policy.wait_seconds(retry, random.Random(seed), asked)
    if retry > policy.max_retries or (asked or 0) > policy.longest_server_delay_seconds:
        assert wait is None
    elif asked:
        assert wait is not None
        assert asked <= wait <= asked + 5
    else:
        assert wait is not None
        assert 1 <= wait <= policy.cap_seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:02:00 GMT"}, 20.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "60, 1800"}, 1_800.0),
        ({"retry-after-ms": "nan", "retry-after": "7200"}, 7_200.0),
        ({"retry-after": "1970-01-01T02:01:40+02"}, 0.0),
        ({"retry-after": "2h"}, 7_200.0),
        ({"retry-after": "Fri, 01 Jan 99999 00:00:00 GMT"}, None),
        ({}, None),
    ],
)
def test_every_form_of_retry_after_is_understood(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, now=100.0) == seconds


NOW = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC
RESETS = [
    ({"resets_at": NOW + 60}, "", 60.0),
    ({"error": {"resets_in_seconds": 7.5}}, "", 7.5),
    ({"error": {"details": {"retry_after": "30"}}}, "", 30.0),
    ({"error": {"resets_at": "2023-11-14T23:13:20+00:00"}}, "", 3_600.0),
    ({"error": {"resets_at": "soon"}}, "", None),
    (
        [{"error": {"status": "RESOURCE_EXHAUSTED", "details": [{"links": []}, {"retryDelay": "7200s"}]}}],
        "",
        7_200.0,
    ),
    ([], "", None),
    (None, "You will regain access on 2023-12-01 at 00:00 UTC.", 1_388_800.0),
    (None, "Claude AI usage limit reached|1700003600", 3_600.0),
    (None, "Please try again in 6m40.5s", 400.5),
    (None, "Rate limit reached. Try again in 2 hours", 7_200.0),
    (None, "Rate limit reached; retry after 7200 seconds", 7_200.0),
    ({"reset_at": "2023-11-15T01:13:20+02"}, "", 3_600.0),
    ({"reset_at": "Tue, 14 Nov 2023 23:13:20 GMT"}, "", 3_600.0),
    (None, "5-hour limit reached, resets 11pm (UTC)", 2_800.0),
    (None, "weekly limit, resets Nov 16, 10am (America/New_York)", 0.0),
    (None, "max_tokens: 100000 > 64000", None),
    (None, "until 9999-99-99", None),
    (None, "Claude AI usage limit reached|99999999999999999999", None),
]


@pytest.mark.parametrize(
    ("body", "message", "seconds"), RESETS, ids=[str(number) for number in range(len(RESETS))]
)
def test_the_end_of_a_usage_limit_is_read_from_fields_and_words(body, message, seconds):
    found = body_reset_seconds(body, message, NOW)
    if seconds is None or found is None:
        assert found == seconds
    elif "New_York" in message:
        assert found == pytest.approx(datetime(2023, 11, 16, 15, tzinfo=UTC).timestamp() - NOW)
    else:
        assert found == pytest.approx(seconds)


@given(
    st.dictionaries(
        st.sampled_from(["x-ratelimit-reset-requests", "anthropic-ratelimit-unified-reset", "retry-after"]),
        st.text(),
    ),
    st.text(),
)
def test_no_header_or_body_however_odd_breaks_the_reading_of_resets(headers, message):
    headers |= {"x-ratelimit-remaining-requests": "0", "anthropic-ratelimit-unified-remaining": "0"}
    for found in (
        header_reset_seconds(headers, NOW),
        retry_after_seconds(headers, NOW),
        body_reset_seconds(headers, f"resets {message}", NOW),
    ):
        assert found is None or isinstance(found, float)


EVENT_TYPES = [
    "message_start", "content_block_start", "content_block_delta", "content_block_stop",
    "message_delta", "message_stop", "ping", "error", "surprise",
]  # fmt: skip
LEAF = st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=6) | st.floats(allow_nan=True)
TREE = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
)
BLOCK = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "tool_use", "odd"])},
    optional={"text": LEAF, "thinking": LEAF, "id": LEAF, "name": LEAF, "input": TREE},
)
DELTA = st.fixed_dictionaries(
    {"type": st.sampled_from(["text_delta", "input_json_delta", "thinking_delta", "signature_delta", "odd"])},
    optional={"text": LEAF, "partial_json": LEAF, "thinking": LEAF, "signature": LEAF, "stop_reason": LEAF},
)
EVENT = st.fixed_dictionaries(
    {"type": st.sampled_from(EVENT_TYPES)},
    optional={
        "index": LEAF, "message": TREE | st.just({"usage": {"input_tokens": 1}}), "content_block": BLOCK | TREE,
        "delta": DELTA | TREE, "usage": TREE, "error": TREE,
    },
)  # fmt: skip


@settings(max_examples=60)
@given(events=st.lists(EVENT | TREE, max_size=12))
def test_no_stream_however_odd_gives_anything_but_a_reply_or_a_named_fault(events: list[Any]) -> None:
    assembler = ReplyAssembler()
    try:
        assembler.feed({"type": "message_start", "message": {}})
        for event in events:
            assembler.feed(event)
        content = assembler.finish()
    except (BrokenStream, StreamedError) as fault:
        failure = failure_of(fault)
        assert describe(failure, classify(failure)).isprintable()
        return
    json.dumps(content)
    assembler.usage()
    for block in content:
        if block["type"] == "tool_use":
            assert isinstance(block["input"], dict)
            assert isinstance(block["id"], str)


@given(
    st.lists(
        st.text(alphabet=st.characters(categories=None)) | st.text(alphabet="a\ud83d\ude00\udcff"), max_size=4
    )
)
def test_text_that_was_cleaned_can_be_sent_and_clean_text_is_left_alone(texts: list[str]) -> None:
    cleaned = without_lone_surrogates({"texts": texts})
    json.dumps(cleaned, ensure_ascii=False).encode()
    assert without_lone_surrogates(cleaned) is cleaned


TOOL = ToolSpec("look", "Look.", {"type": "object"})
CONTENT = st.text(min_size=1, max_size=5) | st.lists(
    st.sampled_from(
        [
            {"type": "text", "text": "hello"},
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "AAAA"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        ]
    ),
    min_size=1,
    max_size=30,
)


@given(
    contents=st.lists(CONTENT, min_size=1, max_size=6),
    system=st.sampled_from(["", "Be brief."]),
    tools=st.sampled_from([(), (TOOL,), (TOOL, TOOL)]),
    stable_prefix=st.integers(0, 9),
)
def test_breakpoints_are_at_most_four_and_never_on_thinking(contents, system, tools, stable_prefix):
    messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": c} for n, c in enumerate(contents)]
    before = json.dumps(messages)
    body = request_body("m", ModelRequest(system, messages, tools, stable_prefix=stable_prefix))
    assert broken_rule(body) is None
    assert json.dumps(messages) == before
    unmarked = request_body("m", ModelRequest(system, messages, tools), prompt_cache=False)
    assert "cache_control" not in json.dumps(unmarked)
    beside = [ModelRequest(system, messages, purpose=one) for one in (Purpose.OBSERVER, Purpose.REFLECTOR)]
    assert all("cache_control" not in json.dumps(request_body("m", one)) for one in beside)
