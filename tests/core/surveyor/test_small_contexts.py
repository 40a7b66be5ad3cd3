"""The surveyor over the real context memory: digests and shortened messages change nothing in a survey."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.core.surveyor.counting import assert_true
from tests.core.surveyor.session import FakeSession, text_of
from tests.core.surveyor.test_surveys import grow

from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits
from watchkeeper.memory.tokens import as_counter


class RememberingSession(FakeSession):
    """Each agent's context is a real `ContextState` of `limit` tokens, a third of it taken by tools and
    reply."""

    limit = 16_000
    digests = 0
    shortened = 0

    def run_agent(self, agent: str, role: str, arrives: str, *, most_turns: int = 400) -> str:
        states: dict[str, Any] = self.contexts
        if agent not in states:
            limits = ContextLimits(
                max_tokens=self.limit, reserve_tokens=self.limit // 6, overhead_tokens=self.limit // 6
            )
            states[agent] = ContextState(limits, as_counter(lambda text: len(text) // 3 + 1), agent_id=agent)
        state: ContextState = states[agent]
        state.append("user", arrives, at=0.0)
        for _ in range(most_turns):
            state.fit(at=0.0)
            if state.needs_compaction():
                state.digest(at=0.0, reason="digest")
            self.shortened += bool(state.view.elided)
            reply = self.reply(role, state.render())
            state.append("assistant", reply.content, at=0.0)
            uses = [block for block in reply.content if block["type"] == "tool_use"]
            if not uses:
                self.digests += len(state.views) - 1
                return text_of(reply.content)
            state.append("user", [self.result(agent, use) for use in uses], at=0.0)
        raise AssertionError(f"{agent} does not come to an end")


@pytest.mark.parametrize(
    ("window", "limit"), [(16_000, 16_000), (8_000, 8_000), (16_000, 7_000), (6_000, 6_000)]
)
def test_a_survey_in_any_context_is_the_survey(tmp_path, window, limit):
    root = grow(tmp_path / "w", random.Random(3), 500)
    (root / "long").mkdir()
    (root / "long" / "todos.py").write_text(
        "".join(f"# TODO number {n} {'and so on ' * 9}\n" for n in range(200))
    )
    plain = FakeSession(root).run()
    session = RememberingSession(root, window=window)
    session.limit = limit
    session.run()
    assert_true(session.survey, root)
    assert json.dumps(session.survey) == json.dumps(plain.survey)
    assert session.digests > 5, "the contexts were small enough for this test to mean something"
    if limit < window:
        assert session.shortened
