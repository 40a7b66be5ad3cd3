"""What a person took back in a session of OpenCode: undone, redone, or removed for good.

A session's `revert` names a message (or one of its parts): it and all that follows are in the context no
more. They stay stored while nothing else is said, so that they can be brought back (`revert` is gone, and
they are there) or the place be moved. The next prompt removes them (`revert` is gone, and so are they).
Whoever did not look in between finds that messages are missing that were there; the newest prompts are
remembered for that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from watchkeeper.transcripts.jsontext import parse, text_of
from watchkeeper.transcripts.records import Record, Rewind

PROMPTS_KEPT = 8
"""The newest prompts of a session that are known again once they are gone."""

Place = tuple[str, str]
"""Message and part (empty: all of it) from which on everything is taken back."""


def place_of(value: Any) -> Place | None:
    """What a session's `revert` names: an object, or one as text."""
    if isinstance(value, str | bytes):
        value = parse(value if isinstance(value, bytes) else value.encode("utf-8", "replace"))
    message = text_of(value.get("messageID")) if isinstance(value, dict) else None
    return (message, text_of(value.get("partID")) or "") if message is not None else None


class Undoing:
    """What was told of one session's undoing.

    Args:
        session_id: its id.
        key: key of its agent.
        memory: what an earlier reading kept.
    """

    def __init__(self, session_id: str, key: str, memory: dict[str, Any]) -> None:
        self._session = session_id
        self._key = key
        self._prompts: dict[str, str] = dict(memory.get("prompts", {}))
        """Message of a person → `uid` of the first of what it became."""
        told = memory.get("undone")
        self._told: Place | None = (told[0], told[1]) if told else None
        self._count = int(memory.get("undos", 0))

    def memory(self) -> dict[str, Any]:
        """What a later reading needs."""
        return {
            name: value
            for name, value in (("prompts", self._prompts), ("undone", self._told), ("undos", self._count))
            if value
        }

    @property
    def is_undone(self) -> bool:
        """Whether something is taken back, and can be brought back yet."""
        return self._told is not None

    def asked(self, message_id: str, uid: str) -> None:
        """A person said something."""
        self._prompts.pop(message_id, None)
        self._prompts[message_id] = uid
        if len(self._prompts) > PROMPTS_KEPT:
            self._prompts.pop(next(iter(self._prompts)))

    def before(
        self, place: Place | None, stored: Collection[str], fresh: Collection[str], at: float | None
    ) -> list[Record]:
        """What became of messages that were told earlier.

        Args:
            place: from where on everything is taken back now.
            stored: ids of the messages that are there.
            fresh: those of them that are new.
            at: when the session last changed.
        """
        found: list[Record] = []
        if self._told is not None and self._told != place:
            if self._told[0] in stored:
                found.append(Rewind(self._key, self._uid(), 0, at, undoes=True))
            self._told = None
        gone: list[str] = []
        for each in reversed(self._prompts):
            if each in stored:
                break
            gone.append(each)
        later = [each for each in stored if gone and each > gone[-1]]  # ids follow the clock
        if later and all(each in fresh for each in later):
            found.append(Rewind(self._key, self._uid(), 0, at, first=self._prompts[gone[-1]]))
            self._prompts = {each: uid for each, uid in self._prompts.items() if each not in gone}
        return found

    def after(
        self, place: Place | None, first: Callable[[Place], str | None], at: float | None
    ) -> list[Record]:
        """What is taken back now, once all that there is was told; `first` gives the `uid` of what came of a
        place."""
        if place is None or place == self._told:
            return []
        uid = first(place)
        if uid is None:
            return []
        self._told = place
        return [Rewind(self._key, self._uid(), 0, at, first=uid)]

    def _uid(self) -> str:
        self._count += 1
        return f"{self._session}:undo:{self._count}"
