"""`wk mcp`: an MCP server over the database, on standard input and output or on loopback; and its installation."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from watchkeeper.cli.guard import SHORTEST_TOKEN, Guard, Refused, Request, new_token, token_file
from watchkeeper.cli.options import clean, database_path, db_option, json_option, respond
from watchkeeper.interop import clients
from watchkeeper.records.errors import BadInput
from watchkeeper.store import database
from watchkeeper.store.place import Place

if TYPE_CHECKING:
    from watchkeeper.interop.mcp import SessionServer

DEFAULT_PORT = 8766
TOKEN_VARIABLE = "WATCHKEEPER_MCP_TOKEN"

_control = click.option(
    "--allow-control", is_flag=True, help="Also offer pause, resume, steer, compact, undo and approve."
)


@click.group(invoke_without_command=True)
@click.option("--http", is_flag=True, help="Listen on 127.0.0.1 instead; a client needs the token.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="0 takes any free port.",
)
@_control
@db_option
@click.pass_context
def mcp(ctx: click.Context, http: bool, port: int, allow_control: bool, db: Place | None) -> int:
    """Serve sessions to agents and editors over MCP (on standard input and output) until the client leaves.

    It reads: sessions, plans, agents, compactions and what they left out, passages, facts, files, usage. Inside a
    tool of a run it never offers control. With --http, WATCHKEEPER_MCP_TOKEN chooses the token.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    from watchkeeper.interop.mcp import SessionServer

    served = SessionServer(database_path(db), folder=Path.cwd(), allow_control=allow_control)
    if allow_control and not served.controls:
        click.echo("wk: an agent's tool may not control runs; this server only reads", err=True)
    if http:
        return _serve_http(served, port)
    if sys.stdin.isatty():
        click.echo("wk: this speaks MCP with a client; `wk mcp install claude` adds it to one", err=True)
    asyncio.run(_serve_stdio(served))
    return 0


async def _serve_stdio(served: SessionServer) -> None:
    from mcp.server.stdio import stdio_server

    from watchkeeper.interop.mcp import mcp_server

    server = mcp_server(served)
    gc.freeze()  # what is loaded lasts: looking through it would make one call in some hundred take 0.1 s
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def _serve_http(served: SessionServer, port: int) -> int:
    import uvicorn

    token = os.environ.pop(TOKEN_VARIABLE, "") or new_token()
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise BadInput(f"{TOKEN_VARIABLE} must be {SHORTEST_TOKEN} printable ASCII characters or more")
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen()
    except OSError as error:
        raise BadInput(
            f"127.0.0.1:{port} cannot be listened on ({error.strerror or error}); choose another --port"
        ) from None
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, lambda *_: sys.exit(0)
        )  # uvicorn raises a signal again at its end; the file goes first
    with ExitStack() as ending:
        ending.callback(listening.close)
        click.echo(f"MCP at {url} · Authorization: Bearer {token} · Ctrl+C ends it")
        folder = database.user_data_place().parent / "listeners"
        try:
            place = ending.enter_context(token_file(folder, "mcp", url, token))
            click.echo(f"both are also in {place}, which only you can read")
        except OSError as error:
            click.echo(f"wk: they could not be written into a file ({error.strerror or error})", err=True)
        sys.stdout.flush()
        config = uvicorn.Config(
            guarded_app(served, Guard(token, loopback_only=True)), log_level="critical", access_log=False, lifespan="on",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        gc.freeze()
        uvicorn.Server(config).run([listening])
    return 0


def guarded_app(served: SessionServer, guard: Guard) -> Any:
    """The server as an ASGI application. Each request needs the token; other hosts and origins are refused."""
    from starlette.responses import JSONResponse
    from starlette.types import Receive, Scope, Send

    from watchkeeper.interop.mcp import mcp_server

    inner = mcp_server(served).streamable_http_app(stateless_http=True, json_response=True)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            given = headers.get(b"authorization", "").partition(" ")
            token = given[2].strip() if given[0].casefold() == "bearer" else ""
            decision = guard.decide(Request(headers.get(b"host", ""), headers.get(b"origin"), token=token))
            if isinstance(decision, Refused):
                await asyncio.sleep(decision.delay_seconds)
                await JSONResponse({"error": decision.reason}, status_code=401)(scope, receive, send)
                return
        await inner(scope, receive, send)

    return app


@mcp.command()
@click.argument("program", type=click.Choice(clients.PROGRAMS))
@click.option(
    "--write", is_flag=True, help="Add it to the program's configuration; a copy of the file is kept."
)
@_control
@db_option
@json_option
def install(program: str, write: bool, allow_control: bool, db: Place | None, as_json: bool) -> int:
    """Print the configuration that gives PROGRAM this server, or add it with --write.

    Everything else in the file stays as it is, comments too. A damaged file is refused.
    """
    command = _command()
    if db is not None:
        command += ["--db", str(database_path(db))]
    if allow_control:
        command.append("--allow-control")
    entry = clients.entry(program, command, os.environ, Path.home())
    if not write:
        value = {
            "program": program,
            "path": str(entry.path),
            "configuration": entry.shown(),
            "written": False,
        }
        return respond(
            as_json, value, [f"for {clean(entry.path)} (--write adds it):", "", entry.shown().rstrip()]
        )
    done = clients.write(entry)
    value = {
        "program": program, "path": str(done.path), "written": done.changed,
        "backup": str(done.backup) if done.backup else None,
    }  # fmt: skip
    kept = f"; the file as it was: {clean(done.backup)}" if done.backup else ""
    said = f"added to {clean(done.path)}{kept}" if done.changed else f"{clean(done.path)} has it already"
    return respond(as_json, value, said)


def _command() -> list[str]:
    """How a program starts this installation's server, whatever its PATH."""
    beside = Path(sys.executable).parent / "wk"
    script = str(beside) if beside.exists() else shutil.which("wk")
    return [script, "mcp"] if script else [sys.executable, "-P", "-m", "watchkeeper", "mcp"]
