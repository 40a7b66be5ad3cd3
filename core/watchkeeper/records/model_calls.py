"""One call of a model, as it is stored."""

from __future__ import annotations

from dataclasses import dataclass

from watchkeeper.records.messages import Cost, Usage
from watchkeeper.records.states import ModelCallStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallRecord:
    """A call that ended: a row of `model_calls`."""

    agent_id: str
    turn: int
    purpose: str
    """Why the call was made: a `Purpose`, or the kind of a call inside another one."""
    model: str
    status: ModelCallStatus
    usage: Usage
    cost: Cost
    started_at: float
    latency_seconds: float = 0.0
    """From the moment when it had a slot to its end, its own retries included."""
    first_token_seconds: float | None = None
    waited_seconds: float = 0.0
    """How long it waited for a slot."""
    retries: int = 0
    error: str | None = None
    request_id: str | None = None
    stop_reason: str | None = None
    estimated_prompt_tokens: int = 0
    usage_exact: bool = True
    """Whether the provider reported the usage of the whole call."""
