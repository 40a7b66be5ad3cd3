"""Driving a session in this process: claim, assemble, run the host, and answer Ctrl+C."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchkeeper.records.errors import BadInput, DrivenElsewhere, LeaseLost, StoreUnusable
from watchkeeper.records.host_faults import HostFault, StoreExhausted, host_fault
from watchkeeper.records.ports import SystemClock
from watchkeeper.records.process_secrets import deny_inspection
from watchkeeper.records.states import SessionStatus
from watchkeeper.runtime.host import INTERRUPTED_EXIT, HostResult, SessionHost
from watchkeeper.runtime.lifecycle import pause_session
from watchkeeper.store import database, sessions
from watchkeeper.store.driver import decode
from watchkeeper.store.imports import refuse_imported
from watchkeeper.store.session_store import SessionStore
from watchkeeper.store.transaction import Transaction
from watchkeeper.store.writer import Group

LOOP_DESCRIPTORS = 3
"""A selector, and both ends of what wakes it."""

INTERRUPTED = "interrupted; resume it to carry on"

SWITCH_SECONDS = 0.0001
"""How long one thread may hold the interpreter while another waits for it (Python's own 5 ms is long). The
writer asks for it after each of some ten statements of a step, while it holds the file's write lock, which
all other processes wait for."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How long the questions of one host wait. It belongs to the host that runs, not to the session.

    An earlier release stored the 0 of a headless start in the session's settings. A host in the background
    does not use it: a person started that host, and comes back to its questions.
    """

    unattended: bool
    """The host runs in the foreground without a dashboard: a question that nobody watches is denied at
    once."""
    timeout_seconds: float | None = None
    """What the person who started this host said, if anything."""

    def seconds(self, stored: float | None) -> float | None:
        """The time-out that holds; `stored` is that of the session's settings."""
        if self.timeout_seconds is not None:
            return self.timeout_seconds
        return stored or (0.0 if self.unattended else None)


def drive(
    database_path: Path,
    session_id: str,
    *,
    resume: bool,
    once: int | None = None,
    asking: Asking = Asking(unattended=False),
) -> HostResult:
    """Drive a session to its end, or until it pauses, in this process.

    The first SIGINT or SIGTERM finishes the step, saves and stops (exit 130); the second stops at once, which
    loses nothing that was committed.

    Raises:
        DrivenElsewhere, NotFound, BadInput, StoreUnusable, LeaseLost.
        HostFault: the machine ran out of something that the host itself needs. The session is paused, as far
            as that could be written, and can be resumed in any case.
    """
    deny_inspection()  # a model's client holds keys, wherever they came from
    sys.setswitchinterval(SWITCH_SECONDS)
    _refuse_imported(database_path, session_id)
    clock = SystemClock()
    with _ending_as_paused(session_id):
        return _drive_on(database_path, session_id, clock, asking, resume=resume, once=once)


def _drive_on(
    database_path: Path,
    session_id: str,
    clock: SystemClock,
    asking: Asking,
    *,
    resume: bool,
    once: int | None,
) -> HostResult:
    result = _drive_once(database_path, session_id, clock, asking, resume=resume, once=once)
    while result.exit_code != INTERRUPTED_EXIT and _wanted_on(database_path, session_id):
        try:
            # The command lifts what it means.
            result = _drive_once(database_path, session_id, clock, asking, resume=False, once=None)
        except DrivenElsewhere:
            break  # whoever took it applies what is queued
    return result


def _drive_once(
    database_path: Path,
    session_id: str,
    clock: SystemClock,
    asking: Asking,
    *,
    resume: bool,
    once: int | None,
) -> HostResult:
    store = SessionStore.claim(
        database_path, session_id, clock, pid=os.getpid(), host_name=socket.gethostname()
    )
    result: HostResult | None = None
    try:
        _check_descriptors()
        with asyncio.Runner() as runner:
            runner.get_loop()  # before there is a coroutine that would be left without its loop
            result = runner.run(_drive(store, clock, asking, resume=resume, once=once))
    except Exception as error:
        if result is None or host_fault(error) is None:
            note_host_fault(store, error)
            raise
        # Else only the end of the event loop failed, which needs a thread.
    finally:
        store.close()
    return result


def _check_descriptors() -> None:
    """Raise `OSError` now where an event loop cannot have its descriptors: a loop that is half made complains
    on its own."""
    made: list[int] = []
    try:
        for _ in range(LOOP_DESCRIPTORS):
            made.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for one in made:
            os.close(one)


@contextmanager
def _ending_as_paused(session_id: str) -> Iterator[None]:
    """Give whatever a machine that is short of something raises one form: a line, and the exit code of a
    pause."""
    try:
        yield
    except Exception as error:
        fault = host_fault(error)
        if fault is None:
            raise
        raise HostFault(fault.advice(session_id), fault.shortage) from error


def note_host_fault(store: SessionStore, error: Exception) -> None:
    """Pause the session of a host that ended with `error`, if that says that the machine ran out of
    something.

    Does nothing where that cannot be written: a session without a host is resumed as one that is paused.
    """
    fault = host_fault(error)
    if fault is None or store.lost is not None:
        return

    def change(group: Group) -> None:
        tx = Transaction(group, store.session_id, store.epoch, time.time())
        if (
            tx.one("SELECT status FROM sessions WHERE id = ?", (store.session_id,))[0]
            == SessionStatus.RUNNING
        ):
            pause_session(tx, fault.advice(store.session_id))

    store.free_reserve()
    with suppress(LeaseLost, StoreUnusable, MemoryError):
        store.writer.submit(change).result()


def _wanted_on(database_path: Path, session_id: str) -> bool:
    """Whether somebody asked the host to resume the session, or an agent, when it was about to end, and so
    was not heard.

    Looked at when the lease is free: who asks later sees that no host lives, and starts one.
    """
    try:
        connection = database.open_readonly(database_path)
    except StoreExhausted:
        return False  # the command stays queued for the next host
    try:
        asked = connection.execute(
            "SELECT 1 FROM sessions s JOIN commands c ON c.session_id = s.id WHERE s.id = ? AND s.status IN"
            " (?, ?)"
            " AND c.kind = 'resume' AND c.status = 'queued'",
            (session_id, SessionStatus.PAUSED, SessionStatus.RUNNING),
        ).fetchone()
    finally:
        connection.close()
    return asked is not None


def _refuse_imported(database_path: Path, session_id: str) -> None:
    connection = database.open_readonly(database_path)
    try:
        refuse_imported(connection, session_id)
    finally:
        connection.close()


async def _drive(
    store: SessionStore, clock: SystemClock, asking: Asking, *, resume: bool, once: int | None
) -> HostResult:
    from watchkeeper.runtime.host_factory import assemble

    assembled = await assemble(store, clock, once=once, approval_timeout=asking.seconds)
    _answer_signals(assembled.host)
    try:
        return await assembled.host.run(resume=resume)
    finally:
        await assembled.aclose()


def _answer_signals(host: SessionHost) -> None:
    """Once: save and stop. Twice: stop at once."""
    loop = asyncio.get_running_loop()
    asked = 0

    def interrupted() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            os._exit(INTERRUPTED_EXIT)
        host.pause_all(INTERRUPTED, exit_code=INTERRUPTED_EXIT)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)


def pause_interrupted(database_path: Path, session_id: str) -> None:
    """After a Ctrl+C that came before a host answered it: the session rests as if the host had, and not as if
    it had died."""

    def change(tx: Transaction) -> None:
        if tx.one("SELECT status FROM sessions WHERE id = ?", (session_id,))[0] == SessionStatus.RUNNING:
            pause_session(tx, INTERRUPTED)

    _change_once(database_path, session_id, change)


def cancel_without_host(database_path: Path, session_id: str) -> str:
    """End a session that no host drives, and what a killed host's tools left running.

    Raises:
        BadInput: it has ended already.
    """
    from watchkeeper.agents.tools.containment import SessionContainment
    from watchkeeper.agents.tools.processes import mark_of
    from watchkeeper.runtime.commands import cancel_session

    def end_tools(store: SessionStore) -> None:
        asyncio.run(SessionContainment(store, mark_of(session_id, database_path)).end_earlier())

    def change(tx: Transaction) -> None:
        cancel_session(tx, "cancelled by hand")

    try:
        _change_once(database_path, session_id, change, then=end_tools)
    except ValueError as refused:
        raise BadInput(str(refused)) from None
    return "the session is cancelled"


def set_budget_without_host(
    database_path: Path, session_id: str, task_id: str | None, kind: str, amount: float | None
) -> str:
    """Set or lift a budget of a session that no host drives.

    Raises:
        BadInput: the amount is not more than what is used.
    """
    from watchkeeper.store import budgets

    try:
        _change_once(database_path, session_id, lambda tx: budgets.write(tx, task_id, kind, amount))
    except ValueError as refused:
        raise BadInput(str(refused)) from None
    return f"budget: {'no limit' if amount is None else f'{amount:g}'} {kind}"


def revoke_without_host(database_path: Path, session_id: str, grant_id: int) -> str:
    """Revoke a grant of a session that no host drives.

    Raises:
        BadInput: there is no such grant, or it was revoked before.
    """
    from watchkeeper.store.approvals import revoke_grant

    try:
        _change_once(database_path, session_id, lambda tx: revoke_grant(tx, grant_id, "command line"))
    except ValueError as refused:
        raise BadInput(str(refused)) from None
    return f"grant {grant_id} is revoked"


def allow_more_models(database_path: Path, session_id: str, models: Sequence[str]) -> None:
    """Add to the models that a session which no host drives may use although they cost more
    (`SessionSettings.allow_models`)."""

    def change(tx: Transaction) -> None:
        settings = decode(tx.one("SELECT settings FROM sessions WHERE id = ?", (session_id,))[0])
        sessions.set_settings(tx, settings | {"allow_models": [*settings.get("allow_models", ()), *models]})

    _change_once(database_path, session_id, change)


def _change_once(
    database_path: Path,
    session_id: str,
    change: Any,
    *,
    then: Callable[[SessionStore], None] = lambda store: None,
) -> None:
    """One fenced transaction, and `then` what it is followed by, by a claim that ends with it."""
    clock = SystemClock()
    store = SessionStore.claim(
        database_path, session_id, clock, pid=os.getpid(), host_name=socket.gethostname()
    )
    try:
        store.writer.submit(
            lambda group: change(Transaction(group, session_id, store.epoch, time.time()))
        ).result()
        then(store)
    finally:
        store.close()
