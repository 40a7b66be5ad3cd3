"""Model calls of an imported session: each counted once, with the figures of its last word, and priced when
it is written."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import Any

from watchkeeper.store import imports as rows
from watchkeeper.transcripts.batch import AHEAD_SECONDS, WINDOW, AgentImport, Batch, OpenCall
from watchkeeper.transcripts.records import MAIN, ModelCall, record_digest

_FIGURES = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
"""Columns of running totals; `ModelCall` holds the same at 3 to 6."""

_LARGE_WINDOW = 1_000_000

_agent_of: Callable[[OpenCall], AgentImport] = attrgetter("agent")


class Spending:
    """The model calls of one session within one transaction.

    Args:
        row: the session's row, whose running totals are kept here.
    """

    def __init__(self, batch: Batch, session_id: str, row: dict[str, Any]) -> None:
        self._batch = batch
        self._session_id = session_id
        self._row = row
        self._calls: list[OpenCall] = []

    def take(self, agent: AgentImport, record: ModelCall, *, counts: bool, revises: bool = False) -> None:
        """One logging of a call.

        Args:
            counts: False where the message that it came with is here already and told of its usage then:
                where its key is not known, the call was counted under another one.
            revises: the log was edited, and says now what the call used: whatever it said before does not
                count.
        """
        batch, key, row = self._batch, record.key, agent.row
        if key:
            known = batch.calls.get(key)
            if known is not None:
                if known.session_id == self._session_id:
                    self._raise_open(known, record, replaces=revises or record.final)
                return
            stored = batch.stored_calls.get(key)
            if stored is not None:
                self._raise_stored(stored, agent, record, replaces=revises or record.final)
                return
        if not counts:
            return
        if record.alias:
            copied = record_digest(record.at, "ModelCall/alias", record.alias)
            if batch.record(copied) is not None:
                return
            batch.remember(copied, agent.id, row["last_seq"], 0)
        number = batch.ids["model_calls"] = batch.ids["model_calls"] + 1
        at = record.at
        if at is None or at > batch.now + AHEAD_SECONDS:
            at = row["last_active"]
        call = OpenCall(number, self._session_id, agent, row["turn"], record, at, at)
        self._calls.append(call)
        if key:
            batch.calls[key] = call
        agent.changed = True
        row["model"] = record.model
        self._note_context(agent, record)

    def _note_context(self, agent: AgentImport, call: ModelCall) -> None:
        """What a call's figures say of its agent's context."""
        fresh, output, read, written = call[3:7]
        row = agent.row
        if call.stop_reason == "end_turn" and (
            self._batch.live or (agent.key != MAIN and row["status"] == "working")
        ):
            row["status"] = "idle" if agent.key == MAIN else "done"
        prompt = fresh + read + written
        if not prompt:
            return
        context = row["context_tokens"] = prompt + output
        if context > row["context_limit"]:
            row["context_limit"] = max(_LARGE_WINDOW if row["context_limit"] == WINDOW else 0, context)
        if agent.compaction is not None:
            self._batch.into["tokens_after"].append((prompt, agent.compaction))
            agent.compaction = None

    def _raise_open(self, call: OpenCall, record: ModelCall, *, replaces: bool) -> None:
        """The same call once more, in the same transaction."""
        old = call.figures
        if record.at is not None and record.at > call.ended:
            call.ended = record.at
        if replaces:
            call.figures = record._replace(
                exact=old.exact or record.exact, stop_reason=record.stop_reason or old.stop_reason
            )
            self._note_context(call.agent, call.figures)
            return
        if record.output_tokens <= old.output_tokens and (
            record.stop_reason is None or old.stop_reason is not None
        ):
            return
        better = record if record.output_tokens > old.output_tokens else old
        ended = old.stop_reason or record.stop_reason
        call.figures = better._replace(exact=old.exact or record.exact, stop_reason=ended)
        self._note_context(call.agent, call.figures)

    def _raise_stored(
        self, stored: rows.Call, agent: AgentImport, record: ModelCall, *, replaces: bool
    ) -> None:
        """The same call once more, after it was written."""
        call_id, session_id, agent_id, old, old_usd, model = *stored[:3], stored[3:7], stored[7], stored[8]
        replaces = replaces and record[3:7] != old
        if session_id != self._session_id or not (
            replaces or record.output_tokens > old[1] or record.stop_reason
        ):
            return
        better = record._replace(model=model)  # an edit may have taken the model's name
        if record.output_tokens <= old[1] and not replaces:
            better = better._replace(
                input_tokens=old[0], output_tokens=old[1], cache_read_tokens=old[2], cache_write_tokens=old[3]
            )
        cost = self._batch.pricing(better)
        figures = better[3:7]
        self._batch.into["call_figures"].append(
            (
                better.stop_reason,
                *figures,
                int(better.exact),
                cost.usd,
                str(cost.status),
                record.at or 0.0,
                call_id,
            )
        )
        self._batch.stored_calls[record.key] = (call_id, session_id, agent_id, *figures, cost.usd, model)
        for row in (self._row, agent.row) if agent.id == agent_id else (self._row,):
            for name, new, was in zip(_FIGURES, figures, old, strict=True):
                row[name] += new - was
            if cost.usd is not None:
                row["cost_usd"] = (row["cost_usd"] or 0.0) + cost.usd - (old_usd or 0.0)
        agent.changed = True
        if agent.id == agent_id:
            self._note_context(agent, better)

    def settle(self) -> None:
        """Price what is new, add it up, and have it written."""
        into, pricing, session_id = self._batch.into, self._batch.pricing, self._session_id
        add, add_key, digest = into["model_calls"].append, into["call_keys"].append, rows.call_digest
        for agent, calls in groupby(self._calls, _agent_of):
            agent_id, count, unpriced = agent.id, 0, 0
            fresh_sum = output_sum = read_sum = written_sum = 0
            costs: list[float] = []
            for call in calls:
                record = call.figures
                cost = pricing(record)
                (
                    _,
                    key,
                    model,
                    fresh,
                    output,
                    read,
                    written,
                    _,
                    exact,
                    stop_reason,
                    _,
                    latency,
                    request_id,
                    *_,
                ) = record
                usd, began = cost.usd, call.began
                add(
                    (call.id, session_id, agent_id, call.turn, model, stop_reason, fresh, output, read, written, int(exact),
                     usd, str(cost.status), began, latency or max(0.0, call.ended - began), key or request_id)
                )  # fmt: skip
                if key:
                    add_key((digest(key), call.id))
                count += 1
                fresh_sum += fresh
                output_sum += output
                read_sum += read
                written_sum += written
                if usd is not None:
                    costs.append(usd)
                elif fresh or output or read or written:
                    unpriced += 1
            for row in (self._row, agent.row):
                row["input_tokens"] += fresh_sum
                row["output_tokens"] += output_sum
                row["cache_read_tokens"] += read_sum
                row["cache_write_tokens"] += written_sum
                row["model_calls"] += count
                row["unpriced_calls"] += unpriced
                if costs:
                    row["cost_usd"] = sum(costs, row["cost_usd"] or 0.0)
        self._calls = []
