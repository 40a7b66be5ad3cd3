"""Claude, and every server that speaks the Messages API, through the official SDK."""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.models.client import NOTHING_SAID, SdkModel, has_value, host_of, names_a_key
from watchkeeper.models.effort import choose, other_host
from watchkeeper.models.failures import MESSAGES_API, Failure, RetryPolicy, error_bounding_client
from watchkeeper.models.gate import FOREGROUND
from watchkeeper.models.stream import ReplyAssembler, Timeouts, without_lone_surrogates
from watchkeeper.records.messages import VENDOR_KEY, ErrorKind, ModelError, ModelRequest
from watchkeeper.records.ports import Clock

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic


# --- A `ModelRequest` as the body of a Messages API call ----------------------------------------------------
#
# Prompt-cache breakpoints are set where they pay. A breakpoint says "the part before this will come again".
# At most four are allowed. They mark the end of the tools, of the system prompt, of the stable prefix (pinned
# messages and observations, byte-identical between compactions) and of the last message, so that the next
# turn reads this one from the cache. A background call has none: its system prompt and its one message share nothing with
# the agent's prompt, and no later call begins with them. From a breakpoint the provider looks back at most 20 blocks for what it
# knows. After a turn of more blocks than that (many parallel calls), the end of the previous turn gets the
# breakpoint of the tools instead.
#
# Thinking goes back as it came, with its signature: within a task, all replies with calls wait for results, and
# newer models check that no thinking before a kept one is missing. Signatures are bound to the model, and with newer
# models to the system prompt, the tools and all messages before. After a compaction the API therefore refuses them,
# before it counts a token. From then on, that thinking is always left out, so the prefix stays.

BREAKPOINT = {"type": "ephemeral"}
LOOKBACK_BLOCKS = 18
"""A little less than the provider's 20: which blocks it counts is not documented to the last one."""
UNCACHEABLE = frozenset({"thinking", "redacted_thinking"})
"""Blocks that the API refuses a breakpoint on; they must also be sent back untouched."""


def request_body(
    model: str,
    request: ModelRequest,
    *,
    prompt_cache: bool = True,
    arguments: Mapping[str, Any] | None = None,
    without: Container[str] = (),
) -> dict[str, Any]:
    """The arguments of `messages.create` for this request. The request itself is not changed.

    `arguments` are those of its effort. `without`: signatures of thinking that is not sent.
    """
    messages = [
        {"role": message["role"], "content": without_lone_surrogates(_own_content(message, without))}
        for message in request.messages
    ]
    body: dict[str, Any] = {"model": model, "max_tokens": request.max_tokens, "messages": messages}
    body |= arguments or {}
    if request.tools:
        body["tools"] = [
            without_lone_surrogates(
                {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
            )
            for tool in request.tools
        ]
    if request.system:
        body["system"] = [{"type": "text", "text": without_lone_surrogates(request.system)}]
    if prompt_cache and request.purpose in FOREGROUND:
        _mark(body, request.stable_prefix)
    return body


def _own_content(message: Mapping[str, Any], without: Container[str]) -> Any:
    """The content without what other vendors' models added to it, and without thinking that cannot be sent; the same
    object where there is nothing of that.

    Thinking at the end of a reply is what a limit cut: the API refuses a message that ends in it.
    """
    content = message["content"]
    if isinstance(content, str):
        return content
    end = len(content)
    while message["role"] == "assistant" and end and content[end - 1].get("type") in UNCACHEABLE:
        end -= 1
    kept = [
        {key: value for key, value in block.items() if key != VENDOR_KEY} if VENDOR_KEY in block else block
        for block in content[:end]
        if block.get("type") not in UNCACHEABLE or (VENDOR_KEY not in block and _seal(block) not in without)
    ]
    if len(kept) == len(content) and all(map(lambda one, other: one is other, kept, content)):
        return content
    return kept or [{"type": "text", "text": NOTHING_SAID}]


def _seal(block: Mapping[str, Any]) -> str:
    """What the provider put into a block of thinking, and recognises it by."""
    return str(block.get("signature") or block.get("data") or block.get("thinking") or "")


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
        has_value(environ, *_KEY_VARIABLES)
        or names_a_key(environ.get("ANTHROPIC_CUSTOM_HEADERS", ""), _KEY_HEADERS)
        or _has_profile(environ)
    ):
        return None
    return API_KEY_VARIABLE


def _has_profile(environ: Mapping[str, str]) -> bool:
    """Whether there are profiles of the SDK. What they hold is for the SDK to say."""
    chosen = environ.get("ANTHROPIC_CONFIG_DIR")
    home = environ.get("HOME") if sys.platform != "win32" else None
    try:
        folder = Path(chosen) if chosen else (Path(home) if home else Path.home()) / ".config" / "anthropic"
        return (folder / "active_config").exists() or (folder / "configs").is_dir()
    except (OSError, RuntimeError):
        return False


_REFUSED_THINKING = re.compile(
    r"invalid .?signature.? in .?thinking|thinking.{0,40} blocks? .{0,80}(cannot be modified|must remain)",
    re.IGNORECASE,
)
"""How the API refuses thinking that goes back; the first is about its binding, the second about its text."""
_REFUSED_ARGUMENTS = {
    "output_config": re.compile(r"output_config|\beffort\b"),
    "thinking": re.compile(r"thinking\.(type|adaptive|display)|adaptive thinking|\bthinking: "),
}

DEFAULT_CONTEXT_WINDOW = 200_000
NO_KEY = "no API key for Anthropic: set ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN), then resume"


class AnthropicModel(SdkModel):
    """A model behind the Messages API; see `SdkModel`.

    An empty reply with a stop reason is passed on as `content=[]`: Claude ends a turn so, and asking again
    gives the same. Unknown block types, unknown stop reasons and duplicate tool_use ids are passed on as they
    came; the agent's loop answers tool calls by position.
    """

    api = MESSAGES_API
    provider = "anthropic"

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
        notice: Callable[[str], None] | None = None,
    ) -> None:
        """Nothing is imported, read or connected yet. `base_url` and credentials default to the SDK's own
        environment variables (`ANTHROPIC_BASE_URL`, `ANTHROPIC_API_KEY`, `ANTHROPIC_AUTH_TOKEN`,
        profiles)."""
        super().__init__(
            name,
            context_window=context_window or DEFAULT_CONTEXT_WINDOW,
            clock=clock,
            retries=retries,
            timeouts=timeouts or Timeouts(),
            rng=rng,
            notice=notice,
        )
        self._left_out: set[str] = set()
        self._refused_thinking: set[str] = set()
        self._api_key = api_key.strip() if api_key else None
        self._auth_token = auth_token.strip() if auth_token else None
        self._base_url = base_url
        self._prompt_cache = prompt_cache
        self._sends_key = sends_key

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

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        chosen = choose(self.ref, other_host(self.ref, self.base_url), request.effort)
        return request_body(
            self.name,
            request,
            prompt_cache=self._prompt_cache,
            arguments={name: value for name, value in chosen.body.items() if name not in self._left_out},
            without=self._refused_thinking,
        )

    def _leave_out(self, failure: Failure, request: ModelRequest) -> bool:
        if _REFUSED_THINKING.search(failure.message, 0, 2_000):
            sent = {
                _seal(block)
                for message in request.messages
                if not isinstance(message["content"], str)
                for block in message["content"]
                if block.get("type") in UNCACHEABLE
            }
            new = sent - self._refused_thinking
            self._refused_thinking |= new
            return bool(new)
        refused = {
            name
            for name, wording in _REFUSED_ARGUMENTS.items()
            if name not in self._left_out and wording.search(failure.message, 0, 2_000)
        } & choose(self.ref, other_host(self.ref, self.base_url), request.effort).body.keys()
        for name in sorted(refused):
            self._notice(
                f"{self.ref}: the server rejects `{name}`; it is omitted, and effort may have no effect"
            )
        self._left_out |= refused
        return bool(refused)

    async def _send(self, client: AsyncAnthropic, body: dict[str, Any]) -> Any:
        return await client.messages.create(**body, stream=True, extra_headers=_auth_headers(client))

    def _assembler(self, request: ModelRequest) -> ReplyAssembler:
        return ReplyAssembler()

    def _secrets(self, client: AsyncAnthropic) -> tuple[str | None, ...]:
        return (client.api_key, client.auth_token)

    @staticmethod
    def _raw_events(stream: Any, body: Any) -> Any:
        return type(stream).raw_events(body)

    def _open(self) -> AsyncAnthropic:
        import anthropic
        import httpx2

        client = anthropic.AsyncAnthropic(
            # given, it keeps the SDK from looking for others
            api_key=self._api_key if self._sends_key else "none",
            auth_token=self._auth_token if self._sends_key else None,
            base_url=self.base_url or self._default_url(),
            max_retries=0,
            timeout=httpx2.Timeout(self._timeouts.first_event, connect=self._timeouts.connect, pool=None),
            # Followed, a redirect would take the key (`x-api-key`) and the whole context wherever it points.
            http_client=error_bounding_client(anthropic.DefaultAsyncHttpxClient, follow_redirects=False),
        )
        if not self._sends_key:
            client.api_key = None
        if _credentialless(client) and client.base_url.host == ANTHROPIC_HOST:
            raise ModelError(f"{self.ref}: {NO_KEY}", kind=ErrorKind.PAUSE, error_type="missing_key")
        client.messages  # noqa: B018  (imports its resources here, in the thread)
        return client


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
