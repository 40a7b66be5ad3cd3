"""Caps for sessions of other programs: each is said once, the hook denies the next agent, and what is unknown is said so."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.core.interop.test_hooks import SESSION, Claude

from watchkeeper.cli.imports import _guard
from watchkeeper.interop import hooks
from watchkeeper.interop.guard import Guard
from watchkeeper.interop.hook_spool import HookSpool
from watchkeeper.records.errors import BadInput
from watchkeeper.records.redact import Redactor
from watchkeeper.runtime.config import AlertSettings, load_config
from watchkeeper.store.guard import Caps

KEY = "value-of-a-secret-key"
REDACTOR = Redactor({"SOME_API_KEY": KEY})


class Watched(Claude):
    """A session of Claude Code that was imported, and the guard that looks at it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sent: list[dict[str, Any]] = []
        (folder / "config").mkdir()
        self.execute(
            "INSERT INTO sessions (id, user_id, goal, workspace, model, settings, origin, source, status, created_at, last_active,"
            " planner_agent_id, event_seq) VALUES ('imported', 'u', ?, '/w', '', '{}', 'claude-code', ?, 'running', 0, ?, 'main', 7)",
            f"\x1b[2Jgoal {KEY}", f"claude-code:{SESSION}", self.now,
        )  # fmt: skip
        self.agent("main")

    def execute(self, sql: str, *parameters: Any) -> None:
        self.writer.submit(lambda group: group.connection.execute(sql, parameters) and None).result()

    def agent(self, id: str) -> None:
        self.execute(
            "INSERT INTO agents (id, session_id, name, role, model, status, created_at, last_active) VALUES (?, 'imported', ?, '', '',"
            " 'working', 0, 0)", id, id,
        )  # fmt: skip

    def spend(self, usd: float | None, at: float) -> None:
        self.execute(
            "INSERT INTO model_calls (session_id, agent_id, turn, purpose, model, status, input_tokens, output_tokens, cost_usd,"
            " price_status, started_at) VALUES ('imported', 'main', 1, 'turn', 'm', 'done', 1, 1, ?, 'exact', ?)", usd, at,
        )  # fmt: skip
        self.execute(
            "UPDATE sessions SET cost_usd = (SELECT sum(cost_usd) FROM model_calls), unpriced_calls = (SELECT count(*) FROM"
            " model_calls WHERE cost_usd IS NULL)"
        )

    def say(self, seq: int, *inputs: Any, agent: str = "main") -> None:
        content = [{"type": "tool_use", "id": f"t{seq}", "name": "Read", "input": each} for each in inputs]
        self.execute(
            "INSERT INTO messages (agent_id, seq, role, content, tokens, total_tokens, created_at) VALUES (?, ?, 'assistant', ?, 1,"
            " 1, 0)", agent, seq, json.dumps(content or [{"type": "text", "text": "x"}]),
        )  # fmt: skip

    def guarded(self, caps: Caps, alerts: AlertSettings | None = None) -> HookSpool:
        """Another reader takes the place of the one before."""
        self.spool.close()
        alerts = alerts or AlertSettings(command=["/bin/true"])
        guard = Guard(self.writer, caps, alerts, REDACTOR, send=self.sent.append, now=lambda: self.now)
        self.spool = HookSpool(
            self.writer, REDACTOR, homes=[self.home], now=lambda: self.now, is_alive=lambda pid, started: True, guard=guard
        )  # fmt: skip
        assert self.spool._take_lock()
        return self.spool

    def events(self) -> list[tuple[str, str]]:
        rows = self.rows("SELECT kind, data FROM events WHERE session_id = 'imported' ORDER BY seq")
        return [(kind, json.loads(data)["text"]) for kind, data in rows]

    def spawn(self, tool: str = "Agent", session: str = SESSION, **more: Any) -> str:
        """What the hook answers before a session starts an agent."""
        payload = {
            "session_id": session,
            "cwd": "/work/project",
            "hook_event_name": "PreToolUse",
            "tool_name": tool,
            **more,
        }
        done = subprocess.run(
            ["/bin/sh", "-c", hooks.command_of(self.folder, "guard.sh")], input=json.dumps(payload, separators=(",", ":")).encode(),
            capture_output=True, check=True, env={}, timeout=30,
        )  # fmt: skip
        assert done.stderr == b""
        return done.stdout.decode()


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[Watched]:
    claude = Watched(tmp_path)
    claude.place_hooks = claude.install()  # type: ignore[attr-defined]
    yield claude
    claude.spool.close()
    claude.writer.close()


def reason(answer: str) -> str:
    told = json.loads(answer)["hookSpecificOutput"]
    assert (told["hookEventName"], told["permissionDecision"]) == ("PreToolUse", "deny")
    return str(told["permissionDecisionReason"])


def agents(claude: Watched) -> None:
    claude.agent("a")
    claude.agent("b")


def costly(claude: Watched) -> None:
    claude.spend(4.0, claude.now - 9_000)
    claude.spend(1.5, claude.now - 10)


def repeating(claude: Watched) -> None:
    claude.say(1, {"path": "a"})
    for seq in range(2, 6):
        claude.say(seq)
        claude.say(seq + 10, {"path": "b", "n": 1})


REACHED = [
    (agents, Caps(max_agents=2), Caps(max_agents=3), "2 agents started, and the cap is 2"),
    (costly, Caps(max_cost_per_session_usd=5.5), Caps(max_cost_per_session_usd=5.51), "cost of the session: $5.50, and the cap is $5.50"),
    (costly, Caps(max_cost_per_hour_usd=1.5), Caps(max_cost_per_hour_usd=1.51), "cost of the last hour: $1.50, and the cap is $1.50"),
    (repeating, Caps(max_identical_calls=4), Caps(max_identical_calls=5),
     "main made the same Read call 4 times in a row, and the cap is 4"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("happens", "cap", "higher", "text"), REACHED, ids=["agents", "session", "hour", "calls"]
)
def test_a_cap_that_is_reached_is_said_once_and_the_next_agent_is_denied(
    claude: Watched, happens: Callable[[Watched], None], cap: Caps, higher: Caps, text: str
) -> None:
    claude.look(claude.guarded(cap))
    assert claude.events() == []
    assert claude.spawn() == ""
    happens(claude)
    claude.look(claude.guarded(higher))
    assert (claude.events(), claude.sent, claude.spawn()) == ([], [], "")
    for _ in range(2):
        claude.look(claude.guarded(cap))  # also by another process
        claude.look()
    assert claude.events() == [("guard.reached", text)]
    (alert,) = claude.sent
    assert (alert["why"], alert["session_id"], alert["text"]) == ("cap", "imported", text)
    assert KEY not in json.dumps(alert)
    assert text in reason(claude.spawn())
    claude.look()
    assert claude.events()[1:] == [("guard.denied", "the hook denied Agent")]
    assert claude.rows("SELECT event_seq FROM sessions") == [(9,)]
    # The cap was raised.
    claude.look(claude.guarded(higher))
    assert claude.spawn() == ""
    assert os.listdir(claude.folder / "guard") == []


def test_a_cost_that_is_unknown_is_said_to_be_so_and_is_never_nothing(claude: Watched) -> None:
    claude.spend(None, claude.now - 5)
    caps = Caps(max_cost_per_session_usd=2.0, max_cost_per_hour_usd=9.0)
    claude.look(claude.guarded(caps))
    claude.look()
    assert claude.events() == [
        ("guard.unknown", "cost of the session: unknown; the cap of $2.00 cannot be checked"),
        ("guard.unknown", "cost of the last hour: unknown; the cap of $9.00 cannot be checked"),
    ]
    assert [alert["event"] for alert in claude.sent] == ["guard.unknown"] * 2
    assert claude.spawn() == ""
    claude.spend(2.5, claude.now - 4)  # what is known is enough
    claude.look()
    text = "cost of the session: $2.50 or more (1 call without a known price), and the cap is $2.00"
    assert claude.events()[2:] == [("guard.reached", text)]
    assert text in reason(claude.spawn())


def test_the_cost_of_an_hour_passes(claude: Watched) -> None:
    claude.spend(5.0, claude.now - 3_000)
    claude.look(claude.guarded(Caps(max_cost_per_hour_usd=5.0)))
    assert claude.spawn()
    claude.now += 601
    claude.execute("UPDATE sessions SET last_active = ?", claude.now)
    claude.look()
    assert claude.spawn() == ""


def test_other_sessions_and_other_text_of_a_call_are_not_mistaken_for_the_session(claude: Watched) -> None:
    agents(claude)
    claude.look(claude.guarded(Caps(max_agents=1)))
    assert claude.spawn(session="another") == ""
    assert claude.spawn(session="../installed.json") == ""
    text = f'"session_id":"{SESSION}"'
    assert claude.spawn(session="another", tool_input={"prompt": text, "session_id": SESSION}) == ""
    long = claude.spawn(tool_input={"prompt": text * 9_000})
    assert "2 agents started" in reason(long)


def test_without_a_reader_nothing_is_denied(claude: Watched) -> None:
    agents(claude)
    claude.look(claude.guarded(Caps(max_agents=1)))
    assert claude.spawn()
    claude.spool.close()
    assert claude.spawn() == ""


def test_the_hook_is_registered_for_tools_that_start_agents_where_a_cap_is_set(
    claude: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from watchkeeper.cli.app import run

    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(claude.home))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("CLAUDECODE", raising=False)
    install = ["hooks", "install", "claude", "--yes", "--db", str(claude.db)]
    assert run(install) == 0
    assert "PreToolUse" not in json.loads(claude.settings.read_text())["hooks"]
    (tmp_path / "config" / "config.toml").write_text("[guard]\nmax_agents = 3\n")
    assert run(install) == 0
    (entry,) = json.loads(claude.settings.read_text())["hooks"]["PreToolUse"]
    assert entry["matcher"] == "Task|Agent|spawn_agent"
    assert entry["hooks"][0]["command"] == hooks.command_of(claude.folder, "guard.sh")
    capsys.readouterr()
    assert run(["hooks", "status", "--db", str(claude.db)]) == 0
    assert "blocks new agents at a cap" in capsys.readouterr().out
    assert run(["hooks", "uninstall", "claude", "--yes", "--db", str(claude.db)]) == 0
    assert not claude.settings.exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("max_agents = 0", "guard.max_agents: 0 is out of range; write a number of at least 1"),
        ("max_agents = 2.5", "guard.max_agents: 2.5 is not valid; write a whole number"),
        ("max_cost_per_hour_usd = 0", "guard.max_cost_per_hour_usd: 0 is out of range; write a number above 0"),
        ("max_cost_per_hour_usd = nan", "guard.max_cost_per_hour_usd: "),
        ('max_cost_per_session_usd = "many"', "guard.max_cost_per_session_usd: 'many' is not valid; write a number"),
        ("max_identical_calls = 1", "guard.max_identical_calls: 1 is out of range; write a number of at least 2"),
        ("max_agent = 1", "guard.max_agent: unknown setting; did you mean max_agents?"),
    ],
)  # fmt: skip
def test_a_cap_that_cannot_be_one_is_refused_in_one_line(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "config.toml").write_text(f"[guard]\n{line}\n")
    with pytest.raises(BadInput) as refused:
        load_config(tmp_path)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_little_that_is_left_of_a_usage_window_is_said_once_where_no_run_is(claude: Watched) -> None:
    claude.execute(
        "INSERT INTO quota_readings (provider, account, scope, minutes, used_percent, resets_at, read_at, source, first_percent,"
        " first_at) VALUES ('anthropic', '', '', 300, 90, ?, ?, 'test', 90, ?)", claude.now + 60, claude.now, claude.now,
    )  # fmt: skip
    claude.look(claude.guarded(Caps(), AlertSettings()))
    assert claude.sent == [], "nobody is told, so nothing is said to be sent"
    claude.look(claude.guarded(Caps()))
    claude.look()
    (alert,) = claude.sent
    assert (alert["why"], alert["session_id"]) == ("quota", None)
    assert alert["text"].startswith("anthropic, unknown account, 5-hour: 10 % left, resets ")


@pytest.mark.parametrize(
    ("text", "caps"),
    [("", None), ("reduced_motion = true", None), ("[guard]\nmax_agents = 3", Caps(max_agents=3)), ("[alerts]\non = []", Caps())],
)  # fmt: skip
def test_the_process_that_follows_logs_looks_only_where_the_configuration_asks_for_it(
    claude: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, caps: Caps | None
) -> None:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "config" / "config.toml").write_text(text)
    found = _guard(claude.writer)
    assert (found and found._caps) == caps


@pytest.mark.parametrize("text", ["[guard]\nmax_agents = 0", "[guard"])
def test_caps_that_cannot_be_used_end_the_process_that_follows_logs(
    claude: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    (tmp_path / "config" / "config.toml").write_text(text)
    with pytest.raises(BadInput):
        _guard(claude.writer)
