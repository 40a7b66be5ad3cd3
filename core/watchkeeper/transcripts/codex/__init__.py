"""Codex's logs: `~/.codex/sessions/<year>/<month>/<day>/rollout-*.jsonl`, one for each thread."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from watchkeeper.transcripts import files
from watchkeeper.transcripts.codex.items import ITEMS, LINES, Thread, thread_of
from watchkeeper.transcripts.codex.reader import CodexReader
from watchkeeper.transcripts.records import Program, Source, parse, text_of

# Where the logs of Codex are, how one is recognised, and which session it belongs to.

_TIME = len("rollout-2026-01-31T23-59-59")
_FILE = re.compile(
    r"rollout-.+?-(?P<id>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})(_[0-9a-f-]{36})?", re.IGNORECASE
)
"""A log that begins again where its thread was reverted to has an id of its own behind the thread's."""
_HEADER = re.compile(rb'"type"\s*:\s*"session_meta"')
FIRST_LINE_BYTES = 16 << 20
GENERATIONS = 20
"""Spawned threads above one another, at most."""


class Codex(Program):
    """Codex, from the first rollouts (2025-05) on."""

    name = "codex"
    alias = "codex"
    label = "Codex"

    def places(self, environ: Mapping[str, str], home: Path) -> list[Path]:
        """`sessions` and `archived_sessions` in `CODEX_HOME`, else in `~/.codex`."""
        chosen = environ.get("CODEX_HOME", "").strip()
        folder = Path(chosen).expanduser() if chosen else home / ".codex"
        return [folder / "sessions", folder / "archived_sessions"]

    def recognises(self, source: Source) -> bool:
        if source.path.suffix != ".jsonl":
            return False
        for line in source.head.split(b"\n")[:40]:
            record = parse(line) if line.strip() else None
            if record is None:
                continue
            kind = record.get("type")
            if kind in LINES and "payload" in record:
                return True
            if "uuid" in record or "sessionId" in record:
                return False
            if record.get("record_type") == "state" or (
                kind in ITEMS and ("role" in record or "call_id" in record)
            ):
                return True
            if (
                kind is None
                and text_of(record.get("id"))
                and text_of(record.get("timestamp"))
                and "instructions" in record
            ):
                return True
        # The first line may be longer than the head: a thread's instructions and tools stand in it.
        return source.head.lstrip().startswith(b"{") and _HEADER.search(source.head[:400]) is not None

    def reader(self, source: Source, state: dict[str, Any] | None) -> CodexReader:
        if state is not None:
            return CodexReader.restore(state)
        match = _FILE.fullmatch(source.path.stem)
        thread = _first_thread(source.path, source.head)
        return CodexReader.begin(
            _root(source.path, thread) if thread is not None else None,
            match["id"] if match is not None else source.path.stem,
        )

    def logs_of_agents(self, path: Path, session: str, passed: set[Path]) -> list[Path]:
        """Those of the same day and later ones that name the session's thread as the top of their tree."""
        days = [path.parent]
        if len(path.parents) > 3 and path.parent.name.isdigit():
            months = [one for one in path.parents[3].glob("*/*") if one >= path.parents[1]]
            days = sorted(one for month in months for one in month.iterdir() if one >= path.parent)
        found = []
        for log in sorted(log for day in days for log in day.glob("rollout-*.jsonl")):
            if log == path or log in passed or log.name[:_TIME] < path.name[:_TIME]:
                continue
            thread = _first_thread(log, b"")
            if thread is not None and thread.parent is not None and _root(log, thread) == session:
                found.append(log)
            elif thread is not None:
                passed.add(log)
        return found


def _root(path: Path, thread: Thread) -> str:
    """The thread at the top of the tree that a thread belongs to: the one that names the session."""
    if thread.parent is None:
        return thread.id
    if thread.root is not None:
        return thread.root
    seen = {thread.id}
    known: Thread | None = thread
    top = thread.parent
    for _ in range(GENERATIONS):
        if known is None or known.parent is None or known.parent in seen:
            break
        top = known.root or known.parent
        if known.depth == 1 or known.root is not None:
            break
        seen.add(known.parent)
        known = _thread_named(path, known.parent)
    return top


def _thread_named(path: Path, thread_id: str) -> Thread | None:
    """A thread by its log, which lies in the same folder or in that of another day."""
    if _FILE.fullmatch(f"rollout-x-{thread_id}") is None:
        return None
    name = f"rollout-*-{thread_id}.jsonl*"
    found = next(path.parent.glob(name), None)
    if found is None and len(path.parents) > 3 and path.parent.name.isdigit():
        found = next(path.parents[3].glob(f"*/*/*/{name}"), None)
    return _first_thread(files.unpacked_name(found), b"") if found is not None else None


def _first_thread(path: Path, head: bytes) -> Thread | None:
    """The thread that a log's first lines name."""
    if b"\n" not in head:
        try:
            with files.open_log(path, beginning=True) as file:
                head = file.readline(FIRST_LINE_BYTES)
        except OSError:
            return None
    for line in head.split(b"\n")[:5]:
        record = parse(line)
        if record is None:
            continue
        payload = record.get("payload")
        if record.get("type") == "session_meta" and isinstance(payload, dict):
            return thread_of(payload)
        if record.get("type") is None and "instructions" in record:
            return thread_of(record)
    return None


PROGRAM = Codex()
