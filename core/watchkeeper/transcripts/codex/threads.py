"""Which thread a log is of, whose child it is, and which of its lines repeat another thread's history.

Every thread has a log of its own. A thread that was forked or spawned names the other in its `session_meta`,
and its log begins with a copy of the other's history: lines stamped anew as a rule, as they were in some
versions, or no copy at all. Ids of threads and turns are UUIDs of version 7, which tell when they were made:
a turn that is older than its thread is not the thread's own.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from watchkeeper.transcripts.jsontext import seconds, text_of

_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_OF_THE_PROGRAM = ("subagent", "guardian_review")
BURST_SECONDS = 1.0
"""A copied history is written at once; no model answers so soon."""
COPYING_SECONDS = 60.0
"""Later than this after its first line, a thread's lines are its own whatever the ids say."""


class Thread(NamedTuple):
    """What a `session_meta` says of its thread."""

    id: str
    parent: str | None
    """The thread that spawned it; None for one that a person began."""
    forked_from: str | None
    root: str | None
    """The thread at the top of its tree, where the log names it."""
    depth: int | None
    name: str | None
    role: str | None
    at: float | None


def thread_of(meta: dict[str, Any]) -> Thread | None:
    """The thread that a `session_meta` names."""
    own = text_of(meta.get("id")) or text_of(meta.get("session_id"))
    if own is None:
        return None
    source = meta.get("source")
    kind = source.get("subagent") if isinstance(source, dict) else None
    spawn = kind.get("thread_spawn") if isinstance(kind, dict) else None
    spawn = spawn if isinstance(spawn, dict) else {}
    forked = text_of(meta.get("forked_from_id"))
    parent = text_of(spawn.get("parent_thread_id")) or text_of(meta.get("parent_thread_id"))
    root = text_of(meta.get("session_id"))
    if parent is None and (kind is not None or meta.get("thread_source") in _OF_THE_PROGRAM):
        # One that the program started by itself, for a review, say: its session is named, at least in later
        # versions.
        parent = forked or root
    parent = None if parent == own else parent
    depth = spawn.get("depth")
    other = kind if isinstance(kind, str) else kind.get("other") if isinstance(kind, dict) else None
    return Thread(
        own,
        parent,
        None if forked == own else forked,
        root if parent is not None and root != own else None,
        depth if type(depth) is int else None,
        text_of(spawn.get("agent_nickname"))
        or text_of(meta.get("agent_nickname"))
        or text_of(spawn.get("agent_path")),
        text_of(spawn.get("agent_role")) or text_of(meta.get("agent_role")) or text_of(other),
        seconds(meta.get("timestamp")),
    )


def made_at(uuid: str | None) -> int | None:
    """Milliseconds since 1970 at which a UUID of version 7 was made."""
    match = _UUID7.fullmatch(uuid) if uuid else None
    return int(match[1] + match[2], 16) if match is not None else None


class Replay:
    """Tells the copied lines at the beginning of a log from the thread's own."""

    def __init__(self, thread: Thread | None, began: float | None) -> None:
        self.going = thread is not None and (thread.parent or thread.forked_from) is not None
        """Copied lines may still come."""
        self.certain = False
        """The other thread's own `session_meta` was copied."""
        self._thread_at = made_at(thread.id) if thread is not None else None
        self._created = thread.at if thread is not None else None
        self._began = began
        self._turns = False
        """Lines tell their turns."""
        self._items = False
        """Items of the history tell their turns."""

    def save(self) -> list[Any] | None:
        if not self.going:
            return None
        return [self.certain, self._thread_at, self._created, self._began, self._turns, self._items]

    @classmethod
    def restore(cls, state: list[Any] | None) -> Replay:
        replay = cls(None, None)
        if state:
            replay.going = True
            (
                replay.certain,
                replay._thread_at,
                replay._created,
                replay._began,
                replay._turns,
                replay._items,
            ) = [*state, False][:6]
        return replay

    def copied(self, kind: Any, payload: dict[str, Any], at: float | None) -> bool:
        """Whether this line repeats the other thread's history."""
        if not self.going:
            return False
        since = at - self._began if at is not None and self._began is not None else None
        if self._began is None or (since is not None and since > COPYING_SECONDS):
            self.going = False
            return False
        turn = made_at(_turn(payload))
        if turn is not None and self._thread_at is not None:
            self._turns = True
            self._items = self._items or kind == "response_item"
            if turn >= self._thread_at:
                self.going = False
            else:
                self.certain = True
            return self.going
        if at is not None and self._created is not None and at < self._created - BURST_SECONDS:
            self.certain = True
            return True
        if since is not None and since > BURST_SECONDS and not self._turns:
            self.going = False
            return False
        if self._items and turn is None and kind == "response_item" and payload.get("role") == "developer":
            return False  # what an agent of a team is told comes before its first turn, and is of none
        if self.certain:
            return True
        return kind == "event_msg" and payload.get("type") == "token_count"


def _turn(payload: dict[str, Any]) -> str | None:
    """The turn that a line belongs to."""
    found = text_of(payload.get("turn_id"))
    for name in ("internal_chat_message_metadata_passthrough", "metadata"):
        about = payload.get(name)
        if found is None and isinstance(about, dict):
            found = text_of(about.get("turn_id"))
    return found
