"""One agent's loop: a sequence of steps, each one transaction.

The transactions are: (a) the model's reply, its model call and its tool intents; (b) `running`, before each
call that may have an effect; (c) each result; (d) the results message with everything that changed with it.
At whatever moment the process dies, `run` on the same agent continues. It settles an open turn first: a
`pending` call runs; a `running` call is marked unknown, and runs again only if its tool is declared
idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from watchkeeper.agents import agent_state, roles
from watchkeeper.agents.agent_run import AgentRun
from watchkeeper.agents.agent_state import (
    AgentMemory,
    Recorded,
    RunResult,
    Snapshot,
    TaskOutcome,
    is_overtaken,
    limits_of,
    thinking_beyond,
    write_ending,
)
from watchkeeper.agents.calls import assert_mine, mark_unknown
from watchkeeper.agents.compaction import CompactionRunner
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.later import groups
from watchkeeper.agents.limits import AgentControl, AgentStopped, Interrupted
from watchkeeper.agents.model_call import ModelCallResult, call_model
from watchkeeper.agents.session_tools import BESIDE, ENDS_TURN, SAVING
from watchkeeper.agents.toolbox import Toolbox, named_call
from watchkeeper.memory.history import Rejection, WindowTooSmall
from watchkeeper.records.errors import HostFault, StoreUnusable
from watchkeeper.records.messages import Block, ErrorKind, Message, ModelError, ModelRequest, Purpose, Reply
from watchkeeper.records.states import TaskStatus, ToolCallStatus
from watchkeeper.records.text import cut
from watchkeeper.store import agents, budgets, plans
from watchkeeper.store.agents import Agent, Call, load_calls
from watchkeeper.store.messages import load_messages
from watchkeeper.store.plans import Note
from watchkeeper.store.transaction import Transaction

# --- Accepting a model's reply into the history -------------------------------------------------------------

SAME_CALLS_IN_A_ROW = 12
"""Turns with exactly the same tool calls after which an agent counts as looping."""


def usable(
    reply: Reply, redact: Callable[[Any], Any], taken: set[str], turn: int
) -> tuple[list[Block], dict[str, str]]:
    """The reply's blocks: not empty, without secrets, and every tool call with an id that no other has.

    With them, why calls cannot be run, by the id that they have now. `taken` gains the new ids.
    """
    kept: list[Block] = []
    invalid: dict[str, str] = {}
    for block in redact(reply.content):
        if block.get("type") == "text" and not str(block.get("text", "")).strip():
            continue
        if block.get("type") == "tool_use":
            block = named_call(block)
            given = str(block.get("id") or "")
            use_id = given if given and given not in taken else _fresh_id(taken, turn)
            taken.add(use_id)
            block = block | {"id": use_id}
            if given in reply.invalid_inputs:
                invalid[use_id] = reply.invalid_inputs[given]
            if not isinstance(block.get("input"), dict):
                block = block | {"input": {}}
        kept.append(block)
    return kept or [{"type": "text", "text": EMPTY_REPLY}], invalid


EMPTY_REPLY = "(an empty reply)"
"""Stored in the place of a reply without content."""


def says_nothing(said: str) -> bool:
    """Whether a reply has no text, which is no result of a task."""
    return said in ("", EMPTY_REPLY)


def _fresh_id(taken: set[str], turn: int) -> str:
    """An id that no call of this history has; a re-run's copied history may hold ids made in the same way."""
    number = 0
    while (use_id := f"toolu_wk_{turn}_{number}") in taken:
        number += 1
    return use_id


def succeeded(calls: list[Call], name: str) -> dict[str, Any] | None:
    """The input of a call of that tool that succeeded in this turn, or None."""
    for call in calls:
        if call.name == name and call.status is ToolCallStatus.DONE:
            return call.arguments if isinstance(call.arguments, dict) else {}
    return None


def results_of(calls: list[Call]) -> list[Block]:
    """The blocks that tell the model what came of its calls."""
    return [
        {
            "type": "tool_result",
            "tool_use_id": call.tool_use_id,
            "content": call.result if call.result not in (None, "", []) else "(no output)",
            **({"is_error": True} if call.is_error else {}),
        }
        for call in calls
    ]


class Repetition:
    """Notices an agent that makes the same calls again and again."""

    def __init__(self) -> None:
        self._last: tuple[object, int] = (None, 0)

    def is_endless(self, calls: list[Call]) -> bool:
        """Whether these calls, of one more turn, are those of the turns before, `SAME_CALLS_IN_A_ROW`
        times."""
        same = [(call.name, repr(call.arguments)) for call in calls]
        last, count = self._last
        self._last = (same, count + 1 if same == last else 1)
        return self._last[1] >= SAME_CALLS_IN_A_ROW


def used_ids(messages: Sequence[Message]) -> set[str]:
    """The ids of all tool calls in a history: the Messages API refuses one that comes twice."""
    return {
        str(block.get("id"))
        for message in messages
        if isinstance(message.content, list)
        for block in message.content
        if block.get("type") == "tool_use"
    }


def text_of(content: list[Block]) -> str:
    """The texts of a reply, joined."""
    return "\n".join(str(block.get("text", "")) for block in content if block.get("type") == "text").strip()


def _as_work(outputs: Sequence[str]) -> str:
    """What is still to do for these expected outputs."""
    files = [one.removeprefix(plans.FILE_OUTPUT) for one in outputs if one.startswith(plans.FILE_OUTPUT)]
    names = [one for one in outputs if not one.startswith(plans.FILE_OUTPUT)]
    parts = [f"saved {', '.join(f'`{one}`' for one in names)}"] if names else []
    parts += [f"written {', '.join(files)}"] if files else []
    return " and ".join(parts)


MOST_CONTINUATIONS = 3
"""How often the model is asked to continue a reply that was cut at its output limit."""

NOT_RUN = "[not run] The input of this call was not valid JSON. Make the call again. "


class _MachineShort(Exception):
    """A call was tried again in vain. The memory of the agent is as it was committed."""

    def __init__(self, fault: HostFault) -> None:
        super().__init__(str(fault))
        self.fault = fault


@contextmanager
def _for_a_call() -> Iterator[None]:
    try:
        yield
    except StoreUnusable:
        raise
    except HostFault as fault:
        raise _MachineShort(fault) from fault


class AgentLoop(AgentRun):
    """The run of an agent whose turns a model takes."""

    def __init__(
        self,
        environment: Environment,
        agent: Agent,
        control: AgentControl,
        *,
        rested: AgentLoop | None = None,
    ) -> None:
        """`rested`: the agent's previous loop, which ended while a pass was running; this loop takes the pass
        over."""
        self._toolbox = Toolbox(environment, agent, control)
        super().__init__(environment, agent, control, self._toolbox)
        self._specs = self._toolbox.specs()
        self._limits = limits_of(environment, agent, self._specs)
        self._rested = rested is not None
        self.memory: AgentMemory
        self.compaction: CompactionRunner
        if rested is not None:
            self.memory, self.compaction = rested.memory, rested.compaction
        else:
            self.memory = AgentMemory.load(environment.store, agent.id, self._limits, environment.counter)
            self.compaction = CompactionRunner(environment, agent, self.memory)
        self.compaction.note_turn(agent.turn)
        self._used_ids = used_ids(self.memory.state.messages)
        self._continuations = 0
        self._asked_for_result = False
        """After a reply that said nothing; once for a task."""
        self._asked_for_outputs = False
        """After an ending without its expected outputs; once for a task."""
        self._missing: list[str] = []
        """Expected outputs that were not there at the newest reply without calls."""
        self._squeezed = False
        """Compacted after "prompt too long"; once for a call."""
        self._repetition = Repetition()

    async def _begin(self) -> RunResult | None:
        if not self._rested:
            await self.compaction.take_over()
        return await self._settle_open_turn()

    async def _after_fault(self, error: Exception) -> RunResult:
        if isinstance(error, WindowTooSmall):
            return await self._fail(str(error))
        if isinstance(error, _MachineShort):
            reason = error.fault.advice(self._environment.session_id)
            return replace(await self._pause(reason, blocked=True), short_of=error.fault.shortage)
        raise error

    async def _finish(self, ending: RunResult) -> None:
        if ending.outcome is not TaskOutcome.STOPPED:
            await self.compaction.land()
        goes_on = ending.outcome in (
            TaskOutcome.PAUSED,
            TaskOutcome.BLOCKED,
            TaskOutcome.IDLE,
            TaskOutcome.PARKED,
        )
        if ending.outcome is not TaskOutcome.IDLE or not self.compaction.outlives_loop:
            finished = ending.outcome in (TaskOutcome.DONE, TaskOutcome.FINISHED)
            reason = "the agent finished" if finished else f"the agent is {ending.outcome}"
            await self.compaction.abandon(reason, goes_on=goes_on, finished=finished)
        if ending.outcome is not TaskOutcome.IDLE:
            await self._environment.pool.release(self._agent.id, continues=goes_on)

    async def _abort(self) -> None:
        self.compaction.drop()

    def _note_end(self, tx: Transaction, status: str, reason: str) -> None:
        """A turn of a model that is cut off stays open: `_settle_open_turn` finishes it."""

    def _snapshot(self) -> Snapshot:
        return self.memory.snapshot()

    # --- one turn -------------------------------------------------------------------------------------------

    async def _take_turn(self) -> RunResult | None:
        if self._turn >= self._environment.settings.most_turns:
            return await self._fail(f"the agent did not finish within {self._turn} turns")
        called = await self._call()
        if called.refused is not None:
            return await self._pause_by_budget(called.refused)
        if called.reply is None:
            if called.error is None:
                await self._environment.store.commit(partial(self._note_lost_call, called=called))
                raise Interrupted
            return await self._after_error(called, called.error)
        self.compaction.note_usage(called.reply.usage)
        self._calibrate(called.reply, called.estimated_prompt_tokens)
        content, invalid = usable(called.reply, self._environment.redact, self._used_ids, self._turn + 1)
        uses = [block for block in content if block.get("type") == "tool_use"]
        intents = [self._intent(block) for block in uses]
        turn = self._turn + 1
        now = self._environment.clock.now()
        change = self.memory.append("assistant", content, at=now)
        ending: RunResult | None = None
        if not uses:
            ending = self._how_it_ends(called.reply.stop_reason, text_of(content))
        snapshot = self.memory.snapshot() if ending is not None else None

        def write(tx: Transaction) -> None:
            change.write(tx)
            called.record(tx, self._agent.id, turn)
            agents.begin_step(tx, self._agent.id, turn, change.last_seq, called.started_at)
            ids = agents.add_intents(tx, self._agent.id, turn, change.last_seq, intents)
            for call_id, (use_id, _, _, _) in zip(ids, intents, strict=True):
                if use_id in invalid:
                    agents.end_tool_call(
                        tx, call_id, ToolCallStatus.ERROR, NOT_RUN + invalid[use_id], True, tx.now
                    )
            tx.event(
                "model.replied",
                agent_id=self._agent.id,
                task_id=self._agent.task_id,
                turn=turn,
                model=called.model_ref,
                tokens=called.reply.usage.total_tokens if called.reply else 0,
                seconds=round(called.latency_seconds, 3),
                tools=[name for _, name, _, _ in intents],
                preview=cut(text_of(content), 200),
            )
            if not uses:
                agents.end_step(tx, self._agent.id, turn, None)
            if ending is not None:
                write_ending(tx, self._agent, ending, text_of(content), turn, snapshot)

        try:
            await self._commit(write)
        except AgentStopped:
            await self._store.commit(partial(self._note_lost_call, called=called))
            raise
        self._turn, self._squeezed = turn, False
        self.compaction.note_turn(turn)
        self._environment.live.show(self._agent.id, "working")
        if ending is not None:
            return ending
        if not uses:
            return await self._continue_reply(called.reply, text_of(content))
        return await self._finish_turn(content)

    def _intent(self, block: Block) -> tuple[str, str, bool, str]:
        name = str(block.get("name", ""))
        return (
            block["id"],
            name,
            self._toolbox.is_idempotent(name),
            agents.input_digest(name, block.get("input")),
        )

    async def _call(self) -> ModelCallResult:
        await self._make_room()
        state = self.memory.state
        request = ModelRequest(
            system=self._agent.system,
            messages=state.rendered(),
            tools=self._specs,
            max_tokens=self._limits.reserve_tokens + thinking_beyond(self._environment, self._agent),
            purpose=Purpose.PLANNER if self._agent.task_id is None else Purpose.TURN,
            agent_id=self._agent.id,
            stable_prefix=state.stable_prefix(),
            effort=self._environment.effort(self._agent.role),
        )
        estimated = state.tokens + self._limits.overhead_tokens
        environment, model = self._environment, self._agent.model
        with _for_a_call():
            return await call_model(
                environment,
                self._control,
                model,
                request,
                estimated_prompt_tokens=estimated,
                task_id=self._agent.task_id,
            )

    def _calibrate(self, reply: Reply, estimated_tokens: int) -> None:
        if reply.usage_exact:
            calibration = self._environment.calibrations.of(self._agent.model)
            calibration.observe(estimated_tokens=estimated_tokens, reported_tokens=reply.usage.prompt_tokens)

    async def _make_room(self) -> None:
        """Before a call: keep the bound, publish a compaction that is ready, begin one that is due. Waits for
        no model."""
        self.memory.forget_covered()
        state, now = self.memory.state, self._environment.clock.now()
        state.set_limits(self._limits, self._environment.calibrations.of(self._agent.model).ratio)
        change = state.fit(at=now)
        if change is not None:
            recorded = self.memory.record(change)
            await self._environment.store.commit(recorded.write)
        await self.compaction.at_boundary()

    async def _finish_turn(self, reply: list[Block]) -> RunResult | None:
        """Carry out the calls of the open turn that have not ended, then commit the results message."""
        calls = load_calls(self._environment.store, self._agent.id, self._turn, reply)
        if self._repetition.is_endless(calls):
            return await self._fail(f"stuck in a loop: same calls {SAME_CALLS_IN_A_ROW} times in a row")
        with _for_a_call():
            await self._toolbox.carry_out(calls)
        calls = load_calls(self._environment.store, self._agent.id, self._turn, reply)
        if any(call.status in (ToolCallStatus.PENDING, ToolCallStatus.RUNNING) for call in calls):
            return await self._pause(self._control.pause_reason or "paused")
        return await self._deliver_results(calls)

    async def _deliver_results(self, calls: list[Call]) -> RunResult | None:
        now = self._environment.clock.now()
        results = results_of(calls)
        await self.compaction.make_room(results)
        self.compaction.note_ending(self._saves_last_output(calls))
        change = self.memory.append("user", results, at=now)
        # What the calls ask of the loop is read from the calls: after a crash, their rows are all there is.
        asked = succeeded(calls, "compact")
        finish = succeeded(calls, "finish_session")
        ending = None
        if self._only_planned(calls):
            ending = RunResult(TaskOutcome.IDLE)
        elif finish is not None:
            ending = RunResult(
                TaskOutcome.FINISHED, str(finish.get("summary", "")), str(finish.get("status") or "done")
            )
        elif (said := self._final_word(calls)) is not None:
            ending = RunResult(TaskOutcome.DONE, said)
        snapshot = self.memory.snapshot() if ending is not None else None

        def write(tx: Transaction) -> None:
            nonlocal ending
            assert_mine(tx, self._agent.id)
            change.write(tx)
            results_seq = change.last_seq
            agents.deliver_results(tx, self._agent.id, self._turn, results_seq)
            agents.end_step(tx, self._agent.id, self._turn, results_seq)
            if self._agent.task_id is not None:
                plans.note_resume_point(tx, self._agent.task_id, self._agent.id, self._turn, results_seq)
            if is_overtaken(tx, self._agent.id, ending):
                ending = None
            if ending is not None:
                write_ending(tx, self._agent, ending, ending.reason, self._turn, snapshot)

        begun: Any = None
        if asked is not None:
            instructions = asked.get("instructions")
            begun = await self.compaction.begin(
                trigger="agent", instructions=instructions, also=lambda tx, _: write(tx)
            )
        if begun is None or isinstance(begun, Rejection):
            await self._environment.store.commit(write)
        return ending

    def _saves_last_output(self, calls: list[Call]) -> bool:
        """Whether these calls saved the last of the task's expected outputs: what follows is the agent's last reply, as
        a rule."""
        saved = {
            call.arguments.get("name")
            for call in calls
            if call.name in SAVING and call.status is ToolCallStatus.DONE and isinstance(call.arguments, dict)
        }
        if self._agent.task_id is None or not saved:
            return False
        folder = self._environment.folder_of(self._agent.task_id)
        return agent_state.completes_outputs(self._environment.store, self._agent, folder, saved)

    def _only_planned(self, calls: list[Call]) -> bool:
        """Whether a reply of the planner changed the plan, did nothing else, and leaves tasks to wait for."""
        names = {call.name for call in calls}
        if self._agent.task_id is not None or not names or not names <= ENDS_TURN | BESIDE:
            return False
        if names <= BESIDE or any(call.status is not ToolCallStatus.DONE for call in calls):
            return False
        tasks = plans.all_task_states(self._environment.store, self._environment.session_id)
        return any(task.status in (TaskStatus.PENDING, TaskStatus.RUNNING) for task in tasks)

    def _final_word(self, calls: list[Call]) -> str | None:
        """The text of a reply that ends the task with what it saves; None for any other."""
        if self._agent.task_id is None or not calls:
            return None
        if any(call.name not in BESIDE or call.status is not ToolCallStatus.DONE for call in calls):
            return None
        if not any(
            isinstance(call.arguments, dict) and call.arguments.get("final") is True for call in calls
        ):
            return None
        store, folder = self._environment.store, self._environment.folder_of(self._agent.task_id)
        reply = agents.reply_of(store, self._agent.id, self._turn)
        assert reply is not None
        content = self._message(reply).content
        said = text_of(content) if isinstance(content, list) else ""
        return None if says_nothing(said) or agent_state.missing_outputs(store, self._agent, folder) else said

    async def _settle_open_turn(self) -> RunResult | None:
        """After a crash or a pause: finish the turn whose results message is missing, if there is one."""
        store = self._environment.store
        reply_seq = agents.reply_of(store, self._agent.id, self._turn, open_only=True)
        if reply_seq is None:
            return None
        await store.commit(lambda tx: agents.reopen_step(tx, self._agent.id, self._turn))
        reply = self._message(reply_seq).content
        assert isinstance(reply, list)
        for call in load_calls(store, self._agent.id, self._turn, reply):
            if call.status is ToolCallStatus.RUNNING:
                also = ""
                if call.name == "bash":
                    folder = self._environment.folder_of(self._agent.task_id)
                    also = self._environment.pool.at(folder).begin_anew(self._agent.id)
                await store.commit(partial(mark_unknown, agent=self._agent, call=call, also=also))
        return await self._finish_turn(reply)

    # --- between turns --------------------------------------------------------------------------------------

    def _messages_for(self, notes: Sequence[Note]) -> Callable[[Transaction], None]:
        """Write notes as messages: news, and what survives compaction."""
        made: list[tuple[Recorded, list[Note]]] = []
        for lasting, group in groups(notes):
            text = roles.inbox_message([(kind, payload) for _, kind, payload in group])
            text, now = self._environment.redact(text), self._environment.clock.now()
            made.append((self.memory.append("user", text, at=now, lasting=lasting), group))

        def write(tx: Transaction) -> None:
            for change, group in made:
                change.write(tx)
                plans.deliver(tx, self._agent.id, self._agent.task_id, group, change.last_seq)

        return write

    def _has_answered(self) -> bool:
        last = self.memory.state.last_seq
        return last > 0 and self._message(last).role == "assistant"

    def _message(self, seq: int) -> Message:
        return load_messages(self._environment.store, self._agent.id, seq, seq)[0]

    async def _go_on(self) -> RunResult | None:
        return await self._fail("resumed without a new instruction")

    async def _continue_reply(self, reply: Reply, said: str) -> RunResult | None:
        self._continuations += 1
        if reply.stop_reason == "max_tokens":
            text = (
                f"Your reply was cut off at the limit of {self._limits.reserve_tokens:,} tokens. Continue where it stopped. Write"
                " longer text in parts."
            )
        elif self._missing and reply.stop_reason != "pause_turn":
            self._asked_for_outputs = True
            text = f"You have not {_as_work(self._missing)}. Do it now, or explain why you cannot."
        elif says_nothing(said):
            self._asked_for_result = True
            text = "Your reply was empty. State your result in a few sentences, or explain what prevents it."
        else:
            text = "Go on."
        change = self.memory.append("user", text, at=self._environment.clock.now())
        await self._environment.store.commit(change.write)
        return None

    # --- endings --------------------------------------------------------------------------------------------

    def _how_it_ends(self, stop_reason: str, said: str) -> RunResult | None:
        """The result of a reply without tool calls; None: ask the model to continue."""
        self._missing = []
        if stop_reason in ("max_tokens", "pause_turn") and self._continuations < MOST_CONTINUATIONS:
            return None
        if stop_reason == "refusal":
            return RunResult(TaskOutcome.FAILED, "the model refused to continue")
        if self._agent.task_id is None:
            return RunResult(TaskOutcome.IDLE)
        if says_nothing(said) and not self._asked_for_result:
            return None
        folder = self._environment.folder_of(self._agent.task_id)
        self._missing = agent_state.missing_outputs(self._environment.store, self._agent, folder)
        if not self._missing:
            return RunResult(TaskOutcome.DONE)
        if not self._asked_for_outputs:
            return None
        return RunResult(TaskOutcome.FAILED, f"expected outputs are missing: {', '.join(self._missing)}")

    async def _after_error(self, called: ModelCallResult, error: ModelError) -> RunResult | None:
        reason, note = str(error), partial(self._note_lost_call, called=called)
        if error.kind is ErrorKind.PARK and error.until is not None:
            return await self._park(reason, error.until, note)
        if error.kind is ErrorKind.COMPACT and not self._squeezed:
            squeezed = self.memory.state.digest(at=self._environment.clock.now(), reason="digest")
            if squeezed is not None:
                self._squeezed = True
                recorded = self.memory.record(squeezed)
                await self._commit(partial(recorded.write, trigger="overflow"), note)
                return None
        if error.kind is ErrorKind.COMPACT:
            reason = f"the context is too long for {self._agent.model}, even after compaction ({reason})"
        blocked = error.kind is ErrorKind.PAUSE or (
            error.kind is ErrorKind.RETRY and self._agent.task_id is None
        )
        if blocked:
            await self._store.commit(note)
            return await self._pause(reason, tell=True, blocked=True)
        return await self._fail(reason, note)

    def _note_lost_call(self, tx: Transaction, *, called: ModelCallResult) -> None:
        if not called.was_made:
            if called.reservation is not None:
                budgets.settle_reservation(tx, called.reservation.id)
            return
        called.record(tx, self._agent.id, self._turn + 1)
        if called.reply is not None:
            return
        tx.event(
            f"model.{called.status}",
            agent_id=self._agent.id,
            task_id=self._agent.task_id,
            turn=self._turn + 1,
            model=called.model_ref,
            error=cut(str(called.error), 500) if called.error else None,
        )
