"""Text for people: hostile text made harmless, one-line forms, counts, costs, durations and times.

Promise: nothing that a model, a tool or a file says can steer a terminal or hide text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from datetime import UTC, datetime
from typing import Any, cast


class _Lazy:
    """A regular expression of Python that is compiled where it is used first."""

    def __init__(self, expression: str, flags: int) -> None:
        self._expression, self._flags = expression, flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._expression, self._flags)
        for method in ("search", "match", "fullmatch", "finditer", "split", "sub"):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def lazily(expression: str, flags: int = 0) -> re.Pattern[str]:
    """`re.compile`, put off until the expression is used: hundreds of them take 45 ms, and most commands need few."""
    return cast(re.Pattern[str], _Lazy(expression, flags))


_SEQUENCES = lazily(
    r"\x1b\][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC: title, clipboard, links
    r"|\x1b[PX^_][^\x1b\x9c]*(?:\x1b\\|\x9c)?"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS = lazily(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HIDDEN = lazily(
    "[\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f\ufff9-\ufffb\u061c\u180e]"
)
_SURROGATES = lazily("[\ud800-\udfff]")
_SAFE = lazily(r"[\n\t\x20-\x7e\xa1-\xac\xae-\u0300\u2010-\u2027\u2030-\u205f\u2070-\ud7ff]*\Z")


def sanitize(text: str) -> str:
    """`text` without escape sequences, control characters (but newline and tab), bidi controls and zero-width
    characters."""
    if _SAFE.match(text):
        return text
    text = _SEQUENCES.sub("", text)
    text = _CONTROLS.sub("", text)
    text = _HIDDEN.sub("", text)
    return _SURROGATES.sub("\ufffd", text)


_SAFE_LINES = lazily(r"[\n\x20-\x7e]*\Z")
_NOT_PLAIN = lazily(r"[^\n\x20-\x7e]")
_BLANK_LETTERS = lazily(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001f3fb-\U0001f3ff\U000e0100-\U000e01ef]"
)
_SHOWN_AS: dict[str, str] = {}


def _revealed(match: re.Match[str]) -> str:
    character = match.group()
    shown = _SHOWN_AS.get(character)
    if shown is None:
        # Controls, format characters (bidirectional, zero-width, tags), surrogates, unassigned ones, odd spaces,
        # and skin tones, whose width depends on the terminal.
        hides = unicodedata.category(character)[0] in "CZ" or _BLANK_LETTERS.match(character) is not None
        shown = f"<U+{ord(character):04X}>" if hides else character
        if len(_SHOWN_AS) < 50_000:
            _SHOWN_AS[character] = shown
    return shown


_STACKED = lazily("([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{2})"
                      "([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+)")  # fmt: skip


def reveal(text: str) -> str:
    """`text` with every character that a terminal would obey or hide as `<U+202E>`, for a person who has to
    approve it.

    Line breaks stay; a tab becomes an arrow and spaces. Nothing is dropped, so what is shown is what would
    run.
    """
    if _SAFE_LINES.match(text):
        return text
    if "\t" in text:
        text = "\n".join(
            line.replace("\t", "→\t").expandtabs(4) if "\t" in line else line for line in text.split("\n")
        )
    text = _STACKED.sub(lambda found: found[1] + "".join(f"<U+{ord(mark):04X}>" for mark in found[2]), text)
    return _NOT_PLAIN.sub(_revealed, text)


def one_line(text: str, limit: int = 2_000) -> str:
    """The beginning of `text`, made harmless by `sanitize`, on one line of at most `limit` characters."""
    line = " ".join(sanitize(text[: 8 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


_OBEYED_OR_HIDDEN = lazily(
    "[\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that JSON allows in a string and that a terminal obeys (0x9b begins a control sequence) or
hides."""


def json_text(value: Any) -> str:
    """One line of JSON. Characters that a terminal would obey or hide are escaped."""
    return _OBEYED_OR_HIDDEN.sub(
        lambda found: json.dumps(found[0])[1:-1], json.dumps(value, ensure_ascii=False)
    )


def plural(count: int, noun: str, many: str = "") -> str:
    """`1 message`, `1,200 messages`; `many` where an s is not enough."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def cost_text(cost_usd: float | None, tokens: int = 1) -> str:
    """`$0.1234`; without a cost `unpriced` if tokens were used, else `-`."""
    if cost_usd is None:
        return "unpriced" if tokens else "-"
    return f"${cost_usd:,.4f}"


def duration_text(seconds: float | None) -> str:
    """`4.2 s`, `3 min 05 s`, `2 h 07 min`; `–` for a duration that is not known."""
    if seconds is None or seconds < 0:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60:02d} min"


def utc_text(moment: float) -> str:
    """Wall time as `2026-11-22 14:20 UTC`."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"


def utc_seconds_text(moment: float | None) -> str:
    """Wall time as `2026-11-22 14:20:07 UTC`; `–` for none, or for one that no calendar has."""
    try:
        return "–" if moment is None else f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "–"


def clock_text(moment: float, now: float) -> str:
    """Local wall time for people: `14:20`, with the date where it is another day's: `Mon 24 Nov 14:20`."""
    there, here = datetime.fromtimestamp(moment), datetime.fromtimestamp(now)
    return f"{there:%H:%M}" if there.date() == here.date() else f"{there:%a %d %b %H:%M}"


def countdown(seconds: float) -> str:
    """Time that is left, `1:12:03`; days before it where there are some: `2 d 3:00:00`."""
    left = max(0, int(seconds + 0.999))
    days, rest = divmod(left, 86_400)
    text = f"{rest // 3600}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days} d {text}" if days else text


def message_numbers(text: str) -> list[int]:
    """The numbers of `12,14-16`.

    Raises:
        ValueError: which part of it is none.
    """
    found: list[int] = []
    for part in filter(None, (piece.strip().removeprefix("#") for piece in text.split(","))):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not first.isdecimal() or not last.isdecimal() or not 0 <= int(last) - int(first) < 10_000:
            raise ValueError(f"{part!r} names no messages; write numbers such as 12,14-16")
        found += range(int(first), int(last) + 1)
    return found


def tokens_text(count: float) -> str:
    """`812`, `9.8k`, `166k`, `1.9M`: at most five columns."""
    if count < 1000:
        return str(int(count))
    for divisor, unit in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        value = count / divisor
        if value < 9.95:
            return f"{value:.1f}{unit}"
        if value < 999.5:
            return f"{value:.0f}{unit}"
    return f"{count / 1e12:.1f}T"


def change_text(before: float, after: float) -> str:
    """`-78%`."""
    return f"{round((after - before) / before * 100):+d}%" if before else "-"


_DATED = lazily(r"[-@]20\d{6}$")
"""The day of a release, at the end of a model's name."""


def model_name(ref: str) -> str:
    """A model's short name: `anthropic/claude-opus-4-1-20250805` is `opus-4-1`, `offline/surveyor` is
    `surveyor`."""
    name = ref.rsplit("/", 1)[-1].removeprefix("claude-")
    return _DATED.sub("", name)
