"""Keeping the library in order from the list: names, tags, deleting with a way back, forks, exports,
comparing.

Nothing here needs a host: the changes are made in the store, beside the event loop, and refused where a live
host drives the session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from textual.timer import Timer

from watchkeeper.store.fork import ForkResult
from watchkeeper.store.library import (
    UNDO_DAYS,
    DeleteResult,
    change_tags,
    delete_session,
    rename_session,
    restore_session,
)
from watchkeeper.store.search.sessions import SessionLine
from watchkeeper_tui import formatting
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.exporting import Exporting
from watchkeeper_tui.screens.status_line import LOCKED, LOCKED_AFTER_SECONDS
from watchkeeper_tui.widgets.cells import Piece
from watchkeeper_tui.widgets.sessions import DeletedLine, SessionsView, session_name, tags_of

T = TypeVar("T")


class Keeping(Exporting):
    """A screen that changes the sessions of its list."""

    gone: tuple[DeleteResult, ...] = ()
    """What was deleted last, and can be undone by a key."""
    shows_deleted: bool = False
    """The list is of deleted sessions."""

    if TYPE_CHECKING:

        @property
        def view(self) -> SessionsView: ...
        def reload(self, words: str | None = None) -> None: ...

    # Beside the event loop.

    def keep(self, doing: str, work: Callable[[], T], done: Callable[[T], None]) -> None:
        """Change something in a thread of its own, then say so; a refusal is said in its place."""
        self.say(f"{doing} …", "muted", seconds=60)
        late = self.set_timer(
            LOCKED_AFTER_SECONDS, lambda: self.say(f"{doing}: {LOCKED}", "waiting", seconds=60)
        )

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                # A worker must never end the dashboard; what went wrong is said where the result would have
                # been.
                self.app.call_from_thread(self._refused, doing, error, late)
                return
            self.app.call_from_thread(self._kept, done, result, late)

        self.run_worker(run, thread=True, exit_on_error=False, group="library")

    def _kept(self, done: Callable[[T], None], result: T, late: Timer) -> None:
        late.stop()
        if self.is_mounted and not self._closing:
            done(result)
            self.reload()

    def _refused(self, doing: str, error: Exception, late: Timer) -> None:
        late.stop()
        if self.is_mounted and not self._closing:
            self.say(f"✗ {doing}: {self.trouble(error)}", "failed", seconds=12)

    # Who is meant.

    def _one(self, what: str) -> SessionLine | None:
        row = self.view.selected
        if row is None:
            self.say(f"{what}: no session is selected", "muted")
        return row

    def _several(self, what: str) -> tuple[SessionLine, ...]:
        rows = self.view.chosen
        if not rows:
            self.say(f"{what}: no session is selected", "muted")
        return rows

    def _named(self, rows: Sequence[SessionLine]) -> str:
        return clip(session_name(rows[0]), 60) if len(rows) == 1 else formatting.plural(len(rows), "session")

    def action_mark(self) -> None:
        row = self.view.selected
        if row is not None:
            self.view.marked = self.view.marked ^ {row.id}
            self.view.refresh()
            self.view.action_move(1)
            self.redraw_keys()

    def redraw_keys(self) -> None:
        """Bring the footer up to date."""

    # Names and tags.

    def action_name(self) -> None:
        row = self._one("Name")
        if row is None:
            return
        path = self.watch_app.database_path

        def typed(title: str) -> None:
            self.keep("naming", lambda: rename_session(path, row.id, title), self._renamed)

        question: list[list[Piece]] = [
            [
                ("Name", "strong"),
                (f" {clip(session_name(row), 60)}", "text"),
                ("   empty: its goal is shown again", "muted"),
            ]
        ]
        self.prompt.ask_line(question, typed, kind="name", value=sanitize(row.title or ""), enter="Name it")

    def _renamed(self, title: str | None) -> None:
        self.say(f"✓ named {clip(sanitize(title), 80)}" if title else "✓ its goal is its name again", "done")

    def action_tags(self) -> None:
        rows = self._several("Tags")
        if not rows:
            return
        now = sorted({tag for row in rows for tag in tags_of(row)})

        def typed(text: str) -> None:
            words = text.replace(",", " ").split()
            add = [word for word in words if not word.startswith("-")]
            remove = [word[1:] for word in words if word.startswith("-") and len(word) > 1]
            if add or remove:
                self.keep("tagging", lambda: self._tag(rows, add, remove), self._tagged)

        question: list[list[Piece]] = [
            [
                ("Tags of ", "strong"),
                (self._named(rows), "strong"),
                (f"   now: {' '.join(now) or 'none'}", "muted"),
            ],
            [("words add tags, words with - before them take tags away", "muted")],
        ]
        self.prompt.ask_line(question, typed, kind="tags", enter="Tag")

    def _tag(
        self, rows: Sequence[SessionLine], add: list[str], remove: list[str]
    ) -> tuple[int, tuple[str, ...]]:
        tags: tuple[str, ...] = ()
        for row in rows:
            tags = change_tags(self.watch_app.database_path, row.id, add=add, remove=remove)
        return len(rows), tags

    def _tagged(self, result: tuple[int, tuple[str, ...]]) -> None:
        count, tags = result
        said = (
            f"{formatting.plural(count, 'session')} tagged"
            if count > 1
            else f"tags: {' '.join(map(sanitize, tags)) or 'none'}"
        )
        self.say(f"✓ {said}", "done")

    # Deleting, and the way back.

    def action_delete(self) -> None:
        rows = self._several("Delete")
        if not rows:
            return
        if self.shows_deleted:
            self.say("deleted already; u brings it back, `wk prune` takes it away for good", "muted")
            return
        live = [row for row in rows if row.id in self.view.hosts]
        if live:
            self.say(
                f"Delete: {clip(session_name(live[0]), 60)} is live; open it and pause it first", "muted"
            )
            return
        tokens = sum(row.tokens for row in rows)
        lines = [
            f"Delete {self._named(rows)}?",
            f"{formatting.tokens(tokens)} tokens of work,"
            f" {formatting.plural(sum(row.agents for row in rows), 'agent')};"
            f" hidden at once, and for {UNDO_DAYS:g} days u or `wk restore` brings it back",
        ]
        self.confirm(lines, lambda: self.keep("deleting", lambda: self._delete(rows), self._deleted))

    def _delete(self, rows: Sequence[SessionLine]) -> tuple[tuple[DeleteResult, ...], str]:
        gone: list[DeleteResult] = []
        for row in rows:
            try:
                gone.append(delete_session(self.watch_app.database_path, row.id, now=self.watch_app.now()))
            except Exception as error:
                if not gone:
                    raise
                return tuple(gone), sanitize(str(error))
        return tuple(gone), ""

    def _deleted(self, result: tuple[tuple[DeleteResult, ...], str]) -> None:
        self.gone, problem = result
        self.view.marked = self.view.marked - {one.id for one in self.gone}
        self.say(
            f"✗ not all: {clip(problem, 200)}" if problem else "", "failed", seconds=12 if problem else 0
        )
        self._show_gone()

    def _show_gone(self) -> None:
        """The line that says what was deleted, for as long as it can be undone from here."""
        pieces: list[Piece] = []
        if self.gone:
            first = clip(" ".join(sanitize(self.gone[0].name).split()), 60)
            what = first if len(self.gone) == 1 else formatting.plural(len(self.gone), "session")
            until = time.strftime("%b %d", time.localtime(self.gone[0].gone_at))
            pieces = [
                ("✗ deleted ", "failed"),
                (what, "text"),
                ("   u", "key"),
                (" to undo", "text"),
                (f"   until {until}", "muted"),
            ]
        self.query_one(DeletedLine).show(pieces)
        self.redraw_keys()

    def action_undo(self) -> None:
        """Bring back what was deleted last; in a list of deleted sessions, what is chosen there."""
        ids = (
            tuple(row.id for row in self.view.chosen)
            if self.shows_deleted
            else tuple(one.id for one in self.gone)
        )
        if not ids:
            self.say("nothing was deleted here; t s d lists the deleted sessions", "muted")
            return
        path = self.watch_app.database_path

        def work() -> tuple[str, ...]:
            for session_id in ids:
                restore_session(path, session_id)
            return ids

        self.keep("restoring", work, self._restored)

    def _restored(self, ids: tuple[str, ...]) -> None:
        self.gone = tuple(one for one in self.gone if one.id not in ids)
        self.say(f"✓ {formatting.plural(len(ids), 'session')} restored", "done")
        self._show_gone()

    # Forks and comparisons.

    def why_not_fork(self) -> str:
        """Why the selected session cannot be forked, whichever program drives it; empty if it can."""
        row = self.view.selected
        return (
            f"it was not run here; `wk run --from {row.id}` carries it on"
            if row and row.origin not in ("run", "fork")
            else ""
        )

    def action_fork(self) -> None:
        row = self._one("Fork")
        if row is None:
            return
        if row.id in self.view.hosts:
            self.say(f"Fork: {clip(session_name(row), 60)} is live; open it and pause it first", "muted")
            return
        if reason := self.why_not_fork():
            self.say(f"Fork: {reason}", "muted")
            return
        from watchkeeper_tui.screens.fork import ForkScreen

        self.app.push_screen(ForkScreen(row.id, session_name(row), self.forked))

    def forked(self, made: ForkResult) -> None:
        """A fork was made on the fork's screen."""
        goes_on = "; Enter opens it, r there carries on" if made.status == "paused" else ""
        self.say(f"✓ forked at event #{made.at_seq} as {made.session_id}{goes_on}", "done", seconds=20)
        self.view.selected_id = made.session_id
        self.reload()

    def why_not_compare(self) -> str:
        """Why there is nothing to compare; empty where there is."""
        marked, selected = self.view.marked_rows, self.view.selected
        if len(marked) == 1 and selected is not None and selected is not marked[0]:
            return ""
        return "" if len(marked) == 2 else "mark two sessions with space, or mark one and select another"

    def action_compare(self) -> None:
        reason = self.why_not_compare()
        if reason:
            self.say(f"Compare: {reason}", "muted")
            return
        marked = [row.id for row in self.view.marked_rows]
        selected = self.view.selected
        if len(marked) == 1 and selected is not None:
            marked.append(selected.id)
        from watchkeeper_tui.screens.compare import CompareScreen

        self.app.push_screen(CompareScreen(marked[0], marked[1]))

    # Exports.

    def action_export(self) -> None:
        row = self._one("Export")
        if row is None:
            return
        from watchkeeper_tui.exporting import FORMS

        folder = Path.cwd()
        answers: list[Piece] = []
        for key, (_, words) in FORMS.items():
            answers += [(key, "key"), (f" {words}   ", "text")]
        answers += [("esc", "key"), (" cancel", "text")]
        question: list[list[Piece]] = [
            [
                ("Export ", "strong"),
                (clip(session_name(row), 60), "strong"),
                (f"   to {clip(sanitize(str(folder)), 60)}", "muted"),
            ],
            answers,
        ]

        def start(form: str) -> Callable[[], None]:
            return lambda: self.export_session(row.id, form)

        self.prompt.ask_key(question, {key: start(form) for key, (form, _) in FORMS.items()})
