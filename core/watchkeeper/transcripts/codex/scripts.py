"""Scripts of Codex's code mode: calls of tools inside one leave no lines of their own; a plan that is written
out there is read.

A script is JavaScript: `await tools.update_plan({plan: [{step: "Look", status: "in_progress"}]})`. A plan
that is put together while it runs cannot be told from it.
"""

from __future__ import annotations

import json
import re
from typing import Any

SCRIPTING_TOOLS = frozenset({"exec"})
_CALL = re.compile(r"\bupdate_plan\s*\(\s*\{")
_TEXT = r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`)"""
_STEP = re.compile(
    rf"""\{{\s*["']?(?P<first>step|status)["']?\s*:\s*{_TEXT}\s*,\s*["']?(?:step|status)["']?\s*:\s*{_TEXT}\s*,?\s*\}}""",
    re.DOTALL,
)
LONGEST_SCRIPT = 200_000


def plans_in(script: str) -> list[dict[str, Any]]:
    """The arguments of each `update_plan` that a script calls with a plan that stands there, in order."""
    starts = [match.end() for match in _CALL.finditer(script, 0, LONGEST_SCRIPT)]
    found = []
    for start, end in zip(starts, [*starts[1:], LONGEST_SCRIPT], strict=False):
        steps = []
        for match in _STEP.finditer(script, start, end):
            step, status = _said(match[2]), _said(match[3])
            steps.append(
                {"step": status, "status": step}
                if match["first"] == "status"
                else {"step": step, "status": status}
            )
        if steps:
            found.append({"plan": steps})
    return found


def _said(literal: str) -> str:
    """What a literal says, as far as JSON knows its escapes."""
    inside = literal[1:-1]
    if literal[0] != '"':
        inside = inside.replace(f"\\{literal[0]}", literal[0]).replace('"', '\\"')
    try:
        return str(json.loads(f'"{inside}"', strict=False))
    except ValueError:
        return inside
