"""`wk import` and `wk watch` of foreign logs, as a user meets them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.import_speed import make_logs
from tests.core.transcripts.conftest import SESSION, Log, Store, call, text

from watchkeeper.cli.app import run
from watchkeeper.models.registry import logged_price, price
from watchkeeper.records.messages import PriceStatus, Usage
from watchkeeper.store import database
from watchkeeper.transcripts.records import ModelCall

PATIENCE_SECONDS = 30.0


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "watchkeeper.db"


def _log() -> Log:
    log = Log()
    log.user("Mend the cache")
    log.reply(
        call("TodoWrite", "t1", todos=[{"content": "Read", "status": "in_progress"}]), id="msg_1", output=100
    )
    log.result("t1")
    log.reply(text("Done."), id="msg_2", output=50, read=1_000)
    return log


def _wk(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run([str(each) for each in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_session_whose_follower_was_killed_is_listed_as_ended_and_not_as_dead(capsys, db, logs):
    _wk(capsys, "import", _log().write(logs), "--db", db)
    connection = database.open_writable(db)
    connection.execute("UPDATE sessions SET status = 'running'")
    connection.close()
    _, out, _ = _wk(capsys, "sessions", "--db", db)
    assert "ended" in out
    assert "dead" not in out


def test_a_log_is_imported_and_then_listed_and_shown(capsys, db, logs):
    path = _log().write(logs)
    code, out, err = _wk(capsys, "import", path, "--db", db)
    assert (code, err) == (0, "")
    assert out == "1 log of 1 session; 4 records read\n"
    _, out, _ = _wk(capsys, "sessions", "--json", "--db", db)
    session = json.loads(out)[0]
    assert (session["origin"], session["goal"], session["status"], session["agents"], session["tasks"]) == (
        "claude-code",
        "Mend the cache",
        "done",
        1,
        1,
    )
    _, out, _ = _wk(capsys, "show", "last", "--json", "--db", db)
    shown = json.loads(out)
    assert [task["title"] for task in shown["plan"]["tasks"]] == ["Read"]
    assert shown["agents"][0]["tokens"]["output"] == 150


def test_the_machine_form_lists_everything(capsys: pytest.CaptureFixture[str], db: Path, logs: Path) -> None:
    path = _log().write(logs)
    with path.open("ab") as file:
        file.write(b'{"type":"brand-new"}\n\n{"half')
    (logs / "other.jsonl").write_text("{}\n")
    code, out, _ = _wk(capsys, "import", logs, "--json", "--db", db)
    found = json.loads(out)
    assert code == 0
    assert (found["read"], found["waiting"], found["lines"], found["skipped"]) == (4, 1, 7, {"empty line": 1})
    assert found["raw"] == [{"kind": "brand-new", "reason": "unknown record type", "lines": 1}]
    assert found["unknown"] == [str(logs / "other.jsonl")]


def test_a_program_means_its_usual_place(capsys, db, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    code, _, err = _wk(capsys, "import", "claude", "--db", db)
    assert code == 3
    assert err.startswith("wk: no Claude Code logs in ")
    _log().write(tmp_path / ".claude" / "projects" / "-home-somebody-project")
    code, out, _ = _wk(capsys, "import", "claude", "--db", db)
    assert (code, out.split(";")[0]) == (0, "1 log of 1 session")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / ".claude"))
    assert "1 unchanged" in _wk(capsys, "import", "claude", "--db", db)[1]


def test_why_the_first_files_cannot_be_read_is_said_without_being_asked(capsys, db, logs):
    for number in range(5):
        (logs / f"{number}.jsonl.gz").write_bytes(b"no archive")
    code, out, _ = _wk(capsys, "import", logs, "--db", db)
    assert code == 1
    assert "0.jsonl: " in out
    assert out.count("  unreadable  ") == 3
    assert "2 more unreadable; --verbose lists them" in out


@pytest.mark.parametrize("named", ["opencode", "opencode/storage", "opencode/storage/session/p/ses_1.json"])
def test_files_of_an_early_opencode_are_refused_with_what_to_do(capsys, db, tmp_path, monkeypatch, named):
    old = tmp_path / "opencode" / "storage" / "session" / "p" / "ses_1.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "opencode")  # `opencode` is then the program, and any other name a path
    code, out, err = _wk(capsys, "import", tmp_path / named if "/" in named else named, "--db", db)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Start a current OpenCode once to migrate them to its database" in err


def test_what_is_not_there_is_said_in_one_line(capsys: pytest.CaptureFixture[str], db: Path) -> None:
    code, _, err = _wk(capsys, "import", "/no/such/place", "--db", db)
    assert code == 3
    assert (
        err
        == "wk: no such file or folder: /no/such/place; give a path or a program (" + err.rpartition(" (")[2]
    )
    assert "claude" in err


@pytest.mark.parametrize(
    "command",
    [("pause", "last"), ("resume", "last"), ("cancel", "last"), ("compact", "last", "main"), ("undo", "last", "main"), ("steer", "last", "main", "hi"),
     ("rerun", "last", "1"), ("budget", "last", "--usd", "5")],
)  # fmt: skip
def test_an_imported_session_is_not_controlled(capsys, db, logs, command):
    _wk(capsys, "import", _log().write(logs), "--db", db)
    code, out, err = _wk(capsys, *command, "--db", db)
    assert (code, out) == (2, "")
    assert "was imported from Claude Code" in err
    assert err.count("\n") == 2


def test_both_kinds_of_cache_writes_are_priced_and_models_without_a_price_are_unpriced() -> None:
    call_made = ModelCall("", "k", "anthropic/claude-opus-4-6", 1_000, 2_000, 30_000, 5_000, 4_000, at=1.77e9)
    # $5 and $25 a million; reads a tenth, five-minute writes 1.25 times, one-hour writes twice.
    by_hand = (5 * (1_000 + 3_000 + 1.25 * 1_000 + 2 * 4_000) + 25 * 2_000) / 1e6
    assert logged_price(call_made).usd == pytest.approx(by_hand)
    assert logged_price(call_made).status is PriceStatus.EXACT
    assert logged_price(call_made._replace(exact=False)).status is PriceStatus.ESTIMATED
    assert logged_price(call_made._replace(model="anthropic/claude-unheard-of")).usd is None
    assert logged_price(call_made._replace(model="unknown")).status is PriceStatus.UNPRICED


@pytest.mark.parametrize(
    "model",
    [
        "anthropic/claude-opus-4-6",
        "anthropic/claude-sonnet-4-5-20250929",
        "openai/gpt-5",
        "google/gemini-2.5-pro",
    ],
)
@pytest.mark.parametrize("prompt", [0, 7, 150_000, 200_000, 200_001, 900_000])
def test_prices_are_those_of_our_own_calls_in_every_tier(model: str, prompt: int) -> None:
    for output in (0, 333):
        usage = Usage(prompt // 3, output, prompt // 3, prompt - 2 * (prompt // 3))
        made = ModelCall(
            "",
            "k",
            model,
            usage.input_tokens,
            output,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
            at=1.77e9,
        )
        assert logged_price(made).usd == pytest.approx(price(model, usage, at=1.77e9).usd)


def _start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "watchkeeper", *map(str, arguments)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def _until(store: Store, sql: str, wanted: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while store.one(sql) != wanted:
        assert time.monotonic() < deadline, f"{sql} never gave {wanted!r}"
        time.sleep(0.01)


@pytest.mark.parametrize("command", ["watch", "import"])
def test_a_log_is_followed_until_the_command_is_interrupted(store: Store, logs: Path, command: str) -> None:
    log = _log()
    path = log.write(logs)
    log.boundary()  # whose size afterwards nobody knows yet
    log.summary("All of it.")
    path.write_bytes(log.bytes)
    process = _start(command, path, *(["--follow"] if command == "import" else []), "--db", store.path)
    try:
        _until(store, "SELECT count(*) FROM messages", 4)
        for number in range(5, 8):
            with path.open("ab") as file:
                file.write(json.dumps(log.user(f"more {number}")).encode() + b"\n")
            _until(store, "SELECT count(*) FROM messages", number)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode in (0, 130)
        assert b"Traceback" not in output
    finally:
        if process.poll() is None:
            process.kill()
    assert store.one("SELECT status FROM agents") == "done"
    assert store.one("SELECT source FROM sessions") == f"claude-code:{SESSION}"


def test_an_import_that_was_killed_is_carried_on_to_the_same_end(store, open_store, tmp_path):
    make_logs(tmp_path / "logs", 12)
    whole = open_store("whole")
    whole.run(tmp_path / "logs")
    for wanted in (1, 1_500):
        process = _start("import", tmp_path / "logs", "--db", store.path)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while store.one("SELECT count(*) FROM messages") < wanted and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.kill()
        process.communicate()
        assert store.one("PRAGMA integrity_check") == "ok"
    store.run(tmp_path / "logs")
    assert store.counts() == whole.counts()
    for sql in (
        "SELECT id, output_tokens, model_calls, event_seq FROM sessions ORDER BY id",
        "SELECT id, turn, last_seq, message_tokens FROM agents ORDER BY id",
    ):
        assert store.all(sql) == whole.all(sql)


def test_a_folder_of_a_sessions_name_does_not_hide_the_session(capsys, db, logs, tmp_path, monkeypatch):
    _wk(capsys, "import", _log().write(logs), "--db", db)
    (tmp_path / "last").mkdir()
    monkeypatch.chdir(tmp_path)
    code, out, _ = _wk(capsys, "watch", "last", "--db", db)
    assert (code, "TodoWrite (1 task)" in out) == (0, True)
