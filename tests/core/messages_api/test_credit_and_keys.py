"""No credit, a bad key, no key: the run pauses whole, says why in one line, and carries on once that is
mended."""

from __future__ import annotations

import pytest
from tests.core.messages_api.ground import MODEL, Ground
from tests.core.messages_api.scripts import NOTES, Notes, uses
from tests.support.answers import Body, Status
from tests.support.scripted import task

from watchkeeper.runtime.lifecycle import SessionSettings
from watchkeeper.runtime.run_session import Runtime

NO_CREDIT = Status(
    400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."
)
BAD_KEY = Status(401, "authentication_error", "invalid x-api-key")


def test_credit_that_ends_at_70_percent_pauses_and_the_resume_carries_on_at_that_very_turn(
    ground: Ground,
) -> None:
    """One sub-agent of two loses its credit at turn 7 of 10; a third task waits for both."""
    broke = [True]

    def work(name: str, turn: int, body: Body) -> object:
        if turn < (10 if name == "long" else 2):
            return [uses("remember", text=f"{name}: finding {turn}"), uses("recall", query="finding")]
        assert name != "long" or "long: finding 3" in str(body["messages"]), (
            "the memory of the first seven turns is gone"
        )
        return [{"type": "text", "text": f"{name} is done"}]

    def fault(name: str, turn: int, count: int) -> Status | None:
        return NO_CREDIT if name == "long" and turn == 7 and broke[0] else None

    plan = [task("long"), task("short"), task("last", needs=("long", "short"))]
    notes = Notes(plan, work=work, fault=fault)
    server = ground.serve(notes)

    first = ground.run()
    assert (first.code, first.result["status"]) == (5, "paused")
    assert "credit" in first.result["reason"]
    before = ground.show()
    stopped = {one["name"]: one for one in before["plan"]["tasks"]}
    assert stopped["long"]["status"] == "paused"
    assert "credit" in stopped["long"]["status_reason"]
    assert stopped["last"]["status"] == "pending"
    agents = {one["id"]: one for one in before["agents"]}
    assert agents[stopped["long"]["agent"]]["turn"] == 7
    assert stopped["long"]["errors"] == 1

    again = ground.resume()
    assert (again.code, again.result["status"]) == (5, "paused"), (
        "without credit it pauses again, and loses nothing"
    )
    broke[0] = False
    last = ground.resume()
    assert (last.code, last.result["status"]) == (0, "done")

    after = ground.show()
    ended = {one["name"]: one for one in after["plan"]["tasks"]}
    assert {one["status"] for one in ended.values()} == {"done"}
    assert {one["attempt"] for one in ended.values()} == {1}
    assert ended["long"]["agent"] == stopped["long"]["agent"]
    assert (after["plan"]["id"], after["plan"]["revision"]) == (
        before["plan"]["id"],
        before["plan"]["revision"],
    )
    assert len(after["agents"]) == 4
    asked = {turn: count for (name, turn), count in notes.asked.items() if name == "long"}
    assert asked == {turn: 3 if turn == 7 else 1 for turn in range(11)}
    assert max(count for (name, _), count in notes.asked.items() if name not in ("long",)) == 1
    assert server.refused == []
    ground.assert_sound()


def test_a_bad_key_exits_5_with_one_clear_line_and_a_good_one_carries_on(ground: Ground) -> None:
    good = [False]
    notes = Notes(NOTES[:1], fault=lambda name, turn, count: None if good[0] else BAD_KEY)
    ground.serve(notes)
    first = ground.run()
    assert (first.code, first.result["status"]) == (5, "paused")
    assert "ANTHROPIC_API_KEY" in first.result["reason"]
    assert "\n" not in first.result["reason"]
    assert "Traceback" not in first.err
    good[0] = True
    last = ground.resume()
    assert (last.code, last.result["status"]) == (0, "done")
    ground.assert_sound()


def test_a_run_without_any_key_for_anthropic_itself_says_which_variable_to_set(ground: Ground) -> None:
    ended = ground.run(ANTHROPIC_API_KEY="", ANTHROPIC_BASE_URL="")
    assert (ended.code, ended.out) == (2, "")
    assert "ANTHROPIC_API_KEY is not set in the environment of this shell" in ended.err
    assert not ground.path.exists()


def test_a_local_server_needs_no_key(ground: Ground) -> None:
    server = ground.serve(Notes(NOTES[:1]))
    assert ground.run(ANTHROPIC_API_KEY="").code == 0
    assert not any("authorization" in headers or "x-api-key" in headers for headers in server.headers)


def test_the_readable_form_says_what_paused_it_and_how_to_carry_on(ground: Ground) -> None:
    ground.serve(Notes(NOTES[:1], fault=lambda name, turn, count: NO_CREDIT if turn else None))
    ended = ground.wk("run", "reach the goal", "--model", MODEL, "--workspace", str(ground.workspace))
    assert ended.code == 5
    assert "credit" in ended.out
    assert "wk resume" in ended.out.splitlines()[-1]


async def test_a_server_that_was_picked_for_a_session_gets_no_key(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ground.serve(Notes(NOTES[:1]))
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "sk-a-key-of-somebody")
    runtime = Runtime(ground.path)
    settings = SessionSettings(approval_timeout_seconds=0.0, base_url=ground.url)
    session = runtime.start("reach the goal", workspace=ground.workspace, model=MODEL, settings=settings)
    assert (await runtime.run(session)).status == "done"
    assert server.headers
    assert not any("authorization" in headers or "x-api-key" in headers for headers in server.headers)
