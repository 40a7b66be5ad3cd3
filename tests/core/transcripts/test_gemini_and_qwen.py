"""Logs of Gemini CLI, which repeat a message as it grows, and of Qwen Code: prompts that include the cache, in trees."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.conftest import Store

from watchkeeper.models.registry import logged_price
from watchkeeper.transcripts.gemini import GeminiReader
from watchkeeper.transcripts.google_parts import Tokens
from watchkeeper.transcripts.qwen import QwenReader
from watchkeeper.transcripts.reading import program_of
from watchkeeper.transcripts.records import Source

FOLDER = Path(
    os.environ.get("WATCHKEEPER_TRANSCRIPTS") or Path(__file__).parents[4] / "shared" / "transcripts"
)
SESSION = "9534b902-4b8a-437e-ba2e-2e4db4b82fec"
Lines = list[dict[str, Any]]


def write(path: Path, lines: Iterable[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def totals(store: Store) -> Any:
    return store.one(
        "SELECT count(*), sum(input_tokens), sum(cache_read_tokens), sum(output_tokens), sum(cost_usd IS NULL) FROM model_calls"
    )


def shown(store: Store) -> list[str]:
    """The first texts of the messages in the newest context of the main agent."""
    elided, first, agent = store.one(
        "SELECT v.elided, v.verbatim_from, v.agent_id FROM views v JOIN agents a ON a.id = v.agent_id"
        " WHERE a.parent_agent_id IS NULL ORDER BY version DESC LIMIT 1"
    )
    gone = {each[0] for each in json.loads(elided) if not each[4]}
    rows = store.all(
        "SELECT seq, content FROM messages WHERE agent_id = ? AND seq >= ? ORDER BY seq", agent, first
    )
    return [json.loads(content)[0].get("text", "") for seq, content in rows if seq not in gone]


# --- Gemini CLI ---


def at(second: int) -> str:
    return f"2026-05-07T18:28:{second:02d}.000Z"


def header(**about: Any) -> dict[str, Any]:
    return {
        "sessionId": SESSION,
        "projectHash": "743e",
        "startTime": at(0),
        "lastUpdated": at(0),
        "kind": "main",
    } | about


def user(id: str, text: str, second: int = 1) -> dict[str, Any]:
    return {"id": id, "timestamp": at(second), "type": "user", "content": [{"text": text}]}


def reply(
    id: str, text: str, tokens: tuple[int, int, int, int] | None, second: int = 5, **about: Any
) -> dict[str, Any]:
    said = {
        "id": id,
        "timestamp": at(second),
        "type": "gemini",
        "content": text,
        "thoughts": [],
        "model": "gemini-3-flash-preview",
    }
    if tokens is not None:
        prompt, output, cached, thoughts = tokens
        counts = {"input": prompt, "output": output, "cached": cached, "thoughts": thoughts, "tool": 0}
        said["tokens"] = counts | {"total": prompt + output + thoughts}
    return said | about


def tool(id: str, name: str, status: str = "success", **about: Any) -> dict[str, Any]:
    answer = {"error": "File not found"} if status == "error" else {"output": "fine"}
    result = [{"functionResponse": {"id": id, "name": name, "response": answer}}]
    return {
        "id": id,
        "name": name,
        "args": {},
        "status": status,
        "timestamp": at(6),
        "result": result,
    } | about


def small() -> Lines:
    thought = [{"subject": "Plan", "description": "Look first.", "timestamp": at(4)}]
    first = reply("g1", "I list the files.", (8702, 36, 0, 329), thoughts=thought)
    again = first | {"toolCalls": [tool("c1", "list_directory")]}
    failed = reply("g2", "I read it.", (9777, 44, 7450, 11), 7, toolCalls=[tool("c2", "read_file", "error")])
    return [
        header(), user("u1", "Mend the gate"), {"$set": {"lastUpdated": at(2)}}, first, again, again, failed,
        reply("g3", "Done.", (10289, 77, 0, 33), 9), {"$set": {"summary": "The gate"}}, {"$set": {"directories": []}},
    ]  # fmt: skip


def test_a_message_of_gemini_that_is_logged_again_counts_once_with_its_last_copy(
    store: Store, tmp_path: Path
) -> None:
    path = write(tmp_path / "chats" / "session-2026-05-07T18-28-9534b902.jsonl", small())
    report = store.run(path, pricing=logged_price)
    # 8702 + (9777 - 7450) + 10289 of fresh input; thoughts are output.
    assert totals(store) == (3, 21_318, 7_450, 36 + 329 + 44 + 11 + 77 + 33, 0)
    assert store.all("SELECT name, status FROM tool_calls ORDER BY id") == [
        ("list_directory", "done"),
        ("read_file", "error"),
    ]
    assert store.one("SELECT origin, goal, title, model FROM sessions") == (
        "gemini-cli", "Mend the gate", "The gate", "google/gemini-3-flash-preview",
    )  # fmt: skip
    assert store.one("SELECT count(*) FROM messages") == 7
    assert sum(report.raw.values()) == 1
    # Counts that come with a later copy replace the earlier ones.
    write(path, [*small(), reply("g3", "Done.", (10300, 80, 100, 0), 9)])
    store.run(path, pricing=logged_price)
    assert totals(store)[:4] == (3, 21_318 - 10_289 + 10_200, 7_550, 36 + 329 + 44 + 11 + 80)


def test_a_sub_agent_of_gemini_is_below_the_call_that_names_it(store: Store, tmp_path: Path) -> None:
    asked = tool(
        "c1", "invoke_agent", agentId="y3w0o9", args={"prompt": "Count the words", "agent_name": "generalist"}
    )
    chats = tmp_path / "chats"
    main = write(
        chats / "session-1.jsonl",
        [header(), user("u1", "go"), reply("g1", "", (10, 1, 0, 0), toolCalls=[asked])],
    )
    below = [
        header(sessionId="y3w0o9", kind="subagent"),
        user("u2", "Count the words"),
        reply("g2", "11", (20, 2, 5, 0)),
    ]
    child = write(chats / SESSION / "y3w0o9.jsonl", below)
    store.run(child, pricing=logged_price)
    store.run(main, pricing=logged_price)
    assert store.one("SELECT count(*) FROM sessions") == 1
    agents = "SELECT name, current_goal, status, model_calls, last_seq FROM agents WHERE parent_agent_id IS NOT NULL"
    assert store.all(agents) == [("generalist", "Count the words", "done", 1, 2)]
    assert totals(store)[:4] == (2, 25, 5, 3)


def test_gemini_rewinds_and_compressions_change_the_context_and_not_the_history(
    store: Store, tmp_path: Path
) -> None:
    lines = [
        header(),
        user("u1", "one"),
        reply("g1", "two", (10, 1, 0, 0)),
        user("u2", "three", 6),
        reply("g2", "four", (20, 1, 0, 0), 7),
    ]
    rewound = [*lines, {"$rewindTo": "u2"}, user("u3", "other", 8)]
    path = write(tmp_path / "chats" / "session-1.jsonl", rewound)
    store.run(path)
    assert shown(store) == ["one", "two", "other"]
    snapshot = user("s1", "<state_snapshot>They spoke.</state_snapshot>", 9)
    history = {"$set": {"messages": [snapshot, user("u3", "other", 8)], "lastUpdated": at(10)}}
    write(path, [*rewound, history, history, reply("g3", "five", (30, 1, 0, 0), 11)])
    store.run(path)
    assert shown(store) == ["other", "five"]
    assert store.all("SELECT trigger, tokens_after, reason FROM compactions") == [
        ("unknown", 30, "the log does not report its usage")
    ]
    assert "They spoke." in store.one("SELECT text FROM observations")
    assert store.one("SELECT count(*) FROM messages") == 6


def test_cancelled_requests_errors_and_to_dos_of_gemini_are_read(store: Store, tmp_path: Path) -> None:
    todos = [{"description": "dig", "status": "completed"}, {"description": "fill", "status": "in_progress"}]
    notes = [{"id": f"i{n}", "timestamp": at(8), "type": kind, "content": said} for n, (kind, said) in enumerate(
        [("info", "Request cancelled."), ("error", "quota"), ("info", "hello"), ("new", "?")])]  # fmt: skip
    lines = [
        header(),
        reply("g1", "", (1, 1, 0, 0), toolCalls=[tool("c1", "write_todos", args={"todos": todos})]),
        *notes,
    ]
    report = store.run(write(tmp_path / "chats" / "session-1.jsonl", lines))
    assert store.all("SELECT title, status FROM tasks ORDER BY title") == [
        ("dig", "done"),
        ("fill", "paused"),
    ]
    assert [kind for kind, _ in store.errors() if kind.startswith(("model", "agent"))] == [
        "agent.interrupted",
        "model.error",
    ]
    assert sorted(reason for _, reason in report.raw) == ["known, not shown", "unknown record type"]


@pytest.mark.parametrize(("counts", "expected"), [
    ((8702, 0, 36, 329, 0, 9067), (8702, 365, 0)),
    ((18009, 12, 47, 36, 0, 18056), (17997, 47, 12)),  # a server that counts thoughts as output
    ((100, 40, 5, 0, 7, 112), (67, 5, 40)),
    ((100, 400, 5, 2, 0, None), (0, 7, 100)),
    (("x", -1, None, 1.5, True, []), (0, 0, 0)),
])  # fmt: skip
def test_tokens_are_split_into_classes_that_add_up(
    counts: tuple[Any, ...], expected: tuple[int, int, int]
) -> None:
    assert Tokens.of(*counts)[:3] == expected or counts[0] == "x"


# --- Qwen Code ---


def record(uuid: str, parent: str | None, kind: str, parts: Any = None, **about: Any) -> dict[str, Any]:
    line = {"uuid": uuid, "parentUuid": parent, "sessionId": "q1", "timestamp": at(int(uuid[1:])), "type": kind,
            "cwd": "/srv/work", "version": "0.24.7"}  # fmt: skip
    return line | ({"message": {"role": "model", "parts": parts}} if parts is not None else {}) | about


def usage(prompt: int, output: int, cached: int = 0, thoughts: int = 0) -> dict[str, int]:
    return {"promptTokenCount": prompt, "candidatesTokenCount": output, "cachedContentTokenCount": cached,
            "thoughtsTokenCount": thoughts, "totalTokenCount": prompt + output}  # fmt: skip


def called(id: str, name: str) -> dict[str, Any]:
    return {"functionCall": {"id": id, "name": name, "args": {}}}


def answered(id: str, name: str, **response: Any) -> list[dict[str, Any]]:
    return [{"functionResponse": {"id": id, "name": name, "response": response}}]


def qwen() -> Lines:
    return [
        record("u1", None, "user", [{"text": "Find the bug"}]),
        record("u2", "u1", "system", subtype="ui_telemetry", systemPayload={"uiEvent": {}}),
        record("u3", "u2", "assistant", [{"text": "Hm.", "thought": True}, called("c1", "grep")], model="qwen3-coder-plus", usageMetadata=usage(18_009, 47, 12, 36)),
        record("u4", "u3", "tool_result", answered("other", "grep", output="a.go"), toolCallResult={"callId": "c1", "status": "success"}),
        record("u5", "u4", "assistant", [called("c2", "shell")], model="qwen3-coder-plus", usageMetadata=usage(18_100, 10, 18_000)),
        record("u6", "u5", "tool_result", answered("c2", "shell", error="no"), toolCallResult={"callId": "c2", "status": "error"}),
        record("u7", "u6", "assistant", [{"text": "Line 42."}], model="qwen3-coder-plus", usageMetadata=usage(18_200, 5)),
        record("u8", "u7", "system", subtype="custom_title", systemPayload={"customTitle": "The bug"}),
    ]  # fmt: skip


def test_a_small_log_of_qwen_has_the_totals_that_were_counted_by_hand(store: Store, tmp_path: Path) -> None:
    report = store.run(write(tmp_path / "chats" / "q1.jsonl", qwen()), pricing=logged_price)
    assert totals(store)[:4] == (3, 17_997 + 100 + 18_200, 18_012, 62)
    assert store.all("SELECT name, status FROM tool_calls ORDER BY id") == [
        ("grep", "done"),
        ("shell", "error"),
    ]
    assert store.one("SELECT origin, goal, title, workspace FROM sessions") == (
        "qwen-code",
        "Find the bug",
        "The bug",
        "/srv/work",
    )
    assert sum(report.raw.values()) == 1


def test_a_branch_of_qwen_and_its_compression_change_the_context(store: Store, tmp_path: Path) -> None:
    info = {
        "originalTokenCount": 4096,
        "newTokenCount": 1024,
        "compressionStatus": 1,
        "triggerReason": "token_limit",
    }
    summary = [{"role": "user", "parts": [{"text": "<state_snapshot>all</state_snapshot>"}]}]
    lines = [
        record("u1", None, "user", [{"text": "one"}]),
        record("u2", "u1", "assistant", [{"text": "two"}]),
        record("u3", "u2", "user", [{"text": "three"}]),
        record("u4", "u2", "user", [{"text": "other"}]),
        record(
            "u5",
            "u4",
            "system",
            subtype="chat_compression",
            systemPayload={"info": info | {"compressionStatus": 2}},
        ),
    ]
    path = write(tmp_path / "chats" / "q1.jsonl", lines)
    store.run(path)
    assert shown(store) == ["one", "two", "other"]
    assert store.one("SELECT count(*) FROM compactions") == 0
    payload = {"info": info, "compressedHistory": summary}
    write(
        path,
        [
            *lines,
            record("u6", "u5", "system", subtype="chat_compression", systemPayload=payload),
            record("u7", "u6", "user", [{"text": "now"}]),
        ],
    )
    store.run(path)
    assert store.all("SELECT trigger, tokens_before, tokens_after FROM compactions") == [
        ("token_limit", 4096, 1024)
    ]
    assert shown(store) == ["now"]
    assert store.one("SELECT text FROM observations") == "<state_snapshot>all</state_snapshot>"


@pytest.mark.parametrize(
    ("lines", "name"), [(small(), "gemini-cli"), (qwen(), "qwen-code")], ids=["gemini", "qwen"]
)
def test_a_log_is_recognised_by_what_it_says(lines: Lines, name: str) -> None:
    head = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    program = program_of(Source(Path("x.jsonl"), head))
    assert program is not None
    assert program.name == name


@pytest.mark.parametrize(
    ("lines", "kind"), [(small(), GeminiReader), (qwen(), QwenReader)], ids=["gemini", "qwen"]
)
def test_readers_carry_on_from_their_state_after_every_line(lines: Lines, kind: Any) -> None:
    whole, parts = kind("x"), kind("x")
    for number, line in enumerate(lines, 1):
        parts = kind.restore(json.loads(json.dumps(parts.save())))
        assert parts.feed(number, json.dumps(line).encode()) == whole.feed(number, json.dumps(line).encode())


@pytest.mark.parametrize("kind", [GeminiReader, QwenReader])
def test_no_line_stops_a_reader(kind: Any) -> None:
    bad: list[Any] = [
        None,
        0,
        "x",
        [],
        [1],
        {},
        {"id": 3},
        [{"functionCall": 1}],
        [{"text": []}, {"functionResponse": {}}],
    ]
    for name in (
        "content",
        "message",
        "toolCalls",
        "tokens",
        "$set",
        "thoughts",
        "systemPayload",
        "usageMetadata",
        "toolCallResult",
    ):
        for kind_of_line in ("user", "gemini", "assistant", "tool_result", "system", 7):
            for value in bad:
                wrapped = (
                    {"parts": value}
                    if name == "message"
                    else {"messages": value}
                    if name == "$set"
                    else value
                )
                line = {
                    "id": "a",
                    "uuid": "a",
                    "type": kind_of_line,
                    "subtype": "chat_compression",
                    name: wrapped,
                }
                assert kind("x").feed(1, json.dumps(line).encode()), line


def _made(used: dict[str, int]) -> int:
    """Tokens of output, with what was thought."""
    apart = used["promptTokenCount"] + used["candidatesTokenCount"] + used.get("thoughtsTokenCount", 0)
    return used.get("totalTokenCount", apart) - used["promptTokenCount"]


RECORDED = sorted(FOLDER.glob("gemini-cli/*.jsonl")) + sorted(FOLDER.glob("qwen-code/*.jsonl"))


@pytest.mark.parametrize(
    "path",
    RECORDED or [pytest.param(None, marks=pytest.mark.skip(reason=f"no recorded logs in {FOLDER}"))],
    ids=str,
)
def test_recorded_logs_have_the_totals_of_an_independent_count(path: Path, store: Store) -> None:
    last: dict[str, tuple[int, int, int]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        if tokens := line.get("tokens"):
            last[line["id"]] = (
                tokens["input"] - tokens["cached"],
                tokens["cached"],
                tokens["total"] - tokens["input"],
            )
        elif used := line.get("usageMetadata"):
            cached = used.get("cachedContentTokenCount", 0)
            last[line["uuid"]] = (used["promptTokenCount"] - cached, cached, _made(used))
    store.run(path)
    assert totals(store)[:4] == (
        len(last),
        *(sum(each[place] for each in last.values()) for place in range(3)),
    )
