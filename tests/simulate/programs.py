"""The agent program of a simulated machine. It keeps its sessions, as a real one does; its process ends with the host.

It asks before each command, reports what it does, takes messages while it works, compacts its context, and can die, meet a
usage limit, or refuse to open a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tests.simulate.script import digest_rng

from watchkeeper.agents import backends
from watchkeeper.agents.backends import BackendFailed, BackendSpec, Decision, Features, MemoryServer, Refused
from watchkeeper.agents.backends.programs import Program
from watchkeeper.agents.backends.tool_server import ToolServer
from watchkeeper.agents.limits import AgentControl
from watchkeeper.agents.tools.containment import Containment
from watchkeeper.records.messages import Usage
from watchkeeper.store.agents import Agent

if TYPE_CHECKING:
    from tests.simulate.world import World

NAME = "simulated"


class SimulatedToolServer(ToolServer):
    """Watchkeeper's tools for agent programs, reached without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.callers: dict[str, Agent] = {}

    async def serve(self, agent: Agent, control: AgentControl) -> MemoryServer:
        self._controls[agent.id] = control
        self.callers[agent.id] = agent
        return MemoryServer("", agent.id)


@dataclass(frozen=True, slots=True)
class SimulatedProgram(Program):
    """The program, as the table of programs has it."""

    world: World | None = None

    async def start(self, spec: BackendSpec, agent_id: str, containment: Containment) -> SimulatedBackend:
        await asyncio.sleep(0.01)
        assert self.world is not None
        return SimulatedBackend(self.world, agent_id)


def simulated_programs(world: World) -> Mapping[str, Program]:
    """The programs of the simulated machine."""

    def make(process: backends.ProgramProcess) -> backends.AgentBackend:
        raise AssertionError("a simulated machine has no processes")

    return {
        NAME: SimulatedProgram(
            NAME, "Simulated", (NAME,), make, SimulatedBackend.features, configured=True, world=world
        )
    }


class SimulatedBackend:
    """An `AgentBackend` in the memory of the simulated machine."""

    features = Features()
    version = "1.0"

    def __init__(self, world: World, agent_id: str) -> None:
        self._world, self._agent_id = world, agent_id
        self._spec: BackendSpec | None = None
        self._session = ""
        self._events: asyncio.Queue[backends.Event | None] = asyncio.Queue()
        self._turn: asyncio.Task[None] | None = None
        self._questions: dict[str, asyncio.Future[Decision]] = {}
        self._open_call = ""
        self.dead = False

    def prepare(self, command: Sequence[str], spec: BackendSpec) -> tuple[Sequence[str], Mapping[str, str]]:
        return command, spec.environ

    async def open(self, spec: BackendSpec) -> str:
        await asyncio.sleep(0.02)
        world = self._world
        self._spec = spec
        if world.program_fault(self._agent_id, "open") == "refuses":
            raise BackendFailed("the program refuses")
        if spec.session is None:
            self._session = f"p{len(world.program_sessions)}"
            world.program_sessions[self._session] = []
        elif spec.session not in world.program_sessions:
            raise BackendFailed("no such session")
        else:
            self._session = spec.session
        return self._session

    @property
    def _heard(self) -> list[str]:
        return self._world.program_sessions[self._session]

    async def prompt(self, text: str) -> None:
        self._hear(text)
        self._turn = asyncio.create_task(self._work(text))

    async def steer(self, text: str) -> Literal["now", "next"]:
        await asyncio.sleep(0.001)
        if self._turn is None or self._turn.done():
            raise Refused("the turn has ended")
        self._hear(text)
        return "now"

    def _hear(self, text: str) -> None:
        if self.dead:
            raise backends.ProgramEnded("the program ended")
        self._heard.append(text)

    async def interrupt(self) -> None:
        await asyncio.sleep(0.001)
        if self._turn is not None and not self._turn.done():
            self._turn.cancel()
            if self._open_call:
                self._put(backends.ToolEnd(self._open_call, "", "cancelled"))
            self._put(backends.Ended("interrupted"))

    async def answer(self, ask_id: str, decision: Decision) -> None:
        question = self._questions.pop(ask_id, None)
        if question is not None and not question.done():
            question.set_result(decision)

    async def compact(self, instructions: str | None) -> None:
        async def work() -> None:
            self._put(backends.Compaction(begun=True))
            await asyncio.sleep(0.5)
            self._put(backends.Compaction(begun=False, summary="what was done so far"))
            self._put(backends.Ended("completed"))

        self._hear("/compact")
        self._turn = asyncio.create_task(work())

    async def set(self, model: str | None, mode: str | None) -> None:
        pass

    async def events(self) -> AsyncIterator[backends.Event]:
        while (event := await self._events.get()) is not None:
            yield event
        raise backends.ProgramEnded("the program ended")

    def transcript(self) -> Path | None:
        return None

    async def close(self, grace_seconds: float) -> None:
        await asyncio.sleep(0.01)
        self._die()

    def _die(self) -> None:
        self.dead = True
        if self._turn is not None and self._turn is not asyncio.current_task():
            self._turn.cancel()
        self._events.put_nowait(None)

    def _put(self, event: backends.Event) -> None:
        self._events.put_nowait(event)

    # --- a turn ---------------------------------------------------------------------------------------------

    async def _work(self, text: str) -> None:
        world = self._world
        rng = digest_rng("program", world.script.seed, len(self._heard), text[-300:])
        refused = any("[Watchkeeper]" in heard for heard in self._heard[-6:])
        for place in range(0 if refused else rng.choice([1, 2, 4])):
            await asyncio.sleep(rng.choice([0.0, 0.05, 1.0]))
            fault = world.program_fault(self._agent_id, len(self._heard), place)
            if fault == "dies":
                self._die()
                return
            if fault in ("limit", "rate_limit"):
                until = world.clock.now() + 45.0 if fault == "limit" else None
                self._put(backends.Ended("failed", "a usage limit", fault, until))  # type: ignore[arg-type]
                return
            self._put(backends.Text(f"Step {place} of {len(self._heard)}.", f"m{len(self._heard)}.{place}"))
            if not await self._command(f"./effect {self._session}-{rng.randrange(1 << 40)}"):
                return
        for name in self._outputs():
            await self._server().call(
                self._server().callers[self._agent_id],
                "save_artifact",
                {"name": name, "content": f"made by {self._session}"},
            )
        self._put(backends.UsageReport(context_tokens=1_000 * len(self._heard), context_window=200_000))
        self._put(backends.UsageReport(usage=Usage(300, 40), whole_turn=True))
        self._put(backends.Text(f"It is done, {len(self._heard)}.", f"m{len(self._heard)}.last"))
        self._put(backends.Ended("completed"))

    def _outputs(self) -> list[str]:
        rows = self._world.read(
            "SELECT t.name FROM tasks t JOIN agents a ON a.task_id = t.id WHERE a.id = ?", self._agent_id
        )
        return self._world.outputs_of(rows[0][0]) if rows else []

    def _server(self) -> SimulatedToolServer:
        assert self._world.tool_server is not None
        return self._world.tool_server

    async def _command(self, command: str) -> bool:
        """Ask for a command and run it; False if the turn ends with the answer."""
        world, arguments = self._world, {"command": command}
        call = self._open_call = f"{self._session}.{len(self._heard)}.{command[-12:]}"
        self._put(backends.ToolBegin(call, "bash", arguments))
        question = self._questions[f"ask {call}"] = asyncio.get_running_loop().create_future()
        self._put(backends.Ask(f"ask {call}", call, "bash", arguments))
        decision = await question
        if decision in ("once", "always"):
            began, faults = world.begun(self._agent_id, "bash", arguments)
            world.problems += faults
            world.had_effect(began, arguments)
            await asyncio.sleep(0.01)
            self._put(backends.ToolEnd(call, f"ran {command}"))
        else:
            self._put(backends.ToolEnd(call, "", "denied" if decision == "deny" else "cancelled"))
        self._open_call = ""
        if decision == "cancel":
            self._put(backends.Ended("interrupted"))
        return decision != "cancel"
