"""A session of an agent program that was started elsewhere becomes a sub-agent here."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.agents.conftest import Programs
from tests.support.agent_rows import create_agent

from watchkeeper.cli.app import wk
from watchkeeper.cli.run import _holder
from watchkeeper.transcripts.reading import by_name, find_sessions

CODEX = "019fc8be-3658-7ca3-9e29-000000000001"
CLAUDE = "95d616cf-c175-46a5-b994-5c710364051c"


class Home:
    """A home with a session of each program, last changed ten minutes ago."""

    def __init__(self, folder: Path) -> None:
        self.home, self.workspace = folder / "home", folder / "ws"
        self.workspace.mkdir()
        at = "2026-08-03T10:48:56.000Z"
        meta = {
            "id": CODEX, "timestamp": at, "cwd": str(self.workspace), "originator": "codex_cli_rs",
            "cli_version": "1",
        }  # fmt: skip
        self.codex = self._log(f".codex/sessions/2026/08/03/rollout-2026-08-03T10-48-56-{CODEX}.jsonl", [
            {"timestamp": at, "type": "session_meta", "payload": meta},
        ])  # fmt: skip
        said = {"role": "user", "content": "hello"}
        self.claude = self._log(f".claude/projects/-ws/{CLAUDE}.jsonl", [
            {"type": "user", "sessionId": CLAUDE, "cwd": str(self.workspace), "uuid": "u", "timestamp": at, "message": said},
        ])  # fmt: skip
        self.opencode = self.home / ".local/share/opencode/opencode.db"
        self.opencode.parent.mkdir(parents=True)
        with sqlite3.connect(self.opencode) as connection:
            connection.executescript(
                "CREATE TABLE session (id TEXT, directory TEXT, time_updated INTEGER);"
                "CREATE TABLE message (id TEXT, session_id TEXT, data TEXT);"
                "CREATE TABLE part (id TEXT, message_id TEXT, data TEXT);"
            )
            connection.executemany(
                "INSERT INTO session VALUES (?, ?, ?)",
                [("ses_one", str(self.workspace), 1), ("ses_other", str(self.workspace), 1)],
            )
        connection.close()

    def _log(self, name: str, records: list[dict[str, Any]]) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(one) + "\n" for one in records))
        os.utime(path, (time.time() - 600,) * 2)
        return path


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.parametrize(
    ("program", "name", "session"),
    [("codex", "019fc8be", CODEX), ("claude-code", CLAUDE, CLAUDE), ("opencode", "ses_on", "ses_one")],
)
def test_a_session_is_found_by_the_beginning_of_its_id(home, program, name, session):
    reader = by_name(program)
    assert reader is not None
    found = find_sessions(reader, name, {}, home.home)
    assert [(one.session, one.folder) for one in found] == [(session, str(home.workspace))]
    assert len(find_sessions(reader, "", {}, home.home)) == (2 if program == "opencode" else 1)
    assert find_sessions(reader, "nothing", {}, home.home) == []


def test_a_session_is_found_by_its_file(home):
    reader = by_name("codex")
    assert reader is not None
    assert [one.session for one in find_sessions(reader, str(home.codex), {}, Path("/nowhere"))] == [CODEX]


class TestRefusals:
    """What `wk resume --program` refuses before anything is started."""

    @pytest.fixture(autouse=True)
    def _set_up(self, home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in (
            "CODEX_HOME", "CLAUDE_CONFIG_DIR", "XDG_DATA_HOME", "OPENCODE_DATA_DIR", "WATCHKEEPER_AGENT",
        ):  # fmt: skip
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(home.home))
        monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
        self.database = tmp_path / "w.db"

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(wk, ["resume", *arguments, "--headless", "--db", str(self.database)])

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (("--program", "codex", "019f"), "--program PROGRAM THREAD MESSAGE"),
            (("--program", "codex", "019f", " "), "--program PROGRAM THREAD MESSAGE"),
            (("--program", "gemini", "x", "go on"), "codex, claude-code or opencode"),
            (("--program", "codex", "zzz", "go on"), "does not match any session"),
            (("--program", "opencode", "ses_o", "go on"), "several sessions: ses_one, ses_other"),
            (("--program", "claude", CLAUDE, "go on"), "then pass --yes"),
            (("--program", "claude", CLAUDE, "go on", "--queue"), "omit --queue"),
            (("--program", "codex", CODEX, "go on", "--budget-usd", "much"), "is not a number"),
            (("--yes", "last"), "need --program"),
        ],
    )
    def test_what_is_not_clear_is_refused(self, arguments, why):
        result = self.run(*arguments)
        assert result.exit_code != 0
        assert why in str(result.exception) + result.output
        assert not self.database.exists()

    def test_the_earlier_spelling_works_and_prints_the_new_one(self) -> None:
        earlier = ["run", "go on", "--agent", "codex", "--continue"]
        for rest, why in (
            ((CODEX, "--workspace", "/"), "omit --workspace"),
            (("zzz",), "does not match any session"),
        ):
            result = CliRunner().invoke(wk, [*earlier, *rest, "--headless", "--db", str(self.database)])
            assert why in str(result.exception)
            assert "is now `wk resume --program PROGRAM THREAD MESSAGE`" in result.stderr

    def test_a_session_that_changed_a_moment_ago_is_refused_even_with_yes(self, home):
        os.utime(home.claude)
        result = self.run("--program", "claude-code", CLAUDE, "go on", "--yes")
        assert "may be in use" in str(result.exception)

    def test_a_session_that_an_agent_here_works_on_is_refused(self, home, tmp_path):
        from tests.core.runtime.conftest import Ground

        from watchkeeper.store import agents

        ground = Ground(tmp_path)

        def create(tx: Any) -> None:
            create_agent(tx, "p", name="coder-1", role="coder")
            agents.save_program_session(
                tx, agents.ProgramSession("p", "codex", "1", CODEX, None, None, "/", 0)
            )

        ground.write(create)
        ground.close()
        result = self.run("--program", "codex", CODEX, "go on")
        assert "coder-1" in str(result.exception)
        assert "is already working on it" in str(result.exception)


def test_a_process_that_has_the_file_open_or_names_the_session_is_found(home):
    import subprocess
    import sys

    mine = f"00000000-0000-4000-8000-{os.getpid():012}"  # no process of another test names it
    assert _holder(home.claude, mine) is None
    wait = "import sys; print(flush=True); sys.stdin.read()"
    for argument, session in ((mine, mine), (str(home.claude), mine.replace("0", "1"))):
        code = f"import os, sys; file = open(sys.argv[1]) if os.path.exists(sys.argv[1]) else None; {wait}"
        process = subprocess.Popen(
            [sys.executable, "-c", code, argument], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        assert _holder(home.claude, session) == process.pid
        process.communicate()


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    return Programs(tmp_path)


async def test_the_session_gets_the_prompt_as_its_next_message_and_the_planner_rests_until_it_ended(outside):
    continues = {
        "program": "fake", "session": "begun-outside", "transcript": str(outside.fake / "none"),
        "folder": str(outside.workspace), "model": "fake/default",
    }  # fmt: skip
    outside.script([[["say", "went on"]]], continues=continues, allow_models=("fake/*",))
    await outside.run()
    opened = [
        one["params"]["sessionId"]
        for _, one in outside.received()
        if one.get("method") in ("session/resume", "session/load")
    ]
    assert opened == ["begun-outside"]
    (prompt,) = outside.prompts()
    assert "reach the goal" in prompt
    assert "earlier attempt" not in prompt
    assert outside.tasks()["continue"]["status"] == "done"
    first = outside.model.requests[0]
    assert "A plan exists" in str(first.messages)
    assert "task_done" in str(first.messages)
    warned = outside.query("SELECT data FROM events WHERE kind = 'host.warning'")
    assert any("without a worktree" in text for (text,) in warned)


def test_what_was_used_before_counts_for_the_session_and_for_no_budget(tmp_path):
    from tests.core.runtime.conftest import Ground

    from watchkeeper.records.messages import Cost, PriceStatus, Usage
    from watchkeeper.records.model_calls import ModelCallRecord
    from watchkeeper.records.states import ModelCallStatus
    from watchkeeper.store import agents, budgets

    ground = Ground(tmp_path)
    used = {"planner": 1, "codex-before": 1_000, "coder-1": 10}

    def add(tx: Any) -> None:
        for name, tokens in used.items():
            parent = None if name == "planner" else "planner"
            create_agent(tx, name, role="coder", parent_agent_id=parent)
            if name == "codex-before":
                agents.save_program_session(
                    tx, agents.ProgramSession(name, "codex", "", CODEX, None, None, "/", 0)
                )
            agents.add_model_call(tx, ModelCallRecord(
                agent_id=name, turn=0, purpose="turn", model="m", status=ModelCallStatus.DONE, usage=Usage(tokens),
                cost=Cost(float(tokens), PriceStatus.EXACT), started_at=1.0,
            ))  # fmt: skip
        assert budgets.used(tx, ground.session, None, "tokens") == 11

    ground.write(add)
    assert budgets.used(ground.store, ground.session, None, "tokens") == 11
    assert budgets.used(ground.store, ground.session, None, "usd") == 11
    assert ground.store.one("SELECT input_tokens FROM sessions")[0] == 1_011
    ground.close()
