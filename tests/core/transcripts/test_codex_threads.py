"""Threads of Codex that spawn and fork others: one session, no work counted twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.codex_rollout import (
    CHILD,
    FORK,
    GRANDCHILD,
    OLD_TURN,
    ROOT,
    Rollout,
    spawned,
    spawned_tree,
)
from tests.core.transcripts.conftest import Store

from watchkeeper.transcripts.reading import SessionTail
from watchkeeper.transcripts.records import MAIN, ImportedMessage

AGENTS = "SELECT a.name, a.role, a.last_seq, a.output_tokens, p.name FROM agents a LEFT JOIN agents p ON p.id = a.parent_agent_id ORDER BY a.created_at"


@pytest.mark.parametrize(
    "copied", ["not at all", "as it was", "stamped anew", "without its header", "its header alone"]
)
@pytest.mark.parametrize("first", ["parent", "child"])
def test_what_a_spawned_thread_copies_of_its_parent_counts_once(store, logs, copied, first):
    root, child = spawned_tree(copied)
    paths = [root.write(logs), child.write(logs)]
    for path in paths if first == "parent" else reversed(paths):
        store.run(path)
    assert store.counts()["sessions"] == 1
    # The parent: 50 + 30 tokens out; the child: 9, and two messages of its own.
    assert sorted(store.all(AGENTS)) == [("Kepler", "explorer", 2, 9, "main"), ("main", "main", 4, 80, None)]
    row = store.one("SELECT input_tokens, cache_read_tokens, output_tokens, model_calls FROM sessions")
    assert tuple(row) == (1_000 + 1_000 + 500, 1_000 + 200, 89, 3)
    assert store.counts()["tool_calls"] == 1


def test_a_copied_history_without_dated_ids_is_told_by_its_time(store: Store, logs: Path) -> None:
    root = Rollout("parent").user("Mend the cache").says("a").tokens(1_000, 0, 50)
    child = Rollout("child", minute=5, **spawned("parent"))
    began = child.lines[0]["timestamp"]
    child.lines += [line | {"timestamp": began} for line in root.lines]
    child._total = [1_000, 0, 50]
    child.user("Look for it").says("Found.").tokens(700, 200, 9)
    for log in (root, child):
        log.write(logs)
    store.run(logs)
    assert store.one("SELECT output_tokens, model_calls FROM sessions") == (59, 2)
    assert sorted(row[2] for row in store.all(AGENTS)) == [2, 2]


def test_a_thread_that_a_person_forked_is_a_session_with_the_others_context_and_none_of_its_work(store, logs):
    root = (
        Rollout()
        .event("task_started", turn_id=OLD_TURN)
        .user("Mend the cache")
        .call("c1")
        .tokens(1_000, 0, 50)
        .output("c1")
    )
    fork = Rollout(FORK, minute=4, forked_from_id=ROOT)
    fork.lines += [line | {"timestamp": fork.lines[0]["timestamp"]} for line in root.lines]
    fork._total = [1_000, 0, 50]
    fork.event("task_started", turn_id=FORK.replace("bf20", "bf30")).user("Another way").says("Done.").tokens(
        900, 0, 7
    )
    root.write(logs)
    store.run(root.write(logs), fork.write(logs))
    rows = store.all(
        "SELECT s.output_tokens, s.model_calls, f.source, a.last_seq FROM sessions s LEFT JOIN sessions f ON"
        " f.id = s.forked_from JOIN agents a ON a.session_id = s.id ORDER BY s.created_at"
    )
    assert rows == [(50, 1, None, 3), (7, 1, f"codex:{ROOT}", 5)]
    assert store.counts()["tool_calls"] == 1


def test_what_an_agent_of_a_team_is_told_before_its_first_turn_is_its_own(store: Store, logs: Path) -> None:
    of_old = {"internal_chat_message_metadata_passthrough": {"turn_id": OLD_TURN}}
    child = Rollout(CHILD, minute=4, **spawned(ROOT)).event("task_started", turn_id=OLD_TURN)
    for said, about in (("Mend the cache", of_old), ("You are an agent in a team.", {})):
        role = "user" if about else "developer"
        child.item("message", role=role, content=[{"type": "input_text", "text": said}], **about)
    child.event("task_started", turn_id=CHILD.replace("ea60", "ea70")).says("Found.").tokens(10, 0, 2)
    for line in child.lines[:5]:
        line["timestamp"] = child.lines[0]["timestamp"]
    store.run(child.write(logs))
    said = [row[0] for row in store.all("SELECT content FROM messages ORDER BY seq")]
    assert len(said) == 2
    assert "an agent in a team" in said[0]


@pytest.mark.parametrize("named", [True, False])
def test_a_grandchild_stands_in_the_session_at_the_top(store: Store, logs: Path, named: bool) -> None:
    about: dict[str, Any] = {"session_id": ROOT} if named else {}
    Rollout().user("go").says("a").tokens(10, 0, 1).write(logs)
    Rollout(CHILD, minute=1, **spawned(ROOT), **about).user("x").says("b").tokens(10, 0, 2).write(logs)
    deep = Rollout(GRANDCHILD, minute=2, **spawned(CHILD, 2), **about).user("y").says("c").tokens(10, 0, 4)
    deep.write(logs, "2026/02/04")
    store.run(logs)
    assert store.counts()["sessions"] == 1
    assert [(row[3], row[4]) for row in store.all(AGENTS)] == [(1, None), (2, "main"), (4, "Kepler")]


def test_a_child_whose_parents_log_is_lost_is_kept_below_an_empty_agent(store: Store, logs: Path) -> None:
    store.run(Rollout(CHILD, **spawned(ROOT)).user("x").says("b").tokens(10, 0, 2).write(logs))
    assert sorted(store.all(AGENTS)) == [("Kepler", "explorer", 2, 2, "main"), ("main", "main", 0, 0, None)]
    assert store.one("SELECT source FROM sessions") == f"codex:{ROOT}"


def test_an_agent_whose_log_is_lost_stands_in_the_tree_with_how_it_ended(store: Store, logs: Path) -> None:
    log = spawned_tree("not at all")[0]
    log.event(
        "collab_waiting_end", sender_thread_id=ROOT, call_id="w", statuses={CHILD: {"errored": "no credit"}}
    )
    store.run(log.write(logs))
    rows = store.all("SELECT name, role, status, current_goal FROM agents WHERE parent_agent_id IS NOT NULL")
    assert rows == [("Kepler", "explorer", "failed", "Look for it")]


def test_threads_that_are_each_others_parents_stand_in_no_circle(store: Store, logs: Path) -> None:
    Rollout(CHILD, **spawned(GRANDCHILD, 2)).user("x").write(logs)
    Rollout(GRANDCHILD, **spawned(CHILD, 2)).user("y").write(logs)
    report = store.run(logs)
    assert report.lines == 6
    for agent, parent in store.all("SELECT id, parent_agent_id FROM agents"):
        assert agent != parent


def test_stray_files_beside_the_folders_of_months_and_days_hide_no_agents_log(logs: Path) -> None:
    path = Rollout(ROOT).user("Mend the cache").write(logs, "sessions/2026/02/03")
    child = Rollout(CHILD, minute=4, **spawned(ROOT)).user("Look for it")
    child.write(logs, "sessions/2026/02/04")
    for place in (
        "notes.txt",
        "2026/notes.txt",
        "2026/zz",
        "2026/02/notes.txt",
        "2026/02/zz",
        "2026/02/04/zz",
    ):
        (logs / "sessions" / place).write_text("mine\n")
    read = SessionTail("codex", path, ROOT).read()
    assert [each.agent for each in read if isinstance(each, ImportedMessage)] == [MAIN, CHILD]
