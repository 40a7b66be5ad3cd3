"""A whole session in one file: Markdown or a web page to read, JSON to keep, to move and to import again.

Promises: rows are streamed, and never all in memory; secrets are removed unless the caller forbids it; nothing
that an agent, a tool or a file wrote becomes markup or script; and JSON → import → JSON gives the same document.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from watchkeeper.records.errors import BadInput, StoreUnusable, reason_of
from watchkeeper.records.redact import Redactor
from watchkeeper.records.text import (
    call_words,
    cost_text,
    duration_text,
    one_line,
    plural,
    sanitize,
    utc_seconds_text,
)
from watchkeeper.records.waiting import agent_word
from watchkeeper.store import artifacts, documents, messages
from watchkeeper.store.database import unfinished
from watchkeeper.store.documents import Row
from watchkeeper.store.driver import Connection, Queries, Reads, decode, decode_or
from watchkeeper.store.imports import imported_from, partial_reason
from watchkeeper.store.names import task_name
from watchkeeper.store.plans import load_tasks
from watchkeeper.store.projection import AgentFacts, Spending, agents, counted_session
from watchkeeper.store.receipts import Receipt, session_receipts
from watchkeeper.store.statistics import Activity, TimelineReader, merged
from watchkeeper.transcripts.export.document import write_json

if TYPE_CHECKING:
    from jinja2 import Template


# --- The readable forms: a session as one HTML page, or as one Markdown document, from the templates beside this ---
#
# Whatever a session holds is text in both, and never markup. The templates cannot forget to escape: everything
# that they print is escaped, for Markdown as for HTML, unless it is marked as markup here. The transcripts of a
# page are data blocks, which the page's own program shows as text. Its Content-Security-Policy allows only
# that program and style sheet, by their hashes, and no network.

# --- The view of a session that the HTML and Markdown templates render: state, plan, agents, cost, compactions, ---
#
# memory, artifacts and messages.
#
# Texts in it contain no secrets and no control characters, and are on one line unless a docstring says
# otherwise. They are hostile all the same: a template escapes them. Lists that can be long are iterators.

GLYPHS = {
    "running": "●", "working": "●", "paused": "‖", "waiting": "?", "parked": "◷", "done": "✓", "failed": "✗", "cancelled": "×",
    "dropped": "×", "pending": "·", "idle": "·", "stale": "~",
    "ended": "□", "applied": "✓", "rejected": "×", "abandoned": "×", "skipped": "-", "undone": "~", "prepared": "·",
}  # fmt: skip
"""A mark for each state, so that colour alone never shows it."""

LONGEST_PIECE = 100_000
"""Characters of one piece of a message that are shown."""
MOST_FACTS = 2_000

Clean = Callable[[Any], Any]
"""Removes secrets from a JSON value."""


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Tokens and cost, and how reliable the cost is."""

    calls: int
    tokens: tuple[int, int, int, int]
    """Input, output, cache read, cache write."""
    cost_usd: float | None
    label: str
    """`exact`, `estimated`, `unpriced` or `in part unpriced`, perhaps followed by `, partial` (a lower bound);
    empty without tokens."""

    @property
    def total(self) -> int:
        return sum(self.tokens)

    @property
    def note(self) -> str:
        """The label, unless the cost says the same."""
        return "" if self.label == "unpriced" else self.label


def overview(connection: Connection, session_id: str, clean: Clean) -> Row:
    """A session without its messages and compactions.

    It has the fields of `CountedSession`; `goal` (of several lines), `tags`, `done` (tasks), `compactions`; `spent`, a
    `UsageTotals`, and `models`, one for each model; `partial`, why the totals are lower bounds (empty if they are
    complete); `tasks`, `agents`, `outputs`, `receipts` of agents that are done, and the newest
    `facts` with `fact_count`, the number of all.
    """
    reads = Queries(connection)
    found = counted_session(reads, session_id)
    assert found is not None
    session = _shown(asdict(found) | {"reason": found.status_reason, "seconds": found.hosted_seconds}, clean)
    session |= documents.counted(connection, session_id)
    labels = documents.cost_labels(connection, session_id)
    if session["status"] == "done" and imported_from(found.origin) is not None:
        session["status"] = "ended"  # its log does not say that it reached its goal
    goal = text_lines(clean(found.goal))
    gaps = (found.missing_logs, found.unlogged_calls)
    spent = _usage(found, set().union(*labels.values()))
    if found.is_partial:
        spent = replace(spent, label=f"{spent.label}, partial" if spent.label else "partial")
    tasks = _tasks(reads, session_id, clean)
    return session | {
        "title": session["title"] or line(goal, 160),
        "goal": goal,
        "origin": session["origin"].removeprefix("export:"),
        "tags": [line(tag) for tag in clean(decode(found.tags))],
        "spent": spent,
        "partial": partial_reason(*gaps),
        "models": {
            line(clean(model)): _usage(used, of_model)
            for model, used, of_model in documents.usage_by_model(connection, session_id)
        },
        "tasks": tasks,
        "done": sum(task["status"] == "done" for task in tasks),
        "agents": [
            _shown(_agent(agent), clean) | {"spent": _usage(agent, labels.get(agent.id, set()))}
            for agent in agents(reads, session_id)
        ],
        "facts": [
            _shown(fact, clean) | {"sources": [line(one) for one in clean(decode(fact["pointers_stored"]))]}
            for fact in reversed([*documents.facts(connection, session_id, MOST_FACTS)])
        ],
        "outputs": [_shown(one, clean) for one in documents.outputs(connection, session_id)],
        "receipts": [
            _receipt(one, clean)
            for one in session_receipts(Queries(connection), session_id)
            if one.outputs or one.commands or one.flagged
        ],
    }


def _receipt(receipt: Receipt, clean: Clean) -> Row:
    """A receipt as a page shows it: its texts harmless, on one line, without secrets."""

    def text(value: str) -> str:
        return line(clean(value), 300)

    return {
        "agent": receipt.agent_id, "mark": receipt.mark, "summary": text(receipt.summary), "task": text(receipt.task),
        "outputs": [{"name": text(one.name), "presence": one.presence} for one in receipt.outputs],
        "commands": [
            {"command": text(one.command), "message": one.message,
             "outcome": one.outcome if one.after_last_edit else f"{one.outcome}, before the last edit"}
            for one in receipt.commands
        ],
    }  # fmt: skip


_LIMITS = {"workspace": 400, "goal": 300, "text": 4_000}
"""Characters of these columns that are shown; of others, 200."""


def _shown(row: Row, clean: Clean) -> Row:
    """A row with each text as harmless text on one line, without secrets; ids, digests and columns named `…_stored` as
    they are."""
    whole = {"reason": _whole(clean(row["reason"]))} if "reason" in row else {}
    return {
        name: line(clean(value), _LIMITS.get(name, 200))
        if name in _TEXTS or (isinstance(value, str) and not name.endswith(_KEPT))
        else value
        for name, value in row.items()
    } | whole


_TEXTS = frozenset({"title"})
"""Columns of text that may be NULL."""
_KEPT = ("id", "digest", "_stored")


def _usage(spent: Spending, labels: set[str]) -> UsageTotals:
    if not spent.total_tokens:
        label = ""
    elif spent.cost_usd is None:
        label = "unpriced"
    elif spent.unpriced_calls:
        label = "partly unpriced"
    else:
        label = "estimated" if "estimated" in labels else "exact"
    tokens = (spent.input_tokens, spent.output_tokens, spent.cache_read_tokens, spent.cache_write_tokens)
    return UsageTotals(spent.model_calls, tokens, spent.cost_usd, label)


def _agent(agent: AgentFacts) -> Row:
    status = agent_word(agent.status, agent.status_reason) if agent.status == "cancelled" else agent.status
    return {
        "id": agent.id, "parent_id": agent.parent_agent_id, "task_id": agent.task_id,
        "name": agent.full_label if agent.is_unit else agent.name, "role": agent.role, "model": agent.model,
        "status": status, "reason": agent.status_reason, "goal": agent.goal, "attempt": agent.attempt,
        "messages": agent.last_seq, "seconds": agent.active_seconds, "compactions": agent.compactions,
    }  # fmt: skip


_TASK_TEXTS = {"instructions": 20_000, "result": 20_000, "error": 4_000}


def _tasks(reads: Reads, session_id: str, clean: Clean) -> list[Row]:
    """Tasks with `label` (the name of each), `texts` (instructions, result and error, as far as they exist, each of
    several lines) and `needs` (names of the tasks that each waits for)."""
    tasks, found = load_tasks(reads, session_id), list[Row]()
    for task in tasks:
        row = {name: getattr(task, name) for name in ("id", "name", "title", "status", "role", "attempt")}
        row = _shown(row | {"reason": task.status_reason}, clean)
        texts = {name: getattr(task, name) for name in _TASK_TEXTS}
        found.append(row | {
            "label": task_name(row["name"], row["title"], row["role"]),
            "texts": {
                name.capitalize(): text_lines(clean(text), _TASK_TEXTS[name]) for name, text in texts.items() if text
            },
        })  # fmt: skip
    names = {row["id"]: row["label"] for row in found}
    for task, row in zip(tasks, found, strict=True):
        row["needs"] = [names.get(need, line(need)) for need in task.depends_on]
    return found


@dataclass(frozen=True, slots=True)
class PlanNode:
    """An agent or a task in the tree of the plan, with what is drawn below it."""

    item: Row
    children: tuple[PlanNode, ...]
    is_task: bool = False


_DEEPEST = 12
"""Levels of agents that are drawn below each other; deeper ones are drawn at the top."""


def plan_tree(session: Row) -> tuple[PlanNode, ...]:
    """The lead, with the tasks below it, the agents of each task, and the agents that those started.

    Each agent and each task is there once, even if the rows name each other as parents.
    """
    left = {agent["id"]: agent for agent in session["agents"]}
    tasks = {task["id"] for task in session["tasks"]}
    below: dict[str | None, list[Row]] = {}
    for agent in session["agents"]:
        parent = agent["parent_id"]
        above = parent if parent in left and parent != agent["id"] else None
        below.setdefault(agent["task_id"] if agent["task_id"] in tasks else above, []).append(agent)

    def nodes(agents: list[Row], depth: int, first: tuple[PlanNode, ...] = ()) -> tuple[PlanNode, ...]:
        return tuple(
            PlanNode(
                agent, first + (nodes(below.get(agent["id"], []), depth + 1) if depth < _DEEPEST else ())
            )
            for agent in agents
            if left.pop(agent["id"], None)
        )

    drawn = tuple(
        PlanNode(task, nodes(below.get(task["id"], []), 1), is_task=True) for task in session["tasks"]
    )
    roots = below.get(None, [])
    drawn = nodes(roots[:1], 0, drawn) or drawn
    return drawn + nodes(roots[1:], 0) + nodes(session["agents"], 0)


@dataclass(frozen=True, slots=True)
class Kept:
    """A text that replaces messages in the context."""

    kind: str
    text: str
    """May have several lines."""
    tokens: int
    covers: tuple[int, int]
    citations: tuple[int, ...]
    """The `seq`s of the messages that it cites."""


@dataclass(frozen=True, slots=True)
class CompactionEntry:
    """One compaction of an agent's context."""

    agent_id: str
    trigger: str
    status: str
    reason: str
    instructions: str
    model: str
    at: float
    seconds: float | None
    tokens_before: int | None
    tokens_after: int | None
    first: int
    last: int
    """The messages `first … last` left the context (or would have left it); none if `last < first`."""
    kept: tuple[Kept, ...]
    """The texts that replace them and that the context did not have before."""
    verbatim_from: int | None
    """The first message that the context has verbatim."""

    @property
    def applied(self) -> bool:
        """Whether it changed the context, even if that was undone later."""
        return self.status in ("applied", "undone")

    @property
    def replaced(self) -> int:
        return max(0, self.last - self.first + 1)

    @property
    def cited(self) -> tuple[int, ...]:
        """Which of the replaced messages are cited."""
        cited = {seq for one in self.kept for seq in one.citations}
        return tuple(sorted(seq for seq in cited if self.first <= seq <= self.last))


def compactions(connection: Connection, session_id: str, clean: Clean) -> Iterator[CompactionEntry]:
    """Every compaction of a session, in the order of the times that are shown.

    The numbers of imported compactions have another order: the logs of agents are imported one by one.
    """
    reads = Queries(connection)
    for row in documents.compactions(connection, session_id):
        agent_id, high_water = row["agent_id"], row["high_water"] or 0
        before = documents.shown_by(connection, agent_id, row["view_before"])
        after = documents.shown_by(connection, agent_id, row["view_after"])
        if after is None:
            made = documents.made_by_compaction(connection, agent_id, row["id"])
        else:
            new = [one for one in after[0] if before is None or one not in before[0]]
            made = [found for one in new for found in messages.load_observations(reads, agent_id, [one])]
        first = 1 if before is None else high_water + 1 if before[1] is None else before[1]
        yield CompactionEntry(
            agent_id=agent_id,
            trigger=line(row["trigger"]),
            status=line(row["status"]),
            reason=_whole(clean(row["reason"])),
            instructions=line(clean(row["instructions"]), 2_000),
            model=line(clean(row["model"])),
            at=row["at"],
            seconds=row["seconds"],
            tokens_before=row["tokens_before"],
            tokens_after=row["tokens_after"],
            first=first,
            last=high_water if after is None or after[1] is None else after[1] - 1,
            kept=tuple(
                Kept(
                    line(one.kind), text_lines(clean(one.text), 60_000), one.tokens, one.covers, one.citations
                )
                for one in made
            ),
            verbatim_from=after[1] if after else None,
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """One block of a message."""

    kind: str
    """`text`, `thinking`, `call`, `result`, or `other`."""
    text: str
    """May have several lines."""
    left_out: int = 0
    """How many more characters the text has."""
    name: str = ""
    """The tool of a call."""
    id: str = ""
    """Links a result to its call."""
    is_error: bool = False
    outcome: str = ""
    """The state of the call that it is or answers, as mark and words, unless it is done, or its result is an error."""


@dataclass(frozen=True, slots=True)
class TranscriptMessage:
    """One message of an agent."""

    seq: int
    role: str
    tokens: int
    at: float
    pieces: tuple[Piece, ...]
    undone: bool = False
    """A person returned to a point before it: the context no longer has it."""


def transcript(connection: Connection, agent_id: str, clean: Clean) -> Iterator[TranscriptMessage]:
    """Every message of an agent, in order."""
    undone = messages.undone(Queries(connection), agent_id)
    outcomes = _outcomes(connection, agent_id)
    for seq, role, content, tokens, at in documents.messages(connection, agent_id):
        # Damaged JSON is shown as it is stored: reading continues where keeping (the JSON form) must refuse.
        shown = tuple(_pieces(clean(decode_or(content, content)), outcomes))
        yield TranscriptMessage(seq, str(role), tokens, at, shown, seq in undone)


_FAILED = " ".join(call_words("error", began=True))


def _outcomes(connection: Connection, agent_id: str) -> dict[str, str]:
    """By their ids, the calls of an agent that are not done, and what became of them."""
    return {
        line(use_id): line(" ".join(call_words(str(status), began=started_at is not None)))
        for use_id, status, started_at in documents.calls_not_done(connection, agent_id)
    }


def _pieces(content: Any, outcomes: Mapping[str, str]) -> Iterator[Piece]:
    if isinstance(content, str):
        yield _piece("text", content)
        return
    for block in content if isinstance(content, list) else []:
        if not isinstance(block, dict):
            continue
        match block.get("type"):
            case "text" | "thinking" as kind:
                yield _piece(kind, _text(block.get(kind)))
            case "tool_use":
                given = block.get("input")
                shown = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, indent=2)
                call = line(block.get("id"))
                yield _piece(
                    "call", shown, name=line(block.get("name")), id=call, outcome=outcomes.get(call, "")
                )
            case "tool_result":
                call = line(block.get("tool_use_id"))
                outcome = outcomes.get(call, "")
                is_error = bool(block.get("is_error")) or outcome == _FAILED
                shown = _result_text(block.get("content"))
                outcome = "" if outcome == _FAILED else outcome
                yield _piece("result", shown, id=call, is_error=is_error, outcome=outcome)
            case _:
                yield _piece("other", _described(block))


def _piece(
    kind: str, text: str, *, name: str = "", id: str = "", is_error: bool = False, outcome: str = ""
) -> Piece:
    shown = sanitize(text[:LONGEST_PIECE])
    return Piece(kind, shown, max(0, len(text) - LONGEST_PIECE), name, id, is_error, outcome)


def _result_text(content: Any) -> str:
    if not isinstance(content, list):
        return _text(content)
    return "\n".join(
        _text(block.get("text")) if block.get("type") == "text" else _described(block)
        for block in content
        if isinstance(block, dict)
    )


def _described(block: dict[str, Any]) -> str:
    """What a block that is not text holds, and its size."""
    source = block.get("source")
    kind = _text(block.get("type")) or "block"
    if not isinstance(source, dict):
        return f"[{kind}]"
    data = source.get("data")
    size = f", {len(data) * 3 // 4:,} bytes" if isinstance(data, str) else ""
    return f"[{kind}: {_text(source.get('media_type')) or _text(source.get('type'))}{size}]"


def line(value: Any, limit: int = 200) -> str:
    """A value as harmless text on one line."""
    return one_line(_text(value), limit)


def _whole(value: Any) -> str:
    """All of a value as harmless text of several lines: what a session ended with is never cut."""
    return sanitize(_text(value)).strip()


def text_lines(value: Any, limit: int = LONGEST_PIECE) -> str:
    """A value as harmless text of several lines."""
    text = sanitize(_text(value))
    return text if len(text) <= limit else text[:limit] + f"\n[… {len(text) - limit:,} more characters]"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


SHOWN_BYTES = 200_000
"""Artifacts of text up to this size are shown whole on a page."""
SHOWN_IN_ALL = 4_000_000
LARGEST_KEPT = 20_000_000
"""Characters of summaries on one page; of later compactions it has the numbers alone."""
LARGEST_TRANSCRIPTS = 160_000_000
"""Characters of messages on one page, in equal shares for the agents; the JSON form has the rest."""
RESULT_CHARACTERS = 10_000
"""Characters of a call's input, or of a result, in Markdown."""

_MARKS = re.compile(r"([\\`*_\[\]<>|~&$@#{}])")


def write_markdown(
    connection: Connection, session_id: str, out: TextIO, redactor: Callable[[], Redactor] | None
) -> int | None:
    """Write a session as one Markdown document. The caller holds a read transaction.

    Args:
        redactor: makes one that removes secrets; None leaves them in.

    Returns:
        How many secrets were removed; None if they were left in.
    """
    return _write("session.md", connection, session_id, out, redactor)


def write_page(
    connection: Connection, session_id: str, out: TextIO, redactor: Callable[[], Redactor] | None
) -> int | None:
    """Write a session as one HTML page, like `write_markdown`."""
    return _write("page.html", connection, session_id, out, redactor)


def _write(
    name: str, connection: Connection, session_id: str, out: TextIO, redactor: Callable[[], Redactor] | None
) -> int | None:
    secrets = redactor() if redactor is not None else None
    clean: Clean = secrets if secrets is not None else lambda value: value
    session = overview(connection, session_id, clean)
    share = LARGEST_TRANSCRIPTS // max(1, len(session["agents"]))
    # Everything that can be long is an iterator, and the template is written as it is rendered.
    out.writelines(
        _template(name).generate(
            session=session,
            secrets=secrets,
            plan=plan_tree(session),
            names={agent["id"]: agent["name"] for agent in session["agents"]},
            places={agent["id"]: place for place, agent in enumerate(session["agents"])},
            most_tokens=max((agent["spent"].total for agent in session["agents"]), default=0),
            compactions=lambda: _bounded(compactions(connection, session_id, clean)),
            timeline=_timeline(connection, session),
            artifacts=lambda: _artifacts(connection, session, clean),
            messages=lambda agent: transcript(connection, agent["id"], clean),
            chunks=lambda agent: _chunks(transcript(connection, agent["id"], clean), share),
        )
    )
    return secrets.count if secrets is not None else None


MOST_TIMELINE_ROWS = 200
_AXIS = 1_000
"""Units of the timeline's axis, and its finest detail."""


def _timeline(connection: Connection, session: Row) -> Row:
    """What the page draws: for each of the first agents, rectangles and marks on an axis of `_AXIS` units.

    Nothing that a model or a tool wrote is in it.
    """
    found = TimelineReader(connection, session["id"]).read()
    seconds = max(found.ends - found.begins, 1.0)

    def at(moment: float | None) -> float:
        return round(_AXIS * min(1.0, max(0.0, ((moment or found.ends) - found.begins) / seconds)), 1)

    marks: dict[str | None, list[Row]] = {}
    for mark in found.marks:
        marks.setdefault(mark.agent_id, []).append({"kind": mark.kind.value, "x": at(mark.at)})
    rows = []
    for agent in found.agents[:MOST_TIMELINE_ROWS]:
        spans = merged(found.spans.get(agent.id, ()), seconds / _AXIS)
        used: Counter[str] = Counter()
        for span in spans:
            used[span.activity.value] += int(1000 * ((span.ends or found.ends) - span.begins))
        boxes = [
            {
                "kind": span.activity.name.lower(),
                "x": at(span.begins),
                "width": max(0.8, at(span.ends) - at(span.begins)),
            }
            for span in sorted(spans, key=lambda span: span.activity is Activity.COMPACTION)
        ]
        summary = ", ".join(f"{name} {duration_text(spent / 1000)}" for name, spent in used.most_common())
        alive = {"x": at(agent.begins), "width": max(0.8, at(agent.ends) - at(agent.begins))}
        rows.append(
            {
                "id": agent.id,
                "depth": agent.depth,
                "alive": alive,
                "boxes": boxes,
                "summary": summary,
                "marks": marks.get(agent.id, []),
            }
        )
    return {
        "begins": found.begins,
        "ends": found.ends,
        "rows": rows,
        "marks": marks.get(None, []),
        "more": len(found.agents) - len(rows),
        "kinds": [(activity.name.lower(), activity.value) for activity in Activity],
    }


@cache
def _template(name: str) -> Template:
    """A template whose names are checked, and which prints nothing that is not escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def escape_markdown(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(escaped(str(value)))

    environment = Environment(
        loader=PackageLoader("watchkeeper.transcripts.export"),
        autoescape=True,
        finalize=escape_markdown if name.endswith(".md") else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    folder = files("watchkeeper.transcripts.export") / "templates"
    environment.globals |= {
        name: Markup((folder / file).read_text(encoding="utf-8"))
        for name, file in (("style", "page.css"), ("program", "page.js"))
    }
    environment.filters |= {
        "cost": lambda spent: cost_text(spent.cost_usd, spent.total),
        "data": lambda value: Markup(data_block(value)),
        "digest": _digest,
        "duration": duration_text,
        "fenced": lambda text: Markup(fenced(text)),
        "glyph": lambda status: GLYPHS.get(status, "?"),
        "message_pointer": _message_pointer,
        "number": lambda amount: "?" if amount is None else f"{amount:,}",
        "plural": plural,
        "short": _short,
        "shortened": _shortened,
        "state": lambda status: status if status in GLYPHS else "unknown",
        "time": utc_seconds_text,
    }
    return environment.get_template(name)


def escaped(text: str) -> str:
    """Text of one line that Markdown shows as it is: no emphasis, link, picture, table cell or HTML."""
    return _MARKS.sub(r"\\\1", text).replace("://", ":\\//").replace("www.", "www\\.")


def fenced(text: str) -> str:
    """Text of several lines in a code block that none of its lines can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}\n"


def _shortened(piece: Piece) -> str:
    limit = RESULT_CHARACTERS if piece.kind in ("call", "result") else len(piece.text)
    left_out = piece.left_out + max(0, len(piece.text) - limit)
    return piece.text[:limit] + (f"\n[… {left_out:,} more characters]" if left_out else "")


def data_block(value: object) -> str:
    """JSON for a script element: nothing in it ends the element, opens a comment, or ends a line."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Consecutive messages of an agent as one data block."""

    first: int
    last: int
    data: str
    left_out: int = 0
    """How many messages after it the page does not have."""


_MESSAGES_PER_CHUNK = 50
_CHARACTERS_PER_CHUNK = 300_000


def _chunks(messages: Iterable[TranscriptMessage], share: int) -> Iterator[_Chunk]:
    """The messages in data blocks, up to `share` characters."""
    texts: list[str] = []
    size = written = left_out = first = last = 0
    for message in messages:
        if written > share:
            left_out += 1
            continue
        pieces = [
            (one.kind, one.text, one.left_out, one.name, one.id, int(one.is_error), one.outcome)
            for one in message.pieces
        ]
        row = (
            message.seq,
            message.role,
            utc_seconds_text(message.at),
            message.tokens,
            pieces,
            int(message.undone),
        )
        text = data_block(row)
        first, last = first if texts else message.seq, message.seq
        texts.append(text)
        size += len(text)
        written += len(text)
        if len(texts) >= _MESSAGES_PER_CHUNK or size >= _CHARACTERS_PER_CHUNK:
            yield _Chunk(first, last, ",\n".join(texts))
            texts, size = [], 0
    if texts or left_out:
        yield _Chunk(first, last, ",\n".join(texts), left_out)


def _bounded(found: Iterable[CompactionEntry]) -> Iterator[CompactionEntry]:
    """Compactions without their texts once these exceed `LARGEST_KEPT`."""
    size = 0
    for one in found:
        size += sum(len(kept.text) for kept in one.kept)
        if size > LARGEST_KEPT:
            left_out = "[omitted: the page would be too large]"
            one = replace(one, kept=tuple(replace(kept, text=left_out) for kept in one.kept))
        yield one


def _artifacts(connection: Connection, session: Row, clean: Clean) -> Iterator[tuple[Row, str | None]]:
    """Each output, with its text if that is small enough to be shown."""
    left = SHOWN_IN_ALL
    for one in session["outputs"]:
        text = None
        if one["size"] <= min(SHOWN_BYTES, left) and one["kind"] == "artifact":
            text = _artifact_text(connection, one["digest"])
        if text is not None:
            left -= one["size"]
            text = text_lines(clean(text), SHOWN_BYTES)
        yield one, text


def _artifact_text(connection: Connection, digest: str) -> str | None:
    try:
        return (artifacts.get(Queries(connection), artifacts.ref_of(digest)) or b"").decode()
    except (StoreUnusable, UnicodeDecodeError):
        return None


def _message_pointer(pointer: str) -> tuple[str, str]:
    """The agent and the messages (`3` or `3-7`) of a `message://` pointer; empty for any other."""
    found = re.fullmatch(r"message://(.+)/([0-9]+(?:-.*)?)", pointer)
    return (found[1], found[2]) if found else ("", "")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _short(amount: int) -> str:
    """`9,999`, `12.3 k`, `4.5 M`."""
    for size, unit, least in ((10**9, "G", 10**9), (10**6, "M", 10**6), (1000, "k", 10_000)):
        if amount >= least:
            return f"{amount / size:.1f} {unit}"
    return f"{amount:,}"


Write = Callable[[Connection, str, TextIO, Callable[[], Redactor] | None], int | None]
"""Takes a connection (in a read transaction), a session id, the file, and what makes a redactor (None leaves
secrets in); returns how many secrets were removed."""

WRITERS: Mapping[str, Write] = {"md": write_markdown, "html": write_page, "json": write_json}


@contextmanager
def new_file(path: Path, *, replace: bool = False) -> Iterator[TextIO]:
    """A text file (UTF-8, mode 0600) that takes the name `path` when the block ends without an error.

    Until then it has a temporary name in the same folder. If the block fails, the file is removed.

    Raises:
        BadInput: something of that name is there and `replace` was not said, or it is not a regular file, or the
            folder cannot be written.
    """
    if not replace and os.path.lexists(path):
        raise _exists(path)
    if replace and (path.is_symlink() or (path.exists() and not path.is_file())):
        # A link, a pipe, a device: `/dev/stdout` must not become a file.
        raise BadInput(
            f"{path} is not a regular file and cannot be replaced; choose another path with --output (`-` prints)"
        )
    try:
        with unfinished(path) as (temporary, descriptor):
            copied = os.dup(descriptor)
            with os.fdopen(
                copied, "w", encoding="utf-8", errors="replace", newline="\n", buffering=1 << 20
            ) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _name(temporary, path, replace)
    except OSError as error:
        raise BadInput(
            f"cannot write {path} ({reason_of(error)}); choose another path with --output"
        ) from None


def _name(temporary: Path, path: Path, replace: bool) -> None:
    if replace:
        os.replace(temporary, path)
        return
    try:
        # A link is made only where nothing is, even if that came to be since we looked.
        os.link(temporary, path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:
        if os.path.lexists(path):  # a file system without links
            raise _exists(path) from None
        os.replace(temporary, path)


def _exists(path: Path) -> BadInput:
    return BadInput(f"{path} already exists; choose another path with --output, or replace it with --force")
