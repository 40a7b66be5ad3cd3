"""What the SDK raised, as a `Failure`: the one place that knows its exceptions and those beneath it.

Not everything that goes wrong is an `APIError`: a disconnect inside a stream is `httpx2.RemoteProtocolError`,
a stall `httpx2.ReadTimeout`, and an illegal header or base_url an error of the HTTP library. Exceptions are
recognised by the names of their classes, so that this module imports neither library.
"""

from __future__ import annotations

import math
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any

from watchkeeper.models.assemble import BrokenStream, StreamedError, excerpt
from watchkeeper.models.errors import Failure, Verdict
from watchkeeper.models.resets import body_reset_seconds, header_reset_seconds, moment_or_duration
from watchkeeper.records.host_faults import causes

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
    said = one_line(failure.message)
    if verdict.advice:
        said = f"{said.rstrip('.')}; {verdict.advice}" if said else verdict.advice
    return f"{verdict.rule}{status}: {said}" if said else f"{verdict.rule}{status}"


def retry_after_seconds(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """The delay that a response asks for, by `retry-after-ms`, or `retry-after` in seconds or as a date.

    A time in one of the other forms that `moment_or_duration` knows counts too. None where there is none, or
    where it cannot be understood; never negative.
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
    return max(0.0, seconds) if seconds is not None else None


def _status_failure(error: Any, now: float) -> Failure:
    headers = error.response.headers
    body = error.body if isinstance(error.body, dict) else {}
    inner = body.get("error", body)
    if not isinstance(inner, dict):
        inner = {"message": str(inner)}
    details = inner.get("details")
    code = details.get("error_code") if isinstance(details, dict) else inner.get("code")
    advised = headers.get("x-should-retry")
    if 300 <= error.status_code < 400 and "location" in headers:
        inner = {"message": f"it redirects to {excerpt(headers['location'])}, where no key is sent on"}
    message = str(inner.get("message") or inner.get("detail") or excerpt(str(error.body or error)))
    return Failure(
        message=message,
        status=int(error.status_code),
        error_type=_text_or_none(inner.get("type")),
        error_code=_text_or_none(code),
        retry_after_seconds=retry_after_seconds(headers, now),
        reset_seconds=header_reset_seconds(headers, now),
        usage_reset_seconds=body_reset_seconds(body, message, now),
        should_retry={"true": True, "false": False}.get(advised or ""),
    )


def _transport_failure(error: BaseException) -> Failure:
    chain = list(causes(error))
    names = {type(link).__name__ for link in chain}
    deepest = chain[-1]
    where = _where(error)
    if any(isinstance(link, ssl.SSLCertVerificationError) for link in chain):
        return Failure(f"the certificate of {where} is not trusted: {deepest}", error_type="configuration")
    if names & CREDENTIAL_ERRORS:
        return Failure(str(error), error_type="authentication_error")
    if isinstance(error, TypeError):
        return Failure(f"the request cannot be encoded: {error}", error_type="invalid_request_error")
    if names & CONFIGURATION_ERRORS or isinstance(deepest, UnicodeEncodeError):
        said = str(deepest)
        if "header" in said.lower():  # the library quotes the header: the key
            said = "the key is not one clean line of text"
        return Failure(f"the request to {where} cannot be sent: {said}", error_type="configuration")
    if isinstance(error, (ValueError, AssertionError)):  # how the SDK reports events that it cannot decode
        return Failure(f"the stream cannot be read: {error}", error_type="broken_stream")
    if any(isinstance(link, socket.gaierror) for link in chain):
        return Failure(f"the name of {where} cannot be resolved", error_type="connection")
    if any(isinstance(link, ConnectionRefusedError) for link in chain):
        return Failure(f"{where} refused the connection", error_type="connection")
    if any("Timeout" in name for name in names):
        return Failure(f"no answer from {where} in time", error_type="timeout_error")
    said = str(deepest)
    if not said or type(deepest).__module__ == "builtins":  # a bare KeyError's text says nothing
        said = f"{type(deepest).__name__} {said}".strip()
    return Failure(f"the connection to {where} broke: {one_line(said)}", error_type="connection")


def _where(error: BaseException) -> str:
    for link in causes(error):
        try:
            url = link.request.url  # type: ignore[attr-defined]
            if url.host:
                return f"{url.host}:{url.port}" if url.port else str(url.host)
        except (AttributeError, RuntimeError):  # httpx raises RuntimeError where no request was set
            continue
    return "the server"


def one_line(text: str) -> str:
    """The text on one line, without control characters (it may come from a hostile server), and cut."""
    flat = " ".join(
        "".join(sign if sign.isprintable() else " " for sign in text[: 4 * MESSAGE_CHARS]).split()
    )
    return flat if len(flat) <= MESSAGE_CHARS else f"{flat[:MESSAGE_CHARS]}…"


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
