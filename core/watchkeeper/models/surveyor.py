"""`offline/surveyor`: a deterministic stand-in for a language model, for trying the system with no key and no
network.

It is not an LLM, and says so. It drives the real tool protocol over a real folder: as planner it makes a plan
from what the folder holds, as explorer it counts, as writer it reports. Promises: each reply is a function of
the request alone, and what comes next follows from the tool calls and results in sight, so that compaction,
kills and resumes cannot change what is surveyed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, takewhile
from typing import Any, Literal

from watchkeeper.records.messages import (
    Block,
    Delta,
    ErrorKind,
    ModelError,
    ModelEvent,
    ModelRequest,
    Purpose,
    Reply,
    Usage,
)
from watchkeeper.records.ports import Clock, SystemClock
from watchkeeper.records.text import one_line, plural

# --- The surveyor's planner and explorers, and how they read a request ------------------------------------
#
# Promises:
# - What comes next follows from the last reply's tool calls and their results: no reply carries a cursor.
# - Every call may be repeated. Pages are saved under numbered names, each with all pages before it, so that a
#   repeated call counts nothing twice.
# - An agent whose last calls are out of sight starts again, and comes to the same result.

# Reading a request.

Call = tuple[str, dict[str, Any]]
"""A tool's name and its input."""

SCOPE = "scope:"
"""Begins the line of an assignment that says what to survey, as JSON."""

MOST_ATTEMPTS = 3
"""How often a call that keeps failing is made in all; interrupted calls a little more often."""

LEAST_PAGE_BYTES = 1_500
_OPTIONAL = frozenset({"read", "remember", "recall"})
"""Tools that a survey can do without."""
_TRANSIENT = re.compile(r"interrupt|unknown|timed? ?out|time-out|unavailable|try again|busy|cancelled", re.I)
_DENIED = re.compile(r"denied|not allowed|permission", re.I)
_SHORTENED = re.compile(r"\[…(?:\]| \d+ characters left out, whole: )")
_STOP = re.compile(r"(?:^|[.!?:;\n])\s*(?:please\s+)?stop\b(?!ped)", re.I)
_SKIP = re.compile(r"(?:^|[.!?:;,\n]|\band\b)\s*(?:please\s+)?skip\s+[`'\"]?([^\s`'\",;]+)", re.I)


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """A tool call of the last reply, with its result."""

    name: str
    arguments: dict[str, Any]
    text: str
    failed: bool

    @property
    def transient(self) -> bool:
        """It failed in a way that trying again may mend."""
        return self.failed and _TRANSIENT.search(self.text[:400]) is not None

    @property
    def denied(self) -> bool:
        """A person or the configuration refused the call."""
        return self.failed and not self.transient and _DENIED.search(self.text[:400]) is not None


def is_shortened(value: object) -> bool:
    """Whether text was left out of a value to fit the window. (A file's own text may look alike.)"""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _SHORTENED.search(text) is not None


@dataclass(frozen=True, slots=True)
class SurveyorReply:
    """Words and tool calls. Without calls the reply ends the turn."""

    text: str
    calls: Sequence[Call] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """A request, as far as the surveyor understands it."""

    role: str
    tools: frozenset[str]
    window: int
    """Tokens of the context window."""
    assignment: str
    """The newest assignment that is in sight."""
    assigned_again: bool
    """The assignment came after the last reply."""
    last_text: str | None
    """The words of the last reply; None where no reply is in sight."""
    outcomes: tuple[ToolOutcome, ...]
    history: tuple[tuple[Call, ...], ...]
    """The calls of the replies in sight, newest first."""
    inbox: tuple[dict[str, Any], ...]
    """What arrived since the last reply."""

    @property
    def scope(self) -> dict[str, Any]:
        """What the assignment says to survey; empty where it does not say."""
        value = leading_json(self.assignment.partition(f"\n{SCOPE}")[2].partition("\n")[0])
        return value if isinstance(value, dict) else {}

    @property
    def page_bytes(self) -> int:
        """The size of a folder page that suits the window."""
        return max(2_000, min(9_000, self.window * 9 // 16))

    @property
    def steering(self) -> str:
        """What people said since the last reply."""
        return "\n".join(str(item.get("text", "")) for item in self.inbox if item.get("kind") == "steer")

    @property
    def stop(self) -> bool:
        """Whether a person said stop."""
        return _STOP.search(self.steering) is not None

    @property
    def skip(self) -> list[str]:
        """Paths that a person wants left out."""
        names = [name.rstrip("/.") for name in _SKIP.findall(self.steering)]
        return [name for name in names if name and not name.startswith("/") and ".." not in name]

    @property
    def acknowledgement(self) -> str:
        """A sentence to begin the reply with; empty when no person said anything."""
        said = one_line(self.steering, 100)
        return f"Noted: “{said}” " if said else ""

    def outcome_of(self, *names: str) -> ToolOutcome | None:
        """The newest call of one of these tools in the last reply."""
        return next((outcome for outcome in reversed(self.outcomes) if outcome.name in names), None)

    @property
    def failures(self) -> list[ToolOutcome]:
        """The failed calls of the last reply that matter."""
        return [one for one in self.outcomes if one.failed and (one.name not in _OPTIONAL or one.transient)]

    @property
    def ended(self) -> bool:
        """The last reply was the last of its assignment, and no failure."""
        return self.last_text is not None and not self.assigned_again and "FAILED:" not in self.last_text

    def try_again(self) -> SurveyorReply | None:
        """The last reply's calls once more, where one failed; None where none did, or where it is pointless.

        All calls are made again, so that what they bring is in sight together.
        """
        failures = self.failures
        tries = len(list(takewhile(lambda calls: calls == self.history[0], self.history)))
        most = min(10, 2 + len(self.outcomes)) if all(one.transient for one in failures) else MOST_ATTEMPTS
        if not failures or tries >= most or any(one.denied for one in failures):
            return None
        return SurveyorReply(f"That failed; I try again ({reason(failures)}).", self.history[0])


def understand(request: ModelRequest, window: int) -> Turn:
    """Read a request. Tolerates whatever compaction left between the first message and the last ones."""
    messages = request.messages
    replies = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
    last = replies[-1] if replies else -1
    said = [text for message in messages[last + 1 :] for text in texts_of(message)]
    assignments = [
        text
        for message in messages
        if message.get("role") == "user"
        for text in texts_of(message)
        if text.startswith("# Task:")
    ]
    again = last >= 0 and any(text.startswith("# Task:") for text in said)
    history = tuple(
        tuple(
            (str(block.get("name")), _plain(block.get("input"))) for block in _blocks(messages[i], "tool_use")
        )
        for i in reversed(replies)
    )
    return Turn(
        role=_role(request),
        tools=frozenset(tool.name for tool in request.tools),
        window=window,
        assignment=assignments[-1] if assignments else "\n".join(texts_of(messages[0])) if messages else "",
        assigned_again=again,
        last_text="\n".join(texts_of(messages[last])) if last >= 0 else None,
        outcomes=tuple(_outcomes(messages, last)) if last >= 0 and not again else (),
        history=history,
        inbox=tuple(item for text in said for item in _inbox(text)),
    )


def _role(request: ModelRequest) -> str:
    first = request.system.lstrip().partition("\n")[0]
    if first.lower().startswith("role:"):
        return first[5:].strip().lower()
    if request.purpose in (Purpose.OBSERVER, Purpose.REFLECTOR):
        return str(request.purpose)
    names = {tool.name for tool in request.tools}
    return "planner" if "create_plan" in names else "explorer" if "list_folder" in names else ""


def _blocks(message: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    blocks = content if isinstance(content, Sequence) else ()
    return [block for block in blocks if isinstance(block, dict) and block.get("type") == kind]


def texts_of(message: Mapping[str, Any]) -> list[str]:
    """The texts of a message, without tool calls and results."""
    return [str(block.get("text", "")) for block in _blocks(message, "text")]


def _plain(arguments: object) -> dict[str, Any]:
    """A call's input as a plain object: those of a request cannot be changed."""
    value = json.loads(json.dumps(arguments))
    return value if isinstance(value, dict) else {}


def _outcomes(messages: Sequence[dict[str, Any]], last: int) -> Iterator[ToolOutcome]:
    results = {
        block.get("tool_use_id"): block
        for message in messages[last + 1 :]
        for block in _blocks(message, "tool_result")
    }
    for block in _blocks(messages[last], "tool_use"):
        result = results.get(block.get("id"))
        yield ToolOutcome(
            name=str(block.get("name")),
            arguments=_plain(block.get("input")),
            text="".join(texts_of(result)) if result else "interrupted, outcome unknown",
            failed=result is None or bool(result.get("is_error")),
        )


def _inbox(text: str) -> list[dict[str, Any]]:
    said = [{"kind": "steer", "text": found} for found in _SAID.findall(text)]
    nudged = [{"kind": "nudge"}] if re.search(r"^Nothing runs any more\.", text, re.MULTILINE) else []
    items = leading_json(text.partition('\n{"inbox": ')[2])
    told = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return [*told, *said, *nudged]


_SAID = re.compile(
    r"^A person says: (.*?)(?=\n\n\{\"inbox\"|^Task \S+ |^A person |\Z)", re.MULTILINE | re.DOTALL
)


def leading_json(text: str) -> Any:
    """The JSON value that a text begins with. Of a list or an object that is cut short, the whole items at
    its beginning. None where there is neither."""
    decoder, text = json.JSONDecoder(), text.strip()[:100_000]
    close = {"[": "]", "{": "}"}.get(text[:1], "")
    ends = [match.start() for match in re.finditer(",", text)][-400:] if close else []
    for candidate in (text, *(text[:end] + close for end in reversed(ends))):
        try:
            return decoder.raw_decode(candidate)[0]
        except (ValueError, RecursionError):
            continue
    return None


# What all roles say.


def reason(outcomes: Iterable[ToolOutcome]) -> str:
    """The first failure in one short line."""
    failed = (f"{one.name}: {one_line(one.text, 160)}" for one in outcomes if one.failed)
    return next(failed, "no reason was given")


def folder_page(outcome: ToolOutcome) -> dict[str, Any] | None:
    """A page of `list_folder`, if it is whole: its entries must add up to its own totals.

    A page that was shortened to fit a window may still parse as JSON, and would then lack entries.
    """
    page = None if outcome.failed else leading_json(outcome.text)
    entries = page.get("entries") if isinstance(page, dict) else None
    totals = page.get("totals") if isinstance(page, dict) else None
    if not isinstance(entries, list) or not isinstance(totals, dict):
        return None
    if not all(isinstance(entry, dict) and "path" in entry for entry in entries):
        return None
    found = Counter(_KINDS.get(entry.get("kind"), "other") for entry in entries if "todos_from" not in entry)
    found["todos"] = sum(len(entry.get("todos", ())) for entry in entries)
    return (
        page
        if all(totals.get(name) == found[name] for name in (*_KINDS.values(), "other", "todos"))
        else None
    )


_KINDS = {"file": "files", "dir": "folders", "link": "links"}


def smaller(size: int) -> int:
    """The size of a page to ask for where one of `size` bytes did not fit the window."""
    return max(LEAST_PAGE_BYTES, size // 2)


# The planner: it lists the folders, divides them among explorers, and answers what comes back.

SYNTHESIS = "synthesis"
REPORTS = ["SURVEY.md", "survey.json"]
PARTS = "parts"
"""The artifact in which the planner keeps the parts found so far, where one page does not show them all."""
SPLIT_FILES = 1_200
"""A folder with more files than this is divided among several explorers, if it has sub-folders."""
MOST_SPLITS = 6
NAMED_CHARACTERS = 240
"""A group names its folders while their names take no more than this."""


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring sub-folders of one folder, or (`count` 0) the files that lie directly in it."""

    parent: str
    """`.` for the workspace. All paths as `list_folder` shows them."""
    first: str = ""
    last: str = ""
    count: int = 0
    files: int = 0
    names: str = ""
    """The folders, while there are not too many to name."""
    whole: bool = False
    """It is large, and cannot be divided."""

    @classmethod
    def folder(cls, parent: str, path: str, files: int) -> Part:
        """One sub-folder with everything below it."""
        return cls(parent, path, path, 1, files, path)

    def joined(self, other: Part) -> Part:
        """This part and the next one as one."""
        names = f"{self.names}, {other.names}" if self.names and other.names else ""
        return replace(
            self,
            last=other.last,
            count=self.count + other.count,
            files=self.files + other.files,
            names=names if len(names) <= NAMED_CHARACTERS else "",
        )

    def described(self) -> tuple[str, str, dict[str, Any]]:
        """The part in a few words, in the words of an assignment, and as what an explorer must list."""
        if not self.count:
            label, where = "the loose files", "the workspace"
            if self.parent != ".":
                label, where = f"the loose files of {self.parent}", f"the folder {self.parent}"
            text = f"the files that lie directly in {where}, without its sub-folders"
            return label, text, {"path": self.parent, "only": "files"}
        if self.count == 1:
            return self.first, f"the folder {self.first} and everything below it", {"path": self.first}
        text = f"these folders and everything below them: {self.names}"
        if not self.names:
            text = f"the {self.count} folders from {self.first} to {self.last}, in the order of their bytes, and all below"
        scope = {"path": self.parent, "only": "folders", "from": self.first, "until": self.last}
        return f"{self.first} … {self.last} ({self.count} folders)", text, scope


def grouped(parts: Iterable[Part], most: int) -> list[Part]:
    """At most `most` parts (those of loose files stay alone, and may exceed it): neighbours with the fewest
    files join first."""
    left = list(parts)
    while len(left) > most:
        pairs = [
            (one.files + two.files, index)
            for index, (one, two) in enumerate(pairwise(left))
            if one.parent == two.parent and one.count and two.count
        ]
        if not pairs:
            break
        _, index = min(pairs)
        left[index : index + 2] = [left[index].joined(left[index + 1])]
    return left


def splits(files: int) -> int:
    """Into how many parts a folder of so many files is divided, besides its loose files."""
    return min(MOST_SPLITS, max(2, -(-files // SPLIT_FILES)))


def to_split(parts: Sequence[Part], most: int) -> str | None:
    """The largest folder that is worth dividing, where the number of parts allows it."""
    large = [part for part in parts if part.count == 1 and part.files > SPLIT_FILES and not part.whole]
    fitting = [part for part in large if splits(part.files) <= most - len(parts)]
    return max(fitting, key=lambda part: part.files).first if fitting else None


def with_contents(parts: Sequence[Part], at: str, found: Sequence[Part]) -> list[Part]:
    """The parts with a large folder's own parts in its place, beside those of its earlier pages."""
    inside = [i for i, part in enumerate(parts) if part.first == part.last == at or (part.parent == at)]
    old = [parts[index] for index in inside]
    folders = [part for part in (*old, *found) if part.count and part.parent == at]
    if not folders:
        return [replace(part, whole=part.whole or part.first == at) for part in parts]
    # The part of loose files also counts the folder itself, so it is there even if no file lies loose.
    new = [Part(at), *grouped(folders, splits(sum(part.files for part in folders)))]
    return [*parts[: inside[0]], *new, *parts[inside[-1] + 1 :]]


def task_names(parts: Iterable[Part]) -> list[str]:
    """A short, unique name for the task of each part."""
    names: list[str] = [SYNTHESIS]
    for part in parts:
        kind = "" if part.count == 1 else "and-on" if part.count else "loose-files"
        base = "-".join(filter(None, (_slug(part.first or part.parent), kind))) or "part"
        numbered = (base, *(f"{base}-{number}" for number in range(2, len(names) + 2)))
        names.append(next(name for name in numbered if name not in names))
    return names[1:]


def _slug(path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")[:24].strip("-")


def plan(turn: Turn) -> SurveyorReply:
    """The planner's next reply."""
    made = turn.outcome_of("create_plan")
    if turn.stop:
        return SurveyorReply("I stop.", [_drop(SYNTHESIS, "stopped on request")])
    if turn.last_text is None and all(item.get("kind") == "steer" for item in turn.inbox):
        return _ask_for_folders(turn, _GREETING, {"skip": turn.skip})
    if turn.outcome_of("list_folder"):
        return _look(turn)
    if made is None or not made.failed or "already" in made.text:
        return _respond(turn)
    again = _ask_for_folders(turn, _AGAIN) if is_shortened(made.arguments) else turn.try_again()
    return again or _finish("failed", f"The plan could not be made: {reason([made])}")


_GREETING = "I am the offline surveyor: a fixed program, not an LLM. First I look at the folder."
_AGAIN = "I look at the folder again."
_MANAGING = ("resume_task", "rerun_task", "drop_task")


def _ask_for_folders(
    turn: Turn, text: str, more: Mapping[str, Any] | None = None, before: Sequence[Call] = ()
) -> SurveyorReply:
    arguments = {
        "path": ".",
        "only": "folders",
        "details": True,
        "max_bytes": turn.page_bytes,
        **(more or {}),
    }
    given = {name: value for name, value in arguments.items() if value}
    return SurveyorReply(text, [*before, ("list_folder", given)])


def _look(turn: Turn) -> SurveyorReply:
    """Take a page of folders; ask for what comes next, or make the plan."""
    outcome, kept = turn.outcome_of("list_folder"), turn.outcome_of("save_artifact")
    assert outcome is not None
    skip = [*outcome.arguments.get("skip", ()), *turn.skip]
    at, page = str(outcome.arguments.get("path")), folder_page(outcome)
    size = int(outcome.arguments.get("max_bytes", turn.page_bytes))
    too_large = page is None and not outcome.failed and size > LEAST_PAGE_BYTES
    if turn.skip or too_large or any(is_shortened(one.arguments) for one in turn.outcomes):
        return _ask_for_folders(
            turn, _AGAIN, {"skip": skip, "max_bytes": smaller(size) if page is None else size}
        )
    again = turn.try_again()
    if again is not None:
        return again
    if page is None or page.get("unreadable"):
        why = str(page["unreadable"]) if page else reason([outcome])
        if at == ".":
            return _finish("failed", f"The workspace could not be listed: {why}")
        page = {}
    most = 24 if turn.window >= 12_000 else 12
    content = (
        kept.arguments["content"] if kept else {"workspace": page.get("workspace", "workspace"), "parts": []}
    )
    parts = [Part(**row) for row in content["parts"]]
    found = [
        Part.folder(at, str(entry["path"]), int(entry.get("files", 0)))
        for entry in page.get("entries", ())
        if entry.get("kind") == "dir"
    ]
    if at == ".":
        parts = grouped([*parts, *([Part(at)] if page.get("loose") else []), *found], most)
    else:
        parts = with_contents(parts, at, found)
    cursor, large = page.get("next"), to_split(parts, most)
    if not cursor and not large:
        return _create(turn, content["workspace"], grouped(parts, most), skip)
    rows = {"workspace": content["workspace"], "parts": [asdict(part) for part in parts]}
    text = "There is more; I look on." if cursor else f"{large} is large; I look at how it divides."
    more = {"path": at if cursor else large, "cursor": cursor, "skip": skip}
    return _ask_for_folders(turn, text, more, [("save_artifact", {"name": PARTS, "content": rows})])


def _create(turn: Turn, workspace: str, parts: Sequence[Part], left_out: Sequence[str]) -> SurveyorReply:
    names = task_names(parts)
    goal = turn.assignment.removeprefix("# Goal").strip().partition("\n\n")[0]
    skip = {"skip": left_out} if left_out else {}
    tasks: list[dict[str, Any]] = []
    inputs: dict[str, str] = {}
    for part, name in zip(parts, names, strict=True):
        label, text, where = part.described()
        inputs[f"figures/{name}"] = label
        scope = {"task": name, "label": label, "parts": [where], **skip}
        tasks.append(
            {
                "name": name,
                "title": f"Explore {label}",
                "instructions": f"Survey {text}. Save its counts.\n\n{SCOPE} {json.dumps(scope, ensure_ascii=False)}",
                "role": "explorer",
                "expected_outputs": [f"figures/{name}"],
            }
        )
    whole = {"workspace": workspace, "inputs": inputs} | ({"left_out": left_out} if left_out else {})
    tasks.append(
        {
            "name": SYNTHESIS,
            "title": "Write the survey",
            "instructions": "Add up the counts of all parts, and write SURVEY.md, for people, and survey.json, for programs. "
            f"Say which parts are missing, if any are.\n\n{SCOPE} {json.dumps(whole, ensure_ascii=False)}",
            "role": "writer",
            "depends_on": names,
            "expected_outputs": REPORTS,
        }
    )
    explorers = (
        f"{plural(len(parts), 'explorer')}, one for each part"
        if parts
        else "no explorer, for the folder is empty"
    )
    return SurveyorReply(
        f"The plan: {explorers}, then a synthesis that builds on them.",
        [("create_plan", {"goal": goal[:400] or "Survey the folder.", "tasks": tasks})],
    )


def _respond(turn: Turn) -> SurveyorReply:
    """Answer what came of the tasks; end the session when the survey is written."""
    read, ended = turn.outcome_of("read_artifact"), turn.outcome_of("finish_session")
    if ended is not None and not ended.failed:
        return SurveyorReply("Done.")
    if ended is not None and "not yet" not in ended.text:
        return turn.try_again() or SurveyorReply(f"The session could not be ended: {reason([ended])}")
    if read is not None:
        written = not read.failed and not read.text.startswith("FAILED:")
        again = turn.try_again() if read.transient else None
        return again or (
            _finish("done", read.text) if written else _finish("failed", "No survey was written.")
        )
    said: list[str] = []
    calls: list[Call] = []
    for failed in (outcome for outcome in turn.outcomes if outcome.failed):
        task = str(failed.arguments.get("task"))
        if failed.transient and turn.try_again():
            calls.append((failed.name, failed.arguments))
        elif failed.name != "drop_task":
            calls.append(_answer_to_failure(turn, task, failed.text, said))
        elif task == SYNTHESIS:
            return _finish("failed", "Stopped on request before there was a plan.")
        else:
            said.append(f"I could not change the plan: {reason([failed])}")
    for item in turn.inbox:
        task, result = str(item.get("task", "")), str(item.get("result", ""))
        title = str(item.get("title") or task)
        match item.get("kind"):
            case "task_done" if result.startswith("FAILED:"):
                calls.append(_answer_to_failure(turn, task, result, said))
            case "task_done" if task == SYNTHESIS:
                return _finish("done", result)
            case "task_done":
                said.append(f"{title}: done.")
            case "task_failed":
                calls.append(_answer_to_failure(turn, task, str(item.get("error", "")), said))
            case "task_cancelled":
                said.append(f"{title}: cancelled; the survey goes on without it.")
                calls.append(_drop(task, "cancelled by a person"))
            case "task_paused":
                said.append(f"{title}: paused; it continues when it is resumed.")
            case "nudge":
                calls.append(("read_artifact", {"ref": f"result/{SYNTHESIS}"}))
    calls += [_drop(_slug(name), "skipped on request") for name in turn.skip]
    calls = calls or list(_after_giving_up(turn, said))
    if not calls:
        said.append("I wait for the results of the tasks.")
    return SurveyorReply(" ".join(said), calls)


_ANSWERS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("resume_task", {}, "It continues where it stopped."),
    ("rerun_task", {"reason": "it failed twice", "fresh": True}, "It starts from the beginning."),
    ("drop_task", {"reason": "it failed three times"}, "The survey goes on without it."),
)
"""What the planner does when a task fails for the first, second and third time."""


def _answer_to_failure(turn: Turn, task: str, why: str, said: list[str]) -> Call:
    """The next of `_ANSWERS`. Earlier ones are counted as far as they are in sight; the tools refuse what goes
    on for too long."""
    given = {name for calls in turn.history for name, arguments in calls if arguments.get("task") == task}
    tool, more, text = _ANSWERS[min(len(given), 2)]
    said.append(f"{task} failed ({one_line(why, 120)}). {text}")
    return tool, {"task": task, **more}


def _after_giving_up(turn: Turn, said: list[str]) -> Sequence[Call]:
    """Once the synthesis is dropped: drop what is left, then end the session."""
    changed = [one for one in turn.outcomes if one.name in _MANAGING and not one.failed]
    answer = leading_json(changed[-1].text) if changed else None
    tasks = answer.get("tasks") if isinstance(answer, dict) else None
    if not isinstance(tasks, dict) or tasks.get(SYNTHESIS) != "dropped":
        return ()
    why = str(changed[-1].arguments.get("reason"))
    left = [
        name
        for name, status in tasks.items()
        if status not in ("done", "failed", "cancelled", "dropped", "stale")
    ]
    said.append("I drop the other tasks." if left else "No survey is written.")
    return [_drop(name, why) for name in left] or _finish("failed", f"No survey was written: {why}.").calls


def _drop(task: str, why: str) -> Call:
    return "drop_task", {"task": task, "reason": why}


def _finish(status: str, summary: str) -> SurveyorReply:
    text = "The survey is written; the session is done." if status == "done" else summary
    return SurveyorReply(
        text, [("finish_session", {"summary": one_line(summary, 600) or text, "status": status})]
    )


# The explorer: it pages through its part, and saves the counts of all pages so far after each.

READ_LINES = 30
LARGEST_KEPT = 20
_READABLE_BYTES = 200_000
_READABLE_LINE = 160
_TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "spec", "specs"})

_TOTALS = [
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
]
_FLAGS = {
    "binary": "binary_files",
    "test": "test_files",
    "entry_point": "entry_points",
    "unreadable": "unreadable",
}
"""Fields of an entry that are counted, by the name of their total."""
_TELLING = {"readme": 1, "starts": 2, "source": 1}
"""Which files are worth reading, and how many of each."""


def no_counts() -> dict[str, Any]:
    """The counts of nothing: every part is there, so that every pointer into added counts finds
    something."""
    return {
        "totals": dict.fromkeys(_TOTALS, 0),
        "languages": {},
        "largest": {"$largest": LARGEST_KEPT, "by": 1, "items": []},
        "tests": {},
        "entry_points": [],
        "places": [],
        "unreadable": [],
        "skipped": [],
        "notes": [],
        "telling": {name: {"$largest": most, "by": 1, "items": []} for name, most in _TELLING.items()},
    }


def counts_of(page: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of a page, in the form that `merge_json` adds up. All strings are as `list_folder` gave
    them."""
    counts = no_counts()
    totals: dict[str, int] = counts["totals"]
    for entry in page.get("entries", ()):
        path, kind = str(entry["path"]), str(entry.get("kind"))
        for line, word, text in entry.get("todos", ()):
            totals[word.lower()] += 1
            counts["places"].append([path, line, word, text])
        if "todos_from" in entry:
            continue
        totals[_KINDS.get(kind, "other")] += 1
        for flag, name in _FLAGS.items():
            if entry.get(flag):
                totals[name] += 1
                counts.get(name, []).append([path, entry[flag]])
        if kind == "file":
            _count_file(counts, entry, path)
    for rows in (counts["largest"], *counts["telling"].values()):
        # In the order of `merge_json`, so that cutting a page early and cutting the whole late agree.
        rows["items"] = sorted(rows["items"], key=lambda row: (-row[1], json.dumps(row)))[: rows["$largest"]]
    return counts


def _count_file(counts: dict[str, Any], entry: Mapping[str, Any], path: str) -> None:
    size, lines = int(entry.get("bytes", 0)), int(entry.get("lines") or 0)
    language = counts["languages"].setdefault(
        str(entry.get("language")), dict.fromkeys(("files", "bytes", "lines"), 0)
    )
    language["files"] += 1
    for sums in (counts["totals"], language):
        sums["bytes"] += size
        sums["lines"] += lines
    counts["largest"]["items"].append([path, size, entry.get("lines")])
    if entry.get("test"):
        folder = test_folder(path)
        counts["tests"][folder] = counts["tests"].get(folder, 0) + 1
    plain = "\\" not in path and len(path) <= 160 and not entry.get("unreadable")
    if plain and 0 < size <= _READABLE_BYTES and size <= lines * _READABLE_LINE:
        name = path.rpartition("/")[2].lower()
        kind = "readme" if name.startswith("readme") else "starts" if entry.get("entry_point") else "source"
        if kind != "source" or not entry.get("test"):
            counts["telling"][kind]["items"].append([path, size if kind == "source" else 0])


def test_folder(path: str) -> str:
    """Where a test file belongs: the outermost folder of tests on its path, else its own folder; ends with
    `/`."""
    names = path.split("/")[:-1]
    outermost = next((index + 1 for index, name in enumerate(names) if name in _TEST_FOLDERS), None)
    return "/".join(names[:outermost] or ["."]) + "/"


_NUMBERED = re.compile(r"^\s*\d+\s*(?:\t|→|:|\|| {2,})")
_SAYS_LITTLE = re.compile(
    r"[\W_]*$|#!|#include|<[!?]|!\[|\[!\[|@|.*(?:-\*-|SPDX|copyright)|(?:import|from|package|using|class|def|if|const|var|let|export|use)\b",
    re.IGNORECASE,
)
"""Lines that say little of a file, by how they begin."""


def first_words(text: str) -> str:
    """The first line of a file that says something, as plain text; empty if there is none."""
    for raw in text.splitlines()[:60]:
        line = _NUMBERED.sub("", raw).strip()
        plain = "".join(character if character.isprintable() else " " for character in line)
        plain = plain.strip("#=*/<>!-\"' \t").strip()
        if plain and not _SAYS_LITTLE.match(line):
            return plain if len(plain) <= 140 else plain[:139] + "…"
    return ""


def explore(turn: Turn) -> SurveyorReply:
    """The explorer's next reply."""
    return _Explorer(turn).reply()


class _Explorer:
    """One turn of an explorer."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.part: dict[str, Any] = (turn.scope.get("parts") or [{"path": "."}])[0]
        self.left_out: list[str] = turn.scope.get("skip") or []
        self.label: str = turn.scope.get("label") or str(self.part["path"])
        self.output = f"figures/{turn.scope.get('task') or 'workspace'}"
        self.named = [str(one.arguments.get("name") or one.arguments.get("ref")) for one in turn.outcomes]
        self.saved = max((name for name in self.named if name.startswith(f"{self.output}/to-")), default=None)
        """The artifact of all pages so far."""

    def reply(self) -> SurveyorReply:
        turn = self.turn
        listing = turn.outcome_of("list_folder")
        kept = [one for one in turn.outcomes if one.name in ("save_artifact", "read_artifact")]
        if not turn.outcomes and turn.ended:
            return SurveyorReply(f"My part is finished; the counts are in {self.output}.")
        if self.saved is None and self.output not in self.named and (kept or listing is None):
            return self._begin()
        failed = [one for one in turn.failures if one in kept]
        if failed or (listing is None and turn.failures):
            again = (
                self._begin()
                if any(is_shortened(one.arguments) for one in turn.outcomes)
                else turn.try_again()
            )
            if again or failed:
                why = f"FAILED: {self.label} could not be surveyed to its end: {reason(failed)}"
                return again or SurveyorReply(why)
        if listing is not None:
            return self._take_page(listing)
        if self.saved is None:
            return SurveyorReply(self._result(kept[-1]))
        if kept[-1].arguments.get("pointer") == "/telling":
            reads = self._reads(kept[-1])
            if reads:
                return SurveyorReply("I read what looks most telling.", [self._looked("/totals"), *reads])
        return self._finish()

    def _begin(self, size: int = 0) -> SurveyorReply:
        self.saved = None
        return self._ask(
            f"I survey {self.label} and count what it holds, page by page.",
            self._arguments(size or self.turn.page_bytes),
        )

    def _arguments(self, size: int, cursor: str | None = None, skip: Sequence[str] = ()) -> dict[str, Any]:
        """The input of `list_folder` for a page of the part."""
        part = self.part
        start = f"from:{part['from']}" if "from" in part else None
        arguments = {
            "path": part.get("path", "."),
            "recursive": part.get("only") != "files",
            "details": True,
            "only": part.get("only"),
            "cursor": cursor or start,
            "until": part.get("until"),
            "skip": list(dict.fromkeys([*self.left_out, *skip, *self.turn.skip])),
            "max_bytes": size,
        }
        return {name: value for name, value in arguments.items() if value not in (None, [])}

    def _ask(self, text: str, arguments: dict[str, Any]) -> SurveyorReply:
        """List a page. Which pages are saved is read off the calls, so one names the newest."""
        looked = [self._looked("/totals")] if self.saved else []
        return SurveyorReply(text, [*looked, ("list_folder", arguments)])

    def _looked(self, pointer: str) -> Call:
        return "read_artifact", {"ref": self.saved, "pointer": pointer}

    def _take_page(self, listing: ToolOutcome) -> SurveyorReply:
        """Save the counts of a page, and ask for what comes next."""
        turn, given, page = self.turn, listing.arguments, folder_page(listing)
        size = int(given.get("max_bytes", turn.page_bytes))
        if turn.skip:
            return self._ask(
                "I leave that out.", self._arguments(size, given.get("cursor"), given.get("skip", ()))
            )
        if page is None and not turn.stop:
            again = turn.try_again()
            if not listing.failed and size > LEAST_PAGE_BYTES:
                text = "That page did not fit my context; I ask for a smaller one."
                again = self._ask(text, given | {"max_bytes": smaller(size)})
            if again is not None:
                return self._begin(smaller(size)) if is_shortened(given) else again
        page = page or {"unreadable": "could not be listed"}
        counts = self._counts(page, given.get("skip", ()))
        following, number = page.get("next"), int(self.saved.rpartition("-")[2]) + 1 if self.saved else 1
        if following and turn.stop:
            counts["skipped"] = [*counts["skipped"], f"{self.label}, the rest (on request)"]
            following = None
        earlier = {"$artifact": self.saved} if self.saved else no_counts()
        self.saved = f"{self.output}/to-{number:04d}"
        save = ("save_artifact", {"name": self.saved, "content": {"$merge": [earlier, counts]}})
        here = f"{plural(counts['totals']['files'], 'file')}, {plural(counts['totals']['lines'], 'line')}"
        if following:
            text = f"Page {number} of {self.label}: {here}. I save the counts so far and go on."
            return SurveyorReply(
                text, [save, ("list_folder", self._arguments(size, following, given.get("skip", ())))]
            )
        return SurveyorReply(
            f"Page {number}, the last of {self.label}: {here}.", [save, self._looked("/telling")]
        )

    def _counts(self, page: Mapping[str, Any], skip: Sequence[str]) -> dict[str, Any]:
        counts, path = counts_of(page), str(self.part.get("path", "."))
        skipped = [name for name in page.get("skipped", ()) if name not in self.left_out]
        counts["skipped"] = [f"{name} (on request)" if name in skip else name for name in skipped]
        if page.get("unreadable"):
            counts["totals"]["unreadable"] += 1
            counts["unreadable"].append([path, str(page["unreadable"])])
        if self.saved is None and "from" not in self.part and path != ".":
            counts["totals"]["folders"] += 1  # The folder itself, which its own listing does not name.
        return counts

    def _reads(self, outcome: ToolOutcome) -> list[Call]:
        """The calls that read a README and entry points, or else the largest source file."""
        telling = leading_json(outcome.text)
        kinds = telling if isinstance(telling, dict) and "read" in self.turn.tools else {}
        paths = {name: [row[0] for row in kinds.get(name, {}).get("items", ())] for name in _TELLING}
        chosen = [*paths["readme"], *paths["starts"]] or paths["source"]
        return [("read", {"file_path": path, "view_range": [1, READ_LINES]}) for path in chosen]

    def _finish(self) -> SurveyorReply:
        """Save the counts of all pages, with what was read, under the name that the writer knows."""
        reads = [one for one in self.turn.outcomes if one.name == "read" and not one.failed]
        begins = {str(one.arguments.get("file_path")): first_words(one.text) for one in reads}
        notes = [[path, words] for path, words in begins.items() if words]
        merged = {"$merge": [{"$artifact": self.saved}, {"notes": notes, "complete": True}]}
        calls: list[Call] = [("save_artifact", {"name": self.output, "content": merged})]
        if "remember" in self.turn.tools:
            calls += [
                ("remember", {"text": f"{path} begins: {words}", "kind": "fact"}) for path, words in notes
            ]
        calls.append(("read_artifact", {"ref": self.output, "pointer": "/totals"}))
        return SurveyorReply(f"I keep what I read, and save the counts as {self.output}.", calls)

    def _result(self, outcome: ToolOutcome) -> str:
        sums = dict.fromkeys(_TOTALS, 0) | (leading_json(outcome.text) or {})
        return (
            f"{self.label}: {plural(sums['files'], 'file')} in {plural(sums['folders'], 'folder')}, "
            f"{plural(sums['bytes'], 'byte')}, {plural(sums['lines'], 'line')}, {sums['todo'] + sums['fixme']:,} TODO and FIXME. "
            f"The counts are in the artifact {self.output}."
        )


# --- The surveyor's writer: adds up the counts of all parts, and writes `survey.json` and `SURVEY.md` from them ---
#
# Promise: no figure passes through prose. `survey.json` is put together from artifacts by reference, and the
# report is made of what is read from artifacts.

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
    "skipped": "Version control's own folders (.git, .hg, .svn), virtual environments, and what a person asked to leave out."
    " What git ignores is not counted either. All else is.",
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
    given = handoff.get("inputs", ()) if isinstance(handoff, dict) else wanted
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


REF = "offline/surveyor"
DEFAULT_WINDOW = 12_000

FIRST_TOKEN_SECONDS = 0.35
CHARACTERS_PER_SECOND = 320.0
LONGEST_REPLY_SECONDS = 5.0
CHARACTERS_PER_TOKEN = 4
_MOST_DELTAS = 40
_LEAST_DELTA = 24

_PLAIN = (
    "I am Watchkeeper's offline surveyor: a fixed program that surveys folders, not an LLM. I can plan,"
    " explore and write "
    "a survey, and shorten texts; for anything else, choose a model with --model anthropic/<model>."
)


class SurveyorModel:
    """A deterministic model: what it replies depends on the request alone (and on its window, set once).

    Args:
        speed: how many times faster than a typical hosted model it streams; None waits for nothing.
        clock: for waiting and for the latency that is reported; the machine's own by default.
        context_window: tokens of prompt and reply together; pages are asked for in a size that suits it.
    """

    def __init__(
        self, *, speed: float | None = 1.0, clock: Clock | None = None, context_window: int = DEFAULT_WINDOW
    ) -> None:
        if speed is not None and not speed > 0:
            raise ValueError("The surveyor's speed must be above 0; use `max` to wait for nothing.")
        self._speed = speed
        self._clock: Clock = clock or SystemClock()
        self.ref = REF
        self.context_window = context_window

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Yield some deltas, and last the reply.

        Raises:
            ModelError: `COMPACT` when the prompt is far larger than the window.
        """
        started = self._clock.monotonic()
        prompt_characters = _prompt_characters(request)
        if prompt_characters / CHARACTERS_PER_TOKEN > 1.5 * self.context_window:
            raise ModelError(
                f"prompt is too long: about {prompt_characters // CHARACTERS_PER_TOKEN} tokens, and the"
                f" window is {self.context_window}",
                kind=ErrorKind.COMPACT,
            )
        content = _reply_blocks(self._move(request), request)
        characters = sum(len(text) for _, text in _streamed(content))
        await self._wait(FIRST_TOKEN_SECONDS)
        first_token = self._clock.monotonic() - started
        seconds_a_character = min(LONGEST_REPLY_SECONDS / max(1, characters), 1 / CHARACTERS_PER_SECOND)
        size = max(_LEAST_DELTA, -(-characters // _MOST_DELTAS))
        for kind, text in _streamed(content):
            for start in range(0, len(text), size):
                piece = text[start : start + size]
                yield Delta(kind, piece)
                await self._wait(len(piece) * seconds_a_character)
        yield Reply(
            content=content,
            stop_reason="tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn",
            usage=Usage(
                input_tokens=-(-prompt_characters // CHARACTERS_PER_TOKEN),
                output_tokens=-(-characters // CHARACTERS_PER_TOKEN),
            ),
            model=REF,
            latency_seconds=self._clock.monotonic() - started,
            first_token_seconds=first_token,
        )

    async def _wait(self, seconds: float) -> None:
        if self._speed is not None:
            await self._clock.sleep(seconds / self._speed)

    def _move(self, request: ModelRequest) -> SurveyorReply:
        turn = understand(request, self.context_window)
        if turn.role in _DIGESTING:
            return SurveyorReply(digest([text for message in request.messages for text in texts_of(message)]))
        act, tools = _ROLES.get(turn.role, (explore, _ROLES["explorer"][1]))
        if not tools <= turn.tools or not (turn.role in _ROLES or turn.scope):
            return SurveyorReply(_PLAIN)
        reply = act(turn)
        failed = reply.text.startswith("FAILED:")  # The planner looks for it at the beginning.
        return reply if failed else replace(reply, text=turn.acknowledgement + reply.text)


_ROLES: dict[str, tuple[Callable[[Turn], SurveyorReply], frozenset[str]]] = {
    "planner": (plan, frozenset({"list_folder", "create_plan", "finish_session"})),
    "explorer": (explore, frozenset({"list_folder", "save_artifact", "read_artifact"})),
    "writer": (write, frozenset({"read_artifact", "merge_artifacts", "save_artifact"})),
}
"""What a role does, and the tools that it cannot do without."""


def _reply_blocks(move: SurveyorReply, request: ModelRequest) -> list[Block]:
    content: list[Block] = [{"type": "text", "text": move.text}]
    # Ids come from what was said so far, so that no two calls of one agent share one, and a call repeated
    # after a crash is the same call.
    said = json.dumps(list(request.messages), sort_keys=True, default=str) if move.calls else ""
    for index, (name, arguments) in enumerate(move.calls):
        digits = hashlib.sha256(f"{said}/{index}".encode()).hexdigest()[:24]
        content.append({"type": "tool_use", "id": f"toolu_{digits}", "name": name, "input": arguments})
    return content


def _streamed(content: list[Block]) -> list[tuple[Literal["text", "tool_input"], str]]:
    """What a reply streams: its words, and the inputs of its calls as JSON."""
    return [
        ("text", block["text"])
        if block["type"] == "text"
        else ("tool_input", json.dumps(block["input"], ensure_ascii=False))
        for block in content
    ]


def _prompt_characters(request: ModelRequest) -> int:
    characters = len(request.system) + sum(
        len(json.dumps(message, default=str)) for message in request.messages
    )
    return characters + sum(
        len(tool.description) + len(json.dumps(tool.input_schema)) for tool in request.tools
    )


# As observer, reflector or summariser: it shortens what it is given by fixed rules, with citations.

_DIGESTING = frozenset({"observer", "reflector", "summarizer", "summariser"})
_ENTRY = re.compile(
    r"^\W{0,6}#(\d+)\b[^\S\n]*(?:(?:user|assistant|result|tool_result)\b\s*[\])>:]*)?([^\n]*)", re.MULTILINE
)
"""`[#12 assistant] text`: the number and the text; `calls list_folder` stays, it says what was done."""
_SHARE = 0.15
"""The length of a digest, as a share of what it digests."""


def digest(texts: list[str]) -> str:
    """A line for each entry `#n …` of the texts, the newest where there is too much; their own lines if there
    are no entries."""
    whole = "\n".join(texts)
    lines = [f"- {one_line(text.lstrip(' ]'), 160)} (#{number})" for number, text in _ENTRY.findall(whole)]
    lines = lines or [f"- {one_line(line, 160)}" for line in whole.splitlines() if line.strip()]
    room = int(min(3_000, max(400, len(whole) * _SHARE)))
    kept: list[str] = []
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 0 and kept:
            kept.append(
                f"- {len(lines) - len(kept)} earlier entries, the first: {one_line(lines[0][2:], 80)}"
            )
            break
        kept.append(line)
    return "\n".join(reversed(kept))
