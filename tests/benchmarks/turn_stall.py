"""How long an agent's turn waits on its memory while a summariser takes ten seconds, beside a twin that waits for it.

    python tests/benchmarks/turn_stall.py [--messages 480] [--per-second 8] [--summarizer-seconds 10] [--window 16000]

A turn's stall is the time of `add_message` and `get_context`, by `time.perf_counter`; beside it the loop thread's own CPU
time in it, which a busy machine does not lengthen. Messages are those of a coding
agent (calls, results of very different sizes, replies). The loop's lag is how much later than asked a timer fires
beside it: what memory costs everybody else on the same event loop. The twin awaits the same summariser, whenever the
threshold is reached, as "asynchronous" compaction that is awaited at the next turn does.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

from watchkeeper import HierarchicalContextManager
from watchkeeper.memory.tokens import default_counter

_WORDS = "the parser of tests fails on line path module value returns error class import def self none data with from"
WORDS = _WORDS.split()


def agent_messages(count: int, seed: int = 7) -> list[dict[str, Any]]:
    """A coding agent's session: assignment, then calls and results of 40 to 6,000 characters, with remarks."""
    random_ = random.Random(seed)

    def words(number: int) -> str:
        return " ".join(
            f"src/{random_.choice(WORDS)}/{random_.choice(WORDS)}.py:{random_.randrange(900)}" if random_.random() < 0.04
            else random_.choice(WORDS) for _ in range(number)
        )  # fmt: skip

    made: list[dict[str, Any]] = [{"role": "user", "content": "Find why the build fails, and mend it. " + words(80)}]
    while len(made) < count:
        call = f"toolu_{len(made)}"
        path = f"src/{random_.choice(WORDS)}.py"
        made.append({"role": "assistant", "content": [
            {"type": "text", "text": words(random_.randrange(5, 60))},
            {"type": "tool_use", "id": call, "name": "read", "input": {"file_path": path}},
        ]})  # fmt: skip
        size = min(1_000, int(random_.lognormvariate(4.5, 1.0)))
        made.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": words(max(8, size))}]})
    return made[:count]


def summarizer(seconds: float) -> Any:
    async def summarize(messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None) -> str:
        await asyncio.sleep(seconds)
        return f"{len(messages)} messages were about a build that fails. The parser was read, and its tests."

    return summarize


async def drive(messages: Sequence[dict[str, Any]], window: int, seconds: float, pause: float, *, waits: bool) -> dict[str, Any]:
    """Feed the messages at a rate; what each turn and the loop waited, in milliseconds, and what was compacted."""
    manager = HierarchicalContextManager(
        window, summarizer=summarizer(seconds), reserve_tokens=window // 10, pin_first=True, passes_per_hour=0 if waits else 120
    )
    done: list[Any] = []
    manager.on("swap:complete", done.append)
    stalls: list[float] = []
    cpu: list[float] = []
    lags: list[float] = []
    running = True

    async def watch() -> None:
        while running:
            asked = time.perf_counter()
            await asyncio.sleep(0.002)
            lags.append(1000 * (time.perf_counter() - asked - 0.002))

    watcher = asyncio.create_task(watch())
    for message in messages:
        began, began_cpu = time.perf_counter(), time.thread_time()
        await manager.add_message(message)
        if waits and manager.tokens >= window * 0.75:
            await manager.compact()
        manager.get_context()
        stalls.append(1000 * (time.perf_counter() - began))
        cpu.append(1000 * (time.thread_time() - began_cpu))
        await asyncio.sleep(pause)
    running = False
    await watcher
    await manager.close()
    summaries = sum(1 for swap in done if getattr(swap, "reason", "") not in ("digest", "elision"))
    return {"stalls": stalls, "cpu": cpu, "lags": lags, "swaps": len(done), "summaries": summaries}


def at(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def tell(name: str, got: dict[str, Any]) -> None:
    stalls, lags, cpu = got["stalls"], got["lags"], got["cpu"]
    print(
        f"{name:<9} {len(stalls)} turns: stall p50 {at(stalls, 0.5):.2f}, p99 {at(stalls, 0.99):.2f}, max {max(stalls):.2f} ms"
        f" (of it CPU p99 {at(cpu, 0.99):.2f}, max {max(cpu):.2f});"
        f" loop lag p99 {at(lags, 0.99):.2f}, max {max(lags):.2f} ms; {got['swaps']} swaps, {got['summaries']} of them summaries"
    )


async def run(options: argparse.Namespace) -> None:
    default_counter().count("the encoding is loaded before anything is measured")
    messages = agent_messages(options.messages)
    pause = 1 / options.per_second
    ours = await drive(messages, options.window, options.summarizer_seconds, pause, waits=False)
    tell("ours", ours)
    twin = await drive(messages[: options.twin_messages], options.window, options.summarizer_seconds, pause, waits=True)
    tell("blocking", twin)
    print(f"the blocking twin's worst turn waits {max(twin['stalls']) / max(ours['stalls']):,.0f} times as long")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=480)
    parser.add_argument("--twin-messages", type=int, default=160)
    parser.add_argument("--per-second", type=float, default=8.0)
    parser.add_argument("--summarizer-seconds", type=float, default=10.0)
    parser.add_argument("--window", type=int, default=16_000)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
