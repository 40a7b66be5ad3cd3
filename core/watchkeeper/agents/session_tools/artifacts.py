"""Putting JSON artifacts together, so that large results never pass through a model's context.

`merge_json` adds up counts: each count once, nothing lost. `expand_includes` replaces, in the JSON that a
model saves, objects that stand for values:

- `{"$artifact": ref_or_name}`: that artifact's JSON. With `"$pointer": "/a/b"`, a part of it (RFC 6901); with
  `"$default": value`, that value where the pointer finds nothing; with `"$columns": [name, …]`, its rows as
  objects; with `"$sort": true`, in order (a list by its rows, an object by its keys).
- `{"$merge": [value, …]}`: the values, each expanded, joined by `merge_json`.
"""

from __future__ import annotations

import fnmatch
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from watchkeeper.agents.session_tools import FunctionTool, text_of, tool
from watchkeeper.agents.tools.contract import ToolContext, ToolResult
from watchkeeper.store import artifacts
from watchkeeper.store.transaction import Transaction

LARGEST_ROWS = "$largest"
"""Marks an object that keeps only its greatest rows: `{"$largest": how many, "by": column, "items": [row,
…]}`."""

_KEYS = frozenset({"$artifact", "$pointer", "$default", "$columns", "$sort"})
_MISSING: Any = object()


def merge_json(values: Sequence[object]) -> object:
    """Join values in order: numbers add, lists follow one another, objects join key by key, recursively.

    Of strings and of booleans the first stays; null gives way to anything; a `$largest` object keeps its
    greatest rows (by number in column `by`, then by row). No values give None.

    Raises:
        ValueError: two values at one place are of different kinds, such as a number and a list.
    """
    return functools.reduce(lambda one, two: _join(one, two, ""), values, cast(object, None))


def _join(one: Any, two: Any, where: str) -> object:
    if one is None or two is None:
        return _copied(two if one is None else one)
    kind = _kind(one)
    if kind != _kind(two):
        raise ValueError(f"Cannot join {kind} with {_kind(two)} at {where or 'the top'!r}.")
    match kind:
        case "an object" if LARGEST_ROWS in one and LARGEST_ROWS in two:
            return _largest(one, two, where)
        case "an object":
            return one | {key: _join(one.get(key), value, f"{where}/{key}") for key, value in two.items()}
        case "a list":
            # In place: `one` is this merge's own copy, and many small lists must not cost the square of their
            # number.
            one += two
        case "a number":
            return cast(object, one + two)
    return cast(object, one)


def _copied(value: object) -> object:
    """A copy whose containers may be changed without changing what was given."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value


def _largest(one: dict[str, Any], two: dict[str, Any], where: str) -> dict[str, Any]:
    count, column = one[LARGEST_ROWS], one.get("by", 0)
    rows = [*one.get("items", ()), *two.get("items", ())]
    if not isinstance(count, int) or not isinstance(column, int):
        raise ValueError(f"{LARGEST_ROWS} and its 'by' must be whole numbers, at {where!r}.")
    try:
        rows.sort(key=lambda row: (-row[column], json.dumps(row)))
    except (TypeError, IndexError, KeyError) as error:
        raise ValueError(
            f"The rows of {LARGEST_ROWS} at {where!r} have no number in column {column}."
        ) from error
    return {LARGEST_ROWS: count, "by": column, "items": rows[:count]}


_KINDS = ((bool, "a boolean"), (int | float, "a number"), (str, "text"), (list, "a list"))


def _kind(value: object) -> str:
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "an object")


def expand_includes(value: object, load: Callable[[str], object]) -> object:
    """The value with every include replaced. `load` gives an artifact's parsed JSON and raises ValueError if
    it cannot.

    What is loaded is taken as it is: includes inside it stand for themselves, so that expansion always ends.

    Raises:
        ValueError: an include that is malformed, or whose artifact or part is not there.
    """
    if isinstance(value, list):
        return [expand_includes(item, load) for item in value]
    if not isinstance(value, dict):
        return value
    if "$artifact" in value:
        return _included(value, load)
    if set(value) == {"$merge"}:
        parts = value["$merge"]
        if not isinstance(parts, list):
            raise ValueError('"$merge" takes a list of values.')
        return merge_json([expand_includes(part, load) for part in parts])
    return {key: expand_includes(item, load) for key, item in value.items()}


def _included(include: dict[str, Any], load: Callable[[str], object]) -> object:
    name = include["$artifact"]
    if not isinstance(name, str) or not set(include) <= _KEYS:
        raise ValueError(
            f'An include takes "$artifact" (a name or ref) and {", ".join(sorted(_KEYS - {"$artifact"}))}.'
        )
    value = at_pointer(load(name), str(include.get("$pointer", "")), include.get("$default", _MISSING))
    columns = include.get("$columns")
    if value is _MISSING:
        raise ValueError(f"Artifact {name!r} holds nothing at {include['$pointer']!r}.")
    if include.get("$sort") and isinstance(value, dict | list):
        value = dict(sorted(value.items())) if isinstance(value, dict) else sorted(value, key=_row_order)
    if columns is None:
        return value
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise ValueError(f'"$columns" needs a list of rows, and {name!r} holds none there.')
    return [dict(zip(columns, row, strict=False)) for row in value]


def at_pointer(value: Any, pointer: str, default: object) -> object:
    """What a JSON pointer (RFC 6901) finds in a value, or `default`."""
    for token in pointer.removeprefix("/").split("/") if pointer.strip("/") else ():
        key: Any = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and key.isdecimal():
            key = int(key)
        if not (
            key in value if isinstance(value, dict) else isinstance(value, list) and key in range(len(value))
        ):
            return default
        value = value[key]
    return cast(object, value)


def _row_order(row: object) -> tuple[tuple[int, Any], ...]:
    """Numbers before texts, then by value; whatever else by its JSON text."""
    return tuple(
        (0, cell)
        if isinstance(cell, int | float)
        else (1, cell if isinstance(cell, str) else json.dumps(cell))
        for cell in (row if isinstance(row, list) else [row])
    )


# The tools: what an agent produces is stored by its content, and entered under a name in its outputs.

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
                "content": {"type": ["string", "object", "array"], "description": "text, an object or a list"},
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
    name = _name(arguments)
    content = arguments.get("content")
    if isinstance(content, str):
        data, media_type = content.encode("utf-8", "replace"), "text/plain"
        if name.endswith(".md"):
            media_type = "text/markdown"
    else:
        whole = expand_includes(content, lambda ref: _load_json(tx, ref))
        data, media_type = _dump(whole), "application/json"
    wanted = arguments.get("media_type")
    return _store(tx, context, name, data, wanted if isinstance(wanted, str) and wanted else media_type)


def read(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    ref = text_of(arguments, "ref")
    pointer = arguments.get("pointer")
    if isinstance(pointer, str) and pointer:
        part = at_pointer(_load_json(tx, ref), pointer, _MISSING)
        if part is _MISSING:
            raise ValueError(f"pointer {pointer} leads nowhere in {ref}")
        text = json.dumps(part, ensure_ascii=False)
    else:
        text = _load(tx, ref).decode("utf-8", "replace")
    offset, limit = arguments.get("offset", 0), arguments.get("limit", PAGE_CHARACTERS)
    piece = text[offset : offset + min(limit, 50_000)]
    if offset + len(piece) < len(text):
        piece += f"\n[{len(text)} characters in all; go on with offset {offset + len(piece)}]"
    return ToolResult(piece)


def merge(tx: Transaction, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
    name = _name(arguments)
    wanted = arguments["inputs"]
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
        raise ValueError(f"{name_or_ref} is not a JSON artifact") from None


def _dump(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "replace")
