"""What the beginning of a host, a pause and a resume change in the rows."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.core.runtime.conftest import Ground, add_task
from tests.support.agent_rows import create_agent

from watchkeeper.records.states import AgentStatus, SessionStatus, TaskStatus
from watchkeeper.runtime import lifecycle, run_session
from watchkeeper.runtime.config import RoleModel
from watchkeeper.store import agents, commands, plans, sessions
from watchkeeper.store.transaction import Transaction


class Rows(Ground):
    """A claimed session with the planner `p`, and the tasks `t` and `u`, of which agent `a` works at `t`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.write(self._make)

    def _make(self, tx: Transaction) -> None:
        plans.create_plan(tx, "plan", "goal")
        for place, name in enumerate("tu"):
            add_task(tx, name, place)
        create_agent(tx, "p", role="coder", status=AgentStatus.IDLE)
        create_agent(tx, "a", role="coder", task_id="t")
        tx.execute("UPDATE sessions SET planner_agent_id = 'p'")
        tx.execute("UPDATE tasks SET assigned_agent = 'a' WHERE id = 't'")
        plans.move(tx, "t", TaskStatus.RUNNING)

    def write(self, *changes: Callable[[Transaction], Any]) -> None:
        def batch(group: Any) -> None:
            tx = Transaction(group, self.session, self.store.epoch, 1.0)
            for change in changes:
                change(tx)

        self.store.writer.submit(batch).result(10)

    def read(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.store.all(sql)]

    def status(self) -> dict[str, str]:
        """Of the session, the agents and the tasks."""
        found = {"session": self.store.one("SELECT status FROM sessions")[0]}
        for table in ("agents", "tasks"):
            found |= {row[0]: row[1] for row in self.store.all(f"SELECT id, status FROM {table}")}
        return found

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [
            json.loads(row[0]) for row in self.store.all("SELECT data FROM events WHERE kind = ?", (kind,))
        ]


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    with closing(Rows(tmp_path)) as made:
        yield made


def pause(tx: Transaction) -> None:
    lifecycle.pause_agent(tx, "a", "t", "enough")
    lifecycle.pause_agent(tx, "p", None, "enough")
    lifecycle.pause_session(tx, "enough")


def test_a_pause_and_its_resume_go_through_session_agents_and_tasks_as_the_same_attempt(rows: Rows) -> None:
    rows.write(pause, lambda tx: plans.move(tx, "u", TaskStatus.PAUSED))
    assert rows.status() == {"session": "paused", "p": "paused", "a": "paused", "t": "paused", "u": "paused"}
    rows.write(lambda tx: lifecycle.open_session(tx, resume=True))
    assert rows.status() == {
        "session": "running",
        "p": "working",
        "a": "working",
        "t": "running",
        "u": "pending",
    }
    assert rows.read("SELECT DISTINCT attempt FROM tasks") == [(1,)]
    assert rows.events("host.started") == [{"resume": True, "epoch": rows.store.epoch}]


def test_a_host_that_begins_without_a_resume_leaves_paused_agents_paused(rows: Rows) -> None:
    rows.write(pause, lambda tx: lifecycle.open_session(tx, resume=False, warnings=["one", "two"]))
    assert rows.status() | {"u": ""} == {
        "session": "running",
        "p": "paused",
        "a": "paused",
        "t": "paused",
        "u": "",
    }
    assert rows.events("host.warning") == [{"text": "one"}, {"text": "two"}]


def test_only_the_task_that_the_agent_has_is_paused_and_lifted_with_it(rows: Rows) -> None:
    rows.write(lambda tx: tx.execute("UPDATE tasks SET assigned_agent = 'another' WHERE id = 't'"))
    rows.write(lambda tx: lifecycle.pause_agent(tx, "a", "t", "enough"))
    assert (rows.status()["a"], rows.status()["t"]) == ("paused", "running")
    rows.write(lambda tx: plans.move(tx, "t", TaskStatus.PAUSED), lambda tx: lifecycle.lift(tx, "a", "t"))
    assert (rows.status()["a"], rows.status()["t"]) == ("working", "paused")


def test_a_task_that_does_not_run_is_not_paused_with_its_agent(rows: Rows) -> None:
    rows.write(
        lambda tx: plans.move(tx, "t", TaskStatus.FAILED),
        lambda tx: lifecycle.pause_agent(tx, "a", "t", "enough"),
    )
    assert rows.status()["t"] == "failed"


@pytest.mark.parametrize("ended", [AgentStatus.FAILED, AgentStatus.DONE, AgentStatus.CANCELLED])
def test_the_resume_of_a_failed_session_wakes_its_planner_with_one_message(rows, ended):
    rows.write(
        lambda tx: agents.move(tx, "p", ended), lambda tx: sessions.set_status(tx, SessionStatus.FAILED)
    )
    rows.write(lambda tx: lifecycle.open_session(tx, resume=False))
    assert (rows.status()["session"], rows.status()["p"]) == ("failed", ended)
    rows.write(lambda tx: lifecycle.open_session(tx, resume=True))
    assert (rows.status()["session"], rows.status()["p"]) == ("running", "idle")
    assert rows.read("SELECT agent_id, kind FROM inbox") == [("p", "resumed")]


def test_a_planner_that_has_not_ended_gets_no_message_by_the_resume(rows: Rows) -> None:
    rows.write(lambda tx: sessions.set_status(tx, SessionStatus.FAILED))
    rows.write(lambda tx: lifecycle.open_session(tx, resume=True))
    assert rows.read("SELECT kind FROM inbox") == []


def test_the_event_of_a_host_names_the_roles_that_are_not_built_in(rows: Rows) -> None:
    roles = [RoleModel("coder", "built-in", "m", "m"), RoleModel("mine", "/w/mine.md", "m", "m")]
    rows.write(lambda tx: lifecycle.open_session(tx, resume=False, roles=roles[:1]))
    rows.write(lambda tx: lifecycle.open_session(tx, resume=False, roles=roles))
    first, second = rows.events("host.started")
    assert "roles" not in first
    assert [one["role"] for one in second["roles"]] == ["mine"]


def test_a_host_that_begins_shows_nothing_that_an_earlier_one_was_doing(rows: Rows) -> None:
    live = "INSERT INTO live (agent_id, session_id, activity, since, updated_at) VALUES ('a', ?, 'working', 1, 1)"
    rows.write(lambda tx: tx.execute(live, (tx.session_id,)))
    rows.write(lambda tx: lifecycle.open_session(tx, resume=False))
    assert rows.read("SELECT agent_id FROM live") == []


def asked_to_pause(rows: Rows, agent_id: str | None = None) -> int:
    def insert(group: Any) -> int:
        return commands.insert(
            group.connection, session_id=rows.store.session_id, kind="pause", agent_id=agent_id, task_id=None, payload={},
            requested_by="ada", dedupe_key=None, now=1.0,
        )  # fmt: skip

    return rows.store.writer.submit(insert).result(10)


def test_a_resume_refuses_the_pauses_of_a_session_at_rest_that_are_older_than_it(rows: Rows) -> None:
    numbers = [asked_to_pause(rows), asked_to_pause(rows, "a"), asked_to_pause(rows)]
    status = "SELECT status FROM commands ORDER BY id"
    rows.write(lambda tx: lifecycle.open_session(tx, resume=True, last_command=numbers[1]))
    assert rows.read(status) == [("queued",)] * 3, "the session ran: its pauses still apply"
    rows.write(pause, lambda tx: lifecycle.open_session(tx, resume=False, last_command=numbers[1]))
    assert rows.read(status) == [("queued",)] * 3, "nobody resumed it"
    rows.write(lambda tx: lifecycle.pause_session(tx, "enough"))
    rows.write(lambda tx: lifecycle.open_session(tx, resume=True, last_command=numbers[1]))
    assert rows.read(status) == [("refused",), ("queued",), ("queued",)]


@pytest.mark.parametrize("before", list(SessionStatus))
def test_a_session_that_has_ended_is_not_paused(rows: Rows, before: SessionStatus) -> None:
    if before is not SessionStatus.RUNNING:
        rows.write(lambda tx: sessions.set_status(tx, before, "as it was"))
    after = SessionStatus.PAUSED if before is SessionStatus.RUNNING else before
    rows.write(lambda tx: lifecycle.pause_session(tx, "enough", among=[SessionStatus.RUNNING]))
    assert rows.status()["session"] == after
    unended = [SessionStatus.RUNNING, SessionStatus.PAUSED]
    rows.write(lambda tx: lifecycle.pause_session(tx, "no host can start", among=unended))
    assert rows.status()["session"] == after
    reason = "no host can start" if after is SessionStatus.PAUSED else "as it was"
    assert rows.read("SELECT status_reason FROM sessions") == [(reason,)]


@pytest.mark.parametrize("again", [False, True])
def test_a_stale_task_is_done_as_before_or_runs_again_as_the_next_attempt(rows: Rows, again: bool) -> None:
    rows.write(
        lambda tx: plans.move(tx, "t", TaskStatus.DONE),
        lambda tx: tx.execute("UPDATE tasks SET result = 'made' WHERE id = 't'"),
    )

    def settle(tx: Transaction) -> None:
        task = plans.load_task(tx, "t")
        assert task is not None
        lifecycle.settle_stale(tx, task=task, again=again)

    state = "SELECT status, attempt, result, assigned_agent FROM tasks WHERE id = 't'"
    rows.write(settle)
    assert rows.read(state)[0] == ("done", 1, "made", "a"), "it is not stale"
    rows.write(lambda tx: plans.move(tx, "t", TaskStatus.STALE), settle)
    assert rows.read(state)[0] == (("pending", 2, None, None) if again else ("done", 1, "made", "a"))
    kept = rows.read("SELECT row_id, old_values FROM state_changes WHERE table_name = 'tasks'")
    assert [(row[0], json.loads(row[1])) for row in kept] == (
        [("t", {"result": "made", "rerun_reason": None})] if again else []
    )


async def test_after_a_signal_an_agent_program_that_goes_on_is_cut_when_its_time_is_over(monkeypatch):
    """The run's end does not depend on a program that may hang."""
    loop, handlers, waited = asyncio.get_running_loop(), dict[int, Any](), list[Any]()
    monkeypatch.setattr(
        loop, "add_signal_handler", lambda number, handler: handlers.setdefault(number, handler)
    )
    monkeypatch.setattr(loop, "call_later", lambda seconds, work: waited.append((seconds, work)))
    did: list[str] = []

    class Host:
        def pause_all(self, reason: str, *, exit_code: int) -> None:
            did.append("paused")

        def cut_programs(self) -> None:
            did.append("cut")

    run_session._answer_signals(Host(), 130)  # type: ignore[arg-type]
    handlers[signal.SIGTERM]()
    assert did == ["paused"]
    ((seconds, work),) = waited
    assert seconds == run_session.PROGRAM_STEP_SECONDS
    work()
    assert did == ["paused", "cut"]
