"""The deterministic digest: the text that a context shows when no model has summarised in time.

It keeps the user's words, the current to-do list, the current work and what comes next, decisions, errors of
failing calls, files (edited before read), names of functions and types, and last results. Each line cites the
number of its source message, and a pointer leads to the whole. A new digest takes over the lines of an earlier
one, so its cost is that of the newly covered messages. A budget in tokens bounds its size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from watchkeeper.memory.content import blocks_of, leaves, result_text, texts_of
from watchkeeper.memory.rendering import pointer_of
from watchkeeper.memory.tokens import TokenCounter, plain
from watchkeeper.records.messages import Block, Message, Observation, ObservationKind
from watchkeeper.records.text import one_line, sanitize

# --- Identifiers that a summary must not lose ---------------------------------------------------------------
#
# Paths, URLs, hashes, ids, error lines, and numbers in decisions.

EXTENSIONS = (
    "pyi?|ipynb|[cm]?js|jsx|tsx?|rs|go|java|kt|scala|cc?|h|[ch]pp|cs|rb|php|swift|lua|r|jl|(?:ba|z)?sh|ps1|sql|html?|s?css"
    "|vue|svelte|md|rst|txt|jsonl?|ya?ml|toml|ini|cfg|conf|env|lock|xml|[ct]sv|log|diff|patch|png|jpe?g|gif|svg|webp|pdf"
    "|zip|gz|tar|whl|db|sqlite|proto|graphql|tf|dockerfile|make|cmake|gradle"
)
"""What makes a word with a dot a file name, and not an attribute or the end of a sentence."""

PATH = re.compile(
    r"(?<![\w/.:@<\[-])(?:(?:~|\.{1,2})?/(?:[\w.@+-]{1,80}/){1,16}[\w.@+-]{1,80}"  # /a/b, ./a/b, ~/a/b
    r"|(?:[\w.@+-]{1,80}/){2,16}[\w.@+-]{1,80}"  # a/b/c
    rf"|(?:~/|\.{{1,2}}/|/)?(?:[\w.@+-]{{1,80}}/)?[\w@+-][\w.@+-]{{0,80}}\.(?:{EXTENSIONS}))(?![\w/(])",
    re.IGNORECASE,
)
"""Paths of two parts and more, and file names by their extension."""

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
_LISTED = re.compile(r"^\s*\d{1,6}\s*(?:→|\||\t|:)")
"""A numbered line of a file that was read: it speaks of errors, it is none."""

DECISION = re.compile(
    r"\b(?:decid|decision|chose|choos|instead of|must|limit|budget|set to|threshold|port|version)\w*", re.I
)

NUMBER = re.compile(r"(?<![\w.])\d[\d,_]{0,20}(?:\.\d{1,10})?%?(?!\w)")

SCAN_CHARACTERS = 4_000
"""So many characters are read from the beginning of a text, and as many from its end, to bound CPU time."""

PER_MESSAGE = 40


def clipped(text: str, limit: int = SCAN_CHARACTERS) -> str:
    """The beginning and the end of a long text, cut at line ends so that no identifier is cut in two."""
    if len(text) <= 2 * limit:
        return text
    head, tail = text[:limit], text[-limit:]
    return head.rpartition("\n")[0] + "\n" + tail.partition("\n")[2]


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
        if any(word in lowered for word in _ERROR_WORDS) and ERROR.search(line) and not _LISTED.match(line):
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
        if len(line) <= 400 and DECISION.search(line) and not _LISTED.match(line)
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
# It is extracted once, when the message is added. A digest is made in the very turn in which a context
# overflows. Reading all covered messages there would cost that turn milliseconds for each ten thousand
# tokens; reading them on arrival costs each turn the same.

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
    """Of a name: how much it tells that the message holds it. Of an error: 0 where nothing but its text says that
    the call failed."""


class _Call(NamedTuple):
    """A tool call that waits for its result."""

    tool: str
    signature: str
    """Tool and what it was given, on one line: what tells whether the same was called again."""
    path: str
    does: str
    """`edit`, `read`, `todo` or `` (anything else)."""
    subject: str = ""
    """Of a call that creates a to-do item: the item."""


class DigestIndex:
    """The notes of the messages that a context shows; made once for each, in O(1) of the history's length."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[Note, ...]] = {}
        self._lists: dict[int, tuple[Note, ...]] = {}
        """Of those notes, the ones on the to-do list."""
        self._calls: dict[str, _Call] = {}
        self._command_at = 0
        """The last message in which the user gave a command that its program replaces by a prompt."""

    def of(self, message: Message) -> tuple[Note, ...]:
        """The notes of a message. Those of a tool result name its call, if that was read before it."""
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

    def lists_after(self, seq: int) -> Iterator[tuple[int, Note]]:
        """The notes on the to-do list of later messages that are known."""
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
# What stands in the user's role is not always the user's: programs put reminders, the output of commands and
# the text behind a command there. They enclose them in tags, or begin them always alike.

_HERE = "message://./"
"""Stands for the pointer to the message until the digest, which knows the agent, is made."""
_ARGUMENTS = re.compile(r"<command-(name|args)>(.*?)</command-\1>", re.DOTALL)
_TAGGED = re.compile(r"<([A-Za-z]+(?:[-_][A-Za-z]+)+)\b[^>]{0,200}>.*?(?:</\1>|\Z)", re.DOTALL)
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
    text = clipped(text, 2 * WORDS_CHARACTERS)
    command = ""
    if "<command-" in text:
        parts = dict(_ARGUMENTS.findall(text))
        name = parts.get("name", "").strip()
        if not _CLIENT_COMMANDS.fullmatch(name):
            command = f"{name} {parts.get('args', '').strip()}".strip()
    text = _OWN_PARTS.sub("", _TAGGED.sub("\n", text)).strip()
    if _NOT_SAID.match(text):
        text = ""
    text = text.removeprefix("# Goal\n").removeprefix("A person says: ")
    words = plain(" ".join(sanitize(_without_pastes(f"{command}\n{text}")).split()))
    return shortened_words(words, WORDS_CHARACTERS), bool(command) and not text


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
            kept.extend((run[0][:LINE_CHARACTERS], f"[… {len(run)} lines: {_HERE} …]"))
        run.clear()

    for line in text.splitlines():
        fence = _FENCE.match(line) is not None
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
    mark = f" [… {_HERE} …] "
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
        yield Note(OPEN, None, _BOXES)
    for match in boxes:
        if match["mark"] == " ":
            yield _note(OPEN, f"{_BOX_LINE}{match['item']}", _BOXES)


_BOXES = "boxes"
_BOX_LINE = "[ ] "

_PATH_KEYS = ("file_path", "path", "filePath", "notebook_path", "filename", "target_file")
_EDIT_KEYS = frozenset(
    [
        "old_string",
        "new_string",
        "oldString",
        "newString",
        "content",
        "contents",
        "edits",
        "new_str",
        "old_str",
        "new_source",
        "patch",
        "diff",
    ]
)
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
    path = next((value for key in _PATH_KEYS if isinstance(value := given.get(key), str) and value), "")
    argument = next(
        (value for key in _ARGUMENT_KEYS if isinstance(value := given.get(key), str) and value), ""
    )
    does = "edit" if path and not _EDIT_KEYS.isdisjoint(given) else ""
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


_PATCHED = re.compile(r"^\*\*\* (?:Update|Add|Delete) File: (.+)$", re.MULTILINE)


def _patched(given: dict[str, Any]) -> Iterator[Note]:
    """Files of a patch in the form of Codex."""
    for leaf in leaves(given):
        if "*** Begin Patch" in leaf[:2_000]:
            found = _PATCHED.findall(clipped(leaf, 20_000))[:20]
            yield from (_note(FILES, f"edited {path}", path.strip()) for path in found)


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
    text = clipped("\n".join(map(clipped, leaves({key: given[key] for key in given if key in _EDIT_KEYS}))))
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
        shown = _FAILS.search(text)
        line = text[shown.start() :].partition("\n")[0] if shown else _telling_line(text)
        telling = " ".join(error_lines(text)[:2]) or line
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
_SHELLS = re.compile(r"bash|shell|exec|command|terminal", re.I)
_FAILS = re.compile(
    r"^(?:Error: )?(?:Process )?[Ee]xit(?:ed)?(?: with)? code:? [1-9]\d{0,2}$|\"exit_code\": ?[1-9]|^Traceback \(most recent call"
    r"|^FAILED \S|^--- FAIL: |^=+ .{0,80}\d+ (?:failed|errors?)\b|^error(?:\[\w+\])?: ",
    re.MULTILINE,
)


def _shows_failure(call: _Call, text: str) -> bool:
    """Whether a result that nothing marks as failed is the output of a command that failed (as behind a
    pipe)."""
    return _SHELLS.search(call.tool) is not None and _FAILS.search(text) is not None


def _telling_line(text: str) -> str:
    """Of a failure, or of a long output, the last line with words."""
    lines = [line for line in text.splitlines() if _PROSE.search(line) and not line.startswith("Exit code")]
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


# --- A digest -----------------------------------------------------------------------------------------------

MOST_LINES = {GOALS: 300, FILES: 300, NAMES: 600}
CANDIDATES_PER_SECTION = 80
"""So many lines of a section are kept until the digest is written, where `MOST_LINES` does not say more."""
TITLE = "Digest, made without a model. Whole text: "

SHARES = {
    ASKED: 0.25, GOALS: 0.55, OPEN: 0.1, CURRENT: 0.1, EARLIER: 0.3, FILES: 0.25, ERRORS: 0.1, NAMES: 0.2, DECISIONS: 0.08,
    RESULTS: 0.04,
}  # fmt: skip
"""Of the budget, what a section may take before the others; in the order in which they are served."""
REST = (GOALS, FILES, NAMES, DECISIONS, EARLIER, ERRORS, PROGRESS, RESULTS, CURRENT, OPEN)
"""The order in which sections take what is left."""

_CITED = re.compile(r"\(#(\d+)\)$")
_FILE = re.compile(
    r"(?P<verb>edited |read )?(?P<path>.+?)(?:, lines (?P<lines>[\d\-, ]+))?(?P<change>: `.*)?$", re.DOTALL
)
_CHANGE = ": `"
CHANGES_SHOWN = 10
"""Of so many files, those edited last, a digest says what changed."""
_OPEN_LINE = re.compile(rf"{TODO}(?: (?P<key>\[[^\]]+\]))?: ")
_SHRINK = 0.9
_FRAME_CHARACTERS = 10
"""Characters of a line beside its text: `- … (#1234)`."""
TITLE_TOKENS = 6
"""At most, of a section's title with its colon and line end."""
NAMES_A_LINE = 12
LEAST_WORDS = 160
"""Characters of a message of the user below which the oldest are left out instead."""


class _Line(NamedTuple):
    text: str
    seq: int
    weight: int = 1

    def shown(self, width: int) -> str:
        text = self.text if len(self.text) <= width else one_line(self.text, width)
        return f"- {text} (#{self.seq})"


class Written(NamedTuple):
    """A digest, the messages that it cites, and its size."""

    text: str
    citations: tuple[int, ...]
    tokens: int


@dataclass(slots=True)
class DigestNotes:
    """What was picked out of the messages that a digest will cover, by section; oldest first."""

    first: int
    last: int
    agent_id: str
    sections: dict[str, list[_Line]] = field(default_factory=dict)
    _kept: dict[str, dict[str, _Line]] = field(default_factory=dict)
    """By section, what is kept under each key."""

    @classmethod
    def gather(
        cls,
        agent_id: str,
        covers: tuple[int, int],
        earlier: Sequence[Observation],
        messages: Iterable[Message],
        instructions: str | None = None,
        *,
        notebook: DigestIndex | None = None,
        beside: Sequence[Observation] = (),
    ) -> DigestNotes:
        """Read `earlier` observations (which the digest will replace), then `messages`, up to `covers[1]`.

        `notebook`: what was noted of the messages when they were added; what it lacks is read now. `beside`:
        observations that stay before the digest; it takes over their to-do list (see `without_open_tasks`).
        """
        notes = cls(covers[0], covers[1], agent_id)
        notebook = notebook or DigestIndex()
        wanted = wanted_words(instructions)
        for observation in beside:
            if observation.kind is ObservationKind.DIGEST:
                notes._fold(observation, only=OPEN)
        for observation in earlier:
            notes._fold(observation)
        for message in messages:
            for note in notebook.of(message):
                notes._take(note, message.seq)
            if wanted:
                for line in wanted_lines(message, wanted):
                    notes._add(ASKED, line, message.seq)
        for seq, note in notebook.lists_after(covers[1]):
            if note.text is None:  # what later messages, which stay, say of the list is newer
                notes._take(note, seq)
        notes._settle()
        return notes

    # --- taking notes ---------------------------------------------------------------------------------------

    def _take(self, note: Note, seq: int) -> None:
        section, text, key, weight = note
        if text is None:
            self._void(section, key, seq)
        elif text:
            if section == FILES:
                self._take_file(text, seq)
            elif section == OPEN and key == _BOXES:
                self._keep(section, f"{key} {text}", _Line(text, seq))
            else:
                if section == GOALS:
                    text = text.replace(_HERE, pointer_of(self.agent_id, seq))
                self._keep(section, key or text, _Line(text, seq, weight))

    def _void(self, section: str, key: str, seq: int) -> None:
        lines = self._kept.get(section)
        if not lines:
            return
        if section == OPEN and not key:
            lines.clear()
        elif key == _BOXES:
            for one in [one for one in lines if one.startswith(_BOXES)]:
                del lines[one]
        elif section == ERRORS and key in lines:
            error = lines.pop(key)
            if error.weight and not _FIXED.search(error.text) and _SHELLS.search(key.partition(" ")[0]):
                fixed = f"{one_line(error.text, LINE_CHARACTERS - 80)}{self._fix_of(error.seq, seq)}"
                self._keep(section, f"{key} {error.seq}", error._replace(text=fixed))
        else:
            lines.pop(key, None)
            if section == OPEN and self._kept.get(CURRENT, {}).get("now", _NOTHING).text.endswith(
                f"task {key}"
            ):
                del self._kept[CURRENT]["now"]

    def _fix_of(self, failed: int, passed: int) -> str:
        """What was edited between a failure and the success of the same call."""
        edited = [
            key.rpartition("/")[2]
            for key, line in self._kept.get(FILES, {}).items()
            if line.seq > failed and line.text.startswith("edited ")
        ]
        return f" → passed in #{passed}" + (f" after edits to {', '.join(edited[-3:])}" if edited else "")

    def _take_file(self, text: str, seq: int) -> None:
        """The newest state of a file, once: edited goes before read, read before named."""
        match = _FILE.fullmatch(text)
        if match is None:
            return
        key = match["path"]
        before = self._kept.get(FILES, {}).get(key)
        if before is not None:
            if before.text.startswith("edited ") and match["verb"] != "edited ":
                return
            if before.text.startswith("read ") and match["verb"] is None:
                return
            if before.text.startswith("read ") and match["verb"] == "read ":
                known = _FILE.fullmatch(before.text)
                text = f"read {key}{_spans(known['lines'] if known else None, match['lines'])}"
        self._keep(FILES, key, _Line(text, seq, (before.weight if before else 0) + 1))

    def _keep(self, section: str, key: str, line: _Line) -> None:
        lines = self._kept.setdefault(section, {})
        before = lines.pop(key, None)
        if section == NAMES and before is not None:
            line = line._replace(weight=before.weight + line.weight)
        lines[key] = line
        most = MOST_LINES.get(section, CANDIDATES_PER_SECTION)
        if len(lines) > 2 * most:
            self._kept[section] = dict(_most_telling(section, list(lines.items()), most))

    def _add(self, title: str, text: str, seq: int) -> None:
        text = plain(one_line(text, 2 * LINE_CHARACTERS))
        if text:
            self._keep(title, text, _Line(text, seq))

    def _fold(self, observation: Observation, only: str | None = None) -> None:
        title = EARLIER
        own = observation.kind is ObservationKind.DIGEST
        for line in observation.text.splitlines():
            stripped = line.strip()
            if stripped.startswith(TITLE) or not stripped:
                continue
            if named := _title_of(stripped, own):
                title = named
                continue
            if only is not None and title != only:
                continue
            cited = _CITED.search(stripped)
            seq = int(cited.group(1)) if cited else observation.covers[1]
            if not 1 <= seq <= observation.covers[1]:
                seq = observation.covers[1]
            text = (stripped[: cited.start()] if cited else stripped).removeprefix("- ").strip()
            if text:
                self._fold_line(title, text, seq, own=own)

    def _fold_line(self, title: str, text: str, seq: int, *, own: bool) -> None:
        if title == NAMES:
            for name in text.split(", "):
                self._keep(NAMES, name, _Line(name, seq, FOLDED_WEIGHT))
        elif title == FILES:
            self._take_file(text, seq)
        elif title == OPEN:
            if text.startswith(_BOX_LINE):
                self._keep(OPEN, f"{_BOXES} {text}", _Line(text, seq))
                return
            if not (match := _OPEN_LINE.match(text)):
                text = f"{TODO}: {text}"
            self._keep(OPEN, (match and match["key"]) or text, _Line(text, seq))
        elif title == CURRENT:
            kind = text.partition(":")[0]
            self._keep(CURRENT, _CURRENT_KEYS.get(kind, kind), _Line(text, seq))
        elif title == ERRORS and ": " in text and not _FIXED.search(text):
            self._keep(ERRORS, text.partition(": ")[0], _Line(text, seq))
        elif own:
            self._keep(title, text, _Line(text, seq))
        else:
            self._add(title, text, seq)

    def _settle(self) -> None:
        """Bound each section, and resolve what one section says of another."""
        opened = self._kept.get(OPEN, {})
        if any(not key.startswith(_BOXES) for key in opened):
            self._void(OPEN, _BOXES, self.last)
        current = self._kept.get(CURRENT, {})
        if (now := current.get("now")) and now.text.startswith("now: task ["):
            item = opened.get(now.text.removeprefix("now: task "))
            if item is None:
                del current["now"]
            else:
                current["now"] = now._replace(text=f"now: {item.text.partition(': ')[2]}")
        plan = current.get("plan", _NOTHING).text.removeprefix("next: ").rstrip("…")
        if plan and plan in current.get("said", _NOTHING).text:
            del current["plan"]
        self._forget_old_changes()
        for title in SECTIONS:
            lines = list(self._kept.get(title, {}).items())
            if lines:
                most = MOST_LINES.get(title, CANDIDATES_PER_SECTION)
                self.sections[title] = [line for _, line in _most_telling(title, lines, most)]
        self._kept.clear()

    def _forget_old_changes(self) -> None:
        """Say of the files edited last what changed, of others only that they were edited."""
        files = self._kept.get(FILES, {})
        changed = sorted((line.seq, path) for path, line in files.items() if _CHANGE in line.text)
        for _, path in changed[:-CHANGES_SHOWN]:
            files[path] = files[path]._replace(text=files[path].text.partition(_CHANGE)[0])

    # --- writing --------------------------------------------------------------------------------------------

    def write(self, budget: int, counter: TokenCounter) -> Written:
        """The digest, of at most `budget` tokens (or the bare pointer, where that alone is more)."""
        head = TITLE + pointer_of(self.agent_id, self.first, self.last)
        bare = f"Whole text: {pointer_of(self.agent_id, self.first, self.last)}"
        room = budget
        while room > 0:
            text, cited = self._compose(head, room, counter)
            spent = counter.count(text)
            if text == head:
                break
            if spent <= budget:
                known = {seq for seq in cited if self.first <= seq <= self.last}
                return Written(text, tuple(sorted({self.first, self.last, *known})), spent)
            # Lines are estimated, the whole is counted: where it came out longer, fewer of them.
            room = int(room * min(_SHRINK, budget / spent))
        return Written(bare, tuple(sorted({self.first, self.last})), counter.count(bare))

    def _compose(self, head: str, budget: int, counter: TokenCounter) -> tuple[str, set[int]]:
        width = max(40, min(2 * LINE_CHARACTERS, budget))
        total = left = budget - counter.count(head) - 2
        ranked = {title: _by_rank(lines, title) for title, lines in self.sections.items()}
        ratios = _tokens_per_character(ranked, counter)
        if GOALS in ranked:
            room = total * SHARES[GOALS] / ratios[GOALS]
            ranked[GOALS] = _words_within(ranked[GOALS], int(room), self.agent_id)
        chosen: dict[str, list[_Line]] = {}
        listed: set[str] = set()  # a line of one section is not repeated in another
        places = dict.fromkeys(ranked, 0)

        def take(title: str, most: float) -> None:
            """Take lines of a section for at most `most` tokens."""
            nonlocal left
            lines, place = ranked[title], places[title]
            ratio, frame = ratios[title], _FRAME_CHARACTERS if title != NAMES else 2
            while place < len(lines) and left > 0 and most > 0:
                line = lines[place]
                place += 1
                beginning = line.text[:80] if title not in (FILES, NAMES) else ""
                if beginning and beginning in listed:
                    continue
                size = len(line.text) if title == GOALS else min(len(line.text), width)
                cost = int((size + frame) * ratio) + 1 + (TITLE_TOKENS if title not in chosen else 0)
                if cost > left:
                    continue
                left -= cost
                most -= cost
                listed.add(beginning)
                chosen.setdefault(title, []).append(line)
            places[title] = place

        for title in SHARES:
            if title in ranked:
                take(title, 1)
        for title, share in SHARES.items():
            if title in ranked:
                take(title, min(left, share * total))
        for title in REST:
            if title in ranked:
                take(title, left)
        parts = [head]
        cited: set[int] = set()
        for title in SECTIONS:
            if title not in chosen:
                continue
            parts.append(f"{title}:")
            for line in _in_order(chosen[title], title):
                parts.append(line.shown(max(width, len(line.text)) if title in (GOALS, NAMES) else width))
                cited.add(line.seq)
        return "\n".join(parts), cited


_NOTHING = _Line("", 0)
_FIXED = re.compile(r" → passed in #\d+")
_CURRENT_KEYS = {"next": "plan", "last call": "call"}
FOLDED_WEIGHT = 6
"""Of a name that an earlier digest chose."""


def _title_of(line: str, own: bool) -> str | None:
    """The section that a line begins; of a text that a model wrote, only its to-do list is a section."""
    if not line.endswith(":") or line.startswith("- "):
        return None
    if own:
        return line[:-1] if line[:-1] in SECTIONS else None
    return OPEN if line.strip("#*0123456789. ").lower().startswith("open") else EARLIER


def without_open_tasks(
    observations: Sequence[Observation], next_id: int, counter: TokenCounter
) -> tuple[tuple[Observation, ...], tuple[Observation, ...]]:
    """Observations of which a later digest takes over the to-do list: those before the first digest that has
    one, and copies of the others without it (numbered from `next_id`)."""
    shown = [_without_list(one) if one.kind is ObservationKind.DIGEST else one.text for one in observations]
    first = next(
        (place for place, text in enumerate(shown) if text != observations[place].text), len(observations)
    )
    copies = (
        replace(one, id=next_id + index, text=text, tokens=counter.count(text), replaces=(one.id,))
        for index, (one, text) in enumerate(zip(observations[first:], shown[first:], strict=True))
    )
    return tuple(observations[:first]), tuple(copies)


def _without_list(observation: Observation) -> str:
    kept: list[str] = []
    title = ""
    for line in observation.text.splitlines():
        if line.endswith(":") and line[:-1] in SECTIONS:
            title = line[:-1]
        if title not in (OPEN, CURRENT):
            kept.append(line)
    return "\n".join(kept)


def _spans(*spans: str | None) -> str:
    """Line spans joined, the newest four: `, lines 1-80, 120-160`; empty where one read the whole file."""
    if None in spans:
        return ""
    known = dict.fromkeys(one.strip() for span in spans for one in (span or "").split(",") if one.strip())
    return f", lines {', '.join(list(known)[-4:])}"


SAMPLE_CHARACTERS = 160
MARGIN = 1.03
"""What lines are estimated higher than their sample, so that the whole is rarely too long."""


def _tokens_per_character(ranked: dict[str, list[_Line]], counter: TokenCounter) -> dict[str, float]:
    """What the lines of each section cost, estimated from the first few: counting each would cost more than it
    tells. Paths and names are words of their own kind; all other sections are sentences."""
    samples: dict[str, list[str]] = {}
    for title, lines in ranked.items():
        few = [line.text[:SAMPLE_CHARACTERS] for line in lines[: 20 if title == NAMES else 4]]
        samples.setdefault(title if title in (FILES, NAMES) else "", []).extend(few)
    joined = {kind: (", " if kind == NAMES else " (#123)\n- ").join(few) for kind, few in samples.items()}
    found = {kind: max(0.05, MARGIN * counter.count(text) / len(text)) for kind, text in joined.items()}
    return {title: found.get(title) or found[""] for title in ranked}


def _most_telling(title: str, lines: list[tuple[str, _Line]], most: int) -> list[tuple[str, _Line]]:
    """At most so many lines of a section, in their order; the oldest goal is the assignment and always
    stays."""
    if len(lines) <= most:
        return lines
    if title == GOALS:
        return [lines[0], *lines[-most + 1 :]]
    if title in (NAMES, FILES):
        best = sorted(range(len(lines)), key=lambda at: (_rank_of(lines[at][1], title), at), reverse=True)[
            :most
        ]
        return [lines[at] for at in sorted(best)]
    return lines[-most:]


def _rank_of(line: _Line, title: str) -> int:
    if title == FILES:
        return 2 if line.text.startswith("edited ") else 1 if line.text.startswith("read ") else 0
    return line.weight


def _by_rank(lines: list[_Line], title: str) -> list[_Line]:
    """Which lines come first when space is short: the newest; of the goals, the first and then the newest; of
    files those edited, of names the ones said most, of errors those marked as such."""
    newest = list(reversed(lines))
    if title == GOALS and len(newest) > 1:
        return [newest[-1], *newest[:-1]]
    if title in (FILES, NAMES, ERRORS):
        newest.sort(key=lambda line: (_rank_of(line, title), line.seq), reverse=True)
    return newest


def _words_within(lines: list[_Line], room: int, agent_id: str) -> list[_Line]:
    """The user's messages, long ones shortened to one length so that all fit into `room` characters; where
    that would leave too little of each, they are cut there, and the caller leaves out the oldest."""
    free, most = room, max(LEAST_WORDS, room)
    for place, size in enumerate(sorted(len(line.text) + _FRAME_CHARACTERS for line in lines)):
        most = max(LEAST_WORDS, free // (len(lines) - place))
        if size > most:
            break
        free -= size
    else:
        return lines
    return [
        line._replace(text=shortened_words(line.text, most).replace(_HERE, pointer_of(agent_id, line.seq)))
        if len(line.text) > most
        else line
        for line in lines
    ]


def _in_order(lines: list[_Line], title: str) -> list[_Line]:
    """Lines as they are shown: in the order of messages; files those edited first; names some to a line."""
    ordered = lines[::-1]  # as they were said, those of one message too
    ordered.sort(key=lambda line: line.seq)
    if title == FILES:
        return sorted(ordered, key=lambda line: _rank_of(line, title), reverse=True)
    if title == NAMES:
        groups = (ordered[at : at + NAMES_A_LINE] for at in range(0, len(ordered), NAMES_A_LINE))
        return [_Line(", ".join(line.text for line in group), group[-1].seq) for group in groups]
    return ordered
