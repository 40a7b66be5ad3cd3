"""Rollouts of Codex's first versions: one JSON document for a session."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.core.transcripts.conftest import Store

THREAD = "3b8d4d5e-0000-4000-8000-0000000000aa"


def _text(role: str, said: str) -> dict[str, Any]:
    kind = "input_text" if role == "user" else "output_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": said}]}


ITEMS: list[dict[str, Any]] = [
    _text("user", "Mend the cache"),
    {"id": "rs_1", "type": "reasoning", "summary": [], "duration_ms": 3},
    {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "c1",
        "name": "shell",
        "arguments": '{"command":["ls"]}',
    },
    {"type": "function_call_output", "call_id": "c1", "output": '{"output":"a","metadata":{"exit_code":1}}'},
    _text("assistant", "Mended."),
    _text("user", "Mended."),
]


def _write(folder: Path, count: int, written: float = 1_745_000_000.0) -> Path:
    path = folder / f"rollout-2025-04-18-{THREAD}.json"
    session = {"timestamp": "2025-04-18T10:00:00.000Z", "id": THREAD, "instructions": ""}
    path.write_text(json.dumps({"session": session, "items": ITEMS[:count]}, indent=2))
    os.utime(path, (written, written))
    return path


def test_a_document_is_a_session_and_each_item_a_message(store: Store, logs: Path) -> None:
    _write(logs, len(ITEMS))
    report = store.run(logs)
    assert (report.unknown, report.left) == ([], {})
    assert store.all("SELECT source, goal FROM sessions") == [(f"codex:{THREAD}", "Mend the cache")]
    assert store.all("SELECT name, status FROM tool_calls") == [("shell", "error")]
    assert store.one("SELECT count(*) FROM messages") == 5
    before = store.counts()
    assert store.run(logs).unchanged == 1
    assert store.counts() == before


def test_a_document_that_is_written_anew_adds_what_is_new(store: Store, logs: Path) -> None:
    for step, count in enumerate((1, 3, len(ITEMS), 2, len(ITEMS))):
        path = _write(logs, count, 1_745_000_000.0 + step)
        store.run(logs)
    assert store.one("SELECT count(*) FROM messages") == 5
    path.write_text(path.read_text()[:200])
    store.run(logs)
    assert store.one("SELECT count(*) FROM messages") == 5


def test_other_json_files_are_no_rollouts(store: Store, logs: Path) -> None:
    (logs / "rollout-plan.json").write_text('{"items": []}')
    (logs / "package.json").write_text('{"session": {"id": "x"}, "items": []}')
    assert len(store.run(logs).unknown) == 1
    assert store.one("SELECT count(*) FROM sessions") == 0
