"""The services and settings that a host gives to the loops of its agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol, TypeVar

from watchkeeper.agents.tools.contract import Permission, ProgramRun, Tool
from watchkeeper.memory.tokens import Calibrations, TokenCounter
from watchkeeper.models.gate import Gate
from watchkeeper.records.messages import Cost, Model, ModelError, Purpose, Usage
from watchkeeper.records.ports import Clock, IdSource
from watchkeeper.store.session_store import SessionStore

# --- Stopping one agent -------------------------------------------------------------------------------------
#
# A person stops it at the next step boundary, or at once.

T = TypeVar("T")


class Interrupted(Exception):
    """What was awaited was abandoned, because someone said `now`."""


class AgentStopped(Exception):
    """The agent was cancelled or replaced in the store; its loop must write nothing more."""


class AgentControl:
    """Shared by an agent's loop and its host, on one event loop."""

    def __init__(self) -> None:
        self.pause_reason: str | None = None
        """Set: pause at the next step boundary, for this reason."""
        self._now = asyncio.Event()
        self._waiting = False
        self._came = False

    def pause(self, reason: str, *, now: bool = False) -> None:
        """Ask the loop to pause; with `now`, or while it only waits, what it awaits is abandoned."""
        self.pause_reason = reason
        if now or self._waiting:
            self._now.set()

    def cancel_pause(self) -> bool:
        """Cancel a pause that has not come. False if it is coming already, so that the loop ends first."""
        if self.pause_reason is not None and not self._came and not self._now.is_set():
            self.pause_reason = None
        return self.pause_reason is None

    def mark_pausing(self) -> None:
        """Say that the loop ends now, paused: it is too late to take that back."""
        self._came = True

    def set_waiting(self, waiting: bool) -> None:
        """Say whether the loop only waits (for a slot, a retry, a person): a pause then need not wait with
        it."""
        self._waiting = waiting
        if waiting and self.pause_reason is not None:
            self._now.set()

    def stop_now(self) -> None:
        """Abandon what is awaited: the agent was cancelled."""
        self._now.set()

    async def abandonable(self, work: Awaitable[T]) -> T:
        """Await `work`, unless `now` comes first.

        Raises:
            Interrupted: it did; `work` was cancelled and has ended.
        """
        task = asyncio.ensure_future(work)
        now = asyncio.ensure_future(self._now.wait())
        try:
            await asyncio.wait({task, now}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Interrupted
        finally:
            now.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class LiveBoard(Protocol):
    """Where a loop says what its agent is doing this moment; shown, never relied upon."""

    def show(self, agent_id: str, activity: str, detail: str = "", *, until: float | None = None) -> None: ...

    def stream(self, agent_id: str, text: str) -> None:
        """Add streamed text to what is shown."""
        ...


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How loops of one session behave."""

    approval_timeout_seconds: float | None = None
    """How long a question waits for a person before it is denied; None: without a limit. 0 denies at once,
    unless a person watches the session."""
    max_output_tokens: int = 8_192
    context_tokens: int | None = None
    """A smaller window than the model's own, if any."""
    summarization_threshold: float = 0.75
    observational: bool = False
    """Observers and reflectors keep the agents' memory, rather than a summariser."""
    most_turns: int = 2_000
    """A task that takes more is failed: it loops."""


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """Why no further call may be made."""

    reason: str
    kind: str
    """`usd`, `tokens`, `turns` or `seconds`."""
    whole_session: bool
    """False: only the task that has this budget stops."""
    required: float | None = None
    """The smallest budget that covers the input of the call that was refused, where it is not simply used
    up."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A model call that is about to be made: what it may use at most."""

    agent_id: str
    task_id: str | None
    model: str
    purpose: Purpose
    input_tokens: int
    """Estimated."""
    output_tokens: int
    """The most that it may write."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room in the budgets for one call, a row of `reservations` until the call is recorded."""

    id: str
    end: Callable[[Usage, float | None, int], None]
    """Say what the call used (tokens, USD, turns); `store.budgets.settle_reservation` in the transaction that
    records it."""
    release: Callable[[], None]
    """The call was abandoned, and nothing of it will be recorded."""


class BudgetGuard(Protocol):
    """What keeps the calls of a session within its budgets."""

    def reached(self, task_id: str | None) -> BudgetReached | None:
        """Why the agent of this task (None: the planner) may make no further call, or None."""
        ...

    async def reserve(self, call: PlannedCall) -> Reservation | BudgetReached | None:
        """Wait until there is room for the call; None where no budget applies."""
        ...

    def look_again(self) -> None:
        """A budget was changed."""
        ...


class NoBudgets:
    """Where nothing limits the calls."""

    def reached(self, task_id: str | None) -> BudgetReached | None:
        return None

    async def reserve(self, call: PlannedCall) -> Reservation | BudgetReached | None:
        return None

    def look_again(self) -> None:
        pass


class Admission(Enum):
    """What a usage limit lets a call do."""

    OPEN = auto()
    TEST = auto()
    """It is the one that tests whether the limit is over: `end_test` must follow."""
    WAIT = auto()
    """Another call tests it: wait for that one."""


class LimitGuard(Protocol):
    """What keeps the calls of a host from a provider that asked to be left alone."""

    def admit(self, model_ref: str) -> Admission:
        """Whether a call may be made now.

        Raises:
            ModelError: the limit is in force (PARK, PAUSE).
        """
        ...

    def is_closed(self, model_ref: str) -> bool:
        """Whether no call may be made now, so that no background work begins."""
        ...

    async def await_test(self, model_ref: str) -> None:
        """Wait until the call that tests has ended, and a little longer where many wait."""
        ...

    def end_test(self, model_ref: str, *, succeeded: bool) -> None:
        """The call that tested has ended."""
        ...

    def note(self, model_ref: str, error: ModelError) -> ModelError:
        """Learn from a failed call; returns the error as the loop must take it."""
        ...


class NoLimits:
    """Where no provider's limit is known."""

    def admit(self, model_ref: str) -> Admission:
        return Admission.OPEN

    def is_closed(self, model_ref: str) -> bool:
        return False

    async def await_test(self, model_ref: str) -> None:
        pass

    def end_test(self, model_ref: str, *, succeeded: bool) -> None:
        pass

    def note(self, model_ref: str, error: ModelError) -> ModelError:
        return error


async def _release_nothing(agent_id: str) -> None:
    """Where no tool keeps anything running."""


def _nobody() -> bool:
    """Where it is not known who watches."""
    return False


def _no_shell(agent_id: str) -> str | None:
    """Where it is not known in which folder a shell is."""
    return None


def _no_program(agent_id: str, words: Sequence[str]) -> ProgramRun | None:
    """Where no program can be run outside a shell."""
    return None


async def _find_nothing(tool: str) -> None:
    """Where all tools are there from the beginning."""


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
    price: Callable[[str, Usage, bool], Cost]
    counter: TokenCounter
    tools: Mapping[str, Tool]
    tools_of: Callable[[str], list[str]]
    """The names of the tools that a role may call."""
    permission: Callable[[str, str], Permission]
    """(role, tool) → may it run?"""
    redact: Callable[[Any], Any]
    live: LiveBoard
    budgets: BudgetGuard = field(default_factory=NoBudgets)
    usage_limits: LimitGuard = field(default_factory=NoLimits)
    settings: LoopSettings = field(default_factory=LoopSettings)
    release: Callable[[str], Awaitable[None]] = _release_nothing
    """An agent ended or paused: end the shell and the processes that its tools left behind."""
    look_for: Callable[[str], Awaitable[None]] = _find_nothing
    """An agent called a tool that is not in `tools`, which may grow: ask late sources for it."""
    watched: Callable[[], bool] = _nobody
    """Whether a person who can answer a question watches the session now."""
    shell_folder: Callable[[str], str | None] = _no_shell
    """The folder that an agent's shell is in, where that is known."""
    program: Callable[[str, Sequence[str]], ProgramRun | None] = _no_program
    """(agent, words) → what a command of these words would run outside the agent's shell, where that is
    certain."""
    calibrations: Calibrations = field(default_factory=Calibrations)
    """How far our token counts are from what each model reports."""
    decisions: dict[str, asyncio.Event] = field(default_factory=dict)
    """Approval id → set when a person has answered."""
