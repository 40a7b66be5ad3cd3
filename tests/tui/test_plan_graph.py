"""The plan as a graph: what is drawn, what waits for what, and what a revision changed."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.tui.conftest import NOW, Desk, shows, text_of, until
from tests.tui.fake_store import HOSTILE, insert

from watchkeeper.store.snapshot import TaskFacts
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.screens.plan import MOST_RAILS, changes, drawn, in_order

TASK = TaskFacts("", "plan1", "", 0, "", "coder", None, "pending", None, 1, None, None, None, 0.0, None, None)
GRAPHS = st.lists(st.lists(st.integers(0, 24), max_size=5), min_size=1, max_size=25)


def tasks(*needs: list[int]) -> list[TaskFacts]:
    return [
        replace(TASK, id=str(place), name=str(place), position=place, depends_on=tuple(map(str, each)))
        for place, each in enumerate(needs)
    ]


def picture(*needs: list[int]) -> list[str]:
    ordered = in_order(tasks(*needs))
    glyphs = {task.id: (task.id, "text") for task in ordered}
    return ["".join(text for text, _ in line).rstrip() for line in drawn(ordered, glyphs)]


def test_branches_and_joins_are_drawn_as_rails() -> None:
    assert picture([], [0], [0], [1, 2]) == ["0", "├─1", "2 │", "3─╯"]
    assert picture([], [], [], [0, 1, 2]) == ["0", "│ 1", "│ │ 2", "3─┴─╯"]
    assert picture([], [0], [1]) == ["0", "1", "2"]


@given(GRAPHS)
def test_every_task_is_drawn_once_below_what_it_needs(graph: list[list[int]]) -> None:
    """Also with circles, with tasks that are not there, and with ones that need themselves."""
    found = tasks(*graph)
    ordered = in_order(found)
    assert sorted(task.id for task in ordered) == sorted(task.id for task in found)
    lower = [task for place, task in enumerate(found) if all(int(need) < place for need in task.depends_on)]
    if len(lower) == len(found):  # no circle
        places = {task.id: place for place, task in enumerate(ordered)}
        assert all(places[need] < places[task.id] for task in found for need in task.depends_on)
    lines = drawn(ordered, {task.id: ("●", "text") for task in found})
    assert len(lines) == len(ordered)
    for line in lines:
        text = "".join(part for part, _ in line)
        assert len(text) <= 2 * MOST_RAILS + 1
        assert text.count("●") == 1 or "…" in text


def test_a_revision_says_what_it_added_removed_and_changed() -> None:
    before = [
        {"id": "a", "title": "Port a", "depends_on": []},
        {"id": "b", "title": "Port b", "depends_on": []},
    ]
    after = [
        {"id": "a", "title": "Port a", "depends_on": ["c"]},
        {"id": "c", "title": "Split", "depends_on": []},
    ]
    assert sorted(changes(before, after)) == [
        ("+", "Split", ""),
        ("-", "Port b", ""),
        ("~", "Port a", "after Split"),
    ]
    assert changes(after, after) == []


async def test_enter_goes_to_the_task_and_hostile_text_stays_inert(desk: Desk) -> None:
    run = desk.session
    run.task("t-evil", HOSTILE, needs=("t-core",))
    graph = json.dumps(
        [{"id": "t-evil", "title": HOSTILE.encode("utf-8", "replace").decode(), "depends_on": ["t-core"]}]
    )
    plan = {"goal": "g", "created_at": NOW, "updated_at": NOW}
    insert(run.connection, "plans", id="plan1", session_id=run.id, **plan)
    insert(run.connection, "plan_revisions", plan_id="plan1", revision=1, at=NOW, reason=HOSTILE, goal="g", task_queue="[]",
           step_cursor=0, plan_graph_snapshot=graph)  # fmt: skip
    async with desk.shown("explorer-1") as pilot:
        await pilot.press("d")
        await shows(pilot, "waits for explorer-1")
        await pilot.press("v")
        await shows(pilot, "1 revision", "+ ")
        assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(text_of(pilot))
        await pilot.press("v", "j", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveScreen))
        screen = pilot.app.screen
        assert isinstance(screen, LiveScreen)
        await until(
            pilot, lambda: screen.plan.selected_id is not None and screen.plan.selected_id.startswith("task:")
        )
