"""The user's configuration: `config.toml` in the configuration folder, and what a workspace may add to it.

A flag wins over the environment, the environment over the user's file, the user's file over the workspace's
`.watchkeeper/config.toml`. The text of a workspace is not trusted: it may only narrow permissions, and set
nothing else.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from watchkeeper.agents.backends.programs import AgentProgramSettings
from watchkeeper.agents.roles import Role
from watchkeeper.agents.tools.contract import McpServer, Permission
from watchkeeper.models import effort as efforts
from watchkeeper.models.registry import PROVIDERS, SURVEYOR, provider_of, rates
from watchkeeper.records.errors import BadInput, raising_host_faults
from watchkeeper.records.messages import EFFORTS, Effort
from watchkeeper.store.place import config_folder

MOST_BYTES = 1_000_000
"""The largest configuration file."""

M = TypeVar("M", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _server_url(value: str) -> str:
    if not re.match(r"https?://[^/\s]", value.strip()):
        raise ValueError(f"{value!r} is not an address; write it as http://HOST:PORT/v1")
    return value.strip()


class ServerSettings(_Strict):
    """Where a provider's models are reached. Unset: the SDK's own environment variables."""

    base_url: str | None = None
    api_key_env: str | None = None
    """The name of the environment variable that holds the key; the key itself is in no file of ours."""
    context_window: int | None = Field(default=None, gt=0)


class AnthropicSettings(ServerSettings):
    """Claude, or a server that speaks its protocol."""

    prompt_cache: bool = True


class OpenAISettings(ServerSettings):
    """OpenAI, or a server that speaks one of its protocols."""

    base_url: Annotated[str, AfterValidator(_server_url)] | None = None


class NotificationSettings(_Strict):
    """When the dashboard notifies the user (it reads this table by itself, without this module)."""

    needs_input: bool = True
    task_failed: bool = True
    budget: bool = True
    """80 % of a budget is spent, and all of it."""
    run_finished: bool = True
    when_focused: bool = False
    """Also while the terminal has the focus."""
    terminal: Literal["bell", "osc9", "osc777", "off"] = "bell"
    """What the terminal is sent: a bell, or a desktop notification."""


def _webhook_url(value: str) -> str:
    if not re.match(r"https?://[^/\s]+", value.strip()):
        raise ValueError(f"{value!r} is not an address; write it as https://HOST/PATH")
    return value.strip()


class AlertSettings(_Strict):
    """What a run does when it needs a person, whether a dashboard is open or not."""

    command: list[str] = []
    """A program and its arguments. It gets a JSON object on standard input (see docs/configuration.md)."""
    webhook: Annotated[str, AfterValidator(_webhook_url)] | None = None
    """An address to which the same object is posted."""
    on: list[Literal["question", "failed", "paused", "parked", "finished"]] = [
        "question", "failed", "paused", "parked", "finished",
    ]  # fmt: skip
    """When: a question is pending, a task or the run failed, the run paused, an agent waits for a usage limit, the
    run ended."""


def _model_ref(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+/\S{1,200}", value):
        raise ValueError(f"{value!r} names no model; write it as provider/model")
    return value


class SandboxSettings(_Strict):
    """What confines the commands of agents (`agents.tools.sandbox`)."""

    bash: Literal["off", "workspace", "workspace,no-network"] = "off"


class MemorySettings(_Strict):
    """How agents' contexts are kept short."""

    mode: Literal["summary", "observational"] = "summary"
    """Who keeps older messages short: a summariser, or observers and reflectors ahead of need."""
    model: Annotated[str, AfterValidator(_model_ref)] | None = None
    """The model of summarisers, observers and reflectors; None: each agent's own. A role may name another one."""
    effort: Effort = "off"
    """How much that model thinks. One without `off` uses its lowest effort."""


def _memory_settings(value: Any) -> Any:
    return {"mode": value} if isinstance(value, str) else value


class RoleSettings(_Strict):
    """What the user sets for a role beside its file."""

    effort: Effort | None = None


class Config(_Strict):
    """Every setting, documented where it is declared."""

    model: str | None = None
    """The model of planner and sub-agents where none is named. `offline/surveyor` counts as none."""
    effort: Effort | None = None
    """How much models think where nothing else is said (`models.effort`); None: each model's own default."""
    roles: dict[Annotated[str, Field(max_length=60)], RoleSettings] = {}
    """By the name of a role: `[roles.planner] effort = "high"`."""
    max_parallel: int = Field(default=4, ge=1, le=256)
    """How many sub-agents work at a time."""
    slots: int = Field(default=8, ge=1, le=256)
    """How many calls to one model run at a time."""
    max_output_tokens: int = Field(default=8_192, ge=256)
    """The longest reply."""
    summarization_threshold: float = Field(default=0.75, gt=0.1, le=0.95)
    """The fraction of a context window at which compaction starts."""
    memory: Annotated[MemorySettings, BeforeValidator(_memory_settings)] = MemorySettings()
    """The mode alone, as a text, or a table."""
    tool_timeout_seconds: float = Field(default=120.0, gt=0)
    idle_shells_mib: int = Field(default=2_048, ge=0)
    """The memory that idle shells of a run may hold together, with their background jobs."""
    recall_vectors: bool = False
    """Recall also compares meanings, by a small local model; needs the extra `vectors`."""
    containment: Literal["auto", "cgroup", "namespace", "register"] = "auto"
    """What holds the processes of a session's tools together (see `agents.tools.containment`); `auto` is the
    best there is."""
    sandbox: SandboxSettings = SandboxSettings()
    """For new sessions without `--sandbox`; a session keeps what it started with."""
    anthropic: AnthropicSettings = AnthropicSettings()
    openai: OpenAISettings = OpenAISettings()
    """`openai/<model>`: the Responses API."""
    openai_chat: OpenAISettings = Field(default=OpenAISettings(), alias="openai-chat")
    """`openai-chat/<model>`: Chat Completions, as vLLM, llama.cpp, Ollama, LM Studio and OpenRouter offer it."""
    mcp_servers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,30}$")], McpServer] = {}
    """MCP tool servers by name: `command`, `args`, `env`, or `url`, `headers` (see
    `agents.tools.contract.McpServer`)."""
    agents: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{1,30}$")], AgentProgramSettings] = {}
    """Agent programs by name, as model references call them (`codex/…`): how they are started (see docs/agents.md)."""
    permissions: dict[str, Permission] = {}
    """By tool: whether it may run, must be asked for, or is denied."""
    theme: str | None = None
    keys: dict[str, str] = {}
    """The dashboard's keys by the id of what they do, as in `"act.pause" = "p"`."""
    notifications: NotificationSettings = NotificationSettings()
    alerts: AlertSettings = AlertSettings()
    reduced_motion: bool = False
    """The dashboard moves nothing by itself: no sliding, no blinking."""

    def server_of(self, ref: str) -> ServerSettings:
        """The settings of the provider that a reference names; the defaults for one that has none."""
        tables = {"anthropic": self.anthropic, "openai": self.openai, "openai-chat": self.openai_chat}
        return tables.get(provider_of(ref), ServerSettings())


class WorkspaceConfig(_Strict):
    """What a workspace's own `.watchkeeper/config.toml` may say: narrower permissions."""

    permissions: dict[str, Permission] = {}


def load_config(folder: Path | None = None) -> Config:
    """The user's configuration; defaults where there is no file.

    Raises:
        BadInput: the file is not valid TOML, or has an unknown setting; the line names it.
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
        with raising_host_faults():
            text = _content(path).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return model()
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); fix or remove it"
        ) from None
    try:
        return model.model_validate(tomllib.loads(text))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not valid TOML: {error}") from None


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


# Which model each role runs on. Only the user can make a run cost more.
#
# The user's own choice for a role is the model that the user's role file names, else the session's. A role file
# of the workspace, or the planner, may choose another model of the same provider. If that costs more, it is
# used only where the user confirmed it; otherwise the role runs on the user's own choice, and the run says so.

BUILT_IN = "built-in"
MOST_CHARACTERS = 120
"""The longest name of a model in a message: a workspace or a model wrote it."""


@dataclass(frozen=True, slots=True)
class RoleModel:
    """What a role runs on, and what it would run on if the user confirmed it."""

    role: str
    source: str
    """Where the role comes from: `built-in`, or its file."""
    model: str
    own: str
    """The user's own choice."""
    unconfirmed: str | None = None
    """The workspace's choice, which costs more than `own` (or has no known price) and was not confirmed."""
    effort: Effort | None = None
    """The effort that was chosen for the role; None: none was."""
    effort_used: Effort | None = None
    """What `model` has in its place; None: nothing."""

    def as_record(self) -> dict[str, Any]:
        """As stored in the session's row and printed by `--json`."""
        return {
            "role": self.role,
            "source": self.source,
            "model": self.model,
            "unconfirmed": self.unconfirmed,
            "effort": self.effort,
            "effort_used": self.effort_used,
        }


def role_models(
    roles: Mapping[str, Role], session_model: str, confirmed: Collection[str] = ()
) -> dict[str, RoleModel]:
    """The model of each role in a session that runs on `session_model`, by the role's name.

    `confirmed`: what the user allowed although it costs more: a model (`provider/model`) for any role, or one
    for a role (`role=provider/model`).
    """
    return {name: _role_model(role, session_model, confirmed) for name, role in roles.items()}


def task_model(
    choice: RoleModel,
    wanted: str | None,
    confirmed: Collection[str] = (),
    programs: Mapping[str, bool] | None = None,
) -> tuple[str, str | None]:
    """The model of a task for which the planner asked for `wanted`, and a warning if it gets another one.

    `programs`: agent programs by name, and whether the user's configuration has an entry for it: the planner may then
    choose it.
    """
    if wanted is None or wanted == choice.model:
        return choice.model, None
    provider = provider_of(wanted)
    if programs is not None and provider in programs:
        same = provider == provider_of(choice.own)
        if same or programs[provider] or _is_confirmed(choice.role, wanted, confirmed):
            return wanted, None
        asked = f"the planner asks for the agent program {_short(wanted)}, which you have not allowed"
        return (
            choice.model,
            f"{asked} (--allow-model {_short(wanted)}); the task runs on {_short(choice.model)}",
        )
    if provider_of(wanted) not in {*PROVIDERS, "offline"}:
        return wanted, None  # no such model: the task fails with its name
    same = provider == provider_of(choice.own)
    elsewhere = SURVEYOR not in (wanted, choice.own) and _is_whole(choice.role, provider, confirmed)
    if elsewhere or (same and _may_use(choice.role, wanted, choice.own, confirmed)):
        return wanted, None
    return (
        choice.model,
        f"the planner asks for {_dearer(wanted, choice.own)}; the task runs on {_short(choice.model)}",
    )


def warning(choice: RoleModel) -> str | None:
    """A line about a choice of the workspace that is not used, with the flag that allows it."""
    if choice.unconfirmed is None:
        return None
    return (
        f"role {choice.role} ({choice.source}) asks for {_dearer(choice.unconfirmed, choice.own)}; it runs on"
        f" {_short(choice.model)} unless you allow it: --allow-model {_short(choice.unconfirmed)}"
    )


def price_of(ref: str) -> str:
    """`$2 in, $10 out per million tokens`, or that no price is known."""
    found = rates(ref)
    return str(found) if found is not None else "no known price"


def costs_more(ref: str, than: str) -> bool:
    """Whether any kind of token costs more with `ref`. A model without a known price counts as dearer than
    any other."""
    if ref == than:
        return False
    mine, other = rates(ref), rates(than)
    if mine is None or other is None:
        return True
    return (
        mine.input_usd > other.input_usd
        or mine.output_usd > other.output_usd
        or mine.cache_read_usd > other.cache_read_usd
        or mine.cache_write_usd > other.cache_write_usd
    )


def _role_model(role: Role, session_model: str, confirmed: Collection[str]) -> RoleModel:
    # The surveyor costs nothing and needs no network: a session on it stays on it, and no other session uses
    # it.
    own = (role.model if role.trusted else role.user_model) or session_model
    if SURVEYOR in (own, session_model):
        own = session_model
    wanted = own if role.trusted else role.model_for(own)
    if wanted == own or _may_use(role.name, wanted, own, confirmed):
        return RoleModel(role.name, role.place, wanted, own)
    return RoleModel(role.name, role.place, own, own, wanted)


def _may_use(role: str, ref: str, own: str, confirmed: Collection[str]) -> bool:
    return _is_confirmed(role, ref, confirmed) or not costs_more(ref, own)


def _is_confirmed(role: str, ref: str, confirmed: Collection[str]) -> bool:
    """Whether the user allowed the model: by its reference, or with all of its provider or program."""
    return ref in confirmed or f"{role}={ref}" in confirmed or _is_whole(role, provider_of(ref), confirmed)


def _is_whole(role: str, provider: str, confirmed: Collection[str]) -> bool:
    """Whether the user allowed all models of a provider or program: `anthropic/*`."""
    return f"{provider}/*" in confirmed or f"{role}={provider}/*" in confirmed


def _dearer(ref: str, own: str) -> str:
    return f"{_short(ref)} ({price_of(ref)}), which costs more than your {_short(own)} ({price_of(own)})"


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


# How much the models of a session think. The effort is chosen when the session starts and kept with it: another one
# would change the cached prompt of every agent.

ALL_ROLES = "*"


def session_efforts(
    config: Config, flags: Mapping[str, Effort], earlier: Mapping[str, str]
) -> dict[str, str]:
    """The efforts of a new session by role, `ALL_ROLES` for those that are not named.

    `flags` go before `earlier`, those of the session that it continues, and these before the configuration. A flag for
    all roles also goes before what the configuration says about one.
    """
    found: dict[str, str] = {ALL_ROLES: config.effort} if config.effort else {}
    found |= {name: role.effort for name, role in config.roles.items() if role.effort is not None}
    if earlier:
        found = dict(earlier)
    if ALL_ROLES in flags:
        found = {}
    return {**found, **flags}


def effort_of(chosen: Mapping[str, str], role: str) -> Effort | None:
    """The effort of a role in a session with these efforts. One that this release does not know counts as none."""
    found = chosen.get(role, chosen.get(ALL_ROLES))
    return next((effort for effort in EFFORTS if effort == found), None)


def with_effort(choice: RoleModel, chosen: Mapping[str, str], host: str | None) -> RoleModel:
    """The role's model with the effort that it gets. `host`: see `models.effort.other_host`."""
    effort = effort_of(chosen, choice.role)
    used = efforts.choose(choice.model, host, effort).used if effort is not None else None
    return replace(choice, effort=effort, effort_used=used)
