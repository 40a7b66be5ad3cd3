"""Records the history of every Watchkeeper process that finds this folder on its PYTHONPATH (`tests.faults.history`).

Each claim and each committed transaction becomes a line of JSON in `WATCHKEEPER_TEST_HISTORY/PID`, with the time
before it was asked for and the time when it was known, by the monotonic clock that the processes of a machine share.
`WATCHKEEPER_TEST_CLOCK` names a file by which a test steps the clock of a process.
The folder is looked up at each line: a process may be forked after it imported this, and be told another one then.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
import threading
import time
from typing import Any

FOLDER = "WATCHKEEPER_TEST_HISTORY"
_write = os.write  # tests of a full disk put something else there
_files: dict[tuple[str, int], int] = {}


def record(**said: object) -> None:
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    mine = folder, os.getpid()
    if mine not in _files:  # it stays open: later there may be no descriptor left
        _files[mine] = os.open(
            os.path.join(folder, str(mine[1])), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
    _write(_files[mine], (json.dumps(said | {"pid": mine[1]}) + "\n").encode())


def watch(module: Any) -> None:
    """Record what the module's stores do, and the writer of this process."""
    from watchkeeper.store.writer import Group as group_type
    from watchkeeper.store.writer import Writer as writer_type

    store = module.SessionStore
    claim, fence = store.claim.__func__, group_type.fence
    retried, single = writer_type._transact_with_retries, writer_type._transact
    inside = threading.local()

    def claimed(cls: Any, path: Any, session_id: str, clock: Any, **about: Any) -> Any:
        asked = time.monotonic()
        made = claim(cls, path, session_id, clock, **about)
        record(op="claim", session=session_id, epoch=made.epoch, asked=asked, known=time.monotonic())
        return made

    def fenced(self: Any, session_id: str, epoch: int, now: float) -> Any:
        found = fence(self, session_id, epoch, now)
        self.__dict__.setdefault("first", {}).setdefault((session_id, epoch), found.event_seq)
        return found

    def told(self: Any, asked: float) -> None:
        group = self._group
        for (session_id, epoch), at_end in group.fences.items():
            record(
                op="commit", session=session_id, epoch=epoch, first=group.first[session_id, epoch] + 1,
                last=at_end.event_seq, asked=asked, known=time.monotonic(),
            )  # fmt: skip

    def with_retries(self: Any, items: Any) -> Any:
        asked, inside.retries = time.monotonic(), True
        try:
            outcomes = retried(self, items)
        finally:
            inside.retries = False
        told(self, asked)
        return outcomes

    def once(self: Any, items: Any, **about: Any) -> Any:
        asked = time.monotonic()
        outcomes = single(self, items, **about)
        if not getattr(inside, "retries", False):
            told(self, asked)
        return outcomes

    store.claim = classmethod(claimed)
    group_type.fence = fenced
    writer_type._transact_with_retries, writer_type._transact = with_retries, once
    if os.environ.get("WATCHKEEPER_TEST_NO_FENCE"):
        take_fences_out()


def take_fences_out() -> None:
    """What the checker must find: hosts that write whatever epoch it is."""
    from watchkeeper.store import engine, postgres

    for owner, name in (
        (engine.SqliteEngine, "fence"), (postgres.PostgresEngine, "fence"), (postgres, "EXPECTING_FENCE"),
    ):  # fmt: skip
        setattr(owner, name, getattr(owner, name).replace("lease_epoch = ?3", "?3 = ?3"))


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "watchkeeper.store.transaction":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def load(module: Any) -> None:
            execute(module)
            watch(module)

        spec.loader.exec_module = load
        return spec


def step_clock(file: str) -> None:
    """Let this process's clock differ from the machine's by the seconds that the file has at the moment."""
    now = time.time

    def stepped() -> float:
        try:
            with open(file, encoding="ascii") as said:
                return now() + float(said.read() or 0)
        except OSError:
            return now()

    time.time = stepped


if "WATCHKEEPER_TEST_CLOCK" in os.environ:
    step_clock(os.environ["WATCHKEEPER_TEST_CLOCK"])
if os.environ.get(FOLDER):
    sys.meta_path.insert(0, Finder())
