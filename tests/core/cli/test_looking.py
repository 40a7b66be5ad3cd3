"""Commands that only read: their JSON forms are stable, and they show hostile text harmless."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.core.cli.conftest import LAST, Wk, change, rows
from tests.core.library.conftest import add_session

from watchkeeper.cli import control
from watchkeeper.cli.app import COMMANDS, HIDDEN
from watchkeeper.cli.options import ACTS, LOOKS
from watchkeeper.cli.watch import discover
from watchkeeper.models.registry import list_prices, listed_models, price
from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.messages import CostClasses, Usage, cost_classes, rates_on
from watchkeeper.store import database
from watchkeeper.store.driver import sqlite3
from watchkeeper.store.replay import open_recording
from watchkeeper.store.snapshot import SessionSnapshotReader
from watchkeeper.store.statistics import GROUPS
from watchkeeper_tui.widgets.panes import context_bar

NASTY = "\x1b]0;owned\x07\x1b[31mred\x1b[0m\u202eevil\u009b2J\r\nnext"
HARMFUL = {"\x1b", "\x07", "\u202e", "\u009b", "\r"}


def add_message(path: Path, text: str) -> None:
    change(path, "INSERT INTO messages (agent_id, seq, role, content, tokens, total_tokens, created_at)"
                 " SELECT id, 9999, 'user', ?, 1, 1, 1 FROM agents LIMIT 1", json.dumps(text))  # fmt: skip


def test_sessions_is_an_array_newest_first(wk: Wk, demo: Path) -> None:
    listed = wk("sessions", "--json").json
    assert isinstance(listed, list)
    (one,) = listed
    assert one["status"] == "done"
    assert one["live"] is False
    assert one.keys() >= {
        "id", "user_id", "created_at", "last_active", "goal", "workspace", "model", "tokens", "cost_usd",
    }  # fmt: skip
    assert one["tokens"].keys() >= {"input", "output", "cache_read", "cache_write", "total"}


@pytest.mark.parametrize("options", [(), ("--json",), ("--search", "goal")])
def test_a_list_that_is_cut_says_so(wk: Wk, demo: Path, options: tuple[str, ...]) -> None:
    with closing(sqlite3.connect(demo, isolation_level=None)) as connection:
        for number in range(3):
            add_session(connection, f"other{number}", last_active=1.0 + number)
    cut, whole = wk("sessions", *options, "--limit", "2"), wk("sessions", *options, "--limit", "4")
    assert "showing the 2 most recently active" in cut.err
    assert "--limit shows more" in cut.err
    assert whole.err == ""


def test_before_the_first_run_there_are_no_sessions(wk: Wk, tmp_path: Path) -> None:
    for arguments in ((), ("--search", "anything")):
        listed = wk("sessions", "--json", *arguments)
        assert (listed.code, listed.json, listed.err) == (0, [], "")
        told = wk("sessions", *arguments)
        assert told.code == 0
        assert f"no sessions yet: no database at {tmp_path / 'watchkeeper.db'}; start one" in told.out
    assert not (tmp_path / "watchkeeper.db").exists()
    assert wk("show").code == 2


@pytest.mark.parametrize("is_parked", [True, False])
def test_lists_and_show_name_the_usage_limit_that_stops_a_session(
    wk: Wk, demo: Path, is_parked: bool
) -> None:
    said, until = "You've hit your session limit · resets 8pm (Europe/Paris)", time.time() + 7_290
    if is_parked:
        change(demo, "UPDATE agents SET status = 'parked', parked_until = ?, status_reason = ?", until, said)
        change(demo, "UPDATE sessions SET status = 'running'")
    else:
        change(
            demo, "UPDATE sessions SET status = 'paused', status_reason = ?", "codex: weekly limit reached"
        )
    name = "session" if is_parked else "weekly"
    (listed,) = wk("sessions", "--json").json
    assert listed["usage_limit"] == {"name": name, "ends_at": until if is_parked else None}
    assert wk("show", "--json").json["session"]["usage_limit"] == listed["usage_limit"]
    words = "session limit until" if is_parked else "weekly limit, reset time unknown"
    assert words in wk("sessions").out
    assert f"stopped: {words}" in wk("show").out


def test_a_session_without_a_usage_limit_names_none(wk: Wk, demo: Path) -> None:
    change(demo, "UPDATE sessions SET status_reason = 'I explained what \"weekly limit reached\" means'")
    assert wk("sessions", "--json").json[0]["usage_limit"] is None
    assert "stopped: " not in wk("show").out


class TestLast:
    """`last` is the newest own run for a command that acts, and the session active last for one that looks."""

    @pytest.fixture
    def own(self, demo: Path) -> str:
        """An imported session is active after the demo, and another was imported later; returns the demo's id."""
        connection = sqlite3.connect(demo, isolation_level=None)
        ((own,),) = connection.execute("SELECT id FROM sessions").fetchall()
        add_session(connection, "imported", origin="claude-code", created_at=1.0, last_active=9e9)
        add_session(connection, "idle", origin="codex", created_at=2.0, last_active=2.0)
        connection.close()
        return str(own)

    @pytest.mark.parametrize(
        "command",
        [["show", "--json"], ["export", "-o", "-"], ["artifacts", "--json"], ["memory", "status", "--json"],
         ["memory", "views", "planner", "--json"], ["agent", "report", "--json"], ["watch"]],
        ids=" ".join,
    )  # fmt: skip
    def test_what_only_looks_needs_no_session_and_means_the_one_active_last(
        self, wk: Wk, own: str, command: list[str]
    ) -> None:
        words = 2 if command[0] in ("memory", "agent") else 1
        said = wk(*command)
        assert said.code == 0
        assert said.last == "imported (Claude Code): goal of imported"
        assert said.out == wk(*command[:words], "imported", *command[words:]).out
        assert said.out != wk(*command[:words], own, *command[words:]).out

    @pytest.mark.parametrize(
        "command",
        [["resume"], ["pause"], ["rerun"], ["steer"], ["compact"], ["undo"], ["redo"], ["cancel"], ["budget"],
         ["memory", "sync"], ["memory", "pin"], ["memory", "unpin"], ["fork"], ["edit"], ["delete"]],
        ids=" ".join,
    )  # fmt: skip
    def test_what_writes_names_a_session(self, wk: Wk, own: str, command: list[str]) -> None:
        said = wk(*command)
        assert said.code == 2
        assert "SESSION" in said.error

    @pytest.mark.parametrize("command", ["approve", "deny"])
    def test_an_answer_without_a_session_lists_what_waits(self, wk: Wk, own: str, command: str) -> None:
        said = wk(command)
        assert (said.code, said.out) == (0, "no pending questions\n")

    @pytest.mark.parametrize(
        "command",
        [["resume"], ["pause"], ["pause", "planner"], ["steer", "planner", "hi"], ["cancel"], ["budget", "--tokens", "5"],
         ["rerun", "no-such-task"], ["compact", "no-such-agent"], ["undo", "no-such-agent"], ["redo", "no-such-agent"],
         ["approve", "no-such"], ["deny", "no-such"], ["fork", "--at", "99999"], ["edit", "--title", "A title"], ["edit", "--tag", "one"]],
        ids=" ".join,
    )  # fmt: skip
    def test_what_controls_means_the_newest_session_that_was_run_here(self, wk, own, command):
        name, *rest = command
        by_last, by_id = wk(*name.split(), "last", *rest), wk(*name.split(), own, *rest)
        said = [line for line in by_last.err.splitlines() if not line.startswith(LAST)]
        assert by_last.last.startswith(f"{own} (Watchkeeper): ")
        assert (by_last.code, by_last.out, said) == (by_id.code, by_id.out, by_id.err.splitlines())

    def test_a_command_that_changes_the_list_means_the_newest_own_run_too(self, wk: Wk, own: str) -> None:
        assert wk("delete", "last", "--json").json["session"] == own

    @pytest.mark.parametrize(
        "command",
        ["show", "export", "watch", "artifacts", "pause", "resume", "steer", "cancel", "delete"],
    )
    def test_the_help_says_which_session_last_is(self, wk: Wk, command: str) -> None:
        acts = command in ("pause", "resume", "steer", "cancel", "delete")
        assert " ".join((ACTS if acts else LOOKS).split()) in " ".join(wk(command, "--help").out.split())

    @pytest.mark.parametrize("command", [["sync"], ["pin", "#1"], ["unpin", "1"]], ids=" ".join)
    def test_what_changes_the_memory_does_too(self, wk, own, command, monkeypatch):
        meant: list[str] = []
        monkeypatch.setattr(control, "command", lambda opened, *_, **__: meant.append(opened.session_id) or 0)
        name, *rest = command
        assert wk("memory", name, "last", *rest).code == 0
        assert meant == [own]

    def test_the_dashboard_opens_what_watch_opens(self, wk: Wk, demo: Path, own: str) -> None:
        from watchkeeper_tui.app import _newest

        assert _newest(demo, "live") == ("imported", "live")


def test_a_resume_of_a_finished_session_says_already_done_on_standard_error(wk: Wk, demo: Path) -> None:
    said = wk("resume", "last")
    assert said.code == 0
    assert "already done" in said.error
    said = wk("resume", "last", "--json")
    assert (said.code, said.json["status"]) == (0, "done")
    assert "already done" in said.err


def test_sessions_are_found_by_what_they_hold(wk: Wk, demo: Path) -> None:
    assert len(wk("sessions", "--search", "their bytes", "--json").json) == 1
    assert wk("sessions", "--search", "a100%sure", "--json").json == []
    assert "no sessions with" in wk("sessions", "--search", "a100%sure").out


def test_a_search_shows_the_words_in_their_context(wk: Wk, demo: Path) -> None:
    (one,) = wk("sessions", "--search", "surveyor state:done", "--json").json
    assert one["found"].keys() == {"agent", "seq", "pieces"}
    assert any(found and text.lower().startswith("surveyor") for text, found in one["found"]["pieces"])
    assert f"#{one['found']['seq']}: " in wk("sessions", "--search", "surveyor").out
    assert wk("sessions", "--search", "surveyor state:failed", "--json").json == []


def test_a_host_that_has_ended_leaves_every_message_indexed(demo: Path) -> None:
    assert rows(demo, "SELECT indexed_through = (SELECT max(id) FROM messages) FROM message_index") == [(1,)]


def test_a_search_of_a_file_that_cannot_be_written_finds_what_is_not_indexed(wk, demo, monkeypatch):
    add_message(demo, "a kraken")

    def refuse(path: Path) -> None:
        raise StoreUnusable(f"{path} cannot be written")

    monkeypatch.setattr("watchkeeper.cli.show.database.open_writable", refuse)
    (one,) = wk("sessions", "--search", "kraken", "--json").json
    assert one["found"]["seq"] == 9999


def test_a_found_message_is_harmless_for_the_terminal(wk: Wk, demo: Path) -> None:
    add_message(demo, f"kraken {NASTY} squid{NASTY}")
    shown = wk("sessions", "--search", "kraken").out
    assert "kraken" in shown
    assert not HARMFUL & set(shown)


def test_show_rebuilds_the_whole_state_from_the_file(wk: Wk, demo: Path) -> None:
    shown = wk("show", "last", "--json").json
    assert shown.keys() >= {
        "session", "plan", "agents", "compactions", "observations", "budgets", "handoffs", "memory_snapshots", "artifacts", "commands",
        "approvals", "facts",
    }  # fmt: skip
    assert shown["session"].keys() >= {
        "session_id", "user_id", "created_at", "last_active", "goal", "workspace",
    }  # fmt: skip
    plan = shown["plan"]
    assert plan.keys() >= {
        "goal", "task_queue", "current_plan_id", "step_cursor", "plan_graph_snapshot", "revisions", "tasks",
    }  # fmt: skip
    figures = {"tokens", "cost_usd", "elapsed_seconds", "retries", "errors"}
    for task in plan["tasks"]:
        assert task.keys() >= figures | {"id", "title", "status", "attempt", "agent", "depends_on"}
        assert task.keys() >= {"task_id", "parent_plan_id", "assigned_agent", "resume_token", "artifact_refs"}
        assert (task["status"], task["attempt"]) == ("done", 1)
    ids = {task["id"] for task in plan["tasks"]}
    assert set(plan["tasks"][-1]["depends_on"]) == ids - {plan["tasks"][-1]["id"]}
    for agent in shown["agents"]:
        assert agent.keys() >= figures | {"id", "role", "status", "turn", "context", "current_goal"}
        assert agent["context"].keys() >= {"used", "limit", "composition"}
        assert 0 < agent["context"]["used"] <= agent["context"]["limit"]
    for handoff in shown["handoffs"]:
        assert handoff.keys() >= {
            "session_id", "plan_id", "task_id", "assigned_agent", "inputs_ref", "memory_delta_ref", "expected_outputs",
        }  # fmt: skip
    assert all(
        one.keys() >= {"agent_id", "memory_blob_ref", "last_updated"} for one in shown["memory_snapshots"]
    )
    assert len(shown["memory_snapshots"]) == len(shown["agents"])


def test_show_tells_people_the_same(wk: Wk, demo: Path) -> None:
    shown = wk("show", "last")
    assert shown.code == 0
    assert "background process" not in shown.out
    for word in ("revision 1", "Write the survey", "synthesis (writer)", "planner"):
        assert word in shown.out


def test_artifacts_are_listed_and_printed_byte_for_byte(wk: Wk, demo: Path) -> None:
    names = {one["name"] for one in wk("artifacts", "last", "--json").json}
    assert names >= {"SURVEY.md", "survey.json"}
    survey = json.loads(wk("artifacts", "last", "survey.json").out)
    assert survey["files"] > 0
    ref = next(one["ref"] for one in wk("artifacts", "last", "--json").json if one["name"] == "SURVEY.md")
    assert wk("artifacts", "last", ref).out == wk("artifacts", "last", "SURVEY.md").out
    assert "SURVEY.md" in wk("artifacts", "last").out


def test_memory_status_lists_every_agent_with_its_resume_point(wk: Wk, demo: Path) -> None:
    listed = wk("memory", "status", "--json").json
    assert len(listed) == len(wk("show", "last", "--json").json["agents"])
    for one in listed:
        assert one["tokens"] > 0
        assert one["last_updated"] is not None
        assert one["resume_point"].startswith(one["agent_id"])
    assert wk("memory", "status", "last").out.count("resumes at") == len(listed)


def test_memory_search_finds_facts_by_words_and_survives_any_query(wk: Wk, demo: Path) -> None:
    ((text,),) = rows(demo, "SELECT text FROM facts LIMIT 1")
    word = next(word for word in text.split() if word.isalpha())
    assert any(word in one["text"] for one in wk("memory", "search", word, "--json").json)
    for query in ('"', "*", "NOT", "a AND", "col:x", "-", "", "(((", "'; DROP TABLE facts"):
        said = wk("memory", "search", query, "--json")
        assert said.code in (0, 2)
        assert said.code or isinstance(said.json, list)
        assert "internal error" not in said.err, query


def test_agent_report_says_who_did_what_and_what_remains(wk: Wk, demo: Path) -> None:
    report = wk("agent", "report", "last", "--json").json
    assert report["remains"] == []
    writer = next(one for one in report["agents"] if one["role"] == "writer")
    assert "SURVEY.md" in writer["artifacts"]
    assert writer["result"]
    assert "remains: nothing" in wk("agent", "report").out


def test_watch_without_a_terminal_prints_what_happened_and_ends_with_the_session(wk: Wk, demo: Path) -> None:
    said = wk("watch")
    assert said.code == 0
    assert "turn 1 · calls list_folder" in said.out
    assert "✓ done" in said.out


def test_watching_several_without_a_terminal_prints_a_line_each(wk: Wk, demo: Path) -> None:
    said = wk("watch", "--all")
    assert said.code == 0
    assert "done" in said.out
    assert "tasks" in said.out
    assert wk("watch", "last", "last").out == said.out
    assert "--all" in wk("watch", "last", "--all").error


def test_doctor_tells_what_runs_here(wk: Wk, demo: Path) -> None:
    told = wk("doctor", "--json").json
    assert told["ok"] is True
    assert {check["what"] for check in told["checks"]} >= {
        "sqlite", "tiktoken", "containment", "database", "integrity",
    }  # fmt: skip


def test_doctor_reports_commands_that_failed_and_those_that_stay_queued(wk: Wk, demo: Path) -> None:
    def commands() -> list[tuple[str, str]]:
        told = wk("doctor", "--quick", "--json").json
        return [(one["state"], one["detail"]) for one in told["checks"] if one["what"] == "commands"]

    assert commands() == [("ok", "all commands were answered")]
    connection = sqlite3.connect(demo)
    (session,) = connection.execute("SELECT id FROM sessions LIMIT 1").fetchone()
    insert = (
        "INSERT INTO commands (session_id, kind, status, result, requested_by, created_at, applied_at, commit_seq)"
        " VALUES (?, ?, ?, ?, 'me', ?, ?, 1)"
    )
    now = time.time()
    connection.execute(insert, (session, "edit", "failed", "KeyError: 5" + NASTY, now - 60, now - 50))
    connection.execute(insert, (session, "undo", "queued", None, now - 60, None))
    connection.commit()
    connection.close()
    (failed, queued) = commands()
    assert failed[0] == queued[0] == "warn"
    assert "1 failed" in failed[1]
    assert "edit of session" in failed[1]
    assert "KeyError: 5" in failed[1]
    assert "1 not applied yet; the latest is undo of session" in queued[1]
    assert "\x1b" not in wk("doctor", "--quick").out


def test_doctor_names_a_session_that_a_stopped_fork_left_half_written(wk: Wk, demo: Path) -> None:
    def unfinished() -> list[str]:
        told = wk("doctor", "--quick", "--json").json
        return [one["detail"] for one in told["checks"] if one["what"] == "unfinished"]

    assert unfinished() == []
    with closing(sqlite3.connect(demo, isolation_level=None)) as connection:
        add_session(connection, "half2345", deleted_at=0.0)
    (detail,) = unfinished()
    assert detail.startswith("half2345: incomplete")
    assert wk("delete", "--prune", "--yes").code == 0
    assert unfinished() == []


def test_text_of_models_and_people_is_shown_harmless(wk: Wk, demo: Path) -> None:
    connection = sqlite3.connect(demo)
    connection.execute("UPDATE sessions SET goal = ?1, title = ?1, status_reason = ?1", (NASTY,))
    connection.execute("UPDATE tasks SET title = ?1, result = ?1, error = ?1, name = name || ?1", (NASTY,))
    connection.execute("UPDATE agents SET name = name || ?1, status_reason = ?1", (NASTY,))
    connection.execute("UPDATE facts SET text = ?1, sources = json_array(?1)", (NASTY,))
    connection.execute("UPDATE outputs SET name = name || ?1", (NASTY,))
    connection.execute(
        "UPDATE events SET data = json_object('title', ?1, 'preview', ?1, 'reason', ?1, 'name', ?1)", (NASTY,)
    )
    connection.commit()
    connection.close()
    for command in (
        "sessions", "show last", "artifacts last", "agent report", "memory status", "watch", "resume last", "artifacts last missing",
        "steer last nobody hi", "rerun last nothing",
    ):  # fmt: skip
        said = wk(*command.split())
        assert not HARMFUL & set((said.out + said.err).replace("\r\n", "\n")), command
        assert "internal error" not in said.err


@pytest.mark.parametrize(
    "command",
    [name for name in COMMANDS if name not in HIDDEN] + ["memory status", "memory search", "agent report"],
)
def test_every_command_explains_itself(wk: Wk, command: str) -> None:
    said = wk(*command.split(), "--help")
    assert (said.code, said.err) == (0, "")
    usage, text = said.out.partition("Usage: ")[2].split("\n\n", maxsplit=1)
    assert usage.startswith(f"wk {command}")
    assert len(text.partition("\n")[0].strip()) > 20, "no sentence says what it does"
    options = said.out.partition("Options:\n")[2]
    assert "--help" in options


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(wk: Wk, shell: str) -> None:
    said = wk("completion", shell)
    assert said.code == 0
    assert "_WK_COMPLETE" in said.out


def test_sessions_are_completed_the_newest_first(demo: Path) -> None:
    from watchkeeper.cli.app import wk as command

    resume = command.get_command(None, "resume")  # type: ignore[arg-type]
    assert resume is not None
    context = resume.make_context("resume", ["last", "--db", str(demo)], resilient_parsing=True)
    argument = next(one for one in resume.params if one.name == "session")
    assert [one.value for one in argument.shell_complete(context, "la")] == ["last"]
    with closing(sqlite3.connect(demo, isolation_level=None)) as connection:
        ((own,),) = connection.execute("SELECT id FROM sessions").fetchall()
        add_session(connection, "imported", origin="claude-code", created_at=1.0, last_active=1.0)
    assert [one.value for one in argument.shell_complete(context, "")] == ["last", "imported", own]


def test_the_versions_of_a_context_are_listed_with_the_one_now_shown(wk: Wk, demo: Path) -> None:
    listed = wk("memory", "views", "last", "planner", "--json").json
    assert [one["version"] for one in listed] == sorted(one["version"] for one in listed)
    assert sum(one["current"] for one in listed) == 1
    assert listed[0]["parent"] is None
    assert len(wk("memory", "views", "last", "planner").out.splitlines()) == len(listed)


def test_a_cost_is_labelled_an_estimate_or_a_lower_bound_wherever_it_is_told(wk: Wk, demo: Path) -> None:
    connection = sqlite3.connect(demo)
    agent = connection.execute("SELECT id FROM agents ORDER BY rowid LIMIT 1").fetchone()[0]
    connection.execute(
        "UPDATE model_calls SET cost_usd = 0.5, price_status = 'exact', usage_exact = 1 WHERE agent_id = ?",
        (agent,),
    )
    connection.execute("UPDATE agents SET cost_usd = 0.5, unpriced_calls = 0 WHERE id = ?", (agent,))
    connection.execute("UPDATE sessions SET cost_usd = 0.5, unpriced_calls = 0")
    connection.commit()
    assert " $0.50  " in wk("sessions").out
    assert wk("sessions", "--json").json[0]["cost_estimated"] is False
    connection.execute("UPDATE model_calls SET usage_exact = 0 WHERE agent_id = ?", (agent,))
    connection.execute("UPDATE sessions SET unpriced_calls = 2")
    connection.commit()
    connection.close()
    assert " ~$0.50+  " in wk("sessions").out
    assert wk("sessions", "--json").json[0]["cost_estimated"] is True
    assert "cost ~$0.50+ " in wk("show").out
    whole = wk("show", "--json").json
    assert whole["session"]["cost_estimated"] is True
    assert {one["id"] for one in whole["agents"] if one["cost_estimated"]} == {agent}


def test_a_window_that_is_unknown_is_unknown_to_every_surface(wk: Wk, demo: Path) -> None:
    connection = sqlite3.connect(demo)
    connection.execute("UPDATE agents SET context_limit = 0")
    connection.commit()
    connection.close()
    for agent in wk("show", "last", "--json").json["agents"]:
        assert (agent["context"]["limit"], agent["context"]["percent"]) == (None, None)
    for agent in wk("memory", "status", "last", "--json").json:
        assert (agent["limit"], agent["percent"]) == (None, None)
    lines = wk("memory", "status", "last").out.splitlines()
    assert [line for line in lines if " tok " in line and "/? tok    -" not in line] == []
    assert any("/? tok" in line for line in lines)


def test_every_surface_gives_a_context_the_same_size(wk: Wk, demo: Path, tmp_path: Path) -> None:
    """What the next call would send: system prompt, tools and the view, against the window."""

    def sizes(path: Path) -> dict[str, tuple[int, int, int | None]]:
        shown = wk("show", "last", "--json", "--db", path).json["agents"]
        stated = wk("memory", "status", "last", "--json", "--db", path).json
        text, status = wk("show", "last", "--db", path).out, wk("memory", "status", "last", "--db", path).out
        connection = database.open_readonly(path)
        session = connection.execute("SELECT id FROM sessions").fetchone()[0]
        reading = SessionSnapshotReader(session).read(connection, 0.0)
        recording = open_recording(connection, session)
        assert reading is not None
        assert recording is not None
        replayed = {
            agent.id: agent for agent in recording.at(connection, len(recording.times)).reading.agents
        }
        connection.close()
        found = {}
        for agent, one, facts in zip(shown, stated, reading.agents, strict=True):
            context, parts = agent["context"], dict(facts.composition)
            spent = sum(parts[kind] for kind in ("overhead", "observations", "messages", "elided"))
            size = (spent, facts.context_limit, round(100 * spent / facts.context_limit))
            assert parts["overhead"] > 500
            assert (context["used"], context["limit"], context["percent"]) == size
            assert (one["tokens"], one["limit"], one["percent"]) == size
            assert (facts.context_used, facts.context_limit) == size[:2]
            assert replayed[agent["id"]].context_used == spent
            assert f" {agent['status']:<9} turn {agent['turn']:<4} context {spent:>7,} {size[2]:>3}%" in text
            assert f" {agent['status']:<9} {spent:>7,}/{size[1]:,} tok {size[2]:>3}%" in status
            assert "".join(
                piece for piece, _ in context_bar(facts.context_used, facts.context_limit)
            ).endswith(f"{size[2]}%")
            found[agent["name"]] = size
        return found

    here = sizes(demo)
    assert len(here) > 2
    assert wk("export", "last", "--format", "json", "--output", tmp_path / "e.json").code == 0
    assert wk("import", tmp_path / "e.json", "--db", tmp_path / "imported.db").code == 0
    assert sizes(tmp_path / "imported.db") == here


def test_a_preview_shows_the_prompt_that_a_change_leads_to_and_changes_nothing(wk: Wk, demo: Path) -> None:
    before = (
        demo.read_bytes(),
        rows(demo, "SELECT count(*) FROM commands"),
        rows(demo, "SELECT count(*) FROM views"),
    )
    dropped = wk("memory", "edit", "last", "planner", "--drop", "3", "--preview", "--json").json
    assert dropped.keys() >= {
        "agent_id", "name", "model", "tokens_before", "tokens", "limit", "cache_tokens_void", "cache_tokens_written",
        "cost_usd", "high_water", "messages_cached", "messages_removed", "messages", "sizes",
    }  # fmt: skip
    assert dropped["tokens"] == sum(dropped["sizes"]) < dropped["tokens_before"]
    assert dropped["messages_cached"] == 2, "the prompt changes from the third message on"
    assert dropped["cache_tokens_written"] == sum(dropped["sizes"][2:])
    pinned = wk("memory", "edit", "last", "planner", "--pin", "3", "--preview").out
    assert "the prompt cache stays valid" in pinned
    assert wk("compact", "last", "planner", "--preview", "--json").json["high_water"] > 1
    refused = wk("memory", "edit", "last", "planner", "--unpin", "3", "--preview")
    assert (refused.code, refused.error) == (2, "Message 3 is not pinned.")
    after = (
        demo.read_bytes(),
        rows(demo, "SELECT count(*) FROM commands"),
        rows(demo, "SELECT count(*) FROM views"),
    )
    assert after == before


class TestUsage:
    """`wk usage` counts each model call of every session once."""

    @pytest.fixture
    def spent(self, demo: Path) -> Path:
        change(demo, "UPDATE model_calls SET cost_usd = 0.25 * (1 + id % 3), price_status = 'exact'")
        return demo

    @pytest.mark.parametrize("by", GROUPS)
    def test_every_grouping_adds_up_to_the_calls_of_the_sessions(self, wk: Wk, spent: Path, by: str) -> None:
        told = wk("usage", "--by", by, "--json").json
        tokens = "input_tokens + output_tokens + cache_read_tokens + cache_write_tokens"
        (expected,) = rows(spent, f"SELECT count(*), sum({tokens}), sum(cost_usd) FROM model_calls")
        for shown in (
            told["total"],
            {name: sum(row[name] for row in told["rows"]) for name in ("model_calls", "cost_usd")},
        ):
            assert (shown["model_calls"], shown["cost_usd"]) == (expected[0], pytest.approx(expected[2]))
        assert (
            sum(row["tokens"]["total"] for row in told["rows"])
            == told["total"]["tokens"]["total"]
            == expected[1]
        )
        table, _, rest = wk("usage", "--by", by).out.partition("usage windows: unknown\n")
        assert len(table.splitlines()) == len(told["rows"]) + 2
        assert rest.startswith("last hour\n")

    def test_what_is_left_of_usage_windows_and_the_burn_are_said(self, wk: Wk, spent: Path) -> None:
        now = time.time()
        for account, resets_at in (("one", now + 3_600), ("", now - 60)):
            change(
                spent,
                "INSERT INTO quota_readings (provider, account, scope, minutes, used_percent, resets_at, read_at, source,"
                " first_percent, first_at) VALUES ('anthropic', ?, '', 300, 70, ?, ?, 'test', 50, ?)",
                account, resets_at, now - 90, now - 3_690,
            )  # fmt: skip
        told = wk("usage", "--json").json
        assert [(each["account"], each["left_percent"]) for each in told["quota"]] == [
            (None, None),
            ("one", 30),
        ]
        assert told["quota"][1]["runs_out_at"] == pytest.approx(now - 90 + 5_400)
        (burning,) = told["last_hour"]
        assert burning["cost_usd"] == pytest.approx(told["total"]["cost_usd"])
        lines = wk("usage").out.splitlines()
        begin = lines.index("usage windows")
        assert lines[begin + 1].startswith("  anthropic, unknown account, 5-hour: unknown; last read ")
        assert lines[begin + 2].startswith("  anthropic, account one, 5-hour: 30 % left, resets ")
        assert lines[begin + 2].endswith(", lasts beyond the reset at this pace")
        assert lines[begin + 4].split()[:2] == [burning["session"], f"${burning['cost_usd']:,.2f}"]

    @pytest.mark.parametrize("by", GROUPS)
    def test_the_cost_is_divided_by_class_as_if_each_call_were_divided(
        self, wk: Wk, spent: Path, by: str
    ) -> None:
        # Models with a price for long prompts, with one for an hour in the cache, and without any price.
        models = ("openai/gpt-5.5", "anthropic/claude-sonnet-4-5", "local/unknown")
        expected = CostClasses()
        for (number,) in rows(spent, "SELECT id FROM model_calls ORDER BY id"):
            model, at = models[number % 3], 1_790_000_000.0 + 50_000 * number
            usage = Usage(150_000 * (number % 4), 900 * number, 40_000 * (number % 5), 7_000)
            usd = price(model, usage, at=at, hour_writes=3_000 if number % 3 == 1 else 0).usd
            if usd is None:
                usd = 0.5 if number % 2 else None
            elif number % 7 == 0:
                usd *= 2  # as its log stated
            change(
                spent,
                "UPDATE model_calls SET model = ?, started_at = ?, input_tokens = ?, output_tokens = ?, cache_read_tokens = ?,"
                " cache_write_tokens = ?, cost_usd = ? WHERE id = ?",
                model, at, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens, usd,
                number,
            )  # fmt: skip
            (periods,) = list_prices([model], listed_models).values()
            if usd is not None:
                expected = expected.plus(cost_classes(rates_on(periods, at, usage.prompt_tokens), usage, usd))
        told = wk("usage", "--by", by, "--json").json
        for row in (*told["rows"], told["total"]):
            if row["cost_usd"] is not None:
                assert sum(row["cost_by_class"].values()) == pytest.approx(row["cost_usd"])
        whole = {
            name: sum(row["cost_by_class"][name] for row in told["rows"] if row.get("cost_by_class"))
            for name in expected._fields
        }
        assert whole == pytest.approx(expected._asdict())
        assert told["total"]["cost_by_class"] == pytest.approx(whole)
        if by == "day":
            assert expected.cache_write_1h > 0
            assert expected.other > 0
        table = wk("usage", "--by", by, "--cost").out.partition("usage windows")[0].splitlines()
        assert len(table) == len(told["rows"]) + 2
        assert f"${expected.cache_write_1h:,.2f}" in table[-1]

    def test_what_a_fork_copied_is_not_counted_again_and_what_it_did_is(self, wk: Wk, spent: Path) -> None:
        before = wk("usage", "--json").json["total"]
        assert wk("fork", "last", "--json").code == 0
        assert len(wk("sessions", "--json").json) == 2
        assert wk("usage", "--json").json["total"] == before
        change(
            spent,
            "INSERT INTO model_calls (session_id, agent_id, turn, purpose, model, status, input_tokens, cost_usd, started_at,"
            " commit_seq) SELECT id, planner_agent_id, 99, 'turn', model, 'done', 7, 1.0, last_active, event_seq + 1"
            " FROM sessions WHERE origin = 'fork'",
        )
        after = wk("usage", "--json").json["total"]
        assert after["cost_usd"] == pytest.approx(before["cost_usd"] + 1)
        assert after["tokens"]["input"] == before["tokens"]["input"] + 7

    def test_periods_are_those_of_local_time_and_dates_limit_them(self, wk, spent, monkeypatch):
        late = 1_774_738_800.0  # 2026-03-28 23:00 UTC: the next day in Berlin, whose clocks change that night
        change(spent, "UPDATE model_calls SET started_at = ? + 3600 * (id % 2)", late)
        monkeypatch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        try:
            days = {
                by: [row["key"] for row in wk("usage", "--by", by, "--json").json["rows"]]
                for by in GROUPS[:3]
            }
            assert days == {"day": ["2026-03-29"], "week": ["2026-03-23"], "month": ["2026-03"]}
            assert wk("usage", "--since", "2026-03-29", "--until", "2026-03-29", "--json").json["rows"]
            for outside in (("--until", "2026-03-28"), ("--since", "2026-03-30")):
                assert wk("usage", *outside, "--json").json["rows"] == []
        finally:
            monkeypatch.undo()
            time.tzset()

    def test_without_a_database_or_with_a_wrong_date_it_says_what_to_do(self, wk: Wk) -> None:
        assert "no model calls in this period" in wk("usage").out
        refused = wk("usage", "--since", "yesterday")
        assert refused.code == 2
        assert "'yesterday' is not a date; use the format 2026-11-01" in refused.err


def test_what_is_found_on_a_machine_names_logs_by_their_first_lines_and_reads_no_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of credentials is a folder: reading it would raise."""
    logs = tmp_path / "claude" / "projects" / "-srv-x"
    logs.mkdir(parents=True)
    (logs / "one.jsonl").write_text(json.dumps({"type": "user", "cwd": '/srv/a "b"\\c'}) + "\n")
    (tmp_path / "claude" / ".credentials.json").mkdir()
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    for name in ("CODEX_HOME", "OPENCODE_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    found = discover()
    assert [(each.alias, each.logs, each.folder) for each in found.logs] == [("claude", 1, '/srv/a "b"\\c')]
