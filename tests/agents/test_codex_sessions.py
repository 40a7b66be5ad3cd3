"""Sessions of the real Codex, played again, and what Watchkeeper sends to it, against Codex's own JSON schema."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
from tests.agents import codex_session
from tests.agents.conftest import Programs
from tests.agents.test_acp_programs import SECRET, mutations
from tests.core.runtime.conftest import Ground, add_agent
from tests.core.transcripts.codex_rollout import ROOT
from tests.core.transcripts.test_codex_compactions import compacted_by_hand

from watchkeeper.agents.backends.record import ProgramRecord
from watchkeeper.memory.tokens import default_counter
from watchkeeper.records.messages import Cost, PriceStatus, View
from watchkeeper.store import agents
from watchkeeper.store.messages import add_view

RECORD = os.environ.get("WATCHKEEPER_RECORD_CODEX")
"""Path of Codex: record the sessions anew."""
PLAYER = str(Path(codex_session.__file__))
PATCH = "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\n"
TOUR = "\n".join([
    "run: echo hi > hi.txt; echo out",
    "tool: exec_command " + json.dumps({"cmd": f"apply_patch <<'EOF'\n{PATCH}EOF\n"}),
    'tool: remember {"text": "the number of codex is 7"}',
    "run: sleep 3; echo slept",
    "run: echo never > never.txt",
    "run: echo more > more.txt",
    "slow 3: say: all done",
])  # fmt: skip
TOUR_THREAD = "00000000-0000-0000-0000-000000000001"


@pytest.fixture
def codex(programs: Programs, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Codex as it was recorded; with WATCHKEEPER_RECORD_CODEX, Codex itself."""
    part = str(request.param)
    monkeypatch.setattr("watchkeeper.agents.backends.record.SETTLE_SECONDS", 0.2)
    programs.model_of_task = "codex/gpt-5"
    if RECORD is None:
        programs.use([sys.executable, "-S", "-E", PLAYER, "replay", str(programs.fake), part], "codex")
        yield programs
        return
    from tests.agents.model_servers import RunningServer

    with RunningServer() as server:
        mock = f'{{ name = "mock", base_url = "{server.url}/v1", wire_api = "responses", env_key = "OPENAI_API_KEY", request_max_retries = 0, stream_max_retries = 1 }}'
        home = programs.fake / "home"
        home.mkdir()
        command = [
            sys.executable, "-S", "-E", PLAYER, "record", str(programs.fake), "--", RECORD,
            *codex_session.ARGUMENTS,
        ]  # fmt: skip
        programs.use(command, "codex", (
            f'[agents.codex.environment]\nOPENAI_API_KEY = "sk-x"\nCODEX_HOME = "{home}"\n[agents.codex.options.config]\n'
            f'model_provider = "mock"\nmodel_providers = {{ mock = {mock} }}\n'))  # fmt: skip
        yield programs
    lines = [json.loads(line) for line in (programs.fake / "lines.jsonl").read_text().splitlines()]
    kept = (
        [json.loads(line) for line in codex_session.RECORDING.read_text().splitlines()]
        if codex_session.RECORDING.exists()
        else []
    )
    places = [str(programs.fake.parent), str(Path(RECORD).resolve().parents[4]), os.path.expanduser("~")]
    kept = [line for line in kept if line[0] != part]
    kept += [[part, *line] for line in codex_session.cleaned(lines, places)]
    codex_session.RECORDING.write_text(
        "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in kept)
    )
    shutil.rmtree(programs.fake)


def events(programs: Programs, kind: str) -> list[Any]:
    rows = programs.query("SELECT data FROM events WHERE kind = ? ORDER BY seq", kind)
    return [json.loads(row[0]) for row in rows]


async def answered(programs: Programs, number: int) -> None:
    """Approve the question with that number, from 0."""

    def waiting(state: dict[str, Any]) -> Any:
        return len(state["approvals"]) > number and state["approvals"][number]["status"] == "waiting"

    await programs.until(waiting)
    programs.submit("approve", payload={"approval": programs.state["approvals"][number]["id"]})


@pytest.mark.parametrize("codex", ["tour"], indirect=True)
async def test_a_session_with_everything_in_it(codex: Programs) -> None:
    codex.instructions = f"THE PROMPT of a\n\n#script\n{TOUR}"
    codex.script(allow=(), approval_timeout_seconds=None)

    async def work_and_pause() -> None:
        await answered(codex, 0)
        await answered(codex, 1)
        await answered(codex, 2)
        await codex.until(lambda state: len(codex.calls()) == 4)
        await codex.applied(
            codex.submit("steer", agent_id=codex.agent()["id"], payload={"text": "Mind the gap."})
        )
        await codex.until(lambda state: events(codex, "program.steered"))
        await codex.until(lambda state: len(state["approvals"]) > 3)
        codex.submit("pause", payload={"now": True})

    assert (await codex.run_while(work_and_pause)).exit_code == 5
    assert [one["when"] for one in events(codex, "program.steered")] == ["now"]

    async def compact() -> None:
        await codex.until(lambda state: len(state["approvals"]) > 4)
        await codex.applied(codex.submit("compact", agent_id=codex.agent()["id"]))
        await answered(codex, 4)
        await codex.until(lambda state: codex.tasks()["a"]["status"] == "done")

    assert (await codex.run_while(compact)).exit_code == 0
    assert codex.tasks()["a"]["status"] == "done"
    names = ["bash", "file_change", "mcp__watchkeeper__remember", "bash", "bash", "bash"]
    assert [name for name, _ in codex.calls()] == names
    assert [status for _, status in codex.calls()] == ["done"] * 4 + ["denied", "done"]
    if RECORD is None:
        codex.assert_whole()
        valid_by_codex(codex)
        methods = {one["method"] for _, one in codex.received() if "method" in one}
        assert methods >= {
            "thread/start", "thread/resume", "turn/steer", "turn/interrupt", "thread/compact/start",
        }  # fmt: skip


class TestRecords:
    """A compaction that the log and the program both tell, or that is read again, is one; so is each model call."""

    @pytest.fixture
    def ground(self, tmp_path: Path) -> Iterator[Ground]:
        ground = Ground(tmp_path)
        ground.write(lambda tx: add_agent(tx, "a"))
        ground.write(lambda tx: add_view(tx, "a", View(1, (), 1), tokens=0))
        yield ground
        ground.close()

    async def opened(self, ground: Ground, log: Path, program: str = "codex") -> ProgramRecord:
        """The record of the agent as it is when its program was opened again, and read to its end."""
        environment = SimpleNamespace(store=ground.store, redact=lambda value: value, counter=default_counter(),
                                      price=lambda *about: Cost(None, PriceStatus.UNPRICED))  # fmt: skip
        agent = agents.load(ground.store, "a")
        record = ProgramRecord(cast(Any, environment), cast(Any, agent))
        session = agents.ProgramSession("a", program, "1", ROOT, None, str(log), "/", 0)
        ground.write(lambda tx: agents.save_program_session(tx, session))
        record.follow(cast(Any, SimpleNamespace(name=program, reader=program)), session)
        await record.look()
        return record

    async def test_each_call_that_a_request_reports_is_stored_once(self, ground, tmp_path):
        own = {"input_tokens": 2, "output_tokens": 491, "cache_read_input_tokens": 226_584}
        advisor = {
            "type": "advisor_message",
            "model": "claude-opus-4-7",
            "input_tokens": 159_419,
            "output_tokens": 7_805,
        }
        usage = {**own, "iterations": [{"type": "message", **own}, advisor]}
        message = {"id": "msg_1", "model": "claude-sonnet-4-6", "role": "assistant", "usage": usage}
        lines = [
            {"type": "assistant", "sessionId": ROOT, "uuid": f"u{number}", "requestId": "req_1",
             "timestamp": f"2026-10-06T09:00:0{number}.000Z",
             "message": message | {"content": [{"type": "text", "text": f"part {number}"}], "stop_reason": "end_turn"}}
            for number in range(3)
        ]  # fmt: skip
        log = tmp_path / f"{ROOT}.jsonl"
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for _ in range(2):
            record = await self.opened(ground, log, "claude-code")
            await record.settle("part 2")
            rows = ground.store.all(
                "SELECT purpose, model, input_tokens, output_tokens FROM model_calls ORDER BY id"
            )
            assert [tuple(row) for row in rows] == [
                ("turn", "anthropic/claude-sonnet-4-6", 2, 491),
                ("advisor", "anthropic/claude-opus-4-7", 159_419, 7_805),
            ]
            assert ground.store.one("SELECT input_tokens FROM agents WHERE id = 'a'")[0] == 159_421

    def count(self, ground: Ground) -> int:
        return int(ground.store.one("SELECT compactions FROM agents WHERE id = 'a'")[0])

    async def test_a_program_that_is_opened_again_records_none_twice(self, ground, tmp_path):
        log = compacted_by_hand().write(tmp_path / "sessions")
        for _ in range(3):
            await self.opened(ground, log)
            assert self.count(ground) == 1

    async def test_one_that_the_program_told_before_its_log_was_known_is_recorded_once(
        self, ground, tmp_path
    ):
        record = await self.opened(ground, tmp_path / "not there yet")
        record._tail = None
        await record.compacted("")
        assert self.count(ground) == 1
        log = compacted_by_hand().write(tmp_path / "sessions")
        for _ in range(2):
            await self.opened(ground, log)
            assert self.count(ground) == 1


@pytest.mark.parametrize("codex", ["limit"], indirect=True)
async def test_a_usage_limit_parks_the_agent_until_it_ends(codex: Programs) -> None:
    codex.instructions = "THE PROMPT of a\n\n#script\nfail: 429"
    codex.script()

    async def stop() -> None:
        await codex.until(lambda state: codex.agent().get("status") == "parked")
        assert codex.agent()["parked_until"] == 4102444800
        codex.submit("pause", payload={"now": True})

    await codex.run_while(stop)
    if RECORD is None:
        codex.assert_whole()


@pytest.mark.parametrize("codex", ["failure"], indirect=True)
async def test_a_failed_turn_fails_the_task_with_the_reason(codex: Programs) -> None:
    codex.instructions = "THE PROMPT of a\n\n#script\nfail: 400"
    codex.script()
    await codex.run()
    assert codex.tasks()["a"]["status"] == "failed"
    if RECORD is None:
        codex.assert_whole()


async def test_no_field_of_a_wrong_type_from_codex_ends_the_loop(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its denials would be the next prompt, to which the stand-in says all of this again.
    monkeypatch.setattr("watchkeeper.agents.approvals.IDENTICAL_RUNS", 1_000_000)
    said: dict[str, Any] = {}
    for line in codex_session.RECORDING.read_text().splitlines():
        part, _, who, message = json.loads(line)
        method = message.get("method")
        if (
            part == "tour"
            and who == "codex"
            and method
            and method not in ("thread/started", "turn/completed")
        ):
            said[f"{method} {message['params'].get('item', {}).get('type')}"] = message
    lines: list[Any] = []
    for number, message in enumerate(said.values()):
        for place, params in enumerate(mutations(message["params"])):
            changed = {**message, "params": params} | ({"id": f"{number}/{place}"} if "id" in message else {})
            lines.append(["line", json.dumps(changed)])
    last = {"threadId": "t", "itemId": "last", "delta": "It is over."}
    lines += [["send", {"method": "item/agentMessage/delta", "params": last}],
              ["send", {"method": "turn/completed", "params": {"threadId": "t", "turn": {"id": "u", "status": "completed"}}}]]  # fmt: skip
    lines = json.loads(json.dumps(lines).replace(TOUR_THREAD, "t"))
    replies = {"thread/start": {"thread": {"id": "t"}}, "turn/start": ["then", {"turn": {"id": "u"}}, lines]}
    programs.play("codex", "gpt-5")
    await programs.played(replies=replies)
    assert programs.tasks()["a"]["status"] == "done", programs.tasks()["a"]
    assert "It is over." in programs.tasks()["a"]["result"]


async def test_calls_that_only_the_programs_record_tells_are_taken_over_and_cut_ones_are_unknown(programs):
    rollout = programs.fake / f"rollout-2026-01-01T00-00-00-{TOUR_THREAD}.jsonl"
    thread = {"thread": {"id": TOUR_THREAD, "path": str(rollout)}}
    ended = {"method": "turn/completed", "params": {"turn": {"id": "u", "status": "completed"}}}
    turns = [
        ["then", {"turn": {"id": "u"}}, [["file", "go"], ["die"]]],
        ["then", {"turn": {"id": "v"}}, [["send", ended]]],
    ]
    replies = {"thread/start": thread, "thread/resume": thread, "turn/start": ["lives", turns]}
    programs.play("codex", "gpt-5")
    programs.script(replies=replies)

    async def write_the_record() -> None:
        await programs.until(lambda state: programs.prompts())
        message = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": programs.prompts()[0]}],
        }
        items: list[dict[str, Any]] = [message]
        for call, output in (
            ("c1", "all is well"),
            ("c2", "Wall time: 0.1 seconds\naborted by user"),
            ("c3", None),
            ("c4", "exec command rejected by user"),  # no person was asked: the host died while it waited
            (
                "c5",
                "Wall time: 1.0 seconds\nProcess running with session ID 7\nOutput:\n",
            ),  # it ended with Codex
        ):
            arguments = json.dumps({"cmd": f"echo {call}"})
            items.append(
                {"type": "function_call", "name": "exec_command", "call_id": call, "arguments": arguments}
            )
            if output is not None:
                items.append({"type": "function_call_output", "call_id": call, "output": output})
        meta = {"type": "session_meta", "payload": {"id": TOUR_THREAD, "cwd": str(programs.workspace)}}
        lines = [meta, *({"type": "response_item", "payload": one} for one in items)]
        now = {"timestamp": "2026-01-01T00:00:00.000Z"}
        rollout.write_text("".join(json.dumps(now | line) + "\n" for line in lines))
        (programs.fake / "go").touch()
        await programs.until(lambda state: programs.tasks()["a"]["status"] == "done")

    await programs.run_while(write_the_record)
    programs.assert_whole()
    assert [status for _, status in programs.calls()] == ["done", "unknown", "unknown", "unknown", "unknown"]
    known, _, unknown = programs.prompts()[1].partition("fully or partly. Verify")
    assert "(c1)" in known
    assert "(c2)" in unknown
    assert "(c3)" in unknown
    assert "(c4)" in unknown
    assert "(c5)" in unknown
    assert "may not have received the last message" not in programs.prompts()[1]


def in_turn(method: str, **params: Any) -> list[Any]:
    return ["send", {"method": method, "params": {"threadId": "t", **params}}]


MAKE = {"type": "commandExecution", "id": "c1", "command": "make all", "status": "inProgress"}
MADE = in_turn("item/completed", item=MAKE | {"status": "completed", "aggregatedOutput": "made all of it"})
COMPLETED = {"id": "u", "status": "completed"}
STILL_MAKES = [
    in_turn("item/started", item=MAKE), in_turn("item/started", item={"type": "agentMessage", "id": "m1"}),
    in_turn("item/agentMessage/delta", itemId="m1", delta="It is being made."), in_turn("turn/completed", turn=COMPLETED),
]  # fmt: skip


@pytest.mark.parametrize("more", [{"writableRoots": ["/srv"]}, {"networkAccess": True}])
async def test_codex_gets_no_prompt_with_a_wider_sandbox_than_was_set(programs: Programs, more: Any) -> None:
    """As with `sandbox_workspace_write` of the person's own Codex settings."""
    programs.play("codex", "gpt-5")
    wider = {"thread": {"id": "t"}, "sandbox": {"type": "workspaceWrite"} | more}
    await programs.played(replies={"thread/start": wider})
    assert "Codex did not confirm its permissions" in str(programs.agent()["status_reason"])
    assert programs.prompts() == []
    ((_, asked),) = programs.received("thread/start")
    config = asked["params"]["config"]
    assert config["sandbox_workspace_write.writable_roots"] == []
    assert config["sandbox_workspace_write.network_access"] is False


RUNS = {
    "thread/start": {"thread": {"id": "t"}},
    "thread/backgroundTerminals/list": {"data": [{"itemId": "c1"}]},
}


async def test_a_command_whose_end_codex_does_not_tell_is_unknown_once_it_runs_no_more(programs, monkeypatch):
    monkeypatch.setattr("watchkeeper.agents.backends.codex.TERMINALS_SECONDS", 0.0)
    programs.play("codex", "gpt-5")
    lists = [
        "each",
        [{"data": [{"itemId": "c1"}]}, {"error": {"code": 1, "message": "x"}}, *[{"data": []}] * 2],
    ]
    turn = ["then", {"turn": {"id": "u"}}, STILL_MAKES]
    await programs.played(replies=RUNS | {"turn/start": turn, "thread/backgroundTerminals/list": lists})
    assert programs.calls() == [("bash", "unknown")]
    assert programs.tasks()["a"]["status"] == "done"


async def test_a_task_is_done_once_its_command_has_ended_and_codex_was_told_how(programs: Programs) -> None:
    over = [
        in_turn("item/agentMessage/delta", itemId="m2", delta="Over."),
        in_turn("turn/completed", turn=COMPLETED),
    ]
    turns = [
        ["then", {"turn": {"id": "u"}}, [*STILL_MAKES, ["file", "go"], MADE]],
        ["then", {"turn": {"id": "v"}}, over],
    ]
    programs.play("codex", "gpt-5")
    programs.script(replies=RUNS | {"turn/start": ["each", turns]})

    async def let_it_end() -> None:
        await programs.until(lambda state: "It is being made." in programs.transcript())
        assert programs.calls() == [("bash", "running")]
        assert programs.tasks()["a"]["status"] == "running"
        (programs.fake / "go").touch()
        await programs.until(lambda state: programs.tasks()["a"]["status"] == "done")

    await programs.run_while(let_it_end)
    programs.assert_whole()
    assert programs.calls() == [("bash", "done")]
    assert programs.tasks()["a"]["result"] == "Over."
    assert "made all of it" in programs.prompts()[1]
    assert {"program.background", "program.background_ended"} <= set(programs.kinds())


async def test_a_message_to_codex_while_only_its_command_runs_is_sent_at_once(programs: Programs) -> None:
    over = [
        in_turn("item/agentMessage/delta", itemId="m2", delta="Over."),
        MADE,
        in_turn("turn/completed", turn=COMPLETED),
    ]
    turns = [["then", {"turn": {"id": "u"}}, STILL_MAKES], ["then", {"turn": {"id": "v"}}, over]]
    turns.append(
        ["then", {"turn": {"id": "w"}}, [in_turn("turn/completed", turn={"id": "w", "status": "completed"})]]
    )
    programs.play("codex", "gpt-5")
    programs.script(replies=RUNS | {"turn/start": ["each", turns]})

    async def steer() -> None:
        await programs.until(lambda state: "It is being made." in programs.transcript())
        programs.submit("steer", agent_id=programs.agent()["id"], payload={"text": "Stop it."})
        await programs.until(lambda state: programs.tasks()["a"]["status"] == "done")

    await programs.run_while(steer)
    programs.assert_whole()
    assert "Stop it." in programs.prompts()[1]


async def test_a_pause_at_once_stops_the_command_that_codex_waits_for(programs: Programs) -> None:
    programs.play("codex", "gpt-5")
    turn = ["then", {"turn": {"id": "u"}}, STILL_MAKES]
    programs.script(replies=RUNS | {"turn/start": turn})

    async def pause() -> None:
        await programs.until(lambda state: "It is being made." in programs.transcript())
        programs.submit("pause", payload={"now": True})

    assert (await programs.run_while(pause)).exit_code == 5
    programs.assert_whole()
    assert programs.calls() == [("bash", "unknown")]
    assert programs.received("thread/backgroundTerminals/clean")


async def test_a_budget_ends_the_turn_at_the_end_of_the_tool_call(programs: Programs) -> None:
    command = {"type": "commandExecution", "id": "c1", "command": "make"}
    last = {"totalTokens": 9000, "inputTokens": 8000, "outputTokens": 1000}
    turn = [
        ["send", {"method": "item/started", "params": {"item": command}}],
        ["send", {"method": "thread/tokenUsage/updated", "params": {"tokenUsage": {"last": last}}}],
        ["file", "go"],
        [
            "send", {"method": "item/completed",
             "params": {"item": command | {"status": "completed", "aggregatedOutput": "made"}}},
        ],
    ]  # fmt: skip
    ended = {"method": "turn/completed", "params": {"turn": {"id": "u", "status": "interrupted"}}}
    programs.play("codex", "gpt-5")
    replies = {
        "thread/start": {"thread": {"id": "t"}}, "turn/start": ["then", {"turn": {"id": "u"}}, turn],
        "turn/interrupt": ["then", {}, [["send", ended]]],
    }  # fmt: skip
    programs.script(replies=replies, budgets={"tokens": 5000})

    async def end_the_call() -> None:
        await programs.until(lambda state: events(programs, "budget.reached"))
        assert not programs.received("turn/interrupt")
        (programs.fake / "go").touch()
        await programs.until(lambda state: programs.agent()["status"] == "paused")

    assert (await programs.run_while(end_the_call)).exit_code == 5
    assert programs.calls() == [("bash", "done")]
    programs.assert_whole()


def valid_by_codex(programs: Programs) -> None:
    """All that was sent is what Codex's own schema says, and has no field that it does not know."""
    whole = json.loads(codex_session.SCHEMA.read_text())
    recorded = [json.loads(line) for line in codex_session.RECORDING.read_text().splitlines()]
    asked = {(life, one["id"]): one["method"] for part, life, who, one in recorded
             if part == "tour" and who == "codex" and {"id", "method"} <= one.keys()}  # fmt: skip
    checked = 0
    for life, message in programs.received():
        method = message.get("method") or asked[life, message["id"]]
        if method not in whole:
            assert method == "initialized", method
            continue
        given = message["params"] if "method" in message else message["result"]
        jsonschema.validate(given, {**whole[method], "definitions": whole["definitions"]})
        unknown = set(given) - set(whole[method]["properties"])
        assert not unknown, f"{method} has no {unknown}"
        checked += 1
    assert checked > 10


async def test_a_sub_agents_calls_questions_and_tokens_are_the_agents_too(programs: Programs) -> None:
    main, kid = TOUR_THREAD, TOUR_THREAD[:-1] + "9"
    logs = {
        thread: programs.fake / f"rollout-2026-01-01T00-00-0{thread[-1]}-{thread}.jsonl"
        for thread in (main, kid)
    }
    for thread, path in logs.items():
        meta: dict[str, Any] = {"id": thread, "session_id": main, "cwd": str(programs.workspace)}
        meta |= (
            {"parent_thread_id": main, "source": {"subagent": {"thread_spawn": {"parent_thread_id": main}}}}
            if thread == kid
            else {}
        )
        used = {"input_tokens": 1000, "cached_input_tokens": 0, "output_tokens": 10, "total_tokens": 1010}
        count = {"type": "token_count", "info": {"total_token_usage": used, "last_token_usage": used}}
        lines = [{"type": "session_meta", "payload": meta}, {"type": "event_msg", "payload": count}]
        path.write_text(
            "".join(
                json.dumps({"timestamp": f"2026-01-01T00:{minute:02}:00.000Z"} | line) + "\n"
                for minute, line in enumerate(lines)
            )
        )

    def said(method: str, thread: str, **params: Any) -> list[Any]:
        return ["send", {"method": method, "params": {"threadId": thread, **params}}]

    spawned = {"type": "collabAgentToolCall", "id": "s", "tool": "spawnAgent", "status": "completed",
               "prompt": "Look.", "receiverThreadIds": [kid]}  # fmt: skip
    command = {"type": "commandExecution", "id": "c1", "command": "/bin/bash -lc 'make it'"}
    asked = {"threadId": kid, "itemId": "c1", "command": command["command"], "reason": f"It needs {SECRET}."}
    turn = [
        said("item/completed", main, item=spawned),
        said("turn/started", kid, turn={"id": "k"}),
        said("item/started", kid, item=command),
        ["send", {"id": 7, "method": "item/commandExecution/requestApproval", "params": asked}],
        ["await", 7],
        said("item/completed", kid, item=command | {"status": "completed", "aggregatedOutput": "made"}),
    ]
    over = [
        said("turn/completed", kid, turn={"id": "k", "status": "interrupted"}),
        said("turn/completed", main, turn={"id": "u", "status": "interrupted"}),
    ]
    programs.play("codex", "gpt-5")
    thread = {"thread": {"id": main, "path": str(logs[main])}}
    replies = {"thread/start": thread, "turn/start": ["then", {"turn": {"id": "u"}}, turn],
               "turn/interrupt": ["each", [{}, ["then", {}, over]]]}  # fmt: skip
    programs.script(replies=replies, allow=(), approval_timeout_seconds=None)

    async def approve_and_pause() -> None:
        await answered(programs, 0)
        await programs.until(lambda state: programs.calls() == [("bash", "done")])
        programs.submit("pause")
        await programs.until(lambda state: programs.agent()["status"] == "paused")

    await programs.run_while(approve_and_pause)
    programs.assert_whole()
    assert "make it" in programs.state["approvals"][0]["question"]
    assert "It needs" in programs.state["approvals"][0]["note"]
    assert SECRET not in json.dumps(programs.state["approvals"])
    stopped = {
        (one["params"]["threadId"], one["params"]["turnId"]) for _, one in programs.received("turn/interrupt")
    }
    assert stopped == {(main, "u"), (kid, "k")}
    assert [
        one["title"] for kind in ("working", "failed") for one in events(programs, f"program.child_{kind}")
    ] == ["Look."] * 2
    tokens = programs.query(
        "SELECT m.input_tokens FROM model_calls m JOIN agents a ON a.id = m.agent_id WHERE a.task_id IS NOT NULL"
    )
    assert [row[0] for row in tokens] == [1000, 1000]


async def test_what_a_record_tells_of_a_prompt_that_was_sent_before_is_taken_over_once(programs):
    """The same words are sent twice: what followed the first time is not news, and says nothing of the second."""
    rollout = programs.fake / f"rollout-2026-01-01T00-00-00-{TOUR_THREAD}.jsonl"
    thread = {"thread": {"id": TOUR_THREAD, "path": str(rollout)}}
    ended = {"method": "turn/completed", "params": {"turn": {"id": "u", "status": "interrupted"}}}
    lives = [
        ["then", {"turn": {"id": "u"}}, [["file", "go"], ["send", ended]]],
        ["then", {"turn": {"id": "v"}}, [["file", "gone"], ["send", ended]]],
        ["then", {"turn": {"id": "w"}}, [["die"]]], ["then", {"turn": {"id": "x"}},
         [["send", {"method": "turn/completed", "params": {"turn": {"id": "x", "status": "completed"}}}]]],
    ]  # fmt: skip
    programs.play("codex", "gpt-5")
    programs.script(replies={"thread/start": thread, "thread/resume": thread, "turn/start": ["lives", lives]})

    def write(role: str, text: str) -> None:
        kind = "output_text" if role == "assistant" else "input_text"
        item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        lines = (
            []
            if rollout.exists()
            else [{"type": "session_meta", "payload": {"id": TOUR_THREAD, "cwd": str(programs.workspace)}}]
        )
        lines.append({"type": "response_item", "payload": item})
        with rollout.open("a") as log:
            number = log.tell()
            log.writelines(
                json.dumps({"timestamp": f"2026-01-01T00:00:00.{number:06}Z"} | line) + "\n" for line in lines
            )

    async def cut(name: str, life: int, words: str) -> None:
        await programs.until(lambda state: len(programs.prompts()) == life)
        write("user", programs.prompts()[-1])
        write("assistant", words)
        (programs.fake / name).touch()
        await programs.until(lambda state: programs.agent()["status"] == "paused")

    await programs.run_while(lambda: cut("go", 1, "Words of the first."))
    await programs.run_while(lambda: cut("gone", 2, "Words of the second."))
    assert programs.prompts()[1] == "[Watchkeeper] Continue where you stopped."
    assert (await programs.run()).exit_code == 0
    programs.assert_whole()
    assert programs.prompts()[2] == programs.prompts()[1]
    assert "may not have received the last message" in programs.prompts()[3]
    assert json.dumps(programs.transcript()).count("Words of the second.") <= 1


# --- permissions ----------------------------------------------------------------------------------------------

THREAD = {"thread": {"id": "t"}}
ENDS = [
    [
        "send",
        {"method": "turn/completed", "params": {"threadId": "t", "turn": {"id": "u", "status": "completed"}}},
    ]
]
OTHER_PERMISSIONS: dict[str, dict[str, Any]] = {
    "another policy": {"approvalPolicy": "never"},
    "another reviewer": {"approvalsReviewer": "auto_review"},
    "another sandbox": {"sandbox": {"type": "dangerFullAccess"}},
    "no sandbox": {"sandbox": None},
}


@pytest.mark.parametrize("reported", OTHER_PERMISSIONS.values(), ids=OTHER_PERMISSIONS)
async def test_codex_gets_no_prompt_where_it_reports_other_permissions(
    programs: Programs, reported: Any
) -> None:
    programs.play("codex", "gpt-5")
    turn = ["then", {"turn": {"id": "u"}}, ENDS]
    result = await programs.played(replies={"thread/start": THREAD | reported, "turn/start": turn})
    assert result.exit_code == 5
    assert "Codex did not confirm its permissions" in programs.agent()["status_reason"]
    assert programs.prompts() == []


async def test_codex_that_changes_its_permissions_is_stopped(programs: Programs) -> None:
    programs.play("codex", "gpt-5")
    changed = {
        "approvalPolicy": "never",
        "approvalsReviewer": "user",
        "sandboxPolicy": {"type": "workspaceWrite"},
    }
    said = {"method": "thread/settings/updated", "params": {"threadId": "t", "threadSettings": changed}}
    turn = ["then", {"turn": {"id": "u"}}, [["send", said], ["file", "never"]]]
    result = await programs.played(replies={"thread/start": THREAD, "turn/start": turn})
    assert result.exit_code == 5
    assert (
        "Codex was stopped because its permissions changed: approvalPolicy is never"
        in programs.agent()["status_reason"]
    )


async def test_codex_loads_nothing_of_the_project_also_where_it_is_a_worktree(programs: Programs) -> None:
    programs.play("codex", "gpt-5")
    main = programs.path.parent / "main"
    (main / ".git" / "worktrees" / "w").mkdir(parents=True)
    (programs.workspace / ".git").write_text(f"gitdir: {main}/.git/worktrees/w\n")
    turn = ["then", {"turn": {"id": "u"}}, ENDS]
    await programs.played(replies={"thread/start": THREAD, "turn/start": turn})
    ((_, started),) = programs.received("thread/start")
    projects = started["params"]["config"]["projects"]
    for place in (programs.workspace, programs.workspace.parent, main):
        assert projects[str(place)] == {"trust_level": "untrusted"}


@pytest.mark.parametrize(
    ("role", "denied", "sandbox", "shell"),
    [
        ("coder", (), "workspace-write", True), ("coder", ("bash",), "workspace-write", False),
        ("coder", ("bash", "write"), "read-only", False), ("explorer", (), "read-only", True),
        ("reviewer", (), "workspace-write", True),
    ],
)  # fmt: skip
async def test_codex_gets_the_sandbox_and_the_tools_that_the_agent_may_have(
    programs, role, denied, sandbox, shell
):
    programs.play("codex", "gpt-5")
    programs.role_of_task = role
    turn = ["then", {"turn": {"id": "u"}}, ENDS]
    await programs.played(replies={"thread/start": THREAD, "turn/start": turn}, deny=denied, allow=())
    ((_, started),) = programs.received("thread/start")
    params = started["params"]
    assert (params["sandbox"], params["approvalPolicy"], params["approvalsReviewer"]) == (
        sandbox,
        "untrusted",
        "user",
    )
    assert params["config"].get("features.shell_tool", True) is shell
