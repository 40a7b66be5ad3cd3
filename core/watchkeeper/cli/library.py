"""`wk rename`, `tag`, `delete`, `restore`, `fork`, `prune`, `backup`: keeping the library of sessions in
order.
"""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli.options import (
    SessionHandle,
    clean,
    db_option,
    is_terminal,
    json_option,
    print_json,
    session_argument,
)
from watchkeeper.records.errors import BadInput, DrivenElsewhere
from watchkeeper.runtime.control import refuse_agents
from watchkeeper.store.fork import fork_session
from watchkeeper.store.library import (
    back_up,
    change_tags,
    delete_session,
    deleted_sessions,
    move_database,
    rename_session,
    restore_session,
)
from watchkeeper.store.prune import PrunePlan, plan_prune, prune_sessions, vacuum

MOST_LINES = 100
"""Sessions that a prune lists one by one."""

_SECONDS = {"m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 7 * 86_400.0, "y": 365 * 86_400.0}
_BYTES = {
    "": 1,
    "K": 1_000,
    "M": 1_000**2,
    "G": 1_000**3,
    "T": 1_000**4,
    "KI": 1_024,
    "MI": 1_024**2,
    "GI": 1_024**3,
    "TI": 1_024**4,
}


def _age(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A span of time in seconds: 30d, 12h, 2w, 1y."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhdwy])", value.strip().lower())
    if match is None:
        raise click.BadParameter(f"{value!r} is no age; write 30d, 12h, 2w or 1y", ctx, param)
    return float(match[1]) * _SECONDS[match[2]]


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A number of bytes: 500MB, 2GiB, 10000."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?", value.strip().upper())
    if match is None:
        raise click.BadParameter(f"{value!r} is no size; write 500MB, 2GiB or a number of bytes", ctx, param)
    return int(float(match[1]) * _BYTES[match[2] or ""])


@click.command()
@session_argument
@click.argument("title")
@db_option
@json_option
def rename(session: str, title: str, db: Path | None, as_json: bool) -> int:
    """Give SESSION a TITLE, shown in place of its goal. An empty one takes it away again."""
    refuse_agents()
    opened = SessionHandle(db, session)
    kept = rename_session(opened.path, opened.session_id, title)
    _tell(
        as_json,
        {"session": opened.session_id, "title": kept},
        f"session {opened.session_id}: {clean(kept or 'no title', 120)}",
    )
    return 0


@click.command()
@session_argument
@click.argument("tags", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Take these tags away.")
@db_option
@json_option
def tag(session: str, tags: tuple[str, ...], remove: bool, db: Path | None, as_json: bool) -> int:
    """Add TAGS to SESSION, or take them away. `wk sessions --search tag:NAME` finds it by one."""
    refuse_agents()
    opened = SessionHandle(db, session)
    changed = change_tags(opened.path, opened.session_id, **{"remove" if remove else "add": tags})
    told = " ".join(f"#{clean(one)}" for one in changed) or "no tags"
    _tell(
        as_json, {"session": opened.session_id, "tags": list(changed)}, f"session {opened.session_id}: {told}"
    )
    return 0


@click.command()
@session_argument
@db_option
@json_option
def delete(session: str, db: Path | None, as_json: bool) -> int:
    """Delete SESSION. It is hidden at once; for seven days `wk restore` brings it back, then `wk prune` takes
    it away."""
    refuse_agents()
    opened = SessionHandle(db, session)
    gone = delete_session(opened.path, opened.session_id)
    _tell(
        as_json,
        {"session": gone.id, "deleted_at": gone.deleted_at, "gone_at": gone.gone_at},
        f"deleted {gone.id}  {clean(gone.name, 80)}\nuntil {_day(gone.gone_at)} `wk restore {gone.id}`"
        " brings it back",
    )
    return 0


@click.command()
@click.argument("session", required=False)
@db_option
@json_option
def restore(session: str | None, db: Path | None, as_json: bool) -> int:
    """Bring a deleted SESSION back; `last` is the one deleted last. Without SESSION, list those that can be
    restored."""
    from watchkeeper.store.library import find_deleted

    opened = SessionHandle(db)
    if session is None:
        gone = deleted_sessions(opened.connection)
        if as_json:
            print_json(
                [
                    {
                        "session": one.id,
                        "name": one.name,
                        "deleted_at": one.deleted_at,
                        "gone_at": one.gone_at,
                    }
                    for one in gone
                ]
            )
            return 0
        for one in gone:
            click.echo(
                f"{one.id}  deleted {_day(one.deleted_at)}, for good from {_day(one.gone_at)} on "
                f" {clean(one.name, 80)}"
            )
        if not gone:
            click.echo("no deleted sessions")
        return 0
    refuse_agents()
    session_id = find_deleted(opened.connection, session)
    restore_session(opened.path, session_id)
    _tell(as_json, {"session": session_id, "restored": True}, f"session {session_id} is back")
    return 0


@click.command()
@session_argument
@click.option(
    "--at",
    "step",
    metavar="STEP",
    help="From this step on: the number of an event, or AGENT:TURN. Default: the end.",
)
@click.option("--title", help="The fork's title.")
@db_option
@json_option
def fork(session: str, step: str | None, title: str | None, db: Path | None, as_json: bool) -> int:
    """Make a new session that begins where SESSION stands, or stood at a step. `wk resume` carries on from
    there.

    The new session has its own copy of the plan, of every agent's memory and of what was produced; the
    workspace is the same folder, as it is now.
    """
    from watchkeeper.runtime.control import check_configuration

    refuse_agents()
    opened = SessionHandle(db, session, own=True)
    check_configuration(
        Path(opened.one("SELECT workspace FROM sessions WHERE id = ?", (opened.session_id,))[0])
    )
    at_seq, at_turn = _step(opened, step)
    made = fork_session(opened.path, opened.session_id, at_seq=at_seq, at_turn=at_turn, title=title)
    next_step = (
        f"; `wk resume {made.session_id}` carries on" if made.status == "paused" else f"; it is {made.status}"
    )
    _tell(
        as_json,
        {
            "session": made.session_id,
            "forked_from": made.forked_from,
            "at_event": made.at_seq,
            "status": made.status,
        },
        f"session {made.session_id} is a fork of {made.forked_from} at event #{made.at_seq}"
        f" ({_count(made.agents, 'agent')}, {_count(made.messages, 'message')}){next_step}",
    )
    return 0


@click.command()
@click.argument("sessions", nargs=-1)
@click.option(
    "--older-than",
    metavar="AGE",
    callback=_age,
    help="Finished sessions that were last active longer ago: 30d, 12h, 2w, 1y.",
)
@click.option(
    "--larger-than",
    metavar="SIZE",
    callback=_size,
    help="Finished sessions that take more room: 500MB, 2GiB.",
)
@click.option(
    "--keep", type=click.IntRange(min=0), help="Keep that many of the last active sessions in any case."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--vacuum/--no-vacuum", default=True, help="Give the free room back to the file system. Default: yes."
)
@db_option
@json_option
def prune(
    sessions: tuple[str, ...],
    older_than: float | None,
    larger_than: int | None,
    keep: int | None,
    dry_run: bool,
    yes: bool,
    vacuum: bool,
    db: Path | None,
    as_json: bool,
) -> int:
    """Take whole finished sessions away for good: those named, or those that meet every condition.

    Sessions deleted more than seven days ago always go. A live session never does, and one that is paused, or
    stopped with its host, only by name. Hosts of other sessions go on working meanwhile.
    """
    opened = SessionHandle(db)
    if sessions and (older_than is not None or larger_than is not None or keep is not None):
        raise BadInput("give either SESSIONS or conditions, not both")
    if not dry_run:
        refuse_agents()
    plan = plan_prune(
        opened.path,
        names=list(dict.fromkeys(_id(opened, name) for name in sessions)),
        older_than_seconds=older_than,
        larger_than_bytes=larger_than,
        keep=keep,
    )
    told: dict[str, Any] = {
        "sessions": [
            {
                "session": one.id,
                "status": one.status,
                "last_active": one.last_active,
                "bytes": one.bytes,
                "why": one.why,
            }
            for one in plan.doomed
        ],
        "bytes": plan.bytes,
        "kept": plan.kept,
        "file_bytes": plan.file_bytes,
        "free_bytes": plan.free_bytes,
        "dry_run": dry_run,
    }
    if not as_json:
        _say_plan(plan, dry_run)
    if dry_run:
        if as_json:
            print_json(told)
        return 0
    if (
        plan.doomed
        and not yes
        and not as_json
        and is_terminal()
        and not click.confirm("Take them away for good?", default=False)
    ):
        click.echo("nothing was done")
        return 0
    done = prune_sessions(opened.path, plan)
    told |= {"pruned": list(done.sessions), "refused": list(done.refused), "artifacts": done.artifacts}
    after = f"{_count(len(done.sessions), 'session')} and {_count(done.artifacts, 'artifact')} went"
    worth = bool(done.sessions) or plan.free_bytes > plan.file_bytes // 20
    told["vacuum"] = _vacuum(opened.path) if vacuum and worth else None
    if as_json:
        print_json(told)
    else:
        parts = [*([after] if plan.doomed else []), *([told["vacuum"]] if told["vacuum"] else [])]
        if parts:
            click.echo("; ".join(parts))
        for line in done.refused:
            click.echo(f"stays: {line}")
    return 0


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Take the place of PATH if it exists.")
@click.option(
    "--move", is_flag=True, help="Move the database to PATH instead; no run or dashboard may use it."
)
@db_option
@json_option
def backup(path: Path, overwrite: bool, move: bool, db: Path | None, as_json: bool) -> int:
    """Copy the whole database to PATH, consistent while hosts write, and check the copy.

    To go back to it: use it with --db. Or end all hosts and dashboards, and put it in the place of the
    database; what is left there of the -wal and -shm beside the old one must go first, for it would be taken
    for a part of the copy.
    """
    refuse_agents()
    if move and overwrite:
        raise BadInput("--move never overwrites a file; choose a new name, and leave out --overwrite")
    opened = SessionHandle(db)
    if move:
        opened.connection.close()
        done = move_database(opened.path, path)
    else:
        done = back_up(opened.path, path, overwrite=overwrite)
    _tell(
        as_json,
        {
            "path": str(done.path),
            "bytes": done.bytes,
            "sessions": done.sessions,
            "seconds": round(done.seconds, 3),
        },
        f"{clean(done.path)}: {_count(done.sessions, 'session')}, {size(done.bytes)}, checked, in"
        f" {done.seconds:.1f} s"
        + (
            f"; {clean(opened.path)} is gone, use --db {shlex.quote(clean(done.path))} from now on"
            if move
            else ""
        ),
    )
    return 0


def size(count: float) -> str:
    """Bytes as people read them: 999 B, 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_000
    return f"{count:.1f} TB"


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _say_plan(plan: PrunePlan, dry_run: bool) -> None:
    for one in plan.doomed[:MOST_LINES]:
        facts = (
            f", with {_count(one.workspace_facts, 'fact')} of its workspace" if one.workspace_facts else ""
        )
        click.echo(
            f"{one.id}  {one.status:<9} {_day(one.last_active)} {size(one.bytes):>9}  {clean(one.name, 60)} "
            f" ({one.why}{facts})"
        )
    if len(plan.doomed) > MOST_LINES:
        click.echo(f"… and {_count(len(plan.doomed) - MOST_LINES, 'session')} more; --json lists all of them")
    if not plan.doomed:
        click.echo(
            f"nothing to prune; the file has {size(plan.file_bytes)}, and {_count(plan.kept, 'session')} to"
            " stay"
        )
        return
    would = "would go" if dry_run else "to go"
    click.echo(
        f"{_count(len(plan.doomed), 'session')} {would}, about {size(plan.bytes)} of the file's"
        f" {size(plan.file_bytes)};"
        f" {_count(plan.kept, 'session')} to stay"
    )


def _vacuum(path: Path) -> str:
    try:
        before, after = vacuum(path)
    except DrivenElsewhere as busy:
        return str(busy)
    return f"the file went from {size(before)} to {size(after)}"


def _id(opened: SessionHandle, name: str) -> str:
    """A session by name, a deleted one too: pruning one by name is how to be rid of it before its window is
    over, and how to finish a prune that was killed."""
    from watchkeeper.records.errors import NotFound
    from watchkeeper.store import sessions as rows
    from watchkeeper.store.library import find_deleted, find_left_over

    try:
        return rows.find(opened.connection, name)
    except NotFound as unknown:
        if name == "last":
            raise
        try:
            return find_deleted(opened.connection, name)
        except NotFound:
            left_over = find_left_over(opened.connection, name)
            if left_over is not None:
                return left_over
            raise unknown from None


def _step(opened: SessionHandle, step: str | None) -> tuple[int | None, tuple[str, int] | None]:
    if step is None:
        return None, None
    event = step.removeprefix("#")
    if event.isascii() and event.isdigit():
        return int(event), None
    agent, colon, turn = step.rpartition(":")
    if not colon or not (turn.isascii() and turn.isdigit()):
        raise BadInput(
            f"{step!r} is no step; give the number of an event (--at 120), or an agent and its turn (--at"
            " planner:3)"
        )
    return None, (opened.agent(agent), int(turn))


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _tell(as_json: bool, machine: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(machine)
    else:
        click.echo(text)
