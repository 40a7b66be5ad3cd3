"""`wk watch PATH` in a pipe: what is watched, a line for each thing that happens, and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.core.transcripts.conftest import Log, call, text

PATIENCE_SECONDS = 30.0


@pytest.fixture
def log(logs: Path) -> Log:
    log = Log()
    log.user("Mend the cache")
    log.reply(call("Bash", "t1", command="ls"), id="m1", output=20, read=1_000, stop="tool_use")
    log.result("t1", "all is well")
    log.reply(text("Done."), id="m2", output=30)
    log.write(logs)
    return log


@pytest.fixture
def watching(log: Log, logs: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "watchkeeper",
        "watch",
        str(logs),
        "--db",
        str(tmp_path / "watched.db"),
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _read_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    """Lines up to the first that holds `wanted`; the test's own time limit bounds it."""
    assert process.stdout is not None
    found: list[str] = []
    for line in process.stdout:
        found.append(line.rstrip("\n"))
        if wanted in line:
            return found
    raise AssertionError(f"{wanted!r} never came: {found}")


def test_it_says_what_it_watches_and_then_tells_agent_tool_and_tokens(watching, log, logs):
    lines = _read_until(watching, "turn 2")
    assert lines[0].split()[0] == "session"
    assert lines[0].endswith("claude-code  Mend the cache")
    assert "Ctrl+C stops this command, not the session)" in lines[1]
    assert str(logs) in lines[1]
    (reply,) = [line for line in lines if "turn 1" in line]
    assert "1,003 tok in, 20 out" in reply
    assert reply.endswith("calls Bash")
    (tool,) = [line for line in lines if " tool " in line]
    assert "main" in tool
    assert "Bash → all is well" in tool
    log.reply(call("Read", "t2"), id="m3", output=7, stop="tool_use")
    with (logs / f"{log.session}.jsonl").open("ab") as file:
        file.write(json.dumps(log.records[-1]).encode() + b"\n")
    assert "calls Read" in _read_until(watching, "turn 3")[-1]
    # Another session begins in the same place.
    other = Log("0b0b0b0b-1111-4222-8333-444444444444")
    other.user("Something else", timestamp=datetime.now(UTC).isoformat())
    other.write(logs)
    assert "Something else" in _read_until(watching, "is also live")[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(watching: subprocess.Popen[str], number: signal.Signals) -> None:
    _read_until(watching, "turn 2")
    watching.send_signal(number)
    _, errors = watching.communicate(timeout=PATIENCE_SECONDS)
    assert (watching.returncode, errors) == (130, "")
    assert _followers(watching.pid) == []


def test_it_ends_once_nobody_reads_it(watching: subprocess.Popen[str]) -> None:
    _read_until(watching, "turn 2")
    assert watching.stdout is not None
    watching.stdout.close()
    assert watching.wait(timeout=PATIENCE_SECONDS) == 0
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _followers(watching.pid):
        assert time.monotonic() < deadline


def _followers(parent: int) -> list[bytes]:
    """Command lines of processes that follow logs for another one."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = each.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"follow" in command and str(parent).encode() in command:
            found.append(b" ".join(command))
    return found


@pytest.mark.parametrize(
    ("what", "awaited"),
    [
        ("claude", "waiting for Claude Code: it creates its log at the first prompt, in "),
        ("codex", "waiting for Codex: it creates its log at the first prompt, in "),
        ("opencode", "waiting for OpenCode: it creates its log at the first prompt, in "),
        ("later/logs", "later/logs, which does not exist yet"),
        ("empty", "empty; Ctrl+C to stop"),
    ],
)  # fmt: skip
def test_it_waits_for_the_first_session_and_says_what_it_waits_for(
    tmp_path: Path, what: str, awaited: str
) -> None:
    log = Log()
    log.user("Mend the cache", timestamp=datetime.now(UTC).isoformat())
    (tmp_path / "empty").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "watchkeeper", "watch", what, "--db", str(tmp_path / "w.db")],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert awaited in process.stderr.readline()
        if what in ("claude", "empty", "later/logs"):
            place = tmp_path / ("home/.claude/projects/-project" if what == "claude" else what)
            place.mkdir(parents=True, exist_ok=True)
            log.write(place)
            assert "Mend the cache" in _read_until(process, "session ")[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
