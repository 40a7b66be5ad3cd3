"""A session that a budget paused: what is used, what the limit is, and a new limit before anything starts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click
import pytest
from tests.core.cli.conftest import Wk, rows
from tests.core.store.test_migrations import earlier_version

from watchkeeper import Runtime
from watchkeeper.cli import run
from watchkeeper.models.surveyor import START_AGAIN
from watchkeeper.records.errors import BadInput
from watchkeeper.store.driver import sqlite3


@pytest.fixture
def spent(wk: Wk, tmp_path: Path) -> str:
    """A demo that its budget of 3 turns has paused; gives its id."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "main.py").write_text("print(1)\n")
    ended = wk(
        "demo", "--headless", "--speed", "max", "--workspace", tmp_path / "folder", "--budget-turns", 3
    )
    assert ended.code == 5
    session = str(wk("sessions", "--json").json[0]["id"])
    assert "the session has used 3 turns of its budget of 3 turns" in ended.out
    assert ended.out.splitlines()[-1].strip() == f"continue   wk resume {session} --budget-turns +3"
    return session


def hosts(tmp_path: Path) -> int:
    return int(
        rows(tmp_path / "watchkeeper.db", "SELECT count(*) FROM events WHERE kind = 'host.started'")[0][0]
    )


def test_without_a_terminal_a_resume_says_what_is_used_and_starts_no_host(wk, spent, tmp_path):
    for arguments in ((), ("--headless",), ("--detach",)):
        refused = wk("resume", "last", *arguments)
        assert refused.code == 5
        assert "the session has used 3 turns of its budget of 3 turns" in refused.out
        assert refused.out.splitlines()[-1].strip() == f"to raise it: wk resume {spent} --budget-turns +3"
    shown = wk("resume", "last", "--json")
    assert shown.code == 5
    assert (shown.json["status"], shown.json["next"]) == ("paused", f"wk resume {spent} --budget-turns +3")
    assert shown.json["reached_budgets"] == [
        {"task": None, "project": None, "kind": "turns", "used": 3.0, "amount": 3.0, "required": None}
    ]
    assert hosts(tmp_path) == 1


@pytest.mark.parametrize("typed", ["3", "2", "+0", "-1", "nan", "many", "0,5", "+4,00", "1,0000", "5,"])
def test_a_limit_that_is_not_more_than_what_is_used_is_refused_and_changes_nothing(
    wk: Wk, spent: str, tmp_path: Path, typed: str
) -> None:
    for arguments in (("resume", "last", f"--budget-turns={typed}"), ("budget", "last", f"--turns={typed}")):
        refused = wk(*arguments)
        assert refused.code == 2
        assert refused.error
    if typed in ("2", "3"):
        assert "already used 3 turns" in wk("budget", "last", "--turns", typed).error
    assert [one["amount"] for one in wk("show", "last", "--json").json["budgets"]] == [3.0]
    assert hosts(tmp_path) == 1


def test_an_increase_or_an_amount_raises_the_budget_and_carries_on(wk: Wk, spent: str) -> None:
    again = wk("resume", "last", "--headless", "--budget-turns", "+2")
    assert again.code == 5
    assert "has used 5 turns of its budget of 5 turns" in again.out
    last = wk("resume", "last", "--headless", "--json", "--budget-turns", "100000")
    assert (last.code, json.loads(last.out.splitlines()[-1])["status"]) == (0, "done")


def test_at_a_terminal_a_new_limit_is_asked_for_until_there_is_one(wk, spent, monkeypatch, tmp_path):
    monkeypatch.setattr(run, "is_terminal", lambda: True)
    typed = iter(["2", "nothing", "+100000"])
    asked: list[str] = []

    def prompt(text: str, default: str) -> str:
        asked.append(f"{text} [{default}]")
        return next(typed)

    monkeypatch.setattr(click, "prompt", prompt)
    ended = wk("resume", "last", "--headless")
    assert ended.code == 0
    assert len(asked) == 3
    assert "turns" in asked[0]
    assert "already used 3 turns" in ended.out


def test_whoever_gives_up_at_the_terminal_starts_no_host(wk, spent, monkeypatch, tmp_path):
    monkeypatch.setattr(run, "is_terminal", lambda: True)
    monkeypatch.setattr(click, "prompt", lambda text, default: "q")
    ended = wk("resume", "last")
    assert ended.code == 5
    assert "was not resumed" in ended.out
    assert hosts(tmp_path) == 1


def test_a_session_with_a_budget_of_its_project_does_not_run_until_that_is_removed(
    wk: Wk, tmp_path: Path
) -> None:
    path = tmp_path / "watchkeeper.db"
    earlier_version(path)
    (tmp_path / "folder").mkdir()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE sessions SET project = 'atlas', workspace = ?", (str(tmp_path / "folder"),))
    connection.execute(
        "INSERT INTO project_budgets VALUES ('atlas', 'usd', 20, 0), ('atlas', 'tokens', 9000, 0)"
    )
    connection.commit()
    connection.close()
    resume = ("resume", "last", "--budget-turns", "+50")
    with pytest.raises(BadInput, match="Remove it with `wk budget --project atlas --remove`"):
        asyncio.run(Runtime(path).run("puv3u4a7"))
    for refused in (
        resume,
        (*resume, "--headless"),
        ("compact", "last", "planner"),
        ("rerun", "last", "synthesis"),
    ):
        said = wk(*refused)
        assert said.code in (1, 2)
        assert "Remove it with `wk budget --project atlas --remove`" in said.error
    for refused in (
        ("demo", "--project", "atlas"),
        ("budget", "--project", "atlas", "--usd", "5"),
        ("budget", "--remove"),
    ):
        assert "`wk budget --project NAME --remove`" in wk(*refused).error
    assert hosts(tmp_path) == 1
    assert (
        "removed the budget of 9,000 tokens and $20.00" in wk("budget", "--project", "atlas", "--remove").out
    )
    assert wk("budget", "--project", "atlas", "--remove", "--json").json == {
        "project": "atlas",
        "budgets": [],
    }
    said = wk(*resume, "--headless")
    assert (said.code, START_AGAIN in said.out) == (1, True), "the survey of that version is not continued"
