"""Where a history may be cut: never between a tool call and its result, never behind a call still
unanswered."""

from __future__ import annotations

from collections.abc import Sequence

from watchkeeper.memory.content import call_ids, result_ids
from watchkeeper.records.memory import Message


def cut_points(messages: Sequence[Message], *, orphans: bool = False) -> list[bool]:
    """For `messages` (consecutive), whether a cut before each of them is allowed, and last, behind all of
    them.

    A pair is a call and the first later result of that id, however far away; a call without a result forbids
    all cuts
    behind it. `orphans`: only until the assistant speaks again, as then nobody waits for that result any
    more. The bound needs this, or one lost result would keep everything behind it verbatim for ever.
    """
    count = len(messages)
    steps = [0] * (count + 2)
    waiting: dict[str, int] = {}
    live: list[int] = []

    def forbid(first: int, last: int) -> None:
        steps[first] += 1
        steps[last + 1] -= 1

    for place, message in enumerate(messages):
        if message.role == "assistant":
            live = []
            for call in call_ids(message.role, message.content):
                waiting[call] = place
                live.append(place)
        else:
            for call in result_ids(message.role, message.content):
                asked = waiting.pop(call, None)
                if asked is not None:
                    forbid(asked + 1, place)
    still = [place for place in waiting.values() if not orphans or place in live]
    if still:
        forbid(min(still) + 1, count)
    allowed: list[bool] = []
    depth = 0
    for place in range(count + 1):
        depth += steps[place]
        allowed.append(depth == 0)
    return allowed


def newest_group(messages: Sequence[Message]) -> int:
    """Index at which the newest group begins: the last message, or the calls that it brings results for.

    The smallest part that the API takes by itself: only results that directly follow their call bind here.
    """
    last = len(messages) - 1
    place = last
    while place > 0 and result_ids(messages[place].role, messages[place].content):
        place -= 1
    if place < last and not call_ids(messages[place].role, messages[place].content):
        return last
    return max(place, 0)


def newest_turn(messages: Sequence[Message]) -> int:
    """Index of the last assistant message where it and what answers it are the end of the history; else the
    newest group.

    A model finds its own last words and the answer to them, not a digest of them.
    """
    group = newest_group(messages)
    for place in range(len(messages) - 1, max(-1, group - 3), -1):
        if messages[place].role == "assistant":
            return min(place, group)
    return group
