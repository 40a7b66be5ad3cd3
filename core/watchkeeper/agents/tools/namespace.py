"""A worker as the first process of a PID namespace of its own: when it ends, the kernel ends all that it
started.

`man 7 pid_namespaces`. It needs root, or a system that lets users make user namespaces, and a `/proc` of its
own, without which programs would look each other up under wrong numbers.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
from contextlib import suppress
from typing import NoReturn

from watchkeeper.agents.tools.processes import die_with_parent

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x0002_0000, 0x1000_0000, 0x2000_0000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 16_384, 1 << 19
_PR_SET_PDEATHSIG = 1


def enter_namespace(parent_pid: int) -> None:
    """Go on as the first process of a new namespace. The process that was called stays outside, and ends as
    this one ends.

    `parent_pid` is the host: when it dies, the process outside is killed, and with it this one. Call it
    before there are threads.

    Raises:
        OSError: the system does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWPID | _CLONE_NEWNS) != 0:
        _check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWPID | _CLONE_NEWNS), "unshare")
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as table:
                table.write(text)
    die_with_parent(parent_pid, signal.SIGKILL)
    outside_lives, outside = os.pipe()
    inside = os.fork()
    if inside:
        os.close(outside_lives)
        _wait_outside(inside)
    os.close(outside)
    _check(libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl")
    if select.select([outside_lives], [], [], 0)[0]:
        os._exit(1)  # the process outside died before this one could ask to be told
    os.close(outside_lives)
    _check(libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "mount /")
    _check(libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None), "mount /proc")


def _wait_outside(inside: int) -> NoReturn:
    """Hold nothing open, and end as the process inside ends."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    while True:
        with suppress(InterruptedError):
            code = os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])
            break
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL has no handler to take away
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":  # whether it works here: exit code 0, or one line
    try:
        enter_namespace(os.getppid())
    except OSError as error:
        sys.exit(error.strerror)
    sys.exit(0 if os.readlink("/proc/self") == "1" else "its /proc shows other processes")
