"""The background service that follows every log of every known program: who runs it, and how it is installed.

One process follows for a database, kept by a lock. `install` writes a user unit for systemd, or an agent for launchd, and
starts it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchkeeper.records.errors import BadInput, DrivenElsewhere, NotFound
from watchkeeper.store import database, imports
from watchkeeper.store.driver import make_private
from watchkeeper.transcripts import files
from watchkeeper.transcripts.reading import programs

UNIT = "watchkeeper-follow.service"
LABEL = "dev.watchkeeper.follow"
OWN_VARIABLES = ("XDG_CONFIG_HOME", "WATCHKEEPER_CONFIG_DIR")
"""Variables that say where the configuration is."""

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]


def places(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Where logs of known programs are, as far as those places exist."""
    found = [place for each in programs() for place in each.places(environ, home)]
    return [place for place in dict.fromkeys(found) if place.exists()]


class _Asked(dict[str, str]):
    """An environment without variables, which notes which are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}

    def get(self, name: str, default: Any = None) -> Any:
        self.names[name] = None
        return default


def handed_on() -> tuple[str, ...]:
    """The variables that say where logs and the configuration are: those that readers ask for, and ours."""
    asked = _Asked()
    places(asked, Path("/"))
    return (*asked.names, *OWN_VARIABLES)


# --- One process for a database ---


def _lock_path(path: Path) -> Path:
    resolved = path.expanduser().resolve()
    return resolved.with_name(resolved.name + "-follower.lock")


class FollowerLock:
    """Held while this process follows all logs for a database. A context manager.

    Raises:
        DrivenElsewhere: another process does.
    """

    def __init__(self, path: Path) -> None:
        self._path = _lock_path(path)

    def __enter__(self) -> FollowerLock:
        make_private(self._path.parent)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.read(self._descriptor, 20).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise DrivenElsewhere(
                f"process {pid or 'another one'} is already following all logs; see wk import --watch-all --status"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)


def follower_pid(path: Path) -> int | None:
    """The process that follows all logs for a database."""
    try:
        descriptor = os.open(_lock_path(path), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return None
    except OSError:
        text = os.read(descriptor, 20).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the logs on this machine are imported."""

    pid: int | None
    """The process that follows; None: none does."""
    logs: int
    current: int
    """Logs of which everything was read when this was asked."""
    pending_bytes: int
    is_installed: bool

    def line(self) -> str:
        """One line."""
        if not self.logs:
            far = "no logs of supported programs found"
        elif self.current == self.logs:
            far = f"all {self.logs:,} logs imported"
        else:
            far = f"{self.current:,} of {self.logs:,} logs imported, {self.pending_bytes / 1e6:,.1f} MB left"
        state = (
            "running" + (f" as process {self.pid}" if self.pid else "")
            if self.pid is not None
            else "not running"
        )
        return f"{state}{'' if self.is_installed else ' (not installed as a service)'}; {far}"


def progress(path: Path, environ: Mapping[str, str], home: Path) -> Progress:
    """Compare the logs with what was read of them."""
    known: dict[str, tuple[int, float, int]] = {}
    if database.is_there(path):
        connection = database.open_readonly(path)
        try:
            known = imports.file_marks(connection)
        finally:
            connection.close()
    kinds = programs()
    found = list(
        files.find(
            places(environ, home),
            lambda each: any(kind.may_be_log(each) for kind in kinds),
            lambda name, why: None,
        )
    )
    left = 0
    current = 0
    for each in found:
        mark = known.get(files.stored_path(each.path))
        if mark is not None and mark[:2] == (each.size, each.modified_at):
            current += 1
        else:
            left += max(0, each.size - (mark[2] if mark else 0))
    return Progress(follower_pid(path), len(found), current, left, unit_path(environ, home).exists())


# --- The service manager ---


def unit_path(environ: Mapping[str, str], home: Path, platform: str = sys.platform) -> Path:
    """Where the user's service manager looks for our unit."""
    if platform == "darwin":
        return home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "systemd" / "user" / UNIT


def command(path: Path) -> list[str]:
    """What the service runs."""
    return [sys.executable, "-P", "-m", "watchkeeper", "import", "--watch-all", "--db", str(path)]


def _systemd_word(text: str) -> str:
    for one, other in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        text = text.replace(one, other)
    return f'"{text}"'


def unit_text(path: Path, environ: Mapping[str, str], platform: str = sys.platform) -> bytes:
    """The unit, whose only variables are those that say where logs and the configuration are."""
    kept = {name: environ[name] for name in handed_on() if environ.get(name)}
    if any("\n" in word for word in (*command(path), *kept.values())):
        raise BadInput("a path with a line break cannot be used in a service unit")
    if platform == "darwin":
        import plistlib

        about: dict[str, Any] = {
            "Label": LABEL, "ProgramArguments": command(path), "RunAtLoad": True, "KeepAlive": {"SuccessfulExit": False},
            "ProcessType": "Background", "EnvironmentVariables": kept,
        }  # fmt: skip
        return plistlib.dumps(about)
    words = " ".join(_systemd_word(word).replace("$", "$$") for word in command(path))
    lines = [
        "[Unit]",
        "Description=Watchkeeper: imports the sessions of agent programs",
        "",
        "[Service]",
        f"ExecStart={words}",
        *(f"Environment={_systemd_word(f'{name}={value}')}" for name, value in kept.items()),
        "Restart=on-failure",
        "RestartSec=10",
        "Nice=10",
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    return "\n".join(lines).encode()


def _manager(platform: str) -> list[str]:
    name = "launchctl" if platform == "darwin" else "systemctl"
    if shutil.which(name) is None:
        raise NotFound(
            f"{name} is not installed; start `wk import --watch-all` another way, such as at login"
        )
    return [name] if platform == "darwin" else [name, "--user"]


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


def install(
    path: Path, environ: Mapping[str, str], home: Path, run: Run = _run, platform: str = sys.platform
) -> Path:
    """Write the unit and start it, now and at each login; returns where it is.

    Raises:
        NotFound: this machine has no such service manager.
        BadInput: it refused.
    """
    manager = _manager(platform)
    unit = unit_path(environ, home, platform)
    text = unit_text(path, environ, platform)
    make_private(unit.parent)
    before = unit.read_bytes() if unit.exists() else None
    unit.write_bytes(text)
    steps = (
        [
            [*manager, "bootout", f"gui/{os.getuid()}/{LABEL}"],
            [*manager, "bootstrap", f"gui/{os.getuid()}", str(unit)],
        ]
        if platform == "darwin"
        else [[*manager, "daemon-reload"], [*manager, "enable", UNIT], [*manager, "restart", UNIT]]
    )
    for words in steps:
        done = run(words)
        if done.returncode and "bootout" not in words:
            if before is None:
                unit.unlink(missing_ok=True)
            else:
                unit.write_bytes(before)
            why = " ".join((done.stderr or done.stdout).split())[:300]
            raise BadInput(f"`{' '.join(words)}` failed; nothing was changed: {why}")
    return unit


def uninstall(environ: Mapping[str, str], home: Path, run: Run = _run, platform: str = sys.platform) -> Path:
    """Stop the service and delete its unit; returns where it was.

    Raises:
        NotFound: it is not installed.
    """
    unit = unit_path(environ, home, platform)
    if not unit.exists():
        raise NotFound("the service is not installed; run wk import --watch-all --install")
    manager = _manager(platform)
    run(
        [*manager, "bootout", f"gui/{os.getuid()}/{LABEL}"]
        if platform == "darwin"
        else [*manager, "disable", "--now", UNIT]
    )
    unit.unlink(missing_ok=True)
    if platform != "darwin":
        run([*manager, "daemon-reload"])
    return unit
