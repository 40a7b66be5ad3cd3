"""Which agent a record belongs to, and which call started which agent.

Three layouts, in the order of their age: side chains inside the session's own file (`isSidechain` without
`agentId`: an agent is a chain of `parentUuid`s with a beginning of its own), a file for each agent beside the
session's, and a folder of them. Parent and child meet by the `agentId` in the call's result, or in the
`progress` that comes before it; where there is neither, by the prompt, which is the child's first message.

The classes here are parts of the saved state of a `ClaudeReader`: their fields are JSON.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, TypeVar

from msgspec import Struct

from watchkeeper.transcripts.records import (
    GUESSED,
    MAIN,
    ImportedAgent,
    ImportedMessage,
    ItemStatus,
    Plan,
    PlanItem,
    Record,
    ReportedTotals,
    Rewind,
    count_of,
    distinct_items,
    list_of,
    object_of,
    seconds,
    text_of,
)

V = TypeVar("V")


def _trim(entries: dict[str, V], count: int) -> None:
    """Forget the oldest entries beyond `count`."""
    while len(entries) > count:
        del entries[next(iter(entries))]


# Teammates: agents of one process that their lead wakes by messages.
#
# Each time one is woken, the program begins another `agent-<id>.jsonl` with all of its history. They are one
# agent: known by its name and by its first prompt, which the call that started it has as well.

_PROMPT = re.compile(r"\s*<teammate-message\b[^>]*>(?P<prompt>.*)</teammate-message>\s*", re.DOTALL)


def teammate(name: str | None, prompt: str | None) -> str | None:
    """The key of the teammate that was started by that name and prompt."""
    digest = _digest(prompt)
    return f"teammate:{name}:{digest}" if name is not None and digest else None


def teammate_of(record: dict[str, Any], meta: dict[str, Any]) -> str | None:
    """The teammate whose log begins with that record; None if it is not a teammate's log."""
    prompt = _PROMPT.fullmatch(text_of(object_of(record.get("message")).get("content")) or "")
    return teammate(text_of(meta.get("agentType")) or text_of(meta.get("name")), prompt and prompt["prompt"])


# Rewinds: the person went back and said something else. Records are chained by `parentUuid`, so two prompts
# have one parent.
#
# Parallel calls make branches as well, so a branch of anything but prompts says nothing.

PROMPTS_KEPT = 300


class BranchBook(Struct):
    """The prompts of one agent's file, by what they follow."""

    messages: int = 0
    prompts: dict[str, int] = {}
    """Parent of a prompt (empty: the first of a chain) → how many messages there were before it."""

    def compacted(self) -> None:
        """After a compaction a chain without a parent is no rewind: in some logs each chain after one begins
        like that."""
        self.prompts.pop("", None)

    def note(self, record: dict[str, Any], owner: str, found: list[Record]) -> None:
        """Count the message that a line became, and put a `Rewind` before it if it replaces earlier ones."""
        for message in found:  # mostly the first; after the beginning of a session or an agent, or none
            if type(message) is ImportedMessage:
                break
        else:
            return
        if message.agent != owner:
            return
        if message.role == "user" and _is_prompt(record, message):
            before = self.prompts.setdefault(text_of(record.get("parentUuid")) or "", self.messages)
            _trim(self.prompts, PROMPTS_KEPT)
            if before < self.messages:
                rewind = Rewind(owner, "", self.messages - before, seconds(record.get("timestamp")))
                found.insert(found.index(message), rewind)
        self.messages += 1


def _is_prompt(record: dict[str, Any], message: ImportedMessage) -> bool:
    """Whether a person typed it, as far as the record shows."""
    content = message.content
    if type(content) is list:
        for block in content:  # most user messages by far are results
            if type(block) is dict and block.get("type") == "tool_result":
                return False
    if record.get("type") != "user" or record.get("isMeta") is True:
        return False
    uuid = text_of(record.get("uuid"))
    return uuid is not None and uuid != text_of(record.get("parentUuid"))


TIPS_KEPT = 1_000
"""Records of side chains whose agent is remembered between two readings; a chain goes on from its last."""
CALLS_KEPT = 200
"""Calls that wait for their agent, at most."""
_RUNNING = ("async_launched", "teammate_spawned", "queued")
_ENDED: dict[str, Any] = {"completed": "done", "failed": "failed", "killed": "cancelled"}


class AgentBook(Struct):
    """What one file said of its agents so far."""

    owner: str = MAIN
    """The agent whose file it is."""
    tips: dict[str, str] = {}
    """uuid of a record of an inline side chain → key of its agent."""
    calls: dict[str, list[str]] = {}
    """Spawning call → caller, digest of its prompt, description, type of agent, the agent once it is known,
    and the prompt."""
    joined: dict[str, str] = {}
    """Agent → the call that started it."""
    roles: dict[str, str] = {}

    def of(self, record: dict[str, Any], at: float | None, found: list[Record], prompt: Any = None) -> str:
        """Key of the agent whose record it is; adds an `ImportedAgent` where a chain begins."""
        if self.owner != MAIN:
            return self.owner
        if record.get("isSidechain") is not True:
            return MAIN
        agent = text_of(record.get("agentId"))
        uuid, parent = text_of(record.get("uuid")), text_of(record.get("parentUuid"))
        if agent is None and parent in self.tips:
            agent = self.tips[parent]
        elif agent is None and (parent is None or self._call_for(prompt) is not None):
            agent = f"{GUESSED}{uuid or '?'}"  # some versions hang the beginning of a chain below the call
            self._begin(agent, prompt, at, found)
        elif agent is None:
            agent = f"{GUESSED}{parent}"  # its beginning was lost, and its end may still be whole
        if uuid is not None:
            self.tips.pop(uuid, None)
            self.tips[uuid] = agent
            _trim(self.tips, TIPS_KEPT)
        return agent

    def _begin(self, agent: str, prompt: Any, at: float | None, found: list[Record]) -> None:
        call_id = self._call_for(prompt)
        goal = prompt if isinstance(prompt, str) else None
        if call_id is None:
            name = goal.strip()[:60] if goal else None
            found.append(ImportedAgent(agent, MAIN, name=name, goal=goal, at=at, status="working"))
            return
        self.calls[call_id][4] = agent
        caller, _, name, role, *_ = self.calls[call_id]
        found.append(
            ImportedAgent(agent, caller, call_id, name or None, role or None, goal, at=at, status="working")
        )

    def _call_for(self, prompt: Any) -> str | None:
        """The newest call with that prompt whose agent is not known yet."""
        if not (digest := _digest(prompt)):
            return None
        return next(
            (each for each, call in reversed(self.calls.items()) if call[1] == digest and not call[4]), None
        )

    def spawning(self, agent: str, call_id: str, arguments: dict[str, Any]) -> None:
        """A call that starts an agent was made."""
        prompt = arguments.get("prompt")
        name = text_of(arguments.get("description")) or text_of(arguments.get("name")) or ""
        role = text_of(arguments.get("subagent_type")) or ""
        self.calls[call_id] = [
            agent, _digest(prompt), name, role, "", prompt if isinstance(prompt, str) else "",
        ]  # fmt: skip
        _trim(self.calls, CALLS_KEPT)

    def _join(self, child: str, call_id: str) -> None:
        self.joined[child] = call_id
        _trim(self.joined, CALLS_KEPT)

    def progressed(
        self, agent: str, call_id: str | None, news: dict[str, Any], at: float | None, found: list[Record]
    ) -> None:
        """A `progress` record names the agent that a call started."""
        child = text_of(news.get("agentId"))
        if child is None or self.joined.get(child) == (call_id or ""):
            return
        self._join(child, call_id or "")
        call = self.calls.get(call_id or "")
        if call is None:
            found.append(ImportedAgent(child, agent, call_id, goal=text_of(news.get("prompt")), at=at))
        else:
            call[4] = child
            caller, _, name, role, _, goal = call
            found.append(
                ImportedAgent(child, caller, call_id, name or None, role or None, goal or None, at=at)
            )

    def answered(
        self,
        agent: str,
        call_id: str,
        outcome: dict[str, Any],
        failed: bool,
        at: float | None,
        found: list[Record],
    ) -> None:
        """A call has its result: which agent it started, and whether that one is done."""
        call = self.calls.get(call_id)
        child, prompt = text_of(outcome.get("agentId")), text_of(outcome.get("prompt"))
        if call is None and child is None:
            return
        running = outcome.get("isAsync") is True or outcome.get("status") in _RUNNING
        if not running:
            self.calls.pop(call_id, None)
        caller, _, name, role, known, goal = call or (agent, "", "", "", "", "")
        if child is None and outcome.get("status") == "teammate_spawned":
            child = teammate(text_of(outcome.get("name")), goal or prompt)
        child = child or known or (None if failed else f"call:{call_id}")
        if child is None:
            return  # the call was refused: no agent was ever started
        self._join(child, call_id)
        if call is not None and running:
            call[4], call[5] = child, ""  # reported here; the state stays small
        found.append(
            ImportedAgent(
                child,
                caller,
                call_id,
                name or text_of(outcome.get("description")),
                role or None,
                goal or prompt,
                at=at,
                status="working" if running else "failed" if failed else "done",
                reported=None if running else _reported(outcome),
            )
        )

    def outcome_of_background(self, outcome: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """The state of background agents was asked for, and some have ended."""
        if "task" not in outcome and "retrieval_status" not in outcome:
            return
        task = object_of(outcome.get("task"))
        ended = _ENDED.get(str(task.get("status"))) if task.get("task_type") == "local_agent" else None
        if (child := text_of(task.get("task_id"))) and ended:
            found.append(ImportedAgent(child, name=text_of(task.get("description")), at=at, status=ended))
        agents = object_of(outcome.get("agents")) if "retrieval_status" in outcome else {}
        found += (
            ImportedAgent(child, name=text_of(state.get("description")), at=at, status="done")
            for child, state in agents.items()
            if object_of(state).get("status") == "completed"
        )

    def learn_role(self, agent: str, role: str) -> bool:
        """Whether the role of the agent was not known before."""
        known = self.roles.get(agent) == role
        self.roles[agent] = role
        _trim(self.roles, CALLS_KEPT)
        return not known


def _reported(outcome: dict[str, Any]) -> ReportedTotals | None:
    """What a result says of the agent that worked for it; `totalTokens` are those of its last call."""
    tokens, took = count_of(outcome.get("totalTokens")), count_of(outcome.get("totalDurationMs"))
    if not (tokens or took):
        return None
    return ReportedTotals(tokens, took / 1000, count_of(outcome.get("totalToolUseCount")))


def _digest(prompt: Any) -> str:
    """A digest of a prompt; empty where there is none."""
    if isinstance(prompt, list):
        prompt = "\n".join(str(block.get("text", "")) for block in prompt if isinstance(block, dict))
    if not isinstance(prompt, str) or not prompt.strip():
        return ""
    return hashlib.blake2b(prompt.strip().encode("utf-8", "replace"), digest_size=12).hexdigest()


# Plans: the whole list at each `TodoWrite`, or single items by `TaskCreate` and `TaskUpdate`.

_STATUS: dict[str, ItemStatus] = {
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
_KEPT = {
    "TodoWrite": 20,
    "TaskCreate": CALLS_KEPT,
    "TaskUpdate": CALLS_KEPT,
}
"""Tools that change a plan, and how many calls of each may wait for their results."""
_UPDATED = ("taskId", "subject", "description", "status", "addBlockedBy")


class PlanBook(Struct):
    """Makes versions of the plan from calls of its tools: each once its result says that it was carried out.

    A call that was refused, that failed or that has no result changes nothing.
    """

    waiting: dict[str, tuple[str, float | None, Any]] = {}
    """Call that waits for its result → tool, when it was called (the time of the change), and what it asks
    for: a list, subject and description, or the fields that change."""

    def called(self, name: str, call_id: str, arguments: dict[str, Any], at: float | None) -> None:
        """A tool was called."""
        if name not in _KEPT:
            return
        asked: Any = None
        if name == "TodoWrite" and isinstance(todos := arguments.get("todos"), list):
            asked = [
                {field: todo[field] for field in ("content", "status") if field in todo}
                for todo in todos
                if isinstance(todo, dict)
            ]
        elif name == "TaskCreate" and (subject := text_of(arguments.get("subject"))):
            asked = [subject, text_of(arguments.get("description")) or ""]
        elif name == "TaskUpdate" and _update(arguments) is not None:
            asked = {field: arguments[field] for field in _UPDATED if field in arguments}
        if asked is None:
            return
        self.waiting[call_id] = (name, at, asked)
        same = [each for each, call in self.waiting.items() if call[0] == name]
        if len(same) > _KEPT[name]:
            del self.waiting[same[0]]

    def refused(self, call_id: str) -> None:
        """A call was denied, or failed: what it asked for did not happen."""
        self.waiting.pop(call_id, None)

    def answered(
        self,
        agent: str,
        call_id: str,
        outcome: dict[str, Any],
        text: str,
        at: float | None,
        found: list[Record],
    ) -> None:
        """A call has its result: that of `TaskCreate` has the item's id; that of `TaskUpdate` shows whether
        there is such an item."""
        tool, called_at, asked = self.waiting.pop(call_id, ("", None, None))
        at = at if called_at is None else called_at
        done = outcome.get("success") is not False
        if tool == "TodoWrite":
            found.append(Plan(agent, tool, _todos(asked), whole=True, plan=agent, at=at))
        elif tool == "TaskUpdate" and done and not _says_refused(text) and (changed := _update(asked)):
            found.append(Plan(agent, tool, [changed], whole=False, at=at))
        elif tool == "TaskCreate" and done:
            created = _CREATED.search(text)
            item_id = _id(object_of(outcome.get("task")).get("id")) or (created[1] if created else call_id)
            item = PlanItem(item_id, asked[0], "pending", asked[1] or None, where="new")
            found.append(Plan(agent, tool, [item], whole=False, at=at))


def waiting_calls(saved: dict[str, Any]) -> dict[str, Any]:
    """`PlanBook.waiting` from a saved state; earlier versions saved the calls of each tool apart."""
    times = saved.get("called_at", {})
    return {
        call_id: (tool, times.get(call_id), asked)
        for tool, name in (("TodoWrite", "listing"), ("TaskUpdate", "updating"), ("TaskCreate", "creating"))
        for call_id, asked in saved.get(name, {}).items()
    } | dict(saved.get("waiting", {}))


def _todos(todos: list[dict[str, Any]]) -> list[PlanItem]:
    return distinct_items(
        (title, _STATUS.get(str(todo.get("status")), "pending"))
        for todo in todos
        if (title := text_of(todo.get("content"))) is not None
    )


def _update(arguments: dict[str, Any]) -> PlanItem | None:
    item_id = _id(arguments.get("taskId"))
    if item_id is None:
        return None
    needs = list_of(arguments.get("addBlockedBy"))
    return PlanItem(
        item_id,
        text_of(arguments.get("subject")),
        _STATUS.get(str(arguments.get("status"))),
        text_of(arguments.get("description")),
        tuple(found for each in needs if (found := _id(each))) if needs else None,
    )


def _says_refused(text: str) -> bool:
    """Whether the result of a `TaskUpdate` that is not marked as an error says that it changed nothing."""
    return not text.startswith("Updated task") and _REFUSED.match(text) is not None


def _id(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text_of(value)
