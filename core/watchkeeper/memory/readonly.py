"""A list of messages that may be looked at and not changed, without copying it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, overload

from watchkeeper.memory.content import copied
from watchkeeper.records.memory import Message


def untouched(message: Message) -> Message:
    """A message that may be given away: whoever changes its content changes a copy."""
    return message if isinstance(message.content, str) else replace(message, content=copied(message.content))


class ReadOnly(Sequence[Message]):
    """A live window on a list. Slices are tuples; it equals any list or tuple of the same messages."""

    __slots__ = ("_items",)

    def __init__(self, items: list[Message]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Message]:
        return map(untouched, self._items)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        return (
            tuple(map(untouched, self._items[index]))
            if isinstance(index, slice)
            else untouched(self._items[index])
        )

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, ReadOnly | list | tuple):
            return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self._items))
