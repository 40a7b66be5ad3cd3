"""What stands in every prompt of a session."""

from __future__ import annotations

from typing import Any

from watchkeeper.store import facts

MOST_CHARACTERS = 6_000
"""Pinned lines are paid for in every call; the newest stay where they are too many."""


def pinned_lines(reads: Any, session_id: str) -> list[str]:
    """The standing instructions for agents of a session, oldest first, one line each, at most 6,000
    characters in all."""
    kept: list[str] = []
    room = MOST_CHARACTERS
    for row in reversed(facts.pinned_facts(reads, session_id)):
        line = " ".join(str(row[2]).split())
        if len(line) > room:
            break
        room -= len(line)
        kept.append(line)
    return kept[::-1]
