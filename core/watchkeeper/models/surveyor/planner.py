"""The surveyor as planner: looks at the folder, makes the plan, answers what comes back, ends the session.

Phases: `look` (a page of folders was asked for), `plan` (the plan is being made), `wait` (tasks are running),
`finish` (the session is being ended), `done`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from watchkeeper.models.surveyor import request
from watchkeeper.models.surveyor.request import (
    MOST_ATTEMPTS,
    Call,
    Situation,
    SurveyorReply,
    ToolOutcome,
    count,
    folder_page,
)

# --- Dividing a folder into parts of work: by its top-level folders, large ones split, a great many small ones ---
#
# grouped.

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


SYNTHESIS = "synthesis"
REPORTS = ["SURVEY.md", "survey.json"]
_MANAGING = ("resume_task", "rerun_task", "drop_task")


def plan(situation: Situation, page_bytes: int, context_window: int) -> SurveyorReply:
    """The planner's next reply."""
    return _Planner(situation, page_bytes, context_window).next_move()


class _Planner:
    """One turn. `state` is the cursor in the making."""

    def __init__(self, situation: Situation, page_bytes: int, context_window: int) -> None:
        self.situation = situation
        self.page_bytes = page_bytes
        self.most = MOST_PARTS if context_window >= 12_000 else MOST_PARTS_SMALL_WINDOW
        old = situation.cursor
        self.state: dict[str, Any] = old if old and old.get("role") == "planner" else self._fresh()
        self.outcomes = list(situation.outcomes)
        self.calls: list[Call] = []
        self.said: list[str] = []

    def _fresh(self) -> dict[str, Any]:
        state: dict[str, Any] = {"role": "planner", "phase": "look", "key": self.situation.key}
        if self.situation.inbox and any(item.get("task") for item in self.situation.inbox):
            # The context was lost, but tasks report: so there is a plan, and it must not be made again.
            return state | {"phase": "wait", "tasks": {}, "failures": {}}
        return state | {"at": ".", "next": None, "parts": [], "tried": []}

    def next_move(self) -> SurveyorReply:
        steering = self.situation.steering
        phase = self.state["phase"]
        if steering.skip and phase == "look":
            self.state["left_out"] = sorted({*self.state.get("left_out", ()), *steering.skip})
        if steering.stop and phase in ("look", "plan"):
            self._end("failed", "Stopped on request before there was a plan.")
        else:
            {
                "look": self._look,
                "plan": self._plan,
                "wait": self._wait,
                "finish": self._finish,
                "done": self._wait,
            }[phase]()
        return SurveyorReply(steering.acknowledgement + " ".join(self.said), self.state, self.calls)

    # -- looking
    # ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        listed = self._of("list_folder")
        if not listed:
            self.said.append(
                "I am the offline surveyor: a fixed program, not an LLM. First I look at the folder."
            )
            self._ask()
            return
        outcome = listed[-1]
        page = None if outcome.failed else folder_page(outcome.text)
        if page is None or page.get("unreadable"):
            if page is None and self._try_again([outcome]):
                self.page_bytes = max(1_500, self.page_bytes // (2 * self.state["tries"]))
                self._ask()
            elif self.state["at"] == ".":
                why = str(page["unreadable"]) if page else request.reason([outcome])
                self._end("failed", f"The workspace could not be listed: {why}")
            else:
                self._next_place([Part.from_row(row) for row in self.state["parts"]])
            return
        self.state.pop("tries", None)
        self._absorb(page)

    def _absorb(self, page: dict[str, Any]) -> None:
        state, at = self.state, self.state["at"]
        if "workspace" in page:
            state["workspace"] = page["workspace"]
        found = [
            folder_part(at, str(entry["path"]), int(entry.get("files", 0)))
            for entry in page.get("entries", ())
            if entry.get("kind") == "dir"
        ]
        if page.get("loose"):
            found.insert(0, Part(at))
        parts = [Part.from_row(row) for row in state["parts"]]
        if at == ".":
            parts = grouped([*parts, *found], self.most)
        else:
            parts = self._split(parts, at, found)
        state["parts"] = [part.to_row() for part in parts]
        if page.get("next"):
            state["next"] = page["next"]
            self.said.append("There is more; I look on.")
            self._ask()
            return
        self._next_place(parts)

    @staticmethod
    def _split(parts: list[Part], at: str, found: list[Part]) -> list[Part]:
        """Put a large folder's own parts in its place, then next to those that came before."""
        whole = next(
            (index for index, part in enumerate(parts) if part.count == 1 and part.first == at), None
        )
        if whole is not None:
            if not any(not part.loose for part in found):
                return parts
            limit = splits(parts[whole].files)
            folders = [part for part in found if not part.loose]
            # The loose part also stands for the folder itself, so it is there even if nothing lies loose.
            return [*parts[:whole], Part(at), *grouped(folders, limit), *parts[whole + 1 :]]
        inside = [index for index, part in enumerate(parts) if part.parent == at and not part.loose]
        folders = [parts[index] for index in inside] + [part for part in found if not part.loose]
        limit = max(2, splits(sum(part.files for part in folders)))
        return [*parts[: inside[0]], *grouped(folders, limit), *parts[inside[-1] + 1 :]]

    def _next_place(self, parts: list[Part]) -> None:
        state = self.state
        state["next"] = None
        worthwhile = [path for path in to_split(parts, self.most) if path not in state["tried"]]
        if worthwhile:
            state["at"] = worthwhile[0]
            state["tried"].append(worthwhile[0])
            self.said.append(f"{state['at']} is large; I look at how it divides.")
            self._ask()
            return
        state["phase"] = "plan"
        self._create(grouped(parts, self.most))

    def _ask(self) -> None:
        arguments: dict[str, Any] = {
            "path": self.state["at"],
            "only": "folders",
            "max_bytes": self.page_bytes,
        }
        if self.state["next"]:
            arguments["cursor"] = self.state["next"]
        self.calls.append(("list_folder", arguments))

    # -- planning
    # ---------------------------------------------------------------------------------------------------

    def _create(self, parts: list[Part]) -> None:
        state = self.state
        parts = [part for part in parts if part.count != 1 or part.first not in state.get("left_out", ())]
        names = task_names(parts)
        explorers = (
            f"{count(len(parts), 'explorer')}, one for each part"
            if parts
            else "no explorer, for the folder is empty"
        )
        self.said.append(f"The plan: {explorers}, then a synthesis that builds on them.")
        self.calls.append(("create_plan", {"goal": self._goal(), "tasks": self._tasks(parts, names)}))
        state["tasks"] = {name: part.label() for name, part in zip(names, parts, strict=True)}
        state["failures"] = {}
        for spent in ("at", "next", "tried", "parts", "tries"):
            state.pop(spent, None)

    def _tasks(self, parts: list[Part], names: list[str]) -> list[dict[str, Any]]:
        tasks = []
        for part, name in zip(parts, names, strict=True):
            scope = {"task": name, "parts": [part.scope()]}
            text = f"{part.instructions()} Save its figures."
            tasks.append(
                {
                    "name": name,
                    "title": f"Explore {part.label()}",
                    "instructions": f"{text}\n\nscope: {request.compact(scope)}",
                    "role": "explorer",
                    "expected_outputs": [f"figures/{name}"],
                }
            )
        inputs = {f"figures/{name}": part.label() for name, part in zip(names, parts, strict=True)}
        whole: dict[str, Any] = {"workspace": self.state.get("workspace", "workspace"), "inputs": inputs}
        if self.state.get("left_out"):
            whole["left_out"] = self.state["left_out"]
        tasks.append(
            {
                "name": SYNTHESIS,
                "title": "Write the survey",
                "instructions": "Join the figures of all parts, and write SURVEY.md, for people, and survey.json, for programs. "
                f"Say which parts are missing, if any are.\n\nscope: {request.compact(whole)}",
                "role": "writer",
                "depends_on": names,
                "inputs": list(inputs),
                "expected_outputs": REPORTS,
            }
        )
        return tasks

    def _goal(self) -> str:
        text = self.situation.assignment.removeprefix("# Goal").strip()
        return text.partition("\n\n")[0].strip()[:400] or "Survey the folder."

    def _plan(self) -> None:
        made = self._of("create_plan")
        failed = [outcome for outcome in made if outcome.failed]
        if made and not failed:
            self.state["phase"] = "wait"
            self.state.pop("tries", None)
            self._wait()
        elif any("already" in outcome.text for outcome in failed):
            self.state["phase"] = "wait"
            self._wait()
        elif failed and any(outcome.elided for outcome in failed):
            # The plan is no longer in sight whole: it is made from the folder again.
            self.state = self._fresh()
            self.outcomes = []
            self._look()
        elif failed and self._try_again(failed):
            self.said.append("Making the plan failed; I try again.")
            self.calls += request.again(failed)
        elif failed:
            self._end("failed", f"The plan could not be made: {request.reason(failed)}")
        else:
            # The reply that made the plan is out of sight, and with it what came of it: look again, then make
            # it.
            self.state = self._fresh()
            self._look()

    # -- waiting
    # ----------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        failed = [outcome for outcome in self._of(*_MANAGING) if outcome.failed]
        if failed:
            self._fall_back(failed)
        else:
            self.state.pop("tries", None)
        ended: str | None = None
        nudged = False
        for item in self.situation.inbox:
            kind, task = item.get("kind"), str(item.get("task", ""))
            result = str(item.get("result", ""))
            if kind == "task_done" and not result.startswith("FAILED:"):
                self.said.append(f"{task} is done.")
                if task == SYNTHESIS:
                    ended = result
            elif kind == "task_done":
                self._failed(task, result)
            elif kind == "task_failed":
                self._failed(task, str(item.get("error", "")))
            elif kind == "task_cancelled":
                self.said.append(f"{task} was cancelled; the survey goes on without it.")
                self._drop(task, "cancelled by a person")
            elif kind == "task_paused":
                self.said.append(f"{task} is paused; it continues when it is resumed.")
            elif kind == "nudge":
                nudged = True
        self._steered()
        dropped = any(call[1].get("task") == SYNTHESIS for call in self.calls if call[0] == "drop_task")
        if ended is not None:
            self._end("done", _summary(ended))
        elif dropped:
            self.state["phase"] = "finish"
            self.state["gave_up"] = (
                "Stopped on request." if self.situation.steering.stop else "The synthesis was given up."
            )
        elif nudged and not self.calls:
            self._end(
                "done" if self.state.get("summary") else "failed",
                self.state.get("summary") or "No survey was written.",
            )
        elif not self.calls:
            self.said.append("I wait for the results of the tasks.")

    def _failed(self, task: str, why: str) -> None:
        """The first failure resumes a task, the second runs it anew, the third gives it up."""
        failures = self.state.setdefault("failures", {})
        failures[task] = failures.get(task, 0) + 1
        why = " ".join(why.split())[:120]
        if failures[task] == 1:
            self.said.append(f"{task} failed ({why}). It continues where it stopped.")
            self.calls.append(("resume_task", {"task": task}))
        elif failures[task] == 2:
            self.said.append(f"{task} failed again ({why}). It runs anew.")
            self.calls.append(("rerun_task", {"task": task, "fresh": True}))
        else:
            self.said.append(f"{task} failed a third time ({why}). The survey goes on without it.")
            self._drop(task, "failed three times")

    def _drop(self, task: str, why: str) -> None:
        self.calls.append(("drop_task", {"task": task, "reason": why}))

    def _fall_back(self, failed: list[ToolOutcome]) -> None:
        """A task that cannot be resumed is run anew; one that cannot be run anew is dropped."""
        if not self._try_again(failed):
            self.said.append(f"I could not change the plan: {request.reason(failed)}")
            self.state.pop("tries", None)
            return
        for outcome in failed:
            task = outcome.arguments.get("task")
            if outcome.transient:
                self.calls.append((outcome.name, outcome.arguments))
            elif outcome.name == "resume_task":
                self.calls.append(("rerun_task", {"task": task}))
            elif outcome.name == "rerun_task":
                self._drop(str(task), "could not be run again")

    def _steered(self) -> None:
        steering, tasks = self.situation.steering, self.state.get("tasks", {})
        if steering.stop:
            for task in [*tasks, SYNTHESIS]:
                self._drop(task, "stopped on request")
        for name in () if steering.stop else steering.skip:
            for task, label in tasks.items():
                if name in (task, label):
                    self.said.append(f"I drop {task}.")
                    self._drop(task, "skipped on request")

    # -- ending
    # -----------------------------------------------------------------------------------------------------

    def _end(self, status: str, summary: str) -> None:
        self.state["phase"] = "finish"
        if status == "done":
            self.state["summary"] = summary[:400]
        self.said.append("The survey is written; the session is done." if status == "done" else summary)
        self.calls.append(("finish_session", {"summary": summary, "status": status}))

    def _finish(self) -> None:
        if why := self.state.pop("gave_up", None):
            self._end("failed", f"{why} No survey was written.")
            return
        ended = self._of("finish_session")
        failed = [outcome for outcome in ended if outcome.failed]
        if ended and not failed:
            self.state["phase"] = "done"
            self.state.pop("tries", None)
            self.said.append("Done.")
        elif any("not yet" in outcome.text for outcome in failed) or not ended:
            self.state["phase"] = "wait"
            self._wait()
        elif self._try_again(failed):
            self.calls += request.again(failed)
        else:
            self.said.append(f"The session could not be ended: {request.reason(failed)}")

    def _of(self, *names: str) -> list[ToolOutcome]:
        return [outcome for outcome in self.outcomes if outcome.name in names]

    def _try_again(self, failed: list[ToolOutcome]) -> bool:
        self.state["tries"] = self.state.get("tries", 0) + 1
        return self.state["tries"] < MOST_ATTEMPTS and not request.exhausted(self.state["tries"], failed)


def _summary(result: str) -> str:
    """A task's result without the cursor that its reply carried."""
    return " ".join(result.partition("\ncursor:")[0].split())[:600] or "The survey is written."
