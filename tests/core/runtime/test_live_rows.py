"""The live rows: what agents do this moment, and nothing of those that have ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.core.runtime.conftest import Ground

from watchkeeper.agents.agent_state import AgentMemory
from watchkeeper.memory.history import ContextLimits
from watchkeeper.memory.tokens import default_counter
from watchkeeper.records.ports import ManualClock
from watchkeeper.runtime.host import LiveRows
from watchkeeper.store.transaction import SessionStore, Transaction


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with closing(Ground(tmp_path)) as ground:
        yield ground.store


async def test_what_an_agent_showed_last_stays_in_its_row_and_nothing_of_it_is_held_once_it_has_ended(store):
    live = LiveRows(store, ManualClock())
    for number in range(100):
        live.show(f"a{number}", "working")
        live.stream(f"a{number}", "words " * 2_000)
        live.end(f"a{number}")
    await live.flush()
    shown = store.one("SELECT count(*), min(length(text)) FROM live WHERE activity = 'working'")
    assert shown[:] == (100, 2_000)
    live.stream("a0", "late")  # what is not held is not added to
    await live.flush()
    rows = store.one("SELECT substr(text, length(text) - 5) FROM live WHERE agent_id = 'a0'")[:]
    assert rows == ("words ",)


async def test_an_agent_that_works_again_is_shown_again(store: SessionStore) -> None:
    live = LiveRows(store, ManualClock())
    live.show("a", "paused")
    live.end("a")
    live.show("a", "working")
    live.stream("a", "again")
    await live.flush()
    live.stream("a", " and again")
    await live.flush()
    assert store.one("SELECT activity, text FROM live")[:] == ("working", "again and again")


CALLS = (
    {"name": "survey.json", "content": {"files": {"$artifact": "figures/all", "$pointer": "/totals"}}},
    {"command": "printf 'a\\tb'\necho \u00e9"},
    {"path": "a.py", "content": "def f():\n    return 1\n", "mode": 7},
)


@pytest.mark.parametrize("size", [1, 3, 1_000])
async def test_the_input_of_a_tool_call_is_shown_as_a_person_reads_it_while_it_streams(store, size):
    live = LiveRows(store, ManualClock())
    live.show("a", "working")
    live.stream("a", "I save it.")
    for call in CALLS:
        raw = json.dumps(call)
        for at in range(0, len(raw), size):
            live.stream("a", raw[at : at + size], "tool_input")
            await live.flush()
            (shown,) = store.one("SELECT text FROM live")
            assert not set(shown) & set('{}"'), shown
    live.stream("a", "Now I test it.")
    await live.flush()
    assert store.one("SELECT text FROM live")[0] == (
        "I save it.\nname: survey.json\ncontent: …\ncommand:\nprintf 'a\\tb'\necho \u00e9\npath: a.py\n"
        "content:\ndef f():\n    return 1\n\nmode: 7\nNow I test it."
    )


async def test_what_was_made_from_a_message_that_could_not_be_stored_is_not_stored(
    store: SessionStore,
) -> None:
    """The disk was full as the results of a turn were committed, and a person edited the context meanwhile."""
    memory = AgentMemory.empty(ContextLimits(20_000, 1_000), default_counter(), "a", 0.0)
    add = (
        "INSERT INTO agents (id, session_id, name, role, model, status, created_at, last_active)"
        " VALUES ('a', ?, 'a', 'coder', 'm', 'working', 0, 0)"
    )

    def begin(tx: Transaction) -> None:
        tx.execute(add, (tx.session_id,))
        memory.start(tx)

    await store.commit(begin)
    for role in ("user", "assistant"):
        await store.commit(memory.append(role, "stored " * 20, at=0.0).write)
    memory.append("user", "lost " * 20, at=0.0)
    edit = memory.edit(store, at=0.0, drop=(2,), pin=(), unpin=(), texts={})
    before = store.one("SELECT last_seq, message_tokens, view_version FROM agents")[:]
    with pytest.raises(ValueError, match="could not store the newest message in the context; try again"):
        await store.commit(edit.write)
    assert store.one("SELECT last_seq, message_tokens, view_version FROM agents")[:] == before
