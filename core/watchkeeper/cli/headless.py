"""Run or follow a session without a dashboard: progress as text, or one JSON object a line, and a summary.

`wk host` is the background process that runs a session and prints nothing; other commands start it, detached.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from textwrap import wrap
from typing import Any

import click

from watchkeeper.cli.options import (
    SessionHandle,
    awaited_database_path,
    clean,
    db_option,
    reader_is_gone,
    say,
    state_word,
)
from watchkeeper.records.errors import WatchkeeperError, host_fault, message_of
from watchkeeper.records.text import cost_text, countdown, event_text, json_text, plural, subject_name
from watchkeeper.store import agents, budgets, sessions
from watchkeeper.store.change_feed import ChangeFeed
from watchkeeper.store.place import Place

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

GLYPHS = {
    "done": "✓",
    "failed": "✗",
    "paused": "‖",
    "cancelled": "✗",
    "running": "●",
    "queued": "◷",
    "stopped": "†",
    "ended": "□",
}


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
        say(
            f"session {session_id}{effort}  (Ctrl+C once to save and stop; `wk resume {session_id}` to continue)"
        )
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
            shortage or f"cannot show the result: {message_of(fault.shortage)}, then `wk show {session_id}`"
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
    from watchkeeper.store.projection import counted_session, effort_text

    opened = SessionHandle(path)
    with closing(opened.connection):
        session = counted_session(opened, session_id)
    found = effort_text(session.settings, session.roles) if session is not None else None
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
    seconds = max(0.0, sessions.require(opened, session_id).hosted_seconds)
    tasks = ", ".join(f"{count} {status}" for status, count in sorted(result["tasks"].items()) if count)
    cost = cost_text(result["cost_usd"])
    if result["cost_estimated"]:
        cost += " (estimated)"
    if result["unpriced_calls"] and result["cost_usd"] is not None:
        cost += " plus unpriced calls"
    say("")
    say(f"{GLYPHS.get(result['status'], '?')} {result['status']}")
    if result["outcome"] is not None:
        for line in outcome_lines(session_id, result["status"], result["outcome"]):
            say(line)
        say("")
    say(f"  tasks      {tasks or 'none'}")
    say(f"  tokens     {result['tokens']['total']:,}   cost {cost}   time {seconds:.1f} s")
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
        yield f"  (to print one: wk artifacts {session_id} NAME)"


def _wrapped(line: str, width: int) -> list[str]:
    """A line of prose in lines of a terminal; one of a table or of code as it is."""
    prose = line.lstrip()
    if len(line) <= width or line.startswith(("    ", "|", "```")):
        return [line]
    lead = len(line) - len(prose) + (2 if prose.startswith(("- ", "* ")) else 0)
    return wrap(line, width, subsequent_indent=" " * lead, break_long_words=False, break_on_hyphens=False)


def print_farewell(path: Place, whereabouts: Sequence[str], session_id: str | None) -> None:
    """Print where the user left the dashboard, and the state or the outcome of the session that was open."""
    if whereabouts:
        say("Last view: " + " › ".join(clean(one, 60) for one in whereabouts))
    if session_id is not None:
        print_outcome(path, session_id)


def print_outcome(path: Place, session_id: str) -> None:
    """Print the state and the name of a session, and how it ended; if it has not, how to continue."""
    from watchkeeper.store.outcome import load_outcome
    from watchkeeper.store.state import summaries

    opened = SessionHandle(path, session_id)
    try:
        ended = load_outcome(opened, session_id)
        (row,) = summaries(opened, among=[session_id])
        live, queued = opened.host is not None, row["queued_at"] is not None
        status = state_word(row["status"], row["origin"], live=live, working=row["working"], queued=queued)
        say(
            f"{GLYPHS.get(status, '?')} {clean(status, 40)}  {session_id}  {clean(row['title'] or row['goal'], 100)}"
        )
        if ended is not None:
            for line in outcome_lines(session_id, status, ended.as_json()):
                say(line)
        elif status == "stopped":
            say(f"  the background process stopped; `wk resume {session_id}` continues the session")
        else:
            say(f"  `wk watch {session_id}` reopens it")
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
        self._seq = 0 if from_start else sessions.newest_event(opened, self._session_id)
        began = sessions.require(opened, self._session_id).created_at
        self._began = began if from_start else time.time()
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
            print(f"wk: progress output stopped: {self._trouble}", file=sys.stderr)

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
        for event in sessions.events_after(opened, self._session_id, self._seq):
            self._seq = event.seq
            if self._as_json:
                about = {"type": "event", "seq": event.seq, "at": event.at, "kind": event.kind}
                about |= {"agent": event.agent_id, "task": event.task_id, "data": event.data}
                say(json.dumps(about, ensure_ascii=True))
            elif event.kind not in self.quiet:
                text = _text(event.kind, event.data, event.task or "")
                found.append((event.at, event.agent_id or "", event.kind, text))
        return found

    def _print_line(self, opened: SessionHandle, at: float, agent_id: str, kind: str, text: str) -> None:
        if agent_id and agent_id not in self._names:
            found = agents.names_of(opened, [agent_id])
            self._names[agent_id] = clean(found[agent_id], 24) if found else agent_id
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
        return f"{text}  (full question: wk approve --show {data.get('approval')})"
    if kind == "tool.error" and "seconds" in data:
        return f"{text} · {max(0.0, data['seconds']):.1f} s"
    return text


@click.command(hidden=True)
@click.argument("session")
@db_option
@click.option("--resume", "lift", is_flag=True, help="Resume the session if it is paused.")
@click.option("--once", type=int, help="Run this command, finish the work it starts, then stop.")
@click.option(
    "--approval-timeout",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Deny a question that is not answered within this time.",
)
@click.option("--worker", help="Worker that starts this process.")
@click.option("--machine", default="", help="The worker's name for this machine.")
@click.option("--workspace", default="", help="Workspace of the session on this machine.")
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
