"""From which position on each model call was written: what `library.calls_then` asks for one moment, for all
positions at once."""

from __future__ import annotations

from bisect import bisect_left

from watchkeeper.store.replaying.listening import Heard
from watchkeeper.store.replaying.rows import CallRow

NEVER = 1 << 62


def written_at(calls: list[CallRow], heard: Heard) -> list[tuple[int, CallRow]]:
    """The calls with their positions.

    A reply's call is written with the event that tells of it. One that failed, and those of passes over a
    context, have
    no event of their own: their ids lie between those of replies, and a pass writes its calls when it tells
    of itself.
    """
    replies = [_reply_position(call, heard) if call.is_reply else None for call in calls]
    after: list[int] = [NEVER] * len(calls)
    earliest = NEVER
    for place in range(len(calls) - 1, -1, -1):
        after[place] = earliest
        found = replies[place]
        if found is not None:
            earliest = min(earliest, found)
    written: list[tuple[int, CallRow]] = []
    latest = 0
    for place, call in enumerate(calls):
        position = replies[place]
        if position is None:
            position = min(after[place], max(latest, _own_position(call, heard)))
        else:
            latest = max(latest, position)
        # What nothing later tells of came after the last event: it belongs to the end.
        written.append((min(position, len(heard.times)), call))
    return written


def _reply_position(call: CallRow, heard: Heard) -> int:
    turns, positions = heard.replies.get(call.agent_id, ([], []))
    place = bisect_left(turns, call.turn)
    return positions[place] if place < len(turns) else NEVER


def _own_position(call: CallRow, heard: Heard) -> int:
    """Of a call that is no reply: where the pass that it was made for told what came of it, else when it
    ended."""
    if call.purpose not in ("turn", "planner"):
        around = [
            told for begun, at, told in heard.passed.get(call.agent_id, []) if begun <= call.ended_at <= at
        ]
        if around:
            return min(around)
    place = bisect_left(heard.times, call.ended_at)
    return place + 1 if place < len(heard.times) else NEVER
