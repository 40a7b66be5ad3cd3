"""The tool `recall`: a search that reads beside the store's writer, in a thread, so that no agent's step
waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from typing import Any

from watchkeeper.agents.storetools.base import text_of
from watchkeeper.agents.tools.contract import Permission, ToolContext, ToolResult
from watchkeeper.memory.recall import Recalled, Scope
from watchkeeper.memory.recall import recall as recall_from
from watchkeeper.records.model import ToolSpec
from watchkeeper.store import embeddings
from watchkeeper.store.recollection import Reads
from watchkeeper.store.session_store import SessionStore
from watchkeeper.store.transaction import Transaction

log = logging.getLogger(__name__)

KEEPING_SECONDS = 30.0
"""How long a search waits for the store to keep the vectors that it made."""

SPEC = ToolSpec(
    "recall",
    "Search what was remembered and said, by you and the other agents: facts with their ids, then messages"
    " by pointer for"
    " `read_back`. Name exact words, paths, numbers or error codes.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 30},
            "scope": {
                "type": "string",
                "enum": list(Scope),
                "description": "agent: only your own; default: all you may see",
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    },
)


class RecallTool:
    """An `OutsideTool` that changes nothing: after a crash it may simply run again."""

    spec = SPEC
    idempotent = True
    permission = Permission.ALLOW

    def __init__(self, store: SessionStore, *, vectors: bool = False) -> None:
        """`vectors`: the setting `recall_vectors`. Where the extra is missing, one warning says so, once."""
        self._store = store
        self.warning: str | None = None
        """Why vectors are not used though they were asked for."""
        if vectors:
            from watchkeeper.memory.recall.vectors import unavailable

            self.warning = unavailable()
        self._vectors = vectors and self.warning is None

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        try:
            query = text_of(arguments, "query", limit=1_000)
            scope, limit = (
                Scope(arguments.get("scope") or Scope.WORKSPACE),
                min(int(arguments.get("limit") or 8), 30),
            )
        except ValueError as error:
            return ToolResult(str(error), is_error=True)

        def search() -> list[Recalled]:
            with closing(Reads(self._store.path)) as reads:
                question = self._question(reads, query, kept)
                return recall_from(
                    reads, context.session_id, query, scope, limit, reader=context.agent_id, question=question
                )

        loop = asyncio.get_running_loop()

        def kept(change: Callable[[Transaction], None]) -> None:
            asyncio.run_coroutine_threadsafe(self._store.commit(change), loop).result(KEEPING_SECONDS)

        return ToolResult(told(await asyncio.to_thread(search)))

    def _question(
        self, reads: Reads, query: str, kept: Callable[[Callable[[Transaction], None]], None]
    ) -> Any:
        """The query as a vector, after the vectors that the session lacks are made and kept; None: words
        alone."""
        if not self._vectors:
            return None
        from watchkeeper.memory.recall import vectors

        try:
            embedder = vectors.load()
            embeddings.load_extension(reads.connection)
        except vectors.VectorsMissing as missing:
            self._vectors, self.warning = False, str(missing)
            log.warning("%s", missing)
            return None
        for kind, made in vectors.made(reads, self._store.session_id, embedder):
            kept(lambda tx, kind=kind, made=made: embeddings.add(tx, kind, embedder.name, made))  # type: ignore[misc]
        return vectors.Question(embedder.name, embedder.embed([query])[0])


def told(found: list[Recalled]) -> str:
    """What a model is told of what was found: a line each, with pointers."""
    lines = []
    for one in found:
        name = one.kind if one.fact_id is None else f"{one.kind} {one.fact_id}"
        pointers = [*one.sources, *(f"replaces {old}" for old in one.replaces)]
        lines.append(f"- [{name}] {one.text} ({', '.join(pointers)})")
    return "\n".join(lines) or "nothing remembered matches"
