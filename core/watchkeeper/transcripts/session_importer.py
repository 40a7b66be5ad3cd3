"""What a person asked for, among what programs write in their name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

from watchkeeper.records.readers import UNIT_ROLES
from watchkeeper.records.text import cut, one_line
from watchkeeper.records.usage_limits import usage_limit
from watchkeeper.store import imports as rows
from watchkeeper.store.driver import decode, encode
from watchkeeper.store.messages import set_compaction_trigger
from watchkeeper.store.search.words import indexed_text
from watchkeeper.transcripts.batch import (
    AHEAD_SECONDS,
    AgentImport,
    Anchor,
    Batch,
    PlanImport,
    line_id,
    take_call,
)
from watchkeeper.transcripts.records import (
    AGENT_LENGTH,
    MAIN,
    STORED_KINDS,
    Failure,
    ImportedAgent,
    ImportedCompaction,
    ImportedMessage,
    ModelCall,
    Plan,
    QuotaReport,
    Raw,
    Record,
    Rewind,
    Session,
    Skipped,
    SpawnFailure,
    Summary,
    ToolCall,
    ToolResult,
    id_of,
    is_made_up,
    message_tokens,
    record_digest,
    same_bytes,
    stable_id,
    text_tokens,
    write,
    write_bytes,
)

GOAL_CHARS = 4_000
NAME_CHARS = 60
SPAWNS_KEPT = 100
_COMMAND = re.compile(
    r"\s*<command-message>[^<]*</command-message>\s*<command-name>(?P<name>[^<]+)</command-name>"
    r"(\s*<command-args>(?P<arguments>[^<]*)</command-args>)?"
)
"""A command that asks the model for something; those of the program itself (`/exit`, `/model`) begin with
their name."""

_PASTED = re.compile(r"</?pasted_content\b[^<>]*>\n?")
"""What Claude Code puts around a text that was pasted (recorded: 2.1.280; the closing tag repeats the id)."""
_EDITOR = ("# Context from my IDE setup", "# Files mentioned by the user", "# Files pasted by the user")
"""How a prompt begins before which Codex's editor puts what it shows."""
_REQUEST = re.compile(r"^## My request(?: for Codex)?:\s*(?P<asked>\S.*)", re.DOTALL | re.MULTILINE)


def goal_of(content: Any) -> str | None:
    """What a person wrote, if it is that: the goal of a session is its first."""
    texts = [content] if isinstance(content, str) else [
        block.get("text") for block in content if isinstance(block, dict) and block.get("type") == "text"
    ]  # fmt: skip
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            continue
        if asked := _COMMAND.match(text):
            return f"{asked['name']} {asked['arguments'] or ''}".strip()[:GOAL_CHARS]
        text = _PASTED.sub("", text)
        if text.lstrip().startswith(_EDITOR) and (request := _REQUEST.search(text)):
            text = request["asked"]
        if not text.lstrip().startswith(("<", "Caveat:", "[Request interrupted")):
            return text.strip()[:GOAL_CHARS]
    return None


# --- Messages that are here already, though their record is another: in part, or under another id ---------

BACK_SECONDS = 1.0
"""Parallel calls and hooks are logged out of order by less."""


_WORD = re.compile(r"\w+")


def says_the_same(batch: Batch, record: ImportedMessage | Summary, agent_id: str, seq: int) -> bool:
    """Whether a record says what is stored of it, however its JSON is written."""
    if type(record) is ImportedMessage:
        stored = batch.text_of(agent_id, seq)
        return (
            stored is None or stored == write(record.content)[0] or bool(json.loads(stored) == record.content)
        )
    text = record.text  # type: ignore[union-attr]
    batch.write()
    # If there was nothing that it could represent, it is the next message.
    return (
        rows.has_observation(batch.cursor, agent_id, text or "(empty)")
        or batch.text_of(agent_id, seq + 1) == write(text)[0]
    )


def may_repeat(record: Any, agent: AgentImport) -> bool:
    """Whether a new record is worth asking `was_said` of.

    A log that is resumed by another version may begin with what was said last, under new ids and with the
    times that it had.
    """
    at, last = record.at, agent.last_at
    return (
        at is not None
        and last is not None
        and (agent.repeating or at < last - BACK_SECONDS)
        and type(record) is ImportedMessage
    )


def was_said(batch: Batch, record: ImportedMessage, agent: AgentImport) -> int | None:
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


def said_then(batch: Batch, record: ImportedMessage, agent: AgentImport) -> int | None:
    """The `seq` of a message of that very time that has the same blocks, whatever their texts."""
    if record.at is None:
        return None
    for seq in _said_at(batch, agent, record.at):
        stored = batch.text_of(agent.id, seq)
        if stored is not None and looks_alike(record.content, stored):
            return seq
    return None


def was_compacted_then(batch: Batch, record: Any, agent: AgentImport) -> int | None:
    """Where a stored compaction of that very time ended, or the summary of one; None for any other record."""
    if record.at is None or type(record) not in (ImportedCompaction, Summary):
        return None
    return rows.compacted_through(batch.cursor, agent.id, record.at, record.at - BACK_SECONDS)


def _said_at(batch: Batch, agent: AgentImport, at: float) -> Sequence[int]:
    """The `seq` of each message of an agent at that time."""
    if agent.said_at is None:
        agent.said_at = {}
        waiting = ((row[1], row[6]) for row in batch.into["messages"] if row[0] == agent.id)
        for seq, then in chain(rows.message_times(batch.cursor, agent.id, 1), waiting):
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


# --- Compactions of imported sessions, as views and observations like those of our own --------------------
#
# What a program put in the place of what it dropped becomes an observation that covers everything before; a new
# view begins after it. A pass that only emptied tool results gives a view in which those messages are elided.
# What a person took back is elided as well, with no tokens left.


def compact(session: SessionImporter, agent: AgentImport, record: ImportedCompaction, at: float) -> None:
    """Something left an agent's context."""
    session.touch(agent, at)
    if record.told_later:
        session.batch.write()
        set_compaction_trigger(session.cursor, agent.id, record.trigger)
    elif record.elided is not None:
        _elide(session, agent, record, at)
    else:
        _drop(session, agent, record, at)


def _drop(session: SessionImporter, agent: AgentImport, record: ImportedCompaction, at: float) -> None:
    row = agent.row
    first, last = agent.verbatim_from, _last_dropped(session, agent, record)
    compaction_id = _compaction_id(session, agent, record)
    before_tokens = agent.view_tokens + agent.observation_tokens
    replaces, version = agent.observations, row["view_version"]
    covered = (1, last) if last else (0, 0)
    observations: list[int] = []
    if last:
        agent.last_observation += 1
        observations = [agent.last_observation]
        session.into["observations"].append(
            (agent.id, agent.last_observation, 1 if replaces else 0, "", 0, *covered, encode(sorted({min(first, last), last})),
             encode(replaces), compaction_id, at)
        )  # fmt: skip
        agent.summary = agent.last_observation
    agent.awaits_summary = True
    removed = max(0, last - first + 1) - sum(seq <= last for seq in agent.taken_back)
    agent.elided = [each for each in agent.elided if not each[4] and each[0] > last]
    agent.observations, agent.observation_tokens, agent.taken_back_tokens = observations, 0, 0
    agent.verbatim_from = last + 1
    agent.dropped_tokens = (
        row["message_tokens"]
        if last == row["last_seq"]
        else rows.total_tokens(session.cursor, agent.id, last)
    )
    _view(session, agent, compaction_id, "summary", at)
    _write(
        session,
        agent,
        record,
        compaction_id,
        at,
        last,
        removed,
        record.tokens_before or before_tokens,
        version,
    )


def _last_dropped(session: SessionImporter, agent: AgentImport, record: ImportedCompaction) -> int:
    """The `seq` of the last message that left the context."""
    newest = int(agent.row["last_seq"])
    # A list of messages may be in any order, and name some that are not here: the first that is found, and the last.
    places = []
    for each in record.keep_from:
        if (place := _place_of(session, agent, each, agent.verbatim_from)) is not None:
            places.append(place)
            break
    if places and (last := _place_of(session, agent, record.keep_from[-1], agent.verbatim_from)) is not None:
        places.append(last)
    return max(agent.verbatim_from - 1, min(places) - 1) if places else newest


def _place_of(session: SessionImporter, agent: AgentImport, uid: str, begin: int) -> int | None:
    """The `seq` of a message from one on by its uid; the time is part of a record's number, so each is
    tried."""
    session.batch.write()
    kinds = (f"{session.program}/Message", f"{session.program}/Message/{session.key}")
    for kind in kinds:  # one that has no time in its log
        found = session.batch.record(record_digest(None, kind, uid))
        if found is not None and found[0] == agent.id and found[1] >= begin:
            return found[1]
    for seq, at in rows.message_times(session.cursor, agent.id, begin):
        for kind in kinds:
            found = session.batch.record(record_digest(at, kind, uid))
            if found is not None and found[:2] == (agent.id, seq):
                return seq
    return None


def _elide(session: SessionImporter, agent: AgentImport, record: ImportedCompaction, at: float) -> None:
    session.batch.write()
    known = {each[0] for each in agent.elided}
    agent.elided += (
        [seq, 0, 0, f"message://{agent.id}/{seq}", 10]
        for seq in rows.result_places(session.cursor, agent.id, record.elided or ())
        if seq >= agent.verbatim_from and seq not in known
    )
    compaction_id, version = _compaction_id(session, agent, record), agent.row["view_version"]
    _view(session, agent, compaction_id, "elision", at)
    _write(session, agent, record, compaction_id, at, agent.row["last_seq"], 0, record.tokens_before, version)


def go_back(session: SessionImporter, agent: AgentImport, record: Rewind, at: float) -> None:
    """The last messages were undone or redone: a view without it or with it, and no compaction."""
    session.touch(agent, at)
    session.batch.write()
    if record.undoes:
        _stand_again(session, agent, at)
        return
    newest = int(agent.row["last_seq"])
    first = max(1, newest - record.messages + 1)
    if record.first is not None:
        place = _place_of(session, agent, record.first, 1)
        if place is None:
            return
        first = place
    if first < agent.verbatim_from:
        _uncompact(session, agent, first)
    gone = [seq for seq in range(first, newest + 1) if seq not in agent.taken_back]
    if not gone:
        return
    agent.taken_back_tokens += rows.tokens_of(session.cursor, agent.id, gone)
    shown = [each for each in agent.elided if each[0] < first or not each[4]]
    agent.elided = sorted([*shown, *([seq, 0, 0, f"message://{agent.id}/{seq}", 0] for seq in gone)])
    _view(session, agent, None, "rewind", at)
    session.event(
        "context.rewound",
        agent,
        at,
        messages=len(gone),
        first_seq=gone[0],
        reason=f"{len(gone)} messages undone",
    )


def _uncompact(session: SessionImporter, agent: AgentImport, first: int) -> None:
    """What was undone began before a compaction, which is undone with it: the view from before that
    one."""
    for version in range(agent.row["view_version"], 0, -1):
        view = _view_at(session, agent, version)
        if view.verbatim_from <= first:
            _show(session, agent, view)
            return


def _stand_again(session: SessionImporter, agent: AgentImport, at: float) -> None:
    """What was undone last is redone: the view from before, besides results that were emptied
    since."""
    if not agent.taken_back:
        return
    now = _view_at(session, agent, agent.row["view_version"])
    for version in range(agent.row["view_version"] - 1, 0, -1):
        before = _view_at(session, agent, version)
        back = now.taken_back - before.taken_back
        if back:
            break
        now = before
    else:
        return
    since = [each for each in agent.elided if each[4] and each not in now.elided]
    _show(session, agent, before._replace(elided=sorted([*before.elided, *since])))
    _view(session, agent, None, "restored", at)
    session.event(
        "context.restored",
        agent,
        at,
        messages=len(back),
        first_seq=min(back),
        reason=f"{len(back)} messages restored",
    )


class _View(NamedTuple):
    """What a view held."""

    observations: list[int]
    verbatim_from: int
    elided: list[Any]
    observation_tokens: int

    @property
    def taken_back(self) -> set[int]:
        return {each[0] for each in self.elided if not each[4]}


def _view_at(session: SessionImporter, agent: AgentImport, version: int) -> _View:
    """One of an agent's views."""
    observations, verbatim_from, elided, tokens = rows.current_view(session.cursor, agent.id, version)
    return _View(observations, verbatim_from or 1, elided, tokens)


def _show(session: SessionImporter, agent: AgentImport, view: _View) -> None:
    """Make a view the agent's own."""
    agent.observations, agent.verbatim_from, agent.elided, agent.observation_tokens = view
    agent.dropped_tokens = rows.total_tokens(session.cursor, agent.id, view.verbatim_from - 1)
    agent.taken_back_tokens = rows.tokens_of(session.cursor, agent.id, sorted(view.taken_back))


def _compaction_id(session: SessionImporter, agent: AgentImport, record: ImportedCompaction) -> int:
    session.ids["compactions"] += 1
    compaction_id = session.ids["compactions"]
    agent.compaction = compaction_id if record.tokens_after is None else None
    agent.row["compactions"] += 1
    return compaction_id


def _view(
    session: SessionImporter, agent: AgentImport, compaction_id: int | None, reason: str, at: float
) -> None:
    version = agent.row["view_version"] + 1
    tokens = agent.view_tokens + agent.observation_tokens
    session.into["views"].append(
        (agent.id, version, version - 1, encode(agent.observations), agent.verbatim_from, encode(agent.elided), reason, tokens,
         compaction_id, at)
    )  # fmt: skip
    agent.row["view_version"] = version


def _write(
    session: SessionImporter, agent: AgentImport, record: ImportedCompaction, compaction_id: int, at: float, high_water: int, removed: int,
    tokens_before: int | None, version: int,
) -> None:  # fmt: skip
    if record.window is not None and agent.row["context_limit"] > record.window and not agent.window_reported:
        agent.row["context_limit"], agent.window_reported = record.window, True
    reason = f"{len(record.elided)} tool results cleared" if record.elided is not None else None
    if record.unlogged:
        reason = rows.UNLOGGED
    if reason is None and record.tokens_before is None:
        reason = "the size before compaction is an estimate"
    session.into["compactions"].append(
        (compaction_id, session.id, agent.id, record.trigger, record.instructions, reason, high_water, removed, tokens_before,
         record.tokens_after, version, version + 1, record.model, record.seconds, at - (record.seconds or 0.0), at)
    )  # fmt: skip
    session.event(
        "compaction.applied", agent, at, compaction=compaction_id, trigger=record.trigger, tokens_before=tokens_before,
        tokens_after=record.tokens_after, messages_removed=removed, high_water=high_water,
    )  # fmt: skip


def summarise(session: SessionImporter, agent: AgentImport, record: Summary, at: float) -> None:
    """The text that replaces what the last compaction dropped. Without one (its line was lost), everything
    before is."""
    session.touch(agent, at)
    if agent.summary is None and agent.awaits_summary:
        # There was nothing to drop, so the summary represents nothing.
        agent.awaits_summary = False
        session.say(agent, "user", record.text, at)
        return
    if agent.summary is None:
        compact(session, agent, ImportedCompaction(record.agent, record.uid, "unknown", record.at), at)
    if agent.summary is None:
        agent.awaits_summary = False
        session.say(agent, "user", record.text, at)
        return
    tokens = text_tokens(record.text)
    agent.observation_tokens = tokens
    session.into["summaries"].append((record.text or "(empty)", tokens, agent.id, agent.summary))
    agent.summary, agent.awaits_summary = None, False


# --- One imported session within one transaction: records in, rows out ------------------------------------
#
# The fold is made again for each transaction from what is stored, so that nothing that was rolled back can
# linger, and two importers can take turns.

_REPEATED = Skipped("repeats a stored record")


class Seen(Enum):
    """What is known of a line by the record that names it."""

    NEW = 1
    ANOTHERS = 2
    """Another session of the program has it as well."""
    REPEATED = 3
    REVISED = 4
    """It is here already, and says something else now."""


_COMPARED = frozenset({ImportedMessage, Summary})
"""Records of which is stored what they say."""
_PREVIEW_CHARS = 160
_OF_SESSION = "\0"
"""In place of an agent's key: what is reported of the session."""
_DAY_SECONDS = 86_400.0
_PAUSE_SECONDS = 300.0
"""A longer time without a record is no work."""


DRIVEN = "of a session that belongs to a run here"
"""Why nothing of such a session is stored: what it says and costs is in that run."""


class SessionImporter:
    """One session of one program, by the program's own id of it."""

    def __init__(self, batch: Batch, program: str, key: str) -> None:
        self.program = program
        self.key = key
        self.into = batch.into
        self.ids = batch.ids
        self.batch = batch
        self.cursor = batch.cursor
        self._live = batch.live
        self._now = batch.now
        self._latest = batch.now + AHEAD_SECONDS
        self.written_at = 0.0
        """When its log was last written to, where that is known."""
        self._rereads = False
        """A log is read from its beginning, and something of the session was here before."""
        self._counted: int | None = None
        """The number for the usage that was stored with the line that is read, where it is here already."""
        self._agents: dict[str, AgentImport] = {}
        self._plans: dict[str, PlanImport] = {}
        self.id = stable_id(program, key)
        self.row, self.left_out = self._load(program, key, batch.user_id)
        """`left_out`: why nothing of it is stored; empty for others."""
        self._settings: dict[str, Any] = decode(self.row["settings"])
        self._imported: dict[str, Any] = self._settings.get("imported", {})
        self._spawns: dict[str, Any] = {"agents": {}, "failed": {}} | self._imported.get("spawns", {})
        """Calls that started agents, until their ends are reported: the agent of each, and failures whose agent is not
        known."""
        self.changed = False
        self._at: float | None = self.row["last_active"] or None
        self._newest: dict[str, float] = {}
        """Each agent's newest time so far in the log that is read."""
        self._first: float | None = None
        """The time with which that log begins, or where it goes on, the session."""
        self._behind = False
        """The record that is read has a time from before its predecessors'."""
        self._untimed: list[list[Any]] = []
        """Rows of this transaction's messages from before any record had a time."""
        self._goes_on = False

    def _load(self, program: str, key: str, user_id: str) -> tuple[dict[str, Any], str]:
        source = f"{program}:{key}"
        for attempt in range(8):
            found = rows.load_session(self.cursor, self.id)
            if found is None:
                break
            deleted = "of a deleted session" if found.pop("deleted_at") is not None else ""
            if found["source"] == source:
                return found, deleted
            self.id = stable_id(program, key, str(attempt))  # forty bits: another session may have this id
        settings = encode({"imported": {"program": program, "message_tokens": "estimated"}})
        return dict.fromkeys(rows.SESSION, 0) | {
            "id": self.id, "user_id": user_id, "goal": "", "title": None, "workspace": "", "model": "", "settings": settings,
            "origin": program, "source": source, "status": "done", "created_at": 0.0, "last_active": 0.0, "ended_at": None,
            "hosted_seconds": 0.0, "current_plan_id": None, "planner_agent_id": self._agent_id(MAIN),
            "forked_from": None, "forked_at_seq": None,
        }, DRIVEN if rows.is_driven(self.cursor, key) else ""  # fmt: skip

    # Records.

    def begin(self, written_at: float, rereads: dict[str, bool] | None, *, goes_on: bool) -> None:
        """The next records come from a log that was last written to at that time.

        Args:
            rereads: see `Chunk`.
            goes_on: what comes before them in that log was read already.
        """
        self.written_at = written_at
        self._rereads = rereads is not None and rereads.setdefault(self.id, bool(self.row["last_active"]))
        self._newest, self._first = {}, None
        if goes_on:
            self._first = self.row["created_at"] or None
            self._newest = {
                key: agent.row["last_active"] for key, agent in self._agents.items() if agent.row["last_seq"]
            }
        self._goes_on = goes_on

    def take(self, group: list[Record], data: bytes, anchor: Anchor) -> Raw | Skipped | None:
        """One line's records, with their anchor (see `Batch.look_up`); what became of the line where it was
        not read."""
        self.changed = True
        seen = Seen.NEW
        outcome: Raw | Skipped | None = None
        if anchor[0]:
            seen = self._known(anchor, data, group)
            if seen is Seen.REPEATED:
                outcome = _REPEATED
        for record in group:
            kind = type(record)
            if kind is ImportedMessage:
                if seen is Seen.NEW or seen is Seen.ANOTHERS:
                    self._message(record)  # type: ignore[arg-type]
            elif kind is ModelCall:
                key = record[0]
                counts = seen is Seen.NEW or (bool(record[1]) if self._counted is None else not self._counted)  # type: ignore
                take_call(
                    self.batch, self.id, self._agents.get(key) or self.agent(key), record,  # type: ignore[arg-type]
                    counts=counts, revises=seen is Seen.REVISED,
                )  # fmt: skip
            elif (handler := _HANDLERS.get(kind)) is not None:
                if seen is Seen.NEW or (seen is Seen.ANOTHERS and kind in _KEPT_IN_REPLAYS):
                    handler(self, record)
            elif kind is Raw or kind is Skipped:
                outcome = record  # type: ignore[assignment]
            elif kind is Session:
                self._session(record)  # type: ignore[arg-type]
            elif seen is Seen.NEW or seen is Seen.ANOTHERS:
                self._agent(record)  # type: ignore[arg-type]
            elif self._is_known(record.key):  # type: ignore[union-attr]
                # What became of it was reported with the lines that came after; an edit may have taken what names
                # it.
                self._agent(record._replace(goal=None, status=None, reported=None))  # type: ignore
        return outcome

    def _is_known(self, key: str) -> bool:
        """Whether there is an agent of that key."""
        return key in self._agents or rows.load_agent(self.cursor, self._agent_id(key)) is not None

    def _known(self, anchor: Anchor, data: bytes, group: list[Record]) -> Seen:
        """What is known of a line; one that is new is remembered."""
        digest, record, usage_number = anchor
        if self._at is None and record.at is not None:
            self.time(record.at, record.agent)  # the agent was made by then
        agent = self._agents.get(record.agent) or self.agent(record.agent)
        seq = agent.row["last_seq"] + (1 if type(record) is ImportedMessage else 0)
        found = self.batch.records[digest]
        if found is None and (self._rereads or (type(record) is ImportedMessage and record.alias)):
            found = self._known_otherwise(record, agent)
            if found is not None:
                self.batch.remember(digest, *found)
        if found is None:
            said = was_said(self.batch, record, agent) if may_repeat(record, agent) else None
            self.batch.remember(digest, agent.id, said or seq, usage_number)
            if type(record) is ImportedMessage and record.alias:
                self.batch.remember(self._alias_digest(record), agent.id, said or seq, usage_number)
            self._counted = 0
            return Seen.NEW if said is None else Seen.REPEATED
        self._counted = found[2]
        if self._is_mine(found[0]):
            return self._seen_again(record, agent, found, usage_number, group)
        kind = f"{self.program}/{STORED_KINDS[type(record)]}/{self.key}"
        mine = record_digest(record.at, kind, record.uid or line_id(self.key, data))
        copy = self.batch.record(mine)
        if copy is not None:
            return self._seen_again(record, agent, copy, usage_number, group)
        self.batch.remember(mine, agent.id, seq, usage_number)
        owner = self.batch.owner(found[0])
        if owner is not None and self.row["forked_from"] is None:
            self.row["forked_from"] = owner
        if owner == self.row["forked_from"] and agent.key == MAIN and type(record) is ImportedMessage:
            self.row["forked_at_seq"] = max(self.row["forked_at_seq"] or 0, found[1])
        return Seen.ANOTHERS

    def _is_mine(self, agent_id: str) -> bool:
        return self.batch.owner(agent_id) == self.id

    def _alias_digest(self, record: ImportedMessage) -> int:
        return record_digest(record.at, f"{self.program}/Message", record.alias)

    def _known_otherwise(self, record: Any, agent: AgentImport) -> rows.Place | None:
        """What a record became under another id."""
        is_message = type(record) is ImportedMessage
        if (
            is_message
            and record.alias
            and (found := self.batch.record(self._alias_digest(record))) is not None
        ):
            return found
        if not self._rereads or not is_made_up(record.uid):
            return None
        seq = (
            said_then(self.batch, record, agent)
            if is_message
            else was_compacted_then(self.batch, record, agent)
        )
        return (agent.id, seq, None) if seq is not None else None

    def _seen_again(
        self, record: Any, agent: AgentImport, found: rows.Place, usage_number: int, group: list[Record]
    ) -> Seen:
        """Whether a record that this session has says what it said before. What it says now is stored where
        it does not."""
        agent_id, seq, before = found
        if type(record) not in _COMPARED:
            return Seen.REPEATED
        if agent_id != agent.id:
            return self._of_another_agent(record, agent, found, usage_number, group)
        if says_the_same(self.batch, record, agent_id, seq) and (
            not usage_number or before is None or usage_number == before
        ):
            return Seen.REPEATED
        return self._revise(record, found, group)

    def _of_another_agent(
        self, record: Any, agent: AgentImport, found: rows.Place, usage_number: int, group: list[Record]
    ) -> Seen:
        """What is known of a record of an agent, where another one of the session has that id."""
        stored = self.batch.text_of(found[0], found[1]) if type(record) is ImportedMessage else None
        if stored is None or is_copy(record.content, stored):
            return Seen.REPEATED  # an agent was given of another one's context, in part
        own = record_digest(record.at, f"{self.program}/Message/{self.key}/{agent.key}", record.uid)
        known = self.batch.record(own)
        if known is not None:
            return (
                self._seen_again(record, agent, known, usage_number, group)
                if known[0] == agent.id
                else Seen.REPEATED
            )
        self.batch.remember(own, agent.id, agent.row["last_seq"] + 1, usage_number)
        self._counted = 0
        return Seen.NEW

    def _revise(self, record: Any, found: rows.Place, group: list[Record]) -> Seen:
        """Store what a record says now, where nothing stored says it."""
        agent_id, seq, _ = found
        source, name = self.row["source"], record.uid or f"{agent_id}/{seq}"
        content: Any = record.content if type(record) is ImportedMessage else record.text
        usage = next(
            (dict(zip(rows.USAGE, each[3:7], strict=True)) for each in group if type(each) is ModelCall), None
        )
        now = {"content": content} | ({"usage": usage} if usage is not None else {})
        digest = blake2b(same_bytes(now), digest_size=16).hexdigest()
        known = self.batch.revisions_of(source, name)
        if digest in known:
            return Seen.REPEATED
        known.append(digest)
        self.into["record_revisions"].append(
            (self.id, source, name, len(known) + 1, agent_id, seq, digest, write(now)[0], self._now)
        )
        self.batch.revised += 1
        return Seen.REVISED

    def valid(self, at: float | None) -> float | None:
        """A logged time, or None where it is from the future."""
        return at if at is not None and at <= self._latest else None

    def time(self, at: float | None, key: str) -> float:
        """The time of a record of that agent. Records come in their order: one from before its predecessors
        in its log begins nothing, and the time of one from long before them is no time."""
        before = self._at
        self._behind = False
        if at is None or at > self._latest:
            if before is None:
                self._behind = True  # nothing is known of when anything was said
                return self._some_time()
            at = before
        newest = self._newest.get(key)
        latest = newest if newest is not None else self._first
        if latest is not None and at < latest:
            self._behind = True
            return at if at >= latest - _DAY_SECONDS else latest
        if self._first is None:
            self._first = at
        self._newest[key] = at
        row, before = self.row, self._at
        later = at - row["last_active"]
        if later > 0:
            if later <= _PAUSE_SECONDS and before is not None:
                row["hosted_seconds"] += later
            row["last_active"] = at
        created = row["created_at"]
        if at < created or not created:
            row["created_at"] = at
        if before is None:
            self._date_untimed(at)
        self._at = at
        return at

    def _date_untimed(self, at: float) -> None:
        """What was said before any record had a time was said by then."""
        for message in self._untimed:
            message[-1] = at
        self._untimed.clear()

    def touch(self, agent: AgentImport, at: float) -> None:
        """An agent did something at that time (see `time`)."""
        if self._behind:
            agent.changed = True
        else:
            agent.touch(at)

    def _some_time(self) -> float:
        """When something was said whose time is unknown."""
        return min(self._now, self.written_at) if self.written_at else self._now

    def _session(self, record: Session) -> None:
        row = self.row
        if record.at is not None:
            self.time(record.at, MAIN)
        if record.workspace and not row["workspace"]:
            row["workspace"] = record.workspace
        if record.title:
            row["title"] = record.title
        if record.forked_from and row["forked_from"] is None:
            row["forked_from"] = stable_id(self.program, record.forked_from)

    # Agents.

    def _agent_id(self, key: str) -> str:
        return stable_id(self.id, "agent", key, length=AGENT_LENGTH)

    def agent(self, key: str, reported: ImportedAgent | None = None) -> AgentImport:
        """The agent of that key, made where there is none yet, with what was reported of it."""
        found = self._agents.get(key)
        if found is None:
            agent_id = self._agent_id(key)
            row = rows.load_agent(self.cursor, agent_id)
            known = next((agent for agent in self._agents.values() if agent.id == agent_id), None)
            if known is not None:
                found = known
            elif row is not None:
                found = AgentImport.load(self.cursor, key, row)
                if self._goes_on and row["last_seq"]:
                    self._newest.setdefault(key, row["last_active"])
            else:
                at = self._at if self._at is not None else self._some_time()
                found = AgentImport.new(agent_id, self.id, key, at)
                found.is_untimed = self._at is None
                found.row["parent_agent_id"] = None if key == MAIN else self._agent_id(MAIN)
                found.row["status"] = "working" if self._live or key != MAIN else "done"
                self.batch.owners[agent_id] = self.id
                if reported is not None:
                    found.row["name"] = (reported.name or reported.unit or key)[:GOAL_CHARS]
                    found.row["role"] = reported.unit or _role(reported.role) or found.row["role"]
                self.into["views"].append((agent_id, 1, None, "[]", 1, "[]", "start", 0, None, at))
                self.event("agent.created", found, at, name=found.row["name"], role=found.row["role"])
            self._agents[key] = found
            if key != MAIN and self._agent_id(MAIN) == self.row["planner_agent_id"]:
                self.agent(MAIN)
        return found

    def _agent(self, record: ImportedAgent) -> None:
        agent = self.agent(record.key, record)
        row = agent.row
        agent.changed = True
        if (
            record.parent is not None
            and record.parent != record.key
            and not self._is_below(record.parent, record.key)
        ):
            parent = self.agent(record.parent)
            # What names the run alone says no more than what named its phase.
            if parent.row["role"] != UNIT_ROLES[0] or not self._is_below(record.key, record.parent):
                row["parent_agent_id"] = parent.id
        for column, value in (
            ("name", record.name),
            ("role", record.unit or _role(record.role)),
            ("current_goal", record.goal),
            ("model", record.model),
        ):
            if value and not (column == "name" and row["name"].startswith(f"{value}: ")):  # that says more
                row[column] = value[:GOAL_CHARS]
        if record.context_limit:
            row["context_limit"], agent.window_reported = record.context_limit, True
        at = self.valid(record.at)
        if at is not None and not row["last_seq"]:
            at = self.time(at, record.key)
            if not self._behind:
                row["created_at"] = min(row["created_at"], at)
                row["last_active"] = max(row["last_active"], at)
        if record.status is not None and (record.ended or not agent.is_over(at)):
            agent.ended_at = (math.inf if at is None else at) if record.ended else None
            if record.status != row["status"]:
                self.event(f"agent.{record.status}", agent, self.time(at, _OF_SESSION), reason=record.reason)
            row["status"], row["status_reason"], row["parked_until"] = record.status, record.reason, None
        if record.reported is not None:
            agent.add_reported_totals(record.reported)
        if record.call_id is not None:
            self._joined(record, agent)

    def _joined(self, record: ImportedAgent, agent: AgentImport) -> None:
        """An agent's call is known: its failure may have been reported without the agent's name."""
        failure = self._spawns["failed"].pop(record.call_id, None)
        if failure is not None and not record.ended:
            self._agent(
                ImportedAgent(agent.key, at=failure[2], status=failure[0], reason=failure[1], ended=True)
            )
        elif record.ended:
            self._spawns["agents"].pop(record.call_id, None)
        else:
            self._spawns["agents"][record.call_id or ""] = agent.key

    def _spawn_failed(self, record: SpawnFailure) -> None:
        key = self._spawns["agents"].pop(record.call_id, None)
        if key is not None:
            self._agent(
                ImportedAgent(key, at=record.at, status=record.status, reason=record.reason, ended=True)
            )
        else:
            failed = self._spawns["failed"]
            failed[record.call_id] = (record.status, record.reason, record.at)
            while len(failed) > SPAWNS_KEPT:
                del failed[next(iter(failed))]

    def _is_below(self, key: str, ancestor: str) -> bool:
        """Whether `ancestor` is above `key`: then it cannot be below it as well."""
        wanted, current = self._agent_id(ancestor), self.agent(key).row
        for _ in range(1_000):
            parent = current["parent_agent_id"]
            if parent is None:
                return False
            if parent == wanted:
                return True
            known = next((agent.row for agent in self._agents.values() if agent.id == parent), None)
            above = known or rows.load_agent(self.cursor, parent)
            if above is None:
                return False
            current = above
        return True

    # What an agent said and did.

    def _message(self, record: ImportedMessage) -> None:
        key, _, role, content, told_at, call_key, injected, _ = record
        at = self.time(told_at, key)
        agent = self._agents.get(key) or self.agent(key)
        row = agent.row
        self.touch(agent, at)
        self.say(agent, role, content, at)
        if (
            (self._live or agent.key != MAIN)
            and row["status"] != "parked"
            and (role == "user" or call_key != agent.call_key)
            and not agent.is_over(at)
        ):
            row["status"], row["status_reason"], agent.ended_at = "working", None, None
        if role == "assistant":
            agent.take_call(call_key)
        elif not injected and (not row["current_goal"] or (agent.key == MAIN and not self.row["goal"])):
            said = goal_of(content)
            if said:
                row["current_goal"] = row["current_goal"] or said
                if row["name"] in (agent.key, _nameless(row)):  # its task names it better
                    row["name"] = one_line(said, NAME_CHARS)
                if agent.key == MAIN and not self.row["goal"]:
                    self.row["goal"] = said

    def say(self, agent: AgentImport, role: str, content: Any, at: float) -> None:
        """Add a message to an agent's history."""
        row = agent.row
        data = write_bytes(content)
        tokens = message_tokens(content, len(data))
        row["last_seq"] = seq = row["last_seq"] + 1
        row["message_tokens"] = total = row["message_tokens"] + tokens
        text = data.decode() if data.isascii() else bytearray(data)
        message = [agent.id, seq, role, text, tokens, total, at]
        self.into["messages"].append(message)
        if self._at is None:
            self._untimed.append(message)
        self.batch.indexed.append((self.id, indexed_text(content)))

    def _tool_call(self, record: ToolCall) -> None:
        key, tool_use_id, name, told_at = record
        at = self.valid(told_at)
        agent = self._agents.get(key) or self.agent(key)
        row = agent.row
        if self._rereads and id_of(tool_use_id) is not None and agent.has_call(self.cursor, tool_use_id):
            return  # its message has another id now
        call_id = self.ids["tool_calls"] = self.ids["tool_calls"] + 1
        began = row["last_active"] if at is None else at
        call = [
            call_id, self.id, agent.id, row["turn"], agent.position, row["last_seq"], tool_use_id, name,
            "running" if self._live else "unknown", None, 0, began, None,
        ]  # fmt: skip
        agent.position += 1
        agent.changed = True
        agent.open_calls[tool_use_id] = call_id, name, began, call
        self.into["tool_calls"].append(call)

    def _tool_result(self, record: ToolResult) -> None:
        """A call has its result, in the agent's newest message."""
        key, tool_use_id, status, told_at, preview = record
        agent = self._agents.get(key) or self.agent(key)
        at = told_at if self.valid(told_at) is not None and told_at is not None else agent.row["last_active"]
        failed = int(status == "error" or status == "denied")
        call = agent.open_calls.pop(tool_use_id, None)
        if call is None:
            return  # the call was lost, or another agent's; the result is in its message
        call_id, name, began, pending = call
        seq = agent.row["last_seq"]
        if call_id > self.batch.stored_tool_calls:
            pending[8:11] = status, seq, failed
            pending[12] = at
        else:
            self.into["tool_results"].append((status, seq, failed, at, call_id))
        took = round(at - began, 3) if at > began else 0.0
        self.event(
            f"tool.{status}",
            agent,
            at,
            tool=name,
            call=call_id,
            seconds=took,
            preview=preview[:_PREVIEW_CHARS],
        )

    def _plan(self, record: Plan) -> None:
        owner = self.agent(record.plan)
        plan = self._plans.get(owner.id)
        if plan is None:
            plan = self._plans[owner.id] = PlanImport(self.cursor, owner.id, live=self._live)
        at = self.time(record.at, record.agent)
        moved = plan.take(record, at, self.id, self.row["goal"][:200], self.into)
        if plan.known and (self.row["current_plan_id"] is None or record.plan == MAIN):
            self.row["current_plan_id"] = plan.id
        if moved is None:
            return
        agent = self.agent(record.agent)
        self.event(
            "plan.revised",
            agent,
            at,
            plan=plan.id,
            revision=plan.revision,
            reason=record.reason,
            tasks=len(record.items),
        )
        for task in moved:
            self.event(f"task.{task.status}", agent, at, task_id=task.id, title=task.title[:200])

    def _failure(self, record: Failure) -> None:
        at = self.time(record.at, record.agent)
        agent = self.agent(record.agent)
        self.touch(agent, at)
        column = _COUNTED_AS[record.kind]
        if column is not None:
            agent.row[column] += 1
            self.row[column] += 1
        name = {
            "retry": "model.retrying",
            "interrupted": "agent.interrupted",
            "refused": "model.refused",
            "rerouted": "model.rerouted",
            "error": "model.error",
        }[record.kind]
        self.event(name, agent, at, error=cut(record.text, 500))
        limit = usage_limit(record.text, at) if record.kind == "error" else None
        if limit is not None and not agent.is_over(at):
            row = agent.row
            row["status"], row["status_reason"] = "parked", cut(record.text, 500)
            row["parked_until"] = limit.ends_at if limit.ends_at is not None else record.until

    def _quota(self, record: QuotaReport) -> None:
        self.batch.quota += record.readings

    def _compaction(self, record: ImportedCompaction) -> None:
        compact(self, self.agent(record.agent), record, self.time(record.at, record.agent))

    def _summary(self, record: Summary) -> None:
        summarise(self, self.agent(record.agent), record, self.time(record.at, record.agent))

    def _rewind(self, record: Rewind) -> None:
        go_back(self, self.agent(record.agent), record, self.time(record.at, record.agent))

    def event(
        self, kind: str, agent: AgentImport, at: float, *, task_id: str | None = None, **data: Any
    ) -> None:
        """One event of the session's log."""
        seq = self.row["event_seq"] = self.row["event_seq"] + 1
        self.into["events"].append(
            (self.id, seq, at, kind, agent.id, task_id or "", write_bytes(data).decode())
        )

    # Writing.

    def _each_agent(self) -> Iterable[AgentImport]:
        """Once each: two keys may be found to name one agent."""
        return {agent.id: agent for agent in self._agents.values()}.values()

    def finish(self) -> tuple[tuple[Any, ...], list[tuple[Any, ...]]]:
        """The rows of the session and of its changed agents."""
        spawns = {name: found for name, found in self._spawns.items() if found}
        if spawns != self._imported.get("spawns", {}):
            imported = {name: value for name, value in self._imported.items() if name != "spawns"}
            imported |= {"spawns": spawns} if spawns else {}
            self.row["settings"] = encode(self._settings | {"imported": imported})
        main = self._agents.get(MAIN)
        if main is not None:
            self.row["model"] = main.row["model"] or self.row["model"]
            main.row["name"] = "main"
        for agent in self._agents.values():
            if agent.row["name"] == agent.key and agent.key != MAIN:
                goal = one_line(agent.row["current_goal"], NAME_CHARS)
                agent.row["name"] = goal or _nameless(agent.row)
        if not self.row["last_active"]:
            self.row["created_at"] = self.row["last_active"] = self._some_time()
        self.row["ended_at"] = None if self.row["status"] == "running" else self.row["last_active"]
        finished = [agent.finished(live=self._live) for agent in self._each_agent() if agent.changed]
        changed = [tuple(row[name] for name in rows.AGENT) for row in finished]
        return tuple(self.row[name] for name in rows.SESSION), changed


def _role(told: str | None) -> str | None:
    """The role that a log reports; one that means something else here is marked as an agent's."""
    return f"{told} agent" if told in UNIT_ROLES else told


def _nameless(row: dict[str, Any]) -> str:
    """What an agent is called whose log gives no name: its role rather than an id."""
    return str(row["role"]) if row["role"] not in ("", "agent") else "sub-agent"


_COUNTED_AS = {
    "error": "errors", "refused": "errors", "retry": "retries", "interrupted": None, "rerouted": None,
}  # fmt: skip
"""Kind of a `Failure` → the column of agents and sessions that counts it."""


_HANDLERS: dict[type, Callable[[SessionImporter, Any], None]] = {
    ToolCall: SessionImporter._tool_call,
    ToolResult: SessionImporter._tool_result,
    Plan: SessionImporter._plan,
    Failure: SessionImporter._failure,
    QuotaReport: SessionImporter._quota,
    SpawnFailure: SessionImporter._spawn_failed,
    ImportedCompaction: SessionImporter._compaction,
    Summary: SessionImporter._summary,
    Rewind: SessionImporter._rewind,
}


_KEPT_IN_REPLAYS = frozenset({ImportedCompaction, Summary, Rewind, Plan})
"""What a session that repeats another one's records needs of them besides the messages."""
