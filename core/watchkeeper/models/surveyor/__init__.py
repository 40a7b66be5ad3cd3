"""`offline/surveyor`: a deterministic stand-in for a language model, for trying the system with no key and no
network.

It is not an LLM, and says so. It drives the real tool protocol over a real folder: as planner it makes a plan
from what the folder holds, as explorer it counts, as writer it reports. Promises: each reply is a function of
the request alone, and what comes next follows from the tool calls and results in sight, so that compaction,
kills and resumes cannot change what is surveyed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Literal

from watchkeeper.models.surveyor.survey import (
    SurveyorReply,
    Turn,
    explore,
    plan,
    texts_of,
    understand,
    write,
)
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
from watchkeeper.records.text import one_line

REF = "offline/surveyor"
DEFAULT_WINDOW = 12_000

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
        self.ref = REF
        self.context_window = context_window

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Yield some deltas, and last the reply.

        Raises:
            ModelError: `COMPACT` when the prompt is far larger than the window.
        """
        started = self._clock.monotonic()
        prompt_characters = _prompt_characters(request)
        if prompt_characters / CHARACTERS_PER_TOKEN > 1.5 * self.context_window:
            raise ModelError(
                f"prompt is too long: about {prompt_characters // CHARACTERS_PER_TOKEN} tokens, and the"
                f" window is {self.context_window}",
                kind=ErrorKind.COMPACT,
            )
        content = _reply_blocks(self._move(request), request)
        characters = sum(len(text) for _, text in _streamed(content))
        await self._wait(FIRST_TOKEN_SECONDS)
        first_token = self._clock.monotonic() - started
        seconds_a_character = min(LONGEST_REPLY_SECONDS / max(1, characters), 1 / CHARACTERS_PER_SECOND)
        size = max(_LEAST_DELTA, -(-characters // _MOST_DELTAS))
        for kind, text in _streamed(content):
            for start in range(0, len(text), size):
                piece = text[start : start + size]
                yield Delta(kind, piece)
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
        turn = understand(request, self.context_window)
        if turn.role in _DIGESTING:
            return SurveyorReply(digest([text for message in request.messages for text in texts_of(message)]))
        act, tools = _ROLES.get(turn.role, (explore, _ROLES["explorer"][1]))
        if not tools <= turn.tools or not (turn.role in _ROLES or turn.scope):
            return SurveyorReply(_PLAIN)
        reply = act(turn)
        failed = reply.text.startswith("FAILED:")  # The planner looks for it at the beginning.
        return reply if failed else replace(reply, text=turn.acknowledgement + reply.text)


_ROLES: dict[str, tuple[Callable[[Turn], SurveyorReply], frozenset[str]]] = {
    "planner": (plan, frozenset({"list_folder", "create_plan", "finish_session"})),
    "explorer": (explore, frozenset({"list_folder", "save_artifact", "read_artifact"})),
    "writer": (write, frozenset({"read_artifact", "merge_artifacts", "save_artifact"})),
}
"""What a role does, and the tools that it cannot do without."""


def _reply_blocks(move: SurveyorReply, request: ModelRequest) -> list[Block]:
    content: list[Block] = [{"type": "text", "text": move.text}]
    # Ids come from what was said so far, so that no two calls of one agent share one, and a call repeated
    # after a crash is the same call.
    said = json.dumps(list(request.messages), sort_keys=True, default=str) if move.calls else ""
    for index, (name, arguments) in enumerate(move.calls):
        digits = hashlib.sha256(f"{said}/{index}".encode()).hexdigest()[:24]
        content.append({"type": "tool_use", "id": f"toolu_{digits}", "name": name, "input": arguments})
    return content


def _streamed(content: list[Block]) -> list[tuple[Literal["text", "tool_input"], str]]:
    """What a reply streams: its words, and the inputs of its calls as JSON."""
    return [
        ("text", block["text"])
        if block["type"] == "text"
        else ("tool_input", json.dumps(block["input"], ensure_ascii=False))
        for block in content
    ]


def _prompt_characters(request: ModelRequest) -> int:
    characters = len(request.system) + sum(
        len(json.dumps(message, default=str)) for message in request.messages
    )
    return characters + sum(
        len(tool.description) + len(json.dumps(tool.input_schema)) for tool in request.tools
    )


# As observer, reflector or summariser: it shortens what it is given by fixed rules, with citations.

_DIGESTING = frozenset({"observer", "reflector", "summarizer", "summariser"})
_ENTRY = re.compile(
    r"^\W{0,6}#(\d+)\b[^\S\n]*(?:(?:user|assistant|result|tool_result)\b\s*[\])>:]*)?([^\n]*)", re.MULTILINE
)
"""`[#12 assistant] text`: the number and the text; `calls list_folder` stays, it says what was done."""
_SHARE = 0.15
"""Of the length of what is digested."""


def digest(texts: list[str]) -> str:
    """A line for each entry `#n …` of the texts, the newest where there is too much; their own lines if there
    are no entries."""
    whole = "\n".join(texts)
    lines = [f"- {one_line(text.lstrip(' ]'), 160)} (#{number})" for number, text in _ENTRY.findall(whole)]
    lines = lines or [f"- {one_line(line, 160)}" for line in whole.splitlines() if line.strip()]
    room = int(min(3_000, max(400, len(whole) * _SHARE)))
    kept: list[str] = []
    for line in reversed(lines):
        room -= len(line) + 1
        if room < 0 and kept:
            kept.append(
                f"- {len(lines) - len(kept)} earlier entries, the first: {one_line(lines[0][2:], 80)}"
            )
            break
        kept.append(line)
    return "\n".join(reversed(kept))
