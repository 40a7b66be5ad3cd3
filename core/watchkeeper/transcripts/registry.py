"""Which programs' logs can be read, and whose log a file is: told by its content, its place only says where
to look."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from watchkeeper.transcripts.records import Program, Source

READERS = (
    "watchkeeper.transcripts.claude",
    "watchkeeper.transcripts.codex",
    "watchkeeper.transcripts.opencode",
)
"""Modules that hold a `PROGRAM`, asked in this order. A new reader is one more line here."""


@cache
def programs() -> tuple[Program, ...]:
    """Every program, in the order in which they are asked."""
    return tuple(import_module(name).PROGRAM for name in READERS)


def by_name(name: str) -> Program | None:
    """The program of that name or alias."""
    return next((each for each in programs() if name in (each.name, each.alias)), None)


def program_of(source: Source) -> Program | None:
    """The program that wrote this log, or None where nobody knows it."""
    return next((each for each in programs() if each.recognises(source)), None)
