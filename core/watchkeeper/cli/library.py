"""The library of sessions: `wk edit`, `delete`, `fork` and `backup`."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli.help import Command
from watchkeeper.cli.options import (
    ACTS,
    SessionHandle,
    changes_session,
    clean,
    complete_session,
    day_and_minute,
    db_option,
    explains_last,
    is_terminal,
    json_option,
    respond,
    session_argument,
)
from watchkeeper.records.errors import BadInput, DrivenElsewhere, NotFound
from watchkeeper.records.text import plural
from watchkeeper.runtime.control import check_configuration, refuse_agents
from watchkeeper.store import sessions as session_rows
from watchkeeper.store.fork import fork_session
from watchkeeper.store.library import (
    back_up,
    change_tags,
    delete_session,
    deleted_sessions,
    find_deleted,
    find_left_over,
    move_database,
    rename_session,
    restore_session,
    title_of,
)
from watchkeeper.store.place import Place, file_of
from watchkeeper.store.prune import PrunePlan, plan_prune, prune_sessions, vacuum

MOST_LINES = 100
"""How many sessions `wk delete --prune` lists one by one."""

_SECONDS = {"m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 7 * 86_400.0, "y": 365 * 86_400.0}
_BYTES = {"": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("", 1_000), ("I", 1_024))
}


def _age(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """An age such as 30d, 12h, 2w or 1y, in seconds."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([mhdwy])", value.strip().lower())
    if match is None:
        raise click.BadParameter(f"invalid age {value!r}; use a value such as 30d, 12h, 2w or 1y", ctx, param)
    return float(match[1]) * _SECONDS[match[2]]


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A size such as 500MB, 2GiB or 10000, in bytes."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?", value.strip().upper())
    if match is None:
        raise click.BadParameter(f"invalid size {value!r}; use 500MB, 2GiB or a number of bytes", ctx, param)
    return int(float(match[1]) * _BYTES[match[2] or ""])


@click.command(
    cls=Command,
    examples=(
        'wk edit last --title "The first survey" # shown instead of the goal',
        "wk edit last --tag nightly --untag draft # change its tags",
    ),
)
@session_argument
@click.option("--title", metavar="TEXT", help="Title shown instead of the goal. An empty title removes it.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Add a tag (repeatable).")
@click.option("--untag", "removed", multiple=True, metavar="TAG", help="Remove a tag (repeatable).")
@db_option
@json_option
@changes_session
def edit(
    opened: SessionHandle, title: str | None, tags: tuple[str, ...], removed: tuple[str, ...], as_json: bool
) -> int:
    """Change the title or tags of SESSION. `wk sessions --search tag:NAME` finds sessions by tag."""
    if title is None and not tags and not removed:
        raise BadInput("specify a change: --title TEXT, --tag TAG or --untag TAG")
    return _edit(opened, as_json, title=title, add=tags, remove=removed)


def _edit(
    opened: SessionHandle,
    as_json: bool,
    *,
    title: str | None = None,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
) -> int:
    """Change the title and the tags, and print those that were named. A title that is refused changes nothing."""
    if title is not None:
        title_of(title)
    tags = change_tags(opened.path, opened.session_id, add=add, remove=remove)
    kept = session_rows.require(opened, opened.session_id).title
    shown = []
    if title is not None:
        kept = rename_session(opened.path, opened.session_id, title)
        shown.append(clean(kept or "no title", 120))
    if add or remove:
        shown.append(" ".join(f"#{clean(one)}" for one in tags) or "no tags")
    value = {"session": opened.session_id, "title": kept, "tags": list(tags)}
    return respond(as_json, value, f"session {opened.session_id}: {'  '.join(shown)}")


@click.command(hidden=True)
@session_argument
@click.argument("title")
@db_option
@json_option
@changes_session
def rename(opened: SessionHandle, title: str, as_json: bool) -> int:
    """The earlier name of `wk edit SESSION --title TITLE`."""
    return _edit(opened, as_json, title=title)


@click.command(hidden=True)
@session_argument
@click.argument("tags", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Remove these tags.")
@db_option
@json_option
@changes_session
def tag(opened: SessionHandle, tags: tuple[str, ...], remove: bool, as_json: bool) -> int:
    """The earlier name of `wk edit SESSION --tag TAG` and `--untag TAG`."""
    return _edit(opened, as_json, add=() if remove else tags, remove=tags if remove else ())


@click.command(
    cls=Command,
    examples=(
        "wk delete last # can be restored for seven days",
        "wk delete --prune --older-than 30d # free their space",
    ),
)
@click.argument("sessions", nargs=-1, metavar="[SESSION]...", shell_complete=complete_session)
@click.option("--restore", is_flag=True, help="Restore SESSION; without SESSION, list restorable sessions.")
@click.option(
    "--prune",
    is_flag=True,
    help="Permanently delete finished sessions: those named, or those that meet the conditions below.",
)
@click.option(
    "--older-than",
    metavar="AGE",
    callback=_age,
    help="With --prune: sessions inactive for longer than this (30d, 12h, 2w, 1y).",
)
@click.option(
    "--larger-than",
    metavar="SIZE",
    callback=_size,
    help="With --prune: sessions larger than this (500MB, 2GiB).",
)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    help="With --prune: always keep this many of the most recently active sessions.",
)
@click.option("--dry-run", is_flag=True, help="With --prune: only list what would be deleted.")
@click.option("--yes", is_flag=True, help="With --prune: do not ask.")
@click.option(
    "--vacuum/--no-vacuum",
    default=True,
    help="With --prune: return free space to the file system (default: yes).",
)
@db_option
@json_option
@explains_last(f"{ACTS} With --restore, it is the most recently deleted session.")
def delete(
    sessions: tuple[str, ...], restore: bool, prune: bool, db: Place | None, as_json: bool, **how: Any
) -> int:
    """Delete SESSION. It is hidden immediately. `--restore` can restore it for seven days; after that, `--prune`
    deletes it permanently.

    `--prune` deletes the named sessions, or those that meet every condition. It always includes sessions that were
    deleted more than seven days ago, and never a live session. A session that is paused, or whose process stopped,
    is included only when named explicitly. Other sessions can run at the same time.
    """
    if restore and prune:
        raise BadInput("use --restore or --prune, not both")
    if prune:
        return _prune(sessions, db, as_json, **how)
    if any(value not in (None, False) for name, value in how.items() if name != "vacuum"):
        raise BadInput("--older-than, --larger-than, --keep, --dry-run and --yes need --prune")
    if len(sessions) > 1:
        raise BadInput("specify one SESSION; only --prune accepts several")
    if restore:
        return _restore(sessions[0] if sessions else None, db, as_json)
    if not sessions:
        raise BadInput("name a SESSION to delete; `wk sessions` lists them")
    return _delete(session=sessions[0], db=db, as_json=as_json)


@changes_session
def _delete(opened: SessionHandle, as_json: bool) -> int:
    gone = delete_session(opened.path, opened.session_id)
    return respond(
        as_json,
        {"session": gone.id, "deleted_at": gone.deleted_at, "gone_at": gone.gone_at},
        f"deleted {gone.id}  {clean(gone.name, 80)}\n"
        f"until {day_and_minute(gone.gone_at)}, `wk delete --restore {gone.id}` restores it",
    )


def _restore(session: str | None, db: Place | None, as_json: bool) -> int:
    """Restore a deleted session (`last`: the one deleted last). Without one, list those that can be restored."""
    opened = SessionHandle(db)
    if session is None:
        gone = deleted_sessions(opened.connection)
        return respond(
            as_json,
            [
                {"session": one.id, "name": one.name, "deleted_at": one.deleted_at, "gone_at": one.gone_at}
                for one in gone
            ],
            (
                f"{one.id}  deleted {day_and_minute(one.deleted_at)}, restorable until"
                f" {day_and_minute(one.gone_at)}  {clean(one.name, 80)}"
                for one in gone
            ),
            empty="no deleted sessions",
        )
    refuse_agents()
    session_id = find_deleted(opened.connection, session)
    restore_session(opened.path, session_id)
    return respond(as_json, {"session": session_id, "restored": True}, f"session {session_id} restored")


@click.command(
    cls=Command,
    examples=(
        "wk fork last # continue from its current state",
        "wk fork last --at planner:3 # from turn 3",
    ),
)
@session_argument
@click.option(
    "--at",
    "step",
    metavar="STEP",
    help="Fork at this step: an event number or AGENT:TURN (default: the end).",
)
@click.option("--title", help="The fork's title.")
@db_option
@json_option
@changes_session
def fork(opened: SessionHandle, step: str | None, title: str | None, as_json: bool) -> int:
    """Create a session that continues from the current state of SESSION, or from an earlier step.
    `wk resume` runs it.

    The new session has its own copy of the plan, the memory of every agent and the artifacts. Both sessions use the
    same workspace folder, in its current state.
    """
    check_configuration(Path(session_rows.require(opened, opened.session_id).workspace))
    at_seq, at_turn = _step(opened, step)
    with _fork_progress() as show:
        made = fork_session(
            opened.path, opened.session_id, at_seq=at_seq, at_turn=at_turn, title=title, on_progress=show
        )
    paused = made.status == "paused"
    then = f"`wk resume {made.session_id}` continues it" if paused else f"it is {made.status}"
    return respond(
        as_json,
        {
            "session": made.session_id,
            "forked_from": made.forked_from,
            "at_event": made.at_seq,
            "status": made.status,
        },
        f"session {made.session_id} is a fork of {made.forked_from} at event #{made.at_seq}"
        f" ({plural(made.agents, 'agent')}, {plural(made.messages, 'message')}); {then}",
    )


TICK_SECONDS = 0.1
"""How often the line that shows how far a fork is changes."""


@contextmanager
def _fork_progress() -> Iterator[Callable[[int, int], None]]:
    """A function that shows how many rows are copied, in one line on standard error, if that is a terminal."""
    shown_at = time.monotonic()
    shown = False

    def show(done: int, rows: int) -> None:
        nonlocal shown, shown_at
        if time.monotonic() - shown_at >= TICK_SECONDS:
            shown, shown_at = True, time.monotonic()
            sys.stderr.write(f"\r\x1b[2Kforking: {done:,} of {rows:,} rows")
            sys.stderr.flush()

    try:
        yield show if sys.stderr.isatty() else lambda done, rows: None
    finally:
        if shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def _prune(
    sessions: tuple[str, ...],
    db: Place | None,
    as_json: bool,
    *,
    older_than: float | None,
    larger_than: int | None,
    keep: int | None,
    dry_run: bool,
    yes: bool,
    vacuum: bool,
) -> int:
    """Permanently delete finished sessions, those named or those that meet every condition, and free their space."""
    opened = SessionHandle(db)
    if sessions and (older_than is not None or larger_than is not None or keep is not None):
        raise BadInput("specify sessions or conditions, not both")
    if not dry_run:
        refuse_agents()
    plan = plan_prune(
        opened.path,
        names=list(dict.fromkeys(_session_to_prune(opened, name) for name in sessions)),
        older_than_seconds=older_than,
        larger_than_bytes=larger_than,
        keep=keep,
    )
    answer = _plan_json(plan, dry_run)
    if not as_json:
        for line in _plan_lines(plan, dry_run):
            click.echo(line)
    if dry_run:
        return respond(as_json, answer, ())
    asks = bool(plan.doomed) and not yes and not as_json and is_terminal()
    if asks and not click.confirm("Delete them permanently?", default=False):
        click.echo("nothing deleted")
        return 0
    kept_trees = _remove_worktrees(opened, [one.id for one in plan.doomed])
    done = prune_sessions(opened.path, plan)
    worth_it = bool(done.sessions) or plan.free_bytes > plan.file_bytes // 20
    file = opened.path if isinstance(opened.path, Path) else None  # a server vacuums by itself
    shrunk = _vacuum(file) if vacuum and worth_it and file is not None else None
    answer |= {
        "pruned": list(done.sessions),
        "refused": list(done.refused),
        "artifacts": done.artifacts,
        "vacuum": shrunk,
    }
    deleted = f"{plural(len(done.sessions), 'session')} and {plural(done.artifacts, 'artifact')} deleted"
    summary = "; ".join(filter(None, [deleted if plan.doomed else None, shrunk]))
    answer |= {"worktrees_kept": kept_trees}
    kept = [f"kept: {clean(line)}" for line in (*done.refused, *kept_trees)]
    return respond(as_json, answer, [summary, *kept] if summary else kept)


def _remove_worktrees(opened: SessionHandle, session_ids: Sequence[str]) -> list[str]:
    """Remove the worktrees of sessions that are to be deleted; those that hold work that is not committed and merged
    are kept, with a line each."""
    from watchkeeper.agents.worktrees import clean_up
    from watchkeeper.store.agents import load_worktrees

    trees = [tree for one in session_ids for tree in load_worktrees(opened, one) if tree.status != "removed"]
    return [why for tree in trees if (why := clean_up(tree, os.environ))]


@click.command(
    cls=Command,
    examples=(
        "wk backup ~/wk-backup.db # copy and verify",
        "wk backup ~/wk-backup.db --overwrite # replace the last copy",
    ),
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace PATH if it exists.")
@click.option(
    "--move",
    is_flag=True,
    help="Move the database to PATH instead. Stop all runs and close all dashboards first.",
)
@db_option
@json_option
def backup(path: Path, overwrite: bool, move: bool, db: Place | None, as_json: bool) -> int:
    """Copy the database to PATH and verify the copy. This is safe while runs are active.

    To restore the copy, use it with --db. Or end all runs and dashboards, delete the -wal and -shm files next to the
    old database (SQLite would apply them to the copy), and replace the database with the copy.
    """
    refuse_agents()
    if move and overwrite:
        raise BadInput("--move never overwrites a file; choose a new path and omit --overwrite")
    opened = SessionHandle(db)
    file = file_of(opened.path, "backup", "use `pg_dump`")
    if move:
        opened.connection.close()
        done = move_database(file, path)
    else:
        done = back_up(file, path, overwrite=overwrite)
    moved = f"; moved from {clean(file)}; use --db {shlex.quote(clean(done.path))} from now on"
    return respond(
        as_json,
        {
            "path": str(done.path),
            "bytes": done.bytes,
            "sessions": done.sessions,
            "seconds": round(done.seconds, 3),
        },
        f"{clean(done.path)}: {plural(done.sessions, 'session')}, {size(done.bytes)}, verified, in"
        f" {done.seconds:.1f} s{moved if move else ''}",
    )


def size(count: float) -> str:
    """Bytes as people read them: 999 B, 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_000
    return f"{count:.1f} TB"


def _plan_json(plan: PrunePlan, dry_run: bool) -> dict[str, Any]:
    return {
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


def _plan_lines(plan: PrunePlan, dry_run: bool) -> Iterator[str]:
    for one in plan.doomed[:MOST_LINES]:
        count = one.workspace_facts
        facts = f", with {plural(count, 'workspace fact')}" if count else ""
        yield (
            f"{one.id}  {one.status:<9} {day_and_minute(one.last_active)} {size(one.bytes):>9} "
            f" {clean(one.name, 60)}  ({one.why}{facts})"
        )
    if len(plan.doomed) > MOST_LINES:
        yield f"… and {plural(len(plan.doomed) - MOST_LINES, 'session')} more; --json lists them all"
    kept = f"{plural(plan.kept, 'session')} kept"
    if not plan.doomed:
        yield f"nothing to prune; file size {size(plan.file_bytes)}, {kept}"
        return
    yield (
        f"{plural(len(plan.doomed), 'session')} {'would be deleted' if dry_run else 'to delete'}, about"
        f" {size(plan.bytes)} of the file's {size(plan.file_bytes)}; {kept}"
    )


def _vacuum(path: Path) -> str:
    try:
        before, after = vacuum(path)
    except DrivenElsewhere as busy:
        return str(busy)
    return f"file size reduced from {size(before)} to {size(after)}"


def _session_to_prune(opened: SessionHandle, name: str) -> str:
    """A session by name, also a deleted one (to free its space early) and one whose prune was interrupted."""
    try:
        return session_rows.find(opened.connection, name)
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
            f"invalid step {step!r}; give an event number (--at 120) or AGENT:TURN (--at planner:3)"
        )
    return None, (opened.agent(agent), int(turn))
