"""Folders to survey."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of ten files."""
    files = {
        "README.md": "# Ten files\n", "pyproject.toml": '[project]\nname = "ten"\n', "src/ten/__init__.py": "",
        "src/ten/__main__.py": "print(10)\n", "src/ten/core.py": "TEN = 10\n", "src/ten/data/numbers.csv": "1,2\n3,4",
        "tests/test_core.py": "def test_ten():\n    assert 10\n", "tests/helpers.py": "", "docs/guide.md": "Read.\n",
        "Makefile": "all:\n\ttrue\n",
    }  # fmt: skip
    root = tmp_path / "ten"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / ".git").mkdir()
    (root / ".git" / "HEAD").write_text("ref\n")
    return root
