"""What something was like, and from which position of a recording on."""

from __future__ import annotations

from bisect import bisect_right
from typing import Generic, TypeVar

T = TypeVar("T")


class Timeline(Generic[T]):
    """Values in the order of the positions at which they began."""

    __slots__ = ("positions", "values")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.values: list[T] = []

    def add(self, position: int, value: T) -> None:
        """From `position` on it is `value`. Positions never go back."""
        if self.positions and self.positions[-1] == position:
            self.values[-1] = value
        else:
            self.positions.append(position)
            self.values.append(value)

    def at(self, position: int) -> T | None:
        """What it was at that position, or None before the first."""
        place = bisect_right(self.positions, position)
        return self.values[place - 1] if place else None
