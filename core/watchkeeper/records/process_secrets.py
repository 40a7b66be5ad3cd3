"""Secret variables: hidden from other processes of the same user.

The kernel shows the environment with which a program was started in `/proc/PID/environ`, and its memory in
`/proc/PID/mem`, to every process of the same user: so also to a command that a model runs. `os.environ.pop`
does not change the kernel's copy. Therefore:

- a program that finds secrets in its environment restarts itself without them, and reads them from a pipe
  (`restart_without_secrets`, `receive`); programs that it starts get them in the same way (`handed_over`);
- a process with secrets is not *dumpable* (`deny_inspection`, Linux), which closes `environ` and `mem` to all
  but root.

After `receive`, `os.environ` holds the secrets as if they had been inherited, but the C library's environment
does not: a process that is started with an inherited environment does not get them.

This module imports nothing heavy: it is the first that runs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from watchkeeper.records.errors import BadInput
from watchkeeper.records.secret_shapes import PUBLIC_NAMES, SECRET_NAMES

HANDOVER_VARIABLE = "WATCHKEEPER_SECRETS_FD"
"""Names the descriptor from which a program that was just started reads its secret variables."""

_PR_SET_DUMPABLE = 4
_F_SETPIPE_SZ = 1031
_PIPE_BYTES = 65_536
"""What a pipe holds without being asked to hold more."""

_WORD = re.compile(r"(?<![\w/.~+=-])[A-Za-z0-9_+=-]{20,}(?![\w/.])")
_URL_PASSWORD = re.compile(r"://[^/\s]*:[^/\s]*@")


class HandoverFailed(BadInput):
    """The secrets cannot be handed to a new process; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What a new process is started with, for `subprocess`: `env=environment, pass_fds=descriptors`."""

    environment: dict[str, str]
    descriptors: tuple[int, ...]


def secret_variables(environ: Mapping[str, str], config: str = "") -> dict[str, str]:
    """The variables that hold, or may hold, a secret: name → value.

    Those with the name of a secret, those that `config` (the text of a configuration file) names, and those
    whose value looks like a token or a URL with a password. One too many costs nothing: programs read all of
    them as before.
    """
    found = {}
    for name, value in environ.items():
        if not value or name == HANDOVER_VARIABLE:
            continue
        named = f'"{name}"' in config or f"'{name}'" in config
        if named or (not PUBLIC_NAMES.search(name) and (SECRET_NAMES.search(name) or _looks_secret(value))):
            found[name] = value
    return found


def _looks_secret(value: str) -> bool:
    if any(re.search("[0-9]", word) and re.search("[A-Za-z]", word) for word in _WORD.findall(value)):
        return True
    return _URL_PASSWORD.search(value) is not None


def restart_without_secrets(config: str = "", arguments: Sequence[str] | None = None) -> None:
    """Start this program again, in this process, without secrets in the environment that the kernel shows.

    `arguments`: those of the command line from then on; None: as they are.

    Returns where there are none, and where the interpreter runs another program than ours, which cannot be
    started again.

    Raises:
        HandoverFailed: the secrets do not fit into a pipe, or the program cannot be started.
    """
    if not _runs_our_program() or not secret_variables(os.environ, config):
        return
    with handed_over(config) as handover:
        for descriptor in handover.descriptors:
            os.set_inheritable(descriptor, True)
        try:
            before = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
            words = sys.argv[1:] if arguments is None else arguments
            os.execve(sys.executable, [sys.executable, *before, *words], handover.environment)
        except OSError as error:
            raise HandoverFailed(
                f"cannot restart {sys.executable} without API keys in its environment ({error.strerror})"
            ) from None


def receive() -> None:
    """Take the secrets that the process which started this program passes on, if there are any."""
    descriptor = os.environ.pop(HANDOVER_VARIABLE, "")
    if not descriptor.isdigit():
        return
    deny_inspection()  # first: from now on there is something to hide
    try:
        with open(int(descriptor), "rb") as pipe:
            data = pipe.read()
    except OSError:
        return  # the variable was inherited from a program that has received already
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals:
            os.environ[os.fsdecode(name)] = os.fsdecode(value)
            os.unsetenv(
                name
            )  # `os.environ` keeps it; what is started with an inherited environment does not get it


@contextmanager
def handed_over(config: str = "") -> Iterator[Handover]:
    """What to start a program of ours with: an environment without secrets, and a pipe that holds them.

    Raises:
        HandoverFailed: the secrets do not fit into a pipe.
    """
    secrets = secret_variables(os.environ, config)
    plain = {
        name: value for name, value in os.environ.items() if name not in secrets and name != HANDOVER_VARIABLE
    }
    if not secrets:
        yield Handover(plain, ())
        return
    entries = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in secrets.items()]
    descriptor = _pipe_with(b"\0".join(entries))
    try:
        yield Handover(plain | {HANDOVER_VARIABLE: str(descriptor)}, (descriptor,))
    finally:
        os.close(descriptor)


def deny_inspection() -> bool:
    """Close this process's environment and memory to other processes of its user (Linux); False where that is
    not possible.

    It also ends core dumps and debuggers that are attached without root. It holds until the process executes
    a program, and for the processes that it forks until then.
    """
    return _set_dumpable(0)


def allow_inspection() -> bool:
    """Take `deny_inspection` back: this process holds no secret."""
    return _set_dumpable(1)


def _set_dumpable(value: int) -> bool:
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, value, 0, 0, 0) == 0)


def _runs_our_program() -> bool:
    """Whether the interpreter was started for `wk`, `python -m watchkeeper` or the dashboard: not by a
    program that imports us."""
    main = sys.modules.get("__main__")
    if not sys.executable or not hasattr(sys, "orig_argv"):
        return False
    module = getattr(getattr(main, "__spec__", None), "name", None)
    if module is not None:
        return module in ("watchkeeper.__main__", "watchkeeper_tui.__main__")
    script = os.path.basename(getattr(main, "__file__", None) or "")
    return script in ("wk", "watchkeeper") and sys.orig_argv[-len(sys.argv) :][1:] == sys.argv[1:]


def _pipe_with(data: bytes) -> int:
    """The reading end of a pipe that holds `data` and has no writer."""
    reading, writing = os.pipe()
    try:
        if len(data) > _PIPE_BYTES and sys.platform == "linux":
            import fcntl

            fcntl.fcntl(writing, _F_SETPIPE_SZ, len(data))
        os.set_blocking(writing, False)
        fits = os.write(writing, data) == len(data)
    except (BlockingIOError, PermissionError):
        fits = False
    finally:
        os.close(writing)
    if not fits:
        os.close(reading)
        raise HandoverFailed(
            f"the secret environment variables take {len(data):,} bytes, more than a pipe can hold; unset some"
        )
    return reading
