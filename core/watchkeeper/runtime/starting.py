"""Starting a session: one row, with everything that a host needs to drive it later, on its own."""

from __future__ import annotations

import getpass
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.records.errors import BadInput
from watchkeeper.records.ids import IdSource, random_id
from watchkeeper.store import database, sessions
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.encoding import decode
from watchkeeper.store.placement import refuse_inside
from watchkeeper.store.transaction import Transaction
from watchkeeper.store.user_secrets import user_redactor
from watchkeeper.store.writer import Group

BUDGET_KINDS = ("usd", "tokens", "turns", "seconds")


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What was decided when a session started; kept in its row, so that a resume needs no flag again."""

    max_parallel: int = 4
    context_tokens: int | None = None
    speed: float | None = 1.0
    """The surveyor's pace; None waits for nothing."""
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    approval_timeout_seconds: float | None = None
    """Set by a program that embeds `Runtime`. The command line gives a time-out to the host that it
    starts."""
    base_url: str | None = None
    """A local server that was picked for this session; it is sent no key. None: the server of the
    configuration."""
    allow_models: tuple[str, ...] = ()
    """Models that the user allowed although they cost more: `provider/model`, or `role=provider/model`
    (`runtime.role_models`)."""

    @classmethod
    def load(cls, text: str) -> SessionSettings:
        """From the JSON of a row; what a newer program wrote there is passed over."""
        known = {key: value for key, value in decode(text).items() if key in cls.__slots__}
        for name in ("allow", "deny", "allow_models"):
            known[name] = tuple(known.get(name, ()))
        return cls(**known)


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a person asks for."""

    goal: str
    workspace: Path
    model: str
    settings: SessionSettings = field(default_factory=SessionSettings)
    budgets: dict[str, float] = field(default_factory=dict)
    """Kind (`usd`, `tokens`, `turns`, `seconds`) → amount."""


def create_session(
    database_path: Path,
    wanted: NewSession,
    *,
    new_id: IdSource = random_id,
    now: float | None = None,
    prepare: Callable[[Transaction], None] | None = None,
) -> str:
    """Write the session's row, without secrets in its goal; returns its id. A host drives it from there.

    `prepare` writes more in the same transaction: what the session starts with (see `runtime.carrying`).

    Raises:
        BadInput: the workspace is no folder or contains the database, the goal is empty, or a budget cannot
            be kept.
        StoreUnusable: the database cannot be written.
    """
    check_workspace(wanted.workspace, database_path)
    if not wanted.goal.strip():
        raise BadInput('the goal is empty; say what should be done: wk run "GOAL"')
    for kind, amount in wanted.budgets.items():
        if kind not in BUDGET_KINDS or not 0 < amount < math.inf:  # NaN neither
            raise BadInput(f"a budget of {amount} {kind} makes no sense; give a positive amount")
    session_id = new_id()
    connection = database.open_writable(database_path)
    try:
        with database.writing(connection, "session"):
            group = Group(connection)
            at = now if now is not None else time.time()
            sessions.create(
                group,
                session_id=session_id,
                user_id=_user(),
                goal=user_redactor().text(wanted.goal),
                workspace=str(wanted.workspace.resolve()),
                model=wanted.model,
                settings=_plain(asdict(wanted.settings)),
                budgets=wanted.budgets,
                now=at,
            )
            if prepare is not None:
                prepare(Transaction(group, session_id, 0, at))
                group.flush()
    except sqlite3.DatabaseError as error:
        raise database.unusable(database_path, error) from error
    finally:
        connection.close()
    return session_id


def check_workspace(workspace: Path, database_path: Path) -> None:
    """Refuse a workspace that is no folder, or that contains the session's database.

    Raises:
        BadInput: one line that says which.
    """
    try:
        if workspace.is_dir():
            with_names = next(iter(workspace.iterdir()), None)
            del with_names
            refuse_inside(database_path, workspace)
            return
        exists = workspace.exists()
    except OSError as error:
        raise BadInput(
            f"the workspace {workspace} cannot be read ({error.strerror}); choose another with --workspace"
        ) from None
    raise BadInput(
        f"the workspace {workspace} is {'no folder' if exists else 'not there'}; choose a folder with"
        " --workspace"
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
