"""Evidence recall at 10 of our ranking against plain FTS5 BM25, on any set of documents and questions, in one
run.

    python tests/benchmarks/recall.py FILE... [--limit 10] [--vectors on|off|both] [--json]

FILE: `{"documents": [{"id", "text"}, …], "queries": [{"text", "evidence": [id, …]}, …]}`, documents in the
order in which they arose (of turns of a conversation, neighbours count). Ids are strings or numbers; an id
that stands twice means both texts. Evidence that names no document is left out, and so is a query that has no
other; both are counted. A query without words finds nothing, for everybody. Several files are several
collections; their queries are pooled. The baseline is FTS5 with its default tokenizer, all words of the query
joined by OR, ordered by `bm25`; between the two stands the same with stop words removed. `--vectors on` (or
`both`) needs the extra `vectors`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.memory.recall import Document, Likeness, RankedIndex
from watchkeeper.memory.recall.ranking import words_of
from watchkeeper.store.driver import plain, sqlite3

Search = Callable[[str, int], Sequence[int]]
"""A query and how many to find → positions of documents, best first."""

MANY_WORDS = 64
"""In a query of more words each is sought once: FTS5 would count every occurrence of every repeated one
anew."""

BASE, WITHOUT_STOP_WORDS, OURS, WITH_VECTORS = (
    "fts5_bm25",
    "fts5_bm25_without_stop_words",
    "ours",
    "ours_with_vectors",
)


@dataclass(slots=True)
class Collection:
    """A file's documents and the queries that can be scored."""

    ids: list[str]
    texts: list[str]
    queries: list[tuple[str, set[str]]] = field(default_factory=list)
    unknown_evidence: int = 0
    unscored_queries: int = 0

    @property
    def repeated_ids(self) -> int:
        return len(self.ids) - len(set(self.ids))


def read(path: Path) -> Collection:
    """The set in a file. Raises ValueError, KeyError or TypeError where it has another form."""
    whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    documents = whole["documents"]
    found = Collection([str(one["id"]) for one in documents], [plain(_text(one)) for one in documents])
    there = set(found.ids)
    for query in whole["queries"]:
        evidence = query["evidence"]
        named = {str(one) for one in (evidence if isinstance(evidence, list) else [evidence])}
        found.unknown_evidence += len(named - there)
        if named & there:
            found.queries.append((plain(_text(query)), named & there))
        else:
            found.unscored_queries += 1
    return found


def _text(one: dict[str, Any]) -> str:
    return "" if one["text"] is None else str(one["text"])


def plain_bm25(texts: Sequence[str], *, stop_words: bool) -> Search:
    """SQLite's own ranking; with `stop_words`, all words of the query are sought."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE texts USING fts5(text)")
    connection.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", enumerate(texts))

    def search(query: str, limit: int) -> list[int]:
        words = re.findall(r"\w+", query) if stop_words else words_of(query)
        if not words:
            return []
        if len(words) > MANY_WORDS:
            words = list(dict.fromkeys(words))
        rows = connection.execute(
            "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY bm25(texts) LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words), limit),
        )
        return [row[0] for row in rows]

    return search


def ours(texts: Sequence[str]) -> Search:
    index = RankedIndex([Document(str(at), text) for at, text in enumerate(texts)])
    return lambda query, limit: [int(hit.id) for hit in index.rank(query, limit)]


def with_vectors(texts: Sequence[str]) -> Search:
    import numpy

    from watchkeeper.memory.recall import session

    embedder = session.load()
    index = RankedIndex([Document(str(at), text) for at, text in enumerate(texts)])
    matrix = numpy.frombuffer(b"".join(embedder.embed(texts)), dtype="<f4").reshape(len(texts), -1)

    def search(query: str, limit: int) -> list[int]:
        cosines = matrix @ numpy.frombuffer(embedder.embed([query])[0], dtype="<f4")
        likeness = Likeness({str(at): value for at, value in enumerate(cosines.tolist())})
        return [int(hit.id) for hit in index.rank(query, limit, likeness=likeness)] if query.strip() else []

    return search


def first_ids(search: Search, query: str, collection: Collection, limit: int) -> set[str]:
    """The first `limit` different ids: of texts with one id, the best counts."""
    found = dict.fromkeys(collection.ids[at] for at in search(query, limit + collection.repeated_ids))
    return set(list(found)[:limit])


def score(paths: Sequence[Path], limit: int, vectors: str = "off") -> dict[str, Any]:
    makers: dict[str, Callable[[Sequence[str]], Search]] = {
        BASE: lambda texts: plain_bm25(texts, stop_words=True),
        WITHOUT_STOP_WORDS: lambda texts: plain_bm25(texts, stop_words=False),
    }
    if vectors != "on":
        makers[OURS] = ours
    if vectors != "off":
        makers[WITH_VECTORS] = with_vectors
    found: dict[str, list[float]] = {name: [] for name in makers}
    seconds = dict.fromkeys(makers, 0.0)
    documents = unknown = unscored = repeated = 0
    for path in paths:
        collection = read(path)
        documents += len(collection.ids)
        unknown += collection.unknown_evidence
        unscored += collection.unscored_queries
        repeated += collection.repeated_ids
        if not collection.queries:
            continue
        for name, make in makers.items():
            search = make(collection.texts)
            began = time.perf_counter()
            for text, evidence in collection.queries:
                found[name].append(len(first_ids(search, text, collection, limit) & evidence) / len(evidence))
            seconds[name] += time.perf_counter() - began
    count = len(found[BASE])
    if not count:
        raise SystemExit("no query has evidence among the documents: nothing to score")
    mean = {name: sum(values) / count for name, values in found.items()}
    last = WITH_VECTORS if vectors == "on" else OURS
    result: dict[str, Any] = {"documents": documents, "queries": count, "limit": limit}
    result |= {name: round(value, 4) for name, value in mean.items()}
    result["relative_gain"] = _gain(mean[last], mean[BASE])
    if vectors == "both":
        result["relative_gain_of_vectors"] = _gain(mean[WITH_VECTORS], mean[OURS])
    result["ms_per_query"] = round(1000 * seconds[last] / count, 2)
    left_out = {"unknown_evidence": unknown, "unscored_queries": unscored, "repeated_ids": repeated}
    return result | {name: number for name, number in left_out.items() if number}


def _gain(value: float, base: float) -> float | None:
    return round(value / base - 1, 4) if base else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+")
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--vectors", choices=("off", "on", "both"), default="off")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    if options.vectors != "off":
        from watchkeeper.memory.recall.session import unavailable

        why = unavailable()
        if why is not None:
            sys.exit(why)
    try:
        result = score(options.files, options.limit, options.vectors)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(
            f"cannot score: {type(error).__name__} {error}; a file holds documents (id, text) and queries"
            " (text, evidence)"
        )
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"{result['documents']} documents, {result['queries']} queries, evidence recall at {result['limit']}:"
    )
    for name in (BASE, WITHOUT_STOP_WORDS, OURS, WITH_VECTORS):
        if name in result:
            print(f"  {name:<30} {result[name]:.4f}")
    gain = result["relative_gain"]
    print(
        f"  relative gain over fts5_bm25   {gain:+.1%}"
        if gain is not None
        else "  the baseline found nothing"
    )
    if result.get("relative_gain_of_vectors") is not None:
        print(f"  vectors over ours              {result['relative_gain_of_vectors']:+.1%}")
    print(f"  {result['ms_per_query']} ms a query (ours)")
    for name in ("unknown_evidence", "unscored_queries", "repeated_ids"):
        if name in result:
            print(f"  {name.replace('_', ' ')}: {result[name]}")


if __name__ == "__main__":
    main()
