"""Whether a call may run: permissions, grants, questions.

Repeated calls ask too. An answer is stored before it is used, so a crash loses no answer and repeats no question. An input
that a person edited replaces the model's.

An answer holds for what the person was shown, in the state in which it was shown (`records.premises`). If that is not so any
more when the call is to run, the call does not run, and the agent asks again with the difference.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from watchkeeper.agents.calls import IDENTICAL_RUNS, assert_mine, identical_runs
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.limits import AgentControl
from watchkeeper.agents.tools.contract import (
    Permission,
    PersonQuestion,
    PipelineRun,
)
from watchkeeper.records.premises import ABSENT, Premises, command_files, read_files
from watchkeeper.records.states import AgentStatus, ApprovalStatus, ToolCallStatus
from watchkeeper.records.tool_inputs import (
    FILE_CHANGES,
    command_of,
    covering,
    digest_of,
    edited_files,
    holds_already,
    written_paths,
)
from watchkeeper.store import agents, commands
from watchkeeper.store.agents import Agent, Call
from watchkeeper.store.commands import (
    CONFLICT,
    GUARDED,
    PROGRAM_CHANGES,
    Grant,
    live_grants,
    unified_diff,
)
from watchkeeper.store.database import protected_files
from watchkeeper.store.transaction import Transaction

BY_CONFIGURATION = "The configuration denies this. Nothing was done."
"""What a model reads of a call that no person may allow."""
PRESENCE_SECONDS = 1.0
"""How soon a host that denies unwatched questions learns that the last who watched has left."""

FILE_CHANGED = "the file changed after the approval was requested; the diff shows the changes"


@dataclass(frozen=True, slots=True)
class Permit:
    """What came of it."""

    call: Call
    """With the input that is to run."""
    allowed: bool
    reason: str = ""
    """Why it is denied, as the model reads it."""
    subject_digest: str = ""
    """Digest of the file whose change a person approved; empty if none did."""
    premises: Premises | None = None
    """What a person's answer rests on; None if no person answered, or the call has none."""
    pipeline: PipelineRun | None = None
    """For a command that patterns allowed: what runs."""


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
        self,
        call: Call,
        permission: Permission,
        changed: str = "",
        question: PersonQuestion | None = None,
        before: Premises | None = None,
    ) -> Permit:
        """Decide, and wait for a person where one must. `permission` is not DENY.

        `changed`: why an answer that was given does not count any more; empty where it does. `before`: what that answer
        rested on. `question`: what the tool itself asks.
        """
        if question is not None:
            return await self._ask(call, None, question.cause, question.note, question)
        asked = commands.asked_about(self._environment.store, call.id)
        if asked is not None and asked.scope == "grant" and self._granted(call) is None:
            # the grant that answered was revoked before the call ran, or is one of the session that was
            # forked
            asked = None
        repeated = self._repeated(call)
        paths = written_paths(self._workspace, call.arguments)
        refused_paths = [one for one in paths if not self._environment.is_path_granted(one.name)]
        if paths and not refused_paths and call.name in (*FILE_CHANGES, PROGRAM_CHANGES):
            permission = Permission.ALLOW
        guarded = next((one.guard for one in refused_paths if one.guard), "")
        if guarded and asked is not None and asked.scope == "grant":
            asked = None
        while True:
            if changed:
                waits = (
                    asked is not None and asked.status is ApprovalStatus.WAITING and asked.cause == "changed"
                )
                permit = await self._ask(
                    call, asked.id if asked is not None and waits else None, "changed", changed, before=before
                )
                asked = None
            elif asked is not None and (
                asked.status in (ApprovalStatus.APPROVED, ApprovalStatus.DENIED)
                or (asked.status is ApprovalStatus.EXPIRED and asked.cause == CONFLICT)
            ):
                await self._stop_waiting()
                permit = self._answered(call, asked.id)
            elif asked is not None and asked.status is ApprovalStatus.WAITING:
                permit = await self._ask(call, asked.id, asked.cause or "permission", asked.note or "")
            elif repeated:
                permit = await self._ask(call, None, "repetition", repeated)
            elif guarded:
                permit = await self._ask(call, None, GUARDED, guarded)
            elif permission is Permission.ALLOW:
                return Permit(call, True)
            elif (granted := self._granted(call)) is not None:
                return Permit(call, True, pipeline=granted[1])
            else:
                permit = await self._ask(call, None, "permission", self._note)
            if not permit.allowed:
                return permit
            if call.name in FILE_CHANGES:
                digest = await self._digest(permit.call)
                if permit.subject_digest in ("", digest):
                    return permit
                if call.status is ToolCallStatus.RUNNING and await self._wrote_already(permit.call):
                    return replace(
                        permit, subject_digest=digest
                    )  # the host died after the write; it writes the same again
                changed = FILE_CHANGED
            elif permit.premises is None or not (
                changed := change_of(permit.premises, await self._premises(permit.call), self._workspace)
            ):
                return permit
            call, before = permit.call, permit.premises

    async def permit_within(self, call: Call, question: PersonQuestion, seconds: float) -> Permit | None:
        """As `permit` of what a tool asks, for a call that may not wait long; None: there is no answer yet.

        The question waits on. Asked again, it is the same one, and so is the answer that it got meanwhile.
        """
        store, timeout_seconds = (
            self._environment.store,
            self._environment.settings.approval_timeout_seconds,
        )
        asked = commands.asked_before(store, self._agent.id, question.cause, question.digest)
        if asked is not None:
            is_late = bool(timeout_seconds) and self._environment.clock.now() - asked.created_at > (
                timeout_seconds or 0
            )

            def take_over(tx: Transaction) -> None:
                commands.take_over_question(tx, asked.id, call.id)
                if asked.status is ApprovalStatus.WAITING and is_late:
                    agents.expire_approval(tx, asked.id, call.name)

            await store.commit(take_over)
            if asked.status is not ApprovalStatus.WAITING or is_late:
                return self._answered(call, asked.id)
        try:
            async with asyncio.timeout(seconds):
                known = asked.id if asked is not None else None
                return await self._ask(call, known, question.cause, question.note, question)
        except TimeoutError:
            return None
        finally:
            await self._stop_waiting()

    async def _stop_waiting(self) -> None:
        """Where a host died between a person's answer and what follows from it, the agent waits no more."""
        agent_id = self._agent.id
        if agents.status_of(self._environment.store, agent_id) is AgentStatus.WAITING:
            await self._environment.store.commit(lambda tx: agents.move(tx, agent_id, AgentStatus.WORKING))

    def _repeated(self, call: Call) -> str:
        """That an identical call ran as often as one may without a question; empty where it did not."""
        if call.idempotent:
            return ""
        count = identical_runs(self._environment.store, self._agent.id, call, self._has_effects)
        return (
            f"the same {call.name} call with the same input already ran {count} times"
            if count >= IDENTICAL_RUNS
            else ""
        )

    def _granted(self, call: Call) -> tuple[list[Grant], PipelineRun | None] | None:
        """The grants that cover a call, and what runs where they are of patterns."""
        environment = self._environment
        grants = live_grants(environment.store, environment.session_id, call.name)
        if whole := [one for one in grants if one.pattern is None]:
            return whole[:1], None
        if call.name != "bash" or not call.arguments.keys() <= {"command", "timeout_ms"}:
            return None
        patterns = [one.pattern or "" for one in grants]
        found = covering(patterns, str(call.arguments.get("command", "")))
        if found is None:
            return None
        parts, used = found
        pipeline = environment.pool.at(self._workspace).pipeline(self._agent.id, parts)
        return ([grants[number] for number in used], pipeline) if pipeline is not None else None

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

    async def _premises(self, call: Call) -> Premises:
        """What an answer about the call rests on, as it is now."""
        environment, folder, shell = self._environment, self._folder, None
        workspace = self._workspace
        command = command_of(call.arguments)
        if call.name == "bash" and folder is None:
            pool = environment.pool.at(workspace)
            folder, shell = pool.shell_folder(self._agent.id), pool.shell_identity(self._agent.id)
        protected = protected_files(environment.store.path)

        def read() -> Premises:
            if command:
                names = command_files(command, folder or str(workspace), str(workspace))
            else:
                names = [os.path.normpath(workspace / one) for one in edited_files(call.arguments)]
            return Premises(folder, shell, read_files(names, environment.redact, protected))

        return await asyncio.to_thread(read)

    async def _wrote_already(self, call: Call) -> bool:
        environment = self._environment
        protected = protected_files(environment.store.path)
        return await asyncio.to_thread(holds_already, self._workspace, call.name, call.arguments, protected)

    async def _ask(
        self,
        call: Call,
        approval_id: str | None,
        cause: str,
        note: str,
        asked: PersonQuestion | None = None,
        before: Premises | None = None,
    ) -> Permit:
        """Put a question, or the one with that id again, and wait for its answer. `asked`: what the tool asks. `before`:
        what the answer rested on that does not count any more."""
        environment, agent = self._environment, self._agent
        is_new = approval_id is None
        question_id = approval_id or environment.new_id()
        about = asked.arguments if asked is not None else call.arguments
        question = f"{call.name} {json.dumps(environment.redact(about), ensure_ascii=False)}"
        note = environment.redact(note)
        digest = "" if not is_new else asked.digest if asked is not None else await self._digest(call)
        premises: Premises | None = None
        if is_new and asked is None:
            premises = await self._premises(call)
            if before is not None:
                premises = replace(premises, difference=difference_of(before, premises, self._workspace))

        def put(tx: Transaction) -> None:
            assert_mine(tx, agent.id)
            if is_new:
                agents.hold_tool_call(tx, call.id)
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
                    folder=premises.folder if premises is not None else self._folder,
                    subject_digest=digest or None,
                    premises=premises.encoded() if premises is not None else None,
                )
            what = "a merge conflict" if cause == CONFLICT else f"wants to run {call.name}"
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
        return self._answered(call, question_id)

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
            asked = commands.load_asked(environment.store, question_id)
            if (
                asked is None
                or asked.status is not ApprovalStatus.WAITING
                or (cause == "permission" and self._granted(call) is not None)
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
        granted: tuple[list[Grant], PipelineRun | None] | None,
        in_time: bool,
    ) -> None:
        assert_mine(tx, self._agent.id)
        if granted is not None:
            by = ", ".join(f"grant {grant.id} of {grant.granted_by}" for grant in granted[0])
            if commands.decide_approval(tx, question_id, ApprovalStatus.APPROVED, by, None, scope="grant"):
                tx.event(
                    "approval.approved", agent_id=self._agent.id, approval=question_id, tool=call.name, by=by
                )
        elif not in_time:
            agents.expire_approval(tx, question_id, call.name)
        agents.move(tx, self._agent.id, AgentStatus.WORKING)

    def _answered(self, call: Call, question_id: str) -> Permit:
        """The stored answer of a question."""
        asked = commands.load_asked(self._environment.store, question_id)
        assert asked is not None
        digest = asked.subject_digest or ""
        if asked.status is ApprovalStatus.EXPIRED and asked.cause == CONFLICT:
            return Permit(call, True, subject_digest=digest)  # the tool goes on without an answer
        if asked.status is not ApprovalStatus.APPROVED:
            return Permit(call, False, _denial(asked.status, asked.reason, asked.cause, asked.note))
        if asked.edited_input is not None:
            original = call.original if call.original is not None else call.arguments
            call = replace(call, arguments=asked.edited_input, original=original)
        if asked.scope == "grant":  # it must hold still, and says what runs
            granted = self._granted(call)
            return (
                Permit(call, True, pipeline=granted[1])
                if granted is not None
                else Permit(call, False, "The grant that allowed this was revoked. Nothing was done.")
            )
        return Permit(call, True, subject_digest=digest, premises=asked.premises)


def _denial(status: str, reason: str | None, cause: str | None, note: str | None) -> str:
    """What a model reads in the place of a result."""
    why = f": '{reason}'" if reason else ""
    if status == ApprovalStatus.DENIED:
        return f"A person {'cancelled this merge' if cause == CONFLICT else 'denied this'}{why}. Nothing was done."
    if status == ApprovalStatus.EXPIRED:
        why = f" ({note})" if cause == "repetition" else ""
        return f"The approval timed out, so this was denied{why}. Nothing was done."
    return f"The approval request was withdrawn{why}. Nothing was done."


def change_of(before: Premises, now: Premises, workspace: Path) -> str:
    """In a line, what is not so any more of what an answer rests on; empty if all of it is, and if the shell has ended:
    `WorkerPool.run_shell` answers that."""
    if before.shell and not now.shell:
        return ""
    parts = []
    if before.folder != now.folder:
        parts.append(f"the folder changed from {before.folder or 'unknown'} to {now.folder or 'unknown'}")
    if before.shell != now.shell:
        parts.append("the shell was replaced")
    parts += [f"{_name(path, workspace)} changed" for path in before.changed_files(now)]
    return f"not run: since the approval was requested, {', '.join(parts)}" if parts else ""


def difference_of(before: Premises, now: Premises, workspace: Path) -> str:
    """The whole difference, a part after the other; empty if there is none that can be shown."""
    parts = []
    if before.folder != now.folder:
        parts.append(f"folder: {before.folder or 'unknown'} → {now.folder or 'unknown'}")
    if before.shell != now.shell:
        parts.append(
            "shell: the shell at the time of the request ended; its variables and background jobs are gone"
        )
    for path in before.changed_files(now):
        name, old, new = _name(path, workspace), before.files[path], now.files[path]
        if old.text is None or new.text is None:
            parts.append(f"{name}: the content changed and cannot be shown as a diff")
        elif old.text == new.text:
            parts.append(f"{name}: it now resolves to another file")
        else:
            parts.append(unified_diff(None if old.digest == ABSENT else old.text, new.text, name))
    return "\n".join(parts)


def _name(path: str, workspace: Path) -> str:
    inside = os.path.relpath(path, workspace)
    return path if inside.startswith("..") else inside


async def _within(event: asyncio.Event, timeout_seconds: float | None) -> bool:
    """Whether an event is set in time; None: wait as long as it takes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            await event.wait()
    return event.is_set()
