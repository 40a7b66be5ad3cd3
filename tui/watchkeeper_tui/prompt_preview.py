"""The prompt that a change by hand would lead to: the command line computes it from the store, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watchkeeper.store.agent_snapshot import StoredMessage
from watchkeeper_tui import formatting
from watchkeeper_tui.snapshot import TranscriptBlock
from watchkeeper_tui.targets import Request
from watchkeeper_tui.transcript import fold_message


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """One message of the prompt."""

    role: str
    tokens: int
    blocks: tuple[TranscriptBlock, ...]


@dataclass(frozen=True, slots=True)
class PromptPreview:
    """What the change would lead to, as the store has it; or why it cannot be made."""

    tokens_before: int = 0
    tokens: int = 0
    limit: int = 0
    cache_tokens_written: int = 0
    """Tokens behind the first change: the next call writes them to the prompt cache again."""
    cost_usd: float | None = None
    """Of these; None without a known price."""
    messages_cached: int = 0
    high_water: int | None = None
    messages: tuple[PromptMessage, ...] = ()
    problem: str = ""

    def lines(self) -> list[str]:
        """The preview in words."""
        if self.problem:
            return [self.problem]
        change = formatting.change(self.tokens_before, self.tokens)
        before, after = formatting.tokens(self.tokens_before), formatting.tokens(self.tokens)
        lines = [
            f"Messages and observations: {before} → {after} of {formatting.tokens(self.limit)} tok ({change})"
        ]
        if self.high_water is not None:
            lines[0] += f", up to #{self.high_water}, with a digest in place of the summary"
        if not self.cache_tokens_written:
            return [*lines, "Prompt cache: stays as it is."]
        cost = "" if self.cost_usd is None else f", about {formatting.money(self.cost_usd)}"
        kept = formatting.plural(self.messages_cached, "message")
        lines.append(
            f"Prompt cache: keeps {kept}; {formatting.tokens(self.cache_tokens_written)} tok behind"
            f" are written again{cost}."
        )
        return lines


def arguments(session_id: str, request: Request) -> tuple[list[str], str]:
    """The command line that previews a command, and its standard input; no words where it has none."""
    payload, agent = request.payload, request.agent_id or ""
    if request.kind == "compact":
        return ["compact", session_id, agent, "--preview"], ""
    if request.kind != "edit":
        return [], ""
    words = ["memory", "edit", session_id, agent, "--preview"]
    for name in ("drop", "pin", "unpin"):
        if payload.get(name):
            words += [f"--{name}", ",".join(map(str, payload[name]))]
    for number, text in payload.get("texts", {}).items():
        return [*words, "--observation", str(number), "--text", "-"], str(text)
    return words, ""


async def preview(database_path: Path, session_id: str, request: Request) -> PromptPreview | None:
    """Run the preview of a command and wait for its end; None where it has none."""
    words, given = arguments(session_id, request)
    if not words:
        return None
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "watchkeeper", *words, "--json", "--db", str(database_path),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await process.communicate(given.encode("utf-8", "replace"))
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        lines = err.decode("utf-8", "replace").strip().splitlines()
        why = lines[-1].removeprefix("wk: ") if lines else f"exit code {process.returncode}"
        # A summary may be shorter than the digest that has nothing to gain.
        return PromptPreview(
            problem=f"{'This would be refused' if request.kind == 'edit' else 'No preview'}: {why}"
        )
    return read(json.loads(out))


def read(value: Mapping[str, Any]) -> PromptPreview:
    """A preview from the JSON of the command line."""
    names: dict[str, str] = {}
    messages = []
    for place, (message, tokens) in enumerate(zip(value["messages"], value["sizes"], strict=True), 1):
        text = json.dumps(message["content"])
        stored = StoredMessage(place, message["role"], text, tokens, 0, 0.0, len(text))
        messages.append(PromptMessage(message["role"], tokens, tuple(fold_message(stored, names))))
    return PromptPreview(
        value["tokens_before"], value["tokens"], value["limit"], value["cache_tokens_written"], value["cost_usd"],
        value["messages_cached"], value["high_water"], tuple(messages),
    )  # fmt: skip
