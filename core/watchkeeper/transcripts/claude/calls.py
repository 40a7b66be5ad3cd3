"""What a reply says of the model call that made it: its usage, in Anthropic's terms."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from watchkeeper.transcripts.jsontext import count_of, text_of
from watchkeeper.transcripts.records import ModelCall

_new = tuple.__new__


class CallBook:
    """The model calls of one file. Each block of a reply has all of its usage, which is read once."""

    def __init__(self) -> None:
        self._usage: dict[str, Any] = {}
        self._call: ModelCall | None = None
        """What that usage was read as."""

    def call(
        self,
        agent: str,
        key: str,
        model: str | None,
        usage: dict[str, Any],
        stop_reason: Any,
        at: float | None,
        request: str | None,
    ) -> ModelCall:
        """The call of a block, whose `key` names the reply."""
        last, name = self._call, _model_ref(model)
        if (
            last is not None
            and (last[1], last[9], last[0], last[2]) == (key, stop_reason, agent, name)
            and self._usage == usage
        ):
            return _new(ModelCall, (*last[:10], at, *last[11:]))
        kinds = usage.get("cache_creation")
        hour = short = 0
        if isinstance(kinds, dict):
            hour, short = (
                count_of(kinds.get("ephemeral_1h_input_tokens")),
                count_of(kinds.get("ephemeral_5m_input_tokens")),
            )
        written = max(count_of(usage.get("cache_creation_input_tokens")), hour + short)
        ended = text_of(stop_reason)
        dearer = ("speed" in usage or "service_tier" in usage or "server_tool_use" in usage) and _costs_more(
            usage
        )
        call = _new(
            ModelCall,
            (
                agent,
                key,
                name,
                count_of(usage.get("input_tokens")),
                count_of(usage.get("output_tokens")),
                count_of(usage.get("cache_read_input_tokens")),
                written,
                hour,
                ended is not None and not dearer,
                ended,
                at,
                0.0,
                request,
                None,
                False,
                "",
            ),
        )
        self._usage, self._call = usage, call
        return call


@lru_cache(maxsize=256)
def _model_ref(model: str | None) -> str:
    """`provider/model`; models that another cloud serves have names in its manner."""
    if model is None:
        return "unknown"
    return f"{'aws' if 'anthropic.' in model else 'google' if '@' in model else 'anthropic'}/{model}"


def _costs_more(usage: dict[str, Any]) -> bool:
    """Whether list prices of tokens are not all of the cost: searches, a faster or a cheaper service."""
    tools = usage.get("server_tool_use")
    searched = isinstance(tools, dict) and bool(count_of(tools.get("web_search_requests")))
    return searched or usage.get("speed") == "fast" or usage.get("service_tier") == "batch"
