"""The dashboard's reading of one agent: transcript, model calls, facts, and the make-up of its context."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watchkeeper.store.agents import WORKTREE_OF_TASK, Worktree, load_worktree
from watchkeeper.store.driver import IN_LIST, Connection, Queries, list_of, row_lines
from watchkeeper.store.projection import COMPACTION_COLUMNS, AgentFacts, CompactionFacts, compaction_facts
from watchkeeper.store.receipts import Receipt
from watchkeeper.store.snapshot import EventFacts, IncrementalQuery, Statement

LARGEST_MESSAGE_CHARS = 400_000
_LARGEST = 1 << 62
"""A message whose stored text is longer is read in part, and shown as cut."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message. `content` is the stored JSON text, or its beginning where `cut` (then it does not
    parse)."""

    seq: int
    role: str
    content: str
    tokens: int
    total_tokens: int
    created_at: float
    chars: int

    @property
    def cut(self) -> bool:
        return self.chars > LARGEST_MESSAGE_CHARS


@dataclass(frozen=True, slots=True)
class ToolCallFacts:
    """One tool call and its state."""

    tool_use_id: str
    name: str
    status: str
    is_error: bool
    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class CallFacts:
    """One call to a model."""

    id: int
    turn: int
    purpose: str
    model: str
    status: str
    stop_reason: str | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    usage_exact: bool
    cost_usd: float | None
    price_status: str
    started_at: float
    latency_seconds: float
    first_token_seconds: float | None
    waited_seconds: float
    retries: int
    error: str | None

    @property
    def prompt_tokens(self) -> int:
        """All that the model read."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """One turn's call to a model: what it read, and when."""

    prompt_tokens: int
    started_at: float


@dataclass(frozen=True, slots=True)
class FactFacts:
    """One thing remembered."""

    id: int
    agent_id: str | None
    kind: str
    text: str
    sources: str
    pinned: bool
    confidence: float
    created_at: float


@dataclass(frozen=True, slots=True)
class ObservationFacts:
    """A text that replaces a range of messages in the agent's context."""

    id: int
    kind: str
    level: int
    text: str
    tokens: int
    first_seq: int
    last_seq: int
    citations: tuple[int, ...]
    provisional: bool
    created_at: float


@dataclass(frozen=True, slots=True)
class ViewFacts:
    """One version of an agent's context."""

    version: int
    parent: int | None
    verbatim_from: int | None
    reason: str
    tokens: int
    created_at: float
    observations: tuple[ObservationFacts, ...] = ()
    elided: tuple[int, ...] = ()
    """The `seq`s of messages that are shown in part, with a pointer to the whole."""
    pins: tuple[int, ...] = ()
    """The `seq`s of messages that a person pinned, with their pairs."""
    damaged: tuple[str, ...] = ()
    """What of it cannot be read, by the names of columns; left out above."""


@dataclass(frozen=True, slots=True)
class InboxFacts:
    """Something from outside that the agent has not read yet. `payload` is JSON text."""

    id: int
    kind: str
    payload: str
    created_at: float


@dataclass(frozen=True, slots=True)
class AgentReading:
    """One consistent reading of all changing data but the transcript. Unchanged parts are the earlier
    objects."""

    tool_calls: tuple[ToolCallFacts, ...]
    """The newest, newest first."""
    calls: tuple[CallFacts, ...]
    """The newest calls to models, newest first."""
    facts: tuple[FactFacts, ...]
    """What this agent remembers and what the session has pinned: pinned first, then newest first."""
    views: tuple[ViewFacts, ...]
    """The newest versions of its context without their observations, newest first."""
    inbox: tuple[InboxFacts, ...]
    """What the agent will receive before its next turn, oldest first."""


TOOL_CALL_COLUMNS = "tool_use_id, name, status, is_error, started_at, ended_at"
CALL_COLUMNS = (
    "id, turn, purpose, model, status, stop_reason, input_tokens, output_tokens, cache_read_tokens,"
    " cache_write_tokens, usage_exact, cost_usd, price_status, started_at, latency_seconds, first_token_seconds,"
    " waited_seconds, retries, substr(error, 1, 2000)"
)
FACT_COLUMNS = (
    "id, agent_id, kind, substr(text, 1, 2000), substr(sources, 1, 500), pinned, confidence, created_at"
)
VIEW_COLUMNS = "version, parent, verbatim_from, reason, tokens, created_at"
OBSERVATION_COLUMNS = (
    "id, kind, level, substr(text, 1, 20000), tokens, first_seq, last_seq, citations, provisional, created_at"
)
INBOX_COLUMNS = "id, kind, substr(payload, 1, 4000), created_at"
"""What a live reading and a replay read of each row, in the order of the fields."""

MOST_TOOL_CALLS, MOST_CALLS, MOST_FACTS, MOST_VIEWS, MOST_INBOX = 100, 300, 300, 100, 50
"""So many of the newest are read."""


def tool_call(row: Sequence[Any]) -> ToolCallFacts:
    return ToolCallFacts(*[*row[:3], bool(row[3]), *row[4:]])


def model_call(row: Sequence[Any]) -> CallFacts:
    return CallFacts(*[*row[:10], bool(row[10]), *row[11:]])


def fact(row: Sequence[Any]) -> FactFacts:
    return FactFacts(*[*row[:5], bool(row[5]), *row[6:]])


_TOOL_CALLS = row_lines(
    f"id, {TOOL_CALL_COLUMNS}",
    f"tool_calls WHERE agent_id = ? ORDER BY turn DESC, position DESC LIMIT {MOST_TOOL_CALLS}",
)
_MODEL_CALLS = row_lines(CALL_COLUMNS, f"model_calls WHERE agent_id = ? ORDER BY id DESC LIMIT {MOST_CALLS}")
_FACTS = row_lines(
    FACT_COLUMNS,
    "facts WHERE superseded_by IS NULL AND (agent_id = ? OR (session_id = ? AND pinned = 1)) ORDER BY pinned"
    f" DESC, id DESC LIMIT {MOST_FACTS}",
)
_VIEWS = row_lines(VIEW_COLUMNS, f"views WHERE agent_id = ? ORDER BY version DESC LIMIT {MOST_VIEWS}")
_INBOX = row_lines(
    INBOX_COLUMNS, f"inbox WHERE agent_id = ? AND delivered_seq IS NULL ORDER BY id LIMIT {MOST_INBOX}"
)


class AgentSnapshotReader:
    """What is read again and again of the one agent looked at."""

    def __init__(self, session_id: str, agent_id: str) -> None:
        self._session_id, self._agent_id = session_id, agent_id
        self._tool_calls = IncrementalQuery(_TOOL_CALLS, lambda raw: tool_call(raw[1:]))
        self._calls = IncrementalQuery(_MODEL_CALLS, model_call)
        self._facts = IncrementalQuery(_FACTS, fact)
        self._views = IncrementalQuery(_VIEWS, lambda raw: ViewFacts(*raw))
        self._inbox = IncrementalQuery(_INBOX, lambda raw: InboxFacts(*raw))

    def asked(self) -> Iterator[Statement]:
        """The statements of a reading."""
        for fold in (self._tool_calls, self._calls, self._views, self._inbox):
            yield fold.sql, (self._agent_id,)
        yield self._facts.sql, (self._agent_id, self._session_id)

    def read(self, connection: Connection) -> AgentReading:
        """The agent's present state. Call it inside one transaction."""
        agent = (self._agent_id,)
        return AgentReading(
            self._tool_calls.read(connection, agent),
            self._calls.read(connection, agent),
            self._facts.read(connection, (self._agent_id, self._session_id)),
            self._views.read(connection, agent),
            self._inbox.read(connection, agent),
        )


def newest_turns(connection: Connection, agent_id: str) -> list[TurnFacts]:
    """The last turns' calls that brought a reply, newest first."""
    rows = connection.execute(
        "SELECT input_tokens + cache_read_tokens + cache_write_tokens, started_at FROM model_calls WHERE"
        " agent_id = ?"
        " AND status = 'done' AND purpose IN ('turn', 'planner') ORDER BY id DESC LIMIT 12",
        (agent_id,),
    )
    return [TurnFacts(*row) for row in rows]


_MESSAGES = (
    "SELECT seq, role, substr(content, 1, {}), tokens, total_tokens, created_at, length(content) FROM messages"
    " WHERE agent_id = ? AND seq BETWEEN ? AND ? ORDER BY seq{} LIMIT ?"
)


def newest_messages(
    connection: Connection, agent_id: str, limit: int, *, first: int = 0, last: int = _LARGEST,
    characters: int = LARGEST_MESSAGE_CHARS,
) -> list[StoredMessage]:  # fmt: skip
    """The newest of the messages `first … last`, oldest first, at most `limit`; so much of the text of each."""
    sql = _MESSAGES.format(int(characters), " DESC")
    rows = connection.execute(sql, (agent_id, first, last, limit)).fetchall()
    return [StoredMessage(*row) for row in reversed(rows)]


def messages_after(connection: Connection, agent_id: str, seq: int, limit: int) -> list[StoredMessage]:
    """At most `limit` messages that followed `seq`, oldest first."""
    return [StoredMessage(*row) for row in connection.execute(*asked_after(agent_id, seq, limit))]


def asked_after(agent_id: str, seq: int, limit: int) -> Statement:
    """The statement of `messages_after`."""
    return _MESSAGES.format(LARGEST_MESSAGE_CHARS, ""), (agent_id, seq + 1, _LARGEST, limit)


def view(connection: Connection, agent_id: str, version: int) -> ViewFacts | None:
    """One version of the agent's context with its observations, or None."""
    row = connection.execute(
        f"SELECT {VIEW_COLUMNS}, observations, elided, pins FROM views WHERE agent_id = ? AND version = ?",
        (agent_id, version),
    ).fetchone()
    if row is None:
        return None
    damaged: list[str] = []
    wanted = _numbers(row[6], "views.observations", damaged)
    found = connection.execute(
        f"SELECT {OBSERVATION_COLUMNS} FROM observations WHERE agent_id = ? AND id {IN_LIST} ORDER BY first_seq, id",
        (agent_id, list_of(wanted)),
    )
    observations = tuple(_observation(each, damaged) for each in found)
    elided = _numbers(row[7], "views.elided", damaged)
    pins = _numbers(row[8], "views.pins", damaged) if row[8] is not None else ()
    return ViewFacts(*(*row[:6], observations, elided, pins, tuple(dict.fromkeys(damaged))))


def _observation(row: Any, damaged: list[str]) -> ObservationFacts:
    return ObservationFacts(
        *(*row[:7], _numbers(row[7], "observations.citations", damaged), bool(row[8]), row[9])
    )


def _numbers(text: str, column: str, damaged: list[str]) -> tuple[int, ...]:
    """A list of whole numbers (or of lists that begin with one); what is none is left out, and its column
    named in `damaged`."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    listed = value if isinstance(value, list) else []
    firsts = [each[0] if isinstance(each, list) and each else each for each in listed]
    found = tuple(each for each in firsts if isinstance(each, int) and abs(each) < _LARGEST)
    if not isinstance(value, list) or len(found) < len(listed):
        damaged.append(column)
    return found


def system_prompt(connection: Connection, agent_id: str) -> str:
    """The agent's system prompt, at most 200,000 characters of it."""
    row = connection.execute(
        "SELECT substr(system, 1, 200000) FROM agents WHERE id = ?", (agent_id,)
    ).fetchone()
    return str(row[0]) if row else ""


# --- Rows for the dashboard's report on one agent -----------------------------------------------------------
#
# Beside the agent's row: its task and result, what it made, and totals of its tool and model calls. Texts are
# as stored: hostile until sanitised.

MOST_ARTIFACTS = 200

_TASK = (
    "SELECT substr(instructions, 1, 20000), expected_outputs, CASE WHEN assigned_agent = ?2 THEN"
    " substr(result, 1, 100000) END,"
    " CASE WHEN assigned_agent = ?2 THEN length(result) ELSE 0 END FROM tasks WHERE id = ?1"
)
_REVISED = (
    "SELECT revision, substr(reason, 1, 2000) FROM plan_revisions WHERE plan_id ="
    " (SELECT current_plan_id FROM sessions WHERE id = ?) ORDER BY revision DESC LIMIT 1"
)
_HANDED = (
    "SELECT inputs_ref FROM handoffs WHERE session_id = ? AND assigned_agent = ? ORDER BY id DESC LIMIT 1"
)
_OUTPUTS = (
    "SELECT o.name, o.kind, a.size, o.created_at, n.versions, o.digest, a.media_type, o.agent_id FROM"
    " (SELECT max(id) AS newest, count(*) AS versions FROM outputs WHERE {} GROUP BY kind, name) n"
    " JOIN outputs o ON o.id = n.newest LEFT JOIN artifacts a ON a.digest = o.digest ORDER BY o.id DESC LIMIT ?"
)
_OUTPUTS_OF_AGENT, _OUTPUTS_OF_SESSION = (
    _OUTPUTS.format("agent_id = ?"),
    _OUTPUTS.format("session_id = ? AND kind <> 'result'"),
)
RECENT = 100
"""So many of the newest calls of each kind are read every time, since they may still change. Earlier ones are
counted once."""

_OLDEST_TURN = (
    "SELECT turn FROM tool_calls WHERE agent_id = ? ORDER BY turn DESC, position DESC LIMIT 1 OFFSET ?"
)
_OLDEST_CALL = "SELECT id FROM model_calls WHERE agent_id = ? ORDER BY id DESC LIMIT 1 OFFSET ?"
_TOOLS = (
    "SELECT name, count(*), sum(CASE WHEN is_error <> 0 OR status IN ('error', 'denied', 'unknown') THEN 1"
    " ELSE 0 END), sum(CASE WHEN status IN ('pending', 'running') THEN 1 ELSE 0 END),"
    " coalesce(sum(ended_at - started_at), 0.0) FROM tool_calls WHERE agent_id = ? AND turn > ? AND turn <= ? GROUP BY"
    " name"
)
_CALLS = (
    "SELECT count(*), count(CASE WHEN usage_exact = 0 THEN 1 END), count(CASE WHEN price_status = 'estimated'"
    " THEN 1 END), count(CASE WHEN cost_usd IS NULL THEN 1 END) FROM model_calls WHERE agent_id = ? AND id > ? AND id <= ?"
    " AND status <> 'running' AND (status <> 'error' OR input_tokens + output_tokens + cache_read_tokens"
    " + cache_write_tokens > 0)"
)
_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class ToolTotal:
    """All calls of one tool."""

    name: str
    calls: int
    errors: int
    """Calls that failed, were denied, or whose effect is unknown."""
    running: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ArtifactFacts:
    """Something that the agent saved: the newest of its name."""

    name: str
    kind: str
    """`artifact`, or `result` for the text that it handed back."""
    size: int | None
    """In bytes; None if the text itself was deleted."""
    created_at: float
    versions: int
    digest: str = ""
    media_type: str | None = None
    agent_id: str | None = None
    """Who saved it last."""


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """One agent's work."""

    instructions: str
    """Instructions of its task; empty for an agent without one."""
    expected: tuple[str, ...]
    """Names of the outputs that the task expects."""
    inputs: int
    """How many artifacts it was given."""
    result: str | None
    """What it handed back, at most 100,000 characters of it; None where another attempt did, or none has
    yet."""
    result_chars: int
    tools: tuple[ToolTotal, ...]
    """The most used first."""
    artifacts: tuple[ArtifactFacts, ...]
    calls: int
    """Calls to models that ended, but for those that failed."""
    estimated_usage: int
    """Those of them whose tokens are an estimate."""
    estimated_price: int
    unpriced: int
    worktree: Worktree | None = None
    """Where it works, and what it has changed there."""
    receipt: Receipt | None = None
    """What the rows say of its end; None until it is done."""
    revised: tuple[int, str] | None = None
    """The number and the reason of the plan's newest revision, for an agent without a task."""


def session_artifacts(
    connection: Connection, session_id: str, limit: int = MOST_ARTIFACTS
) -> list[ArtifactFacts]:
    """What the session's agents saved: the newest of each name, the last saved first."""
    rows = connection.execute(_OUTPUTS_OF_SESSION, (session_id, limit))
    return [ArtifactFacts(*row) for row in rows]


class ReportReader:
    """Reads one agent's report again and again, at the price of what may still change."""

    def __init__(self, session_id: str, agent_id: str) -> None:
        self._session_id, self._agent_id = session_id, agent_id
        self._through = -_ALL
        """The last turn whose tool calls are counted once and for all."""
        self._counted: dict[str, ToolTotal] = {}
        self._through_call = 0
        self._calls = (0, 0, 0, 0)
        self._artifacts: tuple[ArtifactFacts, ...] = ()
        self._receipt: Receipt | None = None
        self._stood: tuple[object, ...] = ()
        """What the artifacts were read for."""
        self._report: ReportFacts | None = None

    def asked(self, agent: AgentFacts) -> Iterator[Statement]:
        """The statements of a reading, as far as they are known before."""
        yield _TASK, (agent.task_id, agent.id)
        yield _HANDED, (self._session_id, agent.id)
        yield _OLDEST_TURN, (agent.id, RECENT - 1)
        yield _TOOLS, (agent.id, self._through, _ALL)
        yield _OUTPUTS_OF_AGENT, (agent.id, MOST_ARTIFACTS)
        yield _OLDEST_CALL, (agent.id, RECENT - 1)
        yield _CALLS, (agent.id, self._through_call, _ALL)
        if agent.task_id is not None:
            yield WORKTREE_OF_TASK, (agent.task_id,)
        else:
            yield _REVISED, (self._session_id,)

    def read(self, connection: Connection, agent: AgentFacts) -> ReportFacts:
        """The present report; the same object if nothing changed. Call it inside one transaction."""
        task = connection.execute(_TASK, (agent.task_id, agent.id)).fetchone() or ("", "[]", None, 0)
        handed = connection.execute(_HANDED, (self._session_id, agent.id)).fetchone()
        tools = tuple(sorted(self._tools(connection).values(), key=lambda each: (-each.calls, each.name)))
        # What is saved is saved by a tool, or at the end.
        current = (tools, agent.status, agent.last_seq)
        if current != self._stood:
            self._stood = current
            found = connection.execute(_OUTPUTS_OF_AGENT, (agent.id, MOST_ARTIFACTS)).fetchall()
            self._artifacts = tuple(ArtifactFacts(*row) for row in reversed(found))
            self._receipt = self._checked(connection) if agent.status == "done" else None
        revised = (
            connection.execute(_REVISED, (self._session_id,)).fetchone() if agent.task_id is None else None
        )
        report = ReportFacts(
            task[0],
            tuple(str(name) for name in _listed(task[1])),
            len(_listed(handed[0])) if handed else 0,
            task[2],
            task[3] or 0,
            tools,
            self._artifacts,
            *self._models(connection),
            load_worktree(Queries(connection), agent.task_id) if agent.task_id is not None else None,
            self._receipt,
            (revised[0], revised[1]) if revised is not None else None,
        )
        if report != self._report:
            self._report = report
        return self._report if self._report is not None else report

    def _checked(self, connection: Connection) -> Receipt | None:
        from watchkeeper.store.receipts import session_receipts

        return next(iter(session_receipts(Queries(connection), self._session_id, (self._agent_id,))), None)

    def _tools(self, connection: Connection) -> dict[str, ToolTotal]:
        oldest = connection.execute(_OLDEST_TURN, (self._agent_id, RECENT - 1)).fetchone()
        if oldest is not None and oldest[0] - 1 > self._through:
            self._counted, self._through = self._added(connection, oldest[0] - 1), oldest[0] - 1
        return self._added(connection, _ALL)

    def _added(self, connection: Connection, last: int) -> dict[str, ToolTotal]:
        totals = dict(self._counted)
        for name, calls, errors, running, seconds in connection.execute(
            _TOOLS, (self._agent_id, self._through, last)
        ):
            before = totals.get(name, ToolTotal(name, 0, 0, 0, 0.0))
            totals[name] = ToolTotal(
                name,
                before.calls + calls,
                before.errors + errors,
                running,
                before.seconds + max(0.0, seconds),
            )
        return totals

    def _models(self, connection: Connection) -> tuple[int, int, int, int]:
        oldest = connection.execute(_OLDEST_CALL, (self._agent_id, RECENT - 1)).fetchone()
        if oldest is not None and oldest[0] - 1 > self._through_call:
            self._calls, self._through_call = self._more_calls(connection, oldest[0] - 1), oldest[0] - 1
        return self._more_calls(connection, _ALL)

    def _more_calls(self, connection: Connection, last: int) -> tuple[int, int, int, int]:
        before = self._calls
        count, usage, price, unpriced = connection.execute(
            _CALLS, (self._agent_id, self._through_call, last)
        ).fetchone()
        return before[0] + count, before[1] + int(usage), before[2] + int(price), before[3] + int(unpriced)


def _listed(text: str | None) -> list[object]:
    try:
        value = json.loads(text or "[]")
    except ValueError:
        return []
    return value if isinstance(value, list) else []


# --- Rows of one compaction for the dashboard ---------------------------------------------------------------
#
# The views before and after it, and the messages that it replaced.

MOST_MESSAGES = 300
"""The newest replaced messages that are read."""


@dataclass(frozen=True, slots=True)
class CompactionDetail:
    """One pass with both sides of it. Texts are as stored: hostile until sanitised."""

    facts: CompactionFacts
    seconds: float | None
    """How long the pass took in the background."""
    before: ViewFacts | None
    after: ViewFacts | None
    """None while the pass has not been applied."""
    first: int
    last: int
    """The messages `first … last` were, or would be, replaced; none where `last < first`."""
    messages: tuple[StoredMessage, ...]
    """Those of them that were read, oldest first; of a long text its beginning."""
    tokens: int
    """Tokens of all replaced messages."""

    @property
    def count(self) -> int:
        """How many messages were replaced."""
        return max(0, self.last - self.first + 1)


def compaction_detail(
    connection: Connection, compaction_id: int, *, most: int = MOST_MESSAGES, characters: int = 100_000
) -> CompactionDetail | None:
    """The pass of that id, or None. At most so many of the newest replaced messages are read, of each the beginning."""
    row = connection.execute(
        f"SELECT {COMPACTION_COLUMNS}, seconds, (SELECT origin FROM sessions s WHERE s.id = session_id)"
        " FROM compactions WHERE id = ?",
        (compaction_id,),
    ).fetchone()
    if row is None:
        return None
    facts, agent_id = compaction_facts(row[:18], row[19]), row[1]
    base = facts.view_before
    if base is None:
        current = connection.execute("SELECT view_version FROM agents WHERE id = ?", (agent_id,)).fetchone()
        base = current[0] if current else 0
    before = view(connection, agent_id, base)
    after = view(connection, agent_id, facts.view_after) if facts.view_after is not None else None
    first, last = _replaced(facts, before, after)
    messages = newest_messages(connection, agent_id, most, first=first, last=last, characters=characters)
    tokens = connection.execute(
        "SELECT coalesce((SELECT total_tokens FROM messages WHERE agent_id = ? AND seq <= ? ORDER BY seq"
        " DESC LIMIT 1), 0)"
        " - coalesce((SELECT total_tokens FROM messages WHERE agent_id = ? AND seq < ? ORDER BY seq DESC"
        " LIMIT 1), 0)",
        (agent_id, last, agent_id, first),
    ).fetchone()[0]
    return CompactionDetail(
        facts,
        row[18],
        before,
        after,
        first,
        last,
        tuple(messages),
        max(0, int(tokens)) if last >= first else 0,
    )


def _replaced(facts: CompactionFacts, before: ViewFacts | None, after: ViewFacts | None) -> tuple[int, int]:
    """Which messages were verbatim before the pass, and are not after it."""
    if before is not None and before.verbatim_from is None:
        return 1, 0
    first = before.verbatim_from if before is not None and before.verbatim_from else 1
    if after is not None and after.verbatim_from is not None:
        return first, after.verbatim_from - 1
    return first, facts.high_water or 0


# --- Where an event leads -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EventPlace:
    """What an event is about: a compaction, an artifact, or a message of an agent and a call in it. Where nothing of
    that is stored, the event alone."""

    event: EventFacts
    agent_id: str = ""
    seq: int = 0
    """The message; 0 for none."""
    tool_use_id: str = ""
    """The call in that message; empty for none."""
    compaction_id: int | None = None
    digest: str = ""
    """The digest of the artifact; empty for none."""


def read_event(connection: Connection, session_id: str, seq: int) -> EventFacts | None:
    """One event of a session, or None."""
    row = connection.execute(
        "SELECT seq, at, kind, agent_id, task_id, substr(data, 1, 100000) FROM events WHERE session_id = ? AND seq = ?",
        (session_id, seq),
    ).fetchone()
    return EventFacts(*row) if row is not None else None


def place_of_event(
    connection: Connection, session_id: str, event: EventFacts, then: Mapping[str, int] | None = None
) -> EventPlace:
    """Where an event leads.

    A call, a question, a fact or a compaction that the event names comes first. Any other event of an agent or a task
    leads to the message that the agent had written last by then. `then`: in a replay, the last message of each agent at
    that moment; an event of a replay is numbered by its position.
    """
    try:
        data = json.loads(event.data)
    except (ValueError, RecursionError):
        data = None
    named = _Named(connection, session_id, event, data if isinstance(data, dict) else {})
    found = named.compaction() or named.call() or named.artifact() or named.message()
    if found is not None:
        return found
    agent_id = named.agent()
    if then is not None:
        seq = then.get(agent_id, 0)
    else:
        seq = message_at(connection, agent_id, event.at, named.commit_seq()) if agent_id else 0
    return EventPlace(event, agent_id if seq else "", seq)


def message_at(connection: Connection, agent_id: str, at: float, commit_seq: int | None = None) -> int:
    """The message that an agent had written last by that commit, or by that time where no commit is known; its first one
    where it had written none, and 0 where it has none."""
    row = connection.execute("SELECT last_seq FROM agents WHERE id = ?", (agent_id,)).fetchone()
    last = row[0] if row is not None else 0

    def is_later(seq: int) -> bool:
        found = connection.execute(
            "SELECT commit_seq, created_at FROM messages WHERE agent_id = ? AND seq = ?", (agent_id, seq)
        ).fetchone()
        if found is None:
            return False
        if commit_seq is not None and found[0] is not None:
            return bool(found[0] > commit_seq)
        return bool(found[1] > at)

    # By halves: an agent may have a hundred thousand messages.
    return max(min(1, last), bisect_left(range(1, last + 1), True, key=is_later))


class _Named:
    """What the data of an event names, where it is stored in the event's session."""

    def __init__(
        self, connection: Connection, session_id: str, event: EventFacts, data: dict[str, Any]
    ) -> None:
        self._connection, self._session_id, self._event, self._data = connection, session_id, event, data

    def _row(self, sql: str, *parameters: object) -> Any:
        return self._connection.execute(sql, parameters).fetchone()

    def _number(self, name: str) -> int:
        value = self._data.get(name)
        return value if isinstance(value, int) and abs(value) < _LARGEST else -1

    def compaction(self) -> EventPlace | None:
        number, view = self._number("compaction"), self._number("view")
        row = self._row(
            "SELECT id FROM compactions WHERE id = ? AND session_id = ?", number, self._session_id
        )
        if row is None and self._event.kind.startswith("compaction."):
            # An undo names the view that it went back to, a redo the one that it brought back.
            row = self._row(
                "SELECT id FROM compactions WHERE agent_id = ? AND (view_after = ?2 OR view_before = ?2)"
                " ORDER BY view_after = ?2 DESC, id LIMIT 1",
                self._event.agent_id, view,
            )  # fmt: skip
        return (
            EventPlace(self._event, self._event.agent_id or "", compaction_id=row[0])
            if row is not None
            else None
        )

    def call(self) -> EventPlace | None:
        number, approval = self._number("call"), self._data.get("approval")
        if number < 0 and isinstance(approval, str):
            asked = self._row(
                "SELECT tool_call_id FROM approvals WHERE id = ? AND session_id = ?",
                approval,
                self._session_id,
            )
            number = asked[0] if asked is not None else -1
        row = self._row(
            "SELECT c.agent_id, c.seq, c.tool_use_id FROM tool_calls c JOIN agents a ON a.id = c.agent_id"
            " JOIN messages m ON m.agent_id = c.agent_id AND m.seq = c.seq WHERE c.id = ? AND a.session_id = ?",
            number, self._session_id,
        )  # fmt: skip
        return EventPlace(self._event, *row) if row is not None else None

    def artifact(self) -> EventPlace | None:
        reference = self._data.get("ref")
        digest = reference.rpartition("/")[2] if isinstance(reference, str) else ""
        row = self._row("SELECT 1 FROM outputs WHERE session_id = ? AND digest = ?", self._session_id, digest)
        return EventPlace(self._event, self._event.agent_id or "", digest=digest) if row is not None else None

    def message(self) -> EventPlace | None:
        """The message that it is, or a fact's source, or one that was pinned."""
        row = self._row("SELECT sources FROM facts WHERE id = ?", self._number("fact"))
        seqs = [self._number("seq")] if self._event.kind.endswith(".message") else self._data.get("messages")
        places = [(self._event.agent_id, seq) for seq in seqs] if isinstance(seqs, list) else []
        for source in _listed(row[0]) if row is not None else ():
            if isinstance(source, str) and source.startswith("message://"):
                agent_id, _, seq = source.removeprefix("message://").rpartition("/")
                places.append((agent_id, int(seq) if seq.isdecimal() and len(seq) < 18 else 0))
        for agent, seq in places:
            stored = isinstance(seq, int) and abs(seq) < _LARGEST and self._row(
                "SELECT 1 FROM messages m JOIN agents a ON a.id = m.agent_id WHERE m.agent_id = ? AND m.seq = ?"
                " AND a.session_id = ?", agent, seq, self._session_id,
            )  # fmt: skip
            if stored:
                return EventPlace(self._event, agent or "", seq)
        return None

    def commit_seq(self) -> int | None:
        """The number of the transaction that wrote it, where that is known."""
        row = self._row(
            "SELECT commit_seq FROM events WHERE session_id = ? AND seq = ? AND kind = ?",
            self._session_id, self._event.seq, self._event.kind,
        )  # fmt: skip
        return row[0] if row is not None else None

    def agent(self) -> str:
        """The agent whose event it is, or whose task, command or plan; empty for none."""
        agent, task_id = self._event.agent_id or self._data.get("agent"), self._event.task_id
        row = (
            (isinstance(agent, str) and self._row("SELECT id FROM agents WHERE id = ? AND session_id = ?", agent, self._session_id))
            or self._row("SELECT assigned_agent FROM tasks WHERE id = ? AND assigned_agent IS NOT NULL", task_id)
            or self._row("SELECT agent_id FROM commands WHERE id = ? AND agent_id IS NOT NULL", self._number("command"))
            or (self._event.kind.startswith("plan.")
                and self._row("SELECT planner_agent_id FROM sessions WHERE id = ?", self._session_id))
        )  # fmt: skip
        return str(row[0] or "") if row else ""


# --- The compactions of an agent, and an observation with its messages ---------------------------------------


@dataclass(frozen=True, slots=True)
class PassRange:
    """One compaction of an agent, and the messages that it replaced; none where `last < first`."""

    id: int
    number: int
    """Which of the agent's compactions it is, from 1 on."""
    status: str
    first: int
    last: int


def passes_of(connection: Connection, agent_id: str) -> tuple[PassRange, ...]:
    """All compactions of an agent, the oldest first."""
    rows = connection.execute(
        "SELECT c.id, c.status, b.version IS NOT NULL AND b.verbatim_from IS NULL, b.verbatim_from, a.verbatim_from,"
        " c.high_water FROM compactions c"
        " LEFT JOIN views b ON b.agent_id = c.agent_id AND b.version = c.view_before"
        " LEFT JOIN views a ON a.agent_id = c.agent_id AND a.version = c.view_after"
        " WHERE c.agent_id = ? ORDER BY c.id",
        (agent_id,),
    )
    found = []
    for number, (id, status, is_empty, before, after, high_water) in enumerate(rows, start=1):
        first, last = (
            (1, 0) if is_empty else (before or 1, after - 1 if after is not None else high_water or 0)
        )
        found.append(PassRange(id, number, status, first, last))
    return tuple(found)


def observation(connection: Connection, agent_id: str, observation_id: int) -> ObservationFacts | None:
    """One observation of an agent, whichever view has it; None where there is no such observation."""
    row = connection.execute(
        f"SELECT {OBSERVATION_COLUMNS} FROM observations WHERE agent_id = ? AND id = ?",
        (agent_id, observation_id),
    ).fetchone()
    return _observation(row, []) if row is not None else None
