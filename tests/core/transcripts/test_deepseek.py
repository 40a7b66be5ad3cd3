"""Logs of DeepSeek Harness: numbered events, compactions that name numbers, agents with logs of their own, packed frames."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.conftest import Store

from watchkeeper.models.registry import logged_price
from watchkeeper.store.imports import UNLOGGED
from watchkeeper.transcripts.deepseek import PROGRAM, HarnessReader
from watchkeeper.transcripts.pi import PROGRAM as PI
from watchkeeper.transcripts.reading import program_of
from watchkeeper.transcripts.records import Source

zstd = pytest.importorskip(
    "compression.zstd" if __import__("sys").version_info >= (3, 14) else "backports.zstd"
)
TOKENS = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
START = 1_785_004_180_000


class HarnessLog:
    """Events of one session, each a second after the one before."""

    def __init__(self, session: str = "s1", **header: Any) -> None:
        head = {
            "type": "session",
            "version": 0,
            "id": session,
            "createdAt": START,
            "cwd": "/srv/work",
            "delegationDepth": 0,
        }
        self.session, self.lines = session, [head | header]
        self.seq = 0

    def add(self, type: str, /, *, surface: Any = None, **data: Any) -> int:
        seq, self.seq = self.seq, self.seq + 1
        event = {"type": type, "seq": seq, "time": START + seq * 1_000, "data": data}
        self.lines.append(event | ({"surfaceOp": surface} if surface else {}))
        return seq

    def say(self, text: str, *, surface: Any = "append", **source: Any) -> int:
        content = [{"type": "text", "text": text}]
        return self.add("user/message", surface=surface, content=content, source=source or {"kind": "user"}, role="user", id=f"{self.session}-m{self.seq}")  # fmt: skip

    def reply(
        self, *content: dict[str, Any], usage: tuple[int, ...] | None = (10, 5, 0, 0), **about: Any
    ) -> int:
        route = {"kind": "model", "provider": "deepseek-official", "model": "deepseek-v4-flash"}
        said = {
            "role": "assistant",
            "content": list(content),
            "source": route,
            "id": f"{self.session}-m{self.seq}",
        }
        used = (
            {} if usage is None else {"usage": dict(zip(TOKENS, usage, strict=True)) | {"reasoningTokens": 2}}
        )
        return self.add("assistant/message", surface="append", turn=1, step=1, message=said, **used | about)

    def run(self, id: str, name: str, output: str, code: str = "", **about: Any) -> int:
        self.add("tool/call", turn=1, step=1, callId=id, name=name, arguments="{}")
        return self.result(id, output, code, **about)

    def result(self, id: str, output: str, code: str = "", *, surface: Any = "append") -> int:
        block = {"type": "tool-result", "toolCallId": id, "content": [text(output)], "isError": bool(code)}
        message = {
            "source": {"kind": "tool", "callId": id},
            "content": [block],
            "role": "user",
            "id": f"{self.session}-m{self.seq}",
        }
        failed = {"error": {"name": "Error", "code": code}} if code else {}
        return self.add("tool/result", surface=surface, turn=1, step=1, message=message, **failed)

    @property
    def data(self) -> bytes:
        return b"".join(json.dumps(line).encode() + b"\n" for line in self.lines)

    def write(self, folder: Path) -> Path:
        path = folder / "--srv-work--" / self.session / "session.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def call(id: str, name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool-call", "id": id, "name": name, "arguments": json.dumps(given)}


def imported(store: Store, *paths: Path) -> Any:
    return store.run(*paths, pricing=logged_price)


def totals(store: Store, where: str = "1") -> Any:
    return store.one(
        "SELECT count(*), sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens),"
        f" sum(cost_usd IS NULL), sum(usage_exact) FROM model_calls WHERE {where}"
    )


def worked(session: str = "s1", **header: Any) -> HarnessLog:
    log = HarnessLog(session, **header)
    log.add("turn/start", turn=1)
    log.add("step/start", turn=1, step=1)
    log.say("Mend the gate")
    log.add("session/title", title="The gate", messageSeqs=[2], source={"kind": "fallback"})
    log.add("request/header", header={"config": {}}, reason="initial")
    log.add("request/context", provider="deepseek-official", model="deepseek-v4-flash", contextWindow=128_000)
    log.add("assistant/chunk", turn=1, step=1, chunk={"type": "usage", "usage": {"inputTokens": 999}})
    log.reply(
        {"type": "reasoning", "text": "Look first."},
        text("I look."),
        call("c1", "bash", command="ls"),
        usage=(151, 115, 7_680, 30),
    )
    log.run("c1", "bash", "gate.py")
    log.reply(call("c2", "read", path="x"), usage=(50, 10, 7_800, 0))
    log.run("c2", "read", "no such file", "FS_NOT_FOUND")
    log.reply(text("Done."), usage=(20, 4, 7_900, 0))
    log.add("step/end", turn=1, step=1)
    log.add("turn/end", turn=1, reason={"kind": "completed"})
    return log


def test_a_small_log_has_the_totals_that_were_counted_by_hand(store: Store, tmp_path: Path) -> None:
    report = imported(store, worked().write(tmp_path))
    assert totals(store) == (3, 221, 129, 23_380, 30, 0, 3)
    assert store.all("SELECT name, status FROM tool_calls ORDER BY id") == [
        ("bash", "done"),
        ("read", "error"),
    ]
    assert store.one("SELECT origin, goal, title, workspace, model, status, errors FROM sessions") == (
        "deepseek-harness", "Mend the gate", "The gate", "/srv/work", "deepseek/deepseek-v4-flash", "done", 0,
    )  # fmt: skip
    assert store.one("SELECT context_limit, context_tokens FROM agents") == (128_000, 7_924)
    assert [each[0]["type"] for each in store.said()] == [
        "text",
        "thinking",
        "tool_result",
        "tool_use",
        "tool_result",
        "text",
    ]
    assert report.raw.total() == 5
    assert report.skipped.total() == 3


def test_a_call_without_usage_is_unpriced(store: Store, tmp_path: Path) -> None:
    log = HarnessLog()
    log.say("go")
    log.reply(text("partial"), usage=None, interrupted=True)
    log.add("turn/end", turn=1, reason={"kind": "aborted", "reason": {"kind": "user"}})
    imported(store, log.write(tmp_path))
    assert totals(store) == (1, 0, 0, 0, 0, 1, 0)
    assert ("agent.interrupted", "aborted by user") in store.errors()


def test_earlier_logs_have_their_content_beside_the_message(store: Store, tmp_path: Path) -> None:
    log = HarnessLog()
    log.say("go")
    route = {"provider": "deepseek-official", "model": "deepseek-v4-flash"}
    used = {"inputTokens": 151, "outputTokens": 115, "cacheReadTokens": 7_680}
    log.add("assistant/message", turn=1, step=1, content=[call("c1", "bash")], provenance=route, usage=used)
    log.add("tool/result", turn=1, step=1, callId="c1", content=[text("ok")], isError=False)
    imported(store, log.write(tmp_path))
    assert totals(store)[:4] == (1, 151, 115, 7_680)
    assert store.all("SELECT name, status FROM tool_calls") == [("bash", "done")]


def compacted(log: HarnessLog, first: int, last: int, *, manual: bool = False, **about: Any) -> None:
    by = {"sourceCommandId": "cmd-1"} if manual else {}
    log.add("compaction/start", compactionId="k1", turn=None if manual else 1, **by)
    gone = {
        "shadowedRange": {"start": first, "end": last},
        "shadowedSeqs": list(range(first, last + 1)),
        "shadowedTokenCount": 266,
    }
    used = {"inputTokens": 20, "outputTokens": 4}
    log.add(
        "compaction/summary",
        **{"compactionId": "k1", "summary": [text("The gate was mended.")], "llmStreamCall": True, "provider": "deepseek-official",
           "model": "deepseek-v4-flash", "usage": used} | gone | by | about,
    )  # fmt: skip
    replaced = {"op": "replace", "start": first, "end": last}
    log.say(
        "This is a checkpoint. The gate was mended.",
        surface=replaced,
        kind="plugin",
        plugin="compact",
        compactionId="k1",
    )
    log.add("compaction/end", compactionId="k1", turn=1)


def shown(store: Store) -> list[Any]:
    elided, first = store.one("SELECT elided, verbatim_from FROM views ORDER BY version DESC LIMIT 1")
    gone = {each[0] for each in json.loads(elided) if not each[4]}
    rows = store.all("SELECT seq, content FROM messages WHERE seq >= ? ORDER BY seq", first)
    return [json.loads(content)[0].get("text") for seq, content in rows if seq not in gone]


def test_a_compaction_drops_the_numbers_that_it_names(store: Store, tmp_path: Path) -> None:
    log = HarnessLog()
    first = log.say("one")
    log.reply(text("two"))
    last = log.say("three")
    log.reply(text("four"))
    compacted(log, first, last)
    log.reply(text("five"), usage=(300, 6, 40, 0))
    imported(store, log.write(tmp_path))
    assert store.all("SELECT trigger, tokens_after, messages_removed, reason FROM compactions") == [
        ("auto", 340, 3, "the size before compaction is an estimate")
    ]
    assert store.all("SELECT text FROM observations") == [("The gate was mended.",)]
    assert shown(store) == ["four", "five"]
    assert totals(store, "purpose = 'compaction'")[:3] == (1, 20, 4)
    assert totals(store)[:3] == (4, 340, 20)


def test_a_compaction_of_a_log_without_times_keeps_what_it_does_not_name(
    store: Store, tmp_path: Path
) -> None:
    log = HarnessLog()
    first = log.say("one")
    log.reply(text("two"))
    compacted(log, first, first)
    log.lines = [
        {name: value for name, value in line.items() if name not in ("time", "seq")} for line in log.lines
    ]
    imported(store, log.write(tmp_path))
    assert store.all("SELECT messages_removed FROM compactions") == [(1,)]
    assert shown(store) == ["two"]


def test_a_second_compaction_drops_the_summary_of_the_first(store: Store, tmp_path: Path) -> None:
    log = HarnessLog()
    first = log.say("one")
    log.reply(text("two"))
    compacted(log, first, first + 1)
    summary = log.seq - 2
    log.say("three")
    log.reply(text("four"))
    compacted(log, summary, summary, manual=True, compactionId="k2", usage=None)
    imported(store, log.write(tmp_path))
    assert store.all("SELECT trigger, messages_removed, reason FROM compactions ORDER BY id") == [
        ("auto", 2, "the size before compaction is an estimate"), ("manual", 0, UNLOGGED),
    ]  # fmt: skip
    assert shown(store) == ["three", "four"]


def test_a_prune_empties_a_result(store: Store, tmp_path: Path) -> None:
    log = HarnessLog()
    log.say("go")
    log.reply(call("c1", "bash"))
    seq = log.run("c1", "bash", "a long output")
    log.add(
        "compaction/prune",
        shadowedRange={"start": seq, "end": seq},
        shadowedSeqs=[seq],
        shadowedTokenCount=90,
    )
    log.result("c1", "[pruned]", surface={"op": "replace", "start": seq, "end": seq})
    log.reply(text("on"))
    imported(store, log.write(tmp_path))
    assert store.all("SELECT trigger, messages_removed FROM compactions") == [("micro", 0)]
    assert store.one("SELECT count(*) FROM messages") == 4
    assert store.all("SELECT name, status FROM tool_calls") == [("bash", "done")]


def test_a_failed_compaction_is_an_error(store: Store, tmp_path: Path) -> None:
    log = worked()
    log.add("compaction/start", compactionId="k1", turn=1)
    log.add("compaction/end", compactionId="k1", turn=1, error="the model refused")
    imported(store, log.write(tmp_path))
    assert store.all("SELECT * FROM compactions") == []
    assert "the model refused" in [error for _, error in store.errors()]


def family(folder: Path) -> list[Path]:
    """A session, an agent below it, one below that, one of a workflow, and a fork as an agent."""
    top = HarnessLog("top")
    top.say("go")
    top.reply(call("c1", "subagent", description="Check it"), call("w1", "workflow"), usage=(100, 10, 0, 0))
    top.add("tool/call", turn=1, step=1, callId="c1", name="subagent", arguments="{}")
    top.result("c1", "started")
    top.add("tool/call", turn=1, step=1, callId="w1", name="workflow", arguments="{}")
    top.add("tool-workflow/run-start", runId="r", name="flow")
    top.add(
        "tool-workflow/agent-start", runId="r", seq=1, label="member", phase="Delegate", childId="of-flow"
    )
    top.add("tool-workflow/agent-end", runId="r", seq=1, outcome="failed")
    top.result("w1", "done")
    top.say(
        "It failed.",
        kind="subagent-settled",
        summary="Background subagent below failed before it finished.",
        senderSessionId="below",
    )
    below = HarnessLog("below", parentSession="top", origin="subagent", delegationDepth=1)
    below.add("subagent/descriptor", version=2, mode="continuable", provider="spawn", label="Check it")
    below.say("Check the gate.")
    below.reply(text("Checking."), usage=(200, 20, 0, 0))
    deeper = HarnessLog("deeper", parentSession="below", origin="subagent", delegationDepth=2)
    deeper.say("Deeper.")
    deeper.reply(text("Here."), usage=(300, 30, 0, 0))
    deeper.add("turn/end", turn=1, reason={"kind": "completed"})
    member = HarnessLog("of-flow", parentSession="top", origin="subagent", delegationDepth=1)
    member.say("Member.")
    member.reply(text("Failing."), usage=(400, 40, 0, 0))
    forked = HarnessLog("forked", parentSession="top", origin="subagent", seedLength=2, delegationDepth=1)
    for line in top.lines[1:3]:
        forked.lines.append(line)
        forked.seq += 1
    forked.add("session/end-seed")
    forked.add("subagent/descriptor", version=2, mode="one-shot", provider="fork", label="Recall")
    forked.say("Recall the word.")
    forked.reply(text("Gate."), usage=(500, 50, 0, 0))
    forked.add(
        "turn/end", turn=1, reason={"kind": "error", "error": {"message": "disk full", "code": "UNKNOWN"}}
    )
    return [each.write(folder) for each in (top, below, deeper, member, forked)]


@pytest.mark.parametrize("backwards", [False, True])
def test_agents_are_below_the_session_that_their_logs_name(
    backwards: bool, store: Store, tmp_path: Path
) -> None:
    paths = family(tmp_path)
    for path in reversed(paths) if backwards else paths:
        imported(store, path)
    agents = store.all(
        "SELECT a.name, a.role, a.current_goal, a.status, a.model_calls, p.name FROM agents a"
        " JOIN agents p ON p.id = a.parent_agent_id ORDER BY a.name"
    )
    found = {name: rest for name, *rest in agents}

    assert found["Recall"] == ["fork", "Recall the word.", "failed", 1, "main"]
    assert found["member"] == ["workflow", "Member.", "failed", 1, "main"]
    assert found["Check it"][:2] == ["spawn", "Check the gate."]
    assert found["Deeper."][1:] == ["Deeper.", "done", 1, "Check it"]
    assert store.one("SELECT count(*) FROM sessions") == 1
    assert totals(store)[:3] == (5, 1_500, 150)
    store.assert_a_tree()
    assert PROGRAM.logs_of_agents(paths[0], "top", set()) == sorted(paths[1:])
    assert PROGRAM.logs_of_agents(paths[0], "other", set()) == []


def test_a_fork_repeats_its_parents_messages_and_none_of_their_usage(store: Store, tmp_path: Path) -> None:
    parent = worked()
    imported(store, parent.write(tmp_path))
    fork = HarnessLog("s2", parentSession="s1", seedLength=parent.seq)
    fork.lines += parent.lines[1:]
    fork.seq = parent.seq
    fork.add("session/end-seed")
    fork.say("other")
    fork.reply(text("way"), usage=(60, 6, 0, 0))
    imported(store, fork.write(tmp_path))
    assert totals(store)[:3] == (4, 281, 135)
    assert store.one("SELECT count(*) FROM messages") == 14
    assert store.one("SELECT count(*) FROM sessions WHERE forked_from IS NOT NULL") == 1


def test_to_dos_and_tasks_of_a_team_are_plans(store: Store, tmp_path: Path) -> None:
    log = HarnessLog()
    log.say("go")
    log.add(
        "todo/write",
        todos=[{"content": "dig", "status": "in_progress"}, {"content": "fill", "status": "pending"}],
    )
    log.add("todo/write", todos=[{"content": "dig", "status": "completed"}])
    imported(store, log.write(tmp_path))
    assert store.plan_versions()[-1] == [("dig", "done"), ("fill", "dropped")]
    team = HarnessLog("s2")
    team.say("go")
    task = {
        "id": "t1",
        "revision": 1,
        "subject": "Paint",
        "description": "Red.",
        "status": "pending",
        "blockedBy": [],
    }
    team.add("team/task", version=1, teamId="x", task=task)
    team.add("team/task", version=1, teamId="x", task=task | {"status": "completed", "revision": 2})
    imported(store, team.write(tmp_path))
    assert ("Paint", "done", "Red.") in store.all("SELECT title, status, instructions FROM tasks")


def test_calls_of_a_script_are_calls(store: Store, tmp_path: Path) -> None:
    log = HarnessLog()
    log.say("go")
    log.reply(call("c1", "run_code"))
    log.add("tool/call", turn=1, step=1, callId="c1", name="run_code", arguments="{}")
    about = {
        "rootCallId": "c1",
        "parentCallId": "c1",
        "subCallId": "c1:code:1",
        "name": "bash",
        "arguments": {},
    }
    log.add("tool/code-dispatch-start", **about)
    log.add("tool/code-dispatch", **about, isError=True, content=[text("no")])
    log.result("c1", "ok")
    imported(store, log.write(tmp_path))
    assert store.all("SELECT name, status FROM tool_calls ORDER BY id") == [
        ("run_code", "done"),
        ("bash", "error"),
    ]


@pytest.mark.parametrize(("code", "status"), [
    ("TOOL_OUTCOME_UNKNOWN", "unknown"), ("TOOL_NOT_STARTED", "cancelled"), ("ABORTED_BEFORE_DISPATCH", "cancelled"),
    ("FS_SANDBOX_DENIED", "denied"), ("FS_NOT_FOUND", "error"),
])  # fmt: skip
def test_how_a_call_ended(code: str, status: str, store: Store, tmp_path: Path) -> None:
    log = HarnessLog()
    log.say("go")
    log.reply(call("c1", "bash"))
    log.run("c1", "bash", "no", code)
    imported(store, log.write(tmp_path))
    assert store.all("SELECT status FROM tool_calls") == [(status,)]


def test_errors_and_retries_are_told(store: Store, tmp_path: Path) -> None:
    log = worked()
    log.add(
        "llm/retry",
        retryId="r",
        provider="deepseek-official",
        retry=1,
        failure={"message": "empty", "code": "EMPTY_RESPONSE"},
    )
    log.add("turn/end", turn=2, reason={"kind": "error", "error": {"message": "no key", "code": "AUTH"}})
    log.add("turn/end", turn=3, reason={"kind": "interrupted"})
    imported(store, log.write(tmp_path))
    told = [error for _, error in store.errors()]
    assert {"empty", "no key", "interrupted"} <= set(told)
    assert store.one("SELECT errors FROM sessions") == 1


def test_packed_parts_count_as_the_events_that_they_hold() -> None:
    reader = HarnessReader("x")
    lines = [
        {"type": "session", "id": "s1", "version": 0, "createdAt": START}, {"type": "turn/start", "data": {"turn": 1}},
        {"type": "text-chunks", "data": {"texts": ["a", "b", "c"], "dt": [1, 1]}}, {"type": "tool-call-chunks", "args": ["{", "}", ""]},
        {"type": "user/message", "data": {"content": [text("hi")], "source": {"kind": "user"}}},
    ]  # fmt: skip
    for number, line in enumerate(lines, 1):
        reader.feed(number, json.dumps(line).encode())
    assert reader.nodes == [(7, "s1::7")]


def everything(folder: Path) -> HarnessLog:
    log = worked()
    compacted(log, 2, 8)
    log.add("todo/write", todos=[{"content": "dig", "status": "pending"}])
    log.add("tool/code-dispatch-start", subCallId="c9", name="bash", arguments={})
    log.add("tool-workflow/agent-start", runId="r", seq=1, label="m", childId="k")
    log.add("tool-workflow/agent-end", runId="r", seq=1, outcome="completed")
    log.say("again")
    log.reply(text("yes"))
    return log


def test_a_reader_carries_on_from_its_state_after_every_line(tmp_path: Path) -> None:
    whole, parts = HarnessReader("x"), HarnessReader("x")
    for number, line in enumerate(everything(tmp_path).lines, 1):
        data = json.dumps(line).encode()
        parts = HarnessReader.restore(json.loads(json.dumps(parts.save())))
        assert parts.feed(number, data) == whole.feed(number, data)


def state_of(store: Store) -> list[Any]:
    tables = (
        "SELECT purpose, model, input_tokens, output_tokens, cost_usd FROM model_calls ORDER BY id",
        "SELECT seq, role, content FROM messages ORDER BY agent_id, seq", "SELECT name, status, model_calls FROM agents ORDER BY name",
        "SELECT name, status FROM tool_calls ORDER BY id", "SELECT title, status FROM tasks", "SELECT trigger, messages_removed FROM compactions",
    )  # fmt: skip
    return [store.all(table) for table in tables]


def test_a_log_that_grows_is_as_one_that_is_read_at_once(open_store: Any, tmp_path: Path) -> None:
    log = everything(tmp_path)
    found = []
    for name, step in (("whole", len(log.data)), ("steps", 409)):
        store, path = open_store(name), log.write(tmp_path / name)
        for end in [*range(step, len(log.data), step), len(log.data)]:
            path.write_bytes(log.data[:end])
            imported(store, path)
        found.append(state_of(store))
    assert found[0] == found[1]
    assert len(found[0][0]) == 5


def test_a_log_of_packed_frames_is_followed(open_store: Any, tmp_path: Path) -> None:
    log = everything(tmp_path)
    plain, packed = open_store("plain"), open_store("packed")
    imported(plain, log.write(tmp_path / "plain"))
    path = log.write(tmp_path / "packed")
    path.unlink()
    path = path.with_name("session.jsonl.zstd")
    frames = [json.dumps(line).encode() + b"\n" for line in log.lines]
    with path.open("ab") as file:
        for frame in (*frames[:1], b"".join(frames[1:9]), b"".join(frames[9:-1]), frames[-1]):
            file.write(zstd.compress(frame))
            file.flush()
            imported(packed, tmp_path / "packed")
    assert state_of(packed) == state_of(plain)
    # A frame that is being written is not read yet, and stops nothing.
    log.say("half")
    with path.open("ab") as file:
        file.write(zstd.compress(log.data.splitlines()[-1] + b"\n")[:-7])
    imported(packed, tmp_path / "packed")
    assert state_of(packed) == state_of(plain)


HOSTILE = [
    {}, {"type": 5}, {"type": "session", "id": [], "version": "x"}, {"type": "user/message", "data": {"content": "x", "source": 4}},
    {"type": "assistant/message", "data": {"message": {"content": [1, {"type": "tool-call", "arguments": "[1"}], "source": 4}, "usage": []}},
    {"type": "assistant/message", "seq": -5, "data": {"content": [{"type": "reasoning", "text": 5}], "usage": {"inputTokens": 10**30}}},
    {"type": "assistant/message", "seq": 10**30, "time": "x", "data": {"usage": {"outputTokens": -1}}},
    {"type": "tool/result", "data": {"message": {"content": [{"type": "tool-result", "content": 7}]}, "error": []}},
    {"type": "tool/result", "surfaceOp": {"op": "replace", "start": "x", "end": 10**30}, "data": {}},
    {"type": "user/message", "surfaceOp": {"op": "replace", "start": 3, "end": 1}, "data": {"content": [{"type": "text", "text": "x"}]}},
    {"type": "compaction/summary", "data": {"shadowedSeqs": ["a", 1.5], "summary": 4}}, {"type": "compaction/summary"},
    {"type": "text-chunks", "data": {"texts": 4}}, {"type": "tool/call", "data": {"callId": None}}, {"type": "tool/code-dispatch", "data": {}},
    {"type": "todo/write", "data": {"todos": [1, {"content": []}]}}, {"type": "team/task", "data": {"task": {"id": 4}}},
    {"type": "tool-workflow/agent-start", "data": {"childId": []}}, {"type": "turn/end", "data": {"reason": {"kind": "error", "error": 4}}},
    {"type": "turn/end", "data": {"reason": "x"}}, {"type": "request/context", "data": {"contextWindow": "big"}},
    {"type": "subagent/descriptor", "data": []}, {"type": "no/such-thing", "ignorable": True, "data": None}, {"type": "llm/retry"},
]  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE)
def test_no_line_stops_the_reader(line: dict[str, Any], store: Store, tmp_path: Path) -> None:
    log = worked()
    log.lines += [line, line]
    log.reply(text("still here"))
    path = log.write(tmp_path)
    path.write_bytes(path.read_bytes() + b'{"broken": \n\n[1]\n\xff\xfe\n{"type": "user/mess')
    report = imported(store, path)
    assert not any("reader error" in each.reason for each in report.raw)
    assert "still here" in json.dumps(store.said())


def test_a_log_is_recognised_by_its_header(tmp_path: Path) -> None:
    path = worked().write(tmp_path)
    assert program_of(Source(path, path.read_bytes())) is PROGRAM
    pi = b'{"type":"session","version":3,"id":"a","timestamp":"2026-02-03T04:00:00.000Z","cwd":"/srv"}\n'
    assert program_of(Source(path, pi)) is PI
    assert PROGRAM.places({"DSH_HOME": "/srv/d"}, tmp_path) == [Path("/srv/d/sessions")]
    assert PROGRAM.places({}, tmp_path) == [tmp_path / ".dsh/sessions"]


def test_names_of_sessions_lead_to_no_other_folder(store: Store, tmp_path: Path) -> None:
    log = worked("s9", parentSession="../../etc", origin="subagent")
    imported(store, log.write(tmp_path))
    assert store.one("SELECT count(*) FROM sessions") == 1
    assert store.one("SELECT count(*) FROM agents WHERE parent_agent_id IS NOT NULL") == 1
    loop = [
        worked(name, parentSession=above, origin="subagent").write(tmp_path)
        for name, above in (("a", "b"), ("b", "a"))
    ]
    imported(store, *loop)
    store.assert_a_tree()
    packed = tmp_path / "x.jsonl.gz"
    packed.write_bytes(gzip.compress(log.data))
    assert PROGRAM.logs_of_agents(loop[0], "b", set()) is not None
