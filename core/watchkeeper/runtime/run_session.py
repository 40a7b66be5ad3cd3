"""Run a session in this process: claim it, assemble its host, run that, and handle Ctrl+C.

The functions `…_without_host` change a session that no host runs, in one fenced transaction. `Runtime` runs sessions
inside a program of one's own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from watchkeeper.models.registry import SURVEYOR
from watchkeeper.records.errors import (
    BadInput,
    DrivenElsewhere,
    HostFault,
    LeaseLost,
    StoreExhausted,
    StoreUnusable,
    host_fault,
)
from watchkeeper.records.messages import Model
from watchkeeper.records.ports import Clock, IdSource, SystemClock, random_id
from watchkeeper.records.process_secrets import deny_inspection
from watchkeeper.records.states import SessionStatus
from watchkeeper.runtime import control
from watchkeeper.runtime.config import session_efforts
from watchkeeper.runtime.control import check_configuration
from watchkeeper.runtime.host import INTERRUPTED_EXIT, RELEASED_EXIT, HostResult, SessionHost
from watchkeeper.runtime.lifecycle import (
    NewSession,
    SessionSettings,
    carry,
    create_session,
    pause_session,
    queue_session,
)
from watchkeeper.store import commands, database, driver, sessions, state
from watchkeeper.store.driver import Queries, decode, sqlite3
from watchkeeper.store.imports import refuse_imported
from watchkeeper.store.place import Place, absolute, place_of, user_redactor
from watchkeeper.store.transaction import SessionStore, Transaction
from watchkeeper.store.workers import Needs, Placement, await_lapse, lost_changes, place_session
from watchkeeper.store.writer import Group

LOOP_DESCRIPTORS = 3
"""File descriptors of an event loop: a selector, and both ends of the pipe that wakes it."""

INTERRUPTED = "interrupted; resume it to continue"

SWITCH_SECONDS = 0.0001
"""How long one thread may hold the interpreter while another waits for it (Python's own 5 ms is long). The
writer asks for it after each of some ten statements of a step, while it holds the file's write lock, which
all other processes wait for."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How long the questions of one host wait. It is a setting of the host, not of the session.

    An earlier release stored the 0 of a headless start in the session's settings. A host in the background
    does not use it, because the user who started it returns to its questions.
    """

    unattended: bool
    """The host runs in the foreground without a dashboard: a question is denied at once if no dashboard
    watches."""
    timeout_seconds: float | None = None
    """The time-out that the user gave this host, if any."""

    def seconds(self, stored: float | None) -> float | None:
        """The time-out that applies; `stored` is that of the session's settings."""
        if self.timeout_seconds is not None:
            return self.timeout_seconds
        return stored or (0.0 if self.unattended else None)


def drive(
    database_path: Place,
    session_id: str,
    *,
    resume: bool,
    once: int | None = None,
    asking: Asking = Asking(unattended=False),
    placement: Placement | None = None,
) -> HostResult:
    """Drive a session to its end, or until it pauses, in this process.

    The first SIGINT or SIGTERM finishes the step, saves and stops (exit 130); the second stops at once, which
    loses nothing that was committed. With a `placement`, a worker started this host: the first signal then leaves
    the session running, so that another worker continues it (`RELEASED_EXIT`).

    Raises:
        DrivenElsewhere, NotFound, BadInput, StoreUnusable, LeaseLost.
        HostFault: the machine ran out of something that the host itself needs. The session is paused, as far
            as that could be written, and can be resumed in any case.
    """
    deny_inspection()  # a model's client holds keys, wherever they came from
    sys.setswitchinterval(SWITCH_SECONDS)
    clock = SystemClock()
    with _ending_as_paused(session_id):
        _refuse(database_path, session_id)
        result = _drive_once(
            database_path, session_id, clock, asking, resume=resume, once=once, placement=placement
        )
        while result.exit_code not in (INTERRUPTED_EXIT, RELEASED_EXIT) and _wanted_on(
            database_path, session_id
        ):
            try:
                # The queued command lifts the pauses that it concerns.
                result = _drive_once(
                    database_path, session_id, clock, asking, resume=False, once=None, placement=placement
                )
            except DrivenElsewhere:
                break  # the other host applies what is queued
    return result


def _refuse(database_path: Place, session_id: str) -> None:
    """Raise `BadInput` for a session that no host may drive: another program's, or one with a budget of its project."""
    from watchkeeper.store.budgets import refuse_project_budget

    with closing(database.open_readonly(database_path)) as connection:
        refuse_imported(connection, session_id)
        refuse_project_budget(connection, session_id)


def _drive_once(
    database_path: Place,
    session_id: str,
    clock: SystemClock,
    asking: Asking,
    *,
    resume: bool,
    once: int | None,
    placement: Placement | None,
) -> HostResult:
    if placement is not None:
        # Loaded while an earlier host still has the lease, so that no one waits for it afterwards.
        import_module("watchkeeper.runtime.host_factory")
        await_lapse(database_path, session_id)
    store = SessionStore.claim(
        database_path, session_id, clock, pid=os.getpid(), host_name=socket.gethostname()
    )
    result: HostResult | None = None
    try:
        _check_descriptors()
        if placement is not None:
            _place(store, placement)
        with asyncio.Runner() as runner:
            runner.get_loop()  # before there is a coroutine that would be left without its loop
            released = RELEASED_EXIT if placement is not None else INTERRUPTED_EXIT
            result = runner.run(_drive(store, clock, asking, resume=resume, once=once, on_signal=released))
    except Exception as error:
        if result is None or host_fault(error) is None:
            note_host_fault(store, error)
            raise
        # Else only the end of the event loop failed, which needs a thread.
    finally:
        store.close()
    return result


def _place(store: SessionStore, placement: Placement) -> None:
    """Note where the session runs now, and what it lost on the way."""
    lost, commands = lost_changes(store, store.session_id, Path(placement.workspace))

    def change(group: Group) -> None:
        tx = Transaction(group, store.session_id, store.epoch, time.time())
        place_session(tx, placement, lost, other_changes=commands)

    store.writer.submit(change).result()


def _check_descriptors() -> None:
    """Raise `OSError` if there are too few descriptors for an event loop: one that is only half made prints
    errors of its own."""
    made: list[int] = []
    try:
        for _ in range(LOOP_DESCRIPTORS):
            made.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for one in made:
            os.close(one)


@contextmanager
def _ending_as_paused(session_id: str) -> Iterator[None]:
    """Turn any error of a machine that ran out of something into a `HostFault`: one line, and the exit code of
    a pause."""
    try:
        yield
    except Exception as error:
        fault = host_fault(error)
        if fault is None:
            raise
        raise HostFault(fault.advice(session_id), fault.shortage) from error


def note_host_fault(store: SessionStore, error: Exception) -> None:
    """Pause the session of a host that ended with `error`, if the machine ran out of something.

    Does nothing if that cannot be written: a session without a host is resumed like one that is paused.
    """
    fault = host_fault(error)
    if fault is None or store.lost is not None:
        return

    def change(group: Group) -> None:
        tx = Transaction(group, store.session_id, store.epoch, time.time())
        pause_session(tx, fault.advice(store.session_id), among=[SessionStatus.RUNNING])

    store.free_reserve()
    with suppress(LeaseLost, StoreUnusable, MemoryError):
        store.writer.submit(change).result()


def _wanted_on(database_path: Place, session_id: str) -> bool:
    """Whether a `resume` command was queued when the host was about to end, too late to be applied.

    Checked when the lease is free: a later `wk resume` finds no host and starts one.
    """
    try:
        connection = database.open_readonly(database_path)
    except StoreExhausted:
        return False  # the command stays queued for the next host
    with closing(connection):
        reads = Queries(connection)
        session, waiting = sessions.load(reads, session_id), commands.queued(reads, session_id)
    may_go_on = session is not None and session.status in (SessionStatus.PAUSED, SessionStatus.RUNNING)
    return may_go_on and any(one.kind == "resume" for one in waiting)


async def _drive(
    store: SessionStore, clock: SystemClock, asking: Asking, *, resume: bool, once: int | None, on_signal: int
) -> HostResult:
    from watchkeeper.runtime.host_factory import assemble

    made = await assemble(store, clock, once=once, approval_timeout=asking.seconds)
    async with aclosing(made) as assembled:
        _answer_signals(assembled.host, on_signal)
        return await assembled.host.run(resume=resume)


PROGRAM_STEP_SECONDS = 30.0
"""How long an agent program may work on its step after a signal: one that hangs must not keep the run."""


def _answer_signals(host: SessionHost, exit_code: int) -> None:
    """The first signal saves and stops with this code, and stops an agent program that has not ended its step by then at
    once; the second stops everything at once."""
    loop = asyncio.get_running_loop()
    asked = 0

    def interrupted() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            os._exit(INTERRUPTED_EXIT)
        host.pause_all(INTERRUPTED, exit_code=exit_code)
        loop.call_later(PROGRAM_STEP_SECONDS, host.cut_programs)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)


def pause_interrupted(database_path: Place, session_id: str) -> None:
    """Pause a session whose Ctrl+C came before its host could handle it."""
    _change_once(
        database_path, session_id, lambda tx: pause_session(tx, INTERRUPTED, among=[SessionStatus.RUNNING])
    )


def cancel_without_host(database_path: Place, session_id: str) -> str:
    """End a session that no host runs, and the processes that a killed host's tools left.

    Raises:
        BadInput: it has ended already.
    """
    from watchkeeper.agents.tools.containment import SessionContainment
    from watchkeeper.agents.tools.processes import mark_of
    from watchkeeper.runtime.commands import cancel_session

    def end_tools(store: SessionStore) -> None:
        asyncio.run(SessionContainment(store, mark_of(session_id, database_path)).end_earlier())

    _change_once(
        database_path, session_id, lambda tx: cancel_session(tx, "cancelled manually"), then=end_tools
    )
    return "the session is cancelled"


def set_budget_without_host(
    database_path: Place, session_id: str, task_id: str | None, kind: str, amount: float | None
) -> str:
    """Set or lift a budget of a session that no host drives.

    Raises:
        BadInput: the amount is not more than what is used.
    """
    from watchkeeper.store import budgets

    _change_once(database_path, session_id, lambda tx: budgets.write(tx, task_id, kind, amount))
    return f"budget: {'no limit' if amount is None else f'{amount:g}'} {kind}"


def remove_project_budgets(database_path: Place, project: str) -> list[tuple[str, float]]:
    """Remove what an earlier version let the sessions of a project spend together: the kind and amount of each."""
    from watchkeeper.store.budgets import remove_project

    with (
        closing(database.open_writable(database_path)) as connection,
        driver.writing(connection, "command", urgent=lambda: True),
    ):
        return remove_project(connection, project)


def revoke_without_host(database_path: Place, session_id: str, grant_id: int) -> str:
    """Revoke a grant of a session that no host drives.

    Raises:
        BadInput: there is no such grant, or it was revoked before.
    """
    from watchkeeper.store.commands import revoke_grant

    _change_once(database_path, session_id, lambda tx: revoke_grant(tx, grant_id, "command line"))
    return f"grant {grant_id} is revoked"


def queue_without_host(database_path: Place, session_id: str, needs: Needs) -> None:
    """Leave a session that no host drives to the workers.

    Raises:
        BadInput: it has ended already.
    """
    _change_once(database_path, session_id, lambda tx: queue_session(tx, needs))


def allow_more_models(database_path: Place, session_id: str, models: Sequence[str]) -> None:
    """Add models that a session may use although they cost more (`SessionSettings.allow_models`)."""

    def change(tx: Transaction) -> None:
        settings = decode(sessions.require(tx, session_id).settings)
        sessions.set_settings(tx, settings | {"allow_models": [*settings.get("allow_models", ()), *models]})

    _change_once(database_path, session_id, change)


def _change_once(
    database_path: Place,
    session_id: str,
    change: Any,
    *,
    then: Callable[[SessionStore], None] = lambda store: None,
) -> None:
    """Claim a session that no host runs, make one change in a fenced transaction, and call `then`.

    Raises:
        BadInput: the change was refused (`ValueError`).
        DrivenElsewhere: a host runs the session.
    """
    clock = SystemClock()
    claimed = SessionStore.claim(
        database_path, session_id, clock, pid=os.getpid(), host_name=socket.gethostname()
    )
    with closing(claimed) as store:
        try:
            store.writer.submit(
                lambda group: change(Transaction(group, session_id, store.epoch, time.time()))
            ).result()
        except ValueError as refused:
            raise BadInput(str(refused)) from None
        then(store)


# --- Sessions inside a program of one's own -------------------------------------------------------------


class Runtime:
    """Starts and drives sessions in one database: by default that of `wk`, else a file or an address
    (`postgresql://…`). A file must not be in the workspace of a session.

    `model` replaces every model reference of a session: any object with `ref`, `context_window` and
    `stream` (see `watchkeeper.records.messages.Model`). Without one, references such as `anthropic/<model>` are
    resolved.

    ```python
    runtime = Runtime()
    session = runtime.start("Survey this folder", workspace=".", model="offline/surveyor")
    result = await runtime.run(session)
    ```
    """

    def __init__(
        self,
        database_path: str | Place | None = None,
        *,
        model: Model | None = None,
        clock: Clock | None = None,
        new_id: IdSource = random_id,
    ) -> None:
        if isinstance(database_path, str | Path) and database_path:
            database_path = absolute(place_of(database_path))
        self.path: Place = database_path or database.default_place()
        self._model = model
        self._clock = clock or SystemClock()
        self._new_id = new_id
        self.hosts: dict[str, SessionHost] = {}
        """The hosts that run now, by session."""

    def start(
        self,
        goal: str,
        *,
        workspace: str | Path,
        model: str | None = None,
        settings: SessionSettings | None = None,
        budgets: dict[str, float] | None = None,
        from_session: str | None = None,
        rules: Sequence[str] = (),
    ) -> str:
        """Write a session's row; returns its id. Nothing runs before `run`.

        `from_session`: a session to continue. The new planner gets its plan, its facts and its last
        observations. `rules`: what the prompt of every agent says besides.

        Raises:
            BadInput: no model is chosen, the configuration is damaged, the workspace is no folder or contains
                the database, or a budget makes no sense.
            NotFound: there is no session to carry on.
        """
        config = check_configuration(Path(workspace))
        ref = model or (self._model.ref if self._model else config.model)
        if ref is None or (not model and ref.strip() == SURVEYOR):
            raise BadInput(
                "no model is set; pass one, as in model='anthropic/<model>', or set `model` in config.toml"
            )
        carried = None
        if from_session is not None:
            carried = carry(self.path, from_session, redact=user_redactor())
        settings = settings or SessionSettings(sandbox=config.sandbox.bash)
        if not settings.efforts:
            settings = replace(
                settings, efforts=session_efforts(config, {}, carried.efforts if carried else {})
            )
        wanted = NewSession(goal, Path(workspace), ref, settings, budgets or {}, rules=tuple(rules))
        return create_session(
            self.path,
            wanted,
            new_id=self._new_id,
            now=self._clock.now(),
            prepare=carried.write if carried else None,
        )

    async def run(self, session_id: str, *, resume: bool = True, once: int | None = None) -> HostResult:
        """Drive a session until it ends or pauses; run it again to carry on.

        Raises:
            DrivenElsewhere: another host drives it.
            LeaseLost: another host took it over meanwhile.
            HostFault: the machine ran out of something that the host itself needs; run the session again to
                carry on.
            BadInput: another program ran it, or it shares a budget of its project.
        """
        from watchkeeper.runtime.host_factory import assemble

        _refuse(self.path, session_id)
        store = SessionStore.claim(
            self.path, session_id, self._clock, pid=os.getpid(), host_name=socket.gethostname()
        )
        try:
            made = await assemble(store, self._clock, once=once, model=self._model, new_id=self._new_id)
            async with aclosing(made):
                self.hosts[session_id] = made.host
                return await made.host.run(resume=resume)
        except Exception as error:
            note_host_fault(store, error)
            raise
        finally:
            self.hosts.pop(session_id, None)
            store.close()

    def submit(self, session_id: str, kind: str, **about: Any) -> int:
        """Queue a control command (`pause`, `steer`, `rerun`, …); see
        `watchkeeper.runtime.control.submit`."""
        return control.submit(self.path, session_id, kind, requested_by="program", **about)

    def state(self, session_id: str) -> dict[str, Any]:
        """The whole state of a session, from the file alone."""
        with closing(database.open_readonly(self.path)) as connection:
            connection.row_factory = sqlite3.Row
            return state.session_state(Queries(connection), session_id)
