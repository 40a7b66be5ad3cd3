"""Rows of `facts`: what agents and people want remembered, and which agents may recall each.

A fact's own scope decides who sees it. `agent`: only the agent that wrote it, and one that was made from its
memory. `session`: every agent of the session. `workspace`: every agent of this session and of later ones on
the same workspace. A fact that a newer one supersedes is kept, but only its own pointer, `fact://<hex>`,
finds it. The pointer is the digest of its words, so that a fork and an imported session, whose facts have
other ids, resolve it too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from watchkeeper.records.text import unstyled
from watchkeeper.store.driver import (
    FACTS_FOUND,
    FACTS_RANK,
    IN_LIST,
    Reads,
    contains,
    decode,
    encode,
    list_of,
    plain,
    row_list,
)
from watchkeeper.store.engine import index_of

if TYPE_CHECKING:
    from watchkeeper.store.transaction import Transaction


SCOPES = ("agent", "session", "workspace")
KINDS = ("fact", "decision", "artifact", "outcome", "instruction")

CANDIDATES = 200
"""How many facts that speak of a new one's subject are looked at for one that it updates: the newest."""

DIGEST_CHARACTERS = 12
_REPLACES = row_list("'fact://' || substr(o.digest, 1, 12)", "facts o WHERE o.superseded_by = f.id")
_COLUMNS = f"SELECT f.id, f.kind, f.text, f.sources, f.agent_id, f.created_at, {_REPLACES} FROM facts f"
# ?1 session (null: all), ?2 workspace, ?3 the agent that asks, ?4 whether facts of every agent are seen.
_NOT_DELETED = " NOT EXISTS (SELECT 1 FROM sessions d WHERE d.id = f.session_id AND d.deleted_at IS NOT NULL)"
_VISIBLE = (
    f" f.superseded_by IS NULL AND{_NOT_DELETED} AND (?1 IS NULL OR (f.session_id = ?1 AND (f.scope <> 'agent' OR ?4 <> 0 OR f.agent_id IN"
    " (WITH RECURSIVE line (id) AS (SELECT id FROM agents WHERE id = ?3 UNION SELECT a.copied_from FROM line JOIN agents a ON a.id ="
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
_BY_WORDS = f"{_COLUMNS} {FACTS_FOUND} ?6 AND {_VISIBLE} ORDER BY {FACTS_RANK} LIMIT ?5"
_BY_IDS = f"{_COLUMNS} WHERE {_VISIBLE} AND f.id {IN_LIST.replace('?', '?6')} LIMIT ?5"
_COUNT = f"SELECT count(*) FROM facts f WHERE{_NEAR}{_VISIBLE}"
_COUNT_IN_ALL = f"SELECT count(*) FROM facts f WHERE{_VISIBLE}"


class RememberResult(NamedTuple):
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
    """A fact's text in its stored form: on one line, single spaces, no colours of a terminal."""
    return re.sub(r"\s+", " ", unstyled(text)).strip()


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
) -> RememberResult:
    """Remember a fact, unless it is known already (`is_same`, or the same words of another kind).

    A known fact becomes visible to the wider of both scopes, and pinned if either is. A fact or decision that
    updates an earlier one of its kind (`is_update`) supersedes it, if its scope is as wide, its confidence as
    high, and the earlier one is not pinned. The earlier one is kept, but no longer recalled.

    Args:
        replaces: the id of a fact that this one supersedes, whatever its text. The new fact's scope becomes
            as wide as that one's: every agent that knew the old answer gets the new one.
        also: keep both; only the fact that `replaces` names is superseded.

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
        _keep_replaced(tx, fact_id)
        tx.execute(
            "UPDATE facts SET scope = ?, pinned = CASE WHEN ? <> 0 THEN 1 ELSE pinned END WHERE id = ?",
            (wider, int(pinned), fact_id),
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
    for old in replaced:
        _keep_replaced(tx, old)
    tx.executemany("UPDATE facts SET superseded_by = ? WHERE id = ?", [(fact_id, old) for old in replaced])
    return RememberResult(fact_id, new, tuple(replaced.items()))


LONGEST_RULE = 2_000
"""Characters of one rule: it is in the prompt of every agent."""


def checked_rule(text: str) -> str:
    """A rule on one line.

    Raises:
        ValueError: it is empty, or too long for every prompt.
    """
    rule = normal(text)
    if not rule:
        raise ValueError("the rule is empty")
    if len(rule) > LONGEST_RULE:
        raise ValueError(f"the rule has {len(rule):,} characters; the limit is {LONGEST_RULE:,}")
    return rule


def add_rule(tx: Transaction, workspace: str, rule: str, sources: Sequence[str] = ()) -> str:
    """Pin what a person says to all agents of a session; returns it as it is stored. One that says the same as a known
    fact is that fact."""
    made = add_fact(
        tx, agent_id=None, workspace=workspace, scope="session", kind="instruction", text=rule, sources=sources,
        pinned=True,
    )  # fmt: skip
    return str(tx.one("SELECT text FROM facts WHERE id = ?", (made.id,))[0])


def _keep_replaced(tx: Transaction, fact_id: int) -> None:
    """A fact of another session has its history there: this session's event numbers say nothing about it."""
    if tx.one("SELECT 1 FROM facts WHERE id = ? AND session_id = ?", (fact_id, tx.session_id)):
        tx.keep_replaced("facts", fact_id, "scope", "pinned", "superseded_by")


def _near(tx: Transaction, agent_id: str | None, workspace: str, text: str) -> list[Any]:
    """Facts that the writer sees with a text's subject in them: `(id, scope, digest, text, kind, confidence,
    pinned)`."""
    found: dict[int, Any] = {}
    seen = (
        " f.superseded_by IS NULL AND (f.scope <> 'agent' OR f.agent_id IS NOT DISTINCT FROM ?2) AND (f.session_id = ?3 OR"
        " (f.scope = 'workspace'"
        " AND f.workspace = ?4))"
    )
    columns = "SELECT f.id, f.scope, f.digest, f.text, f.kind, f.confidence, f.pinned FROM facts f"
    bound = (agent_id, tx.session_id, workspace)
    same = tx.all(f"{columns} WHERE f.digest = ?1 AND {seen} ORDER BY f.id", (digest_of(text), *bound))
    shared = [piece for word in subject_of(normal(text)) for piece in re.findall(r"\w+", plain(word))][:24]
    if shared:
        same += tx.all(
            f"{columns} {FACTS_FOUND} ?1 AND {seen} ORDER BY f.id DESC LIMIT ?5",
            (index_of(tx).facts_holding(shared, every=True), *bound, CANDIDATES),
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
        raise ValueError(f"`replaces`: no fact {fact_id}; recall shows the ids")
    if row[3] is not None:
        raise ValueError(f"`replaces`: fact {fact_id} was already replaced by fact {row[3]}")
    return row[1], row[4]


def current_facts(
    reads: Reads,
    session_id: str,
    *,
    reader: str | None = None,
    workspace: str | None = None,
    writer: str | None = None,
    limit: int = 1_000,
) -> list[Fact]:
    """The current facts that `reader` may see, oldest first; above `limit`, the pinned ones and the newest.

    Args:
        reader: the agent that reads; None: one without facts of its own yet (it sees none of scope `agent`).
        workspace: also what earlier sessions kept for this workspace.
        writer: only what this agent wrote in the session.
    """
    bound = (session_id, workspace, reader, 0, limit)
    rows = reads.all(_CURRENT, bound) if writer is None else reads.all(_CURRENT_BY, (*bound, writer))
    found = [
        Fact(row[0], row[1], row[2], tuple(decode(row[3])), row[4], tuple(decode(row[6]))) for row in rows
    ]
    return sorted(found, key=lambda fact: fact.id)


@dataclass(frozen=True, slots=True)
class SharedFact:
    """One thing that every agent of a session could recall."""

    kind: str
    text: str
    sources: tuple[str, ...]
    confidence: float = 1.0
    pinned: bool = False


def shared_facts(reads: Reads, session_id: str, most: int) -> list[SharedFact]:
    """The newest facts of a session that every agent of it could recall, and that nothing replaced; the newest first."""
    rows = reads.all(
        "SELECT kind, text, sources, confidence, pinned FROM facts WHERE session_id = ? AND superseded_by IS NULL"
        " AND scope <> 'agent' ORDER BY id DESC LIMIT ?",
        (session_id, most),
    )
    return [SharedFact(row[0], row[1], tuple(decode(row[2])), float(row[3]), bool(row[4])) for row in rows]


def set_pinned(tx: Transaction, fact_id: int, pinned: bool) -> str:
    """Show a fact of the session in every prompt from now on, or stop showing it; returns its text.

    Raises:
        ValueError: the session has no such fact, or a newer one superseded it.
    """
    row = tx.one(
        "SELECT text, superseded_by FROM facts WHERE id = ? AND session_id = ?", (fact_id, tx.session_id)
    )
    if row is None:
        raise ValueError(f"no fact {fact_id} in this session")
    if pinned and row[1] is not None:
        raise ValueError(f"fact {fact_id} was replaced by fact {row[1]}; pin that fact")
    # A fact of scope `agent` is in no other prompt: pinning shows it to the session.
    scope = ", scope = CASE scope WHEN 'agent' THEN 'session' ELSE scope END" if pinned else ""
    _keep_replaced(tx, fact_id)
    tx.execute(f"UPDATE facts SET pinned = ?{scope} WHERE id = ?", (int(pinned), fact_id))
    return str(row[0])


def read_fact(reads: Reads, session_id: str, digest: str, *, reader: str | None = None) -> str | None:
    """A fact in words by the beginning of its digest, superseded or not, with its pointers; None if `reader`
    may see no such fact."""
    row = reads.one(
        "SELECT f.kind, f.text, f.sources, n.digest, f.id FROM facts f JOIN sessions s ON s.id = ?1 LEFT"
        " JOIN facts n"
        " ON n.id = f.superseded_by WHERE f.digest BETWEEN ?2 AND ?2 || 'g' AND"
        " ((f.session_id = s.id AND (f.scope <> 'agent' OR f.agent_id IS NOT DISTINCT FROM ?3))"
        " OR (f.scope = 'workspace' AND f.workspace = s.workspace)) ORDER BY f.id DESC LIMIT 1",
        (session_id, digest, reader),
    )
    if row is None:
        return None
    by = f"; superseded by fact://{row[3][:DIGEST_CHARACTERS]}" if row[3] is not None else ""
    return f"[{row[0]} {row[4]}] {row[1]} ({', '.join(decode(row[2])) or 'no source'}{by})"


def find_facts(
    reads: Reads,
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
    """Facts that contain any of the words (by their stems, BM25) or literals.

    Returns `(id, kind, text, sources, agent_id, created_at, replaces)`, `sources` and `replaces` as JSON.

    Args:
        session_id: whose facts; None: of all sessions.
        workspace: also facts of this workspace's scope, from any session.
        reader: the agent that asks; it sees its own facts of scope `agent`.
        everyone: facts of scope `agent` too, from every writer (a person reads).
        near: also these facts, by id, if they may be seen.
    """
    bound = (session_id, workspace, reader, int(everyone), limit)
    found: dict[int, Any] = {}
    pieces = [piece for word in words for piece in re.findall(r"\w+", plain(word))]
    if pieces:
        rows = index_of(reads).best_facts(_BY_WORDS, bound[:-1], limit, pieces)
        found.update((row[0], row) for row in rows)
    if literals:
        holds = " OR ".join(
            f"lower(f.text) LIKE ?{number} ESCAPE '\\'" for number in range(6, 6 + len(literals))
        )
        near_session = _NEAR if session_id is not None else ""
        sql = f"{_COLUMNS} WHERE{near_session}{_VISIBLE} AND ({holds}) ORDER BY f.id DESC LIMIT ?5"
        rows = reads.all(sql, (*bound, *map(contains, literals)))
        found.update((row[0], row) for row in rows)
    if near:
        found.update((row[0], row) for row in reads.all(_BY_IDS, (*bound, list_of(near))))
    return list(found.values())


def count_facts(
    reads: Reads,
    session_id: str | None,
    *,
    workspace: str | None = None,
    reader: str | None = None,
    everyone: bool = False,
) -> int:
    """How many facts `find_facts` chooses from."""
    count = _COUNT if session_id is not None else _COUNT_IN_ALL
    return int(reads.one(count, (session_id, workspace, reader, int(everyone)))[0])


def pinned_facts(reads: Reads, session_id: str) -> list[Any]:
    """Standing facts of a session, and of its workspace, oldest first: `(id, kind, text, sources)`."""
    rows: list[Any] = reads.all(
        # Asked before every turn of every agent: an index for each of the two, or it would read the facts of
        # all sessions.
        "SELECT f.id, f.kind, f.text, f.sources FROM facts f WHERE f.id IN (SELECT id FROM facts WHERE pinned = 1"
        " AND session_id = ?1 UNION ALL SELECT id FROM facts WHERE pinned = 1 AND scope = 'workspace'"
        " AND workspace = (SELECT workspace FROM sessions WHERE id = ?1))"
        f" AND f.superseded_by IS NULL AND{_NOT_DELETED} AND f.scope <> 'agent' ORDER BY f.id DESC LIMIT 100",
        (session_id,),
    )
    return rows[::-1]


# --- When a new fact repeats or updates an older one --------------------------------------------------------
#
# A rule on two texts, without a model. It is conservative, since a superseded fact is no longer recalled. Two
# facts are the same if they differ only in articles, "now", case and punctuation. One updates the other only
# if both speak of the same subject *before* a verb that has one answer at a time ("is", "listens on", "lives
# in", "is set to", `key:`), and after it
#
# - nothing differs but one value of the same sort (a number, a version, a path, a URL, a hash, on/off), in the
#   same words; or
# - the subject is a thing that has one answer ("the default branch", "the owner of the parser", "port"), and
#   both answers are a few plain words.
#
# A difference in the subject ("step 2 is green", "step 3 is green"), a verb that may have many answers
# ("depends on", "contains", "saw"), "not", "and", "or" and commas: both facts stay.

SAME_KINDS = ("fact", "decision")
"""Kinds that may be superseded by this rule. Outcomes happened, artifacts exist, instructions are a
person's."""
LONGEST_CHARACTERS = 400
MOST_ANSWER_WORDS = 4


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_TOKEN = re.compile(r"[^\s\"'`“”‘’()\[\]{}<>]+")
_EDGES = ".,;!?"
_FILLERS = _words("a an the now current currently today actually still already again presently")
_VERBS: tuple[tuple[str, ...], ...] = tuple(
    tuple(verb.split())
    for verb in (
        "is set to", "is now set to", "was set to", "has been set to", "is changed to", "was changed to", "was moved to",
        "was renamed to", "is called", "is named", "is located at", "is located in", "is stored in", "is kept in", "is at",
        "is in", "is on", "is", "are set to", "are stored in", "are kept in", "are in", "are", "equals", "defaults to",
        "listens on", "listens at", "runs on", "runs at", "lives in", "lives at", "resides in", "points to", "moved to",
        "has", "takes", "costs", "expires after", "expires in", "expires on", "starts at", "ends at", "stands at", "=", ":",
    )
)  # fmt: skip
_VERBS_BY_FIRST = {
    first: tuple(verb for verb in _VERBS if verb[0] == first) for first in {verb[0] for verb in _VERBS}
}
_ONLY_WITH_VALUES = frozenset({("has",), ("takes",), ("costs",)})
_SINGLE = _words("""
port version path branch limit name url host hostname address timeout size default owner deadline database language
license status state budget threshold maximum minimum interval rate region endpoint directory folder file filename
location username user password-file format encoding timezone locale model engine backend driver compiler target goal
title colour color price cost duration capacity quota level mode priority maintainer assignee reviewer lead winner
count total number date
""")
"""Nouns of which a subject has one at a time."""
_ALONE = _words(
    "port version branch limit hostname url timeout owner deadline database license budget threshold region"
    " endpoint"
)
"""Those that say by themselves what is meant: many things have a name, a status, a total."""
_MANY = _words(
    "not no never nor and or but also either neither both one some partly sometimes usually often n't"
)
_ORDINAL = _words(
    "step test case phase part item chapter page line issue ticket task run attempt round sample bug"
)
_LINKS = _words("of for in on to at by with from as")
_KEY = re.compile(r"[A-Za-z_][\w.-]*\Z")

_NUMBER = re.compile(r"[$€£]?-?\d[\d,_]*(?:\.\d+)?(?:%|[a-zA-Zµ]{1,4})?\Z")
_VERSION = re.compile(r"v?\d+(?:\.\d+){1,4}(?:[-+.]?[a-z]+[\w.]*)?\Z", re.I)
_URL = re.compile(r"[a-z][a-z0-9+.-]{1,15}://\S+\Z", re.I)
_PATH = re.compile(r"(?:~|\.{1,2})?/?[\w.@+-]+(?:/[\w.@+-]*)+\Z|[\w@+-][\w.@+-]*\.[a-z][a-z0-9]{0,9}\Z", re.I)
_HASH = re.compile(r"(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}\Z", re.I)
_SWITCH = _words("on off true false enabled disabled yes open closed public private up down")


def is_same(old: str, new: str) -> bool:
    """Whether both texts say the same in the same words, but for articles, "now", case and punctuation."""
    first = _tokens(old)
    return bool(first) and first == _tokens(new)


def is_update(old: str, new: str) -> bool:
    """Whether `new` gives the present answer where `old` gave an earlier one. False where there is any
    doubt."""
    if max(len(old), len(new)) > LONGEST_CHARACTERS or "\n" in old.strip() or "\n" in new.strip():
        return False
    first, second = _parted(old), _parted(new)
    if first is None or second is None:
        return False
    (subject, verb, before), (other, other_verb, after) = first, second
    if subject != other or not _tells(subject, verb) or before == after:
        return False
    single = (
        verb not in _ONLY_WITH_VALUES and other_verb not in _ONLY_WITH_VALUES and _has_one_answer(subject)
    )
    if (verb == other_verb or single) and _one_value_differs(before, after):
        return True
    return single and _is_plain(before) and _is_plain(after)


def subject_of(text: str) -> list[str]:
    """Words, without the commonest, that every text has which is the same as this one, or an update of it."""
    parts = _parted(text) if len(text) <= LONGEST_CHARACTERS else None
    words = parts[0] if parts is not None else [word for word in _tokens(text) if word not in (":", "=")]
    return [word for word in words if word not in _LINKS] or words


def _tokens(text: str) -> list[str]:
    """Words and values, lower-cased, without fillers; a colon or `=` at a word's end is a token."""
    found: list[str] = []
    for token in _TOKEN.findall(text):
        token = token.strip(_EDGES)
        ends = token[-1:] if token[-1:] in (":", "=") else ""
        token = token.rstrip(":=")
        if token and token.lower() not in _FILLERS:
            found.append(token.lower())
        if ends:
            found.append(ends)
    return found


def _parted(text: str) -> tuple[list[str], tuple[str, ...], list[str]] | None:
    """The subject, the first verb that has one answer, and the answer."""
    if ", " in text or ";" in text or "?" in text:
        return None
    tokens = _tokens(text)
    for at in range(1, len(tokens)):
        for verb in _VERBS_BY_FIRST.get(tokens[at], ()):
            if tuple(tokens[at : at + len(verb)]) == verb and at + len(verb) < len(tokens):
                return tokens[:at], verb, tokens[at + len(verb) :]
    return None


def _tells(subject: list[str], verb: tuple[str, ...]) -> bool:
    """Whether the subject names one thing, so that two facts about it are about the same."""
    if subject[0] in ("it", "this", "that", "there", "he", "she", "they", "we", "i", "you", "these", "those"):
        return False
    if len(subject) == 1 and subject[0] in _SINGLE:
        return subject[0] in _ALONE
    if verb in ((":",), ("=",)):
        named = (
            len(subject) == 1
            and _KEY.match(subject[0]) is not None
            and ("_" in subject[0] or "." in subject[0])
        )
        return named or _has_one_answer(subject)
    return len(subject) <= 12 and not any(word in _MANY for word in subject)


def _has_one_answer(subject: list[str]) -> bool:
    """Whether the head of the subject is a noun that has one answer: `default branch`, `port of the
    proxy`."""
    head = subject
    for link in _LINKS:
        if link in head[1:]:
            head = head[: head.index(link, 1)]
    return head[-1] in _SINGLE


def _one_value_differs(before: list[str], after: list[str]) -> bool:
    if len(before) != len(after) or any(word in _MANY for word in before):
        return False
    places = [at for at, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    if len(places) != 1:
        return False
    at = places[0]
    if at and before[at - 1] in _ORDINAL:
        return False
    sort = _sort_of(before[at])
    return sort is not None and sort == _sort_of(after[at])


def _is_plain(words: list[str]) -> bool:
    """An answer in a few words without values: "10 requests" and "20 megabytes" may both be limits."""
    return len(words) <= MOST_ANSWER_WORDS and not any(word in _MANY or _sort_of(word) for word in words)


def _sort_of(token: str) -> str | None:
    """The sort of a value; None for a word."""
    if token in _SWITCH:
        return "switch"
    # A version such as 1.2 is a number too, and a number such as 8 may become a version.
    if _NUMBER.match(token) or _VERSION.match(token):
        return "number"
    if _URL.match(token):
        return "url"
    if _HASH.match(token):
        return "hash"
    return "path" if _PATH.match(token) else None
