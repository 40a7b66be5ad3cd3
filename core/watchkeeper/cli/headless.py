"""Run or follow a session without a dashboard: progress as text, or one JSON object a line, and a summary.

`wk host` is the background process that runs a session and prints nothing; other commands start it, detached. `wk worker`
runs queued sessions on this machine, and `wk workers` lists those that do.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from textwrap import wrap
from typing import Any

import click

from watchkeeper.cli.options import (
    SessionHandle,
    awaited_database_path,
    clean,
    database_path,
    db_option,
    json_option,
    reader_is_gone,
    respond,
    say,
)
from watchkeeper.records.errors import WatchkeeperError, host_fault, message_of
from watchkeeper.records.ports import random_id
from watchkeeper.records.text import cost_text, countdown, event_text, json_text, plural, subject_name
from watchkeeper.store import budgets
from watchkeeper.store.change_feed import ChangeFeed
from watchkeeper.store.driver import decode
from watchkeeper.store.names import AGENT_NAME, TASK_NAME
from watchkeeper.store.place import Place
from watchkeeper.store.workers import WorkerRow, check_label, load_workers

QUIET = frozenset(
    {
        "tool.started", "tool.done", "agent.created", "agent.idle", "agent.working", "inbox.delivered", "host.started",
        "compaction.prepared",
    }
)  # fmt: skip
"""Events that the text form leaves out."""

LINE_CHARACTERS = 240
"""A longer line of progress is cut."""

LOOK_SECONDS = 0.2
"""How often it looks for new events."""

GLYPHS = {"done": "✓", "failed": "✗", "paused": "‖", "cancelled": "✗", "running": "●"}


def drive_headless(
    path: Place,
    session_id: str,
    *,
    resume: bool,
    as_json: bool,
    approval_timeout_seconds: float | None = None,
) -> int:
    """Run a session in the foreground and print its progress; returns the exit code."""
    printer = EventPrinter(path, session_id, as_json=as_json)
    if not as_json:
        effort = _effort(path, session_id)
        say(f"session {session_id}{effort}  (Ctrl+C once: save and stop; `wk resume {session_id}` continues)")
    printer.start()
    try:
        code, shortage = _drive(
            path, session_id, resume=resume, approval_timeout_seconds=approval_timeout_seconds
        )
    finally:
        printer.finish()
    try:
        print_result(path, session_id, as_json=as_json)
    except Exception as error:
        fault = host_fault(error)
        if fault is None:
            raise
        shortage = (
            shortage
            or f"the result cannot be shown: {message_of(fault.shortage)}, then `wk show {session_id}`"
        )
    if shortage is None:
        printer.report_trouble()
    else:
        print(f"wk: {clean(shortage, 300)}", file=sys.stderr)
    return code


def _drive(
    path: Place, session_id: str, *, resume: bool, approval_timeout_seconds: float | None
) -> tuple[int, str | None]:
    """Run the session; returns the exit code, and a line about what the machine ran out of, if it did.

    The session also pauses on a signal that comes while the program still loads.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    # asyncio warns of child processes that end after the event loop; the reader of the progress needs no such
    # warning.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    try:
        from watchkeeper.runtime.run_session import Asking, drive

        asking = Asking(unattended=True, timeout_seconds=approval_timeout_seconds)
        result = drive(path, session_id, resume=resume, asking=asking)
        return result.exit_code, result.reason if result.short_of is not None else None
    except KeyboardInterrupt:
        from watchkeeper.runtime.host import INTERRUPTED_EXIT
        from watchkeeper.runtime.run_session import pause_interrupted

        pause_interrupted(path, session_id)
        return INTERRUPTED_EXIT, None
    finally:
        signal.signal(signal.SIGTERM, before)


def _effort(path: Place, session_id: str) -> str:
    """How much the session's models think, where something was chosen."""
    from watchkeeper.store.state import effort_text

    opened = SessionHandle(path)
    with closing(opened.connection):
        found = effort_text(opened.one("SELECT roles, settings FROM sessions WHERE id = ?", (session_id,)))
    return f"  effort {clean(found, 120)}" if found else ""


def follow(path: Place, session_id: str) -> int:
    """Print what a session does until no host runs it, then its summary."""
    from watchkeeper.store.lease import probe

    printer = EventPrinter(path, session_id, as_json=False)
    try:
        printer.print_while(lambda: probe(path, session_id) is not None)
    except KeyboardInterrupt:
        return 130
    print_result(path, session_id, as_json=False)
    printer.report_trouble()
    return 0


def print_result(path: Place, session_id: str, *, as_json: bool) -> None:
    """Print the result as one line of JSON, or the summary."""
    from watchkeeper.store import state

    opened = SessionHandle(path, session_id)
    try:
        result = state.result(opened, session_id)
        if as_json:
            say(json_text(result))
        else:
            _print_summary(opened, session_id, result)
    finally:
        opened.connection.close()


def _print_summary(opened: SessionHandle, session_id: str, result: dict[str, Any]) -> None:
    row = opened.one("SELECT hosted_seconds FROM sessions WHERE id = ?", (session_id,))
    tasks = ", ".join(f"{count} {status}" for status, count in sorted(result["tasks"].items()) if count)
    cost = cost_text(result["cost_usd"])
    if result["cost_estimated"]:
        cost += " (estimated)"
    if result["unpriced_calls"] and result["cost_usd"] is not None:
        cost += " and unpriced calls"
    say("")
    say(f"{GLYPHS.get(result['status'], '?')} {result['status']}")
    if result["outcome"] is not None:
        for line in outcome_lines(session_id, result["status"], result["outcome"]):
            say(line)
        say("")
    say(f"  tasks      {tasks or 'none'}")
    say(
        f"  tokens     {result['tokens']['total']:,}   cost {cost}   time {max(0.0, row['hosted_seconds']):.1f} s"
    )
    say(f"  compacted  {plural(result['compactions'], 'time')}")
    if result["status"] == "paused":
        reached = budgets.blocking(opened, session_id)
        for use in reached:
            say(f"  budget     {clean(use.describe(), 200)}")
        again = budgets.resume_command(session_id, reached) if reached else f"wk resume {session_id}"
        say(f"  continue   {again}")


def outcome_lines(session_id: str, status: str, outcome: Mapping[str, Any]) -> Iterator[str]:
    """An outcome as `state.result` has it, complete and harmless: what stopped the run, the summary, the names."""
    from watchkeeper.store.outcome import RunOutcome

    ended = RunOutcome.from_json(status, outcome)
    columns = os.get_terminal_size(1).columns if sys.stdout.isatty() else 0
    for line in ended.lines(session_id):
        for part in _wrapped(line, columns - 2) if columns > 20 else [line]:
            yield f"  {part}".rstrip()
    if ended.artifacts:
        yield f"  (wk artifacts {session_id} NAME prints one)"


def _wrapped(line: str, width: int) -> list[str]:
    """A line of prose in lines of a terminal; one of a table or of code as it is."""
    prose = line.lstrip()
    if len(line) <= width or line.startswith(("    ", "|", "```")):
        return [line]
    lead = len(line) - len(prose) + (2 if prose.startswith(("- ", "* ")) else 0)
    return wrap(line, width, subsequent_indent=" " * lead, break_long_words=False, break_on_hyphens=False)


def print_outcome(path: Place, session_id: str) -> None:
    """Print how a session ended, where it has: its state, its name and its outcome."""
    from watchkeeper.store.outcome import load_outcome

    opened = SessionHandle(path, session_id)
    try:
        ended = load_outcome(opened, session_id)
        if ended is None:
            return
        name = opened.one("SELECT coalesce(title, goal) FROM sessions WHERE id = ?", (session_id,))[0]
        status = ended.ending.status
        say(f"{GLYPHS.get(status, '?')} {clean(status, 40)}  {session_id}  {clean(name, 100)}")
        for line in outcome_lines(session_id, status, ended.as_json()):
            say(line)
    finally:
        opened.connection.close()


class EventPrinter:
    """Prints a session's events as they are committed, from a thread with a connection of its own."""

    quiet = QUIET

    def __init__(self, path: Place, session_id: str, *, as_json: bool) -> None:
        self._path = path
        self._session_id = session_id
        self._as_json = as_json
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchkeeper-printer", daemon=True)
        self._seq = 0
        self._names: dict[str, str] = {}
        self._began = time.time()
        self._trouble: str | None = None

    def start(self, *, from_start: bool = False) -> None:
        opened = SessionHandle(self._path)
        row = opened.one("SELECT event_seq, created_at FROM sessions WHERE id = ?", (self._session_id,))
        self._seq = 0 if from_start else row[0]
        self._began = row[1] if from_start else time.time()
        opened.connection.close()
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread can start: the run goes on without progress
            self._trouble = str(host_fault(error) or error)

    def print_while(self, goes_on: Callable[[], bool]) -> None:
        """Print the past and new events while `goes_on()`, until the reader of the output has closed it."""
        self.start(from_start=True)
        try:
            while goes_on() and not reader_is_gone():
                time.sleep(LOOK_SECONDS)
        finally:
            self.finish()

    def finish(self) -> None:
        """Print the remaining events and stop."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=30)

    def report_trouble(self) -> None:
        """Print why the progress ended early, if it did. A run that failed for the same reason reports it itself."""
        if self._trouble is not None:
            print(f"wk: progress is no longer shown: {self._trouble}", file=sys.stderr)

    def _run(self) -> None:
        feed = ChangeFeed(self._path)
        try:
            while not self._printed_to_end(feed):
                self._stop.wait(1.0)
        finally:
            feed.close()

    def _printed_to_end(self, feed: ChangeFeed) -> bool:
        """Print events until `finish`; False if the machine ran out of something, so that a retry may work."""
        self._trouble = None
        try:
            opened = SessionHandle(self._path)
            with closing(opened.connection):
                while not self._stop.is_set():
                    self._print_new(opened)
                    feed.wait(LOOK_SECONDS)
                self._print_new(opened)
        except Exception as error:
            fault = host_fault(error)
            if fault is None and not isinstance(error, WatchkeeperError):
                raise
            self._trouble = str(fault or error)
            return fault is None or self._stop.is_set()
        return True

    def _print_new(self, opened: SessionHandle) -> None:
        for at, agent_id, kind, text in self._lines(opened):
            self._print_line(opened, at, agent_id, kind, text)

    def _lines(self, opened: SessionHandle) -> list[tuple[float, str, str, str]]:
        """New lines: time, agent, kind and text. With JSON, each event is printed here instead."""
        found: list[tuple[float, str, str, str]] = []
        rows = opened.all(
            f"SELECT e.seq, e.at, e.kind, e.agent_id, e.task_id, e.data, {TASK_NAME} AS task FROM events e"  # noqa: S608
            " LEFT JOIN tasks t ON t.id = e.task_id WHERE e.session_id = ? AND e.seq > ? ORDER BY e.seq",
            (self._session_id, self._seq),
        )
        for row in rows:
            self._seq = row["seq"]
            data = decode(row["data"])
            if self._as_json:
                about = {"type": "event", "seq": row["seq"], "at": row["at"], "kind": row["kind"]}
                about |= {"agent": row["agent_id"], "task": row["task_id"], "data": data}
                say(json.dumps(about, ensure_ascii=True))
            elif row["kind"] not in self.quiet:
                found.append(
                    (
                        row["at"],
                        row["agent_id"] or "",
                        row["kind"],
                        _text(row["kind"], data, row["task"] or ""),
                    )
                )
        return found

    def _print_line(self, opened: SessionHandle, at: float, agent_id: str, kind: str, text: str) -> None:
        if agent_id and agent_id not in self._names:
            found = opened.one(f"SELECT {AGENT_NAME} FROM agents a WHERE id = ?", (agent_id,))  # noqa: S608
            self._names[agent_id] = clean(found[0], 24) if found else agent_id
        who = self._names.get(agent_id, "")
        clock = at - self._began
        when = f"{int(clock // 60):02d}:{clock % 60:04.1f}"
        line = f"{when}  {who:<14} {clean(subject_name(kind)):<8}  {text}".rstrip()
        say(line if len(line) <= LINE_CHARACTERS else line[: LINE_CHARACTERS - 1] + "…")


def _text(kind: str, data: dict[str, Any], task: str) -> str:
    """An event's text, and what only a line of progress has room for."""
    if kind == "model.replied":
        data |= {"preview": clean(data.get("preview") or "", 70)}
    text = clean(event_text(kind, data, task), 200)
    if kind == "model.replied" and "tokens" in data:
        return f"{text} · {data['tokens']:,} tok"
    if kind == "agent.parked" and isinstance(data.get("until"), int | float):
        return f"{text} (in {countdown(data['until'] - time.time())})"
    if kind == "approval.asked":
        return f"{text}  (whole: wk approve --show {data.get('approval')})"
    if kind == "tool.error" and "seconds" in data:
        return f"{text} · {max(0.0, data['seconds']):.1f} s"
    return text


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
@click.option("--worker", help="The worker that starts this host.")
@click.option("--machine", default="", help="The worker's name of this machine.")
@click.option("--workspace", default="", help="Where the session works on this machine.")
@click.option("--fresh", is_flag=True, help="The workspace was just checked out.")
def host(
    session: str, db: Place | None, lift: bool, once: int | None, approval_timeout: float | None, worker: str | None,
    machine: str, workspace: str, fresh: bool,
) -> int:  # fmt: skip
    """Run SESSION until it ends or pauses."""
    from watchkeeper.runtime.run_session import Asking, drive
    from watchkeeper.store.workers import Placement

    handler = logging.StreamHandler()
    handler.setFormatter(_Redacting("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    asking = Asking(unattended=False, timeout_seconds=approval_timeout)
    placement = Placement(worker, machine, workspace, fresh) if worker is not None else None
    path = awaited_database_path(db)
    return drive(path, session, resume=lift, once=once, asking=asking, placement=placement).exit_code


class _Redacting(logging.Formatter):
    """Redacts log lines: a traceback may quote the text of a model or a tool."""

    def format(self, record: logging.LogRecord) -> str:
        from watchkeeper.store.place import user_redactor

        return user_redactor().text(super().format(record))


# --- Workers --------------------------------------------------------------------------------------------


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
            yield f"            drives {', '.join(row.sessions[:20])}" + (
                " …" if len(row.sessions) > 20 else ""
            )
