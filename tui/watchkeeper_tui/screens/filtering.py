"""Filters of the list of sessions by key: which, then which value; what comes of it is a search that could be
typed."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from watchkeeper.store.search.sessions import SessionLine
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.widgets.cells import Piece
from watchkeeper_tui.widgets.sessions import SessionsView, tags_of

if TYPE_CHECKING:
    _Base = WatchScreen
else:
    _Base = object

STATES = (("l", "live", "running"), ("p", "paused", "paused"), ("o", "done", "done"), ("f", "failed", "failed"),
          ("c", "cancelled", "cancelled"), ("d", "deleted", "deleted"))  # fmt: skip
COSTS = (
    ("1", "over $0.10", "cost>0.1"),
    ("2", "over $1", "cost>1"),
    ("3", "over $10", "cost>10"),
    ("4", "under $1", "cost<1"),
)
DAYS = (("1", "today", 0), ("2", "last 7 days", 6), ("3", "last 30 days", 29))

MOST_VALUES = 9


def with_filter(search: str, kind: str, word: str) -> str:
    """The search with this filter in place of another of its kind; an empty `word` only takes that away."""
    pattern = {"cost": r"cost[<>]\S+", "date": r"(since|before):\S+", "compacted": r"compacted"}.get(
        kind, rf"{kind}:\S+"
    )
    kept = [one for one in search.split() if not re.fullmatch(pattern, one, re.IGNORECASE)]
    return " ".join([*kept, *([word] if word else [])])


def values_of(rows: Sequence[SessionLine], kind: str) -> list[str]:
    """The values of a kind of filter among these sessions, the most common first; at most nine."""
    if kind == "tag":
        found = [tag for row in rows for tag in tags_of(row)]
    elif kind == "model":
        found = [row.model for row in rows]
    else:
        found = [row.workspace for row in rows]
    # A filter is one word of the search.
    return [
        value for value, _ in Counter(found).most_common(50) if value and not re.search(r"[\s\"]", value)
    ][:MOST_VALUES]


class Filtering(_Base):
    """A screen whose list of sessions is filtered by key."""

    search_text: str
    """The search as it could be typed."""

    if TYPE_CHECKING:

        @property
        def view(self) -> SessionsView: ...
        def reload(self, words: str | None = None) -> None: ...

    def action_filter(self) -> None:
        """Ask which filter."""
        choices: list[tuple[str, str, Callable[[], None]]] = [
            ("s", "state", self._ask_state),
            ("m", "model", lambda: self._ask_value("model")),
            ("g", "tag", lambda: self._ask_value("tag")),
            ("w", "workspace", lambda: self._ask_value("workspace")),
            ("d", "date", self._ask_date),
            ("c", "cost", self._ask_cost),
            ("k", "compacted", lambda: self._set("compacted", "compacted")),
            ("0", "none", lambda: self._clear()),
        ]
        self._ask("Filter by", choices)

    def _ask_state(self) -> None:
        self._ask(
            "Only sessions that are",
            [(key, word, self._setter("state", f"state:{value}")) for key, word, value in STATES],
        )

    def _ask_cost(self) -> None:
        self._ask(
            "Only sessions that cost",
            [(key, word, self._setter("cost", value)) for key, word, value in COSTS],
        )

    def _ask_date(self) -> None:
        now = self.watch_app.now()
        days = [
            (
                key,
                word,
                self._setter("date", time.strftime("since:%Y-%m-%d", time.localtime(now - back * 86_400))),
            )
            for key, word, back in DAYS
        ]
        older = time.strftime("before:%Y-%m-%d", time.localtime(now - 29 * 86_400))
        self._ask("Only sessions last active", [*days, ("4", "longer ago", self._setter("date", older))])

    def _ask_value(self, kind: str) -> None:
        values = values_of(self.view.rows, kind)
        if not values:
            self.say(f"no session that is listed has a {kind}", "muted")
            return
        choices = [
            (str(number), clip(sanitize(value), 32), self._setter(kind, f"{kind}:{value}"))
            for number, value in enumerate(values, start=1)
        ]
        self._ask(f"Only sessions of the {kind}", choices)

    def _ask(self, question: str, choices: Sequence[tuple[str, str, Callable[[], None]]]) -> None:
        answers: list[Piece] = []
        for key, words, _ in choices:
            answers += [(key, "key"), (f" {words}  ", "text")]
        lines: list[list[Piece]] = [[(question, "strong"), ("   / takes the same, typed", "muted")], answers]
        self.prompt.ask_key(lines, {key: run for key, _, run in choices})

    def _setter(self, kind: str, word: str) -> Callable[[], None]:
        return lambda: self._set(kind, word)

    def _set(self, kind: str, word: str) -> None:
        self.reload(with_filter(self.search_text, kind, word))

    def _clear(self) -> None:
        text = self.search_text
        for kind in ("state", "model", "tag", "workspace", "date", "cost", "compacted"):
            text = with_filter(text, kind, "")
        self.reload(text)
