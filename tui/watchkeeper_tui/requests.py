"""What a person can do, as data: key, label, reason why not here, preview, and the commands that it writes.

Lower-case keys are safe and act immediately. Capitals cost money or data: they first show what they would do,
and ask for `y` or `n`. An action never changes an agent: it writes commands, which the
host applies or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.records.text import message_numbers
from watchkeeper.store.imports import imported_from
from watchkeeper.store.projection import AgentFacts, CompactionFacts, TaskFacts
from watchkeeper.store.snapshot import ApprovalFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.snapshot import Condition, SessionState, Snapshot

OPENED_READ_ONLY = "opened read-only"
"""Why a session is only looked at that the user opened so."""


@dataclass(frozen=True, slots=True)
class Target:
    """Who an action is about: the selected row, or the marked ones."""

    snapshot: Snapshot
    agents: tuple[AgentFacts, ...] = ()
    tasks: tuple[TaskFacts, ...] = ()
    """The tasks of the rows, also those that no agent has yet."""
    read_only: str = ""
    """Why the session is only looked at; empty where it is not."""
    condition: Condition | None = None
    """The state of the first row as the plan shows it; None where there is no plan."""

    @property
    def agent(self) -> AgentFacts | None:
        return self.agents[0] if self.agents else None

    @property
    def hosted(self) -> bool:
        """A process drives the session now."""
        return self.snapshot.host_pid is not None

    @property
    def pausing(self) -> tuple[AgentFacts, ...]:
        """The agents that received a pause and still work."""
        return tuple(agent for agent in self.agents if agent.id in self.snapshot.pausing)

    @property
    def not_ours(self) -> str:
        """Why nothing can be controlled here: another program ran the session, or it is only looked at; empty
        where it can."""
        session = self.snapshot.session
        program = imported_from(session.origin) if session is not None else None
        if program:
            return f"imported sessions are read-only (from {program})"
        if self.read_only == OPENED_READ_ONLY:
            return "the session is open read-only; press s, then Enter to act on it"
        return f"{self.read_only}: actions are not available" if self.read_only else ""

    @property
    def names(self) -> str:
        """The names of the agents, or of the tasks, for a sentence."""
        if len(self.agents) > 3:
            return formatting.plural(len(self.agents), "agent")
        if self.agents:
            return ", ".join(sanitize(agent.label) for agent in self.agents)
        return ", ".join(clip(sanitize(task.label), 40) for task in self.tasks) or "nothing"

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
    """For the status line: `pause fix-bytes`."""


def target_of(
    snapshot: Snapshot,
    rows: Sequence[tuple[AgentFacts | None, TaskFacts | None]],
    *,
    read_only: str = "",
    condition: Condition | None = None,
) -> Target:
    """The target that rows of the plan represent: each agent and task once, in its current state. `condition`: the
    state of the first row."""
    agents: dict[str, AgentFacts] = {}
    tasks: dict[str, TaskFacts] = {}
    for agent, task in rows:
        if agent is not None:
            agents.setdefault(agent.id, snapshot.agent(agent.id) or agent)
        if task is None and agent is not None:
            task = snapshot.task(agent.task_id)
        if task is not None:
            tasks.setdefault(task.id, snapshot.task(task.id) or task)
    return Target(snapshot, tuple(agents.values()), tuple(tasks.values()), read_only, condition)


def is_planner(target: Target) -> bool:
    """The planner alone is meant, which has no task: what would end it is the end of the run."""
    session = target.snapshot.session
    agent = target.agent
    return (
        len(target.agents) == 1
        and not target.tasks
        and session is not None
        and agent is not None
        and (agent.id == session.planner_agent_id)
    )


def cancellable(target: Target) -> list[TaskFacts]:
    """The tasks that have not ended."""
    return [task for task in target.tasks if task.status not in ("done", "failed", "cancelled", "dropped")]


def budget_of(text: str) -> tuple[str, float | None]:
    """A budget's kind and amount as typed; None lifts it.

    Raises:
        ValueError: the amount is no number.
    """
    kind, _, amount = text.strip().partition(" ")
    wanted = amount.strip()
    return kind, None if wanted in ("none", "off", "") else float(wanted.lstrip("$").replace(",", ""))


KEPT_SHARE = 0.2
"""About the share of the window that a pass leaves verbatim."""
SUMMARY_TOKENS = 2_048
"""The longest summary that a pass asks for."""


@dataclass(frozen=True, slots=True)
class CompactionEstimate:
    """A guess, to be labelled as one."""

    tokens_now: int
    tokens_left: int
    tokens_fixed: int
    """The part of both that no pass touches: the system prompt, the tools and the pinned."""
    model: str
    cost_usd: float | None
    """None where nothing that has a price is known of the model."""
    basis: str
    """What the guess rests on, in words."""


def estimate_compaction(agent: AgentFacts, passes: Sequence[CompactionFacts]) -> CompactionEstimate:
    """What compacting this agent now would leave and cost. `passes` are the session's, in any order.

    What a pass is said to have made of how much is without the overhead, which stays.
    """
    now = agent.context_used
    fixed = min(now, dict(agent.composition).get("overhead", 0))
    ended = [
        each
        for each in passes
        if each.status == "applied" and each.tokens_before and each.tokens_after is not None
    ]
    mine = [each for each in ended if each.agent_id == agent.id] or [
        each for each in ended if each.model == agent.model
    ]
    before = sum(each.tokens_before or 0 for each in mine)
    messages = dict(agent.composition).get("messages", now)
    if before:
        left = fixed + int((now - fixed) * sum(each.tokens_after or 0 for each in mine) / before)
        whose = "its" if mine[0].agent_id == agent.id else "this model's"
        basis = f"{whose} {formatting.plural(len(mine), 'earlier compaction')}"
    else:
        kept = min(messages, int(agent.context_limit * KEPT_SHARE))
        left = min(now, now - messages + kept + min(SUMMARY_TOKENS, messages - kept))
        basis = "messages kept verbatim and the maximum summary size (no compactions yet)"
    return CompactionEstimate(now, max(0, left), fixed, agent.model, _cost(agent, mine, messages), basis)


def _cost(agent: AgentFacts, passes: Sequence[CompactionFacts], messages: int) -> float | None:
    """By what earlier passes cost a token, else by what the agent's own calls did."""
    priced = [each for each in passes if each.cost_usd is not None]
    read = sum(each.tokens_before or 0 for each in priced)
    if read:
        return sum(each.cost_usd or 0.0 for each in priced) / read * agent.context_used
    if agent.cost_usd is not None and agent.total_tokens:
        return agent.cost_usd / agent.total_tokens * (messages + SUMMARY_TOKENS)
    return None


_TASK_ENDED = ("done", "failed", "cancelled", "dropped")


def droppable(target: Target) -> list[TaskFacts]:
    """The tasks that can be given up."""
    return [task for task in target.tasks if task.status not in ("done", "dropped")]


def cancel_lines(target: Target, text: str) -> list[str]:
    """Which tasks would end."""
    lines = [
        f"Cancel {formatting.plural(len(cancellable(target)), 'task')}: "
        + ", ".join(clip(sanitize(task.label), 40) for task in target.tasks)
    ]
    lines.append(
        "The agent of each task stops immediately. Completed work is kept, and the planner is notified. r resumes a task."
    )
    return lines


MOST_NAMES = 6
"""Tasks that are named where several depend on one."""


def dependents(target: Target) -> list[TaskFacts]:
    """The tasks that depend on one of these and have not ended."""
    ids = {task.id for task in target.tasks}
    return [
        task
        for task in target.snapshot.tasks
        if task.id not in ids and ids & set(task.depends_on) and task.status not in _TASK_ENDED
    ]


def drop_lines(target: Target, text: str) -> list[str]:
    """Which tasks would be given up, and which run without them."""
    tasks = droppable(target)
    running = any(task.status == "running" for task in tasks)
    lines = [
        f"Drop {', '.join(clip(sanitize(task.label), 40) for task in tasks[:4])}"
        + (f" and {len(tasks) - 4} more" if len(tasks) > 4 else "")
        + ("; its agent stops at its next step" if running else "")
    ]
    after = dependents(target)
    names = ", ".join(clip(sanitize(task.label), 40) for task in after[:MOST_NAMES])
    more = f" and {len(after) - MOST_NAMES} more" if len(after) > MOST_NAMES else ""
    depends = "1 dependent task will run" if len(after) == 1 else f"{len(after)} dependent tasks will run"
    lines.append(f"{depends} without it: {names}{more}" if after else "No task depends on it.")
    if text.strip():
        lines.append(f"Reason: {clip(sanitize(text), 160)}")
    return lines


def rerun_lines(fresh: bool) -> Callable[[Target, str], list[str]]:
    """Which tasks would run again, what their last attempt took, and what comes after them."""

    def preview(target: Target, text: str) -> list[str]:
        lines = []
        for task in target.tasks[:4]:
            agent = target.snapshot.agent(task.assigned_agent)
            spent = (
                f"; attempt {task.attempt} took {formatting.tokens(agent.total_tokens)} tok,"
                f" {formatting.bill(agent)}"
                if agent
                else ""
            )
            lines.append(f"Re-run {clip(sanitize(task.label), 50)} as attempt {task.attempt + 1}{spent}")
        names = {task.id: task for task in target.snapshot.tasks}
        ids = {task.id for task in target.tasks}
        later = [
            each
            for each in names.values()
            if ids & set(each.depends_on) and each.status not in ("pending", "dropped")
        ]
        memory = (
            "The new agent starts with an empty memory."
            if fresh
            else "The new agent keeps the old agent's memory."
        )
        lines.append(
            memory
            + (f" {formatting.plural(len(later), 'dependent task')} may run again too." if later else "")
        )
        if any(task.status in ("running", "paused") for task in target.tasks):
            lines.append("The current attempt is cancelled first.")
        if text.strip():
            lines.append(f"Message: {clip(sanitize(text), 160)}")
        return lines

    return preview


HARDLY_LESS = 0.97
"""A pass that would leave more of a context than this share is hardly worth its price."""


ESTIMATE = "Estimate: "
"""How a line begins that what the store computes replaces."""


def compact_lines(target: Target, text: str) -> list[str]:
    """What a pass over each agent's context would free, and its cost, as far as both can be estimated."""
    lines = []
    for agent in target.agents[:4]:
        guess = estimate_compaction(agent, target.snapshot.compactions)
        price = "unpriced" if guess.cost_usd is None else f"about {formatting.money(guess.cost_usd)}"
        price = "no cost" if guess.cost_usd == 0 else price
        left = f"about {formatting.tokens(guess.tokens_left)} ({formatting.change(guess.tokens_now, guess.tokens_left)})"
        if guess.tokens_left > guess.tokens_now * HARDLY_LESS:
            left = "hardly less"
        window = f" of {formatting.tokens(agent.context_limit)}" if agent.context_limit else ""
        lines.append(
            f"Compact {sanitize(agent.label)}: {formatting.tokens(guess.tokens_now)}{window} tok now,"
            f" by {sanitize(formatting.model_name(guess.model))}, {price}"
        )
        parts = ""
        if guess.tokens_fixed:
            fixed = formatting.tokens(guess.tokens_fixed)
            parts = f" ({fixed} of system prompt and tools stay)"
        lines.append(f"{ESTIMATE}{left} after it{parts}, from {guess.basis}")
        meanwhile = _meanwhile(target, agent)
        lines.append(f"{meanwhile[0].upper()}{meanwhile[1:]}.")
    if len(target.agents) > 4:
        lines.append(f"and {len(target.agents) - 4} more")
    lines.append("The messages stay stored. u undoes the compaction.")
    if text.strip():
        lines.append(f"Instructions: {clip(sanitize(text), 160)}")
    return lines


def _meanwhile(target: Target, agent: AgentFacts) -> str:
    """What else goes on while the pass runs."""
    if not target.hosted:
        return "a background process starts for this compaction"
    return (
        "the agent has finished; its result is kept"
        if agent.ended_at is not None
        else "the agent keeps working"
    )


def budget_lines(target: Target, text: str) -> list[str]:
    """The limit wanted beside the one that holds; or what a budget is, where the text is none."""
    now = (
        ", ".join(
            f"{sanitize(each.kind)} {each.amount:g}"
            for each in target.snapshot.budgets
            if each.task_id is None
        )
        or "none"
    )
    try:
        kind, amount = budget_of(text)
    except ValueError:
        return [
            "Enter a kind and an amount: usd 5, tokens 2000000, turns 200 or seconds 3600. `usd none`"
            " removes the limit"
        ]
    wanted = "no limit" if amount is None else f"{amount:g}"
    return [
        f"Set the run's budget: {sanitize(kind)} {wanted} (now: {now})",
        "The run pauses at this limit. Completed work is kept.",
    ]


RESUMABLE_RUN = (SessionState.PAUSED, SessionState.DEAD, SessionState.FAILED)
"""Where nothing drives the run, and `wk resume` would."""
_ENDED = ("done", "failed", "cancelled")
_RESUMABLE = ("paused", "parked", "failed", "cancelled")


def can_listen(agent: AgentFacts) -> bool:
    return agent.status not in _ENDED


def can_pause(agent: AgentFacts) -> bool:
    return agent.status not in (*_ENDED, "paused")


def why_not_steer(target: Target) -> str:
    if not target.agents:
        return "select an agent first"
    if any(map(can_listen, target.agents)):
        return ""
    over = _over(target)
    if is_planner(target):
        return f"{over}; R re-runs a task" if over else f"the planner is {target.agents[0].status}"
    return f"{target.names} is {target.agents[0].status}; R re-runs its task" + (
        "" if over else ", or message the planner"
    )


def _over(target: Target) -> str:
    """The text that every key shows for a run that has ended; empty if it has not."""
    ended = target.snapshot.state in (
        SessionState.DONE,
        SessionState.FAILED,
        SessionState.CANCELLED,
        SessionState.ENDED,
    )
    return "the run has ended" if ended else ""


def why_still(target: Target) -> str:
    """Why no work of the run can be paused; empty if some can."""
    if target.snapshot.state is SessionState.PAUSED:
        return "the run is already paused"
    if target.snapshot.state is SessionState.DEAD:
        return "the background process stopped; r resumes the run"
    return _over(target)


def why_not_pause(target: Target) -> str:
    if not target.agents:
        return "select an agent first"
    if not target.hosted:
        return why_still(target) or "nothing is running"
    if not any(map(can_pause, target.agents)):
        return f"{target.names} is already {target.agents[0].status}"
    return ""


def why_not_resume(target: Target) -> str:
    state = target.snapshot.state
    if not target.hosted:
        return "" if state in RESUMABLE_RUN else _over(target) or f"the run is {state.value.lower()}"
    if state is SessionState.PAUSED or target.snapshot.pauses_all:
        return ""
    if target.pausing:
        return ""
    if any(agent.status in _RESUMABLE for agent in target.agents):
        return ""
    return "none of the selected agents is paused or failed"


def resume(target: Target, text: str) -> list[Request]:
    if not target.hosted or target.snapshot.state is SessionState.PAUSED or target.snapshot.pauses_all:
        return [Request("resume", about="resume the run")]
    return [
        Request("resume", agent.id, about=f"resume {sanitize(agent.label)}")
        for agent in target.agents
        if agent.status in _RESUMABLE or agent in target.pausing
    ]


def each_agent(
    kind: str,
    payload: Callable[[str], dict[str, Any]] = lambda text: {},
    *,
    able: Callable[[AgentFacts], bool] = lambda agent: True,
    verb: str = "",
) -> Callable[[Target, str], list[Request]]:
    """One command for each agent, except agents for which it would do nothing."""

    def requests(target: Target, text: str) -> list[Request]:
        wanted = [agent for agent in target.agents if able(agent)]
        return [
            Request(kind, agent.id, None, payload(text), f"{verb or kind} {sanitize(agent.label)}")
            for agent in wanted
        ]

    return requests


def whole_run(kind: str) -> Callable[[Target, str], list[Request]]:
    return lambda target, text: [Request(kind, about=f"{kind} the run")]


def why_not_cancel_run(target: Target) -> str:
    return (
        ""
        if target.snapshot.state in (SessionState.LIVE, SessionState.PAUSED, SessionState.DEAD)
        else "the run has ended"
    )


def why_not_cancel(target: Target) -> str:
    if is_planner(target):
        return why_not_cancel_run(target)
    if not target.tasks:
        return "select a task first"
    return "" if cancellable(target) else "the task has ended"


def cancel(target: Target, text: str) -> list[Request]:
    return [
        Request("cancel", None, task.id, about=f"cancel {clip(sanitize(task.label), 30)}")
        for task in cancellable(target)
    ]


def rerun(fresh: bool) -> Callable[[Target, str], list[Request]]:
    def requests(target: Target, text: str) -> list[Request]:
        return [
            Request(
                "rerun",
                None,
                task.id,
                {"fresh": fresh} | ({"message": text.strip()} if text.strip() else {}),
                f"re-run {clip(sanitize(task.label), 30)}",
            )
            for task in target.tasks
        ]

    return requests


def why_not_plan(target: Target) -> str:
    """Why the plan cannot be edited; empty if it can."""
    state, session = target.snapshot.state, target.snapshot.session
    if state is SessionState.FAILED:
        return "the run failed; r resumes it, R re-runs a task"
    if over := _over(target):
        return f"{over}; R re-runs a task"
    return (
        "" if session is not None and target.snapshot.tasks else "no plan yet; the planner is still making it"
    )


def why_not_revise(target: Target) -> str:
    if reason := why_not_plan(target):
        return reason
    if len(target.tasks) != 1:
        return "select only one task" if target.tasks else "select a task first"
    running = target.tasks[0].status == "running"
    return f"{target.names} is running; X cancels it, R re-runs it" if running else ""


def why_not_drop(target: Target) -> str:
    if reason := why_not_plan(target):
        return reason
    if not target.tasks:
        return "select a task first"
    return "" if droppable(target) else f"the task is already {target.tasks[0].status}"


def drop_tasks(target: Target, text: str) -> list[Request]:
    return [
        Request(
            "plan",
            None,
            task.id,
            {
                "act": "drop",
                "arguments": {"task": task.id} | ({"reason": text.strip()} if text.strip() else {}),
            },
            f"drop {clip(sanitize(task.label), 30)}",
        )
        for task in droppable(target)
    ]


def no_requests(target: Target, text: str) -> list[Request]:
    """A form makes them."""
    return []


def has_context(agent: AgentFacts) -> bool:
    return agent.context_used > 0


def was_compacted(agent: AgentFacts) -> bool:
    """Or changed by hand, which may be undone as well."""
    return agent.program is None and (agent.compactions > 0 or agent.view_version > 1)


def why_not_compact(target: Target) -> str:
    if not target.agents:
        return "select an agent first"
    if not any(map(has_context, target.agents)):
        return "the context is empty"
    return "the run is cancelled" if target.snapshot.state is SessionState.CANCELLED else ""


def why_not_undo(target: Target) -> str:
    if not target.agents:
        return "select an agent first"
    return _why_not_ours(target) or (
        "" if any(map(was_compacted, target.agents)) else "there is no compaction to undo"
    )


def _why_not_ours(target: Target) -> str:
    """Why a context cannot be changed: an agent program keeps it."""
    programs = {agent.program for agent in target.agents}
    return (
        f"{sanitize(programs.pop() or '')} manages its own context"
        if len(programs) == 1 and None not in programs
        else ""
    )


def why_not_edit(target: Target) -> str:
    return why_not_compact(target) or _why_not_ours(target)


def why_not_answer(target: Target) -> str:
    return "" if target.snapshot.approvals else "no pending questions"


def decide(kind: str) -> Callable[[Target, str], list[Request]]:
    def requests(target: Target, text: str) -> list[Request]:
        questions = target.approvals[:1]
        payload = {"reason": text.strip()} if text.strip() else {}
        return [
            Request(
                kind,
                each.agent_id,
                each.task_id,
                {"approval": each.id, **payload},
                f"{kind} {sanitize(each.tool)}",
            )
            for each in questions
        ]

    return requests


def revoke(target: Target, text: str) -> list[Request]:
    number = text.strip().removeprefix("#")
    return (
        [Request("revoke", None, None, {"grant": int(number)}, f"revoke approval {number}")]
        if number.isdecimal()
        else []
    )


def why_not_budget(target: Target) -> str:
    return "" if target.hosted or target.snapshot.state in RESUMABLE_RUN else _over(target)


def set_budget(target: Target, text: str) -> list[Request]:
    kind, amount = budget_of(text)
    about = f"budget {kind} {'none' if amount is None else f'{amount:g}'}"
    return [Request("set_budget", None, None, {"kind": kind, "amount": amount}, sanitize(about))]


def _of_messages(kind: str) -> Callable[[Target, str], list[Request]]:
    """`drop`, `pin` or `unpin`, of the messages of the selected agent that are named."""

    def requests(target: Target, text: str) -> list[Request]:
        numbers = message_numbers(text)
        if not numbers:
            raise ValueError("enter message numbers, such as 12,14-16")
        which = f"message {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} messages"
        return [
            Request("edit", agent.id, None, {kind: numbers}, f"{kind} {which} of {sanitize(agent.label)}")
            for agent in target.agents[:1]
        ]

    return requests


drop_messages = _of_messages("drop")


def rewrite(target: Target, text: str) -> list[Request]:
    """The number of a summary or observation, then its new text."""
    number, _, wanted = text.strip().removeprefix("#").partition(" ")
    if not number.isdecimal() or not wanted.strip():
        raise ValueError("enter the number of the summary, then the new text")
    return [
        Request(
            "edit",
            agent.id,
            None,
            {"texts": {number: wanted}},
            f"rewrite summary {number} of {sanitize(agent.label)}",
        )
        for agent in target.agents[:1]
    ]


def edit_lines(
    requests: Callable[[Target, str], list[Request]], what: str
) -> Callable[[Target, str], list[str]]:
    def lines(target: Target, text: str) -> list[str]:
        try:
            requests(target, text)
        except ValueError as fault:
            return [sanitize(str(fault))]
        return [f"{what.format(name=target.names)} The messages stay stored. u undoes the change."]

    return lines


def _names_messages(text: str) -> bool:
    """Whether these are numbers of messages; `#` and a number name a fact."""
    return not text.strip().startswith("#") and text.strip().translate(_NUMBERS) == "" and bool(text.strip())


_NUMBERS = dict.fromkeys(map(ord, "0123456789,- "))


def pin(target: Target, text: str) -> list[Request]:
    """`#` and a number name a fact, numbers the messages of the selected agent; anything else is a new text."""
    wanted = text.strip()
    if _names_messages(wanted):
        return _of_messages("pin")(target, wanted)
    if wanted.startswith("#") and wanted[1:].isdecimal():
        return [Request("pin", None, None, {"fact": int(wanted[1:])}, f"pin fact {wanted}")]
    return [Request("pin", None, None, {"text": wanted}, f"pin “{clip(sanitize(wanted), 40)}”")]


def unpin(target: Target, text: str) -> list[Request]:
    if _names_messages(text):
        return _of_messages("unpin")(target, text)
    number = text.strip().removeprefix("#")
    return (
        [Request("unpin", None, None, {"fact": int(number)}, f"unpin fact #{number}")]
        if number.isdecimal()
        else []
    )


def pin_lines(
    requests: Callable[[Target, str], list[Request]], what: str
) -> Callable[[Target, str], list[str]]:
    """Say what would be done with messages; a fact or a text is pinned at once."""

    def lines(target: Target, text: str) -> list[str]:
        if not _names_messages(text):
            return []
        if not target.agents:
            return ["select an agent first"]
        return edit_lines(requests, what)(target, text)

    return lines
