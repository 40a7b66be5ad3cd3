"""The dashboard's part of the user's `config.toml`: theme, keys, notifications.

Read with the standard library alone: a viewer must paint before a validation library is even loaded. The
command line checks the same file in full (`watchkeeper.runtime.config`); here, a value that
cannot be used is reported, and its default applies.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from watchkeeper.records.text import parser_mistake
from watchkeeper.store.driver import make_private
from watchkeeper.store.place import config_folder

DEFAULT_THRESHOLD = 0.75
SIGNALS = ("bell", "osc9", "osc777", "off")


@dataclass(frozen=True, slots=True)
class Notifications:
    """Which notifications the user gets, and how. The table `[notifications]`."""

    needs_input: bool = True
    """An agent asks."""
    task_failed: bool = True
    budget: bool = True
    """80 % of a budget is spent, all of it, or a usage limit is reached."""
    run_finished: bool = True
    when_focused: bool = False
    """Also while the terminal has the focus."""
    terminal: str = "bell"
    """How the terminal is signalled: `bell`, `osc9` or `osc777` (desktop notifications), or `off` (notices in
    the dashboard only)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user wants of the dashboard."""

    theme: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys by the id of what they do, as in `act.pause = "p"`; several keys with commas."""
    notifications: Notifications = Notifications()
    reduced_motion: bool = False
    """Nothing moves by itself. Also where `WATCHKEEPER_REDUCED_MOTION` is set."""
    summarization_threshold: float = DEFAULT_THRESHOLD
    """The share of a window at which the host starts to compact: what is shown as coming must be what
    comes."""
    problems: tuple[str, ...] = ()
    """One line for each setting that could not be used."""


def _why(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else parser_mistake(error)


def load_settings(folder: Path | None = None) -> Settings:
    """The settings of `config.toml`; a damaged file is a problem, not an error: the dashboard opens all the
    same."""
    path = (folder or config_folder()) / "config.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return Settings(reduced_motion=_wants_stillness())
    except (OSError, ValueError) as error:
        return Settings(reduced_motion=_wants_stillness(), problems=(f"{path.name} ignored: {_why(error)}",))
    problems: list[str] = []
    still = content.get("reduced_motion", False)
    if not isinstance(still, bool):
        problems.append("reduced_motion must be true or false")
        still = False
    threshold = content.get("summarization_threshold", DEFAULT_THRESHOLD)
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0.1 < threshold <= 0.95:
        problems.append("summarization_threshold must be between 0.1 and 0.95")
        threshold = DEFAULT_THRESHOLD
    theme = content.get("theme")
    if theme is not None and not isinstance(theme, str):
        problems.append("theme must be a string")
        theme = None
    keys = content.get("keys", {})
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        problems.append('[keys] must map actions to keys, as in "pause" = "p"')
        keys = {}
    notifications = _notifications(content.get("notifications", {}), problems)
    messages = tuple(f"{path.name}: {each}" for each in problems)
    return Settings(theme, keys, notifications, still or _wants_stillness(), float(threshold), messages)


def _wants_stillness() -> bool:
    return os.environ.get("WATCHKEEPER_REDUCED_MOTION", "") not in ("", "0")


def _notifications(table: Any, problems: list[str]) -> Notifications:
    if not isinstance(table, dict):
        problems.append("[notifications] must be a table")
        return Notifications()
    known = {each.name for each in fields(Notifications)}
    wanted: dict[str, Any] = {}
    for name, value in table.items():
        if name not in known:
            problems.append(f"notifications.{name} is not a setting; use one of {', '.join(sorted(known))}")
        elif name == "terminal" and value not in SIGNALS:
            problems.append(f"notifications.terminal must be one of {', '.join(SIGNALS)}")
        elif name != "terminal" and not isinstance(value, bool):
            problems.append(f"notifications.{name} must be true or false")
        else:
            wanted[name] = value
    return Notifications(**wanted)


SPLITS = (25, 75)
"""The least and the most, in per cent, of the width that the left panes may take, and of the height that the upper ones may."""


ONE_LINE = 1
"""The size of a pane that is pinned at one line."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What is remembered. Each value is checked where it is used: a file of another version does no harm."""

    tabs: dict[str, str] = field(default_factory=dict)
    """The name of the agent pane's tab, for each of the newest sessions that were looked at, by their ids."""
    order: str = "tree"
    """How the plans of Watchkeeper's own runs are sorted."""
    imported_order: str = "tree"
    """How those of imported sessions are."""
    ordered: str = ""
    """The session in which the order was chosen: in any other one, the tree stays, and it sorts what is below each row."""
    plan_filter: str = ""
    """The filter of the plans of Watchkeeper's own runs."""
    imported_plan_filter: str = ""
    """That of the plans of imported sessions."""
    events_filter: str = ""
    """The filter of the events of Watchkeeper's own runs."""
    imported_events_filter: str = ""
    """That of the events of imported sessions."""
    sessions_order: str = ""
    """How the list of sessions is sorted; empty, or unknown: the usual order."""
    sessions_group: str = ""
    """What it is grouped by; empty, or unknown: nothing."""
    sessions_filter: str = ""
    """The filters of the list, as they are typed; without words that are searched for."""
    split: int = 0
    """Per cent of the width for the left panes; 0 leaves it to the size of the terminal."""
    rows: int = 0
    """Per cent of the height for the upper panes; 0 as above."""
    third: int = 0
    """Per cent of the width for the third column; 0 as above."""
    compaction: int = 0
    """Per cent of the height of the lower panes for the compaction pane; `ONE_LINE` keeps it closed; 0: one line until a
    compaction begins."""
    theme: str = ""
    """The theme that was chosen while it ran; one in the configuration goes before it."""
    hinted: bool = False
    """The hints for a user's first start were shown."""


def layout_file() -> Path:
    """`layout.json` in the user's state folder."""
    from platformdirs import user_state_path

    return user_state_path("watchkeeper", appauthor=False) / "layout.json"


def load_layout(path: Path) -> tuple[Layout, str]:
    """What was remembered, and one line where the file cannot be used; then the defaults hold."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return Layout(), ""
    except (OSError, ValueError) as error:
        return Layout(hinted=True), f"{path.name} ignored, layout reset: {_why(error)}"
    if not isinstance(content, dict):
        return Layout(hinted=True), f"{path.name} ignored, layout reset: not a JSON object"
    known = {each.name: type(getattr(Layout(), each.name)) for each in fields(Layout)}
    usable: dict[str, Any] = {
        name: value for name, value in content.items() if name in known and type(value) is known[name]
    }
    tabs = usable.get("tabs", {})
    usable["tabs"] = {name: tab for name, tab in tabs.items() if isinstance(tab, str)}
    return Layout(**usable), ""


MOST_TABS = 200
"""The tabs of so many sessions are remembered."""


def with_tab(layout: Layout, session_id: str, tab: str) -> dict[str, str]:
    """The tabs of the sessions, with this one; the oldest is forgotten where there are too many."""
    others = {each: name for each, name in layout.tabs.items() if each != session_id}
    return dict([*others.items(), (session_id, tab)][-MOST_TABS:])


def save_layout(path: Path, layout: Layout) -> None:
    """Write it whole, or leave what was there.

    Raises:
        OSError: the folder or the file cannot be written.
    """
    make_private(path.parent)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(asdict(layout), indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)
