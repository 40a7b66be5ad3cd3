"""One task for a scripted agent program, driven by a host in this process."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.support.scripted import call, inbox_of, last_results, said, task, turns

from watchkeeper.records.messages import ModelRequest
from watchkeeper.runtime.host import HostResult
from watchkeeper.store.place import Place

FAKE = Path(__file__).parent / "fake_acp.py"
ENDED = {"done", "error", "denied", "cancelled", "unknown"}


def planner(request: ModelRequest, *, model: str, instructions: str, role: str = "coder") -> Any:
    """Give task `a` to the program, and finish when it has ended."""
    if turns(request) == 0:
        work = task("a", role=role) | {"model": model, "instructions": instructions}
        return [call("create_plan", {"goal": "the goal", "tasks": [work]})]
    kinds = {item["kind"] for message in request.messages for item in inbox_of(message)}
    if kinds & {"task_done", "task_failed"} and not last_results(request):
        return [call("finish_session", {"summary": "it has ended"})]
    return [said("I wait.")]


class Programs(Bench):
    """A bench whose task `a` is done by a program of `[agents.fake]`."""

    def __init__(self, folder: Path, place: Place | None = None) -> None:
        super().__init__(folder, place)
        self.fake = folder / "fake"
        self.fake.mkdir(exist_ok=True)
        (folder / "config").mkdir(exist_ok=True)
        self.config = folder / "config" / "config.toml"
        self.use([sys.executable, "-S", "-E", str(FAKE), str(self.fake)])

    model_of_task = "fake/default"
    instructions = "THE PROMPT of a"
    role_of_task = "coder"

    @property
    def planner(self) -> Any:
        """What the planner does, as a script of its model."""
        return partial(
            planner, model=self.model_of_task, instructions=self.instructions, role=self.role_of_task
        )

    def take_over(self, session: str) -> None:
        """Go on with a session of an earlier process."""
        self.session, self.model.script = session, self.planner

    def use(self, command: list[str], name: str = "fake", more: str = "") -> None:
        """Start this command as the program."""
        protocol = 'protocol = "acp"\n' if name == "fake" else ""
        self.config.write_text(
            f'containment = "register"\n[agents.{name}]\n{protocol}command = {json.dumps(command)}\n{more}'
        )

    def play(self, name: str, model: str, *arguments: str) -> None:
        """Let the scripted program stand for this one, with this model."""
        self.use([sys.executable, "-S", "-E", str(FAKE), str(self.fake), *arguments], name)
        self.model_of_task = f"{name}/{model}"

    def script(self, *lives: Any, replies: dict[str, Any] | None = None, **settings: Any) -> None:
        """What the program does: for each process, for each prompt, its actions (see `fake_acp`)."""
        (self.fake / "script.json").write_text(json.dumps({"lives": lives, "replies": replies or {}}))
        settings.setdefault("allow", ("bash", "write"))
        self.start(self.planner, **settings)

    async def played(self, *lives: Any, replies: dict[str, Any] | None = None, **settings: Any) -> HostResult:
        """Run a session in which the program does this; then what holds whatever it does is checked."""
        self.script(*lives, replies=replies, **settings)
        result = await self.run()
        self.assert_whole()
        return result

    def received(self, method: str | None = None) -> list[Any]:
        """What the program was sent: pairs of the number of its process and the message."""
        log = self.fake / "received.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [(life, one) for life, one in lines if method is None or one.get("method") == method]

    def prompts(self) -> list[str]:
        acp = [one["params"]["prompt"][0]["text"] for _, one in self.received("session/prompt")]
        return acp + [one["params"]["input"][0]["text"] for _, one in self.received("turn/start")]

    def answers(self) -> dict[Any, str]:
        """What the program was answered to each of its questions: the option, or `cancelled`."""
        said = {one["id"]: one["result"].get("outcome") for _, one in self.received() if "result" in one}
        return {number: one.get("optionId", one["outcome"]) for number, one in said.items() if one}

    def calls(self) -> list[tuple[str, str]]:
        """Name and status of each call of the program's tools."""
        sql = "SELECT c.name, c.status FROM tool_calls c JOIN agents a ON a.id = c.agent_id WHERE a.task_id IS NOT NULL"
        return list(self.query(f"{sql} ORDER BY c.id"))

    def transcript(self) -> list[Any]:
        """The messages of the program's agent."""
        sql = (
            "SELECT m.content FROM messages m JOIN agents a ON a.id = m.agent_id WHERE a.task_id IS NOT NULL"
        )
        return [json.loads(row[0]) for row in self.query(f"{sql} ORDER BY a.id, m.seq")]

    def assert_whole(self) -> None:
        """What holds once the host has ended, whatever the program did."""
        self.assert_sound()
        assert {status for _, status in self.calls()} <= ENDED
        blocks = [block for content in self.transcript() if isinstance(content, list) for block in content]
        begun = [block["id"] for block in blocks if block["type"] == "tool_use"]
        ended = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert sorted(begun) == sorted(ended), (begun, ended, self.transcript())
        assert len(set(begun)) == len(begun)
        assert not self.query("SELECT 1 FROM program_turns WHERE status = 'running'")
        assert not self.query("SELECT 1 FROM approvals WHERE status = 'waiting'")
        self.assert_nothing_runs()
        self.assert_nothing_silently_repeated()

    def assert_nothing_runs(self) -> None:
        pids = self.fake / "pids"
        for pid in pids.read_text().split() if pids.exists() else ():
            assert not _runs(int(pid)), f"process {pid} is left"

    def assert_nothing_silently_repeated(self) -> None:
        """A prompt comes a second time only in a message that says so, and there is one about each cut turn."""
        prompts = self.prompts()
        for text in prompts:
            assert text.count("THE PROMPT") <= 1 or "may not have received the last message" in text
        assert (
            sum(
                "THE PROMPT" in text and "may not have received the last message" not in text
                for text in prompts
            )
            <= 1
        )
        cut = len(self.query("SELECT 1 FROM program_turns WHERE status = 'unknown'"))
        assert len({text for text in prompts if "You were interrupted" in text}) <= cut


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and os.path.exists(f"/proc/{pid}")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not end when it is asked to is not waited for long."""
    for name in ("INTERRUPT_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(f"watchkeeper.agents.backends.loop.{name}", 0.3)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    return Programs(tmp_path)
