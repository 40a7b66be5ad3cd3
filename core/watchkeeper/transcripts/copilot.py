"""The logs of GitHub Copilot CLI: `~/.copilot/session-state/<session>/events.jsonl`, read line by line.

What is known of the format is in docs/log-formats.md. A message tells the tokens of its reply and not those of its prompt. These
are in the session store `~/.copilot/session-store.db`, a row for each request, and in the sums that end a session.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import field, to_builtins

from watchkeeper.store.driver import Connection, sqlite3
from watchkeeper.transcripts.opencode import connect
from watchkeeper.transcripts.records import (
    MAIN,
    NOT_FOR_US,
    UNKNOWN_TYPE,
    Failure,
    ImportedAgent,
    ImportedCompaction,
    ImportedMessage,
    JsonReader,
    ModelCall,
    Plan,
    PlanItem,
    Program,
    Raw,
    Record,
    Session,
    Skipped,
    Source,
    Summary,
    ToolCall,
    ToolResult,
    count_of,
    first_object,
    list_of,
    object_of,
    parse,
    seconds,
    text_of,
)

USD_PER_NANO_CREDIT = 0.01 / 1e9
"""GitHub charges a cent for an AI credit; the logs count billionths (`totalNanoAiu`)."""
KEPT = 500
"""The newest calls of which something may still come."""
FEW = 50
"""The newest of those whose texts are kept for it."""
SPARE_ROWS = 20
"""So many requests may be logged in another order than they are stored in."""
_KNOWN = re.compile(
    r"(session|system|user|assistant|tool|subagent|skill|hook|permission|model|mcp|command|elicitation|user_input"
    r"|external_tool|exit_plan_mode|auto_mode_switch|capabilities|factory|sampling|session_limits_exhausted)\.\w+"
)
_ABOUT_SESSION = frozenset(("session.start", "session.resume", "session.context_changed"))
_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_REFUSED = {"rejected": "denied", "denied": "denied", "cancelled": "cancelled", "aborted": "cancelled"}
_TODOS: dict[str, Any] = {"in_progress": "running", "done": "done", "blocked": "failed"}


class Request(NamedTuple):
    """A row of the session store: one request to a model."""

    id: int
    agents: tuple[str, ...]
    """By what its agent is known; empty for the main one."""
    model: str
    tokens: tuple[int, int, int, int]
    """Fresh input, output, read from the cache, written to it."""
    cost: float | None
    seconds: float
    stop: str | None
    kind: str
    at: float | None


class CopilotReader(JsonReader):
    """A `LineReader`. Its fields but `requests` are its saved state."""

    requests: list[Request] = field(default_factory=list)
    """What the session store holds of this session beyond `row`, as its program found it when the reading began."""
    row: int = 0
    """The number of the newest row before which each was used."""
    used: list[int] = field(default_factory=list)
    """Rows after it that were used."""
    model: str = ""
    agents: dict[str, str] = field(default_factory=dict)
    """Calls that started an agent → its key."""
    calls: dict[str, str] = field(default_factory=dict)
    """Tool calls without a result → the agent that made them."""
    asked: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Calls for an agent that did not begin yet → its name and task."""
    queries: dict[str, str] = field(default_factory=dict)
    """Calls that may write to-dos → the statement."""
    waiting: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """Model calls whose row was not there yet → agent, model, tokens of output."""
    legs: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Agent and model → its newest call without a row since the last sums, and the output of all of these."""
    sums: dict[str, tuple[int, int, int, int, int]] = field(default_factory=dict)
    """Agent and model → the last sums: input, output, read, written, billionths of a credit."""
    todos: list[tuple[Any, ...]] = field(default_factory=list)
    needs: list[tuple[Any, ...]] = field(default_factory=list)
    uids: list[str] = field(default_factory=list)
    """The newest messages of the main agent."""
    credits: int = 0
    """The last sum of credits (billionths)."""
    spent: int = 0
    """Credits for compactions since then: in the next sum, and known."""
    costs: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Since the sums of the models: calls whose credits are known → model, credits."""
    title: str = ""
    told: str = ""
    """The last title that was reported to the session."""
    over: bool = False

    def save(self) -> dict[str, Any]:
        state: dict[str, Any] = to_builtins(self)
        return {name: value for name, value in state.items() if name != "requests"}

    def read(self, line: int, record: dict[str, Any]) -> list[Record]:
        kind, at = text_of(record.get("type")) or "?", seconds(record.get("timestamp"))
        data, uid = object_of(record.get("data")), text_of(record.get("id")) or f"{self.session}:{line}"
        agent, found = self._agent(record, data), list[Record]()
        if self.title != self.told and self.opened:
            found.append(Session(self.session, title=self.title))
            self.told = self.title
        self.over = kind == "session.shutdown" or (self.over and kind in ("hook.start", "hook.end"))
        if kind in _ABOUT_SESSION:
            self._begin(kind, data, at, found)
        elif kind == "session.model_change":
            self.model = text_of(data.get("newModel")) or ""
            if (model := _model(self.model)) is not None:
                found.append(ImportedAgent(MAIN, model=model, at=at))
        elif kind == "user.message":
            self._prompt(agent, data, uid, at, found)
        elif kind == "assistant.message":
            self._reply(agent, data, uid, at, found)
        elif kind == "tool.execution_start":
            self._call(agent, data, at, found)
        elif kind == "tool.execution_complete":
            self._result(agent, data, uid, at, found)
        elif kind in ("subagent.started", "subagent.completed", "subagent.failed"):
            self._sub_agent(kind, record, data, at, found)
        elif kind == "system.notification":
            self._notified(object_of(data.get("kind")), at, found)
        elif kind == "session.compaction_complete":
            self._compaction(agent, data, uid, at, found)
        elif kind == "session.truncation" and count_of(data.get("messagesRemovedDuringTruncation")):
            self._truncation(agent, data, uid, at, found)
        elif kind == "abort":
            found.append(Failure(agent, "interrupted", text_of(data.get("reason")) or "aborted", at, uid))
        elif kind == "session.error":
            found.append(Failure(agent, "error", text_of(data.get("message")) or "error", at, uid))
        elif kind == "session.usage_checkpoint":
            self._credited(count_of(data.get("totalNanoAiu")), at, found)
        elif kind == "session.shutdown":
            self._shutdown(data, line, at, found)
        if kind == "assistant.turn_end":
            self._catch_up(found)
        if all(type(each) is Session for each in found) and kind not in _ABOUT_SESSION:
            is_known = kind == "abort" or _KNOWN.fullmatch(kind) is not None
            found.append(Raw(kind[:80], NOT_FOR_US if is_known else UNKNOWN_TYPE))
        return found

    def _agent(self, record: dict[str, Any], data: dict[str, Any]) -> str:
        """Whose record it is."""
        call, own = text_of(data.get("parentToolCallId")), text_of(record.get("agentId"))
        return (own if own != "main" else None) or (self.agents.get(call, call) if call else MAIN)

    def _begin(self, kind: str, data: dict[str, Any], at: float | None, found: list[Record]) -> None:
        about = data if kind == "session.context_changed" else object_of(data.get("context"))
        if kind == "session.start":
            self.session = text_of(data.get("sessionId")) or self.session
            self.told = self.title
        found.append(
            Session(
                self.session, workspace=text_of(about.get("cwd")), title=self.title or None, at=at,
                version=text_of(data.get("copilotVersion")),
                forked_from=text_of(data.get("detachedFromSpawningParentSessionId")),
            )
        )  # fmt: skip
        self.model = text_of(data.get("selectedModel")) or self.model
        if (model := _model(data.get("selectedModel"))) is not None:
            found.append(ImportedAgent(MAIN, model=model, at=at))

    def _said(self, agent: str, uid: str) -> None:
        if agent == MAIN:
            self.uids = [*self.uids[1 - KEPT :], uid]

    def _prompt(
        self, agent: str, data: dict[str, Any], uid: str, at: float | None, found: list[Record]
    ) -> None:
        said = text_of(data.get("content")) or text_of(data.get("transformedContent"))
        if said is None:
            return
        injected = (
            text_of(data.get("source")) not in (None, "user") or data.get("isAutopilotContinuation") is True
        )
        found.append(
            ImportedMessage(agent, uid, "user", [{"type": "text", "text": said}], at, injected=injected)
        )
        self._said(agent, uid)

    def _reply(
        self, agent: str, data: dict[str, Any], uid: str, at: float | None, found: list[Record]
    ) -> None:
        message = text_of(data.get("messageId")) or uid
        key = f"{self.session}:{text_of(data.get('apiCallId')) or message}"
        content: list[dict[str, Any]] = []
        if (thought := text_of(data.get("reasoningText"))) is not None:
            signature = text_of(data.get("reasoningOpaque")) or ""
            content.append({"type": "thinking", "thinking": thought, "signature": signature})
        if (said := text_of(data.get("content"))) is not None:
            content.append({"type": "text", "text": said})
        asked = [
            (call, text_of(each.get("name")) or "?", _arguments(each.get("arguments")))
            for each in map(object_of, list_of(data.get("toolRequests")))
            if (call := text_of(each.get("toolCallId"))) is not None
        ]
        content += [
            {"type": "tool_use", "id": call, "name": name, "input": given} for call, name, given in asked
        ]
        if content:
            found.append(ImportedMessage(agent, uid, "assistant", content, at, key))
            self._said(agent, uid)
        for call, name, given in asked:
            found.append(ToolCall(agent, call, name, at))
            self._note_call(agent, call, name, given)
        model, output = text_of(data.get("model")) or self.model, data.get("outputTokens")
        ended = type(output) is int  # only the last part of a reply has it
        stop = ("tool_use" if asked else "end_turn") if ended else None
        tokens = count_of(output)
        request = self._take(agent, tokens) if ended else None
        if request is not None:
            found.append(_used(request, agent, key, stop))
            found += self._spare(request.id)
        else:
            found.append(
                ModelCall(agent, key, _model(model) or "", 0, tokens, exact=False, stop_reason=stop, at=at)
            )
        if ended and request is None:
            _keep(self.waiting, key, (agent, model, tokens))
            name = f"{agent}\0{model}"
            self.legs[name] = (key, self.legs.get(name, ("", 0))[1] + tokens)

    def _note_call(self, agent: str, call: str, name: str, given: dict[str, Any]) -> None:
        _keep(self.calls, call, agent)
        query = text_of(given.get("query"))
        if name == "task":
            about = text_of(given.get("description")) or text_of(given.get("name")) or ""
            _keep(self.asked, call, (about, text_of(given.get("prompt")) or ""), FEW)
        elif name == "sql" and query is not None and "todo" in query:
            _keep(self.queries, call, query, FEW)

    def _call(self, agent: str, data: dict[str, Any], at: float | None, found: list[Record]) -> None:
        call, name = text_of(data.get("toolCallId")), text_of(data.get("toolName")) or "?"
        if call is None:
            return
        if call in self.calls:
            found.append(Skipped("repeats a record that is already stored"))
            return
        self._note_call(agent, call, name, _arguments(data.get("arguments")))
        found.append(ToolCall(agent, call, name, at))

    def _result(
        self, agent: str, data: dict[str, Any], uid: str, at: float | None, found: list[Record]
    ) -> None:
        call = text_of(data.get("toolCallId")) or uid
        agent = agent or self.calls.get(call, MAIN)
        done, failed = data.get("success") is True, object_of(data.get("error"))
        said = text_of(object_of(data.get("result")).get("content")) or text_of(failed.get("message")) or ""
        status: Any = "done" if done else _REFUSED.get(str(failed.get("code")), "error")
        block = {"type": "tool_result", "tool_use_id": call, "content": said, "is_error": not done}
        found.append(ImportedMessage(agent, uid, "user", [block], at, injected=True))
        found.append(ToolResult(agent, call, status, at, said))
        self._said(agent, uid)
        self.calls.pop(call, None)
        if (query := self.queries.pop(call, None)) is not None and done:
            self._listed(query, at, found)

    # Agents that a call started. Their records are in the same log.

    def _sub_agent(
        self, kind: str, record: dict[str, Any], data: dict[str, Any], at: float | None, found: list[Record]
    ) -> None:
        call, own = text_of(data.get("toolCallId")), text_of(record.get("agentId"))
        known = self.agents.get(call) if call else None
        key = known or (own if own not in self.agents.values() else None) or call or own
        if key is None:
            return
        if call and known is None:
            _keep(self.agents, call, key)
        role, label = text_of(data.get("agentName")), text_of(data.get("agentDisplayName"))
        about, task = self.asked.pop(call, ("", "")) if call else ("", "")
        over: Any = None
        if kind != "subagent.started":
            over = (
                "failed"
                if kind == "subagent.failed"
                else "cancelled"
                if data.get("cancelled") is True
                else "done"
            )
        found.append(
            ImportedAgent(
                key, self.calls.get(call or "", None), call, about or (label if known is None else None) or None, role,
                task or None, _model(data.get("model")), at=at, status=over, ended=over is not None,
                reason=text_of(data.get("error")) if over == "failed" else None,
            )
        )  # fmt: skip

    def _notified(self, about: dict[str, Any], at: float | None, found: list[Record]) -> None:
        """An agent in the background has ended."""
        named = text_of(about.get("agentId")) or ""
        key = self.agents.get(named, named)
        if about.get("type") != "agent_completed" or key not in self.agents.values():
            return
        failed = about.get("status") == "failed"
        found.append(ImportedAgent(key, at=at, status="failed" if failed else "done", ended=True))

    # What leaves the context.

    def _compaction(
        self, agent: str, data: dict[str, Any], uid: str, at: float | None, found: list[Record]
    ) -> None:
        if data.get("success") is not True:
            said = text_of(data.get("error")) or "the compaction failed"
            found.append(Failure(agent, "error", said, at, uid))
            return
        used, limit = object_of(data.get("compactionTokensUsed")), count_of(data.get("tokenLimit"))
        output = count_of(used.get("outputTokens", used.get("output")))
        request = self._take(agent, output, "compaction")
        key, took = f"{self.session}:{uid}", count_of(used.get("duration")) / 1000
        if limit:
            found.append(ImportedAgent(agent, context_limit=limit, at=at))
        # Both sizes are of the conversation alone.
        beside = count_of(data.get("systemTokens")) + count_of(data.get("toolDefinitionsTokens"))
        before, after = (count_of(data.get(f"{when}CompactionTokens")) for when in ("pre", "post"))
        found.append(
            ImportedCompaction(
                agent, uid, text_of(data.get("trigger")) or "unknown", at, before + beside if before else None,
                after + beside if after else None, instructions=text_of(data.get("customInstructions")),
                seconds=took or None, model=_model(used.get("model")), unlogged=not used and request is None,
            )
        )  # fmt: skip
        found.append(Summary(agent, uid, text_of(data.get("summaryContent")) or "", at))
        if request is not None:
            found.append(_used(request, agent, key, None, kind="compaction"))
        elif used:
            nano = count_of(object_of(used.get("copilotUsage")).get("totalNanoAiu"))
            model = text_of(used.get("model")) or self.model
            self.spent += nano
            _keep(self.costs, key, (model, nano))
            counts = (
                count_of(used.get("inputTokens", used.get("input"))), output,
                count_of(used.get("cacheReadTokens", used.get("cachedInput"))), count_of(used.get("cacheWriteTokens")),
            )  # fmt: skip
            found.append(
                ModelCall(
                    agent, key, _model(model) or "", *_split(*counts), kind="compaction", at=at, latency_seconds=took,
                    cost_usd=_cost(nano),
                )
            )  # fmt: skip

    def _truncation(
        self, agent: str, data: dict[str, Any], uid: str, at: float | None, found: list[Record]
    ) -> None:
        stayed = count_of(data.get("postTruncationMessagesLength"))
        before, after = (
            count_of(data.get(f"{when}TruncationTokensInMessages")) or None for when in ("pre", "post")
        )
        kept = tuple(self.uids[-stayed:]) if agent == MAIN and stayed else ()
        found.append(ImportedCompaction(agent, uid, "truncation", at, before, after, keep_from=kept))
        found.append(Summary(agent, uid, "", at))

    # What requests used.

    def _take(self, agent: str, output: int, kind: str = "") -> Request | None:
        """The request that a record tells of, by its agent and its tokens of output."""
        fits = [
            each
            for each in self.requests
            if (each.tokens[1] == output or each.kind == kind != "")
            and each.id not in self.used
            and self._is_of(agent, each)
        ]
        labelled = (each for each in fits if (each.kind == "compaction") == (kind == "compaction"))
        found = next(labelled, fits[0] if fits and kind else None)  # not every version labels them
        if found is not None:
            self.used.append(found.id)
        return found

    def _is_of(self, agent: str, request: Request) -> bool:
        owners = {self.agents.get(name, name) for name in request.agents}
        return agent in owners if owners else agent == MAIN

    def _spare(self, before: int | None = None) -> Iterator[Record]:
        """Requests that no record tells of: all of them, or those that are far before a row that was used."""
        left = [
            each
            for each in self.requests
            if each.id not in self.used and (before is None or each.id < before)
        ]
        for each in left if before is None else left[:-SPARE_ROWS]:
            self.used.append(each.id)
            agent = next((self.agents.get(name, name) for name in each.agents), MAIN)
            kind: Any = "compaction" if each.kind == "compaction" else "other"
            yield _used(each, agent, f"{self.session}:row:{each.id}", None, kind=kind)
        unused = [each.id for each in self.requests if each.id not in self.used]
        self.row = max([self.row, *(each for each in self.used if not unused or each < unused[0])])
        self.used = [each for each in self.used if each > self.row]
        self.requests = [each for each in self.requests if each.id > self.row]

    def _catch_up(self, found: list[Record]) -> None:
        """Rows that were stored later than the record that tells of them."""
        for key, (agent, model, output) in list(self.waiting.items()) if self.requests else ():
            if (request := self._take(agent, output)) is not None:
                del self.waiting[key]
                found.append(_used(request, agent, key, None))
                name = f"{agent}\0{model}"
                last, summed = self.legs.pop(name, ("", 0))
                if summed > output:
                    self.legs[name] = (last, summed - output)

    def _credited(self, total: int, at: float | None, found: list[Record]) -> None:
        """What the session cost so far. The newest call without a row gets what is new of it."""
        self._catch_up(found)
        fresh = total - (self.credits if self.credits <= total else 0) - self.spent
        self.credits, self.spent = total, 0
        key = next(reversed(self.waiting), None)
        if key is None or fresh <= 0 or self._has_rows:
            return
        agent, model, output = self.waiting[key]
        nano = fresh + self.costs.get(key, ("", 0))[1]
        _keep(self.costs, key, (model, nano))
        found.append(
            ModelCall(
                agent,
                key,
                _model(model) or "",
                0,
                output,
                exact=False,
                at=at,
                cost_usd=_cost(nano),
                final=True,
                context=(0, 0),
            )
        )

    @property
    def _has_rows(self) -> bool:
        return bool(self.row or self.used or self.requests)

    def _shutdown(self, data: dict[str, Any], line: int, at: float | None, found: list[Record]) -> None:
        """The session's sums so far, those before a resumption included. They stand where requests have no rows."""
        self._catch_up(found)
        has_rows = self._has_rows
        found += self._spare()
        by_agent = {name: object_of(each) for name, each in object_of(data.get("agentMetrics")).items()}
        for name, about in (by_agent or {"main": data}).items():
            agent = MAIN if name == "main" else self.agents.get(name, name)
            for model, each in object_of(about.get("modelMetrics")).items():
                self._summed(agent, model, object_of(each), not by_agent, line, at, [] if has_rows else found)
        self.waiting, self.legs, self.costs = {}, {}, {}
        self.credits, self.spent = count_of(data.get("totalNanoAiu")), 0
        if data.get("shutdownType") == "error":
            reason = text_of(data.get("errorReason")) or "it ended by an error"
            found.append(ImportedAgent(MAIN, at=at, status="failed", reason=reason, ended=True))

    def _summed(
        self,
        agent: str,
        model: str,
        sums: dict[str, Any],
        alone: bool,
        line: int,
        at: float | None,
        found: list[Record],
    ) -> None:
        """`alone`: the sums are those of all agents."""
        name, usage = f"{agent}\0{model}", object_of(sums.get("usage"))
        now = tuple(
            count_of(usage.get(f"{each}Tokens")) for each in ("input", "output", "cacheRead", "cacheWrite")
        )
        now = (*now, count_of(sums.get("totalNanoAiu")))
        before = self.sums.get(name, (0, 0, 0, 0, 0))
        if any(new < old for new, old in zip(now, before, strict=True)):
            before = (0, 0, 0, 0, 0)  # counted from the beginning again
        _keep(self.sums, name, now)
        whole, output, read, written, nano = (new - old for new, old in zip(now, before, strict=True))
        if not (whole or output):
            return
        legs = [
            leg
            for known, leg in self.legs.items()
            if known == name or (alone and known.endswith(f"\0{model}"))
        ]
        key = self.legs.get(name, legs[-1] if legs else (f"{self.session}:sums:{line}:{name}", 0))[0]
        counted = sum(leg[1] for leg in legs)
        known = sum(cost for each, cost in self.costs.values() if each == model)
        nano = self.costs.get(key, ("", 0))[1] + max(0, nano - known)
        own = self.waiting.get(key, ("", "", 0))[2]
        fresh, _, read, written = _split(whole, output, read, written)
        # The calls of these sums have their output already: the newest one gets the rest.
        found.append(
            ModelCall(
                agent, key, _model(model) or "", fresh, own + max(0, output - counted), read, written, exact=False, at=at,
                cost_usd=_cost(nano), final=True, context=(0, 0),
            )
        )  # fmt: skip

    # To-dos: the model keeps them in a table, and the log has its statements.

    def _listed(self, query: str, at: float | None, found: list[Record]) -> None:
        todos, needs = replay_todos(query, self.todos, self.needs)
        if (todos, needs) == (self.todos, self.needs):
            return
        self.todos, self.needs = todos, needs
        items = [
            PlanItem(
                key, title or key, _TODOS.get(status, "pending"), text or None,
                tuple(other for one, other in needs if one == key),
            )
            for key, title, text, status in todos
        ]  # fmt: skip
        found.append(Plan(MAIN, "sql", items, whole=True, at=at))


def _keep(kept: dict[str, Any], name: str, value: Any, most: int = KEPT) -> None:
    kept.pop(name, None)
    kept[name] = value
    while len(kept) > most:
        del kept[next(iter(kept))]


def _model(name: Any) -> str | None:
    """`github-copilot/model`. `auto` is none: the replies name the one that was chosen."""
    known = text_of(name)
    return None if known is None or known == "auto" else f"github-copilot/{known}"


def _cost(nano: Any) -> float | None:
    return count_of(nano) * USD_PER_NANO_CREDIT or None


def _split(whole: int, output: int, read: int, written: int) -> tuple[int, int, int, int]:
    """Counts of a prompt that includes what was read from the cache and written to it."""
    read = min(whole, read)
    written = min(whole - read, written)
    return whole - read - written, output, read, written


def _used(request: Request, agent: str, key: str, stop: str | None, kind: Any = "turn") -> ModelCall:
    return ModelCall(
        agent, key, _model(request.model) or "", *request.tokens, stop_reason=stop or request.stop, at=request.at,
        latency_seconds=request.seconds, cost_usd=request.cost, final=True, kind=kind,
    )  # fmt: skip


def _arguments(given: Any) -> dict[str, Any]:
    """A call's arguments, which some versions log as text."""
    if isinstance(given, str):
        return parse(given.encode("utf-8", "replace")) or {"input": given}
    return object_of(given)


# --- The to-dos of a session -----------------------------------------------------------------------------

_TABLES = (
    "CREATE TABLE todos (id TEXT PRIMARY KEY, title TEXT, description TEXT, status TEXT DEFAULT 'pending',"
    " created_at TEXT, updated_at TEXT);"
    "CREATE TABLE todo_deps (todo_id TEXT, depends_on TEXT, PRIMARY KEY (todo_id, depends_on));"
)
_STEPS, _MOST_BYTES, _MOST_TODOS, _MOST_CHARS = 100_000, 100_000, 200, 1_000
_ALLOWED = frozenset(
    (
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_DELETE,
    )
)
_FUNCTIONS = frozenset(
    ("coalesce", "ifnull", "lower", "upper", "trim", "length", "substr", "replace", "date", "datetime", "like",
     "current_timestamp", "current_date", "current_time", "strftime", "count", "min", "max", "nullif", "iif", "instr")
)  # fmt: skip


def _may(action: int, first: str | None, second: str | None, *_: Any) -> int:
    """What a statement of a model may do: read and change the rows of two tables in memory."""
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_OK if (second or "").lower() in _FUNCTIONS else sqlite3.SQLITE_DENY
    mine = action == sqlite3.SQLITE_SELECT or first in ("todos", "todo_deps")
    return sqlite3.SQLITE_OK if action in _ALLOWED and mine else sqlite3.SQLITE_DENY


def replay_todos(
    query: str, todos: list[tuple[Any, ...]], needs: list[tuple[Any, ...]]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The rows of to-dos (id, title, description, status) and of what each needs, after a model's statements.

    Nothing but these rows is there to read or change, and a statement that takes long is given up.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(_TABLES)
        connection.executemany(
            "INSERT INTO todos (id, title, description, status) VALUES (?, ?, ?, ?)", todos
        )
        connection.executemany("INSERT INTO todo_deps VALUES (?, ?)", needs)
        with suppress(AttributeError):  # not every build of SQLite's module has it
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
        connection.set_authorizer(_may)
        for statement in _statements(query[:_MOST_BYTES]):
            steps = iter(range(_STEPS // 1_000))
            connection.set_progress_handler(lambda left=steps: next(left, None) is None, 1_000)  # type: ignore[misc]
            with suppress(sqlite3.Error, sqlite3.Warning, UnicodeError):
                connection.execute(statement).fetchmany(_MOST_TODOS)
        connection.set_progress_handler(None, 0)
        connection.set_authorizer(None)
        listed = connection.execute(
            "SELECT id, title, description, status FROM todos ORDER BY rowid"
        ).fetchmany(_MOST_TODOS)
        linked = connection.execute("SELECT todo_id, depends_on FROM todo_deps ORDER BY rowid").fetchmany(
            _MOST_TODOS
        )
    rows = [tuple(_text(value)[:_MOST_CHARS] for value in each) for each in listed]
    return [each for each in rows if each[0]], [tuple(map(_text, each)) for each in linked]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _statements(query: str) -> Iterator[str]:
    statement = ""
    for part in query.split(";"):
        statement += f"{part};"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


# --- The session store -----------------------------------------------------------------------------------

_COLUMNS = (
    "id", "agent_id", "parent_tool_call_id", "model", "input_tokens", "output_tokens", "cache_read_tokens",
    "cache_write_tokens", "total_nano_aiu", "duration_ms", "finish_reason", "initiator", "created_at",
)  # fmt: skip
_NEEDED = frozenset(("id", "session_id", "model", "input_tokens", "output_tokens"))


def requests_of(store: Path, session: str, after: int) -> list[Request]:
    """The requests of a session that the store counts, behind the row of that number; none where it cannot be read."""
    if store.is_file():
        with suppress(sqlite3.Error, OSError), closing(connect(store)) as connection:
            return _requests(connection, session, after)
    return []


def _requests(connection: Connection, session: str, after: int) -> list[Request]:
    has = {row[1] for row in connection.execute("PRAGMA table_info(assistant_usage_events)")}
    if not has >= _NEEDED:
        return []
    wanted = ", ".join(name if name in has else "NULL" for name in _COLUMNS)
    found = connection.execute(
        f"SELECT {wanted} FROM assistant_usage_events WHERE session_id = ? AND id > ? ORDER BY id",  # noqa: S608 (our own names)
        (session, after),
    )
    requests = []
    for number, agent, call, model, whole, output, read, written, nano, took, finish, initiator, at in found:
        counts = (count_of(each) for each in (whole, output, read, written))
        requests.append(
            Request(
                number, tuple(filter(None, map(text_of, (agent, call)))), text_of(model) or "", _split(*counts), _cost(nano),
                count_of(took) / 1000, _STOPS.get(str(finish)), text_of(initiator) or "", _stored_at(at),
            )
        )  # fmt: skip
    return requests


def _stored_at(at: Any) -> float | None:
    """SQLite's own form of a time says nothing of its zone, which is UTC."""
    plain = isinstance(at, str) and len(at) == 19
    return seconds(f"{at.replace(' ', 'T')}.000Z" if plain else at)


class CopilotCli(Program):
    """GitHub Copilot CLI, from the version on that logs events (2026)."""

    name = "copilot-cli"
    alias = "copilot"
    label = "Copilot CLI"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """`session-state` in `COPILOT_HOME`, else in `~/.copilot`."""
        chosen = environ.get("COPILOT_HOME", "").strip()
        return [(Path(chosen).expanduser() if chosen else home / ".copilot") / "session-state"]

    def recognises(self, source: Source) -> bool:
        first = first_object(source.head)
        data = object_of(first.get("data"))
        return (
            first.get("type") == "session.start"
            and text_of(data.get("sessionId")) is not None
            and ("copilotVersion" in data or "copilot" in str(data.get("producer")))
        )

    def companions(self, path: Path) -> list[Path]:
        return [path.with_name("workspace.yaml")]

    def reader(self, source: Source, state: dict[str, Any] | None) -> CopilotReader:
        reader = CopilotReader.restore(state) if state is not None else CopilotReader(_session_of(source))
        named = re.search(rb"^name:[ \t]*(\S.*)$", source.companions.get("workspace.yaml", b""), re.MULTILINE)
        if named is not None:
            reader.title = named[1].decode("utf-8", "replace").strip().strip("\"'")
        # Beside the folder of the sessions; a log that was copied elsewhere has none.
        reader.requests = requests_of(
            source.path.parent.parent.parent / "session-store.db", reader.session, reader.row
        )
        return reader

    def is_over(self, state: dict[str, Any]) -> bool:
        return state.get("over") is True


def _session_of(source: Source) -> str:
    named = text_of(object_of(first_object(source.head).get("data")).get("sessionId"))
    path = source.path
    return named or (path.parent.name if path.stem == "events" else path.stem)


PROGRAM = CopilotCli()
