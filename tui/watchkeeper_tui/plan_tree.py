"""The plan as rows: the planner, its tasks with their agents, and earlier attempts below them.

The shape of the tree changes rarely, the values in it constantly. The shape is cached until it changes, and a
row with its values is made only when it is displayed. So a thousand agents cost no more than the twenty that
are visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar, overload

from watchkeeper.store.names import with_role
from watchkeeper.store.projection import AgentFacts, TaskFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.snapshot import (
    Condition,
    SessionState,
    Snapshot,
    agent_condition,
    report_condition,
    task_condition,
)


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


T = TypeVar("T")


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
    """The sum over the subtree; for a leaf, the value of the row's own agent."""
    cost_usd: float | None
    unpriced_calls: int
    cost_estimated: bool = False
    hidden: int = 0
    """Rows that are folded away below this one."""
    agent_ids: tuple[str, ...] = ()
    """The agents that the values include."""

    @property
    def is_lower_bound(self) -> bool:
        """Whether the cost leaves something out."""
        return self.unpriced_calls > 0


@dataclass(frozen=True, slots=True)
class _Place:
    """A row without its values."""

    id: str
    prefix: str
    task_id: str | None
    agent_id: str | None
    expandable: bool
    expanded: bool
    node: Node | None = None
    """The row's node in the tree; None in a list without a tree."""


class PlanShape:
    """Which rows there are, in which order."""

    def __init__(self, places: tuple[_Place, ...]) -> None:
        self.places = places

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The index of each row, by its id."""
        return {place.id: number for number, place in enumerate(self.places)}


class PlanRows(Sequence[PlanRow]):
    """The rows of one reading at one moment, each made when it is asked for."""

    def __init__(
        self, shape: PlanShape, snapshot: Snapshot, now: float, before: PlanRows | None = None
    ) -> None:
        """`before`: the rows shown until now, of which is kept what time alone does not change."""
        self.shape = shape
        self.snapshot = snapshot
        self.now = now
        self._made: dict[int, PlanRow] = {}
        same = before is not None and before.shape is shape and before.snapshot is snapshot
        self._subtrees: dict[str, _Subtree] = before._subtrees if before is not None and same else {}

    def __len__(self) -> int:
        return len(self.shape.places)

    @overload
    def __getitem__(self, index: int) -> PlanRow: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[PlanRow]: ...
    def __getitem__(self, index: int | slice) -> PlanRow | Sequence[PlanRow]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        number = index if index >= 0 else len(self) + index
        row = self._made.get(number)
        if row is None:
            row = self._made[number] = self._make(self.shape.places[number])
        return row

    def __iter__(self) -> Iterator[PlanRow]:
        return (self[number] for number in range(len(self)))

    def place_of(self, row_id: str) -> int | None:
        """The index of the row with that id, or None."""
        return self.shape.numbers.get(row_id)

    def find(self, row_id: str) -> PlanRow | None:
        """The row of that id, or None."""
        place = self.place_of(row_id)
        return None if place is None else self[place]

    def first_working_task(self) -> PlanRow | None:
        """The first task that is worked on; no row is made for the agents."""
        rows = (self[number] for number, place in enumerate(self.shape.places) if place.task_id is not None)
        return next((row for row in rows if row.condition.role == "working"), None)

    def agent_ids(self) -> list[str]:
        """The agents that have a row, in the order shown."""
        return [place.agent_id for place in self.shape.places if place.agent_id is not None]

    def place_of_agent(self, agent_id: str | None) -> int | None:
        """The index of the agent's row, or None."""
        return next(
            (number for number, place in enumerate(self.shape.places) if place.agent_id == agent_id), None
        )

    def _make(self, place: _Place) -> PlanRow:
        snapshot = self.snapshot
        task, agent = snapshot.task(place.task_id), snapshot.agent(place.agent_id)
        subtree = self._subtrees.get(place.id)
        if subtree is None:
            subtree = self._subtrees[place.id] = _subtree(place, snapshot)
        return PlanRow(
            id=place.id,
            prefix=place.prefix,
            name=_name(task, agent),
            task=task,
            agent=agent,
            condition=_with_those_below(
                row_condition(task, agent, snapshot, self.now), place, agent, snapshot, self.now
            ),
            expandable=place.expandable,
            expanded=place.expanded,
            tokens=subtree.tokens,
            cost_usd=subtree.cost_usd,
            unpriced_calls=subtree.unpriced_calls,
            cost_estimated=subtree.cost_estimated,
            hidden=0 if place.expanded else subtree.rows,
            agent_ids=subtree.agent_ids,
        )


class PlanShaper:
    """Gives the rows of one reading after the other, and keeps the shape as long as it holds."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._for: tuple[frozenset[str], str, str, int] | None = None
        self._shape = PlanShape(())
        self._rows: PlanRows | None = None

    def rows(
        self,
        snapshot: Snapshot,
        now: float,
        *,
        collapsed: frozenset[str] = frozenset(),
        words: str = "",
        order: str = "tree",
        is_tree: bool = False,
    ) -> PlanRows:
        """The rows to show. `words` keeps matching rows and, in the tree, those above them; `order` is one of
        `ORDERS`. `is_tree`: it sorts what is below each row, and the tree stays."""
        # What is searched for may be a state, which time alone can change; what is sorted moves once a second
        # at most.
        is_sorted = order in _KEYS
        flat = is_sorted and not is_tree
        wanted = (collapsed, words, f"{order} {is_tree}", int(now) if words or is_sorted else 0)
        before, self._snapshot = self._snapshot, snapshot
        if before is None or wanted != self._for or not _same_shape(before, snapshot, exact=bool(words)):
            self._for = wanted
            nodes = plan_nodes(snapshot)
            if is_sorted and is_tree:
                _sort_below(nodes, snapshot, now, order)
            places = (
                _sorted_places(nodes, snapshot, now, words, order)
                if flat
                else _places(nodes, snapshot, now, collapsed, words)
            )
            self._shape = PlanShape(tuple(places))
        self._rows = PlanRows(self._shape, snapshot, now, self._rows)
        return self._rows


def plan_rows(snapshot: Snapshot, now: float) -> PlanRows:
    """All rows of one reading; see `PlanShaper.rows`."""
    return PlanShaper().rows(snapshot, now)


def _same_shape(before: Snapshot, after: Snapshot, *, exact: bool) -> bool:
    if before is after:
        return True
    then, now = before.session, after.session
    if (then and (then.id, then.planner_agent_id)) != (now and (now.id, now.planner_agent_id)):
        return False
    if exact:
        return before.tasks is after.tasks and before.agents is after.agents and before.state is after.state
    return _alike(before.tasks, after.tasks, _task_shape) and _alike(
        before.agents, after.agents, _agent_shape
    )


def _alike(before: Sequence[T], after: Sequence[T], shape: Callable[[T], object]) -> bool:
    if before is after:
        return True
    return len(before) == len(after) and all(
        now is then or shape(now) == shape(then) for then, now in zip(before, after, strict=True)
    )


def _task_shape(task: TaskFacts) -> object:
    return task.id, task.assigned_agent


def _agent_shape(agent: AgentFacts) -> object:
    return agent.id, agent.parent_agent_id, agent.task_id


def _places(
    roots: list[Node], snapshot: Snapshot, now: float, collapsed: frozenset[str], words: str
) -> Iterator[_Place]:
    kept = _kept(roots, words.casefold().split(), snapshot, now)
    waiting = [(root, "", True, 0) for root in reversed(roots) if kept is None or root.id in kept]
    while waiting:
        node, lines, last, depth = waiting.pop()
        children = node.children if kept is None else [child for child in node.children if child.id in kept]
        expanded = kept is not None or node.id not in collapsed
        branch = "" if depth == 0 else lines + ("└" if last else "├")
        mark = ("▾" if expanded else "▸") if children else " "
        yield _Place(
            id=node.id,
            prefix=branch + (mark + " " if children or depth == 0 else "╴"),
            task_id=node.task_id,
            agent_id=node.agent_id,
            expandable=bool(children),
            expanded=expanded,
            node=node,
        )
        if expanded:
            inner = lines + ("" if depth == 0 else " " if last else "│")
            for index in range(len(children) - 1, -1, -1):
                waiting.append((children[index], inner, index == len(children) - 1, depth + 1))


def _sorted_places(
    roots: list[Node], snapshot: Snapshot, now: float, words: str, order: str
) -> Iterator[_Place]:
    """Every agent and task on a row of its own, without the tree."""
    wanted = words.casefold().split()
    nodes = [
        each
        for root in roots
        for each in (root, *below(root))
        if not wanted or _matches(each, wanted, snapshot, now)
    ]
    key = _KEYS[order]
    nodes.sort(
        key=lambda node: key(snapshot.task(node.task_id), snapshot.agent(node.agent_id), snapshot, now),
        reverse=True,
    )
    for node in nodes:
        yield _Place(node.id, "", node.task_id, node.agent_id, expandable=False, expanded=True)


def _sort_below(roots: list[Node], snapshot: Snapshot, now: float, order: str) -> None:
    """Sort the nodes below each node."""
    key = _KEYS[order]
    for root in roots:
        for node in (root, *below(root)):
            node.children.sort(
                key=lambda each: key(
                    snapshot.task(each.task_id), snapshot.agent(each.agent_id), snapshot, now
                ),
                reverse=True,
            )


def _urgency(task: TaskFacts | None, agent: AgentFacts | None, snapshot: Snapshot, now: float) -> float:
    role = row_condition(task, agent, snapshot, now).role
    return -float(_URGENT.index(role)) if role in _URGENT else -float(len(_URGENT))


ORDERS = {
    "tree": "in plan order",
    "cost": "by cost",
    "rate": "by cost per minute",
    "tokens": "by tokens",
    "context": "by context usage",
    "attention": "by attention needed",
}
"""The orders of the plan, with the words for them."""
_URGENT = (
    "waiting",
    "failed",
    "dead",
    "silent",
    "retrying",
    "paused",
    "slot",
    "working",
    "muted",
    "pending",
    "done",
    "cancelled",
)
_KEYS: dict[str, Callable[[TaskFacts | None, AgentFacts | None, Snapshot, float], float]] = {
    "cost": lambda task, agent, snapshot, now: agent.cost_usd or 0.0 if agent is not None else -1.0,
    "rate": lambda task, agent, snapshot, now: (
        dict(snapshot.rates.agent_cost).get(agent.id, 0.0) if agent is not None else -1.0
    ),
    "tokens": lambda task, agent, snapshot, now: agent.total_tokens if agent is not None else -1.0,
    "context": lambda task, agent, snapshot, now: (
        formatting.share(agent.context_used, agent.context_limit) if agent is not None else -1.0
    ),
    "attention": _urgency,
}


def _kept(roots: list[Node], wanted: list[str], snapshot: Snapshot, now: float) -> set[str] | None:
    """The ids of the nodes that match, and of those above them; None where nothing is searched for."""
    if not wanted:
        return None
    kept: set[str] = set()
    for root in roots:
        for node in (root, *below(root)):
            if _matches(node, wanted, snapshot, now):
                each: Node | None = node
                while each is not None and each.id not in kept:
                    kept.add(each.id)
                    each = each.above
    return kept


class _Subtree(NamedTuple):
    """A row's agent and all below it, taken together."""

    rows: int
    """How many descendants it has."""
    agent_ids: tuple[str, ...]
    tokens: int
    cost_usd: float | None
    unpriced_calls: int
    cost_estimated: bool


def _subtree(place: _Place, snapshot: Snapshot) -> _Subtree:
    under = list(below(place.node)) if place.node is not None and place.expandable else []
    found = (snapshot.agent(agent_id) for agent_id in (place.agent_id, *(node.agent_id for node in under)))
    agents = [each for each in found if each is not None]
    priced = [each.cost_usd for each in agents if each.cost_usd is not None]
    return _Subtree(
        rows=len(under),
        agent_ids=tuple(each.id for each in agents),
        tokens=sum(each.total_tokens for each in agents),
        cost_usd=sum(priced, 0.0) if priced else None,
        unpriced_calls=sum(each.unpriced_calls for each in agents),
        cost_estimated=any(each.cost_estimated for each in agents),
    )


def row_condition(
    task: TaskFacts | None, agent: AgentFacts | None, snapshot: Snapshot, now: float
) -> Condition:
    """The state of a task and its agent, without what is below them."""
    if task is None or task.status == "done":
        flagged = report_condition(snapshot, agent)
        if flagged is not None:
            return flagged
    if task is not None and (
        agent is None or task.status in ("pending", "stale", "dropped", "done", "failed", "cancelled")
    ):
        unmet = _unmet(task, snapshot)
        goes_on = snapshot.state is SessionState.LIVE and bool(
            task.role
        )  # items of to-do lists wait for no slot
        return task_condition(task, snapshot.state, unmet if unmet or goes_on else None)
    if agent is not None:
        return agent_condition(agent, snapshot.state, now, pausing=agent.id in snapshot.pausing)
    return Condition("·", "pending", "pending")


def _with_those_below(
    condition: Condition, place: _Place, agent: AgentFacts | None, snapshot: Snapshot, now: float
) -> Condition:
    """The state of a row that represents those below it: a workflow's run or phase, or a folded row. It says how many
    of them wait for a person or are silent."""
    stands_for_them = not place.expanded or (agent is not None and agent.is_unit)
    if place.node is None or not place.node.children or not stands_for_them:
        return condition
    if condition.role not in ("working", "silent", "muted"):
        return condition
    agents = [
        each
        for node in below(place.node)
        if (each := snapshot.agent(node.agent_id)) is not None and not each.is_unit
    ]
    roles = [agent_condition(each, snapshot.state, now).role for each in agents]
    for glyph, word, role in (("?", "waiting", "waiting"), ("!", "silent", "silent")):
        if count := roles.count(role):
            return Condition(
                glyph, word, role, f"{count} of {formatting.plural(len(agents), 'agent')} {word}"
            )
    return condition


def _name(task: TaskFacts | None, agent: AgentFacts | None) -> str:
    """The name of an agent, else of a task, with the role in brackets. Sanitised."""
    if agent is not None and (task is None or agent.task_id == task.id):
        return sanitize(agent.full_label)
    return sanitize(with_role(task.label, task.role)) if task is not None else ""


def _unmet(task: TaskFacts, snapshot: Snapshot) -> tuple[str, ...]:
    """The names of the tasks that it still waits for."""
    unmet = []
    for need in task.depends_on:
        other = snapshot.task(need)
        if other is None or other.status not in ("done", "dropped"):
            unmet.append(need if other is None else sanitize(other.label))
    return tuple(unmet)


def _matches(node: Node, wanted: list[str], snapshot: Snapshot, now: float) -> bool:
    agent, task = snapshot.agent(node.agent_id), snapshot.task(node.task_id)
    hay = [_name(task, agent)]
    if agent is not None:
        hay += [
            agent.id,
            agent.name,
            agent.role,
            agent.model,
            agent.status,
            agent_condition(agent, snapshot.state, now).word,
        ]
    if task is not None:
        hay += [task.id, task.name, task.title, task.status, task.role]
    text = " ".join(hay).casefold()
    return all(word in text for word in wanted)
