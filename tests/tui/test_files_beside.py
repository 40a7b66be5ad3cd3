"""A dashboard whose database loses its `-wal` or `-shm` to somebody's tidiness shows what is written from
then on."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.support.places import workspace_in

from watchkeeper.runtime.lifecycle import NewSession, create_session
from watchkeeper_tui.reader import Reader
from watchkeeper_tui.snapshot import Snapshot

RENAME = """
import sys
from pathlib import Path
from watchkeeper.store.library import rename_session as rename
rename(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
"""


def elsewhere(path: Path, session: str, title: str) -> None:
    """Another process gives the session a title."""
    subprocess.run([sys.executable, "-c", RENAME, str(path), session, title], check=True)


@pytest.mark.parametrize("suffixes", [["-shm"], ["-wal", "-shm"]], ids=["index of the log", "both"])
def test_what_is_written_after_a_file_was_removed_is_shown(tmp_path: Path, suffixes: list[str]) -> None:
    path = tmp_path / "w.db"
    session = create_session(path, NewSession("goal", workspace_in(tmp_path), "offline/surveyor"))
    shown: list[Snapshot] = []
    seen = threading.Event()

    def publish(snapshot: Snapshot) -> None:
        shown.append(snapshot)
        seen.set()

    def until(title: str) -> None:
        deadline = time.monotonic() + 60
        while not (
            shown
            and shown[-1].session is not None
            and shown[-1].session.title == title
            and not shown[-1].problem
        ):
            assert time.monotonic() < deadline, shown[-1].problem if shown else "nothing was shown"
            seen.wait(0.1)
            seen.clear()

    reader = Reader(path, session, publish)
    reader.start()
    try:
        elsewhere(path, session, "before")
        until("before")
        for suffix in suffixes:
            Path(f"{path}{suffix}").unlink()
        elsewhere(path, session, "after")
        until("after")
        elsewhere(path, session, "once more")
        until("once more")
    finally:
        reader.close()
        reader.join(10)
