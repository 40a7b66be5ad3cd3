"""`kill -9` of `wk run`, again and again, against a live provider: nothing finished is asked for twice,
nothing is lost."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.core.messages_api.ground import Ground
from tests.core.messages_api.scripts import NOTES, Notes, Survey

NEVER_TWICE = "a turn whose reply was committed was asked for again"


class Killer:
    """Kills the process that asks, as its requests number `at` arrive, and notes what was committed by
    then."""

    def __init__(self, ground: Ground, script: Survey, at: set[int]) -> None:
        self._ground = ground
        self._script = script
        self._at = at
        self._count = 0
        self.pid = 0
        self.committed: Counter[tuple[str, int]] = Counter()
        """For each turn that was committed when a kill struck: how often it had been asked for."""
        script.fault = self

    def __call__(self, name: str, turn: int, count: int) -> None:
        self._count += 1
        if self._count in self._at:
            os.kill(self.pid, signal.SIGKILL)

    def note(self) -> None:
        """After a kill: which turns the file holds."""
        rows = self._ground.query(
            "SELECT ifnull(t.name, 'planner'), s.turn - 1 FROM steps s JOIN agents a ON a.id = s.agent_id"
            " LEFT JOIN tasks t ON t.id = a.task_id"
        )  # fmt: skip
        for name, turn in rows:
            self.committed.setdefault((name, turn), self._script.asked[name, turn])


def drive_through_kills(ground: Ground, killer: Killer) -> int:
    """Run, and resume after every kill, until the run ends; returns how many kills struck."""
    kills = 0
    process = ground.start_run()
    while True:
        killer.pid = process.pid
        out, err = process.communicate(timeout=60)
        if process.returncode != -signal.SIGKILL:
            assert (process.returncode, err) == (0, ""), out
            return kills
        kills += 1
        killer.note()
        process = ground.start(
            "resume", ground.query("SELECT id FROM sessions")[0][0], "--headless", "--json"
        )


def test_a_run_killed_at_its_requests_is_resumed_until_it_is_done(ground: Ground) -> None:
    at = {2, 6, 11}
    notes = Notes()
    ground.serve(notes)
    killer = Killer(ground, notes, at)
    assert drive_through_kills(ground, killer) == len(at)
    assert killer.committed, "no kill struck after a commit"
    for turn, asked in killer.committed.items():
        assert notes.asked[turn] == asked, f"{NEVER_TWICE}: {turn}"
    assert ground.query("SELECT count(*) FROM plans") == [(1,)]
    assert ground.query("SELECT revision FROM plans") == [(1,)]
    assert ground.query("SELECT count(*) FROM agents") == [(len(NOTES) + 1,)]
    assert ground.query("SELECT count(*) FROM facts") == [(9,)]
    ground.assert_done()


@pytest.mark.parametrize("fault", ["model.replied:4", "writer.before_commit:18"])
def test_a_run_killed_at_a_point_between_reply_and_commit_asks_again_only_for_what_was_not_committed(
    ground: Ground, fault: str
) -> None:
    notes = Notes()
    ground.serve(notes)
    killer = Killer(ground, notes, set())
    first = ground.run(WATCHKEEPER_FAULT=fault)
    assert first.code == -signal.SIGKILL, f"{fault} was not reached"
    killer.note()
    last = ground.resume()
    assert (last.code, last.result["status"]) == (0, "done"), last
    for turn, asked in killer.committed.items():
        assert notes.asked[turn] == asked, f"{NEVER_TWICE}: {turn}"
    assert ground.query("SELECT count(*) FROM facts") == [(9,)]
    ground.assert_done()


def test_a_shell_command_that_a_kill_cut_short_is_not_run_again_and_the_model_is_told(
    ground: Ground, tmp_path: Path
) -> None:
    """A tool that is not idempotent: its outcome is unknown, and the model must look."""
    from tests.core.messages_api.scripts import says, uses
    from tests.support.scripted import task

    log = tmp_path / "log"

    def work(name: str, turn: int, body: object) -> object:
        if turn == 0:
            return [uses("bash", command=f"echo ran >> {log}; kill -9 $(cat {tmp_path / 'pid'}); sleep 1")]
        (result,) = [
            block
            for block in body["messages"][-1]["content"]  # type: ignore[index]
            if block["type"] == "tool_result"
        ]
        assert "unknown" in str(result)
        assert result["is_error"] is True
        return [says("done")]

    server = ground.serve(Notes([task("shell", role="coder")], work=work))
    process = ground.start_run("--allow", "bash")
    (tmp_path / "pid").write_text(str(process.pid))
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    last = ground.resume()
    assert (last.code, server.script_errors) == (0, [])
    assert log.read_text() == "ran\n"
    assert ground.query("SELECT status FROM tool_calls WHERE name = 'bash'") == [("unknown",)]
    assert "tool.unknown" in {row[0] for row in ground.query("SELECT kind FROM events")}
    ground.assert_sound()
