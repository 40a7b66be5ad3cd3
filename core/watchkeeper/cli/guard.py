"""Access control of a listener: a random token once, then a session that only the server knows.

Any user of a machine can connect to a loopback port, so each listener asks for a token, also on 127.0.0.1. A
browser that sends it gets a random session id in a cookie. The session itself is in this process; it expires,
and ends with the process.

A page of another site must not reach a listener through the user's browser: neither under its own name that
resolves to this machine (DNS rebinding), nor by cross-site requests. `Host` and `Origin` are checked for that.

This module does no I/O except for the token's file, and does not depend on aiohttp.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from watchkeeper.records import proc
from watchkeeper.store.driver import make_private

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
            return Refused("the requested host name is invalid")
        if self._loopback_only and not is_loopback(name["name"]):
            return Refused(
                "this server accepts only local host names; open it as http://127.0.0.1 or http://localhost"
            )
        if request.origin is not None and urlsplit(request.origin).netloc != request.host:
            return Refused("requests from other sites are refused")
        if request.token is not None:
            return self._logged_in(request)
        session = self._session(request.session)
        if session is None:
            return Refused(
                "not logged in, or the login expired: open the address with the token that the command printed"
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
            return Refused("wrong token: open the address that the command printed", delay)
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
def token_file(folder: Path, kind: str, address: str, token: str | None = None) -> Iterator[Path]:
    """A file with the address and token of a listener, readable by this user only, while the listener runs.

    `token`: where the address does not hold it.

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
            json.dump(
                {"kind": kind, "pid": os.getpid(), "url": address} | ({"token": token} if token else {}), file
            )
        yield path
    finally:
        path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove the files of listeners whose process is gone."""
    for path in folder.glob("*.json"):
        match = re.fullmatch(r"[a-z]+-(\d+)-[0-9a-f]{8}\.json", path.name)
        if match is not None and proc.has_ended(int(match[1])):
            with contextlib.suppress(OSError):
                path.unlink()


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode("utf-8", "surrogateescape")).hexdigest()


def _same(given: str, wanted: str) -> bool:
    """Compare in constant time, also if the lengths differ, so that the time reveals nothing about the
    token."""
    return hmac.compare_digest(
        hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest(),
        hashlib.sha256(wanted.encode()).digest(),
    )
