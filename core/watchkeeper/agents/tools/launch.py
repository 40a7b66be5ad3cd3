"""Runs an agent program as the parent of everything that it starts: `launch HOST_PID [--namespace] [--register] -- COMMAND…`.

The launcher waits for one byte on its standard input, which says that it is contained, and starts the program with
its own standard streams. It adopts what the program's commands leave behind, and ends all of it when the program
ends, when the host dies, and when it is asked to end.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from typing import Any

from watchkeeper.agents.tools.processes import (
    AGENT_VARIABLE,
    NAMESPACE_FLAG,
    SESSION_VARIABLE,
    adopt_orphans,
    die_with_parent,
    kill_descendants,
    mark_limits,
)


def main(arguments: list[str]) -> int:
    """Run the program; returns its exit code."""
    ours, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    parent = int(ours[0])
    if NAMESPACE_FLAG in ours:
        from watchkeeper.agents.tools.sandbox import enter_namespace

        enter_namespace(parent)
    else:
        die_with_parent(parent, signal.SIGTERM)
    adopt_orphans()
    mark_limits(os.environ.get(SESSION_VARIABLE, ""))
    mark_limits(os.environ.get(AGENT_VARIABLE, ""), resource.RLIMIT_RSS)
    if os.read(0, 1) != b"\n":
        return 1
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def end(number: int, frame: Any) -> None:
        kill_descendants(os.getpid())
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    try:
        program = subprocess.Popen(command, env=environ)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)  # the program alone reads the host, and sees the end of its input
    os.dup2(null, 1)
    while True:  # also reaps what was adopted
        ended, status = os.wait()
        if ended == program.pid:
            break
    kill_descendants(os.getpid())
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
