"""textual-serve, with a guard before every route, addresses of its own, and no request to anybody else's machine."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from pathlib import Path
from typing import Any

import aiohttp_jinja2
import textual_serve.server
from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

from watchkeeper.cli.web.guard import COOKIE, Asked, Guard
from watchkeeper.records.process_secrets import handed_over
from watchkeeper.store.user_secrets import config_text

MOST_VIEWERS = 16
"""Each has a process of its own."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src 'self' data:;"
        " connect-src 'self' ws: wss:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class DashboardProcess(AppService):
    """A dashboard's process. It gets the keys for the hosts that it starts through a pipe, never in its environment."""

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

    def __init__(self, command: str, *, host: str, port: int, title: str, token: str) -> None:
        super().__init__(command, host=host, port=port, title=title, templates_path=Path(__file__).parent)
        self.guard = Guard(token)
        self._viewers = 0

    def initialize_logging(self) -> None:
        """Warnings alone: a request's address may hold the token."""
        logging.basicConfig(level=logging.WARNING, format="wk serve: %(message)s")
        logging.getLogger("aiohttp.access").setLevel(logging.CRITICAL)

    async def on_startup(self, app: web.Application) -> None:
        """Say nothing: the command has said where it listens."""

    async def _make_app(self) -> web.Application:
        app: web.Application = await super()._make_app()
        app.middlewares.append(self._guarded)
        return app

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Every route, pages, files, downloads and the websocket, is answered to whom the guard lets through alone."""
        asked = Asked(
            request.headers.get("Host", ""),
            request.headers.get("Origin"),
            request.cookies.get(COOKIE, ""),
            request.query.get("token", ""),
        )
        why = self.guard.refuses(asked)
        if why is not None:
            return web.Response(status=403, text=why + "\n", headers=HEADERS)
        if self.guard.token and "token" in request.query and request.path == "/":
            # The address without the token is what the browser keeps in its history.
            moved = web.Response(status=303, headers={**HEADERS, "Location": "/"})
            moved.set_cookie(COOKIE, self.guard.ticket, httponly=True, samesite="Strict", path="/")
            return moved
        response: web.StreamResponse = await handler(request)
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    @aiohttp_jinja2.template("app_index.html")
    async def handle_index(self, request: web.Request) -> dict[str, Any]:
        """The one page."""
        size = min(48, max(6, to_int(request.query.get("fontsize", "16"), 16)))
        scheme = "wss" if request.scheme == "https" else "ws"
        return {"title": self.title, "font_size": size, "websocket_url": f"{scheme}://{request.host}/ws"}

    async def handle_websocket(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override,unused-ignore]
        """A dashboard for one browser."""
        if self._viewers >= MOST_VIEWERS:
            return web.Response(status=503, text=f"{MOST_VIEWERS} browsers have it open already; close one\n")
        self._viewers += 1
        try:
            answer: web.StreamResponse = await super().handle_websocket(request)
            return answer
        finally:
            self._viewers -= 1
