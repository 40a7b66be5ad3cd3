"""Putting a host together from a session's row, the user's configuration and the workspace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from watchkeeper.agents.environment import Environment, LoopSettings
from watchkeeper.agents.roles import Role, agents_md, load_roles
from watchkeeper.agents.storetools.artifact import artifact_tools
from watchkeeper.agents.storetools.plan import PlanTools
from watchkeeper.agents.storetools.remembering import memory_tools
from watchkeeper.agents.tools.builtin import builtin_tools
from watchkeeper.agents.tools.contract import Permission, Tool
from watchkeeper.agents.tools.mcp import McpServers
from watchkeeper.agents.tools.permissions import Permissions
from watchkeeper.agents.tools.redact import Redactor
from watchkeeper.agents.tools.workers import WorkerPool
from watchkeeper.memory.tokens import default_counter
from watchkeeper.models.registry import ModelConfig, resolve
from watchkeeper.models.slots import Gate, Gates
from watchkeeper.records.clock import Clock
from watchkeeper.records.ids import IdSource, random_id
from watchkeeper.records.model import Cost, Model, Usage
from watchkeeper.runtime.budgets import Budgets
from watchkeeper.runtime.config import Config, config_folder, load_config, load_workspace_config
from watchkeeper.runtime.host import SessionHost
from watchkeeper.runtime.live import LiveRows
from watchkeeper.runtime.starting import SessionSettings, check_workspace
from watchkeeper.store.session_store import SessionStore

PLANNER_ONLY = frozenset(
    {"create_plan", "add_task", "revise_task", "resume_task", "rerun_task", "drop_task", "finish_session"}
)
MEMORY_TOOLS = ("remember", "recall", "read_back", "compact", "save_artifact", "read_artifact", "merge_artifacts")
READ_ONLY = ("list_folder", "read", "glob", "grep")
"""What a planner may do in the workspace: look."""


@dataclass(slots=True)
class Assembled:
    """A host and what must be closed after it."""

    host: SessionHost
    pool: WorkerPool
    mcp: McpServers

    async def aclose(self) -> None:
        """End worker processes and MCP servers."""
        await self.pool.aclose()
        await self.mcp.aclose()


async def assemble(
    store: SessionStore,
    clock: Clock,
    *,
    once: int | None = None,
    config: Config | None = None,
    model: Model | None = None,
    new_id: IdSource = random_id,
) -> Assembled:
    """A host for the session that `store` has claimed.

    `model` stands in for every model reference: for somebody else's program, and for tests.

    Raises:
        BadInput: the configuration or the workspace cannot be used.
    """
    row = store.one("SELECT workspace, settings FROM sessions WHERE id = ?", (store.session_id,))
    workspace, settings = Path(row[0]), SessionSettings.load(row[1])
    check_workspace(workspace)
    config = config or load_config()
    roles, _warnings = load_roles(workspace, config_folder())
    pool = WorkerPool(settings.max_parallel, workspace, os.environ, timeout_seconds=config.tool_timeout_seconds)
    mcp = McpServers({name: server.model_dump() for name, server in config.mcp.items()})
    await mcp.start()
    tools = _tools(roles, pool, mcp, new_id)
    permissions = Permissions(
        defaults={name: tool.permission for name, tool in tools.items()},
        user=_rules(config.permissions),
        workspace=_rules(load_workspace_config(workspace).permissions),
        allow=frozenset(settings.allow),
        deny=frozenset(settings.deny),
    )
    live = LiveRows(store, clock)
    models: dict[str, Model] = {}

    def model_of(ref: str) -> Model:
        if model is not None:
            return model
        if ref not in models:
            models[ref] = resolve(ref, config=model_config(config, settings.speed), clock=clock)
        return models[ref]

    gates = Gates(lambda ref: Gate(config.slots, clock=clock, rate_limited_until=partial(_limited_until, store, ref)))
    environment = Environment(
        store=store,
        clock=clock,
        new_id=new_id,
        session_id=store.session_id,
        workspace=workspace,
        model=model_of,
        gate=gates.of,
        price=partial(_price, config.anthropic.base_url or os.environ.get("ANTHROPIC_BASE_URL")),
        counter=default_counter(),
        tools=tools,
        tools_of=partial(tools_of, roles, tuple(tools)),
        permission=permissions.resolve,
        redact=Redactor(os.environ),
        live=live,
        budget=lambda task_id: None,
        settings=LoopSettings(
            approval_timeout_seconds=settings.approval_timeout_seconds,
            max_output_tokens=config.max_output_tokens,
            context_tokens=settings.context_tokens,
            summarization_threshold=config.summarization_threshold,
        ),
    )
    host = SessionHost(environment, live, roles, settings=settings, agents_md=agents_md(workspace), once=once)
    budgets = Budgets(store, store.session_id, host.hosted_seconds)
    environment.budget = budgets.reached
    return Assembled(host, pool, mcp)


def model_config(config: Config, speed: float | None) -> ModelConfig:
    """What the user's configuration says about models."""
    own = config.anthropic
    return ModelConfig(
        api_key=os.environ.get(own.api_key_env) if own.api_key_env else None,
        base_url=own.base_url,
        context_window=own.context_window,
        prompt_cache=own.prompt_cache,
        speed=speed,
    )


def tools_of(roles: dict[str, Role], everything: tuple[str, ...], role_name: str) -> list[str]:
    """The tools of a role: the plan tools belong to the planner alone, who may only look at the workspace."""
    if role_name == "planner":
        return [name for name in everything if name in PLANNER_ONLY or name in MEMORY_TOOLS or name in READ_ONLY]
    offered = [name for name in everything if name not in PLANNER_ONLY]
    role = roles.get(role_name)
    if role is None or role.tools is None:
        return offered
    return [name for name in offered if name in role.tools or name in MEMORY_TOOLS]


def _tools(roles: dict[str, Role], pool: WorkerPool, mcp: McpServers, new_id: IdSource) -> dict[str, Tool]:
    tools: dict[str, Tool] = {}
    for one in (*PlanTools(new_id, frozenset(roles)).tools(), *memory_tools(), *artifact_tools()):
        tools[one.spec.name] = one
    tools |= builtin_tools(pool)
    tools |= mcp.tools()
    return tools


def _rules(named: Mapping[str, str]) -> dict[str, Permission]:
    return {tool: Permission(permission) for tool, permission in named.items()}


def _price(base_url: str | None, ref: str, usage: Usage, exact: bool) -> Cost:
    from watchkeeper.models.prices import price

    return price(ref, usage, exact, base_url=base_url)


def _limited_until(store: SessionStore, ref: str) -> float:
    provider, _, name = ref.partition("/")
    row: Any = store.one("SELECT until FROM rate_limits WHERE provider = ? AND model = ?", (provider, name))
    return float(row[0]) if row else 0.0


