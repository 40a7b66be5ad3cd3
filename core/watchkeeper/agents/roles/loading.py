"""Finding roles: built in, the user's, the workspace's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from watchkeeper.agents.roles.confined import read_text_within
from watchkeeper.agents.roles.front_matter import split_front_matter
from watchkeeper.agents.roles.role import ALWAYS, PLAN_TOOLS, PLANNER, Role

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
        return f"the role {name} is gone: no file of it in {', '.join(self.folders)}"


def load_roles(workspace: Path, user_config_dir: Path | None = None) -> Roles:
    """All roles: built-in ones, overridden by the user's `agents/*.md`, overridden by the workspace's.

    A role of the workspace that overrides another can only take tools away from it, and none of them can plan
    but the planner. A damaged file is a warning, never an error.
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
                raise ValueError("it is no file inside the workspace")
            if found[1]:
                raise ValueError(f"it is larger than {MOST_BYTES} bytes")
            role = _role(file, found[0], trusted=trusted, place=_place(file, folder, root, trusted=trusted))
        except OSError as error:
            roles.warnings.append(_line(f"role file {file} is left out: {error.strerror or error}"))
            continue
        except ValueError as error:
            roles.warnings.append(_line(f"role file {file} is left out: {error}"))
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
                _line(f"the roles in {folder} are left out: it is a link out of the workspace")
            )
            return
        found = itertools.islice(itertools.chain(folder.glob("*.md"), folder.glob("*/*.md")), 10 * MOST_FILES)
        files = sorted(file for file in found if file.name.lower() != "readme.md")
    except (OSError, RuntimeError) as error:
        roles.warnings.append(_line(f"the roles in {folder} are left out: {error}"))
        return
    if len(files) > MOST_FILES:
        roles.warnings.append(
            _line(f"{folder} holds {len(files)} role files; the first {MOST_FILES} are read")
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
        raise ValueError("its name may hold only letters, digits, blanks, dots, - and _, at most 60")
    prompt = body.strip()
    if not prompt:
        raise ValueError("it has no text below its front matter")
    return Role(
        name=name,
        description=_text(fields, "description") or name,
        tools=_tools(fields.get("tools")),
        model=_model(_text(fields, "model")),
        prompt=prompt,
        source=file,
        trusted=trusted,
        place=place,
    )


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
