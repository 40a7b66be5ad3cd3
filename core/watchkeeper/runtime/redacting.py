"""A model none of whose words hold a secret: what a run keeps of a model is cleaned where it comes in, once
for all.

Turns, summaries, observers and reflectors all call models through here, so that no text of theirs reaches a
message, an observation, an error or a rate limit's reason with a key in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from watchkeeper.records.model import Delta, Model, ModelError, ModelEvent, ModelRequest, Reply, Retrying


class RedactedModel:
    """Another model, without the secrets that it says.

    Deltas pass as they are: a key may come in pieces, which only whoever gathers them can see (`LiveRows`).

    Args:
        model: whom it stands for.
        redact: takes secrets out of any JSON-like value.
    """

    def __init__(self, model: Model, redact: Callable[[Any], Any]) -> None:
        self._model = model
        self._redact = redact

    @property
    def ref(self) -> str:
        return self._model.ref

    @property
    def context_window(self) -> int:
        return self._model.context_window

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """As the other model's, cleaned.

        Raises:
            ModelError: as the other model does, with a clean message.
        """
        try:
            async for event in self._model.stream(request):
                yield event if isinstance(event, Delta) else self._clean(event)
        except ModelError as error:
            error.args = tuple(self._redact(error.args))
            raise

    def _clean(self, event: Reply | Retrying) -> Reply | Retrying:
        if isinstance(event, Retrying):
            return replace(event, reason=self._redact(event.reason))
        return replace(
            event,
            content=self._redact(event.content),
            stop_reason=self._redact(event.stop_reason),
            request_id=self._redact(event.request_id),
            model=self._redact(event.model),
            invalid_inputs=self._redact(dict(event.invalid_inputs)),
        )
