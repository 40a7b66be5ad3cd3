"""Memory tools: `recall`, `remember`, `read_back` and `compact`.

`recall` searches in a thread, beside the store's writer, so that no agent's step waits for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

from watchkeeper.agents.session_tools import FunctionTool, text_of, tool
from watchkeeper.agents.tools.contract import Permission, ToolContext, ToolResult
from watchkeeper.memory.recall import Question, Recalled, Scope
from watchkeeper.memory.recall import recall as recall_from
from watchkeeper.records.messages import ToolSpec
from watchkeeper.store import agents, artifacts, facts, sessions
from watchkeeper.store import messages as message_rows
from watchkeeper.store.driver import Reads
from watchkeeper.store.search import passages
from watchkeeper.store.search.passages import SearchConnection
from watchkeeper.store.transaction import SessionStore, Transaction

log = logging.getLogger(__name__)

KEEPING_SECONDS = 30.0
"""How long a search waits for the store to keep the vectors that it made."""

SPEC = ToolSpec(
    "recall",
    "Search your facts and messages and those of the other agents. Facts come first, with ids, then messages"
    " with pointers for"
    " `read_back`. Search for exact words, paths, numbers or error codes.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 30},
            "scope": {
                "type": "string",
                "enum": list(Scope),
                "description": "agent: only your own; default: everything visible to you",
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
        """`vectors`: the setting `recall_vectors`. If the extra is missing, one warning says so, once."""
        self._store = store
        self.warning: str | None = None
        """Why vectors are not used although the setting is on."""
        if vectors:
            from watchkeeper.memory.recall import vectors_unavailable

            self.warning = vectors_unavailable(store)
        self._vectors = vectors and self.warning is None

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        try:
            query = text_of(arguments, "query", limit=1_000)
        except ValueError as error:
            return ToolResult(str(error), is_error=True)
        scope, limit = arguments.get("scope") or Scope.WORKSPACE, arguments.get("limit") or 8

        def search() -> list[Recalled]:
            with closing(SearchConnection(self._store.path)) as reads:
                question = self._question(reads, query, kept)
                found = recall_from(
                    reads, context.session_id, query, scope, limit, reader=context.agent_id, question=question
                )
                if scope == Scope.AGENT:
                    return found
                return _with_earlier(found, reads, context.session_id, query, limit, question)

        loop = asyncio.get_running_loop()

        def kept(change: Callable[[Transaction], None]) -> None:
            asyncio.run_coroutine_threadsafe(self._store.commit(change), loop).result(KEEPING_SECONDS)

        return ToolResult(recalled_text(await asyncio.to_thread(search)))

    def _question(
        self, reads: SearchConnection, query: str, kept: Callable[[Callable[[Transaction], None]], None]
    ) -> Any:
        """The query as a vector, after the vectors that the session lacks are made and kept; None: words
        alone."""
        if not self._vectors:
            return None
        from watchkeeper.memory import recall

        try:
            embedder = recall.load_embedder()
            passages.load_extension(reads.connection)
        except recall.VectorsMissing as missing:
            self._vectors, self.warning = False, str(missing)
            log.warning("%s", missing)
            return None
        for kind, made in recall.make_vectors(reads, self._store.session_id, embedder):
            kept(lambda tx, kind=kind, made=made: passages.add(tx, kind, embedder.name, made))  # type: ignore[misc]
        return recall.Question(embedder.name, embedder.embed([query])[0])


def _with_earlier(
    found: list[Recalled], reads: Reads, session_id: str, query: str, limit: int, question: Question | None
) -> list[Recalled]:
    """What was found, and messages of the sessions that this one continues: at most `limit`, facts first.

    Their facts went along when this session began. If much is found in both, each has half of the room.
    """
    earlier = [
        replace(one, kind=f"message of session {name}")
        for name in sessions.continued_by(reads, session_id)
        for one in recall_from(reads, name, query, Scope.SESSION, limit, question=question)
        if one.fact_id is None
    ]
    earlier.sort(key=lambda one: -one.score)
    kept = found[: max(limit - len(earlier), (limit + 1) // 2)]
    return [*kept, *earlier[: limit - len(kept)]]


def recalled_text(found: list[Recalled]) -> str:
    """The results of a search as a model reads them: one line each, with pointers."""
    lines = []
    for one in found:
        name = one.kind if one.fact_id is None else f"{one.kind} {one.fact_id}"
        pointers = [*one.sources, *(f"replaces {old}" for old in one.replaces)]
        lines.append(f"- [{name}] {one.text} ({', '.join(pointers)})")
    return "\n".join(lines) or "no matching facts or messages"


# --- Memory tools that run in a transaction -----------------------------------------------------------------
#
# `remember`, `read_back` and `compact` run in the transaction of their result; `recall` does not.

PAGE_CHARACTERS = 6_000
_FACT = re.compile(r"fact://([0-9a-f]{8,32})\Z")
_POINTER = re.compile(r"message://([A-Za-z0-9_-]+)/(\d+)(?:-(\d+))?\Z")


def memory_tools() -> list[FunctionTool]:
    return [
        tool(
            "remember",
            "Store one fact, decision, outcome or instruction, in one sentence. Every agent in the session can "
            "recall it; with scope"
            " `workspace`, later sessions here can too. A new value for the same subject replaces the earlier"
            " fact automatically. If it "
            "corrects a fact that is worded differently, pass that fact's id in `replaces`.",
            {
                "text": {"type": "string"},
                "kind": {"type": "string", "enum": list(facts.KINDS)},
                "scope": {"type": "string", "enum": ["session", "workspace"]},
                "replaces": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "the id of the fact to correct",
                },
                "also": {
                    "type": "boolean",
                    "description": "true: keep earlier facts about the subject; replace none",
                },
            },
            ["text"],
            remember,
        ),
        tool(
            "read_back",
            "Read the full text of something that left your context, by pointer: message://<agent>/<first>-<last>,"
            " artifact://sha256/… or"
            " fact://<hex>. Long texts are paged; `find` returns the page around an exact word, path or"
            " number.",
            {
                "pointer": {"type": "string"},
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "offset to read from; with `find`, to search from",
                },
                "find": {
                    "type": "string",
                    "description": "text that the page must contain; case and line breaks are ignored",
                },
            },
            ["pointer"],
            read_back,
        ),
        tool(
            "compact",
            "Compact your own context now. State what must be kept.",
            {"instructions": {"type": "string"}},
            [],
            compact,
        ),
    ]


def remember(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    kind, replaces = arguments.get("kind") or "fact", arguments.get("replaces")
    last_seq = agents.progress(tx, context.agent_id).last_seq
    kept = facts.add_fact(
        tx,
        agent_id=context.agent_id,
        workspace=str(context.workspace),
        scope=arguments.get("scope") or "session",
        kind=kind,
        text=text_of(arguments, "text", limit=2_000),
        sources=[f"message://{context.agent_id}/{last_seq}"],
        replaces=replaces,
        also=bool(arguments.get("also")),
    )
    if kept.new:
        tx.event(
            "memory.remembered",
            agent_id=context.agent_id,
            task_id=context.task_id,
            fact=kept.id,
            fact_kind=kind,
        )
    said = f"stored as fact {kept.id}" if kept.new else f"already stored as fact {kept.id}"
    for fact_id, old in kept.replaced:
        said += f"; replaces fact {fact_id}" + ("" if fact_id == replaces else f" ({old[:200]})")
    return ToolResult(said)


def read_back(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    pointer = text_of(arguments, "pointer", limit=400).strip()
    return ToolResult(
        read_pointer(
            tx, tx.session_id, pointer, arguments.get("offset") or 0, arguments.get("find"), context.agent_id
        )
    )


def read_pointer(
    reads: Reads,
    session_id: str,
    pointer: str,
    offset: int = 0,
    find: str | None = None,
    reader: str | None = None,
) -> str:
    """A page of what a pointer leads to, from `offset` on, or around the first `find` after it.

    `reader`: the agent that reads; its own facts of scope `agent` are included.

    Raises:
        ValueError: it is no pointer, the session has nothing there, or that does not hold `find`.
    """
    if artifacts.digest_of(pointer):
        data = artifacts.get(reads, pointer)
        if data is None:
            raise ValueError(f"nothing is stored under {pointer}")
        text = data.decode("utf-8", "replace")
    elif (fact := _FACT.match(pointer)) is not None:
        found = facts.read_fact(reads, session_id, fact[1], reader=reader)
        if found is None:
            raise ValueError(f"no fact {pointer} in this session")
        text = found
    else:
        text = _messages(reads, session_id, pointer)
    if find is None or not str(find).strip():
        return _page(text, offset)
    place = _place(text, str(find), offset)
    if place is None:
        raise ValueError(
            f"{pointer} does not contain {str(find)[:200]!r}" + (f" after offset {offset}" if offset else "")
        )
    page = _page(text, max(0, place - PAGE_CHARACTERS // 3))
    message = _number_before(text, place) if pointer.startswith("message:") else None
    where = f", in message {message}" if message else ""
    return f"[found at offset {place}{where}; continue the search at offset {place + 1}]\n{page}"


def _page(text: str, offset: int) -> str:
    piece = text[offset : offset + PAGE_CHARACTERS]
    if offset + len(piece) < len(text):
        piece += f"\n[{len(text)} characters in total; continue at offset {offset + len(piece)}]"
    return piece


def _place(text: str, wanted: str, offset: int) -> int | None:
    """Where `text` contains `wanted`: as written, or else whatever its case and spaces. None: nowhere."""
    exact = text.find(wanted, offset)
    if exact >= 0:
        return exact
    words = [re.escape(word) for word in wanted.split()]
    found = re.compile(r"\s+".join(words), re.IGNORECASE).search(text, offset)
    return found.start() if found else None


def _number_before(text: str, place: int) -> str | None:
    """The number of the message that a place in the text of several lies in."""
    heads = re.findall(r"^(#\d+) (?:user|assistant): ", text[: place + 1], re.MULTILINE)
    return heads[-1] if heads else None


def compact(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    instructions = arguments.get("instructions")
    return ToolResult(
        "your context is being compacted in the background; continue your work",
        effects={"compact": instructions if isinstance(instructions, str) else ""},
    )


def _messages(reads: Reads, session_id: str, pointer: str) -> str:
    match = _POINTER.match(pointer)
    if match is None:
        raise ValueError(
            "a pointer looks like message://<agent>/12-40, message://<agent>/12, artifact://sha256/<hex> or"
            " fact://<hex>"
        )
    agent_id, first, last = match[1], int(match[2]), int(match[3] or match[2])
    owner = sessions.of_agent(reads, agent_id)
    if owner is None or owner.id not in (session_id, *sessions.continued_by(reads, session_id)):
        raise ValueError(f"no agent {agent_id} in this session or the sessions it continues")
    messages = message_rows.load_messages(reads, agent_id, first, last)
    if not messages:
        raise ValueError(f"messages {first}-{last} not found for agent {agent_id}")
    return "\n".join(f"#{m.seq} {m.role}: {_flat(m.content)}" for m in messages)


def _given(arguments: Any) -> str:
    """Arguments with their texts as they are: in JSON, quotes and line ends hide what is looked for."""
    if isinstance(arguments, dict):
        return "\n".join(f"{name}: {_given(value)}" for name, value in arguments.items())
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _flat(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts: list[str] = []
    for block in content:
        kind = block.get("type")
        if kind == "text":
            parts.append(str(block.get("text", "")))
        elif kind == "tool_use":
            parts.append(f"[calls {block.get('name')} {_given(block.get('input'))}]")
        elif kind == "tool_result":
            parts.append(f"[result {_flat(block.get('content') or '')}]")
        elif kind != "thinking":
            parts.append(f"[{kind}]")
    return " ".join(parts)
