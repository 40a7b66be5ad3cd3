"""The records of one agent's context: limits, passes and changes; and where undo and redo lead among its views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from watchkeeper.records.messages import Message, Observation, ObservationKind, View


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
    """Tokens of system prompt, tool definitions and pinned instructions, sent in addition to the messages."""


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
    """Size of the rendered context now."""
    tokens_before: int
    """Its size before anything was compacted, the messages of this change included."""
    messages_removed: int = 0
    """How many messages were verbatim before and are not any more."""
    high_water: int | None = None
    """The last message that observations now cover, where this change compacted."""
    reason: str = ""
    cache_tokens_invalidated: int = 0
    """Tokens that the context had before and that no prompt cache can serve any more, because something
    before them changed."""
    pins_shortened: tuple[int, ...] = ()
    """Pinned messages that are not whole any more, because the window became too small for the pins."""


EDIT, PIN, UNPIN = BY_HAND = "edit", "pin", "unpin"
"""The reasons of views that a person made."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned message and its size."""

    seq: int
    tokens: int
    shown_tokens: int
    """Less than `tokens` where the window became too small for the pins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a change of a context by hand, or a compaction, would lead to."""

    tokens_before: int
    """The tokens of the context as it is."""
    tokens: int
    limit: int
    """How large the context may be."""
    cache_tokens_void: int
    """Tokens of the present prompt, from the first change on, that no prompt cache can serve any more."""
    cache_tokens_written: int
    """Tokens of the new prompt from there on, which the next call pays at the price of a cache write."""
    cost_usd: float | None = None
    """The cost of these, at the list price of the named model; None if none is named, or its price is not known."""
    messages_cached: int
    """How many messages at the beginning of the prompt stay as they are."""
    high_water: int | None = None
    """The last message that observations would cover, of a compaction."""
    messages_removed: int = 0
    messages: list[dict[str, Any]]
    """The prompt, as the model would be given it."""
    sizes: list[int]
    """Tokens of each of them."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a prepared pass was not published. Nothing changed."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPass:
    """The snapshot that one background pass works on: a summary's, an observer's or a reflector's."""

    kind: ObservationKind = ObservationKind.SUMMARY
    """What the pass writes: `SUMMARY`, `OBSERVATION` or `REFLECTION`."""
    covers: tuple[int, int]
    """First and last message that the text will replace."""
    messages: tuple[Message, ...] = ()
    """The messages that it reads, with their numbers."""
    request: tuple[dict[str, Any], ...] = ()
    """A summary's messages as the Messages API takes them: repaired, and shortened where the context shows them
    short."""
    earlier: tuple[Observation, ...] = ()
    """The observations that the text will replace."""
    merged: tuple[Observation, ...] = ()
    """Those of them whose texts it is made of; the others are digests whose messages are read again."""
    previous: str | None = None
    """The text of memory that the writer is shown and that stays: of earlier summaries, or the end of the log."""
    facts: str = ""
    """What the agent did, from its calls, results and lists (a digest of the ledger): shown beside the messages."""
    source_tokens: int
    instructions: str | None = None
    base_version: int
    epoch: int

    @property
    def high_water(self) -> int:
        """The mark that is used: the requested one, moved back so that no pair is cut."""
        return self.covers[1]

    @property
    def writer(self) -> str:
        """The part that the model plays: `summariser`, `observer` or `reflector`."""
        return _WRITERS[self.kind]


_WRITERS = {
    ObservationKind.SUMMARY: "summariser",
    ObservationKind.OBSERVATION: "observer",
    ObservationKind.REFLECTION: "reflector",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a pass made off the path, judged and counted, to be published in one move or not at all."""

    text: str
    tokens: int
    """Size of `text`."""
    covers: tuple[int, int]
    """First and last message that the text replaces."""
    citations: tuple[int, ...]
    replaces: tuple[int, ...] = ()
    """Ids of the observations that the pass read and that its text takes the place of."""
    source_tokens: int
    """Size of everything that the pass read. Its result must be smaller by 5 % at least."""
    base_version: int
    """The view that was current when the pass began."""
    epoch: int
    """`ContextState.epoch` when the pass began; another one now means that the pass was abandoned."""
    kind: ObservationKind = ObservationKind.SUMMARY
    level: int = 0
    reason: str = "summary"
    refused: tuple[str, ...] = ()
    """Why texts that the model gave before this one were not used."""
    current_task: str | None = None
    """What an observer says that the agent is working on."""
    suggested_response: str | None = None
    """What an observer says that the agent should do next."""


class WindowTooSmall(Exception):
    """Not even the newest group of messages, elided, fits the window."""

    def __init__(self, needed: int, limit: int, why: str = "") -> None:
        super().__init__(
            f"The context window is too small: the newest messages need {needed} tokens and {limit} are"
            f" available. {why}{' ' if why else ''}Raise max_tokens, or lower reserve_tokens."
        )
        self.needed = needed
        """Tokens that the smallest possible context takes."""
        self.limit = limit


# --- Undo and redo ------------------------------------------------------------------------------------------

SAME_CONTEXT = frozenset({"elision", "append", "undo", "redo"})
"""Reasons of views that compact nothing: undo looks through them to the compaction behind."""


def provisional(view: View) -> bool:
    """Whether a digest in that view replaces a summary that is not there yet."""
    return any(observation.provisional for observation in view.observations)


def uncovered_from(view: View) -> int:
    """The first message that `view` does not cover, whether it exists yet or not."""
    if view.verbatim_from is not None:
        return view.verbatim_from
    return max((observation.covers[1] for observation in view.observations), default=0) + 1


def needed_from(view: View) -> int:
    """The first message that may still be read for `view`: one that it shows, or one that only a digest
    covers until there is a summary."""
    start = uncovered_from(view)
    for observation in reversed(view.observations):
        if not observation.provisional:
            break
        start = observation.covers[0]
    return start


def undo_target(views: Mapping[int, View], current: View) -> View:
    """The view before the last compaction.

    Raises:
        ValueError: there is none.
    """
    view = last_change(views, current)
    if view.parent is None:
        raise ValueError("Nothing to undo: no compaction has changed this context.")
    return _parent(views, view)


def last_change(views: Mapping[int, View], current: View) -> View:
    """The view of the last compaction or change by hand; the first view if there is none."""
    view = current
    while view.reason in SAME_CONTEXT and view.parent is not None:
        view = _parent(views, view)
    return view


def before_appends(views: Mapping[int, View], current: View) -> View:
    """The view that `current` only added messages to."""
    while current.reason == "append" and current.parent is not None:
        current = _parent(views, current)
    return current


def lasting_pins(views: Mapping[int, View]) -> set[int]:
    """The messages that were pinned as they came, and are not unpinned since."""
    lasting: set[int] = set()
    for view in views.values():
        parent = views.get(view.parent) if view.parent is not None else None
        before = set(parent.pins) if parent is not None else set()
        if view.reason == "append":
            lasting |= set(view.pins) - before
        if view.reason in ("append", UNPIN):
            lasting -= before - set(view.pins)
    return lasting


def undo_targets(views: Mapping[int, View], current: View) -> Iterator[View]:
    """The view before each compaction that led to `current`, the last one first, as far as they are loaded."""
    while True:
        try:
            current = undo_target(views, current)
        except ValueError:
            return
        yield current


def redo_stack(views: Mapping[int, View], current: View) -> list[int]:
    """Versions that redo leads to, the next one last; empty if the newest view does not descend from
    `current`."""
    newest = views[max(views)]
    stack: list[int] = []
    # Undos that had to make a view of their own: each left the version before it.
    while newest.reason == "undo" and newest.version - 1 in views:
        newest = views[newest.version - 1]
        stack.insert(0, newest.version)
    newest = views[max(views)]
    while newest.version != current.version:
        stack.append(newest.version)
        try:
            newest = undo_target(views, newest)
        except ValueError:
            return []
        if newest.version < current.version:
            return []
    return stack


def _parent(views: Mapping[int, View], view: View) -> View:
    if view.parent is None or view.parent not in views:
        raise ValueError(f"Version {view.parent} of the context is not loaded.")
    return views[view.parent]
