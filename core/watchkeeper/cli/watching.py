"""`wk watch`: the dashboard, the one place where the command line reaches into it."""

from __future__ import annotations

from pathlib import Path

import click

from watchkeeper.cli.options import complete_session, db_option, is_terminal
from watchkeeper.store import database, sessions


@click.command()
@click.argument("session", required=False, shell_complete=complete_session)
@db_option
@click.pass_context
def watch(ctx: click.Context, session: str | None = None, db: Path | None = None) -> int:
    """Open the dashboard on SESSION (default: the newest), running or finished. Several may watch at once."""
    path = (db or database.default_path()).expanduser().absolute()
    connection = database.open_readonly(path)
    try:
        session_id = sessions.find(connection, session or "last")
    finally:
        connection.close()
    if not is_terminal():
        from watchkeeper.cli.headless import follow

        return follow(path, session_id)
    return open_dashboard(path, session_id)


def open_dashboard(path: Path, session_id: str | None) -> int:
    """Show the dashboard until the user quits it."""
    from watchkeeper_tui.app import run

    return int(run(path, session_id))
