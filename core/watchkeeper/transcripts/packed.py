"""Logs that were compressed since: Codex packs those that nobody wrote to for a week (`rollout-….jsonl.zst`),
and people pack what they put aside. A packed log is read as the log that it was, under the name that it had.
Of one that was cut, or is damaged somewhere, what comes before that is read."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

MOST_BYTES = 32 << 30
"""A log that is larger once it is unpacked is not read."""
MOST_TIMES = 200
"""Nor is one that is more than so many times as large: real logs pack to a tenth, and only a trap packs to
less than this."""
DISK_SHARE = 10
"""Nor one that would take more than this part (a tenth) of the space that is free where it is unpacked to."""
HELD_BYTES = 16 << 20
"""Unpacked bytes that are held in memory; more of them are put on disk, since a log is read from more than
one place."""
_PIECE = 1 << 20


def _zstd(file: IO[bytes]) -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.ZstdFile(file, "rb")


_UNPACK: dict[str, Callable[[IO[bytes]], Any]] = {
    ".zst": _zstd,
    ".gz": lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
}


def unpacked_name(path: Path) -> Path:
    """The name that a packed file had; that of any other file is its own."""
    return path.with_suffix("") if path.suffix in _UNPACK else path


def packed_name(path: Path) -> Path:
    """The file that holds what that name promises: itself, or where it is gone, what it was packed into."""
    if os.path.lexists(path):
        return path
    return next(
        (packed for suffix in _UNPACK if os.path.lexists(packed := path.with_name(path.name + suffix))), path
    )


class _Unpacked(tempfile.SpooledTemporaryFile[bytes]):
    """What was unpacked. Where that is not all, whoever read it to its end is told as it is closed."""

    ends: OSError | None = None
    """Why it ends here."""

    def __exit__(self, kind: Any, *about: Any) -> None:
        super().__exit__(kind, *about)
        if kind is None and self.ends is not None:
            raise self.ends


def open_log(path: Path, buffering: int = -1, *, beginning: bool = False) -> BinaryIO:
    """A log's bytes as they were, from any place.

    Args:
        beginning: whoever opens it has no need of its end, and is not told that it lacks one.

    Raises:
        OSError: it cannot be read, or is no log that was packed. Where it is packed and only its beginning
            can be read, that is raised as it is closed, when nothing else was.
        TooLarge: unpacked, it is larger than may be; nothing of it is read.
    """
    packed = packed_name(path)
    if packed.suffix not in _UNPACK:
        return open(packed, "rb", buffering=buffering)
    with ExitStack() as closing:
        unpacked = closing.enter_context(_Unpacked(HELD_BYTES))
        size = 0
        for piece in _pieces(packed):
            if isinstance(piece, OSError):
                if not size:
                    raise piece
                unpacked.ends = (
                    None if beginning else OSError("only the beginning of what is packed in it can be read")
                )
                break
            size += unpacked.write(piece)
        unpacked.seek(0)
        closing.pop_all()
    return cast(BinaryIO, unpacked)


def read_head(path: Path, limit: int) -> bytes:
    """The beginning of a log.

    Raises:
        OSError: as for `open_log`.
    """
    packed = packed_name(path)
    if packed.suffix in _UNPACK:
        head = b""
        for piece in _pieces(packed):
            if isinstance(piece, OSError):
                if not head:
                    raise piece
                break
            head += piece
            if len(head) >= limit:
                break
        return head[:limit]
    with open(packed, "rb") as file:
        return file.read(limit)


class TooLarge(OSError):
    """What is packed in a file is larger than what may be unpacked of it."""


def _most_of(packed: Path) -> tuple[int, str]:
    """How many bytes may be unpacked of a file, and why not more."""
    times = MOST_TIMES * packed.stat().st_size
    disk = shutil.disk_usage(tempfile.gettempdir()).free // DISK_SHARE
    return min(
        (times, f"more than {MOST_TIMES} times its size once it is unpacked"),
        (disk, f"more than a tenth of the free disk space ({disk >> 20:,} MiB) once it is unpacked"),
        (MOST_BYTES, f"larger than {MOST_BYTES >> 30} GiB once it is unpacked"),
    )


def _pieces(packed: Path) -> Iterator[bytes | OSError]:
    """What is packed in a file; last, where it goes no further, why.

    Raises:
        TooLarge: it goes on beyond what may be unpacked; one byte more than that was unpacked, and no piece
            holds it.
    """
    most, reason = _most_of(packed)
    with open(packed, "rb") as file:
        try:
            with _UNPACK[packed.suffix](file) as stream:
                # Not `read`: it would keep back what came before a fault.
                while piece := stream.read1(min(_PIECE, most + 1)):
                    most -= len(piece)
                    if most < 0:
                        raise TooLarge(reason)
                    yield piece
        except TooLarge:
            raise
        except OSError as error:
            yield error
        except Exception as error:  # each of the formats has errors of its own
            yield OSError(f"it cannot be unpacked ({error})")
