"""The commands that other processes queue for a host: pause, resume, compact, approve and so on.

Each command is applied in the transaction that makes its change, so that a crash leaves it applied once or
still queued, or it is refused with a reason. A command whose handler raises has failed: it is not tried again,
and the session goes on. `DetachedCompactions` runs the compactions of agents whose loop does not run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from watchkeeper.agents import agent_state, session_tools
from watchkeeper.agents.agent_state import AgentMemory, limits_of, preview_lines
from watchkeeper.agents.backends.loop import compaction_order
from watchkeeper.agents.backends.programs import Program
from watchkeeper.agents.compaction import CompactionRunner
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.later import RULE
from watchkeeper.agents.limits import AgentControl
from watchkeeper.agents.loop import AgentLoop
from watchkeeper.agents.roles import Roles
from watchkeeper.agents.toolbox import Toolbox
from watchkeeper.agents.tools.contract import ToolContext, validate_arguments
from watchkeeper.agents.tools.workers import mark_fault
from watchkeeper.memory.buffering import BackgroundTasks
from watchkeeper.memory.compactor import PassOutcome
from watchkeeper.memory.history import CompactionPass, Rejection
from watchkeeper.records.errors import STORE_LOST, BadInput, WatchkeeperError, host_fault
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
from watchkeeper.records.text import one_line, plural
from watchkeeper.records.tool_inputs import parse_pattern, pattern_of
from watchkeeper.runtime import lifecycle
from watchkeeper.store import agents, budgets, commands, facts, plans, sessions
from watchkeeper.store.agents import Agent
from watchkeeper.store.commands import CONFLICT, GUARDED, Command, add_grant, revoke_grant
from watchkeeper.store.driver import decode
from watchkeeper.store.plans import Task
from watchkeeper.store.transaction import SessionStore, Transaction

T = TypeVar("T")

log = logging.getLogger(__name__)


class NotYet(Exception):
    """The command stays queued, because it can be applied when something that runs now has ended."""


class CommandedHost(Protocol):
    """What a command may read and change of the host that applies it."""

    environment: Environment
    store: SessionStore

    @property
    def roles(self) -> Roles:
        """The roles that a task may have, and the planner's."""

    @property
    def pausing(self) -> bool:
        """Whether everything is being paused."""

    @property
    def driving_once(self) -> bool:
        """Whether this host was started for one command alone."""

    def wake_host(self, agent_id: str | None = None) -> None:
        """Look again at what should run, and at this agent."""

    def pause_all(self, reason: str, *, now: bool = False) -> None:
        """Pause every agent at its next step boundary, or at once; then the host ends."""

    def cancel_pause(self) -> bool:
        """Cancel a pause of everything that has not started. False while the host stops an agent for it."""

    def control_of(self, agent_id: str) -> AgentControl | None:
        """The running loop's control, or None where no loop runs."""

    def loop_of(self, agent_id: str) -> AgentLoop | None:
        """The agent's running loop, or that of an idle agent whose compaction continues; or None."""

    def restart_loop(self, agent_id: str) -> None:
        """End the agent's loop without writing anything, and continue from its rows, as after a crash."""

    def restrict_to(self, task_ids: set[str]) -> None:
        """If the host was started for one command: these tasks may run."""

    def failed(self, error: BaseException) -> None:
        """Work in the background failed: the host ends with this error."""


class CommandQueue:
    """Applies the queued commands of one session."""

    def __init__(self, host: CommandedHost) -> None:
        self._host = host
        self._store = host.store
        self.compactions = DetachedCompactions(host)
        self._handlers: dict[str, Callable[[Command], Awaitable[str | None]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "cancel": self._cancel,
            "rerun": self._rerun,
            "plan": self._edit_plan,
            "compact": self.compactions.apply,
            "undo": self._undo,
            "redo": self._undo,
            "edit": self._edit,
            "steer": self._steer,
            "approve": self._decide,
            "deny": self._decide,
            "set_budget": self._set_budget,
            "memory_sync": self._sync,
            "pin": self._pin,
            "unpin": self._pin,
            "revoke": self._revoke,
        }
        """The handler of each kind of command.

        It returns the result, which is then stored; None if it has stored the result itself, in the transaction
        that made the change. It raises ValueError to refuse the command, and NotYet to leave it queued. Anything
        else that it raises makes the command `failed`, unless the session cannot be written any more.
        """

    async def apply_waiting(self) -> None:
        """Apply what is queued, in order."""
        for command in commands.queued(self._store, self._store.session_id):
            try:
                command = replace(command, payload=self._host.environment.redact(decode(command.payload)))
                handler = self._handlers.get(command.kind)
                if handler is None:
                    raise ValueError(f"the background process does not recognize the command {command.kind}")
                result = await handler(command)
            except ValueError as refused:
                await self._settle(command, CommandStatus.REFUSED, str(refused))
            except NotYet:
                continue
            except STORE_LOST:
                raise
            except Exception as error:
                await self._settle(command, CommandStatus.FAILED, why_failed(command, error))
            else:
                if result is not None:
                    await self._settle(command, CommandStatus.APPLIED, result)
            self._host.wake_host()

    async def _settle(self, command: Command, status: CommandStatus, result: str) -> None:
        await self._store.commit(lambda tx: command.settle(tx, status, result), urgent=True)

    async def _commit(
        self, command: Command, result: str, change: Callable[[Transaction], T], *, told: str = ""
    ) -> T:
        """Change rows and mark the command applied in one transaction: after a crash it was applied once, or
        is still queued. `told`: what the person did, in words for the planner (`A person …`)."""

        def write(tx: Transaction) -> T:
            changed = change(tx)
            if told:
                agent_state.notify_planner_of_person(tx, told)
            command.settle(tx, CommandStatus.APPLIED, result)
            return changed

        return await self._store.commit(write, urgent=True)

    async def _pause(self, command: Command) -> str | None:
        reason = f"paused by {command.requested_by}"
        now = bool(command.payload.get("now"))
        if command.agent_id is None:
            self._host.pause_all(reason, now=now)
            said = "pausing all agents" + (" immediately" if now else " at their next step")
            await self._commit(
                command, said, _nothing, told="paused the run; you will see this after it resumes."
            )
            return None
        agent = self._agent(command)
        control = self._host.control_of(agent.id)
        told = f"paused {self._who(agent)}; it continues when you or a person resumes it."
        if control is None:
            if agent.status in (AgentStatus.IDLE, AgentStatus.PARKED):
                said = f"{agent.name} is paused"
                await self._commit(
                    command,
                    said,
                    lambda tx: lifecycle.pause_agent(tx, agent.id, agent.task_id, reason),
                    told=told,
                )
                return None
            raise ValueError(f"{agent.name} is {agent.status}; nothing to pause")
        control.pause(reason, now=now)
        said = f"{agent.name} pauses" + (" immediately" if now else " at its next step")
        await self._commit(command, said, _nothing, told=told)
        return None

    async def _resume(self, command: Command) -> str | None:
        self._refuse_by_budget(command)
        if command.agent_id is None:
            # A host that was started for another command runs no agents; when that command is done, it goes on
            # as one that does.
            if self._host.driving_once or not self._host.cancel_pause():
                raise NotYet
            await self._commit(command, "resumed", lifecycle.lift_pauses, told="resumed the run.")
            self._host.environment.usage_limits.allow_test()
            return None
        agent = self._agent(command)
        control = self._host.control_of(agent.id)
        if control is not None and agent.status in AGENT_ENDED:
            control.stop_now()  # the loop of the cancelled agent must end first
            raise NotYet
        if control is not None and control.pause_reason is not None:
            if self._host.pausing:
                raise ValueError("the run is pausing; resume the run instead")
            if agent.status is not AgentStatus.PAUSED:
                if not control.cancel_pause():
                    raise NotYet
                said = f"{agent.name} continues: its pause was cancelled before it took effect"
                await self._commit(command, said, _nothing, told=f"resumed {self._who(agent)}.")
                return None
        if agent.status is AgentStatus.PARKED:
            await self._host.environment.usage_limits.wake_now(agent)
            return (
                f"{agent.name} makes one test call now; if the usage limit still applies, it is parked again"
            )
        if agent.status is AgentStatus.PAUSED:
            said = f"{agent.name} continues" + self._after_its_compaction(agent)
            await self._commit(
                command,
                said,
                lambda tx: lifecycle.lift(tx, agent.id, agent.task_id),
                told=f"resumed {self._who(agent)}.",
            )
            return None
        task = self._task_of(agent)
        if task is not None and task.status in (TaskStatus.FAILED, TaskStatus.CANCELLED):
            text = "A person resumed you. Continue where you stopped."
            said = f"{agent.name} continues where it stopped" + self._after_its_compaction(agent)
            was = task.status

            def again(tx: Transaction) -> None:
                session_tools.resume(tx, task, text)
                told = f"A person resumed {task.name}, which was {was}; it continues where it stopped."
                agent_state.notify_planner(tx, "person", task.id, text=told)

            await self._commit(command, said, again)
            return None
        raise ValueError(
            f"{agent.name} is {agent.status}; only a paused, parked, failed or cancelled agent can be resumed"
        )

    def _refuse_by_budget(self, command: Command) -> None:
        """Refuse a resume that would pause again at once; the error says what is used and how to raise the budget.

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
        """A note, also shown on the dashboard, that an agent continues only after its compaction."""
        if not self.compactions.is_about(agent.id):
            return ""
        self._host.environment.live.show(agent.id, "working", "continues after its context is compacted")
        return ", after its compaction"

    async def _cancel(self, command: Command) -> None:
        reason = f"cancelled by {command.requested_by}"
        if command.agent_id is None and command.task_id is None:
            await self._commit(
                command, "everything that runs is cancelled", lambda tx: cancel_session(tx, reason)
            )
            return
        task = self._task(command) if command.task_id else self._task_of(self._agent(command))
        if task is None:
            raise ValueError("the planner cannot be cancelled on its own; cancel the session")
        if task.status in TASK_ENDED:
            raise ValueError(f"{task.name} is already {task.status}")

        def change(tx: Transaction) -> None:
            session_tools.stop_agent(tx, task, reason)
            plans.move(tx, task.id, TaskStatus.CANCELLED, reason)
            agent_state.notify_planner(tx, "task_cancelled", task.id)

        await self._commit(command, f"{task.name} is cancelled", change)

    async def _rerun(self, command: Command) -> None:
        task = self._task(command) if command.task_id else self._task_of(self._agent(command))
        if task is None:
            raise ValueError("the planner cannot be re-run; start a new session, or steer it")
        fresh = bool(command.payload.get("fresh"))
        reason = str(command.payload.get("message") or "").strip()
        status = sessions.require(self._store, self._store.session_id).status

        def change(tx: Transaction) -> set[str]:
            current = plans.load_task(tx, task.id)
            assert current is not None
            stopped = session_tools.rerun(tx, current, fresh=fresh, reason=reason)
            plans.revise(tx, task.parent_plan_id, f"{command.requested_by} re-runs {task.name}")
            why = f": {one_line(reason, 600).rstrip('.')}." if reason else "."
            text = f"A person re-runs {task.name}{' without its memory' if fresh else ''}{why}"
            if stopped:
                text += f" Tasks that depend on it stop, and run again if their inputs change: {', '.join(stopped)}."
            agent_state.notify_planner(tx, "person", task.id, text=text)
            later = session_tools.downstream(plans.load_tasks(tx, tx.session_id), task.id)
            return {task.id, *(other.id for other in later if other.status is TaskStatus.STALE)}

        kept = "without" if fresh else "with"
        said = f"{task.name} runs again as attempt {task.attempt + 1}, {kept} its memory"
        touched = await self._commit(command, said, change)
        if status in SESSION_ENDED or self._host.driving_once:
            self._host.restrict_to(touched)

    async def _edit_plan(self, command: Command) -> None:
        """Add, revise or drop a task, as the planner's tools do, and notify the planner."""
        act, arguments = str(command.payload.get("act")), command.payload.get("arguments") or {}
        session = sessions.require(self._store, self._store.session_id)
        if session.status in SESSION_ENDED:
            raise ValueError("the session has ended; continue it with `wk run --from`, or re-run a task")
        if session.current_plan_id is None:
            raise ValueError("there is no plan yet; wait for the planner to make it")
        environment = self._host.environment
        tools = session_tools.PlanTools(environment.new_id, self._host.roles)
        tools.refuse(self._store, act, arguments)
        acts = {"add": tools.add_task, "revise": tools.revise_task, "drop": tools.drop_task}
        name = str(arguments.get("name") or arguments.get("task")).strip()
        if act != "add":
            name = session_tools.find_task(self._store, arguments).name
        by_person = ToolContext(self._store.session_id, "", None, environment.workspace)

        def change(tx: Transaction) -> None:
            acts[act](tx, arguments, by_person)
            task = session_tools.find_task(tx, {"task": name})
            verb = {"add": "added", "revise": "revised", "drop": "dropped"}[act]
            given = [what for key, what in _REVISED.items() if key in arguments]
            more = {
                "add": f" ({task.role}): {task.title}",
                "revise": f" ({', '.join(given)}): now {task.role}: {task.title}",
                "drop": "",
            }[act]
            why = str(arguments.get("reason") or "").strip().rstrip(".")
            text = f"A person {verb} the task {task.name}{more}{f', because: {why}' if why else ''}."
            agent_state.notify_planner(tx, "person", task.id, text=one_line(text))

        said = {"add": "is added", "revise": "is revised", "drop": "is dropped"}[act]
        await self._commit(command, f"{name} {said}", change)

    async def _undo(self, command: Command) -> None:
        agent = self._agent(command)
        if self.compactions.is_about(agent.id):
            raise NotYet
        memory = memory_of(self._host, agent)
        at = self._host.environment.clock.now()
        to = command.payload.get("to")
        if to is not None and type(to) is not int:
            raise ValueError("the version must be a number; `wk memory views` lists the versions")
        with self._restarting_on_a_fault(memory):
            change = memory.move(self._store, "undo" if command.kind == "undo" else "redo", at=at, to=to)
            recorded = memory.record(change)
            said = f"{agent.name}: restored view {change.view.version}, {change.tokens} tokens"
            told = f"{'undid' if command.kind == 'undo' else 'redid'} a compaction of {self._who(agent)}."
            await self._commit(command, said, lambda tx: recorded.write(tx, trigger=command.kind), told=told)

    async def _edit(self, command: Command) -> str | None:
        """Change an agent's context: `drop` messages, `pin` and `unpin` them (their numbers), rewrite observations
        (`texts`, by their ids); `preview`: only say what that would do."""
        agent, payload = self._agent(command), command.payload
        if self.compactions.is_about(agent.id):
            raise NotYet
        numbers = {name: payload.get(name) or [] for name in ("drop", "pin", "unpin")}
        texts = payload.get("texts") or {}
        if not all(type(seq) is int for seqs in numbers.values() for seq in seqs) or not all(
            str(key).isdecimal() for key in texts
        ):
            raise ValueError("refer to messages and observations by number")
        how: dict[str, Any] = {**numbers, "texts": {int(key): str(text) for key, text in texts.items()}}
        memory = memory_of(self._host, agent)
        if payload.get("preview"):
            foretold = memory.preview(self._store, model=agent.model, **how)
            return f"{agent.name}: {'; '.join(preview_lines(foretold))}"
        with self._restarting_on_a_fault(memory):
            recorded = memory.edit(self._store, at=self._host.environment.clock.now(), **how)
            change = recorded.change
            said = (
                f"{agent.name}: {change.tokens_before} → {change.tokens} tokens, view {change.view.version}"
            )
            if (pins := memory.state.pins) and (numbers["pin"] or numbers["unpin"]):
                said += f"; pinned {', '.join(f'#{one.seq}' for one in pins)}, {sum(one.tokens for one in pins)} tokens"
            acts = [verb for verb, name in _EDITS.items() if numbers.get(name) or (name == "texts" and texts)]
            told = f"{' and '.join(acts)} in the context of {self._who(agent)}."
            await self._commit(command, said, lambda tx: recorded.write(tx, trigger="manual"), told=told)
        return None

    @contextmanager
    def _restarting_on_a_fault(self, memory: AgentMemory) -> Iterator[None]:
        """Where a change of a running agent's memory fails half-way, its loop continues from the stored rows."""
        before = memory.state.view
        try:
            yield
        except Exception:
            if memory.state.view is not before:
                self._host.restart_loop(memory.agent_id)
            raise

    async def _steer(self, command: Command) -> None:
        text = str(command.payload.get("text") or "").strip()
        if not text:
            raise ValueError("the message is empty; enter some text")
        if command.payload.get("all") is True:
            await self._steer_all(command, text)
            return
        agent = self._agent(command)
        if agent.status in AGENT_ENDED:
            raise ValueError(f"{agent.name} is {agent.status}; resume or re-run it, or steer the planner")
        message = {"text": text, "from": command.requested_by}
        said = f"{agent.name} reads it before its next turn"

        def change(tx: Transaction) -> None:
            plans.post(tx, agent.id, "steer", message)

        # What it says is for that agent alone.
        told = f"sent {self._who(agent)} a message." if agent.task_id else ""
        await self._commit(command, said, change, told=told)

    async def _steer_all(self, command: Command, text: str) -> None:
        """Make the text a rule of the session, and send it to each agent that has not ended."""
        rule = self._rule(text)
        workspace = str(self._host.environment.workspace)
        readers = agents.open_ids(self._store, self._store.session_id)

        def change(tx: Transaction) -> None:
            stored = facts.add_rule(tx, workspace, rule)
            for agent_id in readers:
                plans.post(tx, agent_id, RULE, {"text": stored, "from": command.requested_by})

        said = f"{plural(len(readers), 'agent')} read it before their next turn; new agents get it in their prompt"
        await self._commit(command, said, change)

    def _rule(self, text: str) -> str:
        """Raises ValueError: it is too long."""
        return facts.checked_rule(self._host.environment.redact(text))

    async def _decide(self, command: Command) -> None:
        wanted = str(command.payload.get("approval") or "")
        asked = commands.asked_for(self._store, self._store.session_id, wanted, command.agent_id)
        if asked is None:
            raise ValueError(f"no pending question {wanted!r} in this session")
        approves = command.kind == "approve"
        status = ApprovalStatus.APPROVED if approves else ApprovalStatus.DENIED
        reason, by = command.payload.get("reason"), command.requested_by
        edited = self._edited(command, asked.tool) if approves else None
        scope, pattern = self._scope(command, asked.tool, asked.cause) if approves else (None, None)
        if pattern is not None:
            question = commands.load_question(self._store.connection, self._store.path, asked.id)
            if question is not None and (refusal := question.refuses_pattern(pattern, edited)):
                raise ValueError(refusal)
        seen = command.payload.get("subject_digest")

        def change(tx: Transaction) -> None:
            if not commands.decide_approval(
                tx, asked.id, status, by, reason, scope=scope, edited_input=edited,
                subject_digest=seen if isinstance(seen, str) and seen else None,
            ):  # fmt: skip
                if asked.status is ApprovalStatus.WAITING:
                    now = commands.load_asked(tx, asked.id)
                    assert now is not None
                    raise ValueError(commands.call_ended(now.call_status or ""))
                by_whom = f" by {asked.decided_by}" if asked.decided_by else ""
                raise ValueError(f"already answered ({asked.status}{by_whom})")
            about = {"edited": True} if edited is not None else {}
            tx.event(
                f"approval.{status}",
                agent_id=asked.agent_id,
                task_id=asked.task_id,
                approval=asked.id,
                tool=asked.tool,
                by=by,
                **about,
            )
            if scope in ("tool", "pattern"):
                add_grant(tx, tool=asked.tool, pattern=pattern, approval_id=asked.id, by=by)

        said = f"{asked.tool}: {status}" + (", as edited" if edited is not None else "")
        if scope in ("tool", "pattern"):
            said += f"; approved from now on: {pattern or f'every call to {asked.tool}'}"
        await self._commit(command, said, change)
        decisions = self._host.environment.decisions
        # A grant may cover questions of other agents too.
        for event in (
            decisions.values() if scope in ("tool", "pattern") else filter(None, [decisions.get(asked.id)])
        ):
            event.set()

    def _edited(self, command: Command, tool_name: str) -> dict[str, Any] | None:
        """The input that the user wrote in place of the model's, or None.

        Raises:
            ValueError: the tool would not take it.
        """
        edited = command.payload.get("edited_input")
        if edited is None:
            return None
        tool = self._host.environment.tools.get(tool_name)
        if tool is None:
            raise ValueError(
                f"cannot check the edited input because the tool {tool_name} is not available now; approve it"
                " later"
            )
        fault = validate_arguments(tool.spec.input_schema, edited) or mark_fault(tool_name, edited)
        if fault:
            raise ValueError(f"invalid edited input: {fault}")
        return dict(edited)

    @staticmethod
    def _scope(command: Command, tool_name: str, cause: str | None) -> tuple[str, str | None]:
        """`once`, `tool` or `pattern`, and the pattern.

        Raises:
            ValueError: this question does not allow that scope.
        """
        scope = str(command.payload.get("scope") or "once")
        if scope not in ("once", "tool", "pattern"):
            raise ValueError(f"invalid scope {scope!r}: an answer applies once, to the tool, or to a pattern")
        if scope == "once":
            return scope, None
        if cause == "repetition":
            raise ValueError("this is a repeated call; you can allow it once, but not always")
        if cause == GUARDED:
            raise ValueError("each write to this file needs approval; you can allow it once, but not always")
        if cause == CONFLICT:
            raise ValueError(
                "each merge conflict needs its own answer; you can allow it once, but not always"
            )
        if scope == "tool":
            return scope, None
        if tool_name != "bash":
            raise ValueError(f"patterns work only for bash commands; allow every call to {tool_name} instead")
        return scope, pattern_of(parse_pattern(str(command.payload.get("pattern") or "")))

    async def _revoke(self, command: Command) -> None:
        number = command.payload.get("grant")
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError("specify an approval grant by number")
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
        told = f"set {of} budget: {'no limit' if limit is None else f'{limit:g}'} {kind}."
        await self._commit(command, said, lambda tx: budgets.write(tx, task_id, kind, limit), told=told)
        self._host.environment.budgets.look_again()

    async def _pin(self, command: Command) -> None:
        """Pin or unpin a `fact` (an id); `pin` also takes a new `text` with its `sources`."""
        fact, text = command.payload.get("fact"), str(command.payload.get("text") or "").strip()
        pinned = command.kind == "pin"
        if (
            isinstance(fact, bool)
            or not isinstance(fact, int | None)
            or (fact is None and not (pinned and text))
        ):
            raise ValueError("specify a fact by number" + (", or enter its text" if pinned else ""))
        rule, workspace = self._rule(text) if fact is None else "", str(self._host.environment.workspace)
        sources = [str(source) for source in command.payload.get("sources") or () if isinstance(source, str)]

        def change(tx: Transaction) -> None:
            if fact is not None:
                facts.set_pinned(tx, fact, pinned)
            else:
                facts.add_rule(tx, workspace, rule, sources)

        said = (
            "running agents read it before their next turn; new agents get it in their prompt"
            if pinned
            else "running agents are notified that it no longer applies; later agents do not get it"
        )
        await self._commit(command, f"fact {fact}: {said}" if fact is not None else f"pinned: {said}", change)

    async def _sync(self, command: Command) -> str:
        everyone = [
            agent
            for agent in agents.load_all(self._store, self._store.session_id)
            if agent.status not in AGENT_ENDED
        ]
        for agent in everyone:
            snapshot = memory_of(self._host, agent).snapshot()
            current = agents.load(self._store, agent.id)
            await self._store.commit(partial(snapshot.write, turn=current.turn if current else agent.turn))
        return f"saved {len(everyone)} memories"

    def _who(self, agent: Agent) -> str:
        """The agent and its task, for the planner to read; itself by name."""
        task = self._task_of(agent)
        return agent.name if task is not None else f"you, {agent.name}"

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


_REVISED = {
    "title": "title", "instructions": "instructions", "role": "role", "depends_on": "dependencies",
    "expected_outputs": "outputs",
}  # fmt: skip
"""The arguments that revise a task, and what they are called."""
_EDITS = {
    "dropped messages": "drop", "pinned messages": "pin", "unpinned messages": "unpin", "rewrote texts": "texts",
}  # fmt: skip
"""What an edit of a context does, and its argument."""


def _nothing(tx: Transaction) -> None:
    """The command changed no row."""


def memory_of(host: CommandedHost, agent: Agent) -> AgentMemory:
    """The memory of the agent's loop, or one loaded from the database if no loop runs.

    Raises:
        ValueError: another program keeps the agent's context.
    """
    if (program := program_of(host, agent)) is not None:
        raise ValueError(f"{agent.name}: {program.features.undo}")
    loop = host.loop_of(agent.id)
    if loop is not None:
        return loop.memory
    environment = host.environment
    specs = Toolbox(environment, agent, AgentControl()).specs()
    limits, ratio = limits_of(environment, agent, specs), environment.calibrations.of(agent.model).ratio
    return AgentMemory.load(host.store, agent.id, limits, environment.counter, ratio)


def program_of(host: CommandedHost, agent: Agent) -> Program | None:
    """The program that does the agent's work, or None for Watchkeeper's own loop."""
    programs = host.environment.programs
    return programs.of(agent.model) if programs is not None else None


def why_failed(command: Command, error: Exception) -> str:
    """The reason of a command that could not be applied because of a fault, as one line; the log has the rest."""
    fault = host_fault(error) or (error if isinstance(error, WatchkeeperError) else None)
    if fault is not None:
        return one_line(str(fault), 300)
    log.error("command %d (%s) failed because of an internal error", command.id, command.kind, exc_info=error)
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"the command failed because of an internal error ({one_line(said, 200)}); it is not retried"


def cancel_session(tx: Transaction, reason: str) -> None:
    """End a session permanently: cancel every task and agent that has not ended. Finished work is kept. A session that has
    ended keeps its status; its re-runs are cancelled.

    Raises:
        ValueError: the session has ended, and nothing of it runs.
    """
    status = sessions.require(tx, tx.session_id).status
    has_ended = status in (SessionStatus.DONE, SessionStatus.CANCELLED)
    if has_ended and all(one.status in AGENT_ENDED for one in agents.load_all(tx, tx.session_id)):
        raise ValueError(f"the session is already {status}")
    for task in plans.load_tasks(tx, tx.session_id):
        if task.status not in TASK_ENDED and task.status is not TaskStatus.STALE:
            session_tools.stop_agent(tx, task, reason)
            plans.move(tx, task.id, TaskStatus.CANCELLED, reason)
    for agent in agents.load_all(tx, tx.session_id):
        if agent.status not in AGENT_ENDED:
            agents.move(tx, agent.id, AgentStatus.CANCELLED, reason)
    if not has_ended:
        sessions.set_status(tx, SessionStatus.CANCELLED, reason)


class DetachedCompactions:
    """Compactions of agents whose loop does not run: those that people order, and those that outlive a loop.

    - An idle agent keeps the loop whose compaction is in progress (`keep`). The compaction is applied when it is
      ready. If the agent works again first, its next loop takes it over (`take`).
    - An agent that has ended is compacted as a whole, and no loop of it may start meanwhile (`is_about`).

    A `compact` command is marked applied in the transaction in which an idle or working agent's compaction
    begins, and for an ended agent in the one in which it is applied. Until then it is queued, so that it
    survives a crash.
    """

    def __init__(self, host: CommandedHost) -> None:
        self._host = host
        self._idle: dict[str, AgentLoop] = {}
        """Idle agent → its loop, whose compaction is in progress."""
        self._applying = BackgroundTasks()
        """Waits for the compactions of idle agents."""
        self._ended: dict[str, tuple[int, asyncio.Task[None]]] = {}
        """Agent that has ended → the command that compacts it, and the work."""
        self._host_ends = False

    @property
    def under_way(self) -> bool:
        """Whether an agent that has ended is being compacted, which the host waits for."""
        return bool(self._ended)

    def is_about(self, agent_id: str) -> bool:
        """Whether the agent is being compacted so that no loop of it may start."""
        return agent_id in self._ended

    def loop_of(self, agent_id: str) -> AgentLoop | None:
        """The loop of an idle agent whose compaction is in progress, or None."""
        return self._idle.get(agent_id)

    def forget(self, agent_id: str) -> None:
        """Drop the kept loop of an idle agent, whose next loop reads the rows."""
        if (loop := self._idle.pop(agent_id, None)) is not None:
            loop.compaction.drop()

    def keep(self, agent_id: str, loop: AgentLoop) -> None:
        """Keep the loop of an agent that became idle, and apply its compaction when it is ready."""
        self._idle[agent_id] = loop
        self._applying.start(self._apply_when_ready(agent_id, loop))

    def take(self, agent_id: str) -> AgentLoop | None:
        """Hand the kept loop over to the agent's next one."""
        return self._idle.pop(agent_id, None)

    async def end(self) -> None:
        """The host ends: apply what is ready and abandon the rest. Commands that are not applied stay queued."""
        self._host_ends = True
        await self._cancel_ended()
        loops = list(self._idle.values())
        self._idle.clear()
        for loop in loops:
            await loop.compaction.land()
            await loop.compaction.abandon("the agent is idle and its background process ended", goes_on=True)
        await self._applying.settled()

    async def drop(self) -> None:
        """Stop without writing anything, because the host may write no more."""
        await self._cancel_ended()
        for loop in self._idle.values():
            loop.compaction.drop()
        self._applying.cancel()

    async def _cancel_ended(self) -> None:
        tasks = [task for _, task in self._ended.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _apply_when_ready(self, agent_id: str, loop: AgentLoop) -> None:
        try:
            await loop.compaction.ready()
            if self._idle.get(agent_id) is loop:
                await loop.compaction.land()
            if self._idle.get(agent_id) is loop:
                del self._idle[agent_id]
        except Exception as error:
            self._host.failed(error)

    async def apply(self, command: Command) -> str | None:
        """Start the compaction that a `compact` command orders; returns the result, unless it is stored
        already.

        Raises:
            ValueError: it cannot start, with the reason.
            NotYet: it runs in the background; the command is settled when it ends.
        """
        host = self._host
        agent = agents.load(host.store, command.agent_id) if command.agent_id else None
        if agent is None:
            raise ValueError(f"no agent {command.agent_id} in this session")
        up_to = command.payload.get("up_to")
        if up_to is not None and (isinstance(up_to, bool) or not isinstance(up_to, int)):
            raise ValueError("up_to must be the number of a message")
        if (model := command.payload.get("model")) is not None:
            try:
                host.environment.model(str(model))
            except BadInput as error:
                raise ValueError(str(error)) from None
        if (program := program_of(host, agent)) is not None:
            instructions = _instructions(command)
            said = compaction_order(host.store, agent, program, instructions)

            def order(tx: Transaction) -> None:
                agents.order_program_compaction(tx, agent.id, instructions or "")
                _tell_of_compaction(tx, agent)

            await host.store.commit(order)
            return said
        if agent.id in self._ended:
            if self._ended[agent.id][0] == command.id:
                raise NotYet
            raise ValueError(f"a compaction of {agent.name} is already running")
        loop = host.loop_of(agent.id)
        if loop is not None:
            await self._begin(command, agent, loop)
            now = agents.load(host.store, agent.id)
            if now is not None and now.status is AgentStatus.IDLE and host.loop_of(agent.id) is None:
                self.keep(agent.id, loop)  # it became idle while the compaction started
        elif agent.status is AgentStatus.IDLE and not host.driving_once:
            loop = AgentLoop(host.environment, agent, AgentControl())
            await loop.compaction.take_over(begin_again=False)  # this command is newer
            await self._begin(command, agent, loop)
            self.keep(agent.id, loop)
        elif host.driving_once:
            return await self._whole(command, agent)
        else:
            task = asyncio.create_task(self._in_background(command, agent), name=f"compact-{agent.id}")
            self._ended[agent.id] = command.id, task
            raise NotYet
        return None

    async def _begin(self, command: Command, agent: Agent, loop: AgentLoop) -> None:
        doing = "rests" if agent.status is AgentStatus.IDLE else "works"

        def settle(tx: Transaction, begun: CompactionPass) -> None:
            said = f"compacting {agent.name} through message {begun.high_water} while it {doing}"
            _tell_of_compaction(tx, agent)
            command.settle(tx, CommandStatus.APPLIED, said)

        begun = await loop.compaction.begin(
            trigger="manual",
            up_to=command.payload.get("up_to"),
            instructions=_instructions(command),
            model=command.payload.get("model"),
            also=settle,
        )
        if isinstance(begun, Rejection):
            raise ValueError(begun.reason)

    async def _in_background(self, command: Command, agent: Agent) -> None:
        """Compact an agent that has ended, while the host goes on."""
        try:
            status = CommandStatus.APPLIED
            try:
                said = await self._whole(command, agent)
            except ValueError as refused:
                status, said = CommandStatus.REFUSED, str(refused)
            except STORE_LOST:
                raise
            except Exception as error:
                status, said = CommandStatus.FAILED, why_failed(command, error)
            if said is not None:
                result = said
                await self._host.store.commit(lambda tx: command.settle(tx, status, result), urgent=True)
        except Exception as error:
            self._host.failed(error)
        finally:
            del self._ended[agent.id]
            self._host.wake_host(agent.id)

    async def _whole(self, command: Command, agent: Agent) -> str | None:
        """Compact the agent and wait for it; returns the result where an earlier host did that for this
        command."""
        compaction = CompactionRunner(self._host.environment, agent, memory_of(self._host, agent))
        # A compaction that was left unfinished is that of this command, or older.
        await compaction.take_over(begin_again=False)
        made = commands.compaction_made(self._host.store, command.id, agent.id)
        if made is not None:
            return _compacted(agent, *made)

        def settle(tx: Transaction, outcome: PassOutcome) -> None:
            if outcome.applied:
                said = _compacted(
                    agent, outcome.tokens_before, outcome.tokens_after, outcome.high_water, outcome.reason
                )
                _tell_of_compaction(tx, agent)
                command.settle(tx, CommandStatus.APPLIED, said)

        try:
            outcome = await compaction.run(
                trigger="manual",
                up_to=command.payload.get("up_to"),
                instructions=_instructions(command),
                model=command.payload.get("model"),
                command=command.id,
                also=settle,
            )
        except asyncio.CancelledError:
            if self._host_ends:
                await compaction.abandon("its background process ended")
            else:
                compaction.drop()
            raise
        except Exception:
            compaction.drop()
            raise
        if isinstance(outcome, Rejection) or not outcome.applied:
            raise ValueError(outcome.reason)
        return None


def _tell_of_compaction(tx: Transaction, agent: Agent) -> None:
    task = plans.load_task(tx, agent.task_id) if agent.task_id else None
    who = agent.name if task is not None else f"you, {agent.name}"
    agent_state.notify_planner_of_person(tx, f"compacted the context of {who}.")


def _instructions(command: Command) -> str | None:
    return command.payload.get("instructions") or None


def _compacted(
    agent: Agent, before: int | None, after: int | None, high_water: int | None, reason: str
) -> str:
    said = f"{agent.name}: {before} → {after} tokens, through message {high_water}"
    return said if reason == "summary" else f"{said} ({reason})"
