"""A program over ACP, whatever it says and whenever it dies: the run's rows stay whole."""

from __future__ import annotations

import asyncio
import copy
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.agents.conftest import FAKE, Programs

from watchkeeper.agents import backends
from watchkeeper.agents.backends import BackendFailed, BackendSpec, acp
from watchkeeper.agents.backends.programs import AgentProgramSettings, load_programs
from watchkeeper.cli.models import _programs as doctor_programs
from watchkeeper.store.driver import sqlite3

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\x1b[31m ‮txet neddih‬ [bold red]markup[/] [link=file:///etc]x[/link]"
    " '); DROP TABLE messages; -- \x00\x01\x7f \ud800 \udfff <script>alert(1)</script> {{7*7}} %s %n \r\n…"
)
SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789-ABCDEFGH"


def bash(number: str, command: str = "true", **more: Any) -> list[Any]:
    return ["tool", number, {"title": "bash", "kind": "execute", "rawInput": {"command": command}, **more}]


def done(number: str, text: str = "it is done") -> list[Any]:
    content = [{"type": "content", "content": {"type": "text", "text": text}}]
    return ["tool", number, {"status": "completed", "content": content}]


def question(number: Any, call: str, command: str = "true") -> list[Any]:
    return [
        "ask",
        number,
        {"toolCallId": call, "title": "bash", "kind": "execute", "rawInput": {"command": command}},
    ]


async def test_text_and_a_tool_call_become_the_result_of_the_task(programs: Programs) -> None:
    result = await programs.played([[["say", "I look. "], bash("t1"), done("t1"), ["say", "All is well."]]])
    assert result.exit_code == 0
    assert programs.calls() == [("bash", "done")]
    assert "All is well." in programs.tasks()["a"]["result"]


async def test_a_message_of_five_megabytes_unknown_kinds_and_broken_lines_disturb_nothing(programs):
    noise: list[Any] = [
        ["update", {"sessionUpdate": "of_the_future", "x": 1}],
        ["update", {"sessionUpdate": "of_the_future"}], ["line", '{"jsonrpc": "2.0", "method": '],
        ["line", "Debugger listening on ws://127.0.0.1"], ["line", "[" * 100_000], ["line", ""],
        ["send", {"id": 77, "result": {"never": "asked"}}],
        ["send", {"id": "x", "error": {"code": "none"}}], ["send",
         {"id": 0, "method": "fs/write_text_file", "params": {"path": "/etc/passwd", "content": "x"}}],
        ["await", 0],
    ]  # fmt: skip
    await programs.played([[*noise, ["say", "a" * 5_000_000], bash("t1"), done("t1", "b" * 5_000_000)]])
    assert programs.tasks()["a"]["status"] == "done"
    assert programs.calls() == [("bash", "done")]
    assert programs.kinds().count("program.unknown") == 1
    refused = [one["error"]["code"] for _, one in programs.received() if "error" in one]
    assert refused == [-32601]
    assert Path("/etc/passwd").read_text() != "x"


async def test_a_file_that_an_edit_only_names_counts_as_written(programs, monkeypatch):
    """OpenCode says nothing of what it wrote; where is enough for a warning that two agents write one file."""
    written: list[str] = []

    async def wrote(self: Any, agent_id: str, name: str, task_id: str | None, path: str) -> None:
        written.append(path)

    monkeypatch.setattr("watchkeeper.agents.worktrees.Worktrees.wrote", wrote)
    edits = [
        {"title": "write", "kind": "edit", "locations": [{"path": "/w/a"}, 1, {"path": 2}],
         "rawInput": {"x": 1}},
        {"title": "write", "kind": "edit", "locations": 3, "rawInput": {"filePath": "/w/b"}},
        {"title": "read", "kind": "read", "locations": [{"path": "/w/c"}],
         "rawInput": {"filePath": "/w/c"}},
    ]  # fmt: skip
    calls = [step for n, about in enumerate(edits) for step in (["tool", f"t{n}", about], done(f"t{n}"))]
    await programs.played([[*calls, ["say", "over"]]])
    assert written == ["/w/a", "/w/b"]


async def test_two_questions_are_open_at_once_and_each_gets_its_own_answer(programs: Programs) -> None:
    both = [bash("t1", "one"), question(0, "t1", "one"), bash("t2", "two"), question(1, "t2", "two")]
    answered = [["await", 1], done("t2"), ["await", 0], ["tool", "t1", {"status": "failed"}]]
    programs.script([[*both, *answered]], allow=(), approval_timeout_seconds=None)

    async def answer() -> None:
        first, second = sorted(await programs.waiting(2), key=lambda one: one["tool_call_id"])
        assert "one" in json.dumps(first)
        programs.submit("approve", payload={"approval": second["id"]})
        programs.submit("deny", payload={"approval": first["id"], "reason": "not now"})
        await programs.until(lambda state: programs.calls() == [("bash", "denied"), ("bash", "done")])

    await programs.run_while(answer)
    programs.assert_whole()
    assert programs.answers() == {0: "no", 1: "yes"}
    assert any("not now" in text for text in programs.prompts())


async def test_hostile_text_in_every_field_is_stored_as_text_and_secrets_are_taken_out(programs):
    text = HOSTILE + SECRET
    fields = {
        "toolCallId": text, "title": text, "kind": "execute", "rawInput": {text: [text], "command": text},
    }  # fmt: skip
    changed = {"type": "diff", "path": text, "oldText": text, "newText": text + "\nmore"}
    content = [{"type": "content", "content": {"type": "text", "text": text}}, changed]
    await programs.played([[
        ["say", text],
        ["update", {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": text}}],
        ["update", {"sessionUpdate": text}],
        ["update", {"sessionUpdate": "plan", "entries": [{"content": text, "status": text, "priority": text}]}],
        ["update", {"sessionUpdate": "tool_call", "status": "in_progress", **fields}],
        ["send", {"id": text, "method": "session/request_permission",
                  "params": {"toolCall": fields | {"content": content}, "options": [{"optionId": text, "kind": text}]}}],
        ["update", {"sessionUpdate": "tool_call_update", "status": "completed", "content": content, **fields}],
        ["send", {"method": text, "params": {text: text}}],
        ["error", 7, text, {"details": text}],
    ]])  # fmt: skip
    assert programs.tasks()["a"]["status"] == "failed"
    stored = "\n".join(programs.path.with_name(programs.path.name + end).read_bytes().decode("utf-8", "replace")
                       for end in ("", "-wal") if programs.path.with_name(programs.path.name + end).exists())  # fmt: skip
    assert SECRET not in stored
    assert "DROP TABLE messages" in stored


async def test_an_agent_of_the_protocols_own_package_is_driven_and_resumed(programs: Programs) -> None:
    programs.use(
        [sys.executable, str(Path(__file__).parent / "package_agent.py"), str(programs.fake / "turns")]
    )
    programs.model_of_task = "fake/large"
    await programs.played()
    assert programs.tasks()["a"]["status"] == "done", programs.tasks()["a"]
    assert "The package agrees." in programs.tasks()["a"]["result"]
    assert programs.calls() == [("bash", "unknown"), ("bash", "done")]


# --- death --------------------------------------------------------------------------------------------------


LATE = "sleep 3; echo late >> {}"
DEATHS: dict[str, list[Any]] = {
    "after it was opened": [["die"]],
    "in the middle of its text": [["say", "half of"], ["die"]],
    "in a tool call": [bash("t1"), ["die"]],
    "with a question open": [bash("t1"), question(0, "t1"), ["die"]],
    "after the answer": [bash("t1"), question(0, "t1"), ["await", 0], ["die"]],
    "without its launcher": [
        bash("t1"), ["orphan"], question(0, "t1"), ["await", 0], ["say", "on"], ["await", 1],
    ],
    "behind its adapter": [
        bash("t1"),
        ["error", -32603, "Internal error: The Claude Agent process exited unexpectedly."],
    ],
    "after a tool call": [bash("t1"), done("t1"), ["die"]],
}  # fmt: skip


@pytest.mark.parametrize("actions", DEATHS.values(), ids=list(DEATHS))
async def test_a_program_that_dies_is_started_again_and_told_what_is_known(programs, actions):
    late = programs.fake / "late"
    spawned = ["spawn", LATE.format(late)]
    await programs.played([[spawned, *actions]], [[["say", "finished"]]])
    assert programs.tasks()["a"]["status"] == "done"
    assert [life for life, _ in programs.received("initialize")] == [0, 1]
    assert [life for life, _ in programs.received("session/resume")] == [1]
    _, second = programs.prompts()
    assert "You were interrupted" in second
    assert "may not have received the last message" in second  # no record of its own says that it did
    unknown = bash("t1") in actions and done("t1") not in actions
    assert (programs.calls() == [("bash", "unknown")]) == unknown
    assert ("fully or partly" in second.lower()) == unknown
    assert not late.exists()


@pytest.mark.parametrize("how", ["the program dies", "a pause at once"])
async def test_no_question_waits_that_the_program_would_not_hear(programs: Programs, how: str) -> None:
    asking = [bash("t1"), question(0, "t1"), ["file", "go"], ["die"]]
    paused = [bash("t1"), question(0, "t1"), ["until", "session/cancel"], ["end", "cancelled"]]
    lives = [[asking if how == "the program dies" else paused], [[["say", "finished"]]]]
    programs.script(*lives, allow=(), approval_timeout_seconds=None)

    async def end() -> None:
        await programs.waiting()
        (programs.fake / "go").touch()
        if how == "a pause at once":
            programs.submit("pause", payload={"now": True})
        await programs.until(lambda state: state["approvals"][0]["status"] == "cancelled")

    await programs.run_while(end)
    programs.assert_whole()
    await programs.run()
    programs.assert_whole()
    assert programs.tasks()["a"]["status"] == "done"


KILLED = {
    "code": -32603,
    "message": "Internal error",
    "data": {"details": "Claude Code process terminated by signal SIGKILL"},
}


@pytest.mark.parametrize(
    "replies",
    [{"initialize": ["die", 1]}, {"session/new": ["die", 1]}, {"session/new": ["lives", [{"error": KILLED}, {"sessionId": "fake-session"}]]}],
    ids=["at its greeting", "at its session", "behind its adapter"],
)  # fmt: skip
async def test_a_program_that_dies_before_its_session_is_opened_is_started_anew(programs, replies):
    await programs.played(replies=replies)
    assert programs.tasks()["a"]["status"] == "done"
    assert len(programs.received("initialize")) == 2
    assert len(programs.prompts()) == 1


@pytest.mark.parametrize(
    ("replies", "life", "prompts"),
    [({"initialize": ["die", 9]}, [], 0), ({}, [["die"]], 4), ({}, [["say", "words"], ["die"]], 4)],
    ids=["never opened", "without a word", "with words"],
)  # fmt: skip
async def test_a_program_that_dies_again_and_again_fails_its_task(programs, replies, life, prompts):
    await programs.played(*[[life]] * 9, replies=replies)
    assert programs.tasks()["a"]["status"] == "failed"
    assert len(programs.received("initialize")) == 4
    assert len(programs.prompts()) == prompts


STEPS = st.sampled_from([
    [["say", "words "]], [bash("t"), done("t")], [bash("u")], [bash("v"), question(0, "v"), ["await", 0], done("v")],
    [["line", "{"]], [["update", {"sessionUpdate": "new"}]], [["spawn", "sleep 60"]], [["die"]], [["error", -32603, "no"]],
])  # fmt: skip


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(st.lists(STEPS, max_size=5), min_size=1, max_size=3))
def test_whatever_a_program_does_and_wherever_it_dies_the_rows_are_whole(tmp_path_factory, lives):
    folder = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WATCHKEEPER_CONFIG_DIR", str(folder / "config"))
        programs = Programs(folder)
        asyncio.run(programs.played(*[[[action for step in life for action in step]] for life in lives]))
    assert programs.tasks()["a"]["status"] in ("done", "failed")


async def test_a_silent_program_is_ended_by_a_pause_at_once(programs: Programs, impatient: None) -> None:
    programs.script([[bash("t1"), ["deaf"]]], [[["say", "finished"]]])

    async def pause() -> None:
        await programs.until(lambda state: programs.calls())
        programs.submit("pause", payload={"now": True})

    assert (await programs.run_while(pause)).exit_code == 5
    assert programs.calls() == [("bash", "unknown")]
    programs.assert_whole()


ENDS_WITHIN_SECONDS = 60.0
"""After SIGTERM, whatever an agent program does: docs/commands.md."""


@pytest.mark.long
@pytest.mark.parametrize("hangs", ["in a turn", "in a tool call", "while it is opened"])
def test_sigterm_ends_a_headless_run_within_a_minute_although_its_program_hangs(
    programs: Programs, hangs: str
) -> None:
    """The whole process of the run, with a program that ignores all that can be ignored."""
    deaf: dict[str, list[Any]] = {
        "in a turn": [["say", "I"], ["deaf"]],
        "in a tool call": [bash("t1"), ["deaf"]],
    }
    replies = {
        "session/new": ["then", {"sessionId": "fake-session"}, [["deaf"]]],
        "session/set_mode": ["never"],
    }
    opening = hangs == "while it is opened"
    script = {"lives": [[deaf.get(hangs, [])]], "replies": replies if opening else {}}
    (programs.fake / "script.json").write_text(json.dumps(script))
    database = programs.fake.parent / "run.sqlite"
    words = ["run", "Hang.", "--headless", "--model", "fake/default", "--allow", "bash", "--workspace",
             str(programs.workspace), "--db", str(database)]  # fmt: skip
    run = subprocess.Popen(
        [sys.executable, "-m", "watchkeeper", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + ENDS_WITHIN_SECONDS
        while not (programs.fake / "deaf").exists():
            assert time.monotonic() < deadline, "the program was not reached"
            assert run.poll() is None, run.stderr and run.stderr.read()
            time.sleep(0.05)
        run.terminate()
        began = time.monotonic()
        run.wait(2 * ENDS_WITHIN_SECONDS)
        assert time.monotonic() - began < ENDS_WITHIN_SECONDS
    finally:
        run.kill()
        run.wait()
        if run.stderr is not None:
            run.stderr.close()
    programs.assert_nothing_runs()
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT status FROM sessions").fetchall() == [("paused",)]
        assert connection.execute("SELECT 1 FROM program_turns WHERE status = 'running'").fetchall() == []


# --- refusals -------------------------------------------------------------------------------------------------


async def test_a_refused_resume_begins_a_new_session_and_says_so(programs: Programs) -> None:
    await programs.played(
        [[["say", "half"], ["die"]]], [[["say", "finished"]]],
        replies={"session/resume": {"error": {"code": -32002, "message": "no such session"}}},
    )  # fmt: skip
    assert programs.tasks()["a"]["status"] == "done"
    assert len(programs.received("session/new")) == 2
    assert "You were interrupted" in programs.prompts()[-1]


async def test_the_history_that_session_load_tells_again_is_not_taken_for_news(programs: Programs) -> None:
    plain = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}
    await programs.played([[["say", "half"], ["die"]]], replies={"initialize": plain})
    assert len(programs.received("session/load")) == 1
    assert "OLD HISTORY" not in json.dumps(programs.transcript())
    assert programs.calls() == []


BUSY = {"error": {"code": -32600, "message": "thread s already has an active writer"}}


async def test_a_session_that_another_process_has_open_is_asked_for_again(programs, monkeypatch):
    monkeypatch.setattr("watchkeeper.agents.backends.loop.BUSY_SECONDS", 0.0)
    lives = [[["say", "half"], ["die"]]], [], [], [[["say", "finished"]]]
    await programs.played(*lives, replies={"session/resume": ["lives", [{}, BUSY, BUSY, {}]]})
    assert programs.tasks()["a"]["status"] == "done"
    assert len(programs.received("session/new")) == 1


async def test_a_session_that_stays_open_elsewhere_pauses_the_run_with_the_reason(programs, monkeypatch):
    monkeypatch.setattr("watchkeeper.agents.backends.loop.BUSY_SECONDS", 0.0)
    monkeypatch.setattr("watchkeeper.agents.backends.loop.MOST_BUSY_TRIES", 2)
    lives = [[["say", "half"], ["die"]]], [], [], [], [[["say", "finished"]]]
    result = await programs.played(*lives, replies={"session/resume": ["lives", [{}, BUSY, BUSY, BUSY, {}]]})
    assert result.exit_code == 5
    assert "active writer; close the session there, then resume" in programs.agent()["status_reason"]
    assert (await programs.run()).exit_code == 0
    programs.assert_whole()
    assert len(programs.received("session/new")) == 1


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("You've hit your usage limit. Try again in 3 hours 20 minutes.", 12_000),
        ("You've hit your session limit · resets in 2 hours", 7_200),
        ("You've hit your usage limit. Try again at {passed}.", 60),
    ],
)
@pytest.mark.parametrize("as_answer", [True, False])
async def test_a_usage_limit_with_an_end_parks_until_then_and_soon_if_it_has_just_passed(
    programs, said, seconds, as_answer
):
    now = time.time()
    said = said.replace("{passed}", datetime.fromtimestamp(now - 120).strftime("%I:%M %p"))
    programs.script([[["say", said], ["end", "end_turn"]] if as_answer else [["error", -32603, said]]])

    async def stop() -> None:
        await programs.until(lambda state: programs.agent().get("status") == "parked")
        assert 0 <= programs.agent()["parked_until"] - now - seconds < 3_000
        programs.submit("pause", payload={"now": True})

    await programs.run_while(stop)
    programs.assert_whole()


async def test_lists_and_alerts_name_the_usage_limit_of_a_parked_program(programs: Programs) -> None:
    log = programs.fake / "alerts"
    save = f"import sys; open({str(log)!r}, 'a').write(sys.stdin.read() + chr(10))"
    alerts = f"[alerts]\ncommand = {json.dumps([sys.executable, '-S', '-c', save])}\n"
    programs.use([sys.executable, "-S", "-E", str(FAKE), str(programs.fake)], more=alerts)
    soon = "You've hit your weekly limit · resets in 3 hours"
    programs.script([[["error", -32603, soon]]])

    async def stop() -> None:
        await programs.until(lambda state: log.exists() and "agent.parked" in log.read_text())
        limit = programs.state["session"]["usage_limit"]
        assert limit == {"name": "weekly", "ends_at": programs.agent()["parked_until"]}
        programs.submit("pause", payload={"now": True})

    await programs.run_while(stop)
    told = [json.loads(line) for line in log.read_text().splitlines()]
    (parked,) = [one for one in told if one["event"] == "agent.parked"]
    assert parked["usage_limit"] == {"name": "weekly", "ends_at": programs.agent()["parked_until"]}
    assert parked["text"].startswith("weekly limit until ")
    assert parked["text"].endswith(soon)


async def test_an_answer_that_only_warns_of_a_limit_is_an_answer(programs: Programs) -> None:
    await programs.played([[["say", "You've used 91 % of your session limit · resets 9pm"]]])
    assert programs.tasks()["a"]["status"] == "done"


@pytest.mark.parametrize(
    ("error", "said"),
    [(["error", -32603, "You've hit your usage limit"], "usage limit"), (["error", -32000, "Authentication required"], "not logged in")],
)  # fmt: skip
async def test_a_usage_limit_and_a_missing_login_pause_the_task_until_it_is_resumed(programs, error, said):
    result = await programs.played([[error]], [[["say", "finished"]]])
    assert result.exit_code != 0
    assert said in str(programs.tasks()["a"]["error"] or programs.agent()["status_reason"])
    assert (await programs.run()).exit_code == 0
    programs.assert_whole()
    assert programs.tasks()["a"]["status"] == "done"


# --- wrong types ------------------------------------------------------------------------------------------------


OTHERS: tuple[Any, ...] = (
    None, True, -1, 0.5, 1e300, "", "x", "\ud800", 2**70, float("inf"), [], [[]], [None], {}, {"x": {}},
    [{"type": "diff"}],
)  # fmt: skip


def mutations(value: Any) -> Iterator[Any]:
    """The value with each of its parts, and itself, replaced by values of other types, or left out."""
    yield from copy.deepcopy(OTHERS)
    if isinstance(value, dict):
        for key in value:
            yield {name: one for name, one in value.items() if name != key}
            for other in mutations(value[key]):
                yield {**value, key: other}
    elif isinstance(value, list):
        for place, one in enumerate(value):
            for other in mutations(one):
                yield [*value[:place], other, *value[place + 1 :]]


CONTENT: list[Any] = [
    {"type": "content", "content": {"type": "text", "text": "x"}}, {"type": "diff", "path": "p", "oldText": "a", "newText": "b"},
]  # fmt: skip
CALL = {"toolCallId": "c", "title": "bash", "kind": "execute", "status": "in_progress", "rawInput": {"command": "x"},
        "content": CONTENT, "rawOutput": {"output": "x"}, "_meta": {"claudeCode": {"toolName": "Bash"}}}  # fmt: skip
UPDATES: list[dict[str, Any]] = [
    {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}, "messageId": "m"},
    {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "x"}},
    {"sessionUpdate": "tool_call", **CALL},
    {"sessionUpdate": "tool_call_update", **CALL, "status": "completed"},
    {"sessionUpdate": "plan", "entries": [{"content": "x", "status": "pending"}]},
    {"sessionUpdate": "usage_update", "used": 10, "size": 100, "cost": {"amount": 1, "currency": "USD"}},
]


async def test_no_field_of_a_wrong_type_in_a_notification_or_a_request_ends_the_loop(programs):
    lines: list[Any] = []
    for update in UPDATES:
        lines += [["update", one] for one in mutations(update)]
    asked = {"toolCall": CALL, "options": [{"optionId": "yes", "kind": "allow_once"}]}
    for number, params in enumerate(mutations(asked)):
        lines.append(["send", {"id": f"q{number}", "method": "session/request_permission", "params": params}])
    whole = {"jsonrpc": "2.0", "id": 5, "method": "session/update", "params": {"update": UPDATES[0]}}
    lines += [["line", json.dumps(one)] for one in mutations(whole)]
    await programs.played([[*lines, ["say", "It is over."], ["end", "end_turn"]]])
    assert programs.tasks()["a"]["status"] == "done", programs.tasks()["a"]
    assert len(programs.received("initialize")) == 1


async def drive(folder: Path, name: str, replies: dict[str, Any], openings: int) -> list[str]:
    """Open a session of the scripted program so often, with a turn in each; returns how each went."""
    (folder / "script.json").write_text(json.dumps({"replies": replies}))
    command = (sys.executable, "-S", "-E", str(FAKE), str(folder))
    given = {name: AgentProgramSettings(protocol="acp" if name == "fake" else None, command=command)}
    program = load_programs(given)[name]
    spec = BackendSpec(folder=folder, instructions="", environ=program.environment({}, "agent-1"), model="m")
    backend = await program.start(spec, "agent-1", NoContainment())
    went = []

    async def turn() -> str:
        await backend.prompt("go")
        async for event in backend.events():
            if isinstance(event, backends.Ended):
                return event.status
        return "over"

    try:
        for _ in range(openings):
            try:
                await asyncio.wait_for(backend.open(spec), 5)
                went.append(await asyncio.wait_for(turn(), 5))
            except BackendFailed as failed:
                went.append(str(failed))
    finally:
        await backend.close(1.0)
    return went


class NoContainment:
    async def prepare(self) -> list[str]:
        return []

    async def admit(self, pid: int, agent_id: str) -> None:
        pass


GREETING = {"protocolVersion": 1, "agentInfo": {"version": "1"},
            "agentCapabilities": {"mcpCapabilities": {"http": True}, "sessionCapabilities": {"resume": {}}}}  # fmt: skip
ENDING = {"stopReason": "end_turn", "usage": {"inputTokens": 1, "outputTokens": 2, "cachedReadTokens": 3}}


@pytest.mark.parametrize(
    ("method", "usual"),
    [("initialize", GREETING), ("session/new", {"sessionId": "s"}), ("session/set_config_option", {"configOptions": []}),
     ("session/prompt", ENDING)],
)  # fmt: skip
async def test_no_answer_of_a_wrong_type_is_more_than_a_failure_of_the_program(tmp_path, method, usual):
    results = [
        *mutations(usual),
        *({"error": one} for one in mutations({"code": 1, "message": "x", "data": {"details": "x"}})),
    ]
    went = await drive(tmp_path, "fake", {"session/prompt": ENDING, method: ["each", results]}, len(results))
    assert len(went) == len(results)


# --- limits, orders and words that come late -------------------------------------------------------------------


async def test_a_program_that_waits_for_a_usage_limit_is_parked_at_once(programs: Programs) -> None:
    retry = {
        "type": "system", "subtype": "api_retry", "error_status": 429, "error": "rate_limit",
        "retry_delay_ms": 7.2e6,
    }  # fmt: skip
    notice = ["send", {"method": "_claude/sdkMessage", "params": {"message": retry}}]
    programs.play("claude-code", "default")
    programs.script([[notice, ["until", "session/cancel"], ["end", "cancelled"]]])

    async def stop() -> None:
        await programs.until(lambda state: programs.agent().get("status") == "parked")
        programs.submit("pause", payload={"now": True})

    await programs.run_while(stop)
    assert "retries in 7200 s" in programs.agent()["status_reason"]
    programs.assert_whole()


async def test_a_program_that_streams_on_after_it_was_interrupted_is_ended(programs, impatient):
    programs.script([[bash("t1"), done("t1"), ["flood", "words "]]])

    async def steer_and_pause() -> None:
        await programs.until(lambda state: programs.calls() == [("bash", "done")])
        programs.submit("steer", agent_id=programs.agent()["id"], payload={"text": "Mind the gap."})
        await programs.until(lambda state: "program.steered" in programs.kinds())
        programs.submit("pause")

    assert (await programs.run_while(steer_and_pause)).exit_code == 5
    programs.assert_whole()


async def test_a_question_after_an_interruption_is_answered_with_cancel(programs: Programs) -> None:
    late = [["until", "session/cancel"], bash("t2"), question(1, "t2"), ["await", 1], ["end", "cancelled"]]
    programs.script([[bash("t1"), question(0, "t1"), *late]], allow=(), approval_timeout_seconds=None)

    async def pause() -> None:
        await programs.waiting()
        programs.submit("pause", payload={"now": True})

    assert (await programs.run_while(pause)).exit_code == 5
    assert programs.answers() == {0: "cancelled", 1: "cancelled"}
    assert len(programs.state["approvals"]) == 1
    programs.assert_whole()


@pytest.mark.parametrize("when", ["as its work ends", "while it is paused"])
async def test_a_compaction_is_carried_out_at_the_next_chance(programs, impatient, when):
    first = [bash("t1"), ["file", "go"], done("t1"), ["say", "The result."]]
    programs.script([first], [[["say", "COMPACTED"]]])

    async def order() -> None:
        await programs.until(lambda state: programs.calls())
        if when == "while it is paused":
            programs.submit("pause", payload={"now": True})
            await programs.until(lambda state: programs.agent()["status"] == "paused")
        await programs.applied(programs.submit("compact", agent_id=programs.agent()["id"]))
        (programs.fake / "go").touch()
        await programs.until(lambda state: programs.agent()["status"] in ("paused", "done"))

    result = await programs.run_while(order)
    if result.exit_code == 5:
        assert (await programs.run()).exit_code == 0
    programs.assert_whole()
    assert "/compact" in programs.prompts()
    assert programs.tasks()["a"]["status"] == "done"


async def test_a_cut_compaction_sends_no_prompt_again(programs: Programs) -> None:
    programs.script([[bash("t1"), ["file", "go"], done("t1"), ["say", "The result."]], [["die"]]])

    async def order() -> None:
        await programs.until(lambda state: programs.calls())
        await programs.applied(programs.submit("compact", agent_id=programs.agent()["id"]))
        (programs.fake / "go").touch()
        await programs.until(lambda state: programs.tasks()["a"]["status"] == "done")

    await programs.run_while(order)
    programs.assert_whole()
    assert sum("THE PROMPT" in text for text in programs.prompts()) == 1
    assert programs.prompts().count("/compact") == 2  # what was ordered is still wanted


async def test_a_call_whose_id_was_used_before_in_the_turn_is_a_call(programs: Programs) -> None:
    await programs.played([[bash("t"), done("t"), bash("t"), question(0, "t"), ["await", 0], done("t")]])
    assert programs.calls() == [("bash", "done")] * 2


@pytest.mark.parametrize("title", ["watchkeeper.sh; rm -rf .", "watchkeeper_x", "recall"])
async def test_a_title_does_not_make_a_call_one_of_our_own(programs: Programs, title: str) -> None:
    call = {"toolCallId": "t1", "title": title, "kind": "execute"}
    programs.script(
        [[["tool", "t1", call], ["ask", 0, call], ["await", 0]]], allow=(), approval_timeout_seconds=None
    )

    async def look() -> None:
        (asked,) = await programs.waiting()
        assert title in asked["question"]
        programs.submit("deny", payload={"approval": asked["id"]})
        await programs.until(lambda state: programs.tasks()["a"]["status"] == "done")

    await programs.run_while(look)
    assert programs.calls()[0][0] == "bash"


async def test_a_message_that_a_running_turn_refuses_is_the_next_prompt(programs: Programs) -> None:
    refused = {"code": -32600, "message": "a prompt is running"}
    programs.script(
        [
            [bash("t1"), ["until", "session/prompt"], ["refuse", refused], done("t1"), ["say", "first"]],
            [["say", "second"]],
        ]
    )

    async def steer() -> None:
        await programs.until(lambda state: programs.calls())
        programs.submit("steer", agent_id=programs.agent()["id"], payload={"text": "Mind the gap."})
        await programs.until(lambda state: programs.tasks()["a"]["status"] == "done")

    await programs.run_while(steer)
    programs.assert_whole()
    assert sum("Mind the gap." in text for text in programs.prompts()) == 2  # refused, and then taken
    assert "second" in programs.tasks()["a"]["result"]


async def test_the_questions_of_opencodes_sub_agents_are_put_and_answered_over_its_server(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("watchkeeper.agents.backends.record.SETTLE_SECONDS", 0.2)

    def event(kind: str, **said: Any) -> list[Any]:
        return ["server", {"type": kind, "properties": said}]

    def part(status: str, **more: Any) -> list[Any]:
        state = {"status": status, "input": {"command": "make it"}, **more}
        return event(
            "message.part.updated",
            sessionID="kid",
            part={"type": "tool", "callID": "c", "tool": "bash", "state": state},
        )

    asked = {
        "id": "per_1", "sessionID": "kid", "permission": "bash", "metadata": {"command": "make it"},
        "tool": {"callID": "c"},
    }  # fmt: skip
    noise = [event(kind, **said) for kind in ("session.created", "session.status", "permission.asked", "message.part.updated")
             for said in ({}, {"sessionID": [], "info": 7, "part": None}, {"sessionID": "stranger"})]  # fmt: skip
    programs.play("opencode", "default", "acp")
    programs.script([[
        event("session.created", info={"id": "kid", "parentID": "fake-session", "title": "Look"}), *noise, part("running"),
        event("permission.asked", **asked), ["reply"], part("completed", output="made"),
        event("session.idle", sessionID="kid"), ["file", "go"], ["say", "Over."],
    ]], allow=(), approval_timeout_seconds=None)  # fmt: skip

    async def approve() -> None:
        (question,) = await programs.waiting()
        assert "make it" in question["question"]
        programs.submit("approve", payload={"approval": question["id"]})
        await programs.until(lambda state: programs.calls() == [("bash", "done")])
        (programs.fake / "go").touch()
        await programs.until(lambda state: programs.tasks()["a"]["status"] == "done")

    await programs.run_while(approve)
    programs.assert_whole()
    assert json.loads((programs.fake / "replies.jsonl").read_text()) == [
        "/permission/per_1/reply",
        {"reply": "once"},
    ]
    assert {"program.child_working", "program.child_done"} <= set(programs.kinds())


async def test_a_server_of_opencode_that_refuses_is_noted_once(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(acp, "MOST_FAILURES", 2)
    programs.play("opencode", "default", "acp")
    programs.script([[["file", "go"], ["say", "Over."]]], replies={"GET /event": 500})

    async def look() -> None:
        await programs.until(lambda state: "program.unknown" in programs.kinds())
        (programs.fake / "go").touch()
        await programs.until(lambda state: programs.tasks()["a"]["status"] == "done")

    await programs.run_while(look)
    programs.assert_whole()
    (noted,) = programs.query("SELECT data FROM events WHERE kind = 'program.unknown'")
    assert acp.NOT_HEARD in noted[0]


@pytest.mark.parametrize("depth", [150, 900, 20_000])
async def test_no_depth_of_nesting_and_no_number_ends_the_loop(programs: Programs, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    raw = '{"command": "true", "deep": %s, "not": NaN, "far": -Infinity, "long": %s}' % (deep, "9" * 4000)  # noqa: UP031
    update = '{"sessionUpdate": "%s", "toolCallId": "t", "title": "x", "status": "%s", "rawInput": %s, "rawOutput": %s}'
    line = '{"jsonrpc": "2.0", "method": "session/update", "params": {"update": %s}}'
    asked = '{"jsonrpc": "2.0", "id": 7, "method": "session/request_permission", "params": {"toolCall": {"toolCallId": "t", "rawInput": %s}, "options": %s}}'
    usage = '{"sessionUpdate": "usage_update", "used": %s, "size": -5, "cost": {"amount": NaN, "deep": %s}}'
    await programs.played([[
        ["line", line % (update % ("tool_call", "in_progress", raw, "{}"))],
        ["line", asked % (raw, deep)],
        ["line", line % (usage % ("NaN", deep))],
        ["line", line % (update % ("tool_call_update", "completed", raw, raw))],
        ["say", "It is over."],
    ]])  # fmt: skip
    assert programs.tasks()["a"]["status"] == "done", programs.tasks()["a"]
    assert "It is over." in programs.tasks()["a"]["result"]


async def test_a_second_question_about_a_call_is_put_again(programs: Programs) -> None:
    programs.script([[bash("t1"), question(0, "t1"), ["await", 0], question(1, "t1"), ["await", 1], done("t1")]],
                    allow=(), approval_timeout_seconds=None)  # fmt: skip

    async def answer() -> None:
        (first,) = await programs.waiting()
        programs.submit("approve", payload={"approval": first["id"]})
        await programs.until(lambda state: len(state["approvals"]) == 2)
        (second,) = await programs.waiting()
        programs.submit("deny", payload={"approval": second["id"]})
        await programs.until(lambda state: programs.tasks()["a"]["status"] == "done")

    await programs.run_while(answer)
    assert programs.answers() == {0: "yes", 1: "no"}


@pytest.mark.parametrize("silent", ["initialize", "session/new"])
async def test_a_pause_at_once_does_not_wait_for_a_program_that_hangs_while_it_is_opened(
    programs, silent, impatient
):
    programs.script(
        [], [[["say", "Over."]]], replies={silent: ["lives", [["never"], programs_hello(silent)]]}
    )

    async def stop() -> None:
        await programs.until(lambda state: programs.received(silent))
        programs.submit("pause", payload={"now": True})

    assert (await programs.run_while(stop)).exit_code == 5
    programs.assert_whole()
    assert (await programs.run()).exit_code == 0
    assert programs.tasks()["a"]["status"] == "done"


def programs_hello(method: str) -> dict[str, Any]:
    return {"agentCapabilities": {}} if method == "initialize" else {"sessionId": "fake-session"}


# --- commands in the background, and compactions ------------------------------------------------------------------


def raw(kind: str, **more: Any) -> list[Any]:
    """What Claude Code itself says, as its adapter passes it on."""
    message = {"type": "system", "subtype": kind, **more}
    return [
        "send",
        {"method": "_claude/sdkMessage", "params": {"sessionId": "fake-session", "message": message}},
    ]


def state(name: str) -> list[Any]:
    return raw("session_state_changed", state=name)


def running(*tasks: str) -> list[Any]:
    return raw(
        "background_tasks_changed", tasks=[{"task_id": one, "task_type": "local_bash"} for one in tasks]
    )


IN_BACKGROUND = [
    state("running"), bash("t1", "make all"), running("b1"),
    raw("task_started", task_id="b1", tool_use_id="t1", is_backgrounded=True), done("t1", "Command running in background"),
    ["say", "It is being made."], ["end", "end_turn"], state("idle"),
]  # fmt: skip


async def test_a_task_is_done_once_the_command_in_the_background_has_ended_and_the_agent_was_told(
    programs: Programs,
) -> None:
    output = programs.fake / "b1.output"
    output.write_text("made all of it")
    ended = raw(
        "task_notification", task_id="b1", status="completed", summary="exit code 0", output_file=str(output)
    )
    own_turn = [state("running"), ["update", TOLD], state("idle")]
    programs.play("claude-code", "default")
    programs.script([[*IN_BACKGROUND, ["file", "go"], ended, running(), *own_turn]])

    async def let_it_end() -> None:
        await programs.until(lambda state: "program.background" in programs.kinds())
        await programs.until(lambda state: "It is being made." in programs.transcript())
        assert programs.calls() == [("bash", "running")]
        assert programs.tasks()["a"]["status"] == "running"
        await programs.until(
            lambda state: programs.query("SELECT 1 FROM live WHERE detail LIKE '%make all%'")
        )
        (programs.fake / "go").touch()
        await programs.until(lambda state: programs.tasks()["a"]["status"] == "done")

    await programs.run_while(let_it_end)
    programs.assert_whole()
    assert programs.calls() == [("bash", "done")]
    assert programs.tasks()["a"]["result"] == "All is made."
    assert "made all of it" in json.dumps(programs.transcript())
    assert "program.background_ended" in programs.kinds()
    assert len(programs.prompts()) == 1


TOLD = {
    "sessionUpdate": "agent_message_chunk",
    "messageId": "m2",
    "content": {"type": "text", "text": "All is made."},
}


@pytest.mark.parametrize("status", ["failed", "stopped", "of the future", None])
async def test_how_a_command_in_the_background_ended_is_what_the_program_says(programs, status, monkeypatch):
    monkeypatch.setattr(acp, "OWN_TURN_SECONDS", 0.0)
    programs.play("claude-code", "default")
    told = [raw("task_notification", task_id="b1", status=status)] if status else []
    await programs.played([[*IN_BACKGROUND, *told, running()]])
    wanted = {"failed": "error", "stopped": "cancelled"}.get(status, "unknown")
    assert programs.calls() == [("bash", wanted)]
    assert programs.tasks()["a"]["status"] == "done"


async def test_a_pause_at_once_stops_what_runs_in_the_background_and_the_agent_is_told(
    programs: Programs,
) -> None:
    programs.play("claude-code", "default")
    programs.script([[*IN_BACKGROUND, ["until", "session/cancel"]]], [[["say", "Over."]]])

    async def pause() -> None:
        await programs.until(lambda state: "It is being made." in programs.transcript())
        programs.submit("pause", payload={"now": True})

    assert (await programs.run_while(pause)).exit_code == 5
    programs.assert_whole()
    assert programs.calls() == [("bash", "unknown")]
    assert (await programs.run()).exit_code == 0
    assert "was stopped when your work was interrupted: make all" in programs.prompts()[1]


async def test_a_pause_waits_for_a_command_in_the_background_that_the_agent_waits_for(
    programs: Programs,
) -> None:
    programs.play("claude-code", "default")
    ended = raw("task_notification", task_id="b1", status="completed")
    programs.script(
        [[*IN_BACKGROUND, ["file", "go"], ended, running(), state("running"), ["until", "session/cancel"]]]
    )

    async def pause() -> None:
        await programs.until(lambda state: "It is being made." in programs.transcript())
        await programs.applied(programs.submit("pause"))
        (programs.fake / "go").touch()
        await programs.until(lambda state: programs.agent()["status"] == "paused")

    assert (await programs.run_while(pause)).exit_code == 5
    programs.assert_whole()
    assert programs.calls() == [("bash", "done")]


async def test_an_agent_is_asked_once_whether_what_runs_for_long_is_still_needed(programs, monkeypatch):
    monkeypatch.setattr("watchkeeper.agents.backends.loop.REMIND_SECONDS", 0.0)
    monkeypatch.setattr(acp, "OWN_TURN_SECONDS", 0.0)
    programs.play("claude-code", "default")
    stopped = [raw("task_notification", task_id="b1", status="stopped"), running(), state("idle")]
    await programs.played([[*IN_BACKGROUND], [state("running"), ["say", "I stop it."], *stopped]])
    _, second = programs.prompts()
    assert "is not done while these run in the background: make all" in second
    assert programs.calls() == [("bash", "cancelled")]


async def test_the_tools_of_an_agent_are_offered_to_claude_code_whole(programs: Programs) -> None:
    """Claude Code offers other tools by name alone, so that its model must look for them first."""
    programs.play("claude-code", "default")
    await programs.played([[["say", "Over."]]])
    ((_, opened),) = programs.received("session/new")
    given = opened["params"]["_meta"]["claudeCode"]["options"]
    assert given["mcpServers"][backends.TOOL_SERVER]["alwaysLoad"] is True
    assert opened["params"]["mcpServers"] == []
    assert {"ScheduleWakeup", "CronCreate"} <= set(given["disallowedTools"])


def compaction(status: str, **more: Any) -> list[Any]:
    return ["update", {"sessionUpdate": "compaction_update", "compactionId": "c1", "status": status, **more}]


CHUNK = {
    "sessionUpdate": "compaction_summary_chunk",
    "compactionId": "c1",
    "content": {"type": "text", "text": "So far: x."},
}
SUMMARY = {"summary": [{"type": "text", "text": "So far: x."}]}


@pytest.mark.parametrize(
    "told",
    [[compaction("completed", **SUMMARY)], [["update", CHUNK], compaction("completed")]],
    ids=["whole", "in chunks"],
)
async def test_a_compaction_that_a_program_tells_is_shown_once_with_its_summary(programs, told):
    usage = ["update", {"sessionUpdate": "usage_update", "used": 900, "size": 4000}]
    smaller = ["update", {"sessionUpdate": "usage_update", "used": 90, "size": 4000}]
    begins = [["say", "On."], usage, compaction("in_progress")]
    await programs.played([[*begins, *told, compaction("completed"), smaller, ["say", "Over."]]])
    sql = "SELECT status, tokens_before, tokens_after FROM compactions"
    assert programs.query(sql) == [("applied", 900, 90)]
    assert programs.query("SELECT text FROM observations") == [("So far: x.",)]
    assert "program.unknown" not in programs.kinds()


@pytest.mark.parametrize(("status", "reason"), [("failed", "no room"), ("cancelled", "")])
async def test_a_compaction_that_failed_is_not_shown_as_one(programs, status, reason):
    more = {"error": reason} if reason else {}
    await programs.played(
        [[["say", "On."], compaction("in_progress"), compaction(status, **more), ["say", "Over."]]]
    )
    assert programs.query("SELECT 1 FROM compactions") == []
    assert programs.kinds().count("program.not_compacted") == 1


# --- permissions ----------------------------------------------------------------------------------------------


def mode_said(mode: Any) -> list[Any]:
    return ["update", {"sessionUpdate": "current_mode_update", "currentModeId": mode}]


def options(mode: Any) -> dict[str, Any]:
    listed = [{"value": one, "name": one} for one in ("auto", "default")]
    return {
        "configOptions": [{"id": "mode", "category": "mode", "currentValue": mode, "options": listed}],
    }


def modes(*offered: str) -> dict[str, Any]:
    return {
        "modes": {
            "currentModeId": "auto",
            "availableModes": [{"id": one, "name": one} for one in offered],
        }
    }


NEW = {"sessionId": "fake-session"}


def about(programs: Programs) -> str:
    """Why the program's agent pauses, as a person reads it."""
    agent = programs.agent()
    assert agent["status"] == "paused", agent
    assert "\n" not in agent["status_reason"]
    return str(agent["status_reason"])


@pytest.mark.parametrize("capabilities", [{"resume": {}}, {}], ids=["resume", "load"])
async def test_the_permission_mode_is_set_before_the_first_prompt_of_each_process(programs, capabilities):
    programs.play("claude-code", "default")
    hello = {
        "protocolVersion": 1,
        "agentCapabilities": {"loadSession": True, "sessionCapabilities": capabilities},
    }
    transcript = programs.path.parent / "transcript.jsonl"
    transcript.touch()
    await programs.played(
        [[["say", "I begin."], ["die"]]], [[["say", "Over."]]], replies={"initialize": hello}
    )
    assert programs.tasks()["a"]["status"] == "done"
    for life in (0, 1):
        sent = [one for number, one in programs.received() if number == life and "method" in one]
        methods = [one["method"] for one in sent]
        (setting,) = (one for one in sent if one["method"] == "session/set_mode")
        assert setting["params"]["modeId"] == "default"
        assert methods.index("session/set_mode") < methods.index("session/prompt")
        models = [one["params"]["value"] for one in sent if one["method"] == "session/set_config_option"]
        assert models == ["default"], "a resume must not take the model of the person's settings"


UNCONFIRMED: dict[str, dict[str, Any]] = {
    "it refuses the mode": {"session/set_mode": {"error": {"code": -32602, "message": "Invalid Mode"}}},
    "it offers other modes": {"session/new": NEW | modes("auto", "plan")},
    "it says nothing of modes": {"session/new": NEW},
    "its options say another one": {
        "session/new": NEW | modes("auto", "default") | options("auto"), "session/set_config_option": options("auto"),
    },
    "its options say nothing": {
        "session/new": NEW | modes("auto", "default") | options("auto"), "session/set_config_option": {},
    },
    "it goes back": {"session/set_mode": ["then", {}, [mode_said("acceptEdits")]],
                     "session/new": NEW | modes("auto", "default") | options("auto"),
                     "session/set_config_option": ["then", options("default"), [mode_said("auto")]]},
}  # fmt: skip


@pytest.mark.parametrize("replies", UNCONFIRMED.values(), ids=UNCONFIRMED)
async def test_a_program_whose_permission_mode_is_not_confirmed_gets_no_prompt(programs, replies):
    programs.play("claude-code", "default")
    result = await programs.played([[bash("t1"), done("t1"), ["say", "Over."]]], replies=replies)
    assert result.exit_code == 5
    assert "mode" in about(programs)
    assert programs.prompts() == []
    assert programs.calls() == []


@pytest.mark.parametrize("mode", ["auto", "bypassPermissions", 7, None])
async def test_a_program_that_changes_its_permission_mode_is_stopped(programs: Programs, mode: Any) -> None:
    programs.play("claude-code", "default")
    changed = [bash("t1"), mode_said(mode), ["file", "never"], done("t1")]
    result = await programs.played([changed])
    assert result.exit_code == 5
    assert "changed its permission mode from default" in about(programs)
    assert programs.calls() == [("bash", "unknown")]
    programs.assert_nothing_runs()


async def test_after_a_changed_mode_a_resume_sets_it_again(programs: Programs) -> None:
    programs.play("claude-code", "default")
    await programs.played([[mode_said("auto"), ["file", "never"]]], [[["say", "Over."]]])
    assert "changed its permission mode" in about(programs)
    assert (await programs.run()).exit_code == 0
    programs.assert_whole()
    assert programs.tasks()["a"]["status"] == "done"
    assert [life for life, _ in programs.received("session/set_mode")] == [0, 1]


async def test_a_program_of_ones_own_needs_a_mode_that_asks(programs: Programs) -> None:
    offers = {"session/new": NEW | modes("yolo", "careful")}
    await programs.played([[["say", "Over."]]], replies=offers)
    assert "available: yolo, careful" in about(programs)
    assert programs.prompts() == []


async def test_the_mode_of_a_program_of_ones_own_is_what_the_configuration_says(programs: Programs) -> None:
    command = [sys.executable, "-S", "-E", str(FAKE), str(programs.fake)]
    programs.use(command, more='[agents.fake.options]\nmode = "careful"\n')
    await programs.played([[["say", "Over."]]], replies={"session/new": NEW | modes("yolo", "careful")})
    assert programs.tasks()["a"]["status"] == "done"


DENIALS: dict[str, dict[str, Any]] = {
    "the person denies both": {"deny": ("bash", "write"), "allow": ()},
    "the role has neither": {"role": "explorer"},
}


@pytest.mark.parametrize("settings", DENIALS.values(), ids=DENIALS)
async def test_claude_code_is_not_given_the_tools_that_are_denied(programs, settings):
    programs.play("claude-code", "default")
    programs.role_of_task = settings.pop("role", "coder") if "role" in settings else "coder"
    await programs.played([[["say", "Over."]]], **settings)
    ((_, opened),) = programs.received("session/new")
    given = opened["params"]["_meta"]["claudeCode"]["options"]
    assert {"Bash", "Monitor", "Write", "Edit", "NotebookEdit", "EnterPlanMode"} <= set(
        given["disallowedTools"]
    )
    assert "Read" not in given["disallowedTools"]
    assert given["settingSources"] == []
    assert given["strictMcpConfig"] is True


@pytest.mark.parametrize("allowed", [(), ("bash", "write")])
async def test_a_role_without_a_tool_is_refused_it_whatever_is_allowed(programs, allowed):
    programs.role_of_task = "explorer"
    edit = {"title": "Notes", "kind": "edit", "rawInput": {"file_path": "/w/notes"}}
    await programs.played([[
        bash("t1"), question(0, "t1"), ["await", 0], ["tool", "t1", {"status": "failed"}],
        ["tool", "t2", edit], ["ask", 1, {"toolCallId": "t2", **edit}], ["await", 1], ["tool", "t2", {"status": "failed"}],
        ["say", "Over."],
    ]], allow=allowed)  # fmt: skip
    assert programs.answers() == {0: "no", 1: "no"}
    assert not programs.query("SELECT 1 FROM approvals")
    told = "\n".join(programs.prompts())
    assert "the role explorer does not have this tool" in told
    assert "person" not in told


async def test_nobody_is_said_to_have_denied_what_the_configuration_denies_or_nobody_answered(programs):
    asks = [bash("t1"), question(0, "t1"), ["await", 0], ["tool", "t1", {"status": "failed"}]]
    await programs.played([[*asks, ["say", "Over."]]], deny=("bash",), allow=())
    assert programs.answers() == {0: "no"}
    told = "\n".join(programs.prompts())
    assert "the configuration denies it" in told
    assert "person" not in told


async def test_a_question_without_an_answer_in_time_is_not_said_to_be_denied_by_a_person(
    programs: Programs,
) -> None:
    asks = [bash("t1"), question(0, "t1"), ["await", 0], ["tool", "t1", {"status": "failed"}]]
    await programs.played([[*asks, ["say", "Over."]]], allow=())
    told = "\n".join(programs.prompts())
    assert "The approval timed out" in told
    assert "A person denied" not in told


async def test_a_program_that_runs_what_is_denied_without_asking_is_stopped(programs: Programs) -> None:
    await programs.played([[bash("t1"), done("t1"), ["file", "never"]]], deny=("bash",), allow=())
    assert "ran bash without approval, although the configuration denies it" in about(programs)
    programs.assert_nothing_runs()


async def test_a_call_of_a_tool_that_was_taken_away_is_not_one_that_ran(programs: Programs) -> None:
    """OpenCode carries it out as its tool `invalid`."""
    turned = {"title": "invalid", "kind": "other", "status": "in_progress", "rawInput": {"tool": "bash"}}
    calls = [
        part for number, kind in (("t1", "execute"), ("t2", "edit")) for part in (
            ["tool", number, {"title": "bash", "kind": kind, "status": "pending", "locations": [{"path": "/w"}]}],
            ["update", {"sessionUpdate": "tool_call_update", "toolCallId": number, **turned}], done(number),
        )
    ]  # fmt: skip
    await programs.played([[*calls, ["say", "Over."]]], deny=("bash", "write"), allow=())
    assert programs.tasks()["a"]["status"] == "done"
    assert programs.calls() == [("invalid", "done")] * 2


async def test_a_program_that_changes_files_which_its_role_may_not_is_stopped(programs: Programs) -> None:
    programs.role_of_task = "explorer"
    edit = {"title": "Notes", "kind": "edit", "rawInput": {"file_path": "/w/notes"}}
    await programs.played([[["tool", "t1", edit], done("t1"), ["file", "never"]]])
    assert "the role explorer does not have this tool" in about(programs)


async def test_an_answer_for_once_is_never_given_as_one_for_always(programs: Programs) -> None:
    asks = ["send", {"id": 0, "method": "session/request_permission",
                     "params": {"toolCall": {"toolCallId": "t1", "title": "bash", "kind": "execute"},
                                "options": [{"optionId": "yes", "kind": "allow_always"}]}}]  # fmt: skip
    await programs.played([[bash("t1"), asks, ["await", 0], ["tool", "t1", {"status": "failed"}]]])
    assert programs.answers() == {0: "cancelled"}


LOOSE: dict[str, Any] = {
    "bash (git *)": [{"permission": "bash", "pattern": "git *", "action": "allow"}],
    "webfetch (*)": [{"permission": "webfetch", "pattern": "*", "action": "allow"}],
    "* (*)": [{"permission": "*", "pattern": "*", "action": "allow"}],
    "mine_* (*)": [{"permission": "mine_*", "pattern": "*", "action": "allow"}],
}


@pytest.mark.parametrize("loose", LOOSE)
async def test_opencode_is_refused_where_a_rule_of_its_settings_would_not_ask(programs, loose):
    programs.play("opencode", "default", "acp")
    every = [{"name": "build", "permission": [*ASKING, *LOOSE[loose]]}]
    await programs.played([[["say", "Over."]]], replies={"GET /agent": every})
    assert f"agent build would run {loose} without asking" in about(programs)
    assert programs.prompts() == []


ASKING = [
    {"permission": "*", "pattern": "*", "action": "allow"}, {"permission": "*", "pattern": "*", "action": "ask"},
    {"permission": "read", "pattern": "*", "action": "allow"},
    *({"permission": name, "pattern": "*", "action": "deny"} for name in ("plan_enter", "plan_exit")),
]  # fmt: skip


@pytest.mark.parametrize(
    "listed", [500, [], {}, [{"name": "other", "permission": ASKING}], [{"name": "build"}]]
)
async def test_opencode_gets_no_prompt_where_its_permissions_cannot_be_read_back(programs, listed):
    programs.play("opencode", "default", "acp")
    await programs.played([[["say", "Over."]]], replies={"GET /agent": listed})
    about(programs)
    assert programs.prompts() == []


async def test_a_sub_agent_of_opencode_that_would_not_ask_is_refused_too(programs: Programs) -> None:
    programs.play("opencode", "default", "acp")
    free = [*ASKING, {"permission": "bash", "pattern": "*", "action": "allow"}]
    listed = [
        {"name": "build", "permission": ASKING},
        {"name": "kid", "mode": "subagent", "permission": free},
    ]
    await programs.played([[["say", "Over."]]], replies={"GET /agent": listed})
    assert "agent kid would run bash (*) without asking" in about(programs)


async def test_opencode_denies_what_the_person_denies(programs: Programs) -> None:
    programs.play("opencode", "default", "acp")
    await programs.played([[["say", "Over."]]], deny=("bash", "write"), allow=())
    assert programs.tasks()["a"]["status"] == "done"
    rules = json.loads((programs.fake / "permission.json").read_text())
    assert (rules["bash"], rules["edit"], rules["read"]) == ("deny", "deny", "allow")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".opencode/plugin/x.js", ""), (".opencode/plugins/x.ts", ""), ("opencode.json", '{"plugin": ["x"]}'),
        ("opencode.jsonc", '{"plugins": ["./x.js"]}'), ("opencode.json", '{"plu\\u0067in": ["x"]}'),
    ],
)  # fmt: skip
async def test_opencode_is_not_started_where_the_project_has_plugins(programs, name, text):
    programs.play("opencode", "default", "acp")
    place = programs.workspace / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    await programs.played([[["say", "Over."]]])
    assert str(place) in about(programs)
    assert programs.received() == []


# --- what `wk doctor` says of the programs ----------------------------------------------------------------------


def installed(folder: Path, version: str) -> dict[str, str]:
    """An environment in which the adapter of Claude Code, Codex and OpenCode are installed by npm."""
    adapter = folder / "node_modules/@agentclientprotocol/claude-agent-acp"
    sdk = folder / "node_modules/@anthropic-ai/claude-agent-sdk"
    opencode, codex = folder / "node_modules/opencode-ai", folder / "node_modules/@openai/codex"
    for package, about in ((adapter, {"version": version}), (sdk, {"version": "0.3.1", "claudeCodeVersion": "2.1.7"}),
                           (opencode, {"version": "1.18.33"}), (codex, {"version": "0.171.0"})):  # fmt: skip
        (package / "bin").mkdir(parents=True)
        (package / "package.json").write_text(json.dumps(about))
    bin_folder = folder / "node_modules/.bin"
    bin_folder.mkdir()
    for name, package in (("claude-agent-acp", adapter), ("opencode", opencode), ("codex", codex)):
        (package / "bin" / name).touch(0o755)
        (bin_folder / name).symlink_to(package / "bin" / name)
    return {"PATH": str(bin_folder), "HOME": str(folder), "WATCHKEEPER_CONFIG_DIR": str(folder)}


@pytest.mark.parametrize(("version", "status"), [("0.101.0", "ok"), ("9.9.9", "warn")])
def test_the_doctor_names_the_version_behind_an_adapter_and_warns_of_one_that_was_not_tested(
    version: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in installed(tmp_path, version).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
    said = {name: (how, text) for name, how, text in doctor_programs()}
    assert said["claude-code"][0] == status
    assert f"{version} (Claude Code 2.1.7)" in said["claude-code"][1]
    assert ("not tested" in said["claude-code"][1]) is (status == "warn")


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("opencode", ".config/opencode/opencode.json", '{"provider": {"mine": {"options": {"baseURL": "http://127.0.0.1:1"}}}}'),
        ("codex", ".codex/config.toml", 'model_provider = "mine"\n'),
        ("opencode", "config.toml", '[agents.opencode.environment]\nGROQ_API_KEY = "k"\n'),
        ("claude-code", "config.toml", '[agents.claude-code.environment]\nCLAUDE_CODE_USE_BEDROCK = "1"\n'),
    ],
)  # fmt: skip
def test_a_program_with_a_provider_or_a_key_of_the_persons_own_is_not_called_not_logged_in(
    name: str, file: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in installed(tmp_path, "0.101.0").items():
        monkeypatch.setenv(variable, value)
    for variable in (
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "CODEX_HOME",
        "CLAUDE_CONFIG_DIR",
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
    ):
        monkeypatch.delenv(variable, raising=False)
    assert "not logged in" in {one: said for one, _, said in doctor_programs()}[name]
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    assert "not logged in" not in {one: said for one, _, said in doctor_programs()}[name]


@pytest.mark.parametrize("where", ["content", "file"])
def test_opencode_with_a_configured_key_is_not_called_not_logged_in(where, tmp_path, monkeypatch):
    for name, value in installed(tmp_path, "0.101.0").items():
        monkeypatch.setenv(name, value)
    assert "not logged in" in {name: text for name, _, text in doctor_programs()}["opencode"]
    settings = json.dumps({"provider": {"mine": {"options": {"apiKey": "k"}}}})
    if where == "content":
        monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", settings)
    else:
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        (tmp_path / ".config/opencode").mkdir(parents=True)
        (tmp_path / ".config/opencode/opencode.jsonc").write_text(settings)
    assert "not logged in" not in {name: text for name, _, text in doctor_programs()}["opencode"]
