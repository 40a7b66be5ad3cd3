"""What one regular file holds: lines, language, TODOs, whether it starts something. Streamed, never held
whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO

from watchkeeper.agents.tools.folder.landmarks import MAIN_GUARD, MANIFEST_BYTES, MANIFESTS, entry_point
from watchkeeper.agents.tools.folder.languages import BINARY, OTHER, language_of
from watchkeeper.agents.tools.folder.todos import Todo, TodoScanner
from watchkeeper.agents.tools.protected import Refuses, refuses_nothing

SNIFFED_BYTES = 8 * 1024
CHUNK_BYTES = 1 << 20
_GUARD_HOLD_BACK = 200
_GUARD_TAIL = 4_096


@dataclass(frozen=True, slots=True)
class FileFigures:
    """One file, examined."""

    size: int
    language: str
    lines: int | None = None
    """Newline characters, plus one for a last line without; None for a binary or unreadable file."""
    todos: tuple[Todo, ...] = ()
    """The first ones, in order."""
    more_todos: bool = False
    entry_point: str | None = None
    unreadable: str | None = None
    """Why its content could not be read."""

    @property
    def binary(self) -> bool:
        return self.language == BINARY


def why(error: OSError) -> str:
    """An error of the system in a few lower-case words, without paths: `permission denied`."""
    return os.strerror(error.errno).lower() if error.errno else "cannot be read"


def examine(
    path: bytes, *, size: int, mode: int, max_todos: int, refuses: Refuses = refuses_nothing
) -> FileFigures:
    """Read the file through, once. `size` and `mode` are from its folder entry, used when it cannot be
    opened.

    A file that `refuses` is not read.
    """
    name = os.path.basename(path).decode("utf-8", "replace")
    try:
        with _opened(path, refuses) as file:
            status = os.fstat(file.fileno())
            return _examined(file, name, status.st_size, status.st_mode, max_todos)
    except OSError as error:
        return FileFigures(size, language_of(name), unreadable=why(error))


def later_todos(
    path: bytes, *, offset: int, line: int, count: int, refuses: Refuses
) -> tuple[list[Todo], bool]:
    """Up to `count` TODOs after the one that ended at `offset` on `line`, and whether there are more still.

    A file that can no longer be read has none.
    """
    scanner = TodoScanner(offset, line, told=True)
    found: list[Todo] = []
    try:
        with _opened(path, refuses) as file:
            file.seek(offset)
            for chunk, last in _chunks(file, b""):
                found += scanner.feed(chunk, last=last)
                if len(found) > count:
                    break
    except OSError:
        return [], False
    return found[:count], len(found) > count


def _opened(path: bytes, refuses: Refuses) -> FileIO:
    # Not through a link, and not blocking should the file have become a pipe since its folder was listed.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or refuses(status):
        os.close(descriptor)
        raise OSError("no longer a regular file, or of the run's own database")
    return os.fdopen(descriptor, "rb", buffering=0)


def _chunks(file: FileIO, head: bytes) -> Iterator[tuple[bytes, bool]]:
    """The file's bytes from `head` (already read) on, each with whether it is the last."""
    chunk = head
    while True:
        following = file.read(CHUNK_BYTES)
        if chunk or not following:
            yield chunk, not following
        if not following:
            return
        chunk = following


def _examined(file: FileIO, name: str, size: int, mode: int, max_todos: int) -> FileFigures:
    head = file.read(SNIFFED_BYTES)
    if b"\0" in head:
        return FileFigures(size, BINARY)
    first_line = head.partition(b"\n")[0] if head.startswith(b"#!") else b""
    language = language_of(name, first_line)
    scanner = TodoScanner()
    todos: list[Todo] = []
    lines = 0
    ends_open = False
    guarded = False
    guard_tail = b"\n"
    manifest = bytearray() if name in MANIFESTS and size <= MANIFEST_BYTES else None
    for chunk, last in _chunks(file, head):
        lines += chunk.count(b"\n")
        ends_open = not chunk.endswith(b"\n") if chunk else ends_open
        if len(todos) <= max_todos:
            todos += scanner.feed(chunk, last=last)
        if language == "Python" and not guarded:
            window = guard_tail + chunk
            guarded = b"__main__" in window and MAIN_GUARD.search(window) is not None
            # From a line's beginning, so that the pattern's `^` does not hold in the middle of one.
            guard_tail = window[max(window.rfind(b"\n", 0, -_GUARD_HOLD_BACK), 0) :]
            if len(guard_tail) > _GUARD_TAIL:
                guard_tail = b"-" + guard_tail[-_GUARD_TAIL:]
        if manifest is not None and len(manifest) <= MANIFEST_BYTES:
            manifest += chunk
    return FileFigures(
        size=size,
        language=language,
        lines=lines + ends_open,
        todos=tuple(todos[:max_todos]),
        more_todos=len(todos) > max_todos,
        entry_point=entry_point(
            name,
            shebang=first_line,
            executable=bool(mode & 0o111),
            main_guard=guarded,
            manifest=bytes(manifest or b""),
        ),
    )


__all__ = ["BINARY", "OTHER", "FileFigures", "examine", "later_todos", "why"]
