"""`wk export`: a session as Markdown, as a web page, or as JSON."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from watchkeeper.cli.options import Opened, clean, db_option, json_option, last_session_argument, print_json
from watchkeeper.records.errors import BadInput, StoreUnusable
from watchkeeper.store import database
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.user_secrets import user_redactor

if TYPE_CHECKING:
    from watchkeeper.records.redact import Redactor

SUFFIXES = {"md": ".md", "html": ".html", "json": ".json"}


@click.command()
@last_session_argument
@click.option(
    "--format", "form", type=click.Choice(list(SUFFIXES)), help="Default: by the ending of PATH, else md."
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="PATH",
    help="Where to; `-` prints. Default: SESSION.md, .html or .json in this folder.",
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@click.option(
    "--no-redact", is_flag=True, help="Leave secrets in. By default they are taken out and counted."
)
@db_option
@json_option
def export(
    session: str,
    form: str | None,
    output: Path | None,
    force: bool,
    no_redact: bool,
    db: Path | None,
    as_json: bool,
) -> int:
    """Write SESSION (default: the newest), own or imported, into one file: plan, agents, cost, compactions
    and every transcript.

    md and html are for reading; html is one page that needs no network. json holds everything, and `wk
    import` reads it back. Keys, tokens and passwords are taken out and counted, unless --no-redact is said.
    """
    opened = Opened(db, session)
    form = form or _form_of(output)
    makes = None if no_redact else user_redactor
    if output is not None and str(output) == "-":
        if as_json:
            raise BadInput("--output - prints the session itself; leave --json out")
        try:
            redacted = _print(opened, form, makes)
        except BrokenPipeError:
            # the reader has seen enough (`wk export last -o - | head`): what is in the rest is not known
            return 0
        click.echo(f"wk: {_told(redacted, _taken_out_before(opened))}", err=True)
        return 0
    path = _place(output, opened.session_id, form)
    from watchkeeper.transcripts.export.saving import new_file

    with new_file(path, replace=force) as file:
        redacted = _write(opened, form, file, makes)
    size = path.stat().st_size
    if as_json:
        about = {
            "session": opened.session_id,
            "format": form,
            "path": str(path),
            "bytes": size,
            "redacted": redacted,
        }
        print_json(about | {"redacted_before": _taken_out_before(opened)})
    else:
        click.echo(f"{clean(path)}  {size:,} bytes  {_told(redacted, _taken_out_before(opened))}")
    return 0


def _write(opened: Opened, form: str, out: TextIO, redactor: Callable[[], Redactor] | None) -> int | None:
    """Write the session as of one moment; returns how many secrets were taken out, None where that was
    forbidden."""
    from watchkeeper.transcripts.export.forms import WRITERS

    try:
        opened.connection.execute("BEGIN")
        try:
            return WRITERS[form](opened.connection, opened.session_id, out, redactor)
        finally:
            opened.connection.execute("ROLLBACK")
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(database.explain(opened.path, error)) from error


def _print(opened: Opened, form: str, redactor: Callable[[], Redactor] | None) -> int | None:
    import io

    out = io.TextIOWrapper(
        sys.stdout.buffer, encoding="utf-8", errors="replace", newline="\n", write_through=False
    )
    try:
        redacted = _write(opened, form, out, redactor)
        out.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
    finally:
        with contextlib.suppress(BrokenPipeError):
            out.detach()
    return redacted


def _form_of(output: Path | None) -> str:
    suffix = output.suffix.lower() if output is not None else ""
    return next((form for form, ending in SUFFIXES.items() if ending == suffix), "md")


def _place(output: Path | None, session_id: str, form: str) -> Path:
    """The file to write: as it was said, or under the session's id in this folder, or in the folder that was
    said."""
    name = (
        "".join(one if one.isalnum() or one in "-_." else "-" for one in session_id).lstrip(".")
        + SUFFIXES[form]
    )
    if output is None:
        return Path.cwd() / name
    path = output.expanduser().absolute()
    return path / name if path.is_dir() else path


def _taken_out_before(opened: Opened) -> int:
    """How many secrets had been taken out of the session's messages before they were stored."""
    row = opened.one(
        "SELECT sum(length(content) - length(replace(content, '[redacted:', ''))) / length('[redacted:')"
        " FROM messages"
        " WHERE agent_id IN (SELECT id FROM agents WHERE session_id = ?)",
        (opened.session_id,),
    )
    return int(row[0] or 0)


def _told(redacted: int | None, before: int) -> str:
    """What became of secrets; of the session's messages, `before` had lost theirs as they were stored."""
    parts = []
    if redacted is None:
        parts.append("secrets were left in")
    elif redacted or not before:
        parts.append(
            "no secret was found" if not redacted else f"{redacted:,} {_secrets(redacted)} taken out"
        )
    if before:
        parts.append(f"{before:,} {_secrets(before)} had been taken out before it was stored")
    return ", ".join(parts)


def _secrets(count: int) -> str:
    return "secret" if count == 1 else "secrets"
