"""Removing secrets from text that a person's commands write: goals, messages, titles, imported logs.

A host has the configuration at hand. A writer without one (a command line, the dashboard) reads only the
secrets from it. If the file is damaged, the writer continues without them; the host reports the damage.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watchkeeper.records.redact import Redactor


def config_folder() -> Path:
    """`WATCHKEEPER_CONFIG_DIR`, else the user's configuration folder."""
    chosen = os.environ.get("WATCHKEEPER_CONFIG_DIR")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_config_path

    return user_config_path("watchkeeper", appauthor=False)


def config_text() -> str:
    """The user's configuration as written; empty if none can be read."""
    try:
        return (config_folder() / "config.toml").read_text("utf-8")
    except (OSError, ValueError, RuntimeError):
        return ""


def user_redactor() -> Redactor:
    """Knows the secret variables of this process, and what the user's configuration holds."""
    from watchkeeper.records.redact import Redactor, known_secrets

    config: dict[str, Any] = {}
    if text := config_text():
        import tomllib

        with suppress(ValueError, RecursionError):
            config = tomllib.loads(text)
    return Redactor(os.environ, known_secrets(config, os.environ))
