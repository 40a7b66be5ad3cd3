"""A form that starts a run, or continues a session in a new one. `wk run` does both, with its checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Input, Label

from watchkeeper.store.driver import Connection, Queries
from watchkeeper.store.search.messages import list_sessions
from watchkeeper_tui.actions import Group, bindings
from watchkeeper_tui.control import ModelChoice, RunRequest, start_folder
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.widgets.bars import KeyLine, Prompt, StatusLine, TextLine
from watchkeeper_tui.widgets.rows import Cell, Column, Piece, RowView, set_title


@dataclass(frozen=True, slots=True)
class Field:
    """One line of the form."""

    name: str
    label: str
    help: str
    empty: str = ""
    """What an empty line means."""


FIELDS = (
    Field("goal", "Goal", "what to do; the planner turns it into a plan"),
    Field("workspace", "Workspace", "folder to work in; ↓ lists folders of earlier sessions"),
    Field(
        "model",
        "Model",
        "provider/model; empty = configured model; ↓ lists available models",
        "as configured",
    ),
    Field("budget_usd", "Budget, USD", "the run pauses at this cost; empty = no limit", "no limit"),
    Field("max_parallel", "Sub-agents", "maximum running at once; empty = as configured", "as configured"),
    Field(
        "allow_models",
        "Roles",
        "more expensive models that workspace roles may use, separated by spaces; ↓ lists requested models",
        "none",
    ),
    Field(
        "rules",
        "Rules",
        "rules for every agent, added to each prompt; or @FILE with one rule per line",
        "none",
    ),
    Field(
        "allow",
        "Allow",
        "tools that run without approval, separated by spaces (example: bash edit); empty = as configured",
        "as configured",
    ),
    Field(
        "deny", "Deny", "tools that never run, separated by spaces; empty = as configured", "as configured"
    ),
)


CONFIGURED = "configured"
"""Where `wk models` says that the configured model comes from. It is the first."""
CHOOSES_A_MODEL = "choose one in the Model field (↓ lists models)"
MOST_CHOICES = 8
"""How many choices are in sight at once."""
MOST_FOLDERS = 50
"""How many workspaces of earlier sessions are listed."""


class ChoicesView(RowView[ModelChoice]):
    """What may be chosen for a field: models with their prices, or folders."""

    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("", 30, flexible=True),
        Column("", 22, drop=1),
        Column("", 20, flexible=True, drop=2),
    )
    EMPTY = "loading …"

    def row_id(self, row: ModelChoice) -> str:
        return f"{row.ref} {row.base_url} {row.where}"

    def row_cells(self, row: ModelChoice) -> Sequence[Cell]:
        return (
            [(sanitize(row.ref), "text")],
            [(price_words(row), "money")],
            [(sanitize(row.where), "muted")],
        )


def price_words(choice: ModelChoice) -> str:
    """`$2 in, $10 out per M tok`, empty where no price is known."""
    if choice.input_usd is None or choice.output_usd is None:
        return ""
    if not choice.input_usd and not choice.output_usd:
        return "free"
    return f"${choice.input_usd:g} in, ${choice.output_usd:g} out /M tok"


_CHOICES = {
    "workspace": "Folders of earlier sessions",
    "model": "Available models",
    "allow_models": "Models requested by workspace roles",
}
"""The fields for which there is a list, and its title."""


class StartScreen(WatchScreen):
    """`ctrl+s` says what would be started, and `y` starts it. The dashboard then shows the run."""

    SCOPE = "start"
    BINDINGS: ClassVar[list[BindingType]] = bindings("start")

    def __init__(
        self, *, goal: str = "", from_session: str | None = None, name: str = "", workspace: str = ""
    ) -> None:
        super().__init__()
        self._from_session = from_session
        self._called = name
        self._working = False
        self._field = FIELDS[0].name
        """The field that has the focus, or had it before the list of its choices."""
        self._choices: dict[str, tuple[ModelChoice, ...]] = {}
        self._servers: dict[str, str] = {}
        """The server on this machine that has a model which was chosen, by the model."""
        self._listed_for: str | None = None
        """The workspace whose models and roles were asked for."""
        folder = workspace or str(start_folder())
        # A name that would be shown as another one is left to the user to type.
        self._given = {"goal": sanitize(goal), "workspace": folder if sanitize(folder) == folder else ""}

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="form", can_focus=False):
            for field in FIELDS:
                with Horizontal(classes="field"):
                    yield Label(field.label, markup=False)
                    given = self._given.get(field.name, "")
                    name = f"start-{field.name}"
                    yield TextLine(given, field.empty, id=name, select_on_focus=False, compact=True)
        yield ChoicesView(id="choices", classes="pane")
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    @property
    def view(self) -> ChoicesView:
        """The choices for the field."""
        return self.query_one(ChoicesView)

    def on_mount(self) -> None:
        for line in self.query("#form TextLine").results(Input):
            line.cursor_blink = not self.watch_app.settings.reduced_motion
        self.query_one("#start-goal").focus()
        pieces: list[Piece] = [("Start a run", "strong")]
        if self._from_session is not None:
            pieces = [("Continue ", "strong"), (clip(self._called, 60), "text")]
            pieces.append(("   in a new session, with its plan and facts", "muted"))
        set_title(self.query_one("#form"), pieces, self.watch_app.palette)
        self.show_keys()
        self._describe()
        self.ask_reader(_folders, lambda found: self._arrived("workspace", found))

    def tick(self, now: float) -> None:
        self._describe()

    def on_descendant_focus(self) -> None:
        focused = self.focused.id if self.focused is not None else None
        name = (focused or "").removeprefix("start-")
        if any(field.name == name for field in FIELDS):
            self._field = name
            self._list_models()
        self._show_choices()
        self._describe()

    # What may be chosen.

    def _typed(self, name: str) -> TextLine:
        return self.query_one(f"#start-{name}", TextLine)

    def _list_models(self) -> None:
        """Ask which models there are, once for each workspace, when it is first of use."""
        workspace = self._typed("workspace").typed.strip()
        if self._field in ("model", "allow_models") and workspace != self._listed_for:
            self._listed_for = workspace
            self.run_worker(self._read_models(workspace), exit_on_error=False, group="models", exclusive=True)

    async def _read_models(self, workspace: str) -> None:
        try:
            models, roles = await self.watch_app.list_models(workspace)
        except (OSError, ValueError, LookupError):
            models, roles = (), ()
        self._arrived("model", models)
        self._arrived("allow_models", roles)

    def _arrived(self, name: str, found: object) -> None:
        if self.is_usable and isinstance(found, tuple):
            # A name that would be shown as another one is left to the user to type.
            self._choices[name] = tuple(one for one in found if sanitize(one.ref) == one.ref)
            self._show_choices()

    def _show_choices(self) -> None:
        """The list for the field: what holds what is typed, else all."""
        view = self.view
        choices = self._choices.get(self._field, ())
        waits = self._field == "model" and "model" not in self._choices
        view.display = self._field in _CHOICES and (bool(choices) or waits)
        self.set_class(view.display, "-choosing")
        typed = self._typed(self._field).typed.strip().rpartition(" ")[2].casefold()
        kept = tuple(one for one in choices if typed in one.ref.casefold())
        exact = any(one.ref.casefold() == typed for one in choices)
        rows = kept if kept and not exact else choices
        view.set_rows(rows)
        view.styles.height = min(MOST_CHOICES, max(1, len(rows))) + 2
        set_title(
            view,
            [(_CHOICES.get(self._field, ""), "strong"), ("   ↓ enters the list", "muted")],
            self.watch_app.palette,
        )

    def on_input_changed(self) -> None:
        self._show_choices()

    def action_below(self) -> None:
        """Into the list of choices, where there is one; else to the next field."""
        if self.view.display and self.view.rows and self.focused is not self.view:
            self.view.focus()
        else:
            self.focus_next()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        choice = self.view.selected
        if choice is None:
            return
        line = self._typed(self._field)
        if self._field == "allow_models":
            line.value = " ".join(dict.fromkeys([*line.value.split(), choice.ref]))
        else:
            line.value = choice.ref
        if self._field == "model":
            self._servers[choice.ref] = choice.base_url
        names = [field.name for field in FIELDS]
        self._typed(names[names.index(self._field) + 1]).focus()

    def _describe(self) -> None:
        focused = f"start-{self._field}"
        words = next((field.help for field in FIELDS if f"start-{field.name}" == focused), "")
        if self.focused is self.view:
            words = "Enter selects; Esc returns to the field"
        elif focused == "start-goal" and self._from_session is not None:
            words = "what to do next; empty = goal of the continued session"
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
            base_url=self._servers.get(typed["model"], ""), rules=typed["rules"],
        )  # fmt: skip

    def action_begin(self) -> None:
        """Say what would be started, and ask."""
        request = self.request
        if self._working or self.prompt.is_asking:
            return
        if not request.goal and self._from_session is None:
            self.say("the goal is empty; enter what to do", "failed")
            return
        models = self._choices.get("model", ())
        is_configured = bool(models) and models[0].where == CONFIGURED
        if not request.model and "model" in self._choices and not is_configured:
            self.say(f"no model is configured: {CHOOSES_A_MODEL}", "failed", seconds=12)
            self._typed("model").focus()
            return
        goal = clip(sanitize(request.goal), 200) or "the goal of the continued session"
        budget = f"up to ${sanitize(request.budget_usd)}" if request.budget_usd else "no cost limit"
        known = [one for one in models if one.ref == (request.model or models[0].ref)]
        price = f" ({price_words(known[0])})" if known and price_words(known[0]) else ""
        self.confirm(
            [
                f"Start: {goal}",
                f"in {clip(sanitize(request.workspace) or 'this folder', 100)}",
                f"with {clip(sanitize(request.model) or 'the configured model', 60)}{price}, {budget}",
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
            # The command that `wk run` advises is for a shell.
            why, _, command = problem.partition(", then run: wk ")
            advice = f" and start wk again, or {CHOOSES_A_MODEL}" if command else ""
            self.say(f"✗ start failed: {self.trouble(why)}{advice}", "failed", seconds=60)
            return
        self.watch_app.open_session(session_id)

    def action_back(self) -> None:
        if self.focused is self.view:
            self._typed(self._field).focus()
        else:
            self.app.pop_screen()

    def legend(self) -> list[Group]:
        return [("Fields", [(field.label, field.help) for field in FIELDS])]


def _folders(connection: Connection) -> tuple[ModelChoice, ...]:
    """The workspaces of the newest sessions."""
    rows = list_sessions(Queries(connection), limit=500)
    folders = list(dict.fromkeys(row.workspace for row in rows if row.workspace))[:MOST_FOLDERS]
    return tuple(ModelChoice(folder, "") for folder in folders)
