"""The live screen's part of the help: first the pane that it was asked in."""

from __future__ import annotations

from collections.abc import Callable

from watchkeeper_tui.actions import ACTIONS

Group = tuple[str, list[tuple[str, str]]]

PANE_HELP: dict[str, Group] = {
    "plan": (
        "This pane: the plan",
        [
            ("left right", "fold and unfold a branch"),
            ("Σ", "tokens, cost and rate of the row and all below it"),
            ("~$1.00  $1.00+", "an estimate; at least so much, for some calls have no price"),
            ("- =", "collapse all, expand all"),
            ("o", "order: as planned, by cost, tokens, context, or who needs you first"),
            ("space", "mark, for an action on several"),
            ("/", "keep the rows with these words: names, states, models"),
            ("enter, double click", "open the agent, full screen"),
        ],
    ),
    "events": (
        "This pane: events",
        [
            ("k, PgUp, wheel", "look back; what comes meanwhile is counted"),
            ("G", "follow the newest again"),
            ("/", "keep the events with these words"),
            ("enter, double click", "show the event's agent"),
        ],
    ),
    "agent": (
        "This pane: the agent",
        [
            ("left right, click", "the tabs"),
            ("enter", "unfold what is folded; open a compaction"),
            ("/", "search the transcript, the facts and observations"),
            ("c", "to where the transcript was compacted"),
            (
                "*",
                "pin the fact under the cursor to every prompt; keep the message under it as it is; or take it out",
            ),
            ("y", "copy the whole block"),
        ],
    ),
    "compaction": (
        "This pane: compaction",
        [
            ("enter, double click", "open a pass: what it replaced, and by what"),
            ("…", "an agent that comes near to one; the last column says how near"),
            ("◔ buffered", "an observation made ahead of need"),
        ],
    ),
}


def live_help(pane: str, key_for: Callable[[str, str], str]) -> list[Group]:
    """Titles, each with keys and what they do. `key_for` gives the key that the user has for something."""
    return [
        PANE_HELP[pane],
        (
            "Act on the selected agent, or on those marked with space",
            [(key_for(f"act.{action.id}", action.key), action.help) for action in ACTIONS if action.key],
        ),
        (
            "Look around",
            [
                ("j k, arrows, g G, PgUp PgDn", "move; the mouse and its wheel too"),
                ("1 2 3 4, tab", "plan, events, agent, compaction"),
                ("[ ]", "previous, next agent"),
                ("e", "next row that needs you"),
                ("i", "a report on the agent: task, result, artifacts, tools, statistics"),
                ("f", "freeze the view; the run goes on"),
                ("z", "zoom the pane"),
                ("< >", "move the divider between left and right"),
                ("y", "copy"),
                ("s", "every session"),
            ],
        ),
        (
            "States",
            [
                ("● working  ◔ slot  ? needs you", "‖ paused  ↻ retrying  ! silent"),
                ("✓ done  ✗ failed  † stopped  ○ idle", "· pending  ~ stale  × cancelled  - dropped"),
            ],
        ),
    ]
