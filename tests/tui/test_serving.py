"""`wk serve`: who is let in, and the dashboard in a real browser that asks nobody else for anything."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.tui.fake_store import FakeSession, create, small_session

from watchkeeper.cli.web.guard import Asked, Guard, is_loopback

TOKEN = "a-token-of-more-than-16-characters"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_extra = pytest.mark.skipif(find_spec("textual_serve") is None, reason="the extra `serve` is not installed")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


def asked(host: str = "127.0.0.1:8765", origin: str | None = None, cookie: str = "", token: str = "") -> Asked:
    return Asked(host, origin, cookie, token)


def test_without_a_token_this_machine_alone_is_served_under_its_own_names() -> None:
    guard = Guard("")
    for host in ("127.0.0.1:8765", "localhost:8765", "[::1]:8765", "127.0.0.1"):
        assert guard.refuses(asked(host)) is None, host
    for host in ("evil.example:8765", "192.168.0.7:8765", "", "127.0.0.1.evil.example", "a b", "localhost@evil.example"):
        assert guard.refuses(asked(host)) is not None, host


def test_a_page_of_another_site_never_reaches_the_websocket() -> None:
    for guard in (Guard(""), Guard(TOKEN)):
        ticket = guard.ticket if guard.token else ""
        assert guard.refuses(asked(origin="http://127.0.0.1:8765", cookie=ticket)) is None
        for origin in ("http://evil.example", "http://127.0.0.1:9999", "null", "http://127.0.0.1:8765.evil.example"):
            assert guard.refuses(asked(origin=origin, cookie=ticket, token=guard.token)) is not None, origin


def test_a_token_is_asked_of_every_request_and_the_cookie_does_not_hold_it() -> None:
    guard = Guard(TOKEN)
    assert guard.refuses(asked("box.example:8765")) is not None
    assert guard.refuses(asked("box.example:8765", token=TOKEN[:-1])) is not None
    assert guard.refuses(asked("box.example:8765", cookie=TOKEN)) is not None
    assert guard.refuses(asked("box.example:8765", cookie="\udcff")) is not None
    assert guard.refuses(asked("box.example:8765", token=TOKEN)) is None
    assert guard.refuses(asked("box.example:8765", cookie=guard.ticket)) is None
    assert TOKEN not in guard.ticket


def test_only_this_machines_own_addresses_are_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "")))


def wk(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "watchkeeper", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})


@needs_extra
def test_binding_elsewhere_without_a_token_is_refused_with_one_line(tmp_path: Path) -> None:
    create(tmp_path / "w.db").close()
    for arguments, environment in ((["--host", "0.0.0.0"], {}), (["--host", "0.0.0.0"], {"WATCHKEEPER_SERVE_TOKEN": "short"})):
        refused = wk(*arguments, "--db", str(tmp_path / "w.db"), **environment)
        assert refused.returncode == 2
        assert "token" in refused.stderr
        assert refused.stderr.count("\n") == 1


class Served:
    """The real command, and the database behind it."""

    def __init__(self, path: Path, token: str) -> None:
        self.connection = create(path)
        self.session: FakeSession = small_session(self.connection, now=time.time())
        environment = {**os.environ, "WATCHKEEPER_SERVE_TOKEN": token}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "watchkeeper", "serve", "--port", "0", "--db", str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, line
        self.address = next(word for word in line.split() if word.startswith("http"))
        self.root = self.address.partition("?")[0]

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.connection.close()


@pytest.fixture(params=["", TOKEN], ids=["loopback", "token"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    opened = Served(tmp_path / "w.db", request.param)
    yield opened
    opened.close()


async def answering(session: Any, url: str) -> None:
    for _ in range(200):
        try:
            async with session.get(url):
                return
        except OSError:
            await asyncio.sleep(0.05)
    raise AssertionError(f"{url} did not answer")


@needs_extra
async def test_the_real_server_refuses_strangers_on_every_route(served: Served) -> None:
    import aiohttp

    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        await answering(client, served.root)
        for route in ("", "ws", "static/js/textual.js", "download/x"):
            for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
                async with client.get(served.root + route, headers=headers) as answer:
                    assert answer.status == 403, (route, headers)
            if served.address != served.root:
                async with client.get(served.root + route) as answer:
                    assert answer.status == 403, route
        async with client.get(served.address) as answer:
            assert answer.status == 200
            page = await answer.text()
            assert "token" not in str(answer.url)
            assert TOKEN not in page
            assert "https://" not in page
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


class Browser:
    """Headless Chromium over its debugging protocol."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.number = 0
        self.events: list[dict[str, Any]] = []

    async def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        await self.socket.send_str(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads((await asyncio.wait_for(self.socket.receive(), 30)).data)
            if message.get("id") == self.number:
                assert "error" not in message, message
                return dict(message["result"])
            self.events.append(message)

    async def value(self, script: str) -> Any:
        return (await self.do("Runtime.evaluate", expression=script))["result"].get("value")

    async def picture(self) -> bytes:
        return base64.b64decode((await self.do("Page.captureScreenshot", format="png"))["data"])


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    import aiohttp

    assert CHROMIUM is not None
    profile = tmp_path / "profile"
    process = subprocess.Popen(  # noqa: ASYNC220 - it only starts
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0", "--window-size=1200,800",
         f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        port_file = profile / "DevToolsActivePort"
        deadline = time.monotonic() + 40
        while not (port_file.exists() and len(port_file.read_text().split()) == 2):
            assert time.monotonic() < deadline, "Chromium did not start"
            await asyncio.sleep(0.1)
        port = port_file.read_text().split()[0]
        async with aiohttp.ClientSession() as client:
            async with client.get(f"http://127.0.0.1:{port}/json") as answer:
                page = next(each for each in await answer.json() if each["type"] == "page")
            async with client.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=1 << 26) as socket:
                yield Browser(socket)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def holds(browser: Browser, script: str, seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not await browser.value(script):
        assert time.monotonic() < deadline, f"{script} did not hold; {browser.events[-5:]}"
        await asyncio.sleep(0.1)


@needs_extra
@needs_browser
async def test_the_dashboard_runs_in_a_real_browser_and_asks_nobody_else_for_anything(served: Served, browser: Browser) -> None:
    await browser.do("Network.enable")
    await browser.do("Page.enable")
    await browser.do("Page.navigate", url=served.address)
    await holds(browser, "document.body.classList.contains('-first-byte')")
    assert "token" not in await browser.value("location.href")
    empty = await browser.picture()
    # The key goes through the browser, the websocket, the dashboard and the command queue, and back to the screen.
    await browser.value("document.querySelector('.xterm-helper-textarea').focus()")
    deadline = time.monotonic() + 40
    while not served.session.commands():
        if time.monotonic() > deadline and (folder := os.environ.get("WATCHKEEPER_PICTURES")):
            (Path(folder) / "serve.png").write_bytes(await browser.picture())
        assert time.monotonic() < deadline, "no command came"
        await browser.do("Input.dispatchKeyEvent", type="keyDown", text="C", key="C")
        await asyncio.sleep(0.5)
        await browser.do("Input.dispatchKeyEvent", type="keyDown", text="y", key="y")
        await asyncio.sleep(0.5)
    assert served.session.commands()[0][0] == "compact"
    picture = await browser.picture()
    assert len(picture) > 10_000
    assert picture != empty
    if folder := os.environ.get("WATCHKEEPER_PICTURES"):
        (Path(folder) / "serve.png").write_bytes(picture)
    asked_of = {
        event["params"]["request"]["url"] for event in browser.events if event.get("method") == "Network.requestWillBeSent"
    }
    assert asked_of
    assert all(url.startswith((served.root, "data:", "blob:")) for url in asked_of), asked_of
    failed = [event["params"] for event in browser.events if event.get("method") == "Network.loadingFailed"]
    assert not failed, failed
