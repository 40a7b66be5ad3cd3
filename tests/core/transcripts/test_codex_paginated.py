"""Codex's later logs (`history_mode: paginated`): completed items in place of the earlier events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.codex_rollout import CHILD, ROOT, Rollout
from tests.core.transcripts.conftest import Store

AGENTS = "SELECT name, status, current_goal FROM agents WHERE parent_agent_id IS NOT NULL"


def _completed(log: Rollout, item: str, /, **about: Any) -> Rollout:
    return log.event(
        "item_completed", thread_id=ROOT, turn_id="t", item={"type": item, **about}, completed_at_ms=1
    )


def _spawning() -> Rollout:
    log = Rollout(history_mode="paginated").user("Mend the cache")
    return log.call("s1", name="spawn_agent", message="Look for it", task_name="looker")


@pytest.mark.parametrize(
    ("kind", "status"),
    [(None, "cancelled"), ("completed", "done"), ("interrupted", "cancelled"), ("errored", "failed")],
)
def test_an_agent_whose_log_is_lost_is_known_by_its_activity(store, logs, kind, status):
    log = _completed(
        _spawning(),
        "SubAgentActivity",
        id="s1",
        kind="started",
        agent_thread_id=CHILD,
        agent_path="/root/looker",
    )
    if kind is not None:
        _completed(
            log, "SubAgentActivity", id="e", kind=kind, agent_thread_id=CHILD, agent_path="/root/looker"
        )
    store.run(log.write(logs))
    assert store.all(AGENTS) == [("/root/looker", status, "Look for it")]


def test_an_agent_that_a_collaboration_call_spawned_is_known_by_it(store: Store, logs: Path) -> None:
    about = {
        "receiver_thread_ids": [CHILD],
        "prompt": "Look for it",
        "agents_states": {CHILD: {"status": "errored"}},
    }
    store.run(
        _completed(_spawning(), "CollabAgentToolCall", id="s1", tool="spawn_agent", **about).write(logs)
    )
    assert store.all(AGENTS) == [("looker", "failed", "Look for it")]


def test_a_call_that_an_item_tells_to_have_failed_is_an_error(store: Store, logs: Path) -> None:
    log = Rollout().call("c1", name="search")
    _completed(
        log, "McpToolCall", id="c1", server="s", tool="search", status="failed", error={"message": "no"}
    ).output("c1", "no")
    log.call("c2", name="search")
    _completed(log, "McpToolCall", id="c2", server="s", tool="search", status="completed").output("c2")
    store.run(log.write(logs))
    assert store.all("SELECT status FROM tool_calls ORDER BY id") == [("error",), ("done",)]


def test_what_agents_tell_each_other_is_heard_once(store: Store, logs: Path) -> None:
    said = {"author": "/root", "recipient": "/root/looker", "trigger_turn": True}
    log = Rollout().add("inter_agent_communication", {**said, "content": "Look again"}).says("a")
    log.add("inter_agent_communication", {**said, "encrypted_content": "gAAA"})
    log.item("agent_message", id="m1", author="/root", content=[{"type": "input_text", "text": "Once"}])
    log.add("inter_agent_communication", {**said, "id": "m1", "content": "Once"})
    store.run(log.write(logs))
    heard = store.all(
        "SELECT json_extract(content, '$[0].text') FROM messages WHERE role = 'user' ORDER BY seq"
    )
    assert heard == [("Look again",), ("[encrypted]",), ("Once",)]


def test_a_prompt_is_told_from_what_the_program_adds_by_the_kinds_of_its_parts(store, logs):
    log = Rollout()
    for text, kind in (
        ("Some news of the place.", "environments.environment_context"),
        ("# AGENTS.md instructions are wrong", "user.text"),
    ):
        passed = {"content_item_kinds": [kind]}
        log.item("message", role="user", content=[{"type": "input_text", "text": text}],
                 internal_chat_message_metadata_passthrough=passed)  # fmt: skip
    store.run(log.write(logs))
    assert store.one("SELECT goal FROM sessions") == "# AGENTS.md instructions are wrong"


@pytest.mark.parametrize("source", ["guardian_review", "subagent"])
def test_a_thread_that_the_program_started_by_itself_stands_below_its_session(store, logs, source):
    Rollout().user("Mend the cache").says("a").tokens(10, 0, 1).write(logs)
    about = {"source": {"subagent": {"other": "guardian"}}, "thread_source": source, "session_id": ROOT}
    Rollout(CHILD, minute=1, **about).user("May it?").says("Yes.").tokens(5, 0, 2).write(logs)
    store.run(logs)
    assert store.all("SELECT role, output_tokens FROM agents ORDER BY created_at") == [
        ("main", 1),
        ("guardian", 2),
    ]
    assert store.one("SELECT count(*) FROM sessions") == 1
