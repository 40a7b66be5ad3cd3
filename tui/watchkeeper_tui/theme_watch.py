"""Hearing that a theme file was saved, so that it is worn at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path


class ThemeWatch:
    """Calls `changed`, in a thread of its own, whenever a theme file in `folder` was written. Silent where none exists."""

    def __init__(self, folder: Path, changed: Callable[[], None]) -> None:
        self._folder = folder
        self._changed = changed
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin, unless the folder is not there."""
        if self._folder.is_dir():
            threading.Thread(target=self._watch, name="watchkeeper-themes", daemon=True).start()

    def close(self) -> None:
        """Stop; returns at once."""
        self._stop.set()

    def _watch(self) -> None:
        from watchfiles import watch

        try:
            for _ in watch(
                self._folder,
                watch_filter=lambda _, name: name.endswith(".toml"),
                debounce=200,
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
