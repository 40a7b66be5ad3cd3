"""What the dashboard's process never loads, and that it opens without reading the world."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter

import grimp

FORBIDDEN = (
    "anthropic", "openai", "mcp", "genai_prices", "genai_prices_alone.data", "tiktoken", "sqlite_utils",
    "pydantic", "watchfiles", "watchkeeper.runtime.host",
)  # fmt: skip


def test_the_dashboard_loads_nothing_heavy() -> None:
    program = (
        "import sys, watchkeeper_tui.app, watchkeeper_tui.screens.sessions, watchkeeper.runtime.control\n"
        f"print([name for name in {FORBIDDEN!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_first_paint_waits_for_no_module_that_it_does_not_need() -> None:
    later = [
        f"watchkeeper.store.{name}"
        for name in ("fork", "library", "history", "prune", "fleet", "writer", "search.index")
    ]
    program = f"import sys, watchkeeper_tui.app; print([name for name in {later!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_dashboards_imports_form_no_circle() -> None:
    graph = grimp.build_graph("watchkeeper_tui")
    TopologicalSorter(
        {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    ).prepare()
