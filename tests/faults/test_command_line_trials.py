"""The kill trials' own model: what it does next follows from what the conversation says, so that no kill
confuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.faults.ledger_model import JOIN, LedgerModel
from tests.support.answers import Reply

ASSIGNED = {"role": "user", "content": f'# Task\n\nhandoff: {{"task": "{JOIN}", "attempt": 1}}'}
UNKNOWN = "[interrupted, outcome unknown] Verify before you repeat it."


def asked(model: LedgerModel, messages: list[dict[str, Any]]) -> dict[str, Any]:
    answer = model({"messages": messages, "tools": [{"name": "save_artifact"}]})
    assert isinstance(answer, Reply)
    return answer.blocks[0]


def answered(messages: list[dict[str, Any]], call: dict[str, Any], result: str) -> list[dict[str, Any]]:
    told = {"type": "tool_result", "tool_use_id": call["id"], "content": result}
    return [*messages, {"role": "assistant", "content": [call]}, {"role": "user", "content": [told]}]


def model(tmp_path: Path) -> LedgerModel:
    return LedgerModel(1, tmp_path / "ledger", faults=0)


def test_a_reply_that_was_not_committed_is_given_again(tmp_path: Path) -> None:
    made = model(tmp_path)
    assert asked(made, [ASSIGNED])["input"] == asked(made, [ASSIGNED])["input"]


def test_after_an_unknown_outcome_it_looks_and_repeats_only_what_is_missing(tmp_path: Path) -> None:
    for there, again in (("there", False), ("missing", True)):
        made = model(tmp_path)
        effect = asked(made, [ASSIGNED])
        messages = answered([ASSIGNED], effect, UNKNOWN)
        look = asked(made, messages)
        assert "grep" in look["input"]["command"]
        messages = answered(messages, look, UNKNOWN)
        second = asked(made, messages)
        assert "grep" in second["input"]["command"]
        following = asked(made, answered(messages, second, there))
        assert (following["input"] == effect["input"]) == again
