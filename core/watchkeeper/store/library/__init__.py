"""The library of sessions: what may be done with one without a host.

Renaming, tagging, deleting with a way back, forking, pruning and backing up. Each change holds the session's
lease while it lasts, so that no host can begin beside it, and commits in short transactions, so that hosts of
other sessions are not kept waiting. Nothing here starts a process or asks a model, and importing it costs
next to nothing.
"""

from __future__ import annotations

from watchkeeper.store.library.backing_up import BackupDone, backup, move
from watchkeeper.store.library.comparing import Comparison, SessionSide, compare
from watchkeeper.store.library.deletion import UNDO_DAYS, Deleted, delete, deleted_sessions, restore
from watchkeeper.store.library.forking import Forked, fork
from watchkeeper.store.library.naming import change_tags, rename
from watchkeeper.store.library.pruning import Doomed, PruneDone, PrunePlan, plan_prune, prune, vacuum

__all__ = [
    "UNDO_DAYS",
    "BackupDone",
    "Comparison",
    "Deleted",
    "Doomed",
    "Forked",
    "PruneDone",
    "PrunePlan",
    "SessionSide",
    "backup",
    "change_tags",
    "compare",
    "delete",
    "deleted_sessions",
    "fork",
    "move",
    "plan_prune",
    "prune",
    "rename",
    "restore",
    "vacuum",
]
