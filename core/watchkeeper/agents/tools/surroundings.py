"""The environment variables of everything that tools run in: an allowlist, so that no credential is ever
handed down."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SESSION_VARIABLE = "WATCHKEEPER_SESSION"
"""Set for all that tools run in, to `mark_of` their session: so what a killed host left running is known for
what it is."""
ALLOWED = frozenset(
    {SESSION_VARIABLE, "PATH", "HOME", "LANG", "LANGUAGE", "TERM", "TMPDIR", "USER", "LOGNAME", "SHELL", "TZ"}
)
ALLOWED_PREFIXES = ("LC_",)
NAMESPACE_FLAG, REGISTER_FLAG = "--namespace", "--register"
"""What a worker is told in its arguments: to make a PID namespace of its own; to say which processes outlive
a call."""
AGENT_VARIABLE = "WATCHKEEPER_AGENT"
"""Set for tools, to the agent's id; the command line refuses control commands under it."""


def mark_of(session_id: str, database: Path) -> str:
    """One session of one database file; a copy of the file is another."""
    return f"{session_id} {database.resolve()}"


def allowed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What tools see of the host's variables."""
    return {
        name: value for name, value in environ.items() if name in ALLOWED or name.startswith(ALLOWED_PREFIXES)
    }


def worker_environment(environ: Mapping[str, str], agent_id: str) -> dict[str, str]:
    """What a worker process starts with. PYTHONPATH is for its own imports; it takes it away before any tool
    runs."""
    return allowed_environment(environ) | {
        AGENT_VARIABLE: agent_id,
        "PYTHONPATH": os.pathsep.join(_import_roots(environ)),
    }


def hide_worker_variables() -> None:
    """In a worker: remove what only its own imports needed; they are found by `sys.path` from now on."""
    os.environ.pop("PYTHONPATH", None)


def _import_roots(environ: Mapping[str, str]) -> list[str]:
    import watchkeeper

    root = Path(watchkeeper.__file__).resolve().parents[1]
    # An installed package is found by the interpreter itself; put before the standard library, site-packages
    # could shadow it.
    roots = [] if root.name in ("site-packages", "dist-packages") else [str(root)]
    return roots + [one for one in environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(one)]
