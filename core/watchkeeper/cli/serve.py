"""`wk serve`: the dashboard in a browser.

textual-serve runs one dashboard process for each browser. Here it gets a guard before every route (see
`guard`), its own pages, and a policy under which the page loads nothing from other machines.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import secrets
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import aiohttp_jinja2
import click
import textual_serve.server
from aiohttp import web
from click.core import ParameterSource
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

from watchkeeper.cli.options import complete_session, database_path, db_option, find_session
from watchkeeper.records.errors import BadInput
from watchkeeper.records.process_secrets import handed_over
from watchkeeper.store import database
from watchkeeper.store.driver import make_private
from watchkeeper.store.user_secrets import config_text

# --- Access control of a listener: a random token once, then a session that only the server knows ---------
#
# Any user of a machine can connect to a loopback port, so each listener asks for a token, also on 127.0.0.1. A
# browser that sends it gets a random session id in a cookie. The session itself is in this process; it expires,
# and ends with the process.
#
# A page of another site must not reach a listener through the user's browser: neither under its own name that
# resolves to this machine (DNS rebinding), nor by cross-site requests. `Host` and `Origin` are checked for that.
#
# This module does no I/O except for the token's file, and does not depend on aiohttp.

SHORTEST_TOKEN = 16
"""The fewest characters of a token that a person chose."""
IDLE_SECONDS = 3_600.0
"""How long a session lasts without use. An open dashboard counts as use."""
LONGEST_SECONDS = 24 * 3_600.0
"""How long a session lasts at most; an open dashboard is closed then."""
MOST_SESSIONS = 64
"""If there are more, the least recently used session ends."""
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.25, 5.0
"""How long the answer to a wrong token waits: twice as long for each further one within `FORGET_SECONDS`."""
FORGET_SECONDS = 60.0

_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?\Z")


def new_token() -> str:
    """A token of 256 random bits."""
    return secrets.token_urlsafe(32)


def cookie_name(port: int) -> str:
    """The cookie of the listener on a port. Browsers send a host's cookies to all its ports, so each needs
    its own name."""
    return f"watchkeeper-{port}"


def is_loopback(name: str) -> bool:
    """Whether a host's name or address is this machine's own, reached by no other machine."""
    if name.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of a request that decide on access."""

    host: str
    """The `Host` header."""
    origin: str | None = None
    """The `Origin` header; browsers send it with every websocket."""
    session: str = ""
    """The session id in the cookie, or empty."""
    token: str | None = None
    """The token, where the request asks for a session; None for every other request."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request belongs to a session."""

    session: str
    is_new: bool = False
    """Whether the session was made for it: its id goes into the cookie, and the token out of the address."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is not answered."""

    reason: str
    """One line for the person who made it."""
    delay_seconds: float = 0.0
    """How long to wait before the answer, so that guessing a token is slow."""


@dataclass(slots=True)
class _Session:
    began: float
    used: float
    holders: int = 0
    """Open connections that use it."""


class Guard:
    """The token and the sessions of one listener.

    Args:
        token: what a request for a session must give.
        loopback_only: whether only the machine's own names are answered to.
        now: a clock that never goes back, in seconds.
    """

    def __init__(self, token: str, *, loopback_only: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._token = token
        self._loopback_only = loopback_only
        self._now = now
        self._sessions: dict[str, _Session] = {}
        """By the digest of the id, so that the time of a look-up reveals nothing about an id."""
        self._wrong: list[float] = []
        """When wrong tokens were given, within `FORGET_SECONDS`."""

    @property
    def token_query(self) -> str:
        """The query that asks for a session, as in the printed address."""
        return f"token={quote(self._token, safe='')}"

    def decide(self, request: Request) -> Admitted | Refused:
        """Whether a request is answered. The right token always is, however many wrong ones were tried."""
        name = _HOST.match(request.host)
        if name is None:
            return Refused("the address asked for is no host name")
        if self._loopback_only and not is_loopback(name["name"]):
            return Refused(
                "this listener answers to this machine's own names only; open it as http://127.0.0.1 or"
                " http://localhost"
            )
        if request.origin is not None and urlsplit(request.origin).netloc != request.host:
            return Refused("another site may not use this listener")
        if request.token is not None:
            return self._logged_in(request)
        session = self._session(request.session)
        if session is None:
            return Refused(
                "there is no session, or it has ended: open the address with the token that the command"
                " printed"
            )
        session.used = self._now()
        return Admitted(request.session)

    @contextmanager
    def hold(self, session_id: str) -> Iterator[float]:
        """Keep a session in use while a connection is open; yields the seconds after which it ends anyway."""
        session = self._session(session_id)
        if session is None:
            yield 0.0
            return
        session.holders += 1
        try:
            yield session.began + LONGEST_SECONDS - self._now()
        finally:
            session.holders -= 1
            session.used = self._now()

    def _logged_in(self, request: Request) -> Admitted | Refused:
        now = self._now()
        self._wrong = [at for at in self._wrong if now - at < FORGET_SECONDS]
        if not _same(request.token or "", self._token):
            self._wrong.append(now)
            delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** min(len(self._wrong) - 1, 20))
            return Refused("the token is wrong: open the address that the command printed", delay)
        self._sessions.pop(_digest(request.session), None)
        self._drop_ended()
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda digest: self._sessions[digest].used)]
        session_id = new_token()
        self._sessions[_digest(session_id)] = _Session(now, now)
        return Admitted(session_id, is_new=True)

    def _session(self, session_id: str) -> _Session | None:
        self._drop_ended()
        return self._sessions.get(_digest(session_id))

    def _drop_ended(self) -> None:
        now = self._now()
        for digest, session in list(self._sessions.items()):
            idle = session.holders == 0 and now - session.used >= IDLE_SECONDS
            if idle or now - session.began >= LONGEST_SECONDS:
                del self._sessions[digest]


@contextmanager
def token_file(folder: Path, kind: str, address: str) -> Iterator[Path]:
    """A file with the address and token of a listener, readable by this user only, while the listener runs.

    The folder has mode 0700, the file 0600. Files of listeners that were killed are removed.

    Raises:
        OSError: the file cannot be made, or the folder belongs to another user.
    """
    make_private(folder)
    owner = folder.stat().st_uid
    if owner != os.geteuid():
        raise PermissionError(f"{folder} belongs to another user")
    folder.chmod(0o700)
    _sweep(folder)
    path = folder / f"{kind}-{os.getpid()}-{secrets.token_hex(4)}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"kind": kind, "pid": os.getpid(), "url": address}, file)
        yield path
    finally:
        path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove the files of listeners whose process is gone."""
    for path in folder.glob("*.json"):
        match = re.fullmatch(r"[a-z]+-(\d+)-[0-9a-f]{8}\.json", path.name)
        if match is None:
            continue
        try:
            os.kill(int(match[1]), 0)
        except ProcessLookupError:
            with contextlib.suppress(OSError):
                path.unlink()
        except (OSError, OverflowError):
            continue  # another user's process has the number now, or it is not a number


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode("utf-8", "surrogateescape")).hexdigest()


def _same(given: str, wanted: str) -> bool:
    """Compare in constant time, also if the lengths differ, so that the time reveals nothing about the
    token."""
    return hmac.compare_digest(
        hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest(),
        hashlib.sha256(wanted.encode()).digest(),
    )


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


class DashboardProcess(AppService):
    """A dashboard's process. It gets the keys for the hosts that it starts through a pipe, not through its
    environment."""

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
            )
        self._stdin = process.stdin
        return process


setattr(textual_serve.server, "AppService", DashboardProcess)  # noqa: B010 - its websocket handler has no other way to choose the process class


class DashboardServer(Server):
    """Serves one command, a process for each browser that opens it."""

    def __init__(self, command: str, *, host: str, port: int, title: str, guard: Guard) -> None:
        super().__init__(
            command, host=host, port=port, title=title, templates_path=Path(__file__).parent / "templates"
        )
        self.guard = guard
        self._cookie = cookie_name(port)
        self._viewers = 0
        self._delayed = 0

    def initialize_logging(self) -> None:
        """Log warnings only: a request's address may hold the token."""
        logging.basicConfig(level=logging.WARNING, format="wk serve: %(message)s")
        logging.getLogger("aiohttp.access").setLevel(logging.CRITICAL)

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing: the command has printed the address."""

    def serve_on(self, sockets: list[socket.socket]) -> None:
        """Serve on sockets that are bound already, until SIGINT, SIGTERM or SIGHUP."""
        self.initialize_logging()
        loop = asyncio.new_event_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.request_exit)
        web.run_app(self._make_app(), sock=sockets, handle_signals=False, loop=loop, print=None)

    async def _make_app(self) -> web.Application:
        app: web.Application = await super()._make_app()
        app.middlewares.append(self._guarded)
        return app

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        """Answer a request of any route (page, file, download, websocket) only if the guard admits it."""
        asks_for_session = request.method == "GET" and request.path == "/" and "token" in request.query
        decision = self.guard.decide(
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

    @aiohttp_jinja2.template("app_index.html")
    async def handle_index(self, request: web.Request) -> dict[str, Any]:
        """The one page."""
        size = min(48, max(6, to_int(request.query.get("fontsize", "16"), 16)))
        scheme = "wss" if request.scheme == "https" else "ws"
        return {"title": self.title, "font_size": size, "websocket_url": f"{scheme}://{request.host}/ws"}

    async def handle_websocket(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override,unused-ignore]
        """A dashboard for one browser, closed when its session ends."""
        if self._viewers >= MOST_VIEWERS:
            return web.Response(status=503, text=f"{MOST_VIEWERS} browsers have it open already; close one\n")
        self._viewers += 1
        try:
            with self.guard.hold(request["session"]) as seconds:
                async with asyncio.timeout(seconds):
                    answer: web.StreamResponse = await super().handle_websocket(request)
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
            raise OSError(f"{host} has no address here")
        undo.pop_all()
    return sockets


DEFAULT_PORT = 8765


@click.command()
@click.argument("session", required=False, shell_complete=complete_session)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on. Any but this machine's own needs a token that you choose.",
)
@click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="0 takes any free port.",
)
@click.option(
    "--token",
    envvar="WATCHKEEPER_SERVE_TOKEN",
    default="",
    help="Use this instead of a random token. Other users can read it in the list of processes; set WATCHKEEPER_SERVE_TOKEN instead.",
)
@db_option
@click.pass_context
def serve(ctx: click.Context, session: str | None, host: str, port: int, token: str, db: Path | None) -> int:
    """Show the dashboard in a browser until interrupted. Anyone with the printed address can do everything
    that the dashboard does.

    The address holds a random token; it is also in a file that only you can read. A browser that opens it gets
    a session, which ends after an hour without use, after a day, and with this command.
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
    os.environ.pop("WATCHKEEPER_SERVE_TOKEN", None)  # no child process needs it
    path = database_path(db)
    session_id = find_session(path, session) if session else ""
    database.open_readonly(path).close()  # a missing or damaged file is reported here, not in the browser
    command = shlex.join([sys.executable, "-P", "-m", "watchkeeper_tui", str(path), session_id])
    # A user who chose a token may reach the listener through a proxy, under another name.
    guard = Guard(token or new_token(), loopback_only=not token)
    return _serve(command, host, port, guard)


def _serve(command: str, host: str, port: int, guard: Guard) -> int:
    shown = f"[{host}]" if ":" in host else host
    try:
        sockets = bind(host, port)
    except OSError as error:
        raise BadInput(
            f"{shown}:{port} cannot be listened on ({error.strerror or error}); choose another --port or"
            " --host"
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
