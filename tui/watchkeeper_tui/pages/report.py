"""A report on one agent: its task, its result, the agents it worked with, its artifacts, and its statistics; and the
page of a task that has no agent.

Each value says whether it is exact, estimated, or unpriced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len

from watchkeeper.store.agent_snapshot import ReportFacts
from watchkeeper.store.names import with_role
from watchkeeper.store.plans import current_step
from watchkeeper.store.projection import AgentFacts, CompactionFacts, TaskFacts, roles_of
from watchkeeper_tui import formatting
from watchkeeper_tui.pages import (
    UNLOGGED_WORDS,
    PageContext,
    blank,
    heading,
    outcome_lines,
    paragraph,
    rendered,
)
from watchkeeper_tui.plan_tree import row_condition
from watchkeeper_tui.sanitize import clip, fit, sanitize
from watchkeeper_tui.snapshot import (
    Condition,
    SessionState,
    Snapshot,
    agent_condition,
    lasted,
    task_condition,
)
from watchkeeper_tui.widgets.rows import PageLine, Piece

DIFF_ROLES = {"+": "done", "-": "failed", "@": "accent"}
FOLDED = 4
"""Lines of a text that are shown before Enter unfolds it."""
EXACT: Piece = ("  exact", "muted")


ARTIFACT_KEY = "open artifact "
"""Before the digest in the key of a line that opens an artifact; alone: the list of all."""


def report_page(view: PageContext) -> list[PageLine]:
    """From the question to the bill."""
    report = view.detail.report
    if report is None:
        return [
            PageLine(
                "none",
                (("reports are not available in a replay", "faint"),),
            )
        ]
    return [
        *outcome_lines(view), *_standing(view), *_asked(view, report), *_result(view, report), *_receipt(view, report),
        *_changes(view, report),
        *_tasks(view), *_artifacts(view, report), *_tools(view, report), *_bill(view, report), *_session(view),
    ]  # fmt: skip


def _standing(view: PageContext) -> list[PageLine]:
    agent = view.agent
    condition = agent_condition(
        agent, view.snapshot.state, view.now, pausing=agent.id in view.snapshot.pausing
    )
    parts = [sanitize(agent.full_label), sanitize(formatting.model_name(agent.model))]
    session = view.snapshot.session
    noted = roles_of(session.roles).get(agent.role) if session is not None else None
    if noted is not None and noted.effort_text:
        parts.append(f"effort {sanitize(noted.effort_text)}")
    who = " · ".join([*dict.fromkeys(part for part in parts if part), f"attempt {agent.attempt}"])
    state: list[Piece] = [
        (f"{condition.glyph} {condition.word}", condition.role),
        (f" at turn {agent.turn}", "muted"),
    ]
    if agent.ended_at is not None:
        state.append((f", {formatting.when(agent.ended_at, view.now)}", "muted"))
    lines = [PageLine("who", ((clip(who, view.width), "strong"),)), PageLine("state", tuple(state))]
    note = condition.note or agent.status_reason or ""
    if note and view.ending is None:
        lines += paragraph(
            "why",
            note,
            view.width,
            role="muted" if agent.status == "done" else condition.role,
            indent=2,
            most=3,
        )
    return [*lines, blank("who.end")]


def _session(view: PageContext) -> list[PageLine]:
    """In the planner's report: the process that drives the session, its pace, and how long compactions blocked agents."""
    snapshot, session = view.snapshot, view.snapshot.session
    if session is None or session.planner_agent_id != view.agent.id:
        return []
    facts = []
    if snapshot.host_pid:
        facts.append(("process", f"pid {snapshot.host_pid}"))
    if snapshot.state is SessionState.LIVE:
        facts.append(("events", f"{snapshot.rates.events_per_second:.0f} ev/s"))
    stalls = [each.stall_seconds for each in snapshot.compactions if each.stall_seconds is not None]
    if stalls:
        facts.append(("compactions", f"blocked {max(0.0, sum(stalls)) * 1000:.0f}ms"))
    if not facts:
        return []
    return [
        heading("session", "Session", sanitize(session.id)),
        *(PageLine(f"session.{name}", ((f"  {name:<12} ", "muted"), (text, "text"))) for name, text in facts),
        blank("session.end"),
    ]


def _asked(view: PageContext, report: ReportFacts) -> list[PageLine]:
    task = view.snapshot.task(view.agent.task_id)
    asked = report.instructions or view.agent.goal
    parent = view.snapshot.agent(view.agent.parent_agent_id)
    by = f"by {sanitize(parent.full_label)}" if parent is not None else "by you"
    if report.inputs:
        by += f", with {formatting.plural(report.inputs, 'artifact')} from other tasks"
    lines = [heading("asked", "Task", by)]
    if task is not None and task.title and task.title != asked:
        lines.append(
            PageLine(
                "asked.title",
                ((f"  {clip(sanitize(task.title), view.width - 2)}", "accent"),),
                copy=task.title,
            )
        )
    lines += _folding(view, "asked.text", asked)
    if report.expected:
        made = {each.name for each in report.artifacts}
        wanted: list[Piece] = [("  expects ", "muted")]
        for name in report.expected[:12]:
            there = name in made
            wanted.append((f"{'✓' if there else '·'} {sanitize(name)}  ", "done" if there else "pending"))
        lines.append(PageLine("asked.expects", tuple(wanted)))
    return [*lines, blank("asked.end")]


_FACTS = {
    "there": ("✓", "done"), "missing": ("✗", "failed"), "passed": ("✓", "done"), "failed": ("✗", "failed"),
}  # fmt: skip


def _receipt(view: PageContext, report: ReportFacts) -> list[PageLine]:
    """What the rows say of the agent's end: outputs, tests and builds."""
    found = report.receipt
    if found is None or not found.says_something:
        return []
    room = max(12, view.width - 44)
    lines = [heading("receipt", "Receipt", sanitize(found.summary))]
    for number, output in enumerate(found.outputs[:20]):
        glyph, role = _FACTS.get(output.presence, ("?", "waiting"))
        name = clip(sanitize(output.name), room)
        pieces = ((f"  {glyph} ", role), (name, "text"), (f"  {output.presence}", "muted"))
        lines.append(PageLine(f"receipt.output.{number}", pieces, copy=output.name))
    for number, run in enumerate(found.commands):
        glyph, role = _FACTS.get(run.outcome, ("?", "waiting"))
        when = "after the last edit" if run.after_last_edit else "before the last edit"
        where = run.message.rpartition("/")[2]
        pieces = (
            (f"  {glyph} ", role if run.after_last_edit else "muted"),
            (clip(sanitize(run.command), room), "text"),
            (f"  {run.outcome} {when}, message #{where}", "muted"),
        )
        lines.append(PageLine(f"receipt.command.{number}", pieces, copy=run.command))
    return [*lines, blank("receipt.end")]


def _result(view: PageContext, report: ReportFacts) -> list[PageLine]:
    task, agent = view.snapshot.task(view.agent.task_id), view.agent
    if report.result:
        lines = [heading("result", "Result", f"{report.result_chars:,} characters")]
        return [*lines, *_folding(view, "result.text", report.result, folded=12), blank("result.end")]
    if agent.status in ("failed", "cancelled"):
        why = (
            (task.error if task is not None and task.assigned_agent == agent.id else None)
            or agent.status_reason
            or "no reason given"
        )
        return [heading("result", "Result", "none"), *paragraph("result.why", why, view.width, role="failed", indent=2),
                blank("result.end")]  # fmt: skip
    if agent.task_id is None:
        text = next(
            (each.text for each in reversed(view.detail.transcript) if each.kind == "assistant"), None
        )
        if not text or agent.ended_at is None or view.ending is not None:
            return []
        return [
            heading("result", "Last message"),
            *_folding(view, "result.text", text, folded=12),
            blank("result.end"),
        ]
    note = "none yet" if agent.ended_at is None else "none: another attempt took over the task"
    return [heading("result", "Result", note), blank("result.end")]


def _changes(view: PageContext, report: ReportFacts) -> list[PageLine]:
    """What the agent has changed in its git worktree."""
    tree = report.worktree
    if tree is None:
        return []
    note = f"{formatting.plural(tree.files_changed, 'file')}, {sanitize(tree.status)}, branch {sanitize(tree.branch)}"
    lines = [heading("changes", "Changes", clip(note, max(12, view.width - 12)))]
    for line in _folding(view, "changes.text", tree.diff) if tree.diff else []:
        text = "".join(piece for piece, _ in line.pieces).strip()
        role = DIFF_ROLES.get(text[:1], "muted")
        lines.append(replace(line, pieces=tuple((piece, role) for piece, _ in line.pieces)))
    return [*lines, blank("changes.end")]


def _tasks(view: PageContext) -> list[PageLine]:
    """The tasks that it gave to others; those of the plan, for the planner."""
    agent, snapshot = view.agent, view.snapshot
    mine = {each.id for each in snapshot.agents if each.parent_agent_id == agent.id}
    plans = snapshot.session is not None and snapshot.session.planner_agent_id == agent.id
    tasks = [
        each for each in snapshot.tasks if plans or (each.assigned_agent in mine and each.id != agent.task_id)
    ]
    if not tasks:
        return []
    ended = sum(1 for each in tasks if each.status == "done")
    failed = sum(1 for each in tasks if each.status == "failed")
    note = f"{ended} of {len(tasks)} done" + (f", {failed} failed" if failed else "")
    step = current_step([each.status for each in tasks]) if plans else None
    if step is not None:
        note += f", at step {step + 1}: {clip(sanitize(tasks[step].label), 40)}"
    workers = [snapshot.agent(each.assigned_agent) for each in tasks]
    names = [sanitize(with_role(each.label, each.role)) for each in tasks]
    costs = ["" if worker is None else formatting.bill(worker) for worker in workers]
    texts = [each.error or each.result for each in tasks]
    # Where there is nothing but a word to say of any, the names have the room.
    most = max(12, min(40, view.width // 3) if any(texts) else min(80, view.width - 30))
    room = min(most, max(map(cell_len, names)))
    cost_cells = max(map(len, costs))
    lines = [heading("tasks", "Tasks", note)]
    revised = view.detail.report.revised if plans and view.detail.report is not None else None
    if revised is not None and revised[1].strip():
        words = f"revision {revised[0]}: {' '.join(revised[1].split())}"
        lines += paragraph("tasks.revised", words, view.width, role="muted", indent=2, most=4)
    for task, worker, name, cost in zip(tasks, workers, names, costs, strict=True):
        condition = row_condition(task, worker, snapshot, view.now)
        lines.append(_task(task, condition, fit(name, room), f" {cost:>{cost_cells}}" if cost_cells else ""))
    return [*lines, blank("tasks.end")]


def _task(task: TaskFacts, condition: Condition, name: str, cost: str) -> PageLine:
    text = task.error or task.result
    outcome = clip(" ".join(sanitize(text or condition.word).split()), 200)
    pieces: list[Piece] = [(f"  {condition.glyph} ", condition.role), (name, "text"), (cost, "money")]
    if task.attempt > 1:
        pieces.append((f" ↻{task.attempt - 1}", "retrying"))
    pieces.append((f"  {outcome}", "failed" if task.status == "failed" else "muted"))
    return PageLine(f"task.{task.id}", tuple(pieces), copy=task.error or task.result or task.title)


def artifacts_page(view: PageContext) -> list[PageLine]:
    """What the agent saved, the last first, and the way to what the others saved."""
    report = view.detail.report
    if report is None:
        return [PageLine("none", (("artifacts are not available in a replay", "faint"),))]
    made = [each for each in reversed(report.artifacts) if each.kind != "result"]
    lines = [heading("artifacts", "Artifacts", "Enter opens one")] if made else []
    for number, each in enumerate(made):
        size = formatting.plural(each.size, "byte") if each.size is not None else "content deleted"
        again = f"  saved {each.versions} times" if each.versions > 1 else ""
        when = formatting.time_of_day(each.created_at)
        name = clip(sanitize(each.name), max(12, view.width - 40))
        pieces = ((f"  {name}", "text"), (f"  {size}  {when}{again}", "muted"))
        lines.append(PageLine(f"artifact.{number}", pieces, f"{ARTIFACT_KEY}{each.digest}", each.name))
    if not made:
        lines.append(PageLine("empty", ((view.nothing("artifacts"), "faint"),)))
    every = (("v", "key"), (" all artifacts of the session", "muted"))
    return [*lines, blank("artifacts.end"), PageLine("artifacts.all", every, ARTIFACT_KEY)]


def _artifacts(view: PageContext, report: ReportFacts) -> list[PageLine]:
    made = [each for each in report.artifacts if each.kind != "result"]
    if not made:
        return [heading("artifacts", "Artifacts", "none of its own"), blank("artifacts.end")]
    lines = [heading("artifacts", "Artifacts", f"{len(made)}; Enter opens one")]
    for number, each in enumerate(made):
        size = f"{each.size:,} bytes" if each.size is not None else "content deleted"
        kind = f"  {sanitize(each.kind)}" if each.kind != "artifact" else ""
        again = f"  saved {each.versions} times" if each.versions > 1 else ""
        name = clip(sanitize(each.name), max(12, view.width - 30))
        pieces = ((f"  {name}", "text"), (f"  {size}{kind}{again}", "muted"))
        lines.append(PageLine(f"artifact.{number}", pieces, f"{ARTIFACT_KEY}{each.digest}", each.name))
    return [*lines, blank("artifacts.end")]


def _tools(view: PageContext, report: ReportFacts) -> list[PageLine]:
    calls, errors = sum(each.calls for each in report.tools), sum(each.errors for each in report.tools)
    note = (
        f"{formatting.plural(calls, 'call')}, {formatting.plural(errors, 'error')} (exact)"
        if calls
        else UNLOGGED_WORDS
        if view.is_unlogged
        else "none used"
    )
    lines = [heading("tools", "Tools", note)]
    for number, each in enumerate(report.tools):
        pieces: list[Piece] = [
            (f"  {fit(sanitize(each.name), 22)} ", "tool"),
            (f"{each.calls:>5,} ", "text"),
            (f"{f'✗{each.errors:,}' if each.errors else '':>6} ", "failed"),
            (f"{formatting.duration(each.seconds):>8}", "muted"),
        ]
        if each.running:
            pieces.append((f"  {each.running} running", "working"))
        lines.append(PageLine(f"tool.{number}", tuple(pieces)))
    return [*lines, blank("tools.end")]


def _bill(view: PageContext, report: ReportFacts) -> list[PageLine]:
    agent = view.agent
    if view.is_unlogged:
        return [heading("bill", "Statistics", UNLOGGED_WORDS)]
    mine = [each for each in view.snapshot.compactions if each.agent_id == agent.id]
    whole = lasted(agent, view.snapshot.state, view.now)
    split = f"  in {agent.input_tokens:,} · out {agent.output_tokens:,}"
    cached = f" · cache read {agent.cache_read_tokens:,}, written {agent.cache_write_tokens:,}"
    rows: list[tuple[str, Sequence[Piece]]] = [
        ("tokens", [(f"{agent.total_tokens:,}", "tokens"), usage_label(report), (split + cached, "muted")]),
        ("cost", [(formatting.bill(agent), "money"), *price_label(agent, report)]),
        (
            "elapsed",
            [
                (formatting.duration(whole), "text"),
                EXACT,
                (f"  active {formatting.duration(agent.active_seconds)}", "muted"),
            ],
        ),
        (
            "calls",
            [
                (f"{agent.model_calls:,} model calls", "text"),
                (f"  {agent.errors:,} failed", "failed" if agent.errors else "muted"),
                (
                    f"  {formatting.plural(agent.retries, 'retry', 'retries')}",
                    "retrying" if agent.retries else "muted",
                ),
                EXACT,
            ],
        ),
        (
            "memory",
            [
                (f"{agent.last_seq:,} messages", "text"),
                (f"  estimated  {formatting.tokens(agent.message_tokens)} tok", "muted"),
            ],
        ),
        ("compacted", _compacted(agent, mine)),
    ]
    return [
        heading("bill", "Statistics"),
        *(PageLine(f"bill.{name}", ((f"  {name:<10}", "muted"), *pieces)) for name, pieces in rows),
    ]


def usage_label(report: ReportFacts) -> Piece:
    """Whether the token counts are exact."""
    estimated = report.estimated_usage
    if not report.calls:
        return ("  no calls", "faint")
    if not estimated:
        return EXACT
    partly = "" if estimated == report.calls else "partly "
    return (f"  {partly}estimated ({estimated:,} of {formatting.plural(report.calls, 'call')})", "retrying")


def price_label(agent: AgentFacts, report: ReportFacts) -> list[Piece]:
    """Whether the cost is exact."""
    of = formatting.plural(report.calls, "call")
    pieces: list[Piece] = []
    if report.unpriced and agent.cost_usd is not None:
        pieces.append((f"  minimum: {report.unpriced:,} of {of} unpriced", "retrying"))
    elif agent.cost_usd is None and report.unpriced:
        pieces.append((f"  price unknown for {of}", "retrying"))
    doubtful = max(report.estimated_price, report.estimated_usage)
    if agent.cost_usd is not None and doubtful:
        partly = "" if doubtful == report.calls else "partly "
        pieces.append((f"  {partly}estimated ({doubtful:,} of {of})", "retrying"))
    return pieces or [EXACT if report.calls else ("  no calls", "muted")]


def _compacted(agent: AgentFacts, passes: Sequence[CompactionFacts]) -> list[Piece]:
    applied = [
        each
        for each in passes
        if each.status == "applied" and each.tokens_before and each.tokens_after is not None
    ]
    pieces: list[Piece] = [(formatting.plural(agent.compactions, "time"), "text"), EXACT]
    if applied:
        gone = sum((each.tokens_before or 0) - (each.tokens_after or 0) for each in applied)
        pieces.append((f"  {formatting.tokens(gone)} tok freed (estimated)", "muted"))
    return pieces


def _folding(view: PageContext, key: str, text: str, *, folded: int = FOLDED) -> list[PageLine]:
    most = 2_000 if key in view.expanded else folded
    body = rendered(key, text, view.width, indent=2, most=most + 1)
    lines = [PageLine(line.id, line.pieces, key, text) for line in body[:most]]
    if len(body) > most:
        lines.append(PageLine(f"{key}.more", (("  … Enter unfolds", "faint"),), key, text))
    return lines


_MOST_NAMED = 12


def without_agent(snapshot: Snapshot, task: TaskFacts) -> str:
    """Why the task has no agent, in a few words."""
    if task.status in ("pending", "stale"):
        return "not assigned to an agent yet"
    if task.status == "dropped":
        return "dropped from the plan before an agent started"
    keeper = snapshot.agent(task.plan_id) or snapshot.agent(
        snapshot.session.planner_agent_id if snapshot.session else None
    )
    name = sanitize(keeper.label) if keeper is not None else "the planner"
    return f"to-do of {name}"


def task_summary(snapshot: Snapshot, task: TaskFacts) -> tuple[list[Piece], list[Piece]]:
    """Two lines: why the task has no agent, and when its status changed."""
    began = task.started_at
    times: list[Piece] = [
        ("added " if began is None else "started ", "muted"),
        (formatting.moment(began or task.created_at), "text"),
    ]
    if task.ended_at is not None:
        times += [("  ended ", "muted"), (formatting.time_of_day(task.ended_at), "text")]
        if began is not None:
            times += [("  took ", "muted"), (formatting.duration(task.ended_at - began), "text")]
    return [(without_agent(snapshot, task), "muted")], times


def task_page(snapshot: Snapshot, task: TaskFacts, width: int) -> list[PageLine]:
    """The page of the task."""
    lines = paragraph("task.name", sanitize(with_role(task.label, task.role)), width, role="strong")
    if task.title != task.label:
        lines += paragraph("task.title", task.title, width, most=12)
    lines += _role(snapshot, task, width)
    lines += _needs(snapshot, task)
    for name, text, role in (
        ("Result", task.result, "text"),
        ("Reason", task.error or task.status_reason, "failed"),
    ):
        if text:
            key = f"task.{name}.text"
            body = (
                rendered(key, text, width, indent=2)
                if name == "Result"
                else paragraph(key, text, width, role=role, indent=2)
            )
            lines += [blank(f"task.{name}.gap"), heading(f"task.{name}", name), *body]
    return lines


def _role(snapshot: Snapshot, task: TaskFacts, width: int) -> list[PageLine]:
    """The role that the task is for: its file, and the model that it runs on."""
    role = roles_of(snapshot.session.roles).get(task.role) if snapshot.session is not None else None
    if role is None:
        return []
    text = f"{role.role} ({role.source}) on {role.model}"
    if task.model and task.model != role.model:
        text += f"; the planner requests {task.model}"
    if role.effort_text:
        text += f", effort {role.effort_text}"
    if role.unconfirmed:
        text += f"; the workspace requests {role.unconfirmed} (more expensive, not allowed)"
    body = paragraph("task.role.text", text, width, indent=2)
    return [blank("task.role.gap"), heading("task.role", "Role"), *body]


def _needs(snapshot: Snapshot, task: TaskFacts) -> list[PageLine]:
    """The tasks that it waits for, with the state of each."""
    if not task.depends_on:
        return []
    needed = [each for task_id in task.depends_on if (each := snapshot.task(task_id)) is not None]
    done = sum(1 for each in needed if each.status == "done")
    lines = [blank("task.needs.gap"), heading("task.needs", "Depends on", f"{done} of {len(needed)} done")]
    for each in needed[:_MOST_NAMED]:
        condition = task_condition(each, snapshot.state)
        lines.append(
            PageLine(
                f"task.needs.{each.id}",
                ((f"  {condition.glyph} ", condition.role), (sanitize(each.label), "text")),
            )
        )
    if len(needed) > _MOST_NAMED:
        lines.append(PageLine("task.needs.more", ((f"  and {len(needed) - _MOST_NAMED} more", "muted"),)))
    return lines
