"""Whatever happens to a log: no crash, and every line is counted once as read, raw, skipped or waiting."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.transcripts.conftest import Log, Store, call, text, work


def _log(session: str = Log().session) -> Log:
    log = Log(session)
    log.user("Mend the cache")
    log.reply(call("TodoWrite", "t0", todos=[{"content": "a", "status": "pending"}]), id="m0")
    log.result("t0")
    log.reply(
        call("Task", "t1", prompt="Look", description="d", subagent_type="Explore"),
        id="m1",
        output=1,
        stop=None,
    )
    log.add("user", message={"role": "user", "content": "Look"}, isSidechain=True, parent=None, uuid="s0")
    log.reply(text("Looked"), id="m2", isSidechain=True, uuid="s1", parent="s0")
    log.result("t1", parent=log.records[3]["uuid"])
    log.boundary()
    log.summary("All of it.")
    log.add(
        "system",
        subtype="microcompact_boundary",
        microcompactMetadata={"preTokens": 5, "tokensSaved": 2, "compactedToolIds": ["t1"]},
    )
    log.add("progress", parentToolUseID="t1", data={"type": "agent_progress", "agentId": "abc"})
    log.add("file-history-snapshot", snapshot={})
    log.reply(call("TaskUpdate", "t2", taskId="1", status="completed"), id="m3")
    return log


LINES = _log().lines


def _damage(rng: random.Random, lines: list[bytes]) -> bytes:
    """Lines lost, doubled, shuffled, cut, glued together, and bytes changed."""
    lines = list(lines)
    for _ in range(rng.randrange(6)):
        if not lines:
            break
        place, kind = rng.randrange(len(lines)), rng.randrange(7)
        line = lines[place]
        if kind == 0:
            del lines[place]
        elif kind == 1:
            lines.insert(rng.randrange(len(lines)), line)
        elif kind == 2:
            rng.shuffle(lines)
        elif kind == 3:
            lines[place] = line[: rng.randrange(len(line) + 1)]
        elif kind == 4:
            changed = bytearray(line)
            for _ in range(rng.randrange(1, 4)):
                if changed:
                    changed[rng.randrange(len(changed))] = rng.randrange(256)
            lines[place] = bytes(changed)
        elif kind == 5:
            lines.append(line + lines.pop(rng.randrange(len(lines))))
        else:
            lines[place] = line.replace(b'"uuid":"', b'"uuid":"x', 1).replace(
                b'"parentUuid":"', b'"parentUuid":"y', 1
            )
    return b"\n".join(lines) + rng.choice([b"\n", b""])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_a_damaged_log_loses_no_line_and_stops_nothing(seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "watchkeeper.db")
        try:
            path = Path(folder) / f"{Log().session}.jsonl"
            data = _damage(rng, LINES)
            grown, ended = b"", 0
            while len(grown) < len(data):
                grown = data[: len(grown) + rng.randrange(1, len(data) + 1)]
                path.write_bytes(grown)
                report = store.run(path)
                assert not report.left
                # A record that is whole is read before its line ends; what then comes in the same line is one
                # more.
                ended += grown.endswith(b"}") and data[len(grown) : len(grown) + 1] not in (b"", b"\n")
            whole = data.count(b"\n") + bool(data.rpartition(b"\n")[2])
            row = store.one("SELECT sum(lines), sum(lines_raw), sum(lines_skipped) FROM transcript_files")
            lines = (row[0] or 0) + report.waiting
            assert whole <= lines <= whole + ended or (report.unknown and not row[0])
            assert store.one("SELECT count(*) FROM raw_records") == (row[1] or 0)
            # Read again after a rewriting of its first line: nothing doubles, and everything is counted.
            messages = store.counts()["messages"]
            path.write_bytes(b"\n" + data)
            again = store.run(path)
            assert again.lines == whole + 1 or again.unknown
            assert store.counts()["messages"] <= messages + 1
            assert store.one("PRAGMA integrity_check") == "ok"
        finally:
            store.close()


ODD: list[Any] = [
    None, True, -1, 0, 1e308, 10**30, "", " ", "x", "\x00", "é漢\U0001f600", "9999-12-31T23:59:59.999Z", "0001-01-01T00:00:00.000Z", 10**14, [], [None],
    {}, {"type": "text"}, [{"type": "tool_use"}], [{"type": "tool_result", "tool_use_id": 5}], {"id": {"id": []}}, [[[[]]]], "main", "side:s0",
]  # fmt: skip


def _twist(rng: random.Random, value: Any) -> Any:
    """The value with something odd put in somewhere."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        twisted = dict(value)
        if rng.random() < 0.1:
            del twisted[key]
        else:
            twisted[key] = _twist(rng, value[key])
        return twisted
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = rng.randrange(len(value))
        return [*value[:place], _twist(rng, value[place]), *value[place + 1 :]]
    return rng.choice(ODD)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_records_of_odd_shapes_are_read_or_kept_and_stop_nothing(seed: int) -> None:
    rng = random.Random(seed)
    records = [json.loads(line) for line in LINES]
    for _ in range(rng.randrange(1, 12)):
        place = rng.randrange(len(records))
        records[place] = _twist(rng, records[place])
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "watchkeeper.db")
        try:
            path = Path(folder) / f"{Log().session}.jsonl"
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
            report = store.run(path)
            assert report.lines == len(records) or report.unknown
            assert not [kind for kind, reason in report.raw if "failed" in reason]
            row = store.one("SELECT sum(output_tokens), sum(model_calls) FROM sessions")
            agents = store.one("SELECT sum(output_tokens), sum(model_calls) FROM agents")
            calls = store.one("SELECT coalesce(sum(output_tokens), 0), count(*) FROM model_calls")
            assert report.unknown or tuple(row) == tuple(agents) == tuple(calls)
        finally:
            store.close()


def test_values_nested_beyond_any_parser_and_numbers_beyond_any_machine_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "watchkeeper.db")
    try:
        path = tmp_path / f"{Log().session}.jsonl"
        head = b'{"type":"user","sessionId":"s","uuid":"n%d","timestamp":"2026-02-03T04:00:00.000Z","message":{"role":"user","content":'
        lines = [
            head % depth + b"[" * depth + b"]" * depth + b"}}"
            for depth in (100, 190, 250, 400, 600, 900, 5_000, 100_000)
        ]
        lines += [
            head % 1 + b'[{"type":"text","n":' + b"9" * digits + b"}]}}" for digits in (30, 5_000, 50_000)
        ]
        lines += [head % 2 + b'[{"type":"text","n":NaN,"m":1e999}]}}']
        path.write_bytes(b"\n".join([LINES[0], *lines]) + b"\n")
        report = store.run(path)
        assert report.lines == 1 + len(lines)
        assert report.read + report.raw.total() == report.lines
    finally:
        store.close()


def test_a_clock_that_jumped_far_ahead_puts_no_session_into_the_future(store: Store, logs: Path) -> None:
    log = work()
    log.records[3]["timestamp"] = "9999-12-31T23:59:59.000Z"
    store.run(log.write(logs))
    last = store.one("SELECT last_active FROM sessions")
    assert last < 1_800_000_000
    assert store.one("SELECT max(at) FROM events") == last
    assert store.one("SELECT max(created_at) FROM messages") == last
