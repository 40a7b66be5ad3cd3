"""Memory tools: `remember`, `recall`, `read_back`, `compact`."""

from __future__ import annotations

import json
import re
from typing import Any

from watchkeeper.agents.storetools.base import FunctionTool, text_of, tool
from watchkeeper.agents.tools.contract import ToolContext, ToolResult
from watchkeeper.store import artifacts, memory
from watchkeeper.store.transaction import Transaction

FACT_KINDS = ("fact", "decision", "artifact", "outcome", "instruction")
PAGE_CHARACTERS = 6_000
_POINTER = re.compile(r"message://([A-Za-z0-9_-]+)/(\d+)(?:-(\d+))?\Z")


def memory_tools() -> list[FunctionTool]:
    return [
        tool(
            "remember",
            "Keep one fact, decision, outcome or instruction for the whole session, in one sentence.",
            {"text": {"type": "string"}, "kind": {"type": "string", "enum": list(FACT_KINDS)}},
            ["text"],
            remember,
        ),
        tool(
            "recall",
            "Search what you and the other agents of this session have remembered.",
            {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1, "maximum": 30}},
            ["query"],
            recall,
        ),
        tool(
            "read_back",
            "Read what left your context, whole, by its pointer: message://<agent>/<first>-<last> or artifact://sha256/…",
            {"pointer": {"type": "string"}, "offset": {"type": "integer", "minimum": 0}},
            ["pointer"],
            read_back,
        ),
        tool(
            "compact",
            "Make room in your own context now; say what must be kept.",
            {"instructions": {"type": "string"}},
            [],
            compact,
        ),
    ]


def remember(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    kind = arguments.get("kind") or "fact"
    if kind not in FACT_KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(FACT_KINDS)}")
    row = tx.one("SELECT last_seq FROM agents WHERE id = ?", (context.agent_id,))
    fact_id, new = memory.add_fact(
        tx,
        agent_id=context.agent_id,
        workspace=str(context.workspace),
        scope="session",
        kind=kind,
        text=text_of(arguments, "text", limit=2_000),
        sources=[f"message://{context.agent_id}/{row[0]}"],
    )
    if new:
        tx.event("memory.remembered", agent_id=context.agent_id, task_id=context.task_id, fact=fact_id, fact_kind=kind)
    return ToolResult(f"remembered as fact {fact_id}" if new else f"known already, as fact {fact_id}")


def recall(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    limit = arguments.get("limit") or 8
    rows = memory.search_facts(tx, tx.session_id, text_of(arguments, "query", limit=1_000), min(int(limit), 30))
    if not rows:
        return ToolResult("nothing remembered matches")
    return ToolResult("\n".join(f"- [{row[1]}] {row[2]} ({', '.join(json.loads(row[3]))})" for row in rows))


def read_back(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    pointer = text_of(arguments, "pointer", limit=400).strip()
    offset = arguments.get("offset") or 0
    if not isinstance(offset, int) or offset < 0:
        raise ValueError("`offset` must be a whole number")
    if artifacts.digest_of(pointer):
        data = artifacts.get(tx, pointer)
        if data is None:
            raise ValueError(f"nothing is stored under {pointer}")
        text = data.decode("utf-8", "replace")
    else:
        text = _messages(tx, pointer)
    piece = text[offset : offset + PAGE_CHARACTERS]
    if offset + len(piece) < len(text):
        piece += f"\n[{len(text)} characters in all; go on with offset {offset + len(piece)}]"
    return ToolResult(piece)


def compact(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    instructions = arguments.get("instructions")
    return ToolResult(
        "your context is compacted beside your work; go on",
        effects={"compact": instructions if isinstance(instructions, str) else ""},
    )


def _messages(tx: Transaction, pointer: str) -> str:
    match = _POINTER.match(pointer)
    if match is None:
        raise ValueError("a pointer looks like message://<agent>/12-40, message://<agent>/12 or artifact://sha256/<hex>")
    agent_id, first, last = match[1], int(match[2]), int(match[3] or match[2])
    if tx.one("SELECT 1 FROM agents WHERE id = ? AND session_id = ?", (agent_id, tx.session_id)) is None:
        raise ValueError(f"no agent {agent_id} in this session")
    messages = memory.load_messages(tx, agent_id, first, last)
    if not messages:
        raise ValueError(f"no messages {first}-{last} of agent {agent_id}")
    return "\n".join(f"#{m.seq} {m.role}: {_flat(m.content)}" for m in messages)


def _flat(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts: list[str] = []
    for block in content:
        kind = block.get("type")
        if kind == "text":
            parts.append(str(block.get("text", "")))
        elif kind == "tool_use":
            parts.append(f"[calls {block.get('name')} {json.dumps(block.get('input'), ensure_ascii=False)}]")
        elif kind == "tool_result":
            parts.append(f"[result {_flat(block.get('content') or '')}]")
        elif kind != "thinking":
            parts.append(f"[{kind}]")
    return " ".join(parts)
