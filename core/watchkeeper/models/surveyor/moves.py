"""What the surveyor does next: some words, the cursor, and tool calls."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.models.surveyor.situation import CURSOR, MOST_ATTEMPTS, Outcome

Call = tuple[str, dict[str, Any]]
"""A tool's name and its input."""


@dataclass(frozen=True, slots=True)
class Move:
    """One reply, before it is put into blocks. Without calls it ends the turn."""

    text: str
    cursor: dict[str, Any] | None = None
    calls: list[Call] = field(default_factory=list)

    def words(self) -> str:
        """The text block: the words, and the cursor on a line of its own."""
        if self.cursor is None:
            return self.text
        return f"{self.text}\n\n{CURSOR} {compact(self.cursor)}"


def compact(value: object) -> str:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def again(outcomes: list[Outcome]) -> list[Call]:
    """The calls among these that failed, to be made once more as they were."""
    return [(outcome.name, outcome.arguments) for outcome in outcomes if outcome.failed]


def exhausted(attempts: int, failed: list[Outcome], most: int = MOST_ATTEMPTS) -> bool:
    """Trying again is pointless: it was tried often enough, or a person said no."""
    return attempts >= most or any(outcome.denied and not outcome.transient for outcome in failed)


def reason(outcomes: list[Outcome]) -> str:
    """The first failure in one short line."""
    for outcome in outcomes:
        if outcome.failed:
            line = " ".join(outcome.text.split())
            return f"{outcome.name}: {line if len(line) <= 160 else line[:159] + '…'}"
    return "no reason was given"


def count(number: int, singular: str, plural: str | None = None) -> str:
    """`1 file`, `1,234 files`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
