"""Where Claude Code's logs lie, how one is recognised, and whose log a file is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from watchkeeper.transcripts.claude.reader import ClaudeReader
from watchkeeper.transcripts.claude.teams import teammate_of
from watchkeeper.transcripts.claude.types import CONVERSATION, HOUSEKEEPING
from watchkeeper.transcripts.jsontext import parse, text_of
from watchkeeper.transcripts.records import MAIN, Source

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_AGENT_FILE = re.compile(r"agent-(?P<id>.+)")
_HELPER = re.compile(r"a(?P<task>[a-z][a-z_]+)-[0-9a-f]{8,}")
"""A fork that the program made for a task of its own, and named by it: `acompact-…`, `aside_question-…`."""
_KNOWN = CONVERSATION | HOUSEKEEPING


class ClaudeCode:
    """Claude Code, from 1.0 on."""

    name = "claude-code"
    alias = "claude"
    label = "Claude Code"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """`projects` in the folders that `CLAUDE_CONFIG_DIR` names, else in `~/.claude` and
        `~/.config/claude`."""
        chosen = [
            Path(part).expanduser()
            for part in environ.get("CLAUDE_CONFIG_DIR", "").split(",")
            if part.strip()
        ]
        return [folder / "projects" for folder in chosen or [home / ".claude", home / ".config" / "claude"]]

    def may_be_log(self, path: Path) -> bool:
        return path.suffix == ".jsonl"

    def log_of(self, path: Path) -> Path | None:
        return path if self.may_be_log(path) else None

    def folder_of(self, log: Path) -> Path:
        return log.parent

    def recognises(self, source: Source) -> bool:
        if source.path.suffix != ".jsonl":
            return False
        for record in _records(source.head):
            if "payload" in record:
                return False
            if text_of(record.get("type")) in _KNOWN and (
                "sessionId" in record or "uuid" in record or len(record) > 1
            ):
                return True
        return b'"parentUuid"' in source.head and b'"sessionId"' in source.head

    def companions(self, path: Path) -> list[Path]:
        return [path.with_suffix(".meta.json")] if _AGENT_FILE.fullmatch(path.stem) else []

    def reader(self, source: Source, state: dict[str, Any] | None) -> ClaudeReader:
        if state is not None:
            return ClaudeReader.restore(state)
        session, agent = _whose(source)
        meta = parse(source.companions.get(source.path.with_suffix(".meta.json").name, b"")) or {}
        if agent != MAIN and (first := next(_records(source.head), None)) is not None:
            agent = teammate_of(first, meta) or agent
        if (helper := _HELPER.fullmatch(agent)) is not None:
            task = helper["task"].replace("_", " ")
            meta = {"agentType": task, "description": task} | meta
        return ClaudeReader(session, agent, meta)

    def fingerprint(self, path: Path) -> None:
        return None


def _whose(source: Source) -> tuple[str, str]:
    """Keys of the session and the agent that a file belongs to.

    `<session>/subagents/**/agent-<id>.jsonl` names its session; an `agent-<id>.jsonl` beside its session's
    file does not, but its records do; a session's own file is named by its id, unless somebody renamed it.
    """
    path, found_session, found_agent = source.path, None, None
    match = _AGENT_FILE.fullmatch(path.stem)
    below = "subagents" in path.parts[1:]
    if match is None and not below and _UUID.fullmatch(path.stem):
        return path.stem, MAIN
    for record in _records(source.head):
        found_session = found_session or text_of(record.get("sessionId"))
        found_agent = found_agent or (
            text_of(record.get("agentId")) if record.get("isSidechain") is True else None
        )
        if found_session and (found_agent or match is None):
            break
    agent = (found_agent or match["id"]) if match else MAIN
    parts = path.parts
    if below:
        return parts[len(parts) - 1 - parts[::-1].index("subagents") - 1], agent
    return found_session or path.stem, agent


def _records(head: bytes) -> Iterator[dict[str, Any]]:
    """The records at the beginning of a log that are whole."""
    at = 0
    for _ in range(40):
        end = head.find(b"\n", at)
        line = head[at:] if end < 0 else head[at:end]
        record = parse(line) if line.strip() else None
        if record is not None:
            yield record
        if end < 0:
            break
        at = end + 1
