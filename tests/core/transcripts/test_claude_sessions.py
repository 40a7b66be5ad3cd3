"""What a log of Claude Code becomes: agents, tool calls, model calls, plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.core.transcripts.conftest import Log, Store, call, text

from watchkeeper.memory.words import spoken


def test_a_session_has_its_folder_goal_title_and_times(store: Store, logs: Path) -> None:
    log = Log()
    log.user("<command-name>/clear</command-name>")
    log.user("Mend the cache")
    log.reply(text("Done."), id="msg_1")
    log.records.append({"type": "ai-title", "sessionId": log.session, "aiTitle": "Cache mended"})
    store.run(log.write(logs))
    row = store.one(
        "SELECT goal, title, workspace, origin, source, status, model, created_at, last_active FROM sessions"
    )
    assert tuple(row) == (
        "Mend the cache", "Cache mended", "/home/somebody/project", "claude-code", f"claude-code:{log.session}", "done",
        "anthropic/claude-opus-4-6", 1770091201.0, 1770091203.0,
    )  # fmt: skip


def test_usage_counts_once_for_each_message_and_request_with_the_most_output(store, logs):
    log = Log()
    log.user("go")
    # One reply in three records: 3 + 40 + 100 * 0.1 + 20 = 73 dollars at a dollar a token.
    log.reply(text("a"), id="msg_1", input=3, output=1, read=100, write=20, stop=None)
    log.reply(
        call("Read", "t1", file_path="x"), id="msg_1", input=3, output=40, read=100, write=20, stop="tool_use"
    )
    log.reply(call("Read", "t2", file_path="y"), id="msg_1", input=3, output=1, read=100, write=20, stop=None)
    # The same message by another request is another call: 3 + 7 = 10.
    log.reply(text("b"), id="msg_1", request="req_other", output=7)
    store.run(log.write(logs))
    assert store.all(
        "SELECT input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd FROM model_calls"
    ) == [(3, 40, 100, 20, 73.0), (3, 7, 0, 0, 10.0)]
    for table in ("sessions", "agents"):
        row = store.one(
            "SELECT model_calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,"
            f" cost_usd FROM {table}"
        )
        assert tuple(row) == (2, 6, 47, 100, 20, 83.0)


def test_a_figure_taken_before_the_reply_ended_is_an_estimate(store: Store, logs: Path) -> None:
    log = Log()
    log.reply(text("a"), id="msg_1", stop=None)
    log.reply(text("b"), id="msg_2", stop="end_turn")
    log.reply(text("c"), id="msg_3", model="unheard-of")
    store.run(log.write(logs))
    assert store.all("SELECT usage_exact, price_status FROM model_calls ORDER BY id") == [
        (0, "estimated"),
        (1, "exact"),
        (1, "unpriced"),
    ]
    assert store.one("SELECT unpriced_calls FROM sessions") == 1


def test_tool_calls_are_paired_with_their_results(store: Store, logs: Path) -> None:
    log = Log()
    log.reply(call("Bash", "t1", command="ls"), id="msg_1")
    log.reply(call("Bash", "t2", command="rm"), id="msg_1")
    log.result("t2", "The user doesn't want to proceed with this tool use.", error=True)
    log.result("t1")
    log.reply(call("Edit", "t3"), id="msg_2")
    log.result("t3", "no such file", error=True)
    log.reply(call("Edit", "t4"), id="msg_3")
    store.run(log.write(logs))
    assert store.all(
        "SELECT tool_use_id, turn, position, status, is_error, seq, result_seq FROM tool_calls ORDER BY id"
    ) == [
        ("t1", 1, 0, "done", 0, 1, 4),
        ("t2", 1, 1, "denied", 1, 2, 3),
        ("t3", 2, 0, "error", 1, 5, 6),
        ("t4", 3, 0, "unknown", 0, 7, None),
    ]


def _child(session: str, agent: str, *, said: str = "Looked.", tokens: int = 5) -> Log:
    log = Log(session, isSidechain=True, agentId=agent)
    log.user("Look for the cache", uuid=f"{agent}-0", parent=None)
    log.reply(text(said), id=f"msg_{agent}", output=tokens, uuid=f"{agent}-1")
    return log


def _parent(agent: str) -> Log:
    log = Log()
    log.user("Mend the cache")
    log.reply(
        call("Task", "t1", prompt="Look for the cache", description="Find it", subagent_type="Explore"),
        id="msg_1",
    )
    tool_use_result = {"status": "completed", "agentId": agent, "prompt": "Look for the cache"}
    log.result("t1", "Looked.", toolUseResult=tool_use_result)
    return log


AGENTS = "SELECT a.name, a.role, a.status, a.last_seq, a.output_tokens, p.name FROM agents a LEFT JOIN agents p ON p.id = a.parent_agent_id ORDER BY a.last_seq DESC"


@pytest.mark.parametrize("layout", ["folder", "sibling", "inline"])
def test_sub_agents_stand_below_the_agent_that_started_them_in_every_layout(store, logs, layout):
    parent, child = _parent("abc123"), _child(Log().session, "abc123")
    if layout == "inline":
        for record in child.records:
            del record["agentId"]
        del parent.records[2]["toolUseResult"]["agentId"]
        parent.records[2:2] = child.records
        store.run(parent.write(logs))
    else:
        parent.write(logs)
        child.write(
            logs,
            f"{parent.session}/subagents/agent-abc123.jsonl" if layout == "folder" else "agent-abc123.jsonl",
        )
        store.run(logs)
    assert store.counts()["sessions"] == 1
    assert store.all(AGENTS) == [
        ("main", "main", "done", 3, 10, None),
        ("Find it", "Explore", "done", 2, 5, "main"),
    ]
    assert store.one("SELECT output_tokens FROM sessions") == 15


@pytest.mark.parametrize(
    "joined", ["by its call's result", "by progress before there is a result", "by the file beside its log"]
)
def test_a_child_is_joined_to_what_started_it_whichever_comes_first(store, logs, joined):
    path = _child(Log().session, "abc123").write(logs, f"{Log().session}/subagents/agent-abc123.jsonl")
    if joined == "by the file beside its log":
        about = {"agentType": "Explore", "description": "Find it", "spawnDepth": 1}
        path.with_suffix(".meta.json").write_text(json.dumps(about))
    else:
        store.run(path)
        assert store.all(AGENTS)[0] == ("Look for the cache", "agent", "done", 2, 5, "main")
        parent = _parent("abc123")
        if joined == "by progress before there is a result":
            del parent.records[2]
            data = {"type": "agent_progress", "agentId": "abc123", "prompt": "…"}
            parent.add("progress", parentToolUseID="t1", toolUseID="agent_msg_1", data=data)
        parent.write(logs)
    store.run(logs)
    assert ("Find it", "Explore", "done", 2, 5, "main") in store.all(AGENTS)


def test_an_agent_without_a_log_of_its_own_stands_in_the_tree(store: Store, logs: Path) -> None:
    store.run(_parent("abc123").write(logs))
    assert ("Find it", "Explore", "done", 0, 0, "main") in store.all(AGENTS)


def test_agents_that_are_each_others_parents_are_kept_and_stand_in_no_circle(store, logs):
    for agent, other in (("aaa", "bbb"), ("bbb", "aaa")):
        log = _child(Log().session, agent)
        log.reply(
            call("Task", f"t{agent}", prompt="x", description=other), id=f"msg_t{agent}", uuid=f"{agent}-2"
        )
        log.result(f"t{agent}", toolUseResult={"agentId": other, "status": "completed"}, uuid=f"{agent}-3")
        log.write(logs, f"{log.session}/subagents/agent-{agent}.jsonl")
    store.run(logs)
    store.assert_a_tree()
    assert store.counts()["agents"] == 3


def test_to_do_lists_become_tasks_with_their_history(store: Store, logs: Path) -> None:
    log = Log()
    for place, todos in enumerate((["in_progress", "pending"], ["completed", "in_progress"], ["completed"])):
        items = [
            {"content": name, "status": status, "activeForm": "…"}
            for name, status in zip("ab", todos, strict=False)
        ]
        log.reply(call("TodoWrite", f"t{place}", todos=items), id=f"msg_{place}")
        log.result(f"t{place}")
    store.run(log.write(logs))
    assert store.all("SELECT title, position, status, started_at, ended_at FROM tasks ORDER BY position") == [
        ("a", 0, "done", 1770091201.0, 1770091203.0),
        ("b", 1, "dropped", 1770091203.0, 1770091205.0),
    ]
    assert store.plan_versions() == [
        [("a", "running"), ("b", "pending")],
        [("a", "done"), ("b", "running")],
        [("a", "done"), ("b", "dropped")],
    ]
    assert store.one("SELECT current_plan_id = planner_agent_id FROM sessions") == 1


def test_created_tasks_take_the_ids_of_their_results_and_are_updated_by_them(store, logs):
    log = Log()
    log.reply(
        call("TaskCreate", "t1", subject="Read", description="all of it"),
        call("TaskCreate", "t2", subject="Write"),
        id="msg_1",
    )
    log.result(
        "t1", "Task #1 created successfully: Read", toolUseResult={"task": {"id": "1", "subject": "Read"}}
    )
    log.result("t2", "Task #2 created successfully: Write")
    log.reply(
        call("TaskUpdate", "t3", taskId="2", addBlockedBy=["1"]),
        call("TaskUpdate", "t4", taskId="1", status="completed"),
        id="msg_2",
    )
    log.reply(call("TaskUpdate", "t5", taskId="2", status="deleted"), id="msg_3")
    for id in ("t3", "t4", "t5"):
        log.result(id, "Updated task", toolUseResult={"success": True})
    store.run(log.write(logs))
    assert store.all("SELECT title, instructions, status FROM tasks ORDER BY position") == [
        ("Read", "all of it", "done"),
        ("Write", "", "dropped"),
    ]
    assert store.all(
        "SELECT t.title, n.title FROM task_dependencies d JOIN tasks t ON t.id = d.task_id JOIN tasks n ON"
        " n.id = d.depends_on"
    ) == [("Write", "Read")]
    assert store.counts()["plan_revisions"] == 5


def test_an_update_of_a_task_that_there_is_not_makes_none(store: Store, logs: Path) -> None:
    log = Log()
    for id, task, said, outcome in (
        ("t1", "7", "Task not found", {"success": False, "taskId": "7", "error": "Task not found"}),
        ("t2", "8", "Updated task #8 status", {"success": True, "taskId": "8"}),
    ):
        log.reply(call("TaskUpdate", id, taskId=task, status="in_progress"), id=f"m{id}", stop="tool_use")
        log.result(id, said, toolUseResult=outcome)
    store.run(log.write(logs))
    # The second stood in a list that was made elsewhere.
    assert store.all("SELECT title, status FROM tasks") == [("8", "paused")]
    assert store.counts()["plan_revisions"] == 1


@pytest.mark.parametrize(
    "said",
    ["Task #1 not found", "Permission to use it has been denied.", "PreToolUse hook stopped it", "Error: no such task",
     "Claude requested permissions, but you haven't granted it yet: not granted", "<tool_use_error>Invalid</tool_use_error>"],
)  # fmt: skip
def test_a_plan_that_a_tool_refused_to_change_without_marking_an_error_is_as_it_was(store, logs, said):
    log = Log()
    log.reply(call("TaskCreate", "t1", subject="Mend the hook that is denied"), id="m1", stop="tool_use")
    log.result("t1", "Task #1 created successfully: Mend the hook that is denied")
    for id, tool, arguments in (
        ("t2", "TaskUpdate", {"taskId": "1", "status": "completed"}),
        ("t3", "TaskCreate", {"subject": "Another"}),
        ("t4", "TodoWrite", {"todos": [{"content": "A list", "status": "completed"}]}),
    ):
        log.reply(call(tool, id, **arguments), id=f"m{id}", stop="tool_use")
        log.result(id, said)
    store.run(log.write(logs))
    assert store.all("SELECT title, status FROM tasks") == [("Mend the hook that is denied", "pending")]


def test_ids_that_a_list_begun_anew_gives_once_more_are_of_other_tasks(store: Store, logs: Path) -> None:
    log = Log()
    for id, task, title in (("t1", "1", "Read"), ("t2", "2", "Write"), ("t3", "1", "Sing")):
        log.reply(call("TaskCreate", id, subject=title), id=f"m{id}", stop="tool_use")
        log.result(
            id,
            f"Task #{task} created successfully: {title}",
            toolUseResult={"task": {"id": task, "subject": title}},
        )
    path = log.write(logs)
    store.run(path)
    log.reply(call("TaskUpdate", "t4", taskId="1", status="completed"), id="m4", stop="tool_use")
    log.result("t4", "Updated task #1 status", toolUseResult={"success": True, "taskId": "1"})
    log.write(logs)
    store.run(path)
    tasks = store.all("SELECT title, status FROM tasks ORDER BY position")
    assert tasks == [("Read", "dropped"), ("Write", "pending"), ("Sing", "done")]


def test_errors_retries_and_interruptions_are_events_and_counted(store: Store, logs: Path) -> None:
    log = Log()
    error = {"status": 529, "error": {"error": {"message": "Overloaded"}}}
    log.add("system", subtype="api_error", error=error, retryInMs=500)
    log.reply(
        text("API Error: no credit"), id="msg_1", model="<synthetic>", isApiErrorMessage=True, error="billing"
    )
    log.user([text("[Request interrupted by user]")])
    store.run(log.write(logs))
    assert store.errors() == [
        ("model.retrying", "Overloaded"),
        ("model.error", "API Error: no credit"),
        ("agent.interrupted", "[Request interrupted by user]"),
    ]
    assert store.one("SELECT retries, errors, model_calls FROM sessions") == (1, 1, 0)
    assert store.counts()["messages"] == 2


def test_message_tokens_are_estimates_by_bytes_and_say_so(store: Store, logs: Path) -> None:
    log = Log()
    log.user("x" * 4_000)
    log.user(
        [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 400_000}}]
    )
    store.run(log.write(logs))
    tokens = [row[0] for row in store.all("SELECT tokens FROM messages ORDER BY seq")]
    assert 950 <= tokens[0] <= 1_050
    assert tokens[1] < 2_000
    assert json.loads(store.one("SELECT settings FROM sessions"))["imported"]["message_tokens"] == "estimated"


def test_what_was_typed_while_a_turn_ran_is_a_message(store: Store, logs: Path) -> None:
    log = Log()
    log.user("Mend the cache")
    log.add(
        "attachment", attachment={"type": "queued_command", "prompt": "and the docs", "commandMode": "prompt"}
    )
    store.run(log.write(logs))
    assert store.one("SELECT content FROM messages WHERE seq = 2") == '"and the docs"'


def test_what_a_hook_told_the_model_is_a_message_and_no_persons_words(store: Store, logs: Path) -> None:
    """Public logs of 2.1.207 to 2.1.266 hold a compile error of a hook in such a record alone."""
    blocked = {"blockingError": "[lint.sh]: a.ts(3): error TS2304", "command": "lint.sh"}
    log = Log()
    log.add(
        "attachment",
        attachment={"type": "hook_additional_context", "hookEvent": "SessionStart", "content": ["rules"]},
    )
    log.user("Mend the cache")
    log.add("attachment", attachment={"type": "hook_blocking_error", "hookName": "PostToolUse:Edit",
                                      "hookEvent": "PostToolUse", "blockingError": blocked})  # fmt: skip
    log.add("attachment", attachment={"type": "hook_additional_context", "hookName": "PreToolUse:Bash",
                                      "hookEvent": "PreToolUse", "content": ["use make", "not npm"]})  # fmt: skip
    log.add(
        "attachment", attachment={"type": "hook_additional_context", "hookEvent": "PreToolUse", "content": 5}
    )
    store.run(log.write(logs))
    said = [json.loads(row[0]) for row in store.all("SELECT content FROM messages ORDER BY seq")]
    assert said == [
        "Mend the cache",
        "<hook-output>\nPostToolUse:Edit: [lint.sh]: a.ts(3): error TS2304\n</hook-output>",
        "<hook-output>\nPreToolUse:Bash: use make\nnot npm\n</hook-output>",
    ]
    assert [spoken(each)[0] for each in said] == ["Mend the cache", "", ""]


def queued(log: Log, operation: str, content: str | None = None) -> None:
    about = {"content": content} if content is not None else {}
    log.add("queue-operation", operation=operation, parent=log.last, uuid=log.last, **about)


@pytest.mark.parametrize("attachment", ["none", "before", "after"])
@pytest.mark.parametrize("named", [True, False])
def test_a_prompt_that_the_running_turn_took_is_a_message_once(store, logs, attachment, named):
    log, prompt = Log(), "take the lexer first"
    log.user("Begin")
    log.reply(call("Bash", "t1"), id="msg_1")
    queued(log, "enqueue", prompt)
    log.result("t1")
    taken = {"type": "queued_command", "prompt": prompt, "commandMode": "prompt"}
    if attachment == "before":
        log.add("attachment", attachment=taken)
    queued(log, "remove", prompt if named else None)
    if attachment == "after":
        log.add("attachment", attachment=taken)
    log.reply(text("Understood."), id="msg_2")
    store.run(log.write(logs))
    rows = store.all("SELECT seq, role FROM messages WHERE content LIKE '%lexer%'")
    assert rows == [(4, "user")]


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        ([("enqueue", "never mind"), ("popAll", "never mind")], False),
        ([("enqueue", "never mind"), ("popAll", None)], False),
        ([("enqueue", "never mind")], False),
        ([("enqueue", "never mind"), ("dequeue", None)], False),  # a record of its own follows
        ([("enqueue", "never mind"), ("popAll", None), ("enqueue", "other"), ("remove", None)], False),
        ([("enqueue", "other"), ("enqueue", "never mind"), ("dequeue", None), ("remove", None)], True),
    ],
)
def test_a_prompt_that_a_person_withdrew_or_no_turn_took_is_no_message(store, logs, operations, said):
    log = Log()
    log.user("Begin")
    for operation in operations:
        queued(log, *operation)
    log.reply(text("Done."), id="msg_1")
    store.run(log.write(logs))
    assert ("never mind" in str(store.said())) is said


NOTIFICATION = (
    "<task-notification>\n<task-id>{child}</task-id>\n<tool-use-id>{call}</tool-use-id>\n<status>{status}</status>\n"
    "<summary>Agent ended: {status}</summary>\n<result>First the tests.\n<status>completed</status></result>\n"
    "</task-notification>"
)
OLD_NOTIFICATION = (
    "<agent-notification>\n<agent-id>{child}</agent-id>\n<status>{status}</status>\n<summary>Agent ended: {status}"
    "</summary>\n</agent-notification>"
)


@pytest.mark.parametrize("form", ["text", "block", "attachment", "queue", "old queue"])
@pytest.mark.parametrize(
    ("status", "became"), [("killed", "cancelled"), ("failed", "failed"), ("completed", "done")]
)
@pytest.mark.parametrize("own_log_first", [True, False])
@pytest.mark.parametrize("live", [True, False])
def test_an_agent_in_the_background_ended_as_its_notification_says(
    store, logs, form, status, became, own_log_first, live
):
    log = Log()
    log.user("Begin")
    log.reply(call("Agent", "t1", description="Part", prompt="Do it", run_in_background=True), id="msg_1")
    launched = {"isAsync": True, "status": "async_launched", "agentId": "a1b2c3d4e5f6a7b8c"}
    log.result("t1", "launched", toolUseResult=launched)
    own = Log(isSidechain=True, agentId="a1b2c3d4e5f6a7b8c")
    own.user("Do it")
    own.reply(text("First the tests."), id="msg_2")
    pattern = OLD_NOTIFICATION if form == "old queue" else NOTIFICATION
    notice = pattern.format(child="a1b2c3d4e5f6a7b8c", call="t1", status=status)
    if form == "text":
        log.user(notice)
    elif form == "block":
        log.user([text(notice)])
    elif form == "attachment":
        log.add("attachment", attachment={"type": "queued_command", "prompt": notice})
    else:
        queued(log, "enqueue", notice)
        queued(log, "remove")
    paths = [
        log.write(logs),
        own.write(logs, f"{log.session}/subagents/agent-a1b2c3d4e5f6a7b8c.jsonl"),
    ]
    for path in reversed(paths) if own_log_first else paths:
        store.run(path, live=live)
    found = store.all("SELECT status, status_reason FROM agents WHERE name = 'Part'")
    assert found == [(became, None if became == "done" else f"Agent ended: {status}")]
    assert store.one("SELECT count(*) FROM agents") == 2


def test_a_notification_about_a_command_in_the_background_makes_no_agent(store, logs):
    log = Log()
    log.user("Begin")
    log.reply(call("Bash", "t1", command="make", run_in_background=True), id="msg_1")
    log.user(NOTIFICATION.format(child="b8fa01", call="t1", status="failed"))
    store.run(log.write(logs))
    assert store.one("SELECT count(*) FROM agents") == 1


def test_an_agent_that_goes_on_after_its_end_was_reported_works_again(store, logs):
    log = Log()
    log.user("Begin")
    log.reply(call("Agent", "t1", description="Part", prompt="Do it"), id="msg_1")
    log.result(
        "t1", toolUseResult={"isAsync": True, "status": "async_launched", "agentId": "a1b2c3d4e5f6a7b8c"}
    )
    log.user(NOTIFICATION.format(child="a1b2c3d4e5f6a7b8c", call="t1", status="failed"))
    store.run(log.write(logs), live=True)
    own = Log(isSidechain=True, agentId="a1b2c3d4e5f6a7b8c")
    own._second = 30
    own.user("Try again")
    store.run(own.write(logs, f"{log.session}/subagents/agent-a1b2c3d4e5f6a7b8c.jsonl"), live=True)
    assert store.one("SELECT status, status_reason FROM agents WHERE name = 'Part'") == ("working", None)


def test_a_helper_that_compacts_is_done_with_its_reply(store, logs):
    log = Log()
    log.user("Begin")
    helper = Log(isSidechain=True, agentId="acompact-0123456789abcdef")
    helper.user("Summarise")
    helper.reply(text("The summary."), id="msg_9", stop=None)
    name = f"{log.session}/subagents/agent-acompact-0123456789abcdef.jsonl"
    store.run(log.write(logs), helper.write(logs, name))
    assert store.all("SELECT status, status_reason FROM agents WHERE name = 'compaction'") == [("done", None)]


def relayed(log: Log, said: str, **about) -> None:
    log.reply(text(said), id="relay", **about)
    del log.records[-1]["requestId"]


def test_replies_of_a_relay_that_names_no_request_are_joined_only_where_they_follow_each_other(store, logs):
    log = Log()
    log.user("a")
    relayed(log, "one", input=10, output=1, stop=None)
    relayed(log, "of three blocks", input=10, output=2, stop=None)
    log.add("attachment", attachment={"type": "task_reminder"})
    relayed(log, "all of it", input=10, output=3)
    relayed(log, "another", input=11, output=1)
    log.user("b")
    relayed(log, "equal input, and a call of its own", input=11, output=1)
    store.run(log.write(logs))
    counts = "SELECT input_tokens, output_tokens FROM model_calls ORDER BY id"
    assert store.all(counts) == [(10, 3), (11, 1), (11, 1)]
    store.run(log.write(logs, "renamed/" + f"{log.session}.jsonl"))
    assert len(store.all(counts)) == 3


def test_a_reply_of_a_relay_is_one_call_also_across_two_imports(store, logs):
    log = Log()
    log.user("a")
    relayed(log, "one", input=10, output=1, stop=None)
    store.run(log.write(logs))
    relayed(log, "two", input=10, output=2)
    store.run(log.write(logs))
    assert store.all("SELECT output_tokens, turn FROM model_calls") == [(2, 1)]


def test_an_advisors_calls_leave_the_agents_turns_and_context_alone(store, logs):
    log = Log()
    log.user("a")
    iterations = [
        {"type": "message", "input_tokens": 100, "output_tokens": 5},
        {"type": "advisor_message", "model": "claude-opus-4-7", "input_tokens": 9_000, "output_tokens": 90},
        {"type": "message", "input_tokens": 130, "output_tokens": 7},
    ]
    for said in ("one", "two"):
        log.reply(text(said), id="msg_1", input=230, output=12)["message"]["usage"]["iterations"] = iterations
        store.run(log.write(logs))  # the turn goes on in another transaction
    calls = "SELECT purpose, model, input_tokens, turn FROM model_calls ORDER BY id"
    assert store.all(calls) == [
        ("turn", "anthropic/claude-opus-4-6", 230, 1),
        ("advisor", "anthropic/claude-opus-4-7", 9_000, 1),
    ]
    agent = "SELECT model, context_tokens, turn, input_tokens, model_calls FROM agents"
    assert store.one(agent) == ("anthropic/claude-opus-4-6", 137, 1, 9_230, 2)


def test_a_usage_limit_stops_an_imported_session_until_it_goes_on(store, logs):
    log = Log()
    log.user("Begin")
    said = "You've hit your session limit · resets 8pm (America/New_York)"
    log.reply(text(said), id="x", model="<synthetic>", isApiErrorMessage=True, error="rate_limit")
    store.run(log.write(logs))
    parked = "SELECT status, status_reason, parked_until FROM agents"
    assert store.one(parked) == ("parked", said, 1_770_166_800.0)
    log.user("Go on")
    log.reply(text("Gone on."), id="msg_1")
    store.run(log.write(logs))
    assert store.one(parked) == ("done", None, None)


def test_a_warning_or_a_models_words_about_a_limit_stop_nothing(store, logs):
    log = Log()
    log.user("Begin")
    log.reply(text("You've hit your session limit · resets 8pm"), id="msg_1")
    log.add("system", subtype="api_error", error={"message": "Approaching usage limit: used 91 %"})
    store.run(log.write(logs))
    assert store.one("SELECT status, parked_until FROM agents") == ("done", None)


def test_record_types_that_hold_no_conversation_are_known(store, logs):
    log = Log()
    log.user("Begin")
    for kind in ("cost-state", "api-request", "api-request-end"):  # 2.1.332
        log.add(kind)
    store.run(log.write(logs))
    assert store.all("SELECT DISTINCT reason FROM raw_records") == [("known, not shown",)]


def test_models_of_other_clouds_are_priced_there(store, logs):
    log = Log()
    log.reply(text("a"), id="msg_1", model="us.anthropic.claude-sonnet-4-5-20250929-v1:0")
    log.reply(text("b"), id="msg_2", model="claude-opus-4@20250514")
    store.run(log.write(logs))
    assert store.all("SELECT model, price_status FROM model_calls ORDER BY id") == [
        ("aws/us.anthropic.claude-sonnet-4-5-20250929-v1:0", "exact"),
        ("google/claude-opus-4@20250514", "exact"),
    ]


def test_parallel_side_chains_that_hang_below_one_record_are_told_apart_by_their_prompts(store, logs):
    log = Log()
    calls = [call("Task", f"t{name}", prompt=f"Look for {name}", description=name) for name in "ab"]
    spawning = log.reply(*calls, id="msg_1")["uuid"]
    for name in "ab":
        log.user(f"Look for {name}", isSidechain=True, parent=spawning, uuid=f"{name}0")
    for name in "ba":
        log.reply(text("Looked."), id=f"msg_{name}", isSidechain=True, parent=f"{name}0", uuid=f"{name}1")
    store.run(log.write(logs))
    assert store.all(
        "SELECT name, last_seq, current_goal FROM agents WHERE name <> 'main' ORDER BY name"
    ) == [("a", 2, "Look for a"), ("b", 2, "Look for b")]


def test_a_fork_that_gave_its_copies_new_ids_is_known_by_the_old_ones(store: Store, logs: Path) -> None:
    first = Log()
    first.user("Mend the cache")
    first.reply(call("Bash", "t1"), id="msg_1")
    store.run(first.write(logs))
    fork = Log("0b0b0b0b-1111-4222-8333-444444444444")
    fork.records = [
        record
        | {
            "sessionId": fork.session,
            "uuid": f"new-{place}",
            "forkedFrom": {"sessionId": first.session, "messageUuid": record["uuid"]},
        }
        for place, record in enumerate(first.records)
    ]
    store.run(fork.write(logs))
    assert store.counts()["tool_calls"] == store.counts()["model_calls"] == 1
    forked_from = store.one("SELECT forked_from FROM sessions WHERE source LIKE '%0b0b%'")
    assert forked_from == store.one("SELECT id FROM sessions WHERE source LIKE '%0a0a%'")


def test_the_goal_is_what_a_person_asked_for_by_a_command_too(store: Store, logs: Path) -> None:
    log = Log()
    log.user("<command-name>/model</command-name>\n            <command-message>model</command-message>")
    log.user("<local-command-stdout>Set model</local-command-stdout>")
    log.user(
        "<command-message>plan-implement is"
        " running…</command-message>\n<command-name>/plan-implement</command-name>\n"
        "<command-args>7975 with care</command-args>"
    )
    log.user([text("# /plan-implement\n\nImplement a plan")], isMeta=True)
    log.reply(text("Done."), id="m1")
    store.run(log.write(logs))
    assert store.one("SELECT goal FROM sessions") == "/plan-implement 7975 with care"
    assert store.one("SELECT current_goal FROM agents") == "/plan-implement 7975 with care"
