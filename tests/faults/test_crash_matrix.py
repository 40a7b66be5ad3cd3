"""A sample of the crash matrix (`crash_matrix.py` runs all of it): SIGKILL, resume, and the end is what it would have been."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = {
    "run-summary": 40, "run-observational": 45, "migrate": 13, "import": 12, "fork": 14, "prune": 6, "index": 23, "backup": 1,
}  # fmt: skip
"""Each scene, and which n-th hit of every fault point is tried."""


@pytest.mark.parametrize("scene", SAMPLE)
def test_what_is_killed_there_is_carried_on_to_the_same_end_with_nothing_done_twice(scene: str) -> None:
    command = [sys.executable, "-m", "tests.faults.crash_matrix", "--scene", scene, "--every", str(SAMPLE[scene])]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, cwd=root)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
