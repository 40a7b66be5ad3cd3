"""No planted key is anywhere on the disk, whatever way it came in, and however the run ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.faults.planting import ALL, CONFIGURED, KEYS, PASSWORD, planted, telling, where, whole
from tests.support.answers import Status
from tests.support.messages_server import MessagesServer
from tests.support.places import query
from tests.support.places import wk as command_line
from tests.support.scripted import PlannedRun, ScriptedModel, call, said, task, turns

from watchkeeper.records.errors import BadInput
from watchkeeper.records.messages import (
    Delta,
    ErrorKind,
    ModelError,
    ModelEvent,
    ModelRequest,
    Reply,
    Retrying,
)
from watchkeeper.records.ports import SystemClock
from watchkeeper.records.redact import Redactor
from watchkeeper.runtime.host import HELD_CHARACTERS, SHOWN_CHARACTERS, LiveRows
from watchkeeper.runtime.lifecycle import SessionSettings
from watchkeeper.runtime.run_session import Runtime
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.library import change_tags, rename_session
from watchkeeper.store.place import user_redactor
from watchkeeper.store.transaction import SessionStore
from watchkeeper.store.writer import Writer
from watchkeeper.transcripts.importer import Importer

SMALL_SERVER = Path(__file__).parents[1] / "core" / "tools" / "small_mcp_server.py"


class Talkative(ScriptedModel):
    """Streams keys in small pieces, is rate limited by a provider that quotes them, and ends its replies
    oddly."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        yield Retrying(f"rate limited for {ALL}", 0.0, 1, rate_limited=True)
        for at in range(0, len(ALL), 5):
            yield Delta("text", ALL[at : at + 5])
        if not self.requests:
            await asyncio.sleep(0.3)  # the live rows are written every 0.1 s
        async for event in super().stream(request):
            if isinstance(event, Reply):
                event = replace(event, request_id=f"req {ALL}", model=f"model {ALL}")
            yield event


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a workspace full of keys, and a configuration with an MCP server that is given one."""
    monkeypatch.setenv("PLANTED_PASSWORD", PASSWORD)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text(
        f"[mcp_servers.small]\ncommand = {json.dumps(sys.executable)}\nargs = [{json.dumps(str(SMALL_SERVER))}]\n"
        f"env = {{ WHATEVER_TOKEN = {json.dumps(KEYS['github'])}, PLAIN = {json.dumps(KEYS['anthropic'])},"
        f" OF_CONFIG_SECRET = {json.dumps(CONFIGURED)} }}\n"
    )
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "AGENTS.md").write_text(f"Always use {ALL}\n")
    (workspace / "settings.env").write_text(f"A={ALL}\n")
    (workspace / ".watchkeeper" / "agents").mkdir(parents=True)
    (workspace / ".watchkeeper" / "agents" / "leaky.md").write_text(
        f"---\nname: leaky\ndescription: uses {KEYS['anthropic']}\ntools: bash, read\n---\nLog in with"
        f" {ALL}\n"
    )
    return tmp_path


def leaking(name: str, request: ModelRequest) -> Any:
    """A sub-agent that gets keys from everywhere, and puts them everywhere."""
    read = call("read", {"file_path": "settings.env"})
    steps: list[Any] = [
        [said(f"I know {ALL}"), read, call("grep", {"pattern": "A="}, "toolu_2")],
        [call("bash", {"command": f"cat settings.env; echo {KEYS['aws']}; false"})],
        [call("mcp__small__environment", {})],
        [call("write", {"file_path": f"{KEYS['github']}.txt", "content": ALL})],
        [call("remember", {"text": f"the key is {ALL}", "kind": "fact"})],
        [call("save_artifact", {"name": f"notes-{KEYS['github']}.md", "content": "x " * 3000 + ALL})],
        [call(f"no_such_{KEYS['github']}", {"key": ALL, ALL: 1})],
        ModelError(f"bad request: {ALL}", kind=ErrorKind.FAIL),
        [said(f"Done with {ALL}")],
    ]
    resumed = turns(request) == 7 and "resumed" in str(request.messages)
    return steps[-1] if resumed else steps[min(turns(request), len(steps) - 1)]


def plan() -> PlannedRun:
    first = task("one", role="leaky") | {"instructions": f"use {ALL}", "title": f"One {KEYS['github']}"}
    return PlannedRun(
        [first], leaking, lambda name: [call("drop_task", {"task": name, "reason": f"because {ALL}"})]
    )


def start(runtime: Runtime, folder: Path) -> str:
    settings = SessionSettings(
        approval_timeout_seconds=0.0, allow=("bash", "write", "mcp__small__*", "mcp__small__environment")
    )
    return runtime.start(f"reach the goal with {ALL}", workspace=folder / "workspace", settings=settings)


async def test_a_run_that_meets_keys_everywhere_stores_none(folder: Path) -> None:
    path = folder / "watchkeeper.db"
    runtime = Runtime(path, model=Talkative(plan()))
    session = start(runtime, folder)
    agent_asked = runtime.submit(session, "steer", payload={"text": f"try {ALL}"})
    runtime.submit(session, "compact", payload={"instructions": f"keep {ALL}"})
    runtime.submit(session, "pin", payload={"text": f"never forget {ALL}"})
    runtime.submit(session, "deny", payload={"approval": f"q {ALL}", "reason": ALL})
    assert agent_asked
    running = asyncio.ensure_future(asyncio.wait_for(runtime.run(session), 120))
    seen = await _watch(path, running)
    result = await running
    rename_session(path, session, f"all of {ALL}")
    with pytest.raises(BadInput, match="secret"):
        change_tags(path, session, add=[KEYS["slack"]])
    assert result.exit_code in (0, 1, 5), result
    calls = dict(query(path, "SELECT name, count(*) FROM tool_calls GROUP BY name"))
    assert {"read", "grep", "bash", "write", "mcp__small__environment"} <= set(calls)
    assert seen, "the live row was looked at while the keys were streamed"
    assert not where(path)
    assert not planted(folder)
    assert "[redacted:PLANTED_PASSWORD]" in query(path, "SELECT goal FROM sessions")[0][0]


async def _watch(path: Path, running: asyncio.Future[Any]) -> int:
    """Look at the live rows while a run writes them; how many looks saw streamed text."""
    looks = 0
    while not running.done():
        await asyncio.wait([running], timeout=0.02)
        rows = query(path, "SELECT text, detail FROM live") if path.exists() else []
        for row in rows:
            for key in (*KEYS.values(), *KEYS["pem"].splitlines()[1:2]):
                assert key not in row[0]
                assert key not in row[1]
            looks += bool(row[0])
    return looks


async def test_summaries_observations_and_their_errors_hold_no_key(folder: Path) -> None:
    """What a summariser writes is a model's text as well."""

    number = count()

    def work(name: str, request: ModelRequest) -> Any:
        turn = next(number)
        summaries = query(
            folder / "watchkeeper.db", "SELECT count(*) FROM observations WHERE kind = 'summary'"
        )
        if turn < (20 if summaries[0][0] else 200):
            return [said("word " * 900), call("read", {"file_path": "settings.env"}, f"toolu_{turn}")]
        return [said("done")]

    planned = PlannedRun([task("one")], work)

    def script(request: ModelRequest) -> Any:
        if not request.tools:
            return [said(f"A summary. The key is {ALL}")]
        return planned(request)

    runtime = Runtime(folder / "watchkeeper.db", model=ScriptedModel(script, context_window=16_000))
    session = start(runtime, folder)
    await asyncio.wait_for(runtime.run(session), 60)
    written = query(folder / "watchkeeper.db", "SELECT count(*) FROM observations WHERE kind = 'summary'")
    assert written[0][0] > 0
    assert not where(folder / "watchkeeper.db")
    assert not planted(folder)


def test_a_streamed_key_is_never_shown_in_part() -> None:
    redactor = Redactor({"PLANTED_PASSWORD": PASSWORD}, {"configured": CONFIGURED})
    for name, key in KEYS.items():
        text = f"The key is {whole(name)} and no other; "
        for end in range(len(text)):
            shown = redactor.streamed(text[:end])
            for line in key.splitlines():
                if "-----" not in line:
                    assert line[:12] not in shown, shown
    assert redactor.streamed("a word that is short") == "a word that is short"
    assert redactor.streamed("x" * 100_000 + " ") == "x" * 100_000 + " "


@pytest.mark.long
async def test_the_end_that_is_shown_never_cuts_a_key_in_two(folder: Path) -> None:
    """The beginning of a key is what tells it: cut off, the rest would stand there in clear."""
    path = folder / "watchkeeper.db"
    session = start(Runtime(path, model=ScriptedModel(plan())), folder)
    store = SessionStore.claim(path, session, SystemClock(), pid=os.getpid(), host_name="here")
    try:
        await store.commit(
            lambda tx: tx.execute(
                "INSERT INTO agents (id, session_id, name, role, model, status, created_at, last_active,"
                " context_limit)"
                " VALUES ('a', ?, 'a', 'explorer', 'm', 'working', 0, 0, 1000)",
                (session,),
            )
        )
        live = LiveRows(store, SystemClock(), redactor=user_redactor())
        live.show("a", "working")
        # All of `ALL` goes past the border of what is shown, then of what is held, in steps shorter than a
        # key.
        live.stream("a", "so it goes " * 200 + f"{ALL} ")
        for border, step in (
            (SHOWN_CHARACTERS - len(ALL), 7),
            (HELD_CHARACTERS - SHOWN_CHARACTERS - 3 * len(ALL), 14),
        ):
            live.stream("a", "so it goes " * (border // 11))
            for _ in range(2 * len(ALL) // step + 10):
                live.stream("a", "and on " * (step // 7))
                await live.flush()
                shown = query(path, "SELECT text FROM live")[0][0]
                assert len(shown) <= SHOWN_CHARACTERS + 1
                for key in KEYS.values():
                    assert key[-12:] not in shown or "-----" in key[-12:]
    finally:
        store.close()


@pytest.mark.long
def test_a_killed_run_leaves_no_key_in_the_database_or_its_wal(folder: Path) -> None:
    """Killed in the middle, with the WAL as it stood; then resumed to its end."""
    path = folder / "watchkeeper.db"
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from tests.faults.test_secrets import Talkative, plan, start\n"
        "from watchkeeper.runtime.run_session import Runtime\n"
        "folder = Path(sys.argv[1])\n"
        "runtime = Runtime(folder / 'watchkeeper.db', model=Talkative(plan()))\n"
        "session = sys.argv[2] if len(sys.argv) > 2 else start(runtime, folder)\n"
        "print(session, flush=True)\n"
        "asyncio.run(runtime.run(session))\n"
    )
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "core")])}

    def run(*session: str, fault: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, str(folder), *session]
        armed = environment | ({"WATCHKEEPER_FAULT": fault} if fault else {})
        return subprocess.run(command, env=armed, capture_output=True, text=True, timeout=120)

    process = run(fault="writer.after_commit:25")
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert (path.with_name("watchkeeper.db-wal")).exists()
    assert not planted(folder)
    ended = run(process.stdout.split()[0])
    assert ended.returncode == 0, ended.stderr
    assert not planted(folder)
    assert not where(path)


def test_nothing_that_leaves_the_program_holds_a_key_and_all_files_are_private(folder: Path) -> None:
    """`wk show`, all exports, a backup, the log of a detached host that dies; and the modes of all files."""
    old = os.umask(0o000)
    try:
        _private(folder)
    finally:
        os.umask(old)


def _private(folder: Path) -> None:
    path = folder / "data" / "watchkeeper.db"

    def answer(body: dict[str, Any]) -> Status:
        return Status(400, "invalid_request_error", f"what is {ALL}?")

    with MessagesServer(answer) as server:
        own = "sk-ant-" + "planted1" * 4
        environment = os.environ | {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": own}

        def wk(*arguments: str, code: int | None = 0) -> str:
            process = command_line(path, *arguments, env=environment, timeout=120, cwd=folder)
            assert code is None or process.returncode == code, (arguments, process)
            assert "Traceback" not in process.stderr
            return process.stdout + process.stderr

        model = ("--model", "anthropic/claude-sonnet-5", "--headless", "--json")
        said_all = wk("run", f"go on with {ALL}", "--workspace", str(folder / "workspace"), *model, code=None)
        wk("resume", "last", "--detach", code=None)
        said_all += wk("steer", "last", "planner", f"say {ALL}", code=None)
        said_all += wk("pause", "last", code=None)
        said_all += wk("show", "last", "--json") + wk("show", "last") + wk("sessions", "--json")
        said_all += wk("fork", "last", "--title", f"with {CONFIGURED} and {KEYS['slack']}", code=None)
        said_all += wk("edit", "last", "--title", f"{KEYS['jwt']} of {CONFIGURED}", code=None)
        (folder / "out").mkdir()
        for form in ("md", "html", "json"):
            wk("export", "last", "--format", form, "--output", str(folder / "out" / f"session.{form}"))
        wk("backup", str(folder / "out" / "copy.db"))
        keys = KEYS | {"own": own}
        for name, key in keys.items():
            assert not any(form in said_all.encode() for form in telling(key)), name
        assert not planted(folder, keys)
    files = [*(folder / "data").rglob("*"), *(folder / "out").rglob("*")]
    assert any(file.suffix == ".log" for file in files)
    assert [file.name for file in files if file.is_file() and file.stat().st_mode & 0o077] == []
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute("UPDATE sessions SET title = 'x'")
        sides = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")]
        assert [oct(side.stat().st_mode & 0o777) for side in sides] == ["0o600", "0o600"]


CLAUDE = {"sessionId": "11111111-1111-4111-8111-111111111111", "version": "2.0.0", "cwd": "/work", "isSidechain": False,
          "userType": "external", "gitBranch": ""}  # fmt: skip


def test_imported_logs_leave_their_keys_behind(folder: Path) -> None:
    """In what a person said, in a tool's result, in a line that nobody understands, and in one that is no
    JSON."""
    path, log = folder / "watchkeeper.db", folder / "workspace" / "11111111-1111-4111-8111-111111111111.jsonl"
    at = "2026-01-01T00:00:00.000Z"
    asked = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": ALL, ALL: 1}}
    answer = {"type": "tool_result", "tool_use_id": "toolu_1", "content": ALL}
    usage = {"input_tokens": 1}
    model = {"id": "m1", "model": "claude-x", "role": "assistant", "content": [asked], "usage": usage}
    said_first = {"role": "user", "content": f"use {ALL}"}
    records = [
        {"type": "user", "uuid": "u1", "parentUuid": None, "message": said_first},
        {"type": "assistant", "uuid": "u2", "parentUuid": "u1", "message": model},
        {"type": "user", "uuid": "u3", "parentUuid": "u2", "message": {"role": "user", "content": [answer]}},
        {"type": "never-heard-of", "uuid": "u4", "secret": {ALL: ALL}},
        {"type": "summary", "summary": ALL, "leafUuid": "u3"},
    ]
    lines = [json.dumps(record | CLAUDE | {"timestamp": at}) for record in records]
    log.write_text(
        "\n".join([*lines, f"no json: {KEYS['anthropic']} {KEYS['aws']}", lines[0].replace("u1", "u5")])
        + "\n"
    )
    writer = Writer(path)
    importer = Importer(writer)
    report = importer.run([log])
    importer.close()
    writer.close()
    assert report.raw.total() >= 2
    assert query(path, "SELECT count(*) FROM messages")[0][0] >= 3
    assert not where(path)
    assert not planted(folder)
    assert "[redacted:PLANTED_PASSWORD]" in str(query(path, "SELECT content FROM messages"))
