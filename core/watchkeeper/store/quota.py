"""What is left of the usage windows of each provider and account: the newest reading of each, for the whole database.

Imports, runs and the reader of hooks write readings with `note_readings`. A reading that is older than the one that is kept
only moves the beginning of its window, so the order in which logs are imported does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from watchkeeper.records.quota import (
    LOW_PERCENT,
    VERY_LOW_PERCENT,
    Quota,
    QuotaReading,
    is_same_window,
)
from watchkeeper.store.driver import Connection, Reads

_COLUMNS = "provider, account, scope, minutes, used_percent, resets_at, read_at, source, first_percent, first_at, alerted_percent"
_OF_KEY = "provider = ? AND account = ? AND scope = ? AND minutes = ?"
_QUOTAS = f"SELECT {_COLUMNS} FROM quota_readings ORDER BY provider, account, minutes, scope"


def note_readings(reads: Reads, execute: Callable[..., object], readings: Iterable[QuotaReading]) -> None:
    """Keep these readings, as far as they are newer than what is kept. `execute` writes where `reads` reads."""
    for reading in _telling(readings):
        row = reads.one(f"SELECT {_COLUMNS} FROM quota_readings WHERE {_OF_KEY}", reading.key)
        alerted: float | None = None
        first_percent, first_at = reading.used_percent, reading.at
        if row is not None:
            kept = _quota(row)
            if reading.at <= kept.newest.at:
                if reading.at < kept.first_at and is_same_window(reading, kept.newest):
                    execute(
                        f"UPDATE quota_readings SET first_percent = ?, first_at = ? WHERE {_OF_KEY}",
                        (reading.used_percent, reading.at, *reading.key),
                    )
                continue
            if is_same_window(kept.newest, reading):
                first_percent, first_at, alerted = kept.first_percent, kept.first_at, row[10]
        execute(
            f"INSERT INTO quota_readings ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (provider, account, scope, minutes) DO UPDATE SET used_percent = excluded.used_percent,"
            " resets_at = excluded.resets_at, read_at = excluded.read_at, source = excluded.source,"
            " first_percent = excluded.first_percent, first_at = excluded.first_at,"
            " alerted_percent = excluded.alerted_percent",
            (
                *reading.key, reading.used_percent, reading.resets_at, reading.at, reading.source,
                first_percent, first_at, alerted,
            ),
        )  # fmt: skip


def _telling(readings: Iterable[QuotaReading]) -> Iterator[QuotaReading]:
    """The first and the last of these readings for each window; those between add nothing."""
    runs: dict[tuple[str, str, str, int], list[QuotaReading]] = {}
    for reading in sorted(readings, key=lambda each: each.at):
        run = runs.setdefault(reading.key, [])
        if run and not is_same_window(run[-1], reading):
            run.clear()
        run[1:] = [reading]
    for run in runs.values():
        yield from run


def load_quotas(connection: Connection) -> tuple[Quota, ...]:
    """Every window of which something was read."""
    return tuple(map(_quota, connection.execute(_QUOTAS).fetchall()))


class DueAlert(NamedTuple):
    """A window that fell below a limit at which the person gets an alert."""

    quota: Quota
    below_percent: float


def due_alerts(reads: Reads, now: float) -> list[DueAlert]:
    """The windows that passed below 20 % or 5 % since the last alert about them; `take_alert` says that one is sent."""
    found = []
    for row in reads.all(_QUOTAS, ()):
        quota = _quota(row)
        left, alerted = quota.left_percent(now), row[10]
        below = next(
            (each for each in (VERY_LOW_PERCENT, LOW_PERCENT) if left is not None and left < each), None
        )
        if below is not None and (alerted is None or alerted > below):
            found.append(DueAlert(quota, below))
    return found


def take_alert(changed: Callable[..., int], due: DueAlert) -> bool:
    """Note that an alert is sent; False: another process does. `changed` runs a statement and returns how many rows it changed."""
    return (
        changed(
            f"UPDATE quota_readings SET alerted_percent = ? WHERE {_OF_KEY} AND (alerted_percent IS NULL OR alerted_percent > ?)",
            (due.below_percent, *due.quota.newest.key, due.below_percent),
        )
        == 1
    )


def _quota(row: Any) -> Quota:
    return Quota(QuotaReading(*row[:8]), row[8], row[9])
