"""Meanings: one setting, tested on and off, with a tiny embedder in place of the model."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from tests.core.recall.conftest import Session

from watchkeeper.agents.memory_tools import RecallTool
from watchkeeper.agents.tools.contract import ToolContext
from watchkeeper.memory import recall as recall_module
from watchkeeper.memory.ranking import Document, Likeness, RankedIndex
from watchkeeper.records.errors import install_command
from watchkeeper.runtime.config import Config

pytest.importorskip("sqlite_vec")

TOPICS = (
    ("ship", "boat", "vessel", "yacht"),
    ("money", "price", "costs", "budget"),
    ("bread", "bakery", "flour"),
)


class ByTopic:
    """One dimension for each topic: what speaks of a boat is like what speaks of a ship."""

    name = "topics"

    def __init__(self) -> None:
        self.embedded = 0

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        self.embedded += len(texts)
        found = []
        for text in texts:
            own = [float(any(word in text.lower() for word in topic)) for topic in TOPICS]
            length = sum(own) ** 0.5
            found.append(
                struct.pack(
                    "<4f", *(value / length if length else 0.0 for value in own), 0.0 if length else 1.0
                )
            )
        return found


@pytest.fixture
def embedder(monkeypatch: pytest.MonkeyPatch) -> ByTopic:
    made = ByTopic()
    monkeypatch.setattr(recall_module, "load_embedder", lambda: made)
    monkeypatch.setattr(recall_module, "vectors_unavailable", lambda reads: None)
    return made


def ask(session: Session, query: str, *, on: bool, tool: RecallTool | None = None) -> str:
    context = ToolContext(session.id, session.name("bob"), None, session.workspace)
    return str(
        asyncio.run((tool or RecallTool(session.store, vectors=on)).run({"query": query}, context)).content
    )


def test_a_message_in_other_words_is_found_with_vectors_and_not_without(
    session: Session, embedder: ByTopic
) -> None:
    pointer = session.say("ann", "The yacht leaves at nine.")
    session.use("ann", "remember", text="Flour comes from the mill")
    for number in range(6):
        session.say("ann", f"something else {number}")
    assert ask(session, "when does the vessel depart?", on=False) == "no matching facts or messages"
    assert pointer in ask(session, "when does the vessel depart?", on=True)
    assert "Flour comes" in ask(session, "where is the bakery?", on=True)


def test_the_vectors_are_kept_and_each_text_is_embedded_once(session: Session, embedder: ByTopic) -> None:
    for number in range(5):
        session.say("ann", f"boat {number}")
    ask(session, "ship", on=True)
    first = embedder.embedded
    session.say("ann", "one more boat")
    ask(session, "ship", on=True)
    assert embedder.embedded == first + 2
    assert session.store.one("SELECT count(*) FROM embeddings WHERE kind = 'message'")[0] == 6


def test_one_recall_makes_vectors_for_a_bounded_time_the_newest_messages_first(
    session: Session, embedder: ByTopic
) -> None:
    for number in range(recall_module.BATCH + 5):
        session.say("ann", f"boat {number}")
    ticks = iter(range(1000))
    batches = list(
        recall_module.make_vectors(session.store, session.id, embedder, seconds=lambda: float(next(ticks)))
    )
    assert [len(made) for _, made in batches] == [recall_module.BATCH]
    newest = session.store.one("SELECT max(id) FROM messages")[0]
    assert batches[0][1][0][0] == newest


def test_vectors_go_with_their_message_and_fact(session: Session, embedder: ByTopic) -> None:
    session.say("ann", "a boat")
    session.use("ann", "remember", text="Bread is dear")
    ask(session, "ship", on=True)
    session.do(lambda tx: tx.execute("DELETE FROM messages"))
    session.do(lambda tx: tx.execute("DELETE FROM facts"))
    assert session.store.one("SELECT count(*) FROM embeddings")[0] == 0


def test_without_the_extra_recall_goes_on_with_words_and_says_so_in_one_line(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    session.say("ann", "The yacht leaves at nine.")
    tool = RecallTool(session.store, vectors=True)
    assert "yacht leaves" in ask(session, "yacht", on=True, tool=tool)
    assert tool.warning is not None
    assert "\n" not in tool.warning
    assert f"({install_command('vectors')}, or" in tool.warning


def test_the_setting_is_off_by_default_and_nothing_of_it_is_imported_then() -> None:
    assert Config().recall_vectors is False
    code = (
        "import sys, watchkeeper.runtime.host_factory, watchkeeper.memory.recall\n"
        "heavy = {'wordllama', 'sqlite_vec', 'numpy'} &"
        " set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_likeness_orders_what_words_cannot_and_never_hides_what_they_find() -> None:
    texts = ["the ship sails", "a boat leaves", "bread", "rain", "snow"]
    documents = [Document(str(at), text, thread=str(at)) for at, text in enumerate(texts)]
    index = RankedIndex(documents)
    like: Any = Likeness({"0": 0.2, "1": 0.9, "2": 0.1, "3": 0.0, "4": 0.05})
    assert [hit.id for hit in index.rank("ship")] == ["0"]
    assert [hit.id for hit in index.rank("ship", likeness=like)] == ["0", "1"]
    assert "similar meaning (0.90)" in index.rank("ship", likeness=like)[1].why


def test_the_real_model_is_loaded_without_a_network() -> None:
    pytest.importorskip("wordllama")
    embedder = recall_module.load_embedder()
    (first,) = embedder.embed(["a boat"])
    assert len(first) == 256 * 4


@pytest.mark.parametrize("query", ["src/ship.py", "sail plan id", "the whole line: failed at 7"])
def test_likeness_changes_nothing_where_a_text_holds_the_query_word_for_word(query: str) -> None:
    texts = [
        "see src/ship.py and sail_plan_id",
        "the whole line: failed at 7",
        "src plan line",
        "bread",
        "snow",
    ]
    index = RankedIndex([Document(str(at), text, thread=str(at)) for at, text in enumerate(texts)])
    like = Likeness({str(at): at / 5 for at in range(5)})
    assert index.rank(query, likeness=like) == index.rank(query)
