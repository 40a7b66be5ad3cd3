"""A session as it was at any of its steps: plan, agents, events, compactions and transcript, with a scrubber
below.

It can change nothing, but for the fork that `F` makes once it was answered with `y`.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from watchkeeper.store.fork import fork_session
from watchkeeper.store.projection import CompactionFacts
from watchkeeper.store.replay import Mark, Recording, turn_beside
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import Action, bindings
from watchkeeper_tui.replay_source import Frame, News, Opened, Playback, Problem, Projector
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import SessionScreen
from watchkeeper_tui.snapshot import SESSION_BADGES, Roster, SessionState, Snapshot
from watchkeeper_tui.watch_app import watch_app
from watchkeeper_tui.widgets.agent import AgentPane, TranscriptPane
from watchkeeper_tui.widgets.bars import (
    ChipLine,
    Crumb,
    Header,
    KeyLine,
    PathLine,
    Prompt,
    StatusLine,
)
from watchkeeper_tui.widgets.panes import CompactionView, EventsView, PlanView
from watchkeeper_tui.widgets.rows import Piece, RowView, content, pieces_width, set_title

_LOOKS = {"task": ("✓", "done"), "compaction": ("◆", "compaction"), "failure": ("✗", "failed")}
"""Where marks share a column, the later one of these is shown."""
_RANKS = {kind: rank for rank, kind in enumerate(_LOOKS)}


class Scrubber(Widget):
    """Click or drag to go somewhere."""

    class Sought(Message):
        """The user chose a position."""

        def __init__(self, position: int) -> None:
            super().__init__()
            self.position = position

    shown: reactive[tuple[Piece, ...]] = reactive(())

    def __init__(self) -> None:
        super().__init__(id="scrubber")
        self._playback = Playback(())
        self._marks: Sequence[Mark] = ()
        self._laid: tuple[int, int, dict[int, str]] | None = None
        """Width, positions, and the mark of each column, as worked out last."""

    def update(self, playback: Playback, marks: Sequence[Mark]) -> None:
        """Show the current position."""
        if marks is not self._marks:
            self._marks, self._laid = marks, None
        self._playback = playback
        self.shown = tuple(self.pieces())

    def on_resize(self) -> None:
        self.shown = tuple(self.pieces())

    def render(self) -> Content:
        return content(self.shown, watch_app(self).palette)

    def pieces(self) -> list[Piece]:
        """The whole line."""
        before, after = self._edges()
        cells = self._cells()
        played = self.cell_of(self._playback.position)
        marks = self._columns(cells)
        track: list[Piece] = []
        for cell in range(cells):
            if cell == played:
                piece = ("●", "strong")
            elif cell in marks:
                piece = _LOOKS[marks[cell]]
            else:
                piece = ("━", "accent") if cell < played else ("─", "faint")
            if track and track[-1][1] == piece[1]:
                track[-1] = (track[-1][0] + piece[0], piece[1])
            else:
                track.append(piece)
        return [*before, *track, *after]

    def cell_of(self, position: int) -> int:
        """The column of the track for a position."""
        last = max(1, len(self._playback.times) - 1)
        return (position - 1) * (self._cells() - 1) // last if position > 1 else 0

    def position_of(self, x: int) -> int:
        """The first position of a column of the widget, or of the nearest one of the track."""
        cells, last = self._cells(), len(self._playback.times) - 1
        cell = max(0, min(cells - 1, x - pieces_width(self._edges()[0])))
        return min(last, -(-cell * last // max(1, cells - 1))) + 1 if last > 0 else 1

    def _edges(self) -> tuple[list[Piece], list[Piece]]:
        playback = self._playback
        glyph, role = ("▶", "working") if playback.playing else ("‖", "muted")
        before: list[Piece] = [(f" {glyph} ", role), (f"{playback.speed}×".ljust(4), "text")]
        if not playback.times:
            return before, []
        first, last = playback.times[0], playback.times[-1]
        gone = formatting.clock(playback.times[playback.position - 1] - first)
        after: list[Piece] = [(f" {gone}", "text")]
        if self.size.width >= 60:
            after.append((f"/{formatting.clock(last - first)}", "muted"))
        if self.size.width >= 100:
            after.append(("  idle skipped" if playback.skips_idle else "  idle played ", "faint"))
        return before, [*after, (" ", "text")]

    def _cells(self) -> int:
        before, after = self._edges()
        return max(4, self.size.width - pieces_width(before) - pieces_width(after))

    def _columns(self, cells: int) -> dict[int, str]:
        count = len(self._playback.times)
        if self._laid is None or self._laid[:2] != (cells, count):
            columns: dict[int, str] = {}
            for mark in self._marks:
                cell = (mark.position - 1) * (cells - 1) // max(1, count - 1)
                if cell not in columns or _RANKS[mark.kind] > _RANKS[columns[cell]]:
                    columns[cell] = mark.kind
            self._laid = (cells, count, columns)
        return self._laid[2]

    # The mouse.

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self.capture_mouse()
        self._seek(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.app.mouse_captured is self:
            self._seek(event.x)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        self.release_mouse()

    def _seek(self, x: int) -> None:
        if self._playback.times:
            self.post_message(self.Sought(self.position_of(x)))


def day_of(at: float) -> str:
    """Local date as `2026-11-21`."""
    return time.strftime("%Y-%m-%d", time.localtime(at))


class ReplayHeader(Header):
    """Says before all else that this is a replay, of which moment."""

    def __init__(self) -> None:
        super().__init__()
        self._playback = Playback(())

    def update_replay(self, snapshot: Snapshot, playback: Playback, roster: Roster) -> None:
        """Show this reading. The position is that of the user, which a reading may be a moment behind."""
        self._playback = playback
        self.update(snapshot, snapshot.read_at, roster)

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
        groups.append(
            (
                7,
                [
                    (
                        f"{formatting.plural(sum(not one.is_unit for one in self._snapshot.agents), 'agent')}  ",
                        "muted",
                    )
                ],
            )
        )
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
        set_title(self, [("Plan", "strong"), ("  at this point", "muted")], self.watch_app.palette)


class ReplayEvents(EventsView):
    """The events so far, the newest marked. The end stays visible until the user scrolls back."""

    IDLE_SELECTION = True

    def scrolled(self) -> None:
        last = self.rows[-1].seq if self.rows else 0
        pieces: list[Piece] = [("Events", "strong"), (f"  through #{last:,}", "muted")]
        if not self.following:
            pieces.append(("  Enter jumps there", "accent"))
        set_title(self, pieces, self.watch_app.palette)


class ReplayCompactions(CompactionView):
    """The passes that there had been."""

    EMPTY = "no compactions so far"
    NUMBER = ""
    IS_PREDICTED = False


class ReplayAgentPane(AgentPane, inherit_bindings=False):
    """The agent as it stood. Left and right are the replay's; nothing is pinned or undone from here, and nothing
    is ago. Digits are places in the session, so they lead to no pane."""

    NUMBER = ""
    SHOWS_SILENCE = False

    SCOPE = "replay.agent"
    BINDINGS: ClassVar[list[BindingType]] = bindings("replay.agent")


class ReplayTranscript(TranscriptPane, inherit_bindings=False):
    """The transcript as it stood."""

    NUMBER = ""

    SCOPE = "replay.agent"
    BINDINGS: ClassVar[list[BindingType]] = bindings("replay.agent")


FRAME_SECONDS = 0.1
STILL_FRAME_SECONDS = 1.0
"""How often a playing replay moves where the user wants little motion."""
_WHILE_ASKED = frozenset({"step", "edge"})
"""What keys that go before the widgets' own must leave alone while a question is open."""


class ReplayScreen(SessionScreen):
    """`space` plays, left and right step; the panes are those of the live screen."""

    SCOPE = "replay"
    BINDINGS: ClassVar[list[BindingType]] = bindings("replay")

    _forking = False

    def __init__(
        self, session_id: str, moment: float | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`moment`: where it begins, in seconds since 1970."""
        super().__init__()
        self.session_id = session_id
        self._moment = moment
        self.playback = Playback(())
        self.set_reactive(ReplayScreen.snapshot, Snapshot(state=SessionState.REPLAY))
        self.seq = 0
        """The last event of what is shown."""
        self.shown_position = 0
        """The position of the snapshot; the playback may be ahead of it for a moment."""
        self.frame_seconds = FRAME_SECONDS
        """How often it moves while it plays."""
        self._clock = clock
        self._ticked = 0.0
        self._marks: Sequence[Mark] = ()
        self._recording: Recording | None = None
        self._projector: Projector | None = None
        self._frame: Frame | None = None
        self._agent_id: str | None = None
        self._chosen: str | None = None
        """The row of the plan that was chosen; it is chosen again as soon as it is there again."""
        self._newest = 0
        """The last event that the session is known to have."""

    @property
    def crumbs(self) -> tuple[Crumb, ...]:
        session = self.snapshot.session
        name = (session.title or session.goal) if session is not None else self.session_id
        times = self.playback.times
        at = f" {formatting.time_of_day(times[self.playback.position - 1])}" if times else ""
        return (Crumb("session", self.session_id, name), Crumb("replay", "", f"replay{at}"))

    def compose(self) -> ComposeResult:
        yield ReplayHeader()
        yield PathLine()
        yield ChipLine()
        yield from self.panes(
            ReplayPlan(), ReplayAgentPane(), ReplayTranscript(), ReplayEvents(), ReplayCompactions()
        )
        yield Prompt()
        yield Scrubber()
        yield StatusLine()
        yield KeyLine()

    def on_mount(self) -> None:
        self.plan.focus()
        self.agent_pane.set_reactive(AgentPane.tab, 1)
        self._arrange()
        self._projector = Projector(self.watch_app.database_path, self.session_id, self._receive)
        self._projector.start()
        self.frame_seconds = STILL_FRAME_SECONDS if self.watch_app.settings.reduced_motion else FRAME_SECONDS
        self.set_interval(self.frame_seconds, self._go_on)
        self.say("loading the session …", "muted", seconds=600)
        self._draw_edges()

    def on_unmount(self) -> None:
        if self._projector is not None:
            self._projector.close()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in _WHILE_ASKED and self.is_mounted and self.prompt.is_asking:
            return False
        return super().check_action(action, parameters)

    # Parts.

    @property
    def scrubber(self) -> Scrubber:
        return self.query_one(Scrubber)

    # What comes.

    def _receive(self, news: News) -> None:
        """From the projector's thread. Of frames only the newest is drawn."""
        if isinstance(news, Frame):
            waiting, self._frame = self._frame, news
            if waiting is not None:
                return
            self.app.call_later(self._draw_newest)
        else:
            self.app.call_later(self._take, news)

    def _take(self, news: Opened | Problem) -> None:
        if not self.is_usable:
            return
        if isinstance(news, Problem):
            self.say(f"! {self.trouble(news.text)}", "failed", seconds=600)
            return
        again, self._notice_until = self._recording is not None, 0.0
        self._recording, self._marks = news.recording, news.recording.marks
        self.playback.continued(news.recording.times)
        if self._moment is not None:
            self.playback.go(bisect_right(self.playback.times, self._moment))
            self._moment = None
        kind = "" if news.recording.by_event else "imported session: each step is a message or tool call; "
        self._moved()
        if news.recording.damaged:
            lost = formatting.plural(news.recording.damaged, "event")
            self.say(
                f"! {lost} unreadable (damaged in the database); content missing here",
                "failed",
                seconds=12,
            )
        elif again:
            self.say(f"newer events loaded: {len(self.playback.times):,} steps in total", "done", seconds=4)
        else:
            self.say(f"{kind}space plays, ← → move by step, [ ] by turn", "accent", seconds=8)

    def _draw_newest(self) -> None:
        frame, self._frame = self._frame, None
        if frame is None or not self.is_usable:
            return
        self.seq, self.shown_position = frame.seq, frame.position
        self.snapshot = frame.snapshot
        if self._chosen is None:
            self._choose()
        detail = self.snapshot.detail
        if self._agent_id is not None and (detail is None or detail.agent_id != self._agent_id):
            self._ask()

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        """The live dashboard goes on behind; of it, only how far the session has come matters here."""
        if snapshot.session is not None and snapshot.session.id == self.session_id:
            self._newest = snapshot.session.event_seq
        self._describe()

    def watch_snapshot(self) -> None:
        self.redraw()

    def tick(self, now: float) -> None:
        self._describe()

    # What is drawn.

    def redraw(self) -> None:
        self.events.following = True
        self.draw(self.snapshot.read_at)
        self._draw_edges()

    def choose_row(self) -> None:
        if self._chosen is not None and self.plan.selected_id != self._chosen:
            self.plan.select(self._chosen, tell=False)

    def look_at(self, agent_id: str | None) -> None:
        self._agent_id = agent_id

    def action_fold(self, fold: bool) -> None:
        self.playback.playing = False
        super().action_fold(fold)

    def _draw_edges(self) -> None:
        """What follows the user's position at once, before the panes do."""
        self.query_one(ReplayHeader).update_replay(self.snapshot, self.playback, self.roster)
        self.scrubber.update(self.playback, self._marks)
        self.show_keys()
        self.draw_path()
        self._describe()

    def _describe(self) -> None:
        """Which step it is, in words."""
        if not self.is_mounted:
            return
        notice = self.notice(self.watch_app.now())
        pieces: list[Piece] = []
        if self.snapshot.events and self.shown_position == self.playback.position:
            last = self.snapshot.events[-1]
            pieces = [(f"#{last.seq:,} ", "strong"), (f"{last.kind} ", last.role)]
            name = self.roster.names.get(last.agent_id or "", "")
            pieces += [(f"{name} ", "accent"), (last.text, "text")]
        if self._has_gone_on:
            pieces.insert(0, ("newer events; r loads them  ", "waiting"))
        self.query_one(StatusLine).pieces = tuple(notice or pieces)

    @property
    def _has_gone_on(self) -> bool:
        recording = self._recording
        return recording is not None and recording.by_event and self._newest > len(recording.times)

    def label_of(self, action: Action) -> str:
        return "Pause" if action.id == "replay.play" and self.playback.playing else super().label_of(action)

    def why_not(self, action: Action) -> str:
        if action.id == "replay.read_on":
            return "" if self._has_gone_on else "no newer events"
        if action.id == "fork" and self._recording is not None:
            return self.why_not_fork()
        return (
            ""
            if self._recording is not None or action.id in ("back", "help")
            else "the session is still loading"
        )

    # Going.

    def _go_on(self) -> None:
        now, before = self._clock(), self._ticked
        self._ticked = now
        was_playing = self.playback.playing
        if self.playback.advance(now - before):
            self._moved()
        elif was_playing != self.playback.playing:
            self._draw_edges()

    def go(self, position: int) -> None:
        """Show another position."""
        if self.playback.times and self.playback.go(position):
            self._moved()
        else:
            self._draw_edges()

    def _moved(self) -> None:
        self._notice_until = 0.0  # what was said was about another step
        self._draw_edges()
        self._ask()

    def _ask(self) -> None:
        if self._projector is not None and self.playback.times:
            self._projector.show(self.playback.position, self._agent_id)

    def action_read_on(self) -> None:
        if self._projector is not None:
            self.say("loading newer events …", "muted", seconds=600)
            self._projector.read_on()

    def go_to(self, moment: float) -> None:
        """Go to the last step at that moment."""
        self.playback.go(bisect_right(self.playback.times, moment))
        self._moved()

    def action_timeline(self) -> None:
        times = self.playback.times
        self.watch_app.open_timeline(
            self.session_id, moment=times[self.playback.position - 1] if times else None
        )

    def action_back(self) -> None:
        if self.has_class("-zoom"):
            self.leave_zoom()
        elif self._words_of(self.active_pane):
            self._search(self.active_pane, "")
        elif self.has_one_pane and self.active_pane != "plan":
            self.action_pane("plan")
        else:
            self.app.pop_screen()

    # Which agent.

    def _choose(self) -> None:
        """Until the user chooses: the agent of the newest event, or the first one there is."""
        acting = next((event.agent_id for event in reversed(self.snapshot.events) if event.agent_id), None)
        wanted = (
            acting
            if self.plan.shown.place_of_agent(acting) is not None
            else next(iter(self.plan.shown.agent_ids()), None)
        )
        if wanted is not None:
            self._look_at(wanted)

    def _look_at(self, agent_id: str) -> bool:
        place = self.plan.shown.place_of_agent(agent_id)
        if place is None:
            return False
        self._chosen = self.plan.shown[place].id
        self.redraw()
        return True

    def _pane_key(self, name: str) -> str:
        return ""  # digits are places in the session

    def action_agent(self) -> None:
        """Look at the agent that the step was of."""
        acting = self.snapshot.events[-1].agent_id if self.snapshot.events else None
        if acting is None or not self._look_at(acting):
            self.say("this step has no agent", "muted", seconds=3)
        else:
            if self.has_one_pane:
                self.action_pane("agent")
            self._ask()

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        if event.view is self.plan:
            self._chosen = event.row_id
            self.redraw()
            self._ask()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        """Open the agent of the plan's row; go to an event or a pass, and open it if it is there already."""
        self.playback.playing = False
        row = event.view.selected
        if event.view is self.plan:
            self.open_agent()
        elif isinstance(event.view, ReplayEvents):
            newest = self.snapshot.events[-1] if self.snapshot.events else None
            if newest is not None and int(event.row_id) == newest.seq:
                then = {agent.id: agent.last_seq for agent in self.snapshot.agents}
                self.watch_app.open_event(self.session_id, newest.facts, then=then)
            else:
                self.go(int(event.row_id))
        elif isinstance(row, CompactionFacts) and self._recording is not None:
            position = position_at(self._recording, row.ended_at or row.requested_at)
            if position == self.shown_position:
                agent = self.snapshot.agent(row.agent_id)
                self.watch_app.open_compaction(
                    row.id, until=max(1, agent.last_seq if agent is not None else 0)
                )
            else:
                self.go(position)

    def action_open(self) -> None:
        if isinstance(self.focused, RowView):
            self.focused.action_open()

    @property
    def help_pane(self) -> str:
        panes = {"agent": "replay.agent", "transcript": "replay.agent", "plan": "plan"}
        return panes.get(self.active_pane, "")

    def action_next(self, step: int) -> None:
        """The next match in a transcript that is searched, else the next mark."""
        pane = self.transcript if self.active_pane == "transcript" else self.agent_pane
        if self.active_pane in ("agent", "transcript") and pane.filter_words:
            pane.action_next(step)
        else:
            self.action_mark(step)

    def on_scrubber_sought(self, event: Scrubber.Sought) -> None:
        self.playback.playing = False
        self.go(event.position)

    def action_play(self) -> None:
        before = self.playback.position
        self.playback.play()
        self._ticked = self._clock()
        if self.playback.position != before:
            self._moved()
        self._draw_edges()

    def action_step(self, step: int) -> None:
        self.playback.playing = False
        self.go(self.playback.position + step)

    def action_turn(self, step: int) -> None:
        self.playback.playing = False
        turns = self._recording.turns if self._recording is not None else []
        found = turn_beside(turns, self.playback.position, step)
        if found is None:
            self.say("no later turns" if step > 0 else "no earlier turns", "muted", seconds=3)
        else:
            self.go(found)

    def action_mark(self, step: int) -> None:
        """The next or previous failure, compaction, or task that was done."""
        self.playback.playing = False
        found = turn_beside([mark.position for mark in self._marks], self.playback.position, step)
        if found is None:
            self.say("no later marks" if step > 0 else "no earlier marks", "muted", seconds=3)
        else:
            self.go(found)

    def action_speed(self, step: int) -> None:
        self.say(f"{self.playback.change_speed(step)}× the original speed", "muted", seconds=3)
        self._draw_edges()

    def action_idle(self) -> None:
        self.playback.skips_idle = not self.playback.skips_idle
        self.say(
            "idle time skipped" if self.playback.skips_idle else "idle time included", "muted", seconds=3
        )
        self._draw_edges()

    def action_edge(self, direction: int) -> None:
        self.playback.playing = False
        self.go(1 if direction < 0 else len(self.playback.times))

    def action_tenth(self, tenth: int) -> None:
        self.playback.playing = False
        self.go(1 + tenth * (len(self.playback.times) - 1) // 10)

    def why_not_fork(self) -> str:
        """Why nothing can be forked here; empty where it can."""
        if self._forking:
            return "a fork is in progress"
        if self.snapshot.session is None:
            return "the session is still loading"
        if self._recording is not None and not self._recording.by_event:
            return f"another program ran this session; `wk run --from {self.session_id}` continues it"
        return "" if self.snapshot.agents else "no agent had started at this point"

    def action_fork(self) -> None:
        """Ask, then fork from the step that is shown."""
        self.playback.playing = False
        reason = self.why_not_fork()
        if reason:
            self.say(f"Fork: {reason}", "muted")
            return
        if self.shown_position != self.playback.position:
            self.say("this step is still loading", "muted", seconds=3)
            return
        session, seq = self.snapshot.session, self.seq
        assert session is not None
        name = clip(" ".join(sanitize(session.title or session.goal).split()), 60)
        lines = [
            f"Fork {name} after event #{seq:,}?",
            "Creates a new, paused session; this one does not change. The fork uses no tokens until you resume it.",
        ]
        self.confirm(lines, lambda: self._fork(seq), free=True)

    def _fork(self, seq: int) -> None:
        path, session_id = self.watch_app.database_path, self.session_id
        self._forking = True
        self.say("forking …", "muted", seconds=600)
        show = self.fork_progress()

        def run() -> None:
            try:
                made = fork_session(path, session_id, at_seq=seq, on_progress=show)
            except Exception as error:
                # A worker must never end the dashboard; the reason is said where the fork would have been.
                self.app.call_from_thread(self._forked, str(error), False)
                return
            self.app.call_from_thread(
                self._forked,
                f"forked after event #{made.at_seq:,} as {made.session_id} (paused). Run `wk resume {made.session_id}` to continue. "
                "Press s on the live screen to list it.",
                True,
            )

        self.run_worker(run, thread=True, exit_on_error=False)

    def _forked(self, said: str, done: bool) -> None:
        self._forking = False
        if self.is_usable:
            text = clip(sanitize(said), 300)
            self.say(
                f"✓ {text}" if done else f"✗ fork failed: {text}", "done" if done else "failed", seconds=20
            )


def position_at(recording: Recording, at: float) -> int:
    """The last position that is not after that time."""
    from bisect import bisect_right

    return max(1, bisect_right(recording.times, at))
