"""Faults of hosts, workers, networks and the server on PostgreSQL, with effects in a ledger and a checked history.

    python -m tests.faults.postgres_trials --faults 200 [--workers 3] [--seed 1] [--keep DIR]

A scratch server is started (or `WATCHKEEPER_TEST_POSTGRES` names one, which is then not restarted). Several `wk
worker` processes, each through a proxy of its own, drive one session a trial, as `command_line_trials` has them: four
workers side by side with effects in the shell, edits, facts and artifacts. Meanwhile hosts, their tools and workers
are killed with SIGKILL, hosts are stopped for longer than their lease, inside a transaction or anywhere, and continued,
connections are cut, half-closed, refused, delayed and made to hang, the clock of a worker and its hosts is stepped by up
to a day, and the server is restarted as after a power failure. No person resumes anything: workers do.

Prints a line for each trial, and last the faults, the effects, the take-over times, and the trials that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.faults.command_line_trials import LONGEST_SECONDS, Trial, processes_below
from tests.faults.history import read, recorded, violations
from tests.support.messages_server import MessagesServer
from tests.support.postgres import SERVER, ScratchServer, database_url, on_server, programs
from tests.support.proxy import Proxy

from watchkeeper.store import database
from watchkeeper.store.driver import sqlite3

LEASE_SECONDS = 3.0
FAULTS = ("kill host", "kill host", "kill tools", "kill all", "kill worker", "stop host", "stop in transaction", "cut",
          "half-close", "refuse", "silence", "delay", "step clock", "restart server")  # fmt: skip
STOPS = 200
"""How often a host is stopped until it is inside a transaction."""


class ServerTrial(Trial):
    """One run on PostgreSQL, driven by workers."""

    def __init__(self, seed: int, folder: Path, server: ScratchServer | None, url: str, workers: int) -> None:
        super().__init__(seed, folder)
        self._server = server
        name = f"wk_trial_{os.getpid()}_{seed}"
        on_server(url, f"CREATE DATABASE {name}")
        self.place = database_url(url, name)
        database.open_writable(self.place).close()
        self._base = url
        parts = urlsplit(self.place.dsn)
        self._proxies = [Proxy((parts.hostname or "127.0.0.1", parts.port or 5432)) for _ in range(workers)]
        self._user = f"{parts.username}@" if parts.username else ""
        self._name = name
        self._workers: list[subprocess.Popen[bytes] | None] = [None] * workers
        self.faults: Counter[str] = Counter()
        self.effects = self.unknown = 0

    # --- what is done ---------------------------------------------------------------------------------------

    def run_faults(self, wanted: int) -> None:
        """The whole trial, with so many faults."""
        with MessagesServer(self.model) as server:
            memory = self._rng.choice(("summary", "observational"))
            (self._folder / "config" / "config.toml").write_text(
                f'memory = "{memory}"\n[anthropic]\nbase_url = "{server.url}"\n[permissions]\nbash = "allow"\nedit = "allow"\n'
            )
            deadline = time.monotonic() + LONGEST_SECONDS
            self._start(
                "worker", "queue", "reach the goal", "--model", "anthropic/claude-test", "--workspace",
                str(self._workspace), "--context-tokens", str(self._rng.choice((9_000, 14_000, 30_000))),
            ).wait(60)  # fmt: skip
            while self._status() != "done":
                if time.monotonic() > deadline:
                    self.problems.append(f"it is {self._status()} after {LONGEST_SECONDS:.0f} s")
                    break
                self._start_workers()
                if self._host() is None:
                    time.sleep(0.1)
                elif self.faults.total() < wanted:
                    self._wait_for_work()
                    self._one_fault()
                else:
                    self._lift_pauses()
                    time.sleep(0.2)
            for worker in filter(None, self._workers):
                with contextlib.suppress(ProcessLookupError):
                    worker.send_signal(signal.SIGTERM)
            self.problems += server.refused
            self._end_processes()
        self._judge()
        history = self._folder / "history"
        self.problems += violations(history, self.place)
        self.gaps = _gaps(history)

    def remove(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        on_server(self._base, f"DROP DATABASE IF EXISTS {self._name} WITH (FORCE)")

    def _environment(self, kept: dict[str, str]) -> dict[str, str]:
        port = self._proxies[self._through].port
        return recorded(self._folder / "history", kept) | {
            "WATCHKEEPER_DB": f"postgresql://{self._user}127.0.0.1:{port}/{self._name}",
            "WATCHKEEPER_LEASE_SECONDS": str(LEASE_SECONDS),
            "WATCHKEEPER_TEST_CLOCK": str(self._clock(self._through)),
        }

    _through = 0
    """The proxy that the next process uses."""

    def _clock(self, worker: int) -> Path:
        return self._folder / f"clock-{worker}"

    def _start_workers(self) -> None:
        for number, worker in enumerate(self._workers):
            if worker is None or worker.poll() is not None:
                self._through = number
                self._workers[number] = self._start("worker", "--slots", "1")
        self._through = 0

    def _one_fault(self) -> None:
        self._note_messages()
        host = self._host()
        if host is None:
            return
        what = self._rng.choice(FAULTS)
        if what == "restart server" and self._server is None:
            return
        proxy = self._rng.choice(self._proxies)
        below = list(processes_below(host))
        if what in ("kill host", "kill all"):
            self._kill(host, what)
        if what in ("kill tools", "kill all"):
            for process in below:
                self._kill(process, what)
        if what == "kill worker":
            worker = self._rng.choice([one for one in self._workers if one is not None])
            self._kill(worker.pid, what)
            worker.wait(10)
        if what == "stop in transaction":
            what = self._stop_in_transaction(host)
        if what == "stop host":
            self._kill(host, what, signal.SIGSTOP)
        if what.startswith("stop"):
            time.sleep(LEASE_SECONDS + self._rng.uniform(0.2, 2))
            self._kill(host, what, signal.SIGCONT)
        if what == "cut":
            for one in self._proxies:
                one.cut()
        if what == "half-close":
            proxy.half_close(towards_server=self._rng.random() < 0.5)
        if what == "step clock":
            seconds = self._rng.choice((-86_400.0, -60.0, -5.0, 5.0, 60.0, 86_400.0))
            self._clock(self._rng.randrange(len(self._workers))).write_text(str(seconds))
        if what == "refuse":
            proxy.refuses = True
            proxy.cut()
            time.sleep(self._rng.uniform(0.1, 1.5 * LEASE_SECONDS))
            proxy.refuses = False
        if what == "silence":
            proxy.silent.set()
            time.sleep(self._rng.uniform(0.1, 2 * LEASE_SECONDS))
            proxy.silent.clear()
        if what == "delay":
            proxy.delay_seconds = self._rng.choice((0.0, 0.002, 0.02))
        if what == "restart server" and self._server is not None:
            self._server.stop()
            time.sleep(self._rng.uniform(0, 1))
            self._server.start()
        self.faults[what] += 1

    def _stop_in_transaction(self, host: int) -> str:
        """Stop the host while the server has a transaction of it that has written; or anywhere, if that never is."""
        for _ in range(STOPS):
            self._kill(host, "stop in transaction", signal.SIGSTOP)
            time.sleep(0.01)  # until the server has worked off what was sent
            if self._read(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
                " AND backend_xid IS NOT NULL"
            ):
                return "stop in transaction"
            self._kill(host, "stop in transaction", signal.SIGCONT)
            time.sleep(self._rng.uniform(0, 0.01))
            if not Path(f"/proc/{host}").exists():
                break
        return "stop host"

    # --- what is found --------------------------------------------------------------------------------------

    def _read(self, sql: str, *parameters: Any) -> list[Any]:
        if sql.startswith("PRAGMA"):
            return [("ok",)] if "integrity" in sql else []
        try:
            with closing(database.open_readonly(self.place)) as connection:
                return connection.execute(sql, parameters).fetchall()
        except sqlite3.Error:
            return []

    def _host(self) -> int | None:
        rows = self._read(
            "SELECT host_pid FROM sessions WHERE lease_until >= CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
        )
        with contextlib.suppress(OSError):
            if rows and str(self._folder).encode() in Path(f"/proc/{rows[0][0]}/environ").read_bytes():
                return int(rows[0][0])
        return None


def _gaps(folder: Path) -> list[float]:
    """Seconds from the last commit of each epoch to the next claim."""
    history = read(folder)
    claims = sorted((one for one in history if one["op"] == "claim"), key=lambda one: one["epoch"])
    gaps = []
    for before, after in itertools.pairwise(claims):
        commits = [
            one["known"] for one in history if one["op"] == "commit" and one["epoch"] == before["epoch"]
        ]
        gaps.append(after["known"] - max(commits, default=before["known"]))
    return gaps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--each", type=int, default=8, help="faults in one trial")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="where the folders of trials that failed are left")
    options = parser.parse_args()
    url, server = os.environ.get(SERVER), None
    if url is None:
        binaries = programs()
        if binaries is None:
            print(f"no PostgreSQL is installed here; {SERVER} may name a server", file=sys.stderr)
            return 2
        server = ScratchServer(binaries)
        server.start("fsync=on")
        url = server.url
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    faults: Counter[str] = Counter()
    gaps: list[float] = []
    failed = effects = unknown = trials = 0
    seed = options.seed
    try:
        while faults.total() < options.faults:
            folder = Path(tempfile.mkdtemp(prefix="watchkeeper-trial-", dir=options.keep))
            trial = ServerTrial(seed, folder, server, url, options.workers)
            trial.run_faults(min(options.each, options.faults - faults.total()))
            trial.remove()
            faults += trial.faults
            gaps += trial.gaps
            trials += 1
            effects, unknown, failed = (
                effects + trial.effects,
                unknown + trial.unknown,
                failed + bool(trial.problems),
            )
            print(
                f"seed {seed}: {dict(trial.faults)}, {trial.effects} effects, {trial.unknown} unknown;",
                *trial.problems or ["ok"], flush=True,
            )  # fmt: skip
            if options.keep is None or not trial.problems:
                shutil.rmtree(folder, ignore_errors=True)
            seed += 1
    finally:
        if server is not None:
            server.remove()
    late = statistics.quantiles(gaps, n=20)[18] if len(gaps) > 1 else 0.0
    print(
        f"{trials} trials, {faults.total()} faults {dict(faults)}, {effects} effects, {unknown} unknown; {len(gaps)}"
        f" take-overs, p50 {statistics.median(gaps) if gaps else 0:.1f} s, p95 {late:.1f} s with a lease of"
        f" {LEASE_SECONDS:g} s; {failed} failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
