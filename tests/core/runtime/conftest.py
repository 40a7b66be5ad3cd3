from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_rows import create_agent
from tests.support.places import query, workspace_in
from tests.support.scripted import PlannedRun, ScriptedModel, task

from watchkeeper.records.ports import Clock, ManualClock
from watchkeeper.runtime.host import HostResult
from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session
from watchkeeper.runtime.run_session import Runtime
from watchkeeper.store import plans
from watchkeeper.store.place import Place
from watchkeeper.store.transaction import SessionStore, Transaction


class Bench:
    """A database, a workspace and a scripted model; drives one session in this process."""

    def __init__(self, folder: Path, place: Place | None = None) -> None:
        self.workspace = folder / "workspace"
        self.workspace.mkdir(exist_ok=True)
        self.path = place or folder / "watchkeeper.db"
        self.model = ScriptedModel(lambda request: [])
        self.runtime = Runtime(self.path, model=self.model)
        self.session = ""

    def start(
        self, script: Any, *, budgets: dict[str, float] | None = None, window: int = 60_000,
        rules: Sequence[str] = (), **settings: Any,
    ) -> str:  # fmt: skip
        self.model.script = script
        self.model.context_window = window
        settings.setdefault("approval_timeout_seconds", 0.0)
        self.session = self.runtime.start(
            "reach the goal", workspace=self.workspace, settings=SessionSettings(**settings), budgets=budgets,
            rules=rules,
        )  # fmt: skip
        return self.session

    async def run(self, **options: Any) -> HostResult:
        return await asyncio.wait_for(self.runtime.run(self.session, **options), 100)

    async def run_while(self, steps: Callable[[], Any], **options: Any) -> HostResult:
        """Run, and beside it what `steps` does."""
        running = asyncio.ensure_future(self.run(**options))
        beside = asyncio.ensure_future(steps())
        done, _ = await asyncio.wait({running, beside}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        try:
            if beside in done or not done:
                await asyncio.wait_for(beside, 10)
            return await asyncio.wait_for(running, 40)
        finally:
            beside.cancel()
            running.cancel()
            await asyncio.gather(beside, running, return_exceptions=True)

    async def until(self, condition: Callable[[dict[str, Any]], Any]) -> Any:
        """Wait until the stored state fulfils a condition; returns what the condition gave."""
        while True:
            began = time.monotonic()
            found = condition(self.state)
            if found:
                return found
            await asyncio.sleep(
                max(0.005, 2 * (time.monotonic() - began))
            )  # what is waited for shares this thread

    async def applied(self, command: int, status: str = "applied") -> None:
        """Wait until a command has been applied, or has another status."""
        await self.until(lambda state: self.command(command)["status"] != "queued")
        assert self.command(command)["status"] == status, self.command(command)["result"]

    async def hanging(self, name: str = "a") -> dict[str, Any]:
        """Wait until a call of the model hangs; returns the agent of a task."""
        return dict(await self.until(lambda state: self.model.hanging and agent_of(state, name)))

    async def waiting(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many questions wait for an answer; returns them."""

        def questions(state: dict[str, Any]) -> list[dict[str, Any]]:
            found = [one for one in state["approvals"] if one["status"] == "waiting"]
            return found if len(found) >= count else []

        return list(await self.until(questions))

    def coder(self, work: Any, **settings: Any) -> None:
        """Start one task for a coder, whose questions wait for an answer."""
        settings.setdefault("approval_timeout_seconds", None)
        self.start(PlannedRun([task("a", role="coder")], work), **settings)

    def submit(self, kind: str, **about: Any) -> int:
        return self.runtime.submit(self.session, kind, **about)

    @property
    def state(self) -> dict[str, Any]:
        return self.runtime.state(self.session)

    def agent(self, name: str = "a") -> dict[str, Any]:
        """The agent of a task."""
        return agent_of(self.state, name) or {}

    def command(self, number: int) -> dict[str, Any]:
        return next(one for one in self.state["commands"] if one["id"] == number)

    def tasks(self) -> dict[str, dict[str, Any]]:
        plan = self.state["plan"]
        return {task["name"]: task for task in plan["tasks"]} if plan else {}

    def query(self, sql: str, *parameters: Any) -> list[Any]:
        return query(self.path, sql, *parameters)

    def kinds(self) -> list[str]:
        rows = self.query("SELECT kind FROM events WHERE session_id = ? ORDER BY seq", self.session)
        return [row[0] for row in rows]

    def assert_sound(self) -> None:
        """What must hold of the file whatever happened."""
        if isinstance(self.path, Path):
            assert self.query("PRAGMA integrity_check") == [("ok",)]
        rows = self.query("SELECT seq FROM events WHERE session_id = ? ORDER BY seq", self.session)
        assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
        for agent_id, tokens, last in self.query("SELECT id, message_tokens, last_seq FROM agents"):
            rows = self.query(
                "SELECT seq, tokens, total_tokens FROM messages WHERE agent_id = ? ORDER BY seq", agent_id
            )
            assert [row[0] for row in rows] == list(range(1, last + 1))
            assert sum(row[1] for row in rows) == tokens
        columns = "sum(input_tokens), sum(output_tokens), count(*), sum(retries)"
        of_calls = self.query(f"SELECT {columns} FROM model_calls WHERE session_id = ?", self.session)
        of_session = self.query(
            "SELECT input_tokens, output_tokens, model_calls, retries FROM sessions WHERE id = ?",
            self.session,
        )
        assert [tuple(value or 0 for value in row) for row in of_calls] == of_session


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    return Bench(tmp_path)


class Ground:
    """A session that is claimed, whose rows are changed as a host changes them."""

    def __init__(self, folder: Path, name: str = "w.db", *, clock: Clock | None = None, **about: Any) -> None:
        wanted = NewSession("goal", workspace_in(folder), "test/model")
        self.session = create_session(folder / name, wanted, **about)
        self.store = SessionStore.claim(
            folder / name, self.session, clock or ManualClock(), pid=os.getpid(), host_name="h"
        )

    def write(self, change: Callable[[Transaction], Any]) -> None:
        session, epoch = self.session, self.store.epoch
        self.store.writer.submit(lambda group: change(Transaction(group, session, epoch, 1.0))).result()

    def close(self) -> None:
        self.store.close()


def add_task(tx: Transaction, name: str, number: int) -> None:
    """A task of the plan `plan`."""
    plans.add_task(
        tx, task_id=name, plan_id="plan", name=name, position=number, title=name, instructions="", role="explorer",
        model=None, expected_outputs=[],
    )  # fmt: skip


def add_agent(tx: Transaction, agent_id: str) -> None:
    create_agent(tx, agent_id, name=agent_id, role="explorer")


def agent_of(state: dict[str, Any], name: str) -> dict[str, Any] | None:
    tasks = {one["name"]: one for one in (state["plan"] or {"tasks": []})["tasks"]}
    wanted = tasks.get(name, {}).get("agent")
    return next((one for one in state["agents"] if one["id"] == wanted), None)
