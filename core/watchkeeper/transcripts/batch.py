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

AHEAD_SECONDS = 86_400.0
"""How much later than now a record's time may be, as clocks and their zones go; what comes later tells no
time."""

Pricing = Callable[[ModelCall], Cost]
"""What a call cost; passed in, since prices are not this room's."""

_ANCHORS = frozenset({Compaction, Summary, Rewind, Failure})
"""Records by which a line is recognised, besides messages: by the first of them."""
_BESIDE = frozenset({Rewind, Failure})
"""Those that have no id where a message beside them has one."""

Anchor = tuple[int, Any, int]
"""The record by which a line is recognised, behind its digest, and a number for the usage that the line tells
(0: none)."""

_NO_ANCHOR: Anchor = (0, None, 0)


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
    records: dict[int, rows.Place | None] = field(default_factory=dict)
    """Digests of records that were looked up: what they became, or None."""
    revised: int = 0
    """Records that are here already and say something else now."""
    revisions: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """Of records that were found changed, by source and id: the digests of their revisions."""
    indexed: list[tuple[str, str | bytearray]] = field(default_factory=list)
    """Of the messages that are not written yet, in the order of their rows: session, and what is indexed."""
    stored_calls: dict[str, rows.Call] = field(default_factory=dict)
    """Model calls that are stored, by key."""
    _texts: dict[tuple[str, int], str] = field(default_factory=dict)
    """Messages that are not written yet, by agent and `seq`: as many as were there when one was last asked
    for."""

    def look_up(
        self, program: str, session: str, groups: list[tuple[int, bytes, list[Record]]]
    ) -> list[Anchor]:
        """Ask at once what of these groups is here already: one question costs as much as one record's."""
        anchors: list[Anchor] = []
        keys: list[str] = []
        fresh: list[int] = []
        records, said = self.records, f"{program}/Message"
        for _, data, group in groups:
            digest, anchor, figures = 0, None, 0
            for record in group:
                kind = type(record)
                if kind is Message:
                    if anchor is not None:
                        continue
                    digest = record_digest(record[4], said, record[1] or line_id(session, data))  # type: ignore
                elif kind is ModelCall:
                    keys.append(record[1])  # type: ignore
                    figures = _number_of(record)  # type: ignore[arg-type]
                    continue
                elif kind not in _ANCHORS or anchor is not None or (kind in _BESIDE and not record.uid):  # type: ignore[union-attr]
                    continue
                else:
                    uid = record.uid or line_id(session, data)  # type: ignore[union-attr]
                    digest = record_digest(record.at, f"{program}/{kind.__name__}", uid)  # type: ignore[union-attr]
                anchor = record
                if digest not in records:
                    records[digest] = None
                    fresh.append(digest)
            anchors.append(_NO_ANCHOR if anchor is None else (digest, anchor, figures))
        records.update(rows.find_records(self.cursor, fresh))
        self.stored_calls.update(
            rows.find_calls(
                self.cursor, [key for key in dict.fromkeys(keys) if key and key not in self.calls]
            )
        )
        return anchors

    def record(self, digest: int) -> rows.Place | None:
        """What a record became, if it was imported."""
        if digest not in self.records:
            self.records[digest] = rows.find_records(self.cursor, [digest]).get(digest)
        return self.records[digest]

    def remember(self, digest: int, agent_id: str, seq: int, figures: int | None) -> None:
        """Note which message a record became, and what number its usage has."""
        self.records[digest] = (agent_id, seq, figures)
        self.into["records"].append((digest, agent_id, seq, figures))

    def revisions_of(self, source: str, record_id: str) -> list[str]:
        """The digests of a record's revisions behind the first; whoever stores another one adds it."""
        found = self.revisions.get((source, record_id))
        if found is None:
            found = self.revisions[source, record_id] = rows.revision_digests(self.cursor, source, record_id)
        return found

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


def _number_of(call: ModelCall) -> int:
    """A number for a call's tokens, never 0: other tokens have another one, as a rule."""
    fresh, output, read, written, hour = call[3:8]
    number = fresh + 1_000_003 * (output + 1_000_033 * (read + 1_000_037 * (written + 1_000_039 * hour)))
    return number & 0x7FFF_FFFF or 1


def line_id(session: str, data: bytes) -> str:
    """What a record without an id is recognised by: all that its line says, in its session."""
    return f"{session}\0{blake2b(data, digest_size=8).hexdigest()}"
