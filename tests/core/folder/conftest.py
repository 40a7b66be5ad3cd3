"""Folders to list, and a way to gather all their pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.agents.tools.folder import list_page

Lines = Callable[..., list[str]]


@pytest.fixture
def lines() -> Lines:
    """The entries of a folder on all its pages, without the lines that lead on."""

    def gather(workspace: Path, path: str = ".", **arguments: Any) -> list[str]:
        found: list[str] = []
        cursor = None
        while True:
            page = list_page(workspace, path, cursor, **arguments).split("\n")
            more = page.pop() if " more; cursor: " in page[-1] else ""
            assert page, "a page that leads on holds something"
            found += page
            if not more:
                return found
            cursor = more.partition("cursor: ")[2].removesuffix("]")

    return gather


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project."""
    files = {
        "README.md": "# A project\n\nIt does little.\n", "pyproject.toml": '[project]\nname = "p"\n',
        "src/p/__init__.py": "", "src/p/__main__.py": "print(1)\n", "src/p/data.json": "{}\n",
        "tests/test_tool.py": "def test():\n    pass\n", "docs/index.md": "text\n", ".git/config": "not listed\n",
    }  # fmt: skip
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"
