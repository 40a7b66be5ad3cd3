"""`wk import --watch-all`: one process that follows every log, and its installation as a service."""

from __future__ import annotations

import json
import os
import plistlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.cli.app import run
from watchkeeper.interop import service
from watchkeeper.records.errors import BadInput, DrivenElsewhere, NotFound, StoreUnusable
from watchkeeper.store import database

RECORD = {"type": "user", "uuid": "u0", "parentUuid": None, "isSidechain": False, "timestamp": "2026-02-03T04:00:00.000Z",
          "sessionId": "0a0a0a0a-1111-4222-8333-444444444444", "cwd": "/w", "version": "2.1.100", "message": {"role": "user", "content": "hello"}}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    log = home / ".claude/projects/-w/0a0a0a0a-1111-4222-8333-444444444444.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(json.dumps(RECORD) + "\n")
    for name in (*service.handed_on(), "WATCHKEEPER_AGENT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    return home


def test_the_status_says_how_far_the_logs_are_imported_and_whether_somebody_follows(home, tmp_path, capsys):
    db = tmp_path / "w.db"
    before = service.progress(db, {}, home)
    assert (before.logs, before.current, before.pid) == (1, 0, None)
    assert "0 of 1 logs imported" in before.line()
    assert run(["import", "claude", "--db", str(db)]) == 0
    with service.FollowerLock(db):
        assert service.progress(db, {}, home).pid is not None
        with pytest.raises(DrivenElsewhere):
            service.FollowerLock(db).__enter__()
        capsys.readouterr()
        assert run(["import", "--watch-all", "--status", "--json", "--db", str(db)]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["running"], found["logs"], found["current"]) == (True, 1, 1)
    assert service.follower_pid(db) is None


def test_a_unit_holds_where_logs_are_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / 'a "b" %c $d' / "w.db"
    environ = {"CODEX_HOME": "/c o", "ANTHROPIC_API_KEY": "sk-ant-secret", "PATH": "/bin"}
    text = service.unit_text(path, environ, "linux").decode()
    assert "secret" not in text
    assert 'Environment="CODEX_HOME=/c o"' in text
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    assert [
        word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line.removeprefix("ExecStart="))
    ] == service.command(path)
    plist = plistlib.loads(service.unit_text(path, environ, "darwin"))
    assert plist["ProgramArguments"] == service.command(path)
    assert plist["EnvironmentVariables"] == {"CODEX_HOME": "/c o"}
    with pytest.raises(BadInput):
        service.unit_text(tmp_path / "a\nb", {}, "linux")


def test_a_unit_hands_on_each_variable_that_says_where_logs_are(tmp_path: Path) -> None:
    class Asked(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return default

    read: set[str] = set()
    service.places(Asked(), tmp_path)
    assert read
    assert read <= set(service.handed_on())


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_the_service_is_started_once_written_and_leaves_nothing_behind(platform, home, tmp_path, monkeypatch):
    ran: list[Sequence[str]] = []
    code = [0]

    def record(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        ran.append(words)
        return subprocess.CompletedProcess(list(words), code[0], "", "no bus")

    with pytest.raises(NotFound):
        service.uninstall({}, home, record, platform)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    unit = service.install(tmp_path / "w.db", {}, home, record, platform)
    assert unit.is_file()
    assert any("bootstrap" in words or "enable" in words for words in ran)
    service.uninstall({}, home, record, platform)
    assert not unit.exists()
    code[0] = 1
    with pytest.raises(BadInput, match="no bus"):
        service.install(tmp_path / "w.db", {}, home, record, platform)
    assert not unit.exists()
    unit.write_bytes(b"of an installation before")
    with pytest.raises(BadInput, match="nothing was changed"):
        service.install(tmp_path / "w.db", {}, home, record, platform)
    assert unit.read_bytes() == b"of an installation before"


@pytest.mark.parametrize("words", ["--watch-all claude", "--status", "--watch-all --status --install", ""])
def test_options_that_do_not_fit_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", *words.split()]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_follower_of_everything_reads_hooks_old_logs_and_new_lines(home: Path, tmp_path: Path) -> None:
    db = tmp_path / "w.db"
    log = next(home.rglob("*.jsonl"))
    os.utime(log, (1e9, 1e9))
    command = [sys.executable, "-P", "-m", "watchkeeper", "import", "--watch-all", "--db", str(db)]
    child = subprocess.Popen(command)
    try:

        def messages() -> int:
            if not database.is_there(db):
                return 0
            try:
                connection = database.open_readonly(db)
            except StoreUnusable:
                return 0  # it is being made
            try:
                return int(connection.execute("SELECT count(*) FROM messages").fetchone()[0])
            finally:
                connection.close()

        _until(lambda: messages() == 1)
        with log.open("a") as file:
            file.write(
                json.dumps(
                    RECORD
                    | {"uuid": "u1", "parentUuid": "u0", "message": {"role": "user", "content": "again"}}
                )
                + "\n"
            )
        _until(lambda: messages() == 2)
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
