"""Kill workers and their hosts over PostgreSQL, and measure how long each session is left alone.

    python -m tests.faults.worker_trials postgresql://USER@HOST/EMPTY_DATABASE [--kills 40] [--lease 10]

Three workers with names of their own drive offline surveys of one folder. A trial kills, with SIGKILL, one host
(`host`), a worker and all its hosts (`machine`), or a worker alone (`worker`: its hosts must go on), and starts a new
worker in place of the dead one. A gap lasts from the kill until another host has the session. At the end every session
is done, no event is missing, and no task was done twice. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tests.faults.modules import write_modules

from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session
from watchkeeper.store import database
from watchkeeper.store.place import Place, place_of
from watchkeeper.store.workers import Needs

LOOK_SECONDS = 0.02


class Trials:
    def __init__(
        self, place: Place, folder: Path, *, sessions: int, slots: int, speed: float, chance: random.Random
    ) -> None:
        self.place = place
        self.folder = folder
        self.slots = slots
        self.chance = chance
        self.connection = database.open_writable(place)
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.started = 0
        workspace = write_modules(folder / "workspace", "alpha", "beta", "gamma", each=8, times=3)
        self.sessions = [
            create_session(
                place,
                NewSession(
                    f"survey {n}", workspace, "offline/surveyor", SessionSettings(speed=speed),
                    needs=Needs(("team",), path=str(workspace)),
                ),
            )
            for n in range(sessions)
        ]  # fmt: skip

    def start_worker(self) -> None:
        name = f"m{self.started}"
        self.started += 1
        self.workers[name] = subprocess.Popen(
            [sys.executable, "-P", "-m", "watchkeeper", "worker", "--slots", str(self.slots), "--label", "team", "--name", name],
            env=os.environ | {"WATCHKEEPER_DB": getattr(self.place, "dsn", str(self.place)), "XDG_DATA_HOME": str(self.folder / name)},
            stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def rows(self, sql: str, *parameters: Any) -> list[Any]:
        return list(self.connection.execute(sql, parameters).fetchall())

    def driven(self) -> dict[str, tuple[int, int, str]]:
        """Session → epoch, pid of the host and machine, of those that a living process drives."""
        from watchkeeper.store.workers import Needs as Stored

        found = {}
        for session, epoch, pid, needs in self.rows(
            "SELECT id, lease_epoch, host_pid, needs FROM sessions WHERE status = 'running' AND host_pid IS NOT NULL"
        ):
            placed = Stored.load(needs).placed
            if placed is not None and Path(f"/proc/{pid}").exists():
                found[session] = (epoch, pid, placed.machine)
        return found

    def await_next(self, session: str, epoch: int, timeout_seconds: float) -> bool:
        """Wait until another host has the session; False where it ended meanwhile."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            ((now, status),) = self.rows("SELECT lease_epoch, status FROM sessions WHERE id = ?", session)
            if now > epoch:
                return True
            if status != "running":
                return False
            time.sleep(LOOK_SECONDS)
        raise AssertionError(f"nobody took over session {session} in {timeout_seconds:.0f} s")

    def kill(self, kind: str, timeout_seconds: float) -> list[float]:
        """One kill; returns the gap of each session that lost its host."""
        driven = self.driven()
        if not driven:
            return []
        session = self.chance.choice(sorted(driven))
        _, pid, machine = driven[session]
        hosts = {one: found for one, found in driven.items() if found[2] == machine}
        if kind == "host":
            hosts = {session: driven[session]}
        else:
            worker = self.workers.pop(machine, None)
            if worker is not None:
                worker.kill()
                worker.wait()
        if kind != "worker":
            for _, pid, _ in hosts.values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        gaps = []
        if kind == "worker":
            time.sleep(1.0)
            for one, (epoch, _, _) in hosts.items():
                ((now, status),) = self.rows("SELECT lease_epoch, status FROM sessions WHERE id = ?", one)
                assert now == epoch or status != "running", "its host goes on"
        else:
            for one, (epoch, _, _) in hosts.items():
                if self.await_next(one, epoch, timeout_seconds):
                    gaps.append(time.monotonic() - began)
        while len(self.workers) < 3:
            self.start_worker()
        return gaps

    def finish(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            left = self.rows("SELECT id FROM sessions WHERE status = 'running'")
            if not left:
                break
            time.sleep(0.2)
        for worker in self.workers.values():
            worker.terminate()
        for worker in self.workers.values():
            worker.wait(60)

    def end(self) -> None:
        """Leave no process behind, whatever happened."""
        for worker in self.workers.values():
            worker.kill()
        for _, pid, _ in self.driven().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def check(self) -> list[str]:
        faults = [f"{one[0]} is {one[1]}: {one[2]}" for one in self.rows(
            "SELECT id, status, status_reason FROM sessions WHERE status <> 'done'")]  # fmt: skip
        for session in self.sessions:
            seqs = [
                row[0]
                for row in self.rows("SELECT seq FROM events WHERE session_id = ? ORDER BY seq", session)
            ]
            if seqs != list(range(1, len(seqs) + 1)):
                faults.append(f"{session}: events are missing")
        faults += [f"task {row[0]} was done {row[1]} times" for row in self.rows(
            "SELECT task_id, count(*) FROM events WHERE kind = 'task.done' GROUP BY task_id HAVING count(*) > 1")]  # fmt: skip
        return faults


def _trials(
    trials: Trials, options: argparse.Namespace, chance: random.Random, gaps: dict[str, list[float]]
) -> int:
    """Kill as often as was asked for, or until every session has ended; returns how often."""
    for _ in range(3):
        trials.start_worker()
    kills = 0
    deadline = time.monotonic() + 600
    while kills < options.kills and time.monotonic() < deadline:
        time.sleep(chance.uniform(0.5, 2.0))
        kind = options.only or chance.choice(("host", "machine", "worker"))
        if trials.driven():
            gaps[kind] += trials.kill(kind, options.lease + 30)
            kills += 1
        elif not trials.rows("SELECT id FROM sessions WHERE status = 'running'"):
            break
    return kills


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--lease", type=float, default=10.0)
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--slots", type=int, default=6)
    parser.add_argument("--speed", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--finish", type=float, default=300.0, help="seconds; 0: measure gaps alone")
    parser.add_argument("--only", choices=("host", "machine", "worker"))
    options = parser.parse_args()
    os.environ["WATCHKEEPER_LEASE_SECONDS"] = str(options.lease)
    chance = random.Random(options.seed)
    gaps: dict[str, list[float]] = {"host": [], "machine": [], "worker": []}
    with tempfile.TemporaryDirectory(prefix="wk-workers-") as folder:
        trials = Trials(
            place_of(options.database), Path(folder), sessions=options.sessions, slots=options.slots, speed=options.speed,
            chance=chance,
        )  # fmt: skip
        with closing(trials.connection):
            try:
                kills = _trials(trials, options, chance, gaps)
                trials.finish(options.finish)
                faults = trials.check() if options.finish else []
            finally:
                trials.end()
    print(f"{kills} kills of {len(trials.sessions)} sessions, lease {options.lease:g} s")
    for kind, found in gaps.items():
        if found:
            p95 = sorted(found)[max(0, round(0.95 * len(found)) - 1)]
            print(
                f"{kind:<8} {len(found):>3} take-overs  p50 {statistics.median(found):.2f} s  p95 {p95:.2f} s  most {max(found):.2f} s"
            )
    if not options.finish:
        return 0
    print(
        "\n".join(faults) if faults else "every session is done; no event is missing; no task was done twice"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
