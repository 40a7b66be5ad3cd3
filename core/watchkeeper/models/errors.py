"""What a failed model call means for the run: one table, read by one pure function.

Providers, proxies and local servers report the same trouble in many shapes. `RULES` lists the shapes, most
specific first; `classify` finds the first that fits. Adding a server's own wording is adding a row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from watchkeeper.records.model import ErrorKind

JUST_PASSED_SECONDS = 3_600.0
"""A usage limit that ended no longer ago, by its own words, and still holds, ends soon: clocks differ, and
times are rounded."""

ASK_AGAIN_SECONDS = 60.0
"""The wait where such a limit names no later time."""

READ_CHARS = 2_000
"""How much of a message is searched: it comes from outside, and may be made to cost time."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What was observed of a failed call, before anyone judges it."""

    message: str
    """In the server's or the network's own words."""
    status: int | None = None
    """HTTP status; None where no response came, 200 where a stream carried the error."""
    error_type: str | None = None
    """`error.type` of the body: `billing_error`, `overloaded_error`, …"""
    error_code: str | None = None
    """`error.details.error_code` of the body, a stable code that newer APIs send."""
    retry_after_seconds: float | None = None
    reset_seconds: float | None = None
    """Until the limit ends, by the response's headers of limits that are used up; `retry-after` goes before
    them."""
    usage_reset_seconds: float | None = None
    """Until a usage limit ends, by the body's own words or fields."""
    should_retry: bool | None = None
    """The server's own advice (`x-should-retry`), where it gave any."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: a failure fits when its status, type, code or wording is named here."""

    name: str
    kind: ErrorKind
    advice: str = ""
    """What a person should do next; empty where the runtime acts by itself."""
    statuses: frozenset[int] = frozenset()
    types: frozenset[str] = frozenset()
    codes: frozenset[str] = frozenset()
    wording: re.Pattern[str] | None = None
    among: frozenset[int] = frozenset()
    """Where not empty, the row holds for these statuses only."""
    rate_limited: bool = False
    usage_limit: bool = False
    """Such a limit may end at a time that the provider names; then it parks instead."""

    def fits(self, failure: Failure) -> bool:
        if self.among and failure.status not in self.among:
            return False
        return (
            failure.status in self.statuses
            or failure.error_type in self.types
            or failure.error_code in self.codes
            or (self.wording is not None and self.wording.search(failure.message, 0, READ_CHARS) is not None)
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do about a failure."""

    rule: str
    kind: ErrorKind
    advice: str
    rate_limited: bool
    retry_now: bool
    """Whether the same request may be sent again within this call."""
    usage_limit: bool = False


def _words(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


OVERFLOW = _words(
    r"prompt is too long",  # Anthropic
    r"exceeds? (the )?(available )?context (size|length|window|limit)",  # llama.cpp, Anthropic, Ollama
    r"maximum (model )?(context|input|prompt|sequence) (length|size)",  # vLLM, OpenAI-shaped proxies
    r"longer than the (model'?s |maximum )*(context|model length)",  # SGLang, older vLLM
    r"context[ _-]?(window|length|size)[ _-]?exceeded",  # LiteLLM, OpenAI codes
    r"context the overflows|greater than the context length|reached context length",  # LM Studio
    r"must be <= .*max.*(total|input).*tokens|must have less than \d+ tokens",  # text-generation-inference
    r"request exceeds the maximum (allowed )?(size|number of bytes)",  # Anthropic, 413
    r"too many (input )?tokens(?!.*(per|/) ?(minute|min|hour|day))",
)
"""How servers say that a prompt does not fit."""

NO_CREDIT = _words(
    r"credit balance is too low",
    r"insufficient[ _](quota|credits?|funds|balance)",
    r"(spend(ing)?|usage|billing) (hard )?limit (has been |was )?(reached|exceeded)",
    r"reached your specified (api )?usage limits",
    r"exceeded your current quota",
    r"payment (is )?required",
)

RULES: tuple[Rule, ...] = (
    Rule(
        "prompt too long",
        ErrorKind.COMPACT,
        statuses=frozenset({413}),
        types=frozenset({"exceed_context_size_error", "request_too_large", "context_length_exceeded"}),
        codes=frozenset({"context_length_exceeded", "request_body_too_large_after_decoding"}),
        wording=OVERFLOW,
        among=frozenset({200, 400, 413, 422, 500}),
    ),
    Rule(
        "no credit",
        ErrorKind.PAUSE,
        "add credit or raise the spend limit with the provider, then resume",
        statuses=frozenset({402}),
        types=frozenset({"billing_error"}),
        codes=frozenset(
            {
                "contract_spend_limit_reached",  # these come as 429, and do not pass by waiting
                "enforced_spend_limit_reached",
                "linked_organization_billing_unavailable",
                "linked_organization_spend_limit_reached",
                "user_profile_billing_not_authorized",
                "user_profile_not_billable",
            }
        ),
        wording=NO_CREDIT,
        usage_limit=True,
    ),
    Rule(
        "organization on hold",
        ErrorKind.PAUSE,
        "ask the provider to lift the hold, then resume",
        codes=frozenset({"organization_on_hold"}),
    ),
    Rule(
        "bad key",
        ErrorKind.PAUSE,
        "set a valid ANTHROPIC_API_KEY, then resume",
        statuses=frozenset({401, 407}),
        types=frozenset({"authentication_error"}),
    ),
    Rule(
        "no permission",
        ErrorKind.PAUSE,
        "let this key use the model, or choose another model, then resume",
        statuses=frozenset({403}),
        types=frozenset({"permission_error"}),
    ),
    Rule(
        "no such model",
        ErrorKind.PAUSE,
        "check the model's name and the base_url, then resume",
        statuses=frozenset({404, 405, 410}),
        types=frozenset({"not_found_error"}),
    ),
    Rule(
        "misconfigured",
        ErrorKind.PAUSE,
        "correct base_url and credentials, then resume",
        types=frozenset({"configuration"}),  # our own: what cannot be sent at all
    ),
    Rule(
        "rate limited",
        ErrorKind.RETRY,
        statuses=frozenset({429}),
        types=frozenset({"rate_limit_error"}),
        codes=frozenset({"ramp_limit_exceeded"}),
        rate_limited=True,
    ),
    Rule(
        "overloaded", ErrorKind.RETRY, statuses=frozenset({503, 529}), types=frozenset({"overloaded_error"})
    ),
    Rule(
        "timed out", ErrorKind.RETRY, statuses=frozenset({408, 504, 524}), types=frozenset({"timeout_error"})
    ),
    Rule("broken stream", ErrorKind.RETRY, types=frozenset({"broken_stream"})),
    Rule("busy", ErrorKind.RETRY, statuses=frozenset({409, 425, 499})),
    Rule("server error", ErrorKind.RETRY, types=frozenset({"api_error"}), among=frozenset({200})),
    Rule(
        "bad request", ErrorKind.FAIL, statuses=frozenset({400}), types=frozenset({"invalid_request_error"})
    ),
)
"""First fit wins. What no row names is judged by the hundreds of its status (see `classify`)."""


def classify(failure: Failure) -> Verdict:
    """Judge a failure. Total: whatever a server sends, there is an answer.

    Without a rule: 501 and 4xx can never work, so the task fails; 5xx, an error inside a stream and a lost
    connection pass by themselves; a redirect or another 2xx means that `base_url` is not the Messages API.
    """
    rule = next((rule for rule in RULES if rule.fits(failure)), None) or _by_hundreds(failure.status)
    kind = rule.kind
    if kind is ErrorKind.FAIL and failure.should_retry and failure.status != 400:
        kind = ErrorKind.RETRY
    return Verdict(
        rule=rule.name,
        kind=kind,
        advice=rule.advice,
        rate_limited=rule.rate_limited,
        retry_now=kind is ErrorKind.RETRY and failure.should_retry is not False,
        usage_limit=rule.usage_limit,
    )


def asked_seconds(failure: Failure, verdict: Verdict) -> float | None:
    """How long the provider asks to be left alone, in seconds from now; None where it names no time.

    A body that names the end of a usage limit goes before a shorter `retry-after`. A bad key, or credit that
    is gone, has no time, whatever a header says; a usage limit (429) has.
    """
    header = failure.retry_after_seconds
    if verdict.kind is ErrorKind.RETRY:
        if header is None and verdict.rate_limited:
            header = failure.reset_seconds
        waits = [wait for wait in (header, failure.usage_reset_seconds) if wait is not None]
        return max(0.0, *waits) if waits else None
    if not verdict.usage_limit:
        return None
    said = failure.usage_reset_seconds
    if said is None and failure.status == 429 and failure.error_code is None:
        said = header
    if said is not None and -JUST_PASSED_SECONDS < said <= 0:
        return ASK_AGAIN_SECONDS
    return said if said is not None and said > 0 else None


def _by_hundreds(status: int | None) -> Rule:
    if status is None:
        return Rule("connection lost", ErrorKind.RETRY)
    if status == 200:
        return Rule("server error", ErrorKind.RETRY)
    if status == 501 or 400 <= status < 500:
        return Rule("bad request", ErrorKind.FAIL)
    if status >= 500:
        return Rule("server error", ErrorKind.RETRY)
    return Rule(
        "not the Messages API",
        ErrorKind.PAUSE,
        "check the base_url: it must end before /v1/messages, then resume",
    )
