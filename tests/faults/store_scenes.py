"""What is done to the file without a host, under the crash matrix: migrations, imports, forks, deletions,
indexing, backups."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.core.store.test_migrations import earlier_version
from tests.faults import scenario
from tests.faults.oracle import reading
from tests.faults.scene import Scene

from watchkeeper.cli.app import run as wk
from watchkeeper.store import database, library
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.engine import index_of
from watchkeeper.store.fork import fork_session
from watchkeeper.store.library import back_up, delete_session
from watchkeeper.store.place import Place
from watchkeeper.store.prune import plan_prune, prune_sessions
from watchkeeper.store.schema import BY_NAME

DAY = 86_400.0
OF_THE_INDEX = ("messages_fts", "message_index", "facts_fts", "sqlite_")


def store_scenes() -> list[Scene]:
    return [Migrating(), Importing(), Forking(), Pruning(), Indexing(), BackingUp()]


def finished(scene: Scene, folder: Path) -> Place:
    """The database of a whole run."""
    os.environ["WATCHKEEPER_CONFIG_DIR"] = str(folder / "config")
    (folder / "workspace").mkdir()
    assert asyncio.run(scenario.run(scene.place(folder), folder / "workspace")) == 0
    return scene.place(folder)


def tables(place: Place, *, without: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    """Every row of every table but the index's, sound or not at all."""
    with reading(place) as read:
        assert read("PRAGMA integrity_check") == [("ok",)], "the file is damaged"
        assert not read("PRAGMA foreign_key_check"), "a row refers to one that is not there"
        names: list[str] = sorted(BY_NAME)
        if isinstance(place, Path):
            names = [
                row[0] for row in read("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            ]
        return {
            name: sorted(read(f"SELECT * FROM {name}"), key=repr)
            for name in names
            if not name.startswith(OF_THE_INDEX) and name not in without
        }


def often() -> None:
    """End a transaction after every few rows, so that there is much to be killed between."""
    library.in_short_transactions.__kwdefaults__["longest_seconds"] = 0.001


class Migrating(Scene):
    """A file of schema 10 is brought up to date."""

    name = "migrate"

    def prepare(self, folder: Path) -> None:
        earlier_version(folder / "old.db")

    def work(self, folder: Path) -> int:
        database.open_writable(folder / "old.db").close()
        return 0

    def look(self, folder: Path) -> Any:
        connection = sqlite3.connect(folder / "old.db")
        shape = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        version = connection.execute("PRAGMA user_version").fetchone()
        connection.close()
        return shape, version, tables(folder / "old.db", without=("_sqlite_migrations",))


class Importing(Scene):
    """`wk import` of other programs' logs."""

    name = "import"

    def prepare(self, folder: Path) -> None:
        from tests.core.transcripts.conftest import Log

        (folder / "logs").mkdir()
        for number in range(60):
            log = Log(f"0a0a{number:04d}-1111-4222-8333-444444444444")
            for turn in range(8):
                log.user(f"please do {number} {turn} " + "word " * 200)
                log.reply(
                    {"type": "text", "text": f"answer {number} {turn} " + "word " * 200},
                    id=f"m{number}-{turn}",
                )
            log.write(folder / "logs" / f"{log.session}.jsonl")
        database.open_writable(folder / "run.db").close()

    def work(self, folder: Path) -> int:
        from watchkeeper.transcripts import importer

        importer.BATCH_FILES, importer.BATCH_BYTES = (
            4,
            100_000,
        )  # many transactions, as many large logs would make
        return wk(["import", str(folder / "logs"), "--db", str(folder / "run.db"), "--json"])

    def look(self, folder: Path) -> Any:
        found = tables(folder / "run.db")
        connection = sqlite3.connect(folder / "run.db")
        messages = connection.execute(
            "SELECT s.goal, m.seq, m.role, m.content, m.tokens, m.total_tokens FROM messages m JOIN agents a"
            " ON a.id = m.agent_id"
            " JOIN sessions s ON s.id = a.session_id ORDER BY 1, 2"
        ).fetchall()
        totals = connection.execute(
            "SELECT goal, status, event_seq, input_tokens, output_tokens, model_calls, cost_usd FROM"
            " sessions ORDER BY 1"
        ).fetchall()
        connection.close()
        return {name: len(rows) for name, rows in found.items()}, messages, totals


class Forking(Scene):
    """A session is forked; a half-made fork is never seen, and goes with the next prune."""

    name = "fork"
    on_server = True

    def prepare(self, folder: Path) -> None:
        finished(self, folder)

    def work(self, folder: Path) -> int:
        often()
        path = self.place(folder)
        connection = database.open_readonly(path)
        seen = connection.execute("SELECT id, origin FROM sessions WHERE deleted_at IS NULL").fetchall()
        connection.close()
        if len(seen) == 1:
            fork_session(path, seen[0][0])
        return 0

    def look(self, folder: Path) -> Any:
        path = self.place(folder)
        prune_sessions(path, plan_prune(path))  # what a kill left of a fork goes
        found = tables(path, without=("messages_fts_removed",))
        with_ids = {name: rows for name, rows in found.items() if name in ("artifacts",)}
        origins = sorted(row for row in _query(path, "SELECT origin, status, deleted_at FROM sessions"))
        messages = _query(
            path,
            "SELECT s.origin, t.name, a.attempt, m.seq, m.role, m.tokens FROM messages m JOIN agents a ON"
            " a.id = m.agent_id"
            " JOIN sessions s ON s.id = a.session_id LEFT JOIN tasks t ON t.id = a.task_id ORDER BY 1, 2, 3,"
            " 4",
        )
        return {name: len(rows) for name, rows in found.items() if name not in with_ids}, origins, messages


class Pruning(Scene):
    """One of two sessions is deleted, and its rows are taken away when its time is over."""

    name = "prune"
    on_server = True

    def prepare(self, folder: Path) -> None:
        path = finished(self, folder)
        fork_session(path, _query(path, "SELECT id FROM sessions")[0][0])
        with database.open_writable(path) as connection:  # an artifact of the first one alone
            connection.execute(
                "INSERT INTO artifacts (digest, size, media_type, encoding, data, created_at) VALUES ('ffff',"
                " 1, 'text/plain', 'raw', ?, 0)",
                (b"\0",),
            )
            connection.execute(
                "UPDATE outputs SET digest = 'ffff' WHERE id = (SELECT min(id) FROM outputs WHERE session_id"
                " ="
                " (SELECT id FROM sessions WHERE origin = 'run'))"
            )

    def work(self, folder: Path) -> int:
        often()
        path = self.place(folder)
        found = _query(path, "SELECT id, deleted_at FROM sessions WHERE origin = 'run'")
        if found and found[0][1] is None:
            delete_session(path, found[0][0], now=1_000.0)
        prune_sessions(path, plan_prune(path, now=1_000.0 + 8 * DAY))
        return 0

    def look(self, folder: Path) -> Any:
        return {
            name: rows for name, rows in tables(self.place(folder)).items() if name != "messages_fts_removed"
        }


class Indexing(Scene):
    """Messages are entered into the index of words."""

    name = "index"
    on_server = True

    def prepare(self, folder: Path) -> None:
        path = finished(self, folder)
        with database.open_writable(path) as connection:
            if not isinstance(path, Path):
                for kind in ("message", "fact"):
                    connection.execute(f"DELETE FROM {kind}_words")
                    connection.execute(f"DELETE FROM {kind}s_unindexed")
                    connection.execute(f"INSERT INTO {kind}s_unindexed (id) SELECT id FROM {kind}s")
                return
            connection.execute("INSERT INTO messages_fts (messages_fts) VALUES ('delete-all')")
            connection.execute("DELETE FROM messages_fts_sessions")
            connection.execute("UPDATE message_index SET indexed_through = 0")

    def work(self, folder: Path) -> int:
        connection = database.open_writable(self.place(folder))
        while index_of(connection).index_batch(most_messages=4).more:
            pass
        connection.close()
        return 0

    def look(self, folder: Path) -> Any:
        place = self.place(folder)
        with closing(database.open_writable(place)) as connection:
            indexed = _indexed if isinstance(place, Path) else _indexed_on_server
            return indexed(connection), tables(place)


def _indexed(connection: Connection) -> Any:
    connection.execute("INSERT INTO messages_fts (messages_fts) VALUES ('integrity-check')")
    hits = {
        word: connection.execute(
            "SELECT rowid FROM messages_fts WHERE messages_fts MATCH ? ORDER BY rowid", (word,)
        ).fetchall()
        for word in ("beta", "note", "done", "gamma")
    }
    assert all(hits.values())
    return hits, connection.execute("SELECT * FROM message_index").fetchall()


def _indexed_on_server(connection: Connection) -> Any:
    assert not connection.execute("SELECT id FROM messages_unindexed").fetchall()
    assert not connection.execute("SELECT id FROM facts_unindexed").fetchall()
    return [
        connection.execute(f"SELECT id, CAST(words AS text) FROM {kind}_words ORDER BY id").fetchall()
        for kind in ("message", "fact")
    ]


class BackingUp(Scene):
    """A backup stands under its name once it is whole, or not at all."""

    name = "backup"

    def prepare(self, folder: Path) -> None:
        finished(self, folder)

    def work(self, folder: Path) -> int:
        target = folder / "copy.db"
        if target.exists():
            tables(target)  # whole, whenever it is there
        else:
            back_up(folder / "run.db", target)
        return 0

    def look(self, folder: Path) -> Any:
        return tables(folder / "copy.db")

    def judge(self, reference: Any, folder: Path) -> list[str]:
        return super().judge(tables(folder / "run.db"), folder)


def _query(place: Place, sql: str) -> list[Any]:
    with reading(place) as read:
        return read(sql)
