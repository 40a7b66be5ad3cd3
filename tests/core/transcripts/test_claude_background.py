"""Commands of Claude Code in the background, and agents without a name: what they do is shown, rather than an id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.conftest import SESSION, Log, Store, call, text

ENDED = (
    "<task-notification>\n<task-id>{task}</task-id>\n<tool-use-id>{call}</tool-use-id>\n<status>{status}</status>\n"
    '<summary>Background command "Run the tests" {status}</summary>\n</task-notification>'
)
ROWS = "SELECT name, status FROM agents WHERE role = 'background command' ORDER BY name"


def _started(**about: Any) -> Log:
    log = Log()
    log.user("Test it")
    arguments = {
        "command": "npm test\n--all",
        "description": "Run the tests",
        "run_in_background": True,
    } | about
    log.reply(
        call("Bash", "t1", **{name: value for name, value in arguments.items() if value}),
        id="m1",
        stop="tool_use",
    )
    log.result(
        "t1",
        "Command running in background with ID: b1234abcd. Output is being written to: /x",
        toolUseResult={"stdout": "", "backgroundTaskId": "b1234abcd"},
    )
    return log


@pytest.mark.parametrize(
    ("status", "expected"),
    [("completed", "done"), ("failed", "failed"), ("killed", "cancelled"), (None, "working")],
)
def test_a_command_in_the_background_works_until_a_notification_tells_its_end(store, logs, status, expected):
    log = _started()
    if status is not None:
        log.user(ENDED.format(task="b1234abcd", call="t1", status=status))
    store.run(log.write(logs), live=True)
    assert store.all(ROWS) == [("Run the tests", expected)]
    assert (
        store.one("SELECT count(*) FROM agents WHERE role = 'background command' AND parent_agent_id IS NULL")
        == 0
    )


def test_a_command_has_its_first_words_for_a_name_where_nothing_describes_it(
    store: Store, logs: Path
) -> None:
    store.run(_started(description="").write(logs), live=True)
    assert store.all(ROWS) == [("npm test --all", "working")]


def test_what_ends_a_command_is_also_known_by_the_calls_that_ask_for_it_or_stop_it(store, logs):
    asked, stopped = _started(), _started()
    asked.reply(call("TaskOutput", "t2", task_id="b1234abcd"), id="m2", stop="tool_use")
    asked.result("t2", toolUseResult={"retrieval_status": "success", "task": {
        "task_id": "b1234abcd", "task_type": "local_bash", "status": "failed", "exitCode": 1}})  # fmt: skip
    store.run(asked.write(logs), live=True)
    assert store.all(ROWS) == [("Run the tests", "failed")]
    stopped.session = "1" + SESSION[1:]
    for each in stopped.records:
        each["sessionId"] = stopped.session
    stopped.reply(call("KillShell", "t2", shell_id="b1234abcd"), id="m2", stop="tool_use")
    stopped.result("t2", "Successfully killed shell")
    store.run(stopped.write(logs), live=True)
    assert store.all(ROWS) == [("Run the tests", "failed"), ("Run the tests", "cancelled")]


@pytest.mark.parametrize(
    "told", [{"backgroundTaskId": {"a": 1}}, {"backgroundTaskId": 5, "shellId": ["x"]}, "text", None]
)
def test_a_command_in_the_foreground_is_a_call_alone(store: Store, logs: Path, told: Any) -> None:
    log = Log()
    log.user("Test it")
    log.reply(call("Bash", "t1", command="npm test"), id="m1", stop="tool_use")
    log.result("t1", "41 passed", toolUseResult=told)
    assert not store.run(log.write(logs), live=True).left
    assert store.all(ROWS) == []


def test_an_agent_without_a_name_is_called_by_its_task_else_by_its_role_and_never_by_its_id(store, logs):
    log = Log()
    log.user("Begin")
    for number, prompt in enumerate(("Look for it", None)):
        data = {"type": "agent_progress", "agentId": f"a{number}23456789", "prompt": prompt}
        log.add("progress", parentToolUseID=f"t{number}", data=data)
    store.run(log.write(logs))
    names = "SELECT name FROM agents WHERE parent_agent_id IS NOT NULL ORDER BY name"
    assert store.all(names) == [("Look for it",), ("sub-agent",)]
    child = Log(isSidechain=True, agentId="a123456789")
    child.user("Look again")
    child.reply(text("Found."), id="m9")
    store.run(child.write(logs, f"{SESSION}/subagents/agent-a123456789.jsonl"))
    assert store.all(names) == [("Look again",), ("Look for it",)]
