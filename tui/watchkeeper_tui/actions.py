"""The table of what a person can do in the dashboard: one row each, and no other list of it.

Bindings, the footer (Textual's own), the help, the palette, the commands of `:` and the menu of the mouse are made from it. To add an
action, add one row and one function: a method `action_NAME` of the screen, or `requests`, which makes the commands that
the row writes. A row has one key on all screens; `tests/tui/test_keymap.py` proves that no two rows that are active
together have the same one.

Lower-case keys are safe and act immediately. Capitals cost money or data, or go far: those that cost first show what they
would do, and ask for `y` or `n`. An action never changes an agent: it writes commands, which the host applies or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from textual.binding import Binding, BindingType
from textual.keys import KEY_NAME_REPLACEMENTS, Keys, _character_to_key, key_to_character

from watchkeeper_tui import requests as do
from watchkeeper_tui.requests import Request, Target
from watchkeeper_tui.snapshot import SessionState

EVERYWHERE = "everywhere"
ACT, OPEN, LOOK, FIND, KEEP, MOVE = "Act", "Open", "Look around", "Find", "Keep", "Move"
"""Parts of the help, in this order. What moves is not in the palette."""


class On(NamedTuple):
    """What is different on one screen; empty: as everywhere."""

    label: str = ""
    help: str = ""
    call: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that a person can do."""

    id: str
    """Its name, also in `[keys]` of the settings."""
    keys: str
    """With commas; the footer shows the first. Empty: only `:` and the palette lead to it."""
    label: str
    help: str
    """One line. Empty: it is the counterpart of the row above, and shares its line and its place in the footer."""
    where: str = "live"
    """The screens and panes on which it is possible, with spaces, beside those of `on`."""
    group: str = LOOK
    footer: str = ""
    """The screens whose footer shows it; `over`: the live screen of a run that is not live."""
    call: str = ""
    """The screen's or pane's action; empty: that of the last part of the id."""
    on: Mapping[str, On] = field(default_factory=dict)
    words: str = ""
    """What is typed after `:`; empty: nothing."""
    argument: str = ""
    """What may follow the words; in brackets if it may be left out."""
    first: bool = False
    """Its keys go before those that move in a list."""
    former: str = ""
    """Ids that it had in the settings, with spaces."""

    requests: Callable[[Target, str], list[Request]] = do.no_requests
    """The commands that it writes, for a target and the text that was typed; without them, the screen does it."""
    why_not: Callable[[Target], str] = lambda target: ""
    """Why it is not available, in a few words; empty if it is."""
    preview: Callable[[Target, str], list[str]] | None = None
    """Lines that say what it would do. If there are any, the user must confirm with `y`."""
    asks: str = ""
    """The text that it asks for first; empty if none."""
    text_optional: bool = False
    starts_host: bool = False
    """Ends a pause. If no host runs, one is started and no command is written."""
    once: bool = False
    """If no host runs, one is started for this command only."""
    free: bool = False
    """It spends and loses nothing: Enter confirms it as `y` does."""
    has_form: bool = False
    """A form asks what to do (`screens.task_form`)."""

    @property
    def acts(self) -> bool:
        """It changes a run, by commands or by a form that makes them."""
        return self.has_form or self.requests is not do.no_requests

    @property
    def scopes(self) -> frozenset[str]:
        """Where it is possible."""
        return frozenset((*self.where.split(), *self.on))

    @property
    def needs_argument(self) -> bool:
        """Its command does nothing without words."""
        return bool(self.argument) and not self.argument.startswith("[")

    def said(self, scopes: Iterable[str]) -> On:
        """Its label, help and call where these are active, the innermost first."""
        special = next((self.on[scope] for scope in scopes if scope in self.on), On())
        own = f"act('{self.id}')" if self.acts else self.id.rpartition(".")[2]
        call = special.call or self.call or own
        return On(special.label or self.label, special.help or self.help, call)

    def not_now(self, target: Target) -> str:
        """Why it cannot be done to `target`; what writes commands is for Watchkeeper's own runs only."""
        return (target.not_ours if self.acts else "") or self.why_not(target)


def _select_task(target: Target) -> str:
    return "" if target.tasks else "select a task first"


_PAGE_WORDS = ("memory", "context", "usage", "cost")
_PANES = "live replay"
_PAGES = "sessions message compare compaction timeline usage chart artifacts fleet workers fork approval question start task replay"
_MESSAGES = "agent replay.agent message"
_FOUND_IN = ("message", "compaction", "artifacts", "timeline", "usage", "fleet", "workers", "compare", "help")
"""Where `/` finds text, as `SearchScreen` does."""
_COPIES = "live message compare compaction timeline usage artifacts fleet workers"

TABLE: tuple[Action, ...] = (
    # What is done to a run.
    Action("pause", "p", "Pause", "pause the selected agent at its next step", group=ACT, footer="live", words="pause",
           requests=do.each_agent("pause", able=do.can_pause), why_not=do.why_not_pause),
    Action("resume", "r", "Resume", "resume the selected agent, or the run if nothing is running", group=ACT, footer="live over",
           words="resume", requests=do.resume, why_not=do.why_not_resume, starts_host=True),
    Action("steer", "m", "Message", "send the selected agent a message, delivered before its next turn", group=ACT, footer="live",
           words="steer", argument="TEXT", requests=do.each_agent("steer", lambda text: {"text": text}, able=do.can_listen, verb="message to"),
           why_not=do.why_not_steer, asks="Message to"),
    Action("answer", "a", "Answer", "answer the pending question: approve or deny", group=ACT, footer="live over fleet",
           requests=do.decide("approve"), why_not=do.why_not_answer, former="fleet.answer",
           on={"fleet": On("", "answer a question from another terminal: allow once, deny or choose", "answer")}),
    Action("rerun", "R", "Re-run", "re-run the task and keep its memory", group=ACT, footer="live over", words="rerun",
           requests=do.rerun(False), why_not=_select_task, preview=do.rerun_lines(False), once=True),
    Action("rerun_fresh", "Z", "Re-run fresh", "re-run the task with an empty memory", group=ACT, words="rerun fresh",
           requests=do.rerun(True), why_not=_select_task, preview=do.rerun_lines(True), once=True),
    Action("rerun_message", "", "Re-run with a message", "re-run the task with a message to its agent and the planner",
           group=ACT, words="rerun message", why_not=_select_task, once=True, has_form=True),
    Action("compact", "C", "Compact", "compact the agent's context now", group=ACT, footer="live over compaction", words="compact",
           argument="[instructions]", requests=do.each_agent("compact", lambda text: {"instructions": text.strip()} if text.strip() else {},
                                                             able=do.has_context),
           why_not=do.why_not_compact, preview=do.compact_lines, once=True, former="compaction.again",
           on={"compaction": On("Compact again", "compact this agent's context again")}),
    Action("compact_with", "", "Compact with instructions", "compact with instructions on what to keep or drop", group=ACT,
           call="compact_with_instructions"),
    Action("undo", "u", "Undo", "undo the last compaction and restore the previous context", group=ACT, footer="live compaction", words="undo",
           requests=do.each_agent("undo", able=do.was_compacted), why_not=do.why_not_undo, once=True, former="compaction.undo",
           on={"compaction": On("", "undo this compaction", "undo")}),
    Action("redo", "U", "Redo", "reapply the last undone compaction", "live compaction", group=ACT, words="redo",
           requests=do.each_agent("redo", able=do.was_compacted), why_not=do.why_not_undo, once=True, free=True, former="compaction.redo",
           preview=lambda target, text: [f"Redo {target.names}: reapply the last undone compaction. Refused if none was undone."]),
    Action("cancel", "X", "Cancel", "cancel the task (on the planner: the run); completed work is kept", group=ACT, footer="live",
           words="cancel", requests=do.cancel, why_not=do.why_not_cancel, preview=do.cancel_lines),
    Action("pause_run", "P", "Pause run", "pause every agent in the run at its next step", group=ACT, words="pause run",
           requests=do.whole_run("pause"), free=True,
           why_not=lambda target: "" if target.snapshot.state is SessionState.LIVE else do.why_still(target) or "the run is not active",
           preview=lambda target, text: ["Pause the run: every agent stops at its next step. r resumes the run."]),
    Action("pause_now", "H", "Pause now", "pause the agent immediately, aborting the current call", group=ACT, words="pause now",
           requests=do.each_agent("pause", lambda text: {"now": True}, able=do.can_pause), why_not=do.why_not_pause,
           preview=lambda target, text: [f"Pause {target.names} immediately. This aborts the current call; its cost still counts."]),
    Action("budget", "B", "Budget", "set or remove the run's budget: usd, tokens, turns or seconds", group=ACT, words="budget",
           argument="KIND AMOUNT", requests=do.set_budget, why_not=do.why_not_budget, preview=do.budget_lines,
           asks="Budget (usd 5, tokens 2000000, turns 200, seconds 3600)"),
    Action("cancel_run", "", "Cancel run", "cancel the run; completed work is kept", group=ACT, words="cancel run",
           requests=do.whole_run("cancel"), why_not=do.why_not_cancel_run, once=True,
           preview=lambda target, text: ["Cancel the run: all unfinished tasks are cancelled. Completed work is kept."]),
    Action("approve", "", "Approve", "approve the pending question", group=ACT, words="approve", requests=do.decide("approve"),
           why_not=do.why_not_answer),
    Action("deny", "", "Deny", "deny the pending question, with an optional reason", group=ACT, words="deny", argument="[reason]",
           requests=do.decide("deny"), why_not=do.why_not_answer, asks="Reason (sent to the agent)", text_optional=True),
    Action("grants", "", "Approvals", "list and revoke standing approvals for this run", group=ACT, words="grants", call="grants"),
    Action("revoke", "", "Revoke an approval", "revoke a standing approval for a tool or pattern", group=ACT, requests=do.revoke,
           asks="Number of the standing approval (:grants lists them)", once=True),
    Action("drop", "", "Drop messages", "replace messages of the selected agent with short references", group=ACT, words="drop",
           argument="NUMBERS", requests=do.drop_messages, why_not=do.why_not_edit, once=True,
           preview=do.edit_lines(do.drop_messages, "Drop these messages from the context of {name}."),
           asks="Numbers of the messages, such as 12,14-16"),
    Action("rewrite", "", "Rewrite a summary", "replace the text of a summary or observation of the selected agent", group=ACT, words="rewrite",
           argument="NUMBER TEXT", requests=do.rewrite, why_not=do.why_not_undo, once=True,
           preview=do.edit_lines(do.rewrite, "Replace this text in the context of {name}."),
           asks="Number of the summary, then the new text"),
    Action("pin", "*", "Pin", "pin text or a fact to every prompt in the run, or keep messages of the selected agent verbatim",
           group=ACT, footer="compaction", words="pin", argument="TEXT, #FACT or NUMBERS", requests=do.pin, once=True,
           preview=do.pin_lines(do.pin, "Pin these messages of {name} and those paired with them. Every compaction keeps them verbatim."),
           asks="Pin to every prompt: text or #FACT. Keep verbatim: messages, such as 12,14-16", former="agent.pin compaction.pin",
           on={"agent": On("", "pin or unpin the selected fact (in every prompt) or message (kept verbatim)", "pin"),
               "compaction": On("", "pin a line of your own text to every prompt", "pin")}),
    Action("unpin", "", "Unpin", "unpin a fact, or allow messages to be compacted again", group=ACT, words="unpin",
           argument="#FACT or NUMBERS", requests=do.unpin, once=True, asks="#FACT, or message numbers such as 12,14-16",
           preview=do.pin_lines(do.unpin, "Unpin these messages of {name} and those paired with them. Compactions may replace them.")),
    Action("memory_sync", "", "Sync memory", "save the memory of every active agent now", group=ACT, words="memory sync",
           requests=do.whole_run("memory_sync"), once=True),
    Action("load", "", "Resume a session", "resume this or another session from its last saved step", EVERYWHERE, group=ACT,
           words="autosave_load", argument="[SESSION]", call="load"),
    Action("dropped", "c", "Dropped", "show what its latest compaction drops", "fleet", group=ACT, footer="fleet",
           call="dropped", former="fleet.dropped"),
    Action("instructions", "i", "Instructions", "set compaction instructions for the agent", "fleet", group=ACT, footer="fleet",
           call="instructions", former="fleet.instructions"),
    # Answers to a question.
    Action("approval.approve", "y", "Approve once", "approve this call once; if it is long, scroll to the end first", "approval", group=ACT,
           footer="approval question",
           on={"question": On("Allow once",
                "allow this call once, or choose answers; if it is long, scroll to the end first")}),
    Action("approval.always", "a", "Always", "approve, and allow the tool or a command pattern for the rest of the run", "approval", group=ACT,
           footer="approval"),
    Action("approval.edit", "e", "Edit", "edit the input; ctrl+s reviews the edit, y runs it", "approval", group=ACT, footer="approval"),
    Action("approval.ours", "o", "Keep ours", "in a merge conflict: keep your branch's side", "approval", group=ACT,
           footer="approval", call="keep('ours')"),
    Action("approval.theirs", "t", "Keep theirs", "in a merge conflict: keep the task's side", "approval", group=ACT,
           footer="approval", call="keep('theirs')"),
    Action("approval.deny", "n", "Deny", "deny", "approval question", group=ACT, footer="approval question"),
    Action("approval.reason", "r", "Deny with reason", "deny, and send the agent a reason", "approval question", group=ACT,
           footer="approval question", call="deny_with_reason"),
    Action("approval.edited", "ctrl+s", "Review the edit", "review the edit before it runs", "approval", group=ACT, first=True),
    # Sessions of the list.
    Action("sessions.undo", "u", "Undo", "undo the last deletion, or restore a deleted session", "sessions", group=KEEP,
           footer="sessions"),
    # Where the replay is.
    Action("replay.play", "space", "Play", "play or pause; at the end, play from the beginning", "replay", footer="replay"),
    Action("replay.read_on", "r", "Load newer", "load newer events", "replay", footer="replay"),
    Action("replay.back", "left", "Step", "step back or forward by one event (imported sessions: one message or tool call)", "replay",
           footer="replay", call="step(-1)", first=True),
    Action("replay.on", "right", "", "", "replay", footer="replay", call="step(1)", first=True),
    Action("replay.turn_back", "[,shift+left", "Turn", "one turn back or forward", "replay", footer="replay", call="turn(-1)"),
    Action("replay.turn_on", "],shift+right", "", "", "replay", footer="replay", call="turn(1)"),
    Action("replay.slower", "-,<", "Speed", "slower or faster: 1× to 64×", "replay", footer="replay", call="speed(-1)"),
    Action("replay.faster", "+,=,>", "", "", "replay", footer="replay", call="speed(1)"),
    Action("replay.idle", "i", "Skip idle", "skip or play idle time", "replay", footer="replay"),
    Action("replay.first", "home", "Beginning", "go to the beginning or end; click or drag on the line", "replay", group=MOVE,
           call="edge(-1)", first=True),
    Action("replay.last", "end", "End", "", "replay", group=MOVE, call="edge(1)", first=True),
    *(Action(f"replay.tenth{tenth}", str(tenth), f"{tenth}0 %", "" if tenth else "jump to 0–90% of the session", "replay", group=MOVE,
             call=f"tenth({tenth})") for tenth in range(10)),
    Action("replay.agent", "a", "Agent", "show the agent of this step", "replay", footer="replay"),
    # What is where: one pane's own.
    Action("next", "n", "Next", "next or previous search match", "agent", footer="replay timeline message artifacts", call="next(1)",
           former="agent.next_match replay.next_match replay.next_mark timeline.next message.next artifacts.next",
           on={**dict.fromkeys(_FOUND_IN, On(call="find_next(1)")),
               "replay": On("", "next or previous mark (✗ failure, ◆ compaction, ✓ task done) or transcript search match"),
               "timeline": On("", "next or previous failure, stopped process, resume or search match", "find_next(1)"),
               "message": On("", "next or previous match, or message cited by the observation", "find_next(1)"),
               "artifacts": On("", "next or previous search match; without a search, artifact", "find_next(1)")}),
    Action("previous", "N", "Previous", "", "agent replay", footer="replay timeline message artifacts",
           call="next(-1)", on=dict.fromkeys(_FOUND_IN, On(call="find_next(-1)")),
           former="agent.previous_match replay.previous_match replay.previous_mark timeline.previous message.previous artifacts.previous"),
    Action("block.next", "}", "Next message", "next or previous message", _MESSAGES, footer="message", call="step_message(1)",
           on={"message": On(call="jump('message')")},
           former="agent.next_message replay.next_message message.next_message"),
    Action("block.previous", "{", "previous", "", _MESSAGES, footer="message", call="step_message(-1)",
           on={"message": On(call="jump('message', -1)")},
           former="agent.previous_message replay.previous_message message.previous_message"),
    Action("error.next", "E", "Next failed call", "the agent's next failed call; if there is none, the run's latest failure",
           "live", call="next_error", former="replay.next_error message.next_error",
           on={"message": On("Failed call", "next failed call", "jump('error')"),
               "replay.agent": On("", "next failed call", "jump('error')")}, footer="message"),
    Action("prompt.next", "W", "Next user message", "next user message", _MESSAGES, call="jump('prompt')",
           former="agent.next_prompt replay.next_prompt message.next_prompt"),
    Action("compaction.next", "c", "Compaction", "go to the compaction in the transcript; enter opens it", _MESSAGES, footer="message",
           call="to_compaction", on={"message": On(call="compaction"), "compactions": On("Newest", "go to the newest compaction", "newest")},
           former="agent.to_compaction replay.to_compaction message.compaction"),
    Action("tab.previous", "comma,h,left", "Previous tab", "previous or next tab of the agent", "agent", group=MOVE, call="tab(-1)",
           former="agent.previous_tab replay.previous_tab"),
    Action("tab.next", "full_stop,l,right", "Next tab", "", "agent", group=MOVE, call="tab(1)", former="agent.next_tab replay.next_tab"),
    Action("replay.tab_previous", "comma,h", "Previous tab", "previous or next tab of the agent", "replay.agent", group=MOVE, call="tab(-1)"),
    Action("replay.tab_next", "full_stop,l", "Next tab", "", "replay.agent", group=MOVE, call="tab(1)"),
    Action("fold", "h,left", "Collapse", "collapse or expand a branch", "plan", group=MOVE, call="screen.fold(True)"),
    Action("unfold", "l,right", "Expand", "", "plan", group=MOVE, call="screen.fold(False)"),
    Action("timeline.left", "left,h", "Earlier", "move the cursor earlier or later", "axis", group=MOVE, footer="timeline", call="seek(-1)"),
    Action("timeline.right", "right,l", "later", "", "axis", group=MOVE, footer="timeline", call="seek(1)"),
    Action("timeline.left10", "[,shift+left", "Ten cells earlier", "move ten cells earlier or later", "axis", group=MOVE, call="seek(-10)"),
    Action("timeline.right10", "],shift+right", "Ten cells later", "", "axis", group=MOVE, call="seek(10)"),
    Action("timeline.in", "+,=", "Zoom in", "zoom in or out (mouse: ctrl+wheel)", "axis", footer="timeline", call="zoom(-1)"),
    Action("timeline.out", "-", "out", "", "axis", footer="timeline", call="zoom(1)"),
    Action("timeline.whole", "0", "All", "fit the complete session, and keep fitting as it grows", "axis", footer="timeline"),
    Action("message.earlier", "[", "Earlier", "earlier or later messages of the agent", "message", footer="message", call="page(-1)"),
    Action("message.later", "]", "later", "", "message", footer="message", call="page(1)"),
    Action("message.session", "o", "Open session", "open the session", "message", group=OPEN, footer="message"),
    Action("compaction.side", "tab,shift+tab", "Other side", "go to the other side", "compaction", footer="compaction", call="other_side"),
    Action("compaction.lost", "!", "Omitted only", "show only messages with omitted details; backspace shows all", "compaction",
           group=FIND, footer="compaction", call="only_lost"),
    Action("compaction.older", "[", "Older", "older or newer compaction of the agent", "compaction", footer="compaction", call="step(1)"),
    Action("compaction.newer", "]", "newer", "", "compaction", footer="compaction", call="step(-1)"),
    Action("compare.only", "!", "Only differences", "show only differences", "compare", footer="compare", call="only_different"),
    Action("compare.swap", "w", "Swap sides", "swap the sides", "compare", footer="compare"),
    Action("artifacts.other", "tab,shift+tab", "List or artifact", "switch between the list and the artifact", "artifacts"),
    Action("artifacts.text", "t", "Raw text", "switch between raw and rendered text", "artifacts", footer="artifacts"),
    Action("artifacts.save", "s", "Save", "save a copy", "artifacts", footer="artifacts"),
    Action("artifacts.pager", "p", "Pager", "open a copy in $PAGER", "artifacts", footer="artifacts"),
    Action("artifacts.editor", "e", "Editor", "open a copy in $EDITOR", "artifacts", footer="artifacts"),
    Action("usage.classes", "c", "Token cost", "show tokens, or cost by token type at list prices; `other` is the rest",
           "usage", footer="usage", call="dollars"),
    *(Action(f"usage.{name}", key, f"{name.title()}s", f"group by {name}", "usage", footer="usage", call=f"group('{key}')")
      for key, name in (("d", "day"), ("w", "week"), ("M", "month"), ("m", "model"), ("p", "project"), ("o", "program"))),
    *(Action(f"chart.{name.partition(' ')[0].lower()}", str(place + 1), name, f"show {name}", "chart", footer="chart", call=f"choose({place})")
      for place, name in enumerate(("context", "tokens per minute", "cost"))),
    Action("chart.next", "tab,right,l", "Next", "next or previous chart", "chart", group=MOVE, footer="chart", call="next(1)"),
    Action("chart.previous", "shift+tab,left,h", "previous", "", "chart", group=MOVE, footer="chart", call="next(-1)"),
    Action("welcome.watch", "w", "Watch", "watch the newest session of the selected program live", "welcome", footer="welcome"),
    Action("welcome.import", "i", "Import", "import all sessions found here", "welcome", footer="welcome"),
    Action("welcome.demo", "d", "Demo", "run the demo: offline, no API key needed", "welcome", footer="welcome"),
    Action("form.send", "ctrl+s", "Send", "submit the form; if it is rejected, correct it and resubmit", "task", footer="task start",
           former="start.begin task.send",
           on={"start": On("Start…", "start the run, after confirmation", "begin")}),
    Action("form.next", "tab", "Next field", "next or previous field", "start task", group=MOVE, footer="task start",
           call="app.focus_next", former="start.next task.next"),
    Action("form.above", "shift+tab,up", "previous field", "", "start task", group=MOVE, call="app.focus_previous",
           former="start.above task.above"),
    Action("form.below", "down", "Choose", "go to the field's list of choices", "start task", group=MOVE, footer="task", call="below",
           former="start.below task.below"),
    Action("task.choose", "space", "Choose", "choose the selected line", "choices", group=MOVE, call="open"),
    # What is opened.
    Action("open", "enter", "Open", "open the selected row (or double-click)", "rows", group=OPEN,
           footer="live over sessions fleet usage compaction message timeline artifacts fork workers", call="open", former="rows.open",
           on={"plan": On("", "open the agent full screen (or double-click)"),
           "fork": On("Fork from here…", "fork from this step, after confirmation"),
               "events": On("", "open the call, message or compaction of the event; esc returns"),
               "agent": On("", "unfold the selected part, or open the compaction"), "compactions": On("", "open the compaction"),
               "compaction": On("Unfold", "unfold a message or observation; on → or !, open the messages"),
               "message": On("Unfold", "fold or unfold"), "artifacts": On("Fold", "fold or unfold an object, array, long text or row"),
               "timeline": On("Replay from here", "replay the session from this point"), "usage": On("Sessions", "list these sessions"),
               "compare": On("Both sides", "show both sides of the line in full"),
               "workers": On("Session", "open the first session of the worker"), "fleet": On("", "open the session"),
               "replay": On("", "go to the selected event or compaction; press again to open it")}),
    Action("attention", "e", "Needs you", "next row that needs you, then sessions in other terminals", footer="fleet",
           former="fleet.attention", on={"fleet": On("", "next session that needs you")}),
    Action("behind", "m", "Message", "open the matching message in its transcript", "", group=OPEN,
           footer="sessions message compaction timeline",
           former="sessions.message message.in_transcript compaction.behind timeline.message",
           on={"sessions": On("", "", "message"), "message": On("In transcript", "open a message behind the observation in its transcript",
           "in_transcript"),
               "compaction": On("Source", "open the message in its transcript, or the messages behind the observation"),
               "timeline": On("", "open the call, message or compaction at the cursor", "message")}),
    Action("agent.report", "i", "Report", "open the agent's report: task, result, artifacts, tools, statistics", group=OPEN,
           footer="live over", words="agent report"),
    Action("replay", "w", "Replay", "replay this session step by step", "live sessions message compaction timeline", group=OPEN,
           footer="over sessions", words="replay",
           former="sessions.replay"),
    Action("timeline", "t", "Timeline", "timeline of all agents", "live replay fleet", group=OPEN, footer="live over fleet",
           words="timeline", former="replay.timeline fleet.timeline", on={"timeline": On("Back", "go back", "back")}),
    Action("artifacts", "v", "Artifacts", "artifacts that the agents saved", group=OPEN, footer="over", words="artifacts"),
    Action("export", "x", "Export", "export this session to one file in the current folder: html, md or json", "live sessions",
           group=KEEP, footer="over sessions", words="export", argument="[FORM]", former="sessions.export"),
    Action("fork", "F", "Fork", "fork a new session from a step of this one", "live sessions replay", group=KEEP,
           footer="over sessions replay", words="fork", former="sessions.fork replay.fork"),
    Action("sessions.continue", "c", "Continue", "continue in a new session, with its plan and facts", "sessions", group=KEEP,
           footer="sessions"),
    Action("sessions.delete", "D", "Delete…", "delete this or all marked sessions", "sessions", group=KEEP, footer="sessions"),
    # What is found, and how it is shown.
    Action("filter", "/", "Filter", "filter the rows; in the transcript, search", "live replay fork", group=FIND,
           footer="live over fork sessions", former="replay.filter fork.filter sessions.search",
           on={"sessions": On("Search", "search as you type, including messages, newest first; enter ranks by match", "search"),
               "plan": On("", "filter the rows by name, state or model"),
               "events": On("", "filter the events by text"),
               "agent": On("", "search the transcript, facts and observations"), "fork": On("", "filter the steps"),
               **dict.fromkeys(_FOUND_IN, On("Find", "find text in the focused list or text; enter goes to the first match", "find"))}),
    Action("filter.drop", "backspace", "Remove last filter", "remove the last filter", "live replay sessions compaction",
           group=FIND,
           call="drop_filter", former="replay.drop_filter sessions.drop_filter compaction.drop_filter"),
    Action("sessions.filter", "t", "Filter", "filter by state, model, tag, folder, date, cost, compaction or deletion", "sessions", group=FIND,
           footer="sessions"),
    Action("freeze", "f", "Freeze", "freeze or unfreeze the view; the run continues", footer="live over", words="freeze"),
    Action("zoom", "z", "Zoom", "zoom the pane in or out", "live replay", footer="live over", former="replay.zoom"),
    Action("sort", "o", "Sort", "sort by plan order, cost, cost per minute, tokens, context or attention", call="next_order",
           footer="sessions", former="plan.order sessions.sort",
           on={"sessions": On("", "sort by updated, created, cost, tokens, agents or name", "sort")}),
    Action("sessions.group", "b", "Group", "group by day or project, with session count and cost", "sessions",
           footer="sessions"),
    Action("mark", "space", "Mark", "mark several rows to act on together", "live", footer="sessions", former="sessions.mark",
           on={"sessions": On("", "mark sessions to act on several, or to compare two")}),
    Action("sessions.compare", "=", "Compare", "compare two marked sessions side by side", "sessions", group=OPEN, footer="sessions"),
    Action("collapse", "-", "Collapse all", "collapse or expand all", call="collapse_all"),
    Action("expand", "=", "Expand all", "", call="expand_all"),
    Action("agent.previous", "[", "Previous agent", "previous or next agent", group=MOVE, call="step_agent(-1)"),
    Action("agent.next", "]", "Next agent", "", group=MOVE, call="step_agent(1)"),
    Action("copy", "y", "Copy", "copy", _COPIES, footer="message compare artifacts sessions",
           former=" ".join(f"{scope}.copy" for scope in (*_COPIES.split()[1:], "sessions")),
           on={"sessions": On("Copy id", "copy the id"), "fleet": On("", "copy the id"), "compare": On("", "copy the line"),
               "usage": On("", "copy the line"), "timeline": On("", "copy the line"), "message": On("", "copy the block"),
               "artifacts": On("", "copy the text"), "agent": On("", "copy the complete block"),
               "workers": On("", "copy the worker's id, machine and process id")}),
    Action("view", "v", "Read-only", "open the session read-only", "sessions fleet", group=OPEN, footer="fleet sessions",
           former="sessions.view fleet.view"),
    Action("sessions.name", "n", "Name…", "name the session", "sessions", group=KEEP, footer="sessions"),
    Action("sessions.tags", "#", "Tags…", "edit the tags of this session or all marked sessions", "sessions", group=KEEP, footer="sessions"),
    Action("sessions", "s", "Sessions", "list all sessions",
           "live fleet welcome message compare compaction timeline usage chart workers", group=OPEN,
           footer="live over fleet", words="sessions",
           argument="[words]",
           former="fleet.sessions welcome.sessions sessions.leave", on={"sessions": On("Back", "return to the open session", "back")}),
    Action("workers", "w", "Workers", "list the workers on all machines", "fleet", group=OPEN, footer="fleet", former="fleet.workers",
           on={"workers": On("Back", "go back", "back")}),
    # The plan, edited.
    Action("plan_add", "A", "Add task", "add a task to the plan: instructions, role, dependencies", group=ACT, footer="live",
           words="plan add", why_not=do.why_not_plan, has_form=True),
    Action("plan_revise", "V", "Revise", "change a task that is not running: title, instructions, role, dependencies, outputs", group=ACT,
           footer="live", words="plan revise", why_not=do.why_not_revise, has_form=True),
    Action("plan_drop", "D", "Drop", "drop the task; dependent tasks run without it", group=ACT, footer="live",
           words="plan drop", requests=do.drop_tasks, why_not=do.why_not_drop, preview=do.drop_lines),
    Action("charts", "T", "Charts", "charts of the agent and its sub-agents: context, tokens per minute, cost", group=OPEN,
           footer="live over", words="charts", on={"chart": On("Back", "go back", "back")}),
    *(Action(f"page.{word}", "", label, help, group=OPEN,
           words=word if word in _PAGE_WORDS else "", argument=argument, call=f"page('{page}')")
      for word, page, label, help, argument in (
          ("memory", "Memory", "Memory", "show or search the agent's memory", "[search WORDS]"),
          ("context", "Memory", "Context", "show the contents of the agent's context", ""),
          ("transcript", "Transcript", "Transcript", "show the agent's messages and tool calls", ""),
          ("calls", "Calls", "Calls", "show the agent's model calls", ""),
          ("usage", "Metrics", "Metrics", "show the agent's tokens and cost", ""),
          ("cost", "Metrics", "Cost", "same as :usage", ""),
          ("compactions", "Compactions", "Compactions", "show the agent's compactions", ""),
          ("prompt", "Prompt", "Prompt", "show the agent's next prompt", ""))),
    # Panes and rows.
    *(Action(f"pane.{name}", str(place), name.title(), "" if place > 1 else "go to the plan, events, agent, compaction or transcript pane",
             group=MOVE, call=f"pane('{name}')") for place, name in enumerate(("plan", "events", "agent", "compaction", "transcript"), start=1)),
    Action("pane.next", "tab", "Next pane", "next or previous pane", _PANES, group=MOVE, call="next_pane(1)", former="replay.next_pane"),
    Action("pane.previous", "shift+tab", "Previous pane", "", _PANES, group=MOVE, call="next_pane(-1)", former="replay.previous_pane"),
    Action("pane.narrower", "<", "Divider left", "move a divider and pin this pane's size, or drag the divider with the mouse", group=MOVE,
           call="divide('split', -5)"),
    Action("pane.wider", ">", "Divider right", "", group=MOVE, call="divide('split', 5)"),
    Action("pane.shorter", "^,ctrl+up", "Divider up", "", group=MOVE, call="divide('rows', -5)"),
    Action("pane.taller", "_,ctrl+down", "Divider down", "", group=MOVE, call="divide('rows', 5)"),
    Action("layout", "", "Reset sizes", "reset all panes to their default sizes", _PANES, group=LOOK, words="layout reset",
           call="reset_layout"),
    Action("rows.down", "j,down", "Down", "move down or up (or arrow keys, mouse, wheel)", "rows", group=MOVE, call="move(1)"),
    Action("rows.up", "k,up", "Up", "", "rows", group=MOVE, call="move(-1)"),
    Action("rows.first", "g,home", "First", "first or last row; staying on the last row follows new rows", "rows", group=MOVE),
    Action("rows.last", "G,end", "Last", "", "rows", group=MOVE),
    Action("rows.page_down", "pagedown,ctrl+d", "Page down", "page down or up", "rows", group=MOVE, call="page(1)"),
    Action("rows.page_up", "pageup,ctrl+u", "Page up", "", "rows", group=MOVE, call="page(-1)"),
    # Everywhere.
    Action("usage", "$", "Usage", "usage and cost of all sessions by day, model or project", EVERYWHERE, group=EVERYWHERE, words="spending"),
    Action("fleet", "S", "Fleet", "watch several sessions live", EVERYWHERE, group=EVERYWHERE, words="fleet"),
    Action("start", "ctrl+n", "Start a run", "start a run: set goal, workspace, model, budget, permissions", EVERYWHERE, group=EVERYWHERE,
           footer="welcome", words="run", argument="[GOAL]", former="welcome.start"),
    Action("theme", "", "Theme", "change the theme", EVERYWHERE, group=EVERYWHERE, words="theme", argument="NAME"),
    Action("quit", "q", "Quit", "quit the dashboard; the run continues", EVERYWHERE, group=EVERYWHERE, footer="live over welcome", call="leave",
           words="quit"),
    Action("quit.interrupt", "ctrl+c", "Quit", "", EVERYWHERE, group=EVERYWHERE, call="leave", first=True),
    Action("back", "escape", "Back", "go back", f"live {_PAGES}", group=EVERYWHERE, footer=_PAGES,
           former=" ".join((*(f"{scope}.back" for scope in _PAGES.split() if scope != "replay"), "replay.leave")),
           on={"approval": On("Later", "leave this and the following questions pending"),
               "question": On("Later", "leave the question pending; answer it in the session's terminal"),
               "sessions": On("", "clear marks and search, then return to the open session")}),
    Action("command", ":", "Command", "type a command", EVERYWHERE, group=EVERYWHERE, footer="live over sessions welcome", call="command_bar"),
    Action("help", "?", "Help", "show this help", EVERYWHERE, group=EVERYWHERE, footer="*", words="help"),
)  # fmt: skip

BY_ID = {action.id: action for action in TABLE}
FORMER = {former: action.id for action in TABLE for former in (*action.former.split(), f"act.{action.id}")}
"""Today's ids by those that people's settings may still have."""


def possible(scopes: Iterable[str]) -> list[Action]:
    """The actions of these screens and panes."""
    active = frozenset(scopes)
    return [action for action in TABLE if action.scopes & active]


def bindings(scope: str) -> list[BindingType]:
    """The bindings of a screen or a pane."""
    return [
        Binding(action.keys, said.call, said.label, show=False, id=action.id, priority=action.first)
        for action in possible([scope]) if action.keys for said in [action.said([scope])]
    ]  # fmt: skip


# --- Keys, with those of the user -------------------------------------------------------------------------------

PANES_OF = {
    "live": ("plan", "agent", "compactions"),
    "replay": ("replay.agent", "plan"),
    "timeline": ("axis",),
    "task": ("choices",),
}
"""The panes of a screen that have keys of their own."""
FORMS = frozenset({"start", "task"})
"""Screens without a list of rows."""
_HELP_ONLY = frozenset({"events"})
"""Panes without keys of their own."""


def _together() -> tuple[frozenset[str], ...]:
    """Which screens and panes are active at once."""
    panes = {pane for each in PANES_OF.values() for pane in each}
    screens = (
        {scope for action in TABLE for scope in action.scopes} - panes - _HELP_ONLY - {EVERYWHERE, "rows"}
    )
    return tuple(
        frozenset((screen, EVERYWHERE, *pane, *(() if screen in FORMS else ("rows",))))
        for screen in sorted(screens) for pane in ((), *((each,) for each in PANES_OF.get(screen, ())))
    )  # fmt: skip


TOGETHER = _together()


def meet(one: Action, other: Action) -> bool:
    """Whether both may be active at once."""
    return any(one.scopes & scopes and other.scopes & scopes for scopes in TOGETHER)


def normal(keys: str) -> tuple[str, ...]:
    """Keys as the toolkit names them: `?` is `question_mark`."""
    parts = [part.strip() for part in keys.split(",") if part.strip()]
    return tuple(_character_to_key(part) if len(part) == 1 else part for part in parts)


_MODIFIERS = frozenset({"ctrl", "shift", "alt", "super", "meta", "hyper"})
_NAMED = frozenset(KEY_NAME_REPLACEMENTS.values()) | {
    key.value.rsplit("+", 1)[-1] for key in Keys if not key.value.startswith("<")
}


def is_key(name: str) -> bool:
    """Whether a terminal can send a key of that name: `p`, `P`, `?`, `question_mark`, `f5`, `ctrl+x`, `pageup`."""
    *modifiers, key = name.split("+") if len(name) > 1 else [name]
    if not _MODIFIERS.issuperset(modifiers):
        return False
    if len(key) == 1:
        return key.isprintable() and not key.isspace()
    character = key_to_character(key)
    return key in _NAMED or (character is not None and _character_to_key(character) == key)


_SHOWN = {"escape": "esc", "left": "←", "right": "→", "up": "↑", "down": "↓", "pageup": "PgUp", "pagedown": "PgDn", "minus": "-",
          "slash": "/",
    "plus": "+", "underscore": "_", "space": "space"}  # fmt: skip


def shown(key: str) -> str:
    """A key as the footer shows it."""
    *modifiers, last = normal(key)[0].split("+")
    character = key_to_character(last) or ""
    return "+".join([*modifiers, _SHOWN.get(last) or (character if character.isprintable() else "") or last])


@dataclass(frozen=True, slots=True)
class UserKeys:
    """The keys that the user has set, and what that changes."""

    keys: Mapping[str, str] = field(default_factory=dict)
    """By id, those that are not the table's."""
    problems: tuple[str, ...] = ()
    """What cannot be used, a line each."""
    changes: tuple[tuple[str, str], ...] = ()
    """For the help: keys, and what has them now, or has lost its own."""
    lost: tuple[str, ...] = ()
    """For the start: each action that has lost its last key, a line each."""

    def of(self, action: Action) -> str:
        """The keys of an action, with commas."""
        return self.keys.get(action.id, action.keys)

    def keymap(self) -> dict[str, str]:
        """What the toolkit is to bind instead of the table's."""
        return {name: ",".join(normal(keys)) or Keys.Ignore.value for name, keys in self.keys.items()}


def read_keys(wanted: Mapping[str, str]) -> UserKeys:
    """The user's keys, which go before the table's: an action that meets one with its key loses it."""
    used: dict[str, str] = {}
    problems: list[str] = []
    for name, keys in wanted.items():
        action = BY_ID.get(FORMER.get(name, name))
        strange = next((key for key in normal(keys) if not is_key(key)), None)
        if action is None or not action.keys:
            problems.append(f"keys.{name} is not an action; see docs/keys.md")
        elif not normal(keys):
            problems.append(f"keys.{name}: no key given")
        elif strange is not None:
            problems.append(
                f"keys.{name}: {strange!r} is not a key (keys are p, P, ?, f5, ctrl+x, pageup …); the previous one is kept"
            )
        elif clash := next(
            (o for o in used if {*normal(used[o])} & {*normal(keys)} and meet(BY_ID[o], action)), ""
        ):
            problems.append(f"keys.{name}: {keys!r} is already the key of {clash}; the previous one is kept")
        else:
            used[action.id] = keys
    changed = dict(used)
    changes, lost = (
        [(keys, f"{BY_ID[name].label} ({name})".strip()) for name, keys in used.items()],
        list[str](),
    )
    for name, keys in used.items():
        taken = {*normal(keys)} - {*normal(BY_ID[name].keys)}
        for other in TABLE:
            has = normal(changed.get(other.id, other.keys))
            if other.id not in used and taken & {*has} and meet(BY_ID[name], other):
                left = changed[other.id] = ",".join(key for key in has if key not in taken)
                changes.append((left or "no key", f"{other.label} ({other.id}): key reassigned to {name}"))
                if not left:
                    lost.append(f"keys.{name}: {keys!r} was the key of {other.id}, which has no key now")
    return UserKeys(changed, tuple(problems), tuple(changes), tuple(lost))  # fmt: skip


# --- The help, and the words of the command bar -----------------------------------------------------------------

Group = tuple[str, list[tuple[str, str]]]
_TITLES = {EVERYWHERE: "Everywhere", ACT: "Act on the selected or marked rows"}
_PANE_NAMES = {
    "plan": "the plan",
    "agent": "the agent",
    "compactions": "compaction",
    "replay.agent": "the agent",
}


def paired(actions: Iterable[Action]) -> list[list[Action]]:
    """The rows, each with its counterparts."""
    lines: list[list[Action]] = []
    for action in actions:
        if action.help or not lines:
            lines.append([action])
        else:
            lines[-1].append(action)
    return lines


def help_of(scopes: Sequence[str], keys: UserKeys, pane: str = "", not_ours: str = "") -> list[Group]:
    """Titles, each with keys and what they do, those of the pane first; then the commands of `:` that work here.
    `not_ours`: why nothing that acts on a run works; such keys are left out."""
    groups: dict[str, list[tuple[str, str]]] = {
        title: [] for title in ("This pane", ACT, FIND, OPEN, LOOK, KEEP, MOVE, EVERYWHERE, "Commands")
    }
    active = [each for each in (pane, *scopes) if each]
    works = [each for each in possible(active) if not (not_ours and each.acts)]
    if not_ours:
        groups[ACT].append(("", not_ours))
    for line in paired(works):
        first = line[0]
        named = [normal(keys.of(each)) for each in line]
        each_key = named[0][:3] if len(line) == 1 else [has[0] for has in named if has]
        if each_key:
            title = "This pane" if pane in first.scopes else first.group
            groups[title].append((" ".join(map(shown, each_key)), first.said(active).help))
    groups["Commands"] = [
        (f":{each.words} {each.argument}".strip(), each.said(scopes).help) for each in works if each.words
    ]
    titles = _TITLES | {"This pane": f"This pane: {_PANE_NAMES.get(pane, pane)}"}
    return [(titles.get(title, title), rows) for title, rows in groups.items() if rows]


@dataclass(frozen=True, slots=True)
class Parsed:
    """What was typed: an action and its argument, or why it is none."""

    action: Action | None
    argument: str
    problem: str = ""


COMMANDS = tuple(action for action in TABLE if action.words)


def parse(line: str) -> Parsed:
    """Read a line of the bar. The leading colon or slash may be left out; a unique beginning is enough."""
    name, _, argument = line.strip().lstrip("/:").strip().partition(" ")
    names = dict.fromkeys(action.words.partition(" ")[0] for action in COMMANDS)
    near = [each for each in names if each.startswith(name.casefold())]
    if not name:
        return Parsed(None, "")
    if name.casefold() in names:
        near = [name.casefold()]
    if len(near) != 1:
        several = ", ".join(f":{each}" for each in near[:6])
        return Parsed(
            None,
            argument,
            f":{name} is ambiguous: {several}" if near else f"unknown command :{name}; ? lists all commands",
        )
    argument = argument.strip()
    forms = {
        each.words.partition(" ")[2]: each for each in COMMANDS if each.words.partition(" ")[0] == near[0]
    }
    word, _, rest = argument.partition(" ")
    found, rest = (forms[word], rest.strip()) if word in forms else (forms.get(""), argument)
    if found is None or (rest and not found.argument):
        # An unknown word is refused, never ignored.
        takes = " or ".join(form for form in forms if form) or "no argument"
        return Parsed(None, argument, f":{near[0]} takes {takes}")
    return Parsed(found, rest)  # fmt: skip


def completions(line: str, scopes: Iterable[str]) -> list[Action]:
    """The commands that a line could still become on these screens; before its argument, then those too that have its
    words in their name or their help."""
    text = line.strip().lstrip("/:").casefold()
    here = [action for action in possible(scopes) if action.words]
    found = [
        action for action in here if action.words.startswith(text) or text.startswith(f"{action.words} ")
    ]
    if text and not (found and " " in text):
        words = text.split()
        found += [
            action for action in here
            if action not in found and all(word in f"{action.words} {action.help}".casefold() for word in words)
        ]  # fmt: skip
    return found


class CommandList:
    """The commands that the bar lists for a line, of which the user may choose one."""

    def __init__(self, line: str, scopes: Iterable[str]) -> None:
        self.line = line
        self.matching = completions(line, scopes)
        self.place: int | None = None
        """The chosen command; None: what is typed counts."""

    @property
    def chosen(self) -> Action | None:
        return self.matching[self.place] if self.place is not None else None

    def move(self, step: int) -> bool:
        """Choose the command so many rows further; False above the first, where none is chosen any more."""
        if not self.matching or (self.place is None and step < 0):
            return False
        place = (self.place if self.place is not None else -1) + step
        self.place = None if place < 0 else min(place, len(self.matching) - 1)
        return True

    def window(self, rows: int) -> range:
        """The places of the commands that are shown, the chosen one among them."""
        top = max(0, min((self.place or 0) - rows // 2, len(self.matching) - rows))
        return range(top, min(top + rows, len(self.matching)))
