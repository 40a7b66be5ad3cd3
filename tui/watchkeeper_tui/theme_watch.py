"""Watch the theme files, so that a saved theme is applied immediately."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

LOOK_SECONDS = 2.0
"""How often it is looked for a folder that is not there yet."""


class ThemeWatch:
    """Calls `changed`, in a thread of its own, whenever a theme file in `folder` was written, also once it is
    made."""

    def __init__(self, folder: Path, changed: Callable[[], None]) -> None:
        self._folder = folder
        self._changed = changed
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin."""
        if not self._stop.is_set():
            threading.Thread(target=self._watch, name="watchkeeper-themes", daemon=True).start()

    def close(self) -> None:
        """Stop; returns at once."""
        self._stop.set()

    def _watch(self) -> None:
        from watchfiles import watch

        try:
            if not self._folder.is_dir():
                while not self._folder.is_dir():
                    if self._stop.wait(LOOK_SECONDS):
                        return
                self._changed()
            for _ in watch(
                self._folder,
                watch_filter=lambda _, name: name.endswith(".toml"),
                debounce=500,
                step=250,  # each step wakes the process
                rust_timeout=1000,
                stop_event=self._stop,
                recursive=False,
                raise_interrupt=False,
            ):
                if not self._stop.is_set():
                    self._changed()
        except (OSError, RuntimeError):
            # No file events here: a theme is read when the dashboard starts, as it always was.
            return
