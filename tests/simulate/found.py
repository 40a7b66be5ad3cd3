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


# fmt: off
FOUND: dict[str, Found] = {
    "an agent whose inputs are there again, after a crash, is not started, and its host spins": Found(
        3002,
        ["t0", "t1", "t3", "t4"],
        [(21, "file_changes", 496924054), (833, "model_faults", 434511570), (1083, "rerun", 152102000)],
    ),
    "a question of an agent program fails with the lease, and nothing takes its error": Found(
        3082, ["t0"], [(344, "deny", 707630371), (352, "lost_lease", 886513921)]
    ),
    "a person revises a task between the planner's last call and the end": Found(
        20434,
        ["t0", "t1", "t2"],
        [
            (171, "compact", 814163922), (224, "pin_fact", 232446651), (274, "compact", 758713601),
            (323, "cancel_task", 228692876), (350, "compact", 27562741), (507, "plan_revise", 143161088),
        ],
    ),
    "a question that a crash cut is answered, its call ends without it, and the agent waits for ever": Found(
        23,
        ["t0", "t1", "t2", "t3", "t4", "t5"],
        [
            (36, "crash", 316862682), (207, "pause_agent", 863796158), (396, "approve", 837490169), (405, "memory_sync", 7556185),
            (443, "crash_at_a_point", 199883709), (726, "crash_at_a_point", 551055492), (832, "compact", 532169153),
            (919, "plan_add", 873770748), (1023, "crash", 365355587), (1120, "tool_faults", 728593611),
            (1292, "crash", 897197776), (1742, "crash", 368400371), (1843, "clock_jumps", 1014179998),
        ],
    ),
}
# fmt: on
"""By what went wrong."""
