"""Commands that only read: `wk sessions`, `wk show`, `wk artifacts`, `wk usage` and `wk export`.

They read the database file, so they work whether a session runs or not. Only a search writes: it brings the
index of messages up to date, if that is possible and quick.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from watchkeeper.cli.help import Command
from watchkeeper.cli.options import (
    SessionHandle,
    clean,
    database_path,
    day_and_minute,
    db_option,
    json_option,
    last_session_argument,
    reads_session,
    respond,
    state_word,
)
from watchkeeper.records.errors import BadInput, NotFound, StoreUnusable
from watchkeeper.records.quota import Quota, owner_name, quota_words, window_name
from watchkeeper.records.readers import UNIT_ROLES
from watchkeeper.records.text import clock_text, cost_text, countdown, money, plural, tokens_text
from watchkeeper.records.usage_limits import UsageLimit, limit_text
from watchkeeper.records.waiting import UNKNOWN, waiting_word
from watchkeeper.store import artifacts as artifact_store
from watchkeeper.store import database, driver, plans, state
from watchkeeper.store.agents import load_worktrees
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.engine import index_of
from watchkeeper.store.imports import imported_from, partial_reason
from watchkeeper.store.lease import probe_all
from watchkeeper.store.messages import redactions
from watchkeeper.store.names import agent_label, task_name, with_role
from watchkeeper.store.outcome import text_lines
from watchkeeper.store.place import Place, user_redactor
from watchkeeper.store.quota import load_quotas
from watchkeeper.store.receipts import session_receipts
from watchkeeper.store.statistics import GROUPS, Burn, UsageRow, burn, models_used
from watchkeeper.store.statistics import usage as usage_by
from watchkeeper.store.workers import Needs, queue_state

if TYPE_CHECKING:
    from watchkeeper.records.redact import Redactor

INDEXING_SECONDS = 5.0
"""How long a search spends on the index before it starts."""
SEARCHING_SECONDS = 10.0
"""How long a search reads; after that it reports that older messages were not searched."""

GLYPHS = {"running": "●", "paused": "‖", "done": "✓", "failed": "✗", "cancelled": "✗", "pending": "·", "stale": "~", "dropped": "-",
          "working": "●", "waiting": "?", "parked": "◷", "idle": "·", "queued": "◷", "stopped": "†", "ended": "□"}  # fmt: skip


@click.command(
    cls=Command,
    examples=(
        "wk sessions # newest first",
        'wk sessions --search "parser state:done" # words and filters',
    ),
)
@click.option(
    "--search", metavar="TEXT", help="Only sessions that match these words and filters (state:done)."
)
@click.option("--limit", type=click.IntRange(1, 100_000), default=200, show_default=True)
@db_option
@json_option
def sessions(search: str | None, limit: int, db: Place | None, as_json: bool) -> int:
    """List up to --limit sessions: live Watchkeeper runs first, then the most recently active.

    --search covers goals, tasks, facts, artifact names and all messages; quotation marks enclose a phrase.
    Filters: state: model: tag: workspace: user: id: cost>1 cost<1 since:2026-11-01 before: compacted.
    """
    path = database_path(db)
    rows: list[dict[str, Any]] = []
    # Before the first run there is no file and so no session. A file that --db names must exist.
    if db is not None or database.is_there(path):
        opened = SessionHandle(path)
        rows = (
            state.summaries(opened, limit=limit + 1)
            if search is None
            else _found_sessions(opened, search, limit + 1)
        )
    if len(rows) > limit:
        del rows[limit:]
        what = "sessions" if search is None else "matching sessions"
        click.echo(f"wk: showing the {limit:,} most recently active {what}; --limit shows more", err=True)
    hosted = probe_all(path, [row["id"] for row in rows if row["status"] == "running" or row["working"]])
    for row in rows:
        row["live"] = row["id"] in hosted
        row["queued"] = row["status"] == "running" and not row["live"] and row["queued_at"] is not None
    if search is None:
        rows.sort(key=lambda row: imported_from(row["origin"]) is not None or not row["live"])
    nowhere = "" if database.is_there(path) else f": no database at {clean(path)}"
    none_yet = f" yet{nowhere}; start one with `wk run GOAL` or `wk demo`, or run `wk import claude`"
    empty = "no sessions" + (f" with {search!r}" if search and not nowhere else none_yet)
    return respond(as_json, rows, _session_lines(rows), empty=empty)


def _session_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    if rows:
        yield (
            f"  {'id':<8}  {'last active':<16} {'status':<9} {'tasks':>7} {'agents':>6} {'tokens':>12}"
            f" {'cost':>10}  goal"
        )
    for row in rows:
        status = state_word(
            row["status"], row["origin"], live=row["live"], working=row["working"], queued=row["queued"]
        )
        if status in ("done", "ended") and row["usage_limit"] is not None:
            status = "parked"  # its program stopped, and nothing here continues it
        word = waiting_word(status, row["status_reason"]) or status
        yield (
            f"{GLYPHS.get(status, '?')} {row['id']:<8}  {day_and_minute(row['last_active'])} {word:<9}"
            f" {row['tasks_done']:>3}/{row['tasks']:<3} {row['agents']:>6} {row['tokens']['total']:>12,}"
            f" {cost_of(row):>10}  {clean(row['title'] or row['goal'], 80)}"
        )
        if row["usage_limit"] is not None:
            yield f"            {limit_text(UsageLimit(**row['usage_limit']), time.time())}"
        if found := row.get("found"):
            yield _match_line(found)


def _found_sessions(opened: SessionHandle, search: str, limit: int) -> list[dict[str, Any]]:
    """The matching sessions, as `state.found_sessions` has them, after the index was brought up to date."""
    _update_index(opened)
    try:
        rows, complete = state.found_sessions(opened, search, limit, deadline_seconds=SEARCHING_SECONDS)
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(driver.explain(opened.path, error)) from error
    if not complete:
        click.echo(
            f"wk: search stopped after {SEARCHING_SECONDS:.0f} s without reaching older messages; add words or search "
            "again",
            err=True,
        )
    return rows


def _match_line(found: dict[str, Any]) -> str:
    """The line below a session: the message that matches, with the words in bold."""

    def shown(text: str) -> str:
        # `clean` strips the spaces that separate the pieces.
        lead, tail = " " if text[:1].isspace() else "", " " if text[1:] and text[-1:].isspace() else ""
        return f"{lead}{clean(text)}{tail}"

    text = "".join(
        click.style(shown(part), bold=True) if matches else shown(part) for part, matches in found["pieces"]
    )
    return f"    {clean(found['agent'], 40)} #{found['seq']}: {text}"


def _update_index(opened: SessionHandle) -> None:
    """Index new messages for a while. If the file cannot be written, the search reads what is not indexed."""
    if index_of(opened.connection).unindexed() == 0:
        return
    try:
        connection = database.open_writable(opened.path)
    except StoreUnusable:
        return
    try:
        if isinstance(opened.path, Path):
            connection.execute("PRAGMA synchronous=NORMAL")
        index_of(connection).index_until(seconds=INDEXING_SECONDS)
    except sqlite3.OperationalError:
        return  # for example a full disk
    finally:
        connection.close()


@click.command(
    cls=Command,
    examples=(
        "wk show # the most recently active session",
        "wk show last --json # all of its state, for a script",
    ),
)
@last_session_argument
@db_option
@json_option
@reads_session
def show(opened: SessionHandle, as_json: bool) -> int:
    """Show SESSION (default: `last`): plan, tasks, agents with tokens, cost, elapsed time, retries and
    errors. --json prints all of its state."""
    holder = opened.host
    whole = state.session_state(opened, opened.session_id, live=holder is not None)
    whole["session"]["live"] = holder is not None
    queued = queue_state(opened, opened.session_id)
    whole["queue"] = queued.as_json() if queued is not None and holder is None else None
    whole["receipts"] = [one.as_json() for one in session_receipts(opened, opened.session_id)]
    host = f"background process {holder.pid}" if holder else ""
    return respond(as_json, whole, _state_lines(opened, whole, host))


def _state_lines(opened: SessionHandle, whole: dict[str, Any], host: str) -> Iterator[str]:
    from watchkeeper.cli.headless import outcome_lines

    session = whole["session"]
    failed = whole["tool_calls"].get("error", 0)
    queued = session["queued_at"] is not None
    working = sum(agent["status"] == "working" for agent in whole["agents"])
    status = state_word(
        session["status"], session["origin"], live=session["live"], working=working, queued=queued
    )
    if status == "stopped":  # so are its agents and tasks
        for each in (*whole["agents"], *(whole["plan"] or {"tasks": ()})["tasks"]):
            if each["status"] in ("running", "working", "waiting", "idle", "parked"):
                each |= {"status": status, "state": status, "waiting": None}
    first, *others = _summary_lines(session, status, host, failed, ended=whole["outcome"] is not None)
    yield first
    if status == "stopped":
        yield f"  the background process stopped; `wk resume {opened.session_id}` continues the session"
    if whole["outcome"] is not None:
        yield ""
        yield from outcome_lines(opened.session_id, whole["session"]["status"], whole["outcome"])
        yield ""
    yield from others
    if whole["queue"] is not None and whole["session"]["status"] == "running":
        yield from _queue_lines(whole["queue"])
    if whole["plan"] is not None:
        ended = whole["session"]["ended_at"] is not None
        yield from _plan_lines(whole["plan"], ended)
    yield "\nAgents"
    names = [agent_label(agent["name"], agent["role"], agent["task_id"]) for agent in whole["agents"]]
    cells = min(40, max(map(len, names), default=0))
    for agent in whole["agents"]:
        yield from _agent_lines(agent, cells)
    yield from _receipt_lines(whole["receipts"])
    waiting = [one["id"] for one in whole["approvals"] if one["status"] == "waiting"]
    if waiting:
        from watchkeeper.cli.control import question_with_answers
        from watchkeeper.store.commands import load_question

        for approval_id in waiting:
            question = load_question(opened.connection, opened.path, approval_id)
            if question is not None and question.status == "waiting":
                first, *lines = question_with_answers(question)
                yield from (f"\n? {first}", *lines)


def _queue_lines(queue: dict[str, Any]) -> Iterator[str]:
    """Why a session waits."""
    yield (
        f"  queued {day_and_minute(queue['queued_at'])} for {clean(Needs.from_json(queue['needs']).describe())};"
        f" {plural(queue['workers'], 'matching worker') if queue['workers'] else 'no matching worker'}"
    )
    for one in queue["refusals"]:
        yield f"    {one['worker']} on {clean(one['machine'], 40)}: {clean(one['reason'], 300)}"


def _receipt_lines(receipts: list[dict[str, Any]]) -> Iterator[str]:
    """What is missing from agents that are done, and how their tests and builds ended."""
    shown = [one for one in receipts if one["outputs"] or one["commands"] or one["flagged"]]
    if shown:
        yield "\nReceipts"
    for one in shown:
        yield f"  {one['mark']} {clean(one['name'], 24):<24} {clean(one['summary'], 200)}"
        for output in one["outputs"]:
            if output["presence"] != "there":
                yield f"      {output['presence']}: {clean(output['name'], 120)}"
        for run in one["commands"]:
            when = "" if run["after_last_edit"] else ", before the last edit"
            yield f"      {run['outcome']}{when}: {clean(run['command'], 160)}  {clean(run['message'], 100)}"


def _summary_lines(
    session: dict[str, Any], status: str, host: str, failed: int, *, ended: bool
) -> Iterator[str]:
    """The session in a few lines. `failed`: tool calls that failed. `ended`: its outcome follows, and has the reason."""
    note = "imported" if imported_from(session["origin"]) is not None else host
    title = clean(session["title"] or session["goal"], 120)
    yield f"{session['id']}  {status}  {f'({note})  ' if note else ''}{title}"
    if session["title"]:
        yield f"  goal {clean(session['goal'], 200)}"
    if session["usage_limit"] is not None:
        yield f"  stopped: {limit_text(UsageLimit(**session['usage_limit']), time.time())}"
    if session["status_reason"] and not ended:
        yield from (f"  {line}" for line in text_lines(session["status_reason"]))
    yield f"  workspace {clean(session['workspace'])}"
    effort = f"   effort {clean(session['effort'], 200)}" if session["effort"] else ""
    yield (
        f"  model {clean(session['model'])}{effort}   tokens {session['tokens']['total']:,}   cost {cost_of(session)}"
        f"   time {session['elapsed_seconds']:.1f} s"
    )
    yield f"  retries {session['retries']}   failed model calls {session['errors']}   failed tool calls {failed}"
    if session["partial"]:
        yield f"  {partial_reason(session['missing_logs'], session['unlogged_calls'])}"
    for role in session["roles"]:
        if role["source"] == "built-in":
            continue
        wanted = role["unconfirmed"]
        asks = f"   requests {clean(wanted, 80)}, which costs more" if wanted else ""
        yield (
            f"  role {clean(role['role'], 40)}  {clean(role['source'], 80)}  {clean(role['model'], 80)}{asks}"
        )


def _plan_lines(plan: dict[str, Any], ended: bool) -> Iterator[str]:
    step = plan["step"]
    named = [_named_task(task) for task in plan["tasks"]]
    cells = min(40, max(map(len, named), default=0))
    word = "stopped at" if ended else "now"
    count = Counter(task["status"] for task in plan["tasks"])
    at = (
        f"; {word}: {clean(named[step['number'] - 1], 80)} ({plan['tasks'][step['number'] - 1]['status']})"
        if step
        else ""
    )
    others = "".join(
        f", {count[state]} {state}" for state in ("failed", "cancelled", "dropped") if count[state]
    )
    yield f"\nPlan, revision {plan['revision']}: {count['done']} of {plural(len(plan['tasks']), 'task')} done{others}{at}"
    for task, name in zip(plan["tasks"], named, strict=True):
        note = task["error"] or task["status_reason"] or ""
        state_of = f"{GLYPHS.get(task['status'], '?')} {clean(task['waiting'] or task['status'], 9):<9}"
        if not task["role"]:  # an item of an imported to-do list
            text = clean(name, 200) + (f"  {clean(note, 80)}" if note else "")
            yield f"  {state_of} {text}"
            continue
        yield (
            f"  {state_of} {clean(name, cells):<{cells}}"
            f" {task['tokens']['total']:>10,} tok"
            f" {cost_of(task):>10} {task['elapsed_seconds']:>7.1f} s {_trouble(task)}  {clean(note, 80)}".rstrip()
        )
        source = f" ({clean(task['role_source'], 80)})" if task["role_source"] else ""
        parts = (
            clean(task["title"], 80) if task["title"] != task["name"] else "",
            f"role {clean(task['role'], 40)}{source}", clean(task["model"] or "", 80),
            f"attempt {task['attempt']}" if task["attempt"] > 1 else "",
        )  # fmt: skip
        yield "              " + " · ".join(filter(None, parts))


def _trouble(row: dict[str, Any]) -> str:
    """Retries and errors, where there are any."""
    counts = (plural(row["retries"], "retry", "retries") if row["retries"] else "",
              plural(row["errors"], "error") if row["errors"] else "")  # fmt: skip
    return "".join(f" {one}" for one in counts if one)


def _named_task(task: dict[str, Any]) -> str:
    return with_role(task_name(task["name"], task["title"], task["role"]), task["role"])


def _glyph(agent: dict[str, Any]) -> str:
    return "-" if agent["state"] == UNKNOWN else GLYPHS.get(agent["status"], "?")


def _unit_line(unit: dict[str, Any], name: str) -> str:
    """A workflow's run or phase, with what its agents used, or a command in the background."""
    below = unit["below"] or {}
    said = f"  {_glyph(unit)} {unit['id']} {name} {unit['state']:<9}"
    if below.get("agents"):
        said += (
            f" {plural(below['agents'], 'agent')} {below['tokens']['total']:>10,} tok {cost_of(below):>10}"
        )
    reason = unit["status_reason"]
    return f"{said} {clean(reason, 200)}" if reason else said.rstrip()


def _agent_lines(agent: dict[str, Any], cells: int) -> Iterator[str]:
    used, percent = agent["context"]["used"], agent["context"]["percent"]
    share = f"{percent:>3}%" if percent is not None else "   -"
    name = clean(agent_label(agent["name"], agent["role"], agent["task_id"]), cells)
    if agent["role"] in UNIT_ROLES:
        yield _unit_line(agent, f"{name:<{cells}}")
        return
    yield (
        f"  {_glyph(agent)} {agent['id']} {name:<{cells}}"
        f" {agent['state']:<9} turn {agent['turn']:<4} context {used:>7,} {share} "
        f" {agent['tokens']['total']:>10,} tok {cost_of(agent):>10} {agent['elapsed_seconds']:>7.1f} s "
        f" {plural(agent['compactions'], 'compaction')} {_trouble(agent)}".rstrip()
    )
    if agent["parked_until"] is not None:
        now = time.time()
        until = agent["parked_until"]
        left = f"in {countdown(until - now)}" if until > now else "ended"
        yield f"      until {clock_text(until, now)} ({left})"
    if agent["status_reason"]:
        yield from (f"      {line}" for line in text_lines(agent["status_reason"]))


@click.command(
    cls=Command,
    examples=(
        "wk artifacts last SURVEY.md # print one artifact",
        "wk artifacts last --diff # changes in agents' worktrees",
    ),
)
@last_session_argument
@click.argument("name", required=False, metavar="[NAME|TASK]")
@click.option(
    "--diff",
    is_flag=True,
    help="Show the changes in the git worktrees of all agents, or only of TASK's agent.",
)
@db_option
@json_option
@reads_session
def artifacts(opened: SessionHandle, name: str | None, diff: bool, as_json: bool) -> int:
    """List the artifacts of SESSION (default: `last`), or print one by NAME or reference, byte for byte.

    A diff includes new files. While an agent is working, the diff shows the state at the last check.
    """
    if diff:
        return _diff(opened, name, as_json)
    if name is None:
        rows = state.artifacts(opened, opened.session_id)
        return respond(
            as_json,
            rows,
            (
                f"{row['size']:>12,}  {row['kind']:<11} {clean(row['media_type'], 24):<24}"
                f" {clean(row['name'], 80)}"
                for row in rows
            ),
            empty="no artifacts",
        )
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


def _diff(opened: SessionHandle, task: str | None, as_json: bool) -> int:
    """Print what the agents of a session, or that of one task, changed in their git worktrees."""
    trees = load_worktrees(opened, opened.session_id)
    if task is not None:
        task_id = opened.task(task)
        if task_id is None:
            raise NotFound(f"no task {task!r} in session {opened.session_id}")
        trees = [tree for tree in trees if tree.task_id == task_id]
    tasks = plans.load_tasks(opened, opened.session_id)
    names = {one.id: task_name(one.name, one.title, one.role) for one in tasks}
    rows: list[dict[str, Any]] = [
        {
            "task": names.get(tree.task_id, tree.task_id), "status": tree.status, "branch": tree.branch,
            "folder": tree.folder, "base_commit": tree.base_commit, "merge_commit": tree.merge_commit,
            "files_changed": tree.files_changed, "diff": tree.diff,
        }
        for tree in trees
    ]  # fmt: skip

    def lines() -> Iterator[str]:
        for row in rows:
            about = (
                f"{plural(row['files_changed'], 'file')}, {row['status']}, branch {clean(row['branch'], 200)}"
            )
            yield f"{clean(row['task'], 60)}: {about}, {clean(row['folder'], 300)}"
            yield from (clean(line, 1_000) if line.strip() else "" for line in row["diff"].split("\n"))

    return respond(as_json, rows, lines(), empty="no agent worktrees")


def cost_of(row: dict[str, Any]) -> str:
    """`$1.23`; `~` marks an estimate, `+` a lower bound: some calls have no price, or are not in the logs."""
    text = cost_text(row["cost_usd"], row["tokens"]["total"])
    if row["cost_usd"] is None:
        return text
    estimated = "~" if row["cost_estimated"] else ""
    more = "+" if row["unpriced_calls"] or row.get("partial") else ""
    return f"{estimated}{text}{more}"


def _day(_: click.Context, parameter: click.Parameter, text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.strptime(text, "%Y-%m-%d")
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a date; use the format 2026-11-01", param=parameter
        ) from None


@click.command(
    cls=Command,
    examples=("wk usage # tokens and cost by day", "wk usage --by model --since 2026-11-01 # by model"),
)
@click.option("--by", type=click.Choice(GROUPS), default="day", show_default=True)
@click.option("--cost", "in_dollars", is_flag=True, help="Show cost by token type.")
@click.option(
    "--since",
    callback=_day,
    metavar="DATE",
    help="Only calls on or after this date (2026-11-01, local time).",
)
@click.option("--until", callback=_day, metavar="DATE", help="Only calls on or before this date.")
@db_option
@json_option
def usage(
    by: str, in_dollars: bool, since: datetime | None, until: datetime | None, db: Place | None, as_json: bool
) -> int:
    """Show tokens and cost of all sessions, what is left of usage windows, and the burn of the last hour.

    Each model call counts once, even if sessions were forked. Weeks start on Monday. `input` is uncached tokens,
    `cached` is cache reads, and `written` is cache writes, kept for `5 min` or `1 h`. With --cost, the cost is split
    by list prices; `other` is the remainder.
    """
    from watchkeeper.models.registry import list_prices, listed_models, remembered_prices

    if since is not None and until is not None and since > until:
        raise BadInput(f"--since {since:%Y-%m-%d} is after --until {until:%Y-%m-%d}")
    path = database_path(db)
    rows: list[UsageRow] = []
    quotas: tuple[Quota, ...] = ()
    burning: list[Burn] = []
    now = time.time()
    total = UsageRow("total")
    if db is not None or database.is_there(path):
        begins = since.timestamp() if since else 0.0
        ends = (until + timedelta(days=1)).timestamp() if until else 1e11
        connection = SessionHandle(path).connection
        prices = list_prices(models_used(connection), remembered_prices(listed_models))
        rows, total = usage_by(connection, by, since=begins, until=ends, prices=prices)
        quotas, burning = load_quotas(connection), burn(connection, now)
    value = {
        "by": by, "rows": [row.as_json() for row in rows], "total": total.as_json(),
        "quota": [each.as_json(now) for each in quotas], "last_hour": [each.as_json() for each in burning],
    }  # fmt: skip
    table = (
        (_cost_lines if in_dollars else _usage_lines)(by, rows, total)
        if rows
        else ["no model calls in this period"]
    )
    lines = chain(table, _quota_lines(quotas, now) if quotas or rows else (), _burn_lines(burning))
    return respond(as_json, value, lines)


def _quota_lines(quotas: Sequence[Quota], now: float) -> Iterator[str]:
    """What is left of each window, by provider and account."""
    yield "usage windows" if quotas else "usage windows: unknown"
    for owner, those in groupby(quotas, key=lambda each: owner_name(each.newest)):
        for each in those:
            yield f"  {clean(owner, 120)}, {clean(window_name(each.newest), 60)}: {quota_words(each, now)}"


def _burn_lines(burning: Sequence[Burn]) -> Iterator[str]:
    """What each session used in the last hour."""
    if burning:
        yield "last hour"
    for each in burning:
        cost = cost_text(each.cost_usd, each.tokens) + (
            " or more" if each.cost_usd is not None and each.unpriced_calls else ""
        )
        yield f"  {each.session_id}  {cost}  {tokens_text(each.tokens)} tokens  {clean(each.title, 60)}"


def _usage_lines(by: str, rows: list[UsageRow], total: UsageRow) -> Iterator[str]:
    def cells(row: UsageRow) -> list[str]:
        counts = (
            row.model_calls,
            row.input_tokens,
            row.output_tokens,
            row.cache_read_tokens,
            row.cache_write_tokens,
        )
        return [*(f"{count:,}" for count in counts), cost_of(row.as_json())]

    if rows:
        columns = ("calls", "input", "output", "cached", "written", "cost")
        yield from _usage_table(by, columns, [(row.key, cells(row)) for row in (*rows, total)])
    if total.is_partial:
        yield "+ lower bound: logs are missing, or do not record the usage of some calls"
    if total.partial_calls:
        yield f"{plural(total.partial_calls, 'call')} ended before usage was fully reported (partial)"


def _cost_lines(by: str, rows: list[UsageRow], total: UsageRow) -> Iterator[str]:
    columns = {"input": "input", "output": "output", "cache_read": "cached", "cache_write_5m": "5 min",
               "cache_write_1h": "1 h", "other": "other"}  # fmt: skip

    def cells(row: UsageRow) -> list[str]:
        usd = None if row.cost_classes is None else row.cost_classes._asdict()
        return [
            *("-" if usd is None else money(round(usd[name], 6)) for name in columns),
            cost_of(row.as_json()),
        ]

    if rows:
        yield from _usage_table(
            by, (*columns.values(), "cost"), [(row.key, cells(row)) for row in (*rows, total)]
        )


def _usage_table(by: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """A heading, and a line for each key with its cells. Columns are as wide as what is in them."""
    width = max(len(by), *(min(50, len(clean(key))) for key, _ in rows))
    widths = [max(map(len, column)) for column in zip(columns, *(cells for _, cells in rows), strict=True)]
    for key, cells in ((by, columns), *rows):
        padded = (f"{cell:>{cell_width}}" for cell, cell_width in zip(cells, widths, strict=True))
        yield "  ".join((f"{clean(key, width):<{width}}", *padded))


SUFFIXES = {"md": ".md", "html": ".html", "json": ".json"}


@click.command(cls=Command, examples=("wk export # one web page", "wk export last -o run.md # Markdown"))
@last_session_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(list(SUFFIXES)),
    help="Default: the extension of PATH, otherwise html.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="PATH",
    help="Output file; `-` prints. Default: SESSION.html, .md or .json in this folder.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option("--no-redact", is_flag=True, help="Keep secrets. By default, they are removed and counted.")
@db_option
@json_option
@reads_session
def export(
    opened: SessionHandle, form: str | None, output: Path | None, force: bool, no_redact: bool, as_json: bool
) -> int:
    """Write SESSION (default: `last`) to one file: plan, agents, cost, compactions and all transcripts.

    html, the default, is one page that needs no network; md is Markdown. json contains everything, and `wk import`
    can read it. Keys, tokens and passwords are removed and counted, unless `--no-redact` is given.
    """
    form = form or _form_of(output)
    redactor = None if no_redact else user_redactor
    if str(output) == "-":
        if as_json:
            raise BadInput("--output - already prints the session; omit --json")
        try:
            redacted = _print(opened, form, redactor)
        except BrokenPipeError:
            return 0  # the reader has closed the pipe (`wk export last -o - | head`)
        click.echo(f"wk: {_redaction_text(redacted, redactions(opened, opened.session_id))}", err=True)
        return 0
    path = _output_path(output, opened.session_id, form)
    from watchkeeper.transcripts.export import new_file

    with new_file(path, replace=force) as file:
        redacted = _write(opened, form, file, redactor)
    before = redactions(opened, opened.session_id)
    value = {
        "session": opened.session_id,
        "format": form,
        "path": str(path),
        "bytes": (size := path.stat().st_size),
        "redacted": redacted,
        "redacted_before": before,
    }
    return respond(as_json, value, f"{clean(path)}  {size:,} bytes  {_redaction_text(redacted, before)}")


def _write(
    opened: SessionHandle, form: str, out: TextIO, redactor: Callable[[], Redactor] | None
) -> int | None:
    """Write the session as of one moment; returns how many secrets were removed (None: all were kept)."""
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
    found = next((form for form, ending in SUFFIXES.items() if ending == suffix), None if suffix else "html")
    if found is None:
        raise BadInput(f"{suffix} is not an export format; specify --format {', '.join(SUFFIXES)}")
    return found


def _output_path(output: Path | None, session_id: str, form: str) -> Path:
    """The file to write: `output`, or a file named after the session, in `output` if that is a folder."""
    safe = "".join(one if one.isalnum() or one in "-_." else "-" for one in session_id).lstrip(".")
    path = (output or Path.cwd()).expanduser().absolute()
    return path / f"{safe}{SUFFIXES[form]}" if output is None or path.is_dir() else path


def _redaction_text(redacted: int | None, before: int) -> str:
    """What happened to secrets, now and (`before`) when the messages were stored."""
    parts = []
    if redacted is None:
        parts.append("secrets were kept")
    elif redacted:
        parts.append(f"{plural(redacted, 'secret')} removed")
    elif not before:
        parts.append("no known secret patterns found")
    if before:
        parts.append(f"{plural(before, 'secret')} removed before storage")
    return ", ".join(parts)
