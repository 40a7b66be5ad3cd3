"""How long to wait before asking again."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounded retries: exponential, jittered, and obedient to a delay that the server asks for."""

    max_retries: int = 5
    """Requests sent after the first one."""
    base_seconds: float = 2.0
    cap_seconds: float = 45.0
    """The longest wait of our own choosing. With the default base, five waits take up to about a minute;
    with the attempts between them a dead provider is given up after about two."""
    longest_server_delay_seconds: float = 900.0
    """A server that asks for longer is not waited for: the caller is told, and knows until when."""

    def wait_seconds(self, retry: int, rng: random.Random, retry_after_seconds: float | None) -> float | None:
        """The wait before retry number `retry` (from 1), or None to give up now.

        A server's delay is never undercut; up to a tenth (at most 5 s) is added so that many agents told the
        same second do not come back in the same second. Without one, the wait is drawn from the upper half
        of the exponential step.
        """
        if retry > self.max_retries:
            return None
        if retry_after_seconds is not None and retry_after_seconds > 0:
            if retry_after_seconds > self.longest_server_delay_seconds:
                return None
            return retry_after_seconds + rng.random() * min(5.0, retry_after_seconds / 10)
        step = min(self.cap_seconds, self.base_seconds * 2.0 ** min(retry - 1, 30))
        return step * (0.5 + rng.random() / 2)
