from __future__ import annotations

import os
import sqlite3 as _types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.agent_rows import create_agent
from tests.support.places import workspace_in

from watchkeeper.records.ports import ManualClock
from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper.store import database
from watchkeeper.store.place import Place
from watchkeeper.store.transaction import SessionStore, Transaction
from watchkeeper.store.writer import Writer


@pytest.fixture(autouse=True)
def _real_databases(as_users_have_them: None) -> None:
    """What they are like is what is tested here."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The tests of a module that says `ON_BOTH` run on SQLite and on PostgreSQL."""
    if "path" in metafunc.fixturenames and getattr(metafunc.module, "ON_BOTH", False):
        metafunc.parametrize("path", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where the database of the test is."""
    if getattr(request, "param", "sqlite") == "postgres":
        place: Place = request.getfixturevalue("postgres_place")
        return place
    return tmp_path / "watchkeeper.db"


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
    made = Writer(path)
    made.submit(lambda group: group.connection.execute("CREATE TABLE notes (value UNIQUE)") and None).result(
        10
    )
    yield made
    made.close()


@pytest.fixture
def other(path: Path, writer: Writer) -> Iterator[_types.Connection]:
    """Another connection to the writer's file: what it sees is committed."""
    connection = database.open_readonly(path, check_same_thread=False)
    yield connection
    connection.close()


@pytest.fixture
def start(tmp_path: Path, path: Path) -> Callable[[], str]:
    return lambda: create_session(path, NewSession("goal", workspace_in(tmp_path), "test/model"))


@pytest.fixture
def store(path: Path, start: Callable[[], str]) -> Iterator[SessionStore]:
    """A claimed session with the agents `a0` … `a3`."""
    made = SessionStore.claim(path, start(), ManualClock(), pid=os.getpid(), host_name="here")
    run(made, make_agents)
    yield made
    made.close()


def make_agents(tx: Transaction) -> None:
    for number in range(4):
        create_agent(tx, f"a{number}", name="a")


def run(store: SessionStore, change: Callable[[Transaction], Any]) -> Any:
    """A fenced transaction from a plain test."""
    return store.writer.submit(
        lambda group: change(Transaction(group, store.session_id, store.epoch, 1.0))
    ).result(10)
