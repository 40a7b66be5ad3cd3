"""A form that starts a run, or continues a session in a new one. `wk run` does both, with its checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Input, Label

from watchkeeper_tui.control import RunRequest
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.widgets.bars import KeyHint, KeyLine, Prompt, StatusLine, TextLine
from watchkeeper_tui.widgets.rows import Piece, set_title


@dataclass(frozen=True, slots=True)
class Field:
    """One line of the form."""

    name: str
    label: str
    help: str


FIELDS = (
    Field("goal", "Goal", "what should be done; the planner makes a plan of it"),
    Field("workspace", "Workspace", "the folder to work in"),
    Field("model", "Model", "anthropic/<model>, openai/<model>, …; empty: the configured one"),
    Field("budget_usd", "Budget, USD", "the run pauses when this much is spent; empty: no limit"),
    Field("max_parallel", "Sub-agents", "how many work at a time; empty: as configured"),
    Field(
        "allow_models",
        "Roles",
        "models that roles of the workspace may use although they cost more; by spaces",
    ),
    Field("allow", "Allow", "tools that run without a question, by spaces; empty: as configured"),
    Field("deny", "Deny", "tools that never run, by spaces"),
)


class StartScreen(WatchScreen):
    """`ctrl+s` says what would be started, and `y` starts it. The dashboard then shows the run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "begin", "Start", show=False, id="start.begin"),
        Binding("up,shift+tab", "app.focus_previous", "Field above", show=False, id="start.above"),
        Binding("down,tab", "app.focus_next", "Field below", show=False, id="start.below"),
        Binding("escape", "back", "Back", show=False, id="start.back"),
    ]

    def __init__(
        self, *, goal: str = "", from_session: str | None = None, name: str = "", workspace: str = ""
    ) -> None:
        super().__init__()
        self._from_session = from_session
        self._called = name
        self._working = False
        folder = workspace or str(Path.cwd())
        # A name that would be shown as another one is left to the user to type.
        self._given = {"goal": sanitize(goal), "workspace": folder if sanitize(folder) == folder else ""}

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="form", can_focus=False):
            for field in FIELDS:
                with Horizontal(classes="field"):
                    yield Label(field.label, markup=False)
                    given = self._given.get(field.name, "")
                    yield TextLine(given, id=f"start-{field.name}", select_on_focus=False, compact=True)
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    def on_mount(self) -> None:
        for line in self.query("#form TextLine").results(Input):
            line.cursor_blink = not self.watch_app.settings.reduced_motion
        self.query_one("#start-goal").focus()
        pieces: list[Piece] = [("Start a run", "strong")]
        if self._from_session is not None:
            pieces = [("Continue ", "strong"), (clip(self._called, 60), "text")]
            pieces.append(("   with its plan and facts, in a new session", "muted"))
        set_title(self.query_one("#form"), pieces, self.watch_app.palette)
        self.query_one(KeyLine).hints = (
            KeyHint("ctrl+s", "Start…", "begin"),
            KeyHint("↑↓", "Field", "app.focus_next"),
            KeyHint("esc", "Back", "back"),
        )
        self._describe()

    def tick(self, now: float) -> None:
        self._describe()

    def on_descendant_focus(self) -> None:
        self._describe()

    def _describe(self) -> None:
        focused = self.focused.id if self.focused is not None else None
        words = next((field.help for field in FIELDS if f"start-{field.name}" == focused), "")
        if focused == "start-goal" and self._from_session is not None:
            words = "what comes next; empty: the goal of the session that is continued"
        self.query_one(StatusLine).pieces = tuple(self.notice(self.watch_app.now())) or ((words, "muted"),)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == f"start-{FIELDS[-1].name}":
            self.action_begin()
        else:
            self.focus_next()

    @property
    def request(self) -> RunRequest:
        """What was typed."""
        typed = {
            field.name: self.query_one(f"#start-{field.name}", TextLine).typed.strip() for field in FIELDS
        }
        return RunRequest(
            goal=typed["goal"], workspace=typed["workspace"], model=typed["model"], budget_usd=typed["budget_usd"],
            max_parallel=typed["max_parallel"], allow_models=tuple(typed["allow_models"].split()),
            allow=tuple(typed["allow"].split()), deny=tuple(typed["deny"].split()), from_session=self._from_session,
        )  # fmt: skip

    def action_begin(self) -> None:
        """Say what would be started, and ask."""
        request = self.request
        if self._working or self.prompt.is_asking:
            return
        if not request.goal and self._from_session is None:
            self.say("the goal is empty: say what should be done", "failed")
            return
        goal = clip(sanitize(request.goal), 200) or "the goal of the session that is continued"
        budget = f"up to ${sanitize(request.budget_usd)}" if request.budget_usd else "without a limit"
        self.confirm(
            [
                f"Start: {goal}",
                f"in {clip(sanitize(request.workspace) or 'this folder', 100)}",
                f"with {clip(sanitize(request.model) or 'the configured model', 60)}, {budget}",
            ],
            lambda: self._begin(request),
        )

    def _begin(self, request: RunRequest) -> None:
        self._working = True
        self.say("starting …", "muted", seconds=60)
        self.run_worker(self._start(request), exit_on_error=False, group="start")

    async def _start(self, request: RunRequest) -> None:
        try:
            started = await self.watch_app.start_run(request)
        except OSError as error:
            started = ("", str(error))
        session_id, problem = started
        self._working = False
        if not self.is_usable:
            return
        if not session_id:
            self.say(f"✗ not started: {self.trouble(problem)}", "failed", seconds=60)
            return
        self.watch_app.open_session(session_id)

    def action_back(self) -> None:
        self.app.pop_screen()

    def help_groups(self) -> list[tuple[str, list[tuple[str, str]]]]:
        return [
            ("Start a run", [(field.label, field.help) for field in FIELDS] + [("ctrl+s", "start; asks")])
        ]
