"""`wk sessions --search`: bring the index up to date if that is quick, search, and say what was not looked
at.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from watchkeeper.cli.options import (
    SessionHandle,
    chosen_path,
    clean,
    db_option,
    json_option,
    last_session_argument,
    print_json,
)
from watchkeeper.records.errors import BadInput, NotFound, StoreUnusable
from watchkeeper.records.text import clock_text, countdown, plural
from watchkeeper.store import artifacts as artifact_store
from watchkeeper.store import database, driver, state
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.imports import imported_from, partial_reason
from watchkeeper.store.lease import probe
from watchkeeper.store.search.index import index_until, unindexed
from watchkeeper.store.search.messages import Found, search_by_session
from watchkeeper.store.search.sessions import list_sessions, parse_filters
from watchkeeper.store.user_secrets import user_redactor

if TYPE_CHECKING:
    from watchkeeper.records.redact import Redactor


INDEXING_SECONDS = 5.0
SEARCHING_SECONDS = 10.0


def found_sessions(opened: SessionHandle, search: str, limit: int) -> list[dict[str, Any]]:
    """The sessions that `search` finds, as `state.summaries` tells them; `found` is where a message holds the
    words, or None."""
    _index(opened)
    words = parse_filters(search).text
    try:
        messages = search_by_session(
            opened.connection, words, limit=100_000, deadline_seconds=SEARCHING_SECONDS
        )
        hits = {hit.session_id: hit for hit in messages.hits}
        lines = list_sessions(opened.connection, search, limit, also=hits)
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(driver.explain(opened.path, error)) from error
    _say_what_is_missing(messages)
    rows = state.summaries(opened, among=[line.id for line in lines], limit=limit)
    for row in rows:
        hit = hits.get(row["id"])
        row["found"] = hit and {
            "agent": hit.agent_id,
            "seq": hit.seq,
            "pieces": [[piece.text, piece.found] for piece in hit.snippet],
        }
    return rows


def say_found(found: dict[str, Any]) -> None:
    """One line below the session: where the words are, and they in their context."""
    text = "".join(
        click.style(_bare(part), bold=True) if marked else _bare(part) for part, marked in found["pieces"]
    )
    click.echo(f"    {clean(found['agent'], 40)} #{found['seq']}: {text}")


def _bare(text: str) -> str:
    """Harmless for a terminal, with the spaces at its ends, which `clean` takes off."""
    lead, tail = " " if text[:1].isspace() else "", " " if text[1:] and text[-1:].isspace() else ""
    return f"{lead}{clean(text)}{tail}"


def _index(opened: SessionHandle) -> None:
    """Index what waits, for a while. A file that cannot be written is searched as it is."""
    if unindexed(opened.connection) == 0:
        return
    try:
        connection = database.open_writable(opened.path)
    except StoreUnusable:
        return
    try:
        connection.execute("PRAGMA synchronous=NORMAL")
        index_until(connection, seconds=INDEXING_SECONDS)
    except sqlite3.OperationalError:
        return  # the disk is full, say: what is not indexed is read
    finally:
        connection.close()


def _say_what_is_missing(messages: Found) -> None:
    if not messages.complete:
        click.echo(
            f"wk: after {SEARCHING_SECONDS:.0f} s the older messages were not searched; narrow it with more"
            " words, or search again",
            err=True,
        )


# --- `wk sessions`, `wk show`, `wk artifacts`: reading the file, changing nothing -------------------------

GLYPHS = {"running": "●", "paused": "‖", "done": "✓", "failed": "✗", "cancelled": "✗", "pending": "·", "stale": "~", "dropped": "-",
          "working": "●", "waiting": "?", "parked": "◷", "idle": "·"}  # fmt: skip


@click.command()
@click.option(
    "--search",
    metavar="TEXT",
    help="Only sessions that hold these words, and pass filters such as state:done.",
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=200, show_default=True)
@db_option
@json_option
def sessions(search: str | None, limit: int, db: Path | None, as_json: bool) -> int:
    """List every session, the newest first.

    --search looks through goals, tasks, facts, names of artifacts and every message; "in quotation marks" is
    a phrase.
    Filters: state: model: tag: workspace: user: id: cost>1 cost<1 since:2026-11-01 before: compacted.
    """
    path = chosen_path(db)
    rows: list[dict[str, Any]] = []
    # Before the first run there is no file, and so no session: that is an answer. A file that was named must
    # be there.
    if db is not None or database.is_there(path):
        opened = SessionHandle(path)
        rows = (
            state.summaries(opened, limit=limit) if search is None else found_sessions(opened, search, limit)
        )
    for row in rows:
        row["live"] = row["status"] == "running" and probe(path, row["id"]) is not None
    if as_json:
        print_json(rows)
        return 0
    if not rows:
        nowhere = "" if database.is_there(path) else f": there is no database at {clean(path)}"
        none_yet = f" yet{nowhere}; start one with `wk run GOAL` or `wk demo`, or `wk import claude`"
        click.echo("no sessions" + (f" with {search!r}" if search and not nowhere else none_yet))
        return 0
    click.echo(
        f"  {'id':<8}  {'last active':<16} {'status':<9} {'tasks':>7} {'agents':>6} {'tokens':>12}"
        f" {'cost':>10}  goal"
    )
    for row in rows:
        status = row["status"]
        if status == "running" and not row["live"]:
            status = (
                "done" if imported_from(row["origin"]) else "dead"
            )  # nobody follows it any more; nothing of it died
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["last_active"]))
        click.echo(
            f"{GLYPHS.get(status, '†')} {row['id']:<8}  {when} {status:<9}"
            f" {row['tasks_done']:>3}/{row['tasks']:<3} {row['agents']:>6} {row['tokens']['total']:>12,}"
            f" {cost_of(row):>10}"
            f"  {clean(row['title'] or row['goal'], 80)}"
        )
        if row.get("found"):
            say_found(row["found"])
    return 0


@click.command()
@last_session_argument
@db_option
@json_option
def show(session: str, db: Path | None, as_json: bool) -> int:
    """Show SESSION (default: the newest): plan, tasks, agents with tokens, cost, elapsed time, retries and
    errors. --json gives all there is."""
    opened = SessionHandle(db, session)
    whole = state.session_state(opened, opened.session_id)
    holder = probe(opened.path, opened.session_id)
    whole["session"]["live"] = holder is not None
    if as_json:
        print_json(whole)
        return 0
    _print_state(whole, f"host pid {holder.pid}" if holder else "no host")
    _print_questions(opened, [one["id"] for one in whole["approvals"] if one["status"] == "waiting"])
    return 0


def _print_questions(opened: SessionHandle, waiting: list[str]) -> None:
    if not waiting:
        return
    from watchkeeper.cli.control import print_answers, print_question
    from watchkeeper.store.approvals import load_question

    for approval_id in waiting:
        question = load_question(opened.connection, opened.path, approval_id)
        if question is not None:
            click.echo("\n? ", nl=False)
            print_question(question)
            print_answers(question)


def _print_state(whole: dict[str, Any], host: str) -> None:
    session, plan = whole["session"], whole["plan"]
    click.echo(f"{session['id']}  {session['status']}  ({host})  {clean(session['goal'], 120)}")
    if session["status_reason"]:
        click.echo(f"  {clean(session['status_reason'], 300)}")
    click.echo(
        f"  workspace {clean(session['workspace'])}\n  model {clean(session['model'])}   tokens"
        f" {session['tokens']['total']:,}"
        f"   cost {cost_of(session)}   time {session['elapsed_seconds']:.1f} s   retries"
        f" {session['retries']}   errors {session['errors']}"
    )
    if session["partial"]:
        click.echo(f"  {partial_reason(session['missing_logs'])}")
    for role in session["roles"]:
        asks = (
            f"   asks for {clean(role['unconfirmed'], 80)}, which costs more" if role["unconfirmed"] else ""
        )
        if role["source"] != "built-in":
            click.echo(
                f"  role {clean(role['role'], 40)}  {clean(role['source'], 80)} "
                f" {clean(role['model'], 80)}{asks}"
            )
    if plan is not None:
        click.echo(
            f"\nPlan {plan['id']}, revision {plan['revision']}, {plan['step_cursor']} of"
            f" {len(plan['tasks'])} tasks ended"
        )
        for task in plan["tasks"]:
            note = task["error"] or task["status_reason"] or ""
            # A name that is only a number, as imported plans have them, says less than the title.
            called = task["name"] if not task["name"].isdecimal() else f"{task['name']} {task['title']}"
            click.echo(
                f"  {GLYPHS.get(task['status'], '·')} {task['status']:<9} {clean(called, 40):<40} attempt"
                f" {task['attempt']}"
                f"  {task['agent'] or '-':<11} {task['tokens']['total']:>10,} tok {cost_of(task):>10}"
                f" {task['elapsed_seconds']:>7.1f} s"
                f"  {task['retries']} retries  {task['errors']} errors  {clean(note, 80)}".rstrip()
            )
            source = f" ({clean(task['role_source'], 80)})" if task["role_source"] else ""
            click.echo(
                f"              role {clean(task['role'], 40)}{source}  {clean(task['model'] or '', 80)}".rstrip()
            )
    click.echo("\nAgents")
    for agent in whole["agents"]:
        used, percent = agent["context"]["used"], agent["context"]["percent"]
        share = f"{percent:>3}%" if percent is not None else "   -"
        click.echo(
            f"  {GLYPHS.get(agent['status'], '·')} {agent['id']} {clean(agent['name'], 16):<16}"
            f" {agent['status']:<9} turn {agent['turn']:<4}"
            f" context {used:>7,} {share}  {agent['tokens']['total']:>10,} tok {cost_of(agent):>10}"
            f" {agent['elapsed_seconds']:>7.1f} s"
            f"  {plural(agent['compactions'], 'compaction')}  {agent['retries']} retries "
            f" {plural(agent['errors'], 'error')}"
        )
        if agent["parked_until"] is not None:
            now = time.time()
            click.echo(
                f"      parked until {clock_text(agent['parked_until'], now)} (in"
                f" {countdown(agent['parked_until'] - now)})"
            )
        if agent["status_reason"]:
            click.echo(f"      {clean(agent['status_reason'], 200)}")


@click.command()
@last_session_argument
@click.argument("name", required=False)
@db_option
@json_option
def artifacts(session: str, name: str | None, db: Path | None, as_json: bool) -> int:
    """List what SESSION (default: the newest) produced, or print one artifact by NAME or reference, byte for
    byte."""
    opened = SessionHandle(db, session)
    if name is None:
        rows = state.artifacts(opened, opened.session_id)
        if as_json:
            print_json(rows)
            return 0
        for row in rows:
            click.echo(
                f"{row['size']:>12,}  {row['kind']:<11} {clean(row['media_type'], 24):<24}"
                f" {clean(row['name'], 80)}"
            )
        if not rows:
            click.echo("no artifacts yet")
        return 0
    ref = artifact_store.resolve(opened, opened.session_id, name)
    data = artifact_store.get(opened, ref) if ref else None
    if data is None:
        raise NotFound(
            f"no artifact {name!r} in session {opened.session_id}; list them with `wk artifacts"
            f" {opened.session_id}`"
        )
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return 0


def cost_of(row: dict[str, Any]) -> str:
    """`$1.2345`; `~` before an estimate, `+` after a lower bound: some calls have no price."""
    if row["cost_usd"] is None:
        return "unpriced" if row["tokens"]["total"] else "-"
    return (
        ("~" if row["cost_estimated"] else "")
        + f"${row['cost_usd']:.4f}"
        + ("+" if row["unpriced_calls"] else "")
    )


# --- `wk export`: a session as Markdown, as a web page, or as JSON ----------------------------------------

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
    opened = SessionHandle(db, session)
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
    from watchkeeper.transcripts.export import new_file

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


def _write(
    opened: SessionHandle, form: str, out: TextIO, redactor: Callable[[], Redactor] | None
) -> int | None:
    """Write the session as of one moment; returns how many secrets were taken out, None where that was
    forbidden."""
    from watchkeeper.transcripts.export import WRITERS

    try:
        opened.connection.execute("BEGIN")
        try:
            return WRITERS[form](opened.connection, opened.session_id, out, redactor)
        finally:
            opened.connection.execute("ROLLBACK")
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(driver.explain(opened.path, error)) from error


def _print(opened: SessionHandle, form: str, redactor: Callable[[], Redactor] | None) -> int | None:
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


def _taken_out_before(opened: SessionHandle) -> int:
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
