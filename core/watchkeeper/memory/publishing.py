"""The checks that a prepared pass must hold before it takes its place in a view."""

from __future__ import annotations

from collections.abc import Sequence

from watchkeeper.memory.changes import Prepared, Rejection
from watchkeeper.memory.cuts import cut_points
from watchkeeper.records.memory import Message, Observation, View

SMALLER_BY = 0.05
"""A pass must save at least this share of what it read."""


def spliced(
    prepared: Prepared, observation: Observation, view: View, tail: Sequence[Message], next_seq: int
) -> tuple[tuple[Observation, ...], int | None] | Rejection:
    """The observations and `verbatim_from` of `view` with `observation` in place of all that it covers.

    `tail` are the messages that `view` does not cover; `next_seq` is what the next message will be numbered.
    """
    first, last = prepared.covers
    if not prepared.text.strip() or not prepared.citations:
        return Rejection("The summary is empty.")
    if prepared.tokens > prepared.source_tokens * (1 - SMALLER_BY):
        return Rejection(
            f"The summary takes {prepared.tokens} tokens and what it replaces {prepared.source_tokens}: it"
            " must be "
            f"smaller by {SMALLER_BY:.0%}."
        )
    before: list[Observation] = []
    after: list[Observation] = []
    for have in view.observations:
        if have.covers[1] < first:
            before.append(have)
        elif have.covers[0] > last:
            after.append(have)
        elif have.covers[0] < first or have.covers[1] > last:
            return Rejection(f"Observation {have.id} covers messages on both sides of the mark {last}.")
        elif have.id not in prepared.replaces and not have.provisional:
            return Rejection(f"Observation {have.id} appeared while the pass ran, and it did not read it.")
    start = before[-1].covers[1] + 1 if before else 1
    if first != start:
        return Rejection(
            f"The pass covers messages from {first}, but {start} is the first that it must stand for."
        )
    verbatim = tail[0].seq if tail else next_seq
    if last >= next_seq:
        return Rejection(f"The pass covers message {last}, which does not exist.")
    if after:
        if after[0].covers[0] != last + 1:
            return Rejection(f"Messages behind {last} would be covered by nothing.")
    elif last + 1 < verbatim:
        return Rejection(f"Messages {last + 1} to {verbatim - 1} would be covered by nothing.")
    elif last + 1 > verbatim:
        if not cut_points(tail)[last + 1 - verbatim]:
            return Rejection(f"A cut behind message {last} would separate a tool call from its result.")
        verbatim = last + 1
    return (*before, observation, *after), (verbatim if verbatim < next_seq else None)
