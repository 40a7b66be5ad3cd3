"""The figures of one page of `list_folder`, in the form that adds up: joining pages' figures gives a
folder's."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

LARGEST_KEPT = 20
_TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "spec", "specs"})

TOTALS = (
    "files",
    "folders",
    "links",
    "other",
    "bytes",
    "lines",
    "binary_files",
    "test_files",
    "entry_points",
    "todo",
    "fixme",
    "unreadable",
)


def no_figures() -> dict[str, Any]:
    """The figures of nothing: every part is there, so that every pointer into joined figures finds
    something."""
    return {
        "totals": dict.fromkeys(TOTALS, 0),
        "languages": {},
        "largest": {"$largest": LARGEST_KEPT, "by": 1, "items": []},
        "tests": {},
        "entry_points": [],
        "places": [],
        "unreadable": [],
        "skipped": [],
        "notes": [],
    }


def figures_of(page: dict[str, Any], biggest: list[int], skip: Sequence[str]) -> dict[str, Any]:
    """The figures of a page, parts that are empty left out. All strings are as `list_folder` gave them.

    Args:
        biggest: the sizes of the largest files so far, at most `LARGEST_KEPT`, greatest first; brought up to
            date. It spares repeating files that cannot be among the largest.
        skip: paths that a person wants left out, with all below them.
    """
    figures = no_figures()
    totals: dict[str, int] = figures["totals"]
    rows: list[list[Any]] = []
    figures["skipped"] = [str(path) for path in page.get("skipped", ())]
    for entry in page.get("entries", ()):
        path, kind = str(entry["path"]), entry.get("kind")
        if any(path == name or path.startswith(name + "/") for name in skip):
            continue
        for line, word, text in entry.get("todos", ()):
            totals["todo" if word == "TODO" else "fixme"] += 1
            figures["places"].append([path, line, word, text])
        if "todos_from" in entry:
            continue
        if entry.get("unreadable"):
            totals["unreadable"] += 1
            figures["unreadable"].append([path, entry["unreadable"]])
        if kind == "file":
            _count_file(figures, entry, path)
            rows.append([path, int(entry.get("bytes", 0)), entry.get("lines")])
        else:
            totals[{"dir": "folders", "link": "links"}.get(str(kind), "other")] += 1
    figures["largest"]["items"] = _largest(rows, biggest)
    return {name: part for name, part in figures.items() if part and (name != "largest" or part["items"])}


def _count_file(figures: dict[str, Any], entry: dict[str, Any], path: str) -> None:
    totals: dict[str, int] = figures["totals"]
    size, lines = int(entry.get("bytes", 0)), int(entry.get("lines") or 0)
    totals["files"] += 1
    totals["bytes"] += size
    totals["lines"] += lines
    language = figures["languages"].setdefault(
        str(entry.get("language")), {"files": 0, "bytes": 0, "lines": 0}
    )
    language["files"] += 1
    language["bytes"] += size
    language["lines"] += lines
    totals["binary_files"] += bool(entry.get("binary"))
    if entry.get("test"):
        totals["test_files"] += 1
        folder = test_folder(path)
        figures["tests"][folder] = figures["tests"].get(folder, 0) + 1
    if entry.get("entry_point"):
        totals["entry_points"] += 1
        figures["entry_points"].append([path, entry["entry_point"]])


def _largest(rows: list[list[Any]], biggest: list[int]) -> list[list[Any]]:
    floor = biggest[-1] if len(biggest) >= LARGEST_KEPT else -1
    # The order in which `merge_json` keeps the greatest rows, so that cutting early and cutting late agree.
    rows.sort(key=lambda row: (-row[1], json.dumps(row)))
    kept = [row for row in rows[:LARGEST_KEPT] if row[1] >= floor]
    biggest[:] = sorted([*biggest, *(row[1] for row in kept)], reverse=True)[:LARGEST_KEPT]
    return kept


def test_folder(path: str) -> str:
    """Where a test file belongs: the outermost folder of tests on its path, else its own folder; ends with
    `/`."""
    names = path.split("/")[:-1]
    for index, name in enumerate(names):
        if name in _TEST_FOLDERS:
            return "/".join(names[: index + 1]) + "/"
    return "/".join(names or ["."]) + "/"


_NUMBERED = re.compile(r"^\s*\d+\s*(?:\t|→|:|\|| {2,})")
_EMPTY = re.compile(r"[\W_]*$")
_PREAMBLE = re.compile(
    r"#!|#include|<[!?]|!\[|\[!\[|@|.*(?:-\*-|SPDX|copyright)|(?:import|from|package|using|class|def|if|const|var|let|export|use)\b",
    re.IGNORECASE,
)
"""Lines that say little of a file, by how they begin."""


def first_words(text: str, characters: int = 140) -> str:
    """The first line of a file that says something, as plain text; empty if there is none."""
    for raw in text.splitlines()[:60]:
        line = _NUMBERED.sub("", raw).strip()
        if _EMPTY.match(line) or _PREAMBLE.match(line):
            continue
        line = "".join(character if character.isprintable() else " " for character in line)
        line = line.strip("#=*/<>!-\"' \t").strip()
        if line:
            return line if len(line) <= characters else line[: characters - 1] + "…"
    return ""
