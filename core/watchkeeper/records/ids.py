"""Ids: eight random base32 characters. Random rather than time-ordered, so that short prefixes are
distinct."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable

ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
"""Thirty-two characters without l, o, 0 and 1, which are mistaken for one another on a terminal."""

LENGTH = 8

IdSource = Callable[[], str]
"""Gives a fresh id at each call. Passed in, so that tests are deterministic."""


def random_id() -> str:
    """A fresh id of `LENGTH` characters of `ALPHABET` (40 random bits), from the system's randomness."""
    bits = int.from_bytes(secrets.token_bytes(5), "big")
    return "".join(ALPHABET[(bits >> shift) & 31] for shift in range(35, -1, -5))


def seeded_ids(seed: int) -> IdSource:
    """A deterministic source for tests: the same seed gives the same ids in the same order."""
    rng = random.Random(seed)
    return lambda: "".join(rng.choices(ALPHABET, k=LENGTH))
