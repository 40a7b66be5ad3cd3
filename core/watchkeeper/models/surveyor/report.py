"""`SURVEY.md`: the survey as a page that people read. A function of what was read; no time, no order of
events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

DEFINITIONS: dict[str, str] = {
    "files": "Regular files. Links are counted apart and never followed; pipes, sockets and devices count as other.",
    "bytes": "The sizes of the regular files, added up.",
    "lines": "Newline characters, plus one for a last line without; none for binary and unreadable files.",
    "binary": "A file with a NUL byte in its first 8 KiB.",
    "languages": "By the file's whole name, then its extension, then its #! line; 'other' if none of these is known.",
    "todos": "Lines with TODO or FIXME as a whole word in upper case; each line once, by its first such word.",
    "tests": "Files named test_*.py, *_test.py, *_test.go, *.test.ts, *.spec.ts, *Test.java and the like, and all files "
    "under a folder named test, tests, __tests__, spec or specs.",
    "entry_points": "__main__.py; commands declared in pyproject.toml, package.json or entry_points.txt; Python files "
    "with a line that begins if __name__ == \"__main__\"; main.go, main.rs, main.c, main.cpp; executable"
    " files with a #! line.",
    "largest": "The twenty largest regular files; of equal ones, the first by path.",
    "skipped": "Version control's own folders (.git, .hg, .svn), and what a person asked to leave out. All else is counted.",
    "paths": "From the workspace; unusual characters are escaped with a backslash (\\xNN a byte, \\uNNNN a character).",
}  # fmt: skip
"""What the words of the survey mean."""

_ROWS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Reading:
    """What the writer has read for the report; each list may be only the beginning of what there is."""

    workspace: str
    parts: dict[str, Any]
    missing: list[str]

    @property
    def totals(self) -> dict[str, int]:
        return {str(name): value for name, value in self.parts["totals"].items() if isinstance(value, int)}

    def rows(self, name: str) -> list[Any]:
        value = self.parts.get(name)
        return value if isinstance(value, list) else []

    def items(self, name: str) -> dict[str, Any]:
        value = self.parts.get(name)
        return value if isinstance(value, dict) else {}


def report(reading: Reading) -> str:
    """The report, in Markdown."""
    totals = reading.totals
    sections = [
        f"# Survey of {code(reading.workspace)}",
        "Written by the offline surveyor of Watchkeeper: a fixed program that counts, not an LLM. It judges"
        " nothing.",
        _missing(reading),
        _overview(totals),
        _notes(reading),
        _languages(reading),
        _largest(reading),
        _entry_points(reading, totals),
        _todos(reading, totals),
        _tests(reading, totals),
        _unreadable(reading, totals),
        _definitions(reading),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def code(text: object) -> str:
    """Text of the folder's own as inline code that cannot end early, on one line, safe inside a table."""
    plain = "".join(character if character.isprintable() else " " for character in str(text))
    return "`" + plain.replace("`", "'").replace("|", "¦") + "`"


def _missing(reading: Reading) -> str:
    if not reading.missing:
        return ""
    return "**Not the whole folder.** These parts are missing: " + ", ".join(map(code, reading.missing)) + "."


def _overview(totals: dict[str, int]) -> str:
    if (
        not totals.get("files")
        and not totals.get("folders")
        and not totals.get("links")
        and not totals.get("other")
    ):
        return "The folder is empty."
    rows = [
        ("Files", "files"),
        ("Folders", "folders"),
        ("Bytes", "bytes"),
        ("Lines", "lines"),
        ("Binary files", "binary_files"),
        ("Links", "links"),
        ("Pipes, sockets, devices", "other"),
        ("Test files", "test_files"),
        ("Entry points", "entry_points"),
        ("Could not be read", "unreadable"),
    ]
    shown = [(label, f"{totals.get(name, 0):,}") for label, name in rows]
    todos = totals.get("todo", 0) + totals.get("fixme", 0)
    shown.append(("TODO and FIXME", f"{todos:,} ({totals.get('todo', 0):,} and {totals.get('fixme', 0):,})"))
    return _table("What it holds", ("", "Count"), shown, "lr")


def _notes(reading: Reading) -> str:
    lines = [f"- {code(row.get('path'))}: {code(row.get('begins'))}" for row in _shown(reading, "notes")]
    return "## What some files say of themselves\n\n" + "\n".join(lines) if lines else ""


def _languages(reading: Reading) -> str:
    languages = sorted(
        reading.items("languages").items(), key=lambda item: (-item[1].get("bytes", 0), item[0])
    )
    rows = [
        (code(name), f"{one.get('files', 0):,}", f"{one.get('lines', 0):,}", f"{one.get('bytes', 0):,}")
        for name, one in languages
    ]
    return _table("Languages", ("Language", "Files", "Lines", "Bytes"), rows, "lrrr") if rows else ""


def _largest(reading: Reading) -> str:
    rows = [
        (code(row[0]), f"{row[1]:,}", "" if row[2] is None else f"{row[2]:,}")
        for row in reading.rows("largest")[:_ROWS_SHOWN]
    ]
    return _table("Largest files", ("File", "Bytes", "Lines"), rows, "lrr") if rows else ""


def _entry_points(reading: Reading, totals: dict[str, int]) -> str:
    rows = _shown(reading, "entry_points")
    if not rows:
        return ""
    lines = [f"- {code(row.get('path'))}: {code(row.get('reason'))}" for row in rows]
    return "\n".join(
        ["## Entry points\n", *lines, *_rest(len(rows), totals.get("entry_points", 0), "entry_points")]
    )


def _todos(reading: Reading, totals: dict[str, int]) -> str:
    all_of_them = totals.get("todo", 0) + totals.get("fixme", 0)
    rows = _shown(reading, "places")
    if not all_of_them:
        return "## TODO and FIXME\n\nThere are none."
    lines = [
        f"- {code(str(row.get('path')) + ':' + str(row.get('line')))} {code(row.get('text'))}" for row in rows
    ]
    return "\n".join(["## TODO and FIXME\n", *lines, *_rest(len(rows), all_of_them, "todos.places")])


def _tests(reading: Reading, totals: dict[str, int]) -> str:
    folders = list(reading.items("tests").items())[:_ROWS_SHOWN]
    if not folders:
        return "## Tests\n\nThere are no test files, by the definition below."
    rows = [(code(folder), f"{number:,}") for folder, number in folders]
    told = sum(number for _, number in folders)
    rest = totals.get("test_files", 0) - told
    table = _table("Tests", ("Folder", "Files"), rows, "lr")
    return table + (f"\n\n{rest:,} more are elsewhere: see tests.folders in survey.json." if rest > 0 else "")


def _unreadable(reading: Reading, totals: dict[str, int]) -> str:
    rows = _shown(reading, "unreadable")
    if not rows:
        return ""
    lines = [f"- {code(row.get('path'))}: {code(row.get('reason'))}" for row in rows]
    return "\n".join(
        ["## What could not be read\n", *lines, *_rest(len(rows), totals.get("unreadable", 0), "unreadable")]
    )


def _definitions(reading: Reading) -> str:
    lines = [f"- **{name}**: {text}" for name, text in DEFINITIONS.items()]
    skipped = [code(name) for name in reading.rows("skipped")[:_ROWS_SHOWN]]
    lines.append(f"- **skipped here**: {', '.join(skipped) if skipped else 'nothing'}.")
    return "\n".join(["## How it was counted\n", *lines])


def _shown(reading: Reading, name: str) -> list[dict[str, Any]]:
    return [row for row in reading.rows(name) if isinstance(row, dict)][:_ROWS_SHOWN]


def _rest(shown: int, there: int, where: str) -> list[str]:
    return [f"\n{there - shown:,} more: see {where} in survey.json."] if there > shown else []


def _table(title: str, heads: Iterable[str], rows: Iterable[tuple[str, ...]], alignment: str) -> str:
    rule = "|".join("--:" if side == "r" else "---" for side in alignment)
    lines = [f"| {' | '.join(heads)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return f"## {title}\n\n" + "\n".join(lines)
