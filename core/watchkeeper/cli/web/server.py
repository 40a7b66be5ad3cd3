"""textual-serve, with a guard before every route, addresses of its own, and no request to anybody else's
machine."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aiohttp_jinja2
import textual_serve.server
from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

from watchkeeper.cli.web.guard import Guard, Refused, Request, cookie_name
from watchkeeper.records.process_secrets import handed_over
from watchkeeper.store.user_secrets import config_text

MOST_VIEWERS = 16
"""Each has a process of its own."""
MOST_DELAYED = 32
"""Refusals that wait at a time; more are given at once."""

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
    """A dashboard's process. It gets the keys for the hosts that it starts through a pipe, never in its
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


setattr(textual_serve.server, "AppService", DashboardProcess)  # noqa: B010 - its websocket handler has no other place to choose the process


class DashboardServer(Server):
    """Serves one command, a process for each browser that opens it."""

    def __init__(self, command: str, *, host: str, port: int, title: str, guard: Guard) -> None:
        super().__init__(command, host=host, port=port, title=title, templates_path=Path(__file__).parent)
        self.guard = guard
        self._cookie = cookie_name(port)
        self._viewers = 0
        self._delayed = 0

    def initialize_logging(self) -> None:
        """Warnings alone: a request's address may hold the token."""
        logging.basicConfig(level=logging.WARNING, format="wk serve: %(message)s")
        logging.getLogger("aiohttp.access").setLevel(logging.CRITICAL)

    async def on_startup(self, app: web.Application) -> None:
        """Say nothing: the command has said where it listens."""

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
        """Answer a request of any route (page, file, download, websocket) only where the guard admits it."""
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
            # The address without the token is what the browser keeps in its history.
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

    A name such as `localhost` has several addresses: one that was left free could be taken by another user,
    who would be given the token of whoever opens the name.

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
                continue  # a family that this machine has not
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
