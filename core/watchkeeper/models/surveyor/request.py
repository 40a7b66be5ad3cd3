"""Reading JSON out of texts that hold more than it, or not the whole of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from watchkeeper.records.messages import ModelRequest, Purpose

_DECODER = json.JSONDecoder()


def json_after(text: str, marker: str, *, last: bool = False) -> dict[str, Any] | None:
    """The JSON object that follows `marker` (and blanks) in a text; the first that is whole, or the last."""
    found: dict[str, Any] | None = None
    position = text.find(marker)
    while position >= 0:
        start = position + len(marker)
        while start < len(text) and text[start] in " \t\r\n":
            start += 1
        value = _decoded(text, start) if text.startswith("{", start) else None
        if isinstance(value, dict):
            found = value
            if not last:
                return found
        position = text.find(marker, position + 1)
    return found


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, or begins with; None if it is something else or cut short."""
    value = _decoded(text.lstrip(), 0)
    return value if isinstance(value, dict) else None


def folder_page(text: str) -> dict[str, Any] | None:
    """A page of `list_folder`, if it is whole: its entries must add up to its own totals.

    A page that was shortened to fit a window may still parse as JSON, and would then lack entries.
    """
    page = json_object(text)
    if page is None or not isinstance(page.get("entries"), list) or not isinstance(page.get("totals"), dict):
        return None
    found = {"file": 0, "dir": 0, "link": 0, "other": 0, "todos": 0}
    for entry in page["entries"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            return None
        found["todos"] += len(entry.get("todos", ()))
        if "todos_from" not in entry:
            kind = str(entry.get("kind"))
            found[kind if kind in found else "other"] += 1
    names = {"file": "files", "dir": "folders", "link": "links", "other": "other", "todos": "todos"}
    return page if all(page["totals"].get(names[kind]) == number for kind, number in found.items()) else None


def leading_rows(text: str) -> tuple[list[Any], bool]:
    """The whole items at the beginning of a JSON list that may be cut short, and whether it was whole."""
    text = text.strip()
    if not text.startswith("["):
        return [], False
    rows: list[Any] = []
    position = 1
    while True:
        while position < len(text) and text[position] in ", \t\r\n":
            position += 1
        if text.startswith("]", position):
            return rows, True
        try:
            row, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return rows, False
        rows.append(row)


def leading_items(text: str) -> tuple[dict[str, Any], bool]:
    """The whole items at the beginning of a JSON object that may be cut short, and whether it was whole."""
    text = text.strip()
    if not text.startswith("{"):
        return {}, False
    items: dict[str, Any] = {}
    position = 1
    while True:
        while position < len(text) and text[position] in ", \t\r\n":
            position += 1
        if text.startswith("}", position):
            return items, True
        try:
            key, position = _DECODER.raw_decode(text, position)
            while text[position : position + 1] in (" ", ":"):
                position += 1
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return items, False
        items[str(key)] = value


def _decoded(text: str, start: int) -> Any:
    try:
        value, _ = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    return value


# --- What a request says, read for what the surveyor needs: who it is, where it stands, what has come back ---

CURSOR = "cursor:"
SCOPE = "scope:"
MOST_ATTEMPTS = 3
"""How often a call that keeps failing is made in all."""

_TRANSIENT = re.compile(
    r"interrupt|unknown|timed? ?out|time-out|unavailable|try again|busy|cancelled", re.IGNORECASE
)
_ELIDED = re.compile(r"\[…(?:\]| \d+ characters left out, whole: )")
_STOP = re.compile(r"(?:^|[.!?:;\n])\s*(?:please\s+)?stop\b(?!ped)", re.IGNORECASE)
_SKIP = re.compile(r"(?:^|[.!?:;,\n]|\band\b)\s*(?:please\s+)?skip\s+[`'\"]?([^\s`'\",;]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """A tool call of the last reply, with its result."""

    name: str
    arguments: dict[str, Any]
    text: str
    failed: bool

    @property
    def transient(self) -> bool:
        """It failed in a way that trying again may mend. Every call that the surveyor makes may be
        repeated."""
        return self.failed and _TRANSIENT.search(self.text[:400]) is not None

    @property
    def denied(self) -> bool:
        return (
            self.failed
            and re.search(r"denied|not allowed|permission", self.text[:400], re.IGNORECASE) is not None
        )

    @property
    def elided(self) -> bool:
        """The call or its result was shortened to fit the window; what it says cannot be relied on."""
        return elided(self.text) or elided(self.arguments)


def elided(value: object) -> bool:
    """A text, or the JSON of a value, shows the mark of something left out. (A file's own text may look
    alike.)"""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _ELIDED.search(text) is not None


@dataclass(frozen=True, slots=True)
class Steering:
    """What people said since the last reply."""

    texts: tuple[str, ...] = ()
    stop: bool = False
    skip: tuple[str, ...] = ()

    @property
    def acknowledgement(self) -> str:
        """A sentence to begin the reply with; empty when nobody said anything."""
        if not self.texts:
            return ""
        said = " ".join(" ".join(self.texts).split())
        return f"Noted: “{said if len(said) <= 100 else said[:99] + '…'}” "


@dataclass(frozen=True, slots=True)
class Situation:
    """A request, understood."""

    role: str
    tools: frozenset[str]
    assignment: str
    """The first user message, as text."""
    scope: dict[str, Any] | None
    """The machine line of the assignment that holds now."""
    assigned_again: bool
    """The assignment was delivered anew after the last reply."""
    cursor: dict[str, Any] | None
    """Where the last reply left off; None at the start, and after the end."""
    outcomes: tuple[ToolOutcome, ...]
    inbox: tuple[dict[str, Any], ...]
    steering: Steering
    replied: bool
    """There is an earlier reply in the context."""

    @property
    def finished(self) -> bool:
        """The last reply was the last of its assignment: it carries no cursor, so that its text is the bare
        result."""
        return self.replied and self.cursor is None and not self.assigned_again and not self.outcomes

    @property
    def key(self) -> str:
        """Ties a cursor to its assignment, so that a file's text cannot pass for one."""
        basis = json.dumps(self.scope, sort_keys=True) if self.scope else "planner"
        return hashlib.sha256(basis.encode()).hexdigest()[:8]


def understand(request: ModelRequest) -> Situation:
    """Read a request. Tolerates whatever compaction left between the first message and the last ones."""
    messages = request.messages
    last = max((i for i, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)
    assignment = "\n".join(_texts(messages[0])) if messages else ""
    said = [text for message in messages[last + 1 :] for text in _texts(message)] if last >= 0 else []
    scope, assigned_again = _scope_in(assignment), False
    for text in said:
        if (newer := _scope_in(text)) is not None:
            scope, assigned_again = newer, True
    inbox = tuple(item for text in said or [assignment] for item in _inbox_in(text))
    situation = Situation(
        role=_role(request),
        tools=frozenset(tool.name for tool in request.tools),
        assignment=assignment,
        scope=scope,
        assigned_again=assigned_again,
        cursor=None,
        outcomes=tuple(_outcomes(messages, last)) if last >= 0 else (),
        inbox=inbox,
        steering=_steering(said, inbox),
        replied=last >= 0,
    )
    cursor = None
    if last >= 0:
        cursor = json_after("\n".join(_texts(messages[last])), CURSOR, last=True)
    else:
        # Everything may have been compacted away; an observation at the front may still quote the cursor.
        traced = json_after(assignment, CURSOR, last=True)
        cursor = traced if traced and traced.get("key") == situation.key else None
    if cursor and isinstance(cursor.get("scope"), dict) and not assigned_again:
        scope = cursor["scope"]
    return replace(situation, scope=scope, cursor=cursor)


def _role(request: ModelRequest) -> str:
    first = request.system.lstrip().partition("\n")[0]
    if first.lower().startswith("role:"):
        return first[5:].strip().lower()
    if request.purpose in (Purpose.OBSERVER, Purpose.REFLECTOR):
        return str(request.purpose)
    names = {tool.name for tool in request.tools}
    return "planner" if "create_plan" in names else "explorer" if "list_folder" in names else ""


def _texts(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, Sequence):
        for block in content:
            if isinstance(block, dict) and block.get("type") == "text":
                yield str(block.get("text", ""))


def _outcomes(messages: Sequence[dict[str, Any]], last: int) -> Iterator[ToolOutcome]:
    results = {
        block.get("tool_use_id"): block
        for message in messages[last + 1 :]
        for block in _blocks(message)
        if block.get("type") == "tool_result"
    }
    for block in _blocks(messages[last]):
        if block.get("type") != "tool_use":
            continue
        result = results.get(block.get("id"))
        arguments = block.get("input")
        yield ToolOutcome(
            name=str(block.get("name")),
            arguments=arguments if isinstance(arguments, dict) else {},
            text="".join(_texts(result)) if result else "interrupted, outcome unknown",
            failed=result is None or bool(result.get("is_error")),
        )


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _scope_in(text: str) -> dict[str, Any] | None:
    scope = json_after(text, SCOPE)
    if scope is None and SCOPE in text:
        # The instructions may come quoted inside a JSON handoff.
        scope = json_after(text.replace('\\"', '"').replace("\\\\", "\\"), SCOPE)
    return scope


def _inbox_in(text: str) -> list[dict[str, Any]]:
    position = text.find('{"inbox"')
    if position < 0:
        return []
    whole = json_after(text[position:], "")
    items = whole.get("inbox") if whole else None
    if not isinstance(items, list):
        # Cut short to fit: what is whole at its beginning still counts.
        items, _ = leading_rows(text[position:].partition(":")[2])
    return [item for item in items if isinstance(item, dict)]


def _steering(said: Sequence[str], inbox: Sequence[dict[str, Any]]) -> Steering:
    texts = [str(item.get("text", "")) for item in inbox if item.get("kind") == "steer"]
    if not inbox:
        texts += [text[:600] for text in said if SCOPE not in text and text.strip()]
    joined = "\n".join(texts)
    return Steering(
        texts=tuple(texts),
        stop=_STOP.search(joined) is not None,
        skip=tuple(name.rstrip("/.") for name in _SKIP.findall(joined) if name.strip("/.")),
    )


# --- What the surveyor does next: some words, the cursor, and tool calls ----------------------------------

Call = tuple[str, dict[str, Any]]
"""A tool's name and its input."""


@dataclass(frozen=True, slots=True)
class SurveyorReply:
    """One reply, before it is put into blocks. Without calls it ends the turn."""

    text: str
    cursor: dict[str, Any] | None = None
    calls: list[Call] = field(default_factory=list)

    def words(self) -> str:
        """The text block: the words, and the cursor on a line of its own."""
        if self.cursor is None:
            return self.text
        return f"{self.text}\n\n{CURSOR} {compact(self.cursor)}"


def compact(value: object) -> str:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def again(outcomes: list[ToolOutcome]) -> list[Call]:
    """The calls among these that failed, to be made once more as they were."""
    return [(outcome.name, outcome.arguments) for outcome in outcomes if outcome.failed]


def exhausted(attempts: int, failed: list[ToolOutcome], most: int = MOST_ATTEMPTS) -> bool:
    """Trying again is pointless: it was tried often enough, or a person said no."""
    return attempts >= most or any(outcome.denied and not outcome.transient for outcome in failed)


def reason(outcomes: list[ToolOutcome]) -> str:
    """The first failure in one short line."""
    for outcome in outcomes:
        if outcome.failed:
            line = " ".join(outcome.text.split())
            return f"{outcome.name}: {line if len(line) <= 160 else line[:159] + '…'}"
    return "no reason was given"


def count(number: int, singular: str, plural: str | None = None) -> str:
    """`1 file`, `1,234 files`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
