"""Whether a call to a model would find a key, without the network and without the SDK (which takes a second
to import)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

ANTHROPIC_HOST = "api.anthropic.com"
API_KEY_VARIABLE = "ANTHROPIC_API_KEY"

_KEY_VARIABLES = (
    API_KEY_VARIABLE,
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_PROFILE",
    "ANTHROPIC_FEDERATION_RULE_ID",
)
"""With any of these the SDK authenticates, or says itself why it cannot."""
_KEY_HEADERS = frozenset({"authorization", "x-api-key"})


def missing_key(
    ref: str,
    *,
    api_key_env: str | None = None,
    base_url: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> str | None:
    """The environment variable that should hold the key for `ref` and does not; None where nothing is
    missing.

    `api_key_env` and `base_url` are the settings of `[anthropic]`. Only Anthropic's own server is known to
    need a key: for any other server the answer is None. It is None too where the SDK may find credentials
    elsewhere (a profile).
    """
    if ref.strip().partition("/")[0] != "anthropic":
        return None
    server = (base_url or environ.get("ANTHROPIC_BASE_URL") or "").strip()
    if server and host_of(server) != ANTHROPIC_HOST:
        return None
    if api_key_env:
        return None if environ.get(api_key_env, "").strip() else api_key_env
    if (
        any(environ.get(name, "").strip() for name in _KEY_VARIABLES)
        or _has_key_header(environ)
        or _has_profile(environ)
    ):
        return None
    return API_KEY_VARIABLE


def host_of(url: str) -> str:
    """The host that a URL names, in lower case; empty where it names none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _has_key_header(environ: Mapping[str, str]) -> bool:
    lines = environ.get("ANTHROPIC_CUSTOM_HEADERS", "").split("\n")
    return any(line.partition(":")[0].strip().lower() in _KEY_HEADERS for line in lines)


def _has_profile(environ: Mapping[str, str]) -> bool:
    """Whether there are profiles of the SDK. What they hold is for the SDK to say."""
    chosen = environ.get("ANTHROPIC_CONFIG_DIR")
    home = environ.get("HOME") if sys.platform != "win32" else None
    try:
        folder = Path(chosen) if chosen else (Path(home) if home else Path.home()) / ".config" / "anthropic"
        return (folder / "active_config").exists() or (folder / "configs").is_dir()
    except (OSError, RuntimeError):
        return False
