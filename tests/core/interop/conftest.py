"""Sessions made row by row, of a user of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.core.cli.conftest import wk
from tests.core.export.conftest import Made, made

from watchkeeper.interop import mcp

__all__ = ["Made", "made", "wk"]

UNLIMITED_SECONDS = 1e6


@pytest.fixture(autouse=True)
def _a_user_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in os.environ if name.startswith(("WATCHKEEPER_", "CLAUDE_", "CODEX_", "OPENCODE_"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("QUICK_SECONDS", "THOROUGH_SECONDS"):
        monkeypatch.setattr(mcp, name, UNLIMITED_SECONDS)  # however slow this machine is
    monkeypatch.setenv("WATCHKEEPER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WATCHKEEPER_DB", str(tmp_path / "watchkeeper.db"))
