"""The tables, as migrations. A migration that has been released is never edited; a change is a new one.

Column names are the vocabulary of the whole program. JSON columns hold objects or lists as text. Times are
seconds since 1970 (UTC). Only rowid tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchkeeper.store.migrations.first import FIRST
from watchkeeper.store.migrations.second import SECOND
from watchkeeper.store.migrations.third import THIRD

if TYPE_CHECKING:
    from sqlite_utils import Database, Migrations

APPLICATION_ID = 0x57_4B_50_52
"""`PRAGMA application_id` of every Watchkeeper database ("WKPR")."""

SCHEMA_VERSION = 3
"""`PRAGMA user_version`: how many migrations made the file. A higher one was written by a newer program."""


def migrations() -> Migrations:
    """Every migration, oldest first. Imports sqlite-utils only when called: viewers never do."""
    from sqlite_utils import Migrations

    from watchkeeper.store.faultpoints import reach

    steps = Migrations("watchkeeper")

    @steps()
    def first(db: Database) -> None:
        for statement in statements(FIRST):
            db.execute(statement)
        db.table("facts").enable_fts(
            ["text"], create_triggers=True, tokenize="porter unicode61 remove_diacritics 2"
        )

    @steps()
    def second(db: Database) -> None:
        for statement in statements(SECOND):
            db.execute(statement)
            reach("migration.statement")

    @steps()
    def third(db: Database) -> None:
        for statement in statements(THIRD):
            db.execute(statement)
            reach("migration.statement")

    return steps


def statements(script: str) -> list[str]:
    """Split a script at the semicolons that end statements (a trigger's body holds some that do not)."""
    from watchkeeper.store.driver import sqlite3

    found: list[str] = []
    piece = ""
    for part in script.split(";"):
        piece += part + ";"
        if sqlite3.complete_statement(piece):
            if piece.strip(" \n;"):
                found.append(piece.strip())
            piece = ""
    return found
