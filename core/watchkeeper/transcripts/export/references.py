"""The artifacts that a session leads to: what its agents saved, and whatever its rows point at, one through
another."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from watchkeeper.store import artifacts
from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.export.rows import Redact, owned
from watchkeeper.transcripts.export.tables import TABLES

_REFERENCE = re.compile(r"artifact://sha256/([0-9a-f]{64})")
_PASSES = 20
"""How deep artifacts may point at each other and still be followed with their secrets taken out."""


class Artifacts:
    """A session's artifacts, read one at a time.

    Without its secrets an artifact has other bytes, and so another digest: `renamed` says which is which, and
    every reference is rewritten, so that an exported session holds together as well as the one in the
    database.

    Args:
        redact: makes a fresh function that takes secrets out; None leaves them in. (Looking ahead must not
            count.)
    """

    def __init__(
        self, connection: Connection, session_id: str, redact: Callable[[], Redact] | None = None
    ) -> None:
        self._connection = connection
        self.digests = self._reached(session_id)
        self.renamed: dict[str, str] = {}
        if redact is not None:
            self._rename(redact())

    def lines(self, redact: Redact | None = None) -> Iterator[str]:
        """Each artifact as JSON text: `digest`, `media_type`, and `text`, or `base64` where it is no text. In
        order of digest."""
        order = sorted(self.digests, key=lambda digest: self.renamed.get(digest, digest))
        written = ""
        for old in order:
            digest = self.renamed.get(old, old)
            if digest == written:
                continue
            written = digest
            media_type, data = self._read(old)
            clean = self._clean(media_type, data, redact)
            values: dict[str, Any] = {"digest": digest, "media_type": media_type}
            try:
                values["text"] = clean.decode()
            except UnicodeDecodeError:
                import base64

                values["base64"] = base64.b64encode(clean).decode()
            yield json.dumps(values, ensure_ascii=False, separators=(",", ":"))

    def _reached(self, session_id: str) -> set[str]:
        found: set[str] = set()
        for table in TABLES:
            columns = [*table.text, *table.json, *(name for name in table.keys if name.endswith("_ref"))]
            if not columns:
                continue
            whole = " || ' ' || ".join(f"ifnull({name}, '')" for name in columns)
            rows = self._connection.execute(
                f"SELECT {whole} AS whole FROM {table.name} WHERE rowid IN ({owned(table)})"  # noqa: S608 - constants
                " AND instr(whole, 'artifact://sha256/') > 0",
                (session_id,),
            )
            for row in rows:
                found.update(_REFERENCE.findall(row[0]))
        rows = self._connection.execute(
            "SELECT DISTINCT digest FROM outputs WHERE session_id = ?", (session_id,)
        )
        found.update(row[0] for row in rows)
        known: set[str] = set()
        waiting = sorted(found)
        while waiting:
            digest = waiting.pop()
            if digest in known or not self._is_stored(digest):
                continue
            known.add(digest)
            waiting += _REFERENCE.findall(self._read(digest)[1].decode("utf-8", "replace"))
        return known

    def _is_stored(self, digest: str) -> bool:
        return (
            self._connection.execute("SELECT 1 FROM artifacts WHERE digest = ?", (digest,)).fetchone()
            is not None
        )

    def _read(self, digest: str) -> tuple[str, bytes]:
        row = self._connection.execute(
            "SELECT media_type, encoding, data FROM artifacts WHERE digest = ?", (digest,)
        ).fetchone()
        try:
            data = zlib.decompress(row[2]) if row[1] == "zlib" else bytes(row[2])
        except zlib.error:
            data = b""
        if artifacts.digest(data) != digest:
            from watchkeeper.records.errors import StoreUnusable

            raise StoreUnusable(
                f"{artifacts.ref_of(digest)} is damaged in the database; restore a backup, then export again"
            )
        return str(row[0]), data

    def _rename(self, redact: Redact) -> None:
        for _ in range(_PASSES):
            before = dict(self.renamed)
            for digest in self.digests:
                media_type, data = self._read(digest)
                clean = self._clean(media_type, data, redact)
                if clean is not data:
                    self.renamed[digest] = artifacts.digest(clean)
            if self.renamed == before:
                return

    def _clean(self, media_type: str, data: bytes, redact: Redact | None) -> bytes:
        """The bytes without secrets, and with the references that hold then; the very same object where
        nothing changes."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return data
        clean = _without_secrets(media_type, text, redact) if redact is not None else text
        if self.renamed:
            clean = _REFERENCE.sub(
                lambda match: artifacts.ref_of(self.renamed.get(match[1], match[1])), clean
            )
        return data if clean == text else clean.encode("utf-8", "replace")


def _without_secrets(media_type: str, text: str, redact: Redact) -> str:
    if media_type == "application/json":
        # Value by value, so that what is left is still JSON.
        try:
            value = json.loads(text)
        except ValueError:
            pass
        else:
            clean = redact(value)
            return text if clean is value else json.dumps(clean, ensure_ascii=False, indent=1) + "\n"
    return str(redact(text))
