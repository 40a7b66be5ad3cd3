"""Errors, named for the action that the user must take. Each has an exit code (docs/commands.md).

A host fault says that the machine has run out of something; this is the one place that tells it from other faults. It
passes when the machine has resources again. The request is not wrong, so the model never receives the fault as an
answer: the call stays pending and is tried again. If it still fails, the session pauses (exit code 5) until a person
resumes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any


class WatchkeeperError(Exception):
    """An error that one line explains to a user: what is wrong, and what to do next."""

    exit_code = 1


class BadInput(WatchkeeperError):
    """A flag, a file, a folder or a value that cannot be used."""

    exit_code = 2


class MissingExtra(BadInput):
    """`what` needs packages of an extra of this distribution, and they are not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra `{extra}`; install it with `{install_command(extra)}`")


def install_command(extra: str) -> str:
    """What a person types to install an extra of this distribution: with the installer that made this environment, from
    the clone or the file that it was installed from (`direct_url.json`, PEP 610), or from the index."""
    import json
    import shlex
    from importlib.metadata import distribution
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    source = "watchkeeper"
    with contextlib.suppress(Exception):  # no metadata, or not in the form of PEP 610
        said = json.loads(distribution("watchkeeper").read_text("direct_url.json") or "{}").get("url", "")
        where = unquote(urlsplit(said).path) if said.startswith("file:") else ""
        source = where if os.path.exists(where) else source
    parents = Path(sys.prefix).parts
    if "uv" in parents and "tools" in parents:
        installer = "uv tool install --force"
    else:
        installer = "pipx install --force" if "pipx" in parents else "pip install"
    return f"{installer} {shlex.quote(f'{source}[{extra}]')}"


def explain_import(error: ImportError) -> str:
    """One line about a module that cannot be loaded where nothing ran out (see `host_fault`)."""
    said = " ".join(str(error).split())
    return f"{said}: a package is missing or damaged; reinstall Watchkeeper"


class NotFound(WatchkeeperError):
    """No session, agent, task or artifact of that name."""

    exit_code = 3


class DrivenElsewhere(WatchkeeperError):
    """Another live host holds the session's lease."""

    exit_code = 4


class LeaseLost(WatchkeeperError):
    """Another host took the session over while this one ran; this one must stop at once, writing nothing."""

    exit_code = 4


class StoreUnusable(WatchkeeperError):
    """The database is damaged, locked, newer than this program, read-only or on a network file system."""

    exit_code = 2


STORE_LOST = (LeaseLost, StoreUnusable)
"""Errors after which this process can write nothing more: code that catches failures lets these pass."""


# --- What the machine has run out of --------------------------------------------------------------------

try:
    import resource  # at once: when a limit is reached there may be no descriptor left to load it with
except ImportError:
    resource = None  # type: ignore[assignment]

RETRY_SECONDS = (0.2, 1.0, 3.0)
"""The waits before a call is tried again. A shortage that lasts longer is a person's to end."""


class Shortage(StrEnum):
    """What the machine, or a limit of this process, has no more of."""

    OPEN_FILES = "open files"
    PROCESSES = "processes"
    THREADS = "threads"
    MEMORY = "memory"
    DISK = "disk"
    QUOTA = "quota"
    FILE_SIZE = "file size"


class HostFault(WatchkeeperError):
    """The machine ran out of something. The message says of what, and what to do about it."""

    exit_code = 5

    def __init__(self, message: str, shortage: Shortage, *, began: bool = False) -> None:
        super().__init__(message)
        self.shortage = shortage
        self.began = began
        """Whether what failed may have had an effect before it failed."""

    def advice(self, session_id: str) -> str:
        """The line for a person whose session pauses because of it."""
        return f"{self}, then `wk resume {session_id}`"


class StoreExhausted(StoreUnusable, HostFault):
    """The database cannot be opened or written because the machine ran out of something."""


_SHORTAGES: Mapping[int, Shortage] = {
    errno.EMFILE: Shortage.OPEN_FILES,
    errno.ENFILE: Shortage.OPEN_FILES,
    errno.ENOMEM: Shortage.MEMORY,
    errno.ENOSPC: Shortage.DISK,
    errno.EDQUOT: Shortage.QUOTA,
    errno.EFBIG: Shortage.FILE_SIZE,
}
_SQLITE_SHORTAGES: Mapping[str, Shortage] = {
    "SQLITE_FULL": Shortage.DISK,
    "SQLITE_NOMEM": Shortage.MEMORY,
    "SQLITE_IOERR_NOMEM": Shortage.MEMORY,
    "SQLITE_IOERR_SHMSIZE": Shortage.DISK,  # the index of the log could not grow
    "SQLITE_IOERR_SHMMAP": Shortage.MEMORY,
}
_ADVICE: Mapping[Shortage, tuple[str, str]] = {
    Shortage.OPEN_FILES: (
        "RLIMIT_NOFILE",
        "too many open files{limited}; raise the limit with `ulimit -n {more}`",
    ),
    Shortage.PROCESSES: (
        "RLIMIT_NPROC",
        "cannot start another process{limited}; end some, or raise the limit with `ulimit -u`",
    ),
    Shortage.THREADS: (
        "",
        "cannot start another thread; close some programs, or raise the limits (`ulimit -u`, `ulimit -v`)",
    ),
    Shortage.MEMORY: ("", "the machine is out of memory; close some programs"),
    Shortage.DISK: ("", "the disk is full; free some space"),
    Shortage.QUOTA: ("", "the disk quota is used up; free some space"),
    Shortage.FILE_SIZE: (
        "",
        "a file would exceed the size limit of this process; raise the limit with `ulimit -f`",
    ),
}
"""The limit that belongs to a shortage, if one does, and what to say."""
_NO_THREAD = "can't start new thread"
_FULL_PIPE = "could not complete without blocking"
_NAMED_NUMBER = re.compile(r"\[Errno (\d+)\]|: Error (\d+)$")
_OF_PYTHON = ("OSError: ", "BlockingIOError: ", "ImportError: ", "MemoryError", f"RuntimeError: {_NO_THREAD}")
_OF_THE_LOADER = "error while loading shared libraries: "


def host_fault(error: BaseException) -> HostFault | None:
    """The shortage behind an exception, also where a library wrapped it; None where the cause is another.

    EAGAIN counts only where it is the exception itself, as from `fork`: libraries meet it all the time when a
    socket has nothing to read yet, and leave it behind as the context of later errors. Nor does it count where a pipe
    takes no more at the moment.
    """
    for link in causes(error):
        if isinstance(link, HostFault):
            return link
        shortage = _shortage_of(link)
        if shortage is None and link is error and isinstance(link, OSError) and link.errno == errno.EAGAIN:
            shortage = None if _FULL_PIPE in str(link) else Shortage.PROCESSES
        if shortage is not None:
            return HostFault(message_of(shortage), shortage)
    return None


@contextlib.contextmanager
def raising_host_faults(*, began: bool = False) -> Iterator[None]:
    """Turn an exception that a shortage caused into its `HostFault`; others pass as they are.

    `began`: whether what runs inside may have an effect before it fails.
    """
    try:
        yield
    except HostFault:
        raise
    except Exception as error:
        fault = host_fault(error)
        if fault is None:
            raise
        raise HostFault(str(fault), fault.shortage, began=began) from error


def shortage_in(line: str) -> Shortage | None:
    """The shortage that the last line of a Python process which could not even start tells of, if it does."""
    if not line.startswith(_OF_PYTHON) and _OF_THE_LOADER not in line:
        return None
    if _NO_THREAD in line:
        return Shortage.THREADS
    if line.startswith("MemoryError"):
        return Shortage.MEMORY
    if found := _NAMED_NUMBER.search(line):
        number = int(found[1] or found[2])
        return Shortage.PROCESSES if number == errno.EAGAIN else _SHORTAGES.get(number)
    return _named_shortage(line)


def fault_in(said: str) -> HostFault | None:
    """The shortage that a line of a failed program's errors ends with, in the words of the C locale."""
    for line in said.splitlines():
        for number, shortage in (*_SHORTAGES.items(), (errno.EAGAIN, Shortage.PROCESSES)):
            if line.rstrip().endswith(f": {os.strerror(number)}"):
                return HostFault(message_of(shortage), shortage)
    return None


def as_record(fault: HostFault) -> dict[str, Any]:
    """For another process (see `from_record`)."""
    return {"shortage": fault.shortage, "message": str(fault), "began": fault.began}


def from_record(record: Any) -> HostFault | None:
    """What `as_record` made, or None where it is something else."""
    try:
        return HostFault(
            str(record["message"])[:500], Shortage(record["shortage"]), began=record["began"] is True
        )
    except (KeyError, TypeError, ValueError):
        return None


def message_of(shortage: Shortage) -> str:
    """What ran out and what to do about it, for a person, on one line."""
    resource_name, text = _ADVICE[shortage]
    limit = _limit(resource_name) if resource_name else None
    limited = "" if limit is None else f" (limit {limit:,})"
    return text.format(limited=limited, more=max(1024, 2 * (limit or 0)))


def reason_of(error: OSError) -> str:
    """Why a file operation failed, in words: what ran out and what to do about it, or else what the system says."""
    shortage = _shortage_of(error)
    return message_of(shortage) if shortage is not None else error.strerror or str(error)


def system_errno_of(error: BaseException) -> int:
    """What the system said where SQLite failed (see `store.driver.noting_system_errors`); 0 where it is not known."""
    number: int = getattr(error, "system_errno", 0)
    return number


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception itself, what it groups and what caused it, outermost first; each once."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        link = waiting.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        if isinstance(link, BaseExceptionGroup):
            waiting.extend(link.exceptions)
        following = link.__cause__ or link.__context__
        if following is not None:
            waiting.append(following)


def _shortage_of(error: BaseException) -> Shortage | None:
    if isinstance(error, OSError):
        return _SHORTAGES.get(error.errno or 0)
    if isinstance(error, MemoryError):
        return Shortage.MEMORY
    if isinstance(error, ImportError):
        return _named_shortage(str(error))  # the loader of shared objects gives the system's words only
    if isinstance(error, RuntimeError) and _NO_THREAD in str(error):
        return Shortage.THREADS
    if number := system_errno_of(error):
        return _SHORTAGES.get(number)
    return _SQLITE_SHORTAGES.get(getattr(error, "sqlite_errorname", None) or "")


def _named_shortage(text: str) -> Shortage | None:
    return next((shortage for number, shortage in _SHORTAGES.items() if os.strerror(number) in text), None)


def _limit(name: str) -> int | None:
    """A soft limit of this process; None where it has none, or the system does not say."""
    if resource is None:
        return None
    try:
        limit: int = resource.getrlimit(getattr(resource, name))[0]
        return None if limit == resource.RLIM_INFINITY else limit
    except (AttributeError, ValueError, OSError):
        return None
