"""A run that carries on another program's session: each pointer that it is given opens what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.core.runtime.test_carrying import Fixed, fixed
from tests.core.transcripts.codex_rollout import Rollout
from tests.core.transcripts.conftest import Log, call, text
from tests.core.transcripts.opencode_book import Book, compacted

from watchkeeper.store.writer import Writer
from watchkeeper.transcripts.importer import Importer

__all__ = ["fixed"]

TODOS = [
    {"content": "Read the cache", "status": "completed"},
    {"content": "Mend the cache", "status": "in_progress"},
    {"content": "Test the cache", "status": "pending"},
]


def _claude(folder: Path) -> None:
    log = Log()
    log.user("Mend the cache")
    log.reply(call("TodoWrite", "t1", todos=TODOS), id="m1")
    log.result("t1", toolUseResult={"oldTodos": [], "newTodos": TODOS})
    log.boundary()
    log.summary("The lock in cache.py is taken twice.")
    log.reply(text("I stopped at the lock."), id="m2")
    log.write(folder)


def _codex(folder: Path) -> None:
    steps = [{"step": each["content"], "status": each["status"]} for each in TODOS]
    log = Rollout().user("Mend the cache").call("c1", "update_plan", plan=steps).output("c1")
    log.add("compacted", {"message": "The lock in cache.py is taken twice."})
    log.says("I stopped at the lock.").write(folder)


def _opencode(folder: Path) -> None:
    book = Book()
    session = book.session()
    book.user(session, "Mend the cache")
    answer = book.assistant(session)
    book.tool(answer, "c1", "todowrite", input={"todos": TODOS})
    compacted(book, session)
    book.parts[next(reversed(book.parts))]["text"] = "The lock in cache.py is taken twice."
    last = book.assistant(session)
    book.part(last, "text", text="I stopped at the lock.")
    book.database(folder)


async def carried(fixed: Fixed, session: str) -> tuple[str, dict[str, str]]:
    """What the planner of a run that carries on `session` is told, and reads at each pointer in it."""
    new = await fixed.carried("Finish it", session)
    told = fixed.first_message(new)
    pointers = dict.fromkeys(re.findall(r"\w+://[\w/.-]*[\w-]", told))
    return told, {pointer: fixed.read_back(new, pointer) for pointer in pointers}


def take_in(path: Path, logs: Path) -> None:
    """Import what lies in a folder."""
    writer = Writer(path)
    importer = Importer(writer)
    try:
        importer.run([logs])
    finally:
        importer.close()
        writer.close()


@pytest.mark.parametrize("write", [_claude, _codex, _opencode])
async def test_every_pointer_to_an_imported_session_opens_what_it_says(fixed, tmp_path, write):
    logs = tmp_path / "logs"
    logs.mkdir()
    write(logs)
    take_in(fixed.path, logs)
    told, opened = await carried(fixed, fixed.one("SELECT id FROM sessions")[0])
    assert "Its goal: Mend the cache\n" in told
    for line in (
        "[pending] 3: Test the cache",
        "[paused] 2: Mend the cache — not finished",
        "[done] 1: Read the cache",
        "I stopped at the lock.",
    ):
        assert line in told, told
    last_lines = [content.splitlines()[-1] for content in opened.values()]
    assert {"I stopped at the lock.", "Mend the cache"} <= set(last_lines)
    *cited, whole = opened.values()
    assert all(re.match(r"From session \w+, message://\w+/\d+\n", content) for content in cited)
    assert "## Plan" in whole
    assert "taken twice" in whole


async def test_what_was_taken_back_is_not_the_last_word(fixed: Fixed, tmp_path: Path) -> None:
    book = Book()
    session = book.session()
    for asked, answered in (("Mend the cache", "I stopped at the lock."), ("Drop the lock", "Dropped it.")):
        place = book.user(session, asked)
        book.part(book.assistant(session), "text", text=answered)
    book.undo(session, place)
    take_in(fixed.path, book.database(tmp_path))
    told, _ = await carried(fixed, fixed.one("SELECT id FROM sessions")[0])
    assert "I stopped at the lock." in told
    assert "Dropped it." not in told


LONG_SUMMARY = "\n".join(
    ["1. Request: mend the cache", *(f"   - detail {n} of the cache" for n in range(80)), "THE LAST LINE"]
)
DRAFTS = {
    "tags": "<analysis>\nFirst I draft: SECRET PLAN\n</analysis>\n\n<summary>\n{}\n</summary>",
    "open": "<Analysis >\nFirst I draft: SECRET PLAN\n<summary>{}</summary>",
    "headings": "It is continued.\nAnalysis:\nFirst I draft: SECRET PLAN\n\nSummary:\n{}",
    "none": "{}",
}


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS)
async def test_an_imported_session_hands_on_its_last_summary_files_todos_and_both_last_words(
    fixed: Fixed, tmp_path: Path, draft: str
) -> None:
    (tmp_path / "logs").mkdir()
    log = Log()
    log.user("Mend the cache")
    log.reply(call("TodoWrite", "t1", todos=TODOS), id="m1")
    log.result("t1", toolUseResult={"oldTodos": [], "newTodos": TODOS})
    log.boundary()
    log.summary(draft.format(LONG_SUMMARY))
    log.reply(call("Edit", "t2", file_path="/w/cache.py", old_string="a", new_string="b"), id="m2")
    log.result("t2")
    log.user("Also keep the old name")
    log.reply(text("I stopped at the lock."), id="m3")
    log.write(tmp_path / "logs")
    take_in(fixed.path, tmp_path / "logs")
    new = await fixed.carried("Finish it", fixed.one("SELECT id FROM sessions")[0])
    told = fixed.first_message(new)
    whole = re.findall(r"artifact://sha256/[0-9a-f]{64}", told)[-1]
    assert "SECRET PLAN" not in told
    assert "SECRET PLAN" not in fixed.read_back(new, whole)
    for said in (
        LONG_SUMMARY,
        "cache.py",
        "Also keep the old name",
        "I stopped at the lock.",
        "[pending] 3: Test the cache",
    ):
        assert said in told, said
