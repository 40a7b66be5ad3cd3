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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from watchkeeper.agents.backends.programs import AgentProgramSettings
from watchkeeper.agents.roles import Role
from watchkeeper.agents.tools.contract import McpServer, Permission
from watchkeeper.models import effort as efforts
from watchkeeper.models.registry import PROVIDERS, SURVEYOR, provider_of, rates
from watchkeeper.records.errors import BadInput, raising_host_faults
from watchkeeper.records.messages import EFFORTS, Effort
from watchkeeper.records.text import one_line, parser_mistake
from watchkeeper.store.guard import Caps
from watchkeeper.store.place import config_folder

MOST_BYTES = 1_000_000
"""The largest configuration file."""

M = TypeVar("M", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _server_url(value: str) -> str:
    if not re.match(r"https?://[^/\s]", value.strip()):
        raise ValueError(f"{value!r} is not a valid address; use the form http://HOST:PORT/v1")
    return value.strip()


class ServerSettings(_Strict):
    """Where a provider's models are reached. Unset: the SDK's own environment variables."""

    base_url: str | None = None
    """A server that speaks the Messages API. Unset: `ANTHROPIC_BASE_URL`, or Anthropic's own."""
    api_key_env: str | None = None
    """The name of the environment variable that holds the key. The key itself is never in a file."""
    context_window: int | None = Field(default=None, gt=0)
    """Tokens, for a model whose window is not known."""


class AnthropicSettings(ServerSettings):
    """Claude, or a server that speaks its protocol."""

    prompt_cache: bool = True
    """Turn it off for servers that refuse `cache_control`."""


class OpenAISettings(ServerSettings):
    """OpenAI, or a server that speaks one of its protocols."""

    base_url: Annotated[str, AfterValidator(_server_url)] | None = None
    """A server that speaks this API; `/v1` may be left out. Unset: `OPENAI_BASE_URL`, or OpenAI's own."""


class NotificationSettings(_Strict):
    """When the dashboard notifies the user (it reads this table by itself, without this module)."""

    needs_input: bool = True
    """A question is pending."""
    task_failed: bool = True
    """A task failed."""
    budget: bool = True
    """80 % of a budget is spent, or all of it."""
    run_finished: bool = True
    """The run ended."""
    when_focused: bool = False
    """Notify while the terminal has the focus, too."""
    terminal: Literal["bell", "osc9", "osc777", "off"] = "bell"
    """How the terminal notifies: `bell`, `osc9`, `osc777` or `off`."""


def _webhook_url(value: str) -> str:
    if not re.match(r"https?://[^/\s]+", value.strip()):
        raise ValueError(f"{value!r} is not a valid address; use the form https://HOST/PATH")
    return value.strip()


class AlertSettings(_Strict):
    """What a run does when it needs a person, whether a dashboard is open or not."""

    command: list[str] = []
    """A program and its arguments. It gets a JSON object on standard input (see docs/alerts.md)."""
    webhook: Annotated[str, AfterValidator(_webhook_url)] | None = None
    """An address to which the same object is posted."""
    on: list[Literal["question", "failed", "paused", "parked", "finished", "quota", "cap"]] = [
        "question", "failed", "paused", "parked", "finished", "quota", "cap",
    ]  # fmt: skip
    """When: `question`, `failed`, `paused`, `parked`, `finished`, `quota`, `cap`; all of them by default."""


class GuardSettings(_Strict):
    """Caps for sessions of other programs. At a cap, an alert is sent, and hooks deny the session's next agent."""

    max_agents: int | None = Field(default=None, ge=1)
    """Agents that a session may start beside its main one."""
    max_cost_per_session_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """What a session may cost."""
    max_cost_per_hour_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """What a session may cost within an hour."""
    max_identical_calls: int | None = Field(default=None, ge=2)
    """How often an agent may make the same call of a tool, one after the other."""

    @property
    def caps(self) -> Caps:
        """As `store.guard` takes them."""
        return Caps(
            self.max_agents,
            self.max_cost_per_session_usd,
            self.max_cost_per_hour_usd,
            self.max_identical_calls,
        )


def _model_ref(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+/\S{1,200}", value):
        raise ValueError(f"{value!r} is not a model; write it as provider/model")
    return value


class SandboxSettings(_Strict):
    """What confines the commands of agents (`agents.tools.sandbox`)."""

    bash: Literal["off", "workspace", "workspace,no-network"] = "off"
    """`off`, `workspace` or `workspace,no-network`. `--sandbox` wins over it."""


class MemorySettings(_Strict):
    """How agents' contexts are kept short."""

    mode: Literal["summary", "observational"] = "summary"
    """Who keeps older messages short: a summariser, or (`"observational"`) observers and reflectors."""
    model: Annotated[str, AfterValidator(_model_ref)] | None = None
    """The model of summarisers, observers and reflectors. Unset: each agent's own. A role may name another one."""
    effort: Effort = "off"
    """How much that model thinks. One without `off` uses its lowest effort."""


def _memory_settings(value: Any) -> Any:
    return {"mode": value} if isinstance(value, str) else value


class RoleSettings(_Strict):
    """What the user sets for a role beside its file."""

    effort: Effort | None = None
    """How much the models of this role think."""


class Config(_Strict):
    """Every setting, documented where it is declared."""

    model: str | None = None
    """The model of planner and sub-agents where none is named. `offline/surveyor` counts as none."""
    effort: Effort | None = None
    """How much models think where `--effort` says nothing: `off` to `max`. Unset: each model's own default."""
    roles: dict[Annotated[str, Field(max_length=60)], RoleSettings] = {}
    """By the name of a role: `[roles.planner] effort = "high"`."""
    max_parallel: int = Field(default=4, ge=1, le=256)
    """How many sub-agents work at a time (1 to 256)."""
    slots: int = Field(default=8, ge=1, le=256)
    """How many calls to one model run at a time."""
    max_output_tokens: int = Field(default=8_192, ge=256)
    """The longest reply."""
    summarization_threshold: float = Field(default=0.75, gt=0.1, le=0.95)
    """The fraction of a context window at which compaction starts."""
    memory: Annotated[MemorySettings, BeforeValidator(_memory_settings)] = MemorySettings()
    """The mode of the table `[memory]`, or the table itself. `--memory` chooses the mode for one run."""
    tool_timeout_seconds: float = Field(default=120.0, gt=0)
    """How long a tool may run."""
    idle_shells_mib: int = Field(default=2_048, ge=0)
    """The memory, in MiB, that idle shells of a run may hold together, with their background jobs."""
    recall_vectors: bool = False
    """Recall also compares meanings, with a small local model; it needs the extra `vectors`."""
    containment: Literal["auto", "cgroup", "namespace", "register"] = "auto"
    """What ends the processes of a killed host's tools: `cgroup`, `namespace`, `register`, or the best that the
    machine allows (`auto`)."""
    sandbox: SandboxSettings = SandboxSettings()
    """For new sessions without `--sandbox`. A session keeps what it started with."""
    anthropic: AnthropicSettings = AnthropicSettings()
    """`anthropic/<model>`: the Messages API."""
    openai: OpenAISettings = OpenAISettings()
    """`openai/<model>`: the Responses API."""
    openai_chat: OpenAISettings = Field(default=OpenAISettings(), alias="openai-chat")
    """`openai-chat/<model>`: Chat Completions, as vLLM, llama.cpp, Ollama, LM Studio and OpenRouter offer it."""
    mcp_servers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,30}$")], McpServer] = {}
    """MCP tool servers by name: a program to start (`command`), or a server that runs (`url`)."""
    agents: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{1,30}$")], AgentProgramSettings] = {}
    """Agent programs by name, as model references call them (`codex/…`): how they are started."""
    permissions: dict[str, Permission] = {}
    """By tool or pattern of tools: `allow`, `ask` or `deny`."""
    theme: str | None = None
    """The dashboard's theme. `WATCHKEEPER_THEME` wins over it."""
    keys: dict[str, str] = {}
    """The dashboard's keys by the id of what they do, as in `"pause" = "f2"`."""
    notifications: NotificationSettings = NotificationSettings()
    """When the dashboard notifies you."""
    alerts: AlertSettings = AlertSettings()
    """Whom a run calls when it needs a person."""
    guard: GuardSettings = GuardSettings()
    """Caps for sessions of other programs."""
    reduced_motion: bool = False
    """The dashboard shows no animations."""

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
            f"cannot read {path} ({getattr(error, 'strerror', None) or error}); fix or remove it"
        ) from None
    try:
        return model.model_validate(tomllib.loads(text))
    except ValidationError as error:
        raise BadInput(f"{path}: {_setting_mistake(error, model)}") from None
    except RecursionError:
        raise BadInput(f"{path} is not valid TOML: it is nested too deeply; simplify it") from None
    except ValueError as error:
        raise BadInput(f"{path} is not valid TOML: {parser_mistake(error)}; fix it") from None


_WANTED = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "string": "text in quotes",
    "list": "a list in square brackets", "tuple": "a list in square brackets", "dict": "a table", "model": "a table",
    "dataclass": "a table",
}  # fmt: skip
"""What the beginning of a type of pydantic's errors asks for."""


def _setting_mistake(error: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong with the first setting that cannot be used, and what to write."""
    first = error.errors()[0]
    kind, given, limits = first["type"], first["input"], first.get("ctx", {})
    *above, last = [str(part) for part in first["loc"]] or [""]
    where = ".".join([*above, last])
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _settings_at(model, above)
        near = get_close_matches(last, known, 1)
        hint = (
            f"did you mean {near[0]}?"
            if near
            else f"known settings: {', '.join(known)}"
            if known
            else "remove it"
        )
        return f"{where}: unknown setting; {hint}"
    if kind in ("missing", "missing_argument"):
        return f"{where} is missing; add it"
    if last == "[key]":
        *outer, name = above
        return f"{'.'.join(outer)}: {one_line(name, 80)!r} is not a valid name; use letters, digits, - and _"
    # A table or a list may hold a secret.
    shown = one_line(repr(given), 80) if isinstance(given, str | int | float) else "this"
    if kind in ("literal_error", "enum"):
        return f"{where}: {shown} is not valid; write {str(limits.get('expected')).replace(chr(39), chr(34))}"
    bounds = [f"{words} {limits[name]:g}" for name, words in _BOUNDS.items() if name in limits]
    if bounds:
        return f"{where}: {shown} is out of range; write a number {' and '.join(bounds)}"
    wanted = _WANTED.get(kind.partition("_")[0])
    if wanted is not None and kind.endswith(("_type", "_parsing", "_from_float")):
        return f"{where}: {shown} is not valid; write {wanted}"
    if kind == "string_too_long":
        return f"{where}: write at most {limits['max_length']} characters"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"


_BOUNDS = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}


def _settings_at(model: type[BaseModel], above: Sequence[str]) -> list[str]:
    """The settings that exist below these tables; none where their names are free."""
    names = iter(above)
    for name in names:
        known = {field.alias or own: field for own, field in model.model_fields.items()}
        inner = known[name].annotation if name in known else None
        if get_origin(inner) is dict and next(names, None) is not None:
            inner = get_args(inner)[1]
        if is_dataclass(inner):
            return [field.name for field in fields(inner)]
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return [field.alias or own for own, field in model.model_fields.items()]


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
        asked = f"the planner wants to use the agent program {_short(wanted)}, which you have not allowed"
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
        f"the planner wants {_dearer(wanted, choice.own)}; the task runs on {_short(choice.model)}",
    )


def warning(choice: RoleModel) -> str | None:
    """A line about a choice of the workspace that is not used, with the flag that allows it."""
    if choice.unconfirmed is None:
        return None
    return (
        f"role {choice.role} ({choice.source}) requests {_dearer(choice.unconfirmed, choice.own)}, but runs on "
        f"{_short(choice.model)} unless you allow that model: --allow-model {_short(choice.unconfirmed)}"
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
