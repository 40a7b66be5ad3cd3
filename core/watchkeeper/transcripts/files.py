"""Logs as files: found on disk, unpacked where they were compressed, and read as lines.

Codex compresses logs that were not written to for a week (`rollout-….jsonl.zst`), DeepSeek Harness all of its logs, a frame
for each piece that it adds, and people compress old ones. A compressed log is read under the name that it
had before. If it is cut or damaged, what comes before that is read.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

from watchkeeper.records.errors import reason_of

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
    ".zstd": _zstd,
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
    """What was unpacked. Where that is not all, a reader that reached its end gets the error as it is closed."""

    ends: OSError | None = None
    """Why it ends here."""

    def __exit__(self, kind: Any, *about: Any) -> None:
        super().__exit__(kind, *about)
        if kind is None and self.ends is not None:
            raise self.ends


def open_log(path: Path, buffering: int = -1, *, beginning: bool = False) -> BinaryIO:
    """A log's bytes as they were, from any place.

    Args:
        beginning: the reader does not need its end, and gets no error if it lacks one.

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
                unpacked.ends = None if beginning else OSError("only the beginning can be decompressed")
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
        (times, f"expands to more than {MOST_TIMES} times its size"),
        (disk, f"expands to more than a tenth of the free disk space ({disk >> 20:,} MiB)"),
        (MOST_BYTES, f"expands to more than {MOST_BYTES >> 30} GiB"),
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
            yield OSError(f"cannot decompress it ({error})")


# Finding logs on real disks: links may form circles, and folders may be unreadable.

HEAD_BYTES = 65_536
MOST_PASSED = 128 << 20
"""How far into a file its first whole lines are looked for."""
LINES_LOOKED_AT = 40
LONGEST_HELD = 1 << 20
"""A longer first line is looked at by its beginning."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file that may be a log."""

    path: Path
    """Its real path, links resolved: a file reached in two ways is one file. Of a packed log, its name
    before."""
    size: int
    modified_at: float


Trouble = Callable[[str, str], None]
"""Gets what could not be read: its name, and why."""


def find(places: list[Path], may_be_log: Callable[[Path], bool], trouble: Trouble) -> Iterator[Found]:
    """Every file in these places that may be a log, each once. A place that is a file is taken whatever its
    name.

    Nothing is raised for what cannot be read: `trouble` is called, and the rest goes on.
    """
    files: set[tuple[int, int]] = set()
    folders: set[tuple[int, int]] = set()
    # A place, whether the user named it, and its real path, where it follows from the folder's.
    waiting: list[tuple[Path, bool, str]] = [(place, True, "") for place in reversed(places)]
    while waiting:
        path, named, real = waiting.pop()
        path = packed_name(path) if named else path
        try:
            found = path.stat()
        except OSError as error:
            trouble(str(path), _reason(error, path))
            continue
        identity = (found.st_dev, found.st_ino)
        if _is_folder(found):
            if identity in folders:
                continue  # a link led back here
            folders.add(identity)
            try:
                with os.scandir(path) as entries:
                    inside = sorted(((entry.name, entry.is_symlink()) for entry in entries), reverse=True)
            except OSError as error:
                trouble(str(path), _reason(error, path))
                continue
            real = real or os.path.realpath(path)
            waiting.extend(
                (path / name, False, "" if link else os.path.join(real, name)) for name, link in inside
            )
        elif _is_file(found):
            log = unpacked_name(path)
            if identity in files or not (named or may_be_log(log)):
                continue
            if log != path and log.exists():  # it is unpacked beside it, and goes on there
                waiting.extend([(log, True, "")] if named else [])
                continue
            files.add(identity)
            yield Found(unpacked_name(Path(real or os.path.realpath(path))), found.st_size, found.st_mtime)
        elif named:
            trouble(str(path), "neither a file nor a folder")


def read_file_head(path: Path) -> bytes:
    """The beginning of a file.

    Raises:
        OSError: it cannot be read.
    """
    return read_head(path, HEAD_BYTES)


def read_past(path: Path, head: bytes) -> bytes:
    """The first lines of a log whose first ones do not fit into the head, each whole as far as it is of a
    bearable length; empty where the head says enough.

    Raises:
        OSError: it cannot be read.
    """
    if head.count(b"\n") >= LINES_LOOKED_AT or len(head) < HEAD_BYTES:
        return b""
    found: list[bytes] = []
    with open_log(path, beginning=True) as file:
        while (
            len(found) < LINES_LOOKED_AT
            and file.tell() < MOST_PASSED
            and (line := file.readline(LONGEST_HELD))
        ):
            found.append(line if line.endswith(b"\n") else line[:HEAD_BYTES] + b"\n")
            while not line.endswith(b"\n") and (line := file.readline(LONGEST_HELD)):
                if file.tell() > MOST_PASSED:
                    break
    return b"".join(found)


EXPORT_FORMAT = "watchkeeper-session"
"""The `format` of an exported session (`wk export --format json`)."""


def is_export(path: Path) -> bool:
    """Whether a file begins like an exported session (the rest may still be damaged)."""
    try:
        with path.open("rb") as file:
            return f'"format":"{EXPORT_FORMAT}"'.encode() in b"".join(file.read(1 << 16).split())
    except OSError:
        return False


def stored_path(path: Path) -> str:
    """A path as the database can hold it, also where its name is no UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _is_folder(found: os.stat_result) -> bool:
    return found.st_mode & 0o170000 == 0o040000


def _is_file(found: os.stat_result) -> bool:
    return found.st_mode & 0o170000 == 0o100000


def _reason(error: OSError, path: Path) -> str:
    if path.is_symlink() and isinstance(error, FileNotFoundError):
        return "a broken link"
    return reason_of(error).lower()


# A growing file as lines, from where the last reading ended. A line of any length costs bounded memory.

BUFFER_BYTES = 1 << 18
"""How much a log is read at a time."""
LONGEST_LINE = 64 << 20
"""A longer line is not parsed: its beginning is kept raw."""
KEPT_OF_LONGEST = 1 << 20
MARK_BYTES = 4_096


class Line(NamedTuple):
    """One line, without the newline at its end."""

    data: bytes
    """The beginning alone, where the line is longer than `LONGEST_LINE`."""
    end: int
    """Where the next one begins in the file."""
    size: int
    """Its whole length in bytes."""
    ended: bool = True
    """False for what is at the file's end without a newline: perhaps half of a line."""


_new = tuple.__new__
"""Makes a named tuple at half the cost: a gigabyte of log has hundreds of thousands of lines."""


def read_lines(file: BinaryIO, start: int) -> Iterator[Line]:
    """The lines from `start` on; last, what has no newline yet (if anything).

    A caller that moves in the file between two lines goes back to where it was.
    """
    file.seek(start)
    place = start
    begun = _Begun()
    while block := file.read(BUFFER_BYTES):
        find, at = block.find, 0
        while (end := find(b"\n", at)) >= 0:
            if begun.size:
                begun.add(block[at:end])
                place += begun.size + 1
                yield Line(begun.kept(), place, begun.size)
                begun = _Begun()
            else:
                size = end - at
                place += size + 1
                data = block[at:end] if size <= LONGEST_LINE else block[at : at + KEPT_OF_LONGEST]
                yield _new(Line, (data, place, size, True))
            at = end + 1
        if at < len(block):
            begun.add(block[at:])
    if begun.size:
        yield Line(begun.kept(), place + begun.size, begun.size, ended=False)


class _Begun:
    """A line whose end was not read yet."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """What comes next of it."""
        if self.size <= LONGEST_LINE:
            self._pieces.append(piece)
        self.size += len(piece)
        if self.size > LONGEST_LINE:
            self._pieces = [b"".join(self._pieces)[:KEPT_OF_LONGEST]]

    def kept(self) -> bytes:
        """All of it, or the beginning of one that is too long."""
        return b"".join(self._pieces)


def mark(file: BinaryIO, end: int, *, at_end: bool = False) -> str:
    """A digest of the first (or last) bytes of what was read through `end`: whether a file is still the one
    we knew."""
    size = min(MARK_BYTES, end)
    file.seek(end - size if at_end else 0)
    return f"{size}:{blake2b(file.read(size), digest_size=12).hexdigest()}"


def still_holds(file: BinaryIO, end: int, head: str, tail: str) -> bool:
    """Whether the file begins and goes on as when `mark` was taken at `end`."""
    size = int(head.partition(":")[0])
    file.seek(0)
    if f"{size}:{blake2b(file.read(size), digest_size=12).hexdigest()}" != head:
        return False
    return mark(file, end, at_end=True) == tail
