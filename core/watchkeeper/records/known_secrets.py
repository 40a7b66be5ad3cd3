"""The secret values in a user's configuration: those for MCP servers, and the key that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from watchkeeper.records.secret_shapes import PUBLIC_NAMES, SECRET_NAMES

_SCHEME = re.compile(r"\A(?:Bearer|Basic|Token)\s+", re.IGNORECASE)
_ASSIGNED = re.compile(r"\A-{0,2}([A-Za-z][\w.-]*)\s*[=:]\s*(\S.*)\Z", re.DOTALL)
"""`--token=VALUE`, `TOKEN=VALUE`, `Authorization: Bearer VALUE`."""


def known_secrets(config: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Name → value, for a `Redactor`, of a configuration as its file holds it. Values of an odd shape are
    skipped."""
    found: dict[str, str] = {}
    named = _table(config.get("anthropic")).get("api_key_env")
    if isinstance(named, str) and environ.get(named):
        found[named] = environ[named]
    for name, server in _table(config.get("mcp_servers")).items():
        for what, value in _of_server(_table(server)):
            found[f"{name}.{what}"] = _SCHEME.sub("", value)
    return found


def _of_server(server: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in _texts(server.get("headers")):
        yield name, value
    for name, value in _texts(server.get("env")):
        if _is_secret_name(name):
            yield name, value
    args = server.get("args")
    before = ""
    for one in args if isinstance(args, list | tuple) else ():
        if not isinstance(one, str):
            continue
        assigned = _ASSIGNED.match(one)
        if assigned is not None and _is_secret_name(assigned[1]):
            yield assigned[1], assigned[2]
        elif (
            before.startswith("-")
            and "=" not in before
            and not one.startswith("-")
            and _is_secret_name(before)
        ):
            yield before.lstrip("-"), one
        before = one
    if isinstance(server.get("url"), str):
        yield from _of_url(server["url"])


def _of_url(url: str) -> Iterator[tuple[str, str]]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if parts.password:
        yield "password", unquote(parts.password)
    for name, value in parse_qsl(parts.query):
        if _is_secret_name(name):
            yield name, value


def _is_secret_name(name: str) -> bool:
    return bool(SECRET_NAMES.search(name) and not PUBLIC_NAMES.search(name))


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    return ((str(name), text) for name, text in _table(value).items() if isinstance(text, str))
