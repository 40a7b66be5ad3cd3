"""The user's configuration: `config.toml` in the configuration folder, and what a workspace may add to it.

A flag wins over the environment, the environment over the user's file, the user's file over the workspace's
`.watchkeeper/config.toml`. A workspace is somebody else's text: it may only narrow permissions, and set
nothing else.
"""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from watchkeeper.records.errors import BadInput
from watchkeeper.store.user_secrets import config_folder

MOST_BYTES = 1_000_000
"""Of a configuration file."""

M = TypeVar("M", bound=BaseModel)
PermissionName = Literal["allow", "ask", "deny"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AnthropicSettings(_Strict):
    """Where Claude, or a server that speaks its protocol, is reached. Unset: the SDK's own environment
    variables."""

    base_url: str | None = None
    api_key_env: str | None = None
    """The name of the environment variable that holds the key; the key itself never stands in a file of
    ours."""
    context_window: int | None = Field(default=None, gt=0)
    prompt_cache: bool = True


class NotificationSettings(_Strict):
    """How the dashboard tells what happens while nobody looks (it reads this table by itself, without this
    module)."""

    needs_input: bool = True
    task_failed: bool = True
    budget: bool = True
    """80 % of a budget is spent, and all of it."""
    run_finished: bool = True
    when_focused: bool = False
    """Also while the terminal has the focus."""
    terminal: Literal["bell", "osc9", "osc777", "off"] = "bell"
    """What the terminal is sent: a bell, or a desktop notification."""


class Config(_Strict):
    """Every setting, documented where it stands."""

    model: str | None = None
    """The model of planner and sub-agents where none is named. `offline/surveyor` counts as none."""
    max_parallel: int = Field(default=4, ge=1, le=256)
    """How many sub-agents work at a time."""
    slots: int = Field(default=8, ge=1, le=256)
    """How many calls to one model run at a time."""
    max_output_tokens: int = Field(default=8_192, ge=256)
    """The longest reply."""
    summarization_threshold: float = Field(default=0.75, gt=0.1, le=0.95)
    """The fraction of a context window at which compaction starts."""
    memory: Literal["summary", "observational"] = "summary"
    """Who keeps an agent's older messages short: a summariser, or observers and reflectors ahead of need."""
    tool_timeout_seconds: float = Field(default=120.0, gt=0)
    recall_vectors: bool = False
    """Recall also compares meanings, by a small local model; needs the extra `vectors`."""
    containment: Literal["auto", "cgroup", "namespace", "register"] = "auto"
    """What holds the processes of a session's tools together (see `agents.tools.containment`); `auto` is the
    best there is."""
    anthropic: AnthropicSettings = AnthropicSettings()
    mcp_servers: dict[str, dict[str, Any]] = {}
    """MCP tool servers by name: `command`, `args`, `env`, or `url`, `headers` (see
    `agents.tools.mcp.McpServer`)."""
    permissions: dict[str, PermissionName] = {}
    """By tool: whether it may run, must be asked for, or is denied."""
    theme: str | None = None
    keys: dict[str, str] = {}
    """The dashboard's keys by the id of what they do, as in `"act.pause" = "p"`."""
    notifications: NotificationSettings = NotificationSettings()
    reduced_motion: bool = False
    """The dashboard moves nothing by itself: no sliding, no blinking."""


class WorkspaceConfig(_Strict):
    """What a workspace's own `.watchkeeper/config.toml` may say: narrower permissions."""

    permissions: dict[str, PermissionName] = {}


def load_config(folder: Path | None = None) -> Config:
    """The user's configuration; defaults where there is no file.

    Raises:
        BadInput: the file is no TOML, or says something that is no setting; the line names it.
    """
    return _read((folder or config_folder()) / "config.toml", Config)


def load_workspace_config(workspace: Path) -> WorkspaceConfig:
    """What the workspace's own file says.

    Raises:
        BadInput: it is damaged, or tries to set more than permissions.
    """
    return _read(workspace / ".watchkeeper" / "config.toml", WorkspaceConfig)


def _read(path: Path, model: type[M]) -> M:
    try:
        text = _content(path).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return model()
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); mend or remove it"
        ) from None
    try:
        return model.model_validate(tomllib.loads(text))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path}: {where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no valid TOML: {error}") from None


def _content(path: Path) -> bytes:
    """The bytes of a regular file of at most `MOST_BYTES`. A workspace may hold a pipe or a device in its
    place.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES:,} bytes")
    return content
