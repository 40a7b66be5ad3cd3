"""The host: runs one session from its last saved step until it ends, pauses or is stopped.

`_reconcile` compares the rows of the database with the agents' loops that run, and makes them agree. It decides
by the current state alone, so a crash at any moment needs no path of its own: a resume is a start.

The host is made of parts, and each promises one thing:

- `scheduler`: which tasks and agents may run next, kept up to date from the log of events.
- `agents.limits`: which model may be called now, and when agents that a usage limit has parked continue.
- `commands`: what other processes ask for, and compactions of agents whose loop does not run.
- `background`: hosted time, news of commands, and the search index.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from watchkeeper.agents import agent_state
from watchkeeper.agents.agent_state import RunResult, TaskOutcome, inputs_of
from watchkeeper.agents.backends.loop import ProgramLoop
from watchkeeper.agents.backends.programs import refuse_program
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.limits import AgentControl
from watchkeeper.agents.loop import AgentLoop
from watchkeeper.agents.roles import Roles
from watchkeeper.agents.session_tools import INPUTS_AGAIN
from watchkeeper.records import errors
from watchkeeper.records.errors import (
    HostFault,
    LeaseLost,
    Shortage,
    StoreUnusable,
    WatchkeeperError,
    host_fault,
)
from watchkeeper.records.ports import Clock
from watchkeeper.records.redact import Redactor
from watchkeeper.records.states import AGENT_ENDED, SESSION_ENDED, AgentStatus, SessionStatus, TaskStatus
from watchkeeper.runtime import lifecycle
from watchkeeper.runtime.background import Alerts, CommandWatch, Heartbeat, Indexing, Watching
from watchkeeper.runtime.commands import CommandQueue
from watchkeeper.runtime.config import RoleModel, task_model
from watchkeeper.runtime.lifecycle import SessionSettings
from watchkeeper.runtime.scheduler import (
    ATTACHED_NOTE,
    ATTACHED_ROLE,
    Schedule,
    attach,
    dispatch,
    ensure_planner,
)
from watchkeeper.store import agents, commands, plans, sessions
from watchkeeper.store.agents import Agent
from watchkeeper.store.driver import plain
from watchkeeper.store.plans import Task
from watchkeeper.store.transaction import SessionStore, Transaction

# --- The `live` rows: what each agent does at this moment, written at most ten times a second -------------

PERIOD_SECONDS = 0.1
SHOWN_CHARACTERS = 2_000
"""How much of the end of a streamed text is shown."""
HELD_CHARACTERS = 64_000
"""How much of the end of a streamed text is kept: a secret is recognised by its beginning, which may be far
before the part that is shown."""
MOST_INPUT_CHARACTERS = 400_000
"""How much of the input of a tool call is read while it streams: each time from its beginning."""


@dataclass(slots=True)
class _Shown:
    activity: str
    detail: str
    since: float
    until: float | None = None
    text: str = ""
    input: str = ""
    """The JSON of the tool call that is being written, from its beginning."""

    def add(self, text: str, kind: str) -> None:
        """Add a piece of the reply."""
        if self.input and (kind != "tool_input" or (text.startswith("{") and _is_whole(self.input))):
            self.text, self.input = self.all[-HELD_CHARACTERS:], ""
            text = text if kind == "tool_input" else f"\n{text}"
        if kind != "tool_input":
            self.text = (self.text + text)[-HELD_CHARACTERS:]
        elif len(self.input) < MOST_INPUT_CHARACTERS:
            self.input += text

    @property
    def all(self) -> str:
        """What was streamed, as a person reads it."""
        return self.text + (_readable_input(self.input) if self.input else "")


def _is_whole(raw: str) -> bool:
    from pydantic_core import from_json

    try:
        from_json(raw)
    except ValueError:
        return False
    return True


def _readable_input(raw: str) -> str:
    """The input of a tool call, whose JSON may still be cut anywhere: a line for each argument, texts as they are."""
    from pydantic_core import from_json

    try:
        given = from_json(raw, allow_partial="trailing-strings")
    except ValueError:
        return "\n…"
    if not isinstance(given, dict):
        return "\n…"
    values = {name: "…" if isinstance(value, dict | list) else str(value) for name, value in given.items()}
    return "".join(f"\n{name}:{chr(10) if chr(10) in text else ' '}{text}" for name, text in values.items())


class LiveRows:
    """Collects what loops show and writes it in the background. Nothing depends on these rows."""

    def __init__(self, store: SessionStore, clock: Clock, *, redactor: Redactor | None = None) -> None:
        self._store = store
        self._clock = clock
        self._redactor = redactor or Redactor({})
        self._shown: dict[str, _Shown] = {}
        self._dirty: set[str] = set()
        self._over: set[str] = set()

    def show(self, agent_id: str, activity: str, detail: str = "", *, until: float | None = None) -> None:
        """Set what an agent does now; a new activity clears the streamed text."""
        now = self._clock.now()
        old = self._shown.get(agent_id)
        self._over.discard(agent_id)
        same = old is not None and old.activity == activity and old.detail == detail and until is None
        since = old.since if old is not None and same else now
        text, written = (old.text, old.input) if old is not None and same else ("", "")
        self._shown[agent_id] = _Shown(activity, detail, since, until, text, written)
        self._dirty.add(agent_id)

    def stream(self, agent_id: str, text: str, kind: str = "text") -> None:
        """Add streamed text; `kind` is that of a `Delta`."""
        shown = self._shown.get(agent_id)
        if shown is not None:
            shown.add(text, kind)
            self._dirty.add(agent_id)

    def end(self, agent_id: str) -> None:
        """The agent's loop has ended: write what it showed last, and forget it."""
        self._over.add(agent_id)

    async def run(self) -> None:
        """Write what changed, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write what changed since the last time."""
        dirty, self._dirty = self._dirty, set()
        over, self._over = self._over, set()
        if dirty:
            await self._write(dirty)
        for agent_id in over - self._dirty:
            self._shown.pop(agent_id, None)

    async def _write(self, dirty: set[str]) -> None:
        now, redactor = self._clock.now(), self._redactor
        rows = [
            (
                agent_id,
                one.activity,
                plain(redactor.text(one.detail)),
                plain(redactor.streamed(one.all[-HELD_CHARACTERS:])[-SHOWN_CHARACTERS:]),
                one.since,
                one.until,
            )
            for agent_id, one in ((agent_id, self._shown[agent_id]) for agent_id in dirty)
        ]
        await self._store.commit(lambda tx: sessions.show_live(tx, rows, now))


log = logging.getLogger(__name__)

MOST_NUDGES = 3
"""How often an idle planner is asked to continue before the session pauses."""

PAUSED_EXIT, INTERRUPTED_EXIT, RELEASED_EXIT = 5, 130, 75
"""The last: the session still runs, and another host continues it."""


@dataclass(frozen=True, slots=True)
class HostResult:
    """How a host's work ended."""

    status: SessionStatus
    reason: str | None
    exit_code: int
    short_of: Shortage | None = None
    """What the machine ran out of, if that is why the session is paused."""


@dataclass(frozen=True, slots=True)
class Running:
    """An agent's loop that runs."""

    task: asyncio.Task[RunResult]
    control: AgentControl
    loop: AgentLoop | ProgramLoop
    task_id: str | None


class SessionHost:
    """Drives a claimed session on the running event loop."""

    def __init__(
        self,
        environment: Environment,
        live: LiveRows,
        roles: Roles,
        *,
        models: Mapping[str, RoleModel],
        settings: SessionSettings,
        agents_md: str | None,
        heartbeat: Heartbeat,
        once: int | None = None,
        watch: Watching = CommandWatch,
    ) -> None:
        self.environment = environment
        self.store = environment.store
        self._live = live
        self._roles = roles
        self._models = models
        programs = environment.programs
        self._programs = {one.name: one.configured for one in programs.found.values()} if programs else {}
        self._settings = settings
        self._agents_md = agents_md
        self._once = once
        self._watch = watch
        self._only: set[str] | None = None
        """With `once`: the tasks that may run; all others stay as they are."""
        self._board = Schedule(self.store, self.store.session_id)
        self._loops: dict[str, Running] = {}
        self._changed = asyncio.Event()
        self._stopping: tuple[str, int] | None = None
        """Why everything pauses, and the exit code that goes with it."""
        self.warnings: list[str] = []
        self.alerts: Alerts | None = None
        """One line for each thing that cannot be used, such as a damaged role file; they become events."""
        self._nudges = 0
        self._shortages: dict[str, tuple[int, int]] = {}
        """Agents whose loop ended because the machine ran out of something: at which turn, and how often."""
        self._retrying: dict[str, asyncio.Task[None]] = {}
        self._short_of: Shortage | None = None
        """What the machine ran out of, if everything pauses because of that."""
        self._error: BaseException | None = None
        self.commands = CommandQueue(self)
        self.heartbeat = heartbeat
        self.limits = environment.usage_limits
        self.limits.on_change = self.wake_host
        self._last_command = commands.newest(self.store, self.store.session_id)

    def wake_host(self, agent_id: str | None = None) -> None:
        """Look again at what should run, and at this agent. Safe from the event loop only."""
        if agent_id is not None:
            self._board.look_at(agent_id)
        self._changed.set()

    def pause_all(self, reason: str, *, now: bool = False, exit_code: int = PAUSED_EXIT) -> None:
        """Pause every agent at its next step boundary, or at once; then the host ends."""
        if self._stopping is None:
            self._stopping = (reason, exit_code)
        for running in self._loops.values():
            running.control.pause(reason, now=now, releasing=self._stopping[1] == RELEASED_EXIT)
        self.wake_host()

    def cut_programs(self) -> None:
        """Stop agent programs that were asked to pause and go on, in the middle of what they do."""
        for running in self._loops.values():
            if isinstance(running.loop, ProgramLoop):
                running.control.abandon()
        self.wake_host()

    def cancel_pause(self) -> bool:
        """Cancel a pause of everything that has not started. False while the host stops an agent for it.

        Raises:
            ValueError: this host is stopping; another host must continue.
        """
        if self._stopping is not None and self._stopping[1] != PAUSED_EXIT:
            raise ValueError("its background process is stopping; resume the session after it ends")
        self._stopping = None
        cancelled = [running.control.cancel_pause() for running in self._loops.values()]
        return all(cancelled)

    @property
    def roles(self) -> Roles:
        """The roles that a task may have, and the planner's."""
        return self._roles

    @property
    def pausing(self) -> bool:
        """Whether everything is being paused."""
        return self._stopping is not None

    def control_of(self, agent_id: str) -> AgentControl | None:
        """The control of the agent's running loop, or None if no loop runs."""
        running = self._loops.get(agent_id)
        return running.control if running else None

    def loop_of(self, agent_id: str) -> AgentLoop | None:
        """The agent's running loop, or that of an idle agent whose compaction continues; or None."""
        running = self._loops.get(agent_id)
        if running is None:
            return self.commands.compactions.loop_of(agent_id)
        return running.loop if isinstance(running.loop, AgentLoop) else None

    def restart_loop(self, agent_id: str) -> None:
        """End the agent's loop without writing anything, and continue from its rows, as after a crash."""
        if (running := self._loops.get(agent_id)) is not None:
            running.task.cancel()
        self.commands.compactions.forget(agent_id)

    def restrict_to(self, task_ids: set[str]) -> None:
        """With `once`: let these tasks run."""
        if self._once is not None:
            self._only = (self._only or set()) | task_ids
            self._board.forget()

    @property
    def driving_once(self) -> bool:
        """Whether this host was started for one command alone."""
        return self._once is not None

    async def run(self, *, resume: bool) -> HostResult:
        """Run the session until it ends or pauses.

        Raises:
            LeaseLost: another host took over.
            StoreUnusable: the database failed; everything committed is kept.
            HostFault: the machine ran out of something that the host itself needs; everything committed is
                kept.
        """
        background: list[asyncio.Task[None]] = []
        indexing = Indexing(self.store.path, still_ours=self.store.is_ours)
        watch = self._watch(
            self.store.path, self.store.session_id, on_command=self.wake_host, on_failure=self.failed
        )
        try:
            if self._once is None:

                def begin(tx: Transaction) -> None:
                    lifecycle.open_session(
                        tx,
                        resume=resume,
                        warnings=self.warnings,
                        last_command=self._last_command,
                        roles=tuple(self._models.values()),
                    )
                    agents.settle_cut_calls(tx, self.environment.price)

                await self.store.commit(begin)
                await ensure_planner(
                    self.environment,
                    self._roles["planner"],
                    model=self._models["planner"].model,
                    agents_md=self._agents_md,
                    note=ATTACHED_NOTE if self._settings.continues is not None else "",
                )
                if self._settings.continues is not None:
                    await attach(self.environment, self._roles[ATTACHED_ROLE], self._settings.continues)
            background = [
                asyncio.create_task(self._live.run()),
                asyncio.create_task(self.heartbeat.run()),
                asyncio.create_task(indexing.run()),
            ]
            if self.alerts is not None:
                background.append(asyncio.create_task(self.alerts.run()))
            for task in background:
                task.add_done_callback(self._background_ended)
            while True:
                self._changed.clear()
                await self.commands.apply_waiting()
                if self._error is not None:
                    raise self._error
                if await self._reconcile() and (self.pausing or not self.commands.compactions.under_way):
                    break
                await self._changed.wait()
            await self.commands.compactions.end()
            result = await self._finish()
            if self.alerts is not None:
                await self.alerts.send_last()
            return result
        finally:
            watch.close()
            for task in (*background, *self._retrying.values()):
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._drop_loops()
            await self.commands.compactions.drop()
            self.limits.close()
            await indexing.close()

    async def _reconcile(self) -> bool:
        """Make the loops agree with the rows; True when there is nothing left to do."""
        store = self.store
        if self._stopping is not None:
            for agent_id in tuple(self._loops):
                self._look_at(agent_id)  # one that was cancelled meanwhile does not end its step
            return not self._loops
        status = sessions.require(store, store.session_id).status
        if status in SESSION_ENDED and self._once is None:
            for running in self._loops.values():
                running.control.stop_now()
            return not self._loops
        self._board.refresh()
        await self._settle_stale()
        for agent_id in self._board.take_agents():
            self._look_at(agent_id)
        await self._wake_parked()
        await self._dispatch_ready()
        self.heartbeat.rest(not self._loops and bool(self.limits.parked_ids))
        if self._loops or self._retrying or self.commands.compactions.under_way:
            return False
        return await self._out_of_work()

    async def _wake_parked(self) -> None:
        """Continue agents whose usage limit has ended."""
        if not self.limits.parked_ids:
            return
        room = self._room(self._planner_id())
        woken = await self.limits.wake(running=self._loops.__contains__, room=room, may_run=self._may_drive)
        for agent in woken:
            self._look_at(agent.id)

    def _room(self, planner_id: str | None) -> int:
        """How many more sub-agents may run; the planner does not count."""
        return self._settings.max_parallel - len(self._loops) + (planner_id in self._loops)

    def _planner_id(self) -> str | None:
        return sessions.require(self.store, self.store.session_id).planner_agent_id

    def _look_at(self, agent_id: str) -> None:
        """Start the loop of an agent that should run, or stop the loop of one that has ended."""
        agent, running = agents.load(self.store, agent_id), self._loops.get(agent_id)
        if agent is None:
            return
        self.limits.see(agent)
        if running is not None:
            if agent.status in AGENT_ENDED:
                running.control.stop_now()
        elif self._should_run(agent):
            self._start(agent)
        elif agent.status is AgentStatus.IDLE:
            self._board.look_at(agent_id)  # new mail is not an event

    def _may_drive(self, agent: Agent) -> bool:
        """Whether this host may run the agent, and is not compacting it or waiting to retry it."""
        if agent.id in self._retrying:
            return False
        if self.commands.compactions.is_about(agent.id):
            return False  # it is looked at again when its context has been compacted
        if self._only is not None and agent.task_id not in self._only:
            return False
        if agent.task_id in self._board.stale:
            return False  # what it builds on is made again
        return self._once is None or self._only is not None

    def _should_run(self, agent: Agent) -> bool:
        if not self._may_drive(agent):
            return False
        if agent.status in (AgentStatus.WORKING, AgentStatus.WAITING):
            return True
        return agent.status is AgentStatus.IDLE and self._is_woken(agent.id)

    def _is_woken(self, agent_id: str) -> bool:
        """Whether a resting planner has mail that it must decide about now. It reads the rest with that, or when nothing
        is left to run."""
        waiting = plans.undelivered(self.store, agent_id)
        return any(plans.wakes(kind, payload) for _, kind, payload in waiting)

    def _start(self, agent: Agent) -> None:
        control = AgentControl()
        program = self.environment.programs.of(agent.model) if self.environment.programs is not None else None
        loop: AgentLoop | ProgramLoop
        if program is not None:
            loop = ProgramLoop(self.environment, agent, control, program)
        else:
            loop = AgentLoop(
                self.environment, agent, control, rested=self.commands.compactions.take(agent.id)
            )
        task = asyncio.create_task(loop.run(), name=f"agent-{agent.id}")
        self._loops[agent.id] = Running(task, control, loop, agent.task_id)
        task.add_done_callback(lambda done: self._ended(agent, done))

    def _ended(self, agent: Agent, task: asyncio.Task[RunResult]) -> None:
        ended = self._loops.pop(agent.id, None)
        self._board.look_at(agent.id)
        self._live.end(agent.id)
        if agent.task_id is not None:
            self._nudges = 0
        self.wake_host()
        if task.cancelled():
            return
        error = task.exception()
        fault = host_fault(error) if error is not None and not isinstance(error, StoreUnusable) else None
        if fault is not None:
            self._try_again(agent.id, ended.loop.turn if ended is not None else agent.turn, fault)
            return
        if error is not None:
            if not isinstance(error, WatchkeeperError):
                log.error("agent %s stopped because of an internal error", agent.id, exc_info=error)
            self._error = self._error or error
            return
        ending = task.result()
        loop = ended.loop if ended is not None else None
        if (
            ending.outcome is TaskOutcome.IDLE
            and isinstance(loop, AgentLoop)
            and loop.compaction.outlives_loop
        ):
            self.commands.compactions.keep(agent.id, loop)
        if ending.outcome is TaskOutcome.BLOCKED or (
            ending.outcome is TaskOutcome.PAUSED and self._stopping is None and agent.task_id is None
        ):
            self._short_of = ending.short_of
            self.pause_all(ending.reason)

    def _try_again(self, agent_id: str, turn: int, fault: HostFault) -> None:
        """Restart an agent's loop after a wait, from its last saved step; after several tries, pause the
        session."""
        last_turn, tries = self._shortages.get(agent_id, (turn, 0))
        tries = tries if turn == last_turn else 0
        self._shortages[agent_id] = (turn, tries + 1)
        if tries >= len(errors.RETRY_SECONDS):
            self._short_of = fault.shortage
            self.pause_all(fault.advice(self.store.session_id))
            return
        self._live.show(agent_id, "retrying", str(fault))
        self._retrying[agent_id] = asyncio.create_task(
            self._wait_for_room(agent_id, errors.RETRY_SECONDS[tries])
        )

    async def _wait_for_room(self, agent_id: str, seconds: float) -> None:
        try:
            await self.environment.clock.sleep(seconds)
        finally:
            del self._retrying[agent_id]
            self.wake_host(agent_id)

    async def _dispatch_ready(self) -> None:
        if self._once is not None and self._only is None:
            return
        planner_id = self._planner_id()
        if planner_id is None:
            return
        free = self._room(planner_id)
        parked = len(self.limits.parked_ids - {planner_id})
        while free > 0:
            # A parked agent keeps its place, except before tasks whose own model may be called.
            may_call = self._may_call if free <= parked else None
            task_id = self._board.next_ready(self._only, may_call)
            if task_id is None:
                break
            task = plans.load_task(self.store, task_id)
            if task is None:
                continue
            role = self._roles.get(task.role)
            if role is None:
                await self._fail_task(task, f"{self._roles.gone(task.role)}; the task cannot start")
                continue
            model, warning = task_model(
                self._models[role.name], task.model, self._settings.allow_models, self._programs
            )
            if warning is not None:
                text = self.environment.redact(f"{task.name}: {warning}")
                await self.store.commit(partial(Transaction.event, kind="host.warning", text=text))
            try:
                if self.environment.programs is not None:
                    refuse_program(self._settings.sandbox, model, self.environment.programs.found)
                agent_id = await dispatch(
                    self.environment,
                    task,
                    role,
                    model=model,
                    planner_id=planner_id,
                    agents_md=self._agents_md,
                    max_parallel=self._settings.max_parallel,
                )
            except (LeaseLost, StoreUnusable):
                raise
            except WatchkeeperError as error:
                if host_fault(error) is not None:
                    raise
                await self._fail_task(task, str(error))
                continue
            agent = agents.load(self.store, agent_id)
            if agent is not None and agent_id not in self._loops and self._may_drive(agent):
                self._start(agent)
                free -= 1

    async def _fail_task(self, task: Task, reason: str) -> None:
        """Fail a task whose agent cannot be created (a missing role, an unknown model), and notify the
        planner."""

        def write(tx: Transaction) -> None:
            plans.note_error(tx, task.id, reason)
            plans.move(tx, task.id, TaskStatus.RUNNING)
            plans.move(tx, task.id, TaskStatus.FAILED, reason)
            agent_state.notify_planner(tx, "task_failed", task.id, error=reason, attempt=task.attempt)

        await self.store.commit(write)
        self.wake_host()

    def _may_call(self, task_id: str) -> bool:
        """Whether the model of a task that could start is free of usage limits."""
        task = plans.load_task(self.store, task_id)
        if task is None or task.role not in self._models:
            return True
        model, _ = task_model(
            self._models[task.role], task.model, self._settings.allow_models, self._programs
        )
        return not self.limits.is_closed(model)

    async def _settle_stale(self) -> None:
        """Stop the agents of stale tasks at their next step. Settle those whose inputs are available again, one layer of
        the graph after the other."""
        at_work = {one.task_id: one for one in self._loops.values() if one.task_id is not None}
        for task_id in at_work.keys() & set(self._board.stale):
            if at_work[task_id].control.pause_reason is None:
                at_work[task_id].control.pause(INPUTS_AGAIN)
        while settled := [one for one in self._board.settled_stale() if one not in at_work]:
            for task in filter(None, (plans.load_task(self.store, task_id) for task_id in settled)):
                inputs = [one.ref for one in inputs_of(self.store, task)]
                again = plans.inputs_hash(inputs, task.instructions) != task.inputs_hash
                await self.store.commit(partial(lifecycle.settle_stale, task=task, again=again))
                if task.assigned_agent is not None:
                    self._board.look_at(task.assigned_agent)  # its state may be what it was
            self._board.refresh()

    async def _out_of_work(self) -> bool:
        """No loop runs. Returns whether the host is done; if not, something else will wake it."""
        if any(self._may_drive(agent) for agent in self.limits.parked()):
            return False  # they continue when their limit ends
        if self._once is not None:
            return self._only is None or not self._anything_ready()
        if self._anything_ready():
            self.wake_host()
            return False
        planner = agents.load(self.store, self._planner_id() or "")
        rests = planner is not None and planner.status is AgentStatus.IDLE and self._may_drive(planner)
        waiting = plans.undelivered(self.store, planner.id) if planner is not None and rests else ()
        if planner is not None and any(kind != plans.NOTICE for _, kind, _ in waiting):
            self._start(planner)
            return False
        tasks = [
            task for task in plans.load_tasks(self.store, self.store.session_id) if task.status in plans.OPEN
        ]
        reason = self._why_stuck(tasks)
        if reason is not None:
            self._stopping = (reason, PAUSED_EXIT)
            return True
        self._nudges += 1
        left = ", ".join(f"{task.name} ({task.status})" for task in tasks)
        text = f"No tasks are running. {'Left: ' + left + '. ' if left else ''}Continue with the plan, or call finish_session."
        planner_id = self._planner_id()
        assert planner_id is not None
        await self.store.commit(lambda tx: plans.post(tx, planner_id, "nudge", {"text": text}))
        self.wake_host()
        return False

    def _why_stuck(self, tasks: list[Task]) -> str | None:
        """Why the session pauses although it has not ended; None if the planner is to continue."""
        for task in tasks:
            if task.status is TaskStatus.PAUSED:
                return f"{task.name} is paused: {task.status_reason}"
        planner = agents.load(self.store, self._planner_id() or "")
        assert planner is not None
        if planner.status is AgentStatus.PAUSED:
            return planner.status_reason or "the planner is paused"
        if planner.status is AgentStatus.CANCELLED:
            return "the planner was cancelled; resume it or cancel the session"
        if self._nudges >= MOST_NUDGES:
            return "the planner ended its turn without finishing, and nothing is left to run; steer it"
        return None

    def _anything_ready(self) -> bool:
        """Whether a task can start or an agent should run; such agents are looked at next."""
        everyone = agents.load_all(self.store, self.store.session_id)
        ready = [agent.id for agent in everyone if self._should_run(agent)]
        for agent_id in ready:
            self._board.look_at(agent_id)
        return bool(ready) or self._board.has_ready(self._only)

    async def _finish(self) -> HostResult:
        await self.environment.budgets.settled()
        await self._live.flush()
        await self.heartbeat.note_time()
        session = sessions.require(self.store, self.store.session_id)
        status = session.status
        if (
            self._once is None
            and status in (SessionStatus.DONE, SessionStatus.CANCELLED)
            and self.environment.worktrees
        ):
            await self.environment.worktrees.end()
        if self._once is None and status is SessionStatus.RUNNING:
            reason, code = self._stopping or ("stopped", PAUSED_EXIT)
            if code == RELEASED_EXIT:
                await self.store.commit(lambda tx: tx.event("host.released"))
                return HostResult(status, reason, code)
            await self.store.commit(lambda tx: lifecycle.pause_session(tx, reason))
            return HostResult(SessionStatus.PAUSED, reason, code, self._short_of)
        codes = {
            SessionStatus.DONE: 0,
            SessionStatus.FAILED: 1,
            SessionStatus.CANCELLED: 1,
            SessionStatus.PAUSED: PAUSED_EXIT,
            SessionStatus.RUNNING: 0,  # a host for one command alone leaves the session as it was
        }
        return HostResult(status, session.status_reason, codes[status])

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Work in the background failed: the host ends with this error."""
        self._error = self._error or error
        self.wake_host()

    async def _drop_loops(self) -> None:
        tasks = [running.task for running in self._loops.values()]
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
