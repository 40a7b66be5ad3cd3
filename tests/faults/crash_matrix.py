"""The crash matrix: SIGKILL at every named fault point × n-th hit, and at random times; then resume, and
judge the end.

    python -m tests.faults.crash_matrix                       the full matrix: every scene, point and hit
    python -m tests.faults.crash_matrix --every 10            each tenth hit only
    python -m tests.faults.crash_matrix --random 50 --seed 1  up to four kills a trial, at random points and moments
    python -m tests.faults.crash_matrix --scene fork          one scene
    python -m tests.faults.crash_matrix --db scratch          on PostgreSQL: a server that is started for it, or the
                                                              one of an address, where each trial has a database

Every trial is processes of its own, forked from one that has imported everything. Prints one line of JSON for
each trial that failed, one line for each point, and last the count of trials.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.faults import oracle, scenario
from tests.faults.history import record_here, record_into, violations
from tests.faults.scene import Scene
from tests.support.postgres import FolderDatabases, server_for_trials

from watchkeeper.store import faultpoints

LONGEST_SECONDS = 60.0
"""A process that takes longer hangs."""

KILLED = -signal.SIGKILL


class Run(Scene):
    """A whole run of agents; see `scenario`."""

    def __init__(self, memory: str) -> None:
        self.name = f"run-{memory}"
        self._memory = memory
        self.on_server = self.has_hosts = True

    def prepare(self, folder: Path) -> None:
        (folder / "config").mkdir()
        (folder / "config" / "config.toml").write_text(f'memory = "{self._memory}"\n')
        (folder / "workspace").mkdir()

    def work(self, folder: Path) -> int:
        os.environ["WATCHKEEPER_CONFIG_DIR"] = str(folder / "config")
        return asyncio.run(scenario.run(self.place(folder), folder / "workspace"))

    def look(self, folder: Path) -> oracle.Outcome:
        return oracle.look(self.place(folder), folder)

    def judge(self, reference: Any, folder: Path) -> list[str]:
        return oracle.judge(reference, self.place(folder), folder)


def scenes() -> list[Scene]:
    """All of them."""
    from tests.agents.scene import MergeRun, ProgramRun
    from tests.faults.store_scenes import store_scenes

    return [Run("summary"), Run("observational"), ProgramRun(), MergeRun(), *store_scenes()]


# --- processes ----------------------------------------------------------------------------------------------


def forked(work: Callable[[], int], log: Path, *, kill_after: float | None = None) -> int:
    """Run `work` in a child; returns its exit code, or `KILLED`. It is killed after so many seconds, if
    given."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + (LONGEST_SECONDS if kill_after is None else kill_after)
    pause = 0.002
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            if kill_after is None:
                raise TimeoutError(f"it hung for {LONGEST_SECONDS:g} s")
            return KILLED
        time.sleep(pause)


@dataclass
class Bench:
    """Where the trials of one scene happen."""

    scene: Scene
    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self._clean = self.folder / "clean"
        self._clean.mkdir()
        self._databases = self.scene.databases
        if self._databases is not None:
            self._databases.make(self._clean)
        os.environ["XDG_DATA_HOME"] = str(self._clean / "data")
        record_into(None)
        if forked(lambda: self.scene.prepare(self._clean) or 0, self.folder / "prepare.log"):
            raise SystemExit(
                f"{self.scene.name} cannot be prepared: {(self.folder / 'prepare.log').read_text()[-2000:]}"
            )
        undisturbed = self._fresh("undisturbed")
        counts = undisturbed / "hits.json"

        def counted() -> int:
            hits: Counter[str] = Counter()
            faultpoints.tell(lambda point: hits.update([point]))
            code = self.scene.work(undisturbed)
            counts.write_text(json.dumps(hits))
            return code

        began = time.monotonic()
        code = forked(counted, undisturbed / "log")
        self.seconds = time.monotonic() - began
        if code:
            raise SystemExit(
                f"{self.scene.name} fails undisturbed: {code} {(undisturbed / 'log').read_text()[-2000:]}"
            )
        self.hits: dict[str, int] = json.loads(counts.read_text())
        self.reference = self.scene.look(undisturbed)
        if wrong := self._judge(undisturbed):
            raise SystemExit(f"{self.scene.name} is not sound undisturbed: {wrong}")

    def _fresh(self, name: str) -> Path:
        place = self.folder / name
        shutil.copytree(self._clean, place)
        if self._databases is not None:
            self._databases.make(place, like=self._clean)
        os.environ["XDG_DATA_HOME"] = str(place / "data")
        record_into(place / "history")
        return place

    def _judge(self, place: Path) -> list[str]:
        found = self.scene.judge(self.reference, place)
        return found + (
            violations(place / "history", self.scene.place(place)) if self.scene.has_hosts else []
        )

    def _worked(self, place: Path, fault: str | None = None, seconds: float | None = None) -> int:
        """Work to the end, or to a kill; the exit code."""
        code = forked(lambda: self._armed(place, fault), place / "log", kill_after=seconds)
        if code == KILLED and self._databases is not None:
            self._databases.free_leases(place)
        return code

    def trial(self, name: str, kills: list[tuple[str | None, float | None]]) -> tuple[int, list[str]]:
        """Kill the work by each of `kills` in turn (a fault specification, or seconds), then let it end.

        Returns how many kills met it, and what is wrong with the end.
        """
        place, met = self._fresh(name), 0
        try:
            code = KILLED
            for fault, seconds in kills:
                code = self._worked(place, fault, seconds)
                met += code == KILLED
                if code != KILLED:
                    break
            if code == KILLED:
                code = self._worked(place)
            problems = [] if code == 0 else [f"exit {code}: {(place / 'log').read_text()[-600:]}"]
            problems += self._judge(place)
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        if not problems:
            shutil.rmtree(place)
            if self._databases is not None:
                self._databases.drop(place)
        return met, problems

    def _armed(self, place: Path, fault: str | None) -> int:
        faultpoints.arm(fault)
        return self.scene.work(place)


# --- the matrix ---------------------------------------------------------------------------------------------


@dataclass
class Count:
    """Trials so far."""

    trials: int = 0
    kills: int = 0
    failed: int = 0

    def add(self, where: dict[str, Any], met: int, problems: list[str]) -> None:
        self.trials += 1
        self.kills += met
        self.failed += bool(problems)
        if problems:
            print(json.dumps(where | {"problems": problems}), flush=True)


def matrix(bench: Bench, count: Count, every: int, only: str | None) -> None:
    """Every point × each `every`-th hit; beyond the hits of the undisturbed run until one is not met."""
    for point, hits in sorted(bench.hits.items()):
        if only is not None and not fnmatch(point, only):
            continue
        tried, hit, met = 0, 1 + (hits // 2) % every if every > 1 else 1, 1
        while hit <= hits or (met and every == 1 and hit < 2 * hits + 20):
            met, problems = bench.trial(f"{point}-{hit}", [(f"{point}:{hit}", None)])
            if met or problems:
                count.add({"scene": bench.scene.name, "point": point, "hit": hit}, met, problems)
                tried += 1
            hit += every
        print(f"{bench.scene.name}: {point}: {tried} trials ({hits} hits undisturbed)", flush=True)


def random_trials(bench: Bench, count: Count, trials: int, seed: int) -> None:
    """Up to four kills a trial, at random points and at random moments."""
    rng = random.Random(f"{bench.scene.name} {seed}")
    points = sorted(bench.hits)
    for number in range(trials):
        kills: list[tuple[str | None, float | None]] = []
        for _ in range(rng.randint(1, 4)):
            if rng.random() < 0.5:
                point = rng.choice(points)
                kills.append((f"{point}:{rng.randint(1, bench.hits[point])}", None))
            else:
                kills.append((None, rng.uniform(0.0, 1.1 * bench.seconds)))
        met, problems = bench.trial(f"random-{number}", kills)
        count.add({"scene": bench.scene.name, "seed": seed, "random": number, "kills": kills}, met, problems)
    print(f"{bench.scene.name}: {trials} random trials", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="try each n-th hit only")
    parser.add_argument(
        "--random", type=int, default=0, metavar="N",
        help="N trials a scene with random kills, in place of the matrix",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scene", action="append", help="only this scene (may be given several times)")
    parser.add_argument("--point", help="only this fault point, or those of a pattern such as 'program.*'")
    parser.add_argument("--keep", type=Path, help="an empty folder for the files of failed trials")
    parser.add_argument("--db", metavar="URL", help="a server of PostgreSQL, or `scratch`")
    options = parser.parse_args()
    from watchkeeper.memory.tokens import default_counter

    default_counter().count("warm")  # once, for all the children
    record_here()
    count, began = Count(), time.monotonic()
    # A killed process loses nothing that it gave to the system, so memory will do for a disk, and is faster.
    memory = Path("/dev/shm")
    with (
        server_for_trials(options.db) as server,
        tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name,
        contextlib.ExitStack() as over,
    ):
        if server is not None:
            Scene.databases = FolderDatabases(server)
            over.callback(Scene.databases.close)
        for scene in scenes():
            if options.scene and scene.name not in options.scene:
                continue
            if server is not None and not scene.on_server:
                continue
            place = (options.keep or Path(name)) / scene.name
            place.parent.mkdir(parents=True, exist_ok=True)
            bench = Bench(scene, place)
            print(
                f"{scene.name}: undisturbed in {bench.seconds:.1f} s, {sum(bench.hits.values())} hits",
                flush=True,
            )
            if options.random and scene.random:
                random_trials(bench, count, options.random, options.seed)
            elif not options.random:
                matrix(bench, count, options.every, options.point)
    seconds = time.monotonic() - began
    print(f"{count.trials} trials, {count.kills} kills, {count.failed} failed, {seconds:.0f} s", flush=True)
    return 1 if count.failed or not count.trials else 0


if __name__ == "__main__":
    sys.exit(main())
