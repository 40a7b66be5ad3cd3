"""Recall on the store: the facts that a reader may see, and what was said in the session's messages."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from watchkeeper.memory.content import blocks_of, leaves, result_text
from watchkeeper.memory.recall.ranking import Document, Likeness, rank
from watchkeeper.memory.recall.verbatim import held_verbatim
from watchkeeper.memory.recall.words import characters_of, literals_of, words_of
from watchkeeper.records.memory import Content
from watchkeeper.store import embeddings, facts, recollection

if TYPE_CHECKING:
    from watchkeeper.memory.recall.vectors import Question

Hidden = Callable[[str, int], bool]

CANDIDATE_FACTS = 200
CANDIDATE_MESSAGES = 64
DOCUMENT_CHARACTERS = 2_000
"""What a search reads whole is bounded: 64 messages and their neighbours, 2,000 characters each."""
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
    reads: Any,
    session_id: str | None,
    query: str,
    scope: Scope | str = Scope.WORKSPACE,
    limit: int = 10,
    *,
    reader: str | None = None,
    messages: bool = True,
    question: Question | None = None,
) -> list[Recalled]:
    """What the session knows about `query`, best first; at most `limit`, half of them facts where so many
    match.

    Args:
        reads: has `one` and `all` (a transaction, a host's reads, a viewer's).
        session_id: None: the facts of all sessions, and no messages.
        reader: the agent that asks. What stands in its context now is not found again; its own facts of scope
            `agent` are. None: a person asks, and sees the facts of every agent.
        messages: whether to search them too.
        question: the query as a vector; the connection behind `reads` has sqlite-vec then.

    Raises:
        ValueError: no such scope, or scope `agent` without a reader.
    """
    scope = Scope(scope)
    if scope is Scope.AGENT and reader is None:
        raise ValueError("scope `agent` needs the agent that asks")
    known = _facts(reads, session_id, query, scope, limit, reader, question)
    said: list[Recalled] = []
    if messages and session_id is not None:
        said = _messages(
            reads, session_id, query, limit, reader, question, only=reader if scope is Scope.AGENT else None
        )
    kept_facts = known[: max(limit - len(said), (limit + 1) // 2)]
    return sorted([*kept_facts, *said[: limit - len(kept_facts)]], key=lambda one: one.fact_id is None)


def _facts(
    reads: Any,
    session_id: str | None,
    query: str,
    scope: Scope,
    limit: int,
    reader: str | None,
    question: Question | None,
) -> list[Recalled]:
    workspace = None
    if session_id is not None and scope is Scope.WORKSPACE:
        row = reads.one("SELECT workspace FROM sessions WHERE id = ?", (session_id,))
        workspace = row[0] if row else None
    likeness = (
        embeddings.fact_likeness(reads, session_id, question.model, question.vector) if question else {}
    )
    near = sorted(likeness, key=lambda one: -likeness[one])[:CANDIDATE_MESSAGES]
    rows = facts.find_facts(
        reads, session_id, words_of(query), [*literals_of(query), *characters_of(query)],
        workspace=workspace, reader=reader, everyone=reader is None, near=near,
        limit=CANDIDATE_FACTS,
    )  # fmt: skip
    if scope is Scope.AGENT:
        rows = [row for row in rows if row[4] == reader]
    rows = sorted(rows, key=lambda row: row[0])
    by_id = {str(row[0]): row for row in rows}
    # Each in a thread of its own: facts stand for themselves.
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
    reads: Any,
    session_id: str,
    query: str,
    limit: int,
    reader: str | None,
    question: Question | None,
    *,
    only: str | None,
) -> list[Recalled]:
    hidden = _in_sight(reads, reader)
    skipped = recollection.calls_of(reads, session_id, OWN_TOOLS)
    exact = [
        Recalled(
            "message",
            excerpt(text, [needle.lower()]),
            (f"message://{agent}/{seq}",),
            1.0,
            "verbatim",
            agent,
            at,
        )
        for agent, seq, needle, text, at in held_verbatim(
            reads,
            session_id,
            query,
            only=only,
            visible=lambda *place: not hidden(*place),
            said=lambda c: said_in(c, skipped),
        )
    ]
    pieces = _pieces(query)
    if not pieces:
        return exact[:limit]
    likeness = (
        embeddings.message_likeness(reads, session_id, question.model, question.vector, agent_id=only)
        if question
        else {}
    )
    masks = recollection.term_masks(reads, session_id, pieces, agent_id=only)
    places = _candidates(masks, len(pieces), hidden)
    nearest = sorted((place for place in likeness if not hidden(*place)), key=lambda place: -likeness[place])
    places += nearest[:CANDIDATE_MESSAGES]
    around = sorted({(agent, seq + step) for agent, seq in places for step in (-1, 0, 1)})
    contents = recollection.messages_at(reads, around)
    documents: list[Document] = []
    texts: dict[str, tuple[str, str, float]] = {}
    run, before = 0, ("", 0)
    for agent, seq in around:
        if (agent, seq) not in contents:
            continue
        if before != (agent, seq - 1):
            run += 1
        before = (agent, seq)
        content, at = contents[agent, seq]
        pointer = f"message://{agent}/{seq}"
        text = _part(said_in(content, skipped), pieces, DOCUMENT_CHARACTERS)
        documents.append(Document(pointer, text, at, thread=f"{agent} {run}"))
        texts[pointer] = (text, agent, at)
    found = []
    alike = Likeness({f"message://{agent}/{seq}": value for (agent, seq), value in likeness.items()})
    for hit in rank(documents, query, limit * 3, corpus_size=len(masks), likeness=alike):
        text, agent, at = texts[hit.id]
        if text and not hidden(agent, int(hit.id.rpartition("/")[2])):
            found.append(Recalled("message", excerpt(text, pieces), (hit.id,), hit.score, hit.why, agent, at))
    there = {one.sources for one in exact}
    return [*exact, *(one for one in found if one.sources not in there)][:limit]


def _pieces(query: str) -> list[str]:
    """What messages are scanned for: the beginnings of words that all their forms share, and literals."""
    found: dict[str, None] = dict.fromkeys(characters_of(query))
    for word in words_of(query):
        # "studies" and "study" share "stud"; cutting more of a short word would find everything.
        cut = word if word.isdigit() or len(word) < 5 else word[: max(4, len(word) - 3)]
        found[cut] = None
    for literal in literals_of(query):
        found[json.dumps(literal, ensure_ascii=False)[1:-1]] = None
    return list(found)[:60]


def _candidates(masks: Sequence[tuple[str, int, int]], count: int, hidden: Hidden) -> list[tuple[str, int]]:
    """The messages with the rarest pieces, as many as are read whole."""
    times = Counter(mask for _, _, mask in masks)
    holding = [sum(held for mask, held in times.items() if mask >> bit & 1) for bit in range(count)]
    worth = [math.log(1 + len(masks) / (1 + held)) for held in holding]
    worth_of = {mask: sum(worth[bit] for bit in range(count) if mask >> bit & 1) for mask in times}
    scored = [(worth_of[mask], agent, seq) for agent, seq, mask in masks if mask and not hidden(agent, seq)]
    scored.sort(key=lambda one: -one[0])
    return [(agent, seq) for _, agent, seq in scored[:CANDIDATE_MESSAGES]]


def _in_sight(reads: Any, reader: str | None) -> Hidden:
    """Whether the reader has a message whole in its context."""
    shown = recollection.shown_verbatim(reads, reader) if reader is not None else None
    if shown is None:
        return lambda agent, seq: False
    first, shortened = shown
    return lambda agent, seq: agent == reader and seq >= first and seq not in shortened


def said_in(content: Content, skipped: frozenset[str] = frozenset()) -> str:
    """A message's text to search: what was said, what tools were given and what they brought, but for
    `skipped` calls."""
    parts: list[str] = []
    for block in blocks_of(content):
        kind = block.get("type")
        if kind == "text":
            parts.append(str(block.get("text", "")))
        elif kind == "tool_use" and block.get("id") not in skipped and block.get("name") not in OWN_TOOLS:
            parts.append(" ".join([str(block.get("name", "")), *leaves(block.get("input"))]))
        elif kind == "tool_result" and block.get("tool_use_id") not in skipped:
            parts.append(result_text(block))
    return "\n".join(part for part in parts if part)


def excerpt(text: str, pieces: Sequence[str], size: int = EXCERPT_CHARACTERS) -> str:
    """At most `size` characters of a text, on one line, around the first of the pieces that it holds."""
    line = re.sub(r"\s+", " ", text).strip()
    if len(line) <= size:
        return line
    folded = line.lower()
    places = [place for place in (folded.find(piece) for piece in pieces) if place >= 0]
    start = max(0, min(min(places, default=0) - size // 4, len(line) - size + 2))
    cut = line[start : start + size - 2].strip()
    return ("…" if start else "") + cut + ("…" if start + size - 2 < len(line) else "")


def _part(text: str, pieces: Sequence[str], size: int) -> str:
    """Of a long text the part around the first of the pieces that it holds."""
    if len(text) <= size:
        return text
    folded = text.lower()
    places = [place for place in (folded.find(piece) for piece in pieces) if place >= 0]
    start = max(0, min(min(places, default=0) - size // 4, len(text) - size))
    return text[start : start + size]
