"""The work that every peer does: four workers side by side, two effects each, then a join that needs all of
them.

A worker takes its effects one after the other. Every effect takes a moment before and after the line that it
leaves in the log, as a call of somebody's service does. The result is the join's: how many effects its inputs
tell of.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

WORKERS = ("north", "east", "south", "west")
STEPS = 2
EFFECTS = (*(f"{worker}-{step}" for worker in WORKERS for step in range(STEPS)), "join-0")
RESULT = f"joined {len(WORKERS) * STEPS} effects of {len(WORKERS)} workers"
MOMENT_SECONDS = 0.015


def effect(log: Path, label: str) -> str:
    """Have an effect: one line in the log."""
    time.sleep(MOMENT_SECONDS)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{label}\n".encode())
    os.close(descriptor)
    time.sleep(MOMENT_SECONDS)
    return f"did {label}"


def result_of(inputs: list[str]) -> str:
    """What the join makes of what the workers told it."""
    done = [line for line in inputs if line.startswith("did ")]
    workers = {line.removeprefix("did ").rpartition("-")[0] for line in done}
    return f"joined {len(done)} effects of {len(workers)} workers"
