"""The lines around the panes: the header, the question at the foot, the status line, and the keys that do something here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding
from textual.containers import Vertical
from textual.content import Content
from textual.markup import escape
from textual.message import Message
from textual.reactive import reactive
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer, Input

from watchkeeper.records.quota import quota_words, window_name
from watchkeeper.records.text import question_words
from watchkeeper.records.usage_limits import limit_text, parked_limit, session_limit
from watchkeeper.store.projection import SessionFacts, roles_of
from watchkeeper.store.snapshot import CommandFacts
from watchkeeper_tui import external as terminals
from watchkeeper_tui import formatting
from watchkeeper_tui.control import Sent
from watchkeeper_tui.pages.memory import compaction_pieces
from watchkeeper_tui.plan_tree import row_condition
from watchkeeper_tui.requests import Target
from watchkeeper_tui.sanitize import clip, sanitize, sanitize_lines
from watchkeeper_tui.snapshot import (
    SESSION_BADGES,
    Condition,
    Roster,
    SessionState,
    Snapshot,
    agent_condition,
    budget_share,
    budget_words,
    report_condition,
)
from watchkeeper_tui.watch_app import watch_app
from watchkeeper_tui.widgets.rows import Piece, clip_pieces, content, pieces_width

_COUNTED = ("●", "◔", "?", "◷", "‖", "↻", "!", "†", "✗", "×", "○", "✓")
"""Every state that an agent can be in, so that the counts add up to the agents."""


def _model(ref: str) -> str:
    return clip(sanitize(formatting.model_name(ref)), 24)


@dataclass(frozen=True, slots=True)
class _Need:
    """Something that needs a person, in words; the reason is cut first where there is no room."""

    before: str
    name: str
    why: str
    role: str
    verb: str = ""
    after: tuple[Piece, ...] = ()

    @classmethod
    def of_several(cls, glyph: str, count: int, first: str, why: str, role: str, *, verb: str = "") -> _Need:
        """So many in one state, the first of them by its sanitised name."""
        more = ((f" +{count - 1}", "muted"),) if count > 1 else ()
        before = f"{glyph} {count} " if count > 1 else f"{glyph} "
        return cls(before, first, why, role, verb, more)

    def pieces(self, most: int) -> list[Piece]:
        """It, with a reason of at most so many columns."""
        said = [
            (self.before, self.role),
            (self.name, self.role),
            (self.verb + clip(self.why, most), self.role),
            *self.after,
        ]
        return [piece for piece in said if piece[0]]


class Header(Widget):
    """One line about the whole session."""

    DEFAULT_CSS = """
    Header { height: 1; dock: top; background: $panel; color: $foreground; }
    """

    lines: reactive[tuple[tuple[Piece, ...], ...]] = reactive((), init=False)
    """What is painted: one line, or two."""

    def __init__(self) -> None:
        super().__init__(id="header")
        self._snapshot = Snapshot()
        self._roster = Roster()
        self._now = self._known_until = 0.0
        self._frozen_since: float | None = None
        self._behind = 0
        self._noted = (0.0, 0.0)
        """The time for which the host says that it has driven the run, and when that was read."""
        self._was_live = False
        self._needed = ""
        """The session that has needed a person."""

    def update(
        self,
        snapshot: Snapshot,
        now: float,
        roster: Roster,
        *,
        frozen_since: float | None = None,
        behind: int = 0,
    ) -> None:
        """Show this reading, whose agents `roster` counted. `behind`: events that came while the view is
        frozen."""
        self._snapshot, self._now, self._frozen_since, self._behind = snapshot, now, frozen_since, behind
        # What has happened since the last good reading is unknown.
        self._known_until = snapshot.read_at if snapshot.problem else now
        self._roster = roster
        self._lay_out()

    def on_resize(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        width = self.size.width
        lines = (self.pieces(width), self.role_pieces(width), self.attention_pieces(width))
        self.lines = tuple(tuple(line) for line in lines if line)

    def watch_lines(self) -> None:
        self.styles.height = max(1, len(self.lines))

    def render(self) -> Content:
        palette = watch_app(self).palette
        return Content("\n").join([content(line, palette) for line in self.lines])

    def attention_pieces(self, width: int) -> list[Piece]:
        """One line about what needs a person: questions, failures, silence, limits, budgets; none, no line. Once there
        was one, the line stays for the session, so that no pane moves again."""
        session = self._snapshot.session
        if session is None or not self.is_mounted or self.screen.size.height < ROOMY_ROWS:
            return []
        needs = list(self._needs())
        if not needs:
            return [(" nothing needs your attention", "faint")] if self._needed == session.id else []
        for most in (72, 48, 28, 14):
            groups = [need.pieces(most) for need in needs]
            if sum(pieces_width(group) + 3 for group in groups) <= width - 10:
                break
        if width <= 10:  # before the first layout there is no width
            return []
        self._needed = session.id
        pieces: list[Piece] = [(" ", "text")]
        for group in groups:
            pieces += [*group, ("   ", "text")]
        key = watch_app(self).key_for("attention")
        shown = clip_pieces(pieces, width - 10)
        space = "" if shown[-1][0].endswith(" ") else " "
        return [*shown, (f"{space}{key} next", "key")]

    def _needs(self) -> Iterator[_Need]:
        """What needs a person, the most urgent first."""
        snapshot = self._snapshot
        yield from self._agents_in_need()
        reached = next((budget for budget in snapshot.budgets if budget.reached_at), None)
        if reached is not None:
            said = budget_words(budget_share(snapshot, reached))
            yield _Need(f"$ budget {sanitize(reached.kind)}: {said}", "", "", "failed")
        for pieces in (*self._parked(self._known_until), *self._low_quotas()):
            yield _Need("", "", "", "slot", after=tuple(pieces))
        yield from self._flagged()
        yield from self._terminals()

    def _flagged(self) -> Iterator[_Need]:
        """Agents that are done, whose receipts a person should look at: how many, and the first by name, with why."""
        snapshot = self._snapshot
        if snapshot.flagged:
            found = [each for each in snapshot.agents if each.id in snapshot.flagged]
            condition = report_condition(snapshot, found[0]) if found else None
            if condition is not None:
                name = clip(sanitize(found[0].label), 32)
                yield _Need.of_several("✓", len(found), name, f" {condition.note}", "waiting")

    def _terminals(self) -> Iterator[_Need]:
        """Sessions in other terminals that need a person: how many of each state, and the first by name, with why."""
        session = self._snapshot.session
        needy = terminals.needy(
            self._snapshot.external, self._now, session.id if session is not None else None
        )
        found: dict[str, list[tuple[str, Condition]]] = {}
        for each, condition in needy:
            found.setdefault(condition.glyph, []).append((terminals.name_of(each), condition))
        for glyph, those in found.items():
            name, condition = those[0]
            why = f" {condition.note or condition.word}"
            yield _Need.of_several(glyph, len(those), f"terminal {clip(name, 24)}", why, condition.role)

    def _agents_in_need(self) -> Iterator[_Need]:
        """Agents that ask, are silent or failed: how many, and the first ones by name, with why."""
        snapshot, roster = self._snapshot, self._roster
        agents = snapshot.agents_by_id
        questions = {approval.agent_id: approval for approval in snapshot.approvals}
        for glyph, word in (("?", "asks"), ("!", "silent"), ("✗", "failed")):
            ids = [agent_id for agent_id in questions if agent_id in agents] if glyph == "?" else []
            ids += [agent_id for agent_id in roster.with_glyph(glyph) if agent_id not in ids]
            if not ids:
                continue
            first = agents[ids[0]]
            if (asked := questions.get(first.id)) is not None and glyph == "?":
                why = f" to run {sanitize(asked.tool)}"
            else:
                note = agent_condition(first, snapshot.state, self._known_until).note
                why = f" {' '.join(note.removeprefix(word).split())}".rstrip()
            role = roster.roles.get(glyph, "waiting")
            name = clip(sanitize(first.label), 32)
            yield _Need.of_several(glyph, len(ids), name, why, role, verb=f" {word}")

    def _parked(self, now: float) -> Iterator[list[Piece]]:
        parked = [agent for agent in self._snapshot.agents if agent.status == "parked"]
        if parked:
            first = min(parked, key=lambda agent: agent.parked_until or math.inf)
            words = limit_text(parked_limit(first.parked_until, first.status_reason), now)
            more = f" +{len(parked) - 1}" if len(parked) > 1 else ""
            yield [
                ("◷ ", "slot"), (clip(sanitize(first.label), 32), "strong"),
                (f" {sanitize(words.removeprefix('usage '))}{more}", "slot"),
            ]  # fmt: skip
        elif (session := self._snapshot.session) is not None:
            limit = session_limit(session.status, session.status_reason, session.last_active)
            if limit is not None:
                yield [(f"◷ {limit_text(limit, now)}", "slot")]

    def _low_quotas(self) -> Iterator[list[Piece]]:
        """Usage windows of which little is left; what is unknown is not said here."""
        for each in self._snapshot.quotas:
            if each.is_low(self._now):
                name = clip(sanitize(f"{each.newest.provider} {window_name(each.newest)}"), 40)
                yield [(f"◔ {name}: {quota_words(each, self._now)}", "waiting")]

    def role_pieces(self, width: int) -> list[Piece]:
        """The roles that are not built in, as many as fit: name, file, model, and a dearer model that was not
        confirmed."""
        session = self._snapshot.session
        others = (
            [one for one in roles_of(session.roles).values() if not one.is_built_in]
            if session is not None
            else []
        )
        shown: list[Piece] = []
        for number, one in enumerate(others):
            asked = f", not {_model(one.unconfirmed)}" if one.unconfirmed else ""
            each: list[Piece] = [
                (" role " if not shown else "  ", "muted"),
                (clip(sanitize(one.role), 24), "strong"),
                (f" {clip(sanitize(one.source), 40)} {_model(one.model)}", "text"),
                (asked, "waiting"),
            ]
            more: list[Piece] = [(f"  +{len(others) - number} more", "muted")]
            rest = pieces_width(more) if number + 1 < len(others) else 0
            if shown and pieces_width(shown) + pieces_width(each) + rest > width:
                return shown + more
            shown += each
        return clip_pieces(shown, width) if shown else []

    def pieces(self, width: int) -> list[Piece]:
        """What fits into `width` columns."""
        groups = self._groups()
        shown = list(range(len(groups)))
        used = sum(pieces_width(group) for _, group in groups)
        wanted = pieces_width(self._goal(26)) if width >= 100 else 0  # else there is room for no words of it
        while len(shown) > 1:
            least = max(shown, key=lambda index: groups[index][0])
            # The goal goes before what is of little use.
            if used + (wanted if groups[least][0] > 6 else 0) <= width:
                break
            shown.remove(least)
            used -= pieces_width(groups[least][1])
        flat = [piece for index in shown for piece in groups[index][1]]
        goal = self._goal(width - used)
        if goal:
            flat[self._goal_place(groups, shown) : self._goal_place(groups, shown)] = goal
        return flat

    def _goal_place(self, groups: list[tuple[int, list[Piece]]], shown: list[int]) -> int:
        """After the badge and the id."""
        return sum(len(groups[index][1]) for index in shown if index < 2)

    def _goal(self, cells: int) -> list[Piece]:
        session = self._snapshot.session
        if session is None or cells < 12:
            return []
        # In steps of some cells: what stands behind the goal would move with each figure that grows.
        room = min(cells - 4, max(48, self.size.width // 3)) // GOAL_STEP * GOAL_STEP
        text = clip(sanitize(session.title or session.goal), room)
        return [(f"“{text}”  ", "strong")]

    def _groups(self) -> list[tuple[int, list[Piece]]]:
        snapshot, now = self._snapshot, self._now
        glyph, role = SESSION_BADGES[snapshot.state]
        groups: list[tuple[int, list[Piece]]] = [(0, [(f" {glyph} {snapshot.state} ", role), (" ", "text")])]
        if self._frozen_since is not None:
            text = f" ■ VIEW FROZEN {formatting.duration(now - self._frozen_since)}"
            if self._behind:
                text += f", {self._behind:,} behind"
            groups.append((0, [(text + " ", "badge_frozen"), (" ", "text")]))
        if snapshot.problem:
            # What the badge says was so when it was read last.
            groups.append(
                (
                    0,
                    [
                        (f" ! NOT UPDATED {formatting.duration(now - snapshot.read_at)} ", "badge_failed"),
                        (" ", "text"),
                    ],
                )
            )
            now = snapshot.read_at
        groups += self._read_only()
        session = snapshot.session
        if session is None:
            groups.append((1, [("watchkeeper", "accent")]))
            return groups
        groups.insert(1, (5, [(f"{session.id}  ", "accent")]))
        groups.append((1, [(formatting.clock(self._elapsed(session, now)), "text"), ("  ", "text")]))
        groups.append(
            (
                8,
                [
                    (
                        f"{formatting.plural(sum(not one.is_unit for one in snapshot.agents), 'agent')}  ",
                        "muted",
                    )
                ],
            )
        )
        groups.append((2, self._counts()))
        cost = formatting.bill(session)
        groups.append((3, [(cost, "money")]))
        if snapshot.state is SessionState.LIVE and snapshot.rates.cost_per_minute > 0:
            groups.append((6, [(f" +${formatting.rate(snapshot.rates.cost_per_minute)}/m", "muted")]))
        groups.append(
            (4, [("  ", "text"), (formatting.tokens(session.total_tokens), "tokens"), (" tok", "muted")])
        )
        if session.missing_logs or session.unlogged_calls:
            gaps = [("log", session.missing_logs), ("call", session.unlogged_calls)]
            missing = ", ".join(formatting.plural(count, what) for what, count in gaps if count)
            groups.append((3, [("  ", "text"), ("partial", "waiting")]))
            groups.append((8, [(f" ({missing} missing)", "muted")]))
        if self.is_mounted and self.screen.size.height < ROOMY_ROWS:
            # Else the line of attention has them.
            low = self._low_quotas()
            groups += [(1, [("  ", "text"), *group]) for group in (*self._parked(now), *low)]
            reached = next((budget for budget in snapshot.budgets if budget.reached_at), None)
            if reached is not None:
                said = budget_words(budget_share(snapshot, reached))
                groups.append((1, [(f"  budget {sanitize(reached.kind)}: {said}", "failed")]))
        return groups

    def _elapsed(self, session: SessionFacts, now: float) -> float:
        """Seconds for which the run was driven, pauses left out, as the list of sessions has it; it is noted
        every other second."""
        live, noted = self._snapshot.state is SessionState.LIVE, session.hosted_seconds
        if noted <= 0:
            return (now if live else session.ended_at or session.last_active) - session.created_at
        if (
            noted != self._noted[0] or not self._was_live
        ):  # the time in which it was not driven does not count
            self._noted = (noted, now)
        self._was_live = live
        return noted + max(0.0, now - self._noted[1]) if live else noted

    def _read_only(self) -> list[tuple[int, list[Piece]]]:
        """A badge that stays: nothing can be done to what is shown; then why, where there is room."""
        why = watch_app(self).read_only
        if not why:
            return []
        return [(0, [(" ≡ READ-ONLY ", "badge_plain"), (" ", "text")]), (7, [(f"{why}  ", "muted")])]

    def _counts(self) -> list[Piece]:
        counted, roles = self._roster.counts(), self._roster.roles
        pieces: list[Piece] = []
        for glyph in _COUNTED:
            if counted.get(glyph):
                pieces.append((f"{glyph}{counted[glyph]} ", roles[glyph]))
        if pieces:
            pieces.append((" ", "text"))
        return pieces


GOAL_STEP = 8
ROOMY_ROWS = 20
"""From so many rows on, the header has a line of attention."""
CRAMPED = (40, 10)
"""With fewer columns or rows, the footer says what the dashboard needs, and the frames make room for rows."""
NEEDED = "needs 80×24"
URGENT = frozenset({"failed", "paused", "dead", "waiting", "accent"})
"""Roles of text that asks for an action, such as hints and key names. Such text is shown in full, in up to
three lines."""


class StatusLine(Widget):
    """One line of plain words; what is urgent may take three, where the screen is high enough."""

    DEFAULT_CSS = """
    StatusLine { height: 1; background: $surface; padding-left: 1; }
    StatusLine.-long { height: auto; max-height: 3; }
    """

    class Said(Message):
        """A widget has something to tell the user: the screen shows it here for some seconds."""

        def __init__(self, text: str, role: str = "muted") -> None:
            super().__init__()
            self.text = text
            """Sanitised."""
            self.role = role

    def __init__(self) -> None:
        super().__init__(id="status")

    pieces: reactive[tuple[Piece, ...]] = reactive((), init=False)
    """The words; the line is cut where it ends, unless they are urgent."""

    def watch_pieces(self) -> None:
        self._stretch()
        if self.has_class("-long"):
            self.refresh(layout=True)

    def on_resize(self) -> None:
        self._stretch()

    def _stretch(self) -> None:
        """Take the lines that urgent words need."""
        names_a_key = any(role == "key" for _, role in self.pieces)
        urgent = names_a_key or (bool(self.pieces) and self.pieces[0][1] in URGENT)
        self.set_class(
            urgent
            and pieces_width(self.pieces) > self.content_size.width > 0
            and self.screen.size.height >= 20,
            "-long",
        )

    @property
    def text(self) -> str:
        """The displayed text."""
        return "".join(text for text, _ in self.pieces)

    def render(self) -> Content:
        is_long = self.has_class("-long")
        pieces = self.pieces if is_long else clip_pieces(self.pieces, self.content_size.width)
        return content(pieces, watch_app(self).palette)


@dataclass(frozen=True, slots=True)
class KeyHint:
    """A key in the footer. It is left out where `why_not` says why it does nothing now, or where it is empty: the user's
    keys have replaced it."""

    key: str
    """As it is shown."""
    label: str
    press: str
    """What a click presses, by the toolkit's name of the key."""
    help: str = ""
    """Shown while the mouse is over it."""
    why_not: str = ""
    stays: bool = False
    """It is left out after all others where there is little room."""


class Clicked(Message):
    """Something was clicked that does what an action of the screen does."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call


class KeyLine(Footer):
    """The toolkit's footer. It asks its screen for the bindings to show, and the screen answers with `bindings`."""

    DEFAULT_CSS = """
    KeyLine { dock: none; background: $panel; padding-left: 1; }
    KeyLine.-compact FooterKey { margin-right: 2; }
    """

    def __init__(self) -> None:
        super().__init__(id="keys", show_command_palette=False, compact=True)
        self._composed: dict[str, ActiveBinding] | None = None

    hints: reactive[tuple[KeyHint, ...]] = reactive(())
    """The keys of the screen, of which as many are shown as fit."""
    asked: reactive[tuple[KeyHint, ...]] = reactive(())
    """The keys of an open question, which are shown instead."""
    _shown: reactive[tuple[KeyHint, ...]] = reactive(())

    def compute__shown(self) -> tuple[KeyHint, ...]:
        return tuple(self._fitting())

    def watch__shown(self) -> None:
        self.screen.refresh_bindings()

    def on_resize(self) -> None:
        self.screen.refresh_bindings()

    def bindings_changed(self, screen: Screen[Any]) -> None:
        """Make the keys anew only if they are others: each is a widget, and the signal comes with every focus."""
        if self.is_attached and screen is self.screen and self.app.app_focus:
            if self._composed == (bindings := self.bindings):
                return
            self._composed = bindings
        super().bindings_changed(screen)

    @property
    def bindings(self) -> dict[str, ActiveBinding]:
        """What is shown, the most important first."""
        cramped = [KeyHint(NEEDED, "", "question_mark")] if self._is_cramped else []
        return {
            hint.key: ActiveBinding(
                self.screen,
                Binding(hint.press, hint.key, hint.label, key_display=hint.key),
                True,
                escape(hint.help),
            )
            for hint in (*cramped, *self._fitting())
        }

    @property
    def _is_cramped(self) -> bool:
        return self.screen.size.width < CRAMPED[0] or self.screen.size.height < CRAMPED[1]

    def _fitting(self) -> list[KeyHint]:
        """The hints that fit; those that lead out, or to all others, stay longest."""
        hints = [hint for hint in self.asked or self.hints if hint.key and not hint.why_not]
        if self._is_cramped:
            return hints[-1:]

        def needed() -> int:
            return 1 + sum(len(hint.key) + len(hint.label) + 3 for hint in hints)

        while len(hints) > 2 and needed() > self.screen.size.width + 2:
            goes = [place for place, hint in enumerate(hints) if not hint.stays] or range(len(hints) - 2)
            del hints[goes[-1]]
        return hints


SETTLED_SECONDS = 8.0
"""How long the outcome of a command is shown."""
START_SECONDS = 3.0
"""How long it is shown that a process started, where none is seen to run."""
LOCKED_AFTER_SECONDS = 1.5
LOCKED = "waiting: another program has locked the database"
"""Writing takes milliseconds. After `LOCKED_AFTER_SECONDS`, the line shows this text."""


def status_pieces(
    snapshot: Snapshot, target: Target, sent: Sequence[Sent], now: float, *, asking: bool = False
) -> list[Piece]:
    """The first that applies: a database problem, the last command, a pending question, the state of the run,
    the state of the selected row.

    `asking`: a question is open, and only its keys apply.
    """
    if snapshot.problem:
        return [("! ", "failed"), (sanitize(snapshot.problem), "failed")]
    command = command_pieces(snapshot, sent, now)
    if command:
        return command
    if snapshot.approvals and not asking:
        first = snapshot.approvals[0]
        agent = snapshot.agent(first.agent_id)
        more = f" (+{len(snapshot.approvals) - 1})" if len(snapshot.approvals) > 1 else ""
        return [
            ("? ", "waiting"),
            (
                f"{sanitize(agent.full_label) if agent else 'an agent'} wants to run {sanitize(first.tool)} ",
                "waiting",
            ),
            (clip(sanitize(question_words(first.tool, first.question)), 100), "text"),
            (f"{more}   ", "muted"),
            ("a", "key"),
            (" answers", "muted"),
        ]
    return _run(snapshot, now) or _row(snapshot, target, now)


def command_pieces(snapshot: Snapshot, sent: Sequence[Sent], now: float) -> list[Piece]:
    """What became of the last command; nothing some seconds after it was settled."""
    if not sent:
        return []
    newest = sent[0]
    if newest.said:
        return (
            [("✓ ", "done"), (f"{newest.about}: {sanitize(newest.said)}", "text")]
            if now - newest.at < (START_SECONDS if snapshot.state is SessionState.DEAD else SETTLED_SECONDS)
            else []
        )
    several = [each for each in sent if each.group == newest.group] if newest.group else [newest]
    if len(several) > 1:
        return _several(snapshot, several, now)
    if newest.command_id is None:
        if now - newest.at > LOCKED_AFTER_SECONDS:
            return [("… ", "muted"), (newest.about, "text"), (f": {LOCKED}", "waiting")]
        return [("… ", "muted"), (newest.about, "text"), (": sending", "muted")]
    command = next((each for each in snapshot.commands if each.id == newest.command_id), None)
    if command is None or command.status == "queued":
        return _queued(snapshot, newest, now)
    if newest.compacts and command.status == "applied":
        return _pass(snapshot, newest, now) or _settled(snapshot, command, newest, now)
    return _settled(snapshot, command, newest, now)


def _several(snapshot: Snapshot, sent: Sequence[Sent], now: float) -> list[Piece]:
    """The outcome of the commands that one key wrote for several rows."""
    by_id = {each.id: each for each in snapshot.commands}
    commands = [by_id.get(each.command_id or 0) for each in sent]
    waiting = sum(1 for each in commands if each is None or each.status == "queued")
    refused = [
        (each, one)
        for each, one in zip(commands, sent, strict=True)
        if each is not None and each.status in ("refused", "failed")
    ]
    at = max([each.applied_at or 0.0 for each in commands if each is not None] + [one.at for one in sent])
    if now - at > SETTLED_SECONDS and (not waiting or snapshot.host_pid is None):
        return []
    applied = sum(1 for each in commands if each is not None and each.status == "applied")
    verb = sent[0].about.partition(" ")[0]
    pieces: list[Piece] = [
        ("◔ ", "slot") if waiting else ("✓ ", "done") if applied == len(sent) else ("✗ ", "failed")
    ]
    pieces.append((f"{verb} ×{len(sent)}: ", "text"))
    parts: list[Piece] = []
    if applied:
        parts.append((f"{applied} applied", "done"))
    if waiting:
        gone = snapshot.host_pid is None and not any(each.once for each in sent)
        parts.append(
            (
                f"{waiting} accepted, " + ("apply on resume" if gone else "queued"),
                "waiting" if gone else "text",
            )
        )
    if refused:
        first, of = refused[0]
        parts.append(
            (
                f"{len(refused)} {first.status} — {of.about}: {clip(sanitize(first.result or ''), 200)}",
                "failed",
            )
        )
    for number, part in enumerate(parts):
        pieces += [(", ", "muted")] * bool(number) + [part]
    return pieces


def _pass(snapshot: Snapshot, sent: Sent, now: float) -> list[Piece]:
    """The progress of the requested pass, until shortly after its end."""
    mine = [
        each for each in snapshot.compactions if each.agent_id == sent.compacts and each.trigger == "manual"
    ]
    newest = next((each for each in mine if each.requested_at >= sent.at - 1), None)
    if newest is None or (newest.ended_at is not None and now - newest.ended_at > SETTLED_SECONDS):
        return []
    pieces = [(f"{sent.about}  ", "text"), *compaction_pieces(newest, now)]
    if newest.status == "running":
        pieces.append(("; the agent keeps working", "muted"))
    elif newest.status == "prepared":
        pieces.append(("; applied at the agent's next step", "muted"))
    elif newest.status == "applied":
        pieces += [("   u", "key"), (" undoes it", "muted")]
    return pieces


def _queued(snapshot: Snapshot, sent: Sent, now: float) -> list[Piece]:
    if snapshot.host_pid is None and sent.once:
        return [
            ("… ", "muted"),
            (sent.about, "text"),
            (": starting a background process to apply it", "muted"),
        ]
    if snapshot.host_pid is None:
        if now - sent.at > SETTLED_SECONDS:
            return []
        return [("◔ ", "slot"), (f"{sent.about}: accepted, ", "text"), ("applies on resume", "waiting")]
    return [
        ("◔ ", "slot"),
        (f"{sent.about}: accepted, queued ", "text"),
        (formatting.duration(now - sent.at), "muted"),
    ]


def _settled(snapshot: Snapshot, command: CommandFacts, sent: Sent, now: float) -> list[Piece]:
    if command.applied_at is not None and now - max(command.applied_at, sent.at) > SETTLED_SECONDS:
        return []
    result = clip(sanitize(command.result or ""), 300)
    name = sent.about.rpartition(" ")[2]
    result = result.removeprefix(f"{name}: ")  # the line already names it
    if command.status == "applied":
        return [
            ("✓ ", "done"),
            (f"{sent.about}: ", "text"),
            (_came(command, snapshot) or result or "applied", "done"),
        ]
    return [
        ("✗ ", "failed"),
        (f"{sent.about}: {command.status} ", "failed"),
        (f"— {result}" if result else "", "text"),
    ]


def _came(command: CommandFacts, snapshot: Snapshot) -> str:
    """The effect of a pause that has taken effect; else empty."""
    if command.kind != "pause":
        return ""
    if command.agent_id is None:
        return "the run is paused" if snapshot.state is SessionState.PAUSED else ""
    agent = snapshot.agent(command.agent_id)
    return f"{sanitize(agent.label)} is paused" if agent is not None and agent.status == "paused" else ""


def _run(snapshot: Snapshot, now: float) -> list[Piece]:
    session = snapshot.session
    if session is None:
        return [("opening the database …", "muted")]
    ending = snapshot.ending
    reason = clip(formatting.headline(ending.stopped or ending.summary), 200) if ending is not None else ""
    if snapshot.state is SessionState.DEAD:
        return [
            ("† The background process stopped. ", "dead"),
            ("r", "key"),
            (" continues from the last saved step.", "text"),
        ]
    if snapshot.state is SessionState.OPENING:
        return [("… waiting for the background process to start", "muted")]
    if snapshot.state is SessionState.PAUSED:
        return [
            ("‖ paused", "paused"),
            (f" — {reason}" if reason else "", "text"),
            ("   r", "key"),
            (" resumes the run", "muted"),
        ]
    if snapshot.state is SessionState.FAILED:
        return [("✗ the run failed", "failed"), (f" — {reason}" if reason else "", "text")]
    if snapshot.state is SessionState.CANCELLED:
        return [("× the run was cancelled", "cancelled"), (f" — {reason}" if reason else "", "text")]
    if snapshot.state is SessionState.DONE:
        return [("✓ done", "done"), (f" — {reason}" if reason else "", "text")]
    return []


def _row(snapshot: Snapshot, target: Target, now: float) -> list[Piece]:
    """The state of the selected row, in full."""
    task, agent = (target.tasks[0] if target.tasks else None), target.agent
    if agent is None and task is None:
        return [("select an agent: j k move, Enter opens, ? lists all keys", "faint")]
    condition = target.condition or row_condition(task, agent, snapshot, now)
    is_at_work = agent is not None and (task is None or task.status == "running")
    about = agent.goal if agent is not None and is_at_work else task.result if task is not None else None
    note = condition.note or clip(sanitize(about or ""), 300)
    name = (
        sanitize(agent.full_label) if agent is not None else sanitize(task.label) if task is not None else ""
    )
    title = sanitize(task.title) if task is not None else ""
    note = title if note in ("", name) and title != name else "" if note == name else note
    return [
        (f"{condition.glyph} ", condition.role),
        (clip(name, 60), "text"),
        (f" {condition.word}", condition.role),
        (f" — {note}" if note else "", "muted"),
    ]


class _Words(Widget):
    """The lines above the answer."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Sequence[Piece]] = ()

    def render(self) -> Content:
        palette = watch_app(self).palette
        return Content("\n").join([content(line, palette) for line in self.lines])

    def on_click(self, event: events.Click) -> None:
        """A click on an answer, its key or its words, answers."""
        offset = event.get_content_offset(self)
        place = -1 if offset is None else offset.x
        line = self.lines[0] if len(self.lines) == 1 else []
        if pieces_width(line) > self.content_size.width:
            return  # broken into rows: a key is surer than a guess
        key, end = "", 0
        for text, role in line:
            key, end = text if role == "key" else key, end + pieces_width([(text, role)])
            if 0 <= place < end:
                if key:
                    self.post_message(Answered(key))
                return


class Answered(Message):
    """An answer was clicked."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key


class Opened(Message):
    """A question opened: what was said before it is about something else."""


_STEPS = {"up": -1, "down": 1, "pageup": -10, "pagedown": 10}
LINE_BREAK = "↵"
"""How a line break is shown that is kept."""


class TextLine(Input):
    """The line to type into. Esc gives up; up brings back what was typed before; what is pasted loses no
    line."""

    keeps_lines = False

    @property
    def typed(self) -> str:
        """What was typed and pasted."""
        return self.value.replace(LINE_BREAK, "\n") if self.keeps_lines else self.value

    def on_paste(self, event: events.Paste) -> None:
        """All of it, and nothing that acts: the toolkit would take the first line alone."""
        event.prevent_default()
        event.stop()
        lines = sanitize_lines(event.text.strip("\r\n"))
        self.replace((LINE_BREAK if self.keeps_lines else " ").join(lines), *self.selection)


class Prompt(Vertical, can_focus=True):
    """At most one question at a time; hidden while there is none."""

    DEFAULT_CSS = """
    Prompt _Words { height: auto; }
    Prompt {
        height: auto; max-height: 70%; display: none;
        background: $panel; border-top: solid $accent; padding: 0 1;
    }
    Prompt.-asking { display: block; }
    Prompt #answers { dock: bottom; }
    Prompt.-typing #answers { display: none; }
    Prompt Input { border: none; height: 1; padding: 0; background: $panel; display: none; }
    Prompt Input:focus { border: none; }
    Prompt.-typing Input { display: block; }
    """

    def __init__(self) -> None:
        super().__init__(id="prompt")
        self._typed: Callable[[str], None] | None = None
        self._changed: Callable[[str], None] | None = None
        self._keys: dict[str, Callable[[], None]] = {}
        self._gave_up: Callable[[], None] | None = None
        self._moved: Callable[[int], bool] | None = None
        self._history: dict[str, list[str]] = {}
        self._kind = ""
        self._back = 0
        self._focus_before: Widget | None = None

    def compose(self) -> ComposeResult:
        yield _Words("question")
        yield _Words("answers")
        yield TextLine(id="prompt-line", select_on_focus=False, compact=True)

    def on_mount(self) -> None:
        self.query_one(TextLine).cursor_blink = not watch_app(self).settings.reduced_motion

    @property
    def is_asking(self) -> bool:
        """A question is open."""
        return self.has_class("-asking")

    @property
    def text(self) -> str:
        """What the question says, and what is typed."""
        lines = ["".join(text for text, _ in line) for words in self.query(_Words) for line in words.lines]
        return "\n".join(lines)

    def ask_line(
        self,
        question: Sequence[Sequence[Piece]],
        typed: Callable[[str], None],
        *,
        kind: str,
        value: str = "",
        changed: Callable[[str], None] | None = None,
        gave_up: Callable[[], None] | None = None,
        enter: str = "OK",
        keeps_lines: bool = False,
        moved: Callable[[int], bool] | None = None,
    ) -> None:
        """Ask for a line of text. `kind` keeps histories apart; `changed` hears every keystroke; `enter`:
        what Enter does.

        `keeps_lines`: what is pasted in several lines is handed on in as many; else they become one.
        `moved` hears the steps of the arrow and page keys through what is listed, and says whether there was one to take.
        """
        self._open(question)
        self._typed, self._changed, self._gave_up, self._keys = typed, changed, gave_up, {}
        self._moved = moved
        self._kind, self._back = kind, 0
        self.add_class("-typing")
        before = [KeyHint("↑", "History", "up")] if self._history.get(kind) else []
        self._name_keys([KeyHint("↵", enter, "enter"), *before, KeyHint("esc", "Cancel", "escape")])
        line = self.query_one(TextLine)
        line.keeps_lines = keeps_lines
        with line.prevent(Input.Changed):
            line.value = value
        line.cursor_position = len(value)
        self._take_focus(line)

    def ask_key(
        self,
        question: Sequence[Sequence[Piece]],
        keys: dict[str, Callable[[], None]],
        *,
        gave_up: Callable[[], None] | None = None,
    ) -> None:
        """Ask for one of `keys`; `n` and Esc give up unless they are among them, and Enter answers only if it is.

        The last line of the question says which keys; it stays in sight where the rest has no room.
        """
        self._open(question[:-1])
        self._put("answers", question[-1:])
        self._keys, self._typed, self._changed, self._gave_up = dict(keys), None, None, gave_up
        self.remove_class("-typing")
        self._name_keys([KeyHint("esc", "Back", "escape")])
        self._take_focus(self)

    def _take_focus(self, widget: Widget) -> None:
        """At once, not after the keys that wait already: typed fast, `:resume` would press `r`."""
        self.screen.set_focus(widget)

    def reword(self, question: Sequence[Sequence[Piece]]) -> None:
        """Say something else above the line that is being typed."""
        self._put("question", question)

    def _put(self, name: str, lines: Sequence[Sequence[Piece]]) -> None:
        words = self.query_one(f"#{name}", _Words)
        words.lines = lines
        words.refresh(layout=True)
        # Textual 8.2 keeps the height that a layout of another widget found between two such calls.
        self.call_after_refresh(words.refresh, layout=True)

    def close(self) -> None:
        """Close the question and restore the previous focus."""
        if not self.is_asking:
            return
        self.remove_class("-asking", "-typing")
        self._name_keys([])
        self.call_after_refresh(self._lift_notices)
        self._typed = self._changed = self._gave_up = None
        self._keys = {}
        before, self._focus_before = self._focus_before, None
        if before is not None and before.is_attached and before.display:
            # At once: an answer may open another question, which gives the focus back to whom it finds it
            # with.
            self.screen.set_focus(before)
        else:
            self.screen.set_focus(None)

    def _open(self, question: Sequence[Sequence[Piece]]) -> None:
        if not self.is_asking:
            self._focus_before = self.screen.focused
        self.reword(question)
        self.add_class("-asking")
        self.post_message(Opened())

    def on_resize(self) -> None:
        self._lift_notices()

    def _lift_notices(self) -> None:
        """Notices stand above an open question: they must not cover what is asked or typed."""
        if not self.is_attached:  # its screen has closed since
            return
        for rack in self.screen.query("ToastRack"):
            if self.is_asking:
                rack.styles.margin = (0, 0, self.screen.size.height - self.region.y, 0)
            else:
                rack.styles.clear_rule("margin")

    def _name_keys(self, hints: Sequence[KeyHint]) -> None:
        """Have the footer tell these keys; none: those of the screen."""
        for line in self.screen.query(KeyLine):
            line.asked = tuple(hints)

    def on_key(self, event: events.Key) -> None:
        if not self.is_asking:
            return
        if event.key == "escape":
            event.stop()
            event.prevent_default()
            self._give_up()
            return
        if self._typed is not None:
            self._type(event)
            return
        event.stop()
        event.prevent_default()
        self._answer(event.character or event.key, event.key)

    def on_answered(self, event: Answered) -> None:
        event.stop()
        self._answer(event.key, "escape" if event.key == "esc" else event.key)

    def _answer(self, character: str, key: str) -> None:
        chosen = self._keys.get(character) or self._keys.get(key)
        if chosen is not None:
            self.close()
            chosen()
        elif key in ("n", "q", "escape"):
            self._give_up()

    def _give_up(self) -> None:
        gave_up = self._gave_up
        self.close()
        if gave_up is not None:
            gave_up()

    def _type(self, event: events.Key) -> None:
        past = self._history.get(self._kind, [])
        step = _STEPS.get(event.key)
        if step is not None and self._moved is not None and not self._back and self._moved(step):
            event.stop()
            event.prevent_default()
        elif event.key in ("up", "down") and past:
            event.stop()
            self._back = max(0, min(len(past), self._back + (1 if event.key == "up" else -1)))
            line = self.query_one(TextLine)
            line.value = past[-self._back] if self._back else ""
            line.cursor_position = len(line.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        typed, value, text = self._typed, event.value, self.query_one(TextLine).typed
        if value.strip():
            self._history.setdefault(self._kind, []).append(value)
        self.close()
        if typed is not None:
            typed(text)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self._changed is not None:
            self._changed(event.value)


# --- The path -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crumb:
    """One place on the way to where the user is. `text` is hostile."""

    kind: str
    """`list`, `session`, `agent`, `replay`, `timeline`, `message`, `compaction` or `observation`."""
    id: str
    """The id of a session or an agent: one that the path has already is not named again."""
    text: str
    depth: int = 0
    """Where its screen is among those that are open."""


Part = TypeVar("Part")


class _PartsLine(Widget, Generic[Part]):
    """One line of parts, some of which can be clicked."""

    def groups(self) -> list[tuple[Part | None, list[Piece]]]:
        """What can be clicked, or None, and how it is shown."""
        raise NotImplementedError

    def clicked(self, part: Part) -> Message:
        """What to post after a click on a part."""
        raise NotImplementedError

    def render(self) -> Content:
        pieces: list[Piece] = [(" ", "text")]
        for _, group in self.groups():
            pieces += group
        return content(clip_pieces(pieces, self.size.width), watch_app(self).palette)

    def on_click(self, event: events.Click) -> None:
        end = 1
        for part, group in self.groups():
            end += pieces_width(group)
            if event.x < end:
                if part is not None:
                    self.post_message(self.clicked(part))
                return


class PathLine(_PartsLine[Crumb]):
    """By which screens the user came here, this one last. A click on one goes back to it."""

    DEFAULT_CSS = "PathLine { height: 1; background: $panel; }"
    MOST_CELLS, LEAST_CELLS = 40, 18
    """The width of one place, on a screen that is not wide; of the first one, where there is little room."""

    class Chosen(Message):
        """A place was clicked."""

        def __init__(self, depth: int) -> None:
            super().__init__()
            self.depth = depth

    crumbs: reactive[tuple[Crumb, ...]] = reactive(())

    def clicked(self, part: Crumb) -> Message:
        return self.Chosen(part.depth)

    def groups(self) -> list[tuple[Crumb | None, list[Piece]]]:
        """The places that fit, the last in any case: the first is cut short, then those in the middle are left out, the
        earliest of them before the others."""
        most = max(self.MOST_CELLS, self.size.width // 3)
        names = [clip(" ".join(sanitize(crumb.text[:400]).split()), most) for crumb in self.crumbs]
        shown = list(range(len(names)))
        cut = False

        def needed() -> int:
            return 1 + sum(pieces_width([(names[at], "")]) + 3 for at in shown) + (4 if cut else 0) - 3

        if needed() > self.size.width and len(names) > 1:
            names[0] = clip(names[0], self.LEAST_CELLS)
        while len(shown) > 1 and needed() > self.size.width:
            cut = True
            shown.pop(1 if len(shown) > 2 else 0)
        groups: list[tuple[Crumb | None, list[Piece]]] = []
        for at in shown:
            if cut and ((at == shown[-1] and len(shown) == 1) or len(groups) == 1):
                groups.append((None, [("… ", "faint"), ("› ", "faint")]))
            role = "strong" if at == len(names) - 1 else "muted" if not groups else "text"
            after: list[Piece] = [(" › ", "faint")] if at != len(names) - 1 else []
            groups.append((self.crumbs[at], [(names[at], role), *after]))
        return groups


# --- Panes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PaneName:
    """A pane that the user can go to. `note` is sanitised."""

    id: str
    key: str
    name: str
    note: str = ""
    is_open: bool = False


class PaneTabs(_PartsLine[PaneName]):
    """The panes by their keys and names, where only some are shown; a click goes to one."""

    DEFAULT_CSS = """
    PaneTabs { height: 1; background: $surface; display: none; }
    PaneTabs.-shown { display: block; }
    """

    panes: reactive[tuple[PaneName, ...]] = reactive(())

    def watch_panes(self) -> None:
        self.set_class(bool(self.panes), "-shown")

    def clicked(self, part: PaneName) -> Message:
        return Clicked(f"pane('{part.id}')")

    def groups(self) -> list[tuple[PaneName | None, list[Piece]]]:
        """All of them, the open one in brackets; where there is no room, the others lose their notes, then their names."""
        groups: list[tuple[PaneName | None, list[Piece]]] = []
        for notes, names in ((True, True), (False, True), (False, False)):
            groups = []
            for each in self.panes:
                name = each.name if names or each.is_open else "" if each.key else each.name[:2]
                groups.append((each, self._pieces(each, name + each.note * notes)))
            if not any(each.key for each in self.panes):
                groups.append((None, [(watch_app(self).key_for("pane.next"), "key"), (" next", "muted")]))
            if sum(pieces_width(pieces) for _, pieces in groups) < self.size.width:
                break
        return groups

    @staticmethod
    def _pieces(pane: PaneName, text: str) -> list[Piece]:
        before, after = ("[", "] ") if pane.is_open else (" ", "  ")
        key = f"{pane.key} " if pane.key and text else pane.key
        role = "strong" if pane.is_open else "text"
        return [(before, "key"), (key, "key"), (text, role), (after, "key")]


# --- Filters ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chip:
    """One filter that is in force. `text` is hostile."""

    kind: str
    """What it filters: `plan`, `events`, `agent`; empty: all of the screen."""
    text: str
    place: int = 0
    """Which of several that look the same."""


class ChipLine(_PartsLine[Chip]):
    """The filters in force, each of which a click takes off; gone where there is none."""

    DEFAULT_CSS = """
    ChipLine { height: 1; background: $surface; display: none; }
    ChipLine.-shown { display: block; }
    """
    MOST_CELLS = 32
    """The width of one filter."""

    class Dropped(Message):
        """A filter was clicked, to take it off."""

        def __init__(self, chip: Chip) -> None:
            super().__init__()
            self.chip = chip

    chips: reactive[tuple[Chip, ...]] = reactive(())

    def watch_chips(self) -> None:
        self.set_class(bool(self.chips), "-shown")

    def clicked(self, part: Chip) -> Message:
        return self.Dropped(part)

    def groups(self) -> list[tuple[Chip | None, list[Piece]]]:
        """The newest filters that fit, how many others there are, and the key that takes the last one off."""
        key = watch_app(self).key_for("filter.drop")
        after: list[Piece] = [(key, "key"), (" removes the last filter", "muted")]
        groups: list[tuple[Chip | None, list[Piece]]] = []
        left = self.size.width - pieces_width(after) - 12
        for chip in reversed(self.chips):
            what = f"{_FILTERED[chip.kind]} " if chip.kind else ""
            name = clip(" ".join(sanitize(chip.text[:400]).split()), self.MOST_CELLS)
            group: list[Piece] = [(what, "muted"), (f"[{name} ×]", "match"), ("  ", "text")]
            left -= pieces_width(group)
            if left < 0 and groups:
                groups.append((None, [(f"+{len(self.chips) - len(groups)} more  ", "faint")]))
                break
            groups.append((chip, group))
        return [*reversed(groups), (None, after)]


_FILTERED = {"plan": "plan", "events": "events", "agent": "transcript", "transcript": "transcript"}
