"""Which view an undo leads to, and which a redo: pure functions of the versions."""

from __future__ import annotations

from collections.abc import Mapping

from watchkeeper.records.memory import View

SAME_CONTEXT = frozenset({"elision", "append", "undo", "redo"})
"""Reasons of views that compact nothing: undo looks through them to the compaction behind."""


def provisional(view: View) -> bool:
    """Whether a digest stands in that view for a summary still to come."""
    return any(observation.provisional for observation in view.observations)


def uncovered_from(view: View) -> int:
    """The first message that `view` does not cover, whether it exists yet or not."""
    if view.verbatim_from is not None:
        return view.verbatim_from
    return max((observation.covers[1] for observation in view.observations), default=0) + 1


def needed_from(view: View) -> int:
    """The first message that somebody may still read for `view`: one that it shows, or one that only a digest
    stands in for until a summary is there."""
    start = uncovered_from(view)
    for observation in reversed(view.observations):
        if not observation.provisional:
            break
        start = observation.covers[0]
    return start


def undo_target(views: Mapping[int, View], current: View) -> View:
    """The view before the last compaction, skipping provisional ones.

    Raises:
        ValueError: there is none.
    """
    view = current
    while view.reason in SAME_CONTEXT and view.parent is not None:
        view = _parent(views, view)
    if view.parent is None:
        raise ValueError("There is nothing to undo: no compaction has changed this context.")
    view = _parent(views, view)
    while provisional(view):
        if view.parent is None:
            raise ValueError("There is nothing to undo: only provisional digests came before.")
        view = _parent(views, view)
    return view


def redo_stack(views: Mapping[int, View], current: View) -> list[int]:
    """Versions that redo leads to, the next one last; empty where the newest view does not come from
    `current`."""
    newest = views[max(views)]
    left = _left_by_undo(views, newest)
    stack: list[int] = []
    while newest.version != current.version:
        stack.append(newest.version)
        try:
            newest = undo_target(views, newest)
        except ValueError:
            return []
        if newest.version < current.version:
            return []
    return left + stack


def _left_by_undo(views: Mapping[int, View], newest: View) -> list[int]:
    """The versions that undos left which had to make a view of their own, the last one last: each the one
    before it."""
    left: list[int] = []
    while newest.reason == "undo" and newest.version - 1 in views:
        newest = views[newest.version - 1]
        left.insert(0, newest.version)
    return left


def _parent(views: Mapping[int, View], view: View) -> View:
    if view.parent is None or view.parent not in views:
        raise ValueError(f"Version {view.parent} of the context is not loaded.")
    return views[view.parent]
