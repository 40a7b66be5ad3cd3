"""Which agent a record belongs to, and which call started which agent.

Three layouts, in the order of their age: side chains inside the session's own file (`isSidechain` without
`agentId`: an agent is a chain of `parentUuid`s that begins at nothing), a file for each agent beside the
session's, and a folder of them. Parent and child meet by the `agentId` in the call's result, or in the
`progress` that comes before it; where there is neither, by the prompt, which is the child's first message.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

from watchkeeper.transcripts.claude.teams import teammate
from watchkeeper.transcripts.jsontext import count_of, text_of
from watchkeeper.transcripts.records import GUESSED, MAIN, Agent, Record, Told

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
            found.append(Agent(agent, MAIN, name=name, goal=goal, at=at, status="working"))
            return
        call = self._calls[call_id]
        call[4] = agent
        found.append(
            Agent(agent, call[0], call_id, call[2] or None, call[3] or None, goal, at=at, status="working")
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
                Agent(child, call[0], call_id, call[2] or None, call[3] or None, call[5] or None, at=at)
            )
        else:
            found.append(Agent(child, agent, call_id, goal=text_of(news.get("prompt")), at=at))

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
            Agent(
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
                found.append(Agent(child, name=text_of(task.get("description")), at=at, status=ended))  # type: ignore[arg-type]
        agents = outcome.get("agents")
        if isinstance(agents, dict) and "retrieval_status" in outcome:
            for child, state in agents.items():
                if isinstance(state, dict) and state.get("status") == "completed":
                    found.append(Agent(child, name=text_of(state.get("description")), at=at, status="done"))

    def learn_role(self, agent: str, role: str) -> bool:
        """Whether that is news."""
        if self._roles.get(agent) == role:
            return False
        self._roles[agent] = role
        return True


def _told(outcome: dict[str, Any]) -> Told | None:
    """What a result says of the agent that worked for it; `totalTokens` are those of its last call."""
    tokens, took = count_of(outcome.get("totalTokens")), count_of(outcome.get("totalDurationMs"))
    if not (tokens or took):
        return None
    return Told(tokens, took / 1000, count_of(outcome.get("totalToolUseCount")))


def _digest(prompt: Any) -> str:
    if isinstance(prompt, list):
        prompt = "\n".join(str(block.get("text", "")) for block in prompt if isinstance(block, dict))
    if not isinstance(prompt, str) or not prompt.strip():
        return ""
    return hashlib.blake2b(prompt.strip().encode("utf-8", "replace"), digest_size=12).hexdigest()


def _newest(entries: dict[str, V], count: int) -> dict[str, V]:
    return dict(list(entries.items())[-count:])
