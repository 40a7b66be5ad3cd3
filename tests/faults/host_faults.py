"""The machine runs out of something at the n-th call: the run ends done, or paused and a resume ends it.

    python -m tests.faults.host_faults # every kind: each n to 100, then a seeded tenth python -m
    tests.faults.host_faults --kind open --seed 3 # one kind python -m tests.faults.host_faults --sample 50
    --forked # what the tests run

A planner, two coders side by side and one that joins them write, edit, read, search and run commands, each
with an effect in a ledger outside of everything. In one trial the n-th call of its kind fails, of the host
and of its tools' workers together, counted from the run's first step; in another all calls from the n-th on
fail, until the session is resumed. A trial ends done, or paused with exit code 5 and one line; then the
session is resumed on a machine that has all it needs, which ends done. Nothing is lost, no effect is had
twice, and no shortage is ever given to the model as a tool's result.

With `--forked` the workers are forked from this process instead of started: the same code, without the
seconds in which a new one imports the SDK.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from tests.faults import oracle
from tests.faults.history import record_here, record_into, violations
from tests.faults.shortages import NEVER, Kind, Shortage
from tests.support.scripted import PlannedRun, ScriptedModel, call, flat, last_results, said, task

from watchkeeper.records import errors
from watchkeeper.records.messages import ModelEvent, ModelRequest
from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session
from watchkeeper.store import database

ROOT = Path(__file__).parents[2]
PRELOADED = (
    "anthropic.lib.tools.agent_toolset", "anyio._backends._asyncio", "genai_prices.data", "jsonschema", "sqlite_utils", "yaml",
    "watchfiles", "watchkeeper.agents.tools.worker", "watchkeeper.agents.tools.worker_files",
    "watchkeeper.agents.tools.worker", "watchkeeper.cli.app", "watchkeeper.cli.headless", "watchkeeper.cli.run",
    "watchkeeper.runtime.host_factory", "watchkeeper.runtime.run_session",
)  # fmt: skip
EACH = 100
"""Up to this call, each is tried; of those after it, a tenth."""
LONGEST_SECONDS = 60.0
EFFECTS = ("left-1", "right-1", "join-1")
KEPT = "a line that was there before\n" * 20


# --- the run ------------------------------------------------------------------------------------------------


class Work:
    """What each coder does, step by step; an unknown outcome is looked into, and what is missing is done
    again."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger

    def __call__(self, name: str, request: ModelRequest) -> Any:
        text = flat(request.messages)
        results = last_results(request)
        unknown = [one["tool_use_id"] for one in results if "outcome unknown" in str(one["content"])]
        if unknown:
            return [self._look(name, use.split("/")[1], len(text)) for use in unknown]
        lost = [one["tool_use_id"].split("/") for one in results if "[not run]" in str(one["content"])]
        if lost:  # the shell of an earlier host
            return [
                self._look(name, use[1], len(text))
                if "look" in use
                else self._do(name, use[1], f"/{len(text)}")
                for use in lost
            ]
        missing = re.findall(r"missing (\S+)", " ".join(str(one["content"]) for one in results))
        if missing:
            return [self._do(name, label, f"/{len(text)}") for label in missing]
        step = max((int(found) for found in re.findall(rf"\[{name} (\d+)\]", text)), default=-1) + 1
        blocks = self._step(name, step)
        return [said(f"[{name} {step}] " + ("" if blocks else "done")), *blocks]

    def _step(self, name: str, step: int) -> list[dict[str, Any]]:
        if step == 0:
            return [
                call("write", {"file_path": f"{name}.txt", "content": f"{name}\nEND\n"}, f"{name}/write"),
                call("read", {"file_path": "kept.txt"}, f"{name}/read"),
                call("grep", {"pattern": "there before", "path": "kept.txt"}, f"{name}/grep"),
            ]
        if step == 1:
            return [self._do(name, f"{name}-1"), self._do(name, f"edit-{name}")]
        return []

    def _do(self, name: str, label: str, again: str = "") -> dict[str, Any]:
        if label.startswith("edit-"):
            edit = {"file_path": f"{name}.txt", "old_string": "END", "new_string": f"{label}\nEND"}
            return call("edit", edit, f"{name}/{label}{again}")
        return call("bash", {"command": f"echo {label} >> '{self._ledger}'"}, f"{name}/{label}{again}")

    def _look(self, name: str, label: str, mark: int) -> dict[str, Any]:
        place = f"{name}.txt" if label.startswith("edit-") else self._ledger
        look = f"grep -qx '{label}' '{place}' && echo there || echo missing {label}"
        return call("bash", {"command": look}, f"{name}/{label}/look/{mark}")


PLAN = [
    task("left", role="coder"),
    task("right", role="coder"),
    task("join", needs=("left", "right"), role="coder"),
]


class Model(ScriptedModel):
    """The script, which begins the counting with its first call."""

    def __init__(self, ledger: Path, shortage: Shortage) -> None:
        super().__init__(PlannedRun(PLAN, Work(ledger)))
        self._shortage = shortage

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self._shortage.arm()
        async for event in super().stream(request):
            yield event


# --- one trial ----------------------------------------------------------------------------------------------


@dataclass
class Trial:
    """A run in a folder of its own, in which calls of one kind fail from `first` to `last`."""

    kind: Kind
    first: int
    last: int
    folder: Path
    forked: bool
    count: int = 0
    """How many calls of the kind the run made until it ended or paused."""
    code: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.kind} {self.first}" + ("" if self.last == self.first else " and all after it")

    def run(self) -> Trial:
        """The whole trial; what is wrong is in `problems`."""
        workspace, config = self.folder / "workspace", self.folder / "config"
        workspace.mkdir(parents=True)
        config.mkdir()
        (workspace / "kept.txt").write_text(KEPT)
        path = self.folder / "w.db"
        wanted = NewSession(
            "goal", workspace, "test/scripted", SessionSettings(allow=("bash", "write", "edit"))
        )
        session = create_session(path, wanted)
        shortage = Shortage(self.folder / "counts", self.kind)
        shortage.plan(self.first, self.last)
        self.code = self._drive(session, shortage, "first")
        self.count = shortage.count
        said_by_it = (self.folder / "first.err").read_text()
        lines = said_by_it.splitlines()
        if self.code == 5:
            if len(lines) != 1 or not lines[0].startswith("wk: ") or "resume" not in lines[0]:
                self.problems.append(f"it said {said_by_it!r}")
            again = self._drive(session, None, "second")
            if again != 0:
                self.problems.append(
                    f"its resume ended with {again}: {(self.folder / 'second.err').read_text()[-600:]}"
                )
        elif self.code != 0:
            self.problems.append(f"it ended with {self.code}: {said_by_it[-600:]}")
        elif lines and not (len(lines) == 1 and lines[0].startswith("wk: cannot show the result")):
            self.problems.append(f"it said {said_by_it[-600:]!r}")
        self._judge(path)
        return self

    def _drive(self, session: str, shortage: Shortage | None, name: str) -> int:
        """`wk resume` in a process of its own; its exit code, or minus the signal that ended it."""
        out, err = (
            os.open(self.folder / f"{name}.{end}", os.O_WRONLY | os.O_CREAT, 0o600) for end in ("out", "err")
        )
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.dup2(out, 1)
            os.dup2(err, 2)
            self._be_wk(session, shortage)
        os.close(out)
        os.close(err)
        deadline = time.monotonic() + LONGEST_SECONDS
        while time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return -signal.SIGALRM

    def _be_wk(self, session: str, shortage: Shortage | None) -> NoReturn:
        code = 99
        try:
            from watchkeeper.cli.app import run
            from watchkeeper.runtime import host_factory

            os.environ["WATCHKEEPER_CONFIG_DIR"] = str(self.folder / "config")
            record_here()
            record_into(self.folder / "history")
            errors.RETRY_SECONDS = (0.01, 0.02, 0.05)
            model = Model(self.folder / "ledger", shortage or Shortage(self.folder / "no counts", self.kind))
            setattr(host_factory, "resolve", lambda *_, **__: model)  # noqa: B010
            faulthandler.dump_traceback_later(LONGEST_SECONDS - 5)
            if self.forked:
                _fork_workers()
            elif shortage is not None:
                self._reach_workers()
            if shortage is not None:
                shortage.install()
            code = run(["resume", session, "--headless", "--db", str(self.folder / "w.db")])
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reach_workers(self) -> None:
        """Let workers, which are new processes, install the same shortage when they start."""
        program = (
            "from pathlib import Path\nfrom tests.faults.shortages import Kind, Shortage\n"
            f"Shortage(Path({str(self.folder / 'counts')!r}), Kind({str(self.kind)!r})).install()\n"
        )
        (self.folder / "site").mkdir()
        (self.folder / "site" / "sitecustomize.py").write_text(program)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(self.folder / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        )

    def _judge(self, path: Path) -> None:
        with closing(database.open_readonly(path)) as connection:

            def read(sql: str, *parameters: Any) -> list[Any]:
                return [tuple(row) for row in connection.execute(sql, parameters).fetchall()]

            self.problems += oracle.problems_of(read)
            self.problems += violations(self.folder / "history", path)
            failed = read(
                "SELECT kind, data FROM events WHERE kind IN ('tool.error', 'task.failed', 'agent.failed',"
                " 'model.error')"
            )
            self.problems += [
                f"the model was told: {kind} {data[:300]}"
                for kind, data in failed
                if "Your shell was restarted" not in data
            ]
            if set(read("SELECT name, status, attempt FROM tasks")) != {
                (one["name"], "done", 1) for one in PLAN
            }:
                self.problems.append("a task is not done at its first attempt")
        ledger = self.folder / "ledger"
        had = Counter(ledger.read_text().split()) if ledger.exists() else Counter()
        if had != Counter(EFFECTS):
            self.problems.append(f"effects {dict(had)}")
        for name in ("left", "right", "join"):
            file = self.folder / "workspace" / f"{name}.txt"
            if (held := file.read_text() if file.exists() else None) != f"{name}\nedit-{name}\nEND\n":
                self.problems.append(f"{name}.txt holds {held!r}")
        if (self.folder / "workspace" / "kept.txt").read_text() != KEPT:
            self.problems.append("kept.txt has changed")


def _fork_workers() -> None:
    """Let `asyncio` fork this process where it would start a worker, and be one."""
    import _posixsubprocess
    import subprocess

    real = _posixsubprocess.fork_exec

    def fork_exec(arguments: Any, *rest: Any) -> int:
        if b"watchkeeper.agents.tools.worker" not in [os.fsencode(one) for one in arguments]:
            return int(real(arguments, *rest))
        environment = rest[4]
        stdin, stdout, stderr = rest[5], rest[8], rest[10]
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            for descriptor, number in ((stdin, 0), (stdout, 1), (stderr, 2)):
                os.dup2(descriptor, number)
            _be_worker([os.fsdecode(one) for one in arguments], environment)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(99)

    _posixsubprocess.fork_exec = fork_exec
    for name in ("_fork_exec", "fork_exec"):
        if hasattr(subprocess, name):
            setattr(subprocess, name, fork_exec)


def _be_worker(arguments: list[str], environment: Any) -> None:
    from watchkeeper.agents.tools import worker

    asyncio.events._set_running_loop(None)
    asyncio.set_event_loop_policy(None)
    keep = {int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2 and _is_counts(int(name))}
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            with suppress(OSError):
                os.close(int(name))
    os.environ.clear()
    os.environ.update(
        {os.fsdecode(one).partition("=")[0]: os.fsdecode(one).partition("=")[2] for one in environment}
    )
    os.chdir("/")
    sys.argv = ["worker", *arguments[arguments.index("watchkeeper.agents.tools.worker") + 1 :]]
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    worker.main()


def _is_counts(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").endswith("counts")
    except OSError:
        return False


# --- the sweep ----------------------------------------------------------------------------------------------


def which(count: int, seed: int) -> Iterator[tuple[int, int]]:
    """The calls that fail, first and last, of a run that makes so many: each to `EACH`, then a tenth; once,
    and from there on."""
    rng = random.Random(f"which {seed}")
    numbers = [n for n in range(1, count + 1) if n <= EACH or rng.random() < 0.1]
    for number in numbers:
        yield number, number
        yield number, NEVER


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kind", type=Kind, action="append", choices=list(Kind))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--call", type=int, action="append", help="only the n-th call (repeatable)")
    parser.add_argument("--sample", type=int, help="so many trials of all, drawn by the seed")
    parser.add_argument("--forked", action="store_true", help="fork the workers instead of starting them")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--keep", type=Path, help="where the folders of trials that failed are left")
    options = parser.parse_args()
    for name in PRELOADED:
        import_module(name)
    from watchkeeper.memory.tokens import default_counter

    default_counter().count("warm")
    began, failed, codes = time.monotonic(), 0, Counter[int]()
    # Trials fork, so each runs in a process with one thread.
    pool = ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("fork"))
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as scratch, pool:

        def trial(kind: Kind, first: int, last: int) -> Trial:
            folder = Path(scratch) / f"{kind}-{first}-{'on' if last == NEVER else 'once'}"
            return Trial(kind, first, last, folder, options.forked)

        trials: list[Trial] = []
        for undisturbed in pool.map(
            Trial.run, [trial(kind, NEVER - 1, NEVER - 1) for kind in options.kind or Kind]
        ):
            if undisturbed.problems or undisturbed.code:
                raise SystemExit(f"the undisturbed run is not sound: {undisturbed.problems}")
            shutil.rmtree(undisturbed.folder)
            print(f"{undisturbed.kind}: {undisturbed.count} calls", flush=True)
            wanted = which(undisturbed.count, options.seed)
            trials += [
                trial(undisturbed.kind, *one) for one in wanted if not options.call or one[0] in options.call
            ]
        if options.sample:
            trials = random.Random(options.seed).sample(trials, min(options.sample, len(trials)))
        for done in pool.map(Trial.run, trials):
            codes[done.code] += 1
            failed += bool(done.problems)
            if done.problems:
                print(f"{done.name}: exit {done.code};", *done.problems, flush=True)
                if options.keep is not None:
                    shutil.copytree(done.folder, options.keep / done.folder.name, dirs_exist_ok=True)
            shutil.rmtree(done.folder, ignore_errors=True)
    seconds = time.monotonic() - began
    print(
        f"{codes.total()} trials in {seconds:.0f} s: {codes[0]} done, {codes[5]} paused and resumed,"
        f" {failed} failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
