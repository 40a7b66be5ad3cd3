"""Keeping the library of sessions in order from the command line."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.core.cli.conftest import Wk

from watchkeeper.store import database
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.lease import Lease


def session_of(demo: Path) -> str:
    connection = database.open_readonly(demo)
    (found,) = connection.execute("SELECT id FROM sessions").fetchone()
    connection.close()
    return str(found)


def test_a_session_is_renamed_and_tagged(wk: Wk, demo: Path) -> None:
    session = session_of(demo)
    assert wk("edit", "last", "--title", "the first survey").out == f"session {session}: the first survey\n"
    assert wk("edit", session[:5], "--tag", "keep", "--tag", "nightly", "--json").json == {
        "session": session,
        "title": "the first survey",
        "tags": ["keep", "nightly"],
    }
    assert wk("edit", "last", "--untag", "nightly").out == f"session {session}: #keep\n"
    both = wk("edit", "last", "--title", "", "--tag", "new", "--untag", "keep")
    assert both.out == f"session {session}: no title  #new\n"
    assert "specify a change" in wk("edit", "last").error


def test_what_an_edit_refuses_changes_nothing(wk: Wk, demo: Path) -> None:
    before = wk("sessions", "--json").json
    assert "is not a valid tag" in wk("edit", "last", "--title", "x", "--tag", "two words").error
    assert "the limit is 400" in wk("edit", "last", "--tag", "x", "--title", "x" * 401).error
    assert wk("sessions", "--json").json == before


def test_a_deleted_session_is_gone_until_it_is_restored(wk: Wk, demo: Path) -> None:
    session = session_of(demo)
    assert f"`wk delete --restore {session}` restores it" in wk("delete", "last").out
    assert wk("sessions", "--json").json == []
    gone = wk("show", session)
    assert gone.code == 3
    assert f"`wk delete --restore {session}`" in gone.error
    assert session in wk("delete", "--restore").out
    assert wk("delete", "--restore", "--json").json[0]["session"] == session
    assert wk("delete", "--restore", session[:4]).out == f"session {session} restored\n"
    assert wk("show", "last").code == 0
    assert wk("delete", "--restore", session).code == 3


def test_a_fork_is_resumed_to_the_same_end(wk: Wk, demo: Path) -> None:
    session = session_of(demo)
    survey = wk("artifacts", session, "SURVEY.md").out
    made = wk("fork", session, "--at", "src:2", "--title", "another way", "--json").json
    assert (made["forked_from"], made["status"]) == (session, "paused")
    assert wk("resume", "last", "--headless").code == 0
    assert wk("artifacts", made["session"], "SURVEY.md").out == survey
    whole = wk("fork", session)
    assert f"is a fork of {session} at event #" in whole.out
    assert "it is done" in whole.out


@pytest.mark.parametrize(("step", "code", "told"), [
    ("zzz", 2, "invalid step"), ("nobody:3", 3, "no agent 'nobody'"), ("planner:999", 3, "has no turn 999"), ("99999", 3, "has no event #99999"),
])  # fmt: skip
def test_a_step_that_is_none_is_told(wk: Wk, demo: Path, step: str, code: int, told: str) -> None:
    said = wk("fork", "last", "--at", step)
    assert (said.code, told in said.error) == (code, True)


def test_prune_says_what_would_go_and_then_takes_it(wk: Wk, demo: Path) -> None:
    session = session_of(demo)
    plan = wk("delete", "--prune", "--older-than", "0d", "--dry-run", "--json").json
    assert [one["session"] for one in plan["sessions"]] == [session]
    assert plan["bytes"] > 10_000
    assert "1 session would be deleted" in wk("delete", "--prune", "--keep", "0", "--dry-run").out
    assert "nothing to prune" in wk("delete", "--prune", "--older-than", "1y").out
    assert wk("show", session).code == 0
    done = wk("delete", "--prune", "--older-than", "0d")
    assert "1 session and" in done.out
    assert "file size reduced from" in done.out
    assert wk("sessions", "--json").json == []


def test_prune_takes_a_deleted_session_by_name_before_its_window_is_over(wk: Wk, demo: Path) -> None:
    session = session_of(demo)
    wk("delete", session)
    assert "nothing to prune" in wk("delete", "--prune").out
    assert wk("delete", "--prune", session, "--json").json["pruned"] == [session]
    assert wk("delete", "--restore", session).code == 3


def test_odd_conditions_are_told(wk: Wk, demo: Path) -> None:
    assert "invalid age" in wk("delete", "--prune", "--older-than", "soon").error
    assert "invalid size" in wk("delete", "--prune", "--larger-than", "big").error
    assert "not both" in wk("delete", "--prune", "last", "--keep", "1").error


def test_what_a_live_host_drives_is_left_alone_with_exit_code_4(wk: Wk, demo: Path) -> None:
    session = session_of(demo)
    lease = Lease.acquire(demo, session)
    try:
        for command in (
            ("edit", session, "--title", "x"), ("edit", session, "--tag", "x"), ("delete", session), ("fork", session),
            ("delete", "--prune", session),
        ):  # fmt: skip
            said = wk(*command)
            assert (said.code, f"`wk pause {session}`" in said.error) == (4, True)
        assert "nothing to prune" in wk("delete", "--prune", "--older-than", "0d").out
    finally:
        lease.release()


def test_the_same_prune_again_finishes_one_that_was_killed(wk: Wk, demo: Path) -> None:
    session = wk("show", "last", "--json").json["session"]["id"]
    command = [sys.executable, "-m", "watchkeeper", "delete", "--prune", session, "--yes"]
    killed = subprocess.run(
        command, env=os.environ | {"WATCHKEEPER_FAULT": "library.after_commit:1"}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    connection = sqlite3.connect(demo)
    assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (1,), (
        "it was not killed half way"
    )
    assert wk("sessions", "--json").json == []
    again = wk("delete", "--prune", session[:5], "--yes", "--json")
    assert (again.code, again.json["pruned"]) == (0, [session])
    assert connection.execute("SELECT count(*) FROM sessions").fetchone() == (0,)
    connection.close()
    assert wk("delete", "--prune", session, "--yes").code == 3


def test_a_backup_is_used_like_the_database(wk: Wk, demo: Path, tmp_path: Path) -> None:
    target = tmp_path / "copies" / "monday.db"
    assert "no folder" in wk("backup", target).error
    target.parent.mkdir()
    assert wk("backup", target, "--json").json["sessions"] == 1
    assert wk("sessions", "--db", target, "--json").json == wk("sessions", "--json").json
    assert "already exists" in wk("backup", target).error
    assert wk("backup", target, "--overwrite").code == 0
    assert wk("backup", demo, "--overwrite").code == 2


def test_a_tool_of_a_run_may_not_keep_the_library(wk, demo, monkeypatch):
    monkeypatch.setenv("WATCHKEEPER_AGENT", "abcd2345")
    for command in (("edit", "last", "--title", "x"), ("edit", "last", "--tag", "x"), ("delete", "last"), ("delete", "--restore", "last"), ("fork", "last"),
                    ("delete", "--prune", "last"), ("backup", "x.db")):  # fmt: skip
        assert "WATCHKEEPER_AGENT" in wk(*command).error


def test_a_run_beside_its_database_is_refused_and_the_command_in_the_message_moves_it(
    wk: Wk, demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    workspace = tmp_path / "project"
    workspace.mkdir()
    there = workspace / "runs.db"
    os.rename(demo, there)
    monkeypatch.chdir(workspace)
    for arguments in (
        ("demo", "--workspace", "."),
        ("run", "x"),
        ("demo", "--workspace", workspace, "--headless"),
    ):
        refused = wk(*arguments, "--speed", "max", "--db", "runs.db")
        assert refused.code == 2
        assert "move it with `wk backup --move" in refused.error
        assert refused.error.count("\n") <= 1
    assert len(wk("sessions", "--db", there, "--json").json) == 1
    command = shlex.split(refused.error.split("`")[1])
    moved = wk(*command[1:])
    assert moved.code == 0, moved.error
    assert list(workspace.iterdir()) == []
    ran = wk("demo", "--headless", "--json", "--speed", "max", "--workspace", workspace, "--db", command[-1])
    assert ran.code == 0, ran.error
    assert len(wk("sessions", "--db", command[-1], "--json").json) == 2
    assert wk("backup", "--move", "--overwrite", "--db", command[-1], tmp_path / "x.db").code == 2


def test_a_database_of_imports_alone_may_be_in_any_folder(wk, demo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert wk("export", "last", "--format", "json", "--output", tmp_path / "e.json").code == 0
    assert wk("import", tmp_path / "e.json", "--db", tmp_path / "imports.db").code == 0
    assert len(wk("sessions", "--db", tmp_path / "imports.db", "--json").json) == 1
