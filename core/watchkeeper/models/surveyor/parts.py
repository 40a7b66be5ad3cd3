"""Dividing a folder into parts of work: by its top-level folders, large ones split, a great many small ones
grouped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

MOST_PARTS = 24
MOST_PARTS_SMALL_WINDOW = 12
SPLIT_FILES = 1_200
"""A folder with more files than this is divided among several explorers, if it has sub-folders."""
MOST_SPLITS = 6
NAMED_CHARACTERS = 100
"""Groups name each of their folders as long as all names together take no more than this times the most
parts."""


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring sub-folders of one folder, or (`count` 0) what lies loose in it."""

    parent: str
    """`.` for the workspace. All paths as `list_folder` shows them."""
    first: str = ""
    last: str = ""
    count: int = 0
    files: int = 0
    names: tuple[str, ...] = ()
    """The folders, if there are several and not too many to name."""

    @property
    def loose(self) -> bool:
        return self.count == 0

    def label(self) -> str:
        if self.loose:
            return "the loose files" if self.parent == "." else f"the loose files of {self.parent}"
        return self.first if self.count == 1 else f"{self.first} … {self.last} ({self.count} folders)"

    def scope(self) -> dict[str, Any]:
        """What an explorer must list."""
        if self.loose:
            return {"path": self.parent, "only": "files"}
        if self.count == 1:
            return {"path": self.first}
        return {"path": self.parent, "only": "folders", "from": self.first, "until": self.last}

    def instructions(self) -> str:
        if self.loose:
            where = "the workspace" if self.parent == "." else f"the folder {self.parent}"
            return f"Survey the files that lie directly in {where}, without its sub-folders."
        if self.count == 1:
            return f"Survey the folder {self.first} and everything below it."
        if self.names:
            return f"Survey these folders and everything below them: {', '.join(self.names)}."
        return f"Survey the {self.count} folders from {self.first} to {self.last}, in the order of their bytes, and all below."

    def to_row(self) -> list[Any]:
        """For a cursor."""
        return [self.parent, self.first, self.last, self.count, self.files, list(self.names)]

    @classmethod
    def from_row(cls, row: list[Any]) -> Part:
        return cls(row[0], row[1], row[2], row[3], row[4], tuple(row[5]))


def folder_part(parent: str, path: str, files: int) -> Part:
    return Part(parent, path, path, 1, files)


def grouped(parts: Iterable[Part], most: int) -> list[Part]:
    """At most `most` parts (loose ones stay alone, and may exceed it): neighbours with the fewest files join
    first."""
    left = list(parts)
    while len(left) > most:
        pairs = [
            (one.files + two.files, index)
            for index, (one, two) in enumerate(pairwise(left))
            if one.parent == two.parent and not one.loose and not two.loose
        ]
        if not pairs:
            break
        _, index = min(pairs)
        left[index : index + 2] = [_joined(left[index], left[index + 1])]
    return _named(left, NAMED_CHARACTERS * most)


def _joined(one: Part, two: Part) -> Part:
    names = (*_names(one), *_names(two))
    complete = len(names) == one.count + two.count
    return replace(
        one,
        last=two.last,
        count=one.count + two.count,
        files=one.files + two.files,
        names=names if complete else (),
    )


def _names(part: Part) -> tuple[str, ...]:
    return (part.first,) if part.count == 1 else part.names


def _named(parts: list[Part], room: int) -> list[Part]:
    """Drop the longest lists of names until the rest is short enough to carry along."""
    sizes = {index: sum(map(len, part.names)) for index, part in enumerate(parts)}
    while sum(sizes.values()) > room:
        index = max(sizes, key=lambda key: (sizes[key], -key))
        sizes[index] = 0
        parts[index] = replace(parts[index], names=())
    return parts


def to_split(parts: list[Part], most: int) -> list[str]:
    """The folders that are worth dividing, largest first, as far as the number of parts allows."""
    room = most - len(parts)
    chosen = []
    for part in sorted(parts, key=lambda part: (-part.files, part.first)):
        needed = splits(part.files)
        if part.count == 1 and part.files > SPLIT_FILES and needed <= room:
            chosen.append(part.first)
            room -= needed
    return chosen


def splits(files: int) -> int:
    """Into how many parts a folder of so many files is divided, besides its loose files."""
    return min(MOST_SPLITS, -(-files // SPLIT_FILES))


def task_names(parts: list[Part]) -> list[str]:
    """A short, unique name for the task of each part."""
    taken: set[str] = {"synthesis"}
    names = []
    for part in parts:
        if part.loose:
            base = "loose-files" if part.parent == "." else f"{_slug(part.parent)}-loose-files"
        elif part.count == 1:
            base = _slug(part.first)
        else:
            base = f"{_slug(part.first)}-and-on"
        name, number = base, 2
        while name in taken:
            name, number = f"{base}-{number}", number + 1
        taken.add(name)
        names.append(name)
    return names


def _slug(path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")[:24].strip("-") or "part"
