"""In a worker: reading a plain text file without the SDK, whose import costs each new worker a second or
more.

Only what is plainly safe is answered here (a relative path to a regular, small UTF-8 file inside the
workspace). All else (images, large files, every error) is left to the SDK's own tool, whose answers these
equal.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

from watchkeeper.agents.tools.protected import IsDatabase, Refuses

MOST_BYTES = 256 * 1024
"""The SDK's own limit for a file that is read whole."""

MEDIA = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf"})


def read_plainly(workspace: Path, arguments: dict[str, Any], refuses: Refuses) -> str | None:
    """The text that `read` gives for these arguments, or None where the SDK's tool must answer.

    Raises:
        IsDatabase: the file that was opened is one that `refuses`.
    """
    name, lines = arguments.get("file_path"), arguments.get("view_range")
    if not isinstance(name, str) or not name or name.startswith(("/", "~")) or "\0" in name:
        return None
    if lines is not None and not (
        isinstance(lines, list) and len(lines) == 2 and all(isinstance(one, int) and one > 0 for one in lines)
    ):
        return None
    try:
        root = workspace.resolve(strict=True)
        target = (root / name).resolve(strict=True)
        if not target.is_relative_to(root) or target.suffix.lower() in MEDIA:
            return None
        data = _read(target, refuses)
        if data is None:
            return None
        text = data.decode("utf-8")
    except (OSError, ValueError, RuntimeError):
        return None
    if lines is None:
        return text
    return "\n".join(text.split("\n")[lines[0] - 1 : lines[1]])


def _read(target: Path, refuses: Refuses) -> bytes | None:
    """A small regular file's bytes; None for any other, and where another file was put in its place since it
    was checked."""
    descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if refuses(status):
            raise IsDatabase
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return None
        if sys.platform == "linux" and os.readlink(f"/proc/self/fd/{descriptor}") != str(target):
            return None  # a folder on the way was swapped for a link
        return file.read(MOST_BYTES + 1)
