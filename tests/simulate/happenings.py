"""What can happen in a simulated run: faults, and what people do.

Each is one function with `@happening(WEIGHT)`; its name is what scripts call it. It chooses with the random source that it
is given, from the committed state, and does nothing where nothing fits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from watchkeeper.records.errors import WatchkeeperError
from watchkeeper.store import fork, library

if TYPE_CHECKING:
    from tests.simulate.world import World

Happening = Callable[["World", random.Random], None]
HAPPENINGS: dict[str, Happening] = {}
WEIGHTS: dict[str, float] = {}


def happening(weight: float = 1.0) -> Callable[[Happening], Happening]:
    """Enter a function into the table; `weight`: how often it happens, beside the others."""

    def enter(function: Happening) -> Happening:
        name = function.__name__
        HAPPENINGS[name], WEIGHTS[name] = function, weight
        return function

    return enter


def _one_of(world: World, rng: random.Random, columns: str, table: str, where: str = "1 = 1") -> Any:
    """A row of the session; forks have others."""
    rows = world.read(
        f"SELECT {columns} FROM {table} WHERE ({where}) AND session_id = ? ORDER BY rowid",
        world.session,
    )
    return rng.choice(rows) if rows else None


def _agent(world: World, rng: random.Random, where: str = "1 = 1") -> str | None:
    share = world.script.settings.get("same_agent", 0.0)
    if share and rng.random() < share:
        row = _one_of(world, rng, "id", "agents", f"({where}) AND id = '{world.last_agent}'")
        if row:
            return str(row[0])
    row = _one_of(world, rng, "id", "agents", where)
    return row[0] if row else None


def _task(world: World, rng: random.Random, where: str = "1 = 1") -> Any:
    return _one_of(world, rng, "id, name", "tasks", where)


def _person(rng: random.Random) -> str:
    return rng.choice(["ann", "bob"])


# --- Faults -------------------------------------------------------------------------------------------------


@happening(3)
def crash(world: World, rng: random.Random) -> None:
    if world.hosted:
        world.crash("a crash")


@happening(3)
def crash_at_a_point(world: World, rng: random.Random) -> None:
    point = rng.choice(["any", "writer.before_commit", "writer.after_commit", "tool.before_run", "tool.after_run",
                        "model.replied", "command.after_commit"])  # fmt: skip
    world.crash_at = (point, rng.randint(1, 6))
    world.say(f"the machine will stop at {world.crash_at}")


@happening(2)
def model_faults(world: World, rng: random.Random) -> None:
    kind = rng.choice(["retry", "pause", "compact", "fail", "park", "park without a time"])
    world.model_faults.append((kind, world.clock.monotonic() + rng.choice([0.5, 5.0, 60.0])))
    world.say(f"calls of the model meet: {kind}")


@happening(2)
def tool_faults(world: World, rng: random.Random) -> None:
    kind = rng.choice(["worker dies before", "worker dies after", "slow", "error", "no workers"])
    world.tool_faults.append((kind, world.clock.monotonic() + rng.choice([0.5, 5.0, 60.0])))
    world.say(f"calls of tools meet: {kind}")


@happening()
def program_faults(world: World, rng: random.Random) -> None:
    kind = rng.choice(["dies", "limit", "rate_limit", "refuses"])
    world.program_faults.append((kind, world.clock.monotonic() + rng.choice([0.5, 5.0, 60.0])))
    world.say(f"agent programs meet: {kind}")


@happening()
def shell_dies(world: World, rng: random.Random) -> None:
    if shells := [one for one in world.workers if one.is_shell]:
        shell = rng.choice(shells)
        world.say(f"shell {shell.shell_identity()} dies")
        shell.die()


@happening()
def file_changes(world: World, rng: random.Random) -> None:
    """Somebody else writes to a file of the workspace."""
    text = f"one\ntwo\n{rng.randrange(100)}\n"
    (world.folder / "work" / "shared.txt").write_text(text)
    world.say(f"shared.txt is written from outside: {text!r}")


@happening()
def clock_jumps(world: World, rng: random.Random) -> None:
    world.clock.offset += rng.choice([-7_200.0, -30.0, 30.0, 7_200.0])
    world.say(f"the wall clock is set to {world.clock.offset:+g} s")


@happening()
def lost_lease(world: World, rng: random.Random) -> None:
    """The lock of the session is gone (a file server was restarted), and a second host claims it."""
    world.lose_lease()


@happening()
def second_host(world: World, rng: random.Random) -> None:
    """Somebody starts a second host while the first one runs: it is refused."""
    world.claim_beside()


@happening()
def full_disk(world: World, rng: random.Random) -> None:
    world.fill_disk(rng.choice([0.5, 5.0, 30.0]))


# --- What people do -----------------------------------------------------------------------------------------


@happening()
def pause(world: World, rng: random.Random) -> None:
    world.ask("pause", by=_person(rng), payload={"now": rng.random() < 0.5})


@happening()
def pause_agent(world: World, rng: random.Random) -> None:
    if agent := _agent(world, rng, "status NOT IN ('done', 'failed', 'cancelled')"):
        world.ask("pause", by=_person(rng), agent_id=agent, payload={"now": rng.random() < 0.5})


@happening()
def resume(world: World, rng: random.Random) -> None:
    world.ask("resume", by=_person(rng))


@happening()
def resume_agent(world: World, rng: random.Random) -> None:
    if agent := _agent(world, rng):
        world.ask("resume", by=_person(rng), agent_id=agent)


@happening(0.7)
def cancel_task(world: World, rng: random.Random) -> None:
    if task := _task(world, rng):
        world.ask("cancel", by=_person(rng), task_id=task[0])


@happening(0.2)
def cancel_session(world: World, rng: random.Random) -> None:
    world.ask("cancel", by=_person(rng))


@happening(2)
def rerun(world: World, rng: random.Random) -> None:
    if task := _task(world, rng):
        payload = {"fresh": rng.random() < 0.5} | (
            {"message": "try it otherwise"} if rng.random() < 0.5 else {}
        )
        world.ask("rerun", by=_person(rng), task_id=task[0], payload=payload)


@happening()
def steer(world: World, rng: random.Random) -> None:
    if agent := _agent(world, rng):
        world.ask(
            "steer", by=_person(rng), agent_id=agent, payload={"text": f"mind the gap {rng.randrange(1000)}"}
        )


@happening(0.5)
def steer_all(world: World, rng: random.Random) -> None:
    world.ask("steer", by=_person(rng), payload={"text": f"rule {rng.randrange(1000)}", "all": True})


def _edited(tool: str, number: int) -> dict[str, Any]:
    """Another input for a tool."""
    if tool == "bash":
        return {"command": f"./effect edited-{number}"}
    if tool == "write":
        return {"file_path": f"edited-{number}.txt", "content": "edited\n"}
    if tool == "edit":
        return {"file_path": "shared.txt", "old_string": "one", "new_string": f"one {number}"}
    return {"label": f"edited-{number}"}


@happening(2)
def approve(world: World, rng: random.Random) -> None:
    if row := _one_of(world, rng, "id, tool", "approvals"):
        payload: dict[str, Any] = {"approval": row[0]}
        if rng.random() < 0.3:
            payload["edited_input"] = _edited(row[1], rng.randrange(100))
        elif rng.random() < 0.2:
            payload["scope"] = "tool"
        world.ask("approve", by=_person(rng), payload=payload)


@happening()
def deny(world: World, rng: random.Random) -> None:
    if row := _one_of(world, rng, "id", "approvals"):
        world.ask("deny", by=_person(rng), payload={"approval": row[0], "reason": "no"})


@happening(0.5)
def revoke(world: World, rng: random.Random) -> None:
    if row := _one_of(world, rng, "id", "permission_grants"):
        world.ask("revoke", by=_person(rng), payload={"grant": row[0]})


@happening(2)
def compact(world: World, rng: random.Random) -> None:
    if agent := _agent(world, rng):
        world.ask("compact", by=_person(rng), agent_id=agent)


@happening()
def undo(world: World, rng: random.Random) -> None:
    if agent := _agent(world, rng, "compactions > 0"):
        world.ask("undo", by=_person(rng), agent_id=agent)


@happening(0.5)
def redo(world: World, rng: random.Random) -> None:
    if agent := _agent(world, rng, "compactions > 0"):
        world.ask("redo", by=_person(rng), agent_id=agent)


@happening()
def edit_memory(world: World, rng: random.Random) -> None:
    row = _one_of(world, rng, "id, last_seq", "agents", "last_seq > 2")
    if row:
        how = rng.choice(["drop", "pin", "unpin"])
        world.ask("edit", by=_person(rng), agent_id=row[0], payload={how: [rng.randint(1, row[1])]})


@happening(0.5)
def pin_rule(world: World, rng: random.Random) -> None:
    world.ask("pin", by=_person(rng), payload={"text": f"always {rng.randrange(1000)}"})


@happening(0.5)
def pin_fact(world: World, rng: random.Random) -> None:
    if row := _one_of(world, rng, "id", "facts"):
        world.ask(rng.choice(["pin", "unpin"]), by=_person(rng), payload={"fact": row[0]})


@happening()
def plan_add(world: World, rng: random.Random) -> None:
    name = f"extra{rng.randrange(20)}"
    needs = [task[1]] if (task := _task(world, rng)) and rng.random() < 0.5 else []
    arguments = {"name": name, "instructions": f"Please do {name}.", "role": "explorer", "depends_on": needs}
    world.ask("plan", by=_person(rng), payload={"act": "add", "arguments": arguments})


@happening()
def plan_revise(world: World, rng: random.Random) -> None:
    if task := _task(world, rng):
        arguments = {"task": task[1], "instructions": f"Please do it otherwise {rng.randrange(100)}."}
        world.ask("plan", by=_person(rng), payload={"act": "revise", "arguments": arguments})


@happening(0.7)
def plan_drop(world: World, rng: random.Random) -> None:
    if task := _task(world, rng):
        world.ask(
            "plan",
            by=_person(rng),
            payload={"act": "drop", "arguments": {"task": task[1], "reason": "enough"}},
        )


@happening()
def set_budget(world: World, rng: random.Random) -> None:
    kind, amount = rng.choice(
        [("tokens", 20_000), ("tokens", 200_000), ("turns", 12), ("turns", 60), ("seconds", 40)]
    )
    task = _task(world, rng) if rng.random() < 0.3 else None
    if rng.random() < 0.5:  # a little more than is used
        kind, more = "tokens", rng.choice([3_000, 12_000, 40_000])
        used = "SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM model_calls WHERE session_id = ?"
        amount = world.read(used, world.session)[0][0] + more
    world.ask("set_budget", by=_person(rng), task_id=task[0] if task else None,
              payload={"kind": kind, "amount": rng.choice([amount, None])})  # fmt: skip


@happening(0.3)
def newer_command(world: World, rng: random.Random) -> None:
    """A newer program asks for what this version does not know."""
    world.ask_unknown(by=_person(rng))


@happening(0.5)
def memory_sync(world: World, rng: random.Random) -> None:
    world.ask("memory_sync", by=_person(rng))


@happening(0.5)
def fork_session(world: World, rng: random.Random) -> None:
    """A fork of a session that nobody drives; it is deleted and restored, and does not touch the first one."""
    if world.hosted:
        return
    with suppress(WatchkeeperError):
        made = fork.fork_session(world.path, world.session, new_id=world.new_id, now=world.clock.now)
        world.say(f"forked as {made.session_id}")
        library.delete_session(world.path, made.session_id, now=world.clock.now())
        library.restore_session(world.path, made.session_id)
        library.delete_session(world.path, made.session_id, now=world.clock.now())
