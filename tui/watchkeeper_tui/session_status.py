"""The state of an agent, a task and a session as a glyph, a word and a role: never by colour alone.

Pure functions of a snapshot and the time, so that displayed ages stay correct between snapshots.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchkeeper.records.text import clock_text, countdown
from watchkeeper.store.snapshot import AgentFacts, TaskFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.snapshot import SessionState, Snapshot

SILENT_SECONDS = 60.0
"""A working agent without activity for so long is shown as silent."""

HOST_GONE = frozenset({SessionState.DEAD})


_NOBODY_YET = {
    SessionState.OPENING: "Starting the background process…",
    SessionState.LIVE: "Starting the planner…",
    SessionState.PAUSED: "paused before any agent started; r resumes the run",
    SessionState.DEAD: "the background process stopped; r starts another",
    SessionState.REPLAY: "no agent had started yet",
}


def nobody_yet(snapshot: Snapshot) -> str:
    """The text for a run without any agent or task."""
    if snapshot.session is None:
        return "" if snapshot.problem else "opening …"
    return _NOBODY_YET.get(snapshot.state, "the run ended before any agent started")


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
        return Condition(*ended, reason if agent.status != "done" else "")
    if agent.status == "paused":
        return Condition("‖", "paused", "paused", reason)
    if state in HOST_GONE:
        return Condition("†", "stopped", "dead", "process gone")
    if agent.status == "parked":
        return _parked(agent, state, now, reason)
    if agent.status == "waiting":
        return Condition(
            "?", "needs you", "waiting", reason or (sanitize(agent.live.detail) if agent.live else "")
        )
    if agent.status == "idle":
        return Condition("○", "idle", "muted", reason)
    if state is SessionState.PAUSED:
        return Condition("‖", "paused", "paused", reason)
    if pausing:
        return Condition("●", "pausing", "paused", "pausing after the current step")
    if state is SessionState.REPLAY:
        return _at_work(None)  # signs between events are not kept, so nothing is known of a silence
    return _working(agent, now)


def _parked(agent: AgentFacts, state: SessionState, now: float, reason: str) -> Condition:
    """It waits for the end of a usage limit: until when, how long that is, and why."""
    until = agent.parked_until
    if until is None:
        return Condition("◷", "parked", "slot", reason)
    word = f"parked until {clock_text(until, now)}"
    if state is SessionState.REPLAY:
        return Condition("◷", word, "slot", reason)
    left = f"in {countdown(until - now)}" if until > now else "now, one call first"
    return Condition("◷", word, "slot", f"{left} — {reason}" if reason else left)


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
    return last_sign(agent) + SILENT_SECONDS


def _working(agent: AgentFacts, now: float) -> Condition:
    live = agent.live
    silence = now - last_sign(agent) if now >= silent_at(agent) else None
    if live is None:
        return _at_work(silence)
    detail = sanitize(live.detail)
    for_long = formatting.duration(now - live.since)
    if live.activity == "waiting":
        return Condition("?", "needs you", "waiting", detail)
    if live.activity == "slot":
        return Condition("◔", "waiting for a slot", "slot", detail or f"slot, {for_long}")
    if live.activity in ("retrying", "rate_limited"):
        word = "rate-limited" if live.activity == "rate_limited" else "retrying"
        left = (
            f"again in {formatting.duration(live.until - now)}" if live.until and live.until > now else "now"
        )
        return Condition("↻", word, "retrying", f"{detail}, {left}" if detail else f"{word}, {left}")
    if live.activity == "idle":
        return Condition("○", "idle", "muted", detail)
    if live.activity == "tool":
        return Condition("●", "running a tool", "working", f"{detail} {for_long}" if detail else "")
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


def task_condition(task: TaskFacts, unmet: tuple[str, ...] = ()) -> Condition:
    """The state of a task; `unmet` are the names of the tasks that it waits for."""
    glyph, word, role = _TASKS.get(task.status, ("·", sanitize(task.status), "muted"))
    if task.status == "pending" and unmet:
        return Condition(glyph, word, role, "after " + ", ".join(sanitize(name) for name in unmet))
    note = (
        sanitize(task.error or task.status_reason or "")
        if task.status in ("failed", "paused", "cancelled", "stale")
        else ""
    )
    return Condition(glyph, word, role, note)


SESSION_BADGES = {
    SessionState.LIVE: ("●", "badge_live"),
    SessionState.PAUSED: ("‖", "badge_paused"),
    SessionState.DEAD: ("†", "badge_dead"),
    SessionState.DONE: ("✓", "badge_done"),
    SessionState.FAILED: ("✗", "badge_failed"),
    SessionState.CANCELLED: ("×", "badge_plain"),
    SessionState.REPLAY: ("»", "badge_plain"),
    SessionState.OPENING: ("…", "badge_plain"),
}
