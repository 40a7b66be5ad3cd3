"""The live screen's slash commands, and the palette's entries besides the actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from watchkeeper_tui.actions import BY_ID
from watchkeeper_tui.pages import PAGES
from watchkeeper_tui.slash import Parsed

if TYPE_CHECKING:
    from watchkeeper_tui.screens.actions import Actions
    from watchkeeper_tui.screens.exporting import Exporting
    from watchkeeper_tui.screens.navigation import Navigation

    class _Base(Actions, Exporting, Navigation):
        """What it is mixed into."""

else:
    _Base = object

VARIANTS: dict[str, dict[str, str]] = {
    "pause": {"run": "pause_run", "now": "pause_now"},
    "cancel": {"run": "cancel_run"},
    "rerun": {"fresh": "rerun_fresh"},
    "resume": {},
    "undo": {},
    "redo": {},
    "approve": {},
    "autosave_load": {},
}
"""The fixed arguments of commands that take no free text, with the action of each."""


class Commanding(_Base):
    """The part of the live screen that is spoken to."""

    # Commands that only this screen knows; the rest stand for actions.

    def run_slash(self, parsed: Parsed) -> None:
        assert parsed.slash is not None
        name, argument = parsed.slash.name, parsed.argument
        tabs = {"memory": "Memory", "context": "Memory", "usage": "Metrics", "cost": "Metrics"}
        verb, _, words = argument.partition(" ")
        if name == "memory" and verb == "sync":
            self.act("memory_sync")
        elif name == "memory" and verb not in ("", "status", "search"):
            self.say("/memory takes status, sync, or search and words", "failed")
        elif name in tabs:
            if name == "memory":
                self.words["agent"] = words.strip()
            self.agent_pane.open_page(tabs[name])
            self.action_pane("agent")
            self.redraw()
        elif name == "agent":
            self.action_report()
        elif name == "freeze":
            self.action_freeze()
        elif name == "grants":
            self.show_grants()
        elif name == "export" and self.newest.session is not None:
            self.export_session(self.newest.session.id, argument)
        elif parsed.slash.action and not (name == "autosave_load" and argument):
            variants = VARIANTS.get(name)
            if variants is None:
                self.act(parsed.slash.action, argument)
            elif argument in ("", *variants):
                # An unknown argument is refused, never ignored.
                self.act(variants.get(argument, parsed.slash.action))
            else:
                self.say(
                    f"/{name} takes {' or '.join(variants) or 'no words'}; it acts on the rows selected or"
                    " marked",
                    "failed",
                )
        else:
            super().run_slash(parsed)

    def commands(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        """What the palette offers here beside the actions: its title, what it does, and how."""
        yield "Report", "what the selected agent was asked, gave back, made and took", self.action_report
        yield "Compact with instructions", "say what to keep or drop", self._compact_with_instructions
        yield "Grants", "what runs without a question in this run; revoke one", self.show_grants
        yield "Freeze", "hold the view still, or let it go on; the run goes on", self.action_freeze
        yield "Filter", "the plan, the events, or search the transcript", self.action_filter
        yield "Next that needs you", "a question, a failure, a silence", self.action_attention
        yield (
            "Sort the plan",
            "as planned, by cost, tokens, context, or who needs you",
            self.action_next_order,
        )
        yield "Zoom", "the pane over the whole screen, and back", self.action_zoom
        for page in PAGES:
            if page.name != "Report":
                yield page.name, "a tab of the agent pane", lambda name=page.name: self._open_page(name)  # type: ignore[misc]

    def _open_page(self, name: str) -> None:
        self.agent_pane.open_page(name)
        self.action_pane("agent")

    def _compact_with_instructions(self) -> None:
        action, target = BY_ID["compact"], self.target
        reason = action.why_not(target)
        if reason:
            self.say(f"{action.label}: {reason}", "muted")
        else:
            self._instructions(action, target)
