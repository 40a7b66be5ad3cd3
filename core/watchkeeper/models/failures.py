"""Failures of model calls: reading the SDK's exceptions, judging them by a table, waiting before a retry.

This is the one place that knows the SDK's exceptions and those beneath it. Not every failure is an
`APIError`: a disconnect inside a stream is `httpx2.RemoteProtocolError`, a stall `httpx2.ReadTimeout`, and an
illegal header or base_url an error of the HTTP library. Exceptions are recognised by the names of their
classes, so that this module imports neither library.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
import math
import random
import re
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from watchkeeper.models.stream import BrokenStream, StreamedError, excerpt, text_or_none
from watchkeeper.records.errors import causes
from watchkeeper.records.messages import ErrorKind
from watchkeeper.records.text import one_line
from watchkeeper.records.usage_limits import (
    JUST_PASSED_SECONDS,
    duration_seconds,
    iso_moment,
    limit_end,
    moment,
)

if TYPE_CHECKING:
    from httpx2 import AsyncClient


# --- When a limit ends, as providers state it: in headers, in fields of the body, and in words ------------
#
# All input comes from outside and may be wrong; a value that cannot be understood counts as absent.
#
# Sources: `retry-after` (RFC 9110), `anthropic-ratelimit-*-reset` (docs.anthropic.com, rate limits),
# `x-ratelimit-reset-*` of OpenAI-shaped servers, and the wordings of usage limits that the tests hold.

LONGEST_PARK_SECONDS = 32 * 86_400.0
"""A month and a day: the longest period for which usage is billed. A later reset is taken for a mistake, and
for no time."""

SHORTEST_PARK_SECONDS = 10.0
"""A limit without a longer wait is not asked again sooner: each question is a request."""

MOST_DETAILS = 10

_SECONDS_FIELDS = ("resets_in_seconds", "reset_in_seconds", "retry_after_seconds", "retry_after")
_TIME_FIELDS = ("resets_at", "reset_at", "resetsAt", "reset_time", "retryDelay")


def header_reset_seconds(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds until the used-up limits of a response end; None if its headers name none.

    If several limits are used up, the last to end counts. A limit with a remainder does not count.
    """
    waits = []
    for name in headers:
        lower = name.lower()
        if (
            not (lower.startswith("anthropic-ratelimit-") or lower.startswith("x-ratelimit-"))
            or "reset" not in lower
        ):
            continue
        remaining = headers.get(lower.replace("reset", "remaining"))
        status = headers.get(lower.replace("reset", "status"), "")
        seconds = moment_or_duration(headers[name], now)
        if seconds is not None and (_is_none_left(remaining) or status == "rejected"):
            waits.append(seconds)
    return max(waits, default=None)


def body_reset_seconds(body: Any, message: str, now: float) -> float | None:
    """Seconds until a usage limit ends, by the fields of an error's body or by its words; None where they do
    not say.

    Negative for a time in the past.
    """
    for fields in _objects(body):
        for name in _SECONDS_FIELDS:
            seconds = _number(fields.get(name))
            if seconds is not None:
                return seconds
        for name in _TIME_FIELDS:
            value = fields.get(name)
            wait = moment_or_duration(str(value), now) if isinstance(value, str | int | float) else None
            if wait is not None:
                return wait
    end = limit_end(message, now)
    return None if end is None else end - now


def _objects(body: Any) -> list[dict[str, Any]]:
    """The objects in which an error says something: the body, its `error`, and that one's `details`, the innermost first.

    Google's are a list with one body, and a list of details.
    """
    found: list[dict[str, Any]] = []
    for _ in range(3):
        parts = body[:MOST_DETAILS] if isinstance(body, list) else [body]
        objects = [part for part in parts if isinstance(part, dict)]
        found[:0] = objects
        if len(objects) != 1:
            break
        inner = objects[0].get("error")
        body = inner if isinstance(inner, dict) else objects[0].get("details")
    return found


def _is_none_left(remaining: str | None) -> bool:
    left = _number(remaining)
    return left is not None and left <= 0


def moment_or_duration(text: str, now: float) -> float | None:
    """Seconds until `2026-11-22T14:20:00Z`, a date of HTTP, or seconds or milliseconds since 1970; or `6m0s`,
    or plain seconds.

    None where it is none of these; negative for a time in the past.
    """
    text = text.strip()[:64]
    number = _number(text)
    if number is not None:
        return moment(number) - now if number > 1e9 else number
    if (end := iso_moment(text)) is not None:
        return end - now
    seconds = duration_seconds(text)
    return seconds if seconds is not None else _http_date_seconds(text, now)


def _http_date_seconds(text: str, now: float) -> float | None:
    parsed = email.utils.parsedate_tz(text)
    try:
        return email.utils.mktime_tz(parsed) - now if parsed is not None else None
    except (ValueError, OverflowError):  # a year that no calendar has
        return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


# --- What a failed model call means for the run -------------------------------------------------------------
#
# One table, read by one pure function. Providers, proxies and local servers report the same trouble in many
# shapes. `RULES` lists the shapes, most specific first; `classify` finds the first that fits. To support a
# server's own wording, add a row.

ASK_AGAIN_SECONDS = 60.0
"""The wait where a usage limit holds whose stated end has just passed, or too many requests name no time."""

READ_CHARS = 2_000
"""How much of a message is searched: it comes from outside, and may be crafted to cost time."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The observed facts of a failed call, before any judgement."""

    message: str
    """In the server's or the network's own words."""
    status: int | None = None
    """HTTP status; None where no response came, 200 where a stream carried the error."""
    error_type: str | None = None
    """`error.type` of the body: `billing_error`, `overloaded_error`, …"""
    error_code: str | None = None
    """`error.details.error_code` of the body (Anthropic), else `error.code` (OpenAI)."""
    retry_after_seconds: float | None = None
    reset_seconds: float | None = None
    """Until the limit ends, by the response's headers of limits that are used up; `retry-after` goes before
    them."""
    usage_reset_seconds: float | None = None
    """Until a usage limit ends, by the body's own words or fields."""
    should_retry: bool | None = None
    """The server's own advice (`x-should-retry`), where it gave any."""


@dataclass(frozen=True, slots=True)
class Api:
    """What the advice about a failure names."""

    name: str
    key_variable: str
    """The environment variable that holds the key."""
    path: str
    """What the SDK adds to the address of the server."""


MESSAGES_API = Api("Messages API", "ANTHROPIC_API_KEY", "/v1/messages")
RESPONSES_API = Api("Responses API", "OPENAI_API_KEY", "/responses")
CHAT_API = Api("Chat Completions API", "OPENAI_API_KEY", "/chat/completions")


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: a failure fits when its status, type, code or wording is named here."""

    name: str
    kind: ErrorKind
    advice: str = ""
    """What a person should do next, with `{key}`, `{path}` and `{api}` of the `Api`; empty if the runtime acts
    without help."""
    statuses: frozenset[int | None] = frozenset()
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
    """What to do about a failure: the rule that it fits, and what `x-should-retry` changes about it."""

    rule: Rule
    kind: ErrorKind
    retry_now: bool
    """Whether the same request may be sent again within this call."""


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

BAD_REQUEST_ADVICE = "re-run the task with other instructions or another model"

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
        types=frozenset({"billing_error", "insufficient_quota"}),
        codes=frozenset(
            {
                "contract_spend_limit_reached",  # these come as 429, and do not pass by waiting
                "enforced_spend_limit_reached",
                "linked_organization_billing_unavailable",
                "linked_organization_spend_limit_reached",
                "user_profile_billing_not_authorized",
                "user_profile_not_billable",
                "insufficient_quota",  # OpenAI, 429 too
                "billing_hard_limit_reached",
                "billing_not_active",
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
        "set a valid {key}, then resume",
        statuses=frozenset({401, 407}),
        types=frozenset({"authentication_error"}),
        codes=frozenset({"invalid_api_key"}),
    ),
    Rule(
        "no permission",
        ErrorKind.PAUSE,
        "give this key access to the model, or choose another model, then resume",
        statuses=frozenset({403}),
        types=frozenset({"permission_error"}),
    ),
    Rule(
        "no such model",
        ErrorKind.PAUSE,
        "check the model's name and the base_url, then resume",
        statuses=frozenset({404, 405, 410}),
        types=frozenset({"not_found_error"}),
        codes=frozenset({"model_not_found"}),
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
        codes=frozenset({"ramp_limit_exceeded", "rate_limit_exceeded"}),
        rate_limited=True,
    ),
    Rule(
        "overloaded",
        ErrorKind.RETRY,
        statuses=frozenset({503, 529}),
        types=frozenset({"overloaded_error"}),
        codes=frozenset({"server_is_overloaded", "slow_down"}),
    ),
    Rule(
        "timed out", ErrorKind.RETRY, statuses=frozenset({408, 504, 524}), types=frozenset({"timeout_error"})
    ),
    Rule("broken stream", ErrorKind.RETRY, types=frozenset({"broken_stream"})),
    Rule("busy", ErrorKind.RETRY, statuses=frozenset({409, 425, 499})),
    Rule(
        "server error",
        ErrorKind.RETRY,
        types=frozenset({"api_error"}),
        codes=frozenset({"server_error"}),
        among=frozenset({200}),
    ),
    Rule(
        "bad request",
        ErrorKind.FAIL,
        BAD_REQUEST_ADVICE,
        types=frozenset({"invalid_request_error"}),
        codes=frozenset(
            {"invalid_prompt", "invalid_image", "image_too_large", "unsupported_image_media_type"}
        ),
    ),
    # What no server names: by the hundreds of the status.
    Rule("connection lost", ErrorKind.RETRY, statuses=frozenset({None})),
    Rule("bad request", ErrorKind.FAIL, BAD_REQUEST_ADVICE, statuses=frozenset({501, *range(400, 500)})),
    Rule("server error", ErrorKind.RETRY, statuses=frozenset({200, *range(500, 1_000)})),
)
"""First fit wins. A status that no row names, such as a redirect, is not the Messages API."""

NOT_THE_API = Rule(
    "not the {api}", ErrorKind.PAUSE, "check the base_url (it must not include {path}), then resume"
)


def classify(failure: Failure, api: Api = MESSAGES_API) -> Verdict:
    """Judge a failure of a call to `api`. Total: every response of a server gets a verdict.

    Without a rule: 501 and 4xx can never work, so the task fails; 5xx, an error inside a stream and a lost
    connection pass by themselves; a redirect or another 2xx means that `base_url` is not the Messages API.
    """
    rule = next((rule for rule in RULES if rule.fits(failure)), NOT_THE_API)
    kind = rule.kind
    if kind is ErrorKind.FAIL and failure.should_retry and failure.status != 400:
        kind = ErrorKind.RETRY
    if "{" in rule.advice:
        words = {"api": api.name, "key": api.key_variable, "path": api.path}
        rule = replace(rule, name=rule.name.format(**words), advice=rule.advice.format(**words))
    return Verdict(rule, kind, retry_now=kind is ErrorKind.RETRY and failure.should_retry is not False)


def asked_seconds(failure: Failure, verdict: Verdict) -> float | None:
    """How long the provider asks us to wait, in seconds from now; None if it names no time.

    A body that names the end of a usage limit overrides a shorter `retry-after`. A bad key, or used-up
    credit, has no end, whatever a header says; a usage limit (429) has.
    """
    header = failure.retry_after_seconds
    if verdict.kind is ErrorKind.RETRY:
        if header is None and verdict.rule.rate_limited:
            header = failure.reset_seconds
        waits = [wait for wait in (header, failure.usage_reset_seconds) if wait is not None]
        return max(0.0, *waits) if waits else None
    if not verdict.rule.usage_limit:
        return None
    said = failure.usage_reset_seconds
    if said is None and failure.status == 429 and failure.error_code is None:
        said = header
    return limit_wait_seconds(said)


def limit_wait_seconds(until_end: float | None) -> float | None:
    """How long to wait for a usage limit that still holds, by the seconds until its stated end: a minute where
    that has just passed, None where it passed long ago or is unknown."""
    if until_end is not None and -JUST_PASSED_SECONDS < until_end <= 0:
        return ASK_AGAIN_SECONDS
    return until_end if until_end is not None and until_end > 0 else None


# --- Reading the body of an HTTP error, within limits -------------------------------------------------------
#
# A server may send a body that never ends. The SDK reads the whole body before it raises, however long that
# takes, and its time-outs apply only to silence.

log = logging.getLogger(__name__)

MOST_ERROR_BYTES = 1 << 16
"""Decompressed; what is shown of a body is one line."""

ERROR_SECONDS = 10.0
"""For the whole of a body; its status is known by then."""

_OF_THE_BODY = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def error_bounding_client(default_client: Any, **options: Any) -> AsyncClient:
    """An SDK's own HTTP client, which returns errors with as much of their bodies as came within the bounds.

    `default_client` is the SDK's `DefaultAsyncHttpxClient`, `options` are its arguments. If reading such a
    body fails, the part read so far is kept: the status says more than the way in which the connection ended.
    """
    import httpx2

    class ErrorBounding(default_client):  # type: ignore[misc]
        async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
            response: httpx2.Response = await super().send(request, **how)
            if response.is_success or response.is_closed:
                return response
            headers = [
                (name, value)
                for name, value in response.headers.multi_items()
                if name.lower() not in _OF_THE_BODY
            ]
            return httpx2.Response(
                response.status_code, headers=headers, content=await beginning_of(response), request=request
            )

    client: AsyncClient = ErrorBounding(**options)
    return client


async def beginning_of(response: Any) -> bytes:
    """The first bytes of a body, and the end of its connection."""
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_SECONDS), aclosing(response.aiter_bytes()) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) >= MOST_ERROR_BYTES:
                    break
                await asyncio.sleep(
                    0
                )  # a flood is always there at once, and would keep the clock from being looked at
    except Exception as error:  # whatever ends it: what came is what there is
        log.debug("the body of an error response ended early: %r", error)
    finally:
        with suppress(Exception):  # the connection is of no more use, whatever closing it says
            await response.aclose()
    return bytes(body[:MOST_ERROR_BYTES])


CONFIGURATION_ERRORS = frozenset(
    {"InvalidURL", "UnsupportedProtocol", "LocalProtocolError", "CookieConflict"}
)
CREDENTIAL_ERRORS = frozenset({"CredentialsError", "IdentityTokenFileError"})

MESSAGE_CHARS = 400


def failure_of(error: BaseException, now: float | None = None) -> Failure:
    """What an exception of one attempt says. Never raises, whatever the exception is made of.

    `now`: wall time, against which dates are read; None: the machine's.
    """
    now = time.time() if now is None else now
    if isinstance(error, StreamedError):
        return Failure(
            str(error),
            status=200,
            error_type=error.error_type,
            error_code=error.error_code,
            usage_reset_seconds=body_reset_seconds(None, str(error), now),
        )
    if isinstance(error, BrokenStream):
        return Failure(str(error), error_type="broken_stream")
    if getattr(error, "response", None) is not None and hasattr(error, "status_code"):
        return _status_failure(error, now)
    return _transport_failure(error)


def describe(failure: Failure, verdict: Verdict) -> str:
    """One line for a person: what happened, in whose words, and what to do where a person must act."""
    status = "" if failure.status in (None, 200) else f" ({failure.status})"
    said = "".join(sign if sign.isprintable() else " " for sign in one_line(failure.message, MESSAGE_CHARS))
    said = "; ".join(filter(None, (said.rstrip(".") if verdict.rule.advice else said, verdict.rule.advice)))
    return f"{verdict.rule.name}{status}: {said}" if said else f"{verdict.rule.name}{status}"


def retry_after_seconds(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """The delay that a response asks for, by `retry-after-ms`, or `retry-after` in seconds or as a date.

    A time in one of the other forms that `moment_or_duration` knows counts too. None if there is none or it
    cannot be understood; never negative.
    """
    try:
        milliseconds = float(headers.get("retry-after-ms", ""))
    except ValueError:
        milliseconds = math.nan
    if not math.isnan(milliseconds):
        return max(0.0, milliseconds / 1000)
    asked = headers.get("retry-after", "")
    if asked.strip().lower() in ("inf", "infinity"):
        return math.inf
    seconds = moment_or_duration(asked, time.time() if now is None else now)
    if seconds is None:  # a header that two proxies set arrives as a list
        numbers = [number for part in asked.split(",") if (number := _number(part)) is not None]
        seconds = max(numbers, default=None)
    return max(0.0, seconds) if seconds is not None else None


def _status_failure(error: Any, now: float) -> Failure:
    headers = error.response.headers
    body = error.body[0] if isinstance(error.body, list) and error.body else error.body
    body = body if isinstance(body, dict) else {}
    inner = body.get("error", body)
    if not isinstance(inner, dict):
        inner = {"message": str(inner)}
    details = inner.get("details")
    code = details.get("error_code") if isinstance(details, dict) else inner.get("code")
    advised = headers.get("x-should-retry")
    if 300 <= error.status_code < 400 and "location" in headers:
        inner = {"message": f"it redirects to {excerpt(headers['location'])}; the key is not sent there"}
    said = inner.get("message") or inner.get("detail") or excerpt(str(error.body or error))
    message = _parts_text(said) if isinstance(said, list) else _without_tags(str(said))
    return Failure(
        message=message,
        status=int(error.status_code),
        error_type=text_or_none(inner.get("type")),
        error_code=text_or_none(code),
        retry_after_seconds=retry_after_seconds(headers, now),
        reset_seconds=header_reset_seconds(headers, now) or header_reset_seconds(_told_headers(inner), now),
        usage_reset_seconds=body_reset_seconds(body, message, now),
        should_retry={"true": True, "false": False}.get(advised or ""),
    )


_TAG = re.compile(r"<[a-zA-Z/!][^<>]{0,500}>")


def _without_tags(text: str) -> str:
    """The words of a page of HTML, which proxies send as an error; any other text as it is."""
    if not re.match(r"\s*<(?:!doctype|html|head|body|h\d|title)\b", text, re.IGNORECASE):
        return text
    return " ".join(_TAG.sub(" ", text[:READ_CHARS]).split()) or text


def _parts_text(parts: list[Any]) -> str:
    """The list of mistakes that servers made with pydantic send: each with its field."""
    found = []
    for part in parts[:MOST_DETAILS]:
        fields = part if isinstance(part, dict) else {"msg": part}
        place = fields.get("loc")
        where = ".".join(str(one) for one in place if one != "body") if isinstance(place, list) else ""
        found.append(": ".join(filter(None, (where, str(fields.get("msg") or fields)))))
    return "; ".join(found)


_LIBRARY_WORDS = (
    (re.compile(r"disconnected without sending a response"), "the server closed it before answering"),
    (re.compile(r"peer closed connection|incomplete chunked read"), "the server closed it in the middle of the reply"),
    (
        re.compile(r"missing an? 'https?://'|unsupported protocol|UnsupportedProtocol"),
        "the address must begin with http:// or https://",
    ),
)  # fmt: skip


def _plain_words(said: str) -> str:
    """What the HTTP library says, in words for a person where they are known."""
    return next((words for pattern, words in _LIBRARY_WORDS if pattern.search(said)), said)


def _told_headers(inner: Mapping[str, Any]) -> dict[str, str]:
    """The headers of its own answer that OpenRouter puts into the body."""
    metadata = inner.get("metadata")
    told = metadata.get("headers") if isinstance(metadata, dict) else None
    return {str(name).lower(): str(value) for name, value in told.items()} if isinstance(told, dict) else {}


def _transport_failure(error: BaseException) -> Failure:
    chain = list(causes(error))
    names = {type(link).__name__ for link in chain}
    deepest, where = chain[-1], _where(error)
    said = str(deepest)
    if not said or type(deepest).__module__ == "builtins":  # a bare KeyError's text says nothing
        said = f"{type(deepest).__name__} {said}".strip()
    # The HTTP library quotes a header that it refuses: the key.
    unsent = (
        "the key contains line breaks or invalid characters"
        if "header" in str(deepest).lower()
        else _plain_words(str(deepest))
    )
    cannot_send = bool(names & CONFIGURATION_ERRORS) or isinstance(deepest, UnicodeEncodeError)
    undecodable = isinstance(error, (ValueError, AssertionError))  # how the SDK reports such events

    def caused_by(kind: type[BaseException]) -> bool:
        return any(isinstance(link, kind) for link in chain)

    table = (
        (caused_by(ssl.SSLCertVerificationError), f"the certificate of {where} is not trusted: {deepest}", "configuration"),
        (bool(names & CREDENTIAL_ERRORS), str(error), "authentication_error"),
        (isinstance(error, TypeError), f"cannot encode the request: {error}", "invalid_request_error"),
        (cannot_send, f"cannot send the request to {where}: {unsent}", "configuration"),
        (undecodable, f"cannot read the stream: {error}", "broken_stream"),
        (caused_by(socket.gaierror), f"cannot resolve the host name of {where}", "connection"),
        (caused_by(ConnectionRefusedError), f"{where} refused the connection", "connection"),
        (any("Timeout" in name for name in names), f"{where} did not answer in time", "timeout_error"),
        (True, f"the connection to {where} failed: {one_line(_plain_words(said), MESSAGE_CHARS)}", "connection"),
    )  # fmt: skip
    return next(Failure(message, error_type=kind) for fits, message, kind in table if fits)


def _where(error: BaseException) -> str:
    for link in causes(error):
        try:
            url = link.request.url  # type: ignore[attr-defined]
            if url.host:
                return f"{url.host}:{url.port}" if url.port else str(url.host)
        except (AttributeError, RuntimeError):  # httpx raises RuntimeError where no request was set
            continue
    return "the server"


# --- Waiting before a retry ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounded retries: exponential, jittered, and obedient to a delay that the server asks for."""

    max_retries: int = 5
    """Requests sent after the first one."""
    base_seconds: float = 2.0
    cap_seconds: float = 45.0
    """The longest wait of our own choosing. With the default base, five waits take up to about a minute;
    together with the attempts, a call to a dead provider fails after about two."""
    longest_server_delay_seconds: float = 900.0
    """If a server asks for a longer delay, the call does not wait: it fails with the time when the delay
    ends."""

    def wait_seconds(self, retry: int, rng: random.Random, retry_after_seconds: float | None) -> float | None:
        """The wait before retry number `retry` (from 1), or None to stop retrying now.

        The wait is never shorter than a server's delay; up to a tenth (at most 5 s) is added so that agents
        with the same delay do not retry in the same second. Without a server's delay, the wait is drawn from
        the upper half of the exponential step.
        """
        if retry > self.max_retries:
            return None
        if retry_after_seconds is not None and retry_after_seconds > 0:
            if retry_after_seconds > self.longest_server_delay_seconds:
                return None
            return retry_after_seconds + rng.random() * min(5.0, retry_after_seconds / 10)
        step = min(self.cap_seconds, self.base_seconds * 2.0 ** min(retry - 1, 30))
        return step * (0.5 + rng.random() / 2)
