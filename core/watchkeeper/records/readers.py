"""The programs whose sessions Watchkeeper reads: one table, from which every screen, command and page names them.

A row is a reader in this package. Packages of others add readers by the entry point `watchkeeper.readers`; they are looked
for only when logs are read (`transcripts.reading.programs`), because that takes longer than showing a session does.
"""

from __future__ import annotations

from typing import NamedTuple


class KnownReader(NamedTuple):
    """A reader in this package, and how its program is called."""

    name: str
    """`sessions.origin` of its sessions."""
    alias: str
    """What `wk import` and `wk watch` call the program. It is also the program's command."""
    label: str
    """What people call it."""
    module: str
    """Holds its `PROGRAM`; loaded when logs are read."""


READERS = (
    KnownReader("claude-code", "claude", "Claude Code", "watchkeeper.transcripts.claude"),
    KnownReader("codex", "codex", "Codex", "watchkeeper.transcripts.codex"),
    KnownReader("opencode", "opencode", "OpenCode", "watchkeeper.transcripts.opencode"),
    KnownReader("pi", "pi", "pi/OpenClaw", "watchkeeper.transcripts.pi"),
    KnownReader("gemini-cli", "gemini", "Gemini CLI", "watchkeeper.transcripts.gemini"),
    KnownReader("qwen-code", "qwen", "Qwen Code", "watchkeeper.transcripts.qwen"),
    KnownReader("copilot-cli", "copilot", "Copilot CLI", "watchkeeper.transcripts.copilot"),
    KnownReader("deepseek-harness", "dsh", "DeepSeek Harness", "watchkeeper.transcripts.deepseek"),
)
"""In the order in which they are shown."""

ENTRY_POINTS = "watchkeeper.readers"
"""The group of entry points by which a package adds a reader. The name of one is its program's `name`."""

OWN_ORIGINS = ("run", "fork")
"""`sessions.origin` of sessions that Watchkeeper drives itself. Another program ran every other session."""
EXPORT_MARK = "export:"
"""Comes before the origin of a session that was imported from a file of `wk export`."""


UNIT_ROLES = ("workflow run", "workflow phase", "background command")
"""Roles of rows of `agents` that are no agents: what another program started that has agents below it, or runs a command.
They have no log, no context and no usage of their own. No role of a run and no agent of a log has one of these roles."""
UNITS_SQL = ", ".join(f"'{role}'" for role in UNIT_ROLES)


def is_foreign(origin: str) -> bool:
    """Whether another program ran a session of this origin, also where it came by an exported file."""
    return origin.removeprefix(EXPORT_MARK) not in OWN_ORIGINS


def program_label(name: str) -> str:
    """What people call the program of that name. The reader of a package is known by its name alone."""
    return next((each.label for each in READERS if each.name == name), name)


def is_alias(word: str) -> bool:
    """Whether a word names a program whose reader is in this package."""
    return any(word in (each.alias, each.name) for each in READERS)


def listed(words: list[str], conjunction: str) -> str:
    """`a, b and c`."""
    return f" {conjunction} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def labels(conjunction: str = "and") -> str:
    """`Claude Code, Codex and OpenCode`: all of them."""
    return listed([each.label for each in READERS], conjunction)


def some_labels() -> str:
    """`Claude Code, Codex and 3 more`: for a line that has no room for all."""
    return f"{READERS[0].label}, {READERS[1].label} and {len(READERS) - 2} more"


def aliases(conjunction: str = "or") -> str:
    """`claude, codex or opencode`: all of them."""
    return listed([each.alias for each in READERS], conjunction)
