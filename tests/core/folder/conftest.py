"""Folders to list, and a way to gather all their pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from watchkeeper.agents.tools.folder import scan_page

Pages = list[dict[str, Any]]


@pytest.fixture
def pages() -> Callable[..., Pages]:
    """All pages of a folder, in order."""

    def gather(workspace: Path, path: str = ".", **arguments: Any) -> Pages:
        found: Pages = []
        cursor = arguments.pop("cursor", None)
        while True:
            found.append(json.loads(scan_page(workspace, path, cursor, **arguments)))
            cursor = found[-1]["next"]
            if cursor is None:
                return found
            assert found[-1]["entries"] or found[-1].get("skipped"), "a page that leads on holds something"

    return gather


@pytest.fixture
def entries(pages: Callable[..., Pages]) -> Callable[..., list[dict[str, Any]]]:
    """All entries of a folder, in order."""

    def gather(workspace: Path, path: str = ".", **arguments: Any) -> list[dict[str, Any]]:
        return [entry for page in pages(workspace, path, **arguments) for entry in page["entries"]]

    return gather


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project."""
    files = {
        "README.md": "# A project\n\nIt does little.\n",
        "pyproject.toml": '[project]\nname = "p"\n[project.scripts]\nzed = "p:main"\nact = "p:main"\n',
        "src/p/__init__.py": "",
        "src/p/__main__.py": "print(1)\n",
        "src/p/tool.py": "# TODO: more\nx = 1\nif __name__ == '__main__':\n    print(x)",
        "src/p/data.json": "{}\n",
        "tests/test_tool.py": "# FIXME later, TODO never\ndef test():\n    pass\n",
        "docs/index.md": "text TODOS and TODO_LIST are not marks\n",
        ".git/config": "TODO: not counted\n",
        "run": "#!/usr/bin/env python3.11\nprint()\n",
    }
    for name, text in files.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "project" / "run").chmod(0o755)
    return tmp_path / "project"
