"""`wk worker`: run queued sessions on this machine, list the machines that do, and queue a session."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from typing import Any

import click

from watchkeeper.cli.help import Group
from watchkeeper.cli.options import (
    SessionHandle,
    awaited_database_path,
    clean,
    database_path,
    db_option,
    json_option,
    respond,
    say,
)
from watchkeeper.cli.run import goal_options, labels, placement_options, session_options, start
from watchkeeper.records.errors import BadInput
from watchkeeper.records.ports import random_id
from watchkeeper.records.text import plural
from watchkeeper.store.place import Place
from watchkeeper.store.workers import WorkerRow, check_label, load_workers


@click.group(
    cls=Group,
    invoke_without_command=True,
    examples=(
        "wk worker --slots 2 # run two queued sessions at a time",
        "wk worker --list # list the workers on all machines",
    ),
)
@click.option(
    "--slots",
    type=click.IntRange(1, 1_000),
    default=4,
    show_default=True,
    help="Maximum number of sessions at a time.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    callback=labels,
    help="A label for this machine, for `wk worker queue --on` (repeatable).",
)
@click.option(
    "--name", help="This machine's name in lists and in its label host:NAME (default: the host name)."
)
@click.option("--list", "listed", is_flag=True, help="List the workers on all machines instead.")
@db_option
@json_option
@click.pass_context
def worker(
    ctx: click.Context,
    slots: int,
    labels: tuple[str, ...],
    name: str | None,
    listed: bool,
    db: Place | None,
    as_json: bool,
) -> int:
    """Run queued sessions on this machine, and queued sessions whose process died.

    Each session runs in its own process, with this machine's keys, MCP servers and permissions. A session that cannot
    run here stays queued; `wk show` shows why. After Ctrl+C or SIGTERM, each session finishes its step, and another
    worker can continue it. A second Ctrl+C stops the sessions immediately; saved work is not lost.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    if listed:
        return _list_workers(db, as_json)
    if as_json:
        raise BadInput("--json needs --list")
    return _drive_queue(slots, labels, name, db)


@worker.command(
    examples=(
        'wk worker queue "Survey this folder" # for this machine',
        'wk worker queue --on gpu --workspace /srv/x "Train" # for another',
    )
)
@goal_options
@session_options
@placement_options
@db_option
@json_option
def queue(goal: str | None, from_session: str | None, model: str | None, **options: Any) -> int:
    """Queue a session towards GOAL for a worker, and print its id. `wk worker` runs it, here or on another machine.

    Without --on and --git, a worker on this machine runs it in --workspace.
    """
    return start(goal, model, options | {"queued": True}, from_session)


def _drive_queue(slots: int, labels: tuple[str, ...], name: str | None, db: Place | None) -> int:
    from watchkeeper.runtime.control import refuse_agents
    from watchkeeper.runtime.worker import Worker, run_worker

    refuse_agents()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    if name is not None:
        check_label(f"host:{name}")
    path = awaited_database_path(db)
    driving = Worker(path, f"w-{random_id()}", slots=slots, labels=labels, machine=name)
    wake, asked = threading.Event(), [0]

    def interrupted(number: int, frame: object) -> None:
        asked[0] += 1
        wake.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    say(
        f"worker {driving.id} on {clean(driving.machine)}: {plural(slots, 'slot')}, labels {', '.join(driving.labels)}"
    )
    shown: set[str] = set()
    done = 0

    def wait(seconds: float) -> None:
        nonlocal done, shown
        now = set(driving.sessions)
        for session in sorted(now - shown):
            say(f"started {session}")
        for session in sorted(shown - now):
            say(f"finished with {session}")
        shown = now
        wake.wait(seconds)
        wake.clear()
        while done < asked[0]:
            done += 1
            driving.drain()
            say("draining: each session finishes its step" if done == 1 else "stopping the sessions")

    try:
        run_worker(driving, wait)
    finally:
        driving.close()
    return 0


def _list_workers(db: Place | None, as_json: bool) -> int:
    """Print the workers: machine, slots, labels, sessions, and when each was seen last."""
    rows = load_workers(SessionHandle(database_path(db)))
    return respond(
        as_json,
        [row.as_json() for row in rows],
        _worker_lines(rows),
        empty="no workers; start one with `wk worker`",
    )


def _worker_lines(rows: list[WorkerRow]) -> Iterator[str]:
    if rows:
        yield f"{'id':<10}  {'machine':<20} {'pid':>8} {'state':<9} {'slots':>7} {'seen':>7}  labels"
    for row in rows:
        slots = f"{len(row.sessions)}/{row.slots}"
        yield (
            f"{row.id:<10}  {clean(row.machine, 20):<20} {row.pid:>8} {row.state:<9} {slots:>7}"
            f" {row.seconds_since_seen:>5.0f} s  {clean(', '.join(row.labels), 200)}"
        )
        if row.sessions:
            yield f"            runs {', '.join(row.sessions[:20])}" + (
                " …" if len(row.sessions) > 20 else ""
            )
