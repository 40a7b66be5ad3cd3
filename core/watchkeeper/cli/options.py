"""Options that several commands share, and how SESSION, AGENT and TASK are found."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from watchkeeper.records.errors import BadInput, NotFound, StoreUnusable
from watchkeeper.store import database, driver, sessions
from watchkeeper.store.driver import Connection, sqlite3

F = TypeVar("F", bound=Callable[..., Any])

db_option = click.option("--db", type=click.Path(path_type=Path, dir_okay=False), help="The database file.")
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Machine form on standard output, and nothing else there."
)


def complete_session(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Shell completion of a session's id."""
    try:
        connection = database.open_readonly(ctx.params.get("db") or database.default_path())
    except Exception:
        return []
    with connection:
        rows = connection.execute(
            "SELECT id FROM sessions WHERE deleted_at IS NULL ORDER BY ordinal DESC LIMIT 50"
        ).fetchall()
    return [name for name in ("last", *(row[0] for row in rows)) if name.startswith(incomplete)]


def session_argument(function: F) -> F:
    return click.argument("session", shell_complete=complete_session)(function)


def last_session_argument(function: F) -> F:
    """SESSION of a command that only reads: `last` where none is named."""
    return click.argument("session", default="last", shell_complete=complete_session)(function)


def chosen_path(path: Path | None) -> Path:
    """The database file that is meant, whether it is there or not."""
    return (path or database.default_path()).expanduser().absolute()


class SessionHandle:
    """A database opened to look, with the session that is meant. `own`: `last` is the newest session that was
    run here."""

    def __init__(self, path: Path | None, session: str | None = None, *, own: bool = False) -> None:
        self.path = chosen_path(path)
        self.connection: Connection = database.open_readonly(self.path)
        self.connection.row_factory = sqlite3.Row
        with self._clear_errors():
            self.session_id = sessions.find(self.connection, session, own=own) if session is not None else ""

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

    def agent(self, name: str) -> str:
        """The id of the agent that `name` means: an id, a unique prefix, or its name; the newest of that
        name.

        Raises:
            NotFound: none is meant.
            BadInput: several are.
        """
        rows = self.all(
            "SELECT id, name, role FROM agents WHERE session_id = ? ORDER BY rowid DESC", (self.session_id,)
        )
        exact = [row["id"] for row in rows if name in (row["id"], row["name"])]
        found = exact[:1] or [row["id"] for row in rows if row["id"].startswith(name)] if name else []
        if not found:
            task = self.one(
                "SELECT assigned_agent FROM tasks WHERE session_id = ? AND name = ?", (self.session_id, name)
            )
            if task and task[0]:
                return str(task[0])
            known = ", ".join(row["name"] for row in reversed(rows[-8:]))
            raise NotFound(f"no agent {name!r} in session {self.session_id}; there are {known or 'none yet'}")
        if len(found) > 1:
            raise BadInput(f"{name!r} could be {', '.join(found[:5])}; give more characters")
        return str(found[0])

    def task(self, name: str) -> str | None:
        """The id of the task that `name` means: an id, a unique prefix, or its name; None if there is
        none."""
        rows = self.all("SELECT id, name FROM tasks WHERE session_id = ?", (self.session_id,))
        exact = [row["id"] for row in rows if name in (row["id"], row["name"])]
        found = exact[:1] or [row["id"] for row in rows if row["id"].startswith(name)]
        if len(found) > 1:
            raise BadInput(f"{name!r} could be {', '.join(found[:5])}; give more characters")
        return str(found[0]) if found else None


_OBEYED_OR_HIDDEN = re.compile(
    "[\x7f-\x9f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that JSON allows in a text, and that a terminal obeys (0x9b begins a control sequence) or
hides."""


def json_text(value: Any) -> str:
    """One line of JSON that a terminal only shows: what it would obey or hide is escaped."""
    return _OBEYED_OR_HIDDEN.sub(
        lambda found: json.dumps(found[0])[1:-1], json.dumps(value, ensure_ascii=False)
    )


def print_json(value: Any) -> None:
    click.echo(json_text(value))


_gone: list[bool] = []
"""Not empty once what is printed went nowhere."""


def say(text: str) -> None:
    """Print a line. Once the reader has gone away (`wk demo --headless | head`), the rest goes nowhere, and
    the work goes on."""
    try:
        click.echo(text)
    except BrokenPipeError:
        import sys

        _gone.append(True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def reader_is_gone() -> bool:
    """Whether nobody reads any more what is printed: then whoever only prints has nothing left to do."""
    import select
    import sys

    if _gone:
        return True
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return False  # no pipe, or a system that cannot tell


def is_terminal() -> bool:
    """Whether somebody sits at a terminal that can show a dashboard."""
    import sys

    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"


def clean(text: Any, limit: int = 2_000) -> str:
    """Text of a model, a tool or a file, made harmless for a terminal and put on one line."""
    from watchkeeper.records.text import sanitize

    one = " ".join(sanitize(str(text)).split())
    return one if len(one) <= limit else one[: limit - 1] + "…"
