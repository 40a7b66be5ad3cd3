"""A plugin for pytest: every database that the tests keep in a file is a database of a PostgreSQL server instead.

    .ci/heavy postgres-suites [tests/core/runtime …]

So whole suites that were written for files run on PostgreSQL: those of the store and the runtime, unless others are named.
Left out is what is about the files themselves (`OF_FILES`), and what runs on a server anyway. Leases stay those of files.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.postgres import SERVER, ScratchServer, database_url, on_server, programs

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store import database, postgres
from watchkeeper.store.driver import Connection

TEMPLATE = "wk_files_template"
OF_FILES = {
    "test_database", "test_migrations", "test_folders", "test_lease_files", "test_changes", "test_query_plans",
    "test_writer", "test_writer_shortages", "test_placement",
    "test_carrying_imported",  # imports go to files
    "test_an_artifact_that_was_damaged_in_the_file_is_told_and_never_returned",
    "test_messages_observations_and_views_come_back_as_they_were",  # NUL, which PostgreSQL cannot hold
    "test_a_jump_reads_no_more_in_a_longer_session", "test_without_a_budget_no_reservation_is_written",  # SQLite's own steps
    "test_a_host_whose_epoch_was_taken_writes_nothing_more",  # opens the file by itself
}  # fmt: skip
"""Modules and tests about files, or about what only SQLite does."""
_INSTEAD = {
    "integrity_check": "SELECT 'ok'",
    "data_version": "SELECT CAST(pg_current_snapshot() AS text)",
    "user_version": "SELECT version FROM schema_version",
}
_made: dict[str, Path] = {}
_making = threading.Lock()
_server: list[str] = []


class _FileConnection(postgres.PostgresConnection):
    """A connection that answers what is asked of files alone."""

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> postgres.PostgresCursor:
        if sql.startswith("PRAGMA"):
            sql = next((instead for name, instead in _INSTEAD.items() if name in sql), "SELECT 0, 0, 0")
            parameters = ()
        return super().execute(sql, parameters)

    def set_progress_handler(self, *_: object) -> None:
        """Nothing: searches end by themselves."""


def _opened(path: Path, *, read_only: bool) -> Connection:
    name = "wk_file_" + hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:20]
    with _making:
        if name not in _made:
            if read_only:
                raise StoreUnusable(
                    f"no database at {path}; start a run with `wk run GOAL` or `wk demo`, or choose one with --db"
                )
            on_server(_server[0], f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            _made[name] = path
    return cast(Connection, _FileConnection(database_url(_server[0], name), read_only=read_only))


def _open_writable(path: Path, *, check_same_thread: bool = True) -> Connection:
    return _opened(path, read_only=False)


def _open_readonly(
    path: Path, *, check_same_thread: bool = True, lock_timeout_seconds: float | None = None
) -> Connection:
    return _opened(path, read_only=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not about the store's contract; the summary counts it."""
    out = [one for one in items if _is_left_out(one)]
    items[:] = [one for one in items if one not in out]
    config.hook.pytest_deselected(items=out)


def _is_left_out(test: pytest.Item) -> bool:
    names = {test.path.stem, test.name.partition("[")[0]}
    return bool(names & OF_FILES) or "postgres_server" in getattr(test, "fixturenames", ())


def pytest_configure(config: pytest.Config) -> None:
    """Start a server, or use the one that is named, and put it in the place of files."""
    import os

    given = os.environ.get(SERVER)
    if given is None:
        binaries = programs()
        if binaries is None:
            raise pytest.UsageError(f"no PostgreSQL is installed here; {SERVER} may name a server")
        server = ScratchServer(binaries)
        server.start("max_connections=400")
        config.add_cleanup(server.remove)
        given = server.url
    _server.append(given)
    on_server(given, f"DROP DATABASE IF EXISTS {TEMPLATE} WITH (FORCE)", f"CREATE DATABASE {TEMPLATE}")
    database._open_server(database_url(given, TEMPLATE)).close()
    database.open_writable = _open_writable  # type: ignore[assignment]
    database.open_readonly = _open_readonly  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _databases_of_this_test_alone() -> Iterator[None]:
    yield
    names = list(_made)
    _made.clear()
    on_server(_server[0], *(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for name in names))


if __name__ == "__main__":
    import sys

    named = any(one.startswith("tests") for one in sys.argv[1:])
    suites = [] if named else ["tests/core/store", "tests/core/runtime"]
    sys.exit(pytest.main(["-q", "-n", "0", "-p", "tests.support.files_on_postgres", *suites, *sys.argv[1:]]))
