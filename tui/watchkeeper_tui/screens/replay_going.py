"""The keys and the mouse that go through a replay: steps, turns, marks, edges, tenths, playing and its
pace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from watchkeeper.store.replay import Mark, Recording, turn_beside
from watchkeeper_tui.playback import Playback
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.widgets.scrubber import Scrubber

if TYPE_CHECKING:
    _Base = WatchScreen
else:
    _Base = object


class ReplayControls(_Base):
    """A screen with a playback. Whatever goes somewhere by hand stops what goes by itself."""

    playback: Playback
    _recording: Recording | None
    _marks: Sequence[Mark]
    _clock: Callable[[], float]
    _ticked: float

    def go(self, position: int) -> None:
        """Show another position."""
        raise NotImplementedError

    def _moved(self) -> None:
        raise NotImplementedError

    def _draw_edges(self) -> None:
        raise NotImplementedError

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
            self.say("no later turn" if step > 0 else "no earlier turn", "muted", seconds=3)
        else:
            self.go(found)

    def action_mark(self, step: int) -> None:
        """The next or previous failure, compaction, or task that was done."""
        self.playback.playing = False
        found = turn_beside([mark.position for mark in self._marks], self.playback.position, step)
        if found is None:
            self.say("no later mark" if step > 0 else "no earlier mark", "muted", seconds=3)
        else:
            self.go(found)

    def action_speed(self, step: int) -> None:
        self.say(f"{self.playback.change_speed(step)}× the session's own pace", "muted", seconds=3)
        self._draw_edges()

    def action_idle(self) -> None:
        self.playback.skips_idle = not self.playback.skips_idle
        self.say(
            "idle time is skipped" if self.playback.skips_idle else "idle time is played", "muted", seconds=3
        )
        self._draw_edges()

    def action_edge(self, direction: int) -> None:
        self.playback.playing = False
        self.go(1 if direction < 0 else len(self.playback.times))

    def action_tenth(self, tenth: int) -> None:
        self.playback.playing = False
        self.go(1 + tenth * (len(self.playback.times) - 1) // 10)
