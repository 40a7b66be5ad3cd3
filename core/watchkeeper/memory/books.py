"""The books of one agent: its messages, the versions of its view, and which of them is current."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from watchkeeper.memory import history
from watchkeeper.memory.content import shown
from watchkeeper.records.memory import Content, Message, Observation, Role, View


class Books:
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
    ) -> Books:
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
        """Let go of the messages before `seq`; the first one stays where it is known."""
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
        """The messages that an observation stands for; empty where they are not all loaded."""
        first, last = observation.covers
        if not self.messages or first < self.messages[0].seq:
            return []
        base = self.messages[0].seq
        return self.messages[first - base : last - base + 1]

    def descends_from(self, version: int) -> bool:
        """Whether only the bound (digests, elisions) has changed the context since `version`, and nobody by
        hand."""
        view: View | None = self.view
        while view is not None and view.version != version:
            by_itself = view.reason in ("append", "elision") or (
                view.reason == "digest" and history.provisional(view)
            )
            if not by_itself or view.parent is None:
                return False
            view = self.views.get(view.parent)
        return view is not None
