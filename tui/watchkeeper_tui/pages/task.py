"""A task without an agent of its own: one that waits, or a to-do of another program's session."""

from __future__ import annotations

from watchkeeper.store.snapshot import TaskFacts, roles_of
from watchkeeper_tui import formatting
from watchkeeper_tui.pages.context import PageLine, blank, heading, paragraph
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.session_status import task_condition
from watchkeeper_tui.snapshot import Snapshot
from watchkeeper_tui.widgets.cells import Piece

_MOST_NAMED = 12


def without_agent(snapshot: Snapshot, task: TaskFacts) -> str:
    """Why the task has no agent, in a few words."""
    if task.status in ("pending", "stale"):
        return "this task has not been given to an agent yet"
    if task.status == "dropped":
        return "this task was dropped from the plan; no agent had it"
    keeper = snapshot.agent(task.plan_id) or snapshot.agent(
        snapshot.session.planner_agent_id if snapshot.session else None
    )
    name = sanitize(keeper.name or keeper.role) if keeper is not None else "the planner"
    return f"to-do of {name}"


def task_summary(snapshot: Snapshot, task: TaskFacts) -> tuple[list[Piece], list[Piece]]:
    """Two lines: why the task has no agent, and when its status changed."""
    began = task.started_at
    times: list[Piece] = [
        ("listed " if began is None else "started ", "muted"),
        (formatting.moment(began or task.created_at), "text"),
    ]
    if task.ended_at is not None:
        times += [("  ended ", "muted"), (formatting.time_of_day(task.ended_at), "text")]
        if began is not None:
            times += [("  took ", "muted"), (formatting.duration(task.ended_at - began), "text")]
    return [(without_agent(snapshot, task), "muted")], times


def task_page(snapshot: Snapshot, task: TaskFacts, width: int) -> list[PageLine]:
    """The page of the task."""
    lines = paragraph("task.title", task.title or task.name, width, role="strong", most=12)
    lines += _role(snapshot, task, width)
    lines += _needs(snapshot, task)
    for name, text, role in (
        ("Result", task.result, "text"),
        ("Why", task.error or task.status_reason, "failed"),
    ):
        if text:
            body = paragraph(f"task.{name}.text", text, width, role=role, indent=2)
            lines += [blank(f"task.{name}.gap"), heading(f"task.{name}", name), *body]
    return lines


def _role(snapshot: Snapshot, task: TaskFacts, width: int) -> list[PageLine]:
    """The role that the task is for: its file, and the model that it runs on."""
    role = roles_of(snapshot.session.roles).get(task.role) if snapshot.session is not None else None
    if role is None:
        return []
    text = f"{role.role} ({role.source}) on {role.model}"
    if task.model and task.model != role.model:
        text += f"; the planner asks for {task.model}"
    if role.unconfirmed:
        text += f"; the workspace asks for {role.unconfirmed}, which costs more and was not allowed"
    body = paragraph("task.role.text", text, width, indent=2)
    return [blank("task.role.gap"), heading("task.role", "Role"), *body]


def _needs(snapshot: Snapshot, task: TaskFacts) -> list[PageLine]:
    """The tasks that it waits for, with the state of each."""
    if not task.depends_on:
        return []
    needed = [each for task_id in task.depends_on if (each := snapshot.task(task_id)) is not None]
    done = sum(1 for each in needed if each.status == "done")
    lines = [blank("task.needs.gap"), heading("task.needs", "Waits for", f"{done} of {len(needed)} done")]
    for each in needed[:_MOST_NAMED]:
        condition = task_condition(each)
        lines.append(
            PageLine(
                f"task.needs.{each.id}",
                ((f"  {condition.glyph} ", condition.role), (sanitize(each.title or each.name), "text")),
            )
        )
    if len(needed) > _MOST_NAMED:
        lines.append(PageLine("task.needs.more", ((f"  and {len(needed) - _MOST_NAMED} more", "muted"),)))
    return lines
