"""PostgreSQL finds what SQLite finds: facts, and messages whose commits come in another order than their ids."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.core.search.conftest import STYLED, STYLED_WORDS, Library

from watchkeeper.runtime import background
from watchkeeper.store import database
from watchkeeper.store.driver import FACTS_FOUND, Connection, Queries
from watchkeeper.store.engine import index_of
from watchkeeper.store.facts import find_facts
from watchkeeper.store.place import DatabaseUrl
from watchkeeper.store.prune import plan_prune, prune_sessions
from watchkeeper.store.search import postgres_index
from watchkeeper.store.search.index import MessageIndex
from watchkeeper.store.search.messages import (
    Stopped,
    list_sessions,
    replies_that_name,
    search,
    search_by_session,
)
from watchkeeper.store.search.passages import holders

WORDS = [
    "running", "Runs", "ran", "Zürich", "zurich", "snake_case", "snake", "relational", "relation", "conflated", "hoping",
    "データベース", "a", "x1", "it's", 'say"so"', "back\\slash", "naïve", "_", "é", "the", "w" * 1500, "w" * 1499, "ﬁne", "-",
    "\ue000s1", "100%", "& | ! <-> :*", "NUL\x00byte", "straße", "İx",
]  # fmt: skip


@pytest.fixture
def server(postgres_place: DatabaseUrl) -> Iterator[Library]:
    with closing(database.open_writable(postgres_place)) as connection:
        yield Library(connection)


def some_words(chance: random.Random, most: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, most)))


def test_the_same_facts_are_found_on_both(library: Library, server: Library) -> None:
    chance, sides = random.Random(19), (library, server)
    for one in sides:
        one.session("s1")
        one.session("s2")
    for number in range(1, 81):
        text = some_words(chance, 4).replace("\x00", "")
        for one in sides:
            one.fact(text, f"s{1 + number % 2}", number)
        if number == 50:
            for one in sides:
                assert index_of(one.connection).index_until(seconds=60)
                one.connection.execute("DELETE FROM facts WHERE id IN (3, 4, 5)")
                one.connection.execute("UPDATE facts SET text = 'rewritten relations' WHERE id = 7")
    for _ in range(60):
        words = some_words(chance, 3).split()
        terms = [word for word in words if word.replace("_", "").isalnum()] or ["nothing"]
        found = []
        for one in sides:
            reads = Queries(one.connection)
            rows = [
                find_facts(reads, session_id, words, everyone=True, workspace="/w")
                for session_id in ("s1", None)
            ]
            every = reads.all(
                f"SELECT f.id FROM facts f {FACTS_FOUND} ?",
                (index_of(reads).facts_holding(terms, every=True),),
            )
            lines = list_sessions(Queries(one.connection), " ".join(f'"{term}"' for term in terms))
            found.append(
                (
                    [sorted(row[0] for row in some) for some in rows],
                    sorted(row[0] for row in every),
                    sorted(line.id for line in lines),
                )
            )
        assert found[0] == found[1], words


def test_the_best_facts_come_first_on_both(library: Library, server: Library) -> None:
    for one in (library, server):
        one.session("s1")
        for number, text in enumerate(
            ["kraken", "a kraken that is one of many in the sea", "kraken kraken", "squid"], 1
        ):
            one.fact(text, "s1", number)
        found = find_facts(Queries(one.connection), "s1", ["krakens"])
        assert [row[0] for row in found] == [3, 1, 2]


def test_what_commits_late_with_an_early_id_is_found_before_and_after_it_is_indexed(server, postgres_place):
    agent, other_agent = server.session("s1"), server.session("s2")
    with closing(database.open_writable(postgres_place)) as slow:
        slow.execute("BEGIN")
        early = Library(slow).say(agent, "an early kraken")
        late = server.say(other_agent, "a late kraken")
        assert index_of(server.connection).index_until(seconds=60)
        assert [hit.message_id for hit in search(server.connection, "kraken", deadline_seconds=60).hits] == [
            late
        ]
        slow.execute("COMMIT")
    for _ in ("not indexed", "indexed"):
        assert [hit.message_id for hit in search(server.connection, "kraken", deadline_seconds=60).hits] == [
            late,
            early,
        ]
        hits = search_by_session(server.connection, "krak", deadline_seconds=60).hits
        assert [hit.session_id for hit in hits] == ["s2", "s1"]
        for session_id, number in (("s1", early), ("s2", late)):
            assert holders(Queries(server.connection), session_id, ["kraken"], {}).of == {"kraken": [number]}
            forms = {"krak": ("kraks", "kraken")}
            assert holders(Queries(server.connection), session_id, ["krak"], forms).of == {"krak": [number]}
        replies, whole = replies_that_name(server.connection, "early kraken", deadline_seconds=60)
        assert whole
        assert [reply.session_id for reply in replies] == ["s1"]
        assert index_of(server.connection).index_until(seconds=60)
    assert index_of(server.connection).unindexed() == 0


def test_words_are_found_behind_and_inside_colours_on_postgresql(server: Library) -> None:
    server.say(server.session("s1"), STYLED)
    for _ in ("not indexed", "indexed"):
        for typed in STYLED_WORDS:
            assert [hit.seq for hit in search(server.connection, typed, deadline_seconds=60).hits] == [1], (
                typed
            )
        assert index_of(server.connection).index_until(seconds=60)


def test_a_message_with_too_many_words_for_the_index_is_searched_all_the_same(server, monkeypatch):
    monkeypatch.setattr(postgres_index, "MOST_BYTES", 4_500)
    many = "".join(map(chr, range(0x4E00, 0x5100)))
    agent = server.session("s1")
    for text in (f"kraken {many}", "kraken", "long " + "ж" * 2_000):
        server.say(agent, text)
    assert index_of(server.connection).index_until(seconds=60)
    rows = server.connection.execute("SELECT id, unfit FROM messages_unindexed").fetchall()
    assert [tuple(row) for row in rows] == [(1, 1)]
    for typed, found in (
        ("kraken", [2, 1]), (many[70:73], [1]), ("ж" * 2_000, [3]), ("ж" * 1_999, [3]), ('"' + "ж" * 1_999 + '"', []),
    ):  # fmt: skip
        hits = search(server.connection, typed, deadline_seconds=60).hits
        assert [hit.message_id for hit in hits] == found
    server.connection.execute("DELETE FROM messages")
    for table in ("messages_unindexed", "message_words"):
        assert server.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0


def test_hits_are_found_in_pages_over_all_ids(server: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_index, "FIRST_RANGE", 4)
    monkeypatch.setattr(postgres_index, "FIRST_PAGE", 2)
    agents = [server.session(f"s{number}") for number in range(5)]
    ids = [server.say(agents[number % 5], f"kraken {'even' * (number % 2)}") for number in range(40)]
    assert index_of(server.connection).index_until(seconds=60)
    for typed, found in (("kraken", ids[::-1]), ("even", ids[::-2])):
        hits = search(server.connection, typed, deadline_seconds=60).hits
        assert [hit.message_id for hit in hits] == found
    by_session = search_by_session(server.connection, "kraken", deadline_seconds=60).hits
    assert [hit.message_id for hit in by_session] == ids[:-6:-1]


def test_a_statement_that_takes_too_long_ends_at_the_deadline(server: Library) -> None:
    server.say(server.session("s1"), "kraken")
    assert index_of(server.connection).index_until(seconds=60)
    server.connection.execute(
        "CREATE OR REPLACE FUNCTION wk_messages_with(wanted tsquery, above bigint, through bigint, most bigint)"
        " RETURNS SETOF bigint LANGUAGE sql AS $$ SELECT 1::bigint FROM pg_sleep(20) $$"
    )
    found = search(server.connection, "kraken", deadline_seconds=0.05)
    assert (found.hits, found.stopped) == ((), Stopped.DEADLINE)
    assert server.connection.execute("SHOW statement_timeout").fetchone()[0] == "0"


def test_a_pruned_session_takes_its_words_along(server: Library, postgres_place: DatabaseUrl) -> None:
    for session_id in ("s1", "s2"):
        server.say(server.session(session_id), "kraken")
        server.fact("kraken", session_id)
    assert index_of(server.connection).index_until(seconds=60)
    server.say("s1-a", "a kraken that is not indexed")
    plan = plan_prune(postgres_place, names=["s1"])
    assert plan.file_bytes > 0
    prune_sessions(postgres_place, plan)
    assert [hit.session_id for hit in search(server.connection, "kraken", deadline_seconds=60).hits] == ["s2"]
    for table in ("message_words", "fact_words", "messages_unindexed", "facts_unindexed"):
        left = server.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        assert left == (1 if table.endswith("words") else 0), table


async def test_a_host_indexes_on_after_its_connection_was_cut(server, postgres_place, monkeypatch):
    cuts = 0

    def index_after_cuts(connection: Connection) -> MessageIndex:
        nonlocal cuts
        cuts += 1
        if cuts <= 2:
            connection.execute("BEGIN")
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return index_of(connection)

    monkeypatch.setattr(background, "INDEX_SECONDS", 0.0)
    monkeypatch.setattr(background, "index_of", index_after_cuts)
    server.say(server.session("s1"), "kraken")
    beside = background.Indexing(postgres_place)
    running = asyncio.create_task(beside.run())
    async with asyncio.timeout(20):
        while index_of(server.connection).unindexed():  # noqa: ASYNC110 - it is another connection that changes it
            await asyncio.sleep(0)
    assert cuts > 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await beside.close()
