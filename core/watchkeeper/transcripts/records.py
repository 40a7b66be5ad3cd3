"""What every reader of a foreign log yields, whatever program wrote it; the contract between readers and the
importer.

A *program* (`Program`) says which files are its logs and makes a reader for one of them. A *reader* turns
the lines of the log into records, and touches neither the store nor the clock. There are two kinds:

- A `LineReader` is fed one line after the other, `feed(line, data) -> [Record, …]`, for logs that grow at
  their end (JSON lines). It reads no file and holds a small state: what it needs of earlier lines to
  understand later ones (calls that wait for a result, tips of side chains), never messages. `save()` gives
  that state as a JSON object of at most some tens of kilobytes; a reader made from it
  (`Program.reader(source, state)`) carries on as if never interrupted.
- A `PullReader` fetches by itself, `pull() -> (line, data, [Record, …])…`, for logs that are databases or
  trees of files. It begins after what its state says was fetched, and gives small pieces, so that memory
  stays bounded. `line` counts its source records from 1; `data` are a source record's bytes, kept if a `Raw`
  is among its records.

What the importer does with one answer (the list for one line, a *group*):

1. *Nothing is lost.* Every line is counted once: as **raw** where a `Raw` is in its group (its bytes go to
   `raw_records` with the reason), else as **skipped** where a `Skipped` is (with the reason), else as
   **read**. An empty group is a fault of the reader, and kept raw. A reader never raises for what a line
   holds; one that does is caught, and the line kept raw.
2. *Sessions.* `Session` names the session to which this and all later records of the source belong, until the
   next one. One that names another session than before is the first of its group, and the first group that
   holds more than `Raw` or `Skipped` begins with one; fields that are None change nothing.
3. *Agents* are named by keys, unique in their session. `MAIN` is the agent that the person talks to; it
   exists without being named. `Agent` adds to what is known of an agent and may come in any order: before its
   parent, after its messages, from another file, several times; None changes nothing. An agent that only
   occurs as the `agent` of another record is made, under the main one.
4. *Replays.* A `Message` with a `uid` that this session already has (the same file rewritten, a line twice)
   is dropped with its whole group, except that a `ModelCall` may still raise its counts. Where it says
   something else than before (the log was edited), what it says now is stored as a *revision*: the message
   stays as it was, nothing of the group counts again, and the counts of its `ModelCall` replace those from
   before. With a `uid` that another session of the program has (a resumed or forked session that repeats its
   parent's records) the message is kept, since it is in this session's context, but calls of tools and models
   in its group count for the session that had them first.
5. *Model calls* with the same `key` are one call: the counts of the one with the most output tokens are kept,
   besides those of a revision.
6. *Compactions.* `Compaction` says that everything of that agent before it, or before message `keep_from`,
   left the context. The `Summary` that follows takes its place (it is not a message as well).
   Where `tokens_after` is None, the prompt of the agent's next model call is taken.
7. *Plans.* With `whole`, the items are the whole list, and what is no longer in it is dropped unless it was
   done; without, they are changes by `key`. Lists of different agents are different plans; `plan` says whose.

Times (`at`) are seconds since 1970, or None where the log has none; clocks may jump, and order is the order
of lines.
Texts are as logged: hostile, and never cut here.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self
from zlib import crc32

from msgspec import MsgspecError, Struct, convert, to_builtins
from msgspec.json import Decoder, Encoder

from watchkeeper.records.messages import Content, Role
from watchkeeper.records.ports import ALPHABET, LENGTH
from watchkeeper.records.quota import QuotaReading
from watchkeeper.records.usage import CallKind
from watchkeeper.records.usage import count_of as count_of
from watchkeeper.store.driver import encode, plain

# Ids, made of what names a thing in its own program: importing it again finds it.

AGENT_LENGTH = 11
"""Characters of an imported agent's or task's id: there are many more of them than of sessions."""

_SECONDS = 1 << 31


def stable_id(*names: str, length: int = LENGTH) -> str:
    """Random-looking characters that are the same for the same names."""
    bits = int.from_bytes(blake2b("\0".join(names).encode("utf-8", "replace"), digest_size=8).digest())
    return "".join(ALPHABET[(bits >> (5 * place)) & 31] for place in range(length))


def record_digest(at: float | None, kind: str, uid: str) -> int:
    """A number for a record of that kind and id, below 2^63.

    Records of about the same time have numbers near each other, so that a file's records lie on few pages of
    the table; 32 of its bits tell records of one second apart, all of them those without a time. Equal
    numbers of different records are possible, and found out by what they say.
    """
    if at is None:
        return (
            int.from_bytes(blake2b(f"{kind}\0{uid}".encode("utf-8", "replace"), digest_size=8).digest()) >> 1
        )
    return ((int(at) % _SECONDS) << 32) | crc32(uid.encode("utf-8", "replace"), _sum_of(kind))


@lru_cache(maxsize=256)
def _sum_of(kind: str) -> int:
    return crc32(f"{kind}\0".encode("utf-8", "replace"))


MADE_UP = "~"
"""What an id begins with that no program gave."""


class PlaceIds(Struct, array_like=True):
    """Ids for the lines of one log to which the program gave none: made of their time, their kind and their
    place among the lines of that time and kind.

    An id does not depend on the text of the line or on how its JSON is written, so a line keeps its id when it
    is edited, and a line that is repeated at once is one line. Lines without a time are counted from the
    beginning of the log. As JSON it is the list of its fields: part of a reader's saved state.
    """

    at: float | None = None
    """The newest time."""
    sums: dict[str, list[int]] = {}
    """Kind → checksums of the lines of that time so far, each once."""
    counts: dict[str, int] = {}
    """Kind → how many lines without a time there were."""

    def of(self, scope: str, at: float | None, kind: str, content: Any) -> str:
        """The id of a line of that time and kind, unique in `scope`; `content` distinguishes lines of one
        time."""
        if at is None:
            count = self.counts[kind] = self.counts.get(kind, 0) + 1
            return f"{MADE_UP}{scope}:{kind}:{count}"
        if at != self.at:
            self.at, self.sums = at, {}
        sums = self.sums.setdefault(kind, [])
        number = crc32(same_bytes(content))
        if number not in sums:
            sums.append(number)
        return f"{MADE_UP}{scope}:{at!r}:{kind}:{sums.index(number)}"


def is_made_up(uid: str) -> bool:
    """Whether an id is by a line's place, since its program gave none."""
    return uid.startswith(MADE_UP)


def id_of(value: Any) -> str | None:
    """An id that a program gave; None where there is none, or a redaction took it."""
    if type(value) is not str or not value or value.isspace():
        return None
    taken = " " in value or "REDACT" in value or "redact" in value or value[0] == "*"
    return None if taken else value


MAIN = ""
"""The key of a session's main agent."""
GUESSED = "side:"
"""With what the key of an agent begins that no record names: a guess by the first record that is here."""

# Records are named tuples: a gigabyte of log makes millions of them, and a frozen dataclass takes five times
# as long.


class Session(NamedTuple):
    """The session to which the following records belong, and what is known of it."""

    key: str
    """The program's own id of it."""
    workspace: str | None = None
    title: str | None = None
    """A title or summary that the program gave it; the last one counts."""
    version: str | None = None
    """The version of the program."""
    forked_from: str | None = None
    """Key of the session that it carries on."""
    at: float | None = None


class ReportedTotals(NamedTuple):
    """What the call that started an agent says of it: all that is known of one whose own log is not here."""

    context_tokens: int
    """What its last call held."""
    seconds: float
    tool_calls: int


class ImportedAgent(NamedTuple):
    """What is known of an agent."""

    key: str
    parent: str | None = None
    """Key of the agent that started it."""
    call_id: str | None = None
    """Id of the tool call that started it."""
    name: str | None = None
    """A few words: what a row of the tree says."""
    role: str | None = None
    """The type of agent: `Explore`, `general-purpose`, …"""
    goal: str | None = None
    """Its task, in the words of its prompt."""
    model: str | None = None
    context_limit: int | None = None
    at: float | None = None
    status: Literal["working", "done", "failed", "cancelled"] | None = None
    reason: str | None = None
    """Why it failed or was cancelled; for one that is done, nothing."""
    reported: ReportedTotals | None = None
    """Holds until something comes from its own log, and is added to nothing."""
    ended: bool = False
    """The program itself reports that it ended with `status`: that holds against what the agent's own log suggests,
    until it goes on."""
    unit: Literal["workflow run", "workflow phase", "background command"] | None = None
    """What it is, where it is no agent (see `records.readers.UNIT_ROLES`)."""


class SpawnFailure(NamedTuple):
    """A call that starts an agent failed or was refused, and does not name the agent, if it ever began."""

    call_id: str
    status: Literal["failed", "cancelled"]
    reason: str
    at: float | None = None


class ImportedMessage(NamedTuple):
    """One message, in Anthropic content blocks. One line of a log is at most one message; blocks are not
    merged."""

    agent: str
    uid: str
    """The program's own id of it, the same wherever it is repeated; empty where it has none (then nothing is
    known as a replay)."""
    role: Role
    content: Content
    at: float | None = None
    call_key: str = ""
    """The `key` of the model call that made it (assistant messages); messages of one call are one turn."""
    injected: bool = False
    """The program wrote it, not a person: no session has it for its goal."""
    alias: str = ""
    """By what else it may be known: what it says and when (a copy under another `uid`), or its place (an
    edited record that has no id). Asked where `uid` is not known."""


class ToolCall(NamedTuple):
    """A tool call that is a `tool_use` block in this group's message, or has no message of its own."""

    agent: str
    id: str
    name: str
    at: float | None = None


class ToolResult(NamedTuple):
    """How a tool call ended. Its content is in this group's message, as a `tool_result` block."""

    agent: str
    id: str
    status: Literal["done", "error", "denied", "cancelled", "unknown"]
    at: float | None = None
    preview: str = ""
    """Its beginning, for the line of an event."""


class ModelCall(NamedTuple):
    """One call to a model with its usage."""

    agent: str
    key: str
    """The same for every repetition of its counts; empty: never repeated."""
    model: str
    """`provider/model`, as `anthropic/claude-opus-4-6`; without a provider if it is unknown (then
    unpriced)."""
    input_tokens: int
    """Neither read from nor written to the prompt cache."""
    output_tokens: int
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    """The tokens of both kinds together."""
    cache_write_1h_tokens: int = 0
    """Those of them that are kept for an hour, which cost more."""
    exact: bool = True
    """False where the program logged an estimate, or a figure taken before the reply had ended."""
    stop_reason: str | None = None
    at: float | None = None
    latency_seconds: float = 0.0
    request_id: str | None = None
    cost_usd: float | None = None
    """What the program itself logged as the call's cost, for a pricing that takes its word."""
    final: bool = False
    """Nothing but an edit of the log changes these counts: where they are reported once more, the newest
    stand."""
    alias: str = ""
    """As of a message: a name that a copy of the call under another `key` has as well."""
    kind: CallKind = "turn"
    """Others than `turn` are calls that were made for a reply, besides that of the reply itself."""
    context: tuple[int, int] | None = None
    """Tokens of prompt and output that the agent's context held after it, where the counts are sums over several
    prompts."""
    modifiers: tuple[str, ...] = ()
    """What changed its price (see `records.usage.modifiers_of`)."""
    searches: int = 0
    """Web searches that the provider made."""


ItemStatus = Literal["pending", "running", "done", "failed", "cancelled", "dropped"]


class PlanItem(NamedTuple):
    """One item of a plan or to-do list."""

    key: str
    """Tells items of one list apart, and recognises one in later versions of the list."""
    title: str | None = None
    status: ItemStatus | None = None
    instructions: str | None = None
    depends_on: tuple[str, ...] | None = None
    """Keys of items; in a change by `key`, those that are added."""
    where: Literal["any", "new", "known"] = "any"
    """In a change by `key`: `new`, an item that was made again (one that had the key until now is no longer in
    the list); `known`, nothing unless there is such an item."""


def distinct_items(listed: Iterable[tuple[str, ItemStatus]]) -> list[PlanItem]:
    """The items of a list whose program gives them no ids, from their titles and states: an item is recognised by
    its title, and the second one of a title by its place among them."""
    seen: Counter[str] = Counter()
    items = []
    for title, status in listed:
        seen[title] += 1
        key = title if seen[title] == 1 else f"{title} ({seen[title]})"
        items.append(PlanItem(key, title, status))
    return items


class Plan(NamedTuple):
    """A new version of a plan."""

    agent: str
    """Who changed it."""
    reason: str
    """How: the tool's name."""
    items: Sequence[PlanItem]
    whole: bool = True
    plan: str = MAIN
    """Key of the agent whose list it is."""
    at: float | None = None


class ImportedCompaction(NamedTuple):
    """A part of an agent's context was dropped, or shortened."""

    agent: str
    uid: str
    """As of a message: a replayed compaction is dropped."""
    trigger: str
    """`auto`, `manual`, `micro`, …"""
    at: float | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    keep_from: tuple[str, ...] = ()
    """`uid`s of messages that stayed: all from the first of them that is known. Empty: none stayed."""
    elided: tuple[str, ...] | None = None
    """For a pass that dropped no message but emptied tool results: the ids of those calls."""
    instructions: str | None = None
    seconds: float | None = None
    model: str | None = None
    unlogged: bool = False
    """A model was asked for it, and the log does not report what that call used."""
    window: int | None = None
    """The window that its size tells, where the model has a larger one."""
    told_later: bool = False
    """No other one: only now the log tells what began the agent's last one."""


class Summary(NamedTuple):
    """The text that replaces what the agent's last `Compaction` dropped."""

    agent: str
    uid: str
    text: str
    at: float | None = None


class Rewind(NamedTuple):
    """A person took back what was said last: it stays in the agent's history, and is in its context no
    more."""

    agent: str
    uid: str
    """As of a message; empty where its group holds a message, which is what came in its place."""
    messages: int
    """How many messages were undone, from the agent's newest."""
    at: float | None = None
    first: str | None = None
    """`uid` of the first message that was undone, where a reader knows that instead of their number."""
    undoes: bool = False
    """The other way round: what the last one undid is redone."""


class Failure(NamedTuple):
    """An error, an interruption, or another model in place of the one that was asked."""

    agent: str
    kind: Literal["error", "retry", "interrupted", "refused", "rerouted"]
    """`retry`: it passed by itself. `rerouted`: the provider chose another model; no error."""
    text: str
    at: float | None = None
    uid: str = ""
    """As of a message; empty where its group holds a message."""
    until: float | None = None
    """When the usage limit ends that the log reports as used up, where the text names no time."""


class QuotaReport(NamedTuple):
    """What the log states of the provider's usage windows. It belongs to no agent."""

    readings: tuple[QuotaReading, ...]


class Raw(NamedTuple):
    """The line is kept as it is: not understood, or of no use to us yet."""

    kind: str
    """The record's own type as far as it is known: what is counted and listed."""
    reason: str
    """In a few words that name no value, so that equal cases can be counted together."""


class Skipped(NamedTuple):
    """The line holds nothing that is not kept already: an empty line, a repetition."""

    reason: str


Record = (
    Session
    | ImportedAgent
    | SpawnFailure
    | ImportedMessage
    | ToolCall
    | ToolResult
    | ModelCall
    | Plan
    | ImportedCompaction
    | Summary
    | Rewind
    | Failure
    | QuotaReport
    | Raw
    | Skipped
)


STORED_KINDS: dict[type, str] = {
    ImportedMessage: "Message",
    ImportedCompaction: "Compaction",
    Summary: "Summary",
    Rewind: "Rewind",
    Failure: "Failure",
}
"""What the kinds of record are called in the digests by which a record is found again. Stored, so never to be changed."""


class LineReader(Protocol):
    """Reads one log, line by line."""

    def feed(self, line: int, data: bytes) -> list[Record]:
        """What one line says. `line` counts from 1 in its file; `data` has no newline at its end."""
        ...

    def save(self) -> dict[str, Any]:
        """The state with which a reader of the same log carries on after the last line fed; JSON."""
        ...


class PullReader(Protocol):
    """Fetches one log by itself."""

    def pull(self) -> Iterator[tuple[int, bytes, list[Record]]]:
        """What is new since the state that it was made with, in small pieces."""
        ...

    def save(self) -> dict[str, Any]:
        """The state after the last piece that was given; JSON."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """One log to be recognised and read."""

    path: Path
    head: bytes = b""
    """Its first 64 KiB at most."""
    companions: Mapping[str, bytes] = field(default_factory=dict)
    """Small files that belong to it, by name (`Program.companions`); only those that exist."""


class Program(ABC):
    """An agent program whose logs can be read. By default, its logs are files of JSON lines that only grow."""

    name: str
    """The value of `sessions.origin`: `claude-code`."""
    alias: str
    """What `wk import` calls its usual place: `claude`."""
    label: str
    """What people call it: `Claude Code`."""

    @abstractmethod
    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """Where its logs usually are, whether there are any or not."""

    @abstractmethod
    def recognises(self, source: Source) -> bool:
        """Whether it is one of this program's logs, by its content."""

    @abstractmethod
    def reader(self, source: Source, state: dict[str, Any] | None) -> LineReader | PullReader:
        """A reader of that log, from its beginning or from a saved state."""

    def may_be_log(self, path: Path) -> bool:
        """Whether a file in a folder is worth opening, by its name alone."""
        return path.suffix == ".jsonl"

    def log_of(self, path: Path) -> Path | None:
        """The log that is to be read when this file changes, which may be another; None where there is none.
        It is asked for every file that changes."""
        return path if self.may_be_log(path) else None

    def companions(self, path: Path) -> list[Path]:
        """Small files that its reader also needs, whether they exist or not."""
        return []

    def logs_of_agents(self, path: Path, session: str, passed: set[Path]) -> list[Path]:
        """Logs of the agents that a session has started, where they have some of their own; `path` is the session's.

        Args:
            passed: files that were found to be none of these; those that are found now are added.
        """
        return []

    def is_over(self, state: dict[str, Any]) -> bool:
        """Whether the session of a log has ended and cannot go on by itself, as its reader's saved state shows."""
        return False

    def fingerprint(self, path: Path) -> tuple[int, float] | None:
        """For a `PullReader`: size in bytes and time of the last change of all that it reads, without reading
        it. None for a `LineReader`: the file itself has both."""
        return None


# Tokens of imported text, estimated without a tokenizer, opaque data by its size. The ratios are those of
# `benchmarks/token_counts.py`.

BYTES_PER_TOKEN = 4
"""Bytes of prose for each token."""
BYTES_PER_DATA_TOKEN = 3.2
"""Bytes of JSON, code and what tools return for each token that Claude is charged for."""
OPAQUE_TOKENS_PER_BYTE = 0.2
OPAQUE_FRAME_TOKENS = 40
"""A signature, or redacted thinking, holds the whole thinking, and a header that no model reads."""
IMAGE_TOKENS = 1_500
"""About what an image costs a model, however many bytes it has."""


def message_tokens(content: Any, size: int) -> int:
    """Tokens of a message whose JSON text has `size` bytes."""
    if not isinstance(content, list):
        return max(1, size // BYTES_PER_TOKEN)
    opaque, tokens = _opaque(content, 0)
    return max(1, round((size - opaque) / BYTES_PER_DATA_TOKEN) + tokens)


def text_tokens(text: str) -> int:
    """Tokens of a plain text."""
    return max(1, len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


_WITH_OPAQUE = frozenset({"source", "data", "signature", "encrypted_content"})


def _opaque(blocks: list[Any], depth: int) -> tuple[int, int]:
    """Bytes that no model reads as text, and the tokens that they cost."""
    found = tokens = 0
    for block in blocks:
        if not isinstance(block, dict):
            continue
        inside = block.get("content")
        if type(inside) is list and depth < 3:
            inner = _opaque(inside, depth + 1)
            found, tokens = found + inner[0], tokens + inner[1]
        if _WITH_OPAQUE.isdisjoint(block):
            continue
        source, data = block.get("source"), block.get("data")
        if isinstance(source, dict):
            picture = source.get("data")
            if isinstance(picture, str) and len(picture) > 256:
                found, tokens = found + len(picture), tokens + IMAGE_TOKENS
        for hidden in (block.get("signature"), block.get("encrypted_content"), data):
            if isinstance(hidden, str) and len(hidden) > 64:
                held = max(0, round(len(hidden) * OPAQUE_TOKENS_PER_BYTE) - OPAQUE_FRAME_TOKENS)
                shown = block.get("thinking")
                # The signature holds the thinking that is shown as well: the larger of both counts.
                part = min(len(shown), round(held * BYTES_PER_DATA_TOKEN)) if isinstance(shown, str) else 0
                found, tokens = found + len(hidden) + part, tokens + held
    return found, tokens


# --- The JSON of logs -----------------------------------------------------------------------------------
#
# Parsed fast, and whatever the fast parser refuses, with patience. Measured on real logs, `msgspec` parses three times as
# fast as the standard library, five times where it may pass over what is not read, and writes eight times as fast.

_BEFORE = "\ufeff\0"
"""What may stand before the record of a line: a byte order mark, and the NULs that a crash leaves on some
disks."""


def parser(shape: Any) -> Callable[[bytes], dict[str, Any] | None]:
    """A function as `parse`, which need not give other fields than those of `shape`, a `TypedDict`: it is the
    faster for it.

    Where a value is of another kind than `shape` says, the whole object is given, unchanged.
    """
    decode = Decoder(shape).decode

    def parse(data: bytes) -> dict[str, Any] | None:
        try:
            return decode(data)  # type: ignore[no-any-return]
        except (MsgspecError, ValueError, RecursionError):
            return _parse_patiently(data)

    return parse


parse = parser(dict[str, Any])
"""The JSON object that a line holds, or None where it holds none (broken, or another kind of value)."""


def _parse_patiently(data: bytes) -> dict[str, Any] | None:
    # A lone surrogate, bytes that are no UTF-8, a mark or a hole before it: rare, and no reason to lose the
    # record.
    try:
        value = bindable(json.loads(data.decode("utf-8", "replace").lstrip(_BEFORE)))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def bindable(value: Any) -> Any:
    """The value with lone surrogates, which no database takes, as U+FFFD."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(key): bindable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [bindable(each) for each in value]
    return value


_write = Encoder().encode
_write_sorted = Encoder(order="deterministic").encode


def write(value: Any) -> tuple[str, int]:
    """JSON text of `value` as the store holds it, and its length in bytes."""
    data = write_bytes(value)
    return data.decode(), len(data)


def write_bytes(value: Any) -> bytes:
    """JSON text of `value` as the store holds it, in UTF-8."""
    try:
        return _write(value)
    except (
        MsgspecError,
        ValueError,
        OverflowError,
        RecursionError,
    ):  # a lone surrogate, a number beyond 64 bits
        return encode(value).encode()


def same_bytes(value: Any) -> bytes:
    """JSON of `value` that is the same however its objects were ordered and its text was escaped in a log."""
    try:
        return _write_sorted(value)
    except (MsgspecError, ValueError, OverflowError, RecursionError):
        return json.dumps(value, sort_keys=True).encode()


_minutes: dict[str, float] = {}
"""Beginnings of times, `2026-02-23T20:40:`, as seconds: a log has hundreds of records in each minute."""


EARLIEST_SECONDS, LATEST_SECONDS = 946_684_800.0, 4_102_444_800.0
"""2000 and 2100: a time outside of these is none (a zero, an unset clock, year 1), since no such program ran
then."""


def seconds(timestamp: Any) -> float | None:
    """Seconds since 1970 of an ISO 8601 time, or of a number of seconds or milliseconds; None for anything
    else, and for a time at which nothing was logged."""
    if isinstance(timestamp, str):
        minute = _minutes.get(timestamp[:17])
        if minute is not None and timestamp[23:] == "Z":
            try:
                return minute + float(timestamp[17:23])
            except ValueError:
                return None
        return _first_of_minute(timestamp)
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float):
        return None
    value = float(timestamp)
    if not 0 < value < 1e15:
        return None
    return possible(value / 1000 if value > 1e11 else value)


def possible(at: float) -> float | None:
    """A time in seconds, or None where nothing can have been logged then."""
    return at if EARLIEST_SECONDS <= at < LATEST_SECONDS else None


def _first_of_minute(timestamp: str) -> float | None:
    try:
        at = datetime.fromisoformat(timestamp).timestamp()
        if possible(at) is None:
            return None
        if len(timestamp) == 24 and timestamp[23] == "Z":
            if len(_minutes) > 10_000:
                _minutes.clear()
            _minutes[timestamp[:17]] = datetime.fromisoformat(timestamp[:17] + "00Z").timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return at


def text_of(value: Any) -> str | None:
    """A string that says something, or None."""
    return value if isinstance(value, str) and value and not value.isspace() else None


def object_of(value: Any) -> dict[str, Any]:
    """An object, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """A list, or an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def first_object(head: bytes) -> dict[str, Any]:
    """The record in the first line of a log that holds one; empty where its beginning has none."""
    lines = (line for line in head.split(b"\n")[:5] if line.strip())
    return next((record for line in lines if (record := parse(line)) is not None), {})


# --- What readers of JSON lines have in common ------------------------------------------------------------

NOT_FOR_US = "known, not shown"
"""Why a line is kept raw whose type a reader knows and does not use."""
UNKNOWN_TYPE = "unknown record type"
"""Why a line is kept raw whose type a reader does not know."""


def no_record(data: bytes, session: str, *, opened: bool) -> list[Record]:
    """What is to be said of a line that holds no record.

    A log that begins with a line that is none (not `opened`) is named by `session` all the same.
    """
    if not data.strip():
        return [Skipped("empty line")]
    broken = Raw("?", "broken JSON" if data.lstrip()[:1] == b"{" else "not a JSON object")
    return [broken] if opened else [Session(session), broken]


class JsonReader(Struct):
    """A `LineReader` of JSON lines that extends this one writes `read` alone. Its fields are its saved state."""

    session: str
    """Key of the session: of its log's name until a line names it."""
    opened: bool = False
    """The session was named."""

    def read(self, line: int, record: dict[str, Any]) -> list[Record]:
        """What the record of one line says."""
        raise NotImplementedError

    def feed(self, line: int, data: bytes) -> list[Record]:
        record = parse(data)
        found = (
            no_record(data, self.session, opened=self.opened) if record is None else self.read(line, record)
        )
        if type(found[0]) is Session:
            self.opened = True
        elif not self.opened and type(found[0]) is not Skipped:
            self.opened = True
            found.insert(0, Session(self.session))
        return found

    def save(self) -> dict[str, Any]:
        return to_builtins(self)  # type: ignore[no-any-return]

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Self:
        """The reader with that saved state."""
        return convert(state, cls)
