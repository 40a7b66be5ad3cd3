"""Text for people. Pure functions: tokens, money, durations, shares, bars and sparklines; the colours of events.

What `watchkeeper.records` has of it too is shown here by its short name.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from watchkeeper.records.text import change_text, event_text, subject_name, tokens_text
from watchkeeper.records.text import model_name as model_name
from watchkeeper.records.text import money as money
from watchkeeper.records.text import plural as plural
from watchkeeper.store.projection import TaskFacts
from watchkeeper.store.snapshot import EventFacts
from watchkeeper_tui.sanitize import clip, sanitize

SPARKS = "▁▂▃▄▅▆▇█"
"""From one eighth of a cell to all of it, upwards."""
_BLOCKS = "▏▎▍▌▋▊▉█"
"""The same from left to right."""
tokens, change = tokens_text, change_text


class Bill(Protocol):
    """Whatever has a cost: an agent, a session, a row of the plan."""

    @property
    def cost_usd(self) -> float | None: ...
    @property
    def is_lower_bound(self) -> bool: ...
    @property
    def cost_estimated(self) -> bool: ...


def bill(of: Bill) -> str:
    """What something cost, and how well that is known."""
    return cost(of.cost_usd, int(of.is_lower_bound), estimated=of.cost_estimated)


def cost(usd: float | None, unpriced_calls: int = 0, *, estimated: bool = False) -> str:
    """`$4.82`; `unpriced` where no call had a price; `~` before an estimate, `+` after a lower bound: some
    had no price."""
    if usd is None:
        return "unpriced" if unpriced_calls else "-"
    return ("~" if estimated else "") + money(usd) + ("+" if unpriced_calls else "")


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


def bar_cells(fraction: float, cells: int) -> int:
    """How many of `cells` are filled: something is never nothing, and not full is never full."""
    filled = round(fraction * cells)
    if fraction > 0 and filled == 0:
        return 1
    if fraction < 1 and filled == cells and cells > 1:
        return cells - 1
    return max(0, min(cells, filled))


def eighths(part: float, whole: float, cells: int) -> int:
    """How many eighths of `cells` show `part` of `whole` on a linear scale: zero has none, something has at least one."""
    return max(1, round(8 * cells * share(part, whole))) if part > 0 else 0


def bar(part: float, whole: float, cells: int) -> str:
    """A bar of `part` that is `cells` long for `whole`, to an eighth of a cell. Its track is not included."""
    full, rest = divmod(eighths(part, whole, cells), 8)
    return _BLOCKS[-1] * full + (_BLOCKS[rest - 1] if rest else "")


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
    """The last `cells` values as eighths of a row, from the thinnest mark on; nothing drawn for zero, or where there is
    no value yet."""
    shown = list(values)[-cells:]
    highest = max(shown, default=0.0)
    drawn = "".join(SPARKS[round(7 * share(value, highest))] if value > 0 else " " for value in shown)
    return drawn.rjust(cells)


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
    "skipped": "muted",
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


_MARKUP = re.compile(r"\*\*|`|^#+ ", re.MULTILINE)
"""Marks of Markdown, which a line of plain text does without."""


def without_markup(text: str) -> str:
    """Hostile Markdown as one harmless line of plain text."""
    return " ".join(sanitize(_MARKUP.sub("", text)).split())


def headline(text: str) -> str:
    """The first line with words of a hostile Markdown text, as plain text."""
    return next(filter(None, map(without_markup, text[:4_000].split("\n"))), "")


@dataclass(frozen=True, slots=True)
class EventWords:
    """The display text of an event. Sanitised."""

    kind: str
    role: str
    text: str


def event_words(event: EventFacts, task: str = "") -> EventWords:
    """The display text of an event. `task`: the name of its task, if that is known."""
    subject, _, verb = event.kind.partition(".")
    data = _data(event.data)
    role = _ROLES.get(verb) or _KIND_ROLES.get(subject, "muted")
    if subject == "tool" and verb in ("done", "started"):
        role = "tool"
    if data.get("is_error") in (True, 1):
        role = "failed"
    text = event_text(event.kind, data, task)
    return EventWords(sanitize(subject_name(event.kind)), role, clip(" ".join(sanitize(text).split()), 400))


def event_facts(event: EventFacts, agent: str, task: str = "") -> list[tuple[str, list[tuple[str, str]]]]:
    """Everything that an event says, as a title with names and values. Sanitised. `agent` and `task`: their names."""
    words, data = event_words(event, task), _data(event.data)
    values = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in data.items()
    }
    facts = [
        ("what", words.text),
        ("kind", event.kind),
        ("when", time_of_day(event.at)),
        ("agent", agent),
        ("task", task),
        *values.items(),
    ]
    lines = [
        (clip(sanitize(name.replace("_", " ")), 28), clip(" ".join(sanitize(value[:4_000]).split()), 4_000))
        for name, value in facts[:40] if value
    ]  # fmt: skip
    return [(f"{words.kind} event", lines)]


def _data(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"text": text}
    return value if isinstance(value, dict) else {"text": value}


class EventLine:
    """One event. It is put into words when it is first looked at: of thousands that come, a screen shows a
    few."""

    __slots__ = ("_task", "_words", "agent_id", "at", "facts", "seq", "task_id")

    def __init__(self, facts: EventFacts, task: str = "") -> None:
        """`task`: the name of its task, if that is known."""
        self.facts, self._task = facts, task
        self.seq, self.at = facts.seq, facts.at
        self.agent_id, self.task_id = facts.agent_id, facts.task_id
        self._words: EventWords | None = None

    @property
    def _said(self) -> EventWords:
        if self._words is None:
            self._words = event_words(self.facts, self._task)
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


def event_lines(events: Iterable[EventFacts], tasks: Iterable[TaskFacts]) -> Iterator[EventLine]:
    """Lines for these events, which name their tasks as the plan does."""
    names = {task.id: sanitize(task.label) for task in tasks}
    return (EventLine(each, names.get(each.task_id or "", "")) for each in events)
