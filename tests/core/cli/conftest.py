"""The command line in this process (`wk`), on a database of its own or on that of a finished demo
(`demo`)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.core.messages_api.ground import ground

from watchkeeper.cli.app import run
from watchkeeper.store.driver import sqlite3

__all__ = ["ground"]


LAST = "wk: last is "


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output, which must be one JSON value on one line."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def last(self) -> str:
        """What it said that `last` is; empty if it did not."""
        found = [line for line in self.err.splitlines() if line.startswith(LAST)]
        return found[0].removeprefix(LAST) if found else ""

    @property
    def error(self) -> str:
        """Its only line on standard error, beside what `last` is; nothing may stand on standard output."""
        assert self.out == ""
        (line,) = (line for line in self.err.splitlines() if not line.startswith(LAST))
        assert line.startswith("wk: ")
        assert "Traceback" not in line
        return line.removeprefix("wk: ")


Wk = Callable[..., Said]


def change(path: Path, sql: str, *parameters: Any) -> int:
    """Change a database with one statement; returns how many rows changed."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(sql, parameters).rowcount


def rows(path: Path, sql: str, *parameters: Any) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql, parameters).fetchall()


@pytest.fixture(autouse=True)
def _a_user_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("ANTHROPIC_", "OPENAI_", "WATCHKEEPER_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WATCHKEEPER_DB", str(tmp_path / "watchkeeper.db"))


@pytest.fixture
def wk(capsysbinary: pytest.CaptureFixture[bytes]) -> Wk:
    """Run `wk ARGUMENTS` in this process."""

    def call(*arguments: object) -> Said:
        capsysbinary.readouterr()
        code = run([str(one) for one in arguments])
        told = capsysbinary.readouterr()
        return Said(code, told.out.decode(), told.err.decode())

    return call


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a demo that has run to its end in small contexts. Read-only: take `demo` for a copy."""
    folder = tmp_path_factory.mktemp("finished")
    workspace = folder / "workspace"
    (workspace / "src").mkdir(parents=True)
    (workspace / "src" / "main.py").write_text("print('hello')  # TODO: say more\n")
    (workspace / "notes.md").write_text("# Notes\n")
    for number in range(120):
        (workspace / f"chapter_{number}.txt").write_text("words\n")
    code = run([
        "demo", "--headless", "--speed", "max", "--workspace", str(workspace), "--db", str(folder / "watchkeeper.db"),
    ])  # fmt: skip
    assert code == 0
    return folder / "watchkeeper.db"


@pytest.fixture
def demo(finished: Path, tmp_path: Path) -> Path:
    """A database with one finished demo, which is also the default one of `wk`."""
    change(finished, "VACUUM INTO ?", str(tmp_path / "watchkeeper.db"))
    (tmp_path / "watchkeeper.db").chmod(0o600)
    return tmp_path / "watchkeeper.db"
