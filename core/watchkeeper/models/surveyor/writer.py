"""The surveyor as writer: joins the figures of all parts, and writes `survey.json` and `SURVEY.md` from them.

Phases, each waiting for the results of its calls: `check` (which parts are there), `merge`, `survey` (the
machine form is being saved), `look` (what the report shows is being read), `report`, `done`, `failed`. No
figure passes through prose: `survey.json` is put together from artifacts by reference, and the report is read
from artifacts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from watchkeeper.models.surveyor import request
from watchkeeper.models.surveyor.explorer import no_figures
from watchkeeper.models.surveyor.request import (
    CURSOR,
    MOST_ATTEMPTS,
    Call,
    Situation,
    SurveyorReply,
    compact,
    count,
    elided,
    json_after,
    leading_items,
    leading_rows,
)

# --- `SURVEY.md`: the survey as a page that people read. A function of what was read; no time, no order of ---
#
# events.

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


# --- The surveyor as observer, reflector or summariser: shortens what it is given, by fixed rules, citing what ---
#
# it rests on.

ROLES = frozenset({"observer", "reflector", "summarizer", "summariser"})
_ENTRY = re.compile(r"^\s*(?:[-*>]\s*)?[\[(<]?#(\d+)\b[^\n]*", re.MULTILINE)
_HEAD = re.compile(r"^[^\S\n]*(?:user|assistant|result|tool_result)\b\s*[\])>:]*")
"""What stands between an entry's number and its text; `calls list_folder` stays, it says what was done."""
_WIDTH = 160
_SHARE = 0.15
"""Of the length of what is digested."""
_LEAST, _MOST = 400, 3_000


def digest(texts: list[str]) -> str:
    """One line for each entry `#n …` of the texts, newest kept first when there is too much; plain lines if
    there are none.

    The last cursor that the texts hold is kept word for word, since all further work of the surveyor hangs on
    it.
    """
    whole = "\n".join(texts)
    room = int(min(_MOST, max(_LEAST, len(whole) * _SHARE)))
    cursor = json_after(whole, CURSOR, last=True)
    tail = f"{CURSOR} {compact(cursor)}" if cursor else ""
    entries = list(_ENTRY.finditer(whole))
    if entries:
        lines = [_line(whole, entries, index) for index in range(len(entries))]
    else:
        lines = [f"- {_short(line)}" for line in whole.splitlines() if line.strip() and CURSOR not in line]
    kept: list[str] = []
    room -= len(tail)
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 0 and kept:
            break
        kept.append(line)
    left_out = len(lines) - len(kept)
    if left_out and entries:
        first, last = entries[0][1], entries[left_out - 1][1]
        kept.append(
            f"- #{first} to #{last}: {left_out} earlier entries, in short: {_short(lines[0][2:], 80)}"
        )
    return "\n".join([*reversed(kept), *([tail] if tail else [])])


def _line(whole: str, entries: list[re.Match[str]], index: int) -> str:
    """An entry's own line, and the beginning of what follows it."""
    entry = entries[index]
    end = entries[index + 1].start() if index + 1 < len(entries) else len(whole)
    text = whole[entry.end(1) : end].partition(CURSOR)[0]
    said = _HEAD.sub("", text, count=1).strip(" ])>\n")
    return f"- {_short(said)} (#{entry[1]})"


def _short(text: str, width: int = _WIDTH) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


WHOLE = "figures/all"
SURVEY, REPORT = "survey.json", "SURVEY.md"
FORMAT = "watchkeeper-survey/1"

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
)
"""What the report shows, where it stands, and how many characters of it are read."""

MOST_LOOKS = 12
"""What the report shows must be in sight together, so all of it is read again when one reading fails."""

_ROWS = frozenset({"largest", "notes", "entry_points", "places", "unreadable", "skipped"})


def write(situation: Situation, context_window: int) -> SurveyorReply:
    """The writer's next reply."""
    return _Writer(situation, context_window).next_move()


class _Writer:
    """One turn. `state` is the cursor in the making."""

    def __init__(self, situation: Situation, context_window: int) -> None:
        self.situation = situation
        self.share = min(1.0, context_window / 16_000)
        self.scope = situation.scope or {}
        inputs = self.scope.get("inputs")
        self.inputs: dict[str, str] = inputs if isinstance(inputs, dict) else {}
        old = situation.cursor
        if old is None or old.get("role") != "writer" or situation.assigned_again:
            old = None
        self.started = old is not None
        self.state: dict[str, Any] = old or {
            "role": "writer",
            "phase": "check",
            "key": situation.key,
            "missing": [],
            "scope": self.scope,
        }
        if self.state["phase"] == "failed":
            self.started = False
            self.state |= {"phase": "check", "missing": [], "tries": 0}
        self.outcomes = list(situation.outcomes) if self.started else []
        self.calls: list[Call] = []
        self.said: list[str] = []

    def next_move(self) -> SurveyorReply:
        state, told = self.state, self.situation.steering.acknowledgement
        if self.situation.finished:
            return SurveyorReply(f"{told}The survey is written, as {REPORT} and {SURVEY}.")
        essential = [o for o in self.outcomes if o.name != "recall"]
        failed = [o for o in essential if o.failed]
        if not essential:
            self._begin(state["phase"])
        elif state["phase"] == "check":
            self._check()
        elif state["phase"] == "look" and any(o.elided for o in essential) and state.get("share", 1) > 1 / 8:
            # What was read did not fit: less of each list does.
            state["share"] = state.get("share", 1) / 2
            self.calls += self._readings()
        elif failed and any(elided(o.arguments) for o in failed):
            self._begin(state["phase"])
        elif not failed:
            state["tries"] = 0
            self._succeeded(state["phase"])
        else:
            state["tries"] = state.get("tries", 0) + 1
            patience = MOST_LOOKS if state["phase"] == "look" else MOST_ATTEMPTS
            if not request.exhausted(state["tries"], failed, patience):
                self.said.append(f"That failed; I try again ({request.reason(failed)}).")
                # What was read must be in sight together, so all of it is read again.
                self.calls += self._readings() if state["phase"] == "look" else request.again(failed)
            else:
                state["phase"] = "failed"
                return SurveyorReply(
                    f"{told}FAILED: the survey could not be written: {request.reason(failed)}", state
                )
        if state["phase"] == "done":
            return SurveyorReply(told + self._result())
        return SurveyorReply(told + " ".join(self.said), state, self.calls)

    def _begin(self, phase: str) -> None:
        """Make a phase's calls; also when the reply that made them is out of sight."""
        if phase == "check":
            self.said.append(
                f"I am the offline surveyor. First: are the figures of all {len(self.inputs)} parts there?"
            )
            self.calls += [_reading(name, "/totals", 400) for name in self.inputs]
            if not self.inputs:
                self._merge()
        elif phase == "merge":
            self._merge()
        elif phase == "survey":
            self._survey()
        else:
            # The report is written from readings, which are out of sight too.
            self.state["phase"] = "look"
            self.calls += self._readings()

    def _check(self) -> None:
        failed = [o for o in self.outcomes if o.name == "read_artifact" and o.failed]
        self.state["tries"] = self.state.get("tries", 0) + 1
        doubtful = [o for o in failed if o.transient]
        gone = [o for o in failed if not o.transient]
        if doubtful and request.exhausted(self.state["tries"], doubtful):
            gone, doubtful = failed, []
        missing = {*self.state["missing"], *(str(o.arguments.get("ref")) for o in gone)}
        self.state["missing"] = [name for name in self.inputs if name in missing]
        if doubtful:
            self.said.append("Some figures did not arrive; I ask again.")
            self.calls += request.again(doubtful)
            return
        self.state["tries"] = 0
        self._merge()

    def _merge(self) -> None:
        there = [name for name in self.inputs if name not in self.state["missing"]]
        self.state["phase"] = "merge"
        if there:
            self.said.append(f"I join the figures of {count(len(there), 'part')}.")
            self.calls.append(("merge_artifacts", {"inputs": there, "name": WHOLE}))
        else:
            self.said.append("There are no figures to join.")
            self.calls.append(("save_artifact", {"name": WHOLE, "content": no_figures()}))

    def _succeeded(self, phase: str) -> None:
        if phase == "merge":
            self._survey()
        elif phase == "survey":
            self.state["phase"] = "look"
            self.said.append("The machine form is saved. I read what the report shows.")
            self.calls += self._readings()
            if "recall" in self.situation.tools:
                self.calls.append(("recall", {"query": "what the files of this workspace begin with"}))
        elif phase == "look":
            self._report()
        else:
            self.state["phase"] = "done"

    def _survey(self) -> None:
        self.state["phase"] = "survey"
        self.said.append("I save the machine form.")
        self.calls.append(("save_artifact", {"name": SURVEY, "content": self._document()}))

    def _document(self) -> dict[str, Any]:
        """`survey.json`, every figure and list taken from the joined figures by reference."""

        def total(name: str) -> dict[str, Any]:
            return {"$artifact": WHOLE, "$pointer": f"/totals/{name}"}

        def rows(name: str, *columns: str) -> dict[str, Any]:
            include: dict[str, Any] = {"$artifact": WHOLE, "$pointer": f"/{name}", "$sort": True}
            return include | {"$columns": list(columns)} if columns else include

        largest = {"$artifact": WHOLE, "$pointer": "/largest/items", "$columns": ["path", "bytes", "lines"]}
        skipped: Any = rows("skipped")
        if self.scope.get("left_out"):
            skipped = {"$merge": [skipped, [f"{name} (on request)" for name in self.scope["left_out"]]]}
        return {
            "format": FORMAT,
            "workspace": self.scope.get("workspace", "workspace"),
            "written_by": "offline/surveyor, a fixed program and not an LLM",
            **{
                name: total(name)
                for name in ("files", "bytes", "lines", "folders", "links", "other", "binary_files")
            },
            "languages": rows("languages"),
            "largest": largest,
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
            "skipped": skipped,
            "missing_parts": self._missing(),
            "definitions": DEFINITIONS,
        }

    def _missing(self) -> list[str]:
        return [self.inputs.get(name, name) for name in self.state["missing"]]

    def _readings(self) -> list[Call]:
        share = self.share * float(self.state.get("share", 1))
        return [_reading(name, pointer, int(limit * share)) for _, name, pointer, limit in _SHOWN]

    def _report(self) -> None:
        found: dict[tuple[str, str], str] = {
            (str(o.arguments.get("ref")), str(o.arguments.get("pointer"))): o.text
            for o in self.outcomes
            if o.name == "read_artifact" and not o.failed
        }
        parts: dict[str, Any] = {}
        for label, name, pointer, _ in _SHOWN:
            text = found.get((name, pointer), "")
            parts[label], whole = leading_rows(text) if label in _ROWS else leading_items(text)
            parts[f"{label}_whole"] = whole
        reading = Reading(
            workspace=str(self.scope.get("workspace", "workspace")),
            parts=parts,
            missing=self._missing(),
        )
        totals = reading.totals
        self.state["sums"] = {
            name: totals.get(name, 0) for name in ("files", "bytes", "lines", "todo", "fixme")
        }
        self.state["phase"] = "report"
        self.said.append("I write the report.")
        self.calls.append(("save_artifact", {"name": REPORT, "content": report(reading)}))

    def _result(self) -> str:
        sums = self.state.get("sums") or {}
        todos = int(sums.get("todo", 0)) + int(sums.get("fixme", 0))
        missing = self._missing()
        lacking = f" Missing: {', '.join(missing)}." if missing else ""
        return (
            f"The survey is written, as {REPORT} and {SURVEY}: {count(sums.get('files', 0), 'file')}, "
            f"{count(sums.get('bytes', 0), 'byte')}, {count(sums.get('lines', 0), 'line')}, "
            f"{count(todos, 'TODO or FIXME', 'TODOs and FIXMEs')}.{lacking}"
        )


def _reading(name: str, pointer: str, limit: int) -> Call:
    return "read_artifact", {"ref": name, "pointer": pointer, "limit": limit}
