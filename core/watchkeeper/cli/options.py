"""What the commands share: their options, how they find a session, an agent or a task, and how they print.

A command that reads has `@reads_session`, one that changes a run has `@controls_session`: both open the
database and find SESSION before the command begins. `respond` prints an answer as JSON or as text.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import cleandoc
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.text import json_text
from watchkeeper.store import database, driver, plans, sessions
from watchkeeper.store.agents import find_agent, only_match
from watchkeeper.store.driver import Connection, Queries, sqlite3
from watchkeeper.store.imports import imported_from, refuse_imported
from watchkeeper.store.lease import LeaseHolder, probe
from watchkeeper.store.place import Place, absolute, place_of

F = TypeVar("F", bound=Callable[..., Any])


class _PlaceType(click.ParamType[Place]):
    name = "file or address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        if not isinstance(value, str):
            return cast(Place, value)
        place = place_of(value)
        if isinstance(place, Path) and place.is_dir():
            self.fail(f"{value!r} is a directory; give a file", param, ctx)
        return place


db_option = click.option(
    "--db", type=_PlaceType(), metavar="FILE|URL", help="The database: a file or postgresql://HOST/NAME."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print only JSON on standard output.")


MOST_COMPLETED = 50
"""Sessions, and models, that a shell offers."""


def complete_session(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of a session's id."""
    try:
        connection = database.open_readonly(ctx.params.get("db") or database.default_place())
    except Exception:  # a shell that completes a word shows no error
        return []
    with connection:
        known = sessions.newest_ids(Queries(connection), MOST_COMPLETED)
    return [name for name in ("last", *known) if name.startswith(incomplete)]


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of a model: the suggested ones, and those that sessions ran on."""
    from watchkeeper.models.registry import SUGGESTED, SUGGESTED_OPENAI, SURVEYOR

    names = [*SUGGESTED, *SUGGESTED_OPENAI, "openai-chat/", SURVEYOR]
    try:
        with database.open_readonly(ctx.params.get("db") or database.default_place()) as connection:
            names += sessions.models_of(Queries(connection), MOST_COMPLETED)
    except Exception:  # a shell that completes a word shows no error
        pass
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


session_argument = click.argument("session", shell_complete=complete_session)
last_session_argument = click.argument("session", default="last", shell_complete=complete_session)
"""SESSION of a command that only reads: `last` by default."""

ACTS = "`last` is the newest Watchkeeper run; imported sessions are ignored."
LOOKS = "`last` is the most recently active session, including imported ones."


def explains_last(rule: str) -> Callable[[F], F]:
    """Add to a command's help what `last` means: `ACTS` or `LOOKS`."""

    def explained(function: F) -> F:
        function.__doc__ = f"{cleandoc(function.__doc__ or '')}\n\n{rule}"
        return function

    return explained


def database_path(path: Place | None) -> Place:
    """Where the database is: what `--db` says, else the default. A file's path is absolute; it may not exist."""
    return absolute(path or database.default_place())


def awaited_database_path(path: Place | None) -> Place:
    """As `database_path`, for a command that lasts: waits for a server that does not answer, and says so in one line.

    Raises:
        StoreUnusable: it answers, and refuses.
    """
    found = database_path(path)
    database.await_server(
        found, lambda line: click.echo(f"wk: {clean(line, 400)} (Ctrl+C to stop)", err=True)
    )
    return found


def reads_session(function: Callable[..., int]) -> Callable[..., int]:
    """Give a command `opened`, a `SessionHandle`, in place of its options `session` and `db`."""

    @explains_last(LOOKS)
    @wraps(function)
    def opening(session: str, db: Place | None, **options: Any) -> int:
        return function(SessionHandle(db, session), **options)

    return opening


def changes_session(function: Callable[..., int]) -> Callable[..., int]:
    """As `reads_session`, for a command that changes a session, own or imported, but not its run.

    A tool of a run may not call such a command.
    """

    @explains_last(ACTS)
    @wraps(function)
    def opening(session: str, db: Place | None, **options: Any) -> int:
        from watchkeeper.runtime.control import refuse_agents

        refuse_agents()
        return function(SessionHandle(db, session, own=True), **options)

    return opening


def controls_session(function: Callable[..., int]) -> Callable[..., int]:
    """As `reads_session`, for a command that changes a run.

    `last` is then the newest session that was run here. A tool of a run may not call such a command, and an
    imported session is refused.
    """

    @explains_last(ACTS)
    @wraps(function)
    def opening(session: str, db: Place | None, **options: Any) -> int:
        return function(open_for_control(db, session), **options)

    return opening


def open_for_control(path: Place | None, session: str) -> SessionHandle:
    """The session, for a command that changes its run.

    Raises:
        BadInput: a tool of a run called the command, or the session was imported.
        NotFound: there is no such session.
    """
    from watchkeeper.runtime.control import refuse_agents

    refuse_agents()
    opened = SessionHandle(path, session, own=True)
    refuse_imported(opened.connection, opened.session_id)
    return opened


def find_session(path: Place, name: str, *, lock_timeout_seconds: float | None = None) -> str:
    """The id of the session that `name` means: an id, a unique prefix, or `last`, the session active last, which is
    said on standard error.

    Raises:
        NotFound, BadInput, StoreUnusable.
    """
    connection = database.open_readonly(path, lock_timeout_seconds=lock_timeout_seconds)
    try:
        found = sessions.find(connection, name)
        if name == "last":
            say_chosen(connection, found)
        return found
    finally:
        connection.close()


def say_chosen(connection: Connection, session_id: str) -> None:
    """Print on standard error which session a command takes for `last`: id, program and title."""
    session = sessions.require(Queries(connection), session_id)
    program = imported_from(session.origin) or "Watchkeeper"
    click.echo(f"wk: last is {session_id} ({clean(program, 40)}): {clean(session.name, 80)}", err=True)


class SessionHandle:
    """A database that is open for reading, and one of its sessions.

    Args:
        path: the database; None: the default one.
        session: an id, a unique prefix of one, or `last`; None: the command concerns no single session.
        own: whether `last` is the newest session that was run here, not the one active last. Either way, it is said
            on standard error which session that is.

    Raises:
        NotFound, BadInput, StoreUnusable.
    """

    def __init__(self, path: Place | None, session: str | None = None, *, own: bool = False) -> None:
        self.path = database_path(path)
        self.connection: Connection = database.open_readonly(self.path)
        self.connection.row_factory = sqlite3.Row
        with self._clear_errors():
            self.session_id = sessions.find(self.connection, session, own=own) if session is not None else ""
            if session == "last":
                say_chosen(self.connection, self.session_id)

    def all(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._clear_errors():
            return self.connection.execute(sql, parameters).fetchall()

    def one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        with self._clear_errors():
            return self.connection.execute(sql, parameters).fetchone()

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StoreUnusable(driver.explain(self.path, error)) from error

    @property
    def status(self) -> str:
        """The session's status, as stored."""
        return sessions.require(self, self.session_id).status

    @property
    def host(self) -> LeaseHolder | None:
        """The process that runs the session now, or None."""
        return probe(self.path, self.session_id)

    def agent(self, name: str) -> str:
        """The id of an agent; see `store.agents.find_agent`."""
        return find_agent(self, self.session_id, name)

    def task(self, name: str) -> str | None:
        """The id of a task, by id, unique prefix or name; None if no task matches.

        Raises:
            BadInput: several do.
        """
        return only_match(plans.task_names(self, self.session_id), name)


def print_json(value: Any) -> None:
    """Print one line of JSON."""
    click.echo(json_text(value))


def respond(as_json: bool, value: Any, lines: str | Iterable[str], *, empty: str | None = None) -> int:
    """Print `value` as JSON, or else the lines (`empty` if there are none); returns exit code 0.

    `lines` may be a generator: with --json it is not run.
    """
    if as_json:
        print_json(value)
        return 0
    shown = 0
    for line in [lines] if isinstance(lines, str) else lines:
        click.echo(line)
        shown += 1
    if not shown and empty is not None:
        click.echo(empty)
    return 0


_output_closed: list[bool] = []
"""Not empty once standard output was closed by its reader."""


def say(text: str) -> None:
    """Print a line. If the reader of a pipe has closed it (`wk demo --headless | head`), the rest is discarded
    and the work goes on."""
    try:
        click.echo(text)
    except BrokenPipeError:
        _output_closed.append(True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_is_gone() -> bool:
    """Whether the reader of standard output has closed it, so that a command that only prints can stop."""
    import select

    if _output_closed:
        return True
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return False  # not a pipe, or a system without poll


def is_terminal() -> bool:
    """Whether input and output are a terminal that can show a dashboard."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


def clean(text: Any, limit: int = 2_000) -> str:
    """Text of a model, a tool or a file, made harmless for a terminal, on one line of at most `limit`
    characters."""
    from watchkeeper.records.text import one_line

    return one_line(str(text), limit)


def state_word(status: str, origin: str, *, live: bool, working: int, queued: bool = False) -> str:
    """The state of a session in a list. `working`: how many of its agents work; a re-run of a finished one runs.

    Another program's session that is not live has `ended`: it has no process of ours that could have stopped, and its
    log does not say that it reached its goal.
    """
    if imported_from(origin) is not None:
        return "ended" if status == "done" or (status == "running" and not live) else status
    if live and working:
        return "running"
    return ("queued" if queued else "stopped") if status == "running" and not live else status


def day_and_minute(moment: float) -> str:
    """A moment in local time: 2026-11-22 16:05."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
