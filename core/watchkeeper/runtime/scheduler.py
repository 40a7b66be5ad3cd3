"""Which tasks and agents may run next, and how an agent is created for a task.

`Schedule` is kept up to date from the log of events: every change of a task or an agent is an event in the same
transaction. So a refresh costs as much as has changed, however many tasks and agents the session has. It holds
nothing that the database does not, so a new host begins by reading the rows.

`dispatch` and `ensure_planner` create an agent with its memory and first message in one transaction.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from watchkeeper.agents import backends, roles
from watchkeeper.agents.agent_state import AgentMemory, inputs_of, limits_of
from watchkeeper.agents.backends.record import ProgramRecord, key_of
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.limits import AgentControl
from watchkeeper.agents.roles import Role
from watchkeeper.agents.session_tools import downstream
from watchkeeper.agents.toolbox import Toolbox
from watchkeeper.agents.tools.contract import Permission
from watchkeeper.agents.tools.mcp import MCP_TOOL
from watchkeeper.agents.worktrees import GitFailed
from watchkeeper.memory.history import ContextLimits
from watchkeeper.memory.recall import session_rules
from watchkeeper.records.errors import BadInput
from watchkeeper.records.messages import Role as MessageRole
from watchkeeper.records.messages import ToolSpec
from watchkeeper.records.states import TASK_ENDED, AgentStatus, TaskStatus
from watchkeeper.records.text import one_line
from watchkeeper.runtime.lifecycle import bounded_text, brief_of, room_for
from watchkeeper.store import agents, artifacts, facts, plans, sessions
from watchkeeper.store.agents import Agent, ProgramSession
from watchkeeper.store.commands import live_grants
from watchkeeper.store.driver import Reads, encode
from watchkeeper.store.messages import copy_memory
from watchkeeper.store.names import attempt_name
from watchkeeper.store.outcome import changed_by_task
from watchkeeper.store.plans import Task, TaskState
from watchkeeper.store.transaction import Transaction

if TYPE_CHECKING:
    from watchkeeper.transcripts.records import ModelCall

SATISFIED = frozenset({TaskStatus.DONE, TaskStatus.DROPPED})
"""States of a task that its dependants wait for."""


class Schedule:
    """The state of a session's tasks, and the agents that have changed since the last look.

    `reads` needs `one` and `all`, as a `SessionStore` has them.
    """

    def __init__(self, reads: Reads, session_id: str) -> None:
        self._reads = reads
        self._session_id = session_id
        self._seen = 0
        """The last event that was read."""
        self._whole = False
        """Whether everything was read; if not, the next `refresh` reads it."""
        self._tasks: dict[str, TaskState] = {}
        self._dependants: dict[str, list[str]] = {}
        self._stale: set[str] = set()
        self._queue: list[tuple[tuple[str, int], str]] = []
        """Tasks that were ready when they were added: a heap in the planner's order."""
        self._queued: set[str] = set()
        self._agents: dict[str, None] = {}

    def refresh(self) -> None:
        """Read what was committed since the last refresh."""
        newest = sessions.newest_event(self._reads, self._session_id)
        if not self._whole:
            self._agents.update(dict.fromkeys(agents.open_ids(self._reads, self._session_id)))
        if self._seen and newest > self._seen:
            changed = plans.changed_between(self._reads, self._session_id, self._seen, newest)
            self._agents.update(dict.fromkeys(changed.agents))
            self._whole = self._whole and not changed.plan
            for task in plans.load_task_states(self._reads, changed.tasks if self._whole else []):
                self._enter(task)
        if not self._whole:
            self._read_plan()
        self._seen, self._whole = newest, True

    def forget(self) -> None:
        """Read everything again at the next `refresh`: other tasks and agents may run than could before."""
        self._whole = False

    def look_at(self, agent_id: str) -> None:
        """Have `take_agents` return this agent too."""
        self._agents[agent_id] = None

    def take_agents(self) -> list[str]:
        """The agents that changed since the last call, or were passed to `look_at`; at first all that have not
        ended."""
        taken, self._agents = list(self._agents), {}
        return taken

    def next_ready(
        self, among: Collection[str] | None = None, may_start: Callable[[str], bool] | None = None
    ) -> str | None:
        """The first task, in the planner's order, that is pending and whose dependencies are all done (or
        dropped).

        Each task is returned once, and again only after it has changed. `among`: only these count (None: all).
        A task that `may_start` refuses stays in the queue.
        """
        left, found = [], None
        while self._queue and found is None:
            entry = heapq.heappop(self._queue)
            if not self._may_go(entry[1], TaskStatus.PENDING):
                self._queued.discard(entry[1])
            elif (among is not None and entry[1] not in among) or (
                may_start is not None and not may_start(entry[1])
            ):
                left.append(entry)
            else:
                found = entry[1]
                self._queued.discard(found)
        for entry in left:
            heapq.heappush(self._queue, entry)
        return found

    def has_ready(self, among: Collection[str] | None = None) -> bool:
        """Whether `next_ready` would return a task."""
        return any(
            (among is None or one in among) and self._may_go(one, TaskStatus.PENDING) for one in self._queued
        )

    @property
    def stale(self) -> Collection[str]:
        """The stale tasks. No agent works on them."""
        return self._stale

    def settled_stale(self) -> list[str]:
        """Stale tasks whose dependencies are all done again, in the planner's order."""
        found = [one for one in self._stale if self._may_go(one, TaskStatus.STALE)]
        return sorted(found, key=lambda one: self._tasks[one].place)

    def _may_go(self, task_id: str, status: TaskStatus) -> bool:
        task = self._tasks.get(task_id)
        return (
            task is not None
            and task.status is status
            and all(self._is_satisfied(need) for need in task.depends_on)
        )

    def _is_satisfied(self, task_id: str) -> bool:
        task = self._tasks.get(task_id)
        return task is not None and task.status in SATISFIED

    def _read_plan(self) -> None:
        self._tasks, self._dependants, self._stale = {}, {}, set()
        self._queue, self._queued = [], set()
        everything = plans.all_task_states(self._reads, self._session_id)
        self._tasks = {task.id: task for task in everything}
        for task in everything:
            for need in task.depends_on:
                self._dependants.setdefault(need, []).append(task.id)
        for task in everything:
            self._consider(task.id)

    def _enter(self, task: TaskState) -> None:
        was_satisfied = self._is_satisfied(task.id)
        self._tasks[task.id] = task
        self._consider(task.id)
        if self._is_satisfied(task.id) and not was_satisfied:
            for dependant in self._dependants.get(task.id, ()):
                self._consider(dependant)

    def _consider(self, task_id: str) -> None:
        task = self._tasks[task_id]
        if task.status is TaskStatus.STALE:
            self._stale.add(task_id)
        else:
            self._stale.discard(task_id)
        if task_id not in self._queued and self._may_go(task_id, TaskStatus.PENDING):
            self._queued.add(task_id)
            heapq.heappush(self._queue, (task.place, task_id))


@dataclass(frozen=True, slots=True)
class _NewAgent:
    agent: Agent
    limits: ContextLimits
    tools: Sequence[ToolSpec]
    """What it is offered of MCP servers."""


def _new_agent(
    environment: Environment,
    role: Role,
    task: Task | None,
    *,
    name: str,
    model: str,
    goal: str,
    agents_md: str | None,
    folder: Path,
) -> _NewAgent:
    """An agent that is not stored yet, for a task or (None) as the planner."""
    rules = session_rules(environment.store, environment.session_id)
    prompt = roles.system_prompt(
        role.name, role.prompt, workspace=str(folder), agents_md=agents_md, rules=rules
    )
    agent = Agent(
        id=environment.new_id(), task_id=task.id if task else None, name=name, role=role.name, model=model,
        attempt=task.attempt if task else 1, system=environment.redact(prompt), status=AgentStatus.WORKING,
        status_reason=None, turn=0, view_version=0, last_seq=0, current_goal=goal,
        context_limit=environment.settings.context_tokens or _window_of(environment, model),
    )  # fmt: skip
    toolbox = Toolbox(environment, agent, AgentControl())
    offered = toolbox.offer(role)
    return _NewAgent(agent, limits_of(environment, agent, toolbox.specs()), offered)


def _permissions_of(environment: Environment, role: Role, new: _NewAgent) -> str:
    """What the first message of an agent says of what needs no question; nothing to an agent program, which has tools of its
    own."""
    if environment.programs is not None and environment.programs.of(new.agent.model) is not None:
        return ""
    tools = {}
    for name in environment.tools_of(role.name):
        permission = environment.permission(name)
        if permission is Permission.ALLOW and (name in roles.ALWAYS or name in roles.PLAN_TOOLS):
            continue
        tools[name] = permission
    offered = {one.name for one in new.tools}
    grants = live_grants(environment.store, environment.session_id)
    for grant in grants:
        if grant.pattern is None and tools.get(grant.tool) is Permission.ASK:
            tools[grant.tool] = Permission.ALLOW
    return roles.permission_note(
        {
            name: permission
            for name, permission in tools.items()
            if not name.startswith(MCP_TOOL) or name in offered or permission is Permission.DENY
        },
        [one.pattern for one in grants if one.tool == "bash" and one.pattern is not None],
    )


def _window_of(environment: Environment, model: str) -> int:
    """Tokens of the window of a model, or of a program's until it reports its own."""
    program = environment.programs.of(model) if environment.programs is not None else None
    return program.settings.context_window if program is not None else environment.model(model).context_window


def _create(
    tx: Transaction,
    environment: Environment,
    new: _NewAgent,
    *,
    parent_agent_id: str | None = None,
    copied_from: str | None = None,
) -> AgentMemory:
    """Write an agent's row and its memory, which is empty or a copy of that of `copied_from`."""
    agent, limits = new.agent, new.limits
    agents.create(tx, agent, parent_agent_id=parent_agent_id, copied_from=copied_from, tools=new.tools)
    if copied_from is not None:
        copy_memory(tx, copied_from, agent.id)
        return AgentMemory.load(tx, agent.id, limits, environment.counter)
    memory = AgentMemory.empty(limits, environment.counter, agent.id, tx.now)
    memory.start(tx)
    return memory


async def dispatch(
    environment: Environment,
    task: Task,
    role: Role,
    *,
    model: str,
    planner_id: str,
    agents_md: str | None,
    max_parallel: int,
) -> str:
    """Start an attempt at a task with a new agent; returns the agent's id.

    The agent, its memory, the handoff and its first message are one transaction. The agent begins with a copy of
    the memory that the task starts from, if it names one.
    """
    store = environment.store
    name = attempt_name(task.name, task.attempt)
    trees, folder = environment.worktrees, environment.workspace
    if trees is not None:
        is_program = environment.programs is not None and environment.programs.of(model) is not None
        try:
            folder = await trees.open(task, role, program=is_program)
        except (GitFailed, OSError) as error:
            raise BadInput(f"cannot create its worktree: {error}") from error
    new = _new_agent(
        environment, role, task, name=name, model=model, goal=task.title, agents_md=agents_md, folder=folder
    )
    agent = new.agent
    place = (trees.note_for(task) if trees is not None else "") or _beside(
        environment, task, role, max_parallel
    )
    source = task.starts_from
    inputs = inputs_of(store, task)
    again, short = _why_again(store, task, source), short_inputs(store, inputs)
    permissions = _permissions_of(environment, role, new)
    known = facts.current_facts(
        store,
        environment.session_id,
        reader=source,
        workspace=str(environment.workspace),
        limit=roles.FACTS_IN_ASSIGNMENT,
    )

    def write(tx: Transaction) -> None:
        current = plans.load_task(tx, task.id)
        if current is None or current.status is not TaskStatus.PENDING or current.attempt != task.attempt:
            return
        memory = _create(tx, environment, new, parent_agent_id=planner_id, copied_from=source)
        delta_ref = _delta(tx, task, source)
        text = roles.assignment(
            task,
            inputs,
            short=short,
            facts=[fact.cited() for fact in known],
            resumed_memory=source is not None and task.attempt > 1,
            place=place,
            again=again,
            permissions=permissions,
        )
        # Behind a memory that it was given, its task is not the first message, which stays anyway.
        memory.append("user", environment.redact(text), at=tx.now, lasting=source is not None).write(tx)
        refs = [one.ref for one in inputs]
        plans.add_handoff(
            tx,
            plan_id=task.parent_plan_id,
            task_id=task.id,
            assigned_agent=agent.id,
            inputs_ref=refs,
            memory_delta_ref=delta_ref,
            expected_outputs=task.expected_outputs,
        )
        plans.assign(
            tx, task.id, agent.id, inputs_ref=refs, inputs_hash=plans.inputs_hash(refs, task.instructions),
            last_seq=memory.state.last_seq,
        )  # fmt: skip
        plans.move(tx, task.id, TaskStatus.RUNNING, None, agent=agent.id, attempt=task.attempt)

    await store.commit(write)
    return agent.id


async def ensure_planner(
    environment: Environment, role: Role, *, model: str, agents_md: str | None, note: str = ""
) -> None:
    """Give the session its planner, with the goal as its first message, unless it has one. One transaction.

    `model` is what the role runs on, `note` what it gets beside the goal.
    If the session continues another, the message includes the notes of that
    one.
    """
    store = environment.store
    session = sessions.require(store, store.session_id)
    if session.planner_agent_id is not None:
        return
    goal, workspace = environment.redact(session.goal), str(environment.workspace)
    new = _new_agent(
        environment,
        role,
        None,
        name="planner",
        model=model,
        goal=goal,
        agents_md=agents_md,
        folder=environment.workspace,
    )
    agent = new.agent
    permissions = _permissions_of(environment, role, new)
    message = backends.joined([roles.goal_message(goal, workspace, permissions), note])
    brief = brief_of(store, store.session_id)
    if brief is not None:
        message += "\n\n" + environment.redact(bounded_text(brief, room_for(agent.context_limit)))

    def write(tx: Transaction) -> None:
        _create(tx, environment, new).append("user", message, at=tx.now).write(tx)
        sessions.set_planner(tx, agent.id)

    await store.commit(write)


ATTACHED_ROLE = "coder"
"""The role of an agent that goes on with a session which began outside."""
ATTACHED_NOTE = (
    "A plan exists. Its only task, `continue`, sends this goal as the next message to an agent that worked before this"
    " session. You will be notified when it ends. Then finish the session, or continue the plan."
)
ATTACHED_MESSAGES = 400
"""The agent shows the newest messages of such a session, at most so many."""
ATTACHED_CHARACTERS = 20_000
"""The agent shows as much of each of them."""


async def attach(environment: Environment, role: Role, outside: Mapping[str, str]) -> None:
    """Give a session of a program that began outside to an agent: a plan of one task that starts from it.

    Nothing is done where there is a plan already. One transaction. What was said there is shown as messages of an agent
    that has ended, and what its calls cost as that agent's. Budgets do not count them (`store.budgets.used`).
    """
    from watchkeeper.transcripts.records import MAIN

    store = environment.store
    session = sessions.require(store, store.session_id)
    if session.current_plan_id is not None:
        return
    program = environment.programs.found.get(outside["program"]) if environment.programs is not None else None
    if program is None:
        raise BadInput(f"unknown agent program {outside['program']}")
    goal, planner_id = session.goal, session.planner_agent_id
    assert planner_id is not None
    said, calls, compactions = await asyncio.to_thread(_read_program_session, program.reader or "", outside)
    used = [call.model for call in calls if call.agent == MAIN and call.model]
    # Codex would take its default instead of the session's model.
    model = f"codex/{used[-1]}" if program.name == "codex" and used else outside["model"]
    new = _new_agent(
        environment, role, None, name=f"{program.name}-before", model=model, goal=goal, agents_md=None,
        folder=environment.workspace,
    )  # fmt: skip
    agent = new.agent
    said = [(who, environment.redact(text)) for who, text in said]
    record = ProgramRecord(environment, agent)
    plan_id, task_id = environment.new_id(), environment.new_id()

    def write(tx: Transaction) -> None:
        _create(tx, environment, new, parent_agent_id=planner_id)
        seq = 0
        for who, text in said:
            seq = record.append(tx, who, text)
        for call in calls:
            record.store_call(tx, call)
        agents.move(tx, agent.id, AgentStatus.DONE, "started elsewhere")
        agents.save_program_session(tx, ProgramSession(
            agent.id, program.name, "", outside["session"], None, outside["transcript"], outside["folder"], seq,
        ))  # fmt: skip
        plans.create_plan(tx, plan_id, goal)
        plans.add_task(
            tx, task_id=task_id, plan_id=plan_id, name="continue", position=0, title=one_line(goal, 80),
            instructions=goal, role=role.name, model=model, expected_outputs=[], isolation="none",
            starts_from=agent.id,
        )  # fmt: skip
        plans.revise(tx, plan_id, "created")
        tx.event("program.attached", agent_id=agent.id, task_id=task_id, program=program.name,
                 program_session=outside["session"], messages=len(said), calls=len(calls),
                 compactions=compactions)  # fmt: skip
        tx.event("host.warning", task_id=task_id, text=(
            f"{program.label} continues in its session's folder, {outside['folder']}, without a worktree: it may overwrite changes"
            " that you or others make there"
        ))  # fmt: skip
        agents.move(tx, planner_id, AgentStatus.IDLE)

    await store.commit(write)


def _read_program_session(
    reader: str, outside: Mapping[str, str]
) -> tuple[list[tuple[MessageRole, str]], list[ModelCall], list[str]]:
    """What was said in a program's session, its calls to a model, and the ids of its compactions."""
    from watchkeeper.transcripts.reading import SessionTail
    from watchkeeper.transcripts.records import MAIN, ImportedCompaction, ImportedMessage, ModelCall

    said: list[tuple[MessageRole, str]] = []
    calls: dict[str, ModelCall] = {}
    compactions: list[str] = []
    for one in SessionTail(reader, Path(outside["transcript"]), outside["session"]).read():
        if isinstance(one, ModelCall):
            known = calls.get(key_of(one))
            if known is None or one.output_tokens > known.output_tokens:  # a record of a call may grow
                calls[key_of(one)] = one
        elif isinstance(one, ImportedCompaction) and one.agent == MAIN and not one.told_later:
            compactions.append(one.uid)
        elif isinstance(one, ImportedMessage) and one.agent == MAIN and not one.injected:
            blocks = [{"type": "text", "text": one.content}] if isinstance(one.content, str) else one.content
            text = "\n".join(
                str(block.get("text", "")) for block in blocks if block.get("type") == "text"
            ).strip()
            if text:
                said.append((one.role, text[:ATTACHED_CHARACTERS]))
    return said[-ATTACHED_MESSAGES:], list(calls.values()), compactions


def _beside(environment: Environment, task: Task, role: Role, max_parallel: int) -> str:
    """What an agent that may change the workspace reads about others there; empty if no other task may run beside it."""
    may_change = role.changes_files or role.may_call("bash")
    if not may_change or max_parallel < 2:
        return ""
    tasks = plans.load_tasks(environment.store, environment.session_id)
    later = {one.id for one in downstream(tasks, task.id)}
    beside = (
        one for one in tasks if one.id != task.id and one.id not in later and one.status not in TASK_ENDED
    )
    isolated = environment.worktrees is not None
    return roles.SHARED_FOLDER if any(not isolated or one.isolation != "worktree" for one in beside) else ""


SHORT_INPUT_BYTES, ALL_SHORT_BYTES = 1_500, 6_000
"""Bytes of an input that is given with the task, and of all of them; others are read by name."""


def short_inputs(reads: Reads, inputs: Sequence[roles.Input]) -> dict[str, str]:
    """The texts of the inputs that are short, by name."""
    found: dict[str, str] = {}
    left = ALL_SHORT_BYTES
    for one in inputs:
        size = artifacts.size_of(reads, one.ref)
        if size is None or size > min(left, SHORT_INPUT_BYTES):
            continue
        with suppress(UnicodeDecodeError):
            found[one.name] = (artifacts.get(reads, one.ref) or b"").decode()
            left -= size
    return found


def _why_again(reads: Reads, task: Task, source: str | None) -> str:
    """The text that gives a further attempt the reason why it runs. An attempt without the memory of the earlier ones
    also gets what they did to the workspace."""
    if task.attempt == 1:
        return ""
    reason = f" Reason: {task.rerun_reason}" if task.rerun_reason else ""
    lines = [f"This is attempt {task.attempt}.{reason}"]
    if source is None:
        files, ran = changed_by_task(reads, task.id)
        if files:
            shown = ", ".join(files[:MOST_FILES_NAMED])
            more = f" and {len(files) - MOST_FILES_NAMED} more" if len(files) > MOST_FILES_NAMED else ""
            lines.append(f"An earlier attempt changed these files in the workspace: {shown}{more}.")
        if ran:
            lines.append(
                "An earlier attempt ran commands, which may have changed files" + (" too." if files else ".")
            )
        if files or ran:
            lines.append("Check the current state before you change anything.")
    return "\n".join(lines)


MOST_FILES_NAMED = 40
"""As many of the files that earlier attempts changed are named to the next one."""


def _delta(tx: Transaction, task: Task, source: str | None) -> str | None:
    """The session's facts that are new to the assignee, who has the memory of `source`, as an artifact; None if
    there are none."""
    learned = [
        fact
        for fact in facts.current_facts(tx, tx.session_id, reader=source)
        if source is None or fact.agent_id != source
    ]
    if not learned:
        return None
    records = [
        {
            "id": one.id,
            "kind": one.kind,
            "text": one.text,
            "sources": one.sources,
            "agent": one.agent_id,
            "replaces": one.replaces,
        }
        for one in learned
    ]
    return artifacts.put(
        tx, encode({"task": task.name, "facts": records}).encode("utf-8", "replace"), "application/json"
    )
