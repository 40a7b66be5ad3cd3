"""Titles and tags, and deleting with a way back, of sessions that nobody drives."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.library.conftest import add_session, put

from watchkeeper.records.errors import BadInput, DrivenElsewhere, LeaseLost, NotFound
from watchkeeper.store import database, facts, sessions, state
from watchkeeper.store.driver import Queries, sqlite3
from watchkeeper.store.lease import Lease, lock_path
from watchkeeper.store.library import (
    change_tags,
    delete_session,
    deleted_sessions,
    find_deleted,
    rename_session,
    restore_session,
)
from watchkeeper.store.prune import plan_prune, prune_sessions
from watchkeeper.store.search.messages import list_sessions
from watchkeeper.store.writer import Group


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "watchkeeper.db"


def value(connection: Any, column: str, session_id: str = "abcd2345") -> Any:
    return connection.execute(f"SELECT {column} FROM sessions WHERE id = ?", (session_id,)).fetchone()[0]


def test_a_title_stands_for_the_goal_until_it_is_taken_away(connection: Any, path: Path) -> None:
    add_session(connection, "abcd2345")
    assert rename_session(path, "abcd2345", "  the\n  big one ") == "the big one"
    assert value(connection, "title") == "the big one"
    assert rename_session(path, "abcd2345", " ") is None
    assert value(connection, "title") is None
    with pytest.raises(BadInput, match="the limit is 400"):
        rename_session(path, "abcd2345", "x" * 401)


def test_tags_are_added_once_and_taken_away_whatever_their_case(connection: Any, path: Path) -> None:
    add_session(connection, "abcd2345", tags='["old"]')
    assert change_tags(path, "abcd2345", add=["#Nightly", "nightly", "+keep"]) == ("old", "Nightly", "keep")
    assert change_tags(path, "abcd2345", remove=["NIGHTLY"]) == ("old", "keep")
    assert value(connection, "tags") == '["old","keep"]'


@pytest.mark.parametrize("tag", ["", "two words", "a,b", 'quo"te', "x" * 61, "\x1b[31m", "#"])
def test_what_is_no_tag_is_refused(connection: Any, path: Path, tag: str) -> None:
    add_session(connection, "abcd2345")
    with pytest.raises(BadInput):
        change_tags(path, "abcd2345", add=[tag])
    assert value(connection, "tags") == "[]"


def test_a_session_that_a_live_host_drives_is_not_changed(connection: Any, path: Path) -> None:
    add_session(connection, "abcd2345", status="running")
    lease = Lease.acquire(path, "abcd2345")
    for change in (
        lambda: rename_session(path, "abcd2345", "other"),
        lambda: change_tags(path, "abcd2345", add=["x"]),
        lambda: delete_session(path, "abcd2345"),
    ):
        with pytest.raises(DrivenElsewhere, match="wk pause abcd2345"):
            change()
    lease.release()
    assert (value(connection, "title"), value(connection, "tags"), value(connection, "deleted_at")) == (
        None,
        "[]",
        None,
    )
    assert rename_session(path, "abcd2345", "other") == "other"


def test_a_name_that_is_no_session_is_told(connection: Any, path: Path) -> None:
    with pytest.raises(NotFound, match="no session 'nothing2'"):
        rename_session(path, "nothing2", "x")


def test_a_deleted_session_is_in_no_list_and_no_name_means_it(connection: Any, path: Path) -> None:
    add_session(connection, "abcd2345", created_at=5.0, last_active=5.0)
    add_session(connection, "older234")
    gone = delete_session(path, "abcd2345", now=1000.0)
    assert (gone.name, gone.gone_at) == ("goal of abcd2345", 1000.0 + 7 * 86_400)
    assert [row.id for row in list_sessions(Queries(connection))] == ["older234"]
    assert [row.id for row in list_sessions(Queries(connection), "goal")] == ["older234"]
    assert [row.id for row in list_sessions(Queries(connection), "state:done")] == ["older234"]

    with closing(database.open_readonly(path)) as other:
        other.row_factory = sqlite3.Row
        assert [row["id"] for row in state.summaries(Queries(other))] == ["older234"]
    assert sessions.find(connection, "last") == sessions.newest_session(connection) == "older234"
    with pytest.raises(NotFound, match="restore it with `wk delete --restore abcd2345`"):
        sessions.find(connection, "abcd2345")
    with pytest.raises(NotFound):
        sessions.find(connection, "abcd")


def test_agents_of_later_sessions_recall_nothing_of_a_deleted_one(connection: Any, path: Path) -> None:
    add_session(connection, "abcd2345")
    add_session(connection, "later234")
    for session_id, text in (("abcd2345", "always answer in Latin"), ("later234", "keep it short")):
        put(connection, "facts", session_id=session_id, workspace="/w", scope="workspace", kind="instruction", text=text, digest=text,
            pinned=1, created_at=1.0)  # fmt: skip

    reads = Queries(connection)

    def recalled() -> set[str]:
        pinned = {row[2] for row in facts.pinned_facts(reads, "later234")}
        assert pinned == {
            row[2] for row in facts.find_facts(reads, "later234", ["always", "keep"], workspace="/w")
        }
        return pinned

    connection.execute("UPDATE sessions SET workspace = '/w'")
    assert recalled() == {"always answer in Latin", "keep it short"}
    delete_session(path, "abcd2345")
    assert recalled() == {"keep it short"}
    restore_session(path, "abcd2345")
    assert recalled() == {"always answer in Latin", "keep it short"}


def test_what_was_deleted_comes_back_as_it_was(connection: Any, path: Path) -> None:
    add_session(connection, "abcd2345", tags='["x"]')
    before = connection.execute("SELECT * FROM sessions").fetchone()
    delete_session(path, "abcd2345", now=1000.0)
    assert [one.id for one in deleted_sessions(connection)] == ["abcd2345"]
    assert find_deleted(connection, "ab") == find_deleted(connection, "last") == "abcd2345"
    with pytest.raises(BadInput, match="already deleted"):
        delete_session(path, "abcd2345")
    restore_session(path, "abcd2345")
    assert deleted_sessions(connection) == ()
    assert sessions.find(connection, "last") == "abcd2345"
    after = connection.execute("SELECT * FROM sessions").fetchone()
    epoch = [column[0] for column in connection.execute("SELECT * FROM sessions").description].index(
        "lease_epoch"
    )
    found = [one for at, one in enumerate(after) if at != epoch]
    assert found == [one for at, one in enumerate(before) if at != epoch]
    with pytest.raises(BadInput, match="has not been deleted"):
        restore_session(path, "abcd2345")


def test_a_host_that_was_suspended_writes_nothing_to_a_deleted_session(connection: Any, path: Path) -> None:
    add_session(connection, "abcd2345", lease_epoch=3)
    delete_session(path, "abcd2345")
    with pytest.raises(LeaseLost):
        Group(connection).fence("abcd2345", 3, 1.0)


def test_the_lease_is_free_again_after_a_change(connection: Any, path: Path) -> None:
    add_session(connection, "abcd2345")
    rename_session(path, "abcd2345", "x")
    with pytest.raises(BadInput):
        change_tags(path, "abcd2345", add=[f"t{n}" for n in range(60)])
    Lease.acquire(path, "abcd2345").release()
    assert lock_path(path, "abcd2345").exists()


CLOCK = st.floats(min_value=1.0, max_value=9.0)
STEP = st.one_of(
    st.tuples(
        st.just("add"), st.sampled_from(["run", "fork", "claude-code", "codex", "export:run"]), CLOCK, CLOCK
    ),
    st.tuples(st.sampled_from(["delete", "restore"]), st.integers(0, 30), CLOCK),
    st.tuples(st.just("purge"), st.integers(0, 30)),
)


@settings(max_examples=25)
@given(st.lists(STEP, min_size=3, max_size=14))
def test_last_is_the_last_added_own_session_to_act_on_and_the_last_active_to_look_at(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("last") / "watchkeeper.db"
    connection = database.open_writable(path)
    added: list[tuple[str, str]] = []
    deleted: list[str] = []
    for number, (kind, *about) in enumerate(steps):
        live = [session_id for session_id, _ in added if session_id not in deleted]
        if kind == "add":
            origin, created, active = about
            added.append((f"s{number:07d}", origin))
            add_session(connection, added[-1][0], origin=origin, created_at=created, last_active=active)
        elif kind == "delete" and live:
            deleted.append(live[about[0] % len(live)])
            delete_session(path, deleted[-1], now=about[1])
        elif kind == "restore" and deleted:
            restore_session(path, deleted.pop(about[0] % len(deleted)))
        elif kind == "purge" and deleted:
            gone = deleted.pop(about[0] % len(deleted))
            prune_sessions(path, plan_prune(path, names=[gone], now=10.0))
            added = [one for one in added if one[0] != gone]
    shown = [one for one in added if one[0] not in deleted]
    own = [session_id for session_id, origin in shown if origin in ("run", "fork")]
    assert sessions.newest_session(connection) == (shown[-1][0] if shown else None)
    assert sessions.newest_session(connection, own=True) == (own[-1] if own else None)
    if shown:
        active = {row[0]: row[1] for row in connection.execute("SELECT id, last_active FROM sessions")}
        assert active[sessions.find(connection, "last")] == max(active[each] for each, _ in shown)
        assert sessions.find(connection, "last", own=True) == (own or [shown[-1][0]])[-1]
    assert [one.id for one in deleted_sessions(connection)] == deleted[::-1]
    connection.close()
