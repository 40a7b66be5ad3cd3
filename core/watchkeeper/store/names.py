"""The name of a task and of its agents: one for all panes, tables, events and messages. Names are hostile until sanitised.

A task has the short name that the plan gives it (`fix-bytes`); its title is a description. An agent has the name of its
task, from the second attempt on with its number (`fix-bytes/2`). An agent without a task has a name of its own: `planner`,
and in imported sessions what the program calls it. Items of imported to-do lists have no role and no short name: their
texts are their names.
"""

from __future__ import annotations

from watchkeeper.records.readers import UNIT_ROLES
from watchkeeper.records.text import one_line

AGENT_NAME = (
    "coalesce((SELECT named.name || CASE WHEN a.attempt > 1 THEN '/' || CAST(a.attempt AS TEXT) ELSE '' END"
    " FROM tasks named WHERE named.id = a.task_id AND named.role <> '' AND named.name <> ''), a.name)"
)
"""The name of the agent whose row is `a`, in SQL."""
TASK_NAME = "CASE WHEN t.name = '' OR t.role = '' AND t.title <> '' THEN t.title ELSE t.name END"
"""The name of the task whose row is `t`, in SQL: as `task_name`."""


def task_name(name: str, title: str, role: str) -> str:
    """The short name of a task; the text of an item of an imported to-do list, which has no role."""
    return title if not name or (not role and title) else name


def attempt_name(task: str, attempt: int) -> str:
    """The name of the agent that makes this attempt at the task: `fix-bytes`, then `fix-bytes/2`."""
    return f"{task}/{attempt}" if attempt > 1 else task


def described(name: str, title: str) -> str:
    """`fix-bytes: Fix the byte formatting`, where there is room for a description."""
    return f"{name}: {title}" if name and title and title != name else name or title


def with_role(name: str, role: str) -> str:
    """`fix-bytes (coder)`, sanitised and on one line."""
    name, role = one_line(name, 500), one_line(role, 120)
    return f"{name} ({role})" if name and role and name != role else name or role


def agent_label(name: str, role: str, task_id: str | None) -> str:
    """An agent's name with its role, sanitised and on one line. One without a task has a name of its own, which says
    enough: `planner`. What is no agent says so: `audit (workflow run)`."""
    return with_role(name, role if task_id is not None or role in UNIT_ROLES else "") or one_line(role, 120)
