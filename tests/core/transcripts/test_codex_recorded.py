"""Recorded logs of Codex, against figures counted apart by a few lines that share nothing with
the readers.

The logs are not part of the project. They are looked for in `WATCHKEEPER_TRANSCRIPTS`, else in
`shared/transcripts` beside the checkout.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.conftest import Store

FOLDER = Path(
    os.environ.get("WATCHKEEPER_TRANSCRIPTS") or Path(__file__).parents[4] / "shared" / "transcripts"
)
CODEX = FOLDER / "codex" / "agentsessions-codex-small-cli0.146-all-record-types-redacted.jsonl"

codex = pytest.mark.skipif(
    not CODEX.exists(), reason=f"{CODEX} is not there; name its folder with WATCHKEEPER_TRANSCRIPTS"
)


def _records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CODEX.read_text().splitlines()]


@codex
def test_calls_tokens_and_compactions_of_codex_are_what_a_few_lines_count(store: Store) -> None:
    records = _records()
    report = store.run(CODEX)
    items = Counter(each["payload"]["type"] for each in records if each["type"] == "response_item")
    calls = (
        "function_call", "custom_tool_call", "local_shell_call", "tool_search_call", "web_search_call",
        "image_generation_call",
    )  # fmt: skip
    assert store.counts()["tool_calls"] == sum(items[kind] for kind in calls) == 8
    sums: dict[str, dict[str, int]] = {}
    for each in records:
        info = each["payload"].get("info") if each["payload"].get("type") == "token_count" else None
        if info and info["last_token_usage"]["total_tokens"]:
            sums[json.dumps(info["total_token_usage"])] = info["last_token_usage"]
    expected = (
        len(sums),
        sum(each["input_tokens"] - each["cached_input_tokens"] for each in sums.values()),
        sum(each["cached_input_tokens"] for each in sums.values()),
        sum(each["output_tokens"] for each in sums.values()),
    )
    row = store.one("SELECT model_calls, input_tokens, cache_read_tokens, output_tokens FROM sessions")
    assert tuple(row) == expected == (1, 12_757, 3_584, 81)
    assert store.counts()["compactions"] == sum(each["type"] == "compacted" for each in records) == 6
    said = sum(count for kind, count in items.items() if kind != "ghost_snapshot")
    assert store.counts()["messages"] == said
    assert report.lines == len(records)


@codex
def test_every_type_of_record_of_codex_is_known(store: Store) -> None:
    report = store.run(CODEX)
    assert not [kind for kind, reason in report.raw if reason == "unknown record type"]
