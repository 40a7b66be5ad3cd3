"""Applying commands: each in the transaction that changes what it changes, or refused with a reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from watchkeeper.agents import reporting
from watchkeeper.agents.agent_memory import AgentMemory
from watchkeeper.agents.control import AgentControl
from watchkeeper.agents.limits import limits_of
from watchkeeper.agents.storetools import plan as plan_tools
from watchkeeper.agents.toolbox import Toolbox
from watchkeeper.agents.tools.builtin import mark_fault
from watchkeeper.agents.tools.validate import validate_arguments
from watchkeeper.memory.recall.instructions import lift
from watchkeeper.records.command_pattern import parse_pattern, pattern_of
from watchkeeper.records.states import (
    AGENT_ENDED,
    SESSION_ENDED,
    TASK_ENDED,
    AgentStatus,
    ApprovalStatus,
    CommandStatus,
    SessionStatus,
    TaskStatus,
)
from watchkeeper.runtime import recovery
from watchkeeper.runtime.compaction_orders import Command, CompactionOrders, NotYet
from watchkeeper.store import agents, budgets, commands, facts, plans, sessions
from watchkeeper.store.agents import Agent
from watchkeeper.store.encoding import decode
from watchkeeper.store.grants import add_grant, revoke_grant
from watchkeeper.store.plans import Task
from watchkeeper.store.transaction import Transaction

if TYPE_CHECKING:
    from watchkeeper.runtime.host import SessionHost

MOST_PINNED = 2_000
"""Characters of a text that is pinned: it is in every prompt."""

T = TypeVar("T")


class CommandQueue:
    """The host's side of `commands`."""

    def __init__(self, host: SessionHost) -> None:
        self._host = host
        self._store = host.store
        self.compactions = CompactionOrders(host, self.memory_of)
        self._appliers: dict[str, Callable[[Command], Awaitable[str | None]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "cancel": self._cancel,
            "rerun": self._rerun,
            "compact": self.compactions.apply,
            "undo": self._undo,
            "redo": self._undo,
            "steer": self._steer,
            "approve": self._decide,
            "deny": self._decide,
            "set_budget": self._set_budget,
            "memory_sync": self._sync,
            "pin": self._pin,
            "unpin": self._pin,
            "revoke": self._revoke,
        }

    async def apply_waiting(self) -> None:
        """Apply what is queued, in order."""
        rows = self._store.all(
            "SELECT id, kind, agent_id, task_id, payload, requested_by FROM commands"
            " WHERE session_id = ? AND status = 'queued' ORDER BY id",
            (self._store.session_id,),
        )
        for row in rows:
            command = Command(
                row[0], row[1], row[2], row[3], self._host.environment.redact(decode(row[4])), row[5]
            )
            try:
                applier = self._appliers.get(command.kind)
                if applier is None:
                    raise ValueError(f"this host knows no command {command.kind}")
                said = await applier(command)
            except ValueError as refused:
                reason = str(refused)
                await self._settle(command, CommandStatus.REFUSED, reason)
            except NotYet:
                continue
            else:
                if said is not None:
                    await self._settle(command, CommandStatus.APPLIED, said)
            self._host.kick()

    async def _settle(self, command: Command, status: CommandStatus, result: str) -> None:
        await self._store.commit(
            lambda tx: commands.settle(
                tx,
                command.id,
                command.kind,
                status,
                result,
                agent_id=command.agent_id,
                task_id=command.task_id,
            ),
            urgent=True,
        )

    async def _commit(self, command: Command, said: str, change: Callable[[Transaction], T]) -> T:
        """Change rows and mark the command applied in one transaction: after a crash it is done once, or
        still queued."""

        def write(tx: Transaction) -> T:
            changed = change(tx)
            commands.settle(
                tx,
                command.id,
                command.kind,
                CommandStatus.APPLIED,
                said,
                agent_id=command.agent_id,
                task_id=command.task_id,
            )
            return changed

        return await self._store.commit(write, urgent=True)

    # --- each kind ------------------------------------------------------------------------------------------

    async def _pause(self, command: Command) -> str | None:
        reason = f"paused by {command.requested_by}"
        now = bool(command.payload.get("now"))
        if command.agent_id is None:
            self._host.pause_all(reason, now=now)
            return "pausing every agent" + (" at once" if now else " at its next step")
        agent = self._agent(command)
        control = self._host.control_of(agent.id)
        if control is None:
            if agent.status in (AgentStatus.IDLE, AgentStatus.PARKED):
                said = f"{agent.name} is paused"
                await self._commit(
                    command, said, lambda tx: recovery.pause_agent(tx, agent.id, agent.task_id, reason)
                )
                return None
            raise ValueError(f"{agent.name} is {agent.status}; there is nothing to pause")
        control.pause(reason, now=now)
        return f"{agent.name} pauses" + (" at once" if now else " at its next step")

    async def _resume(self, command: Command) -> str | None:
        self._refuse_by_budget(command)
        if command.agent_id is None:
            # The host of another command drives nothing: it goes on as one that does when that command is
            # done.
            if self._host.driving_once or not self._host.go_on():
                raise NotYet
            await self._commit(command, "resumed", recovery.lift_pauses)
            self._host.usage_limits.allow_test()
            return None
        agent = self._agent(command)
        control = self._host.control_of(agent.id)
        if control is not None and agent.status in AGENT_ENDED:
            control.stop_now()  # the loop still waits for what was cancelled with the agent; it ends first
            raise NotYet
        if control is not None and control.pause_reason is not None:
            if self._host.pausing:
                raise ValueError("the whole run is being paused; resume the run")
            if agent.status is not AgentStatus.PAUSED:
                if not control.go_on():
                    raise NotYet
                return f"{agent.name} goes on: its pause had not come"
        if agent.status is AgentStatus.PARKED:
            await self._host.parking.wake_now(agent)
            return f"{agent.name} tries one call now; where the usage limit still holds, it is parked again"
        if agent.status is AgentStatus.PAUSED:
            said = f"{agent.name} goes on" + self._after_its_compaction(agent)
            await self._commit(command, said, lambda tx: recovery.lift(tx, agent.id, agent.task_id))
            return None
        task = self._task_of(agent)
        if task is not None and task.status in (TaskStatus.FAILED, TaskStatus.CANCELLED):
            text = "A person resumed you. Go on where you stopped."
            said = f"{agent.name} goes on where it stopped" + self._after_its_compaction(agent)
            await self._commit(command, said, lambda tx: plan_tools.resume(tx, task, text))
            return None
        raise ValueError(
            f"{agent.name} is {agent.status}; only a paused, parked, failed or cancelled agent can be resumed"
        )

    def _refuse_by_budget(self, command: Command) -> None:
        """A resume that would pause again at once is refused with what is used and how to raise the budget.

        Raises:
            ValueError: a budget of the session, or of the agent's task, covers no further call.
        """
        agent = agents.load(self._store, command.agent_id) if command.agent_id else None
        uses = budgets.blocking(self._store, self._store.session_id) if agent is None else []
        if agent is not None:
            every = budgets.usage(self._store, self._store.session_id)
            uses = [use for use in every if use.is_reached and use.budget.task_id in (None, agent.task_id)]
        if uses:
            raise ValueError(f"{uses[0].describe()}; raise it with `wk budget`, then resume")

    def _after_its_compaction(self, agent: Agent) -> str:
        """Said, and shown, of an agent that cannot go on at once."""
        if not self.compactions.is_about(agent.id):
            return ""
        self._host.environment.live.show(
            agent.id, "working", "goes on when its context has been compacted, as was ordered"
        )
        return ", when its compaction has ended"

    async def _cancel(self, command: Command) -> None:
        reason = f"cancelled by {command.requested_by}"
        if command.agent_id is None and command.task_id is None:
            await self._commit(command, "the session is cancelled", lambda tx: cancel_session(tx, reason))
            return
        task = self._task(command) if command.task_id else self._task_of(self._agent(command))
        if task is None:
            raise ValueError("the planner cannot be cancelled alone; cancel the session")
        if task.status in TASK_ENDED:
            raise ValueError(f"{task.name} is {task.status} already")

        def change(tx: Transaction) -> None:
            plan_tools.stop_agent(tx, task, reason)
            plans.move(tx, task.id, TaskStatus.CANCELLED, reason)
            reporting.tell_planner(tx, "task_cancelled", task.id)

        await self._commit(command, f"{task.name} is cancelled", change)

    async def _rerun(self, command: Command) -> None:
        task = self._task(command) if command.task_id else self._task_of(self._agent(command))
        if task is None:
            raise ValueError("the planner cannot be run again; start a new session, or steer it")
        fresh = bool(command.payload.get("fresh"))
        status = SessionStatus(
            self._store.one("SELECT status FROM sessions WHERE id = ?", (self._store.session_id,))[0]
        )

        def change(tx: Transaction) -> set[str]:
            current = plans.load_task(tx, task.id)
            assert current is not None
            plan_tools.rerun(tx, current, fresh=fresh)
            plans.revise(tx, task.parent_plan_id, f"{command.requested_by} re-runs {task.name}")
            later = plan_tools.downstream(plans.load_tasks(tx, tx.session_id), task.id)
            return {task.id, *(other.id for other in later if other.status is TaskStatus.STALE)}

        kept = "without" if fresh else "with"
        said = f"{task.name} runs again as attempt {task.attempt + 1}, {kept} its memory"
        touched = await self._commit(command, said, change)
        if status in SESSION_ENDED or self._host.driving_once:
            self._host.restrict_to(touched)

    async def _undo(self, command: Command) -> None:
        agent = self._agent(command)
        if self.compactions.is_about(agent.id):
            raise NotYet
        memory = self.memory_of(agent)
        at = self._host.environment.clock.now()
        memory.reach(self._store, "undo" if command.kind == "undo" else "redo")
        change = memory.state.undo(at=at) if command.kind == "undo" else memory.state.redo(at=at)
        recorded = memory.record(change)
        said = f"{agent.name}: back to view {change.view.version}, {change.tokens} tokens"
        await self._commit(command, said, lambda tx: recorded.write(tx, trigger=command.kind))

    async def _steer(self, command: Command) -> None:
        text = str(command.payload.get("text") or "").strip()
        if not text:
            raise ValueError("there is nothing to say; give a text")
        agent = self._agent(command)
        if agent.status in AGENT_ENDED:
            raise ValueError(f"{agent.name} is {agent.status}; resume or re-run it, or steer the planner")
        message = {"text": text, "from": command.requested_by}
        said = f"{agent.name} reads it before its next turn"
        workspace = str(self._host.environment.workspace)

        def change(tx: Transaction) -> None:
            plans.post(tx, agent.id, "steer", message)
            lift(tx, text, workspace=workspace, agent_id=agent.id)

        await self._commit(command, said, change)

    async def _decide(self, command: Command) -> None:
        wanted = str(command.payload.get("approval") or "")
        row = self._store.one(
            "SELECT id, tool, status, cause, agent_id, task_id FROM approvals WHERE session_id = ?"
            " AND (id = ? OR (? = '' AND agent_id = ?))"
            " ORDER BY status = 'waiting' DESC, created_at DESC LIMIT 1",
            (self._store.session_id, wanted, wanted, command.agent_id),
        )
        if row is None:
            raise ValueError(f"no question {wanted!r} waits in this session")
        approves = command.kind == "approve"
        status = ApprovalStatus.APPROVED if approves else ApprovalStatus.DENIED
        reason, by = command.payload.get("reason"), command.requested_by
        edited = self._edited(command, row["tool"]) if approves else None
        scope, pattern = self._scope(command, row["tool"], row["cause"]) if approves else (None, None)
        seen = command.payload.get("subject_digest")

        def change(tx: Transaction) -> None:
            if not commands.decide_approval(
                tx, row[0], status, by, reason, scope=scope, edited_input=edited,
                subject_digest=seen if isinstance(seen, str) and seen else None,
            ):  # fmt: skip
                raise ValueError(f"that question was answered before ({row[2]})")
            about = {"edited": True} if edited is not None else {}
            tx.event(
                f"approval.{status}",
                agent_id=row["agent_id"],
                task_id=row["task_id"],
                approval=row[0],
                tool=row["tool"],
                by=by,
                **about,
            )
            if scope in ("tool", "pattern"):
                add_grant(tx, tool=row["tool"], pattern=pattern, approval_id=row[0], by=by)

        said = f"{row['tool']}: {status}" + (", as edited" if edited is not None else "")
        if scope in ("tool", "pattern"):
            said += f"; from now on without a question: {pattern or f'every call of {row[1]}'}"
        await self._commit(command, said, change)
        decisions = self._host.environment.decisions
        # A grant may cover questions of other agents too.
        for event in (
            decisions.values() if scope in ("tool", "pattern") else filter(None, [decisions.get(row[0])])
        ):
            event.set()

    def _edited(self, command: Command, tool_name: str) -> dict[str, Any] | None:
        """The input that the person put in the place of the model's, or None.

        Raises:
            ValueError: the tool would not take it.
        """
        edited = command.payload.get("edited_input")
        if edited is None:
            return None
        tool = self._host.environment.tools.get(tool_name)
        if tool is None:
            raise ValueError(
                f"the tool {tool_name} is not there now, so its edited input cannot be checked; approve it"
                " later"
            )
        fault = validate_arguments(tool.spec.input_schema, edited) or mark_fault(tool_name, edited)
        if fault:
            raise ValueError(f"the edited input cannot be used: {fault}")
        return dict(edited)

    @staticmethod
    def _scope(command: Command, tool_name: str, cause: str | None) -> tuple[str, str | None]:
        """`once`, `tool` or `pattern`, and the pattern.

        Raises:
            ValueError: this question cannot be answered so.
        """
        scope = str(command.payload.get("scope") or "once")
        if scope not in ("once", "tool", "pattern"):
            raise ValueError(f"an answer is for once, for the tool or for a pattern, not for {scope!r}")
        if scope == "once":
            return scope, None
        if cause == "repetition":
            raise ValueError("this call repeats itself; it can be allowed once, not always")
        if scope == "tool":
            return scope, None
        if tool_name != "bash":
            raise ValueError(f"only commands of bash have patterns; allow every call of {tool_name} instead")
        return scope, pattern_of(parse_pattern(str(command.payload.get("pattern") or "")))

    async def _revoke(self, command: Command) -> None:
        number = command.payload.get("grant")
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError("name a grant by its number")
        await self._commit(
            command, f"grant {number} is revoked", lambda tx: revoke_grant(tx, number, command.requested_by)
        )

    async def _set_budget(self, command: Command) -> None:
        kind, amount = str(command.payload.get("kind")), command.payload.get("amount")
        task = self._task(command) if command.task_id else None
        task_id = task.id if task else None
        limit = float(amount) if amount is not None else None
        of = f"{task.name}'s" if task else "the session's"
        said = f"{of} budget: {'no limit' if limit is None else f'{limit:g}'} {kind}"
        await self._commit(command, said, lambda tx: budgets.write(tx, task_id, kind, limit))
        self._host.environment.budgets.look_again()

    async def _pin(self, command: Command) -> None:
        """`fact` (an id), or for `pin` a `text` with its `sources`: what every prompt of the session is to
        show."""
        fact, text = command.payload.get("fact"), str(command.payload.get("text") or "").strip()
        pinned = command.kind == "pin"
        if (
            isinstance(fact, bool)
            or not isinstance(fact, int | None)
            or (fact is None and not (pinned and text))
        ):
            raise ValueError("name a fact by its number" + (", or give a text" if pinned else ""))
        workspace = str(self._host.environment.workspace)
        sources = [str(source) for source in command.payload.get("sources") or () if isinstance(source, str)]

        def change(tx: Transaction) -> None:
            if fact is not None:
                facts.set_pinned(tx, fact, pinned)
            else:
                facts.add_fact(
                    tx, agent_id=None, workspace=workspace, scope="session", kind="instruction", text=text[:MOST_PINNED],
                    sources=sources, pinned=True,
                )  # fmt: skip

        said = "in every prompt from the next turn on" if pinned else "not in every prompt any more"
        await self._commit(command, f"fact {fact}: {said}" if fact is not None else f"pinned: {said}", change)

    async def _sync(self, command: Command) -> str:
        everyone = [
            agent
            for agent in agents.load_all(self._store, self._store.session_id)
            if agent.status not in AGENT_ENDED
        ]
        for agent in everyone:
            snapshot = self.memory_of(agent).snapshot()
            current = agents.load(self._store, agent.id)
            await self._store.commit(partial(snapshot.write, turn=current.turn if current else agent.turn))
        return f"{len(everyone)} memories persisted"

    # --- who is meant ---------------------------------------------------------------------------------------

    def memory_of(self, agent: Agent) -> AgentMemory:
        """The memory that the agent's loop uses, or one loaded from the rows where none runs."""
        loop = self._host.loop_of(agent.id)
        if loop is not None:
            return loop.memory
        environment = self._host.environment
        specs = Toolbox(environment, agent, AgentControl()).specs()
        return AgentMemory.load(
            self._store, agent.id, limits_of(environment, agent, specs), environment.counter
        )

    def _agent(self, command: Command) -> Agent:
        agent = agents.load(self._store, command.agent_id) if command.agent_id else None
        if agent is None:
            raise ValueError(f"no agent {command.agent_id} in this session")
        return agent

    def _task(self, command: Command) -> Task:
        task = plans.load_task(self._store, command.task_id) if command.task_id else None
        if task is None:
            raise ValueError(f"no task {command.task_id} in this session")
        return task

    def _task_of(self, agent: Agent) -> Task | None:
        return plans.load_task(self._store, agent.task_id) if agent.task_id else None


def cancel_session(tx: Transaction, reason: str) -> None:
    """End a session for good: every task and agent that has not ended is cancelled, and all that was done is
    kept.

    Raises:
        ValueError: it has ended already.
    """
    status = tx.one("SELECT status FROM sessions WHERE id = ?", (tx.session_id,))[0]
    if status in (SessionStatus.DONE, SessionStatus.CANCELLED):
        raise ValueError(f"the session is {status} already")
    for task in plans.load_tasks(tx, tx.session_id):
        if task.status not in TASK_ENDED and task.status is not TaskStatus.STALE:
            plan_tools.stop_agent(tx, task, reason)
            plans.move(tx, task.id, TaskStatus.CANCELLED, reason)
    for agent in agents.load_all(tx, tx.session_id):
        if agent.status not in AGENT_ENDED:
            agents.move(tx, agent.id, AgentStatus.CANCELLED, reason)
    sessions.set_status(tx, SessionStatus.CANCELLED, reason)
