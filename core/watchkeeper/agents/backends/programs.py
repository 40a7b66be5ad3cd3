"""Which agent programs there are, how each is started, and what of the host's environment it sees.

A program that speaks ACP is one entry of the user's configuration (`[agents.NAME]`); one with a protocol of its own
is a driver of one file and a line in `BUILT_IN`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from watchkeeper.agents.backends import (
    AgentBackend,
    BackendFailed,
    BackendSpec,
    Features,
    MemoryServer,
    ProgramProcess,
)
from watchkeeper.agents.backends.acp import (
    CLAUDE,
    OPENCODE,
    OPENCODE_PERMISSION,
    Acp,
    AcpProgram,
    ClaudeCode,
    OpenCode,
)
from watchkeeper.agents.backends.codex import ARGUMENTS as CODEX_ARGUMENTS
from watchkeeper.agents.backends.codex import Codex
from watchkeeper.agents.tools.containment import Containment
from watchkeeper.agents.tools.processes import worker_environment
from watchkeeper.records.errors import BadInput
from watchkeeper.records.sandboxes import OFF
from watchkeeper.store.agents import Agent

if TYPE_CHECKING:
    from watchkeeper.agents.limits import AgentControl

log = logging.getLogger(__name__)

DEFAULT_MODEL = "default"
"""`codex/default` is the model that the program itself would take."""
VERSION_SECONDS = 10.0


class AgentProgramSettings(BaseModel):
    """`[agents.NAME]` of the user's configuration: how a program is started, and with which instructions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: tuple[str, ...] = ()
    """The program and its arguments. Built in: `codex app-server …`, `claude-agent-acp`, `opencode acp`."""
    protocol: Literal["acp", ""] = ""
    """`acp` for a program that Watchkeeper does not know by name."""
    environment: dict[str, str] = {}
    """Variables that it gets, besides those that every program gets."""
    pass_environment: tuple[str, ...] = ()
    """Names of variables of yours that are passed on, such as the one of an API key."""
    context_window: int = Field(default=200_000, gt=0)
    """Tokens, until the program reports its own."""
    options: dict[str, Any] = {}
    """Codex: `sandbox`, `approval_policy`, `config` (as its `-c`). Claude Code: `claude_options`. Over ACP: `mode`, the
    session mode."""


@dataclass(frozen=True, slots=True)
class Program:
    """One agent program, ready to be started."""

    name: str
    """In model references: `codex/gpt-5`."""
    label: str
    command: tuple[str, ...]
    make: Callable[[ProgramProcess], AgentBackend]
    features: Features
    reader: str | None = None
    """The reader of its own records (see `transcripts`), if there is one."""
    jsonrpc_field: bool = True
    passed: tuple[str, ...] = ()
    """Names of the host's variables that it gets."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set: no network at start, no updates."""
    settings: AgentProgramSettings = field(default_factory=AgentProgramSettings)
    tested: tuple[str, ...] = ()
    """The versions with which `.ci/heavy agents` was run, oldest first."""
    configured: bool = False
    """Whether the user's configuration has an entry for it, so that a planner may choose it for a task."""

    @property
    def options(self) -> Mapping[str, Any]:
        return self.settings.options

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.settings.command or self.command

    def path(self, environ: Mapping[str, str]) -> str | None:
        """Where the program is, or None where it is not installed."""
        return shutil.which(self.arguments[0], path=environ.get("PATH"))

    def model_of(self, ref: str) -> str | None:
        """The model in the program's own words; None for its default."""
        name = ref.partition("/")[2]
        return name if name and name != DEFAULT_MODEL else None

    def environment(self, environ: Mapping[str, str], agent_id: str) -> dict[str, str]:
        """What it starts with: the allowlist of tools, the agent's mark, and what the user passes on."""
        names = (*self.passed, *self.settings.pass_environment)
        passed = {name: environ[name] for name in names if name in environ}
        return {**worker_environment(environ, agent_id), **passed, **self.fixed, **self.settings.environment}

    async def start(self, spec: BackendSpec, agent_id: str, containment: Containment) -> AgentBackend:
        """Start the program for one agent; its session is not open yet.

        Raises:
            BackendFailed: it is not installed, or does not start.
        """
        if shutil.which(self.arguments[0], path=spec.environ.get("PATH")) is None:
            raise BackendFailed(
                f"{self.label} is not installed: program {self.arguments[0]} not found; see `wk doctor`"
            )
        process = ProgramProcess(version_field=self.jsonrpc_field)
        backend = self.make(process)
        command, environ = backend.prepare(self.arguments, spec)
        await process.start(
            command, folder=spec.folder, environ=environ, agent_id=agent_id, containment=containment
        )
        return backend


_PROXY = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
)
_XDG = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")

BUILT_IN: tuple[Program, ...] = (
    Program(
        "codex", "Codex", ("codex", *CODEX_ARGUMENTS), Codex, Codex.features, reader="codex",
        jsonrpc_field=False, tested=("0.169.0", "0.171.0"), passed=("CODEX_HOME", "OPENAI_API_KEY", "OPENAI_BASE_URL", *_PROXY),
    ),
    Program(
        "claude-code", "Claude Code", ("claude-agent-acp",), ClaudeCode, CLAUDE.features,
        reader="claude-code", tested=("0.49.0", "0.101.0"),
        passed=("CLAUDE_CONFIG_DIR", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL",
                "CLAUDE_CODE_OAUTH_TOKEN", *_PROXY),
        fixed={"DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_ERROR_REPORTING": "1",
               "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "ENABLE_TOOL_SEARCH": "false"},
    ),
    Program(
        "opencode", "OpenCode", ("opencode", "acp"), OpenCode, OPENCODE.features,
        reader="opencode", tested=("1.18.33",), passed=("OPENCODE_CONFIG", "OPENCODE_CONFIG_CONTENT", *_XDG, *_PROXY),
        fixed={"npm_config_offline": "true", "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1",
               "OPENCODE_DISABLE_PROJECT_CONFIG": "1", "OPENCODE_PERMISSION": json.dumps(OPENCODE_PERMISSION)},
    ),
)  # fmt: skip
"""The programs that Watchkeeper knows by name. A driver for another one is one more entry."""


def load_programs(settings: Mapping[str, AgentProgramSettings]) -> dict[str, Program]:
    """Every program by name: the built-in ones as the user's configuration changes them, and further ACP programs."""
    found = {
        one.name: replace(one, settings=settings.get(one.name, one.settings), configured=one.name in settings)
        for one in BUILT_IN
    }
    for name, given in settings.items():
        if name not in found and given.command:
            program = AcpProgram(name)
            found[name] = Program(
                name, name, given.command, partial(Acp, program=program), program.features,
 settings=given, configured=True,
            )  # fmt: skip
    return found


_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?[\w.+-]*")


def version_of(program: Program, environ: Mapping[str, str]) -> str:
    """The version of an installed program: of its npm package, else what it prints; empty where neither says."""
    path = program.path(environ)
    if path is None:
        return ""
    folder = _package(path)
    if folder is not None and (version := _field(folder / "package.json", "version")):
        return version
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS, env=dict(environ),
            stdin=subprocess.DEVNULL, check=False,
        ).stdout  # fmt: skip
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return ""
    match = _VERSION.search(said)
    return match[0] if match else ""


def version_behind(program: Program, environ: Mapping[str, str]) -> str:
    """The version of the program behind an adapter, such as Claude Code; empty where there is none, or it is not known."""
    path = program.path(environ) if program.name == "claude-code" else None
    folder = _package(path) if path is not None else None
    for place in (folder, *folder.parents) if folder is not None else ():
        if version := _field(
            place / "node_modules/@anthropic-ai/claude-agent-sdk/package.json", "claudeCodeVersion"
        ):
            return version
    return ""


def _package(path: str) -> Path | None:
    """The npm package that a program is part of."""
    for folder in list(Path(path).resolve().parents)[:4]:
        if folder.parent.name == "node_modules" or folder.parent.parent.name == "node_modules":
            return folder
    return None


def _field(package: Path, name: str) -> str:
    try:
        return str(json.loads(package.read_text("utf-8"))[name])[:60]
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _opencode_settings(environ: Mapping[str, str], home: Path) -> str:
    """The text of a person's settings of OpenCode."""
    folder = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "opencode"
    named = environ.get("OPENCODE_CONFIG")
    places = [folder / name for name in ("opencode.json", "opencode.jsonc", "config.json")]
    text = environ.get("OPENCODE_CONFIG_CONTENT", "")
    for place in [*places, *([Path(named)] if named else [])]:
        with suppress(OSError):
            text += place.read_text("utf-8", "replace")
    return text


_KEYS = {
    "codex": ("OPENAI_API_KEY", "CODEX_API_KEY"),
    "claude-code": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
}
_CLOUDS = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")


def is_logged_in(program: Program, environ: Mapping[str, str]) -> bool | None:
    """Whether the program has credentials of its own or a key; None where that is not known, as with a provider that the
    person configured and that may need neither.

    Watchkeeper looks only whether the file with credentials is there. It never reads it. Of a program's settings it looks
    whether they name a key or a provider.
    """
    home, given = Path(environ.get("HOME") or Path.home()), program.environment(environ, "")
    named = {*program.settings.environment, *program.settings.pass_environment} & set(given)
    match program.name:
        case "codex":
            folder = Path(given.get("CODEX_HOME") or home / ".codex")
            place, settings = folder / "auth.json", json.dumps(program.options.get("config", {}), default=str)
            with suppress(OSError):
                settings += (folder / "config.toml").read_text("utf-8", "replace")
            other = "model_provider" in settings
        case "claude-code":
            place = Path(given.get("CLAUDE_CONFIG_DIR") or home / ".claude") / ".credentials.json"
            other = any(given.get(name) for name in _CLOUDS)
        case "opencode":
            place = Path(given.get("XDG_DATA_HOME") or home / ".local" / "share") / "opencode" / "auth.json"
            settings = _opencode_settings(given, home)
            if '"apiKey"' in settings or any(given[name] for name in named if name.endswith("_API_KEY")):
                return True
            other = '"provider"' in settings
        case _:
            return None
    if os.path.exists(place) or any(given.get(name) for name in _KEYS.get(program.name, ())):
        return True
    return None if other else False


def refuse_program(sandbox: str, ref: str, programs: Mapping[str, Program]) -> None:
    """Refuse an agent program in a session whose `bash` is confined: it runs commands of its own.

    Raises:
        BadInput: the model reference names a program.
    """
    program = programs.get(ref.partition("/")[0])
    if sandbox != OFF and program is not None:
        raise BadInput(
            f"{ref}: the sandbox ({sandbox}) does not confine commands that {program.label} runs; use its own sandbox and"
            " `--sandbox off`, or another model"
        )


@dataclass(slots=True)
class AgentPrograms:
    """The programs of one host, and what they are started with."""

    found: Mapping[str, Program]
    environ: Mapping[str, str]
    containment: Containment
    serve: Callable[[Agent, AgentControl], Awaitable[MemoryServer]] | None = None
    """Makes the memory tools reachable for an agent's program."""
    finished: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By planner: status and summary with which its call of `finish_session` in the present turn ends the session."""
    _closing: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """By agent: its program is being closed."""

    def of(self, ref: str) -> Program | None:
        """The program of a model reference, or None for a model that Watchkeeper's own loop calls."""
        return self.found.get(ref.partition("/")[0])

    def close_later(self, agent_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Close the program of an agent whose loop has ended, in the background."""
        task = asyncio.create_task(work, name=f"close-{agent_id}")
        self._closing[agent_id] = task
        task.add_done_callback(lambda done: self._forget(agent_id, done))

    async def closed(self, agent_id: str) -> None:
        """Wait until an earlier program of this agent has ended."""
        if (task := self._closing.get(agent_id)) is not None:
            await asyncio.wait([task])

    async def aclose(self) -> None:
        """Wait until every program has ended."""
        if self._closing:
            await asyncio.wait(list(self._closing.values()))

    def _forget(self, agent_id: str, task: asyncio.Task[None]) -> None:
        if self._closing.get(agent_id) is task:
            del self._closing[agent_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("could not close a program of agent %s: %s", agent_id, error)
