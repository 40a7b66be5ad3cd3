"""`wk watch`: the dashboard, the one place where the command line reaches into it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from watchkeeper.cli.options import clean, complete_session, db_option, is_terminal
from watchkeeper.records.errors import NotFound, WatchkeeperError
from watchkeeper.records.process_secrets import handed_over
from watchkeeper.store import database, sessions
from watchkeeper.store.user_secrets import config_text

START_LOCK_SECONDS = 5.0
"""How long somebody looks at an empty terminal before a lock is told of."""
FOREIGN = frozenset({"claude", "claude-code", "codex", "opencode"})
"""Names of programs, none of which can be the beginning of an id."""


@click.command()
@click.argument(
    "session", required=False, shell_complete=complete_session, metavar="[SESSION|PATH|claude|codex|opencode]"
)
@db_option
@click.pass_context
def watch(ctx: click.Context, session: str | None = None, db: Path | None = None) -> int:
    """Open the dashboard on SESSION (default: the newest), running or finished. Several may watch at once.

    PATH (a log or a folder of logs) or a program: its newest session is shown, and every session that is live
    is followed.
    """
    path = (db or database.default_path()).expanduser().absolute()
    if session is not None and _means_logs(path, session):
        return _watch_foreign(path, session)
    if session is not None and _is_path(session):
        raise NotFound(
            f"there is no file or folder {clean(session, 200)}; give a log, a folder of logs, a session's"
            " id, or claude, codex, opencode"
        )
    connection = database.open_readonly(path, lock_timeout_seconds=START_LOCK_SECONDS)
    try:
        session_id = sessions.find(connection, session or "last")
    finally:
        connection.close()
    if not is_terminal():
        from watchkeeper.cli.headless import follow

        return follow(path, session_id)
    return open_dashboard(path, session_id)


def _is_path(name: str) -> bool:
    """Whether a name can only be that of a file: an id is letters and digits."""
    return os.sep in name or "." in name or name.startswith("~")


def _means_logs(path: Path, name: str) -> bool:
    """Whether a name means a program or logs on disk. A bare name that is a session's means the session."""
    if name in FOREIGN:
        return True
    if not Path(name).expanduser().exists():
        return False
    if _is_path(name) or not database.is_there(path):
        return True
    connection = database.open_readonly(path)
    try:
        sessions.find(connection, name)
    except WatchkeeperError:
        return True
    finally:
        connection.close()
    return False


def open_dashboard(path: Path, session_id: str | None) -> int:
    """Show the dashboard until the user quits it."""
    from watchkeeper_tui.app import run

    return int(run(path, session_id))


def _watch_foreign(path: Path, what: str) -> int:
    """Import the newest session of `what`, follow all that are live in a process beside this one, and show
    the newest."""
    session_id = _import_newest(path, what)
    with _followed(path, what) as follower:
        if is_terminal():
            return open_dashboard(path, session_id)
        from watchkeeper.cli.tailing import print_log

        return print_log(path, session_id, what, follower)


def _import_newest(path: Path, what: str) -> str:
    from watchkeeper.cli.importing import pricing, user, wanted_places
    from watchkeeper.store.writer import Writer
    from watchkeeper.transcripts.finding import find
    from watchkeeper.transcripts.importer import Importer

    places, only = wanted_places((what,))
    writer = Writer(path)
    importer = Importer(writer, pricing=pricing(), user_id=user(), only=only)
    try:
        # A log comes last that is perhaps no log, or of another program: then the one before it is meant.
        found = sorted(
            find(places, importer.may_be_log, lambda name, why: None), key=lambda each: each.modified_at
        )
        for each in reversed(found):
            beside = each.path.with_suffix("")
            importer.run([each.path, beside] if beside.is_dir() else [each.path])
            session_id = importer.session_of(each.path)
            if session_id is not None:
                return session_id
    finally:
        importer.close()
        writer.close()
    raise NotFound(
        f"no session of a known program in {', '.join(map(str, places))}; `wk import` says what lies there"
    )


@contextmanager
def _followed(path: Path, what: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that imports what is written to the logs, as long as this one lives."""
    place = str(Path(what).expanduser().absolute()) if Path(what).expanduser().exists() else what
    command = [sys.executable, "-P", "-m", "watchkeeper", "follow", place, "--parent", str(os.getpid())]
    with handed_over(config_text()) as handover:
        follower = subprocess.Popen(
            [*command, "--db", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=handover.environment,
            pass_fds=handover.descriptors,
        )
    try:
        yield follower
    finally:
        follower.terminate()
        try:
            follower.wait(timeout=5)
        except subprocess.TimeoutExpired:
            follower.kill()
