"""What an import did, counted; and the one line that says it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MOST_REASONS = 4


@dataclass(slots=True)
class Report:
    """Counts of one import. `read + raw + skipped + waiting` are all lines of the logs that were looked
    into."""

    files: int = 0
    """Logs of which something was read."""
    unchanged: int = 0
    """Logs that hold nothing new."""
    deleted: int = 0
    """Logs of sessions that were deleted here: left alone until they are restored."""
    sessions: set[str] = field(default_factory=set)
    """Ids of the sessions that were added to."""
    read: int = 0
    raw: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kind of record and reason → lines that are kept as they are."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason → lines that are not kept, since what they say is."""
    changed: int = 0
    """Records among those read that are here already, and say something else now: each is kept as a new
    revision."""
    waiting: int = 0
    """Last lines without an end."""
    left: dict[str, str] = field(default_factory=dict)
    """Files and folders that could not be read → why."""
    unknown: list[str] = field(default_factory=list)
    """Files that are no log of a known program."""
    bytes_read: int = 0
    seconds: float = 0.0

    @property
    def lines(self) -> int:
        """All lines looked at."""
        return self.read + self.raw.total() + self.skipped.total() + self.waiting

    def line(self) -> str:
        """The one line."""
        parts = [f"{_count(self.files, 'log')} of {_count(len(self.sessions), 'session')}"]
        if self.unchanged:
            parts[0] += f" ({self.unchanged:,} unchanged)"
        parts.append(f"{self.read:,} records read")
        if self.changed:
            parts.append(f"{_count(self.changed, 'record')} changed (kept as new revisions)")
        parts.append(f"{self.raw.total():,} kept raw" + _why(self._raw_reasons()))
        parts.append(f"{self.skipped.total():,} skipped" + _why(self.skipped))
        if self.waiting:
            parts.append(f"{_count(self.waiting, 'unfinished last line')} waiting")
        if self.deleted:
            parts.append(f"{_count(self.deleted, 'log')} of sessions that were deleted here")
        if self.unknown:
            parts.append(f"{_count(len(self.unknown), 'file')} of no known program")
        if self.left:
            parts.append(f"{len(self.left):,} not readable" + _why(Counter(self.left.values())))
        return "; ".join(parts)

    def _raw_reasons(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (_, reason), count in self.raw.items():
            found[reason] += count
        return found


def _why(reasons: Counter[str]) -> str:
    if not reasons:
        return ""
    shown = [f"{count:,} {reason}" for reason, count in reasons.most_common(MOST_REASONS)]
    rest = len(reasons) - len(shown)
    return " (" + ", ".join(shown) + (f", {rest} other reasons" if rest else "") + ")"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
