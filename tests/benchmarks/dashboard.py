"""The real dashboard in a pseudo-terminal while another process writes: commit→pixel, key→paint, idle CPU, memory.

    python tests/benchmarks/dashboard.py [--agents 1000] [--rate 5000] [--samples 30]

`commit→pixel` is from the commit of a task's new title to its arrival at the terminal; `key→paint` from writing `f` to
the arrival of the words that freezing, or following again, puts on screen.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

WRITER = """
import sys, time
from watchkeeper.store.driver import sqlite3
path, rate = sys.argv[1], int(sys.argv[2])
c = sqlite3.connect(path, isolation_level=None, timeout=10)
seq = c.execute("SELECT max(seq) FROM events").fetchone()[0]
batch, marker, due = max(1, rate // 100), 0, time.monotonic() + 1
while True:
    began = time.monotonic()
    c.execute("BEGIN IMMEDIATE")
    now = time.time()
    c.executemany("INSERT INTO events (session_id, seq, at, kind, agent_id, data) VALUES ('abcd2345', ?, ?, 'tool.done', 'agent003', ?)",
                  [(seq + n + 1, now, '{"tool": "bash", "preview": "line %d"}' % (seq + n + 1)) for n in range(batch)])
    seq += batch
    c.execute("UPDATE sessions SET event_seq = ? WHERE id = 'abcd2345'", (seq,))
    told = began >= due
    if told:
        marker += 1
        c.execute("UPDATE tasks SET title = ? WHERE id = 'task001'", (f"mark{marker:04d}x",))
        due = began + 0.5
    c.execute("COMMIT")
    if told:
        print(marker, time.time(), flush=True)
    time.sleep(max(0.0, 0.01 - (time.monotonic() - began)))
"""
VIEWER = "import sys, pathlib; from watchkeeper_tui.app import run; sys.exit(run(pathlib.Path(sys.argv[1]), None))"


class Screen:
    """The viewer's terminal."""

    def __init__(self, path: Path) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
            os.execv(sys.executable, [sys.executable, "-c", VIEWER, str(path)])
        ioctl(self.terminal, TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

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

    def cpu_seconds(self) -> float:
        """Processor time so far (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        """Resident memory (Linux)."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def figures(name: str, values: list[float]) -> str:
    ranked = sorted(values)
    return f"{name}: p50 {statistics.median(ranked) * 1000:.0f} ms, p95 {ranked[int(len(ranked) * 0.95)] * 1000:.0f} ms (n={len(ranked)})"


def main() -> None:
    from tests.tui.fake_store import create, large_session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--samples", type=int, default=30)
    options = parser.parse_args()
    path = Path(tempfile.mkdtemp()) / "bench.db"
    connection = create(path)
    connection.execute("BEGIN")
    large_session(connection, options.agents, now=time.time(), hostile=False)
    connection.execute("COMMIT")
    screen = Screen(path)
    try:
        screen.until(b"Plan")
        screen.drain(3)
        before = screen.cpu_seconds()
        screen.drain(5)
        print(f"idle: {(screen.cpu_seconds() - before) / 5 * 100:.1f} % of a processor, {screen.megabytes():.0f} MiB")
        command = [sys.executable, "-c", WRITER, str(path), str(options.rate)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            try:
                pixels, keys = [], []
                for _ in range(options.samples):
                    number, committed = writer.stdout.readline().split()
                    pixels.append(screen.until(f"mark{int(number):04d}x".encode()) - float(committed))
                for number in range(options.samples):
                    pressed = time.time()
                    os.write(screen.terminal, b"f")
                    keys.append(screen.until(b"following again" if number % 2 else b"FROZEN") - pressed)
                    screen.drain(0.2)
                print(figures("commit→pixel", pixels))
                print(figures("key→paint", keys))
                print(f"busy: {screen.megabytes():.0f} MiB")
            finally:
                writer.kill()
    finally:
        os.kill(screen.pid, signal.SIGKILL)
        os.waitpid(screen.pid, 0)


if __name__ == "__main__":
    main()
