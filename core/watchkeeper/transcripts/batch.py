"""What the sessions of one transaction share, and what is known of their records before they are folded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from watchkeeper.records.messages import Cost
from watchkeeper.store import imports as rows
from watchkeeper.store.imports import Rows
from watchkeeper.transcripts.records import (
    STORED_KINDS,
    Failure,
    ImportedCompaction,
    ImportedMessage,
    ModelCall,
    Record,
    ReportedTotals,
    Rewind,
    Summary,
    record_digest,
    write,
)

# --- One agent of an imported session, as far as a transaction has changed it -----------------------------

LONGEST_PAUSE_SECONDS = 300.0
"""A longer time between two records is not counted as work."""

NO_LOG = "its own log is not here"

WINDOW = 200_000
"""Tokens of a window, where the log does not tell; raised when a prompt was larger."""


@dataclass(slots=True)
class AgentImport:
    """The agent's row, and what of its history is needed to go on with it."""

    key: str
    row: dict[str, Any]
    changed: bool = True
    id: str = field(init=False)
    call_key: str | None = None
    """The key of the model call whose turn it is."""
    position: int = 0
    """Tool calls of this turn so far."""
    last_at: float | None = None
    is_untimed: bool = False
    """It was made before any record had a time: the first time found is when it began."""
    repeating: bool = False
    """The newest message was one that is here already, under another id."""
    said_at: dict[float, list[int]] | None = None
    """Messages by their time, once they are needed."""
    open_calls: dict[str, tuple[int, str, float, list[Any]]] = field(default_factory=dict)
    """Calls that wait for a result: id, tool, when it began, and the row if this transaction writes it."""
    calls_before: set[str] | None = None
    """The program's ids of the calls of earlier transactions, once they are needed."""
    observations: list[int] = field(default_factory=list)
    verbatim_from: int = 1
    elided: list[Any] = field(default_factory=list)
    """As views hold it: `[seq, head, tail, pointer, tokens]`; those that were undone have no tokens
    left."""
    last_observation: int = 0
    compaction: int | None = None
    """The newest compaction, while its tokens after it are not known."""
    summary: int | None = None
    """The observation that waits for its text."""
    awaits_summary: bool = False
    """A compaction came, and its summary has not."""
    dropped_tokens: int = 0
    """Running total of tokens before `verbatim_from`."""
    observation_tokens: int = 0
    begins_earlier: bool = False
    """A log is read that begins before what was known of it: what is asked for there first is its goal."""
    told_seconds: float | None = None
    """For how long it worked as its call says, while nothing of its own log is here."""
    taken_back_tokens: int = 0
    """Of messages that are verbatim by their place, and were undone."""

    def __post_init__(self) -> None:
        self.id = self.row["id"]

    @classmethod
    def load(cls, cursor: Any, key: str, row: dict[str, Any]) -> AgentImport:
        """An agent that an earlier transaction made."""
        agent_id = row["id"]
        if row["status_reason"] == rows.NO_RESULT:
            row["status"], row["status_reason"] = "working", None
        call_key, position = rows.last_turn(cursor, agent_id, row["turn"])
        observations, verbatim_from, elided, observed = rows.current_view(
            cursor, agent_id, row["view_version"]
        )
        waiting = rows.last_compaction(cursor, agent_id)
        taken_back = [each[0] for each in elided if not each[4]]
        return cls(
            key,
            row,
            changed=False,
            call_key=call_key,
            position=position,
            last_at=row["last_active"],
            open_calls=rows.open_calls(cursor, agent_id),
            observations=observations,
            verbatim_from=verbatim_from or 1,
            elided=elided,
            observation_tokens=observed,
            last_observation=rows.last_observation(cursor, agent_id),
            compaction=waiting[0] if waiting and waiting[1] is None else None,
            summary=waiting[2] if waiting else None,
            dropped_tokens=rows.total_tokens(cursor, agent_id, (verbatim_from or 1) - 1),
            taken_back_tokens=rows.tokens_of(cursor, agent_id, taken_back) if taken_back else 0,
            told_seconds=row["active_seconds"]
            if str(row["status_reason"]).startswith(NO_LOG) and not row["last_seq"]
            else None,
        )

    @classmethod
    def new(cls, agent_id: str, session_id: str, key: str, at: float) -> AgentImport:
        row = dict.fromkeys(rows.AGENT, 0) | {
            "id": agent_id, "session_id": session_id, "parent_agent_id": None, "name": key or "main", "role": "main" if not key else "agent",
            "model": "", "current_goal": "", "status": "done", "status_reason": None, "view_version": 1,
            "context_limit": WINDOW, "composition": "{}", "created_at": at, "started_at": at, "ended_at": None,
            "last_active": at, "active_seconds": 0.0, "model_calls": 0,
        }  # fmt: skip
        return cls(key, row)

    def touch(self, at: float) -> None:
        """Something happened at that time."""
        before, row = self.last_at, self.row
        self.changed = True
        self.last_at = at
        if self.is_untimed:
            row["created_at"] = row["last_active"] = at
            self.is_untimed = False
        if at > row["last_active"]:
            row["last_active"] = at
        if at < row["created_at"]:
            row["created_at"] = at
        row["started_at"] = row["created_at"]
        if before is not None and 0 < at - before <= LONGEST_PAUSE_SECONDS:
            row["active_seconds"] += at - before

    def has_call(self, cursor: Any, tool_use_id: str) -> bool:
        """Whether a call of that id is here already."""
        if self.calls_before is None:
            self.calls_before = rows.tool_use_ids(cursor, self.id)
        return tool_use_id in self.calls_before

    def take_told(self, reported: ReportedTotals) -> None:
        """What the call that started it says of it: its own log says more, as soon as anything of it is
        here."""
        if self.row["last_seq"]:
            return
        self.told_seconds = reported.seconds
        self.row["active_seconds"], self.row["context_tokens"] = reported.seconds, reported.context_tokens
        said = f"{reported.context_tokens:,} tokens of context, {reported.seconds:.1f} s and {reported.tool_calls:,} tool calls"
        self.row["status_reason"] = f"{NO_LOG}; {said} are what its call reported"

    def take_call(self, key: str) -> None:
        """A reply with this key belongs to the current turn, or begins the next one."""
        if not key or key != self.call_key:
            self.call_key = key or None
            self.row["turn"] += 1
            self.position = 0

    @property
    def view_tokens(self) -> int:
        """Tokens of the messages that are verbatim, estimated."""
        return max(0, int(self.row["message_tokens"]) - self.dropped_tokens - self.taken_back_tokens)

    @property
    def taken_back(self) -> set[int]:
        """The messages of this context that were undone."""
        return {each[0] for each in self.elided if not each[4]}

    def finished(self, *, live: bool) -> dict[str, Any]:
        """The row to be written; `live`: the log is followed, so that an agent without a result may be at
        work."""
        row = self.row
        if row["status"] == "working" and not live and self.key:
            row["status"], row["status_reason"] = "cancelled", rows.NO_RESULT
        row["composition"] = write({"observations": self.observation_tokens, "messages": self.view_tokens})[0]
        row["ended_at"] = None if row["status"] in ("working", "idle") else row["last_active"]
        if self.told_seconds is not None:
            if not row["last_seq"]:
                return row
            row["active_seconds"] -= self.told_seconds
            self.told_seconds = row["status_reason"] = None
        if not row["model_calls"]:
            row["context_tokens"] = self.observation_tokens + self.view_tokens
        return row


AHEAD_SECONDS = 86_400.0
"""How much later than now a record's time may be, as clocks and their zones go; what comes later tells no
time."""

Pricing = Callable[[ModelCall], Cost]
"""What a call cost; passed in, since prices are not this room's."""

_ANCHORS = frozenset({ImportedCompaction, Summary, Rewind, Failure})
"""Records by which a line is recognised, besides messages: by the first of them."""
_BESIDE = frozenset({Rewind, Failure})
"""Those that have no id where a message beside them has one."""

Anchor = tuple[int, Any, int]
"""The record by which a line is recognised, behind its digest, and a number for the usage that the line tells
(0: none)."""

_NO_ANCHOR: Anchor = (0, None, 0)


@dataclass(slots=True)
class LoggedCall:
    """A model call that is stored, or is going to be."""

    id: int
    session_id: str
    agent_id: str
    usage: ModelCall
    turn: int = 0
    began: float = 0.0
    ended: float = 0.0
    is_stored: bool = False
    """An earlier transaction wrote it; `turn` and `began` are not read again."""


@dataclass(slots=True)
class Batch:
    """What the sessions of one transaction share."""

    cursor: Any
    pricing: Pricing
    now: float
    """The time of a record that has none, where none was before it."""
    user_id: str
    """Whose sessions they are."""
    live: bool = False
    """Logs are followed as they grow: a call without a result is running, rather than lost."""
    into: Rows = field(default_factory=Rows)
    ids: dict[str, int] = field(default_factory=dict)
    """Highest ids so far, by table."""
    calls: dict[str, LoggedCall] = field(default_factory=dict)
    """Model calls by key: new ones, and those that are stored and that a record may name again."""
    changed_calls: dict[int, LoggedCall] = field(default_factory=dict)
    """Those of them that are new or changed, by id."""
    owners: dict[str, str] = field(default_factory=dict)
    """Agents that were asked after, or are not written yet, and their sessions."""
    records: dict[int, rows.Place | None] = field(default_factory=dict)
    """Digests of records that were looked up: what they became, or None."""
    revised: int = 0
    """Records that are here already and say something else now."""
    revisions: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Of records that were found changed, by source and id: the digests of their revisions."""
    indexed: list[tuple[str, str | bytearray]] = field(default_factory=list)
    """Of the messages that are not written yet, in the order of their rows: session, and what is indexed."""
    stored_tool_calls: int = 0
    """The highest id of the tool calls that are written."""

    def look_up(
        self, program: str, session: str, groups: list[tuple[int, bytes, list[Record]]]
    ) -> list[Anchor]:
        """Ask at once what of these groups is here already: one question costs as much as one record's."""
        anchors: list[Anchor] = []
        keys: list[str] = []
        fresh: list[int] = []
        records, said = self.records, f"{program}/Message"
        for _, data, group in groups:
            digest, anchor, usage_number = 0, None, 0
            for record in group:
                kind = type(record)
                if kind is ImportedMessage:
                    if anchor is not None:
                        continue
                    digest = record_digest(record[4], said, record[1] or line_id(session, data))  # type: ignore
                elif kind is ModelCall:
                    keys.append(record[1])  # type: ignore
                    usage_number = _number_of(record)  # type: ignore[arg-type]
                    continue
                elif kind not in _ANCHORS or anchor is not None or (kind in _BESIDE and not record.uid):  # type: ignore[union-attr]
                    continue
                else:
                    uid = record.uid or line_id(session, data)  # type: ignore[union-attr]
                    digest = record_digest(record.at, f"{program}/{STORED_KINDS[kind]}", uid)  # type: ignore[union-attr]
                anchor = record
                if digest not in records:
                    records[digest] = None
                    fresh.append(digest)
            anchors.append(_NO_ANCHOR if anchor is None else (digest, anchor, usage_number))
        records.update(rows.find_records(self.cursor, fresh))
        wanted = [key for key in dict.fromkeys(keys) if key and key not in self.calls]
        for key, call_id, session_id, agent_id, model, *tokens, exact, stop_reason in rows.find_calls(
            self.cursor, wanted
        ):
            logged = ModelCall(agent_id, key, model, *tokens)._replace(
                exact=bool(exact), stop_reason=stop_reason
            )
            self.calls[key] = LoggedCall(call_id, session_id, agent_id, logged, is_stored=True)
        return anchors

    def record(self, digest: int) -> rows.Place | None:
        """What a record became, if it was imported."""
        if digest not in self.records:
            self.records[digest] = rows.find_records(self.cursor, [digest]).get(digest)
        return self.records[digest]

    def remember(self, digest: int, agent_id: str, seq: int, usage_number: int | None) -> None:
        """Note which message a record became, and what number its usage has."""
        self.records[digest] = (agent_id, seq, usage_number)
        self.into["records"].append((digest, agent_id, seq, usage_number))

    def revisions_of(self, source: str, record_id: str) -> list[str]:
        """The digests of a record's revisions behind the first; the code that stores another one adds it."""
        found = self.revisions.get((source, record_id))
        if found is None:
            found = self.revisions[source, record_id] = rows.revision_digests(self.cursor, source, record_id)
        return found

    def write(self) -> None:
        """Write what is gathered, so that SQL can be asked of it."""
        self.into.flush(self.cursor)
        self.stored_tool_calls = self.ids["tool_calls"]

    def text_of(self, agent_id: str, seq: int) -> str | None:
        """What a message says, as it is stored."""
        found = rows.message_content(self.cursor, agent_id, seq)
        if found is None and self.into["messages"]:
            self.write()
            found = rows.message_content(self.cursor, agent_id, seq)
        return found

    def owner(self, agent_id: str) -> str | None:
        """The session of an agent."""
        owner = self.owners.get(agent_id)
        if owner is None:
            owner = rows.session_of(self.cursor, agent_id)
            if owner is not None:
                self.owners[agent_id] = owner
        return owner


def _number_of(call: ModelCall) -> int:
    """A number for a call's tokens, never 0: other tokens have another one, as a rule."""
    fresh, output, read, written, hour = call[3:8]
    number = fresh + 1_000_003 * (output + 1_000_033 * (read + 1_000_037 * (written + 1_000_039 * hour)))
    return number & 0x7FFF_FFFF or 1


def line_id(session: str, data: bytes) -> str:
    """What a record without an id is recognised by: all that its line says, in its session."""
    return f"{session}\0{blake2b(data, digest_size=8).hexdigest()}"
