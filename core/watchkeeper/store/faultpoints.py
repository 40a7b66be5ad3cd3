"""Named places where the crash tests kill the process. Costs one dictionary look-up elsewhere.

`WATCHKEEPER_FAULT=point:n` kills the process with SIGKILL at the n-th time (from 1) that it reaches `point`.
"""

from __future__ import annotations

import os
import signal

_armed: dict[str, int] = {}


def arm(specification: str | None) -> None:
    """Read `point:n[,point:n…]`. Called once at start; an empty one disarms."""
    _armed.clear()
    for part in (specification or "").split(","):
        point, _, count = part.partition(":")
        if point:
            _armed[point] = int(count or 1)


def reach(point: str) -> None:
    """Die here if the tests said so."""
    if _armed and point in _armed:
        _armed[point] -= 1
        if _armed[point] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get("WATCHKEEPER_FAULT"))
