"""Reading an agent's context: what it shows, how large it is, what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from watchkeeper.memory import history
from watchkeeper.memory.assembly import Assembly, assemble, pinnable
from watchkeeper.memory.books import Books
from watchkeeper.memory.changes import ContextLimits, WindowTooSmall
from watchkeeper.memory.content import copied_messages
from watchkeeper.memory.notes import Notebook
from watchkeeper.memory.tokens import TokenCounter
from watchkeeper.records.memory import Content, Message, Observation, View


class ContextReading:
    """What of a `ContextState` may be asked without changing it."""

    def __init__(
        self, limits: ContextLimits, counter: TokenCounter, agent_id: str, pin_first: bool, books: Books
    ) -> None:
        self.agent_id = agent_id
        self.counter = counter
        self.calibration = 1.0
        self.limits = limits
        self.epoch = 0
        """Advances when the view changes by hand (undo, redo, a digest asked for): a pass begun before is
        void."""
        self.last_refusal = ""
        """Why the last `digest` had nothing to gain."""
        self.notebook = Notebook()
        """What a digest would say of the messages shown, noted when they were added."""
        self._labels: dict[str, int] = {}
        self._pin_first = pin_first
        self._books = books
        self._held = bool(books.redo) or books.view.reason == "undo"
        self._assembly = self._assemble(books.view)

    @property
    def view(self) -> View:
        """The version now current."""
        return self._books.view

    @property
    def views(self) -> tuple[View, ...]:
        """Every version that is loaded, oldest first."""
        return tuple(view for _, view in sorted(self._books.views.items()))

    @property
    def messages(self) -> list[Message]:
        """Every message that is loaded, oldest first. Not to be changed by callers."""
        return self._books.messages

    @property
    def verbatim(self) -> Sequence[Message]:
        """The messages that the view does not cover."""
        return self._books.tail(self.view)

    def covered_by(self, observation: Observation) -> Sequence[Message]:
        """The messages that an observation stands for; empty where they are not all loaded."""
        return self._books.covered_by(observation)

    def content_of(self, message: Message) -> Content:
        """A message's content as it may be sent: without the lone surrogates that no encoder takes."""
        return self._books.content_of(message)

    def shown_tokens(self, message: Message) -> int:
        """Tokens of a message as the view shows it: whole, or shortened."""
        shortened = self.view.elided.get(message.seq)
        return message.tokens if shortened is None else shortened.tokens

    @property
    def last_seq(self) -> int:
        """The newest message's number; 0 before the first."""
        return self._books.last_seq

    @property
    def total_tokens(self) -> int:
        """Of every message ever appended, raw."""
        return self._books.total_tokens

    @property
    def tokens(self) -> int:
        """Of `render()`, raw, without `overhead_tokens`."""
        return self._assembly.tokens

    @property
    def limit(self) -> int:
        """How many of our own tokens the context may take: the window less reply and overhead, calibrated."""
        return self._scaled(self.limits.max_tokens - self.limits.reserve_tokens)

    @property
    def threshold(self) -> int:
        """From how many of our own tokens on a compaction should run."""
        return min(
            self.limit, self._scaled(int(self.limits.max_tokens * self.limits.summarization_threshold))
        )

    def _scaled(self, provider_tokens: int) -> int:
        return max(0, int(provider_tokens / self.calibration) - self.limits.overhead_tokens)

    def composition(self) -> dict[str, int]:
        """Tokens of the window by what they are spent on; `messages` are those shown whole, the assignment
        included."""
        made = self._assembly
        elided = min(max(0, made.elided), made.tokens - made.observations)
        return {
            "observations": made.observations,
            "messages": made.tokens - made.observations - elided,
            "elided": elided,
            "headroom": max(0, self.limit - made.tokens),
            "overhead": self.limits.overhead_tokens,
        }

    def stable_prefix(self) -> int:
        """How many rendered messages are byte-identical in the next turn, as long as the view stays."""
        rendering = self._assembly.rendering
        return len(rendering.items) - rendering.unstable

    def render(self) -> list[dict[str, Any]]:
        """The context, valid for the Messages API. The caller may change what it gets: a copy of all that is
        shown.

        Raises:
            WindowTooSmall: not even the newest group of messages fits.
        """
        return copied_messages(self.rendered())

    def rendered(self) -> list[dict[str, Any]]:
        """`render()` with messages that cannot be changed: later calls share them, so that nothing is copied.

        Raises:
            WindowTooSmall: not even the newest group of messages fits.
        """
        if self.tokens > self.limit and self._books.last_seq:
            raise WindowTooSmall(self.tokens, self.limit)
        return self._assembly.rendering.items[:]

    def missing_for(self, move: Literal["undo", "redo"]) -> tuple[int, int] | None:
        """The first and last message to be given to `load_earlier` before that move; None where all are
        there.

        Raises:
            ValueError: there is nothing to undo, or to redo.
        """
        start = history.needed_from(self._target(move))
        base = self.messages[0].seq if self.messages else self.last_seq + 1
        return (start, base - 1) if start < base else None

    def needs_compaction(self) -> bool:
        """Whether the threshold is reached; never right after an undo, which would only be undone itself."""
        return not self._held and self.tokens >= self.threshold

    @property
    def held(self) -> bool:
        """Whether automatic passes wait, because somebody undid one."""
        return self._held

    def _target(self, move: Literal["undo", "redo"]) -> View:
        if move == "undo":
            return history.undo_target(self._books.views, self.view)
        if not self._books.redo:
            raise ValueError("There is nothing to redo: no undo, or the context has changed since.")
        return self._books.views[self._books.redo[-1]]

    @property
    def _pinned(self) -> Message | None:
        return self._books.first if self._pin_first and pinnable(self._books.first) else None

    def _assemble(self, view: View) -> Assembly:
        return assemble(
            self.agent_id,
            view,
            self._books.tail(view),
            self._pinned,
            self.counter,
            self._labels,
            self._books.odd,
        )
