"""The surveyor's planner and explorers, and how they read a request.

Promises:
- What comes next follows from the last reply's tool calls and their results: no reply carries a cursor.
- Every call may be repeated. Pages are saved under numbered names, each with all pages before it, so that a
  repeated call counts nothing twice.
- An agent whose last calls are out of sight starts again, and comes to the same result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, takewhile
from typing import Any

from watchkeeper.records.messages import ModelRequest, Purpose

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
        said = shorten(self.steering, 100)
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
    said = [text for message in messages[last + 1 :] for text in _texts(message)]
    assignments = [
        text
        for message in messages
        if message.get("role") == "user"
        for text in _texts(message)
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
        assignment=assignments[-1] if assignments else "\n".join(_texts(messages[0])) if messages else "",
        assigned_again=again,
        last_text="\n".join(_texts(messages[last])) if last >= 0 else None,
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


def _texts(message: Mapping[str, Any]) -> list[str]:
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
            text="".join(_texts(result)) if result else "interrupted, outcome unknown",
            failed=result is None or bool(result.get("is_error")),
        )


def _inbox(text: str) -> list[dict[str, Any]]:
    items = leading_json(text.partition('\n{"inbox": ')[2])
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


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


def shorten(text: str, width: int) -> str:
    """A text on one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def reason(outcomes: Iterable[ToolOutcome]) -> str:
    """The first failure in one short line."""
    failed = (f"{one.name}: {shorten(one.text, 160)}" for one in outcomes if one.failed)
    return next(failed, "no reason was given")


def count(number: int, singular: str, plural: str | None = None) -> str:
    """`1 file`, `1,234 files`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def compact(value: object) -> str:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def folder_page(outcome: ToolOutcome) -> dict[str, Any] | None:
    """A page of `list_folder`, if it is whole: its entries must add up to its own totals.

    A page that was shortened to fit a window may still parse as JSON, and would then lack entries.
    """
    page = None if outcome.failed else _page_in(outcome.text)
    if page is None:
        return None
    found = dict.fromkeys(("files", "folders", "links", "other", "todos"), 0)
    for entry in page["entries"]:
        if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
            return None
        found["todos"] += len(entry.get("todos", ()))
        if "todos_from" not in entry:
            found[_KINDS.get(str(entry.get("kind")), "other")] += 1
    return page if all(page["totals"].get(name) == number for name, number in found.items()) else None


_KINDS = {"file": "files", "dir": "folders", "link": "links"}


def smaller(size: int) -> int:
    """The size of a page to ask for where one of `size` bytes did not fit the window."""
    return max(LEAST_PAGE_BYTES, size // 2)


def _page_in(text: str) -> dict[str, Any] | None:
    try:
        page = json.loads(text)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(page, dict) and isinstance(page.get("entries"), list)
    return page if whole and isinstance(page.get("totals"), dict) else None


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

    def label(self) -> str:
        if not self.count:
            return "the loose files" if self.parent == "." else f"the loose files of {self.parent}"
        return self.first if self.count == 1 else f"{self.first} … {self.last} ({self.count} folders)"

    def scope(self) -> dict[str, Any]:
        """What an explorer must list."""
        if not self.count:
            return {"path": self.parent, "only": "files"}
        if self.count == 1:
            return {"path": self.first}
        return {"path": self.parent, "only": "folders", "from": self.first, "until": self.last}

    def instructions(self) -> str:
        if not self.count:
            where = "the workspace" if self.parent == "." else f"the folder {self.parent}"
            return f"Survey the files that lie directly in {where}, without its sub-folders."
        if self.count == 1:
            return f"Survey the folder {self.first} and everything below it."
        if self.names:
            return f"Survey these folders and everything below them: {self.names}."
        return f"Survey the {self.count} folders from {self.first} to {self.last}, in the order of their bytes, and all below."


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
        base = _slug(part.first if part.count else "" if part.parent == "." else part.parent)
        if not part.count:
            base = f"{base}-loose-files".removeprefix("part-")
        elif part.count > 1:
            base += "-and-on"
        numbers = (f"-{number}" if number > 1 else "" for number in range(1, len(names) + 2))
        names.append(next(base + number for number in numbers if base + number not in names))
    return names[1:]


def _slug(path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")[:24].strip("-") or "part"


def plan(turn: Turn) -> SurveyorReply:
    """The planner's next reply."""
    made = turn.outcome_of("create_plan")
    if turn.stop:
        reply = SurveyorReply("I stop.", [_drop(SYNTHESIS, "stopped on request")])
    elif turn.last_text is None and all(item.get("kind") == "steer" for item in turn.inbox):
        reply = _ask_for_folders(turn, _GREETING, {"skip": turn.skip})
    elif turn.outcome_of("list_folder"):
        reply = _look(turn)
    elif made is not None and made.failed and "already" not in made.text:
        again = _ask_for_folders(turn, _AGAIN) if is_shortened(made.arguments) else turn.try_again()
        reply = again or _finish("failed", f"The plan could not be made: {reason([made])}")
    else:
        reply = _respond(turn)
    return replace(reply, text=turn.acknowledgement + reply.text)


_GREETING = "I am the offline surveyor: a fixed program, not an LLM. First I look at the folder."
_AGAIN = "I look at the folder again."
_MANAGING = ("resume_task", "rerun_task", "drop_task")


def _ask_for_folders(
    turn: Turn, text: str, more: Mapping[str, Any] | None = None, before: Sequence[Call] = ()
) -> SurveyorReply:
    arguments = {"path": ".", "only": "folders", "max_bytes": turn.page_bytes, **(more or {})}
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
    for part, name in zip(parts, names, strict=True):
        scope = {"task": name, "parts": [part.scope()], **skip}
        tasks.append(
            {
                "name": name,
                "title": f"Explore {part.label()}",
                "instructions": f"{part.instructions()} Save its figures.\n\n{SCOPE} {compact(scope)}",
                "role": "explorer",
                "expected_outputs": [f"figures/{name}"],
            }
        )
    inputs = {f"figures/{name}": part.label() for name, part in zip(names, parts, strict=True)}
    whole = {"workspace": workspace, "inputs": inputs} | ({"left_out": left_out} if left_out else {})
    tasks.append(
        {
            "name": SYNTHESIS,
            "title": "Write the survey",
            "instructions": "Join the figures of all parts, and write SURVEY.md, for people, and survey.json, for programs. "
            f"Say which parts are missing, if any are.\n\n{SCOPE} {compact(whole)}",
            "role": "writer",
            "depends_on": names,
            "inputs": list(inputs),
            "expected_outputs": REPORTS,
        }
    )
    explorers = (
        f"{count(len(parts), 'explorer')}, one for each part"
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
    calls = [call for outcome in turn.outcomes if outcome.failed for call in _instead(turn, outcome, said)]
    for item in turn.inbox:
        kind, task, result = item.get("kind"), str(item.get("task", "")), str(item.get("result", ""))
        if kind == "task_done" and not result.startswith("FAILED:"):
            said.append(f"{task} is done.")
            if task == SYNTHESIS:
                return _finish("done", result)
        elif kind in ("task_done", "task_failed"):
            calls.append(_answer_to_failure(turn, task, result or str(item.get("error", "")), said))
        elif kind == "task_cancelled":
            said.append(f"{task} was cancelled; the survey goes on without it.")
            calls.append(_drop(task, "cancelled by a person"))
        elif kind == "task_paused":
            said.append(f"{task} is paused; it continues when it is resumed.")
        elif kind == "nudge":
            calls.append(("read_artifact", {"ref": f"result/{SYNTHESIS}"}))
    calls += [_drop(_slug(name), "skipped on request") for name in turn.skip]
    calls = calls or list(_after_giving_up(turn, said))
    if not calls:
        said.append("I wait for the results of the tasks.")
    return SurveyorReply(" ".join(said), calls)


def _instead(turn: Turn, failed: ToolOutcome, said: list[str]) -> Iterator[Call]:
    """A task that cannot be resumed is run again; one that cannot be run again is dropped."""
    task = str(failed.arguments.get("task"))
    if failed.transient and turn.try_again():
        yield failed.name, failed.arguments
    elif failed.name == "resume_task":
        yield "rerun_task", {"task": task}
    elif failed.name == "rerun_task":
        yield _drop(task, "it could not be run again")
    elif failed.name == "drop_task" and task == SYNTHESIS:
        yield from _finish("failed", "Stopped on request before there was a plan.").calls
    elif failed.name == "drop_task":
        said.append(f"I could not change the plan: {reason([failed])}")


def _answer_to_failure(turn: Turn, task: str, why: str, said: list[str]) -> Call:
    """The first failure resumes a task, the second runs it from the start, the third drops it.

    Earlier answers are counted as far as they are in sight; the tools refuse what goes on for too long.
    """
    earlier = [name for calls in turn.history for name, given in calls if given.get("task") == task]
    why = shorten(why, 120)
    if not earlier:
        said.append(f"{task} failed ({why}). It continues where it stopped.")
        return "resume_task", {"task": task}
    if "rerun_task" not in earlier:
        said.append(f"{task} failed again ({why}). It starts from the beginning.")
        return "rerun_task", {"task": task, "fresh": True}
    said.append(f"{task} failed a third time ({why}). The survey goes on without it.")
    return _drop(task, "it failed three times")


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
        text, [("finish_session", {"summary": shorten(summary, 600) or text, "status": status})]
    )


# The explorer: it pages through its part, and saves the figures of all pages so far after each.

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
_TELLING = {"readme": 1, "starts": 2, "source": 1}
"""Which files are worth reading, and how many of each."""


def no_figures() -> dict[str, Any]:
    """The figures of nothing: every part is there, so that every pointer into joined figures finds
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


def figures_of(page: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a page, in the form that `merge_json` adds up. All strings are as `list_folder` gave
    them."""
    figures = no_figures()
    totals: dict[str, int] = figures["totals"]
    for entry in page.get("entries", ()):
        path = str(entry["path"])
        for line, word, text in entry.get("todos", ()):
            totals[word.lower()] += 1
            figures["places"].append([path, line, word, text])
        if "todos_from" in entry:
            continue
        if entry.get("unreadable"):
            totals["unreadable"] += 1
            figures["unreadable"].append([path, entry["unreadable"]])
        if entry.get("kind") == "file":
            _count_file(figures, entry, path)
        else:
            totals[_KINDS.get(str(entry.get("kind")), "other")] += 1
    for rows in (figures["largest"], *figures["telling"].values()):
        # In the order of `merge_json`, so that cutting a page early and cutting the whole late agree.
        rows["items"] = sorted(rows["items"], key=lambda row: (-row[1], json.dumps(row)))[: rows["$largest"]]
    return figures


def _count_file(figures: dict[str, Any], entry: Mapping[str, Any], path: str) -> None:
    totals, size, lines = figures["totals"], int(entry.get("bytes", 0)), int(entry.get("lines") or 0)
    language = figures["languages"].setdefault(
        str(entry.get("language")), dict.fromkeys(("files", "bytes", "lines"), 0)
    )
    for name, number in (("files", 1), ("bytes", size), ("lines", lines)):
        totals[name] += number
        language[name] += number
    figures["largest"]["items"].append([path, size, entry.get("lines")])
    totals["binary_files"] += bool(entry.get("binary"))
    if entry.get("test"):
        totals["test_files"] += 1
        folder = test_folder(path)
        figures["tests"][folder] = figures["tests"].get(folder, 0) + 1
    if entry.get("entry_point"):
        totals["entry_points"] += 1
        figures["entry_points"].append([path, entry["entry_point"]])
    readable = (
        0 < size <= _READABLE_BYTES
        and lines
        and size / lines <= _READABLE_LINE
        and not entry.get("unreadable")
    )
    if readable and "\\" not in path and len(path) <= 160:
        name = path.rpartition("/")[2].lower()
        kind = "readme" if name.startswith("readme") else "starts" if entry.get("entry_point") else "source"
        if kind != "source" or not entry.get("test"):
            figures["telling"][kind]["items"].append([path, size if kind == "source" else 0])


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
    reply = _Explorer(turn).reply()
    return replace(reply, text=turn.acknowledgement + reply.text)


class _Explorer:
    """One turn of an explorer."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.part: dict[str, Any] = (turn.scope.get("parts") or [{"path": "."}])[0]
        self.left_out: list[str] = turn.scope.get("skip") or []
        self.output = f"figures/{turn.scope.get('task') or 'workspace'}"
        self.named = [str(one.arguments.get("name") or one.arguments.get("ref")) for one in turn.outcomes]
        pages = [name for name in self.named if name.startswith(f"{self.output}/to-")]
        self.saved = pages[-1] if pages else None
        """The artifact of all pages so far."""

    def reply(self) -> SurveyorReply:
        turn = self.turn
        listing = turn.outcome_of("list_folder")
        kept = [one for one in turn.outcomes if one.name in ("save_artifact", "read_artifact")]
        if not turn.outcomes and turn.ended:
            return SurveyorReply(f"My part is finished; the figures are in {self.output}.")
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
                why = f"FAILED: {self._label()} could not be surveyed to its end: {reason(failed)}"
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
            f"I survey {self._label()} and count what it holds, page by page.",
            self._arguments(size or self.turn.page_bytes),
        )

    def _arguments(self, size: int, cursor: str | None = None, skip: Sequence[str] = ()) -> dict[str, Any]:
        """The input of `list_folder` for a page of the part."""
        part = self.part
        start = f"from:{part['from']}" if "from" in part else None
        arguments = {
            "path": part.get("path", "."),
            "recursive": part.get("only") != "files",
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
        """Save the figures of a page, and ask for what comes next."""
        turn, given, page = self.turn, listing.arguments, folder_page(listing)
        size = int(given.get("max_bytes", turn.page_bytes))
        if turn.skip:
            return self._ask(
                "I leave that out.", self._arguments(size, given.get("cursor"), given.get("skip", ()))
            )
        if page is None and not turn.stop:
            if is_shortened(given):
                return self._begin(smaller(size))
            if not listing.failed and size > LEAST_PAGE_BYTES:
                text = "That page did not fit my context; I ask for a smaller one."
                return self._ask(text, given | {"max_bytes": smaller(size)})
            again = turn.try_again()
            if again is not None:
                return again
        page = page or {"unreadable": "could not be listed"}
        figures = self._figures(page, given.get("skip", ()))
        following, number = page.get("next"), int(self.saved.rpartition("-")[2]) + 1 if self.saved else 1
        if following and turn.stop:
            figures["skipped"] = [*figures["skipped"], f"{self._label()}, the rest (on request)"]
            following = None
        earlier = {"$artifact": self.saved} if self.saved else no_figures()
        self.saved = f"{self.output}/to-{number:04d}"
        save = ("save_artifact", {"name": self.saved, "content": {"$merge": [earlier, figures]}})
        here = f"{count(figures['totals']['files'], 'file')}, {count(figures['totals']['lines'], 'line')}"
        if following:
            text = f"Page {number} of {self._label()}: {here}. I save the figures so far and go on."
            return SurveyorReply(
                text, [save, ("list_folder", self._arguments(size, following, given.get("skip", ())))]
            )
        return SurveyorReply(
            f"Page {number}, the last of {self._label()}: {here}.", [save, self._looked("/telling")]
        )

    def _figures(self, page: Mapping[str, Any], skip: Sequence[str]) -> dict[str, Any]:
        figures, path = figures_of(page), str(self.part.get("path", "."))
        skipped = [name for name in page.get("skipped", ()) if name not in self.left_out]
        figures["skipped"] = [f"{name} (on request)" if name in skip else name for name in skipped]
        if page.get("unreadable"):
            figures["totals"]["unreadable"] += 1
            figures["unreadable"].append([path, str(page["unreadable"])])
        if self.saved is None and "from" not in self.part and path != ".":
            figures["totals"]["folders"] += 1  # The folder itself, which its own listing does not name.
        return figures

    def _reads(self, outcome: ToolOutcome) -> list[Call]:
        """The calls that read a README and entry points, or else the largest source file."""
        telling = leading_json(outcome.text)
        kinds = telling if isinstance(telling, dict) and "read" in self.turn.tools else {}
        paths = {name: [row[0] for row in kinds.get(name, {}).get("items", ())] for name in _TELLING}
        chosen = [*paths["readme"], *paths["starts"]] or paths["source"]
        return [("read", {"file_path": path, "view_range": [1, READ_LINES]}) for path in chosen]

    def _finish(self) -> SurveyorReply:
        """Save the figures of all pages, with what was read, under the name that the writer knows."""
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
        return SurveyorReply(f"I keep what I read, and save the figures as {self.output}.", calls)

    def _label(self) -> str:
        path = str(self.part.get("path", "."))
        if "from" in self.part:
            return f"{self.part['from']} … {self.part.get('until', '')}".rstrip()
        if self.part.get("only") == "files":
            return "the workspace's own level" if path == "." else f"{path}, without its sub-folders,"
        return "the workspace" if path == "." else path

    def _result(self, outcome: ToolOutcome) -> str:
        sums = dict.fromkeys(_TOTALS, 0) | (leading_json(outcome.text) or {})
        todos = count(sums["todo"] + sums["fixme"], "TODO or FIXME", "TODOs and FIXMEs")
        return (
            f"{self._label()} holds {count(sums['files'], 'file')} in {count(sums['folders'], 'folder')}: "
            f"{count(sums['bytes'], 'byte')}, {count(sums['lines'], 'line')}, {todos}. "
            f"The figures are in the artifact {self.output}."
        )
