"""A sample of the crash matrix (`crash_matrix.py` runs all of it): SIGKILL, resume, and the end is what it
would have been."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = {
    ("run-summary",): 400,
    ("run-observational",): 400,
    ("migrate", "import", "fork", "prune", "index", "backup"): 200,
}
"""Scenes, and which n-th hit of every fault point is tried: the first of them at least."""


@pytest.mark.parametrize(
    "scenes",
    [pytest.param(each, marks=[pytest.mark.long], id=each[0]) for each in SAMPLE],
)
def test_what_is_killed_there_is_carried_on_to_the_same_end_with_nothing_done_twice(scenes):
    command = [sys.executable, "-m", "tests.faults.crash_matrix", "--every", str(SAMPLE[scenes])]
    for scene in scenes:
        command += ["--scene", scene]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=115, cwd=Path(__file__).parents[2]
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " 0 failed" in done.stdout


def test_a_run_with_an_agent_program_is_carried_on_where_its_host_dies() -> None:
    words = ["--scene", "program", "--point", "program.[st]*", "--every", "4"]
    command = [sys.executable, "-m", "tests.faults.crash_matrix", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=115, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "4 trials, 4 kills, 0 failed" in done.stdout
