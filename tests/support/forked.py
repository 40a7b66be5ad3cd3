"""Processes of `wk` without the second that the imports of the SDKs take: forked from one that has made them.

They are processes as any other: with an environment, pipes and a pid of their own, to be interrupted and
killed. What a process that is new does differently (its imports, and what is read at their time) has tests
that start one.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
LARGEST_REQUEST = 1 << 18
PRELOADED = (
    "anthropic.lib.tools.agent_toolset", "anyio._backends._asyncio", "genai_prices.data", "jsonschema", "sqlite_utils", "yaml",
    "watchkeeper.cli.control", "watchkeeper.cli.run", "watchkeeper.runtime.host_factory",
)  # fmt: skip
"""What a run comes to import."""


class Forked:
    """A `wk` that runs, or has run; as much of `subprocess.Popen` as its users need."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        out, their_out = os.pipe()
        err, their_err = os.pipe()
        self._ended, their_end = os.pipe()
        request = json.dumps(
            {"arguments": list(arguments), "environment": dict(environment), "folder": os.getcwd()}
        )
        server = _server()
        with _asking:
            socket.send_fds(server, [request.encode()], [their_out, their_err, their_end])
            self.pid = int(server.recv(32))
        for fd in (their_out, their_err, their_end):
            os.close(fd)
        self.returncode: int | None = None
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)

    def poll(self) -> int | None:
        """Its exit code, as `wait` gives it, if it has ended."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; of one that a signal killed, minus that."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"wk (pid {self.pid})", timeout or 0.0)
        return code

    def _look(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], seconds)[0]:
            self.returncode = int(os.read(self._ended, 16))
            os.close(self._ended)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it prints from now on, once it has ended."""
        said = ["", ""]

        def read(number: int) -> None:
            stream = (self.stdout, self.stderr)[number]
            if not stream.closed:
                with stream:
                    said[number] = stream.read()

        readers = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(2)]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        """To it, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """With SIGKILL."""
        self.send_signal(signal.SIGKILL)


Process = Forked | subprocess.Popen[str]


def new_process(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """The same, not forked."""
    return subprocess.Popen(
        [sys.executable, "-m", "watchkeeper", *arguments],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


_asking = threading.Lock()


@functools.cache
def _server() -> socket.socket:
    """Started when it is first needed; it ends with this process, whose end of the socket goes then."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    subprocess.Popen(
        [sys.executable, "-m", "tests.support.forked", str(theirs.fileno())], cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'core'}{os.pathsep}{ROOT / 'tui'}"},
        pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    theirs.close()
    return ours


# --- in the process that is forked --------------------------------------------------------------------------


def serve(requests: socket.socket) -> dict[str, object]:
    """Fork for each request; returns the request in each child, and never in the parent."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}
    while True:
        ready = select.select([requests, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 64)
            while children:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                with os.fdopen(children.pop(pid), "w") as end:
                    end.write(str(os.waitstatus_to_exitcode(status)))
        if requests in ready:
            message, fds, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 3)
            if not message:
                os._exit(0)
            child = os.fork()
            out, err, end = fds
            if child == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.dup2(out, 1)
                os.dup2(err, 2)
                for fd in (requests.fileno(), woken, wake, *fds, *children.values()):
                    os.close(fd)
                requests.detach()
                request: dict[str, object] = json.loads(message)
                return request
            os.close(out)
            os.close(err)
            children[child] = end
            requests.send(str(child).encode())


def main() -> NoReturn:
    """`python -m tests.support.forked FD`: import everything, then fork for whoever asks at the other end of
    the socket."""
    import random

    for name in PRELOADED:
        import_module(name)
    import watchkeeper.__main__
    from watchkeeper.store import faultpoints

    gc.freeze()  # children leave alone what they share
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    os.chdir(str(request["folder"]))
    sys.argv = ["wk", *request["arguments"]]  # type: ignore[misc]
    random.seed()
    faultpoints.arm(os.environ.get("WATCHKEEPER_FAULT"))
    watchkeeper.__main__.main()
    sys.exit(0)


if __name__ == "__main__":
    main()
