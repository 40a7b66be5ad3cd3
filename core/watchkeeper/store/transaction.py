"""A host's transaction on its session: fenced first, events numbered without gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from watchkeeper.store.driver import encode, plain
from watchkeeper.store.postgres import PostgresConnection

if TYPE_CHECKING:
    from watchkeeper.records.messages import Cost, Usage
    from watchkeeper.store.writer import Fence, Group


class Transaction:
    """What a batch may do on behalf of the host that drives `session_id` at `epoch`.

    Raises:
        LeaseLost: from the constructor, when another host has the session now.
    """

    def __init__(self, group: Group, session_id: str, epoch: int, now: float) -> None:
        self.session_id = session_id
        self.epoch = epoch
        self.now = now
        # One cursor for all statements: making one for each costs as much as a small INSERT.
        self._cursor = group.cursor
        self._group = group
        self._fence: Fence = group.fence(session_id, epoch, now)
        self.commit_seq = self._fence.event_seq + 1
        """The number of the first event that this transaction may write: every row that it inserts has it as
        `commit_seq`."""

    @property
    def connection(self) -> Any:
        """The connection that it writes with, or a cursor of it."""
        return self._cursor

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """Run one statement. A server is not waited for: an error may come with a later statement, or the commit."""
        self._run(sql, parameters)

    def changed(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement; returns the number of rows that it changed."""
        changed: int = self._run(sql, parameters).rowcount
        return changed

    def insert(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one INSERT; returns the new row's id."""
        if isinstance(self._cursor, PostgresConnection):
            return self._cursor.insert(sql, parameters)
        return int(self._run(sql, parameters).lastrowid or 0)

    def executemany(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row."""
        for row in rows:
            self._run(sql, row)

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        return self._run(sql, parameters).fetchone()

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        rows: list[Any] = self._run(sql, parameters).fetchall()
        return rows

    def _run(self, sql: str, parameters: Sequence[Any]) -> Any:
        try:
            return self._cursor.execute(sql, parameters)
        except UnicodeEncodeError:
            # A lone surrogate in a plain text (a title, a file's name, an error) is no reason to lose the
            # row.
            return self._cursor.execute(
                sql, [plain(value) if isinstance(value, str) else value for value in parameters]
            )

    def event(
        self, kind: str, *, agent_id: str | None = None, task_id: str | None = None, **data: Any
    ) -> int:
        """Append an event to the session's log; returns its `seq`."""
        self._fence.event_seq += 1
        self._fence.dirty = True
        self._cursor.execute(
            "INSERT INTO events (session_id, seq, at, kind, agent_id, task_id, data, commit_seq) VALUES (?, ?,"
            " ?, ?, ?, ?, ?, ?)",
            (
                self.session_id, self._fence.event_seq, self.now, kind, agent_id, task_id, encode(data),
                self.commit_seq,
            ),
        )  # fmt: skip
        return self._fence.event_seq

    def keep_replaced(self, table: str, row_id: str | int, *columns: str) -> None:
        """Keep the values of columns that this transaction is about to change, where no event and no
        append-only row tells them: `store.history` reads them. Where all are empty, there is nothing to keep."""
        row = self.one(f"SELECT {', '.join(columns)} FROM {table} WHERE id = ?", (row_id,))
        if row is not None and any(value not in (None, "[]") for value in row):
            self.execute(
                "INSERT INTO state_changes (session_id, commit_seq, table_name, row_id, old_values)"
                " VALUES (?, ?, ?, ?, ?)",
                (
                    self.session_id, self.commit_seq, table, str(row_id),
                    encode(dict(zip(columns, row, strict=True))),
                ),
            )  # fmt: skip

    @property
    def unflushed_usage(self) -> tuple[float | None, int]:
        """USD (None: nothing priced) and tokens that this group has added to the session and not yet written
        to its row."""
        return self._fence.cost_usd, sum(self._fence.tokens)

    @property
    def unflushed_by_session(self) -> dict[str, tuple[float | None, int]]:
        """As `unflushed_usage`, for each session that this group writes."""
        return {key[0]: (fence.cost_usd, sum(fence.tokens)) for key, fence in self._group.fences.items()}

    def add_usage(
        self, usage: Usage, cost: Cost, *, calls: int = 1, retries: int = 0, errors: int = 0
    ) -> None:
        """Add one model call to the session's running totals."""
        fence = self._fence
        fence.dirty = True
        mine = (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
        fence.tokens = tuple(a + b for a, b in zip(fence.tokens, mine, strict=True))  # type: ignore[assignment]
        if cost.usd is not None:
            fence.cost_usd = (fence.cost_usd or 0.0) + cost.usd
        unpriced = 1 if calls and cost.usd is None and usage.total_tokens else 0
        fence.counts = tuple(
            a + b for a, b in zip(fence.counts, (unpriced, calls, retries, errors), strict=True)
        )  # type: ignore[assignment]
