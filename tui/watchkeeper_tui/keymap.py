"""Keys that act one after the other.

Textual passes a key to the focused widget and hears of it again when it has bubbled up; only then does a binding act. Of
keys that come in one burst (typed under load, pasted, sent by tmux) all would go to the widget that was focused before
the first acted: `:resume` would open the command bar and then press `r`, `e`, `s`, … `KeyOrder` passes none on before the
one before it has done what it does.

What a key does goes before what the database says: a reading that comes meanwhile is drawn after the key was painted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from textual import events
from textual.app import App
from textual.message import Message

LONGEST_WAIT = 0.5
"""Seconds after which a key counts as done whatever became of it: its widget may have gone."""


class KeyPassed(Message):
    """Follows a key on its way up; when it arrives, the key has arrived before it, or was consumed."""


class KeyOrder(App[int]):
    """An application that takes its keys in order."""

    def __init__(self, *, ansi_color: bool | None = None) -> None:
        super().__init__(ansi_color=ansi_color)
        self._waiting: deque[events.Key] = deque()
        self._unpainted = False
        """A key has done what it does, and that is not on the screen yet."""
        self._held: Callable[[], None] | None = None

    _passed_at: float | None = None
    """When the key was passed on that is still under way."""

    @property
    def _under_way(self) -> bool:
        return self._passed_at is not None and time.monotonic() - self._passed_at < LONGEST_WAIT

    def after_keys(self, do: Callable[[], None]) -> None:
        """Do it now; or, while a key is under way, when that key has been painted. The last of several is
        done."""
        if self._under_way or self._unpainted:
            self._held = do
        else:
            self._held = None
            do()

    def release(self) -> None:
        """The key was painted: do what was held back."""
        self._unpainted = False
        held, self._held = self._held, None
        if held is not None:
            held()

    def release_lost(self) -> None:
        """Do what was held back for a key that never came back; what waits for one that is under way, waits
        on."""
        if not self._under_way:
            self.release()

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and not self.screen_stack:
            return  # typed on while the program ends: nothing is there any more that could hear it
        if not isinstance(event, events.Key) or event.is_forwarded:
            await super().on_event(event)
            return
        if self._under_way:
            self._waiting.append(event)
            return
        self._waiting.append(event)
        await self._pass_next()

    async def on_key_passed(self) -> None:
        self._passed_at = None
        if not self._unpainted:
            self._unpainted = True
            self.call_after_refresh(self.release)
        await self._pass_next()

    async def _pass_next(self) -> None:
        if not self._waiting or not self.screen_stack:
            return
        key, target = self._waiting.popleft(), self.focused or self.screen
        self._passed_at = time.monotonic()
        await super().on_event(key)
        if not target.post_message(KeyPassed()):
            self._passed_at = None
            await self._pass_next()
