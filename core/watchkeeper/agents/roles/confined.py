"""Reading small text files of a workspace that somebody else may have written."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_text_within(root: Path, file: Path, most_bytes: int) -> tuple[str, bool] | None:
    """The text of a regular file, and whether it was cut; None if there is none inside `root`.

    Links are followed only while they stay inside `root`. What is not UTF-8 is replaced.

    Raises:
        OSError: it is there, and cannot be read.
    """
    try:
        real = file.resolve(strict=True)
        if not real.is_relative_to(root.resolve(strict=True)):
            return None
        # Non-blocking: a FIFO of that name must not hold the start of a session.
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return None
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = stream.read(most_bytes + 1)
    return data[:most_bytes].decode("utf-8", "replace").lstrip("\ufeff"), len(data) > most_bytes
