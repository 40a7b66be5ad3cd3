"""The surveyor as observer, reflector or summariser: shortens what it is given, by fixed rules, citing what
it rests on."""

from __future__ import annotations

import re

from watchkeeper.models.surveyor.moves import compact
from watchkeeper.models.surveyor.partial import json_after
from watchkeeper.models.surveyor.situation import CURSOR

ROLES = frozenset({"observer", "reflector", "summarizer", "summariser"})
_ENTRY = re.compile(r"^\s*(?:[-*>]\s*)?[\[(<]?#(\d+)\b[^\n]*", re.MULTILINE)
_HEAD = re.compile(r"^[^\S\n]*(?:user|assistant|result|tool_result)\b\s*[\])>:]*")
"""What stands between an entry's number and its text; `calls list_folder` stays, it says what was done."""
_WIDTH = 160
_SHARE = 0.15
"""Of the length of what is digested."""
_LEAST, _MOST = 400, 3_000


def digest(texts: list[str]) -> str:
    """One line for each entry `#n …` of the texts, newest kept first when there is too much; plain lines if
    there are none.

    The last cursor that the texts hold is kept word for word, since all further work of the surveyor hangs on
    it.
    """
    whole = "\n".join(texts)
    room = int(min(_MOST, max(_LEAST, len(whole) * _SHARE)))
    cursor = json_after(whole, CURSOR, last=True)
    tail = f"{CURSOR} {compact(cursor)}" if cursor else ""
    entries = list(_ENTRY.finditer(whole))
    if entries:
        lines = [_line(whole, entries, index) for index in range(len(entries))]
    else:
        lines = [f"- {_short(line)}" for line in whole.splitlines() if line.strip() and CURSOR not in line]
    kept: list[str] = []
    room -= len(tail)
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 0 and kept:
            break
        kept.append(line)
    left_out = len(lines) - len(kept)
    if left_out and entries:
        first, last = entries[0][1], entries[left_out - 1][1]
        kept.append(
            f"- #{first} to #{last}: {left_out} earlier entries, in short: {_short(lines[0][2:], 80)}"
        )
    return "\n".join([*reversed(kept), *([tail] if tail else [])])


def _line(whole: str, entries: list[re.Match[str]], index: int) -> str:
    """An entry's own line, and the beginning of what follows it."""
    entry = entries[index]
    end = entries[index + 1].start() if index + 1 < len(entries) else len(whole)
    text = whole[entry.end(1) : end].partition(CURSOR)[0]
    said = _HEAD.sub("", text, count=1).strip(" ])>\n")
    return f"- {_short(said)} (#{entry[1]})"


def _short(text: str, width: int = _WIDTH) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
