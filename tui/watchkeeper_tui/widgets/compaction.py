"""Pane 4: compaction over the whole session: passes in flight, then what came of the earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from watchkeeper.store.snapshot import AgentFacts, CompactionFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.pages.compactions import compaction_pieces, is_buffered
from watchkeeper_tui.pages.memory import compaction_mark, foretells
from watchkeeper_tui.roster import Roster
from watchkeeper_tui.sanitize import fit, sanitize
from watchkeeper_tui.snapshot import SessionState, Snapshot
from watchkeeper_tui.widgets.cells import Cell, Column, Piece, set_title
from watchkeeper_tui.widgets.plan import context_bar
from watchkeeper_tui.widgets.rows import RowView

SOON = 0.55
"""From this share of the window on, an agent is listed as one that will compact."""


class CompactionView(RowView[CompactionFacts | AgentFacts]):
    """One row a pass, in flight first; then the agents that come nearest to one."""

    EMPTY = "no compaction yet"
    COLUMNS: ClassVar[Sequence[Column]] = (Column("", 10, flexible=True),)

    def __init__(self) -> None:
        super().__init__(id="compaction", classes="pane")
        self._names: dict[str, str] = {}
        self._now = 0.0
        self._live = False
        self.near: Sequence[AgentFacts] = ()
        """The agents listed as coming near to a pass, the nearest first."""
        self.paces: Mapping[str, float] = {}
        """Tokens a second by which their contexts grow, where that is known."""

    def show(self, snapshot: Snapshot, roster: Roster, now: float) -> None:
        """Show the session's passes."""
        self._names, self._now = roster.names, now
        flying = [each for each in snapshot.compactions if each.status in ("running", "prepared")]
        ended = [each for each in snapshot.compactions if each.status not in ("running", "prepared")]
        self.near = [agent for agent in roster.nearest(SOON, snapshot) if foretells(snapshot, agent)]
        self._live = snapshot.state is SessionState.LIVE
        if not self.touched:
            # The first row until the user selects one: running passes must stay visible.
            self._index, self.selected_id = 0, None
        self.set_rows([*flying, *self.near, *ended])
        removed = sum(
            (each.tokens_before or 0) - (each.tokens_after or 0) for each in ended if each.status == "applied"
        )
        pieces: list[Piece] = [("4", "key"), (" Compaction", "strong")]
        buffered = sum(1 for each in flying if is_buffered(each))
        if len(flying) > buffered:
            pieces.append((f"  ◌ {len(flying) - buffered} in flight", "working"))
        if buffered:
            pieces.append((f"  ◔ {formatting.plural(buffered, 'chunk')} buffered", "slot"))
        if removed > 0:
            pieces.append((f"  {formatting.tokens(removed)} tok freed", "muted"))
        known = [each.stall_seconds for each in ended if each.stall_seconds is not None]
        if known:
            pieces.append((f"  blocked {sum(known) * 1000:.0f}ms", "muted"))
        set_title(self, pieces, self.watch_app.palette)

    def row_id(self, row: CompactionFacts | AgentFacts) -> str:
        return f"agent:{row.id}" if isinstance(row, AgentFacts) else f"pass:{row.id}"

    def row_cells(self, row: CompactionFacts | AgentFacts) -> Sequence[Cell]:
        if isinstance(row, AgentFacts):
            used = row.context_used
            left = max(0, compaction_mark(row, self.watch_app.settings.summarization_threshold) - used)
            note = (
                f"  compacts in {formatting.tokens(left)} tok{self._when(row, left)}"
                if left
                else "  compaction due"
            )
            bar = context_bar(used, row.context_limit)
            return (
                [
                    ("… ", "faint"),
                    (fit(sanitize(row.name), 12) + " ", "text"),
                    *bar,
                    (note, "muted" if left else "bar_high"),
                ],
            )
        name = fit(self._names.get(row.agent_id, sanitize(row.agent_id)), 12)
        return (compaction_pieces(row, self._now, name=name),)

    def _when(self, agent: AgentFacts, left: int) -> str:
        """In about which time, at the pace of its last turns, while it works."""
        pace = self.paces.get(agent.id)
        return (
            f", ~{formatting.duration(left / pace)}"
            if pace and self._live and agent.status == "working"
            else ""
        )
