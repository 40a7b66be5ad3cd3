"""Beside a host that lives: who drives, control from another shell, and Ctrl+C. The provider holds its
answers, so nothing races."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.core.cli.conftest import Wk, change, rows
from tests.core.messages_api.ground import MODEL, Ground, wait_until
from tests.core.messages_api.scripts import NOTES, Notes, says, uses
from tests.support.answers import Body, Held, Reply, text
from tests.support.forked import Process
from tests.support.scripted import task

from watchkeeper.records.errors import BadInput
from watchkeeper.runtime import control, run_session
from watchkeeper.store.lease import probe
from watchkeeper_tui.control import RunRequest, start_run


class Stage:
    """A run whose task `one` stands still at its second turn until `go` is set."""

    def __init__(self, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ground = ground
        self.go = threading.Event()
        self.standing = threading.Event()
        self.steered = threading.Event()
        self.notes = Notes(NOTES[:1], work=self._work)
        ground.serve(self.notes)
        monkeypatch.setenv("WATCHKEEPER_DB", str(ground.path))
        monkeypatch.setenv("ANTHROPIC_BASE_URL", ground.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")

    def _work(self, name: str, turn: int, body: Body) -> Any:
        if "turn left" in str(body["messages"]):
            self.steered.set()
        if turn == 0:
            return [uses("remember", text="begun")]
        if turn == 1:
            self.standing.set()
            return Held(Reply([text("half way"), {"type": "tool_use", "id": "t1", "name": "remember", "input": {"text": "held"}}]),
                        until=self.go)  # fmt: skip
        return [says("done")]

    def start(self) -> Process:
        process = self.ground.start_run()
        assert self.standing.wait(60), "the run did not come to its second turn"
        return process

    def release_once(self, happened: Callable[[], object]) -> None:
        """Let the provider answer once something has happened."""
        wait_until(happened)
        self.go.set()

    def ended(self, process: Process) -> int:
        process.communicate(timeout=60)
        return process.returncode


def finish(wk: Wk) -> str:
    """`wk resume last` in the foreground; gives how the session ended."""
    resumed = wk("resume", "last", "--headless", "--json")
    assert resumed.code == 0, resumed.err
    status: str = json.loads(resumed.out.splitlines()[-1])["status"]
    return status


@pytest.fixture
def stage(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(ground, monkeypatch)


def test_while_a_host_lives_others_look_steer_and_pause_but_do_not_drive(stage: Stage, wk: Wk) -> None:
    process = stage.start()
    for command in ("resume", "resume --headless"):
        refused = wk(command.split()[0], "last", *command.split()[1:])
        assert refused.code == 4
        assert f"pid {process.pid}" in refused.error
    assert wk("show", "last", "--json").json["session"]["live"] is True
    assert wk("sessions", "--json").json[0]["live"] is True
    assert f"background process {process.pid}" in wk("show", "last").out

    assert wk("steer", "last", "one", "turn left", "--json").json["status"] == "applied"
    for wrong in (["one"], ["one", "hi", "--all"]):
        refused = wk("steer", "last", *wrong)
        assert refused.code == 2
        assert "usage: wk steer SESSION" in refused.error
    said = wk("steer", "last", "--all", "Use tabs.")
    assert "2 agents read it before their next turn; new agents get it in their prompt" in said.out
    assert wk("budget", "last", "--tokens", "1000000").code == 0
    paused = wk("pause", "last", "--json").json
    assert paused.keys() >= {"command", "kind", "status", "result"}
    assert paused["status"] == "applied"
    stage.go.set()
    assert stage.ended(process) == 5
    shown = wk("show", "last", "--json").json
    assert (shown["session"]["status"], shown["session"]["live"]) == ("paused", False)
    assert {"kind": "tokens", "amount": 1_000_000.0}.items() <= shown["budgets"][0].items()

    assert finish(wk) == "done"
    assert stage.steered.is_set()
    assert stage.notes.asked["one", 1] == 1, (
        "a pause at the step boundary wasted the reply that was on its way"
    )
    stage.ground.assert_sound()


def test_pause_now_abandons_the_call_without_counting_an_error(stage: Stage, wk: Wk) -> None:
    process = stage.start()
    assert wk("pause", "last", "--now").code == 0
    assert stage.ended(process) == 5
    shown = wk("show", "last", "--json").json
    assert shown["session"]["errors"] == 0
    assert stage.ground.query("SELECT count(*) FROM model_calls WHERE status = 'abandoned'") == [(1,)]
    stage.go.set()
    assert finish(wk) == "done"
    stage.ground.assert_sound()


def test_cancel_ends_the_session_for_good(stage: Stage, wk: Wk) -> None:
    process = stage.start()
    assert "omit --now" in wk("cancel", "last", "--now").error
    assert wk("cancel", "last").code == 0
    assert stage.ended(process) == 1
    assert wk("show", "last", "--json").json["session"]["status"] == "cancelled"
    resumed = wk("resume", "last", "--json")
    assert (resumed.code, resumed.json["status"]) == (1, "cancelled")
    assert "already cancelled" in wk("cancel", "last").error
    assert wk("steer", "last", "one", "hello").code == 2


def test_ctrl_c_once_finishes_the_step_and_exits_130_and_the_resume_finishes(stage: Stage, wk: Wk) -> None:
    process = stage.start()
    process.send_signal(signal.SIGINT)
    stage.release_once(lambda: True)
    assert stage.ended(process) == 130
    assert stage.ground.query("SELECT status FROM sessions") == [("paused",)]
    assert finish(wk) == "done"
    assert stage.notes.asked["one", 1] == 1
    stage.ground.assert_done()


def test_ctrl_c_twice_exits_at_once_and_is_still_resumable(stage: Stage, wk: Wk) -> None:
    process = stage.start()
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)  # two signals of one kind that come together are delivered as one
    process.send_signal(signal.SIGINT)
    assert stage.ended(process) == 130, "it waited for the provider"
    assert not stage.go.is_set()
    stage.go.set()
    assert finish(wk) == "done"
    stage.ground.assert_done()


def test_ctrl_c_of_a_terminal_reaches_the_tools_processes_too_and_spoils_nothing(wk, tmp_path):
    """A terminal signals the whole group of processes: the run's workers must not die of it, nor say
    anything."""
    workspace = tmp_path / "workspace"
    for part in ("a", "b"):
        (workspace / part).mkdir(parents=True)
        (workspace / part / "main.py").write_text("print(1)\n" * 50)
    command = [
        sys.executable, "-m", "watchkeeper", "demo", "--headless", "--speed", "20", "--workspace", str(workspace),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "turn 1 " in line and "planner" not in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    assert "wk resume" in out.splitlines()[-1]
    assert wk("show", "last", "--json").json["session"]["status"] == "paused"
    assert finish(wk) == "done"
    shown = wk("show", "last", "--json").json
    assert {(one["status"], one["attempt"], one["errors"]) for one in shown["plan"]["tasks"]} == {
        ("done", 1, 0)
    }
    assert shown["tool_calls"].keys() == {"done"}


def test_a_killed_host_leaves_no_stale_lock_and_is_shown_stopped(stage: Stage, wk: Wk) -> None:
    process = stage.start()
    process.kill()
    stage.ended(process)
    shown = wk("show", "last", "--json").json["session"]
    assert (shown["status"], shown["live"]) == ("running", False)
    assert "stopped" in wk("sessions").out
    people = wk("show", "last").out
    assert "wk resume" in people
    assert "● running" not in people
    assert "dead" not in people
    said = wk("pause", "last")
    assert (said.code, "wk resume" in said.out) == (0, True)
    queued = wk("steer", "last", "one", "turn left", "--json").json
    assert (queued["status"], "applies on resume" in queued["result"]) == ("queued", True)
    stage.go.set()
    assert finish(wk) == "done"
    assert stage.steered.is_set()
    stage.ground.assert_sound()


@pytest.mark.parametrize("answer", ["approve", "deny"])
def test_a_background_host_waits_for_an_answer_from_any_shell(ground, wk, monkeypatch, answer):
    """`wk resume --detach` of a session that asks without a time limit."""
    told: list[str] = []

    def work(name: str, turn: int, body: Body) -> Any:
        if turn == 0:
            return [uses("write", file_path="made.txt", content="by the agent")]
        told.append(str(body["messages"][-1]))
        return [says("done")]

    ground.serve(Notes([task("one", role="coder")], work=work))
    monkeypatch.setenv("WATCHKEEPER_DB", str(ground.path))
    monkeypatch.setenv("ANTHROPIC_BASE_URL", ground.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test-key")
    from watchkeeper.runtime.lifecycle import NewSession, SessionSettings, create_session

    settings = SessionSettings(approval_timeout_seconds=None)
    session = create_session(ground.path, NewSession("reach the goal", ground.workspace, MODEL, settings))
    started = wk("resume", session, "--detach", "--json").json
    assert started["session"] == session
    pid = started["host"]["pid"]
    try:
        (waiting,) = wait_until(
            lambda: [
                one for one in wk("show", session, "--json").json["approvals"] if one["status"] == "waiting"
            ]
        )
        assert "made.txt" in waiting["question"]
        assert f"wk approve {session} {waiting['id']}" in wk("show", session).out
        assert wk(answer, session, "nope").code == 3
        extra = ["--reason", "not in this house"] if answer == "deny" else []
        assert wk(answer, session, waiting["id"][:4], *extra).code == 0
        wait_until(lambda: probe(ground.path, session) is None)
    finally:
        if probe(ground.path, session) is not None:
            os.kill(pid, signal.SIGKILL)
    assert wk("show", session, "--json").json["session"]["status"] == "done"
    assert (ground.workspace / "made.txt").exists() == (answer == "approve")
    assert answer == "approve" or "not in this house" in told[0]
    assert wk(answer, session, waiting["id"]).code == 3
    ground.assert_sound()


def test_a_rerun_of_a_finished_session_starts_a_host_for_it_alone(wk: Wk, demo: Path) -> None:
    before = {one["name"]: one for one in wk("show", "last", "--json").json["plan"]["tasks"]}
    name = next(iter(before))
    assert wk("rerun", "last", name, "--json").json["status"] == "applied"
    (session,) = (one["id"] for one in wk("sessions", "--json").json)
    wait_until(lambda: probe(demo, session) is None)
    after = {one["name"]: one for one in wk("show", "last", "--json").json["plan"]["tasks"]}
    assert (after[name]["status"], after[name]["attempt"]) == ("done", 2)
    assert {key: one["attempt"] for key, one in after.items() if key != name} == {
        key: 1 for key in before if key != name
    }
    assert wk("show", "last", "--json").json["session"]["status"] == "done"


@pytest.mark.parametrize("status", ["done", "cancelled"])
def test_no_host_is_started_to_resume_a_session_that_is_over(wk: Wk, demo: Path, status: str) -> None:
    session = wk("show", "last", "--json").json["session"]["id"]
    change(demo, "UPDATE sessions SET status = ?", status)
    with pytest.raises(BadInput, match=f"already {status}; nothing to resume"):
        control.start_host(demo, session)
    assert probe(demo, session) is None


def test_a_host_that_ended_leaves_no_defunct_process(wk, demo, monkeypatch):
    session = wk("show", "last", "--json").json["session"]["id"]
    ended = [sys.executable, "-c", ""]
    monkeypatch.setattr(control, "spawn_host", lambda *_: subprocess.Popen(ended))
    pid = control.start_host(demo, session, resume=False, once=1)

    def is_gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(is_gone)


def test_a_compaction_by_hand_and_its_undo_need_no_host(wk: Wk, demo: Path) -> None:
    def view() -> tuple[int, int]:
        agent = next(one for one in wk("show", "last", "--json").json["agents"] if one["name"] == "synthesis")
        return agent["view"], agent["context"]["used"]

    version, used = view()
    compacted = wk("compact", "last", "synthesis", "--instructions", "keep the figures", "--json")
    assert (compacted.code, compacted.json["status"]) == (0, "applied")
    assert view()[1] < used
    assert wk("undo", "last", "synthesis", "--json").json["status"] == "applied"
    assert view() == (version, used)
    assert wk("redo", "last", "synthesis", "--json").json["status"] == "applied"
    again = wk("redo", "last", "synthesis")
    assert again.code == 2
    assert again.error


@pytest.mark.parametrize(
    ("agent", "sql", "options", "why"),
    [
        ("planner", "", ("--up-to", "1"), "would not free any tokens"),
        ("synthesis", "UPDATE sessions SET status = 'cancelled'", (), "is cancelled"),
        ("synthesis", "UPDATE agents SET model = 'anthropic/claude-sonnet-5'", (), "ANTHROPIC_API_KEY is not set"),
        ("synthesis", "", ("--model", "anthropic/claude-sonnet-5"), "ANTHROPIC_API_KEY is not set"),
    ],
)  # fmt: skip
def test_a_compaction_that_must_be_refused_is_refused_from_the_rows(
    wk, demo, monkeypatch, agent, sql, options, why
):
    monkeypatch.setattr(control, "spawn_host", lambda *_: pytest.fail("a host was started"))
    if sql:
        change(demo, sql)
    refused = wk("compact", "last", agent, *options)
    assert (refused.code, why in refused.error) == (2, True)
    assert rows(demo, "SELECT count(*) FROM commands") == [(0,)]


def test_a_reader_that_goes_away_does_not_stop_the_run(ground: Ground) -> None:
    """`wk run … --json | head -1`: no traceback, and the run goes on to its end."""
    ground.serve(Notes(NOTES[:1]))
    process = ground.start_run()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 0
    assert ground.query("SELECT status FROM sessions") == [("done",)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_before_the_host_answers_leaves_the_session_paused_and_resumable(
    wk: Wk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "a.py").write_text("x = 1\n")

    def signalled(*_: Any, **__: Any) -> None:
        signal.raise_signal(number)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        patched.setattr(run_session, "drive", signalled)
        said = wk("demo", "--headless", "--json", "--speed", "max", "--workspace", workspace)
    assert said.code == 130
    assert json.loads(said.out.splitlines()[-1])["status"] == "paused"
    assert signal.getsignal(signal.SIGTERM) == before
    (one,) = wk("sessions", "--json").json
    assert (one["status"], one["live"]) == ("paused", False)
    assert wk("resume", "last", "--headless", "--json").code == 0


async def test_a_run_that_the_dashboard_starts_goes_on_by_itself_and_a_refusal_says_why(wk, tmp_path):
    folder, path = tmp_path / "project", tmp_path / "runs.db"
    folder.mkdir()
    session, problem = await start_run(path, RunRequest("--survey", str(folder), "offline/surveyor"))
    try:
        assert problem == ""
        assert wk("show", session, "--db", str(path), "--json").json["session"]["goal"] == "--survey"
    finally:
        if (holder := probe(path, session)) is not None:
            os.kill(holder.pid, signal.SIGKILL)
    session, problem = await start_run(path, RunRequest("x", str(folder), "nowhere/model"))
    assert session == ""
    assert "nowhere" in problem
