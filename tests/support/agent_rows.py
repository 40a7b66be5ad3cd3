"""Agents of tests, as rows."""

from __future__ import annotations

from typing import Any

from watchkeeper.records.states import AgentStatus
from watchkeeper.store import agents
from watchkeeper.store.agents import Agent
from watchkeeper.store.transaction import Transaction


def create_agent(tx: Transaction, agent_id: str, *, parent_agent_id: str | None = None, **about: Any) -> None:
    """Store an agent; `about` are fields of `Agent` that a test cares for."""
    fields: dict[str, Any] = {
        "id": agent_id, "task_id": None, "name": agent_id, "role": "r", "model": "m", "attempt": 1, "system": "",
        "status": AgentStatus.WORKING, "status_reason": None, "turn": 0, "view_version": 0, "last_seq": 0,
        "current_goal": "", "context_limit": 1,
    }  # fmt: skip
    agent = Agent(**fields | about)
    agents.create(tx, agent, parent_agent_id=parent_agent_id)
