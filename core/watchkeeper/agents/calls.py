"""An agent's tool calls, read from its rows and messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from watchkeeper.agents.limits import AgentStopped
from watchkeeper.records.states import AGENT_ENDED, ToolCallStatus
from watchkeeper.store import agents
from watchkeeper.store.agents import Agent, Call
from watchkeeper.store.driver import Reads
from watchkeeper.store.transaction import Transaction

OUTCOME_UNKNOWN = (
    "[interrupted, outcome unknown] The program stopped while this call was running. It may have taken"
    " effect, fully or"
    " partly. Verify before you repeat it."
)


def assert_mine(tx: Transaction, agent_id: str) -> None:
    """Refuse to write for an agent that was cancelled or replaced meanwhile.

    Raises:
        AgentStopped: it was.
    """
    status = agents.status_of(tx, agent_id)
    if status is None or status in AGENT_ENDED:
        raise AgentStopped(agent_id)


def mark_unknown(tx: Transaction, *, agent: Agent, call: Call, also: str = "") -> None:
    """A call was running when its host died, so its effect is unknown. It runs again only if that is
    safe. `also` is added to the text that the model receives."""
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
    runs = agents.recent_runs(reads, agent_id, _RECENT_CALLS)
    own = agents.digest_of_call(reads, call.id)
    if own is None:
        return 0
    made = Counter(digest for _, digest in runs)
    count = 0
    for name, digest in runs:
        if digest == own:
            count += 1
        elif digest is None or (made[digest] == 1 and changes(name)):
            break
    return count
