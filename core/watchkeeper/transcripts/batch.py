"""What the sessions of one transaction share, and what is known of their records before they are folded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from watchkeeper.records.model import Cost
from watchkeeper.store import transcripts as rows
from watchkeeper.store.transcript_rows import Rows
from watchkeeper.transcripts.agentfold import AgentFold
from watchkeeper.transcripts.identity import record_digest
from watchkeeper.transcripts.records import Compaction, Failure, Message, ModelCall, Record, Rewind, Summary

Pricing = Callable[[ModelCall], Cost]
"""What a call cost; passed in, since prices are not this room's."""

_ANCHORS = frozenset({Compaction, Summary, Rewind, Failure})
"""Records by which a line is recognised, besides messages: by the first of them."""
_BESIDE = frozenset({Rewind, Failure})
"""Those that have no id where a message beside them has one."""

Anchor = tuple[int, Any]
"""The record by which a line is recognised, behind its digest."""

_NO_ANCHOR: Anchor = (0, None)


@dataclass(slots=True)
class OpenCall:
    """A model call that is not written yet."""

    id: int
    session_id: str
    agent: AgentFold
    turn: int
    figures: ModelCall
    began: float
    ended: float


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
    calls: dict[str, OpenCall] = field(default_factory=dict)
    """Model calls that are not written yet, by key."""
    owners: dict[str, str] = field(default_factory=dict)
    """Agents that were asked after, or are not written yet, and their sessions."""
    records: dict[int, tuple[str, int] | None] = field(default_factory=dict)
    """Digests of records that were looked up: the messages that they became, or None."""
    indexed: list[tuple[str, str | bytearray]] = field(default_factory=list)
    """Of the messages that are not written yet, in the order of their rows: session, and what is indexed."""
    stored_calls: dict[str, rows.Call] = field(default_factory=dict)
    """Model calls that are stored, by key."""
    _texts: dict[tuple[str, int], str] = field(default_factory=dict)
    """Messages that are not written yet, by agent and `seq`: as many as were there when one was last asked for."""

    def look_up(self, program: str, session: str, groups: list[tuple[int, bytes, list[Record]]]) -> list[Anchor]:
        """Ask at once what of these groups is here already: one question costs as much as one record's."""
        anchors: list[Anchor] = []
        keys: list[str] = []
        fresh: list[int] = []
        records, said = self.records, f"{program}/Message"
        for _, data, group in groups:
            anchor: Anchor = _NO_ANCHOR
            for record in group:
                kind = type(record)
                if kind is Message:
                    if anchor is not _NO_ANCHOR:
                        continue
                    digest = record_digest(record[4], said, record[1] or line_id(session, data))  # type: ignore
                elif kind is ModelCall:
                    keys.append(record[1])  # type: ignore
                    continue
                elif kind not in _ANCHORS or anchor is not _NO_ANCHOR or (kind in _BESIDE and not record.uid):  # type: ignore[union-attr]
                    continue
                else:
                    uid = record.uid or line_id(session, data)  # type: ignore[union-attr]
                    digest = record_digest(record.at, f"{program}/{kind.__name__}", uid)  # type: ignore[union-attr]
                anchor = (digest, record)
                if digest not in records:
                    records[digest] = None
                    fresh.append(digest)
            anchors.append(anchor)
        records.update(rows.find_records(self.cursor, fresh))
        self.stored_calls.update(
            rows.find_calls(self.cursor, [key for key in dict.fromkeys(keys) if key and key not in self.calls])
        )
        return anchors

    def record(self, digest: int) -> tuple[str, int] | None:
        """The message that a record became, if it was imported."""
        if digest not in self.records:
            self.records[digest] = rows.find_records(self.cursor, [digest]).get(digest)
        return self.records[digest]

    def remember(self, digest: int, agent_id: str, seq: int) -> None:
        """Note which message a record became."""
        self.records[digest] = (agent_id, seq)
        self.into["records"].append((digest, agent_id, seq))

    def text_of(self, agent_id: str, seq: int) -> str | None:
        """What a message says, as it is stored."""
        messages = self.into["messages"]
        for row in messages[len(self._texts) :]:
            self._texts[row[0], row[1]] = row[3] if isinstance(row[3], str) else row[3].decode()
        text = self._texts.get((agent_id, seq))
        return rows.message_content(self.cursor, agent_id, seq) if text is None else text

    def owner(self, agent_id: str) -> str | None:
        """The session of an agent."""
        owner = self.owners.get(agent_id)
        if owner is None:
            owner = rows.session_of(self.cursor, agent_id)
            if owner is not None:
                self.owners[agent_id] = owner
        return owner


def line_id(session: str, data: bytes) -> str:
    """What a record without an id is recognised by: all that its line says, in its session."""
    return f"{session}\0{blake2b(data, digest_size=8).hexdigest()}"
