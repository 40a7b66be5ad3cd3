"""What the readable forms say of a session beside its transcripts: how it stands, its plan, its agents, what
they cost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from watchkeeper.records.text import sanitize
from watchkeeper.store.driver import Connection, decode
from watchkeeper.store.imports import missing_logs, partial_reason

# --- Figures as people read them, the same in every form --------------------------------------------------

GLYPHS = {
    "running": "●", "working": "●", "paused": "‖", "waiting": "?", "parked": "◷", "done": "✓", "failed": "✗", "cancelled": "×",
    "dropped": "×", "pending": "·", "idle": "·", "stale": "~",
    "applied": "✓", "rejected": "×", "abandoned": "×", "undone": "~", "prepared": "·",
}  # fmt: skip
"""State is never told by colour alone."""


def moment(at: float | None) -> str:
    """A time in UTC, to the second; a dash where there is none, or none that a calendar has."""
    if at is None:
        return "–"
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "–"


def duration(seconds: float | None) -> str:
    """`4.2 s`, `3 min 05 s`, `2 h 07 min`."""
    if seconds is None or seconds < 0:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def cost(spent: UsageTotals) -> str:
    """`$0.1234`, or why there is no figure."""
    if spent.cost_usd is None:
        return "unpriced" if spent.total else "–"
    return f"${spent.cost_usd:,.4f}"


def glyph(status: str) -> str:
    return GLYPHS.get(status, "·")


# --- What a message says, in pieces that a page can show: text, thinking, calls of tools, and their results ---

LONGEST = 100_000
"""Characters of one piece; of a longer one the rest is left out, and how much that is."""

Clean = Callable[[Any], Any]
"""Takes secrets out of a JSON value."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One block of a message. `text` is free of control characters, and nothing else: it is hostile still."""

    kind: str
    """`text`, `thinking`, `call`, `result`, or `other`."""
    text: str
    left_out: int = 0
    """Characters of the text that are not here."""
    name: str = ""
    """Of a call: the tool."""
    id: str = ""
    """What ties a result to its call."""
    is_error: bool = False


def pieces(content: Any, clean: Clean) -> Iterator[Piece]:
    """The pieces of a message's content, in order, without secrets."""
    content = clean(content)
    if isinstance(content, str):
        yield _piece("text", content)
        return
    for block in content if isinstance(content, list) else []:
        if not isinstance(block, dict):
            continue
        kind = block.get("type")
        if kind == "text":
            yield _piece("text", _text(block.get("text")))
        elif kind == "thinking":
            yield _piece("thinking", _text(block.get("thinking")))
        elif kind == "tool_use":
            given = block.get("input")
            shown = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, indent=2)
            yield _piece("call", shown, name=line(block.get("name")), id=line(block.get("id")))
        elif kind == "tool_result":
            wrong = bool(block.get("is_error"))
            yield _piece(
                "result", _flat(block.get("content")), id=line(block.get("tool_use_id")), is_error=wrong
            )
        else:
            yield _piece("other", _described(block))


def line(value: Any, limit: int = 200) -> str:
    """A value as harmless text on one line."""
    text = " ".join(sanitize(_text(value)[: limit * 4]).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def lines(value: Any, limit: int = LONGEST) -> str:
    """A value as harmless text of several lines."""
    text = sanitize(_text(value))
    return text if len(text) <= limit else text[:limit] + f"\n[… {len(text) - limit:,} characters more]"


def _piece(kind: str, text: str, *, name: str = "", id: str = "", is_error: bool = False) -> Piece:
    harmless = sanitize(text[:LONGEST])
    return Piece(kind, harmless, max(0, len(text) - LONGEST), name, id, is_error)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _flat(content: Any) -> str:
    if not isinstance(content, list):
        return _text(content)
    return "\n".join(
        (_text(block.get("text")) if block.get("type") == "text" else _described(block))
        for block in content
        if isinstance(block, dict)
    )


def _described(block: dict[str, Any]) -> str:
    """A block that is no text: what it is, and how large."""
    source = block.get("source")
    kind = _text(block.get("type")) or "block"
    if not isinstance(source, dict):
        return f"[{kind}]"
    data = source.get("data")
    size = f", {len(data) * 3 // 4:,} bytes" if isinstance(data, str) else ""
    return f"[{kind}: {_text(source.get('media_type')) or _text(source.get('type'))}{size}]"


# --- An agent's messages for the readable forms, one at a time --------------------------------------------

_REWINDS = (
    "SELECT v.reason, v.elided, coalesce(p.elided, '[]') FROM views v LEFT JOIN views p"
    " ON p.agent_id = v.agent_id AND p.version = v.parent"
    " WHERE v.agent_id = ? AND v.reason IN ('rewind', 'restored') ORDER BY v.version"
)
_MESSAGES = "SELECT seq, role, content, tokens, created_at FROM messages WHERE agent_id = ? ORDER BY seq"


@dataclass(frozen=True, slots=True)
class Said:
    """One message, in pieces, without secrets."""

    seq: int
    role: str
    tokens: int
    at: float
    pieces: tuple[Piece, ...]
    taken_back: bool = False
    """A person went back to before it: it is in the context no more."""


def transcript(connection: Connection, agent_id: str, clean: Clean) -> Iterator[Said]:
    """Every message of an agent, in order."""
    gone = _taken_back(connection, agent_id)
    for row in connection.execute(_MESSAGES, (agent_id,)):
        yield Said(
            row[0], str(row[1]), row[3], row[4], tuple(pieces(_content(row[2]), clean)), row[0] in gone
        )


def _taken_back(connection: Connection, agent_id: str) -> frozenset[int]:
    gone: set[int] = set()
    for reason, after, before in connection.execute(_REWINDS, (agent_id,)):
        # `[seq, head, tail, pointer, tokens]`: what was taken back has no tokens left.
        now = {each[0] for each in decode(after) if not each[4]}
        gone |= now
        if reason == "restored":
            gone -= {each[0] for each in decode(before) if not each[4]} - now
    return frozenset(gone)


def _content(stored: str) -> Any:
    try:
        return decode(stored)
    except ValueError:
        # What is no JSON is shown as it is: reading goes on where keeping (the JSON form) must refuse.
        return stored


MOST_FACTS = 2_000


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Tokens and cost, and what the figure is worth."""

    calls: int
    tokens: tuple[int, int, int, int]
    """Input, output, read from the cache, written to it."""
    cost_usd: float | None
    label: str
    """`exact`, `estimated`, `unpriced`, `in part unpriced`, each perhaps with `, partial` behind it: a lower
    bound; empty where nothing was spent."""

    @property
    def total(self) -> int:
        return sum(self.tokens)


@dataclass(frozen=True, slots=True)
class AgentLine:
    """One agent. Texts here and below are free of secrets and control characters, on one line but where
    said."""

    id: str
    name: str
    role: str
    model: str
    status: str
    reason: str
    goal: str
    attempt: int
    task_id: str | None
    parent_id: str | None
    messages: int
    compactions: int
    seconds: float
    spent: UsageTotals


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One task of the plan."""

    id: str
    name: str
    title: str
    status: str
    reason: str
    role: str
    attempt: int
    instructions: str
    """Of several lines, as `result` and `error` are."""
    result: str
    error: str
    needs: tuple[str, ...]
    """Titles of the tasks that it waits for."""


@dataclass(frozen=True, slots=True)
class FactLine:
    """One thing that is remembered."""

    id: int
    kind: str
    text: str
    sources: tuple[str, ...]
    agent_id: str | None
    pinned: bool
    superseded_by: int | None


@dataclass(frozen=True, slots=True)
class OutputLine:
    """One thing that was made: the newest of its name."""

    name: str
    kind: str
    media_type: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Overview:
    """A session but for its transcripts and compactions."""

    id: str
    title: str
    goal: str
    """Of several lines."""
    status: str
    reason: str
    origin: str
    workspace: str
    model: str
    tags: tuple[str, ...]
    created_at: float
    last_active: float
    ended_at: float | None
    seconds: float
    compactions: int
    revision: int
    """How often the plan was revised; 0 without one."""
    spent: UsageTotals
    partial: str
    """Why the totals are lower bounds; empty where they are not."""
    models: Mapping[str, UsageTotals]
    tasks: tuple[TaskLine, ...]
    agents: tuple[AgentLine, ...]
    facts: tuple[FactLine, ...]
    facts_in_all: int
    outputs: tuple[OutputLine, ...]


def overview(connection: Connection, session_id: str, clean: Clean) -> Overview:
    """Read a session's overview; `clean` takes secrets out."""
    rows = _Rows(connection, clean)
    session = rows.one("SELECT * FROM sessions WHERE id = ?", session_id)
    by_agent, by_model, whole = _spending(rows, session_id)
    goal = lines(clean(session["goal"]))
    missing = missing_logs(connection, session_id)
    plan = rows.one("SELECT revision FROM plans WHERE id = ?", session["current_plan_id"])
    return Overview(
        id=line(session_id),
        title=line(clean(session["title"])) or line(goal, 160),
        goal=goal,
        status=line(session["status"]),
        reason=line(clean(session["status_reason"]), 600),
        origin=line(str(session["origin"]).removeprefix("export:")),
        workspace=line(clean(session["workspace"]), 400),
        model=line(clean(session["model"])),
        tags=tuple(line(tag) for tag in clean(decode(session["tags"]))),
        created_at=session["created_at"],
        last_active=session["last_active"],
        ended_at=session["ended_at"],
        seconds=session["hosted_seconds"],
        compactions=rows.one(
            "SELECT count(*) AS n FROM compactions WHERE session_id = ? AND status IN ('applied', 'undone')",
            session_id,
        )["n"],
        revision=plan["revision"] if plan else 0,
        spent=_partly(_spent(session, session["model_calls"], whole), missing),
        partial=partial_reason(missing),
        models=by_model,
        tasks=_tasks(rows, session_id),
        agents=_agents(rows, session_id, by_agent),
        facts=_facts(rows, session_id),
        facts_in_all=rows.one("SELECT count(*) AS n FROM facts WHERE session_id = ?", session_id)["n"],
        outputs=_outputs(rows, session_id),
    )


class _Rows:
    """Rows by column name, whatever the connection's own row factory."""

    def __init__(self, connection: Connection, clean: Clean) -> None:
        self._connection = connection
        self.clean = clean

    def all(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        cursor = self._connection.execute(sql, parameters)
        names = [one[0] for one in cursor.description]
        return [dict(zip(names, tuple(row), strict=True)) for row in cursor]

    def one(self, sql: str, *parameters: Any) -> dict[str, Any]:
        return next(iter(self.all(sql, *parameters)), {})


def _spending(rows: _Rows, session_id: str) -> tuple[dict[str, set[str]], dict[str, UsageTotals], set[str]]:
    """What figures are worth, by agent; what each model cost; what the sum is worth."""
    by_agent: dict[str, set[str]] = {}
    whole: set[str] = set()
    worth = "CASE WHEN price_status = 'exact' AND NOT usage_exact THEN 'estimated' ELSE price_status END"
    spent_something = "input_tokens + output_tokens + cache_read_tokens + cache_write_tokens > 0"
    for row in rows.all(
        f"SELECT DISTINCT agent_id, {worth} AS worth FROM model_calls WHERE session_id = ? AND {spent_something}",  # noqa: S608
        session_id,
    ):
        by_agent.setdefault(row["agent_id"], set()).add(row["worth"])
        whole.add(row["worth"])
    by_model: dict[str, UsageTotals] = {}
    for row in rows.all(
        "SELECT model, count(*) AS calls, sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,"  # noqa: S608
        " sum(cache_read_tokens) AS cache_read_tokens, sum(cache_write_tokens) AS cache_write_tokens,"
        " sum(cost_usd) AS cost_usd,"
        f" group_concat(DISTINCT CASE WHEN {spent_something} THEN {worth} END) AS worths,"
        f" sum({spent_something} AND cost_usd IS NULL) AS unpriced_calls"
        " FROM model_calls WHERE session_id = ? GROUP BY model ORDER BY sum(cost_usd) DESC,"
        " sum(output_tokens) DESC",
        session_id,
    ):
        by_model[line(rows.clean(row["model"]))] = _spent(
            row, row["calls"], set((row["worths"] or "").split(",")) - {""}
        )
    return by_agent, by_model, whole


def _spent(row: dict[str, Any], calls: int, worths: set[str]) -> UsageTotals:
    tokens = (row["input_tokens"], row["output_tokens"], row["cache_read_tokens"], row["cache_write_tokens"])
    cost = row["cost_usd"]
    if not sum(tokens):
        label = ""
    elif cost is None:
        label = "unpriced"
    elif row["unpriced_calls"]:
        label = "in part unpriced"
    else:
        label = "estimated" if "estimated" in worths else "exact"
    return UsageTotals(calls, tokens, cost, label)


def _partly(spent: UsageTotals, missing: int) -> UsageTotals:
    """The figures of a session to which so many agents' logs are missing."""
    return replace(spent, label=f"{spent.label}, partial" if spent.label else "partial") if missing else spent


def _agents(rows: _Rows, session_id: str, worths: dict[str, set[str]]) -> tuple[AgentLine, ...]:
    clean = rows.clean
    return tuple(
        AgentLine(
            id=row["id"],
            name=line(clean(row["name"])),
            role=line(row["role"]),
            model=line(clean(row["model"])),
            status=line(row["status"]),
            reason=line(clean(row["status_reason"]), 400),
            goal=line(clean(row["current_goal"]), 300),
            attempt=row["attempt"],
            task_id=row["task_id"],
            parent_id=row["parent_agent_id"],
            messages=row["last_seq"],
            compactions=row["compactions"],
            seconds=row["active_seconds"],
            spent=_spent(row, row["model_calls"], worths.get(row["id"], set())),
        )
        for row in rows.all("SELECT * FROM agents WHERE session_id = ? ORDER BY rowid", session_id)
    )


def _tasks(rows: _Rows, session_id: str) -> tuple[TaskLine, ...]:
    clean = rows.clean
    found = rows.all("SELECT * FROM tasks WHERE session_id = ? ORDER BY parent_plan_id, position", session_id)
    titles = {row["id"]: line(clean(row["title"])) for row in found}
    needs: dict[str, list[str]] = {}
    for row in rows.all(
        "SELECT d.task_id, d.depends_on FROM tasks t CROSS JOIN task_dependencies d ON d.task_id = t.id"
        " WHERE t.session_id = ?"
        " ORDER BY d.rowid",
        session_id,
    ):
        needs.setdefault(row["task_id"], []).append(titles.get(row["depends_on"], line(row["depends_on"])))
    return tuple(
        TaskLine(
            id=row["id"],
            name=line(clean(row["name"])),
            title=titles[row["id"]],
            status=line(row["status"]),
            reason=line(clean(row["status_reason"]), 400),
            role=line(row["role"]),
            attempt=row["attempt"],
            instructions=lines(clean(row["instructions"]), 20_000),
            result=lines(clean(row["result"]), 20_000),
            error=lines(clean(row["error"]), 4_000),
            needs=tuple(needs.get(row["id"], ())),
        )
        for row in found
    )


def _facts(rows: _Rows, session_id: str) -> tuple[FactLine, ...]:
    found = rows.all(
        "SELECT id, kind, text, sources, agent_id, pinned, superseded_by FROM facts WHERE session_id = ?"
        " ORDER BY id DESC LIMIT ?",
        session_id,
        MOST_FACTS,
    )
    return tuple(
        FactLine(
            row["id"],
            line(row["kind"]),
            line(rows.clean(row["text"]), 4_000),
            tuple(line(one) for one in rows.clean(decode(row["sources"]))),
            row["agent_id"],
            bool(row["pinned"]),
            row["superseded_by"],
        )
        for row in reversed(found)
    )


def _outputs(rows: _Rows, session_id: str) -> tuple[OutputLine, ...]:
    found = rows.all(
        "SELECT o.name, o.kind, o.digest, a.size, a.media_type FROM outputs o JOIN artifacts a ON a.digest ="
        " o.digest"
        " WHERE o.id IN (SELECT max(id) FROM outputs WHERE session_id = ? GROUP BY name) ORDER BY o.name",
        session_id,
    )
    return tuple(
        OutputLine(
            line(rows.clean(row["name"])),
            line(row["kind"]),
            line(row["media_type"]),
            row["size"],
            row["digest"],
        )
        for row in found
    )


# --- What each compaction did to its agent's context: what it dropped, what it kept, and what it cites ----


@dataclass(frozen=True, slots=True)
class Kept:
    """A text that stands for messages."""

    kind: str
    text: str
    """Of several lines; free of secrets and control characters."""
    tokens: int
    covers: tuple[int, int]
    citations: tuple[int, ...]
    """The `seq`s of the messages that it rests on."""


@dataclass(frozen=True, slots=True)
class CompactionPage:
    """One pass over an agent's context."""

    id: int
    agent_id: str
    trigger: str
    status: str
    reason: str
    instructions: str
    model: str
    at: float
    seconds: float | None
    cost_usd: float | None
    tokens_before: int | None
    tokens_after: int | None
    first: int
    last: int
    """The messages `first … last` left the context (or would have); none where `last < first`."""
    kept: tuple[Kept, ...]
    """What stands for them, and was not in the context before."""
    verbatim_from: int | None
    """The first message that is in the context as it was said."""

    @property
    def applied(self) -> bool:
        """Whether it changed the context, even if that was undone since."""
        return self.status in ("applied", "undone")

    @property
    def dropped(self) -> int:
        return max(0, self.last - self.first + 1)

    @property
    def cited(self) -> tuple[int, ...]:
        """Which of the dropped messages are cited."""
        return tuple(
            sorted({seq for one in self.kept for seq in one.citations if self.first <= seq <= self.last})
        )


_COMPACTIONS = (
    "SELECT id, agent_id, trigger, status, reason, instructions, model, coalesce(ended_at, requested_at),"
    " seconds, cost_usd,"
    " tokens_before, tokens_after, high_water, view_before, view_after FROM compactions WHERE session_id = ?"
    " ORDER BY coalesce(ended_at, requested_at), id"
)


def compactions(connection: Connection, session_id: str, clean: Clean) -> Iterator[CompactionPage]:
    """Every pass of a session, in the order of the times that are shown, one at a time.

    The logs of another program's agents are imported one after the other, so the numbers of passes are in
    another order.
    """
    for row in connection.execute(_COMPACTIONS, (session_id,)):
        agent_id, high_water = row[1], row[12]
        before, after = _view(connection, agent_id, row[13]), _view(connection, agent_id, row[14])
        old, new = set(before[0] if before else ()), after[0] if after else ()
        kept = [_kept(connection, agent_id, one, clean) for one in new if one not in old]
        if after is None:
            kept = _of_pass(connection, agent_id, row[0], clean)
        first = 1 if before is None else before[1] if before[1] is not None else (high_water or 0) + 1
        if after is not None and after[1] is not None:
            last = after[1] - 1
        else:
            last = high_water or 0
        yield CompactionPage(
            id=row[0],
            agent_id=agent_id,
            trigger=line(row[2]),
            status=line(row[3]),
            reason=line(clean(row[4]), 600),
            instructions=line(clean(row[5]), 2_000),
            model=line(clean(row[6])),
            at=row[7],
            seconds=row[8],
            cost_usd=row[9],
            tokens_before=row[10],
            tokens_after=row[11],
            first=first,
            last=last,
            kept=tuple(one for one in kept if one is not None),
            verbatim_from=after[1] if after else None,
        )


def _view(connection: Connection, agent_id: str, version: int | None) -> tuple[list[int], int | None] | None:
    row = connection.execute(
        "SELECT observations, verbatim_from FROM views WHERE agent_id = ? AND version = ?",
        (agent_id, version),
    ).fetchone()
    return None if row is None else (decode(row[0]), row[1])


_KEPT = "SELECT kind, text, tokens, first_seq, last_seq, citations FROM observations WHERE agent_id = ?"


def _kept(connection: Connection, agent_id: str, observation_id: int, clean: Clean) -> Kept | None:
    row = connection.execute(f"{_KEPT} AND id = ?", (agent_id, observation_id)).fetchone()
    return None if row is None else _read(row, clean)


def _of_pass(connection: Connection, agent_id: str, compaction_id: int, clean: Clean) -> list[Kept | None]:
    rows = connection.execute(
        f"{_KEPT} AND compaction_id = ? ORDER BY id", (agent_id, compaction_id)
    ).fetchall()
    return [_read(row, clean) for row in rows]


def _read(row: Any, clean: Clean) -> Kept:
    return Kept(line(row[0]), lines(clean(row[1]), 60_000), row[2], (row[3], row[4]), tuple(decode(row[5])))
