"""One session's messages and their parts as records, whether they come from the database or from files.

A session of OpenCode is one agent: the one that a person talks to, or a sub-agent, whose session names its
parent's. A message is a row with its parts; parts are rewritten until they are finished. Each part becomes
one message here, once it is finished; a tool's call and its result may come apart.

A fork copies messages under new ids and changes nothing else, so that what was said, and when, is what names
a record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from watchkeeper.transcripts.jsontext import text_of
from watchkeeper.transcripts.opencode import parts as of
from watchkeeper.transcripts.opencode.partreading import Here, Part, Stored, plan_of
from watchkeeper.transcripts.opencode.undoing import Place, Undoing, place_of
from watchkeeper.transcripts.records import (
    MAIN,
    Agent,
    Compaction,
    Failure,
    ModelCall,
    Raw,
    Record,
    Session,
    Summary,
)

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
        writes_ends: whether its parts tell when they ended.
    """

    def __init__(
        self,
        session_id: str,
        root: str,
        parent: str | None,
        memory: dict[str, Any],
        find: Callable[[str], Stored | None],
        writes_ends: bool = True,
    ) -> None:
        self.id = session_id
        self.key = MAIN if session_id == root else session_id
        self._root = root
        self._parent = MAIN if parent == root or parent is None else parent
        self._find = find
        self.writes_ends = writes_ends
        self._context: int | None = memory.get("context")
        """Tokens that the model held when its last step ended."""
        self._pruned: float = memory.get("pruned", 0.0)
        """Until when emptied results were told."""
        self._emptied: list[tuple[float, str]] = []
        self.open: dict[str, dict[str, str]] = dict(memory.get("open", {}))
        """Messages that may still change → what was told of their parts."""
        self._undoing = Undoing(session_id, self.key, memory)

    def memory(self) -> dict[str, Any]:
        """What a later reading needs."""
        return {"context": self._context, "pruned": self._pruned, "open": self.open} | self._undoing.memory()

    # The session.

    def session(self, value: dict[str, Any]) -> list[Record]:
        """What its own record says; `{}` where it is lost."""
        at = of.time_of(value.get("time"), "created")
        title = text_of(value.get("title"))
        main = self.key == MAIN
        found: list[Record] = [
            Session(
                self._root, text_of(value.get("directory")), title if main else None, text_of(value.get("version")),
                text_of(value.get("fork_session_id")) if main else None, at,
            )
        ]  # fmt: skip
        if main:
            found.append(Agent(MAIN, at=at))
        else:
            name, role = of.title_parts(title)
            found.append(
                Agent(self.key, self._parent, name=name, role=role or text_of(value.get("agent")), at=at)
            )
        return found

    def naming(self) -> Session:
        """The session to which the next records belong, and nothing more."""
        return Session(self._root)

    def todos(self, todos: list[dict[str, Any]], at: float | None) -> list[Record]:
        """The plan as it stands."""
        return [plan_of(self.key, "todo", todos, at)]

    # Messages.

    def message(self, stored: Stored, *, last: bool) -> Iterator[Group]:
        """One message and its parts; `last`: it is the session's last one."""
        info = stored.value
        if info is None:
            if stored.changed:
                yield (
                    stored.data,
                    [Raw("message", "broken JSON" if stored.data else "empty, or not to be read")],
                )
            for part in stored.parts:
                if part.changed:
                    yield part.data, [Raw(_kind(part), "its message is missing or broken")]
            return
        yield from self._emptied_before(of.time_of(info.get("time"), "created"))
        told = self.open.pop(stored.id, None)
        times = info.get("time")
        assistant = info.get("role") == "assistant"
        settled = (
            not assistant
            or not last
            or of.time_of(times, "completed") is not None
            or isinstance(info.get("error"), dict)
            or info.get("finish") not in (None, "tool-calls")
        )
        if not assistant:
            uid = self._first_uid(stored)
            if uid is not None:
                self._undoing.asked(stored.id, uid)
        keeping = told if told is not None else {}
        step, steps = 0, 0
        said: list[Any] = []
        summary: list[str] = []
        is_summary = assistant and info.get("summary") is True
        for place, part in enumerate(stored.parts):
            value = part.value
            if value is None:
                if part.changed and keeping.get(part.id) != "raw":
                    keeping[part.id] = "raw"
                    yield part.data, [Raw("part", "broken JSON" if part.data else "empty, or not to be read")]
                continue
            kind = value.get("type")
            step += kind == "step-start"
            steps += kind == "step-finish"
            if is_summary and kind == "text":
                summary.append(text_of(value.get("text")) or "")
            here = Here(self, stored, info, part.id, place, step, tuple(said), settled, is_summary)
            said.append(_said(value))
            if told is None and not part.changed:
                continue
            before = keeping.get(part.id)
            if before == "done":
                self.note_emptied(value)
                continue
            records, stage = here.part(part, value, before)
            if stage is not None:
                keeping[part.id] = stage
            if records:
                yield part.data, records
        if settled:
            if stored.changed or told is not None:
                yield stored.data, self._own(stored, info, steps, said, summary if is_summary else None)
        else:
            if "" not in keeping:
                keeping[""] = "done"
                yield stored.data, [self._agent(info)]
            self.open[stored.id] = keeping

    def finish(self) -> Iterator[Group]:
        """What comes after the last message."""
        yield from self._emptied_before(None)

    # What was taken back.

    def gone(self, session: dict[str, Any], stored: Sequence[str], fresh: Collection[str]) -> Iterator[Group]:
        """What became of earlier messages, before new ones: of those that are `stored`, in order, some are
        `fresh`."""
        at = of.time_of(session.get("time"), "updated")
        for record in self._undoing.before(place_of(session.get("revert")), stored, fresh, at):
            yield b"", [record]

    def undone(self, session: dict[str, Any], stored: Sequence[str]) -> Iterator[Group]:
        """What the session's `revert` takes back, after all messages."""
        at = of.time_of(session.get("time"), "updated")
        for record in self._undoing.after(
            place_of(session.get("revert")), lambda place: self._uid_at(place, stored), at
        ):
            yield b"", [record]

    def _uid_at(self, place: Place, stored: Sequence[str]) -> str | None:
        """`uid` of the first message that stands at a place or after it."""
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

    def _agent(self, info: dict[str, Any]) -> Agent:
        model = of.model_of(info)
        return Agent(
            self.key, model=model if model != "unknown" else None, at=of.time_of(info.get("time"), "created")
        )

    def _own(
        self, stored: Stored, info: dict[str, Any], steps: int, said: list[Any], summary: list[str] | None
    ) -> list[Record]:
        """What the message's own record says, once nothing of it changes any more."""
        found: list[Record] = [self._agent(info)]
        at = of.time_of(info.get("time"), "completed", "created")
        usage = of.tokens_of(info.get("tokens")) if not steps else None
        if usage is not None:
            found.append(
                self.model_call(
                    stored.id,
                    info,
                    usage,
                    info,
                    said,
                    at,
                    exact=of.time_of(info.get("time"), "completed") is not None,
                )
            )
        error = info.get("error")
        if isinstance(error, dict):
            aborted = error.get("name") == "MessageAbortedError"
            uid = self.uid(info, -1, "error")
            found.append(
                Failure(self.key, "interrupted" if aborted else "error", of.words_of(error), at, uid)
            )
        elif summary is not None:
            found += self._compaction(stored, info, summary, at)
        return found

    def model_call(
        self,
        row_id: str,
        info: dict[str, Any],
        usage: of.Tokens,
        told: dict[str, Any],
        said: Any,
        at: float | None,
        *,
        exact: bool = True,
    ) -> ModelCall:
        """One step's usage; `told` is what logged it, in the row of that id."""
        model = of.model_of(info)
        created = of.time_of(info.get("time"), "created")
        name = of.digest(created, model, usage, list(said), self.key)
        if info.get("summary") is not True:
            self._context = usage.context
        stop = of.stop_reason(told.get("reason") or told.get("finish"))
        return ModelCall(
            self.key, f"opencode:{self.id}:{row_id}", model, usage.input, usage.output, usage.read, usage.write,
            exact=exact, stop_reason=stop, at=at, cost_usd=of.cost_of(told.get("cost")), final=True, alias=name,
        )  # fmt: skip

    def uid(self, info: dict[str, Any], place: int, what: str) -> str:
        """What names a record wherever it is copied to; sub-agents are never copied."""
        created = of.time_of(info.get("time"), "created") or text_of(info.get("id"))
        return f"{self.key}:{created}:{place}:{what}"

    # Compactions.

    def _compaction(
        self, stored: Stored, info: dict[str, Any], summary: list[str], at: float | None
    ) -> list[Record]:
        """A summary stands for what came before it."""
        asked = self._find(text_of(info.get("parentID")) or "")
        part = next(
            (each.value for each in asked.parts if each.value and each.value.get("type") == "compaction"), {}
        ) if asked is not None else {}  # fmt: skip
        trigger = "manual" if part.get("auto") is False else "auto"
        began = of.time_of(info.get("time"), "created")
        uid = self.uid(info, -2, "compaction")
        took = at - began if at is not None and began is not None and at > began else None
        before, self._context = self._context, None
        return [
            Compaction(
                self.key,
                uid,
                trigger,
                at,
                before,
                keep_from=self._kept_from(part),
                seconds=took,
                model=of.model_of(info),
            ),
            Summary(self.key, f"{uid}:summary", "\n".join(summary), at),
        ]

    def marked(self, info: dict[str, Any], place: int, part: dict[str, Any]) -> list[Record]:
        """A compaction that no summary tells of."""
        at = of.time_of(info.get("time"), "created")
        uid = self.uid(info, place, "compaction")
        trigger = "manual" if part.get("auto") is False else "auto"
        before, self._context = self._context, None
        return [Compaction(self.key, uid, trigger, at, before, keep_from=self._kept_from(part))]

    def _kept_from(self, part: dict[str, Any]) -> str | None:
        """`uid` of the first message that stayed."""
        kept = self._find(text_of(part.get("tail_start_id")) or "")
        return self._first_uid(kept) if kept is not None else None

    def note_emptied(self, part: dict[str, Any]) -> None:
        """Remember a result that was emptied."""
        state = part.get("state")
        emptied = of.time_of(state.get("time"), "compacted") if isinstance(state, dict) else None
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
            yield b"", [Compaction(self.key, uid, "prune", batch[-1][0], self._context, elided=calls)]


def _said(value: dict[str, Any]) -> Any:
    """What tells a part from others, without its ids and what may change later."""
    return [value.get("type"), text_of(value.get("callID")) or value.get("text")]


def _kind(part: Part) -> str:
    kind = part.value.get("type") if part.value is not None else None
    return f"part/{kind}"[:70] if isinstance(kind, str) else "part"
