"""The demo, as the README runs it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from watchkeeper.cli.app import run
from watchkeeper.store import database

SOURCE = Path(__file__).parents[3] / "core" / "watchkeeper"


def test_the_demo_of_the_readme_shows_parallel_agents_and_compactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    options = ("--workspace", str(SOURCE), "--context-tokens", "8000", "--db", str(tmp_path / "w.db"))
    assert run(["demo", "--headless", "--speed", "max", *options]) == 0
    with closing(database.open_readonly(tmp_path / "w.db")) as connection:
        (agents,) = connection.execute("SELECT count(*) FROM agents").fetchone()
        (applied,) = connection.execute(
            "SELECT count(*) FROM events WHERE kind = 'compaction.applied'"
        ).fetchone()
    assert agents > 4
    assert applied >= 2


def test_the_demo_with_observational_memory_shows_observers_activations_and_a_reflection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    folder = tmp_path / "work" / "src"
    folder.mkdir(parents=True)
    for number in range(500):
        (folder / f"module_{number:03}.py").write_text(
            f"# {number}\n" + "value = 'some words to read'\n" * 40
        )
    options = ("--workspace", str(folder.parent), "--context-tokens", "8000", "--db", str(tmp_path / "w.db"))
    assert run(["demo", "--headless", "--speed", "max", "--memory", "observational", *options]) == 0
    with closing(database.open_readonly(tmp_path / "w.db")) as connection:
        rows = connection.execute(
            "SELECT trigger, status, count(*) FROM compactions GROUP BY 1, 2"
        ).fetchall()
        passes = {(trigger, status): count for trigger, status, count in rows}
        reasons = dict(connection.execute("SELECT reason, count(*) FROM views GROUP BY 1").fetchall())
        asked = dict(connection.execute("SELECT purpose, count(*) FROM model_calls GROUP BY 1").fetchall())
    assert asked["observer"] >= 4
    assert reasons["activation"] >= 3
    assert reasons["reflection"] >= 1
    assert not [key for key in passes if key[1] in ("rejected", "abandoned")], passes
