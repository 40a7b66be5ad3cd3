"""Pane 3: the selected agent: two lines of statistics, the tabs, and the page of the open tab."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive, var
from textual.widget import Widget

from watchkeeper.store.outcome import RunOutcome
from watchkeeper.store.projection import AgentFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import bindings
from watchkeeper_tui.pages import PageContext
from watchkeeper_tui.pages.calls import calls_page, metrics_page, prompt_page
from watchkeeper_tui.pages.memory import (
    OBSERVATION_KEY,
    PASS_KEY,
    PIN_KEY,
    compaction_mark,
    compactions_page,
    memory_page,
    predicts_compaction,
)
from watchkeeper_tui.pages.report import ARTIFACT_KEY, artifacts_page, report_page, task_page, task_summary
from watchkeeper_tui.pages.transcript import (
    BOUNDARY,
    EARLIER,
    JUMPS,
    Item,
    items_of,
    place_of_line,
    stepped,
    transcript_page,
)
from watchkeeper_tui.reader import ProcessWatch
from watchkeeper_tui.rendering.documents import LineCache, Unit, lazy
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.snapshot import (
    AgentDetail,
    SessionState,
    Snapshot,
    agent_condition,
    last_sign,
    no_agents_text,
    task_condition,
)
from watchkeeper_tui.watch_app import watch_app
from watchkeeper_tui.widgets.bars import StatusLine
from watchkeeper_tui.widgets.panes import context_bar
from watchkeeper_tui.widgets.rows import (
    PageLine,
    PageView,
    Piece,
    RowView,
    clip_pieces,
    content,
    pane_title,
    pieces_width,
    set_title,
)


@dataclass(frozen=True, slots=True)
class Page:
    """One tab."""

    name: str
    lines: Callable[[PageContext], Sequence[PageLine | Unit]]
    follows: bool = False
    """New lines come at the end, and the end is kept in sight."""


PAGES: tuple[Page, ...] = (
    Page("Memory", memory_page),
    Page("Transcript", transcript_page, follows=True),
    Page("Calls", calls_page),
    Page("Metrics", metrics_page),
    Page("Compactions", compactions_page),
    Page("Report", report_page),
    Page("Artifacts", artifacts_page),
    Page("Prompt", prompt_page),
)


class TabLine(Widget):
    """The names of the tabs; the open one is marked by brackets too, not by colour alone. Where there is no room for
    all, the line scrolls to the open one, and `‹` and `›` lead to its neighbours."""

    opened = reactive(0)
    is_blank = reactive(True)
    """Without an agent there is nothing to open."""
    notes: reactive[dict[str, str]] = reactive(dict)
    """How much some of the tabs hold, by their names."""

    def __init__(self) -> None:
        super().__init__(id="tabs")

    def render(self) -> Content:
        return content([piece for _, piece in self._tabs()], watch_app(self).palette)

    def on_click(self, event: events.Click) -> None:
        offset, end = event.get_content_offset(self), 0
        for index, piece in self._tabs():
            end += pieces_width([piece])
            if offset is not None and offset.x < end:
                cast("AgentPane", self.parent).open_tab(index)
                return

    def _tabs(self) -> list[tuple[int, Piece]]:
        """What is shown, each with the place of the tab that a click on it opens."""
        if self.is_blank:
            return []
        labels = [page.name + self.notes.get(page.name, "") for page in PAGES]
        for first in range(self.opened + 1):
            room, last = self.size.width - (first > 0), first
            while last < len(PAGES) and (room := room - len(labels[last]) - 2) >= (last + 1 < len(PAGES)):
                last += 1
            if last > self.opened:
                break
        tabs: list[tuple[int, Piece]] = [
            (at, (f"[{labels[at]}]", "key") if at == self.opened else (f" {labels[at]} ", "muted"))
            for at in range(first, max(last, first + 1))
        ]
        before = [(self.opened - 1, ("‹", "muted"))] if first > 0 else []
        after = [(self.opened + 1, ("›", "muted"))] if last < len(PAGES) else []
        return [*before, *tabs, *after]


class Summary(Widget):
    """The context bar, and what the last model calls were like."""

    agent: reactive[AgentFacts | None] = reactive(None)
    detail: reactive[AgentDetail | None] = reactive(None)
    predicts_compaction = reactive(False)
    """Whether to say at which size the agent is compacted."""
    instead: reactive[Sequence[Sequence[Piece]]] = reactive(())
    """Two lines for a row without an agent."""

    def __init__(self) -> None:
        super().__init__(id="summary")

    def render(self) -> Content:
        palette = watch_app(self).palette
        agent = self.agent
        width = self.size.width
        if agent is None:
            lines = [clip_pieces([(" ", "text"), *line], width) for line in self.instead]
            return Content("\n").join([content(line, palette) for line in lines])
        used, limit = agent.context_used, agent.context_limit
        share = watch_app(self).settings.summarization_threshold
        right = f"  {formatting.tokens(used)}/{formatting.tokens(limit)}" if limit else "  window unknown"
        if limit and self.predicts_compaction and width >= 50:
            right += f"  compacts near {formatting.tokens(compaction_mark(agent, share))}"
        cells = max(6, width - len(right) - 9)
        first: list[Piece] = [("ctx ", "muted"), *context_bar(used, limit, cells), (right, "muted")]
        if not used and agent.ended_at is not None:
            first = [("ctx ", "muted"), ("-", "faint")]  # unknown, or never used
        calls = list(reversed(self.detail.calls)) if self.detail is not None else []
        done = [call for call in calls if call.status == "done"]
        speeds = [call.output_tokens / call.latency_seconds if call.latency_seconds else 0.0 for call in done]
        spent = f"  {formatting.bill(agent)}  {formatting.tokens(agent.total_tokens)} tok"
        spark = max(6, (width - len(spent) - 14) // 2)
        second: list[Piece] = [(spent.lstrip(), "money")]
        if done:
            second = [
                ("tok/s ", "muted"),
                (formatting.sparkline(speeds, spark), "tokens"),
                ("  ctx ", "muted"),
                (formatting.sparkline([call.prompt_tokens for call in done], spark), "kind_messages"),
                (spent, "money"),
            ]
        return Content("\n").join([content(first, palette), content(second, palette)])


class AgentPane(Vertical):
    """The pane as a whole."""

    DEFAULT_CSS = """
    AgentPane TabLine { height: 1; padding: 0 1; }
    AgentPane Summary { height: 2; padding: 0 1; }
    """

    NAME = "agent"
    NUMBER = "3"
    SHOWS_SILENCE = True
    """Whether the title says how long ago the agent gave a sign."""

    class TabOpened(Message):
        """The user opened the tab of that name."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    class PinChanged(Message):
        """The user wants a fact (`#12`) or a message (`12`) pinned to every prompt, or no longer."""

        def __init__(self, which: str, *, pinned: bool) -> None:
            super().__init__()
            self.which = which
            self.pinned = pinned

    SCOPE = "agent"
    BINDINGS: ClassVar[list[BindingType]] = bindings("agent")

    tab = var(0, init=False, always_update=True)
    """The place of the open tab in `PAGES`."""
    filter_words = var("", init=False)
    outcome: var[RunOutcome | None] = var(None, init=False)
    """What the run left, once it has ended and that was read."""

    def __init__(self) -> None:
        super().__init__(id=self.NAME, classes="pane")
        self.agent_id: str | None = None
        self._task_id: str | None = None
        self._snapshot = Snapshot()
        self._now = 0.0
        self._expanded: dict[str, frozenset[str]] = {}
        self._read: tuple[object, ...] = (None,) * 6
        """What the lines in sight were made from."""
        self._asked: tuple[object, ...] = ()
        self._cache = LineCache()
        self._processes = ProcessWatch()
        self._jump = ""
        """What to go to as soon as the transcript has been read."""

    def compose(self) -> ComposeResult:
        yield Summary()
        yield TabLine()
        yield PageView(id="page")

    @property
    def page(self) -> PageView:
        return self.query_one("#page", PageView)

    def update(
        self, snapshot: Snapshot, agent_id: str | None, now: float, *, task_id: str | None = None
    ) -> None:
        """Show this agent as of this snapshot; where there is none, the task that has none."""
        if (agent_id, task_id) != (self.agent_id, self._task_id):
            self.agent_id, self._task_id = agent_id, task_id
            self._start()
        self._snapshot, self._now = snapshot, now
        self.redraw()

    def age(self, now: float) -> None:
        """Time has passed, and nothing else has happened."""
        self._now = now
        self._title()

    def redraw(self) -> None:
        """Bring everything up to date with the last snapshot; what would be the same is not even made."""
        if not self.is_mounted:
            return
        agent, detail = self._snapshot.agent(self.agent_id), self._snapshot.detail
        if detail is not None and detail.agent_id != self.agent_id:
            detail = None
        task = self._snapshot.task(self._task_id) if agent is None else None
        summary, tabs = self.query_one(Summary), self.query_one(TabLine)
        summary.agent, summary.detail = agent, detail
        summary.predicts_compaction = agent is not None and predicts_compaction(self._snapshot, agent)
        summary.instead = task_summary(self._snapshot, task) if task is not None else ()
        tabs.opened, tabs.is_blank = self.tab, agent is None
        passes = sum(one.agent_id == self.agent_id for one in self._snapshot.compactions)
        tabs.notes = {"Compactions": f"({passes})"} if passes else {}
        self._title()
        page = self.page
        page.page_follows = PAGES[self.tab].follows
        of = self._snapshot
        read = (
            agent,
            detail,
            of.compactions,
            of.session is None,
            of.state,
            of.tasks if agent is None else None,
        )
        pausing = self.agent_id in of.pausing
        asked = (
            self.tab,
            self._width,
            self._expanded.get(self.agent_id or ""),
            self.filter_words,
            int(self._now),
            pausing,
        )
        if asked != self._asked or any(now is not then for now, then in zip(read, self._read, strict=True)):
            self._asked, self._read = asked, read
            page.set_rows(lazy(self.lines(), self._cache))
        if self._jump and detail is not None:
            self.action_jump(self._jump)

    def lines(self) -> Sequence[PageLine | Unit]:
        """The lines of the tab that is open."""
        snapshot, agent = self._snapshot, self._snapshot.agent(self.agent_id)
        task = snapshot.task(self._task_id)
        if agent is None and task is not None:
            return task_page(snapshot, task, self._width)
        if agent is None:
            return [
                PageLine(
                    "none",
                    ((no_agents_text(snapshot) if not snapshot.agents else "select an agent", "faint"),),
                )
            ]
        detail = snapshot.detail
        if detail is None or detail.agent_id != agent.id:
            detail = AgentDetail(agent.id)
            if agent.last_seq:
                return [PageLine("reading", (("loading …", "faint"),))]
        context = PageContext(
            snapshot=snapshot,
            agent=agent,
            detail=detail,
            width=self._width,
            now=self._now,
            expanded=self._expanded.get(agent.id, frozenset()),
            words=self.filter_words,
            can_act=not watch_app(self).read_only and snapshot.state is not SessionState.REPLAY,
            threshold=watch_app(self).settings.summarization_threshold,
            processes=self._silent_processes(agent),
            cache=self._cache,
            outcome=self.outcome,
        )
        return PAGES[self.tab].lines(context)

    def _silent_processes(self, agent: AgentFacts) -> str:
        """What the processes of the run do, while the agent is silent."""
        if agent_condition(agent, self._snapshot.state, self._now).role != "silent":
            return ""
        return self._processes.words(self._snapshot.host_pid, self._now)

    @property
    def _width(self) -> int:
        """Columns that a line of the page may take."""
        return max(10, self.page.scrollable_content_region.width - 1)

    def watch_tab(self) -> None:
        self._start()
        self.redraw()

    def watch_outcome(self) -> None:
        self._asked = ()
        self.redraw()

    def watch_filter_words(self) -> None:
        self.redraw()
        if self.filter_words and PAGES[self.tab].name == "Transcript":
            self._go_to(self._matches(), 0)

    def open_tab(self, index: int) -> None:
        """Open a tab by its place; where it is open, the place in its page stays."""
        if index % len(PAGES) == self.tab:
            return
        self.tab = index % len(PAGES)
        self.post_message(self.TabOpened(PAGES[self.tab].name))

    def open_page(self, name: str) -> None:
        """Open a tab by its name."""
        self.open_tab(next(index for index, page in enumerate(PAGES) if page.name == name))

    def action_tab(self, step: int) -> None:
        self.open_tab(self.tab + step)

    def action_to_compaction(self) -> None:
        """Go to where the transcript was compacted: above it, observations stand in place of messages."""
        self.open_page("Transcript")
        if self.page.select(BOUNDARY, tell=False):
            return
        detail = self._snapshot.detail
        compacted = detail is not None and detail.view is not None and bool(detail.view.observations)
        if not compacted:
            said = "no compactions in this transcript"
        elif self.filter_words:
            said = "the search hides the compaction; clear the search first"
        else:
            said = "the compaction is before the loaded messages"
        self.post_message(StatusLine.Said(said))

    def action_jump(self, what: str) -> None:
        """Go to the next `error`, or the next `prompt` of the user, in the transcript; after the last one, the first."""
        self._jump = ""  # opening the page draws it, which would jump again
        self.open_page("Transcript")
        detail = self._snapshot.detail
        if self.agent_id is None or detail is None or detail.agent_id != self.agent_id:
            self._jump = what  # as soon as it has been read
            return
        name, is_such = JUMPS[what]
        line = self.page.selected
        here = place_of_line(line.key) if line is not None and not self.page.following else (0, 0)
        item = stepped([item for item in items_of(detail.transcript) if is_such(item)], here, 1)
        if item is None:
            self.post_message(StatusLine.Said(f"no {name} in {self._searched(detail)}"))
            return
        if self.filter_words:
            self.filter_words = ""
        self._expanded[self.agent_id] = self._expanded.get(self.agent_id, frozenset()) | {item.block.key}
        self.redraw()
        self.page.select(f"{item.block.key}.0", tell=False)
        self.page.show_from_cursor()

    def action_next(self, step: int) -> None:
        """Go to the next item of the transcript that has the words of the search, or to the one before."""
        if not self._go_to(self._matches(), step):
            detail = self._snapshot.detail
            self.post_message(
                StatusLine.Said(f"no matches in {self._searched(detail)}" if detail else "no matches")
            )

    def _searched(self, detail: AgentDetail) -> str:
        """Where a search of the transcript looks."""
        if detail.first_seq == 1:
            return "this transcript"
        return f"the messages from #{detail.first_seq} on; the first line opens those before"

    def action_step_message(self, step: int) -> None:
        """Go to the next message of the transcript, or to the one before."""
        if PAGES[self.tab].name != "Transcript":
            self.open_page("Transcript")
        self._go_to(self._items(), step)

    def _items(self) -> list[Item]:
        detail = self._snapshot.detail
        if detail is None or detail.agent_id != self.agent_id:
            return []
        return [item for item in items_of(detail.transcript) if JUMPS["message"][1](item)]

    def _matches(self) -> list[Item]:
        words = self.filter_words.casefold()
        return [item for item in self._items() if item.holds(words)]

    def _go_to(self, items: Sequence[Item], step: int) -> bool:
        """Select the item before (-1) or after (1) the cursor, or the nearest from it on (0); after the last one, the
        first. False where there is none."""
        line = self.page.selected
        here = place_of_line(line.key) if line is not None else (0, 0)
        if line is not None and line.key == "live":
            here = (1 << 62, 0)  # what streams in comes after every message
        item = stepped(items, here, step)
        if item is None:
            return False
        if step and self.filter_words and self.agent_id is not None:
            self._expanded[self.agent_id] = self._expanded.get(self.agent_id, frozenset()) | {item.block.key}
            self.redraw()
        self.page.select(f"{item.block.key}.0", tell=False)
        return True

    def action_pin(self) -> None:
        """Pin the fact under the cursor to every prompt, or keep the message under it as it is; or take it out again."""
        line = self.page.selected
        key = line.key if line is not None else ""
        detail = self._snapshot.detail
        seq = key.removeprefix(PIN_KEY) if PAGES[self.tab].name == "Memory" else key.partition(".")[0]
        if seq.isdecimal():
            pinned = detail is not None and detail.view is not None and int(seq) in detail.view.pins
            self.post_message(self.PinChanged(seq, pinned=not pinned))
            return
        facts = self._snapshot.detail.facts if self._snapshot.detail is not None else ()
        fact = next((each for each in facts if f"fact.{each.id}" == key), None)
        if fact is None:
            self.post_message(StatusLine.Said("select a fact or message first; :pin TEXT pins your own text"))
        else:
            self.post_message(self.PinChanged(f"#{fact.id}", pinned=not fact.pinned))

    def toggle(self, key: str) -> None:
        """Fold or unfold what `key` names."""
        if self.agent_id is not None and key:
            self._expanded[self.agent_id] = self._expanded.get(self.agent_id, frozenset()) ^ {key}
            self.redraw()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        event.stop()
        line, session = self.page.selected, self._snapshot.session
        agent = self._snapshot.agent(self.agent_id)
        if line is None or session is None or agent is None:
            return
        app, key = watch_app(self), line.key
        until = agent.last_seq if self._snapshot.state is SessionState.REPLAY else 0
        if key.startswith(PASS_KEY):
            app.open_compaction(int(key.removeprefix(PASS_KEY)), until=until)
        elif key.startswith(ARTIFACT_KEY):
            app.open_artifacts(key.removeprefix(ARTIFACT_KEY), session_id=session.id)
        elif key == EARLIER and self._snapshot.detail is not None:
            app.open_message(session.id, agent.id, self._snapshot.detail.first_seq - 1, until=until)
        elif key.startswith(PIN_KEY):
            app.open_message(session.id, agent.id, int(key.removeprefix(PIN_KEY)), until=until)
        elif key.startswith(OBSERVATION_KEY):
            seen = int(key.removeprefix(OBSERVATION_KEY))
            app.open_message(session.id, agent.id, 0, observation=seen, until=until)
        else:
            self.toggle(key)

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        event.stop()

    def on_page_view_resized(self, event: PageView.Resized) -> None:
        event.stop()
        self.redraw()

    def _start(self) -> None:
        self._asked = ()
        if self.is_mounted:
            self.page.start(follows=PAGES[self.tab].follows)

    def _title(self) -> None:
        palette = watch_app(self).palette
        agent = self._snapshot.agent(self.agent_id)
        task = self._snapshot.task(self._task_id) if agent is None else None
        if task is not None:
            standing = task_condition(task, self._snapshot.state)
            pieces = [
                *pane_title(self.NUMBER, "Task  "),
                (f"{standing.glyph} {standing.word}", standing.role),
            ]
        elif agent is None:
            pieces = pane_title(self.NUMBER, "Agent")
        else:
            condition = agent_condition(
                agent, self._snapshot.state, self._now, pausing=agent.id in self._snapshot.pausing
            )
            width = max(20, self.size.width - 8)
            pieces = [
                *pane_title(self.NUMBER, f"{clip(sanitize(agent.full_label), 40)}  "),
                (f"{condition.glyph} {condition.word}", condition.role),
                (f"  turn {agent.turn}", "muted"),
            ]
            if agent.ended_at is None and self.SHOWS_SILENCE:
                silence = int(
                    max(0.0, self._now - last_sign(agent))
                )  # whole seconds: a title paints the whole pane
                pieces.append(
                    (
                        f"  active {formatting.duration(silence) if silence > 9 else f'{silence}s'} ago"
                        if silence
                        else "  active just now",
                        "faint",
                    )
                )
            while pieces_width(pieces) > width and len(pieces) > 3:
                pieces.pop()
        set_title(self, pieces, palette)


TRANSCRIPT, MEMORY = (
    next(at for at, page in enumerate(PAGES) if page.name == name) for name in ("Transcript", "Memory")
)


class TranscriptPane(AgentPane):
    """The third column of a wide screen: the transcript beside the tab that is open; beside the transcript, the memory."""

    NAME = "transcript"
    NUMBER = "5"
    DEFAULT_CSS = "TranscriptPane TabLine, TranscriptPane Summary { display: none; }"

    class TabWanted(Message):
        """The user wants another tab of the agent."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self) -> None:
        super().__init__()
        self.set_reactive(AgentPane.tab, TRANSCRIPT)

    def update_as(self, pane: AgentPane) -> None:
        """Show what goes beside the tab that is open in the agent pane."""
        wanted = MEMORY if pane.tab == TRANSCRIPT else TRANSCRIPT
        if wanted != self.tab:
            self.tab = wanted
        self.update(pane._snapshot, pane.agent_id, pane._now)

    def lines(self) -> Sequence[PageLine | Unit]:
        if self.agent_id is None and self._snapshot.agents:
            return [PageLine("none", (("no agent yet", "faint"),))]
        return super().lines()

    def open_tab(self, index: int) -> None:
        if index % len(PAGES) != self.tab:
            self.post_message(self.TabWanted(index))

    def _title(self) -> None:
        set_title(self, pane_title(self.NUMBER, PAGES[self.tab].name), watch_app(self).palette)
