"""Token counts: events that tell the sum so far and what the last call used.

The same count is logged again and again (with each news of rate limits, after a compaction, on resuming): one sum is one
call. Where only sums are told, a call is the difference to the sum before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from watchkeeper.transcripts.jsontext import count_of

_FIELDS = ("input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens")


class Usage(NamedTuple):
    """One call's tokens, as Codex tells them: `prompt` includes what the cache served and took."""

    prompt: int
    cached: int
    written: int
    output: int
    """Reasoning included."""
    key: str
    """Of the sum after it; empty where no sum was told."""
    exact: bool

    @property
    def input(self) -> int:
        """Neither read from nor written to the cache."""
        return max(0, self.prompt - self.cached - self.written)


class UsageBook:
    """The sums of one thread."""

    def __init__(self, total: list[int] | None = None) -> None:
        self.total = total

    def take(self, info: dict[str, Any]) -> Usage | None:
        """The call that this count tells of; None where it tells of none that is new."""
        total, last = _vector(info.get("total_token_usage")), _vector(info.get("last_token_usage"))
        before, self.total = self.total, total or self.total
        if total is not None and total == before:
            return None
        key = ":".join(map(str, total)) if total is not None else ""
        exact = last is not None
        if last is None and total is not None:
            fell = before is not None and any(new < old for new, old in zip(total, before, strict=True))
            last = total if before is None or fell else [new - old for new, old in zip(total, before, strict=True)]
        if last is None or not any(last):
            return None
        prompt, cached, written, output = last
        cached = min(cached, prompt)
        return Usage(prompt, cached, min(written, prompt - cached), output, key, exact)


def _vector(usage: Any) -> list[int] | None:
    if not isinstance(usage, dict):
        return None
    found = [count_of(usage.get(name)) for name in _FIELDS]
    if not usage.get("cached_input_tokens"):
        found[1] = count_of(usage.get("cache_read_input_tokens"))
    return found
