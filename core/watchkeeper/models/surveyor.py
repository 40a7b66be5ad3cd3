"""`offline/surveyor`: a script in the place of a language model, to try the system with no key and no network.

It is not a language model, and says so. It plans a survey of the current folder, counts files with the real tools in
parallel agents, and writes `SURVEY.md` and `survey.json`. Promises: each reply is a function of the request alone, and
what comes next follows from the last reply's calls and their results. So compaction, kills and resumes change no count:
a call that is made twice replaces what it saved, and an agent whose last calls are out of sight starts again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePosixPath
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

REF = "offline/surveyor"
DEFAULT_WINDOW = 12_000
"""Tokens: small, so that a folder of some hundred files is enough for a compaction."""

Call = tuple[str, dict[str, Any]]
"""A tool's name and its input."""
Counts = dict[str, Any]
"""`totals` (`files`, `bytes`, `folders`, `links`, `other`) and `extensions`: the files and bytes of each."""

# --- Reading a request --------------------------------------------------------------------------------------

PART = "part: "
"""Begins the line of an assignment that says what to do, as JSON."""
MOST_ATTEMPTS = 3
"""How often a call that keeps failing is made in all."""
START_AGAIN = "An earlier version of the script started this survey. Run `wk demo` again."
_OPTIONAL = frozenset({"read", "remember"})
"""Tools that a survey can do without."""


@dataclass(frozen=True, slots=True)
class SurveyorReply:
    """Words and tool calls. Without calls the reply ends the turn."""

    text: str
    calls: Sequence[Call] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """A tool call of the last reply, with its result."""

    name: str
    arguments: dict[str, Any]
    text: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """A request, as far as the script understands it."""

    role: str
    tools: frozenset[str]
    assignment: str
    """The newest assignment that is in sight."""
    part: dict[str, Any] | None
    """What the assignment says to do; None where it does not say."""
    outcomes: tuple[Outcome, ...]
    """The calls of the last reply, unless a new assignment came after it."""
    history: tuple[tuple[Call, ...], ...]
    """The calls of the replies in sight, the newest first."""
    said: str
    """What arrived since the last reply."""

    def outcome_of(self, *names: str) -> Outcome | None:
        """The last call of one of these tools."""
        return next((one for one in reversed(self.outcomes) if one.name in names), None)

    def again(self) -> SurveyorReply | None:
        """The last reply's calls once more, where one failed that matters; None where none did.

        After `MOST_ATTEMPTS` it gives up, with words that say why.
        """
        failed = [one for one in self.outcomes if one.failed and one.name not in _OPTIONAL]
        if not failed:
            return None
        why = f"{failed[0].name}: {one_line(failed[0].text, 160)}"
        tries = len(list(takewhile(lambda calls: calls == self.history[0], self.history)))
        if tries >= MOST_ATTEMPTS:
            return SurveyorReply(f"FAILED: {why}")
        return SurveyorReply(f"That failed; trying again ({why}).", self.history[0])


def understand(request: ModelRequest) -> Turn:
    """Read a request. Tolerates whatever compaction left between the first message and the last ones."""
    messages = request.messages
    replies = [at for at, message in enumerate(messages) if message.get("role") == "assistant"]
    last = replies[-1] if replies else -1
    said = [text for message in messages[last + 1 :] for text in texts_of(message)]
    assignments = [
        text
        for message in messages
        if message.get("role") == "user"
        for text in texts_of(message)
        if text.startswith("# Task:")
    ]
    is_new = any(text.startswith("# Task:") for text in said)
    assignment = assignments[-1] if assignments else "\n".join(texts_of(messages[0])) if messages else ""
    part = leading_json(assignment.partition(f"\n{PART}")[2].partition("\n")[0])
    return Turn(
        role=_role(request),
        tools=frozenset(tool.name for tool in request.tools),
        assignment=assignment,
        part=part if isinstance(part, dict) else None,
        outcomes=tuple(_outcomes(messages, last)) if last >= 0 and not is_new else (),
        history=tuple(
            tuple(
                (str(one.get("name")), _plain(one.get("input"))) for one in _blocks(messages[at], "tool_use")
            )
            for at in reversed(replies)
        ),
        said="\n".join(said),
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


def _outcomes(messages: Sequence[dict[str, Any]], last: int) -> Iterator[Outcome]:
    results = {
        block.get("tool_use_id"): block
        for message in messages[last + 1 :]
        for block in _blocks(message, "tool_result")
    }
    for block in _blocks(messages[last], "tool_use"):
        result = results.get(block.get("id"))
        yield Outcome(
            str(block.get("name")),
            _plain(block.get("input")),
            "".join(texts_of(result)) if result else "interrupted, outcome unknown",
            result is None or bool(result.get("is_error")),
        )


def leading_json(text: str) -> Any:
    """The JSON value that a text begins with, or None."""
    try:
        return json.JSONDecoder().raw_decode(text.strip())[0]
    except (ValueError, RecursionError):
        return None


# --- The planner --------------------------------------------------------------------------------------------

SYNTHESIS = "synthesis"
LOOSE = "loose-files"
MOST_PARTS = 4
"""Folders with a task of their own; the others share one."""


def plan(turn: Turn) -> SurveyorReply:
    """List the folder, make the plan, answer failures, and end the session when the survey is written."""
    if not turn.history:
        text = "I am the offline surveyor: a script, not a language model. First I look at the folder."
        return SurveyorReply(text, [("list_folder", {"path": "."})])
    listing, ended = turn.outcome_of("list_folder"), turn.outcome_of("finish_session")
    if ended is not None:
        return _end_again(turn, ended) if ended.failed else SurveyorReply("Done.")
    if ("counts/" not in turn.said and "figures/" in turn.said) or (
        listing and "details" in listing.arguments
    ):
        return _finish("failed", START_AGAIN)
    failed = turn.again()
    if failed is not None:
        gives_up = failed.text.startswith("FAILED:")
        return _finish("failed", failed.text.removeprefix("FAILED: ")) if gives_up else failed
    if listing is not None:
        return _create(listing)
    if result := turn.outcome_of("read_artifact"):
        return _finish("done", result.text)
    if f"Task {SYNTHESIS} is done." in turn.said or "No tasks are running." in turn.said:
        return SurveyorReply("I am reading the result.", [("read_artifact", {"ref": f"result/{SYNTHESIS}"})])
    calls = [
        _answer(turn, task) for task in re.findall(r"^Task (\S+) (?:failed:|was cancelled)", turn.said, re.M)
    ]
    if calls:
        return SurveyorReply("I am handling the failed tasks.", calls)
    return SurveyorReply(
        "I am a script and do not read messages."
        if "A person says:" in turn.said
        else "I am waiting for the tasks."
    )


def _end_again(turn: Turn, ended: Outcome) -> SurveyorReply:
    """Drop the tasks that keep the session from its end, and end it."""
    why = one_line(ended.text, 160)
    if sum(name == "finish_session" for calls in turn.history for name, _ in calls) >= MOST_ATTEMPTS:
        return SurveyorReply(f"The session could not be ended: {why}")
    left = re.findall(r"(\S+) \((?:pending|running|paused|stale)\)", ended.text)
    drops: list[Call] = [("drop_task", {"task": task, "reason": "the survey is ending"}) for task in left]
    return SurveyorReply(
        "I am dropping the unfinished tasks." if left else f"Trying again ({why}).",
        [*drops, ("finish_session", ended.arguments)],
    )


def _answer(turn: Turn, task: str) -> Call:
    """A task that fails runs once more. After that the survey does without it."""
    ran_again = any(
        name == "rerun_task" and task == given.get("task") for calls in turn.history for name, given in calls
    )
    if ran_again or f"Task {task} was cancelled" in turn.said:
        return "drop_task", {"task": task, "reason": "the survey continues without it"}
    return "rerun_task", {"task": task, "reason": "it failed"}


def _create(listing: Outcome) -> SurveyorReply:
    counts, names, cursor = counts_of(listing.text)
    folders = sorted(name.rstrip("/") for name in names if name.endswith("/"))
    parts: dict[str, list[str]] = {}
    if cursor:  # Too many entries for one page: one agent counts all of them.
        parts["everything"], folders = ["."], []
    for name in folders[:MOST_PARTS]:
        parts[_slug(name, parts)] = [name]
    if folders[MOST_PARTS:]:
        parts["other-folders"] = folders[MOST_PARTS:]
    if not cursor and any(counts["totals"][kind] for kind in ("files", "links", "other")):
        parts[LOOSE] = ["."]
    tasks = [
        _task(name, f"Count {_described(name, paths)}", {"task": name, "folders": paths})
        for name, paths in parts.items()
    ]
    tasks.append(
        _task(SYNTHESIS, "Write the survey", {"parts": [*parts]})
        | {"role": "writer", "depends_on": [*parts], "expected_outputs": ["SURVEY.md", "survey.json"]}
    )
    text = f"The plan: {plural(len(parts), 'agent')} to count, then one to write."
    return SurveyorReply(text, [("create_plan", {"goal": "Survey the folder.", "tasks": tasks})])


def _task(name: str, title: str, part: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "instructions": f"{title}.\n\n{PART}{json.dumps(part, ensure_ascii=False)}",
        "role": "explorer",
        "expected_outputs": [f"counts/{name}"],
    }


def _described(name: str, paths: Sequence[str]) -> str:
    return (
        "the files beside the folders"
        if name == LOOSE
        else plural(len(paths), "folder")
        if len(paths) > 1
        else paths[0]
    )


def _slug(path: str, taken: Iterable[str]) -> str:
    """A task's name for a folder: `a-b`, and a number where two folders would have the same."""
    slug = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")[:32] or "folder"
    if slug in taken or slug in (SYNTHESIS, LOOSE, "everything", "other-folders"):
        slug += f"-{hashlib.sha256(path.encode()).hexdigest()[:4]}"
    return slug


def _finish(status: str, summary: str) -> SurveyorReply:
    text = one_line(summary, 600) or "No reason was given."
    return SurveyorReply(text, [("finish_session", {"summary": text, "status": status})])


# --- The explorers ------------------------------------------------------------------------------------------

PAGE_ENTRIES = 12
"""Entries of the first page of a folder: few, so that an agent takes enough turns to be compacted. Later pages are longer,
so that a large folder takes not many."""
MOST_ENTRIES = 200
READ_LINES = 60
_FILE = re.compile(r"(.*)  (\d+)", re.DOTALL)
_ODD = re.compile(r"(.*)  \((link|other)\)(?:  .*)?", re.DOTALL)
_FOLDER = re.compile(r"(.*?/)(?:  .*)?", re.DOTALL)
"""Entries of `list_folder`: a file with its bytes, a link or a pipe, a folder."""
_CURSOR = re.compile(r"\[and .* more; cursor: (.+)\]", re.DOTALL)


def no_counts() -> Counts:
    """The counts of nothing."""
    return {"totals": dict.fromkeys(("files", "bytes", "folders", "links", "other"), 0), "extensions": {}}


def counts_of(listing: str) -> tuple[Counts, list[str], str | None]:
    """What a page of `list_folder` counts, the names on it, and the cursor of the next page."""
    counts, names = no_counts(), []
    totals, extensions = counts["totals"], counts["extensions"]
    cursor = None
    for line in listing.split("\n"):
        if file := _FILE.fullmatch(line):
            row = extensions.setdefault(
                PurePosixPath(file[1]).suffix.lower() or "(none)", {"files": 0, "bytes": 0}
            )
            for sums in (totals, row):
                sums["files"] += 1
                sums["bytes"] += int(file[2])
            names.append(file[1])
        elif odd := _ODD.fullmatch(line):
            totals["links" if odd[2] == "link" else "other"] += 1
        elif folder := _FOLDER.fullmatch(line):
            totals["folders"] += 1
            names.append(folder[1])
        elif end := _CURSOR.fullmatch(line):
            cursor = end[1]
    return counts, names, cursor


def added(one: Counts, two: Counts) -> Counts:
    """Both counts together."""
    rows = {
        name: _sum(one["extensions"].get(name, {}), two["extensions"].get(name, {}))
        for name in sorted({*one["extensions"], *two["extensions"]})
    }
    return {"totals": _sum(one["totals"], two["totals"]), "extensions": rows}


def _sum(one: Mapping[str, int], two: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + two.get(name, 0) for name in {**one, **two}}


def explore(turn: Turn) -> SurveyorReply:
    """Count the folders of a part, a page at a time. The counts so far are the input of the last `save_artifact`."""
    part = turn.part or {}
    task, folders = str(part.get("task")), [str(one) for one in part.get("folders", ())]
    listing, saved = turn.outcome_of("list_folder"), turn.outcome_of("save_artifact")
    if not folders:
        return SurveyorReply(f"FAILED: {START_AGAIN}")
    failed = turn.again()
    if failed is not None:
        return failed
    if listing is None and saved is not None:
        totals = saved.arguments["content"]["totals"]
        return SurveyorReply(f"{plural(totals['files'], 'file')}, {plural(totals['bytes'], 'byte')}.")
    if listing is None:
        return SurveyorReply(f"I am counting {_described(task, folders)}.", [_page(folders[0], task)])
    counts, names, cursor = counts_of(listing.text)
    if listing.arguments["path"] != "." and "cursor" not in listing.arguments:
        counts["totals"]["folders"] += 1  # the folder itself
    counts = added(saved.arguments["content"], counts) if saved is not None else counts
    if task == LOOSE:
        counts["totals"]["folders"] = 0  # counted by the other tasks
    at = str(listing.arguments["path"])
    following = folders[folders.index(at) + 1 :] if at in folders else []
    if cursor or following:
        text = f"{plural(counts['totals']['files'], 'file')} so far; I continue."
        longer = min(MOST_ENTRIES, int(listing.arguments.get("limit", PAGE_ENTRIES)) * 5 // 4)
        next_page = _page(at, task, cursor, longer) if cursor else _page(following[0], task)
        so_far = ("save_artifact", {"name": f"counts/{task}/so-far", "content": counts})
        return SurveyorReply(text, [so_far, *_reads(at, names), next_page])
    most = max(counts["extensions"], key=lambda name: counts["extensions"][name]["files"], default="none")
    fact = f"{_described(task, folders)}: {plural(counts['totals']['files'], 'file')}, most of them {most}"
    calls: list[Call] = [("remember", {"text": fact})] if "remember" in turn.tools else []
    return SurveyorReply(
        "I am saving the counts.", [*calls, ("save_artifact", {"name": f"counts/{task}", "content": counts})]
    )


def _page(folder: str, task: str, cursor: str | None = None, limit: int = PAGE_ENTRIES) -> Call:
    arguments: dict[str, Any] = {"path": folder, "recursive": task != LOOSE, "limit": limit}
    return "list_folder", arguments | ({"cursor": cursor} if cursor else {})


def _reads(folder: str, names: Sequence[str]) -> list[Call]:
    """Look into two files of a page: what is read fills the context, as real work does."""
    sources = [
        name
        for name in names
        if PurePosixPath(name).suffix in (".py", ".md", ".ts", ".js", ".go", ".rs", ".toml")
    ]
    return [
        ("read", {"file_path": name if folder == "." else f"{folder}/{name}", "view_range": [1, READ_LINES]})
        for name in sources[:2]
    ]


# --- The writer ---------------------------------------------------------------------------------------------

ALL = "counts/all"
FORMAT = "watchkeeper-survey/2"
WRITTEN_BY = "offline/surveyor (a script, not a language model)"
_ROWS = 20


def write(turn: Turn) -> SurveyorReply:
    """Add up the counts of all parts, and write them for people and for programs."""
    part = turn.part or {}
    if not isinstance(part.get("parts"), list):
        return SurveyorReply(f"FAILED: {START_AGAIN}")
    failed = turn.again()
    if failed is not None:
        return failed
    handoff = leading_json(turn.assignment.partition("\nhandoff:")[2])
    given = handoff.get("inputs", ()) if isinstance(handoff, dict) else ()
    there = [name for name in part["parts"] if f"counts/{name}" in given]
    missing = [name for name in part["parts"] if name not in there]
    done = {str(one.arguments.get("name")) for one in turn.outcomes}
    if "SURVEY.md" in done:
        totals = leading_json(next(one.text for one in turn.outcomes if one.name == "read_artifact"))
        lacking = f" Missing: {', '.join(missing)}." if missing else ""
        counted = f"{plural(totals['files'], 'file')}, {plural(totals['bytes'], 'byte')}"
        return SurveyorReply(f"The survey is in SURVEY.md and survey.json: {counted}.{lacking}")
    if ALL in done:
        return SurveyorReply("I am reading the totals.", _sums())
    if readings := [one for one in turn.outcomes if one.name == "read_artifact"]:
        totals, extensions = (leading_json(one.text) for one in readings)
        document = {
            "format": FORMAT, "written_by": WRITTEN_BY, **totals,
            "extensions": {"$artifact": ALL, "$pointer": "/extensions"}, "missing_parts": missing,
        }  # fmt: skip
        text = report(totals, extensions if isinstance(extensions, dict) else None, missing)
        saves: list[Call] = [
            ("save_artifact", {"name": "survey.json", "content": document}),
            ("save_artifact", {"name": "SURVEY.md", "content": text}),
        ]
        return SurveyorReply("I am writing the survey.", [*saves, _sums()[0]])
    if not there:
        return SurveyorReply(
            "There is nothing to add up.", [("save_artifact", {"name": ALL, "content": no_counts()})]
        )
    text = f"I am the offline surveyor, a script. I add up the counts of {plural(len(there), 'part')}."
    return SurveyorReply(
        text, [("merge_artifacts", {"inputs": [f"counts/{name}" for name in there], "name": ALL})]
    )


def _sums() -> list[Call]:
    return [("read_artifact", {"ref": ALL, "pointer": pointer}) for pointer in ("/totals", "/extensions")]


def report(totals: Mapping[str, int], extensions: Mapping[str, Any] | None, missing: Sequence[str]) -> str:
    """`SURVEY.md`. `extensions`: None where they are too many to be read at once."""
    lines = ["# Survey", "", f"Written by {WRITTEN_BY}.", ""]
    lines += [f"- {name.capitalize()}: {count:,}" for name, count in totals.items()]
    if missing:
        lines += ["", f"Missing, and not counted: {', '.join(map(code, missing))}."]
    lines += ["", "## Files by extension", ""]
    if extensions is None:
        return "\n".join([*lines, "See `extensions` in survey.json.", ""])
    rows = sorted(extensions.items(), key=lambda row: (-row[1]["files"], row[0]))
    lines += ["| Extension | Files | Bytes |", "|---|--:|--:|"]
    lines += [f"| {code(name)} | {row['files']:,} | {row['bytes']:,} |" for name, row in rows[:_ROWS]]
    lines += [f"\n{len(rows) - _ROWS} more: see `extensions` in survey.json."] if len(rows) > _ROWS else []
    return "\n".join([*lines, ""])


def code(text: object) -> str:
    """Text of the folder's own as inline code that cannot end early, on one line, safe inside a table."""
    plain = "".join(character if character.isprintable() else " " for character in str(text))
    return "`" + plain.replace("`", "'").replace("|", "¦") + "`"


# --- The model ----------------------------------------------------------------------------------------------

FIRST_TOKEN_SECONDS = 0.35
CHARACTERS_PER_SECOND = 320.0
LONGEST_REPLY_SECONDS = 5.0
LONGEST_MEMORY_SECONDS = 1.5
"""For texts of memory, which a small and fast model writes as a rule."""
CHARACTERS_PER_TOKEN = 4
_MOST_DELTAS = 40
_LEAST_DELTA = 24

_PLAIN = (
    "I am Watchkeeper's offline surveyor: a script that counts the files in a folder, not a language model. For"
    " anything else, choose a model with --model anthropic/<model>."
)
_ROLES: dict[str, tuple[Callable[[Turn], SurveyorReply], frozenset[str]]] = {
    "planner": (plan, frozenset({"list_folder", "create_plan", "finish_session"})),
    "explorer": (explore, frozenset({"list_folder", "save_artifact"})),
    "writer": (write, frozenset({"read_artifact", "merge_artifacts", "save_artifact"})),
}
"""What a role does, and the tools that it cannot do without."""


class SurveyorModel:
    """A deterministic model: what it replies depends on the request alone.

    Args:
        speed: how many times faster than a typical hosted model it streams; None waits for nothing.
        clock: for waiting and for the latency that is reported; the machine's own by default.
        context_window: tokens of prompt and reply together.
    """

    def __init__(
        self, *, speed: float | None = 1.0, clock: Clock | None = None, context_window: int = DEFAULT_WINDOW
    ) -> None:
        if speed is not None and not speed > 0:
            raise ValueError("The surveyor's speed must be above 0; use `max` for no delay.")
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
        beside = request.purpose in (Purpose.OBSERVER, Purpose.REFLECTOR)
        longest = LONGEST_MEMORY_SECONDS if beside else LONGEST_REPLY_SECONDS
        seconds_a_character = min(longest / max(1, characters), 1 / CHARACTERS_PER_SECOND)
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
        turn = understand(request)
        if turn.role in _DIGESTING:
            asked = "\n".join(text for message in request.messages for text in texts_of(message))
            return SurveyorReply(written_memory(asked))
        act, tools = _ROLES.get(turn.role, (explore, _ROLES["explorer"][1]))
        if not tools <= turn.tools or not (turn.role in _ROLES or turn.part):
            return SurveyorReply(_PLAIN)
        return act(turn)


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


def written_memory(asked: str) -> str:
    """A log of observations, a shorter log, or a digest: what the prompt asks for."""
    transcript, log = _between(asked, "transcript"), _between(asked, "log")
    if "What happened since:" in asked and transcript is not None:
        return observed(transcript)
    if log is not None and transcript is None:
        return reflected(log, again="too long" in asked.rpartition("</log>")[2])
    return digest([asked])


def _between(text: str, tag: str) -> str | None:
    found = re.search(rf"<{tag}>\n(.*)\n</{tag}>", text, re.DOTALL)
    return found[1] if found else None


_PART = re.compile(r"^\[#(\d+) (user|assistant|result|error|calls \S+)\] ?(.*)")
_MINUTE = re.compile(r"^— \S+ (\d\d:\d\d) —$")
_NOTED = {"user": ("!", 300), "assistant": ("+", 160), "result": ("-", 140), "error": ("!", 200)}
"""What an observer notes of each part: its priority, and how many characters."""


def observed(transcript: str) -> str:
    """An observer's answer: a dated line, with its priority, for each thing that was said, done or brought."""
    lines: list[str] = []
    minute = doing = ""
    for line in transcript.splitlines():
        if at := _MINUTE.match(line):
            minute = f"{at[1]} "
        if not (part := _PART.match(line)):
            continue
        number, kind, text = part.groups()
        mark, most = _NOTED.get(kind, ("-", 100))
        what = f"{kind.removeprefix('calls ')} {text}" if kind.startswith("calls ") else text
        doing = text if kind == "assistant" else doing
        label = {"result": "result: ", "error": "failed: "}.get(kind, "")
        lines.append(f"{minute}[{mark}] {label}{one_line(what, most)} (#{number})")
    log = "\n".join(lines)
    return f"<observations>\n{log}\n</observations>\n<current-task>{one_line(doing, 100)}</current-task>"


def reflected(log: str, *, again: bool) -> str:
    """A reflector's answer: what must not be forgotten as it is, what helps in short, and no routine. `again`: the last one
    was too long."""
    kept = []
    for line in log.splitlines():
        text, cited, number = line.rpartition(" (#")
        if cited and "[!]" in line:
            kept.append(one_line(text, 80 if again else 200) + cited + number)
        elif cited and "[+]" in line and not again:
            kept.append(one_line(text, 60) + cited + number)
    return "<observations>\n" + "\n".join(kept or [one_line(log, 200)]) + "\n</observations>"


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
