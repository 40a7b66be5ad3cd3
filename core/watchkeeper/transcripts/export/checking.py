"""What a row of a document may hold: a file from elsewhere must not bring values that no reader of the store
expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watchkeeper.records import states
from watchkeeper.records.memory import ObservationKind
from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import encode, plain
from watchkeeper.transcripts.export.tables import Table

_ALLOWED: Mapping[tuple[str, str], frozenset[str]] = {
    key: frozenset(str(value) for value in values)
    for key, values in {
        ("sessions", "status"): states.SessionStatus,
        ("tasks", "status"): states.TaskStatus,
        ("agents", "status"): states.AgentStatus,
        ("tool_calls", "status"): states.ToolCallStatus,
        ("model_calls", "status"): states.ModelCallStatus,
        ("commands", "status"): states.CommandStatus,
        ("approvals", "status"): states.ApprovalStatus,
        ("compactions", "status"): states.CompactionStatus,
        ("observations", "kind"): ObservationKind,
        ("messages", "role"): ("user", "assistant"),
        ("facts", "scope"): ("agent", "session", "workspace"),
    }.items()
}

_TEXTS = frozenset({"task_queue", "inputs_ref", "expected_outputs", "artifact_refs", "sources", "tags"})
_NUMBERS = frozenset({"citations", "replaces", "observations"})
_OBJECTS = frozenset({"settings", "composition", "payload", "data"})
_LARGEST = 1 << 62


class Columns:
    """The declared types of a table's columns, by which rows are checked and made ready to insert."""

    def __init__(self, connection: Connection, table: Table) -> None:
        self.table = table
        declared = connection.execute(
            'SELECT name, type, "notnull" FROM pragma_table_info(?)', (table.name,)
        ).fetchall()
        self._types = {str(name): (str(kind), bool(required)) for name, kind, required in declared}
        self.sql = f"INSERT INTO {table.name} ({', '.join(table.columns)}) VALUES ({', '.join('?' * len(table.columns))})"  # noqa: S608

    def values(self, row: Any) -> dict[str, Any]:
        """The row's values by column, ready to bind.

        Raises:
            ValueError: what is wrong with it.
        """
        if not isinstance(row, dict):
            raise ValueError(f"a row of {self.table.name} is no object")
        unknown = row.keys() - set(self.table.columns)
        if unknown:
            raise ValueError(f"{self.table.name} has no column {sorted(unknown)[0]!r}")
        return {name: self._value(name, row.get(name)) for name in self.table.columns}

    def _value(self, name: str, value: Any) -> Any:
        kind, required = self._types[name]
        where = f"{self.table.name}.{name}"
        if name in self.table.json and not (value is None and not required):
            if not _has_shape(name, value):
                raise ValueError(f"{where} is not of the shape that it has")
            return encode(value)
        if value is None:
            if required:
                raise ValueError(f"{where} is missing")
            return None
        if isinstance(value, bool):
            raise ValueError(f"{where} is true or false")
        if kind == "TEXT" and isinstance(value, str):
            allowed = _ALLOWED.get((self.table.name, name))
            if allowed is not None and value not in allowed:
                raise ValueError(f"{where} cannot be {value[:40]!r}")
            return plain(value)
        if kind == "INTEGER" and isinstance(value, int) and abs(value) < _LARGEST:
            return value
        if kind == "REAL" and isinstance(value, int | float) and abs(value) < 1e300:
            return float(value)
        raise ValueError(f"{where} is no {kind.lower()}")


def _has_shape(name: str, value: Any) -> bool:
    if name == "content":
        return isinstance(value, str) or _is_list(value, dict)
    if name in _TEXTS:
        return _is_list(value, str)
    if name in _NUMBERS:
        return _is_list(value, int)
    if name in _OBJECTS:
        return isinstance(value, dict)
    if name in ("plan_graph_snapshot", "roles"):
        return _is_list(value, dict)
    if name == "elided":
        return _is_list(value, list) and all(
            [type(part) for part in one] == [int, int, int, str, int] for one in value
        )
    return True


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(one, kind) for one in value)
