"""What the code says stands in the guide: compared by the tests that know it, and rewritten by them when
asked to.

`WATCHKEEPER_WRITE_DOCS=1 pytest TEST` rewrites the parts of the pages that the tests compare, instead.
"""

from __future__ import annotations

import os
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
WRITE = bool(os.environ.get("WATCHKEEPER_WRITE_DOCS"))
"""As of the start: some tests take the variables of Watchkeeper away."""


def agrees(page: str, name: str, expected: str) -> None:
    """The part of a page between `<!-- name -->` and `<!-- end of name -->` is what the code says."""
    path = DOCS / page
    text = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    assert begin in text, f"{page} has no part {name!r}"
    before, _, rest = text.partition(begin)
    found, marker, after = rest.partition(end)
    assert marker, f"the part {name!r} of {page} has no end"
    if WRITE:
        path.write_text(before + begin + expected + end + after, encoding="utf-8")
    else:
        assert found == expected, f"{page} is stale: run this test with WATCHKEEPER_WRITE_DOCS=1"


def has_row(page: str, name: str, row: str) -> None:
    """A table of a page, which ends before `<!-- end of name -->`, has this row, the only one with its first
    cell."""
    path = DOCS / page
    lines = path.read_text(encoding="utf-8").splitlines()
    first = row[: row.index(" | ") + 3]
    marks = [number for number, line in enumerate(lines) if line.startswith(first)]
    if WRITE:
        if marks:
            lines[marks[0]] = row
        else:
            lines.insert(lines.index(f"<!-- end of {name} -->"), row)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        assert [lines[mark] for mark in marks] == [row], (
            f"{page} is stale: run this test with WATCHKEEPER_WRITE_DOCS=1"
        )


def cell(text: str) -> str:
    """Any text as a table's cell."""
    return text.replace("|", "\\|").replace("<", "\\<")
