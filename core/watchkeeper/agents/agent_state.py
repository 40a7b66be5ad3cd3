"""One agent in the store: its context, the rows that each change of it writes, and how its end changes its task, its planner
and the session.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from watchkeeper.agents.limits import BudgetReached
from watchkeeper.agents.roles import Input
from watchkeeper.memory.compactor import Compactor
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import (
    EDIT,
    PIN,
    UNPIN,
    Change,
    ContextLimits,
    Preview,
    Rejection,
    needed_from,
    uncovered_from,
    undo_targets,
)
from watchkeeper.memory.tokens import TokenCounter
from watchkeeper.records.compactions import CompactionRecord
from watchkeeper.records.errors import Shortage
from watchkeeper.records.messages import Content, Message, Role
from watchkeeper.records.states import AgentStatus, SessionStatus, TaskStatus
from watchkeeper.records.text import cost_text, cut, one_line
from watchkeeper.store import agents, artifacts, budgets, facts, plans, sessions
from watchkeeper.store import messages as message_rows
from watchkeeper.store.agents import Agent
from watchkeeper.store.driver import Reads, encode
from watchkeeper.store.plans import Task
from watchkeeper.store.projection import composition_of
from watchkeeper.store.transaction import Transaction

if TYPE_CHECKING:
    from watchkeeper.agents.environment import Environment

# --- What a change by hand would lead to, in words ------------------------------------------------------------


def preview_lines(foretold: Preview) -> list[str]:
    """A preview in two lines."""
    change = f"{foretold.tokens_before:,} → {foretold.tokens:,} of {foretold.limit:,} tokens"
    if foretold.high_water is not None:
        change += f", up to message {foretold.high_water}, with a digest instead of a summary"
    if not foretold.cache_tokens_written:
        return [change, "the prompt cache stays valid"]
    if foretold.cost_usd == 0:  # a model that costs nothing has no prompt cache that is paid for
        return [change, f"{foretold.cache_tokens_written:,} tokens of the prompt change"]
    cost = "" if foretold.cost_usd is None else f", about {cost_text(foretold.cost_usd)}"
    return [
        change,
        f"{foretold.cache_tokens_void:,} cached tokens are invalidated and {foretold.cache_tokens_written:,} are"
        f" rewritten{cost}",
    ]


# --- The share of a model's window for an agent's messages --------------------------------------------------


def limits_of(environment: Environment, agent: Agent, specs: list[Any]) -> ContextLimits:
    """How large this agent's context may be: its window, less what a reply, the system prompt and the tools
    take."""
    settings = environment.settings
    overhead = overhead_tokens(environment.counter, agent.system, specs)
    inside = environment.thinking_tokens(agent.role, agent.model) - thinking_beyond(environment, agent)
    longest = settings.max_output_tokens + inside
    return context_limits(agent.context_limit, longest, settings.summarization_threshold, overhead)


def thinking_beyond(environment: Environment, agent: Agent) -> int:
    """Tokens of thinking for which the model has room beyond the agent's window, where that was made smaller: at most half
    of it, because the thinking is in the next call."""
    wanted = environment.thinking_tokens(agent.role, agent.model)
    if not wanted:
        return 0
    beyond = environment.model(agent.model).context_window - agent.context_limit
    return max(0, min(wanted, beyond, agent.context_limit // 2))


def context_limits(window: int, max_output_tokens: int, threshold: float, overhead: int) -> ContextLimits:
    """The limits of a window: at most a sixth of it is kept free for a reply."""
    return ContextLimits(window, max(256, min(max_output_tokens, window // 6)), threshold, overhead)


def overhead_tokens(counter: TokenCounter, system: str, specs: list[Any]) -> int:
    """Tokens of the system prompt and of the tools' descriptions."""
    tools = encode([[spec.name, spec.description, spec.input_schema] for spec in specs])
    return counter.count(system) + counter.count(tools) + 16


HEADING_TOKENS = 160
"""What the context's own words around observations may take."""


def tokens_replaced(state: ContextState, last: int) -> int:
    """How many tokens of the context a summary of everything up to message `last` replaces."""
    replaced = sum(one.tokens for one in state.view.observations if one.covers[1] <= last)
    return replaced + sum(one.tokens for one in state.verbatim if one.seq <= last)


PAIR_WITHIN = 50
"""How far from a message that is to be pinned the other half of its tool call is looked for, once it is covered."""

MOST_REREAD = 5_000
"""Most messages under a digest that a summary reads again; if there are more, it reads the digest."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A change and what was true right after it, so that it can be written later, from another thread."""

    agent_id: str
    change: Change
    last_seq: int
    total_tokens: int
    composition: dict[str, int]
    pins_before: tuple[int, ...] = ()

    def write(
        self,
        tx: Transaction,
        *,
        trigger: str = "auto",
        instructions: str | None = None,
        compaction_id: int | None = None,
    ) -> None:
        """Messages, observations, views, and the record of a compaction if there was one.

        `compaction_id`: the pass that this change publishes, whose record its caller writes.
        """
        change = self.change
        message_rows.add_messages(tx, self.agent_id, change.messages)
        if compaction_id is None:
            compaction_id = self._write_compaction(tx, trigger, instructions)
        message_rows.add_observations(tx, self.agent_id, change.observations, compaction_id=compaction_id)
        for view in change.views:
            message_rows.add_view(tx, self.agent_id, view, tokens=change.tokens, compaction_id=compaction_id)
        if change.reason in (PIN, UNPIN):
            tx.event(
                f"memory.{change.reason}ned",
                agent_id=self.agent_id,
                messages=sorted(set(self.pins_before) ^ set(change.view.pins)),
                view=change.view.version,
                tokens_before=change.tokens_before,
                tokens_after=change.tokens,
            )
        if change.pins_shortened:
            tx.event("memory.pins_shortened", agent_id=self.agent_id, messages=list(change.pins_shortened))
        agents.note_context(
            tx,
            self.agent_id,
            view_version=change.view.version,
            messages=len(change.messages),
            last_seq=self.last_seq,
            message_tokens=self.total_tokens,
            context_tokens=change.tokens,
            composition=self.composition,
        )

    def _write_compaction(self, tx: Transaction, trigger: str, instructions: str | None) -> int | None:
        change = self.change
        moved = trigger in ("undo", "redo")
        edited = change.reason == EDIT
        if not change.observations and not change.messages_removed and not moved and not edited:
            return None
        measures: dict[str, Any] = {
            "trigger": trigger,
            "tokens_before": change.tokens_before,
            "tokens_after": change.tokens,
            "messages_removed": change.messages_removed,
            "high_water": change.high_water,
        }
        if moved:
            tx.event(f"compaction.{trigger}", agent_id=self.agent_id, view=change.view.version, **measures)
            return None
        compaction = CompactionRecord(
            status="applied",
            instructions=instructions,
            reason=change.reason or change.view.reason,
            view_before=change.views[0].parent if change.views else None,
            view_after=change.view.version,
            model="digest",
            **measures,
        )
        compaction_id = message_rows.add_compaction(tx, self.agent_id, compaction)
        tx.event("compaction.applied", agent_id=self.agent_id, compaction=compaction_id, **measures)
        return compaction_id


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An agent's memory at one moment, ready to be kept whole."""

    agent_id: str
    blob: bytes
    version: int
    last_seq: int
    tokens: int

    def write(self, tx: Transaction, turn: int) -> str:
        """Keep it as an artifact, and point the agent's snapshot at it; returns the reference."""
        ref = artifacts.put(tx, self.blob, "application/json")
        message_rows.save_snapshot(
            tx,
            self.agent_id,
            ref,
            version=self.version,
            last_seq=self.last_seq,
            turn=turn,
            tokens=self.tokens,
        )
        return ref


class AgentMemory:
    """A `ContextState` with its persistence: change it first, then write what was recorded in the step's
    transaction."""

    def __init__(self, state: ContextState, agent_id: str) -> None:
        self.state = state
        self.agent_id = agent_id
        self._forgotten_at = 0
        """The version of the view at which messages were last dropped from memory."""

    @classmethod
    def empty(cls, limits: ContextLimits, counter: TokenCounter, agent_id: str, at: float) -> AgentMemory:
        return cls(ContextState(limits, counter, agent_id=agent_id, at=at), agent_id)

    @classmethod
    def load(
        cls,
        reads: Reads,
        agent_id: str,
        limits: ContextLimits,
        counter: TokenCounter,
        calibration: float = 1.0,
    ) -> AgentMemory:
        """The memory as it was committed: the messages that the current view shows, and the first."""
        so_far = agents.progress(reads, agent_id)
        views = message_rows.load_views(reads, agent_id)
        current = next(view for view in views if view.version == so_far.view_version)
        messages = message_rows.load_messages(reads, agent_id, 1, 1)
        start = needed_from(current)
        if uncovered_from(current) - start > MOST_REREAD:
            start = uncovered_from(current)
        if start <= so_far.last_seq:
            messages += message_rows.load_messages(reads, agent_id, max(2, start))
        pinned = {seq for view in views for seq in view.pins} - {message.seq for message in messages}
        if pinned:
            messages += message_rows.load_chosen(reads, agent_id, pinned)
        state = ContextState.restore(
            limits,
            counter,
            agent_id=agent_id,
            messages=messages,
            views=views,
            current=so_far.view_version,
            calibration=calibration,
            total_tokens=so_far.message_tokens,
        )
        return cls(state, agent_id)

    @classmethod
    def stored(cls, reads: Reads, agent_id: str, counter: TokenCounter) -> AgentMemory:
        """The memory as a reader of the store knows it, to look at: its limits as the host wrote them last."""
        so_far = agents.progress(reads, agent_id)
        parts = dict(composition_of(so_far.composition))
        limit = so_far.context_tokens + parts["headroom"] if "headroom" in parts else so_far.context_limit
        share = min(1.0, parts["threshold"] / limit) if parts.get("threshold") and limit else 0.75
        return cls.load(reads, agent_id, ContextLimits(max(1, limit), 0, share), counter)

    def move(
        self, reads: Reads, move: Literal["undo", "redo"], *, at: float, to: int | None = None
    ) -> Change:
        """Undo or redo (see `ContextState.undo`), with the messages that this takes.

        Raises:
            ValueError: there is nothing to undo or redo, or it does not fit; the message names the newest
                earlier version that does fit.
        """
        state = self.state
        self._reach(reads, move, to)
        if move == "redo":
            return state.redo(at=at)
        try:
            return state.undo(at=at, to=to)
        except ValueError as error:
            for view in undo_targets({view.version: view for view in state.views}, state.view):
                self._reach(reads, move, view.version)
                if state.undo_fits(view.version):
                    raise ValueError(f"{error} Version {view.version} fits: undo to that version.") from None
            raise

    def _reach(self, reads: Reads, move: Literal["undo", "redo"], to: int | None) -> None:
        """Read the messages that the view which `move` leads to shows, and this one does not."""
        missing = self.state.missing_for(move, to)
        if missing is not None:
            self.state.load_earlier(message_rows.load_messages(reads, self.agent_id, *missing))

    def edit(self, reads: Reads, *, at: float, **how: Any) -> Recorded:
        """Change by hand what is shown (see `ContextState.edit`), with the messages that this takes.

        Raises:
            ValueError: it cannot be done; the message says why.
        """
        before = self.state.view.pins
        change = self.state.edit(at=at, among=self._to_pin(reads, how.get("pin", ())), **how)
        return replace(self.record(change), pins_before=before)

    def preview(
        self, reads: Reads, *, model: str | None, compact: bool = False, up_to: int | None = None, **how: Any
    ) -> Preview:
        """What `edit` would lead to, or a compaction (`compact`) up to a message.

        Raises:
            ValueError: it cannot be done, or nothing is to gain; the message says why.
        """
        if compact:
            return self.state.preview_compaction(up_to, model=model)
        return self.state.preview_edit(among=self._to_pin(reads, how.get("pin", ())), model=model, **how)

    def why_not_compact(self, up_to: int | None = None) -> str | None:
        """Why a compaction on request, now, would gain nothing; None if it may gain something. Changes nothing."""
        compactor = Compactor(self.state)
        begun = compactor.begin(up_to)
        if isinstance(begun, Rejection):
            return begun.reason
        compactor.end()
        if any(one.provisional and one.covers[1] <= begun.high_water for one in self.state.view.observations):
            return None
        replaced = tokens_replaced(self.state, begun.high_water)
        if replaced > 2 * HEADING_TOKENS:
            return None
        return (
            f"compaction would not free any tokens: the context through message {begun.high_water} is {replaced} tokens, and a "
            "summary would be about as long"
        )

    def _to_pin(self, reads: Reads, seqs: Collection[int]) -> list[Message]:
        """The messages that are to be pinned and are not loaded, and those around them, which may be their pairs."""
        loaded = self.state.messages[0].seq if self.state.messages else self.state.last_seq + 1
        around = {
            near
            for seq in seqs
            if 1 <= seq < loaded
            for near in range(max(1, seq - PAIR_WITHIN), min(loaded, seq + PAIR_WITHIN + 1))
        }
        return message_rows.load_chosen(reads, self.agent_id, around) if around else []

    def forget_covered(self) -> None:
        """Drop from memory the messages that the view covers. Call it only when all appended messages are
        committed."""
        if self.state.view.version != self._forgotten_at:
            self._forgotten_at = self.state.view.version
            self.state.forget_covered()

    def append(self, role: Role, content: Content, *, at: float, lasting: bool = False) -> Recorded:
        """Add a message; one that is `lasting` survives compaction. Raises `WindowTooSmall` never; the next
        `render` does."""
        return self.record(self.state.append(role, content, at=at, lasting=lasting))

    def record(self, change: Change) -> Recorded:
        """A change of the state, with what is true right after it."""
        state = self.state
        composition = {**state.composition(), "threshold": state.threshold}
        return Recorded(self.agent_id, change, state.last_seq, state.total_tokens, composition)

    def start(self, tx: Transaction) -> None:
        """Write the first, empty view."""
        message_rows.add_view(tx, self.agent_id, self.state.view, tokens=self.state.tokens)

    def snapshot(self) -> Snapshot:
        """The present memory."""
        state, view = self.state, self.state.view
        blob = {
            "agent": self.agent_id,
            "view": view.version,
            "verbatim_from": view.verbatim_from,
            "pins": view.pins,
            "last_seq": state.last_seq,
            "tokens": state.tokens,
            "observations": [
                {"id": o.id, "kind": o.kind, "covers": o.covers, "citations": o.citations, "text": o.text}
                for o in view.observations
            ],
            "messages": f"message://{self.agent_id}/{view.verbatim_from or state.last_seq}-{state.last_seq}",
        }
        data = encode(blob).encode("utf-8", "replace")
        return Snapshot(self.agent_id, data, view.version, state.last_seq, state.tokens)


# --- The end of an agent --------------------------------------------------------------------------------
#
# Rows of one transaction.

LEARNED_LINES = 8
LEARNED_CHARACTERS = 300
RESULT_CHARACTERS = 2_000
"""Longest part of a task's result that the planner receives as text; the whole is an artifact."""


def inputs_of(reads: Reads, task: Task) -> list[Input]:
    """The outputs of the tasks that a task depends on, by task and name."""
    found: list[Input] = []
    for need in task.depends_on:
        other = plans.load_task(reads, need)
        if other is None or other.assigned_agent is None:
            continue
        names = {ref: name for name, ref in artifacts.made_by(reads, other.assigned_agent)}
        wanted = set(other.expected_outputs)
        kept = [Input(names.get(ref, ref), ref, other.name) for ref in other.artifact_refs]
        # Only the promised outputs are handed on; the others can still be read by name.
        promised = [one for one in kept if one.name in wanted or one.name.startswith("result/")]
        found += promised if wanted else kept
    return found


def missing_outputs(reads: Reads, agent: Agent, folder: Path) -> list[str]:
    """The expected outputs of the agent's task that are not there: artifacts that it did not save, files that its folder
    does not hold."""
    task = plans.load_task(reads, agent.task_id) if agent.task_id is not None else None
    if task is None or not task.expected_outputs:
        return []
    saved = {name for name, _ in produced_by(reads, agent.id)}
    return [one for one in task.expected_outputs if not _is_there(one, saved, folder)]


def completes_outputs(reads: Reads, agent: Agent, folder: Path, saved: Collection[object]) -> bool:
    """Whether the artifacts that the agent has just `saved` were the last that its task was expected to have."""
    task = plans.load_task(reads, agent.task_id) if agent.task_id is not None else None
    if task is None or not any(one in saved for one in task.expected_outputs):
        return False
    return not missing_outputs(reads, agent, folder)


def _is_there(output: str, saved: Collection[str], folder: Path) -> bool:
    if not output.startswith(plans.FILE_OUTPUT):
        return output in saved
    return (folder / output.removeprefix(plans.FILE_OUTPUT)).is_file()


ENDED_STALE = "its inputs changed while it ran"
"""The status reason of a stale task whose result the planner has not received."""


def task_done(tx: Transaction, agent: Agent, text: str, memory_ref: str, turn: int, seq: int) -> None:
    """The agent reported done: its task, its output cache, the planner's inbox."""
    assert agent.task_id is not None
    task = plans.load_task(tx, agent.task_id)
    assert task is not None
    produced = produced_by(tx, agent.id)
    result_ref = artifacts.save_output(
        tx,
        name=f"result/{task.name}",
        data=text.encode("utf-8", "replace"),
        media_type="text/plain",
        agent_id=agent.id,
        task_id=task.id,
        kind="result",
    )
    agents.move(tx, agent.id, AgentStatus.DONE)
    plans.note_resume_point(tx, task.id, agent.id, turn, seq)
    refs = [result_ref, *(ref for _, ref in produced)]
    used = plans.inputs_hash([one.ref for one in inputs_of(tx, task)], task.instructions)
    if task.status is TaskStatus.STALE or task.inputs_hash not in (None, used):
        # What it builds on is made again, or has changed: `lifecycle.settle_stale` decides what this result is worth.
        plans.keep_result(tx, task.id, text, refs)
        plans.move(tx, task.id, TaskStatus.STALE, ENDED_STALE)
        return
    plans.finish(tx, task.id, result=text, artifact_refs=refs, agent_id=agent.id)
    delta = memory_delta(tx, agent, task.name, text, produced, memory_ref)
    notify_planner(
        tx,
        "task_done",
        task.id,
        result=cut(text, RESULT_CHARACTERS, f"full text in result/{task.name}"),
        result_ref=result_ref,
        **({"whole_result": f"result/{task.name}"} if len(text) > RESULT_CHARACTERS else {}),
        artifacts=[{"name": name, "ref": ref} for name, ref in produced][-20:],
        memory_delta=delta,
        learned=learned_by(tx, agent.id),
        **_waiting_changes(tx, task.id),
    )


def _waiting_changes(tx: Transaction, task_id: str) -> dict[str, Any]:
    """What a planner reads about changes in the task's worktree, which are not in the workspace yet."""
    tree = agents.load_worktree(tx, task_id)
    if tree is None or not tree.is_there:
        return {}
    return {"branch": tree.branch, "files_changed": tree.files_changed}


def task_failed(tx: Transaction, agent: Agent, reason: str, memory_ref: str, turn: int, seq: int) -> None:
    """The agent failed: its work is kept, and the planner receives the reason. If a planner fails, so does
    its session."""
    agents.move(tx, agent.id, AgentStatus.FAILED, reason)
    if agent.task_id is None:
        sessions.set_status(tx, SessionStatus.FAILED, reason)
        return
    plans.note_failure(tx, agent.task_id, agent.id, turn, seq, reason)
    plans.move(tx, agent.task_id, TaskStatus.FAILED, reason, agent=agent.id)
    task = plans.load_task(tx, agent.task_id)
    assert task is not None
    produced = produced_by(tx, agent.id)
    notify_planner(
        tx,
        "task_failed",
        agent.task_id,
        error=reason,
        attempt=task.attempt,
        turns=turn,
        artifacts=[{"name": name, "ref": ref} for name, ref in produced][-20:],
        memory_delta=memory_delta(tx, agent, task.name, "", produced, memory_ref),
        learned=learned_by(tx, agent.id),
    )


def finish_session(tx: Transaction, planner_id: str, status: str, summary: str) -> None:
    """The planner says that the goal is reached, or out of reach."""
    agents.move(tx, planner_id, AgentStatus.DONE)
    sessions.set_status(tx, SessionStatus.DONE if status == "done" else SessionStatus.FAILED, summary)


def pause(tx: Transaction, agent: Agent, reason: str, *, tell: bool) -> None:
    """The agent and its task are paused; with `tell`, the planner gets a notice."""
    agents.move(tx, agent.id, AgentStatus.PAUSED, reason)
    task = plans.load_task(tx, agent.task_id) if agent.task_id is not None else None
    if agent.task_id is not None and task is not None and task.status is not TaskStatus.STALE:
        plans.move(tx, agent.task_id, TaskStatus.PAUSED, reason, agent=agent.id)
        if tell:
            notify_planner(tx, "task_paused", agent.task_id, error=reason)


def notify_planner(tx: Transaction, kind: str, task_id: str, **payload: Any) -> None:
    """Put news of a task into the planner's inbox."""
    planner_id = sessions.require(tx, tx.session_id).planner_agent_id
    task = plans.load_task(tx, task_id)
    if planner_id is None or task is None:
        return
    plans.post(tx, planner_id, kind, {"task": task.name, "title": task.title, **payload})


def notify_planner_of_person(tx: Transaction, text: str) -> None:
    """Put one line about an act of a person, which leaves the plan as it is, into the planner's inbox. The planner
    reads it with its next message, and is not woken for it."""
    planner_id = sessions.require(tx, tx.session_id).planner_agent_id
    if planner_id is not None:
        plans.post(tx, planner_id, plans.NOTICE, {"text": f"A person {one_line(text, 600)}"})


def produced_by(reads: Reads, agent_id: str) -> list[tuple[str, str]]:
    """What an agent saved, the newest of each name, in order of name: `(name, reference)`."""
    return sorted(dict(artifacts.made_by(reads, agent_id, kind="artifact")).items())


def learned_by(tx: Transaction, agent_id: str) -> list[str]:
    """The newest of what an agent remembered and what holds still, a line each with its pointers, for the
    planner to read at once; all of it is in the memory delta."""
    newest = facts.current_facts(tx, tx.session_id, writer=agent_id, limit=LEARNED_LINES)
    return [replace(fact, text=fact.text[:LEARNED_CHARACTERS]).cited() for fact in newest]


def memory_delta(
    tx: Transaction,
    agent: Agent,
    task_name: str,
    result: str,
    produced: list[tuple[str, str]],
    memory_ref: str,
) -> str:
    """What a sub-agent learned and made, with pointers to the sources, as an artifact; returns its
    reference."""
    learned = facts.current_facts(tx, tx.session_id, writer=agent.id)
    last_seq = agents.progress(tx, agent.id).last_seq
    delta = {
        "agent": agent.id,
        "task": task_name,
        "result": result,
        "facts": [
            {
                "id": one.id,
                "kind": one.kind,
                "text": one.text,
                "sources": one.sources,
                "replaces": one.replaces,
            }
            for one in learned
        ],
        "artifacts": [{"name": name, "ref": ref} for name, ref in produced],
        "memory": memory_ref,
        "transcript": f"message://{agent.id}/1-{last_seq}",
    }
    return artifacts.put(tx, encode(delta).encode("utf-8", "replace"), "application/json")


# --- Rows written when a loop ends --------------------------------------------------------------------------


class TaskOutcome(StrEnum):
    """Why a loop returned."""

    DONE = "done"
    FAILED = "failed"
    PAUSED = "paused"
    PARKED = "parked"
    """A usage limit of its model is in force; the host wakes it when the time has come."""
    IDLE = "idle"
    """A planner that has nothing to answer until its inbox has something."""
    STOPPED = "stopped"
    """Cancelled or replaced; nothing was written after that."""
    BLOCKED = "blocked"
    """Needs a person (no credit, bad key, budget): the session must pause."""
    FINISHED = "finished"
    """The planner ended the session."""


GOES_ON_BY_ITSELF = frozenset({TaskOutcome.IDLE, TaskOutcome.PARKED})
"""A host starts the loop of such an agent again. Where the agent was asked to pause meanwhile, it pauses instead."""


@dataclass(frozen=True, slots=True)
class RunResult:
    outcome: TaskOutcome
    reason: str = ""
    status: str = "done"
    """For FINISHED: how the session ends."""
    short_of: Shortage | None = None
    """For BLOCKED: what the machine ran out of, if that is why."""


def note_budget(tx: Transaction, *, agent: Agent, reached: BudgetReached) -> None:
    """Say that a budget is used up: the session's, or that of the agent's task."""
    owner = None if reached.whole_session else agent.task_id
    budgets.note_reached(tx, agent.id, owner, reached.kind, reached.reason, reached.required)


def is_overtaken(tx: Transaction, planner_id: str, ending: RunResult | None) -> bool:
    """Whether a person has said or done something since the planner asked for the end: it reads that first."""
    return (
        ending is not None
        and ending.outcome is TaskOutcome.FINISHED
        and plans.has_word_of_person(tx, planner_id)
    )


def write_ending(
    tx: Transaction, agent: Agent, ending: RunResult, text: str, turn: int, snapshot: Snapshot | None
) -> None:
    """Write an ending: the agent, its memory snapshot, its task, the planner's inbox, the session.

    `text` is the agent's last word; `snapshot` may be missing for a planner that only rests.
    """
    if ending.outcome is TaskOutcome.IDLE:
        agents.move(tx, agent.id, AgentStatus.IDLE)
        return
    assert snapshot is not None
    memory_ref, seq = snapshot.write(tx, turn), snapshot.last_seq
    if ending.outcome is TaskOutcome.FINISHED:
        finish_session(tx, agent.id, ending.status, ending.reason)
    elif ending.outcome is TaskOutcome.DONE:
        task_done(tx, agent, text, memory_ref, turn, seq)
    elif ending.outcome is TaskOutcome.FAILED:
        task_failed(tx, agent, ending.reason, memory_ref, turn, seq)
