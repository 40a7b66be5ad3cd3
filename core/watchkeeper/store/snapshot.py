"""Reading the same rows repeatedly, at the price of what changed: one session, and several at once.

SQLite walks the rows and writes them as lines of JSON in one step, with the interpreter's lock released: so a
busy screen is not blocked, as it would be by one step a row. An unchanged line is not even parsed: it gives
the same object as before, so that a caller compares two readings by identity.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Generic, TypeVar

from watchkeeper.records.readers import OWN_ORIGINS
from watchkeeper.store.commands import CALL_OPEN
from watchkeeper.store.driver import IN_LIST, Connection, Queries, list_of, row_lines
from watchkeeper.store.names import AGENT_NAME, TASK_NAME
from watchkeeper.store.postgres import ask_ahead
from watchkeeper.store.projection import (
    AGENT_COLUMNS,
    AGENTS,
    COMPACTION_COLUMNS,
    SESSION,
    SPENDING,
    TASK_COLUMNS,
    TASKS,
    AgentFacts,
    CompactionFacts,
    CountedSession,
    Raw,
    SessionFacts,
    TaskFacts,
    agent_facts,
    compaction_facts,
    session_facts,
    sessions,
    task_facts,
)

T = TypeVar("T")
Statement = tuple[str, tuple[object, ...]]
"""SQL and its parameters."""


class IncrementalQuery(Generic[T]):
    """What one query gives: `items`, in order, renewed by `read`."""

    def __init__(self, sql: str, make: Callable[[Raw], T]) -> None:
        """`sql` gives one text, as `driver.row_lines` makes it; the first column tells each row from the others."""
        self.sql = sql
        self._make = make
        self._text = ""
        self._made: dict[str, T] = {}
        self.items: tuple[T, ...] = ()

    def read(self, connection: Connection, parameters: Sequence[object]) -> tuple[T, ...]:
        """The items as they are now: the same tuple where nothing changed, else with the same objects for
        what did not."""
        text: str = connection.execute(self.sql, tuple(parameters)).fetchone()[0] or ""
        if text != self._text:
            known, lines = self._made, text.split("\n") if text else []
            fresh = [line for line in lines if line not in known]
            made = dict(zip(fresh, map(self._make, _rows_of(fresh)), strict=True))
            self._text = text
            self._made = {line: made[line] if line in made else known[line] for line in lines}
            self.items = tuple(self._made.values())
        return self.items


def _rows_of(lines: Sequence[str]) -> list[Raw]:
    """The rows that these lines hold; parsed at once, which takes a third of the time of one after the other."""
    rows: list[Raw] = json.loads(f"[{','.join(lines)}]")
    return rows


def accept_any_text(connection: Connection) -> Connection:
    """Have the connection read text that is not UTF-8 with marks in place of what cannot be read, as SQLite
    itself does not care."""
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    return connection


# --- Rows of one session for the dashboard ------------------------------------------------------------------
#
# `SessionSnapshotReader` reads them. Texts are as stored: hostile until sanitised.


@dataclass(frozen=True, slots=True)
class EventFacts:
    """One event of the session's log. `data` is JSON text."""

    seq: int
    at: float
    kind: str
    agent_id: str | None
    task_id: str | None
    data: str


@dataclass(frozen=True, slots=True)
class ApprovalFacts:
    """A question that waits for a person."""

    id: str
    agent_id: str
    task_id: str | None
    tool: str
    question: str
    created_at: float
    folder: str | None = None
    """Folder of the agent's shell, if known."""
    cause: str | None = None
    note: str | None = None
    """Why it is asked, beyond the permission."""


@dataclass(frozen=True, slots=True)
class CommandFacts:
    """One command of the control queue, and what became of it."""

    id: int
    kind: str
    agent_id: str | None
    task_id: str | None
    status: str
    result: str | None
    requested_by: str
    created_at: float
    applied_at: float | None


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    """A limit on the session, or on one task's subtree."""

    task_id: str | None
    kind: str
    amount: float
    reached_at: float | None


@dataclass(frozen=True, slots=True)
class Rates:
    """What runs now, by the minute (over the last one)."""

    cost_per_minute: float = 0.0
    tokens_per_minute: float = 0.0
    events_per_second: float = 0.0
    """Over the last five seconds."""
    agent_cost: tuple[tuple[str, float], ...] = ()
    """Dollars a minute of each agent that spent something."""

    @property
    def is_still(self) -> bool:
        """Nothing runs, so that these stay true until something is written."""
        return not (self.tokens_per_minute or self.events_per_second or self.cost_per_minute)


# --- The dashboard's reading of one session -----------------------------------------------------------------
#
# A renewal costs what changed since the reading before. It compares every row, inside SQLite: its result is
# what a first reading would give, whichever process wrote.

EVENTS_KEPT = 2000
"""The newest events of a session that a reading holds."""
SPEND_SECONDS = 60.0
EVENT_SECONDS = 5.0
RATES_SECONDS = 1.0
"""How often rates are computed."""
NEWEST_CALLS = 2_000
"""Among so many of the newest calls, and of the newest events, the reading looks for what is within those seconds."""
NEWEST_EVENTS = 5_000

_TASKS = row_lines(TASK_COLUMNS, TASKS)
_AGENTS = row_lines(AGENT_COLUMNS, AGENTS)
APPROVAL_COLUMNS = "id, agent_id, task_id, tool, substr(question, 1, 20000), created_at, folder, cause, note"
EVENT_COLUMNS = "seq, at, kind, agent_id, task_id, substr(data, 1, 4000)"
"""What a live reading and a replay read of each row, in the order of the fields."""

_COMPACTIONS = row_lines(COMPACTION_COLUMNS, "compactions WHERE session_id = ? ORDER BY id DESC LIMIT 200")

_APPROVALS = row_lines(
    APPROVAL_COLUMNS,
    f"approvals WHERE session_id = ? AND status = 'waiting' AND {CALL_OPEN} ORDER BY created_at, tool_call_id",
)

_COMMANDS = row_lines(
    "id, kind, agent_id, task_id, status, result, requested_by, created_at, applied_at",
    "commands WHERE session_id = ? ORDER BY id DESC LIMIT 100",
)

_BUDGETS = row_lines(
    "id, task_id, kind, amount, reached_at", "budgets WHERE session_id = ? ORDER BY task_id IS NOT NULL, kind"
)

_EVENTS = row_lines(
    EVENT_COLUMNS,
    "events WHERE session_id = ? AND seq > ? ORDER BY seq DESC LIMIT ?",
)

_SPEND = (
    "SELECT agent_id, coalesce(sum(cost_usd), 0.0), sum(input_tokens + output_tokens + cache_read_tokens +"
    " cache_write_tokens) FROM (SELECT * FROM model_calls WHERE session_id = ? ORDER BY id DESC LIMIT ?) newest"
    " WHERE started_at + latency_seconds >= ? GROUP BY agent_id ORDER BY agent_id"
)
_FIRST_RECENT_EVENT = "SELECT min(seq) FROM events WHERE session_id = ? AND seq > ? AND at >= ?"


def spent_per_minute(connection: Connection, session_id: str, now: float) -> list[tuple[str, float, int]]:
    """For each agent with a call that ended in the last minute: its id, the US dollars and the tokens of these."""
    return connection.execute(_SPEND, (session_id, NEWEST_CALLS, now - SPEND_SECONDS)).fetchall()


@dataclass(frozen=True, slots=True)
class SessionReading:
    """One consistent reading. Parts that did not change are the objects of the reading before."""

    session: SessionFacts
    tasks: tuple[TaskFacts, ...]
    agents: tuple[AgentFacts, ...]
    compactions: tuple[CompactionFacts, ...]
    approvals: tuple[ApprovalFacts, ...]
    commands: tuple[CommandFacts, ...]
    budgets: tuple[BudgetFacts, ...]
    rates: Rates
    events: tuple[EventFacts, ...]
    """Those that are new in this reading, oldest first."""
    events_anew: bool
    """`events` replace all that was read before: this is the first reading, or more came than are
    kept."""


class SessionSnapshotReader:
    """All that the screens show of one session, but for the one agent looked at."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self._session: tuple[object, ...] = ()
        self._facts: SessionFacts | None = None
        self._tasks = IncrementalQuery(_TASKS, task_facts)
        self._agents = IncrementalQuery(_AGENTS, agent_facts)
        self._compactions = IncrementalQuery(
            _COMPACTIONS,
            lambda raw: compaction_facts(
                raw, self._facts.origin if self._facts is not None else OWN_ORIGINS[0]
            ),
        )
        self._approvals = IncrementalQuery(_APPROVALS, lambda raw: ApprovalFacts(*raw))
        self._commands = IncrementalQuery(_COMMANDS, lambda raw: CommandFacts(*raw))
        self._budgets = IncrementalQuery(_BUDGETS, lambda raw: BudgetFacts(*raw[1:]))
        self._last_seq = 0
        self._pace = _Pace(session_id)

    def read(
        self, connection: Connection, now: float, beside: Iterable[Statement] = ()
    ) -> SessionReading | None:
        """The present session; None if it was deleted or never existed. Call it inside one transaction. A server is asked
        what is read `beside` in the same round trip."""
        ask_ahead(connection, chain(self._asked(now), beside))
        row = connection.execute(SESSION, (self.session_id,)).fetchone()
        if row is None:
            return None
        if row != self._session or self._facts is None:
            self._session, self._facts = row, session_facts(row)
        facts, only = self._facts, (self.session_id,)
        events, whole = self._tail(connection, facts.event_seq)
        return SessionReading(
            session=facts,
            tasks=self._tasks.read(connection, only),
            agents=self._agents.read(connection, only),
            compactions=self._compactions.read(connection, only),
            approvals=self._approvals.read(connection, only),
            commands=self._commands.read(connection, only),
            budgets=self._budgets.read(connection, only),
            rates=self._pace.read(connection, now, facts),
            events=events,
            events_anew=whole,
        )

    def rates(self, connection: Connection, now: float) -> Rates:
        """The rates now, where nothing else changed since the last reading: time alone makes them smaller."""
        assert self._facts is not None
        return self._pace.read(connection, now, self._facts)

    def _asked(self, now: float) -> Iterator[Statement]:
        """The statements of a reading, as far as they are known before."""
        only = (self.session_id,)
        folds = (self._tasks, self._agents, self._compactions, self._approvals, self._commands, self._budgets)
        yield from ((sql, only) for sql in (SESSION, *(fold.sql for fold in folds)))
        yield _EVENTS, (self.session_id, self._last_seq, EVENTS_KEPT)
        if self._pace.is_due(now):
            yield _SPEND, (self.session_id, NEWEST_CALLS, now - SPEND_SECONDS)

    def _tail(self, connection: Connection, newest: int) -> tuple[tuple[EventFacts, ...], bool]:
        whole = not self._last_seq or newest < self._last_seq or newest - self._last_seq >= EVENTS_KEPT
        if newest == self._last_seq:
            return (), False
        text = connection.execute(
            _EVENTS, (self.session_id, 0 if whole else self._last_seq, EVENTS_KEPT)
        ).fetchone()[0]
        events = tuple(EventFacts(*row) for row in reversed(_rows_of(text.split("\n") if text else ())))
        if events:
            self._last_seq = events[-1].seq
        return events, whole


class _Pace:
    """What runs by the minute and the second; computed once in `RATES_SECONDS`."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._read_at: float | None = None
        self._rates = Rates()

    def is_due(self, now: float) -> bool:
        """Whether the next reading computes the rates again."""
        return self._read_at is None or not 0 <= now - self._read_at < RATES_SECONDS

    def read(self, connection: Connection, now: float, facts: SessionFacts) -> Rates:
        if not self.is_due(now):
            return self._rates
        self._read_at = now
        spend = spent_per_minute(connection, self._session_id, now)
        after = facts.event_seq - NEWEST_EVENTS
        first = connection.execute(
            _FIRST_RECENT_EVENT, (self._session_id, after, now - EVENT_SECONDS)
        ).fetchone()[0]
        rates = Rates(
            cost_per_minute=sum(cost for _, cost, _ in spend),
            tokens_per_minute=float(sum(tokens for _, _, tokens in spend)),
            events_per_second=(facts.event_seq + 1 - (first or facts.event_seq + 1)) / EVENT_SECONDS,
            agent_cost=tuple((agent_id, cost) for agent_id, cost, _ in spend if cost),
        )
        if rates != self._rates:
            self._rates = rates
        return self._rates


# --- Which passes were undone -------------------------------------------------------------------------------
#
# The view of an undone pass is not among the ancestors of the agent's current view. A pass keeps the status
# with which it ended. Undo points the agent at an older view, or adds a new one that continues it.

_PARENTS = f"SELECT agent_id, version, parent FROM views WHERE agent_id {IN_LIST}"


class Undone:
    """Marks them among a session's passes. Views are read again only when a pass or an agent's view is
    another one."""

    def __init__(self) -> None:
        self._passes: tuple[CompactionFacts, ...] = ()
        self._versions: dict[str, int] = {}
        self._marked: tuple[CompactionFacts, ...] = ()

    def mark(
        self, connection: Connection, agents: Sequence[AgentFacts], passes: tuple[CompactionFacts, ...]
    ) -> tuple[CompactionFacts, ...]:
        """The same passes, with the status `undone` where that is so; the same object as before where nothing
        changed."""
        applied = {
            each.agent_id for each in passes if each.status == "applied" and each.view_after is not None
        }
        versions = {agent.id: agent.view_version for agent in agents if agent.id in applied}
        if passes is self._passes and versions == self._versions:
            return self._marked
        parents = {(agent_id, version): parent for agent_id, version, parent in _rows(connection, versions)}
        known = {each.id: each for each in self._marked}
        marked = []
        for each in passes:
            undone = each.agent_id in versions and _is_undone(each, versions[each.agent_id], parents)
            one = replace(each, status="undone") if undone else each
            marked.append(known[one.id] if known.get(one.id) == one else one)
        self._passes, self._versions = passes, versions
        self._marked = (
            tuple(marked)
            if any(one is not each for one, each in zip(marked, passes, strict=True))
            else passes
        )
        return self._marked


def _rows(connection: Connection, versions: dict[str, int]) -> list[tuple[str, int, int | None]]:
    return connection.execute(_PARENTS, (list_of([*versions]),)).fetchall() if versions else []


def _is_undone(
    each: CompactionFacts, version: int | None, parents: dict[tuple[str, int], int | None]
) -> bool:
    """Whether the current view does not descend from the view of the pass; False if a parent on the way is
    missing."""
    if each.status != "applied" or not isinstance(each.view_after, int) or not isinstance(version, int):
        return False  # a damaged row may hold anything
    while version is not None and version > each.view_after:
        parent = parents.get((each.agent_id, version))
        version = parent if isinstance(parent, int) and parent < version else None
    return version is not None and version < each.view_after


# --- Several sessions at once, one row each -------------------------------------------------------------

FLEET_SECONDS = 86_400.0
"""Without a choice, sessions that run, are paused, or were active in this time are listed."""
FLEET_SESSIONS = 500

_FLEET = row_lines(
    f"id, goal, title, model, origin, status, status_reason, last_active, event_seq, queued_at, {', '.join(SPENDING)}",
    "(SELECT * FROM sessions WHERE deleted_at IS NULL AND (id "
    + IN_LIST
    + " OR ? = 1 AND (status IN ('running', 'paused')"
    " OR last_active >= ?)) ORDER BY ordinal DESC LIMIT ?) listed",
)
"""What tells that a session changed."""
_FLEET_DETAILS = (
    f"SELECT s.id, (SELECT substr({TASK_NAME}, 1, 300) FROM tasks t WHERE session_id = s.id AND status = 'running'"
    " ORDER BY started_at DESC, id LIMIT 1),"
    " EXISTS (SELECT 1 FROM budgets WHERE session_id = s.id AND reached_at IS NOT NULL)"
    f" FROM sessions s WHERE s.id {IN_LIST}"
)
_FLEET_QUESTIONS = (
    f"SELECT q.session_id, coalesce({AGENT_NAME}, ''), q.tool, substr(q.question, 1, 2000)"
    " FROM approvals q LEFT JOIN agents a ON a.id = q.agent_id"
    f" WHERE q.session_id {IN_LIST} AND q.status = 'waiting' AND {CALL_OPEN} ORDER BY q.created_at, q.tool_call_id"
)


@dataclass(frozen=True, slots=True)
class Question:
    """The oldest question of a session that waits for a person. Texts are hostile until sanitised."""

    agent: str
    tool: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow(CountedSession):
    """One session among several, with what of it needs a person."""

    task: str | None = None
    """The name of the task that was started last among those that run."""
    budget_reached: bool = False
    questions: int = 0
    """How many wait for a person."""
    question: Question | None = None
    """The oldest of them."""
    cost_per_minute: float = 0.0
    """US dollars in the last minute."""

    @property
    def tasks_planned(self) -> int:
        """Tasks of the plan, without those that were dropped."""
        return self.tasks - self.tasks_dropped


class FleetReader:
    """The rows of the chosen sessions, or of all that run, are paused or were active lately; newest first."""

    def __init__(self, session_ids: Sequence[str] = ()) -> None:
        self._parameters = (list_of(session_ids), not session_ids)
        self._sessions: IncrementalQuery[Raw] = IncrementalQuery(_FLEET, tuple)
        self._read: dict[str, Raw] = {}
        """The raw row of each session at the last reading."""
        self._rows: dict[str, FleetRow] = {}
        self._shown: tuple[FleetRow, ...] = ()

    def read(self, connection: Connection, now: float, also: Sequence[str] = ()) -> tuple[FleetRow, ...]:
        """The rows as they are now: the same tuple where nothing changed. Call it inside one transaction.

        `also`: sessions that are listed whatever their age, where none were chosen.
        """
        chosen, every = self._parameters
        if every and also:
            chosen = list_of(also)
        found = self._sessions.read(connection, (chosen, every, now - FLEET_SECONDS, FLEET_SESSIONS))
        listed = {str(row[0]): row for row in found}
        changed = [each for each, row in listed.items() if self._read.get(each) is not row]
        self._rows = {each: self._rows[each] for each in listed if each in self._rows}
        self._read = listed
        if changed:
            self._renew(connection, changed)
        for row in [row for row in self._rows.values() if row.cost_per_minute or row.id in changed]:
            rate = sum(cost for _, cost, _ in spent_per_minute(connection, row.id, now))
            if rate != row.cost_per_minute:
                self._rows[row.id] = replace(row, cost_per_minute=rate)
        shown = tuple(self._rows[each] for each in listed)
        if len(shown) != len(self._shown) or any(
            now is not then for now, then in zip(shown, self._shown, strict=True)
        ):
            self._shown = shown
        return self._shown

    def _renew(self, connection: Connection, changed: Sequence[str]) -> None:
        ids = list_of(changed)
        asked: dict[str, list[Question]] = {}
        for session_id, agent, tool, text in connection.execute(_FLEET_QUESTIONS, (ids,)):
            asked.setdefault(session_id, []).append(Question(agent, tool, text))
        details = {row[0]: row[1:] for row in connection.execute(_FLEET_DETAILS, (ids,))}
        for row in sessions(Queries(connection), f"s.id {IN_LIST}", (ids,), kind=FleetRow):
            task, reached = details[row.id]
            questions = asked.get(row.id, [])
            known = self._rows.get(row.id)
            self._rows[row.id] = replace(
                row,
                task=task,
                budget_reached=bool(reached),
                questions=len(questions),
                question=questions[0] if questions else None,
                cost_per_minute=known.cost_per_minute if known is not None else 0.0,
            )
