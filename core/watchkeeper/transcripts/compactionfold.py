"""Compactions of imported sessions, as views and observations like those of our own.

What a program put in the place of what it dropped becomes an observation that covers everything before; a new
view begins after it. A pass that only emptied tool results gives a view in which those messages are elided.
What a person took back is elided as well, with no tokens left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from watchkeeper.store import transcripts as rows
from watchkeeper.store.compaction_triggers import tell_trigger
from watchkeeper.store.encoding import decode, encode
from watchkeeper.transcripts.agentfold import AgentFold
from watchkeeper.transcripts.estimates import text_tokens
from watchkeeper.transcripts.identity import record_digest
from watchkeeper.transcripts.records import Compaction, Rewind, Summary

if TYPE_CHECKING:
    from watchkeeper.transcripts.sessionfold import SessionFold


def compact(session: SessionFold, cursor: Any, agent: AgentFold, record: Compaction, at: float) -> None:
    """Something left an agent's context."""
    session.touch(agent, at)
    if record.told_later:
        _tell_trigger(session, cursor, agent, record.trigger)
    elif record.elided is not None:
        _elide(session, cursor, agent, record, at)
    else:
        _drop(session, cursor, agent, record, at)


def _tell_trigger(session: SessionFold, cursor: Any, agent: AgentFold, trigger: str) -> None:
    """What began the last compaction, whether it is stored or about to be."""
    pending = session.into["compactions"]
    for place in range(len(pending) - 1, -1, -1):
        if pending[place][2] == agent.id:
            pending[place] = (*pending[place][:3], trigger, *pending[place][4:])
            return
    tell_trigger(cursor, agent.id, trigger)


def _drop(session: SessionFold, cursor: Any, agent: AgentFold, record: Compaction, at: float) -> None:
    row = agent.row
    first, last = agent.verbatim_from, _last_dropped(session, cursor, agent, record)
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
    agent.dropped_tokens = _total_through(session, cursor, agent, last)
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


def _last_dropped(session: SessionFold, cursor: Any, agent: AgentFold, record: Compaction) -> int:
    """The `seq` of the last message that left the context."""
    newest = int(agent.row["last_seq"])
    if record.keep_from is None:
        return newest
    kept = _place_of(session, cursor, agent, record.keep_from, agent.verbatim_from)
    return newest if kept is None else max(agent.verbatim_from - 1, kept - 1)


def _place_of(session: SessionFold, cursor: Any, agent: AgentFold, uid: str, begin: int) -> int | None:
    """The `seq` of a message from one on by its uid; the time is part of a record's number, so each is
    tried."""
    times = rows.message_times(cursor, agent.id, begin)
    times += [(row[1], row[6]) for row in session.into["messages"] if row[0] == agent.id and row[1] >= begin]
    for seq, at in times:
        for kind in (f"{session.program}/Message", f"{session.program}/Message/{session.key}"):
            found = session.batch.record(record_digest(at, kind, uid))
            if found is not None and found[:2] == (agent.id, seq):
                return seq
    return None


def _elide(session: SessionFold, cursor: Any, agent: AgentFold, record: Compaction, at: float) -> None:
    wanted = record.elided or ()
    places = set(rows.result_places(cursor, agent.id, wanted))
    places |= {
        call[9]
        for call in session.into["tool_calls"]
        if call[2] == agent.id and call[6] in wanted and call[9]
    }
    known = {each[0] for each in agent.elided}
    for seq in sorted(places - known):
        if seq >= agent.verbatim_from:
            agent.elided.append([seq, 0, 0, f"message://{agent.id}/{seq}", 10])
    compaction_id, version = _compaction_id(session, agent, record), agent.row["view_version"]
    _view(session, agent, compaction_id, "elision", at)
    _write(session, agent, record, compaction_id, at, agent.row["last_seq"], 0, record.tokens_before, version)


def go_back(session: SessionFold, cursor: Any, agent: AgentFold, record: Rewind, at: float) -> None:
    """What was said last was taken back, or stands again: a view without it or with it, and no compaction."""
    session.touch(agent, at)
    if record.undoes:
        _stand_again(session, cursor, agent, at)
        return
    newest = int(agent.row["last_seq"])
    first = max(1, newest - record.messages + 1)
    if record.first is not None:
        place = _place_of(session, cursor, agent, record.first, 1)
        if place is None:
            return
        first = place
    if first < agent.verbatim_from:
        _uncompact(session, cursor, agent, first)
    gone = [seq for seq in range(first, newest + 1) if seq not in agent.taken_back]
    if not gone:
        return
    agent.taken_back_tokens += _tokens_of(session, cursor, agent, gone)
    shown = [each for each in agent.elided if each[0] < first or not each[4]]
    agent.elided = sorted([*shown, *([seq, 0, 0, f"message://{agent.id}/{seq}", 0] for seq in gone)])
    _view(session, agent, None, "rewind", at)
    session.event(
        "context.rewound",
        agent,
        at,
        messages=len(gone),
        first_seq=gone[0],
        reason=f"{len(gone)} messages taken back",
    )


def _uncompact(session: SessionFold, cursor: Any, agent: AgentFold, first: int) -> None:
    """What was taken back began before a compaction, which is taken back with it: the view from before that
    one."""
    for version in range(agent.row["view_version"], 0, -1):
        view = _view_at(session, cursor, agent, version)
        if view.verbatim_from <= first:
            _show(session, cursor, agent, view)
            return


def _stand_again(session: SessionFold, cursor: Any, agent: AgentFold, at: float) -> None:
    """What was taken back last stands again: the view from before, besides results that were emptied
    since."""
    if not agent.taken_back:
        return
    now = _view_at(session, cursor, agent, agent.row["view_version"])
    for version in range(agent.row["view_version"] - 1, 0, -1):
        before = _view_at(session, cursor, agent, version)
        back = now.taken_back - before.taken_back
        if back:
            break
        now = before
    else:
        return
    since = [each for each in agent.elided if each[4] and each not in now.elided]
    _show(session, cursor, agent, before._replace(elided=sorted([*before.elided, *since])))
    _view(session, agent, None, "restored", at)
    session.event(
        "context.restored",
        agent,
        at,
        messages=len(back),
        first_seq=min(back),
        reason=f"{len(back)} messages back again",
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


def _view_at(session: SessionFold, cursor: Any, agent: AgentFold, version: int) -> _View:
    """One of an agent's views, stored or about to be."""
    for row in reversed(session.into["views"]):
        if row[0] == agent.id and row[1] == version:
            observations = decode(row[3])
            told = {each[3]: each[1] for each in session.into["summaries"] if each[2] == agent.id}
            tokens = sum(told.get(each, 0) for each in observations)
            if not tokens and version > 1:
                earlier = _view_at(session, cursor, agent, version - 1)
                tokens = earlier.observation_tokens if earlier.observations == observations else 0
            return _View(observations, row[4], decode(row[5]), tokens)
    observations, verbatim_from, elided, tokens = rows.current_view(cursor, agent.id, version)
    return _View(observations, verbatim_from or 1, elided, tokens)


def _show(session: SessionFold, cursor: Any, agent: AgentFold, view: _View) -> None:
    """Make a view the agent's own."""
    agent.observations, agent.verbatim_from, agent.elided, agent.observation_tokens = view
    agent.dropped_tokens = _total_through(session, cursor, agent, view.verbatim_from - 1)
    agent.taken_back_tokens = _tokens_of(session, cursor, agent, sorted(view.taken_back))


def _tokens_of(session: SessionFold, cursor: Any, agent: AgentFold, seqs: list[int]) -> int:
    wanted = set(seqs)
    pending = {
        row[1]: int(row[4]) for row in session.into["messages"] if row[0] == agent.id and row[1] in wanted
    }
    stored = [seq for seq in seqs if seq not in pending]
    return sum(pending.values()) + (rows.tokens_of(cursor, agent.id, stored) if stored else 0)


def _compaction_id(session: SessionFold, agent: AgentFold, record: Compaction) -> int:
    session.ids["compactions"] += 1
    compaction_id = session.ids["compactions"]
    agent.compaction = compaction_id if record.tokens_after is None else None
    agent.row["compactions"] += 1
    return compaction_id


def _view(session: SessionFold, agent: AgentFold, compaction_id: int | None, reason: str, at: float) -> None:
    version = agent.row["view_version"] + 1
    tokens = agent.view_tokens + agent.observation_tokens
    session.into["views"].append(
        (agent.id, version, version - 1, encode(agent.observations), agent.verbatim_from, encode(agent.elided), reason, tokens,
         compaction_id, at)
    )  # fmt: skip
    agent.row["view_version"] = version


def _write(
    session: SessionFold, agent: AgentFold, record: Compaction, compaction_id: int, at: float, high_water: int, removed: int,
    tokens_before: int | None, version: int,
) -> None:  # fmt: skip
    reason = f"{len(record.elided)} tool results emptied" if record.elided is not None else None
    if reason is None and record.tokens_before is None:
        reason = "its size before is an estimate"
    session.into["compactions"].append(
        (compaction_id, session.id, agent.id, record.trigger, record.instructions, reason, high_water, removed, tokens_before,
         record.tokens_after, version, version + 1, record.model, record.seconds, at - (record.seconds or 0.0), at)
    )  # fmt: skip
    session.event(
        "compaction.applied", agent, at, compaction=compaction_id, trigger=record.trigger, tokens_before=tokens_before,
        tokens_after=record.tokens_after, messages_removed=removed, high_water=high_water,
    )  # fmt: skip


def _total_through(session: SessionFold, cursor: Any, agent: AgentFold, seq: int) -> int:
    if seq >= agent.row["last_seq"]:
        return int(agent.row["message_tokens"])
    pending = [row[5] for row in session.into["messages"] if row[0] == agent.id and row[1] <= seq]
    return int(pending[-1]) if pending else rows.total_tokens(cursor, agent.id, seq)


def summarise(session: SessionFold, cursor: Any, agent: AgentFold, record: Summary, at: float) -> None:
    """The text that stands for what the last compaction dropped. Without one (its line was lost), everything
    before is."""
    session.touch(agent, at)
    if agent.summary is None and agent.awaits_summary:
        # Nothing was there to be dropped, so that nothing can stand for it.
        agent.awaits_summary = False
        session.say(agent, "user", record.text, at)
        return
    if agent.summary is None:
        compact(session, cursor, agent, Compaction(record.agent, record.uid, "unknown", record.at), at)
    if agent.summary is None:
        agent.awaits_summary = False
        session.say(agent, "user", record.text, at)
        return
    tokens = text_tokens(record.text)
    agent.observation_tokens = tokens
    session.into["summaries"].append((record.text or "(empty)", tokens, agent.id, agent.summary))
    agent.summary, agent.awaits_summary = None, False
