"""What every reader of JSON lines does first: a line is a record, or it is said why it is none."""

from __future__ import annotations

from typing import Any

from watchkeeper.transcripts.jsontext import parse
from watchkeeper.transcripts.records import Raw, Record, Session, Skipped


def record_of(data: bytes, session: str, *, opened: bool) -> dict[str, Any] | list[Record]:
    """The record that a line holds, or what is to be said of the line instead.

    A log that begins with a line that is none (not `opened`) is named by `session` all the same.
    """
    record = parse(data)
    if record is not None:
        return record
    if not data.strip():
        return [Skipped("empty line")]
    broken = Raw("?", "broken JSON" if data.lstrip()[:1] == b"{" else "not a JSON object")
    return [broken] if opened else [Session(session), broken]
