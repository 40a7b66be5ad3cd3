"""What the tests of this room share: the API's rules, what a view must hold, small messages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from watchkeeper import BufferConfig, HierarchicalContextManager
from watchkeeper.memory.compactor import COMPRESSION, Compactor, Writer
from watchkeeper.memory.context import ContextState
from watchkeeper.memory.engine import Engine, Keep, ObservationalSettings
from watchkeeper.memory.history import CompactionPass, ContextLimits, Prepared
from watchkeeper.memory.manager import Swap
from watchkeeper.records.messages import Block, Content, Message, ObservationKind, View

EVENTS = ("swap:start", "swap:ready", "swap:complete", "swap:rejected", "swap:abandoned")
"""Every event that a manager tells of."""


class Words:
    """A counter that is fast and easy to reason about: one token for each four characters, or part of
    them."""

    def count(self, text: str) -> int:
        return -(-len(text) // 4)


class Characters:
    """The coarsest counter that users pass: `len`."""

    def count(self, text: str) -> int:
        return len(text)


def call(*ids: str, text: str = "", path: str = "src/a.py") -> list[Block]:
    """An assistant's content that makes calls."""
    said: list[Block] = [{"type": "text", "text": text}] if text else []
    return [
        *said,
        *({"type": "tool_use", "id": name, "name": "read", "input": {"path": path}} for name in ids),
    ]


def result(*ids: str, text: str = "fine", is_error: bool = False) -> list[Block]:
    """A user's content that brings results."""
    return [
        {"type": "tool_result", "tool_use_id": name, "content": text, "is_error": is_error} for name in ids
    ]


def message(seq: int, role: str, content: Content) -> Message:
    return Message(seq, role, content, 1, seq, 0.0)  # type: ignore[arg-type]


def use(seq: int, tool: str, **given: object) -> Message:
    """A message that calls a tool; `answer` of the next number brings its result."""
    return message(seq, "assistant", [{"type": "tool_use", "id": f"t{seq}", "name": tool, "input": given}])


def answer(seq: int, text: str = "done", *, is_error: bool = False) -> Message:
    return message(seq, "user", result(f"t{seq - 1}", text=text, is_error=is_error))


def sections(text: str) -> dict[str, list[str]]:
    """Lines of a digest by section."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines()[1:]:
        if line.startswith("- "):
            found[list(found)[-1]].append(line.removeprefix("- "))
        elif line.startswith("  "):
            found[list(found)[-1]][-1] += f"\n{line[2:]}"
        else:
            found[line.removesuffix(":")] = []
    return found


def blocks(message: dict[str, Any]) -> list[Block]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def text_of(context: Sequence[dict[str, Any]]) -> str:
    """All text of a context, to look something up in."""
    found: list[str] = []
    for message in context:
        for block in blocks(message):
            found.append(
                str(block.get("text", "")) + str(block.get("content", "")) + str(block.get("input", ""))
            )
    return "\n".join(found)


def assert_valid(context: Sequence[dict[str, Any]]) -> None:
    """The rules of the Messages API that a history can break."""
    assert context, "a request needs a message"
    assert context[0]["role"] == "user"
    for place, message in enumerate(context):
        here = blocks(message)
        assert here
        assert all(block["type"] != "text" or block["text"].strip() for block in here), (
            "blank text is refused"
        )
        calls = [block["id"] for block in here if block["type"] == "tool_use"]
        results = [block["tool_use_id"] for block in here if block["type"] == "tool_result"]
        assert not calls or message["role"] == "assistant"
        assert len(set(calls)) == len(calls)
        if calls and place + 1 < len(context):
            answered = [b["tool_use_id"] for b in blocks(context[place + 1]) if b["type"] == "tool_result"]
            assert sorted(answered) == sorted(calls), "each call is answered in the next message"
        if results:
            assert message["role"] == "user"
            assert place > 0
            asked = [block["id"] for block in blocks(context[place - 1]) if block["type"] == "tool_use"]
            assert sorted(results) == sorted(asked)
            assert all(block["type"] == "tool_result" for block in here[: len(results)]), "results come first"


def assert_covered(view: View, last_seq: int) -> None:
    """Every message is verbatim (or elided), or covered by exactly one cited observation, in order."""
    expected = 1
    for observation in view.observations:
        assert observation.covers[0] == expected
        assert observation.covers[1] >= observation.covers[0]
        assert observation.citations
        assert all(observation.covers[0] <= seq <= observation.covers[1] for seq in observation.citations)
        expected = observation.covers[1] + 1
    if view.verbatim_from is None:
        assert expected == last_seq + 1
    else:
        assert view.verbatim_from == expected


def assert_pairs_whole(view: View, messages: Sequence[Message]) -> None:
    """No call lies before the cut with its result behind it, and none still unanswered lies before it."""
    start = view.verbatim_from or len(messages) + 1
    waiting: dict[str, int] = {}
    for message in messages:
        if isinstance(message.content, str):
            continue
        for block in message.content:
            if block["type"] == "tool_use":
                waiting[block["id"]] = message.seq
            elif block["type"] == "tool_result" and block["tool_use_id"] in waiting:
                asked = waiting.pop(block["tool_use_id"])
                assert not asked < start <= message.seq, (
                    f"cut at {start} between call {asked} and result {message.seq}"
                )


def fill(state: ContextState, count: int, words: int = 20) -> None:
    """Alternate small user and assistant messages."""
    for _ in range(count):
        number = state.last_seq + 1
        state.append("user" if number % 2 else "assistant", f"m{number} " + "word " * words, at=float(number))


async def fill_manager(manager: HierarchicalContextManager, count: int, words: int = 20) -> list[int]:
    ids = []
    for _ in range(count):
        number = len(manager.messages) + 1
        role = "user" if number % 2 else "assistant"
        ids.append(await manager.add_message({"role": role, "content": f"m{number} " + "word " * words}))
    return ids


class Summariser:
    """Says one text (or raises one failure) after another, the last one again and again, while `open` is set."""

    def __init__(self, *texts: Any, open_now: bool = True) -> None:
        self.texts = list(texts or ["They talked."])
        self.requests: list[tuple[list[dict[str, Any]], str | None, str | None]] = []
        self.open = asyncio.Event()
        if open_now:
            self.open.set()

    @property
    def calls(self) -> int:
        return len(self.requests)

    async def __call__(
        self, messages: list[dict[str, Any]], *, instructions: str | None, previous: str | None
    ) -> Any:
        self.requests.append((messages, instructions, previous))
        assert_valid(messages)
        await self.open.wait()
        text = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        if isinstance(text, BaseException):
            raise text
        return text


def recorded(manager: HierarchicalContextManager) -> list[Swap]:
    swaps: list[Swap] = []
    for event in EVENTS:
        manager.on(event, swaps.append)  # type: ignore[arg-type]
    return swaps


def prepared(state: ContextState, text: str, covers: tuple[int, int], **other: object) -> Prepared:
    values: dict[str, object] = {
        "tokens": state.counter.count(text),
        "citations": covers,
        "replaces": tuple(o.id for o in state.view.observations if o.covers[1] <= covers[1]),
        "source_tokens": 10_000,
        "base_version": state.view.version,
        "epoch": state.epoch,
        **other,
    }
    return Prepared(text=text, covers=covers, **values)  # type: ignore[arg-type]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def add(manager: HierarchicalContextManager, count: int, characters: int = 200) -> None:
    for _ in range(count):
        await manager.add_message(user("x" * characters))


# --- Observational memory -----------------------------------------------------------------------------------

SMALL = BufferConfig(target_cycles=4, token_cap=5_000, min_tokens=50, utility_model_context_window=10_000)


def writer(observe: Any, reflect: Any) -> Writer:
    """A model that plays both parts: `observe(run, instructions)` and `reflect(run, level)` give its texts."""

    async def write(run: CompactionPass, instructions: str | None) -> Any:
        if run.kind is ObservationKind.OBSERVATION:
            return await observe(run, instructions)
        levels = [level for level, text in enumerate(COMPRESSION) if text and text in (instructions or "")]
        return await reflect(run, levels[0] if levels else 0)

    return write


def log_of(text: str, task: str = "", suggested: str = "") -> str:
    """An observer's answer."""
    return (
        f"<observations>{text}</observations><current-task>{task}</current-task>"
        f"<suggested-response>{suggested}</suggested-response>"
    )


def engine_of(
    observe: Any,
    reflect: Any,
    *,
    window: int = 2_000,
    buffer: BufferConfig = SMALL,
    keep: Keep | None = None,
    state: ContextState | None = None,
    timeout_seconds: float | None = 120.0,
    **settings: Any,
) -> Engine:
    """An engine of observational memory over a context of `window` words."""
    state = state or ContextState(ContextLimits(window, 0), Words())
    compactor = Compactor(state, write=writer(observe, reflect), timeout_seconds=timeout_seconds)
    return Engine(compactor, ObservationalSettings(buffer=buffer, **settings), keep=keep)
