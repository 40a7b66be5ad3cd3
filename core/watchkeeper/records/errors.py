"""Errors, named for the action that the user must take. Each has an exit code (docs/commands.md)."""

from __future__ import annotations


class WatchkeeperError(Exception):
    """An error that one line explains to a user: what is wrong, and what to do next."""

    exit_code = 1


class BadInput(WatchkeeperError):
    """A flag, a file, a folder or a value that cannot be used."""

    exit_code = 2


class NotFound(WatchkeeperError):
    """No session, agent, task or artifact of that name."""

    exit_code = 3


class DrivenElsewhere(WatchkeeperError):
    """Another live host holds the session's lease."""

    exit_code = 4


class LeaseLost(WatchkeeperError):
    """Another host took the session over while this one ran; this one must stop at once, writing nothing."""

    exit_code = 4


class StoreUnusable(WatchkeeperError):
    """The database is damaged, locked, newer than this program, read-only or on a network file system."""

    exit_code = 2


STORE_LOST = (LeaseLost, StoreUnusable)
"""Errors after which this process can write nothing more: code that catches failures lets these pass."""
