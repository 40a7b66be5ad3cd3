"""What is checked before a session is started or resumed: that its configuration can be read and its model
has a key.

A host checks the same again when it begins. Here the person who starts it is told at once, and nothing was
written.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.models.credentials import missing_key
from watchkeeper.records.errors import BadInput
from watchkeeper.store import database
from watchkeeper.store.user_secrets import config_folder

if TYPE_CHECKING:
    from watchkeeper.runtime.config import Config


def check_configuration(workspace: Path) -> Config:
    """The user's configuration, after it and that of the workspace were read as a host reads them.

    Raises:
        BadInput: one of the files is damaged, or holds what is no setting; the line names the file and the
            setting.
    """
    from watchkeeper.agents.tools.mcp import parse_servers
    from watchkeeper.runtime.config import load_config, load_workspace_config

    config = load_config()
    parse_servers(config.mcp_servers)
    load_workspace_config(workspace)
    return config


def check_key(ref: str, *, environment: str, then: str, base_url: str | None = None) -> None:
    """Refuse a model whose key is not in the environment of this process, which people know as `environment`.

    `then` ends the message: what to do after the key was set. `base_url` is the server that the session
    chose; None: that of the configuration. The configuration is read without validation
    (`check_configuration` does that), so that the dashboard loads nothing heavy.

    Raises:
        BadInput: the variable that holds no key, and where it was looked for.
    """
    settings = _anthropic_settings()
    name = missing_key(
        ref, api_key_env=settings.get("api_key_env"), base_url=base_url or settings.get("base_url")
    )
    if name is not None:
        raise BadInput(
            f"no {name} in the environment of {environment}, and {ref} needs a key; set {name}, then {then}"
        )


def check_resume(database_path: Path, session_id: str, *, environment: str) -> None:
    """Refuse to resume a session whose model has no key in this process's environment.

    Raises:
        BadInput: see `check_key`.
    """
    from watchkeeper.store.encoding import decode

    connection = database.open_readonly(database_path)
    try:
        row = connection.execute(
            "SELECT model, settings FROM sessions WHERE id = ?", (session_id,)
        ).fetchone()
    finally:
        connection.close()
    if row is None:
        return
    try:
        settings = decode(row[1])
    except ValueError:
        return  # damaged: the host says which value
    chosen = settings.get("base_url") if isinstance(settings, dict) else None
    check_key(
        str(row[0]),
        environment=environment,
        then=f"run `wk resume {session_id}` in that shell",
        base_url=chosen if isinstance(chosen, str) else None,
    )


def _anthropic_settings() -> dict[str, Any]:
    """`api_key_env` and `base_url` of the user's configuration, as far as they are texts."""
    try:
        table = tomllib.loads((config_folder() / "config.toml").read_text("utf-8")).get("anthropic")
    except (OSError, ValueError, RuntimeError, RecursionError):
        return {}
    if not isinstance(table, dict):
        return {}
    return {name: value for name in ("api_key_env", "base_url") if isinstance(value := table.get(name), str)}
