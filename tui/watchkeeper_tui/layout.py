"""How the user left the dashboard: which tab, which order, how wide the panes. Kept in the user's state
folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from watchkeeper.store.driver import make_private

SPLITS = (25, 75)
"""The least and the most of the width, in per cent, that the left panes may take."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What is remembered. Each value is checked where it is used: a file of another version does no harm."""

    tab: str = ""
    """The name of the agent pane's tab."""
    order: str = "tree"
    """How the plan is sorted."""
    split: int = 0
    """Per cent of the width for the left panes; 0 leaves it to the size of the terminal."""
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
        return Layout(hinted=True), f"{path.name} is not used, so the layout is reset: {error}"
    if not isinstance(content, dict):
        return Layout(hinted=True), f"{path.name} is not used, so the layout is reset: it holds no table"
    known = {each.name: type(each.default) for each in fields(Layout)}
    usable: dict[str, Any] = {
        name: value for name, value in content.items() if name in known and type(value) is known[name]
    }
    return Layout(**usable), ""


def save_layout(path: Path, layout: Layout) -> None:
    """Write it whole, or leave what was there.

    Raises:
        OSError: the folder or the file cannot be written.
    """
    make_private(path.parent)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(asdict(layout), indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)
