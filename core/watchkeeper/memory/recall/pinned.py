"""The text that every prompt of a session carries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from watchkeeper.store import facts

if TYPE_CHECKING:
    from watchkeeper.store.transaction import Transaction


MOST_CHARACTERS = 6_000
"""Pinned lines are paid for in every call; the newest stay where they are too many."""


def pinned_lines(reads: Any, session_id: str) -> list[str]:
    """The standing instructions for agents of a session, oldest first, one line each, at most 6,000
    characters in all."""
    kept: list[str] = []
    room = MOST_CHARACTERS
    for row in reversed(facts.pinned_facts(reads, session_id)):
        line = " ".join(str(row[2]).split())
        if len(line) > room:
            break
        room -= len(line)
        kept.append(line)
    return kept[::-1]


# --- Standing instructions of the user ----------------------------------------------------------------------
#
# A pinned line is in every later prompt, so the rule is conservative. A sentence counts if it gives a command
# (it begins with "always", "never", "from now on", "do not", "make sure", …, or says "you must", "please
# never", …), is not a question, and is short. Ordinary requests ("fix the test", "don't worry", "it never
# works") do not count.

LONGEST = 300
MOST = 20
READ_CHARACTERS = 50_000

_COMMANDS = re.compile(
    r"^(?:please,? |and |but |also,? |so |note: |important: |remember(?: to| that|:),? )*"
    r"(?:"
    r"always,? \w"
    r"|never,? (?!mind\b|heard\b|seen\b|been\b|got\b|had\b|worked\b|works\b|once\b|again[.!]*$)\w"
    r"|from now on\b|in (?:the )?future,? |going forward\b|for the rest of\b|at all times\b"
    r"|(?:do not|don['’]t)(?: ever)? (?!know\b|think\b|understand\b|worry\b|see\b|remember\b|care\b|mind\b|believe\b|like\b|want\b)\w"
    r"|(?:you|it|this|that|all|every|each|the|any|no|tests?|code|changes?|files?|commits?)\b[^?]{0,120}"
    r"\b(?:must|shall)(?: not| never)? (?!be (?:a |an |the )?(?:bug|mistake|error|joke)\b)\w"
    r"|must(?: not| never)? \w"
    r"|(?:make|be) sure (?:to|that|you|not|all|every|no)\b"
    r"|under no circumstances\b|without exception\b"
    r"|you (?:should|may|can) (?:always|never|only)\b|only ever\b"
    r")",
    re.I,
)
_WITHIN = re.compile(
    r"[,;:] (?:but |and |please )*(?:always|never|do not|don['’]t ever|from now on|make sure|you must)\b",
    re.I,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[\"'(A-Z])|\n+")
_BULLET = re.compile(r"^(?:[-*•]|\d{1,2}[.)]|#+)\s+")
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.S)
_QUOTE = re.compile(r"^(?: {4}|\t|>).*$", re.M)


def standing_instructions(text: str) -> list[str]:
    """The standing instructions in a user's own message, each one sentence as it was written, in order, each
    once.

    Code and quotations are passed over: they are not the user's own words. At most 20, of at most 300
    characters.
    """
    text = _QUOTE.sub("\n", _FENCED.sub("\n", text[:READ_CHARACTERS]))
    found: dict[str, None] = {}
    for sentence in _SENTENCE.split(text):
        line = _BULLET.sub("", " ".join(sentence.split())).strip()
        if not 6 <= len(line) <= LONGEST or line.endswith("?"):
            continue
        if _COMMANDS.match(line) or _WITHIN.search(line):
            found[line] = None
    return list(found)[:MOST]


def lift(
    tx: Transaction,
    text: str,
    *,
    workspace: str,
    source: str | None = None,
    agent_id: str | None = None,
    scope: str = "session",
) -> list[int]:
    """Pin the standing instructions of a user's message (a goal, a steering line); returns the ids of those
    that are new.

    `source`: a pointer to the message that they stand in. For text that a person wrote only: what tools bring
    and models say is never lifted.
    """
    new: list[int] = []
    for line in standing_instructions(text):
        kept = facts.add_fact(
            tx, agent_id=agent_id, workspace=workspace, scope=scope, kind="instruction", text=line,
            sources=[source] if source else [], pinned=True,
        )  # fmt: skip
        if kept.new:
            new.append(kept.id)
            tx.event("memory.remembered", agent_id=agent_id, fact=kept.id, fact_kind="instruction")
    return new
