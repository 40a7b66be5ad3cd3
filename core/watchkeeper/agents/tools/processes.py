"""Processes of tools: their environment, their end, and what confines them.

*Their end.* Everything that a tool started is found and killed, however it tried to escape. On Linux a worker is a
*subreaper*: a daemon that it (or its shell) started stays its descendant even after `setsid` and a double fork, so a walk
of the tree finds it. On other systems, only the process group and processes with a running parent are found.

*Confinement* is applied in the process itself: Landlock, the protected database files, and PID namespaces, for workers and
for the parent of an agent program. It is not part of `worker`, which runs as `__main__` and would define these classes
twice. Run as a program without arguments, this module says whether namespaces work here: exit code 0, or one line. With
arguments it is the launcher (`launch`).
"""

from __future__ import annotations

import ctypes
import hashlib
import mimetypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from watchkeeper.agents.tools.confinement import (
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_REC,
    MS_SLAVE,
    NEWNS,
    NEWPID,
    mount,
    restrict,
    unshare,
    wait_outside,
)
from watchkeeper.records import proc
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
_MOST_LEVELS = 5


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
    children = proc.children_of if sys.platform == "linux" else _children_by_ps()
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for child in children(waiting.pop()):
            found.append(child)
            waiting.append(child)
    return [one for one in found if not _is_zombie(one)]


def shell_of(worker_pid: int) -> int | None:
    """The shell that a worker started: the first process named bash below it; None where the system cannot tell.

    Between the two may be what made a namespace for the worker, and what confines the shell.
    """
    if sys.platform != "linux":
        return None
    level = [worker_pid]
    for _ in range(_MOST_LEVELS):
        level = sorted(child for pid in level for child in proc.children_of(pid))
        for pid in level:
            if proc.file_of(pid, "comm").strip() == b"bash":
                return pid
    return None


def jobs_of_shell(worker_pid: int) -> list[int]:
    """The living processes that a worker's shell started, parents before children; also those that left the shell.
    Empty where the worker has no shell, or the system cannot tell."""
    shell = shell_of(worker_pid)
    if shell is None:
        return []
    own = {
        shell,
        *takewhile(lambda pid: pid != worker_pid, proc.parents_of(shell)),
    }  # and what is between the two
    return [pid for pid in descendants(worker_pid) if pid not in own]


def command_line(pid: int) -> str:
    """The words of a process, in one line of bounded length; empty if it has ended."""
    return " ".join(proc.file_of(pid, "cmdline").decode("utf-8", "replace").replace("\0", " ").split())[:100]


def memory_bytes(pid: int) -> int | None:
    """The memory that a process and all below it have for themselves; None where the system cannot tell."""
    if sys.platform != "linux":
        return None
    pages = 0
    for one in (pid, *descendants(pid)):
        sizes = proc.file_of(one, "statm").split()
        pages += int(sizes[1]) - int(sizes[2]) if len(sizes) > 2 else 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def kill_descendants(pid: int) -> None:
    """Kill all below `pid`, until nothing is left."""
    _kill_all(partial(descendants, pid))


def kill_jobs(worker_pid: int) -> None:
    """Kill all that a worker's shell started, but not the shell."""
    _kill_all(partial(jobs_of_shell, worker_pid))


def _kill_all(find: Callable[[], list[int]]) -> None:
    """Kill what `find` finds, until it finds nothing.

    First all are stopped, and those that they forked meanwhile, until there are no new ones: a process that
    is killed while its siblings fork would be outrun.
    """
    for _ in range(_MOST_ROUNDS):
        stopped: set[int] = set()
        while new := [one for one in find() if one not in stopped]:
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
            for pid in proc.processes()
            if pid != os.getpid()
            and (limit in _limits_of(pid) or entry in proc.file_of(pid, "environ", raises=True).split(b"\0"))
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
    stat = proc.stat_of(pid, raises=True)
    return stat.start_ticks if stat is not None and not stat.has_ended else None


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


def _limits_of(pid: int) -> list[bytes]:
    """The words of the lines of the limits that can be marks."""
    lines = proc.file_of(pid, "limits").splitlines()
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


def _is_zombie(pid: int) -> bool:
    if sys.platform != "linux":
        return False
    stat = proc.stat_of(pid)
    return stat is None or stat.has_ended


def _children_by_ps() -> Callable[[int], list[int]]:
    """Children by one listing of all processes, for systems without /proc."""
    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=False
    ).stdout
    children: dict[int, list[int]] = {}
    for line in listing.splitlines():
        pid, parent, state = [*line.split(), "", "", ""][:3]
        if pid.isdigit() and parent.isdigit() and not state.startswith("Z"):
            children.setdefault(int(parent), []).append(int(pid))
    return lambda pid: children.get(pid, [])


# --- Confinement ----------------------------------------------------------------------------------------


class Broken(Exception):
    """In a worker: the call failed because the worker's resource is broken; the host should start another
    worker."""


class OutcomeUnknown(Exception):
    """In a worker: what ran the call ended before the call did, so it may have had an effect."""


# --- In a worker: Landlock, so that the kernel guards files -------------------------------------------------
#
# The file tools check each path before they open it, but another process may swap a symbolic link in between.
# Landlock (Linux 5.13 and later; `man 7 landlock`) makes the kernel refuse the target of such a link if it
# lies outside the workspace. On other systems, only the tools' own check applies.
#
# The worker's own parts stay readable: the interpreter, its libraries and the system's, and programs.

_PROGRAMS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store")
_SETTINGS = (
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/openssl.cnf",
)
"""What programs read before they begin. Nothing of `/etc` else, `/home`, `/root`, `/tmp`, `/var` or
`/proc`."""


def confine(workspace: str) -> bool:
    """Let this process, its threads-to-be and its children change files below `workspace` only, and read only
    those and what programs are made of; False where that is not possible.

    It cannot be undone, and holds for the folder that now bears the name.

    Raises:
        OSError: the machine ran out of something that this needs; nothing is confined yet.
    """
    try:
        return restrict((workspace, os.devnull), _own_places())
    except OSError as error:
        if host_fault(error) is not None:
            raise
        return False


def _own_places() -> Iterator[str]:
    """Where this worker's own code and programs are. No user files, unless a user keeps some in such a
    place."""
    yield from _PROGRAMS
    yield from _SETTINGS
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(sys.executable))
    yield from map(str, mimetypes.knownfiles)
    yield from (place for place in sys.path if os.path.isabs(place))
    yield from (place for place in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(place))


# --- In a worker: the session's database files, always refused ----------------------------------------------
#
# No file tool may open them. They are known by device and inode, so under any name: a hard link, a link, a
# bind mount, or a later name. A descriptor of each is kept, so that its inode number cannot pass to another
# file.

Identity = tuple[int, int]
"""Device and inode."""
Refuses = Callable[[os.stat_result], bool]
"""Whether a file with this status may not be opened."""


def refuses_nothing(status: os.stat_result) -> bool:
    """Every file may be opened."""
    return False


_REFERENCE = os.O_CLOEXEC | (os.O_PATH if sys.platform == "linux" else os.O_NONBLOCK)
"""A descriptor that only refers to a file. Landlock lets it be opened anywhere."""


class IsDatabase(Exception):
    """A tool was about to open the session's database, its log, the index of its log, or a lease."""

    def __str__(self) -> str:
        return "it belongs to this run's database; file tools may not open it"


class ProtectedFiles:
    """The database's files and leases. Make it before the process is confined: later, the leases cannot be
    listed.

    Args:
        names: where the database's files are, or may be.
        leases: the folder of its leases.
    """

    def __init__(self, names: Sequence[str] = (), leases: str = "") -> None:
        self._names = [Path(name) for name in names]
        self._held: dict[Identity, int] = {}
        self._unheld: set[Identity] = set()
        """Those of which no descriptor could be had."""
        self._lease_path = Path(leases) if leases else None
        self._lease_folder: int | None = None
        self._leases: set[Identity] = set()
        if leases:
            with suppress(OSError):
                self._lease_folder = os.open(leases, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.look()

    def look(self) -> None:
        """Find the current files; called before each tool call. SQLite deletes and creates some of them."""
        for name in self._names:
            found = _identity(name)
            if found is not None and found not in self._held:
                self._unheld.add(found)
                with suppress(OSError):
                    descriptor = os.open(name, _REFERENCE)
                    self._held.setdefault(_of(os.fstat(descriptor)), descriptor)
        self._unheld -= self._held.keys()
        with suppress(OSError):
            self._leases = {_of(lease) for lease in self._lease_files()}

    def refuses(self, status: os.stat_result) -> bool:
        """Whether a file is one of them. Ask with the status of an open descriptor, before anything is read
        or changed."""
        return any(_of(status) in known for known in (self._held, self._unheld, self._leases))

    def check(self, path: Path) -> None:
        """Refuse a path whose file is one of them, or that would make one of them.

        Raises:
            IsDatabase: it is, or it would.
        """
        with suppress(OSError):
            if self.refuses(path.stat()):
                raise IsDatabase
        folder = _identity(path.parent)
        if folder is None or not self._names:
            return
        if folder == _identity(self._names[0].parent) and path.name in {name.name for name in self._names}:
            raise IsDatabase
        if self._lease_folder is not None and folder == _of(os.fstat(self._lease_folder)):
            raise IsDatabase

    def below(self, folder: Path) -> list[Path]:
        """Every path below a folder that is one of them. The folder is searched only where one can be
        there."""
        return (
            [path for path in _files_below(folder) if self._is_one(path)]
            if self._may_be_below(folder)
            else []
        )

    def _is_one(self, path: Path) -> bool:
        try:
            return self.refuses(path.stat(follow_symlinks=False))
        except OSError:
            return False

    def _may_be_below(self, folder: Path) -> bool:
        known = {_identity(name) for name in self._names}
        moved = any(
            one not in known or os.fstat(descriptor).st_nlink != 1 for one, descriptor in self._held.items()
        )
        if self._lease_folder is not None:
            moved = moved or _of(os.fstat(self._lease_folder)) != _identity(self._lease_path)
            moved = moved or any(status.st_nlink != 1 for status in self._lease_files())
        return moved or any(name.is_relative_to(folder) for name in self._names)

    def _lease_files(self) -> Iterator[os.stat_result]:
        if self._lease_folder is None:
            return
        with os.scandir(self._lease_folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    yield entry.stat(follow_symlinks=False)


def _files_below(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
    for parent, _, names in os.walk(folder):
        for name in names:
            yield Path(parent, name)


def _identity(path: Path | None) -> Identity | None:
    try:
        return _of(os.stat(path)) if path is not None else None
    except OSError:
        return None


def _of(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


# --- A worker as the first process of a PID namespace -------------------------------------------------------
#
# When the worker ends, the kernel ends all that it started (`man 7 pid_namespaces`). This needs root, or a
# system that lets users make user namespaces. It also needs its own `/proc`, without which programs would
# look each other up under wrong numbers.


def enter_namespace(parent_pid: int) -> None:
    """Continue as the first process of a new namespace. The calling process stays outside, and ends with this
    one.

    `parent_pid` is the host: when it dies, the kernel kills the process outside, and with it this one. Call
    it before any thread starts.

    Raises:
        OSError: the system does not allow it.
    """
    unshare(NEWPID | NEWNS)
    die_with_parent(parent_pid, signal.SIGKILL)
    outside_lives, outside = os.pipe()
    inside = os.fork()
    if inside:
        os.close(outside_lives)
        wait_outside(inside)
    os.close(outside)
    if not _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL)):
        raise OSError("prctl")
    if select.select([outside_lives], [], [], 0)[0]:
        os._exit(1)  # the process outside died before this one could ask for its death signal
    os.close(outside_lives)
    mount(None, "/", None, MS_REC | MS_SLAVE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


# --- An agent program's parent --------------------------------------------------------------------------


def launch(arguments: list[str]) -> int:
    """Run an agent program as the parent of everything that it starts; returns its exit code.

    The launcher waits for one byte on its standard input, which says that it is contained, and starts the program
    with its own standard streams. It adopts what the program's commands leave behind, and ends all of it when the
    program ends, when the host dies, and when it is asked to end.

    Args:
        arguments: `HOST_PID [--namespace] [--register] -- COMMAND…`.
    """
    ours, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    parent = int(ours[0])
    if NAMESPACE_FLAG in ours:
        enter_namespace(parent)
    else:
        die_with_parent(parent, signal.SIGTERM)
    adopt_orphans()
    mark_limits(os.environ.get(SESSION_VARIABLE, ""))
    mark_limits(os.environ.get(AGENT_VARIABLE, ""), resource.RLIMIT_RSS)
    if os.read(0, 1) != b"\n":
        return 1
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def end(number: int, frame: Any) -> None:
        kill_descendants(os.getpid())
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    try:
        program = subprocess.Popen(command, env=environ)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)  # the program alone reads the host, and sees the end of its input
    os.dup2(null, 1)
    while True:  # also reaps what was adopted
        ended, status = os.wait()
        if ended == program.pid:
            break
    kill_descendants(os.getpid())
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _try_namespace() -> int | str | None:
    try:
        enter_namespace(os.getppid())
    except OSError as error:
        return error.strerror
    return 0 if os.readlink("/proc/self") == "1" else "its /proc shows other processes"


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:]) if len(sys.argv) > 1 else _try_namespace())
