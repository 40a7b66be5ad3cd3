from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.store import database
from watchkeeper.store.driver import Connection, encode, sqlite3

STYLED = (
    "\x1b[31mFAIL\x1b[39m \x1b[2msrc/\x1b[22m\x1b[1mqueueworker.spec.ts\x1b[22m\n"
    " \x1b[38;5;196mexpectedzebra\x1b[0m \x1b[38:2::9:8:7mreceivedgiraffe\x1b(B\x1b[m \x9b32mpassedokapi\x9b0m\n"
    "\x1b[01;31m\x1b[Kmark\x1b[m\x1b[Kedtapir \x1b]8;;https://a.example/\x1b\\linkedlemur\x1b]8;;\x07 one\x1b[4Ctwo\n"
    r'"\u001b[32mwrittenbison\u001b[0m" \x1b[1mechoedibex \033[0;33mprintedgnu \e[1mheronletter'
    + "\n\x1b]0;openquokka"
)
"""Words behind, between and around the styles of a terminal, as raw sequences and as programs write them."""
STYLED_WORDS = (
    "FAIL", "queueworker", '"FAIL src/queueworker.spec.ts"', "expectedzebra", "receivedgiraffe", "passedokapi",
    '"expectedzebra receivedgiraffe"', "markedtapir", "linkedlemur", '"one two"', "writtenbison", "echoedibex",
    "printedgnu", "heronletter", "openquokka",
)  # fmt: skip


class Library:
    """A database whose rows the tests write themselves: sessions of one agent each, and their messages."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._seqs: dict[str, int] = {}

    def session(self, session_id: str, **values: Any) -> str:
        """A session with the agent `<id>-a`; returns the agent's id."""
        row = {"id": session_id, "user_id": "u", "goal": "g", "workspace": "/w", "model": "m", "status": "done", "created_at": 1.0,
               "last_active": 1.0} | values  # fmt: skip
        names = ", ".join(row)
        self.connection.execute(
            f"INSERT INTO sessions ({names}) VALUES ({', '.join('?' * len(row))})", list(row.values())
        )
        self.agent(session_id, f"{session_id}-a")
        return f"{session_id}-a"

    def agent(self, session_id: str, agent_id: str) -> None:
        self.connection.execute(
            "INSERT INTO agents (id, session_id, name, role, model, status, created_at, last_active)"
            " VALUES (?, ?, 'a', 'r', 'm', 'done', 1, 1)",
            (agent_id, session_id),
        )

    def fact(self, text: str, session_id: str = "s1", number: int | None = None) -> None:
        self.connection.execute(
            "INSERT INTO facts (id, session_id, workspace, scope, kind, text, digest, created_at)"
            f" VALUES ({number or '(SELECT coalesce(max(id), 0) + 1 FROM facts)'}, ?, '/w', 'session', 'fact', ?, '', 1)",
            (session_id, text),
        )

    def say(self, agent_id: str, content: Any, role: str = "assistant") -> int:
        """Append a message; returns its id."""
        self._seqs[agent_id] = seq = self._seqs.get(agent_id, 0) + 1
        done = self.connection.execute(
            "INSERT INTO messages (agent_id, seq, role, content, tokens, total_tokens, created_at) VALUES"
            " (?, ?, ?, ?, 1, ?, 1) RETURNING id",
            (agent_id, seq, role, encode(content), seq),
        )
        return int(done.fetchall()[0][0])


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without rows."""
    path = tmp_path_factory.mktemp("empty") / "watchkeeper.db"
    database.open_writable(path).close()
    return path


def in_memory(empty: Path) -> Library:
    """A library that needs no disk: a copy of the empty database in memory."""
    source = sqlite3.connect(empty)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    source.backup(connection)
    source.close()
    return Library(connection)


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    connection = database.open_writable(tmp_path / "watchkeeper.db")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA busy_timeout=10000")
    yield Library(connection)
    connection.close()
