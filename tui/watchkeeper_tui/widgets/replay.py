"""The panes of the live screen as a replay has them: they say what was, and nothing can be done from them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding, BindingType
from textual.widget import Widget

from watchkeeper_tui import formatting
from watchkeeper_tui.pages import PAGES
from watchkeeper_tui.pages.compactions import PASS_KEY
from watchkeeper_tui.plan_tree import PlanRows
from watchkeeper_tui.playback import Playback
from watchkeeper_tui.roster import Roster
from watchkeeper_tui.session_status import SESSION_BADGES
from watchkeeper_tui.snapshot import SessionState, Snapshot
from watchkeeper_tui.widgets.agent import AgentPane
from watchkeeper_tui.widgets.cells import Piece, set_title
from watchkeeper_tui.widgets.compaction import CompactionView
from watchkeeper_tui.widgets.events import EventsView
from watchkeeper_tui.widgets.header import Header
from watchkeeper_tui.widgets.plan import PlanView
from watchkeeper_tui.widgets.rows import RowView

if TYPE_CHECKING:
    from watchkeeper_tui.app import WatchkeeperApp
    from watchkeeper_tui.screens.base import WatchScreen


def day_of(at: float) -> str:
    """Local date as `2026-11-21`."""
    return time.strftime("%Y-%m-%d", time.localtime(at))


class ReplayHeader(Header):
    """Says before all else that this is a replay, of which moment."""

    def __init__(self) -> None:
        super().__init__()
        self._playback = Playback(())

    def show_replay(self, snapshot: Snapshot, playback: Playback, roster: Roster) -> None:
        """Show this reading. The position is that of the user, which a reading may be a moment behind."""
        self._playback = playback
        self.show(snapshot, snapshot.read_at, roster)

    def _groups(self) -> list[tuple[int, list[Piece]]]:
        glyph, role = SESSION_BADGES[SessionState.REPLAY]
        playback = self._playback
        groups: list[tuple[int, list[Piece]]] = [(0, [(f" {glyph} REPLAY ", role), (" ", "text")])]
        session = self._snapshot.session
        if session is not None:
            groups.append((6, [(f"{session.id}  ", "accent")]))
        if playback.times:
            at = playback.times[playback.position - 1]
            groups.append((0, [(f"{playback.position:,}/{len(playback.times):,}", "strong"), ("  ", "text")]))
            groups.append((1, [(formatting.time_of_day(at), "waiting"), ("  ", "text")]))
            groups.append((5, [(f"{day_of(at)}  ", "muted")]))
        groups.append((6, [("read-only  ", "muted")]))
        if session is None:
            return groups
        groups.append((7, [(f"{formatting.plural(len(self._snapshot.agents), 'agent')}  ", "muted")]))
        groups.append((2, self._counts()))
        groups.append((3, [(formatting.bill(session), "money")]))
        groups.append(
            (4, [("  ", "text"), (formatting.tokens(session.total_tokens), "tokens"), (" tok", "muted")])
        )
        reached = next((budget for budget in self._snapshot.budgets if budget.reached_at), None)
        if reached is not None:
            groups.append((4, [("  budget reached", "failed")]))
        return groups


class ReplayPlan(PlanView):
    """The plan as it stood."""

    def title(self) -> None:
        set_title(self, [("Plan", "strong"), ("  as it stood", "muted")], self.watch_app.palette)

    def show_then(self, rows: PlanRows) -> None:
        """Show these rows."""
        self.show(rows, {})


class ReplayEvents(EventsView):
    """The events so far, the newest marked. The end stays visible until the user scrolls back."""

    IDLE_SELECTION = True

    def scrolled(self) -> None:
        last = self.rows[-1].seq if self.rows else 0
        pieces: list[Piece] = [("Events", "strong"), (f"  up to #{last:,}", "muted")]
        if not self.following:
            pieces.append(("  Enter goes there", "accent"))
        set_title(self, pieces, self.watch_app.palette)


class ReplayCompactions(CompactionView):
    """The passes that there had been."""

    EMPTY = "no compaction so far"

    def show(self, snapshot: Snapshot, roster: Roster, now: float) -> None:
        super().show(snapshot, roster, now)
        _without_number(self)


class ReplayAgentPane(AgentPane, inherit_bindings=False):
    """The agent as it stood. Left and right are the replay's; nothing is pinned, undone or opened from
    here."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h,comma", "tab(-1)", "Previous tab", show=False, id="replay.previous_tab"),
        Binding("l,full_stop", "tab(1)", "Next tab", show=False, id="replay.next_tab"),
        Binding("c", "to_compaction", "To the compaction", show=False, id="replay.to_compaction"),
    ]

    def open_tab(self, index: int) -> None:
        """Open a tab by its place. The one of the live screen stays remembered."""
        self.tab = index % len(PAGES)
        self._start()
        self.redraw()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        event.stop()
        event.prevent_default()  # the pane's own way leads to screens that act
        line = self.page.selected
        if line is not None and not line.key.startswith(PASS_KEY):
            self.toggle(line.key)

    def action_pin(self) -> None:
        """Nothing is changed here."""
        cast("WatchScreen", self.screen).say("a replay changes nothing", "muted", seconds=3)

    def _title(self) -> None:
        super()._title()
        _without_number(self)


def _without_number(widget: Widget) -> None:
    """Take the pane's number out of its title: digits are places in the session here. Nor is anything ago."""
    pieces: tuple[Piece, ...] = getattr(widget, "_title_pieces", ((),))[0]
    if len(pieces) > 1 and pieces[0][1] == "key":
        rest = [
            (pieces[1][0].lstrip(), pieces[1][1]),
            *(piece for piece in pieces[2:] if not piece[0].startswith("  active ")),
        ]
        set_title(widget, rest, cast("WatchkeeperApp", widget.app).palette)
