"""Immutable messages, observations and views; one model call; the size of a context.

A *view* is an ordered list of observations and the `seq` from which messages are verbatim. Compaction writes
observations and a new view; undo points at an earlier view. Messages are never changed and never deleted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import add
from typing import Any, Literal, NamedTuple, Protocol, get_args

from watchkeeper.records.quota import QuotaReading

Role = Literal["user", "assistant"]

Block = dict[str, Any]
"""One Anthropic content block: `text`, `thinking`, `tool_use`, `tool_result`, `image`, `document`, …"""

VENDOR_KEY = "openai"
"""Field of a block that holds what only OpenAI's APIs understand: a reasoning item, the phase of a text. The
Messages API refuses fields that it does not know."""

Content = str | list[Block]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of one agent, as it was added."""

    seq: int
    """Its position in the agent's history, from 1, without gaps."""
    role: Role
    content: Content
    tokens: int
    """Counted once, raw (before calibration)."""
    total_tokens: int
    """Running total of `tokens` through this message, so that any range is one subtraction."""
    created_at: float


class ObservationKind(StrEnum):
    DIGEST = "digest"
    """Made without a model; `provisional` until a summary replaces it."""
    SUMMARY = "summary"
    OBSERVATION = "observation"
    REFLECTION = "reflection"


@dataclass(frozen=True, slots=True)
class Observation:
    """A text that replaces a range of messages in a context."""

    id: int
    """Unique within its agent, from 1."""
    kind: ObservationKind
    text: str
    tokens: int
    covers: tuple[int, int]
    """First and last `seq` (both included) of the messages that it covers."""
    citations: tuple[int, ...]
    """The `seq`s of the messages that the text cites; never empty."""
    level: int = 0
    """Compression level: 0 for observations of messages, higher for reflections."""
    replaces: tuple[int, ...] = ()
    """Ids of the observations that a reflection consolidates."""
    provisional: bool = False
    created_at: float = 0.0
    ledger: str = field(default="", repr=False)
    """What the agent had done up to the last message that it covers (`memory.ledger`, as JSON); empty where that is
    not known."""


@dataclass(frozen=True, slots=True)
class Elision:
    """How one message too large for the window is shown: head, tail and a pointer to the whole."""

    seq: int
    head_chars: int
    tail_chars: int
    pointer: str
    """`message://<agent>/<seq>` or `artifact://sha256/<hex>`: where `read_back` finds it whole."""
    tokens: int
    """Tokens of the shortened form."""


@dataclass(frozen=True, slots=True)
class View:
    """One version of an agent's context."""

    version: int
    """From 1; never reused."""
    observations: tuple[Observation, ...]
    verbatim_from: int | None
    """The first `seq` that is verbatim; None only when every message is covered."""
    elided: dict[int, Elision] = field(default_factory=dict)
    parent: int | None = None
    """The version that this one was made from."""
    reason: str = "start"
    """`start`, `digest`, `summary`, `activation`, `reflection`, `manual`, `undo`, `redo`, …"""
    created_at: float = 0.0
    pins: tuple[int, ...] = ()
    """The `seq`s of the messages that a person pinned, ascending, pairs of calls and results whole.

    They are shown as they are, wherever the cut is: those before it behind the observation that covers them. They
    are covered as well, so that unpinning leaves no gap, no pass has to work around them, and the prompt before the
    first of them stays the same from one compaction to the next. `elided` holds one only where the window cannot
    hold all of them.
    """


# --- One call to a language model: request, stream, record --------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    input_schema: dict[str, Any]


class Purpose(StrEnum):
    """Why a call is made; orders the queue for slots (turn > planner > reflector > observer)."""

    TURN = "turn"
    PLANNER = "planner"
    REFLECTOR = "reflector"
    OBSERVER = "observer"


Effort = Literal["off", "low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
"""How much a model is asked to think, the lowest first. `models.effort` says which model has which."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a model is given: everything it may depend on."""

    system: str
    messages: Sequence[dict[str, Any]]
    """Valid for the Messages API: `{"role", "content"}`, first role `user`. Shared with later requests: an
    attempt to change one raises `TypeError`."""
    tools: Sequence[ToolSpec] = ()
    max_tokens: int = 4096
    purpose: Purpose = Purpose.TURN
    agent_id: str = ""
    """For records and pacing only; a model's answer never depends on it."""
    stable_prefix: int = 0
    """How many leading messages will be byte-identical next turn: where a prompt-cache breakpoint pays."""
    effort: Effort | None = None
    """None: what the model does by default."""
    pause: Callable[[float], Awaitable[None]] | None = field(default=None, compare=False, repr=False)
    """How the seconds before a retry are spent; None: asleep. A caller gives its slot to others meanwhile."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, as the provider reports them."""

    input_tokens: int = 0
    """Input that was neither read from nor written to the prompt cache."""
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """All that the model read: input, cache reads and cache writes."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    @property
    def total_tokens(self) -> int:
        """What budgets count: prompt and output, cache reads included."""
        return self.prompt_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply as it streams; for display only, never stored."""

    kind: Literal["text", "thinking", "tool_input"]
    text: str


@dataclass(frozen=True, slots=True)
class Retrying:
    """The model call failed in a way that passes; the caller of `stream` sees why, and for how long it
    waits."""

    reason: str
    wait_seconds: float
    attempt: int
    rate_limited: bool = False


@dataclass(frozen=True, slots=True)
class SideCall:
    """What the provider counted for a request beside its reply: a model call of its own."""

    kind: str
    """`advisor`, `compaction`, `fallback` or `other`."""
    usage: Usage
    model: str | None = None
    """The provider's name of the model; None: that of the request."""
    exact: bool = True


@dataclass(frozen=True, slots=True)
class UsageSoFar:
    """What the provider has counted of the attempt that runs; a later one takes its place, and a reply too. It is
    what an attempt used that ends without a reply."""

    usage: Usage
    request_id: str | None = None
    side_calls: tuple[SideCall, ...] = ()
    modifiers: tuple[str, ...] = ()
    searches: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply; always the last thing that `stream` yields."""

    content: list[Block]
    stop_reason: str
    usage: Usage
    usage_exact: bool = True
    """False where the provider did not report usage and it was estimated."""
    request_id: str | None = None
    model: str | None = None
    """The model that the provider says it used."""
    latency_seconds: float = 0.0
    first_token_seconds: float | None = None
    retries: int = 0
    invalid_inputs: Mapping[str, str] = field(default_factory=dict)
    """tool_use id → why its streamed input was not valid JSON; such a call is never run."""
    side_calls: tuple[SideCall, ...] = ()
    modifiers: tuple[str, ...] = ()
    """What the provider reports of the request that changes its price (see `records.usage.modifiers_of`)."""
    searches: int = 0
    """Web searches that the provider made."""
    quota: tuple[QuotaReading, ...] = ()
    """What the response states of the provider's usage windows."""


ModelEvent = Delta | UsageSoFar | Retrying | Reply


class ErrorKind(StrEnum):
    """What the runtime must do about a failed call."""

    RETRY = "retry"
    """A fault that passes without help: 429, 5xx, 529, time-out, broken stream."""
    PAUSE = "pause"
    """Needs a person: no credit, bad key, no permission. The session pauses, resumable."""
    COMPACT = "compact"
    """Prompt too long: compact, and try once more."""
    PARK = "park"
    """A usage limit that ends at a known time: the agents that need the model are parked until then."""
    FAIL = "fail"
    """This request can never work: the task fails, and the planner receives the reason."""


class ModelError(Exception):
    """The final failure of a model call (the provider's own retries included)."""

    def __init__(
        self,
        message: str,
        *,
        kind: ErrorKind,
        status: int | None = None,
        retry_after_seconds: float | None = None,
        error_type: str | None = None,
        retries: int = 0,
        latency_seconds: float = 0.0,
        until: float | None = None,
    ) -> None:
        super().__init__(message)
        self.until = until
        """For PARK: the wall time at which the limit ends."""
        self.kind = kind
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.error_type = error_type
        """The provider's own name of the error: `billing_error`, `overloaded_error`, …"""
        self.retries = retries
        self.latency_seconds = latency_seconds


class Model(Protocol):
    """Any language model."""

    @property
    def ref(self) -> str:
        """`provider/model`, as in `anthropic/claude-sonnet-5` or `offline/surveyor`."""
        ...

    @property
    def context_window(self) -> int:
        """Tokens of prompt and reply together."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Yield deltas and counts of tokens as they come, `Retrying` before each wait, and finally one `Reply`.

        Raises:
            ModelError: the call failed, retries included. A reply is complete or absent.
        """
        ...


class PriceStatus(StrEnum):
    """What a cost figure is worth."""

    EXACT = "exact"
    ESTIMATED = "estimated"
    UNPRICED = "unpriced"


@dataclass(frozen=True, slots=True)
class Cost:
    """USD of one call, or None when this model's price is unknown (never 0 for that)."""

    usd: float | None
    status: PriceStatus


@dataclass(frozen=True, slots=True)
class Rates:
    """List prices in USD per million tokens."""

    input_usd: float
    output_usd: float
    cache_read_usd: float
    cache_write_usd: float
    hour_write_usd: float
    search_usd: float | None = None
    """USD of one web search that the provider makes; None where the list has no price for it."""

    def times(self, factor: float) -> Rates:
        """These rates with another price of tokens; searches stay as they are."""
        return Rates(
            self.input_usd * factor,
            self.output_usd * factor,
            self.cache_read_usd * factor,
            self.cache_write_usd * factor,
            self.hour_write_usd * factor,
            self.search_usd,
        )

    def __str__(self) -> str:
        return f"${self.input_usd:g} in, ${self.output_usd:g} out per million tokens"


Periods = tuple[tuple[int, tuple[tuple[float, Rates], ...]], ...]
"""A model's rates by the day (since 1970) from which they hold, the newest first; each with the size of a prompt
above which they hold, the largest first. Empty for a model without a price."""


def rates_on(periods: Periods, at: float, prompt_tokens: int = 0) -> Rates | None:
    """The rates of a call at that time with a prompt of that size; None if the model had no price then."""
    day = at // 86_400
    tiers = next((tiers for first, tiers in periods if first <= day), ())
    return next((rates for start, rates in tiers if prompt_tokens > start), tiers[-1][1] if tiers else None)


class CostClasses(NamedTuple):
    """A cost in USD by the class of its tokens. The sum is the cost."""

    input: float = 0.0
    cache_read: float = 0.0
    cache_write_5m: float = 0.0
    cache_write_1h: float = 0.0
    output: float = 0.0
    other: float = 0.0
    """What list prices do not explain: the whole cost of a model without one, and the difference, which may be
    below zero, where a log or a provider stated another cost."""

    def plus(self, added: CostClasses) -> CostClasses:
        return CostClasses(*map(add, self, added))


def cost_classes(rates: Rates | None, usage: Usage, cost_usd: float) -> CostClasses:
    """Divide the cost of a call, or of several with the same rates, by these list prices.

    The store does not keep for how long a prompt was cached. What the call cost above the price of five minutes, up
    to that of an hour, was written for an hour.
    """
    if rates is None or not cost_usd:
        return CostClasses(other=cost_usd)
    fresh, read = (
        rates.input_usd * usage.input_tokens / 1e6,
        rates.cache_read_usd * usage.cache_read_tokens / 1e6,
    )
    written, output = (
        rates.cache_write_usd * usage.cache_write_tokens / 1e6,
        rates.output_usd * usage.output_tokens / 1e6,
    )
    whole_hour = rates.hour_write_usd * usage.cache_write_tokens / 1e6
    rest, most, rounding = (
        cost_usd - fresh - read - written - output,
        whole_hour - written,
        1e-9 * max(1.0, cost_usd),
    )
    if abs(rest) <= rounding:
        return CostClasses(fresh, read, written, 0.0, output + rest)
    if 0 < rest <= most + rounding:
        share = min(1.0, rest / most)
        five, hour = (1 - share) * written, share * whole_hour
        return CostClasses(fresh, read, five, hour, cost_usd - fresh - read - five - hour)
    return CostClasses(fresh, read, written, 0.0, output, rest)


# --- How full an agent's context is -------------------------------------------------------------------------
#
# The size of its next call against the model's window. A call sends the system prompt, the tools, and the
# observations and messages that the agent's view shows. Every screen, command and export takes the size from
# here.

ROOM = frozenset({"limit", "total", "headroom", "free", "threshold"})
"""Entries of a composition that nothing is sent of."""

Composition = Iterable[tuple[str, int]]
"""Tokens of a context by kind, as the host counted them: `overhead` (system prompt and tools),
`observations`, `messages`, `elided`, and what is room."""


def context_used(context_tokens: int, composition: Composition) -> int:
    """Tokens that the next call would send, estimated.

    Args:
        context_tokens: as stored with the agent: without the overhead for our own runs, with it for those of
            other programs.
        composition: its parts; other programs do not log all of them, so their total may be larger.
    """
    return max(sum(tokens for kind, tokens in composition if kind not in ROOM), context_tokens)


def compacts_at(composition: Mapping[str, int]) -> int | None:
    """The size at which the host starts to compact, in the tokens of `context_used`; None where it has not
    said."""
    threshold = composition.get("threshold", 0)
    return threshold + composition.get("overhead", 0) if threshold > 0 else None


def context_percent(used: int, limit: int) -> int | None:
    """How much of a window is used, 0 to 100; None where the window is not known."""
    return round(100 * min(1.0, max(0.0, used / limit))) if limit > 0 else None
