"""What confines a process and all that it starts: namespaces, mounts and Landlock.

Run as a program, it confines itself and becomes a command:

    python -I -S confinement.py [--namespaces] OPTION... -- COMMAND...

The options are those of bubblewrap. With `--namespaces` this program applies them itself (`enter_root`), so that the same
options confine a command where bubblewrap is not installed. Otherwise it runs inside bubblewrap, and only the places of
`--bind` matter: Landlock then lets the command write these and no others.

Only the standard library is imported, and little of it: each confined shell starts this program once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NoReturn

# --- Landlock -----------------------------------------------------------------------------------------------
#
# The kernel refuses what no rule allows (`man 7 landlock`; Linux 5.13 and later). A rule allows a folder with all that is
# in it; nothing can be taken out of it again. That is what mounts are for.

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls; the same on every architecture."""
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_READING = _READ_FILE | _READ_FOLDER
_WRITE_FILE = 1 << 1
_CHANGING = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
"""Writing, and removing and making entries of every kind."""
_REFER, _TRUNCATE = 1 << 13, 1 << 14
"""Moving between folders (from version 2 of Landlock) and cutting files short (from version 3)."""
_SCOPES = 1 << 0 | 1 << 1
"""Abstract sockets and signals (from version 6)."""


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def landlock_version() -> int:
    """The version of Landlock that this system allows; 0 or less if none."""
    if sys.platform != "linux":
        return 0
    return int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))


def restrict(writable: Iterable[str], readable: Iterable[str] | None = None) -> bool:
    """Let this thread, and the processes that it starts, change only `writable` files and folders, and read only these and
    the `readable` ones (None: all). They also reach no abstract socket and no process outside, from version 6 of Landlock.

    It cannot be undone. It holds for the files that bear the names now; a name without a file is ignored. False if this
    system has no Landlock.

    Raises:
        OSError: it has, and a rule could not be made.
    """
    version = landlock_version()
    if version < 1:
        return False
    changing = _CHANGING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    reading = _READING if readable is not None else 0
    scopes = _SCOPES if readable is None and version >= 6 else 0
    asked = _Ruleset(changing | reading, 0, scopes)
    libc = _libc()
    rules = libc.syscall(_CREATE_RULESET, ctypes.byref(asked), ctypes.c_size_t(ctypes.sizeof(asked)), 0)
    _check(rules < 0, "landlock_create_ruleset")
    try:
        for place in writable:
            _allow(libc, rules, place, changing | reading)
        for place in readable or ():
            _allow(libc, rules, place, _READING)
        _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        _check(libc.syscall(_RESTRICT_SELF, ctypes.c_int(rules), 0), "landlock_restrict_self")
    finally:
        os.close(rules)
    return True


def _allow(libc: ctypes.CDLL, rules: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        of_files = access if os.path.isdir(path) else access & (_WRITE_FILE | _READ_FILE | _TRUNCATE)
        rule = _PathBeneath(of_files, place)
        _check(
            libc.syscall(_ADD_RULE, ctypes.c_int(rules), _PATH_BENEATH, ctypes.byref(rule), 0),
            "landlock_add_rule",
        )
    finally:
        os.close(place)


# --- Namespaces and mounts ----------------------------------------------------------------------------------

NEWNS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x0002_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000
"""Flags of `unshare`: mounts, System V shared memory, users, processes, and the network."""
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 4, 8, 4_096, 16_384, 1 << 19
_DETACH = 2
_MADE = 0x80 | 0x100
"""Events of `inotify`: an entry was moved in, or made."""
_MOUNT_SETATTR, _RECURSIVE = 442, 0x8000
_AT_FDCWD = -100
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP = 1, 24
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
_KEPT_RIGHTS = (0, 1, 3)
"""Root keeps CAP_CHOWN, CAP_DAC_OVERRIDE and CAP_FOWNER, so that it still works with files of other users."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
KERNEL_SETTINGS = (
    "sys",
    "sysrq-trigger",
    "irq",
    "bus",
    "fs",
    "acpi",
    "driver",
    "scsi",
    "mtrr",
    "tty",
    "asound",
)
"""In `/proc`: what root could change for the whole machine. Bubblewrap 0.8 leaves `sys` writable for root."""


class _Attributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "users"))


def unshare(flags: int) -> None:
    """Enter new namespaces; without the right to, in a user namespace of the same user.

    Raises:
        OSError: the system does not allow it.
    """
    libc, user, group = _libc(), os.geteuid(), os.getegid()
    if libc.unshare(flags) == 0:
        return
    _check(libc.unshare(NEWUSER | flags), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as table:
            table.write(text)


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """As `mount(2)`.

    Raises:
        OSError: the system does not allow it.
    """
    words = [os.fsencode(word) if word else None for word in (source, target, kind)]
    _check(_libc().mount(*words, ctypes.c_ulong(flags), options.encode() or None), f"mount {target}")


def watch_entries(folders: Iterable[str]) -> int:
    """A descriptor that can be read when an entry is made in one of the folders (`man 7 inotify`).

    Raises:
        OSError: it cannot be had.
    """
    libc = _libc()
    descriptor = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    _check(descriptor < 0, "inotify_init1")
    for folder in folders:
        _check(
            libc.inotify_add_watch(descriptor, os.fsencode(folder), _MADE) < 0, f"inotify_add_watch {folder}"
        )
    return descriptor


def wait_outside(inside: int) -> NoReturn:
    """Hold nothing open, and end as the process `inside` ends."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    while True:
        with suppress(InterruptedError):
            code = os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])
            break
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL has no handler to take away
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))


def enter_root(options: Sequence[str]) -> None:
    """Continue in a child process, as the first process of new namespaces, with the file system that bubblewrap would
    make of the same options. The calling process stays outside, and ends with the child.

    Raises:
        OSError: the system does not allow it.
        ValueError: an option that is not known here.
    """
    words = list(options)
    network = "--unshare-net" not in words
    unshare(NEWNS | NEWPID | NEWIPC | (0 if network else NEWNET))
    parent = os.getppid()
    _libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    if inside := os.fork():
        wait_outside(inside)
    _libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if not network:
        _raise_loopback()
    mount(None, "/", None, MS_REC | MS_SLAVE)
    # The new root is made over /proc, a folder that every system has and that no option has as its source.
    mount("/", "/proc", None, MS_BIND | MS_REC)
    _set_attributes("/proc", MS_RDONLY | MS_NOSUID | MS_NODEV, _RECURSIVE)
    permissions = ""
    while words:
        option = words.pop(0)
        if option in ("--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-net"):
            continue
        if option == "--perms":
            permissions = f"mode={words.pop(0)}"
            continue
        place = words.pop(0)
        if option == "--chdir":
            folder = place
        elif option == "--tmpfs":
            os.makedirs(f"/proc{place}", exist_ok=True)
            mount("tmpfs", f"/proc{place}", "tmpfs", MS_NOSUID | MS_NODEV, permissions or "mode=0755")
        elif option == "--remount-ro":
            _set_attributes(f"/proc{place}", MS_RDONLY)
        elif option == "--dev":
            _make_devices(f"/proc{place}")
        elif option == "--proc":
            mount("proc", f"/proc{place}", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
            for name in KERNEL_SETTINGS:
                if os.path.exists(inner := f"/proc{place}/{name}"):
                    mount(inner, inner, None, MS_BIND | MS_REC)
                    _set_attributes(inner, MS_RDONLY, _RECURSIVE)
        elif option == "--symlink":
            os.symlink(place, f"/proc{words.pop(0)}")
        elif option in ("--bind", "--ro-bind", "--ro-bind-try"):
            target = f"/proc{words.pop(0)}"
            if target == "/proc/":
                continue  # `--ro-bind / /` is where this function begins
            if option == "--ro-bind-try" and not os.path.exists(place):
                continue
            _make_mount_point(target, os.path.isdir(place))
            mount(place, target, None, MS_BIND | MS_REC)
            attributes = MS_NOSUID | MS_NODEV | (MS_RDONLY if option != "--bind" else 0)
            _set_attributes(target, attributes, _RECURSIVE)
        else:
            raise ValueError(option)
        permissions = ""
    os.chdir("/proc")
    _check(_libc().syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _check(_libc().umount2(b".", _DETACH), "umount")
    os.chdir(folder)
    for right in range(64):
        if right not in _KEPT_RIGHTS:
            _libc().prctl(_PR_CAPBSET_DROP, right, 0, 0, 0)


def _set_attributes(path: str, attributes: int, recursive: int = 0) -> None:
    wanted = _Attributes(attributes, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(wanted))
    _check(
        _libc().syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), recursive, ctypes.byref(wanted), size),
        f"mount_setattr {path}",
    )


def _make_mount_point(path: str, is_folder: bool) -> None:
    if os.path.lexists(path):
        return
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _make_devices(folder: str) -> None:
    mount("tmpfs", folder, "tmpfs", MS_NOSUID, "mode=0755")
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            _make_mount_point(f"{folder}/{name}", False)
            mount(f"/dev/{name}", f"{folder}/{name}", None, MS_BIND)
    os.mkdir(f"{folder}/pts")
    mount("devpts", f"{folder}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    for name, target in (("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"),
                         ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2")):  # fmt: skip
        os.symlink(target, f"{folder}/{name}")


def _raise_loopback() -> None:
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(failed: int | bool, what: str) -> None:
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def main(arguments: list[str]) -> NoReturn:
    """Confine this process and become the command."""
    end = arguments.index("--")
    options, command = arguments[:end], arguments[end + 1 :]
    writable = [options[at + 1] for at, option in enumerate(options) if option == "--bind"]
    try:
        if options[:1] == ["--namespaces"]:
            enter_root(options[1:])
        restrict([*writable, "/dev"])
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is started would too
        os.execvp(command[0], command)
    except (OSError, ValueError, KeyError) as error:
        print(
            f"confinement: {error.strerror if isinstance(error, OSError) else error}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
