"""The built-in file and shell tools: the description of each for models, and what each declares."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.agents.tools.contract import Permission, Tool, ToolContext, ToolResult
from watchkeeper.agents.tools.folder import LIST_FOLDER
from watchkeeper.agents.tools.workers import WorkerPool
from watchkeeper.records.messages import ToolSpec
from watchkeeper.records.redact import MARK


def _spec(name: str, description: str, properties: dict[str, Any], required: list[str]) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": required})


_FILE = {"type": "string", "description": "path of the file, relative to the workspace"}

READ = _spec(
    "read",
    "Read a text file (up to 256 KiB; of a larger one, a range of lines), an image or a PDF of the"
    " workspace.",
    {
        "file_path": _FILE,
        "view_range": {
            "type": "array",
            "items": {"type": "integer"},
            "minItems": 2,
            "maxItems": 2,
            "description": "[first line, last line], from 1, both included; a last line of 0 means to the end",
        },
    },
    ["file_path"],
)
GLOB = _spec(
    "glob",
    "Find files by a pattern such as **/*.py, newest first, at most 200.",
    {
        "pattern": {"type": "string", "description": "relative, without .."},
        "path": {"type": "string", "description": "folder to search in; the workspace by default"},
    },
    ["pattern"],
)
GREP = _spec(
    "grep",
    "Search the contents of files for a regular expression; gives path:line:text.",
    {
        "pattern": {"type": "string"},
        "path": {"type": "string", "description": "file or folder; the workspace by default"},
    },
    ["pattern"],
)
WRITE = _spec(
    "write",
    "Write a file of the workspace, replacing what it held; folders are made as needed.",
    {"file_path": _FILE, "content": {"type": "string"}},
    ["file_path", "content"],
)
EDIT = _spec(
    "edit",
    "Replace an exact piece of text in a file. It must occur once, unless `replace_all`.",
    {
        "file_path": _FILE,
        "old_string": {"type": "string", "minLength": 1},
        "new_string": {"type": "string"},
        "replace_all": {"type": "boolean"},
    },
    ["file_path", "old_string", "new_string"],
)
BASH = _spec(
    "bash",
    "Run a command in your own shell, which keeps its folder, variables and jobs between calls. Only the"
    " last 100 KiB of"
    " output are kept. Standard input is empty. A command that takes longer than its time is killed, and the"
    " shell with it.",
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
                f"old_string holds the redaction mark {mark[0]}. The file holds another text there, so"
                " old_string cannot match."
                " Choose an old_string beside the mark"
            )
        if name == "file_path":
            return f"file_path holds the redaction mark {mark[0]}. Choose a name without it"
        return (
            f"{name} holds the redaction mark {mark[0]}, which replaces a secret. Nothing was written."
            " Keep a secret that the file has by editing only the text beside it; a new one belongs in an"
            " environment"
            " variable or, as a placeholder such as <password>, in the file"
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
        if self.spec is not BASH:
            return await self.pool.at(context.workspace).run_file_tool(self.spec.name, arguments, context)
        milliseconds = arguments.get("timeout_ms")
        seconds = milliseconds / 1000 if isinstance(milliseconds, int) else self.pool.timeout_seconds
        return await self.pool.at(context.workspace).run_shell(arguments, context, seconds)


def builtin_tools(pool: WorkerPool) -> dict[str, Tool]:
    """The built-in tools by name: reading is allowed, writing and the shell ask.

    Writing a file twice leaves what writing it once does; editing it twice may not, nor may running a
    command.
    """
    allow, ask = Permission.ALLOW, Permission.ASK
    tools: list[Tool] = [BuiltinTool(spec, True, allow, pool) for spec in (LIST_FOLDER, READ, GLOB, GREP)]
    tools += [BuiltinTool(WRITE, True, ask, pool)]
    tools += [BuiltinTool(spec, False, ask, pool) for spec in (EDIT, BASH)]
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
