"""A session's rows as JSON values, one at a time: however long the session, one row is in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode, encode
from watchkeeper.transcripts.export.tables import INERT, INERT_OF_SESSION, SESSION, Table

Redact = Callable[[Any], Any]

_AGENTS = "SELECT t.rowid FROM agents a CROSS JOIN {0} t ON t.agent_id = a.id WHERE a.session_id = ?"
_PLANS = "SELECT t.rowid FROM plans p CROSS JOIN {0} t ON t.plan_id = p.id WHERE p.session_id = ?"
_TASKS = "SELECT t.rowid FROM tasks k CROSS JOIN {0} t ON t.task_id = k.id WHERE k.session_id = ?"
_OWN = "SELECT rowid FROM {0} WHERE session_id = ?"
_OWNED = {"session": _OWN, "agent": _AGENTS, "plan": _PLANS, "task": _TASKS}

_REFERENCE = re.compile(r"(?<=artifact://sha256/)[0-9a-f]{64}")


def owned(table: Table) -> str:
    """The query of a table's rowids that belong to the session `?`, by the shortest way that an index
    gives."""
    return _OWNED[table.owner].format(table.name)


class SessionRows:
    """The rows of one session as a document has them.

    Args:
        redact: takes secrets out of a JSON value (`records.redact.Redactor`); None leaves them in.
        renamed: digests of artifacts that have others without their secrets (see `references.Artifacts`).
    """

    def __init__(
        self,
        connection: Connection,
        session_id: str,
        redact: Redact | None = None,
        renamed: dict[str, str] | None = None,
    ) -> None:
        self._connection = connection
        self.session_id = session_id
        self._redact = redact or (lambda value: value)
        self._renamed = renamed or {}
        origin = connection.execute("SELECT origin FROM sessions WHERE id = ?", (session_id,)).fetchone()[0]
        self._inert = str(origin).startswith(INERT)

    def session(self) -> str:
        """The session's own row, as JSON text."""
        columns = ", ".join(SESSION.columns)
        row = self._connection.execute(
            f"SELECT {columns} FROM sessions WHERE id = ?",  # noqa: S608
            (self.session_id,),  # noqa: RUF100, S608
        ).fetchone()  # noqa: RUF100, S608
        return self._line(SESSION, row)

    def lines(self, table: Table) -> Iterator[str]:
        """Each row of a table as JSON text on one line, in the order in which they were written."""
        columns = ", ".join(table.columns)
        # The rowids alone are gathered and put in order; each row is read when its turn comes.
        rows = self._connection.execute(
            f"SELECT {columns} FROM {table.name} WHERE rowid IN ({owned(table)}) ORDER BY rowid",  # noqa: S608
            (self.session_id,),
        )
        for row in rows:
            yield self._line(table, row)

    def count(self, table: Table) -> int:
        """How many rows a table has of this session."""
        return int(
            self._connection.execute(f"SELECT count(*) FROM ({owned(table)})", (self.session_id,)).fetchone()[  # noqa: S608
                0
            ]
        )  # noqa: RUF100, S608

    def _line(self, table: Table, row: Any) -> str:
        plain = len(table.keys) + len(table.text)
        values = dict(zip(table.columns, tuple(row)[:plain], strict=False))
        if self._inert:
            for name in {"sessions": INERT_OF_SESSION, "facts": ("workspace",)}.get(table.name, ()):
                if values[name] is not None:
                    values[name] = values[name].removeprefix(INERT)
        for name in table.text:
            values[name] = self._redact(values[name])
        line = encode(values)
        for name, stored in zip(table.json, tuple(row)[plain:], strict=True):
            # What holds no secret is written as it is stored: it is JSON already.
            line = f'{line[:-1]},"{name}":{self._json(table, name, stored)}}}'
        if self._renamed:
            line = _REFERENCE.sub(lambda match: self._renamed.get(match[0], match[0]), line)
            if table.name == "outputs":
                line = line.replace(
                    f'"digest":"{values["digest"]}"',
                    f'"digest":"{self._renamed.get(values["digest"], values["digest"])}"',
                )
        return line

    def _json(self, table: Table, name: str, stored: str | None) -> str:
        if stored is None:
            return "null"
        try:
            value = decode(stored)
        except ValueError as error:
            raise StoreUnusable(
                f"{table.name}.{name} of session {self.session_id} holds what is no JSON ({error}); restore"
                " a backup"
            ) from None
        clean = self._redact(value)
        return stored if clean is value else encode(clean)
