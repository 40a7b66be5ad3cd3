"""In a worker: the file tools of the SDK, confined to the workspace, and `list_folder`."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from watchkeeper.agents.tools.worker_text import read_plainly
from watchkeeper.records.host_faults import HostFault, host_fault

MOST_PDF_BYTES = 8 * 1024 * 1024
MOST_KEPT_BYTES = 16 * 1024 * 1024
CHANGING = frozenset({"write", "edit"})
SEARCHING = frozenset({"list_folder", "glob", "grep"})
"""Tools that pass over what they cannot open, and so would answer with less than there is."""


@contextlib.contextmanager
def nothing_passed_over() -> Iterator[None]:
    """Let no file or folder be passed over because the machine ran out of something, in this single-threaded worker.

    Raises:
        HostFault: one was.
    """
    met: list[HostFault] = []

    def noticing(opener: Callable[..., Any]) -> Callable[..., Any]:
        def opened(*arguments: Any, **options: Any) -> Any:
            try:
                return opener(*arguments, **options)
            except OSError as error:
                if (fault := host_fault(error)) is not None:
                    met.append(fault)
                raise

        return opened

    openers = [(module, name, getattr(module, name)) for module, name in ((io, "open"), (os, "open"), (os, "scandir"))]
    for module, name, opener in openers:
        setattr(module, name, noticing(opener))
    try:
        yield
    finally:
        for module, name, opener in openers:
            setattr(module, name, opener)
    if met:
        raise met[0]


class _KeptFile:
    """A file before it is changed: a write that the disk has no room for must not cost what the file held."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._was_there = path.is_file()
        self._held = path.read_bytes() if self._was_there and path.stat().st_size <= MOST_KEPT_BYTES else None

    def put_back(self) -> bool:
        """Make the file what it was; False where that is not possible, or it was too large to be kept."""
        try:
            if not self._was_there:
                self._path.unlink(missing_ok=True)
                return True
            if self._held is None:
                return False
            if self._path.read_bytes() != self._held:
                with self._path.open("r+b") as file:
                    file.write(self._held)
                    file.truncate()
            return True
        except OSError:
            return False


class FileTools:
    """Runs `list_folder`, `read`, `glob`, `grep`, `write` and `edit` in one workspace."""

    def __init__(self, workspace: str) -> None:
        self._workspace = Path(workspace)
        self._tools: dict[str, Any] = {}

    async def run(self, request: dict[str, Any]) -> tuple[Any, bool]:
        """Run one call; faults that a model can mend come back as error texts."""
        name, arguments = str(request["tool"]), request["arguments"]
        if not self._workspace.is_dir():
            return f"{name}: the workspace {self._workspace} is gone", True
        if name not in SEARCHING:
            return await self._run(name, arguments)
        with nothing_passed_over():
            return self._list_folder(arguments) if name == "list_folder" else await self._run(name, arguments)

    async def _run(self, name: str, arguments: dict[str, Any]) -> tuple[Any, bool]:
        if name == "read":
            text = read_plainly(self._workspace, arguments)
            if text is not None:
                return text, False
        if name == "write" and self._is_odd(arguments.get("file_path")):
            return f"write: {arguments['file_path']}: not a regular file", True
        tool = self._sdk_tools().get(name)
        if tool is None:
            return f"there is no tool {name!r}", True
        from anthropic.lib.tools import ToolError

        kept = self._kept(arguments.get("file_path")) if name in CHANGING else None
        try:
            content = await tool.call(arguments)
        except Exception as error:
            if (fault := host_fault(error)) is not None:
                raise HostFault(str(fault), fault.shortage, began=kept is not None and not kept.put_back()) from error
            if not isinstance(error, ToolError):
                raise
            return self._relative(error.content), True
        return (self._told(name, content) if isinstance(content, str) else list(content)), False

    def _kept(self, name: Any) -> _KeptFile | None:
        """The file that is to be changed, as it is now; None for a name that the tool refuses."""
        from anthropic.lib.tools.agent_toolset import resolve_path

        try:
            return _KeptFile(resolve_path(self._sdk_context(), name))
        except (OSError, TypeError, ValueError) as error:
            if host_fault(error) is not None:
                raise
            return None

    def _is_odd(self, name: Any) -> bool:
        """Whether it is a pipe or a device: opening one to write may wait until somebody reads. The SDK says what else is wrong."""
        try:
            mode = os.stat(self._workspace / name).st_mode
        except (OSError, TypeError, ValueError):
            return False
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))

    def _list_folder(self, arguments: dict[str, Any]) -> tuple[str, bool]:
        from watchkeeper.agents.tools.folder import arguments_of, scan_page

        try:
            return scan_page(self._workspace, **arguments_of(arguments)), False
        except ValueError as error:
            return f"list_folder: {str(error).removeprefix('list_folder: ')}", True

    def _sdk_tools(self) -> dict[str, Any]:
        if not self._tools:
            from anthropic.lib.tools import agent_toolset as sdk

            context = self._sdk_context()
            makers = (sdk.beta_read_tool, sdk.beta_glob_tool, sdk.beta_grep_tool, sdk.beta_write_tool, sdk.beta_edit_tool)
            self._tools = {tool.name: tool for tool in (make(context) for make in makers)}
        return self._tools

    def _sdk_context(self) -> Any:
        from anthropic.lib.tools.agent_toolset import AgentToolContext

        return AgentToolContext(workdir=str(self._workspace), max_pdf_bytes=MOST_PDF_BYTES)

    def _told(self, name: str, text: str) -> str:
        if name not in ("glob", "grep"):
            return text
        from anthropic.lib.tools.agent_toolset import GLOB_RESULT_LIMIT

        text = self._relative(text)
        if name == "glob" and text.count("\n") + 1 >= GLOB_RESULT_LIMIT:
            text += f"\n[only the newest {GLOB_RESULT_LIMIT} are shown; narrow the pattern, or use list_folder]"
        return text

    def _relative(self, content: Any) -> Any:
        """The text with the workspace's own path taken off the front of its lines: shorter, and what the tools take."""
        if not isinstance(content, str):
            return content
        prefix = f"{self._workspace.resolve()}/"
        return "\n".join(line.removeprefix(prefix) for line in content.split("\n"))
