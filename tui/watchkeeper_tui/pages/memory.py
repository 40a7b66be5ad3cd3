"""What the agent holds in mind: its context by kind, where compaction starts, its observations and facts; and its passes."""

from __future__ import annotations

from collections.abc import Sequence

from watchkeeper.records.messages import ROOM, compacts_at
from watchkeeper.store.agent_snapshot import CallFacts, TurnFacts
from watchkeeper.store.imports import imported_from
from watchkeeper.store.projection import AgentFacts, CompactionFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.pages import UNLOGGED_WORDS, PageContext, blank, damage, heading, outcome_lines, rendered
from watchkeeper_tui.sanitize import clip, fit, sanitize, sanitize_lines, wrap
from watchkeeper_tui.snapshot import SessionState, Snapshot, agent_condition, last_sign
from watchkeeper_tui.widgets.rows import PageLine, Piece

_ROLES = {
    "system": "kind_system",
    "overhead": "kind_system",
    "pinned": "kind_pinned",
    "tools": "kind_tools",
    "observations": "kind_observations",
    "facts": "kind_facts",
    "messages": "kind_messages",
    "elided": "kind_other",
    "unlogged": "kind_system",
}
UNLOGGED = "not in the log"
"""What a prompt holds beside the parts that are known: with other programs the system prompt and the
tools."""
_NAMES = {"overhead": "system+tools"}


def kind_role(kind: str) -> str:
    """The palette role of a kind of content."""
    return _ROLES.get("unlogged" if kind == UNLOGGED else kind, "kind_other")


def compaction_mark(agent: AgentFacts, share: float) -> int:
    """Tokens of the window at which compaction starts: what the host says, else `share` of the window."""
    said = compacts_at(dict(agent.composition))
    return said if said is not None else int(agent.context_limit * share)


def predicts_compaction(snapshot: Snapshot, agent: AgentFacts) -> bool:
    """Whether the next pass can be predicted: not for an agent that has ended, nor for another program's
    agent, whose log does not contain the threshold."""
    session = snapshot.session
    return agent.ended_at is None and (session is None or imported_from(session.origin) is None)


def seconds_to_compaction(calls: Sequence[CallFacts], left: int) -> float | None:
    """How long until the context has grown by `left` tokens, at the pace of the newest calls since it last
    shrank.

    None where it does not grow, or too little is known. `calls` are newest first.
    """
    turns = [call for call in calls if call.status == "done" and call.purpose in ("turn", "planner")][:12]
    pace = tokens_per_second([TurnFacts(call.prompt_tokens, call.started_at) for call in turns])
    return left / pace if pace is not None and left > 0 else None


def tokens_per_second(turns: Sequence[TurnFacts]) -> float | None:
    """How fast the context has grown since it last shrank; None where it has not, or fewer than three turns
    tell.

    `turns` are newest first.
    """
    grown: list[TurnFacts] = []
    for turn in turns:
        if grown and turn.prompt_tokens > grown[-1].prompt_tokens:
            break
        grown.append(turn)
    if len(grown) < 3:
        return None
    seconds = grown[0].started_at - grown[-1].started_at
    tokens = grown[0].prompt_tokens - grown[-1].prompt_tokens
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def composition_bar(composition: tuple[tuple[str, int], ...], limit: int, cells: int) -> list[Piece]:
    """The window as one bar: each kind in its colour, then what is free."""
    parts = [(kind, tokens) for kind, tokens in composition if tokens > 0 and kind not in ROOM]
    used = sum(tokens for _, tokens in parts)
    filled = formatting.bar_cells(formatting.share(used, limit), cells) if limit else cells
    shares = formatting.split_cells([tokens for _, tokens in parts], filled)
    pieces: list[Piece] = [
        ("█" * share, kind_role(kind)) for (kind, _), share in zip(parts, shares, strict=True)
    ]
    pieces.append(("░" * (cells - sum(shares)), "bar_empty"))
    return pieces


FOLDED = 4
"""Lines of an observation that are shown before Enter unfolds it."""
REASON_LINES = 6
GOAL_LINES = 4
"""Lines of an agent's goal that are shown; the report has all of it."""


def memory_page(view: PageContext) -> list[PageLine]:
    """How the run ended, for a planner; context, observations, facts."""
    lines = outcome_lines(view)
    lines += _context(view)
    lines += _now(view)
    lines += _observations(view)
    lines += _pins(view)
    lines += _facts(view)
    return lines


def _context(view: PageContext) -> list[PageLine]:
    agent = view.agent
    composition = tuple((sanitize(kind), tokens) for kind, tokens in agent.composition)
    limit, used = agent.context_limit, agent.context_used
    if not used and view.is_unlogged:
        return [
            PageLine("context.bar", ((f"context: {UNLOGGED_WORDS}", "faint"),)),
            blank("context.end"),
        ]
    # Other programs log what the whole prompt took, and not the system prompt and the tools that are in it.
    unlogged = used - sum(tokens for kind, tokens in composition if kind not in ROOM)
    if unlogged > 0 and composition:
        composition = ((UNLOGGED, unlogged), *composition)
    lines = [PageLine("context.bar", tuple(composition_bar(composition, limit, max(10, view.width - 1))))]
    legend: list[Piece] = []
    for kind, tokens in composition:
        if tokens > 0 and kind not in ROOM:
            legend += [
                ("■ ", kind_role(kind)),
                (f"{_NAMES.get(kind, kind)} ", "text"),
                (f"{formatting.tokens(tokens)}  ", "muted"),
            ]
    if limit:
        free = max(0, limit - used)
        legend += [("░ ", "bar_empty"), ("free ", "text"), (formatting.tokens(free), "muted")]
    lines += _wrapped("context.legend", legend, view.width)
    mark = compaction_mark(agent, view.threshold)
    left = mark - used
    held = f"{used:,} of {limit:,} tokens" if limit else f"{used:,} tokens, window unknown"
    note: list[Piece] = [(held, "text"), (" (estimated)", "faint")]
    if limit and predicts_compaction(view.snapshot, agent):
        note.append((f"  compaction near {formatting.tokens(mark)}", "muted"))
        note.append(
            (
                f", {formatting.tokens(left)} left" if left > 0 else ", due",
                "muted" if left > 0 else "bar_high",
            )
        )
        at_work = view.snapshot.state is SessionState.LIVE
        seconds = seconds_to_compaction(view.detail.calls, left) if at_work else None
        if seconds is not None:
            note.append((f"  in about {formatting.duration(seconds)} at this rate", "muted"))
    lines += [*_wrapped("context.note", note, view.width), blank("context.end")]
    return lines


def _beginning(text: str, width: int, most: int) -> list[str]:
    """The first rows of a text on one line; the last ends in `…` where more follows."""
    rows = wrap(text, max(8, width), limit=most + 1)
    if len(rows) > most:
        rows[most - 1] = clip(rows[most - 1] + " …", max(8, width))
    return rows[:most]


def _now(view: PageContext) -> list[PageLine]:
    """What the agent is about, and the end of what it writes."""
    agent, live = view.agent, view.agent.live
    lines: list[PageLine] = []
    has_ended = (
        view.ending is not None and agent.ended_at is not None
    )  # the outcome has the place of the goal
    goal = "" if has_ended else " ".join(sanitize(agent.goal).split())
    for index, row in enumerate(_beginning(goal, view.width - 6, GOAL_LINES) if goal else ()):
        lines.append(
            PageLine(
                f"now.goal.{index}",
                (("Goal  " if index == 0 else "      ", "strong"), (row, "text")),
                copy=agent.goal,
            )
        )
    if agent.ended_at is not None and agent.status_reason and not has_ended:
        reason = " ".join(sanitize(agent.status_reason).split())
        for index, row in enumerate(_beginning(reason, view.width - 6, REASON_LINES)):
            label = ("Note  " if agent.status == "done" else "Why   ") if index == 0 else "      "
            lines.append(
                PageLine(f"now.reason.{index}", ((label, "strong"), (row, "text")), copy=agent.status_reason)
            )
    if live is not None and agent.ended_at is None:
        condition = agent_condition(
            agent, view.snapshot.state, view.now, pausing=agent.id in view.snapshot.pausing
        )
        doing: list[Piece] = [("Now   ", "strong"), (f"{condition.glyph} {condition.word}", condition.role)]
        note = condition.note or sanitize(live.detail)
        doing.append((f"  {note.removeprefix(condition.word).lstrip()}", "muted"))
        lines.append(PageLine("now.doing", tuple(doing)))
        if view.processes:
            last = formatting.age(view.now - last_sign(agent))
            words = f"{view.processes}; last output {last} ago"
            for index, row in enumerate(wrap(words, max(8, view.width - 6))):
                lines.append(PageLine(f"now.processes.{index}", (("      ", "text"), (row, "muted"))))
        written = [
            row
            for line in sanitize_lines(live.text[-600:].strip())
            for row in wrap(line, max(8, view.width - 8))
        ]
        for index, row in enumerate(written[-3:] if live.text.strip() else ()):
            lines.append(
                PageLine(f"now.text.{index}", (("      ┊ ", "faint"), (row, "thinking")), copy=live.text)
            )
    return [*lines, blank("now.end")] if lines else []


OBSERVATION_KEY = "observation."
"""Begins the key of a line that leads to the messages behind an observation; its number follows."""


def _observations(view: PageContext) -> list[PageLine]:
    current = view.detail.view
    if current is None or not current.observations:
        return damage(current)
    verbatim = (
        f"messages verbatim from #{current.verbatim_from}"
        if current.verbatim_from
        else "no verbatim messages"
    )
    lines = [
        *damage(current),
        heading("obs", "Observations", f"{len(current.observations)} in view {current.version} · {verbatim}"),
    ]
    for each in current.observations:
        if not _holds(each.text, view.words):
            continue
        key = f"obs.{each.id}"
        unfolded = key in view.expanded
        provisional = " provisional" if each.provisional else ""
        lines.append(
            PageLine(
                key,
                (
                    ("▾ " if unfolded else "▸ ", "faint"),
                    (f"{sanitize(each.kind)} {each.id}", "compaction"),
                    (
                        f"  #{each.first_seq}–#{each.last_seq}  {formatting.tokens(each.tokens)}"
                        f" tok{provisional}",
                        "muted",
                    ),
                ),
                key=key,
                copy=each.text,
            )
        )
        most = 400 if unfolded else FOLDED
        body = rendered(key, each.text, view.width, indent=2, most=most + 1)
        lines += [PageLine(line.id, line.pieces, key, each.text) for line in body[:most]]
        if len(body) > most:
            lines.append(PageLine(f"{key}.more", (("  … Enter unfolds", "faint"),), key, each.text))
        if unfolded:
            behind = f"  → source messages, #{each.first_seq}–#{each.last_seq}"
            lines.append(PageLine(f"{key}.behind", ((behind, "accent"),), f"{OBSERVATION_KEY}{each.id}"))
    return [*lines, blank("obs.end")]


PIN_KEY = "pinned."
"""Begins the key of a pinned message's line; its number follows."""


def _pins(view: PageContext) -> list[PageLine]:
    """The messages that a person pinned, each on a line."""
    current = view.detail.view
    if current is None or not current.pins:
        return []
    firsts = {block.seq: block for block in reversed(view.detail.transcript)}
    note = f"{len(current.pins)}, kept verbatim; * unpins"
    lines = [heading("pinned", "Pinned messages", note)]
    for seq in current.pins:
        block = firsts.get(seq)
        said = next((line for line in block.lines if line.strip()), "") if block is not None else ""
        title = f"{block.title}  " if block is not None else ""
        tokens = f"{formatting.tokens(block.tokens)} tok  " if block is not None and block.tokens else ""
        part = "shortened  " if seq in current.elided else ""
        head = f"#{seq}  {title}{tokens}"
        pieces: tuple[Piece, ...] = (
            ("⚑ ", "kind_pinned"),
            (head, "muted"),
            (part, "retrying"),
            (clip(said, max(8, view.width - len(head) - len(part) - 2)), "text"),
        )
        copy = "\n".join(block.lines) if block is not None else ""
        lines.append(PageLine(f"{PIN_KEY}{seq}", pieces, f"{PIN_KEY}{seq}", copy))
    return [*lines, blank("pinned.end")]


def _facts(view: PageContext) -> list[PageLine]:
    facts = [fact for fact in view.detail.facts if _holds(f"{fact.kind} {fact.text}", view.words)]
    found = f" of {len(view.detail.facts)} matching “{sanitize(view.words)}”" if view.words else ""
    none = "none yet" if view.agent.ended_at is None else "none"
    said = formatting.plural(len(facts), "remembered fact") + found if facts or found else none
    lines = [heading("facts", "Facts", said)]
    for fact in facts:
        key = f"fact.{fact.id}"
        mark: Piece = ("⚑ ", "kind_pinned") if fact.pinned else ("  ", "text")
        rows = wrap(" ".join(sanitize(fact.text).split()), max(8, view.width - 15), limit=40)
        shown = rows if key in view.expanded else rows[:2]
        for index, row in enumerate(shown):
            more = index == len(shown) - 1 and len(rows) > len(shown)
            kind = sanitize(fact.kind)[:11] if index == 0 else ""
            pieces = (
                mark if index == 0 else ("  ", "text"),
                (f"{kind:<12}", "kind_facts"),
                (row + ("…" if more else ""), "text"),
            )
            lines.append(PageLine(f"{key}.{index}", pieces, key, fact.text))
    return lines


def _holds(text: str, words: str) -> bool:
    folded = text.casefold()
    return all(word in folded for word in words.casefold().split())


def _wrapped(line_id: str, pieces: list[Piece], width: int) -> list[PageLine]:
    """Pieces over as many lines as they need, broken between pieces that begin a word."""
    from watchkeeper_tui.widgets.rows import pieces_width

    lines: list[list[Piece]] = [[]]
    index = 0
    while index < len(pieces):
        # A legend's mark, name and figure stay together.
        group = [pieces[index]]
        while index + len(group) < len(pieces) and not _begins(pieces[index + len(group)]):
            group.append(pieces[index + len(group)])
        if lines[-1] and pieces_width(lines[-1]) + pieces_width(group) > width:
            lines.append([])
        lines[-1] += group
        index += len(group)
    return [PageLine(f"{line_id}.{number}", tuple(line)) for number, line in enumerate(lines)]


def _begins(piece: Piece) -> bool:
    return piece[0] in ("■ ", "░ ") or piece[0].startswith("  ")


MOST_PASSES = 200
"""As many of a session's newest passes are read (`SessionSnapshotReader`)."""
PASS_KEY = "pass."
"""The prefix of the key of a pass's line; the pass's id follows."""
STATES = {
    "running": ("◌", "working", "running"),
    "prepared": ("◔", "slot", "prepared"),
    "applied": ("✓", "done", "applied"),
    "rejected": ("✗", "failed", "rejected"),
    "abandoned": ("×", "cancelled", "abandoned"),
    "skipped": ("-", "muted", "skipped"),
    "undone": ("‹", "paused", "undone"),
}


def pass_look(status: str) -> tuple[str, str, str]:
    """The glyph, the role and the word of a pass's status; an unknown one is its own word."""
    return STATES.get(status, ("?", "muted", sanitize(status)))


def is_buffered(each: CompactionFacts) -> bool:
    """An observation made ahead of need, which waits until its messages have to go."""
    return each.status == "prepared" and each.trigger in ("observer", "reflector")


def stall(each: CompactionFacts) -> str:
    """How long the agent's loop was blocked; a dash if unknown."""
    return "-" if each.stall_seconds is None else f"{max(0.0, each.stall_seconds) * 1000:.0f}ms"


def pass_cost(each: CompactionFacts) -> str:
    """What the pass cost: `unpriced` where its model has no known price, a dash where nothing is known or no
    model was asked."""
    if each.cost_usd is not None:
        return formatting.money(each.cost_usd)
    return (
        "unpriced"
        if _asked_a_model(each) and each.ended_at is not None and each.status not in ("abandoned", "skipped")
        else "-"
    )


def _asked_a_model(each: CompactionFacts) -> bool:
    """Whether a model made the summary. A digest needs none; other programs do not record it."""
    return each.stall_seconds is not None and each.model not in (None, "digest")


def pass_number(each: CompactionFacts, passes: Sequence[CompactionFacts]) -> tuple[int, int] | None:
    """Which of its agent's passes it is, and of how many; None where older ones may not have been read.
    `passes`: the session's."""
    mine = sorted(other.id for other in passes if other.agent_id == each.agent_id)
    return (mine.index(each.id) + 1, len(mine)) if each.id in mine and len(passes) < MOST_PASSES else None


def compaction_pieces(each: CompactionFacts, now: float, *, name: str = "") -> list[Piece]:
    """One pass as one line."""
    glyph, role, word = pass_look(each.status)
    at = formatting.time_of_day(each.requested_at)
    pieces: list[Piece] = [(f"{glyph} ", role), (f"{at[:5] if name else at} ", "faint")]
    if name:
        pieces.append((f"{name} ", "text"))
    pieces.append((sanitize(each.trigger), "muted"))
    if each.status == "running":
        upto = f" up to #{each.high_water}" if each.high_water else ""
        verb = "reflecting" if each.trigger == "reflector" else "observing"
        return [*pieces, (f" {verb}{upto}, {formatting.duration(now - each.requested_at)}", "working")]
    if is_buffered(each):
        upto = f" up to #{each.high_water}" if each.high_water else ""
        return [*pieces, (f" buffered{upto}", role), ("  applied when space is needed", "muted")]
    if each.status == "applied" and each.trigger in _APPLIED:
        pieces.append((f" {_APPLIED[each.trigger]}", role))
    if each.status == "undone":
        pieces.append((f" {word}", role))  # before its numbers, which no longer apply and may be cut off
    if each.tokens_before is not None and each.tokens_after is not None:
        before, after = each.tokens_before, each.tokens_after
        pieces += [
            (f" {formatting.tokens(before)} → {formatting.tokens(after)} ", "text"),
            (formatting.change(before, after), "done" if after < before else "muted"),
        ]
    cost = pass_cost(each)
    if cost != "-":
        pieces.append((f" {cost}", "money"))
    if each.status == "applied":
        # In the list of all agents, whose header shows the sum, only a pass that blocked an agent shows its
        # time.
        tells = each.stall_seconds is not None and (not name or each.stall_seconds >= 0.001)
        pieces.append((f" blocked {stall(each)}" if tells else "", "muted"))
    elif each.status != "undone":
        pieces += [(f" {word}", role), (f": {sanitize(each.reason)}" if each.reason else "", "muted")]
    return pieces


_APPLIED = {"observer": "activated", "reflector": "consolidated"}
"""What happened to the text of an observer or a reflector."""


def compactions_page(view: PageContext) -> list[PageLine]:
    """The agent's passes, newest first, then the versions of its view."""
    mine = [each for each in view.snapshot.compactions if each.agent_id == view.agent.id]
    lines = [
        heading(
            "passes",
            "Compactions",
            f"{len(mine)}" + ("; Enter opens one" if mine else ""),
        )
    ]
    if not mine:
        by_hand = "; C compacts manually, after a preview" if view.can_act else ""
        yet = " yet" if view.agent.ended_at is None else ""
        lines.append(PageLine("none", ((f"none{yet}{by_hand}", "faint"),)))
    for each in mine:
        key = f"{PASS_KEY}{each.id}"
        lines.append(PageLine(key, tuple(compaction_pieces(each, view.now)), key))
    if view.detail.views:
        lines += [
            blank("gap"),
            heading("views", "Views", "u undoes the last compaction, U redoes it" if view.can_act else ""),
        ]
    digits = max((len(str(each.version)) for each in view.detail.views), default=1)
    reasons = min(16, max((len(sanitize(each.reason)) for each in view.detail.views), default=0))
    for each_view in view.detail.views:
        current = each_view.version == view.agent.view_version
        pieces: list[Piece] = [
            ("▌ " if current else "  ", "accent"),
            (f"view {each_view.version:<{digits}} ", "strong" if current else "text"),
            (f"{fit(sanitize(each_view.reason), reasons)} ", "muted"),
            (f"{formatting.tokens(each_view.tokens)} tok" if each_view.tokens else "", "tokens"),
            (f"  verbatim from #{each_view.verbatim_from}" if each_view.verbatim_from else "", "muted"),
            (f"  {formatting.time_of_day(each_view.created_at)}", "faint"),
            ("  current" if current else "", "accent"),
        ]
        lines.append(PageLine(f"view.{each_view.version}", tuple(pieces)))
    return lines
