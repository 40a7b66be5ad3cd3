"""The first line: the session, its state, its cost. Parts that do not fit are omitted, the least important
first.

A second line names the roles that are not built in, with their files and models, where there are any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.content import Content
from textual.widget import Widget

from watchkeeper.records.text import clock_text, countdown
from watchkeeper.store.snapshot import SessionFacts, roles_of
from watchkeeper_tui import formatting
from watchkeeper_tui.roster import Roster
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.session_status import SESSION_BADGES
from watchkeeper_tui.snapshot import SessionState, Snapshot
from watchkeeper_tui.widgets.cells import Piece, clip_pieces, content, pieces_width

if TYPE_CHECKING:
    from watchkeeper_tui.app import WatchkeeperApp

_COUNTED = ("●", "◔", "?", "◷", "‖", "↻", "!", "†", "✗", "×", "○", "✓")
"""Every state that an agent can be in, so that the counts add up to the agents."""


def _model(ref: str) -> str:
    return clip(sanitize(formatting.model_name(ref)), 24)


class Header(Widget):
    """One line about the whole session."""

    DEFAULT_CSS = """
    Header { height: 1; dock: top; background: $panel; color: $foreground; }
    """

    def __init__(self) -> None:
        super().__init__(id="header")
        self._snapshot = Snapshot()
        self._roster = Roster()
        self._now = 0.0
        self._frozen_since: float | None = None
        self._behind = 0
        self._shown: tuple[Piece, ...] = ()
        self._noted = (0.0, 0.0)
        """The time for which the host says that it has driven the run, and when that was read."""

    def show(
        self,
        snapshot: Snapshot,
        now: float,
        roster: Roster,
        *,
        frozen_since: float | None = None,
        behind: int = 0,
    ) -> None:
        """Show this reading, whose agents `roster` counted. `behind`: events that came while the view is
        frozen."""
        before = self._shown
        self._snapshot, self._now, self._frozen_since, self._behind = snapshot, now, frozen_since, behind
        self._roster = roster
        self._shown = (*self.pieces(self.size.width), *self.role_pieces(self.size.width))
        if self._shown != before:
            self.styles.height = 2 if self.role_pieces(self.size.width) else 1
            self.refresh()

    def render(self) -> Content:
        app = cast("WatchkeeperApp", self.app)
        first = content(self.pieces(self.size.width), app.palette)
        roles = self.role_pieces(self.size.width)
        return first if not roles else Content("\n").join((first, content(roles, app.palette)))

    def role_pieces(self, width: int) -> list[Piece]:
        """The roles that are not built in, as many as fit: name, file, model, and a dearer model that was not
        confirmed."""
        session = self._snapshot.session
        others = (
            [one for one in roles_of(session.roles).values() if not one.is_built_in]
            if session is not None
            else []
        )
        shown: list[Piece] = []
        for number, one in enumerate(others):
            asked = f", not {_model(one.unconfirmed)}" if one.unconfirmed else ""
            each: list[Piece] = [
                (" role " if not shown else "  ", "muted"),
                (clip(sanitize(one.role), 24), "strong"),
                (f" {clip(sanitize(one.source), 40)} {_model(one.model)}", "text"),
                (asked, "waiting"),
            ]
            more: list[Piece] = [(f"  +{len(others) - number} more", "muted")]
            rest = pieces_width(more) if number + 1 < len(others) else 0
            if shown and pieces_width(shown) + pieces_width(each) + rest > width:
                return shown + more
            shown += each
        return clip_pieces(shown, width) if shown else []

    def pieces(self, width: int) -> list[Piece]:
        """What fits into `width` columns."""
        groups = self._groups()
        shown = list(range(len(groups)))
        while len(shown) > 1 and sum(pieces_width(groups[index][1]) for index in shown) > width:
            shown.remove(max(shown, key=lambda index: groups[index][0]))
        used = sum(pieces_width(groups[index][1]) for index in shown)
        flat = [piece for index in shown for piece in groups[index][1]]
        goal = self._goal(width - used)
        if goal:
            flat[self._goal_place(groups, shown) : self._goal_place(groups, shown)] = goal
        return flat

    def _goal_place(self, groups: list[tuple[int, list[Piece]]], shown: list[int]) -> int:
        """After the badge and the id."""
        return sum(len(groups[index][1]) for index in shown if index < 2)

    def _goal(self, cells: int) -> list[Piece]:
        session = self._snapshot.session
        if session is None or cells < 12:
            return []
        text = clip(sanitize(session.title or session.goal), min(cells - 4, 48))
        return [(f"“{text}”  ", "strong")]

    def _groups(self) -> list[tuple[int, list[Piece]]]:
        snapshot, now = self._snapshot, self._now
        glyph, role = SESSION_BADGES[snapshot.state]
        groups: list[tuple[int, list[Piece]]] = [(0, [(f" {glyph} {snapshot.state} ", role), (" ", "text")])]
        if self._frozen_since is not None:
            text = f" ■ VIEW FROZEN {formatting.duration(now - self._frozen_since)}"
            if self._behind:
                text += f", {self._behind:,} behind"
            groups.append((0, [(text + " ", "badge_frozen"), (" ", "text")]))
        if snapshot.problem:
            # What the badge says was so when it was read last.
            groups.append(
                (
                    0,
                    [
                        (f" ! NOT READ {formatting.duration(now - snapshot.read_at)} ", "badge_failed"),
                        (" ", "text"),
                    ],
                )
            )
            now = snapshot.read_at
        groups += self._read_only()
        session = snapshot.session
        if session is None:
            groups.append((1, [("watchkeeper", "accent")]))
            return groups
        groups.insert(1, (5, [(f"{session.id}  ", "accent")]))
        groups.append((1, [(formatting.clock(self._elapsed(session, now)), "text"), ("  ", "text")]))
        if snapshot.state is SessionState.LIVE and snapshot.host_pid:
            groups.append((9, [(f"pid {snapshot.host_pid}  ", "faint")]))
        groups.append((7, [(f"{formatting.plural(len(snapshot.agents), 'agent')}  ", "muted")]))
        groups.append((2, self._counts()))
        cost = formatting.bill(session)
        groups.append((3, [(cost, "money")]))
        if snapshot.state is SessionState.LIVE and snapshot.rates.cost_per_minute > 0:
            groups.append((6, [(f" +${formatting.rate(snapshot.rates.cost_per_minute)}/m", "muted")]))
        groups.append(
            (4, [("  ", "text"), (formatting.tokens(session.total_tokens), "tokens"), (" tok", "muted")])
        )
        if session.missing_logs:
            logs = formatting.plural(session.missing_logs, "log")
            groups.append((3, [("  partial", "waiting")]))
            groups.append((6, [(f" ({logs} missing)", "muted")]))
        if snapshot.state is SessionState.LIVE:
            groups.append((8, [(f"  {snapshot.rates.events_per_second:.0f} ev/s", "muted")]))
        parked = [
            agent.parked_until for agent in snapshot.agents if agent.status == "parked" and agent.parked_until
        ]
        if parked and snapshot.state is SessionState.LIVE:
            first = min(parked)
            left = f" (in {countdown(first - now)})" if first > now else ""
            groups.append((1, [(f"  ◷ {len(parked)} parked until {clock_text(first, now)}{left}", "slot")]))
        reached = next((budget for budget in snapshot.budgets if budget.reached_at), None)
        if reached is not None:
            groups.append((1, [(f"  budget reached: {sanitize(reached.kind)}", "failed")]))
        return groups

    def _elapsed(self, session: SessionFacts, now: float) -> float:
        """Seconds for which the run was driven, pauses left out, as the list of sessions has it; it is noted
        every other second."""
        live, noted = self._snapshot.state is SessionState.LIVE, session.hosted_seconds
        if noted <= 0:
            return (now if live else session.ended_at or session.last_active) - session.created_at
        if noted != self._noted[0]:
            self._noted = (noted, now)
        return noted + max(0.0, now - self._noted[1]) if live else noted

    def _read_only(self) -> list[tuple[int, list[Piece]]]:
        """A badge that stays: nothing can be done to what is shown; then why, where there is room."""
        why = cast("WatchkeeperApp", self.app).read_only
        if not why:
            return []
        return [(0, [(" ≡ READ-ONLY ", "badge_plain"), (" ", "text")]), (8, [(f"{why}  ", "muted")])]

    def _counts(self) -> list[Piece]:
        counted, roles = self._roster.counts(), self._roster.roles
        pieces: list[Piece] = []
        for glyph in _COUNTED:
            if counted.get(glyph):
                pieces.append((f"{glyph}{counted[glyph]} ", roles[glyph]))
        if pieces:
            pieces.append((" ", "text"))
        return pieces
