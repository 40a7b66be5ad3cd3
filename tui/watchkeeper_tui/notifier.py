"""Notifications: notices in the dashboard that stay until the user can have read them, and terminal
signals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from textual import events

from watchkeeper_tui.notifications import Notice, is_unattended, terminal_signal
from watchkeeper_tui.settings import Notifications
from watchkeeper_tui.theming import ThemedApp

SEEN_SECONDS = 6.0
"""How long a notice stays after the user returns."""
A_DAY = 86_400.0


class NotifyingApp(ThemedApp):
    """An app that shows notices and knows whether the user is present."""

    def __init__(
        self, theme: str | None, theme_folders: list[Path] | None, *, now: Callable[[], float]
    ) -> None:
        super().__init__(theme, theme_folders)
        self.now = now
        self._focused: bool | None = None
        """Whether the terminal has the focus; None until it reports it."""
        self._last_input = now()
        self._seen = False
        """The user has returned, but has not yet had time to read the notices."""

    def tell(self, notices: list[Notice], wanted: Notifications) -> None:
        """Show these notices in the dashboard and signal the terminal, as the settings say."""
        unattended = is_unattended(self._focused, self._last_input, self.now())
        if not notices or not (wanted.when_focused or unattended):
            return
        room = 3 if self.size.height >= 30 else 1
        if len(self._notifications) + len(notices) > room:
            self.clear_notifications()  # they must not cover what they tell of
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
