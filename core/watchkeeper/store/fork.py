"""Forking: a session of its own that begins where another one stood.

The copy has ids of its own, and everything in it that names the first session's agents, tasks and plans names
its own
instead: pointers to messages, handoffs, what tools answered. What was saved under a name keeps its bytes; the
notes of the program about memory are rewritten.

Rows are copied in batches, each read and rewritten before a transaction writes it, so that hosts of other sessions do
not wait. Until the copy is whole it is hidden like a deleted session. What a crash leaves of it is named by `wk doctor`
and removed by the next fork or `wk delete --prune` (`store.prune.remove_unfinished`).
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from watchkeeper.records.errors import BadInput, DrivenElsewhere, NotFound, StoreUnusable
from watchkeeper.records.ports import IdSource, random_id
from watchkeeper.records.text import event_text
from watchkeeper.store import artifacts
from watchkeeper.store.driver import IN_LIST, Connection, Unfenced, decode, encode, list_of
from watchkeeper.store.history import History, Row, RowsAt, seq_of_turn
from watchkeeper.store.imports import imported_from
from watchkeeper.store.library import BEING_PURGED, in_short_transactions, opened, title_of, without_host
from watchkeeper.store.names import AGENT_NAME, TASK_NAME
from watchkeeper.store.place import Place
from watchkeeper.store.postgres import pipelined
from watchkeeper.store.prune import ROWS_AT_ONCE, remove_unfinished, unfinished_settings
from watchkeeper.store.schema import BY_NAME, NUMBERS, NUMBERS_IN_EVENTS, REFERENCES, TABLES, Table

_IDS = re.compile(
    r"(?P<pointer>message://)(?P<agent>[A-Za-z0-9_-]+)"
    r"|(?:(?<![0-9A-Za-z_])|(?<=\\[nrt]))(?P<id>[0-9a-z]{8})(?![0-9A-Za-z_])"
    r"|(?<=sha256/)(?P<digest>[0-9a-f]{64})"
)
"""What may name something of the session in a text. In JSON, `\\n` may stand right before an id."""

_FORKED = tuple(table for table in TABLES if table.forked)


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
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    new_id: IdSource = random_id,
    now: Callable[[], float] = time.time,
) -> ForkResult:
    """Make a session that begins at the current state of `session_id`, or right after the step that wrote event
    `at_seq`.

    `at_turn` names an agent and one of its turns instead: the step in which the last of its results was in.
    What had not ended is paused in the fork, and `wk resume` carries on from there. The workspace is shared,
    not copied. `on_progress` is called between transactions with the rows that are copied, and about how many there are.

    Raises:
        NotFound: no such session, event, agent or turn.
        BadInput: another program ran the session, or it was imported from a file; or it had no agent then; or
            the title is longer than 400 characters.
        DrivenElsewhere: a live host drives it.
        StoreUnusable: the database cannot be written.
    """
    title = title_of(title) if title is not None else None
    remove_unfinished(path)
    with opened(path) as connection, without_host(path, session_id, "fork"):
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
                raise BadInput(f"nothing to fork: at event #{at_seq}, session {session_id} had no agent yet")
            cut = RowsAt(connection, moment) if moment.seq < row[2] else None
        copy = _Copy(connection, session_id, cut, int(cut.moment.seq if cut else row[1]), title, new_id, now)
        try:
            with without_host(path, copy.made.session_id, "fork"):  # nor is it purged before it is whole
                for batch in copy.batches():
                    in_short_transactions(connection, batch)
                    on_progress(copy.rows_copied, copy.rows)
        except BaseException:
            with suppress(StoreUnusable):  # else `wk doctor` names it
                remove_unfinished(path)
            raise
        return copy.made


def _turn(connection: Connection, session_id: str, agent_id: str, turn: int) -> int:
    row = connection.execute("SELECT session_id FROM agents WHERE id = ?", (agent_id,)).fetchone()
    if row is None or row[0] != session_id:
        raise NotFound(f"no agent {agent_id!r} in session {session_id}")
    return seq_of_turn(connection, agent_id, turn)


FIRST_BATCH_ROWS = 10
LARGEST_BATCH_ROWS = 500
BATCH_CHARACTERS = 1 << 20
"""About how much text a batch holds: so much is in memory at a time."""


class _Copy:
    """One fork in the making."""

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
        self._settings = "{}"
        """Those of the copy, once it is whole."""
        self._epoch = self._source_epoch()
        self.rows_copied = 0
        self.rows = sum(
            connection.execute(
                f"SELECT count(*) FROM {table.name} WHERE {table.of_session}", (session_id,)
            ).fetchone()[0]
            for table in _FORKED
        )
        self.made = ForkResult(self._names[session_id], session_id, at_seq, "", 0, 0)

    def batches(self) -> Iterator[Iterator[None]]:
        """Each reads nothing and writes some of the copy when it is iterated, a few rows between two of its items; the
        last one lets it be seen. The source is read when the next batch is asked for, outside of transactions."""
        row, status = self._session()
        yield self._write("sessions", [row])
        yield from self._notes()
        for table in _FORKED:
            yield from self._table(table)
        yield self._revealed(status)

    # --- the session's own row ------------------------------------------------------------------------------

    def _session(self) -> tuple[Row, str]:
        """The row of the copy, and the status that it will have."""
        (row,) = self._rows("SELECT * FROM sessions WHERE id = ?", self._source)
        kept = self._cut.keep("sessions", row) if self._cut else row
        assert kept is not None
        at = self._now()
        open_still = kept["status"] in ("running", "paused")
        status = "paused" if open_still else str(kept["status"])
        reason = (
            f"forked from {self._source} at event #{self._at_seq}" if open_still else kept["status_reason"]
        )
        self._settings = kept["settings"]
        row = (
            self._renamed(kept)
            | {
                "id": self._names[self._source], "origin": "fork", "forked_from": self._source, "forked_at_seq": self._at_seq,
                "status": status, "status_reason": reason, "created_at": at, "last_active": at, "deleted_at": BEING_PURGED,
                "ordinal": None, "lease_epoch": 0, "host_pid": os.getpid(), "host_name": socket.gethostname(), "event_seq": self._at_seq,
                "title": self._title if self._title is not None else kept["title"], "source": None,
                "settings": unfinished_settings(()),
            }
        )  # fmt: skip
        return row, status

    def _source_epoch(self) -> tuple[int, int] | None:
        found = self._connection.execute(
            "SELECT lease_epoch, event_seq FROM sessions WHERE id = ?", (self._source,)
        ).fetchone()
        return tuple(found) if found is not None else None

    def _revealed(self, status: str) -> Iterator[None]:
        self._reveal(status)
        yield

    def _reveal(self, status: str) -> None:
        """The last change: the fork's own event, and the session can be seen."""
        if self._source_epoch() != self._epoch:  # the lease lapsed while the server was away
            raise DrivenElsewhere(f"session {self._source} continued during the fork; fork it again")
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
            "UPDATE sessions SET deleted_at = NULL, host_pid = NULL, host_name = NULL, event_seq = ?, settings = ?"
            " WHERE id = ?",
            (last + 1, self._settings, session_id),
        )
        agents = self._connection.execute(
            "SELECT count(*) FROM agents WHERE session_id = ?", (session_id,)
        ).fetchone()[0]
        self.made = ForkResult(session_id, self._source, self._at_seq, status, agents, self._messages)

    # --- tables ---------------------------------------------------------------------------------------------

    def _table(self, table: Table) -> Iterator[Iterator[None]]:
        if table.name == "task_dependencies" and self._cut is not None:
            yield self._write(table.name, [self._renamed(row) for row in self._cut.dependencies()])
            return
        texts, superseded = table.with_ids, list[tuple[int, int]]()
        for found in self._pages(table):
            kept = [one for row in found if (one := self._kept(table, row)) is not None]
            if table.name == "facts":
                superseded += [(one["id"], one["superseded_by"]) for one in kept if one["superseded_by"]]
            rows = [self._copied(table.name, texts, one) for one in kept]
            yield self._write(table.name, rows)
            self.rows_copied += len(found)
            self._messages += len(rows) if table.name == "messages" else 0
        if superseded:
            yield self._supersede(superseded)

    def _kept(self, table: Table, row: Row) -> Row | None:
        return self._cut.keep(table.name, row) if self._cut else row

    def _copied(self, table: str, texts: tuple[str, ...], kept: Row) -> Row:
        """A row of the copy, with the number of the first one still."""
        new = self._renamed(kept)
        for column in texts:
            if isinstance(new[column], str):
                new[column] = self._rewritten(new[column])
        if table == "state_changes":
            self._rename_change(new)
        if table == "events":
            new["data"] = self._renumbered(new["data"])
        return new

    def _write(self, table: str, rows: list[Row]) -> Iterator[None]:
        numbers = self._numbers.setdefault(table, {})
        is_numbered = table in BY_NAME and BY_NAME[table].numbered
        for start in range(0, len(rows), ROWS_AT_ONCE):
            with pipelined(self._connection):
                for row in rows[start : start + ROWS_AT_ONCE]:
                    old = int(row.pop("id")) if is_numbered or table == "messages" else 0
                    new_id = self._insert(table, row)
                    if is_numbered:
                        numbers[old] = new_id
            yield

    def _supersede(self, superseded: list[tuple[int, int]]) -> Iterator[None]:
        """What replaces a fact is younger than it."""
        numbers = self._numbers["facts"]
        for old, by in superseded:
            self._connection.execute(
                "UPDATE facts SET superseded_by = ? WHERE id = ?", (numbers.get(by), numbers[old])
            )
            yield

    def _rename_change(self, row: Row) -> None:
        """A change names the row that it changed, and of a fact the one that took its place."""
        facts = self._numbers.get("facts", {})
        if row["table_name"] == "facts":
            values = decode(row["old_values"])
            values["superseded_by"] = facts.get(values.get("superseded_by"))
            row |= {"row_id": str(facts.get(int(row["row_id"]))), "old_values": encode(values)}
        else:
            row["row_id"] = self._names.get(row["row_id"], row["row_id"])

    def _pages(self, table: Table) -> Iterator[list[Row]]:
        """The rows of the first session in the order in which they were written, some at a time."""
        keys = self._connection.execute(
            f"SELECT {table.owner}_id, {table.key} FROM {table.name} WHERE {table.of_session}"
            f" ORDER BY {table.in_order}",
            (self._source,),
        ).fetchall()
        start, count = 0, FIRST_BATCH_ROWS
        while start < len(keys):
            found = self._with_keys(table, [tuple(key) for key in keys[start : start + count]])
            yield found
            start += count
            characters = sum(len(value) for row in found for value in row.values() if isinstance(value, str))
            count = max(1, min(LARGEST_BATCH_ROWS, count * BATCH_CHARACTERS // max(characters, 1)))

    def _with_keys(self, table: Table, keys: list[tuple[Any, Any]]) -> list[Row]:
        """The rows with these owners and keys, in this order."""
        sql = f"SELECT * FROM {table.name} WHERE {table.key} {IN_LIST}"
        of_owner: dict[Any, list[Any]] = {}
        for owner, key in keys:
            of_owner.setdefault(owner, []).append(key)
        if table.has_unique_id:
            rows = self._rows(sql, list_of([key for _, key in keys]))
        else:
            sql += f" AND {table.owner}_id = ?"
            rows = [row for owner, some in of_owner.items() for row in self._rows(sql, list_of(some), owner)]
        found = {(row[f"{table.owner}_id"], row[table.key]): row for row in rows}
        return [found[key] for key in keys if key in found]

    def _renumbered(self, data: str) -> str:
        """An event's data with the fork's numbers of calls, passes, commands and facts."""
        if not any(f'"{name}":' in data for name in NUMBERS_IN_EVENTS):
            return data
        value: dict[str, Any] = decode(data)
        for name, table in NUMBERS_IN_EVENTS.items():
            if isinstance(value.get(name), int):
                value[name] = self._numbers.get(table, {}).get(value[name], value[name])
        return encode(value)

    def _notes(self) -> Iterator[Iterator[None]]:
        """Rewrite the program's own notes, with the fork's ids. The hidden row names them, for the process that removes it."""
        made: list[tuple[str, bytes]] = []
        for name in artifacts.notes_of(self._connection, self._source):
            text = artifacts.note_text(self._connection, name)
            new = self._rewritten(text) if text is not None else None
            if new is None or new == text:
                continue
            data = new.encode("utf-8", "replace")
            made.append((name, data))
            self._digests[name] = artifacts.digest(data)
            if sum(len(data) for _, data in made) > BATCH_CHARACTERS:
                yield self._put(made)
                made = []
        yield self._put(made)

    def _put(self, notes: list[tuple[str, bytes]]) -> Iterator[None]:
        store = Unfenced(self._connection, self._now())
        self._connection.execute(
            "UPDATE sessions SET settings = ? WHERE id = ?",
            (unfinished_settings(self._digests.values()), self._names[self._source]),
        )
        for _, data in notes:
            artifacts.put(store, data, "application/json")
            yield

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
        """Insert a row; returns its number, or 0 where the table has none."""
        known = self._inserts.get(table)
        if known is None or known[1] != list(row):
            columns = list(row)
            sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            known = self._inserts[table] = (sql, columns)
        made = self._connection.execute(known[0], list(row.values()))
        is_numbered = table in BY_NAME and BY_NAME[table].numbered
        return (made.lastrowid or 0) if is_numbered else 0


# --- The steps of a session from which it can be forked: turns of agents, and changes of the plan ---------

_KINDS = (
    "model.replied", "inbox.delivered", "plan.revised", "agent.created", "task.running", "task.done", "task.failed", "task.paused",
    "task.pending", "compaction.applied", "compaction.undo", "compaction.redo", "session.paused", "session.running", "session.forked",
)  # fmt: skip
_STEPS = (
    f"SELECT e.seq, e.at, e.kind, e.agent_id, {AGENT_NAME}, {TASK_NAME}, e.data FROM events e LEFT JOIN agents a ON a.id = e.agent_id"
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
    """The task's name, or nothing."""
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
