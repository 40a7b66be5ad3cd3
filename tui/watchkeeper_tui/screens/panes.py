"""Four panes, as many of them in sight as there is room for: all, the plan and one below it, or one alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widget import Widget

from watchkeeper_tui.layout import SPLITS
from watchkeeper_tui.screens.base import WatchScreen
from watchkeeper_tui.widgets.page import PageView
from watchkeeper_tui.widgets.status import CRAMPED

if TYPE_CHECKING:
    _Base = WatchScreen
else:
    _Base = object

PANES = ("plan", "events", "agent", "compaction")
"""Ids of the panes, by their number."""

LAYOUT_CSS = """
LiveScreen { layout: vertical; }
#panes { layout: grid; grid-size: 2 2; grid-columns: 1fr 1fr; grid-rows: 13fr 7fr; height: 1fr; }
.pane { border: round $pane-border; border-title-style: none; padding: 0; height: 100%; }
.pane:focus, .pane:focus-within { border: round $pane-focus; }
#panes.-frozen .pane { border: dashed $warning; }
LiveScreen.-very-wide #panes { grid-columns: 5fr 6fr; }
LiveScreen.-narrow #panes { grid-size: 1 2; grid-columns: 1fr; grid-rows: 11fr 9fr; }
LiveScreen.-low.-narrow #panes, LiveScreen.-tiny #panes, LiveScreen.-cramped #panes, LiveScreen.-zoom #panes {
    grid-size: 1 1; grid-columns: 1fr; grid-rows: 1fr;
}
LiveScreen .-away { display: none; }
LiveScreen.-tiny .pane, LiveScreen.-tiny .pane:focus, LiveScreen.-tiny .pane:focus-within { border: none; }
"""


class Panes(_Base):
    """A screen that has the panes."""

    # Instance variables of the base class, so no ClassVar.
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (170, "-very-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-cramped"), (CRAMPED[1], "-tiny"), (14, "-low"), (20, "-tall")]  # noqa: RUF012

    lower = "agent"
    """The pane below the plan on a narrow screen."""

    @property
    def active_pane(self) -> str:
        """The pane that has the focus."""
        focused: Widget | None = self.focused
        while focused is not None:
            if focused.id in PANES:
                return str(focused.id)
            focused = focused.parent if isinstance(focused.parent, Widget) else None
        return "plan"

    def action_pane(self, name: str) -> None:
        if name != "plan":
            self.lower = name
        self._arrange(name)
        # At once, not after the next message: what follows asks which pane has the focus.
        self.set_focus(self.query_one("#page", PageView) if name == "agent" else self.query_one(f"#{name}"))

    def action_next_pane(self, step: int) -> None:
        order = ("plan", "agent", "events", "compaction")
        self.action_pane(order[(order.index(self.active_pane) + step) % len(order)])

    def action_divide(self, step: int) -> None:
        """Move the divider between the left panes and the right ones."""
        if any(self.query_one(f"#{pane}").has_class("-away") for pane in PANES):
            self.say(
                "the divider moves where all four panes are shown: from 100 columns on, not zoomed", "muted"
            )
            return
        now = self.watch_app.layout_kept.split or 50
        self.watch_app.remember(split=max(SPLITS[0], min(SPLITS[1], now + step)))
        self._arrange()

    def action_zoom(self) -> None:
        name = self.active_pane
        self.toggle_class("-zoom")
        self._arrange(name)

    def on_resize(self) -> None:
        self.call_after_refresh(self._arrange)

    def _arrange(self, name: str | None = None) -> None:
        """Show the panes that there is room for."""
        name = name or self.active_pane
        if (
            self.has_class("-zoom")
            or self.size.height < 14
            or (self.size.width < 100 and self.size.height < 20)
        ):
            shown: tuple[str, ...] = (name,)
        elif self.size.width < 100:
            shown = ("plan", self.lower)
        else:
            shown = PANES
        for pane in PANES:
            self.query_one(f"#{pane}").set_class(pane not in shown, "-away")
        split, styles = self.watch_app.layout_kept.split, self.query_one("#panes").styles
        if shown == PANES and SPLITS[0] <= split <= SPLITS[1]:
            styles.grid_columns = f"{split}fr {100 - split}fr"
        else:
            styles.clear_rule("grid_columns")
