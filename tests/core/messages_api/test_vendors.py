"""One run on the models of three vendors, each behind its own API: the planner, the sub-agents, their memory."""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

from tests.core.messages_api.ground import MODEL, Ground
from tests.core.messages_api.scripts import NOTES, Notes, uses
from tests.support.answers import Body, Held, Reply, text, thinking
from tests.support.wires import CHAT, RESPONSES

SUMMARY = "Goal: reach the goal (#1).\nCurrent work: it kept notes 0 to 5 under n/0 to n/5 (#2).\nNext step: end (#1)."


class _Work:
    """Six turns of notes, then the agent has its own context compacted, and goes on until it sees the summary."""

    def __init__(self) -> None:
        self.summarised = threading.Event()
        self._turns = itertools.count()

    def __call__(self, name: str, turn: int, body: Body) -> Any:
        shown, number = json.dumps(body["messages"]), next(self._turns)
        if SUMMARY.splitlines()[0] in shown:
            return [text(f"{name} is done.")]
        if number < 6:
            return [uses("save_artifact", name=f"{name}/{number}", content="some words to keep " * 200)]
        if number == 6:
            return [uses("compact")]
        note = {**uses("remember", text=f"note {number}"), "id": f"toolu_n{number}"}
        return Held(Reply([note]), until=self.summarised)

    def summary(self, body: Body) -> Reply:
        self.summarised.set()
        return Reply([text(SUMMARY)])


def _configure(ground: Ground, **servers: str) -> None:
    folder = ground.workspace.parent / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "planner.md").write_text("---\nname: planner\nmodel: openai/gpt-5\n---\nYou plan.\n")
    tables = "".join(f'[{name.replace("_", "-")}]\nbase_url = "{url}"\n' for name, url in servers.items())
    (folder.parent / "config.toml").write_text(f'[memory]\nmodel = "openai-chat/local"\n{tables}')


def test_planner_sub_agents_and_memory_run_on_three_vendors(ground: Ground) -> None:
    notes = Notes(NOTES[:1], work=(work := _Work()))

    def plan(body: Body) -> Any:
        answer = notes(body)
        assert isinstance(answer, Reply)
        return Reply([thinking("let me see", "c2VhbGVk"), *answer.blocks])

    planner = ground.serve(plan)
    memory = ground.serve(work.summary)
    _configure(ground, openai=planner.url, openai_chat=f"{memory.url}/v1/")
    workers = ground.serve(notes)
    ended = ground.run(OPENAI_API_KEY="sk-test-of-openai")
    assert (ended.code, ended.result["status"]) == (0, "done"), ended.out + ended.err
    ground.assert_done()
    purposes = ground.query("SELECT DISTINCT purpose, model FROM model_calls ORDER BY purpose")
    assert dict(purposes) == {"planner": "openai/gpt-5", "turn": MODEL, "reflector": "openai-chat/local"}
    assert ground.query("SELECT model, trigger FROM compactions WHERE status = 'applied'")
    assert [bool(server.requests) for server in (planner, workers, memory)] == [True] * 3
    sealed = [item for item in planner.requests[-1]["input"] if item.get("type") == "reasoning"]
    assert sealed
    assert all(item["encrypted_content"] == "c2VhbGVk" for item in sealed)
    costs = dict(ground.query("SELECT purpose, max(cost_usd) FROM model_calls GROUP BY purpose"))
    assert costs["planner"] > 0, "a model that is priced has its price, at another server as an estimate"
    assert costs["turn"] is costs["reflector"] is None
    assert "sk-test-of-openai" not in (ended.out + ended.err)


def test_the_whole_run_goes_over_either_of_openais_apis(ground: Ground) -> None:
    for wire in (RESPONSES, CHAT):
        notes = Notes(NOTES[:2])
        server = ground.serve(notes)
        ended = ground.wk(
            "run", "reach the goal", "--model", f"{wire.provider}/local", "--headless", "--json",
            "--workspace", str(ground.workspace), OPENAI_BASE_URL=server.url,
        )  # fmt: skip
        assert (ended.code, ended.result["status"]) == (0, "done"), ended.out + ended.err
        assert not any("authorization" in headers for headers in server.headers)
        assert (server.script_errors, server.refused) == ([], [])
