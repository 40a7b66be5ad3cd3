"""The forms with which a person edits the plan: add a task, revise, drop or re-run some. The commands are those of
`wk plan` and `wk rerun`. A form keeps its text until the host has applied them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Input, Label, TextArea

from watchkeeper.store.driver import Connection, Queries
from watchkeeper.store.plans import Task, load_task
from watchkeeper.store.projection import TaskFacts, roles_of
from watchkeeper_tui.actions import BY_ID, Action, Group, bindings
from watchkeeper_tui.control import Sent
from watchkeeper_tui.requests import Request, Target
from watchkeeper_tui.sanitize import clip, sanitize, sanitize_text
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.snapshot import Snapshot, task_condition
from watchkeeper_tui.widgets.bars import KeyLine, Prompt, StatusLine, TextLine
from watchkeeper_tui.widgets.rows import Cell, Column, Piece, RowView, set_title

DEFAULT_ROLE = "coder"
"""The role of a task for which none was chosen, as for `wk plan add`."""
MEMORIES = ("keep", "fresh")
"""With what a re-run begins: the memory of the last attempt, or none."""
MOST_CHOICES = 6
"""How many choices are in sight at once."""


@dataclass(frozen=True, slots=True)
class Field:
    """One part of a form."""

    name: str
    label: str
    help: str
    empty: str = ""
    """What an empty line means."""
    has_lines: bool = False
    """Its text may have several lines."""


_NAME = Field("name", "Name", "short and unique, such as explore-src; cannot be changed later")
_TITLE = Field("title", "Title", "one line for display; empty = the name", "the name")
_ROLE = Field("role", "Role", "defines what the agent may do; ↓ lists the roles of this run", DEFAULT_ROLE)
_NEEDS = Field(
    "needs",
    "Depends on",
    "tasks to finish first, separated by commas; ↓ lists tasks, Enter adds or removes one",
    "none",
)
_OUTPUTS = Field(
    "outputs",
    "Outputs",
    "required results, separated by commas: artifact names or file:PATH",
    "none",
)
_INSTRUCTIONS = Field(
    "instructions",
    "Instructions",
    "the agent sees only this part of the plan; tab leaves the field",
    has_lines=True,
)
_REASON = Field("message", "Reason", "optional; sent to the planner; tab leaves the field", has_lines=True)  # fmt: skip
_MEMORY = Field("memory", "Memory", "keep = keep the old agent's memory; fresh = start empty; ↓ selects")  # fmt: skip
_MESSAGE = Field(
    "message",
    "Message",
    "what to do differently; sent to the agent and the planner; tab leaves the field",
    has_lines=True,
)

FORMS: dict[str, tuple[Field, ...]] = {
    "plan_add": (_NAME, _TITLE, _ROLE, _NEEDS, _OUTPUTS, _INSTRUCTIONS),
    "plan_revise": (_TITLE, _ROLE, _NEEDS, _OUTPUTS, _INSTRUCTIONS),
    "plan_drop": (_REASON,),
    "rerun_message": (_MESSAGE, _MEMORY),
}
"""The fields of each action that has a form."""
_ARGUMENTS = {"needs": "depends_on", "outputs": "expected_outputs"}
"""What the command calls a field, where it has another name for it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A row of the list: what is written into the field, and words about it. Sanitised."""

    value: str
    words: str
    is_chosen: bool = False


class TaskChoicesView(RowView[Choice]):
    """What may be chosen for a field: roles, tasks, or what to remember."""

    SCOPE = "choices"
    BINDINGS: ClassVar[list[BindingType]] = bindings("choices")
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("", 1),
        Column("", 26, flexible=True),
        Column("", 40, flexible=True, drop=1),
    )

    def row_id(self, row: Choice) -> str:
        return row.value

    def row_cells(self, row: Choice) -> Sequence[Cell]:
        return ([("✓" if row.is_chosen else " ", "done")], [(row.value, "text")], [(row.words, "muted")])


def listed(text: str, known: Iterable[str] = ()) -> list[str]:
    """The names in a line, each once, divided by commas; a `known` name may have commas itself."""
    names = sorted(known, key=len, reverse=True)
    found, rest = [], text.strip()
    while rest:
        name = next((each for each in names if rest == each or rest.startswith(f"{each},")), None)
        name = name if name is not None else rest.partition(",")[0]
        found.append(name.strip())
        rest = rest[len(name) :].removeprefix(",").strip()
    return [name for name in dict.fromkeys(found) if name]


def shown_name(name: str) -> str:
    """A task's name as the form shows it: it may come from a model."""
    return " ".join(sanitize(name).split())


class TaskFormScreen(WatchScreen):
    """`ctrl+s` sends it. What is refused is said, and can be corrected."""

    SCOPE = "task"
    BINDINGS: ClassVar[list[BindingType]] = bindings("task")

    def __init__(
        self, action: str, target: Target, closed: Callable[[tuple[Sent, ...]], None], *, fresh: bool = False
    ) -> None:
        """`closed` gets what was sent, when the form closes. `fresh`: what a re-run begins with, until chosen."""
        super().__init__()
        self._action, self._target, self._tell_closed = BY_ID[action], target, closed
        session = target.snapshot.session
        self._session_id = session.id if session is not None else ""
        self.fields = FORMS[action]
        self._field = self.fields[0].name
        """The field that has the focus, or had it before the list of its choices."""
        self._given = {"memory": MEMORIES[fresh]}
        """What stood in the fields at first."""
        self._sent: tuple[Sent, ...] = ()
        """The commands that the host has not answered yet."""
        self._sending = False
        self._reading = action == "plan_revise"
        self._refused = ""
        """Why they were refused; sanitised."""

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="form", can_focus=False):
            for field in self.fields:
                with Horizontal(classes="lines" if field.has_lines else "field"):
                    yield Label(field.label, markup=False)
                    given, name = self._given.get(field.name, ""), f"task-{field.name}"
                    if field.has_lines:
                        yield TextArea(given, id=name, soft_wrap=True)
                    else:
                        yield TextLine(given, field.empty, id=name, select_on_focus=False, compact=True)
        yield TaskChoicesView(id="choices", classes="pane")
        yield Prompt()
        yield StatusLine()
        yield KeyLine()

    @property
    def view(self) -> TaskChoicesView:
        """The choices for the field."""
        return self.query_one(TaskChoicesView)

    def on_mount(self) -> None:
        blinks = not self.watch_app.settings.reduced_motion
        for line in self.query("#form TextLine").results(Input):
            line.cursor_blink = blinks
        for area in self.query("#form TextArea").results(TextArea):
            area.cursor_blink = blinks
        self._part(self._field).focus()
        pieces: list[Piece] = [(self._action.label, "strong")]
        if self._target.tasks and self._action.id != "plan_add":
            pieces.append((f"  {clip(self._target_now.names, 60)}", "text"))
        set_title(self.query_one("#form"), pieces, self.watch_app.palette)
        self.show_keys()
        if self._action.id == "plan_revise":
            task_id = self._target.tasks[0].id

            def question(connection: Connection) -> Task | None:
                return load_task(Queries(connection), task_id)

            self.ask(question, self._task_read)
        self._describe()

    def _task_read(self, task: Task | None) -> None:
        """Fill in what is stored of the task."""
        self._reading = False
        if task is None:
            self._refuse("the task is no longer in the database")
            return
        names = {each.id: shown_name(each.name) for each in self.snapshot.tasks}
        self._given = {
            "title": shown_name(task.title),
            "role": sanitize(task.role),
            "needs": ", ".join(names.get(need, need) for need in task.depends_on),
            "outputs": ", ".join(map(shown_name, task.expected_outputs)),
            "instructions": sanitize_text(task.instructions),
        }
        for name, text in self._given.items():
            part = self._part(name)
            if isinstance(part, TextArea) and not part.text:
                part.load_text(text)
            elif isinstance(part, TextLine) and not part.value:
                part.value = text
        self._describe()

    # What is typed.

    @property
    def snapshot(self) -> Snapshot:
        """The newest reading."""
        return self.watch_app.snapshot

    def _part(self, name: str) -> TextLine | TextArea:
        part = self.query_one(f"#task-{name}")
        assert isinstance(part, TextLine | TextArea)
        return part

    def typed(self, name: str) -> str:
        """What is in the field."""
        part = self._part(name)
        return part.text if isinstance(part, TextArea) else part.typed

    @property
    def _is_changed(self) -> bool:
        return any(self.typed(field.name) != self._given.get(field.name, "") for field in self.fields)

    @property
    def _others(self) -> list[TaskFacts]:
        """The tasks on which this one may depend."""
        own = {task.id for task in self._target.tasks} if self._action.id == "plan_revise" else set()
        return [task for task in self.snapshot.tasks if task.id not in own]

    def _arguments(self) -> dict[str, Any]:
        """The arguments of `wk plan`: of a task that is revised, what was changed.

        Raises:
            ValueError: the field with that name, and why it cannot be sent.
        """
        found: dict[str, Any] = {}
        for field in self.fields:
            text = self.typed(field.name).strip()
            if text == self._given.get(field.name, "").strip():
                continue
            if field.name == "role" and not text:
                raise ValueError("role", "the role is empty; ↓ lists the roles of this run")
            if field.name == "title" and not text:
                text = self._target.tasks[0].name
            if field.name == "needs":
                names = {shown_name(task.name): task.name for task in self._others}
                wanted = listed(text, names)
                missing = [name for name in wanted if name not in names]
                if missing:
                    raise ValueError("needs", f"unknown task {missing[0]!r}; ↓ lists tasks")
                found[field.name] = [names[name] for name in wanted]
            elif field.name == "outputs":
                found[field.name] = listed(text)
            else:
                found[field.name] = text
        roles = [name for name in roles_of(self._roles) if name != "planner"]
        if found.get("role") and roles and found["role"] not in roles:
            raise ValueError("role", f"unknown role {found['role']!r}; use one of {', '.join(sorted(roles))}")
        if self._action.id == "plan_add":
            found.setdefault("name", "")
            found.setdefault("role", DEFAULT_ROLE)
            found.setdefault("instructions", "")
        if found.get("name") == "":
            raise ValueError("name", "the name is empty; enter a short, unique name such as explore-src")
        if found.get("instructions") == "":
            raise ValueError("instructions", "the instructions are empty; enter what the agent should do")
        if self._action.id == "plan_revise":
            if not found:
                raise ValueError(self._field, "no changes")
            found["task"] = self._target.tasks[0].name
        return {_ARGUMENTS.get(name, name): value for name, value in found.items()}

    @property
    def _roles(self) -> str | None:
        session = self.snapshot.session
        return session.roles if session is not None else None

    def _requests(self) -> list[Request]:
        """Raises ValueError: a field, and why it cannot be sent."""
        name = self._action.id
        if name in ("plan_add", "plan_revise"):
            arguments = self._arguments()
            act = name.removeprefix("plan_")
            called = str(arguments.get("task") or arguments.get("name"))
            task_id = self._target.tasks[0].id if act == "revise" else None
            about = f"{act} “{clip(shown_name(called), 30)}”"
            return [Request("plan", None, task_id, {"act": act, "arguments": arguments}, about)]
        message = self.typed("message").strip()
        if name == "plan_drop":
            return self._action.requests(self._target_now, message)
        memory = self.typed("memory").strip()
        if memory not in MEMORIES:
            raise ValueError("memory", f"the memory is {' or '.join(MEMORIES)}, not {memory!r}")
        again = BY_ID["rerun_fresh" if memory == "fresh" else "rerun"]
        return again.requests(self._target_now, message)

    # The list of choices.

    def _choices(self) -> list[Choice]:
        """What may be chosen for the field."""
        typed = self.typed(self._field).strip()
        if self._field == "role":
            return [
                Choice(
                    sanitize(one.role), clip(sanitize(f"{one.model}, {one.source}"), 60), one.role == typed
                )
                for one in sorted(roles_of(self._roles).values(), key=lambda one: one.role)
                if one.role != "planner"
            ]
        if self._field == "memory":
            words = (
                "the new agent keeps the old agent's memory",
                "the new agent starts with an empty memory",
            )
            return [Choice(one, said, one == typed) for one, said in zip(MEMORIES, words, strict=True)]
        if self._field == "needs":
            tasks, state = self._others, self._target.snapshot.state
            chosen = listed(typed, map(shown_name, (task.name for task in tasks)))
            return [
                Choice(
                    name,
                    f"{task_condition(task, state).word}  {clip(shown_name(task.title), 60)}",
                    name in chosen,
                )
                for task in tasks
                if (name := shown_name(task.name))
            ]
        return []

    def _show_choices(self) -> None:
        """The list for the field: what holds what is typed last, else all."""
        view, choices = self.view, self._choices()
        view.display = bool(choices)
        self.set_class(view.display, "-choosing")
        last = self.typed(self._field).rpartition(",")[2].strip().casefold()
        known = any(one.value.casefold() == last for one in choices)
        kept = [one for one in choices if last in f"{one.value} {one.words}".casefold()]
        rows = kept if kept and not known else choices
        view.set_rows(tuple(rows))
        view.styles.height = min(MOST_CHOICES, max(1, len(rows))) + 2
        title = next(field.label for field in self.fields if field.name == self._field)
        pieces: list[Piece] = [(title, "strong"), ("   ↓ enters the list", "muted")]
        set_title(view, pieces, self.watch_app.palette)

    def on_input_changed(self) -> None:
        if self.focused is not self.view:
            self._show_choices()

    def on_text_area_changed(self) -> None:
        self._describe()

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        choice, line = self.view.selected, self._part(self._field)
        if choice is None or not isinstance(line, TextLine):
            return
        if self._field != "needs":
            line.value = choice.value
            names = [field.name for field in self.fields]
            place = names.index(self._field) + 1
            self._part(names[place] if place < len(names) else self._field).focus()
            return
        known = [shown_name(task.name) for task in self._others]
        wanted = listed(line.value, known)
        # The beginning of a name, by which the list was filtered, gives way to the whole name.
        if wanted and wanted[-1] not in known:
            wanted.pop()
        wanted = [name for name in wanted if name != choice.value] + [choice.value] * (
            choice.value not in wanted
        )
        line.value = ", ".join(wanted)
        line.cursor_position = len(line.value)
        self._show_choices()

    def action_below(self) -> None:
        """Into the list of choices, where there is one; else to the next field."""
        if self.view.display and self.view.rows and self.focused is not self.view:
            self.view.focus()
        else:
            self.focus_next()

    def on_descendant_focus(self) -> None:
        name = ((self.focused.id if self.focused is not None else None) or "").removeprefix("task-")
        if name != self._field and any(field.name == name for field in self.fields):
            self._field, self.view.selected_id = name, None
            self._show_choices()
            self.view.action_first()
        elif self.focused is not self.view:
            self._show_choices()
        self._describe()

    def on_input_submitted(self) -> None:
        self.focus_next()

    # What is said.

    @property
    def _target_now(self) -> Target:
        """The same tasks, as they are now."""
        snapshot = self.snapshot
        tasks = tuple(snapshot.task(task.id) or task for task in self._target.tasks)
        return Target(snapshot, (), tasks, self.watch_app.read_only)

    def _why_not(self) -> str:
        """Why it cannot be sent now; sanitised; empty where it can."""
        session = self.snapshot.session
        if session is None or session.id != self._session_id:
            return "another session is open"
        return self._action.not_now(self._target_now)

    def snapshot_changed(self, snapshot: Snapshot) -> None:
        self._follow()
        super().snapshot_changed(snapshot)

    def tick(self, now: float) -> None:
        self._describe()

    def _describe(self) -> None:
        now = self.watch_app.now()
        said: tuple[Piece, ...] = tuple(self.notice(now))
        if said:
            pass
        elif self._reading:
            said = (("loading the task …", "muted"),)
        elif self._sent or self._sending:
            said = (("◔ ", "slot"), ("sent; waiting for the background process", "text"))
        elif self._refused:
            said = ((f"✗ {self._refused}", "failed"),)
        elif reason := self._why_not():
            said = ((f"✗ not possible now: {reason}", "failed"),)
        elif self.focused is self.view:
            said = (("Enter selects; Esc returns to the field", "muted"),)
        else:
            said = ((next(field.help for field in self.fields if field.name == self._field), "muted"),)
        self.query_one(StatusLine).pieces = said

    def _refuse(self, reason: str) -> None:
        """Say why; the text stays. `reason` is sanitised."""
        self._refused, self._notice_until = reason, 0.0
        self._describe()

    # Sending.

    def action_send(self) -> None:
        if self._reading or self._sending or self._sent or self.prompt.is_asking:
            return
        if reason := self._why_not():
            self._refuse(f"{self._action.label}: {reason}; your text is kept")
            return
        try:
            requests = self._requests()
        except ValueError as fault:
            name, reason = fault.args
            self._part(name).focus()
            self._refuse(sanitize(reason))
            return
        self._refused, self._sending = "", True
        self._describe()
        hosted = self.snapshot.host_pid is not None
        self.run_worker(
            lambda: self._write(requests, hosted),
            thread=True,
            group="commands",
            exit_on_error=False,
            name=self._action.id,
        )

    def _write(self, requests: list[Request], hosted: bool) -> None:
        """In a worker thread: one command after the other, then a host where one is needed."""
        control, written, problem = self.watch_app.control, [], ""
        try:
            for request in requests:
                number = control.submit(
                    self._session_id,
                    request.kind,
                    agent_id=None,
                    task_id=request.task_id,
                    payload=request.payload,
                )
                written.append(Sent(number, request.about, self.watch_app.now()))
                if self._action.once and not hosted:
                    control.start_host(self._session_id, resume=False, once=number)
        except Exception as error:
            # A worker must never end the dashboard; what went wrong is said in the form.
            problem = str(error)
        self.app.call_from_thread(self._written, tuple(written), problem)

    def _written(self, written: tuple[Sent, ...], problem: str) -> None:
        self._sending, self._sent = False, written
        if not self.is_usable:
            return
        if problem:
            self._sent = ()
            self._refuse(self.trouble(problem))
            return
        if self.snapshot.host_pid is None and not self._action.once:
            self._close()  # it applies on resume; nothing answers before
            return
        self._follow()
        self._describe()

    def _follow(self) -> None:
        """Close when the host has applied the commands; of one that it refused, say why."""
        if not self._sent:
            return
        ours = {each.command_id for each in self._sent}
        answers = [each for each in self.snapshot.commands if each.id in ours and each.status != "queued"]
        refused = next((each for each in answers if each.status != "applied"), None)
        if refused is not None:
            self._sent = ()
            self._refuse(f"{refused.status}: {clip(sanitize(refused.result or 'no reason given'), 300)}")
        elif len(answers) == len(ours):
            self._close()

    def _close(self) -> None:
        if self.app.screen is self:
            self.app.pop_screen()
        self._tell_closed(self._sent)

    # Leaving.

    def action_back(self) -> None:
        if self.focused is self.view:
            self._part(self._field).focus()
        elif self._is_changed and not self._sent:
            self.confirm(["Close the form? Your input will be lost."], self._close)
        else:
            self._close()

    def action_leave(self) -> None:
        if self._is_changed and not self._sent:
            self.confirm(
                ["Quit the dashboard? Your input will be lost."], lambda: self.watch_app.leave("leave")
            )
        else:
            self.watch_app.leave("leave")

    def label_of(self, action: Action) -> str:
        return self._action.label.partition(" ")[0] if action.id == "form.send" else super().label_of(action)

    def legend(self) -> list[Group]:
        return [(self._action.label, [(field.label, field.help) for field in self.fields])]
