"""What adding a message costs at 10^3, 10^4, 10^5 and 10^6 messages, ours and (where installed) other
managers', in one run.

    python benchmarks/memory_cost.py [--most 1000000] [--window 16000] [--peers-most 1000]
    [--peers-only]

Each figure is the mean of the 2,000 messages that follow at that length of history, in microseconds of the
process's CPU time (a busy machine does not count), all work included: counting tokens, the digests and passes
that become due, garbage collection. The ratio is that of the longest to the shortest history. Peers are given
the same texts, and asked for the context after each message as an agent does; what is not
installed is named and left out: `pip install openai-agents strands-agents langmem`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import time
from collections.abc import Awaitable, Callable
from typing import Any

from watchkeeper import HierarchicalContextManager
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.history import ContextLimits
from watchkeeper.memory.tokens import default_counter

SAMPLE = 2_000
PEER_SAMPLE = 500
Add = Callable[[str, str], Awaitable[Any]]


def text_of(number: int) -> str:
    """Some 60 tokens, different each time."""
    return (
        f"Step {number}: I read src/module_{number % 977}.py and the tests beside it; {number * 7919 % 1000}"
        " of them pass. "
        "The parser keeps its state between calls, which is why the second run fails where the first one did"
        " not. Next I "
        "look at how the cache is cleared."
    )


def role_of(number: int) -> str:
    return "user" if number % 2 else "assistant"


async def measure(name: str, add: Add, lengths: list[int], sample: int = SAMPLE) -> None:
    """Grow a history to each length, and time the messages that follow."""
    number = 0
    found: list[float] = []
    for length in lengths:
        while number < length:
            number += 1
            await add(role_of(number), text_of(number))
        gc.collect()
        began = time.process_time()
        for _ in range(sample):
            number += 1
            await add(role_of(number), text_of(number))
        found.append(1e6 * (time.process_time() - began) / sample)
    figures = ", ".join(f"{length:,}: {value:.1f} µs" for length, value in zip(lengths, found, strict=True))
    print(f"{name:<34} {figures}; ratio {found[-1] / found[0]:.2f}", flush=True)


def our_state(window: int) -> Add:
    state = ContextState(ContextLimits(window, 0), default_counter())

    async def add(role: Any, text: str) -> None:
        state.append(role, text, at=0.0)

    return add


def our_manager(window: int, *, summarises: bool, reads: bool) -> Add:
    async def summarize(
        messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> str:
        return "The parser keeps its state between calls; the cache is next."

    manager = HierarchicalContextManager(window, summarizer=summarize if summarises else None)

    async def add(role: str, text: str) -> None:
        await manager.add_message({"role": role, "content": text})
        if reads:
            manager.get_context()

    return add


def openai_agents(window: int) -> Add:
    """openai-agents' SQLiteSession (in memory), items read back at each turn, as its runner does."""
    from agents import SQLiteSession

    session = SQLiteSession("bench")

    async def add(role: str, text: str) -> None:
        await session.add_items([{"role": role, "content": text}])  # type: ignore[list-item,misc]
        await session.get_items()

    return add


def strands(window: int) -> Add:
    """strands-agents' SlidingWindowConversationManager over an agent's message list, applied at each turn."""
    from types import SimpleNamespace

    from strands.agent.conversation_manager import SlidingWindowConversationManager

    manager = SlidingWindowConversationManager(window_size=max(40, window // 60))
    agent: Any = SimpleNamespace(messages=[])

    async def add(role: str, text: str) -> None:
        agent.messages.append({"role": role, "content": [{"text": text}]})
        manager.apply_management(agent)

    return add


def langchain_trim(window: int) -> Add:
    """LangGraph's usual `trim_messages` over the whole history at each turn, its own approximate counter."""
    from langchain_core.messages import AIMessage, HumanMessage, trim_messages
    from langchain_core.messages.utils import count_tokens_approximately

    history: list[Any] = []

    async def add(role: str, text: str) -> None:
        history.append((HumanMessage if role == "user" else AIMessage)(text))
        trim_messages(
            history, max_tokens=window, token_counter=count_tokens_approximately, strategy="last",
            start_on="human",
        )  # fmt: skip

    return add


def langmem(window: int) -> Add:
    """LangMem's `summarize_messages` over LangGraph's message list at each turn, its model answering at
    once."""
    from langchain_core.language_models import FakeListChatModel
    from langchain_core.messages import AIMessage, HumanMessage
    from langmem.short_term import summarize_messages

    model = FakeListChatModel(responses=["The parser keeps its state between calls."])
    history: list[Any] = []
    running: list[Any] = [None]

    async def add(role: str, text: str) -> None:
        history.append((HumanMessage if role == "user" else AIMessage)(text, id=str(len(history))))
        result = summarize_messages(
            history, running_summary=running[0], model=model, max_tokens=window, max_summary_tokens=256
        )
        running[0] = result.running_summary or running[0]

    return add


PEERS: list[tuple[str, str, Callable[[int], Add]]] = [
    ("openai-agents SQLiteSession", "agents", openai_agents),
    ("strands SlidingWindow", "strands", strands),
    ("langchain trim_messages", "langchain_core", langchain_trim),
    ("langmem summarize_messages", "langmem", langmem),
]


async def run(options: argparse.Namespace) -> None:
    default_counter().count("the encoding is loaded before anything is measured")
    lengths = [length for length in (1_000, 10_000, 100_000, 1_000_000) if length <= options.most]
    window = options.window
    print(f"window {window:,} tokens; mean of {SAMPLE:,} messages at each length of history")
    if not options.peers_only:
        await measure("ContextState.append", our_state(window), lengths)
        await measure("manager, digest alone", our_manager(window, summarises=False, reads=False), lengths)
        await measure("manager, summariser", our_manager(window, summarises=True, reads=False), lengths)
    short = [length for length in (100, 1_000, 10_000) if length <= options.peers_most]
    print(f"with the context read after each message (mean of {PEER_SAMPLE} messages):")
    await measure("manager, summariser", our_manager(window, summarises=True, reads=True), short, PEER_SAMPLE)
    for name, module, make in PEERS:
        if importlib.util.find_spec(module) is None:
            print(f"{name:<34} is not installed: left out")
            continue
        try:
            await measure(name, make(window), short, PEER_SAMPLE)
        except (ImportError, TypeError, AttributeError) as error:
            print(f"{name:<34} has another interface here: {type(error).__name__}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--peers-most", type=int, default=1_000)
    parser.add_argument("--window", type=int, default=16_000)
    parser.add_argument("--peers-only", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
