"""How soon a command is applied while busy hosts share one file, and how soon a viewer in another process sees a commit.

    python tests/benchmarks/commands_latency.py [--hosts 4] [--commands 60] [--speed 10]

Prints p50 and p95. The hosts drive the offline surveyor; each command steers one of their planners.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from watchkeeper.runtime import control
from watchkeeper.runtime.starting import NewSession, SessionSettings, create_session
from watchkeeper.store import database
from watchkeeper.store.changes import ChangeFeed

VIEWER = """
import sys, time
from pathlib import Path
from watchkeeper.store import database
from watchkeeper.store.changes import ChangeFeed
path = Path(sys.argv[1])
connection, feed = database.open_readonly(path), ChangeFeed(path)
print("ready", flush=True)
seen = -1
while True:
    feed.wait(1.0)
    row = connection.execute("SELECT until FROM rate_limits WHERE provider = 'benchmark'").fetchone()
    if row and row[0] != seen:
        seen = row[0]
        print(f"{seen:.0f} {time.perf_counter()!r}", flush=True)
"""


def told(name: str, seconds: list[float]) -> None:
    if len(seconds) < 2:
        print(f"{name}: only {len(seconds)} measured; choose a lower --speed")
        return
    p95 = statistics.quantiles(seconds, n=20)[-1]
    print(f"{name}: p50 {1000 * statistics.median(seconds):.1f} ms, p95 {1000 * p95:.1f} ms, of {len(seconds)}")


def applied(path: Path, sessions: list[str], commands: int) -> list[float]:
    """Seconds from before a command's insert until another connection sees it settled."""
    connection, feed = database.open_readonly(path), ChangeFeed(path)
    found = []
    for number in range(commands):
        session = sessions[number % len(sessions)]
        status, planner = connection.execute("SELECT status, planner_agent_id FROM sessions WHERE id = ?", (session,)).fetchone()
        if status != "running":
            continue
        began = time.perf_counter()
        command = control.submit(path, session, "steer", agent_id=planner, payload={"text": f"note {number}"})
        while time.perf_counter() - began < 10:
            row = connection.execute("SELECT status FROM commands WHERE id = ?", (command,)).fetchone()
            if row[0] != "queued":
                found.append(time.perf_counter() - began)
                break
            feed.wait(0.05)
    feed.close()
    connection.close()
    return found


def seen(path: Path, commits: int) -> list[float]:
    """Seconds from the end of a commit until a viewer in another process has read it."""
    connection = database.open_writable(path)
    viewer = subprocess.Popen([sys.executable, "-c", VIEWER, str(path)], stdout=subprocess.PIPE, text=True)
    assert viewer.stdout is not None
    viewer.stdout.readline()
    found = []
    for number in range(commits):
        database.begin_immediate(connection)
        connection.execute("INSERT OR REPLACE INTO rate_limits VALUES ('benchmark', 'm', ?, '')", (number,))
        connection.execute("COMMIT")
        committed = time.perf_counter()
        while True:
            which, at = viewer.stdout.readline().split()
            if int(which) == number:
                found.append(max(0.0, float(at) - committed))
                break
    viewer.kill()
    viewer.communicate()
    connection.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--commands", type=int, default=60)
    parser.add_argument("--speed", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        path, workspace = Path(name) / "w.db", Path(name) / "workspace"
        for part in ("alpha", "beta", "gamma", "delta"):
            (workspace / part).mkdir(parents=True)
            for number in range(40):
                (workspace / part / f"module_{number}.py").write_text(f"# TODO: {part} {number}\nvalue = {number}\n" * 20)
        settings = SessionSettings(speed=options.speed)
        sessions = [
            create_session(path, NewSession(f"survey {n}", workspace, "offline/surveyor", settings)) for n in range(options.hosts)
        ]
        hosts = [
            subprocess.Popen(
                [sys.executable, "-m", "watchkeeper", "resume", session, "--headless", "--db", str(path)],
                stdout=subprocess.DEVNULL,
            )
            for session in sessions
        ]
        connection = database.open_readonly(path)
        while connection.execute("SELECT count(*) FROM agents WHERE turn > 0").fetchone()[0] < options.hosts:
            time.sleep(0.05)
        connection.close()
        told("commit → seen by a viewer", seen(path, 40))
        told("command → applied", applied(path, sessions, options.commands))
        for host in hosts:
            host.terminate()
        for host in hosts:
            host.wait()


if __name__ == "__main__":
    main()
