"""A program in a pseudo-terminal, and what a benchmark asks of it: when words arrive, and what it takes."""

from __future__ import annotations

import os
import pty
import select
import signal
import statistics
import struct
import sys
import time
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from types import TracebackType

BARE = """
import sys
from textual.app import App
from textual.binding import Binding
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from rich.segment import Segment
from rich.style import Style
COUNT = int(sys.argv[1])
class Rows(ScrollView, can_focus=True):
    BINDINGS = [Binding("j", "move", "Down"), Binding("f", "flip", "Flip")]
    chosen, flipped = 0, False
    def on_mount(self):
        self.virtual_size = Size(self.size.width, COUNT)
    def render_line(self, y):
        place = y + self.scroll_offset.y
        words = ("FROZEN" if self.flipped else "following") + f" row {place:04d} of the bare-marker" if place < COUNT else ""
        return Strip([Segment(words, Style(reverse=place == self.chosen))]).adjust_cell_length(self.size.width)
    def action_move(self):
        self.chosen += 1
        self.refresh()
    def action_flip(self):
        self.flipped = not self.flipped
        self.refresh()
class Bare(App):
    def compose(self):
        yield Rows()
Bare().run()
"""
"""The yardstick: a Textual application that shows as many rows, and nothing else. It takes the number of
rows."""


class Screen:
    """A program in a terminal of 120 by 40; killed at the end of the `with`."""

    def __init__(self, arguments: list[str]) -> None:
        self.began = time.time()
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
            os.execv(sys.executable, [sys.executable, *arguments])
        ioctl(self.terminal, TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def __enter__(self) -> Screen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)

    def until(self, words: bytes, seconds: float = 30.0) -> float:
        """Read until `words` arrive; the wall time then."""
        seen, deadline = b"", time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.terminal], [], [], 0.2)[0]:
                seen = seen[-200:] + os.read(self.terminal, 1 << 16)
                if words in seen:
                    return time.time()
        raise SystemExit(f"{words!r} did not come within {seconds} s")

    def drain(self, seconds: float) -> None:
        """Read whatever comes for so long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.terminal], [], [], left)[0]:
                os.read(self.terminal, 1 << 16)

    def press(self, key: bytes, words: bytes) -> float:
        """Press a key; seconds until `words` arrive."""
        pressed = time.time()
        os.write(self.terminal, key)
        return self.until(words) - pressed

    def processor_share(self, seconds: float) -> float:
        """Of one processor, over so long (Linux)."""
        before = self.processor_seconds()
        self.drain(seconds)
        return (self.processor_seconds() - before) / seconds

    def processor_seconds(self) -> float:
        """That it has taken so far (Linux)."""
        tasks = Path(f"/proc/{self.pid}/task")
        return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks.iterdir()) / 1e9

    def mebibytes(self) -> float:
        """Resident memory (Linux)."""
        return (
            int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        )


def quantile(values: list[float], share: float) -> float:
    """The value that `share` of all do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


def figures(values: list[float]) -> str:
    """Median and 95th percentile, in milliseconds."""
    return f"p50 {statistics.median(values) * 1000:4.0f} ms   p95 {quantile(values, 0.95) * 1000:4.0f} ms   (n={len(values)})"
