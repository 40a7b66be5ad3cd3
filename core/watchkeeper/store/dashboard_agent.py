"""What the dashboard reads of the one agent it looks at: transcript, model calls, facts, the make-up of its
context."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from watchkeeper.store.driver import Connection
from watchkeeper.store.folding import Folded, lines

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
    """How one tool call stands."""

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
    """A text that stands for a range of messages in the agent's context."""

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
    """One consistent reading of what changes beside the transcript. Unchanged parts are the objects of the
    one before."""

    tool_calls: tuple[ToolCallFacts, ...]
    """The newest, newest first."""
    calls: tuple[CallFacts, ...]
    """The newest calls to models, newest first."""
    facts: tuple[FactFacts, ...]
    """What this agent remembers and what the session has pinned: pinned first, then newest first."""
    views: tuple[ViewFacts, ...]
    """The newest versions of its context without their observations, newest first."""
    inbox: tuple[InboxFacts, ...]
    """What it will be told before its next turn, oldest first."""


_TOOL_CALLS = lines(
    "id, tool_use_id, name, status, is_error, started_at, ended_at",
    "tool_calls WHERE agent_id = ? ORDER BY turn DESC, position DESC LIMIT 100",
)
_MODEL_CALLS = lines(
    "id, turn, purpose, model, status, stop_reason, input_tokens, output_tokens, cache_read_tokens,"
    " cache_write_tokens,"
    " usage_exact, cost_usd, price_status, started_at, latency_seconds, first_token_seconds, waited_seconds,"
    " retries,"
    " substr(error, 1, 2000)",
    "model_calls WHERE agent_id = ? ORDER BY id DESC LIMIT 300",
)
_FACTS = lines(
    "id, agent_id, kind, substr(text, 1, 2000), substr(sources, 1, 500), pinned, confidence, created_at",
    "facts WHERE superseded_by IS NULL AND (agent_id = ? OR (session_id = ? AND pinned = 1)) ORDER BY pinned"
    " DESC, id DESC"
    " LIMIT 300",
)
_VIEWS = lines(
    "version, parent, verbatim_from, reason, tokens, created_at",
    "views WHERE agent_id = ? ORDER BY version DESC LIMIT 100",
)
_INBOX = lines(
    "id, kind, substr(payload, 1, 4000), created_at",
    "inbox WHERE agent_id = ? AND delivered_seq IS NULL ORDER BY id LIMIT 50",
)


class AgentFold:
    """What is read again and again of the one agent looked at."""

    def __init__(self, session_id: str, agent_id: str) -> None:
        self._session_id, self._agent_id = session_id, agent_id
        self._tool_calls = Folded(
            _TOOL_CALLS, lambda raw: ToolCallFacts(*[*raw[1:4], bool(raw[4]), *raw[5:]])
        )
        self._calls = Folded(_MODEL_CALLS, lambda raw: CallFacts(*[*raw[:10], bool(raw[10]), *raw[11:]]))
        self._facts = Folded(_FACTS, lambda raw: FactFacts(*[*raw[:5], bool(raw[5]), *raw[6:]]))
        self._views = Folded(_VIEWS, lambda raw: ViewFacts(*raw))
        self._inbox = Folded(_INBOX, lambda raw: InboxFacts(*raw))

    def read(self, connection: Connection) -> AgentReading:
        """All of it as it stands. To be called inside one transaction."""
        agent = (self._agent_id,)
        return AgentReading(
            self._tool_calls.read(connection, agent),
            self._calls.read(connection, agent),
            self._facts.read(connection, (self._agent_id, self._session_id)),
            self._views.read(connection, agent),
            self._inbox.read(connection, agent),
        )


def newest_turns(connection: Connection, agent_id: str, limit: int = 12) -> list[TurnFacts]:
    """The last turns' calls that brought a reply, newest first."""
    rows = connection.execute(
        "SELECT input_tokens + cache_read_tokens + cache_write_tokens, started_at FROM model_calls WHERE"
        " agent_id = ?"
        " AND status = 'done' AND purpose IN ('turn', 'planner') ORDER BY id DESC LIMIT ?",
        (agent_id, limit),
    )
    return [TurnFacts(*row) for row in rows]


def newest_messages(connection: Connection, agent_id: str, limit: int) -> list[StoredMessage]:
    """The last `limit` messages, oldest first."""
    return list(reversed(_messages(connection, agent_id, 0, limit, newest_first=True)))


def messages_after(connection: Connection, agent_id: str, seq: int, limit: int) -> list[StoredMessage]:
    """At most `limit` messages that followed `seq`, oldest first."""
    return _messages(connection, agent_id, seq, limit, newest_first=False)


def messages_between(connection: Connection, agent_id: str, first: int, last: int) -> list[StoredMessage]:
    """Messages `first … last`, both included, oldest first."""
    rows = connection.execute(
        "SELECT seq, role, substr(content, 1, 400000), tokens, total_tokens, created_at, length(content)"
        " FROM messages"
        " WHERE agent_id = ? AND seq BETWEEN ? AND ? ORDER BY seq",
        (agent_id, first, last),
    )
    return [StoredMessage(*row) for row in rows]


def _messages(
    connection: Connection, agent_id: str, seq: int, limit: int, *, newest_first: bool
) -> list[StoredMessage]:
    backwards = (
        "SELECT seq, role, substr(content, 1, 400000), tokens, total_tokens, created_at, length(content)"
        " FROM messages"
        " WHERE agent_id = ? AND seq > ? ORDER BY seq DESC LIMIT ?"
    )
    forwards = (
        "SELECT seq, role, substr(content, 1, 400000), tokens, total_tokens, created_at, length(content)"
        " FROM messages"
        " WHERE agent_id = ? AND seq > ? ORDER BY seq LIMIT ?"
    )
    rows = connection.execute(backwards if newest_first else forwards, (agent_id, seq, limit))
    return [StoredMessage(*row) for row in rows]


def view(connection: Connection, agent_id: str, version: int) -> ViewFacts | None:
    """One version of the agent's context with its observations, or None."""
    row = connection.execute(
        "SELECT version, parent, verbatim_from, reason, tokens, created_at, observations, elided FROM views"
        " WHERE agent_id = ? AND version = ?",
        (agent_id, version),
    ).fetchone()
    if row is None:
        return None
    damaged: list[str] = []
    wanted = _numbers(row[6], "views.observations", damaged)
    found = connection.execute(
        "SELECT id, kind, level, substr(text, 1, 20000), tokens, first_seq, last_seq, citations,"
        " provisional, created_at"
        " FROM observations WHERE agent_id = ? AND id IN (SELECT value FROM json_each(?)) ORDER BY"
        " first_seq, id",
        (agent_id, json.dumps(wanted)),
    )
    observations = tuple(_observation(each, damaged) for each in found)
    elided = _numbers(row[7], "views.elided", damaged)
    return ViewFacts(*(*row[:6], observations, elided, tuple(dict.fromkeys(damaged))))


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
