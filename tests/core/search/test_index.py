"""The index beside the messages: in whatever order things happen, it finds what reading them all finds."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from tests.core.search.conftest import Library, in_memory

from watchkeeper.records.text import unstyled
from watchkeeper.store import database, driver
from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.store.engine import index_of
from watchkeeper.store.search import index, words
from watchkeeper.store.search.index import indexed_through
from watchkeeper.store.search.messages import search, search_by_session

WORDS = [
    "kraken", "krakens", "Krill", "zürich", "zurich", "a", "x1", "snake_case", "schema.py", "データ", "データベース",
    "ス", "-", "straße", "İx", "é",
]  # fmt: skip
ODD = st.text(st.characters(exclude_characters='"', exclude_categories=["Cs"]), max_size=4)
TEXTS = st.lists(st.sampled_from(WORDS) | ODD, max_size=6).map(" ".join)
SESSIONS = ["s0", "s1", "s2"]
STEPS = st.one_of(
    st.tuples(st.just("say"), st.sampled_from(SESSIONS), TEXTS),
    st.tuples(st.just("say and index at once"), st.sampled_from(SESSIONS), TEXTS),
    st.tuples(st.just("index"), st.integers(1, 5), st.integers(1, 60)),
    st.tuples(st.just("index while others write"), st.sampled_from(SESSIONS), TEXTS),
    st.tuples(st.just("index while others write again"), st.sampled_from(SESSIONS), TEXTS),
    st.tuples(st.just("say again"), st.sampled_from(SESSIONS), TEXTS),
    st.tuples(st.just("delete"), st.sampled_from(SESSIONS), st.booleans()),
    st.tuples(st.just("purge"), st.sampled_from(SESSIONS), st.integers(0, 3)),
    st.tuples(st.just("search"), TEXTS, st.booleans()),
)


class Reading:
    """The answer by reading every message: tokens as FTS5 tells them, compared one by one."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute(
            "CREATE VIRTUAL TABLE t USING fts5 (text, tokenize='unicode61 remove_diacritics 2')"
        )
        self.connection.execute("CREATE VIRTUAL TABLE v USING fts5vocab (t, instance)")

    def tokens(self, text: str) -> list[str]:
        self.connection.execute("DELETE FROM t")
        self.connection.execute("INSERT INTO t (text) VALUES (?)", (words.tokenizable(text),))
        return [row[0] for row in self.connection.execute("SELECT term FROM v ORDER BY offset")]

    def holds(self, text: str, words: list[tuple[list[str], bool]]) -> bool:
        tokens = self.tokens(unstyled(text))  # the words on the screen
        return all(
            any(self._at(tokens, at, word, prefix) for at in range(len(tokens))) for word, prefix in words
        )

    @staticmethod
    def _at(tokens: list[str], at: int, word: list[str], prefix: bool) -> bool:
        here = tokens[at : at + len(word)]
        if prefix and len(here) == len(word):
            return here[:-1] == word[:-1] and here[-1].startswith(word[-1])
        return here == word

    def words(self, typed: str) -> list[tuple[list[str], bool]]:
        found = []
        words = typed.split()
        for at, word in enumerate(words):
            tokens = self.tokens(word)
            if not tokens:
                continue
            pairs = "\u3040" < tokens[-1][0] < "\u9fff"
            if pairs and len(tokens) > 1:
                found.append((tokens[:-1], False))
            elif pairs:
                found.append((tokens, True))
            else:
                found.append((tokens, at == len(words) - 1 and len(tokens[-1]) >= 3 and word[-1].isalnum()))
        return found


@settings(max_examples=60)
@example(
    steps=[
        *[("say", "s1", "kraken")] * 2, ("index", 5, 60), ("purge", "s1", 1), ("index while others write again", "s2", "squid"),
        ("search", "squid", False), ("say", "s1", "kraken"), ("delete", "s1", True), ("search", "kraken", False), ("delete", "s1", False),
    ]
)  # fmt: skip
@example(
    steps=[
        *[("say", "s1", "the same kraken")] * 2, ("index", 5, 60), ("say again", "s2", "the same squid"), ("search", "same", False),
        ("index", 5, 60), ("search", "same", False), ("say", "s1", "the same whale"), ("index", 5, 60), ("search", "same", False),
    ]
)  # fmt: skip
@given(steps=st.lists(STEPS, max_size=40))
def test_a_search_finds_what_reading_every_message_finds(empty, steps):
    with mock.patch.multiple(index, PART_MESSAGES=4):
        play(in_memory(empty), steps)


@settings(max_examples=8, phases=[Phase.generate], derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(STEPS, min_size=15, max_size=30))
def test_a_search_on_postgresql_finds_what_reading_every_message_finds(postgres_place, steps):
    with closing(database.open_writable(postgres_place)) as connection:
        connection.execute(
            "TRUNCATE sessions, agents, messages, messages_unindexed, message_words RESTART IDENTITY"
        )
        play(Library(connection), steps)


@contextmanager
def before_the_lock(act: Callable[[], object]) -> Iterator[None]:
    """`act` happens when an indexer has read its batch and has not yet taken the write lock."""

    def begin(connection: Connection, **about: object) -> None:
        act()
        connection.execute("BEGIN IMMEDIATE")

    with mock.patch.object(driver, "begin_immediate", begin):
        yield


def play(library: Library, steps: list[tuple[str, Any, Any]]) -> None:
    """Do the steps; every search among them is compared with reading everything."""
    reading = Reading()
    said: dict[int, tuple[str, str]] = {}
    deleted: set[str] = set()
    for session_id in SESSIONS:
        library.session(session_id)
    run = library.connection.execute

    def say(session_id: str, text: str) -> int:
        message_id = library.say(f"{session_id}-a", text)
        said[message_id] = (session_id, text)
        return message_id

    def purge(session_id: str, keep: int) -> None:
        for number in [number for number, (owner, _) in said.items() if owner == session_id][keep:]:
            run("DELETE FROM messages WHERE id = ?", (number,))
            del said[number]

    def say_again(session_id: str, text: str) -> None:
        """The newest message goes, and another one gets its id."""
        if said:
            run("DELETE FROM messages WHERE id = ?", (max(said),))
            del said[max(said)]
        say(session_id, text)

    for step, first, second in [*steps, ("search", "kraken", True), ("search", "ス", True)]:
        if step == "say":
            say(first, second)
        elif step == "say and index at once":
            run("BEGIN IMMEDIATE")
            say(first, second)
            index_of(library.connection).index_within(most_messages=3)
            run("COMMIT")
        elif step == "index":
            index_of(library.connection).index_batch(most_messages=first, most_characters=second)
        elif step == "index while others write":
            with before_the_lock(lambda: say(first, second)):  # noqa: B023 - called within
                index_of(library.connection).index_batch()
        elif step == "say again":
            say_again(first, second)
        elif step == "index while others write again":
            with before_the_lock(lambda: say_again(first, second)):  # noqa: B023 - called within
                index_of(library.connection).index_batch()
        elif step == "delete":
            run("UPDATE sessions SET deleted_at = ? WHERE id = ?", (1.0 if second else None, first))
            deleted = deleted | {first} if second else deleted - {first}
        elif step == "purge":
            purge(first, second)
        else:
            compare(
                library,
                reading,
                first,
                {n: one for n, one in said.items() if one[0] not in deleted},
                ranked=second,
            )
    library.connection.close()
    reading.connection.close()


def compare(
    library: Library, reading: Reading, typed: str, said: dict[int, tuple[str, str]], *, ranked: bool
) -> None:
    words = reading.words(typed)
    held = [
        number
        for number, (_, text) in sorted(said.items(), reverse=True)
        if words and reading.holds(text, words)
    ]
    found = search(library.connection, typed, ranked=ranked, limit=1000, deadline_seconds=60)
    assert found.complete
    ids = [hit.message_id for hit in found.hits]
    assert (sorted(ids, reverse=True) if ranked else ids) == held, typed
    by_session = search_by_session(library.connection, typed, deadline_seconds=60)
    assert {hit.session_id for hit in by_session.hits} == {said[number][0] for number in held}
    for session_id in SESSIONS:
        alone = search(library.connection, typed, session_id=session_id, limit=1000, deadline_seconds=60)
        seen = [hit.message_id for hit in alone.hits]
        assert seen == [number for number in held if said[number][0] == session_id]


def test_an_import_indexes_what_it_inserts_in_its_own_transaction(library: Library, tmp_path: Path) -> None:
    agent = library.session("s1")
    library.say(agent, "older")
    run = library.connection.execute
    run("BEGIN IMMEDIATE")
    for number in range(5):
        library.say(agent, f"kraken n{number}")
    assert not index_of(library.connection).index_within(most_messages=2)
    assert index_of(library.connection).index_within()
    other = database.open_readonly(tmp_path / "watchkeeper.db")
    assert indexed_through(other) == 0
    other.close()
    run("COMMIT")
    assert index_of(library.connection).unindexed() == 0
    assert [hit.seq for hit in search(library.connection, "n3", deadline_seconds=60).hits] == [5]


def test_an_indexer_gives_way_to_whoever_writes(library: Library, tmp_path: Path) -> None:
    library.say(library.session("s1"), "kraken")
    other = database.open_writable(tmp_path / "watchkeeper.db")
    other.execute("BEGIN IMMEDIATE")
    library.connection.execute("PRAGMA busy_timeout=0")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        index_of(library.connection).index_batch()
    assert not index_of(library.connection).index_until(seconds=0.05)
    other.execute("ROLLBACK")
    other.close()
    assert index_of(library.connection).index_until(seconds=60)


_INDEXER = """
import sys
from pathlib import Path
from watchkeeper.store import database, driver
from watchkeeper.store.engine import index_of
from watchkeeper.store.search import index as message_index
message_index.PART_MESSAGES = 8
connection = database.open_writable(Path(sys.argv[1]))
left = int(sys.argv[2])

def count(statement):
    global left
    left -= 1
    if left == 0:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)

connection.set_trace_callback(count)
while index_of(connection).index_batch(most_messages=5).more:
    pass
"""


def test_an_indexer_killed_before_any_statement_loses_nothing(library, tmp_path, monkeypatch):
    monkeypatch.setattr(index, "PART_MESSAGES", 8)
    agent = library.session("s1")
    for number in range(12):
        library.say(agent, f"kraken n{number}")
    wanted = list(range(12, 0, -1))
    statement, ended = 0, False
    while not ended:
        statement += 7  # a prime, so that every kind of statement is met in some round
        killed = subprocess.run(
            [sys.executable, "-c", _INDEXER, str(tmp_path / "watchkeeper.db"), str(statement)], timeout=60
        )
        assert killed.returncode in (0, -signal.SIGKILL)
        ended = killed.returncode == 0
        found = search(library.connection, "kraken", deadline_seconds=60)
        assert [hit.seq for hit in found.hits] == wanted
        assert library.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert statement > 7
    assert index_of(library.connection).unindexed() == 0
