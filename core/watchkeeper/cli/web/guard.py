"""Who may open the dashboard in a browser. Pure functions of what a request says; no I/O.

A dashboard acts on runs, so that a page of any other site must never reach it through the browser of whoever watches:
neither under a name of its own that points here (DNS rebinding), nor by a websocket across sites.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

COOKIE = "watchkeeper"

_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?\Z")


def is_loopback(name: str) -> bool:
    """Whether a host's name or address is this machine's own, reached by nobody else."""
    if name.casefold() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says of itself."""

    host: str
    """The `Host` header."""
    origin: str | None
    """The `Origin` header; browsers send it with every websocket."""
    cookie: str
    token: str
    """The token in the address, or empty."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What is let through."""

    token: str
    """Empty: none is asked for; then only this machine is served."""

    @property
    def ticket(self) -> str:
        """What the cookie holds in the token's place, so that a browser's store never gives the token away."""
        return hmac.new(self.token.encode(), b"watchkeeper serve", hashlib.sha256).hexdigest()

    def refuses(self, asked: Asked) -> str | None:
        """Why the request is not answered, in one line; None where it is."""
        name = _HOST.match(asked.host)
        if name is None:
            return "the address asked for is no host name"
        if not self.token and not is_loopback(name["name"]):
            return "this dashboard is served to this machine alone; open it as http://127.0.0.1 or http://localhost"
        if asked.origin is not None and urlsplit(asked.origin).netloc != asked.host:
            return "another site may not open this dashboard"
        if self.token and not (_same(asked.token, self.token) or _same(asked.cookie, self.ticket)):
            return "a token is needed: open the address that `wk serve` printed"
        return None


def _same(given: str, wanted: str) -> bool:
    """Compared in constant time: how long an answer takes tells nothing of the token."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())
