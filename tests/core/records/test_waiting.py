"""Why something waits, in one word."""

from __future__ import annotations

import pytest

from watchkeeper.agents.loop import SAME_CALLS_IN_A_ROW
from watchkeeper.models import anthropic, openai
from watchkeeper.records.waiting import Waiting, waiting_word

LOOP = f"stuck in a loop: same calls {SAME_CALLS_IN_A_ROW} times in a row"
STATES: list[tuple[str, str | None, str | None, str | None]] = [
    ("waiting", "wants to run bash", None, "question"),
    ("parked", "rate limited", None, "limit"),
    ("paused", "paused by dashboard", None, "paused"),
    ("paused", None, None, "paused"),
    ("paused", "the session's budget of 5 US dollars is reached ($5.01 used); raise it with `wk budget`", None, "budget"),
    ("paused", "the task's budget of 900 tokens is too small for the next call (1 used, 950 needed)", None, "budget"),
    ("paused", "project ops has used $20 of its budget of $20; raise it with `wk budget --project ops`", None, "budget"),
    ("paused", "fix-bytes is paused: the task's budget of 9 turns is reached (9 used)", None, "budget"),
    ("paused", f"anthropic/claude-opus-4-1: {anthropic.NO_KEY}", None, "no key"),
    ("paused", f"openai/gpt-5: {openai.NO_KEY}", None, "no key"),
    ("paused", "authentication_error (401): invalid x-api-key; set a valid ANTHROPIC_API_KEY, then resume", None, "no key"),
    ("paused", "claude is not logged in (Please run /login)", None, "no key"),
    ("paused", "You've hit your weekly limit · resets Mon 8am", None, "limit"),
    ("paused", "the planner ended its turn without finishing, and nothing is left to run; steer it", None, "person"),
    ("failed", LOOP, None, "loop"),
    ("failed", "it made the same calls 12 times in a row", None, "loop"),  # of an earlier version
    ("failed", "expected outputs are missing: budget.md", None, None),
    ("done", LOOP, None, None),
    ("cancelled", "cancelled by root", None, None),
    ("working", None, None, None),
    ("working", None, "tool", None),
    ("working", None, "slot", "slot"),
    ("working", None, "waiting", "question"),
    ("unheard-of", LOOP, "slot", None),
]  # fmt: skip


@pytest.mark.parametrize(("status", "reason", "activity", "word"), STATES)
def test_a_reason_has_one_word(
    status: str, reason: str | None, activity: str | None, word: str | None
) -> None:
    assert waiting_word(status, reason, activity) == word


def test_a_word_is_short_enough_for_the_columns_of_states() -> None:
    assert all(len(word) <= 9 for word in Waiting)
