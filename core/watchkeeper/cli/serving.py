"""`wk serve`: the dashboard in a browser, for whoever has the token that it prints."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import click
from click.core import ParameterSource

from watchkeeper.cli.options import complete_session, db_option
from watchkeeper.cli.web.guard import SHORTEST_TOKEN, Guard, is_loopback, new_token, token_file
from watchkeeper.records.errors import BadInput
from watchkeeper.store import database, sessions

DEFAULT_PORT = 8765


@click.command()
@click.argument("session", required=False, shell_complete=complete_session)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; any but this machine's own needs a token that you chose.",
)
@click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0 takes any that is free.",
)
@click.option(
    "--token",
    envvar="WATCHKEEPER_SERVE_TOKEN",
    default="",
    help="Instead of a random one. Others can read it in the list of processes; set WATCHKEEPER_SERVE_TOKEN instead.",
)
@db_option
@click.pass_context
def serve(ctx: click.Context, session: str | None, host: str, port: int, token: str, db: Path | None) -> int:
    """Show the dashboard in a browser, until interrupted. Who has the printed address may do all that the
    dashboard does.

    The address holds a random token; the same address is in a file that only you can read. A browser that
    opens it gets a session, which ends after an hour without use, after a day, and with this command.
    """
    if find_spec("textual_serve") is None:
        raise BadInput("wk serve needs textual-serve; install it with: pip install textual-serve")
    if not is_loopback(host) and not token:
        raise BadInput(
            f"{host} can be reached by others, who could act on your runs; set WATCHKEEPER_SERVE_TOKEN to a"
            " token of"
            f" {SHORTEST_TOKEN} characters or more (python -c 'import secrets;"
            " print(secrets.token_urlsafe())')"
        )
    if token and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise BadInput(f"the token must be {SHORTEST_TOKEN} printable ASCII characters or more")
    if ctx.get_parameter_source("token") is ParameterSource.COMMANDLINE:
        click.echo(
            "wk: every user of this machine can read --token in the list of processes; set"
            " WATCHKEEPER_SERVE_TOKEN instead",
            err=True,
        )
    os.environ.pop("WATCHKEEPER_SERVE_TOKEN", None)  # no process that is started from here needs it
    path = (db or database.default_path()).expanduser().absolute()
    connection = database.open_readonly(path)
    try:
        session_id = sessions.find(connection, session) if session else ""
    finally:
        connection.close()
    command = shlex.join([sys.executable, "-P", "-m", "watchkeeper_tui", str(path), session_id])
    # Who chose the token may have a proxy before it that has another name.
    guard = Guard(token or new_token(), loopback_only=not token)
    return _serve(command, host, port, guard)


def _serve(command: str, host: str, port: int, guard: Guard) -> int:
    from watchkeeper.cli.web.server import DashboardServer, bind

    shown = f"[{host}]" if ":" in host else host
    try:
        sockets = bind(host, port)
    except OSError as error:
        raise BadInput(
            f"{shown}:{port} cannot be listened on ({error.strerror or error}); choose another --port or"
            " --host"
        ) from None
    port = sockets[0].getsockname()[1]
    # Told only now that the port is ours: another user's listener there would be given the token.
    address = f"http://{shown}:{port}/?{guard.token_query}"
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, lambda *_: sys.exit(0)
        )  # so that the file goes, also before the server answers signals
    with ExitStack() as ending:
        for one in sockets:
            ending.callback(one.close)
        click.echo(f"the dashboard is at {address} · Ctrl+C ends it")
        try:
            place = ending.enter_context(
                token_file(database.user_data_place().parent / "listeners", "serve", address)
            )
            click.echo(f"the address is also in {place}, which only you can read")
        except OSError as error:
            click.echo(
                f"wk: the address could not be written into a file ({error.strerror or error})", err=True
            )
        if not is_loopback(host):
            click.echo(
                "what it shows and what you type is not encrypted; put a proxy with TLS before it on a"
                " network you do not trust"
            )
        sys.stdout.flush()
        DashboardServer(command, host=host, port=port, title="Watchkeeper", guard=guard).serve_on(sockets)
    return 0
