"""The planner of a session: made once, when the session is first driven."""

from __future__ import annotations

from watchkeeper.agents import prompts
from watchkeeper.agents.agent_memory import AgentMemory
from watchkeeper.agents.control import AgentControl
from watchkeeper.agents.environment import Environment
from watchkeeper.agents.limits import limits_of
from watchkeeper.agents.roles import Role
from watchkeeper.agents.toolbox import Toolbox
from watchkeeper.memory.recall.instructions import lift
from watchkeeper.records.states import AgentStatus
from watchkeeper.runtime.briefing import bounded_text, room_for
from watchkeeper.runtime.carrying import brief_of
from watchkeeper.store import agents
from watchkeeper.store.agents import Agent
from watchkeeper.store.transaction import Transaction


async def ensure_planner(environment: Environment, role: Role, *, model: str, agents_md: str | None) -> None:
    """Give the session its planner, with the goal as its first message, unless it has one. One transaction.

    `model` is what the role runs on. Where the session carries on another, the message tells what that one
    left.
    """
    store = environment.store
    row = store.one("SELECT planner_agent_id, goal FROM sessions WHERE id = ?", (store.session_id,))
    if row[0] is not None:
        return
    goal = environment.redact(row[1])
    window = environment.settings.context_tokens or environment.model(model).context_window
    workspace = str(environment.workspace)
    system = environment.redact(
        prompts.system_prompt("planner", role.prompt, workspace=workspace, agents_md=agents_md)
    )
    agent = Agent(
        id=environment.new_id(), task_id=None, name="planner", role="planner", model=model, attempt=1, system=system,
        status=AgentStatus.WORKING, status_reason=None, turn=0, view_version=0, last_seq=0, current_goal=goal,
        context_limit=window,
    )  # fmt: skip
    limits = limits_of(environment, agent, Toolbox(environment, agent, AgentControl()).specs())
    now = environment.clock.now()
    message = prompts.goal_message(goal, workspace)
    brief = brief_of(store, store.session_id)
    if brief is not None:
        message += "\n\n" + environment.redact(bounded_text(brief, room_for(window)))

    def write(tx: Transaction) -> None:
        memory = AgentMemory.empty(limits, environment.counter, agent.id, now)
        agents.create(
            tx,
            agent_id=agent.id,
            name=agent.name,
            role=agent.role,
            model=model,
            system=system,
            goal=goal,
            context_limit=window,
        )
        memory.start(tx)
        memory.append("user", message, at=now).write(tx)
        if brief is None or brief.trusted or not brief.same_goal:
            # A goal that came with an imported log is not the word of whoever sits here.
            lift(tx, goal, workspace=workspace, source=f"message://{agent.id}/1", agent_id=agent.id)
        tx.execute("UPDATE sessions SET planner_agent_id = ? WHERE id = ?", (agent.id, tx.session_id))

    await store.commit(write)
