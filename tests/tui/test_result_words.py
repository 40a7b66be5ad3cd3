"""Results of tools, as the feed of events tells them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tui.conftest import Desk, text_of, until

from watchkeeper.records.text import inbox_payload_words, result_words, without_machine_text
from watchkeeper.store.snapshot import EventFacts
from watchkeeper_tui.formatting import event_words
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.screens.compaction import _block
from watchkeeper_tui.snapshot import TranscriptBlock

LISTING = {
    "path": "cli", "next": None, "totals": {"files": 28, "folders": 2, "links": 0, "bytes": 193_836, "lines": 3_060},
    "entries": [{"path": "cli/__init__.py", "kind": "file", "bytes": 24}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (LISTING, "cli, 28 files, 2 folders, 193,836 bytes, 3,060 lines"),
        ({"ref": "artifact://sha256/13", "name": "figures/1", "bytes": 667}, "figures/1, 667 bytes"),
        (
            {"plan": "3i3brz8k", "revision": 1, "tasks": {"a": "wq8", "b": "v8n"}},
            "revision 1, 2 tasks",
        ),
        ([{"number": 7975, "title": "Dagger"}, {"number": 7976}], "Dagger, number 7975, …"),
        (
            {"readme": {"$largest": 1, "by": 1, "items": []},
             "starts": {"$largest": 2, "items": [["a/b.py", 0]]}}, "starts a/b.py",
        ),
        (
            {"files": 1, "address": 2, "share": 0.25, "ok": True, "off": False},
            "1 file, address 2, share 0.25, ok",
        ),
    ],
)  # fmt: skip
def test_a_result_in_json_is_told_by_what_it_names_and_counts(result: Any, words: str) -> None:
    assert result_words(json.dumps(result)) == words


@pytest.mark.parametrize("length", range(1, len(json.dumps(LISTING))))
def test_a_result_that_was_cut_is_told_as_far_as_it_goes(length: int) -> None:
    cut = json.dumps(LISTING)[:length]
    said = result_words(cut)
    assert said == cut or "cli, 28 files, 2 folders, 193,836 bytes, 3,060 lines".startswith(said)
    if length > 20:
        assert said.startswith("cli")


@pytest.mark.parametrize(
    "text",
    [
        "", "30 files", "{", "[", "{}", "[]", "[plnd] done", "{not json}", "[" * 400, "[" * 3_000,
        '{"a": ' * 80,
    ],
)  # fmt: skip
def test_every_other_result_is_told_as_it_is(text: str) -> None:
    assert result_words(text) == text


async def test_the_feed_has_no_raw_results(desk: Desk) -> None:
    desk.session.event("tool.done", "explorer1", tool="list_folder", preview=json.dumps(LISTING)[:200])
    async with desk.shown("list_folder → cli, 28 files, 2 folders", size=(160, 40)) as pilot:
        assert '{"path"' not in text_of(pilot)


def test_characters_that_a_result_spells_out_act_on_no_terminal() -> None:
    result = json.dumps({"name": "\x1b]0;pwned\x07 \ud800 \u202e", "files": 2})
    told = [
        event_words(
            EventFacts(1, 0.0, "tool.done", None, None, json.dumps({"tool": "x", "preview": result}))
        ).text,
        "".join(
            text
            for text, _ in _block(
                TranscriptBlock("1.0", 1, "tool_result", "x", result, 0, 0.0), 80, frozenset(), lost=False
            )[0].pieces
        ),
    ]
    for text in told:
        assert text == sanitize(text)
        assert "2 files" in text


def test_what_only_programs_read_is_folded_into_words() -> None:
    digest = "artifact://sha256/" + "e9122a112dd23782" * 4
    notes = [
        {"kind": "task_done", "task": "vendor", "title": "Explore vendor", "result": "5 files.", "result_ref": digest,
         "artifacts": [{"name": "figures/vendor", "ref": digest}], "memory_delta": digest},
        {"kind": "task_failed", "task": "ci", "title": "Explore .ci", "error": "no credit"},
        {"kind": "steer", "text": "hurry"},
    ]  # fmt: skip
    inbox = "Task vendor is done.\nTask ci failed: no credit.\n\n" + json.dumps({"inbox": notes})
    words = without_machine_text(inbox)
    assert words is not None
    assert [line for line in words.split("\n") if line.strip()] == [
        "- ✓ Task vendor done · 1 artifact", "  5 files.", "- ✗ Task ci failed: no credit", "- A person says: hurry",
    ]  # fmt: skip
    first = f'# Task: Explore .ci\n\nLook at it.\n\nscope: {{"a": 1}}\n\nhandoff: {{"inputs_ref": ["{digest}"]}}\n\nSave it.'
    assert without_machine_text(first) == "# Task: Explore .ci\n\nLook at it.\n\nSave it."
    assert without_machine_text('plain\n{"inbox": [1]}') is None
    assert without_machine_text("the handoff: is later") is None
    assert inbox_payload_words("task_done", json.dumps(notes[0])) == "✓ Task vendor done · 1 artifact"
    assert result_words(
        json.dumps({"plan": "wb8h22if", "revision": 1, "tasks": {"ci": "vjyjd5b2"}, "ref": digest})
    ) == ("revision 1, 1 task")


@pytest.mark.parametrize("size", [(80, 24), (170, 60)])
async def test_names_take_the_room_that_there_is_and_a_cut_one_says_so(desk, size):
    name = "explore-every-vendored-package-and-its-reason"
    desk.session.task("t-long", "Explore", name=name, agent="explorer2", needs=("t-core",))
    async with desk.shown("explore-every", size=size) as pilot:
        await until(pilot, lambda: (name in text_of(pilot)) is (size[0] == 170), seconds=5)
        line = next(line for line in text_of(pilot).split("\n") if "explore-every" in line)
        assert name in line or "…" in line
        assert "t-core" not in text_of(pilot)
