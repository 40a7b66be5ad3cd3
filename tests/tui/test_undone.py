"""A pass that was taken back is shown as one, until it is redone."""

from __future__ import annotations

import pytest
from tests.tui.conftest import Desk, shows
from tests.tui.fake_store import insert
from tests.tui.test_compaction_screen import compacted

from watchkeeper.store.projection import CompactionFacts
from watchkeeper.store.snapshot import SessionSnapshotReader, Undone


def views(desk: Desk, *parents: int | None) -> None:
    """Views of explorer-1 from the first on, each with the one it continues."""
    desk.session.connection.execute("DELETE FROM views WHERE agent_id = 'explorer1'")
    for version, parent in enumerate(parents, start=1):
        insert(
            desk.session.connection, "views", agent_id="explorer1", version=version, parent=parent, observations="[]",
            verbatim_from=1, reason="x", created_at=desk.time,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("parents", "current", "undone"),
    [
        ((None, 1, 2), 3, []),
        ((None, 1, 2), 2, [3]),
        ((None, 1, 2), 1, [2, 3]),
        ((None, 1, 2, 2), 4, [3]),  # undone, and gone on from there
        ((None, 1, 2, 2, 4), 5, [3]),  # and compacted again
        ((None, 1, None), 3, []),  # nobody tells what it came from
        ((), 3, []),
    ],
)
def test_a_pass_is_undone_where_the_current_view_did_not_come_from_its_own(desk, parents, current, undone):
    desk.session.compaction("explorer1", view_before=2, view_after=3)
    if len(parents) == 5:
        desk.session.compaction("explorer1", view_before=4, view_after=5)
    views(desk, *parents)
    desk.session.set_agent("explorer1", view_version=current)
    fold, marks = SessionSnapshotReader(desk.session.id), Undone()

    def read() -> tuple[CompactionFacts, ...]:
        reading = fold.read(desk.session.connection, desk.time)
        assert reading is not None
        return marks.mark(desk.session.connection, reading.agents, reading.compactions)

    first = read()
    assert sorted(each.view_after or 0 for each in first if each.status == "undone") == undone
    assert read() is first


async def test_the_panes_tell_what_was_undone_and_what_was_redone(desk: Desk) -> None:
    compacted(desk.session)
    async with desk.shown("tok freed") as pilot:
        desk.session.set_agent("explorer1", view_version=1)
        desk.feed.wake()
        await shows(pilot, "undone", without="tok freed")
        await pilot.press("4", "enter")
        await shows(pilot, "‹ undone", "view 1 is active")
        desk.session.set_agent("explorer1", view_version=2)
        desk.feed.wake()
        await shows(pilot, "✓ applied")
        await pilot.press("escape")
        await shows(pilot, "tok freed", without="undone")
