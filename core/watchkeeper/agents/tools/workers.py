"""Where built-in tools run: worker processes that cannot block, crash, outlive or outgrow the host.

File tools share a few workers, one call at a time each. Each agent that calls `bash` gets a worker of its
own, whose shell keeps its state between calls. A worker is killed, with all that it started, when its call
takes too long or is cancelled, when it breaks its protocol, and on `release` and `aclose`; the next call gets
a new one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from watchkeeper.agents.tools.child import Child, ChildFailed
from watchkeeper.agents.tools.containment import Containment
from watchkeeper.agents.tools.contract import ProgramRun, ToolContext, ToolResult
from watchkeeper.agents.tools.output import RESULT_CHARACTERS, is_content, shorten_content
from watchkeeper.agents.tools.processes import folder_of_shell
from watchkeeper.records.command_pattern import program_path
from watchkeeper.records.host_faults import HostFault
from watchkeeper.store.placement import database_files, lease_folder

DEFAULT_TIMEOUT_SECONDS = 120.0
SHELL_RESTARTED = "[your shell was restarted: its folder, variables and background jobs are gone]\n"


class _Shell:
    """One agent's shell: its worker, once there is one, and whose turn it is."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self.turn = asyncio.Lock()
        self.lost = False
        """A shell with state ended since the agent was last told."""


class WorkerPool:
    """Runs built-in tools for all agents of one host, in one workspace.

    Args:
        size: workers for file tools, and so how many run at a time.
        workspace: the folder that file tools are confined to, and shells start in.
        environ: the host's variables, of which an allowlist is handed down.
        database_path: the session's database, whose files no file tool may open.
        containment: holds the workers, and all that they start.
        timeout_seconds: how long one call may run; waiting for a free worker does not count.
        most_shells: idle shells beyond this many are closed, the one unused the longest first.
    """

    def __init__(
        self,
        size: int,
        workspace: Path,
        environ: Mapping[str, str],
        *,
        database_path: Path | None = None,
        containment: Containment | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        most_shells: int = 8,
    ) -> None:
        self._workspace = workspace
        self._database_path = database_path
        self._containment = containment
        self._environ = dict(environ)
        self._timeout = timeout_seconds
        self._most_shells = most_shells
        self._free = asyncio.Semaphore(max(1, size))
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        self._place: dict[Child, object] = {}
        """Of each file worker, the folder that it may write to: that of the workspace's name as it was
        started."""
        self._shells: OrderedDict[str, _Shell] = OrderedDict()
        self._closed = False

    @property
    def timeout_seconds(self) -> float:
        return self._timeout

    async def run_file_tool(
        self, name: str, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolResult:
        """Run a file tool in any free worker. Never raises for what a tool does.

        Raises:
            HostFault: the machine ran out of something.
        """
        async with self._free:
            try:
                child = await self._file_worker()
            except ChildFailed as failure:
                return _failed(name, failure)
            self._busy.add(child)
            try:
                result = await self._call(child, name, arguments, context, self._timeout)
            finally:
                self._busy.discard(child)
                if child.alive and not self._closed:
                    self._idle.append(child)
                else:
                    self._place.pop(child, None)
            return result

    async def run_shell(
        self, arguments: Mapping[str, Any], context: ToolContext, timeout_seconds: float
    ) -> ToolResult:
        """Run a command in the agent's own shell. Never raises for what a command does.

        Raises:
            HostFault: the machine ran out of something before the command began, or while its output was
                read.
        """
        shell = self._shells.setdefault(context.agent_id, _Shell())
        self._shells.move_to_end(context.agent_id)
        async with shell.turn:
            if shell.child is not None and not shell.child.alive:
                await self._end_shell(shell)
            try:
                child = shell.child
                if child is None:
                    child = shell.child = await self._start("shell", context.agent_id)
                    await self._close_idle_shells()
            except ChildFailed as failure:
                return _failed("bash", failure)
            told_lost, shell.lost = shell.lost, False
            try:
                result = await self._call(
                    child, "bash", arguments, context, min(timeout_seconds, self._timeout)
                )
            finally:
                if not child.alive:
                    await self._end_shell(shell)
        if shell.lost and result.is_error and isinstance(result.content, str):
            shell.lost = False
            return ToolResult(f"{result.content}\nThe next command starts a new shell.", True, result.effects)
        if told_lost and isinstance(result.content, str):
            return ToolResult(SHELL_RESTARTED + result.content, result.is_error, result.effects)
        return result

    def shell_folder(self, agent_id: str) -> str | None:
        """The folder that the agent's shell is in: the workspace where it has none yet, None where it cannot
        be known."""
        shell = self._shells.get(agent_id)
        if shell is None or shell.child is None or not shell.child.alive:
            return str(self._workspace)
        return folder_of_shell(shell.child.pid)

    def program(self, agent_id: str, words: Sequence[str]) -> ProgramRun | None:
        """What a command of these words would run outside the agent's shell, in its folder; None where that
        is not certain."""
        folder = self.shell_folder(agent_id)
        if folder is None:
            return None
        path = program_path(words[0], folder, str(self._workspace), self._environ.get("PATH", ""))
        return ProgramRun(path, tuple(words), folder) if path is not None else None

    async def release(self, agent_id: str) -> None:
        """End the agent's shell and all that it started: the agent is done, paused or cancelled."""
        shell = self._shells.get(agent_id)
        if shell is None:
            return
        await self._end_shell(shell)
        if not shell.lost:
            self._shells.pop(agent_id, None)

    async def aclose(self) -> None:
        """End every worker and all that they started. Calls under way come back as errors."""
        self._closed = True
        children = [
            *self._idle,
            *self._busy,
            *(shell.child for shell in self._shells.values() if shell.child),
        ]
        self._idle.clear()
        await asyncio.gather(*(child.kill() for child in children))

    async def _call(
        self,
        child: Child,
        name: str,
        arguments: Mapping[str, Any],
        context: ToolContext,
        timeout_seconds: float,
    ) -> ToolResult:
        request: dict[str, Any] = {"tool": name, "arguments": dict(arguments), "agent": context.agent_id}
        if context.subject_digest:
            request["subject_digest"] = context.subject_digest
        if context.program is not None:
            run = context.program
            request["program"] = {"path": run.path, "words": list(run.words), "folder": run.folder}
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await child.call(request)
        except TimeoutError:
            await child.kill()
            return ToolResult(
                f"{name}: stopped after {timeout_seconds:g} s, with all that it had started", is_error=True
            )
        except ChildFailed as failure:
            await child.kill()
            return _failed(name, failure)
        except asyncio.CancelledError:
            await child.kill()
            raise
        if not is_content(answer.get("content")):
            await child.kill()
            return _failed(name, "the tool worker gave no valid answer and was killed")
        return result_of(answer)

    async def _file_worker(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.alive and self._place.get(child) == _identity(self._workspace):
                return child
            self._place.pop(child, None)
            await child.kill()
        place = _identity(self._workspace)
        child = await self._start("files", "")
        self._place[child] = place
        return child

    async def _start(self, mode: str, agent_id: str) -> Child:
        if self._closed:
            raise ChildFailed("the tool workers are closed")
        config = {"mode": mode, "workspace": str(self._workspace), "database_files": [], "lease_folder": ""}
        if self._database_path is not None:
            config["database_files"] = [str(name) for name in database_files(self._database_path)]
            config["lease_folder"] = str(lease_folder(self._database_path))
        try:
            child = await Child.start(config, self._environ, agent_id, self._containment)
        except HostFault:
            if not self._idle:
                raise
            idle, self._idle = self._idle, []
            await asyncio.gather(*(one.kill() for one in idle))  # what they hold may be enough
            child = await Child.start(config, self._environ, agent_id, self._containment)
        if self._closed:
            await child.kill()
            raise ChildFailed("the tool workers are closed")
        return child

    async def _end_shell(self, shell: _Shell) -> None:
        child, shell.child = shell.child, None
        if child is not None:
            shell.lost = True
            await child.kill()

    async def _close_idle_shells(self) -> None:
        live = [shell for shell in self._shells.values() if shell.child is not None]
        for shell in live[: max(0, len(live) - self._most_shells)]:
            if not shell.turn.locked():
                await self._end_shell(shell)


def result_of(answer: Mapping[str, Any]) -> ToolResult:
    """An answer as a result whose text is bounded; the whole text, as far as the worker kept it, is in
    `effects`."""
    content = answer["content"]
    shown = shorten_content(content, RESULT_CHARACTERS)
    effects = {"whole_output": content} if isinstance(content, str) and shown != content else {}
    return ToolResult(shown, is_error=bool(answer.get("is_error")), effects=effects)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _failed(name: str, why: ChildFailed | str) -> ToolResult:
    return ToolResult(f"{name}: {why}", is_error=True)
