"""The tabs of the agent pane: what a page is given, and what it gives. `widgets/agent.py` lists them.

A page is a pure function from what was read to lines, and to units of lines that are made when they come in sight. It
never looks at a widget, a clock or the database: it is given
a `PageContext`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from watchkeeper.store.agent_snapshot import ToolCallFacts, ViewFacts
from watchkeeper.store.imports import imported_from
from watchkeeper.store.outcome import RunEnding, RunOutcome
from watchkeeper.store.projection import AgentFacts
from watchkeeper_tui.rendering.documents import LineCache, chunks, render_text
from watchkeeper_tui.sanitize import sanitize, sanitize_lines, wrap
from watchkeeper_tui.settings import DEFAULT_THRESHOLD
from watchkeeper_tui.snapshot import AgentDetail, Snapshot
from watchkeeper_tui.widgets.rows import Line, PageLine

UNLOGGED_WORDS = "not in the imported log"


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
    """What the processes of the run of a silent agent do; sanitised."""
    cache: LineCache = field(default_factory=LineCache)
    """What was rendered for earlier pages."""
    outcome: RunOutcome | None = None
    """What the run left, once that was read."""

    @cached_property
    def calls(self) -> dict[str, ToolCallFacts]:
        """The newest tool calls, by the id that the model gave them."""
        return {call.tool_use_id: call for call in self.detail.tool_calls}

    @property
    def ending(self) -> RunEnding | None:
        """How the run ended, on the pages of its planner; None while it runs, and on those of other agents."""
        session = self.snapshot.session
        is_planner = session is not None and session.planner_agent_id == self.agent.id
        return self.snapshot.ending if is_planner else None

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
        return f"no {noun}: {UNLOGGED_WORDS}" if self.is_unlogged else f"no {noun}"


def heading(line_id: str, text: str, note: str = "") -> PageLine:
    """A section's title."""
    return PageLine(line_id, ((text, "strong"), (f"  {note}" if note else "", "muted")))


def paragraph(
    line_id: str, text: str, width: int, *, role: str = "text", indent: int = 0, most: int = 200
) -> list[PageLine]:
    """Hostile text as wrapped lines, at most `most`: where more follows, the last one says so."""
    lines: list[PageLine] = []
    for line in sanitize_lines(text, limit=most + 1):
        for row in wrap(line, max(4, width - indent), limit=most + 1):
            if len(lines) == most:
                return _marked_as_cut(lines, indent)
            lines.append(
                PageLine(f"{line_id}.{len(lines)}", ((" " * indent, "text"), (row, role)), copy=text)
            )
    return lines


def rendered(line_id: str, text: str, width: int, *, indent: int = 0, most: int = 200) -> list[PageLine]:
    """The first `most` rows of a hostile text, as Markdown: where more follows, the last one says so."""
    room = max(4, width - indent)
    text = text.strip("\n")
    rows = _markdown_rows(text[: 2 * most * room], room)
    lines = [
        PageLine(f"{line_id}.{at}", ((" " * indent, "text"), *row), copy=text)
        for at, row in enumerate(rows[:most])
    ]
    return _marked_as_cut(lines, indent) if len(rows) > most or len(text) > 2 * most * room else lines


def _marked_as_cut(lines: list[PageLine], indent: int) -> list[PageLine]:
    """The lines, the last of which says that more follows, and how to read it."""
    return [*lines[:-1], replace(lines[-1], pieces=((" " * indent + "… y copies the full text", "faint"),))]


MOST_OUTCOME_ROWS = 10_000


def outcome_lines(view: PageContext) -> list[PageLine]:
    """How the run ended: what stopped it, the planner's whole summary, the names of what it left."""
    ending = view.ending
    if ending is None:
        return []
    lines: list[PageLine] = []
    if ending.stopped:
        stopped = f"{ending.status}: {ending.stopped}"
        lines += paragraph(
            "outcome.stopped", stopped, view.width, role=_STOPPED.get(ending.status, "failed"), most=500
        )
    if ending.summary:
        lines += [blank("outcome.apart")] if lines else []
        lines += rendered("outcome.text", ending.summary, view.width, most=MOST_OUTCOME_ROWS)
    elif not ending.stopped:
        lines.append(PageLine("outcome.none", (("no summary from the planner", "faint"),)))
    session = view.snapshot.session
    where = f"wk show {session.id if session is not None else ''} --json"
    for title, listed in view.outcome.names("v", where) if view.outcome is not None else ():
        lines.append(blank(f"outcome.{title}.apart")) if title == "Artifacts" else None
        for at, row in enumerate(wrap(sanitize(f"{title}: {listed}"), max(8, view.width))):
            lines.append(PageLine(f"outcome.{title}.{at}", ((row, "muted"),), copy=listed))
    return [
        heading("outcome", "Outcome" if ending.status == "done" else "Stopped"),
        *lines,
        blank("outcome.end"),
    ]


_STOPPED = {"paused": "paused", "cancelled": "cancelled"}


@lru_cache(256)
def _markdown_rows(text: str, width: int) -> tuple[Line, ...]:
    """A page is made again every second."""
    return tuple(row for part, of in chunks(text, "markdown") for row in render_text(part, of, width))


def damage(context: ViewFacts | None) -> list[PageLine]:
    """One line on what of a context cannot be read; none where all of it can."""
    if context is None or not context.damaged:
        return []
    words = (
        f"! damaged in the database: {', '.join(context.damaged)} of view {context.version}; content missing"
    )
    return [PageLine("damage", ((words, "failed"),))]


def blank(line_id: str) -> PageLine:
    """An empty line."""
    return PageLine(line_id, ())
