"""`wk host`: the background process that runs a session. Other commands start it, detached."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from watchkeeper.cli.options import database_path, db_option


@click.command(hidden=True)
@click.argument("session")
@db_option
@click.option("--resume", "lift", is_flag=True, help="Lift the session's pause.")
@click.option("--once", type=int, help="Apply this command, finish what it starts, and stop.")
@click.option(
    "--approval-timeout",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="How long a question waits before it is denied.",
)
def host(session: str, db: Path | None, lift: bool, once: int | None, approval_timeout: float | None) -> int:
    """Run SESSION until it ends or pauses."""
    from watchkeeper.runtime.run_session import Asking, drive

    handler = logging.StreamHandler()
    handler.setFormatter(_Redacting("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    asking = Asking(unattended=False, timeout_seconds=approval_timeout)
    return drive(database_path(db), session, resume=lift, once=once, asking=asking).exit_code


class _Redacting(logging.Formatter):
    """Redacts log lines: a traceback may quote the text of a model or a tool."""

    def format(self, record: logging.LogRecord) -> str:
        from watchkeeper.store.user_secrets import user_redactor

        return user_redactor().text(super().format(record))
