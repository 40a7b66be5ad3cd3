"""Text for people. Pure functions: tokens, money, durations, shares, bars and sparklines; events and results put into
words, one line each."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from watchkeeper.records.text import plural as plural
from watchkeeper.records.text import program_event
from watchkeeper.store.snapshot import EventFacts
from watchkeeper_tui.sanitize import clip, sanitize

_DATED = re.compile(r"[-@]20\d{6}$")
"""The day of a release, at the end of a model's name."""
SPARKS = "▁▂▃▄▅▆▇█"


def tokens(count: float) -> str:
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


class Bill(Protocol):
    """Whatever has a cost: an agent, a session, a row of the plan."""

    @property
    def cost_usd(self) -> float | None: ...
    @property
    def unpriced_calls(self) -> int: ...
    @property
    def cost_estimated(self) -> bool: ...


def bill(of: Bill) -> str:
    """What something cost, and how well that is known."""
    return cost(of.cost_usd, of.unpriced_calls, estimated=of.cost_estimated)


def cost(usd: float | None, unpriced_calls: int = 0, *, estimated: bool = False) -> str:
    """`$4.82`; `unpriced` where no call had a price; `~` before an estimate, `+` after a lower bound: some
    had no price."""
    if usd is None:
        return "unpriced" if unpriced_calls else "-"
    return ("~" if estimated else "") + money(usd) + ("+" if unpriced_calls else "")


def money(usd: float) -> str:
    """A sum in US dollars, with cents, or with enough digits to be seen."""
    if usd == 0:
        return "$0.00"
    if usd < 0.01:
        return f"${usd:.4f}"
    return f"${usd:,.2f}" if usd < 10_000 else f"${usd:,.0f}"


def rate(usd_per_minute: float) -> str:
    """Dollars a minute in four columns: `.31`, `1.20`; `-` for nothing."""
    if usd_per_minute <= 0:
        return "-"
    if usd_per_minute < 0.005:
        return "<.01"
    text = f"{usd_per_minute:.2f}"
    return text[1:] if text.startswith("0") else text


def age(seconds: float) -> str:
    """How long something has lasted, no finer than anybody needs: `92s`, from five minutes on `5m`, then
    `3h`."""
    if seconds < 300:
        return f"{int(max(0.0, seconds))}s"
    return f"{int(seconds // 60)}m" if seconds < 7200 else f"{int(seconds // 3600)}h"


def duration(seconds: float) -> str:
    """`0.3s`, `42s`, `12:44`, `1:20:02`, `3d 04h`."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    if hours == 0:
        return f"{minute}:{second:02d}"
    if hours < 48:
        return f"{hours}:{minute:02d}:{second:02d}"
    return f"{hours // 24}d {hours % 24:02d}h"


def clock(seconds: float) -> str:
    """Elapsed time as `00:12:44`."""
    whole = max(0, int(seconds))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def time_of_day(at: float) -> str:
    """Local time as `12:44:01`."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def moment(at: float) -> str:
    """Local date and time as `2026-11-21 12:44:01`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def when(at: float, now: float) -> str:
    """How long ago, or on which day: `now`, `4m ago`, `3h ago`, `yesterday`, `Nov 12`, `2025-11-12`."""
    ago = now - at
    if ago < 10:
        return "now"
    if ago < 60:
        return f"{int(ago)}s ago"
    if ago < 3600:
        return f"{int(ago // 60)}m ago"
    then, today = time.localtime(at), time.localtime(now)
    if then[:3] == today[:3]:
        return f"{int(ago // 3600)}h ago"
    if time.localtime(now - 86400)[:3] == then[:3]:
        return "yesterday"
    return time.strftime("%b %d", then) if then.tm_year == today.tm_year else time.strftime("%Y-%m-%d", then)


def share(part: float, whole: float) -> float:
    """`part / whole` between 0 and 1; 0 of nothing."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0


def change(before: float, after: float) -> str:
    """`-78%`."""
    return f"{round((after - before) / before * 100):+d}%" if before else "-"


def bar_cells(fraction: float, cells: int) -> int:
    """How many of `cells` are filled: something is never nothing, and not full is never full."""
    filled = round(fraction * cells)
    if fraction > 0 and filled == 0:
        return 1
    if fraction < 1 and filled == cells and cells > 1:
        return cells - 1
    return max(0, min(cells, filled))


def split_cells(parts: Sequence[float], cells: int) -> list[int]:
    """`cells` shared out in proportion to `parts` (largest remainder); every part above 0 gets one while they
    last."""
    total = sum(parts)
    if total <= 0 or cells <= 0:
        return [0] * len(parts)
    exact = [part / total * cells for part in parts]
    given = [max(1, int(value)) if part > 0 else 0 for value, part in zip(exact, parts, strict=True)]
    while sum(given) > cells:
        given[given.index(max(given))] -= 1
    order = sorted(range(len(parts)), key=lambda index: exact[index] - given[index], reverse=True)
    for index in order:
        if sum(given) >= cells:
            break
        if parts[index] > 0:
            given[index] += min(cells - sum(given), max(1, int(exact[index] - given[index])))
    return given


def sparkline(values: Sequence[float], cells: int) -> str:
    """The last `cells` values as eighths of a row; nothing drawn where there is no value yet."""
    shown = list(values)[-cells:]
    if not shown:
        return " " * cells
    highest = max(shown)
    drawn = "".join(
        SPARKS[0] if highest <= 0 else SPARKS[min(7, int(value / highest * 7.999))] for value in shown
    )
    return drawn.rjust(cells)


def model_name(ref: str) -> str:
    """A model's short name: `anthropic/claude-opus-4-1-20250805` is `opus-4-1`, `offline/surveyor` is
    `surveyor`."""
    name = ref.rsplit("/", 1)[-1].removeprefix("claude-")
    return _DATED.sub("", name)


_NAMING = ("path", "name", "title", "file_path", "url", "message", "text", "body", "status", "error")
"""Keys whose value says enough by itself."""
_UNTOLD = re.compile(r"(?i)(.*_)?(id|ids|ref|key|hash|digest|sha256|cursor|next|etag)")
"""Keys whose value tells a reader nothing."""
_MACHINE_WORD = re.compile(
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
    return ", ".join(_told(value)) or text if isinstance(value, dict) else text


def _listed(value: list[Any]) -> str:
    """The first of a list, which may have been cut before its end."""
    first = value[0] if value else None
    said = (
        ", ".join(_told(first))
        if isinstance(first, dict)
        else str(first)
        if isinstance(first, (str, int, float))
        else ""
    )
    return f"{said}, …" if said and len(value) > 1 else said


def _told(value: dict[str, Any]) -> Iterator[str]:
    """What names it first, then its counts, then the rest that is short enough to read."""
    yield from (one for key in _NAMING if isinstance(one := value.get(key), str) and one)
    for key, each in value.items():
        if key in _NAMING or _UNTOLD.fullmatch(key):
            continue
        words = key.replace("_", " ")
        if isinstance(each, dict):
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
        return name + (text if isinstance(text, str) and text else ", ".join(_told(dict(payload))))
    glyph, words = _INBOX_WORDS[kind]
    title = str(payload.get("title") or payload.get("task") or "")
    artifacts = payload.get("artifacts")
    made = f" · {plural(len(artifacts), 'artifact')}" if isinstance(artifacts, list) and artifacts else ""
    error = payload.get("error")
    return f"{glyph} Task {title} {words}{made}" + (f": {error}" if isinstance(error, str) and error else "")


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


_FOR_PROGRAMS = re.compile(r'(handoff|scope): \{".*\}$')
"""Lines of a sub-agent's first message that are JSON."""


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


_ROLES = {
    "failed": "failed",
    "error": "failed",
    "refused": "failed",
    "denied": "failed",
    "rejected": "failed",
    "unknown": "failed",
    "reached": "failed",
    "done": "done",
    "applied": "done",
    "approved": "done",
    "paused": "paused",
    "parked": "slot",
    "cancelled": "paused",
    "abandoned": "paused",
    "dropped": "paused",
    "stale": "retrying",
    "retrying": "retrying",
    "rate_limited": "retrying",
    "asked": "waiting",
    "waiting": "waiting",
    "running": "working",
    "working": "working",
    "created": "working",
    "started": "working",
    "replied": "assistant",
    "remembered": "kind_facts",
    "saved": "kind_observations",
    "delivered": "user",
}
_KIND_ROLES = {
    "plan": "accent",
    "compaction": "compaction",
    "memory": "compaction",
    "tool": "tool",
    "approval": "waiting",
}
_WORDS = {
    "session": "run",
    "compaction": "compact",
    "artifact": "output",
    "approval": "asks",
    "command": "control",
    "assistant": "reply",
}
_SAID = (
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


@dataclass(frozen=True, slots=True)
class EventWords:
    """The display text of an event. Sanitised."""

    kind: str
    role: str
    text: str


def event_words(event: EventFacts) -> EventWords:
    """The display text of an event."""
    subject, _, verb = event.kind.partition(".")
    data = _data(event.data)
    role = _ROLES.get(verb) or _KIND_ROLES.get(subject, "muted")
    if subject == "tool" and verb in ("done", "started"):
        role = "tool"
    if data.get("is_error") in (True, 1):
        role = "failed"
    text = _text(subject, verb, data)
    return EventWords(
        sanitize(_WORDS.get(subject, subject))[:8], role, clip(" ".join(sanitize(text).split()), 400)
    )


def question_words(tool: str, question: str) -> str:
    """A question without the tool's name, which is shown before it. Not sanitised."""
    return question.removeprefix(f"{tool} ")


def _text(subject: str, verb: str, data: dict[str, Any]) -> str:
    if subject == "plan" and "revision" in data:
        return f"r{data['revision']}: {_one(data, 'reason') or 'revised'}" + _suffix(data, "tasks", "task")
    if subject == "tool":
        return _tool(verb, data)
    if subject == "model":
        return _model(verb, data)
    if subject == "host":
        return f"{verb} by resume" if data.get("resume") else verb
    if subject == "artifact":
        return f"{verb} {_one(data, 'name')} ({_one(data, 'bytes')} bytes)"
    if subject == "inbox":
        items = data.get("items")
        counts = Counter(str(item).replace("_", " ") for item in items) if isinstance(items, list) else {}
        told = (f"{words} ×{count}" if count > 1 else words for words, count in counts.items())
        return "notified: " + ", ".join(told) if counts else verb
    if subject == "memory" and "fact_kind" in data:
        return f"{verb} {_one(data, 'fact_kind')} {_one(data, 'fact')}{_said(data, 'text', ': ')}"
    if subject == "memory" and isinstance(data.get("messages"), list):
        named = ", ".join(f"#{seq}" for seq in data["messages"][:12] if isinstance(seq, int))
        return f"{verb.replace('_', ' ')} {named}"
    if subject == "compaction":
        return _compaction(verb, data)
    if subject == "command":
        done = "applied" if verb == "applied" else verb
        return f"{_one(data, 'command_kind')} {done}" + _said(data, "result", " — ")
    if subject == "approval":
        asked = question_words(_one(data, "tool"), _one(data, "question"))
        return f"{verb} {_one(data, 'tool')}{': ' if asked else ''}{asked}{_said(data, 'reason', ' — ')}"
    if subject == "task":
        return f"{verb} {_quoted(data, 'title')}{_said(data, 'reason', ' — ')}"
    if subject == "agent" and verb == "created":
        model = model_name(_one(data, "model"))
        return f"created as {_one(data, 'role')}" + (f" on {model}" if model else "")
    if subject == "program":
        return program_event(verb, data)
    if subject in ("agent", "session"):
        return verb.replace("_", " ") + _said(data, "reason", " — ")
    return _other(verb, data)


def _tool(verb: str, data: dict[str, Any]) -> str:
    name = _one(data, "tool") or _one(data, "name")
    said = result_words(_one(data, "preview") or _one(data, "result"))
    if verb == "started":
        return f"{name} …"
    if verb == "unknown":
        return f"{name}: interrupted, outcome unknown"
    arrow = {"done": "→", "error": "✗"}.get(verb, verb)
    return (
        f"{name}{_said(data, 'input', ' ')} {arrow} {said}".strip()
        if said or verb != "done"
        else f"{name} done"
    )


def _model(verb: str, data: dict[str, Any]) -> str:
    if verb != "replied":
        return verb + _said(data, "error", ": ")
    tools = data.get("tools")
    calls = "calls " + ", ".join(str(tool) for tool in tools) if isinstance(tools, list) and tools else ""
    return " · ".join(part for part in (f"turn {_one(data, 'turn')}", calls, _one(data, "preview")) if part)


def _compaction(verb: str, data: dict[str, Any]) -> str:
    before, after = data.get("tokens_before"), data.get("tokens_after")
    text = verb.replace("_", " ")
    if isinstance(before, (int, float)) and isinstance(after, (int, float)):
        text += f" {tokens(before)} → {tokens(after)} {change(before, after)}"
    elif isinstance(data.get("high_water"), int):
        text += f" up to #{data['high_water']}"
    return text + _said(data, "reason", " — ")


def _other(verb: str, data: dict[str, Any]) -> str:
    parts = [verb.replace("_", " ")] if verb else []
    for key in _SAID:
        if data.get(key) not in (None, "", [], {}):
            parts.append(_one(data, key))
    if len(parts) <= 1:
        parts += [f"{key}={_flat(value)}" for key, value in data.items() if value not in (None, "", [], {})][
            :6
        ]
    return " ".join(parts)


def _data(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {"text": text}
    return value if isinstance(value, dict) else {"text": value}


def _flat(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=True)[:400]


def _one(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return "" if value is None else _flat(value)[:400]


def _said(data: dict[str, Any], key: str, before: str) -> str:
    value = _one(data, key)
    return before + value if value else ""


def _quoted(data: dict[str, Any], key: str) -> str:
    value = _one(data, key)
    return f"“{value}”" if value else ""


def _suffix(data: dict[str, Any], key: str, noun: str) -> str:
    value = data.get(key)
    return f" ({plural(value, noun)})" if isinstance(value, int) else ""


class EventLine:
    """One event. It is put into words when it is first looked at: of thousands that come, a screen shows a
    few."""

    __slots__ = ("_words", "agent_id", "at", "facts", "seq", "task_id")

    def __init__(self, facts: EventFacts) -> None:
        self.facts = facts
        self.seq, self.at = facts.seq, facts.at
        self.agent_id, self.task_id = facts.agent_id, facts.task_id
        self._words: EventWords | None = None

    @property
    def _said(self) -> EventWords:
        if self._words is None:
            self._words = event_words(self.facts)
        return self._words

    @property
    def kind(self) -> str:
        """The word shown: `tool`, `plan`, `error`, … Sanitised."""
        return self._said.kind

    @property
    def role(self) -> str:
        """The palette role that colours the word."""
        return self._said.role

    @property
    def text(self) -> str:
        """What happened, in one line. Sanitised."""
        return self._said.text

    def __eq__(self, other: object) -> bool:
        return self.facts == other.facts if isinstance(other, EventLine) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.seq)
