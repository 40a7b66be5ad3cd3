"""Kill the host with SIGKILL, resume it until it is done, and hold the end against an uninterrupted run.

    python tests/faults/kill_trials.py --workspace DIR --trials 50 [--seed 1]     random moments
    python tests/faults/kill_trials.py --workspace DIR --matrix                  every fault point, every hit

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POINTS = ("writer.before_commit", "writer.after_commit", "model.replied", "tool.before_run", "tool.after_run")
ARTIFACTS = ("SURVEY.md", "survey.json")
KILLED = -signal.SIGKILL


def wk(*arguments: str, fault: str | None = None) -> subprocess.Popen[bytes]:
    """The command line in a process of its own, with a fault point armed."""
    environment = os.environ | {"WATCHKEEPER_FAULT": fault or ""}
    return subprocess.Popen(
        [sys.executable, "-m", "watchkeeper", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
    )


@dataclass
class Outcome:
    """How one run ended: what must not depend on kills, and what must hold of its file."""

    artifacts: dict[str, bytes]
    tasks: list[tuple[Any, ...]]
    problems: list[str] = field(default_factory=list)


def demo_arguments(workspace: Path, database: Path) -> list[str]:
    return [
        "demo",
        "--headless",
        "--json",
        "--speed",
        "max",
        "--workspace",
        str(workspace),
        "--db",
        str(database),
    ]


def resume_arguments(database: Path) -> list[str]:
    return ["resume", "last", "--headless", "--json", "--db", str(database)]


def look(database: Path) -> Outcome:
    """Read the end state, and check what must hold of any file."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    problems: list[str] = []
    if connection.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
        problems.append("the file is damaged")
    for session_id, status in connection.execute("SELECT id, status FROM sessions").fetchall():
        if status != "done":
            problems.append(f"session {session_id} is {status}")
        seqs = [
            row[0]
            for row in connection.execute(
                "SELECT seq FROM events WHERE session_id = ? ORDER BY seq", (session_id,)
            )
        ]
        if seqs != list(range(1, len(seqs) + 1)):
            problems.append("a gap in the events")
    for agent_id, tokens, last in connection.execute(
        "SELECT id, message_tokens, last_seq FROM agents"
    ).fetchall():
        rows = connection.execute(
            "SELECT seq, tokens FROM messages WHERE agent_id = ? ORDER BY seq", (agent_id,)
        ).fetchall()
        if [row[0] for row in rows] != list(range(1, last + 1)) or sum(row[1] for row in rows) != tokens:
            problems.append(f"messages or totals of {agent_id} do not add up")
    if connection.execute("SELECT count(*) FROM tasks WHERE attempt != 1 OR status != 'done'").fetchone()[0]:
        problems.append("a task is not done at attempt 1")
    if connection.execute(
        "SELECT 1 FROM agents WHERE task_id NOT NULL GROUP BY task_id HAVING count(*) > 1"
    ).fetchone():
        problems.append("a task was given to two agents")
    done = connection.execute(
        "SELECT count(*), count(DISTINCT task_id) FROM events WHERE kind = 'task.done'"
    ).fetchone()
    if done[0] != done[1]:
        problems.append("a finished task ran twice")
    tasks = connection.execute("SELECT name, status, attempt, result FROM tasks ORDER BY name").fetchall()
    session = connection.execute("SELECT id FROM sessions ORDER BY rowid DESC LIMIT 1").fetchone()
    found = {}
    for name, encoding, data in connection.execute(
        "SELECT o.name, a.encoding, a.data FROM outputs o JOIN artifacts a ON a.digest = o.digest WHERE"
        " o.session_id = ?"
        " ORDER BY o.id",
        session or ("",),
    ):
        if name in ARTIFACTS:
            found[name] = zlib.decompress(data) if encoding == "zlib" else bytes(data)
    if set(found) != set(ARTIFACTS):
        problems.append("artifacts are missing")
    connection.close()
    return Outcome(found, tasks, problems)


def undisturbed(workspace: Path, folder: Path) -> tuple[Outcome, float]:
    """The run that nobody kills, and how long it takes."""
    began = time.monotonic()
    process = wk(*demo_arguments(workspace, folder / "undisturbed.db"))
    _, errors = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"the undisturbed run failed with {process.returncode}: {errors.decode()[-500:]}")
    return look(folder / "undisturbed.db"), time.monotonic() - began


def finish(database: Path, process: subprocess.Popen[bytes], workspace: Path) -> tuple[int, str]:
    """Resume after a kill until the run ends by itself; returns the last exit code and what it said."""
    _, errors = process.communicate()
    while process.returncode == KILLED:
        process = wk(
            *(resume_arguments(database) if has_session(database) else demo_arguments(workspace, database))
        )
        _, errors = process.communicate()
    return process.returncode, errors.decode()[-300:]


def has_session(database: Path) -> bool:
    if not database.exists() or not database.stat().st_size:
        return False
    connection = sqlite3.connect(database)
    try:
        return connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'sessions'").fetchone()[
            0
        ] > 0 and bool(connection.execute("SELECT count(*) FROM sessions").fetchone()[0])
    finally:
        connection.close()


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
    process = wk(*demo_arguments(workspace, database), fault=f"{point}:{hit}")
    process.wait()
    reached = process.returncode == KILLED
    code, said = finish(database, process, workspace)
    return reached, judge(reference, database, code, said)


def killed_at_random(
    rng: random.Random, seconds: float, workspace: Path, folder: Path, reference: Outcome, name: str
) -> list[str]:
    """One trial: up to five kills at random moments, then left alone."""
    database = folder / f"{name}.db"
    process = wk(*demo_arguments(workspace, database))
    for _ in range(rng.randint(1, 5)):
        try:
            process.wait(rng.uniform(0.5, max(1.0, seconds)))
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            process = wk(
                *(
                    resume_arguments(database)
                    if has_session(database)
                    else demo_arguments(workspace, database)
                )
            )
    code, said = finish(database, process, workspace)
    return judge(reference, database, code, said)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--every", type=int, default=1, help="with --matrix: try each n-th hit only")
    options = parser.parse_args()
    failed = trials = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference, seconds = undisturbed(options.workspace, folder)
        if reference.problems:
            raise SystemExit(f"the undisturbed run is not sound: {reference.problems}")
        print(f"undisturbed: {seconds:.1f} s, {len(reference.tasks)} tasks", flush=True)
        if options.matrix:
            for point in POINTS:
                hit, reached = 1, True
                while reached:
                    reached, problems = killed_at(point, hit, options.workspace, folder, reference)
                    if reached:
                        trials += 1
                        failed += bool(problems)
                        print(json.dumps({"point": point, "hit": hit, "problems": problems}), flush=True)
                    hit += options.every
        else:
            rng = random.Random(options.seed)
            for trial in range(options.trials):
                problems = killed_at_random(
                    rng, seconds, options.workspace, folder, reference, f"random-{trial}"
                )
                trials += 1
                failed += bool(problems)
                print(json.dumps({"trial": trial, "problems": problems}), flush=True)
    print(f"{trials} trials, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
