"""Putting JSON artifacts together, so that large results never pass through a model's context.

`merge_json` joins figures: each count once, nothing lost. `expand_includes` replaces, in the JSON that a
model saves, objects that stand for values:

- `{"$artifact": ref_or_name}`: that artifact's JSON. With `"$pointer": "/a/b"`, a part of it (RFC 6901); with
  `"$default": value`, that value where the pointer finds nothing; with `"$columns": [name, …]`, its rows as
  objects; with `"$sort": true`, in order (a list by its rows, an object by its keys).
- `{"$merge": [value, …]}`: the values, each expanded, joined by `merge_json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

LARGEST = "$largest"
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
    merged: object = None
    for value in values:
        merged = _join(merged, value, "")
    return merged


def _join(one: object, two: object, where: str) -> object:
    if one is None or two is None:
        return _copied(two if one is None else one)
    if _kind(one) != _kind(two):
        raise ValueError(f"Cannot join {_kind(one)} with {_kind(two)} at {where or 'the top'!r}.")
    if isinstance(one, dict) and isinstance(two, dict):
        if LARGEST in one and LARGEST in two:
            return _largest(one, two, where)
        joined = dict(one)
        for key, value in two.items():
            joined[key] = _join(one.get(key), value, f"{where}/{key}")
        return joined
    if isinstance(one, list) and isinstance(two, list):
        # In place: `one` is this merge's own copy, and many small lists must not cost the square of their
        # number.
        one += two
        return one
    if _kind(one) == "a number":
        return cast(Any, one) + cast(Any, two)
    return one


def _copied(value: object) -> object:
    """A copy whose containers may be changed without changing what was given."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value


def _largest(one: dict[str, Any], two: dict[str, Any], where: str) -> dict[str, Any]:
    count, column = one[LARGEST], one.get("by", 0)
    rows = [*one.get("items", ()), *two.get("items", ())]
    if not isinstance(count, int) or not isinstance(column, int):
        raise ValueError(f"{LARGEST} and its 'by' must be whole numbers, at {where!r}.")
    try:
        rows.sort(key=lambda row: (-row[column], json.dumps(row)))
    except (TypeError, IndexError, KeyError) as error:
        raise ValueError(f"The rows of {LARGEST} at {where!r} have no number in column {column}.") from error
    return {LARGEST: count, "by": column, "items": rows[:count]}


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object"


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
    if value is _MISSING:
        raise ValueError(f"Artifact {name!r} holds nothing at {include['$pointer']!r}.")
    if include.get("$sort"):
        value = _sorted(value)
    columns = include.get("$columns")
    if columns is None:
        return value
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise ValueError(f'"$columns" needs a list of rows, and {name!r} holds none there.')
    return [dict(zip(columns, row, strict=False)) for row in value]


def at_pointer(value: object, pointer: str, default: object) -> object:
    """What a JSON pointer finds in a value, or `default`."""
    if pointer in ("", "/"):
        return value
    for token in pointer.removeprefix("/").split("/"):
        key = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return default
    return value


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {key: value[key] for key in sorted(value)}
    if isinstance(value, list):
        return sorted(value, key=_row_order)
    return value


def _row_order(row: object) -> tuple[tuple[int, Any], ...]:
    """Numbers before texts, then by value; whatever else by its JSON text."""
    cells = row if isinstance(row, list) else [row]
    order: list[tuple[int, Any]] = []
    for cell in cells:
        if isinstance(cell, (int, float)):
            order.append((0, cell))
        else:
            order.append((1, cell if isinstance(cell, str) else json.dumps(cell)))
    return tuple(order)
