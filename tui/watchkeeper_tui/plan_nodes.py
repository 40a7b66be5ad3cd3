"""The hierarchy of the plan: the planner, its tasks with their agents, and earlier attempts below them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from watchkeeper.store.snapshot import AgentFacts
from watchkeeper_tui.snapshot import Snapshot


@dataclass(slots=True)
class Node:
    """A task, or an agent that has no task of its own."""

    id: str
    task_id: str | None
    agent_id: str | None
    children: list[Node] = field(default_factory=list)
    above: Node | None = None


def plan_nodes(snapshot: Snapshot) -> list[Node]:
    """The topmost nodes, in the planner's order. Cycles and missing parents do not break it: every node has
    one place."""
    agents = snapshot.agents_by_id
    by_task: dict[str, list[AgentFacts]] = {}
    for agent in snapshot.agents:
        if agent.task_id is not None:
            by_task.setdefault(agent.task_id, []).append(agent)
    planner_id = snapshot.session.planner_agent_id if snapshot.session else None
    nodes: dict[str, Node] = {}  # by agent id: the node of that agent's row
    roots: list[Node] = []
    placed: list[tuple[Node, str | None]] = []

    for task in snapshot.tasks:
        doers = by_task.pop(task.id, [])
        current = agents.get(task.assigned_agent or "") or (doers[-1] if doers else None)
        node = Node(f"task:{task.id}", task.id, current.id if current else None)
        if current is not None:
            nodes.setdefault(current.id, node)
        for earlier in doers:
            if earlier is not current:
                child = Node(f"agent:{earlier.id}", None, earlier.id, above=node)
                node.children.append(child)
                nodes.setdefault(earlier.id, child)
        # A plan of its own has its agent's id (sub-agents of other programs keep lists): its tasks stand
        # below that agent.
        keeper = task.plan_id if task.plan_id in agents else planner_id
        placed.append((node, current.parent_agent_id if current else keeper))
    for agent in snapshot.agents:
        if agent.id not in nodes:
            node = Node(f"agent:{agent.id}", None, agent.id)
            nodes[agent.id] = node
            parent = agent.parent_agent_id
            if agent.id == planner_id or parent not in agents:
                roots.insert(0, node) if agent.id == planner_id else roots.append(node)
            else:
                placed.append((node, parent))
    planner = nodes.get(planner_id or "")
    for node, parent in placed:
        above = nodes.get(parent or "") or planner
        if above is None or _is_below(above, node):
            above = planner if planner is not None and not _is_below(planner, node) else None
        node.above = above
        (above.children if above is not None else roots).append(node)
    return roots


def _is_below(node: Node, other: Node) -> bool:
    """Whether `node` is `other` or a descendant of it."""
    each: Node | None = node
    while each is not None:
        if each is other:
            return True
        each = each.above
    return False


def below(node: Node) -> Iterator[Node]:
    """All descendants of a node, in order."""
    waiting = list(reversed(node.children))
    while waiting:
        each = waiting.pop()
        yield each
        waiting += reversed(each.children)
