"""Workflows of Claude Code: a run is below the call that started it, its phases below the run, its agents below these.

The files come in any order, and each may be missing. The forms are those of public logs of 2.1.154 to 2.1.287.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.conftest import SESSION, Log, call, text

RUN = "wf_1a2b3c4d-0ff"
ENDED = "<task-notification>\n<task-id>{task}</task-id>\n<status>{status}</status>\n<summary>{summary}</summary>\n</task-notification>"
TREE = (
    "SELECT a.name, a.role, p.name, a.status FROM agents a JOIN agents p ON p.id = a.parent_agent_id ORDER BY"
    " p.name <> 'main', p.name <> 'audit', a.name <> 'audit', a.name"
)
WHOLE = [
    ("audit", "workflow run", "main", "done"),
    ("Find", "workflow phase", "audit", "done"),
    ("Verify", "workflow phase", "audit", "done"),
    ("find:a", "workflow-subagent", "Find", "done"),
    ("find:b", "workflow-subagent", "Find", "done"),
    ("verify:a", "workflow-subagent", "Verify", "done"),
]
AGENTS = {"a1": ("find:a", "Find"), "a2": ("find:b", "Find"), "a3": ("verify:a", "Verify")}


def _session(*, ended: str | None = "completed", launched: dict[str, Any] | None = None) -> Log:
    log = Log()
    log.user("Audit it")
    log.reply(
        call("Workflow", "t1", script="export const meta = { name: 'audit' }"), id="m1", stop="tool_use"
    )
    told = {
        "status": "async_launched", "taskType": "local_workflow", "taskId": "w1aaaaaaa", "runId": RUN,
        "workflowName": "audit", "summary": "Audit each part",
    }  # fmt: skip
    log.result("t1", "Workflow launched in background. Task ID: w1aaaaaaa", toolUseResult=launched or told)
    log.reply(text("It runs."), id="m2")
    log._second = 60
    if ended is not None:
        log.user(ENDED.format(task="w1aaaaaaa", status=ended, summary="Workflow audit ended"))
        log.reply(text("Audited."), id="m3")
    return log


def _folder(logs: Path) -> Path:
    folder = logs / SESSION / "subagents" / "workflows" / RUN
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _agent(logs: Path, agent: str, *, ends: bool = False, meta: dict[str, Any] | None = None) -> Path:
    label, phase = AGENTS[agent]
    log = Log(isSidechain=True, agentId=agent, attributionAgent="workflow-subagent")
    log._second = 10 * int(agent[1])
    log.user(f"Do {label}")
    log.reply(call("Read", f"r{agent}"), id=f"m{agent}", output=20, stop="tool_use")
    if ends:
        log.reply(text("Done."), id=f"n{agent}", output=5)
    path = _folder(logs) / f"agent-{agent}.jsonl"
    path.write_bytes(log.bytes)
    told = {"agentType": "workflow-subagent", "description": label, "workflowPhase": phase, "spawnDepth": 1}
    path.with_suffix(".meta.json").write_text(json.dumps(told if meta is None else meta))
    return path


def _journal(logs: Path, *records: dict[str, Any]) -> Path:
    path = _folder(logs) / "journal.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def _started(agent: str) -> dict[str, Any]:
    label, phase = AGENTS[agent]
    return {"type": "started", "key": f"v2:{agent}", "agentId": agent, "label": label, "phase": phase}


def _result(agent: str, result: Any = "fine") -> dict[str, Any]:
    return {"type": "result", "key": f"v2:{agent}", "agentId": agent, "result": result}


def _whole_journal(logs: Path) -> Path:
    return _journal(logs, {"type": "launched"}, *map(_started, AGENTS), *map(_result, AGENTS))


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
@pytest.mark.parametrize("live", [False, True])
def test_a_run_its_phases_and_its_agents_are_one_tree_in_whatever_order_their_files_come(
    store, logs, order, live
):
    steps = [
        lambda: [_session().write(logs)],
        lambda: [_agent(logs, agent) for agent in AGENTS],
        lambda: [_whole_journal(logs)],
    ]
    for step in order:
        store.run(*steps[step](), live=live)
    assert store.all(TREE) == WHOLE
    store.assert_a_tree()
    goal = store.one("SELECT current_goal FROM agents WHERE role = 'workflow run'")
    assert goal == "Audit each part"


def test_a_run_works_as_long_as_its_end_is_not_reported_and_its_phases_as_their_agents_do(store, logs):
    path = _session(ended=None).write(logs)
    store.run(path, live=True)
    assert store.all(TREE) == [("audit", "workflow run", "main", "working")]
    _agent(logs, "a1", ends=True)
    journal = _journal(logs, {"type": "launched"}, _started("a1"), _started("a2"))
    store.run(logs, live=True)
    assert dict(store.all("SELECT name, status FROM agents WHERE parent_agent_id IS NOT NULL")) == {
        "audit": "working", "Find": "working", "find:a": "done", "find:b": "working",
    }  # fmt: skip
    with journal.open("a") as file:
        file.write(json.dumps(_result("a2")) + "\n")
    store.run(logs, live=True)
    assert dict(store.all("SELECT name, status FROM agents WHERE parent_agent_id IS NOT NULL")) == {
        "audit": "working", "Find": "done", "find:a": "done", "find:b": "done",
    }  # fmt: skip
    with journal.open("a") as file:
        file.write(json.dumps(_started("a3")) + "\n")
    _session().write(logs)
    store.run(logs, live=True)
    states = dict(store.all("SELECT name, status FROM agents WHERE parent_agent_id IS NOT NULL"))
    assert (states["audit"], states["verify:a"], states["Verify"]) == ("done", "cancelled", "cancelled")


@pytest.mark.parametrize(
    ("status", "expected"), [("completed", "done"), ("failed", "failed"), ("killed", "cancelled")]
)
def test_a_notification_tells_how_a_run_ended(store, logs, status, expected):
    store.run(_session(ended=status).write(logs))
    reason = None if expected == "done" else "Workflow audit ended"
    rows = store.all("SELECT name, status, status_reason FROM agents WHERE role = 'workflow run'")
    assert rows == [("audit", expected, reason)]


def test_an_end_that_no_log_tells_is_unknown(store, logs):
    _agent(logs, "a1")
    store.run(_session(ended=None).write(logs), logs)
    rows = store.all("SELECT name, status, status_reason FROM agents WHERE parent_agent_id IS NOT NULL")
    unknown = ("cancelled", "the log has no result for it")
    assert sorted(rows) == [("Find", *unknown), ("audit", *unknown), ("find:a", *unknown)]


def test_an_agent_that_returned_nothing_has_failed_and_its_phase_with_it(store, logs):
    for agent in ("a1", "a2"):
        _agent(logs, agent)
    _journal(logs, _started("a1"), _started("a2"), _result("a1", None), _result("a2", {"ok": True}))
    store.run(_session().write(logs), logs)
    rows = store.all(
        "SELECT name, status, status_reason FROM agents WHERE parent_agent_id IS NOT NULL ORDER BY name"
    )
    assert rows == [
        ("Find", "failed", "1 of 2 agents failed"),
        ("audit", "done", None),
        ("find:a", "failed", "it returned nothing to its workflow"),
        ("find:b", "done", None),
    ]


SUMMARY: dict[str, Any] = {
    "runId": RUN, "taskId": "w1aaaaaaa", "timestamp": "2026-02-03T04:00:59.000Z", "startTime": 1770091204000,
    "workflowName": "audit", "summary": "Audit each part", "status": "completed", "durationMs": 55000,
    "phases": [{"title": "Find"}, {"title": "Verify"}], "script": "export const meta = {}",
    "workflowProgress": [
        {"type": "workflow_phase", "index": 1, "title": "Find"},
        {"type": "workflow_phase", "index": 2, "title": "Verify"},
        {"type": "workflow_agent", "index": 1, "label": "find:a", "phaseIndex": 1, "phaseTitle": "Find", "agentId": "a1",
         "state": "done", "tokens": 3000, "toolCalls": 2, "durationMs": 9000},
        {"type": "workflow_agent", "index": 2, "label": "find:b", "phaseIndex": 1, "agentId": "a2", "state": "error",
         "error": "rate limited"},
        {"type": "workflow_agent", "index": 3, "label": "verify:a", "phaseIndex": 2, "agentId": "a3", "state": "done"},
        {"type": "workflow_agent", "index": 4, "label": "never began", "phaseIndex": 2, "state": "queued"},
    ],
}  # fmt: skip


def _summary(logs: Path, **about: Any) -> Path:
    path = logs / SESSION / "workflows" / f"{RUN}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(SUMMARY | about, indent=1))
    return path


@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_the_summary_of_a_run_names_what_earlier_versions_name_nowhere_else(store, logs, order):
    steps = [
        lambda: [_session().write(logs)],
        lambda: [_agent(logs, agent, meta={"agentType": "workflow-subagent"}) for agent in AGENTS],
        lambda: [_summary(logs)],
    ]
    for step in order:
        store.run(*steps[step]())
    states = {"Find": "failed", "find:b": "failed"}
    assert store.all(TREE) == [(*row[:3], states.get(row[0], "done")) for row in WHOLE]
    assert store.one("SELECT status_reason FROM agents WHERE name = 'find:b'") == "rate limited"


def test_a_summary_that_is_found_with_the_logs_is_read_once_and_again_when_it_changes(store, logs):
    path = _summary(logs)
    path.write_text(path.read_text()[:200])
    assert dict(store.run(logs).raw) == {("workflow", "incomplete document"): 1}
    assert store.run(logs).unchanged == 1
    _summary(logs)
    store.run(logs)
    assert store.one("SELECT name, status FROM agents WHERE role = 'workflow run'") == ("audit", "done")
    assert store.one("SELECT status_reason FROM agents WHERE name = 'find:a'").startswith(
        "its own log is not here; its call reported 3,000"
    )


def test_a_run_and_its_phases_are_no_agents_whose_logs_are_missing(store, logs):
    from watchkeeper.store.driver import Queries
    from watchkeeper.store.projection import counted_session

    for agent in AGENTS:
        _agent(logs, agent)
    store.run(_session().write(logs), _whole_journal(logs), logs)
    session = counted_session(Queries(store._connection), store.one("SELECT id FROM sessions"))
    assert session is not None
    assert (session.agents, session.missing_logs, session.is_partial) == (4, 0, False)


def test_the_text_of_the_result_names_the_run_where_its_own_form_is_lost(store, logs):
    log = Log()
    log.user("Audit it")
    log.reply(call("Workflow", "t1", scriptPath="/w/flows/audit.js"), id="m1", stop="tool_use")
    log.result("t1", f"Workflow launched in background.\nTranscript dir: /x/subagents/workflows/{RUN}")
    _agent(logs, "a1", ends=True)
    store.run(log.write(logs), logs)
    assert store.all(TREE)[:2] == [
        ("audit", "workflow run", "main", "cancelled"),
        ("Find", "workflow phase", "audit", "done"),
    ]


def test_an_agent_that_an_agent_of_a_run_started_is_below_that_one(store, logs):
    _agent(logs, "a1")
    child = Log(isSidechain=True, agentId="a9")
    child.user("Look closer")
    child.reply(text("Looked."), id="m9")
    path = _folder(logs) / "agent-a9.jsonl"
    path.write_bytes(child.bytes)
    told = {"agentType": "Explore", "description": "Look closer", "parentAgentId": "a1", "spawnDepth": 2}
    path.with_suffix(".meta.json").write_text(json.dumps(told))
    store.run(_session().write(logs), logs)
    assert ("Look closer", "Explore", "find:a", "done") in store.all(TREE)


HOSTILE = [
    {"type": "started"}, {"type": "started", "agentId": 7, "label": ["x"], "phase": {"a": 1}},
    {"type": "started", "agentId": "a1", "label": None, "phase": 5}, {"type": "result", "agentId": {"a": 1}, "result": 1},
    {"type": "result", "agentId": "", "result": None}, {"type": "launched", "phase": [1]}, {"type": ["started"]},
]  # fmt: skip


def test_hostile_values_and_cut_lines_lose_nothing_else(store, logs):
    _agent(
        logs, "a2", meta={"agentType": ["x"], "description": 5, "workflowPhase": {"a": 1}, "parentAgentId": 3}
    )
    journal = _journal(logs, *HOSTILE, _started("a2"))
    with journal.open("a") as file:
        file.write(json.dumps(_result("a2"))[:30])
    launched = {"status": ["x"], "runId": {"a": 1}, "taskId": 5, "workflowName": [], "taskType": 7}
    hostile = [None, 5, {"type": "workflow_agent", "agentId": 5}, {"type": "workflow_agent", "agentId": "a3", "phaseIndex": []},
               {"type": "workflow_phase", "index": {}, "title": 7}]  # fmt: skip
    _summary(
        logs,
        workflowProgress=hostile,
        status=["x"],
        startTime="soon",
        timestamp=True,
        workflowName=9,
        error={},
    )
    report = store.run(_session(launched=launched, ended=None).write(logs), logs)
    assert not report.left
    store.assert_a_tree()
    assert ("find:b", "workflow-subagent", "Find", "cancelled") in store.all(TREE)
    with journal.open("a") as file:
        file.write(json.dumps(_result("a2"))[30:] + "\n")
    store.run(logs)
    assert store.one("SELECT status FROM agents WHERE name = 'find:b'") == "done"


def test_a_type_of_agent_that_is_called_like_a_run_is_an_agent(store, logs):
    log = Log()
    log.user("Begin")
    log.reply(call("Agent", "t1", prompt="Go", description="Part", subagent_type="workflow run"), id="m1")
    log.result("t1", toolUseResult={"status": "completed", "agentId": "a1"})
    store.run(log.write(logs))
    assert store.all(TREE) == [("Part", "workflow run agent", "main", "done")]
