"""`wk host`: drive a session in this process. Started by other commands, detached."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from watchkeeper.cli.options import db_option


@click.command(hidden=True)
@click.argument("session")
@db_option
@click.option("--resume", "lift", is_flag=True, help="Lift the session's pause.")
@click.option("--once", type=int, help="Apply this command, finish what it starts, and stop.")
def host(session: str, db: Path | None, lift: bool, once: int | None) -> int:
    """Drive SESSION until it ends or pauses."""
    from watchkeeper.runtime.driving import drive
    from watchkeeper.store import database

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    path = (db or database.default_path()).expanduser().absolute()
    return drive(path, session, resume=lift, once=once).exit_code
