"""What the Messages API reports of a request's usage, as the model calls that were made for it.

A reply's top-level numbers are those of the model that answered. Its `iterations` also list what other models, or
a compaction by the API itself, used for the same request. Source: `BetaUsage` in Anthropic's SDK 2.14, and
recorded replies (github.com/ccusage/ccusage/issues/1552, github.com/anthropics/claude-code/issues/84738).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from watchkeeper.records.messages import Usage

CallKind = Literal["turn", "advisor", "compaction", "fallback", "other"]
"""Why a request called a model: `turn` is the reply itself, `fallback` an attempt that another model replaced, and
`other` an iteration of a type that is not known here."""

_KINDS: dict[str, CallKind] = {"advisor_message": "advisor", "compaction": "compaction"}
"""Types of iteration that the top-level numbers leave out."""
_OF_REPLY = ("message", "fallback_message")
"""Types of iteration that belong to the reply, if its model made them."""


class ReportedCall(NamedTuple):
    """One model call of a request."""

    kind: CallKind
    model: str | None
    """The provider's name of it; None: the model of the reply."""
    usage: Usage
    hour_writes: int
    """Tokens of `usage.cache_write_tokens` that are kept for an hour."""
    exact: bool
    """False if its numbers, or whether they are charged, are not certain."""
    context: tuple[int, int] | None = None
    """Tokens of the prompt and of the output of its last iteration, if it had several: their sum is the size of
    the context, which the numbers of the whole call are not."""


def count_of(value: Any) -> int:
    """A number of tokens: what is no number, or below zero, or beyond what any model reads, counts as none."""
    if type(value) is int and 0 <= value < 1_000_000_000_000:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        return 0
    return int(value)


def token_counts(reported: dict[str, Any]) -> tuple[int, int, int, int, int]:
    """The tokens of a usage object or of one iteration: input, output, cache reads, cache writes, and those of them that
    are kept for an hour."""
    kinds, hour, short = reported.get("cache_creation"), 0, 0
    if type(kinds) is dict:
        hour = count_of(kinds.get("ephemeral_1h_input_tokens"))
        short = count_of(kinds.get("ephemeral_5m_input_tokens"))
    return (
        count_of(reported.get("input_tokens")),
        count_of(reported.get("output_tokens")),
        count_of(reported.get("cache_read_input_tokens")),
        max(count_of(reported.get("cache_creation_input_tokens")), hour + short),
        hour,
    )


def usage_of(reported: dict[str, Any]) -> tuple[Usage, int]:
    """The same as a `Usage`, and how many cache writes are kept for an hour."""
    *counts, hour = token_counts(reported)
    return Usage(*counts), hour


def reported_calls(reported: dict[str, Any], model: str | None = None) -> list[ReportedCall]:
    """The calls of a request by its usage object; the reply's own is the first.

    Args:
        model: of the reply. An iteration of another one is a call of its own.
    """
    total, hour = usage_of(reported)
    iterations = reported.get("iterations")
    found = [each for each in iterations if type(each) is dict] if type(iterations) is list else []
    if not found:
        return [ReportedCall("turn", None, total, hour, True)]
    own: list[dict[str, Any]] = []
    attempts: list[dict[str, Any]] = []
    others: list[ReportedCall] = []
    unknown: list[dict[str, Any]] = []
    for each in found:
        kind = each.get("type")
        if kind in _OF_REPLY:
            (own if _is_model(each.get("model"), model) else attempts).append(each)
        elif type(kind) is str and kind in _KINDS:
            others.append(_call(_KINDS[kind], each))
        else:
            unknown.append(each)
    exact = True
    if unknown and not _adds_up(own, total) and _adds_up(own + unknown, total):
        own, unknown, exact = own + unknown, [], False  # the numbers of the reply hold them already
    if attempts and not _adds_up(own, total) and _adds_up(own + attempts, total):
        for each in attempts:
            spent, kept = usage_of(each)
            total, hour = _less(total, spent), max(0, hour - kept)
    # A refusal before any output is not charged, and the usage does not say which one was.
    others += (_call("fallback", each, exact=count_of(each.get("output_tokens")) > 0) for each in attempts)
    others += (_call("other", each, exact=False) for each in unknown)
    context = None
    if len(own) > 1:
        last, _ = usage_of(own[-1])
        context = (last.prompt_tokens, last.output_tokens)
    return [ReportedCall("turn", None, total, hour, exact, context), *others]


def _call(kind: CallKind, reported: dict[str, Any], *, exact: bool = True) -> ReportedCall:
    usage, hour = usage_of(reported)
    named = reported.get("model")
    return ReportedCall(kind, named if type(named) is str and named else None, usage, hour, exact)


def _is_model(named: Any, model: str | None) -> bool:
    """Whether an iteration's model is the reply's: one name may have a date behind the other."""
    if type(named) is not str or not named or model is None:
        return True
    return named.startswith(model) or model.startswith(named)


def _adds_up(iterations: list[dict[str, Any]], total: Usage) -> bool:
    used = [usage_of(each)[0] for each in iterations]
    return (
        sum(each.input_tokens for each in used),
        sum(each.output_tokens for each in used),
        sum(each.cache_read_tokens for each in used),
        sum(each.cache_write_tokens for each in used),
    ) == (total.input_tokens, total.output_tokens, total.cache_read_tokens, total.cache_write_tokens)


def _less(total: Usage, part: Usage) -> Usage:
    return Usage(
        max(0, total.input_tokens - part.input_tokens),
        max(0, total.output_tokens - part.output_tokens),
        max(0, total.cache_read_tokens - part.cache_read_tokens),
        max(0, total.cache_write_tokens - part.cache_write_tokens),
    )


# --- What changes the price of a call ---------------------------------------------------------------------

_STANDARD = frozenset({"", "standard", "default", "auto", "not_available", "global"})
"""Values of such a field with which a call costs what the list says."""
_FREE_TOOLS = frozenset({"web_search_requests", "web_fetch_requests"})
"""Counts of server tools that change no price of tokens; searches have a price of their own."""


def modifiers_of(reported: dict[str, Any]) -> tuple[str, ...]:
    """What a usage object says of its request that changes list prices, as `field=value` (see
    `models.registry.MODIFIERS`)."""
    found = []
    for field in ("speed", "service_tier", "inference_geo"):
        value = reported.get(field)
        if type(value) is str and value not in _STANDARD:
            found.append(modifier(field, value))
    tools = reported.get("server_tool_use")
    if type(tools) is dict:
        found += (f"tool={name}" for name, n in tools.items() if name not in _FREE_TOOLS and count_of(n))
    return tuple(found)


def modifier(field: str, value: str | None) -> str:
    """`service_tier=priority`; empty for a standard value. Batches are named as the price list names them."""
    if value is None or value.lower() in _STANDARD:
        return ""
    if field == "service_tier" and value == "batch":
        return "processing=batch"
    return f"{field}={value[:40]}"


def searches_of(reported: dict[str, Any]) -> int:
    """Web searches that the provider made for a request: each has a price."""
    tools = reported.get("server_tool_use")
    return count_of(tools.get("web_search_requests")) if type(tools) is dict else 0
