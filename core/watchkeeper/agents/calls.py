"""An agent's tool calls, read from its rows and messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from watchkeeper.agents.limits import AgentStopped
from watchkeeper.records.messages import Block
from watchkeeper.records.states import ToolCallStatus
from watchkeeper.store import agents
from watchkeeper.store.agents import Agent
from watchkeeper.store.driver import Reads, decode
from watchkeeper.store.transaction import Transaction

OUTCOME_UNKNOWN = (
    "[interrupted, outcome unknown] The program stopped while this call was running. It may have taken"
    " effect, in part or"
    " whole. Verify before you do it again."
)


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of an open turn."""

    id: int
    position: int
    tool_use_id: str
    name: str
    arguments: Any
    """What runs: what a person edited, else the model's input."""
    idempotent: bool
    status: ToolCallStatus
    result: Any
    is_error: bool
    original: Any = None
    """The model's input, where a person edited it; else None."""


def load_calls(reads: Reads, agent_id: str, turn: int, content: Any) -> list[Call]:
    """The calls of a turn, joined with the inputs that stand in the model's reply."""
    uses: list[Block] = (
        [block for block in content if block.get("type") == "tool_use"] if isinstance(content, list) else []
    )
    rows = reads.all(
        "SELECT id, position, tool_use_id, name, idempotent, status, result, is_error, edited_input FROM"
        " tool_calls"
        " WHERE agent_id = ? AND turn = ? ORDER BY position",
        (agent_id, turn),
    )
    return [
        Call(
            id=row[0],
            position=row[1],
            tool_use_id=row[2],
            name=row[3],
            arguments=decode(row[8]) if row[8] is not None else _input(uses, row[1]),
            original=_input(uses, row[1]) if row[8] is not None else None,
            idempotent=bool(row[4]),
            status=ToolCallStatus(row[5]),
            result=decode(row[6]) if row[6] is not None else None,
            is_error=bool(row[7]),
        )
        for row in rows
    ]


def _input(uses: list[Block], position: int) -> Any:
    return uses[position].get("input") if position < len(uses) else None


def assert_mine(tx: Transaction, agent_id: str) -> None:
    """Refuse to write for an agent that was cancelled or replaced meanwhile.

    Raises:
        AgentStopped: it was.
    """
    row = tx.one("SELECT status FROM agents WHERE id = ?", (agent_id,))
    if row is None or row[0] in ("cancelled", "failed", "done"):
        raise AgentStopped(agent_id)


def mark_unknown(tx: Transaction, *, agent: Agent, call: Call, also: str = "") -> None:
    """A call was running when its host died, so its effect is unknown. It runs again only if that does no
    harm. `also` is what the model is told beside that."""
    assert_mine(tx, agent.id)
    if not call.idempotent:
        agents.end_tool_call(tx, call.id, ToolCallStatus.UNKNOWN, OUTCOME_UNKNOWN + also, True, tx.now)
    tx.event(
        "tool.unknown",
        agent_id=agent.id,
        task_id=agent.task_id,
        tool=call.name,
        call=call.id,
        again=call.idempotent,
    )


IDENTICAL_RUNS = 3
"""As often a call that is not idempotent runs with the same input before a person is asked."""
_RECENT_CALLS = 200


def identical_runs(reads: Reads, agent_id: str, call: Call, changes: Callable[[str], bool]) -> int:
    """How often the agent ran this very call (same tool, same input) since it last did something else of
    effect.

    Calls that only look do not end the count, and neither does a call that is itself repeated: a cycle of
    several calls is counted like one. A call of effect that was made once ends it, so a test that runs after
    each edit is no repetition. `changes` says whether a tool may have an effect outside the database.
    """
    rows = reads.all(
        "SELECT id, name, input_digest FROM tool_calls WHERE agent_id = ? AND status IN (?, ?, ?) ORDER BY"
        " id DESC LIMIT ?",
        (agent_id, ToolCallStatus.DONE, ToolCallStatus.ERROR, ToolCallStatus.UNKNOWN, _RECENT_CALLS),
    )
    own = reads.one("SELECT input_digest FROM tool_calls WHERE id = ?", (call.id,))[0]
    if own is None:
        return 0
    made = Counter(row[2] for row in rows)
    count = 0
    for _, name, digest in rows:
        if digest == own:
            count += 1
        elif digest is None or (made[digest] == 1 and changes(name)):
            break
    return count
