"""Messages that are here already, though their record is another: in part, or under another id."""

from __future__ import annotations

import json
from typing import Any

from watchkeeper.store import transcripts as rows
from watchkeeper.transcripts.agentfold import AgentFold
from watchkeeper.transcripts.batch import Batch
from watchkeeper.transcripts.jsontext import write
from watchkeeper.transcripts.records import Message

BACK_SECONDS = 1.0
"""Parallel calls and hooks are logged out of order by less."""


def says_the_same(batch: Batch, record: Any, agent: AgentFold, agent_id: str, seq: int) -> bool:
    """Whether a record is the stored message of its id: two may have one number, and a rewritten one its old id."""
    if type(record) is not Message:
        return True
    stored = batch.text_of(agent_id, seq)
    if stored == write(record.content)[0]:
        return True
    # What a helper of an agent is given of its context goes without its thinking.
    return agent_id != agent.id and stored is not None and _is_part(record.content, json.loads(stored))


def may_repeat(record: Any, agent: AgentFold) -> bool:
    """Whether a new record is worth asking `was_said` of.

    A log that is resumed by another version may begin with what was said last, under new ids and with the times that it had.
    """
    at, last = record.at, agent.last_at
    return at is not None and last is not None and (agent.repeating or at < last - BACK_SECONDS) and type(record) is Message


def was_said(batch: Batch, record: Message, agent: AgentFold) -> int | None:
    """The `seq` of the message that a new record repeats, if it does; asked where it `may_repeat` one."""
    if agent.said_at is None:
        agent.said_at = {}
        times = rows.message_times(batch.cursor, agent.id, 1)
        for seq, at in [*times, *((row[1], row[6]) for row in batch.into["messages"] if row[0] == agent.id)]:
            agent.said_at.setdefault(at, []).append(seq)
    for seq in agent.said_at.get(record.at or 0.0, ()):
        stored = batch.text_of(agent.id, seq)
        if stored is not None and (stored == write(record.content)[0] or _is_part(record.content, json.loads(stored))):
            agent.repeating = True
            return seq
    agent.repeating = False
    return None


def _is_part(content: Any, whole: Any) -> bool:
    """Whether all blocks of a message's content are blocks of that other one."""
    return isinstance(content, list) and isinstance(whole, list) and bool(content) and all(each in whole for each in content)
