"""The tabs of the agent pane. A tab is one pure function from what was read to lines; a new one is a file and
a line here.

A page never looks at a widget, a clock or the database: it is given a `PageContext`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from watchkeeper_tui.pages.calls import calls_page
from watchkeeper_tui.pages.compactions import compactions_page
from watchkeeper_tui.pages.context import PageContext, PageLine
from watchkeeper_tui.pages.memory import memory_page
from watchkeeper_tui.pages.metrics import metrics_page
from watchkeeper_tui.pages.prompt import prompt_page
from watchkeeper_tui.pages.report import report_page
from watchkeeper_tui.pages.transcript import transcript_page


@dataclass(frozen=True, slots=True)
class Page:
    """One tab."""

    name: str
    short: str
    """The name where there is little room."""
    lines: Callable[[PageContext], list[PageLine]]
    follows: bool = False
    """New lines come at the end, and the end is kept in sight."""


PAGES: tuple[Page, ...] = (
    Page("Memory", "Mem", memory_page),
    Page("Transcript", "Text", transcript_page, follows=True),
    Page("Calls", "Calls", calls_page),
    Page("Metrics", "Stats", metrics_page),
    Page("Compactions", "Comp", compactions_page),
    Page("Report", "Rep", report_page),
    Page("Prompt", "Prompt", prompt_page),
)

__all__ = ["PAGES", "Page", "PageContext", "PageLine"]
