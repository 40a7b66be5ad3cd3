"""Content-addressed artifacts: `artifact://sha256/<hex>`, compressed when that pays, stored once."""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import TYPE_CHECKING

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.store.queries import Reads, Writes

if TYPE_CHECKING:
    from watchkeeper.store.transaction import Transaction

SCHEME = "artifact://sha256/"
_REF = re.compile(r"artifact://sha256/([0-9a-f]{64})\Z")
_COMPRESS_FROM = 512
_WORTH = 0.9


def ref_of(digest: str) -> str:
    return SCHEME + digest


def digest_of(ref: str) -> str | None:
    """The hex digest of a reference, or None if it is none."""
    match = _REF.match(ref)
    return match.group(1) if match else None


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(tx: Writes, data: bytes, media_type: str = "text/plain") -> str:
    """Store bytes (once, however often they are put); returns their reference."""
    name = digest(data)
    if tx.one("SELECT 1 FROM artifacts WHERE digest = ?", (name,)) is None:
        stored, encoding = data, "plain"
        if len(data) >= _COMPRESS_FROM:
            packed = zlib.compress(data, 6)
            if len(packed) < len(data) * _WORTH:
                stored, encoding = packed, "zlib"
        tx.execute(
            "INSERT INTO artifacts (digest, size, encoding, media_type, data, created_at) VALUES (?, ?, ?,"
            " ?, ?, ?)",
            (name, len(data), encoding, media_type, stored, tx.now),
        )
    return ref_of(name)


def get(reads: Reads, ref: str) -> bytes | None:
    """The bytes behind a reference, or None where nothing is stored under it.

    Raises:
        StoreUnusable: what is stored is not what was put there.
    """
    name = digest_of(ref)
    if name is None:
        return None
    row = reads.one("SELECT encoding, data FROM artifacts WHERE digest = ?", (name,))
    if row is None:
        return None
    try:
        data = zlib.decompress(row[1]) if row[0] == "zlib" else bytes(row[1])
    except zlib.error:
        data = None
    if data is None or digest(data) != name:
        raise StoreUnusable(f"{ref} is damaged in the database; restore a backup, or run its task again")
    return data


def save_output(
    tx: Transaction,
    *,
    name: str,
    data: bytes,
    media_type: str,
    agent_id: str | None,
    task_id: str | None,
    kind: str = "artifact",
) -> str:
    """Put an artifact and enter it under `name` in the agent's output cache; returns its reference."""
    ref = put(tx, data, media_type)
    tx.insert(
        "INSERT INTO outputs (session_id, agent_id, task_id, name, kind, digest, created_at, commit_seq)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (tx.session_id, agent_id, task_id, name, kind, digest_of(ref), tx.now, tx.commit_seq),
    )
    return ref


def resolve(reads: Reads, session_id: str, name_or_ref: str) -> str | None:
    """A reference as it is, or that of the session's newest output of that name; None if there is none."""
    if digest_of(name_or_ref):
        return name_or_ref
    row = reads.one(
        "SELECT digest FROM outputs WHERE session_id = ? AND name = ? ORDER BY id DESC LIMIT 1",
        (session_id, name_or_ref),
    )
    return ref_of(row[0]) if row else None
