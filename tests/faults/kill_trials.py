"""Kill the host with SIGKILL, resume it until it is done, and hold the end against an uninterrupted run.

    python -m tests.faults.kill_trials --workspace DIR --trials 50 [--seed 1]     random moments
    python -m tests.faults.kill_trials --workspace DIR --matrix                  every fault point, every hit

Prints each trial, and their count with the number that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import oracle

POINTS = ("writer.before_commit", "writer.after_commit", "model.replied", "tool.before_run", "tool.after_run")
ARTIFACTS = ("SURVEY.md", "survey.json")
KILLED = -signal.SIGKILL


def wk(*arguments: str, fault: str = "") -> subprocess.Popen[bytes]:
    """The command line in a process of its own, with a fault point armed."""
    command = [sys.executable, "-m", "watchkeeper", *arguments]
    environment = os.environ | {"WATCHKEEPER_FAULT": fault}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)


@dataclass
class Outcome:
    """How one run ended: what must not depend on kills, and what must hold of its file."""

    artifacts: dict[str, bytes]
    tasks: list[tuple[Any, ...]]
    problems: list[str] = field(default_factory=list)


def begin(workspace: Path, database: Path, fault: str = "") -> subprocess.Popen[bytes]:
    """Begin the run, or resume it if it has begun."""
    begun = has_session(database)
    wanted = ("resume", "last") if begun else ("demo", "--speed", "max", "--workspace", str(workspace))
    return wk(*wanted, "--headless", "--json", "--db", str(database), fault=fault)


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


def look(database: Path) -> Outcome:
    """Read the end state, and check what must hold of any file."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:

        def read(sql: str, *parameters: Any) -> list[Any]:
            return connection.execute(sql, parameters).fetchall()

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
    return Outcome(found, tasks, problems)


def undisturbed(workspace: Path, folder: Path) -> tuple[Outcome, float]:
    """The run that nobody kills, and how long it takes."""
    began = time.monotonic()
    process = begin(workspace, folder / "undisturbed.db")
    _, errors = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"the undisturbed run failed with {process.returncode}: {errors.decode()[-500:]}")
    return look(folder / "undisturbed.db"), time.monotonic() - began


def finish(database: Path, process: subprocess.Popen[bytes], workspace: Path) -> tuple[int, str]:
    """Resume after a kill until the run ends by itself; returns the last exit code and what it said."""
    _, errors = process.communicate()
    while process.returncode == KILLED:
        process = begin(workspace, database)
        _, errors = process.communicate()
    return process.returncode, errors.decode()[-300:]


def has_session(database: Path) -> bool:
    if not database.exists() or not database.stat().st_size:
        return False
    with closing(sqlite3.connect(database)) as connection:
        made = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sessions'").fetchone()
        return bool(made and connection.execute("SELECT 1 FROM sessions").fetchone())


def judge(reference: Outcome, database: Path, code: int, said: str) -> list[str]:
    """What is wrong with the end of a run that was killed; nothing, if all is well."""
    ended = look(database)
    problems = list(ended.problems)
    if code != 0:
        problems.append(f"exit {code}: {said}")
    if ended.artifacts != reference.artifacts:
        problems.append("its artifacts differ")
    if ended.tasks != reference.tasks:
        problems.append("its task results differ")
    return problems


def killed_at(
    point: str, hit: int, workspace: Path, folder: Path, reference: Outcome
) -> tuple[bool, list[str]]:
    """One trial: killed at the `hit`-th time that `point` is reached. Was it reached, and what went wrong?"""
    database = folder / f"{point}-{hit}.db"
    process = begin(workspace, database, f"{point}:{hit}")
    process.wait()
    reached = process.returncode == KILLED
    code, said = finish(database, process, workspace)
    return reached, judge(reference, database, code, said)


def killed_at_random(
    rng: random.Random, seconds: float, workspace: Path, folder: Path, reference: Outcome, name: str
) -> list[str]:
    """One trial: up to five kills at random moments, then left alone."""
    database = folder / f"{name}.db"
    process = begin(workspace, database)
    for _ in range(rng.randint(1, 5)):
        try:
            process.wait(rng.uniform(0.5, max(1.0, seconds)))
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            process = begin(workspace, database)
    code, said = finish(database, process, workspace)
    return judge(reference, database, code, said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--every", type=int, default=1, help="with --matrix: try each n-th hit only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference, seconds = undisturbed(options.workspace, folder)
        if reference.problems:
            raise SystemExit(f"the undisturbed run is not sound: {reference.problems}")
        print(f"undisturbed: {seconds:.1f} s, {len(reference.tasks)} tasks", flush=True)
        failed = trials = 0
        tried = matrix if options.matrix else at_random
        for where, problems in tried(options, seconds, folder, reference):
            trials += 1
            failed += bool(problems)
            print(json.dumps(where | {"problems": problems}), flush=True)
    print(f"{trials} trials, {failed} failed")
    return 1 if failed else 0


Tried = Iterator[tuple[dict[str, Any], list[str]]]


def matrix(options: argparse.Namespace, seconds: float, folder: Path, reference: Outcome) -> Tried:
    for point in POINTS:
        hit, reached = 1, True
        while reached:
            reached, problems = killed_at(point, hit, options.workspace, folder, reference)
            if reached:
                yield {"point": point, "hit": hit}, problems
            hit += options.every


def at_random(options: argparse.Namespace, seconds: float, folder: Path, reference: Outcome) -> Tried:
    rng = random.Random(options.seed)
    for trial in range(options.trials):
        name = f"random-{trial}"
        yield {"trial": trial}, killed_at_random(rng, seconds, options.workspace, folder, reference, name)


if __name__ == "__main__":
    sys.exit(main())
