"""Which thread a log is of, whose child it is, and which of its lines repeat another thread's history.

Every thread has a log of its own. A thread that was forked or spawned names the other in its `session_meta`,
and its log begins with a copy of the other's history: lines with new timestamps as a rule, as they were in some
versions, or no copy at all. Ids of threads and turns are UUIDs of version 7, which tell when they were made:
a turn that is older than its thread is not the thread's own.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from msgspec import Struct

from watchkeeper.transcripts.jsontext import object_of, seconds, text_of

_UUID7 = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_OF_THE_PROGRAM = ("subagent", "guardian_review")
_ABOUT_TURN = ("internal_chat_message_metadata_passthrough", "metadata")
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
    kind = object_of(meta.get("source")).get("subagent")
    spawn = object_of(object_of(kind).get("thread_spawn"))
    forked = text_of(meta.get("forked_from_id"))
    parent = text_of(spawn.get("parent_thread_id")) or text_of(meta.get("parent_thread_id"))
    root = text_of(meta.get("session_id"))
    if parent is None and (kind is not None or meta.get("thread_source") in _OF_THE_PROGRAM):
        # One that the program started by itself, for a review, say: its session is named, at least in later
        # versions.
        parent = forked or root
    parent = None if parent == own else parent
    depth = spawn.get("depth")
    other = kind if isinstance(kind, str) else object_of(kind).get("other")
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


class Replay(Struct, array_like=True):
    """Distinguishes the copied lines at the beginning of a log from the thread's own. As JSON it is the list of
    its fields: part of a reader's saved state."""

    certain: bool = False
    """The other thread's own `session_meta` was copied."""
    thread_at: int | None = None
    """When the thread was made, by its id, in milliseconds."""
    created: float | None = None
    began: float | None = None
    turns: bool = False
    """Lines name their turns."""
    items: bool = False
    """Items of the history name their turns."""
    going: bool = False
    """Copied lines may still come."""

    @classmethod
    def of(cls, thread: Thread, began: float | None) -> Replay:
        """At the beginning of a thread's log."""
        going = (thread.parent or thread.forked_from) is not None
        return cls(thread_at=made_at(thread.id), created=thread.at, began=began, going=going)

    def copied(self, kind: Any, payload: dict[str, Any], at: float | None) -> bool:
        """Whether this line repeats the other thread's history."""
        if not self.going:
            return False
        since = at - self.began if at is not None and self.began is not None else None
        if self.began is None or (since is not None and since > COPYING_SECONDS):
            self.going = False
            return False
        turn = made_at(_turn(payload))
        if turn is not None and self.thread_at is not None:
            self.turns = True
            self.items = self.items or kind == "response_item"
            if turn >= self.thread_at:
                self.going = False
            else:
                self.certain = True
            return self.going
        if at is not None and self.created is not None and at < self.created - BURST_SECONDS:
            self.certain = True
            return True
        if since is not None and since > BURST_SECONDS and not self.turns:
            self.going = False
            return False
        if self.items and turn is None and kind == "response_item" and payload.get("role") == "developer":
            return False  # a message to an agent of a team comes before its first turn, and is of none
        if self.certain:
            return True
        return kind == "event_msg" and payload.get("type") == "token_count"


def _turn(payload: dict[str, Any]) -> str | None:
    """The turn that a line belongs to."""
    named = (payload, *(object_of(payload.get(name)) for name in _ABOUT_TURN))
    return next((turn for each in named if (turn := text_of(each.get("turn_id")))), None)
