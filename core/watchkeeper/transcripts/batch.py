"""What one transaction of an import holds: the sessions that it changes, their agents, plans and model calls.

Plans: every version of a list is a revision, its items are tasks with their history. Model calls: each is counted once,
with the usage that was logged last, and priced when it is written. The totals of sessions and agents are summed by SQL
from the calls (`store.imports.Rows`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import attrgetter
from typing import Any

from watchkeeper.records.messages import Cost
from watchkeeper.records.quota import QuotaReading
from watchkeeper.store import imports as rows
from watchkeeper.store.imports import Rows
from watchkeeper.transcripts.records import (
    AGENT_LENGTH,
    MAIN,
    STORED_KINDS,
    Failure,
    ImportedCompaction,
    ImportedMessage,
    ModelCall,
    Plan,
    PlanItem,
    Record,
    ReportedTotals,
    Rewind,
    Summary,
    record_digest,
    stable_id,
    write,
)

# --- Plans ----------------------------------------------------------------------------------------------

_ENDED = frozenset({"done", "failed", "cancelled", "dropped"})


MARK = re.compile(r"[\[<«]?(?:REDACTED|\bredacted\b)(?::[^\s\]>»]*)?[\]>»]?|\*{3,}|█+")
"""What redactions write in the place of what they take."""


@dataclass(slots=True)
class Task:
    """An item of the list, as it is stored."""

    id: str
    name: str
    position: int
    title: str
    status: str
    instructions: str
    started_at: float | None
    ended_at: float | None
    needs: tuple[str, ...]


_state = attrgetter("status", "position", "title", "instructions", "started_at", "ended_at", "needs")
"""What may change of a task."""


class PlanImport:
    """One list and its items, as stored and as this transaction changes them.

    Args:
        live: the log is followed: a task that is running may still run, while in a session that ended it is
            not finished.
    """

    def __init__(self, cursor: Any, plan_id: str, *, live: bool) -> None:
        self.id = plan_id
        self._live = live
        found = rows.load_plan(cursor, plan_id)
        self.known = found is not None
        """The plan's row exists."""
        self.revision, stored = found or (0, [])
        self._tasks = {row[0]: Task(*row) for row in stored}
        self._ids: dict[str, str] = {}
        for task in self._tasks.values():
            if task.status == "paused":
                task.status = "running"  # as its program left it

    def take(self, plan: Plan, at: float, session_id: str, goal: str, into: Rows) -> list[Task] | None:
        """A new version: the tasks whose status changed; None where it is the same as the one before."""
        before = {task.id: _state(task) for task in self._tasks.values()}
        if plan.whole:
            self._recognise(plan.items)
        listed: list[Task] = []
        for item in plan.items:
            if item.where == "known" and self._id_of(item.key) not in self._tasks:
                continue
            task = self._item(item, at, plan.whole)
            if plan.whole:
                task.position = len(listed)
            listed.append(task)
        if plan.whole:
            here = {task.id for task in listed}
            gone = (task for task in self._tasks.values() if task.id not in here)
            for place, task in enumerate(sorted(gone, key=lambda task: task.position), len(listed)):
                task.position = place
                if task.status not in _ENDED:
                    self._move(task, "dropped", at)
        changed = [task for task in self._tasks.values() if before.get(task.id) != _state(task)]
        if not changed and (self.known or not plan.whole):
            return None
        self.revision += 1
        self._write(plan.reason, changed, at, session_id, goal, into)
        return [task for task in changed if task.id not in before or before[task.id][0] != task.status]

    def _recognise(self, items: Sequence[PlanItem]) -> None:
        """Items are known by their texts: where a redaction left its marks in one, it is the item whose text
        is the same besides them."""
        fresh = [
            (place, item) for place, item in enumerate(items) if self._id_of(item.key) not in self._tasks
        ]
        if not fresh:
            return
        here = {self._id_of(item.key) for item in items}
        left = [task for task in self._tasks.values() if task.id not in here]
        redacted = [task for task in left if MARK.search(task.title)]
        for place, item in fresh:
            possible = left if MARK.search(item.key) else redacted
            for task in sorted(possible, key=lambda task: abs(task.position - place)):
                if _same_besides_marks(item.key, task.title, task.position == place):
                    self._ids[item.key] = task.id
                    left.remove(task)
                    redacted = [each for each in redacted if each is not task]
                    break

    def _item(self, item: PlanItem, at: float, whole: bool) -> Task:
        task_id = self._id_of(item.key, item.where == "new")
        task = self._tasks.get(task_id)
        if task is None:
            if (
                item.where == "new"
                and (gone := self._tasks.get(self._id_of(item.key)))
                and gone.status not in _ENDED
            ):
                self._move(gone, "dropped", at)
            name = str(len(self._tasks) + 1)
            task = Task(
                task_id, name, len(self._tasks), item.title or item.key, "pending", "", None, None, ()
            )
            self._tasks[task_id] = task
        if item.title is not None and (
            MARK.search(item.title) is None or MARK.search(task.title) is not None
        ):
            task.title = item.title  # a redacted one says less than what is known
        if item.instructions is not None:
            task.instructions = item.instructions
        if item.depends_on is not None:
            needs = dict.fromkeys(() if whole else task.needs)
            needs |= dict.fromkeys(
                need
                for key in item.depends_on
                if (need := self._id_of(key)) in self._tasks and need != task_id
            )
            task.needs = tuple(needs)
        if item.status is not None and item.status != task.status:
            self._move(task, item.status, at)
        return task

    def _id_of(self, key: str, fresh: bool = False) -> str:
        """The task of the item that has this key now: a list that was started again gives the same keys to other
        items."""
        found, times = self._named(key, 1), 1
        while (later := self._named(key, times + 1)) in self._tasks:
            found, times = later, times + 1
        if fresh and found in self._tasks and self._tasks[found].title != key:
            found = later  # one that has its key for a title was only heard of, until now
        return found

    def _named(self, key: str, times: int) -> str:
        name = key if times == 1 else f"{key}\0{times}"
        found = self._ids.get(name)
        if found is None:
            found = self._ids[name] = stable_id(self.id, "item", name, length=AGENT_LENGTH)
        return found

    def _move(self, task: Task, status: str, at: float) -> None:
        task.status = status
        if status == "running" and task.started_at is None:
            task.started_at = at
        task.ended_at = at if status in _ENDED else None

    def _write(
        self, reason: str, changed: list[Task], at: float, session_id: str, goal: str, into: Rows
    ) -> None:
        ordered = sorted(self._tasks.values(), key=lambda task: task.position)
        queue = [task.id for task in ordered if task.status not in _ENDED]
        cursor = len(ordered) - len(queue)
        graph = [
            {"id": task.id, "name": task.name, "title": task.title, "status": task.status, "attempt": 1, "agent": None,
             "depends_on": task.needs}
            for task in ordered
        ]  # fmt: skip
        waiting = write(queue)[0]
        into["plans"].append((self.id, session_id, goal, self.revision, cursor, waiting, at, at))
        into["revisions"].append((self.id, self.revision, at, reason, goal, waiting, cursor, write(graph)[0]))
        for task in changed:
            left = task.status == "running" and not self._live
            status, why = ("paused", rows.NOT_FINISHED) if left else (task.status, None)
            into["tasks"].append(
                (task.id, session_id, self.id, task.name, task.position, task.title, task.instructions, status, why, at,
                 task.started_at, task.ended_at)
            )  # fmt: skip
            into["needs"].extend((task.id, need) for need in task.needs)
        self.known = True


def _same_besides_marks(one: str, other: str, same_place: bool) -> bool:
    """Whether two texts of which one at least was redacted may have been the same; of one that is nothing but
    marks, its place in the list tells."""
    for text, whole in ((one, other), (other, one)):
        pieces = MARK.split(text)
        if len(pieces) == 1:
            continue
        if not "".join(pieces).strip():
            return same_place
        if re.fullmatch(".*?".join(map(re.escape, pieces)), whole, re.DOTALL):
            return True
    words, others = one.split(), other.split()
    return len(words) == len(others) and all(
        a == b or MARK.search(a) is not None or MARK.search(b) is not None
        for a, b in zip(words, others, strict=True)
    )


# --- One agent of an imported session, as far as a transaction has changed it -----------------------------

LONGEST_PAUSE_SECONDS = 300.0
"""A longer time between two records is not counted as work."""

FLUSHED_SECONDS = 1.0
"""What an agent that ended had said may be logged so much later."""

NO_LOG = "its own log is not here"


@dataclass(slots=True)
class AgentImport:
    """The agent's row, and what of its history is needed to go on with it."""

    key: str
    row: dict[str, Any]
    changed: bool = True
    id: str = field(init=False)
    call_key: str | None = None
    """The key of the model call whose turn it is."""
    position: int = 0
    """Tool calls of this turn so far."""
    last_at: float | None = None
    is_untimed: bool = False
    """It was made before any record had a time: the first time found is when it began."""
    repeating: bool = False
    """The newest message was one that is here already, under another id."""
    said_at: dict[float, list[int]] | None = None
    """Messages by their time, once they are needed."""
    open_calls: dict[str, tuple[int, str, float, list[Any]]] = field(default_factory=dict)
    """Calls that wait for a result: id, tool, when it began, and the row if this transaction writes it."""
    calls_before: set[str] | None = None
    """The program's ids of the calls of earlier transactions, once they are needed."""
    observations: list[int] = field(default_factory=list)
    verbatim_from: int = 1
    elided: list[Any] = field(default_factory=list)
    """As views hold it: `[seq, head, tail, pointer, tokens]`; those that were undone have no tokens
    left."""
    last_observation: int = 0
    compaction: int | None = None
    """The newest compaction, while its tokens after it are not known."""
    summary: int | None = None
    """The observation that waits for its text."""
    awaits_summary: bool = False
    """A compaction came, and its summary has not."""
    dropped_tokens: int = 0
    """Running total of tokens before `verbatim_from`."""
    observation_tokens: int = 0
    told_seconds: float | None = None
    """For how long it worked as its call says, while nothing of its own log is here."""
    taken_back_tokens: int = 0
    """The tokens of messages that are verbatim by their place, and were undone."""
    ended_at: float | None = None
    """When it ended, as its program reports; infinite where the report has no time. What its own log says up to then
    changes nothing of how it ended."""
    window_of: str | None = None
    """The model whose window `context_limit` is."""
    window_reported: bool = False
    """`context_limit` is the log's own."""

    def __post_init__(self) -> None:
        self.id = self.row["id"]

    @classmethod
    def load(cls, cursor: Any, key: str, row: dict[str, Any]) -> AgentImport:
        """An agent that an earlier transaction made."""
        agent_id = row["id"]
        if row["status_reason"] in rows.NO_RESULTS:
            row["status"], row["status_reason"] = "working", None
        call_key, position = rows.last_turn(cursor, agent_id, row["turn"])
        observations, verbatim_from, elided, observed = rows.current_view(
            cursor, agent_id, row["view_version"]
        )
        over = key != MAIN and row["status"] in ("done", "failed", "cancelled")
        waiting = rows.last_compaction(cursor, agent_id)
        taken_back = [each[0] for each in elided if not each[4]]
        return cls(
            key,
            row,
            changed=False,
            call_key=call_key,
            position=position,
            last_at=row["last_active"],
            ended_at=row["ended_at"] if over else None,
            open_calls=rows.open_calls(cursor, agent_id),
            observations=observations,
            verbatim_from=verbatim_from or 1,
            elided=elided,
            observation_tokens=observed,
            last_observation=rows.last_observation(cursor, agent_id),
            compaction=waiting[0] if waiting and waiting[1] is None else None,
            summary=waiting[2] if waiting else None,
            dropped_tokens=rows.total_tokens(cursor, agent_id, (verbatim_from or 1) - 1),
            taken_back_tokens=rows.tokens_of(cursor, agent_id, taken_back) if taken_back else 0,
            told_seconds=row["active_seconds"]
            if str(row["status_reason"]).startswith(NO_LOG) and not row["last_seq"]
            else None,
        )

    @classmethod
    def new(cls, agent_id: str, session_id: str, key: str, at: float) -> AgentImport:
        row = dict.fromkeys(rows.AGENT, 0) | {
            "id": agent_id, "session_id": session_id, "parent_agent_id": None, "name": key or "main", "role": "main" if not key else "agent",
            "model": "", "current_goal": "", "status": "done", "status_reason": None, "view_version": 1,
            "context_limit": 0, "composition": "{}", "created_at": at, "started_at": at, "ended_at": None,
            "last_active": at, "active_seconds": 0.0, "model_calls": 0, "parked_until": None,
        }  # fmt: skip
        return cls(key, row)

    def touch(self, at: float) -> None:
        """Something happened at that time."""
        before, row = self.last_at, self.row
        self.changed = True
        self.last_at = at
        if self.is_untimed:
            row["created_at"] = row["last_active"] = at
            self.is_untimed = False
        if at > row["last_active"]:
            row["last_active"] = at
        if at < row["created_at"]:
            row["created_at"] = at
        row["started_at"] = row["created_at"]
        if before is not None and 0 < at - before <= LONGEST_PAUSE_SECONDS:
            row["active_seconds"] += at - before

    def is_over(self, at: float | None) -> bool:
        """Whether the end that its program reported still holds at that time."""
        return self.ended_at is not None and (at is None or at <= self.ended_at + FLUSHED_SECONDS)

    def has_call(self, cursor: Any, tool_use_id: str) -> bool:
        """Whether a call of that id is here already."""
        if self.calls_before is None:
            self.calls_before = rows.tool_use_ids(cursor, self.id)
        return tool_use_id in self.calls_before

    def add_reported_totals(self, reported: ReportedTotals) -> None:
        """Take the totals that the call which started the agent reported, until anything of its own log is
        here."""
        if self.row["last_seq"] or self.row["model_calls"]:
            return
        self.told_seconds = reported.seconds
        self.row["active_seconds"], self.row["context_tokens"] = reported.seconds, reported.context_tokens
        said = f"{reported.context_tokens:,} tokens of context, {reported.seconds:.1f} s and {reported.tool_calls:,} tool calls"
        self.row["status_reason"] = f"{NO_LOG}; its call reported {said}"

    def take_call(self, key: str) -> None:
        """A reply with this key belongs to the current turn, or begins the next one."""
        if not key or key != self.call_key:
            self.call_key = key or None
            self.row["turn"] += 1
            self.position = 0

    @property
    def view_tokens(self) -> int:
        """Tokens of the messages that are verbatim, estimated."""
        return max(0, int(self.row["message_tokens"]) - self.dropped_tokens - self.taken_back_tokens)

    @property
    def taken_back(self) -> set[int]:
        """The messages of this context that were undone."""
        return {each[0] for each in self.elided if not each[4]}

    def finished(self, *, live: bool) -> dict[str, Any]:
        """The row to be written; `live`: the log is followed, so that an agent without a result may be at
        work."""
        row = self.row
        if row["status"] == "working" and not live and self.key:
            row["status"], row["status_reason"] = "cancelled", rows.NO_RESULT
        row["composition"] = write({"observations": self.observation_tokens, "messages": self.view_tokens})[0]
        ended = max(row["last_active"], self.ended_at if self.ended_at not in (None, math.inf) else 0.0)
        row["ended_at"] = None if row["status"] in ("working", "idle", "parked") else ended
        if self.told_seconds is not None:
            if not row["last_seq"]:
                # Its call is often known from the result alone, so that its beginning would be its end.
                row["started_at"] = min(row["started_at"] or ended, ended - self.told_seconds)
                return row
            row["active_seconds"] -= self.told_seconds
            self.told_seconds = row["status_reason"] = None
        if not row["model_calls"]:
            row["context_tokens"] = self.observation_tokens + self.view_tokens
        return row


AHEAD_SECONDS = 86_400.0
"""How much later than now a record's time may be, as clocks and their zones go; what comes later tells no
time."""

Pricing = Callable[[ModelCall], Cost]
"""What a call cost; passed in, since prices are not this room's."""

Windows = Callable[[str], int | None]
"""Tokens of a model's window by its reference; None where that is not known."""

_ANCHORS = frozenset({ImportedCompaction, Summary, Rewind, Failure})
"""Records by which a line is recognised, besides messages: by the first of them."""
_BESIDE = frozenset({Rewind, Failure})
"""Those that have no id where a message beside them has one."""

Anchor = tuple[int, Any, int]
"""The record by which a line is recognised, behind its digest, and a number for the usage that the line tells
(0: none)."""

_NO_ANCHOR: Anchor = (0, None, 0)


@dataclass(slots=True)
class LoggedCall:
    """A model call that is stored, or is going to be."""

    id: int
    session_id: str
    agent_id: str
    usage: ModelCall
    turn: int = 0
    began: float = 0.0
    ended: float = 0.0
    is_stored: bool = False
    """An earlier transaction wrote it; `turn` and `began` are not read again."""


@dataclass(slots=True)
class Batch:
    """What the sessions of one transaction share."""

    cursor: Any
    pricing: Pricing
    windows: Windows
    now: float
    """The time of a record that has none, where none was before it."""
    user_id: str
    """Whose sessions they are."""
    live: bool = False
    """Logs are followed as they grow: a call without a result is running, rather than lost."""
    into: Rows = field(default_factory=Rows)
    ids: dict[str, int] = field(default_factory=dict)
    """Highest ids so far, by table."""
    calls: dict[str, LoggedCall] = field(default_factory=dict)
    """Model calls by key: new ones, and those that are stored and that a record may name again."""
    changed_calls: dict[int, LoggedCall] = field(default_factory=dict)
    """Those of them that are new or changed, by id."""
    owners: dict[str, str] = field(default_factory=dict)
    """Agents that were asked after, or are not written yet, and their sessions."""
    records: dict[int, rows.Place | None] = field(default_factory=dict)
    """Digests of records that were looked up: what they became, or None."""
    quota: list[QuotaReading] = field(default_factory=list)
    """What logs state of the usage windows of providers."""
    revised: int = 0
    """Records that are here already and say something else now."""
    revisions: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """The digests of the revisions of records that were found changed, by source and id."""
    indexed: list[tuple[str, str | bytearray]] = field(default_factory=list)
    """The session and the indexed text of each message that is not written yet, in the order of their rows."""
    stored_tool_calls: int = 0
    """The highest id of the tool calls that are written."""

    def look_up(
        self, program: str, session: str, groups: list[tuple[int, bytes, list[Record]]]
    ) -> list[Anchor]:
        """Ask at once what of these groups is here already: one question costs as much as one record's."""
        anchors: list[Anchor] = []
        keys: list[str] = []
        fresh: list[int] = []
        records, said = self.records, f"{program}/Message"
        for _, data, group in groups:
            digest, anchor, usage_number = 0, None, 0
            for record in group:
                kind = type(record)
                if kind is ImportedMessage:
                    if anchor is not None:
                        continue
                    digest = record_digest(record[4], said, record[1] or line_id(session, data))  # type: ignore
                elif kind is ModelCall:
                    keys.append(record[1])  # type: ignore
                    # All calls that the line reports together, so that a change of any is found.
                    usage_number = (usage_number + _number_of(record)) & 0x7FFF_FFFF or 1  # type: ignore[arg-type]
                    continue
                elif kind not in _ANCHORS or anchor is not None or (kind in _BESIDE and not record.uid):  # type: ignore[union-attr]
                    continue
                else:
                    uid = record.uid or line_id(session, data)  # type: ignore[union-attr]
                    digest = record_digest(record.at, f"{program}/{STORED_KINDS[kind]}", uid)  # type: ignore[union-attr]
                anchor = record
                if digest not in records:
                    records[digest] = None
                    fresh.append(digest)
            anchors.append(_NO_ANCHOR if anchor is None else (digest, anchor, usage_number))
        records.update(rows.find_records(self.cursor, fresh))
        wanted = [key for key in dict.fromkeys(keys) if key and key not in self.calls]
        for key, call_id, session_id, agent_id, model, *tokens, exact, stop_reason in rows.find_calls(
            self.cursor, wanted
        ):
            logged = ModelCall(agent_id, key, model, *tokens)._replace(
                exact=bool(exact), stop_reason=stop_reason
            )
            self.calls[key] = LoggedCall(call_id, session_id, agent_id, logged, is_stored=True)
        return anchors

    def record(self, digest: int) -> rows.Place | None:
        """What a record became, if it was imported."""
        if digest not in self.records:
            self.records[digest] = rows.find_records(self.cursor, [digest]).get(digest)
        return self.records[digest]

    def remember(self, digest: int, agent_id: str, seq: int, usage_number: int | None) -> None:
        """Note which message a record became, and what number its usage has."""
        self.records[digest] = (agent_id, seq, usage_number)
        self.into["records"].append((digest, agent_id, seq, usage_number))

    def revisions_of(self, source: str, record_id: str) -> list[str]:
        """The digests of a record's revisions behind the first; the code that stores another one adds it."""
        found = self.revisions.get((source, record_id))
        if found is None:
            found = self.revisions[source, record_id] = rows.revision_digests(self.cursor, source, record_id)
        return found

    def write(self) -> None:
        """Write what is gathered, so that SQL can be asked of it."""
        self.into.flush(self.cursor)
        self.stored_tool_calls = self.ids["tool_calls"]

    def text_of(self, agent_id: str, seq: int) -> str | None:
        """What a message says, as it is stored."""
        found = rows.message_content(self.cursor, agent_id, seq)
        if found is None and self.into["messages"]:
            self.write()
            found = rows.message_content(self.cursor, agent_id, seq)
        return found

    def owner(self, agent_id: str) -> str | None:
        """The session of an agent."""
        owner = self.owners.get(agent_id)
        if owner is None:
            owner = rows.session_of(self.cursor, agent_id)
            if owner is not None:
                self.owners[agent_id] = owner
        return owner


def _number_of(call: ModelCall) -> int:
    """A number for a call's tokens, never 0: other tokens have another one, as a rule."""
    fresh, output, read, written, hour = call[3:8]
    number = fresh + 1_000_003 * (output + 1_000_033 * (read + 1_000_037 * (written + 1_000_039 * hour)))
    return number & 0x7FFF_FFFF or 1


def line_id(session: str, data: bytes) -> str:
    """What a record without an id is recognised by: all that its line says, in its session."""
    return f"{session}\0{blake2b(data, digest_size=8).hexdigest()}"


# --- Model calls: what they used and cost ---------------------------------------------------------------


def take_call(
    batch: Batch, session_id: str, agent: AgentImport, record: ModelCall, *, counts: bool, revises: bool
) -> None:
    """One logging of a call.

    Args:
        counts: False where the message of the same line is stored, and its usage was counted then: a call
            whose key is not known was counted under another one.
        revises: the log was edited, and this is what the call used; what was logged before does not count.
    """
    key, row = record.key, agent.row
    call = batch.calls.get(key) if key else None
    if call is not None:
        if call.session_id == session_id:
            _log_again(batch, call, agent, record, replaces=revises or record.final)
        return
    if not counts:
        return
    if record.alias:
        copied = record_digest(record.at, "ModelCall/alias", record.alias)
        if batch.record(copied) is not None:
            return
        batch.remember(copied, agent.id, row["last_seq"], 0)
    number = batch.ids["model_calls"] = batch.ids["model_calls"] + 1
    at = record.at
    if at is None or at > batch.now + AHEAD_SECONDS:
        at = row["last_active"]
    call = LoggedCall(number, session_id, agent.id, record, row["turn"], at, at)
    batch.changed_calls[number] = call
    if key:
        batch.calls[key] = call
    agent.changed = True
    row["model_calls"] += 1
    if record.kind != "turn":
        return
    if agent.window_of is None and row["context_limit"] and row["model"]:
        agent.window_reported = row["context_limit"] != batch.windows(row["model"])
    is_other = agent.window_of != record.model or not row["context_limit"]
    row["model"] = agent.window_of = record.model
    if is_other and not agent.window_reported:
        row["context_limit"] = batch.windows(record.model) or 0
    _note_context(batch, agent, record, is_new=True)


def _note_context(batch: Batch, agent: AgentImport, call: ModelCall, *, is_new: bool = False) -> None:
    """What a call's usage says of its agent's context."""
    fresh, output, read, written = call[3:7]
    row = agent.row
    if row["status"] == "parked" and not is_new:
        return  # reported again at the end of a turn that a usage limit stopped
    if row["status"] == "parked":
        row["status"] = "done" if agent.key == MAIN and not batch.live else "working"
        row["status_reason"] = row["parked_until"] = None
    if (
        call.stop_reason == "end_turn"
        and not agent.is_over(call.at)
        and (batch.live or (agent.key != MAIN and row["status"] == "working"))
    ):
        row["status"] = "idle" if agent.key == MAIN else "done"
    prompt, output = call.context or (fresh + read + written, output)
    if not prompt:
        return
    context = row["context_tokens"] = prompt + output
    if context > row["context_limit"] and not agent.window_reported:
        row["context_limit"] = 0  # larger than the price data say, by how much is not known
    if agent.compaction is not None:
        batch.into["tokens_after"].append((prompt, agent.compaction))
        agent.compaction = None


def _log_again(
    batch: Batch, call: LoggedCall, agent: AgentImport, record: ModelCall, *, replaces: bool
) -> None:
    """The same call once more: it has the usage with the most output, or the newest where that replaces it."""
    old = call.usage
    call.ended = max(call.ended, record.at or 0.0)
    if replaces or record.output_tokens > old.output_tokens:
        better = record._replace(stop_reason=record.stop_reason or old.stop_reason)
    elif record.stop_reason is not None and (old.stop_reason is None or call.is_stored):
        better = record._replace(**{name: getattr(old, name) for name in rows.USAGE})
    else:
        return
    call.usage = better._replace(model=old.model, exact=old.exact or record.exact)
    batch.changed_calls[call.id] = call
    agent.changed = True
    if agent.id == call.agent_id and record.kind == "turn":
        _note_context(batch, agent, call.usage)


def write_calls(batch: Batch) -> None:
    """Price the calls that are new or changed, and have them written."""
    into, pricing = batch.into, batch.pricing
    add, add_key, digest = into["model_calls"].append, into["call_keys"].append, rows.call_digest
    for call in batch.changed_calls.values():
        record = call.usage
        cost = pricing(record)
        _, key, model, fresh, output, read, written, _, exact, stop_reason, _, latency, request_id, *_ = (
            record
        )
        if call.is_stored:
            into["call_usage"].append(
                (stop_reason, fresh, output, read, written, int(exact), cost.usd, str(cost.status), call.ended,
                 call.id)
            )  # fmt: skip
            continue
        add(
            (call.id, call.session_id, call.agent_id, call.turn, record.kind, model, stop_reason, fresh, output, read, written,
             int(exact), cost.usd, str(cost.status), call.began, latency or max(0.0, call.ended - call.began),
             key or request_id)
        )  # fmt: skip
        if key:
            add_key((digest(key), call.id))
    batch.changed_calls.clear()
