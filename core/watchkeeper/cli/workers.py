"""`wk worker` and `wk workers`: drive queued sessions on this machine, and list those who do."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator

import click

from watchkeeper.cli.options import SessionHandle, clean, database_path, db_option, json_option, respond, say
from watchkeeper.records.ports import random_id
from watchkeeper.records.text import plural
from watchkeeper.store.place import Place
from watchkeeper.store.workers import WorkerRow, check_label, load_workers


def _labels(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(check_label(label) for label in value)


@click.command()
@click.option(
    "--slots",
    type=click.IntRange(1, 1_000),
    default=4,
    show_default=True,
    help="How many sessions at a time.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    callback=_labels,
    help="What this machine has, as sessions name it with `wk run --on` (repeatable).",
)
@click.option(
    "--name", help="The name of this machine in lists and in its label host:NAME (default: its host name)."
)
@db_option
def worker(slots: int, labels: tuple[str, ...], name: str | None, db: Place | None) -> int:
    """Drive the sessions that were queued with `wk run --queue`, and those whose host died.

    Each runs in a process of its own, with this machine's keys, MCP servers and permissions. A session that does not fit
    stays queued; `wk show` says why. Ctrl+C or SIGTERM: each host finishes its step, and another worker continues. Once
    more: the hosts end at once, which loses nothing that was committed.
    """
    from watchkeeper.runtime.control import refuse_agents
    from watchkeeper.runtime.worker import Worker, run_worker

    refuse_agents()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    path = database_path(db)
    if name is not None:
        check_label(f"host:{name}")
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
            say(f"takes {session}")
        for session in sorted(shown - now):
            say(f"left {session}")
        shown = now
        wake.wait(seconds)
        wake.clear()
        while done < asked[0]:
            done += 1
            driving.drain()
            say("draining: each host finishes its step" if done == 1 else "ending the hosts")

    try:
        run_worker(driving, wait)
    finally:
        driving.close()
    return 0


@click.command()
@db_option
@json_option
def workers(db: Place | None, as_json: bool) -> int:
    """List the workers: machine, slots, labels, sessions, and when each was seen last."""
    rows = load_workers(SessionHandle(database_path(db)))
    return respond(
        as_json, [row.as_json() for row in rows], _lines(rows), empty="no workers; start one with `wk worker`"
    )


def _lines(rows: list[WorkerRow]) -> Iterator[str]:
    if rows:
        yield f"{'id':<10}  {'machine':<20} {'pid':>8} {'state':<9} {'slots':>7} {'seen':>7}  labels"
    for row in rows:
        slots = f"{len(row.sessions)}/{row.slots}"
        yield (
            f"{row.id:<10}  {clean(row.machine, 20):<20} {row.pid:>8} {row.state:<9} {slots:>7}"
            f" {row.seconds_since_seen:>5.0f} s  {clean(', '.join(row.labels), 200)}"
        )
        if row.sessions:
            yield f"            drives {', '.join(row.sessions[:20])}" + (
                " …" if len(row.sessions) > 20 else ""
            )
