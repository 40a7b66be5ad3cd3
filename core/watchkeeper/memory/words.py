"""A person's words in a message of the user's role, without what programs put there.

Programs put reminders, the output of commands and the text behind a command into the user's role. They enclose
them in tags, or always start them the same way.
"""

from __future__ import annotations

import re

from watchkeeper.memory.notes import clipped
from watchkeeper.memory.tokens import plain
from watchkeeper.records.text import sanitize

LINE_CHARACTERS = 240
WORDS_CHARACTERS = 6_000
"""At most, of one message of the user."""

HERE = "message://./"
"""Replaces the pointer to the message until the digest, which knows the agent, is made."""
_ARGUMENTS = re.compile(r"<command-(name|args)>(.*?)</command-\1>", re.DOTALL)
_TAG = re.compile(r"<([A-Za-z]+(?:[-_][A-Za-z]+)+)(?:\s[^<>]{0,200})?>")
_NOT_SAID = re.compile(
    r"(?:Caveat: The messages below|\[Request interrupted|This session is being continued from"
    r"|Base directory for this skill|\w+ hook (?:feedback|blocking error)|# AGENTS\.md instructions"
    r"|Your reply was cut at its length limit|Go on\.\Z|\[Image: source|\[SYSTEM NOTIFICATION"
    r"|Please continue the conversation from where we left|Tool loaded\.\s*\Z|\s*<[a-z-]+-notification\b)"
)
"""Begins what a program wrote. What follows a notification is its own text as well."""
_OWN_PARTS = re.compile(
    r"^(?:handoff: \{|Read an input with `|What this session knows so far:|Save each expected output|"
    r"When you are done, reply with|You keep the memory of the earlier|The workspace is \S+\. Look at it|"
    r"\{\"inbox\": \[|Task \S+ (?:is done|failed|is paused|was cancelled)|You were resumed\.).*?(?:\n\n|\Z|(?=^A person ))",
    re.DOTALL | re.MULTILINE,
)
"""Parts of the prompts that this program writes itself."""
_CLIENT_COMMANDS = re.compile(
    r"/?(?:add-dir|agents|clear|compact|config|context|copy|cost|doctor|effort|exit|export|fast|help|hooks|ide|login|logout"
    r"|mcp|memory|model|permissions|plugin|quit|release-notes|rename|resume|rewind|status|theme|usage|vim)"
)
"""Commands of Claude Code that ask the model for nothing."""
_DENIED = re.compile(
    r"(?:the user said|user provided the following reason[^:]{0,60}|hook (?:blocking )?error[^:\n]{0,80}"
    r"|denied by (?:a |the )?hook[^:\n]{0,80}):?\s*(.+)|A person (?:denied this|cancelled this merge): '(.*)'\. Nothing was done",
    re.DOTALL | re.I,
)
"""What a result says before the reason that a person, or a person's hook, gave for a refusal."""
_TO_THE_MODEL = re.compile(
    r"\n\nNote: The user's next message may contain.*|\s+This means they may have additional information.*?Questions asked:",
    re.DOTALL,
)
"""What a program adds to the reason."""


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
    text = "" if _NOT_SAID.match(text) else _OWN_PARTS.sub("", _without_tagged(text, is_cut)).strip()
    if _NOT_SAID.match(text):
        text = ""
    text = text.removeprefix("# Goal\n").removeprefix("A person says: ")
    words = plain(" ".join(sanitize(_without_pastes(f"{command}\n{text}")).split()))
    return shortened_words(words, WORDS_CHARACTERS), bool(command) and not text


def refused(text: str) -> str:
    """The reason that a person, or a person's hook, gave in the result of a call that was refused; else empty."""
    found = _DENIED.search(clipped(text, 2 * WORDS_CHARACTERS))
    return spoken(_TO_THE_MODEL.sub("", found[1] or found[2] or ""))[0] if found else ""


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
    marks = [place for place, line in enumerate(kept) if line.endswith(f"lines: {HERE} …]")]
    if len(marks) > MOST_PASTES:  # one paste, with words among its lines
        lines_left_out = len(lines) - marks[0] - (len(kept) - 1 - marks[-1])
        kept[marks[0] : marks[-1] + 1] = [f"[… {lines_left_out} lines: {HERE} …]"]
    return "\n".join(kept)


MOST_PASTES = 3
"""Runs of lines that are no sentences; if a message has more, all from the first to the last count as one."""


def _is_prose(line: str) -> bool:
    """Whether a line consists of words, in the main."""
    stripped = line.strip()
    if (len(stripped) > 1_500 and " " not in stripped[:200]) or stripped.startswith(
        ('{"', '[{"', "━━", "──", "===")
    ):
        return False
    letters = sum(map(len, _PROSE.findall(stripped)))
    return not stripped or (letters >= 0.55 * len(stripped) and not line.startswith(("\t", "    ")))


_MARK = re.compile(r"\s*\[… (?:[^\[\]]{0,40}: )?message://[^\s\[\]]+ ?…?\]\s*")
"""A pointer in the place of what was left out before: one that is new takes its place."""


def shortened_words(text: str, limit: int) -> str:
    """A text of at most `limit` characters: its beginning, a pointer and its end."""
    if len(text) <= limit:
        return text
    text = _MARK.sub(" … ", text)
    mark = f" [… {HERE} …] "
    room = max(0, limit - len(mark) - 8)
    head = text[: room * 3 // 4].rpartition(" ")[0] or text[: room * 3 // 4]
    tail = text[len(text) - room // 4 :].partition(" ")[2]
    return head + mark + tail
