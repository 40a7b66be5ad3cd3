"""In a worker: the kernel's word that nothing outside the workspace is written or read.

The file tools check each path before they open it, but another process may swap a symbolic link in between
the two. Landlock (Linux 5.13 and later; `man 7 landlock`) makes the kernel refuse what such a link leads to,
whatever the path said. Elsewhere the tools' own check stands alone.

What the worker itself is made of stays readable: the interpreter, its libraries and the system's, and
programs.
"""

from __future__ import annotations

import ctypes
import mimetypes
import os
import sys
from collections.abc import Iterator

from watchkeeper.records.host_faults import host_fault

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


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


_PROGRAMS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store")
_SETTINGS = (
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/openssl.cnf",
)
"""What programs read before they begin. Nothing of `/etc` else, `/home`, `/root`, `/tmp`, `/var` or
`/proc`."""


def confine(workspace: str) -> bool:
    """Let this process, its threads-to-be and its children change files below `workspace` only, and read only
    those and what programs are made of; False where that is not possible.

    It cannot be undone, and holds for the folder that now bears the name.

    Raises:
        OSError: the machine ran out of something that this needs; nothing is confined yet.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return False
    changing = _CHANGING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    ruleset = _Ruleset(changing | _READING)
    rules = libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(ctypes.sizeof(ruleset)), 0)
    if rules < 0:
        if (
            host_fault(failed := OSError(ctypes.get_errno(), "no ruleset of Landlock can be made"))
            is not None
        ):
            raise failed
        return False
    try:
        allowed = _allow(libc, rules, workspace, changing | _READING)
        allowed = allowed and _allow(libc, rules, os.devnull, _WRITE_FILE | _READ_FILE)
        for place in _own_places():
            _allow(libc, rules, place, _READING if os.path.isdir(place) else _READ_FILE)
        return (
            allowed
            and libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            and libc.syscall(_RESTRICT_SELF, ctypes.c_int(rules), 0) == 0
        )
    finally:
        os.close(rules)


def _own_places() -> Iterator[str]:
    """Where this worker's own code, and programs, lie: no user's files, unless somebody keeps them in such a
    place."""
    yield from _PROGRAMS
    yield from _SETTINGS
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(sys.executable))
    yield from map(str, mimetypes.knownfiles)
    yield from (place for place in sys.path if os.path.isabs(place))
    yield from (place for place in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(place))


def _allow(libc: ctypes.CDLL, rules: int, path: str, access: int) -> bool:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if host_fault(error) is not None:
            raise  # else what is there would be closed to this worker for good
        return False
    try:
        rule = _PathBeneath(access, place)
        return bool(libc.syscall(_ADD_RULE, ctypes.c_int(rules), _PATH_BENEATH, ctypes.byref(rule), 0) == 0)
    finally:
        os.close(place)
