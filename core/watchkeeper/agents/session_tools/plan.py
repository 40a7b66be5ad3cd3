"""The planner's tools: a plan is a graph of tasks with dependencies, and every revision of it is kept."""

from __future__ import annotations

import json
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from typing import Any

from watchkeeper.agents.roles import ISOLATIONS
from watchkeeper.agents.session_tools import FunctionTool, names_of, text_of, tool
from watchkeeper.agents.tools.contract import ToolContext, ToolResult
from watchkeeper.records.ports import IdSource
from watchkeeper.records.states import AGENT_ENDED, TASK_ENDED, AgentStatus, TaskStatus
from watchkeeper.store import agents, plans
from watchkeeper.store.plans import Task
from watchkeeper.store.transaction import Transaction

MOST_TASKS = 500

MOST_TOLD = 100
"""Tasks of a plan up to which each change of it tells how all of them stand."""

MOST_FAILURES = 5
"""How often a planner may resume a task that fails at the same turn. A person may continue to do so."""

MOST_ATTEMPTS = 10
"""How many attempts a planner may give to one task. A person may give more."""

_TASK = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "short and unique, such as `explore-src`"},
        "title": {"type": "string"},
        "instructions": {
            "type": "string",
            "description": "all that the sub-agent needs: it sees nothing else of the plan",
        },
        "role": {
            "type": "string",
            "description": "explorer, researcher, coder, reviewer, writer, or a role of this workspace",
        },
        "depends_on": {
            "type": "array",
            "items": {"type": "string"},
            "description": "names of tasks that must be done before",
        },
        "expected_outputs": {
            "type": "array",
            "items": {"type": "string"},
            "description": "names of artifacts to save",
        },
        "inputs": {
            "type": "array",
            "items": {"type": "string"},
            "description": "names of artifacts that it builds on",
        },
        "model": {"type": "string", "description": "another model than the session's"},
        "isolation": {
            "type": "string",
            "enum": list(ISOLATIONS),
            "description": "`worktree`: in a git worktree of its own, merged later with merge_task (the default for agent"
            " programs that write); `none`: in the workspace itself",
        },
    },
    "required": ["name", "title", "instructions", "role"],
}
_NAME = {"task": {"type": "string", "description": "the task's name or id"}}


class PlanTools:
    """Makes the planner's tools. `roles` are the names that a task's role may have."""

    def __init__(self, new_id: IdSource, roles: frozenset[str]) -> None:
        self._new_id = new_id
        self._roles = roles

    def tools(self) -> list[FunctionTool]:
        whole = _TASK["properties"]
        assert isinstance(whole, dict)
        return [
            tool(
                "create_plan",
                "Make the plan: tasks with dependencies. Tasks whose dependencies are done run in parallel,"
                " each by a sub-agent of"
                " its own. Call it once; change the plan with the other tools. Then end your turn: results"
                " arrive as messages.",
                {"goal": {"type": "string"}, "tasks": {"type": "array", "items": _TASK, "minItems": 1}},
                ["goal", "tasks"],
                self.create_plan,
            ),
            tool("add_task", "Add a task to the plan.", whole, list(_TASK["required"]), self.add_task),
            tool(
                "revise_task",
                "Change the title, instructions, role or dependencies of a task that is not running.",
                _NAME | {key: whole[key] for key in ("title", "instructions", "role", "depends_on", "expected_outputs")},
                ["task"],
                self.revise_task,
            ),
            tool(
                "resume_task",
                "Let a failed, paused or cancelled task continue where it stopped, with its agent's memory.",
                _NAME | {"message": {"type": "string", "description": "what the sub-agent should know now"}},
                ["task"],
                self.resume_task,
            ),
            tool(
                "rerun_task",
                "Do a task again from its start, as a new attempt. It keeps its memory unless `fresh`. Tasks"
                " that depend on it"
                " run again only if what they build on has changed.",
                _NAME | {"fresh": {"type": "boolean"}},
                ["task"],
                self.rerun_task,
            ),
            tool("drop_task", "Give a task up. Those that depend on it run without it.",
                 _NAME | {"reason": {"type": "string"}}, ["task"], self.drop_task),
            tool(
                "finish_session",
                "End the session once no task is left to run.",
                {"summary": {"type": "string"}, "status": {"type": "string", "enum": ["done", "failed"]}},
                ["summary"],
                self.finish_session,
            ),
        ]  # fmt: skip

    def create_plan(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        goal = text_of(arguments, "goal")
        wanted = arguments["tasks"]
        if len(wanted) > MOST_TASKS:
            raise ValueError(f"{len(wanted)} tasks are too many; at most {MOST_TASKS}, so make them larger")
        if tx.one("SELECT 1 FROM tasks WHERE session_id = ?", (tx.session_id,)):
            raise ValueError("there is a plan already; change it with add_task, revise_task, drop_task")
        plan_id = self._new_id()
        plans.create_plan(tx, plan_id, goal)
        ids: dict[str, str] = {}
        for position, one in enumerate(wanted):
            ids[self._add(tx, plan_id, position, one, ids)] = str(position)
        by_name = {
            row[0]: row[1]
            for row in tx.all("SELECT name, id FROM tasks WHERE parent_plan_id = ?", (plan_id,))
        }
        for one in wanted:
            _depend(tx, by_name, by_name[one["name"]], names_of(one, "depends_on"))
        _refuse_cycles(tx)
        revision = plans.revise(tx, plan_id, "created")
        answer = {"plan": plan_id, "revision": revision, "tasks": by_name}
        return ToolResult(json.dumps(answer), effects={"plan": True})

    def add_task(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        plan_id = _plan(tx)
        known = _ids_by_name(tx)
        name = self._add(tx, plan_id, len(known), arguments, known)
        row = tx.one("SELECT id FROM tasks WHERE parent_plan_id = ? AND name = ?", (plan_id, name))
        _depend(tx, known | {name: row[0]}, row[0], names_of(arguments, "depends_on"))
        _refuse_cycles(tx)
        return self._told(tx, plan_id, f"added {name}")

    def revise_task(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        task = find_task(tx, arguments)
        if task.status is TaskStatus.RUNNING:
            raise ValueError(f"{task.name} is running; cancel it first, or re-run it after")
        title = text_of(arguments, "title", default=task.title)
        instructions = text_of(arguments, "instructions", default=task.instructions)
        role = self._role(text_of(arguments, "role", default=task.role))
        outputs = names_of(arguments, "expected_outputs") or list(task.expected_outputs)
        tx.keep_replaced("tasks", task.id, "instructions", "role", "expected_outputs")
        tx.execute(
            "UPDATE tasks SET title = ?, instructions = ?, role = ?, expected_outputs = ? WHERE id = ?",
            (title, instructions, role, json.dumps(outputs), task.id),
        )
        if "depends_on" in arguments:
            _depend(tx, _ids_by_name(tx), task.id, names_of(arguments, "depends_on"))
            _refuse_cycles(tx)
        return self._told(tx, task.parent_plan_id, f"revised {task.name}")

    def resume_task(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        task = find_task(tx, arguments)
        failures = tx.one("SELECT failures FROM tasks WHERE id = ?", (task.id,))[0]
        if failures >= MOST_FAILURES:
            raise ValueError(
                f"{task.name} failed {failures} times without a single turn between ({task.error}); revise"
                " it, re-run it fresh,"
                " or drop it"
            )
        resume(tx, task, str(arguments.get("message") or "Go on where you stopped."))
        return self._told(tx, task.parent_plan_id, f"resumed {task.name}")

    def rerun_task(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        task = find_task(tx, arguments)
        if task.attempt >= MOST_ATTEMPTS:
            raise ValueError(f"{task.name} had {task.attempt} attempts; drop it, or make another task of it")
        rerun(tx, task, fresh=bool(arguments.get("fresh")))
        return self._told(tx, task.parent_plan_id, f"re-runs {task.name}")

    def drop_task(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        task = find_task(tx, arguments)
        stop_agent(tx, task, "dropped by the planner")
        plans.move(tx, task.id, TaskStatus.DROPPED, str(arguments.get("reason") or "dropped by the planner"))
        return self._told(tx, task.parent_plan_id, f"dropped {task.name}")

    def finish_session(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        summary = text_of(arguments, "summary")
        status = arguments.get("status") or "done"
        left = [
            task
            for task in plans.load_tasks(tx, tx.session_id)
            if task.status not in TASK_ENDED | {TaskStatus.STALE}
        ]
        if left:
            named = ", ".join(f"{task.name} ({task.status})" for task in left[:8])
            raise ValueError(f"not yet: {named}. Wait for them (end your turn), or drop them first")
        return ToolResult(f"the session ends: {status}", effects={"finish": status, "summary": summary})

    def _told(self, tx: Transaction, plan_id: str, what: str) -> ToolResult:
        revision = plans.revise(tx, plan_id, what)
        states = {
            row[0]: row[1]
            for row in tx.all("SELECT name, status FROM tasks WHERE session_id = ?", (tx.session_id,))
        }
        # With a large plan, all states in each answer would fill the planner's window.
        progress = (
            {"tasks": states} if len(states) <= MOST_TOLD else {"tasks_by_status": Counter(states.values())}
        )
        return ToolResult(json.dumps({"ok": what, "revision": revision, **progress}), effects={"plan": True})

    def _add(
        self, tx: Transaction, plan_id: str, position: int, one: dict[str, Any], known: dict[str, str]
    ) -> str:
        name = text_of(one, "name", limit=120).strip()
        if name in known:
            raise ValueError(f"two tasks are named {name!r}; names must be unique")
        model = one.get("model")
        plans.add_task(
            tx,
            task_id=self._new_id(),
            plan_id=plan_id,
            name=name,
            position=position,
            title=text_of(one, "title", default=name, limit=400),
            instructions=text_of(one, "instructions"),
            role=self._role(text_of(one, "role", default="explorer", limit=120)),
            model=model if isinstance(model, str) and model else None,
            expected_outputs=names_of(one, "expected_outputs"),
            isolation=one.get("isolation"),
        )
        return name

    def _role(self, role: str) -> str:
        if role not in self._roles or role == "planner":
            offered = ", ".join(sorted(self._roles - {"planner"}))
            raise ValueError(f"there is no role {role!r}; there are {offered}")
        return role


def find_task(tx: Transaction, arguments: dict[str, Any]) -> Task:
    """The task that the argument `task` names.

    Raises:
        ValueError: there is none.
    """
    wanted = text_of(arguments, "task", limit=200)
    tasks = plans.load_tasks(tx, tx.session_id)
    for task in tasks:
        if wanted in (task.id, task.name):
            return task
    raise ValueError(f"no task {wanted!r}; there are {', '.join(task.name for task in tasks) or 'none yet'}")


def resume(tx: Transaction, task: Task, message: str) -> None:
    """Let a task that stopped continue with the same agent and attempt.

    Raises:
        ValueError: it did not stop, or never started.
    """
    if task.status is TaskStatus.RUNNING:
        raise ValueError(f"{task.name} is running already")
    if task.status not in (TaskStatus.FAILED, TaskStatus.PAUSED, TaskStatus.CANCELLED):
        raise ValueError(
            f"{task.name} is {task.status}; only a failed, paused or cancelled task can be resumed"
        )
    agent = agents.load(tx, task.assigned_agent) if task.assigned_agent else None
    if agent is None:
        plans.move(tx, task.id, TaskStatus.PENDING, "resumed")
        return
    plans.move(tx, task.id, TaskStatus.RUNNING, "resumed")
    agents.move(tx, agent.id, AgentStatus.WORKING, "resumed")
    plans.post(tx, agent.id, "resumed", {"text": message})


def rerun(tx: Transaction, task: Task, *, fresh: bool) -> None:
    """Start the next attempt of a task; finished tasks downstream become stale.

    Raises:
        ValueError: it never ran.
    """
    if task.status is TaskStatus.PENDING and task.assigned_agent is None:
        raise ValueError(f"{task.name} has not run yet; it starts when its dependencies are done")
    stop_agent(tx, task, "re-run")
    if task.status in (TaskStatus.RUNNING, TaskStatus.PAUSED, TaskStatus.STALE) or task.status in TASK_ENDED:
        plans.move(tx, task.id, TaskStatus.PENDING, "re-run" + (" (fresh)" if fresh else ""))
    tx.keep_replaced("tasks", task.id, "result", "artifact_refs", "inputs_hash")
    tx.execute(
        "UPDATE tasks SET attempt = attempt + 1, assigned_agent = NULL, starts_from = ?, result = NULL,"
        " error = NULL,"
        " artifact_refs = '[]', inputs_hash = NULL, failures = 0 WHERE id = ?",
        (None if fresh else task.assigned_agent, task.id),
    )
    for other in downstream(plans.load_tasks(tx, tx.session_id), task.id):
        if other.status is TaskStatus.DONE:
            plans.move(tx, other.id, TaskStatus.STALE, f"{task.name} is run again")


def stop_agent(tx: Transaction, task: Task, reason: str) -> None:
    """Cancel the agent that works on a task, if one does; its loop finds out at its next step."""
    agent = agents.load(tx, task.assigned_agent) if task.assigned_agent else None
    if agent is not None and agent.status not in AGENT_ENDED:
        agents.move(tx, agent.id, AgentStatus.CANCELLED, reason)


def downstream(tasks: list[Task], task_id: str) -> list[Task]:
    """Every task that depends on `task_id`, directly or not, in the planner's order."""
    reached = {task_id}
    grew = True
    while grew:
        grew = False
        for task in tasks:
            if task.id not in reached and reached.intersection(task.depends_on):
                reached.add(task.id)
                grew = True
    return [task for task in tasks if task.id in reached and task.id != task_id]


def _plan(tx: Transaction) -> str:
    row = tx.one("SELECT current_plan_id FROM sessions WHERE id = ?", (tx.session_id,))
    if row is None or row[0] is None:
        raise ValueError("there is no plan yet; make one with create_plan")
    return str(row[0])


def _ids_by_name(tx: Transaction) -> dict[str, str]:
    return {
        row[0]: row[1] for row in tx.all("SELECT name, id FROM tasks WHERE session_id = ?", (tx.session_id,))
    }


def _depend(tx: Transaction, by_name: dict[str, str], task_id: str, needs: list[str]) -> None:
    missing = [need for need in needs if need not in by_name]
    if missing:
        raise ValueError(f"depends_on names no task of this plan: {', '.join(missing)}")
    plans.set_dependencies(tx, task_id, [by_name[need] for need in needs])


def _refuse_cycles(tx: Transaction) -> None:
    graph = {task.id: task.depends_on for task in plans.all_standings(tx, tx.session_id)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        names = {task_id: name for name, task_id in _ids_by_name(tx).items()}
        circle = ", ".join(names[task_id] for task_id in error.args[1][1:])
        raise ValueError(f"these tasks depend on each other in a circle: {circle}") from None
