"""What one request used, as the calls that were made for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.records.messages import Usage
from watchkeeper.records.usage import modifiers_of, reported_calls, searches_of


def used(kind: str | None = None, model: str | None = None, *counts: int) -> dict[str, object]:
    fresh, output, read, written = (*counts, 0, 0, 0, 0)[:4]
    found: dict[str, object] = {
        "input_tokens": fresh, "output_tokens": output, "cache_read_input_tokens": read, "cache_creation_input_tokens": written,
    }  # fmt: skip
    return found | ({"type": kind} if kind else {}) | ({"model": model} if model else {})


def told(reported: dict[str, object], model: str = "claude-a") -> list[tuple[object, ...]]:
    return [(call.kind, call.model, call.usage, call.exact) for call in reported_calls(reported, model)]


def test_a_usage_without_iterations_is_one_call():
    assert told(used(None, None, 1, 2, 3, 4)) == [("turn", None, Usage(1, 2, 3, 4), True)]


def test_an_advisor_and_a_compaction_are_calls_of_their_own():
    reported = used(None, None, 3, 4, 50) | {
        "iterations": [
            used("message", None, 1, 1, 20),
            used("advisor_message", "claude-b", 900, 70),
            used("compaction", None, 5, 6, 700),
            used("message", None, 2, 3, 30),
        ]
    }
    assert told(reported) == [
        ("turn", None, Usage(3, 4, 50), True),
        ("advisor", "claude-b", Usage(900, 70), True),
        ("compaction", None, Usage(5, 6, 700), True),
    ]
    assert reported_calls(reported)[0].context == (32, 3)  # of the last prompt alone


def test_an_attempt_of_another_model_before_the_one_that_served_is_a_call_of_that_model():
    # As in github.com/ccusage/ccusage/issues/1552: the top level repeats the attempt that served.
    reported = used(None, None, 2, 13_658, 79_214) | {
        "iterations": [
            used("message", "claude-f", 2, 578, 72_769, 10_421),
            used("fallback_message", "claude-o", 2, 13_658, 79_214),
        ]
    }
    assert told(reported, "claude-o-20260101") == [
        ("turn", None, Usage(2, 13_658, 79_214), True),
        ("fallback", "claude-f", Usage(2, 578, 72_769, 10_421), True),
    ]


def test_an_attempt_that_the_top_level_includes_is_not_counted_twice():
    reported = used(None, None, 30, 3) | {
        "iterations": [used("message", "claude-f", 10, 1), used("fallback_message", "claude-o", 20, 2)]
    }
    assert told(reported, "claude-o") == [
        ("turn", None, Usage(20, 2), True),
        ("fallback", "claude-f", Usage(10, 1), True),
    ]


def test_an_iteration_of_an_unknown_type_is_counted_as_an_estimate_and_once():
    beside = used(None, None, 10, 1) | {
        "iterations": [used("message", None, 10, 1), used("oracle", "claude-z", 700, 7)]
    }
    assert told(beside) == [("turn", None, Usage(10, 1), True), ("other", "claude-z", Usage(700, 7), False)]
    within = used(None, None, 10, 1) | {"iterations": [used("iteration", None, 10, 1)]}
    assert told(within) == [("turn", None, Usage(10, 1), False)]


def test_cache_writes_for_an_hour_are_told_apart_in_each_iteration():
    hour = {"cache_creation": {"ephemeral_1h_input_tokens": 7, "ephemeral_5m_input_tokens": 2}}
    reported = used(None, None, 1) | hour | {"iterations": [used("advisor_message", "b") | hour]}
    assert [(call.usage.cache_write_tokens, call.hour_writes) for call in reported_calls(reported)] == [
        (9, 7)
    ] * 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["iterations", "type", "model", "input_tokens", "output_tokens", "cache_creation", "speed"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["iterations", "input_tokens", "speed", "server_tool_use"]), JSON))
def test_whatever_a_log_holds_is_read_as_at_least_one_call_without_negative_counts(reported):
    calls = reported_calls(reported, "claude-a")
    assert calls[0].kind == "turn"
    for call in calls:
        usage = call.usage
        assert (
            min(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
            >= 0
        )
    modifiers_of(reported)
    assert searches_of(reported) >= 0


@pytest.mark.parametrize(
    ("reported", "found"),
    [
        ({"speed": "standard", "service_tier": "standard", "inference_geo": "not_available"}, ()),
        ({"speed": "fast", "service_tier": "batch"}, ("speed=fast", "processing=batch")),
        ({"inference_geo": "us"}, ("inference_geo=us",)),
        ({"inference_geo": "global"}, ()),
        ({"server_tool_use": {"web_search_requests": 2, "web_fetch_requests": 1}}, ()),
        ({"server_tool_use": {"code_execution_requests": 1}}, ("tool=code_execution_requests",)),
        ({"server_tool_use": {"code_execution_requests": 0}, "speed": 7, "service_tier": None}, ()),
    ],
)
def test_what_changes_a_price_is_named_and_what_does_not_is_not(reported, found):
    assert modifiers_of(reported) == found
