"""Kill trials against the command line alone, with a model whose effects go into a ledger outside of
everything.

    python -m tests.faults.command_line_trials --trials 20 [--seed 1] [--keep DIR]

Each trial runs four workers side by side and one that joins them, with effects in the shell, edits, facts and
artifacts, a task that fails and is re-run, a small window, and a server that fails at times. Meanwhile hosts,
their tools' workers, both, and the commands of a person (compact, undo, steer, pause, re-run) are killed at
random moments, most often while a tool or a compaction is under way; each time the session is resumed in the
foreground or in the background. Prints a line for each trial, and last their count with the kills, the
effects, the calls whose outcome was unknown, and the trials that failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults import oracle
from tests.faults.ledger_model import JOIN, WORKERS, LedgerModel
from tests.support.messages_server import MessagesServer

from watchkeeper.store.driver import sqlite3

ROOT = Path(__file__).parents[2]
LONGEST_SECONDS = 240.0
"""A trial that takes longer hangs."""


class Trial:
    """One run, killed until it has been killed often enough, and then resumed to its end."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._rng = random.Random(f"trial {seed}")
        self._folder = folder
        self.path = folder / "watchkeeper.db"
        self._workspace = folder / "the workspace"
        self._workspace.mkdir(parents=True)
        (self._workspace / "log.txt").write_text("BEGIN\nEND\n")
        (folder / "config").mkdir()
        self._ledger = folder / "ledger"
        self._ledger.touch()
        self.model = LedgerModel(seed, self._ledger)
        self._started: list[subprocess.Popen[bytes]] = []
        self._messages: dict[tuple[str, int], str] = {}
        self.kills: Counter[str] = Counter()
        self.problems: list[str] = []

    # --- what is done ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole trial; what is wrong is in `problems`."""
        with MessagesServer(self.model) as server:
            memory = self._rng.choice(("summary", "observational"))
            (self._folder / "config" / "config.toml").write_text(
                f'memory = "{memory}"\n[anthropic]\nbase_url = "{server.url}"\n[permissions]\nbash = "allow"\nedit = "allow"\n'
            )
            deadline = time.monotonic() + LONGEST_SECONDS
            self._start(
                "run", "reach the goal", "--model", "anthropic/claude-test", "--workspace", str(self._workspace), "--headless",
                "--context-tokens", str(self._rng.choice((9_000, 14_000, 30_000))),
            )  # fmt: skip
            left = self._rng.randrange(3, 9)
            while self._status() != "done":
                if time.monotonic() > deadline:
                    self.problems.append(f"it is {self._status()} after {LONGEST_SECONDS:.0f} s")
                    break
                if self._host() is None:
                    self._resume()
                elif left:
                    self._ask_for_something()
                    self._wait_for_work()
                    left -= self._kill_something()
                else:
                    self._lift_pauses()
                    time.sleep(0.2)
            self.problems += server.refused
            self._end_processes()
        self._judge()

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ANTHROPIC_", "WATCHKEEPER_"))
        }
        environment = kept | {
            "ANTHROPIC_API_KEY": "a key of nobody",
            "HOME": str(self._folder),
            "PYTHONPATH": f"{ROOT / 'core'}{os.pathsep}{ROOT / 'tui'}",
            "WATCHKEEPER_CONFIG_DIR": str(self._folder / "config"),
            "WATCHKEEPER_DB": str(self.path),
        }
        environment = self._environment(environment)
        with (self._folder / "said").open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "watchkeeper", *arguments], stdin=subprocess.DEVNULL, stdout=said,
                stderr=said, env=environment,
            )  # fmt: skip
        self._started.append(process)
        return process

    def _environment(self, usual: dict[str, str]) -> dict[str, str]:
        """What processes are started with."""
        return usual

    def _resume(self) -> None:
        where = self._rng.choice(("--headless", "--detach"))
        process = self._start(*(("resume", "last", where) if self._status() else ("sessions",)))
        until = time.monotonic() + 20
        while self._host() is None and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)

    def _ask_for_something(self) -> None:
        """A command of a person, which is killed at times, too."""
        agents = [row[0] for row in self._read("SELECT name FROM agents")]
        if not agents or self._rng.random() < 0.5:
            return
        agent = self._rng.choice(agents)
        ended = [
            row[0]
            for row in self._read(
                "SELECT name FROM tasks WHERE status = 'done' AND attempt = 1 AND name != ?", JOIN
            )
        ]
        asked = self._rng.choice(
            [
                *(
                    ("compact", "last", agent),
                    ("undo", "last", agent),
                    ("steer", "last", agent, "carry on"),
                    ("pause", "last"),
                ),
                *(("rerun", "last", name) for name in ended[:1]),
            ]
        )
        process = self._start(*asked)
        if self._rng.random() < 0.2:
            time.sleep(self._rng.random() * 0.6)
            self._kill(process.pid, "command")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)

    def _wait_for_work(self) -> None:
        """Until a tool or a compaction is under way, most often; and a moment longer."""
        wanted = self._rng.choice(
            ("SELECT 1 FROM tool_calls WHERE status = 'running'",) * 3
            + ("SELECT 1 FROM compactions WHERE status IN ('running', 'prepared')", "SELECT 1")
        )
        until = time.monotonic() + 10
        while not self._read(wanted) and self._host() is not None and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(self._rng.random() * 0.4)

    def _kill_something(self) -> int:
        """Whether anything was there to be killed."""
        self._note_messages()
        host = self._host()
        if host is None:
            return 0
        below = list(processes_below(host))
        what = self._rng.choice(("host", "host", "workers", "all", "gently"))
        if what == "workers" and not below:
            return 0
        if what != "workers":
            self._kill(
                host,
                what,
                self._rng.choice((signal.SIGTERM, signal.SIGINT)) if what == "gently" else signal.SIGKILL,
            )
        for process in below if what in ("workers", "all") else ():
            self._kill(process, "worker")
        return 1

    def _kill(self, process: int, what: str, by: signal.Signals = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, by)
            self.kills[what] += 1

    def _lift_pauses(self) -> None:
        for (agent,) in self._read("SELECT name FROM agents WHERE status = 'paused'"):
            self._start("resume", "last", agent).wait(60)

    def _end_processes(self) -> None:
        for process in self._started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                self.problems.append(f"process {process.pid} does not end")
                process.kill()

    # --- what is found --------------------------------------------------------------------------------------

    def _read(self, sql: str, *parameters: Any) -> list[Any]:
        if not self.path.exists() or not self.path.stat().st_size:
            return []
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=10)
        try:
            return list(connection.execute(sql, parameters))
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):  # it is being made
                return []
            raise
        finally:
            connection.close()

    def _status(self) -> str | None:
        rows = self._read("SELECT status FROM sessions")
        return str(rows[0][0]) if rows else None

    def _host(self) -> int | None:
        """The process that drives the session, if it lives and is of this trial."""
        rows = self._read("SELECT host_pid FROM sessions")
        process = rows[0][0] if rows else None
        with contextlib.suppress(OSError):
            if (
                process is not None
                and str(self._folder).encode() in Path(f"/proc/{process}/environ").read_bytes()
            ):
                return int(process)
        return None

    def _note_messages(self) -> None:
        """What is committed now must be there, and the same, at the end."""
        for agent, seq, content in self._read("SELECT agent_id, seq, content FROM messages"):
            if self._messages.setdefault((agent, seq), content) != content:
                self.problems.append(f"message {seq} of {agent} has changed")

    def _judge(self) -> None:
        self._note_messages()
        gone = set(self._messages) - {tuple(row) for row in self._read("SELECT agent_id, seq FROM messages")}
        if gone:
            self.problems.append(f"{len(gone)} messages are gone")
        self.problems += oracle.problems_of(self._read)
        attempts = dict(self._read("SELECT name, attempt FROM tasks"))
        had = Counter(line.split()[0] for line in self._ledger.read_text().splitlines())
        self.effects, self.unknown = (
            had.total(),
            len(self._read("SELECT 1 FROM events WHERE kind = 'tool.unknown'")),
        )
        edits = Counter((self._workspace / "log.txt").read_text().splitlines())
        for name in (*WORKERS, JOIN):
            for attempt in range(1, attempts.get(name, 0) + 1):
                for one in self.model.operations((name, attempt)):
                    count = (edits if one.kind == "edit" else had)[one.label]
                    if count > 1:
                        self.problems.append(f"{one.kind} {one.label} was had {count} times")
                    elif (
                        not count
                        and attempt == attempts[name]
                        and one.kind in ("shell", "behind", "apart", "edit")
                    ):
                        self.problems.append(
                            f"{one.kind} {one.label} was lost: {list(self.model.told[one.label].values())}"
                        )
        if b"Traceback" in (self._folder / "said").read_bytes():
            self.problems.append("a traceback was shown")


def processes_below(process: int) -> Iterator[int]:
    """The processes that this one started, and theirs."""
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            yield from processes_below(int(child))
            yield int(child)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="where the folders of trials that failed are left")
    options = parser.parse_args()
    kills: Counter[str] = Counter()
    failed = effects = unknown = 0
    for seed in range(options.seed, options.seed + options.trials):
        folder = Path(tempfile.mkdtemp(prefix="watchkeeper-trial-", dir=options.keep))
        trial = Trial(seed, folder)
        trial.run()
        kills += trial.kills
        effects, unknown, failed = (
            effects + trial.effects,
            unknown + trial.unknown,
            failed + bool(trial.problems),
        )
        print(
            f"seed {seed}: {trial.kills.total()} kills, {trial.effects} effects, {trial.unknown} unknown;",
            *trial.problems or ["ok"],
        )
        if options.keep is None or not trial.problems:
            shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{options.trials} trials, {kills.total()} kills {dict(kills)}, {effects} effects, {unknown}"
        f" unknown, {failed} failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
