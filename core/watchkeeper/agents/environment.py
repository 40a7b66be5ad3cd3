"""The services and settings that a host gives to the loops of its agents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from watchkeeper.agents.backends.programs import AgentPrograms
from watchkeeper.agents.limits import Budgets, FileTurns, UsageLimits
from watchkeeper.agents.tools.contract import Permission, Tool
from watchkeeper.agents.tools.mcp import McpServers
from watchkeeper.agents.tools.workers import WorkerPool
from watchkeeper.agents.worktrees import Worktrees
from watchkeeper.memory.tokens import Calibrations, TokenCounter
from watchkeeper.models.gate import Gate
from watchkeeper.records.messages import Cost, Effort, Model, Usage
from watchkeeper.records.ports import Clock, IdSource
from watchkeeper.store.transaction import SessionStore


class LiveBoard(Protocol):
    """Where a loop says what its agent is doing this moment; shown, never relied upon."""

    def show(self, agent_id: str, activity: str, detail: str = "", *, until: float | None = None) -> None: ...

    def stream(self, agent_id: str, text: str, kind: str = "text") -> None:
        """Add streamed text to what is shown; `kind` is that of a `Delta`."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How loops of one session behave."""

    approval_timeout_seconds: float | None = None
    """How long a question waits for a person before it is denied; None: without a limit. 0 denies at once,
    unless a person watches the session."""
    max_output_tokens: int = 8_192
    memory_effort: Effort = "off"
    """How much the models think that summarise and observe."""
    context_tokens: int | None = None
    """A smaller window than the model's own, if any."""
    summarization_threshold: float = 0.75
    observational: bool = False
    """Observers and reflectors keep the agents' memory, rather than a summariser."""
    most_turns: int = 2_000
    """A task that takes more is failed: it loops."""


class Pricing(Protocol):
    """What a model call cost (see `models.registry.price`)."""

    def __call__(
        self, ref: str, usage: Usage, exact: bool, modifiers: tuple[str, ...] = (), searches: int = 0, /
    ) -> Cost: ...


@dataclass(slots=True)
class Environment:
    """All that a loop may use. Nothing in it belongs to one agent."""

    store: SessionStore
    clock: Clock
    new_id: IdSource
    session_id: str
    workspace: Path
    model: Callable[[str], Model]
    """The model of a reference; raises BadInput for one that cannot be used."""
    gate: Callable[[str], Gate]
    price: Pricing
    counter: TokenCounter
    tools: Mapping[str, Tool]
    tools_of: Callable[[str], list[str]]
    """The names of the tools that a role may call."""
    permission: Callable[[str], Permission]
    is_path_granted: Callable[[str], bool]
    """Whether the person allowed writes to this path of the workspace before the run."""
    """Whether calls of a tool may run."""
    redact: Callable[[Any], Any]
    live: LiveBoard
    budgets: Budgets
    usage_limits: UsageLimits
    settings: LoopSettings
    pool: WorkerPool
    """Runs the built-in tools."""
    mcp: McpServers
    """Where tools may come from that are not in `tools` yet."""
    watched: Callable[[], bool]
    """Whether a person who can answer a question watches the session now."""
    memory_model: Callable[[str], str | None] = lambda role: None
    """The model that writes the memory of a role's agents; None: the agent's own."""
    effort: Callable[[str], Effort | None] = lambda role: None
    """How much the models of a role's agents think; the same for the life of a session. None: as they do by default."""
    thinking_tokens: Callable[[str, str], int] = lambda role, model: 0
    """How much longer a reply of this role's agents may be with this model, for its thinking."""
    programs: AgentPrograms | None = None
    """The agent programs that can be driven; None: only Watchkeeper's own loop."""
    worktrees: Worktrees | None = None
    """Where agents work that are isolated from each other; None: all work in the workspace."""
    calibrations: Calibrations = field(default_factory=Calibrations)
    """How far our token counts are from what each model reports."""
    file_turns: FileTurns = field(default_factory=FileTurns)
    decisions: dict[str, asyncio.Event] = field(default_factory=dict)
    """Approval id → set when a person has answered."""

    def folder_of(self, task_id: str | None) -> Path:
        """Where the agents of a task work."""
        return self.worktrees.folder_of(task_id) if self.worktrees is not None else self.workspace
