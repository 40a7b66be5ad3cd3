"""Which messages a conversation holds whose log is a tree: each entry names its parent, and the newest one is the end."""

from __future__ import annotations

from msgspec import Struct, field

from watchkeeper.transcripts.records import Rewind

ENTRIES_KEPT = 2_000
"""The newest entries of the conversation that are known. A person who goes back further undoes all of these."""
_BESIDE = "-"
"""With what the name of an entry begins that is no message."""


class Branches(Struct, array_like=True):
    """The entries from the first one to the end. As JSON it is the list of its fields: part of a reader's saved state."""

    path: list[str] = field(default_factory=list)
    """The ids of the conversation's entries, the oldest first."""
    dropped: int = 0
    """How many of its entries came before those in `path`."""
    left: list[str] = field(default_factory=list)
    """What a person went back from last, behind the entry that it followed."""

    def add(self, uid: str, *, is_message: bool) -> None:
        """An entry follows the end."""
        self.path.append(uid if is_message else f"{_BESIDE}{uid}")
        if (over := len(self.path) - ENTRIES_KEPT) > 0:
            self.dropped += over
            del self.path[:over]

    def go_to(self, agent: str, parent: str | None, at: float | None) -> list[Rewind]:
        """The next entry follows `parent` (None: it is the first). Where that is not the end, a person went back, and what came
        after it left the conversation."""
        names = _names(self.path)
        found: list[Rewind] = []
        if parent in names or parent is None:
            place = names.index(parent) + 1 if parent is not None else 0
            gone, back = self.path[place:], []
        elif parent in (left := _names(self.left[1:])) and self.left[0] in ["", *names]:
            # Back to what was left last, which is in the conversation again.
            place = names.index(self.left[0]) + 1 if self.left[0] else 0
            gone, back = self.path[place:], self.left[1 : left.index(parent) + 2]
            found.append(Rewind(agent, "", 0, at, undoes=True))
        else:
            return []  # an entry that is not known here
        if not gone and not back:
            return []
        removed = [*self.left[len(back) + 1 :], *gone] if back else gone
        found += (Rewind(agent, "", 0, at, first=first) for first in _messages(removed)[:1])
        self.left = [names[place - 1] if place else "", *gone]
        self.path[place:] = back
        return found

    def messages_from(self, uid: str | None = None, *, index: int | None = None) -> tuple[str, ...]:
        """The messages from an entry on, which is named by its id, or by its number among all entries."""
        names = _names(self.path)
        first = names.index(uid) if uid in names else len(names)
        if index is not None:
            first = min(max(0, index - self.dropped), len(names))
        return tuple(_messages(self.path[first:]))


def _names(path: list[str]) -> list[str]:
    return [each.removeprefix(_BESIDE) for each in path]


def _messages(path: list[str]) -> list[str]:
    return [each for each in path if not each.startswith(_BESIDE)]
