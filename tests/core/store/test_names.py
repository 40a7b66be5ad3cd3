"""One name for a task and its agents, whatever was stored."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tui.fake_store import FakeSession, create, insert

from watchkeeper.records.errors import NotFound
from watchkeeper.store.agents import find_agent, load
from watchkeeper.store.driver import Queries
from watchkeeper.store.names import agent_label, attempt_name, described, task_name, with_role
from watchkeeper.store.snapshot import SessionSnapshotReader


@pytest.fixture
def run(tmp_path: Path) -> FakeSession:
    """A task in its second attempt; its agents have the names that an earlier release stored."""
    run = FakeSession(create(tmp_path / "wk.db"))
    run.agent("planner1", "planner", role="planner")
    run.agent("first234", "coder-1", role="coder", status="failed")
    run.agent("second23", "coder-2", role="coder", attempt=2)
    run.task("t1", "Fix the byte formatting", agent="second23", name="fix-bytes", role="coder", attempt=2)
    run.set_agent("first234", task_id="t1")
    return run


def test_agents_have_the_name_of_their_task_and_of_their_attempt(run: FakeSession) -> None:
    reads = Queries(run.connection)
    names = {}
    for agent_id in ("planner1", "first234", "second23"):
        agent = load(reads, agent_id)
        assert agent is not None
        names[agent_id] = agent.name
    assert names == {"planner1": "planner", "first234": "fix-bytes", "second23": "fix-bytes/2"}
    reading = SessionSnapshotReader(run.id).read(run.connection, run.now)
    assert reading is not None
    assert [agent.full_label for agent in reading.agents] == [
        "planner",
        "fix-bytes (coder)",
        "fix-bytes/2 (coder)",
    ]
    assert [task.label for task in reading.tasks] == ["fix-bytes"]


@pytest.mark.parametrize(
    ("name", "agent_id"),
    [("fix-bytes", "second23"), ("fix-bytes/2", "second23"), ("first234", "first234"), ("coder-1", "first234"),
     ("planner", "planner1"), ("first", "first234")],
)  # fmt: skip
def test_a_name_on_the_command_line_is_that_of_the_screen(run: FakeSession, name: str, agent_id: str) -> None:
    assert find_agent(Queries(run.connection), run.id, name) == agent_id


def test_an_unknown_name_lists_the_names_of_the_screen(run: FakeSession) -> None:
    with pytest.raises(NotFound, match="planner, fix-bytes, fix-bytes/2"):
        find_agent(Queries(run.connection), run.id, "nobody")


def test_imported_agents_and_to_dos_keep_what_they_have(tmp_path: Path) -> None:
    run = FakeSession(create(tmp_path / "wk.db"), origin="claude")
    run.agent("sub12345", "Explore the parser", role="agent")
    insert(
        run.connection, "tasks", id="i1", session_id=run.id, parent_plan_id="p", name="1", position=0, title="Read the log",
        instructions="", role="", status="pending", created_at=run.now,
    )  # fmt: skip
    reading = SessionSnapshotReader(run.id).read(run.connection, run.now)
    assert reading is not None
    assert [agent.full_label for agent in reading.agents] == ["Explore the parser"]
    assert [task.label for task in reading.tasks] == ["Read the log"]


def test_the_forms_of_a_name() -> None:
    assert [attempt_name("fix-bytes", each) for each in (1, 2, 11)] == [
        "fix-bytes",
        "fix-bytes/2",
        "fix-bytes/11",
    ]
    assert task_name("", "Fix it", "coder") == "Fix it"
    assert described("fix-bytes", "Fix the byte formatting") == "fix-bytes: Fix the byte formatting"
    assert described("fix-bytes", "fix-bytes") == described("fix-bytes", "") == "fix-bytes"
    assert agent_label("planner", "planner", None) == "planner"
    assert agent_label("coder", "coder", "t1") == "coder"
    assert with_role("a\x1b[31mb\nc", "co\u202eder") == "ab c (coder)"


@given(st.text(max_size=40), st.text(max_size=20))
def test_a_name_is_one_harmless_line(name: str, role: str) -> None:
    shown = with_role(name, role)
    assert not any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 for letter in shown)
