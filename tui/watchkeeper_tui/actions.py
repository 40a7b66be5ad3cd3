"""What a person can do, as data: key, words, why not here, what it would do, and the commands that it writes.

Lower-case keys are safe and act at once. Capitals cost money or data: they say first what they would do, and take `y` or
`n`. An action never touches an agent: it writes commands, and the host applies or refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.store.dashboard import AgentFacts, ApprovalFacts, TaskFacts
from watchkeeper_tui import figures
from watchkeeper_tui.pages.memory import context_used
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.snapshot import SessionState, Snapshot

_ENDED = ("done", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Target:
    """Who an action is about: the selected row, or the marked ones."""

    snapshot: Snapshot
    agents: tuple[AgentFacts, ...] = ()
    tasks: tuple[TaskFacts, ...] = ()
    """The tasks of the rows, also those that no agent has yet."""

    @property
    def agent(self) -> AgentFacts | None:
        return self.agents[0] if self.agents else None

    @property
    def hosted(self) -> bool:
        """A process drives the session now."""
        return self.snapshot.host_pid is not None

    @property
    def names(self) -> str:
        """The agents' names, or the tasks' titles, for a sentence."""
        if len(self.agents) > 3:
            return figures.plural(len(self.agents), "agent")
        if self.agents:
            return ", ".join(sanitize(agent.name or agent.role) for agent in self.agents)
        return ", ".join(f"“{clip(sanitize(task.title), 40)}”" for task in self.tasks) or "nothing"

    @property
    def approvals(self) -> tuple[ApprovalFacts, ...]:
        """The questions of these agents; else those of the session."""
        mine = {agent.id for agent in self.agents}
        questions = self.snapshot.approvals
        return tuple(each for each in questions if each.agent_id in mine) or questions


@dataclass(frozen=True, slots=True)
class Request:
    """One command to write."""

    kind: str
    agent_id: str | None = None
    task_id: str | None = None
    payload: dict[str, Any] = field(default_factory=dict)
    about: str = ""
    """For the status line: `pause coder-17`."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do."""

    id: str
    key: str
    label: str
    help: str
    requests: Callable[[Target, str], list[Request]]
    """The commands for a target and the text that was typed."""
    why_not: Callable[[Target], str] = lambda target: ""
    """Why it does nothing here, in a few words; empty where it works."""
    preview: Callable[[Target, str], list[str]] | None = None
    """Lines that say what it would do; where there is one, `y` must follow."""
    asks: str = ""
    """What text it asks for first; empty: none."""
    text_optional: bool = False
    starts_host: bool = False
    """Lifts a pause: where no host lives, one is started and no command is needed."""
    once: bool = False
    """Where no host lives, one is started for this command alone."""


def _why_not_steer(target: Target) -> str:
    if not target.agents:
        return "select an agent first"
    if all(agent.status in _ENDED for agent in target.agents):
        return f"{target.names} is {target.agents[0].status}; resume or re-run it, or message the planner"
    return ""


def _why_not_pause(target: Target) -> str:
    if not target.agents:
        return "select an agent first"
    if not target.hosted:
        return "no host runs, so nothing is going on"
    if all(agent.status in (*_ENDED, "paused") for agent in target.agents):
        return f"{target.names} is {target.agents[0].status} already"
    return ""


def _why_not_resume(target: Target) -> str:
    state = target.snapshot.state
    if not target.hosted:
        return (
            ""
            if state in (SessionState.PAUSED, SessionState.DEAD, SessionState.FAILED, SessionState.CANCELLED)
            else "the run is over"
        )
    if state is SessionState.PAUSED:
        return ""
    if any(agent.status in ("paused", "failed", "cancelled") for agent in target.agents):
        return ""
    return "nothing selected is paused or failed"


def _resume(target: Target, text: str) -> list[Request]:
    if not target.hosted or target.snapshot.state is SessionState.PAUSED:
        return [Request("resume", about="resume the run")]
    return [
        Request("resume", agent.id, about=f"resume {sanitize(agent.name)}")
        for agent in target.agents
        if agent.status in ("paused", "failed", "cancelled")
    ]


def _each_agent(kind: str, payload: Callable[[str], dict[str, Any]] = lambda text: {}) -> Callable[[Target, str], list[Request]]:
    def requests(target: Target, text: str) -> list[Request]:
        return [Request(kind, agent.id, None, payload(text), f"{kind} {sanitize(agent.name)}") for agent in target.agents]

    return requests


def _whole_run(kind: str) -> Callable[[Target, str], list[Request]]:
    return lambda target, text: [Request(kind, about=f"{kind} the run")]


def _why_not_cancel(target: Target) -> str:
    if not target.tasks:
        return "select a task first"
    if all(task.status in ("done", "failed", "cancelled", "dropped") for task in target.tasks):
        return "it has ended"
    return ""


def _cancel(target: Target, text: str) -> list[Request]:
    return [
        Request("cancel", None, task.id, about=f"cancel “{clip(sanitize(task.title), 30)}”")
        for task in target.tasks
        if task.status not in ("done", "failed", "cancelled", "dropped")
    ]


def _preview_cancel(target: Target, text: str) -> list[str]:
    lines = [
        f"Cancel {figures.plural(len(_cancel(target, '')), 'task')}: "
        + ", ".join(clip(sanitize(t.title), 40) for t in target.tasks)
    ]
    lines.append("Its agent stops at once; what it did is kept, and the planner is told. r resumes it later.")
    return lines


def _rerun(fresh: bool) -> Callable[[Target, str], list[Request]]:
    def requests(target: Target, text: str) -> list[Request]:
        return [
            Request("rerun", None, task.id, {"fresh": fresh}, f"re-run “{clip(sanitize(task.title), 30)}”")
            for task in target.tasks
        ]

    return requests


def _preview_rerun(fresh: bool) -> Callable[[Target, str], list[str]]:
    def preview(target: Target, text: str) -> list[str]:
        lines = []
        for task in target.tasks[:4]:
            agent = target.snapshot.agent(task.assigned_agent)
            spent = (
                f"; attempt {task.attempt} took {figures.tokens(agent.total_tokens)} tok, {figures.cost(agent.cost_usd, agent.unpriced_calls)}"
                if agent
                else ""
            )
            lines.append(f"Re-run “{clip(sanitize(task.title), 50)}” as attempt {task.attempt + 1}{spent}")
        names = {task.id: task for task in target.snapshot.tasks}
        ids = {task.id for task in target.tasks}
        later = [each for each in names.values() if ids & set(each.depends_on) and each.status not in ("pending", "dropped")]
        memory = "The new agent starts with an empty memory." if fresh else "The new agent keeps what the old one remembers."
        lines.append(memory + (f" {figures.plural(len(later), 'dependent task')} may run again too." if later else ""))
        if any(task.status in ("running", "paused") for task in target.tasks):
            lines.append("The attempt that is under way is cancelled first.")
        return lines

    return preview


def _why_not_compact(target: Target) -> str:
    if not target.agents:
        return "select an agent first"
    if all(context_used(agent) == 0 for agent in target.agents):
        return "its context is empty"
    return ""


def _preview_compact(target: Target, text: str) -> list[str]:
    lines = []
    for agent in target.agents[:4]:
        used = context_used(agent)
        parts = dict(agent.composition)
        messages = parts.get("messages", used)
        lines.append(
            f"Compact {sanitize(agent.name)}: {figures.tokens(used)} of {figures.tokens(agent.context_limit)} tok in context,"
            f" {figures.tokens(messages)} of it messages, most of which become a digest with citations"
        )
    lines.append("Nothing is lost: messages stay in the store, and u goes back to the view before.")
    if text.strip():
        lines.append(f"Instructions: {clip(sanitize(text), 160)}")
    return lines


def _why_not_undo(target: Target) -> str:
    if not target.agents:
        return "select an agent first"
    return "" if any(agent.compactions for agent in target.agents) else "nothing was compacted"


def _why_not_answer(target: Target) -> str:
    return "" if target.snapshot.approvals else "nobody asks anything"


def _decide(kind: str) -> Callable[[Target, str], list[Request]]:
    def requests(target: Target, text: str) -> list[Request]:
        questions = target.approvals[:1]
        payload = {"reason": text.strip()} if text.strip() else {}
        return [
            Request(kind, each.agent_id, each.task_id, {"approval": each.id, **payload}, f"{kind} {sanitize(each.tool)}")
            for each in questions
        ]

    return requests


def question_lines(target: Target) -> list[str]:
    """The question that waits, as lines."""
    if not target.approvals:
        return []
    each = target.approvals[0]
    agent = target.snapshot.agent(each.agent_id)
    lines = [f"{sanitize(agent.name) if agent else 'An agent'} asks: may it run {sanitize(each.tool)}?"]
    for line in each.question.splitlines()[:8]:
        lines.append("  " + clip(sanitize(line), 300))
    if len(target.approvals) > 1:
        lines.append(f"  ({len(target.approvals) - 1} more after this one)")
    return lines


def _set_budget(target: Target, text: str) -> list[Request]:
    kind, _, amount = text.strip().partition(" ")
    value: float | None = None if amount.strip() in ("none", "off", "") else float(amount.strip().lstrip("$").replace(",", ""))
    return [Request("set_budget", None, None, {"kind": kind, "amount": value}, f"budget {kind} {amount or 'none'}")]


def _preview_budget(target: Target, text: str) -> list[str]:
    now = (
        ", ".join(f"{sanitize(each.kind)} {each.amount:g}" for each in target.snapshot.budgets if each.task_id is None) or "none"
    )
    try:
        payload = _set_budget(target, text)[0].payload
    except ValueError:
        return ["A budget is a kind and an amount: usd 5, tokens 2000000, turns 200, seconds 3600; `usd none` lifts it"]
    wanted = "no limit" if payload["amount"] is None else f"{payload['amount']:g}"
    return [
        f"Set the run's budget: {sanitize(str(payload['kind']))} {wanted} (now: {now})",
        "Reaching it pauses the run; everything done is kept.",
    ]


ACTIONS: tuple[Action, ...] = (
    Action("pause", "p", "Pause", "pause the selected agent at its next step", _each_agent("pause"), _why_not_pause),
    Action(
        "resume",
        "r",
        "Resume",
        "resume the selected agent; where no host lives, the whole run",
        _resume,
        _why_not_resume,
        starts_host=True,
    ),
    Action(
        "steer",
        "m",
        "Message",
        "send the selected agent a message, read before its next turn",
        _each_agent("steer", lambda text: {"text": text}),
        _why_not_steer,
        asks="Message to",
    ),
    Action("answer", "a", "Answer", "answer the question that waits: approve or deny", _decide("approve"), _why_not_answer),
    Action(
        "undo", "u", "Undo", "undo the last compaction: back to the view before it", _each_agent("undo"), _why_not_undo, once=True
    ),
    Action(
        "redo",
        "U",
        "Redo",
        "redo the compaction that was undone",
        _each_agent("redo"),
        _why_not_undo,
        once=True,
        preview=lambda target, text: [f"Redo the compaction of {target.names} that was undone."],
    ),
    Action(
        "rerun",
        "R",
        "Re-run",
        "run the task again, with its memory",
        _rerun(False),
        lambda target: "" if target.tasks else "select a task first",
        _preview_rerun(False),
        once=True,
    ),
    Action(
        "rerun_fresh",
        "F",
        "Re-run fresh",
        "run the task again, with an empty memory",
        _rerun(True),
        lambda target: "" if target.tasks else "select a task first",
        _preview_rerun(True),
        once=True,
    ),
    Action(
        "compact",
        "C",
        "Compact",
        "compact the agent's context now",
        _each_agent("compact", lambda text: {"instructions": text.strip()} if text.strip() else {}),
        _why_not_compact,
        _preview_compact,
        once=True,
    ),
    Action("cancel", "X", "Cancel", "cancel the task; what was done is kept", _cancel, _why_not_cancel, _preview_cancel),
    Action(
        "pause_run",
        "P",
        "Pause run",
        "pause every agent of the run at its next step",
        _whole_run("pause"),
        lambda target: "" if target.snapshot.state is SessionState.LIVE else "the run is not live",
        lambda target, text: ["Pause the whole run: every agent stops at its next step. r resumes it."],
    ),
    Action(
        "pause_now",
        "N",
        "Pause now",
        "pause the agent at once, giving up the call that runs",
        _each_agent("pause", lambda text: {"now": True}),
        _why_not_pause,
        lambda target, text: [f"Pause {target.names} at once: the model call or tool that runs is given up, and paid for."],
    ),
    Action(
        "budget",
        "B",
        "Budget",
        "set or lift the run's budget",
        _set_budget,
        preview=_preview_budget,
        asks="Budget (usd 5, tokens 2000000, turns 200, seconds 3600)",
    ),
    Action(
        "cancel_run",
        "",
        "Cancel run",
        "end the whole run; what was done is kept",
        _whole_run("cancel"),
        lambda target: (
            "" if target.snapshot.state in (SessionState.LIVE, SessionState.PAUSED, SessionState.DEAD) else "the run is over"
        ),
        lambda target, text: ["Cancel the whole run: every task that has not ended is cancelled. What was done is kept."],
        once=True,
    ),
    Action("approve", "", "Approve", "approve the question that waits", _decide("approve"), _why_not_answer),
    Action(
        "deny",
        "",
        "Deny",
        "deny the question that waits, with a reason",
        _decide("deny"),
        _why_not_answer,
        asks="Why not",
        text_optional=True,
    ),
)

BY_ID = {action.id: action for action in ACTIONS}


def target_of(snapshot: Snapshot, rows: Sequence[tuple[AgentFacts | None, TaskFacts | None]]) -> Target:
    """The target that rows of the plan stand for, each agent and task once and as it is now."""
    agents: dict[str, AgentFacts] = {}
    tasks: dict[str, TaskFacts] = {}
    for agent, task in rows:
        if agent is not None:
            agents.setdefault(agent.id, snapshot.agent(agent.id) or agent)
        if task is None and agent is not None:
            task = snapshot.task(agent.task_id)
        if task is not None:
            tasks.setdefault(task.id, snapshot.task(task.id) or task)
    return Target(snapshot, tuple(agents.values()), tuple(tasks.values()))
