"""Why an agent, a task or a session waits, in one word. The whole sentence stays in its reason.

Reasons are stored as sentences, for a person to read; `_REASONS` finds the word in them. A test holds it against the
sentences that the runtime writes.
"""

from __future__ import annotations

from enum import StrEnum

from watchkeeper.records.text import lazily
from watchkeeper.records.usage_limits import usage_limit

NO_RESULT = "the log has no result for it"
"""Why an imported agent is cancelled of which neither its call's result nor a last reply is known."""
NO_RESULTS = (NO_RESULT, "the log has no result for it")
"""`NO_RESULT`, as this version and earlier ones write it."""
UNKNOWN = "unknown"
"""The word for its state."""


class Waiting(StrEnum):
    """What is waited for. The value is the word that people read."""

    QUESTION = "question"
    """A person's answer."""
    SLOT = "slot"
    """A free slot: of the calls to a model at once, or of the tasks at once (`max_parallel`)."""
    LIMIT = "limit"
    """The end of a usage limit."""
    BUDGET = "budget"
    LOOP = "loop"
    """It made the same calls again and again, and was stopped."""
    NO_KEY = "no key"
    """Its model has no API key, or a key or login that the provider refuses."""
    PERSON = "person"
    """A person has to say how to continue."""
    PAUSED = "paused"


_REASONS = (
    (Waiting.LOOP, lazily(r"\bsame calls \d+ times in a row")),
    (Waiting.BUDGET, lazily(r"(?i)\bbudget\b.*\b(is reached|does not cover|is too small|needs?)\b|\bof (its|the) budget\b|\bwk budget\b")),
    (Waiting.NO_KEY, lazily(r"(?i)\bno api key\b|\bset a valid \S+, then resume|\bneeds a key; set\b|\bis not logged in\b")),
    (Waiting.PERSON, lazily(r"(?i)\bsteer it\b|\bwas cancelled; resume it\b")),
)  # fmt: skip
_LIVE = {"waiting": Waiting.QUESTION, "slot": Waiting.SLOT, "parked": Waiting.LIMIT}


def reason_word(reason: str | None) -> Waiting | None:
    """The word for the sentence of a reason; None where it is of no known kind."""
    if not reason:
        return None
    found = next((word for word, pattern in _REASONS if pattern.search(reason)), None)
    return found or (Waiting.LIMIT if usage_limit(reason, None) is not None else None)


def waiting_word(status: str, reason: str | None = None, activity: str | None = None) -> Waiting | None:
    """Why something of that status waits; None where it does not. What failed waits only if it was stopped in a loop.

    `activity`: what a working agent does at this moment, if its process is known to be alive.
    """
    if status == "waiting":
        return Waiting.QUESTION
    if status == "parked":
        return Waiting.LIMIT
    if status == "working":
        return _LIVE.get(activity or "")
    if status == "paused":
        return reason_word(reason) or Waiting.PAUSED
    return Waiting.LOOP if status == "failed" and reason_word(reason) is Waiting.LOOP else None


def agent_word(status: str, reason: str | None = None, activity: str | None = None) -> str:
    """The word for a state: what is waited for; `unknown` where the log of another program tells no end; else the status."""
    if status == "cancelled" and reason in NO_RESULTS:
        return UNKNOWN
    return waiting_word(status, reason, activity) or status
