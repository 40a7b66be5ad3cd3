"""Assemble a host from a session's row, the user's configuration and the workspace.

Every model is wrapped in `RedactedModel`, so that no text of a model reaches a message, an observation, an error
or a rate limit's reason with a key in it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from watchkeeper.agents.backends.programs import (
    AgentPrograms,
    AgentProgramSettings,
    Program,
    load_programs,
    refuse_program,
)
from watchkeeper.agents.backends.tool_server import ToolServer
from watchkeeper.agents.environment import Environment, LoopSettings
from watchkeeper.agents.limits import Budgets, UsageLimits
from watchkeeper.agents.memory_tools import RecallTool, memory_tools
from watchkeeper.agents.roles import ALWAYS, Roles, agents_md, load_roles
from watchkeeper.agents.session_tools import PlanTools, artifact_tools
from watchkeeper.agents.tools.child import Child, StartWorker
from watchkeeper.agents.tools.containment import SessionContainment, check_containment
from watchkeeper.agents.tools.contract import Tool
from watchkeeper.agents.tools.mcp import McpServers
from watchkeeper.agents.tools.processes import SESSION_VARIABLE, mark_of
from watchkeeper.agents.tools.workers import Permissions, WorkerPool, builtin_tools
from watchkeeper.agents.worktrees import MergeTool, Worktrees
from watchkeeper.memory.tokens import Calibrations, TokenCounter, default_counter
from watchkeeper.models import effort as efforts
from watchkeeper.models import registry as prices
from watchkeeper.models.gate import Gate, Gates
from watchkeeper.models.registry import ModelConfig, chosen_server, provider_of, resolve
from watchkeeper.records.errors import BadInput, StoreUnusable
from watchkeeper.records.messages import (
    Cost,
    Delta,
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    Reply,
    Retrying,
    Usage,
    UsageSoFar,
)
from watchkeeper.records.ports import Clock, IdSource, random_id
from watchkeeper.records.redact import Redactor, known_secrets
from watchkeeper.records.sandboxes import OFF
from watchkeeper.records.states import AGENT_ENDED, SessionStatus
from watchkeeper.records.tool_inputs import is_path_granted
from watchkeeper.runtime import background, lifecycle
from watchkeeper.runtime.background import Alerts, CommandWatch, Heartbeat, Watching
from watchkeeper.runtime.config import (
    Config,
    effort_of,
    load_config,
    load_workspace_config,
    role_models,
    with_effort,
)
from watchkeeper.runtime.config import warning as role_warning
from watchkeeper.runtime.host import LiveRows, SessionHost
from watchkeeper.runtime.lifecycle import SessionSettings, check_workspace
from watchkeeper.store import agents, budgets, sessions
from watchkeeper.store.lease import is_watched
from watchkeeper.store.place import config_folder
from watchkeeper.store.transaction import SessionStore, Transaction
from watchkeeper.store.writer import Group


class RedactedModel:
    """A model whose replies are redacted.

    Deltas pass unchanged: a key may come in pieces, and `LiveRows`, which joins them, redacts them.

    Args:
        model: the model that it wraps.
        redact: removes secrets from any JSON-like value.
    """

    def __init__(self, model: Model, redact: Callable[[Any], Any]) -> None:
        self._model = model
        self._redact = redact

    @property
    def ref(self) -> str:
        return self._model.ref

    @property
    def context_window(self) -> int:
        return self._model.context_window

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """The events of the wrapped model, redacted.

        Raises:
            ModelError: that of the wrapped model, with a redacted message.
        """
        try:
            async for event in self._model.stream(request):
                yield event if isinstance(event, Delta) else self._clean(event)
        except ModelError as error:
            error.args = tuple(self._redact(error.args))
            raise

    def _clean(self, event: Reply | Retrying | UsageSoFar) -> Reply | Retrying | UsageSoFar:
        if isinstance(event, Retrying):
            return replace(event, reason=self._redact(event.reason))
        if isinstance(event, UsageSoFar):
            return replace(event, request_id=self._redact(event.request_id))
        return replace(
            event,
            content=self._redact(event.content),
            stop_reason=self._redact(event.stop_reason),
            request_id=self._redact(event.request_id),
            model=self._redact(event.model),
            invalid_inputs=self._redact(dict(event.invalid_inputs)),
            quota=tuple(replace(one, account=self._redact(one.account)) for one in event.quota),
        )


ApprovalTimeout = Callable[[float | None], float | None]
"""From the time-out in a session's settings to the one of the host that runs now."""


def as_stored(seconds: float | None) -> float | None:
    """The time-out that an embedding program wrote into the settings."""
    return seconds


@dataclass(frozen=True, slots=True)
class Machine:
    """What a host uses of the machine that it runs on. The simulation gives it a machine that a seed decides."""

    watch: Watching = CommandWatch
    """Begins to watch for commands."""
    rng: random.Random | None = None
    """Spreads the moments at which parked agents continue."""
    start_worker: StartWorker = Child.start
    """Starts the workers of tools."""
    programs: Callable[[Mapping[str, AgentProgramSettings]], Mapping[str, Program]] = load_programs
    """From the user's configuration to the agent programs, by name."""
    tool_server: Callable[[], ToolServer] = ToolServer
    """Makes Watchkeeper's own tools reachable for agent programs."""


@dataclass(slots=True)
class AssembledHost:
    """A host and what must be closed after it."""

    host: SessionHost
    pool: WorkerPool
    mcp: McpServers
    models: dict[str, Model]
    """The models that this host resolved."""
    containment: SessionContainment
    tool_server: ToolServer

    async def aclose(self) -> None:
        """End worker processes and MCP servers, and close the models' connections."""
        if self.host.environment.programs is not None:
            await self.host.environment.programs.aclose()
        if self.host.environment.worktrees is not None:
            await self.host.environment.worktrees.aclose()
        await self.tool_server.aclose()
        await self.pool.aclose()
        await self.mcp.aclose()
        await self.containment.aclose()
        for model in self.models.values():
            close = getattr(model, "close", None)
            if close is not None:
                await close()


async def assemble(
    store: SessionStore,
    clock: Clock,
    *,
    once: int | None = None,
    config: Config | None = None,
    model: Model | None = None,
    new_id: IdSource = random_id,
    approval_timeout: ApprovalTimeout = as_stored,
    machine: Machine | None = None,
) -> AssembledHost:
    """A host for the session that `store` has claimed.

    `approval_timeout` gives this host's time-out of questions.
    `model` replaces every model reference, for embedding programs and for tests.

    Raises:
        BadInput: the configuration or the workspace cannot be used. The session is paused with that reason
            (not for a host that was started for one command: that leaves the session as it was).
        LeaseLost: another host has the session now.
    """
    options = _Options(once, config, model, new_id, approval_timeout, machine or Machine())
    try:
        async with AsyncExitStack() as undo:
            made = await _while_ours(store, _assemble(store, clock, undo, options))
            undo.pop_all()
            return made
    except BadInput as error:
        if once is None:
            reason, open_ones = str(error), (SessionStatus.RUNNING, SessionStatus.PAUSED)
            await store.commit(lambda tx: lifecycle.pause_session(tx, reason, among=open_ones))
        raise


@dataclass(frozen=True, slots=True)
class _Options:
    """What the caller of `assemble` chose."""

    once: int | None
    config: Config | None
    model: Model | None
    new_id: IdSource
    approval_timeout: ApprovalTimeout
    machine: Machine


async def _while_ours(store: SessionStore, assembling: Coroutine[Any, Any, AssembledHost]) -> AssembledHost:
    """What `assembling` makes. It is cancelled when this host loses its session: the servers and worktrees are those
    of another one then."""

    async def until_lost() -> None:
        while True:
            await asyncio.sleep(background.HEARTBEAT_SECONDS)
            await _confirm(store)

    made, lost = asyncio.create_task(assembling), asyncio.create_task(until_lost())
    try:
        await asyncio.wait((made, lost), return_when=asyncio.FIRST_COMPLETED)
        if not made.done():
            await lost
        return await made
    finally:
        made.cancel()
        lost.cancel()
        await asyncio.gather(made, lost, return_exceptions=True)


async def _confirm(store: SessionStore) -> None:
    """Raise `LeaseLost` unless this host has its session still."""
    await store.commit(lambda tx: None)


@dataclass(frozen=True, slots=True)
class _Session:
    """The session that a host is assembled for, and what it is assembled with."""

    store: SessionStore
    clock: Clock
    options: _Options
    workspace: Path
    model: str
    """The reference of its model."""
    settings: SessionSettings
    config: Config
    redact: Redactor


async def _assemble(
    store: SessionStore, clock: Clock, undo: AsyncExitStack, options: _Options
) -> AssembledHost:
    stored = sessions.require(store, store.session_id)
    workspace, settings = Path(stored.workspace), SessionSettings.load(stored.settings)
    check_workspace(workspace, store.path)
    config = options.config or load_config()
    roles = load_roles(workspace, config_folder())
    redact = Redactor(os.environ, known_secrets(config.model_dump(), os.environ))
    session = _Session(store, clock, options, workspace, stored.model, settings, config, redact)
    models = _Models(session)
    chosen = {
        name: with_effort(one, settings.efforts, models.host_of(one.model))
        for name, one in role_models(roles, session.model, settings.allow_models).items()
    }
    tools = await _start_tools(session, undo, [one.model for one in chosen.values()])
    environment, live, heartbeat = _environment(session, roles, models, tools)
    tools.server.use(environment)
    host = SessionHost(
        environment, live, roles, models=chosen, settings=settings, agents_md=agents_md(workspace), heartbeat=heartbeat,
        once=options.once, watch=options.machine.watch,
    )  # fmt: skip
    if options.once is None and (config.alerts.command or config.alerts.webhook):
        host.alerts = Alerts(store, config.alerts, redact)
    lacking = [efforts.notice(one.model, models.host_of(one.model), one.effort) for one in chosen.values()]
    host.warnings = redact(
        [
            *tools.left,
            *roles.warnings,
            *_roles_gone(store, roles),
            *(line for one in chosen.values() if (line := role_warning(one)) is not None),
            *dict.fromkeys(line for line in lacking if line is not None),
            *tools.mcp.warnings,
            *([tools.recalling.warning] if tools.recalling.warning else []),
        ]
    )
    return AssembledHost(host, tools.pool, tools.mcp, models.resolved, tools.containment, tools.server)


class _Models:
    """The models of one host: each is resolved when it is first called, and its replies are redacted."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self.resolved: dict[str, Model] = {}

    def host_of(self, ref: str) -> str | None:
        """The server of a model, where it is another one than the provider's own."""
        return efforts.other_host(ref, chosen_server(provider_of(ref), self._configured_server(ref)))

    def price(
        self, ref: str, usage: Usage, exact: bool, modifiers: tuple[str, ...] = (), searches: int = 0, /
    ) -> Cost:
        """What a call cost."""
        server = chosen_server(provider_of(ref), self._configured_server(ref))
        return prices.price(ref, usage, exact, base_url=server, modifiers=modifiers, searches=searches)

    def of(self, ref: str) -> Model:
        """The model of a reference."""
        session = self._session
        if session.options.model is not None:
            return RedactedModel(session.options.model, session.redact)
        if ref not in self.resolved:
            settings = session.settings
            configured = model_config(
                session.config, ref, settings.speed, settings.context_tokens, self._local_server(ref)
            )
            self.resolved[ref] = resolve(
                ref, config=replace(configured, notice=self._note_refusal), clock=session.clock
            )
        return RedactedModel(self.resolved[ref], session.redact)

    def _local_server(self, ref: str) -> str | None:
        is_own = provider_of(ref) == provider_of(self._session.model)
        return self._session.settings.base_url if is_own else None

    def _configured_server(self, ref: str) -> str | None:
        return self._local_server(ref) or self._session.config.server_of(ref).base_url

    def _note_refusal(self, line: str) -> None:
        session, store = self._session, self._session.store
        at, text = session.clock.now(), session.redact(line)

        def write(group: Group) -> None:
            Transaction(group, store.session_id, store.epoch, at).event("host.warning", text=text)

        with suppress(StoreUnusable):  # the run meets the same fault at its next step
            store.writer.submit(write)


@dataclass(frozen=True, slots=True)
class _Tools:
    """What runs the tools of one host."""

    environ: Mapping[str, str]
    containment: SessionContainment
    left: list[str]
    """Lines about what an earlier host's tools left running."""
    pool: WorkerPool
    programs: Mapping[str, Program]
    mcp: McpServers
    recalling: RecallTool
    worktrees: Worktrees
    server: ToolServer
    counter: TokenCounter


async def _start_tools(session: _Session, undo: AsyncExitStack, models: Iterable[str]) -> _Tools:
    """End what an earlier host left running, then start workers and servers, and recover worktrees."""
    store, options, settings, config = session.store, session.options, session.settings, session.config
    mark = mark_of(store.session_id, store.path)
    kind = await asyncio.to_thread(check_containment, config.containment)
    containment = SessionContainment(store, mark, kind)
    undo.push_async_callback(containment.aclose)
    # What an earlier host's tools left running when it was killed ends before a model looks whether it had
    # its effect.
    await _confirm(store)
    left = await containment.end_earlier()
    environ = os.environ | {SESSION_VARIABLE: mark}
    pool = WorkerPool(
        settings.max_parallel,
        session.workspace,
        environ,
        database_path=store.path,
        containment=containment,
        timeout_seconds=config.tool_timeout_seconds,
        sandbox=settings.sandbox,
        most_idle_shell_bytes=config.idle_shells_mib << 20,
        start=options.machine.start_worker,
    )
    undo.push_async_callback(pool.aclose)
    programs = options.machine.programs(config.agents)
    if options.once is None and settings.sandbox != OFF:
        for ref in models:
            refuse_program(settings.sandbox, ref, programs)
        await pool.check_sandbox()
    mcp = McpServers(
        config.mcp_servers,
        session.workspace,
        environ,
        session.redact,
        clock=session.clock,
        containment=containment,
    )
    undo.push_async_callback(mcp.aclose)
    counter = default_counter()
    # The first count loads the encoding, which takes a third of a second: beside the loop, while servers
    # start.
    await asyncio.gather(mcp.start(), asyncio.to_thread(counter.count, "warm"))
    worktrees = Worktrees(store, session.workspace, environ, session.redact)
    await _confirm(store)
    await worktrees.recover()
    return _Tools(
        environ, containment, left, pool, programs, mcp, RecallTool(store, vectors=config.recall_vectors),
        worktrees, options.machine.tool_server(), counter,
    )  # fmt: skip


def _environment(
    session: _Session, roles: Roles, models: _Models, tools: _Tools
) -> tuple[Environment, LiveRows, Heartbeat]:
    """What agents work with, the rows that show their activity, and the heartbeat."""
    store, clock, options, settings, config = (
        session.store, session.clock, session.options, session.settings, session.config,
    )  # fmt: skip
    merging = MergeTool(tools.worktrees, store)
    by_name = _tools(roles, tools.pool, tools.mcp, options.new_id, tools.recalling) | {
        merging.spec.name: merging
    }
    defaults = {name: tool.permission for name, tool in by_name.items()}
    permissions = Permissions(
        defaults=defaults,
        user=config.permissions,
        workspace=load_workspace_config(session.workspace).permissions,
        allow=frozenset(settings.allow),
        deny=frozenset(settings.deny),
    )

    async def joined(server: str, found: dict[str, Tool]) -> None:
        defaults.update({name: tool.permission for name, tool in found.items()})
        by_name.update(found)
        text = f"MCP server {server} is now available: {len(found)} tools"
        await store.commit(lambda tx: tx.event("host.warning", text=text))

    tools.mcp.on_late = joined
    effort = partial(effort_of, settings.efforts)
    live, heartbeat = LiveRows(store, clock, redactor=session.redact), Heartbeat(store, clock)
    environment = Environment(
        store=store,
        clock=clock,
        new_id=options.new_id,
        session_id=store.session_id,
        workspace=session.workspace,
        model=models.of,
        gate=Gates(lambda ref: shared_gate(store, ref, config.slots, clock)).of,
        price=models.price,
        counter=tools.counter,
        tools=by_name,
        tools_of=partial(tools_of, roles, by_name),
        permission=permissions.resolve,
        is_path_granted=partial(is_path_granted, grants=settings.allow),
        redact=session.redact,
        live=live,
        budgets=Budgets(store, heartbeat.hosted_seconds, models.price),
        usage_limits=UsageLimits(store, clock, rng=options.machine.rng),
        pool=tools.pool,
        mcp=tools.mcp,
        watched=partial(is_watched, store.path, store.session_id),
        programs=AgentPrograms(tools.programs, tools.environ, tools.containment, tools.server.serve),
        worktrees=tools.worktrees,
        calibrations=Calibrations(partial(agents.reported_prompts, store, store.session_id)),
        memory_model=lambda role: (
            (roles[role].memory_model if role in roles else None) or config.memory.model
        ),
        effort=effort,
        thinking_tokens=lambda role, ref: efforts.thinking_tokens(ref, models.host_of(ref), effort(role)),
        settings=LoopSettings(
            approval_timeout_seconds=options.approval_timeout(settings.approval_timeout_seconds),
            max_output_tokens=config.max_output_tokens,
            memory_effort=config.memory.effort,
            context_tokens=settings.context_tokens,
            summarization_threshold=config.summarization_threshold,
            observational=(settings.memory or config.memory.mode) == "observational",
        ),
    )
    return environment, live, heartbeat


def shared_gate(store: SessionStore, ref: str, slots: int, clock: Clock) -> Gate:
    """The gate of a model. It waits while the provider has limited the rate of any host on this database."""
    return Gate(
        slots,
        clock=clock,
        rate_limited_until=partial(_limited_until, store, ref),
        on_rate_limited=partial(_note_limit, store, clock, ref),
    )


def model_config(
    config: Config,
    ref: str,
    speed: float | None,
    surveyor_window: int | None = None,
    base_url: str | None = None,
) -> ModelConfig:
    """What the user's configuration says about a model. `base_url`: the local server of the session, which
    gets no key."""
    own = config.server_of(ref)
    return ModelConfig(
        api_key=os.environ.get(own.api_key_env) if own.api_key_env else None,
        base_url=base_url or own.base_url,
        sends_key=base_url is None,
        context_window=own.context_window,
        prompt_cache=config.anthropic.prompt_cache,
        speed=speed,
        surveyor_window=surveyor_window,
    )


def tools_of(roles: Roles, everything: Iterable[str], role_name: str) -> list[str]:
    """The names of the tools that a role may call; of a role that is gone, only those that every role may
    (`ALWAYS`)."""
    role = roles.get(role_name)
    return [name for name in everything if (role.may_call(name) if role is not None else name in ALWAYS)]


def _roles_gone(store: SessionStore, roles: Roles) -> list[str]:
    """A line for each role of an agent that has not ended, where the role has no file any more."""
    still_open = (one for one in agents.load_all(store, store.session_id) if one.status not in AGENT_ENDED)
    return [
        f"{roles.gone(role)}; its agents keep only the memory and artifact tools"
        for role in dict.fromkeys(one.role for one in still_open)
        if role not in roles
    ]


def _tools(
    roles: Roles, pool: WorkerPool, mcp: McpServers, new_id: IdSource, recalling: RecallTool
) -> dict[str, Tool]:
    tools: dict[str, Tool] = {recalling.spec.name: recalling}
    for one in (*PlanTools(new_id, roles).tools(), *memory_tools(), *artifact_tools()):
        tools[one.spec.name] = one
    tools |= builtin_tools(pool)
    tools |= mcp.tools()
    return tools


def _note_limit(store: SessionStore, clock: Clock, ref: str, until: float, reason: str) -> None:
    """Record a rate limit for every host on this database, without waiting for the write."""
    noted = budgets.NotedLimit(budgets.RATE, until, reason, clock.now())
    store.writer.submit(lambda group: budgets.note(group, ref, noted))


def _limited_until(store: SessionStore, ref: str) -> float:
    found = budgets.find(store, ref)
    return found.until if found is not None and found.kind == budgets.RATE else 0.0
