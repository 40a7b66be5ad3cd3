"""One page of a folder, as JSON text of bounded size, and the cursor of the next."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from watchkeeper.agents.tools.folder import names as paths
from watchkeeper.agents.tools.folder.examine import FileFigures, examine, later_todos, why
from watchkeeper.agents.tools.folder.landmarks import is_test
from watchkeeper.agents.tools.folder.todos import Todo
from watchkeeper.agents.tools.folder.walk import Found, Names, Only, Start, count_below, walk
from watchkeeper.agents.tools.protected import Refuses, refuses_nothing

MAX_ENTRIES = 200
DEFAULT_BYTES = 6_000
LEAST_BYTES, MOST_BYTES = 1_000, 60_000
MAX_TODOS = 40
"""Of one entry; the others follow on the next pages, in parts."""
READ_BYTES = 1 << 30
"""A page ends after the file that brings what was read for it to this, so that no page takes minutes."""
_ENVELOPE_BYTES = 260

_CURSOR = re.compile(r"(after|from|todos(\d{1,12}),(\d{1,18}),(\d{1,15})):(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a page begins."""

    start: Start
    todos: tuple[int, int, int] | None = None
    """Amid a file's TODOs: how many were told, the byte and the line of the last."""


class _Page:
    """Entries gathered so far, and how many bytes their JSON takes."""

    def __init__(self, budget: int, limit: int) -> None:
        self.entries: list[str] = []
        self.skipped: list[str] = []
        self.totals = dict.fromkeys(("files", "folders", "links", "other", "bytes", "lines", "todos"), 0)
        self._left = budget - _ENVELOPE_BYTES
        self._limit = limit

    def room(self) -> int:
        return self._left

    def add(self, entry: dict[str, Any]) -> bool:
        """Add the entry if it fits, or if it is the first. Every page holds one, so that paging always
        ends."""
        text = _dumps(entry)
        size = len(text.encode()) + 1
        if self.entries and (size > self._left or len(self.entries) >= self._limit):
            return False
        self.entries.append(text)
        self._left -= size
        self.totals["todos"] += len(entry.get("todos", ()))
        return True


def scan_page(
    workspace: str | Path,
    path: str = ".",
    cursor: str | None = None,
    limit: int = MAX_ENTRIES,
    *,
    recursive: bool = False,
    only: str | None = None,
    until: str | None = None,
    max_bytes: int = DEFAULT_BYTES,
    refuses: Refuses = refuses_nothing,
) -> str:
    """One page of what a folder of the workspace holds, as JSON text (`spec.LIST_FOLDER` describes it).

    Blocking: it reads every file of the page through, but those that `refuses`; run it in a worker process.

    Raises:
        ValueError: the path, the cursor or another argument cannot be used; one line says why.
    """
    if only is not None and only not in get_args(Only):
        raise ValueError(f"only={only!r}: use 'files' or 'folders', or leave it out.")
    if not 1 <= limit <= MAX_ENTRIES:
        raise ValueError(f"limit={limit}: use 1 to {MAX_ENTRIES}.")
    base = paths.components(path)
    root = paths.folder_in(Path(workspace), base)
    place = _place(cursor, base)
    page = _Page(min(max(max_bytes, LEAST_BYTES), MOST_BYTES), limit)
    result: dict[str, Any] = {"path": paths.show(b"/".join(base)) or "."}
    if not base:
        result["workspace"] = paths.show(os.path.basename(root)) or "/"
    try:
        last = _below(until, base) if until else None
        following = _fill(page, root, base, place, recursive, cast("Only | None", only), last, refuses)
        if cursor is None and only == "folders" and not recursive:
            result["loose"] = sum(1 for _ in walk(root, Start(), recursive=False, only="files"))
    except OSError as error:
        following, result["unreadable"] = None, error.strerror or why(error)
    if page.skipped:
        result["skipped"] = page.skipped
    result |= {"next": following, "totals": page.totals}
    return f'{_dumps(result)[:-1]},"entries":[{",".join(page.entries)}]}}'


def _fill(
    page: _Page,
    root: bytes,
    base: Names,
    place: _Place,
    recursive: bool,
    only: Only | None,
    until: Names | None,
    refuses: Refuses,
) -> str | None:
    """Add entries until the page is full; return the cursor of the next page, or None at the end."""
    reached = place.start.names
    if place.todos is not None:
        cut = _more_todos(page, os.path.join(root, *reached), (*base, *reached), place.todos, refuses)
        if cut is not None:
            return cut
    read = 0
    for found in walk(root, place.start, recursive=recursive, only=only, until=until):
        full = (*base, *found.names)
        if found.kind == "skipped":
            page.skipped.append(_shown(full))
            reached = found.names
            continue
        if read >= READ_BYTES:
            return f"after:{_shown((*base, *reached))}"
        location = os.path.join(root, *found.names)
        figures: FileFigures | None = None
        if found.kind == "file":
            figures = examine(
                location, size=found.size, mode=found.mode, max_todos=MAX_TODOS, refuses=refuses
            )
            read += 0 if figures.binary else figures.size
            entry, cut_at = _file_entry(full, figures, page.room() if not page.entries else MOST_BYTES)
        else:
            entry, cut_at = _plain_entry(found, full, location if not recursive else None), None
        if not page.add(entry):
            return f"after:{_shown((*base, *reached))}"
        _count(page.totals, found, figures)
        reached = found.names
        if cut_at is not None:
            told, todo = cut_at
            return f"todos{told},{todo.offset},{todo.line}:{_shown(full)}"
    return None


def _file_entry(
    full: Names, figures: FileFigures, room: int
) -> tuple[dict[str, Any], tuple[int, Todo] | None]:
    """The entry, and where its TODOs were cut, if they were. Fields that would say nothing are left out."""
    entry: dict[str, Any] = {"path": _shown(full), "kind": "file", "bytes": figures.size}
    entry["lines"] = figures.lines
    entry["language"] = figures.language
    if figures.binary:
        entry["binary"] = True
    if figures.entry_point:
        entry["entry_point"] = figures.entry_point
    if is_test(full):
        entry["test"] = True
    if figures.unreadable:
        entry["unreadable"] = figures.unreadable
    if not figures.todos:
        return entry, None
    fitting = _fitting(figures.todos, room - len(_dumps(entry).encode()))
    entry["todos"] = _rows(fitting)
    if len(fitting) == len(figures.todos) and not figures.more_todos:
        return entry, None
    entry["more_todos"] = True
    return entry, (len(fitting), fitting[-1])


def _more_todos(
    page: _Page, location: bytes, full: Names, cut: tuple[int, int, int], refuses: Refuses
) -> str | None:
    """Go on with one file's TODOs; the cursor for still more of them, or None when all are told."""
    told, offset, line = cut
    todos, more = later_todos(location, offset=offset, line=line, count=MAX_TODOS, refuses=refuses)
    if not todos:
        return None
    entry: dict[str, Any] = {"path": _shown(full), "kind": "file", "todos_from": told}
    fitting = _fitting(todos, page.room() - len(_dumps(entry).encode()))
    entry["todos"] = _rows(fitting)
    more = more or len(fitting) < len(todos)
    if more:
        entry["more_todos"] = True
    page.add(entry)
    return (
        f"todos{told + len(fitting)},{fitting[-1].offset},{fitting[-1].line}:{_shown(full)}" if more else None
    )


def _fitting(todos: tuple[Todo, ...] | list[Todo], room: int) -> list[Todo]:
    """As many of the first as take no more than `room` bytes, and at least one."""
    fitting: list[Todo] = []
    room -= 40
    for todo in todos:
        room -= len(_dumps(_rows([todo])).encode())
        if fitting and room < 0:
            break
        fitting.append(todo)
    return fitting


def _rows(todos: list[Todo]) -> list[list[Any]]:
    return [[todo.line, todo.kind, todo.text] for todo in todos]


def _plain_entry(found: Found, full: Names, counted: bytes | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": _shown(full), "kind": found.kind}
    unreadable = found.unreadable
    if found.kind == "dir" and counted is not None:
        below = count_below(counted)
        entry |= {"files": below.files, "bytes": below.size}
        unreadable = unreadable or below.unreadable
    if unreadable:
        entry["unreadable"] = unreadable
    return entry


def _count(totals: dict[str, int], found: Found, figures: FileFigures | None) -> None:
    totals[{"file": "files", "dir": "folders", "link": "links"}.get(found.kind, "other")] += 1
    if figures is not None:
        totals["bytes"] += figures.size
        totals["lines"] += figures.lines or 0


def _place(cursor: str | None, base: Names) -> _Place:
    if cursor is None:
        return _Place(Start())
    match = _CURSOR.fullmatch(cursor)
    if match is None:
        raise ValueError(
            f"cursor={cursor[:80]!r} is none of list_folder's; pass the last page's `next` unchanged."
        )
    names = _below(match[5], base)
    if match[2] is None:
        return _Place(Start(names, inclusive=match[1] == "from"))
    return _Place(Start(names, inclusive=False), (int(match[2]), int(match[3]), int(match[4])))


def _below(path: str, base: Names) -> Names:
    """The names of a workspace path from `base` on."""
    names = paths.components(path)
    if names[: len(base)] != base or len(names) == len(base):
        raise ValueError(f"{path[:80]!r} does not lie below the folder that is listed.")
    return names[len(base) :]


def _shown(names: Names) -> str:
    return paths.show(b"/".join(names))


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
