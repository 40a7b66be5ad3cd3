"""Containment of a session's tool processes, so that none of them outlives its host unseen.

A command can leave its worker, its process group and its environment (`env -i setsid … &`). When a host is
killed, its remaining processes must end before another host looks at the outside world, or a late effect
would come after that look. There are three ways to contain them; the first that the machine allows is used:

- `cgroup`: a cgroup (version 2) for the session below that of the host. The next host has the kernel kill all
  in it.
- `namespace`: each worker is the first process of a PID namespace. When it dies, by the death of the host
  too, the kernel kills all in the namespace.
- `register`: process ids with their start times in the database: each worker before its first tool, each
  process that outlives a call before the result of the call.

In all three, processes are also known by a mark that they inherit: an environment variable and, on Linux, a
resource limit without an effect. Neither `env -i` nor `setsid` removes the limit.

None of them reaches processes that another program starts on request (`docker run`, `ssh`, `at`,
`systemd-run`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from watchkeeper.agents.tools.processes import (
    NAMESPACE_FLAG,
    REGISTER_FLAG,
    SESSION_VARIABLE,
    allowed_environment,
    kill_identified,
    kill_marked,
    start_ticks,
)
from watchkeeper.records.errors import BadInput, LeaseLost, StoreUnusable, host_fault
from watchkeeper.store import sessions
from watchkeeper.store.sessions import StoredContainment
from watchkeeper.store.transaction import SessionStore

CGROUP_PREFIX = "watchkeeper-"
END_SECONDS = 10.0
"""How long killed processes may take to disappear."""
SHORT_SECONDS = 0.5
"""How long a host that ran out of something tries to kill them. It must pause; the next host ends what is
left."""
PROBE_SECONDS = 20.0


class Kind(StrEnum):
    """The ways, best first."""

    CGROUP = "cgroup"
    NAMESPACE = "namespace"
    REGISTER = "register"


class CannotContain(RuntimeError):
    """This kind cannot be had; the message says why in one line."""


class Containment(Protocol):
    """What starts and feeds workers asks of it."""

    async def prepare(self) -> Sequence[str]:
        """Make ready for a worker; returns what to add to its arguments. How processes are held is committed
        by then."""

    async def admit(self, pid: int, agent_id: str) -> None:
        """Take in a worker that has just started and has received no request yet."""

    async def register(self, agent_id: str, processes: Iterable[tuple[int, int]]) -> None:
        """Note processes (id, start time) that outlive a call. Returns once they are committed."""


class Uncontained:
    """For workers without a session: they end with their host as far as they can be found."""

    async def prepare(self) -> Sequence[str]:
        return ()

    async def admit(self, pid: int, agent_id: str) -> None:
        return None

    async def register(self, agent_id: str, processes: Iterable[tuple[int, int]]) -> None:
        return None


class SessionContainment:
    """One host's containment of one session. It is made, and committed, when the first worker starts.

    Args:
        store: the store of the session that this host has claimed.
        mark: the session's mark (`processes.mark_of`).
        wanted: the kind to use, which the machine allows (`check_containment`); None: the best that it
            allows.
    """

    def __init__(self, store: SessionStore, mark: str, wanted: Kind | None = None) -> None:
        self._store = store
        self._mark = mark
        self._wanted = wanted
        self._making = asyncio.Lock()
        self.kind: Kind | None = None
        """None until the first worker starts."""
        self._id = 0
        self._cgroup: Path | None = None
        self._known: set[tuple[int, int]] = set()

    async def end_earlier(self) -> list[str]:
        """End what earlier hosts of the session left running. Returns a line for each thing that a person
        should know.

        Call it before any step: no effect of an earlier host's tools comes after it returns.
        """
        left = sessions.not_ended(self._store)
        warnings = await asyncio.to_thread(_end_all, left, self._mark)
        if left:
            await self._store.commit(lambda tx: sessions.end(tx, [one.id for one in left]))
        return warnings

    async def prepare(self) -> Sequence[str]:
        async with self._making:
            if self.kind is None:
                await self._make()
        return {Kind.NAMESPACE: (NAMESPACE_FLAG,), Kind.REGISTER: (REGISTER_FLAG,)}.get(
            self.kind or Kind.CGROUP, ()
        )

    async def _make(self) -> None:
        kind = self._wanted or (await asyncio.to_thread(choose, None))[0]
        name = f"{CGROUP_PREFIX}{self._store.session_id}-{self._store.epoch}-{secrets.token_hex(4)}"
        cgroup = own_cgroup() / name if kind is Kind.CGROUP else None
        detail = {"pid_namespace": _pid_namespace()} | ({"path": str(cgroup)} if cgroup is not None else {})
        self._id = await self._store.commit(
            lambda tx: sessions.begin(tx, kind, detail, host_name=socket.gethostname(), boot_id=boot_id())
        )
        if cgroup is not None:
            await asyncio.to_thread(os.mkdir, cgroup)
        self.kind, self._cgroup = kind, cgroup

    async def admit(self, pid: int, agent_id: str) -> None:
        if self._cgroup is not None:
            with suppress(
                ProcessLookupError
            ):  # it has ended already; who waits for it to be ready learns why
                (self._cgroup / "cgroup.procs").write_text(str(pid))
        elif (ticks := start_ticks(pid)) is not None:
            await self.register(agent_id, [(pid, ticks)])

    async def register(self, agent_id: str, processes: Iterable[tuple[int, int]]) -> None:
        new = set(processes) - self._known
        if not new or self.kind is None:
            return
        await self._store.commit(lambda tx: sessions.register(tx, self._id, agent_id or None, sorted(new)))
        self._known |= new

    async def aclose(self) -> None:
        """End what is left, after the workers were closed, and say in the database that nothing is.

        What cannot be ended here is left to the next host.
        """
        if self.kind is None:
            return
        self.kind = None
        if self._cgroup is not None and not await asyncio.to_thread(kill_cgroup, self._cgroup):
            return
        # A host that lost its session, or whose database is gone, leaves this to the next one.
        with suppress(LeaseLost, StoreUnusable):
            await self._store.commit(lambda tx: sessions.end(tx, [self._id]))


def choose(wanted: Kind | None) -> tuple[Kind, dict[Kind, str]]:
    """The kind to use on this machine, and of each better kind why it is not that. Starts processes: up to a
    tenth of a second.

    Raises:
        BadInput: `wanted` cannot be had.
        HostFault: the machine ran out of something while a kind was tried, which says nothing about the kind.
    """
    why_not: dict[Kind, str] = {}
    for kind in Kind if wanted is None else (wanted,):
        try:
            _PROBES[kind]()
        except CannotContain as reason:
            if (fault := host_fault(reason)) is not None:
                raise fault from reason
            why_not[kind] = str(reason)
        else:
            return kind, why_not
    raise BadInput(f"containment = {wanted} does not work here: {why_not[wanted or Kind.REGISTER]}; use auto")


def check_containment(setting: str) -> Kind | None:
    """The kind that `containment` of the configuration, or `WATCHKEEPER_CONTAINMENT` over it, asks for; None
    is `auto`.

    Raises:
        BadInput: there is no such kind, or it cannot be had here.
    """
    chosen = os.environ.get("WATCHKEEPER_CONTAINMENT") or setting
    if chosen == "auto":
        return None
    try:
        kind = Kind(chosen)
    except ValueError:
        raise BadInput(
            f"WATCHKEEPER_CONTAINMENT: unknown kind {chosen!r}; use auto, {', '.join(Kind)}"
        ) from None
    choose(kind)
    return kind


def own_cgroup() -> Path:
    """The folder of this process's own cgroup (version 2).

    Raises:
        CannotContain: there is none, or it is not to be seen here.
    """
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise CannotContain(f"cannot read cgroups ({error.strerror})") from None
    own = next((line.removeprefix("0::") for line in groups if line.startswith("0::")), None)
    if own is None or ".." in own.split("/"):
        raise CannotContain("this process is not in a visible version 2 cgroup")
    for line in mounts:
        fields, _, source = line.partition(" - ")
        if source.startswith("cgroup2 "):
            root, mounted = fields.split()[3:5]
            below = os.path.relpath(own, root)
            if not below.startswith(".."):
                return Path(os.path.normpath(os.path.join(mounted, below)))
    raise CannotContain("no version 2 cgroup file system is mounted")


def kill_cgroup(path: Path) -> bool:
    """Have the kernel kill all processes in a cgroup, and remove it; returns whether it was removed."""
    if not path.name.startswith(CGROUP_PREFIX):
        return False
    began = time.monotonic()
    deadline = began + END_SECONDS
    while path.exists():
        try:
            (path / "cgroup.kill").write_text("1")
            if "populated 0" in (path / "cgroup.events").read_text():
                for folder, _, _ in os.walk(path, topdown=False):
                    os.rmdir(folder)
                return True
        except FileNotFoundError:
            return True
        except OSError as error:  # busy: the last ones are still dying
            if host_fault(error) is not None:
                deadline = min(deadline, began + SHORT_SECONDS)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def boot_id() -> str:
    """Another one after each start of the machine; empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _end_all(left: Sequence[StoredContainment], mark: str) -> list[str]:
    warnings = []
    here = socket.gethostname()
    for one in left:
        if one.boot_id != boot_id():
            if one.host_name != here:
                warnings.append(
                    f"an earlier background process ran on {one.host_name}: processes that its tools left running "
                    "there cannot be stopped from here"
                )
            continue  # else the machine has restarted since
        path = one.detail.get("path")
        if isinstance(path, str) and not kill_cgroup(Path(path)):
            warnings.append(f"cannot stop processes of an earlier run's tools: {path}")
        if (
            one.detail.get("pid_namespace") == _pid_namespace()
        ):  # in another one, the numbers mean other processes
            for pid, ticks in one.processes:
                kill_identified(pid, ticks)
    survivors = kill_marked(SESSION_VARIABLE, mark, END_SECONDS)
    if survivors:
        numbers = ", ".join(map(str, survivors[:10]))
        warnings.append(f"cannot stop processes that an earlier run's tools left running: {numbers}")
    return warnings


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _probe_cgroup() -> None:
    """Try it out: make one, move a process into it, have it killed.

    Raises:
        CannotContain: some of that is not allowed.
    """
    path = own_cgroup() / f"{CGROUP_PREFIX}probe-{secrets.token_hex(4)}"
    try:
        path.mkdir()
    except OSError as error:
        raise CannotContain(f"cannot create a cgroup in {path.parent} ({error.strerror})") from None
    probe = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        (path / "cgroup.procs").write_text(str(probe.pid))
        (path / "cgroup.kill").write_text("1")
        probe.wait(PROBE_SECONDS)
    except OSError as error:
        raise CannotContain(
            f"cannot move a process into its own cgroup and kill it there ({error.strerror})"
        ) from None
    except subprocess.TimeoutExpired:
        raise CannotContain("cannot kill a process in its own cgroup") from None
    finally:
        probe.kill()
        probe.communicate()
        kill_cgroup(path)


def _probe_namespace() -> None:
    """Try it out.

    Raises:
        CannotContain: the system does not allow it.
    """
    if sys.platform != "linux":
        raise CannotContain("this system has no PID namespaces")
    command = [sys.executable, "-P", "-m", "watchkeeper.agents.tools.processes"]
    roots = [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")]
    environ = allowed_environment(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, roots))}
    try:
        tried = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotContain("a PID namespace did not start in time") from None
    if tried.returncode != 0:
        said = tried.stderr.strip().splitlines()
        raise CannotContain(
            f"cannot create a PID namespace ({said[-1] if said else f'exit code {tried.returncode}'})"
        )


def _probe_register() -> None:
    """It needs nothing."""


_PROBES = {Kind.CGROUP: _probe_cgroup, Kind.NAMESPACE: _probe_namespace, Kind.REGISTER: _probe_register}
