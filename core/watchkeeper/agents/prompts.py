"""Texts for agents: system prompts, assignments, and inbox messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from watchkeeper.store.plans import Task

FACTS_IN_ASSIGNMENT = 12


@dataclass(frozen=True, slots=True)
class Input:
    """One thing that a task builds on: an output of a task that it depends on."""

    name: str
    ref: str
    """`artifact://sha256/…`"""
    task: str
    """The name of the task that made it."""


def system_prompt(role: str, instructions: str, *, workspace: str, agents_md: str | None) -> str:
    """The system prompt of an agent: role, place, and the workspace's own instructions.

    The first line is `Role: <name>`. It is made once, when the agent is, so that every prompt has the same
    prefix.
    """
    parts = [
        f"Role: {role}",
        instructions.strip(),
        f"The workspace is the folder {workspace}. Paths are relative to it.",
    ]
    if agents_md:
        parts.append(
            f"Instructions of this workspace (AGENTS.md):\n<agents_md>\n{agents_md.strip()}\n</agents_md>"
        )
    return "\n\n".join(parts)


def with_pinned(system: str, pinned: Sequence[str]) -> str:
    """The system prompt with a person's standing instructions: in every call, whatever is compacted."""
    if not pinned:
        return system
    return (
        system
        + "\n\nStanding instructions of the person you work for:\n"
        + "\n".join(f"- {line}" for line in pinned)
    )


def goal_message(goal: str, workspace: str) -> str:
    """The planner's first message."""
    return f"# Goal\n{goal}\n\nThe workspace is {workspace}. Look at it, make a plan, and see it through."


def assignment(
    task: Task,
    inputs: Sequence[Input],
    *,
    memory_delta_ref: str | None,
    facts: Sequence[str],
    resumed_memory: bool,
) -> str:
    """A sub-agent's first message: its task and the handoff."""
    handoff = {
        "task": task.name,
        "attempt": task.attempt,
        "inputs_ref": [{"name": one.name, "ref": one.ref, "task": one.task} for one in inputs],
        "expected_outputs": list(task.expected_outputs),
        "memory_delta_ref": memory_delta_ref,
    }
    parts = [
        f"# Task: {task.title}",
        task.instructions.strip(),
        "handoff: " + json.dumps(handoff, ensure_ascii=False),
    ]
    if inputs:
        parts.append("Read an input with `read_artifact`, by its name or reference.")
    if facts:
        parts.append(
            "What this session knows so far:\n"
            + "\n".join(f"- {fact}" for fact in facts[:FACTS_IN_ASSIGNMENT])
        )
    if resumed_memory:
        parts.append(
            "You keep the memory of the earlier attempt, above. Do the task again with what you know."
        )
    if task.expected_outputs:
        parts.append("Save each expected output with `save_artifact` under its name.")
    parts.append("When you are done, reply with your result in a few sentences and call no tool.")
    return "\n\n".join(parts)


def inbox_message(items: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """What waited in an agent's inbox, as one text: a line for people, and the whole as JSON."""
    lines = [_headline(kind, payload) for kind, payload in items]
    whole = {"inbox": [{"kind": kind, **payload} for kind, payload in items]}
    return "\n".join(lines) + "\n\n" + json.dumps(whole, ensure_ascii=False)


def _headline(kind: str, payload: dict[str, Any]) -> str:
    task = payload.get("task", "")
    match kind:
        case "task_done":
            return f"Task {task} is done."
        case "task_failed":
            return f"Task {task} failed: {payload.get('error')}. Its work so far is kept; resume, re-run, revise or drop it."
        case "task_paused":
            return f"Task {task} is paused: {payload.get('error')}. It continues where it stopped when it is resumed."
        case "task_cancelled":
            return f"Task {task} was cancelled by a person."
        case "steer":
            return f"A person says: {payload.get('text', '')}"
        case "nudge":
            return str(payload.get("text", ""))
        case "resumed":
            return f"You were resumed. {payload.get('text', '')}".strip()
        case _:
            return f"{kind} {task}".strip()
