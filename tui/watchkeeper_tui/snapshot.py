"""What the screens show at one moment: frozen, made whole by the reader thread, never changed afterwards; and what follows
from it alone: who is pausing, the state of each agent in words, and their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from heapq import nlargest
from itertools import zip_longest
from typing import Any

from watchkeeper.records.quota import Quota
from watchkeeper.records.readers import UNIT_ROLES
from watchkeeper.records.text import clock_text, countdown
from watchkeeper.records.waiting import UNKNOWN, Waiting, agent_word, waiting_word
from watchkeeper.store.agent_snapshot import (
    CallFacts,
    FactFacts,
    InboxFacts,
    ReportFacts,
    ToolCallFacts,
    ViewFacts,
)
from watchkeeper.store.external import External
from watchkeeper.store.imports import imported_from
from watchkeeper.store.outcome import RunEnding, run_ending
from watchkeeper.store.projection import AgentFacts, CompactionFacts, SessionFacts, TaskFacts
from watchkeeper.store.snapshot import ApprovalFacts, BudgetFacts, CommandFacts, Rates
from watchkeeper_tui import formatting
from watchkeeper_tui.formatting import EventLine
from watchkeeper_tui.sanitize import clip, sanitize, sanitize_lines

MOST_LINES = 400
"""Lines of a block that are searched, copied from and compared; all of them are shown."""
MOST_COLUMNS = 4_000


class SessionState(StrEnum):
    """The displayed state of a session: its stored status, combined with whether a host runs."""

    LIVE = "LIVE"
    PAUSED = "PAUSED"
    DEAD = "STOPPED"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    REPLAY = "REPLAY"
    OPENING = "OPENING"
    """Nothing was read yet."""
    IDLE = "IDLE"
    """Another program's session that was active a short while ago, and in which no agent is at work."""
    ENDED = "ENDED"
    """Another program's session in which nothing runs; its log does not say how it ended."""
    UNKNOWN = "UNKNOWN"
    """The stored status is none that is known here."""


@dataclass(frozen=True)
class TranscriptBlock:
    """One block of a message."""

    key: str
    """Unique in the agent: `seq.index`."""
    seq: int
    kind: str
    """`user`, `assistant`, `thinking`, `tool_use`, `tool_result`, `tool_error`, `attachment`, `live`."""
    title: str
    """Sanitised."""
    text: str
    """As stored: hostile until rendered."""
    tokens: int
    at: float
    call_id: str = ""
    """The id of a tool call, for the call and its result."""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The input of a tool call: hostile."""

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The text as plain, sanitised lines, at most `MOST_LINES`."""
        lines = sanitize_lines(self.text[:100_000].strip("\n"), limit=MOST_LINES)
        return tuple(line if len(line) <= MOST_COLUMNS else clip(line, MOST_COLUMNS) for line in lines)

    @property
    def hidden(self) -> int:
        """How many lines `lines` leaves out."""
        return max(0, self.text.count("\n") + 1 - len(self.lines))


@dataclass(frozen=True, slots=True)
class AgentDetail:
    """All that the agent pane shows of the one agent looked at."""

    agent_id: str
    transcript: tuple[TranscriptBlock, ...] = ()
    first_seq: int = 1
    """Where the transcript read so far begins."""
    tool_calls: tuple[ToolCallFacts, ...] = ()
    calls: tuple[CallFacts, ...] = ()
    facts: tuple[FactFacts, ...] = ()
    view: ViewFacts | None = None
    views: tuple[ViewFacts, ...] = ()
    system: str = ""
    """The system prompt, as stored: hostile until sanitised."""
    inbox: tuple[InboxFacts, ...] = ()
    report: ReportFacts | None = None
    """None in a replay."""


@dataclass(frozen=True)
class Snapshot:
    """One consistent reading of the database."""

    version: int = 0
    """Counts up with every snapshot of a reader."""
    read_at: float = 0.0
    """Wall time of the reading; of one with a `problem`, when that began."""
    session: SessionFacts | None = None
    state: SessionState = SessionState.OPENING
    host_pid: int | None = None
    tasks: tuple[TaskFacts, ...] = ()
    agents: tuple[AgentFacts, ...] = ()
    events: tuple[EventLine, ...] = ()
    compactions: tuple[CompactionFacts, ...] = ()
    approvals: tuple[ApprovalFacts, ...] = ()
    commands: tuple[CommandFacts, ...] = ()
    budgets: tuple[BudgetFacts, ...] = ()
    rates: Rates = field(default_factory=Rates)
    detail: AgentDetail | None = None
    external: External = field(default_factory=External)
    """What sessions in other terminals do."""
    quotas: tuple[Quota, ...] = ()
    """What is left of providers' usage windows. Hostile names."""
    flagged: Mapping[str, str] = field(default_factory=dict)
    """Agents that are done, whose receipt a person should look at: by id, its summary. Hostile."""
    problem: str | None = None
    """Why nothing newer could be read, in one line; the rest is the last good reading."""

    @cached_property
    def agents_by_id(self) -> dict[str, AgentFacts]:
        """Every agent by its id."""
        return {agent.id: agent for agent in self.agents}

    @cached_property
    def tasks_by_id(self) -> dict[str, TaskFacts]:
        """Every task by its id."""
        return {task.id: task for task in self.tasks}

    @cached_property
    def ending(self) -> RunEnding | None:
        """How the run ended; None while it runs, and for another program's session."""
        session = self.session
        if session is None:
            return None
        planner = self.agent(session.planner_agent_id)
        status = planner.status if planner is not None else None
        return run_ending(session.status, session.status_reason, status, session.origin)

    @cached_property
    def pausing(self) -> frozenset[str]:
        """The working agents that received a pause."""
        return (
            pausing_agents(self.agents, self.commands, self.events)
            if self.host_pid is not None
            else frozenset()
        )

    @cached_property
    def pauses_all(self) -> bool:
        """Whether the whole run received a pause that has not taken effect yet."""
        return self.host_pid is not None and pauses_all(self.commands, self.events)

    def agent(self, agent_id: str | None) -> AgentFacts | None:
        """The agent of that id, or None."""
        return self.agents_by_id.get(agent_id) if agent_id else None

    def task(self, task_id: str | None) -> TaskFacts | None:
        """The task of that id, or None."""
        return self.tasks_by_id.get(task_id) if task_id else None

    def shows_the_same(self, other: Snapshot) -> bool:
        """Nothing that is shown differs, whenever each was read. Sound for snapshots of one reader, which
        share what did not change."""
        return all(
            getattr(self, each.name) is getattr(other, each.name)
            or getattr(self, each.name) == getattr(other, each.name)
            for each in fields(self)
            if each.name not in ("version", "read_at")
        )

    def with_problem(self, problem: str, now: float) -> Snapshot:
        """The same reading, marked as one that could not be renewed."""
        return replace(
            self, problem=problem, version=self.version + 1, read_at=self.read_at if self.problem else now
        )


def session_state(status: str, hosted: bool, *, working: bool, origin: str = "run") -> SessionState:
    """What a session's stored status means, given whether a process drives it now.

    A host that was started for one command only (for example a re-run) does not change the status while
    agents are `working`. Another program's session is live while an agent in it is at work. If it is not followed, or
    its newest record is old, it has ended: no host of it stopped, and nothing says that it reached its goal.
    """
    if hosted and working:
        return SessionState.LIVE
    imported = imported_from(origin) is not None
    if status == "running":
        if imported:
            return SessionState.IDLE if hosted else SessionState.ENDED
        return SessionState.LIVE if hosted else SessionState.DEAD
    return {
        "paused": SessionState.PAUSED,
        "done": SessionState.ENDED if imported else SessionState.DONE,
        "failed": SessionState.FAILED,
        "cancelled": SessionState.CANCELLED,
    }.get(status, SessionState.UNKNOWN)


def state_word(state: SessionState, status: str) -> str:
    """The displayed state in lower case; an unknown stored status is its own word."""
    return sanitize(status) if state is SessionState.UNKNOWN else state.value.lower()


_AT_WORK = ("working", "waiting")


def pausing_agents(
    agents: Iterable[AgentFacts], commands: Sequence[CommandFacts], events: Sequence[EventLine]
) -> frozenset[str]:
    """The working agents for which a pause is queued or in progress, while a host runs. `commands`: newest
    first.

    A pause counts until a later record (another command, the agent's own pause, a new host) ends it.
    """
    whole, own = _last_words(commands)
    pauses = {agent_id: each for agent_id, each in own.items() if each.kind == "pause"}
    if not (pauses or _is_pause(whole)):
        return frozenset()
    ended = _Ended(events, [*pauses.values(), *([whole] if whole is not None else [])])
    found = {agent_id for agent_id, each in pauses.items() if not ended.has_come(each, agent_id)}
    whole_pauses = whole is not None and _is_pause(whole) and not ended.has_come(whole, None)
    return frozenset(
        agent.id
        for agent in agents
        if agent.status in _AT_WORK and (agent.id in found or (whole_pauses and agent.id not in own))
    )


def pauses_all(commands: Sequence[CommandFacts], events: Sequence[EventLine]) -> bool:
    """Whether the whole run received a pause that has not taken effect yet, while a host runs."""
    whole, _ = _last_words(commands)
    return whole is not None and _is_pause(whole) and not _Ended(events, [whole]).has_come(whole, None)


def _is_pause(command: CommandFacts | None) -> bool:
    return command is not None and command.kind == "pause"


def _last_words(commands: Sequence[CommandFacts]) -> tuple[CommandFacts | None, dict[str, CommandFacts]]:
    """The last command to stop or to go on that the whole run got, and those that single agents got since."""
    own: dict[str, CommandFacts] = {}
    for each in commands:
        if each.kind in ("pause", "resume") and each.status not in ("refused", "failed"):
            if each.agent_id is None:
                return each, own
            own.setdefault(each.agent_id, each)
    return None, own


class _Ended:
    """What the events say has ended a wish to pause: one look through those that came since the oldest of the
    wishes."""

    def __init__(self, events: Sequence[EventLine], wishes: list[CommandFacts]) -> None:
        self._host_started = float("-inf")
        self._paused: dict[str | None, float] = {}
        # Before what is kept nothing is known: a wish as old as that counts as come.
        self._known_from = events[0].at if events and events[0].seq > 1 else float("-inf")
        oldest = min(
            (each.applied_at for each in wishes if each.applied_at is not None), default=float("inf")
        )
        for event in reversed(events):
            if event.at < oldest:
                break
            if event.facts.kind == "host.started":
                self._host_started = max(self._host_started, event.at)
            elif event.facts.kind == "agent.paused":
                self._paused.setdefault(event.agent_id, event.at)

    def has_come(self, command: CommandFacts, agent_id: str | None) -> bool:
        """Whether the pause has taken effect, or its host is gone."""
        if command.status == "queued" or command.applied_at is None:
            return False
        since = max(
            self._host_started,
            self._paused.get(agent_id, float("-inf")) if agent_id is not None else float("-inf"),
        )
        return since >= command.applied_at or command.applied_at < self._known_from


COMMAND = UNIT_ROLES[2]
SILENT_SECONDS = 60.0
TOOL_SILENT_SECONDS = 300.0
"""A tool may work for longer before a person should look."""
"""A working agent without activity for so long is shown as silent."""
HOST_GONE = frozenset({SessionState.DEAD})
_NO_AGENTS_TEXT = {
    SessionState.OPENING: "Starting the background process…",
    SessionState.LIVE: "Starting the planner…",
    SessionState.PAUSED: "paused before any agent started; r resumes the run",
    SessionState.DEAD: "the background process stopped; r resumes the run",
    SessionState.REPLAY: "no agents started yet",
    SessionState.IDLE: "no agents in the log",
    SessionState.ENDED: "no agents in the log",
    SessionState.UNKNOWN: "no agents started",
}


def no_agents_text(snapshot: Snapshot) -> str:
    """The text for a run without any agent or task."""
    if snapshot.session is None:
        return "" if snapshot.problem else "opening …"
    return _NO_AGENTS_TEXT.get(snapshot.state, "the run ended before any agent started")


@dataclass(frozen=True, slots=True)
class Condition:
    """The state shown beside a name."""

    glyph: str
    word: str
    role: str
    note: str = ""
    """Why, or until when; sanitised; empty where there is nothing to add."""

    @property
    def needs_attention(self) -> bool:
        """Whether a person should look at it."""
        return self.role in ("waiting", "failed", "dead", "silent", "retrying")


def agent_condition(
    agent: AgentFacts, state: SessionState, now: float, *, pausing: bool = False
) -> Condition:
    """The state of an agent at `now`. `pausing`: it received a pause, which takes effect at its next step."""
    reason = sanitize(agent.status_reason or "")
    ended = _ENDED.get(agent.status)
    if ended is not None:
        glyph, word, role = ended
        if agent_word(agent.status, agent.status_reason) == UNKNOWN:
            return Condition("-", UNKNOWN, "muted", reason)
        word = waiting_word(agent.status, agent.status_reason) or word
        return Condition(glyph, word, role, reason if agent.status != "done" else "")
    if agent.status == "paused":
        return Condition("‖", _waiting(agent), "paused", reason)
    if state in HOST_GONE:
        return Condition("†", "stopped", "dead", "process gone")
    if agent.status == "parked":
        return _parked(agent, state, now, reason)
    if agent.status == "waiting":
        return Condition(
            "?", _waiting(agent), "waiting", reason or (sanitize(agent.live.detail) if agent.live else "")
        )
    if agent.status == "idle":
        return Condition("○", "idle", "muted", reason)
    if agent.status != "working":
        return Condition("?", sanitize(agent.status), "muted", reason)
    if state is SessionState.PAUSED:
        return Condition("‖", Waiting.PAUSED, "paused", reason)
    if pausing:
        return Condition("●", "pausing", "paused", "pausing after the current step")
    if state is SessionState.REPLAY:
        return _at_work(None)  # signs between events are not kept, so nothing is known of a silence
    return _working(agent, now)


def _waiting(agent: AgentFacts) -> str:
    return waiting_word(agent.status, agent.status_reason) or agent.status


def _parked(agent: AgentFacts, state: SessionState, now: float, reason: str) -> Condition:
    """It waits for the end of a usage limit: until when, how long that is, and why."""
    until = agent.parked_until
    if until is None:
        return Condition("◷", Waiting.LIMIT, "slot", reason)
    ends = f"until {clock_text(until, now)}"
    if state is not SessionState.REPLAY:
        passed = "now, after one test call" if state is SessionState.LIVE else "ended"
        ends += f", in {countdown(until - now)}" if until > now else f", {passed}"
    return Condition("◷", Waiting.LIMIT, "slot", f"{ends} — {reason}" if reason else ends)


_ENDED = {
    "done": ("✓", "done", "done"),
    "failed": ("✗", "failed", "failed"),
    "cancelled": ("×", "cancelled", "cancelled"),
}


def last_sign(agent: AgentFacts) -> float:
    """When the agent was last active."""
    return max(agent.last_active, agent.live.updated_at if agent.live else 0.0)


def lasted(agent: AgentFacts, state: SessionState, now: float) -> float:
    """Seconds from the agent's creation until its end, or until now; if no host drives it, until its last
    activity."""
    goes_on = state in (SessionState.LIVE, SessionState.REPLAY, SessionState.OPENING)
    return max(0.0, (agent.ended_at or (now if goes_on else last_sign(agent))) - agent.created_at)


def silent_at(agent: AgentFacts) -> float:
    """When a working agent counts as silent, unless it is active before."""
    in_tool = agent.live is not None and agent.live.activity == "tool"
    return last_sign(agent) + (TOOL_SILENT_SECONDS if in_tool else SILENT_SECONDS)


def _working(agent: AgentFacts, now: float) -> Condition:
    live = agent.live
    if agent.role == COMMAND:
        return Condition("●", "running", "working")  # no log tells what it writes
    silence = now - last_sign(agent) if now >= silent_at(agent) else None
    if live is None:
        return _at_work(silence)
    detail = sanitize(live.detail)
    for_long = formatting.duration(now - live.since)
    waits = waiting_word(agent.status, None, live.activity)
    if waits is Waiting.QUESTION:
        return Condition("?", waits, "waiting", detail)
    if waits is Waiting.SLOT:
        return Condition("◔", waits, "slot", detail or for_long)
    if live.activity in ("retrying", "rate_limited"):
        word = "rate-limited" if live.activity == "rate_limited" else "retrying"
        left = (
            f"again in {formatting.duration(live.until - now)}" if live.until and live.until > now else "now"
        )
        return Condition("↻", word, "retrying", f"{detail}, {left}" if detail else f"{word}, {left}")
    if live.activity == "idle":
        return Condition("○", "idle", "muted", detail)
    if live.activity == "tool" and silence is not None:
        return Condition("!", "silent", "silent", f"{detail or 'a tool'} for {for_long}")
    if live.activity == "tool":
        return Condition("●", "running", "working", f"{detail} {for_long}" if detail else "")
    if live.activity not in ("working", "tool", "compacting", "parked", "paused"):
        return Condition("?", sanitize(live.activity), "muted", detail)
    return _at_work(silence)


def _at_work(silence: float | None) -> Condition:
    if silence is None:
        return Condition("●", "working", "working")
    return Condition("!", "silent", "silent", f"silent {formatting.age(silence)}")


_TASKS = {
    "pending": ("·", "pending", "pending"),
    "running": ("●", "running", "working"),
    "paused": ("‖", "paused", "paused"),
    "stale": ("~", "stale", "retrying"),
    "done": ("✓", "done", "done"),
    "failed": ("✗", "failed", "failed"),
    "cancelled": ("×", "cancelled", "cancelled"),
    "dropped": ("-", "dropped", "cancelled"),
}


def task_look(status: str, state: SessionState) -> tuple[str, str, str]:
    """The glyph, the word and the role of a task's status in a session of this state; an unknown one is its own word."""
    if status == "running" and state in HOST_GONE:
        return "†", "stopped", "dead"
    return _TASKS.get(status, ("?", sanitize(status), "muted"))


def task_condition(task: TaskFacts, state: SessionState, unmet: tuple[str, ...] | None = None) -> Condition:
    """The state of a task in a session of this state. `unmet`: the names of the tasks that it waits for, in a run that
    goes on: without any, it waits for a free slot."""
    glyph, word, role = task_look(task.status, state)
    if task.status == "pending" and unmet:
        return Condition(glyph, word, role, "after " + ", ".join(sanitize(name) for name in unmet))
    if task.status == "pending" and unmet is not None:
        return Condition("◔", Waiting.SLOT, "slot", "waiting for a free slot")
    word = waiting_word(task.status, task.error or task.status_reason) or word
    note = (
        sanitize(task.error or task.status_reason or "")
        if task.status in ("failed", "paused", "cancelled", "stale")
        else ""
    )
    return Condition(glyph, word, role, note)


def report_condition(snapshot: Snapshot, agent: AgentFacts | None) -> Condition | None:
    """The state of an agent that is done, whose receipt a person should look at; None for any other."""
    summary = snapshot.flagged.get(agent.id) if agent is not None else None
    if summary is None:
        return None
    return Condition("✓", "check", "waiting", "check: " + " ".join(sanitize(summary).split()))


SESSION_BADGES = {
    SessionState.LIVE: ("●", "badge_live"),
    SessionState.PAUSED: ("‖", "badge_paused"),
    SessionState.DEAD: ("†", "badge_dead"),
    SessionState.DONE: ("✓", "badge_done"),
    SessionState.FAILED: ("✗", "badge_failed"),
    SessionState.CANCELLED: ("×", "badge_plain"),
    SessionState.REPLAY: ("»", "badge_plain"),
    SessionState.OPENING: ("…", "badge_plain"),
    SessionState.IDLE: ("○", "badge_plain"),
    SessionState.ENDED: ("□", "badge_plain"),
    SessionState.UNKNOWN: ("?", "badge_plain"),
}


NEAREST = 5


class Roster:
    """The agents of one session after the other."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """Sanitised, by id: the same object as long as no name changed."""
        self.roles: dict[str, str] = {}
        """The palette role of each glyph counted."""
        self._agents: tuple[AgentFacts, ...] = ()
        self._state = SessionState.OPENING
        self._glyphs: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._shares: dict[str, float] = {}
        self._turns: dict[str, float] = {}
        """When each agent that works will count as silent."""
        self._next_turn = float("inf")

    def update(self, snapshot: Snapshot, now: float) -> None:
        """Take in a reading, at `now`."""
        agents = snapshot.agents
        others = any(
            was.id != now_is.id
            for was, now_is in zip(self._agents, agents, strict=False)
            if was is not now_is
        )
        if snapshot.state is not self._state or len(agents) < len(self._agents) or others:
            self._start(snapshot.state)
        if agents is not self._agents:
            names: dict[str, str] = {}
            for before, agent in zip_longest(self._agents, agents):
                if before is not agent:
                    self._look(agent, now)
                    name = sanitize(agent.full_label)
                    if self.names.get(agent.id) != name:
                        names[agent.id] = name
            if names:
                self.names = {**self.names, **names}
            self._agents = agents
            self._next_turn = min(self._turns.values(), default=float("inf"))
        if now >= self._next_turn:
            for agent_id in [each for each, turn in self._turns.items() if turn <= now]:
                self._look(snapshot.agents_by_id[agent_id], now)
            self._next_turn = min(self._turns.values(), default=float("inf"))

    def copy(self) -> Roster:
        """An independent copy of this roster."""
        other = Roster()
        other.names, other.roles = self.names, dict(self.roles)
        other._agents, other._state, other._next_turn = self._agents, self._state, self._next_turn
        other._glyphs, other._counts = dict(self._glyphs), Counter(self._counts)
        other._shares, other._turns = dict(self._shares), dict(self._turns)
        return other

    def counts(self) -> dict[str, int]:
        """How many agents there are of each glyph."""
        return self._counts

    def with_glyph(self, glyph: str) -> list[str]:
        """The ids of the agents in that state."""
        return (
            [agent_id for agent_id, found in self._glyphs.items() if found == glyph]
            if self._counts[glyph]
            else []
        )

    def nearest(self, share: float, snapshot: Snapshot) -> list[AgentFacts]:
        """The agents that have not ended whose context is fullest, from `share` of it on: the fullest
        first."""
        near = [(filled, agent_id) for agent_id, filled in self._shares.items() if filled >= share]
        by_id = snapshot.agents_by_id
        return [by_id[agent_id] for _, agent_id in nlargest(NEAREST, near)]

    def _start(self, state: SessionState) -> None:
        self._agents, self._state = (), state
        self.names = {}
        self._glyphs.clear()
        self._counts.clear()
        self._shares.clear()
        self._turns.clear()
        self._next_turn = float("inf")

    def _look(self, agent: AgentFacts, now: float) -> None:
        if agent.is_unit:
            return  # the agents below it count
        condition = agent_condition(agent, self._state, now)
        before = self._glyphs.get(agent.id)
        if before != condition.glyph:
            if before is not None:
                self._counts[before] -= 1
            self._counts[condition.glyph] += 1
            self._glyphs[agent.id] = condition.glyph
            self.roles[condition.glyph] = condition.role
        self._shares[agent.id] = (
            0.0 if agent.ended_at is not None else formatting.share(agent.context_used, agent.context_limit)
        )
        turn = silent_at(agent)
        if condition.glyph == "●" and turn > now:
            self._turns[agent.id] = turn
        else:
            self._turns.pop(agent.id, None)


def budget_share(snapshot: Snapshot, budget: BudgetFacts) -> float:
    """The spent fraction of a budget; 0 if it is unknown."""
    session = snapshot.session
    if session is None or budget.amount <= 0:
        return 0.0
    if budget.task_id is None:
        turns, seconds = sum(agent.turn for agent in snapshot.agents), session.hosted_seconds
        spent = {"usd": session.cost_usd, "tokens": session.total_tokens, "turns": turns, "seconds": seconds}
    else:
        mine = [agent for agent in snapshot.agents if agent.task_id == budget.task_id]
        spent = {
            "usd": sum(agent.cost_usd or 0.0 for agent in mine),
            "tokens": sum(agent.total_tokens for agent in mine),
            "turns": sum(agent.turn for agent in mine),
            "seconds": sum(agent.active_seconds for agent in mine),
        }
    return (spent.get(budget.kind) or 0.0) / budget.amount


def budget_words(share: float) -> str:
    """What is the matter with a budget that let no further call begin: it is used up, or too little of it is left."""
    return "used up" if share >= 1 else "too small for the next call"
