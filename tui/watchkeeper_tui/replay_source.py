"""The source of a replay: the place in a recording and its pace, and the thread that looks up how a session stood.

The latest request wins, and nothing is ever written. The thread has a connection of its own, so that the live dashboard
behind it keeps its reader.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.records.errors import WatchkeeperError
from watchkeeper.store import database, driver
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.replay import AgentStateAt, Recording, open_recording
from watchkeeper.store.snapshot import accept_any_text
from watchkeeper_tui.formatting import event_lines
from watchkeeper_tui.reader import fold_message
from watchkeeper_tui.snapshot import AgentDetail, SessionState, Snapshot, TranscriptBlock

SPEEDS = (1, 2, 4, 8, 16, 32, 64)
IDLE_SECONDS = 2.0
"""What is left of a longer silence where idle time is skipped."""


class Playback:
    """A place among `times`, which never go back. Positions count from 1."""

    def __init__(self, times: Sequence[float]) -> None:
        self.times = times
        self.position = 1 if times else 0
        self.playing = False
        self.skips_idle = True
        self._speed = 0
        self._waited = 0.0
        """Seconds of the session that went by since the position."""

    @property
    def speed(self) -> int:
        """Seconds of the session in one second."""
        return SPEEDS[self._speed]

    @property
    def at_end(self) -> bool:
        """Nothing follows."""
        return self.position >= len(self.times)

    def continued(self, times: Sequence[float]) -> None:
        """The session has gone on: the same recording, and more."""
        self.times = times
        self.go(self.position)

    def change_speed(self, step: int) -> int:
        """A step faster or slower, as far as it goes."""
        self._speed = max(0, min(len(SPEEDS) - 1, self._speed + step))
        return self.speed

    def go(self, position: int) -> bool:
        """Go to a position, or as near as there is; whether that is another one."""
        before, self.position = self.position, max(min(1, len(self.times)), min(len(self.times), position))
        self._waited = 0.0
        if self.at_end:
            self.playing = False
        return self.position != before

    def play(self) -> None:
        """Go on by itself, from the beginning where it is at the end; or stay."""
        if not self.playing and self.at_end:
            self.go(1)
        self.playing = not self.playing and len(self.times) > 1
        self._waited = 0.0

    def advance(self, seconds: float) -> bool:
        """So much time has gone by before the screen; whether the position is another one now."""
        if not self.playing:
            return False
        before, left = self.position, max(0.0, seconds) * self.speed
        while not self.at_end:
            gap = self.times[self.position] - self.times[self.position - 1]
            needed = (min(gap, IDLE_SECONDS) if self.skips_idle else gap) - self._waited
            if left < needed:
                self._waited += left
                break
            left -= max(0.0, needed)
            self.position += 1
            self._waited = 0.0
        self.playing = not self.at_end
        return self.position != before


EVENTS_SHOWN = 300
"""The newest events up to the position that are listed."""
MESSAGES_SHOWN = 80
RETRY_SECONDS = 1.0
_BLOCKS_KEPT = 4_000


@dataclass(frozen=True, slots=True)
class Opened:
    """The recording was read, or read again because the session had gone on."""

    recording: Recording


@dataclass(frozen=True, slots=True)
class Frame:
    """What the screen shows at one position."""

    position: int
    seq: int
    """The last event by then."""
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Problem:
    """Why nothing can be shown, in one line as it came: hostile until sanitised."""

    text: str


News = Opened | Frame | Problem


class Projector(threading.Thread):
    """Reads the recording, then publishes a frame for the last position asked for. `publish` is called from
    this thread."""

    def __init__(self, path: Path, session_id: str, publish: Callable[[News], None]) -> None:
        super().__init__(name="watchkeeper-replay", daemon=True)
        self._path = path
        self._session_id = session_id
        self._publish = publish
        self._news = threading.Condition()
        self._wanted: tuple[int, str | None] | None = None
        self._reopen = True
        self._closed = False
        self._recording: Recording | None = None
        self._blocks: dict[tuple[str, int], tuple[TranscriptBlock, ...]] = {}
        self._tool_names: dict[str, str] = {}
        self._version = 0

    def show(self, position: int, agent_id: str | None) -> None:
        """Ask for a position and the agent to show. An earlier request that has not started is
        dropped."""
        with self._news:
            self._wanted = (position, agent_id)
            self._news.notify()

    def read_on(self) -> None:
        """Read the recording again: the session may have gone on."""
        with self._news:
            self._reopen = True
            self._news.notify()

    def close(self) -> None:
        """Stop. Returns at once."""
        with self._news:
            self._closed = True
            self._news.notify()

    def run(self) -> None:
        connection: Connection | None = None
        try:
            while (work := self._next()) is not None:
                try:
                    if connection is None:
                        connection = accept_any_text(
                            database.open_readonly(
                                self._path, lock_timeout_seconds=database.VIEWER_LOCK_SECONDS
                            )
                        )
                    news = self._open(connection) if work == "open" else self._frame(connection, *work)
                except InterruptedError:
                    break
                except (sqlite3.Error, WatchkeeperError, OSError, ValueError) as error:
                    news = Problem(
                        driver.explain(self._path, error) if isinstance(error, sqlite3.Error) else str(error)
                    )
                    if driver.is_busy(error) or driver.is_busy(error.__cause__ or error):
                        self._again(work)
                if news is not None and not self._closed:
                    self._publish(news)
        finally:
            if connection is not None:
                connection.close()

    def _next(self) -> tuple[int, str | None] | str | None:
        """What is to be done next; None when the replay was left."""
        with self._news:
            self._news.wait_for(
                lambda: (
                    self._closed or self._reopen or (self._wanted is not None and self._recording is not None)
                )
            )
            if self._closed:
                return None
            if self._reopen:
                self._reopen = False
                return "open"
            wanted, self._wanted = self._wanted, None
            return wanted

    def _again(self, work: tuple[int, str | None] | str) -> None:
        """Another program holds the database: in a moment the same again, unless something else is asked
        for."""
        with self._news:
            self._news.wait_for(lambda: self._closed or self._wanted is not None, RETRY_SECONDS)
            if isinstance(work, str):
                self._reopen = True
            elif self._wanted is None:
                self._wanted = work

    def _open(self, connection: Connection) -> News:
        connection.execute("BEGIN")
        try:
            found = open_recording(connection, self._session_id, lambda: self._closed)
        finally:
            connection.execute("COMMIT")
        if found is None:
            return Problem(f"session {self._session_id} is no longer in the database")
        if not found.times:
            return Problem(f"session {self._session_id} has no events to replay yet")
        self._recording = found
        return Opened(found)

    def _frame(self, connection: Connection, position: int, agent_id: str | None) -> News | None:
        recording = self._recording
        if recording is None:
            return None
        then = recording.at(connection, position)
        more = recording.agent(connection, then, agent_id, MESSAGES_SHOWN) if agent_id is not None else None
        self._version += 1
        snapshot = Snapshot(
            version=self._version,
            read_at=then.at,
            session=then.reading.session,
            state=SessionState.REPLAY,
            tasks=then.reading.tasks,
            agents=then.reading.agents,
            events=tuple(
                event_lines(recording.events(connection, position, EVENTS_SHOWN), then.reading.tasks)
            ),
            compactions=then.reading.compactions,
            approvals=then.reading.approvals,
            budgets=then.reading.budgets,
            detail=self._detail(more) if more is not None else None,
        )
        return Frame(position, then.seq, snapshot)

    def _detail(self, more: AgentStateAt) -> AgentDetail:
        blocks: list[TranscriptBlock] = []
        if len(self._blocks) > _BLOCKS_KEPT:
            self._blocks.clear()
        for message in more.messages:
            key = (more.agent_id, message.seq)
            if key not in self._blocks:
                # Messages never change: each is parsed once, however often one goes back and forth.
                self._blocks[key] = tuple(fold_message(message, self._tool_names))
            blocks += self._blocks[key]
        return AgentDetail(
            agent_id=more.agent_id,
            transcript=tuple(blocks),
            first_seq=more.messages[0].seq if more.messages else 1,
            tool_calls=more.reading.tool_calls,
            calls=more.reading.calls,
            facts=more.reading.facts,
            view=more.view,
            views=more.reading.views,
            system=more.system,
            inbox=more.reading.inbox,
        )
