"""From starting `wk watch` to the first painted frame, beside a bare Textual app, in one run.

    python tests/benchmarks/first_paint.py --db FILE [--runs 7]

Both run in a pseudo-terminal of 120x40; the clock stops when the marker text of the frame has arrived.
"""

from __future__ import annotations

import argparse
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

BARE = """
from textual.app import App
from textual.widgets import Static
class Bare(App):
    def compose(self):
        yield Static("bare-marker", markup=False)
Bare().run()
"""


def seconds_to(marker: bytes, command: list[str], timeout: float = 30.0) -> float:
    """How long it takes until `marker` is painted; the process is ended after."""
    began = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    seen = b""
    try:
        while time.perf_counter() - began < timeout:
            ready, _, _ = select.select([terminal], [], [], 0.5)
            if ready:
                try:
                    seen += os.read(terminal, 65536)
                except OSError:
                    break
                if marker in seen:
                    return time.perf_counter() - began
        raise SystemExit(f"{command} painted no {marker!r} in {timeout} s: {seen[-300:]!r}")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    ours = [sys.executable, "-m", "watchkeeper", "watch", "--db", str(options.db)]
    bare = [sys.executable, "-c", BARE]
    ratios, first, second = [], [], []
    for _ in range(options.runs):
        a, b = seconds_to(b"Plan", ours), seconds_to(b"bare-marker", bare)
        ratios.append(a / b)
        first.append(a)
        second.append(b)
    print(f"first paint: {statistics.median(first):.3f} s ours, {statistics.median(second):.3f} s bare Textual,"
          f" ratio {statistics.median(ratios):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
