"""How well a sum is known is told wherever it stands: `~` before an estimate, `+` after a lower bound,
`unpriced`."""

from __future__ import annotations

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.test_library_screens import library_of

from watchkeeper_tui import formatting

WIDE = (140, 40)


@pytest.mark.parametrize(
    ("usd", "unpriced", "estimated", "words"),
    [
        (4.82, 0, False, "$4.82"), (4.82, 0, True, "~$4.82"), (4.82, 2, False, "$4.82+"),
        (4.82, 2, True, "~$4.82+"), (None, 2, True, "unpriced"), (None, 0, False, "-"),
    ],
)  # fmt: skip
def test_a_sum_says_how_well_it_is_known(usd, unpriced, estimated, words):
    assert formatting.cost(usd, unpriced, estimated=estimated) == words


@pytest.mark.parametrize("why", [{"price_status": "estimated"}, {"usage_exact": 0}])
async def test_an_estimated_cost_is_marked_in_the_header_the_plan_and_the_agent_pane(desk, why):
    desk.session.call("explorer1", turn=13, **why)
    async with desk.shown(size=WIDE) as pilot:
        await until(pilot, lambda: "~$4.82" in text_of(pilot).splitlines()[0])
        rows = {
            line.split("│")[1][:24].strip(" ▌"): line.split("│")[1]
            for line in text_of(pilot).splitlines()
            if "│" in line
        }
        planner, core, docs = (
            next(rows[name] for name in rows if words in name)
            for words in ("planner", "explorer-1", "explorer-3")
        )
        assert "~$0.55" in planner  # the sum of what is below it
        assert "~$0.11" in core
        assert " $0.11" in docs
        assert any("~$0.11  128k tok" in line for line in text_of(pilot).splitlines())


async def test_what_has_no_price_is_called_so_in_the_plan_and_makes_the_sum_a_lower_bound(desk: Desk) -> None:
    desk.session.set_agent("explorer1", cost_usd=None, unpriced_calls=12)
    desk.session.set(unpriced_calls=12)
    async with desk.shown(size=WIDE) as pilot:
        await until(pilot, lambda: "$4.82+" in text_of(pilot).splitlines()[0])
        assert any("explorer-1" in line and "unpriced" in line for line in text_of(pilot).splitlines())
        assert any("planner" in line and "$0.44+" in line for line in text_of(pilot).splitlines())
        assert "unpriced  128k tok" in text_of(pilot)


async def test_the_list_of_sessions_and_a_comparison_mark_estimates(desk: Desk) -> None:
    library_of(desk)
    desk.session.call("explorer1", turn=13, price_status="estimated")
    async with desk.shown("~$4.82", " $1.25", size=WIDE, screen="sessions") as pilot:
        await pilot.press("space", "space", "equals_sign")
        await shows(pilot, "Compare abcd2345", "~$4.82")


def test_looking_for_estimates_reads_an_index_that_holds_nothing_else(desk: Desk) -> None:
    from watchkeeper.store.projection import SESSION, _sessions
    from watchkeeper.store.snapshot import _AGENTS

    for sql in (SESSION, _AGENTS):
        plan = desk.session.connection.execute("EXPLAIN QUERY PLAN " + sql, (desk.session.id,)).fetchall()
        assert any("model_calls_estimated" in step[3] for step in plan), plan
    plan = desk.session.connection.execute("EXPLAIN QUERY PLAN " + _sessions(500)).fetchall()
    assert any("model_calls_estimated" in step[3] for step in plan), plan
