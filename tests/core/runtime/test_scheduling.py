"""The board says what may run next, whatever happened to the plan since it was last looked at."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.runtime.conftest import Ground, add_agent, add_task

from watchkeeper.records.states import TASK_MOVES, AgentStatus, TaskStatus
from watchkeeper.runtime.scheduler import SATISFIED, Schedule
from watchkeeper.store import agents, plans
from watchkeeper.store.transaction import Transaction


class Plan(Ground):
    """A session with a plan."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.write(lambda tx: plans.create_plan(tx, "plan", "goal"))
        self.count = 0

    def add(self, needs: list[str]) -> str:
        number, name = self.count, f"t{self.count:02}"
        self.count += 1

        def change(tx: Transaction) -> None:
            add_task(tx, name, number)
            plans.set_dependencies(tx, name, needs)
            plans.revise(tx, "plan", f"added {name}")

        self.write(change)
        return name

    def move(self, name: str, status: TaskStatus) -> None:
        self.write(lambda tx: plans.move(tx, name, status))

    def statuses(self) -> dict[str, tuple[TaskStatus, list[TaskStatus]]]:
        """How each task stands, and what it depends on: read whole."""
        tasks = plans.load_tasks(self.store, self.session)
        by_id = {task.id: task.status for task in tasks}
        return {task.id: (task.status, [by_id[need] for need in task.depends_on]) for task in tasks}

    def expected(self, status: TaskStatus) -> list[str]:
        return [
            name
            for name, (own, needs) in self.statuses().items()
            if own is status and all(need in SATISFIED for need in needs)
        ]


@settings(max_examples=15)
@given(st.data())
def test_the_board_says_what_the_rows_say_after_any_changes(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        ground = Plan(Path(name))
        board = Schedule(ground.store, ground.session)
        given_before: set[str] = set()
        for _ in range(data.draw(st.integers(1, 25))):
            known = [f"t{number:02}" for number in range(ground.count)]
            if not known or data.draw(st.integers(0, 3)) == 0:
                needs = st.lists(st.sampled_from(known), unique=True, max_size=3) if known else st.just([])
                ground.add(data.draw(needs))
            else:
                one = data.draw(st.sampled_from(known))
                ground.move(one, data.draw(st.sampled_from(sorted(TASK_MOVES[ground.statuses()[one][0]]))))
                given_before.discard(one)  # it has changed: it must be given again
            if data.draw(st.booleans()):
                continue
            board.refresh()
            assert board.settled_stale() == ground.expected(TaskStatus.STALE)
            expected = ground.expected(TaskStatus.PENDING)
            assert board.has_ready() >= bool(set(expected) - given_before)
            if data.draw(st.booleans()):
                taken = list(iter(board.next_ready, None))
                assert set(expected) - given_before <= set(taken)
                assert taken == [one for one in expected if one in taken]
                assert not board.has_ready()
                given_before = set(expected)
            fresh = Schedule(ground.store, ground.session)
            fresh.refresh()
            assert list(iter(fresh.next_ready, None)) == expected
        ground.close()


def test_with_a_restriction_other_tasks_stay_where_they_are(tmp_path: Path) -> None:
    ground = Plan(tmp_path)
    for _ in range(3):
        ground.add([])
    board = Schedule(ground.store, ground.session)
    board.refresh()
    assert board.has_ready({"t02"})
    assert board.next_ready({"t02"}) == "t02"
    assert board.next_ready({"t02"}) is None
    assert not board.has_ready({"t02"})
    assert [board.next_ready(), board.next_ready(), board.next_ready()] == ["t00", "t01", None]
    ground.close()


def test_agents_are_looked_at_when_they_have_changed_and_when_somebody_asks(tmp_path: Path) -> None:
    ground = Plan(tmp_path)
    for one in ("first", "second", "third"):
        ground.write(lambda tx, one=one: add_agent(tx, one))
    ground.write(lambda tx: agents.move(tx, "third", AgentStatus.DONE))
    board = Schedule(ground.store, ground.session)
    board.refresh()
    assert board.take_agents() == ["first", "second"]
    ground.write(lambda tx: agents.move(tx, "second", AgentStatus.CANCELLED))
    board.look_at("first")
    board.refresh()
    assert board.take_agents() == ["first", "second"]
    board.refresh()
    assert board.take_agents() == []
    ground.write(lambda tx: agents.move(tx, "third", AgentStatus.WORKING, "resumed"))
    board.forget()
    board.refresh()
    assert set(board.take_agents()) == {"first", "third"}
    ground.close()
