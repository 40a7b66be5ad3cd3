"""A TCP proxy on loopback that delays what goes through it, and cuts, half-closes, refuses or silences connections."""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator


class Proxy:
    """Listens on `port` and forwards to `target`. Close it, or leave it to the end of the process."""

    def __init__(self, target: tuple[str, int], *, delay_seconds: float = 0.0) -> None:
        self.delay_seconds = delay_seconds
        """How long each piece of data is held, in each direction."""
        self.refuses = False
        """New connections are closed at once."""
        self.silent = threading.Event()
        """Nothing goes through, and no connection ends: a half-open network."""
        self.round_trips = 0
        """How often a client has sent something after it got something."""
        self.loses = ""
        """`requests` or `answers` are thrown away instead of sent."""
        self.has_lost = threading.Event()
        self._target = target
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._answered: set[tuple[socket.socket, socket.socket]] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """End every connection; returns how many there were."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _end(pair)
        return len(pairs)

    def half_close(self, *, towards_server: bool) -> None:
        """End one direction of every connection: one side is told that the other sends nothing more, and sees by
        itself what became of what it had sent."""
        for pair in list(self._pairs):
            with contextlib.suppress(OSError):
                pair[towards_server].shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Listen no more, and end every connection."""
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if self.refuses:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                pair = (client, server)
                self._pairs.append(pair)
                for one in pair:
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for source, sink in (pair, pair[::-1]):
                    held: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    threading.Thread(target=self._read, args=(pair, source, held), daemon=True).start()
                    threading.Thread(target=self._write, args=(pair, sink, held), daemon=True).start()

    def _read(
        self,
        pair: tuple[socket.socket, socket.socket],
        source: socket.socket,
        held: queue.SimpleQueue[tuple[float, bytes]],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if source is pair[1]:
                    self._answered.add(pair)
                elif pair in self._answered:
                    self._answered.discard(pair)
                    self.round_trips += 1
                held.put((time.monotonic() + self.delay_seconds, data))
        held.put((0.0, b""))

    def _write(
        self,
        pair: tuple[socket.socket, socket.socket],
        sink: socket.socket,
        held: queue.SimpleQueue[tuple[float, bytes]],
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = held.get()
                if not data:
                    break
                while self.silent.is_set():
                    time.sleep(0.01)
                if self.loses == ("requests" if sink is pair[1] else "answers"):
                    self.has_lost.set()
                    continue
                left = due - time.monotonic()
                if left > 0:
                    time.sleep(left)
                sink.sendall(data)
        _end(pair)


def _end(pair: tuple[socket.socket, socket.socket]) -> None:
    for one in pair:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@contextlib.contextmanager
def far_away(target: tuple[str, int], round_trip_seconds: float) -> Iterator[int]:
    """The port of a proxy that lengthens each round trip, in a process of its own: no interpreter lock slows it."""
    command = [
        sys.executable, "-m", "tests.support.proxy", target[0], f"{target[1]}", f"{round_trip_seconds / 2}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


if __name__ == "__main__":
    host, port, delay_seconds = sys.argv[1:]
    print(Proxy((host, int(port)), delay_seconds=float(delay_seconds)).port, flush=True)
    threading.Event().wait()
