"""Claude, and every server that speaks the Messages API, through the official SDK.

The SDK carries requests, credentials and connections. This package does three things itself, because a
durable, watched run needs them otherwise: retries (the SDK's are silent; ours are events), assembling the
reply (see `stream`), and judging errors (see `failures`).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from watchkeeper.models.failures import (
    LONGEST_PARK_SECONDS,
    Failure,
    RetryPolicy,
    Verdict,
    asked_seconds,
    classify,
    describe,
    error_bounding_client,
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
    without_lone_surrogates,
)
from watchkeeper.records.host_faults import host_fault
from watchkeeper.records.messages import (
    Delta,
    ErrorKind,
    ModelError,
    ModelEvent,
    ModelRequest,
    Reply,
    Retrying,
    Usage,
)
from watchkeeper.records.ports import Clock, SystemClock
from watchkeeper.records.text import one_line, utc_text

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic


# --- A `ModelRequest` as the body of a Messages API call ----------------------------------------------------
#
# Prompt-cache breakpoints are set where they pay. A breakpoint says "the part before this will come again".
# At most four are allowed. They mark the end of the tools, of the system prompt, of the stable prefix (pinned
# messages and observations, byte-identical between compactions) and of the last message, so that the next
# turn reads this one from the cache. From a breakpoint the provider looks back at most 20 blocks for what it
# knows. After a turn of more blocks than that (many parallel calls), the end of the previous turn gets the
# breakpoint of the tools instead.

BREAKPOINT = {"type": "ephemeral"}
LOOKBACK_BLOCKS = 18
"""A little less than the provider's 20: which blocks it counts is not documented to the last one."""
UNCACHEABLE = frozenset({"thinking", "redacted_thinking"})
"""Blocks that the API refuses a breakpoint on; they must also be sent back untouched."""


def request_body(model: str, request: ModelRequest, *, prompt_cache: bool = True) -> dict[str, Any]:
    """The arguments of `messages.create` for this request. The request itself is not changed."""
    messages = [
        {"role": message["role"], "content": without_lone_surrogates(message["content"])}
        for message in request.messages
    ]
    body: dict[str, Any] = {"model": model, "max_tokens": request.max_tokens, "messages": messages}
    if request.tools:
        body["tools"] = [
            without_lone_surrogates(
                {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
            )
            for tool in request.tools
        ]
    if request.system:
        body["system"] = [{"type": "text", "text": without_lone_surrogates(request.system)}]
    if prompt_cache:
        _mark(body, request.stable_prefix)
    return body


def _mark(body: dict[str, Any], stable_prefix: int) -> None:
    messages = body["messages"]
    places = {min(stable_prefix, len(messages)) - 1, len(messages) - 1}
    previous_end = len(messages) - 3  # a turn adds the assistant's message and the answer to it
    long_turn = previous_end >= 0 and _blocks(messages[previous_end + 1 :]) > LOOKBACK_BLOCKS
    if long_turn:
        places.add(previous_end)
    if "tools" in body and not (long_turn and body.get("system")):
        body["tools"][-1] = {**body["tools"][-1], "cache_control": BREAKPOINT}
    if body.get("system"):
        body["system"][-1]["cache_control"] = BREAKPOINT
    for index in places:
        if index >= 0:
            messages[index] = _marked(messages[index])


def _blocks(messages: list[dict[str, Any]]) -> int:
    return sum(1 if isinstance(message["content"], str) else len(message["content"]) for message in messages)


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a breakpoint on its last block that may carry one; itself if none may."""
    content = message["content"]
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for place in range(len(content) - 1, -1, -1):
        block = content[place]
        if block.get("type") in UNCACHEABLE or (block.get("type") == "text" and not block.get("text")):
            continue
        marked = {**block, "cache_control": BREAKPOINT}
        return {**message, "content": [*content[:place], marked, *content[place + 1 :]]}
    return message


# --- Whether a call to a model would find a key -------------------------------------------------------------
#
# Checked without the network and without the SDK, whose import takes a second.

ANTHROPIC_HOST = "api.anthropic.com"
API_KEY_VARIABLE = "ANTHROPIC_API_KEY"

_KEY_VARIABLES = (
    API_KEY_VARIABLE,
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_PROFILE",
    "ANTHROPIC_FEDERATION_RULE_ID",
)
"""With any of these the SDK authenticates, or says itself why it cannot."""
_KEY_HEADERS = frozenset({"authorization", "x-api-key"})


def missing_key(
    ref: str,
    *,
    api_key_env: str | None = None,
    base_url: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> str | None:
    """The environment variable that should hold the key for `ref` and does not; None where nothing is
    missing.

    `api_key_env` and `base_url` are the settings of `[anthropic]`. Only Anthropic's own server is known to
    need a key: for any other server the answer is None. It is None too where the SDK may find credentials
    elsewhere (a profile).
    """
    if ref.strip().partition("/")[0] != "anthropic":
        return None
    server = (base_url or environ.get("ANTHROPIC_BASE_URL") or "").strip()
    if server and host_of(server) != ANTHROPIC_HOST:
        return None
    if api_key_env:
        return None if environ.get(api_key_env, "").strip() else api_key_env
    if (
        any(environ.get(name, "").strip() for name in _KEY_VARIABLES)
        or _has_key_header(environ)
        or _has_profile(environ)
    ):
        return None
    return API_KEY_VARIABLE


def host_of(url: str) -> str:
    """The host that a URL names, in lower case; empty where it names none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _has_key_header(environ: Mapping[str, str]) -> bool:
    lines = environ.get("ANTHROPIC_CUSTOM_HEADERS", "").split("\n")
    return any(line.partition(":")[0].strip().lower() in _KEY_HEADERS for line in lines)


def _has_profile(environ: Mapping[str, str]) -> bool:
    """Whether there are profiles of the SDK. What they hold is for the SDK to say."""
    chosen = environ.get("ANTHROPIC_CONFIG_DIR")
    home = environ.get("HOME") if sys.platform != "win32" else None
    try:
        folder = Path(chosen) if chosen else (Path(home) if home else Path.home()) / ".config" / "anthropic"
        return (folder / "active_config").exists() or (folder / "configs").is_dir()
    except (OSError, RuntimeError):
        return False


DEFAULT_CONTEXT_WINDOW = 200_000
SHORTEST_SECRET = 8
"""Characters; what is shorter is a placeholder, and would garble messages if it were blotted out."""
NO_KEY = "no API key for Anthropic: set ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN), then resume"


class AnthropicModel:
    """A model behind the Messages API (`Model` protocol).

    `stream` sends each request at most `retries.max_retries + 1` times. Output shown from a failed attempt is
    void: after a `Retrying`, the deltas restart. Abandoning or cancelling the iteration closes the connection
    at once.

    An empty reply with a stop reason is passed on as `content=[]`: Claude ends a turn so, and asking again
    gives the same. Unknown block types, unknown stop reasons and duplicate tool_use ids are passed on as they
    came; the agent's loop answers tool calls by position.

    Not safe for use from two event loops at the same time.
    """

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        auth_token: str | None = None,
        base_url: str | None = None,
        context_window: int | None = None,
        clock: Clock | None = None,
        retries: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
        rng: random.Random | None = None,
        prompt_cache: bool = True,
        sends_key: bool = True,
    ) -> None:
        """Nothing is imported, read or connected yet. `base_url` and credentials default to the SDK's own
        environment variables (`ANTHROPIC_BASE_URL`, `ANTHROPIC_API_KEY`, `ANTHROPIC_AUTH_TOKEN`,
        profiles)."""
        self.name = name
        self._api_key = api_key.strip() if api_key else None
        self._auth_token = auth_token.strip() if auth_token else None
        self._base_url = base_url
        self._context_window = context_window or DEFAULT_CONTEXT_WINDOW
        self._clock = clock or SystemClock()
        self._retries = retries or RetryPolicy()
        self._timeouts = timeouts or Timeouts()
        self._rng = rng or random.Random()
        self._prompt_cache = prompt_cache
        self._sends_key = sends_key
        self._client: AsyncAnthropic | None = None
        self._client_loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()

    @property
    def ref(self) -> str:
        return f"anthropic/{self.name}"

    @property
    def context_window(self) -> int:
        return self._context_window

    @property
    def base_url(self) -> str | None:
        """The server other than Anthropic's that was chosen, if any: prices depend on it.

        A final `/v1` is left off: many servers name their address with it, and the SDK adds it again.
        """
        chosen = self._base_url or os.environ.get("ANTHROPIC_BASE_URL") or ""
        return chosen.strip().rstrip("/").removesuffix("/v1") or None

    @staticmethod
    def _default_url() -> str | None:
        """None leaves the choice to the SDK, which takes an `ANTHROPIC_BASE_URL` that is set but empty for a
        server."""
        return f"https://{ANTHROPIC_HOST}" if "ANTHROPIC_BASE_URL" in os.environ else None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See `Model.stream`. The last event is the `Reply`; everything before it is for display."""
        started = self._clock.monotonic()
        body = request_body(self.name, request, prompt_cache=self._prompt_cache)
        retry = 0
        while True:
            attempt = _Attempt()
            try:
                async with aclosing(self._attempt(body, attempt)) as deltas:
                    async for delta in deltas:
                        if attempt.first_token_at is None:
                            attempt.first_token_at = self._clock.monotonic()
                        yield delta
                reply = self._reply(request, attempt, started, retry)
                break
            except (GeneratorExit, asyncio.CancelledError, ModelError):
                raise
            except Exception as error:
                if (fault := host_fault(error)) is not None:
                    raise fault from error
                failure = failure_of(error, self._clock.now())
                verdict = classify(failure)
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

    async def _attempt(self, body: dict[str, Any], attempt: _Attempt) -> AsyncGenerator[Delta]:
        """One request: yields what it shows, and leaves the assembled reply in `attempt`."""
        client = await self._connected()
        stream = await client.messages.create(
            **body,
            stream=True,
            extra_headers=_auth_headers(client),
        )
        response, assembler = stream.response, attempt.assembler
        attempt.request_id = response.headers.get("request-id")
        try:
            if is_json(response):
                for delta in assembler.feed_whole(await json_body(response, self._timeouts)):
                    yield delta
                return
            async with aclosing(decoded_events(type(stream).raw_events, response, self._timeouts)) as events:
                async for event in events:
                    shown = assembler.feed(event)
                    if shown is not None:
                        yield shown
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
        )

    def _given_up(self, failure: Failure, verdict: Verdict, retries: int, started: float) -> ModelError:
        seconds = self._clock.monotonic() - started
        after = f" (gave up after {retries} retries in {seconds:.0f} s)" if retries else ""
        kind, until = verdict.kind, None
        asked = asked_seconds(failure, verdict)
        if asked is not None and self._is_limit(asked, verdict):
            if asked > LONGEST_PARK_SECONDS:
                kind = ErrorKind.PAUSE
                after += "; the wait that the server names is too long to be true: resume to try again"
            else:
                kind, until = ErrorKind.PARK, self._clock.now() + asked
                after += f"; it ends at {utc_text(until)}"
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
        client = self._client
        held = (client.api_key, client.auth_token) if client is not None else ()
        for secret in held:
            if secret and len(secret) >= SHORTEST_SECRET:
                said = said.replace(secret, "[the key]")
        return said

    async def _connected(self) -> AsyncAnthropic:
        """The client, made on first use in a thread: importing the SDK takes a second or two."""
        loop = asyncio.get_running_loop()
        async with self._opening:
            if self._client is None or self._client_loop is not loop:
                self._client = await asyncio.to_thread(self._open)
                self._client_loop = loop
            return self._client

    def _open(self) -> AsyncAnthropic:
        import anthropic
        import httpx2

        try:
            client = anthropic.AsyncAnthropic(
                api_key=self._api_key
                if self._sends_key
                else "none",  # given, it keeps the SDK from looking for others
                auth_token=self._auth_token if self._sends_key else None,
                base_url=self.base_url or self._default_url(),
                max_retries=0,
                timeout=httpx2.Timeout(self._timeouts.first_event, connect=self._timeouts.connect, pool=None),
                # Followed, a redirect would take the key (`x-api-key`) and the whole context wherever it
                # points.
                http_client=error_bounding_client(follow_redirects=False),
            )
        except (anthropic.AnthropicError, ValueError, OSError) as error:
            if (fault := host_fault(error)) is not None:
                raise fault from error
            raise ModelError(
                f"{self.ref}: cannot set up the connection: {one_line(str(error), 400)}; check base_url and"
                " credentials, then resume",
                kind=ErrorKind.PAUSE,
            ) from error
        if not self._sends_key:
            client.api_key = None
        if _credentialless(client) and client.base_url.host == ANTHROPIC_HOST:
            raise ModelError(f"{self.ref}: {NO_KEY}", kind=ErrorKind.PAUSE, error_type="missing_key")
        client.messages  # noqa: B018  (imports its resources here, in the thread)
        return client


class _Attempt:
    """What one request has brought so far."""

    __slots__ = ("assembler", "ended_at", "first_token_at", "request_id")

    def __init__(self) -> None:
        self.assembler = ReplyAssembler()
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.request_id: str | None = None


def _credentialless(client: AsyncAnthropic) -> bool:
    named = {name.lower() for name in client.default_headers}
    return (
        client.api_key is None
        and client.auth_token is None
        and client.credentials is None
        and not named & {"authorization", "x-api-key"}
    )


def _auth_headers(client: AsyncAnthropic) -> dict[str, Any]:
    """Local servers want no key, but the SDK refuses to send without one unless these headers say so."""
    if not _credentialless(client):
        return {}
    from anthropic import omit

    return {"Authorization": omit}


def _estimated(reported: Usage, request: ModelRequest, reply_chars: int) -> Usage:
    """Four characters a token where the provider said nothing; what it did say is kept."""
    asked = len(request.system) + len(json.dumps([dict(message) for message in request.messages]))
    return Usage(
        input_tokens=reported.input_tokens if reported.prompt_tokens else max(1, asked // 4),
        output_tokens=reported.output_tokens or reply_chars // 4,
        cache_read_tokens=reported.cache_read_tokens,
        cache_write_tokens=reported.cache_write_tokens,
    )
