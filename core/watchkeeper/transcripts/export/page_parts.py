"""The parts of the page that are whole without a program: overview, cost, memory, artifacts, contents,
foot."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from html import escape

from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.export.overview import AgentLine, Overview, Spent
from watchkeeper.transcripts.export.pieces import Clean, lines
from watchkeeper.transcripts.export.words import cost, duration, glyph, moment

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


def _figures(spent: Spent, most: int) -> str:
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
