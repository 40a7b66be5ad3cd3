"""Screens that act on a run: from a key to a command row: why not, what text, what it would do, `y`, written, and
what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from watchkeeper.records.errors import WatchkeeperError
from watchkeeper.records.text import question_words, reveal
from watchkeeper.records.tool_inputs import FILE_CHANGES
from watchkeeper.store import budgets, database
from watchkeeper.store.budgets import BudgetUse
from watchkeeper.store.commands import Grant, load_grants, question_from_text
from watchkeeper.store.driver import Connection, Queries
from watchkeeper.store.snapshot import ApprovalFacts
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import BY_ID, Action
from watchkeeper_tui.control import MOST_SENT, PromptPreview, Sent
from watchkeeper_tui.requests import ESTIMATE, Request, Target
from watchkeeper_tui.sanitize import clip, sanitize
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.snapshot import SessionState, Snapshot
from watchkeeper_tui.widgets.rows import Piece

if TYPE_CHECKING:
    from watchkeeper_tui.screens.approval import ApprovalScreen


NEXT_QUESTION_SECONDS = 5.0
"""An agent asks its next question when the call before has run. It opens by itself within this time after an answer."""


class ActingScreen(WatchScreen):
    """A screen that can act on its `target`."""

    sent: tuple[Sent, ...] = ()
    """The newest first."""
    _groups = 0
    _awaits: tuple[frozenset[str], float] | None = None
    """The questions that were just answered, and until when one that comes after them opens by itself."""
    _computed_preview: tuple[Request, PromptPreview | None] | None = None
    """The command that is asked about, and the prompt that it would lead to, once that is known."""
    _opens_prompt = False
    """That prompt is to be shown as soon as it is known."""

    @property
    def target(self) -> Target:
        """Who is meant now."""
        raise NotImplementedError

    def why_not(self, action: Action) -> str:
        return action.not_now(self.target)

    def action_act(self, name: str, text: str = "") -> None:
        self.act(name, text)

    def act(self, name: str, text: str = "") -> None:
        """Begin an action: refuse it with the reason, ask for its text, preview it, or do it."""
        action, target = BY_ID[name], self.target
        reason = self.why_not(action)
        if reason:
            self.say(f"{action.label}: {reason}", "muted")
        elif action.has_form:
            self._open_form(name, target)
        elif name == "answer" or (name == "approve" and not self._is_shown_whole(target)):
            self._open_question(target.approvals[0])
        elif action.asks and not text and not action.text_optional:
            who = f" {target.names}" if name == "steer" else ""
            question: list[list[Piece]] = [[(f"{action.asks}{who}", "strong")]]
            self.prompt.ask_line(
                question,
                lambda typed: self._typed(action, target, typed),
                kind=name,
                keeps_lines=name == "steer",
            )
        elif name == "budget":
            self._typed_budget(action, target, text)
        else:
            self._preview(action, target, text)

    def _typed(self, action: Action, target: Target, text: str) -> None:
        if text.strip() and action.id == "budget":
            self._typed_budget(action, target, text)
        elif text.strip():
            self._preview(action, target, text)
        else:
            self.say("no input; nothing done", "muted")

    def _typed_budget(self, action: Action, target: Target, text: str) -> None:
        """Refuse a limit that is not more than what is used as soon as it is entered; `+2` becomes an
        amount."""
        kind, _, typed = text.strip().partition(" ")
        session = target.snapshot.session
        if session is None or kind not in budgets.UNITS or typed.strip() in ("", "none", "off"):
            self._preview(action, target, text)
            return
        try:
            with self._reads() as reads:
                amount = budgets.amount_of(reads, session.id, None, kind, typed)
        except (ValueError, WatchkeeperError) as refused:
            self.say(self.trouble(str(refused)), "failed", seconds=12)
            return
        self._preview(action, target, f"{kind} {amount:.12g}")

    @contextmanager
    def _reads(self) -> Iterator[Queries]:
        connection = database.open_readonly(self.watch_app.database_path)
        try:
            yield Queries(connection)
        finally:
            connection.close()

    def _ask_budgets(
        self, session_id: str, uses: list[BudgetUse], given: list[Request], refused: str = ""
    ) -> None:
        """A resume would pause again at once: say what is used, and ask for a new limit of each reached
        budget."""
        if not self.is_usable:
            return
        self.sent = tuple(each for each in self.sent if each.command_id is not None or each.said)
        if not uses:
            self.run_worker(
                lambda: self._raise_and_start(session_id, given),
                thread=True,
                group="commands",
                exit_on_error=False,
                name="resume",
            )
            return
        use = uses[0]
        example = f"+{budgets.plain_amount(use.shortfall, use.budget.kind)}"
        question: list[list[Piece]] = [
            [("The run was not resumed: a budget is used up.", "strong")],
            [(clip(sanitize(use.describe()), 300), "waiting")],
            [(f"New limit: {example}, or an amount", "text"), ("   empty = stay paused", "muted")],
        ]
        if refused:
            question[0] = [(clip(sanitize(refused), 300), "failed")]

        def typed(text: str) -> None:
            if not text.strip():
                self.say("the run stays paused: its budget is used up", "muted")
                return
            try:
                with self._reads() as reads:
                    amount = budgets.raised_amount(reads, session_id, use, text)
            except (ValueError, WatchkeeperError) as refused:
                self._ask_budgets(session_id, uses, given, str(refused))
                return
            kind = use.budget.kind
            about = f"budget {kind} {budgets.plain_amount(amount, kind)}"
            request = Request("set_budget", None, use.budget.task_id, {"kind": kind, "amount": amount}, about)
            self._ask_budgets(session_id, uses[1:], [*given, request])

        self.prompt.ask_line(question, typed, kind="budget")

    def _raise_and_start(self, session_id: str, requests: list[Request]) -> None:
        """In a worker thread: the new limits first, which the host applies before anything runs, then the
        host."""
        control, written = self.watch_app.control, []
        try:
            for request in requests:
                command_id = control.submit(
                    session_id, request.kind, agent_id=None, task_id=request.task_id, payload=request.payload
                )
                written.append(Sent(command_id, request.about, self.watch_app.now()))
            written.append(self._start_host(session_id, "resume the run"))
        except Exception as error:
            # A worker must never end the dashboard; what went wrong is said where the command would have
            # been.
            self.app.call_from_thread(self._failed, f"resume the run: {error}")
        self.app.call_from_thread(self._written, written)

    def _start_host(self, session_id: str, about: str) -> Sent:
        """In a worker thread: start a host, and wait until it runs the session."""
        pid = self.watch_app.control.start_host(session_id, resume=True, once=None)
        said = f"background process started (pid {pid})" if pid else "already running in another process"
        return Sent(None, about, self.watch_app.now(), said)

    def _preview(self, action: Action, target: Target, text: str, *, again: bool = False) -> None:
        """Say what would be done, and ask. `again`: the question is open behind the prompt that it leads to."""
        lines = action.preview(target, text) if action.preview is not None else []
        if not lines:
            self.perform(action, target, text)
            return
        try:
            requests = action.requests(target, text)
        except ValueError:
            self.say("; ".join(lines), "failed")
            return
        if not requests and not target.agents:
            self.say(f"{action.label}: {lines[0]}", "muted")
            return
        more = []
        if action.id == "compact":
            more.append(("i", "with instructions", lambda: self._instructions(action, target)))
        if action.id in ("rerun", "rerun_fresh"):
            fresh = action.id == "rerun_fresh"
            more.append(
                ("m", "with a message", lambda: self._open_form("rerun_message", target, fresh=fresh))
            )
        if action.id == "plan_drop":
            more.append(("m", "with a reason", lambda: self._open_form("plan_drop", target)))
        if len(requests) == 1 and requests[0].kind in ("edit", "compact"):
            if not again:
                self._computed_preview, self._opens_prompt = (requests[0], None), False
                self.run_worker(
                    self._compute_preview(requests[0], lines),
                    exit_on_error=False,
                    group="preview",
                    exclusive=True,
                )
            lines = self._with_preview(lines)
            more.append(("v", "view the prompt", lambda: self._view_prompt(action, target, text)))

        self.confirm(lines, lambda: self.perform(action, target, text), more=more, free=action.free)

    def _with_preview(self, lines: Sequence[str]) -> list[str]:
        """The lines, with what was computed; it takes the place of an estimate."""
        shown = self._computed_preview[1] if self._computed_preview is not None else None
        if shown is None:
            return [*lines, "computing the prompt …"]
        kept = [line for line in lines if shown.problem or not line.startswith(ESTIMATE)]
        return [*kept, *(sanitize(line) for line in shown.lines())]

    async def _compute_preview(self, request: Request, lines: list[str]) -> None:
        """Compute the prompt that a command would lead to, and say it in the question that is open."""
        session = self.watch_app.snapshot.session
        if session is None:
            return
        try:
            shown = await self.watch_app.control.preview(session.id, request)
        except Exception as error:
            # A worker must never end the dashboard; what went wrong is shown in place of the numbers.
            shown = PromptPreview(problem=self.trouble(error))
        if not self.is_usable or self._computed_preview is None or self._computed_preview[0] != request:
            return
        self._computed_preview = (request, shown) if shown is not None else None
        if self.prompt.is_asking and lines[0] in self.prompt.text:
            shown_lines = self._with_preview(lines) if shown is not None else lines
            self.prompt.reword(
                [[(line, "strong" if index == 0 else "text")] for index, line in enumerate(shown_lines)]
            )
            if self._opens_prompt:
                self._open_prompt()

    def _view_prompt(self, action: Action, target: Target, text: str) -> None:
        """Show the prompt that a command would lead to; the question is asked again behind it."""
        self._opens_prompt = True
        self._preview(action, target, text, again=True)
        self._open_prompt()

    def _open_prompt(self) -> None:
        from watchkeeper_tui.screens.dialogs import PromptScreen

        request, shown = self._computed_preview or (None, None)
        if request is not None and shown is not None and shown.messages:
            self._opens_prompt = False
            self.app.push_screen(PromptScreen(request.about, shown))

    def _open_form(self, name: str, target: Target, *, fresh: bool = False) -> None:
        """Ask in a form for what is to be done with the plan."""
        from watchkeeper_tui.screens.task_form import TaskFormScreen

        def closed(sent: tuple[Sent, ...]) -> None:
            self._groups += bool(sent)
            group = self._groups
            self.sent = (*(replace(each, group=group) for each in sent), *self.sent)[:MOST_SENT]
            self.tick(self.watch_app.now())

        self.app.push_screen(TaskFormScreen(name, target, closed, fresh=fresh))

    def _instructions(self, action: Action, target: Target) -> None:
        question: list[list[Piece]] = [
            [(f"Compact {target.names}: what should the summary keep or drop?", "strong")]
        ]
        self.prompt.ask_line(
            question, lambda text: self._preview(action, target, text), kind="compact", keeps_lines=True
        )

    def _open_question(self, asked: ApprovalFacts, answered: frozenset[str] = frozenset()) -> ApprovalScreen:
        """Show a question whole. `answered`: the ids of those that were answered just before."""
        from watchkeeper_tui.screens.approval import ApprovalScreen

        snapshot, hosted = self.watch_app.snapshot, self.target.hosted
        session, agent = snapshot.session, snapshot.agent(asked.agent_id)
        task = snapshot.task(asked.task_id)
        workspace = session.workspace if session is not None else ""
        preliminary = question_from_text(
            asked.id, asked.tool, asked.question, agent=agent.name if agent is not None else asked.agent_id,
            role=agent.role if agent is not None and agent.task_id is not None else "", task=task.label if task is not None else "",
            title=task.title if task is not None else "",
            workspace=workspace, folder=asked.folder, cause=asked.cause, note=asked.note,
        )  # fmt: skip
        screen = ApprovalScreen(
            preliminary,
            asked.id,
            lambda request: self._submit(BY_ID[request.kind], [request], hosted=hosted),
            self._open_next_question,
            answered,
        )
        self.app.push_screen(screen)
        return screen

    def _open_next_question(self, answered: frozenset[str]) -> ApprovalScreen | None:
        """Show the first question that waits and is not one of those with these ids, if there is one."""
        waiting = (each for each in self.watch_app.snapshot.approvals if each.id not in answered)
        following = next(waiting, None)
        self._awaits = None
        if following is None:
            self._awaits = answered, self.watch_app.now() + NEXT_QUESTION_SECONDS
            return None
        return self._open_question(following, answered)

    def _newer_snapshot(self, snapshot: Snapshot) -> None:
        super()._newer_snapshot(snapshot)
        if self._awaits is None or not self.is_usable:
            return
        answered, until = self._awaits
        if self.watch_app.now() > until or self.prompt.is_asking:
            self._awaits = None
        elif self.app.screen is self and any(each.id not in answered for each in snapshot.approvals):
            self._open_next_question(answered)

    def show_grants(self) -> None:
        """List what a person allowed in this run, and ask which of it to revoke."""
        session = self.watch_app.snapshot.session
        if session is None:
            return
        session_id = session.id

        def question(connection: Connection) -> object:
            return load_grants(connection, session_id)

        self.ask_reader(question, self._grants_read)

    def _grants_read(self, result: object) -> None:
        if not self.is_usable or not isinstance(result, list):
            return
        live = [grant for grant in result if isinstance(grant, Grant) and grant.is_live]
        if not live:
            self.say("no standing approvals", "muted")
            return
        lines: list[list[Piece]] = [[("Standing approvals of this run", "strong")]]
        lines += [
            [(f"{grant.id:>4}  ", "key"), (clip(sanitize(reveal(grant.subject)), 200), "text"),
             (f"  by {clip(sanitize(grant.granted_by), 40)}", "muted")]
            for grant in live[-12:]
        ]  # fmt: skip
        if len(live) > 12:
            lines.append([(f"      and {len(live) - 12} older; `wk approve --grants` lists all", "muted")])
        lines.append([("Number of the approval to revoke", "strong")])
        self.prompt.ask_line(
            lines,
            lambda text: self.act("revoke", text) if text.strip() else None,
            kind="grants",
            enter="Revoke",
        )

    def _is_shown_whole(self, target: Target) -> bool:
        """Whether the status line shows all of the question, so that it may be approved without being
        opened."""
        asked = target.approvals[0]
        words = question_words(asked.tool, asked.question)
        return (
            asked.tool not in FILE_CHANGES
            and not asked.note
            and "\n" not in words
            and "\\" not in words
            and reveal(words) == words
            and len(words) + len(asked.tool) + 57 <= self.size.width
        )

    def perform(self, action: Action, target: Target, text: str) -> None:
        """Write the action's commands, beside the event loop."""
        session = target.snapshot.session
        if session is None:
            return
        requests = action.requests(target, text)
        if not requests:
            self.say("nothing to do", "muted")
            return
        self._submit(action, requests, hosted=target.hosted)
        if action.id in ("approve", "deny"):
            self._open_next_question(frozenset(each.payload["approval"] for each in requests))

    def _submit(self, action: Action, requests: list[Request], *, hosted: bool) -> None:
        """Write these commands of the open session, beside the event loop."""
        session = self.watch_app.snapshot.session
        if session is None:
            return
        now = self.watch_app.now()
        self._groups += 1
        self.sent = (*(Sent(None, request.about, now) for request in reversed(requests)), *self.sent)[
            :MOST_SENT
        ]
        self.say(
            f"… {requests[0].about}" + (f" and {len(requests) - 1} more" if len(requests) > 1 else ""),
            "muted",
            seconds=1,
        )
        group = self._groups
        self.run_worker(
            lambda: self._write(session.id, action, requests, hosted, group),
            thread=True,
            group="commands",
            exit_on_error=False,
            name=action.id,
        )

    def _write(
        self, session_id: str, action: Action, requests: list[Request], hosted: bool, group: int
    ) -> None:
        """In a worker thread: one command after the other, then a host where one is needed."""
        control = self.watch_app.control
        written: list[Sent] = []
        try:
            if action.starts_host and not hosted:
                with self._reads() as reads:
                    blocking = budgets.blocking(reads, session_id)
                if blocking:
                    self.app.call_from_thread(self._ask_budgets, session_id, blocking, [])
                    return
                written.append(self._start_host(session_id, requests[0].about))
            else:
                for request in requests:
                    command_id = control.submit(
                        session_id,
                        request.kind,
                        agent_id=request.agent_id,
                        task_id=request.task_id,
                        payload=request.payload,
                    )
                    compacts = request.agent_id if request.kind == "compact" else None
                    once = action.once and not hosted
                    written.append(
                        Sent(
                            command_id,
                            request.about,
                            self.watch_app.now(),
                            group=group,
                            compacts=compacts,
                            once=once,
                        )
                    )
                    if once:
                        control.start_host(session_id, resume=False, once=command_id)
        except Exception as error:
            # A worker must never end the dashboard; what went wrong is said where the command would have
            # been.
            self.app.call_from_thread(self._failed, f"{requests[0].about}: {error}")
        self.app.call_from_thread(self._written, written)

    def _written(self, written: list[Sent]) -> None:
        if not self.is_usable:
            return
        waiting = [each for each in self.sent if each.command_id is not None or each.said]
        self.sent = (*reversed(written), *waiting)[:MOST_SENT]
        self._notice_until = 0.0 if written else self._notice_until
        self.tick(self.watch_app.now())

    def _failed(self, text: str) -> None:
        if not self.is_usable:
            return
        self.sent = tuple(each for each in self.sent if each.command_id is not None or each.said)
        self.say(self.trouble(text), "failed", seconds=12)

    def action_leave(self) -> None:
        snapshot = self.watch_app.snapshot
        if snapshot.state is not SessionState.LIVE or self.prompt.is_asking or self.target.not_ours:
            self.watch_app.leave("leave")
            return
        running = sum(1 for agent in snapshot.agents if agent.status == "working")
        self.prompt.ask_key(
            [
                [
                    ("The run continues without this dashboard.", "strong"),
                    (f"  {formatting.plural(running, 'agent')} working; `wk watch` reattaches.", "muted"),
                ],
                [
                    ("l", "key"),
                    (" ", "text"),
                    ("↵", "key"),
                    (" detach   ", "text"),
                    ("p", "key"),
                    (" pause the run and quit   ", "text"),
                    ("esc", "key"),
                    (" cancel", "text"),
                ],
            ],
            {
                **dict.fromkeys(("l", "y", "enter", "↵"), lambda: self.watch_app.leave("leave")),
                "p": lambda: self.watch_app.leave("pause"),
            },
        )
