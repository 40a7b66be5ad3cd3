"""Counted tokens against what the provider reported, on recorded sessions of Claude Code.

    python benchmarks/token_counts.py FILE_OR_FOLDER...

Between two calls of one thread, the prompt grows by the reply and by what answered it. The benchmark compares that growth
in the reported prompt tokens (uncached, cache writes and cache reads) with `count_message` of the same messages. System
prompt and tools are in both prompts and cancel out. Growth across a compaction, and prompts that shrank, are left out.
What the program added to a prompt without recording it counts as an error of ours.

One line per thread of at least `CALLS` calls, then the median and the range.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.memory.tokens import count_message, default_counter

CALLS = 8
SENT = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document")
"""Blocks that are sent to the provider; logs know others."""
PROMPT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@dataclass(slots=True)
class Entry:
    """One message of a thread; `call` and `prompt_tokens` where a reported call made it. `cut`: a compaction."""

    role: str = ""
    content: Any = ""
    call: str = ""
    prompt_tokens: int = 0
    cut: bool = False


@dataclass(slots=True)
class Thread:
    """The main thread of a log, or one side chain."""

    entries: list[Entry] = field(default_factory=list)

    def add(self, role: str, content: Any, call: str, usage: dict[str, Any]) -> None:
        """Add a record. A reply is recorded block by block, under one id."""
        for entry in reversed(self.entries[-60:]):
            if call and entry.call == call:
                if isinstance(entry.content, list) and isinstance(content, list):
                    entry.content += content
                return
        self.entries.append(Entry(role, content, call, sum(int(usage.get(key) or 0) for key in PROMPT)))

    def growth(self) -> Iterator[tuple[int, int]]:
        """Counted and reported growth between consecutive calls."""
        before, counted = 0, 0
        for entry in self.entries:
            if entry.cut:
                before = counted = 0
                continue
            if entry.prompt_tokens:
                if before and entry.prompt_tokens > before:
                    yield counted, entry.prompt_tokens - before
                before, counted = entry.prompt_tokens, 0
            counted += count_message(entry.role, entry.content, default_counter())


def threads(path: Path) -> dict[str, Thread]:
    """The threads of one log by name."""
    found: dict[str, Thread] = defaultdict(Thread)
    chain: dict[str, str] = {}
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        name = "main"
        if record.get("isSidechain"):
            name = (
                record.get("agentId")
                or chain.get(str(record.get("parentUuid")))
                or str(record.get("uuid"))[:8]
            )
            chain[str(record.get("uuid"))] = name
        if record.get("subtype") == "compact_boundary" or record.get("isCompactSummary"):
            found[name].entries.append(Entry(cut=True))
        message = record.get("message")
        if record.get("type") not in ("user", "assistant") or not isinstance(message, dict):
            continue
        content = message.get("content")
        if isinstance(content, list):
            content = [block for block in content if isinstance(block, dict) and block.get("type") in SENT]
        if content:
            call = str(message.get("id") or "") if record["type"] == "assistant" else ""
            found[name].add(record["type"], content, call, message.get("usage") or {})
    return found


def ratios(paths: Iterable[Path]) -> Iterator[tuple[str, int, int, int]]:
    """Name, calls, counted and reported tokens of each thread."""
    for path in paths:
        for name, thread in threads(path).items():
            growth = list(thread.growth())
            if len(growth) >= CALLS:
                counted, reported = (sum(side) for side in zip(*growth, strict=True))
                yield f"{path.stem[:24]}/{name[:8]}", len(growth), counted, reported


def main() -> None:
    """Print the table."""
    given = [Path(name) for name in sys.argv[1:]]
    paths = [log for path in given for log in (sorted(path.rglob("*.jsonl")) if path.is_dir() else [path])]
    found: list[float] = []
    print(f"{'thread':34} {'calls':>6} {'counted':>9} {'reported':>9} {'ratio':>6}")
    for name, calls, counted, reported in ratios(paths):
        found.append(counted / reported)
        print(f"{name:34} {calls:6} {counted:9,} {reported:9,} {counted / reported:6.2f}")
    if found:
        print(
            f"{len(found)} threads: median {statistics.median(found):.2f}, {min(found):.2f} to {max(found):.2f}"
        )


if __name__ == "__main__":
    main()
