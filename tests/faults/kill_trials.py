"""Kill the host with SIGKILL, resume it until it is done, and hold the end against an uninterrupted run.

    python -m tests.faults.kill_trials --workspace DIR --trials 50 [--seed 1]     random moments
    python -m tests.faults.kill_trials --workspace DIR --matrix                  every fault point, every hit
    python -m tests.faults.kill_trials --workspace DIR --db scratch              on PostgreSQL: a server that is started
                                                                                 for it, or the one of an address

Every process records its history, which is checked (`history`). Prints each trial, and their count with the number that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import oracle
from tests.faults.history import recorded, violations
from tests.support.postgres import FolderDatabases, server_for_trials

from watchkeeper.store.place import Place

POINTS = ("writer.before_commit", "writer.after_commit", "model.replied", "tool.before_run", "tool.after_run")
ARTIFACTS = ("SURVEY.md", "survey.json")
KILLED = -signal.SIGKILL
LEASE_SECONDS = 2.0
"""On PostgreSQL: a resume waits as long for a host that was killed."""


def wk(*arguments: str, fault: str = "", history: Path | None = None) -> subprocess.Popen[bytes]:
    """The command line in a process of its own, with a fault point armed; it records its history in the folder."""
    command = [sys.executable, "-m", "watchkeeper", *arguments]
    environment = os.environ | {"WATCHKEEPER_FAULT": fault, "WATCHKEEPER_LEASE_SECONDS": str(LEASE_SECONDS)}
    if history is not None:
        environment = recorded(history, environment)
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


@dataclass
class Outcome:
    """How one run ended: what must not depend on kills, and what must hold of its file."""

    artifacts: dict[str, bytes]
    tasks: list[tuple[Any, ...]]
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Trial:
    """The database of one trial, and the folder in which its processes record their history."""

    place: Place
    history: Path

    @classmethod
    def in_folder(cls, folder: Path, databases: FolderDatabases | None = None) -> Trial:
        """Make the folder, and its database on the server if there is one."""
        folder.mkdir()
        if databases is not None:
            databases.make(folder)
        return cls(databases.of(folder) if databases else folder / "run.db", folder / "history")


def begin(workspace: Path, trial: Trial, fault: str = "") -> subprocess.Popen[bytes]:
    """Begin the run, or resume it if it has begun."""
    begun = has_session(trial.place)
    wanted = ("resume", "last") if begun else ("demo", "--speed", "max", "--workspace", str(workspace))
    name = str(getattr(trial.place, "dsn", trial.place))
    return wk(*wanted, "--headless", "--json", "--db", name, fault=fault, history=trial.history)


def artifacts_of(read: oracle.Read, session: str) -> dict[str, bytes]:
    """What a survey is to make."""
    rows = read(
        "SELECT o.name, a.encoding, a.data FROM outputs o JOIN artifacts a ON a.digest = o.digest"
        " WHERE o.session_id = ? ORDER BY o.id",
        session,
    )
    return {
        name: zlib.decompress(data) if encoding == "zlib" else bytes(data)
        for name, encoding, data in rows
        if name in ARTIFACTS
    }


def look(trial: Trial) -> Outcome:
    """Read the end state, and check what must hold of any database, and the history."""
    with oracle.reading(trial.place) as read:
        problems = list(oracle.problems_of(read))
        tasks = read("SELECT name, status, attempt, result FROM tasks ORDER BY name")
        if any(task[1:3] != ("done", 1) for task in tasks):
            problems.append("a task is not done at attempt 1")
        found = {
            name: data
            for row in read("SELECT id FROM sessions")
            for name, data in artifacts_of(read, row[0]).items()
        }
    if set(found) != set(ARTIFACTS):
        problems.append("artifacts are missing")
    problems += violations(trial.history, trial.place)
    return Outcome(found, tasks, problems)


def undisturbed(workspace: Path, trial: Trial) -> tuple[Outcome, float]:
    """The run that nobody kills, and how long it takes."""
    began = time.monotonic()
    process = begin(workspace, trial)
    _, errors = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"the undisturbed run failed with {process.returncode}: {errors.decode()[-500:]}")
    return look(trial), time.monotonic() - began


def finish(trial: Trial, process: subprocess.Popen[bytes], workspace: Path) -> tuple[int, str]:
    """Resume after a kill until the run ends by itself; returns the last exit code and what it said."""
    _, errors = process.communicate()
    while process.returncode == KILLED:
        process = begin(workspace, trial)
        _, errors = process.communicate()
    return process.returncode, errors.decode()[-300:]


def has_session(place: Place) -> bool:
    if isinstance(place, Path):
        if not place.exists() or not place.stat().st_size:
            return False
        with oracle.reading(place) as read:
            if not read("SELECT 1 FROM sqlite_master WHERE name = 'sessions'"):
                return False
    with oracle.reading(place) as read:
        return bool(read("SELECT 1 FROM sessions"))


def judge(reference: Outcome, trial: Trial, code: int, said: str) -> list[str]:
    """What is wrong with the end of a run that was killed; nothing, if all is well."""
    ended = look(trial)
    problems = list(ended.problems)
    if code != 0:
        problems.append(f"exit {code}: {said}")
    if ended.artifacts != reference.artifacts:
        problems.append("its artifacts differ")
    if ended.tasks != reference.tasks:
        problems.append("its task results differ")
    return problems


def killed_at(
    point: str, hit: int, workspace: Path, trial: Trial, reference: Outcome
) -> tuple[bool, list[str]]:
    """One trial: killed at the `hit`-th time that `point` is reached. Was it reached, and what went wrong?"""
    process = begin(workspace, trial, f"{point}:{hit}")
    process.wait()
    reached = process.returncode == KILLED
    code, said = finish(trial, process, workspace)
    return reached, judge(reference, trial, code, said)


def killed_at_random(
    rng: random.Random, seconds: float, workspace: Path, trial: Trial, reference: Outcome
) -> tuple[int, list[str]]:
    """One trial: up to five kills at random moments, then left alone. How many kills, and what went wrong?"""
    kills = 0
    process = begin(workspace, trial)
    for _ in range(rng.randint(1, 5)):
        try:
            process.wait(rng.uniform(0.5, max(1.0, seconds)))
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            process = begin(workspace, trial)
    code, said = finish(trial, process, workspace)
    return kills, judge(reference, trial, code, said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--every", type=int, default=1, help="with --matrix: try each n-th hit only")
    parser.add_argument("--db", metavar="URL", help="a server of PostgreSQL, or `scratch`")
    options = parser.parse_args()
    with (
        server_for_trials(options.db) as server,
        tempfile.TemporaryDirectory() as name,
        contextlib.ExitStack() as over,
    ):
        databases = FolderDatabases(server) if server is not None else None
        if databases is not None:
            over.callback(databases.close)

        def fresh(name: str) -> Trial:
            return Trial.in_folder(folder / name, databases)

        folder = Path(name)
        os.environ["XDG_DATA_HOME"] = str(folder / "data")
        reference, seconds = undisturbed(options.workspace, fresh("undisturbed"))
        if reference.problems:
            raise SystemExit(f"the undisturbed run is not sound: {reference.problems}")
        print(f"undisturbed: {seconds:.1f} s, {len(reference.tasks)} tasks", flush=True)
        failed = trials = kills = 0
        tried = matrix if options.matrix else at_random
        for where, met, problems in tried(options, seconds, fresh, reference):
            trials += 1
            kills += met
            failed += bool(problems)
            print(json.dumps(where | {"problems": problems}), flush=True)
    print(f"{trials} trials, {kills} kills, {failed} failed")
    return 1 if failed else 0


Tried = Iterator[tuple[dict[str, Any], int, list[str]]]
Fresh = Callable[[str], Trial]


def matrix(options: argparse.Namespace, seconds: float, fresh: Fresh, reference: Outcome) -> Tried:
    for point in POINTS:
        hit, reached = 1, True
        while reached:
            trial = fresh(f"{point}-{hit}")
            reached, problems = killed_at(point, hit, options.workspace, trial, reference)
            if reached:
                yield {"point": point, "hit": hit}, 1, problems
            hit += options.every


def at_random(options: argparse.Namespace, seconds: float, fresh: Fresh, reference: Outcome) -> Tried:
    rng = random.Random(options.seed)
    for number in range(options.trials):
        trial = fresh(f"random-{number}")
        yield {"trial": number}, *killed_at_random(rng, seconds, options.workspace, trial, reference)


if __name__ == "__main__":
    sys.exit(main())
