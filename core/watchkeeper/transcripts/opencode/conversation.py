"""One session's messages and their parts as records.

A session of OpenCode is one agent: the one that a person talks to, or a sub-agent, whose session names its
parent's. A message is a row with its parts; parts are rewritten until they are finished. Each part becomes
one message here, once it is finished; a tool's call and its result may come apart.

A fork copies messages under new ids and changes nothing else, so that what was said, and when, is what names
a record.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from watchkeeper.transcripts.records import (
    MAIN,
    Failure,
    ImportedAgent,
    ImportedCompaction,
    ImportedMessage,
    ModelCall,
    Plan,
    Raw,
    Record,
    Rewind,
    Session,
    Skipped,
    Summary,
    ToolCall,
    ToolResult,
    count_of,
    distinct_items,
    list_of,
    object_of,
    parse,
    possible,
    text_of,
    write,
)

# --- Parts of OpenCode's messages as Anthropic content blocks, and what they say of calls and costs -------

NOT_FOR_US = "known, not shown"
HOUSEKEEPING = frozenset({"agent", "patch", "snapshot", "step-start"})
"""Parts that are known, not shown."""

_DATA_URL = re.compile(r"data:(?P<kind>[\w.+-]+/[\w.+-]+)(;[\w=.+-]+)*;base64,(?P<data>.*)", re.DOTALL)
_SUBAGENT_TITLE = re.compile(r"(?P<name>.*?) \(@(?P<role>\S+) subagent\)", re.DOTALL)
_STOPS = {"stop": "end_turn", "tool-calls": "tool_use", "length": "max_tokens"}


class Tokens(NamedTuple):
    """Usage of one step; `input` without what the cache served or took."""

    input: int
    output: int
    """Reasoning included."""
    read: int
    write: int

    @property
    def context(self) -> int:
        """What the model held when the step ended."""
        return sum(self)


def tokens_of(value: Any) -> Tokens | None:
    """Usage as a step or a message tells it; None where it tells of none."""
    if not isinstance(value, dict):
        return None
    cache = object_of(value.get("cache"))
    given, output, reasoning = (count_of(value.get(name)) for name in ("input", "output", "reasoning"))
    read, write = count_of(cache.get("read")), count_of(cache.get("write"))
    total = count_of(value.get("total"))
    # Output and reasoning are counted apart, and cost the same; where a sum is given, it says whether they are.
    included = reasoning > 0 and total == given + output + read + write
    found = Tokens(given, output if included else output + reasoning, read, write)
    return found if any(found) else None


def cost_of(value: Any) -> float | None:
    """Dollars, where they were logged."""
    if isinstance(value, dict):
        value = value.get("usd")
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or value <= 0
    ):
        return None
    return float(value)


def stop_reason(value: Any) -> str | None:
    """Why a step ended, in Anthropic's words where there is one."""
    reason = text_of(value)
    return _STOPS.get(reason, reason) if reason else None


def time_of(value: Any, *names: str) -> float | None:
    """The first of these times, in seconds."""
    times = (object_of(value).get(name) for name in names)
    return next(
        (
            each / 1000
            for each in times
            if not isinstance(each, bool)
            and isinstance(each, int | float)
            and 0 < each < 1e15
            and possible(each / 1000)
        ),
        None,
    )


def file_block(part: dict[str, Any]) -> dict[str, Any]:
    """A file that was attached: an image as one, any other by its name and place."""
    url, mime = text_of(part.get("url")) or "", text_of(part.get("mime")) or "?"
    name = text_of(part.get("filename")) or "file"
    match = _DATA_URL.fullmatch(url)
    if match is not None and match["kind"].startswith("image/"):
        return {
            "type": "image",
            "source": {"type": "base64", "media_type": match["kind"], "data": match["data"]},
        }
    if mime.startswith("image/") and url.startswith(("https://", "http://")):
        return {"type": "image", "source": {"type": "url", "url": url}}
    if match is not None and match["kind"] == "application/pdf":
        source = {"type": "base64", "media_type": match["kind"], "data": match["data"]}
        return {"type": "document", "source": source, "title": name}
    where = "" if match is not None or url.startswith("data:") else f" at {url}"
    return {"type": "text", "text": f"[attached {mime}: {name}{where}]"}


def result_content(state: dict[str, Any]) -> Any:
    """The content of a tool's result: its output, and what it attached."""
    output = state.get("output") if state.get("status") != "error" else state.get("error")
    text = (
        output
        if isinstance(output, str)
        else ""
        if output is None
        else json.dumps(output, ensure_ascii=False)
    )
    files = [file_block(each) for each in list_of(state.get("attachments")) if isinstance(each, dict)]
    return [{"type": "text", "text": text}, *files] if files else text


def signature_of(part: dict[str, Any]) -> str | None:
    """The signature of a piece of reasoning, wherever its provider put it."""
    signatures = (
        text_of(object_of(about).get("signature")) for about in object_of(part.get("metadata")).values()
    )
    return next(filter(None, signatures), None)


def title_parts(title: str | None) -> tuple[str | None, str | None]:
    """Name and role of a sub-agent, by its session's title."""
    match = _SUBAGENT_TITLE.fullmatch(title) if title else None
    return (match["name"], match["role"]) if match is not None else (title, None)


def digest(*values: Any) -> str:
    """A name for what was said, the same wherever it is repeated under other ids."""
    return blake2b(write(values)[0].encode("utf-8", "replace"), digest_size=12).hexdigest()


def model_of(info: dict[str, Any]) -> str:
    """`provider/model` of a message."""
    about = object_of(info.get("model"))
    name = text_of(info.get("modelID")) or text_of(about.get("modelID")) or text_of(about.get("id"))
    provider = text_of(info.get("providerID")) or text_of(about.get("providerID"))
    if name is None:
        return "unknown"
    return f"{provider}/{name}" if provider else name


def words_of(error: dict[str, Any]) -> str:
    """What an error says."""
    words = text_of(object_of(error.get("data")).get("message"))
    return words or text_of(error.get("message")) or text_of(error.get("name")) or "an error"


# What a person undid in a session: undone, redone, or removed permanently.
#
# A session's `revert` names a message (or one of its parts): it and all that follows are no longer in the
# context. They stay stored until the next prompt. Until then the person can redo them (`revert` is gone, and
# they are there) or move the place. The next prompt removes them (`revert` is gone, and so are they).
# A reader that did not look in between finds that earlier messages are missing. The newest prompts are kept
# to recognise this.

PROMPTS_KEPT = 8
"""The newest prompts of a session that are known again once they are gone."""

Place = tuple[str, str]
"""Message and part (empty: all of it) from which on everything is undone."""


def place_of(value: Any) -> Place | None:
    """What a session's `revert` names: an object, or one as text."""
    if isinstance(value, str | bytes):
        value = parse(value if isinstance(value, bytes) else value.encode("utf-8", "replace"))
    message = text_of(object_of(value).get("messageID"))
    return (message, text_of(value.get("partID")) or "") if message is not None else None


class Undoing:
    """What was reported of one session's undo.

    Args:
        session_id: its id.
        key: key of its agent.
        memory: what an earlier reading kept.
    """

    def __init__(self, session_id: str, key: str, memory: dict[str, Any]) -> None:
        self._session = session_id
        self._key = key
        self._prompts: dict[str, str] = dict(memory.get("prompts", {}))
        """Message of a person → `uid` of the first of what it became."""
        reported = memory.get("undone")
        self._told: Place | None = (reported[0], reported[1]) if reported else None
        self._count = int(memory.get("undos", 0))

    def memory(self) -> dict[str, Any]:
        """What a later reading needs."""
        return {
            name: value
            for name, value in (("prompts", self._prompts), ("undone", self._told), ("undos", self._count))
            if value
        }

    def asked(self, message_id: str, uid: str) -> None:
        """A person said something."""
        self._prompts.pop(message_id, None)
        self._prompts[message_id] = uid
        if len(self._prompts) > PROMPTS_KEPT:
            self._prompts.pop(next(iter(self._prompts)))

    def before(
        self, place: Place | None, stored: Collection[str], fresh: Collection[str], at: float | None
    ) -> list[Record]:
        """What became of messages that were reported earlier.

        Args:
            place: from where on everything is undone now.
            stored: ids of the messages that are there.
            fresh: those of them that are new.
            at: when the session last changed.
        """
        found: list[Record] = []
        if self._told is not None and self._told != place:
            if self._told[0] in stored:
                found.append(Rewind(self._key, self._uid(), 0, at, undoes=True))
            self._told = None
        gone: list[str] = []
        for each in reversed(self._prompts):
            if each in stored:
                break
            gone.append(each)
        later = [each for each in stored if gone and each > gone[-1]]  # ids follow the clock
        if later and all(each in fresh for each in later):
            found.append(Rewind(self._key, self._uid(), 0, at, first=self._prompts[gone[-1]]))
            self._prompts = {each: uid for each, uid in self._prompts.items() if each not in gone}
        return found

    def after(
        self, place: Place | None, first: Callable[[Place], str | None], at: float | None
    ) -> list[Record]:
        """What is undone now, once everything was reported; `first` gives the `uid` of what came of a
        place."""
        if place is None or place == self._told:
            return []
        uid = first(place)
        if uid is None:
            return []
        self._told = place
        return [Rewind(self._key, self._uid(), 0, at, first=uid)]

    def _uid(self) -> str:
        self._count += 1
        return f"{self._session}:undo:{self._count}"


# One part of a message as records: what it says now, given what was stored of it before.

_STATUS: dict[str, Any] = {
    "pending": "pending",
    "in_progress": "running",
    "completed": "done",
    "cancelled": "cancelled",
}
_CHILD_STATUS: dict[str, Any] = {"completed": "done", "error": "failed", "running": "working"}


class Part(NamedTuple):
    """One part as stored."""

    id: str
    data: bytes
    value: dict[str, Any] | None
    """None where it is broken."""
    changed: bool = True
    """It is new, or otherwise than when it was read before."""


class Stored(NamedTuple):
    """One message as stored."""

    id: str
    data: bytes
    value: dict[str, Any] | None
    parts: list[Part]
    changed: bool = True
    """As of a part, of its own record."""


Reported = tuple[list[Record], str]
"""What a part says, and how much of it that is: `done` (all), `call` (its result is to come), or `raw`."""


class Here(NamedTuple):
    """The place of a part."""

    conversation: Conversation
    stored: Stored
    info: dict[str, Any]
    part_id: str
    place: int
    step: int
    said: tuple[Any, ...]
    settled: bool
    in_summary: bool

    def part(self, value: dict[str, Any], before: str | None) -> Reported:
        """What a part says now, given what was reported of it before."""
        kind = text_of(value.get("type")) or "?"
        return _PARTS.get(kind, Here._unknown)(self, kind, value, before)

    def first_uid(self, value: dict[str, Any]) -> str | None:
        """The `uid` of the first message that a part became; None where it became none."""
        if text_of(value.get("type")) not in _SAID:
            return None
        records, _ = self.part(value, None)
        return records[0].uid if isinstance(records[0], ImportedMessage) else None

    def _call_id(self, value: dict[str, Any]) -> str:
        return text_of(value.get("callID")) or text_of(value.get("id")) or f"{self.stored.id}.{self.place}"

    def _at(self, value: dict[str, Any]) -> float | None:
        at = time_of(value.get("time"), "start", "created")
        return at if at is not None else time_of(self.info.get("time"), "created")

    def _uid(self, what: str) -> str:
        """The id of a message that the part becomes: the part's own, and what of the part it is."""
        return f"{self.conversation.id}:{self.part_id}:{what}"

    def _say(
        self,
        content: list[dict[str, Any]],
        at: float | None,
        *,
        role: Any = None,
        what: str = "",
        injected: bool = False,
    ) -> ImportedMessage:
        role = role or ("assistant" if self.info.get("role") == "assistant" else "user")
        copied = self.conversation.uid(self.info, self.place, digest(what or content))
        key = f"{self.stored.id}/{self.step}" if role == "assistant" else ""
        return ImportedMessage(
            self.conversation.key, self._uid(what), role, content, at, key, injected, copied
        )

    def _text(self, kind: str, value: dict[str, Any], before: str | None) -> Reported:
        unsaid = self._unsaid(kind, value, before)
        if unsaid is not None:
            return unsaid
        if self.in_summary:
            return [Raw("part/text", "part of a compaction summary")], "done"
        said = {"type": "text", "text": value["text"]}
        return [self._say([said], self._at(value), injected=value.get("synthetic") is True)], "done"

    def _reasoning(self, kind: str, value: dict[str, Any], before: str | None) -> Reported:
        unsaid = self._unsaid(kind, value, before)
        if unsaid is not None:
            return unsaid
        block = {"type": "thinking", "thinking": value["text"]}
        signature = signature_of(value)
        return [
            self._say([block | {"signature": signature} if signature else block], self._at(value))
        ], "done"

    def _unsaid(self, kind: str, value: dict[str, Any], before: str | None) -> Reported | None:
        """What is reported of a text that has no words yet, or none at all; None where it has some."""
        text = value.get("text")
        times = value.get("time")
        going = isinstance(times, dict) and "end" not in times and self.info.get("role") == "assistant"
        if going and not self.settled:
            return ([] if before == "raw" else [Raw(f"part/{kind}", "still being written")]), "raw"
        if not isinstance(text, str):
            return [Raw(f"part/{kind}", "without text")], "done"
        return None if text else ([Skipped("empty text")], "done")

    def _file(self, kind: str, value: dict[str, Any], before: str | None) -> Reported:
        return [self._say([file_block(value)], self._at(value))], "done"

    def _subtask(self, kind: str, value: dict[str, Any], before: str | None) -> Reported:
        reported = text_of(value.get("prompt")) or text_of(value.get("description")) or ""
        said = {"type": "text", "text": f"@{value.get('agent') or 'agent'}: {reported}"}
        return [self._say([said], self._at(value))], "done"

    def _step_finished(self, kind: str, value: dict[str, Any], before: str | None) -> Reported:
        info, usage = self.info, tokens_of(value.get("tokens"))
        if usage is None:
            return [Raw("part/step-finish", NOT_FOR_US)], "done"
        at = time_of(info.get("time"), "completed", "created")
        steps = sum((each.value or {}).get("type") == "step-finish" for each in self.stored.parts)
        # A message's own cost is that of all its steps together.
        has_cost = cost_of(value.get("cost")) is not None or steps > 1
        logged = value if has_cost else value | {"cost": info.get("cost")}
        return [self.conversation.model_call(self.part_id, info, usage, logged, self.said, at)], "done"

    def _tried_again(self, kind: str, value: dict[str, Any], before: str | None) -> Reported:
        error = value.get("error")
        text = words_of(error) if isinstance(error, dict) else "retried"
        uid, at = self.conversation.uid(self.info, self.place, "retry"), time_of(value.get("time"), "created")
        return [Failure(self.conversation.key, "retry", text, at, uid)], "done"

    def _compacted(self, kind: str, value: dict[str, Any], before: str | None) -> Reported:
        if self.info.get("role") == "assistant":
            return self.conversation.marked(self.info, self.place, value), "done"
        return [Raw("part/compaction", "a compaction request; covered by its summary")], "done"

    def _known(self, kind: str, value: dict[str, Any], before: str | None) -> Reported:
        return [Raw(f"part/{kind}", NOT_FOR_US)], "done"

    def _unknown(self, kind: str, value: dict[str, Any], before: str | None) -> Reported:
        return [Raw(f"part/{kind[:60]}", "unknown record type")], "done"

    def _tool(self, kind: str, value: dict[str, Any], before: str | None) -> Reported:
        state = object_of(value.get("state"))
        status = state.get("status")
        ended = status in ("completed", "error") or (
            "output" in state and status not in ("pending", "running")
        )
        if status == "pending" and not self.settled:
            return ([] if before == "raw" else [Raw("part/tool", "still being written")]), "raw"
        if before == "call" and not ended:
            return [], "call"
        agent = self.conversation.key
        call_id = self._call_id(value)
        name = text_of(value.get("tool")) or "?"
        arguments = state.get("input")
        arguments = (
            arguments if isinstance(arguments, dict) else {} if arguments is None else {"input": arguments}
        )
        at = time_of(state.get("time"), "start") or self._at(value)
        found: list[Record] = []
        if before != "call":
            block = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
            found += [
                self._say([block], at, role="assistant", what=f"{call_id}:call"),
                ToolCall(agent, call_id, name, at),
            ]
        child = self._child(call_id, name, arguments, state, at)
        if child is not None:
            found.append(child)
        if not ended:
            return found, "call"
        end = time_of(state.get("time"), "end") or at
        result = {"type": "tool_result", "tool_use_id": call_id, "content": result_content(state)}
        failed = status == "error"
        if failed:
            result["is_error"] = True
        found.append(self._say([result], end, role="user", what=f"{call_id}:result"))
        found.append(ToolResult(agent, call_id, _outcome(state, failed), end))
        if name == "todowrite" and not failed and isinstance(arguments.get("todos"), list):
            found.append(plan_of(agent, name, arguments["todos"], at))
        return found, "done"

    def _child(
        self, call_id: str, name: str, arguments: dict[str, Any], state: dict[str, Any], at: float | None
    ) -> ImportedAgent | None:
        """The sub-agent that a call started."""
        metadata = object_of(state.get("metadata"))
        child = text_of(metadata.get("sessionId") or metadata.get("sessionID"))
        if name not in ("task", "subagent") or child is None:
            return None
        return ImportedAgent(
            child,
            self.conversation.key,
            call_id,
            text_of(arguments.get("description")) or text_of(state.get("title")),
            text_of(arguments.get("subagent_type")) or text_of(arguments.get("agent")),
            text_of(arguments.get("prompt")),
            at=at,
            status=_CHILD_STATUS.get(str(state.get("status"))),
        )


_PARTS: dict[str, Callable[[Here, str, dict[str, Any], str | None], Reported]] = {
    "text": Here._text,
    "reasoning": Here._reasoning,
    "tool": Here._tool,
    "file": Here._file,
    "subtask": Here._subtask,
    "step-finish": Here._step_finished,
    "retry": Here._tried_again,
    "compaction": Here._compacted,
    **dict.fromkeys(HOUSEKEEPING, Here._known),
}
"""What is done with a part, by its type."""

_SAID = frozenset({"text", "reasoning", "tool", "file", "subtask"})
"""Parts that become messages."""


def _outcome(state: dict[str, Any], failed: bool) -> Any:
    if not failed:
        return "done"
    error = str(state.get("error") or "")
    reported = object_of(state.get("metadata"))
    if reported.get("denied") is True or "rejected permission" in error or "user rejected" in error.lower():
        return "denied"
    interrupted = reported.get("interrupted") is True
    return "cancelled" if interrupted or error in ("Tool execution aborted", "Aborted") else "error"


def plan_of(agent: str, reason: str, todos: list[Any], at: float | None) -> Plan:
    """A list of to-dos as a version of the plan."""
    items = distinct_items(
        (title, _STATUS.get(str(todo.get("status")), "pending"))
        for todo in todos
        if isinstance(todo, dict) and (title := text_of(todo.get("content"))) is not None
    )
    return Plan(agent, reason, items, whole=True, plan=agent, at=at)


PRUNE_SECONDS = 10.0
"""Results that were emptied within this time were so by one pass."""


Group = tuple[bytes, list[Record]]


class Conversation:
    """Translates one session.

    Args:
        session_id: its id.
        root: id of the session at the top of its tree, which names the session here.
        memory: what was kept of it after an earlier reading.
        find: a message by its id.
    """

    def __init__(
        self,
        session_id: str,
        root: str,
        parent: str | None,
        memory: dict[str, Any],
        find: Callable[[str], Stored | None],
    ) -> None:
        self.id = session_id
        self.key = MAIN if session_id == root else session_id
        self._root = root
        self._parent = MAIN if parent == root or parent is None else parent
        self._find = find
        self._context: int | None = memory.get("context")
        """Tokens that the model held when its last step ended."""
        self._pruned: float = memory.get("pruned", 0.0)
        """Until when emptied results were reported."""
        self._emptied: list[tuple[float, str]] = []
        self.open: dict[str, dict[str, str]] = dict(memory.get("open", {}))
        """Messages that may still change → what was reported of their parts."""
        self._undoing = Undoing(session_id, self.key, memory)

    def memory(self) -> dict[str, Any]:
        """What a later reading needs."""
        return {"context": self._context, "pruned": self._pruned, "open": self.open} | self._undoing.memory()

    # The session.

    def session(self, value: dict[str, Any]) -> list[Record]:
        """What its own record says; `{}` where it is lost."""
        at = time_of(value.get("time"), "created")
        title = text_of(value.get("title"))
        main = self.key == MAIN
        found: list[Record] = [
            Session(
                self._root, text_of(value.get("directory")), title if main else None, text_of(value.get("version")),
                text_of(value.get("fork_session_id")) if main else None, at,
            )
        ]  # fmt: skip
        if main:
            found.append(ImportedAgent(MAIN, at=at))
        else:
            name, role = title_parts(title)
            found.append(
                ImportedAgent(
                    self.key, self._parent, name=name, role=role or text_of(value.get("agent")), at=at
                )
            )
        return found

    def naming(self) -> Session:
        """The session to which the next records belong, and nothing more."""
        return Session(self._root)

    def todos(self, todos: list[dict[str, Any]], at: float | None) -> list[Record]:
        """The current plan."""
        return [plan_of(self.key, "todo", todos, at)]

    # Messages.

    def message(self, stored: Stored, *, last: bool) -> Iterator[Group]:
        """One message and its parts; `last`: it is the session's last one."""
        info = stored.value
        if info is None:
            if stored.changed:
                yield (
                    stored.data,
                    [Raw("message", "broken JSON" if stored.data else "empty or unreadable")],
                )
            for part in stored.parts:
                if part.changed:
                    yield part.data, [Raw(_kind(part), "its message is missing or broken")]
            return
        yield from self._emptied_before(time_of(info.get("time"), "created"))
        reported = self.open.pop(stored.id, None)
        times = info.get("time")
        assistant = info.get("role") == "assistant"
        settled = (
            not assistant
            or not last
            or time_of(times, "completed") is not None
            or isinstance(info.get("error"), dict)
            or info.get("finish") not in (None, "tool-calls")
        )
        if not assistant:
            uid = self._first_uid(stored)
            if uid is not None:
                self._undoing.asked(stored.id, uid)
        keeping = reported if reported is not None else {}
        step, steps = 0, 0
        said: list[Any] = []
        summary: list[str] = []
        is_summary = assistant and info.get("summary") is True
        for place, part in enumerate(stored.parts):
            value = part.value
            if value is None:
                if part.changed and keeping.get(part.id) != "raw":
                    keeping[part.id] = "raw"
                    yield part.data, [Raw("part", "broken JSON" if part.data else "empty or unreadable")]
                continue
            kind = value.get("type")
            step += kind == "step-start"
            steps += kind == "step-finish"
            if is_summary and kind == "text":
                summary.append(text_of(value.get("text")) or "")
            here = Here(self, stored, info, part.id, place, step, tuple(said), settled, is_summary)
            said.append(_said(value))
            if reported is None and not part.changed:
                continue
            before = keeping.get(part.id)
            if before == "done":
                self.note_emptied(value)
                continue
            records, keeping[part.id] = here.part(value, before)
            if keeping[part.id] == "done":
                self.note_emptied(value)
            if records:
                yield part.data, records
        if settled:
            if stored.changed or reported is not None:
                yield stored.data, self._own(stored, info, steps, said, summary if is_summary else None)
        else:
            if "" not in keeping:
                keeping[""] = "done"
                yield stored.data, [self._agent(info)]
            self.open[stored.id] = keeping

    def finish(self) -> Iterator[Group]:
        """What comes after the last message."""
        yield from self._emptied_before(None)

    # What was undone.

    def gone(self, session: dict[str, Any], stored: Sequence[str], fresh: Collection[str]) -> Iterator[Group]:
        """What became of earlier messages, before new ones: of those that are `stored`, in order, some are
        `fresh`."""
        at = time_of(session.get("time"), "updated")
        for record in self._undoing.before(place_of(session.get("revert")), stored, fresh, at):
            yield b"", [record]

    def undone(self, session: dict[str, Any], stored: Sequence[str]) -> Iterator[Group]:
        """What the session's `revert` undoes, after all messages."""
        at = time_of(session.get("time"), "updated")
        for record in self._undoing.after(
            place_of(session.get("revert")), lambda place: self._uid_at(place, stored), at
        ):
            yield b"", [record]

    def _uid_at(self, place: Place, stored: Sequence[str]) -> str | None:
        """`uid` of the first message at a place or after it."""
        message_id, part = place
        for each in stored[stored.index(message_id) :] if message_id in stored else ():
            found = self._find(each)
            uid = self._first_uid(found, part if each == message_id else "") if found is not None else None
            if uid is not None:
                return uid
        return None

    def _first_uid(self, stored: Stored, part_id: str = "") -> str | None:
        """`uid` of the first message that this one became, or that came of its parts from one on."""
        if stored.value is None:
            return None
        reached = not part_id
        summary = stored.value.get("summary") is True
        for place, each in enumerate(stored.parts):
            reached = reached or each.id == part_id
            here = Here(self, stored, stored.value, each.id, place, 0, (), True, summary)
            uid = here.first_uid(each.value or {}) if reached else None
            if uid is not None:
                return uid
        return None

    def _agent(self, info: dict[str, Any]) -> ImportedAgent:
        model = model_of(info)
        return ImportedAgent(
            self.key, model=model if model != "unknown" else None, at=time_of(info.get("time"), "created")
        )

    def _own(
        self, stored: Stored, info: dict[str, Any], steps: int, said: list[Any], summary: list[str] | None
    ) -> list[Record]:
        """What the message's own record says, once nothing of it changes any more."""
        found: list[Record] = [self._agent(info)]
        at = time_of(info.get("time"), "completed", "created")
        usage = tokens_of(info.get("tokens")) if not steps else None
        if usage is not None:
            found.append(
                self.model_call(
                    stored.id,
                    info,
                    usage,
                    info,
                    said,
                    at,
                    exact=time_of(info.get("time"), "completed") is not None
                    and not isinstance(info.get("error"), dict),
                )
            )
        error = info.get("error")
        if isinstance(error, dict):
            aborted = error.get("name") == "MessageAbortedError"
            uid = self.uid(info, -1, "error")
            found.append(Failure(self.key, "interrupted" if aborted else "error", words_of(error), at, uid))
        elif summary is not None:
            found += self._compaction(stored, info, summary, at)
        return found

    def model_call(
        self,
        row_id: str,
        info: dict[str, Any],
        usage: Tokens,
        reported: dict[str, Any],
        said: Any,
        at: float | None,
        *,
        exact: bool = True,
    ) -> ModelCall:
        """One step's usage; `reported` is what logged it, in the row of that id."""
        model = model_of(info)
        created = time_of(info.get("time"), "created")
        name = digest(created, model, usage, list(said), self.key)
        if info.get("summary") is not True:
            self._context = usage.context
        stop = stop_reason(reported.get("reason") or reported.get("finish"))
        return ModelCall(
            self.key, f"opencode:{self.id}:{row_id}", model, usage.input, usage.output, usage.read, usage.write,
            exact=exact, stop_reason=stop, at=at, cost_usd=cost_of(reported.get("cost")), final=True, alias=name,
        )  # fmt: skip

    def uid(self, info: dict[str, Any], place: int, what: str) -> str:
        """What names a record wherever it is copied to; sub-agents are never copied."""
        created = time_of(info.get("time"), "created") or text_of(info.get("id"))
        return f"{self.key}:{created}:{place}:{what}"

    # Compactions.

    def _compaction(
        self, stored: Stored, info: dict[str, Any], summary: list[str], at: float | None
    ) -> list[Record]:
        """A summary replaces what came before it."""
        asked = self._find(text_of(info.get("parentID")) or "")
        part = next(
            (each.value for each in asked.parts if each.value and each.value.get("type") == "compaction"), {}
        ) if asked is not None else {}  # fmt: skip
        trigger = "manual" if part.get("auto") is False else "auto"
        began = time_of(info.get("time"), "created")
        uid = self.uid(info, -2, "compaction")
        took = at - began if at is not None and began is not None and at > began else None
        before, self._context = self._context, None
        return [
            ImportedCompaction(
                self.key,
                uid,
                trigger,
                at,
                before,
                keep_from=self._kept_from(part),
                seconds=took,
                model=model_of(info),
            ),
            Summary(self.key, f"{uid}:summary", "\n".join(summary), at),
        ]

    def marked(self, info: dict[str, Any], place: int, part: dict[str, Any]) -> list[Record]:
        """A compaction that no summary tells of."""
        at = time_of(info.get("time"), "created")
        uid = self.uid(info, place, "compaction")
        trigger = "manual" if part.get("auto") is False else "auto"
        before, self._context = self._context, None
        return [ImportedCompaction(self.key, uid, trigger, at, before, keep_from=self._kept_from(part))]

    def _kept_from(self, part: dict[str, Any]) -> tuple[str, ...]:
        """`uid` of the first message that stayed."""
        kept = self._find(text_of(part.get("tail_start_id")) or "")
        uid = self._first_uid(kept) if kept is not None else None
        return (uid,) if uid is not None else ()

    def note_emptied(self, part: dict[str, Any]) -> None:
        """Remember a result that was emptied."""
        emptied = time_of(object_of(part.get("state")).get("time"), "compacted")
        call_id = text_of(part.get("callID"))
        if emptied is not None and emptied > self._pruned and call_id is not None:
            self._emptied.append((emptied, call_id))

    def _emptied_before(self, at: float | None) -> Iterator[Group]:
        """Passes that emptied results before that time: each one compaction."""
        due = sorted(each for each in self._emptied if at is None or each[0] <= at)
        while due:
            first = due[0][0]
            batch = [each for each in due if each[0] - first <= PRUNE_SECONDS]
            due = due[len(batch) :]
            self._pruned = max(self._pruned, batch[-1][0])
            self._emptied = [each for each in self._emptied if each not in batch]
            calls = tuple(call_id for _, call_id in batch)
            uid = f"{self.id}:prune:{first}"
            yield b"", [ImportedCompaction(self.key, uid, "prune", batch[-1][0], self._context, elided=calls)]


def _said(value: dict[str, Any]) -> Any:
    """What tells a part from others, without its ids and what may change later."""
    return [value.get("type"), text_of(value.get("callID")) or value.get("text")]


def _kind(part: Part) -> str:
    kind = part.value.get("type") if part.value is not None else None
    return f"part/{kind}"[:70] if isinstance(kind, str) else "part"
