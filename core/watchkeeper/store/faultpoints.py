"""Named places where the crash tests kill the process. In other runs, each costs one test of a global.

`WATCHKEEPER_FAULT=point:n` kills the process with SIGKILL at the n-th time (from 1) that it reaches `point`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

_listener: Callable[[str], None] | None = None


def arm(specification: str | None) -> None:
    """Read `point:n[,point:n…]`. Called once at start; an empty one disarms."""
    left: dict[str, int] = {}
    for part in (specification or "").split(","):
        point, _, count = part.partition(":")
        if point:
            left[point] = int(count or 1)

    def die(point: str) -> None:
        if point in left:
            left[point] -= 1
            if left[point] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    tell(die if left else None)


def tell(listener: Callable[[str], None] | None) -> None:
    """Call `listener(point)` at every point that is reached, on the thread that reaches it; None: no more."""
    global _listener
    _listener = listener


def reach(point: str) -> None:
    """Die here if the tests said so."""
    if _listener is not None:
        _listener(point)


arm(os.environ.get("WATCHKEEPER_FAULT"))
