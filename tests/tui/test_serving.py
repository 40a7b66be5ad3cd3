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

from watchkeeper.agents.tools.processes import descendants
from watchkeeper.cli.guard import (
    IDLE_SECONDS,
    LONGEST_DELAY_SECONDS,
    LONGEST_SECONDS,
    MOST_SESSIONS,
    Admitted,
    Guard,
    Refused,
    Request,
    cookie_name,
    is_loopback,
    new_token,
    token_file,
)

TOKEN = "a-token-of-more-than-16-characters"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_extra = pytest.mark.skipif(
    find_spec("textual_serve") is None, reason="the extra `serve` is not installed"
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


HOST = "127.0.0.1:8765"


class Clock:
    """Time that moves by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guard(clock: Clock) -> Guard:
    return Guard(TOKEN, loopback_only=True, now=clock)


def log_in(guard: Guard, host: str = HOST) -> str:
    admitted = guard.decide(Request(host, token=TOKEN))
    assert isinstance(admitted, Admitted)
    assert admitted.is_new
    return admitted.session


def admits(guard: Guard, session: str, host: str = HOST, origin: str | None = None) -> bool:
    return isinstance(guard.decide(Request(host, origin, session)), Admitted)


def test_nothing_is_answered_without_a_session_not_even_on_loopback(guard: Guard) -> None:
    for session in ("", TOKEN, "x" * 43, "\udcff"):
        assert not admits(guard, session)
    session = log_in(guard)
    assert admits(guard, session)
    assert not admits(guard, session[:-1])
    assert TOKEN not in session


def test_sessions_are_random_and_known_to_their_listener_alone(guard: Guard, clock: Clock) -> None:
    several = {log_in(guard) for _ in range(20)}
    assert len(several) == 20
    assert all(admits(guard, session) for session in several)
    after_restart = Guard(TOKEN, loopback_only=True, now=clock)
    assert not any(admits(after_restart, session) for session in several)
    assert len({new_token() for _ in range(20)}) == 20
    assert len(new_token()) >= 43


def test_a_session_ends_when_it_is_idle_and_at_the_latest_after_a_day(guard: Guard, clock: Clock) -> None:
    idle, used, open_all_day = log_in(guard), log_in(guard), log_in(guard)
    with guard.hold(open_all_day) as seconds_left:
        assert seconds_left == LONGEST_SECONDS
        clock.now += IDLE_SECONDS - 1
        assert admits(guard, used)
        clock.now += 1
        assert admits(guard, used)
        assert not admits(guard, idle)
        assert admits(guard, open_all_day)
        while clock.now < 1_000 + LONGEST_SECONDS - 1:
            clock.now = min(clock.now + IDLE_SECONDS / 2, 1_000 + LONGEST_SECONDS - 1)
            assert admits(guard, used)
        assert admits(guard, open_all_day)
        clock.now += 1
        assert not admits(guard, used)
        assert not admits(guard, open_all_day)
    with guard.hold(open_all_day) as seconds_left:
        assert seconds_left == 0


def test_a_new_login_ends_the_session_that_the_browser_had(guard: Guard) -> None:
    first = log_in(guard)
    second = guard.decide(Request(HOST, session=first, token=TOKEN))
    assert isinstance(second, Admitted)
    assert not admits(guard, first)
    assert admits(guard, second.session)


def test_sessions_are_bounded_and_the_one_unused_the_longest_ends_first(guard: Guard, clock: Clock) -> None:
    first = log_in(guard)
    second = log_in(guard)
    clock.now += 1
    assert admits(guard, first)
    for _ in range(MOST_SESSIONS - 1):
        log_in(guard)
    assert admits(guard, first)
    assert not admits(guard, second)


def test_wrong_tokens_are_slow_and_never_keep_the_right_one_out(guard: Guard, clock: Clock) -> None:
    delays = []
    for wrong in (
        "",
        "x",
        TOKEN[:-1],
        TOKEN + "x",
        TOKEN.upper(),
        "\udcff",
        *("y" * 20 for _ in range(2_000)),
    ):
        refused = guard.decide(Request(HOST, token=wrong))
        assert isinstance(refused, Refused)
        delays.append(refused.delay_seconds)
    assert delays[0] > 0
    assert delays[:5] == sorted(set(delays[:5]))
    assert delays[-1] == LONGEST_DELAY_SECONDS
    assert log_in(guard)
    clock.now += 120
    again = guard.decide(Request(HOST, token="x"))
    assert isinstance(again, Refused)
    assert again.delay_seconds == delays[0]


def test_only_the_names_that_a_listener_may_have_are_answered(guard: Guard, clock: Clock) -> None:
    session = log_in(guard)
    for host in ("127.0.0.1:8765", "localhost:8765", "[::1]:8765", "127.0.0.1"):
        assert admits(guard, session, host), host
    for host in (
        "evil.example:8765", "192.168.0.7:8765", "", "127.0.0.1.evil.example", "a b",
        "localhost@evil.example",
    ):  # fmt: skip
        assert not admits(guard, session, host), host
        assert isinstance(guard.decide(Request(host, token=TOKEN)), Refused), host
    anywhere = Guard(TOKEN, loopback_only=False, now=clock)
    session = log_in(anywhere, "box.example:8765")
    assert admits(anywhere, session, "box.example:8765")
    assert not admits(anywhere, session, "a b")


def test_a_page_of_another_site_never_reaches_the_websocket(guard: Guard) -> None:
    session = log_in(guard)
    assert admits(guard, session, origin="http://127.0.0.1:8765")
    for origin in (
        "http://evil.example", "http://127.0.0.1:9999", "null", "http://127.0.0.1:8765.evil.example",
    ):  # fmt: skip
        assert not admits(guard, session, origin=origin), origin
        assert isinstance(guard.decide(Request(HOST, origin, token=TOKEN)), Refused), origin


def test_the_guard_serves_any_listener() -> None:
    """It knows no web framework."""
    program = "import sys, watchkeeper.cli.guard; assert not {'aiohttp', 'textual_serve', 'textual'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert cookie_name(8765) != cookie_name(8766)


def test_the_file_with_the_token_is_for_its_owner_alone_and_goes_with_the_listener(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "listeners"
    folder.mkdir(parents=True, mode=0o755)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = folder / f"serve-{ended.pid}-0123abcd.json"
    left.write_text("{}")
    (folder / "other.json").write_text("{}")
    before = os.umask(0)
    try:
        with (
            token_file(folder, "serve", f"http://127.0.0.1:1/?token={TOKEN}") as path,
            token_file(folder, "serve", "x") as second,
        ):
            assert path != second
            assert json.loads(path.read_text())["url"].endswith(TOKEN)
            assert path.stat().st_mode & 0o777 == 0o600
            assert folder.stat().st_mode & 0o777 == 0o700
            assert not left.exists()
    finally:
        os.umask(before)
    assert [one.name for one in folder.iterdir()] == ["other.json"]


def test_every_address_of_a_name_is_taken_or_none() -> None:
    pytest.importorskip("textual_serve")
    from watchkeeper.cli.serve import bind

    sockets = bind("localhost", 0)
    ports = {one.getsockname()[1] for one in sockets}
    assert len(ports) == 1
    port = ports.pop()
    with pytest.raises(OSError, match="in use"):
        bind("localhost", port)
    for one in sockets:
        one.close()
    for one in bind("127.0.0.1", port):
        one.close()


def test_only_this_machines_own_addresses_are_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "")))


def wk(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "watchkeeper", "serve", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )


@needs_extra
def test_binding_elsewhere_without_a_token_is_refused_with_one_line(tmp_path: Path) -> None:
    create(tmp_path / "w.db").close()
    for arguments, environment in (
        (["--host", "0.0.0.0"], {}),
        (["--host", "0.0.0.0"], {"WATCHKEEPER_SERVE_TOKEN": "short"}),
    ):
        refused = wk(*arguments, "--db", str(tmp_path / "w.db"), **environment)
        assert refused.returncode == 2
        assert "token" in refused.stderr
        assert refused.stderr.count("\n") == 1


class Served:
    """The real command, and the database behind it."""

    def __init__(self, path: Path, token: str) -> None:
        path.parent.mkdir(exist_ok=True)
        self.connection = create(path)
        self.session: FakeSession = small_session(self.connection, now=time.time())
        self.data = path.parent / "data"
        environment = {**os.environ, "WATCHKEEPER_SERVE_TOKEN": token, "XDG_DATA_HOME": str(self.data)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "watchkeeper", "serve", "--port", "0", "--db", str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, line
        self.address = next(word for word in line.split() if word.startswith("http"))
        assert "which only you can read" in self.process.stdout.readline()
        self.root = self.address.partition("?")[0]
        self.token = self.address.partition("?token=")[2]

    def token_files(self) -> list[Path]:
        return [path for path in self.data.rglob("*") if path.is_file()]

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
async def test_the_real_server_answers_no_route_without_a_session(served: Served) -> None:
    import aiohttp

    routes = ("", "ws", "static/js/textual.js", "download/x", "static/", "nothing-there")
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        await answering(client, served.root)

        async def status(route: str, **headers: str) -> int:
            async with client.get(served.root + route, headers=headers) as answer:
                return answer.status

        for route in routes:
            assert await status(route) == 403, route
            assert await status(f"{route}?token={served.token}x") == 403, route
        for route in routes[1:]:
            assert await status(f"{route}?token={served.token}") == 403, (
                "the token is taken by one address alone"
            )
        async with client.post(served.address) as answer:
            assert answer.status == 403
        async with client.get(served.address, allow_redirects=False) as answer:
            assert answer.status == 303
            assert answer.headers["Location"] == "/"
            cookie = answer.headers["Set-Cookie"]
            assert served.token not in cookie
            for part in (
                "HttpOnly",
                "SameSite=Strict",
                "Path=/",
                cookie_name(int(served.root.rsplit(":", 1)[1].strip("/"))),
            ):
                assert part in cookie, part
        async with client.get(served.root) as answer:
            assert answer.status == 200
            page = await answer.text()
            assert served.token not in page
            assert "https://" not in page
            assert "the run continues" not in page, "it may have ended"
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert await status("static/js/textual.js") == 200
        for route in routes:
            if served.token != TOKEN:  # who chose the token may have a proxy of another name before it
                assert await status(route, Host="evil.example", Origin="http://evil.example") == 403, route
            assert await status(route, Origin="http://evil.example") == 403, route
    async with aiohttp.ClientSession() as other:
        headers = {"Cookie": cookie.partition("=")[0] + "=" + served.token}
        async with other.get(served.root, headers=headers) as answer:
            assert answer.status == 403, "the token is no session"


@needs_extra
async def test_the_websocket_opens_a_dashboard_for_a_session_and_for_nobody_else(served: Served) -> None:
    import aiohttp

    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        await answering(client, served.root)
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await client.ws_connect(f"{served.root}ws")
        async with client.get(served.address) as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await client.ws_connect(f"{served.root}ws", origin="http://evil.example")
        async with client.ws_connect(f"{served.root}ws?width=80&height=24") as socket:
            message = await asyncio.wait_for(socket.receive(), 60)
            assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)


@needs_extra
@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not tell a process that its parent died"
)
async def test_a_dashboard_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    import aiohttp

    served = Served(tmp_path / "w.db", "")
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
        await answering(client, served.root)
        async with client.get(served.address):
            pass
        async with client.ws_connect(f"{served.root}ws?width=80&height=24") as socket:
            await asyncio.wait_for(socket.receive(), 60)
            (dashboard,) = descendants(served.process.pid)
            served.process.kill()
            served.process.wait()
            for _ in range(1_000):
                if not (place := Path(f"/proc/{dashboard}/stat")).exists() or ") Z " in place.read_text():
                    break
                await asyncio.sleep(0.02)
            else:
                raise AssertionError("the dashboard goes on")
    served.close()


@needs_extra
async def test_the_token_is_random_and_its_file_private_and_gone_at_the_end(tmp_path: Path) -> None:
    first, second = Served(tmp_path / "a" / "w.db", ""), Served(tmp_path / "b" / "w.db", "")
    try:
        assert len(first.token) >= 43
        assert first.token != second.token
        (file,) = first.token_files()
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert json.loads(file.read_text())["url"] == first.address
        command = Path(f"/proc/{first.process.pid}/cmdline")
        if command.exists():
            assert first.token.encode() not in command.read_bytes()
    finally:
        first.close()
        second.process.kill()
        second.close()
    assert first.token_files() == []
    (left,) = second.token_files()
    third = Served(tmp_path / "b" / "x.db", "")
    assert not left.exists()
    third.process.send_signal(signal.SIGTERM)
    third.process.wait(20)
    third.close()
    assert third.token_files() == []


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
async def test_the_dashboard_runs_in_a_real_browser_and_asks_nobody_else_for_anything(served, browser):
    await browser.do("Network.enable")
    await browser.do("Page.enable")
    await browser.do("Page.navigate", url=served.address)
    await holds(browser, "document.body.classList.contains('-first-byte')")
    assert "token" not in await browser.value("location.href")
    assert await browser.value("document.cookie") == ""
    empty = await browser.picture()
    # The key goes through the browser, the websocket, the dashboard and the command queue, and back to the
    # screen.
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
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    }
    assert asked_of
    assert all(url.startswith((served.root, "data:", "blob:")) for url in asked_of), asked_of
    failed = [event["params"] for event in browser.events if event.get("method") == "Network.loadingFailed"]
    assert not failed, failed
