"""The plan as rows: the planner, its tasks with the agents that do them, earlier attempts below. A pure function."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from watchkeeper.store.dashboard import AgentFacts, TaskFacts
from watchkeeper_tui.conditions import Condition, agent_condition, task_condition
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One row of the tree. A task's row carries the agent that does it."""

    id: str
    """`task:<id>` or `agent:<id>`; stable for as long as the row means the same."""
    prefix: str
    """The lines of the tree before the name."""
    name: str
    """Sanitised."""
    task: TaskFacts | None
    agent: AgentFacts | None
    condition: Condition
    expandable: bool
    expanded: bool
    tokens: int
    """Of the row's own agent, or of the whole subtree where it is collapsed."""
    cost_usd: float | None
    unpriced_calls: int
    hidden: int = 0
    """Rows that are folded away below this one."""


@dataclass(slots=True)
class _Node:
    id: str
    name: str
    task: TaskFacts | None
    agent: AgentFacts | None
    children: list[_Node]


def plan_rows(
    snapshot: Snapshot,
    now: float,
    *,
    collapsed: frozenset[str] = frozenset(),
    words: str = "",
) -> tuple[PlanRow, ...]:
    """The rows to show, in the planner's order. `words` keeps matching rows and those above them."""
    roots = _nodes(snapshot)
    wanted = words.casefold().split()
    rows: list[PlanRow] = []
    titles = {task.id: task.name or task.title for task in snapshot.tasks}
    ended = {task.id for task in snapshot.tasks if task.status in ("done", "dropped")}

    def keep(node: _Node) -> bool:
        return not wanted or _matches(node, wanted, snapshot, now) or any(keep(child) for child in node.children)

    def add(node: _Node, lines: str, last: bool, depth: int) -> None:
        children = [child for child in node.children if keep(child)]
        expanded = bool(wanted) or node.id not in collapsed
        branch = "" if depth == 0 else lines + ("└" if last else "├")
        mark = ("▾" if expanded else "▸") if children else " "
        below = list(_below(node))
        agents = [node.agent, *(each.agent for each in below)] if not expanded else [node.agent]
        tokens, cost, unpriced = _sum(agents)
        rows.append(
            PlanRow(
                id=node.id,
                prefix=branch + (mark + " " if children or depth == 0 else "╴" if depth else ""),
                name=sanitize(node.name),
                task=node.task,
                agent=node.agent,
                condition=_condition(node, snapshot, now, titles, ended),
                expandable=bool(children),
                expanded=expanded,
                tokens=tokens,
                cost_usd=cost,
                unpriced_calls=unpriced,
                hidden=0 if expanded else len(below),
            )
        )
        if expanded:
            inner = lines + ("" if depth == 0 else " " if last else "│")
            for index, child in enumerate(children):
                add(child, inner, index == len(children) - 1, depth + 1)

    shown = [root for root in roots if keep(root)]
    for index, root in enumerate(shown):
        add(root, "", index == len(shown) - 1, 0)
    return tuple(rows)


def agent_ids(rows: Iterable[PlanRow]) -> list[str]:
    """The agents that have a row, in the order shown."""
    return [row.agent.id for row in rows if row.agent is not None]


def _nodes(snapshot: Snapshot) -> list[_Node]:
    agents = {agent.id: agent for agent in snapshot.agents}
    by_task: dict[str, list[AgentFacts]] = {}
    for agent in snapshot.agents:
        if agent.task_id is not None:
            by_task.setdefault(agent.task_id, []).append(agent)
    planner_id = snapshot.session.planner_agent_id if snapshot.session else None
    nodes: dict[str, _Node] = {}  # by agent id: where a row for that agent stands
    roots: list[_Node] = []
    placed: list[tuple[_Node, str | None]] = []

    for task in snapshot.tasks:
        doers = by_task.pop(task.id, [])
        current = agents.get(task.assigned_agent or "") or (doers[-1] if doers else None)
        node = _Node(f"task:{task.id}", task.title or task.name, task, current, [])
        if current is not None:
            nodes.setdefault(current.id, node)
        for earlier in doers:
            if earlier is not current:
                child = _Node(f"agent:{earlier.id}", f"{earlier.name} (attempt {earlier.attempt})", None, earlier, [])
                node.children.append(child)
                nodes.setdefault(earlier.id, child)
        placed.append((node, current.parent_agent_id if current else planner_id))
    for agent in snapshot.agents:
        if agent.id not in nodes:
            node = _Node(f"agent:{agent.id}", agent.name or agent.role, None, agent, [])
            nodes[agent.id] = node
            parent = agent.parent_agent_id
            if agent.id == planner_id or parent not in agents:
                roots.insert(0, node) if agent.id == planner_id else roots.append(node)
            else:
                placed.append((node, parent))
    planner = nodes.get(planner_id or "")
    for node, parent in placed:
        above = nodes.get(parent or "") or planner
        if above is None or above is node or _contains(node, above):
            above = planner if planner is not None and planner is not node else None
        (above.children if above is not None else roots).append(node)
    return roots


def _contains(node: _Node, other: _Node) -> bool:
    return any(each is other for each in _below(node))


def _below(node: _Node) -> Iterable[_Node]:
    for child in node.children:
        yield child
        yield from _below(child)


def _sum(agents: Iterable[AgentFacts | None]) -> tuple[int, float | None, int]:
    tokens, cost, unpriced = 0, None, 0
    for agent in agents:
        if agent is not None:
            tokens += agent.total_tokens
            unpriced += agent.unpriced_calls
            if agent.cost_usd is not None:
                cost = (cost or 0.0) + agent.cost_usd
    return tokens, cost, unpriced


def _condition(node: _Node, snapshot: Snapshot, now: float, titles: dict[str, str], ended: set[str]) -> Condition:
    task, agent = node.task, node.agent
    if task is not None and (agent is None or task.status in ("pending", "stale", "dropped", "done", "failed", "cancelled")):
        unmet = tuple(titles.get(need, need) for need in task.depends_on if need not in ended)
        return task_condition(task, unmet)
    if agent is not None:
        return agent_condition(agent, snapshot.state, now)
    return Condition("·", "pending", "pending")


def _matches(node: _Node, wanted: list[str], snapshot: Snapshot, now: float) -> bool:
    agent, task = node.agent, node.task
    hay = [node.name]
    if agent is not None:
        hay += [agent.id, agent.name, agent.role, agent.model, agent.status, agent_condition(agent, snapshot.state, now).word]
    if task is not None:
        hay += [task.id, task.name, task.title, task.status, task.role]
    text = " ".join(hay).casefold()
    return all(word in text for word in wanted)
