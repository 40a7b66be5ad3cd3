"""Ids made of what names a thing in its own program, so that importing it again finds it."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from zlib import crc32

from watchkeeper.records.ids import ALPHABET, LENGTH

AGENT_LENGTH = 11
"""Characters of an imported agent's or task's id: there are many more of them than of sessions."""

_SECONDS = 1 << 31


def stable_id(*names: str, length: int = LENGTH) -> str:
    """Random-looking characters that are the same for the same names."""
    bits = int.from_bytes(blake2b("\0".join(names).encode("utf-8", "replace"), digest_size=8).digest())
    return "".join(ALPHABET[(bits >> (5 * place)) & 31] for place in range(length))


def record_digest(at: float | None, kind: str, uid: str) -> int:
    """A number for a record of that kind and id, below 2^63.

    Records of about the same time have numbers near each other, so that a file's records lie on few pages of the table; 32
    of its bits tell records of one second apart, all of them those without a time. Equal numbers of different records are
    possible, and found out by what they say.
    """
    if at is None:
        return int.from_bytes(blake2b(f"{kind}\0{uid}".encode("utf-8", "replace"), digest_size=8).digest()) >> 1
    return ((int(at) % _SECONDS) << 32) | crc32(uid.encode("utf-8", "replace"), _sum_of(kind))


@lru_cache(maxsize=256)
def _sum_of(kind: str) -> int:
    return crc32(f"{kind}\0".encode("utf-8", "replace"))
