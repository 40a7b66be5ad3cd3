"""Short scripts of faults that the simulation has found: `--shrink` prints such an entry. Each is played by the tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Found:
    """One fault: the seed, the tasks of its plan that are needed, and what happens at which step."""

    seed: int
    tasks: Sequence[str]
    happenings: Sequence[tuple[int, str, int]]


FOUND: dict[str, Found] = {
    "an agent whose inputs are there again, after a crash, is not started, and its host spins": Found(
        3002,
        ["t0", "t1", "t3", "t4"],
        [(21, "file_changes", 496924054), (833, "model_faults", 434511570), (1083, "rerun", 152102000)],
    ),
    "a question of an agent program fails with the lease, and nothing takes its error": Found(
        3082, ["t0"], [(344, "deny", 707630371), (352, "lost_lease", 886513921)]
    ),
}
"""By what went wrong."""
