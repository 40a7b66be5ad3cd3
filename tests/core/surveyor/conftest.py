"""Folders to survey, and a session to survey them with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.core.surveyor.session import FakeSession


@pytest.fixture
def survey_of() -> Callable[..., FakeSession]:
    """Survey a folder to its end."""

    def run(workspace: Path, **settings: Any) -> FakeSession:
        return FakeSession(workspace, **settings).run()

    return run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of ten files."""
    files = {
        "README.md": "# Ten files\n\nA small project.\n",
        "pyproject.toml": '[project]\nname = "ten"\n[project.scripts]\nten = "ten:main"\n',
        "src/ten/__init__.py": "", "src/ten/__main__.py": "# FIXME: say more\nprint(10)\n",
        "src/ten/core.py": '"""Counts to ten."""\n\nTEN = 10  # TODO make it eleven\n',
        "src/ten/data/numbers.csv": "1,2\n3,4", "tests/test_core.py": "def test_ten():\n    assert 10  # TODO\n",
        "tests/helpers.py": "", "docs/guide.md": "Read the source.\n", "Makefile": "all:\n\ttrue\n",
    }  # fmt: skip
    root = tmp_path / "ten"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("TODO\n")
    return root
