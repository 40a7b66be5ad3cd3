"""Usage limits park the agents that need the model, and the host wakes them when the time has come."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest
from tests.core.messages_api.ground import Ground, wait_until
from tests.core.messages_api.scripts import Notes, keep_notes, who
from tests.support.answers import Body, Status, turn_of
from tests.support.messages_server import MessagesServer
from tests.support.scripted import task

from watchkeeper.models.anthropic import AnthropicModel
from watchkeeper.records.ports import ManualClock
from watchkeeper.runtime.host import HostResult
from watchkeeper.runtime.lifecycle import SessionSettings
from watchkeeper.runtime.run_session import Runtime

START = 1_700_000_000.0
TWO_HOURS = 7_200.0
NAMES = [f"t{number:02d}" for number in range(20)]


class HeldClock(ManualClock):
    """A clock on which, while it is held, sleepers wait until it is released. Else each sleep of the host moves
    it, however many calls the machine has not sent yet."""

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self._released = asyncio.Event()
        self.release()

    def hold(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    async def sleep(self, seconds: float) -> None:
        await self._released.wait()
        await super().sleep(seconds)


class SetClock(HeldClock):
    """A held clock whose wall time can be set apart from the time that passes."""

    offset = 0.0

    def now(self) -> float:
        return super().now() + self.offset


class Limited:
    """A provider whose limit is used up from the moment `is_closed` until `reopens_at`; keeps the time of
    each request."""

    def __init__(self, ground: Ground, names: list[str], *, limit: Any = None) -> None:
        self.ground = ground
        self.clock = HeldClock(START)
        self.notes = Notes([task(name) for name in names], work=keep_notes)
        self.closes_at_turn = 1
        self.reopens_at = START + TWO_HOURS
        self.limit = limit or (
            lambda wait: Status(429, "rate_limit_error", "limit", {"retry-after": f"{wait:.3f}"})
        )
        self.refused: list[float] = []
        self.served: list[tuple[float, str]] = []
        self._lock = threading.Lock()
        self.server: MessagesServer = ground.serve(self)
        self.session = ""

    def __call__(self, body: Body) -> Any:
        now = self.clock.now()
        name = who(body)
        with self._lock:
            if now < self.reopens_at and name != "planner" and turn_of(body) >= self.closes_at_turn:
                self.refused.append(now)
                return self.limit(self.reopens_at - now)
            self.served.append((now, name))
        return self.notes(body)

    def runtime(self) -> Runtime:
        model = AnthropicModel("claude-test", api_key="test-key", base_url=self.ground.url, clock=self.clock)
        self.ground.models.append(model)
        return Runtime(self.ground.path, model=model, clock=self.clock)

    def start(self) -> Runtime:
        runtime = self.runtime()
        settings = SessionSettings(approval_timeout_seconds=0.0, max_parallel=20)
        self.session = runtime.start("reach the goal", workspace=self.ground.workspace, settings=settings)
        return runtime

    async def run(self, runtime: Runtime) -> HostResult:
        return await runtime.run(self.session)

    def agents(self) -> dict[str, int]:
        return dict(self.ground.query("SELECT status, count(*) FROM agents GROUP BY status"))


async def until(condition: Callable[[], object]) -> None:
    """Let the host work until something is so: it works with every look."""
    while not condition():  # noqa: ASYNC110 - what changes is a file
        await asyncio.sleep(0.01)


async def test_twenty_agents_parked_for_two_hours_fail_nothing_and_call_nothing_before_the_time(
    ground: Ground,
) -> None:
    limited = Limited(ground, NAMES)
    limited.clock.hold()
    running = asyncio.ensure_future(limited.run(limited.start()))
    await until(lambda: limited.agents().get("parked", 0) == 20)
    limited.clock.release()
    result = await running
    assert (result.status, result.exit_code) == ("done", 0)
    assert ground.query(
        "SELECT count(*) FROM events WHERE kind IN ('task.failed', 'agent.failed', 'agent.paused')"
    ) == [(0,)]
    assert ground.query("SELECT count(DISTINCT agent_id) FROM events WHERE kind = 'agent.parked'") == [(20,)]
    assert max(limited.refused) < START + 60, "once the limit is known, nobody calls before its time"
    after = sorted(at for at, name in limited.served if at >= limited.reopens_at and name != "planner")
    first_turns = after[:1]
    assert first_turns[0] >= limited.reopens_at
    assert after[1] > after[0], "one call comes first"
    woken = [
        row[0]
        for row in ground.query(
            "SELECT at FROM events WHERE kind = 'agent.working' AND at >= ?", START + 7_000
        )
    ]
    assert len(set(woken)) >= 15, "they do not go on in the same second"
    assert ground.query("SELECT kind, count(*) FROM rate_limits GROUP BY kind") == []
    assert ground.query("SELECT hosted_seconds < 600, max(active_seconds) < 600 FROM sessions, agents") == [
        (1, 1)
    ]
    ground.assert_done()


async def test_a_limit_outlives_a_killed_host_and_a_resume(ground: Ground) -> None:
    limited = Limited(ground, NAMES)
    limited.clock.hold()
    first = asyncio.ensure_future(limited.run(limited.start()))
    await until(lambda: limited.agents().get("parked", 0) == 20)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert limited.agents()["parked"] == 20
    asked = len(limited.refused)
    limited.clock.release()
    limited.clock.advance(3_600)

    result = await limited.run(limited.runtime())
    assert (result.status, result.exit_code) == ("done", 0)
    assert len(limited.refused) == asked, "the next host calls nobody before the time"
    ground.assert_done()


def test_a_host_that_is_killed_while_its_agents_are_parked_leaves_them_parked_until_the_same_time(
    ground: Ground,
) -> None:
    """`kill -9` of a real host; the next one calls nobody, until a person wakes one agent and its call
    succeeds."""
    limited = Limited(ground, NAMES[:4])
    limited.clock.advance(time.time() - START)
    limited.reopens_at = limited.clock.now() + TWO_HOURS

    def parked() -> dict[str, float]:
        return dict(ground.query("SELECT id, parked_until FROM agents WHERE status = 'parked'"))

    first = ground.start_run("--max-parallel", "4")
    wait_until(lambda: limited.refused and len(parked()) == 4)
    before, asked = parked(), len(limited.refused)
    first.kill()
    assert first.wait(30) == -9
    second = ground.start("resume", "last", "--headless", "--json")
    wait_until(lambda: len(ground.query("SELECT 1 FROM events WHERE kind = 'host.started'")) == 2)
    one = next(iter(before))
    assert ground.wk("steer", "last", one, "go on").code == 0  # applied: the host has looked at its agents
    assert (parked(), len(limited.refused)) == (before, asked)
    limited.reopens_at = 0.0
    assert ground.wk("resume", "last", one).code == 0
    assert second.wait(60) == 0
    ground.assert_done()


@pytest.mark.parametrize("jump", [-10 * 86_400.0, 3_600.0])
async def test_a_wall_clock_that_is_set_while_agents_are_parked_neither_holds_them_longer_nor_fails_them(
    ground: Ground, jump: float
) -> None:
    limited = Limited(ground, NAMES[:4])
    clock = limited.clock = SetClock(START)
    clock.hold()
    running = asyncio.ensure_future(limited.run(limited.start()))
    await until(lambda: limited.agents().get("parked", 0) == 4)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    clock.offset = jump
    clock.release()
    begun = clock.monotonic()
    limited.reopens_at += (
        jump  # the provider's limit ends when it ends, whatever this machine calls that time
    )
    result = await limited.run(limited.runtime())
    assert (result.status, result.exit_code) == ("done", 0)
    assert clock.monotonic() - begun < TWO_HOURS + 600
    ground.assert_done()


LIMITS = {
    "a date": lambda wait: Status(429, "rate_limit_error", "limit", {"retry-after": formatdate(START + TWO_HOURS, usegmt=True)}),
    "overloaded": lambda wait: Status(529, "overloaded_error", "Overloaded", {"retry-after": f"{wait:.0f}"}),
    "a header of a limit": lambda wait: Status(
        429, "rate_limit_error", "limit",
        {"anthropic-ratelimit-tokens-remaining": "0", "anthropic-ratelimit-tokens-reset": "2023-11-15T00:13:20Z"},
    ),
    "a field": lambda wait: Status(429, body={"error": {"type": "usage_limit_reached", "message": "limit", "resets_in_seconds": wait}}),
    "words": lambda wait: Status(
        400, "invalid_request_error",
        "You have reached your specified API usage limits. You will regain access on 2023-11-15 at 00:13"
        " UTC.",
    ),
    "an epoch": lambda wait: Status(429, "rate_limit_error", f"Claude AI usage limit reached|{START + 7_200:.0f}"),
}  # fmt: skip


@pytest.mark.parametrize("said", LIMITS, ids=lambda said: said.replace(" ", "_"))
async def test_however_a_provider_names_the_end_of_a_limit_its_agents_are_parked_until_then(
    ground: Ground, said: str
) -> None:
    limited = Limited(ground, NAMES[:2], limit=LIMITS[said])
    limited.clock.hold()  # else the first agent's pause moves the clock while the second is refused
    running = asyncio.ensure_future(limited.run(limited.start()))
    await until(lambda: limited.agents().get("parked", 0) == 2)
    limited.clock.release()
    result = await running
    assert (result.status, result.exit_code) == ("done", 0)
    ends = {
        row[0]
        for row in ground.query(
            "SELECT json_extract(data, '$.until') FROM events WHERE kind = 'agent.parked'"
        )
    }
    assert ends
    assert all(abs(at - limited.reopens_at) <= 60 for at in ends)
    ground.assert_done()


async def test_too_many_requests_for_half_an_hour_without_a_time_fail_no_task(ground: Ground) -> None:
    limited = Limited(ground, NAMES[:4], limit=lambda _: Status(429, "rate_limit_error", "Slow down"))
    limited.reopens_at = START + 1_800
    result = await limited.run(limited.start())
    assert (result.status, result.exit_code) == ("done", 0)
    assert ground.query(
        "SELECT count(*) FROM events WHERE kind IN ('task.failed', 'agent.failed', 'agent.paused')"
    ) == [(0,)]
    assert ground.query("SELECT count(*) > 0 FROM events WHERE kind = 'agent.parked'") == [(1,)]
    ground.assert_done()


async def test_without_credit_a_resume_makes_one_call_and_wakes_the_others_only_after_it_succeeds(
    ground: Ground,
) -> None:
    no_credit = Status(
        400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."
    )
    limited = Limited(ground, NAMES, limit=lambda wait: no_credit)
    result = await limited.run(limited.start())
    assert (result.status, result.exit_code) == ("paused", 5)
    assert "credit" in (result.reason or "")
    for _ in range(2):
        asked = len(limited.refused), len(limited.served)
        again = await limited.run(limited.runtime())
        assert (again.status, again.exit_code) == ("paused", 5)
        assert "credit" in (again.reason or "")
        assert (len(limited.refused), len(limited.served)) == (asked[0] + 1, asked[1])
    limited.reopens_at = 0.0
    last = await limited.run(limited.runtime())
    assert (last.status, last.exit_code) == ("done", 0)
    assert ground.query("SELECT count(*) FROM rate_limits") == [(0,)]
    ground.assert_done()


async def test_a_person_wakes_one_parked_agent_which_tries_one_call(ground: Ground) -> None:
    limited = Limited(ground, NAMES[:4])
    limited.clock.hold()
    runtime = limited.start()
    running = asyncio.ensure_future(limited.run(runtime))
    await until(lambda: limited.agents().get("parked", 0) == 4)
    shown = "SELECT count(*) FROM live WHERE activity = 'parked' AND until >= ?"
    await until(lambda: ground.query(shown, limited.reopens_at) == [(4,)])
    asked = len(limited.refused)
    ((agent,),) = ground.query("SELECT id FROM agents WHERE status = 'parked' LIMIT 1")
    command = runtime.submit(limited.session, "resume", agent_id=agent)
    await until(lambda: ground.query("SELECT status FROM commands WHERE id = ?", command) == [("applied",)])
    await until(lambda: len(limited.refused) > asked and limited.agents().get("parked", 0) == 4)
    assert len(limited.refused) == asked + 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
