"""Reads one log of Codex, line by line.

What is known of the format is in docs/transcripts.md. A line is `{timestamp, type, payload}`; in the oldest
logs it is a response item by itself, and the first line a header. A log is of one thread, and is only ever
appended to: what a compaction dropped still stands in it.
"""

from __future__ import annotations

from typing import Any

from watchkeeper.transcripts.codex import items
from watchkeeper.transcripts.codex.agents import SpawnBook
from watchkeeper.transcripts.codex.events import words_of
from watchkeeper.transcripts.codex.speech import Speech
from watchkeeper.transcripts.codex.threads import Replay, Thread, thread_of
from watchkeeper.transcripts.codex.types import (
    EVENTS,
    ITEMS,
    LINES,
    NOT_FOR_US,
    REPETITIONS,
    REPLAYED,
    SAID_AGAIN,
)
from watchkeeper.transcripts.codex.usage import Usage, UsageBook
from watchkeeper.transcripts.jsontext import count_of, parse, seconds, text_of
from watchkeeper.transcripts.linereading import no_record
from watchkeeper.transcripts.records import (
    MAIN,
    Agent,
    Compaction,
    Failure,
    Message,
    ModelCall,
    Plan,
    Raw,
    Record,
    Rewind,
    Session,
    Skipped,
    Summary,
)

_KEPT_OF_COPIES = (Session, Message, Plan, Compaction, Summary, Rewind, Raw, Skipped)
"""What a thread that a person forked has of the other's history: its context, and none of its work."""
_TURN_ENDS = frozenset({"task_complete", "turn_complete"})
_TURN_STARTS = frozenset({"task_started", "turn_started"})


class CodexReader:
    """A `LineReader`.

    Args:
        session: key of the session that the log belongs to: its thread, or the one at the top of its tree;
            None where the log's beginning does not tell.
        named: the thread as the file's name has it.
    """

    def __init__(self, session: str | None, named: str) -> None:
        self._session = session or named
        self._thread = named
        self._owner = MAIN
        self._spawned = False
        self._opened = False
        self._provider = "openai"
        self._model: str | None = None
        self._began: float | None = None
        self._usage = UsageBook()
        self._last: list[Any] | None = None
        """The last model call: key, model, its tokens, its time."""
        self._turn: str | None = None
        """`begun`, while nothing was said in a turn; `compacted`, if nothing but that was done."""
        self._replay = Replay(None, None)
        self._spawns = SpawnBook(MAIN, self._key_of)
        self._speech = Speech(named, MAIN, self._spawns, {})

    @classmethod
    def restore(cls, state: dict[str, Any]) -> CodexReader:
        """The reader that `save` told of."""
        reader = cls(str(state["session"]), str(state["thread"]))
        reader._opened = True
        reader._owner = str(state["owner"])
        reader._spawned = bool(state.get("spawned"))
        reader._provider = str(state["provider"])
        reader._model = state.get("model")
        reader._began = state.get("began")
        reader._usage = UsageBook(state.get("usage"))
        reader._last = list(state["last"]) if state.get("last") else None
        reader._turn = state.get("alone")
        reader._replay = Replay.restore(state.get("replay"))
        reader._spawns = SpawnBook(reader._owner, reader._key_of, state.get("spawns"))
        reader._speech = Speech(reader._thread, reader._owner, reader._spawns, state)
        return reader

    def save(self) -> dict[str, Any]:
        return {
            "session": self._session,
            "thread": self._thread,
            "owner": self._owner,
            "spawned": self._spawned,
            "provider": self._provider,
            "model": self._model,
            "began": self._began,
            "usage": self._usage.save(),
            "last": self._last,
            "alone": self._turn,
            "replay": self._replay.save(),
            "spawns": self._spawns.calls,
        } | self._speech.save()

    def feed(self, line: int, data: bytes) -> list[Record]:
        record = parse(data)
        if record is None:
            return no_record(data, self._session, opened=self._opened)
        at = seconds(record.get("timestamp"))
        kind, payload = text_of(record.get("type")), record.get("payload")
        if not isinstance(payload, dict):
            kind, payload = self._bare(record)
        opening = self._open(kind, payload, at)
        found: list[Record] = []
        copied = not opening and self._replay.copied(kind, payload, at)
        if kind == "token_usage_record" and (owner := text_of(payload.get("thread_id"))) is not None:
            copied = owner != self._thread
            self._replay.going = self._replay.going and copied
        if kind == "session_meta":
            self._meta(payload, bool(opening), found)
        elif kind == "response_item":
            self._turn = None
            self._speech.item(payload, at, self._speech.uid(payload, at), found)
        elif kind == "event_msg":
            self._event(payload, at, found)
        elif kind == "turn_context":
            self._turn_context(payload, found)
        elif kind == "compacted":
            self._compacted(payload, at, self._speech.uid(payload, at), found)
        elif kind == "inter_agent_communication":
            self._speech.told(payload, at, self._speech.uid(payload, at), found)
        elif kind == "token_usage_record":
            self._count(self._usage.record(payload), at, found)
            if not found:
                found.append(Raw(kind, "tells no usage"))
        elif isinstance(kind, str):
            found.append(Raw(kind[:80], NOT_FOR_US if kind in LINES else "unknown record type"))
        else:
            found.append(Raw("?", "a record without a type"))
        if copied or (kind == "session_meta" and self._replay.going and not opening):
            found = self._of_copy(found)
            if self._last is not None:
                self._last[0] = ""  # the other thread's call: no end of a turn here is its end
        self._speech.note(found)
        return opening + found if opening else found

    def _bare(self, record: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """A line of the oldest logs, as the later ones would hold it."""
        kind = text_of(record.get("type"))
        if kind in ITEMS:
            return "response_item", record
        if kind is None and text_of(record.get("id")) and "timestamp" in record:
            return "session_meta", record
        if kind is None and isinstance(record.get("record_type"), str):
            return f"record/{record['record_type']}"[:80], {}
        return (f"{kind} without a payload" if kind in LINES else kind), {}

    def _of_copy(self, found: list[Record]) -> list[Record]:
        if not self._spawned:
            found = [each for each in found if isinstance(each, _KEPT_OF_COPIES)]
            if found:
                return found
        return [Skipped(REPLAYED)]

    # The thread.

    def _open(self, kind: Any, payload: dict[str, Any], at: float | None) -> list[Record]:
        """Name the session and its agent with the first record."""
        if self._opened:
            return []
        self._opened = True
        self._began = at
        thread = thread_of(payload) if kind == "session_meta" else None
        if thread is None:
            return [Session(self._session, at=at)]
        self._thread = thread.id
        self._spawned = thread.parent is not None
        provider = text_of(payload.get("model_provider"))
        self._provider = provider or self._provider
        self._replay = Replay(thread, at)
        began = at if thread.at is None else thread.at
        version, folder = text_of(payload.get("cli_version")), text_of(payload.get("cwd"))
        fork = thread.forked_from if not self._spawned else None
        found: list[Record] = [Session(self._session, folder, None, version, fork, began)]
        if self._spawned:
            found.append(self._child(thread, began))
        self._speech = Speech(self._thread, self._owner, self._spawns, {})
        return found

    def _child(self, thread: Thread, at: float | None) -> Agent:
        self._owner = self._key_of(thread.id)
        self._spawns = SpawnBook(self._owner, self._key_of)
        parent = self._key_of(thread.parent) if thread.parent is not None else MAIN
        return Agent(self._owner, parent, name=thread.name, role=thread.role, at=at)

    def _key_of(self, thread: str) -> str:
        return MAIN if thread == self._session else thread

    def _meta(self, payload: dict[str, Any], first: bool, found: list[Record]) -> None:
        if first:
            if thread_of(payload) is None:
                found.append(Raw("session_meta", "names no thread"))
            return
        thread = thread_of(payload)
        if thread is not None and thread.id == self._thread:
            found.append(
                Session(
                    self._session, text_of(payload.get("cwd")), version=text_of(payload.get("cli_version"))
                )
            )
            return
        if self._replay.going:
            self._replay.certain = True
        found.append(Raw("session_meta", "of another thread"))

    def _turn_context(self, payload: dict[str, Any], found: list[Record]) -> None:
        model = text_of(payload.get("model"))
        if model is not None:
            self._model = model
            found.append(Agent(self._owner, model=self._model_ref()))
        found.append(Raw("turn_context", NOT_FOR_US))

    def _model_ref(self) -> str:
        return f"{self._provider}/{self._model}" if self._model else "unknown"

    # Compactions.

    def _compacted(self, payload: dict[str, Any], at: float | None, uid: str, found: list[Record]) -> None:
        record = payload.get("latest_token_usage_record")
        record = record if isinstance(record, dict) else {}
        latest = self._usage.record(record, again=True)
        if latest is not None and record.get("thread_id") == self._thread:
            self._count(latest, at, found)
        before = self._last[4] if self._last is not None else None
        if latest is not None:
            # What the compaction itself was given was all of the context; what it said of it was not.
            compacted = bool(latest.key) and latest.key == text_of(payload.get("compaction_response_id"))
            before = latest.prompt if compacted else latest.prompt + latest.output
        found.append(Compaction(self._owner, uid, "auto", at, before))
        found.append(Summary(self._owner, uid and f"{uid}:summary", items.stands_in(payload), at))
        self._speech.reply_ended()
        self._turn = "compacted" if self._turn else None
        if self._last is not None:
            # What the context held before is of no use for the next compaction, and no end of a turn is that
            # call's end.
            self._last[0], self._last[4] = "", None

    # Events.

    def _event(self, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        kind = text_of(payload.get("type")) or "?"
        if kind == "token_count":
            self._token_count(payload, at, found)
        elif kind == "turn_aborted":
            reason = text_of(payload.get("reason")) or "interrupted"
            found.append(
                Failure(
                    self._owner, "interrupted", f"turn aborted: {reason}", at, self._speech.uid(payload, at)
                )
            )
        elif kind == "error":
            found.append(Failure(self._owner, "error", words_of(payload), at, self._speech.uid(payload, at)))
        elif kind == "stream_error":
            found.append(Failure(self._owner, "retry", words_of(payload), at, self._speech.uid(payload, at)))
        elif kind in _TURN_ENDS:
            self._turn_ended(payload, at, found)
        elif kind in _TURN_STARTS:
            self._turn = "begun"
            window = count_of(payload.get("model_context_window"))
            found.append(
                Agent(
                    self._owner,
                    context_limit=window or None,
                    status="working" if self._spawned else None,
                    at=at,
                )
            )
        elif kind == "thread_rolled_back" and (
            back := self._speech.go_back(
                count_of(payload.get("num_turns")), self._speech.uid(payload, at), at
            )
        ):
            found.append(back)
        elif kind == "thread_name_updated" and text_of(payload.get("thread_name")) and not self._spawned:
            found.append(Session(self._session, title=text_of(payload.get("thread_name"))))
        else:
            self._speech.outcomes.event(kind, payload)
            self._spawns.event(kind, payload, at, found)
            known = (
                SAID_AGAIN if kind in REPETITIONS else NOT_FOR_US if kind in EVENTS else "unknown record type"
            )
            found.append(Raw(f"event_msg/{kind[:60]}", known))

    def _token_count(self, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        info = payload.get("info")
        if not isinstance(info, dict):
            found.append(Raw("event_msg/token_count", NOT_FOR_US))  # rate limits alone
            return
        window = count_of(info.get("model_context_window"))
        if window:
            found.append(Agent(self._owner, context_limit=window))
        usage = self._usage.take(info)
        if usage is None:
            found.append(Skipped("repeats a token count"))
            return
        self._count(usage, at, found)

    def _count(self, usage: Usage | None, at: float | None, found: list[Record]) -> None:
        """A call that is new."""
        if usage is None:
            return
        key = f"{self._thread}:{usage.key}" if usage.key else "" if at is None else f"{self._thread}@{at!r}"
        figures = [usage.input, usage.output, usage.cached, usage.written]
        self._speech.reply_ended(counted=True)
        self._last = [key, self._model_ref(), figures, at, usage.prompt + usage.output, usage.exact]
        found.append(self._model_call(None))

    def _model_call(self, stop_reason: str | None) -> ModelCall:
        assert self._last is not None
        key, model, figures, at, _, exact = self._last
        fresh, output, read, written = figures
        return ModelCall(
            self._owner, key, model, fresh, output, read, written, exact=exact, stop_reason=stop_reason, at=at
        )

    def _turn_ended(self, payload: dict[str, Any], at: float | None, found: list[Record]) -> None:
        error = payload.get("error")
        if isinstance(error, dict) and text_of(error.get("message")):
            found.append(Failure(self._owner, "error", words_of(error), at, self._speech.uid(payload, at)))
        elif self._turn == "compacted":
            # A turn to itself: somebody asked for it. One that comes before a prompt, or within its turn,
            # came by itself.
            found.append(
                Compaction(self._owner, self._speech.uid(payload, at), "manual", at, told_later=True)
            )
        elif self._last is not None and self._last[0]:
            found.append(self._model_call("end_turn"))
        self._turn = None
        if self._spawned:
            found.append(Agent(self._owner, at=at, status="failed" if error else "done"))
        if not found:
            found.append(Raw(f"event_msg/{payload.get('type')}", NOT_FOR_US))
