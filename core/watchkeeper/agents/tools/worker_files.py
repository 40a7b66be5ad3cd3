"""In a worker: the file tools of the SDK, confined to the workspace, and `list_folder`."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from watchkeeper.agents.tools.worker_text import read_plainly

MOST_PDF_BYTES = 8 * 1024 * 1024


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
        if name == "list_folder":
            return self._list_folder(arguments)
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

        try:
            content = await tool.call(arguments)
        except ToolError as error:
            return self._relative(error.content), True
        return (self._told(name, content) if isinstance(content, str) else list(content)), False

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

            context = sdk.AgentToolContext(workdir=str(self._workspace), max_pdf_bytes=MOST_PDF_BYTES)
            makers = (sdk.beta_read_tool, sdk.beta_glob_tool, sdk.beta_grep_tool, sdk.beta_write_tool, sdk.beta_edit_tool)
            self._tools = {tool.name: tool for tool in (make(context) for make in makers)}
        return self._tools

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
