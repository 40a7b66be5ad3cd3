"""What a compaction is said to bring before it is done."""

from __future__ import annotations

import json

from tests.tui.conftest import Desk, shows, until
from tests.tui.fake_store import insert

from watchkeeper.store.projection import AgentFacts, CompactionFacts
from watchkeeper.store.snapshot import SessionSnapshotReader
from watchkeeper_tui.requests import estimate_compaction


def read(desk: Desk, name: str) -> tuple[AgentFacts, tuple[CompactionFacts, ...]]:
    connection, session = desk.session.connection, desk.session.id
    reading = SessionSnapshotReader(session).read(connection, desk.time)
    assert reading is not None
    return next(each for each in reading.agents if each.id == name), reading.compactions


def test_an_estimate_follows_the_agents_own_earlier_passes(desk: Desk) -> None:
    desk.session.connection.execute(
        "UPDATE compactions SET cost_usd = 0.024, tokens_before = 24000, tokens_after = 6000"
    )
    guess = estimate_compaction(*read(desk, "explorer1"))
    assert guess.tokens_now == 14_000
    assert guess.tokens_fixed == 1_000  # the system prompt and the tools, which no pass touches
    assert guess.tokens_left == 1_000 + 13_000 // 4
    assert guess.cost_usd is not None
    assert abs(guess.cost_usd - 0.014) < 1e-9
    assert guess.basis == "its 1 earlier compaction"


def test_without_a_pass_it_keeps_a_fifth_of_the_window_and_never_grows(desk: Desk) -> None:
    desk.session.connection.execute("DELETE FROM compactions")
    agent, passes = read(desk, "explorer1")
    guess = estimate_compaction(agent, passes)
    assert 6_400 < guess.tokens_left < guess.tokens_now
    desk.session.set_agent("explorer1", composition=json.dumps({"messages": 300}), context_tokens=300)
    assert estimate_compaction(*read(desk, "explorer1")).tokens_left <= 300


def test_what_has_no_price_is_said_to_be_unpriced(desk: Desk) -> None:
    desk.session.set_agent("explorer1", cost_usd=None)
    assert estimate_compaction(*read(desk, "explorer1")).cost_usd is None


async def test_a_pass_that_was_asked_for_is_followed_to_its_end(desk: Desk) -> None:
    session = desk.session
    async with desk.shown("3 explorer-1") as pilot:
        await pilot.press("C")
        await shows(pilot, "14k of 32k tok now", "Estimate: about", "The agent keeps working.")
        await pilot.press("y")
        await until(pilot, lambda: len(session.commands()) == 1)
        desk.feed.wake()
        await shows(pilot, "accepted, queued")
        insert(
            session.connection, "compactions", id=77, session_id=session.id, agent_id="explorer1", trigger="manual",
            status="running", high_water=41, tokens_before=14_000, requested_at=desk.time,
        )  # fmt: skip
        session.connection.execute(
            "UPDATE commands SET status = 'applied', result = 'begun', applied_at = ?", (desk.time,)
        )
        desk.feed.wake()
        await shows(pilot, "observing up to #41", "the agent keeps working")
        session.connection.execute("UPDATE compactions SET status = 'prepared' WHERE id = 77")
        desk.feed.wake()
        await shows(pilot, "applied at the agent's next step")
        session.connection.execute(
            "UPDATE compactions SET status = 'applied', tokens_after = 5000, ended_at = ? WHERE id = 77",
            (desk.time,),
        )
        desk.feed.wake()
        await shows(pilot, "14k → 5.0k -64%", "u undoes it")
