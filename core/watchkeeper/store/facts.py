"""Rows of `facts`: what agents and people want remembered, and by whom each may be recalled.

Who sees a fact is decided by its own scope: `agent`, only the agent that wrote it; `session`, every agent of the
session; `workspace`, every agent of this session and of later ones on the same workspace.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from watchkeeper.store.encoding import encode, plain

if TYPE_CHECKING:
    from watchkeeper.store.transaction import Transaction

SCOPES = ("agent", "session", "workspace")
KINDS = ("fact", "decision", "artifact", "outcome", "instruction")

_COLUMNS = "SELECT f.id, f.kind, f.text, f.sources, f.agent_id, f.created_at FROM facts f"
# ?1 session (null: all), ?2 workspace, ?3 the agent that asks, ?4 whether facts of every agent are seen.
_VISIBLE = (
    " f.superseded_by IS NULL AND (?1 IS NULL OR (f.session_id = ?1 AND (f.scope <> 'agent' OR f.agent_id IS ?3 OR ?4))"
    " OR (f.scope = 'workspace' AND f.workspace = ?2))"
)
_BY_WORDS = f"{_COLUMNS} JOIN facts_fts ON f.id = facts_fts.rowid WHERE facts_fts MATCH ?6 AND {_VISIBLE} ORDER BY bm25(facts_fts) LIMIT ?5"
_HOLDS_LITERAL = "EXISTS (SELECT 1 FROM json_each(?6) AS one WHERE instr(lower(f.text), one.value) > 0)"
_BY_LITERALS = f"{_COLUMNS} WHERE {_VISIBLE} AND {_HOLDS_LITERAL} ORDER BY f.id DESC LIMIT ?5"
_COUNT = f"SELECT count(*) FROM facts f WHERE {_VISIBLE}"  # noqa: S608


def normal(text: str) -> str:
    """A fact's text as it is kept: on one line, single spaces."""
    return re.sub(r"\s+", " ", text).strip()


def digest_of(text: str) -> str:
    """What two facts in the same words have in common: case, spacing and the full stop do not matter."""
    return hashlib.sha256(normal(text).rstrip(".!;").casefold().encode("utf-8", "replace")).hexdigest()[:32]


def add_fact(
    tx: Transaction,
    *,
    agent_id: str | None,
    workspace: str,
    scope: str,
    kind: str,
    text: str,
    sources: Sequence[str],
    confidence: float = 1.0,
    pinned: bool = False,
    replaces: int | None = None,
) -> tuple[int, bool]:
    """Remember a fact, unless it is known already in the same words; returns its id, and whether it is new.

    One that is known becomes visible to the wider of both scopes, and pinned if either is. `replaces`: the id of a
    fact that this one supersedes; it is kept, and recalled no more.

    Raises:
        ValueError: `replaces` names no fact that the session sees, or one that was superseded already.
    """
    if replaces is not None:
        _check_replaceable(tx, workspace, replaces)
    digest = digest_of(text)
    known = tx.one(
        "SELECT id, scope FROM facts WHERE digest = ? AND superseded_by IS NULL AND (scope <> 'agent' OR agent_id IS ?)"
        " AND (session_id = ? OR (scope = 'workspace' AND workspace = ?)) ORDER BY id LIMIT 1",
        (digest, agent_id, tx.session_id, workspace),
    )
    if known is not None:
        fact_id, new = int(known[0]), False
        wider = max(scope, known[1], key=SCOPES.index)
        tx.execute("UPDATE facts SET scope = ?, pinned = max(pinned, ?) WHERE id = ?", (wider, int(pinned), fact_id))
    else:
        new = True
        fact_id = tx.insert(
            "INSERT INTO facts (session_id, agent_id, workspace, scope, kind, text, digest, sources, confidence, pinned,"
            " created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                tx.session_id, agent_id, workspace, scope, kind, normal(text), digest, encode(list(sources)), confidence,
                int(pinned), tx.now,
            ),
        )  # fmt: skip
    if replaces is not None and replaces != fact_id:
        tx.execute("UPDATE facts SET superseded_by = ? WHERE id = ?", (fact_id, replaces))
    return fact_id, new


def _check_replaceable(tx: Transaction, workspace: str, fact_id: int) -> None:
    row = tx.one("SELECT session_id, scope, workspace, superseded_by FROM facts WHERE id = ?", (fact_id,))
    if row is None or (row[0] != tx.session_id and (row[1], row[2]) != ("workspace", workspace)):
        raise ValueError(f"`replaces`: there is no fact {fact_id}; recall gives the ids")
    if row[3] is not None:
        raise ValueError(f"`replaces`: fact {fact_id} was replaced already, by fact {row[3]}")


def find_facts(
    reads: Any,
    session_id: str | None,
    words: Sequence[str],
    literals: Sequence[str] = (),
    *,
    workspace: str | None = None,
    reader: str | None = None,
    everyone: bool = False,
    limit: int = 200,
) -> list[Any]:
    """Facts that hold any of the words (by their stems, BM25) or literals: `(id, kind, text, sources, agent_id, created_at)`.

    Args:
        session_id: whose facts; None: of all sessions.
        workspace: also facts of this workspace's scope, from any session.
        reader: the agent that asks; it sees its own facts of scope `agent`.
        everyone: facts of scope `agent` too, whoever wrote them (a person looks).
    """
    bound = (session_id, workspace, reader, int(everyone), limit)
    found: dict[int, Any] = {}
    pieces = [piece for word in words for piece in re.findall(r"\w+", plain(word))]
    if pieces:
        match = " OR ".join(f'"{piece}"' for piece in pieces)
        found.update((row[0], row) for row in reads.all(_BY_WORDS, (*bound, match)))
    if literals:
        found.update((row[0], row) for row in reads.all(_BY_LITERALS, (*bound, encode(list(literals)))))
    return list(found.values())


def count_facts(
    reads: Any, session_id: str | None, *, workspace: str | None = None, reader: str | None = None, everyone: bool = False
) -> int:
    """How many facts `find_facts` chooses from."""
    return int(reads.one(_COUNT, (session_id, workspace, reader, int(everyone)))[0])


def pinned_facts(reads: Any, session_id: str, *, limit: int = 100) -> list[Any]:
    """Standing facts of a session, and of its workspace, oldest first: `(id, kind, text, sources)`."""
    rows: list[Any] = reads.all(
        "SELECT f.id, f.kind, f.text, f.sources FROM facts f JOIN sessions s ON s.id = ?"
        " WHERE f.pinned = 1 AND f.superseded_by IS NULL AND f.scope <> 'agent' AND (f.session_id = s.id"
        " OR (f.scope = 'workspace' AND f.workspace = s.workspace)) ORDER BY f.id DESC LIMIT ?",
        (session_id, limit),
    )
    return rows[::-1]
