"""How a session's name is understood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.records.states import SessionStatus
from watchkeeper.store import database, sessions
from watchkeeper.store.transaction import Transaction
from watchkeeper.store.writer import Group


def create(connection: Any, session_id: str = "s", created: float = 1.0, **about: Any) -> None:
    row = {"user_id": "u", "goal": "g", "workspace": ".", "model": "m", "settings": {}, "budgets": {}} | about
    sessions.create(Group(connection), session_id=session_id, now=created, **row)


@pytest.fixture
def named(path: Path) -> Any:
    """Sessions of these ids, created in this order; the clock ran backwards once."""
    connection = database.open_writable(path)
    for session_id, created in zip(
        ("abcd", "abce", "a%c", "a_d", "q\\r", "newest"), (1.0, 3.0, 2.0, 2.0, 2.0, 3.0), strict=True
    ):
        create(connection, session_id, created)
    yield connection
    connection.close()


def test_a_goal_with_a_lone_surrogate_is_kept_without_it_and_such_a_workspace_refused(path):
    connection = database.open_writable(path)
    create(connection, goal="caf\udce9")
    assert connection.execute("SELECT goal FROM sessions").fetchone() == ("caf\ufffd",)
    with pytest.raises(BadInput, match="not UTF-8; rename it"):
        create(connection, "t", workspace="/caf\udce9")
    connection.close()


def test_last_names_the_newest_and_of_equals_the_one_written_last(named: Any) -> None:
    assert sessions.find(named, "last") == "newest"


@pytest.mark.parametrize(
    ("name", "meant"), [("abcd", "abcd"), ("new", "newest"), ("a%", "a%c"), ("a_", "a_d"), ("q\\", "q\\r")]
)
def test_an_id_or_a_unique_prefix_names_its_session_and_wildcards_mean_themselves(named, name, meant):
    assert sessions.find(named, name) == meant


def test_an_ambiguous_prefix_lists_what_it_could_be(named: Any) -> None:
    with pytest.raises(BadInput, match="'abc' is ambiguous: abcd, abce; give more characters"):
        sessions.find(named, "abc")


@pytest.mark.parametrize(
    "name", ["", "%", "_", "zzz", "abcd%", "'; DROP TABLE sessions; --", "last ", "x" * 10_000, "\x00"]
)
def test_a_name_that_means_nothing_is_not_found(named: Any, name: str) -> None:
    with pytest.raises(NotFound, match="wk sessions"):
        sessions.find(named, name)


def test_last_in_an_empty_database_says_how_to_start(path: Path) -> None:
    connection = database.open_writable(path)
    with pytest.raises(NotFound, match="wk demo"):
        sessions.find(connection, "last")
    connection.close()


def test_a_session_that_is_done_can_go_on_and_cannot_be_cancelled(named: Any) -> None:
    tx = Transaction(Group(named), "abcd", epoch=0, now=5.0)
    sessions.set_status(tx, SessionStatus.DONE, "all is well")
    with pytest.raises(ValueError, match="done cannot become cancelled"):
        sessions.set_status(tx, SessionStatus.CANCELLED, "too late")
    row = "SELECT status, status_reason, ended_at FROM sessions WHERE id = 'abcd'"
    assert named.execute(row).fetchone() == ("done", "all is well", 5.0)
    sessions.set_status(tx, SessionStatus.RUNNING)
    assert named.execute(row).fetchone() == ("running", None, None)
