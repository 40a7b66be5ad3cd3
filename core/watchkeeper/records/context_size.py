"""How full an agent's context is: what its next call would send, against the model's window.

What a call sends is the system prompt, the tools, the observations and the messages that the agent's view
shows. Every screen, command and export takes the size from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ROOM = frozenset({"limit", "total", "headroom", "free", "threshold"})
"""Entries of a composition that nothing is sent of."""

Composition = Iterable[tuple[str, int]]
"""Tokens of a context by kind, as the host counted them: `overhead` (system prompt and tools),
`observations`, `messages`, `elided`, and what is room."""


def context_used(context_tokens: int, composition: Composition) -> int:
    """Tokens that the next call would send, estimated.

    Args:
        context_tokens: as stored with the agent: without the overhead for our own runs, with it for those of
            other programs.
        composition: its parts; other programs do not log all of them, so their total may be larger.
    """
    return max(sum(tokens for kind, tokens in composition if kind not in ROOM), context_tokens)


def compacts_at(composition: Mapping[str, int]) -> int | None:
    """The size at which the host starts to compact, in the tokens of `context_used`; None where it has not
    said."""
    threshold = composition.get("threshold", 0)
    return threshold + composition.get("overhead", 0) if threshold > 0 else None


def context_percent(used: int, limit: int) -> int | None:
    """How much of a window is used, 0 to 100; None where the window is not known."""
    return round(100 * min(1.0, max(0.0, used / limit))) if limit > 0 else None
