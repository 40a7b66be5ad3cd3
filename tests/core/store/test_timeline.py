"""A session's timeline: what each agent did when, read again and again while the session grows."""

from __future__ import annotations

from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.tui.fake_store import NOW, FakeSession, create, insert

from watchkeeper.store.statistics import Activity, MarkKind, Timeline, TimelineReader

DEEDS = (
    "model", "tool", "end", "unknown", "ask", "answer", "compact", "compacted", "park", "work", "fail",
    "kill", "rest",
)  # fmt: skip


def do(run: FakeSession, deed: str, agent: str, at: float) -> None:
    """One thing that a run writes. What a kill leaves is what nothing ends."""
    sql = run.connection.execute
    if deed == "model":
        run.call(agent, started_at=at - 2, latency_seconds=2, waited_seconds=1)
    elif deed == "tool":
        where = {
            "turn": int(at),
            "position": 0,
            "seq": 1,
            "tool_use_id": "t",
            "name": "bash",
            "idempotent": 0,
        }
        insert(
            run.connection, "tool_calls", session_id=run.id, agent_id=agent, status="running", started_at=at,
            **where,
        )  # fmt: skip
    elif deed == "end":
        sql(
            "UPDATE tool_calls SET status = 'done', ended_at = ? WHERE agent_id = ? AND status = 'running'",
            (at, agent),
        )
    elif deed == "unknown":
        sql("UPDATE tool_calls SET status = 'unknown' WHERE agent_id = ? AND status = 'running'", (agent,))
    elif deed == "ask":
        run.approval(agent, approval_id=f"q{at}")
        sql("UPDATE approvals SET created_at = ? WHERE id = ?", (at, f"q{at}"))
    elif deed == "answer":
        sql("UPDATE approvals SET decided_at = ? WHERE agent_id = ? AND decided_at IS NULL", (at, agent))
    elif deed == "compact":
        run.compaction(agent, status="running", requested_at=at, ended_at=None)
    elif deed == "compacted":
        sql("UPDATE compactions SET ended_at = ? WHERE agent_id = ? AND ended_at IS NULL", (at, agent))
        run.event("compaction.applied", agent, at=at)
    elif deed in ("park", "work", "fail"):
        state = {"park": "parked", "work": "working", "fail": "failed"}[deed]
        run.event(f"agent.{state}", agent, at=at, reason="usage limit")
    elif deed == "kill":
        run.event("host.started", at=at, resume=True)
    else:
        run.event("session.paused", at=at)


@example([("tool", "a1", False), ("unknown", "a1", True), ("compacted", "a1", False), ("kill", "a1", False)])
@settings(max_examples=40)
@given(
    deeds=st.lists(
        st.tuples(st.sampled_from(DEEDS), st.sampled_from(("planner1", "a1")), st.booleans()), max_size=30
    )
)
def test_reading_again_gives_what_a_first_reading_gives(tmp_path, deeds):
    path = tmp_path / "w.db"
    path.unlink(missing_ok=True)
    connection = create(path)
    run = FakeSession(connection)
    run.agent("planner1", "planner")
    run.agent("a1", "coder-1")
    reader = TimelineReader(connection, run.id)
    reader.read()
    for number, (deed, agent, looks) in enumerate(deeds):
        do(run, deed, agent, NOW + number)
        if looks:
            reader.read()
    seen, fresh = reader.read(), TimelineReader(connection, run.id).read()
    assert ordered(seen) == ordered(fresh)
    connection.close()
    for spans in seen.spans.values():
        assert all(span.ends is None or span.begins <= span.ends <= seen.ends for span in spans)


def ordered(timeline: Timeline) -> tuple[object, ...]:
    spans = {agent: sorted(map(repr, found)) for agent, found in timeline.spans.items() if found}
    return timeline.agents, spans, timeline.marks, timeline.begins, timeline.ends


def test_what_an_agent_did_is_told_by_kind_with_kills_and_resumes(tmp_path: Path) -> None:
    connection = create(tmp_path / "w.db")
    run = FakeSession(connection)
    run.agent("planner1", "planner")
    run.agent("a1", "coder-1")
    run.task("t1", "Port module 1", agent="a1")
    run.event("host.started", at=NOW)
    do(run, "model", "a1", NOW + 10)
    do(run, "tool", "a1", NOW + 12)
    do(run, "compact", "a1", NOW + 13)
    run.event("tool.started", "a1", at=NOW + 14)
    do(run, "kill", "", NOW + 50)
    do(run, "unknown", "a1", NOW + 50)
    do(run, "ask", "a1", NOW + 60)
    run.live("planner1", "slot", since=NOW + 61)
    run.agent("a2", "coder-2", status="done", ended_at=NOW + 20)
    run.live("a2", "working", since=NOW + 15)
    timeline = TimelineReader(connection, run.id).read(live=True)
    assert [(agent.label, agent.title, agent.depth) for agent in timeline.agents] == [
        ("planner", "", 0),
        ("coder-1 (explorer)", "Port module 1", 1),
        ("coder-2", "", 1),
    ]
    assert {(span.activity, span.begins - NOW, span.ends and span.ends - NOW) for span in timeline.spans["a1"]} == {
        (Activity.SLOT, 7, 8), (Activity.MODEL, 8, 10), (Activity.TOOL, 12, 14), (Activity.COMPACTION, 13, 14),
        (Activity.QUESTION, 60, None),
    }  # fmt: skip
    assert [(span.activity, span.ends) for span in timeline.spans["planner1"]] == [(Activity.SLOT, None)]
    assert [(mark.kind, mark.at - NOW) for mark in timeline.marks] == [
        (MarkKind.KILLED, 14),
        (MarkKind.RESUMED, 50),
    ]
    assert "a2" not in timeline.spans
    assert "planner1" not in TimelineReader(connection, run.id).read().spans
    connection.close()
