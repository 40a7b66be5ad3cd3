"""The `live` rows: what each agent does at this moment, written at most ten times a second."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from watchkeeper.records.ports import Clock
from watchkeeper.records.redact import Redactor
from watchkeeper.store.driver import plain
from watchkeeper.store.session_store import SessionStore
from watchkeeper.store.transaction import Transaction

PERIOD_SECONDS = 0.1
SHOWN_CHARACTERS = 2_000
"""How much of the end of a streamed text is shown."""
HELD_CHARACTERS = 64_000
"""How much of the end of a streamed text is kept: a secret is recognised by its beginning, which may be far
before the part that is shown."""


@dataclass(slots=True)
class _Shown:
    activity: str
    detail: str
    since: float
    until: float | None = None
    text: str = ""


class LiveRows:
    """Collects what loops show and writes it in the background. Nothing depends on these rows."""

    def __init__(self, store: SessionStore, clock: Clock, *, redactor: Redactor | None = None) -> None:
        self._store = store
        self._clock = clock
        self._redactor = redactor or Redactor({})
        self._shown: dict[str, _Shown] = {}
        self._dirty: set[str] = set()
        self._over: set[str] = set()

    def show(self, agent_id: str, activity: str, detail: str = "", *, until: float | None = None) -> None:
        """Set what an agent does now; a new activity clears the streamed text."""
        now = self._clock.now()
        old = self._shown.get(agent_id)
        self._over.discard(agent_id)
        same = old is not None and old.activity == activity and old.detail == detail and until is None
        since = old.since if old is not None and same else now
        text = old.text if old is not None and same else ""
        self._shown[agent_id] = _Shown(activity, detail, since, until, text)
        self._dirty.add(agent_id)

    def stream(self, agent_id: str, text: str) -> None:
        """Add streamed text."""
        shown = self._shown.get(agent_id)
        if shown is not None:
            shown.text = (shown.text + text)[-HELD_CHARACTERS:]
            self._dirty.add(agent_id)

    def end(self, agent_id: str) -> None:
        """The agent's loop has ended: write what it showed last, and forget it."""
        self._over.add(agent_id)

    async def run(self) -> None:
        """Write what changed, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write what changed since the last time."""
        dirty, self._dirty = self._dirty, set()
        over, self._over = self._over, set()
        if dirty:
            await self._write(dirty)
        for agent_id in over - self._dirty:
            self._shown.pop(agent_id, None)

    async def _write(self, dirty: set[str]) -> None:
        now, session, redactor = self._clock.now(), self._store.session_id, self._redactor
        rows = [
            (
                agent_id,
                session,
                one.activity,
                plain(redactor.text(one.detail)),
                plain(redactor.streamed(one.text)[-SHOWN_CHARACTERS:]),
                one.since,
                one.until,
                now,
            )
            for agent_id, one in ((agent_id, self._shown[agent_id]) for agent_id in dirty)
        ]

        def write(tx: Transaction) -> None:
            tx.executemany(
                "INSERT INTO live (agent_id, session_id, activity, detail, text, since, until, updated_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (agent_id) DO UPDATE SET activity ="
                " excluded.activity,"
                " detail = excluded.detail, text = excluded.text, since = excluded.since, until ="
                " excluded.until,"
                " updated_at = excluded.updated_at",
                rows,
            )

        await self._store.commit(write)
