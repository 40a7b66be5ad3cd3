"""The second barrier: whatever a widget forgot to sanitise is made harmless on its way to the terminal."""

from __future__ import annotations

import re

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from watchkeeper_tui.sanitize import MARK

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
)


class HostileTextFilter(LineFilter):
    """Replaces, in every line painted, each character that could act on a terminal; keeps the number of
    cells."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if not any(_UNSAFE.search(segment.text) for segment in segments):
            return segments
        return [Segment(_UNSAFE.sub(_mark, text), style, None) for text, style, _ in segments]


def _mark(match: re.Match[str]) -> str:
    return " " if match.group() in "\t\n\r" else MARK
