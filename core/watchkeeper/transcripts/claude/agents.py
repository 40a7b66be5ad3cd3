"""Which agent a record belongs to, and which call started which agent.

Three layouts, in the order of their age: side chains inside the session's own file (`isSidechain` without
`agentId`: an agent is a chain of `parentUuid`s that begins at nothing), a file for each agent beside the
session's, and a folder of them. Parent and child meet by the `agentId` in the call's result, or in the
`progress` that comes before it; where there is neither, by the prompt, which is the child's first message.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import Any, Literal, TypeVar

from watchkeeper.transcripts.jsontext import count_of, seconds, text_of
from watchkeeper.transcripts.records import (
    GUESSED,
    MAIN,
    ImportedAgent,
    ImportedMessage,
    Plan,
    PlanItem,
    Record,
    ReportedTotals,
    Rewind,
)

# Teammates: agents of one process that their lead wakes by messages.
#
# Each time one is woken, a new `agent-<id>.jsonl` with all of its history is begun. They are one agent: known
# by its name and by what it was told at first, which the call that started it says as well.

_TOLD = re.compile(r"\s*<teammate-message\b[^>]*>(?P<prompt>.*)</teammate-message>\s*", re.DOTALL)


def teammate(name: str | None, prompt: str | None) -> str | None:
    """The key of the teammate that was started by that name and prompt."""
    if name is None or prompt is None or not prompt.strip():
        return None
    digest = hashlib.blake2b(prompt.strip().encode("utf-8", "replace"), digest_size=12).hexdigest()
    return f"teammate:{name}:{digest}"


def teammate_of(record: dict[str, Any], meta: dict[str, Any]) -> str | None:
    """The teammate whose log begins with that record, if a teammate's does."""
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    told = _TOLD.fullmatch(content) if isinstance(content, str) else None
    return teammate(
        text_of(meta.get("agentType")) or text_of(meta.get("name")),
        told["prompt"] if told is not None else None,
    )


# Rewinds: the person went back and said something else. Records are chained by `parentUuid`, so two prompts
# have one parent.
#
# Parallel calls make branches as well, so that a branch of anything but prompts says nothing.

PROMPTS_KEPT = 300


class BranchBook:
    """The prompts of one agent's file, by what they follow."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        state = state or {}
        self._messages = int(state.get("messages", 0))
        self._prompts: dict[str, int] = dict(state.get("prompts", {}))
        """Parent of a prompt (empty: the first of a chain) → how many messages there were before it."""

    def save(self) -> dict[str, Any]:
        return {"messages": self._messages, "prompts": self._prompts}

    def compacted(self) -> None:
        """A compaction ends what can be taken back by beginning a chain anew: in some logs each chain begins
        so behind it."""
        self._prompts.pop("", None)

    def note(self, record: dict[str, Any], owner: str, found: list[Record]) -> None:
        """Count the message that a line became, and put before it that it takes others back, if it does."""
        for message in found:  # mostly the first; behind a session's or an agent's beginning, or none at all
            if type(message) is ImportedMessage:
                break
        else:
            return
        if message.agent != owner:
            return
        if message.role == "user" and _is_prompt(record, message):
            parent = text_of(record.get("parentUuid")) or ""
            before = self._prompts.get(parent)
            if before is not None and before < self._messages:
                found.insert(
                    found.index(message),
                    Rewind(owner, "", self._messages - before, seconds(record.get("timestamp"))),
                )
            elif before is None:
                self._prompts[parent] = self._messages
                if len(self._prompts) > PROMPTS_KEPT:
                    self._prompts.pop(next(iter(self._prompts)))
        self._messages += 1


def _is_prompt(record: dict[str, Any], message: ImportedMessage) -> bool:
    """Whether a person typed it, as far as the record tells."""
    content = message.content
    if type(content) is list:
        for block in content:  # most that a user says by far
            if type(block) is dict and block.get("type") == "tool_result":
                return False
    if record.get("type") != "user" or record.get("isMeta") is True:
        return False
    uuid = text_of(record.get("uuid"))
    return uuid is not None and uuid != text_of(record.get("parentUuid"))


V = TypeVar("V")

TIPS_KEPT = 500
"""Records of side chains whose agent is remembered between two readings; a chain goes on from its last."""
CALLS_KEPT = 200
"""Calls that wait for their agent, at most."""


class AgentBook:
    """What one file told of its agents so far."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._tips: dict[str, str] = {}
        """uuid of a record of an inline side chain → key of its agent."""
        self._calls: dict[str, list[str]] = {}
        """Spawning call → caller, digest of its prompt, description, type of agent, and the agent once it is
        known."""
        self._joined: dict[str, str] = {}
        """Agent → the call that started it, as told."""
        self._roles: dict[str, str] = {}

    @classmethod
    def restore(cls, owner: str, state: dict[str, Any]) -> AgentBook:
        book = cls(owner)
        book._tips = dict(state.get("tips", {}))
        book._calls = {key: list(value) for key, value in state.get("calls", {}).items()}
        book._joined = dict(state.get("joined", {}))
        book._roles = dict(state.get("roles", {}))
        return book

    def save(self) -> dict[str, Any]:
        return {
            "tips": _newest(self._tips, TIPS_KEPT),
            "calls": _newest(self._calls, CALLS_KEPT),
            "joined": _newest(self._joined, CALLS_KEPT),
            "roles": _newest(self._roles, CALLS_KEPT),
        }

    def of(self, record: dict[str, Any], at: float | None, found: list[Record], prompt: Any = None) -> str:
        """Key of the agent whose record it is; a chain that begins here is told as a new agent."""
        if self._owner != MAIN:
            return self._owner
        if record.get("isSidechain") is not True:
            return MAIN
        named = text_of(record.get("agentId"))
        uuid, parent = text_of(record.get("uuid")), text_of(record.get("parentUuid"))
        if named is not None:
            agent = named
        elif parent is None:
            agent = f"{GUESSED}{uuid or '?'}"
            self._begin(agent, prompt, at, found)
        elif parent in self._tips:
            agent = self._tips[parent]
        elif self._call_for(prompt) is not None:
            agent = f"{GUESSED}{uuid or '?'}"  # some versions hang a chain's beginning below the call
            self._begin(agent, prompt, at, found)
        else:
            agent = f"{GUESSED}{parent}"  # its beginning was lost, and its end may still be whole
        if uuid is not None:
            self._tips.pop(uuid, None)
            self._tips[uuid] = agent
            if len(self._tips) > 4 * TIPS_KEPT:
                self._tips = _newest(self._tips, 2 * TIPS_KEPT)
        return agent

    def _begin(self, agent: str, prompt: Any, at: float | None, found: list[Record]) -> None:
        call_id = self._call_for(prompt)
        goal = prompt if isinstance(prompt, str) else None
        if call_id is None:
            name = goal.strip()[:60] if goal else None
            found.append(ImportedAgent(agent, MAIN, name=name, goal=goal, at=at, status="working"))
            return
        call = self._calls[call_id]
        call[4] = agent
        found.append(
            ImportedAgent(
                agent, call[0], call_id, call[2] or None, call[3] or None, goal, at=at, status="working"
            )
        )

    def _call_for(self, prompt: Any) -> str | None:
        """The newest call with that prompt whose agent is not known yet."""
        digest = _digest(prompt)
        if not digest:
            return None
        return next(
            (each for each, call in reversed(self._calls.items()) if call[1] == digest and not call[4]), None
        )

    def spawning(self, agent: str, call_id: str, arguments: dict[str, Any]) -> None:
        """A call that starts an agent was made."""
        prompt = arguments.get("prompt")
        self._calls[call_id] = [
            agent,
            _digest(prompt),
            text_of(arguments.get("description")) or text_of(arguments.get("name")) or "",
            text_of(arguments.get("subagent_type")) or "",
            "",
            prompt if isinstance(prompt, str) else "",
        ]
        if len(self._calls) > CALLS_KEPT:
            self._calls.pop(next(iter(self._calls)))

    def progressed(
        self, agent: str, call_id: str | None, news: dict[str, Any], at: float | None, found: list[Record]
    ) -> None:
        """A `progress` record names the agent that a call started."""
        child = text_of(news.get("agentId"))
        if child is None or self._joined.get(child) == (call_id or ""):
            return
        self._joined[child] = call_id or ""
        call = self._calls.get(call_id or "")
        if call is not None:
            call[4] = child
            found.append(
                ImportedAgent(
                    child, call[0], call_id, call[2] or None, call[3] or None, call[5] or None, at=at
                )
            )
        else:
            found.append(ImportedAgent(child, agent, call_id, goal=text_of(news.get("prompt")), at=at))

    def answered(
        self,
        agent: str,
        call_id: str,
        outcome: dict[str, Any],
        failed: bool,
        at: float | None,
        found: list[Record],
    ) -> None:
        """A call has its result: whom it started, and whether that one is done."""
        call = self._calls.get(call_id)
        child = text_of(outcome.get("agentId"))
        if call is None and child is None:
            return
        running = outcome.get("isAsync") is True or outcome.get("status") in (
            "async_launched",
            "teammate_spawned",
            "queued",
        )
        if call is not None and not running:
            del self._calls[call_id]
        caller, name, role, known, goal = (
            (call[0], call[2], call[3], call[4], call[5]) if call else (agent, "", "", "", "")
        )
        if child is None and outcome.get("status") == "teammate_spawned":
            child = teammate(text_of(outcome.get("name")), goal or text_of(outcome.get("prompt")))
        child = child or known or (None if failed else f"call:{call_id}")
        if child is None:
            return  # the call was refused: no agent was ever started
        self._joined[child] = call_id
        if call is not None and running:
            call[4], call[5] = child, ""  # told here; the state stays small
        found.append(
            ImportedAgent(
                child,
                caller,
                call_id,
                name or text_of(outcome.get("description")),
                role or None,
                goal or text_of(outcome.get("prompt")),
                at=at,
                status="working" if running else "failed" if failed else "done",
                told=None if running else _told(outcome),
            )
        )

    def outcome_of_background(self, outcome: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """A background agent was asked after, and has ended."""
        task = outcome.get("task")
        if isinstance(task, dict) and task.get("task_type") == "local_agent":
            ended = {"completed": "done", "failed": "failed", "killed": "cancelled"}.get(
                str(task.get("status"))
            )
            child = text_of(task.get("task_id"))
            if child and ended:
                found.append(ImportedAgent(child, name=text_of(task.get("description")), at=at, status=ended))  # type: ignore[arg-type]
        agents = outcome.get("agents")
        if isinstance(agents, dict) and "retrieval_status" in outcome:
            for child, state in agents.items():
                if isinstance(state, dict) and state.get("status") == "completed":
                    found.append(
                        ImportedAgent(child, name=text_of(state.get("description")), at=at, status="done")
                    )

    def learn_role(self, agent: str, role: str) -> bool:
        """Whether that is news."""
        if self._roles.get(agent) == role:
            return False
        self._roles[agent] = role
        return True


def _told(outcome: dict[str, Any]) -> ReportedTotals | None:
    """What a result says of the agent that worked for it; `totalTokens` are those of its last call."""
    tokens, took = count_of(outcome.get("totalTokens")), count_of(outcome.get("totalDurationMs"))
    if not (tokens or took):
        return None
    return ReportedTotals(tokens, took / 1000, count_of(outcome.get("totalToolUseCount")))


def _digest(prompt: Any) -> str:
    if isinstance(prompt, list):
        prompt = "\n".join(str(block.get("text", "")) for block in prompt if isinstance(block, dict))
    if not isinstance(prompt, str) or not prompt.strip():
        return ""
    return hashlib.blake2b(prompt.strip().encode("utf-8", "replace"), digest_size=12).hexdigest()


def _newest(entries: dict[str, V], count: int) -> dict[str, V]:
    return dict(list(entries.items())[-count:])


# Plans: the whole list at each `TodoWrite`, or single items by `TaskCreate` and `TaskUpdate`.

Status = Literal["pending", "running", "done", "failed", "cancelled", "dropped"]

_STATUS: dict[str, Status] = {
    "pending": "pending",
    "in_progress": "running",
    "completed": "done",
    "cancelled": "cancelled",
    "deleted": "dropped",
}
_CREATED = re.compile(r"Task #(\S+) created")
_REFUSED = re.compile(
    r"\s*(?:Task not found|.{0,200}\b(?:denied|rejected|refused|not allowed|blocked|hook)\b)", re.IGNORECASE
)
_UPDATED = ("taskId", "subject", "description", "status", "addBlockedBy")
_LISTED = ("content", "status")
_TOOLS = frozenset({"TodoWrite", "TaskCreate", "TaskUpdate"})
LISTS_KEPT = 20


class PlanBook:
    """Turns calls of the plan's tools into versions of the plan: each once its result says that it was
    carried out.

    A call that was refused, that failed or that has no result changes nothing.
    """

    def __init__(self) -> None:
        self._creating: dict[str, list[str]] = {}
        """`TaskCreate` calls that wait for the item's id → subject and description."""
        self._updating: dict[str, dict[str, Any]] = {}
        """`TaskUpdate` calls that wait for their result → what they change."""
        self._listing: dict[str, list[dict[str, Any]]] = {}
        """`TodoWrite` calls that wait for their result → the list."""
        self._called_at: dict[str, float | None] = {}
        """When each of the calls that wait was made: a change has the time of its call."""

    @classmethod
    def restore(cls, state: dict[str, Any]) -> PlanBook:
        book = cls()
        book._creating = {key: list(value) for key, value in state.get("creating", {}).items()}
        book._updating = dict(state.get("updating", {}))
        book._listing = dict(state.get("listing", {}))
        book._called_at = dict(state.get("called_at", {}))
        return book

    def save(self) -> dict[str, Any]:
        return {
            "creating": self._creating,
            "updating": self._updating,
            "listing": self._listing,
            "called_at": self._called_at,
        }

    def called(self, name: str, call_id: str, arguments: dict[str, Any], at: float | None) -> None:
        """A tool was called."""
        if name not in _TOOLS:
            return
        self._called_at[call_id] = at
        if len(self._called_at) > CALLS_KEPT:
            self._called_at.pop(next(iter(self._called_at)))
        if name == "TodoWrite":
            todos = arguments.get("todos")
            if isinstance(todos, list):
                self._listing[call_id] = [
                    {name: todo[name] for name in _LISTED if name in todo}
                    for todo in todos
                    if isinstance(todo, dict)
                ]
                if len(self._listing) > LISTS_KEPT:
                    self._listing.pop(next(iter(self._listing)))
        elif name == "TaskCreate":
            subject = text_of(arguments.get("subject"))
            if subject:
                self._creating[call_id] = [subject, text_of(arguments.get("description")) or ""]
                if len(self._creating) > CALLS_KEPT:
                    self._creating.pop(next(iter(self._creating)))
        elif name == "TaskUpdate" and _update(arguments) is not None:
            self._updating[call_id] = {name: arguments[name] for name in _UPDATED if name in arguments}
            if len(self._updating) > CALLS_KEPT:
                self._updating.pop(next(iter(self._updating)))

    def refused(self, call_id: str) -> None:
        """A call was denied, or failed: what it asked for did not happen."""
        for calls in (self._creating, self._updating, self._listing, self._called_at):
            calls.pop(call_id, None)

    def answered(
        self,
        agent: str,
        call_id: str,
        outcome: dict[str, Any],
        text: str,
        at: float | None,
        found: list[Record],
    ) -> None:
        """The result of `TaskCreate` tells the item's id; that of `TaskUpdate`, whether there is such an
        item."""
        called_at = self._called_at.pop(call_id, None)
        at = at if called_at is None else called_at
        todos = self._listing.pop(call_id, None)
        if todos is not None:
            found.append(Plan(agent, "TodoWrite", _todos(todos), whole=True, plan=agent, at=at))
        update = self._updating.pop(call_id, None)
        if update is not None and outcome.get("success") is not False and not _says_refused(text):
            changed = _update(update)
            if changed is not None:
                found.append(Plan(agent, "TaskUpdate", [changed], whole=False, at=at))
        created = self._creating.pop(call_id, None)
        if created is None:
            return
        if outcome.get("success") is False:
            return
        task = outcome.get("task")
        item_id = _id(task.get("id")) if isinstance(task, dict) else None
        if item_id is None:
            match = _CREATED.search(text)
            item_id = match[1] if match else call_id
        item = PlanItem(item_id, created[0], "pending", created[1] or None, where="new")
        found.append(Plan(agent, "TaskCreate", [item], whole=False, at=at))


def _todos(todos: list[dict[str, Any]]) -> list[PlanItem]:
    """The list; an item is recognised by its text, and the second of the same text by its place among
    them."""
    seen: Counter[str] = Counter()
    items = []
    for todo in todos:
        title = text_of(todo.get("content"))
        if title is None:
            continue
        seen[title] += 1
        key = title if seen[title] == 1 else f"{title} ({seen[title]})"
        items.append(PlanItem(key, title, _STATUS.get(str(todo.get("status")), "pending")))
    return items


def _update(arguments: dict[str, Any]) -> PlanItem | None:
    item_id = _id(arguments.get("taskId"))
    if item_id is None:
        return None
    needs = arguments.get("addBlockedBy")
    depends_on = (
        tuple(found for each in needs if (found := _id(each))) if isinstance(needs, list) and needs else None
    )
    return PlanItem(
        item_id,
        text_of(arguments.get("subject")),
        _STATUS.get(str(arguments.get("status"))),
        text_of(arguments.get("description")),
        depends_on,
    )


def _says_refused(text: str) -> bool:
    """Whether the result of a `TaskUpdate` that is not marked as an error says that it changed nothing."""
    return not text.startswith("Updated task") and _REFUSED.match(text) is not None


def _id(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text_of(value)
