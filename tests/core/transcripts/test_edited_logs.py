"""Logs that were edited since they were imported: redacted, re-serialised, reordered, cut, put somewhere
else.

What counts is what one import of all records counts; what was imported first stays as it was.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from tests.core.transcripts.codex_rollout import Rollout
from tests.core.transcripts.conftest import SESSION, Log, Store, call, text

from watchkeeper.transcripts.records import STORED_KINDS

RECORDED = Path(
    os.environ.get("WATCHKEEPER_TRANSCRIPTS") or Path(__file__).parents[4] / "shared" / "transcripts"
)
WORD = re.compile(r"[a-z]{5,}")
KEPT = {
    "id", "uuid", "parentUuid", "sessionId", "requestId", "tool_use_id", "call_id", "type", "timestamp", "role", "model", "subtype",
    "status", "name", "agentId", "isSidechain", "leafUuid", "parentToolUseID", "toolUseID", "stop_reason", "taskId", "version",
    "thread_id", "turn_id", "originator", "source", "cli_version", "subagent_type", "operation", "trigger", "headUuid",
    "anchorUuid", "tailUuid", "compactedToolIds", "state", "messageID", "sessionID", "callID", "tool", "subject", "step",
}  # fmt: skip
"""What names or joins records, and says what they are; a redaction of secrets leaves it."""

GRAMMAR = {"completed", "pending", "progress", "status", "content", "successfully", "created", "updated"}
"""Words of the programs' own."""

Edit = Callable[[list[dict[str, Any]], random.Random], list[bytes]]


def _written(records: list[dict[str, Any]], **how: Any) -> list[bytes]:
    return [json.dumps(record, **how).encode() for record in records]


def _redacted(value: Any, rng: random.Random, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: each if name in KEPT else _redacted(each, rng, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_redacted(each, rng, key) for each in value]
    if isinstance(value, str) and " " in value and not value.startswith("[trimmed"):
        return WORD.sub(
            lambda match: (
                "REDACTED" if crc32(match[0].encode()) % 3 == 0 and match[0] not in GRAMMAR else match[0]
            ),
            value,
        )
    return value


def _redact(records: list[dict[str, Any]], rng: random.Random) -> list[bytes]:
    return _written([_redacted(record, rng) for record in records])


def _serialise_anew(records: list[dict[str, Any]], rng: random.Random) -> list[bytes]:
    return _written(records, sort_keys=True, ensure_ascii=rng.random() < 0.5, separators=(" , ", " : "))


def _redact_and_serialise(records: list[dict[str, Any]], rng: random.Random) -> list[bytes]:
    return _written([_redacted(record, rng) for record in records], sort_keys=True, ensure_ascii=True)


def _double(records: list[dict[str, Any]], rng: random.Random) -> list[bytes]:
    return [line for line in _written(records) for _ in range(2 if rng.random() < 0.3 else 1)]


def _add_and_drop_fields(records: list[dict[str, Any]], rng: random.Random) -> list[bytes]:
    changed = []
    for record in records:
        kept = {
            name: each
            for name, each in record.items()
            if name not in ("cwd", "version", "gitBranch", "userType", "slug")
        }
        changed.append({"exporter": rng.random(), **kept})
    return _written(changed)


EDITS: dict[str, Edit] = {
    "redacted": _redact,
    "serialised": _serialise_anew,
    "both": _redact_and_serialise,
    "doubled": _double,
    "fields": _add_and_drop_fields,
}


def _claude() -> list[dict[str, Any]]:
    log = Log()
    log.user("Mend the cache that forgets its secret password 'correct horse battery'")
    for turn in range(8):
        log.reply(text(f"Looking at module number {turn} with care."), id=f"msg_{turn}", output=2, stop=None)
        log.reply(
            call("Bash", f"t{turn}", command=f"grep password module{turn}"),
            id=f"msg_{turn}",
            output=20,
            stop="tool_use",
        )
        log.add("queue-operation", operation="enqueue")
        log.result(f"t{turn}", f"password = hunter{turn} in module{turn}")
        if turn % 3 == 0:
            log.reply(
                call("TaskCreate", f"c{turn}", subject=f"Task {turn}"), id=f"msg_c{turn}", stop="tool_use"
            )
            log.result(
                f"c{turn}", f"Task #{turn} created successfully", toolUseResult={"task": {"id": str(turn)}}
            )
            log.reply(
                call("TaskUpdate", f"d{turn}", taskId=str(turn), status="completed"),
                id=f"msg_d{turn}",
                stop="tool_use",
            )
            log.result(f"d{turn}", f"Updated task #{turn} status", toolUseResult={"success": True})
        if turn == 4:
            log.boundary()
            log.summary("The first half of the modules was looked at, and holds secrets.")
    log.reply(
        call("Task", "s1", prompt="Look for the readers", description="Readers"), id="msg_s", stop="tool_use"
    )
    log.result("s1", "There are seven readers.", toolUseResult={"status": "completed", "agentId": "a1"})
    log.reply(text("Everything was mended."), id="msg_end", output=9)
    return log.records


def _codex() -> list[dict[str, Any]]:
    log = Rollout().user("Mend the cache with the secret password")
    for turn in range(6):
        log.says(f"Looking at module number {turn} with care.")
        arguments = json.dumps({"command": ["grep", "password", f"module{turn}"]})
        log.item("function_call", call_id=f"c{turn}", name="shell", arguments=arguments)
        log.item(
            "function_call_output",
            call_id=f"c{turn}",
            output=f"password hunter{turn} was found in module{turn}",
        )
        log.tokens(1_000 + turn, 0, 10 + turn)
    return log.lines


FIGURES = (
    "SELECT count(*), sum(input_tokens), sum(output_tokens), sum(round(cost_usd, 6)) FROM model_calls",
    "SELECT model_calls, input_tokens, output_tokens, round(cost_usd, 6), errors, retries FROM sessions ORDER BY id",
    "SELECT count(*), sum(status = 'done') FROM tool_calls",
    "SELECT count(*) FROM messages",
    "SELECT status, count(*) FROM tasks GROUP BY status ORDER BY status",
    "SELECT status, model_calls, output_tokens, last_seq, compactions FROM agents ORDER BY id",
    "SELECT count(*) FROM compactions",
)


def figures(store: Store) -> list[object]:
    """All that counts."""
    return [store.all(sql) for sql in FIGURES]


MADE = {
    "claude-code": (_claude, f"{SESSION}.jsonl"),
    "codex": (_codex, "rollout-2026-02-03T04-05-06-0199aaaa-1111-7222-8333-444444444444.jsonl"),
}


@pytest.mark.parametrize("place", ["same path", "another path"])
@pytest.mark.parametrize("order", ["original first", "edited first"])
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("program", MADE)
def test_an_edited_log_counts_as_one_import_of_all_records(
    store: Store,
    open_store: Callable[[str], Store],
    logs: Path,
    program: str,
    edit: str,
    order: str,
    place: str,
) -> None:
    make, name = MADE[program]
    records, rng = make(), random.Random(f"{program}{edit}{order}")
    tail = len(records) * 2 // 3
    original = _written(records[:tail] if order == "original first" else records, separators=(",", ":"))
    edited = EDITS[edit](records if order == "original first" else records[:tail], rng)
    once = open_store("once")
    whole = logs / "whole" / name
    whole.parent.mkdir()
    whole.write_bytes(b"".join(line + b"\n" for line in _written(records)))
    once.run(whole)
    first, second = (original, edited) if order == "original first" else (edited, original)
    path, other = logs / name, logs / "copy" / name
    path.write_bytes(b"".join(line + b"\n" for line in first))
    store.run(path)
    before = store.all("SELECT id, agent_id, seq, content FROM messages ORDER BY id")
    path = path if place == "same path" else other
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(line + b"\n" for line in second))
    report = store.run(path)
    assert figures(store) == figures(once)
    assert store.all("SELECT id, agent_id, seq, content FROM messages ORDER BY id")[: len(before)] == before
    assert (report.changed > 0) == (edit in ("redacted", "both"))
    assert report.changed == store.counts()["transcript_revisions"]
    # Each once more, in turns: nothing is new in any of them.
    counts = store.counts() | {"transcript_files": 0}
    for lines in (first, second, first):
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        assert store.run(path).changed == 0
    assert store.counts() | {"transcript_files": 0, "raw_records": counts["raw_records"]} == counts
    assert figures(store) == figures(once)


@pytest.mark.skipif(
    not RECORDED.is_dir(),
    reason=f"no recorded logs in {RECORDED}; name their folder with WATCHKEEPER_TRANSCRIPTS",
)
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("log", ["erk", "entire", "ccviewer", "agentsessions-codex"])
def test_recorded_logs_that_were_edited_count_as_one_import_of_all_records(
    store: Store, open_store: Callable[[str], Store], logs: Path, log: str, edit: str
) -> None:
    """The marks of a redaction in plans and in agents' prompts: `ccviewer` and `erk`. Changed texts: all four."""
    found = next(RECORDED.glob(f"*/{log}*.jsonl"), None)
    if found is None:
        pytest.skip(f"{log} is not in {RECORDED}")
    if (log, edit) == ("agentsessions-codex", "doubled"):
        pytest.skip(
            "most of its lines have lost their times and ids: nothing tells a double from another line"
        )
    records = [json.loads(line) for line in found.read_bytes().splitlines() if line.strip()]
    once, path = open_store("once"), logs / found.name
    path.write_bytes(b"".join(line + b"\n" for line in _written(records)))
    once.run(path)
    path.write_bytes(b"".join(line + b"\n" for line in _written(records[: len(records) // 2])))
    store.run(path)
    path.write_bytes(b"".join(line + b"\n" for line in EDITS[edit](records, random.Random(edit))))
    store.run(path)
    assert figures(store) == figures(once)


@pytest.mark.parametrize("program", MADE)
def test_lines_that_changed_places_under_another_name_are_known(
    store: Store, logs: Path, program: str
) -> None:
    """Also the first line, which names the thread."""
    records, name = MADE[program][0](), MADE[program][1]
    (logs / name).write_bytes(b"".join(line + b"\n" for line in _written(records)))
    store.run(logs)
    before = figures(store)
    for at in range(0, len(records) - 1, 7):
        records[at], records[at + 1] = records[at + 1], records[at]
    (logs / f"copy-{name}").write_bytes(b"".join(line + b"\n" for line in _written(records)))
    assert store.run(logs).changed == 0
    assert figures(store) == before


def _shuffle(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return random.Random(7).sample(records, len(records))


def _without(name: str, value: str | None) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda records: [
        {key: each for key, each in record.items() if key != name}
        | ({name: value} if value and name in record else {})
        for record in records
    ]


@pytest.mark.parametrize(
    "edit",
    [
        _shuffle,
        *(_without(name, value) for name in ("requestId", "uuid") for value in (None, "REDACTED")),
    ],
)
def test_records_are_known_whatever_their_order_or_one_name_that_they_lost(store, logs, edit):
    records = _claude()
    path = logs / f"{SESSION}.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in _written(records)))
    store.run(path)
    before = figures(store)
    path.write_bytes(b"".join(line + b"\n" for line in _written(edit(records))))
    report = store.run(path)
    assert figures(store) == before
    assert edit is not _shuffle or report.changed == 0


@pytest.mark.parametrize("output", [3, 50])
def test_totals_follow_the_newest_revision_of_a_records_usage(store: Store, logs: Path, output: int) -> None:
    log = Log()
    log.user("go")
    log.reply(text("a"), id="m1", output=10)
    log.reply(text("b"), id="m2", output=20)
    path = log.write(logs)
    store.run(path)
    log.records[1]["message"]["usage"]["output_tokens"] = output
    log.write(logs)
    assert store.run(path).changed == 1
    for table in ("sessions", "agents"):
        assert store.one(f"SELECT model_calls, output_tokens, round(cost_usd, 6) FROM {table}") == (
            2,
            output + 20,
            output + 26.0,
        )
    assert store.run(log.write(logs / "copy")).changed == 0
    assert store.one("SELECT output_tokens FROM sessions") == output + 20


def test_the_stored_names_of_records_do_not_depend_on_the_names_of_classes() -> None:
    """A file that an earlier version imported holds digests of these names."""
    assert sorted(STORED_KINDS.values()) == ["Compaction", "Failure", "Message", "Rewind", "Summary"]
