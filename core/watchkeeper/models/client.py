"""What every model behind an official SDK shares: one request after another until a whole reply, or an error.

An SDK carries requests, credentials and connections. This package does three things itself, because a
durable, watched run needs them otherwise: retries (an SDK's are silent; ours are events), assembling the
reply (see `stream`), and judging errors (see `failures`). A provider adds its request body, the form of its
stream and its client.
"""

from __future__ import annotations

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from watchkeeper.models.failures import (
    ASK_AGAIN_SECONDS,
    LONGEST_PARK_SECONDS,
    Api,
    Failure,
    RetryPolicy,
    Verdict,
    asked_seconds,
    classify,
    describe,
    failure_of,
)
from watchkeeper.models.stream import (
    ReplyAssembler,
    Timeouts,
    decoded_events,
    drain,
    explain_foreign_body,
    is_json,
    json_body,
)
from watchkeeper.records.errors import host_fault
from watchkeeper.records.messages import (
    Delta,
    ErrorKind,
    ModelError,
    ModelEvent,
    ModelRequest,
    Reply,
    Retrying,
    Usage,
    UsageSoFar,
)
from watchkeeper.records.ports import Clock, SystemClock
from watchkeeper.records.quota import QuotaReading, header_readings
from watchkeeper.records.text import one_line, utc_text

NOTHING_SAID = "(no message)"
"""Sent in the place of a message of which nothing is left that the other vendor accepts."""

SHORTEST_SECRET = 8
"""Characters; what is shorter is a placeholder, and would garble messages if it were blotted out."""


class SdkModel(ABC):
    """A model behind an SDK (`Model` protocol).

    `stream` sends each request at most `retries.max_retries + 1` times. Output shown from a failed attempt is
    void: after a `Retrying`, the deltas restart. Abandoning or cancelling the iteration closes the connection
    at once.

    Not safe for use from two event loops at the same time.
    """

    api: ClassVar[Api]
    provider: ClassVar[str]

    def __init__(
        self,
        name: str,
        *,
        context_window: int,
        clock: Clock | None,
        retries: RetryPolicy | None,
        timeouts: Timeouts,
        rng: random.Random | None,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        """Nothing is imported, read or connected yet. `notice` takes a line for people about what a server refused."""
        self.name = name
        self._notice = notice or (lambda line: None)
        self._context_window = context_window
        self._clock = clock or SystemClock()
        self._retries = retries or RetryPolicy()
        self._timeouts = timeouts
        self._rng = rng or random.Random()
        self._client: Any = None
        self._client_loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()

    @property
    def ref(self) -> str:
        return f"{self.provider}/{self.name}"

    @property
    def context_window(self) -> int:
        return self._context_window

    # --- what a provider adds -------------------------------------------------------------------------------

    @abstractmethod
    def _open(self) -> Any:
        """The SDK's client. Called in a thread: importing an SDK takes a second or two.

        Raises:
            ModelError: there is no key. Any other error counts as one of the configuration.
        """

    @abstractmethod
    def _body(self, request: ModelRequest) -> dict[str, Any]:
        """The arguments of the SDK's method. The request itself is not changed."""

    @abstractmethod
    async def _send(self, client: Any, body: dict[str, Any]) -> Any:
        """The SDK's stream of the reply, with its `response`."""

    @abstractmethod
    def _assembler(self, request: ModelRequest) -> ReplyAssembler:
        """What takes the events of one stream."""

    @abstractmethod
    def _secrets(self, client: Any) -> tuple[str | None, ...]:
        """What no message may quote."""

    @staticmethod
    @abstractmethod
    def _raw_events(stream: Any, body: Any) -> Any:
        """The server-sent events that the SDK's own decoder finds in `body.aiter_bytes()`."""

    def _leave_out(self, failure: Failure, request: ModelRequest) -> bool:
        """Whether the server refused a part of the request that later ones can do without; they then do."""
        return False

    # --- one call -------------------------------------------------------------------------------------------

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See `Model.stream`. The last event is the `Reply`; everything before it is for display."""
        started = self._clock.monotonic()
        retry = 0
        while True:
            attempt = _Attempt(self._assembler(request))
            try:
                async with aclosing(self._attempt(self._body(request), attempt)) as deltas:
                    async for event in deltas:
                        if attempt.first_token_at is None and isinstance(event, Delta):
                            attempt.first_token_at = self._clock.monotonic()
                        yield event
                reply = self._reply(request, attempt, started, retry)
                break
            except (GeneratorExit, asyncio.CancelledError, ModelError):
                raise
            except Exception as error:
                if (counted := attempt.counted()) is not None:
                    yield counted
                if (fault := host_fault(error)) is not None:
                    raise fault from error
                failure = failure_of(error, self._clock.now())
                verdict = classify(failure, self.api)
                if verdict.kind is ErrorKind.FAIL and self._leave_out(failure, request):
                    continue
                retry += 1
                wait = None
                if verdict.retry_now:
                    wait = self._retries.wait_seconds(retry, self._rng, asked_seconds(failure, verdict))
                if wait is None:
                    raise self._given_up(failure, verdict, retry - 1, started) from error
            yield Retrying(
                reason=self._said(failure, verdict),
                wait_seconds=wait,
                attempt=retry,
                rate_limited=verdict.rule.rate_limited,
            )
            await (request.pause or self._clock.sleep)(wait)
        yield reply

    async def close(self) -> None:
        """Close idle connections. The model may be used again afterwards."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _attempt(self, body: dict[str, Any], attempt: _Attempt) -> AsyncGenerator[Delta | UsageSoFar]:
        """One request: yields what it shows and counts, and leaves the assembled reply in `attempt`."""
        stream = await self._send(await self._connected(), body)
        response, assembler = stream.response, attempt.assembler
        attempt.request_id = response.headers.get("request-id") or response.headers.get("x-request-id")
        attempt.quota = tuple(header_readings(response.headers, self._clock.now()))
        try:
            if is_json(response):
                for delta in assembler.feed_whole(await json_body(response, self._timeouts)):
                    yield delta
                return
            events = decoded_events(lambda body: self._raw_events(stream, body), response, self._timeouts)
            async with aclosing(events):
                async for event in events:
                    for delta in assembler.take(event):
                        yield delta
                    if (counted := attempt.counted()) is not None:
                        yield counted
                    if assembler.stopped:
                        attempt.ended_at = self._clock.monotonic()
                        await drain(events)
                        break
            if not assembler.started:
                explain_foreign_body(response)
        finally:
            with suppress(Exception):  # the connection is of no more use, whatever closing it says
                await response.aclose()

    def _reply(self, request: ModelRequest, attempt: _Attempt, started: float, retries: int) -> Reply:
        assembler = attempt.assembler
        content = assembler.finish()
        usage, exact = assembler.usage()
        if not exact:
            usage = _estimated(usage, request, assembler.chars)
        ended = self._clock.monotonic() if attempt.ended_at is None else attempt.ended_at
        first = attempt.first_token_at
        return Reply(
            content=content,
            stop_reason=assembler.stop_reason or "",
            usage=usage,
            usage_exact=exact,
            request_id=attempt.request_id or assembler.message_id,
            model=assembler.request_model,
            latency_seconds=ended - started,
            first_token_seconds=None if first is None else first - started,
            retries=retries,
            invalid_inputs=dict(assembler.invalid_inputs),
            side_calls=assembler.side_calls(),
            modifiers=assembler.modifiers(),
            searches=assembler.searches(),
            quota=attempt.quota,
        )

    def _given_up(self, failure: Failure, verdict: Verdict, retries: int, started: float) -> ModelError:
        seconds = self._clock.monotonic() - started
        after = f" (gave up after {retries} retries in {seconds:.0f} s)" if retries else ""
        kind, until = verdict.kind, None
        asked = asked_seconds(failure, verdict)
        if asked is not None and self._is_limit(asked, verdict):
            if asked > LONGEST_PARK_SECONDS:
                kind = ErrorKind.PAUSE
                after += "; the server asks for an implausibly long wait; resume to try again"
            else:
                kind, until = ErrorKind.PARK, self._clock.now() + asked
                after += f"; the wait ends at {utc_text(until)}"
        elif kind is ErrorKind.RETRY and verdict.rule.rate_limited and retries >= self._retries.max_retries:
            # Without a time, the retries were in vain: ask again, and let no task fail for it.
            kind, until = ErrorKind.PARK, self._clock.now() + ASK_AGAIN_SECONDS
            after += f"; next attempt at {utc_text(until)}"
        if kind is ErrorKind.PARK:
            name = "usage limit" if verdict.rule.usage_limit else verdict.rule.name
            verdict = replace(verdict, rule=replace(verdict.rule, name=name, advice=""))
        said = self._said(failure, verdict)
        return ModelError(
            f"{self.ref}: {said}{after}",
            kind=kind,
            status=failure.status,
            retry_after_seconds=failure.retry_after_seconds,
            error_type=failure.error_type,
            retries=retries,
            latency_seconds=seconds,
            until=until,
        )

    def _is_limit(self, asked: float, verdict: Verdict) -> bool:
        """Whether a wait is one for agents that are parked, rather than one within a call."""
        limited = verdict.rule.usage_limit or verdict.rule.rate_limited
        return asked > 0 and (limited or asked > self._retries.longest_server_delay_seconds)

    def _said(self, failure: Failure, verdict: Verdict) -> str:
        """One line for people. Some servers quote the key that they refuse; it must not get any further."""
        said = describe(failure, verdict)
        held = self._secrets(self._client) if self._client is not None else ()
        for secret in held:
            if secret and len(secret) >= SHORTEST_SECRET:
                said = said.replace(secret, "[the key]")
        return said

    async def _connected(self) -> Any:
        """The client, made on first use in a thread: importing the SDK takes a second or two."""
        loop = asyncio.get_running_loop()
        async with self._opening:
            if self._client is None or self._client_loop is not loop:
                self._client = await asyncio.to_thread(self._opened)
                self._client_loop = loop
            return self._client

    def _opened(self) -> Any:
        try:
            return self._open()
        except ModelError:
            raise
        except Exception as error:  # the SDK's own errors, and whatever its settings make of an address
            if (fault := host_fault(error)) is not None:
                raise fault from error
            raise ModelError(
                f"{self.ref}: cannot set up the connection: {one_line(str(error), 400)}; check base_url and"
                " credentials, then resume",
                kind=ErrorKind.PAUSE,
            ) from error


class _Attempt:
    """What one request has brought so far."""

    __slots__ = ("_reports", "assembler", "ended_at", "first_token_at", "quota", "request_id")

    def __init__(self, assembler: ReplyAssembler) -> None:
        self.assembler = assembler
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.request_id: str | None = None
        self.quota: tuple[QuotaReading, ...] = ()
        self._reports = 0

    def counted(self) -> UsageSoFar | None:
        """What the provider has counted so far, if it has reported since the last question."""
        assembler = self.assembler
        if assembler.usage_reports == self._reports:
            return None
        self._reports = assembler.usage_reports
        request_id = self.request_id or assembler.message_id
        return UsageSoFar(
            assembler.usage()[0],
            request_id,
            assembler.side_calls(),
            assembler.modifiers(),
            assembler.searches(),
        )


def _estimated(reported: Usage, request: ModelRequest, reply_chars: int) -> Usage:
    """Four characters a token where the provider said nothing; what it did say is kept."""
    asked = len(request.system) + len(json.dumps([dict(message) for message in request.messages]))
    return Usage(
        input_tokens=reported.input_tokens if reported.prompt_tokens else max(1, asked // 4),
        output_tokens=reported.output_tokens or reply_chars // 4,
        cache_read_tokens=reported.cache_read_tokens,
        cache_write_tokens=reported.cache_write_tokens,
    )


def host_of(url: str) -> str:
    """The host that a URL names, in lower case; empty where it names none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def names_a_key(headers: str, keys: frozenset[str]) -> bool:
    """Whether an SDK's variable of custom headers, one `name: value` a line, holds one of `keys`."""
    return any(line.partition(":")[0].strip().lower() in keys for line in headers.split("\n"))


def has_value(environ: Mapping[str, str], *names: str) -> bool:
    """Whether any of these variables is set to more than blanks."""
    return any(environ.get(name, "").strip() for name in names)
