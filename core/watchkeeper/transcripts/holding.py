"""Sessions that are shown as live because their logs grow: each is held by its lease, as a run of our own is
by its host."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from watchkeeper.records.errors import DrivenElsewhere, StoreUnusable
from watchkeeper.store import following
from watchkeeper.store.driver import Connection
from watchkeeper.store.lease import Lease, probe
from watchkeeper.store.writer import Writer

LEASES = 32
"""Sessions that are held at once: those that grew last."""
QUIET_SECONDS = 1_800.0
"""A session that did not grow for so long is over, until it grows again."""


class Holding:
    """The sessions that one follower holds."""

    def __init__(self, writer: Writer, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._clock = clock
        self._held: OrderedDict[str, tuple[Lease, float]] = OrderedDict()
        """By what was said of each last, the newest at the end."""

    def grew(self, session_ids: Iterable[str]) -> None:
        """These sessions have something new."""
        now, taken = self._clock(), []
        for session_id in session_ids:
            held = self._held.pop(session_id, None)
            if held is None:
                try:
                    lease = Lease.acquire(self._writer.path, session_id)
                except (DrivenElsewhere, StoreUnusable):
                    continue  # another follower holds it: two may follow one log, and take turns
                taken.append(session_id)
            else:
                lease = held[0]
            self._held[session_id] = (lease, now)
        if taken:
            self._writer.submit(lambda group: following.begin(group.connection, taken)).result()
        self._let_go(list(self._held)[: max(0, len(self._held) - LEASES)])

    def settle(self) -> None:
        """Let go of those that are quiet."""
        before = self._clock() - QUIET_SECONDS
        self._let_go([session_id for session_id, (_, grew) in self._held.items() if grew < before])

    def close(self) -> None:
        """Nothing is followed any more: no agent is at work as far as anybody here knows."""
        self._let_go(list(self._held))

    def _let_go(self, session_ids: list[str]) -> None:
        if not session_ids:
            return
        self._writer.submit(lambda group: following.end(group.connection, session_ids)).result()
        for session_id in session_ids:
            self._held.pop(session_id)[0].release()


def end_abandoned(writer: Writer, connection: Connection) -> None:
    """Whatever a follower that was killed left as live is over."""
    alone = [each for each in following.followed(connection) if probe(writer.path, each) is None]
    if alone:
        writer.submit(lambda group: following.end(group.connection, alone)).result()
