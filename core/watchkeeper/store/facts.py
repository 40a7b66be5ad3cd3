"""Rows of `facts`: what agents and people want remembered, and by whom each may be recalled.

Who sees a fact is decided by its own scope: `agent`, only the agent that wrote it (and one that was made from
its memory); `session`, every agent of the session; `workspace`, every agent of this session and of later ones
on the same workspace. A fact that a newer one supersedes is kept, and told by nothing but its own pointer,
`fact://<hex>`. The pointer is the digest of its words, so that a fork and an imported session, whose facts
have other ids, resolve it too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from watchkeeper.store.encoding import decode, encode, plain
from watchkeeper.store.superseding import SAME_KINDS, is_same, is_update, subject_of

if TYPE_CHECKING:
    from watchkeeper.store.transaction import Transaction

SCOPES = ("agent", "session", "workspace")
KINDS = ("fact", "decision", "artifact", "outcome", "instruction")

CANDIDATES = 200
"""How many facts that speak of a new one's subject are looked at for one that it updates: the newest."""

DIGEST_CHARACTERS = 12
_REPLACES = "(SELECT json_group_array('fact://' || substr(o.digest, 1, 12)) FROM facts o WHERE o.superseded_by = f.id)"
_COLUMNS = f"SELECT f.id, f.kind, f.text, f.sources, f.agent_id, f.created_at, {_REPLACES} FROM facts f"  # noqa: S608
# ?1 session (null: all), ?2 workspace, ?3 the agent that asks, ?4 whether facts of every agent are seen.
_NOT_DELETED = " NOT EXISTS (SELECT 1 FROM sessions d WHERE d.id = f.session_id AND d.deleted_at IS NOT NULL)"
_VISIBLE = (
    f" f.superseded_by IS NULL AND{_NOT_DELETED} AND (?1 IS NULL OR (f.session_id = ?1 AND (f.scope <> 'agent' OR ?4 OR f.agent_id IN"  # noqa: S608 - a constant
    " (WITH RECURSIVE line (id) AS (SELECT ?3 UNION SELECT a.copied_from FROM line JOIN agents a ON a.id ="
    " line.id)"
    " SELECT id FROM line WHERE id IS NOT NULL))) OR (f.scope = 'workspace' AND f.workspace = ?2))"
)
# Where the session is known, an index for each of the two ways to see a fact: else the facts of all sessions
# would be read.
_NEAR = (
    " f.id IN (SELECT id FROM facts WHERE session_id = ?1 UNION ALL"
    " SELECT id FROM facts WHERE scope = 'workspace' AND workspace = ?2) AND"
)
_IN_ORDER = " ORDER BY f.pinned DESC, f.session_id = ?1 DESC, f.id DESC LIMIT ?5"
_CURRENT = f"{_COLUMNS} WHERE{_NEAR}{_VISIBLE}{_IN_ORDER}"
_CURRENT_BY = f"{_COLUMNS} WHERE f.agent_id = ?6 AND f.session_id = ?1 AND{_VISIBLE}{_IN_ORDER}"
_BY_WORDS = f"{_COLUMNS} JOIN facts_fts ON f.id = facts_fts.rowid WHERE facts_fts MATCH ?6 AND {_VISIBLE} ORDER BY bm25(facts_fts) LIMIT ?5"
_HOLDS_LITERAL = "EXISTS (SELECT 1 FROM json_each(?6) AS one WHERE instr(lower(f.text), one.value) > 0)"
_HOLD_LITERALS = f"{_VISIBLE} AND {_HOLDS_LITERAL} ORDER BY f.id DESC LIMIT ?5"
_BY_LITERALS, _BY_LITERALS_IN_ALL = (
    f"{_COLUMNS} WHERE{_NEAR}{_HOLD_LITERALS}",
    f"{_COLUMNS} WHERE{_HOLD_LITERALS}",
)
_BY_IDS = f"{_COLUMNS} WHERE {_VISIBLE} AND f.id IN (SELECT value FROM json_each(?6)) LIMIT ?5"  # noqa: S608
_COUNT = f"SELECT count(*) FROM facts f WHERE{_NEAR}{_VISIBLE}"  # noqa: S608
_COUNT_IN_ALL = f"SELECT count(*) FROM facts f WHERE{_VISIBLE}"  # noqa: S608


class Remembered(NamedTuple):
    """What `add_fact` did."""

    id: int
    """The fact that now says it."""
    new: bool
    """False: it was known already."""
    replaced: tuple[tuple[int, str], ...] = ()
    """Ids and texts of the facts that it supersedes."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact that holds."""

    id: int
    kind: str
    text: str
    sources: tuple[str, ...]
    agent_id: str | None
    replaces: tuple[str, ...] = ()
    """Pointers to the facts that it superseded: `fact://1f3a…`."""

    def cited(self) -> str:
        """The fact in one line, with pointers to where it was learned and to what it replaced."""
        pointers = [*self.sources, *(f"replaces {one}" for one in self.replaces)]
        return self.text + (f" ({', '.join(pointers)})" if pointers else "")


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
    also: bool = False,
) -> Remembered:
    """Remember a fact, unless it is known already (`superseding.is_same`, or the same words of another kind).

    One that is known becomes visible to the wider of both scopes, and pinned if either is. A fact or decision
    that brings an earlier one of its kind up to date (`superseding.is_update`) supersedes it, where its scope
    is as wide and its confidence as high and the earlier one is not pinned; the earlier one is kept, and
    recalled no more.

    Args:
        replaces: the id of a fact that this one supersedes, whatever it says. The new fact's scope becomes as
            wide as that one's: who knew the old answer gets the new one.
        also: both hold; no earlier fact is superseded but the one that `replaces` names.

    Raises:
        ValueError: `replaces` names no fact that the session sees, or one that was superseded already.
    """
    replaced: dict[int, str] = {}
    if replaces is not None:
        old_scope, old_text = _replaceable(tx, workspace, replaces)
        scope = max(scope, old_scope, key=SCOPES.index)
        replaced[replaces] = old_text
    near = _near(tx, agent_id, workspace, text)
    digest = digest_of(text)
    known = next(
        (row for row in near if row[2] == digest or (row[4] == kind and is_same(row[3], text))), None
    )
    if known is not None:
        fact_id, new = int(known[0]), False
        replaced.pop(fact_id, None)
        wider = max(scope, known[1], key=SCOPES.index)
        tx.execute(
            "UPDATE facts SET scope = ?, pinned = max(pinned, ?) WHERE id = ?", (wider, int(pinned), fact_id)
        )
    else:
        new = True
        fact_id = tx.insert(
            "INSERT INTO facts (session_id, agent_id, workspace, scope, kind, text, digest, sources,"
            " confidence, pinned,"
            " created_at, commit_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                tx.session_id, agent_id, workspace, scope, kind, normal(text), digest, encode(list(sources)), confidence,
                int(pinned), tx.now, tx.commit_seq,
            ),
        )  # fmt: skip
    if not also and kind in SAME_KINDS:
        for row in near:
            narrower = SCOPES.index(row[1]) <= SCOPES.index(scope) and row[5] <= confidence and not row[6]
            if row[0] != fact_id and row[4] == kind and narrower and is_update(row[3], text):
                replaced[int(row[0])] = row[3]
    tx.executemany("UPDATE facts SET superseded_by = ? WHERE id = ?", [(fact_id, old) for old in replaced])
    return Remembered(fact_id, new, tuple(replaced.items()))


def _near(tx: Transaction, agent_id: str | None, workspace: str, text: str) -> list[Any]:
    """Facts that the writer sees with a text's subject in them: `(id, scope, digest, text, kind, confidence,
    pinned)`."""
    found: dict[int, Any] = {}
    seen = (
        " f.superseded_by IS NULL AND (f.scope <> 'agent' OR f.agent_id IS ?2) AND (f.session_id = ?3 OR"
        " (f.scope = 'workspace'"
        " AND f.workspace = ?4))"
    )
    columns = "SELECT f.id, f.scope, f.digest, f.text, f.kind, f.confidence, f.pinned FROM facts f"
    bound = (agent_id, tx.session_id, workspace)
    same = tx.all(f"{columns} WHERE f.digest = ?1 AND {seen} ORDER BY f.id", (digest_of(text), *bound))
    shared = [piece for word in subject_of(normal(text)) for piece in re.findall(r"\w+", plain(word))][:24]
    if shared:
        same += tx.all(
            f"{columns} JOIN facts_fts ON f.id = facts_fts.rowid WHERE facts_fts MATCH ?1 AND {seen}"
            " ORDER BY facts_fts.rowid DESC LIMIT ?5",
            (" AND ".join(f'"{piece}"' for piece in shared), *bound, CANDIDATES),
        )
    for row in same:
        found.setdefault(row[0], row)
    return list(found.values())


def _replaceable(tx: Transaction, workspace: str, fact_id: int) -> tuple[str, str]:
    """Scope and text of a fact that may be replaced."""
    row = tx.one(
        "SELECT session_id, scope, workspace, superseded_by, text FROM facts WHERE id = ?", (fact_id,)
    )
    if row is None or (row[0] != tx.session_id and (row[1], row[2]) != ("workspace", workspace)):
        raise ValueError(f"`replaces`: there is no fact {fact_id}; recall gives the ids")
    if row[3] is not None:
        raise ValueError(f"`replaces`: fact {fact_id} was replaced already, by fact {row[3]}")
    return row[1], row[4]


def current_facts(
    reads: Any,
    session_id: str,
    *,
    reader: str | None = None,
    workspace: str | None = None,
    writer: str | None = None,
    limit: int = 1_000,
) -> list[Fact]:
    """The facts that hold now and that `reader` may see, oldest first; of more than `limit` the pinned and
    the newest.

    Args:
        reader: the agent that is told; None: one that has no facts of its own yet (of scope `agent` it sees
            none).
        workspace: also what earlier sessions kept for this workspace.
        writer: only what this agent wrote in the session.
    """
    bound = (session_id, workspace, reader, 0, limit)
    rows = reads.all(_CURRENT, bound) if writer is None else reads.all(_CURRENT_BY, (*bound, writer))
    found = [
        Fact(row[0], row[1], row[2], tuple(decode(row[3])), row[4], tuple(decode(row[6]))) for row in rows
    ]
    return sorted(found, key=lambda fact: fact.id)


def set_pinned(tx: Transaction, fact_id: int, pinned: bool) -> str:
    """Show a fact of the session in every prompt from now on, or no more; returns its text.

    Raises:
        ValueError: the session has no such fact, or a newer one took its place.
    """
    row = tx.one(
        "SELECT text, superseded_by FROM facts WHERE id = ? AND session_id = ?", (fact_id, tx.session_id)
    )
    if row is None:
        raise ValueError(f"there is no fact {fact_id} in this session")
    if pinned and row[1] is not None:
        raise ValueError(f"fact {fact_id} was replaced by fact {row[1]}; pin that one")
    # What one agent keeps to itself is in nobody's prompt: pinning shows it to the session.
    scope = ", scope = CASE scope WHEN 'agent' THEN 'session' ELSE scope END" if pinned else ""
    tx.execute(f"UPDATE facts SET pinned = ?{scope} WHERE id = ?", (int(pinned), fact_id))  # noqa: S608
    return str(row[0])


def read_fact(reads: Any, session_id: str, digest: str, *, reader: str | None = None) -> str | None:
    """A fact in words by the beginning of its digest, superseded or not, with its pointers; None where there
    is none that `reader` may see."""
    row = reads.one(
        "SELECT f.kind, f.text, f.sources, n.digest, f.id FROM facts f JOIN sessions s ON s.id = ?1 LEFT"
        " JOIN facts n"
        " ON n.id = f.superseded_by WHERE f.digest BETWEEN ?2 AND ?2 || 'g' AND"
        " ((f.session_id = s.id AND (f.scope <> 'agent' OR f.agent_id IS ?3))"
        " OR (f.scope = 'workspace' AND f.workspace = s.workspace)) ORDER BY f.id DESC LIMIT 1",
        (session_id, digest, reader),
    )
    if row is None:
        return None
    by = f"; superseded by fact://{row[3][:DIGEST_CHARACTERS]}" if row[3] is not None else ""
    return f"[{row[0]} {row[4]}] {row[1]} ({', '.join(decode(row[2])) or 'no source'}{by})"


def find_facts(
    reads: Any,
    session_id: str | None,
    words: Sequence[str],
    literals: Sequence[str] = (),
    *,
    workspace: str | None = None,
    reader: str | None = None,
    everyone: bool = False,
    near: Sequence[int] = (),
    limit: int = 200,
) -> list[Any]:
    """Facts that hold any of the words (by their stems, BM25) or literals: `(id, kind, text, sources,
    agent_id, created_at, replaces)`, `sources` and `replaces` as JSON.

    Args:
        session_id: whose facts; None: of all sessions.
        workspace: also facts of this workspace's scope, from any session.
        reader: the agent that asks; it sees its own facts of scope `agent`.
        everyone: facts of scope `agent` too, whoever wrote them (a person looks).
        near: also these facts, by id, of those that may be seen.
    """
    bound = (session_id, workspace, reader, int(everyone), limit)
    found: dict[int, Any] = {}
    pieces = [piece for word in words for piece in re.findall(r"\w+", plain(word))]
    if pieces:
        match = " OR ".join(f'"{piece}"' for piece in pieces)
        found.update((row[0], row) for row in reads.all(_BY_WORDS, (*bound, match)))
    if literals:
        by_literals = _BY_LITERALS if session_id is not None else _BY_LITERALS_IN_ALL
        found.update((row[0], row) for row in reads.all(by_literals, (*bound, encode(list(literals)))))
    if near:
        found.update((row[0], row) for row in reads.all(_BY_IDS, (*bound, encode(list(near)))))
    return list(found.values())


def count_facts(
    reads: Any,
    session_id: str | None,
    *,
    workspace: str | None = None,
    reader: str | None = None,
    everyone: bool = False,
) -> int:
    """How many facts `find_facts` chooses from."""
    count = _COUNT if session_id is not None else _COUNT_IN_ALL
    return int(reads.one(count, (session_id, workspace, reader, int(everyone)))[0])


def pinned_facts(reads: Any, session_id: str, *, limit: int = 100) -> list[Any]:
    """Standing facts of a session, and of its workspace, oldest first: `(id, kind, text, sources)`."""
    rows: list[Any] = reads.all(
        # Asked before every turn of every agent: an index for each of the two, or it would read the facts of
        # all sessions.
        "SELECT f.id, f.kind, f.text, f.sources FROM facts f WHERE f.id IN (SELECT id FROM facts WHERE pinned = 1"  # noqa: S608
        " AND session_id = ?1 UNION ALL SELECT id FROM facts WHERE pinned = 1 AND scope = 'workspace'"
        " AND workspace = (SELECT workspace FROM sessions WHERE id = ?1))"
        f" AND f.superseded_by IS NULL AND{_NOT_DELETED} AND f.scope <> 'agent' ORDER BY f.id DESC LIMIT ?2",
        (session_id, limit),
    )
    return rows[::-1]
