"""The one thing that a replay can do: fork the session from the step that is shown, once that was answered
with `y`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchkeeper.store.fork import fork_session
from watchkeeper.store.replay import Recording
from watchkeeper_tui.playback import Playback
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.snapshot import Snapshot

if TYPE_CHECKING:
    _Base = WatchScreen
else:
    _Base = object


class ForkingFromStep(_Base):
    """A replay that can fork."""

    session_id: str
    playback: Playback
    snapshot: Snapshot
    seq: int
    shown_position: int
    _recording: Recording | None
    _forking = False

    def why_not_fork(self) -> str:
        """Why nothing can be forked here; empty where it can."""
        if self._forking:
            return "a fork is being made"
        if self.snapshot.session is None:
            return "the recording is being read"
        if self._recording is not None and not self._recording.by_event:
            return f"another program ran this session; `wk run --from {self.session_id}` carries it on"
        return "" if self.snapshot.agents else "there was no agent yet, so there is nothing to carry on from"

    def action_fork(self) -> None:
        """Ask, then fork from the step that is shown."""
        self.playback.playing = False
        reason = self.why_not_fork()
        if reason:
            self.say(f"Fork: {reason}", "muted")
            return
        if self.shown_position != self.playback.position:
            self.say("one moment: the step is being read", "muted", seconds=3)
            return
        session, seq = self.snapshot.session, self.seq
        assert session is not None
        name = clip(" ".join(sanitize(session.title or session.goal).split()), 60)
        lines = [
            f"Fork {name} after event #{seq:,}?",
            "a new session, paused there; this one stays as it is. No tokens are spent until it is resumed",
        ]
        self.confirm(lines, lambda: self._fork(seq))

    def _fork(self, seq: int) -> None:
        path, session_id = self.watch_app.database_path, self.session_id
        self._forking = True
        self.say("forking …", "muted", seconds=600)

        def run() -> None:
            try:
                made = fork_session(path, session_id, at_seq=seq)
            except Exception as error:
                # A worker must never end the dashboard; the reason is said where the fork would have been.
                self.app.call_from_thread(self._forked, str(error), False)
                return
            self.app.call_from_thread(
                self._forked,
                f"forked after event #{made.at_seq:,} as {made.session_id}, paused; `wk resume"
                f" {made.session_id}` continues it,"
                " and the list of sessions (s on the live screen) opens it",
                True,
            )

        self.run_worker(run, thread=True, exit_on_error=False)

    def _forked(self, said: str, done: bool) -> None:
        self._forking = False
        if self.is_mounted and not self._closing:
            text = clip(sanitize(said), 300)
            self.say(
                f"✓ {text}" if done else f"✗ not forked: {text}", "done" if done else "failed", seconds=20
            )
