"""Messages that are here already, though their record is another: in part, or under another id."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from watchkeeper.store import transcripts as rows
from watchkeeper.transcripts.agentfold import AgentFold
from watchkeeper.transcripts.batch import Batch
from watchkeeper.transcripts.jsontext import write
from watchkeeper.transcripts.records import Compaction, Message, Summary

BACK_SECONDS = 1.0
"""Parallel calls and hooks are logged out of order by less."""


_WORD = re.compile(r"\w+")


def says_the_same(batch: Batch, record: Message | Summary, agent_id: str, seq: int) -> bool:
    """Whether a record says what is stored of it, however its JSON is written."""
    if type(record) is Message:
        stored = batch.text_of(agent_id, seq)
        return (
            stored is None or stored == write(record.content)[0] or bool(json.loads(stored) == record.content)
        )
    text = record.text  # type: ignore[union-attr]
    if any(row[0] == text and row[2] == agent_id for row in batch.into["summaries"]):
        return True
    # Where there was nothing that it could stand for, it is the next message.
    return (
        rows.has_observation(batch.cursor, agent_id, text or "(empty)")
        or batch.text_of(agent_id, seq + 1) == write(text)[0]
    )


def may_repeat(record: Any, agent: AgentFold) -> bool:
    """Whether a new record is worth asking `was_said` of.

    A log that is resumed by another version may begin with what was said last, under new ids and with the
    times that it had.
    """
    at, last = record.at, agent.last_at
    return (
        at is not None
        and last is not None
        and (agent.repeating or at < last - BACK_SECONDS)
        and type(record) is Message
    )


def was_said(batch: Batch, record: Message, agent: AgentFold) -> int | None:
    """The `seq` of the message that a new record repeats, if it does; asked where it `may_repeat` one."""
    for seq in _said_at(batch, agent, record.at or 0.0):
        stored = batch.text_of(agent.id, seq)
        if stored is not None and (
            stored == write(record.content)[0] or _is_part(record.content, json.loads(stored))
        ):
            agent.repeating = True
            return seq
    agent.repeating = False
    return None


def said_then(batch: Batch, record: Message, agent: AgentFold) -> int | None:
    """The `seq` of a message of that very time that has the same blocks, whatever their texts."""
    if record.at is None:
        return None
    for seq in _said_at(batch, agent, record.at):
        stored = batch.text_of(agent.id, seq)
        if stored is not None and looks_alike(record.content, stored):
            return seq
    return None


def was_compacted_then(batch: Batch, record: Any, agent: AgentFold) -> int | None:
    """Where a stored compaction of that very time ended, or the summary of one; None for any other record."""
    if record.at is None or type(record) not in (Compaction, Summary):
        return None
    return rows.compacted_through(batch.cursor, agent.id, record.at, record.at - BACK_SECONDS)


def _said_at(batch: Batch, agent: AgentFold, at: float) -> Sequence[int]:
    """The `seq` of each message of an agent at that time."""
    if agent.said_at is None:
        agent.said_at = {}
        times = rows.message_times(batch.cursor, agent.id, 1)
        for seq, then in [
            *times,
            *((row[1], row[6]) for row in batch.into["messages"] if row[0] == agent.id),
        ]:
            agent.said_at.setdefault(then, []).append(seq)
    return agent.said_at.get(at, ())


def _is_part(content: Any, whole: Any) -> bool:
    """Whether all blocks of a message's content are blocks of that other one."""
    return (
        isinstance(content, list)
        and isinstance(whole, list)
        and bool(content)
        and all(each in whole for each in content)
    )


def is_copy(content: Any, stored: str) -> bool:
    """Whether a message's content is a stored one's, as an agent is given of another one's context: without
    its thinking, and perhaps edited since."""
    whole = json.loads(stored)
    if content == whole or _is_part(content, whole):
        return True
    if _shape(content) != _shape(whole):
        return False
    words, others = set(_WORD.findall(write(content)[0])), set(_WORD.findall(stored))
    return 2 * len(words & others) > max(len(words), len(others))


def looks_alike(content: Any, stored: str) -> bool:
    """Whether a message's content has the blocks of a stored one, whatever their texts: the same types, and
    calls' ids."""
    return _shape(content) == _shape(json.loads(stored))


def _shape(content: Any) -> list[Any]:
    if not isinstance(content, list):
        return [type(content).__name__]
    return [
        (block.get("type"), block.get("id") or block.get("tool_use_id")) if isinstance(block, dict) else None
        for block in content
    ]
