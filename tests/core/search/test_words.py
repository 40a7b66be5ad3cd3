"""What of a message is indexed: quickly told, and the same as slowly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from tests.core.search.conftest import in_memory

from watchkeeper.store.engine import index_of
from watchkeeper.store.search import words
from watchkeeper.store.search.index import indexed_through
from watchkeeper.store.search.messages import search
from watchkeeper.store.search.words import indexed_text

TEXTS = st.text(
    st.sampled_from("ab –✓é→\ufffd😀\ufe0fデータ中한〇\u2e80\U00020000ﬀ")
    | st.characters(exclude_categories=["Cs"])
)


@given(TEXTS)
@example("a dash – and a tick ✓")
def test_pairs_of_characters_are_made_wherever_there_are_some(text: str) -> None:
    assert words.tokenizable(text) == words._CJK.sub(words._pairs, text)


def test_words_come_in_the_order_in_which_they_were_said() -> None:
    content: list[Any] = [
        "one", {"type": "text", "text": "two"}, {"type": "thinking", "thinking": "three", "signature": "x" * 20},
        {"type": "tool_use", "name": "not this", "input": {"a": ["four", {"b": "five"}], "c": 6}},
        {"type": "tool_result", "content": [{"type": "text", "text": "seven"}, "eight", None]},
        {"type": "document", "source": {"type": "text", "data": "nine"}}, {"type": "image", "source": {"data": "nor this"}}, 7,
        {"type": "tool_result", "content": "ten"}, {"type": "text", "text": None},
    ]  # fmt: skip
    assert words.words_of(content).split() == [
        "one", "two", "three", "four", "five", "seven", "eight", "nine", "ten",
    ]  # fmt: skip


def test_an_import_indexes_what_it_inserts_also_behind_messages_that_wait_for_an_indexer(empty: Path) -> None:
    library = in_memory(empty)
    connection, agent = library.connection, library.session("s")

    def imports(*texts: str) -> None:
        connection.execute("BEGIN")
        for text in texts:
            library.say(agent, text)
        index_of(connection).index_inserted([("s", indexed_text(text)) for text in texts])
        connection.execute("COMMIT")

    imports("albatross", "bittern")
    assert indexed_through(connection) == 2
    library.say(agent, "cormorant")  # a host's, not indexed yet
    imports("dunlin")
    imports()
    assert indexed_through(connection) == 4
    for seq, word in enumerate(("albatross", "bittern", "cormorant", "dunlin"), 1):
        assert [hit.seq for hit in search(connection, word, deadline_seconds=60).hits] == [seq]
        assert [hit.seq for hit in search(connection, word, session_id="s", deadline_seconds=60).hits] == [
            seq
        ]
