"""Roles: an agent's system prompt, and the tools that it may call. Markdown files with YAML front matter.

The user's files override the built-in roles, and the workspace's files override both. A workspace's role can
only narrow: a cloned repository grants itself nothing.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from watchkeeper.agents.tools.contract import Permission
from watchkeeper.records.errors import raising_host_faults
from watchkeeper.store.plans import FILE_OUTPUT, Task

# --- Roles --------------------------------------------------------------------------------------------------

PLAN_TOOLS = frozenset(
    {
        "create_plan",
        "add_task",
        "revise_task",
        "resume_task",
        "rerun_task",
        "drop_task",
        "merge_task",
        "finish_session",
    }
)
"""Only the role `planner` may call these."""

ALWAYS = frozenset(
    {"remember", "recall", "read_back", "compact", "save_artifact", "read_artifact", "merge_artifacts"}
)  # fmt: skip
"""Every role may: without them an agent could neither keep nor hand over what it did. They touch the session
alone."""

PLANNER = "planner"


@dataclass(frozen=True, slots=True)
class Role:
    """A role, from wherever it came."""

    name: str
    description: str
    tools: tuple[str, ...] | None
    """Names or patterns (`mcp__github__*`) that it may call beside `ALWAYS`; None: all but the planner's."""
    model: str | None
    """A model reference `provider/model`; None: the session's."""
    prompt: str
    memory_model: str | None = None
    """The model that writes its agents' memory; None: the configured one. A role of the workspace names none."""
    source: Path | None = None
    """The file that it was read from."""
    trusted: bool = True
    """False for a role of the workspace, which other people may have written."""
    place: str = "built-in"
    """Where it comes from, as people read it: `built-in`, `agents/NAME.md (yours)`, or its file in the
    workspace."""
    user_model: str | None = None
    """For a role of the workspace: the model of the user's own role of this name; None: the session's
    model."""
    isolation: str | None = None
    """`worktree` or `none`: whether its agents work in a git worktree of their own; None: see `agents.worktrees`."""

    def may_call(self, tool: str) -> bool:
        """Whether the role lists the tool. Whether a call then runs is for `Permissions` to say."""
        if tool in PLAN_TOOLS:
            return self.name == PLANNER
        if tool in ALWAYS or self.tools is None:
            return True
        return any(fnmatch.fnmatchcase(tool, pattern) for pattern in self.tools)

    @property
    def changes_files(self) -> bool:
        """Whether its agents may write files of the workspace."""
        return self.may_call("write") or self.may_call("edit")

    @property
    def can(self) -> str:
        """What its agents may change, in a few words."""
        runs = "runs commands" if self.may_call("bash") else ""
        if self.changes_files:
            return f"writes files, {runs}" if runs else "writes files"
        return f"reads, {runs}" if runs else "reads only"

    def model_for(self, session_model: str) -> str:
        """The model that it runs on. A workspace's role may choose among the session's provider only: where
        text is sent to, and on whose account, is the user's to say.
        """
        if self.model is None:
            return session_model
        if not self.trusted and self.model.partition("/")[0] != session_model.partition("/")[0]:
            return session_model
        return self.model


# --- Reading small text files of an untrusted workspace -----------------------------------------------------


def read_text_within(root: Path, file: Path, most_bytes: int) -> tuple[str, bool] | None:
    """The text of a regular file, and whether it was cut; None if there is none inside `root`.

    Links are followed only while they stay inside `root`. What is not UTF-8 is replaced.

    Raises:
        HostFault: the machine ran out of something.
        OSError: it is there, and cannot be read.
    """
    with raising_host_faults():
        return _text_within(root, file, most_bytes)


def _text_within(root: Path, file: Path, most_bytes: int) -> tuple[str, bool] | None:
    try:
        real = file.resolve(strict=True)
        if not real.is_relative_to(root.resolve(strict=True)):
            return None
        # Non-blocking: a FIFO of that name must not hold the start of a session.
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return None
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = stream.read(most_bytes + 1)
    return data[:most_bytes].decode("utf-8", "replace").lstrip("\ufeff"), len(data) > most_bytes


# --- Markdown with YAML front matter ------------------------------------------------------------------------

_FENCE = re.compile(r"\A\ufeff?---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_KEY = re.compile(r"([A-Za-z][\w-]*):[ \t]*(.*)")
MOST_CHARACTERS = 8_000
"""Longest front matter of a role. The limit also bounds what YAML aliases could expand to."""


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The front matter's fields and the body below it; no fields where there is none.

    What YAML cannot read, such as an unquoted colon in a description, is read as `key: rest of line`.

    Raises:
        ValueError: the front matter is too long, or has no end.
    """
    text = text.replace("\r\n", "\n")
    match = _FENCE.match(text)
    if match is None:
        if text.lstrip("\ufeff").startswith("---\n"):
            raise ValueError("the front matter has no closing ---")
        return {}, text
    head, body = match[1], text[match.end() :]
    if len(head) > MOST_CHARACTERS:
        raise ValueError(f"the front matter has {len(head)} characters; the limit is {MOST_CHARACTERS}")
    return _fields(head), body


def _fields(head: str) -> dict[str, Any]:
    import yaml

    try:
        # Aliases unfold exponentially, and no role needs them.
        fields = None if re.search(r"(?:^|[\s\[,:])[&*]\w", head) else yaml.safe_load(head)
    except (yaml.YAMLError, ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        return {str(key): value for key, value in fields.items()}
    return _plain_fields(head)


def _plain_fields(head: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    last = None
    for line in head.split("\n"):
        match = _KEY.match(line)
        if match:
            last = match[1]
            fields[last] = match[2].strip().strip("\"'")
        elif last is not None and line.strip().startswith("- "):
            listed = fields[last] if isinstance(fields[last], list) else []
            fields[last] = [*listed, line.strip()[2:].strip().strip("\"'")]
        elif last is not None and line.startswith((" ", "\t")) and isinstance(fields[last], str):
            fields[last] = f"{fields[last]} {line.strip()}".strip()
    return fields


# --- Finding roles: built in, the user's, the workspace's ---------------------------------------------------

MOST_BYTES = 128_000
MOST_FILES = 200
WORKSPACE_FOLDERS = (".claude/agents", ".watchkeeper/agents")
"""In the order in which they are read: the later one wins."""

OUR_NAMES: Mapping[str, tuple[str, ...]] = {
    "Read": ("read",),
    "NotebookRead": ("read",),
    "LS": ("list_folder",),
    "Glob": ("glob", "list_folder"),
    "Grep": ("grep",),
    "Bash": ("bash",),
    "BashOutput": ("bash",),
    "Write": ("write",),
    "Edit": ("edit",),
    "MultiEdit": ("edit",),
    "NotebookEdit": ("edit",),
}
"""The tools of Claude Code's role files, and what they are called here."""

ISOLATIONS = ("worktree", "none")
"""Where an agent works: in a git worktree of its own, or in the workspace."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,59}")


class Roles(dict[str, Role]):
    """Roles by name, with one line for each file that could not be used, or not wholly."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []
        self.folders: list[str] = []
        """Where role files were looked for, as people name the places."""

    def gone(self, name: str) -> str:
        """Why no agent can take this role, which has no file any more."""
        return f"the role {name} no longer exists: no file for it in {', '.join(self.folders)}"


def load_roles(workspace: Path, user_config_dir: Path | None = None) -> Roles:
    """All roles: built-in ones, overridden by the user's `agents/*.md`, overridden by the workspace's.

    A role of the workspace that overrides another can only take tools away from it, and none of them can plan
    but the planner. A damaged file is a warning, never an error.

    Raises:
        HostFault: the machine ran out of something. A role that was not read is not one that has disappeared.
    """
    roles = Roles()
    roles.folders = ["your agents folder", *WORKSPACE_FOLDERS]
    _take(roles, Path(__file__).parent / "builtin", Path(__file__).parent, trusted=True)
    if user_config_dir is not None:
        # The user's own folder may hold links to wherever the user likes.
        _take(roles, user_config_dir / "agents", None, trusted=True)
    for folder in WORKSPACE_FOLDERS:
        _take(roles, workspace / folder, workspace, trusted=False)
    return roles


def _take(roles: Roles, folder: Path, root: Path | None, *, trusted: bool) -> None:
    for file in _files(roles, folder, root):
        try:
            found = read_text_within(root or file.resolve().parent, file, MOST_BYTES)
            if found is None:
                raise ValueError("it is not a file inside the workspace")
            if found[1]:
                raise ValueError(f"it is larger than {MOST_BYTES} bytes")
            role = _role(file, found[0], trusted=trusted, place=_place(file, folder, root, trusted=trusted))
        except OSError as error:
            roles.warnings.append(_line(f"ignored role file {file}: {error.strerror or error}"))
            continue
        except ValueError as error:
            roles.warnings.append(_line(f"ignored role file {file}: {error}"))
            continue
        roles[role.name] = role if trusted else _narrowed(role, roles.get(role.name))


def _files(roles: Roles, folder: Path, root: Path | None) -> Iterator[Path]:
    """The Markdown files in a folder and in the folders right in it; nothing of a folder that is a link out
    of `root`."""
    try:
        if not folder.is_dir():
            return
        if root is not None and not folder.resolve().is_relative_to(root.resolve()):
            roles.warnings.append(
                _line(f"ignored the roles in {folder}: it is a link to a place outside the workspace")
            )
            return
        found = itertools.islice(itertools.chain(folder.glob("*.md"), folder.glob("*/*.md")), 10 * MOST_FILES)
        with raising_host_faults():
            files = sorted(file for file in found if file.name.lower() != "readme.md")
    except (OSError, RuntimeError) as error:
        roles.warnings.append(_line(f"ignored the roles in {folder}: {error}"))
        return
    if len(files) > MOST_FILES:
        roles.warnings.append(
            _line(f"{folder} contains {len(files)} role files; only the first {MOST_FILES} are loaded")
        )
    yield from files[:MOST_FILES]


def _place(file: Path, folder: Path, root: Path | None, *, trusted: bool) -> str:
    """What people call a role's file: a path without the folders of this machine."""
    if not trusted and root is not None:
        return _line(str(file.relative_to(root)))
    return "built-in" if root is not None else _line(f"agents/{file.relative_to(folder)} (yours)")


def _role(file: Path, text: str, *, trusted: bool, place: str) -> Role:
    fields, body = split_front_matter(text)
    name = _text(fields, "name") or file.stem
    if not _NAME.fullmatch(name):
        raise ValueError(
            "a name may contain only letters, digits, spaces, dots, - and _, at most 60 characters"
        )
    prompt = body.strip()
    if not prompt:
        raise ValueError("it has no text after the front matter")
    return Role(
        name=name,
        description=_text(fields, "description") or name,
        tools=_tools(fields.get("tools")),
        model=_model(_text(fields, "model")),
        memory_model=_model(_text(fields, "memory_model")) if trusted else None,
        prompt=prompt,
        source=file,
        trusted=trusted,
        place=place,
        isolation=_isolation(_text(fields, "isolation"), trusted=trusted),
    )


def _isolation(value: str | None, *, trusted: bool) -> str | None:
    """A workspace cannot switch isolation off."""
    return value if value == "worktree" or (trusted and value in ISOLATIONS) else None


def _narrowed(role: Role, base: Role | None) -> Role:
    """A workspace's role with no more than what it overrides had; one that overrides nothing asks as the
    user's rules say."""
    tools = role.tools
    if base is not None and base.tools is not None:
        tools = base.tools if tools is None else tuple(tool for tool in tools if base.may_call(tool))
    if tools is not None and role.name != PLANNER:
        tools = tuple(tool for tool in tools if tool not in PLAN_TOOLS)
    if base is None:
        return replace(role, tools=tools)
    user_model = base.model if base.trusted else base.user_model
    return replace(
        role,
        tools=tools,
        user_model=user_model,
        memory_model=base.memory_model,
        isolation=role.isolation or base.isolation,
        model=role.model if base.trusted else role.model or base.model,
    )


def _tools(value: Any) -> tuple[str, ...] | None:
    """The tools of a role file by our names: a list, or names with commas between. None or `*`: all."""
    if value is None:
        return None
    listed = [str(one) for one in value] if isinstance(value, list) else re.split(r",(?![^(]*\))", str(value))
    names = [re.sub(r"\(.*\)\Z", "", one.strip()).strip() for one in listed]
    if "*" in names:
        return None
    ours = [name for one in names if one for name in OUR_NAMES.get(one, (one,))]
    return tuple(dict.fromkeys(name for name in ours if name not in ALWAYS))


def _model(value: str | None) -> str | None:
    # `sonnet`, `opus`, `inherit` of other programs name no model here.
    return value if value and re.fullmatch(r"[A-Za-z0-9_-]+/\S{1,200}", value) else None


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return (
        " ".join(str(value).split()) if isinstance(value, str | int | float) and str(value).strip() else None
    )


def _line(text: str) -> str:
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )[:400]


# --- The workspace's instructions for agents: AGENTS.md -----------------------------------------------------

MOST_INSTRUCTION_BYTES = 32_000
"""About 8,000 tokens: it is in the system prompt of every agent."""


def agents_md(workspace: Path) -> str | None:
    """The text of the workspace's AGENTS.md, at most `MOST_INSTRUCTION_BYTES` of it; None if there is none.

    One that cannot be read, or that is a link out of the workspace, counts as none.

    Raises:
        HostFault: the machine ran out of something.
    """
    try:
        found = read_text_within(workspace, workspace / "AGENTS.md", MOST_INSTRUCTION_BYTES)
    except OSError:
        return None
    if found is None or not found[0].strip():
        return None
    text, cut = found
    return f"{text}\n[AGENTS.md is truncated; read the file for the rest]" if cut else text


# --- Texts for agents: system prompts, assignments, and inbox messages ------------------------------------

FACTS_IN_ASSIGNMENT = 12


@dataclass(frozen=True, slots=True)
class Input:
    """One thing that a task builds on: an output of a task that it depends on."""

    name: str
    ref: str
    """`artifact://sha256/…`"""
    task: str
    """The name of the task that made it."""


def system_prompt(
    role: str, instructions: str, *, workspace: str, agents_md: str | None, rules: Sequence[str] = ()
) -> str:
    """The system prompt of an agent: role, place, the person's rules, and the workspace's own instructions.

    The first line is `Role: <name>`. The prompt is made once, when the agent is created, and never changes: all
    prompts of an agent have the same prefix. What comes later reaches the agent as a message (`agents.later`).
    """
    parts = [
        f"Role: {role}",
        instructions.strip(),
        f"The workspace is the folder {workspace}. Paths are relative to it.",
    ]
    if rules:
        parts.append("\n- ".join([RULES_HEADING, *rules]))
    if agents_md:
        parts.append(
            f"Instructions of this workspace (AGENTS.md):\n<agents_md>\n{agents_md.strip()}\n</agents_md>"
        )
    return "\n\n".join(parts)


RULES_HEADING = "Rules from the person you work for; they apply to every agent:"


def rules_in(system: str) -> list[str]:
    """The rules that a system prompt holds."""
    section = system.partition(RULES_HEADING + "\n- ")[2].partition("\n\n")[0]
    return section.split("\n- ") if section else []


def goal_message(goal: str, workspace: str, permissions: str = "") -> str:
    """The planner's first message. `permissions`: as `permission_note` says them."""
    text = f"# Goal\n{goal}\n\nThe workspace is {workspace}. Look at it, make a plan, and carry it out."
    return f"{text}\n\n{permissions}" if permissions else text


SHOWN_PATTERNS = 8
"""A first message shows the newest patterns of allowed commands."""


def permission_note(tools: Mapping[str, Permission], patterns: Sequence[str]) -> str:
    """What an agent may do without asking, in a few lines of its first message; empty if nothing is to be said.

    `tools`: those of its role that touch more than the session, each with its permission. `patterns`: of the commands that
    are allowed, the oldest first.
    """
    groups: dict[str, set[Permission]] = {}
    for name in sorted(tools):
        groups.setdefault(_group_of(name), set()).add(tools[name])
    together = {
        _group_of(name) if len(groups[_group_of(name)]) == 1 else name: tools[name] for name in sorted(tools)
    }
    names = {one: [name for name, permission in together.items() if permission is one] for one in Permission}
    free, asks_for_commands = names[Permission.ALLOW], tools.get("bash") is Permission.ASK
    shown = [f"`{one}`" for one in dict.fromkeys(patterns)][-SHOWN_PATTERNS:] if asks_for_commands else []
    if shown:
        free = [*free, f"bash for {', '.join(shown)}"]
    lines = [
        f"{heading}: {', '.join(found)}."
        for heading, found in (
            ("Without approval", free),
            ("With a person's approval", names[Permission.ASK]),
            ("Denied", names[Permission.DENY]),
        )
        if found
    ]
    if asks_for_commands:
        which = "these" if shown else "commands allowed by an approval pattern"
        lines.append(
            f"A pipeline of {which} is allowed too. Anything with ;, &&, redirection or substitution needs approval."
        )
    return "\n".join(lines)


def _group_of(tool: str) -> str:
    """The tools of one MCP server, as a pattern; any other tool alone."""
    return f"mcp__{tool.split('__')[1]}__*" if re.match(r"mcp__.+?__", tool) else tool


SHARED_FOLDER = "Other agents work in the same folder at the same time."


def assignment(
    task: Task,
    inputs: Sequence[Input],
    *,
    short: Mapping[str, str],
    facts: Sequence[str],
    resumed_memory: bool,
    place: str = "",
    again: str = "",
    permissions: str = "",
) -> str:
    """A sub-agent's first message: its task and the handoff. `short` has the texts of the inputs that are short, by name.
    `place` says where it works, or who else works there; `again` why it is a further attempt; `permissions` is what
    `permission_note` says."""
    handoff = {
        "task": task.name,
        "attempt": task.attempt,
        "inputs": [one.name for one in inputs],
        "expected_outputs": list(task.expected_outputs),
    }
    parts = [
        f"# Task: {task.title}",
        task.instructions.strip(),
        "handoff: " + json.dumps(handoff, ensure_ascii=False),
    ]
    parts += [f"Input {name}:\n{text}" for name, text in short.items()]
    if len(inputs) > len(short):
        parts.append("Read an input with `read_artifact`, by name.")
    if facts:
        parts.append(
            "What this session knows so far:\n"
            + "\n".join(f"- {fact}" for fact in facts[:FACTS_IN_ASSIGNMENT])
        )
    if resumed_memory:
        parts.append("Your memory of the earlier attempt is above. Use it to do the task again.")
    if again:
        parts.append(again)
    if place:
        parts.append(place)
    if permissions:
        parts.append(permissions)
    saved = [one for one in task.expected_outputs if not one.startswith(FILE_OUTPUT)]
    files = [one.removeprefix(FILE_OUTPUT) for one in task.expected_outputs if one.startswith(FILE_OUTPUT)]
    if saved:
        parts.append(f"Save with `save_artifact`, under these names: {', '.join(saved)}.")
    if files:
        parts.append(f"Write these files: {', '.join(files)}. You do not need to save them as artifacts.")
    parts.append("When you are done, reply with your result in a few sentences and call no tool.")
    return "\n\n".join(parts)


def inbox_message(items: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """What waited in an agent's inbox, as one text: a line of each, and as JSON what the lines do not say."""
    lines = [_headline(kind, payload) for kind, payload in items]
    rest = [{"kind": kind, **_readable(payload)} for kind, payload in items if kind in _WITH_DETAILS]
    details = [json.dumps({"inbox": rest}, ensure_ascii=False)] if rest else []
    return "\n\n".join(["\n".join(lines), *details])


def _readable(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A note without references: a name is enough to read an artifact."""
    kept = {key: value for key, value in payload.items() if key not in ("result_ref", "memory_delta")}
    if "artifacts" in kept:
        kept["artifacts"] = [one["name"] for one in kept["artifacts"]]
    return {key: value for key, value in kept.items() if value not in ([], None)}


_WITH_DETAILS = ("task_done", "task_failed", "task_paused")
"""Notes that hold more than their line says."""


def _headline(kind: str, payload: dict[str, Any]) -> str:
    task = payload.get("task", "")
    match kind:
        case "task_done":
            branch = payload.get("branch")
            return f"Task {task} is done." + (
                f" Its changes are on the branch {branch}; `merge_task` merges them." if branch else ""
            )
        case "task_failed":
            return f"Task {task} failed: {payload.get('error')}. Its work so far is kept; resume, re-run, revise or drop it."
        case "task_paused":
            return (
                f"Task {task} is paused: {payload.get('error')}. When resumed, it continues where it stopped."
            )
        case "task_cancelled":
            return f"Task {task} was cancelled by a person."
        case "steer":
            return f"A person says: {payload.get('text', '')}"
        case "rule":
            withdrawn = payload.get("withdrawn")
            start = "A person withdrew this rule" if withdrawn else "A person set this rule for every agent"
            return f"{start}: {payload.get('text', '')}"
        case "tools":
            return str(payload.get("text", ""))
        case "nudge" | "person" | "notice":
            return str(payload.get("text", ""))
        case "resumed":
            return f"You were resumed. {payload.get('text', '')}".strip()
        case _:
            return f"{kind} {task}".strip()
