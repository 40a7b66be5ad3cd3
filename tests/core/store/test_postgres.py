"""The store on PostgreSQL."""

from __future__ import annotations

from contextlib import closing

from watchkeeper.store import database
from watchkeeper.store.place import DatabaseUrl


def test_each_test_has_an_empty_database_of_its_own(postgres_place: DatabaseUrl) -> None:
    with closing(database.open_writable(postgres_place)) as connection:
        assert connection.execute("SELECT count(*) FROM sessions").fetchone()[0] == 0
