"""`wk watch`: the dashboard on one session, or a log of events where there is no terminal.

The sessions of other programs are imported and followed in a process of their own while they are watched. This
module is the only place of the command line that opens the dashboard.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from difflib import get_close_matches
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from watchkeeper.cli.headless import EventPrinter, follow, print_farewell
from watchkeeper.cli.help import Command
from watchkeeper.cli.options import (
    LOOKS,
    SessionHandle,
    awaited_database_path,
    clean,
    complete_session,
    db_option,
    explains_last,
    find_session,
    is_terminal,
    reader_is_gone,
    say,
    state_word,
)
from watchkeeper.records.errors import BadInput, NotFound, WatchkeeperError
from watchkeeper.records.process_secrets import handed_over
from watchkeeper.records.readers import READERS, is_alias
from watchkeeper.records.text import called_tools, cost_text, plural
from watchkeeper.store import agents, database
from watchkeeper.store.agent_snapshot import CallFacts
from watchkeeper.store.place import Place, config_text
from watchkeeper.store.sessions import last_active_session, live_outside, running_sessions
from watchkeeper.store.state import summaries
from watchkeeper.store.statistics import calls_after

if TYPE_CHECKING:
    from watchkeeper_tui.screens.welcome import Discovery

RIPE_SECONDS = 0.3
"""How long a reply without a recorded end may still grow before it is printed as it is."""
AWAIT_SECONDS = 0.3
"""How often logs are looked for that do not exist yet."""
LOOKS_BESIDE = 10
"""After so many looks, logs that have not changed are read again."""
INTERRUPTED_EXIT = 130


def print_log(path: Place, session_id: str, what: str, follower: subprocess.Popen[bytes]) -> int:
    """Print the past and new events of a followed session, until SIGINT or SIGTERM, or until the reader of the
    output has closed it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        printer = LogPrinter(path, session_id)
        printer.introduce(what)
        printer.print_while(lambda: follower.poll() is None)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    finally:
        signal.signal(signal.SIGTERM, before)
    printer.report_trouble()
    if reader_is_gone():
        return 0
    print(
        f"wk: the process that was following {clean(what, 200)} ended; run `wk watch` again to continue",
        file=sys.stderr,
    )
    return 1


class LogPrinter(EventPrinter):
    """Prints a followed session's events, and its replies with their tokens, as they are imported."""

    quiet = frozenset({"agent.idle", "agent.working", "task.pending"})

    def __init__(self, path: Place, session_id: str) -> None:
        super().__init__(path, session_id, as_json=False)
        self._call = 0
        self._ripening: dict[int, float] = {}
        """Replies that may still grow, and when each was first seen."""
        self._others: set[str] = set()

    def introduce(self, what: str) -> None:
        """Print which session is watched."""
        opened = SessionHandle(self._path)
        try:
            (row,) = summaries(opened, among=[self._session_id])
        finally:
            opened.connection.close()
        about = clean(row["title"] or row["goal"] or "", 80)
        say(f"session {self._session_id}  {row['origin']}  {about}".rstrip())
        size = f"{plural(row['agents'], 'agent')}, {plural(row['model_calls'], 'model call')} so far"
        place = f" in {clean(row['workspace'], 100)}" if row["workspace"] else ""
        say(f"{size}{place}; following {clean(what, 200)} (Ctrl+C stops this command, not the session)")

    def _lines(self, opened: SessionHandle) -> list[tuple[float, str, str, str]]:
        lines = [*super()._lines(opened), *self._replies(opened)]
        self._announce_others(opened)
        return sorted(lines, key=lambda line: line[0])

    def _replies(self, opened: SessionHandle) -> list[tuple[float, str, str, str]]:
        calls = calls_after(opened, self._session_id, self._call)
        newest = {agent_id: call.id for agent_id, call in calls}
        now, found = time.monotonic(), []
        for agent_id, call in calls:
            since = self._ripening.setdefault(call.id, now)
            growing = call.stop_reason is None and newest[agent_id] == call.id and now - since < RIPE_SECONDS
            if growing and not self._stop.is_set():
                break  # later replies wait too: they are printed in order
            self._ripening.pop(call.id)
            self._call = call.id
            ended_at = call.started_at + call.latency_seconds
            found.append((ended_at, agent_id, "model.replied", self._reply(opened, agent_id, call)))
        return found

    @staticmethod
    def _reply(opened: SessionHandle, agent_id: str, call: CallFacts) -> str:
        cost = cost_text(call.cost_usd)
        text = f"turn {call.turn} · {call.prompt_tokens:,} tok in, {call.output_tokens:,} out · {cost}"
        if not call.usage_exact:
            text += " (estimated)"
        tools = agents.load_calls(opened, agent_id, call.turn, None)
        called = called_tools([clean(one.name, 40) for one in tools])
        return f"{text} · calls {called}" if called else text

    def _announce_others(self, opened: SessionHandle) -> None:
        """Name each other session that is live, once."""
        for session_id, name in live_outside(opened):
            if session_id not in self._others and session_id != self._session_id:
                self._others.add(session_id)
                say(f"session {session_id} is also live: {clean(name, 80)}  (wk watch {session_id})")


START_LOCK_SECONDS = 5.0
"""How long the dashboard waits for a locked database before it reports the lock."""
_FOLDER = re.compile(rb'"cwd"\s*:\s*("(?:[^"\\]|\\.)*")')
"""Where the logs of Claude Code and Codex name the folder of their session."""


@click.command(
    cls=Command,
    examples=(
        "wk watch # the most recently active session",
        "wk watch claude # Claude Code's newest session, live",
    ),
)
@click.argument(
    "sessions",
    nargs=-1,
    shell_complete=complete_session,
    metavar="[SESSION|PATH|PROGRAM]...",
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Show all sessions that are running, paused or active today, one row each.",
)
@db_option
@explains_last(LOOKS)
def watch(sessions: tuple[str, ...] = (), every: bool = False, db: Place | None = None) -> int:
    """Open the dashboard on SESSION (default: `last`), running or finished. Several dashboards can be open at once.

    With PATH (a log or a folder of logs) or PROGRAM (as in `wk import`), the command shows the newest session and
    follows all live sessions. If there is none yet, it waits: a program creates its log at the first prompt. Several
    sessions, or --all, are shown in one row each; without a terminal, they are printed once.
    """
    if every and sessions:
        raise BadInput("specify either sessions or --all")
    path = awaited_database_path(db)
    if every or len(sessions) > 1:
        return _watch_several(path, sessions)
    return _watch_one(path, sessions[0] if sessions else None)


def open_default() -> int:
    """What `wk` alone does: open the only live session, or else the list; without any session, the welcome."""
    path = awaited_database_path(None)
    if _last_active(path) is None:
        return _watch_one(path, None)
    live = _live_sessions(path)
    if len(live) == 1:
        return _watch_one(path, live[0])
    if not is_terminal():
        from watchkeeper.cli.show import sessions

        return int(sessions.main([], standalone_mode=False) or 0)
    from watchkeeper_tui.app import run

    with _hooks_read(path):
        return int(run(path, None, screen="sessions", on_leave=partial(print_farewell, path)))


def _live_sessions(path: Place) -> list[str]:
    """The sessions that a process runs or follows now, own or imported."""
    from watchkeeper.store.lease import probe_all

    opened = SessionHandle(path)
    with closing(opened.connection):
        return sorted(probe_all(path, running_sessions(opened)))


def _watch_one(path: Place, session: str | None) -> int:
    if session is not None and _means_logs(path, session):
        return _watch_foreign(path, session)
    if session is not None and _is_path(session) and not Path(session).suffix:
        return _watch_foreign(path, session)  # a folder that a program may create yet
    if session is not None and _is_path(session):
        raise NotFound(
            f"no such file or folder: {clean(session, 200)}; specify a log, a folder of logs, a session id or a "
            f"program ({', '.join(each.alias for each in READERS)})"
        )
    if session is None and is_terminal() and _last_active(path) is None:
        return _welcome(path)
    name = "last" if session is None else session
    try:
        session_id = find_session(path, name, lock_timeout_seconds=START_LOCK_SECONDS)
    except NotFound as error:
        if meant := get_close_matches(name, [each.alias for each in READERS], 1):
            raise NotFound(f"{error}; did you mean `wk watch {meant[0]}`?") from None
        raise
    if not is_terminal():
        return follow(path, session_id)
    with _hooks_read(path):
        return open_dashboard(path, session_id)


def _welcome(path: Place) -> int:
    """Show what was found on this machine, then do what the user chose there."""
    from watchkeeper_tui.app import run

    left: list[str] = []
    show_outcome = partial(print_farewell, path)
    code = run(path, None, on_quit=left.append, on_leave=show_outcome, discover=discover)
    what, _, names = left[0].partition(" ") if left else ("leave", "", "")
    if what == "watch":
        return _watch_foreign(path, names)
    if what == "import":
        from watchkeeper.cli.imports import import_

        import_.main([*names.split(), "--db", str(path)], standalone_mode=False)
        has_any = _last_active(path) is not None
        return run(path, None, screen="sessions", on_leave=show_outcome) if has_any else 1
    return code


def discover() -> Discovery:
    """What is on this machine: logs of other programs, installed programs, and providers with a key.

    Of logs, only names and times are read, and of the newest of each program its first lines. Of keys, only whether
    the environment holds one.
    """
    from watchkeeper.models.registry import missing_key
    from watchkeeper.transcripts.files import find
    from watchkeeper.transcripts.reading import programs
    from watchkeeper_tui.screens.welcome import Discovery, LogsFound

    found = []
    for program in programs():
        places = [place for place in program.places(os.environ, Path.home()) if place.exists()]
        logs = [each for each in find(places, program.may_be_log, lambda name, why: None) if each.size]
        if logs:
            newest = max(logs, key=lambda each: each.modified_at)
            folder = _folder_of(newest.path)
            found.append(LogsFound(program.alias, program.label, len(logs), newest.modified_at, folder))
    found.sort(key=lambda each: -each.modified_at)
    installed = tuple(each.alias for each in READERS if shutil.which(each.alias))
    with_key = tuple(name for name in ("anthropic", "openai") if missing_key(f"{name}/") is None)
    return Discovery(tuple(found), installed, with_key)


def _folder_of(log: Path) -> str:
    """The folder that the first lines of a log name; empty if they name none."""
    from watchkeeper.transcripts.files import read_head

    if log.suffix != ".jsonl":
        return ""
    try:
        match = _FOLDER.search(read_head(log, 1 << 16))
        return str(json.loads(match[1])) if match else ""
    except (OSError, ValueError):
        return ""


def _is_path(name: str) -> bool:
    """Whether a name can only be a path: an id has letters and digits only."""
    return os.sep in name or "." in name or name.startswith("~")


def _means_logs(path: Place, name: str) -> bool:
    """Whether a name means a program or logs on disk. A name that matches a session means the session, unless it
    is a program's whose reader is in this package."""
    if is_alias(name):
        return True
    if name in ("", "last") or (_is_path(name) and not Path(name).expanduser().exists()):
        return False
    if _is_path(name):
        return True
    try:
        find_session(path, name)
    except WatchkeeperError:
        from watchkeeper.transcripts.reading import by_name

        return Path(name).expanduser().exists() or by_name(name) is not None
    return False


def open_dashboard(path: Place, session_id: str | None) -> int:
    """Show the dashboard until the user quits it, then print where that was, and how the session ended."""
    from watchkeeper_tui.app import run

    return int(run(path, session_id, on_leave=partial(print_farewell, path)))


def _watch_several(path: Place, names: tuple[str, ...]) -> int:
    """Show several sessions a row each, the live ones of other programs followed; none named: all of late."""
    from watchkeeper.store.external import hooks_folder

    chosen: list[str] = []
    followed: list[str] = []
    for name in names:
        if _means_logs(path, name):
            chosen.append(_import_newest(path, name))
            followed.append(name)
        else:
            chosen.append(find_session(path, name, lock_timeout_seconds=START_LOCK_SECONDS))
    if not is_terminal():
        return _print_fleet(path, chosen)
    if not names:
        followed = _programs_with_logs()
        if followed or hooks_folder(path).is_dir():
            _create(path)
    newest = chosen[0] if chosen else _last_active(path)
    from watchkeeper_tui.app import run

    with ExitStack() as followers:
        for name in followed:
            followers.enter_context(_followed(path, name))
        if not followed:
            followers.enter_context(_hooks_read(path))
        fleet = tuple(dict.fromkeys(chosen))
        return int(run(path, newest, screen="fleet", fleet=fleet, on_leave=partial(print_farewell, path)))


def _create(path: Place) -> None:
    """Create the database where there is none: what is followed is written to it soon."""
    from watchkeeper.store.writer import Writer

    if not database.is_there(path):
        Writer(path).close()


def _last_active(path: Place) -> str | None:
    if not database.is_there(path):
        return None
    with closing(database.open_readonly(path, lock_timeout_seconds=START_LOCK_SECONDS)) as connection:
        return last_active_session(connection)


def _programs_with_logs() -> list[str]:
    """The programs that have left logs on this machine, by the names that `wk watch` knows."""
    from watchkeeper.transcripts.reading import programs

    return [
        program.alias
        for program in programs()
        if any(place.exists() for place in program.places(os.environ, Path.home()))
    ]


def _print_fleet(path: Place, session_ids: list[str]) -> int:
    """Print the sessions once, a line each."""
    from watchkeeper.store.lease import probe_all
    from watchkeeper.store.snapshot import FleetReader

    opened = SessionHandle(path)
    try:
        rows = FleetReader(session_ids).read(opened.connection, time.time())
    finally:
        opened.connection.close()
    hosted = probe_all(path, [row.id for row in rows])
    for row in rows:
        plan = f"{row.tasks_done}/{row.tasks_planned} tasks" if row.tasks_planned else "no plan"
        rate = f"{cost_text(row.cost_usd, row.total_tokens)} (+{row.cost_per_minute:.2f}/min)"
        asked = f"  ? {row.question.agent}: {row.question.tool} {row.question.text}" if row.question else ""
        name = clean(row.title or row.goal or "", 80)
        status = state_word(row.status, row.origin, live=row.id in hosted, working=row.working,
                            queued=row.queued_at is not None)  # fmt: skip
        say(f"{row.id}  {status:<9}  {plan}  {rate}  {name}{clean(asked, 200)}".rstrip())
    if not rows:
        say("no sessions are running, paused or active today; `wk sessions` lists all")
    return 0


@contextmanager
def _hooks_read(path: Place) -> Iterator[None]:
    """Where hooks are installed and no process reads what they write, another process does until the block ends."""
    from watchkeeper.store.external import hooks_folder, is_read

    if not hooks_folder(path).is_dir() or is_read(path):
        yield
        return
    with _followed(path, "claude"):
        yield


def _watch_foreign(path: Place, what: str) -> int:
    """Import the newest session of `what` and show it, while another process follows all live sessions."""
    session_id = _await_session(path, what)
    if session_id is None:
        return 0
    with _followed(path, what) as follower:
        if is_terminal():
            return open_dashboard(path, session_id)
        return print_log(path, session_id, what, follower)


def _await_session(path: Place, what: str) -> str | None:
    """Import the newest session of `what`. If there is none yet, say so and wait for it: a program creates its log at
    the first prompt. None: the reader of the output has closed it meanwhile."""
    from watchkeeper.cli.imports import wanted_places
    from watchkeeper.transcripts.files import find
    from watchkeeper.transcripts.reading import programs

    def logs() -> list[tuple[Path, int, float]]:
        try:
            places, only = wanted_places((what,))
        except NotFound:
            return []
        known = [only] if only is not None else programs()
        found = find(
            places, lambda file: any(each.may_be_log(file) for each in known), lambda name, why: None
        )
        return sorted((each.path, each.size, each.modified_at) for each in found)

    seen: list[tuple[Path, int, float]] | None = None
    for look in count():
        if reader_is_gone():
            return None
        # What is written beside a file (a write-ahead log) does not change it.
        if (found := logs()) != seen or (found and look % LOOKS_BESIDE == 0):
            try:
                return _import_newest(path, what)
            except NotFound:
                if seen is None:
                    click.echo(f"wk: {_awaited(what)}; Ctrl+C to stop", err=True)
            seen = found
        time.sleep(AWAIT_SECONDS)
    raise AssertionError


def _awaited(what: str) -> str:
    """What `wk watch` waits for, where `what` has no session yet."""
    from watchkeeper.transcripts.reading import by_name

    program = by_name(what) if not Path(what).expanduser().exists() else None
    if program is None:
        there = "" if Path(what).expanduser().exists() else ", which does not exist yet"
        return f"waiting for the first session in {clean(Path(what).expanduser().absolute(), 300)}{there}"
    places = " or ".join(clean(place, 300) for place in program.places(os.environ, Path.home()))
    return f"waiting for {program.label}: it creates its log at the first prompt, in {places}"


def _import_newest(path: Place, what: str) -> str:
    from watchkeeper.cli.imports import wanted_places
    from watchkeeper.models.registry import imported_price, imported_window
    from watchkeeper.runtime.control import user_name
    from watchkeeper.store.writer import Writer
    from watchkeeper.transcripts.files import find
    from watchkeeper.transcripts.importer import Importer

    places, only = wanted_places((what,))
    writer = Writer(path)
    importer = Importer(
        writer, pricing=imported_price, windows=imported_window, user_id=user_name(), only=only
    )
    try:
        # The newest file may be no log, or one of another program: then the one before it is tried.
        found = sorted(
            find(places, importer.may_be_log, lambda name, why: None), key=lambda each: each.modified_at
        )
        for each in reversed(found):
            beside = each.path.with_suffix("")
            importer.run([each.path, beside] if beside.is_dir() else [each.path])
            session_id = importer.session_of(each.path)
            if session_id is not None:
                return session_id
    finally:
        importer.close()
        writer.close()
    raise NotFound(
        f"no session of a supported program in {', '.join(map(str, places))}; `wk import` lists the files"
    )


@contextmanager
def _followed(path: Place, what: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that imports new lines of the logs until the block ends."""
    place = str(Path(what).expanduser().absolute()) if Path(what).expanduser().exists() else what
    command = [sys.executable, "-P", "-m", "watchkeeper", "follow", place, "--parent", str(os.getpid())]
    with handed_over(config_text()) as handover:
        follower = subprocess.Popen(
            [*command, "--db", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=handover.environment,
            pass_fds=handover.descriptors,
        )
    try:
        yield follower
    finally:
        follower.terminate()
        try:
            follower.wait(timeout=5)
        except subprocess.TimeoutExpired:
            follower.kill()
