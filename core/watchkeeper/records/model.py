"""One call to a language model: what is asked, what streams back, what is recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from watchkeeper.records.memory import Block


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


ModelEvent = Delta | Retrying | Reply


class ErrorKind(StrEnum):
    """What the runtime must do about a failed call."""

    RETRY = "retry"
    """Passes by itself: 429, 5xx, 529, time-out, broken stream."""
    PAUSE = "pause"
    """Needs a person: no credit, bad key, no permission. The session pauses, resumable."""
    COMPACT = "compact"
    """Prompt too long: compact, and try once more."""
    PARK = "park"
    """A usage limit that ends at a known time: the agents that need the model are parked until then."""
    FAIL = "fail"
    """This request can never work: the task fails, and the planner is told."""


class ModelError(Exception):
    """A model call failed for good (the provider's own retries included)."""

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
        """Yield deltas as they come, `Retrying` before each wait, and last one `Reply`.

        Raises:
            ModelError: when it failed for good. A reply is whole or it is not there at all.
        """
        ...


class PriceStatus(StrEnum):
    """What a cost figure is worth."""

    EXACT = "exact"
    ESTIMATED = "estimated"
    UNPRICED = "unpriced"


@dataclass(frozen=True, slots=True)
class Cost:
    """USD of one call, or None when nobody knows this model's price (never 0 for that)."""

    usd: float | None
    status: PriceStatus
