"""What began a compaction of an imported session, where its log tells that only later."""

from __future__ import annotations

from typing import Any


def tell_trigger(cursor: Any, agent_id: str, trigger: str) -> None:
    """Say of an agent's newest compaction what began it."""
    cursor.execute(
        "UPDATE compactions SET trigger = ? WHERE id = (SELECT max(id) FROM compactions WHERE agent_id = ?)",
        (trigger, agent_id),
    )
