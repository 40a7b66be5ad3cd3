"""A day of use in an hour or less: sessions in one database, disturbed in every way, and nothing is lost or
leaks.

    python -m tests.faults.soak --minutes 60 [--seed 1]

Each round is one session of `wk demo` that is killed, paused, compacted, undone and read from beside, at
random, and resumed until it ends; its artifacts must be those of an undisturbed run. Between rounds sessions
are forked, renamed, deleted, backed up and pruned. One process runs sessions and a viewer of its own all
along: its descriptors and its memory must stay as they are. Prints a line a round, and at the end the counts
and what was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.kill_trials import ARTIFACTS, KILLED, artifacts_of, wk
from tests.faults.modules import write_modules
from tests.support.scripted import PlannedRun, ScriptedModel, call, said, task, turns

from watchkeeper.runtime.lifecycle import SessionSettings
from watchkeeper.runtime.run_session import Runtime
from watchkeeper.store import database
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.snapshot import SessionSnapshotReader

BEGIN = ("demo", "--headless", "--json", "--speed", "max", "--workspace")
GIVE_UP_SECONDS = 180.0
WARM_ROUNDS = 3
ODD_CODES = (0, 1, 2, 3, 4, 5, 130)
"""How a command may end that came at a bad moment: refused with a reason, say. Anything else is a crash."""


@dataclass
class Soak:
    """What was done so far, and what was wrong."""

    folder: Path
    workspace: Path
    rng: random.Random
    did: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    """Sessions that ended and must stay as they are."""
    reference: dict[str, bytes] = field(default_factory=dict)
    descriptors: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    """Of this process, after each round: open descriptors, and resident KiB."""

    @property
    def path(self) -> Path:
        return self.folder / "soak.db"

    def command(self, *arguments: str, may_fail: bool = False) -> str:
        """One command of `wk`, which must end, and without a traceback."""
        self.did[arguments[0]] += 1
        process = wk(*arguments, "--db", str(self.path))
        try:
            _, errors = process.communicate(timeout=GIVE_UP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            self.problems.append(f"wk {' '.join(arguments)} did not end")
            return ""
        said = errors.decode("utf-8", "replace")
        allowed = ODD_CODES if may_fail else (0,)
        if process.returncode not in allowed or "Traceback" in said or "Usage:" in said:
            self.problems.append(f"wk {' '.join(arguments)} ended with {process.returncode}: {said[-300:]}")
        return said

    def read(self, sql: str, *parameters: Any) -> list[Any]:
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=30)) as connection:
            return list(connection.execute(sql, parameters).fetchall())


def newest(soak: Soak) -> str | None:
    try:
        surveys = "SELECT id FROM sessions WHERE origin = 'run' AND model = 'offline/surveyor'"
        rows = soak.read(f"{surveys} ORDER BY rowid DESC LIMIT 1")
    except sqlite3.OperationalError:
        return None
    return rows[0][0] if rows else None


def disturbed_session(soak: Soak) -> str:
    """One survey, disturbed until luck leaves it alone; its id."""
    rng, before = soak.rng, newest(soak)
    begin = (*BEGIN, str(soak.workspace), "--db", str(soak.path))
    process = wk(*begin)
    deadline = time.monotonic() + GIVE_UP_SECONDS
    disturbances = rng.randint(1, 6)
    while True:
        session = newest(soak)
        session = session if session != before else None
        try:
            process.wait(rng.uniform(0.2, 2.5) if disturbances else GIVE_UP_SECONDS)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                soak.problems.append(f"session {session} does not end")
                process.kill()
            elif disturbances:
                disturbances -= 1
                disturb(soak, process, session)
            continue
        _, errors = process.communicate()
        session = newest(soak)
        if session is None or session == before:
            process = wk(*begin)
            continue
        status = soak.read("SELECT status FROM sessions WHERE id = ?", session)[0][0]
        if process.returncode == 0 and status == "done":
            return session
        # 4: the host that an earlier command was given for itself alone has not ended yet.
        if process.returncode not in (KILLED, -signal.SIGINT, 4, 5, 130) or time.monotonic() > deadline:
            last = errors.decode("utf-8", "replace")[-400:]
            soak.problems.append(f"session {session} ended with {process.returncode} as {status}: {last}")
            return session
        process = wk("resume", session, "--headless", "--json", "--db", str(soak.path))


def disturb(soak: Soak, process: subprocess.Popen[bytes], session: str | None) -> None:
    """One thing that a person, or fate, does to a run."""
    rng = soak.rng
    kinds = ["kill", "interrupt", "pause", "compact", "undo", "attach", "steer", "show"]
    kind = rng.choice(kinds) if session else "kill"
    soak.did[kind if kind in ("kill", "interrupt", "attach") else f"{kind} (disturbing)"] += 1
    if kind == "kill":
        process.kill()
    elif kind == "interrupt":
        process.send_signal(signal.SIGINT)
    elif kind == "attach" and session:
        attach(soak, session, rng.uniform(0.2, 1.0))
    elif session:
        agents = [row[0] for row in soak.read("SELECT id FROM agents WHERE session_id = ?", session)]
        if kind == "pause":
            soak.command("pause", session, *(["--now"] if rng.random() < 0.5 else []), may_fail=True)
        elif kind == "show":
            soak.command("show", session, "--json", may_fail=True)
        elif agents and kind == "steer":
            soak.command("steer", session, "planner", "Go on as you do.", may_fail=True)
        elif agents:
            soak.command(kind, session, rng.choice(agents), may_fail=True)


def attach(soak: Soak, session: str, seconds: float) -> None:
    """Read as the dashboard does, and be killed in the middle of it, as terminals are."""
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom watchkeeper.store.database import open_readonly\n"
        "from watchkeeper.store.snapshot import SessionSnapshotReader as SessionFold\n"
        "connection, fold = open_readonly(Path(sys.argv[1])), SessionFold(sys.argv[2])\n"
        "while True:\n    connection.execute('BEGIN')\n    fold.read(connection, time.time())\n   "
        " connection.execute('COMMIT')\n"
        "    time.sleep(0.1)\n"
    )
    command = [sys.executable, "-c", program, str(soak.path), session]
    viewer = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        _, errors = viewer.communicate(timeout=seconds + 1)
        soak.problems.append(f"a viewer of {session} ended: {errors.decode()[-200:]}")
    except subprocess.TimeoutExpired:
        viewer.kill()
        viewer.communicate()


def between_rounds(soak: Soak) -> None:
    """What a person does with sessions that have ended."""
    rng = soak.rng
    session = rng.choice(soak.done)
    kind = rng.choice(["fork", "rename", "backup", "export", "prune", "delete", "sessions"])
    if kind == "fork":
        said = soak.command("fork", session, "--json")
        forked = soak.read(
            "SELECT id FROM sessions WHERE forked_from = ? ORDER BY rowid DESC LIMIT 1", session
        )
        if not forked:
            soak.problems.append(f"a fork of {session} is not there: {said[:200]}")
        elif rng.random() < 0.5:
            soak.command("delete", forked[0][0], may_fail=True)
    elif kind == "rename":
        soak.command("edit", session, "--title", f"round {len(soak.done)}")
    elif kind == "backup":
        copy = soak.folder / "backup.db"
        copy.unlink(missing_ok=True)
        soak.command("backup", str(copy))
        connection = sqlite3.connect(copy)
        if connection.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
            soak.problems.append("a backup is damaged")
        connection.close()
    elif kind == "export":
        target = str(soak.folder / f"{session}.json")
        soak.command("export", session, "--format", "json", "--output", target, "--force")
    elif kind == "prune":
        soak.command("delete", "--prune", "--older-than", "1h", "--keep", "5", "--yes")
    elif kind == "delete" and len(soak.done) > 3:
        soak.done.remove(session)
        soak.command("delete", session, may_fail=True)
    else:
        soak.command("sessions", "--json")


async def own_session(soak: Soak, runtime: Runtime) -> None:
    """A session in this very process, with tools, compaction and a viewer."""

    def work(name: str, request: Any) -> Any:
        turn = turns(request)
        if turn < 8:
            return [said("word " * 500), call("list_folder", {"path": "."}, f"toolu_{turn}")]
        return [said("done")]

    runtime._model = ScriptedModel(PlannedRun([task(one) for one in ("a", "b")], work), context_window=12_000)
    settings = SessionSettings(approval_timeout_seconds=0.0)
    session = runtime.start("soak", workspace=soak.workspace, settings=settings)
    running = asyncio.ensure_future(runtime.run(session))
    connection, fold = database.open_readonly(soak.path), SessionSnapshotReader(session)
    while not running.done():
        connection.execute("BEGIN")
        fold.read(connection, time.time())
        connection.execute("COMMIT")
        await asyncio.wait([running], timeout=0.05)
    connection.close()
    result = await running
    if result.exit_code != 0:
        soak.problems.append(f"a session of this process ended with {result}")


def check_file(soak: Soak) -> None:
    """What must hold of the file after each round."""
    for session, last in soak.read("SELECT id, event_seq FROM sessions"):
        found = soak.read("SELECT count(*), max(seq) FROM events WHERE session_id = ?", session)[0]
        if found != (last, last or None):
            soak.problems.append(f"events of {session}: {found}, not {last}")
    bad = soak.read(
        "SELECT a.id FROM agents a JOIN (SELECT agent_id, count(*) AS n, max(seq) AS last, sum(tokens) AS"
        " tokens FROM messages"
        " GROUP BY agent_id) m ON m.agent_id = a.id WHERE m.n != a.last_seq OR m.last != a.last_seq OR"
        " m.tokens != a.message_tokens"
    )
    soak.problems += [f"messages of {row[0]} do not add up" for row in bad]
    soak.done = [one for one in soak.done if soak.read("SELECT 1 FROM sessions WHERE id = ?", one)]
    for session in soak.done:
        if artifacts_of(soak.read, session) != soak.reference:
            soak.problems.append(f"the artifacts of {session} are others now")


def measure(soak: Soak) -> None:
    gc.collect()
    soak.descriptors.append(len(os.listdir("/proc/self/fd")))
    with open("/proc/self/status", encoding="ascii") as status:
        soak.memory.append(int(next(line for line in status if line.startswith("VmRSS")).split()[1]))


def leaks(soak: Soak) -> list[str]:
    """What grew after the first rounds."""
    found = []
    if len(soak.descriptors) > WARM_ROUNDS:
        if soak.descriptors[-1] > soak.descriptors[WARM_ROUNDS - 1] + 2:
            found.append(f"descriptors grew: {soak.descriptors}")
        if soak.memory[-1] > soak.memory[WARM_ROUNDS - 1] * 1.25 + 10_000:
            found.append(f"memory grew: {soak.memory} KiB")
    return found


def soak_for(seconds: float, folder: Path, seed: int = 0, rounds: int | None = None) -> Soak:
    """Rounds until the time is up; returns what was done and what was wrong."""
    workspace = folder / "workspace"
    write_modules(workspace, "src", each=12, times=20)
    soak = Soak(folder, workspace, random.Random(seed))
    wk(*BEGIN, str(workspace), "--db", str(soak.path)).communicate(timeout=GIVE_UP_SECONDS)
    first = newest(soak)
    assert first is not None, "the undisturbed run did not begin"
    soak.reference = artifacts_of(soak.read, first)
    assert set(soak.reference) == set(ARTIFACTS), "the undisturbed run is not sound"
    soak.done.append(first)
    runtime = Runtime(soak.path, model=ScriptedModel(lambda request: []))
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end and (rounds is None or number < rounds):
        began, number = time.monotonic(), number + 1
        session = disturbed_session(soak)
        if artifacts_of(soak.read, session) == soak.reference:
            soak.done.append(session)
        else:
            soak.problems.append(f"the artifacts of {session} differ from an undisturbed run's")
        between_rounds(soak)
        asyncio.run(own_session(soak, runtime))
        check_file(soak)
        if number % 10 == 0 and soak.read("PRAGMA integrity_check") != [("ok",)]:
            soak.problems.append("the file is damaged")
        measure(soak)
        print(
            json.dumps({
                "round": number, "session": session, "seconds": round(time.monotonic() - began, 1),
                "descriptors": soak.descriptors[-1], "memory_kib": soak.memory[-1], "problems": len(soak.problems),
            }),
            flush=True,
        )  # fmt: skip
    if soak.read("PRAGMA integrity_check") != [("ok",)]:
        soak.problems.append("the file is damaged")
    soak.problems += leaks(soak)
    return soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    soak = soak_for(options.minutes * 60, folder, options.seed)
    print(json.dumps({"did": dict(soak.did), "descriptors": soak.descriptors, "memory_kib": soak.memory}))
    for problem in soak.problems:
        print(f"PROBLEM {problem}")
    print(f"{len(soak.memory)} rounds, {len(soak.problems)} problems")
    if not soak.problems:
        shutil.rmtree(folder)
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
