"""Artifact tools: what an agent produces, stored by content, entered under a name in its output cache."""

from __future__ import annotations

import fnmatch
import json
from typing import Any

from watchkeeper.agents.storetools.base import FunctionTool, text_of, tool
from watchkeeper.agents.tools.contract import ToolContext, ToolResult
from watchkeeper.store import artifacts
from watchkeeper.store.transaction import Transaction

LARGEST = 16 * 1024 * 1024
PAGE_CHARACTERS = 6_000
MOST_INPUTS = 2_000


def artifact_tools() -> list[FunctionTool]:
    """`save_artifact`, `read_artifact`, `merge_artifacts`."""
    reference = {"type": "string", "description": "an artifact's name, or artifact://sha256/…"}
    return [
        tool(
            "save_artifact",
            "Keep something you made, under a name: text, or JSON. In JSON, an object {\"$artifact\": name"
            " or reference} is"
            " replaced by that artifact's own JSON, so that large results need not pass through your"
            " context.",
            {
                "name": {"type": "string"},
                "content": {"description": "text, an object or a list"},
                "media_type": {"type": "string"},
            },
            ["name", "content"],
            save,
        ),
        tool(
            "read_artifact",
            "Read an artifact, by name or reference; a JSON pointer such as /totals gives one part of a JSON"
            " artifact.",
            {
                "ref": reference,
                "pointer": {"type": "string"},
                "offset": {"type": "integer", "minimum": 0},
                "limit": {"type": "integer", "minimum": 1},
            },
            ["ref"],
            read,
        ),
        tool(
            "merge_artifacts",
            "Merge JSON artifacts, in order, into a new one: numbers add up, lists join, objects merge,"
            " equal texts stay.",
            {"inputs": {"type": "array", "items": reference, "description": "names, references, or one pattern such as part/*"},
             "name": {"type": "string"}},
            ["inputs", "name"],
            merge,
        ),
    ]  # fmt: skip


def save(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    from watchkeeper.agents.tools.folder.merge import expand_includes

    name = _name(arguments)
    content = arguments.get("content")
    if isinstance(content, str):
        data, media_type = content.encode("utf-8", "replace"), "text/plain"
        if name.endswith(".md"):
            media_type = "text/markdown"
    elif isinstance(content, dict | list):
        whole = expand_includes(content, lambda ref: _load_json(tx, ref))
        data, media_type = _dump(whole), "application/json"
    else:
        raise ValueError("`content` must be text, an object or a list")
    wanted = arguments.get("media_type")
    return _store(tx, context, name, data, wanted if isinstance(wanted, str) and wanted else media_type)


def read(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    ref = text_of(arguments, "ref")
    pointer = arguments.get("pointer")
    if isinstance(pointer, str) and pointer:
        text = json.dumps(_point(_load_json(tx, ref), pointer), ensure_ascii=False)
    else:
        text = _load(tx, ref).decode("utf-8", "replace")
    offset, limit = _count(arguments, "offset", 0), _count(arguments, "limit", PAGE_CHARACTERS)
    piece = text[offset : offset + min(limit, 50_000)]
    if offset + len(piece) < len(text):
        piece += f"\n[{len(text)} characters in all; go on with offset {offset + len(piece)}]"
    return ToolResult(piece)


def merge(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    from watchkeeper.agents.tools.folder.merge import merge_json

    name = _name(arguments)
    wanted = arguments.get("inputs")
    if isinstance(wanted, str):
        wanted = [wanted]
    if not isinstance(wanted, list) or not all(isinstance(one, str) for one in wanted):
        raise ValueError("`inputs` must be a list of names or references")
    names: list[str] = []
    for one in wanted:
        names += _matching(tx, one) if any(mark in one for mark in "*?[") else [one]
    if len(names) > MOST_INPUTS:
        raise ValueError(f"{len(names)} artifacts are too many to merge at once; at most {MOST_INPUTS}")
    if not names:
        raise ValueError(f"no artifact matches {', '.join(wanted) or 'an empty list'}")
    result = _store(
        tx, context, name, _dump(merge_json([_load_json(tx, one) for one in names])), "application/json"
    )
    return ToolResult(json.dumps(json.loads(str(result.content)) | {"inputs": len(names)}))


def _store(tx: Transaction, context: ToolContext, name: str, data: bytes, media_type: str) -> ToolResult:
    if len(data) > LARGEST:
        raise ValueError(f"{name} would have {len(data)} bytes; at most {LARGEST} are kept, so split it")
    ref = artifacts.save_output(
        tx, name=name, data=data, media_type=media_type, agent_id=context.agent_id, task_id=context.task_id
    )
    tx.event(
        "artifact.saved",
        agent_id=context.agent_id,
        task_id=context.task_id,
        name=name,
        ref=ref,
        bytes=len(data),
    )
    return ToolResult(json.dumps({"ref": ref, "name": name, "bytes": len(data)}))


def _name(arguments: dict[str, Any]) -> str:
    name = text_of(arguments, "name", limit=200).strip()
    if any(ord(character) < 32 for character in name):
        raise ValueError("`name` must not hold control characters")
    return name


def _matching(tx: Transaction, pattern: str) -> list[str]:
    rows = tx.all("SELECT DISTINCT name FROM outputs WHERE session_id = ? ORDER BY name", (tx.session_id,))
    return [row[0] for row in rows if fnmatch.fnmatchcase(row[0], pattern)]


def _load(tx: Transaction, name_or_ref: str) -> bytes:
    ref = artifacts.resolve(tx, tx.session_id, name_or_ref)
    data = artifacts.get(tx, ref) if ref else None
    if data is None:
        raise ValueError(f"there is no artifact {name_or_ref!r}")
    return data


def _load_json(tx: Transaction, name_or_ref: str) -> Any:
    try:
        return json.loads(_load(tx, name_or_ref))
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError(f"{name_or_ref} is no JSON artifact") from None


def _dump(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "replace")


def _point(value: Any, pointer: str) -> Any:
    """The part of a JSON value that an RFC 6901 pointer names."""
    for step in pointer.lstrip("/").split("/") if pointer.strip("/") else []:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            raise ValueError(f"pointer {pointer} leads nowhere at {step!r}")
    return value


def _count(arguments: dict[str, Any], name: str, default: int) -> int:
    value = arguments.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"`{name}` must be a whole number")
    return value
