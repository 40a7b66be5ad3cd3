"""A test of how an amount of work grows. It compares two sizes in one process, so that a slow machine passes it too."""

from __future__ import annotations

import time
from collections.abc import Callable


def in_proportion(work: Callable[[int], object], size: int, *, tries: int = 4) -> bool:
    """Whether eight times the size takes less than 20 times the processor time; a work that compares each part with all
    others takes 64 times. A pair that something else disturbed is measured again, `tries` pairs at most."""

    def seconds(of: int) -> float:
        began = time.process_time()
        work(of)
        return time.process_time() - began

    work(min(1_000, size))
    return any(seconds(8 * size) < max(0.5, 20 * seconds(size)) for _ in range(tries))
