"""The real program in a pseudo-terminal, on a real database file with the store's own feed and lease."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.tui.fake_store import create, small_session

PROGRAM = (
    "import sys, pathlib; from watchkeeper_tui.app import run; sys.exit(run(pathlib.Path(sys.argv[1]), None))"
)
HOLD = "import sys, time, pathlib; from watchkeeper.store.lease import Lease; Lease.acquire(pathlib.Path(sys.argv[1]), sys.argv[2]); print('held', flush=True); time.sleep(600)"


class Terminal:
    """A process in a pseudo-terminal, and all that it wrote."""

    def __init__(
        self,
        path: Path,
        *,
        columns: int = 120,
        rows: int = 40,
        hears_hangups: bool = True,
        errors: Path | None = None,
    ) -> None:
        """`errors`: where standard error goes, if not to the terminal."""
        pid, self.descriptor = pty.fork()
        if pid == 0:
            if errors is not None:
                os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
            if not hears_hangups:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.environ.update(
                TERM="xterm-256color", COLORTERM="truecolor", TZ="UTC", COLUMNS=str(columns), LINES=str(rows)
            )
            os.execv(sys.executable, [sys.executable, "-c", PROGRAM, str(path)])
        self.pid = pid
        self.written = b""

    def until(self, true: Callable[[str], bool], seconds: float = 20.0) -> float:
        """Read until something holds of the text written since the last call; returns how long it took."""
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            if select.select([self.descriptor], [], [], 0.05)[0]:
                try:
                    self.written += os.read(self.descriptor, 65536)
                except OSError:
                    pass
            if true(self.text):
                self.written = b""
                return time.monotonic() - started
        raise AssertionError(f"did not come true within {seconds} s; written: {self.text[:1500]}")

    @property
    def text(self) -> str:
        """What was written, without the sequences that style and place it."""
        return re.sub(r"\x1b\[[0-9;?>]*[ -/]*[@-~]", "", self.written.decode("utf-8", "replace"))

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def ended(self, seconds: float = 10.0) -> int:
        """Its exit code, once it has ended; what it still writes is read, for a full terminal would hold it
        up."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.descriptor], [], [], 0.02)[0]:
                try:
                    self.written += os.read(self.descriptor, 65536)
                except OSError:
                    pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"still running after {seconds} s; written: {self.text[-1500:]}")


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "real.db"


@pytest.fixture
def terminal(database: Path) -> Iterator[Terminal]:
    connection = create(database)
    session = small_session(connection, now=time.time())
    session.set(created_at=time.time() - 60)
    opened = Terminal(database)
    opened.connection = connection  # type: ignore[attr-defined]
    yield opened
    connection.close()
    try:
        os.kill(opened.pid, signal.SIGKILL)
        os.waitpid(opened.pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    os.close(opened.descriptor)


def test_a_host_killed_under_the_open_dashboard_is_dead_within_two_seconds(terminal, database):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(database), "abcd2345"], stdout=subprocess.PIPE, text=True
    ) as host:
        assert host.stdout is not None
        try:
            assert host.stdout.readline().strip() == "held"
            terminal.until(lambda text: "LIVE" in text)
        finally:
            host.kill()
    assert terminal.until(lambda text: "STOPPED" in text, 10) < 2.5
    terminal.press("q")
    assert terminal.ended() == 0


def test_a_commit_reaches_the_screen_and_the_terminal_is_left_as_it_was(terminal: Terminal) -> None:
    terminal.until(lambda text: "STOPPED" in text and "explorer-1" in text)
    connection = terminal.connection  # type: ignore[attr-defined]
    connection.execute("UPDATE tasks SET name = 'the-moon' WHERE id = 't-core'")
    terminal.until(lambda text: "the-moon" in text, 5)
    terminal.press("q")
    assert terminal.ended() == 0
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_viewer_writes_nothing_into_the_database(terminal: Terminal, database: Path) -> None:
    connection = terminal.connection  # type: ignore[attr-defined]
    before = connection.execute("PRAGMA data_version").fetchone()[0]
    terminal.until(lambda text: "explorer-1" in text)
    terminal.press("jjk3\x1b[C2")
    terminal.until(lambda text: "list_folder" in text)
    assert connection.execute("PRAGMA data_version").fetchone()[0] == before


def test_the_screen_is_on_the_terminal_where_errors_go_to_a_file(database: Path, tmp_path: Path) -> None:
    small_session(create(database)).connection.close()
    opened = Terminal(database, errors=tmp_path / "errors")
    opened.until(lambda text: "explorer-1" in text)
    opened.press("q")
    assert opened.ended() == 0
    os.close(opened.descriptor)
    assert (tmp_path / "errors").read_bytes() == b""


@pytest.mark.parametrize("hears_hangups", [True, False], ids=["told by the kernel", "as under nohup"])
def test_a_dashboard_ends_with_its_terminal(database: Path, hears_hangups: bool) -> None:
    create(database).close()
    terminal = Terminal(database, hears_hangups=hears_hangups)
    try:
        terminal.until(lambda text: "no sessions" in text.lower() or "Watchkeeper" in text)
        os.close(terminal.descriptor)
        deadline = time.monotonic() + 10
        pid = status = 0
        while not pid and time.monotonic() < deadline:
            pid, status = os.waitpid(terminal.pid, os.WNOHANG)
        assert pid, "it still runs without a terminal"
        # Who is told may still be the second to notice.
        assert os.waitstatus_to_exitcode(status) in ([-signal.SIGHUP] * hears_hangups + [128 + signal.SIGHUP])
    finally:
        try:
            os.kill(terminal.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_a_dashboard_that_was_stopped_and_continued_from_outside_reads_each_key_once(terminal):
    terminal.until(lambda text: "explorer-1" in text)
    threads = len(os.listdir(f"/proc/{terminal.pid}/task"))
    for _ in range(3):
        os.kill(terminal.pid, signal.SIGSTOP)
        os.waitpid(terminal.pid, os.WUNTRACED)
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.until(lambda text: "explorer-1" in text)
    assert (
        len(os.listdir(f"/proc/{terminal.pid}/task")) < threads + 3
    )  # one more may have begun since; each time two, it was
    terminal.press("q")
    assert terminal.ended() == 0
