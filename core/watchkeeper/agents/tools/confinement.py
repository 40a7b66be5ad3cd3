"""In a worker: the kernel's word that nothing is written outside the workspace.

The file tools check each path before they open it, but another process may swap a symbolic link in between the two.
Landlock (Linux 5.13 and later; `man 7 landlock`) makes the kernel refuse such a write, whatever the path said. Elsewhere
the tools' own check stands alone.
"""

from __future__ import annotations

import ctypes
import os
import sys

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls; the same on every architecture."""
_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

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


def confine_writes(workspace: str) -> bool:
    """Let this process, its threads-to-be and its children change files below `workspace` only; False where that is not
    possible. It cannot be undone, and holds for the folder that now bears the name."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return False
    changing = _CHANGING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    ruleset = _Ruleset(changing)
    rules = libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(ctypes.sizeof(ruleset)), 0)
    if rules < 0:
        return False
    try:
        allowed = _allow(libc, rules, workspace, changing) and _allow(libc, rules, os.devnull, _WRITE_FILE)
        return (
            allowed
            and libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            and libc.syscall(_RESTRICT_SELF, ctypes.c_int(rules), 0) == 0
        )
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, access: int) -> bool:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        rule = _PathBeneath(access, place)
        return bool(libc.syscall(_ADD_RULE, ctypes.c_int(rules), _PATH_BENEATH, ctypes.byref(rule), 0) == 0)
    finally:
        os.close(place)
