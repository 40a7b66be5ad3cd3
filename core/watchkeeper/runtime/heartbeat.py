"""What a host notes by the clock: the time for which it has hosted, and a write-ahead log that grows."""

from __future__ import annotations

import asyncio

from watchkeeper.records.clock import Clock
from watchkeeper.store import database
from watchkeeper.store.session_store import SessionStore

EVERY_SECONDS = 2.0

WAL_WARNING_BYTES = 128 << 20
"""A write-ahead log beyond this is told of: some program reads without ever ending its transaction, and holds
it back."""


class Heartbeat:
    """Of one host; time is counted from when it is made."""

    def __init__(self, store: SessionStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._noted_at = clock.monotonic()
        self._wal_told = WAL_WARNING_BYTES
        self._uncounted = 0.0
        """Hosted seconds before the rest began, to be noted."""
        self._resting = False
        """Whether everything that could run is parked: such time is not hosted time."""

    def hosted_seconds(self) -> float:
        """Wall time for which the session has been hosted, through now."""
        row = self._store.one("SELECT hosted_seconds FROM sessions WHERE id = ?", (self._store.session_id,))
        return (
            float(row[0])
            + self._uncounted
            + (0.0 if self._resting else self._clock.monotonic() - self._noted_at)
        )

    def rest(self, resting: bool) -> None:
        """Say whether nothing can run until a usage limit ends. That time counts for no budget."""
        if resting == self._resting:
            return
        now = self._clock.monotonic()
        if resting:
            self._uncounted += now - self._noted_at
        self._noted_at, self._resting = now, resting

    async def run(self) -> None:
        """Note every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.note_time()
            await self._note_wal()

    async def note_time(self) -> None:
        """Add the time hosted since the last note; a budget of time counts it."""
        now = self._clock.monotonic()
        seconds = self._uncounted + (0.0 if self._resting else now - self._noted_at)
        self._uncounted, self._noted_at = 0.0, now
        await self._store.commit(
            lambda tx: tx.execute(
                "UPDATE sessions SET hosted_seconds = hosted_seconds + ? WHERE id = ?",
                (seconds, tx.session_id),
            )
        )

    async def _note_wal(self) -> None:
        """Say once, and again at each doubling, that the write-ahead log grows."""
        size = database.wal_bytes(self._store.path)
        if size < self._wal_told:
            return
        self._wal_told = size * 2
        text = (
            f"the database's write-ahead log has grown to {size >> 20} MiB: a program keeps a read open and"
            " so holds it back;"
            " close viewers and scripts that read the file, and it shrinks by itself"
        )
        await self._store.commit(lambda tx: tx.event("host.warning", text=text))
