"""The terminal that the dashboard is shown on, where it goes away, or where the program is stopped from
outside."""

from __future__ import annotations

import os
import select
import signal
from threading import Thread
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

HANGUP_EXIT_CODE = 128 + signal.SIGHUP


class TerminalDriver(LinuxDriver):
    """Textual's driver, with two cases added in which a terminal and its program lose each other."""

    _watched = False

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
