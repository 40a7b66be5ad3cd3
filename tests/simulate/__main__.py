"""Play simulated runs, each made from a seed: `python -m tests.simulate --seed N`, or `.ci/heavy simulate --seeds N --start S`.

python -m tests.simulate --seeds 300 --start 1   a block of seeds; prints the first that fails
python -m tests.simulate --minutes 1             as many seeds as fit, from a new start each time
python -m tests.simulate --seed 17               one seed, with its history in plain words
python -m tests.simulate --found                 the scripts of faults that were found before
python -m tests.simulate --seed 17 --shrink      leave out what is not needed for the fault; prints an entry for found.py
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from typing import NoReturn

from tests.simulate.happenings import WEIGHTS
from tests.simulate.script import Script, make


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument(
        "--found", action="store_true", help="play the scripts of faults that were found before"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="play the whole block, and name every seed that fails"
    )
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is part of a run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulate", *sys.argv[1:]])
    logging.disable(logging.CRITICAL)
    if options.found:
        return found_before()
    if options.seed is not None:
        return one(make(options.seed, WEIGHTS), shrinks=options.shrink)
    return block(options)


def one(script: Script, *, shrinks: bool) -> int:
    """Play one script and print its history."""
    from tests.simulate.shrink import shrunken
    from tests.simulate.world import play, quietly

    with quietly():
        outcome = play(script)
        if shrinks and outcome.problems:
            script, outcome = shrunken(script, outcome)
            print(script.as_text())
        elif not shrinks:
            print("\n".join(outcome.history))
    for problem in outcome.problems:
        print(f"PROBLEM: {problem}")
    print(f"seed {script.seed}: {outcome.steps} steps, {len(outcome.problems)} problems")
    leave(1 if outcome.problems else 0)


def found_before() -> int:
    """Play the scripts of `found.FOUND`."""
    from tests.simulate.found import FOUND
    from tests.simulate.world import play, quietly

    failed = 0
    with quietly():
        for name, script in FOUND.items():
            problems = play(script).problems
            failed += bool(problems)
            print(f"{name}: {problems[0] if problems else 'ok'}")
    print(f"{len(FOUND)} scripts, {failed} failed")
    leave(1 if failed else 0)


def leave(code: int) -> NoReturn:
    """End at once: what crashes left behind is not tidied up."""
    from tests.simulate.world import remove_folders

    remove_folders()
    sys.stdout.flush()
    os._exit(code)


def block(options: argparse.Namespace) -> int:
    """Play a block of seeds."""
    from tests.simulate.world import play, quietly

    start = options.start if options.start is not None else int(time.time()) % 1_000_000_000
    began, played, steps, failed = time.monotonic(), 0, 0, []
    with quietly():
        while (
            played < options.seeds
            if options.minutes is None
            else time.monotonic() - began < options.minutes * 60
        ):
            seed = start + played
            outcome = play(make(seed, WEIGHTS))
            played, steps = played + 1, steps + outcome.steps
            if outcome.problems:
                failed.append(seed)
                print(f"seed {seed}: {outcome.problems[0][:600]}", flush=True)
                if not options.keep_going:
                    print(f"replay it with: python -m tests.simulate --seed {seed}")
                    break
    seconds = time.monotonic() - began
    print(
        f"seeds {start} to {start + played - 1}: {len(failed)} failed; {steps} steps, {played / seconds * 60:.0f} runs a minute"
    )
    leave(1 if failed else 0)


if __name__ == "__main__":
    sys.exit(main())
