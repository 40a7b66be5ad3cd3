"""The tabs of the agent pane: what a page is given, and what it gives. `widgets/agent.py` lists them.

A page is a pure function from what was read to lines, and to units of lines that are made when they come in sight. It
never looks at a widget, a clock or the database: it is given
a `PageContext`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from watchkeeper.store.agent_snapshot import ToolCallFacts, ViewFacts
from watchkeeper.store.imports import imported_from
from watchkeeper.store.snapshot import AgentFacts
from watchkeeper_tui.rendering.code import Line
from watchkeeper_tui.rendering.documents import LineCache, chunks, render_text
from watchkeeper_tui.sanitize import sanitize_lines, wrap
from watchkeeper_tui.settings import DEFAULT_THRESHOLD
from watchkeeper_tui.snapshot import AgentDetail, Snapshot
from watchkeeper_tui.widgets.rows import PageLine

UNLOGGED_WORDS = "not in the log that was imported"


@dataclass(frozen=True)
class PageContext:
    """Everything that a page may depend on."""

    snapshot: Snapshot
    agent: AgentFacts
    detail: AgentDetail
    width: int
    now: float
    expanded: frozenset[str] = frozenset()
    """Keys of what the user unfolded."""
    words: str = ""
    """What the user searches for."""
    can_act: bool = True
    """Keys that act on the run do something here."""
    threshold: float = DEFAULT_THRESHOLD
    """The share of a window at which compaction starts, where the host does not say."""
    processes: str = ""
    """Of an agent that is silent: what the processes of its run do; sanitised."""
    cache: LineCache = field(default_factory=LineCache)
    """What was rendered for earlier pages."""

    @cached_property
    def calls(self) -> dict[str, ToolCallFacts]:
        """The newest tool calls, by the id that the model gave them."""
        return {call.tool_use_id: call for call in self.detail.tool_calls}

    @property
    def is_unlogged(self) -> bool:
        """It is another program's agent, and what it did is not in the log that was imported."""
        session = self.snapshot.session
        imported = session is not None and imported_from(session.origin) is not None
        return imported and self.agent.ended_at is not None and not self.agent.last_seq

    def nothing(self, noun: str) -> str:
        """That there is none: yet, of an agent that goes on; of one of another program, that the log does not
        tell."""
        if self.agent.ended_at is None:
            return f"no {noun} yet"
        return f"no {noun}: what this agent did is {UNLOGGED_WORDS}" if self.is_unlogged else f"no {noun}"


def heading(line_id: str, text: str, note: str = "") -> PageLine:
    """A section's title."""
    return PageLine(line_id, ((text, "strong"), (f"  {note}" if note else "", "muted")))


def paragraph(
    line_id: str, text: str, width: int, *, role: str = "text", indent: int = 0, most: int = 200
) -> list[PageLine]:
    """Hostile text as wrapped lines."""
    lines: list[PageLine] = []
    for line in sanitize_lines(text, limit=most):
        for row in wrap(line, max(4, width - indent)):
            if len(lines) >= most:
                return lines
            lines.append(
                PageLine(f"{line_id}.{len(lines)}", ((" " * indent, "text"), (row, role)), copy=text)
            )
    return lines


def rendered(line_id: str, text: str, width: int, *, indent: int = 0, most: int = 200) -> list[PageLine]:
    """The first `most` rows of a hostile text, as Markdown."""
    room = max(4, width - indent)
    rows = _markdown_rows(text.strip("\n")[: 2 * most * room], room)[:most]
    return [
        PageLine(f"{line_id}.{at}", ((" " * indent, "text"), *row), copy=text) for at, row in enumerate(rows)
    ]


@lru_cache(256)
def _markdown_rows(text: str, width: int) -> tuple[Line, ...]:
    """A page is made again every second."""
    return tuple(row for part, of in chunks(text, "markdown") for row in render_text(part, of, width))


def damage(context: ViewFacts | None) -> list[PageLine]:
    """One line on what of a context cannot be read; none where all of it can."""
    if context is None or not context.damaged:
        return []
    words = f"! damaged in the database: {', '.join(context.damaged)} of view {context.version}; their content is missing"
    return [PageLine("damage", ((words, "failed"),))]


def blank(line_id: str) -> PageLine:
    """An empty line."""
    return PageLine(line_id, ())
