"""Forking: a session of its own that begins where another one stood.

The copy has ids of its own, and everything in it that names the first session's agents, tasks and plans names
its own
instead: pointers to messages, handoffs, what tools answered. What was saved under a name keeps its bytes; the
notes of the program about memory are rewritten. Until the copy is whole it is hidden like a deleted
session, so that a crash leaves nothing but what `wk prune` takes away.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.records.ports import IdSource, random_id
from watchkeeper.records.text import event_text
from watchkeeper.store import artifacts
from watchkeeper.store.driver import Connection, Unfenced, decode, encode
from watchkeeper.store.history import History, Row, RowsAt, seq_of_turn
from watchkeeper.store.imports import imported_from
from watchkeeper.store.library import BEING_PURGED, driven_by_nobody, in_short_transactions, opened, title_of
from watchkeeper.store.place import Place
from watchkeeper.store.prune import purge_rows
from watchkeeper.store.schema import BY_NAME, NUMBERS, NUMBERS_IN_EVENTS, REFERENCES, TABLES, Table

_IDS = re.compile(
    r"(?P<pointer>message://)(?P<agent>[A-Za-z0-9_-]+)"
    r"|(?:(?<![0-9A-Za-z_])|(?<=\\[nrt]))(?P<id>[0-9a-z]{8})(?![0-9A-Za-z_])"
    r"|(?<=sha256/)(?P<digest>[0-9a-f]{64})"
)
"""What may name something of the session in a text. In JSON, `\\n` may stand right before an id."""


@dataclass(frozen=True, slots=True)
class ForkResult:
    """A fork that was made."""

    session_id: str
    forked_from: str
    at_seq: int
    """The last event that it shares with the first session."""
    status: str
    """`paused` where there is something to resume; else as the first session ended."""
    agents: int
    messages: int


def fork_session(
    path: Place,
    session_id: str,
    *,
    at_seq: int | None = None,
    at_turn: tuple[str, int] | None = None,
    title: str | None = None,
    new_id: IdSource = random_id,
    now: Callable[[], float] = time.time,
) -> ForkResult:
    """Make a session that begins at the current state of `session_id`, or right after the step that wrote event
    `at_seq`.

    `at_turn` names an agent and one of its turns instead: the step in which the last of its results was in.
    What had not ended is paused in the fork, and `wk resume` carries on from there. The workspace is shared,
    not copied.

    Raises:
        NotFound: no such session, event, agent or turn.
        BadInput: another program ran the session, or it was imported from a file; or it had no agent then; or
            the title is longer than 400 characters.
        DrivenElsewhere: a live host drives it.
        StoreUnusable: the database cannot be written.
    """
    title = title_of(title) if title is not None else None
    with opened(path) as connection, driven_by_nobody(path, session_id, "fork"):
        row = connection.execute(
            "SELECT deleted_at, event_seq, (SELECT max(seq) FROM events WHERE session_id = s.id), origin"
            " FROM sessions s"
            " WHERE id = ?",
            (session_id,),
        ).fetchone()
        if row is None or row[0] is not None:
            raise NotFound(f"no session {session_id!r}; list them with `wk sessions`")
        if str(row[3]).startswith("export:"):
            # The author of the file would decide what the fork may run.
            raise BadInput(
                f"session {session_id} was imported from a file; continue it with `wk run --from"
                f" {session_id}`"
            )
        program = imported_from(str(row[3]))
        if program is not None:
            raise BadInput(
                f"session {session_id} was run by {program}; continue it with `wk run --from {session_id}`"
            )
        if at_turn is not None:
            at_seq = _turn(connection, session_id, *at_turn)
        cut = None
        if at_seq is not None:
            moment = History(connection, session_id).at_event(at_seq)
            if not moment.has_agents():
                raise BadInput(
                    f"at event #{at_seq} session {session_id} had no agent yet, so there is nothing to fork"
                )
            cut = RowsAt(connection, moment) if moment.seq < row[2] else None
        copy = _Copy(connection, session_id, cut, int(cut.moment.seq if cut else row[1]), title, new_id, now)
        with driven_by_nobody(path, copy.made.session_id, "fork"):  # nor is it purged before it is whole
            try:
                in_short_transactions(connection, copy.run())
            except BaseException:
                in_short_transactions(connection, purge_rows(connection, copy.made.session_id))
                raise
        return copy.made


def _turn(connection: Connection, session_id: str, agent_id: str, turn: int) -> int:
    row = connection.execute("SELECT session_id FROM agents WHERE id = ?", (agent_id,)).fetchone()
    if row is None or row[0] != session_id:
        raise NotFound(f"no agent {agent_id!r} in session {session_id}")
    return seq_of_turn(connection, agent_id, turn)


class _Copy:
    """One fork in the making. `run` copies a few rows between two of its items."""

    def __init__(
        self,
        connection: Connection,
        session_id: str,
        cut: RowsAt | None,
        at_seq: int,
        title: str | None,
        new_id: IdSource,
        now: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._source = session_id
        self._cut = cut
        self._at_seq = at_seq
        self._title = title
        self._new_id = new_id
        self._now = now
        self._names = {session_id: new_id()}
        for kind in ("agents", "plans", "tasks", "approvals"):
            sql = f"SELECT id FROM {kind} WHERE session_id = ? ORDER BY {BY_NAME[kind].in_order}"
            self._names |= {row[0]: new_id() for row in connection.execute(sql, (session_id,))}
        self._digests: dict[str, str] = {}
        self._numbers: dict[str, dict[int, int]] = {}
        self._inserts: dict[str, tuple[str, list[str]]] = {}
        self._messages = 0
        self.made = ForkResult(self._names[session_id], session_id, at_seq, "", 0, 0)

    def run(self) -> Iterator[None]:
        """Copy everything, then let it be seen."""
        status = self._session()
        yield
        for name in artifacts.notes_of(self._connection, self._source):
            self._note(name)
            yield
        for table in TABLES:
            if table.forked:
                yield from self._table(table)
        self._reveal(status)

    # --- the session's own row ------------------------------------------------------------------------------

    def _session(self) -> str:
        (row,) = self._rows("SELECT * FROM sessions WHERE id = ?", self._source)
        kept = self._cut.keep("sessions", row) if self._cut else row
        assert kept is not None
        at = self._now()
        open_still = kept["status"] in ("running", "paused")
        status = "paused" if open_still else str(kept["status"])
        reason = (
            f"forked from {self._source} at event #{self._at_seq}" if open_still else kept["status_reason"]
        )
        self._insert(
            "sessions",
            self._renamed(kept)
            | {
                "id": self._names[self._source], "origin": "fork", "forked_from": self._source, "forked_at_seq": self._at_seq,
                "status": status, "status_reason": reason, "created_at": at, "last_active": at, "deleted_at": BEING_PURGED,
                "ordinal": None, "lease_epoch": 0, "host_pid": None, "host_name": None, "event_seq": self._at_seq,
                "title": self._title if self._title is not None else kept["title"], "source": None,
            },
        )  # fmt: skip
        return status

    def _reveal(self, status: str) -> None:
        """The last change: the fork's own event, and the session can be seen."""
        session_id, at = self._names[self._source], self._now()
        last = self._connection.execute(
            "SELECT coalesce(max(seq), 0) FROM events WHERE session_id = ?", (session_id,)
        ).fetchone()[0]
        data = {"from": self._source, "at": self._at_seq}
        self._insert(
            "events",
            {
                "session_id": session_id,
                "seq": last + 1,
                "at": at,
                "kind": "session.forked",
                "data": encode(data),
                "commit_seq": last + 1,
            },
        )
        self._connection.execute(
            "UPDATE sessions SET deleted_at = NULL, event_seq = ? WHERE id = ?", (last + 1, session_id)
        )
        agents = self._connection.execute(
            "SELECT count(*) FROM agents WHERE session_id = ?", (session_id,)
        ).fetchone()[0]
        self.made = ForkResult(session_id, self._source, self._at_seq, status, agents, self._messages)

    # --- tables ---------------------------------------------------------------------------------------------

    def _table(self, table: Table) -> Iterator[None]:
        if table.name == "task_dependencies" and self._cut is not None:
            for row in self._cut.dependencies():
                self._insert(table.name, self._renamed(row))
            yield
            return
        texts, numbers = table.with_ids, self._numbers.setdefault(table.name, {})
        superseded: list[tuple[int, int]] = []
        for row in self._of(table):
            kept = self._cut.keep(table.name, row) if self._cut else row
            if kept is None:
                continue
            new = self._renamed(kept)
            for column in texts:
                if isinstance(new[column], str):
                    new[column] = self._rewritten(new[column])
            if table.name == "state_changes":
                self._rename_change(new)
            if table.name == "events":
                new["data"] = self._renumbered(new["data"])
            old = int(new.pop("id")) if table.numbered or table.name == "messages" else 0
            new_id = self._insert(table.name, new)
            if table.numbered:
                numbers[old] = new_id
            if table.name == "facts" and kept["superseded_by"] is not None:
                superseded.append((new_id, kept["superseded_by"]))
            self._messages += table.name == "messages"
            yield
        for new_id, by in superseded:  # what replaces a fact is younger than it
            self._connection.execute(
                "UPDATE facts SET superseded_by = ? WHERE id = ?", (numbers.get(by), new_id)
            )

    def _rename_change(self, row: Row) -> None:
        """A change names the row that it changed, and of a fact the one that took its place."""
        facts = self._numbers["facts"]
        if row["table_name"] == "facts":
            values = decode(row["old_values"])
            values["superseded_by"] = facts.get(values.get("superseded_by"))
            row |= {"row_id": str(facts.get(int(row["row_id"]))), "old_values": encode(values)}
        else:
            row["row_id"] = self._names.get(row["row_id"], row["row_id"])

    def _of(self, table: Table) -> Iterator[Row]:
        """The rows of the first session in the order in which they were written, one at a time: other
        processes may write in between."""
        keys = self._connection.execute(
            f"SELECT {table.owner}_id, {table.key} FROM {table.name} WHERE {table.of_session}"
            f" ORDER BY {table.in_order}",
            (self._source,),
        ).fetchall()
        sql = f"SELECT * FROM {table.name} WHERE {table.owner}_id = ? AND {table.key} = ?"
        for key in keys:
            yield from self._rows(sql, *key)

    def _renumbered(self, data: str) -> str:
        """An event's data with the fork's numbers of calls, passes, commands and facts."""
        if not any(f'"{name}":' in data for name in NUMBERS_IN_EVENTS):
            return data
        value: dict[str, Any] = decode(data)
        for name, table in NUMBERS_IN_EVENTS.items():
            if isinstance(value.get(name), int):
                value[name] = self._numbers.get(table, {}).get(value[name], value[name])
        return encode(value)

    def _note(self, name: str) -> None:
        """Rewrite one of the program's own notes, with the fork's ids."""
        text = artifacts.note_text(self._connection, name)
        new = self._rewritten(text) if text is not None else None
        if new is None or new == text:
            return
        ref = artifacts.put(
            Unfenced(self._connection, self._now()), new.encode("utf-8", "replace"), "application/json"
        )
        self._digests[name] = artifacts.digest_of(ref) or name

    # --- names ----------------------------------------------------------------------------------------------

    def _renamed(self, row: Row) -> Row:
        """The row with the fork's ids in the columns that hold some."""
        new = dict(row)
        for column, value in row.items():
            if column in NUMBERS and isinstance(value, int):
                # What it refers to may belong to another session, or have come only later.
                new[column] = self._numbers.get(NUMBERS[column], {}).get(value)
            elif (column == "id" or column in REFERENCES) and isinstance(value, str):
                new[column] = self._names.get(value, value)
        return new

    def _rewritten(self, text: str) -> str:
        return _IDS.sub(self._replacement, text)

    def _replacement(self, match: re.Match[str]) -> str:
        if match["pointer"]:
            return f"{match['pointer']}{self._names.get(match['agent'], match['agent'])}"
        if match["digest"]:
            return self._digests.get(match["digest"], match["digest"])
        return self._names.get(match["id"], match["id"])

    # --- rows -----------------------------------------------------------------------------------------------

    def _rows(self, sql: str, *parameters: Any) -> list[Row]:
        found = self._connection.execute(sql, parameters)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def _insert(self, table: str, row: Row) -> int:
        known = self._inserts.get(table)
        if known is None or known[1] != list(row):
            columns = list(row)
            sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            if BY_NAME[table].numbered:
                sql += " RETURNING id"
            known = self._inserts[table] = (sql, columns)
        found = self._connection.execute(known[0], list(row.values()))
        return int(found.fetchone()[0]) if BY_NAME[table].numbered else 0


# --- The steps of a session from which it can be forked: turns of agents, and changes of the plan ---------

_KINDS = (
    "model.replied", "inbox.delivered", "plan.revised", "agent.created", "task.running", "task.done", "task.failed", "task.paused",
    "task.pending", "compaction.applied", "compaction.undo", "compaction.redo", "session.paused", "session.running", "session.forked",
)  # fmt: skip
_STEPS = (
    "SELECT e.seq, e.at, e.kind, e.agent_id, a.name, t.title, e.data FROM events e LEFT JOIN agents a ON a.id = e.agent_id"
    " LEFT JOIN tasks t ON t.id = e.task_id WHERE e.session_id = ? AND e.seq < ? AND e.kind IN"
    f" ({', '.join('?' * len(_KINDS))}) ORDER BY e.seq DESC LIMIT ?"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step. Texts are hostile until sanitised."""

    seq: int
    at: float
    kind: str
    agent_id: str | None
    agent: str
    """The agent's name, or nothing."""
    task: str
    """The task's title, or nothing."""
    turn: int | None
    """For a reply: the agent's turn, at whose end a fork begins."""
    text: str


def steps(
    connection: Connection, session_id: str, *, before: int = 1 << 62, limit: int = 500
) -> tuple[Step, ...]:
    """The newest steps before event `before`, the newest first."""
    rows = connection.execute(_STEPS, (session_id, before, *_KINDS, limit))
    return tuple(_step(row) for row in rows)


def _step(row: Any) -> Step:
    data: dict[str, Any] = decode(row[6])
    turn = data.get("turn") if row[2] == "model.replied" else None
    return Step(
        row[0],
        row[1],
        row[2],
        row[3],
        row[4] or "",
        row[5] or "",
        turn if isinstance(turn, int) else None,
        _text(row[2], data),
    )


def _text(kind: str, data: dict[str, Any]) -> str:
    if kind == "model.replied":
        tools, said = data.get("tools"), str(data.get("preview") or "")
        return (
            ", ".join(map(str, tools)) + (f" · {said}" if said else "")
            if isinstance(tools, list) and tools
            else said
        )
    if kind in ("inbox.delivered", "plan.revised", "compaction.applied"):
        return event_text(kind, data)
    return str(data.get("reason") or data.get("title") or "")
