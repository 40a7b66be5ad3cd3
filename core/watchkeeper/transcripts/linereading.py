"""What every reader of JSON lines says of a line that holds no record: why it is none."""

from __future__ import annotations

from watchkeeper.transcripts.records import Raw, Record, Session, Skipped


def no_record(data: bytes, session: str, *, opened: bool) -> list[Record]:
    """What is to be said of a line that holds no record.

    A log that begins with a line that is none (not `opened`) is named by `session` all the same.
    """
    if not data.strip():
        return [Skipped("empty line")]
    broken = Raw("?", "broken JSON" if data.lstrip()[:1] == b"{" else "not a JSON object")
    return [broken] if opened else [Session(session), broken]
