"""Running tool calls: permission, intent before effect, result after; and recovery after a crash."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from watchkeeper.agents.environment import Environment
from watchkeeper.agents.limits import AgentControl, AgentStopped
from watchkeeper.agents.tools.contract import (
    OutsideTool,
    Permission,
    PersonQuestion,
    ProgramRun,
    StoreTool,
    ToolContext,
    ToolResult,
    validate_arguments,
)
from watchkeeper.agents.tools.workers import mark_fault
from watchkeeper.records import errors
from watchkeeper.records.errors import HostFault, raising_host_faults
from watchkeeper.records.messages import Block, ToolSpec
from watchkeeper.records.states import AgentStatus, ApprovalStatus, ToolCallStatus
from watchkeeper.records.tool_inputs import (
    FILE_CHANGES,
    SUBJECT_CHANGED,
    digest_of,
    holds_already,
    matches,
    written_paths,
)
from watchkeeper.store import agents, artifacts, commands
from watchkeeper.store.agents import Agent
from watchkeeper.store.commands import (
    CONFLICT,
    GUARDED,
    PROGRAM_CHANGES,
    Grant,
    editable,
    live_grants,
    unified_diff,
)
from watchkeeper.store.database import protected_files
from watchkeeper.store.driver import decode
from watchkeeper.store.faultpoints import reach
from watchkeeper.store.transaction import Transaction

# --- An agent's tool calls, read from its rows and messages -------------------------------------------------

OUTCOME_UNKNOWN = (
    "[interrupted, outcome unknown] The program stopped while this call was running. It may have taken"
    " effect, in part or"
    " whole. Verify before you do it again."
)


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of an open turn."""

    id: int
    position: int
    tool_use_id: str
    name: str
    arguments: Any
    """What runs: what a person edited, else the model's input."""
    idempotent: bool
    status: ToolCallStatus
    result: Any
    is_error: bool
    original: Any = None
    """The model's input, where a person edited it; else None."""


def load_calls(reads: Any, agent_id: str, turn: int, content: Any) -> list[Call]:
    """The calls of a turn, joined with the inputs that stand in the model's reply."""
    uses: list[Block] = (
        [block for block in content if block.get("type") == "tool_use"] if isinstance(content, list) else []
    )
    rows = reads.all(
        "SELECT id, position, tool_use_id, name, idempotent, status, result, is_error, edited_input FROM"
        " tool_calls"
        " WHERE agent_id = ? AND turn = ? ORDER BY position",
        (agent_id, turn),
    )
    return [
        Call(
            id=row[0],
            position=row[1],
            tool_use_id=row[2],
            name=row[3],
            arguments=decode(row[8]) if row[8] is not None else _input(uses, row[1]),
            original=_input(uses, row[1]) if row[8] is not None else None,
            idempotent=bool(row[4]),
            status=ToolCallStatus(row[5]),
            result=decode(row[6]) if row[6] is not None else None,
            is_error=bool(row[7]),
        )
        for row in rows
    ]


def _input(uses: list[Block], position: int) -> Any:
    return uses[position].get("input") if position < len(uses) else None


def assert_mine(tx: Transaction, agent_id: str) -> None:
    """Refuse to write for an agent that was cancelled or replaced meanwhile.

    Raises:
        AgentStopped: it was.
    """
    row = tx.one("SELECT status FROM agents WHERE id = ?", (agent_id,))
    if row is None or row[0] in ("cancelled", "failed", "done"):
        raise AgentStopped(agent_id)


def mark_unknown(tx: Transaction, *, agent: Agent, call: Call) -> None:
    """A call was running when its host died, so its effect is unknown. It runs again only if that does no
    harm."""
    assert_mine(tx, agent.id)
    if not call.idempotent:
        agents.end_tool_call(tx, call.id, ToolCallStatus.UNKNOWN, OUTCOME_UNKNOWN, True, tx.now)
    tx.event(
        "tool.unknown",
        agent_id=agent.id,
        task_id=agent.task_id,
        tool=call.name,
        call=call.id,
        again=call.idempotent,
    )


IDENTICAL_RUNS = 3
"""As often a call that is not idempotent runs with the same input before a person is asked."""
_RECENT_CALLS = 200


def identical_runs(reads: Any, agent_id: str, call: Call, changes: Callable[[str], bool]) -> int:
    """How often the agent ran this very call (same tool, same input) since it last did something else of
    effect.

    Calls that only look do not end the count, and neither does a call that is itself repeated: a cycle of
    several calls is counted like one. A call of effect that was made once ends it, so a test that runs after
    each edit is no repetition. `changes` says whether a tool may have an effect outside the database.
    """
    rows = reads.all(
        "SELECT id, name, input_digest FROM tool_calls WHERE agent_id = ? AND status IN (?, ?, ?) ORDER BY"
        " id DESC LIMIT ?",
        (agent_id, ToolCallStatus.DONE, ToolCallStatus.ERROR, ToolCallStatus.UNKNOWN, _RECENT_CALLS),
    )
    own = reads.one("SELECT input_digest FROM tool_calls WHERE id = ?", (call.id,))[0]
    if own is None:
        return 0
    made = Counter(row[2] for row in rows)
    count = 0
    for _, name, digest in rows:
        if digest == own:
            count += 1
        elif digest is None or (made[digest] == 1 and changes(name)):
            break
    return count


# --- Whether a call may run: permissions, grants, questions -------------------------------------------------
#
# Repeated calls ask too. A person's answer covers one input and, for `write` and `edit`, one state of the
# file: if the file has changed when the call is to run, the agent asks again. An input that a person edited
# replaces the model's. An answer is stored before it is used, so a crash loses no answer and repeats no
# question.

PRESENCE_SECONDS = 1.0
"""How soon a host that denies unwatched questions learns that the last who watched has left."""

FILE_CHANGED = "the file changed after the question was answered; this is the change to the file as it is now"


@dataclass(frozen=True, slots=True)
class Permit:
    """What came of it."""

    call: Call
    """With the input that is to run."""
    allowed: bool
    reason: str = ""
    """Why it is denied."""
    subject_digest: str = ""
    """Digest of the file whose change a person approved; empty if none did."""
    program: ProgramRun | None = None
    """For a command that a pattern allowed: what runs."""


class Approvals:
    """Decides for the calls of one agent."""

    def __init__(
        self,
        environment: Environment,
        agent: Agent,
        control: AgentControl,
        has_effects: Callable[[str], bool],
        *,
        note: str = "",
        folder: str | None = None,
    ) -> None:
        """`has_effects` says whether a tool may change something outside the database. `note` and `folder` are what an
        agent program says of its own question."""
        self._environment = environment
        self._agent = agent
        self._control = control
        self._has_effects = has_effects
        self._note = note
        self._folder = folder

    async def permit(
        self, call: Call, permission: Permission, changed: str = "", question: PersonQuestion | None = None
    ) -> Permit:
        """Decide, and wait for a person where one must. `permission` is not DENY.

        `changed`: why an answer that was given does not count any more; empty where it does. `question`: what the tool
        itself asks.
        """
        if question is not None:
            return await self._ask(call, None, question.cause, question.note, question)
        store = self._environment.store
        row = store.one(
            "SELECT id, status, cause, note, scope FROM approvals WHERE tool_call_id = ? ORDER BY"
            " coalesce(commit_seq, 0) DESC LIMIT 1",
            (call.id,),
        )
        if row is not None and row["scope"] == "grant" and self._granted(call) is None:
            # the grant that answered was revoked before the call ran, or is one of the session that was
            # forked
            row = None
        repeated = self._repeated(call)
        paths = written_paths(self._workspace, call.arguments)
        refused_paths = [one for one in paths if not self._environment.is_path_granted(one.name)]
        if paths and not refused_paths and call.name in (*FILE_CHANGES, PROGRAM_CHANGES):
            permission = Permission.ALLOW
        guarded = next((one.guard for one in refused_paths if one.guard), "")
        if guarded and row is not None and row["scope"] == "grant":
            row = None
        while True:
            if changed:
                waiting = (
                    row is not None and row["status"] == ApprovalStatus.WAITING and row["cause"] == "changed"
                )
                permit = await self._ask(call, row["id"] if waiting else None, "changed", changed)
                row = None
            elif row is not None and (
                row["status"] in (ApprovalStatus.APPROVED, ApprovalStatus.DENIED)
                or (row["status"] == ApprovalStatus.EXPIRED and row["cause"] == CONFLICT)
            ):
                await self._stop_waiting()
                permit = self._answered(call, row["id"])
            elif row is not None and row["status"] == ApprovalStatus.WAITING:
                permit = await self._ask(call, row["id"], row["cause"] or "permission", row["note"] or "")
            elif repeated:
                permit = await self._ask(call, None, "repetition", repeated)
            elif guarded:
                permit = await self._ask(call, None, GUARDED, guarded)
            elif permission is Permission.ALLOW:
                return Permit(call, True)
            elif (granted := self._granted(call)) is not None:
                return Permit(call, True, program=granted[1])
            else:
                permit = await self._ask(call, None, "permission", self._note)
            if not permit.allowed or not permit.subject_digest or call.name not in FILE_CHANGES:
                return permit
            digest = await self._digest(permit.call)
            if permit.subject_digest == digest:
                return permit
            if call.status is ToolCallStatus.RUNNING and await self._wrote_already(permit.call):
                return replace(
                    permit, subject_digest=digest
                )  # the host died after the write; it writes the same again
            call, changed = permit.call, FILE_CHANGED

    async def permit_within(self, call: Call, question: PersonQuestion, seconds: float) -> Permit | None:
        """As `permit` of what a tool asks, for a call that may not wait long; None: there is no answer yet.

        The question waits on. Asked again, it is the same one, and so is the answer that it got meanwhile.
        """
        store, timeout_seconds = (
            self._environment.store,
            self._environment.settings.approval_timeout_seconds,
        )
        row = store.one(
            "SELECT id, status, created_at FROM approvals WHERE agent_id = ? AND cause = ? AND subject_digest = ?"
            " AND status <> ? ORDER BY commit_seq DESC LIMIT 1",
            (self._agent.id, question.cause, question.digest, ApprovalStatus.CANCELLED),
        )
        if row is not None:
            is_late = bool(timeout_seconds) and self._environment.clock.now() - row[2] > (
                timeout_seconds or 0
            )

            def take_over(tx: Transaction) -> None:
                tx.execute("UPDATE approvals SET tool_call_id = ? WHERE id = ?", (call.id, row[0]))
                edited = tx.one("SELECT edited_input FROM approvals WHERE id = ?", (row[0],))[0]
                tx.execute("UPDATE tool_calls SET edited_input = ? WHERE id = ?", (edited, call.id))
                if row[1] == ApprovalStatus.WAITING and is_late:
                    agents.expire_approval(tx, row[0], call.name)

            await store.commit(take_over)
            if row[1] != ApprovalStatus.WAITING or is_late:
                return self._answered(call, row[0])
        try:
            async with asyncio.timeout(seconds):
                known = row[0] if row is not None else None
                return await self._ask(call, known, question.cause, question.note, question)
        except TimeoutError:
            return None
        finally:
            await self._stop_waiting()

    async def _stop_waiting(self) -> None:
        """Where a host died between a person's answer and what follows from it, the agent waits no more."""
        agent_id = self._agent.id
        row = self._environment.store.one("SELECT status FROM agents WHERE id = ?", (agent_id,))
        if row is not None and row[0] == AgentStatus.WAITING:
            await self._environment.store.commit(lambda tx: agents.move(tx, agent_id, AgentStatus.WORKING))

    def _repeated(self, call: Call) -> str:
        """That an identical call ran as often as one may without a question; empty where it did not."""
        if call.idempotent:
            return ""
        count = identical_runs(self._environment.store, self._agent.id, call, self._has_effects)
        return (
            f"the same {call.name} call, with the same input, ran {count} times already"
            if count >= IDENTICAL_RUNS
            else ""
        )

    def _granted(self, call: Call) -> tuple[Grant, ProgramRun | None] | None:
        """The grant that covers a call, and what runs where it is a pattern's."""
        environment = self._environment
        for grant in live_grants(environment.store, environment.session_id, call.name):
            if grant.pattern is None:
                return grant, None
            if call.name != "bash" or not call.arguments.keys() <= {"command", "timeout_ms"}:
                continue
            words = matches(grant.pattern, str(call.arguments.get("command", "")))
            program = (
                environment.pool.at(self._workspace).program(self._agent.id, words)
                if words is not None
                else None
            )
            if program is not None:
                return grant, program
        return None

    @property
    def _workspace(self) -> Path:
        return self._environment.folder_of(self._agent.task_id)

    async def _digest(self, call: Call) -> str:
        """Digest of the file that the call would change, in its present state."""
        if call.name not in FILE_CHANGES:
            return ""
        environment = self._environment
        protected = protected_files(environment.store.path)
        return await asyncio.to_thread(digest_of, self._workspace, call.name, call.arguments, protected)

    async def _wrote_already(self, call: Call) -> bool:
        environment = self._environment
        protected = protected_files(environment.store.path)
        return await asyncio.to_thread(holds_already, self._workspace, call.name, call.arguments, protected)

    async def _ask(
        self, call: Call, approval_id: str | None, cause: str, note: str, asked: PersonQuestion | None = None
    ) -> Permit:
        """Put a question, or the one with that id again, and wait for its answer. `asked`: what the tool asks."""
        environment, agent = self._environment, self._agent
        is_new = approval_id is None
        question_id = approval_id or environment.new_id()
        about = asked.arguments if asked is not None else call.arguments
        question = f"{call.name} {json.dumps(environment.redact(about), ensure_ascii=False)}"
        note = environment.redact(note)
        digest = "" if not is_new else asked.digest if asked is not None else await self._digest(call)
        folder = self._folder or (
            environment.pool.at(self._workspace).shell_folder(agent.id) if call.name == "bash" else None
        )

        def put(tx: Transaction) -> None:
            assert_mine(tx, agent.id)
            if is_new:
                tx.execute(
                    "UPDATE tool_calls SET status = ? WHERE id = ? AND status = ?",
                    (ToolCallStatus.PENDING, call.id, ToolCallStatus.RUNNING),
                )
                agents.ask_approval(
                    tx,
                    approval_id=question_id,
                    agent_id=agent.id,
                    task_id=agent.task_id,
                    call_id=call.id,
                    tool=call.name,
                    question=question,
                    cause=cause,
                    note=note or None,
                    folder=folder,
                    subject_digest=digest or None,
                )
            what = f"a conflict of {call.name}" if cause == CONFLICT else f"wants to run {call.name}"
            agents.move(tx, agent.id, AgentStatus.WAITING, what)

        decided = environment.decisions.setdefault(question_id, asyncio.Event())
        await environment.store.commit(put)
        environment.live.show(agent.id, "waiting", question[:500])
        try:
            self._control.set_waiting(True)
            in_time = await self._control.abandonable(self._answer(call, question_id, cause, decided))
        finally:
            self._control.set_waiting(False)
            environment.decisions.pop(question_id, None)
        granted = self._granted(call) if cause == "permission" else None
        await environment.store.commit(
            partial(self._settle, call=call, question_id=question_id, granted=granted, in_time=in_time)
        )
        permit = self._answered(call, question_id)
        if not permit.allowed and note:
            permit = replace(permit, reason=f"{permit.reason} ({note})")
        return permit

    async def _answer(self, call: Call, question_id: str, cause: str, decided: asyncio.Event) -> bool:
        """Wait for a person's answer; False if none came in time. A time of 0 counts only while no person
        watches."""
        environment = self._environment
        timeout_seconds = environment.settings.approval_timeout_seconds
        while True:
            while timeout_seconds == 0 and not decided.is_set() and environment.watched():
                await _within(decided, PRESENCE_SECONDS)
            if not await _within(decided, timeout_seconds):
                return False
            status = environment.store.one("SELECT status FROM approvals WHERE id = ?", (question_id,))[0]
            if status != ApprovalStatus.WAITING or (
                cause == "permission" and self._granted(call) is not None
            ):
                return True
            # woken by a grant that another question was answered with, and that does not cover this call
            decided.clear()

    def _settle(
        self,
        tx: Transaction,
        *,
        call: Call,
        question_id: str,
        granted: tuple[Grant, ProgramRun | None] | None,
        in_time: bool,
    ) -> None:
        assert_mine(tx, self._agent.id)
        if granted is not None:
            grant = granted[0]
            by = f"grant {grant.id} of {grant.granted_by}"
            if commands.decide_approval(tx, question_id, ApprovalStatus.APPROVED, by, None, scope="grant"):
                tx.event(
                    "approval.approved", agent_id=self._agent.id, approval=question_id, tool=call.name, by=by
                )
        elif not in_time:
            agents.expire_approval(tx, question_id, call.name)
        agents.move(tx, self._agent.id, AgentStatus.WORKING)

    def _answered(self, call: Call, question_id: str) -> Permit:
        """The stored answer of a question."""
        row = self._environment.store.one(
            "SELECT a.status, a.reason, a.subject_digest, a.scope, c.edited_input, a.cause FROM approvals a"
            " JOIN tool_calls c ON c.id = a.tool_call_id WHERE a.id = ?",
            (question_id,),
        )
        status, reason, digest, scope, edited, cause = row
        if status == ApprovalStatus.EXPIRED and cause == CONFLICT:
            return Permit(call, True, subject_digest=digest or "")  # the tool goes on without an answer
        if status != ApprovalStatus.APPROVED:
            silent = "a person denied it" if status == ApprovalStatus.DENIED else "the approval timed out"
            if cause == CONFLICT and status == ApprovalStatus.DENIED:
                silent = "a person cancelled this merge; nothing was changed"
            return Permit(call, False, reason or silent)
        if edited is not None:
            original = call.original if call.original is not None else call.arguments
            call = replace(call, arguments=decode(edited), original=original)
        if scope == "grant":  # it must hold still, and says what runs
            granted = self._granted(call)
            return (
                Permit(call, True, program=granted[1])
                if granted is not None
                else Permit(call, False, "its grant was revoked")
            )
        return Permit(call, True, subject_digest=digest or "")


async def _within(event: asyncio.Event, timeout_seconds: float | None) -> bool:
    """Whether an event is set in time; None: wait as long as it takes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            await event.wait()
    return event.is_set()


_SHORTAGE = "The machine ran out of memory or of another resource while this call was running."
LOOKING = frozenset({"list_folder", "read", "glob", "grep"})
"""Tools that change nothing: neighbours in a turn run side by side. Others run in the model's order."""

MOST_OF_AN_EDIT = 4_000
"""Characters of a person's edit that the model is shown; of a longer one, the difference."""

MOST_CHANGES = 5
"""As often a question is put again because the file changed between the answer and the write."""

SHORTEST_KEPT = 8_000
"""Characters of a result that always stay in the context, however small the window."""


class Toolbox:
    """The tools of one agent, and the carrying out of its calls."""

    def __init__(self, environment: Environment, agent: Agent, control: AgentControl) -> None:
        self._environment = environment
        self._agent = agent
        self._control = control
        self._approvals = Approvals(environment, agent, control, self._has_effects)
        self._result_characters = max(SHORTEST_KEPT, min(100_000, agent.context_limit))

    @property
    def names(self) -> list[str]:
        """The tools that its role may call, as far as they are there: those of an MCP server may come
        later."""
        tools = self._environment.tools
        return [name for name in self._environment.tools_of(self._agent.role) if name in tools]

    def specs(self) -> list[ToolSpec]:
        """What the model is offered; a tool that is denied to the role is left out."""
        environment = self._environment
        return [
            environment.tools[name].spec
            for name in self.names
            if environment.permission(name) is not Permission.DENY
        ]

    def is_idempotent(self, name: str) -> bool:
        tool = self._environment.tools.get(name)
        return tool is None or tool.idempotent

    def _has_effects(self, name: str) -> bool:
        """Whether a tool may change something outside the database."""
        return name not in LOOKING and not isinstance(self._environment.tools.get(name), StoreTool)

    async def carry_out(self, calls: list[Call]) -> None:
        """Run every call that has not ended, until a pause is requested.

        Neighbouring calls that only read run side by side.
        """
        waiting = [call for call in calls if call.status in (ToolCallStatus.PENDING, ToolCallStatus.RUNNING)]
        while waiting and self._control.pause_reason is None:
            batch = [waiting.pop(0)]
            while waiting and self._side_by_side(batch[-1]) and self._side_by_side(waiting[0]):
                batch.append(waiting.pop(0))
            results = await asyncio.gather(*(self._one(call) for call in batch), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    def _side_by_side(self, call: Call) -> bool:
        """Whether it may run beside its neighbours: it only reads, and needs no answer."""
        return call.name in LOOKING and self._environment.permission(call.name) is Permission.ALLOW

    def _refusal(self, call: Call) -> tuple[str, ToolCallStatus] | None:
        """Why a call does not run, whatever a person says, and how it ends; None: it may run."""
        environment = self._environment
        tool, names = environment.tools.get(call.name), self.names
        if tool is None or call.name not in names:
            meant = difflib.get_close_matches(call.name[:100], names, 1, 0.5)
            there = f"did you mean {meant[0]}? There" if meant else "there"
            return f"there is no tool {call.name!r}; {there} are {', '.join(names)}", ToolCallStatus.ERROR
        if invalid := validate_arguments(tool.spec.input_schema, call.arguments):
            return f"the input cannot be used: {invalid}. Correct it and call again", ToolCallStatus.ERROR
        if marked := mark_fault(call.name, call.arguments):
            return f"{call.name}: {marked}", ToolCallStatus.ERROR
        if environment.permission(call.name) is Permission.DENY:
            return (
                "denied: the configuration denies it. Go on without it, or another way",
                ToolCallStatus.DENIED,
            )
        return None

    async def _one(self, call: Call) -> ToolResult:
        environment = self._environment
        began = environment.clock.now()
        if call.name not in environment.tools:
            await self._control.abandonable(environment.mcp.look_for(call.name))
        refusal = self._refusal(call)
        if refusal is not None:
            text, status = refusal
            return await self._end(call, ToolResult(text, is_error=True), status, began)
        tool, permission = environment.tools[call.name], environment.permission(call.name)
        if (lost := await self._lost_shell(call)) is not None:
            return await self._end(call, lost, ToolCallStatus.ERROR, began)
        changed, result, again = "", ToolResult(""), False
        for _ in range(MOST_CHANGES):
            permit = await self._approvals.permit(call, permission, changed, result.question)
            call = permit.call
            if not permit.allowed:
                refused = ToolResult(
                    f"denied: {permit.reason}. Go on without it, or another way", is_error=True
                )
                return await self._end(call, refused, ToolCallStatus.DENIED, began)
            context = self._context(call, permit)
            if isinstance(tool, StoreTool):
                return await self._apply(tool, call, context, began)
            assert isinstance(tool, OutsideTool)
            result = await self._run_outside(tool, call, context)
            if result.outcome_unknown:
                if call.idempotent and not again:  # it runs again, as after a crash of the host
                    again, call = True, replace(call, status=ToolCallStatus.RUNNING)
                    await environment.store.commit(partial(mark_unknown, agent=self._agent, call=call))
                    changed, result = "", ToolResult("")
                    continue
                if call.name not in LOOKING:
                    return await self._end(call, _to_verify(result), ToolCallStatus.UNKNOWN, began)
            if result.question is not None:
                continue
            if not (result.is_error and result.content == SUBJECT_CHANGED):
                break
            changed = "the file changed just before it was written, after the question was answered"
        trees = environment.worktrees
        if trees is not None and not result.is_error:
            if call.name in FILE_CHANGES:
                agent = self._agent
                await trees.wrote(agent.id, agent.name, agent.task_id, str(call.arguments.get("file_path")))
            if call.name in (*FILE_CHANGES, "bash"):
                trees.look(self._agent.task_id)
        return await self._end(
            call, result, ToolCallStatus.ERROR if result.is_error else ToolCallStatus.DONE, began
        )

    async def _lost_shell(self, call: Call) -> ToolResult | None:
        """What answers a command whose shell was lost since the agent's last one, also with an earlier host; no
        question is asked about it."""
        environment, agent = self._environment, self._agent
        if call.name != "bash" or call.arguments.get("restart"):
            return None
        pool = environment.pool.at(environment.folder_of(agent.task_id))
        if not pool.knows_shell(agent.id) and agents.began_a_call(environment.store, agent.id, "bash"):
            pool.note_lost_shell(agent.id)
        return await pool.take_lost_shell(agent.id)

    async def _run_outside(self, tool: OutsideTool, call: Call, context: ToolContext) -> ToolResult:
        """Run a call; where the machine ran out of something, again after a wait.

        Raises:
            HostFault: the machine is short of it still. The call is `pending`.
        """
        environment = self._environment
        for wait_seconds in (*errors.RETRY_SECONDS, None):
            environment.live.show(self._agent.id, "tool", call.name)
            if call.name not in LOOKING:
                await environment.store.commit(lambda tx: self._start(tx, call))
            reach("tool.before_run")
            try:
                with raising_host_faults():
                    result = await self._control.abandonable(tool.run(call.arguments, context))
                reach("tool.after_run")
                return result
            except HostFault as error:
                fault = error
            if fault.began and not call.idempotent:
                return ToolResult(_SHORTAGE, is_error=True, outcome_unknown=True)
            await environment.store.commit(
                partial(self._put_back, call=call, fault=fault, wait_seconds=wait_seconds)
            )
            if wait_seconds is None:
                break
            await self._wait_for_room(fault, wait_seconds)
        raise fault

    async def _wait_for_room(self, fault: HostFault, seconds: float) -> None:
        clock, live = self._environment.clock, self._environment.live
        live.show(self._agent.id, "retrying", str(fault), until=clock.now() + seconds)
        self._control.set_waiting(True)
        try:
            await self._control.abandonable(clock.sleep(seconds))
        finally:
            self._control.set_waiting(False)

    def _put_back(self, tx: Transaction, *, call: Call, fault: HostFault, wait_seconds: float | None) -> None:
        assert_mine(tx, self._agent.id)
        agents.return_tool_call(tx, call.id)
        tx.event(
            "tool.pending",
            agent_id=self._agent.id,
            task_id=self._agent.task_id,
            tool=call.name,
            call=call.id,
            reason=str(fault),
            wait_seconds=wait_seconds,
        )

    def _start(self, tx: Transaction, call: Call) -> None:
        assert_mine(tx, self._agent.id)
        agents.start_tool_call(tx, call.id)
        tx.event(
            "tool.started", agent_id=self._agent.id, task_id=self._agent.task_id, tool=call.name, call=call.id
        )

    async def _apply(self, tool: StoreTool, call: Call, context: ToolContext, began: float) -> ToolResult:
        arguments = self._environment.redact(call.arguments)

        def change(tx: Transaction) -> ToolResult:
            assert_mine(tx, self._agent.id)
            done = self._with_edit(call, tool.apply(tx, arguments, context))
            self._record(
                tx, call, done, ToolCallStatus.ERROR if done.is_error else ToolCallStatus.DONE, began
            )
            return done

        try:
            return await self._environment.store.commit(change)
        except ValueError as error:
            return await self._end(call, ToolResult(str(error), is_error=True), ToolCallStatus.ERROR, began)

    async def _end(self, call: Call, result: ToolResult, status: ToolCallStatus, began: float) -> ToolResult:
        result = self._with_edit(call, result)
        result = ToolResult(
            self._environment.redact(result.content),
            result.is_error,
            self._environment.redact(result.effects),
        )

        def change(tx: Transaction) -> ToolResult:
            assert_mine(tx, self._agent.id)
            shown = self._within_reach(tx, call, result)
            self._record(tx, call, shown, status, began)
            return shown

        return await self._environment.store.commit(change)

    def _with_edit(self, call: Call, result: ToolResult) -> ToolResult:
        """A result that tells the model, in its first lines, what a person put in the place of its input."""
        if call.original is None:
            return result
        text = editable(call.name, call.arguments)
        if len(text) > MOST_OF_AN_EDIT:
            text = unified_diff(editable(call.name, call.original), text, "input")
        if len(text) > MOST_OF_AN_EDIT:
            text = text[:MOST_OF_AN_EDIT] + f"\n[… {len(text) - MOST_OF_AN_EDIT} characters left out]"
        head = f"[edited] A person changed the input of this call before approving it. This ran instead:\n{text}\n[its result]\n"
        if isinstance(result.content, str):
            return ToolResult(head + result.content, result.is_error, result.effects)
        return ToolResult([{"type": "text", "text": head}, *result.content], result.is_error, result.effects)

    def _record(
        self, tx: Transaction, call: Call, result: ToolResult, status: ToolCallStatus, began: float
    ) -> None:
        agents.end_tool_call(tx, call.id, status, result.content, result.is_error, began)
        tx.event(
            f"tool.{status}",
            agent_id=self._agent.id,
            task_id=self._agent.task_id,
            tool=call.name,
            call=call.id,
            seconds=round(tx.now - began, 3),
            preview=_preview(result.content),
        )

    def _within_reach(self, tx: Transaction, call: Call, result: ToolResult) -> ToolResult:
        """A result too long for the window becomes an artifact with head, tail and a pointer."""
        text = result.content
        if not isinstance(text, str) or (
            len(text) <= self._result_characters and "whole_output" not in result.effects
        ):
            return result
        ref = artifacts.save_output(
            tx,
            name=f"tool-output/{call.name}/{call.id}",
            data=str(result.effects.get("whole_output") or text).encode("utf-8", "replace"),
            media_type="text/plain",
            agent_id=self._agent.id,
            task_id=self._agent.task_id,
            kind="tool_output",
        )
        head, tail = text[: self._result_characters * 3 // 5], text[-self._result_characters // 5 :]
        cut = f"\n[… {len(text) - len(head) - len(tail)} characters left out; the whole is {ref}, read it with read_back …]\n"
        return ToolResult(head + cut + tail, result.is_error, result.effects)

    def _context(self, call: Call, permit: Permit) -> ToolContext:
        environment = self._environment
        return ToolContext(
            session_id=environment.session_id,
            agent_id=self._agent.id,
            task_id=self._agent.task_id,
            workspace=environment.folder_of(self._agent.task_id),
            tool_call_id=str(call.id),
            subject_digest=permit.subject_digest,
            program=permit.program,
        )


def _to_verify(result: ToolResult) -> ToolResult:
    """What the model is told of a call whose outcome is unknown."""
    head = "[interrupted, outcome unknown] "
    tail = "\nIt may have taken effect, in part or whole. Verify before you do it again."
    if isinstance(result.content, str):
        return replace(result, content=f"{head}{result.content}{tail}")
    return replace(result, content=[{"type": "text", "text": head + tail.strip()}, *result.content])


def _preview(content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return text[:200]
