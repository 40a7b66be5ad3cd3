"""Whole runs over the real SDK against a loopback Messages API: in this process, and by the command line."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.forked import Forked, Process, new_process
from tests.support.messages_server import MessagesServer

from watchkeeper.models.anthropic import AnthropicModel
from watchkeeper.models.failures import RetryPolicy
from watchkeeper.runtime.lifecycle import SessionSettings
from watchkeeper.runtime.run_session import Runtime
from watchkeeper.store import database

ROOT = Path(__file__).parents[3]
MODEL = "anthropic/claude-test"


@dataclass(frozen=True)
class Ended:
    """A `wk` process that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its standard output, one JSON object a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def result(self) -> dict[str, Any]:
        return self.lines[-1]


def wait_until(happened: Callable[[], object], seconds: float = 60) -> Any:
    """Wait for what another process or thread does; gives what `happened` gives then."""
    deadline = time.monotonic() + seconds
    while not (found := happened()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


class Ground:
    """A database and a workspace, and a Messages API server once `serve` was called."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        for part in ("alpha", "beta", "gamma"):
            (self.workspace / part).mkdir()
            (self.workspace / part / "main.py").write_text(f"print({part!r})\n")
        self.path = folder / "watchkeeper.db"
        self.models: list[AnthropicModel] = []
        self.servers: list[MessagesServer] = []
        self._home = folder
        self._stack = stack
        self._processes: list[Process] = []
        self.new_processes = False
        """`wk` is started anew, and imports all that it needs, instead of being forked from one that has."""
        self.url = ""

    def serve(self, script: Callable[[dict[str, Any]], Any], **options: Any) -> MessagesServer:
        self.servers.append(self._stack.enter_context(MessagesServer(script, **options)))
        self.url = self.servers[-1].url
        return self.servers[-1]

    # --- by the command line --------------------------------------------------------------------------------

    def start(self, *arguments: str, **environment: str) -> Process:
        """Start `wk ARGUMENTS --db …` with the server's address and a key in its environment; an empty value
        unsets one."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ANTHROPIC_", "OPENAI_", "WATCHKEEPER_"))
        }
        kept |= {
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "test-key",
            "HOME": str(self._home),
            "WATCHKEEPER_CONFIG_DIR": str(self._home / "config"),
            "PYTHONPATH": f"{ROOT / 'core'}{os.pathsep}{ROOT / 'tui'}",
        }
        environment = {name: value for name, value in (kept | environment).items() if value}
        command = [*arguments, "--db", str(self.path)]
        process = new_process(command, environment) if self.new_processes else Forked(command, environment)
        self._processes.append(process)
        return process

    def wk(self, *arguments: str, **environment: str) -> Ended:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=60)
        return Ended(process.returncode, out, err)

    def run(self, *options: str, goal: str = "reach the goal", **environment: str) -> Ended:
        """`wk run GOAL` headless with JSON lines."""
        return self.wk(
            "run", goal, "--model", MODEL, "--headless", "--json", "--workspace", str(self.workspace), *options,
            **environment,
        )  # fmt: skip

    def start_run(self, *options: str, **environment: str) -> Process:
        return self.start(
            "run", "reach the goal", "--model", MODEL, "--headless", "--json", "--workspace", str(self.workspace), *options, **environment
        )  # fmt: skip

    def resume(self, **environment: str) -> Ended:
        return self.wk("resume", "last", "--headless", "--json", **environment)

    def show(self) -> dict[str, Any]:
        shown: dict[str, Any] = self.wk("show", "last", "--json").result
        return shown

    # --- in this process ------------------------------------------------------------------------------------

    def runtime(self, url: str | None = None, *, name: str = "claude-test", **options: Any) -> Runtime:
        """A runtime whose model talks to the server, and waits hardly at all before it asks again."""
        settings: dict[str, Any] = {
            "retries": RetryPolicy(base_seconds=0.001),
            "rng": random.Random(7),
            **options,
        }
        self.models.append(AnthropicModel(name, api_key="test-key", base_url=url or self.url, **settings))
        return Runtime(self.path, model=self.models[-1])

    async def drive(
        self, runtime: Runtime | None = None, *, budgets: dict[str, float] | None = None, **settings: Any
    ) -> Any:
        """Start a session in this process and drive it to its end."""
        runtime = runtime or self.runtime()
        settings.setdefault("approval_timeout_seconds", 0.0)
        session = runtime.start(
            "reach the goal", workspace=self.workspace, settings=SessionSettings(**settings), budgets=budgets
        )  # fmt: skip
        return await runtime.run(session)

    # --- what the file says ---------------------------------------------------------------------------------

    def query(self, sql: str, *parameters: Any) -> list[Any]:
        connection = database.open_readonly(self.path)
        try:
            return connection.execute(sql, parameters).fetchall()
        finally:
            connection.close()

    def tasks(self) -> dict[str, tuple[str, int, str]]:
        """Name → status, attempt, agent."""
        return {
            row[0]: row[1:] for row in self.query("SELECT name, status, attempt, assigned_agent FROM tasks")
        }

    def assert_sound(self) -> None:
        """What must hold of the file whatever happened."""
        assert self.query("PRAGMA integrity_check") == [("ok",)]
        seqs = [row[0] for row in self.query("SELECT seq FROM events ORDER BY seq")]
        assert seqs == list(range(1, len(seqs) + 1))
        columns = "sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens), count(*), sum(retries)"
        of_calls = self.query(f"SELECT {columns} FROM model_calls")
        totals = "input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, model_calls, retries"
        assert of_calls == self.query(f"SELECT {totals} FROM sessions")

    def assert_done(self) -> None:
        """Every task ended at its first attempt, no request broke a rule of the API, and the file is sound."""
        assert {found[:2] for found in self.tasks().values()} == {("done", 1)}
        assert [
            (server.script_errors, server.refused)
            for server in self.servers
            if server.script_errors or server.refused
        ] == []
        self.assert_sound()

    def end_processes(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
async def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ground]:
    for name in [name for name in os.environ if name.startswith(("ANTHROPIC_", "OPENAI_", "WATCHKEEPER_"))]:
        if name != "WATCHKEEPER_AIMOCK":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    with ExitStack() as stack:
        made = Ground(tmp_path, stack)
        yield made
        made.end_processes()
        for model in made.models:
            await model.close()
