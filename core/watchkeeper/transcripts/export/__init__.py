"""A whole session in one file: Markdown and a web page to read, JSON to keep, to move and to import again.

Promises: rows are streamed, never held at once; secrets are taken out unless that was forbidden; nothing that
an agent, a tool or a file said becomes markup or script; and JSON → import → JSON gives the same document.
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

# --- The forms that a session can be exported in, by name -------------------------------------------------

Write = Callable[[Connection, str, TextIO, Callable[[], Redactor] | None], int | None]
"""Connection (in a read transaction), session id, where to, what takes secrets out (None leaves them in) →
how many."""

WRITERS: Mapping[str, Write] = {"md": write_markdown, "html": write_page, "json": write_json}


# --- Writing a file so that it is there whole or not at all, for its owner alone, and over nothing by -----
#
# accident.


@contextmanager
def new_file(path: Path, *, replace: bool = False) -> Iterator[TextIO]:
    """A text file (UTF-8, mode 0600) that takes the name `path` once the block has ended well.

    Until then it has a name of its own beside it; where the block fails, it is taken away.

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
