"""The simulation itself: a seed is replayed byte for byte, and a fault is found, named and shrunken.

A run is played in a process of its own, since the order of sets is part of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tests.simulate.script
from tests.simulate.found import FOUND
from tests.simulate.happenings import HAPPENINGS, WEIGHTS
from tests.simulate.script import Happening, Script, make

ROOT = Path(__file__).parents[2]


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulate", *arguments], cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "core", ROOT / "tui")))},
    )  # fmt: skip


def test_a_seed_is_replayed_byte_for_byte() -> None:
    first, second = simulate("--seed", "3"), simulate("--seed", "3")
    assert first.returncode == 0, first.stdout[-2000:] + first.stderr[-2000:]
    assert first.stdout == second.stdout
    assert "a host begins" in first.stdout


def test_a_block_of_seeds_says_which_ran() -> None:
    done = simulate("--seeds", "2", "--start", "11")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert done.stdout.startswith("seeds 11 to 12: 0 failed; ")


def test_what_was_found_before_is_not_found_again() -> None:
    done = simulate("--found")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert f"{len(FOUND)} scripts, 0 failed" in done.stdout


def test_a_script_is_printed_as_an_entry_of_what_was_found() -> None:
    scripts = [make(seed, WEIGHTS) for seed in range(5)]
    printed = "".join(script.as_text() for script in scripts)
    assert eval(f"[{printed}]", vars(tests.simulate.script)) == scripts


def test_every_happening_has_a_weight_and_is_chosen_by_some_seed() -> None:
    assert HAPPENINGS.keys() == WEIGHTS.keys()
    chosen = {one.kind for seed in range(300) for one in make(seed, WEIGHTS).happenings}
    assert chosen == set(HAPPENINGS)


def test_what_is_left_out_of_a_script_leaves_the_rest_as_it_is() -> None:
    script = Script(1, [], (Happening(1, "crash", 5), Happening(2, "pause", 6), Happening(3, "resume", 7)))
    assert script.without([1]).happenings == (Happening(1, "crash", 5), Happening(3, "resume", 7))
    assert "Happening(3, 'resume', 7)," in script.as_text()


def test_each_planted_fault_changes_code_that_is_there() -> None:
    from tests.simulate.planted import FAULTS, planted_text

    for fault in FAULTS:
        compile(planted_text(fault), fault.file, "exec")


@pytest.mark.long
def test_a_planted_fault_is_found() -> None:
    """One of `planted.FAULTS`; `.ci/heavy planted` plays all of them."""
    from tests.simulate.planted import FAULTS, found_by

    fault = next(one for one in FAULTS if one.name == "a denial runs")
    after, how = found_by(fault, 60, 1)
    assert after is not None, how
