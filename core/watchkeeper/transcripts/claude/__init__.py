"""Claude Code's logs: `~/.claude/projects/<folder>/<session>.jsonl`, and those of its sub-agents."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from msgspec import Struct, convert, field, to_builtins

from watchkeeper.records.text import one_line
from watchkeeper.records.usage import modifiers_of, reported_calls, searches_of, token_counts
from watchkeeper.store.names import described
from watchkeeper.transcripts.records import (
    GUESSED,
    MADE_UP,
    MAIN,
    Failure,
    ImportedAgent,
    ImportedCompaction,
    ImportedMessage,
    ItemStatus,
    ModelCall,
    PlaceIds,
    Plan,
    PlanItem,
    Program,
    Raw,
    Record,
    ReportedTotals,
    Rewind,
    Session,
    Skipped,
    Source,
    SpawnFailure,
    Summary,
    ToolCall,
    ToolResult,
    count_of,
    distinct_items,
    id_of,
    list_of,
    no_record,
    object_of,
    parse,
    parser,
    seconds,
    text_of,
)

# --- Sub-agents -----------------------------------------------------------------------------------------
#
# Which agent a record belongs to, and which call started which agent. Three layouts, in the order of their age: side
# chains inside the session's own file (`isSidechain` without `agentId`: an agent is a chain of `parentUuid`s with a
# beginning of its own), a file for each agent beside the session's, and a folder of them. Parent and child meet by the
# `agentId` in the call's result, or in the `progress` that comes before it; where there is neither, by the prompt, which
# is the child's first message.
#
# The classes here are parts of the saved state of a `ClaudeReader`: their fields are JSON.

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
    return teammate(text_of(meta.get("name")) or text_of(meta.get("agentType")), prompt and prompt["prompt"])


def _name_and_role(meta: dict[str, Any], *, is_teammate: bool) -> tuple[str | None, str | None]:
    """What an agent is called by its `.meta.json`: a teammate by its own name before what it is to do."""
    name, kind = text_of(meta.get("name")), text_of(meta.get("agentType"))
    description = text_of(meta.get("description"))
    if not (is_teammate or meta.get("taskKind") == TEAMMATE):
        return description or name, kind
    name = name or kind
    role = text_of(meta.get("customAgentType")) or (kind if kind != name else None)
    return described(name or "", description or "") or None, role or "teammate"


# Workflows: scripts that the program runs in the background, with agents of their own.
#
# A run has a folder, `<session>/subagents/workflows/<run>/`, with the logs of its agents and a journal: `started` and
# `result` for each agent, without times; from 2.1.28x on with the agent's label and phase, which its `.meta.json` has as
# well. When the run ends, `<session>/workflows/<run>.json` tells all of it at once; before, that alone named labels and
# phases. The result of the call that started it names the run and its task, and a notification of that task tells its
# end. They come in any order, and each may be missing.

RUN_TOOL = "Workflow"
TEAMMATE = "in_process_teammate"
_RUN_ID = re.compile(r"\bwf_[0-9A-Za-z-]{1,80}")
_SCRIPT_NAME = re.compile(r"""\bname\s*:\s*(["'`])(?P<name>[^"'`\n]{1,200})\1""")
RUNS_KEPT = 100


def run_key(run: str) -> str:
    """The key of a workflow's run."""
    return f"workflow:{run}"


def place_in_run(run: str, phase: str | None, at: float | None, found: list[Record]) -> str:
    """Key of what an agent of a run is below: the run, or its phase; both are added."""
    key = run_key(run)
    found.append(ImportedAgent(key, at=at, unit="workflow run"))
    if phase is None:
        return key
    below = f"{key}/{phase}"
    found.append(ImportedAgent(below, key, name=phase, at=at, unit="workflow phase"))
    return below


def run_of(path: Path) -> str:
    """The run to whose folder a file belongs; empty for others."""
    parts = path.parts
    for place in range(len(parts) - 3, 0, -1):
        if parts[place - 1 : place + 1] == ("subagents", "workflows"):
            return parts[place + 1]
    return ""


# Rewinds: the person went back and said something else. Records are chained by `parentUuid`, so two prompts
# have one parent.
#
# Parallel calls make branches as well, so a branch of anything but prompts says nothing.

PROMPTS_KEPT = 300


class BranchPoints(Struct):
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


QUEUED_KEPT = 20


class PromptQueue(Struct):
    """What was typed while a turn ran. Claude Code notes `enqueue`; then `remove` when the running turn took it,
    `dequeue` when it became a prompt of its own, which has a record, or `popAll` when the person took all back.

    Some versions repeat what the turn took in an attachment, before or after (recorded: 2.0.67 to 2.1.207).
    """

    waiting: list[str] = []
    """What was enqueued; empty for a notification."""
    delivered: list[str] = []
    """Digests of what an attachment said, and no `remove` has."""
    said: list[str] = []
    """Digests of what a `remove` said, and no attachment has."""

    def take(self, operation: Any, text: str) -> str:
        """Note an operation; what the running turn took, unless a record has it."""
        if operation == "enqueue":
            self.waiting = [*self.waiting, "" if notification(text) else text][-QUEUED_KEPT:]
        elif operation == "popAll":
            self.waiting = []
        elif operation in ("dequeue", "remove"):
            place = self.waiting.index(text) if text in self.waiting else 0
            taken = self.waiting.pop(place) if self.waiting and (text in self.waiting or not text) else text
            if operation == "remove" and taken and notification(taken) is None:
                return taken if not _pop(self.delivered, taken) and _push(self.said, taken) else ""
        return ""

    def was_said(self, text: str) -> bool:
        """Whether a `remove` said this before the attachment that repeats it; one that did not is expected."""
        return _pop(self.said, text) or not _push(self.delivered, text)


def _push(digests: list[str], text: str) -> bool:
    digests.append(_digest(text))
    del digests[:-QUEUED_KEPT]
    return True


def _pop(digests: list[str], text: str) -> bool:
    if (digest := _digest(text)) not in digests:
        return False
    digests.remove(digest)
    return True


TIPS_KEPT = 1_000
"""Records of side chains whose agent is remembered between two readings; a chain goes on from its last."""
CALLS_KEPT = 200
"""Calls that wait for their agent, at most."""
REASON_CHARS = 300
_RUNNING = ("async_launched", "teammate_spawned", "queued")
_ENDED: dict[str, Any] = {
    "completed": "done",
    "failed": "failed",
    "killed": "cancelled",
    "stopped": "cancelled",
}
_NOTIFICATION = re.compile(
    r"\s*(?:\[SYSTEM NOTIFICATION[^\]<]*\][^<]*)?<(?P<form>task|agent)-notification>"
    r"(?P<head>.*?)(?:<result>|</(?P=form)-notification>|\Z)",
    re.DOTALL,
)
_IN_BACKGROUND = re.compile(r"Command running in background with ID: (?P<task>[\w-]{1,80})")
_STOPPING_TOOLS = frozenset({"TaskStop", "KillShell", "KillBash"})
_SHELLS = frozenset({"Bash", "PowerShell"})
RETURNED_NOTHING = "it returned nothing to its workflow"
NAME_CHARS = 60
_AGENT_ID = re.compile(r"a[0-9a-f]{6,}")
"""An agent's id among those of tasks; commands, monitors and workflows have others."""
_TAG = re.compile(
    r"<(?P<name>task-id|agent-id|tool-use-id|status|summary)>(?P<value>.*?)</(?P=name)>", re.DOTALL
)


def notification(text: str) -> dict[str, str] | None:
    """What a notification says of a task that worked in the background, by its tags; None for any other text.

    What the task itself returned follows its `<result>`, and is not read.
    """
    match = _NOTIFICATION.match(text)
    if match is None:
        return None
    found: dict[str, str] = {}
    for tag in _TAG.finditer(match["head"]):
        found.setdefault(tag["name"], tag["value"].strip())
    return found


class AgentIndex(Struct):
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
    stops: dict[str, str] = {}
    """Calls that stop a task, and wait for their result → the task."""
    launches: dict[str, list[str]] = {}
    """Calls that start a workflow or a command, and wait for their result → caller and name."""
    tasks: dict[str, str] = {}
    """Task in the background, and the call that started it → the workflow or command."""

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
        name = described(text_of(arguments.get("name")) or "", text_of(arguments.get("description")) or "")
        role = text_of(arguments.get("subagent_type")) or ""
        self.calls[call_id] = [
            agent, _digest(prompt), name, role, "", prompt if isinstance(prompt, str) else "",
        ]  # fmt: skip
        _trim(self.calls, CALLS_KEPT)

    def launching(self, agent: str, call_id: str, name: str) -> None:
        """A call was made that starts a workflow, or a command that may go on in the background."""
        self.launches[call_id] = [agent, name]
        _trim(self.launches, CALLS_KEPT)

    def launched(
        self,
        agent: str,
        call_id: str,
        outcome: dict[str, Any],
        said: str,
        failed: bool,
        at: float | None,
        found: list[Record],
    ) -> None:
        """Such a call has its result: a run, or a task in the background."""
        caller, name = self.launches.pop(call_id, (agent, ""))
        run = text_of(outcome.get("runId")) if outcome.get("taskType") in (None, "local_workflow") else None
        if run is None and (named := _RUN_ID.search(said)) is not None:
            run = named[0]
        task = text_of(outcome.get("backgroundTaskId")) or ""
        if not task and (shell := _IN_BACKGROUND.match(said)) is not None:
            task = shell["task"]
        if task:
            key = f"command:{task}"
            found.append(
                ImportedAgent(
                    key, caller, call_id, name or None, at=at, status="working", unit="background command"
                )
            )
        elif run is not None and len(run) <= REASON_CHARS:
            key, task = run_key(run), text_of(outcome.get("taskId")) or ""
            running = not failed and (outcome.get("status") in _RUNNING or outcome.get("status") is None)
            told = text_of(outcome.get("workflowName")) or name or None
            status: Any = (
                "working" if running else "failed" if failed else _ENDED.get(str(outcome.get("status")))
            )
            found.append(
                ImportedAgent(
                    key, caller, call_id, told, goal=text_of(outcome.get("summary")), at=at, status=status,
                    ended=status != "working" and status is not None, unit="workflow run",
                )
            )  # fmt: skip
        else:
            return
        for each in (call_id, task):
            if each:
                self.tasks.pop(each, None)
                self.tasks[each] = key
        _trim(self.tasks, CALLS_KEPT)

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
        *,
        denied: bool = False,
        reason: str = "",
    ) -> None:
        """A call has its result: which agent it started, and whether that one is done."""
        if (task := self.stops.pop(call_id, None)) is not None and not failed:
            found.append(
                ImportedAgent(task, at=at, status="cancelled", reason="stopped by the lead agent", ended=True)
            )
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
            # Its agent may have a log that names the call; if the call was refused, there is none.
            found.append(SpawnFailure(call_id, "cancelled" if denied else "failed", reason, at))
            return
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
                status="working" if running else "cancelled" if denied else "failed" if failed else "done",
                reason=reason if failed else None,
                reported=None if running else _reported(outcome),
                ended=not running,
            )
        )

    def outcome_of_background(self, outcome: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """The state of background agents was asked for, and some have ended."""
        shell = self.tasks.get(text_of(outcome.get("shellId")) or "")
        if shell is not None and (ended := _ENDED.get(str(outcome.get("status")))) is not None:
            found.append(ImportedAgent(shell, at=at, status=ended, ended=True))
        if "task" not in outcome and "retrieval_status" not in outcome:
            return
        task = object_of(outcome.get("task"))
        ended = _ENDED.get(str(task.get("status"))) if task.get("task_type") == "local_agent" else None
        if (unit := self.tasks.get(text_of(task.get("task_id")) or "")) is not None:
            if (ended := _ENDED.get(str(task.get("status")))) is not None:
                found.append(ImportedAgent(unit, at=at, status=ended, ended=True))
        elif (child := text_of(task.get("task_id"))) and ended:
            found.append(
                ImportedAgent(child, name=text_of(task.get("description")), at=at, status=ended, ended=True)
            )
        agents = object_of(outcome.get("agents")) if "retrieval_status" in outcome else {}
        found += (
            ImportedAgent(child, name=text_of(state.get("description")), at=at, status="done", ended=True)
            for child, state in agents.items()
            if object_of(state).get("status") == "completed"
        )

    def notified(self, text: str, at: float | None, found: list[Record]) -> bool:
        """The program tells the agent of this file that a task in the background has ended; whether it does.

        Not every task is an agent: commands and workflows have such ends as well, monitors others.
        """
        said = notification(text)
        if said is None:
            return False
        call_id, ended = said.get("tool-use-id", ""), _ENDED.get(said.get("status", ""))
        task = said.get("task-id") or said.get("agent-id") or ""
        call = self.calls.get(call_id)
        # An agent below another one may be reported here, where its call is not known.
        is_agent = task in self.joined or "agent-id" in said or _AGENT_ID.fullmatch(task) is not None
        unit = self.tasks.get(task) or self.tasks.get(call_id)
        child = unit or (task if is_agent else call[4] if call is not None else "")
        if child and ended is not None:
            reason = None if ended == "done" else said.get("summary") or None
            found.append(ImportedAgent(child, at=at, status=ended, reason=reason, ended=True))
        return True

    def learn_role(self, agent: str, role: str) -> bool:
        """Whether the role of the agent was not known before."""
        known = self.roles.get(agent) == role
        self.roles[agent] = role
        _trim(self.roles, CALLS_KEPT)
        return not known


def _name_of_run(arguments: dict[str, Any]) -> str:
    """What a call of `Workflow` calls the run: its own name, that of its script, or what it is for."""
    script = text_of(arguments.get("script"))
    named = _SCRIPT_NAME.search(script[:4_000]) if script is not None else None
    path = text_of(arguments.get("scriptPath"))
    name = text_of(arguments.get("name")) or (named and named["name"]) or (path and Path(path).stem)
    return one_line(name or text_of(arguments.get("description")) or "", NAME_CHARS)


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
_CHANGED = re.compile(r"Updated task|Todos have been modified|Task #\S+ created")
_REFUSED = re.compile(
    r"\s*(?:<tool_use_error>|Error\b|.{0,200}\b(?:denied|rejected|refused|not (?:allowed|found|granted)|blocked|hook|failed|interrupted)\b)",
    re.IGNORECASE,
)
_KEPT = {
    "TodoWrite": 20,
    "TaskCreate": CALLS_KEPT,
    "TaskUpdate": CALLS_KEPT,
}
"""Tools that change a plan, and how many calls of each may wait for their results."""
_UPDATED = ("taskId", "subject", "description", "status", "addBlockedBy")


class PlanBuilder(Struct):
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
        done = outcome.get("success") is not False and not _says_unchanged(text)
        if tool == "TodoWrite" and done:
            found.append(Plan(agent, tool, _todos(asked), whole=True, plan=agent, at=at))
        elif tool == "TaskUpdate" and done and (changed := _update(asked)):
            found.append(Plan(agent, tool, [changed], whole=False, at=at))
        elif tool == "TaskCreate" and done:
            created = _CREATED.search(text)
            item_id = _id(object_of(outcome.get("task")).get("id")) or (created[1] if created else call_id)
            item = PlanItem(item_id, asked[0], "pending", asked[1] or None, where="new")
            found.append(Plan(agent, tool, [item], whole=False, at=at))


def waiting_calls(saved: dict[str, Any]) -> dict[str, Any]:
    """`PlanBuilder.waiting` from a saved state; earlier versions saved the calls of each tool apart."""
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


def _says_unchanged(text: str) -> bool:
    """Whether the result of such a call that is not marked as an error says that it changed nothing."""
    return _CHANGED.match(text) is None and _REFUSED.match(text) is not None


def _id(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text_of(value)


# The types of record in the logs of Claude Code, up to version 2.1.332.

CONVERSATION = frozenset({"user", "assistant", "system", "summary", "custom-title", "ai-title", "progress"})
"""What is understood, at least in part."""

HOUSEKEEPING = frozenset(
    {
        "agent-name", "agent-setting", "atis-latch", "attachment", "attribution-snapshot", "bridge-session",
        "content-replacement", "cost-state", "file-history-snapshot", "frame-link", "last-prompt", "launched", "mode",
        "permission-mode", "pr-link",
        "queue-operation", "relocated", "result", "saved_hook_context", "speculation-accept", "started", "tag", "teleported-from",
        "worktree-state",
    }
)  # fmt: skip
"""What is known, not shown: kept as it is."""

SPAWNING_TOOLS = frozenset({"Task", "Agent"})
"""Tools that start a sub-agent; the second name came with version 2.1.63."""

SYNTHETIC = "<synthetic>"
"""The model of a message that Claude Code made itself: an error, an interruption."""


# The fields of a line that the reader uses. The parser skips all others: half of a log is `toolUseResult`, which
# repeats the message, and the messages inside `progress`. A field that the reader reads must be declared here;
# tests feed it every record with and without the rest.


def _fields(name: str, *names: str, **objects: Any) -> Any:
    """A `TypedDict` with these fields, of any value, and with these objects; each may be missing."""
    return TypedDict(name, dict.fromkeys(names, Any) | objects, total=False)  # type: ignore[operator]


Usage = _fields(
    "Usage", "input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "cache_creation",
    "server_tool_use", "service_tier", "speed", "inference_geo", "iterations",
)  # fmt: skip
"""What a call used."""

LoggedMessage = _fields("LoggedMessage", "id", "model", "content", "stop_reason", usage=Usage | None)
"""A message as it went over the API."""

ToolOutcomeFields = _fields(
    "ToolOutcomeFields", "agentId", "totalDurationMs", "totalTokens", "totalToolUseCount", "name", "isAsync", "status",
    "success", "description", "prompt", "task", "agents", "retrieval_status", "backgroundTaskId", "shellId", "runId",
    "taskId", "taskType", "workflowName", "summary",
)  # fmt: skip
"""What a call's result, in the program's own form, says of agents and tasks."""

Reply = _fields("Reply", "id", "model", "stop_reason", usage=Usage | None)
"""A sub-agent's reply inside a `progress` record: what it used."""

Said = _fields("Said", "type", "requestId", "timestamp", message=Reply | str | None)
"""A message to or from a sub-agent, inside a `progress` record."""

News = _fields("News", "type", "agentId", "prompt", message=Said | str | None)
"""The content of a `progress` record."""

Attachment = _fields("Attachment", "type", "prompt", "content", "hookName", "hookEvent", "blockingError")
"""What goes with a prompt, or what a hook sent to the model."""

Entry = _fields(
    "Entry", "type", "subtype", "uuid", "parentUuid", "timestamp", "cwd", "version", "forkedFrom", "isSidechain", "agentId",
    "attributionAgent", "requestId", "isMeta", "isCompactSummary", "isApiErrorMessage", "isAbortedMidStream",
    "toolDenialKind", "sourceToolUseID", "parentToolUseID", "compactMetadata", "microcompactMetadata", "content", "error",
    "apiRefusalExplanation", "summary", "aiTitle", "customTitle", "operation", "result", "label", "phase",
    message=LoggedMessage | None,
    toolUseResult=ToolOutcomeFields | list[Any] | str | int | float | bool | None,
    data=News | None,
    attachment=Attachment | None,
)  # fmt: skip
"""One record."""

parse_entry = parser(Entry)
"""The record of a line, with these fields at least; None where the line holds none."""


# What a reply says of the model call that made it.

_new = tuple.__new__
"""Makes a named tuple at a third of the cost."""


_USUAL = (
    (None, None, None), ("standard", "standard", "not_available"), (None, "standard", None),
    (None, "standard", "not_available"), ("standard", "standard", None),
)  # fmt: skip
"""Speed, tier and region of requests at list prices: looked for first, since nearly every reply has one of these."""


class ModelCallReader:
    """The model calls of one file. Each block of a reply has all of its usage, which is read once."""

    def __init__(self) -> None:
        self._usage: dict[str, Any] = {}
        self._read: list[ModelCall] = []
        """What that usage was read as."""

    def calls(
        self,
        agent: str,
        key: str,
        model: str | None,
        usage: dict[str, Any],
        stop_reason: Any,
        at: float | None,
        request: str | None,
    ) -> list[ModelCall]:
        """The calls of a block, whose `key` names the reply: the reply's own first."""
        read, name = self._read, _model_ref(model)
        if (
            read
            and (read[0][1], read[0][9], read[0][0], read[0][2]) == (key, stop_reason, agent, name)
            and self._usage == usage
        ):
            return [_new(ModelCall, (*call[:10], at, *call[11:])) for call in read]
        ended = text_of(stop_reason)
        attributes = (usage.get("speed"), usage.get("service_tier"), usage.get("inference_geo"))
        modifiers: tuple[str, ...] = ()
        searches = 0
        if attributes not in _USUAL or "server_tool_use" in usage:
            modifiers, searches = modifiers_of(usage), searches_of(usage)
        if not usage.get("iterations") or type(usage["iterations"]) is not list:
            # Nearly every reply: one call.
            counts_of = token_counts(usage)
            self._usage = usage
            self._read = read = [
                _new(
                    ModelCall,
                    (agent, key, name, *counts_of, ended is not None, ended, at, 0.0, request, None, False, "",
                     "turn", None, modifiers, searches),
                )
            ]  # fmt: skip
            return read
        read, counts = [], Counter[str]()
        for call in reported_calls(usage, model):
            used = call.usage
            counts[call.kind] += 1
            read.append(
                _new(
                    ModelCall,
                    (
                        agent,
                        key if call.kind == "turn" else f"{key}#{call.kind}{counts[call.kind]}",
                        name if call.model is None else _model_ref(call.model),
                        used.input_tokens,
                        used.output_tokens,
                        used.cache_read_tokens,
                        used.cache_write_tokens,
                        call.hour_writes,
                        ended is not None and call.exact,
                        ended,
                        at,
                        0.0,
                        request,
                        None,
                        False,
                        "",
                        call.kind,
                        call.context,
                        modifiers,
                        searches if call.kind == "turn" else 0,
                    ),
                )
            )
        self._usage, self._read = usage, read
        return read


@lru_cache(maxsize=256)
def _model_ref(model: str | None) -> str:
    """`provider/model`; models that another cloud serves have names in its manner."""
    if model is None:
        return "unknown"
    return f"{'aws' if 'anthropic.' in model else 'google' if '@' in model else 'anthropic'}/{model}"


# Reading one log, line by line.
#
# What is known of the format is in docs/log-formats.md. A line is one record: one content block of a reply, one
# user message, one note of the program. Records are chained by `parentUuid`; the file is only ever appended to,
# so that what a compaction dropped is still in it.

_NOT_FOR_US = "known, not shown"
_TITLES = {"summary": ("summary", 1), "ai-title": ("aiTitle", 2), "custom-title": ("customTitle", 3)}
"""Type of record → its field, and which one wins."""


_DENIALS = (
    "The user doesn't want to proceed with this tool use",
    "The user doesn't want to take this action",
)
"""How the result of a call that was not allowed begins, also where its mark as an error was lost."""
_ERRORS = ("<tool_use_error>",)
_INTERRUPTED = "[Request interrupted by user"


class ClaudeReader(Struct, dict=True):
    """A `LineReader`. Its fields are its saved state."""

    session: str
    """Key of the session that the file belongs to."""
    owner: str = MAIN
    """Key of the agent whose file it is; `MAIN` for a session's own."""
    is_helper: bool = False
    """The file is that of a fork that the program made for a task of its own."""
    is_journal: bool = False
    """The file is the journal of a workflow."""
    run: str = ""
    """The run of a workflow to which the file belongs."""
    meta: dict[str, Any] = {}
    """The `.meta.json` beside a sub-agent's file."""
    opened: bool = False
    """The session was named."""
    workspace_known: bool = False
    title_rank: int = 0
    compacted: str | None = None
    """Whose context was compacted, until the summary comes."""
    agents: AgentIndex = field(default_factory=AgentIndex)
    plans: PlanBuilder = field(default_factory=PlanBuilder)
    branches: BranchPoints = field(default_factory=BranchPoints)
    places: PlaceIds = field(default_factory=PlaceIds)
    unnamed: list[Any] = []
    """The reply without a request id on the line before, if that was one: its key, then what the next line of it must
    have as well."""
    queue: PromptQueue = field(default_factory=PromptQueue)

    def __post_init__(self) -> None:
        self.agents.owner = self.owner
        self._calls = ModelCallReader()

    @classmethod
    def restore(cls, state: dict[str, Any]) -> ClaudeReader:
        """The reader with that saved state."""
        plans = {"waiting": waiting_calls(state.get("plans", {}))}
        return convert({"opened": True} | state | {"plans": plans}, cls)

    def save(self) -> dict[str, Any]:
        return to_builtins(self)  # type: ignore[no-any-return]

    def feed(self, line: int, data: bytes) -> list[Record]:
        record = parse_entry(data)
        if record is None:
            return no_record(data, self.session, opened=self.opened)
        found: list[Record] = []
        if not (self.opened and self.workspace_known):
            self._open(record, found)
        _handler_of(record)(self, record, found)
        self.branches.note(record, self.owner, found)
        return found

    def _open(self, record: dict[str, Any], found: list[Record]) -> None:
        """Name the session with the first record, and its folder with the first that tells it."""
        workspace = text_of(record.get("cwd"))
        if self.opened and workspace is None:
            return
        at = seconds(record.get("timestamp"))
        origin = text_of(object_of(record.get("forkedFrom")).get("sessionId"))
        found.append(Session(self.session, workspace, None, text_of(record.get("version")), origin, at))
        if not self.opened and self.owner != MAIN:
            meta = self.meta
            name, role = _name_and_role(meta, is_teammate=self.owner.startswith("teammate:"))
            call_id, parent = text_of(meta.get("toolUseId")), text_of(meta.get("parentAgentId"))
            if self.run and call_id is None and parent is None:
                parent = place_in_run(self.run, text_of(meta.get("workflowPhase")), at, found)
            role = role or text_of(record.get("attributionAgent"))
            found.append(ImportedAgent(self.owner, parent, call_id, name, role, at=at))
        self.opened = True
        self.workspace_known = workspace is not None

    # Replies.

    def _assistant(self, record: dict[str, Any], found: list[Record]) -> None:
        message = object_of(record.get("message"))
        content = message.get("content")
        if not isinstance(content, list | str):
            found.append(Raw("assistant", "a message without content"))
            return
        at = seconds(record.get("timestamp"))
        uid = _uid(record) or self._place_of("assistant", at, content)
        agent = self.agents.of(record, at, found)
        if agent != MAIN:
            self._hint(record, agent, found)
        request, message_id = id_of(record.get("requestId")), id_of(message.get("id"))
        usage = message.get("usage")
        if request is not None:
            key, self.unnamed = f"{request}:{message_id or ''}", []
        else:
            key = self._unnamed_key(agent, message_id, uid, object_of(usage))
        if (text := _compacted_by_provider(content)) is not None:
            found.append(ImportedCompaction(agent, f"{uid}/compaction", "server", at))
            found.append(Summary(agent, f"{uid}/summary", text, at))
        found.append(_new(ImportedMessage, (agent, uid, "assistant", content, at, key, False, "")))
        model = text_of(message.get("model"))
        failed = record.get("isApiErrorMessage") is True
        if failed or model == SYNTHETIC:
            said = _plain(content)
            if failed or record.get("error"):
                found.append(Failure(agent, "error", said or "an API error", at))
        elif isinstance(usage, dict):
            found += self._calls.calls(agent, key, model, usage, message.get("stop_reason"), at, request)
            if self.is_helper and _plain(content).strip():
                # Such a fork is made for one reply, which no other record reports.
                found.append(ImportedAgent(agent, at=at, status="done", ended=True))
        if record.get("isAbortedMidStream") is True:
            found.append(Failure(agent, "interrupted", "the reply was interrupted", at))
        for place, block in enumerate(content if isinstance(content, list) else ()):
            if isinstance(block, dict) and block.get("type") == "tool_use":
                self._tool_use(agent, block, text_of(block.get("id")) or f"{uid}.{place}", at, found)

    def _unnamed_key(self, agent: str, message_id: str | None, uid: str, usage: dict[str, Any]) -> str:
        """The key of a reply that names no request. A relay may give one message id to all of them, so that only
        adjacent lines with equal input are one reply."""
        same = [
            agent,
            message_id or "",
            *(usage.get(name) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")),
        ]  # fmt: skip
        if not self.unnamed or self.unnamed[1:] != same:
            self.unnamed = [f":{message_id or ''}@{uid}", *same]
        return str(self.unnamed[0])

    def _tool_use(
        self, agent: str, block: dict[str, Any], call_id: str, at: float | None, found: list[Record]
    ) -> None:
        name = text_of(block.get("name")) or "?"
        found.append(ToolCall(agent, call_id, name, at))
        arguments = block.get("input")
        if not isinstance(arguments, dict):
            return
        if name in SPAWNING_TOOLS:
            self.agents.spawning(agent, call_id, arguments)
        elif name in _STOPPING_TOOLS:
            task = text_of(arguments.get("task_id")) or text_of(arguments.get("shell_id")) or ""
            if (unit := self.agents.tasks.get(task)) is not None or _AGENT_ID.fullmatch(task):
                self.agents.stops[call_id] = unit or task
                _trim(self.agents.stops, CALLS_KEPT)
        elif name == RUN_TOOL:
            self.agents.launching(agent, call_id, _name_of_run(arguments))
        elif name in _SHELLS:
            line = text_of(arguments.get("description")) or text_of(arguments.get("command")) or ""
            self.agents.launching(agent, call_id, one_line(line, NAME_CHARS))
        else:
            self.plans.called(name, call_id, arguments, at)

    def _place_of(self, kind: str, at: float | None, content: Any) -> str:
        """The id of a record that has none: by the call that it makes or answers, else by its place."""
        for block in content if isinstance(content, list) else ():
            call_id = id_of(block.get("id") or block.get("tool_use_id")) if isinstance(block, dict) else None
            if call_id is not None:
                return f"{MADE_UP}{kind}:{call_id}"
        return self.places.of(f"{self.session}/{self.owner}", at, kind, content)

    def _hint(self, record: dict[str, Any], agent: str, found: list[Record]) -> None:
        role = record.get("attributionAgent")
        if isinstance(role, str) and self.agents.learn_role(agent, role):
            found.append(ImportedAgent(agent, role=role))

    # What the user said, and results.

    def _user(self, record: dict[str, Any], found: list[Record]) -> None:
        self.unnamed = []
        content = object_of(record.get("message")).get("content")
        if not isinstance(content, list | str):
            found.append(Raw("user", "a message without content"))
            return
        at = seconds(record.get("timestamp"))
        uid = _uid(record) or self._place_of("user", at, content)
        agent = self.agents.of(record, at, found, prompt=content)
        if record.get("isCompactSummary") is True:
            compacted, self.compacted = self.compacted, None
            found.append(Summary(agent if compacted is None else compacted, uid, _plain(content), at))
            return
        found.append(
            _new(ImportedMessage, (agent, uid, "user", content, at, "", record.get("isMeta") is True, ""))
        )
        outcome = record.get("toolUseResult")
        for block in content if isinstance(content, list) else ({"text": content},):
            if not isinstance(block, dict):
                continue
            if block.get("type") == "tool_result":
                self._tool_result(agent, record, block, outcome, at, found)
            elif isinstance(text := block.get("text"), str):
                if text.startswith(_INTERRUPTED):
                    found.append(Failure(agent, "interrupted", text, at))
                else:
                    self.agents.notified(text, at, found)
        if isinstance(outcome, dict):
            self.agents.outcome_of_background(outcome, at, found)

    def _tool_result(
        self,
        agent: str,
        record: dict[str, Any],
        block: dict[str, Any],
        outcome: Any,
        at: float | None,
        found: list[Record],
    ) -> None:
        call_id = text_of(block.get("tool_use_id")) or text_of(record.get("sourceToolUseID"))
        if call_id is None:
            return
        said = _plain(block.get("content"))
        denied = record.get("toolDenialKind") is not None or said.startswith(_DENIALS)
        failed = denied or block.get("is_error") is True or said.startswith(_ERRORS)
        found.append(
            ToolResult(agent, call_id, "denied" if denied else "error" if failed else "done", at, said[:200])
        )
        answer = object_of(outcome)
        self.agents.answered(
            agent,
            call_id,
            answer,
            failed,
            at,
            found,
            denied=denied or said.startswith(_INTERRUPTED),
            reason=said[:REASON_CHARS],
        )
        if call_id in self.agents.launches:
            self.agents.launched(agent, call_id, answer, said, failed, at, found)
        if failed or _says_refused(outcome):
            self.plans.refused(call_id)
        else:
            self.plans.answered(agent, call_id, answer, said, at, found)

    # Notes of the program.

    def _note(self, record: dict[str, Any], found: list[Record]) -> tuple[str, str, float | None]:
        """Agent, id and time of a note of the program."""
        self.unnamed = []
        at = seconds(record.get("timestamp"))
        uid = _uid(record) or self._place_of(f"system/{record.get('subtype')}", at, record.get("content"))
        return self.agents.of(record, at, found), uid, at

    def _compacted(self, record: dict[str, Any], found: list[Record]) -> None:
        agent, uid, at = self._note(record, found)
        self.compacted = agent
        if agent == self.owner:
            self.branches.compacted()
        found.append(_compaction(agent, uid, record, at))

    def _microcompacted(self, record: dict[str, Any], found: list[Record]) -> None:
        agent, uid, at = self._note(record, found)
        found.append(_microcompaction(agent, uid, record, at))

    def _failed(self, record: dict[str, Any], found: list[Record]) -> None:
        agent, uid, at = self._note(record, found)
        is_retried = record.get("subtype") == "api_error"
        found.append(Failure(agent, "retry" if is_retried else "error", _error_text(record), at, uid))

    def _refused(self, record: dict[str, Any], found: list[Record]) -> None:
        agent, uid, at = self._note(record, found)
        text = text_of(record.get("apiRefusalExplanation")) or text_of(record.get("content")) or "refused"
        found.append(Failure(agent, "refused", text, at, uid))

    def _other_note(self, record: dict[str, Any], found: list[Record]) -> None:
        self._note(record, found)
        subtype = record.get("subtype")
        found.append(Raw(f"system/{subtype if isinstance(subtype, str) else '?'}", _NOT_FOR_US))

    def _progress(self, record: dict[str, Any], found: list[Record]) -> None:
        self.agents.of(record, seconds(record.get("timestamp")), found)
        kind = text_of(object_of(record.get("data")).get("type"))
        found.append(Raw(f"progress/{kind or '?'}", _NOT_FOR_US))

    def _agent_progress(self, record: dict[str, Any], found: list[Record]) -> None:
        """What an agent does meanwhile is in its own log as well. Here it tells which call started it, and
        what its replies used, which counts once with what its own log tells of them: that log may be
        missing."""
        at = seconds(record.get("timestamp"))
        agent = self.agents.of(record, at, found)
        news = object_of(record.get("data"))
        self.agents.progressed(agent, text_of(record.get("parentToolUseID")), news, at, found)
        self._used(news, at, found)
        found.append(Raw("progress/agent_progress", _NOT_FOR_US))

    def _used(self, news: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """What a sub-agent's reply used, by the progress that tells of it."""
        child, said = id_of(news.get("agentId")), object_of(news.get("message"))
        reply = object_of(said.get("message") if said.get("type") == "assistant" else None)
        if child is None:
            return
        usage, model = reply.get("usage"), text_of(reply.get("model"))
        request, message_id = id_of(said.get("requestId")), id_of(reply.get("id"))
        # Without a request's id, its own log cannot tell that it reports the same reply.
        if isinstance(usage, dict) and model != SYNTHETIC and request:
            key, then = f"{request}:{message_id or ''}", seconds(said.get("timestamp"))
            when = at if then is None else then
            found += ModelCallReader().calls(
                child, key, model, usage, reply.get("stop_reason"), when, request
            )

    def _title(self, record: dict[str, Any], found: list[Record]) -> None:
        kind = str(record.get("type"))
        name, rank = _TITLES[kind]
        title = text_of(record.get(name))
        if title is None:
            found.append(Raw(kind, "a title without text"))
        elif rank < self.title_rank or self.owner != MAIN:
            found.append(Raw(kind, "another title has priority"))
        else:
            self.title_rank = rank
            found.append(Session(self.session, title=title))

    def _returned(self, record: dict[str, Any], found: list[Record]) -> None:
        """The journal of a workflow: an agent has returned a result to the script. One that failed, or that a person
        skipped, has returned null."""
        self.agents.of(record, seconds(record.get("timestamp")), found)
        if self.is_journal and (child := id_of(record.get("agentId"))):
            if "result" in record and record["result"] is None:
                found.append(ImportedAgent(child, status="failed", reason=RETURNED_NOTHING, ended=True))
            else:
                found.append(ImportedAgent(child, status="done", ended=True))
        found.append(Raw("result", _NOT_FOR_US))

    def _begun(self, record: dict[str, Any], found: list[Record]) -> None:
        """The journal of a workflow: the run, or one of its agents, began."""
        at = seconds(record.get("timestamp"))
        self.agents.of(record, at, found)
        kind, child = str(record.get("type")), id_of(record.get("agentId"))
        if self.is_journal and self.run:
            below = place_in_run(self.run, text_of(record.get("phase")), at, found)
            if kind == "started" and child:
                found.append(ImportedAgent(child, below, name=text_of(record.get("label")), at=at))
        found.append(Raw(kind, _NOT_FOR_US))

    def _typed_meanwhile(self, record: dict[str, Any], found: list[Record]) -> None:
        """What was typed while a turn ran reaches the model like this."""
        at = seconds(record.get("timestamp"))
        agent = self.agents.of(record, at, found)
        prompt = object_of(record.get("attachment")).get("prompt")
        if not prompt or not isinstance(prompt, str | list):
            found.append(Raw("attachment/queued_command", _NOT_FOR_US))
            return
        text = _plain(prompt)
        if self.agents.notified(text, at, found):
            found.append(Raw("attachment/queued_command", _NOT_FOR_US))
            return
        beside: Any = prompt
        if self.queue.was_said(text):
            beside = [each for each in list_of(prompt) if object_of(each).get("type") != "text"]
            if not beside:
                found.append(Skipped("repeats a prompt typed during a turn"))
                return
            # An image goes with the words.
        uid = _uid(record) or self._place_of("queued", at, prompt)
        found.append(ImportedMessage(agent, uid, "user", beside, at))

    def _hook_said(self, record: dict[str, Any], found: list[Record]) -> None:
        """The output of a tool hook or an end-of-turn hook for the model: a compile error, a rule. The output of a hook at
        the start of a session or a prompt comes before the person's words, and is stored unchanged."""
        at, attachment = seconds(record.get("timestamp")), object_of(record.get("attachment"))
        agent = self.agents.of(record, at, found)
        blocking = attachment.get("blockingError")
        told = object_of(blocking).get("blockingError") or blocking or attachment.get("content")
        text = "\n".join(
            each for each in (told if isinstance(told, list) else [told]) if isinstance(each, str)
        ).strip()
        event = str(attachment.get("hookEvent"))
        if not text or not ("Tool" in event or "Stop" in event):
            found.append(Raw(f"attachment/{attachment.get('type')}", _NOT_FOR_US))
            return
        uid = _uid(record) or self._place_of("hook", at, told)
        name = str(attachment.get("hookName") or event)[:80].replace("<", "").replace(">", "")
        words = f"<hook-output>\n{name}: {text.replace('</hook-output>', '')}\n</hook-output>"
        found.append(ImportedMessage(agent, uid, "user", words, at))

    def _queued(self, record: dict[str, Any], found: list[Record]) -> None:
        """The queue of what was typed while a turn ran, and of notifications."""
        at = seconds(record.get("timestamp"))
        agent = self.agents.of(record, at, found)
        operation, content = record.get("operation"), record.get("content")
        text = content if isinstance(content, str) else _plain(content)
        if operation == "enqueue":
            self.agents.notified(text, at, found)
        said = self.queue.take(operation, text)
        if said:
            uid = self._place_of("queued", at, said)
            found.append(ImportedMessage(agent, uid, "user", said, at))
        else:
            found.append(Raw("queue-operation", _NOT_FOR_US))

    def _known(self, record: dict[str, Any], found: list[Record]) -> None:
        self.agents.of(record, seconds(record.get("timestamp")), found)  # the chain goes through it
        kind, inner = str(record.get("type")), text_of(object_of(record.get("attachment")).get("type"))
        found.append(Raw(f"{kind}/{inner}" if inner else kind, _NOT_FOR_US))

    def _unknown(self, record: dict[str, Any], found: list[Record]) -> None:
        self.agents.of(record, seconds(record.get("timestamp")), found)  # the chain goes through it
        kind = record.get("type")
        if isinstance(kind, str):
            found.append(Raw(kind[:80], "unknown record type"))
        else:
            found.append(Raw("?", "a record without a type"))


# The summary of a workflow's run: one document, written when it ends.

LONGEST_SUMMARY = 64 << 20
_AGENT_STATES: dict[str, Any] = {"done": "done", "error": "failed"}


def is_summary(path: Path) -> bool:
    """Whether a file is the summary of a workflow's run, by its name: `<session>/workflows/<run>.json`."""
    return path.suffix == ".json" and path.parent.name == "workflows" and path.name.startswith("wf_")


class RunSummaryReader:
    """A `PullReader` of the summary of one run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pull(self) -> Iterator[tuple[int, bytes, list[Record]]]:
        with self._path.open("rb") as file:
            data = file.read(LONGEST_SUMMARY + 1)
        session = Session(self._path.parent.parent.name)
        told = parse(data) if len(data) <= LONGEST_SUMMARY else None
        if told is None:  # half of it is written, or it is too long
            yield 1, data[:REASON_CHARS], [session, Raw("workflow", "incomplete document")]
        else:
            yield 1, data, [session, *self._records(told)]

    def save(self) -> dict[str, Any]:
        return {}

    def _records(self, told: dict[str, Any]) -> Iterator[Record]:
        key, error = run_key(self._path.stem), text_of(told.get("error"))
        began, ended = seconds(told.get("startTime")), seconds(told.get("timestamp"))
        name, goal = text_of(told.get("workflowName")), text_of(told.get("summary"))
        yield ImportedAgent(key, name=name, goal=goal, at=began, unit="workflow run")
        said = told.get("status")
        status: Any = ("failed" if error else "done") if said is None else _ENDED.get(str(said))
        if status is not None:
            reason = error and error[:REASON_CHARS]
            yield ImportedAgent(key, at=ended, status=status, reason=reason, ended=True, unit="workflow run")
        progress = [each for each in list_of(told.get("workflowProgress")) if isinstance(each, dict)]
        titles = {
            index: title
            for each in progress
            if each.get("type") == "workflow_phase"
            and isinstance(index := each.get("index"), int)
            and (title := text_of(each.get("title")))
        }
        for each in progress:
            child = id_of(each.get("agentId")) if each.get("type") == "workflow_agent" else None
            if child is None:
                continue
            index = each.get("phaseIndex")
            phase = text_of(each.get("phaseTitle")) or (titles.get(index) if isinstance(index, int) else None)
            found: list[Record] = []
            below = place_in_run(self._path.stem, phase, seconds(each.get("startedAt")), found)
            yield from found
            state = _AGENT_STATES.get(str(each.get("state")))
            why = text_of(each.get("error")) or (RETURNED_NOTHING if state == "failed" else None)
            yield ImportedAgent(
                child, below, name=text_of(each.get("label")), at=seconds(each.get("startedAt")), status=state,
                reason=why and why[:REASON_CHARS], ended=state is not None,
                reported=_reported({
                    "totalTokens": each.get("tokens"), "totalDurationMs": each.get("durationMs"),
                    "totalToolUseCount": each.get("toolCalls"),
                }),
            )  # fmt: skip


_Handler = Callable[[ClaudeReader, dict[str, Any], list[Record]], None]

_HANDLERS: dict[str, _Handler] = {
    "assistant": ClaudeReader._assistant,
    "user": ClaudeReader._user,
    "system": ClaudeReader._other_note,
    "system/compact_boundary": ClaudeReader._compacted,
    "system/microcompact_boundary": ClaudeReader._microcompacted,
    "system/api_error": ClaudeReader._failed,
    "system/error": ClaudeReader._failed,
    "system/api_refusal": ClaudeReader._refused,
    "system/model_refusal_fallback": ClaudeReader._refused,
    "progress": ClaudeReader._progress,
    "progress/agent_progress": ClaudeReader._agent_progress,
    **dict.fromkeys(_TITLES, ClaudeReader._title),
    **dict.fromkeys(HOUSEKEEPING, ClaudeReader._known),
    "queue-operation": ClaudeReader._queued,
    "attachment/queued_command": ClaudeReader._typed_meanwhile,
    "attachment/hook_blocking_error": ClaudeReader._hook_said,
    "attachment/hook_additional_context": ClaudeReader._hook_said,
    "result": ClaudeReader._returned,
    "started": ClaudeReader._begun,
    "launched": ClaudeReader._begun,
}
"""What is done with a record, by its `type`, or by that and what tells its kinds apart (see `_KINDS`)."""

_KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "system": lambda record: record.get("subtype"),
    "progress": lambda record: object_of(record.get("data")).get("type"),
    "attachment": lambda record: object_of(record.get("attachment")).get("type"),
}


def _handler_of(record: dict[str, Any]) -> _Handler:
    kind = record.get("type")
    if not isinstance(kind, str):
        return ClaudeReader._unknown
    inner = _KINDS[kind](record) if kind in _KINDS else None
    if inner is not None and (handler := _HANDLERS.get(f"{kind}/{inner}")):
        return handler
    return _HANDLERS.get(kind) or (
        ClaudeReader._known if kind.startswith("api-request") else ClaudeReader._unknown
    )


def _uid(record: dict[str, Any]) -> str:
    """A record's id; of one that a fork copied, the id that it had in the session that was forked."""
    fork = record.get("forkedFrom")
    original = id_of(fork.get("messageUuid")) if fork is not None and isinstance(fork, dict) else None
    return original or id_of(record.get("uuid")) or ""


def _compaction(agent: str, uid: str, record: dict[str, Any], at: float | None) -> ImportedCompaction:
    meta = object_of(record.get("compactMetadata"))
    took = meta.get("durationMs")
    head = text_of(object_of(meta.get("preservedSegment")).get("headUuid"))
    named = list_of(object_of(meta.get("preservedMessages")).get("uuids"))
    kept = (head,) if head is not None else tuple(each for each in named if text_of(each))
    before = count_of(meta.get("preTokens")) or None
    # A session with the window of a million tokens compacts by itself near its end, not below the standard window.
    is_standard = meta.get("trigger") == "auto" and before is not None and before <= STANDARD_WINDOW
    return ImportedCompaction(
        agent,
        uid,
        text_of(meta.get("trigger")) or "auto",
        at,
        before,
        count_of(meta.get("postTokens")) or None,
        keep_from=kept,
        instructions=text_of(meta.get("userContext")),
        seconds=count_of(took) / 1000 if took else None,
        window=STANDARD_WINDOW if is_standard else None,
    )


STANDARD_WINDOW = 200_000
"""Tokens of Claude Code's window, but for a session that asked for a million, by `[1m]` in its model's name
(github.com/OnlyTerp/UltraCode-Shim, pull request 8)."""


def _microcompaction(agent: str, uid: str, record: dict[str, Any], at: float | None) -> ImportedCompaction:
    meta = object_of(record.get("microcompactMetadata"))
    before, saved = count_of(meta.get("preTokens")), count_of(meta.get("tokensSaved"))
    elided = tuple(each for each in list_of(meta.get("compactedToolIds")) if isinstance(each, str))
    return ImportedCompaction(
        agent, uid, "micro", at, before or None, max(0, before - saved) if before else None, elided=elided
    )


def _plain(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    return "\n".join(
        block["text"]
        for block in list_of(content)
        if isinstance(block, dict) and isinstance(block.get("text"), str)
    )


def _compacted_by_provider(content: Any) -> str | None:
    """The text of the `compaction` block by which the API itself replaced everything before a reply."""
    for block in reversed(list_of(content)):
        if isinstance(block, dict) and block.get("type") == "compaction":
            return text_of(block.get("content"))
    return None


def _says_refused(outcome: Any) -> bool:
    """Whether a result's own form, where it is a text, says that the call was not carried out."""
    return isinstance(outcome, str) and outcome.startswith(
        ("Error:", "User rejected", "InputValidationError")
    )


def _error_text(record: dict[str, Any]) -> str:
    """The words of an error, however deep they are."""
    error: Any = record.get("error")
    for _ in range(6):
        if isinstance(error, str):
            return error
        if not isinstance(error, dict):
            break
        words = text_of(error.get("formatted")) or text_of(error.get("message")) or text_of(error.get("code"))
        if words:
            return words
        error = error.get("error") or error.get("cause")
    status = object_of(record.get("error")).get("status")
    return f"API error {status}" if status else text_of(record.get("content")) or "API error"


# Where the logs of Claude Code are, how one is recognised, and which session and agent it belongs to.

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_AGENT_FILE = re.compile(r"agent-(?P<id>.+)")
_HELPER = re.compile(r"a(?P<task>[a-z][a-z_]+)-[0-9a-f]{8,}")
"""A fork that the program made for a task of its own, and named by it: `acompact-…`, `aside_question-…`."""
_HELPERS = {"compact": "compaction"}
"""What is made in such a fork, where its name says it otherwise than a person."""
_JOURNAL = "journal.jsonl"
_KNOWN = CONVERSATION | HOUSEKEEPING


class ClaudeCode(Program):
    """Claude Code, from 1.0 on."""

    name = "claude-code"
    alias = "claude"
    label = "Claude Code"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """`projects` in the folders that `CLAUDE_CONFIG_DIR` names, else in `~/.claude` and
        `~/.config/claude`."""
        chosen = [
            Path(part).expanduser()
            for part in environ.get("CLAUDE_CONFIG_DIR", "").split(",")
            if part.strip()
        ]
        return [folder / "projects" for folder in chosen or [home / ".claude", home / ".config" / "claude"]]

    def recognises(self, source: Source) -> bool:
        if is_summary(source.path):
            return source.head.lstrip()[:1] == b"{"
        if source.path.suffix != ".jsonl":
            return False
        for first in _records(source.head):
            if run_of(source.path) and first.get("type") in ("launched", "started"):
                return True
            if "payload" in first:
                return False
            if text_of(first.get("type")) in _KNOWN and (
                "sessionId" in first or "uuid" in first or len(first) > 1
            ):
                return True
        return b'"parentUuid"' in source.head and b'"sessionId"' in source.head

    def logs_of_agents(self, path: Path, session: str, passed: set[Path]) -> list[Path]:
        """Those in the folder of the session's name."""
        return sorted(path.with_suffix("").rglob("*.jsonl"))

    def companions(self, path: Path) -> list[Path]:
        return [path.with_suffix(".meta.json")] if _AGENT_FILE.fullmatch(path.stem) else []

    def may_be_log(self, path: Path) -> bool:
        return path.suffix == ".jsonl" or is_summary(path)

    def fingerprint(self, path: Path) -> tuple[int, float] | None:
        """Identifies the state of the summary of a workflow's run, which is one document; None for logs."""
        if not is_summary(path):
            return None
        found = path.stat()
        return found.st_size, found.st_mtime

    def reader(self, source: Source, state: dict[str, Any] | None) -> ClaudeReader | RunSummaryReader:
        if is_summary(source.path):
            return RunSummaryReader(source.path)
        if state is not None:
            return ClaudeReader.restore(state)
        session, agent = _whose(source)
        meta = parse(source.companions.get(source.path.with_suffix(".meta.json").name, b"")) or {}
        if agent != MAIN and (first := next(_records(source.head), None)) is not None:
            agent = teammate_of(first, meta) or agent
        helper = _HELPER.fullmatch(agent) if meta.get("taskKind") != TEAMMATE else None
        if helper is not None:
            task = _HELPERS.get(helper["task"]) or helper["task"].replace("_", " ")
            meta = {"agentType": "helper", "description": task} | meta
        return ClaudeReader(
            session, agent, helper is not None, source.path.name == _JOURNAL, run_of(source.path), meta,
        )  # fmt: skip


def _whose(source: Source) -> tuple[str, str]:
    """Keys of the session and the agent that a file belongs to.

    `<session>/subagents/**/agent-<id>.jsonl` names its session; an `agent-<id>.jsonl` beside its session's
    file does not, but its records do; a session's own file is named by its id, unless it was renamed.
    """
    path, found_session, found_agent = source.path, None, None
    match = _AGENT_FILE.fullmatch(path.stem)
    below = "subagents" in path.parts[1:]
    if match is None and not below and _UUID.fullmatch(path.stem):
        return path.stem, MAIN
    for first in _records(source.head):
        found_session = found_session or text_of(first.get("sessionId"))
        found_agent = found_agent or (
            text_of(first.get("agentId")) if first.get("isSidechain") is True else None
        )
        if found_session and (found_agent or match is None):
            break
    agent = (found_agent or match["id"]) if match else MAIN
    parts = path.parts
    if below:
        return parts[len(parts) - 1 - parts[::-1].index("subagents") - 1], agent
    return found_session or path.stem, agent


def _records(head: bytes) -> Iterator[dict[str, Any]]:
    """The records at the beginning of a log that are whole."""
    at = 0
    for _ in range(40):
        end = head.find(b"\n", at)
        line = head[at:] if end < 0 else head[at:end]
        first = parse(line) if line.strip() else None
        if first is not None:
            yield first
        if end < 0:
            break
        at = end + 1


PROGRAM = ClaudeCode()
