"""What agents hand to each other: findings to the planner, memory to the next attempt, facts to siblings."""

from __future__ import annotations

import json
import re
import threading
from contextlib import closing
from typing import Any

from tests.core.runtime.conftest import Bench
from tests.support.scripted import PlannedRun, call, flat, last_results, said, task, turns

from watchkeeper.agents import memory_tools
from watchkeeper.memory.recall import recall
from watchkeeper.records.messages import ErrorKind, ModelError, ModelRequest
from watchkeeper.store import artifacts
from watchkeeper.store.search.passages import SearchConnection


def news_of(bench: Bench, kind: str) -> dict[str, Any]:
    return dict(json.loads(bench.query("SELECT payload FROM inbox WHERE kind = ? ORDER BY id", kind)[0][0]))


def delta_of(bench: Bench, ref: str) -> dict[str, Any]:
    with closing(SearchConnection(bench.path)) as reads:
        return dict(json.loads(artifacts.get(reads, ref) or b""))


async def test_a_failed_tasks_findings_reach_the_planner_with_their_pointers(bench):
    def work(name: str, request: ModelRequest) -> Any:
        match turns(request):
            case 0:
                return [
                    call("remember", {"text": "The proxy listens on port 8080"}, "a"),
                    call("save_artifact", {"name": "partial", "content": "half"}, "b"),
                ]
            case 1:
                return [call("remember", {"text": "The proxy listens on port 8443"}, "c")]
        return ModelError("bad request", kind=ErrorKind.FAIL)

    enough = [call("finish_session", {"summary": "enough", "status": "failed"})]
    bench.start(PlannedRun([task("look")], work, on_failure=lambda name: enough))
    await bench.run()
    payload = news_of(bench, "task_failed")
    agent = next(one["id"] for one in bench.state["agents"] if one["task_id"])
    (line,) = payload["learned"]
    assert line.startswith("The proxy listens on port 8443 (message://")
    assert "replaces fact://" in line
    delta = delta_of(bench, payload["memory_delta"])
    assert [fact["text"] for fact in delta["facts"]] == ["The proxy listens on port 8443"]
    assert delta["facts"][0]["sources"][0].startswith(f"message://{agent}/")
    assert [one["name"] for one in delta["artifacts"]] == ["partial"]
    assert delta["transcript"].startswith(f"message://{agent}/1-")
    planner = [request for request in bench.model.requests if request.system.startswith("Role: planner")]
    assert "The proxy listens on port 8443" in flat(planner[-1].messages)


async def test_a_sibling_is_told_and_recalls_what_another_found_with_its_source(bench):
    def work(name: str, request: ModelRequest) -> Any:
        found = flat(request.messages[-1:])
        match (name, turns(request)):
            case ("find", 0):
                return [call("remember", {"text": "The queue lives in src/queue.py"})]
            case ("use", 0):
                assert "The queue lives in src/queue.py (message://" in found
                return [call("recall", {"query": "queue"})]
            case ("use", 1):
                assert "The queue lives in src/queue.py" in found
                return [call("read_back", {"pointer": re.findall(r"message://[\w/]+", found)[0]}, "again")]
        assert name == "find" or "The queue lives in src/queue.py" in found
        return [said(f"{name}: done")]

    bench.start(PlannedRun([task("find"), task("use", needs=("find",))], work))
    assert (await bench.run()).status == "done"
    assert {one["status"] for one in bench.tasks().values()} == {"done"}
    payload = news_of(bench, "task_done")
    assert payload["result"] == "find: done"
    [fact] = delta_of(bench, payload["memory_delta"])["facts"]
    assert fact["text"] == "The queue lives in src/queue.py"
    assert fact["sources"][0].startswith("message://")


async def test_a_rerun_is_a_new_agent_that_keeps_the_memory_and_is_told_only_what_is_new_to_it(bench):
    failures = [ModelError("no", kind=ErrorKind.FAIL)]

    def work(name: str, request: ModelRequest) -> Any:
        if turns(request) == 0:
            return [call("remember", {"text": f"A finding of {name}"})]
        assert name == "other" or failures or "A finding of hard" in flat(request.messages)
        return failures.pop() if failures and name == "hard" else [said("done")]

    tasks = [task("other"), task("hard", needs=("other",))]
    bench.start(
        PlannedRun(
            tasks, work, on_failure=lambda name: [call("rerun_task", {"task": name, "reason": "it failed"})]
        )
    )
    assert (await bench.run()).status == "done"
    hard = bench.tasks()["hard"]
    first, second = (one for one in bench.state["agents"] if one["task_id"] == hard["id"])
    assert (first["status"], second["status"], hard["attempt"]) == ("failed", "done", 2)
    assert second["copied_from"] == first["id"]
    handoffs = [one for one in bench.state["handoffs"] if one["task_id"] == hard["id"]]
    told = delta_of(bench, handoffs[-1]["memory_delta_ref"])
    assert [fact["text"] for fact in told["facts"]] == ["A finding of other"]
    bench.assert_sound()


async def test_a_search_waits_for_nobody_and_nobody_for_it(bench: Bench, monkeypatch: Any) -> None:
    searching, go_on = threading.Event(), threading.Event()

    def slow(*given: Any, **options: Any) -> Any:
        searching.set()
        assert go_on.wait(20)
        return recall(*given, **options)

    monkeypatch.setattr(memory_tools, "recall_from", slow)
    committed: list[int] = []

    def work(name: str, request: ModelRequest) -> Any:
        if name == "search":
            return [call("recall", {"query": "anything"})] if turns(request) == 0 else [said("done")]
        if turns(request) < 5:
            committed.append(turns(request))
            return [call("remember", {"text": f"finding {turns(request)}"}, f"t{turns(request)}")]
        go_on.set()
        return [said("done")]

    bench.start(PlannedRun([task("search"), task("work")], work), max_parallel=2)
    assert (await bench.run()).status == "done"
    assert searching.is_set()
    assert len(committed) == 5


async def test_recall_refuses_what_is_no_query_in_one_line(bench):
    wrong = ({}, {"query": ""}, {"query": "x", "scope": "galaxy"}, {"query": "x" * 5_000})
    results: list[dict[str, Any]] = []

    def work(name: str, request: ModelRequest) -> Any:
        results.extend(last_results(request))
        calls = [call("recall", arguments, f"t{number}") for number, arguments in enumerate(wrong)]
        return [said("done")] if results else calls

    bench.start(PlannedRun([task("look")], work))
    assert (await bench.run()).status == "done"
    assert [one["is_error"] for one in results] == [True] * len(wrong)
    assert not any("\n" in str(one["content"]) for one in results)
