"""Tools that change only the session's database: those of plans and artifacts (`memory_tools` has those of memory).

Each effect happens exactly once. A plan is a graph of tasks with dependencies, and every revision of it is kept.

JSON artifacts are put together here, so that large results never pass through a model's context:
`merge_json` adds up counts: each count once, nothing lost. `expand_includes` replaces, in the JSON that a
model saves, objects that represent values:

- `{"$artifact": ref_or_name}`: that artifact's JSON. With `"$pointer": "/a/b"`, a part of it (RFC 6901); with
  `"$default": value`, that value where the pointer finds nothing; with `"$columns": [name, …]`, its rows as
  objects; with `"$sort": true`, in order (a list by its rows, an object by its keys).
- `{"$merge": [value, …]}`: the values, each expanded, joined by `merge_json`.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import mimetypes
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

from watchkeeper.agents.roles import ISOLATIONS, PLANNER, Role
from watchkeeper.agents.tools.contract import Permission, ToolContext, ToolResult, validate_arguments
from watchkeeper.records.messages import ToolSpec
from watchkeeper.records.ports import IdSource
from watchkeeper.records.states import AGENT_ENDED, TASK_ENDED, AgentStatus, TaskStatus
from watchkeeper.records.text import one_line
from watchkeeper.records.tool_inputs import open_regular, resolve_target
from watchkeeper.store import agents, artifacts, plans, sessions
from watchkeeper.store.driver import Reads
from watchkeeper.store.plans import Task
from watchkeeper.store.transaction import Transaction

# --- A store tool, built from a specification and a function of the transaction ---------------------------

Apply = Callable[[Transaction, dict[str, Any], ToolContext], ToolResult]


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A `StoreTool`. Idempotent by nature: its effect and its result are one transaction."""

    spec: ToolSpec
    function: Apply
    idempotent: bool = True
    permission: Permission = Permission.ALLOW

    def apply(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return self.function(tx, arguments, context)


def tool(
    name: str, description: str, properties: dict[str, Any], required: list[str], function: Apply
) -> FunctionTool:
    """A tool whose input is an object with these properties."""
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return FunctionTool(ToolSpec(name, description, schema), function)


def text_of(arguments: dict[str, Any], name: str, *, default: str | None = None, limit: int = 100_000) -> str:
    """A string argument.

    Raises:
        ValueError: it is missing, no string, or longer than `limit` characters.
    """
    value = arguments.get(name, default)
    if not isinstance(value, str) or (not value.strip() and default is None):
        raise ValueError(f"`{name}` must be a non-empty string")
    if len(value) > limit:
        raise ValueError(f"`{name}` has {len(value)} characters; the limit is {limit}")
    return value


def names_of(arguments: dict[str, Any], name: str) -> list[str]:
    """An argument that is a list of strings, each once (absent: none)."""
    return list(dict.fromkeys(arguments.get(name) or []))


# --- Plans ----------------------------------------------------------------------------------------------

MOST_TASKS = 500

MOST_STATES_IN_RESULT = 100
"""The result of a change to a plan lists the state of each task of a plan with at most so many tasks."""

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
            "description": "everything the sub-agent needs: it cannot see the rest of the plan",
        },
        "role": {"type": "string"},
        "depends_on": {
            "type": "array",
            "items": {"type": "string"},
            "description": "names of tasks that must be done first",
        },
        "expected_outputs": {
            "type": "array",
            "items": {"type": "string"},
            "description": "what must exist when it ends: names of artifacts, or `file:PATH` for a file in the workspace",
        },
        "model": {"type": "string", "description": "a model other than the session's"},
        "isolation": {
            "type": "string",
            "enum": list(ISOLATIONS),
            "description": "`worktree`: in a separate git worktree, merged later with merge_task (the default for agent"
            " programs that write); `none`: in the workspace itself",
        },
    },
    "required": ["name", "instructions", "role"],
    "additionalProperties": False,
}
ENDS_TURN = frozenset({"create_plan", "add_task", "revise_task", "resume_task", "rerun_task", "drop_task"})
"""After a reply of the planner that only changed the plan, its turn is over: the next call comes with news."""
BESIDE = frozenset({"remember", "save_artifact"})
"""What a reply may also do without being more than a change of the plan, or than the end of a task."""
INPUTS_AGAIN = "a task it depends on runs again"
"""Why an agent is paused whose task became stale while it worked."""
WAIT_FOR_INPUTS = (INPUTS_AGAIN, "what it builds on is made again")
"""`INPUTS_AGAIN`, as this version and earlier ones write it."""
_MOST_ROLES = 40
_ENDS = "Make all plan changes in one reply: the call ends your turn."
_NAME = {"task": {"type": "string", "description": "the task's name or id"}}
SAVING = frozenset({"save_artifact", "merge_artifacts"})
"""Tools that save an artifact under the name that they are given."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A task as it is to be."""

    name: str
    title: str
    instructions: str
    role: str
    expected_outputs: list[str]


class PlanTools:
    """Makes the planner's tools. `roles` are those that a task may have."""

    def __init__(self, new_id: IdSource, roles: Mapping[str, Role]) -> None:
        self._new_id = new_id
        self._roles = {name: role for name, role in roles.items() if name != PLANNER}

    def tools(self) -> list[FunctionTool]:
        properties = _TASK["properties"]
        assert isinstance(properties, dict)
        whole = properties | {"role": {"type": "string", "description": self._what_roles_can()}}
        task = _TASK | {"properties": whole}
        return [
            tool(
                "create_plan",
                "Create the plan (only once): one task, or several with dependencies. Each task gets its own sub-agent."
                " Tasks whose dependencies are done run in parallel. The call ends your turn.",
                {"goal": {"type": "string"}, "tasks": {"type": "array", "items": task, "minItems": 1}},
                ["tasks"],
                self.create_plan,
            ),
            tool("add_task", f"Add a task to the plan. {_ENDS}", whole, ["name", "instructions", "role"], self.add_task),
            tool(
                "revise_task",
                "Change the title, instructions, role or dependencies of a task that is not running.",
                _NAME | {key: whole[key] for key in ("title", "instructions", "role", "depends_on", "expected_outputs")},
                ["task"],
                self.revise_task,
            ),
            tool(
                "resume_task",
                "Continue a failed, paused or cancelled task from where it stopped, keeping its agent's memory.",
                _NAME | {"message": {"type": "string", "description": "a message for the sub-agent"}},
                ["task"],
                self.resume_task,
            ),
            tool(
                "rerun_task",
                "Run a task again from the start, as a new attempt. It keeps its memory unless `fresh`. Tasks"
                " that depend on it stop, and run again only if their inputs have changed.",
                _NAME | {"reason": {"type": "string", "description": "why, and what to do differently"},
                         "fresh": {"type": "boolean"}},
                ["task", "reason"],
                self.rerun_task,
            ),
            tool("drop_task", "Drop a task. Tasks that depend on it run without it.",
                 _NAME | {"reason": {"type": "string"}}, ["task"], self.drop_task),
            tool(
                "finish_session",
                "End the session when no tasks are left to run.",
                {"summary": {"type": "string"}, "status": {"type": "string", "enum": ["done", "failed"]}},
                ["summary"],
                self.finish_session,
            ),
        ]  # fmt: skip

    def create_plan(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        goal = text_of(arguments, "goal", default="") or sessions.require(tx, tx.session_id).goal
        wanted = arguments["tasks"]
        if len(wanted) > MOST_TASKS:
            raise ValueError(
                f"{len(wanted)} tasks exceed the limit; create at most {MOST_TASKS} larger tasks"
            )
        if plans.task_names(tx, tx.session_id):
            raise ValueError("a plan already exists; change it with add_task, revise_task or drop_task")
        plan_id = self._new_id()
        plans.create_plan(tx, plan_id, goal)
        ids: dict[str, str] = {}
        for position, one in enumerate(wanted):
            ids[self._add(tx, plan_id, position, one, ids)] = str(position)
        by_name = _ids_by_name(tx)
        for one in wanted:
            _depend(tx, by_name, by_name[one["name"]], names_of(one, "depends_on"))
        _refuse_cycles(tx)
        revision = plans.revise(tx, plan_id, "created")
        answer = {"plan": plan_id, "revision": revision, "tasks": by_name}
        return ToolResult(json.dumps(answer), effects={"plan": True})

    def refuse(self, reads: Reads, act: str, arguments: dict[str, Any]) -> None:
        """Refuse a person's change of the plan (`add`, `revise` or `drop`) from the rows, as the change itself would.

        Raises:
            ValueError: the reason, as one line.
        """
        tools = {"add": "add_task", "revise": "revise_task", "drop": "drop_task"}
        if act not in tools:
            raise ValueError(f"unknown plan action {act}; use one of {', '.join(tools)}")
        schema = next(one.spec.input_schema for one in self.tools() if one.spec.name == tools[act])
        if fault := validate_arguments(schema, arguments):
            raise ValueError(fault)
        _plan(reads)
        by_name, needs = _ids_by_name(reads), names_of(arguments, "depends_on")
        if act == "add":
            name = self._new_task(arguments, by_name).name
            _refuse_missing(by_name, needs, name)
            return
        task = find_task(reads, arguments)
        if act == "drop":
            _refuse_drop(task)
            return
        if arguments.keys() <= {"task"}:
            raise ValueError(f"no change to {task.name} was specified")
        self._revised(task, arguments)
        if "depends_on" in arguments:
            _refuse_missing(by_name, needs, task.name)
            _refuse_cycles(reads, {task.id: [by_name[need] for need in needs]})

    def add_task(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        plan_id = _plan(tx)
        for task in plans.load_tasks(tx, tx.session_id):
            if task.name == str(arguments.get("name", "")).strip():
                _refuse_changed(tx, task, context)
        known = _ids_by_name(tx)
        name = self._add(tx, plan_id, len(known), arguments, known)
        task_id = next(one for one, called in plans.task_names(tx, tx.session_id) if called == name)
        _depend(tx, known | {name: task_id}, task_id, names_of(arguments, "depends_on"))
        _refuse_cycles(tx)
        return self._revise_and_report(tx, plan_id, f"added {name}")

    def revise_task(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        task = self._task_to_change(tx, arguments, context)
        now = self._revised(task, arguments)
        plans.rewrite(
            tx, task.id, title=now.title, instructions=now.instructions, role=now.role,
            expected_outputs=now.expected_outputs,
        )  # fmt: skip
        if "depends_on" in arguments:
            _depend(tx, _ids_by_name(tx), task.id, names_of(arguments, "depends_on"))
            _refuse_cycles(tx)
        return self._revise_and_report(tx, task.parent_plan_id, f"revised {task.name}")

    def resume_task(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        task = self._task_to_change(tx, arguments, context)
        if task.failures >= MOST_FAILURES:
            raise ValueError(
                f"{task.name} failed {task.failures} times without completing a turn ({task.error}); revise"
                " it, re-run it fresh,"
                " or drop it"
            )
        resume(tx, task, str(arguments.get("message") or "Continue where you stopped."))
        return self._revise_and_report(tx, task.parent_plan_id, f"resumed {task.name}")

    def rerun_task(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        task = self._task_to_change(tx, arguments, context)
        if task.attempt >= MOST_ATTEMPTS:
            raise ValueError(
                f"{task.name} has had {task.attempt} attempts; drop it, or add a different task to replace it"
            )
        rerun(tx, task, fresh=bool(arguments.get("fresh")), reason=text_of(arguments, "reason", limit=4_000))
        return self._revise_and_report(tx, task.parent_plan_id, f"re-runs {task.name}")

    def drop_task(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        task = self._task_to_change(tx, arguments, context)
        _refuse_drop(task)
        by = "dropped by the planner" if context.agent_id else "dropped by a person"
        stop_agent(tx, task, by)
        plans.move(tx, task.id, TaskStatus.DROPPED, str(arguments.get("reason") or by))
        return self._revise_and_report(tx, task.parent_plan_id, f"dropped {task.name}")

    def finish_session(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        summary = text_of(arguments, "summary")
        status = arguments.get("status") or "done"
        if plans.has_word_of_person(tx, context.agent_id):
            raise ValueError(
                "not yet: a person just sent a message or made a change; read it in the next message"
            )
        left = [
            task
            for task in plans.load_tasks(tx, tx.session_id)
            if task.status not in TASK_ENDED | {TaskStatus.STALE}
        ]
        if left:
            named = ", ".join(f"{task.name} ({task.status})" for task in left[:8])
            raise ValueError(f"not yet: {named}. End your turn and wait for them, or drop them first")
        return ToolResult(f"the session ends: {status}", effects={"finish": status, "summary": summary})

    def _revise_and_report(self, tx: Transaction, plan_id: str, what: str) -> ToolResult:
        revision = plans.revise(tx, plan_id, what)
        states = {task.name: task.status for task in plans.load_tasks(tx, tx.session_id)}
        # With a large plan, all states in each answer would fill the planner's window.
        progress = (
            {"tasks": states}
            if len(states) <= MOST_STATES_IN_RESULT
            else {"tasks_by_status": Counter(states.values())}
        )
        return ToolResult(json.dumps({"ok": what, "revision": revision, **progress}), effects={"plan": True})

    def _add(
        self, tx: Transaction, plan_id: str, position: int, one: dict[str, Any], known: dict[str, str]
    ) -> str:
        new = self._new_task(one, known)
        model = one.get("model")
        plans.add_task(
            tx,
            task_id=self._new_id(),
            plan_id=plan_id,
            name=new.name,
            position=position,
            title=new.title,
            instructions=new.instructions,
            role=new.role,
            model=model if isinstance(model, str) and model else None,
            expected_outputs=new.expected_outputs,
            isolation=one.get("isolation"),
        )
        return new.name

    def _new_task(self, one: dict[str, Any], known: Mapping[str, str]) -> _Wanted:
        """Raises ValueError: no task can be added like that."""
        name = text_of(one, "name", limit=120).strip()
        if name in known:
            raise ValueError(f"two tasks are named {name!r}; names must be unique")
        role = self._role(text_of(one, "role", default="explorer", limit=120))
        outputs = names_of(one, "expected_outputs")
        self._refuse_files(name, role, outputs)
        title = text_of(one, "title", default=name, limit=400)
        return _Wanted(name, title if title.strip() else name, text_of(one, "instructions"), role, outputs)

    def _revised(self, task: Task, arguments: dict[str, Any]) -> _Wanted:
        """Raises ValueError: the task cannot be changed like that, or not now."""
        if task.status is TaskStatus.RUNNING:
            raise ValueError(f"{task.name} is running; cancel it first, or re-run it later")
        given = {"title": task.title, "instructions": task.instructions, "role": task.role} | arguments
        role = self._role(text_of(given, "role"))
        outputs = list(task.expected_outputs)
        if "expected_outputs" in arguments:
            outputs = names_of(arguments, "expected_outputs")
        self._refuse_files(task.name, role, outputs)
        title = text_of(given, "title", default="", limit=max(400, len(task.title)))
        instructions = text_of(given, "instructions") if "instructions" in arguments else task.instructions
        return _Wanted(task.name, title if title.strip() else task.name, instructions, role, outputs)

    def _task_to_change(self, tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> Task:
        """The task that the call names.

        Raises:
            ValueError: there is none, or a person changed it since the planner's last message.
        """
        task = find_task(tx, arguments)
        _refuse_changed(tx, task, context)
        return task

    def _role(self, role: str) -> str:
        if role not in self._roles:
            raise ValueError(f"no role {role!r}; available: {', '.join(sorted(self._roles))}")
        return role

    def _refuse_files(self, task: str, role: str, outputs: Sequence[str]) -> None:
        files = [one.removeprefix(plans.FILE_OUTPUT) for one in outputs if one.startswith(plans.FILE_OUTPUT)]
        for file in files:
            if not file or os.path.isabs(file) or os.path.normpath(file).startswith(".."):
                raise ValueError(f"{task}: {plans.FILE_OUTPUT}{file} is not a path inside the workspace")
        if files and not self._roles[role].changes_files:
            able = ", ".join(sorted(name for name, one in self._roles.items() if one.changes_files))
            raise ValueError(
                f"{task}: the role {role} cannot write the file {files[0]}; assign the task to a role that can ({able}), or "
                "expect an artifact"
            )

    def _what_roles_can(self) -> str:
        """Each role with what it may change, for the model that chooses one."""
        listed = [f"{name} ({role.can})" for name, role in sorted(self._roles.items())]
        more = ["…"] if len(listed) > _MOST_ROLES else []
        return "; ".join([*listed[:_MOST_ROLES], *more])


def _refuse_changed(tx: Transaction, task: Task, context: ToolContext) -> None:
    """Raises ValueError: a person changed the task since the planner's last message; it says how it is now."""
    for _, kind, note in plans.undelivered(tx, context.agent_id) if context.agent_id else ():
        if kind in ("person", "task_cancelled") and note.get("task") == task.name:
            said = note.get("text") or "a person cancelled it."
            names = {task_id: name for name, task_id in _ids_by_name(tx).items()}
            after = ", ".join(names.get(need, need) for need in task.depends_on) or "no other task"
            raise ValueError(
                f"{task.name} was changed in the meantime: {said} It is now {task.status} (attempt {task.attempt}, role"
                f" {task.role}, “{one_line(task.title, 200)}”, depends on {after}; instructions:"
                f" {one_line(task.instructions, 600)}). If this is not enough, change it again"
            )


def _refuse_drop(task: Task) -> None:
    """Raises ValueError: the task has ended as asked, or was dropped."""
    if task.status not in (TaskStatus.DONE, TaskStatus.DROPPED):
        return
    raise ValueError(f"{task.name} is already {task.status}; nothing to drop")


def find_task(tx: Any, arguments: dict[str, Any]) -> Task:
    """The task that the argument `task` names.

    Raises:
        ValueError: there is none.
    """
    wanted = text_of(arguments, "task", limit=200)
    tasks = plans.load_tasks(tx, tx.session_id)
    for task in tasks:
        if wanted in (task.id, task.name):
            return task
    raise ValueError(
        f"no task {wanted!r}; existing tasks: {', '.join(task.name for task in tasks) or 'none yet'}"
    )


def resume(tx: Transaction, task: Task, message: str) -> None:
    """Let a task that stopped continue with the same agent and attempt.

    Raises:
        ValueError: it did not stop, or never started.
    """
    if task.status is TaskStatus.RUNNING:
        raise ValueError(f"{task.name} is already running")
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


def rerun(tx: Transaction, task: Task, *, fresh: bool, reason: str = "") -> list[str]:
    """Start the next attempt of a task. Tasks downstream that are done, run or are paused become stale: those that run stop at
    their next step, and withdraw what they ask. Returns the names of those that had not ended.

    `lifecycle.settle_stale` decides about them when their inputs are there again.

    Raises:
        ValueError: it never ran.
    """
    if task.status is TaskStatus.PENDING and task.assigned_agent is None:
        raise ValueError(f"{task.name} has not run yet; it starts when its dependencies are done")
    stop_agent(tx, task, "re-run")
    if task.status in (TaskStatus.RUNNING, TaskStatus.PAUSED, TaskStatus.STALE) or task.status in TASK_ENDED:
        plans.move(tx, task.id, TaskStatus.PENDING, "re-run" + (" (fresh)" if fresh else ""))
    plans.begin_attempt(tx, task.id, reason or None, starts_from=None if fresh else task.assigned_agent)
    stopped = []
    for other in downstream(plans.load_tasks(tx, tx.session_id), task.id):
        if other.status not in (TaskStatus.DONE, TaskStatus.RUNNING, TaskStatus.PAUSED):
            continue
        if other.status is not TaskStatus.DONE and other.assigned_agent is not None:
            stopped.append(other.name)
            agents.cancel_questions(tx, other.assigned_agent, f"{task.name} runs again")
        plans.move(tx, other.id, TaskStatus.STALE, f"{task.name} runs again")
    return stopped


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


def _plan(tx: Any) -> str:
    session = sessions.load(tx, tx.session_id)
    if session is None or session.current_plan_id is None:
        raise ValueError("no plan yet; make one with create_plan")
    return session.current_plan_id


def _ids_by_name(tx: Any) -> dict[str, str]:
    return {name: task_id for task_id, name in plans.task_names(tx, tx.session_id)}


def _depend(tx: Transaction, by_name: dict[str, str], task_id: str, needs: list[str]) -> None:
    name = next(name for name, known in by_name.items() if known == task_id)
    _refuse_missing(by_name, needs, name)
    plans.set_dependencies(tx, task_id, [by_name[need] for need in needs])


def _refuse_missing(by_name: Mapping[str, str], needs: Sequence[str], name: str) -> None:
    """Raises ValueError: one of `needs` is no task of the plan, or the task `name` itself."""
    if name in needs:
        raise ValueError(f"these tasks form a dependency cycle: {name}")
    missing = [need for need in needs if need not in by_name]
    if missing:
        raise ValueError(f"depends_on names unknown tasks: {', '.join(missing)}")


def _refuse_cycles(tx: Any, wanted: Mapping[str, Sequence[str]] | None = None) -> None:
    """Raises ValueError: tasks depend on each other in a circle, as stored but for the dependencies `wanted`, by id."""
    graph: dict[str, Sequence[str]] = {
        task.id: task.depends_on for task in plans.all_task_states(tx, tx.session_id)
    }
    graph |= wanted or {}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        names = {task_id: name for name, task_id in _ids_by_name(tx).items()}
        circle = ", ".join(names[task_id] for task_id in error.args[1][1:])
        raise ValueError(f"these tasks form a dependency cycle: {circle}") from None


# --- Artifacts ------------------------------------------------------------------------------------------

LARGEST_ROWS = "$largest"
"""Marks an object that keeps only its greatest rows: `{"$largest": how many, "by": column, "items": [row,
…]}`."""

_KEYS = frozenset({"$artifact", "$pointer", "$default", "$columns", "$sort"})
_MISSING: Any = object()


def merge_json(values: Sequence[object]) -> object:
    """Join values in order: numbers add, lists follow one another, objects join key by key, recursively.

    Of strings and of booleans the first stays; null gives way to anything; a `$largest` object keeps its
    greatest rows (by number in column `by`, then by row). No values give None.

    Raises:
        ValueError: two values at one place are of different kinds, such as a number and a list.
    """
    return functools.reduce(lambda one, two: _join(one, two, ""), values, cast(object, None))


def _join(one: Any, two: Any, where: str) -> object:
    if one is None or two is None:
        return _copied(two if one is None else one)
    kind = _kind(one)
    if kind != _kind(two):
        raise ValueError(f"Cannot join {kind} with {_kind(two)} at {where or 'the top'!r}.")
    match kind:
        case "an object" if LARGEST_ROWS in one and LARGEST_ROWS in two:
            return _largest(one, two, where)
        case "an object":
            return one | {key: _join(one.get(key), value, f"{where}/{key}") for key, value in two.items()}
        case "a list":
            # In place: `one` is this merge's own copy, and many small lists must not cost the square of their
            # number.
            one += two
        case "a number":
            return cast(object, one + two)
    return cast(object, one)


def _copied(value: object) -> object:
    """A copy whose containers may be changed without changing what was given."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value


def _largest(one: dict[str, Any], two: dict[str, Any], where: str) -> dict[str, Any]:
    count, column = one[LARGEST_ROWS], one.get("by", 0)
    rows = [*one.get("items", ()), *two.get("items", ())]
    if not isinstance(count, int) or not isinstance(column, int):
        raise ValueError(f"At {where!r}, {LARGEST_ROWS} and its 'by' must be whole numbers.")
    try:
        rows.sort(key=lambda row: (-row[column], json.dumps(row)))
    except (TypeError, IndexError, KeyError) as error:
        raise ValueError(
            f"The rows of {LARGEST_ROWS} at {where!r} have no number in column {column}."
        ) from error
    return {LARGEST_ROWS: count, "by": column, "items": rows[:count]}


_KINDS = ((bool, "a boolean"), (int | float, "a number"), (str, "text"), (list, "a list"))


def _kind(value: object) -> str:
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "an object")


def expand_includes(value: object, load: Callable[[str], object]) -> object:
    """The value with every include replaced. `load` gives an artifact's parsed JSON and raises ValueError if
    it cannot.

    What is loaded is used unchanged: includes inside it are not expanded, so expansion always ends.

    Raises:
        ValueError: an include that is malformed, or whose artifact or part is not there.
    """
    if isinstance(value, list):
        return [expand_includes(item, load) for item in value]
    if not isinstance(value, dict):
        return value
    if "$artifact" in value:
        return _included(value, load)
    if set(value) == {"$merge"}:
        parts = value["$merge"]
        if not isinstance(parts, list):
            raise ValueError('"$merge" takes a list of values.')
        return merge_json([expand_includes(part, load) for part in parts])
    return {key: expand_includes(item, load) for key, item in value.items()}


def _included(include: dict[str, Any], load: Callable[[str], object]) -> object:
    name = include["$artifact"]
    if not isinstance(name, str) or not set(include) <= _KEYS:
        raise ValueError(
            f'An include takes "$artifact" (a name or ref) and {", ".join(sorted(_KEYS - {"$artifact"}))}.'
        )
    value = at_pointer(load(name), str(include.get("$pointer", "")), include.get("$default", _MISSING))
    columns = include.get("$columns")
    if value is _MISSING:
        raise ValueError(f"Artifact {name!r} has no value at {include['$pointer']!r}.")
    if include.get("$sort") and isinstance(value, dict | list):
        value = dict(sorted(value.items())) if isinstance(value, dict) else sorted(value, key=_row_order)
    if columns is None:
        return value
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise ValueError(f'"$columns" needs a list of rows; {name!r} has none there.')
    return [dict(zip(columns, row, strict=False)) for row in value]


def at_pointer(value: Any, pointer: str, default: object) -> object:
    """What a JSON pointer (RFC 6901) finds in a value, or `default`."""
    for token in pointer.removeprefix("/").split("/") if pointer.strip("/") else ():
        key: Any = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and key.isdecimal():
            key = int(key)
        if not (
            key in value if isinstance(value, dict) else isinstance(value, list) and key in range(len(value))
        ):
            return default
        value = value[key]
    return cast(object, value)


def _row_order(row: object) -> tuple[tuple[int, Any], ...]:
    """Numbers before texts, then by value; whatever else by its JSON text."""
    return tuple(
        (0, cell)
        if isinstance(cell, int | float)
        else (1, cell if isinstance(cell, str) else json.dumps(cell))
        for cell in (row if isinstance(row, list) else [row])
    )


# The tools: what an agent produces is stored by its content, and entered under a name in its outputs.

LARGEST = 16 * 1024 * 1024
PAGE_CHARACTERS = 6_000
MOST_INPUTS = 2_000


def artifact_tools() -> list[FunctionTool]:
    """`save_artifact`, `read_artifact`, `merge_artifacts`."""
    reference = {"type": "string", "description": "an artifact's name"}
    return [
        tool(
            "save_artifact",
            "Save an artifact under a name: text, JSON or a file in the workspace (`file_path`). In JSON, an object"
            ' {"$artifact": name} is replaced by that artifact\'s JSON. Large results then need not pass through'
            " your context.",
            {
                "name": {"type": "string"},
                "content": {"type": ["string", "object", "array"], "description": "text, an object or a list"},
                "file_path": {"type": "string", "description": "a file to save instead of `content`"},
                "media_type": {"type": "string"},
                "final": {
                    "type": "boolean",
                    "description": "true: the text of this reply is your result, and the task ends",
                },
            },
            ["name"],
            save,
        ),
        tool(
            "read_artifact",
            "Read an artifact by name. A JSON pointer such as /totals selects one part of a JSON"
            " artifact.",
            {
                "ref": reference,
                "pointer": {"type": "string"},
                "offset": {"type": "integer", "minimum": 0},
                "limit": {"type": "integer", "minimum": 1},
            },
            ["ref"],
            read,
        ),
        tool(
            "merge_artifacts",
            "Merge JSON artifacts, in order, into a new one: numbers are added, lists joined, objects "
            "merged, equal strings kept.",
            {"inputs": {"type": "array", "items": reference, "description": "names, or a single pattern such as part/*"},
             "name": {"type": "string"}},
            ["inputs", "name"],
            merge,
        ),
    ]  # fmt: skip


def save(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    name = _name(arguments)
    content = arguments.get("content")
    if (content is None) == (arguments.get("file_path") is None):
        raise ValueError("specify either `content` or `file_path`")
    if content is None:
        data, media_type = _file_of(text_of(arguments, "file_path", limit=4_000), context)
    elif isinstance(content, str):
        data, media_type = content.encode("utf-8", "replace"), "text/plain"
        if name.endswith(".md"):
            media_type = "text/markdown"
    else:
        whole = expand_includes(content, lambda ref: _load_json(tx, ref))
        data, media_type = _dump(whole), "application/json"
    wanted = arguments.get("media_type")
    return _store(tx, context, name, data, wanted if isinstance(wanted, str) and wanted else media_type)


def _file_of(path: str, context: ToolContext) -> tuple[bytes, str]:
    """The bytes and the media type of a file of the workspace.

    Raises:
        ValueError: there is none, or it cannot be saved.
    """
    target = resolve_target(context.workspace, path)
    if target is None:
        raise ValueError(f"{path} resolves outside the workspace")
    try:
        descriptor = open_regular(target, context.protected)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(LARGEST + 1)
    with suppress(UnicodeDecodeError):
        data = str(context.redact(data.decode())).encode()
    guess = "text/markdown" if path.endswith(".md") else mimetypes.guess_type(path)[0]
    return data, guess or "text/plain"


def read(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    ref = text_of(arguments, "ref")
    pointer = arguments.get("pointer")
    if isinstance(pointer, str) and pointer:
        part = at_pointer(_load_json(tx, ref), pointer, _MISSING)
        if part is _MISSING:
            raise ValueError(f"pointer {pointer} matches nothing in {ref}")
        text = json.dumps(part, ensure_ascii=False)
    else:
        text = _load(tx, ref).decode("utf-8", "replace")
    offset, limit = arguments.get("offset", 0), arguments.get("limit", PAGE_CHARACTERS)
    piece = text[offset : offset + min(limit, 50_000)]
    if offset + len(piece) < len(text):
        piece += f"\n[{len(text)} characters in total; continue at offset {offset + len(piece)}]"
    return ToolResult(piece)


def merge(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    name = _name(arguments)
    wanted = arguments["inputs"]
    names: list[str] = []
    for one in wanted:
        names += _matching(tx, one) if any(mark in one for mark in "*?[") else [one]
    if len(names) > MOST_INPUTS:
        raise ValueError(f"{len(names)} artifacts cannot be merged at once; the limit is {MOST_INPUTS}")
    if not names:
        raise ValueError(artifacts.unknown(tx, tx.session_id, ", ".join(wanted)))
    result = _store(
        tx, context, name, _dump(merge_json([_load_json(tx, one) for one in names])), "application/json"
    )
    return ToolResult(json.dumps(json.loads(str(result.content)) | {"inputs": len(names)}))


def _store(tx: Transaction, context: ToolContext, name: str, data: bytes, media_type: str) -> ToolResult:
    if len(data) > LARGEST:
        raise ValueError(f"{name} would be {len(data)} bytes; the limit is {LARGEST}, so split it")
    ref = artifacts.save_output(
        tx, name=name, data=data, media_type=media_type, agent_id=context.agent_id, task_id=context.task_id
    )
    tx.event(
        "artifact.saved",
        agent_id=context.agent_id,
        task_id=context.task_id,
        name=name,
        ref=ref,
        bytes=len(data),
    )
    return ToolResult(json.dumps({"name": name, "bytes": len(data)}))


def _name(arguments: dict[str, Any]) -> str:
    name = text_of(arguments, "name", limit=200).strip()
    if any(ord(character) < 32 for character in name):
        raise ValueError("`name` must not contain control characters")
    return name


def _matching(tx: Transaction, pattern: str) -> list[str]:
    return [name for name in artifacts.output_names(tx, tx.session_id) if fnmatch.fnmatchcase(name, pattern)]


def _load(tx: Transaction, name_or_ref: str) -> bytes:
    ref = artifacts.resolve(tx, tx.session_id, name_or_ref)
    data = artifacts.get(tx, ref) if ref else None
    if data is None:
        raise ValueError(artifacts.unknown(tx, tx.session_id, name_or_ref))
    return data


def _load_json(tx: Transaction, name_or_ref: str) -> Any:
    try:
        return json.loads(_load(tx, name_or_ref))
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(f"{name_or_ref} is not a JSON artifact") from None


def _dump(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "replace")
