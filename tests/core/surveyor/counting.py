"""An independent count of a folder, written apart from the code that it checks: whole files in memory, plain
loops."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

VERSION_CONTROL = {".git", ".hg", ".svn"}


def count(root: Path) -> dict[str, Any]:
    """What `survey.json` must say of the folder, for the figures that need no table of languages."""
    found: dict[str, Any] = {
        "files": 0, "bytes": 0, "lines": 0, "folders": 0, "links": 0, "other": 0, "binary_files": 0,
    }  # fmt: skip
    todos: list[tuple[str, int, str]] = []
    sizes: list[tuple[int, str]] = []
    by_suffix: dict[str, list[int]] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in VERSION_CONTROL]
        for name in [*folders, *files]:
            path = Path(folder) / name
            shown = str(path.relative_to(root))
            if name in VERSION_CONTROL:
                continue
            if path.is_symlink():
                found["links"] += 1
            elif path.is_dir():
                found["folders"] += 1
            elif not path.is_file():
                found["other"] += 1
            else:
                found["files"] += 1
                size = path.stat().st_size
                found["bytes"] += size
                sizes.append((size, shown))
                with path.open("rb") as file:
                    binary = b"\0" in file.read(8192)
                found["binary_files"] += binary
                content = b"" if binary else path.read_bytes()
                lines = len(content.split(b"\n")) - (content.endswith(b"\n") or not content)
                found["lines"] += lines
                if path.suffix in (".py", ".pyi", ".pyx", ".pxd", ".pyw") and not binary:
                    sums = by_suffix.setdefault("Python", [0, 0, 0])
                    for index, number in enumerate((1, size, lines)):
                        sums[index] += number
                for number, line in enumerate(content.split(b"\n"), 1):
                    if match := re.search(rb"(?<![A-Za-z0-9_])(TODO|FIXME)(?![A-Za-z0-9_])", line):
                        todos.append((shown, number, match[1].decode()))
    found["todos"] = sorted(todos)
    found["largest"] = sorted((size for size, _ in sizes), reverse=True)[:20]
    found["python"] = by_suffix.get("Python", [0, 0, 0])
    return found


def assert_true(survey: dict[str, Any], root: Path) -> None:
    """Every figure of the survey agrees with the independent count."""
    truth = count(root)
    for name in ("files", "bytes", "lines", "folders", "links", "other", "binary_files"):
        assert survey[name] == truth[name], name
    places = [(place["path"], place["line"], place["kind"]) for place in survey["todos"]["places"]]
    assert places == truth["todos"]
    assert survey["todos"]["count"] == len(places) == survey["todos"]["todo"] + survey["todos"]["fixme"]
    assert [row["bytes"] for row in survey["largest"]] == truth["largest"]
    for name in ("files", "bytes", "lines"):
        assert sum(language[name] for language in survey["languages"].values()) == truth[name]
    python = survey["languages"].get("Python", {"files": 0, "bytes": 0, "lines": 0})
    assert [python["files"], python["bytes"], python["lines"]] == truth["python"]
    assert survey["tests"]["files"] == sum(survey["tests"]["folders"].values())
