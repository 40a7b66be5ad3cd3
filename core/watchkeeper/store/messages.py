"""Rows of `messages`, `observations`, `views`, `compactions` and `memory_snapshots`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from watchkeeper.records.compactions import CompactionRecord, CompactionResult
from watchkeeper.records.messages import Content, Elision, Message, Observation, ObservationKind, View
from watchkeeper.store.driver import IN_LIST, Reads, column, decode, encode, first, list_of

if TYPE_CHECKING:
    from watchkeeper.store.transaction import Transaction


def add_messages(tx: Transaction, agent_id: str, messages: Sequence[Message]) -> None:
    tx.executemany(
        "INSERT INTO messages (agent_id, seq, role, content, tokens, total_tokens, created_at, commit_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                agent_id,
                m.seq,
                m.role,
                encode(m.content),
                m.tokens,
                m.total_tokens,
                m.created_at,
                tx.commit_seq,
            )
            for m in messages
        ],
    )


def add_observations(
    tx: Transaction,
    agent_id: str,
    observations: Sequence[Observation],
    *,
    compaction_id: int | None = None,
) -> None:
    tx.executemany(
        "INSERT INTO observations (agent_id, id, kind, level, text, tokens, first_seq, last_seq, citations,"
        " replaces,"
        " provisional, status, compaction_id, created_at, commit_seq, ledger) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?,"
        " ?, 'published', ?, ?, ?, ?)",
        [
            (agent_id, o.id, o.kind, o.level, o.text, o.tokens, *o.covers, encode(o.citations), encode(o.replaces),
             int(o.provisional), compaction_id, o.created_at, tx.commit_seq, o.ledger or None)
            for o in observations
        ],
    )  # fmt: skip


def add_view(
    tx: Transaction, agent_id: str, view: View, *, tokens: int, compaction_id: int | None = None
) -> None:
    """Write a version of the view, and point the agent at it."""
    tx.execute(
        "INSERT INTO views (agent_id, version, parent, observations, verbatim_from, elided, reason, tokens,"
        " compaction_id,"
        " created_at, commit_seq, pins) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            agent_id, view.version, view.parent, encode([o.id for o in view.observations]), view.verbatim_from,
            encode([[e.seq, e.head_chars, e.tail_chars, e.pointer, e.tokens] for e in view.elided.values()]),
            view.reason, tokens, compaction_id, view.created_at, tx.commit_seq,
            encode(view.pins) if view.pins else None,
        ),
    )  # fmt: skip
    point_at(tx, agent_id, view.version)


def point_at(tx: Transaction, agent_id: str, version: int) -> None:
    tx.execute("UPDATE agents SET view_version = ? WHERE id = ?", (version, agent_id))


def load_messages(
    reads: Reads, agent_id: str, first_seq: int = 1, last_seq: int | None = None
) -> list[Message]:
    """Messages `first_seq … last_seq` (both included; None: to the end), in order."""
    rows = reads.all(
        "SELECT seq, role, content, tokens, total_tokens, created_at FROM messages"
        " WHERE agent_id = ? AND seq >= ? AND seq <= ? ORDER BY seq",
        (agent_id, first_seq, last_seq if last_seq is not None else 1 << 62),
    )
    return [Message(row[0], row[1], content(row[2]), row[3], row[4], row[5]) for row in rows]


def newest_said(
    reads: Reads, agent_id: str, role: str, most: int, *, without: Collection[int] = ()
) -> list[Message]:
    """The newest messages of a role in an agent's history, the newest first; not those of the numbers in `without`."""
    rows = reads.all(
        "SELECT seq, role, content, tokens, total_tokens, created_at FROM messages"
        f" WHERE agent_id = ? AND role = ? AND NOT seq {IN_LIST} ORDER BY seq DESC LIMIT ?",
        (agent_id, role, list_of(sorted(without)), most),
    )
    return [Message(row[0], row[1], content(row[2]), row[3], row[4], row[5]) for row in rows]


def load_chosen(reads: Reads, agent_id: str, seqs: Collection[int]) -> list[Message]:
    """The messages of these numbers, in order, as far as they exist."""
    rows = reads.all(
        "SELECT seq, role, content, tokens, total_tokens, created_at FROM messages"
        f" WHERE agent_id = ? AND seq {IN_LIST} ORDER BY seq",
        (agent_id, list_of(sorted(seqs))),
    )
    return [Message(row[0], row[1], content(row[2]), row[3], row[4], row[5]) for row in rows]


def content(text: str) -> Content:
    value: Content = decode(text)
    return value


def load_view(reads: Reads, agent_id: str, version: int) -> View | None:
    """One version of an agent's view with its observations, or None."""
    row = reads.one(
        "SELECT version, observations, verbatim_from, elided, parent, reason, created_at, pins FROM views"
        " WHERE agent_id = ? AND version = ?",
        (agent_id, version),
    )
    if row is None:
        return None
    wanted: list[int] = decode(row[1])
    found = {o.id: o for o in load_observations(reads, agent_id, wanted)}
    elided = {e[0]: Elision(*e) for e in decode(row[3])}
    pins = tuple(decode(row[7])) if row[7] else ()
    return View(row[0], tuple(found[i] for i in wanted), row[2], elided, row[4], row[5], row[6], pins)


def load_views(reads: Reads, agent_id: str) -> list[View]:
    """Every version, oldest first."""
    versions = reads.all("SELECT version FROM views WHERE agent_id = ? ORDER BY version", (agent_id,))
    loaded = (load_view(reads, agent_id, row[0]) for row in versions)
    return [view for view in loaded if view is not None]


def view_versions(reads: Reads, agent_id: str) -> list[dict[str, Any]]:
    """Every version of an agent's view in numbers, oldest first: `observations` and `elided` say how many."""
    sql = (
        "SELECT version, parent, reason, tokens, observations, verbatim_from, elided, pins, compaction_id AS compaction,"
        " created_at FROM views WHERE agent_id = ? ORDER BY version"
    )
    return [
        dict(row)
        | {"observations": len(decode(row["observations"])), "elided": len(decode(row["elided"]))}
        | {"pins": decode(row["pins"] or "[]")}
        for row in reads.all(sql, (agent_id,))
    ]


def undone(reads: Reads, agent_id: str) -> frozenset[int]:
    """The messages of an agent that a person undid, and did not restore."""
    found: set[int] = set()
    for reason, after, before in reads.all(
        "SELECT v.reason, v.elided, coalesce(p.elided, '[]') FROM views v LEFT JOIN views p"
        " ON p.agent_id = v.agent_id AND p.version = v.parent"
        " WHERE v.agent_id = ? AND v.reason IN ('rewind', 'restored') ORDER BY v.version",
        (agent_id,),
    ):
        # `[seq, head, tail, pointer, tokens]`: a message that was undone has no tokens left.
        now = {each[0] for each in decode(after) if not each[4]}
        found |= now
        if reason == "restored":
            found -= {each[0] for each in decode(before) if not each[4]} - now
    return frozenset(found)


def observation_texts(reads: Reads, agent_id: str) -> set[str]:
    """The texts of all observations of an agent."""
    return set(column(reads, str, "SELECT text FROM observations WHERE agent_id = ?", (agent_id,)))


def copy_memory(tx: Transaction, source: str, target: str) -> None:
    """Copy the memory of one agent to another: messages, observations, views and position."""
    for table, columns in (
        ("messages", "seq, role, content, tokens, total_tokens, created_at"),
        ("observations", "id, kind, level, text, tokens, first_seq, last_seq, citations, replaces, provisional, status,"
         " compaction_id, created_at, ledger"),
        ("views", "version, parent, observations, verbatim_from, elided, reason, tokens, compaction_id, created_at, pins"),
    ):  # fmt: skip
        tx.execute(
            f"INSERT INTO {table} (agent_id, commit_seq, {columns}) SELECT ?, ?, {columns} FROM {table} WHERE agent_id = ?",
            (target, tx.commit_seq, source),
        )
    tx.execute(
        "UPDATE agents SET (view_version, last_seq, message_tokens, context_tokens) ="
        " (SELECT view_version, last_seq, message_tokens, context_tokens FROM agents WHERE id = ?) WHERE id = ?",
        (source, target),
    )


def next_version(reads: Reads, agent_id: str) -> int:
    """The number of the next version of an agent's view."""
    return (first(reads, int, "SELECT max(version) FROM views WHERE agent_id = ?", (agent_id,)) or 0) + 1


def left_out_of_view(reads: Reads, agent_id: str) -> int:
    """The last message that the newest version of an agent's view does not show verbatim; 0 where it shows all."""
    sql = "SELECT verbatim_from FROM views WHERE agent_id = ? ORDER BY version DESC LIMIT 1"
    return max(0, (first(reads, int, sql, (agent_id,)) or 1) - 1)


def load_observations(reads: Reads, agent_id: str, ids: Sequence[int]) -> list[Observation]:
    if not ids:
        return []
    rows = reads.all(
        "SELECT id, kind, text, tokens, first_seq, last_seq, citations, level, replaces, provisional,"
        f" created_at, ledger FROM observations WHERE agent_id = ? AND id {IN_LIST} ORDER BY id",
        (agent_id, list_of(ids)),
    )
    return [
        Observation(
            id=r[0], kind=ObservationKind(r[1]), text=r[2], tokens=r[3], covers=(r[4], r[5]), citations=tuple(decode(r[6])),
            level=r[7], replaces=tuple(decode(r[8])), provisional=bool(r[9]), created_at=r[10],
            ledger=r[11] or "",
        )
        for r in rows
    ]  # fmt: skip


def compacted_up_to(reads: Reads, agent_id: str) -> int:
    """The last message that a compaction of the agent covered; 0 if there is none."""
    sql = "SELECT max(high_water) FROM compactions WHERE agent_id = ? AND status = 'applied'"
    return first(reads, int, sql, (agent_id,)) or 0


def add_compaction(tx: Transaction, agent_id: str, compaction: CompactionRecord) -> int:
    """Record one pass over an agent's context; returns its id."""
    if compaction.status == "applied":
        tx.execute("UPDATE agents SET compactions = compactions + 1 WHERE id = ?", (agent_id,))
    return tx.insert(
        "INSERT INTO compactions (session_id, agent_id, trigger, status, instructions, reason, high_water,"
        " messages_removed, tokens_before, tokens_after, view_before, view_after, model, requested_at, ended_at,"
        " commit_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            tx.session_id, agent_id, compaction.trigger, compaction.status, compaction.instructions, compaction.reason,
            compaction.high_water, compaction.messages_removed, compaction.tokens_before, compaction.tokens_after,
            compaction.view_before, compaction.view_after, compaction.model, tx.now, tx.now, tx.commit_seq,
        ),
    )  # fmt: skip


_PROGRAM_COMPACTIONS = (
    "SELECT e.data FROM agent_programs p CROSS JOIN events e WHERE p.program_session = ? AND p.program = ?"
    " AND e.session_id = p.session_id AND e.agent_id = p.agent_id"
    " AND e.kind IN ('compaction.applied', 'program.attached')"
)


def program_compactions(reads: Reads, program: str, program_session: str) -> tuple[set[str], int]:
    """The recorded compactions of an agent program's session: the ids of those that its own log reported, and how many
    only the program itself has reported."""
    known: set[str] = set()
    told_live = 0
    for (data,) in reads.all(_PROGRAM_COMPACTIONS, (program_session, program)):
        found = decode(data)
        if "compactions" in found:  # of a session that began outside
            known.update(map(str, found["compactions"]))
        elif "record" in found:
            known.add(str(found["record"]))
        elif "high_water" in found:
            told_live += 1
    return known, told_live


def add_program_compaction(
    tx: Transaction, agent_id: str, compaction: CompactionRecord, summary: str, tokens: int
) -> int:
    """Record that an agent's program dropped all messages through `high_water`, and the view that it has since: with the
    summary in their place, if the program gave one. Returns the compaction's id."""
    compaction_id = add_compaction(tx, agent_id, compaction)
    version, parent = compaction.view_after or 0, compaction.view_before
    _add_program_view(
        tx, agent_id, compaction_id, (version, parent, compaction.high_water or 0), summary, tokens
    )
    return compaction_id


def add_program_summary(
    tx: Transaction, agent_id: str, compaction_id: int, summary: str, tokens: int
) -> None:
    """The program gave the summary of a compaction that is recorded: a further view has it."""
    last_seq, parent = tx.one("SELECT high_water, view_after FROM compactions WHERE id = ?", (compaction_id,))
    version = next_version(tx, agent_id)
    _add_program_view(tx, agent_id, compaction_id, (version, parent, last_seq), summary, tokens)
    tx.execute("UPDATE compactions SET view_after = ? WHERE id = ?", (version, compaction_id))


def _add_program_view(
    tx: Transaction,
    agent_id: str,
    compaction_id: int,
    span: tuple[int, int | None, int],
    summary: str,
    tokens: int,
) -> None:
    """Write a view. `span`: its version, the one before, and the last message that is not in it."""
    version, parent, last_seq = span
    observations: tuple[Observation, ...] = ()
    if summary and last_seq:
        newest = first(tx, int, "SELECT max(id) FROM observations WHERE agent_id = ?", (agent_id,)) or 0
        covers = (1, last_seq)
        observations = (
            Observation(
                newest + 1, ObservationKind.SUMMARY, summary, tokens, covers, covers, created_at=tx.now
            ),
        )
        add_observations(tx, agent_id, observations, compaction_id=compaction_id)
    view = View(version, observations, last_seq + 1, {}, parent, "summary", tx.now)
    add_view(tx, agent_id, view, tokens=sum(one.tokens for one in observations), compaction_id=compaction_id)


def begin_compaction(
    tx: Transaction,
    agent_id: str,
    *,
    trigger: str,
    instructions: str | None,
    high_water: int,
    tokens_before: int,
    model: str,
    command: int | None = None,
) -> int:
    """Record the beginning of a background pass over an agent's context; returns its id. `command`: the
    command that it carries out."""
    compaction_id = tx.insert(
        "INSERT INTO compactions (session_id, agent_id, trigger, status, instructions, high_water,"
        " tokens_before, model,"
        " requested_at, commit_seq) VALUES (?, ?, ?, 'running', ?, ?, ?, ?, ?, ?)",
        (
            tx.session_id,
            agent_id,
            trigger,
            instructions,
            high_water,
            tokens_before,
            model,
            tx.now,
            tx.commit_seq,
        ),
    )
    ordered: dict[str, Any] = {} if command is None else {"command": command}
    tx.event(
        "compaction.started",
        agent_id=agent_id,
        compaction=compaction_id,
        trigger=trigger,
        high_water=high_water,
        tokens_before=tokens_before,
        **ordered,
    )
    return compaction_id


def keep_prepared(
    tx: Transaction,
    agent_id: str,
    compaction_id: int,
    prepared: str,
    *,
    cost_usd: float | None = None,
    tokens_spent: int = 0,
) -> None:
    """The pass has its result, as JSON; it is published at the agent's next step, by whichever host takes
    it."""
    tx.execute(
        "UPDATE compactions SET status = 'prepared', prepared = ?, cost_usd = ?, tokens_spent = ?"
        " WHERE id = ? AND status = 'running'",
        (prepared, cost_usd, tokens_spent, compaction_id),
    )
    row = tx.one("SELECT trigger, high_water FROM compactions WHERE id = ?", (compaction_id,))
    about = {"trigger": row[0], "high_water": row[1]} if row else {}
    tx.event("compaction.prepared", agent_id=agent_id, compaction=compaction_id, **about)


def end_compaction(tx: Transaction, agent_id: str, compaction_id: int, result: CompactionResult) -> None:
    """Record how a pass ended."""
    row = tx.one("SELECT trigger, tokens_before FROM compactions WHERE id = ?", (compaction_id,))
    tx.execute(
        "UPDATE compactions SET status = ?, reason = ?, tokens_before = coalesce(?, tokens_before),"
        " tokens_after = ?, messages_removed = ?, high_water = coalesce(?, high_water), view_before = ?,"
        " view_after = ?, cost_usd = coalesce(?, cost_usd), tokens_spent = coalesce(?, tokens_spent), seconds = ?,"
        " cache_tokens_invalidated = ?, prepared = NULL, ended_at = ? WHERE id = ?",
        (
            result.status, result.reason, result.tokens_before, result.tokens_after, result.messages_removed,
            result.high_water, result.view_before, result.view_after, result.cost_usd, result.tokens_spent,
            result.seconds, result.cache_tokens_invalidated, tx.now, compaction_id,
        ),
    )  # fmt: skip
    if result.status == "applied":
        tx.execute("UPDATE agents SET compactions = compactions + 1 WHERE id = ?", (agent_id,))
    known = row[1] if row else None
    tx.event(
        f"compaction.{result.status}",
        agent_id=agent_id,
        compaction=compaction_id,
        trigger=row[0] if row else None,
        tokens_before=result.tokens_before if result.tokens_before is not None else known,
        tokens_after=result.tokens_after,
        messages_removed=result.messages_removed,
        high_water=result.high_water,
        reason=result.reason,
    )


def save_snapshot(
    tx: Transaction, agent_id: str, ref: str, *, version: int, last_seq: int, turn: int, tokens: int
) -> None:
    """Say where the agent's memory as of now is kept whole."""
    tx.execute(
        "INSERT INTO memory_snapshots (agent_id, session_id, memory_blob_ref, last_updated, view_version,"
        " last_seq, turn,"
        " tokens, commit_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (agent_id) DO UPDATE SET"
        " memory_blob_ref = excluded.memory_blob_ref, last_updated = excluded.last_updated,"
        " view_version = excluded.view_version, last_seq = excluded.last_seq, turn = excluded.turn, tokens ="
        " excluded.tokens,"
        " commit_seq = excluded.commit_seq",
        (agent_id, tx.session_id, ref, tx.now, version, last_seq, turn, tokens, tx.commit_seq),
    )


def snapshots_of(reads: Reads, session_id: str) -> dict[str, tuple[str, float, int]]:
    """Where the memory of a session's agents is kept whole, by agent: the artifact, since when, and as of which turn."""
    sql = "SELECT agent_id, memory_blob_ref, last_updated, turn FROM memory_snapshots WHERE session_id = ?"
    return {row[0]: (row[1], row[2], row[3]) for row in reads.all(sql, (session_id,))}


def redactions(reads: Reads, session_id: str) -> int:
    """How many secrets were removed from the messages of a session before they were stored."""
    sql = (
        "SELECT sum(length(content) - length(replace(content, '[redacted:', ''))) / length('[redacted:') FROM messages"
        " WHERE agent_id IN (SELECT id FROM agents WHERE session_id = ?)"
    )
    return first(reads, int, sql, (session_id,)) or 0


def compaction_ids(reads: Reads, session_id: str, agent_id: str | None = None) -> list[int]:
    """The compactions of a session, or of one of its agents, the newest first."""
    sql = "SELECT id FROM compactions WHERE session_id = ? AND agent_id = coalesce(?, agent_id) ORDER BY id DESC"
    return column(reads, int, sql, (session_id, agent_id))


def session_of_compaction(reads: Reads, compaction_id: int) -> str | None:
    """The session of a compaction; None if there is no such one, or its session was deleted."""
    sql = "SELECT c.session_id FROM compactions c JOIN sessions s ON s.id = c.session_id WHERE c.id = ? AND s.deleted_at IS NULL"
    return first(reads, str, sql, (compaction_id,))


def last_compacted(reads: Reads, session_id: str) -> str | None:
    """The agent of a session whose context was compacted last; None if none was."""
    sql = "SELECT agent_id FROM compactions WHERE session_id = ? AND status = 'applied' ORDER BY id DESC LIMIT 1"
    return first(reads, str, sql, (session_id,))


# --- Passes that began and were not applied -----------------------------------------------------------------
#
# A host that takes over finds them here.


@dataclass(frozen=True, slots=True)
class ReadingPass:
    """A pass over an agent's context that has not been applied."""

    id: int
    trigger: str
    status: str
    prepared: str | None
    """Its result as JSON, where it waits to be published."""
    instructions: str | None
    high_water: int
    reason: str
    tokens_before: int
    model: str


_UNFINISHED = (
    "SELECT id, trigger, status, prepared, instructions, high_water, coalesce(reason, ''),"
    " coalesce(tokens_before, 0), model"
    " FROM compactions"
    " WHERE agent_id = ? AND status IN ('running', 'prepared') ORDER BY id"
)
_ABANDONED_LAST = (
    "SELECT id, trigger, status, prepared, instructions, high_water, coalesce(reason, ''),"
    " coalesce(tokens_before, 0), model"
    " FROM compactions"
    " WHERE id = (SELECT max(id) FROM compactions WHERE agent_id = ? AND trigger NOT IN ('observer',"
    " 'reflector'))"
    f" AND status = 'abandoned' AND trigger {IN_LIST}"
)


def unfinished_passes(reads: Reads, agent_id: str) -> list[ReadingPass]:
    """The passes of an agent that have no end yet, oldest first."""
    return [ReadingPass(*row) for row in reads.all(_UNFINISHED, (agent_id,))]


def last_pass(reads: Reads, agent_id: str, triggers: Sequence[str]) -> ReadingPass | None:
    """The newest pass of an agent, if it has one of these triggers and was abandoned."""
    row = reads.one(_ABANDONED_LAST, (agent_id, list_of(triggers)))
    return ReadingPass(*row) if row is not None else None


def moved_by_hand_since(reads: Reads, agent_id: str, found: ReadingPass) -> bool:
    """Whether a person's undo or redo changed the agent's context since that pass began."""
    rows = reads.all(
        "SELECT e.kind, e.data FROM agents a JOIN events e ON e.session_id = a.session_id AND e.agent_id = a.id"
        " WHERE a.id = ? AND e.kind IN ('compaction.started', 'compaction.undo', 'compaction.redo')"
        " ORDER BY e.seq DESC",
        (agent_id,),
    )
    moved = False
    for kind, data in rows:
        if kind == "compaction.started" and decode(data).get("compaction") == found.id:
            break
        moved = moved or kind != "compaction.started"
    return moved


# --- Whether a compaction pays for itself -------------------------------------------------------------------
#
# Its cost, once, against its savings in each later call.

_ROWS = (
    "WITH done AS (SELECT id, agent_id, status, tokens_before, tokens_after, cache_tokens_invalidated, ended_at,"
    " tokens_spent + (SELECT coalesce(sum(j.tokens_spent), 0) FROM compactions j WHERE j.agent_id = compactions.agent_id"
    " AND j.status = 'applied' AND j.tokens_after IS NULL AND j.view_after = compactions.view_after) AS tokens_spent,"
    " lead(ended_at) OVER (PARTITION BY agent_id ORDER BY ended_at, id) AS until FROM compactions"
    " WHERE session_id = ? AND agent_id = coalesce(?, agent_id) AND status IN ('applied', 'undone') AND tokens_before IS NOT NULL AND"
    " tokens_after IS NOT NULL"
    " AND ended_at IS NOT NULL)"
    " SELECT d.id, d.tokens_before - d.tokens_after, d.tokens_spent + d.cache_tokens_invalidated,"
    " (SELECT count(*) FROM model_calls c WHERE c.agent_id = d.agent_id AND c.purpose IN ('turn', 'planner')"
    " AND c.status = 'done' AND c.started_at >= d.ended_at AND (d.until IS NULL OR c.started_at < d.until))"
    " FROM done d"
)


def worth(reads: Reads, session_id: str, agent_id: str | None = None) -> dict[int, dict[str, Any]]:
    """By the id of each applied compaction of a session, or of one agent: `calls` of the agent that it made shorter so far
    (those before the next compaction), `tokens_not_sent` in these, `tokens_spent` (by its own calls and those of
    observers whose chunks it applied too, and cached tokens that it made void), and `pays`: whether no more was spent than spared."""
    found: dict[int, dict[str, Any]] = {}
    for number, saved, spent, calls in reads.all(_ROWS, (session_id, agent_id)):
        spared = max(0, saved) * calls
        found[number] = {
            "calls": calls,
            "tokens_not_sent": spared,
            "tokens_spent": spent,
            "pays": spared >= spent,
        }
    return found


def wasted_passes(reads: Reads, agent_id: str) -> list[int]:
    """Ids of the passes of an agent that cost something and were not applied."""
    sql = "SELECT id FROM compactions WHERE agent_id = ? AND status IN ('rejected', 'abandoned') AND tokens_spent > 0"
    return column(reads, int, sql, (agent_id,))


# --- The cause of an imported session's compaction ----------------------------------------------------------
#
# Its log names the cause only after the compaction.


def set_compaction_trigger(cursor: Any, agent_id: str, trigger: str) -> None:
    """Record what began an agent's newest compaction."""
    cursor.execute(
        "UPDATE compactions SET trigger = ? WHERE id = (SELECT max(id) FROM compactions WHERE agent_id = ?)",
        (trigger, agent_id),
    )
