"""The HTML form: one file that needs nothing else. What others wrote is text in it, and can be nothing more.

Two walls stand against what a session may hold. Every text is escaped where it is written, and the
transcripts lie in data blocks that the page's own program puts on the page as text. And a
Content-Security-Policy lets only that program and that style sheet act, by their hashes, with no network at
all: what slipped through could neither run nor load.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import TextIO

from watchkeeper.records.redact import Redactor
from watchkeeper.records.text import plural
from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.export.overview import (
    AgentLine,
    Clean,
    CompactionPage,
    Kept,
    Overview,
    Said,
    TaskLine,
    UsageTotals,
    compactions,
    cost,
    duration,
    glyph,
    lines,
    moment,
    overview,
    transcript,
)

# --- The parts of the page that are whole without a program: overview, cost, memory, artifacts, contents, ---
#
# foot.

SHOWN_BYTES = 200_000
"""An artifact of text that is no larger is shown whole."""
SHOWN_IN_ALL = 4_000_000
_AGENTS_LISTED = 60


def glyph_of(status: str) -> str:
    """The mark of a state, in its colour and with its name."""
    return f'<span class="glyph {_word(status)}" title="{escape(status)}">{escape(glyph(status))}</span>'


def badge(status: str) -> str:
    return f'<span class="badge {_word(status)}">{escape(glyph(status))} {escape(status)}</span>'


def _word(status: str) -> str:
    """A class name: letters alone."""
    return status if status.isascii() and status.isalpha() else "unknown"


def contents(whole: Overview) -> str:
    """The list of the page's parts."""
    sections = [("overview", "Overview"), ("plan", "Plan"), ("cost", "Cost"), ("compactions", "Compactions"),
                ("memory", "Memory"), ("artifacts", "Artifacts"), ("transcripts", "Transcripts")]  # fmt: skip
    links = "".join(f'<li><a href="#{name}">{title}</a></li>\n' for name, title in sections)
    agents = "".join(
        f'<li><a href="#agent-{place}">{escape(agent.name)}</a></li>\n'
        for place, agent in enumerate(whole.agents[:_AGENTS_LISTED])
    )
    inner = f"<ul>\n{agents}</ul>\n" if agents else ""
    return (
        '<nav class="contents" aria-label="Contents"><details open><summary>Contents</summary>\n'
        f"<ul>\n{links}</ul>{inner and '<ul><li>' + inner + '</li></ul>'}</details></nav>\n"
    )


def overview_section(whole: Overview) -> str:
    """Title, state, figures and goal."""
    done = sum(task.status == "done" for task in whole.tasks)
    cards = [
        (f"{done} of {len(whole.tasks)}" if whole.tasks else "–", "tasks done"),
        (f"{len(whole.agents):,}", "agents"),
        (_short(whole.spent.total), "tokens"),
        (
            cost(whole.spent),
            f"cost, {whole.spent.label}" if whole.spent.label not in ("", "unpriced") else "cost",
        ),
        (f"{whole.spent.calls:,}", "model calls"),
        (f"{whole.compactions:,}", "compactions"),
    ]
    origin = f" imported from {whole.origin}" if whole.origin != "run" else ""
    facts = [
        ("Workspace", f"<code>{escape(whole.workspace)}</code>"),
        ("Model", f"<code>{escape(whole.model)}</code>"),
        ("Began", moment(whole.created_at)),
        ("Last active", moment(whole.last_active)),
        ("Ended", moment(whole.ended_at) if whole.ended_at is not None else "not yet"),
        ("Duration", duration(whole.seconds)),
        ("Session", f"<code>{escape(whole.id)}</code>{escape(origin)}"),
        *([("Totals", escape(whole.partial))] if whole.partial else []),
    ]
    if whole.tags:
        facts.append(("Tags", escape(", ".join(whole.tags))))
    shown = "".join(
        f'<div class="card"><b>{escape(figure)}</b><span>{escape(name)}</span></div>\n'
        for figure, name in cards
    )
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>\n" for name, value in facts)
    reason = f"<p>{escape(whole.reason)}</p>\n" if whole.reason else ""
    goal = f"<h3>Goal</h3>\n<pre>{escape(whole.goal)}</pre>\n" if whole.goal != whole.title else ""
    return (
        f'<section id="overview">\n<h1 data-find="Title">{escape(whole.title)}</h1>\n<p>{badge(whole.status)}</p>\n{reason}'
        f'<div class="cards">\n{shown}</div>\n<dl class="facts">\n{listed}</dl>\n{goal}</section>\n'
    )


def cost_section(whole: Overview) -> str:
    """What each agent and each model cost."""
    most = max((agent.spent.total for agent in whole.agents), default=0)
    most_of_models = max((spent.total for spent in whole.models.values()), default=0)
    rows = "".join(
        f'<tr><td class="name"><a href="#agent-{place}">{escape(agent.name)}</a><small>{escape(agent.model)}</small></td>'
        f"{_figures(agent.spent, most)}</tr>\n"
        for place, agent in enumerate(whole.agents)
    )
    models = "".join(
        f'<tr><td class="name">{escape(model)}</td>{_figures(spent, most_of_models)}</tr>\n'
        for model, spent in whole.models.items()
    )
    by_model = f"<h3>By model</h3>\n{_cost_table('Model', models, '')}" if models else ""
    everything = f"<tfoot><tr><td>All agents</td>{_figures(whole.spent, 0)}</tr></tfoot>"
    return (
        f'<section id="cost">\n<h2>Cost</h2>\n<h3>By agent</h3>\n{_cost_table("Agent", rows, everything)}{by_model}'
        '<p class="muted small">A figure is <b>exact</b> where the provider reported the tokens and the price is known,'
        " <b>estimated</b> where one of them was worked out, and <b>unpriced</b> where nobody knows the"
        " price.</p>\n</section>\n"
    )


def _cost_table(of: str, rows: str, foot: str) -> str:
    names = ("Cost", "Tokens", "Calls", "Input", "Output", "Cache read", "Cache write")
    head = "".join(f'<th class="number">{name}</th>' for name in names)
    return f'<div class="scroll"><table><thead><tr><th>{of}</th>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n{foot}</table></div>\n'


def _figures(spent: UsageTotals, most: int) -> str:
    bar = ""
    if most:
        width = 100 * spent.total / most
        bar = (
            '<svg class="bar" viewBox="0 0 100 5" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect width="{width:.1f}" height="5"/></svg>'
        )
    worth = f'<span class="worth">{escape(spent.label)}</span>' if spent.label not in ("", "unpriced") else ""
    cells = "".join(f'<td class="number">{figure:,}</td>' for figure in (spent.calls, *spent.tokens))
    return f'<td class="number">{escape(cost(spent))}{worth}</td><td class="number">{spent.total:,}{bar}</td>{cells}'


def memory_section(whole: Overview, places: dict[str, int]) -> str:
    """What is remembered, with its sources."""
    if not whole.facts:
        return '<section id="memory">\n<h2>Memory</h2>\n<p class="muted">Nothing was remembered.</p>\n</section>\n'
    rows = []
    for fact in whole.facts:
        note = (
            f' <span class="muted">replaced by {fact.superseded_by}</span>'
            if fact.superseded_by is not None
            else ""
        )
        note += ' <span class="muted">pinned</span>' if fact.pinned else ""
        sources = " ".join(_source(one, places) for one in fact.sources)
        rows.append(
            f'<tr data-find="Memory"><td class="number">{fact.id}</td><td>{escape(fact.kind)}</td>'
            f"<td>{escape(fact.text)}{note}</td><td>{sources}</td></tr>\n"
        )
    more = ""
    if whole.facts_in_all > len(whole.facts):
        more = f'<p class="note">The newest {len(whole.facts):,} of {whole.facts_in_all:,}.</p>\n'
    return (
        '<section id="memory">\n<h2>Memory</h2>\n<div class="scroll"><table><thead><tr><th class="number">Id</th><th>Kind</th>'
        f"<th>Text</th><th>Sources</th></tr></thead>\n<tbody>\n{''.join(rows)}</tbody></table></div>\n{more}</section>\n"
    )


def _source(pointer: str, places: dict[str, int]) -> str:
    """A pointer to a message of this session as a way there; any other as it is."""
    if pointer.startswith("message://"):
        agent_id, _, seqs = pointer.removeprefix("message://").rpartition("/")
        first = seqs.partition("-")[0]
        if agent_id in places and first.isascii() and first.isdigit():
            return f'<button class="jump" type="button" data-jump="{places[agent_id]}:{first}">#{escape(seqs)}</button>'
    return f"<code>{escape(pointer)}</code>"


def artifact_section(connection: Connection, whole: Overview, clean: Clean) -> Iterator[str]:
    """What was made; texts that are not large are shown."""
    yield '<section id="artifacts">\n<h2>Artifacts</h2>\n'
    if not whole.outputs:
        yield '<p class="muted">Nothing was saved.</p>\n'
    left = SHOWN_IN_ALL
    for one in whole.outputs:
        text = None
        if one.size <= min(SHOWN_BYTES, left) and one.kind == "artifact":
            text = _text_of(connection, one.digest)
        about = f'<span class="title">{escape(one.name)}</span><span class="meta">{escape(one.media_type)} · {one.size:,} bytes</span>'
        if text is None:
            yield f'<div class="node" data-find="Artifact">{about}</div>\n'
            continue
        left -= one.size
        yield (
            f'<details data-find="Artifact {escape(one.name)}"><summary class="node">{about}</summary>'
            f'<div class="inside"><pre>{escape(lines(clean(text), SHOWN_BYTES))}</pre></div></details>\n'
        )
    yield "</section>\n"


def _text_of(connection: Connection, digest: str) -> str | None:
    row = connection.execute("SELECT encoding, data FROM artifacts WHERE digest = ?", (digest,)).fetchone()
    try:
        return (zlib.decompress(row[1]) if row[0] == "zlib" else bytes(row[1])).decode()
    except (zlib.error, UnicodeDecodeError):
        return None


def foot(redacted: int | None) -> str:
    """How the page was made."""
    said = "Secrets were left in." if redacted is None else f"Secrets taken out: {redacted:,}."
    return (
        f"<footer><p>Exported by Watchkeeper. {said} This page needs no network and loads nothing."
        " Times are in UTC.</p></footer>\n"
    )


def _short(amount: int) -> str:
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if amount >= size:
            return f"{amount / (1000 if unit == 'k' else size):.1f} {unit}"
    return f"{amount:,}"


def agents_by_task(whole: Overview) -> dict[str, list[AgentLine]]:
    """The agents that worked on each task, oldest first."""
    found: dict[str, list[AgentLine]] = {}
    for agent in whole.agents:
        if agent.task_id:
            found.setdefault(agent.task_id, []).append(agent)
    return found


# --- The plan as a tree: who leads, the tasks, the agents that worked on them, and the agents that those ---
#
# called.

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


# --- Compactions on the page: which messages each replaced, with what, and which messages that text cites ---

_CITATIONS = 80
LARGEST_KEPT = 20_000_000
"""Characters of texts that stand for messages in one page; of later passes there are the figures alone."""


def compaction_section(
    connection: Connection, session_id: str, clean: Clean, whole: Overview, places: dict[str, int]
) -> Iterator[str]:
    """The section, a pass at a time."""
    yield '<section id="compactions">\n<h2>Compactions</h2>\n'
    names = {agent.id: agent.name for agent in whole.agents}
    none, size = True, 0
    for one in compactions(connection, session_id, clean):
        none = False
        size += sum(len(kept.text) for kept in one.kept)
        if size > LARGEST_KEPT:
            one = replace(
                one,
                kept=tuple(
                    replace(kept, text="[left out: the page would be too large]") for kept in one.kept
                ),
            )
        yield _drawn(one, names.get(one.agent_id, one.agent_id), places.get(one.agent_id, -1))
    if none:
        yield '<p class="muted">Nothing was compacted.</p>\n'
    yield "</section>\n"


def _drawn(one: CompactionPage, name: str, place: int) -> str:
    cited = ",".join(str(seq) for seq in one.cited)
    count = plural(one.dropped, "message")
    left = f"{count} {'replaced' if one.applied else 'read'}" if one.dropped else "no message replaced"
    return (
        f'<details class="pass" data-find="Compaction of {escape(name)}" data-agent="{place}" data-first="{one.first}"'
        f' data-last="{one.last}" data-cited="{cited}"><summary><b>{escape(name)}</b><span class="flow">{_flow(one)}</span>'
        f'<span class="muted small">{left} · {moment(one.at)}</span>{badge(one.status)}{_bar(one)}</summary>\n'
        f'<div class="sides">{_left(one)}{_right(one, place)}</div></details>\n'
    )


def _flow(one: CompactionPage) -> str:
    if one.tokens_before is None:
        return "tokens not known"
    after = f"{one.tokens_after:,}" if one.tokens_after is not None else "?"
    less = ""
    if one.tokens_after is not None and one.tokens_before:
        less = f" ({100 * (one.tokens_after - one.tokens_before) / one.tokens_before:+.0f} %)".replace(
            "-", "−"
        )
    return f"{one.tokens_before:,} → {after} tokens{less}"


def _bar(one: CompactionPage) -> str:
    if not one.tokens_before or one.tokens_after is None:
        return ""
    share = min(100.0, 100 * one.tokens_after / one.tokens_before)
    return (
        '<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="before" width="100" height="6"/><rect width="{share:.1f}" height="6"/></svg>'
    )


def _left(one: CompactionPage) -> str:
    if not one.dropped or not one.applied:
        return '<div><h3>Replaced</h3><p class="muted">No message left the context.</p></div>'
    return (
        f"<div><h3>Replaced: messages {one.first:,} to {one.last:,}</h3>"
        f'<p class="muted small">{len(one.cited):,} of {one.dropped:,} are cited by the text that replaces them;'
        f" {one.dropped - len(one.cited):,} are not in the summary (still stored).</p>"
        '<ul class="gone"></ul></div>'
    )


def _right(one: CompactionPage, place: int) -> str:
    verbatim = ""
    if one.verbatim_from is not None:
        verbatim = f'<p class="muted small">From message {_jump(place, one.verbatim_from)} on, everything is kept as it was said.</p>'
    about = [
        f"asked for by {one.trigger}" if one.trigger == "manual" else one.trigger,
        one.model,
        duration(one.seconds),
    ]
    facts = " · ".join(escape(text) for text in about if text and text != "–")
    reason = f"<p>{escape(one.reason)}</p>" if one.reason else ""
    instructions = f"<p>Instructions: {escape(one.instructions)}</p>" if one.instructions else ""
    kept = (
        "".join(_kept(text, place) for text in one.kept)
        or '<p class="muted">No new text stands in the context.</p>'
    )
    return f'<div><h3>Kept instead</h3><p class="muted small">{facts}</p>{reason}{instructions}{kept}{verbatim}</div>'


def _kept(kept: Kept, place: int) -> str:
    cites = " ".join(_jump(place, seq) for seq in kept.citations[:_CITATIONS])
    more = f" and {len(kept.citations) - _CITATIONS:,} more" if len(kept.citations) > _CITATIONS else ""
    return (
        f'<p class="muted small">{escape(kept.kind)} of messages {kept.covers[0]:,} to {kept.covers[1]:,},'
        f" {kept.tokens:,} tokens</p><pre>{escape(kept.text)}</pre>"
        f'<p class="cites small"><span class="muted">cites</span> {cites or "nothing"}{more}</p>'
    )


def _jump(place: int, seq: int) -> str:
    return f'<button class="jump" type="button" data-jump="{place}:{seq}">#{seq}</button>'


LARGEST_TRANSCRIPTS = 160_000_000
"""Characters of messages in one page, shared equally by the agents; of what is more, the JSON form has
all."""
_MESSAGES_A_CHUNK = 50
_CHARACTERS_A_CHUNK = 300_000


def write_page(
    connection: Connection, session_id: str, out: TextIO, redactor: Callable[[], Redactor] | None
) -> int | None:
    """Write a session as one HTML page. The caller holds a read transaction.

    Args:
        redactor: makes one that takes secrets out; None leaves them in.

    Returns:
        How many secrets were taken out; None where they were left in.
    """
    secrets = redactor() if redactor is not None else None
    clean: Clean = secrets if secrets is not None else lambda value: value
    whole = overview(connection, session_id, clean)
    places = {agent.id: index for index, agent in enumerate(whole.agents)}
    style, program = _resource("page.css"), _resource("page.js")
    out.write(_head(whole, style, program))
    out.write(contents(whole))
    out.write(
        '<main id="main">\n<div id="results" role="region" aria-live="polite" aria-label="Search results" hidden></div>\n'
    )
    out.write(overview_section(whole))
    out.write(plan_section(whole))
    out.write(cost_section(whole))
    for piece in compaction_section(connection, session_id, clean, whole, places):
        out.write(piece)
    out.write(memory_section(whole, places))
    for piece in artifact_section(connection, whole, clean):
        out.write(piece)
    out.write('<section id="transcripts">\n<h2>Transcripts</h2>\n')
    out.write(
        '<noscript><p class="note">Transcripts and search need JavaScript, which is part of this page.</p></noscript>\n'
    )
    share = LARGEST_TRANSCRIPTS // max(1, len(whole.agents))
    for place, agent in enumerate(whole.agents):
        _transcript(out, place, agent, transcript(connection, agent.id, clean), share)
    out.write("</section>\n" + foot(secrets.count if secrets is not None else None) + "</main>\n</div>\n")
    names = [agent.name for agent in whole.agents]
    out.write(f'<script type="application/json" id="agents-data">{data_block(names)}</script>\n')
    out.write(f"<script>{program}</script>\n</body>\n</html>\n")
    return secrets.count if secrets is not None else None


def data_block(value: object) -> str:
    """JSON that may stand in a script element: nothing in it ends the element, opens a comment, or ends a
    line."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _resource(name: str) -> str:
    return files("watchkeeper.transcripts.export").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _head(whole: Overview, style: str, program: str) -> str:
    policy = f"default-src 'none'; script-src '{_hash(program)}'; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    title = escape(whole.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy, quote=False)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="generator" content="Watchkeeper">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the session</a>\n<header class="top">\n'
        f'<a class="brand" href="#overview">{title}<span class="id">{escape(whole.id)}</span></a>\n'
        '<div class="search" role="search"><input id="search" type="search" autocomplete="off" spellcheck="false"'
        ' placeholder="Search everything  ( / )" aria-label="Search everything in this session"></div>\n'
        '<button id="theme" class="quiet" type="button" title="Switch between light and dark">Dark</button>\n'
        '</header>\n<div class="page">\n'
    )


def _transcript(out: TextIO, place: int, agent: AgentLine, messages: Iterable[Said], share: int) -> None:
    opened = " open" if place == 0 else ""
    figures = [
        agent.role if agent.role != agent.name else "",
        agent.model,
        plural(agent.messages, "message"),
        f"{agent.spent.total:,} tokens" if agent.spent.total else "",
        duration(agent.seconds) if agent.seconds else "",
    ]
    out.write(
        f'<details class="transcript" id="agent-{place}" data-agent="{place}"{opened}><summary>'
        f'{glyph_of(agent.status)}<span class="title">{escape(agent.name)}</span>'
        f'<span class="muted small">{escape(" · ".join(part for part in figures if part))}</span></summary>\n'
    )
    if agent.goal or agent.reason:
        about = " — ".join(escape(text) for text in (agent.goal, agent.reason) if text)
        out.write(f'<p class="muted small about">{about}</p>\n')
    out.write(
        '<div class="tools"><button class="quiet" type="button" data-fold="open">Unfold all</button>'
        '<button class="quiet" type="button" data-fold="close">Fold all</button></div>\n<div class="messages"></div>\n'
    )
    chunk: list[str] = []
    size = written = first = last = 0
    left_out = 0
    for said in messages:
        if written > share:
            left_out += 1
            continue
        text = _said(said)
        first = first if chunk else said.seq
        last = said.seq
        chunk.append(text)
        size += len(text)
        written += len(text)
        if len(chunk) >= _MESSAGES_A_CHUNK or size >= _CHARACTERS_A_CHUNK:
            _chunk(out, place, first, last, chunk)
            chunk, size = [], 0
    if chunk:
        _chunk(out, place, first, last, chunk)
    if left_out:
        out.write(
            f'<p class="note">The {left_out:,} messages after #{last} are left out, for the page would be too large to open.'
            " The JSON export has them all.</p>\n"
        )
    out.write("</details>\n")


def _said(said: Said) -> str:
    pieces = [[one.kind, one.text, one.left_out, one.name, one.id, int(one.is_error)] for one in said.pieces]
    return data_block([said.seq, said.role, moment(said.at), said.tokens, pieces, int(said.taken_back)])


def _chunk(out: TextIO, place: int, first: int, last: int, messages: list[str]) -> None:
    out.write(
        f'<script type="application/json" class="chunk" data-agent="{place}" data-first="{first}" data-last="{last}">['
    )
    out.write(",\n".join(messages))
    out.write("]</script>\n")
