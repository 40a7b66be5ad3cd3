"""The same kill trials on Watchkeeper and its peers, in one run, side by side.

    python -m tests.peers.trials [--trials 12] [--seed 1] [--peer NAME]

Every peer does the work of `work.py` with a scripted model, without a network. Each trial kills it by SIGKILL
at one to three moments, the same for every peer: so many effects after it (re)started, and so many
milliseconds. After each it resumes as its own documentation says. Then it is judged by the log of effects,
the result, and the marks that its own store keeps:

    lost             an effect was never had, or the result does not tell of all of them, or it does not end
    silently twice   an effect was had twice, and nothing in the store says so
    marked twice     an effect was had twice, and the store says that it may have been
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.peers import work

PEERS = {
    "watchkeeper": ("watchkeeper_peer", "run", ("watchkeeper",)),
    "langgraph": ("langgraph_peer", "run", ("langgraph", "langgraph-checkpoint-sqlite")),
    "langgraph, sync": ("langgraph_peer", "run_sync", ("langgraph", "langgraph-checkpoint-sqlite")),
    "openai-agents": ("openai_agents_peer", "run", ("openai-agents",)),
}
"""Name → module, function, distributions."""

LONGEST_SECONDS = 30.0
MOST_RESUMES = 4


@dataclass
class Tally:
    """What the trials of one peer came to: trials in which it happened."""

    peer: str
    versions: str
    trials: int = 0
    kills: int = 0
    lost: int = 0
    silently_twice: int = 0
    marked_twice: int = 0
    seconds: float = 0.0
    """Of the undisturbed run."""


@dataclass(frozen=True)
class Moment:
    """When to kill: so many effects after the process began, and so many seconds after that."""

    effects: int
    seconds: float


def forked(begin: Callable[[], Any], log: Path, kill: Moment | None) -> int:
    """Run `begin` in a child; its exit code, or -9."""
    wanted = _lines(log) + kill.effects if kill is not None else None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            begin()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + LONGEST_SECONDS
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if kill is not None and wanted is not None and _lines(log) >= wanted:
            deadline, wanted = time.monotonic() + kill.seconds, None
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -signal.SIGKILL
        time.sleep(0.001)


def _lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def trials(name: str, count: int, seed: int, folder: Path) -> Tally:
    """All trials of one peer. Imports it, so it is called in a process of its own."""
    module_name, function, distributions = PEERS[name]
    module = importlib.import_module(f"tests.peers.{module_name}")
    work_of: Callable[[Path], str] = getattr(module, function)
    versions = ", ".join(f"{one} {importlib.metadata.version(one)}" for one in distributions)
    tally = Tally(name, versions)

    def process(place: Path, kill: Moment | None) -> int:
        def begin() -> None:
            sys.stderr = (place / "errors").open("a")
            found = work_of(place)
            (place / "result").write_text(found)

        return forked(begin, place / "effects.log", kill)

    times = []
    for warm in range(2):  # the first of them reads code that the others find in memory
        place = folder / f"undisturbed-{warm}"
        place.mkdir()
        began = time.monotonic()
        code = process(place, None)
        times.append(time.monotonic() - began)
        if code or problems(place, set()) != Counter():
            raise SystemExit(
                f"{name} is not sound undisturbed: {code} {problems(place, set())}"
                f" {(place / 'errors').read_text()[-2000:]}"
            )
    tally.seconds = min(times)
    rng = random.Random(seed)
    for number in range(count):
        place = folder / f"trial-{number}"
        place.mkdir()
        code, moments = -signal.SIGKILL, _moments(rng)
        for moment in moments:
            code = process(place, moment)
            tally.kills += code == -signal.SIGKILL
            if code == 0:
                break
        resumes = 0
        while code != 0 and resumes < MOST_RESUMES:
            code = process(place, None)
            resumes += 1
        found = problems(place, module.marked(place))
        if code != 0:
            found["lost"] += 1
        tally.trials += 1
        tally.lost += bool(found["lost"])
        tally.silently_twice += bool(found["silently twice"])
        tally.marked_twice += bool(found["marked twice"])
        print(
            json.dumps(
                {
                    "peer": name,
                    "trial": number,
                    "kills": [f"{one.effects}+{1000 * one.seconds:.0f} ms" for one in moments],
                    **found,
                }
            ),
            flush=True,
        )
    return tally


def _moments(rng: random.Random) -> list[Moment]:
    """The first anywhere in the work; later ones soon after the resume, where there is something to
    repeat."""
    later = range(rng.randint(0, 2))
    first = Moment(rng.randrange(1, len(work.EFFECTS)), rng.uniform(0, 2 * work.MOMENT_SECONDS))
    return [first, *(Moment(rng.randint(1, 2), rng.uniform(0, 2 * work.MOMENT_SECONDS)) for _ in later)]


def problems(place: Path, marked: set[str]) -> Counter[str]:
    """What went wrong in one run, by kind."""
    log, result = place / "effects.log", place / "result"
    had = Counter(log.read_text().split()) if log.exists() else Counter[str]()
    found: Counter[str] = Counter()
    found["lost"] += sum(1 for label in work.EFFECTS if not had[label])
    found["lost"] += int(not result.exists() or result.read_text() != work.RESULT)
    for label, count in had.items():
        if count > 1:
            found["marked twice" if label in marked else "silently twice"] += 1
    return +found


def in_a_process(name: str, count: int, seed: int, folder: Path) -> Tally | None:
    """The trials of one peer, in a process that imports no other; None where it is not installed."""
    answer = folder / "tally.json"

    def begin() -> None:
        answer.write_text(json.dumps(asdict(trials(name, count, seed, folder))))

    child = os.fork()
    if child == 0:
        code = 1
        try:
            begin()
            code = 0
        except ModuleNotFoundError as missing:
            print(f"{name}: not installed ({missing}); pip install -e '.[peers]'", flush=True)
            code = 3
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 3:
        return None
    if code:
        raise SystemExit(f"{name}: the trials failed")
    return Tally(**json.loads(answer.read_text()))


def table(tallies: list[Tally]) -> str:
    """The counts, as a table in Markdown."""
    lines = [
        "| | trials | kills | lost | silently twice | marked twice | undisturbed |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.peer} ({one.versions}) | {one.trials} | {one.kills} | {one.lost} | {one.silently_twice} |"
        f" {one.marked_twice}"
        f" | {one.seconds:.2f} s |"
        for one in tallies
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peer", action="append", choices=sorted(PEERS))
    options = parser.parse_args()
    tallies = []
    with tempfile.TemporaryDirectory() as name:
        os.environ["WATCHKEEPER_CONFIG_DIR"] = name
        for number, peer in enumerate(options.peer or PEERS):
            folder = Path(name) / str(number)
            folder.mkdir()
            tally = in_a_process(peer, options.trials, options.seed, folder)
            if tally is not None:
                tallies.append(tally)
    print(table(tallies))
    ours = [one for one in tallies if one.peer == "watchkeeper"]
    return int(any(one.lost or one.silently_twice for one in ours))


if __name__ == "__main__":
    sys.exit(main())
