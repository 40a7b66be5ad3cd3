"""The migrations of existing databases. A released migration is never edited; a change is a new one.

A new database is made from the catalogue of tables instead (`store.schema`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from watchkeeper.store.faultpoints import reach

if TYPE_CHECKING:
    from sqlite_utils import Database, Migrations

    from watchkeeper.store.driver import Connection

OLDEST_SCHEMA = 10
"""The schema from which the migrations begin. Earlier ones were never released; their files are refused."""

_STEPS = {
    # What an answer of a person rests on, why a task runs again.
    "eleventh": (
        "ALTER TABLE approvals ADD COLUMN premises TEXT",
        "ALTER TABLE agents ADD COLUMN tools TEXT",
        "ALTER TABLE tasks ADD COLUMN rerun_reason TEXT",
    ),
    # What an agent had done up to the end of an observation.
    "twelfth": ("ALTER TABLE observations ADD COLUMN ledger TEXT",),
    # What is left of the usage windows of providers.
    "thirteenth": (
        "CREATE TABLE quota_readings (provider TEXT NOT NULL, account TEXT NOT NULL, scope TEXT NOT NULL,"
        " minutes INTEGER NOT NULL, used_percent REAL NOT NULL, resets_at REAL, read_at REAL NOT NULL,"
        " source TEXT NOT NULL, first_percent REAL NOT NULL, first_at REAL NOT NULL, alerted_percent REAL,"
        " PRIMARY KEY (provider, account, scope, minutes))",
    ),
}

SCHEMA_VERSION = OLDEST_SCHEMA + len(_STEPS)
"""`PRAGMA user_version` of a file of this program. A higher one was written by a newer program."""


def migrations() -> Migrations:
    """Every migration, oldest first. Imports sqlite-utils only when called: viewers never do."""
    from sqlite_utils import Migrations

    steps = Migrations("watchkeeper")
    for name in _STEPS:
        steps(name=name)(_step(name))
    return steps


def _step(name: str) -> Callable[[Database], None]:
    def apply(db: Database) -> None:
        for statement in _STEPS[name]:
            db.execute(statement)
            reach("migration.statement")

    return apply


def note_all_applied(connection: Connection) -> None:
    """Write into a new database that it needs none of the migrations, as sqlite-utils does."""
    connection.execute(
        'CREATE TABLE "_sqlite_migrations" ("id" INTEGER PRIMARY KEY, "migration_set" TEXT, "name" TEXT,'
        ' "applied_at" TEXT)'
    )
    connection.execute(
        'CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name" ON "_sqlite_migrations"'
        ' ("migration_set", "name")'
    )
    connection.executemany(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('watchkeeper', ?,"
        " CURRENT_TIMESTAMP)",
        [(name,) for name in _STEPS],
    )
