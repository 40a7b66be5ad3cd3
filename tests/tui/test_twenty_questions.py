"""Twenty questions about a run, each answered within five keys at 120 by 40: `docs/questions.md` has the table.

The live run has 30 agents and one planted stall. The other session is a log of Claude Code, imported as a user does
it. A question that the dashboard does not answer yet is in `OPEN`; its test fails as soon as it is answered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core.transcripts.conftest import Log, call, dollar_a_token, text
from tests.tui.conftest import Desk, text_of, until
from tests.tui.fake_store import FakeSession, create, insert

from watchkeeper.store.writer import Writer
from watchkeeper.transcripts.importer import Importer

PAGE = Path(__file__).parents[2] / "docs" / "questions.md"
_ROW = re.compile(r"^\| (\d+) \| (live|imported) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)

ANSWERS = {
    1: r"coder-4\b.*compacts in", 2: r"! coder-23 silent bash for 25:00",
    3: r"(?s)3 coder-23 \(explorer\) .*! silent  bash for 25:00.*2 processes \(sleep\)",
    4: r"by cost per minute[^\n]*\n[^\n]*\$/m[^\n]*\n[^\n]*coder-9\b[^\n]*3\.6",
    5: r"(?s)Depends on.*coder-3.*release \(explorer\) +after coder-3", 6: r"ModuleNotFoundError: No module named 'ledger'",
    7: r"git push --force origin main", 8: r"30 agents", 9: r"retry budget = 3", 10: r"◷ coder-12 limit until",
    11: r"(?s)Timeline  30 agents.*coder-1\b[^\n]*█", 12: r"\$4\.82",
    13: r"revision 2: because the ledger was split",
    14: r"All tests pass; the cache keeps its entries\.", 15: r"AssertionError: cache\.size == 2",
    16: r"(?s)- *\d* *self\.entries = \{\}.*\+ *\d* *self\.entries = OrderedDict\(\)",
    17: r"never touch the public interface", 18: r"CACHE_LIMIT is 4096", 19: r"(?s)(?:this|last 7) .*\$\d+",
    20: r"(?s)Models.*claude-opus-4-6.*\$\d+",
}  # fmt: skip
"""What the screen must show after the keys, a regular expression for each question."""

OPEN: set[int] = set()
"""Not answered yet."""


def rows() -> list[tuple[int, str, str, list[str]]]:
    """Number, session, question and keys of each row of the table."""
    return [
        (int(number), scene, question, re.findall(r"`([^`]+)`", keys))
        for number, scene, question, keys, _ in _ROW.findall(PAGE.read_text(encoding="utf-8"))
    ]


def live_run(path: Path) -> FakeSession:
    """A planner and 29 agents: one near a compaction, one silent, one that spends, one parked, one that asks."""
    connection = create(path)
    run = FakeSession(connection, goal="port the billing service to the new ledger")
    run.agent("planner1", "planner", role="planner", context_tokens=9_000, cost_usd=0.2)
    for n in range(1, 30):
        about: dict[str, object] = {"cost_usd": 0.1, "context_tokens": 3_000 + 100 * n}
        if n == 4:
            parts = {"messages": 20_000, "overhead": 1000, "threshold": 23_000, "headroom": 11_000}
            about |= {"composition": json.dumps(parts), "context_tokens": 20_000}
        if n == 12:
            about |= {"status": "parked", "parked_until": run.now + 5_400, "status_reason": "usage limit"}
        if n == 23:
            about |= {"last_active": run.now - 1_500}
        run.agent(f"agent{n:02d}", f"coder-{n}", **about)
        run.task(f"task{n:02d}", f"Port module {n}", agent=f"agent{n:02d}", started_at=run.now - 600)
        for turn in range(4):
            spent = 0.9 if n == 9 else 0.004
            run.call(f"agent{n:02d}", turn=turn + 1, cost_usd=spent, started_at=run.now - 60 + turn * 14)
        run.live(f"agent{n:02d}", "working", since=run.now - 20)
    run.live("agent23", "tool", "bash", since=run.now - 1_500, updated_at=run.now - 1_500)
    run.task("release", "Release", needs=("task03",))
    run.approval("agent07", "git push --force origin main")
    run.message("agent15", "user", "Port module 15.")
    block = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "pytest -q"}}
    run.message("agent15", "assistant", [block])
    failed = "ModuleNotFoundError: No module named 'ledger'"
    result = {"type": "tool_result", "tool_use_id": "t1", "content": failed, "is_error": True}
    run.message("agent15", "user", [result])
    run.message("agent04", "user", "Keep in mind: retry budget = 3.")
    run.message("agent04", "assistant", "Noted.")
    run.message("agent04", "user", "Go on.")
    text = "Goal: port module 4. Nothing is decided yet."
    kept = {"kind": "summary", "text": text, "tokens": 12, "first_seq": 1, "last_seq": 2, "citations": "[2]"}
    insert(run.connection, "observations", agent_id="agent04", id=1, created_at=run.now, **kept)
    view = {"version": 2, "parent": 1, "observations": "[1]", "verbatim_from": 3, "reason": "compaction"}
    insert(run.connection, "views", agent_id="agent04", created_at=run.now, **view)
    run.compaction("agent04", high_water=2, messages_removed=2)
    run.event("session.running")
    run.event("plan.revised", "planner1", revision=1, reason="first plan", tasks=29)
    run.event("plan.revised", "planner1", revision=2, reason="because the ledger was split", tasks=30)
    for number, reason in ((1, "first plan"), (2, "because the ledger was split")):
        insert(run.connection, "plan_revisions", plan_id="plan1", revision=number, at=run.now, reason=reason, goal="", task_queue="[]",
               step_cursor=0, plan_graph_snapshot="[]")  # fmt: skip
    run.event("tool.error", "agent15", "task15", tool="bash", preview=failed, call=1)
    return run


def imported_log() -> Log:
    """A session of Claude Code: an edit, a failed test, a prohibition, a compaction, a result."""
    log = Log()
    log.user(
        "Mend the cache that forgets entries. CACHE_LIMIT is 4096, and the tests are in tests/test_cache.py."
    )
    log.reply(text("I look at the cache first."), id="m0", output=40, stop=None)
    log.reply(
        call("Read", "t0", file_path="/home/somebody/project/cache.py"), id="m0", output=60, stop="tool_use"
    )
    log.result("t0", "1\tclass Cache:\n2\t    def __init__(self):\n3\t        self.entries = {}\n")
    log.boundary()
    log.summary("The cache of cache.py forgets entries. The user wants it mended.")
    log.user("One more thing: never touch the public interface.")
    edit = {"file_path": "/home/somebody/project/cache.py"}
    edit |= {"old_string": "self.entries = {}", "new_string": "self.entries = OrderedDict()"}
    log.reply(call("Edit", "t1", **edit), id="m1", output=90, input=9_000, stop="tool_use")
    log.result("t1", "The file cache.py has been updated.")
    log.reply(call("Bash", "t2", command="pytest -q"), id="m2", output=20, input=9_500, stop="tool_use")
    log.result("t2", "AssertionError: cache.size == 2\n1 failed, 11 passed", error=True)
    log.reply(call("Bash", "t3", command="pytest -q"), id="m3", output=20, input=9_900, stop="tool_use")
    log.result("t3", "12 passed")
    log.reply(text("All tests pass; the cache keeps its entries."), id="m4", output=30, input=10_000)
    return log


def import_log(database: Path, folder: Path, run: FakeSession) -> None:
    """Import the log, and show its session in place of the run."""
    writer = Writer(database)
    importer = Importer(writer, pricing=dollar_a_token, now=lambda: run.now)
    try:
        importer.run([imported_log().write(folder / "logs")])
    finally:
        importer.close()
        writer.close()
    (run.id,) = run.connection.execute("SELECT id FROM sessions WHERE origin <> 'run'").fetchone()


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch, fixed_surroundings: None) -> None:
    """What the host has started: a shell that sleeps."""
    below = {7: ("bash", 1.0, 991), 8: ("sleep", 0.0, 7)}
    monkeypatch.setattr("watchkeeper_tui.reader._below", lambda pid: below)


@pytest.fixture
def scene(request: pytest.FixtureRequest, database: Path, tmp_path: Path) -> Iterator[Desk]:
    run = live_run(database)
    if request.param == "imported":
        import_log(database, tmp_path, run)
    yield Desk(database, run)
    run.connection.close()


def test_the_page_asks_twenty_questions_and_gives_at_most_five_keys() -> None:
    asked = rows()
    assert [number for number, *_ in asked] == list(range(1, 21)) == sorted(ANSWERS)
    assert all(len(keys) <= 5 for *_, keys in asked)


@pytest.mark.parametrize(
    ("scene", "number", "keys"),
    [
        pytest.param(
            scene,
            number,
            keys,
            id=f"{number}",
            marks=[pytest.mark.xfail(strict=True, reason="not answered yet", raises=AssertionError)]
            if number in OPEN
            else [],
        )
        for number, scene, _, keys in rows()
    ],
    indirect=["scene"],
)
async def test_the_answer_is_on_the_screen_within_five_keys(scene, number, keys):
    found = re.compile(ANSWERS[number], re.MULTILINE)
    async with scene.shown() as pilot:
        await until(pilot, lambda: "Plan" in text_of(pilot) and pilot.app.screen.is_current)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.05)
        await until(
            pilot, lambda: found.search(text_of(pilot)) is not None, seconds=0.3 if number in OPEN else 10.0
        )
