"""The message history of one agent: its limits, its records of change, its views, and undo and redo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from watchkeeper.memory import history
from watchkeeper.memory.content import shown
from watchkeeper.records.messages import Content, Message, Observation, ObservationKind, Role, View

# --- Inputs and outputs of `ContextState` -------------------------------------------------------------------


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
    previous: str | None = None
    """The text of memory that the writer is shown: of the observations to replace, or the end of the log."""
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

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(
            f"The context window is too small: the newest messages need {needed} tokens and {limit} may be"
            " used. "
            "Raise max_tokens, or lower reserve_tokens."
        )
        self.needed = needed
        """Tokens that the smallest possible context takes."""
        self.limit = limit


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
    """The view before the last compaction, skipping provisional ones.

    Raises:
        ValueError: there is none.
    """
    view = current
    while view.reason in SAME_CONTEXT and view.parent is not None:
        view = _parent(views, view)
    if view.parent is None:
        raise ValueError("There is nothing to undo: no compaction has changed this context.")
    view = _parent(views, view)
    while provisional(view):
        if view.parent is None:
            raise ValueError("There is nothing to undo: only provisional digests came before.")
        view = _parent(views, view)
    return view


def redo_stack(views: Mapping[int, View], current: View) -> list[int]:
    """Versions that redo leads to, the next one last; empty if the newest view does not descend from
    `current`."""
    newest = views[max(views)]
    left = _left_by_undo(views, newest)
    stack: list[int] = []
    while newest.version != current.version:
        stack.append(newest.version)
        try:
            newest = undo_target(views, newest)
        except ValueError:
            return []
        if newest.version < current.version:
            return []
    return left + stack


def _left_by_undo(views: Mapping[int, View], newest: View) -> list[int]:
    """The versions that undos left which had to make a view of their own, the last one last: each the one
    before it."""
    left: list[int] = []
    while newest.reason == "undo" and newest.version - 1 in views:
        newest = views[newest.version - 1]
        left.insert(0, newest.version)
    return left


def _parent(views: Mapping[int, View], view: View) -> View:
    if view.parent is None or view.parent not in views:
        raise ValueError(f"Version {view.parent} of the context is not loaded.")
    return views[view.parent]


# --- Messages and view versions of one agent ----------------------------------------------------------------


class MessageHistory:
    """Bookkeeping only: it decides nothing. Messages are consecutive from the first one that is loaded."""

    def __init__(self, first_view: View) -> None:
        self.messages: list[Message] = []
        self.first: Message | None = None
        """Message 1, where it is loaded; it may be so although those behind it are not."""
        self.views: dict[int, View] = {first_view.version: first_view}
        self.view = first_view
        self.newest_version = first_view.version
        self.redo: list[int] = []
        """Versions that redo leads to, the next one last."""
        self.last_seq = 0
        self.total_tokens = 0
        self.next_observation = 1
        self.odd: dict[int, Content] = {}
        """What is shown of messages that no encoder takes as they are."""

    @classmethod
    def restore(
        cls,
        *,
        messages: Sequence[Message],
        views: Sequence[View],
        current: int,
        observations: Sequence[Observation],
        total_tokens: int | None,
    ) -> MessageHistory:
        """The books as stored (see `ContextState.restore`)."""
        known_views = {view.version: view for view in views}
        books = cls(known_views[current])
        books.views = known_views
        books.newest_version = max(known_views)
        ordered = sorted(messages, key=lambda message: message.seq)
        newest = ordered[-1].seq if ordered else 0
        if ordered and ordered[0].seq == 1:
            books.first = ordered[0]
        books.last_seq = max(newest, history.uncovered_from(books.view) - 1)
        if newest == books.last_seq:  # else the view covers everything, and an older message alone is no tail
            start = len(ordered) - 1
            while start > 0 and ordered[start - 1].seq == ordered[start].seq - 1:
                start -= 1
            books.messages = ordered[max(0, start) :]
        books.total_tokens = (
            total_tokens if total_tokens is not None else ordered[-1].total_tokens if ordered else 0
        )
        known = [*observations, *(o for view in views for o in view.observations)]
        books.next_observation = max((o.id for o in known), default=0) + 1
        books.redo = history.redo_stack(known_views, books.view)
        for message in (*books.messages, *([books.first] if books.first else [])):
            books._look_at(message)
        return books

    def add(self, role: Role, content: Content, tokens: int, at: float) -> Message:
        """Enter a message behind the newest one."""
        message = Message(
            seq=self.last_seq + 1,
            role=role,
            content=content,
            tokens=tokens,
            total_tokens=self.total_tokens + tokens,
            created_at=at,
        )
        self.last_seq = message.seq
        self.total_tokens = message.total_tokens
        self.messages.append(message)
        if message.seq == 1:
            self.first = message
        self._look_at(message)
        return message

    def load_earlier(self, messages: Sequence[Message]) -> None:
        """Put older messages before those that are loaded.

        Raises:
            ValueError: they do not join on.
        """
        if not messages:
            return
        following = self.messages[0].seq if self.messages else self.last_seq + 1
        if messages[-1].seq + 1 != following or any(b.seq != a.seq + 1 for a, b in pairwise(messages)):
            raise ValueError(f"Messages up to {following - 1} were expected, without gaps.")
        self.messages[:0] = messages
        if messages[0].seq == 1:
            self.first = messages[0]
        for message in messages:
            self._look_at(message)

    def forget_before(self, seq: int) -> None:
        """Drop the messages before `seq` from memory; the first message is kept where it is known."""
        if not self.messages or self.messages[0].seq >= seq:
            return
        del self.messages[: seq - self.messages[0].seq]
        self.odd = {known: content for known, content in self.odd.items() if known >= seq or known == 1}

    def _look_at(self, message: Message) -> None:
        content = shown(message.content)
        if content is not message.content:
            self.odd[message.seq] = content

    def content_of(self, message: Message) -> Content:
        """A message's content as it may be sent."""
        return self.odd.get(message.seq, message.content)

    def enter(self, parts: View, reason: str, at: float, *, parent: int | None = None) -> View:
        """Make a new version of `parts` the current one; `parent`: where it is not made from the current
        one."""
        view = replace(
            parts,
            version=self.newest_version + 1,
            parent=self.view.version if parent is None else parent,
            reason=reason,
            created_at=at,
        )
        self.views[view.version] = view
        self.newest_version = view.version
        self.view = view
        return view

    def tail(self, view: View) -> Sequence[Message]:
        """The messages that `view` does not cover.

        Raises:
            ValueError: they are not loaded.
        """
        start = history.uncovered_from(view)
        if start > self.last_seq:
            return []
        base = self.messages[0].seq if self.messages else self.last_seq + 1
        if start < base:
            raise ValueError(f"Messages {start} to {base - 1} are not loaded.")
        return self.messages if start == base else self.messages[start - base :]

    def covered_by(self, observation: Observation) -> Sequence[Message]:
        """The messages that an observation covers; empty if they are not all loaded."""
        first, last = observation.covers
        if not self.messages or first < self.messages[0].seq:
            return []
        base = self.messages[0].seq
        return self.messages[first - base : last - base + 1]

    def descends_from(self, version: int) -> bool:
        """Whether every change of the context since `version` was one of the bound (digests, elisions), none
        by hand."""
        view: View | None = self.view
        while view is not None and view.version != version:
            by_itself = view.reason in ("append", "elision") or (
                view.reason == "digest" and history.provisional(view)
            )
            if not by_itself or view.parent is None:
                return False
            view = self.views.get(view.parent)
        return view is not None
