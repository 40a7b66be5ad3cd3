"""The surveyor's writer: adds up the counts of all parts, and writes `survey.json` and `SURVEY.md` from them.

Promise: no figure passes through prose. `survey.json` is put together from artifacts by reference, and the
report is made of what is read from artifacts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from watchkeeper.models.surveyor.survey import (
    REPORTS,
    Call,
    SurveyorReply,
    ToolOutcome,
    Turn,
    is_shortened,
    leading_json,
    no_counts,
    reason,
)
from watchkeeper.records.text import plural

REPORT, SURVEY = REPORTS
WHOLE = "figures/all"
FORMAT = "watchkeeper-survey/1"

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

_SHOWN: tuple[tuple[str, str, str, int], ...] = (
    ("totals", WHOLE, "/totals", 600),
    ("languages", WHOLE, "/languages", 2_600),
    ("largest", WHOLE, "/largest/items", 2_400),
    ("notes", SURVEY, "/notes", 1_600),
    ("entry_points", SURVEY, "/entry_points", 1_600),
    ("places", SURVEY, "/todos/places", 2_400),
    ("tests", SURVEY, "/tests/folders", 1_000),
    ("unreadable", SURVEY, "/unreadable", 1_000),
    ("skipped", SURVEY, "/skipped", 600),
    ("missing", SURVEY, "/missing_parts", 600),
    ("workspace", SURVEY, "/workspace", 600),
)
"""What the report shows, where it is kept, and how many characters of it are read."""
_LEAST_SHARE = 1 / 8
_ROWS_SHOWN = 20


def write(turn: Turn) -> SurveyorReply:
    """The writer's next reply."""
    done = {str(one.arguments.get("name")): one for one in turn.outcomes}
    readings = [one for one in turn.outcomes if one.name == "read_artifact"]
    known = {WHOLE, SURVEY, REPORT}.intersection(done)
    if not turn.outcomes and turn.ended:
        return SurveyorReply(f"The survey is written, as {REPORT} and {SURVEY}.")
    if not known and not readings:
        return _join(turn)
    if turn.failures:
        again = _join(turn) if any(is_shortened(one.arguments) for one in turn.outcomes) else turn.try_again()
        why = f"FAILED: the survey could not be written: {reason(turn.failures)}"
        return again or SurveyorReply(why)
    if WHOLE in known:
        document = ("save_artifact", {"name": SURVEY, "content": _document(turn, done[WHOLE])})
        return SurveyorReply("I save the machine form.", [document])
    if SURVEY in known:
        recall = (
            [("recall", {"query": "what the files of this workspace begin with"})]
            if "recall" in turn.tools
            else []
        )
        text = "The machine form is saved. I read what the report shows."
        return SurveyorReply(text, [*_read_back(min(1.0, turn.window / 12_000)), *recall])
    if REPORT in known:
        return SurveyorReply(_result(readings))
    share = int(readings[0].arguments.get("limit", 0)) / _SHOWN[0][3]
    if (
        any(is_shortened(one.text) or is_shortened(one.arguments) for one in readings)
        and share > _LEAST_SHARE
    ):
        return SurveyorReply("That did not fit my context; I read less of each list.", _read_back(share / 2))
    saved = ("save_artifact", {"name": REPORT, "content": report(_parts(readings))})
    read = [call for call in _read_back(1.0) if call[1]["pointer"] in ("/totals", "/missing_parts")]
    return SurveyorReply("I write the report.", [saved, *read])


def _join(turn: Turn) -> SurveyorReply:
    there = _inputs(turn)
    if not there:
        return SurveyorReply(
            "There are no counts to add up.", [("save_artifact", {"name": WHOLE, "content": no_counts()})]
        )
    text = f"I am the offline surveyor. I add up the counts of {plural(len(there), 'part')}."
    return SurveyorReply(text, [("merge_artifacts", {"inputs": there, "name": WHOLE})])


def _inputs(turn: Turn) -> list[str]:
    """The counts that exist: of those in the scope, those that the handoff hands over."""
    handoff = leading_json(turn.assignment.partition("\nhandoff:")[2])
    wanted = list(turn.scope.get("inputs", ()))
    given = (
        [one.get("name") for one in handoff.get("inputs_ref", ())] if isinstance(handoff, dict) else wanted
    )
    return [name for name in wanted if name in given]


def _read_back(share: float) -> list[Call]:
    return [
        ("read_artifact", {"ref": name, "pointer": pointer, "limit": int(limit * share)})
        for _, name, pointer, limit in _SHOWN
    ]


def _document(turn: Turn, joined: ToolOutcome) -> dict[str, Any]:
    """`survey.json`, every number and list taken by reference from the counts added up."""

    def total(name: str) -> dict[str, Any]:
        return {"$artifact": WHOLE, "$pointer": f"/totals/{name}"}

    def rows(name: str, *columns: str) -> dict[str, Any]:
        include: dict[str, Any] = {"$artifact": WHOLE, "$pointer": f"/{name}", "$sort": True}
        return include | {"$columns": list(columns)} if columns else include

    scope, there = turn.scope, joined.arguments.get("inputs", ())
    left_out = [f"{name} (on request)" for name in scope.get("left_out", ())]
    return {
        "format": FORMAT,
        "workspace": scope.get("workspace", "workspace"),
        "written_by": "offline/surveyor, a fixed program and not an LLM",
        **{
            name: total(name)
            for name in ("files", "bytes", "lines", "folders", "links", "other", "binary_files")
        },
        "languages": rows("languages"),
        "largest": {"$artifact": WHOLE, "$pointer": "/largest/items", "$columns": ["path", "bytes", "lines"]},
        "entry_points": rows("entry_points", "path", "reason"),
        "todos": {
            "count": {"$merge": [total("todo"), total("fixme")]},
            "todo": total("todo"),
            "fixme": total("fixme"),
            "places": rows("places", "path", "line", "kind", "text"),
        },
        "tests": {"files": total("test_files"), "folders": rows("tests")},
        "unreadable": rows("unreadable", "path", "reason"),
        "notes": rows("notes", "path", "begins"),
        "skipped": {"$merge": [rows("skipped"), left_out]},
        "missing_parts": [label for name, label in scope.get("inputs", {}).items() if name not in there],
        "definitions": DEFINITIONS,
    }


def _parts(readings: Iterable[ToolOutcome]) -> dict[str, Any]:
    """What was read, by its name in `_SHOWN`; of each list and object as much as was read whole."""
    read = {
        (one.arguments.get("ref"), one.arguments.get("pointer")): leading_json(one.text) for one in readings
    }
    return {label: read.get((name, pointer)) for label, name, pointer, _ in _SHOWN}


def _result(readings: Iterable[ToolOutcome]) -> str:
    parts = _parts(readings)
    sums = no_counts()["totals"] | (parts["totals"] or {})
    lacking = f" Missing: {', '.join(parts['missing'])}." if parts["missing"] else ""
    return (
        f"The survey is written, as {REPORT} and {SURVEY}: {plural(sums['files'], 'file')}, "
        f"{plural(sums['bytes'], 'byte')}, {plural(sums['lines'], 'line')}, "
        f"{sums['todo'] + sums['fixme']:,} TODO and FIXME.{lacking}"
    )


# `SURVEY.md`: a function of what was read; no time, no order of events.

_OVERVIEW = {
    "Files": "files",
    "Folders": "folders",
    "Bytes": "bytes",
    "Lines": "lines",
    "Binary files": "binary_files",
    "Links": "links",
    "Pipes, sockets, devices": "other",
    "Test files": "test_files",
    "Entry points": "entry_points",
    "Could not be read": "unreadable",
}


def report(parts: Mapping[str, Any]) -> str:
    """The report, in Markdown. Each list of `parts` may be only the beginning of what there is."""
    totals: dict[str, int] = no_counts()["totals"] | (parts["totals"] or {})
    todos = totals["todo"] + totals["fixme"]
    lists = {
        name: (parts[name] or [])[:_ROWS_SHOWN] for name in ("notes", "entry_points", "places", "unreadable")
    }
    lists["largest"], lists["skipped"] = (
        (parts["largest"] or [])[:_ROWS_SHOWN],
        (parts["skipped"] or [])[:_ROWS_SHOWN],
    )
    missing = ", ".join(map(code, parts["missing"] or []))
    overview = [(label, f"{totals[name]:,}") for label, name in _OVERVIEW.items()]
    overview.append(("TODO and FIXME", f"{todos:,} ({totals['todo']:,} and {totals['fixme']:,})"))
    languages = sorted((parts["languages"] or {}).items(), key=lambda item: (-item[1]["bytes"], item[0]))
    tests = list((parts["tests"] or {}).items())[:_ROWS_SHOWN]
    elsewhere = totals["test_files"] - sum(number for _, number in tests)
    sections = [
        f"# Survey of {code(parts['workspace'] or 'workspace')}",
        "Written by the offline surveyor of Watchkeeper: a fixed program that counts, not an LLM. It judges"
        " nothing.",
        f"**Not the whole folder.** These parts are missing: {missing}." if missing else "",
        _table("What it holds", "|Count", overview)
        if any(totals[name] for name in ("files", "folders", "links", "other"))
        else "The folder is empty.",
        _list(
            "What some files say of themselves",
            [f"{code(row['path'])}: {code(row['begins'])}" for row in lists["notes"]],
        ),
        _table(
            "Languages",
            "Language|Files|Lines|Bytes",
            [
                (code(name), f"{one['files']:,}", f"{one['lines']:,}", f"{one['bytes']:,}")
                for name, one in languages
            ],
        ),
        _table(
            "Largest files",
            "File|Bytes|Lines",
            [
                (code(path), f"{size:,}", "" if lines is None else f"{lines:,}")
                for path, size, lines in lists["largest"]
            ],
        ),
        _list(
            "Entry points",
            [f"{code(row['path'])}: {code(row['reason'])}" for row in lists["entry_points"]],
            totals["entry_points"],
            "entry_points",
        ),
        _list(
            "TODO and FIXME",
            [
                f"{code(str(row['path']) + ':' + str(row['line']))} {code(row['text'])}"
                for row in lists["places"]
            ],
            todos,
            "todos.places",
        )
        if todos
        else "## TODO and FIXME\n\nThere are none.",
        _table("Tests", "Folder|Files", [(code(folder), f"{number:,}") for folder, number in tests])
        or "## Tests\n\nThere are no test files, by the definition below.",
        f"{elsewhere:,} more are elsewhere: see tests.folders in survey.json."
        if tests and elsewhere > 0
        else "",
        _list(
            "What could not be read",
            [f"{code(row['path'])}: {code(row['reason'])}" for row in lists["unreadable"]],
            totals["unreadable"],
            "unreadable",
        ),
        _list(
            "How it was counted",
            [
                *(f"**{name}**: {text}" for name, text in DEFINITIONS.items()),
                f"**skipped here**: {', '.join(map(code, lists['skipped'])) or 'nothing'}.",
            ],
        ),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def code(text: object) -> str:
    """Text of the folder's own as inline code that cannot end early, on one line, safe inside a table."""
    plain = "".join(character if character.isprintable() else " " for character in str(text))
    return "`" + plain.replace("`", "'").replace("|", "¦") + "`"


def _list(title: str, lines: Sequence[str], there: int = 0, where: str = "") -> str:
    """A section of lines, with how many more `survey.json` has; empty without lines."""
    rest = f"\n\n{there - len(lines):,} more: see {where} in survey.json." if there > len(lines) else ""
    return f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines) + rest if lines else ""


def _table(title: str, heads: str, rows: Sequence[tuple[str, ...]]) -> str:
    """A section with a table, numbers to the right; empty without rows."""
    columns = heads.split("|")
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|--:" * (len(columns) - 1) + "|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return f"## {title}\n\n" + "\n".join(lines) if rows else ""
