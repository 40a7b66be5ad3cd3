"""The surveyor as writer: joins the figures of all parts, and writes `survey.json` and `SURVEY.md` from them.

Phases, each waiting for the results of its calls: `check` (which parts are there), `merge`, `survey` (the
machine form is being saved), `look` (what the report shows is being read), `report`, `done`, `failed`. No
figure passes through prose: `survey.json` is put together from artifacts by reference, and the report is read
from artifacts.
"""

from __future__ import annotations

from typing import Any

from watchkeeper.models.surveyor import moves
from watchkeeper.models.surveyor.figures import no_figures
from watchkeeper.models.surveyor.moves import Call, Move, count
from watchkeeper.models.surveyor.partial import leading_items, leading_rows
from watchkeeper.models.surveyor.report import DEFINITIONS, Reading, report
from watchkeeper.models.surveyor.situation import MOST_ATTEMPTS, Situation, elided

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


def write(situation: Situation, context_window: int) -> Move:
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

    def next_move(self) -> Move:
        state, told = self.state, self.situation.steering.acknowledgement
        if self.situation.finished:
            return Move(f"{told}The survey is written, as {REPORT} and {SURVEY}.")
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
            if not moves.exhausted(state["tries"], failed, patience):
                self.said.append(f"That failed; I try again ({moves.reason(failed)}).")
                # What was read must be in sight together, so all of it is read again.
                self.calls += self._readings() if state["phase"] == "look" else moves.again(failed)
            else:
                state["phase"] = "failed"
                return Move(f"{told}FAILED: the survey could not be written: {moves.reason(failed)}", state)
        if state["phase"] == "done":
            return Move(told + self._result())
        return Move(told + " ".join(self.said), state, self.calls)

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
        if doubtful and moves.exhausted(self.state["tries"], doubtful):
            gone, doubtful = failed, []
        missing = {*self.state["missing"], *(str(o.arguments.get("ref")) for o in gone)}
        self.state["missing"] = [name for name in self.inputs if name in missing]
        if doubtful:
            self.said.append("Some figures did not arrive; I ask again.")
            self.calls += moves.again(doubtful)
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
