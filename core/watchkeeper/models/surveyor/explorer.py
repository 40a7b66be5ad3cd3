"""The surveyor as explorer: pages through its part of the folder, and saves the figures of each page as it
goes.

Phases: `list` (a page was asked for), `read` (all is listed, some files are being read), `close` (the joined
figures are being saved), `done`, `failed`. The cursor of a reply says how things stand once its calls have
succeeded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from watchkeeper.models.surveyor import request
from watchkeeper.models.surveyor.request import (
    Call,
    Situation,
    SurveyorReply,
    ToolOutcome,
    count,
    folder_page,
)

# --- The figures of one page of `list_folder`, in the form that adds up: joining pages' figures gives a ---
#
# folder's.

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


ROLLED_PAGES = 16
"""So many pages' figures are joined into one artifact, so that naming them all stays short."""
LEAST_PAGE_BYTES = 1_500
READ_LINES = 30
_READABLE_BYTES = 200_000
_READABLE_LINE = 160
_STARTS_READ = 2
MOST_REREADS = 6
"""How often files are read again, in all, because reading was interrupted."""

DEFAULT_SCOPE: dict[str, Any] = {"task": "workspace", "parts": [{"path": "."}]}
"""For an assignment that names no part: all of it."""


def explore(situation: Situation, page_bytes: int) -> SurveyorReply:
    """The explorer's next reply."""
    return _Explorer(situation, page_bytes).next_move()


class _Explorer:
    """One turn. `state` is the cursor in the making."""

    def __init__(self, situation: Situation, page_bytes: int) -> None:
        self.situation = situation
        self.scope = situation.scope or DEFAULT_SCOPE
        self.parts: list[dict[str, Any]] = self.scope.get("parts") or DEFAULT_SCOPE["parts"]
        self.output = f"figures/{self.scope.get('task') or 'workspace'}"
        old = situation.cursor
        if old is None or old.get("role") != "explorer":
            old = None
        self.started = old is not None
        self.state: dict[str, Any] = old or self._fresh(page_bytes)
        self.calls: list[Call] = []
        self.said: list[str] = []
        self.outcomes = list(situation.outcomes) if self.started else []

    def _fresh(self, page_bytes: int) -> dict[str, Any]:
        return {
            "role": "explorer",
            "phase": "list",
            "key": self.situation.key,
            "scope": self.scope,
            "part": 0,
            "page": 0,
            "next": self._first_cursor(0),
            "size": page_bytes,
            "totals": {"files": 0, "folders": 0, "bytes": 0, "lines": 0, "todos": 0},
            "big": [],
        }

    def next_move(self) -> SurveyorReply:
        state, steering = self.state, self.situation.steering
        if self.situation.finished:
            return SurveyorReply(
                f"{steering.acknowledgement}My part is finished; the figures are in {self.output}."
            )
        if self.situation.assigned_again and state["scope"] != self.scope:
            self.state = state = self._fresh(state["size"])
            self.outcomes = []
        if state["phase"] == "failed":
            state["phase"], self.outcomes = state.pop("was"), []
            state.pop("tries", None)
            if state["phase"] != "list":
                self.state = state = self._fresh(state["size"])
        if steering.skip:
            state["skip"] = sorted({*state.get("skip", ()), *steering.skip})
        if steering.stop:
            state["stop"] = True
        failed_saves = [o for o in self.outcomes if o.failed and o.name == "save_artifact"]
        if failed_saves:
            state["tries"] = state.get("tries", 0) + 1
            if request.exhausted(state["tries"], failed_saves):
                return self._give_up(request.reason(failed_saves))
            if any(outcome.elided for outcome in failed_saves):
                # What was to be saved is no longer in sight whole.
                self.state = state = self._fresh(state["size"]) | {"tries": state["tries"]}
                self.outcomes = []
            else:
                self.calls += request.again(failed_saves)
        {"list": self._list, "read": self._read, "close": self._close}[state["phase"]](failed_saves)
        if not failed_saves and not state.pop("failing", False):
            state.pop("tries", None)
        text = steering.acknowledgement + " ".join(self.said)
        if state["phase"] == "done":
            return SurveyorReply(steering.acknowledgement + self._result())
        return SurveyorReply(text, state, self.calls)

    # -- listing
    # ----------------------------------------------------------------------------------------------------

    def _list(self, failed_saves: list[ToolOutcome]) -> None:
        listed = [o for o in self.outcomes if o.name == "list_folder"]
        if not listed:
            if not self.state["page"]:
                self.said.append(f"I survey {self._label()} and count what it holds, page by page.")
            self._ask()
            return
        outcome = listed[-1]
        page = None if outcome.failed else folder_page(outcome.text)
        doubtful = page is None or outcome.elided
        if doubtful and not outcome.failed and self.state["size"] > LEAST_PAGE_BYTES:
            # It came, but shortened to fit the window: a smaller page fits.
            self.state["size"] = max(LEAST_PAGE_BYTES, self.state["size"] // 2)
            self.said.append("That page did not fit my context; I ask for a smaller one.")
            self._ask()
        elif page is None:
            if not failed_saves:
                self.state["tries"] = self.state.get("tries", 0) + 1
            self.state["failing"] = True
            if request.exhausted(self.state["tries"], [outcome]) or (
                self.state["tries"] > 1 and not outcome.transient
            ):
                self.state.pop("failing")
                self._absorb({"unreadable": "could not be listed"})
            else:
                self.said.append(
                    f"Listing {self._label()} failed; I try again ({request.reason([outcome])})."
                )
                self._ask()
        else:
            self._absorb(page)

    def _absorb(self, page: dict[str, Any]) -> None:
        """Take a page's figures, and ask for what comes next."""
        state, part = self.state, self.parts[self.state["part"]]
        figures = figures_of(page, state["big"], state.get("skip", ()))
        totals = figures["totals"]
        if page.get("unreadable"):
            totals["unreadable"] += 1
            figures.setdefault("unreadable", []).append([str(part.get("path", ".")), str(page["unreadable"])])
        first_of_part = state["next"] == self._first_cursor(state["part"])
        if first_of_part and "from" not in part and part.get("path", ".") != ".":
            totals["folders"] += 1  # The folder itself, which its own listing does not name.
        sums = state["totals"]
        for name in ("files", "folders", "bytes", "lines"):
            sums[name] += totals[name]
        sums["todos"] += totals["todo"] + totals["fixme"]
        self._choose(page.get("entries", ()))
        last = self._advance(page.get("next"))
        if last and state.get("skip"):
            left_out = [f"{name} (on request)" for name in state["skip"]]
            figures["skipped"] = [*figures.get("skipped", ()), *left_out]
        if last and state.pop("stopped_at", None):
            figures["skipped"] = [*figures.get("skipped", ()), f"{self._label()}, the rest (on request)"]
        here = f"{count(totals['files'], 'file')}, {count(totals['lines'], 'line')}"
        if not last:
            self.said.append(
                f"Page {state['page'] + 1} of {self._label()}: {here}. I save its figures and go on."
            )
            self._save_page(figures)
            self._ask()
        elif reads := self._reads():
            self.said.append(f"The last page: {here}. I read what looks most telling.")
            self._save_page(figures)
            self.calls += reads
            state["phase"] = "read"
        else:
            self.said.append(f"The last page: {here}. I join the figures as {self.output}.")
            self._finish(figures)

    def _advance(self, following: object) -> bool:
        """Move on to the next page or part; True when there is none, or a person said stop."""
        state = self.state
        if isinstance(following, str) and following:
            if state.get("stop"):
                state["stopped_at"] = following
                return True
            state["next"] = following
            return False
        if state["part"] + 1 >= len(self.parts):
            return True
        if state.get("stop"):
            state["stopped_at"] = "part"
            return True
        state["part"] += 1
        state["next"] = self._first_cursor(state["part"])
        return False

    def _first_cursor(self, index: int) -> str | None:
        part = self.parts[index]
        return f"from:{part['from']}" if "from" in part else None

    def _ask(self) -> None:
        part = self.parts[self.state["part"]]
        only = part.get("only")
        arguments: dict[str, Any] = {"path": part.get("path", "."), "recursive": only != "files"}
        if only:
            arguments["only"] = only
        if self.state["next"]:
            arguments["cursor"] = self.state["next"]
        if part.get("until"):
            arguments["until"] = part["until"]
        arguments["max_bytes"] = self.state["size"]
        self.calls.append(("list_folder", arguments))

    # -- reading
    # ----------------------------------------------------------------------------------------------------

    def _choose(self, entries: Any) -> None:
        """Note which files are worth reading: the first README, the first entry points, else the largest
        source.

        It goes by the order of files alone, so that the choice does not depend on where pages end.
        """
        choice: dict[str, Any] = self.state.setdefault("choice", {"readme": [], "starts": [], "best": [0]})
        for entry in entries:
            path, size, lines = str(entry["path"]), entry.get("bytes", 0), entry.get("lines") or 0
            plain = "\\" not in path and len(path) <= 160
            if (
                entry.get("kind") != "file"
                or not plain
                or not 0 < size <= _READABLE_BYTES
                or entry.get("unreadable")
            ):
                continue
            if not lines or size / lines > _READABLE_LINE or "todos_from" in entry:
                continue
            if path.rpartition("/")[2].lower().startswith("readme") and not choice["readme"]:
                choice["readme"] = [path]
            elif entry.get("entry_point") and len(choice["starts"]) < _STARTS_READ:
                choice["starts"].append(path)
            elif not entry.get("test") and size > choice["best"][0]:
                choice["best"] = [size, path]

    def _reads(self) -> list[Call]:
        """The calls that read what was chosen."""
        choice = self.state.get("choice", {})
        if "read" not in self.situation.tools or not choice:
            return []
        paths = [*choice["readme"], *choice["starts"]] or choice["best"][1:]
        return [("read", {"file_path": path, "view_range": [1, READ_LINES]}) for path in paths]

    def _read(self, failed_saves: list[ToolOutcome]) -> None:
        reads = [o for o in self.outcomes if o.name == "read"]
        interrupted = not reads or any(o.transient for o in reads)
        tries = self.state.get("reads_again", 0)
        if failed_saves or (interrupted and tries < MOST_REREADS):
            # The pages must be there before they are joined, and what was read must be in sight together.
            self.state["reads_again"] = tries + 1
            self.said.append("That was interrupted; I do it again.")
            self.calls += self._reads()
            return
        notes = []
        for outcome in reads:
            if not outcome.failed and (words := first_words(outcome.text)):
                notes.append([str(outcome.arguments.get("file_path")), words])
                if "remember" in self.situation.tools:
                    self.calls.append(
                        ("remember", {"text": f"{notes[-1][0]} begins: {words}", "kind": "fact"})
                    )
        self.said.append(f"I keep what I read, and join the figures as {self.output}.")
        self._finish({"notes": notes} if notes else {})

    # -- saving
    # -----------------------------------------------------------------------------------------------------

    def _save_page(self, figures: dict[str, Any]) -> None:
        self.state["page"] += 1
        page = self.state["page"]
        name, content = f"{self.output}/{page:04d}", figures
        if page % ROLLED_PAGES == 0:
            first = page - ROLLED_PAGES + 1
            earlier = [{"$artifact": f"{self.output}/{number:04d}"} for number in range(first, page)]
            name, content = f"{self.output}/{first:04d}-{page:04d}", {"$merge": [*earlier, figures]}
        self.calls.append(("save_artifact", {"name": name, "content": content}))

    def _finish(self, figures: dict[str, Any]) -> None:
        """Save the joined figures of all pages under the name that the writer knows."""
        pages = self.state["page"]
        rolled = pages // ROLLED_PAGES
        names = [f"{i * ROLLED_PAGES + 1:04d}-{(i + 1) * ROLLED_PAGES:04d}" for i in range(rolled)]
        names += [f"{number:04d}" for number in range(rolled * ROLLED_PAGES + 1, pages + 1)]
        parts: list[Any] = [no_figures(), *({"$artifact": f"{self.output}/{name}"} for name in names)]
        if figures:
            parts.append(figures)
        self.calls.append(("save_artifact", {"name": self.output, "content": {"$merge": parts}}))
        self.state["phase"] = "close"
        for spent in ("choice", "next", "big"):
            self.state.pop(spent, None)

    def _close(self, failed_saves: list[ToolOutcome]) -> None:
        if failed_saves:
            self.said.append(f"Saving failed; I save again ({request.reason(failed_saves)}).")
        else:
            self.state["phase"] = "done"

    # -- ending
    # -----------------------------------------------------------------------------------------------------

    def _label(self) -> str:
        part = self.parts[min(self.state["part"], len(self.parts) - 1)]
        path = str(part.get("path", "."))
        if "from" in part:
            return f"{part['from']} … {part.get('until', '')}".rstrip()
        if part.get("only") == "files":
            return "the workspace's own level" if path == "." else f"{path}, without its sub-folders,"
        return "the workspace" if path == "." else path

    def _result(self) -> str:
        sums = self.state["totals"]
        todos = count(sums["todos"], "TODO or FIXME", "TODOs and FIXMEs")
        return (
            f"{self._label()} holds {count(sums['files'], 'file')} in {count(sums['folders'], 'folder')}: "
            f"{count(sums['bytes'], 'byte')}, {count(sums['lines'], 'line')}, {todos}. "
            f"The figures are in the artifact {self.output}."
        )

    def _give_up(self, why: str) -> SurveyorReply:
        self.state["was"], self.state["phase"] = self.state["phase"], "failed"
        return SurveyorReply(f"FAILED: {self._label()} could not be surveyed to its end: {why}", self.state)
