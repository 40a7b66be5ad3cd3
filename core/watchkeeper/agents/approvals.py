"""Whether one call of an agent may run: permissions, grants, repeated calls, and the question to a person.

A person answers for one input, and for `write` and `edit` for one state of the file: if the file is another
one when the call is to run, the question is put again. What a person edited takes the place of the model's
input. An answer is in the store before it is used, so a crash loses none and asks nothing twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from watchkeeper.agents.calls import IDENTICAL_RUNS, Call, assert_mine, identical_runs
from watchkeeper.agents.control import AgentControl
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.tools.contract import Permission, ProgramRun
from watchkeeper.records.command_pattern import matches
from watchkeeper.records.file_subject import FILE_CHANGES, digest_of, holds_already
from watchkeeper.records.states import AgentStatus, ApprovalStatus, ToolCallStatus
from watchkeeper.store import agents, commands
from watchkeeper.store.agents import Agent
from watchkeeper.store.encoding import decode
from watchkeeper.store.grants import Grant, live_grants
from watchkeeper.store.placement import protected_files
from watchkeeper.store.transaction import Transaction

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
    """Of the file whose change a person approved; empty where none did."""
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
    ) -> None:
        """`has_effects` says whether a tool may change something outside the database."""
        self._environment = environment
        self._agent = agent
        self._control = control
        self._has_effects = has_effects

    async def permit(self, call: Call, permission: Permission, changed: str = "") -> Permit:
        """Decide, and wait for a person where one must. `permission` is not DENY.

        `changed`: why an answer that was given does not count any more; empty where it does.
        """
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
        while True:
            if changed:
                waiting = (
                    row is not None and row["status"] == ApprovalStatus.WAITING and row["cause"] == "changed"
                )
                permit = await self._ask(call, row["id"] if waiting else None, "changed", changed)
                row = None
            elif row is not None and row["status"] in (ApprovalStatus.APPROVED, ApprovalStatus.DENIED):
                permit = self._answered(call, row["id"])
            elif row is not None and row["status"] == ApprovalStatus.WAITING:
                permit = await self._ask(call, row["id"], row["cause"] or "permission", row["note"] or "")
            elif repeated:
                permit = await self._ask(call, None, "repetition", repeated)
            elif permission is Permission.ALLOW:
                return Permit(call, True)
            elif (granted := self._granted(call)) is not None:
                return Permit(call, True, program=granted[1])
            else:
                permit = await self._ask(call, None, "permission", "")
            if not permit.allowed or not permit.subject_digest:
                return permit
            digest = await self._digest(permit.call)
            if permit.subject_digest == digest:
                return permit
            if call.status is ToolCallStatus.RUNNING and await self._wrote_already(permit.call):
                return replace(
                    permit, subject_digest=digest
                )  # the host died after the write; it writes the same again
            call, changed = permit.call, FILE_CHANGED

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
            program = environment.program(self._agent.id, words) if words is not None else None
            if program is not None:
                return grant, program
        return None

    async def _digest(self, call: Call) -> str:
        """Of the file that the call would change, as it is now."""
        if call.name not in FILE_CHANGES:
            return ""
        environment = self._environment
        protected = protected_files(environment.store.path)
        return await asyncio.to_thread(digest_of, environment.workspace, call.name, call.arguments, protected)

    async def _wrote_already(self, call: Call) -> bool:
        environment = self._environment
        protected = protected_files(environment.store.path)
        return await asyncio.to_thread(
            holds_already, environment.workspace, call.name, call.arguments, protected
        )

    async def _ask(self, call: Call, approval_id: str | None, cause: str, note: str) -> Permit:
        """Put a question, or the one with that id again, and wait for its answer."""
        environment, agent = self._environment, self._agent
        is_new = approval_id is None
        question_id = approval_id or environment.new_id()
        question = f"{call.name} {json.dumps(environment.redact(call.arguments), ensure_ascii=False)}"
        digest = await self._digest(call) if is_new else ""
        folder = environment.shell_folder(agent.id) if call.name == "bash" else None

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
            agents.move(tx, agent.id, AgentStatus.WAITING, f"may it run {call.name}?")

        decided = environment.decisions.setdefault(question_id, asyncio.Event())
        await environment.store.commit(put)
        environment.live.show(agent.id, "waiting", question[:500])
        try:
            self._control.waits(True)
            in_time = await self._control.abandonable(self._answer(call, question_id, cause, decided))
        finally:
            self._control.waits(False)
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
        """Wait for a person; False where nobody answered in time. A time of 0 counts only while nobody
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
        """The answer of a question as it is stored."""
        row = self._environment.store.one(
            "SELECT a.status, a.reason, a.subject_digest, a.scope, c.edited_input FROM approvals a"
            " JOIN tool_calls c ON c.id = a.tool_call_id WHERE a.id = ?",
            (question_id,),
        )
        status, reason, digest, scope, edited = row
        if status != ApprovalStatus.APPROVED:
            silent = "a person denied it" if status == ApprovalStatus.DENIED else "the approval timed out"
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
    if timeout_seconds is None:
        await event.wait()
        return True
    try:
        await asyncio.wait_for(event.wait(), timeout_seconds)
    except TimeoutError:
        return event.is_set()
    return True
