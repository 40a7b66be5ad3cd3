"""What a `ContextState` is given and what it hands back: limits, changes to store, refusals."""

from __future__ import annotations

from dataclasses import dataclass

from watchkeeper.records.memory import Message, Observation, ObservationKind, View


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """How large a context may grow, in the provider's tokens (see `ContextState.limit` for our own)."""

    max_tokens: int
    """The window: prompt and reply together."""
    reserve_tokens: int
    """Kept free for the reply."""
    summarization_threshold: float = 0.75
    """The fraction of `max_tokens` from which on a compaction should run."""
    overhead_tokens: int = 0
    """System prompt, tool definitions and pinned instructions, which are sent beside the messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one call on a `ContextState` changed: exactly the records to store, in one transaction."""

    messages: tuple[Message, ...] = ()
    observations: tuple[Observation, ...] = ()
    """New ones; those of earlier views are stored already."""
    views: tuple[View, ...] = ()
    """New versions, oldest first; empty where only the pointer moved, or nothing did."""
    view: View
    """The view now current."""
    tokens: int
    """Of the rendered context now."""
    tokens_before: int
    messages_removed: int = 0
    """How many messages were verbatim before and are not any more."""
    high_water: int | None = None
    """The last message that observations now cover, where this change compacted."""
    reason: str = ""
    cache_tokens_invalidated: int = 0
    """Tokens that the context had before and that no prompt cache can serve any more, because something
    before them changed."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a prepared pass was not published. Nothing changed."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a pass made off the path, judged and counted, to be published in one move or not at all."""

    text: str
    tokens: int
    """Of `text`."""
    covers: tuple[int, int]
    """First and last message that the text stands for."""
    citations: tuple[int, ...]
    replaces: tuple[int, ...] = ()
    """Ids of the observations that the pass read and that its text takes the place of."""
    source_tokens: int
    """Of everything that the pass read: its result must be smaller by 5 % at least."""
    base_version: int
    """The view that was current when the pass began."""
    epoch: int
    """`ContextState.epoch` when the pass began; another one now means that the pass was abandoned."""
    kind: ObservationKind = ObservationKind.SUMMARY
    level: int = 0
    reason: str = "summary"
    refused: tuple[str, ...] = ()
    """Why texts that the model gave before this one were not used."""


class WindowTooSmall(Exception):
    """Not even the newest group of messages, elided, fits the window."""

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(
            f"The context window is too small: the newest messages need {needed} tokens and {limit} may be"
            " used. "
            "Raise max_tokens, or lower reserve_tokens."
        )
        self.needed = needed
        """Tokens that the smallest possible context takes."""
        self.limit = limit
