"""`offline/surveyor`: a deterministic stand-in for a language model, for trying the system with no key and no
network.

It is not an LLM, and says so. It drives the real tool protocol over a real folder: as planner it makes a plan
from what the folder holds, as explorer it counts, as writer it reports. Promises: each reply is a function of
the request alone and carries its whole cursor, so that compaction, kills and resumes cannot change what is
surveyed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from watchkeeper.models.surveyor.explorer import explore
from watchkeeper.models.surveyor.planner import plan
from watchkeeper.models.surveyor.request import SurveyorReply, compact, understand
from watchkeeper.models.surveyor.writer import ROLES as DIGESTING
from watchkeeper.models.surveyor.writer import digest, write
from watchkeeper.records.messages import (
    Block,
    Delta,
    ErrorKind,
    ModelError,
    ModelEvent,
    ModelRequest,
    Reply,
    Usage,
)
from watchkeeper.records.ports import Clock, SystemClock

# --- The surveyor behind the `Model` protocol: a request in, deltas at a model's pace, one whole reply out ---

REF = "offline/surveyor"
DEFAULT_WINDOW = 16_000

FIRST_TOKEN_SECONDS = 0.35
CHARACTERS_PER_SECOND = 320.0
LONGEST_REPLY_SECONDS = 5.0
CHARACTERS_PER_TOKEN = 4
_MOST_DELTAS = 40
_LEAST_DELTA = 24

_PLAIN = (
    "I am Watchkeeper's offline surveyor: a fixed program that surveys folders, not an LLM. I can plan,"
    " explore and write "
    "a survey, and shorten texts; for anything else, choose a model with --model anthropic/<model>."
)


class SurveyorModel:
    """A deterministic model: what it replies depends on the request alone (and on its window, set once).

    Args:
        speed: how many times faster than a typical hosted model it streams; None waits for nothing.
        clock: for waiting and for the latency that is reported; the machine's own by default.
        context_window: tokens of prompt and reply together; pages are asked for in a size that suits it.
    """

    def __init__(
        self, *, speed: float | None = 1.0, clock: Clock | None = None, context_window: int = DEFAULT_WINDOW
    ) -> None:
        if speed is not None and not speed > 0:
            raise ValueError("The surveyor's speed must be above 0; use `max` to wait for nothing.")
        self._speed = speed
        self._clock: Clock = clock or SystemClock()
        self._window = context_window

    @property
    def ref(self) -> str:
        return REF

    @property
    def context_window(self) -> int:
        return self._window

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Yield some deltas, and last the reply.

        Raises:
            ModelError: `COMPACT` when the prompt is far larger than the window.
        """
        started = self._clock.monotonic()
        prompt_characters = _prompt_characters(request)
        if prompt_characters / CHARACTERS_PER_TOKEN > 1.5 * self._window:
            raise ModelError(
                f"prompt is too long: about {prompt_characters // CHARACTERS_PER_TOKEN} tokens, and the"
                f" window is {self._window}",
                kind=ErrorKind.COMPACT,
            )
        content = _blocks(self._move(request), request)
        characters = sum(len(text) for _, text in _texts(content))
        await self._wait(FIRST_TOKEN_SECONDS)
        first_token = self._clock.monotonic() - started
        seconds_a_character = min(LONGEST_REPLY_SECONDS / max(1, characters), 1 / CHARACTERS_PER_SECOND)
        size = max(_LEAST_DELTA, -(-characters // _MOST_DELTAS))
        for kind, text in _texts(content):
            for start in range(0, len(text), size):
                piece = text[start : start + size]
                yield Delta("text" if kind == "text" else "tool_input", piece)
                await self._wait(len(piece) * seconds_a_character)
        yield Reply(
            content=content,
            stop_reason="tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn",
            usage=Usage(
                input_tokens=-(-prompt_characters // CHARACTERS_PER_TOKEN),
                output_tokens=-(-characters // CHARACTERS_PER_TOKEN),
            ),
            model=REF,
            latency_seconds=self._clock.monotonic() - started,
            first_token_seconds=first_token,
        )

    async def _wait(self, seconds: float) -> None:
        if self._speed is not None:
            await self._clock.sleep(seconds / self._speed)

    def _move(self, request: ModelRequest) -> SurveyorReply:
        situation = understand(request)
        page_bytes = max(2_000, min(9_000, self._window * 9 // 16))
        if situation.role in DIGESTING:
            return SurveyorReply(
                digest([text for message in request.messages for text in _plain_texts(message)])
            )
        offered = situation.tools
        if situation.role == "planner" and {"list_folder", "create_plan", "finish_session"} <= offered:
            return plan(situation, page_bytes, self._window)
        if situation.role == "writer" and {"read_artifact", "merge_artifacts", "save_artifact"} <= offered:
            return write(situation, self._window)
        explorer = situation.role == "explorer" or situation.scope is not None
        if explorer and {"list_folder", "save_artifact"} <= offered:
            return explore(situation, page_bytes)
        return SurveyorReply(_PLAIN)


def _blocks(move: SurveyorReply, request: ModelRequest) -> list[Block]:
    content: list[Block] = [{"type": "text", "text": move.words()}]
    if move.calls:
        # Ids come from what was said so far, so that no two calls of one agent share one, and a call repeated
        # after a crash is the same call.
        seed = hashlib.sha256(json.dumps(list(request.messages), sort_keys=True, default=str).encode())
        for index, (name, arguments) in enumerate(move.calls):
            one = seed.copy()
            one.update(f"/{index}".encode())
            content.append(
                {"type": "tool_use", "id": f"toolu_{one.hexdigest()[:24]}", "name": name, "input": arguments}
            )
    return content


def _texts(content: list[Block]) -> Iterator[tuple[str, str]]:
    for block in content:
        if block["type"] == "text":
            yield "text", block["text"]
        else:
            yield "tool_use", compact(block["input"])


def _plain_texts(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
        return
    for block in content if isinstance(content, list) else []:
        if isinstance(block, dict):
            inner = block.get("text") or block.get("content")
            yield inner if isinstance(inner, str) else compact(block)


def _prompt_characters(request: ModelRequest) -> int:
    characters = len(request.system) + sum(
        len(json.dumps(message, default=str)) for message in request.messages
    )
    return characters + sum(
        len(tool.description) + len(json.dumps(tool.input_schema)) for tool in request.tools
    )
