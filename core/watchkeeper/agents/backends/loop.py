"""Drives one agent whose work is done by another program: from its events to rows, and from rows to its prompts.

What is durable, in this order:

1. Which session of which program the agent is, before its first prompt.
2. A turn, as `running`, before its prompt is sent; then how it ended. After a crash it is `unknown`.
3. Each tool call, when the program says that it began, and each result, when the program says so.

After a crash, or when the program died, every process that carries the agent's mark is ended first. The session is
opened again by its id, what the program's own record tells of the turn that was cut is added, and the program is sent
one message that says what is known and what is not. Nothing is sent twice without saying so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from watchkeeper.agents import backends, roles
from watchkeeper.agents.agent_run import AgentRun
from watchkeeper.agents.agent_state import (
    RunResult,
    Snapshot,
    TaskOutcome,
    is_overtaken,
    note_budget,
    write_ending,
)
from watchkeeper.agents.approvals import Approvals
from watchkeeper.agents.backends import (
    AgentBackend,
    BackendFailed,
    BackendSpec,
    Decision,
    NotLoggedIn,
    PermissionsNotHeld,
    ProgramEnded,
    Refused,
    SessionBusy,
    sweep,
)
from watchkeeper.agents.backends.programs import Program
from watchkeeper.agents.backends.record import ProgramRecord
from watchkeeper.agents.calls import assert_mine
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.limits import Admission, AgentControl, AgentStopped, Interrupted
from watchkeeper.agents.tools.contract import Permission
from watchkeeper.agents.worktrees import GitFailed
from watchkeeper.models.failures import limit_wait_seconds
from watchkeeper.records.messages import Block, ErrorKind, Message, ModelError, Role
from watchkeeper.records.states import AGENT_ENDED, AgentStatus, ToolCallStatus
from watchkeeper.records.text import cut
from watchkeeper.records.tool_inputs import edited_places
from watchkeeper.records.usage_limits import limit_end, usage_limit
from watchkeeper.store import agents, commands, plans
from watchkeeper.store.agents import Agent, Call, ProgramSession, ProgramTurn
from watchkeeper.store.driver import Reads
from watchkeeper.store.faultpoints import reach
from watchkeeper.store.messages import load_messages
from watchkeeper.store.plans import Note
from watchkeeper.store.transaction import Transaction

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""How often a running turn looks for a pause, for new instructions, and for news in the program's record."""
SILENT_SECONDS = 20.0
"""After so long without a word, outside a tool call, a program may be retrying by itself: the screen says so."""
LONG_RETRY_SECONDS = 60.0
"""A program that waits longer than this before it tries a model call again waits for the end of a limit: it is
interrupted, and the agent is parked."""
RATE_LIMIT_SECONDS = 300.0
"""An agent whose program made too many requests is parked so long, where the program does not say until when."""
REMIND_SECONDS = 300.0
"""An agent that has nothing more to do is asked after so long whether what it began in the background is still needed."""
GIVE_UP_SECONDS = 900.0
"""After so long, the turn is interrupted and the agent pauses."""
INTERRUPT_SECONDS = 10.0
"""How long an interrupted program may take to end its turn; then it is killed."""
CLOSE_SECONDS = 3.0
MOST_RESTARTS = 3
"""How often a program that dies is started again without any progress."""
MOST_ITEMS = 200
"""Items of a to-do list, and kinds of unknown messages, that are kept."""
ITEM_CHARACTERS = 500
COMMAND_CHARACTERS = 200
"""A longer command in the background is cut where it is named."""
NOTE_CHARACTERS = 2_000
"""A longer reason that a program gives is cut."""
OUTPUT_CHARACTERS = 30_000
"""Longer output of one tool call is cut; the rest is in the program's own record."""

CUT_TURN = (
    "[Watchkeeper] You were interrupted: the program or its machine stopped while you worked on the last message. Your work"
    " continues in the same session."
)
EARLIER_WORK = (
    "[Watchkeeper] You continue work that was started in a session which you cannot see. This is a shortened record of"
    " that session. `read_back` shows the text behind a pointer:"
)
TASK_AGAIN = "This is the task, with the messages since then:"
KNOWN_CALLS = "These tool calls had already finished. Their results are valid:"
UNKNOWN_CALLS = (
    "These tool calls were running. They may have taken effect, fully or partly. Verify before you repeat any of"
    " them."
)
NOT_SEEN = "You may not have received the last message. Here it is again:"
GO_ON = "[Watchkeeper] Continue where you stopped."
ASKED_AGAIN = "the program asked again about the same call"
REFUSED = "[Watchkeeper] The call of {tool} was refused: {reason}. Nothing was done."
BY_CONFIGURATION = "the configuration denies it"
BY_ROLE = "the role {role} does not have this tool"
BACKGROUND_ENDED = "[Watchkeeper] A call of {tool} that ran in the background has ended ({status}):\n{output}"
BACKGROUND_STOPPED = (
    "[Watchkeeper] A call of {tool} ran in the background, and was stopped when your work was interrupted: {command}\n"
    "It may have taken effect, fully or partly. Verify before you repeat it."
)
STILL_RUNS = (
    "[Watchkeeper] Your task is not done while these run in the background: {commands}\nStop those you no longer need."
    " You will be notified when the others end."
)
EDITED = "[Watchkeeper] A person rejected this call of {tool} and requests this instead:\n{text}"


OURS = re.compile(rf"(?:mcp__)?{backends.TOOL_SERVER}(?:__|_|\.)(\w+)")
"""How programs name the tools of our own server; these need no answer of a person."""
LIMITED = ("bash", "write", "read", "glob", "grep", "list_folder")
"""Tools of Watchkeeper's that programs have under other names. A denial of one, or a role without it, holds for those."""
CHANGES = ("write", "edit")
"""Programs do not tell these apart: both are `write` for them."""


BUSY_SECONDS = 3.0
"""The wait before a session is asked for again that another process has open."""
MOST_BUSY_TRIES = 10
CLOSE_ELSEWHERE = "close the session there, then resume"

LONGEST_NOTICE = 500
"""Characters of an answer that can be the notice of a usage limit instead of an answer."""


class _Unsafe(Exception):
    """The program may do something that no one allowed; the reason is one line."""


class _ProgramDied(Exception):
    """The program ended by itself; the reason is one line."""


@dataclass(slots=True)
class _OpenCall:
    """A tool call of the program that has not ended."""

    row: int
    use_id: str
    """Its id in the agent's messages."""
    turn: int
    name: str
    arguments: dict[str, Any]
    began: float
    output: str = ""
    patch: str = ""
    asked: bool = False
    """A question about it was answered."""
    denied: bool = False
    changed: bool = False
    """It changed a file."""
    message: str = ""
    """What the program gets once the call has ended: why it was denied."""
    background: bool = False
    """It goes on while the agent's model works on."""
    reminded: bool = False

    @property
    def command(self) -> str:
        """What it does, on one line."""
        given = self.arguments.get("command") or self.arguments.get("description") or self.name
        return " ".join(str(given).split())[:COMMAND_CHARACTERS]


def compaction_order(reads: Reads, agent: Agent, program: Program, instructions: str | None) -> str:
    """What a person who orders a compaction sees (`agents.order_program_compaction`): the turn ends after the present tool
    call, and the work goes on afterwards. An order to an agent that does not work is carried out when it goes on.

    Raises:
        ValueError: the program cannot, with the reason.
    """
    if not program.features.compacts:
        raise ValueError(f"{program.label} does not support compaction on request")
    if agent.status in AGENT_ENDED or not _sent(reads, agent.id):
        raise ValueError(
            f"{agent.name} has ended or has not received a message yet, so {program.label} has nothing to compact"
        )
    when = "after its current step" if agent.status is AgentStatus.WORKING else "before its next step"
    said = f"{program.label} compacts {agent.name} {when}; {agent.name} then continues"
    if instructions and not program.features.compact_instructions:
        said += f"; {program.label} does not accept compaction instructions"
    return said


class ProgramLoop(AgentRun):
    """The run of an agent whose turns an agent program takes."""

    def __init__(
        self, environment: Environment, agent: Agent, control: AgentControl, program: Program
    ) -> None:
        super().__init__(environment, agent, control, None)
        self._program = program
        self._backend: AgentBackend | None = None
        self._events: asyncio.Queue[backends.Event | BackendFailed] = asyncio.Queue()
        self._pump: asyncio.Task[None] | None = None
        self._session: ProgramSession | None = None
        self._turn_id = 0
        self._calls: dict[str, _OpenCall] = {}
        self._asks: dict[str, asyncio.Task[None]] = {}
        self._text: list[str] = []
        self._message = ""
        self._said = ""
        """The last whole text of this turn."""
        self._progress = False
        """Since the program was started, it ended a turn."""
        self._deaths = self._busy_tries = 0
        self._silent_since = 0.0
        self._looked_at = -math.inf
        self._interrupting = False
        self._interrupted_at = 0.0
        self._begins_anew = False
        """The program has just been given a session in which nothing was said."""
        self._limit: backends.Ended | None = None
        """The turn is interrupted, since the program waits for the end of a usage limit."""
        self._unknown: set[str] = set()
        self._compacting = False
        self._waiting = False
        """The model has nothing more to do, and waits for what runs in the background."""
        self._record = ProgramRecord(environment, agent)

    async def _begin(self) -> RunResult | None:
        return await self._surviving(self._open_and_settle)

    async def _take_turn(self) -> RunResult | None:
        return await self._surviving(self._converse)

    def _wants_other_work(self) -> bool:
        return self._wanted_compaction is not None

    async def _do_other_work(self) -> RunResult | None:
        return await self._surviving(self._compact)

    async def _surviving(self, step: Callable[[], Awaitable[RunResult | None]]) -> RunResult | None:
        """Take a step. If the program dies meanwhile, or another process has its session, the session is opened again; the
        step is not repeated."""
        while True:
            try:
                return await step()
            except SessionBusy as busy:
                self._busy_tries = 1 if self._progress else self._busy_tries + 1
                if self._busy_tries > MOST_BUSY_TRIES:
                    return await self._pause(f"{busy}; {CLOSE_ELSEWHERE}", tell=True, blocked=True)
                await self._await_other_process(str(busy))
            except _Unsafe as unsafe:
                await self._flush_text()
                return await self._pause_cut(str(unsafe), tell=True, blocked=True)
            except _ProgramDied as died:
                if self._control.pause_reason is not None:
                    await self._flush_text()
                    return await self._pause_cut(self._control.pause_reason)
                self._deaths = 1 if self._progress else self._deaths + 1
                if self._deaths > MOST_RESTARTS:
                    return await self._fail(f"{self._program.label} ended {self._deaths} times: {died}")
                self._environment.live.show(
                    self._agent.id, "retrying", f"{self._program.label} ended; restarting"
                )
                await self._close()
            step = self._open_and_settle

    async def _after_fault(self, error: Exception) -> RunResult:
        if isinstance(error, (NotLoggedIn, PermissionsNotHeld)):
            return await self._pause(str(error), tell=True, blocked=True)
        if isinstance(error, BackendFailed):
            return await self._fail(str(error))
        raise error

    async def _finish(self, ending: RunResult) -> None:
        # What follows from the ending need not wait until the program has ended.
        assert self._environment.programs is not None
        self._environment.programs.close_later(self._agent.id, self._close())

    async def _abort(self) -> None:
        await self._close()

    def _snapshot(self) -> Snapshot:
        return self._record.snapshot()

    async def _await_other_process(self, reason: str) -> None:
        """Wait for some seconds: another process of the program has the session open."""
        await self._close()
        self._environment.live.show(self._agent.id, "retrying", f"{reason}; retrying in {BUSY_SECONDS:.0f} s")
        self._control.set_waiting(True)
        try:
            await self._control.abandonable(self._environment.clock.sleep(BUSY_SECONDS))
        finally:
            self._control.set_waiting(False)

    async def _open_and_settle(self) -> RunResult | None:
        self._progress = False
        try:
            opened = await self._open()
        except ProgramEnded as gone:
            raise _ProgramDied(str(gone)) from gone
        if opened is not None:
            return opened
        await self._settle_cut_turn()
        if self._begins_anew:
            self._later.forgotten = self._record.last_seq
            await self._tell_earlier_work()
        return None

    async def _converse(self) -> RunResult | None:
        """Send the program what it was not sent yet, once its model may be asked."""
        limits = self._environment.usage_limits
        try:
            admission = limits.admit(self._agent.model)
        except ModelError as limit:
            if limit.until:
                return await self._park(str(limit), limit.until)
            return await self._pause(str(limit), tell=True, blocked=True)
        if admission is Admission.WAIT:
            await self._control.abandonable(limits.await_test(self._agent.model))
            return None
        completed = False
        try:
            ended = await self._run_turn(partial(_send, text=self._unsent()), self._record.last_seq)
            completed = ended.status == "completed" and self._limit_in(ended).status == "completed"
        finally:
            if admission is Admission.TEST:
                limits.end_test(self._agent.model, succeeded=completed)
        self._progress = True
        return await self._after_turn(ended)

    @property
    def _wanted_compaction(self) -> str | None:
        """The instructions of a compaction that a person has ordered; None where none was."""
        return agents.ordered_program_compaction(self._store, self._agent.id)

    async def _compact(self) -> RunResult | None:
        """Carry out the compaction that was ordered, as a turn of its own."""
        instructions = self._wanted_compaction or None
        self._compacting = self._record.ordered = True
        try:
            ended = await self._run_turn(
                partial(_compact, instructions=instructions), _sent(self._store, self._agent.id)
            )
        finally:
            self._compacting = self._record.ordered = False

        reason = cut(self._environment.redact(ended.reason), 2000) or None
        paused = ended.status == "interrupted" and self._control.pause_reason is not None

        def write(tx: Transaction) -> None:
            self._end_turn(tx, ended.status, reason)
            if not paused:
                agents.order_program_compaction(tx, self._agent.id, None)

        await self._store.commit(write)
        if ended.status == "failed":
            await self._note("program.not_compacted", reason=reason)
        return None

    # --- opening a session, and after a crash -----------------------------------------------------------------

    async def _open(self) -> RunResult | None:
        """Start the program and open the agent's session, new or as it was left."""
        environment, program, agent = self._environment, self._program, self._agent
        environment.live.show(agent.id, "working", f"starting {program.label}")
        services = environment.programs
        assert services is not None
        await services.closed(agent.id)
        if survivors := await sweep(agent.id):
            numbers = ", ".join(map(str, survivors[:10]))
            return await self._pause(f"cannot stop processes of {program.label}: {numbers}", blocked=True)
        known = agents.load_program_session(self._store, agent.id) or self._inherited()
        if environment.worktrees is not None:
            try:
                await environment.worktrees.ensure(agent.task_id)
            except GitFailed as failed:
                return await self._pause(f"cannot use its worktree: {failed}", tell=True, blocked=True)
        folder = environment.folder_of(agent.task_id)
        if known is not None and _is_there(known.folder):
            folder = Path(known.folder)
        environ = program.environment(services.environ, agent.id)
        spec = BackendSpec(
            folder=folder, instructions=agent.system, environ=environ, model=program.model_of(agent.model),
            session=known.program_session if known is not None else None,
            memory=await services.serve(agent, self._control) if services.serve is not None else None,
            options=program.options, denied=self._limits(BY_CONFIGURATION), withheld=self._limits(BY_ROLE),
        )  # fmt: skip
        backend = await self._started(spec)
        refused = ""
        try:
            session = await self._control.abandonable(backend.open(spec))
        except (NotLoggedIn, PermissionsNotHeld, ProgramEnded, SessionBusy):
            raise
        except BackendFailed as failed:
            refused = str(failed)
            if known is None or await asyncio.to_thread(_is_there, known.transcript):
                raise
            # A program does not know a session in which nothing was said yet.
            await self._close()
            spec, known = replace(spec, session=None), None
            backend = await self._started(spec)
            session = await self._control.abandonable(backend.open(spec))
        transcript = backend.transcript()
        sent = known.sent_seq if known is not None else 0
        version = backend.version
        self._session = ProgramSession(
            agent.id, program.name, version, session, spec.model, str(transcript) if transcript else None, str(folder), sent,
        )  # fmt: skip
        saved = self._session

        def write(tx: Transaction) -> None:
            assert_mine(tx, agent.id)
            agents.save_program_session(tx, saved)
            tx.event("program.opened", agent_id=agent.id, task_id=agent.task_id, program=program.name, version=version,
                     program_session=session, resumed=known is not None,
                     **({"refused": cut(environment.redact(refused), 500)} if refused else {}))  # fmt: skip

        await self._store.commit(write)
        reach("program.opened")
        self._pump = asyncio.create_task(self._take_events(backend))
        self._record.follow(program, saved)
        self._begins_anew = known is None
        return None

    async def _tell_earlier_work(self) -> None:
        """In a session that starts without its memory, what the agent did in another one: before a fork, or by another program."""
        text = await self._record.digest()
        if not text:
            return
        waiting = self._unsent_task()
        notice = self._environment.redact(backends.joined([EARLIER_WORK, text, TASK_AGAIN, waiting]))

        def write(tx: Transaction) -> None:
            assert_mine(tx, self._agent.id)
            seq = self._record.append(tx, "user", notice)
            agents.note_sent(tx, self._agent.id, seq - 1)

        await self._store.commit(write)

    def _unsent_task(self) -> str:
        """The agent's task in its first message, and what came for it since its last words."""
        history = load_messages(self._store, self._agent.id)
        words = [_prompt(message) for message in history]
        later: list[str] = []
        for message, text in zip(reversed(history), reversed(words), strict=True):
            if message.role == "assistant":
                break
            later.insert(0, text)
        return backends.joined([words[0] if words else "", *(text for text in later if text != words[0])])

    def _inherited(self) -> ProgramSession | None:
        """The session of the attempt whose memory this one continues, if the same program worked on it."""
        earlier = agents.inherited_program_session(self._store, self._agent.id)
        return earlier if earlier is not None and earlier.program == self._program.name else None

    async def _started(self, spec: BackendSpec) -> AgentBackend:
        services = self._environment.programs
        assert services is not None
        self._backend = await self._program.start(spec, self._agent.id, services.containment)
        return self._backend

    async def _take_events(self, backend: AgentBackend) -> None:
        try:
            async for event in backend.events():
                self._events.put_nowait(event)
        except BackendFailed as failed:
            self._events.put_nowait(failed)

    async def _settle_cut_turn(self) -> None:
        """After a crash: take over what the program's record tells of the turn that was cut, and write the message
        that tells the program what is known."""
        turn = agents.last_program_turn(self._store, self._agent.id)
        if turn is None or turn.status != "running":
            return
        since, sent = turn.prompt_seq, self._sent_text(turn)
        await self._cancel_questions()
        denied = agents.denied_uses(self._store, self._agent.id)
        recorded = await asyncio.to_thread(self._record.recorded_since, sent, turn.record_end, denied)
        known: list[str] = []
        unknown: list[str] = []
        self._text = []  # what was only being said
        stored = self._record.texts_since(since)
        for step in recorded.steps:  # the program's record may know more than was announced
            if isinstance(step, str):
                if not stored.take(step):
                    await self._append("assistant", step)
            elif not self._record.has_called(step.id):
                await self._begin_call(step)
        self._calls.clear()
        for row, turn_of_call, use_id, name in agents.open_calls(self._store, self._agent.id):
            result = recorded.results.get(use_id)
            call = _OpenCall(row, use_id, turn_of_call, name, {}, 0.0)
            await self._store.commit(partial(self._settle_call, call=call, result=result))
            (known if result is not None else unknown).append(f"- {name} ({use_id})")
        parts = [CUT_TURN]
        if known:
            parts.append("\n".join([KNOWN_CALLS, *known]))
        if unknown:
            parts.append("\n".join([UNKNOWN_CALLS, *unknown]))
        if sent and not recorded.has_prompt:
            parts.append(f"{NOT_SEEN}\n{sent}")
        notice = self._environment.redact(backends.joined(parts))

        def write(tx: Transaction) -> None:
            self._turn_id = turn.id
            self._end_turn(tx, "unknown", "the background process or the program stopped")
            self._record.append(tx, "user", notice)

        await self._store.commit(write)
        reach("program.settled")

    def _settle_call(self, tx: Transaction, *, call: _OpenCall, result: Any) -> None:
        assert_mine(tx, self._agent.id)
        status = ToolCallStatus.UNKNOWN if result is None else ToolCallStatus.DONE
        text = agents.CUT_SHORT.format("interrupted") if result is None else result
        seq = self._record.append(tx, "user", [_result_block(call.use_id, text, is_error=result is None)])
        agents.end_tool_call(tx, call.row, status, None, result is None, tx.now)
        agents.deliver_results(tx, self._agent.id, call.turn, seq)
        agents.end_step(tx, self._agent.id, call.turn, seq)
        tx.event(f"tool.{status}", agent_id=self._agent.id, task_id=self._agent.task_id, tool=call.name, call=call.row,
                 preview=cut(str(text), 200))  # fmt: skip

    # --- one turn ---------------------------------------------------------------------------------------------

    async def _run_turn(self, begin: Callable[[AgentBackend], Any], sent_seq: int) -> backends.Ended:
        """Send a prompt, and take what the program says until the turn has ended. The turn's row says how."""
        backend, services = self._backend, self._environment.programs
        assert backend is not None
        assert services is not None
        agent = self._agent

        def write(tx: Transaction) -> None:
            assert_mine(tx, agent.id)
            kind = "compaction" if self._compacting else "prompt"
            self._turn_id = agents.begin_program_turn(tx, agent.id, sent_seq, kind, self._record.newest)
            agents.note_sent(tx, agent.id, sent_seq)
            agents.move(tx, agent.id, AgentStatus.WORKING)
            tx.event("program.prompted", agent_id=agent.id, task_id=agent.task_id, program=self._program.name)

        await self._record.look()
        await self._store.commit(write)
        reach("program.prompted")
        self._text, self._said, self._interrupting, self._limit = [], "", False, None
        self._waiting = False
        services.finished.pop(agent.id, None)
        self._silent_since = self._environment.clock.monotonic()
        self._environment.live.show(agent.id, "working", f"{self._program.label} works")
        try:
            await self._control.abandonable(begin(backend))
            reach("program.sent")
            while True:
                event = await self._next_event()
                if isinstance(event, BackendFailed):
                    raise _ProgramDied(str(event))
                if isinstance(event, backends.Ended):
                    if event.kind == "died":
                        raise _ProgramDied(event.reason)
                    if event.kind == "permissions":
                        raise _Unsafe(event.reason)
                    break
                if event is not None:
                    await self._take(event)
        except SessionBusy:
            raise
        except PermissionsNotHeld as failed:
            raise _Unsafe(str(failed)) from failed
        except BackendFailed as failed:
            raise _ProgramDied(str(failed)) from failed
        await self._end_asks()
        await self._flush_text()
        await self._close_calls(event.status)
        await self._record.settle(self._said)
        return self._limit if self._limit is not None and event.status != "completed" else event

    async def _next_event(self) -> backends.Event | BackendFailed | None:
        """The next word of the program; None where there was none for a while. In between, however much the program
        says, it is looked at everything else."""
        self._control.check()
        if self._environment.clock.monotonic() - self._looked_at >= LOOK_SECONDS:
            await self._look_around()
            self._looked_at = self._environment.clock.monotonic()
        if self._events.empty():
            waiting = asyncio.ensure_future(self._events.get())
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    event = await self._control.abandonable(waiting)
            except TimeoutError:
                if not waiting.done() or waiting.cancelled():
                    self._looked_at = -math.inf
                    return None
                event = waiting.result()  # it came in the moment of the timeout
        else:
            event = self._events.get_nowait()
        self._silent_since = self._environment.clock.monotonic()
        return event

    async def _look_around(self) -> None:
        """Between two words of the program: a pause, new instructions, a budget, news in its record, silence."""
        if await self._record.look():
            await self._check_budget()
        if self._interrupting:
            if self._environment.clock.monotonic() - self._interrupted_at > INTERRUPT_SECONDS:
                raise _ProgramDied(f"{self._program.label} did not end its turn")
            return
        if self._may_stop:
            await self._interrupt()
            return
        await self._steer()
        silent = self._environment.clock.monotonic() - self._silent_since
        if self._waiting and self._calls and not self._asks:
            await self._remind(silent)
        if self._awaited or self._asks:
            return
        if silent > GIVE_UP_SECONDS:
            self._control.pause(f"{self._program.label} was silent for {GIVE_UP_SECONDS / 60:.0f} minutes")
        elif silent > SILENT_SECONDS:
            self._environment.live.show(
                self._agent.id, "retrying", f"silent for {silent:.0f} s; it may be retrying"
            )

    @property
    def _wants_a_stop(self) -> bool:
        """Whether the turn is to end at the next boundary: for a pause, or for a compaction."""
        return self._control.pause_reason is not None or (
            not self._compacting and self._wanted_compaction is not None
        )

    @property
    def _awaited(self) -> list[_OpenCall]:
        """The calls that the turn cannot go on without: those in the background only once the model waits for them."""
        return [call for call in self._calls.values() if self._waiting or not call.background]

    @property
    def _may_stop(self) -> bool:
        """Whether the turn is to end, and cuts nothing. A pause of an agent that works on cuts what runs in the background."""
        awaited = self._awaited if self._control.pause_reason is not None else self._calls
        return self._wants_a_stop and not awaited

    async def _remind(self, seconds: float) -> None:
        """Ask an agent that has nothing more to do, once, whether what runs in the background is still needed."""
        running = [call for call in self._calls.values() if not call.reminded]
        if seconds < REMIND_SECONDS or not running:
            return
        for call in running:
            call.reminded = True
        await self._append("user", STILL_RUNS.format(commands="; ".join(call.command for call in running)))
        await self._send_waiting()

    async def _steer(self) -> None:
        """Send what has come for the agent into the running turn."""
        if self._has_mail() and not self._compacting:
            await self._deliver_inbox()
            await self._send_waiting()

    async def _send_waiting(self) -> None:
        """Add the messages that the program was not sent yet to the running turn."""
        backend, text = self._backend, self._unsent()
        if backend is None or not text:
            return
        before, seq = _sent(self._store, self._agent.id), self._record.last_seq
        await self._store.commit(lambda tx: agents.note_sent(tx, self._agent.id, seq))
        try:
            when = await backend.steer(text)
        except Refused:  # the turn takes nothing more, as it ends: this is the next prompt
            await self._store.commit(lambda tx: agents.note_sent(tx, self._agent.id, before))
            return
        await self._store.commit(
            lambda tx: tx.event(
                "program.steered", agent_id=self._agent.id, task_id=self._agent.task_id, when=when
            )
        )

    async def _check_budget(self) -> None:
        reached = self._environment.budgets.reached(self._agent.task_id)
        if reached is not None and self._control.pause_reason is None:
            await self._store.commit(partial(note_budget, agent=self._agent, reached=reached))
            self._control.pause(reached.reason)
            if self._may_stop:  # else at the end of the call, whose effect would be in doubt
                await self._interrupt()

    async def _interrupt(self) -> None:
        """End the turn. Every open question is answered with `cancel` first."""
        backend = self._backend
        if backend is None or self._interrupting:
            return
        self._interrupting, self._interrupted_at = True, self._environment.clock.monotonic()
        await self._end_asks()
        with suppress(BackendFailed, TimeoutError):
            async with asyncio.timeout(INTERRUPT_SECONDS):
                await backend.interrupt()

    async def _take(self, event: backends.Event) -> None:
        agent, live = self._agent, self._environment.live
        match event:
            case backends.Text(text, message):
                self._waiting = False
                if message != self._message:
                    await self._flush_text()
                    self._message = message
                if not self._text:
                    live.show(agent.id, "working", f"{self._program.label} writes")
                self._text.append(text)
                live.stream(agent.id, text)
            case backends.Reasoning(text):
                live.stream(agent.id, text)
            case backends.ToolBegin():
                self._waiting = False
                await self._begin_call(event)
            case backends.ToolInBackground(call_id):
                await self._move_to_background(call_id)
            case backends.Waiting():
                await self._flush_text()
                self._waiting = True
                self._show_waiting()
            case backends.ToolOutput(call_id, text):
                if (call := self._calls.get(call_id)) is not None and len(call.output) < OUTPUT_CHARACTERS:
                    call.output += text
                live.stream(agent.id, text)
            case backends.Diff(call_id, path, patch):
                if self._environment.worktrees is not None:
                    await self._environment.worktrees.wrote(agent.id, agent.name, agent.task_id, path)
                call = self._calls.get(call_id)
                if call is not None:
                    call.changed = True
                if patch and call is not None and len(call.patch) < OUTPUT_CHARACTERS:
                    call.patch += patch.rstrip("\n") + "\n"
            case backends.ToolEnd():
                await self._end_call(event)
                if self._may_stop:
                    await self._interrupt()
                self._show_waiting()
            case backends.PlanItems(items):
                shown = self._environment.redact(list(items[:MOST_ITEMS]))
                listed = [{"title": title[:ITEM_CHARACTERS], "status": status} for title, status in shown]
                await self._note("program.plan", items=listed)
            case backends.UsageReport():
                await self._record.report(event)
                await self._check_budget()
            case backends.Compaction():
                await self._compacted(event)
            case backends.Child(child, title, status):
                named = {"child": child[:ITEM_CHARACTERS], "title": title[:ITEM_CHARACTERS]}
                await self._note(f"program.child_{status}", **self._environment.redact(named))
            case backends.Ask() if self._interrupting and self._backend is not None:
                await self._backend.answer(event.id, "cancel")
            case backends.Ask():
                self._asks[event.id] = asyncio.create_task(self._ask(event))
            case backends.Retrying(reason, seconds, until):
                now, reason = self._environment.clock.now(), cut(self._environment.redact(reason), 500)
                live.show(agent.id, "retrying", reason)
                until = until or now + seconds
                if until - now > LONG_RETRY_SECONDS:
                    self._limit = backends.Ended("failed", reason, "limit", until)
                    await self._interrupt()
            case backends.Raw(name):
                if name not in self._unknown and len(self._unknown) < MOST_ITEMS:
                    self._unknown.add(name)
                    await self._note("program.unknown", name=self._environment.redact(name)[:100])

    async def _note(self, kind: str, **data: Any) -> None:
        await self._store.commit(
            lambda tx: tx.event(kind, agent_id=self._agent.id, task_id=self._agent.task_id, **data)
        )

    async def _flush_text(self) -> None:
        text = "".join(self._text).strip()
        self._text = []
        if text:
            self._said = text
            await self._append("assistant", text)
            self._environment.live.show(self._agent.id, "working", "")

    async def _append(self, role: Role, text: str) -> None:
        """Add a message, as a step of its own where the agent said it."""
        text = self._environment.redact(text)
        now = self._environment.clock.now()

        def write(tx: Transaction) -> None:
            assert_mine(tx, self._agent.id)
            seq = self._record.append(tx, role, text)
            if role == "assistant":
                self._turn = self._record.next_turn(tx, seq, now)
                agents.end_step(tx, self._agent.id, self._turn, None)
                tx.event("model.replied", agent_id=self._agent.id, task_id=self._agent.task_id, turn=self._turn,
                         model=self._agent.model, tools=[], preview=cut(text, 200))  # fmt: skip

        await self._store.commit(write)

    # --- its tool calls -----------------------------------------------------------------------------------------

    async def _begin_call(self, event: backends.ToolBegin) -> None:
        if event.id in self._calls:
            return
        said, self._text = "".join(self._text).strip(), []
        name = event.name[:64] or "tool"
        use_id = self._record.fresh_id(event.id)
        arguments = self._environment.redact(event.arguments)
        content: list[Block] = [{"type": "text", "text": self._environment.redact(said)}] if said else []
        content.append({"type": "tool_use", "id": use_id, "name": name, "input": arguments})
        digest, now = agents.input_digest(name, arguments), self._environment.clock.now()

        def write(tx: Transaction) -> int:
            assert_mine(tx, self._agent.id)
            seq = self._record.append(tx, "assistant", content)
            self._turn = self._record.next_turn(tx, seq, now)
            (row,) = agents.add_intents(tx, self._agent.id, self._turn, seq, [(use_id, name, False, digest)])
            agents.start_tool_call(tx, row)
            tx.event("tool.started", agent_id=self._agent.id, task_id=self._agent.task_id, tool=name, call=row,
                     preview=cut(said, 200))  # fmt: skip
            return row

        row = await self._store.commit(write)
        reach("program.tool_begun")
        self._calls[event.id] = _OpenCall(row, use_id, self._turn, name, arguments, now)
        self._environment.live.show(self._agent.id, "tool", name)

    async def _move_to_background(self, call_id: str) -> None:
        call = self._calls.get(call_id)
        if call is not None and not call.background:
            call.background = True
            await self._note("program.background", tool=call.name, call=call.row, command=call.command)
            self._environment.live.show(self._agent.id, "working", f"{self._program.label} works")

    def _show_waiting(self) -> None:
        """Show what the agent waits for, if it has nothing else to do."""
        if self._waiting and self._calls:
            commands = "; ".join(call.command for call in self._calls.values())
            self._environment.live.show(
                self._agent.id, "tool", f"waiting for background commands: {commands}"
            )

    async def _end_call(self, event: backends.ToolEnd) -> None:
        call = self._calls.pop(event.id, None)
        if call is None:
            return
        output = event.output or call.output
        if len(output) > OUTPUT_CHARACTERS:
            left_out = len(output) - OUTPUT_CHARACTERS
            output = (
                f"{output[:OUTPUT_CHARACTERS]}\n[… {left_out} characters omitted; see the program's own log]"
            )
        text = self._environment.redact(
            backends.joined([output, call.patch[:OUTPUT_CHARACTERS]]) or "(no output)"
        )
        status = ToolCallStatus.DENIED if call.denied else ToolCallStatus(event.status)
        is_error = status is not ToolCallStatus.DONE
        self._progress = self._progress or not is_error

        def write(tx: Transaction) -> None:
            assert_mine(tx, self._agent.id)
            seq = self._record.append(tx, "user", [_result_block(call.use_id, text, is_error=is_error)])
            agents.end_tool_call(tx, call.row, status, None, is_error, call.began)
            agents.deliver_results(tx, self._agent.id, call.turn, seq)
            agents.end_step(tx, self._agent.id, call.turn, seq)
            tx.event(f"tool.{status}", agent_id=self._agent.id, task_id=self._agent.task_id, tool=call.name, call=call.row,
                     seconds=round(tx.now - call.began, 3), preview=cut(text, 200))  # fmt: skip
            if call.background:
                tx.event("program.background_ended", agent_id=self._agent.id, task_id=self._agent.task_id, tool=call.name,
                         call=call.row, command=call.command, status=status)  # fmt: skip

        await self._store.commit(write)
        reach("program.tool_ended")
        if self._environment.worktrees is not None:
            self._environment.worktrees.look(self._agent.task_id)
        self._environment.live.show(self._agent.id, "working", f"{self._program.label} works")
        if event.status == "done" and (reason := self._overstepped(call)):
            raise _Unsafe(
                f"{self._program.label} ran {call.name} without approval, although {reason}; it was stopped"
            )
        if call.background and not self._program.features.reports_background and event.status != "unknown":
            call.message = BACKGROUND_ENDED.format(
                tool=call.name, status=status, output=text[-NOTE_CHARACTERS:]
            )
        if call.message:
            await self._append("user", call.message)
            if not self._interrupting:
                await self._send_waiting()

    def _overstepped(self, call: _OpenCall) -> str:
        """Why a call that was carried out was not allowed; empty where it was."""
        if call.denied:
            return ""
        if call.changed or call.name == "file_change":
            return self._limit_of("write")
        # Codex also reads with harmless commands for a role without bash.
        reason = self._limit_of("bash") if call.name == "bash" else ""
        return reason if reason == BY_CONFIGURATION else ""

    async def _close_calls(self, turn: str) -> None:
        """The turn has ended: what it did not close was cancelled, or goes on in a sub-agent of the program's own."""
        for call_id, call in list(self._calls.items()):
            ended = backends.ToolEnd(
                call_id, "[cancelled] The turn ended before this call finished.", "cancelled"
            )
            if call.background and turn != "completed":
                stopped = BACKGROUND_STOPPED.format(tool=call.name, command=call.command)
                ended = backends.ToolEnd(
                    call_id, "[outcome unknown] It was stopped in the background.", "unknown"
                )
                await self._append("user", stopped)
            if turn == "completed":
                ended = backends.ToolEnd(
                    call_id, "[outcome unknown] The turn ended while this call ran.", "unknown"
                )
            await self._end_call(ended)

    # --- its questions ------------------------------------------------------------------------------------------

    async def _ask(self, ask: backends.Ask) -> None:
        """Answer one question of the program by the user's rules, a grant, or a person."""
        call = self._calls.get(ask.call_id)
        decision: Decision = "cancel"
        message = ""
        try:
            if call is not None:
                decision, message = await self._decide(ask, call)
        except (Interrupted, AgentStopped):
            pass
        except Exception as error:
            self._events.put_nowait(BackendFailed(f"could not show its approval request: {error}"))
        finally:
            self._asks.pop(ask.id, None)
            if message and call is not None:  # before the program can report what came of it
                call.denied, call.message = True, message
            if self._backend is not None:
                with suppress(BackendFailed):
                    await self._backend.answer(ask.id, decision)
        self._silent_since = self._environment.clock.monotonic()

    async def _decide(self, ask: backends.Ask, call: _OpenCall) -> tuple[Decision, str]:
        environment = self._environment
        name = ask.name
        ours = OURS.fullmatch(call.name)
        if ours is not None and ours[1] in environment.tools_of(self._agent.role):
            return "once", ""
        tool = "write" if name == "file_change" or ask.edits else name
        if reason := self._limit_of(tool):
            return "deny", REFUSED.format(tool=name, reason=reason)
        permission = environment.permission(tool)
        asked = Call(
            id=call.row, position=0, tool_use_id="", name=name, arguments=environment.redact(ask.arguments),
            idempotent=False, status=ToolCallStatus.RUNNING, result=None, is_error=False,
        )  # fmt: skip
        note = environment.redact(ask.note)[:NOTE_CHARACTERS]
        approvals = Approvals(
            environment, self._agent, self._control, lambda tool: True, note=note, folder=ask.folder
        )
        # The answer to one question is not that to the next about the same call, such as to run it without a sandbox.
        again = call.asked and permission is not Permission.ALLOW
        folder = environment.folder_of(self._agent.task_id)
        files = await asyncio.to_thread(edited_places, folder, asked.arguments)
        show = partial(environment.live.show, self._agent.id, "waiting")
        async with environment.file_turns.hold(files, self._agent.id, self._control, show):
            permit = await approvals.permit(asked, permission, (note or ASKED_AGAIN) if again else "")
        call.asked = True
        await self._store.commit(partial(self._note_answer, call=call))
        if not permit.allowed:
            return "deny", f"[Watchkeeper] {permit.reason}"
        if permit.call.original is not None:
            given = permit.call.arguments
            text = given["command"] if set(given) == {"command"} else json.dumps(given, ensure_ascii=False)
            return "deny", EDITED.format(tool=name, text=text)
        return "once", ""

    def _limit_of(self, tool: str) -> str:
        """Why the agent may not call a tool, whatever a person would say; empty where it may."""
        environment, role = self._environment, self._agent.role
        names = CHANGES if tool in CHANGES else (tool,)
        if any(environment.permission(name) is Permission.DENY for name in names):
            return BY_CONFIGURATION
        has = set(environment.tools_of(role)) if tool in LIMITED or tool in CHANGES else set(names)
        return "" if has.intersection(names) else BY_ROLE.format(role=role)

    def _limits(self, reason: str) -> frozenset[str]:
        """The tools that the agent may not call for this reason."""
        wanted = reason.format(role=self._agent.role)
        return frozenset(tool for tool in LIMITED if self._limit_of(tool) == wanted)

    def _note_answer(self, tx: Transaction, *, call: _OpenCall) -> None:
        """The call goes on, or ends by the program's own word."""
        agents.release_tool_call(tx, call.row)

    async def _end_asks(self) -> None:
        tasks = list(self._asks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._cancel_questions()

    async def _cancel_questions(self) -> None:
        """No question waits for an answer that the program would not hear."""
        if not commands.asks(self._store, self._agent.id):
            return

        def cancel(tx: Transaction) -> None:
            agents.cancel_questions(tx, self._agent.id, "the turn was interrupted")
            if agents.status_of(tx, self._agent.id) is AgentStatus.WAITING:
                agents.move(tx, self._agent.id, AgentStatus.WORKING)

        await self._store.commit(cancel)

    # --- its context --------------------------------------------------------------------------------------------

    async def _compacted(self, event: backends.Compaction) -> None:
        if event.begun:
            self._environment.live.show(
                self._agent.id, "compacting", f"{self._program.label} is compacting its context"
            )
            return
        self._environment.live.show(self._agent.id, "working", f"{self._program.label} works")
        await self._flush_text()
        if event.failed:
            await self._note("program.not_compacted", reason=self._environment.redact(event.failed)[:2000])
        else:
            await self._record.compacted(self._environment.redact(event.summary))

    # --- between turns --------------------------------------------------------------------------------------------

    def _has_mail(self) -> bool:
        return bool(plans.undelivered(self._store, self._agent.id))

    def _messages_for(self, notes: Sequence[Note]) -> Callable[[Transaction], None]:
        text = self._environment.redact(roles.inbox_message([(kind, payload) for _, kind, payload in notes]))

        def write(tx: Transaction) -> None:
            seq = self._record.append(tx, "user", text)
            plans.deliver(tx, self._agent.id, self._agent.task_id, notes, seq)

        return write

    def _has_answered(self) -> bool:
        return not self._unsent()

    async def _go_on(self) -> RunResult | None:
        await self._append("user", GO_ON)
        return None

    def _unsent(self) -> str:
        """The messages for the program that it was not sent yet, as one text."""
        waiting = load_messages(self._store, self._agent.id, _sent(self._store, self._agent.id) + 1)
        return backends.joined([_prompt(one) for one in waiting])

    def _sent_text(self, turn: ProgramTurn) -> str:
        """What a turn was sent: the messages since the last one that the program wrote, and those that were sent while
        it ran. Nothing for a compaction."""
        if turn.kind == "compaction":
            return ""
        prompt_seq = turn.prompt_seq
        texts: list[str] = []
        for message in reversed(load_messages(self._store, self._agent.id, 1, prompt_seq)):
            if not _prompt(message):
                break
            texts.insert(0, _prompt(message))
        later = load_messages(self._store, self._agent.id, prompt_seq + 1, _sent(self._store, self._agent.id))
        return backends.joined([*texts, *map(_prompt, later)])

    # --- endings --------------------------------------------------------------------------------------------------

    async def _after_turn(self, ended: backends.Ended) -> RunResult | None:
        """Write how the turn ended, and what follows from it; None: go on."""
        reason = cut(self._environment.redact(ended.reason), 2000)
        if self._environment.worktrees is not None:
            await self._environment.worktrees.refresh(self._agent.task_id)

        async def note(status: str) -> None:
            await self._store.commit(partial(self._end_turn, status=status, reason=reason or None))

        ended = self._limit_in(ended)
        if ended.kind == "rate_limit":
            until = ended.until or self._environment.clock.now() + RATE_LIMIT_SECONDS
            ended = replace(ended, kind="limit", until=until)
        if ended.status == "completed":
            if self._has_mail() or self._unsent():
                await note("completed")
                return None
            assert self._environment.programs is not None
            ending = RunResult(TaskOutcome.DONE if self._agent.task_id else TaskOutcome.IDLE)
            text = self._said if self._agent.task_id else ""
            if (finish := self._environment.programs.finished.pop(self._agent.id, None)) is not None:
                ending, text = RunResult(TaskOutcome.FINISHED, finish[1], finish[0]), finish[1]
            if self._wanted_compaction is not None:
                await note("completed")
                await self._compact()
                return None if self._has_mail() or self._unsent() else await self._end(ending, text)
            return await self._end(ending, text, "completed")
        if ended.status == "interrupted":
            await note("interrupted")
            if self._control.pause_reason is not None:
                return await self._pause(self._control.pause_reason)
            if self._wanted_compaction is not None:
                return None
            return await self._pause("the turn was interrupted", tell=True)
        await note("failed")
        if ended.kind == "limit" and ended.until is not None:
            error = ModelError(reason, kind=ErrorKind.PARK, until=ended.until)
            noted = self._environment.usage_limits.note(self._agent.model, error)
            if noted.kind is ErrorKind.PARK and noted.until is not None:
                return await self._park(reason, noted.until)
        if ended.kind in ("limit", "login"):
            return await self._pause(reason, tell=True, blocked=True)
        return await self._fail(reason or f"{self._program.label} failed")

    def _limit_in(self, ended: backends.Ended) -> backends.Ended:
        """The ending, with the usage limit and its end that the program only words: in its error, or as its answer.

        An end that has just passed is a minute from now; one that passed long ago is none.
        """
        said, until = self._said if ended.status == "completed" else ended.reason, ended.until
        if ended.status == "interrupted" or (ended.status == "completed" and len(said) > LONGEST_NOTICE):
            return ended
        now = self._environment.clock.now()
        limit = usage_limit(said, now)
        if until is None and "limit" in ended.kind:
            until = limit_end(said, now)
        elif until is None and limit is not None:
            until = limit.ends_at
        wait = limit_wait_seconds(None if until is None else until - now)
        until = None if wait is None else now + wait
        if ended.status == "completed":  # an answer may speak of limits; a notice says when they end
            return ended if limit is None or until is None else backends.Ended("failed", said, "limit", until)
        kind = "limit" if limit is not None and not ended.kind else ended.kind
        return replace(ended, kind=kind, until=until)

    def _end_turn(self, tx: Transaction, status: str, reason: str | None = None) -> None:
        assert_mine(tx, self._agent.id)
        agents.end_program_turn(tx, self._turn_id, status, reason)
        tx.event(
            f"program.turn_{status}", agent_id=self._agent.id, task_id=self._agent.task_id, reason=reason
        )

    async def _end(self, ending: RunResult, text: str, status: str = "") -> RunResult | None:
        """End the work; `status`: how its last turn ended, where that is not written yet. None: a person's word came before
        the end."""
        snapshot = self._record.snapshot()

        def write(tx: Transaction) -> bool:
            assert_mine(tx, self._agent.id)
            if status:
                self._end_turn(tx, status)
            if is_overtaken(tx, self._agent.id, ending):
                return False
            write_ending(tx, self._agent, ending, text, self._turn, snapshot)
            return True

        return ending if await self._store.commit(write) else None

    async def _pause_cut(self, reason: str, *, tell: bool = False, blocked: bool = False) -> RunResult:
        """Pause where the program did not end its turn: stop it, and settle the turn as after a crash."""
        await self._close(0.0 if blocked else None)
        await self._settle_cut_turn()
        return await self._pause(reason, tell=tell, blocked=blocked)

    def _note_end(self, tx: Transaction, status: str, reason: str) -> None:
        turn = agents.last_program_turn(tx, self._agent.id)
        if turn is not None and turn.status == "running":
            agents.end_program_turn(tx, turn.id, status, reason)

    async def _stop_turn(self, reason: str) -> RunResult:
        """Paused at once, or cancelled, in the middle of a turn: end it in the program too."""
        if self._pump is None:  # not opened yet: an earlier turn that was cut is settled at the next start
            return await self._pause(reason, keep_turn=True)
        ended = False
        await self._interrupt()
        with suppress(TimeoutError):
            async with asyncio.timeout(INTERRUPT_SECONDS):
                while not ended:
                    event = await self._events.get()
                    ended = isinstance(event, backends.Ended)
                    if isinstance(event, BackendFailed):
                        break
                    if not ended:
                        await self._take(event)
        await self._flush_text()
        if not ended:
            return await self._pause_cut(reason)
        await self._close_calls("interrupted")
        await self._record.settle("")
        return await self._pause(reason)

    async def _close(self, grace_seconds: float | None = None) -> None:
        """End the program, whatever state it is in."""
        for task in self._asks.values():
            task.cancel()
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
            self._pump = None
        if self._backend is not None:
            backend, self._backend = self._backend, None
            await backend.close(CLOSE_SECONDS if grace_seconds is None else grace_seconds)
        self._calls.clear()
        while not self._events.empty():
            self._events.get_nowait()
        await sweep(self._agent.id)


async def _compact(backend: AgentBackend, *, instructions: str | None) -> None:
    await backend.compact(instructions)


async def _send(backend: AgentBackend, *, text: str) -> None:
    await backend.prompt(text)


def _result_block(use_id: str, text: Any, *, is_error: bool) -> Block:
    return {
        "type": "tool_result",
        "tool_use_id": use_id,
        "content": text,
        **({"is_error": True} if is_error else {}),
    }


def _prompt(message: Message) -> str:
    """The text of a message that the program is sent: a person's or the planner's words; else empty."""
    return message.content if message.role == "user" and isinstance(message.content, str) else ""


def _sent(reads: Reads, agent_id: str) -> int:
    """The last message of an agent that its program was sent; 0 where there is none."""
    session = agents.load_program_session(reads, agent_id)
    return session.sent_seq if session is not None else 0


def _is_there(path: str | None) -> bool:
    return path is not None and os.path.exists(path)
