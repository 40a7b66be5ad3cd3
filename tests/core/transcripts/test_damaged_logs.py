"""Whatever happens to a log: no crash, and every line is counted once as read, raw, skipped or waiting."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.transcripts.conftest import Log, Store, call, text


def _log(session: str = Log().session) -> Log:
    log = Log(session)
    log.user("Mend the cache")
    log.reply(call("TodoWrite", "t0", todos=[{"content": "a", "status": "pending"}]), id="m0")
    log.result("t0")
    log.reply(call("Task", "t1", prompt="Look", description="d", subagent_type="Explore"), id="m1", output=1, stop=None)
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
            lines[place] = line.replace(b'"uuid":"', b'"uuid":"x', 1).replace(b'"parentUuid":"', b'"parentUuid":"y', 1)
    return b"\n".join(lines) + rng.choice([b"\n", b""])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_a_damaged_log_loses_no_line_and_stops_nothing(seed: int) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "watchkeeper.db")
        try:
            path = Path(folder) / f"{Log().session}.jsonl"
            data = _damage(rng, LINES)
            grown = b""
            while len(grown) < len(data):
                grown = data[: len(grown) + rng.randrange(1, len(data) + 1)]
                path.write_bytes(grown)
                report = store.run(path)
                assert not report.left
            whole = data.count(b"\n") + bool(data.rpartition(b"\n")[2])
            row = store.one("SELECT sum(lines), sum(lines_raw), sum(lines_skipped) FROM transcript_files")
            lines = (row[0] or 0) + report.waiting
            assert lines == whole or (report.unknown and not row[0])
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
