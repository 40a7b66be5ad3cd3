"""How long an agent's turn waits on its memory while a summariser takes ten seconds, beside a twin that waits
for it.

    python benchmarks/turn_stall.py [--windows 16000,64000,200000] [--per-second 8] [--summarizer-seconds 10]
    python benchmarks/turn_stall.py --windows 200000 --per-second 500 --summarizer-seconds 0.16 --profile

A turn's stall is the time of `add_message` and `get_context`, by `time.perf_counter`; beside it the loop
thread's own CPU time in it, which a busy machine does not lengthen. Messages are those of a coding agent
(calls, results of very different sizes, whole files among them, replies). Each window is filled to half
before anything is measured, and fed until at least `--fills` more of its size has gone by. The loop's lag is
how much later than asked a timer fires beside it: what memory costs all else on the same event loop.
The twin awaits the same summariser, whenever the threshold is reached, as "asynchronous" compaction that is
awaited at the next turn does. The worst turns are listed with what happened in them. `--profile` shows where
the time of all turns went.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import random
import time
from collections.abc import Sequence
from typing import Any

from watchkeeper import HierarchicalContextManager
from watchkeeper.memory.tokens import default_counter

_WORDS = "the parser of tests fails on line path module value returns error class import def self none data with from"
WORDS = _WORDS.split()


def agent_messages(count: int, seed: int = 7) -> list[dict[str, Any]]:
    """A coding agent's session: assignment, then calls and results of 40 to 40,000 characters, with
    remarks."""
    random_ = random.Random(seed)

    def words(number: int) -> str:
        return " ".join(
            f"src/{random_.choice(WORDS)}/{random_.choice(WORDS)}.py:{random_.randrange(900)}" if random_.random() < 0.04
            else random_.choice(WORDS) for _ in range(number)
        )  # fmt: skip

    made: list[dict[str, Any]] = [
        {"role": "user", "content": "Find why the build fails, and mend it. " + words(80)}
    ]
    while len(made) < count:
        call = f"toolu_{len(made)}"
        path = f"src/{random_.choice(WORDS)}.py"
        made.append({"role": "assistant", "content": [
            {"type": "text", "text": words(random_.randrange(5, 60))},
            {"type": "tool_use", "id": call, "name": "read", "input": {"file_path": path}},
        ]})  # fmt: skip
        size = min(6_000, int(random_.lognormvariate(5.4, 1.2)))
        made.append(
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call, "content": words(max(8, size))}],
            }
        )
    return made[:count]


def summarizer(seconds: float) -> Any:
    async def summarize(
        messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> str:
        await asyncio.sleep(seconds)
        # A summary that named no file would be refused: it would say less than a digest.
        calls = [message["content"][-1] for message in messages if message["role"] == "assistant"]
        merged = messages[0]["content"][:2_000] if isinstance(messages[0]["content"], str) else ""
        read = dict.fromkeys(call["input"]["file_path"] for call in calls)
        read |= dict.fromkeys(word.strip(",.") for word in merged.split() if "/" in word)
        return f"{len(messages)} messages were about a build that fails. Read so far: {', '.join(read)}."

    return summarize


async def drive(
    messages: Sequence[dict[str, Any]], window: int, options: argparse.Namespace, *, waits: bool
) -> dict[str, Any]:
    """Feed the messages at a rate; what each turn and the loop waited, in milliseconds, and what was
    compacted."""
    manager = HierarchicalContextManager(
        window,
        summarizer=summarizer(options.summarizer_seconds),
        reserve_tokens=window // 10,
        pin_first=True,
        passes_per_hour=0 if waits else 100_000,
    )
    happened: list[Any] = []
    for event in ("swap:start", "swap:complete", "swap:rejected", "swap:abandoned"):
        manager.on(event, happened.append)  # type: ignore[arg-type]
    given = iter(messages)
    while manager.tokens < window * 0.5:
        await manager.add_message(next(given))
    stalls: list[tuple[float, float, str]] = []
    lags: list[float] = []
    running = True

    async def watch() -> None:
        while running:
            asked = time.perf_counter()
            await asyncio.sleep(0.002)
            lags.append(1000 * (time.perf_counter() - asked - 0.002))

    watcher = asyncio.create_task(watch())
    profile = cProfile.Profile(time.thread_time) if options.profile and not waits else None
    until = manager.messages[-1].total_tokens + window * (options.twin_fills if waits else options.fills)
    while manager.messages[-1].total_tokens < until:
        message = next(given)
        heard = len(happened)
        if profile is not None:
            profile.enable()
        began, began_cpu = time.perf_counter(), time.thread_time()
        await manager.add_message(message)
        if waits and manager.tokens >= window * 0.75:
            await manager.compact()
        manager.get_context()
        stall, cpu = time.perf_counter() - began, time.thread_time() - began_cpu
        if profile is not None:
            profile.disable()
        what = (
            ", ".join(f"{swap.event[5:]} {swap.reason[:40]}".strip() for swap in happened[heard:])
            or "nothing"
        )
        stalls.append((1000 * stall, 1000 * cpu, f"{what}; message of {manager.messages[-1].tokens} tokens"))
        await asyncio.sleep(1 / options.per_second)
    running = False
    await watcher
    await manager.close()
    if profile is not None:
        pstats.Stats(profile).strip_dirs().sort_stats("cumulative").print_stats(28)
    done = [swap.reason for swap in happened if swap.event == "swap:complete"]
    return {"stalls": stalls, "lags": lags, "swaps": len(done), "summaries": done.count("summary")}


def at(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def tell(name: str, got: dict[str, Any]) -> None:
    stalls, cpu, lags = [one[0] for one in got["stalls"]], [one[1] for one in got["stalls"]], got["lags"]
    print(
        f"{name:<9} {len(stalls)} turns: stall p50 {at(stalls, 0.5):.2f}, p99 {at(stalls, 0.99):.2f}, max"
        f" {max(stalls):.2f} ms"
        f" (of it CPU p50 {at(cpu, 0.5):.2f}, p99 {at(cpu, 0.99):.2f}, max {max(cpu):.2f});"
        f" loop lag p99 {at(lags, 0.99):.2f}, max {max(lags):.2f} ms; {got['swaps']} swaps,"
        f" {got['summaries']} of them summaries"
    )


async def run(options: argparse.Namespace) -> None:
    default_counter().count("the encoding is loaded before anything is measured")
    messages = agent_messages(40_000)
    gc.freeze()  # the collector need not walk what only this program holds
    for window in (int(text) for text in options.windows.split(",")):
        print(f"window {window:,}")
        ours = await drive(messages, window, options, waits=False)
        tell("ours", ours)
        for stall, cpu, what in sorted(ours["stalls"], reverse=True)[:5]:
            print(f"    {stall:7.2f} ms, CPU {cpu:6.2f}: {what}")
        if options.twin_fills > 0:
            twin = await drive(messages, window, options, waits=True)
            tell("blocking", twin)
            most = max(one[0] for one in twin["stalls"]) / max(one[0] for one in ours["stalls"])
            print(f"the blocking twin's worst turn waits {most:,.0f} times as long")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--windows", default="16000,64000,200000")
    parser.add_argument("--fills", type=float, default=2.0, help="how many windows full are measured")
    parser.add_argument("--twin-fills", type=float, default=0.6, help="the same for the twin; 0: no twin")
    parser.add_argument("--per-second", type=float, default=8.0)
    parser.add_argument("--summarizer-seconds", type=float, default=10.0)
    parser.add_argument(
        "--profile", action="store_true", help="of our turns, by the CPU time of the loop's thread"
    )
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
