"""Model calls of imported sessions: each counted once, with the usage that was logged last, and priced when it is
written. The totals of sessions and agents are summed by SQL from the calls (`store.imports.Rows`)."""

from __future__ import annotations

from watchkeeper.store import imports as rows
from watchkeeper.transcripts.batch import AHEAD_SECONDS, WINDOW, AgentImport, Batch, LoggedCall
from watchkeeper.transcripts.records import MAIN, ModelCall, record_digest

_LARGE_WINDOW = 1_000_000


def take_call(
    batch: Batch, session_id: str, agent: AgentImport, record: ModelCall, *, counts: bool, revises: bool
) -> None:
    """One logging of a call.

    Args:
        counts: False where the message of the same line is stored, and its usage was counted then: a call
            whose key is not known was counted under another one.
        revises: the log was edited, and this is what the call used; what was logged before does not count.
    """
    key, row = record.key, agent.row
    call = batch.calls.get(key) if key else None
    if call is not None:
        if call.session_id == session_id:
            _log_again(batch, call, agent, record, replaces=revises or record.final)
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
    call = LoggedCall(number, session_id, agent.id, record, row["turn"], at, at)
    batch.changed_calls[number] = call
    if key:
        batch.calls[key] = call
    agent.changed = True
    row["model"] = record.model
    row["model_calls"] += 1
    _note_context(batch, agent, record)


def _note_context(batch: Batch, agent: AgentImport, call: ModelCall) -> None:
    """What a call's usage says of its agent's context."""
    fresh, output, read, written = call[3:7]
    row = agent.row
    if call.stop_reason == "end_turn" and (batch.live or (agent.key != MAIN and row["status"] == "working")):
        row["status"] = "idle" if agent.key == MAIN else "done"
    prompt = fresh + read + written
    if not prompt:
        return
    context = row["context_tokens"] = prompt + output
    if context > row["context_limit"]:
        row["context_limit"] = max(_LARGE_WINDOW if row["context_limit"] == WINDOW else 0, context)
    if agent.compaction is not None:
        batch.into["tokens_after"].append((prompt, agent.compaction))
        agent.compaction = None


def _log_again(
    batch: Batch, call: LoggedCall, agent: AgentImport, record: ModelCall, *, replaces: bool
) -> None:
    """The same call once more: it has the usage with the most output, or the newest where that replaces it."""
    old = call.usage
    call.ended = max(call.ended, record.at or 0.0)
    if replaces or record.output_tokens > old.output_tokens:
        better = record._replace(stop_reason=record.stop_reason or old.stop_reason)
    elif record.stop_reason is not None and (old.stop_reason is None or call.is_stored):
        better = record._replace(**{name: getattr(old, name) for name in rows.USAGE})
    else:
        return
    call.usage = better._replace(model=old.model, exact=old.exact or record.exact)
    batch.changed_calls[call.id] = call
    agent.changed = True
    if agent.id == call.agent_id:
        _note_context(batch, agent, call.usage)


def write_calls(batch: Batch) -> None:
    """Price the calls that are new or changed, and have them written."""
    into, pricing = batch.into, batch.pricing
    add, add_key, digest = into["model_calls"].append, into["call_keys"].append, rows.call_digest
    for call in batch.changed_calls.values():
        record = call.usage
        cost = pricing(record)
        _, key, model, fresh, output, read, written, _, exact, stop_reason, _, latency, request_id, *_ = (
            record
        )
        if call.is_stored:
            into["call_usage"].append(
                (stop_reason, fresh, output, read, written, int(exact), cost.usd, str(cost.status), call.ended,
                 call.id)
            )  # fmt: skip
            continue
        add(
            (call.id, call.session_id, call.agent_id, call.turn, model, stop_reason, fresh, output, read, written,
             int(exact), cost.usd, str(cost.status), call.began, latency or max(0.0, call.ended - call.began),
             key or request_id)
        )  # fmt: skip
        if key:
            add_key((digest(key), call.id))
    batch.changed_calls.clear()
