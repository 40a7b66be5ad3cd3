"""Leave out of a failing script what its fault does not need."""

from __future__ import annotations

from dataclasses import replace

from tests.simulate.script import Script
from tests.simulate.world import Outcome, play


def shrunken(script: Script, outcome: Outcome) -> tuple[Script, Outcome]:
    """The shortest script found whose first problem is of the same kind: happenings are left out one by one, until none can
    be, then tasks of the plan."""
    kind = _kind(outcome)

    def fails(other: Script) -> Outcome | None:
        found = play(other)
        return found if found.problems and _kind(found) == kind else None

    again = True
    while again:
        again = False
        for place in reversed(range(len(script.happenings))):
            shorter = script.without([place])
            if found := fails(shorter):
                script, outcome, again = shorter, found, True
        for task in reversed(script.plan):
            left = [one | {"depends_on": [name for name in one["depends_on"] if name != task["name"]]}
                    for one in script.plan if one is not task]  # fmt: skip
            if left and (found := fails(replace(script, plan=left))):
                script, outcome, again = replace(script, plan=left), found, True
    return script, outcome


def _kind(outcome: Outcome) -> str:
    """A problem without its names and numbers."""
    return "".join(" " if character.isdigit() else character for character in outcome.problems[0])[:40]
