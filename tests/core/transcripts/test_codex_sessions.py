"""What a log of Codex becomes, rule by rule, on logs made by hand with totals computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.core.transcripts.codex_rollout import CHILD, ROOT, Rollout, spawned
from tests.core.transcripts.conftest import Store


def test_a_session_has_its_folder_goal_title_and_model(store: Store, logs: Path) -> None:
    log = Rollout()
    log.item("message", role="developer", content=[{"type": "input_text", "text": "Be terse."}])
    log.user("# AGENTS.md instructions for /home/somebody/project\n\nUse tabs.")
    log.user("<environment_context>…</environment_context>")
    log.event("user_message", message="Mend the cache")
    log.user("Mend the cache").says("Done.").tokens(100, 40, 5)
    log.event("thread_name_updated", thread_id=ROOT, thread_name="Cache mended")
    store.run(log.write(logs))
    row = store.one("SELECT goal, title, workspace, origin, source, model FROM sessions")
    expected = (
        "Mend the cache",
        "Cache mended",
        "/home/somebody/project",
        "codex",
        f"codex:{ROOT}",
        "openai/gpt-5.1-codex",
    )
    assert tuple(row) == expected


@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("Script completed\nWall time 0.1 seconds\nOutput:\nfailed: none", "done"),
        ("Script running with cell ID 7", "done"),
        ("Script failed\nWall time 0.1 seconds\nOutput:\nTypeError", "error"),
        (
            [
                {"type": "input_text", "text": "Script failed\nOutput:\n"},
                {"type": "input_text", "text": "TypeError"},
            ],
            "error",
        ),
        ("Script terminated", "cancelled"),
        ("apply_patch verification failed: Failed to find expected lines in a.py", "error"),
        ("write_stdin failed: Unified exec process failed", "error"),
        ("exec_command failed for `/bin/zsh -lc ls`: CreateProcess", "error"),
        ("A text that speaks of how apply_patch failed", "done"),
    ],
)
def test_how_a_call_ended_is_told_by_the_words_with_which_codex_reports_it(store, logs, output, status):
    log = Rollout().item("custom_tool_call", call_id="c1", name="exec", input="x", status="completed")
    store.run(log.item("custom_tool_call_output", call_id="c1", output=output).write(logs))
    assert store.all("SELECT status FROM tool_calls") == [(status,)]


@pytest.mark.parametrize("prompt", ["<div> breaks the page", "<image>"])
def test_a_prompt_that_begins_with_a_bracket_is_the_persons_own(store, logs, prompt):
    log = (
        Rollout()
        .user("<environment_context>\n<cwd>/tmp</cwd>\n</environment_context>\n")
        .user("First")
        .says("a")
    )
    log.user(prompt).says("b").event("thread_rolled_back", num_turns=1)
    store.run(log.write(logs))
    taken_back = store.one(
        "SELECT json_extract(data, '$.first_seq') FROM events WHERE kind = 'context.rewound'"
    )
    said = store.one(f"SELECT content FROM messages WHERE seq = {taken_back}")
    assert json.loads(said)[0]["text"] == prompt


@pytest.mark.parametrize("named", ["## My request for Codex:", "## My request:"])
def test_a_goal_is_what_was_asked_for_and_not_what_an_editor_put_before_it(store, logs, named):
    before = "# Context from my IDE setup:\n\n## Active file: a.py\n\n## Open tabs:\n- a.py: src/a.py\n\n"
    log = Rollout().user(f"{before}{named}\nMend the cache\n")
    store.run(log.write(logs))
    assert (
        store.one("SELECT goal FROM sessions")
        == store.one("SELECT current_goal FROM agents")
        == "Mend the cache"
    )
    assert "Active file" in store.one("SELECT content FROM messages")


def test_an_editors_news_without_a_request_is_the_goal_as_it_is(store: Store, logs: Path) -> None:
    store.run(
        Rollout()
        .user("\n# Files mentioned by the user:\n\n## a.png: /tmp/a.png\n\n## My request for Codex:\n")
        .write(logs)
    )
    assert store.one("SELECT goal FROM sessions").startswith("# Files mentioned by the user:")


def test_cached_input_is_split_from_input_and_priced_as_such(store: Store, logs: Path) -> None:
    log = Rollout().user("go").says("a").tokens(1_000, 600, 50).user("on").says("b").tokens(1_500, 1_000, 20)
    store.run(log.write(logs))
    # (1000 - 600) + 50 + 600 / 10 = 510 and (1500 - 1000) + 20 + 1000 / 10 = 620 at a dollar a token.
    assert store.all(
        "SELECT input_tokens, cache_read_tokens, output_tokens, cost_usd, price_status FROM model_calls"
    ) == [(400, 600, 50, 510.0, "exact"), (500, 1_000, 20, 620.0, "exact")]
    row = store.one(
        "SELECT input_tokens, cache_read_tokens, output_tokens, cost_usd, model_calls FROM sessions"
    )
    assert tuple(row) == (900, 1_600, 70, 1_130.0, 2)
    assert store.one("SELECT context_limit FROM agents") == 272_000


def test_a_count_that_is_logged_again_counts_once(store: Store, logs: Path) -> None:
    log = Rollout().user("go").says("a").tokens(1_000, 600, 50)
    log.tokens(1_000, 600, 50, again=True).tokens(0, 0, 0, again=True).event(
        "token_count", info=None, rate_limits={}
    )
    report = store.run(log.write(logs))
    assert store.one("SELECT model_calls FROM sessions") == 1
    assert report.skipped["repeats a token count"] == 2


def test_what_is_left_of_usage_windows_is_kept_also_where_nothing_else_is_told(
    store: Store, logs: Path
) -> None:
    def limits(used: float) -> dict[str, Any]:
        return {
            "limit_id": "codex",
            "primary": {"used_percent": used, "window_minutes": 300, "resets_at": 1_770_100_000},
        }

    log = Rollout().user("go").says("a").tokens(1_000, 600, 50)
    log.event("token_count", info=None, rate_limits=limits(12)).event(
        "token_count", info=None, rate_limits=limits(15), wait=300
    )
    log.event("token_count", info=None, rate_limits={"primary": None})
    report = store.run(log.write(logs))
    assert store.all(
        "SELECT provider, account, minutes, used_percent, first_percent, resets_at, source FROM quota_readings"
    ) == [("openai", "", 300, 15, 12, 1_770_100_000, "Codex")]
    raw = [kind for kind, _ in report.raw]
    assert raw.count("event_msg/token_count") == 1, "what states nothing is kept raw"
    assert store.one("SELECT model_calls FROM sessions") == 1


def test_where_only_sums_are_told_a_call_is_their_difference_and_estimated(store: Store, logs: Path) -> None:
    log = Rollout().says("a").tokens(1_000, 600, 50, last=False).says("b").tokens(500, 400, 5, last=False)
    store.run(log.write(logs))
    assert store.all(
        "SELECT input_tokens, cache_read_tokens, output_tokens, price_status FROM model_calls"
    ) == [(400, 600, 50, "estimated"), (100, 400, 5, "estimated")]


def test_every_kind_of_call_is_paired_with_its_output(store: Store, logs: Path) -> None:
    log = Rollout().user("go")
    log.call("c1", command=["ls"]).call("c2", command=["false"])
    log.output("c2", '{"output":"","metadata":{"exit_code":1,"duration_seconds":0.1}}').output(
        "c1", "Exit code: 0\nOutput:\na"
    )
    log.item(
        "local_shell_call", call_id="c3", status="completed", action={"type": "exec", "command": ["pwd"]}
    )
    log.output("c3", {"content": "no", "success": False})
    log.item("custom_tool_call", call_id="c4", name="apply_patch", input="*** Begin Patch")
    log.item("custom_tool_call_output", call_id="c4", output=[{"type": "input_text", "text": "Done"}])
    log.item("web_search_call", id="ws1", status="completed", action={"type": "search", "query": "cache"})
    log.call("c5", name="exec_command", cmd="sleep 9").output("c5", "aborted by user after 3.1s")
    log.call("c6", name="view_image", path="x.png")
    log.output("c6", [{"type": "input_image", "image_url": "data:image/png;base64,QUJD"}])
    log.call("c7", command=["x"])
    store.run(log.write(logs))
    assert store.all("SELECT tool_use_id, name, status, is_error FROM tool_calls ORDER BY id") == [
        ("c1", "shell", "done", 0), ("c2", "shell", "error", 1), ("c3", "local_shell", "error", 1), ("c4", "apply_patch", "done", 0),
        ("ws1", "web_search", "done", 0), ("c5", "exec_command", "cancelled", 0), ("c6", "view_image", "done", 0),
        ("c7", "shell", "unknown", 0),
    ]  # fmt: skip
    contents = store.said()
    assert contents[1] == [{"type": "tool_use", "id": "c1", "name": "shell", "input": {"command": ["ls"]}}]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    assert [{"type": "tool_result", "tool_use_id": "c6", "content": [image]}] in contents


def test_an_event_tells_of_a_failure_that_the_output_does_not(store: Store, logs: Path) -> None:
    log = Rollout().call("c1", name="docs__search").call("c2", name="docs__search")
    log.event("mcp_tool_call_end", call_id="c1", invocation={"server": "docs"}, result={"Err": "gone"})
    result = {"Ok": {"content": [], "isError": False}}
    log.event("mcp_tool_call_end", call_id="c2", invocation={"server": "docs"}, result=result)
    log.output("c1", "gone").output("c2", "found")
    store.run(log.write(logs))
    assert store.all("SELECT tool_use_id, status FROM tool_calls ORDER BY id") == [
        ("c1", "error"),
        ("c2", "done"),
    ]


def test_reasoning_becomes_thinking_and_what_is_sealed_stays_sealed(store: Store, logs: Path) -> None:
    log = Rollout()
    log.item(
        "reasoning", summary=[{"type": "summary_text", "text": "Looking."}], encrypted_content="c2VhbGVk"
    )
    log.item("reasoning", summary=[], content=None, encrypted_content="c2VhbGVk")
    store.run(log.write(logs))
    assert store.said() == [
        [{"type": "thinking", "thinking": "Looking.", "signature": "c2VhbGVk"}],
        [{"type": "redacted_thinking", "data": "c2VhbGVk"}],
    ]


def test_update_plan_becomes_tasks_with_their_history(store: Store, logs: Path) -> None:
    log = Rollout()
    for place, steps in enumerate((["in_progress", "pending"], ["completed", "in_progress"], ["completed"])):
        plan = [{"step": name, "status": status} for name, status in zip("ab", steps, strict=False)]
        log.call(f"p{place}", name="update_plan", explanation="so", plan=plan).output(
            f"p{place}", "Plan updated"
        )
    store.run(log.write(logs))
    assert store.all("SELECT title, position, status FROM tasks ORDER BY position") == [
        ("a", 0, "done"),
        ("b", 1, "dropped"),
    ]
    assert store.plan_versions() == [
        [("a", "running"), ("b", "pending")],
        [("a", "done"), ("b", "running")],
        [("a", "done"), ("b", "dropped")],
    ]


@pytest.mark.parametrize(
    "said",
    ["update_plan is not allowed in Plan mode", "unsupported call: update_plan", "aborted by user after 1.2s", "Error: no",
     "Tool call blocked by hook", "invalid arguments", {"content": "no", "success": False}],
    ids=str,
)  # fmt: skip
def test_an_update_of_the_plan_that_was_refused_changes_nothing(
    store: Store, logs: Path, said: object
) -> None:
    log = Rollout().user("go")
    for place, (status, output) in enumerate((("in_progress", "Plan updated"), ("completed", said))):
        log.call(f"p{place}", name="update_plan", plan=[{"step": "a", "status": status}])
        log.output(f"p{place}", output)
    store.run(log.write(logs))
    assert store.plan_versions() == [[("a", "running")]]


def test_a_compaction_drops_what_came_before_and_tells_its_sizes(store: Store, logs: Path) -> None:
    log = Rollout().user("Mend the cache").says("Looking.").tokens(150_000, 100_000, 400)
    kept = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        for text in ("Mend the cache", "So far: half.")
    ]
    log.add("compacted", {"message": "So far: half.", "replacement_history": kept}).event("context_compacted")
    log.user("Go on").says("Done.").tokens(9_000, 0, 50)
    log.add("compacted", {"message": ""}).tokens(0, 0, 0, again=True)
    store.run(log.write(logs))
    assert store.all(
        "SELECT tokens_before, tokens_after, messages_removed, high_water FROM compactions ORDER BY id"
    ) == [(150_400, 9_000, 2, 2), (9_050, None, 2, 4)]
    rows = store.one("SELECT text FROM observations WHERE id = 1")
    assert rows == "user: Mend the cache\n\nuser: So far: half."
    assert store.counts()["messages"] == 4  # what was dropped is here


def test_a_turn_that_only_compacted_says_nothing_of_the_size_afterwards(store: Store, logs: Path) -> None:
    log = Rollout().user("Mend the cache").says("Looking.").tokens(150_000, 0, 400).event("task_complete")
    log.event("task_started").add("compacted", {"message": "So far: half."}).event("task_complete")
    log.event("task_started").user("Go on").says("Done.").tokens(9_000, 0, 50).event("task_complete")
    store.run(log.write(logs))
    assert store.one("SELECT tokens_before, tokens_after FROM compactions") == (150_400, 9_000)
    assert store.all("SELECT stop_reason FROM model_calls") == [("end_turn",), ("end_turn",)]


def test_errors_and_interruptions_are_events(store: Store, logs: Path) -> None:
    log = Rollout().user("go").event("stream_error", message="stream disconnected; retrying 1/5")
    log.event("error", message="You've hit your usage limit.").event("turn_aborted", reason="interrupted")
    log.event("task_complete", turn_id="t", error={"message": "context too long"})
    store.run(log.write(logs))
    assert store.errors() == [
        ("model.retrying", "stream disconnected; retrying 1/5"),
        ("model.error", "You've hit your usage limit."),
        ("agent.interrupted", "turn aborted: interrupted"),
        ("model.error", "context too long"),
    ]


def test_the_oldest_logs_have_bare_items_and_no_times(store: Store, logs: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"id": ROOT, "timestamp": "2025-06-01T10:00:00.000Z", "instructions": None, "git": {}},
        {"record_type": "state"},
        {"type": "message", "id": None, "role": "user", "content": [{"type": "input_text", "text": "go on"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {
            "type": "function_call",
            "id": "fc_1",
            "name": "shell",
            "arguments": '{"command":["ls"]}',
            "call_id": "c1",
        },
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": '{"output":"a","metadata":{"exit_code":0}}',
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]},
    ]
    path = logs / f"rollout-2025-06-01T10-00-00-{ROOT}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = store.run(path)
    assert store.counts()["messages"] == 6  # the same words three times are three messages
    assert store.all("SELECT tool_use_id, status FROM tool_calls") == [("c1", "done")]
    assert (report.read, report.raw.total()) == (7, 1)
    path.write_bytes(b"\n" + path.read_bytes())
    store.run(path)
    assert store.counts()["messages"] == 6


def test_a_log_that_was_archived_as_well_is_one(store: Store, logs: Path) -> None:
    log = Rollout().user("go").says("a").tokens(10, 0, 5)
    log.write(logs / "sessions")
    log.write(logs / "archived_sessions", "")
    store.run(logs)
    assert store.one("SELECT count(*), sum(model_calls), sum(output_tokens) FROM sessions") == (1, 1, 5)
    assert store.counts()["messages"] == 2


def test_a_header_longer_than_what_is_looked_at_first_is_read(store: Store, logs: Path) -> None:
    log = Rollout(CHILD, **spawned(ROOT), base_instructions={"text": "x" * 100_000})
    store.run(log.user("go").says("a").write(logs))
    assert store.one("SELECT source FROM sessions") == f"codex:{ROOT}"


def test_records_that_nobody_knows_are_kept_raw_and_counted(store: Store, logs: Path) -> None:
    log = (
        Rollout()
        .add("world_state", {"full": True})
        .add("news", {"x": 1})
        .item("telepathy", x=1)
        .event("sneeze")
    )
    path = log.write(logs)
    path.write_bytes(path.read_bytes() + b'{"broken": \n[1, 2]\n\n')
    report = store.run(path)
    assert {tuple(each) for each in report.raw if each[1] != "known, not shown"} == {
        ("news", "unknown record type"),
        ("response_item/telepathy", "unknown record type"),
        ("event_msg/sneeze", "unknown record type"),
        ("?", "not a JSON object"),
        ("?", "broken JSON"),
    }
    assert report.read + report.raw.total() + report.skipped.total() == 9
    assert store.counts()["raw_records"] == report.raw.total()


def test_a_log_whose_first_line_is_broken_is_known_by_its_name(store: Store, logs: Path) -> None:
    log = Rollout().user("go").says("a").tokens(10, 0, 5)
    log.add("session_meta", log.lines[0]["payload"])
    path = log.write(logs)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0][:50] + b"\n" + b"".join(lines[1:]))
    store.run(path)
    expected = (f"codex:{ROOT}", "/home/somebody/project", 5)
    assert store.one("SELECT source, workspace, output_tokens FROM sessions") == expected


def test_a_clock_that_jumps_changes_no_order(store: Store, logs: Path) -> None:
    log = Rollout().user("one").says("two").user("three")
    log.lines[3]["timestamp"] = "2019-01-01T00:00:00.000Z"
    store.run(log.write(logs))
    texts = [json.loads(row[0])[0]["text"] for row in store.all("SELECT content FROM messages ORDER BY seq")]
    assert texts == ["one", "two", "three"]


def test_the_usual_places_follow_codex_home(tmp_path: Path) -> None:
    from watchkeeper.transcripts.codex import PROGRAM

    assert PROGRAM.places({}, tmp_path)[0] == tmp_path / ".codex" / "sessions"
    found = PROGRAM.places({"CODEX_HOME": str(tmp_path / "x")}, Path("/home/a"))[0]
    assert found == tmp_path / "x" / "sessions"
