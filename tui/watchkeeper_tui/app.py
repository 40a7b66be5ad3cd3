"""The dashboard's application: it owns the reader, the theme and the screens, and hands out snapshots."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from textual import events
from textual.app import SystemCommand
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.message import Message
from textual.reactive import var
from textual.screen import Screen

from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.records.text import question_words
from watchkeeper.records.usage_limits import limit_text, parked_limit
from watchkeeper.store.agent_snapshot import EventPlace, place_of_event, read_event
from watchkeeper.store.driver import Connection
from watchkeeper.store.external import ExternalQuestion, load_external_question
from watchkeeper.store.imports import imported_from
from watchkeeper.store.lease import Presence
from watchkeeper.store.place import Place, is_writable
from watchkeeper.store.sessions import find
from watchkeeper.store.snapshot import EventFacts
from watchkeeper_tui import external as terminals
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import BY_ID, MOVE, possible, read_keys, shown
from watchkeeper_tui.control import (
    Control,
    ModelChoice,
    ReadOnlyControl,
    RunRequest,
    StoreControl,
    list_models,
    start_folder,
    start_run,
)
from watchkeeper_tui.formatting import event_facts
from watchkeeper_tui.reader import Reader, lease_pid, lease_pids
from watchkeeper_tui.requests import OPENED_READ_ONLY
from watchkeeper_tui.sanitize import HostileTextFilter, clip, sanitize, sanitize_text
from watchkeeper_tui.screens.base import HelpScreen, WatchScreen
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.settings import (
    Notifications,
    Settings,
    layout_file,
    load_layout,
    load_settings,
    save_layout,
)
from watchkeeper_tui.snapshot import SessionState, Snapshot, budget_share, budget_words
from watchkeeper_tui.theming import ThemedApp

NEAR = 0.8
"""The share of a budget from which on it is near."""
UNATTENDED_SECONDS = 60.0

FIRST_READING_SECONDS = 0.1
"""How long the first paint waits for what it could show; most databases are read in a tenth of that."""

REST_SECONDS = 5.0
"""After so long without a change the times on the screen move every other second: a dashboard is open all day."""
"""Without a key for so long, a terminal that never tells of its focus counts as looked away from."""
Severity = Literal["information", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to announce. Texts are sanitised."""

    title: str
    text: str
    severity: Severity


def news(before: Snapshot, after: Snapshot, wanted: Notifications) -> list[Notice]:
    """What has happened between two readings of one session; nothing where they are of different ones."""
    if (
        before.session is None
        or after.session is None
        or before.session.id != after.session.id
        or before.problem
    ):
        return []
    found: list[Notice] = []
    if wanted.needs_input:
        found += _questions(before, after)
        found += _terminals(before, after)
    if wanted.task_failed:
        found += _failures(before, after)
    if wanted.budget:
        found += _budgets(before, after)
        found += _limits(before, after)
    if wanted.run_finished:
        found += _ended(before, after)
    return found


def _questions(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    known = {each.id for each in before.approvals}
    for each in after.approvals:
        if each.id not in known:
            agent = after.agent(each.agent_id)
            name = sanitize(agent.full_label) if agent else "an agent"
            question = clip(sanitize(question_words(each.tool, each.question)), 160)
            yield Notice(f"{name} needs you", f"wants to run {sanitize(each.tool)} {question}", "warning")


def _terminals(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    """Sessions in other terminals that need a person now, and did not before."""
    if before.external is after.external:
        return
    known = {each.program_session for each, _ in terminals.needy(before.external, before.read_at, None)}
    for each, condition in terminals.needy(after.external, after.read_at, None):
        if each.program_session not in known:
            word = "needs you" if condition.role == "waiting" else condition.word
            yield Notice(f"{terminals.name_of(each)} {word}", condition.note or word, "warning")


def _limits(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    """A usage limit that stops agents now: one notice, however many they are."""
    stopped = {agent.id for agent in before.agents if agent.status == "parked"}
    new = [agent for agent in after.agents if agent.status == "parked" and agent.id not in stopped]
    if new:
        first, more = new[0], f" and {len(new) - 1} more" if len(new) > 1 else ""
        limit = parked_limit(first.parked_until, first.status_reason)
        words = limit_text(limit, after.read_at)
        yield Notice(
            "usage limit reached", f"{clip(sanitize(first.label), 24)}{more}: {sanitize(words)}", "warning"
        )


def _failures(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    failed = {task.id for task in before.tasks if task.status == "failed"}
    for task in after.tasks:
        if task.status == "failed" and task.id not in failed:
            yield Notice(
                "task failed", clip(f"{sanitize(task.label)}: {sanitize(task.error or '')}", 200), "error"
            )


def _budgets(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    earlier = {(each.task_id, each.kind): each for each in before.budgets}
    for each in after.budgets:
        was = earlier.get((each.task_id, each.kind))
        share, then = budget_share(after, each), budget_share(before, was) if was is not None else 0.0
        what = f"{each.amount:g} {sanitize(each.kind)}"
        reached = each.reached_at is not None or share >= 1
        if reached and not (was is not None and (was.reached_at is not None or then >= 1)):
            title = "budget reached" if share >= 1 else "budget too small"
            used = (
                f"{what} used up"
                if share >= 1
                else f"{what}, {share * 100:.0f} % used: {budget_words(share)}"
            )
            yield Notice(title, f"{used}; B raises it, r continues", "error")
        elif share >= NEAR and then < NEAR and not reached:
            yield Notice("budget near", f"{share * 100:.0f}% of {what} used", "warning")


def _ended(before: Snapshot, after: Snapshot) -> Iterator[Notice]:
    ends: dict[SessionState, tuple[str, Severity]] = {
        SessionState.DONE: ("run finished", "information"),
        SessionState.ENDED: ("session ended", "information"),
        SessionState.FAILED: ("run failed", "error"),
        SessionState.CANCELLED: ("run cancelled", "warning"),
        SessionState.DEAD: ("run stopped: background process gone", "error"),
    }
    if before.state is SessionState.LIVE and after.state in ends and after.session is not None:
        title, severity = ends[after.state]
        session = after.session
        ending = after.ending
        said = formatting.without_markup(f"{ending.stopped}\n{ending.summary}") if ending is not None else ""
        text = said or sanitize(session.title or session.goal)
        yield Notice(title, f"{clip(text, 160)}  {formatting.bill(session)}", severity)


def terminal_signal(notice: Notice, how: str) -> str:
    """What is written to the terminal: a bell, or a desktop notification that holds no character that
    acts."""
    title, text = clip(sanitize(f"watchkeeper: {notice.title}"), 80), clip(sanitize(notice.text), 200)
    if how == "osc9":
        return f"\x1b]9;{title} — {text}\x07"
    if how == "osc777":
        return f"\x1b]777;notify;{title.replace(';', ',')};{text.replace(';', ',')}\x07"
    return "\x07" if how == "bell" else ""


def is_unattended(focused: bool | None, last_input: float, now: float) -> bool:
    """Whether the user is away: the terminal lost the focus, or it reports no focus (None) and no key came
    for a while."""
    return now - last_input >= UNATTENDED_SECONDS if focused is None else not focused


_NOT_LISTED = frozenset({"back", "command", "theme", "quit.interrupt", "revoke"})
"""What the palette leaves out: keys of the palette's own kind, and what its rows do better."""
SEEN_SECONDS = 6.0
"""How long a notice stays after the user returns."""
A_DAY = 86_400.0


if TYPE_CHECKING:
    from watchkeeper_tui.screens.welcome import Discovery

ReaderFactory = Callable[[Place, "str | None", Callable[[Snapshot], None]], Reader]


class SnapshotReady(Message):
    """The reader has read a newer snapshot. Of several that wait, only the newest is handled."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SnapshotReady)


class WatchkeeperApp(ThemedApp):
    """A viewer: it reads the store and writes commands, and may be killed at any moment."""

    TITLE = "watchkeeper"
    ENABLE_COMMAND_PALETTE = True
    INHERIT_BINDINGS: ClassVar[bool] = True
    CSS_PATH: ClassVar[list[str | PurePath]] = [
        *(f"screens/{name}.tcss" for name in ("base", "live", "replay", "sessions", "compaction", "approval", "timeline", "usage",
                                              "message", "compare", "dialogs", "artifacts", "fleet", "start", "task_form", "welcome")),
        "app.tcss",
    ]  # fmt: skip

    snapshot: var[Snapshot] = var(Snapshot(), init=False, always_update=True)
    """The newest reading. Screens watch it."""

    def __init__(
        self,
        database_path: Place,
        session_id: str | None,
        *,
        screen: str = "live",
        fleet: Sequence[str] = (),
        theme: str | None = None,
        control: Control | None = None,
        reader_factory: ReaderFactory = Reader,
        now: Callable[[], float] = time.time,
        probe: Callable[[Place, str], int | None] = lease_pid,
        theme_folders: list[Path] | None = None,
        settings: Settings | None = None,
        layout_path: Path | None = None,
        discover: Callable[[], Discovery] | None = None,
    ) -> None:
        self.settings = settings if settings is not None else load_settings()
        self._layout_path = layout_path or layout_file()
        self.layout_kept, self._layout_problem = load_layout(self._layout_path)
        super().__init__(theme or self.settings.theme or self.layout_kept.theme or None, theme_folders)
        self.now = now
        self._focused: bool | None = None
        """Whether the terminal has the focus; None until it reports it."""
        self._last_input = now()
        self._seen = False
        """The user has returned, but has not yet had time to read the notices."""
        if self.settings.reduced_motion:
            self.animation_level = "none"
        self.database_path = database_path
        self._control: Control = control if control is not None else StoreControl(database_path)
        self.control = self._control
        """What acts on the open session."""
        self.left_by = "leave"
        """How the user left: `leave` or `pause`."""
        self.left_at: tuple[str, ...] = ()
        """Where the user left, from the outside in: hostile words."""
        self._probe = probe
        self._first_screen = screen
        self._discover = discover
        self._session_id = session_id
        self._fleet = tuple(fleet)
        """The sessions of the fleet screen; none: all that run, are paused or were active lately."""
        self._barrier = HostileTextFilter()
        self._live = LiveScreen()
        self._presence: Presence | None = None
        self._present_at: tuple[str | None, int] = (None, 0)
        self._ticks = 0
        self.user_keys = read_keys(self.settings.keys)
        self.set_keymap(self.user_keys.keymap())
        self.reader = reader_factory(database_path, session_id, self._receive)

    def get_driver_class(self) -> type[Driver]:
        return _at_home(super().get_driver_class())

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [self._barrier, *super().get_line_filters()]

    def theme_chosen(self, name: str) -> None:
        self.remember(theme=name)

    def themes_reloaded(self) -> None:
        said = "; ".join(self.theme_problems)
        if said:
            self._say_problems(sanitize(said))
        elif isinstance(self.screen, WatchScreen):
            self.screen.say("themes reloaded", "muted", beside=True)

    def _say_problems(self, text: str) -> None:
        """On the screen that is shown. `text` must be sanitised."""
        if isinstance(self.screen, WatchScreen):
            self.screen.say(text, "failed", seconds=12, beside=True)

    # Snapshots.

    def on_mount(self) -> None:
        self.push_screen(self._live)
        if self._first_screen == "sessions":
            self.open_sessions("")
        elif self._discover is not None:
            from watchkeeper_tui.screens.welcome import WelcomeScreen

            self.push_screen(WelcomeScreen(self._discover))
        elif self._first_screen == "fleet":
            self.open_fleet()
        self.reader.start()
        # Beside the first layout, which needs the interpreter too, a reading would take ten times as long.
        self.reader.has_read.wait(FIRST_READING_SECONDS)
        self._theme_watch.start()
        self.set_interval(1.0, self._tick)
        problems = [
            *self.settings.problems,
            *self.theme_problems,
            *self.user_keys.problems,
            *self.user_keys.lost,
        ]
        if self._layout_problem:
            problems.append(self._layout_problem)
        if problems:
            self.call_after_refresh(self._say_problems, sanitize("; ".join(problems)))

    def on_unmount(self) -> None:
        self._leave_presence()
        self._theme_watch.close()
        self.reader.close()

    def _receive(self, snapshot: Snapshot) -> None:
        """From the reader's thread."""
        self.post_message(SnapshotReady(snapshot))

    def on_snapshot_ready(self, event: SnapshotReady) -> None:
        self.after_keys(lambda: setattr(self, "snapshot", event.snapshot))

    def watch_snapshot(self, before: Snapshot, snapshot: Snapshot) -> None:
        self._be_present(snapshot)
        if snapshot.external is not before.external:
            self._follow_answers(before, snapshot)
        self.announce(news(before, snapshot, self.settings.notifications), self.settings.notifications)

    def _follow_answers(self, before: Snapshot, snapshot: Snapshot) -> None:
        """Say what became of answers that were sent to other terminals."""
        still = {each.id for each in snapshot.external.questions}
        for each in before.external.questions:
            if each.id not in still:

                def answer(found: object, asked: ExternalQuestion = each) -> None:
                    from watchkeeper_tui.screens.external import outcome_words

                    # An answer may be sent and confirmed between two readings.
                    if isinstance(found, ExternalQuestion) and found.decided_by:
                        self.call_later(self._say_in_front, outcome_words(asked, found), "accent")

                self.reader.ask(partial(load_external_question, question_id=each.id), answer)

    def _be_present(self, snapshot: Snapshot) -> None:
        """Tell the host of the open session that a user is present who can answer its questions."""
        session = snapshot.session
        at = (session.id if session is not None else None, id(self.control))
        if at == self._present_at:
            return
        self._present_at = at
        self._leave_presence()
        if session is not None and not self.read_only:
            self._presence = Presence(self.database_path, session.id)

    def _leave_presence(self) -> None:
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.close()

    def _tick(self) -> None:
        self.release_lost()
        self._ticks += 1
        if self.now() - self.snapshot.read_at > REST_SECONDS and self._ticks % 2:
            return  # only the clock moves: it moves in steps of two seconds
        for screen in self.screen_stack:
            if isinstance(screen, WatchScreen) and screen.is_usable:
                screen.tick(self.now())

    # Pictures of the screen.

    def save_picture(self) -> None:
        """Save the screen as SVG in the folder that the dashboard was started in, or hand it to the
        browser."""
        self.deliver_screenshot(path=str(start_folder()))

    def on_delivery_complete(self, event: events.DeliveryComplete) -> None:
        event.prevent_default()  # the toolkit would read the path as markup
        where = f"saved to {sanitize(str(event.path))}" if event.path is not None else "sent to the browser"
        self._say_in_front(f"✓ screenshot {where}", "done")

    def on_delivery_failed(self, event: events.DeliveryFailed) -> None:
        event.prevent_default()
        self._say_in_front(f"✗ screenshot failed: {sanitize(str(event.exception))}", "failed")

    def _say_in_front(self, text: str, role: str) -> None:
        front = next((each for each in reversed(self.screen_stack) if isinstance(each, WatchScreen)), None)
        if front is not None:
            front.say(text, role, seconds=12)

    # Keys.

    def key_for(self, name: str) -> str:
        """The key of an action, as the footer shows it; empty where it has none."""
        keys = self.user_keys.of(BY_ID[name])
        return shown(keys) if keys else ""

    def look_at(self, agent_id: str | None) -> None:
        """Have the reader read this agent too."""
        self.reader.look_at(agent_id)

    def probe(self, session_id: str) -> int | None:
        """The process that drives a session, or None."""
        return self._probe(self.database_path, session_id)

    def hosts(self, session_ids: Iterable[str]) -> dict[str, int]:
        """The processes that drive these sessions."""
        return lease_pids(self.database_path, session_ids, self._probe)

    def remember(self, **changes: Any) -> None:
        """Keep how the screen is laid out for the next time."""
        changed = replace(self.layout_kept, **changes)
        if changed == self.layout_kept:
            return
        self.layout_kept = changed
        try:
            save_layout(self._layout_path, changed)
        except OSError as error:
            if not self._layout_problem:
                self._layout_problem = f"cannot save the layout: {error}"
                self._live.say(sanitize(self._layout_problem), "muted")

    # Going places.

    def open_sessions(self, words: str) -> None:
        """The list of sessions."""
        from watchkeeper_tui.screens.sessions import SessionsScreen

        if isinstance(self.screen, SessionsScreen):
            self.screen.reload(words)
        else:
            self.push_screen(SessionsScreen(words))

    def open_event(
        self, session_id: str, event: EventFacts | int, *, then: Mapping[str, int] | None = None
    ) -> None:
        """What an event is about."""
        front = self.screen

        def question(connection: Connection) -> object:
            known = read_event(connection, session_id, event) if isinstance(event, int) else event
            return place_of_event(connection, session_id, known, then) if known is not None else None

        def answer(found: object) -> None:
            self.call_later(self._event_found, front, session_id, found, then)

        self.reader.ask(question, answer)

    def _event_found(
        self, front: Screen[Any], session_id: str, found: object, then: Mapping[str, int] | None
    ) -> None:
        if self.screen is not front:
            return  # the user has gone elsewhere meanwhile
        until = then.get(found.agent_id, 1) if then is not None and isinstance(found, EventPlace) else 0
        if not isinstance(found, EventPlace):
            said = found if isinstance(found, Exception) else "this event is no longer in the database"
            if isinstance(front, WatchScreen):
                front.say(f"! {front.trouble(said)}", "failed")
        elif found.compaction_id is not None:
            self.open_compaction(found.compaction_id, until=until)
        elif found.digest:
            self.open_artifacts(found.digest, session_id=session_id)
        elif found.seq:
            self.open_message(session_id, found.agent_id, found.seq, call_id=found.tool_use_id, until=until)
        else:
            agent = self.snapshot.agent(found.event.agent_id)
            name = sanitize(agent.full_label) if agent is not None else found.event.agent_id or ""
            task = self.snapshot.task(found.event.task_id)
            facts = event_facts(found.event, name, sanitize(task.label) if task is not None else "")
            self.push_screen(HelpScreen(facts, title=f"Event #{found.event.seq:,}"))

    def open_message(
        self, session_id: str, agent_id: str, seq: int, *, call_id: str = "", words: str = "", until: int = 0,
        observation: int | None = None,
    ) -> None:  # fmt: skip
        """A message in its agent's transcript, or an observation and the messages behind it."""
        from watchkeeper_tui.screens.message import MessageScreen, Place

        place = Place(agent_id, seq, call_id, observation)
        self.push_screen(MessageScreen(session_id, place, words=words, until=until))

    def open_compaction(self, compaction_id: int, *, until: int = 0) -> None:
        """One pass in full, before and after."""
        from watchkeeper_tui.screens.compaction import CompactionScreen

        self.push_screen(CompactionScreen(compaction_id, until=until))

    def open_artifacts(self, digest: str = "", *, session_id: str = "") -> None:
        """What a session's agents saved; one artifact, if its digest is given."""
        from watchkeeper_tui.screens.artifacts import ArtifactsScreen

        session = self.snapshot.session
        wanted = session_id or (session.id if session is not None else "")
        if wanted:
            self.push_screen(ArtifactsScreen(wanted, digest))

    def open_session(self, session_id: str, *, read_only: bool = False) -> None:
        """Show a session on the live screen; `read_only` refuses every action on it."""
        self.control = ReadOnlyControl() if read_only else self._control
        self._live.resume_when_shown(None)
        self.reader.open_session(session_id)
        while len(self.screen_stack) > 1 and self.screen is not self._live:
            self.pop_screen()
        if read_only:
            self.call_after_refresh(
                self._live.say,
                f"{session_id} is open read-only; actions are not available",
                "waiting",
                seconds=30,
            )

    def load_session(self, name: str) -> None:
        """Open the session that `name` means (an id, a unique prefix or `last`), and resume it from its last
        step."""

        def question(connection: Connection) -> object:
            try:
                return find(connection, name, own=True)
            except (NotFound, BadInput) as error:
                return error

        def answer(found: object) -> None:
            self.call_later(self._load_found, found)

        self.reader.ask(question, answer)

    def _load_found(self, found: object) -> None:
        if isinstance(found, str):
            self.open_session(found)
            self._live.resume_when_shown(found)
        elif isinstance(self.screen, WatchScreen):
            self.screen.say(self.screen.trouble(str(found)), "failed")

    @property
    def read_only(self) -> str:
        """Why nothing can be done to the open session, for a badge; empty where it can."""
        session = self.snapshot.session
        program = imported_from(session.origin) if session is not None else None
        if program:
            return f"imported from {program}"
        if isinstance(self.control, ReadOnlyControl):
            return OPENED_READ_ONLY
        if not is_writable(self.database_path):
            return "the database is read-only"
        return ""

    def open_replay(self, session_id: str, *, moment: float | None = None) -> None:
        """A session as it was, step by step."""
        from watchkeeper_tui.screens.replay import ReplayScreen

        if isinstance(self.screen, ReplayScreen) and self.screen.session_id == session_id:
            return
        for screen in self.screen_stack:
            if isinstance(screen, ReplayScreen) and screen.session_id == session_id and moment is not None:
                self.pop_screen()  # the timeline that was opened from it
                screen.go_to(moment)
                return
        self.push_screen(ReplayScreen(session_id, moment))

    def open_timeline(self, session_id: str, *, moment: float | None = None) -> None:
        """When each agent of a session did what."""
        from watchkeeper_tui.screens.timeline import TimelineScreen

        self.push_screen(TimelineScreen(session_id, moment))

    def open_charts(self, title: str, agent_ids: Sequence[str]) -> None:
        """Agents over time."""
        from watchkeeper_tui.screens.usage import ChartScreen

        self.push_screen(ChartScreen(title, agent_ids))

    def open_usage(self) -> None:
        """What all sessions used and cost."""
        from watchkeeper_tui.screens.usage import UsageScreen

        self.push_screen(UsageScreen())

    def open_fleet(self, select: str = "") -> None:
        """Several sessions at once, a row each; with one of them selected. Those of other terminals are among all."""
        from watchkeeper_tui.screens.fleet import FleetScreen

        if not isinstance(self.screen, FleetScreen):
            self.push_screen(FleetScreen(() if select else self._fleet, select))

    def open_start(
        self, *, goal: str = "", from_session: str | None = None, name: str = "", workspace: str = ""
    ) -> None:
        """The form that starts a run, or continues a session."""
        from watchkeeper_tui.screens.start import StartScreen

        self.push_screen(StartScreen(goal=goal, from_session=from_session, name=name, workspace=workspace))

    async def start_run(self, request: RunRequest) -> tuple[str, str]:
        """Start a run in the background; returns its session, or an empty id and why not."""
        return await start_run(self.database_path, request)

    async def list_models(self, workspace: str) -> tuple[tuple[ModelChoice, ...], tuple[ModelChoice, ...]]:
        """The models that a run in this workspace can use, and those that its roles ask for."""
        return await list_models(workspace)

    def exit(self, *how: Any, **options: Any) -> None:
        """End the dashboard, and remember where the user was."""
        front = next((one for one in reversed(self.screen_stack) if isinstance(one, WatchScreen)), None)
        if front is not None and front.is_usable:
            self.left_at = front.whereabouts()
        super().exit(*how, **options)

    def leave(self, how: str) -> None:
        """End the dashboard; `pause` pauses the run first."""
        self.left_by = how
        session = self.snapshot.session
        if how == "pause" and session is not None:
            self._live.say("pausing the run, then quitting …", "muted", seconds=60)
            # Beside the event loop: another program may hold the database.
            self.run_worker(
                lambda: self._pause(session.id), thread=True, exit_on_error=False, group="commands"
            )
        else:
            self.exit(0)

    def _pause(self, session_id: str) -> None:
        """In a worker thread."""
        try:
            self.control.submit(session_id, "pause", agent_id=None, task_id=None, payload={})
        except Exception as error:
            # Better to stay than to leave in the belief that it was paused.
            self.left_by = "leave"
            self.call_from_thread(
                self._live.say, f"not paused: {self._live.trouble(error)}", "failed", seconds=12
            )
        else:
            self.call_from_thread(self.exit, 0)

    def action_quit_now(self) -> None:
        self.exit(0)

    def copy_text(self, text: str) -> None:
        """Put text on the clipboard (OSC 52, which carries it as base64): what is copied is what is seen."""
        self.copy_to_clipboard(sanitize_text(text))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """What is possible on the screen, with its keys, by the table of actions; then the themes."""
        if isinstance(screen, WatchScreen):
            for action in possible(screen.scopes):
                is_useless = bool(screen.not_ours) and action.acts
                if not (is_useless or action.group == MOVE or action.id in _NOT_LISTED) and action.label:
                    key = self.key_for(action.id)
                    words = action.said(screen.scopes).help or action.label
                    yield SystemCommand(
                        screen.label_of(action),
                        f"{key:<4} {words}",
                        partial(screen.do, action),
                    )
        for title, name in self.theme_commands().items():
            yield SystemCommand(title, f"switch to {name}", lambda name=name: self.choose_theme(name))
        yield SystemCommand(
            "Screenshot", "save the screen as SVG", lambda: self.set_timer(0.1, self.save_picture)
        )

    def announce(self, notices: list[Notice], wanted: Notifications) -> None:
        """Show these notices in the dashboard and signal the terminal, as the settings say."""
        unattended = is_unattended(self._focused, self._last_input, self.now())
        if not notices or not (wanted.when_focused or unattended):
            return
        room = 3 if self.size.height >= 30 else 1
        if len(self._notifications) + len(notices) > room:
            self.clear_notifications()  # they must not cover what they are about
        for number, notice in enumerate(notices[:room], start=1):
            more = f"  (+{len(notices) - room} more)" if number == room < len(notices) else ""
            seconds = A_DAY if unattended else SEEN_SECONDS
            self.notify(
                f"{notice.text}{more}",
                title=notice.title,
                severity=notice.severity,
                timeout=seconds,
                markup=False,
            )
        signal = terminal_signal(notices[0], wanted.terminal)
        if signal and self._driver is not None:
            self._driver.write(signal)

    def on_app_focus(self) -> None:
        self._focused, self._last_input = True, self.now()

    def on_app_blur(self) -> None:
        self._focused = False

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.InputEvent):
            self._last_input = self.now()
        if isinstance(event, (events.Key, events.MouseDown)) and len(self._notifications) and not self._seen:
            self._seen = True
            self.set_timer(SEEN_SECONDS, self._put_notices_away)
        await super().on_event(event)

    def _put_notices_away(self) -> None:
        self._seen = False
        self.clear_notifications()


# --- The terminal, where it goes away or the program is stopped from outside ----------------------------------

HANGUP_EXIT_CODE = 128 + signal.SIGHUP


class TerminalDriver(LinuxDriver):
    """Textual's driver, with three cases added in which a terminal and its program lose each other."""

    _watched = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Textual draws on standard error, which may be a file (`wk watch 2>log`): then on standard output.
        streams = (sys.__stderr__, sys.__stdout__)
        self._file = next((each for each in streams if each is not None and each.isatty()), self._file)

    def start_application_mode(self) -> None:
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self.input_tty and not self._watched:
            self._watched = True
            Thread(
                target=leave_at_hangup, args=(self.fileno,), name="watchkeeper-hangup", daemon=True
            ).start()

    def _sigcont_application(self, *_: Any) -> None:
        """Continued. Where nothing was suspended before (a SIGSTOP, which no program hears), the terminal's
        modes are whatever the shell made of them, and the threads that read and write still run: end both
        first, as Ctrl+Z does."""
        if self._auto_restart and self._key_thread is not None and self._key_thread.is_alive():
            self.suspend_application_mode()
            self._must_signal_resume = True
        super()._sigcont_application()


def leave_at_hangup(terminal: int) -> None:
    """Wait, without a sound, until the terminal is gone; then end this process as a hangup does. Runs in a
    thread.

    The kernel signals a hangup only to the terminal's session leader and its group. Any other process, or one
    started with `nohup`, would read end of file in a busy loop, and then wait forever for a place in the
    queue of a writer whose thread has ended. Nothing is lost: the dashboard stores no state of its own, and
    the run continues.
    """
    watch = select.poll()
    watch.register(terminal, 0)
    events = 0
    while not events:
        events = next((mask for _, mask in watch.poll()), 0)
    if events & select.POLLHUP:
        os._exit(HANGUP_EXIT_CODE)


def _at_home(driver: type[Driver]) -> type[Driver]:
    """The driver of a terminal of this machine with what we add to it; any other as it is."""
    return TerminalDriver if driver is LinuxDriver else driver


def share_the_processor() -> None:
    """Set the interpreter up for a screen beside a reader, in one process.

    The reader holds the interpreter's lock for a millisecond at most before a key is heard. What was imported
    lives as long as the process and is never searched for garbage, which it has none of: the search would take 15 ms
    of the first paint. What is young is searched, but a whole collection (50 ms with a thousand agents) comes seldom:
    readings form no cycles.
    """
    sys.setswitchinterval(0.001)
    gc.freeze()
    gc.set_threshold(20_000, 20, 200)


def run(
    db_path: Place,
    session_id: str | None,
    *,
    screen: str = "live",
    fleet: Sequence[str] = (),
    on_quit: Callable[[str], None] | None = None,
    on_leave: Callable[[Sequence[str], str | None], None] | None = None,
    theme: str | None = None,
    discover: Callable[[], Discovery] | None = None,
) -> int:
    """Show the dashboard until the user leaves; returns an exit code.

    `session_id` None opens the newest session, or the list where there is none. `screen` is `live`, `sessions` or
    `fleet`: the sessions of `fleet`, or all that run, are paused or were active lately. `on_quit` receives how the user
    left: `leave` or `pause` (the pause is already queued then). `on_leave` receives where the user was, from the outside in
    (hostile words), and the id of the session that was open (None: the user saw only the list).

    With `discover`, which finds what is on this machine, it opens the welcome: `on_quit` then receives `watch PROGRAM`,
    `import PROGRAM…` or `leave`. The database may not exist yet.
    """
    if session_id is None and discover is None:
        session_id, screen = _newest(db_path, screen)
    app = WatchkeeperApp(
        db_path,
        session_id,
        screen=screen,
        fleet=fleet,
        theme=theme or os.environ.get("WATCHKEEPER_THEME"),
        discover=discover,
    )
    share_the_processor()
    code = app.run()
    if on_quit is not None:
        on_quit(app.left_by)
    session = app.snapshot.session
    if on_leave is not None:
        only_list = screen == "sessions" and len(app.left_at) < 2
        opened = session is not None and not (only_list and session.id == session_id)
        on_leave(app.left_at, session.id if session is not None and opened else None)
    return code if code is not None else (app.return_code or 0)


def _newest(db_path: Place, screen: str) -> tuple[str | None, str]:
    from watchkeeper.store.database import open_readonly
    from watchkeeper.store.sessions import last_active_session

    connection = open_readonly(db_path)
    try:
        found = last_active_session(connection)
    finally:
        connection.close()
    return found, screen if found or screen == "fleet" else "sessions"
