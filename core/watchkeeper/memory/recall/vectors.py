"""Texts as vectors, by a small model that a package carries: the extra `vectors`, used where `recall_vectors`
is on.

Wordllama's static embeddings (19 MB, 256 dimensions, some 0.7 ms a message) need no network and no GPU. They
are made when somebody recalls, outside every transaction, the newest messages first and for a second at most;
what is left over is done at the next recall. What they gain is measured in docs/memory.md. Nothing here is
imported where the setting is off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from watchkeeper.memory.recall.session import OWN_TOOLS, said_in
from watchkeeper.store import embeddings, recollection
from watchkeeper.store.encoding import plain

READ_CHARACTERS = 2_000
BATCH = 128
MOST_SECONDS = 1.0
"""For how long one recall makes vectors."""


class VectorsMissing(Exception):
    """`recall_vectors` is on, and vectors cannot be made here; the message says why and what to do."""


class Embedder(Protocol):
    """Turns texts into vectors of length 1."""

    name: str
    """Vectors of different models are never compared."""

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        """32-bit floats, little-endian, for each text."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """A query as a vector."""

    model: str
    vector: bytes


class Wordllama:
    """Static embeddings of 256 dimensions."""

    name = "wordllama-l2-supercat-256"

    def __init__(self) -> None:
        from pathlib import Path

        import wordllama

        # The package carries weights and tokenizer, but looks for the latter in a folder of another name
        # before it
        # would download them: given its own folder as the cache, it finds both, and never asks the network.
        folder = Path(wordllama.__file__).parent
        self._model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True)

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        vectors: Any = self._model.embed([plain(text[:READ_CHARACTERS]) or " " for text in texts], norm=True)
        return [vector.astype("<f4").tobytes() for vector in vectors]


def unavailable() -> str | None:
    """Why `load` would fail, in one line, as far as can be told without loading anything; None: nothing
    speaks against it."""
    from importlib.util import find_spec

    from watchkeeper.store.driver import sqlite3

    absent = [name for name in ("sqlite-vec", "wordllama") if find_spec(name.replace("-", "_")) is None]
    if absent:
        return _told(
            f"{' and '.join(absent)} {'are' if len(absent) > 1 else 'is'} not installed",
            f"pip install {' '.join(absent)}",
        )
    if not hasattr(sqlite3.Connection, "enable_load_extension"):
        return _told("this SQLite loads no extensions", "install pysqlite3")
    return None


def _told(why: str, remedy: str) -> str:
    return f"recall_vectors is on, but {why}; recall goes on with words alone ({remedy}, or set recall_vectors = false)"


@lru_cache(maxsize=1)
def load() -> Embedder:
    """The embedder of the extra `vectors`, loaded once (some 0.3 s).

    Raises:
        VectorsMissing: the extra is not installed, or this SQLite loads no extensions.
    """
    from watchkeeper.store.driver import sqlite3

    why = unavailable()
    if why is not None:
        raise VectorsMissing(why)
    connection = sqlite3.connect(":memory:")
    try:
        embeddings.load_extension(connection)
        return Wordllama()
    except (ImportError, AttributeError, OSError, sqlite3.Error) as error:
        raise VectorsMissing(_told(f"cannot be used here ({error})", "install the extra again")) from None
    finally:
        connection.close()


def made(
    reads: Any, session_id: str, embedder: Embedder, *, seconds: Callable[[], float] = time.monotonic
) -> Iterator[tuple[str, list[tuple[int, bytes]]]]:
    """Vectors that a session still lacks, a batch at a time, as `(kind, [(id, vector)])`; for a second at
    most."""
    until = seconds() + MOST_SECONDS
    wanted = embeddings.missing_facts(reads, session_id, embedder.name, 1_000)
    for start in range(0, len(wanted), BATCH):
        batch = wanted[start : start + BATCH]
        yield (
            "fact",
            list(zip([one[0] for one in batch], embedder.embed([one[1] for one in batch]), strict=True)),
        )
        if seconds() >= until:
            return
    missing = embeddings.missing_messages(reads, session_id, embedder.name, embeddings.NEWEST_MESSAGES)
    skipped = recollection.calls_of(reads, session_id, OWN_TOOLS) if missing else frozenset()
    for start in range(0, len(missing), BATCH):
        places = missing[start : start + BATCH]
        contents = recollection.messages_at(reads, [(agent, seq) for _, agent, seq in places])
        there = [(item, contents[agent, seq][0]) for item, agent, seq in places if (agent, seq) in contents]
        vectors = embedder.embed([said_in(content, skipped) for _, content in there])
        yield "message", list(zip([item for item, _ in there], vectors, strict=True))
        if seconds() >= until:
            return
