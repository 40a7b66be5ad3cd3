"""Recall: finding earlier messages and facts again, and keeping standing instructions in every prompt.

Promises: works with no network and no model; the same query on the same documents gives the same answer;
    every hit says why it was found and carries pointers that `read_back` resolves; any text is a valid query.
"""

from watchkeeper.memory.recall.pinned import lift, pinned_lines, standing_instructions
from watchkeeper.memory.recall.ranking import Document, Hit, Likeness, RankedIndex, rank
from watchkeeper.memory.recall.session import Recalled, Scope, recall

__all__ = [
    "Document",
    "Hit",
    "Likeness",
    "RankedIndex",
    "Recalled",
    "Scope",
    "lift",
    "pinned_lines",
    "rank",
    "recall",
    "standing_instructions",
]
