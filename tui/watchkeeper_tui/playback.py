"""Going through a recording: where one is, and how fast it goes by itself. No clock and no screen."""

from __future__ import annotations

from collections.abc import Sequence

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
