"""The workspace's own instructions for agents: AGENTS.md."""

from __future__ import annotations

from pathlib import Path

from watchkeeper.agents.roles.confined import read_text_within

MOST_BYTES = 32_000
"""About 8,000 tokens: it is pinned, so that every call of every agent carries it."""


def agents_md(workspace: Path) -> str | None:
    """The text of the workspace's AGENTS.md, at most `MOST_BYTES` of it; None if there is none.

    One that cannot be read, or that is a link out of the workspace, counts as none.
    """
    try:
        found = read_text_within(workspace, workspace / "AGENTS.md", MOST_BYTES)
    except OSError:
        return None
    if found is None or not found[0].strip():
        return None
    text, cut = found
    return f"{text}\n[AGENTS.md is longer; read the file for the rest]" if cut else text
