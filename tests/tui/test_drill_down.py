"""From an event to its call, from there to the compaction, the observation and the messages behind it, and back the same
way; what a path says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.fake_store import HOSTILE, FakeSession, bindable, create, insert, small_session
from tests.tui.hostile import judge
from tests.tui.test_twenty_questions import import_log, live_run
from textual.pilot import Pilot

from watchkeeper.store.agent_snapshot import place_of_event, read_event
from watchkeeper_tui.screens.compaction import CompactionScreen
from watchkeeper_tui.screens.live import LiveScreen
from watchkeeper_tui.screens.message import MessageScreen
from watchkeeper_tui.screens.replay import ReplayScreen
from watchkeeper_tui.widgets.bars import PathLine

WIDE = (120, 40)


def failed_edit(run: FakeSession, agent: str = "explorer1", path: str = "core/money.py") -> int:
    """An edit that failed, beside another call of the same message; returns the number of its event."""
    edit = {"file_path": path, "old_string": "total = 0.0", "new_string": "total = Cents(0)"}
    seq = run.message(agent, "assistant", [
        {"type": "tool_use", "id": "look", "name": "bash", "input": {"command": "grep total core/money.py"}},
        {"type": "tool_use", "id": "edit", "name": "Edit", "input": edit},
    ])  # fmt: skip
    run.message(agent, "user", [
        {"type": "tool_result", "tool_use_id": "look", "content": "total = 0"},
        {"type": "tool_result", "tool_use_id": "edit", "content": f"no such text in {path}", "is_error": True},
    ])  # fmt: skip
    for number, call_id, name in ((71, "look", "bash"), (72, "edit", "Edit")):
        place = {"agent_id": agent, "turn": 3, "position": number, "seq": seq, "result_seq": seq + 1}
        insert(run.connection, "tool_calls", id=number, session_id=run.id, tool_use_id=call_id, name=name, idempotent=0,
               status="error" if number == 72 else "done", **place)  # fmt: skip
    run.event("tool.done", agent, tool="bash", call=71, preview="total = 0")
    return run.event("tool.error", agent, tool="Edit", call=72, preview="no such text")


def compacted(run: FakeSession, agent: str = "explorer1") -> int:
    """A compaction that replaced all messages so far; returns the number of its event."""
    (last,) = run.connection.execute("SELECT last_seq FROM agents WHERE id = ?", (agent,)).fetchone()
    seen = {"kind": "summary", "tokens": 300, "first_seq": 1, "last_seq": last, "citations": f"[1, {last}]"}
    insert(
        run.connection, "observations", agent_id=agent, id=1, text="Thirty files; an edit failed.",
        created_at=run.now, **seen,
    )  # fmt: skip
    insert(run.connection, "views", agent_id=agent, version=2, parent=1, observations="[1]", verbatim_from=last + 1, reason="summary",
           created_at=run.now)  # fmt: skip
    run.connection.execute("DELETE FROM compactions")
    run.set_agent(agent, view_version=2)
    run.compaction(agent, id=5, high_water=last, view_before=1, view_after=2)
    run.message(agent, "user", "Go on.")
    return run.event("compaction.applied", agent, compaction=5, tokens_before=24_000, tokens_after=6_100)


@pytest.fixture(params=["live", "ended", "imported"])
def scene(request: pytest.FixtureRequest, database: Path, tmp_path: Path) -> Iterator[Desk]:
    if request.param == "imported":
        run = live_run(database)
        import_log(database, tmp_path, run)
        desk = Desk(database, run)
    else:
        run = small_session(create(database))
        failed_edit(run)
        compacted(run)
        run.event("host.started", resume=True)
        run.event("approval.asked", "explorer1", approval="none", tool="bash", question="rm -rf build")
        desk = Desk(database, run)
        if request.param == "ended":
            run.set(status="done", ended_at=run.now)
            desk.host_pid = None
    yield desk
    run.connection.close()


def path_of(pilot: Pilot[int]) -> str:
    return text_of(pilot).partition("\n")[0].strip()


async def opened(pilot: Pilot[int]) -> LiveScreen:
    await until(
        pilot, lambda: isinstance(pilot.app.screen, LiveScreen) and bool(pilot.app.screen.events.rows)
    )
    assert isinstance(pilot.app.screen, LiveScreen)
    return pilot.app.screen


async def drill(pilot: Pilot[int], key: str, shown: str) -> None:
    """Press a key; the path then ends with these words."""
    await pilot.press(key)
    await until(pilot, lambda: path_of(pilot).endswith(shown))


async def test_every_event_leads_somewhere_and_esc_leads_back(scene: Desk) -> None:
    events = scene.session.connection.execute(
        "SELECT seq, kind FROM events WHERE session_id = ? ORDER BY seq", (scene.session.id,)
    ).fetchall()
    assert len(events) >= 6
    async with scene.shown() as pilot:
        screen = await opened(pilot)
        await pilot.press("2")
        for seq, kind in events:
            screen.events.select(str(seq))
            await pilot.press("enter")
            await until(pilot, lambda: pilot.app.screen is not screen and len(text_of(pilot)) > 200)
            event = read_event(scene.session.connection, scene.session.id, seq)
            assert event is not None
            place = place_of_event(scene.session.connection, scene.session.id, event)
            if place.seq:
                await shows(pilot, f"#{place.seq} of ")
            elif place.compaction_id is None:
                await shows(pilot, f"Event #{seq}", kind)
            await pilot.press("escape")
            await until(pilot, lambda: pilot.app.screen is screen)
            assert (screen.active_pane, screen.events.selected_id) == ("events", str(seq))


@pytest.mark.parametrize("size", [(80, 24), WIDE, (200, 60)])
async def test_a_failed_edit_is_reached_from_its_event_and_so_is_all_behind_it(desk, size):
    event = failed_edit(desk.session)
    compacted(desk.session)
    async with desk.shown(size=size) as pilot:
        screen = await opened(pilot)
        screen.action_pane("events")
        screen.events.select(str(event))
        await drill(pilot, "enter", "› agent explorer-1 › call Edit #5")
        # The one call of the message that failed, with what it would have changed and why not.
        for words in (
            "-total = 0.0",
            "+total = Cents(0)",
            "✗ no such text in core/money.py",
            "◆ compaction 1 replaced #1–#6",
        ):
            assert words in text_of(pilot)
        assert "not applied" in text_of(pilot)
        assert text_of(pilot).index("✗ no such text") < text_of(pilot).index("+total = Cents(0)")
        await pilot.press("c")
        await drill(pilot, "enter", "› compaction 1")
        await until(pilot, lambda: "summary 1" in text_of(pilot) or size[0] < 100)
        await pilot.press("tab", "j")
        await shows(pilot, "→ cites #1 #6")
        await drill(pilot, "enter", "› observation 1")
        await shows(pilot, "source messages", "an edit failed")
        await pilot.press("n")
        assert "1 of 2 cited messages" in text_of(pilot)
        await drill(pilot, "m", "› message #1")
        assert path_of(pilot).startswith("migrate billing")
        assert ("…" in path_of(pilot)) == (size[0] == 80)
        for back in ("› observation 1", "› compaction 1", "› call Edit #5"):
            await drill(pilot, "escape", back)
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)
        assert (screen.active_pane, screen.events.selected_id) == ("events", str(event))


async def test_a_click_on_the_path_goes_back_there(desk: Desk) -> None:
    event = compacted(desk.session)
    async with desk.shown() as pilot:
        screen = await opened(pilot)
        screen.action_pane("events")
        screen.events.select(str(event))
        await drill(pilot, "enter", "› compaction 1")
        await pilot.press("tab", "j")
        await drill(pilot, "enter", "› observation 1")
        await pilot.click(PathLine, offset=(text_of(pilot).splitlines()[0].index("compaction"), 0))
        await until(pilot, lambda: path_of(pilot).endswith("› compaction 1"))
        await pilot.click(PathLine, offset=(3, 0))
        await until(pilot, lambda: pilot.app.screen is screen)


async def test_a_replay_opens_what_it_stands_at_and_nothing_later(scene: Desk) -> None:
    async with scene.shown() as pilot:
        await opened(pilot)
        await pilot.press("w")
        await until(
            pilot,
            lambda: isinstance(pilot.app.screen, ReplayScreen) and bool(pilot.app.screen.snapshot.events),
        )
        screen = pilot.app.screen
        assert isinstance(screen, ReplayScreen)
        screen.action_pane("events")
        steps = len(screen.playback.times)
        for position in (1, steps // 2, steps - 1):
            screen.go(position)
            await until(pilot, lambda position=position: screen.shown_position == position)  # type: ignore[misc]
            await pilot.press("enter")
            await until(pilot, lambda: pilot.app.screen is not screen and len(text_of(pilot)) > 200)
            if isinstance(pilot.app.screen, MessageScreen):
                agent = screen.snapshot.agent(screen.snapshot.events[-1].agent_id)
                last = agent.last_seq if agent is not None else 0
                await shows(pilot, f" of {last} ")
                assert "› replay " in path_of(pilot)
            await pilot.press("escape")
            await until(pilot, lambda: pilot.app.screen is screen)


async def test_a_timeline_and_a_search_lead_to_the_message_too(desk: Desk) -> None:
    failed_edit(desk.session)
    compacted(desk.session)
    async with desk.shown() as pilot:
        await opened(pilot)
        await pilot.press("t")
        await shows(pilot, "Timeline  5 agents")
        await pilot.press("j")
        await until(pilot, lambda: "✗ failed" in text_of(pilot).splitlines()[-2])
        await pilot.press("m")
        await until(
            pilot,
            lambda: isinstance(pilot.app.screen, MessageScreen) and "› timeline › agent" in path_of(pilot),
        )
        await pilot.press("escape", "escape", "s")
        await shows(pilot, "Sessions  1")
        await pilot.press("slash", *"cents", "enter")
        await shows(pilot, "found in explorer-1 #5")
        await drill(pilot, "m", "message #5")
        assert path_of(pilot).startswith("sessions › migrate billing to cents › agent explorer-1 ›")
        await pilot.press("c")
        await drill(pilot, "enter", "› compaction 1")
        assert isinstance(pilot.app.screen, CompactionScreen)
        for _ in range(2):
            await pilot.press("escape")
        await shows(pilot, "found in explorer-1 #5")


async def test_hostile_names_and_lines_of_a_megabyte_stay_inert_on_the_way(desk: Desk) -> None:
    run = desk.session
    run.set(goal=bindable(f"goal {HOSTILE}"))
    run.set_agent("explorer1", name=f"explorer {HOSTILE}")
    run.message("explorer1", "user", "x" * 1_000_000)
    event = failed_edit(run, path=f"core/{HOSTILE}.py")
    compacted(run)
    strange = run.event(f"odd.{HOSTILE}", None, **{HOSTILE: [HOSTILE * 40, {HOSTILE: "x" * 1_000_000}]})
    async with desk.shown() as pilot:
        screen = await opened(pilot)
        screen.action_pane("events")
        for seq, keys in (
            (event, ("c", "enter", "tab", "j", "enter", "n", "m", "left_curly_bracket")),
            (strange, ("j",)),
        ):
            screen.events.select(str(seq))
            for key in ("enter", *keys):
                await pilot.press(key)
                await pilot.pause(0.05)
                assert judge(text_of(pilot)) == []
            while pilot.app.screen is not screen:
                await pilot.press("escape")
                await pilot.pause(0.02)


async def test_messages_before_those_of_the_transcript_are_opened_from_its_first_line(desk: Desk) -> None:
    for number in range(450):
        desk.session.message("explorer1", "assistant" if number % 2 else "user", f"word {number}")
    async with desk.shown("explorer-1", size=WIDE) as pilot:
        await pilot.press("3", "right", "slash", *"zebra", "enter", "n")
        await shows(pilot, "no matches in the messages from #", "the first line opens those before")
        await pilot.press("backspace", "g")
        await shows(pilot, "Enter opens them")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, MessageScreen))
        await shows(pilot, "#54 of 454", "word 49")


@pytest.mark.parametrize("keys", [["E"], ["3", "right", "E"]])
async def test_the_failed_call_of_another_agent_is_reached_with_one_key(desk: Desk, keys: list[str]) -> None:
    """While the transcript before is shown, and before it was read: a jump that waited for its reading never ended."""
    failed_edit(desk.session, "explorer2")
    for number in range(60):
        desk.session.message("explorer2", "assistant", f"word {number}")
    desk.session.message("planner1", "user", "Plan it.")
    async with desk.shown("explorer-2", size=WIDE, row="agent:planner1") as pilot:
        for key in keys:
            if key == "E" and len(keys) > 1:
                await shows(pilot, "Plan it.")
            await pilot.press(key)
        await shows(pilot, "3 explorer-2", "[Transcript]", "✗ no such text in core/money.py")


async def test_keys_of_the_transcript_go_on_from_the_cursor(desk: Desk) -> None:
    """Each key that leads to the transcript opened its tab anew, at its end, even where it was open."""
    for number in (1, 2, 3):
        failed_edit(desk.session, path=f"core/{number}.py")
        desk.session.connection.execute("DELETE FROM tool_calls")
        desk.session.message("explorer1", "assistant", "Once more.")
    async with desk.shown("explorer-1", size=WIDE) as pilot:

        async def places(keys: str) -> list[int]:
            found = []
            for key in keys:
                await pilot.press(key)
                await pilot.pause(0.1)
                line = pilot.app.screen_stack[-1].agent_pane.page.selected  # type: ignore[attr-defined]
                found.append(int(line.key.partition(".")[0]))
            return found

        await pilot.press("3", "right", "g")
        assert await places("EEEE") == [5, 8, 11, 5]
        assert await places("WW") == [1, 1]  # the only message of the user
        await pilot.press("g", "slash", *"once", "enter")
        assert await places("nnn") == [10, 13, 7]
