"""What a killed host's tools left running ends before the next host's first step, however it tried to get
away."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.core.messages_api.scripts import Notes, says, uses
from tests.support.forked import Forked, Process
from tests.support.messages_server import MessagesServer
from tests.support.other_user import Place, processes, until
from tests.support.places import query
from tests.support.scripted import PlannedRun, ScriptedModel, call, said, task, turns

from watchkeeper.agents.tools import containment
from watchkeeper.agents.tools.containment import Kind, SessionContainment, choose
from watchkeeper.agents.tools.processes import (
    SESSION_VARIABLE,
    descendants,
    kill_identified,
    kill_marked,
    start_ticks,
)
from watchkeeper.records.errors import BadInput
from watchkeeper.records.ports import SystemClock
from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session
from watchkeeper.runtime.run_session import Runtime
from watchkeeper.store.transaction import SessionStore

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere there is a register alone, without a mark"
)

WAITING = f"late-effect-of-{os.getpid()}"
"""In the arguments of the process that waits to have its effect."""
ESCAPE = f"(env -i setsid sh -c 'read go < late.fifo; touch LATE' {WAITING} &)"


def allowed(kind: Kind) -> str:
    try:
        choose(kind)
    except BadInput as error:
        return str(error)
    return ""


@pytest.fixture
def seen() -> list[list[int]]:
    """Of each request of the second host: which processes of the first one's tool there were."""
    return []


@pytest.fixture
def server(seen: list[list[int]]) -> Iterator[MessagesServer]:
    def work(name: str, turn: int, body: object) -> object:
        if turn == 0:
            return [
                uses(
                    "bash",
                    command=f"mkfifo late.fifo; {ESCAPE}; {ESCAPE}; touch began; until [ -e done ]; do sleep 0.02; done",
                )
            ]
        if turn == 1 and "ended" in str(body["messages"][-1]):  # type: ignore[index]
            return [uses("bash", command="touch again; until [ -e done-again ]; do sleep 0.02; done")]
        seen.append(processes(WAITING, "late.fifo"))
        return [says("done")]

    with MessagesServer(Notes([task("act", role="coder")], work=work)) as made:
        yield made


def wk(place: Place, *arguments: str) -> Process:
    if place.as_is:
        return Forked([*arguments, "--headless", "--db", str(place.path)], place.environment)
    return place.wk(*arguments, "--headless", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_and_kill(place: Place, also_workers: bool) -> None:
    """Stop and kill a host whose tool has let processes go, and is still running."""
    run = ("run", "reach the goal", "--model", "anthropic/m", "--allow", "bash")
    host = wk(place, *run, "--workspace", str(place.workspace))
    until((place.workspace / "began").exists, "the command ran")
    left = until(
        lambda: len(found := processes(WAITING, "late.fifo")) == 2 and found,
        "two processes wait for their effect",
    )
    kinds = query(place.path, "SELECT kind, ended_at FROM containments")
    assert kinds == [(place.environment["WATCHKEEPER_CONTAINMENT"], None)], "committed before the first tool"
    host.send_signal(signal.SIGSTOP)
    if also_workers:
        workers = [
            pid
            for pid in descendants(host.pid)
            if pid not in left and "agents.tools.worker" in command_of(pid)
        ]
        assert workers
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
    host.kill()
    assert host.wait(30) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("kind", "also_workers"),
    [
        *((kind, True) for kind in Kind),
        pytest.param(next(iter(Kind)), False, marks=pytest.mark.long),
        pytest.param("namespace-of-a-user", True, marks=pytest.mark.long),
    ],
)
def test_no_effect_of_a_killed_hosts_tool_comes_after_the_next_hosts_first_step(
    kind: str, also_workers: bool, server: MessagesServer, seen: list[list[int]]
) -> None:
    as_is = kind != "namespace-of-a-user"
    used = Kind(kind) if as_is else Kind.NAMESPACE
    if reason := allowed(used):
        pytest.skip(reason)
    place = Place(server.url, as_is=as_is, ANTHROPIC_API_KEY="test-key", WATCHKEEPER_CONTAINMENT=used)
    try:
        run_and_kill(place, also_workers)
        (place.workspace / "done").touch()  # what runs on may do so
        second = wk(place, "resume", "last")
        _, err = second.communicate(timeout=90)
        assert second.returncode == 0, err
        assert seen == [[]]
        with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):  # nobody waits any more
            os.open(place.workspace / "late.fifo", os.O_WRONLY | os.O_NONBLOCK)
        assert not (place.workspace / "LATE").exists()
        assert query(place.path, "SELECT count(*) FROM containments WHERE ended_at IS NULL") == [(0,)]
        assert query(place.path, "SELECT count(*) FROM tool_processes") == [(0,)]
        for (path,) in query(place.path, "SELECT json_extract(detail, '$.path') FROM containments"):
            assert path is None or not Path(path).exists()
    finally:
        place.end()


def test_a_cancelled_session_leaves_nothing_running(server: MessagesServer) -> None:
    place = Place(server.url, as_is=True, ANTHROPIC_API_KEY="test-key", WATCHKEEPER_CONTAINMENT="register")
    try:
        run_and_kill(place, also_workers=True)
        cancelled = Forked(["cancel", "last", "--db", str(place.path)], place.environment)
        _, err = cancelled.communicate(timeout=60)
        assert cancelled.returncode == 0, err
        assert processes(WAITING, "late.fifo") == []
        assert not (place.workspace / "LATE").exists()
    finally:
        place.end()


async def test_what_outlives_a_call_is_registered_before_the_model_reads_the_result(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHKEEPER_CONTAINMENT", "register")
    registered: list[set[tuple[int, int]]] = []

    def work(name: str, request: Any) -> Any:
        if turns(request) == 0:
            return [call("bash", {"command": f"(env -i setsid sleep 600 & echo $! > {tmp_path / 'pid'})"})]
        registered.append(set(query(path, "SELECT pid, start_ticks FROM tool_processes")))
        pid = int((tmp_path / "pid").read_text())
        assert (pid, start_ticks(pid)) in registered[0]
        return [said("done")]

    path = tmp_path / "watchkeeper.db"
    runtime = Runtime(path, model=ScriptedModel(PlannedRun([task("one", role="coder")], work)))
    session = runtime.start("reach the goal", workspace=workspace, settings=SessionSettings(allow=("bash",)))
    assert (await asyncio.wait_for(runtime.run(session), 60)).exit_code == 0
    assert registered
    assert start_ticks(int((tmp_path / "pid").read_text())) is None
    assert query(path, "SELECT kind FROM containments WHERE ended_at IS NOT NULL") == [("register",)]


async def test_a_host_without_descriptors_pauses_at_once_and_leaves_what_it_cannot_end_to_the_next_one(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := allowed(Kind.CGROUP):
        pytest.skip(reason)
    path = tmp_path / "watchkeeper.db"
    new = NewSession("reach the goal", workspace, "test/scripted", SessionSettings())
    store = SessionStore.claim(
        path, create_session(path, new), SystemClock(), pid=os.getpid(), host_name="here"
    )
    held = SessionContainment(store, "mark", Kind.CGROUP)
    process = subprocess.Popen(["sleep", "600"])  # noqa: ASYNC220
    try:
        await held.prepare()
        await held.admit(process.pid, "")
        with monkeypatch.context() as short:
            short.setattr(Path, "write_text", _no_descriptor)
            short.setattr(containment, "END_SECONDS", 1e6)  # what cannot be ended is not waited for
            await held.aclose()
        assert process.poll() is None
        assert await SessionContainment(store, "mark").end_earlier() == []
        assert process.wait(10) == -signal.SIGKILL
        assert query(path, "SELECT count(*) FROM containments WHERE ended_at IS NULL") == [(0,)]
    finally:
        process.kill()
        process.wait()
        store.close()


def _no_descriptor(*_: Any, **__: Any) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_marked_process_that_leads_no_group_is_killed_at_once() -> None:
    process = subprocess.Popen(["sh", "-c", "sleep 600; true"], env=os.environ | {SESSION_VARIABLE: WAITING})
    try:
        assert kill_marked(SESSION_VARIABLE, WAITING, 5) == []
        assert process.wait(1) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def test_a_number_that_another_process_bears_by_now_is_left_alone() -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        ticks = start_ticks(process.pid)
        assert ticks is not None
        assert not kill_identified(process.pid, ticks - 1)
        assert process.poll() is None
        assert kill_identified(process.pid, ticks)
        assert process.wait(10) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""
