"""The one door through which text from models, tools and files reaches the screen.

What passes moves no cursor, starts no escape sequence, reorders no neighbour and hides nothing: what was
there and cannot be shown becomes a visible mark or a space.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rich.cells import cell_len, get_character_cell_size
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

MARK = "\N{MIDDLE DOT}"
"""Replaces a character that must not reach a terminal."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_COLOURS = re.compile(r"(?:\x1b\[|\x9b)[0-9:;]*m")
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # control sequences (CSI)
    # short sequences; the strings (OSC, DCS, APC, PM, SOS) keep their text in sight
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)
_UNSTEADY = "\U0001f3fb-\U0001f3ff"
"""Skin tones: two columns or none, as the terminal has it; all else in their line would stand elsewhere."""
_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_SPACES = re.compile("[\u2000-\u200a\u00a0\u1680\u202f\u205f\u3000]")
_HOSTILE = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_INVISIBLE}{_UNSTEADY}]")
_LINES = re.compile(r"\r\n|[\n\r\v\f\x85\u2028\u2029]")
_ZALGO = re.compile("([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{3})"
                    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")  # fmt: skip


def _replace(match: re.Match[str]) -> str:
    character = match.group()
    if character in "\t\n\r\v\f\x85\u2028\u2029":
        return " "
    if "\ud800" <= character <= "\udfff":
        return REPLACEMENT
    return MARK


def sanitize(text: str) -> str:
    """`text` as one line that is safe on any terminal: same words, nothing that acts, nothing that hides.

    Colours go; other escape sequences, C0 and C1 controls, DEL, bidi controls, zero-width and tag characters
    and variation selectors become `MARK`; line breaks and tabs a space; lone surrogates U+FFFD; unusual
    spaces a plain one. The text inside a terminal's string (a title, a clipboard) stays in sight. Idempotent.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPES.sub(MARK, _COLOURS.sub("", text))
    text = _HOSTILE.sub(_replace, text)
    text = _SPACES.sub(" ", text)
    return _ZALGO.sub(r"\1", text)


def sanitize_text(text: str) -> str:
    """`text` with its lines and tabs, else as `sanitize` has it: what is copied acts on no terminal that it
    is pasted into."""
    return "\n".join("\t".join(map(sanitize, line.split("\t"))) for line in _LINES.split(text))


def sanitize_lines(text: str, *, limit: int = 10_000) -> list[str]:
    """`text` as sanitised lines, at most `limit` of them; tabs go to the next multiple of four columns."""
    lines: list[str] = []
    for line in _LINES.split(text, maxsplit=limit):
        if len(lines) == limit:
            break
        lines.append(sanitize(line.expandtabs(4)))
    return lines


@lru_cache(4096)
def width(text: str) -> int:
    """Cells that `text` takes on a terminal."""
    return cell_len(text)


def clip_label(label: str, cells: int) -> str:
    """An agent's or a task's `name (role)` in at most `cells` columns: the role goes before any of the name does."""
    if cell_len(label) <= cells:
        return label
    name, _, role = label.rpartition(" (")
    return clip(name if name and role.endswith(")") else label, cells)


def clip(text: str, cells: int) -> str:
    """`text` cut to at most `cells` columns, with an ellipsis where something was cut."""
    if cells <= 0:
        return ""
    if len(text) <= cells and text.isascii():
        return text
    if len(text) > cells * 4 + 8:
        text, cut = text[: cells * 4 + 8], True
    else:
        cut = False
    if not cut and cell_len(text) <= cells:
        return text
    used = 0
    for index, character in enumerate(text):
        size = get_character_cell_size(character)
        if used + size > cells - 1:
            return text[:index] + "…" + " " * (cells - 1 - used if used < cells - 1 else 0)
        used += size
    return text + "…" if used < cells else text


def fit(text: str, cells: int, *, right: bool = False) -> str:
    """`text` in exactly `cells` columns: clipped, or padded on the side away from its alignment."""
    clipped = clip(text, cells)
    gap = max(0, cells - cell_len(clipped))
    return " " * gap + clipped if right else clipped + " " * gap


def wrap(text: str, cells: int, *, limit: int = 2000) -> list[str]:
    """One sanitised line broken into rows of at most `cells` columns, at spaces where there are any."""
    cells = max(1, cells)
    rows: list[str] = []
    while text and len(rows) < limit:
        if len(text) <= cells and text.isascii():
            rows.append(text)
            return rows
        used, index, last_space = 0, 0, -1
        while index < len(text):
            size = get_character_cell_size(text[index])
            if used + size > cells:
                break
            if text[index] == " ":
                last_space = index
            used += size
            index += 1
        if index >= len(text):
            rows.append(text)
            return rows
        if text[index] == " ":
            cut, skip = index, 1
        elif last_space > 0 and last_space * 3 > index:
            cut, skip = last_space, 1
        else:
            cut, skip = max(1, index), 0
        rows.append(text[:cut])
        text = text[cut + skip :]
    return rows or [""]


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
