"""Carrying out tool calls: permission, intent before effect, result after; and what a crash left behind."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

from watchkeeper.agents.approvals import Approvals, Permit
from watchkeeper.agents.calls import Call, assert_mine
from watchkeeper.agents.control import AgentControl
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.tools.builtin import mark_fault
from watchkeeper.agents.tools.contract import OutsideTool, Permission, StoreTool, ToolContext, ToolResult
from watchkeeper.records import host_faults
from watchkeeper.records.file_subject import SUBJECT_CHANGED
from watchkeeper.records.host_faults import HostFault, raising_host_faults
from watchkeeper.records.model import ToolSpec
from watchkeeper.records.states import ToolCallStatus
from watchkeeper.store import agents, artifacts
from watchkeeper.store.agents import Agent
from watchkeeper.store.faultpoints import reach
from watchkeeper.store.questions import editable, unified_diff
from watchkeeper.store.transaction import Transaction

_OUTCOME_UNKNOWN_BY_HOST = (
    "[interrupted, outcome unknown] The machine ran out of memory or of another resource while this call was"
    " running. It may"
    " have taken effect, in part or whole. Verify before you do it again."
)
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
            if environment.permission(self._agent.role, name) is not Permission.DENY
        ]

    def is_idempotent(self, name: str) -> bool:
        tool = self._environment.tools.get(name)
        return tool is None or tool.idempotent

    def _has_effects(self, name: str) -> bool:
        """Whether a tool may change something outside the database."""
        return name not in LOOKING and not isinstance(self._environment.tools.get(name), StoreTool)

    async def carry_out(self, calls: list[Call], turn: int) -> None:
        """Do every call that has not ended, until a pause is asked for.

        Neighbouring calls that only look run side by side.
        """
        waiting = [call for call in calls if call.status in (ToolCallStatus.PENDING, ToolCallStatus.RUNNING)]
        while waiting and self._control.pause_reason is None:
            batch = [waiting.pop(0)]
            while waiting and self._side_by_side(batch[-1]) and self._side_by_side(waiting[0]):
                batch.append(waiting.pop(0))
            results = await asyncio.gather(*(self._one(call, turn) for call in batch), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    def _side_by_side(self, call: Call) -> bool:
        """Whether it may run beside its neighbours: it only looks, and needs no answer."""
        return (
            call.name in LOOKING
            and self._environment.permission(self._agent.role, call.name) is Permission.ALLOW
        )

    async def _one(self, call: Call, turn: int) -> ToolResult:
        environment = self._environment
        began = environment.clock.now()
        if call.name not in environment.tools:
            await self._control.abandonable(environment.look_for(call.name))
        tool, names = environment.tools.get(call.name), self.names
        if tool is None or call.name not in names:
            offered = ", ".join(names)
            refused = ToolResult(f"there is no tool {call.name!r}; there are {offered}", is_error=True)
            return await self._end(call, refused, ToolCallStatus.ERROR, began)
        invalid = _problem(tool.spec.input_schema, call.arguments)
        if invalid:
            refused = ToolResult(
                f"the input cannot be used: {invalid}. Correct it and call again", is_error=True
            )
            return await self._end(call, refused, ToolCallStatus.ERROR, began)
        if marked := mark_fault(
            call.name, call.arguments
        ):  # before a person is asked for a call that cannot succeed
            refused = ToolResult(f"{call.name}: {marked}", is_error=True)
            return await self._end(call, refused, ToolCallStatus.ERROR, began)
        permission = environment.permission(self._agent.role, call.name)
        if permission is Permission.DENY:
            refused = ToolResult(
                "denied: the configuration denies it. Go on without it, or another way", is_error=True
            )
            return await self._end(call, refused, ToolCallStatus.DENIED, began)
        changed, result = "", ToolResult(SUBJECT_CHANGED, is_error=True)
        for _ in range(MOST_CHANGES):
            permit = await self._approvals.permit(call, permission, changed)
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
            ran = await self._run_outside(tool, call, context)
            if ran is None:
                unknown = _OUTCOME_UNKNOWN_BY_HOST
                return await self._end(
                    call, ToolResult(unknown, is_error=True), ToolCallStatus.UNKNOWN, began
                )
            result = ran
            if not (result.is_error and result.content == SUBJECT_CHANGED):
                break
            changed = "the file changed just before it was written, after the question was answered"
        return await self._end(
            call, result, ToolCallStatus.ERROR if result.is_error else ToolCallStatus.DONE, began
        )

    async def _run_outside(self, tool: OutsideTool, call: Call, context: ToolContext) -> ToolResult | None:
        """Run a call; where the machine ran out of something, again after a wait. None: its outcome is
        unknown.

        Raises:
            HostFault: the machine is short of it still. The call is `pending`.
        """
        environment = self._environment
        for wait_seconds in (*host_faults.RETRY_SECONDS, None):
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
                return None
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
        self._control.waits(True)
        try:
            await self._control.abandonable(clock.sleep(seconds))
        finally:
            self._control.waits(False)

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
        row = environment.store.one(
            "SELECT current_plan_id FROM sessions WHERE id = ?", (environment.session_id,)
        )
        return ToolContext(
            session_id=environment.session_id,
            agent_id=self._agent.id,
            task_id=self._agent.task_id,
            plan_id=row[0] if row else None,
            workspace=environment.workspace,
            now=environment.clock.now(),
            tool_call_id=str(call.id),
            subject_digest=permit.subject_digest,
            program=permit.program,
        )


def _problem(schema: dict[str, Any], arguments: Any) -> str | None:
    from watchkeeper.agents.tools.validate import validate_arguments

    if not isinstance(arguments, dict):
        return "it is no JSON object"
    return validate_arguments(schema, arguments)


def _preview(content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return text[:200]
