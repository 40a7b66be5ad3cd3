"""Text for people: hostile text made harmless, one-line forms, counts, costs, durations, times, and events in words.

Promise: nothing that a model, a tool or a file says can steer a terminal or hide text.
"""

from __future__ import annotations

import json
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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


STYLE = r"[0-?]{0,40}[ -/]{0,4}[JKm]"
"""What follows `CSI` in a colour, another style, or the erasure that tools such as `grep` put beside it."""
_STYLES = lazily(
    rf"(?:\x1b\[|\x9b){STYLE}|\x1b[()][A-Z0-9]"
    r"|\x1b\][^\x07\x1b\x9c]{0,4000}(?:\x07|\x1b\\|\x9c)"  # OSC: links, titles
)
_MOVES = lazily(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]")
_WRITTEN_STYLES = lazily(rf"\\(?:u001[bB]|x1[bB]|033|e)\[{STYLE}")


def unstyled(text: str) -> str:
    """`text` for a search: without colours, other styles and links, so that its words are those on the screen.

    A sequence that moves the cursor is a space. One that is written out, as in JSON (`\\u001b[31m`), stays, and a
    space follows: it is no part of the next word.
    """
    if "\x1b" in text or "\x9b" in text:
        text = _MOVES.sub(" ", _STYLES.sub("", text))
    if any(written in text for written in ("1b[", "1B[", "033[", "\\e[")):
        text = _WRITTEN_STYLES.sub(r"\g<0> ", text)
    return text


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


_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")


def parser_mistake(error: ValueError) -> str:
    """Where a text is not valid TOML or JSON, and why: `line 3, column 5: expected '=' after a key`. Of another error its
    own words."""
    said = " ".join(str(error).split())
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
    if (found := _PLACE.search(said)) is None:
        return said
    where = f"line {found[1]}, column {found[2]}" if found[1] else "the last line"
    reason = said[: found.start()].replace(" in a key/value pair", "")
    return f"{where}: {reason[:1].lower()}{reason[1:]}"


def one_line(text: str, limit: int = 2_000) -> str:
    """The beginning of `text`, made harmless by `sanitize`, on one line of at most `limit` characters."""
    line = " ".join(sanitize(text[: 8 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def cut(text: str, limit: int, rest: str = "") -> str:
    """The beginning of `text`, at most `limit` characters. Where it is cut, it ends in `…` and says where the `rest` is."""
    if len(text) <= limit:
        return text
    sign = f"… ({rest})" if rest else "…"
    return text[: max(0, limit - len(sign))].rstrip() + sign


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
    """`$4.82`; without a cost `unpriced` if tokens were used, else `-`."""
    if cost_usd is None:
        return "unpriced" if tokens else "-"
    return money(cost_usd)


def money(usd: float) -> str:
    """A sum in US dollars, with cents, or with enough digits to be seen."""
    if usd < 0:
        return f"-{money(-usd)}"
    if 0 < usd < 0.01:
        return f"${usd:.4f}" if usd >= 0.00005 else "<$0.0001"
    return f"${usd:,.2f}" if usd < 10_000 else f"${usd:,.0f}"


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
            raise ValueError(f"{part!r} is not a message number or range; use numbers such as 12,14-16")
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


# --- Events, inbox messages and results of tools, in words ----------------------------------------------
#
# One line each, for the screen, the command line and the steps of a fork alike. A task has its short name; ids,
# digests and references are left out. Nothing here is sanitised: data may hold text of models, tools and files. Data of
# any shape is accepted.

_SUBJECTS = {
    "session": "run",
    "host": "process",
    "compaction": "compact",
    "artifact": "output",
    "approval": "asks",
    "command": "control",
    "inbox": "notice",
    "worktree": "files",
    "assistant": "reply",
}
"""What the subject of an event is called, where its kind's first word is not a reader's."""

_NAMING = ("path", "name", "title", "file_path", "url", "message", "text", "body", "status", "error")
"""Keys whose value says enough by itself."""
_WITHOUT_MEANING = lazily(r"(?i)(.*_)?(id|ids|ref|key|hash|digest|sha256|cursor|next|etag)")
"""Keys whose value tells a reader nothing."""
_MACHINE_WORD = lazily(
    r"(artifact://sha256/\S*|[a-z]+://\w+/\d+|[0-9a-f]{16,}|(?=[a-z]*\d)[a-z0-9]{8}|toolu_\w+)"
)
"""Ids, digests and references: they name something for a program only."""
_OPENING = {"{": "}", "[": "]"}
_MOST_CHARS = 500
"""Longer than any preview; what is nested that deep can still be read."""


def result_words(text: str) -> str:
    """One line for a result, or for its beginning. Text that is not JSON, or has nothing to summarise, stays
    as it is.

    To be sanitised, even if the text was: JSON spells characters out.
    """
    if text[:1] not in _OPENING or len(text) > _MOST_CHARS:
        return text
    value = _parsed(text)
    if isinstance(value, list):
        return _listed(value) or text
    return ", ".join(_parts(value)) or text if isinstance(value, dict) else text


def _listed(value: list[Any]) -> str:
    """The first of a list, which may have been cut before its end."""
    first = value[0] if value else None
    said = (
        ", ".join(_parts(first))
        if isinstance(first, dict)
        else str(first)
        if isinstance(first, (str, int, float))
        else ""
    )
    return f"{said}, …" if said and len(value) > 1 else said


def _parts(value: dict[str, Any]) -> Iterator[str]:
    """What names it first, then its counts, then the rest that is short enough to read."""
    yield from (one for key in _NAMING if isinstance(one := value.get(key), str) and one)
    for key, each in value.items():
        if key in _NAMING or _WITHOUT_MEANING.fullmatch(key):
            continue
        words = key.replace("_", " ")
        if isinstance(each, dict) and any(name.startswith("$") for name in each):
            # A part of an artifact that is merged by a rule; its rows say what it holds.
            rows = each.get("items")
            first = rows[0] if isinstance(rows, list) and rows else None
            name = first[0] if isinstance(first, list) and first else first
            yield from [f"{words} {name}"] if isinstance(name, str) and name else []
        elif isinstance(each, dict):
            counts = [_counted(name.replace("_", " "), one) for name, one in each.items() if _is_count(one)]
            yield from counts or ([_counted(words, len(each))] if each and words.endswith("s") else [])
        elif _is_count(each):
            yield _counted(words, each)
        elif isinstance(each, float):
            yield f"{words} {each:g}"
        elif isinstance(each, str) and each and not _MACHINE_WORD.fullmatch(each):
            yield f"{words} {each}"
        elif each is True:
            yield words


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value != 0


def _counted(noun: str, count: int) -> str:
    """`28 files`, `1 file`; a number that counts nothing after its name: `revision 2`."""
    if not noun.endswith("s") or noun.endswith("ss"):
        return f"{noun} {count}"
    return f"{count:,} {noun[:-1] if count == 1 else noun}"


def _parsed(text: str) -> Any:
    """The value, also of a text that was cut: without the last thing in it, which may be half of one. None
    where it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    for end, closing in _ends(text):
        try:
            return json.loads(text[:end] + closing)
        except ValueError:
            continue
    return None


def _ends(text: str) -> Iterator[tuple[int, str]]:
    """Where the text could end, the last place first, and what would close it there."""
    open_now: list[str] = []
    found: list[tuple[int, str]] = []
    in_string = escaped = False
    for place, character in enumerate(text):
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in _OPENING:
            open_now.append(_OPENING[character])
            found.append((place + 1, "".join(reversed(open_now))))
        elif open_now and character == open_now[-1]:
            open_now.pop()
            found.append((place + 1, "".join(reversed(open_now))))
        elif character == "," and open_now:
            found.append((place, "".join(reversed(open_now))))
    return reversed(found)


_CALL_WORDS = {
    "pending": ("◌", "waiting to run"),
    "running": ("●", "running"),
    "done": ("✓", ""),
    "error": ("✗", "failed"),
    "denied": ("✗", "denied"),
    "unknown": ("?", "outcome unknown"),
    "cancelled": ("×", "cancelled"),
}


def call_words(status: str, *, began: bool) -> tuple[str, str]:
    """The mark and the words for the state of a tool call; a state that is not known is its own word. To be sanitised.

    `began`: whether the call is known to have started. A cancelled call that never started is `× not run`.
    """
    if status == "cancelled" and not began:
        return "×", "not run"
    return _CALL_WORDS.get(status, ("?", status))


_INBOX_WORDS = {
    "task_done": ("✓", "done"),
    "task_failed": ("✗", "failed"),
    "task_paused": ("‖", "paused"),
    "task_cancelled": ("×", "cancelled by a person"),
}


def inbox_words(kind: str, payload: Mapping[str, Any]) -> str:
    """One note of an agent's inbox in a line: `✓ Task vendor done · 1 artifact`. To be sanitised."""
    if kind not in _INBOX_WORDS:
        text = payload.get("text")
        name = "A person says: " if kind == "steer" else "" if text else f"{kind.replace('_', ' ')}: "
        return name + (text if isinstance(text, str) and text else ", ".join(_parts(dict(payload))))
    glyph, words = _INBOX_WORDS[kind]
    name = str(payload.get("task") or payload.get("title") or "")
    artifacts = payload.get("artifacts")
    made = f" · {plural(len(artifacts), 'artifact')}" if isinstance(artifacts, list) and artifacts else ""
    error = payload.get("error")
    return f"{glyph} Task {name} {words}{made}" + (f": {error}" if isinstance(error, str) and error else "")


def inbox_payload_words(kind: str, payload: str) -> str:
    """The same of a note as stored: its payload is JSON."""
    value = _json(payload)
    return inbox_words(kind, value) if value else f"{kind.replace('_', ' ')}: {payload}"


def without_machine_text(text: str) -> str | None:
    """A message to an agent in words for people, as Markdown: notes of an inbox as a list with their results, no
    handoff; None where there is none of that in it. To be sanitised."""
    _head, _, last = text.rpartition("\n")
    if last.startswith('{"inbox": ['):
        notes = _json(last).get("inbox")
        if isinstance(notes, list) and notes and all(isinstance(each, dict) for each in notes):
            lines = []
            for each in notes:
                lines.append("- " + inbox_words(str(each.get("kind", "")), each))
                if isinstance(result := each.get("result"), str) and result:
                    lines += ["", *(f"  {line}" for line in result.strip().split("\n")), ""]
            return "\n".join(lines)
    kept = [line for line in text.split("\n") if not _FOR_PROGRAMS.match(line)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)) if len(kept) < text.count("\n") + 1 else None


_FOR_PROGRAMS = lazily(r'(handoff|scope): \{".*\}$')
"""Lines of a sub-agent's first message that are JSON."""


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# --- Events ---------------------------------------------------------------------------------------------------

_CHARACTERS = 400
"""How much of one value a line takes."""
_OTHER = (
    "text",
    "message",
    "question",
    "summary",
    "title",
    "error",
    "result",
    "reason",
    "goal",
    "detail",
    "name",
)
"""What says most of an event that has no form of its own."""


def event_text(kind: str, data: Mapping[str, Any], task: str = "") -> str:
    """What happened, in one line, without the subject of `kind`: `done write-survey · 4 artifacts`. `task`: the name of the
    event's task, where its reader knows it."""
    subject, _, verb = kind.partition(".")
    match subject:
        case "plan" if "revision" in data:
            tasks = data.get("tasks")
            count = f" ({plural(tasks, 'task')})" if isinstance(tasks, int) else ""
            return f"revision {data['revision']}: {_one(data, 'reason') or 'revised'}{count}"
        case "tool":
            return _tool(verb, data)
        case "model" if verb == "replied":
            return _reply(data)
        case "model":
            return _words(verb) + _said(data, "error", ": ")
        case "host" if verb == "warning":
            return f"warning: {_one(data, 'text')}"
        case "host" if verb == "moved":
            return _one(data, "text")
        case "host":
            return _words(verb) + (" and resumed the session" if data.get("resume") else "")
        case "artifact":
            size = data.get("bytes")
            return f"{verb} {_one(data, 'name')}" + (f" ({size:,} bytes)" if isinstance(size, int) else "")
        case "inbox":
            return f"notified: {notices}" if (notices := _notices(data)) else verb
        case "memory":
            return _memory(verb, data)
        case "compaction":
            return _compaction(verb, data)
        case "command":
            return f"{_one(data, 'command_kind')} {_words(verb)}{_said(data, 'result', ' — ')}"
        case "approval":
            return _approval(verb, data)
        case "task":
            made = data.get("artifacts")
            count = f" · {plural(made, 'artifact')}" if isinstance(made, int) and made else ""
            name, title = task or _one(data, "name"), _one(data, "title")
            named = f" {name}" if name else f" “{title}”" if title else ""
            return _words(verb) + named + count + _said(data, "reason", " — ")
        case "agent" if verb == "created":
            model, attempt = model_name(_one(data, "model")), data.get("attempt")
            again = f", attempt {attempt}" if isinstance(attempt, int) and attempt > 1 else ""
            return f"created as {_one(data, 'role')}" + (f" on {model}" if model else "") + again
        case "agent" if verb == "parked" and isinstance(data.get("until"), int | float):
            try:
                until = clock_text(data["until"], time.time())
            except (ValueError, OverflowError, OSError):
                until = "an invalid date"
            return f"parked until {until}{_said(data, 'reason', ' — ')}"
        case "session" if verb == "carried":
            counts = [
                plural(data[key], key[:-1]) for key in ("tasks", "facts") if isinstance(data.get(key), int)
            ]
            return f"continues session {_one(data, 'session')}: {', '.join(counts)}"
        case "agent" | "session":
            return _words(verb) + (_said(data, "reason", " — ") or _said(data, "error", " — "))
        case "guard":
            return f"{_words(verb)}: {_one(data, 'text')}"
        case "program":
            return _program(verb, data)
        case "worktree":
            return _worktree(verb, data)
        case "grant":
            what = _one(data, "pattern") or f"every call to {_one(data, 'tool')}"
            return f"{what}: " + ("runs without approval" if verb == "added" else "needs approval again")
        case "budget" if verb == "set":
            amount, unit = data.get("amount"), _one(data, "budget")
            if not isinstance(amount, int | float):
                return f"no limit on {unit}"
            return "set to " + (f"${amount:,.2f}" if unit == "usd" else f"{amount:,.0f} {unit}")
        case _:
            return _any(verb, data)


def subject_name(kind: str) -> str:
    """What an event is about, in one word of at most eight characters. Not sanitised."""
    subject = kind.partition(".")[0]
    return _SUBJECTS.get(subject, subject)[:8]


def called_tools(names: Sequence[str]) -> str:
    """The first four of the tools that a reply calls, and how many more: `read ×3, bash`."""
    counts = list(Counter(names).items())
    shown = ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in counts[:4])
    return shown + (f" and {len(counts) - 4} more" if len(counts) > 4 else "")


def question_words(tool: str, question: str) -> str:
    """A question without the tool's name, which is shown before it."""
    return question.removeprefix(f"{tool} ")


def _reply(data: Mapping[str, Any]) -> str:
    tools = data.get("tools")
    calls = (
        "calls " + called_tools([str(tool) for tool in tools]) if isinstance(tools, list) and tools else ""
    )
    preview = _one(data, "preview").partition("cursor: {")[0]
    return " · ".join(part for part in (f"turn {_one(data, 'turn')}", calls, preview) if part)


def _tool(verb: str, data: Mapping[str, Any]) -> str:
    name = _one(data, "tool") or _one(data, "name")
    said = result_words(_one(data, "preview") or _one(data, "result"))
    if verb == "started":
        return f"{name} …"
    if verb == "unknown":
        return f"{name}: interrupted, outcome unknown"
    if verb == "pending":
        return f"{name} waiting{_said(data, 'reason', ': ')}"
    arrow = {"done": "→", "error": "✗"}.get(verb, _words(verb))
    return (
        f"{name}{_said(data, 'input', ' ')} {arrow} {said}".strip()
        if said or verb != "done"
        else f"{name} done"
    )


def _notices(data: Mapping[str, Any]) -> str:
    """The notes that an agent was given: tasks by their names, several of another kind as a count."""
    items, names = data.get("items"), data.get("names") or data.get("titles")
    if not isinstance(items, list):
        return ""
    names = names if isinstance(names, list) and len(names) == len(items) else [""] * len(items)
    found: Counter[str] = Counter()
    for kind, name in zip(map(str, items), names, strict=True):
        if isinstance(name, str) and name and kind in _INBOX_WORDS:
            glyph, words = _INBOX_WORDS[kind]
            found[f"{glyph} {name} {words}"] += 1
        else:
            found[{"steer": "message from a person"}.get(kind, _words(kind))] += 1
    return ", ".join(f"{words} ×{count}" if count > 1 else words for words, count in found.items())


def _memory(verb: str, data: Mapping[str, Any]) -> str:
    if "fact_kind" in data:
        return f"{verb} {_one(data, 'fact_kind')} {_one(data, 'fact')}{_said(data, 'text', ': ')}"
    seqs = data.get("messages")
    if isinstance(seqs, list):
        return f"{_words(verb)} " + ", ".join(f"#{seq}" for seq in seqs[:12] if isinstance(seq, int))
    return _any(verb, data)


def _compaction(verb: str, data: Mapping[str, Any]) -> str:
    before, after, removed = data.get("tokens_before"), data.get("tokens_after"), data.get("messages_removed")
    text = _PASSES.get((_one(data, "trigger"), verb)) or _words(verb)
    if isinstance(before, int | float) and isinstance(after, int | float):
        text += f" {tokens_text(before)} → {tokens_text(after)} {change_text(before, after)}"
    if verb == "applied" and isinstance(removed, int) and removed:
        text += f" · {plural(removed, 'message')} replaced"
    elif verb != "applied" and isinstance(data.get("high_water"), int):
        text += f" up to #{data['high_water']}"
    return text + ("" if verb == "applied" and text.startswith(_OBSERVED) else _said(data, "reason", " — "))


_OBSERVED = ("activated", "consolidated")
_PASSES = {
    ("observer", "started"): "observer reading",
    ("observer", "prepared"): "observed",
    ("observer", "applied"): "activated",
    ("observer", "skipped"): "observer skipped",
    ("reflector", "started"): "reflector reading the log",
    ("reflector", "applied"): "consolidated the log",
    ("reflector", "skipped"): "reflector skipped",
}
"""What the passes of observational memory are called, by trigger and event."""


def _approval(verb: str, data: Mapping[str, Any]) -> str:
    tool = _one(data, "tool")
    asked = question_words(tool, _one(data, "question"))
    if verb == "asked":
        return f"wants to run {tool}" + (f": {asked}" if asked else "")
    edited = ", as edited" if data.get("edited") else ""
    return f"{_words(verb)} {tool}{edited}{': ' if asked else ''}{asked}{_said(data, 'reason', ' — ')}"


def _worktree(verb: str, data: Mapping[str, Any]) -> str:
    branch, files = _one(data, "branch"), data.get("files")
    match verb:
        case "ready":
            return f"worktree ready, on branch {branch}"
        case "merged":
            return f"{branch} merged into {_one(data, 'into')}"
        case "changed" if isinstance(files, int):
            return f"{plural(files, 'file')} changed"
        case "removed":
            return f"worktree removed; branch {branch} kept"
        case _:
            return _any(verb, data)


def _program(verb: str, data: Mapping[str, Any]) -> str:
    """What an agent program did."""
    program, reason = _one(data, "program") or "the program", _said(data, "reason", ": ")
    session = _one(data, "program_session")[:8]
    match verb:
        case "opened":
            begun = "resumed session" if data.get("resumed") else "started session"
            refused = (
                f" (could not resume the earlier one: {_one(data, 'refused')})" if data.get("refused") else ""
            )
            return " ".join(filter(None, (program, _one(data, "version"), begun, session))) + refused
        case "attached":
            counts = [
                plural(data[key], key[:-1]) for key in ("messages", "calls") if isinstance(data.get(key), int)
            ]
            return f"{program} continues its own session {session}: {', '.join(counts)}"
        case "prompted":
            return f"prompt sent to {program}"
        case "steered":
            return "message sent, delivered " + (
                "now" if data.get("when") == "now" else "with the next model call"
            )
        case "plan":
            listed = data.get("items")
            items = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
            done = sum(one.get("status") == "done" for one in items)
            now = next((str(one.get("title")) for one in items if one.get("status") == "running"), "")
            return f"to-do list: {done} of {len(items)} done" + (f", now {now}" if now else "")
        case "background":
            return f"{_one(data, 'tool')} continues in the background: {_one(data, 'command')}"
        case "background_ended":
            return f"background {_one(data, 'tool')} ended ({_one(data, 'status')}): {_one(data, 'command')}"
        case "unknown":
            return f"sent an unknown event: {_one(data, 'name')}"
        case _ if verb.startswith("child_"):
            named = _one(data, "title") or _one(data, "child")[:8]
            return f"sub-agent {_words(verb.removeprefix('child_'))}: {named}"
        case _ if verb.startswith("turn_"):
            return f"turn {_words(verb.removeprefix('turn_'))}{reason}"
        case _:
            return _words(verb) + reason


def _any(verb: str, data: Mapping[str, Any]) -> str:
    """An event of which only the shape is known, perhaps of a later version."""
    said = [_one(data, key) for key in _OTHER if data.get(key) not in (None, "", [], {})]
    return " ".join([_words(verb), *(said or list(_parts(dict(data)))[:6])]).strip()


def _words(verb: str) -> str:
    return verb.replace("_", " ")


def _one(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if value is None:
        return ""
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=True), _CHARACTERS)


def _said(data: Mapping[str, Any], key: str, before: str) -> str:
    value = _one(data, key)
    return before + value if value else ""
