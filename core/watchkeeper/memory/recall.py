"""Recall: finding earlier messages and facts again, and the rules of a session.

Promises: works with no network and no model; the same query on the same documents gives the same answer; every hit
says why it was found and carries pointers that `read_back` resolves; any text is a valid query. `memory.ranking` ranks.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Protocol

from watchkeeper.memory.content import blocks_of, result_text
from watchkeeper.memory.ranking import PASSAGE_CHARACTERS, Document, Likeness, Query, rank
from watchkeeper.records.errors import install_command
from watchkeeper.records.messages import Content
from watchkeeper.records.text import unstyled
from watchkeeper.records.tool_inputs import leaves
from watchkeeper.store import facts, sessions
from watchkeeper.store.driver import Reads, plain
from watchkeeper.store.engine import engine_of
from watchkeeper.store.search import passages
from watchkeeper.store.search.messages import fold

# --- Texts as vectors, by a small packaged model ------------------------------------------------------------
#
# Needs the extra `vectors`; used where `recall_vectors` is on, and otherwise not imported. Wordllama's static
# embeddings (19 MB, 256 dimensions, some 0.7 ms a message) need no network and no GPU. A recall computes
# them, outside every transaction, the newest messages first and for a second at most; the next recall
# computes the rest. docs/measurements.md measures what they gain.

EMBEDDED_CHARACTERS = 2_000
BATCH = 128
MOST_SECONDS = 1.0
"""For how long one recall makes vectors."""


class VectorsMissing(Exception):
    """`recall_vectors` is on, and vectors cannot be made here; the message says why and what to do."""


class Embedder(Protocol):
    """Turns texts into vectors of length 1."""

    name: str
    """Vectors of different models are never compared."""

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """32-bit floats, little-endian, for each text."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """A query as a vector."""

    model: str
    vector: bytes


class Wordllama:
    """Static embeddings of 256 dimensions."""

    name = "wordllama-l2-supercat-256"

    def __init__(self) -> None:
        from pathlib import Path

        import wordllama

        # The package carries weights and tokenizer, but looks for the latter in a folder of another name
        # before it
        # would download them: given its own folder as the cache, it finds both, and never asks the network.
        folder = Path(wordllama.__file__).parent
        self._model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        vectors: Any = self._model.embed(
            [plain(text[:EMBEDDED_CHARACTERS]) or " " for text in texts], norm=True
        )
        return [vector.astype("<f4").tobytes() for vector in vectors]


def vectors_unavailable(reads: object = None) -> str | None:
    """Why `load` would fail, or why the database of `reads` cannot compare vectors, in one line, as far as a check
    without loading can say; None: no reason found."""
    if why := engine_of(reads).no_vectors:
        return _advice(why)
    from importlib.util import find_spec

    from watchkeeper.store.driver import sqlite3

    absent = [name for name in ("sqlite-vec", "wordllama") if find_spec(name.replace("-", "_")) is None]
    if absent:
        return _advice(
            f"{' and '.join(absent)} {'are' if len(absent) > 1 else 'is'} not installed",
            install_command("vectors"),
        )
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        return _advice("this SQLite build cannot load extensions", "install pysqlite3")
    return None


def _advice(why: str, *remedies: str) -> str:
    return (
        f"recall_vectors is on, but {why}; recall uses word search only"
        f" ({', or '.join([*remedies, 'set recall_vectors = false'])})"
    )


@lru_cache(maxsize=1)
def load_embedder() -> Embedder:
    """The embedder of the extra `vectors`, loaded once (some 0.3 s).

    Raises:
        VectorsMissing: the extra is not installed, or this SQLite loads no extensions.
    """
    from watchkeeper.store.driver import sqlite3

    why = vectors_unavailable()
    if why is not None:
        raise VectorsMissing(why)
    connection = sqlite3.connect(":memory:")
    try:
        passages.load_extension(connection)
        return Wordllama()
    except (ImportError, AttributeError, OSError, sqlite3.Error) as error:
        raise VectorsMissing(_advice(f"does not work here ({error})", "reinstall the extra")) from None
    finally:
        connection.close()


def make_vectors(
    reads: Reads, session_id: str, embedder: Embedder, *, seconds: Callable[[], float] = time.monotonic
) -> Iterator[tuple[str, list[tuple[int, bytes]]]]:
    """Vectors that a session still lacks, a batch at a time, as `(kind, [(id, vector)])`; for a second at
    most."""
    until = seconds() + MOST_SECONDS
    wanted = passages.missing_facts(reads, session_id, embedder.name)
    for start in range(0, len(wanted), BATCH):
        batch = wanted[start : start + BATCH]
        yield (
            "fact",
            list(zip([one[0] for one in batch], embedder.embed([one[1] for one in batch]), strict=True)),
        )
        if seconds() >= until:
            return
    missing = passages.missing_messages(reads, session_id, embedder.name, passages.NEWEST_MESSAGES)
    skipped = passages.calls_of(reads, session_id, OWN_TOOLS) if missing else frozenset()
    for start in range(0, len(missing), BATCH):
        places = missing[start : start + BATCH]
        contents = passages.messages_at(reads, [(agent, seq) for _, agent, seq in places])
        there = [(item, contents[agent, seq][0]) for item, agent, seq in places if (agent, seq) in contents]
        vectors = embedder.embed([said_in(content, skipped) for _, content in there])
        yield "message", list(zip([item for item, _ in there], vectors, strict=True))
        if seconds() >= until:
            return


Hidden = Callable[[str, int], bool]

CANDIDATE_FACTS = 200
CANDIDATE_MESSAGES = 56
CANDIDATE_BYTES = 500_000
NEIGHBOUR_CHARACTERS = 2_500
"""What a search reads is bounded: so many messages, the best first, and the beginnings of their neighbours."""
WEIGHED_MESSAGES = 250
"""A search looks up the length of so many messages, those with the rarest words."""
PADDING = 0.15
"""What a long message loses for holding more words than a short one."""
PRIOR_ADJACENCY, PRIOR_PAIRS, FULL_ADJACENCY = 0.1, 30, 0.08
"""Words of conversations come again within two messages in a tenth of the cases; see `_adjacency`."""
WEIGHTS = {"text": 1.0, "tool_use": 0.9, "tool_result": 0.7}
"""What words count by the kind of block that holds them."""
EXCERPT_CHARACTERS = 300
OWN_TOOLS = ("remember", "recall", "read_back", "compact")
"""Calls of these, and their results, are about memory: finding them would find the search itself."""


class Scope(StrEnum):
    """How far recall looks. Each includes those before it."""

    AGENT = "agent"
    """What the reader itself wrote and said."""
    SESSION = "session"
    """What all agents of the session wrote and said."""
    WORKSPACE = "workspace"
    """Also facts that earlier sessions kept for the workspace."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """A fact or a message that was found."""

    kind: str
    """A kind of fact, or `message`."""
    text: str
    """The fact; of a message the part that matches."""
    sources: tuple[str, ...]
    """Pointers that `read_back` resolves: `message://agent/12`, `artifact://sha256/…`."""
    score: float
    why: str
    agent_id: str | None
    at: float
    fact_id: int | None = None
    replaces: tuple[str, ...] = ()
    """Pointers to earlier facts that it superseded: `fact://1f3a…`."""


def recall(
    reads: Reads,
    session_id: str | None,
    query: str,
    scope: Scope | str = Scope.WORKSPACE,
    limit: int = 10,
    *,
    reader: str | None = None,
    messages: bool = True,
    question: Question | None = None,
) -> list[Recalled]:
    """What the session knows about `query`, best first: at most `limit` results, half of them facts if enough
    match.

    Args:
        reads: has `one` and `all` (a transaction, a host's reads, a viewer's).
        session_id: None: the facts of all sessions, and no messages.
        reader: the agent that asks. Messages that its context shows now are left out; its own facts of scope
            `agent` are included. None: a person asks, and sees the facts of every agent.
        messages: whether to search them too.
        question: the query as a vector; the connection behind `reads` has sqlite-vec then.

    Raises:
        ValueError: no such scope, or scope `agent` without a reader.
    """
    scope = Scope(scope)
    if scope is Scope.AGENT and reader is None:
        raise ValueError("scope `agent` requires a calling agent")
    known = _facts(reads, session_id, query, scope, limit, reader, question)
    said: list[Recalled] = []
    if messages and session_id is not None:
        said = _messages(
            reads, session_id, query, limit, reader, question, only=reader if scope is Scope.AGENT else None
        )
    kept_facts = known[: max(limit - len(said), (limit + 1) // 2)]
    return sorted([*kept_facts, *said[: limit - len(kept_facts)]], key=lambda one: one.fact_id is None)


def _facts(
    reads: Reads,
    session_id: str | None,
    query: str,
    scope: Scope,
    limit: int,
    reader: str | None,
    question: Question | None,
) -> list[Recalled]:
    workspace = None
    if session_id is not None and scope is Scope.WORKSPACE:
        session = sessions.load(reads, session_id)
        workspace = session.workspace if session is not None else None
    likeness = passages.fact_likeness(reads, session_id, question.model, question.vector) if question else {}
    near = sorted(likeness, key=lambda one: -likeness[one])[:CANDIDATE_MESSAGES]
    asked = Query(query)
    words, parts = asked.words, [*asked.literals, *asked.pairs]
    rows = facts.find_facts(
        reads, session_id, words, parts,
        workspace=workspace, reader=reader, everyone=reader is None, near=near,
        limit=CANDIDATE_FACTS,
    )  # fmt: skip
    if scope is Scope.AGENT:
        rows = [row for row in rows if row[4] == reader]
    rows = sorted(rows, key=lambda row: row[0])
    by_id = {str(row[0]): row for row in rows}
    # Each in a thread of its own: facts are independent of each other.
    documents = [Document(str(row[0]), row[2], row[5], thread=str(row[0])) for row in rows]
    size = facts.count_facts(reads, session_id, workspace=workspace, reader=reader, everyone=reader is None)
    found = []
    alike = Likeness({str(one): value for one, value in likeness.items()})
    for hit in rank(documents, query, limit, corpus_size=size, likeness=alike):
        row = by_id[hit.id]
        sources, replaces = tuple(json.loads(row[3])), tuple(json.loads(row[6]))
        found.append(Recalled(row[1], row[2], sources, hit.score, hit.why, row[4], row[5], row[0], replaces))
    return found


def _messages(
    reads: Reads,
    session_id: str,
    query: str,
    limit: int,
    reader: str | None,
    question: Question | None,
    *,
    only: str | None,
) -> list[Recalled]:
    asked = Query(query)
    pieces = asked.pieces
    if not pieces:
        return []
    hidden = _in_sight(reads, reader)
    skipped = passages.calls_of(reads, session_id, OWN_TOOLS)
    likeness = (
        passages.message_likeness(reads, session_id, question.model, question.vector, agent_id=only)
        if question
        else {}
    )
    holders = passages.holders(reads, session_id, pieces, asked.forms, agent_id=only)
    if holders.size:
        names = [*dict.fromkeys([*asked.words, *asked.literals])]
        holders = holders.with_more(passages.calls_named(reads, session_id, names))
    places = _candidates(reads, holders, hidden, only)
    nearest = sorted((place for place in likeness if not hidden(*place)), key=lambda place: -likeness[place])
    places += nearest[:CANDIDATE_MESSAGES]
    wanted = set(places)
    around = sorted({(agent, seq + step) for agent, seq in places for step in (-1, 0, 1)})
    contents = passages.messages_at(reads, around)
    documents: dict[str, tuple[str, int, Document]] = {}
    run, before = 0, ("", 0)
    for agent, seq in around:
        if (agent, seq) not in contents:
            continue
        run += before != (agent, seq - 1)
        before = (agent, seq)
        content, at = contents[agent, seq]
        pointer = f"message://{agent}/{seq}"
        text, weights = _weighted(content, skipped)
        text = text if (agent, seq) in wanted else text[:NEIGHBOUR_CHARACTERS]
        documents[pointer] = agent, seq, Document(pointer, text, at, f"{agent} {run}", weights)
    found = []
    alike = Likeness({f"message://{agent}/{seq}": value for (agent, seq), value in likeness.items()})
    for hit in rank(
        [document for _, _, document in documents.values()], query, len(documents),
        corpus_size=holders.size, likeness=alike, held=holders.counts, adjacency=_adjacency(holders),
    ):  # fmt: skip
        agent, seq, document = documents[hit.id]
        if document.text and not hidden(agent, seq):
            shown = _shown(document.text, hit.place, asked)
            found.append(Recalled("message", shown, (hit.id,), hit.score, hit.why, agent, document.at or 0.0))
            if len(found) == limit:
                break
    return found


def _shown(text: str, place: int, asked: Query) -> str:
    """The part of a text that matches: what it holds character by character, else the best passage."""
    folded = fold(text)
    for exact in (asked.whole, *asked.literals):
        if exact and exact in folded:
            return excerpt(text, [exact])
    return excerpt(text[place : place + 2 * PASSAGE_CHARACTERS], asked.pieces)


def _candidates(
    reads: Reads, holders: passages.Holders, hidden: Hidden, only: str | None
) -> list[tuple[str, int]]:
    """The messages with the rarest pieces, as many as are read whole; of those that hold as much, the shorter
    and the newer."""
    worth: dict[int, float] = defaultdict(float)
    for piece, ids in holders.of.items():
        rarity = math.log(1 + holders.size / (1 + holders.counts[piece]))
        for number in ids:
            worth[number] += rarity
    best = sorted(sorted(worth, reverse=True), key=worth.__getitem__, reverse=True)
    found: list[tuple[float, int, tuple[str, int], int]] = []
    for start in range(0, len(best), WEIGHED_MESSAGES):
        some = passages.places_of(reads, best[start : start + WEIGHED_MESSAGES])
        for number, (agent, seq, size) in some.items():
            if (only is None or agent == only) and not hidden(agent, seq):
                padding = 1 + PADDING * math.log1p(size / PASSAGE_CHARACTERS)
                found.append((-worth[number] / padding, -number, (agent, seq), size))
        if len(found) >= CANDIDATE_MESSAGES:
            break
    places: list[tuple[str, int]] = []
    room = CANDIDATE_BYTES
    for _, _, place, size in sorted(found)[:CANDIDATE_MESSAGES]:
        room -= size
        if places and room < 0:
            break
        places.append(place)
    return places


def _adjacency(holders: passages.Holders) -> float:
    """How much neighbours count, from 0 to 1: as far as what one message holds the next one does more often
    than chance has it, which is so in a conversation, and not among unrelated texts."""
    gain, most = PRIOR_ADJACENCY * PRIOR_PAIRS, float(PRIOR_PAIRS)
    for piece, ids in holders.of.items():
        count = holders.counts[piece]
        if count <= holders.size / 20 and count == len(ids):
            there = set(ids)
            by_chance = 2 * count * count / holders.size
            gain += sum((number + 1 in there) + (number + 2 in there) for number in ids) - by_chance
            most += 2 * count - by_chance
    return min(1.0, max(0.0, gain / most) / FULL_ADJACENCY)


def _weighted(content: Content, skipped: frozenset[str]) -> tuple[str, tuple[tuple[int, float], ...]]:
    """A message's text to search, and what its parts count."""
    parts: list[str] = []
    weights: list[tuple[int, float]] = []
    size = 0
    for kind, text in _said_parts(content, skipped):
        weights.append((size, WEIGHTS[kind]))
        parts.append(text)
        size += len(text) + 1
    return "\n".join(parts), tuple(weights) if any(weight != 1.0 for _, weight in weights) else ()


def _in_sight(reads: Reads, reader: str | None) -> Hidden:
    """Whether the reader has a message whole in its context."""
    shown = passages.shown_verbatim(reads, reader) if reader is not None else None
    if shown is None:
        return lambda agent, seq: False
    first, shortened = shown
    return lambda agent, seq: agent == reader and seq >= first and seq not in shortened


def said_in(content: Content, skipped: frozenset[str] = frozenset()) -> str:
    """A message's text to search: what was said, what tools were given and what they brought, but for
    `skipped` calls."""
    return "\n".join(text for _, text in _said_parts(content, skipped))


def _said_parts(content: Content, skipped: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The blocks of a message that have a text to search: their types and texts."""
    for block in blocks_of(content):
        kind, text = str(block.get("type")), ""
        if kind == "text":
            text = str(block.get("text", ""))
        elif kind == "tool_use" and block.get("id") not in skipped and block.get("name") not in OWN_TOOLS:
            text = " ".join([str(block.get("name", "")), *leaves(block.get("input"))])
        elif kind == "tool_result" and block.get("tool_use_id") not in skipped:
            text = result_text(block)
        if text:
            yield kind, unstyled(text)


def excerpt(text: str, pieces: Sequence[str], size: int = EXCERPT_CHARACTERS) -> str:
    """At most `size` characters of a text, on one line, around the first of the pieces that it holds."""
    line = re.sub(r"\s+", " ", text).strip()
    if len(line) <= size:
        return line
    part, start = around_first(line, pieces, size - 2)
    return ("…" if start else "") + part.strip() + ("…" if start + size - 2 < len(line) else "")


def around_first(text: str, pieces: Sequence[str], size: int) -> tuple[str, int]:
    """At most `size` characters of a text around the first of the pieces that it contains, and where they
    begin."""
    folded = text.lower()
    first = min((place for piece in pieces if (place := folded.find(piece)) >= 0), default=0)
    start = max(0, min(first - size // 4, len(text) - size))
    return text[start : start + size], start


# --- The rules of a session -----------------------------------------------------------------------------

RULES_CHARACTERS = 6_000
"""Rules are paid for in every call of every agent. If they are longer, a new agent gets the newest."""


def rule_text(text: str) -> str:
    """A rule as prompts show it: on one line."""
    return " ".join(text.split())


def session_rules(reads: Reads, session_id: str) -> list[str]:
    """What a person pinned for all agents of a session, oldest first; at most 6,000 characters."""
    kept: list[str] = []
    room = RULES_CHARACTERS
    for row in reversed(facts.pinned_facts(reads, session_id)):
        rule = rule_text(str(row[2]))
        if len(rule) > room:
            break
        room -= len(rule)
        kept.append(rule)
    return kept[::-1]
