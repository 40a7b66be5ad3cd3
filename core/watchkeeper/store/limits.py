"""Rows of `rate_limits`: what a provider asks of all hosts of this database, one row for each provider and
model.

`rate`: hold back for some seconds; calls wait for it. `usage`: a usage limit until `until`; agents are
parked. `blocked`: no credit or a bad key, which has no time (`until` is 0); the session pauses. A row of the
last two kinds stays until a call has succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from watchkeeper.store.encoding import plain
from watchkeeper.store.writer import Group

RATE, USAGE, BLOCKED = "rate", "usage", "blocked"


@dataclass(frozen=True, slots=True)
class NotedLimit:
    """What is noted of one provider and model."""

    kind: str
    until: float
    """Wall time; 0 for `blocked`."""
    reason: str
    noted_at: float


def find(reads: Any, model_ref: str) -> NotedLimit | None:
    """What is noted of a model, of whichever kind."""
    provider, _, name = model_ref.partition("/")
    row = reads.one(
        "SELECT kind, until, reason, noted_at FROM rate_limits WHERE provider = ? AND model = ?",
        (provider, name),
    )
    if row is None:
        return None
    return NotedLimit(row[0], float(row[1]), row[2], float(row[3]) if row[3] is not None else 0.0)


def note(group: Group, model_ref: str, limit: NotedLimit) -> None:
    """Write what a provider asks. A `rate` limit never hides one of the other kinds, which a call must lift
    first."""
    provider, _, name = model_ref.partition("/")
    group.connection.execute(
        "INSERT INTO rate_limits (provider, model, until, reason, kind, noted_at) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (provider, model) DO UPDATE SET"
        " until = CASE WHEN excluded.kind = 'rate' AND rate_limits.until > excluded.until THEN"
        " rate_limits.until"
        " ELSE excluded.until END, reason = excluded.reason, kind = excluded.kind, noted_at ="
        " excluded.noted_at"
        " WHERE excluded.kind <> 'rate' OR rate_limits.kind = 'rate'",
        (provider, name, limit.until, plain(limit.reason), limit.kind, limit.noted_at),
    )


def lift(group: Group, model_ref: str) -> None:
    """A call has succeeded: the usage limit, or what blocked the model, is over."""
    provider, _, name = model_ref.partition("/")
    group.connection.execute(
        "DELETE FROM rate_limits WHERE provider = ? AND model = ? AND kind IN ('usage', 'blocked')",
        (provider, name),
    )
