"""`wk serve`: the dashboard in a browser, on this machine alone unless a token is given."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from watchkeeper.cli.options import complete_session, db_option
from watchkeeper.cli.web.guard import is_loopback
from watchkeeper.records.errors import BadInput
from watchkeeper.store import database, sessions

DEFAULT_PORT = 8765
SHORTEST_TOKEN = 16
"""Characters: what nobody guesses."""


@click.command()
@click.argument("session", required=False, shell_complete=complete_session)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on; any but this machine's own needs a token."
)
@click.option("--port", default=DEFAULT_PORT, show_default=True, type=click.IntRange(0, 65535), help="0 takes any that is free.")
@click.option(
    "--token", envvar="WATCHKEEPER_SERVE_TOKEN", default="", help="Asked of every browser; better in WATCHKEEPER_SERVE_TOKEN."
)
@db_option
def serve(session: str | None, host: str, port: int, token: str, db: Path | None) -> int:
    """Show the dashboard in a browser, until interrupted. Whoever opens it may do all that the dashboard does."""
    if find_spec("textual_serve") is None:
        raise BadInput("wk serve needs textual-serve; install it with: pip install textual-serve")
    if not is_loopback(host) and not token:
        raise BadInput(
            f"{host} can be reached by others, who could act on your runs; set WATCHKEEPER_SERVE_TOKEN to a token of"
            f" {SHORTEST_TOKEN} characters or more (python -c 'import secrets; print(secrets.token_urlsafe())')"
        )
    if token and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise BadInput(f"the token must be {SHORTEST_TOKEN} printable ASCII characters or more")
    os.environ.pop("WATCHKEEPER_SERVE_TOKEN", None)  # no process that is started from here needs it
    path = (db or database.default_path()).expanduser().absolute()
    connection = database.open_readonly(path)
    try:
        session_id = sessions.find(connection, session) if session else ""
    finally:
        connection.close()
    command = shlex.join([sys.executable, "-P", "-m", "watchkeeper_tui", str(path), session_id])
    return _serve(command, host, port or _free_port(host), token)


def _serve(command: str, host: str, port: int, token: str) -> int:
    from urllib.parse import quote

    from watchkeeper.cli.web.server import DashboardServer

    shown = f"[{host}]" if ":" in host else host
    click.echo(f"the dashboard is at http://{shown}:{port}/{'?token=' + quote(token, safe='') if token else ''} · Ctrl+C ends it")
    if not is_loopback(host):
        click.echo(
            "what it shows and what you type is not encrypted; put a proxy with TLS before it on a network you do not trust"
        )
    sys.stdout.flush()
    try:
        DashboardServer(command, host=host, port=port, title="Watchkeeper", token=token).serve()
    except OSError as error:
        raise BadInput(
            f"{shown}:{port} cannot be listened on ({error.strerror or error}); choose another --port or --host"
        ) from None
    return 0


def _free_port(host: str) -> int:
    import socket

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
