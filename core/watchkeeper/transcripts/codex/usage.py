"""Token counts: events that tell the sum so far and what the last call used; in later versions, records of
each response.

The same count is logged again and again (with each news of rate limits, after a compaction, on resuming): one
sum is one call. Where only sums are told, a call is the difference to the sum before. Where a record tells of
a response, the count that follows tells of it again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from watchkeeper.transcripts.jsontext import count_of, text_of

_FIELDS = ("input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens")


class Usage(NamedTuple):
    """One call's tokens, as Codex tells them: `prompt` includes what the cache served and took."""

    prompt: int
    cached: int
    written: int
    output: int
    """Reasoning included."""
    key: str
    """Of the sum after it, or of the response; empty where neither was told."""
    exact: bool

    @property
    def input(self) -> int:
        """Neither read from nor written to the cache."""
        return max(0, self.prompt - self.cached - self.written)


class UsageBook:
    """The sums of one thread.

    Args:
        state: what `save` told, or None.
    """

    def __init__(self, state: list[Any] | None = None) -> None:
        self._total: list[int] | None = None
        self._recorded: list[int] | None = None
        """What the newest record told."""
        self._awaited = False
        """The count that tells of it again has not come."""
        if state:
            self._total, self._recorded, self._awaited = state

    def save(self) -> list[Any]:
        return [self._total, self._recorded, self._awaited]

    def take(self, info: dict[str, Any]) -> Usage | None:
        """The call that this count tells of; None where it tells of none that is new."""
        total, last = _vector(info.get("total_token_usage")), _vector(info.get("last_token_usage"))
        before, self._total = self._total, total or self._total
        told, self._awaited = self._awaited, False
        if (
            told
            or (self._recorded is not None and last == self._recorded)
            or (total is not None and total == before)
        ):
            return None
        key = ":".join(map(str, total)) if total is not None else ""
        exact = last is not None
        if last is None and total is not None:
            fell = before is not None and any(new < old for new, old in zip(total, before, strict=True))
            last = (
                total
                if before is None or fell
                else [new - old for new, old in zip(total, before, strict=True)]
            )
        return _usage(last, key, exact=exact)

    def record(self, record: dict[str, Any], *, again: bool = False) -> Usage | None:
        """The call that a record tells of; None where it tells no usage. `again`: its own line came
        before."""
        told = _vector(record.get("usage"))
        usage = _usage(told, text_of(record.get("response_id")) or "", exact=True)
        if usage is not None:
            self._recorded, self._awaited = told, self._awaited or not again
        return usage


def _usage(figures: list[int] | None, key: str, *, exact: bool) -> Usage | None:
    if figures is None or not any(figures):
        return None
    prompt, cached, written, output = figures
    cached = min(cached, prompt)
    return Usage(prompt, cached, min(written, prompt - cached), output, key, exact)


def _vector(usage: Any) -> list[int] | None:
    if not isinstance(usage, dict):
        return None
    found = [count_of(usage.get(name)) for name in _FIELDS]
    if not usage.get("cached_input_tokens"):
        found[1] = count_of(usage.get("cache_read_input_tokens"))
    return found
