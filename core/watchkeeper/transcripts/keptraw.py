"""Which lines of a log that is read once more are kept raw already."""

from __future__ import annotations

from collections import Counter
from typing import Any

from watchkeeper.store import transcripts as rows
from watchkeeper.transcripts.jsontext import parse, same_bytes


class KeptRaw:
    """The lines that were kept raw of one log, each to be found once more as often as it is kept.

    They are read once for a reading, as a number each. A batch may be run twice: what a chunk found is there
    again when the chunk begins again.
    """

    def __init__(self) -> None:
        self._left: dict[str, Counter[int]] = {}
        """By session."""
        self._found: dict[int, list[tuple[str, int]]] = {}
        """By where in the log the chunk begins that found them."""
        self._place = 0

    def begin(self, place: int) -> None:
        """A chunk begins at this place of the log."""
        for later in [each for each in self._found if each >= place]:
            for session_id, number in self._found.pop(later):
                self._left[session_id][number] += 1
        self._place = place

    def holds(self, cursor: Any, path: str, session_id: str, text: str) -> bool:
        """Whether this line is kept already."""
        left = self._left.get(session_id)
        if left is None:
            left = self._left[session_id] = rows.raw_kept(cursor, path, session_id, _number_of)
        number = _number_of(text)
        if left[number] <= 0:
            return False
        left[number] -= 1
        self._found.setdefault(self._place, []).append((session_id, number))
        return True


def _number_of(text: str) -> int:
    """A number for what a line says, however its JSON is written."""
    record = parse(text.encode("utf-8", "replace"))
    return hash(text if record is None else same_bytes(record))
