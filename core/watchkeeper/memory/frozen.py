"""Rendered messages that many requests share: dicts and lists that cannot be changed.

A context is sent whole on every turn. Copying it each time, so that no caller's change reaches the next
request, costs a turn more the longer the context is; sharing what cannot be changed costs nothing. To JSON
encoders and to `isinstance` they are ordinary dicts and lists, and every copy of one (`copy`, `deepcopy`,
`|`, `+`, a slice) is an ordinary one too.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NoReturn

_ATOMS = frozenset({str, int, float, bool, type(None)})


def _refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        "The messages of a request are shared with later ones and cannot be changed; change a copy"
        " (copy.deepcopy)."
    )


class FrozenDict(dict[str, Any]):
    """A dict for reading."""

    __slots__ = ()

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


class FrozenList(list[Any]):
    """A list for reading."""

    __slots__ = ()

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [deepcopy(value, memo) for value in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def frozen(value: Any) -> Any:
    """`value`, JSON-like, as it cannot be changed: a structural copy, but for the parts that are frozen
    already."""
    kind = type(value)
    if kind in _ATOMS or kind is FrozenDict or kind is FrozenList:
        return value
    if isinstance(value, dict):
        return FrozenDict(
            {key: item if type(item) in _ATOMS else frozen(item) for key, item in value.items()}
        )
    if isinstance(value, list | tuple):
        return FrozenList([item if type(item) in _ATOMS else frozen(item) for item in value])
    return value
