"""What the readable forms say of a session beside its transcripts: how it stands, its plan, its agents, what
they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode
from watchkeeper.store.transcripts import missing_logs, partial_reason
from watchkeeper.transcripts.export.pieces import Clean, line, lines

MOST_FACTS = 2_000


@dataclass(frozen=True, slots=True)
class Spent:
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
    spent: Spent


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
    spent: Spent
    partial: str
    """Why the totals are lower bounds; empty where they are not."""
    models: Mapping[str, Spent]
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


def _spending(rows: _Rows, session_id: str) -> tuple[dict[str, set[str]], dict[str, Spent], set[str]]:
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
    by_model: dict[str, Spent] = {}
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


def _spent(row: dict[str, Any], calls: int, worths: set[str]) -> Spent:
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
    return Spent(calls, tokens, cost, label)


def _partly(spent: Spent, missing: int) -> Spent:
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
