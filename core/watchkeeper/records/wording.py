"""Words that every face of the program puts in the same way."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """`1 message`, `1,200 messages`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
