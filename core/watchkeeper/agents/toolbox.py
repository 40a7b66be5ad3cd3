"""Running tool calls: permission, intent before effect, result after; and recovery after a crash."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from watchkeeper.agents.approvals import BY_CONFIGURATION, Approvals, Permit
from watchkeeper.agents.calls import assert_mine, mark_unknown
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.limits import AgentControl
from watchkeeper.agents.roles import Role
from watchkeeper.agents.tools.contract import (
    OutsideTool,
    Permission,
    StoreTool,
    Tool,
    ToolContext,
    ToolResult,
    validate_arguments,
)
from watchkeeper.agents.tools.mcp import MCP_TOOL
from watchkeeper.agents.tools.workers import mark_fault
from watchkeeper.records import errors
from watchkeeper.records.errors import HostFault, raising_host_faults
from watchkeeper.records.messages import Block, ToolSpec
from watchkeeper.records.premises import Premises
from watchkeeper.records.states import AgentStatus, ToolCallStatus
from watchkeeper.records.text import cut
from watchkeeper.records.tool_inputs import (
    FILE_CHANGES,
    PREMISES_CHANGED,
    SUBJECT_CHANGED,
    edited_places,
)
from watchkeeper.store import agents, artifacts
from watchkeeper.store.agents import Agent, Call
from watchkeeper.store.commands import (
    editable,
    unified_diff,
)
from watchkeeper.store.database import protected_files
from watchkeeper.store.faultpoints import reach
from watchkeeper.store.transaction import Transaction

_NOT_SO_ANY_MORE = {
    SUBJECT_CHANGED: "the file changed after the approval, just before the write",
    PREMISES_CHANGED: "not run: its shell, folder or script changed after the approval",
}
"""Answers of a worker to what a person approved, and why the person is asked again."""
NOT_AFTER_DENIAL = "[not run] An earlier call in this reply was denied, so this one did not run."
_SHORTAGE = "The machine ran out of memory or another resource while this call was running."
LOOKING = frozenset({"list_folder", "read", "glob", "grep"})
"""Tools that change nothing: neighbours in a turn run side by side. Others run in the model's order."""

MOST_OF_AN_EDIT = 4_000
"""Characters of a person's edit that the model is shown; of a longer one, the difference."""

MOST_CHANGES = 5
"""As often a question is put again because the file changed between the answer and the write."""

SHORTEST_KEPT = 8_000
"""Characters of a result that always stay in the context, however small the window."""


CALL_TOOL = ToolSpec(
    "call_tool",
    "Call a tool that is not in this list. When an MCP server starts late, a message names its tools.",
    {
        "type": "object",
        "properties": {"tool": {"type": "string"}, "input": {"type": "object"}},
        "required": ["tool", "input"],
        "additionalProperties": False,
    },
)
"""Offered while an MCP server is expected: it calls tools that arrive later, because the list of tools never changes."""


def named_call(block: Block) -> Block:
    """A call of a tool, also where the model made it with `CALL_TOOL`."""
    given = block.get("input")
    if block.get("name") != CALL_TOOL.name or not isinstance(given, dict):
        return block
    return block | {"name": str(given.get("tool", "")), "input": given.get("input")}


class Toolbox:
    """The tools of one agent, and the carrying out of its calls."""

    def __init__(self, environment: Environment, agent: Agent, control: AgentControl) -> None:
        self._environment = environment
        self._agent = agent
        self._control = control
        self._approvals = Approvals(environment, agent, control, self._has_effects)
        self._offered: list[ToolSpec] | None = None
        self._result_characters = max(SHORTEST_KEPT, min(100_000, agent.context_limit))

    @property
    def names(self) -> list[str]:
        """The tools that its role may call, as far as they are there: those of an MCP server may come
        later."""
        tools = self._environment.tools
        return [name for name in self._environment.tools_of(self._agent.role) if name in tools]

    def specs(self) -> list[ToolSpec]:
        """What the model is offered; a tool that is denied to the role is left out. The tools of MCP servers are
        those that answered when the agent was created (`agents.later`)."""
        own = [one for one in self._permitted_specs() if not one.name.startswith(MCP_TOOL)]
        return [*own, *self.offered()]

    def offered(self) -> list[ToolSpec]:
        """The tools of MCP servers that the agent is offered from its beginning to its end."""
        if self._offered is None:
            environment = self._environment
            stored = agents.load_tools(environment.store, self._agent.id)
            self._offered = self.mcp_specs(environment.mcp.first) if stored is None else stored
        return self._offered

    def offer(self, role: Role) -> list[ToolSpec]:
        """What a new agent is offered of MCP servers: the tools of those that answer now, and `CALL_TOOL` if others
        are awaited and its role may call some."""
        patterns = [MCP_TOOL] if role.tools is None else role.tools
        may_come = self._environment.mcp.awaited and any(one.startswith((MCP_TOOL, "*")) for one in patterns)
        self._offered = [*self.mcp_specs(), *([CALL_TOOL] if may_come else [])]
        return self._offered

    def mcp_specs(self, among: Collection[str] | None = None) -> list[ToolSpec]:
        """The tools of MCP servers that the agent may call now."""
        return [
            one
            for one in self._permitted_specs()
            if one.name.startswith(MCP_TOOL) and (among is None or one.name in among)
        ]

    def _permitted_specs(self) -> list[ToolSpec]:
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

        Neighbouring calls that only read run side by side. After a call that was denied, the rest of the reply does not run.
        """
        waiting = [call for call in calls if call.status in (ToolCallStatus.PENDING, ToolCallStatus.RUNNING)]
        while waiting and self._control.pause_reason is None:
            if agents.was_denied(self._environment.store, self._agent.id, calls[0].id):
                now, skipped = self._environment.clock.now(), ToolResult(NOT_AFTER_DENIAL, is_error=True)
                for call in waiting:
                    await self._end(call, skipped, ToolCallStatus.CANCELLED, now)
                return
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
            there = f"Did you mean {meant[0]}? Available" if meant else "Available"
            return (
                f"no tool {call.name!r}. {there} tools: {', '.join(names)}",
                ToolCallStatus.ERROR,
            )
        if invalid := validate_arguments(tool.spec.input_schema, call.arguments):
            return f"invalid input: {invalid}. Correct it and call again", ToolCallStatus.ERROR
        if marked := mark_fault(call.name, call.arguments):
            return f"{call.name}: {marked}", ToolCallStatus.ERROR
        if environment.permission(call.name) is Permission.DENY:
            return (
                BY_CONFIGURATION,
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
        files = []
        if call.name in FILE_CHANGES:
            folder = environment.folder_of(self._agent.task_id)
            files = await asyncio.to_thread(edited_places, folder, call.arguments)
        show = partial(environment.live.show, self._agent.id, "waiting")
        async with environment.file_turns.hold(files, self._agent.id, self._control, show):
            return await self._permitted(tool, call, permission, began)

    async def _permitted(self, tool: Tool, call: Call, permission: Permission, began: float) -> ToolResult:
        """Run a call that may run, once a person has answered where one must."""
        environment = self._environment
        changed, result, again = "", ToolResult(""), False
        before: Premises | None = None
        for _ in range(MOST_CHANGES):
            permit = await self._approvals.permit(call, permission, changed, result.question, before)
            call = permit.call
            if not permit.allowed:
                refused = ToolResult(permit.reason, is_error=True)
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
            if not (result.is_error and result.content in _NOT_SO_ANY_MORE):
                break
            changed, before = _NOT_SO_ANY_MORE[str(result.content)], permit.premises
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
            text = text[:MOST_OF_AN_EDIT] + f"\n[… {len(text) - MOST_OF_AN_EDIT} characters omitted]"
        head = f"[edited] A person changed the input of this call before approving it. This ran instead:\n{text}\n[its result]\n"
        if isinstance(result.content, str):
            return ToolResult(head + result.content, result.is_error, result.effects)
        return ToolResult([{"type": "text", "text": head}, *result.content], result.is_error, result.effects)

    def _record(
        self, tx: Transaction, call: Call, result: ToolResult, status: ToolCallStatus, began: float
    ) -> None:
        agents.end_tool_call(tx, call.id, status, result.content, result.is_error, began)
        if agents.status_of(tx, self._agent.id) is AgentStatus.WAITING:
            # An earlier host asked about the call, and it has ended without the answer: its shell was lost.
            agents.move(tx, self._agent.id, AgentStatus.WORKING)
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
        name = f"tool-output/{call.name}/{call.id}"
        artifacts.save_output(
            tx,
            name=name,
            data=str(result.effects.get("whole_output") or text).encode("utf-8", "replace"),
            media_type="text/plain",
            agent_id=self._agent.id,
            task_id=self._agent.task_id,
            kind="tool_output",
        )
        head, tail = text[: self._result_characters * 3 // 5], text[-self._result_characters // 5 :]
        cut = f"\n[… {len(text) - len(head) - len(tail)} characters omitted; read the full text with read_artifact, name {name} …]\n"
        return ToolResult(head + cut + tail, result.is_error, result.effects)

    def _context(self, call: Call, permit: Permit) -> ToolContext:
        environment = self._environment
        return ToolContext(
            session_id=environment.session_id,
            agent_id=self._agent.id,
            task_id=self._agent.task_id,
            workspace=environment.folder_of(self._agent.task_id),
            tool_call_id=str(call.id),
            protected=protected_files(environment.store.path)
            if call.name == "save_artifact"
            else frozenset(),
            redact=environment.redact,
            subject_digest=permit.subject_digest,
            premises=permit.premises if call.name == "bash" else None,
            pipeline=permit.pipeline,
        )


def _to_verify(result: ToolResult) -> ToolResult:
    """The result that the model receives for a call with an unknown outcome."""
    head = "[interrupted, outcome unknown] "
    tail = "\nIt may have taken effect, fully or partly. Verify before you repeat it."
    if isinstance(result.content, str):
        return replace(result, content=f"{head}{result.content}{tail}")
    return replace(result, content=[{"type": "text", "text": head + tail.strip()}, *result.content])


def _preview(content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return cut(text, 200)
