"""Real logs of Claude Code, against figures computed apart by a few lines that share nothing with the
importer.

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

from watchkeeper.models.registry import logged_price
from watchkeeper.transcripts.importer import Importer

FOLDER = (
    Path(os.environ.get("WATCHKEEPER_TRANSCRIPTS") or Path(__file__).parents[4] / "shared" / "transcripts")
    / "claude-code"
)
ERK = "erk-8ced4264-2.0.67-3compactions-24task.jsonl"
ENTIRE = "entire-4b7d5121b42a-2.1.14-manual-compact.jsonl"
VIEWER = "ccviewer-fe5e1c67-1.0.98-inline-sidechains.jsonl"
EVERY_TYPE = "agentsessions-claude-small-all-record-types-redacted.jsonl"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(),
    reason=f"no recorded logs in {FOLDER}; name their folder with WATCHKEEPER_TRANSCRIPTS",
)


@pytest.fixture(scope="module", params=[ERK, ENTIRE, VIEWER])
def log(request: pytest.FixtureRequest) -> Path:
    path = FOLDER / request.param
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _blocks(records: list[dict[str, Any]], kind: str, name: str | None = None) -> list[dict[str, Any]]:
    found = []
    for record in records:
        content = record.get("message", {}).get("content")
        for block in content if isinstance(content, list) else []:
            if block.get("type") == kind and (name is None or block.get("name") == name):
                found.append(block)
    return found


def _usage(records: list[dict[str, Any]]) -> dict[Any, dict[str, int]]:
    best: dict[Any, dict[str, int]] = {}
    for record in records:
        if record["type"] == "assistant" and record["message"].get("model") != "<synthetic>":
            key, usage = (record["message"]["id"], record["requestId"]), record["message"]["usage"]
            if key not in best or usage["output_tokens"] > best[key]["output_tokens"]:
                best[key] = usage
    return best


def test_tokens_calls_and_tools_are_what_a_few_lines_count(store: Store, log: Path) -> None:
    records = _records(log)
    report = store.run(log)
    usage = _usage(records).values()
    expected = (
        len(usage),
        sum(each["input_tokens"] for each in usage),
        sum(each["output_tokens"] for each in usage),
        sum(each["cache_read_input_tokens"] for each in usage),
        sum(each["cache_creation_input_tokens"] for each in usage),
    )
    rows = store.one(
        "SELECT model_calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens FROM sessions"
    )
    assert rows == expected
    assert store.counts()["tool_calls"] == len(_blocks(records, "tool_use"))
    answered = {block["tool_use_id"] for block in _blocks(records, "tool_result")}
    assert store.one("SELECT count(*) FROM tool_calls WHERE result_seq IS NOT NULL") == len(answered)
    failed = {block["tool_use_id"] for block in _blocks(records, "tool_result") if block.get("is_error")}
    assert store.one("SELECT count(*) FROM tool_calls WHERE is_error") == len(failed)
    said = [
        record
        for record in records
        if record["type"] in ("user", "assistant") and not record.get("isCompactSummary")
    ]
    assert store.counts()["messages"] == len(said)
    assert report.lines == len(records)
    assert report.read + report.raw.total() == len(records)


def test_plans_are_what_the_lists_said(store: Store, log: Path) -> None:
    records = _records(log)
    store.run(log)
    lists = [block["input"]["todos"] for block in _blocks(records, "tool_use", "TodoWrite")]
    assert store.counts()["plan_revisions"] == len(lists)
    rows = {row[0] for row in store.all("SELECT title FROM tasks")}
    assert rows == {item["content"] for items in lists for item in items}


def test_costs_follow_logged_prices_of_each_kind_of_token(store: Store, log: Path) -> None:
    prices = {
        "claude-opus-4-6": (5, 25),
        "claude-opus-4-5-20251101": (5, 25),
        "claude-sonnet-4-20250514": (3, 15),
    }
    records = _records(log)
    models = {
        record["message"]["id"]: record["message"]["model"]
        for record in records
        if record["type"] == "assistant"
    }
    expected = 0.0
    for (message, _), usage in _usage(records).items():
        into, out = prices[models[message]]
        long, short = (
            usage["cache_creation"]["ephemeral_1h_input_tokens"],
            usage["cache_creation"]["ephemeral_5m_input_tokens"],
        )
        expected += into * (
            usage["input_tokens"] + 0.1 * usage["cache_read_input_tokens"] + 1.25 * short + 2 * long
        )
        expected += out * usage["output_tokens"]
    importer = Importer(store.writer, pricing=logged_price)
    importer.run([log])
    importer.close()
    assert store.one("SELECT cost_usd FROM sessions") == pytest.approx(expected / 1e6)
    assert store.one("SELECT unpriced_calls FROM sessions") == 0


def test_compactions_drop_everything_before_them_and_their_sizes_are_as_logged(store: Store) -> None:
    records = _records(FOLDER / ERK)
    store.run(FOLDER / ERK)
    expected, said = [], 0
    for place, record in enumerate(records):
        if record.get("subtype") == "compact_boundary":
            usage = next(each["message"]["usage"] for each in records[place:] if each["type"] == "assistant")
            after = (
                usage["input_tokens"]
                + usage["cache_read_input_tokens"]
                + usage["cache_creation_input_tokens"]
            )
            expected.append((record["compactMetadata"]["preTokens"], after, said))
        said += record["type"] in ("user", "assistant") and not record.get("isCompactSummary")
    rows = store.all("SELECT tokens_before, tokens_after, high_water FROM compactions ORDER BY id")
    assert rows == expected
    assert [round(before / 1000) for before, _, _ in expected] == [159, 156, 160]
    summaries = [record["message"]["content"] for record in records if record.get("isCompactSummary")]
    assert [row[0] for row in store.all("SELECT text FROM observations ORDER BY id")] == summaries


def test_agents_are_the_main_one_and_those_that_calls_started(store, open_store):
    store.run(FOLDER / ERK)
    assert store.counts()["agents"] == 1 + len(_blocks(_records(FOLDER / ERK), "tool_use", "Task")) == 25
    viewer = open_store("viewer")
    viewer.run(FOLDER / VIEWER)
    records = _records(FOLDER / VIEWER)
    chains = [record for record in records if record.get("isSidechain") and record["parentUuid"] is None]
    background = viewer.all("SELECT name FROM agents WHERE role = 'background command'")
    assert len(background) == 3
    assert viewer.counts()["agents"] - len(background) == 1 + len(chains) == 6
    # Every side chain belongs to its agent: by its prompt, an agent has as many messages as its chain has
    # records.
    owner: dict[str, str] = {}
    length: Counter[str] = Counter()
    for record in records:
        if record.get("isSidechain"):
            owner[record["uuid"]] = owner.get(record["parentUuid"] or "", record["uuid"])
            length[owner[record["uuid"]]] += 1
    prompts = {record["uuid"]: record["message"]["content"] for record in chains}
    assert {
        row[0]: row[1]
        for row in viewer.all(
            "SELECT current_goal, last_seq FROM agents WHERE parent_agent_id IS NOT NULL AND role <> 'background command'"
        )
    } == {prompts[uuid]: count for uuid, count in length.items()}
    tasks = {
        block["input"]["prompt"]: block["input"]["description"]
        for block in _blocks(records, "tool_use", "Task")
    }
    rows = dict(
        viewer.all(
            "SELECT current_goal, name FROM agents WHERE parent_agent_id IS NOT NULL AND role <> 'background command'"
        )
    )
    assert rows == tasks


def test_the_folder_layout_is_one_session(store: Store) -> None:
    store.run(FOLDER / "agentsessions-subagent")
    assert store.counts()["sessions"] == 1
    assert store.all("SELECT role, last_seq FROM agents ORDER BY parent_agent_id IS NOT NULL") == [
        ("main", 2),
        ("general-purpose", 3),
    ]


def test_every_type_of_record_is_read_kept_or_known_as_a_repetition(store: Store) -> None:
    report = store.run(FOLDER / EVERY_TYPE)
    assert report.lines == len(_records(FOLDER / EVERY_TYPE)) == 89
    assert not [kind for kind, reason in report.raw if reason == "unknown record type"]
    assert store.counts()["compactions"] == 2


def test_logs_read_a_line_at_a_time_end_as_when_read_at_once(store, open_store, tmp_path):
    whole = open_store("whole")
    whole.run(FOLDER / VIEWER)
    lines = (FOLDER / VIEWER).read_bytes().splitlines(keepends=True)
    path = tmp_path / VIEWER
    path.write_bytes(b"")
    for start in range(0, len(lines), 29):
        with path.open("ab") as file:
            file.writelines(lines[start : start + 29])
        store.run(path)
    for sql in (
        "SELECT id, name, turn, last_seq, message_tokens, output_tokens, status, parent_agent_id FROM agents"
        " ORDER BY id",
        "SELECT agent_id, turn, position, tool_use_id, status, result_seq FROM tool_calls ORDER BY agent_id,"
        " turn, position",
        "SELECT parent_plan_id, title, position, status FROM tasks ORDER BY parent_plan_id, title",
        "SELECT input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, model_calls, event_seq"
        " FROM sessions",
    ):
        assert store.all(sql) == whole.all(sql)
