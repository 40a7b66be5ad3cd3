"""Evidence recall at 10 of our ranking against plain FTS5 BM25, on any set of documents and questions, in one run.

    python tests/benchmarks/recall.py FILE... [--limit 10] [--json]

FILE: `{"documents": [{"id", "text"}, …], "queries": [{"text", "evidence": [id, …]}, …]}`, documents in the order in
which they arose (of turns of a conversation, neighbours count). Several files are several collections; their queries
are pooled. The baseline is FTS5 with its default tokenizer, all words of the query joined by OR, ordered by `bm25`;
between the two stands the same with stop words removed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from watchkeeper.memory.recall import Document, RankedIndex
from watchkeeper.memory.recall.words import words_of
from watchkeeper.store.driver import sqlite3

Search = Callable[[str], Sequence[str]]


def plain_bm25(documents: Sequence[Document], limit: int, *, stop_words: bool) -> Search:
    """SQLite's own ranking; with `stop_words`, all words of the query are sought."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE texts USING fts5(text)")
    connection.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", enumerate(d.text for d in documents))

    def search(query: str) -> list[str]:
        words = re.findall(r"\w+", query) if stop_words else words_of(query)
        if not words:
            return []
        rows = connection.execute(
            "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY bm25(texts) LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words), limit),
        )
        return [documents[row[0]].id for row in rows]

    return search


def ours(documents: Sequence[Document], limit: int) -> Search:
    index = RankedIndex(documents)
    return lambda query: [hit.id for hit in index.rank(query, limit)]


def read(path: Path) -> tuple[list[Document], list[tuple[str, set[str]]]]:
    """The set in a file; queries without evidence among the documents cannot be scored and are left out."""
    whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    documents = [Document(str(one["id"]), str(one["text"])) for one in whole["documents"]]
    there = {document.id for document in documents}
    queries = [(str(one["text"]), {str(each) for each in one["evidence"]} & there) for one in whole["queries"]]
    return documents, [(text, evidence) for text, evidence in queries if evidence]


def score(paths: Sequence[Path], limit: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {"fts5_bm25": [], "fts5_bm25_without_stop_words": [], "ours": []}
    seconds = 0.0
    total = 0
    for path in paths:
        documents, queries = read(path)
        total += len(documents)
        searches: dict[str, Search] = {
            "fts5_bm25": plain_bm25(documents, limit, stop_words=True),
            "fts5_bm25_without_stop_words": plain_bm25(documents, limit, stop_words=False),
            "ours": ours(documents, limit),
        }
        for text, evidence in queries:
            for name, search in searches.items():
                began = time.perf_counter()
                got = set(search(text))
                if name == "ours":
                    seconds += time.perf_counter() - began
                found[name].append(len(got & evidence) / len(evidence))
    count = len(found["ours"])
    if not count:
        raise SystemExit("no query has evidence among the documents: nothing to score")
    mean = {name: sum(values) / count for name, values in found.items()}
    base = mean["fts5_bm25"]
    return {
        "documents": total,
        "queries": count,
        "limit": limit,
        **{name: round(value, 4) for name, value in mean.items()},
        "relative_gain": round(mean["ours"] / base - 1, 4) if base else None,
        "ms_per_query": round(1000 * seconds / count, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+")
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    try:
        result = score(options.files, options.limit)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"cannot score: {type(error).__name__} {error}; a file holds documents (id, text) and queries (text, evidence)")
    if options.json:
        print(json.dumps(result))
        return
    print(f"{result['documents']} documents, {result['queries']} queries, evidence recall at {result['limit']}:")
    for name in ("fts5_bm25", "fts5_bm25_without_stop_words", "ours"):
        print(f"  {name:<30} {result[name]:.4f}")
    gain = result["relative_gain"]
    print(f"  relative gain over fts5_bm25   {gain:+.1%}" if gain is not None else "  the baseline found nothing")
    print(f"  {result['ms_per_query']} ms a query (ours)")


if __name__ == "__main__":
    main()
