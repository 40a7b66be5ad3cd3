"""`wk sessions`, `wk show`, `wk artifacts`: reading the file, changing nothing."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli.finding import found_sessions, say_found
from watchkeeper.cli.options import (
    Opened,
    chosen_path,
    clean,
    db_option,
    json_option,
    last_session_argument,
    print_json,
)
from watchkeeper.records.errors import NotFound
from watchkeeper.records.wording import clock_text, countdown, plural
from watchkeeper.store import artifacts as artifact_store
from watchkeeper.store import database, state
from watchkeeper.store.lease import probe
from watchkeeper.store.transcripts import imported_from, partial_reason

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
    Filters: state: model: tag: workspace: id: cost>1 cost<1 since:2026-11-01 before: compacted.
    """
    path = chosen_path(db)
    rows: list[dict[str, Any]] = []
    # Before the first run there is no file, and so no session: that is an answer. A file that was named must
    # be there.
    if db is not None or database.is_there(path):
        opened = Opened(path)
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
    opened = Opened(db, session)
    whole = state.session_state(opened, opened.session_id)
    holder = probe(opened.path, opened.session_id)
    whole["session"]["live"] = holder is not None
    if as_json:
        print_json(whole)
        return 0
    _print_state(whole, f"host pid {holder.pid}" if holder else "no host")
    _print_questions(opened, [one["id"] for one in whole["approvals"] if one["status"] == "waiting"])
    return 0


def _print_questions(opened: Opened, waiting: list[str]) -> None:
    if not waiting:
        return
    from watchkeeper.cli.approving import print_answers, print_question
    from watchkeeper.store.questions import load_question

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
    opened = Opened(db, session)
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
