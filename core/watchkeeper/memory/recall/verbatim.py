"""What stands word for word in a message, wherever in it: the ranking reads the beginnings of long messages
only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from watchkeeper.store import recollection

LEAST_CHARACTERS = 4
MOST_NEEDLES = 6
FEW = 3
"""A word that more messages hold than these is no name of anything: the ranking weighs it better."""
_ROUND = ".,:;?!()[]{}<>\"'`"


def needles_of(query: str) -> list[str]:
    """The query as it stands, and its words that are no plain words: paths, ids, codes, figures."""
    whole = query.strip()
    found: dict[str, None] = {whole: None} if len(whole) >= LEAST_CHARACTERS else {}
    for word in whole.split():
        word = word.strip(_ROUND)
        if len(word) >= LEAST_CHARACTERS and not word.isalpha():
            found[word] = None
    return list(found)[:MOST_NEEDLES]


def held_verbatim(
    reads: Any,
    session_id: str,
    query: str,
    *,
    only: str | None,
    visible: Callable[[str, int], bool],
    said: Callable[[Any], str],
) -> list[tuple[str, int, str, str, float]]:
    """`(agent, seq, needle, text, at)` of the newest messages that hold the query as it stands, or a needle
    that few hold.

    Args:
        only: this agent's messages alone.
        visible: which messages may be found.
        said: a message's text from its content; what it leaves out is not found.
    """
    found: dict[tuple[str, int], tuple[str, int, str, str, float]] = {}
    for needle in needles_of(query):
        escaped = json.dumps(needle, ensure_ascii=False)[1:-1]
        places = recollection.holding(reads, session_id, escaped, agent_id=only, limit=4 * FEW)
        contents = recollection.messages_at(reads, places)
        held = []
        for place in places:
            if place in contents and visible(*place):
                content, at = contents[place]
                text = said(content)
                if needle in text:
                    held.append((*place, needle, text, at))
        if needle == query.strip() or len(held) <= FEW:
            for one in held[:FEW]:
                found.setdefault((one[0], one[1]), one)
    return list(found.values())
