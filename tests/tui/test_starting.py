"""A run in which nobody is at work yet says what goes on, in place of empty panes."""

from __future__ import annotations

import pytest
from tests.tui.conftest import Desk, text_of, until


def a_new_run(desk: Desk, **values: object) -> None:
    for table in ("agents", "tasks", "events", "compactions"):
        desk.session.connection.execute(f"DELETE FROM {table}")
    unbegun = {
        "planner_agent_id": None,
        "current_plan_id": None,
        "created_at": desk.time,
        "last_active": desk.time,
        "host_pid": None,
    }
    desk.session.set(**unbegun | values)
    desk.host_pid = None


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_while_the_host_starts_the_panes_say_so_until_the_planner_is_there(
    desk: Desk, size: tuple[int, int]
) -> None:
    a_new_run(desk)
    async with desk.app().run_test(size=size) as pilot:
        await until(
            pilot,
            lambda: "OPENING" in text_of(pilot) and "Starting the background process…" in text_of(pilot),
        )
        assert "has not been given to an agent" not in text_of(pilot)
        desk.host_pid = 77
        desk.session.set(host_pid=77)
        desk.feed.wake()
        await until(
            pilot,
            lambda: "LIVE" in text_of(pilot) and "Starting the planner…" in text_of(pilot),
        )
        desk.session.agent("planner1", "planner", role="planner")
        desk.session.set(planner_agent_id="planner1")
        desk.feed.wake()
        await until(pilot, lambda: "● ▾ planner" in text_of(pilot) or "●   planner" in text_of(pilot))
        assert "Starting the planner…" not in text_of(pilot)


async def test_a_run_whose_host_never_came_says_how_to_start_another(desk: Desk) -> None:
    a_new_run(desk, created_at=desk.time - 60)
    async with desk.app().run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "STOPPED" in text_of(pilot) and "r starts another" in text_of(pilot))


async def test_a_filter_that_keeps_no_row_says_so(desk: Desk) -> None:
    async with desk.app().run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "Explore core" in text_of(pilot))
        await pilot.press("slash", *"zebra")
        await until(pilot, lambda: "nothing here has these words: zebra" in text_of(pilot))
