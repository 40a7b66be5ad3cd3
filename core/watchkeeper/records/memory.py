"""What an agent remembers: immutable messages, the observations that replace them, and versions of the view.

A *view* is an ordered list of observations and the `seq` from which messages are verbatim. Compaction writes
observations and a new view; undo points at an earlier view. Messages are never changed and never deleted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Role = Literal["user", "assistant"]

Block = dict[str, Any]
"""One Anthropic content block: `text`, `thinking`, `tool_use`, `tool_result`, `image`, `document`, …"""

Content = str | list[Block]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of one agent, as it was added."""

    seq: int
    """Its place in the agent's history, from 1, without gaps."""
    role: Role
    content: Content
    tokens: int
    """Counted once, raw (before calibration)."""
    total_tokens: int
    """Running total of `tokens` through this message, so that any range is one subtraction."""
    created_at: float


class ObservationKind(StrEnum):
    DIGEST = "digest"
    """Made without a model; `provisional` until a summary takes its place."""
    SUMMARY = "summary"
    OBSERVATION = "observation"
    REFLECTION = "reflection"


@dataclass(frozen=True, slots=True)
class Observation:
    """A text that stands for a range of messages in a context."""

    id: int
    """Unique within its agent, from 1."""
    kind: ObservationKind
    text: str
    tokens: int
    covers: tuple[int, int]
    """First and last `seq` (both included) of the messages that it stands for."""
    citations: tuple[int, ...]
    """The `seq`s that the text rests on; never empty."""
    level: int = 0
    """Compression level: 0 for observations of messages, higher for reflections."""
    replaces: tuple[int, ...] = ()
    """Ids of the observations that a reflection consolidates."""
    provisional: bool = False
    created_at: float = 0.0


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
