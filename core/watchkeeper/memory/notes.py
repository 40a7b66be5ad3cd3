"""What is worth keeping of one message: its identifiers, and the notes from which digests are put together.

Notes are made once, before a digest needs them, in time that does not depend on the history's length: the user's
words, to-do items, files, names, failures, decisions, the current work.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from watchkeeper.memory.content import blocks_of, result_text, texts_of
from watchkeeper.memory.tokens import plain
from watchkeeper.records.messages import Block, Message
from watchkeeper.records.text import one_line, sanitize
from watchkeeper.records.tool_inputs import EDIT_KEYS, PATCHED, PATH, argument_text, leaves, path_of

# --- Identifiers that a summary must not lose ---------------------------------------------------------------
#
# Paths, URLs, hashes, ids, error lines, and numbers in decisions.

URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s<>\"'`)\]}]{3,300}")

HASH = re.compile(
    r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b(?=[0-9a-f]{0,63}\d)(?=[0-9a-f]{0,63}[a-f])[0-9a-f]{7,64}\b"
)
"""Git hashes, digests and UUIDs."""

ID = re.compile(r"\b[A-Za-z]{2,12}[-_](?=[A-Za-z0-9_-]{0,60}\d)[A-Za-z0-9_-]{1,60}\b|(?<![\w&/])#\d{1,7}\b")
"""Ticket and record ids: `PROJ-123`, `toolu_01ab`, `#4679`."""

_ERROR_WORDS = ("error", "exception", "fatal", "panic", "failed", "traceback")
ERROR = re.compile(
    r"\b(?:\w{0,60}(?:Error|Exception)\b\s*[:(\[]|(?:error|fatal|panic(?:ked)?)\b(?:\[\w+\])?\s*:"
    r"|FAILED\b|Traceback \(|[Ee]rror \w)"
)
_NUMBERED = re.compile(r"^\s*\d{1,6}\s*(?:→|\||\t|:)")
"""A numbered line of a file that was read: it speaks of errors, it is none."""

DECISION = re.compile(
    r"\b(?:decid|decision|chose|choos|instead of|must|limit|budget|set to|threshold|port|version)\w*", re.I
)

MENTIONED = "Also mentioned"
"""The list of identifiers that is appended to a summary which dropped them."""

LISTED = re.compile(r"(.+) → #(\d{1,9})")
"""A line of that list: the identifier, and the last message that names it."""

NUMBER = re.compile(r"(?<![\w.])\d[\d,_]{0,20}(?:\.\d{1,10})?%?(?!\w)")

SCAN_CHARACTERS = 4_000
"""So many characters are read from the beginning of a text, and as many from its end, to bound CPU time."""

PER_MESSAGE = 40


def clipped(text: str, limit: int = SCAN_CHARACTERS) -> str:
    """The beginning and the end of a long text, cut between lines, else between words, so that no identifier is cut in
    two."""
    if len(text) <= 2 * limit:
        return text
    first, last = limit // 2, len(text) - limit // 2
    ends = (text.rfind(joint, first, limit) for joint in _JOINTS)
    begins = (text.find(joint, len(text) - limit, last) for joint in _JOINTS)
    head = text[: max(0, next((end for end in ends if end >= 0), 0))]
    tail = text[next((begin + 1 for begin in begins if begin >= 0), len(text)) :]
    return f"{head}\n{tail}"


_JOINTS = ("\n", " ", ",", ";", "&", "|")
"""Where a text is cut, the best first. A run of other characters that is longer than half of what is read is data."""


def paths_in(text: str) -> list[str]:
    """Paths and file names, in order of appearance, each once."""
    # Most words hold neither: leaving them out first makes prose ten times cheaper.
    words = " ".join(word for word in clipped(text).split() if "/" in word or "." in word)
    return list(dict.fromkeys(match.rstrip(".,:;") for match in PATH.findall(words)))


def error_lines(text: str) -> list[str]:
    """Lines that report an error (at most 160 characters of each), each once."""
    found: dict[str, None] = {}
    for line in clipped(text).splitlines():
        if len(line) > 2_000:
            line = line[:2_000]
        lowered = line.lower()
        if any(word in lowered for word in _ERROR_WORDS) and ERROR.search(line) and not _NUMBERED.match(line):
            found[" ".join(line.split())[:160]] = None
    return list(found)


def identifiers_in(text: str) -> list[str]:
    """All identifiers of a text, each once."""
    text = clipped(text)
    urls = [url.rstrip(".,:;") for url in URL.findall(text)] if "://" in text else []
    if urls:
        text = URL.sub(" ", text)
    decisions = [
        line
        for line in text.splitlines()
        if len(line) <= 400 and DECISION.search(line) and not _NUMBERED.match(line)
    ]
    numbers = [number for line in decisions for number in NUMBER.findall(line) if len(number) >= 2]
    found = (*urls, *paths_in(text), *HASH.findall(text), *ID.findall(text), *error_lines(text), *numbers)
    return list(dict.fromkeys(found))


def gather(messages: Iterable[Message]) -> dict[str, int]:
    """Identifier → the last message that contains it; at most `PER_MESSAGE` of each message."""
    found: dict[str, int] = {}
    for message in messages:
        own: dict[str, None] = {}
        for text in texts_of(message.content):
            own |= dict.fromkeys(identifiers_in(text))
            if len(own) >= PER_MESSAGE:
                break
        found |= dict.fromkeys(list(own)[:PER_MESSAGE], message.seq)
    return found


# --- What a digest says of one message ----------------------------------------------------------------------
#
# It is extracted once, before the context is full. A digest is made in the very turn in which a context
# overflows. Reading all covered messages there would cost that turn milliseconds for each ten thousand
# tokens; reading a few with each message costs each turn the same.

LINE_CHARACTERS = 240
TEXT_CHARACTERS = 2_000
"""So many characters are read from the beginning of each text, and as many from its end."""
WORDS_CHARACTERS = 6_000
"""At most, of one message of the user."""
TODO = "to do"

GOALS, OPEN, CURRENT, DECISIONS = "Goals", "Open tasks", "Current work", "Decisions"
ERRORS, FILES, NAMES, RESULTS, PROGRESS, EARLIER = (
    "Errors",
    "Files",
    "Names",
    "Last results",
    "Progress",
    "Earlier",
)
ASKED = "Asked to keep"
SECTIONS = (
    ASKED, GOALS, OPEN, CURRENT, DECISIONS, ERRORS, FILES, NAMES, RESULTS, PROGRESS, EARLIER,
)  # fmt: skip

_DECIDED = re.compile(
    r"\b(?:decid|decision|chose|choosing|instead|because|conclu|agreed|will use|must|never|always)\w*", re.I
)
_BOX = re.compile(r"^\s*(?:[-*]|\d+\.)\s*\[(?P<mark>[ xX])\]\s*(?P<item>.+)")
_NEXT = re.compile(
    r"\b(?:next|now (?:I|let)|let me|let's|I'll|I will|I need to|remaining|still (?:to do|need))\b", re.I
)
_SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n+")
_WORD = re.compile(r"\w{4,}")
_FINISHED = frozenset({"completed", "done", "cancelled", "canceled", "dropped", "deleted", "skipped"})
_RUNNING = frozenset({"in_progress", "in-progress", "running", "active"})
_CALLS_KEPT = 2_000


class Note(NamedTuple):
    """What a message adds to a section, or takes out of it."""

    section: str
    text: str | None
    """None: the lines with the key (of the to-do list all, where there is no key) are void."""
    key: str = ""
    """A later note of the same section and key takes this one's place; empty: the text itself."""
    weight: int = 1
    """How much it tells that the message holds a name. For an error 0 where nothing but its text says that the call
    failed."""


class _Call(NamedTuple):
    """A tool call that waits for its result."""

    tool: str
    signature: str
    """Tool and what it was given, on one line: what tells whether the same was called again."""
    path: str
    does: str
    """`edit`, `read`, `todo` or `` (anything else)."""
    subject: str = ""
    """The item that the call adds to the to-do list, if it does."""


class DigestIndex:
    """The notes of the messages that a context shows; made once for each, in O(1) of the history's length."""

    def __init__(self) -> None:
        self._added: deque[Message] = deque()
        """Messages whose notes are not made yet, oldest first."""
        self._notes: dict[int, tuple[Note, ...]] = {}
        self._lists: dict[int, tuple[Note, ...]] = {}
        """Those of them that concern the to-do list."""
        self._calls: dict[str, _Call] = {}
        self._command_at = 0
        """The last message in which the user gave a command that its program replaces by a prompt."""

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
            if lists := tuple(note for note in known if note.section == OPEN):
                self._lists[message.seq] = lists
            while len(self._calls) > _CALLS_KEPT:
                del self._calls[next(iter(self._calls))]
        return known

    def forget(self, before: int) -> None:
        """Drop the notes of messages with a lower number: a digest covers them (and can be made again
        without)."""
        while self._notes and (first := next(iter(self._notes))) < before:
            del self._notes[first]
            self._lists.pop(first, None)
        while self._added and self._added[0].seq < before:
            self._added.popleft()

    def lists_after(self, seq: int) -> Iterator[tuple[int, Note]]:
        """The notes on the to-do list of later messages that were added."""
        self.make(len(self._added))
        return ((at, note) for at, notes in self._lists.items() if at > seq for note in notes)

    def _read(self, message: Message) -> Iterator[Note]:
        for block in blocks_of(message.content):
            kind = block.get("type")
            if kind == "text":
                text = str(block.get("text", ""))
                yield from self._said(message, text) if message.role == "user" else _replied(text)
            elif kind == "tool_use":
                call, notes = _called(block)
                self._calls[str(block.get("id", ""))] = call
                yield from notes
            elif kind == "tool_result":
                call = self._calls.get(str(block.get("tool_use_id", "")), _Call("tool", "tool", "", ""))
                yield from _answered(call, block)

    def _said(self, message: Message, text: str) -> Iterator[Note]:
        words, command = spoken(text)
        if command:
            self._command_at = message.seq
        elif self._command_at and message.seq - self._command_at == 1:
            words = ""  # what the program put in the place of the command
        if words:
            yield Note(GOALS, words)
            yield from _names(words, 5)
            yield from (Note(FILES, path, path) for path in paths_in(words)[:12])
            yield from _boxes(words)
        if '"inbox"' in text:
            yield from (Note(OPEN, None, f"[{task}]") for task in _ENDED.findall(clipped(text)))


# --- The user's words ---------------------------------------------------------------------------------------
#
# What is in the user's role is not always the user's: programs put reminders, the output of commands and
# the text behind a command there. They enclose them in tags, or begin them always alike.

HERE = "message://./"
"""Replaces the pointer to the message until the digest, which knows the agent, is made."""
_ARGUMENTS = re.compile(r"<command-(name|args)>(.*?)</command-\1>", re.DOTALL)
_TAG = re.compile(r"<([A-Za-z]+(?:[-_][A-Za-z]+)+)(?:\s[^<>]{0,200})?>")
_NOT_SAID = re.compile(
    r"(?:Caveat: The messages below|\[Request interrupted|This session is being continued from"
    r"|Base directory for this skill|\w+ hook (?:feedback|blocking error)|# AGENTS\.md instructions"
    r"|Your reply was cut at its length limit|Go on\.\Z|\[Image: source|\[SYSTEM NOTIFICATION"
    r"|Please continue the conversation from where we left)"
)
_OWN_PARTS = re.compile(
    r"^(?:handoff: \{|Read an input with `|What this session knows so far:|Save each expected output|"
    r"When you are done, reply with|You keep the memory of the earlier|The workspace is \S+\. Look at it|"
    r"\{\"inbox\": \[|Task \S+ (?:is done|failed|is paused|was cancelled)|You were resumed\.).*?(?:\n\n|\Z)",
    re.DOTALL | re.MULTILINE,
)
"""Parts of the prompts that this program writes itself."""
_ENDED = re.compile(r"^Task (\S+) (?:is done|was cancelled)", re.MULTILINE)
"""What this program tells a planner of a task that ended."""
_CLIENT_COMMANDS = re.compile(
    r"/?(?:add-dir|agents|clear|compact|config|context|copy|cost|doctor|effort|exit|export|fast|help|hooks|ide|login|logout"
    r"|mcp|memory|model|permissions|plugin|quit|release-notes|rename|resume|rewind|status|theme|usage|vim)"
)
"""Commands of Claude Code that ask the model for nothing."""
_DENIED = re.compile(
    r"(?:the user said|user provided the following reason[^:]{0,60}):\s*(.+)", re.DOTALL | re.I
)


def spoken(text: str) -> tuple[str, bool]:
    """What a person (or a planner) wrote of a text in the user's role, on one line, long pastes left out; and
    whether it is a command that the program replaces by a prompt."""
    whole = len(text)
    text = clipped(text, 2 * WORDS_CHARACTERS)
    is_cut = len(text) < whole
    command = ""
    if "<command-" in text:
        parts = dict(_ARGUMENTS.findall(text))
        name = parts.get("name", "").strip()
        if not _CLIENT_COMMANDS.fullmatch(name):
            command = f"{name} {parts.get('args', '').strip()}".strip()
    text = _OWN_PARTS.sub("", _without_tagged(text, is_cut)).strip()
    if _NOT_SAID.match(text):
        text = ""
    text = text.removeprefix("# Goal\n").removeprefix("A person says: ")
    words = plain(" ".join(sanitize(_without_pastes(f"{command}\n{text}")).split()))
    return shortened_words(words, WORDS_CHARACTERS), bool(command) and not text


MOST_PLACEHOLDERS = 100
"""Most placeholders of one message: for each, the rest of the text is searched."""


def _without_tagged(text: str, is_cut: bool) -> str:
    """Text without what programs enclose in tags. A tag that nothing closes is a placeholder (`<file-name>`), unless it
    begins a line of a text of which the middle is left out (`is_cut`)."""
    kept: list[str] = []
    place = 0
    unclosed: set[str] = set()
    for tag in _TAG.finditer(text):
        if tag.start() < place or tag[1] in unclosed or len(unclosed) > MOST_PLACEHOLDERS:
            continue
        end = text.find(f"</{tag[1]}>", tag.end())
        begins_line = not tag.start() or text[tag.start() - 1] == "\n"
        if end < 0 and not (is_cut and begins_line):
            unclosed.add(tag[1])
            continue
        kept.append(text[place : tag.start()])
        place = len(text) if end < 0 else end + len(tag[1]) + 3
    return "\n".join([*kept, text[place:]])


_FENCE = re.compile(r"^\s*```")
_PROSE = re.compile(r"[^\W\d_]{2,}")
FEW_LINES = 4


def _without_pastes(text: str) -> str:
    """Text with each run of lines that are no sentences (code, logs, tables) as its first line and a
    pointer."""
    if len(text) <= 600:
        return text
    kept: list[str] = []
    run: list[str] = []
    fenced = False

    def flush() -> None:
        if len(run) <= FEW_LINES and sum(map(len, run)) <= 600:
            kept.extend(run)
        elif run:
            kept.extend((run[0][:LINE_CHARACTERS], f"[… {len(run)} lines: {HERE} …]"))
        run.clear()

    lines = text.splitlines()
    fences = [place for place, line in enumerate(lines) if _FENCE.match(line)]
    closed = frozenset(fences[: len(fences) // 2 * 2])  # what follows a fence that nothing closes is no code
    for place, line in enumerate(lines):
        fence = place in closed
        if fence or fenced or not _is_prose(line):
            run.append(line)
        else:
            flush()
            kept.append(line)
        fenced ^= fence
    flush()
    return "\n".join(kept)


def _is_prose(line: str) -> bool:
    """Whether a line consists of words, in the main."""
    stripped = line.strip()
    if len(stripped) > 1_500 and " " not in stripped[:200]:
        return False
    letters = sum(map(len, _PROSE.findall(stripped)))
    return not stripped or (letters >= 0.55 * len(stripped) and not line.startswith(("\t", "    ")))


def shortened_words(text: str, limit: int) -> str:
    """A text of at most `limit` characters: its beginning, a pointer and its end."""
    if len(text) <= limit:
        return text
    mark = f" [… {HERE} …] "
    room = max(0, limit - len(mark) - 8)
    head = text[: room * 3 // 4].rpartition(" ")[0] or text[: room * 3 // 4]
    tail = text[len(text) - room // 4 :].partition(" ")[2]
    return head + mark + tail


# --- Replies, calls and results -----------------------------------------------------------------------------

_NAME = re.compile(
    r"(?<![\w/-])_{0,2}(?:[A-Za-z][a-z0-9]*(?:_[A-Za-z0-9]+)+|[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+"
    r"|[a-z][a-z0-9]*(?:[A-Z][A-Za-z0-9]*)+|[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+)_{0,2}(?![\w/-]|\.\w{1,5}\b(?!\())"
)
"""`snake_case`, `camelCase`, `PascalCase`, `CONSTANT_CASE`."""
_DEFINED = re.compile(
    r"^[ \t+\-\d→|]*(?:(?:export|default|pub(?:\(\w+\))?|async|abstract|static|public|private|protected|final|declare)\s+)*"
    r"(?:def|class|func(?:\s*\([^)\n]{0,80}\))?|fn|function|type|interface|struct|enum|trait)\s+(?P<name>[A-Za-z_]\w{2,60})"
    r"\s*(?:[(:{<\[=;]|struct\b|interface\b|extends\b|implements\b|$)",
    re.MULTILINE,
)
_CODED = re.compile(r"`([A-Za-z_]\w{3,60})(?:\(\))?`")
NAMES_PER_TEXT = 40


def _names(text: str, weight: int) -> Iterator[Note]:
    """Names of functions, types and variables."""
    found = dict.fromkeys(_CODED.findall(text)) if "`" in text else {}
    found |= dict.fromkeys(name for name in _NAME.findall(text) if 4 <= len(name) <= 64)
    return (Note(NAMES, name, name, weight) for name in list(found)[:NAMES_PER_TEXT])


def wanted_words(instructions: str | None) -> frozenset[str]:
    """The words of instructions to keep something, by which its lines are found."""
    return frozenset(word.lower() for word in _WORD.findall(instructions or ""))


def wanted_lines(message: Message, wanted: frozenset[str]) -> Iterator[str]:
    """Lines of a message's text and results that hold one of the words."""
    for block in blocks_of(message.content):
        kind = block.get("type")
        if kind not in ("text", "tool_result"):
            continue
        text = clipped(str(block.get("text", "")) if kind == "text" else result_text(block), TEXT_CHARACTERS)
        for line in text.splitlines()[:200]:
            if wanted.intersection(_WORD.findall(line.lower())):
                yield line


def _replied(text: str) -> Iterator[Note]:
    """What an assistant said: its newest words are the current work, its older ones progress."""
    text = clipped(text, TEXT_CHARACTERS)
    if not text.strip():
        return
    yield _note(PROGRESS, text)
    yield _note(CURRENT, f"said: {one_line(text, 2 * LINE_CHARACTERS)}", "said")
    ahead = [one for one in _SENTENCE.split(text) if _NEXT.search(one)]
    if ahead:
        yield _note(CURRENT, f"next: {ahead[-1]}", "plan")
    decided = 0
    for line in text.splitlines():
        if decided < 3 and len(line) < 400 and _DECIDED.search(line):
            yield _note(DECISIONS, line)
            decided += 1
    yield from _boxes(text)
    yield from (Note(FILES, path, path) for path in paths_in(text)[:12])
    yield from _names(text, 3)


def _boxes(text: str) -> Iterator[Note]:
    """Check boxes: a new list of them takes the place of the one before, unless a tool keeps the list."""
    if "[ ]" not in text and "[x]" not in text.lower():
        return
    boxes = [match for line in text.splitlines()[:200] if (match := _BOX.match(line))]
    if boxes:
        yield Note(OPEN, None, BOXES)
    for match in boxes:
        if match["mark"] == " ":
            yield _note(OPEN, f"{BOX_LINE}{match['item']}", BOXES)


BOXES = "boxes"
BOX_LINE = "[ ] "

_READS = re.compile(r"read|view|open|cat", re.I)
_LISTS = re.compile(r"todo|plan|task", re.I)
_ARGUMENT_KEYS = (
    "command", "cmd", "pattern", "query", "url", "description", "prompt", "skill", "task", "name", "subject", "question",
)  # fmt: skip
"""What tells most of a call, the first that it has."""
_NOISE = re.compile(r"^cd \S+ *&& *|\s*(?:2>&1|\|\s*(?:head|tail)\b[^|;&]*)")


def _called(block: Block) -> tuple[_Call, list[Note]]:
    """A tool call, and what it tells by itself."""
    tool, given = str(block.get("name", "")), block.get("input")
    if not isinstance(given, dict):
        return _Call(tool, tool, "", ""), []
    path = path_of(given)
    argument = next((text for key in _ARGUMENT_KEYS if (text := argument_text(given.get(key)))), "")
    does = "edit" if path and not EDIT_KEYS.isdisjoint(given) else ""
    if path and not does and not argument and _READS.search(tool):
        does = "read"
    shown = argument if argument and not does else path
    signature = one_line(f"{tool} {_NOISE.sub('', shown[:400])}", 100).strip()
    if argument and path and not does:
        signature += f" in {path}"
    notes: list[Note] = []
    subject = ""
    if _LISTS.search(tool) or "todos" in given or "plan" in given:
        notes += _todos(tool, given)
        does = "todo" if notes else does
        if tool.lower() == "taskcreate" and isinstance(given.get("subject"), str):
            does, subject = "todo", given["subject"]
    if does == "edit":
        notes.append(_note(FILES, f"edited {path}{_change_of(given)}", path))
        notes += _edited_names(given)
    elif does == "read":
        notes.append(_note(FILES, f"read {path}{_lines_of(given)}", path))
    elif does != "todo":
        for leaf in leaves(given):
            if len(leaf) <= 8_000:
                notes += [Note(FILES, one, one) for one in paths_in(leaf)[:8]]
                notes += _names(clipped(leaf, TEXT_CHARACTERS), 1)
        notes += _patched(given)
    if does not in ("todo", "read"):
        notes.append(_note(CURRENT, f"last call: {signature}", "call"))
    return _Call(tool, signature, path, does, subject), notes


def _patched(given: dict[str, Any]) -> Iterator[Note]:
    """Files of a patch in the form of Codex."""
    for leaf in leaves(given):
        if "*** Begin Patch" in leaf[:2_000]:
            found = PATCHED.findall(clipped(leaf, 20_000))[:20]
            yield from (_note(FILES, f"edited {path or to}", (path or to).strip()) for path, to in found)


def _change_of(given: dict[str, Any]) -> str:
    """The first line that an edit brings, as the digest shows it."""
    old, new = (
        next((given[key] for key in keys if isinstance(given.get(key), str)), "")
        for keys in (
            ("old_string", "oldString", "old_str"),
            ("new_string", "newString", "new_str", "content"),
        )
    )
    before = {line.strip() for line in clipped(old).splitlines()}
    lines = (line.strip() for line in clipped(new).splitlines())
    brought = next((line for line in lines if line not in before and _PROSE.search(line)), "")
    shown = one_line(brought, CHANGE_CHARACTERS).replace("`", "'")
    return f": `{shown}`" if shown else ""


CHANGE_CHARACTERS = 90


def _edited_names(given: dict[str, Any]) -> Iterator[Note]:
    text = clipped("\n".join(map(clipped, leaves({key: given[key] for key in given if key in EDIT_KEYS}))))
    yield from (
        Note(NAMES, name, name, 3) for name in list(dict.fromkeys(_DEFINED.findall(text)))[:NAMES_PER_TEXT]
    )
    yield from _names(text, 1)


def _lines_of(given: dict[str, Any]) -> str:
    """The lines that a call reads: `, lines 80-119`."""
    first, count, last = given.get("offset"), given.get("limit"), None
    if isinstance(span := given.get("view_range"), list) and len(span) == 2:
        first, last = span
    elif isinstance(given.get("start_line"), int):
        first, last = given["start_line"], given.get("end_line")
    if isinstance(count, int) and last is None:
        last = (first if isinstance(first, int) else 1) + count - 1
    if not isinstance(first, int) and last is None:
        return ""
    return f", lines {first if isinstance(first, int) else 1}-{last if isinstance(last, int) and last > 0 else ''}"


def _answered(call: _Call, block: Block) -> Iterator[Note]:
    text = clipped(result_text(block), TEXT_CHARACTERS)
    if call.subject and not block.get("is_error"):
        number = re.search(r"#(\w+)", text)
        key = f"[{number[1]}]" if number else f"[{call.subject}]"
        yield _note(OPEN, f"{TODO} {key}: {call.subject}", key)
        return
    marked = bool(block.get("is_error"))
    if marked or (call.does == "" and _shows_failure(call, text)):
        denied = _DENIED.search(text)
        if denied:
            yield Note(GOALS, spoken(denied[1])[0])
            return
        if _REJECTED.search(text[:400]):
            return
        telling = " ".join(error_lines(text)[:2]) or _failing_line(text)
        yield _note(ERRORS, f"{call.signature}: {telling}", call.signature)._replace(weight=int(marked))
        yield from _names(telling, 2)
        return
    yield Note(ERRORS, None, call.signature)
    yield from _shown_names(call, text)
    if call.does in ("edit", "todo") or (call.does == "read" and len(text) > LINE_CHARACTERS):
        return
    said = one_line(text if len(text) <= 2 * LINE_CHARACTERS else _telling_line(text), 140)
    yield _note(RESULTS, f"{call.signature}: {said}")
    if call.tool in _AGENT_TOOLS:
        yield from _names(text, 2)


def _shown_names(call: _Call, text: str) -> Iterator[Note]:
    """Names and files that an output shows: what a file defines, what a diff changes."""
    if call.does in ("edit", "todo"):
        return
    found = list(dict.fromkeys(_DEFINED.findall(text)))[:NAMES_PER_TEXT]
    yield from (Note(NAMES, name, name) for name in found)
    if call.does == "":
        if "diff --git" in text:
            text = _SIDE.sub("", text)
        files = [path for path in paths_in(text) if "." in path.rpartition("/")[2]]
        yield from (Note(FILES, path, path) for path in files[:20])
        yield from _names("\n".join(_CHANGED.findall(text)), 1)


_SIDE = re.compile(r"\b[ab]/(?=[\w.-]+/)")
"""What a diff puts before the paths of both sides."""
_CHANGED = re.compile(r"^[+-](?![+-]).*", re.MULTILINE)
"""A line of a diff."""
_REJECTED = re.compile(r"user (?:doesn't want to|declined|rejected|denied)", re.I)
_AGENT_TOOLS = frozenset({"Task", "Agent", "task", "spawn_agent"})
SHELLS = re.compile(r"bash|shell|exec|command|terminal", re.I)
_FAILS = re.compile(
    r"^(?:Error: )?(?:Process )?[Ee]xit(?:ed)?(?: with)? code:? [1-9]\d{0,2}$|\"exit_code\": ?[1-9]|^Traceback \(most recent call"
    r"|^FAILED \S|^--- FAIL: |^=+ .{0,80}\d+ (?:failed|errors?)\b|^error(?:\[\w+\])?: ",
    re.MULTILINE,
)


def _shows_failure(call: _Call, text: str) -> bool:
    """Whether a result that nothing marks as failed is the output of a command that failed (as behind a
    pipe)."""
    return SHELLS.search(call.tool) is not None and _FAILS.search(text) is not None


def _failing_line(text: str) -> str:
    """The line that shows the failure, if it says more than a status."""
    shown = _FAILS.search(text)
    line = text[shown.start() :].partition("\n")[0] if shown else ""
    return line if line and not _STATUS.match(line) else _telling_line(text)


_STATUS = re.compile(r"(?:Error: )?(?:Process )?exit(?:ed)?\b", re.IGNORECASE)


def _telling_line(text: str) -> str:
    """The last line with words, which says most of a failure or of a long output."""
    lines = [line for line in text.splitlines() if _PROSE.search(line) and not _STATUS.match(line)]
    return lines[-1] if lines else text


def _todos(tool: str, given: dict[str, Any]) -> list[Note]:
    """The to-do list that an agent keeps by a tool: a whole list replaces the one before; created and updated
    items are known by their numbers."""
    name = tool.lower()
    items = given.get("todos") or given.get("plan") or (given.get("tasks") if name == "create_plan" else None)
    if isinstance(items, list) and all(isinstance(item, dict) for item in items):
        notes = [Note(OPEN, None), Note(CURRENT, None, "now")]
        for item in items[:60]:
            text = item.get("content") or item.get("step") or item.get("title") or item.get("text")
            status = str(item.get("status", "")).lower()
            if not text or status in _FINISHED:
                continue
            key = f"[{item['name']}]" if name == "create_plan" and item.get("name") else ""
            notes.append(_note(OPEN, f"{TODO}{' ' if key else ''}{key}: {text}", key))
            if status in _RUNNING:
                notes.append(_note(CURRENT, f"now: {text}", "now"))
        return notes
    key = f"[{given.get('taskId') or given.get('task') or given.get('name')}]"
    if name == "add_task" and given.get("title"):
        return [_note(OPEN, f"{TODO} {key}: {given['title']}", key)]
    if name == "drop_task" or (name == "taskupdate" and str(given.get("status", "")).lower() in _FINISHED):
        return [Note(OPEN, None, key)]
    if name == "taskupdate":
        return [_note(CURRENT, f"now: task {key}", "now")] if given.get("status") == "in_progress" else []
    return []


def _note(section: str, text: str, key: str = "") -> Note:
    return Note(
        section, plain(one_line(text, 2 * LINE_CHARACTERS if section == CURRENT else LINE_CHARACTERS)), key
    )
