"""Process trees: finding and killing everything that a tool started, however it tried to escape.

On Linux a worker is a *subreaper*: a daemon that it (or its shell) started stays its descendant even after
`setsid` and a double fork, so a walk of the tree finds it. On other systems, only the process group and
processes with a running parent are found.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from watchkeeper.records.errors import host_fault
from watchkeeper.store.place import Place

# --- The environment of everything that tools run in --------------------------------------------------------
#
# An allowlist of variables, so that no credential is ever passed on.

SESSION_VARIABLE = "WATCHKEEPER_SESSION"
"""Set for all that tools run in, to `mark_of` their session: so what a killed host left running is known for
what it is."""
ALLOWED = frozenset(
    {SESSION_VARIABLE, "PATH", "HOME", "LANG", "LANGUAGE", "TERM", "TMPDIR", "USER", "LOGNAME", "SHELL", "TZ"}
)
ALLOWED_PREFIXES = ("LC_",)
NAMESPACE_FLAG, REGISTER_FLAG = "--namespace", "--register"
"""Flags in a worker's arguments: make a PID namespace of its own; report which processes outlive a call."""
AGENT_VARIABLE = "WATCHKEEPER_AGENT"
"""Set for tools, to the agent's id; the command line refuses control commands under it."""


def mark_of(session_id: str, database: Place) -> str:
    """One session of one database; a copy of a file is another."""
    return f"{session_id} {database.resolve() if isinstance(database, Path) else database}"


def allowed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What tools see of the host's variables."""
    return {
        name: value for name, value in environ.items() if name in ALLOWED or name.startswith(ALLOWED_PREFIXES)
    }


def worker_environment(environ: Mapping[str, str], agent_id: str) -> dict[str, str]:
    """What a worker process starts with. PYTHONPATH is for its own imports; it takes it away before any tool
    runs."""
    return allowed_environment(environ) | {
        AGENT_VARIABLE: agent_id,
        "PYTHONPATH": os.pathsep.join(_import_roots(environ)),
    }


def hide_worker_variables() -> None:
    """In a worker: remove what only its own imports needed; they are found by `sys.path` from now on."""
    os.environ.pop("PYTHONPATH", None)


def _import_roots(environ: Mapping[str, str]) -> list[str]:
    root = Path(__file__).resolve().parents[3]
    # An installed package is found by the interpreter itself; put before the standard library, site-packages
    # could shadow it.
    roots = [] if root.name in ("site-packages", "dist-packages") else [str(root)]
    return roots + [one for one in environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(one)]


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_RLIMIT_LOCKS = 10
_MARKED_LIMITS = (b"Max file locks", b"Max resident set")
"""Limits without an effect since Linux 2.4 and 2.6: one for the mark of a session, one for that of an agent's program."""
_MOST_ROUNDS = 50
_ENDED = (b"Z", b"X")
"""States of a process that has ended, in its `stat`."""


def adopt_orphans() -> bool:
    """Make this process the parent of its orphaned descendants. False where the system cannot."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int, number: signal.Signals) -> bool:
    """Receive `number` when the parent dies; True if the system supports that. Exits if the parent has ended
    already."""
    done = _prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent_pid:
        os._exit(0)
    return done


def descendants(pid: int) -> list[int]:
    """The living processes below `pid`, parents before children; zombies are not living."""
    children = _children_of if sys.platform == "linux" else _children_by_ps()
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for child in children(waiting.pop()):
            found.append(child)
            waiting.append(child)
    return [one for one in found if not _is_zombie(one)]


def folder_of_shell(worker_pid: int) -> str | None:
    """The folder of the shell that a worker started: its first child named bash; None where the system cannot
    tell."""
    if sys.platform != "linux":
        return None
    children = sorted(_children_of(worker_pid))
    # A worker in a PID namespace is the child of the process that made the namespace for it.
    inside = [pid for child in children if _leads_namespace(child) for pid in sorted(_children_of(child))]
    shells = [pid for pid in (*children, *inside) if _file_of(pid, "comm").strip() == b"bash"]
    if not shells:
        return None
    try:
        folder = os.readlink(f"/proc/{shells[0]}/cwd")
    except OSError:
        return None
    return folder if os.path.isdir(folder) else None


def _leads_namespace(pid: int) -> bool:
    """Whether it is the first process of a PID namespace below ours."""
    lines = _file_of(pid, "status").splitlines()
    numbers = next((line.split()[1:] for line in lines if line.startswith(b"NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == b"1"


def kill_descendants(pid: int) -> None:
    """Kill all below `pid`, until nothing is left.

    First all are stopped, and those that they forked meanwhile, until there are no new ones: a process that
    is killed while its siblings fork would be outrun.
    """
    for _ in range(_MOST_ROUNDS):
        stopped: set[int] = set()
        while new := [one for one in descendants(pid) if one not in stopped]:
            for one in new:
                _send(one, signal.SIGSTOP)
            stopped.update(new)
        if not stopped:
            return
        for one in stopped:
            _send(one, signal.SIGKILL)


def end_descendants(pid: int, grace_seconds: float) -> None:
    """Ask all below `pid` to end, and kill what is left after `grace_seconds`."""
    for one in descendants(pid):
        _send(one, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while descendants(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    kill_descendants(pid)


def kill_tree(pid: int) -> None:
    """Kill `pid`, everything below it, and the process group that it leads, if it leads one.

    It is stopped first: it starts nothing more, yet still adopts the orphans of those who are killed.
    """
    _send(pid, signal.SIGSTOP)
    kill_descendants(pid)
    kill_group(pid)
    _send(pid, signal.SIGKILL)


def mark_limits(mark: str, limit: int = _RLIMIT_LOCKS) -> bool:
    """Mark this process, and all that it starts, with a resource limit made of `mark`; False if that is
    impossible. An agent's program is also marked with `resource.RLIMIT_RSS`.

    `RLIMIT_LOCKS` limits nothing since Linux 2.4. Children inherit it, whatever their environment, session or
    parent. Every process can read it, and without privilege it can only be lowered.
    """
    if sys.platform != "linux":
        return False
    value = _limit_of(mark)
    try:
        resource.setrlimit(limit, (value, value))
    except (ValueError, OSError):
        return False  # a lower one was set before: by a run inside whose tool this one is
    return True


def kill_marked(variable: str, mark: str, seconds: float = 10.0) -> list[int]:
    """Kill every process that was started with this environment variable or limit (`mark_limits`), and all
    below it.

    Returns once they are gone; those that still live after `seconds`. Only on Linux, and only one's own
    processes: elsewhere there is no way to tell.
    """
    entry, limit = os.fsencode(f"{variable}={mark}"), str(_limit_of(mark)).encode()
    killed: set[int] = set()
    deadline = time.monotonic() + seconds
    while True:
        found = [
            pid
            for pid in _all_processes()
            if pid != os.getpid()
            and (limit in _limits_of(pid) or entry in _file_of(pid, "environ", raises=True).split(b"\0"))
            and not _is_zombie(pid)
        ]
        if not found or time.monotonic() > deadline:
            return found
        for pid in found:
            if pid not in killed:
                kill_tree(pid)
        if killed.issuperset(found):
            time.sleep(0.01)  # dying
        killed.update(found)


def start_ticks(pid: int) -> int | None:
    """When a process began, in clock ticks since boot (elsewhere than on Linux: seconds since 1970); None if
    there is none.

    The process id together with this time names one process, until the machine restarts.

    Raises:
        OSError: a resource of the machine ran out, so the time is unknown.
    """
    if sys.platform != "linux":
        said = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout.strip()
        with suppress(ValueError):
            return int(time.mktime(time.strptime(said, "%a %b %d %H:%M:%S %Y")))
        return None
    fields = _file_of(pid, "stat", raises=True).rpartition(b")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in _ENDED else None


def kill_identified(pid: int, ticks: int) -> bool:
    """Kill a process, its group and all below it, if it is the one that began then; whether it was."""
    if pid == os.getpid() or start_ticks(pid) != ticks:
        return False
    kill_tree(pid)
    deadline = time.monotonic() + 5.0
    while start_ticks(pid) == ticks and time.monotonic() < deadline:
        _send(pid, signal.SIGKILL)
        time.sleep(0.002)
    return True


def _all_processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:
        if host_fault(error) is not None:
            raise  # what runs is not known: that must not be taken for nothing
        return []


def _file_of(pid: int, name: str, *, raises: bool = False) -> bytes:
    """A file of a process in `/proc`; empty if the process has ended, or is another user's.

    Raises:
        OSError: with `raises`, that a resource of the machine ran out, so that nothing is known.
    """
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError as error:
        if raises and host_fault(error) is not None:
            raise
        return b""


def _limits_of(pid: int) -> list[bytes]:
    """The words of the lines of the limits that can be marks."""
    lines = _file_of(pid, "limits").splitlines()
    return [word for line in lines if line.startswith(_MARKED_LIMITS) for word in line.split()]


def _limit_of(mark: str) -> int:
    """A number of 62 bits that no other session has: large enough for a limit that means none."""
    return 1 << 61 | int.from_bytes(
        hashlib.sha256(mark.encode("utf-8", "surrogateescape")).digest()[:7], "big"
    )


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads or led."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


def _children_of(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for thread in threads for child in _file_of(pid, f"task/{thread}/children").split()]


def _is_zombie(pid: int) -> bool:
    if sys.platform != "linux":
        return False
    fields = _file_of(pid, "stat").rpartition(b")")[2].split()
    return not fields or fields[0] in _ENDED


class _children_by_ps:
    """Children by one listing of all processes, for systems without /proc."""

    def __init__(self) -> None:
        listing = subprocess.run(
            ["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=False
        ).stdout
        self._children: dict[int, list[int]] = {}
        for line in listing.splitlines():
            pid, parent, state = [*line.split(), "", "", ""][:3]
            if pid.isdigit() and parent.isdigit() and not state.startswith("Z"):
                self._children.setdefault(int(parent), []).append(int(pid))

    def __call__(self, pid: int) -> list[int]:
        return self._children.get(pid, [])
