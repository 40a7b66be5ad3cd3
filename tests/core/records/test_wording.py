"""Words that every face of the program puts in the same way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.records.text import countdown, event_text, plural, subject_name, utc_text


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 errors"), (1, "1 error"), (2, "2 errors"), (1_200, "1,200 errors")]
)
def test_one_is_told_without_an_s(count: int, told: str) -> None:
    assert plural(count, "error") == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(4323, "1:12:03"), (59.2, "0:01:00"), (90_061, "1 d 1:01:01"), (0, "0:00:00"), (-5, "0:00:00")],
)
def test_a_countdown_rounds_up_and_never_goes_below_nothing(seconds: float, told: str) -> None:
    assert countdown(seconds) == told


def test_a_moment_for_every_reader_is_in_utc() -> None:
    assert utc_text(1e9) == "2001-09-09 01:46 UTC"


DIGEST = "artifact://sha256/" + "e9122a112dd23782" * 4
EVENTS: list[tuple[str, dict[str, Any], str]] = [
    ("task.done", {"title": "Write it", "reason": None, "agent": "57tm26vr", "artifacts": 4}, "done “Write it” · 4 artifacts"),
    ("task.done", {"name": "write-it", "title": "Write it", "artifacts": 1}, "done write-it · 1 artifact"),
    ("task.running", {"title": "Write it", "agent": "57tm26vr", "attempt": 2}, "running “Write it”"),
    ("inbox.delivered", {"items": ["task_done", "task_failed"], "titles": ["A", "B"]}, "notified: ✓ A done, ✗ B failed"),
    ("inbox.delivered", {"items": ["task_done"], "names": ["write-it"]}, "notified: ✓ write-it done"),
    ("inbox.delivered", {"items": ["task_done", "task_done", "steer"]}, "notified: task done ×2, message from a person"),
    ("plan.revised", {"plan": "792bjidq", "revision": 2, "reason": "split", "tasks": 3}, "revision 2: split (3 tasks)"),
    ("artifact.saved", {"name": "a.md", "ref": DIGEST, "bytes": 5154}, "saved a.md (5,154 bytes)"),
    ("tool.done", {"tool": "save_artifact", "preview": f'{{"ref": "{DIGEST}", "name": "a.md", "bytes": 5}}'}, "save_artifact → a.md, 5 bytes"),
    ("tool.pending", {"tool": "read", "call": 3, "reason": "disk full", "wait_seconds": 5}, "read waiting: disk full"),
    ("host.warning", {"text": "two agents write a.py"}, "warning: two agents write a.py"),
    ("host.started", {"resume": True, "epoch": 2}, "started and resumed the session"),
    ("agent.created", {"name": "w-1", "role": "writer", "model": "anthropic/claude-opus-4-1-20250805", "attempt": 2},
     "created as writer on opus-4-1, attempt 2"),
    ("agent.interrupted", {"error": "turn aborted"}, "interrupted — turn aborted"),
    ("session.carried", {"session": "abcd2345", "tasks": 1, "facts": 2, "brief": DIGEST}, "continues session abcd2345: 1 task, 2 facts"),
    ("compaction.applied", {"compaction": 5, "tokens_before": 171_000, "tokens_after": 38_000, "messages_removed": 2, "high_water": 7},
     "applied 171k → 38k -78% · 2 messages replaced"),
    ("compaction.started", {"compaction": 5, "trigger": "observer", "high_water": 7, "tokens_before": 171_000}, "observer reading up to #7"),
    ("compaction.prepared", {"compaction": 5, "trigger": "observer", "high_water": 7}, "observed up to #7"),
    ("compaction.applied", {"trigger": "observer", "tokens_before": 171_000, "tokens_after": 38_000, "messages_removed": 2, "reason": "activation"},
     "activated 171k → 38k -78% · 2 messages replaced"),
    ("compaction.applied", {"trigger": "reflector", "tokens_before": 171_000, "tokens_after": 38_000, "messages_removed": 0, "reason": "reflection"},
     "consolidated the log 171k → 38k -78%"),
    ("compaction.skipped", {"trigger": "observer", "tokens_before": 9, "tokens_after": None, "reason": "the agent finished"},
     "observer skipped — the agent finished"),
    ("approval.asked", {"approval": "q234", "tool": "bash", "question": "bash ls"}, "wants to run bash: ls"),
    ("grant.added", {"grant": 2, "tool": "bash", "pattern": "git *", "by": "you"}, "git *: runs without approval"),
    ("budget.set", {"budget": "usd", "amount": 5.0}, "set to $5.00"),
    ("budget.set", {"budget": "turns", "amount": None}, "no limit on turns"),
    ("worktree.ready", {"branch": "wk/a", "folder": "/tmp/x", "commit": "e9122a112dd2", "uncommitted": 0}, "worktree ready, on branch wk/a"),
    ("worktree.changed", {"files": 1}, "1 file changed"),
    ("program.opened", {"program": "codex", "version": "0.5", "program_session": "0199a7f2-3c1e-7a40", "resumed": False},
     "codex 0.5 started session 0199a7f2"),
    ("program.child_started", {"child": "0199a7f2-3c1e-7a40", "title": ""}, "sub-agent started: 0199a7f2"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "data", "text"), EVENTS)
def test_an_event_is_one_line_for_people_without_ids_and_digests(kind, data, text):
    assert event_text(kind, data) == text


@given(
    st.sampled_from([*(kind for kind, _, _ in EVENTS), "session.forked", "memory.pinned", "agent.parked", "new.kind"]),
    st.dictionaries(
        st.sampled_from([*{key for _, data, _ in EVENTS for key in data}, "messages", "until", "text"]),
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=9)
        | st.lists(st.integers() | st.text(max_size=3), max_size=3) | st.dictionaries(st.text(max_size=3), st.none(), max_size=2),
        max_size=5,
    ),
)  # fmt: skip
def test_an_event_of_any_shape_is_put_into_words(kind: str, data: dict[str, Any]) -> None:
    assert isinstance(event_text(kind, data), str)
    assert len(subject_name(kind)) <= 8
