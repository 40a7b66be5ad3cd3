"""Giving a ready task to a sub-agent: the agent, its memory, the handoff and its first message in one
transaction."""

from __future__ import annotations

from typing import Any

from watchkeeper.agents import prompts
from watchkeeper.agents.agent_memory import AgentMemory
from watchkeeper.agents.control import AgentControl
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.limits import limits_of
from watchkeeper.agents.prompts import Input
from watchkeeper.agents.roles import Role
from watchkeeper.agents.toolbox import Toolbox
from watchkeeper.records.states import AgentStatus, TaskStatus
from watchkeeper.store import agents, artifacts, facts, plans
from watchkeeper.store.agents import Agent
from watchkeeper.store.encoding import encode
from watchkeeper.store.plans import Task
from watchkeeper.store.transaction import Transaction


async def dispatch(
    environment: Environment, task: Task, role: Role, *, model: str, planner_id: str, agents_md: str | None
) -> str:
    """Start a task's attempt with a new agent; returns the agent's id.

    The agent begins with a copy of the memory that the task starts from, if it names one.
    """
    store = environment.store
    agent_id = environment.new_id()
    window = environment.settings.context_tokens or environment.model(model).context_window
    prompt = prompts.system_prompt(
        role.name, role.prompt, workspace=str(environment.workspace), agents_md=agents_md
    )
    system = environment.redact(prompt)
    source = _starts_from(environment, task)
    inputs = inputs_of(store, task)
    agent = Agent(
        id=agent_id, task_id=task.id, name=_name(environment, role.name), role=role.name, model=model, attempt=task.attempt,
        system=system, status=AgentStatus.WORKING, status_reason=None, turn=0, view_version=0, last_seq=0,
        current_goal=task.title, context_limit=window,
    )  # fmt: skip
    limits = limits_of(environment, agent, Toolbox(environment, agent, AgentControl()).specs())
    now = environment.clock.now()
    known = facts.current_facts(
        store,
        environment.session_id,
        reader=source,
        workspace=str(environment.workspace),
        limit=prompts.FACTS_IN_ASSIGNMENT,
    )
    learned = [fact.cited() for fact in known]

    def write(tx: Transaction) -> None:
        current = plans.load_task(tx, task.id)
        if current is None or current.status is not TaskStatus.PENDING or current.attempt != task.attempt:
            return
        agents.create(
            tx, agent_id=agent_id, name=agent.name, role=agent.role, model=model, system=system, goal=task.title,
            context_limit=window, task_id=task.id, parent_agent_id=planner_id, attempt=task.attempt, copied_from=source,
        )  # fmt: skip
        if source is not None:
            copy_memory(tx, source, agent_id)
            memory = AgentMemory.load(tx, agent_id, limits, environment.counter)
        else:
            memory = AgentMemory.empty(limits, environment.counter, agent_id, now)
            memory.start(tx)
        delta_ref = _delta(tx, task, source)
        text = prompts.assignment(
            task, inputs, memory_delta_ref=delta_ref, facts=learned, resumed_memory=source is not None
        )
        memory.append("user", environment.redact(text), at=now).write(tx)
        refs = [one.ref for one in inputs]
        plans.add_handoff(
            tx,
            plan_id=task.parent_plan_id,
            task_id=task.id,
            assigned_agent=agent_id,
            inputs_ref=refs,
            memory_delta_ref=delta_ref,
            expected_outputs=task.expected_outputs,
        )
        tx.execute(
            "UPDATE tasks SET assigned_agent = ?, inputs_ref = ?, inputs_hash = ?, resume_token = ?,"
            " ended_at = NULL WHERE id = ?",
            (
                agent_id,
                encode(refs),
                plans.inputs_hash(refs, task.instructions),
                f"{agent_id}:0:{memory.state.last_seq}",
                task.id,
            ),
        )
        plans.move(tx, task.id, TaskStatus.RUNNING, None, agent=agent_id, attempt=task.attempt)

    await store.commit(write)
    return agent_id


def inputs_of(reads: Any, task: Task) -> list[Input]:
    """The outputs of the tasks that a task depends on, by task and name."""
    found: list[Input] = []
    for need in task.depends_on:
        other = plans.load_task(reads, need)
        if other is None or other.assigned_agent is None:
            continue
        outputs = reads.all(
            "SELECT name, digest FROM outputs WHERE agent_id = ? ORDER BY id", (other.assigned_agent,)
        )
        names = {artifacts.ref_of(row[1]): row[0] for row in outputs}
        wanted = set(other.expected_outputs)
        kept = [Input(names.get(ref, ref), ref, other.name) for ref in other.artifact_refs]
        # Of many outputs only the promised ones are handed on; the others can still be read by name.
        promised = [one for one in kept if one.name in wanted or one.name.startswith("result/")]
        found += promised if wanted else kept
    return found


def copy_memory(tx: Transaction, source: str, target: str) -> None:
    """Give `target` everything that `source` remembers: messages, observations, views and where it stands."""
    for table, columns in (
        ("messages", "seq, role, content, tokens, total_tokens, created_at"),
        ("observations", "id, kind, level, text, tokens, first_seq, last_seq, citations, replaces, provisional, status,"
         " compaction_id, created_at"),
        ("views", "version, parent, observations, verbatim_from, elided, reason, tokens, compaction_id, created_at"),
    ):  # fmt: skip
        tx.execute(
            f"INSERT INTO {table} (agent_id, commit_seq, {columns}) SELECT ?, ?, {columns} FROM {table} WHERE agent_id = ?",  # noqa: S608
            (target, tx.commit_seq, source),
        )
    tx.execute(
        "UPDATE agents SET (view_version, last_seq, message_tokens, context_tokens) ="
        " (SELECT view_version, last_seq, message_tokens, context_tokens FROM agents WHERE id = ?) WHERE id"
        " = ?",
        (source, target),
    )


def _starts_from(environment: Environment, task: Task) -> str | None:
    row = environment.store.one("SELECT starts_from FROM tasks WHERE id = ?", (task.id,))
    return row[0] if row else None


def _name(environment: Environment, role: str) -> str:
    """`explorer-3`: the role, and one more than the newest of that role has."""
    row = environment.store.one(
        "SELECT name FROM agents WHERE session_id = ? AND role = ? ORDER BY rowid DESC LIMIT 1",
        (environment.session_id, role),
    )
    number = str(row[0]).rpartition("-")[2] if row else "0"
    return f"{role}-{int(number) + 1 if number.isdecimal() else 1}"


def _delta(tx: Transaction, task: Task, source: str | None) -> str | None:
    """What the session has learned that is new to the assignee (`source`: whose memory it has), as an
    artifact; None where nothing is."""
    learned = [
        fact
        for fact in facts.current_facts(tx, tx.session_id, reader=source)
        if source is None or fact.agent_id != source
    ]
    if not learned:
        return None
    told = [
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
        tx, encode({"task": task.name, "facts": told}).encode("utf-8", "replace"), "application/json"
    )
