"""A PostgreSQL server for the tests, and a database of its own for each of them.

`WATCHKEEPER_TEST_POSTGRES` names a server (`postgresql://USER@HOST:PORT/postgres`, a user who may create
databases). Else one that is installed on this machine is started for the session, in a scratch folder and as a user
without privileges.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.other_user import NOBODY, until

from watchkeeper.store import database
from watchkeeper.store.place import DatabaseUrl, place_of

SERVER = "WATCHKEEPER_TEST_POSTGRES"
STARTS = 5
"""How many ports are tried: another program may take a free one first."""


def database_url(server: str, name: str) -> DatabaseUrl:
    """The address of a database on the server."""
    url = place_of(re.sub(r"(//[^/?]*)(/[^?]*)?", rf"\1/{name}", server, count=1))
    assert isinstance(url, DatabaseUrl)
    return url


def psycopg_connect(server: str) -> Any:
    import psycopg

    return psycopg.connect(server, autocommit=True)


def on_server(server: str, *statements: str) -> None:
    """Run statements on the server, each in a transaction of its own."""
    with closing(psycopg_connect(server)) as connection:
        for statement in statements:
            connection.execute(statement)


def programs() -> Path | None:
    """The folder of an installed server's programs, the newest version first; None if there is none."""
    found = [Path(path).resolve().parent for path in [shutil.which("initdb")] if path]
    for pattern in (
        "/usr/lib/postgresql/*/bin",
        "/usr/pgsql-*/bin",
        "/opt/homebrew/opt/postgresql*/bin",
        "/usr/local/opt/postgresql*/bin",
    ):
        folders = Path("/").glob(pattern[1:])
        found += sorted(
            folders, key=lambda one: [int(part) for part in re.findall(r"\d+", str(one))], reverse=True
        )
    return next((one for one in found if (one / "initdb").exists() and (one / "postgres").exists()), None)


class ScratchServer:
    """A server in a scratch folder, which listens on a free port of the loopback interface alone."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            self._user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        self.folder = Path(tempfile.mkdtemp(prefix="wk-postgres-"))
        if self._user:
            os.chown(self.folder, NOBODY, NOBODY)
        self.data = self.folder / "data"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        made = self._run(
            "initdb", "-D", str(self.data), "-U", "wk", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"
        )
        assert made.returncode == 0, made.stdout

    @property
    def url(self) -> str:
        return f"postgresql://wk@127.0.0.1:{self.port}/postgres"

    def start(self, *options: str) -> None:
        """Start it and wait until it answers; `options` are settings, as `name=value`. SIGTERM ends this process by
        SystemExit from now on, so that whoever started the server also removes it."""
        if (
            signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            and threading.current_thread() is threading.main_thread()
        ):
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
        settings = (
            "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", "fsync=off", "max_connections=100",
            "shared_buffers=32MB", "autovacuum_naptime=10min", "logging_collector=off", *options,
        )  # fmt: skip
        for _ in range(STARTS):
            if not self.port:
                with closing(socket.socket()) as free:
                    free.bind(("127.0.0.1", 0))
                    self.port = free.getsockname()[1]
            log = (self.folder / "log").open("ab")
            self.process = subprocess.Popen(
                [str(self._binaries / "postgres"), "-D", str(self.data), "-p", str(self.port),
                 *(part for one in settings for part in ("-c", one))],
                stdout=log, stderr=log, cwd=self.folder, start_new_session=True, **self._user,
            )  # fmt: skip
            log.close()
            until(self._answers_or_ended, "a scratch PostgreSQL starts")
            if self.process.poll() is None:
                return
            self.port = 0
        raise AssertionError((self.folder / "log").read_text("utf-8", "replace")[-2000:])

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """Stop it: at once, as after a power failure, with SIGQUIT; in order with SIGINT."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)
            self.process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers_or_ended(self) -> bool:
        import psycopg

        assert self.process is not None
        if self.process.poll() is not None:
            return True
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._binaries / program), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder, **self._user,
        )  # fmt: skip


@contextlib.contextmanager
def scratch_server(*options: str) -> Iterator[str | None]:
    """The address of a server that is started for the while, with these settings; None where no PostgreSQL is installed."""
    binaries = programs()
    if binaries is None:
        yield None
        return
    server = ScratchServer(binaries)
    try:
        server.start(*options)
        yield server.url
    finally:
        server.remove()


@contextlib.contextmanager
def server_for_trials(wanted: str | None) -> Iterator[str | None]:
    """The server that `--db` names: its address, or `scratch` for one that is started; None is for files."""
    if wanted != "scratch":
        yield wanted
        return
    with scratch_server() as url:
        if url is None:
            raise SystemExit(
                "no PostgreSQL is installed here; name a server, as --db postgresql://USER@HOST/postgres"
            )
        yield url


class FolderDatabases:
    """Databases on a server that belong to folders, as files in them would: each folder's has a name of its own."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._empty = f"wk_trials_{os.getpid()}"
        on_server(server, f"CREATE DATABASE {self._empty}")
        database.open_writable(database_url(server, self._empty)).close()

    def of(self, folder: Path) -> DatabaseUrl:
        """The database of a folder, which need not be there."""
        digest = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
        return database_url(self._server, f"{self._empty}_{digest}")

    def make(self, folder: Path, like: Path | None = None) -> None:
        """Make the folder's database, with tables and no rows, or as that of another folder is."""
        source = self._name(like) if like is not None else self._empty
        on_server(
            self._server,
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{source}'",
            f"CREATE DATABASE {self._name(folder)} TEMPLATE {source} STRATEGY file_copy",
        )

    def drop(self, folder: Path) -> None:
        on_server(self._server, f"DROP DATABASE IF EXISTS {self._name(folder)} WITH (FORCE)")

    def free_leases(self, folder: Path) -> None:
        """What a worker does when its host has ended: no one waits until the lease lapses."""
        with closing(database.open_writable(self.of(folder))) as connection:
            connection.execute("UPDATE sessions SET lease_until = NULL")

    def close(self) -> None:
        """Drop all of them."""
        with closing(psycopg_connect(self._server)) as connection:
            names = connection.execute(
                "SELECT datname FROM pg_database WHERE datname LIKE %s", (f"{self._empty}%",)
            ).fetchall()
        on_server(self._server, *(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)" for (name,) in names))

    def _name(self, folder: Path) -> str:
        return self.of(folder).dsn.rpartition("/")[2].partition("?")[0]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a server on which tests may make databases."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: no tests on PostgreSQL")
    given = os.environ.get(SERVER)
    if given:
        yield given
        return
    with scratch_server() as url:
        if url is None:
            pytest.skip(f"no PostgreSQL is installed here; {SERVER} may name a server")
        yield url


@pytest.fixture(scope="session")
def _postgres_template(postgres_server: str) -> Iterator[str]:
    name = f"wk_template_{uuid.uuid4().hex[:12]}"
    on_server(postgres_server, f"CREATE DATABASE {name}")
    try:
        database.open_writable(database_url(postgres_server, name)).close()
        yield name
    finally:
        on_server(postgres_server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
def postgres_place(postgres_server: str, _postgres_template: str) -> Iterator[DatabaseUrl]:
    """A new database with Watchkeeper's tables and no rows, on PostgreSQL."""
    name = f"wk_test_{uuid.uuid4().hex[:12]}"
    on_server(postgres_server, f"CREATE DATABASE {name} TEMPLATE {_postgres_template}")
    try:
        yield database_url(postgres_server, name)
    finally:
        on_server(postgres_server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
