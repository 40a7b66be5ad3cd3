"""A session as it was at any of its steps: plan, agents, events, compactions and transcript, with a scrubber
below.

It can change nothing, but for the fork that `F` makes once it was answered with `y`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container

from watchkeeper.store.replay import Mark, Recording
from watchkeeper.store.snapshot import CompactionFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.plan_tree import PlanRows, PlanShaper, plan_rows
from watchkeeper_tui.playback import Playback
from watchkeeper_tui.replaying import Frame, News, Opened, Problem, Projector
from watchkeeper_tui.roster import Roster
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.screens.panes import LAYOUT_CSS, Panes
from watchkeeper_tui.screens.replay_fork import ForkingFromStep
from watchkeeper_tui.screens.replay_going import ReplayControls
from watchkeeper_tui.snapshot import SessionState, Snapshot
from watchkeeper_tui.widgets.cells import Piece
from watchkeeper_tui.widgets.prompt import Prompt
from watchkeeper_tui.widgets.replay import (
    ReplayAgentPane,
    ReplayCompactions,
    ReplayEvents,
    ReplayHeader,
    ReplayPlan,
)
from watchkeeper_tui.widgets.rows import RowView
from watchkeeper_tui.widgets.scrubber import Scrubber
from watchkeeper_tui.widgets.status import KeyHint, KeyLine, StatusLine

FRAME_SECONDS = 0.1
STILL_FRAME_SECONDS = 1.0
"""How often a playing replay moves where the user wants little motion."""
_WHILE_ASKED = frozenset({"step", "edge"})
"""What keys that go before the widgets' own must leave alone while a question is open."""


class ReplayScreen(ReplayControls, ForkingFromStep, Panes, WatchScreen):
    """`space` plays, left and right step; the panes are those of the live screen."""

    DEFAULT_CSS = LAYOUT_CSS.replace("LiveScreen", "ReplayScreen") + (
        "ReplayScreen .pane { border: double $pane-border; }"
        " ReplayScreen .pane:focus, ReplayScreen .pane:focus-within { border: double $pane-focus; }"
    )

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "play", "Play", show=False, id="replay.play"),
        Binding("left", "step(-1)", "Back", show=False, id="replay.back", priority=True),
        Binding("right", "step(1)", "On", show=False, id="replay.on", priority=True),
        Binding("shift+left,left_square_bracket", "turn(-1)", "Turn back", show=False, id="replay.turn_back"),
        Binding("shift+right,right_square_bracket", "turn(1)", "Turn on", show=False, id="replay.turn_on"),
        Binding("n", "mark(1)", "Next mark", show=False, id="replay.next_mark"),
        Binding("N", "mark(-1)", "Previous mark", show=False, id="replay.previous_mark"),
        Binding("minus,less_than_sign", "speed(-1)", "Slower", show=False, id="replay.slower"),
        Binding("plus,equals_sign,greater_than_sign", "speed(1)", "Faster", show=False, id="replay.faster"),
        Binding("i", "idle", "Skip idle time", show=False, id="replay.idle"),
        Binding("home", "edge(-1)", "Beginning", show=False, id="replay.first", priority=True),
        Binding("end", "edge(1)", "End", show=False, id="replay.last", priority=True),
        *[
            Binding(str(tenth), f"tenth({tenth})", f"{tenth}0 %", show=False, id=f"replay.tenth{tenth}")
            for tenth in range(10)
        ],
        Binding("a", "agent", "Agent of this step", show=False, id="replay.agent"),
        Binding("r", "read_on", "Read on", show=False, id="replay.read_on"),
        Binding("F", "fork", "Fork", show=False, id="replay.fork"),
        Binding("tab", "next_pane(1)", "Next pane", show=False, id="replay.next_pane"),
        Binding("shift+tab", "next_pane(-1)", "Previous pane", show=False, id="replay.previous_pane"),
        Binding("z", "zoom", "Zoom", show=False, id="replay.zoom"),
        Binding("escape", "back", "Back", show=False, id="replay.leave"),
    ]

    def __init__(self, session_id: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.session_id = session_id
        self.playback = Playback(())
        self.snapshot = Snapshot(state=SessionState.REPLAY)
        """What is shown."""
        self.seq = 0
        """The last event of what is shown."""
        self.shown_position = 0
        """Of the snapshot; the playback may be ahead of it for a moment."""
        self.frame_seconds = FRAME_SECONDS
        """How often it moves while it plays."""
        self._clock = clock
        self._ticked = 0.0
        self._marks: Sequence[Mark] = ()
        self._recording: Recording | None = None
        self._projector: Projector | None = None
        self._frame: Frame | None = None
        self._collapsed: frozenset[str] = frozenset()
        self._rows: PlanRows = plan_rows(self.snapshot, 0.0)
        self._roster = Roster()
        self._shaper = PlanShaper()
        self._agent_id: str | None = None
        self._chosen: str | None = None
        """The row of the plan that was chosen; it is chosen again as soon as it is there again."""
        self._newest = 0
        """The last event that the session is known to have."""

    def compose(self) -> ComposeResult:
        yield ReplayHeader()
        with Container(id="panes"):
            yield ReplayPlan()
            yield ReplayAgentPane()
            yield ReplayEvents()
            yield ReplayCompactions()
        yield Prompt()
        yield Scrubber()
        yield StatusLine()
        yield KeyLine()

    def on_mount(self) -> None:
        self.plan.focus()
        self.agent_pane.tab = 1
        self._arrange()
        self._projector = Projector(self.watch_app.database_path, self.session_id, self._receive)
        self._projector.start()
        self.frame_seconds = STILL_FRAME_SECONDS if self.watch_app.settings.reduced_motion else FRAME_SECONDS
        self.set_interval(self.frame_seconds, self._go_on)
        self.say("reading the recording …", "muted", seconds=600)
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
    def plan(self) -> ReplayPlan:
        return self.query_one(ReplayPlan)

    @property
    def agent_pane(self) -> ReplayAgentPane:
        return self.query_one(ReplayAgentPane)

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
        if not self.is_mounted or self._closing:
            return
        if isinstance(news, Problem):
            self.say(f"! {self.trouble(news.text)}", "failed", seconds=600)
            return
        again, self._notice_until = self._recording is not None, 0.0
        self._recording, self._marks = news.recording, news.recording.marks
        self.playback.continued(news.recording.times)
        kind = "" if news.recording.by_event else "a step is a message or a call: its events tell little; "
        self._moved()
        if news.recording.damaged:
            lost = formatting.plural(news.recording.damaged, "event")
            self.say(
                f"! {lost} cannot be read (damaged in the database); their content is missing here",
                "failed",
                seconds=12,
            )
        elif again:
            self.say(f"read on: {len(self.playback.times):,} steps now", "done", seconds=4)
        else:
            self.say(f"{kind}space plays, ← → steps, [ ] turns", "accent", seconds=8)

    def _draw_newest(self) -> None:
        frame, self._frame = self._frame, None
        if frame is None or not self.is_mounted or self._closing:
            return
        self.snapshot, self.seq, self.shown_position = frame.snapshot, frame.seq, frame.position
        self._draw()
        if self._chosen is None:
            self._choose()
        detail = self.snapshot.detail
        if self._agent_id is not None and (detail is None or detail.agent_id != self._agent_id):
            self._ask()

    def show(self, snapshot: Snapshot, now: float) -> None:
        """The live dashboard goes on behind; of it, only how far the session has come matters here."""
        if snapshot.session is not None and snapshot.session.id == self.session_id:
            self._newest = snapshot.session.event_seq
        self._describe()

    def tick(self, now: float) -> None:
        self._describe()

    # What is drawn.

    def _draw(self) -> None:
        snapshot, now = self.snapshot, self.snapshot.read_at
        self._roster.update(snapshot, now)
        self._rows = self._shaper.rows(snapshot, now, collapsed=self._collapsed)
        plan = self.plan
        plan.show_then(self._rows)
        if self._chosen is not None and plan.selected_id != self._chosen:
            plan.select(self._chosen, tell=False)
        row = plan.selected
        self._agent_id = row.agent.id if row is not None and row.agent is not None else None
        events = self.query_one(ReplayEvents)
        events.following = True
        events.show(snapshot.events, self._roster.names)
        self.query_one(ReplayCompactions).show(snapshot, self._roster, now)
        task = row.task if row is not None and row.agent is None else None
        self.agent_pane.show(snapshot, self._agent_id, now, task_id=task.id if task is not None else None)
        self._draw_edges()

    def _draw_edges(self) -> None:
        """What follows the user's position at once, before the panes do."""
        self.query_one(ReplayHeader).show_replay(self.snapshot, self.playback, self._roster)
        self.scrubber.show(self.playback, self._marks)
        self.query_one(KeyLine).show(self._hints())
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
            name = self._roster.names.get(last.agent_id or "", "")
            pieces += [(f"{name} ", "accent"), (last.text, "text")]
        if self._has_gone_on:
            pieces.insert(0, ("the session has gone on, r reads on  ", "waiting"))
        self.query_one(StatusLine).say(notice or pieces)

    @property
    def _has_gone_on(self) -> bool:
        recording = self._recording
        return recording is not None and recording.by_event and self._newest > len(recording.times)

    def _hints(self) -> list[KeyHint]:
        playing = self.playback.playing
        none = "" if self._recording is not None else "the recording is being read"
        hints = [
            KeyHint("space", "Pause" if playing else "Play", "play", none),
            KeyHint("← →", "Step", "step(1)", none),
            KeyHint("[ ]", "Turn", "turn(1)", none),
            KeyHint("F", "Fork…", "fork", none or self.why_not_fork()),
            KeyHint("- +", "Speed", "speed(1)", none),
            KeyHint("n N", "Mark", "mark(1)", none),
            KeyHint("0-9", "Tenths", "tenth(0)", none),
            KeyHint("i", "Idle", "idle", none),
            KeyHint("a", "Its agent", "agent", none),
            KeyHint("esc", "Back", "back"),
            KeyHint("?", "Help", "help"),
        ]
        if self._has_gone_on:
            hints.insert(1, KeyHint("r", "Read on", "read_on"))
        return hints

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
            self.say("reading on …", "muted", seconds=600)
            self._projector.read_on()

    def action_back(self) -> None:
        self.app.pop_screen()

    # Which agent.

    def _choose(self) -> None:
        """Until the user chooses: the agent of the newest event, or the first one there is."""
        acting = next((event.agent_id for event in reversed(self.snapshot.events) if event.agent_id), None)
        wanted = (
            acting
            if self._rows.place_of_agent(acting) is not None
            else next(iter(self._rows.agent_ids()), None)
        )
        if wanted is not None:
            self._look_at(wanted)

    def _look_at(self, agent_id: str) -> bool:
        place = self._rows.place_of_agent(agent_id)
        if place is None:
            return False
        self._chosen = self._rows[place].id
        self._draw()
        return True

    def action_agent(self) -> None:
        """Look at the agent that the step was of."""
        acting = self.snapshot.events[-1].agent_id if self.snapshot.events else None
        if acting is None or not self._look_at(acting):
            self.say("this step was of no agent", "muted", seconds=3)
        else:
            self._ask()

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        if event.view is self.plan:
            self._chosen = event.row_id
            self._draw()
            self._ask()

    def action_fold(self, fold: bool) -> None:
        """Asked for by a click on the mark before a name."""
        row = self.plan.selected
        if row is not None and row.expandable:
            self.playback.playing = False
            self._collapsed = self._collapsed | {row.id} if fold else self._collapsed - {row.id}
            self._draw()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        """Enter: on the plan folds, on an event or a pass goes there."""
        self.playback.playing = False
        row = event.view.selected
        if event.view is self.plan:
            self._collapsed = self._collapsed ^ {event.row_id}
            self._draw()
        elif isinstance(event.view, ReplayEvents):
            self.go(int(event.row_id))
        elif isinstance(row, CompactionFacts) and self._recording is not None:
            self.go(position_at(self._recording, row.ended_at or row.requested_at))

    def action_open(self) -> None:
        if isinstance(self.focused, RowView):
            self.focused.action_open()

    def help_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return [
            (
                "Replay",
                [
                    ("space", "play, pause; from the beginning where it is at the end"),
                    ("← →", "one step: an event, or in an imported session a message or a call"),
                    ("[ ]  shift+← →", "one turn"),
                    ("n N", "next, previous mark: ✗ failure, ◆ compaction, ✓ task done"),
                    ("- +  < >", "slower, faster: 1× to 64×"),
                    ("i", "skip idle time, or play it"),
                    ("home end  0-9", "beginning, end, tenths; click or drag on the line"),
                    ("enter", "on an event or a compaction: go there"),
                    ("a", "look at the agent of this step"),
                    ("r", "read on, where the session has gone on"),
                    ("F", "fork from this step; asks"),
                ],
            ),
            (
                "Panes",
                [("tab", "next pane"), ("z", "zoom"), ("h l  , .", "the agent's tabs"), ("esc", "back")],
            ),
        ]


def position_at(recording: Recording, at: float) -> int:
    """The last position that is not after that time."""
    from bisect import bisect_right

    return max(1, bisect_right(recording.times, at))
