"""`wk worker queue`, `wk resume --queue` and `wk worker --list`: what is refused, and what the lists say."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.core.cli.conftest import Wk, change, rows

from watchkeeper.runtime.worker import Worker
from watchkeeper.store.place import Place

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


def queue(wk: Wk, folder: Path, *options: object) -> str:
    said = wk(
        "worker",
        "queue",
        "--model",
        "offline/surveyor",
        "--workspace",
        folder,
        "--json",
        *options,
        "the goal",
    )
    assert said.code == 0, said.err
    return str(said.json["session"])


def test_a_queued_session_waits_says_for_what_and_can_be_cancelled(wk, folder, tmp_path):
    session = queue(wk, folder)
    assert wk("sessions").out.splitlines()[1].split()[:5][-1] == "queued"
    (listed,) = wk("sessions", "--json").json
    assert (listed["queued"], listed["live"]) == (True, False)
    shown = wk("show", session)
    assert f"label host:{socket.gethostname()}, folder {folder}; no matching worker" in shown.out
    assert wk("show", session, "--json").json["queue"]["needs"]["path"] == str(folder)
    assert wk("worker", "--list").out == "no workers; start one with `wk worker`\n"
    assert wk("cancel", session).code == 0
    assert rows(tmp_path / "watchkeeper.db", "SELECT status, queued_at FROM sessions") == [
        ("cancelled", None)
    ]
    assert wk("show", session, "--json").json["queue"] is None


def test_a_folder_of_another_machine_needs_a_label_and_is_not_resumed_here(wk: Wk, folder: Path) -> None:
    session = queue(wk, Path("/nowhere/here"), "--on", "gpu", "--on", "mcp:github")
    shown = wk("show", session, "--json").json
    assert shown["queue"]["needs"] == {"labels": ["gpu", "mcp:github"], "path": "/nowhere/here"}
    assert f"`wk resume {session} --queue`" in wk("resume", session).error
    assert wk("resume", session, "--queue").code == 0


def test_a_paused_session_goes_back_to_the_workers_and_a_finished_one_does_not(wk, folder, tmp_path):
    session = queue(wk, folder)
    change(
        tmp_path / "watchkeeper.db", "UPDATE sessions SET status = 'paused', queued_at = NULL, needs = NULL"
    )
    assert wk("resume", session, "--queue").code == 0
    ((status, queued_at),) = rows(tmp_path / "watchkeeper.db", "SELECT status, queued_at FROM sessions")
    assert status == "running"
    assert queued_at is not None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--commit", COMMIT), "requires --git REMOTE"),
        (("--on", "a b"), "is not a valid label"),
        (("--on", "-x"), "is not a valid label"),
        (("--git", "ext::sh -c x", "--commit", COMMIT), "a worker cannot fetch from"),
        (("--git", "https://h/x", "--commit", "--upload-pack=x"), "is not a commit in"),
        (("--git", "https://h/x"), "is not a commit in"),
        (("--workspace", "/nowhere/here"), "does not exist"),
        (("--on", "gpu", "--workspace", "nowhere"), "give an absolute path"),
        (("--budget-usd", "0"), "use a number above 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_queued_is_refused_before_anything_is_written(
    wk: Wk,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    reason: str,
) -> None:
    monkeypatch.chdir(folder)
    said = wk("worker", "queue", "--model", "offline/surveyor", *options, "the goal")
    assert said.code == 2
    assert reason in said.error
    assert not (tmp_path / "watchkeeper.db").exists()


def test_the_host_that_a_worker_starts_drives_the_session_to_its_end_and_notes_where(wk, folder, tmp_path):
    (folder / "main.py").write_text("print('hello')\n")
    session = queue(wk, folder, "--speed", "max")
    path = tmp_path / "watchkeeper.db"
    started: list[list[str]] = []

    class Process:
        pid, returncode = 1, None

        def poll(self) -> None:
            return None

    def start(place: Place, session_id: str, options: Sequence[str]) -> Any:
        started.append([session_id, *options])
        return Process()

    worker = Worker(path, "w-1", slots=1, start=start)
    worker.step()
    ((_, *options),) = started
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a scratch server may have set another
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert wk("host", session, *options).code == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    signal.signal(signal.SIGTERM, before)
    ((status, needs),) = rows(path, "SELECT status, needs FROM sessions")
    assert status == "done"
    assert json.loads(needs)["placed"] == {
        "worker": "w-1", "machine": socket.gethostname(), "workspace": str(folder)
    }  # fmt: skip
    worker.close()
