"""The built-in tools, and where they run: worker processes that cannot block, crash, outlive or outgrow the host.

File tools share a few workers, one call at a time each. Each agent that calls `bash` gets a worker of its
own, whose shell keeps its state between calls. A worker is killed, with all that it started, when its call
takes too long or is cancelled, when it breaks its protocol, and on `release` and `aclose`; the next call gets
a new one. An idle shell that is closed to stay within the limits, or for a pause, is restored as far as it can be.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from watchkeeper.agents.tools.child import Child, ChildFailed, StartWorker, ToolWorker
from watchkeeper.agents.tools.containment import Containment
from watchkeeper.agents.tools.contract import (
    DEFAULT_TIMEOUT_SECONDS,
    RESULT_CHARACTERS,
    SAVE_SHELL,
    SHELL_CLOSED,
    SHELL_CLOSED_NOT_RUN,
    SHELL_LOST,
    SHELL_NEW,
    Permission,
    PipelineRun,
    Tool,
    ToolContext,
    ToolResult,
    shorten_content,
)
from watchkeeper.agents.tools.folder import LIST_FOLDER
from watchkeeper.agents.tools.sandbox import DoesNotHold, make_folder, secret_paths
from watchkeeper.records.errors import BadInput, HostFault
from watchkeeper.records.messages import ToolSpec
from watchkeeper.records.redact import MARK
from watchkeeper.records.sandboxes import OFF
from watchkeeper.records.tool_inputs import PREMISES_CHANGED, Pipeline, program_path, values_inside
from watchkeeper.store.database import database_files
from watchkeeper.store.lease import lease_folder
from watchkeeper.store.place import Place, config_folder

# --- One agent's shell --------------------------------------------------------------------------------------

SAVE_SECONDS = 10.0
MOST_NAMES = 20
"""How many names of a kind a notice lists."""


@dataclass(frozen=True, slots=True)
class _ClosedShell:
    """A shell that the host closed, for the next one. It is kept in memory alone: variables hold secrets."""

    folder: str
    variables: Mapping[str, str] = field(repr=False)
    identity: str
    """That of the shell, if the next one is the same in all that it had; else empty."""
    jobs: tuple[str, ...]
    """The command lines of its background jobs, which ended with it."""
    gone: Mapping[str, Sequence[str]]
    """What cannot be restored: kind → names."""
    is_reported: bool = False
    """The agent knows of it."""

    @property
    def has_folder(self) -> bool:
        """Whether its folder still exists."""
        return os.path.isdir(self.folder)

    def reported(self, workspace: Path) -> _ClosedShell:
        """What remains of it once the agent knows what is gone."""
        folder = self.folder if self.has_folder else str(workspace)
        return _ClosedShell(folder, self.variables, identity="", jobs=(), gone={}, is_reported=True)

    def notice(self, workspace: Path) -> str:
        """What the agent must know."""
        has_folder = self.has_folder
        parts = [SHELL_CLOSED.format(folder=self.folder if has_folder else workspace)]
        if not has_folder:
            parts.append(f"The previous shell's folder, {self.folder}, no longer exists.")
        if self.jobs:
            parts.append(f"Its background jobs have ended: {_listed(self.jobs, '; ')}.")
        if self.gone:
            kinds = (f"{kind} ({_listed(names, ', ')})" for kind, names in self.gone.items())
            parts.append(f"Not restored: {', '.join(kinds)}.")
        return " ".join(parts).encode("utf-8", "replace").decode()


def _listed(names: Sequence[str], separator: str) -> str:
    more = len(names) - MOST_NAMES
    return separator.join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


class _Shell:
    """One agent's shell: its worker, once there is one, and whose turn it is."""

    def __init__(self) -> None:
        self.child: ToolWorker | None = None
        self.turn = asyncio.Lock()
        self.lost = False
        """A shell with state has ended since the last report to the agent."""
        self.closed: _ClosedShell | None = None
        """The shell that the next one restores."""
        self.notice = ""
        """What the answer to the agent's next command begins with."""

    @property
    def identity(self) -> str:
        """Which process it is; empty where there is none. A shell that was closed, and can be restored in all that it
        had, keeps its own until the next one."""
        if self.child is None or not self.child.alive:
            return self.closed.identity if self.closed is not None else ""
        return self.child.shell_identity()

    async def end(self) -> None:
        """End it, with what it holds."""
        child, self.child = self.child, None
        if child is not None or self.closed is not None:
            self.lost, self.closed, self.notice = True, None, ""
        if child is not None:
            await child.kill()

    async def close(self) -> None:
        """End it, and keep what the next one can restore. It must be idle."""
        async with self.turn:
            child = self.child
            if child is None:
                return
            identity, jobs = self.identity, tuple(filter(None, child.shell_jobs()))
            try:
                async with asyncio.timeout(SAVE_SECONDS):
                    answer = await child.call({"tool": SAVE_SHELL, "arguments": {}})
                saved = json.loads(answer["content"])  # an error is a line of text
            except (TimeoutError, ChildFailed, HostFault, ValueError):
                await self.end()
                return
            except BaseException:
                await self.end()
                raise
            if saved is not None:
                gone = saved.get("gone", {})
                same = "" if jobs or gone else identity
                self.closed = _ClosedShell(saved["folder"], saved["variables"], same, jobs, gone)
            self.child = None
            await child.kill()


class _Shells:
    """The shells of all agents of a run, in all its folders; the one unused the longest first."""

    def __init__(self, most: int, most_idle_bytes: int | None) -> None:
        self._most = most
        self._most_idle_bytes = most_idle_bytes
        self._by_owner: OrderedDict[tuple[Path, str], _Shell] = OrderedDict()
        self._closing = asyncio.Lock()

    def get(self, workspace: Path, agent_id: str) -> _Shell | None:
        return self._by_owner.get((workspace, agent_id))

    def use(self, workspace: Path, agent_id: str) -> _Shell:
        """An agent's shell there, as the one used last."""
        shell = self._by_owner.setdefault((workspace, agent_id), _Shell())
        self._by_owner.move_to_end((workspace, agent_id))
        return shell

    def children(self) -> list[ToolWorker]:
        return [shell.child for shell in self._by_owner.values() if shell.child is not None]

    async def make_room(self, needed: int, spared: _Shell) -> None:
        """Close idle shells while there are more than the limits allow, with `needed` more ones; those with background
        jobs last, and never `spared`."""
        async with self._closing:
            live = [shell for shell in self._by_owner.values() if shell.child is not None]
            idle = [shell for shell in live if shell is not spared and not shell.turn.locked()]
            count = len(live) + needed - self._most
            sizes = self._bytes_of(idle)
            excess = sum(sizes.values()) - self._most_idle_bytes if self._most_idle_bytes is not None else 0
            for shell in sorted(idle, key=_has_jobs) if count > 0 or excess > 0 else ():
                if (count > 0 or excess > 0) and not shell.turn.locked():
                    await shell.close()
                    count, excess = count - 1, excess - sizes.get(shell, 0)

    def _bytes_of(self, shells: Sequence[_Shell]) -> dict[_Shell, int]:
        """The memory of each; of none where it is not limited, or the system cannot tell."""
        if self._most_idle_bytes is None:
            return {}
        sizes = ((shell, shell.child.memory_bytes()) for shell in shells if shell.child is not None)
        return {shell: size for shell, size in sizes if size is not None}

    async def release(self, agent_id: str, *, continues: bool) -> None:
        """End all shells of an agent; `continues`: the next ones restore them."""
        for owner, shell in list(self._by_owner.items()):
            if owner[1] != agent_id:
                continue
            if continues and not shell.turn.locked():
                await shell.close()
            else:
                await shell.end()
            if not shell.lost and shell.closed is None:
                self._by_owner.pop(owner, None)


def _has_jobs(shell: _Shell) -> bool:
    return shell.child is not None and bool(shell.child.shell_jobs())


class WorkerPool:
    """Runs built-in tools for all agents of one host, in one workspace and (`at`) in worktrees of it.

    Args:
        size: workers for file tools, and so how many run at a time.
        workspace: the folder that file tools are confined to, and shells start in.
        environ: the host's variables, of which an allowlist is handed down.
        database_path: the session's database, whose files no file tool may open.
        containment: holds the workers, and all that they start.
        timeout_seconds: how long one call may run; waiting for a free worker does not count.
        most_shells: idle shells beyond this many are closed, the one unused the longest first; `size` by default.
        most_idle_shell_bytes: the same for idle shells, except the last, that hold more memory together; None: no limit.
        sandbox: what confines shells (`records.sandboxes`).
        start: starts a worker.
    """

    def __init__(
        self,
        size: int,
        workspace: Path,
        environ: Mapping[str, str],
        *,
        database_path: Place | None = None,
        containment: Containment | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        most_shells: int | None = None,
        most_idle_shell_bytes: int | None = None,
        sandbox: str = OFF,
        start: StartWorker = Child.start,
    ) -> None:
        self._workspace = workspace
        self._start_worker = start
        self._database_path = database_path
        self._containment = containment
        self._environ = dict(environ)
        self._timeout = timeout_seconds
        self._sandbox = sandbox
        self._sandbox_folder: Path | None = None
        self._free = asyncio.Semaphore(max(1, size))
        self._idle: list[ToolWorker] = []
        self._busy: set[ToolWorker] = set()
        self._shells = _Shells(most_shells or max(1, size), most_idle_shell_bytes)
        self._closed = False
        self._others: dict[Path, WorkerPool] = {}

    def at(self, workspace: Path) -> WorkerPool:
        """The pool whose tools work in that folder: this one, or one for a worktree."""
        if workspace == self._workspace:
            return self
        if workspace not in self._others:
            other = self._others[workspace] = WorkerPool(
                2, workspace, self._environ, database_path=self._database_path, containment=self._containment,
                timeout_seconds=self._timeout, sandbox=self._sandbox, start=self._start_worker,
            )  # fmt: skip
            other._shells = self._shells
        return self._others[workspace]

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
            except ChildFailed as failure:
                return _failed(name, failure)
            finally:
                self._busy.discard(child)
                if child.alive and not self._closed:
                    self._idle.append(child)
            return result

    async def run_shell(
        self, arguments: Mapping[str, Any], context: ToolContext, timeout_seconds: float
    ) -> ToolResult:
        """Run a command in the agent's own shell. Never raises for what a command does. If the shell was lost since
        the agent's last command, the answer says so, and the command does not run.

        Raises:
            HostFault: the machine ran out of something before the command began, or while its output was
                read.
        """
        shell = self._shells.use(self._workspace, context.agent_id)
        if shell.child is None:
            await self._shells.make_room(1, shell)
        async with shell.turn:
            if arguments.get("restart"):
                shell.lost, shell.closed = False, None
            elif (unusable := await self.take_lost_shell(context.agent_id)) is not None:
                return unusable
            premises = context.premises
            if premises is not None and premises.shell != shell.identity:
                if shell.child is not None and not shell.identity:  # it has just died
                    await shell.end()
                lost = await self.take_lost_shell(context.agent_id)
                return lost or ToolResult(PREMISES_CHANGED, is_error=True)
            try:
                child = shell.child
                if child is None:
                    closed = shell.closed
                    child = shell.child = await self._start("shell", context.agent_id, closed)
                    if closed is not None and not closed.is_reported:
                        shell.notice = f"[{closed.notice(self._workspace)}]\n"
                    shell.closed = None
            except ChildFailed as failure:
                return _failed("bash", failure)
            result: ToolResult | None = None
            try:
                result = await self._call(
                    child, "bash", arguments, context, min(timeout_seconds, self._timeout)
                )
            except ChildFailed:
                pass  # the shell ended before it had the command
            finally:
                if not child.alive:
                    await shell.end()
            if result is None:
                return await self.take_lost_shell(context.agent_id) or _failed("bash", "the tool worker died")
            notice, shell.notice = shell.notice, ""
            if result.content != SHELL_LOST.format(folder=self._workspace):
                result = replace(result, content=f"{notice}{result.content}")
            if shell.lost and result.is_error:
                shell.lost = False
                result = replace(result, content=f"{result.content}\nThe next command starts a new shell.")
        await self._shells.make_room(0, shell)
        return result

    def knows_shell(self, agent_id: str) -> bool:
        """Whether the agent has called `bash` here since this host began."""
        return self._shells.get(self._workspace, agent_id) is not None

    def note_lost_shell(self, agent_id: str) -> None:
        """The agent had a shell that has ended, with an earlier host."""
        self._shells.use(self._workspace, agent_id).lost = True

    def begin_anew(self, agent_id: str) -> str:
        """Note that another result reports the lost shell to the agent; returns the text to add."""
        self._shells.use(self._workspace, agent_id).lost = False
        return SHELL_NEW.format(folder=self._workspace)

    async def take_lost_shell(self, agent_id: str) -> ToolResult | None:
        """The answer to the agent's first command after its shell was lost, or was closed with something that cannot
        be restored; once. None where the command may run."""
        shell = self._shells.get(self._workspace, agent_id)
        if shell is None:
            return None
        if shell.child is not None and not shell.child.alive:
            await shell.end()
        if shell.lost:
            shell.lost = False
            return ToolResult(SHELL_LOST.format(folder=self._workspace), is_error=True)
        closed = shell.closed
        if closed is None or (not closed.gone and closed.has_folder):
            return None
        notice, shell.closed = closed.notice(self._workspace), closed.reported(self._workspace)
        return ToolResult(SHELL_CLOSED_NOT_RUN.format(notice=notice), is_error=True)

    async def check_sandbox(self) -> None:
        """Confine a shell, try there what must fail, and end it.

        Raises:
            BadInput: nothing on this machine confines it.
            HostFault: the machine ran out of something.
        """
        if self._sandbox == OFF:
            return
        try:
            child = await self._start("shell", "")
        except ChildFailed as failure:
            why = str(failure).rpartition(": ")[2]
            raise BadInput(f"cannot confine bash here (sandbox = {self._sandbox}): {why}") from None
        await child.kill()

    def shell_folder(self, agent_id: str) -> str | None:
        """The folder that the agent's shell is in, or will be in; None where it cannot be known."""
        shell = self._shells.get(self._workspace, agent_id)
        if shell is None or shell.child is None or not shell.child.alive:
            closed = shell.closed if shell is not None else None
            return closed.folder if closed is not None else str(self._workspace)
        return shell.child.shell_folder()

    def shell_identity(self, agent_id: str) -> str:
        """Which process the agent's shell is; empty where it has none."""
        shell = self._shells.get(self._workspace, agent_id)
        return shell.identity if shell is not None else ""

    def pipeline(self, agent_id: str, parts: Pipeline) -> PipelineRun | None:
        """What these parts would run outside the agent's shell, in its folder; None where that is not certain, or a
        variable names a path outside the workspace."""
        folder, workspace = self.shell_folder(agent_id), str(self._workspace)
        if folder is None or not values_inside(parts, folder, workspace):
            return None
        search_path = self._environ.get("PATH", "")
        paths = [program_path(part.words[0], folder, workspace, search_path) for part in parts]
        found = tuple(path for path in paths if path is not None)
        return PipelineRun(parts, found, folder) if len(found) == len(parts) else None

    async def release(self, agent_id: str, *, continues: bool = False) -> None:
        """End the agent's shells and all that they started: the agent is done or cancelled, or it is paused and
        `continues` later."""
        await self._shells.release(agent_id, continues=continues)

    async def aclose(self) -> None:
        """End every worker and all that they started. Calls under way come back as errors."""
        self._closed = True
        children = [*self._idle, *self._busy, *self._shells.children()]
        self._idle.clear()
        await asyncio.gather(
            *(child.kill() for child in children), *(one.aclose() for one in self._others.values())
        )
        if self._sandbox_folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._sandbox_folder, ignore_errors=True)

    async def _call(
        self,
        child: ToolWorker,
        name: str,
        arguments: Mapping[str, Any],
        context: ToolContext,
        timeout_seconds: float,
    ) -> ToolResult:
        """Raises ChildFailed where the worker ended before it had the call."""
        request: dict[str, Any] = {"tool": name, "arguments": dict(arguments), "agent": context.agent_id}
        if context.subject_digest:
            request["subject_digest"] = context.subject_digest
        if context.premises is not None:
            files = {path: state.digest for path, state in context.premises.files.items()}
            request["premises"] = {"folder": context.premises.folder, "files": files}
        if context.pipeline is not None:
            run = context.pipeline
            programs = [
                {
                    "path": path,
                    "words": part.words,
                    "variables": dict(part.variables),
                    "joins_errors": part.joins_errors,
                }
                for path, part in zip(run.paths, run.parts, strict=True)
            ]
            request["pipeline"] = {"folder": run.folder, "programs": programs}
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await child.call(request)
        except TimeoutError:
            await child.kill()
            return ToolResult(
                f"{name}: stopped after {timeout_seconds:g} s, along with all processes it started",
                is_error=True,
            )
        except (ChildFailed, asyncio.CancelledError) as failure:
            await child.kill()
            if isinstance(failure, ChildFailed) and failure.began:
                return _failed(name, failure, began=True)
            raise
        return result_of(answer)

    async def _file_worker(self) -> ToolWorker:
        while self._idle:
            child = self._idle.pop()
            if child.alive and child.folder == _identity(self._workspace):
                return child
            await child.kill()
        folder = _identity(self._workspace)
        child = await self._start("files", "")
        child.folder = folder
        return child

    async def _start(self, mode: str, agent_id: str, closed: _ClosedShell | None = None) -> ToolWorker:
        if self._closed:
            raise ChildFailed("the tool workers have been shut down")
        config: dict[str, Any] = {
            "mode": mode, "workspace": str(self._workspace), "database_files": [], "lease_folder": "",
        }  # fmt: skip
        if closed is not None:
            config["restored"] = {"folder": closed.folder, "variables": dict(closed.variables)}
        if isinstance(self._database_path, Path):
            config["database_files"] = [str(name) for name in database_files(self._database_path)]
            config["lease_folder"] = str(lease_folder(self._database_path))
        if mode == "shell" and self._sandbox != OFF:
            config |= self._sandbox_config([*config["database_files"], config["lease_folder"]])
        try:
            child = await self._start_worker(config, self._environ, agent_id, self._containment)
        except HostFault:
            if not self._idle:
                raise
            idle, self._idle = self._idle, []
            await asyncio.gather(*(one.kill() for one in idle))  # what they hold may be enough
            child = await self._start_worker(config, self._environ, agent_id, self._containment)
        if self._closed:
            await child.kill()
            raise ChildFailed("the tool workers have been shut down")
        return child

    def _sandbox_config(self, files: Sequence[str]) -> dict[str, Any]:
        try:
            self._sandbox_folder = self._sandbox_folder or make_folder(self._workspace)
        except DoesNotHold as error:
            raise ChildFailed(str(error)) from None
        secrets = secret_paths(self._environ, [*filter(None, files), str(config_folder())])
        return {
            "sandbox": self._sandbox,
            "sandbox_folder": str(self._sandbox_folder),
            "sandbox_secrets": secrets,
        }


def result_of(answer: Mapping[str, Any]) -> ToolResult:
    """An answer as a result whose text is bounded; the whole text, as far as the worker kept it, is in
    `effects`."""
    content = answer["content"]
    shown = shorten_content(content, RESULT_CHARACTERS)
    effects = {"whole_output": content} if isinstance(content, str) and shown != content else {}
    unknown = answer.get("unknown") is True
    return ToolResult(shown, bool(answer.get("is_error")), effects, outcome_unknown=unknown)


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _failed(name: str, why: ChildFailed | str, *, began: bool = False) -> ToolResult:
    return ToolResult(f"{name}: {why}", is_error=True, outcome_unknown=began)


# --- The built-in tools ---------------------------------------------------------------------------------


def _spec(name: str, description: str, properties: dict[str, Any], required: list[str]) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolSpec(name, description, schema)


_FILE = {"type": "string", "description": "path of the file, relative to the workspace"}

READ = _spec(
    "read",
    "Read a text file, an image or a PDF in the workspace. For text files over 256 KiB, read a range of "
    "lines. Each line is prefixed with its number and a tab, which are not part of the file.",
    {
        "file_path": _FILE,
        "view_range": {
            "type": "array",
            "items": {"type": "integer"},
            "minItems": 2,
            "maxItems": 2,
            "description": "[first line, last line], 1-based and inclusive; a last line of 0 means the end of the file",
        },
    },
    ["file_path"],
)
GLOB = _spec(
    "glob",
    "Find files by a pattern such as **/*.py. Returns at most 200, newest first.",
    {
        "pattern": {"type": "string", "description": "relative, without .."},
        "path": {"type": "string", "description": "folder to search; default: the workspace"},
    },
    ["pattern"],
)
GREP = _spec(
    "grep",
    "Search file contents for a regular expression. Returns path:line:text.",
    {
        "pattern": {"type": "string"},
        "path": {"type": "string", "description": "file or folder; default: the workspace"},
    },
    ["pattern"],
)
WRITE = _spec(
    "write",
    "Write a file in the workspace, replacing its content. Missing folders are created.",
    {"file_path": _FILE, "content": {"type": "string"}},
    ["file_path", "content"],
)
EDIT = _spec(
    "edit",
    "Replace an exact string in a file. It must occur exactly once unless `replace_all` is set.",
    {
        "file_path": _FILE,
        "old_string": {"type": "string", "minLength": 1},
        "new_string": {"type": "string"},
        "replace_all": {"type": "boolean"},
    },
    ["file_path", "old_string", "new_string"],
)
BASH = _spec(  # `limit`: the time limit of the pool
    "bash",
    "Run a command in your own shell, which keeps its folder, variables and jobs between calls. Only the last "
    "100 KiB of output is kept. Standard input is empty. A command is killed, along with the shell, "
    "after {limit} s, or after `timeout_ms` if that is shorter.",
    {
        "command": {"type": "string"},
        "restart": {"type": "boolean", "description": "start a new shell instead of running a command"},
        "timeout_ms": {"type": "integer", "minimum": 1},
    },
    [],
)


def mark_fault(tool: str, arguments: dict[str, Any]) -> str | None:
    """One line saying why `write` or `edit` must not run with a redaction mark in its input, or None.

    A mark hides a secret from the model. Written to a file, it would replace the secret; looked for, it never
    matches.
    """
    if tool not in (WRITE.name, EDIT.name):
        return None
    for name in ("file_path", "old_string", "content", "new_string"):
        value = arguments.get(name)
        mark = MARK.search(value) if isinstance(value, str) else None
        if mark is None:
            continue
        if name == "old_string":
            return (
                f"old_string contains the redaction mark {mark[0]}. The file contains different text there, so "
                "old_string cannot match."
                " Choose an old_string without the mark"
            )
        if name == "file_path":
            return f"file_path contains the redaction mark {mark[0]}. Choose a name without it"
        return (
            f"{name} contains the redaction mark {mark[0]}, which represents a secret. Nothing was written."
            " To keep a secret in the file, edit only the text around it. Put a new secret into an"
            " environment"
            " variable, or write a placeholder such as <password>"
        )
    return None


@dataclass(frozen=True, slots=True)
class BuiltinTool:
    """A tool that runs in a worker: `bash` in a shell of the agent's own, any other in any worker."""

    spec: ToolSpec
    idempotent: bool
    permission: Permission
    pool: WorkerPool

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        if self.spec.name != BASH.name:
            result = await self.pool.at(context.workspace).run_file_tool(self.spec.name, arguments, context)
            return _numbered(result, arguments, context) if self.spec is READ else result
        milliseconds = arguments.get("timeout_ms")
        seconds = milliseconds / 1000 if isinstance(milliseconds, int) else self.pool.timeout_seconds
        return await self.pool.at(context.workspace).run_shell(arguments, context, seconds)


def _numbered(result: ToolResult, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
    """What `read` gave, with line numbers. Secrets are taken out first: numbers between their lines would hide them."""
    text = result.effects.get("whole_output", result.content)
    if result.is_error or result.outcome_unknown or not isinstance(text, str):
        return result
    first, last = arguments.get("view_range") or (1, 0)
    numbered = number_lines(text, str(context.redact(text)), max(first, 1), last)
    return result_of({"content": numbered})


def number_lines(raw: str, shown: str, first: int = 1, last: int = 0) -> str:
    """The lines of `shown`, each with its number in the file as `   12\ttext`. `raw` holds the same lines of the file, from
    `first` to `last` (0: to the end), before secrets were taken out, which may have joined some."""
    lines, numbers = raw.split("\n"), shown.split("\n")
    at_end = last <= 0 or len(lines) <= last - first
    if at_end and lines[-1] == "":
        lines.pop()
        if numbers[-1] == "":
            numbers.pop()
    if not lines:
        return "[the file is empty]" if first == 1 else f"[the file has no line {first}]"
    places: Iterable[int] = range(len(numbers))
    if len(numbers) != len(lines):
        places = _places(lines, numbers)
    return "\n".join(f"{first + at:>5}\t{text}" for at, text in zip(places, numbers, strict=True))


def _places(lines: list[str], shown: list[str]) -> list[int]:
    """Where each shown line is among the lines: those that are alike match, others count on from the one before."""
    import difflib

    found: list[int] = []
    for _, start, end, first, last in difflib.SequenceMatcher(
        None, lines, shown, autojunk=False
    ).get_opcodes():
        found += [min(start + at, max(start, end - 1)) for at in range(last - first)]
    return found


def builtin_tools(pool: WorkerPool) -> dict[str, Tool]:
    """The built-in tools by name: reading is allowed, writing and the shell ask.

    Writing a file twice leaves what writing it once does; editing it twice may not, nor may running a
    command.
    """
    allow, ask = Permission.ALLOW, Permission.ASK
    tools: list[Tool] = [BuiltinTool(spec, True, allow, pool) for spec in (LIST_FOLDER, READ, GLOB, GREP)]
    tools += [BuiltinTool(WRITE, True, ask, pool)]
    bash = replace(BASH, description=BASH.description.format(limit=f"{pool.timeout_seconds:g}"))
    tools += [BuiltinTool(spec, False, ask, pool) for spec in (EDIT, bash)]
    return {tool.spec.name: tool for tool in tools}


# --- Permissions: which tool may run -----------------------------------------------------------------------
#
# One decision from the tools' defaults, the user's configuration, the workspace and the command line.

_NARROWNESS = {Permission.ALLOW: 0, Permission.ASK: 1, Permission.DENY: 2}

Rules = Mapping[str, Permission]
"""Tool name, or a pattern such as `mcp__github__*`, → permission."""


def narrowest(*permissions: Permission) -> Permission:
    """The one that lets the least happen."""
    return max(permissions, key=_NARROWNESS.__getitem__)


@dataclass(frozen=True, slots=True)
class Permissions:
    """Decides whether a call of a tool may run, must be asked about, or is denied.

    The order: the tool's own default; the user's rules, which may widen it; the workspace's rules, which only
    narrow it; `--allow`, which answers in advance what would be asked. A `deny` from anywhere is final. A call of
    an unknown tool asks. Which tools a role may call at all is for `Role.may_call` to say.
    """

    defaults: Rules = field(default_factory=dict)
    user: Rules = field(default_factory=dict)
    workspace: Rules = field(default_factory=dict)
    allow: frozenset[str] = frozenset()
    """Names or patterns of `--allow`."""
    deny: frozenset[str] = frozenset()
    """Names or patterns of `--deny`."""

    def resolve(self, tool: str) -> Permission:
        """The permission for one call."""
        default, user = self.defaults.get(tool), _rule(self.user, tool)
        if _matches(self.deny, tool) or Permission.DENY in (default, user):
            return Permission.DENY
        decided = narrowest(
            user or default or Permission.ASK, _rule(self.workspace, tool) or Permission.ALLOW
        )
        if decided is Permission.ASK and _matches(self.allow, tool):
            return Permission.ALLOW
        return decided


def _matches(names: Iterable[str], tool: str) -> bool:
    return any(name == tool or fnmatch.fnmatchcase(tool, name) for name in names)


def _rule(rules: Rules, tool: str) -> Permission | None:
    """The rule of this very name, or else the narrowest of the patterns that match."""
    if tool in rules:
        return rules[tool]
    matching = [permission for pattern, permission in rules.items() if fnmatch.fnmatchcase(tool, pattern)]
    return narrowest(*matching) if matching else None
