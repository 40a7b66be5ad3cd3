"""Where a person went back and said something else: records are chained by `parentUuid`, and two prompts have
one parent.

Parallel calls make branches as well, so that a branch of anything but prompts says nothing.
"""

from __future__ import annotations

from typing import Any

from watchkeeper.transcripts.jsontext import seconds, text_of
from watchkeeper.transcripts.records import Message, Record, Rewind

PROMPTS_KEPT = 300


class BranchBook:
    """The prompts of one agent's file, by what they follow."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        state = state or {}
        self._messages = int(state.get("messages", 0))
        self._prompts: dict[str, int] = dict(state.get("prompts", {}))
        """Parent of a prompt (empty: the first of a chain) → how many messages there were before it."""

    def save(self) -> dict[str, Any]:
        return {"messages": self._messages, "prompts": self._prompts}

    def compacted(self) -> None:
        """A compaction ends what can be taken back by beginning a chain anew: in some logs each chain begins
        so behind it."""
        self._prompts.pop("", None)

    def note(self, record: dict[str, Any], owner: str, found: list[Record]) -> None:
        """Count the message that a line became, and put before it that it takes others back, if it does."""
        for message in found:  # mostly the first; behind a session's or an agent's beginning, or none at all
            if type(message) is Message:
                break
        else:
            return
        if message.agent != owner:
            return
        if message.role == "user" and _is_prompt(record, message):
            parent = text_of(record.get("parentUuid")) or ""
            before = self._prompts.get(parent)
            if before is not None and before < self._messages:
                found.insert(
                    found.index(message),
                    Rewind(owner, "", self._messages - before, seconds(record.get("timestamp"))),
                )
            elif before is None:
                self._prompts[parent] = self._messages
                if len(self._prompts) > PROMPTS_KEPT:
                    self._prompts.pop(next(iter(self._prompts)))
        self._messages += 1


def _is_prompt(record: dict[str, Any], message: Message) -> bool:
    """Whether a person typed it, as far as the record tells."""
    content = message.content
    if type(content) is list:
        for block in content:  # most that a user says by far
            if type(block) is dict and block.get("type") == "tool_result":
                return False
    if record.get("type") != "user" or record.get("isMeta") is True:
        return False
    uuid = text_of(record.get("uuid"))
    return uuid is not None and uuid != text_of(record.get("parentUuid"))
