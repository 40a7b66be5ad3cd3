"""A run calls the user's command and posts to the user's address when a person is needed, and never suffers by it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.core.runtime.conftest import Bench
from tests.core.runtime.test_outcome import edits, finishing
from tests.core.runtime.test_questions import shell
from tests.support.scripted import PlannedRun, task

from watchkeeper.records.quota import QuotaReading
from watchkeeper.runtime import background
from watchkeeper.store import database, sessions
from watchkeeper.store.driver import Queries
from watchkeeper.store.quota import note_readings

KEY = "sk-ant-" + "planted1" * 4


def configure(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "config.toml").write_text("\n".join(("[alerts]", *lines)))
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    bench.start(PlannedRun([task("a", role="coder")], shell(f"echo '\x1b[31m{KEY}'")))


def writer(log: Path, then: str = "") -> str:
    """A command that adds what it gets to a file."""
    program = f"import sys; open({str(log)!r}, 'a').write(sys.stdin.read() + chr(10)); {then}"
    return f"command = {json.dumps([sys.executable, '-S', '-c', program])}"


def sent(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address, and what was posted to it; it answers with a redirect, which nobody follows."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(302)
            self.send_header("location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", posted
    server.shutdown()
    server.server_close()


async def test_each_need_is_sent_once_in_order_without_secrets_or_control_characters(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: tuple[str, list[dict[str, Any]]]
) -> None:
    address, posted = hook
    log = tmp_path / "log"
    configure(bench, tmp_path, monkeypatch, writer(log), f'webhook = "{address}"')
    assert (await bench.run()).exit_code == 0
    assert [alert["why"] for alert in sent(log)] == ["question", "finished"]
    assert sent(log) == posted
    question = posted[0]
    assert (question["session_id"], question["task"]) == (bench.session, "a")
    assert question["look"] == f"wk approve --show {bench.session}"
    assert "planted1" not in log.read_text()
    assert not any(
        ord(character) < 32 for alert in posted for value in alert.values() for character in str(value)
    )
    rows = bench.query("SELECT data FROM events WHERE kind = 'host.warning'")
    assert [row[0] for row in rows if "the webhook returned status 302" in row[0]] == [rows[0][0]]


async def test_a_usage_window_of_which_little_is_left_is_said_once(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    configure(bench, tmp_path, monkeypatch, writer(log), 'on = ["quota"]')
    now = time.time()
    connection = database.open_writable(bench.path)
    used = QuotaReading("anthropic", f"{KEY}\x1b[31m", "", 10_080, 88, None, now, "test")
    note_readings(Queries(connection), connection.execute, [used])
    connection.close()
    assert (await bench.run()).exit_code == 0
    (alert,) = sent(log)
    assert (alert["why"], alert["title"], alert["look"]) == ("quota", "weekly", "wk usage")
    assert alert["text"].endswith("weekly: 12 % left, reset unknown")
    assert "planted1" not in log.read_text()
    assert bench.query("SELECT alerted_percent FROM quota_readings") == [(20,)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('command = ["/nowhere/notify"]', "did not start"),
        (
            f"command = {json.dumps([sys.executable, '-S', '-c', 'raise SystemExit(3)'])}",
            "exited with code 3",
        ),
        (
            f"command = {json.dumps([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])}",
            "was stopped",
        ),
        ('webhook = "http://127.0.0.1:9/hook"', "cannot reach the webhook"),
    ],
    ids=["absent", "fails", "hangs", "refused"],
)
async def test_a_command_that_fails_or_hangs_costs_one_warning(bench, tmp_path, monkeypatch, line, says):
    monkeypatch.setattr(background, "ALERT_TIMEOUT_SECONDS", 0.2)
    configure(bench, tmp_path, monkeypatch, line)
    assert (await bench.run()).exit_code == 0
    rows = bench.query("SELECT data FROM events WHERE kind = 'host.warning'")
    assert len([row for row in rows if says in row[0]]) == 1
    bench.assert_sound()


def without_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)


def with_a_proxy_that_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "socksio", None)


def with_a_damaged_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "decode", lambda text: ["of another shape"])


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (without_client, "the webhook failed: ModuleNotFoundError"),
        (with_a_proxy_that_needs_a_package, "the webhook failed: ImportError"),
        (with_a_damaged_event, "alert not delivered: AttributeError"),
    ],
)
async def test_no_failure_of_an_alert_stops_a_run_or_the_alert_by_the_other_way(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any, says: str
) -> None:
    log = tmp_path / "log"
    configure(bench, tmp_path, monkeypatch, writer(log), 'webhook = "http://127.0.0.1:9/hook"')
    with monkeypatch.context() as patched:
        fault(patched)
        assert (await bench.run()).exit_code == 0
    warnings = bench.query("SELECT data FROM events WHERE kind = 'host.warning'")
    assert [row[0] for row in warnings if says in row[0]] == [row[0] for row in warnings]
    assert len(warnings) == 1
    if fault is not with_a_damaged_event:
        assert [alert["why"] for alert in sent(log)] == ["question", "finished"]
    bench.assert_sound()


async def test_only_the_chosen_needs_are_sent(bench, tmp_path, monkeypatch):
    log = tmp_path / "log"
    configure(bench, tmp_path, monkeypatch, writer(log), 'on = ["finished"]')
    await bench.run()
    assert [alert["why"] for alert in sent(log)] == ["finished"]


async def test_an_alert_of_the_end_begins_with_the_outcome(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    configure(bench, tmp_path, monkeypatch, writer(log), 'on = ["finished"]')
    bench.start(finishing("# All bugs are fixed\n\nSee the notes.", work=edits), allow=("write", "edit"))
    assert (await bench.run()).exit_code == 0
    (alert,) = sent(log)
    assert alert["text"].startswith("# All bugs are fixed See the notes.")
    assert "notes.md" in alert["text"]
    assert "Files edited: a.py" in alert["text"]
