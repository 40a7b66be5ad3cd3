"""What an agent program did, as rows: its messages, its model calls, its context, and what its own record tells.

A program's own record (its log or database) is the truth for usage: totals over the protocols are too low. Where a
program has none that Watchkeeper reads, what it reports counts, marked as an estimate.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from watchkeeper.agents.agent_state import Snapshot
from watchkeeper.agents.backends import ToolBegin, UsageReport, child_call
from watchkeeper.agents.calls import assert_mine
from watchkeeper.agents.environment import Environment
from watchkeeper.models.registry import logged_price
from watchkeeper.records.compactions import CompactionRecord
from watchkeeper.records.messages import (
    Block,
    Content,
    Cost,
    Message,
    Purpose,
    Role,
    Usage,
)
from watchkeeper.records.model_calls import ModelCallRecord
from watchkeeper.records.states import ModelCallStatus
from watchkeeper.store import agents
from watchkeeper.store import messages as message_rows
from watchkeeper.store.agents import Agent, ProgramSession
from watchkeeper.store.driver import encode
from watchkeeper.store.transaction import Transaction

if TYPE_CHECKING:
    from watchkeeper.agents.backends.programs import Program
    from watchkeeper.transcripts.reading import SessionTail
    from watchkeeper.transcripts.records import ImportedCompaction, ImportedMessage, ModelCall

SETTLE_SECONDS = 2.0
"""How long the program's record may lag behind its last word."""
SETTLE_STEP_SECONDS = 0.1
DIGEST_TOKENS = 8_000
"""A session that starts without its memory gets a digest of this size of what its agent did before."""
CUT_RESULT = re.compile(
    r"\baborted( by user)?( after [\d.]+ ?s)?[\s.\]]*$|\[Tool execution was interrupted\]|\[Request interrupted by user|Tool execution aborted"
    r"|^Command running in background with ID: |(?m:^Process running with session ID \d+$)"
)
"""What programs write as the result of a call that they cut themselves, when their input ended or they came back; and of one
that goes on in the background, which ends with them."""
PROMPT_END = 200
"""Characters of the end of a prompt by which it is found in the program's record."""


@dataclass(slots=True)
class RecordedTurn:
    """What a program's record tells of its newest turn."""

    has_prompt: bool = False
    """Whether the prompt has arrived there."""
    steps: list[str | ToolBegin] = field(default_factory=list)
    """What the agent said and which tools it called, in order."""
    results: dict[str, Any] = field(default_factory=dict)
    """Tool call → its result, of those that ended."""
    cut: set[str] = field(default_factory=set)
    """Tool calls that the record calls interrupted."""


@dataclass(slots=True)
class StoredTexts:
    """Texts that are stored, each to be found once."""

    texts: list[str]

    def take(self, text: str) -> bool:
        """Whether the text is among them; what was found is not found again."""
        wanted = _plain(text)
        for place, stored in enumerate(self.texts):
            if wanted in stored:
                self.texts[place] = stored.replace(wanted, "", 1)
                return True
        return False


class ProgramRecord:
    """The rows of one agent, and the program's own record that they are compared with."""

    def __init__(self, environment: Environment, agent: Agent) -> None:
        self._environment = environment
        self._store = environment.store
        self._agent = agent
        self._tail: SessionTail | None = None
        self._looking = asyncio.Lock()
        self._calls: dict[str, ModelCall] = {}
        """Model calls that may still grow in the record; by key."""
        self._stored: set[str] = set()
        self._compactions: set[str] = set()
        """Those that are stored, by their id in the record."""
        self._told_live = 0
        """How many more are stored because the program reported them. The record reports them too, the earliest first."""
        self._summary_of: int | None = None
        self.ordered = False
        """A person has ordered the compaction that is in progress."""
        self._newest_text = ""
        """The agent's newest words in the program's record."""
        self.newest: str | None = None
        """The agent's newest message in the program's record, by its id there."""

    # --- messages -------------------------------------------------------------------------------------------

    @property
    def last_seq(self) -> int:
        """The newest message that is committed."""
        return agents.progress(self._store, self._agent.id).last_seq

    def append(self, tx: Transaction, role: Role, content: Content) -> int:
        """Add a message; returns its number. What the program keeps in its context is its own affair."""
        so_far = agents.progress(tx, self._agent.id)
        text = content if isinstance(content, str) else encode(content)
        tokens = self._environment.counter.count(text)
        message = Message(so_far.last_seq + 1, role, content, tokens, so_far.message_tokens + tokens, tx.now)
        message_rows.add_messages(tx, self._agent.id, [message])
        agents.note_appended(tx, self._agent.id, message.seq, message.total_tokens)
        return message.seq

    def next_turn(self, tx: Transaction, seq: int, started_at: float) -> int:
        """A step of the program begins with that message; returns its number."""
        return agents.next_step(tx, self._agent.id, seq, started_at)

    def fresh_id(self, given: str) -> str:
        """The program's own id of a tool call; another one where that is taken."""
        use_id, number = given[:200] or "call", 1
        while agents.has_called(self._store, self._agent.id, use_id):
            number += 1
            use_id = f"{given[:200]}~{number}"
        return use_id

    def has_called(self, given: str) -> bool:
        """Whether a tool call with the program's own id is known."""
        return agents.has_called(self._store, self._agent.id, given[:200])

    def texts_since(self, seq: int) -> StoredTexts:
        """What the agent has said after that message."""
        later = message_rows.load_messages(self._store, self._agent.id, seq + 1)
        return StoredTexts(
            [_plain(text) for one in later if one.role == "assistant" for text in _texts(one.content)]
        )

    async def digest(self) -> str:
        """What was done so far, for a program that has no session in which it was done; empty where nothing was."""
        from watchkeeper.memory import digest
        from watchkeeper.memory.ledger import Ledger

        history = message_rows.load_messages(self._store, self._agent.id)
        if not any(message.role == "assistant" for message in history):
            return ""
        covers, counter = (1, history[-1].seq), self._environment.counter

        def write() -> str:
            ledger = Ledger.up_to((), history)
            return digest.write(ledger, self._agent.id, covers, DIGEST_TOKENS, counter).text

        return await asyncio.to_thread(write)

    def snapshot(self) -> Snapshot:
        """The agent's memory as Watchkeeper has it: the messages; the program keeps its own context."""
        so_far = agents.progress(self._store, self._agent.id)
        version, last, tokens = so_far.view_version, so_far.last_seq, so_far.context_tokens
        blob = {"agent": self._agent.id, "view": version, "last_seq": last, "tokens": tokens,
                "messages": f"message://{self._agent.id}/1-{last}"}  # fmt: skip
        return Snapshot(self._agent.id, encode(blob).encode("utf-8", "replace"), version, last, tokens)

    # --- the program's own record ---------------------------------------------------------------------------

    def follow(self, program: Program, session: ProgramSession) -> None:
        """Read this session's record from now on. Calls that were stored by an earlier host are known."""
        from watchkeeper.transcripts.reading import SessionTail

        self._stored = agents.requests_counted(self._store, program.name, session.program_session)
        self._compactions, self._told_live = message_rows.program_compactions(
            self._store, program.name, session.program_session
        )
        if program.reader is not None and session.transcript:
            self._tail = SessionTail(program.reader, Path(session.transcript), session.program_session)

    async def look(self) -> bool:
        """Take what is new in the record; whether there were model calls in it that are stored now."""
        if self._tail is None:
            return False
        async with self._looking:
            tail = self._tail
            try:
                records = await asyncio.to_thread(tail.read)
            except OSError:
                return False
            return await self._take(records, final=False)

    async def settle(self, said: str) -> None:
        """The turn has ended with these words: take what its record tells, which may come a little later."""
        if self._tail is None:
            return
        for _ in range(int(SETTLE_SECONDS / SETTLE_STEP_SECONDS)):
            await self.look()
            if _plain(said) in _plain(self._newest_text):
                break
            await asyncio.sleep(SETTLE_STEP_SECONDS)
        async with self._looking:
            await self._take([], final=True)

    def recorded_since(self, prompt: str, after: str | None, denied: Collection[str] = ()) -> RecordedTurn:
        """What the record tells since that prompt; everything is unknown where there is no record.

        Args:
            denied: the tool calls that a person denied. A program writes of others that they were denied when the host
                died while it waited for an answer: those are cut.
            after: the newest message there before the turn, by its id; None: not known. The same prompt may have been
                sent before.
        """
        from watchkeeper.transcripts.reading import SessionTail
        from watchkeeper.transcripts.records import MAIN, ImportedMessage, ToolResult

        turn = RecordedTurn()
        if self._tail is None:
            return turn
        whole = SessionTail(self._tail.program, self._tail.path, self._tail.session)
        ending = _plain(prompt)[-PROMPT_END:]
        try:
            records = whole.read()
        except OSError:
            return turn
        ids = [record.uid if isinstance(record, ImportedMessage) else None for record in records]
        if after is not None and after in ids:
            records = records[len(ids) - ids[::-1].index(after) :]
        if not prompt:
            turn.has_prompt = True  # a compaction sends none
        for record in records:
            if isinstance(record, ToolResult) and record.status not in ("done", "error"):
                turn.cut |= {record.id} - set(denied)
            if not isinstance(record, ImportedMessage):
                continue
            if record.agent != MAIN:
                turn.results |= self._results(record, turn.cut)
                continue
            if (
                record.role == "user"
                and ending
                and any(ending in _plain(text) for text in _texts(record.content))
            ):
                turn = RecordedTurn(has_prompt=True)
                continue
            if record.role == "assistant" and isinstance(record.content, str) and record.content.strip():
                turn.steps.append(record.content)
            if isinstance(record.content, list):
                for block in record.content:
                    if record.role == "assistant" and (step := _step(block)):
                        turn.steps.append(step)
            turn.results |= self._results(record, turn.cut)
        turn.results = {call: result for call, result in turn.results.items() if call not in turn.cut}
        return turn if turn.has_prompt else RecordedTurn()

    def _results(self, message: ImportedMessage, cut: set[str]) -> dict[str, Any]:
        """The results of tool calls in a message; those that were cut are added to `cut`."""
        found: dict[str, Any] = {}
        for block in message.content if isinstance(message.content, list) else ():
            if block.get("type") == "tool_result" and block.get("content"):
                use_id, content = str(block.get("tool_use_id")), self._environment.redact(block["content"])
                names = {use_id, child_call(use_id, message.agent)}
                found |= dict.fromkeys(names, content)
                cut |= names if CUT_RESULT.search(_result_text(block["content"])) else set()
        return found

    async def _take(self, records: Iterable[Any], *, final: bool) -> bool:
        from watchkeeper.transcripts.records import (
            MAIN,
            ImportedCompaction,
            ImportedMessage,
            ModelCall,
            Summary,
        )

        ready: dict[str, ModelCall] = {}
        for record in records:
            if isinstance(record, ModelCall):
                key = key_of(record)
                if key in self._stored:
                    continue
                if record.kind == "turn" and key not in self._calls:
                    ready |= self._calls  # another request: those before it grow no more
                    self._calls.clear()
                known = self._calls.get(key) or ready.get(key)
                if known is None or record.output_tokens > known.output_tokens:
                    self._calls[key] = record
                    ready.pop(key, None)
            elif isinstance(record, ImportedMessage):
                if record.agent == MAIN:
                    self.newest = record.uid or self.newest
                if record.agent == MAIN and record.role == "assistant":
                    self._newest_text = "\n".join(_texts(record.content)) or self._newest_text
            elif (
                isinstance(record, ImportedCompaction)
                and record.agent == MAIN
                and not (record.elided or record.told_later)
            ):
                if record.uid in self._compactions:
                    continue
                self._compactions.add(record.uid)
                if self._told_live:
                    self._told_live -= 1
                    continue
                trigger = "manual" if self.ordered else record.trigger
                await self.compacted("", trigger=trigger, record=record)
            elif isinstance(record, Summary) and record.agent == MAIN:
                await self._summarise(self._environment.redact(record.text))
        if final:
            ready |= self._calls
            self._calls.clear()
        if ready:
            await self._store.commit(partial(self._store_calls, calls=list(ready.values())))
            self._stored.update(ready)
        return bool(ready)

    def _store_calls(self, tx: Transaction, *, calls: list[ModelCall]) -> None:
        assert_mine(tx, self._agent.id)
        for call in calls:
            self.store_call(tx, call)

    def store_call(self, tx: Transaction, call: ModelCall) -> None:
        """Add a call that the record tells, as one of this agent."""
        from watchkeeper.transcripts.records import MAIN

        usage = Usage(call.input_tokens, call.output_tokens, call.cache_read_tokens, call.cache_write_tokens)
        cost = logged_price(call)
        self._write_call(tx, call.model, usage, cost, key_of(call),
                         exact=call.exact, at=call.at, stop_reason=call.stop_reason, kind=call.kind)  # fmt: skip
        if call.agent == MAIN and call.kind == "turn" and usage.prompt_tokens:
            self._note_context(tx, sum(call.context or (usage.prompt_tokens, usage.output_tokens)), None)

    def _write_call(
        self, tx: Transaction, model: str, usage: Usage, cost: Cost, key: str | None, *, exact: bool, at: float | None,
        stop_reason: str | None = None, kind: str = "turn",
    ) -> None:  # fmt: skip
        turn = agents.progress(tx, self._agent.id).turn
        purpose = Purpose.PLANNER if self._agent.role == "planner" else Purpose.TURN
        agents.add_model_call(tx, ModelCallRecord(
            agent_id=self._agent.id, turn=turn, purpose=purpose if kind == "turn" else kind, model=model,
            status=ModelCallStatus.DONE, usage=usage, cost=cost, started_at=tx.now if at is None else min(at, tx.now),
            request_id=key, stop_reason=stop_reason, usage_exact=exact,
        ))  # fmt: skip

    # --- what the program reports ---------------------------------------------------------------------------

    async def report(self, report: UsageReport) -> None:
        """Take a report of the program. Its counts are stored only where no record of its own tells them."""
        usage = report.usage if self._tail is None else None

        def write(tx: Transaction) -> None:
            assert_mine(tx, self._agent.id)
            if report.context_tokens:
                self._note_context(tx, report.context_tokens, report.context_window)
            if usage is not None:
                cost = self._environment.price(self._agent.model, usage, False)
                self._write_call(tx, self._agent.model, usage, cost, None, exact=False, at=None)

        await self._store.commit(write)
        if self._tail is not None:
            await self.look()

    def _note_context(self, tx: Transaction, tokens: int, window: int | None) -> None:
        agents.note_program_context(tx, self._agent.id, tokens, window)

    # --- its compactions --------------------------------------------------------------------------------------

    async def compacted(
        self, summary: str, *, trigger: str = "program", record: ImportedCompaction | None = None
    ) -> None:
        """The program dropped what its context held, as a view of this agent: everything before is not in it.

        `record`: what the program's own record tells of it, if it does.
        """
        if record is None and self._tail is not None:
            await self.look()  # its own record tells of it
            return
        trigger = "manual" if self.ordered else trigger
        before, after = (record.tokens_before, record.tokens_after) if record is not None else (None, None)
        agent_id, counted = self._agent.id, self._environment.counter.count(summary)

        def write(tx: Transaction) -> int:
            assert_mine(tx, agent_id)
            so_far = agents.progress(tx, agent_id)
            version, last, tokens = so_far.view_version, so_far.last_seq, so_far.context_tokens
            removed = last - message_rows.left_out_of_view(tx, agent_id)
            new = message_rows.next_version(tx, agent_id)
            compaction = message_rows.add_program_compaction(tx, agent_id, CompactionRecord(
                trigger=trigger, status="applied", reason="the program compacted its context",
                high_water=last, messages_removed=removed, tokens_before=before or tokens, tokens_after=after,
                view_before=version, view_after=new, model=self._agent.model,
            ), summary, counted)  # fmt: skip
            tx.event("compaction.applied", agent_id=agent_id, compaction=compaction, trigger=trigger,
                     tokens_before=before or tokens, tokens_after=after, messages_removed=removed, high_water=last,
                     **({} if record is None else {"record": record.uid}))  # fmt: skip
            return compaction

        self._summary_of = await self._store.commit(write)

    async def _summarise(self, text: str) -> None:
        """The summary that the program put in the place of what it dropped."""
        compaction, agent_id = self._summary_of, self._agent.id
        if compaction is None or not text:
            return
        self._summary_of = None
        tokens = self._environment.counter.count(text)

        def write(tx: Transaction) -> None:
            assert_mine(tx, agent_id)
            message_rows.add_program_summary(tx, agent_id, compaction, text, tokens)

        await self._store.commit(write)


def key_of(call: ModelCall) -> str:
    """What identifies a call in a program's record."""
    return call.key or f"{call.agent}:{call.at}:{call.output_tokens}"


def _result_text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(_texts(content))


def _step(block: Block) -> str | ToolBegin | None:
    """The text or the tool call in a block of what an agent said."""
    if block.get("type") == "tool_use":
        given = block.get("input")
        arguments = given if isinstance(given, dict) else {"input": given}
        return ToolBegin(str(block.get("id")), str(block.get("name")), arguments)
    return str(block.get("text", "")).strip() or None if block.get("type") == "text" else None


def _plain(text: str) -> str:
    return "".join(text.split())


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    return [
        str(block.get("text", ""))
        for block in content
        if isinstance(block, dict) and block.get("type") == "text"
    ]
