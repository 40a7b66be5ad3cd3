"""Codex's code mode: a plan that a script writes out is a version of the plan."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.core.transcripts.codex_rollout import Rollout
from tests.core.transcripts.conftest import Store
from tests.support.proportion import in_proportion

from watchkeeper.transcripts.codex import plans_in

SCRIPT = """const p = await tools.update_plan({plan:[
  {step:"Look \\"here\\"",status:"in_progress"},
  { "status": "pending", 'step': 'It\\'s {mended}, or not', },
]});
text(p);
"""


def test_a_plan_in_a_script_is_a_version_of_the_plan(store: Store, logs: Path) -> None:
    log = Rollout().user("Mend the cache").item("custom_tool_call", call_id="c1", name="exec", input=SCRIPT)
    done = SCRIPT.replace("in_progress", "completed")
    log.item("custom_tool_call_output", call_id="c1", output="Script completed").says("a")
    log.item("custom_tool_call", call_id="c2", name="exec", input=f"{SCRIPT}{done}")
    log.item("custom_tool_call_output", call_id="c2", output="Script completed")
    store.run(log.write(logs))
    tasks = store.all("SELECT title, status FROM tasks ORDER BY position")
    assert tasks == [('Look "here"', "done"), ("It's {mended}, or not", "pending")]
    assert store.one("SELECT revision FROM plans") == 2
    assert store.counts()["tool_calls"] == 2


def test_what_only_speaks_of_a_plan_is_none() -> None:
    assert plans_in("tools.update_plan({plan: steps})") == []
    assert plans_in('text("update_plan"); f({step: "a", status: "pending"})') == []


@pytest.mark.parametrize(
    "hostile", ['{step:"', "{step:'a',", "{step:`", "update_plan({", '{status:"a","step":"']
)
def test_a_script_that_never_ends_a_text_is_read_in_proportion_to_its_length(hostile: str) -> None:
    assert in_proportion(lambda count: plans_in("update_plan({plan:[" + hostile * count), 20_000)
