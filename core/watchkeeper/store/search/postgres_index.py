"""The index of words on PostgreSQL: it finds what SQLite's finds, since both hold the words of one tokenizer.

`message_words` and `fact_words` hold each row's words as a `tsvector` with a GIN index; of facts the stems, with their
places. Triggers note every new message and fact in `messages_unindexed` and `facts_unindexed`, and take words along
when a row is deleted. An indexer takes from there whatever is committed: ids are no measure of what is indexed, since
they are reserved in blocks and commit in another order. What is still noted there is searched as well, so that a
search is complete whether or not an indexer runs.

A row whose words are too many for one `tsvector` stays there, marked `unfit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from heapq import merge
from itertools import islice
from typing import Any

from watchkeeper.store.driver import Connection, decode, encode, list_of, plain, sqlite3
from watchkeeper.store.faultpoints import reach
from watchkeeper.store.search.index import (
    BATCH_CHARACTERS,
    BATCH_MESSAGES,
    LONGEST_WORD_BYTES,
    TAIL,
    Batch,
    Interrupted,
    MessageIndex,
    Place,
    Walk,
    Word,
    match_of,
    of_session,
)
from watchkeeper.store.search.words import WordLists, WordTable, indexed_text, session_word

# `LONGEST_WORD_BYTES`: PostgreSQL takes 2,046 bytes of a word.
MOST_BYTES = 1_000_000
"""A `tsvector` holds a little more than this of words."""
MOST_PLACES = 16_383
"""PostgreSQL counts no further."""
FIRST_RANGE, LAST_RANGE, MOST_RANGES = 4_096, 65_536, 16
"""A search looks at so many of the newest ids at first, then at eight times as many each time: a common word is in
most messages, and few of them are wanted. A range ends at so many, or at a part of all ids: between two statements a
search may end."""
FIRST_PAGE, LAST_PAGE = 100, 10_000
"""A search asks for so many hits of a range at first, then for four times as many each time."""
WAITING_AT_ONCE = 64
FACTS_AT_ONCE = 500
IDLE_SECONDS = 30
"""How long an indexer may take to split the texts of a batch into words."""


def _noting(kind: str, update: str = "") -> tuple[str, ...]:
    """The table of what waits for an indexer, and its triggers."""
    return (
        f"CREATE TABLE {kind}s_unindexed (id bigint PRIMARY KEY, unfit bigint NOT NULL DEFAULT 0)",
        f"CREATE FUNCTION wk_{kind}_is_unindexed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF TG_OP <> 'INSERT' THEN DELETE FROM {kind}s_unindexed WHERE id = OLD.id;"
        f" DELETE FROM {kind}_words WHERE id = OLD.id; END IF;"
        f" IF TG_OP <> 'DELETE' THEN INSERT INTO {kind}s_unindexed (id) VALUES (NEW.id); END IF;"
        " RETURN NULL; END $$",
        f"CREATE TRIGGER {kind}s_wait_for_the_index AFTER INSERT OR DELETE{update} ON {kind}s"
        f" FOR EACH ROW EXECUTE FUNCTION wk_{kind}_is_unindexed()",
    )


# The planner knows nothing of how long reading a `tsvector` takes: left alone, it reads all of them for a common word,
# or walks the ids from the newest on. It is to see the values: a plan for any of them suits none.
_PLANNED_EACH_TIME = (
    "CREATE FUNCTION wk_{name}(wanted tsquery, above bigint, through bigint, most bigint) RETURNS SETOF bigint ROWS 100"
    " LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_indexscan = off AS $$ BEGIN RETURN QUERY EXECUTE"
    " format('SELECT {id} FROM message_words WHERE words @@ %L::tsquery AND id > %s AND id <= %s {grouped} ORDER BY 1"
    " DESC LIMIT %s', wanted, above, through, most); END $$"
)
CREATION = (
    'CREATE TABLE message_words (id bigint PRIMARY KEY, session_id text COLLATE "C" NOT NULL, words tsvector NOT NULL)',
    "CREATE INDEX message_words_index ON message_words USING gin (words)",
    "CREATE TABLE fact_words (id bigint PRIMARY KEY, words tsvector NOT NULL)",
    "CREATE INDEX fact_words_index ON fact_words USING gin (words)",
    *_noting("message"),
    *_noting("fact", " OR UPDATE OF text"),
    _PLANNED_EACH_TIME.format(name="messages_with", id="id", grouped=""),
    _PLANNED_EACH_TIME.format(name="newest_with", id="max(id)", grouped="GROUP BY session_id"),
    "CREATE FUNCTION wk_facts_with(wanted json) RETURNS SETOF bigint ROWS 100"
    " LANGUAGE sql STABLE SET enable_seqscan = off AS $$ SELECT id FROM fact_words WHERE words @@ CAST(wanted ->> 'words' AS tsquery)"
    " UNION SELECT CAST(value AS bigint) FROM json_array_elements_text(wanted -> 'ids') $$",
)  # fmt: skip
"""Tables, triggers and functions, in the order in which they are made."""


# --- The indexer ------------------------------------------------------------------------------------------------

_NEXT = (
    "SELECT u.id, octet_length(m.content) FROM messages_unindexed u JOIN messages m ON m.id = u.id WHERE u.unfit = 0"
    " ORDER BY u.id LIMIT ? FOR UPDATE OF u SKIP LOCKED"
)
_PATIENT = (
    "SELECT set_config('synchronous_commit', 'off', true),"
    f" set_config('idle_in_transaction_session_timeout', '{IDLE_SECONDS}s', true)"
)
"""What a power failure takes is indexed again. Only a prune of the same rows waits for an indexer."""
_CONTENTS = (
    "SELECT m.id, a.session_id, m.content FROM messages m LEFT JOIN agents a ON a.id = m.agent_id WHERE m.id = ANY(?)"
    " ORDER BY m.id"
)
_NEXT_FACTS = (
    "SELECT u.id, f.text FROM facts_unindexed u JOIN facts f ON f.id = u.id WHERE u.unfit = 0"
    " ORDER BY u.id LIMIT ? FOR UPDATE OF u SKIP LOCKED"
)


def _index_messages(connection: Connection, most_messages: int, most_characters: int) -> tuple[int, bool]:
    noted = connection.execute(_NEXT, (most_messages,)).fetchall()
    ids: list[int] = []
    size = 0
    for message_id, length in noted:
        if ids and size + length > most_characters:
            break
        ids.append(message_id)
        size += length
    if not ids:
        return 0, False
    rows = connection.execute(_CONTENTS, (list_of(ids),)).fetchall()
    with closing(WordLists()) as table:
        words = table.words_of([indexed_text(decode(row[2])) for row in rows])
    made, unfit = [], []
    for (message_id, session_id, _), each in zip(rows, words, strict=True):
        lexemes = {_lexeme(word) for word in each}
        if sum(len(lexeme.encode()) for lexeme in lexemes) > MOST_BYTES:
            unfit.append(message_id)
            continue
        if session_id is not None:
            lexemes.add(session_word(session_id))
        made.append((message_id, session_id or "", list(lexemes)))
    connection.executemany(
        "INSERT INTO message_words (id, session_id, words) VALUES (?, ?, array_to_tsvector(?))", made
    )
    _settle(connection, "messages", [row[0] for row in made], unfit)
    return len(ids), len(noted) == most_messages or len(ids) < len(noted)


def _index_facts(connection: Connection) -> bool:
    rows = connection.execute(_NEXT_FACTS, (FACTS_AT_ONCE,)).fetchall()
    if not rows:
        return False
    with closing(WordTable(stems=True)) as table:
        tokens = table.tokens_of([row[1] for row in rows])
    made, unfit = [], []
    for (fact_id, _), each in zip(rows, tokens, strict=True):
        places: dict[str, list[int]] = {}
        for place, token in enumerate(each, 1):
            places.setdefault(_lexeme(token), []).append(min(place, MOST_PLACES))
        if sum(len(lexeme.encode()) + 4 * len(at) for lexeme, at in places.items()) > MOST_BYTES:
            unfit.append(fact_id)
            continue
        made.append(
            (
                fact_id,
                " ".join(f"{_quoted(lexeme)}:{','.join(map(str, at))}" for lexeme, at in places.items()),
            )
        )
    connection.executemany("INSERT INTO fact_words (id, words) VALUES (?, CAST(? AS tsvector))", made)
    _settle(connection, "facts", [row[0] for row in made], unfit)
    return len(rows) == FACTS_AT_ONCE


def _settle(connection: Connection, kind: str, made: Sequence[int], unfit: Sequence[int]) -> None:
    connection.execute(f"DELETE FROM {kind}_unindexed WHERE id = ANY(?)", (list_of(made),))
    if unfit:
        connection.execute(f"UPDATE {kind}_unindexed SET unfit = 1 WHERE id = ANY(?)", (list_of(unfit),))


# --- The index ------------------------------------------------------------------------------------------------

RANKED_FACTS = 2_000
"""So many of the newest facts that hold a word are ranked."""

_PLACES = (
    "SELECT w.id, a.session_id, m.agent_id, m.seq, m.role, m.created_at, s.deleted_at IS NULL AND s.id IS NOT NULL"
    " FROM {function}(CAST(? AS tsquery), ?, ?, ?) AS w (id) LEFT JOIN messages m ON m.id = w.id"
    " LEFT JOIN agents a ON a.id = m.agent_id LEFT JOIN sessions s ON s.id = a.session_id ORDER BY w.id DESC"
)


class _PostgresWalk:
    """A walk over ranges of ids, from the newest to the oldest."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def unindexed(self, session_id: str | None) -> Iterator[Any]:
        among = (
            " JOIN messages m ON m.id = u.id JOIN agents a ON a.id = m.agent_id WHERE a.session_id = ?"
            if session_id is not None
            else ""
        )
        sql = f"SELECT u.id FROM messages_unindexed u{among} ORDER BY u.id DESC"
        bound = (session_id,) if session_id is not None else ()
        numbers = [row[0] for row in self._connection.execute(sql, bound)]
        for at in range(0, len(numbers), WAITING_AT_ONCE):
            some = list_of(numbers[at : at + WAITING_AT_ONCE])
            yield from self._connection.execute(TAIL.format("= ANY(?1)"), (some, session_id))

    def places(self, words: Sequence[Word], session_id: str | None) -> Iterator[Any]:
        for row in self._paged("wk_messages_with", of_session(words, session_id)):
            if session_id is None or row[1] == session_id:
                yield row

    def replies(self, words: Sequence[Word], session_id: str | None, stored: str) -> Iterator[Any]:
        found = (place for place in self.places(words, session_id) if place[4] == "assistant")
        sql = "SELECT id, content FROM messages WHERE id = ANY(?) AND strpos(content, ?) > 0"
        while some := {place[0]: place for place in islice(found, WAITING_AT_ONCE)}:
            contents = dict(map(tuple, self._connection.execute(sql, (list_of(list(some)), stored))))
            yield from ((*place, contents[number]) for number, place in some.items() if number in contents)

    def newest_places(self, words: Sequence[Word], known: set[str]) -> Iterator[Place]:
        return self._paged("wk_newest_with", words)

    def in_order(self, unindexed: Iterator[Any], indexed: Iterator[Any]) -> Iterator[Any]:
        last = None
        for place in merge(unindexed, indexed, key=lambda one: -int(one[0])):
            if place[0] != last:
                yield place
            last = place[0]

    def _paged(self, function: str, words: Sequence[Word]) -> Iterator[Any]:
        """The places of messages that hold the words, the newest first; without those of deleted sessions."""
        query, sql, run = _query(words), _PLACES.format(function=function), self._connection.execute
        newest, width, most = (
            run("SELECT max(id) FROM message_words").fetchone()[0],
            FIRST_RANGE,
            FIRST_PAGE,
        )
        through = newest or 0
        while through > 0:
            above, page = through - width, through
            while True:
                rows = run(sql, (query, above, page, most)).fetchall()
                for row in rows:
                    if row[6]:
                        yield tuple(row)[:6]
                if len(rows) < most:
                    break
                page, most = rows[-1][0] - 1, min(4 * most, LAST_PAGE)
            through, width = above, min(8 * width, max(LAST_RANGE, newest // MOST_RANGES))


class PostgresIndex(MessageIndex):
    """The index of a database on a server."""

    def unindexed(self) -> int:
        row = self._connection.execute("SELECT count(*) FROM messages_unindexed WHERE unfit = 0").fetchone()
        return int(row[0])

    @contextmanager
    def walk(self, must_stop: Callable[[], bool], seconds: float) -> Iterator[Walk]:
        walk, limit = _PostgresWalk(self._connection), "SELECT set_config('statement_timeout', ?, false)"
        if self._connection.in_transaction:
            yield walk  # a statement that is ended would end the transaction
            return
        self._connection.execute(limit, (str(max(1, min(int(1000 * seconds), 1 << 30))),))
        try:
            yield walk
        except sqlite3.OperationalError as error:
            if type(error.__cause__).__name__ == "QueryCanceled":
                raise Interrupted from error
            raise
        finally:
            self._connection.execute(limit, ("0",))

    def ids_holding(
        self, words: Sequence[Word], first: int, last: int, most: int, *, forms: Sequence[str] = ()
    ) -> list[int]:
        one_of = f"({' | '.join(_query([(form, False)]) for form in forms)})" if forms else ""
        rows = self._reads.all(
            "SELECT w.id FROM wk_messages_with(CAST(? AS tsquery), ?, ?, ?) AS w (id) ORDER BY w.id DESC",
            (" & ".join(filter(None, (one_of, _query(words)))), first - 1, last, most),
        )
        return [row[0] for row in rows]

    def reach(self, last: int) -> tuple[int, str | None]:
        return last, "m.id IN (SELECT id FROM messages_unindexed)"

    def facts_holding(self, pieces: Sequence[str], *, every: bool, beginnings: bool = False) -> str:
        # The parameter of `wk_facts_with`: the words, and the ids of the facts that are not indexed and hold them.
        rows = self._reads.all("SELECT f.id, f.text FROM facts_unindexed u JOIN facts f ON f.id = u.id")
        with closing(WordTable(stems=True)) as table:
            tokens = table.tokens_of(pieces)
            match = match_of(pieces, every=every, beginnings=beginnings)
            matching = table.matching([(row[0], plain(row[1])) for row in rows], match) if rows else []
        phrases = []
        for each in tokens:
            lexemes = [_quoted(_lexeme(token)) for token in each]
            if lexemes:
                lexemes[-1] += ":*" if beginnings else ""
                phrases.append(f"({' <-> '.join(lexemes)})")
        # As FTS5 has it: `AND` with nothing finds nothing.
        nothing = every and not beginnings and len(phrases) < len(pieces)
        words = "" if nothing else (" & " if every else " | ").join(phrases)
        return encode({"words": words, "ids": matching})

    def best_facts(self, sql: str, parameters: Sequence[Any], limit: int, pieces: Sequence[str]) -> list[Any]:
        match = self.facts_holding(pieces, every=False)
        rows = self._reads.all(sql, (*parameters, max(limit, RANKED_FACTS), match))
        with closing(WordTable(stems=True)) as table:
            texts = [(at, row[2]) for at, row in enumerate(rows)]
            order = table.matching(texts, match_of(pieces, every=False, beginnings=False), ranked=True)
        return [rows[at] for at in order[:limit]]

    def index_batch(
        self,
        *,
        most_messages: int = BATCH_MESSAGES,
        most_characters: int = BATCH_CHARACTERS,
        lock_timeout_seconds: float = 0.0,
    ) -> Batch:
        # Messages and facts, in one transaction; each process takes rows that no other has.
        connection = self._connection
        connection.execute("BEGIN")
        try:
            connection.execute(_PATIENT)
            indexed, more = _index_messages(connection, most_messages, most_characters)
            more = _index_facts(connection) or more
            reach("message_index.before_commit")
            connection.execute("COMMIT")
            reach("message_index.after_commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return Batch(indexed, more)

    def index_inserted(self, texts: Sequence[tuple[str, str | bytearray]]) -> None:
        """Nothing: triggers note them for an indexer."""

    def index_within(self, *, most_messages: int = 20_000) -> bool:
        return False


def _query(words: Sequence[Word]) -> str:
    parts = []
    for word, begins in words:
        lexeme = _lexeme(word)
        parts.append(_quoted(lexeme) + (":*" if begins or lexeme != word else ""))
    return " & ".join(parts)


def _lexeme(word: str) -> str:
    if len(word) * 4 <= LONGEST_WORD_BYTES:
        return word
    return word.encode()[:LONGEST_WORD_BYTES].decode(errors="ignore")


def _quoted(lexeme: str) -> str:
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"
