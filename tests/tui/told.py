"""A finished session that a replay is tested on: its events tell everything that happened."""

from __future__ import annotations

import json
from typing import Any

from tests.tui.conftest import Desk
from tests.tui.fake_store import HOSTILE, FakeSession, insert


def told_session(desk: Desk, *, words: str = "The ledger is blue.") -> FakeSession:
    """A finished session whose events tell everything: a planner, one task that failed, was done again and
    compacted."""
    started = desk.time - 1_000
    session = FakeSession(
        desk.session.connection, "told2345", now=started, goal=f"audit the ledgers {words if words == HOSTILE else ''}",
        status="done", planner_agent_id="plan-a", current_plan_id="plan-told", host_pid=None, created_at=started,
        last_active=started + 300, ended_at=started + 300, input_tokens=0, output_tokens=0, cache_read_tokens=0, cost_usd=None,
        model_calls=0,
    )  # fmt: skip
    graph = [{"id": "task-a", "title": "Read the ledger", "depends_on": []}]
    insert(
        session.connection, "plans", id="plan-told", session_id=session.id, goal="g", created_at=started,
        updated_at=started,
    )  # fmt: skip
    insert(
        session.connection, "plan_revisions", plan_id="plan-told", revision=1, at=started, reason="first", goal="g", task_queue="[]",
        step_cursor=0, plan_graph_snapshot=json.dumps(graph),
    )  # fmt: skip
    for agent_id, name, parent in (("plan-a", "planner", None), ("expl-a", words[:20], "plan-a")):
        session.agent(
            agent_id, name, parent_agent_id=parent, status="done", created_at=started, started_at=started, ended_at=started + 290,
            last_active=started + 290, turn=3, input_tokens=0, output_tokens=0, cost_usd=None, model_calls=0, composition="{}",
        )  # fmt: skip
    session.task(
        "task-a", "Read the ledger", name="Read the ledger", agent="expl-a", parent_plan_id="plan-told", status="done", result="blue", position=0,
        created_at=started, ended_at=started + 290,
    )  # fmt: skip
    clock = [started]

    def event(
        kind: str, of: str | None = None, of_task: str | None = None, /, after: float = 1.0, **data: Any
    ) -> int:
        clock[0] += after
        return session.event(kind, of, of_task, at=clock[0], **data)

    event("session.running")
    event("agent.created", "plan-a", name="planner", role="planner", model="m")
    event("plan.revised", "plan-a", plan="plan-told", revision=1, reason="first plan", tasks=1)
    event("agent.created", "expl-a", "task-a", name="explorer-1", role="explorer", model="m")
    event("task.running", None, "task-a", agent="expl-a", title="Read the ledger")
    session.set_agent("plan-a", turn=0)
    for turn in (1, 2, 3):
        said = [{"type": "text", "text": f"turn {turn}: {words}"}]
        insert(
            session.connection, "messages", agent_id="expl-a", seq=turn, role="assistant", content=json.dumps(said), tokens=100,
            total_tokens=100 * turn, created_at=clock[0] + 1,
        )  # fmt: skip
        session.call(
            "expl-a", turn=turn, input_tokens=1_000 * turn, output_tokens=10, started_at=clock[0],
            latency_seconds=1,
        )  # fmt: skip
        insert(
            session.connection, "steps", agent_id="expl-a", turn=turn, reply_seq=turn, started_at=clock[0],
            ended_at=clock[0] + 1,
        )  # fmt: skip
        event("model.replied", "expl-a", turn=turn, tools=[], preview=words)
        if turn == 1:
            event(
                "task.failed", None, "task-a", after=100, agent="expl-a", title="Read the ledger",
                reason=words,
            )  # fmt: skip
            event("task.running", None, "task-a", agent="expl-a", title="Read the ledger")
        elif turn == 2:
            session.compaction("expl-a", id=77, requested_at=clock[0], ended_at=clock[0] + 2, reason=words)
            event("compaction.started", "expl-a", compaction=77)
            event("compaction.applied", "expl-a", compaction=77, tokens_before=24_000, tokens_after=6_100)
    event("task.done", None, "task-a", after=100, agent="expl-a", title="Read the ledger")
    event("session.done", reason="all is well")
    session.set_agent("expl-a", last_seq=3, message_tokens=300)
    return session


STEPS = 14
"""Events of that session: 5, a turn, a failure and a new start, a turn and a compaction of two, a turn, two
ends."""
