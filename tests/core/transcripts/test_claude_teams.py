"""Teammates of Claude Code: each waking begins a new log with all of the history before it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.core.transcripts.conftest import SESSION, Log, Store, call, text

PROMPT = "Mend the loss.\nOnly that."


def _lead() -> Log:
    log = Log()
    log.user("Mend it all")
    spawn = call("Agent", "t1", description="Mend the loss", team_name="all", prompt=PROMPT)
    spawn["input"]["name"] = "mender"
    log.reply(spawn, id="m1", stop="tool_use")
    tool_use_result = {
        "status": "teammate_spawned",
        "name": "mender",
        "teammate_id": "mender@all",
        "prompt": PROMPT,
    }
    log.result("t1", toolUseResult=tool_use_result)
    return log


def _woken(logs: Path, agent: str, times: int) -> None:
    """The log that the teammate begins when it is woken for the nth time."""
    log = Log(isSidechain=True, agentId=agent)
    log.user(
        f'<teammate-message teammate_id="team-lead" summary="Mend the loss">\n{PROMPT}\n</teammate-message>',
        uuid="w0",
    )
    for turn in range(times):
        log.reply(text(f"Mended {turn}."), id=f"w{turn}", output=5, uuid=f"w{turn}-reply")
        log.user(
            '<teammate-message teammate_id="team-lead">\nAnd now?\n</teammate-message>', uuid=f"w{turn}-next"
        )
    path = log.write(logs, f"{SESSION}/subagents/agent-{agent}.jsonl")
    path.with_suffix(".meta.json").write_text(json.dumps({"agentType": "mender"}))


def test_a_teammate_is_one_agent_however_often_it_was_woken(store: Store, logs: Path) -> None:
    _lead().write(logs)
    for agent, times in (("ab1", 1), ("aa2", 3), ("ac3", 2)):
        _woken(logs, agent, times)
    report = store.run(logs)
    assert report.raw.total() == 0
    agents = store.all(
        "SELECT name, role, last_seq, model_calls, output_tokens FROM agents WHERE parent_agent_id IS NOT"
        " NULL"
    )
    assert agents == [("mender: Mend the loss", "teammate", 7, 3, 15)]


def test_a_teammate_that_is_woken_again_goes_on_in_the_next_import(store: Store, logs: Path) -> None:
    _woken(logs, "ab1", 1)
    store.run(logs)
    _woken(logs, "ab0", 2)
    _lead().write(logs)
    store.run(logs)
    rows = store.all("SELECT name, last_seq, output_tokens FROM agents WHERE parent_agent_id IS NOT NULL")
    assert rows == [("mender: Mend the loss", 5, 10)]


def test_a_teammate_of_a_type_of_its_own_is_known_by_its_name(store: Store, logs: Path) -> None:
    _lead().write(logs)
    _woken(logs, "amender-0123456789abcdef", 1)
    meta = logs / SESSION / "subagents" / "agent-amender-0123456789abcdef.meta.json"
    told = {
        "agentType": "implement-deep",
        "name": "mender",
        "description": "Mend the loss",
        "taskKind": "in_process_teammate",
        "teamName": "all",
    }
    meta.write_text(json.dumps(told))
    store.run(logs)
    agents = store.all("SELECT name, role, last_seq FROM agents WHERE parent_agent_id IS NOT NULL")
    assert agents == [("mender: Mend the loss", "implement-deep", 3)]
