"""A whole session in one file: Markdown or a web page to read, JSON to keep, to move and to import again.

Promises: rows are streamed, and never all in memory; secrets are removed unless the caller forbids it; nothing
that an agent, a tool or a file wrote becomes markup or script; and JSON → import → JSON gives the same document.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from watchkeeper.records.errors import BadInput
from watchkeeper.records.redact import Redactor
from watchkeeper.store.backup import unfinished
from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.export.document import write_json
from watchkeeper.transcripts.export.pages import write_markdown, write_page

Write = Callable[[Connection, str, TextIO, Callable[[], Redactor] | None], int | None]
"""Takes a connection (in a read transaction), a session id, the file, and what makes a redactor (None leaves
secrets in); returns how many secrets were removed."""

WRITERS: Mapping[str, Write] = {"md": write_markdown, "html": write_page, "json": write_json}


@contextmanager
def new_file(path: Path, *, replace: bool = False) -> Iterator[TextIO]:
    """A text file (UTF-8, mode 0600) that takes the name `path` when the block ends without an error.

    Until then it has a temporary name in the same folder. If the block fails, the file is removed.

    Raises:
        BadInput: something of that name is there and `replace` was not said, or it is no plain file, or the
            folder cannot be written.
    """
    if not replace and os.path.lexists(path):
        raise _exists(path)
    if replace and (path.is_symlink() or (path.exists() and not path.is_file())):
        # A link, a pipe, a device: `/dev/stdout` must not become a file.
        raise BadInput(
            f"{path} is no plain file, so nothing is put in its place; choose another with --output (`-`"
            " prints)"
        )
    try:
        with unfinished(path) as (temporary, descriptor):
            copied = os.dup(descriptor)
            with os.fdopen(
                copied, "w", encoding="utf-8", errors="replace", newline="\n", buffering=1 << 20
            ) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _name(temporary, path, replace)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written ({error.strerror or error}); choose another place with --output"
        ) from None


def _name(temporary: Path, path: Path, replace: bool) -> None:
    if replace:
        os.replace(temporary, path)
        return
    try:
        # A link is made only where nothing is, even if that came to be since we looked.
        os.link(temporary, path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:
        if os.path.lexists(path):  # a file system without links
            raise _exists(path) from None
        os.replace(temporary, path)


def _exists(path: Path) -> BadInput:
    return BadInput(f"{path} is there already; choose another with --output, or replace it with --force")
