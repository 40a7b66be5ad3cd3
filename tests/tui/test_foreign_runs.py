"""Runs of other programs: looked at like our own, and not controlled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from watchkeeper.store.projection import SessionFacts
from watchkeeper_tui.actions import TABLE, Action
from watchkeeper_tui.requests import Target
from watchkeeper_tui.snapshot import SessionState, Snapshot

OURS = SessionFacts(
    id="s", goal="g", title=None, workspace="/w", model="m", origin="run", status="running", status_reason=None, created_at=0.0,
    last_active=0.0, ended_at=None, hosted_seconds=0.0, planner_agent_id=None, current_plan_id=None, event_seq=0, host_pid=None,
    host_name=None, input_tokens=0, output_tokens=0, cache_read_tokens=0, cache_write_tokens=0, cost_usd=None, unpriced_calls=0,
    model_calls=0, retries=0, errors=0,
)  # fmt: skip


@pytest.mark.parametrize("action", [each for each in TABLE if each.acts], ids=lambda action: action.id)
def test_every_key_that_controls_says_why_not_on_an_imported_run(action: Action) -> None:
    for state in (SessionState.LIVE, SessionState.DONE):
        target = Target(Snapshot(session=replace(OURS, origin="claude-code"), state=state))
        assert action.not_now(target) == "imported sessions are read-only (from Claude Code)"
    assert "read-only" not in action.not_now(Target(Snapshot(session=OURS, state=SessionState.LIVE)))
