"""A worker: drives the sessions that wait in the database, each in a host process of its own.

`step` makes the processes agree with the queue, over and over; it decides by the rows and by what its own processes do.
The lease alone decides who drives a session. A worker that dies takes nothing with it: its hosts go on, and what they
leave is waiting again as soon as their leases are free.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from watchkeeper.agents.backends.programs import load_programs
from watchkeeper.agents.tools.contract import Permission
from watchkeeper.agents.tools.workers import Permissions
from watchkeeper.agents.worktrees import Git, GitFailed
from watchkeeper.records.errors import BadInput, StoreUnusable
from watchkeeper.records.text import one_line
from watchkeeper.runtime.config import Config
from watchkeeper.runtime.control import check_configuration, check_key, last_words, spawn_host
from watchkeeper.runtime.host import RELEASED_EXIT
from watchkeeper.runtime.lifecycle import check_workspace
from watchkeeper.store import database, sessions, workers
from watchkeeper.store.driver import Connection, Queries, make_private, sqlite3
from watchkeeper.store.engine import engine_of
from watchkeeper.store.lease import probe
from watchkeeper.store.place import Place, folder_beside
from watchkeeper.store.workers import Claims, Needs, Waiting, WorkerRow

log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
"""How often a worker says that it is there."""
RECHECK_SECONDS = 5.0
"""How long a session that this worker cannot take is not looked at again."""
MOST_BACKOFF_SECONDS = 300.0
START_SECONDS = 60.0
"""How long a host may take until it has the lease; then it is ended."""
DRIVEN_ELSEWHERE_EXIT = 4

Start = Callable[[Place, str, Sequence[str]], "subprocess.Popen[bytes]"]


@dataclass(slots=True)
class _Slot:
    """A session that this worker prepares or drives."""

    session_id: str
    needs: Needs
    turns: int
    """How many turns its agents had taken: a host that ends without a further one made no progress."""
    began_at: float
    preparing: Future[bool] | None = None
    """The checkout; whether it was made just now."""
    process: subprocess.Popen[bytes] | None = None
    epoch: int | None = None
    """That of the host, once it has the lease."""


class Worker:
    """Drives at most `slots` sessions. Its owner calls `step` several times a second, and `close` at the end."""

    def __init__(
        self,
        place: Place,
        worker_id: str,
        *,
        slots: int,
        labels: Sequence[str] = (),
        machine: str | None = None,
        start: Start = spawn_host,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`machine`: the name of this machine for people, and in its label `host:NAME`; its host name by default."""
        self._place = place
        self.id = worker_id
        self.machine = machine or socket.gethostname()
        self._start = start
        self._monotonic = monotonic
        self._connection: Connection = database.open_writable(place)
        self._claims = Claims(place, self._connection)
        self._slots: dict[str, _Slot] = {}
        self._not_before: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        self._after = (0.0, "")
        self._beat_at = float("-inf")
        self._signals = 0
        self._executor = ThreadPoolExecutor(2, "watchkeeper-checkout")
        config = check_configuration(Path("/"))
        own = (f"host:{self.machine}", *(f"mcp:{name}" for name in sorted(config.mcp_servers)))
        self._row = WorkerRow(
            worker_id,
            self.machine,
            os.getpid(),
            tuple(dict.fromkeys((*labels, *own))),
            slots,
            "running",
            0.0,
            0.0,
        )
        self._beat()

    @property
    def labels(self) -> tuple[str, ...]:
        """Those that were given, the machine's, and one for each MCP server that is configured here."""
        return self._row.labels

    @property
    def sessions(self) -> tuple[str, ...]:
        """What it prepares and drives."""
        return tuple(self._slots)

    @property
    def is_draining(self) -> bool:
        return self._signals > 0

    def step(self) -> None:
        """Look at the processes and at the queue once.

        Raises:
            StoreUnusable, sqlite3.DatabaseError: the database cannot be used now; try again later.
        """
        for slot in list(self._slots.values()):
            self._look_at(slot)
        self._beat()
        if not self.is_draining:
            self._fill()

    def drain(self) -> None:
        """Take nothing more, and ask each host to finish its step and to leave its session to another worker. A second
        call ends the hosts at once, which loses nothing that was committed."""
        self._signals += 1
        self._row = replace(self._row, status="draining")
        self._beat_at = float("-inf")
        for slot in self._slots.values():
            if slot.process is not None and slot.process.poll() is None:
                slot.process.send_signal(signal.SIGTERM if self._signals < 3 else signal.SIGKILL)

    def close(self) -> None:
        """Forget this worker. Hosts that still run go on."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._claims.close()
        with suppress(sqlite3.DatabaseError, StoreUnusable):  # else its row says that it is gone
            workers.forget_worker(self._connection, self.id)
        self._connection.close()

    # --- What runs ------------------------------------------------------------------------------------------

    def _look_at(self, slot: _Slot) -> None:
        if slot.preparing is not None:
            if slot.preparing.done():
                self._prepared(slot, slot.preparing)
            return
        assert slot.process is not None
        if slot.process.poll() is not None:
            self._ended(slot, slot.process)
        elif slot.epoch is None:
            self._await_lease(slot, slot.process)

    def _await_lease(self, slot: _Slot, process: subprocess.Popen[bytes]) -> None:
        holder = probe(self._place, slot.session_id, self._connection)
        if holder is not None and holder.is_here and holder.pid == process.pid:
            slot.epoch = sessions.require(Queries(self._connection), slot.session_id).lease_epoch
            self._claims.release(slot.session_id)
        elif self._monotonic() - slot.began_at > START_SECONDS:
            process.kill()

    def _ended(self, slot: _Slot, process: subprocess.Popen[bytes]) -> None:
        session_id, code = slot.session_id, process.returncode
        if slot.epoch is not None:
            engine_of(self._connection).free_lease(self._connection, session_id, slot.epoch, process.pid)
        self._leave(session_id)
        status, turns = self._progress(session_id)
        if status != "running":
            self._failures.pop(session_id, None)
            if status in ("done", "cancelled") and slot.needs.remote is not None:
                self._executor.submit(tidy, checkout_folder(self._place, session_id), slot.needs.commit or "")
        elif code == DRIVEN_ELSEWHERE_EXIT and probe(self._place, session_id, self._connection) is not None:
            self._not_before[session_id] = self._monotonic() + 2.0
        elif code == RELEASED_EXIT or self.is_draining:
            pass
        elif turns > slot.turns:
            self._failures.pop(session_id, None)
        else:
            how = f"was killed by signal {-code}" if code < 0 else last_words(self._place, session_id)
            first_kill = code < 0 and session_id not in self._failures
            self._fail(
                session_id, f"its background process ended before it did anything: {how.removeprefix('wk: ')}"
            )
            if first_kill:  # by a person or the system, as it seems
                self._not_before.pop(session_id)

    def _progress(self, session_id: str) -> tuple[str, int]:
        reads = Queries(self._connection)
        session = sessions.load(reads, session_id)
        return (session.status, sessions.turns_made(reads, session_id)[0]) if session else ("gone", 0)

    def _leave(self, session_id: str) -> None:
        self._slots.pop(session_id, None)
        self._claims.release(session_id)

    def _fail(self, session_id: str, reason: str) -> None:
        """Try again later, each time after a longer while."""
        failures = self._failures[session_id] = self._failures.get(session_id, 0) + 1
        seconds = min(MOST_BACKOFF_SECONDS, 2.0**failures)
        self._refuse(session_id, f"{reason} (attempt {failures}, retry in {seconds:.0f} s)", seconds)

    def _refuse(self, session_id: str, reason: str, seconds: float) -> None:
        self._not_before[session_id] = self._monotonic() + seconds
        reason = one_line(reason, 500)
        if self._refused.get(session_id) != reason:
            self._refused[session_id] = reason
            workers.note_refusal(self._connection, session_id, self.id, reason)

    def _beat(self) -> None:
        now = self._monotonic()
        if now - self._beat_at >= BEAT_SECONDS:
            self._beat_at = now
            workers.note_worker(self._connection, self._row)

    # --- What waits -----------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Take sessions that wait, the longest first, while there are free slots."""
        if len(self._slots) >= self._row.slots:
            return
        page = workers.waiting(self._connection, self._after)
        now = self._monotonic()
        for one in page:
            if len(self._slots) >= self._row.slots:
                return
            if one.id in self._slots or self._not_before.get(one.id, 0.0) > now:
                continue
            if isinstance(self._place, Path) and probe(self._place, one.id) is not None:
                continue
            self._take(one)
        # Further on at the next step, where a page is full of what others must take.
        full = len(page) >= workers.PAGE
        if not full and self._after == (0.0, ""):
            self._forget(there={one.id for one in page} | set(self._slots))
        self._after = (page[-1].queued_at, page[-1].id) if full else (0.0, "")

    def _forget(self, there: set[str]) -> None:
        """Keep what is known of these sessions alone."""
        for known in (self._not_before, self._failures, self._refused):
            for session_id in set(known) - there:
                del known[session_id]

    def _take(self, one: Waiting) -> None:
        reason = why_not(one, self._row.labels, self._place)
        if reason is not None:
            self._refuse(one.id, reason, RECHECK_SECONDS)
            return
        if not self._claims.take(one.id):
            return
        if not workers.still_waiting(self._connection, one.id) or (
            isinstance(self._place, Path) and probe(self._place, one.id) is not None
        ):
            self._claims.release(one.id)
            return
        _, turns = self._progress(one.id)
        slot = self._slots[one.id] = _Slot(one.id, one.needs, turns, self._monotonic())
        self._refused.pop(one.id, None)
        if one.needs.remote is not None:
            folder = checkout_folder(self._place, one.id)
            slot.preparing = self._executor.submit(
                checkout, folder, one.needs.remote, one.needs.commit or "", dict(os.environ)
            )
        else:
            self._start_host(slot, str(one.needs.path), fresh=False)

    def _prepared(self, slot: _Slot, preparing: Future[bool]) -> None:
        slot.preparing = None
        try:
            fresh = preparing.result()
        except (GitFailed, OSError) as error:
            self._leave(slot.session_id)
            self._fail(slot.session_id, f"cannot check out the commit: {error}")
            return
        if self.is_draining:
            self._leave(slot.session_id)
            return
        self._start_host(slot, str(checkout_folder(self._place, slot.session_id)), fresh=fresh)

    def _start_host(self, slot: _Slot, workspace: str, *, fresh: bool) -> None:
        options = ["--worker", self.id, "--machine", self.machine, "--workspace", workspace]
        slot.began_at = self._monotonic()
        try:
            slot.process = self._start(
                self._place, slot.session_id, [*options, *(["--fresh"] if fresh else [])]
            )
        except (OSError, BadInput) as error:
            self._leave(slot.session_id)
            self._fail(slot.session_id, f"cannot start a background process: {error}")


def why_not(one: Waiting, labels: Iterable[str], place: Place) -> str | None:
    """Why a worker with these labels does not take a session on this machine; None: it may."""
    missing = [label for label in one.needs.labels if label not in set(labels)]
    if missing:
        return f"lacks the label {', '.join(missing)}"
    try:
        folder = None
        if one.needs.remote is not None:
            check_remote(one.needs.remote, one.needs.commit or "")
            if shutil.which("git") is None:
                return "has no git"
        else:
            folder = Path(one.needs.path or "")
            if not folder.is_absolute():
                return "the session has no folder"
            check_workspace(folder, place)
        config = check_configuration(folder or Path("/"))
        base_url = one.settings.get("base_url")
        _check_models(one.model, config, base_url if isinstance(base_url, str) else None)
    except BadInput as error:
        return str(error)
    permissions = Permissions(user=config.permissions)
    allowed = one.settings.get("allow")
    for tool in allowed if isinstance(allowed, list) else ():
        if permissions.resolve(str(tool)) is Permission.DENY:
            return f"its permissions deny {tool}, which the session allows"
    return None


def _check_models(ref: str, config: Config, base_url: str | None) -> None:
    programs = load_programs(config.agents)
    for model, server in ((ref, base_url), (config.memory.model, None)):
        if model is None:
            continue
        program = programs.get(model.partition("/")[0])
        if program is not None:
            if program.path(os.environ) is None:
                raise BadInput(f"{program.label} is not installed: program {program.arguments[0]} not found")
        else:
            check_key(model, environment="the worker", then="restart the worker", base_url=server)


# --- Checkouts ------------------------------------------------------------------------------------------------

PROTOCOLS = "https:ssh:file"
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SCP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[^-:].*")


def check_remote(remote: str, commit: str) -> None:
    """Refuse a remote or a commit that git could take for something else, and one that shows a password.

    Raises:
        BadInput: one line that says what is wrong.
    """
    if not _COMMIT.fullmatch(commit):
        raise BadInput(f"{one_line(commit, 80)!r} is not a full commit id; give all 40 hexadecimal digits")
    shown = one_line(remote, 200)
    if any(ord(character) < 33 for character in remote) or remote.startswith("-") or "::" in remote:
        raise BadInput(
            f"a worker cannot fetch from {shown!r}; use https://, ssh://, USER@HOST:PATH or file:///"
        )
    if _SCP.fullmatch(remote):
        return
    try:
        parts = urlsplit(remote)
        host, password = parts.hostname or "", parts.password
    except ValueError:
        raise BadInput(f"{shown!r} is not a valid remote") from None
    if parts.scheme not in PROTOCOLS.split(":") or (parts.scheme != "file" and not host):
        raise BadInput(
            f"a worker cannot fetch from {shown!r}; use https://, ssh://, USER@HOST:PATH or file:///"
        )
    if host.startswith("-") or (parts.username or "").startswith("-") or parts.path.startswith("/-"):
        raise BadInput(f"a worker cannot fetch from {shown!r}: part of it starts with a dash")
    if password is not None or (parts.scheme == "https" and parts.username):
        raise BadInput(
            "the remote contains a user name or password; use git's credential helper on the worker instead"
        )


def full_commit(commit: str, workspace: Path) -> str:
    """The full name of a commit; a short one, a branch or `HEAD` is looked up in the repository of a workspace.

    Raises:
        BadInput: it is not known there.
    """
    if _COMMIT.fullmatch(commit):
        return commit
    try:
        found = Git(os.environ)(
            workspace, "rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}"
        ).strip()
    except (GitFailed, OSError) as error:
        raise BadInput(
            f"{one_line(commit, 80)} is not a commit in {workspace}; give --commit with all 40 hexadecimal digits"
        ) from error
    return found


def checkout_folder(place: Place, session_id: str) -> Path:
    """Where this machine checks out the commit of a session."""
    return folder_beside(place) / "checkouts" / session_id


def checkout(folder: Path, remote: str, commit: str, environ: Mapping[str, str]) -> bool:
    """Check out a commit into `folder`; False if it was there already, with all that agents changed since.

    Raises:
        GitFailed, OSError: it cannot be done; `folder` is not there then.
    """
    check_remote(remote, commit)
    if (folder / ".git").exists():
        return False
    make_private(folder.parent)
    half = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(mode=0o700)
    git = Git(environ, protocols=PROTOCOLS)
    fetch = ("fetch", "-q", "--no-tags", "--no-recurse-submodules")
    try:
        git(half, "init", "-q", "--template=")
        git(half, "config", "remote.origin.url", remote)
        git(half, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
        if git.run(half, *fetch, "--depth=1", "origin", commit)[0] != 0:
            git(half, *fetch, "origin")  # a server that gives out no commit by its name
        git(half, "checkout", "-q", "--detach", commit)
        os.rename(half, folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return True


def tidy(folder: Path, commit: str) -> None:
    """Remove the checkout of a session that has ended, if nothing in it differs from the commit."""
    git = Git(os.environ)
    try:
        clean = not git(folder, "status", "--porcelain", "--ignored").strip()
        if (
            clean
            and not git(
                folder, "rev-list", "--max-count=1", "--all", "HEAD", "--not", commit, "--remotes"
            ).strip()
        ):
            shutil.rmtree(folder, ignore_errors=True)
    except (GitFailed, OSError):
        log.info("kept the checkout %s", folder)


def run_worker(worker: Worker, wait: Callable[[float], object]) -> None:
    """Call `step` until the worker has drained. A database that cannot be used is tried again, later and later."""
    trouble = 0
    while not (worker.is_draining and not worker.sessions):
        try:
            worker.step()
            trouble = 0
        except (sqlite3.DatabaseError, StoreUnusable) as error:
            trouble += 1
            log.warning("cannot use the database: %s", one_line(str(error), 300))
        wait(min(5.0, 0.2 * 2**trouble))
