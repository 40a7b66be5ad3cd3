"""What Linux says in `/proc` of the processes of this machine.

It says nothing of a process that has ended, and little of another user's. Elsewhere than on Linux it says nothing at
all. Each function but `has_ended` then gives an empty answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from watchkeeper.records.errors import host_fault

_ENDED = ("Z", "X")
"""States of a process that has ended, and that its parent has not asked for."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """A process, as its `stat` has it."""

    name: str
    """As the program gave it: hostile."""
    state: str
    parent: int
    cpu_ticks: int
    """What it used of processors, in clock ticks."""
    start_ticks: int
    """When it began, in clock ticks since boot. With its number, this identifies a process until the next boot."""

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED


def has_ended(pid: int) -> bool:
    """Whether no process of this machine has this number, on any system; False where that cannot be known."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # another user's, or not a number of a process
    return False


def processes() -> list[int]:
    """All processes.

    Raises:
        OSError: a resource of the machine ran out. What runs is not known then.
    """
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:
        if host_fault(error) is not None:
            raise
        return []


def file_of(pid: int, name: str, *, raises: bool = False) -> bytes:
    """A file of a process, such as `cmdline`.

    Raises:
        OSError: with `raises`, a resource of the machine ran out.
    """
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError as error:
        if raises and host_fault(error) is not None:
            raise
        return b""


def stat_of(pid: int, *, raises: bool = False) -> ProcessStat | None:
    """The `stat` of a process; None where there is none.

    Raises:
        OSError: with `raises`, a resource of the machine ran out.
    """
    head, _, tail = file_of(pid, "stat", raises=raises).rpartition(b")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    name = head.partition(b"(")[2].decode(errors="replace")
    return ProcessStat(
        name, fields[0].decode(), int(fields[1]), int(fields[11]) + int(fields[12]), int(fields[19])
    )


def parents_of(pid: int) -> Iterator[int]:
    """The parent of a process, the parent of that, and so on, without the first process of the system."""
    seen = {pid}
    while (stat := stat_of(pid)) is not None and stat.parent > 1 and stat.parent not in seen:
        pid = stat.parent
        seen.add(pid)
        yield pid


def children_of(pid: int) -> list[int]:
    """The child processes of a process that have not been reaped."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for thread in threads for child in file_of(pid, f"task/{thread}/children").split()]


def folder_of(pid: int) -> str | None:
    """The current folder of a process."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None


def open_files_of(pid: int) -> Iterator[str]:
    """What a process has open, by name."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for one in descriptors:
        try:
            yield os.readlink(f"/proc/{pid}/fd/{one}")
        except OSError:
            continue
