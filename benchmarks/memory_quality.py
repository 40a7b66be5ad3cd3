"""What a digest keeps of recorded sessions: logs of Claude Code, Codex and OpenCode, in one run.

    python benchmarks/memory_quality.py FILE... [--window 64000] [--json] [--list]

The logs are read by `wk import`'s importer into a database that is removed afterwards; digests are made as a
context without a summariser makes them. No model is asked and nothing is drawn by lot. Scores:

- `user_sentences`: of the sentences that people wrote, how many stand in one digest of the whole session, of
  the size that the window allows. `…_live`: in the context at the session's end, played message by message.
- `answers`: of what people answered to an agent's questions, or gave as the reason of a refusal, how many stand in one
  digest of the whole session, of the size that the window allows.
- `names`, `files`, `quotes`: at each compaction that the program recorded, of the function and type names,
  paths and quoted user texts in the program's own summary that the dropped messages hold, how many a digest of
  those messages holds that is as long as the summary. Names and files are for information: a digest that lists
  them without their meaning is no better.
- `files_precision`: of the lines on files and artifacts, how many cite a message with a result of a tool that takes
  their path or name.
- `failures_precision`: of the commands and calls that failed, how many cite a message with a failing result.
- `words_precision`: of the lines with a person's words, how many say what a user or a planner wrote.
- `reopened`: finished to-do items that a digest shows as open or in progress. Must be 0.
- `continuation`: at each recorded compaction, of the questions that only the dropped messages answer (which file
  was edited last and how, what made a failing command pass, what the user forbade, what comes next), how many a
  digest as long as the program's summary answers, with two recalls at most. `…_summary`: the summary in its
  place; `…_stuffed`: the digest and a list of all names; `…_recall`: no memory, recall alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper import HierarchicalContextManager
from watchkeeper.memory import digest
from watchkeeper.memory.content import blocks_of, result_text, texts_of
from watchkeeper.memory.fitting import digest_budget
from watchkeeper.memory.ledger import COMMANDS, EDITED, OPEN, READ, RUNNING, TODO, WORDS, Ledger
from watchkeeper.memory.ledger import FAILED as LEDGER_FAILED
from watchkeeper.memory.recall import recall
from watchkeeper.memory.tokens import count_message, default_counter
from watchkeeper.records.messages import Message, ObservationKind
from watchkeeper.records.tool_inputs import leaves
from watchkeeper.store import agents, database, messages
from watchkeeper.store.driver import Queries
from watchkeeper.store.writer import Writer
from watchkeeper.transcripts.importer import Importer

# --- Recorded sessions --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Compaction:
    """One that the program made: the last message that it dropped, and its summary."""

    last: int
    summary: str


@dataclass(slots=True)
class Thread:
    """One agent of a recorded session."""

    session_id: str
    agent_id: str
    messages: list[Message]
    compactions: list[Compaction] = field(default_factory=list)
    notes_of_program: frozenset[str] = frozenset()
    """Texts in the user's role that the log marks as the program's own, squeezed."""


def threads_of(paths: Sequence[Path], database_file: Path) -> list[Thread]:
    """Every agent with at least `LEAST_MESSAGES` messages, imported as `wk import` does."""
    writer = Writer(database_file)
    importer = Importer(writer)
    try:
        report = importer.run(list(paths))
    finally:
        importer.close()
        writer.close()
    if not report.sessions:
        raise SystemExit(f"nothing to score: {report.line()}")
    marked = frozenset(_marked_by_program(paths))
    connection = database.open_readonly(database_file)
    try:
        reads = Queries(connection)
        return [
            thread
            for session_id in sorted(report.sessions)
            for agent in agents.load_all(reads, session_id)
            if (thread := _thread(reads, session_id, agent.id, marked)) is not None
        ]
    finally:
        connection.close()


LEAST_MESSAGES = 12
LEAST_SUMMARY = 1_000
"""Characters: a shorter summary was redacted, or tells nothing."""


def _thread(reads: Queries, session_id: str, agent_id: str, marked: frozenset[str]) -> Thread | None:
    counter = default_counter()
    stored = messages.load_messages(reads, agent_id)
    if len(stored) < LEAST_MESSAGES:
        return None
    total, counted = 0, []
    for message in stored:
        tokens = count_message(message.role, message.content, counter)
        total += tokens
        counted.append(Message(message.seq, message.role, message.content, tokens, total, message.created_at))
    thread = Thread(session_id, agent_id, counted, notes_of_program=marked)
    rows = reads.all("SELECT id FROM observations WHERE agent_id = ? ORDER BY id", (agent_id,))
    for observation in messages.load_observations(reads, agent_id, [row[0] for row in rows]):
        summary = observation.kind is ObservationKind.SUMMARY and len(observation.text) >= LEAST_SUMMARY
        if summary and "trimmed for fixture" not in observation.text:
            thread.compactions.append(Compaction(observation.covers[1], observation.text))
    return thread


def _marked_by_program(paths: Sequence[Path]) -> Iterator[str]:
    """Texts that a log of Claude Code marks as no person's (`isMeta`), which an import does not store."""
    for place in paths:
        for path in [place] if place.is_file() else sorted(place.rglob("*.jsonl")):
            for line in path.open(encoding="utf-8", errors="replace"):
                if '"isMeta":true' not in line.replace(" ", "")[:100_000]:
                    continue
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and record.get("isMeta") is True:
                    content = (record.get("message") or {}).get("content") or ""
                    for text in texts_of(content):
                        yield squeezed(text)


# --- What people wrote --------------------------------------------------------------------------------------
#
# Told apart from what the digest does on purpose.

_BLOCK = re.compile(r"<([a-z]+(?:[-_][a-z]+)+)\b[^>]*>.*?</\1>", re.DOTALL)
_MACHINE = re.compile(
    r"\s*(?:Caveat: The messages below|\[Request interrupted|This session is being continued"
    r"|Base directory for this skill|\w+ hook feedback|# AGENTS\.md instructions|Your reply was cut|Go on\.$"
    r"|<[a-z]+(?:[-_][a-z]+)+>|\[trimmed)"
)
_DENIED = re.compile(r"the user said:\s*(.+)", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
MOST_SENTENCE, MOST_PROMPT = 400, 4_000
"""Characters: a longer sentence, and sentences of a longer message, are taken for something pasted."""
_PASTED = re.compile(
    r"^\s*(?:[|+}{<>/$#@\\\]\"]|\d+[:|→]|at \w|File \"|\d{4}-\d\d|E  )|[{};=]\s*$|→|\t|\|[A-Z]+\||(?:\b\w+=\S+.*){3}"
)


_PAIR = re.compile(
    r'"=(?:"(?P<chosen>.*?)"|(?P<none>\(no option selected\)))(?=[ .,]|$)(?:[ \w]*notes: (?P<notes>[^"\n]*))?'
)
_TO_THE_MODEL = re.compile(r"\.? (?:You can now continue|Read the answers carefully)\b.*|, *$", re.DOTALL)


def answered(thread: Thread, message: Message) -> Iterator[str]:
    """What a person answered to the questions of a tool, and the reasons for refusals, of a message with results."""
    asking = {
        str(block.get("id"))
        for _, block in _calls(thread.messages[max(0, message.seq - 3) : message.seq])
        if isinstance(block["input"].get("questions"), list)
    }
    for block in blocks_of(message.content):
        if block.get("type") != "tool_result":
            continue
        text = result_text(block)
        if block.get("is_error"):
            if (denied := _DENIED.search(text)) and "The user wants to clarify" not in text:
                yield denied[1].partition("\n\nNote: The user's next message")[0].strip()
        elif str(block.get("tool_use_id")) in asking:
            if text.startswith("{"):
                yield from leaves(json.loads(text).get("answers"))
            for pair in _PAIR.finditer(_TO_THE_MODEL.sub("", text)):
                yield pair["chosen"] or pair["none"]
                if pair["notes"]:
                    yield _TO_THE_MODEL.sub("", pair["notes"])


def squeezed(text: str) -> str:
    """Each run of white space as one space."""
    return " ".join(text.split())


def said_by_user(thread: Thread, message: Message) -> list[str]:
    """The texts that a person (or the planner) wrote in a message."""
    if message.role != "user":
        return []
    found = []
    for block in blocks_of(message.content):
        if denied := block.get("is_error") and _DENIED.search(result_text(block)):
            found.append(denied[1].strip())
        if block.get("type") != "text":
            continue
        text = str(block.get("text", ""))
        typed = re.findall(r"<command-(?:name|args)>(.*?)</command-", text, re.DOTALL)
        text = "\n".join([" ".join(typed), _BLOCK.sub("\n", text)]).strip()
        if text and not _MACHINE.match(text) and squeezed(text) not in thread.notes_of_program:
            found.append(text)
    return found


def sentences(text: str) -> list[str]:
    """Sentences of a text; code, logs and very long prompts left out."""
    text = re.sub(r"```.*?(?:```|\Z)", "\n", text, flags=re.DOTALL)
    if len(text) > MOST_PROMPT:
        return []
    parts = (squeezed(part.strip(" -*•\"'")) for part in _SENTENCE.split(text) if not _PASTED.search(part))
    return [part for part in parts if 6 <= len(part) <= MOST_SENTENCE and re.search(r"[^\W\d]{2}", part)]


# --- What a summary judged worth keeping --------------------------------------------------------------------

_NAME = re.compile(
    r"(?<![\w/.-])_{0,2}(?:[A-Za-z][a-z0-9]*(?:_[A-Za-z0-9]+)+|[a-z][a-z0-9]+(?:[A-Z][a-z0-9]+)+"
    r"|(?:[A-Z][a-z0-9]+){2,}[A-Z]?)_{0,2}(?![\w/-]|\.\w)"
)
_PATH = re.compile(
    r"(?<![\w/.@-])(?:[~.]{0,2}/)?(?:[\w.@+-]+/)*[\w@+-][\w.@+-]*\.[A-Za-z][A-Za-z0-9]{0,5}(?![\w/(])"
)
_EXTENSION = re.compile(
    r"\.(?:pyi?|[cm]?[jt]sx?|rs|go|java|kt|c|h|cc|cpp|hpp|cs|rb|php|swift|sh|sql|html?|css|scss|vue|svelte|md|rst|txt"
    r"|jsonl?|ya?ml|toml|ini|cfg|lock|xml|csv|log|svg)$"
)
_QUOTE = re.compile(r"[\"“]([^\"“”\n]{6,600})[\"”]")


def words_in(messages: Sequence[Message]) -> str:
    """Everything that a reader of the messages sees."""
    return "\n".join(text for message in messages for text in texts_of(message.content))


def worth_keeping(thread: Thread, covered: Sequence[Message], summary: str) -> dict[str, list[str]]:
    """Names, files and quotes of the summary that the covered messages hold."""
    everything = words_in(covered)
    paths = {path for path in _PATH.findall(summary) if _EXTENSION.search(path)}
    bare = _PATH.sub(" ", summary)
    said = squeezed("\n".join(text for message in covered for text in said_by_user(thread, message)))
    return {
        "names": sorted(name for name in set(_NAME.findall(bare)) if name in everything),
        "files": sorted(path for path in paths if path in everything),
        "quotes": sorted({squeezed(quote) for quote in _QUOTE.findall(summary) if squeezed(quote) in said}),
    }


def holds(kind: str, wanted: str, text: str) -> bool:
    """Whether a text has a name as a whole word, a path, or a quote word by word."""
    if kind == "names":
        return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", text) is not None
    return wanted in text


# --- Digests ------------------------------------------------------------------------------------------------


def digest_of(thread: Thread, last: int, budget: int) -> str:
    covered = thread.messages[:last]
    ledger = Ledger.up_to((), covered)
    return digest.write(ledger, "agent", (1, last), budget, default_counter()).text


def in_steps(thread: Thread, budget: int, size: int = 40) -> Iterator[tuple[int, str]]:
    """Digests that fold each other, and where each ends, as a small window makes them."""
    from watchkeeper.records.messages import Observation

    earlier: list[Observation] = []
    for start in range(0, len(thread.messages), size):
        piece = thread.messages[start : start + size]
        covers = (1, piece[-1].seq)
        ledger = Ledger.up_to(earlier, piece)
        text, cited, tokens = digest.write(ledger, "agent", covers, budget, default_counter())
        yield piece[-1].seq, text
        stored = ledger.stored()
        earlier = [Observation(1, ObservationKind.DIGEST, text, tokens, covers, cited, ledger=stored)]


async def live_context(thread: Thread, window: int) -> str:
    """All text of the context at the end of the session, digests alone; then once more compacted by hand."""
    manager = HierarchicalContextManager(window)
    for message in thread.messages:
        await manager.add_message({"role": message.role, "content": message.content})
    await manager.compact()
    context = manager.get_context()
    await manager.close()
    return "\n".join(text for message in context for text in texts_of(message["content"]))


LINE = re.compile(r"^- (?P<text>.*?)(?: \(#(?P<seq>\d+)\))?$")


def lines_of(digest: str) -> Iterator[tuple[str, str, int]]:
    """Section, text and cited message of each line of a digest (or of a context with digests)."""
    title = ""
    for line in digest.splitlines():
        if re.fullmatch(r"[A-Z][\w ',]{2,60}:", line):
            title = line[:-1]
        elif title and (match := LINE.match(line)):
            yield title, match["text"], int(match["seq"] or 0)
        elif not line.startswith("- "):
            title = ""


# --- To-do lists --------------------------------------------------------------------------------------------

_FINISHED = frozenset({"completed", "done", "cancelled", "canceled", "dropped", "deleted"})


def todo_states(messages: Sequence[Message]) -> dict[str, bool]:
    """Each item of the to-do tools → whether it is finished, at the end of the messages."""
    states: dict[str, bool] = {}
    numbers: dict[str, str] = {}
    created: dict[str, str] = {}
    for message in messages:
        for block in blocks_of(message.content):
            if block.get("type") == "tool_result" and (
                subject := created.pop(str(block.get("tool_use_id")), "")
            ):
                match = re.search(r"#(\d+)", result_text(block))
                numbers[match[1] if match else str(len(numbers) + 1)] = subject
            if block.get("type") != "tool_use" or not isinstance(given := block.get("input"), dict):
                continue
            items = given.get("todos") or given.get("plan")
            if isinstance(items, list) and all(isinstance(item, dict) for item in items):
                states = dict.fromkeys(states, True)  # what a new list leaves out is over
                for item in items:
                    text = squeezed(str(item.get("content") or item.get("step") or item.get("title") or ""))
                    states[text] = str(item.get("status", "")).lower() in _FINISHED
            elif block.get("name") == "TaskCreate" and given.get("subject"):
                created[str(block.get("id"))] = squeezed(str(given["subject"]))
                states[squeezed(str(given["subject"]))] = False
            elif block.get("name") == "TaskUpdate":
                subject = numbers.get(str(given.get("taskId")), "")
                if subject and given.get("status"):
                    states[subject] = str(given["status"]).lower() in _FINISHED
    return {text: finished for text, finished in states.items() if len(text) > 3}


def reopened(digest: str, states: dict[str, bool]) -> list[str]:
    """Finished items among the open ones of a digest."""
    opened = [
        text
        for title, text, _ in lines_of(digest)
        if title == TODO and text.startswith((f"{OPEN}:", f"{RUNNING}:"))
    ]
    return [
        item for item, finished in states.items() if finished and any(item[:120] in one for one in opened)
    ]


# --- Scores -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Share:
    """A share, and what is missing from it."""

    kept: int = 0
    total: int = 0
    missing: list[str] = field(default_factory=list)

    def note(self, kept: bool, what: str = "") -> None:
        self.kept += kept
        self.total += 1
        if not kept:
            self.missing.append(what)


FAILED = re.compile(
    r"^(?:Error: )?Exit code:? [1-9]|\bexit(?:ed with)? (?:code|status):? [1-9]|\"exit_code\": ?[1-9]|^Traceback \("
    r"|^<tool_use_error>|^FAILED |^(?:--- )?FAIL\b|^=+ .*\d+ (?:failed|error)",
    re.MULTILINE | re.IGNORECASE,
)


def brings_failure(message: Message) -> bool:
    """Whether a message holds a result that failed."""
    return any(
        block.get("type") == "tool_result" and (block.get("is_error") or FAILED.search(result_text(block)))
        for block in blocks_of(message.content)
    )


def path_calls(messages: Sequence[Message]) -> set[int]:
    """Numbers of the messages that call a tool with a file, or bring its result."""
    calls: set[str] = set()
    found: set[int] = set()
    for message in messages:
        for block in blocks_of(message.content):
            given = block.get("input")
            if block.get("type") == "tool_use" and isinstance(given, dict):
                if any(key in given for key in ("file_path", "path", "filePath", "notebook_path")):
                    calls.add(str(block.get("id")))
                    found.add(message.seq)
            elif str(block.get("tool_use_id")) in calls:
                found.add(message.seq)
    return found


def score(threads: Sequence[Thread], window: int) -> dict[str, Share]:
    """All shares over all threads."""
    names = (
        "user_sentences", "user_sentences_live", "answers", "names", "files", "quotes", "files_precision",
        "failures_precision", "words_precision", "reopened",
    )  # fmt: skip
    shares = {name: Share() for name in names}
    budget = digest_budget(window)
    for thread in threads:
        _score_whole(thread, window, budget, shares)
        for compaction in thread.compactions:
            covered = thread.messages[: compaction.last]
            size = default_counter().count(compaction.summary)
            made = digest_of(thread, compaction.last, size)
            for kind, wanted in worth_keeping(thread, covered, compaction.summary).items():
                for one in wanted:
                    shares[kind].note(holds(kind, one, squeezed(made)), one)
    return shares


def _score_whole(thread: Thread, window: int, budget: int, shares: dict[str, Share]) -> None:
    made = digest_of(thread, thread.messages[-1].seq, budget)
    live = asyncio.run(live_context(thread, window))
    said = {message.seq: said_by_user(thread, message) for message in thread.messages}
    for text in (text for texts in said.values() for text in texts):
        for sentence in sentences(text):
            shares["user_sentences"].note(sentence in squeezed(made), sentence)
            shares["user_sentences_live"].note(sentence in squeezed(live), sentence)
    for message in thread.messages:
        for reply in answered(thread, message):
            shares["answers"].note(squeezed(reply) in squeezed(made), reply)
    with_path = path_calls(thread.messages)
    for title, text, seq in lines_of(made):
        if title in (EDITED, READ):
            shares["files_precision"].note(seq in with_path, text)
        elif title == COMMANDS and f" → {LEDGER_FAILED}" in text:
            shares["failures_precision"].note(seq > 0 and brings_failure(thread.messages[seq - 1]), text)
        elif title == WORDS and not text.startswith(("asked “", "on ")):
            whole = squeezed(" ".join(said.get(seq, ())))
            shares["words_precision"].note(text[:40].rstrip("…").strip() in whole, text)
    for last, folded in in_steps(thread, budget):
        for item in reopened(folded, todo_states(thread.messages[:last])):
            shares["reopened"].note(False, f"#{last}: {item}")
    for item in reopened(live, todo_states(thread.messages)):
        shares["reopened"].note(False, f"at the end: {item}")


# --- Continuation -------------------------------------------------------------------------------------------
#
# Questions are made from the messages that a compaction dropped, by rules. An answer is found where all of its
# parts stand close together, in the memory (a digest, or the program's own summary) or in what two recalls
# give: a list of names holds the parts, and answers nothing.

CLOSE = 600
"""Characters within which the parts of an answer must stand."""
RECALLED = 5
"""Results that are read of each recall."""
_FORBIDS = re.compile(
    r"\b(?:don'?t|do not|never|must not|mustn'?t|should ?n[o']t|avoid|instead of|not use|rather than)\b", re.I
)
_AHEAD = re.compile(r"\b(?:next|now let me|let me|I'll|I will|I need to)\b", re.I)
_CONTENT_WORD = re.compile(r"[^\W\d_]{4,}|\w*[_/.]\w[\w/.]*")
_COMMON = frozenset(
    [
        "about",
        "also",
        "been",
        "before",
        "because",
        "could",
        "does",
        "done",
        "from",
        "have",
        "here",
        "into",
        "just",
        "know",
        "like",
        "make",
        "more",
        "need",
        "only",
        "other",
        "over",
        "please",
        "same",
        "should",
        "some",
        "sure",
        "than",
        "that",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "very",
        "want",
        "were",
        "what",
        "when",
        "where",
        "which",
        "will",
        "with",
        "work",
        "would",
        "your",
    ]
)


@dataclass(frozen=True, slots=True)
class Question:
    """What an agent that carries on may have to know."""

    kind: str
    text: str
    parts: tuple[str, ...]
    """All of them, close together, are the answer; in lower case."""
    least: float = 1.0
    """The share of the parts that suffices."""


def content_words(text: str) -> list[str]:
    return [word for word in dict.fromkeys(_CONTENT_WORD.findall(text.lower())) if word not in _COMMON]


def questions_of(thread: Thread, last: int) -> Iterator[Question]:
    """Of the messages up to `last`: how the files edited last were changed, what made failing commands pass,
    what the user forbade, and what was to come next."""
    covered = thread.messages[:last]
    yield from _on_edits(covered)
    yield from _on_errors(covered)
    for message in covered:
        for text in said_by_user(thread, message):
            for sentence in sentences(text):
                words = content_words(sentence)
                if _FORBIDS.search(sentence) and len(words) >= 4 and len(sentence) <= 300:
                    asked = " ".join(sorted(words, key=len, reverse=True)[:2])
                    yield Question("forbidden", f"What did the user forbid about {asked}?", tuple(words), 0.8)
    yield from _on_next(covered)


def _calls(messages: Sequence[Message]) -> Iterator[tuple[Message, dict[str, Any]]]:
    for message in messages:
        for block in blocks_of(message.content):
            if block.get("type") == "tool_use" and isinstance(block.get("input"), dict):
                yield message, block


def _on_edits(covered: Sequence[Message]) -> Iterator[Question]:
    """The three files that were edited last: each with a name that its last edit brought, as answer."""
    edits: dict[str, dict[str, Any]] = {}
    for _, block in _calls(covered):
        given = block["input"]
        path = given.get("file_path") or given.get("filePath") or given.get("path")
        if isinstance(path, str) and isinstance(given.get("new_string") or given.get("newString"), str):
            edits.pop(path, None)
            edits[path] = given
    for path, given in list(edits.items())[-3:]:
        before = set(_NAME.findall(str(given.get("old_string") or given.get("oldString") or "")))
        brought = [
            name
            for name in _NAME.findall(str(given.get("new_string") or given.get("newString")))
            if name not in before
        ]
        name = path.rpartition("/")[2]
        if brought:
            yield Question("edited", f"How was {name} edited last?", (name.lower(), brought[0].lower()))
    if edits:
        yield Question(
            "edited", "Which file was edited last?", ("edit", list(edits)[-1].rpartition("/")[2].lower())
        )


def _on_errors(covered: Sequence[Message]) -> Iterator[Question]:
    """Commands that failed and passed later: the file that was edited last between the two, as answer."""
    failed: dict[str, str] = {}
    edited: dict[str, str] = {}
    calls = {str(block.get("id")): block for _, block in _calls(covered)}
    found: list[Question] = []
    for message in covered:
        for block in blocks_of(message.content):
            given = block.get("input") if isinstance(block.get("input"), dict) else {}
            if block.get("type") == "tool_use" and given and ("new_string" in given or "content" in given):
                path = str(given.get("file_path") or given.get("path") or "")
                edited = dict.fromkeys(failed, path.rpartition("/")[2]) if path else edited
            call = calls.get(str(block.get("tool_use_id")))
            command = str((call or {}).get("input", {}).get("command") or "")[:120]
            if block.get("type") != "tool_result" or not command:
                continue
            if block.get("is_error") and "want to proceed" not in result_text(block)[:200]:
                failed[command] = result_text(block)
            elif command in failed:
                failed.pop(command)
                if path := edited.pop(command, ""):
                    asked = f"What fixed the failure of {command[:60]}?"
                    found.append(
                        Question(
                            "fixed", asked, (squeezed(command).partition(" 2>")[0][:30].lower(), path.lower())
                        )
                    )
    yield from found[-4:]


def _on_next(covered: Sequence[Message]) -> Iterator[Question]:
    """What the last words of the agent say that it will do."""
    for message in reversed(covered):
        if message.role != "assistant":
            continue
        for block in reversed(blocks_of(message.content)):
            if block.get("type") != "text":
                continue
            ahead = [
                one for one in re.split(r"(?<=[.!?:])\s+|\n+", str(block.get("text"))) if _AHEAD.search(one)
            ]
            words = content_words(ahead[-1]) if ahead else []
            if len(words) >= 3:
                yield Question("next", "What comes next?", tuple(words[:12]), 0.7)
                return


def answers(question: Question, text: str) -> bool:
    """Whether enough parts of the answer stand within `CLOSE` characters."""
    return any(_has(question, piece) for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """Lines, each with those before it within `CLOSE` characters; a longer line by itself."""
    piece = ""
    for line in text.splitlines():
        line = squeezed(line).lower()
        if len(line) > CLOSE:
            yield line
            piece = ""
        else:
            piece = f"{piece} {line}"[-2 * CLOSE :]
            yield piece


def _has(question: Question, text: str) -> bool:
    places = sorted(
        (match.start(), part) for part in question.parts for match in re.finditer(re.escape(part), text)
    )
    needed = question.least * len(question.parts)
    first = 0
    for last, (place, _) in enumerate(places):
        while place - places[first][0] > CLOSE:
            first += 1
        if len({part for _, part in places[first : last + 1]}) >= needed:
            return True
    return False


def recalled(reads: Queries, thread: Thread, query: str, last: int) -> list[str]:
    """What a recall gives of the messages that were dropped."""
    found = recall(reads, thread.session_id, query, limit=40)
    dropped = []
    for one in found:
        agent, _, seq = one.sources[0].removeprefix("message://").partition("/")
        if agent == thread.agent_id and seq.isdigit() and int(seq) <= last:
            dropped.append(one.text)
    return dropped[:RECALLED]


def is_answered(reads: Queries, thread: Thread, question: Question, memory: str, last: int) -> bool:
    """By the memory, else by a recall of the question, else by a recall of the question with the line of the
    memory that shares most words with it."""
    if answers(question, memory):
        return True
    if any(answers(question, text) for text in recalled(reads, thread, question.text, last)):
        return True
    words = set(content_words(question.text))
    near = max(memory.splitlines(), key=lambda line: len(words.intersection(content_words(line))), default="")
    return any(
        answers(question, text) for text in recalled(reads, thread, f"{question.text} {near[:300]}", last)
    )


def score_continuation(reads: Queries, threads: Sequence[Thread], shares: dict[str, Share]) -> None:
    """At each recorded compaction: a digest as long as the summary, the summary, and for comparison the digest
    with all names of the messages behind it, and nothing."""
    for thread in threads:
        for compaction in thread.compactions:
            size = default_counter().count(compaction.summary)
            made = digest_of(thread, compaction.last, size)
            names = sorted(set(_NAME.findall(words_in(thread.messages[: compaction.last]))))
            memories = {
                "continuation": made,
                "continuation_summary": compaction.summary,
                "continuation_stuffed": f"{made}\n{', '.join(names)}",
                "continuation_recall": "",
            }
            for question in questions_of(thread, compaction.last):
                for name, memory in memories.items():
                    share = shares.setdefault(name, Share())
                    said = f"{question.kind}: {question.text} {question.parts}"
                    share.note(is_answered(reads, thread, question, memory, compaction.last), said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+", help="a log, or a folder of logs")
    parser.add_argument("--window", type=int, default=64_000)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--list", action="store_true", help="also list what is missing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sessions.db"
        threads = threads_of(options.files, path)
        if not threads:
            sys.exit(f"nothing to score: no agent has {LEAST_MESSAGES} messages")
        shares = score(threads, options.window)
        connection = database.open_readonly(path)
        score_continuation(Queries(connection), threads, shares)
        connection.close()
    if options.json:
        print(json.dumps({name: [share.kept, share.total] for name, share in shares.items()}))
        return
    compactions = sum(len(thread.compactions) for thread in threads)
    print(f"{len(threads)} agents, {compactions} recorded compactions, window {options.window:,} tokens:")
    for name, share in shares.items():
        if name == "reopened":
            print(f"  {name:<22} {len(share.missing)}")
        else:
            figure = f"{share.kept / share.total:.0%}" if share.total else "–"
            print(f"  {name:<22} {figure:>5}   ({share.kept} of {share.total})")
        for missing in share.missing if options.list else ():
            print(f"      {missing}")


if __name__ == "__main__":
    main()
