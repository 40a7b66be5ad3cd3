"""One event of a session as a line that a screen shows."""

from __future__ import annotations

from watchkeeper.store.snapshot import EventFacts
from watchkeeper_tui.wording import EventWords, event_words


class EventLine:
    """One event. It is put into words when it is first looked at: of thousands that come, a screen shows a
    few."""

    __slots__ = ("_words", "agent_id", "at", "facts", "seq", "task_id")

    def __init__(self, facts: EventFacts) -> None:
        self.facts = facts
        self.seq, self.at = facts.seq, facts.at
        self.agent_id, self.task_id = facts.agent_id, facts.task_id
        self._words: EventWords | None = None

    @property
    def _said(self) -> EventWords:
        if self._words is None:
            self._words = event_words(self.facts)
        return self._words

    @property
    def kind(self) -> str:
        """The word shown: `tool`, `plan`, `error`, … Sanitised."""
        return self._said.kind

    @property
    def role(self) -> str:
        """The palette role that colours the word."""
        return self._said.role

    @property
    def text(self) -> str:
        """What happened, in one line. Sanitised."""
        return self._said.text

    def __eq__(self, other: object) -> bool:
        return self.facts == other.facts if isinstance(other, EventLine) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.seq)
