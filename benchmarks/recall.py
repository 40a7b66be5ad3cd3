"""Evidence recall of `memory.recall.recall` on a store, beside FTS5 BM25 on the same messages, with and without a stemmer.

    python benchmarks/recall.py [FILE...] [--seed 15] [--queries 60] [--limit 10]
        [--half all|first|second] [--vectors off|both] [--scale MESSAGES] [--json]

FILE is a recorded session (any file or folder that `wk import` reads), or a set of one's own:
`{"documents": [{"id", "text"}, …], "queries": [{"text", "evidence": [id, …]}, …]}`. Documents are in the
order in which they arose; ids are strings or numbers, and an id that stands twice means both texts. Evidence
that names no document is left out, and so is a query that has no other; both are counted.

From recorded sessions the benchmark makes queries by the seed: the words of an identifier, a symbol, a path,
an error line, a hash, Chinese and Japanese words; a quotation, a rare name in a question, a sentence's words in
other forms, and questions with some of these words. What is asked for, or the sentence, is held by 1 to 30
messages of its session; these are the evidence.

The folder that WATCHKEEPER_BENCHMARK_DATA names holds public sets. One that is absent is skipped, in a line:

    locomo/locomo10.json                          github.com/snap-research/LoCoMo, data/
    beam/chats/100K/N/{chat.json,probing_questions/probing_questions.json}
                                                  github.com/mohammadtavakoli78/BEAM
    cosqa/{code_idx_map.txt,cosqa-retrieval-test-500.json,cosqa-retrieval-dev-500.json}
                                                  github.com/Jun-jie-Huang/CoCLR, data/search/

Everything goes through one path: the messages are stored and indexed in a new database, and each query is one
call of `recall`. The baselines are FTS5 with its default tokenizer and with `porter` over the texts of the same
messages, all words of the query joined by OR, ordered by `bm25`. `--half` takes every query whose text has an
even (odd) checksum: weights are chosen on the first half and reported on the second. `--scale` measures what a
query costs in one session of that many messages: made of recorded ones, with every eighth word another, where
files are named.

Reported are recall at 1 and at the limit (of what so many places can hold) and the mean reciprocal rank of the
first evidence.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.memory import recall as recall_module
from watchkeeper.memory.ranking import STOP_WORDS
from watchkeeper.memory.recall import recall
from watchkeeper.store import database
from watchkeeper.store.driver import Connection, decode, encode, plain, sqlite3
from watchkeeper.store.engine import index_of
from watchkeeper.store.search import passages

DATA = "WATCHKEEPER_BENCHMARK_DATA"
MOST_HOLDERS = 30
"""What more messages hold than these is no question that ten places could answer."""
MANY_WORDS = 64
"""In a query of more words each is sought once: FTS5 would count every occurrence of every repeated one
anew."""

Evidence = set[str]
"""Ids of documents."""


@dataclass(frozen=True, slots=True)
class Query:
    kind: str
    """The row of the report that it counts for."""
    text: str
    evidence: Evidence

    @property
    def half(self) -> str:
        return ("first", "second")[zlib.crc32(self.text.encode()) % 2]


@dataclass(slots=True)
class Collection:
    """One session: its documents in order, and what is asked of it."""

    documents: list[tuple[str, Any]]
    """Each with its id and its content as a message has it."""
    queries: list[Query] = field(default_factory=list)
    unknown_evidence: int = 0
    unscored_queries: int = 0

    @property
    def repeated_ids(self) -> int:
        return len(self.documents) - len({name for name, _ in self.documents})


# --- Sets in files ------------------------------------------------------------------------------------------


def read(path: Path) -> Collection:
    """The set in a file. Raises ValueError, KeyError or TypeError where it has another form."""
    whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found = Collection([(str(one["id"]), plain(_text(one))) for one in whole["documents"]])
    asked = []
    for query in whole["queries"]:
        evidence = query["evidence"]
        named = {str(one) for one in (evidence if isinstance(evidence, list) else [evidence])}
        asked.append(Query(path.stem, plain(_text(query)), named))
    return _scored(found, asked)


def _text(one: dict[str, Any]) -> str:
    return "" if one["text"] is None else str(one["text"])


def _scored(collection: Collection, queries: Iterable[Query]) -> Collection:
    """The collection with the queries that have evidence among its documents."""
    there = {name for name, _ in collection.documents}
    for query in queries:
        collection.unknown_evidence += len(query.evidence - there)
        if query.evidence & there:
            collection.queries.append(Query(query.kind, query.text, query.evidence & there))
        else:
            collection.unscored_queries += 1
    return collection


def locomo(folder: Path) -> Iterator[Collection]:
    """Ten conversations between two people; a turn is a document, with its speaker and its image's caption."""
    for one in json.loads((folder / "locomo/locomo10.json").read_text()):
        talk = one["conversation"]
        names = sorted(
            (name for name, turns in talk.items() if isinstance(turns, list)),
            key=lambda name: int(name.rpartition("_")[2]),
        )
        turns = [turn for name in names for turn in talk[name]]
        documents = [(turn["dia_id"], _turn(turn)) for turn in turns]
        asked = (Query("LoCoMo", str(qa["question"]), _turns_named(qa["evidence"])) for qa in one["qa"])
        yield _scored(Collection(documents), asked)


def _turn(turn: dict[str, Any]) -> str:
    caption = f" [{turn['blip_caption']}]" if turn.get("blip_caption") else ""
    return f"{turn['speaker']}: {turn['text']}{caption}"


def _turns_named(evidence: Sequence[str]) -> Evidence:
    """The set writes `D8:6; D9:17` and `D:11:26`, too."""
    return {f"D{session}:{turn}" for session, turn in re.findall(r"D:?(\d+):(\d+)", " ".join(evidence))}


def beam(folder: Path) -> Iterator[Collection]:
    """Twenty talks with an assistant of 100,000 tokens; evidence is every message that a question names."""
    for place in sorted((folder / "beam/chats/100K").iterdir(), key=lambda one: int(one.name)):
        chat = json.loads((place / "chat.json").read_text())
        documents = [
            (str(message["id"]), f"{message['role']}: {message['content']}")
            for part in chat
            for turn in part["turns"]
            for message in turn
        ]
        probes = json.loads((place / "probing_questions/probing_questions.json").read_text())
        asked = [
            Query("BEAM 100K", probe["question"], {str(one) for one in _numbers(probe["source_chat_ids"])})
            for probe in (one for kind in probes.values() for one in kind)
            if probe.get("source_chat_ids")
        ]
        yield _scored(Collection(documents), asked)


def _numbers(value: Any) -> Iterator[int]:
    """The numbers in lists and dicts."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _numbers(one)


def cosqa(folder: Path) -> Iterator[Collection]:
    """What people ask a search engine, and functions of Python that answer it."""
    codes: dict[str, int] = json.loads((folder / "cosqa/code_idx_map.txt").read_text())
    documents: list[tuple[str, Any]] = [(str(number), text) for text, number in codes.items()]
    asked = [
        Query("CoSQA", one["doc"], {str(one["retrieval_idx"])})
        for part in ("test", "dev")
        for one in json.loads((folder / f"cosqa/cosqa-retrieval-{part}-500.json").read_text())
    ]
    yield _scored(Collection(documents), asked)


PUBLIC: tuple[tuple[str, str, Callable[[Path], Iterator[Collection]]], ...] = (
    ("LoCoMo", "locomo/locomo10.json", locomo),
    ("BEAM 100K", "beam/chats/100K", beam),
    ("CoSQA", "cosqa/code_idx_map.txt", cosqa),
)


# --- Queries from recorded sessions -------------------------------------------------------------------------

_NAME = re.compile(r"\b[A-Za-z][a-z0-9]*(?:(?:_[a-z0-9]+)+|(?:[A-Z][a-z0-9]+)+)\b")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[0-9]+")
_PATH = re.compile(r"(?<![\w/.~-])(?:[~.]?/)?(?:[\w.-]+/)+[\w-]+\.[a-z]{1,5}\b")
_HASH = re.compile(r"(?<![\w-])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7,40}(?![\w-])")
_ERROR = re.compile(r"(?:error|exception|failed|fatal|panic)\b", re.I)
_HAN = re.compile("[\u4e00-\u9fff]{2,6}")
_KANA = re.compile("(?=[\u4e00-\u9fff]*[\u3040-\u30ff])[\u3040-\u30ff\u4e00-\u9fff]{2,8}")

KINDS: tuple[tuple[str, Callable[[str], Iterable[str]], Callable[[str], str]], ...] = (
    (
        "words of an identifier",
        lambda text: _names(text),
        lambda name: " ".join(_PARTS.findall(name)).lower(),
    ),
    ("symbol", lambda text: _names(text), str),
    ("path", lambda text: _PATH.findall(text), str),
    ("error line", lambda text: _error_lines(text), str),
    ("hash", lambda text: _HASH.findall(text), str),
    ("Chinese words", lambda text: _HAN.findall(text), str),
    ("Japanese words", lambda text: _KANA.findall(text), str),
)
"""A kind of query: what it asks for in a text, and how it asks."""


def _names(text: str) -> Iterator[str]:
    return (name for name in _NAME.findall(text) if 2 <= len(_PARTS.findall(name)) <= 5 and len(name) <= 60)


def _error_lines(text: str) -> Iterator[str]:
    lines = (line.strip() for line in text.splitlines() if _ERROR.search(line))
    return (line for line in lines if 20 <= len(line) <= 160)


def queries_of(documents: Sequence[tuple[str, Any]], rng: random.Random, count: int) -> list[Query]:
    """At most `count` queries of each kind, evidence being the messages that hold what is asked for."""
    texts = [(name, text_of(content)) for name, content in documents]
    forms = Forms(text for _, text in texts)
    asked_so = {
        "a quotation": lambda sentence: _quotation(sentence, rng),
        "other forms of words": lambda sentence: forms.changed(sentence, rng),
        "a question": lambda sentence: forms.question(sentence, rng),
        "a rare name in a question": lambda name: rng.choice(FRAMES).format(name),
    }
    kinds = [
        *KINDS,
        *((kind, _rare_names if "name" in kind else _sentences, ask) for kind, ask in asked_so.items()),
    ]
    made = []
    for kind, wanted, ask in kinds:
        holders: dict[str, Evidence] = defaultdict(set)
        for name, text in texts:
            for one in wanted(text):
                holders[one].add(name)
        most = RARE if wanted is _rare_names else MOST_HOLDERS
        fit = sorted(one for one, names in holders.items() if len(names) <= most)
        asked = [(ask(one), one) for one in rng.sample(fit, min(count, len(fit)))]
        made += [Query(kind, text, holders[one]) for text, one in asked if text]
    return made


_SENTENCE = re.compile(r"(?<=[.!?:\n] )[A-Z][a-z']*(?:,? [A-Za-z'`_./-]+){6,30}(?=[.!?])")
_WORD = re.compile(r"[^\W\d_][^\W_]{3,}")
RARE = 3
FRAMES = (
    "where did we see {}?", "what do you know about {}?", "Was there anything about {}", "how did it go with {}?",
    "why did we talk about {}", "When did I mention {}?", "what was decided about {}?", "find the place with {}",
)  # fmt: skip
_MEANT = {
    "fix": "repair", "error": "problem", "remove": "delete", "create": "make", "check": "verify", "change": "modify",
    "start": "begin", "show": "display", "find": "locate", "need": "require", "use": "apply", "add": "insert",
    "test": "try", "run": "execute", "read": "look", "write": "put", "work": "function", "command": "instruction",
}  # fmt: skip
"""What people say for a word; an answer that holds the word itself is to be found by the others."""


def _sentences(text: str) -> Iterator[str]:
    return (found[0] for found in _SENTENCE.finditer(text) if len(_telling(found[0])) >= 4)


def _rare_names(text: str) -> Iterator[str]:
    return (found[0].lower() for found in _WORD.finditer(text))


def _telling(sentence: str) -> list[str]:
    """The words of a sentence that say something, each once."""
    words = dict.fromkeys(word.lower() for word in re.findall(r"[A-Za-z]{3,}", sentence))
    return [word for word in words if word not in STOP_WORDS]


def _quotation(sentence: str, rng: random.Random) -> str:
    words = sentence.split()
    first = rng.randrange(max(1, len(words) - 8))
    return " ".join(words[first : first + 8])


class Forms:
    """The words of a session, by the base form that they share; a rule of thumb, and no stemmer."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._of: dict[str, set[str]] = defaultdict(set)
        for text in texts:
            for word in re.findall(r"\b[a-z]{3,}\b", text):
                self._of[_base(word)].add(word)

    def other(self, word: str, rng: random.Random) -> str:
        """Another form of a word that the session holds, or the word."""
        others = sorted(self._of[_base(word)] - {word})
        return rng.choice(others) if others else word

    def changed(self, sentence: str, rng: random.Random) -> str:
        """Up to six words of a sentence, at least two in another form; nothing if it has not as many."""
        words = _telling(sentence)
        words = [words[at] for at in sorted(rng.sample(range(len(words)), min(6, len(words))))]
        made = [self.other(word, rng) for word in words]
        return " ".join(made) if sum(one != word for one, word in zip(made, words, strict=True)) >= 2 else ""

    def question(self, sentence: str, rng: random.Random) -> str:
        """Three to five words of a sentence, half of them in another form, one by what people say for it."""
        words = _telling(sentence)
        words = [
            words[at] for at in sorted(rng.sample(range(len(words)), min(rng.randint(3, 5), len(words))))
        ]
        made = [self.other(word, rng) if rng.random() < 0.5 else word for word in words]
        said = [at for at, word in enumerate(words) if _base(word) in _MEANT]
        if said and len(words) > 3:
            made[said[0]] = _MEANT[_base(words[said[0]])]
        return rng.choice(FRAMES).format(" ".join(made))


def _base(word: str) -> str:
    for ending, least in (("ing", 4), ("ed", 3), ("es", 4), ("s", 3)):
        if word.endswith(ending) and len(word) - len(ending) >= least and not word.endswith("ss"):
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > 3 and (word[-1] == "e" or word[-1] == word[-2] != "s") else word


def text_of(content: Any) -> str:
    """The text of a message, thinking left out: what was said, what tools were given and what they brought."""
    return recall_module.said_in(content)


# --- The store ----------------------------------------------------------------------------------------------


def fill(connection: Connection, collection: Collection, name: str) -> None:
    """The documents as the messages of one agent, in order; agent `name` of session `name`."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "INSERT INTO sessions (id, user_id, goal, workspace, model, status, created_at, last_active)"
        " VALUES (?, 'u', 'g', '/w', 'm', 'done', 1, 1)",
        (name,),
    )
    connection.execute(
        "INSERT INTO agents (id, session_id, name, role, model, status, created_at, last_active)"
        " VALUES (?, ?, 'a', 'r', 'm', 'done', 1, 1)",
        (name, name),
    )
    connection.executemany(
        "INSERT INTO messages (agent_id, seq, role, content, tokens, total_tokens, created_at)"
        " VALUES (?, ?, ?, ?, 1, ?, ?)",
        [
            (name, seq, "user" if seq % 2 else "assistant", encode(content), seq, seq)
            for seq, (_, content) in enumerate(collection.documents, 1)
        ],
    )
    connection.execute("COMMIT")


def recorded(path: Path, files: Sequence[Path]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Import recorded sessions into a database: each session's id and messages, by pointer."""
    from watchkeeper.store.writer import Writer
    from watchkeeper.transcripts.importer import Importer

    with closing(Writer(path)) as writer, closing(Importer(writer)) as importer:
        importer.run(list(files))
    with closing(database.open_writable(path)) as connection:
        index_of(connection).index_until(seconds=600)
        sessions: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        for session_id, agent_id, seq, content in connection.execute(
            "SELECT a.session_id, m.agent_id, m.seq, m.content FROM messages m JOIN agents a ON a.id ="
            " m.agent_id ORDER BY m.id"
        ):
            sessions[session_id].append((f"message://{agent_id}/{seq}", decode(content)))
    return list(sessions.items())


# --- Scores -------------------------------------------------------------------------------------------------

Search = Callable[[str, int], Sequence[str]]
"""A query and how many to find → ids of documents, the best first."""

BASE, STEMMED, OURS, WITH_VECTORS = "fts5_bm25", "fts5_porter_bm25", "recall", "recall_with_vectors"
NAMES = {BASE: "BM25", STEMMED: "BM25 of stems", OURS: "recall", WITH_VECTORS: "with vectors"}
"""How the report calls them."""


def plain_bm25(documents: Sequence[tuple[str, Any]], tokenize: str = "unicode61") -> Search:
    """SQLite's own ranking of the messages' texts."""
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='{tokenize}')")
    connection.executemany(
        "INSERT INTO texts (rowid, text) VALUES (?, ?)",
        ((at, plain(text_of(content))) for at, (_, content) in enumerate(documents)),
    )

    def search(query: str, limit: int) -> list[str]:
        words = re.findall(r"\w+", query)
        if len(words) > MANY_WORDS:
            words = list(dict.fromkeys(words))
        if not words:
            return []
        rows = connection.execute(
            "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY bm25(texts) LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words), limit),
        )
        return [documents[row[0]][0] for row in rows]

    return search


@dataclass(slots=True)
class Scores:
    """What was measured so far, by kind of query and by search."""

    found: dict[str, dict[str, list[tuple[float, float, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """Of each query: recall at the limit, recall at 1, reciprocal rank."""
    milliseconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    documents: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    left_out: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, collection: Collection, searches: dict[str, Search], limit: int) -> None:
        for kind in {query.kind for query in collection.queries}:
            self.documents[kind] += len(collection.documents)
        self.left_out["unknown_evidence"] += collection.unknown_evidence
        self.left_out["unscored_queries"] += collection.unscored_queries
        self.left_out["repeated_ids"] += collection.repeated_ids
        for query in collection.queries:
            for name, search in searches.items():
                began = time.process_time()
                found = dict.fromkeys(search(query.text, limit + collection.repeated_ids))
                if name == OURS:
                    self.milliseconds[query.kind].append(1000 * (time.process_time() - began))
                self.found[query.kind][name].append(_measured([*found][:limit], query.evidence))

    def rows(self) -> dict[str, dict[str, Any]]:
        """By kind of query: how many, of each search recall at the limit, at 1 and the mean reciprocal rank; milliseconds
        of processor time a query."""
        made: dict[str, dict[str, Any]] = {}
        for kind, by_search in self.found.items():
            times = sorted(self.milliseconds[kind])
            made[kind] = {
                "documents": self.documents[kind],
                "queries": len(by_search[BASE]),
                **{
                    name + suffix: round(statistics.fmean(one[at] for one in values), 4)
                    for name, values in by_search.items()
                    for at, suffix in enumerate(("", "_at_1", "_mrr"))
                },
                "ms_median": round(statistics.median(times), 1),
                "ms_p95": round(times[int(0.95 * len(times))], 1),
            }
        return made


def _measured(found: Sequence[str], evidence: Evidence) -> tuple[float, float, float]:
    ranks = [rank for rank, one in enumerate(found, 1) if one in evidence]
    return (
        len(ranks) / len(evidence),
        float(found[:1] != [] and found[0] in evidence),
        1 / ranks[0] if ranks else 0.0,
    )


def searches_of(
    path: Path, session_id: str, collection: Collection, ids: dict[str, str], *, vectors: bool
) -> dict[str, Search]:
    """The searches to compare on one session. `ids`: of documents, by pointer."""
    reads = passages.SearchConnection(path)

    def ours(query: str, limit: int) -> list[str]:
        return [ids[one.sources[0]] for one in recall(reads, session_id, query, limit=limit)]

    searches: dict[str, Search] = {
        BASE: plain_bm25(collection.documents),
        STEMMED: plain_bm25(collection.documents, "porter unicode61"),
        OURS: ours,
    }
    if vectors:
        embedder = recall_module.load_embedder()
        with closing(database.open_writable(path)) as connection:
            made: list[Any] = [None]
            while made:
                made = list(recall_module.make_vectors(reads, session_id, embedder))
                for kind, rows in made:
                    connection.execute("BEGIN IMMEDIATE")
                    passages.add(connection, kind, embedder.name, rows)  # type: ignore[arg-type]
                    connection.execute("COMMIT")
        passages.load_extension(reads.connection)

        def with_vectors(query: str, limit: int) -> list[str]:
            question = recall_module.Question(embedder.name, embedder.embed([query])[0])
            found = recall(reads, session_id, query, limit=limit, question=question)
            return [ids[one.sources[0]] for one in found]

        searches[WITH_VECTORS] = with_vectors
    return searches


def score_collections(
    scores: Scores, collections: Iterable[Collection], limit: int, half: str, *, vectors: bool
) -> None:
    """Store each collection as a session of one database, and ask."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "watchkeeper.db"
        with closing(database.open_writable(path)) as connection:
            named = [(f"s{number}", one) for number, one in enumerate(collections)]
            for name, collection in named:
                fill(connection, collection, name)
            index_of(connection).index_until(seconds=600)
        for name, collection in named:
            ids = {f"message://{name}/{seq}": one for seq, (one, _) in enumerate(collection.documents, 1)}
            _keep_half(collection, half)
            if collection.queries:
                scores.add(collection, searches_of(path, name, collection, ids, vectors=vectors), limit)


def score_recorded(
    scores: Scores, files: Sequence[Path], limit: int, half: str, *, seed: int, count: int, vectors: bool
) -> None:
    """Import recorded sessions, make queries of each, and ask."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "watchkeeper.db"
        for session_id, documents in recorded(path, files):
            collection = Collection(documents, queries_of(documents, random.Random(seed), count))
            _keep_half(collection, half)
            if collection.queries:
                ids = {name: name for name, _ in documents}
                scores.add(collection, searches_of(path, session_id, collection, ids, vectors=vectors), limit)


def _keep_half(collection: Collection, half: str) -> None:
    if half != "all":
        collection.queries = [query for query in collection.queries if query.half == half]


def score(
    files: Sequence[Path],
    limit: int = 10,
    *,
    half: str = "all",
    seed: int = 15,
    count: int = 60,
    vectors: bool = False,
    data: Path | None = None,
    say: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Recall at `limit` by kind of query, for sets and recorded sessions, and for public sets in `data`."""
    scores = Scores()
    sets = [path for path in files if _is_set(path)]
    score_collections(scores, (read(path) for path in sets), limit, half, vectors=vectors)
    others = [path for path in files if path not in sets]
    if others:
        score_recorded(scores, others, limit, half, seed=seed, count=count, vectors=vectors)
    for name, needed, collections in PUBLIC:
        if data is None:
            say(f"{name}: skipped, {DATA} names no folder")
        elif not (data / needed).exists():
            say(f"{name}: skipped, there is no {data / needed}")
        else:
            score_collections(scores, collections(data), limit, half, vectors=vectors)
    if not scores.found:
        raise SystemExit("no query has evidence among the documents: nothing to score")
    left_out = {name: number for name, number in scores.left_out.items() if number}
    return {"limit": limit, "half": half, "kinds": scores.rows(), **left_out}


def _is_set(path: Path) -> bool:
    return path.suffix == ".json" and path.is_file()


# --- What a query costs -------------------------------------------------------------------------------------


def measure_scale(count: int, seed: int, files: Sequence[Path] = ()) -> list[str]:
    """Processor time of a query in one session of `count` messages, all indexed, and with the newest 2,000 not."""
    from benchmarks.search import messages

    rng = random.Random(seed)
    asked: dict[str, list[str]] = defaultdict(list)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "watchkeeper.db"
        if files:
            sessions = recorded(Path(folder) / "recorded.db", files)
            said = _varied([one for _, documents in sessions for one in documents], count + 2_000, rng)
            for _, documents in sessions:
                for query in queries_of(documents, random.Random(seed), 20):
                    asked[query.kind].append(query.text)
        else:
            said = [("", text) for text, _ in zip(messages(rng), range(count + 2_000), strict=False)]
            for words in (1, 3, 8):
                asked[f"{words} words"] = [
                    " ".join(rng.sample(_of(said, rng, words), words)) for _ in range(30)
                ]
            asked["a path"] = [f"src/{'/'.join(_of(said, rng, 2)[:2])}.py" for _ in range(30)]
        with closing(database.open_writable(path)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            fill(connection, Collection(said[:count]), "s0")
            index_of(connection).index_until(seconds=3_600)
        lines += _times_of(path, f"{count:,} messages", asked)
        with closing(database.open_writable(path)) as connection:
            connection.executemany(
                "INSERT INTO messages (agent_id, seq, role, content, tokens, total_tokens, created_at)"
                " VALUES ('s0', ?, 'user', ?, 1, 1, 1)",
                [(seq, encode(content)) for seq, (_, content) in enumerate(said[count:], count + 1)],
            )
        lines += _times_of(path, "and 2,000 that are not indexed", asked)
    return lines


OTHER_WORDS = 8
"""Every so many-th word of a copied message is another one."""


def _varied(documents: Sequence[tuple[str, Any]], count: int, rng: random.Random) -> list[tuple[str, Any]]:
    """So many messages: the documents, and copies of them with other words here and there, words as common as there."""
    words = [word for _, content in documents for word in re.findall(r"[^\W_]+", text_of(content))]

    def other(match: re.Match[str]) -> str:
        return words[int(rng.random() * len(words))] if rng.random() < 1 / OTHER_WORDS else match[0]

    def copy(value: Any) -> Any:
        if isinstance(value, list):
            return [copy(one) for one in value]
        if isinstance(value, dict):
            return {
                name: one if name in ("type", "id", "name", "tool_use_id") else copy(one)
                for name, one in value.items()
            }
        return re.sub(r"[^\W_]+", other, value) if isinstance(value, str) else value

    made = list(documents[:count])
    while len(made) < count:
        made += [(name, copy(content)) for name, content in documents[: count - len(made)]]
    return made


def _of(said: Sequence[tuple[str, str]], rng: random.Random, most: int) -> list[str]:
    """The words of a message that has at least so many."""
    while True:
        words = rng.choice(said)[1].split()
        if len(words) >= most:
            return words


def _times_of(path: Path, where: str, asked: dict[str, list[str]]) -> Iterator[str]:
    """A line for each kind of query and one for all: median and 95 of 100, in milliseconds of processor time."""
    with closing(passages.SearchConnection(path)) as reads:
        everything: list[float] = []
        for kind, queries in asked.items():
            times = []
            for query in queries:
                began = time.process_time()
                recall(reads, "s0", query)
                times.append(1000 * (time.process_time() - began))
            everything += times
            yield f"{where}, {kind}: {_median_and_p95(times)}"
        yield f"{where}, all {len(everything)}: {_median_and_p95(everything)}"


def _median_and_p95(times: Sequence[float]) -> str:
    ordered = sorted(times)
    return f"median {statistics.median(ordered):.0f} ms, p95 {ordered[int(0.95 * len(ordered))]:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", metavar="FILE", type=Path, nargs="*")
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--half", choices=("all", "first", "second"), default="all")
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--queries", type=int, default=60, help="of each kind, from each recorded session")
    parser.add_argument("--vectors", choices=("off", "both"), default="off")
    parser.add_argument("--scale", type=int, metavar="MESSAGES", help="measure what a query costs instead")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    if options.scale:
        print("\n".join(measure_scale(options.scale, options.seed, options.files)))
        return
    if options.vectors != "off" and (why := recall_module.vectors_unavailable()) is not None:
        sys.exit(why)
    named = os.environ.get(DATA)
    try:
        result = score(
            options.files,
            options.limit,
            half=options.half,
            seed=options.seed,
            count=options.queries,
            vectors=options.vectors != "off",
            data=Path(named) if named else None,
            say=lambda line: print(line, file=sys.stderr),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(
            f"cannot score: {type(error).__name__} {error}; a set holds documents (id, text) and queries"
            " (text, evidence)"
        )
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
        return
    print(f"recall at 1, at {result['limit']} and mean reciprocal rank, {result['half']} queries")
    for kind, row in result["kinds"].items():
        columns = [
            f"{label} " + " ".join(f"{row[name + suffix]:.3f}" for suffix in ("_at_1", "", "_mrr"))
            for name, label in NAMES.items()
            if name in row
        ]
        print(
            f"  {kind:<26} {row['queries']:>5} queries  {'  '.join(columns)}"
            f"  {row['ms_median']:.0f} ms, p95 {row['ms_p95']:.0f} ms"
        )
    for name in ("unknown_evidence", "unscored_queries", "repeated_ids"):
        if name in result:
            print(f"  {name.replace('_', ' ')}: {result[name]}")


if __name__ == "__main__":
    main()
