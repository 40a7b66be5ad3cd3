"""State machines. Each is a table of allowed moves; `check` checks them all."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar


class SessionStatus(StrEnum):
    """The state of a session. Whether its host is alive is not stored here: the lease says so."""

    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskStatus(StrEnum):
    """The state of a task in its plan. `STALE`: finished, but an input has changed since."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    STALE = "stale"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DROPPED = "dropped"


class AgentStatus(StrEnum):
    """The state of one agent. `IDLE`: a planner with nothing to answer. `WAITING`: a person must decide.
    `PARKED`: a usage limit of its model ends at a known time, and the agent continues by itself then; its
    task continues to run."""

    IDLE = "idle"
    WORKING = "working"
    WAITING = "waiting"
    PARKED = "parked"
    PAUSED = "paused"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ToolCallStatus(StrEnum):
    """The state of one tool call.

    `UNKNOWN`: it was running when the host died or the agent was cancelled, so its effect is not known.
    `CANCELLED`: its agent ended before the call began.
    """

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    ERROR = "error"
    DENIED = "denied"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"


class ModelCallStatus(StrEnum):
    """How a model call ended. `ABANDONED`: stopped by a pause, a cancel, or the end of its host, which is no error.
    `RUNNING`: it has not ended, and its usage so far is in no total yet."""

    RUNNING = "running"
    DONE = "done"
    ERROR = "error"
    ABANDONED = "abandoned"


class CommandStatus(StrEnum):
    QUEUED = "queued"
    APPLIED = "applied"
    REFUSED = "refused"
    FAILED = "failed"
    """The host could not apply it because of a fault of the program. It is not tried again."""


class ApprovalStatus(StrEnum):
    WAITING = "waiting"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    """The agent that asked has ended."""


class CompactionStatus(StrEnum):
    """`PREPARED`: written but not yet in any context; the others say how the pass ended."""

    RUNNING = "running"
    PREPARED = "prepared"
    APPLIED = "applied"
    REJECTED = "rejected"
    ABANDONED = "abandoned"
    UNDONE = "undone"


SESSION_ENDED = frozenset({SessionStatus.DONE, SessionStatus.FAILED, SessionStatus.CANCELLED})
TASK_ENDED = frozenset({TaskStatus.DONE, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.DROPPED})
AGENT_ENDED = frozenset({AgentStatus.DONE, AgentStatus.FAILED, AgentStatus.CANCELLED})

_T = TaskStatus
TASK_MOVES: Mapping[TaskStatus, frozenset[TaskStatus]] = {
    _T.PENDING: frozenset({_T.RUNNING, _T.CANCELLED, _T.DROPPED, _T.PAUSED}),
    _T.RUNNING: frozenset({_T.DONE, _T.FAILED, _T.PAUSED, _T.CANCELLED, _T.PENDING, _T.DROPPED, _T.STALE}),
    _T.PAUSED: frozenset({_T.PENDING, _T.RUNNING, _T.CANCELLED, _T.DROPPED, _T.FAILED, _T.STALE}),
    _T.STALE: frozenset({_T.DONE, _T.PENDING, _T.RUNNING, _T.PAUSED, _T.FAILED, _T.CANCELLED, _T.DROPPED}),
    _T.DONE: frozenset({_T.PENDING, _T.STALE}),
    _T.FAILED: frozenset({_T.PENDING, _T.RUNNING, _T.DROPPED, _T.CANCELLED}),
    _T.CANCELLED: frozenset({_T.PENDING, _T.RUNNING, _T.DROPPED}),
    _T.DROPPED: frozenset({_T.PENDING}),
}

_A = AgentStatus
AGENT_MOVES: Mapping[AgentStatus, frozenset[AgentStatus]] = {
    _A.IDLE: frozenset({_A.WORKING, _A.PAUSED, _A.DONE, _A.FAILED, _A.CANCELLED}),
    _A.WORKING: frozenset({_A.IDLE, _A.WAITING, _A.PARKED, _A.PAUSED, _A.DONE, _A.FAILED, _A.CANCELLED}),
    _A.WAITING: frozenset({_A.WORKING, _A.PAUSED, _A.FAILED, _A.CANCELLED}),
    _A.PARKED: frozenset({_A.WORKING, _A.IDLE, _A.PAUSED, _A.CANCELLED, _A.FAILED, _A.DONE}),
    _A.PAUSED: frozenset({_A.WORKING, _A.IDLE, _A.WAITING, _A.CANCELLED, _A.FAILED, _A.DONE}),
    _A.DONE: frozenset({_A.WORKING, _A.IDLE}),
    _A.FAILED: frozenset({_A.WORKING, _A.IDLE, _A.CANCELLED, _A.PAUSED}),
    _A.CANCELLED: frozenset({_A.WORKING, _A.IDLE}),
}

_C = ToolCallStatus
TOOL_CALL_MOVES: Mapping[ToolCallStatus, frozenset[ToolCallStatus]] = {
    _C.PENDING: frozenset({_C.RUNNING, _C.DONE, _C.ERROR, _C.DENIED, _C.CANCELLED}),
    _C.RUNNING: frozenset({_C.DONE, _C.ERROR, _C.UNKNOWN, _C.PENDING}),
    _C.DONE: frozenset(),
    _C.ERROR: frozenset(),
    _C.DENIED: frozenset(),
    _C.UNKNOWN: frozenset(),
    _C.CANCELLED: frozenset(),
}
"""`RUNNING` to `PENDING`: the tool found that a file had changed since a person approved the call, and did
nothing."""

_S = SessionStatus
SESSION_MOVES: Mapping[SessionStatus, frozenset[SessionStatus]] = {
    _S.RUNNING: frozenset({_S.PAUSED, _S.DONE, _S.FAILED, _S.CANCELLED}),
    _S.PAUSED: frozenset({_S.RUNNING, _S.CANCELLED, _S.FAILED, _S.DONE}),
    _S.DONE: frozenset({_S.RUNNING}),
    _S.FAILED: frozenset({_S.RUNNING, _S.CANCELLED}),
    _S.CANCELLED: frozenset({_S.RUNNING}),
}

S = TypeVar("S", TaskStatus, AgentStatus, SessionStatus, ToolCallStatus)


def check(moves: Mapping[S, frozenset[S]], old: S, new: S) -> S:
    """Return `new` if it may follow `old` (or is `old`).

    Raises:
        ValueError: the move is not in the table; that is a fault of the caller, never of the user.
    """
    if new is not old and new not in moves[old]:
        raise ValueError(f"{type(old).__name__}: {old} cannot become {new}")
    return new
