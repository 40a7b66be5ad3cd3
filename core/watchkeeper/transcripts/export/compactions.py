"""What each compaction did to its agent's context: what it dropped, what it kept, and what it cites."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from watchkeeper.store.driver import Connection
from watchkeeper.store.encoding import decode
from watchkeeper.transcripts.export.pieces import Clean, line, lines


@dataclass(frozen=True, slots=True)
class Kept:
    """A text that stands for messages."""

    kind: str
    text: str
    """Of several lines; free of secrets and control characters."""
    tokens: int
    covers: tuple[int, int]
    citations: tuple[int, ...]
    """The `seq`s of the messages that it rests on."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """One pass over an agent's context."""

    id: int
    agent_id: str
    trigger: str
    status: str
    reason: str
    instructions: str
    model: str
    at: float
    seconds: float | None
    cost_usd: float | None
    tokens_before: int | None
    tokens_after: int | None
    first: int
    last: int
    """The messages `first … last` left the context (or would have); none where `last < first`."""
    kept: tuple[Kept, ...]
    """What stands for them, and was not in the context before."""
    verbatim_from: int | None
    """The first message that is in the context as it was said."""

    @property
    def applied(self) -> bool:
        """Whether it changed the context, even if that was undone since."""
        return self.status in ("applied", "undone")

    @property
    def dropped(self) -> int:
        return max(0, self.last - self.first + 1)

    @property
    def cited(self) -> tuple[int, ...]:
        """Which of the dropped messages are cited."""
        return tuple(
            sorted({seq for one in self.kept for seq in one.citations if self.first <= seq <= self.last})
        )


_COMPACTIONS = (
    "SELECT id, agent_id, trigger, status, reason, instructions, model, coalesce(ended_at, requested_at),"
    " seconds, cost_usd,"
    " tokens_before, tokens_after, high_water, view_before, view_after FROM compactions WHERE session_id = ?"
    " ORDER BY coalesce(ended_at, requested_at), id"
)


def compactions(connection: Connection, session_id: str, clean: Clean) -> Iterator[Compaction]:
    """Every pass of a session, in the order of the times that are shown, one at a time.

    The logs of another program's agents are imported one after the other, so the numbers of passes are in
    another order.
    """
    for row in connection.execute(_COMPACTIONS, (session_id,)):
        agent_id, high_water = row[1], row[12]
        before, after = _view(connection, agent_id, row[13]), _view(connection, agent_id, row[14])
        old, new = set(before[0] if before else ()), after[0] if after else ()
        kept = [_kept(connection, agent_id, one, clean) for one in new if one not in old]
        if after is None:
            kept = _of_pass(connection, agent_id, row[0], clean)
        first = 1 if before is None else before[1] if before[1] is not None else (high_water or 0) + 1
        if after is not None and after[1] is not None:
            last = after[1] - 1
        else:
            last = high_water or 0
        yield Compaction(
            id=row[0],
            agent_id=agent_id,
            trigger=line(row[2]),
            status=line(row[3]),
            reason=line(clean(row[4]), 600),
            instructions=line(clean(row[5]), 2_000),
            model=line(clean(row[6])),
            at=row[7],
            seconds=row[8],
            cost_usd=row[9],
            tokens_before=row[10],
            tokens_after=row[11],
            first=first,
            last=last,
            kept=tuple(one for one in kept if one is not None),
            verbatim_from=after[1] if after else None,
        )


def _view(connection: Connection, agent_id: str, version: int | None) -> tuple[list[int], int | None] | None:
    row = connection.execute(
        "SELECT observations, verbatim_from FROM views WHERE agent_id = ? AND version = ?",
        (agent_id, version),
    ).fetchone()
    return None if row is None else (decode(row[0]), row[1])


_KEPT = "SELECT kind, text, tokens, first_seq, last_seq, citations FROM observations WHERE agent_id = ?"


def _kept(connection: Connection, agent_id: str, observation_id: int, clean: Clean) -> Kept | None:
    row = connection.execute(f"{_KEPT} AND id = ?", (agent_id, observation_id)).fetchone()
    return None if row is None else _read(row, clean)


def _of_pass(connection: Connection, agent_id: str, compaction_id: int, clean: Clean) -> list[Kept | None]:
    rows = connection.execute(
        f"{_KEPT} AND compaction_id = ? ORDER BY id", (agent_id, compaction_id)
    ).fetchall()
    return [_read(row, clean) for row in rows]


def _read(row: Any, clean: Clean) -> Kept:
    return Kept(line(row[0]), lines(clean(row[1]), 60_000), row[2], (row[3], row[4]), tuple(decode(row[5])))
