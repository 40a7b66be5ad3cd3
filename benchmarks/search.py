"""Searching a million messages: how fast, how large the index is, and how fast it is made.

    python benchmarks/search.py [--messages 1000000] [--queries 50] [--keep FILE] [--db postgresql://…]

With `--db`, in an empty database on PostgreSQL.

The corpus is made here: words by Zipf's law, messages of log-normal length that repeat their own words, as
logs do, and every two hundredth a word of Japanese. Queries are one to three words of one message chosen at
random, so that common words are as common in them as in the corpus. Everything is measured in one process, on
one core, nothing warmed up.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from watchkeeper.store import database, driver
from watchkeeper.store.driver import Connection, decode, encode, sqlite3
from watchkeeper.store.engine import index_of
from watchkeeper.store.place import place_of
from watchkeeper.store.search import index
from watchkeeper.store.search.messages import Found, search, search_by_session
from watchkeeper.store.search.words import words_of

VOCABULARY = 300_000
AT_ONCE = 5_000
"""Messages an importer writes in one transaction."""
PER_SESSION = 300
SYLLABLES = [a + b for a in [*"bcdfghjklmnprstvwz", "ch", "st", "tr", "pl"] for b in [*"aeiou", "ai", "ou"]]


def vocabulary(rng: random.Random) -> list[str]:
    """Words, the short ones first: as in every language, they are the common ones."""
    words: set[str] = set()
    while len(words) < VOCABULARY:
        word = "".join(rng.choices(SYLLABLES, k=1 + min(4, int(rng.expovariate(0.6)))))
        words.add(word + str(rng.randrange(3000)) if rng.random() < 0.3 else word)
    return sorted(words, key=lambda word: (len(word) + 6 * rng.random(), word))


def messages(rng: random.Random) -> Iterator[str]:
    words = vocabulary(rng)
    weights = list(itertools.accumulate(1 / (rank + 2.7) ** 1.1 for rank in range(len(words))))
    for number in itertools.count():
        count = 3 + min(3000, int(rng.lognormvariate(3.8, 0.9)))
        mine = rng.choices(words, cum_weights=weights, k=count)
        text = " ".join(mine + mine[::2] + mine[: count // 2] + mine[count // 3 :])
        yield text if number % 200 else text + " データベース接続"


def build(connection: Connection, count: int, rng: random.Random) -> None:
    """The corpus, stored and indexed as an import does it."""
    on_file = isinstance(connection, sqlite3.Connection)
    stored = indexed = 0.0
    characters = 0
    source = messages(rng)
    for first in range(1, count + 1, AT_ONCE):
        texts = list(itertools.islice(source, min(AT_ONCE, count + 1 - first)))
        characters += sum(map(len, texts))
        began = time.process_time()
        connection.execute("BEGIN IMMEDIATE")
        for number, text in enumerate(texts, first):
            session_id, seq = f"s{number // PER_SESSION:06d}", number % PER_SESSION + 1
            if seq == 1 or number == 1:
                add_session(connection, session_id)
            content = [{"type": "text", "text": text}]
            connection.execute(
                "INSERT INTO messages (id, agent_id, seq, role, content, tokens, total_tokens, created_at)"
                " VALUES (?, ?, ?, 'assistant', ?, 1, ?, 1)",
                (number, f"{session_id}-a", seq, encode(content), seq),
            )
        half = time.process_time()
        # A server's indexer takes what was imported afterwards.
        if not index_of(connection).index_within() and on_file:
            raise SystemExit("the import left messages that are not indexed")
        connection.execute("COMMIT")
        stored, indexed = stored + half - began, indexed + time.process_time() - half
    megabytes = characters / 1e6
    print(f"{count:,} messages, {megabytes:,.0f} MB of text ({characters / count:,.0f} a message)")
    if on_file:
        print(
            f"stored at {megabytes / stored:,.0f} MB/s, indexed at {megabytes / indexed:,.0f} MB/s, both"
            f" {megabytes / (stored + indexed):,.0f} MB/s"
        )
    else:
        print(f"stored at {megabytes / stored:,.0f} MB/s of the client's processor time")
        began, cpu = time.perf_counter(), time.process_time()
        index_of(connection).index_until(seconds=36_000)
        taken, spent = time.perf_counter() - began, time.process_time() - cpu
        print(
            f"indexed at {megabytes / taken:,.1f} MB/s, {megabytes / spent:,.1f} MB/s of the client's processor time"
        )
    size = index_bytes(connection)
    contents = connection.execute("SELECT sum(octet_length(content)) FROM messages").fetchone()[0]
    print(
        f"index {size / 1e6:,.0f} MB, {size / contents:.3f} of the messages' bytes"
        + (f", in {len(index.parts(connection))} parts" if on_file else "")
    )


def index_bytes(connection: Connection) -> int:
    """How large the index is."""
    if not isinstance(connection, sqlite3.Connection):
        return int(connection.execute("SELECT pg_total_relation_size('message_words')").fetchone()[0])
    return sum(
        connection.execute(f"SELECT sum(length(block)) FROM {index.part_name(number)}_data").fetchone()[0]
        for number in index.parts(connection)
    )


def add_session(connection: Connection, session_id: str) -> None:
    connection.execute(
        "INSERT INTO sessions (id, user_id, goal, workspace, model, status, created_at, last_active)"
        " VALUES (?, 'u', 'g', '/w', 'm', 'done', 1, 1)",
        (session_id,),
    )
    connection.execute(
        "INSERT INTO agents (id, session_id, name, role, model, status, created_at, last_active)"
        " VALUES (?, ?, 'a', 'r', 'm', 'done', 1, 1)",
        (f"{session_id}-a", session_id),
    )


def live(connection: Connection, count: int, rng: random.Random) -> None:
    """How long a host's indexer holds the write lock: no step is delayed by more."""
    last = connection.execute("SELECT max(id) FROM messages").fetchone()[0]
    source = messages(rng)
    add_session(connection, "live")
    connection.execute("BEGIN")
    connection.executemany(
        "INSERT INTO messages (id, agent_id, seq, role, content, tokens, total_tokens, created_at)"
        " VALUES (?, 'live-a', ?, 'assistant', ?, 1, 1, 1)",
        [(last + seq, seq, encode(text)) for seq, text in enumerate(itertools.islice(source, count), 1)],
    )
    connection.execute("COMMIT")
    held: list[float] = []
    began_at = [0.0]
    begin = driver.begin_immediate

    def timed(one: Connection, **options: Any) -> None:
        begin(one, **options)
        began_at[0] = time.perf_counter()

    driver.begin_immediate = timed
    try:
        while True:
            before = index_of(connection).unindexed()
            more = index_of(connection).index_batch().more
            if index_of(connection).unindexed() != before:
                held.append(time.perf_counter() - began_at[0])
            if not more:
                break
    finally:
        driver.begin_immediate = begin
    held.sort()
    print(f"live: {count:,} messages in {len(held)} batches; write lock held {report(held)}")


def report(seconds: list[float]) -> str:
    ordered = sorted(1000 * one for one in seconds)
    return f"median {statistics.median(ordered):.1f} ms, p95 {ordered[int(0.95 * len(ordered))]:.1f} ms, most {ordered[-1]:.1f} ms"


def ask(connection: Connection, count: int, queries: int, rng: random.Random) -> None:
    asked: dict[str, list[str]] = {"1 word": [], "2 words": [], "3 words": []}
    while len(asked["3 words"]) < queries:
        row = connection.execute(
            "SELECT content FROM messages WHERE id = ?", (rng.randint(1, count),)
        ).fetchone()
        words = words_of(decode(row[0])).split()
        if len(words) >= 3:
            for number, texts in enumerate(asked.values(), 1):
                texts.append(" ".join(rng.sample(words, number)))
    mixed = [texts[at] for at, texts in zip(range(queries), itertools.cycle(asked.values()), strict=False)]
    kinds: list[tuple[str, Callable[[str], Found]]] = [
        ("words, newest first", lambda text: search(connection, text, prefix=False, deadline_seconds=10)),
        (
            "words, ranked",
            lambda text: search(connection, text, ranked=True, prefix=False, deadline_seconds=10),
        ),
        ("last word a prefix", lambda text: search(connection, text, deadline_seconds=10)),
        ("newest of each session, 0.2 s at most", lambda text: search_by_session(connection, text)),
    ]
    for name, run in kinds:
        for group, texts in [*asked.items(), ("1 to 3 words", mixed)]:
            times, processor, cut = [], [], 0
            for text in texts:
                began, cpu = time.perf_counter(), time.process_time()
                found = run(text)
                times.append(time.perf_counter() - began)
                processor.append(time.process_time() - cpu)
                cut += found.stopped is not None and found.stopped != "limit"
                if found.complete and not found.hits:
                    raise SystemExit(f"nothing found for {text!r}, which a message holds")
            print(
                f"{name:38} {group:12} {report(times)}; median of processor time"
                f" {1000 * statistics.median(processor):.1f} ms"
                + (f"; {cut} of {len(texts)} not complete" if cut else "")
            )
    letters: list[float] = []
    spent = 0.0
    for text in asked["1 word"]:
        for length in range(3, min(len(text), 6) + 1):
            began, cpu = time.perf_counter(), time.process_time()
            search(connection, text[:length], deadline_seconds=10)
            letters.append(time.perf_counter() - began)
            spent += time.process_time() - cpu
    print(
        f"{'as one types, from three letters':51} {report(letters)}; mean of processor time"
        f" {1000 * spent / len(letters):.1f} ms"
    )
    phrases = [f'"{text}"' for text in asked["2 words"]]
    times = []
    for text in phrases:
        began = time.perf_counter()
        search(connection, text)
        times.append(time.perf_counter() - began)
    print(f"{'phrases, 0.2 s at most':51} {report(times)}")
    late: list[float] = []
    for text in ["データ", "ba", *asked["1 word"]]:
        for after in (0.001, 0.005, 0.02):
            stop = time.perf_counter() + after
            found = search_by_session(
                connection,
                text,
                deadline_seconds=10,
                cancelled=lambda: time.perf_counter() > stop,  # noqa: B023
            )  # noqa: B023, RUF100
            if found.stopped == "cancelled":
                late.append(time.perf_counter() - stop)
    print(f"{'from another key to the end of the search':51} {report(late)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument(
        "--keep", type=Path, help="Build the corpus in this file, or search the one that is there."
    )
    parser.add_argument("--db", help="An empty database on PostgreSQL.")
    options = parser.parse_args()
    rng = random.Random(6)
    if options.db:
        place = place_of(options.db)
        with closing(database.open_writable(place)) as connection:
            print(f"PostgreSQL {connection.execute('SHOW server_version').fetchone()[0]}")
            if connection.execute("SELECT count(*) FROM messages").fetchone()[0] == 0:
                build(connection, options.messages, rng)
        with closing(database.open_readonly(place)) as reader:
            ask(reader, options.messages, options.queries, rng)
        return
    print(f"SQLite {sqlite3.sqlite_version}")
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "watchkeeper.db"
        built = path.exists()
        connection = database.open_writable(path)
        connection.execute("PRAGMA synchronous=NORMAL")
        if not built:
            build(connection, options.messages, rng)
            live(connection, 10_000, rng)
        connection.close()
        reader = database.open_readonly(path)
        ask(reader, options.messages, options.queries, rng)
        reader.close()


if __name__ == "__main__":
    main()
