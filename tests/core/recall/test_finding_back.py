"""`read_back` with `find`: one call from a pointer to the page that holds what is looked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.core.recall.test_pointers import Agent, store  # noqa: F401 - the fixture

from watchkeeper.agents.memory_tools import PAGE_CHARACTERS, memory_tools
from watchkeeper.agents.tools.contract import ToolContext, ToolResult
from watchkeeper.store.transaction import SessionStore


def read(agent: Agent, **arguments: Any) -> ToolResult:
    tool = next(one for one in memory_tools() if one.spec.name == "read_back")
    context = ToolContext(agent.store.session_id, agent.id, None, Path("."))
    result: ToolResult = asyncio.run(agent.store.commit(lambda tx: tool.apply(tx, arguments, context)))
    return result


def add(agent: Agent, role: Any, content: Any) -> None:
    agent.write(agent.memory.append(role, content, at=1.0))


@pytest.fixture
def agent(store: SessionStore) -> Agent:  # noqa: F811
    agent = Agent(store)
    add(agent, "user", "go")
    for number in range(30):
        add(agent, "assistant", f"step {number} " + "filler " * 300)
    add(
        agent,
        "user",
        "x " * 9_000
        + "E4711: disk  quota\nexceeded on /srv/data "
        + "y " * 4_000
        + f"E-{agent.id}-77"
        + " z" * 5_000,
    )
    return agent


@pytest.mark.parametrize("wanted", ["E4711", "/srv/data", "disk quota exceeded", "DISK QUOTA"])
def test_what_stands_in_the_middle_of_a_long_range_is_one_call_away(agent: Agent, wanted: str) -> None:
    said = str(read(agent, pointer=f"message://{agent.id}/1-32", find=wanted).content)
    assert "E4711: disk  quota\nexceeded on /srv/data" in said
    assert "in message #32" in said
    assert len(said) < PAGE_CHARACTERS + 300


def test_the_next_place_is_found_from_the_offset_that_was_told(agent: Agent) -> None:
    first = str(read(agent, pointer=f"message://{agent.id}/2-31", find="step").content)
    offset = int(first.split("continue the search at offset ")[1].split("]")[0])
    second = str(read(agent, pointer=f"message://{agent.id}/2-31", find="step", offset=offset).content)
    assert "in message #2;" in first
    assert "in message #3;" in second


def test_what_is_nowhere_is_said_to_be_nowhere(agent: Agent) -> None:
    with pytest.raises(ValueError, match="does not contain 'kraken'"):
        read(agent, pointer=f"message://{agent.id}/1-32", find="kraken")


def test_arguments_of_calls_are_found_as_they_were_written(agent: Agent) -> None:
    given = {"file_path": "a.py", "old_string": 'say("hi")\nreturn None', "replace_all": True}
    add(agent, "assistant", [{"type": "tool_use", "id": "e1", "name": "edit", "input": given}])
    said = str(read(agent, pointer=f"message://{agent.id}/33", find='say("hi")\nreturn').content)
    assert 'old_string: say("hi")\nreturn None' in said
    assert "replace_all: true" in said


@pytest.mark.parametrize("query", ["E-{}-77", "where was E-{}-77 raised, and why?", "y E-{}-77 z"])
def test_recall_finds_what_stands_word_for_word_in_the_middle_of_a_long_message(
    agent: Agent, query: str
) -> None:
    for number in range(5):
        add(agent, "assistant", f"later step {number} " + "filler " * 60)
    said = agent.recall(query.format(agent.id))
    assert f"message://{agent.id}/32" in said
    assert f"E-{agent.id}-77" in said
