"""The rollouts of Codex's first versions (2025-04): one JSON document for a session, written anew as it
grows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from watchkeeper.transcripts import packed
from watchkeeper.transcripts.codex.reader import CodexReader
from watchkeeper.transcripts.jsontext import parse, text_of
from watchkeeper.transcripts.records import Raw, Record, Session

_HEAD = re.compile(rb'\s*\{\s*"session"\s*:\s*\{')
LARGEST_FILE = 256 << 20


def is_document(head: bytes) -> bool:
    """Whether a file begins as such a rollout."""
    return _HEAD.match(head) is not None and (b'"items"' in head or b'"instructions"' in head)


class DocumentReader:
    """A `PullReader`: the header and each item as a line of the rollouts that came after."""

    def __init__(self, path: Path, named: str, state: dict[str, Any] | None) -> None:
        self._path = path
        self._named = named
        self._state = state or {"given": 0, "reader": None}

    def save(self) -> dict[str, Any]:
        return self._state

    def pull(self) -> Iterator[tuple[int, bytes, list[Record]]]:
        """What is new.

        Raises:
            OSError: it cannot be read.
        """
        with packed.open_log(self._path, beginning=True) as file:
            data = file.read(LARGEST_FILE)
        document = parse(data)
        if document is None:
            # Half-written, as a rule: a later reading finds the rest.
            if not self._state["given"]:
                yield 1, data, [Session(self._named), Raw("?", "broken JSON")]
            return
        lines = [
            json.dumps(each, ensure_ascii=False).encode("utf-8", "replace") for each in _records(document)
        ]
        given, saved = self._state["given"], self._state["reader"]
        if given > len(lines):
            given, saved = 0, None  # it was written anew: what is here already is recognised
        reader = (
            CodexReader.restore(saved) if saved is not None else CodexReader(_thread(document), self._named)
        )
        for number, line in enumerate(lines[given:], given + 1):
            found = reader.feed(number, line)
            self._state = {"given": number, "reader": reader.save()}
            yield number, line, found


def _thread(document: dict[str, Any]) -> str | None:
    session = document.get("session")
    return text_of(session.get("id")) if isinstance(session, dict) else None


def _records(document: dict[str, Any]) -> Iterator[Any]:
    """The header, and the items."""
    yield document.get("session")
    items = document.get("items")
    yield from items if isinstance(items, list) else []
