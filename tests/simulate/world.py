"""One simulated run: the real host, scheduler, loops, writer and commands, on a machine that a script decides."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.simulate import checks, programs
from tests.simulate.happenings import HAPPENINGS
from tests.simulate.machine import Crash, SeededClock, SeededLoop, Stuck
from tests.simulate.model import SeededModel, fault_of
from tests.simulate.programs import SimulatedToolServer, simulated_programs
from tests.simulate.script import Script, digest_rng
from tests.simulate.tools import Ledger, governed, simulated_tools
from tests.simulate.workers import SimulatedWorker

from watchkeeper.records.errors import BadInput, LeaseLost, StoreUnusable, WatchkeeperError
from watchkeeper.runtime import control
from watchkeeper.runtime.config import Config
from watchkeeper.runtime.host_factory import Machine, assemble
from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session
from watchkeeper.store import commands as queue
from watchkeeper.store import database, faultpoints
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.transaction import SessionStore, Transaction

QUIET_STEPS = 12_000
"""Steps within which a run ends, after the last fault, with people who answer."""
MOST_HOSTS = 120
LONGEST_SECONDS = 30.0
"""Processor time of a run; it takes about one second."""
LATEST_STOP = 1.0
"""Seconds from the end of an agent to that of its calls."""
LONGEST_RESERVED = 1_500
"""Steps from a reservation to its end, if its call has ended."""
ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"


_GRAVEYARD: list[Any] = []
"""What crashes left in memory. It is never looked at again: were it freed, its `finally` blocks would run."""


@dataclass
class Outcome:
    """What a run came to."""

    problems: list[str]
    history: list[str]
    """In plain words: what happened, and every event of the log."""
    steps: int
    kinds: Counter[str] = field(default_factory=Counter)


@cache
def _empty_database() -> Path:
    """A database with the newest schema, made once for all runs of this process."""
    path = Path(tempfile.mkdtemp(dir=_memory(), prefix="watchkeeper-simulate-")) / "empty.db"
    database.open_writable(path).close()
    return path


def remove_folders() -> None:
    """Remove what all runs of this process shared."""
    shutil.rmtree(_empty_database().parent, ignore_errors=True)


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextlib.contextmanager
def _folder_of(seed: int) -> Iterator[Path]:
    """A folder whose name the seed alone decides, since agents are told where they work; another one while a second process
    plays the same seed."""
    folder = Path(_memory() or tempfile.gettempdir()) / f"watchkeeper-simulate-{os.getuid()}-{seed}"
    with open(f"{folder}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            folder = Path(tempfile.mkdtemp(dir=_memory(), prefix="watchkeeper-simulate-"))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            Path(lock.name).unlink(missing_ok=True)


class CheckedStore(SessionStore):
    """The store of a host, whose acknowledged commits are looked for in the file at once."""

    world: World

    async def commit(self, change: Callable[[Transaction], Any], *, urgent: bool = False) -> Any:
        wrote: dict[str, int] = {}

        def noted(tx: Transaction) -> Any:
            made = change(tx)
            wrote["seq"], wrote["epoch"] = tx._fence.event_seq, tx.epoch
            return made

        made = await super().commit(noted, urgent=urgent)
        self.world.problems += checks.acknowledged(self.world.read, wrote["seq"], wrote["epoch"])
        return made


class _Watch:
    """Tells a host of commands as soon as a simulated person has asked for one."""

    def __init__(self, world: World, on_command: Callable[[], None]) -> None:
        self._world, self._on_command = world, on_command
        world.watches.append(on_command)

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            self._world.watches.remove(self._on_command)


class World:
    """Plays a script. `run` does everything; the rest is what happenings, model and tools may use."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.session = ""
        self.problems: list[str] = []
        self.history: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.clock = SeededClock()
        self.ledger = Ledger()
        self.watches: list[Callable[[], None]] = []
        self.workers: list[SimulatedWorker] = []
        """Those that live."""
        self.refused_starts = 0
        """How often no worker could be started."""
        self.shells = 0
        """How many were started."""
        self._reservations: dict[str, int] = {}
        """What calls may use: epoch and reservation → the step of its commit."""
        self._reservations_begun: set[str] = set()
        self._reservations_ended: set[str] = set()
        self.allowed: set[str] = set()
        """Questions that people approved, or tried to."""
        self._shown: dict[str, tuple[str, str | None] | None] = {}
        """By question: the file that it is about, and what that held."""
        self._held: dict[tuple[str, str], tuple[int, str, int]] = {}
        """By agent and folder: its last shell, what that held, and how often the agent had been told of a loss by then."""
        self.model_faults: list[tuple[str, float]] = []
        """Kinds of faults, each with the time until which calls meet it."""
        self.tool_faults: list[tuple[str, float]] = []
        self.program_faults: list[tuple[str, float]] = []
        self.program_sessions: dict[str, list[str]] = {}
        """What each session of the agent program was told. Its files outlive a crash."""
        self.tool_server: SimulatedToolServer | None = None
        self.steps = 0
        self.quiet = False
        self.stores: list[SessionStore] = []
        self.second_host: asyncio.Task[Any] | None = None
        self._crashed = False
        self.crash_at: tuple[str, int] | None = None
        """The fault point at which the machine stops, and how many times it is passed before."""
        self._next = 0
        self._order = random.Random(f"order {script.seed}")
        self._ids = random.Random(f"ids {script.seed}")
        self._resumes = random.Random(f"resumes {script.seed}")
        self._before: dict[str, dict[str, str]] = {}
        self._log = checks.Log(self.read)
        self._ended_agents: dict[str, float] = {}
        """Agents that have ended → the time of the commit."""
        self.last_agent = ""
        """To which agent a person did something last."""
        self._ended_at: int | None = None
        self._checking = False

    # --- What happenings, model and tools use ---------------------------------------------------------------

    def new_id(self) -> str:
        return "".join(self._ids.choice(ALPHABET) for _ in range(8))

    def read(self, sql: str, *parameters: Any) -> list[Any]:
        """Rows of the committed state."""
        return self._reader.execute(sql, parameters).fetchall()

    def say(self, text: str) -> None:
        """Add a line to the history."""
        self.history.append(f"[{self.steps}] {text}".replace(f"pid {os.getpid()}", "pid …"))

    def ask(self, kind: str, *, by: str = "ann", **about: Any) -> int | None:
        """A person's command; None if it is refused before it is queued."""
        question = about["payload"]["approval"] if kind == "approve" else ""
        known = question in self.allowed
        self.allowed.add(question)  # the machine may stop as the command is stored, before this returns
        try:
            number = control.submit(
                self.path, self.session, kind, requested_by=by, now=self.clock.now, **about
            )
        except (BadInput, StoreUnusable) as refused:
            self.say(f"{by} asks for {kind} {about}: {refused}")
            if not known:
                self.allowed.discard(question)
            return None
        self.say(f"{by} asks for {kind} {about}")
        self.last_agent = about.get("agent_id", self.last_agent)
        for told in list(self.watches):
            if self.clock.loop is not None:
                self.clock.loop.call_soon(told)
        return number

    def ask_unknown(self, *, by: str) -> None:
        """A command that only a newer version of the program knows."""
        known = queue.KINDS
        queue.KINDS = known | {"newer"}
        try:
            self.ask("newer", by=by)
        finally:
            queue.KINDS = known

    def crash(self, why: str) -> None:
        """The machine stops, now."""
        self.say(f"the machine stops: {why}")
        self._crashed = True
        raise Crash(why)

    def claim_beside(self) -> None:
        """Claim the session although a host has it."""
        if not self.hosted or self.second_host is not None or self.clock.loop is None:
            return
        try:
            store = SessionStore.claim(
                self.path, self.session, self.clock, pid=os.getpid(), host_name="other", threaded=False
            )
        except WatchkeeperError as refused:
            self.say(f"a second host is refused: {refused}")
            return
        store.close()
        self.problems.append("a second host got the session of a host that lives")

    def fill_disk(self, seconds: float) -> None:
        """Let no write of the host's database grow it for a while."""
        if len(self.stores) != 1 or self.clock.loop is None:
            return
        self.say(f"the disk is full for {seconds:g} s")
        connection = self.stores[0].writer.connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

        def has_room() -> None:
            if self.stores and self.stores[0].writer.connection is connection:
                connection.execute("PRAGMA max_page_count = 1073741823")
                self.say("the disk has room again")

        self.clock.loop.call_later(seconds, has_room)

    def lose_lease(self) -> None:
        """Let a second host claim the session while the first one runs."""
        if len(self.stores) != 1 or self.clock.loop is None:
            return
        self.say("the lock is lost, and a second host claims the session")
        self.stores[0]._lease.release()
        self.second_host = self.clock.loop.create_task(self._second())

    async def _second(self) -> None:
        try:
            await self._life(None)
        except (LeaseLost, BadInput, StoreUnusable) as error:
            self.say(f"the second host ends: {error}")

    def model_fault(self, rng: random.Random) -> Exception | None:
        """What the next call of the model meets."""
        kind = self._met(self.model_faults, rng.random)
        return fault_of(kind, self.clock.now()) if kind is not None else None

    def tool_fault(self, *about: Any) -> str | None:
        """What the next call of a tool meets."""
        return self._met(self.tool_faults, lambda: digest_rng("tool", self.script.seed, *about).random())

    def program_fault(self, *about: Any) -> str | None:
        """What an agent program meets next."""
        return self._met(
            self.program_faults, lambda: digest_rng("program fault", self.script.seed, *about).random()
        )

    def _met(self, faults: list[tuple[str, float]], draw: Callable[[], float]) -> str | None:
        """The fault that is met now, by the draw of each that has not passed."""
        now = self.clock.monotonic()
        faults[:] = [] if self.quiet else [one for one in faults if one[1] > now]
        return next((kind for kind, _ in faults if draw() < 0.5), None)

    def begun(self, agent: str, name: str, arguments: dict[str, Any]) -> tuple[int, list[str]]:
        """The number of the call of an agent that has these arguments and may run now, 0 if there is none; and what is wrong
        with it."""
        waiting = []
        for number, seq, use_id, idempotent, status, edited in self.read(
            "SELECT id, seq, tool_use_id, idempotent, status, edited_input FROM tool_calls WHERE agent_id = ? AND name = ?"
            " AND (result IS NULL OR status = 'unknown') ORDER BY status = 'unknown', id",
            agent, name,
        ):  # fmt: skip
            given = json.loads(edited) if edited else self._input(agent, seq, use_id)
            began = status == "running" or (idempotent and status == "pending")
            # Where two hosts live, the second one has settled a call that the first one still runs.
            if given == arguments and (began or (status == "unknown" and self.second_host is not None)):
                return int(number), governed(self, number, name, arguments)
            waiting.append(f"call {number} is {status}")
        return 0, [f"{name} of {agent} ran with {arguments}, and no call of it was begun: {waiting}"]

    def is_granted(self, name: str) -> bool:
        """Whether a person has allowed all calls of a tool, and not revoked it."""
        return any(
            row[0] == name for row in self.read("SELECT tool FROM permission_grants WHERE revoked_at IS NULL")
        )

    def was_granted(self, name: str) -> bool:
        """Whether a person has ever allowed all calls of a tool."""
        return bool(self.read("SELECT 1 FROM permission_grants WHERE tool = ?", name))

    def note_questions(self) -> None:
        """Remember the files that new questions are about, as they are now."""
        for question, call in self.read("SELECT id, tool_call_id FROM approvals WHERE status = 'waiting'"):
            if question not in self._shown:
                rows = self.read("SELECT agent_id, seq, tool_use_id FROM tool_calls WHERE id = ?", call)
                given = self._input(*rows[0]) if rows else None
                file = given.get("file_path") if isinstance(given, dict) else None
                self._shown[question] = (file, self._text_of(file)) if file else None

    def changed_since(self, question: str, arguments: dict[str, Any]) -> list[str]:
        """Whether the file that a call changes is still what the question showed."""
        shown = self._shown.get(question)
        if shown is None or arguments.get("file_path") != shown[0] or self._text_of(shown[0]) == shown[1]:
            return []
        return [f"{shown[0]} is not what a person was shown in question {question}"]

    def goes_on(self, agent: str) -> None:
        """What an agent had asked for is still under way: the agent has not ended, or in this moment."""
        ended = self._ended_agents.get(agent)
        if ended is not None and self.clock.monotonic() > ended + LATEST_STOP:
            self.problems.append(
                f"{agent} ended {self.clock.monotonic() - ended:g} s ago, and its call goes on"
            )

    def begin_call(self, agent: str, purpose: str) -> list[str]:
        """A call of the model begins; returns its reservations."""
        mine = self.read(
            "SELECT lease_epoch || ' ' || id FROM reservations WHERE agent_id = ? AND purpose = ?",
            agent,
            purpose,
        )
        began = [row[0] for row in mine if row[0] not in self._reservations_begun]
        self._reservations_begun.update(began)
        return began

    def end_call(self, reservations: list[str]) -> None:
        """The call has ended."""
        self._reservations_ended.update(reservations)

    def _look_at_reservations(self) -> None:
        rows = self.read("SELECT lease_epoch || ' ' || id, agent_id, lease_epoch FROM reservations")
        now = {row[0] for row in rows}
        if new := now - self._reservations.keys():
            self.problems += checks.reserved(
                self.read, self.session, new, self._reservations_begun - self._reservations_ended
            )
        self._reservations = {one: self._reservations.get(one, self.steps) for one in now}
        for number, agent, epoch in rows:
            is_old = self.steps - self._reservations[number] > LONGEST_RESERVED
            if not is_old or not self.stores or epoch != self.stores[-1].epoch or self._status() != "running":
                continue
            status = self.read("SELECT status FROM agents WHERE id = ?", agent)[0][0]
            is_over = number in self._reservations_ended or status in (
                "idle",
                "paused",
                "parked",
                "done",
                "failed",
                "cancelled",
            )
            if is_over and number not in self._reservations_begun - self._reservations_ended:
                self.problems.append(
                    f"what call {number} of {agent}, which is {status}, may use stays reserved"
                )

    def _text_of(self, file: str) -> str | None:
        try:
            return (self.folder / "work" / file).read_text()
        except OSError:
            return None

    def _input(self, agent: str, seq: int, use_id: str) -> Any:
        """What the model gave a tool."""
        rows = self.read("SELECT content FROM messages WHERE agent_id = ? AND seq = ?", agent, seq)
        blocks = json.loads(rows[0][0]) if rows else []
        return next(
            (one["input"] for one in blocks if one.get("type") == "tool_use" and one["id"] == use_id), None
        )

    def had_effect(self, number: int, arguments: dict[str, Any]) -> None:
        """A call has had its effect."""
        self.ledger.effects[number] += 1
        self.ledger.inputs[number] = dict(arguments)

    def entered(self, agent: str, workspace: str, shell: int, holds: str) -> None:
        """A command begins in a shell that holds this: the same as when the agent's last one ended, or the agent knows."""
        old_shell, old, told = self._held.get((agent, workspace), (shell, holds, 0))
        if holds != old and self._told(agent) <= told:
            self.problems.append(
                f"{agent} was not told that shell {old_shell}, which held {old}, is gone; {shell} holds {holds}"
            )

    def left(self, agent: str, workspace: str, shell: int, holds: str) -> None:
        """A command has ended in a shell that now holds this."""
        self._held[agent, workspace] = (shell, holds, self._told(agent))

    def _told(self, agent: str) -> int:
        """How often the agent was told that a shell is gone."""
        texts = self.read(
            "SELECT result FROM tool_calls WHERE agent_id = ? AND result LIKE '%our shell was%'"
            " UNION ALL SELECT content FROM messages WHERE agent_id = ? AND role = 'user' AND content LIKE '%our shell was%'",
            agent, agent,
        )  # fmt: skip
        return sum(str(row[0]).count("our shell was") for row in texts)

    def outputs_of(self, task: str) -> list[str]:
        rows = self.read("SELECT expected_outputs FROM tasks WHERE name = ?", task)
        return list(json.loads(rows[0][0] or "[]")) if rows else []

    def open_tasks(self) -> bool:
        return bool(
            self.read(
                "SELECT 1 FROM tasks WHERE status IN ('pending', 'running', 'paused', 'stale') AND session_id = ?",
                self.session,
            )
        )

    @property
    def hosted(self) -> bool:
        """Whether a host runs."""
        return bool(self.stores)

    # --- The run --------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Play the script to its end, then answer and resume until the session ends."""
        with _folder_of(self.script.seed) as self.folder:
            return self._run()

    def _run(self) -> Outcome:
        self.path = self.folder / "run.db"
        shutil.copyfile(_empty_database(), self.path)
        (self.folder / "work" / "sub").mkdir(parents=True)
        (self.folder / "work" / "shared.txt").write_text("one\ntwo\nthree\n")
        environ = {"WATCHKEEPER_CONFIG_DIR": str(self.folder), "XDG_DATA_HOME": str(self.folder)}
        old = {name: os.environ.get(name) for name in environ}
        os.environ.update(environ)
        faultpoints.tell(self._reached)
        self._reader = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, check_same_thread=False)
        try:
            settings = SessionSettings(
                max_parallel=self.script.settings["max_parallel"], allow_models=(f"{programs.NAME}/*",)
            )
            self.session = create_session(
                self.path,
                NewSession(
                    "reach the goal", self.folder / "work", SeededModel.ref, settings, self.script.settings.get("budgets", {})
                ),
                new_id=self.new_id, now=self.clock.now(),
            )  # fmt: skip
            self._live()
            self._look_back()
        finally:
            faultpoints.tell(None)
            self._reader.close()
            for name, value in old.items():
                os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
        return Outcome(list(dict.fromkeys(self.problems)), self.history, self.steps, self.kinds)

    def _live(self) -> None:
        """Hosts, one after the other, until the session has ended and nothing is left to happen."""
        for _ in range(MOST_HOSTS):
            if self.problems:
                return
            self._host(None)
            while not self.quiet and self._status() == "paused":
                if not self._happen():
                    self._be_quiet()
                    break
                self._host_for_command()
                if self._resumes.random() < self.script.settings.get("resumes", 0.0):
                    break
            if self._status() in ("done", "failed", "cancelled"):
                if self.quiet:
                    return
                while self._happen():
                    self._host_for_command()
                self._be_quiet()
                if self._status() in ("done", "failed", "cancelled"):
                    return
            self._answer()
        self.problems.append(f"the session is {self._status()} after {MOST_HOSTS} hosts: {self._why()}")

    def _host_for_command(self) -> None:
        """As a person's shell does: a host of its own for a command that an ended session can take."""
        rows = self.read(
            "SELECT id, kind FROM commands WHERE status = 'queued' AND session_id = ? ORDER BY id DESC",
            self.session,
        )
        if rows and rows[0][1] in control.WITHOUT_HOST and self._status() != "running":
            self._host(rows[0][0])

    def _status(self) -> str:
        return str(self.read("SELECT status FROM sessions WHERE id = ?", self.session)[0][0])

    def _why(self) -> str:
        return str(self.read("SELECT status_reason FROM sessions WHERE id = ?", self.session)[0][0])

    def _be_quiet(self) -> None:
        if not self.quiet:
            self.quiet, self._ended_at = True, self.steps + QUIET_STEPS
            self.crash_at = None
            self.say("nothing more goes wrong, and people answer")

    def _happen(self) -> bool:
        """Let the next thing of the script happen now; False if there is none."""
        if self._next >= len(self.script.happenings):
            return False
        one = self.script.happenings[self._next]
        self._next += 1
        self.kinds[one.kind] += 1
        HAPPENINGS[one.kind](self, random.Random(one.seed))
        return True

    def _tick(self) -> None:
        """Before each step of the event loop."""
        if self._crashed:
            raise Crash
        self.steps += 1
        while (
            self._next < len(self.script.happenings) and self.script.happenings[self._next].step <= self.steps
        ):
            self._happen()
        if not self.quiet and self._next >= len(self.script.happenings):
            self._be_quiet()
        if self.quiet:
            if self.steps % 40 == 0:
                self._answer()
            if self._ended_at is not None and self.steps > self._ended_at:
                self.problems.append(
                    f"it has not ended {QUIET_STEPS} steps after the last fault: {self._stand()}"
                )
                self._crashed = True
                raise Crash

    def _stand(self) -> str:
        """Where everything stands, for a run that does not end."""
        tasks = self.read(
            "SELECT name, status, status_reason FROM tasks WHERE session_id = ? ORDER BY name", self.session
        )
        everyone = self.read(
            "SELECT name, status, status_reason FROM agents WHERE status NOT IN ('done', 'cancelled') AND session_id = ?",
            self.session,
        )
        return f"session {self._status()}: {self._why()}; tasks {tasks}; agents {everyone}"

    def _answer(self) -> None:
        """What people do once nothing goes wrong any more: they approve what is asked, resume what is paused, and lift
        budgets."""
        for (number,) in self.read(
            "SELECT id FROM approvals WHERE status = 'waiting' AND session_id = ? ORDER BY id", self.session
        ):
            if not self._is_queued("approve"):
                self.ask("approve", payload={"approval": number})
        for kind, task in self.read(
            "SELECT kind, task_id FROM budgets WHERE session_id = ? ORDER BY kind", self.session
        ):
            if not self._is_queued("set_budget"):
                self.ask("set_budget", task_id=task, payload={"kind": kind, "amount": None})
        for agent, _ in self.read(
            "SELECT id, name FROM agents WHERE status = 'paused' AND session_id = ? ORDER BY id", self.session
        ):
            if self.hosted and not self._is_queued("resume"):
                self.ask("resume", agent_id=agent)
        if self._status() == "paused" and "steer it" in self._why() and not self._is_queued("steer"):
            planner = self.read("SELECT planner_agent_id FROM sessions WHERE id = ?", self.session)[0][0]
            self.ask("steer", agent_id=planner, payload={"text": "Please finish."})

    def _is_queued(self, kind: str) -> bool:
        return bool(
            self.read(
                "SELECT 1 FROM commands WHERE status = 'queued' AND kind = ? AND session_id = ?",
                kind,
                self.session,
            )
        )

    # --- One host -------------------------------------------------------------------------------------------

    def _host(self, once: int | None) -> None:
        loop = SeededLoop(self._order, self.clock.seconds, self._tick)
        loop.set_exception_handler(self._stray)
        self.clock.loop, self._crashed = loop, False
        self.say("a host begins" + (f" for command {once}" if once is not None else ""))
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._life(once))
            if self.second_host is not None:
                loop.run_until_complete(self.second_host)
        except Crash:
            pass
        except Stuck:
            self.problems.append(f"every part of the host waits, for ever: {self._stand()}")
        except LeaseLost as lost:
            self.say(f"the host ends: {lost}")
            self._second_alone(loop)
        except (BadInput, StoreUnusable) as error:
            self.say(f"the host ends: {error}")
        except Exception as error:
            self.problems.append(f"the host fails: {error!r}")
        finally:
            self._drop(loop)

    def _second_alone(self, loop: SeededLoop) -> None:
        """The first host has noticed that it lost the session; the second one goes on."""
        if self.second_host is not None:
            try:
                loop.run_until_complete(self.second_host)
            except Crash:
                pass
            except Exception as error:
                self.problems.append(f"the second host fails: {error!r}")

    async def _life(self, once: int | None) -> None:
        config = Config.model_validate({"memory": self.script.settings["memory"], "containment": "register"})
        store = CheckedStore.claim(
            self.path, self.session, self.clock, pid=os.getpid(), host_name="simulated", threaded=False
        )
        assert isinstance(store, CheckedStore)
        store.world = self
        newest = queue.newest(checks.Rows(self.read), self.session)
        self.stores.append(store)
        try:
            assembled = await assemble(
                store, self.clock, model=SeededModel(self), new_id=self.new_id, config=config, once=once,
                machine=Machine(
                    watch=lambda path, session_id, *, on_command, on_failure: _Watch(self, on_command), rng=self._order,
                    start_worker=partial(SimulatedWorker.start, self), programs=lambda settings: simulated_programs(self),
                    tool_server=SimulatedToolServer,
                ),
            )  # fmt: skip
            environment, own = assembled.host.environment, simulated_tools(self)
            assert isinstance(assembled.tool_server, SimulatedToolServer)
            self.tool_server = assembled.tool_server
            names, permission = environment.tools_of, environment.permission
            environment.tools = {**environment.tools, **own}
            environment.tools_of = lambda role: [*names(role), *own] if role != "planner" else names(role)
            environment.permission = lambda name: own[name].permission if name in own else permission(name)
            try:
                ended = await assembled.host.run(resume=True)
                self.say(f"the host of epoch {store.epoch} ends: {ended.status}, {ended.reason}")
            finally:
                await assembled.aclose()
        finally:
            store.close()
            if store in self.stores:
                self.stores.remove(store)
        self.problems += checks.left_over(self.read, self.session, store.epoch, newest)

    def _drop(self, loop: SeededLoop) -> None:
        """Everything in the memory of the machine is gone; its files are as they were last committed."""
        self.clock.seconds, self.clock.loop = loop.time(), None
        left = asyncio.all_tasks(loop)
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        _GRAVEYARD.extend([loop, *left])
        asyncio.set_event_loop(None)
        for store in self.stores:
            with contextlib.suppress(Exception):
                store.writer.connection.close()
            store.connection.close()
            store._lease.release()
        self.stores.clear()
        self.watches.clear()
        self.workers.clear()
        self.second_host = None
        self._crashed = False

    def _stray(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self._crashed and not isinstance(error, Crash):
            self.problems.append(f"{context.get('message')}: {error!r}")

    def _reached(self, point: str) -> None:
        """At each fault point: a crash, if the script says so; after a commit, the checks."""
        if self._crashed:
            raise Crash
        if self.crash_at is not None and self.hosted and not self._checking:
            name, left = self.crash_at
            if point == name or name == "any":
                self.crash_at = (name, left - 1) if left > 1 else None
                if left <= 1:
                    self.crash(f"at {point}")
        if point.endswith("after_commit") and not self._checking:
            self._checking = True
            try:
                self.problems += checks.after_commit(self.read, self._before, self.refused_starts)
                self.problems += self._log.follow(self.session)
                now = {agent: self.clock.monotonic() for agent in self._log.ended}
                self._ended_agents = now | {one: at for one, at in self._ended_agents.items() if one in now}
                self.note_questions()
                self._look_at_reservations()
            finally:
                self._checking = False

    def _look_back(self) -> None:
        """The checks of the end, and the history."""
        with contextlib.suppress(sqlite3.Error):
            self._checking = True
            if not self.problems:
                self.problems += checks.at_end(self.read, self.session, self.ledger)
            self._checking = False
        for seq, at, kind, data in self.read(
            "SELECT seq, at, kind, data FROM events WHERE session_id = ? ORDER BY seq", self.session
        ):
            self.history.append(f"  event {seq} at {at - SeededClock.START:.3f}: {kind} {data}")


def play(script: Script) -> Outcome:
    """Play a script. A step that spins for ever is a problem too."""
    world = World(script)

    def spins(signal_number: int, frame: Any) -> None:
        where = [f"{each.name} of {Path(each.filename).name}" for each in traceback.extract_stack(frame)[-4:]]
        world.problems.append(f"a step of the event loop does not end ({', '.join(where)})")
        raise Crash

    old = signal.signal(signal.SIGPROF, spins)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_SECONDS)
    try:
        return world.run()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without what Python says of coroutines that a crash left behind."""
    import sys

    hook = sys.unraisablehook
    sys.unraisablehook = lambda found: None
    try:
        yield
    finally:
        sys.unraisablehook = hook
