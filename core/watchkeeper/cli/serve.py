"""`wk serve`: the dashboard in a browser.

textual-serve runs one dashboard process for each browser. Here it gets a guard before every route (see
`guard`), its own pages, and a policy under which the page loads nothing from other machines.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import click
from click.core import ParameterSource

from watchkeeper.agents.tools.processes import die_with_parent
from watchkeeper.cli.guard import (
    SHORTEST_TOKEN,
    Guard,
    Refused,
    Request,
    cookie_name,
    is_loopback,
    new_token,
    token_file,
)
from watchkeeper.cli.help import Command
from watchkeeper.cli.options import awaited_database_path, complete_session, db_option, find_session
from watchkeeper.records.errors import BadInput, MissingExtra, reason_of
from watchkeeper.records.process_secrets import handed_over
from watchkeeper.store import database
from watchkeeper.store.place import Place, arguments_for, config_text

if TYPE_CHECKING:  # the extra `serve`; the functions below import it, so that the command itself needs none
    from aiohttp import web
    from textual_serve.app_service import AppService

MOST_VIEWERS = 16
"""How many browsers may have the dashboard open; each has its own process."""
MOST_DELAYED = 32
"""How many refusals wait at a time; further ones are answered at once."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src"
        " 'self' data:;"
        " connect-src 'self' ws: wss:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def _process_class() -> type[AppService]:
    from textual_serve.app_service import AppService

    class DashboardProcess(AppService):
        """A dashboard's process. It gets the keys for the hosts that it starts through a pipe, not through its
        environment. On Linux it ends with the server, also when that is killed."""

        async def _open_app_process(self, width: int = 80, height: int = 24) -> asyncio.subprocess.Process:
            with handed_over(config_text()) as handover:
                own = self._build_environment(width, height)
                changed = {name: value for name, value in own.items() if os.environ.get(name) != value}
                self._process = process = await asyncio.create_subprocess_exec(
                    *shlex.split(self.command),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=handover.environment | changed,
                    pass_fds=handover.descriptors,
                    preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),
                )
            self._stdin = process.stdin
            return process

    return DashboardProcess


class DashboardServer:
    """Serves one command, a process for each browser that opens it. Needs the extra `serve`."""

    def __init__(self, command: str, *, host: str, port: int, guard: Guard) -> None:
        import textual_serve.server as textual_server
        from jinja2 import Environment

        # Its websocket handler has no other way to choose the process class.
        setattr(textual_server, "AppService", _process_class())  # noqa: B010
        self._textual = textual_server.Server(command, host=host, port=port, title="Watchkeeper")
        page = (files("watchkeeper.cli") / "templates" / "app_index.html").read_text(encoding="utf-8")
        self._page = Environment(autoescape=True).from_string(page)
        self._guard = guard
        self._cookie = cookie_name(port)
        self._viewers = 0
        self._delayed = 0

    def serve_on(self, sockets: list[socket.socket]) -> None:
        """Serve on sockets that are bound already, until SIGINT, SIGTERM or SIGHUP."""
        from aiohttp import web

        # Warnings only: a request's address may hold the token.
        logging.basicConfig(level=logging.WARNING, format="wk serve: %(message)s")
        logging.getLogger("aiohttp.access").setLevel(logging.CRITICAL)
        loop = asyncio.new_event_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._textual.request_exit)
        web.run_app(self._app(), sock=sockets, handle_signals=False, loop=loop, print=None)

    def _app(self) -> web.Application:
        from aiohttp import web

        app = web.Application(middlewares=[web.middleware(partial(self._guarded))])
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/ws", self._websocket),
                web.get("/download/{key}", self._textual.handle_download),
                web.static("/static", self._textual.statics_path),
            ]
        )
        return app

    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        """Answer a request of any route (page, file, download, websocket) only if the guard admits it."""
        from aiohttp import web

        asks_for_session = request.method == "GET" and request.path == "/" and "token" in request.query
        decision = self._guard.decide(
            Request(
                request.headers.get("Host", ""),
                request.headers.get("Origin"),
                request.cookies.get(self._cookie, ""),
                request.query["token"] if asks_for_session else None,
            )
        )
        if isinstance(decision, Refused):
            await self._delay(decision.delay_seconds)
            return web.Response(status=403, text=decision.reason + "\n", headers=HEADERS)
        if decision.is_new:
            # The browser keeps the address without the token in its history.
            left = urlencode([(name, value) for name, value in request.query.items() if name != "token"])
            moved = web.Response(status=303, headers={**HEADERS, "Location": f"/?{left}" if left else "/"})
            moved.set_cookie(
                self._cookie,
                decision.session,
                httponly=True,
                samesite="Strict",
                path="/",
                secure=request.scheme == "https",
            )
            return moved
        request["session"] = decision.session
        response: web.StreamResponse = await handler(request)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _delay(self, seconds: float) -> None:
        if seconds <= 0 or self._delayed >= MOST_DELAYED:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._delayed -= 1

    async def _index(self, request: web.Request) -> web.Response:
        """The one page."""
        from aiohttp import web
        from textual_serve.server import to_int

        size = min(48, max(6, to_int(request.query.get("fontsize", "16"), 16)))
        scheme = "wss" if request.scheme == "https" else "ws"
        page = self._page.render(
            title=self._textual.title, font_size=size, websocket_url=f"{scheme}://{request.host}/ws"
        )
        return web.Response(text=page, content_type="text/html")

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        """A dashboard for one browser, closed when its session ends."""
        from aiohttp import web

        if self._viewers >= MOST_VIEWERS:
            return web.Response(
                status=503, text=f"{MOST_VIEWERS} browsers have the dashboard open; close one\n"
            )
        self._viewers += 1
        try:
            with self._guard.hold(request["session"]) as seconds:
                async with asyncio.timeout(seconds):
                    answer: web.StreamResponse = await self._textual.handle_websocket(request)
                    return answer
        finally:
            self._viewers -= 1


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of a host, all on one port (any free one for 0).

    A name such as `localhost` has several addresses. Another user could listen on one that is left free, and
    would receive the token of a browser that opens the name.

    Raises:
        OSError: one of them cannot be bound.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with ExitStack() as undo:
        sockets: list[socket.socket] = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                one = socket.socket(family, kind, protocol)
            except OSError:
                continue  # this machine has no such address family
            undo.callback(one.close)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address[0], sockets[0].getsockname()[1] if sockets else port, *address[2:]))
            one.listen(128)
            sockets.append(one)
        if not sockets:
            raise OSError(f"{host} has no usable address on this machine")
        undo.pop_all()
    return sockets


DEFAULT_PORT = 8765


@click.command(
    cls=Command,
    examples=(
        "wk serve # local address, with a token",
        "wk serve last --port 0 # one session, on a free port",
    ),
)
@click.argument("session", required=False, shell_complete=complete_session)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on. Other addresses require your own token.",
)
@click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0 = pick a free port.",
)
@click.option(
    "--token",
    envvar="WATCHKEEPER_SERVE_TOKEN",
    default="",
    help="Your own token. Other users can see it in the process list; to hide it, set WATCHKEEPER_SERVE_TOKEN instead.",
)
@db_option
@click.pass_context
def serve(ctx: click.Context, session: str | None, host: str, port: int, token: str, db: Place | None) -> int:
    """Show the dashboard in a browser until interrupted. Anyone with the printed address can do everything
    that the dashboard does.

    The address contains a random token; it is also in a file that only you can read. The browser's login expires
    after an hour of inactivity, after a day, or when this command ends.
    """
    if find_spec("textual_serve") is None:
        raise MissingExtra("wk serve", "serve")
    if not is_loopback(host) and not token:
        raise BadInput(
            f"other machines can reach {host} and control your runs; set WATCHKEEPER_SERVE_TOKEN to a token of"
            f" {SHORTEST_TOKEN} characters or more (python -c 'import secrets;"
            " print(secrets.token_urlsafe())')"
        )
    if token and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise BadInput(f"the token must be at least {SHORTEST_TOKEN} printable ASCII characters")
    if ctx.get_parameter_source("token") is ParameterSource.COMMANDLINE:
        click.echo(
            "wk: all users of this machine can read --token in the process list; set"
            " WATCHKEEPER_SERVE_TOKEN instead",
            err=True,
        )
    os.environ.pop("WATCHKEEPER_SERVE_TOKEN", None)  # no child process needs it
    path = awaited_database_path(db)
    session_id = find_session(path, session) if session else ""
    database.open_readonly(path).close()  # a missing or damaged file is reported here, not in the browser
    where = arguments_for(path)[-1:] or [""]
    command = shlex.join([sys.executable, "-P", "-m", "watchkeeper_tui", *where, session_id])
    # A user who chose a token may reach the listener through a proxy, under another name.
    guard = Guard(token or new_token(), loopback_only=not token)
    return _serve(command, host, port, guard)


def _serve(command: str, host: str, port: int, guard: Guard) -> int:
    shown = f"[{host}]" if ":" in host else host
    try:
        sockets = bind(host, port)
    except OSError as error:
        raise BadInput(
            f"cannot listen on {shown}:{port} ({reason_of(error)}); choose another --port or --host"
        ) from None
    port = sockets[0].getsockname()[1]
    # Printed only now that the port is ours: another user's listener there would receive the token.
    address = f"http://{shown}:{port}/?{guard.token_query}"
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, lambda *_: sys.exit(0)
        )  # removes the file, also before the server handles signals
    with ExitStack() as ending:
        for one in sockets:
            ending.callback(one.close)
        click.echo(f"the dashboard is at {address} · Ctrl+C stops it")
        try:
            place = ending.enter_context(
                token_file(database.user_data_place().parent / "listeners", "serve", address)
            )
            click.echo(f"the address is also in {place}, which only you can read")
        except OSError as error:
            click.echo(f"wk: could not write the address to a file ({reason_of(error)})", err=True)
        if not is_loopback(host):
            click.echo("the connection is not encrypted; on an untrusted network, use a TLS proxy")
        sys.stdout.flush()
        DashboardServer(command, host=host, port=port, guard=guard).serve_on(sockets)
    return 0
