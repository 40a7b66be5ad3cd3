"""Headless Chromium, spoken to over a pipe (the DevTools protocol): no driver, no port, no network."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """A page of a browser of its own. `console` gathers its log, `asked` the addresses that it asks for."""

    def __init__(self, profile: Path, *, width: int = 1280, height: int = 900) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def in_child() -> None:
            # The browser reads commands on descriptor 3 and writes answers on 4; they may be each other's
            # now.
            reads, writes = (fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (to_browser, from_browser))
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        arguments = [
            str(CHROMIUM),
            *FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            arguments, preexec_fn=in_child, close_fds=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.console: list[str] = []
        self.asked: list[str] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def send(self, method: str, **parameters: Any) -> Any:
        """One command; returns its result."""
        self._count += 1
        command = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._next(60)
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file, and wait until its program has run."""
        self.send("Page.navigate", url=path.as_uri() + fragment)
        self.until("document.readyState === 'complete' && document.documentElement.dataset.ready === 'yes'")

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, script: str, seconds: float = 30.0) -> bool:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(f"!!({script})"):
            assert time.monotonic() < deadline, f"never: {script}"
            time.sleep(0.02)
        return True

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self._process.kill()
        self._process.wait(timeout=30)
        os.close(self._write)
        os.close(self._read)

    def _next(self, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        method, about = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(one.get("value")) for one in about["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(about["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.console.append(about["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.asked.append(about["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.console.append(f"dialog: {about['message']}")
