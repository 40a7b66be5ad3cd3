"""The tool workers of a simulated machine: the real file tools on a real folder, and a shell that knows a few words.

A shell is what can be lost: its folder, its variables and its jobs. The simulation knows what each agent's shell held when
its last command ended, and checks that no command runs in another shell before the agent was told.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.agents.tools.child import ChildFailed
from watchkeeper.agents.tools.containment import Containment
from watchkeeper.agents.tools.contract import SAVE_SHELL, SHELL_LOST
from watchkeeper.agents.tools.processes import ProtectedFiles
from watchkeeper.agents.tools.worker_files import FileTools
from watchkeeper.records.errors import HostFault, Shortage
from watchkeeper.records.tool_inputs import PREMISES_CHANGED

if TYPE_CHECKING:
    from tests.simulate.world import World

CHANGES = ("bash", "write", "edit")
"""Tools whose calls have an effect."""
NEVER_SECONDS = 1_000.0
"""Longer than any call may take."""


@dataclass
class Shell:
    """What a shell holds."""

    number: int
    folder: str
    variables: dict[str, str] = field(default_factory=dict)
    """The exported ones, which can be restored."""
    unexported: dict[str, str] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)

    def holds(self) -> str:
        """What a command may depend on. An agent is told of jobs that ended with the first result of its next shell."""
        return json.dumps([self.folder, self.variables, self.unexported], sort_keys=True)

    def run(self, command: str) -> str:
        """Run the words of `command` that change the shell; returns what it prints."""
        for part in command.split(" && "):
            word, _, rest = part.partition(" ")
            if word == "cd":
                self.folder = str(Path(self.folder, rest).resolve())
            elif word == "export":
                name, _, value = rest.partition("=")
                self.variables[name] = value
            elif word == "sleep":
                self.jobs.append(part)
            elif "=" in word:
                name, _, value = word.partition("=")
                self.unexported[name] = value
        return f"ran {command} in {Path(self.folder).name}"


class SimulatedWorker:
    """A `ToolWorker` in the memory of the simulated machine."""

    def __init__(self, world: World, config: Mapping[str, Any], agent_id: str) -> None:
        self._world, self._agent_id = world, agent_id
        self._workspace = str(config["workspace"])
        self.folder: tuple[int, int] | None = None
        self.alive = True
        self._died = asyncio.Event()
        self._shell: Shell | None = None
        self._files: FileTools | None = None
        if config["mode"] == "files":
            protected = ProtectedFiles(config["database_files"], config["lease_folder"])
            self._files = FileTools(self._workspace, protected)
        else:
            restored = config.get("restored") or {"folder": self._workspace, "variables": {}}
            world.shells += 1
            self._shell = Shell(world.shells, restored["folder"], dict(restored["variables"]))

    @classmethod
    async def start(
        cls,
        world: World,
        config: Mapping[str, Any],
        environ: Mapping[str, str],
        agent_id: str,
        containment: Containment | None,
    ) -> SimulatedWorker:
        """As `Child.start`."""
        await asyncio.sleep(0.01)
        if world.tool_fault("start", agent_id, world.shells) == "no workers":
            world.refused_starts += 1
            raise HostFault("no process can be started", Shortage.PROCESSES)
        worker = cls(world, config, agent_id)
        world.workers.append(worker)
        return worker

    def shell_identity(self) -> str:
        return str(self._shell.number) if self._shell is not None else ""

    def shell_folder(self) -> str | None:
        return self._shell.folder if self._shell is not None else None

    def shell_jobs(self) -> tuple[str, ...]:
        return tuple(self._shell.jobs) if self._shell is not None else ()

    def memory_bytes(self) -> int | None:
        return 24 << 20

    @property
    def is_shell(self) -> bool:
        return self._shell is not None

    def die(self) -> None:
        """End by itself."""
        self.alive = False
        self._died.set()
        if self in self._world.workers:
            self._world.workers.remove(self)

    async def kill(self) -> None:
        self.die()

    async def call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """As `Child.call`."""
        if not self.alive:
            raise ChildFailed("the tool worker has ended")
        work = asyncio.ensure_future(self._answer(dict(request)))
        died = asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({work, died}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ChildFailed("the tool worker died", began=True)
            return work.result()
        finally:
            died.cancel()
            work.cancel()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        name, world = request["tool"], self._world
        if name == SAVE_SHELL:
            return {"content": self._saved()}
        agent = request["agent"] or self._agent_id
        began, faults = world.begun(agent, name, request["arguments"]) if name in CHANGES else (None, [])
        fault = world.tool_fault(agent, name, str(request["arguments"]), world.ledger.effects[began or 0])
        if fault == "worker dies before":
            self.die()
        await asyncio.sleep(0.001 * random.Random(str(request["arguments"])).randrange(6))
        content, is_error = await self._run(request, agent, began)
        if not is_error:  # else the file was found changed, and is as it was
            world.problems += faults
        if fault == "worker dies after":
            self.die()
        await asyncio.sleep(NEVER_SECONDS if fault == "slow" else 0.001)
        return {"content": content, "is_error": is_error}

    async def _run(self, request: dict[str, Any], agent: str, began: int | None) -> tuple[Any, bool]:
        world = self._world
        if self._files is not None:
            content, is_error = await self._files.run(request)
            if began is not None and not is_error:
                world.had_effect(began, request["arguments"])
            return content, is_error
        shell, command = self._shell, str(request["arguments"].get("command") or "")
        assert shell is not None
        if not Path(shell.folder).is_dir():
            return SHELL_LOST.format(folder=self._workspace), True
        premises = request.get("premises")
        if isinstance(premises, dict) and premises["folder"] != shell.folder:
            return PREMISES_CHANGED, True
        world.entered(agent, self._workspace, shell.number, shell.holds())
        said = shell.run(command)
        world.left(agent, self._workspace, shell.number, shell.holds())
        if began is not None:
            world.had_effect(began, request["arguments"])
        return said, False

    def _saved(self) -> str:
        shell = self._shell
        assert shell is not None
        shell.jobs.clear()
        gone = {"variables": sorted(shell.unexported)} if shell.unexported else {}
        return json.dumps({"folder": shell.folder, "variables": shell.variables, "gone": gone})
