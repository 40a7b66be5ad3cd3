"""`wk` as a user without privileges runs it, whoever runs the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOBODY = 65534


def interpreter() -> str:
    """A Python of this version that an unprivileged user may execute: this one may lie in root's home."""
    for candidate in (
        sys.executable,
        f"/usr/bin/python3.{sys.version_info.minor}",
        f"/usr/local/bin/python3.{sys.version_info.minor}",
    ):
        if os.getuid() != 0 or _unprivileged([candidate, "-c", "pass"]) == 0:
            return candidate
    pytest.skip("an unprivileged user may not execute any Python of this version here")


def _unprivileged(command: list[str]) -> int:
    try:
        return subprocess.run(
            command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True
        ).returncode
    except OSError:
        return 1


class Place:
    """A folder of a user, and processes of this user: of one without privileges, unless `as_is`."""

    def __init__(self, url: str, *, as_is: bool = False, **environment: str) -> None:
        self.as_is = as_is
        self._changes_user = os.getuid() == 0 and not as_is
        folder = self.folder = Path(tempfile.mkdtemp(prefix="wk-user-"))
        self.workspace = folder / "workspace"
        self.path = folder / "watchkeeper.db"
        self.python = interpreter() if self._changes_user else sys.executable
        self._processes: list[subprocess.Popen[Any]] = []
        places = [
            str(ROOT / "core"),
            str(ROOT / "tui"),
            *(one for one in sys.path if one.endswith("site-packages")),
        ]
        plain = {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ}
        self.environment = plain | {
            "HOME": str(folder), "WATCHKEEPER_CONFIG_DIR": str(folder / "config"), "ANTHROPIC_BASE_URL": url, "TERM": "xterm-256color",
            "PYTHONPATH": os.pathsep.join(places),
        }  # fmt: skip
        if sys.dont_write_bytecode:  # then this interpreter has no compiled modules either
            self.environment["PYTHONPYCACHEPREFIX"] = str(folder / "cache")
        self.environment |= environment
        (folder / "config").mkdir()
        self.workspace.mkdir()
        self.own()

    def own(self) -> None:
        """Give the user all files in the folder."""
        if self._changes_user:
            for one in (self.folder, *self.folder.rglob("*")):
                os.chown(one, NOBODY, NOBODY)

    def start(self, *command: str, **options: Any) -> subprocess.Popen[Any]:
        if self._changes_user:
            options |= {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        process = subprocess.Popen(command, env=self.environment, cwd=self.folder, **options)
        self._processes.append(process)
        return process

    def wk(self, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
        return self.start(self.python, "-m", "watchkeeper", *arguments, "--db", str(self.path), **options)

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                process.kill()
            process.wait()
        for pid in processes(str(self.folder)):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def until(true: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """What `true` returns, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


def processes(*words: str) -> list[int]:
    """The processes whose command line holds all of `words`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if all(word in command for word in words):
            found.append(int(folder.name))
    return found
