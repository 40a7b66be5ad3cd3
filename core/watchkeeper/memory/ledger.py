"""What an agent has done, folded from its messages as they come: the source of digests.

A ledger comes from structure alone: the roles of messages, calls with their inputs, exit codes, to-do lists, typed
fields, and texts quoted as they are. It interprets nothing. Each message is read once (`Notebook`), in time that does
not depend on the history's length. An observation keeps the ledger of everything up to its last message, so that a
later digest continues from there and is never made of an earlier digest's text.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from watchkeeper.memory.content import blocks_of, result_text
from watchkeeper.memory.notes import clipped, error_lines
from watchkeeper.memory.tokens import plain
from watchkeeper.memory.words import HERE, LINE_CHARACTERS, WORDS_CHARACTERS, refused, shortened_words, spoken
from watchkeeper.records.messages import Block, Message, Observation, ObservationKind
from watchkeeper.records.text import one_line, sanitize
from watchkeeper.records.tool_inputs import EDIT_KEYS, PATCHED, argument_text, command_of, leaves, path_of

WORDS, MODE, TODO, WORK = "The person's words", "Plan and mode", "To do", "Current work"
COMMANDS, EDITED, READ, SAVED = "Commands and calls", "Files edited", "Files read", "Artifacts saved"
AGENTS, SAID, EARLIER, ASKED = (
    "Results of sub-agents",
    "What the agent said",
    "Earlier summaries",
    "Asked to keep",
)
SECTIONS = (ASKED, WORDS, MODE, TODO, WORK, COMMANDS, EDITED, AGENTS, SAVED, READ, SAID, EARLIER)

MOST = {
    WORDS: 300,
    SAID: 200,
    EDITED: 300,
    READ: 200,
    SAVED: 300,
    COMMANDS: 150,
    TODO: 100,
    AGENTS: 40,
    EARLIER: 150,
}
"""So many entries of a section are kept."""
TEXT_CHARACTERS = 4_000
"""The longest text of an agent, or plan, that is quoted as it is."""
AGENT_CHARACTERS = 1_500
"""The same of a sub-agent's result."""
LIST_CHARACTERS = 800
"""An earlier text of an agent with a list is quoted complete up to this length: no list is cut in its middle."""
SCAN_CHARACTERS = 2_000
"""So many characters are read from the beginning of a result, and as many from its end."""

COMMAND_CHARACTERS = 160
CHANGES_KEPT = 6
_CALLS_KEPT = 2_000

OPEN, RUNNING, DONE = "open", "in progress", "done"
FAILED, RAN, SETTLED, UNKNOWN, NOT_RUN = "failed", "ran", "settled", "outcome unknown", "not run"
LONG = "long"
LONG_REMARK = 120
"""Characters from which on what an agent said is more than a remark before a call."""
CALLS_SHOWN = 4
SHORT_ANSWER = 40
"""Characters up to which a person's words are shown with the question before them."""


class Entry(NamedTuple):
    """A line of a ledger."""

    seq: int
    """The message that it comes from."""
    text: str
    state: str = ""
    """A to-do item is `OPEN`, `RUNNING` or `DONE`. A command or call is `FAILED`, `DONE`, `UNKNOWN` or `NOT_RUN`; `RAN` if
    a pipe hides how it ended, `SETTLED` if all tests of its kind passed since. A plan is `OPEN` until a person approved (`DONE`) or rejected
    it (`FAILED`). A remark is `LONG` or not."""
    read: int = 0
    """The message in which an edited file was last read."""
    edits: int = 0
    details: tuple[str, ...] = ()
    """The first line of each of the last changes of an edited file; what a command answered; the last calls."""


class Note(NamedTuple):
    """What a message puts into a section, or takes out of it."""

    section: str
    key: str
    """A later note of the same section and key takes this one's place."""
    text: str | None = ""
    """None: the entry goes, and without a key all of the section."""
    state: str = ""
    details: tuple[str, ...] = ()


class _Call(NamedTuple):
    """A tool call that waits for its result."""

    tool: str
    does: str
    """`edit`, `read`, `todo`, `ask`, `mode`, `plan`, `agent`, `save`, `recall`, `command` or `` (anything else)."""
    key: str
    """What tells whether the same was called again: for a command its program and target, whatever its flags."""
    shown: str
    notes: tuple[Note, ...] = ()
    """What it puts into the ledger if it succeeds."""
    given: Mapping[str, Any] | None = None


# --- The ledger ---------------------------------------------------------------------------------------------


class Ledger:
    """The entries by section and key, oldest first."""

    def __init__(self) -> None:
        self.sections: dict[str, dict[str, Entry]] = {}

    @classmethod
    def up_to(
        cls, before: Sequence[Observation], messages: Iterable[Message], notebook: Notebook | None = None
    ) -> Ledger:
        """What was done up to the last of `messages`. `before`: observations of everything earlier, oldest first."""
        notebook = notebook or Notebook()
        ledger = cls.of(before, notebook)
        last = before[-1].covers[1] if before else 0
        for message in messages:
            last = message.seq
            for note in notebook.of(message):
                ledger.take(note, last)
        for note in notebook.lists_after(last):  # what later messages, which stay, say of the list is newer
            if note.text is None or (not note.text and note.state == DONE):
                ledger.take(note, last)
        return ledger

    @classmethod
    def of(cls, before: Sequence[Observation], notebook: Notebook) -> Ledger:
        """The ledger at the end of the last observation that has one; those of an earlier release or of an import have
        none."""
        stored = next((one.ledger for one in reversed(before) if one.ledger), "")
        text, known = notebook.ledger
        ledger = cls()
        if stored and stored == text:
            ledger.sections = {section: dict(entries) for section, entries in known.sections.items()}
        elif stored:
            ledger.sections = {
                section: {key: Entry._make((*each[:5], tuple(each[5]))) for key, each in entries.items()}
                for section, entries in json.loads(stored).items()
            }
        return ledger

    def stored(self, notebook: Notebook | None = None) -> str:
        """The ledger as an observation keeps it, as JSON; a notebook remembers what it says."""
        text = json.dumps(self.sections, ensure_ascii=False, separators=(",", ":"))
        if notebook is not None:
            notebook.ledger = (text, self)
        return text

    def bound(self, section: str, characters: int) -> None:
        """Drop the oldest entries of a section beyond so many characters; the person's first words, the assignment, stay."""
        entries = self.entries(section)
        size = sum(len(each.text) + sum(map(len, each.details)) for each in entries.values())
        for key in list(entries)[section == WORDS :] if size > characters else ():
            size -= len(entries[key].text) + sum(map(len, entries.pop(key).details))
            if size <= characters:
                break

    def reading(self, messages: Iterable[Message], notebook: Notebook) -> Iterator[None]:
        """Fold messages, in steps of one, for callers that let others run between them."""
        for message in messages:
            for note in notebook.of(message):
                self.take(note, message.seq)
            yield

    def quote(self, observations: Iterable[Observation]) -> None:
        """Take over texts that a model wrote, and digests without a ledger, as a digest takes their place."""
        for observation in observations:
            at = observation.covers[1]
            own = observation.kind is ObservationKind.DIGEST and observation.ledger
            for number, line in enumerate([] if own else observation.text.splitlines()):
                text = plain(line.strip().removeprefix("- "))
                if text and not text.endswith(":"):
                    self._put(
                        EARLIER, f"{at}.{number}", Entry(at, shortened_words(text, 2 * LINE_CHARACTERS))
                    )

    def entries(self, section: str) -> dict[str, Entry]:
        return self.sections.get(section, {})

    def take(self, note: Note, seq: int) -> None:
        """Fold one note of a message."""
        section, key, text, state, details = note
        if text is None:
            self._remove(section, key)
        elif section in (TODO, MODE) and not text:  # an item of a list, or a plan, has another state now
            if (item := self.entries(section).get(key)) is not None:
                self.sections[section][key] = item._replace(
                    seq=seq if section == TODO else item.seq, state=state
                )
        elif section == EDITED:
            before = self.entries(EDITED).get(key)
            changes = ((*before.details, *details) if before else details)[-CHANGES_KEPT:]
            edits = (before.edits if before else 0) + 1
            self._put(
                EDITED, key, Entry(seq, text, read=before.read if before else 0, edits=edits, details=changes)
            )
            self._remove(READ, key)
        elif section == READ and (edited := self.entries(EDITED).get(key)):
            self.sections[EDITED][key] = edited._replace(read=seq)
        elif section == WORK and details:
            before = self.entries(WORK).get(key)
            details = ((*before.details, *details) if before else details)[-CALLS_SHOWN:]
            self._put(WORK, key, Entry(seq, text, details=details))
        elif section == WORDS:
            again = [
                one
                for one, each in self.entries(WORDS).items()
                if each.text == text and len(text) > SHORT_ANSWER
            ]
            for one in again[1:] if again[:1] == list(self.entries(WORDS))[:1] else again:
                self._remove(WORDS, one)  # sent again, as after an interruption
            self._put(WORDS, key, Entry(seq, text))
        elif section == COMMANDS:
            ran = self.entries(COMMANDS).get(key)
            if state == DONE and (family := _family_of(key)) and _is_whole(key):
                for one, each in self.entries(COMMANDS).items():
                    if each.state == FAILED and _family_of(one) == family:
                        self.sections[COMMANDS][one] = each._replace(state=SETTLED)
            if ran is not None and ran.state == FAILED and state == DONE:
                since = [name for name, each in self.entries(EDITED).items() if each.seq > ran.seq][-3:]
                details = (
                    *details,
                    f"failed in #{ran.seq}" + (f", then edits to {', '.join(since)}" if since else ""),
                )
            self._put(COMMANDS, key, Entry(seq, text, state, details=details))
        else:
            self._put(section, key, Entry(seq, text, state, details=details))

    def _put(self, section: str, key: str, entry: Entry) -> None:
        entries = self.sections.setdefault(section, {})
        entries.pop(key, None)  # a repeated entry moves to the end
        entries[key] = entry
        if len(entries) > MOST.get(section, 20):
            spared = next(
                (one for one, each in entries.items() if each.state == DONE), ""
            )  # what was settled goes first
            keys = iter(entries)
            first = next(keys)
            del entries[spared or (next(keys) if section == WORDS else first)]  # the assignment stays

    def _remove(self, section: str, key: str) -> None:
        entries = self.sections.get(section, {})
        for one in [
            one for one in entries if one == key or not key or (key == BOXES and one.startswith(BOXES))
        ]:
            del entries[one]


# --- Reading messages ---------------------------------------------------------------------------------------
#
# It is done once, before the context is full. A digest is made in the very turn in which a context overflows.
# Reading all covered messages there would cost that turn milliseconds for each ten thousand tokens; reading a few
# with each message costs each turn the same.


class Notebook:
    """The notes of the messages that a context shows; made once for each, in O(1) of the history's length."""

    def __init__(self) -> None:
        self._added: deque[Message] = deque()
        """Messages whose notes are not made yet, oldest first."""
        self._notes: dict[int, tuple[Note, ...]] = {}
        self._calls: dict[str, _Call] = {}
        self._agents: dict[str, str] = {}
        """What each sub-agent in the background was started for, by its id."""
        self.ledger = ("", Ledger())
        """The newest ledger that an observation keeps, as it keeps it and as it is."""
        self._asked = ""
        """The last question in the agent's newest text."""
        self._command = (0, "")
        """The last message in which the person gave a command that its program replaces by a prompt, and the command."""

    def add(self, message: Message) -> None:
        """A message whose notes may be wanted: they are made by `make`, or when they are asked for."""
        self._added.append(message)

    def make(self, most: int) -> None:
        """Make the notes of the oldest messages added, of so many at most."""
        for _ in range(min(most, len(self._added))):
            self.of(self._added[0])

    def of(self, message: Message) -> tuple[Note, ...]:
        """The notes of a message. Those of a tool result name its call, if that was read before it."""
        while self._added and (added := self._added[0]).seq <= message.seq:
            self._added.popleft()
            if added.seq < message.seq:
                self.of(added)
        known = self._notes.get(message.seq)
        if known is None:
            known = self._notes[message.seq] = tuple(self._read(message))
            while len(self._calls) > _CALLS_KEPT:
                del self._calls[next(iter(self._calls))]
        return known

    def forget(self, before: int) -> None:
        """Drop the notes of messages with a lower number: an observation covers them."""
        while self._notes and (first := next(iter(self._notes))) < before:
            del self._notes[first]
        while self._added and self._added[0].seq < before:
            self._added.popleft()

    def lists_after(self, seq: int) -> list[Note]:
        """The notes on the to-do list of later messages that were added."""
        self.make(len(self._added))
        return [
            note for at, notes in self._notes.items() if at > seq for note in notes if note.section == TODO
        ]

    def _read(self, message: Message) -> Iterator[Note]:
        for number, block in enumerate(blocks_of(message.content)):
            kind, key = block.get("type"), f"{message.seq}.{number}"
            if kind == "text":
                text = str(block.get("text", ""))
                yield from (
                    self._heard(message, key, text) if message.role == "user" else self._said(key, text)
                )
            elif kind == "tool_use":
                call = self._calls[str(block.get("id", ""))] = _called(block, key)
                if call.does == "todo":
                    yield from call.notes  # a list holds whatever its tool answers
                    continue
                if call.does == "plan":
                    yield from call.notes  # a person approves or rejects it
            elif kind == "tool_result":
                call = self._calls.get(str(block.get("tool_use_id", "")), _Call("tool", "", "tool", "tool"))
                yield from (notes := list(_answered(call, key, block)))
                if call.does not in ("todo", "read"):
                    outcome = next((each for each in notes if each.section == COMMANDS and each.text), None)
                    ended = outcome.state if outcome else FAILED if block.get("is_error") else DONE
                    told = (
                        f": {one_line(outcome.details[0], CHANGE_CHARACTERS)}"
                        if outcome and outcome.details
                        else ""
                    )
                    yield Note(
                        WORK,
                        "call",
                        "",
                        details=(f"{call.shown or call.tool} → {OUTCOMES.get(ended, ended)}{told}",),
                    )
                if call.does == "agent" and not block.get("is_error"):
                    yield from self._reported(call, key, result_text(block))

    def _reported(self, call: _Call, key: str, text: str) -> Iterator[Note]:
        """What a sub-agent said; one that works in the background says it in a later call, which names its id."""
        if launched := _LAUNCHED.match(text):
            self._agents[launched[1] or launched[2]] = call.shown
            while len(self._agents) > _CALLS_KEPT:
                del self._agents[next(iter(self._agents))]
            return
        given = call.given or {}
        number = next((str(given[each]) for each in ("task_id", "agentId", "id") if given.get(each)), "")
        status = re.search(r"<status>(\w+)</status>", text[:1_000])
        told = _told_by_agent(text)
        if told and (status is None or status[1] != "running"):
            name = self._agents.get(number, call.shown)
            if _NOT_SAID_BY_AGENT.match(told):
                name = f"{name} failed"
            yield Note(AGENTS, number or key, f"{name}:\n{told}" if name else told)

    def _said(self, key: str, text: str) -> Iterator[Note]:
        if not _NOT_SAID_BY_AGENT.match(text):
            asked = [
                one.strip()
                for one in _SENTENCE.split(clipped(text, TEXT_CHARACTERS))
                if len(one) > _TELLING // 2 and one.rstrip().endswith(("?", "？"))
            ]
            self._asked = one_line(asked[-1], LINE_CHARACTERS) if asked else ""
            yield from _replied(key, text)

    def _heard(self, message: Message, key: str, text: str) -> Iterator[Note]:
        words, command = spoken(text)
        at, name = self._command
        if command:
            self._command = (message.seq, words)
            yield Note(MODE, "command", f"the command {words.partition(' ')[0]}")
        elif name and message.seq - at <= 1:  # what the program put in the place of the command
            words = ""
            if len(text) > LINE_CHARACTERS:
                said = name.partition(" ")[0]
                yield Note(MODE, "command", f"the command {said}; its instructions: {HERE}{headings(text)}")
        if words and len(words) <= SHORT_ANSWER and self._asked:
            words = f"asked “{self._asked}” → answered: {words}"
        if words:
            self._asked = ""
            yield Note(WORDS, key, words)
        if _TASK_NEWS.search(text[:SCAN_CHARACTERS]):
            yield from _delivered(text, key)
        elif _NOTIFIED.match(text):
            parts = dict(_PARTS.findall(text))
            if parts.get("result"):
                yield Note(
                    AGENTS,
                    key,
                    f"{_line(parts.get('summary', 'a sub-agent'))}:\n{_told_by_agent(parts['result'])}",
                )


_HEADING = re.compile(r"^#{1,4} +(\S.{0,79})$", re.MULTILINE)
MOST_HEADINGS = 12


def headings(text: str) -> str:
    """The headings of a Markdown text, as an addition to its pointer."""
    found = [one_line(each, 60) for each in _HEADING.findall(clipped(text, 20_000))]
    more = f" and {len(found) - MOST_HEADINGS} more" if len(found) > MOST_HEADINGS else ""
    return f" ({'; '.join(found[:MOST_HEADINGS])}{more})" if found else ""


def quoted(text: str, limit: int = TEXT_CHARACTERS) -> str:
    """A text as it is, without what would end its line's frame; a long one as its headings and its pointer, and one
    without headings as its beginning and end."""
    text = plain(sanitize(clipped(text, 20_000))).strip()
    if len(text) <= limit:
        return text
    heads = headings(text)
    if heads:
        return f"{text[: limit // 2].rpartition(chr(10))[0]}\n[… whole: {HERE}{heads}]"
    return shortened_words(text, limit)


_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|(?<=[。！？])|\n+")


_ITEM = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s", re.MULTILINE)


_TELLING = 25
"""Characters of a sentence below which it is an interjection."""
_NOT_SAID_BY_AGENT = re.compile(
    r"No response requested\.|API Error\b|You've hit your .{0,40}limit|Claude (?:AI )?usage limit"
)
"""Begins what Claude Code writes in a model's place."""


def _ends_of(text: str) -> str:
    """The first and the last sentence of a text that are more than interjections; a short one with a list complete."""
    if len(text) <= LIST_CHARACTERS and _ITEM.search(text):
        return text.strip()
    parts = [part for part in (one.strip().lstrip("-*#> \t") for one in _SENTENCE.split(text)) if part]
    parts = [part for part in parts if len(part) >= _TELLING] or parts
    if not parts:
        return ""
    first = one_line(parts[0], LINE_CHARACTERS)
    return first if len(parts) == 1 else f"{first} … {one_line(parts[-1], LINE_CHARACTERS)}"


BOXES = "boxes"
"""Begins the keys of a list that an agent keeps in its texts; one that it keeps by a tool counts more."""
_BOX = re.compile(r"^\s*(?:[-*]|\d+\.)\s*\[(?P<mark>[ xX])\]\s*(?P<item>.+)")


def _replied(key: str, text: str) -> Iterator[Note]:
    """What an agent said: its newest words complete, earlier ones by their first and last sentences."""
    short = plain(_ends_of(clipped(text, TEXT_CHARACTERS)))
    if not short:
        return
    yield Note(SAID, key, short, LONG if len(text) >= LONG_REMARK else "")
    yield Note(WORK, "said", quoted(text))
    if "[ ]" in text or "[x]" in text.lower():
        boxes = [match for line in clipped(text).splitlines()[:200] if (match := _BOX.match(line))]
        if boxes:
            yield Note(TODO, BOXES, None)
        for match in boxes:
            item = _line(match["item"])
            yield Note(TODO, f"{BOXES} {item}", item, OPEN if match["mark"] == " " else DONE)


def _list(items: Iterable[tuple[str, str, str]]) -> Iterator[Note]:
    """A whole to-do list takes the place of the one before. Each item: its text, its state, its key if it has one."""
    yield Note(TODO, "", None)
    for text, state, key in items:
        text = plain(one_line(text, 2 * LINE_CHARACTERS))
        yield Note(TODO, key or text, text, state)


# --- Calls --------------------------------------------------------------------------------------------------

_READS = re.compile(r"read|view|open|cat", re.I)
_LISTS = re.compile(r"todo|plan|task", re.I)
_FINISHED = frozenset({"completed", "done", "cancelled", "canceled", "dropped", "deleted", "skipped"})
_RUNNING = frozenset({"in_progress", "in-progress", "running", "active"})
_AGENT_TOOLS = frozenset(["task", "agent", "spawn_agent", "taskoutput", "agentoutputtool", "wait_agent"])
"""Tools whose result is what a sub-agent said. Some start one in the background; others bring its result later."""
_LAUNCHED = re.compile(
    r"\s*(?:Async agent launched.{0,40}\s+agentId: (\w+)|\{\"agent_id\": ?\"([\w-]+)\"[^{}]*\}\s*$)"
)
_ARGUMENT_KEYS = (
    "command", "cmd", "pattern", "query", "url", "description", "prompt", "skill", "task", "name", "subject", "question",
)  # fmt: skip
"""What tells most of a call, the first that it has."""
_NOISE = re.compile(r"^cd \S+ *&& *|\s*(?:2>&1|\|\s*(?:head|tail)\b[^|;&]*)")


def _called(block: Block, key: str) -> _Call:
    """A tool call, and what it puts into the ledger."""
    tool, given = str(block.get("name", "")), block.get("input")
    if not isinstance(given, dict):
        return _Call(tool, "", tool, tool)
    name, path = tool.lower(), path_of(given)
    argument = next((text for each in _ARGUMENT_KEYS if (text := argument_text(given.get(each)))), "")
    edited = tuple(_edits(given, path))
    shown = _line(
        f"{tool} {_NOISE.sub('', argument[:400])}"
        + (f" in {path}" if path and argument else path if path else "")
    )
    if edited:
        return _Call(
            tool, "edit", f"{tool} {path}", _line(f"{tool} {', '.join(each.key for each in edited)}"), edited
        )
    if isinstance(given.get("questions"), list):
        return _Call(tool, "ask", key, shown, given=given)
    if name.replace("_", "").endswith("exitplanmode"):
        plan = quoted(argument_text(given.get("plan")))
        return _Call(tool, "plan", key, tool, (Note(MODE, "plan", plan, OPEN),) if plan else ())
    if name.replace("_", "").endswith("enterplanmode"):
        mode = Note(MODE, "mode", "plan mode: no changes until a plan is approved")
        return _Call(tool, "mode", key, tool, (mode,))
    if (_LISTS.search(tool) or "todos" in given or "plan" in given) and (
        listed := tuple(_todos(name, given))
    ):
        return _Call(tool, "todo", key, shown, listed, given)
    if (name in _AGENT_TOOLS and isinstance(given.get("prompt"), str | None)) or "subagent_type" in given:
        named = _line(str(given.get("description") or given.get("name") or argument))
        return _Call(tool, "agent", key, named, given=given)
    if name.endswith("save_artifact"):
        return _Call(
            tool,
            "save",
            shown,
            shown,
            (Note(SAVED, str(given.get("name")), f"artifact {given.get('name')}"),),
        )
    if name.endswith(("recall", "read_back")):
        return _Call(tool, "recall", shown, shown)
    if command := command_of(given):
        return _Call(
            tool,
            "command",
            command_key(command),
            one_line(_line(_NOISE.sub("", command[:400])), COMMAND_CHARACTERS),
            given=given,
        )
    if path and not argument and _READS.search(tool):
        return _Call(tool, "read", shown, _line(f"{tool} {path}"), (Note(READ, path, path),))
    if name == "skill" and argument:
        return _Call(tool, "", shown, shown, (Note(MODE, "skill", f"the skill {one_line(argument, 80)}"),))
    return _Call(tool, "", shown, shown)


def _line(text: str) -> str:
    return plain(one_line(text, LINE_CHARACTERS)).strip()


def _edits(given: dict[str, Any], path: str) -> Iterator[Note]:
    """The files that a call writes, each with the first line of what it brings."""
    if path and not EDIT_KEYS.isdisjoint(given):
        change = _change_of(given)
        yield Note(EDITED, path, path, details=(change,) if change else ())
    for leaf in leaves(given):
        if "*** Begin Patch" in leaf[:2_000]:
            for before, after in PATCHED.findall(clipped(leaf, 20_000))[:20]:
                name = plain(one_line((before or after).strip(), LINE_CHARACTERS))
                yield Note(EDITED, name, name)


_PROSE = re.compile(r"[^\W\d_]{2,}")
CHANGE_CHARACTERS = 90


def _change_of(given: dict[str, Any]) -> str:
    """The first line that an edit brings."""
    old, new = (
        next((given[key] for key in keys if isinstance(given.get(key), str)), "")
        for keys in (
            ("old_string", "oldString", "old_str"),
            ("new_string", "newString", "new_str", "content", "file_text", "new_source"),
        )
    )
    before = {line.strip() for line in clipped(old).splitlines()}
    lines = (line.strip() for line in clipped(new).splitlines())
    brought = next((line for line in lines if line not in before and _PROSE.search(line)), "")
    return plain(one_line(brought, CHANGE_CHARACTERS)).replace("`", "'")


def _todos(name: str, given: dict[str, Any]) -> Iterator[Note]:
    """The to-do list that an agent keeps by a tool; created and updated items are known by their numbers."""
    items = given.get("todos") or given.get("plan") or (given.get("tasks") if name == "create_plan" else None)
    if isinstance(items, list) and all(isinstance(item, dict) for item in items):
        listed = []
        for item in items[: MOST[TODO]]:
            text = item.get("content") or item.get("step") or item.get("title") or item.get("text")
            key = f"[{item['name']}]" if name == "create_plan" and item.get("name") else ""
            if text:
                listed.append((f"{key} {text}".strip(), _state(item), key))
        yield from _list(listed)
        return
    key = f"[{given.get('taskId') or given.get('task') or given.get('name')}]"
    if name == "add_task" and given.get("title"):
        yield Note(TODO, key, _line(f"{key} {given['title']}"), OPEN)
    elif name == "drop_task":
        yield Note(TODO, key, None)
    elif name == "taskupdate" and given.get("status"):
        yield Note(TODO, key, None if given["status"] == "deleted" else "", _state(given))
    elif name == "taskcreate" and isinstance(given.get("subject"), str):
        yield Note(TODO, f"[{given['subject']}]", _line(given["subject"]), OPEN)


def _state(item: dict[str, Any]) -> str:
    status = str(item.get("status", "")).lower()
    return DONE if status in _FINISHED else RUNNING if status in _RUNNING else OPEN


_WRAPPERS = re.compile(
    r"^(?:(?:sudo|time|nohup|env|exec|command) +|timeout +\S+ +|\w+=\S* +|(?:uv|poetry|pdm|pipenv|hatch) run +(?:-\S+ +)*"
    r"|(?:npx|bunx|pnpm exec|yarn exec) +(?:-\S+ +)*|python[\d.]* +-m +)+"
)
_FILTERS = frozenset(
    [
        "head", "tail", "grep", "egrep", "rg", "sed", "awk", "cut", "sort", "uniq", "wc", "tee", "cat", "less", "jq", "tr",
        "xargs", "column",
    ]
)  # fmt: skip
"""Programs that only filter what another one prints."""
_REDIRECTED = re.compile(r"\s*(?:\d|&)?>{1,2}&? *[\w./&~$-]+")
_SEPARATORS = re.compile(r"\s*(?:&&|\|\||;|\n)\s*")


def command_key(command: str) -> str:
    """The program and the target of a shell command, without its flags, its output filters and the commands
    before it: `pytest tests/a` of `cd x && uv run pytest -q tests/a | tail -3`."""
    parts = [
        part
        for part in _SEPARATORS.split(clipped(command, SCAN_CHARACTERS))
        if part and not part.startswith(("cd ", "export "))
    ]
    shell = parts[-1] if parts else command
    pieces = [piece.strip() for piece in shell.split(" | ")]
    chosen = next((one for one in reversed(pieces) if one.split(" ")[0] not in _FILTERS), pieces[0])
    chosen = _REDIRECTED.sub("", _WRAPPERS.sub("", chosen))
    try:
        words = shlex.split(chosen)
    except ValueError:
        words = chosen.split()
    kept = [word for word in words if not word.startswith("-") and not re.match(r"\d*[<>]", word)]
    return one_line(" ".join(kept), LINE_CHARACTERS)


# --- Results ------------------------------------------------------------------------------------------------

_REJECTED = re.compile(r"user (?:doesn't want to|declined|rejected|denied)", re.I)
_SHELLS = re.compile(r"bash|shell|exec|command|terminal", re.I)
_FAILS = re.compile(
    r"^(?:Error: )?(?:Process )?[Ee]xit(?:ed)?(?: with)? code:? [1-9]\d{0,2}$|\"exit_code\": ?[1-9]|^Traceback \(most recent call"
    r"|^FAILED \S|^--- FAIL: |^FAIL\b|^=+ .{0,80}\d+ (?:failed|errors?)\b|^error(?:\[\w+\])?: "
    r"|^\S+\.\w+:\d+:\d+: |^\S+\(\d+,\d+\): error ",
    re.MULTILINE,
)
_FAMILIES = re.compile(
    r"\b(?:(?P<test>test|tests|pytest|jest|vitest)|(?P<lint>lint|ruff|eslint|clippy|tsc|mypy|typecheck)"
    r"|(?P<build>build|compile))\b"
)
PUBLISHES = re.compile(r"git (?:commit|push|merge|tag)\b|gh (?:pr|issue|release)\b|.*(?:create|update)_issue")
"""Commands whose effect others see."""
OUTCOMES = {DONE: "ok", SETTLED: "failed, then passed", RAN: "ran"}


def _family_of(key: str) -> str:
    """What kind of check a command is: `test`, `lint`, `build`, or empty."""
    found = _FAMILIES.search(key)
    return (found.lastgroup or "") if found else ""


def _is_whole(key: str) -> bool:
    """Whether a check names no single file or test: it covers what a narrower one checked."""
    return not any(("." in word and "..." not in word) or "::" in word for word in key.split()[1:])


_PASSES = re.compile(r"\b[1-9]\d* passed\b|^(?:ok|PASS)\b|^--- PASS: ", re.MULTILINE)
"""What tests print that passed, whatever hides their exit code."""
_UNCLEAR = re.compile(r"\[((?:interrupted, )?outcome unknown|not run)\]")
_LOOKS = re.compile(r"read|view|grep|glob|search|list|ls\b|fetch", re.I)
_HIDES = re.compile(r"\|\| *(?:true|echo|:)|\| *(?:head|tail|grep|sed|awk|tee|cut|sort|wc|less|cat)\b")
"""What hides the exit code of a command."""
_STATUS = re.compile(r"(?:Error: )?(?:Process )?exit(?:ed)?\b", re.IGNORECASE)
_VERDICT = re.compile(
    r"\b\d[\d,]* (?:\w+ )?(?:passed|failed|errors?|failures?|warnings?|tests?|files?|matches|results?|issues?|insertions?"
    r"|deletions?|commits?|changed|skipped|problems?|packages?|rows?|lines?)\b|^(?:OK|PASS|FAIL|ok|Success|SUCCESS|FAILED)\b"
    r"|^\[[\w/.-]+ [0-9a-f]{7,}\]|^To \S+|https?://\S+/(?:pull|issues)/\d+|^Found \d|^Successfully |^✓|^✗|^✘"
)
_FRAME = re.compile(r"<(usage|task_id|agentId|total_tokens|duration_ms)\b[^>]*>.*?</\1>|^agentId: .*$|^total_tokens: .*$"
                    r"|^duration_ms: .*$|^tool_uses: .*$", re.DOTALL | re.MULTILINE)  # fmt: skip
_PARTS = re.compile(r"<(summary|result)>(.*?)</\1>", re.DOTALL)
_NOTIFIED = re.compile(r"\s*(?:\[SYSTEM NOTIFICATION[^\]]*\]\s*)?<task-notification\b")


def _told_by_agent(text: str) -> str:
    """The end of what a sub-agent said, without what its program puts around it and the calls that it made."""
    if "<output>" in text[:1_000]:
        text = text.partition("<output>")[2].rpartition("</output>")[0] or text
    text = _FRAME.sub("", text[-20_000:].rpartition("--- RESULT ---")[2])
    told = "\n".join(line for line in text.splitlines() if not line.startswith("[Tool: "))
    heading = re.search(r"^#{1,4} +\S", told, re.MULTILINE)
    if (
        heading
        and heading.start() < PREAMBLE_CHARACTERS
        and len(told) - heading.start() > PREAMBLE_CHARACTERS
    ):
        told = told[heading.start() :]  # the text before it only announces the report
    return quoted(told, AGENT_CHARACTERS)


PREAMBLE_CHARACTERS = 400


_LISTED = re.compile(r"^#(\w+) \[(\w+)\] ", re.MULTILINE)
"""A line of what Claude Code's TaskList answers."""
_POINTER = re.compile(r"message://[\w-]+/\d+(?:-\d+)?")


def _answered(call: _Call, key: str, block: Block) -> Iterator[Note]:
    text, given = result_text(block), call.given or {}
    scanned = clipped(text, SCAN_CHARACTERS)
    marked = bool(block.get("is_error"))
    reason = refused(text) if marked else ""
    if marked and (reason or _REJECTED.search(scanned[:400])):
        if reason:
            yield Note(WORDS, key, f"on {call.shown or call.tool}: {reason}")
        if call.does == "plan":
            yield Note(MODE, "plan", "", FAILED)
        return
    if call.does == "ask" and not marked:
        yield Note(WORDS, key, answers(given.get("questions", []), clipped(text, 2 * WORDS_CHARACTERS)))
        return
    name = call.key if call.does == "command" else f"{call.tool} {call.key}"
    if marked and call.does in ("read", "") and not _SHELLS.search(call.tool) and _LOOKS.search(call.tool):
        return  # a file that is not there is no failure of the work
    if (
        unclear := _UNCLEAR.match(text) if marked else None
    ):  # Watchkeeper's own words for a call that was cut, or not made
        state = UNKNOWN if "unknown" in unclear[1] else NOT_RUN
        yield Note(COMMANDS, name, call.shown, state)
        return
    if marked or (call.does == "command" and name.split(" ")[0] not in _FILTERS and _FAILS.search(scanned)):
        telling = tuple(error_lines(scanned)[:3]) or (_failing_line(scanned),)
        if counts := [line for line in _telling(scanned, 1) if line not in telling]:
            telling = (*telling[:2], *counts)
        yield Note(COMMANDS, name, call.shown, FAILED, tuple(_line(each) for each in telling))
        return
    if call.does == "plan":
        plan = quoted(text.partition("## Approved Plan")[2].partition("\n")[2])  # as a person edited it
        yield Note(MODE, "plan", plan, DONE)
        yield Note(MODE, "mode", None)
    elif call.does != "todo":
        yield from call.notes
    elif given.get("subject") and (number := re.search(r"#(\w+)", scanned)):
        yield Note(TODO, f"[{given['subject']}]", None)
        yield Note(TODO, f"[{number[1]}]", _line(given["subject"]), OPEN)
    if call.tool.lower() == "tasklist":
        yield from (
            Note(TODO, f"[{number}]", "", _state({"status": status}))
            for number, status in _LISTED.findall(scanned)
        )
    if call.does == "recall":
        found = list(dict.fromkeys(_POINTER.findall(scanned)))[:5]
        yield Note(COMMANDS, name, call.shown, DONE, (", ".join(found) or "nothing found",))
    elif call.does in ("command", ""):
        whole = text.strip()
        short = len(whole) <= LINE_CHARACTERS
        details = (_line(whole),) if short and whole else tuple(_telling(scanned, 2))
        if details or call.does == "command":
            hidden = (
                call.does == "command"
                and whole
                and _HIDES.search(command_of(given))
                and not _PASSES.search(scanned)
            )
            yield Note(COMMANDS, name, call.shown, RAN if hidden else DONE, details)
    elif call.does in ("edit", "read", "save"):  # listed as what was edited, read or saved
        yield Note(COMMANDS, name, None)


def _telling(text: str, most: int) -> list[str]:
    """The lines of a result that answer: counts, verdicts; the last ones."""
    lines = [line for line in text.splitlines() if len(line) < 2_000 and _VERDICT.search(line)]
    return [_line(line) for line in lines[-most:]]


def _failing_line(text: str) -> str:
    """The line that shows the failure, if it says more than a status; else the last one with words."""
    shown = _FAILS.search(text)
    line = text[shown.start() :].partition("\n")[0] if shown else ""
    if line and not _STATUS.match(line):
        return line
    lines = [line for line in text.splitlines() if _PROSE.search(line) and not _STATUS.match(line)]
    return lines[-1] if lines else text


_ANSWERED = re.compile(r"\.? *(?:You can now continue|Read the answers carefully)\b.*\Z", re.DOTALL)
"""What a program says to the model behind the answers."""
_ANSWER = re.compile(r'"(.*?)"((?: user| selected)? (?:notes|preview):.*)?', re.DOTALL)


def answers(questions: Sequence[Any], text: str) -> str:
    """What a person answered to each question that an agent asked by a tool, with the question."""
    asked = [
        (str(each.get("id", "")), str(each["question"]))
        for each in questions
        if isinstance(each, dict) and "question" in each
    ]
    told: dict[str, str] = {}
    try:
        given = json.loads(text).get("answers")
    except (ValueError, AttributeError):
        given = None
    if isinstance(given, dict):
        told = {
            question: ", ".join(leaves(given[name]))
            for number, question in asked
            for name in (number, question)
            if name in given
        }
        text = ", ".join(leaves(given)) or text
    else:
        found = _ANSWERED.sub("", text)
        places = sorted((at, one) for _, one in asked if (at := found.find(f'"{one}"=')) >= 0)
        said = {
            one: found[at + len(one) + 3 : end].strip(" ,")
            for (at, one), (end, _) in pairwise([*places, (len(found), "")])
        }
        for question in (one for _, one in asked if one in said):
            quotes = _ANSWER.fullmatch(said[question])
            notes = f";{quotes[2]}" if quotes and quotes[2] else ""
            told[question] = f"{quotes[1]}{notes}" if quotes else said[question]
    if not told:
        told = {" / ".join(question for _, question in asked): text.strip()}
    return plain(
        "; ".join(
            f"asked “{one_line(question, 400)}” → answered: "
            + shortened_words(one_line(answer, 4 * WORDS_CHARACTERS), WORDS_CHARACTERS)
            for question, answer in told.items()
        )
    )


_TASK_NEWS = re.compile(r"^Task (\S+) (is done|failed|was cancelled)\b", re.MULTILINE)
"""A line of the note that tells a planner of a task."""


def _delivered(text: str, key: str) -> Iterator[Note]:
    """What an inbox tells a planner of its tasks: a line of each, and what it said as JSON."""
    for name, news in _TASK_NEWS.findall(text[:SCAN_CHARACTERS]):
        yield Note(TODO, f"[{name}]", "", FAILED if news == "failed" else DONE)
    try:
        items = json.loads(text[text.index('{"inbox"') :].partition("\n")[0]).get("inbox")
    except (ValueError, AttributeError):
        items = []
    for number, item in enumerate(each for each in items if isinstance(each, dict)):
        task, kind = str(item.get("task", "")), str(item.get("kind", ""))
        state = {"task_done": DONE, "task_failed": FAILED}.get(kind, "")
        if not task or not state:
            continue
        told = str(item.get("result") or item.get("error") or "")
        yield Note(
            AGENTS, f"{key}.{number}", f"{task} {'is done' if state == DONE else 'failed'}:\n{quoted(told)}"
        )
        for name in item.get("artifacts") or ():
            yield Note(SAVED, str(name), f"artifact {name}")
