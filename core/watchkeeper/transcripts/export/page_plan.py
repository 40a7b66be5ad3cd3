"""The plan as a tree: who leads, the tasks, the agents that worked on them, and the agents that those
called."""

from __future__ import annotations

from html import escape

from watchkeeper.records.wording import plural
from watchkeeper.transcripts.export.overview import AgentLine, Overview, TaskLine
from watchkeeper.transcripts.export.page_parts import agents_by_task, badge, glyph_of
from watchkeeper.transcripts.export.words import cost

_DEEPEST = 12
"""Levels of agents that are drawn inside each other; deeper ones stand beside each other."""


def plan_section(whole: Overview) -> str:
    """The tree, with each task's instructions and result folded inside."""
    tree = _Tree(whole)
    revised = f'<p class="muted">Revision {whole.revision}.</p>\n' if whole.revision else ""
    no_plan = (
        '<p class="muted">This session has no plan; these are its agents.</p>\n' if not whole.tasks else ""
    )
    return (
        f'<section id="plan">\n<h2>Plan</h2>\n{revised}{no_plan}'
        '<div class="tools"><button class="quiet" type="button" data-tree="open">Unfold all</button>'
        '<button class="quiet" type="button" data-tree="close">Fold all</button></div>\n'
        f'<ul class="tree">\n{tree.drawn()}</ul>\n</section>\n'
    )


class _Tree:
    """Draws each agent and each task once, whatever the rows say of who called whom."""

    def __init__(self, whole: Overview) -> None:
        self._whole = whole
        self._places = {agent.id: place for place, agent in enumerate(whole.agents)}
        self._by_task = agents_by_task(whole)
        tasks = {task.id for task in whole.tasks}
        self._called: dict[str, list[AgentLine]] = {}
        self._roots: list[AgentLine] = []
        for agent in whole.agents:
            if agent.task_id in tasks:
                continue
            if agent.parent_id in self._places and agent.parent_id != agent.id:
                self._called.setdefault(str(agent.parent_id), []).append(agent)
            else:
                self._roots.append(agent)
        self._drawn: set[str] = set()

    def drawn(self) -> str:
        lead = self._roots[:1]
        tasks = "".join(self._task(task) for task in self._whole.tasks)
        parts = []
        for agent in lead:
            parts.append(self._agent(agent, 0, inside=tasks))
        if not lead:
            parts.append(tasks)
        parts += [self._agent(agent, 0) for agent in self._roots[1:]]
        # Agents that name each other as their callers have no root: they are drawn all the same.
        parts += [self._agent(agent, 0) for agent in self._whole.agents if agent.id not in self._drawn]
        return "".join(parts)

    def _agent(self, agent: AgentLine, depth: int, inside: str = "") -> str:
        if agent.id in self._drawn:
            return ""
        self._drawn.add(agent.id)
        called = self._called.get(agent.id, []) if depth < _DEEPEST else []
        children = inside + "".join(self._agent(one, depth + 1) for one in called)
        parts = [
            f"attempt {agent.attempt}" if agent.attempt > 1 else "",
            agent.model,
            plural(agent.messages, "message") if agent.messages else "no transcript",
            f"{agent.spent.total:,} tokens" if agent.spent.total else "",
            cost(agent.spent) if agent.spent.total else "",
            plural(agent.compactions, "compaction") if agent.compactions else "",
        ]
        node = (
            f'<div class="node agent">{glyph_of(agent.status)}'
            f'<a class="title" href="#agent-{self._places[agent.id]}">{escape(agent.name)}</a>'
            f'<span class="meta">{escape(" · ".join(part for part in parts if part))}</span></div>'
        )
        return f"<li>{node}{f'<ul>{children}</ul>' if children else ''}</li>\n"

    def _task(self, task: TaskLine) -> str:
        agents = "".join(self._agent(agent, 1) for agent in self._by_task.get(task.id, ()))
        needs = f'<span class="meta">after {escape(", ".join(task.needs))}</span>' if task.needs else ""
        inside = "".join(
            f"<h4>{name}</h4><pre>{escape(text)}</pre>"
            for name, text in (
                ("Instructions", task.instructions),
                ("Result", task.result),
                ("Error", task.error),
            )
            if text
        )
        reason = f"<p>{escape(task.reason)}</p>" if task.reason else ""
        about = (
            f'<p class="muted small">{escape(task.name)} · {escape(task.role)} · attempt {task.attempt}</p>'
        )
        return (
            f'<li><details data-find="Task"><summary class="node">{glyph_of(task.status)}'
            f'<span class="title">{escape(task.title)}</span>{badge(task.status)}{needs}</summary>'
            f'<div class="inside">{about}{reason}{inside}</div></details>{f"<ul>{agents}</ul>" if agents else ""}</li>\n'
        )
