"""A scripted server for each test, and no credentials of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.support.answers import Script
from tests.support.messages_server import MessagesServer
from tests.support.model_calls import Serve, close_models


@pytest.fixture(autouse=True)
def _no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("API_KEY", "AUTH_TOKEN", "BASE_URL", "PROFILE", "CUSTOM_HEADERS", "CONFIG_DIR"):
        monkeypatch.delenv(f"ANTHROPIC_{name}", raising=False)
        monkeypatch.delenv(f"OPENAI_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


@pytest.fixture(autouse=True)
async def _closed_models() -> AsyncIterator[None]:
    yield
    await close_models()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server for a script; it stops with the test."""
    with ExitStack() as stack:

        def start(script: Script, **options: Any) -> MessagesServer:
            return stack.enter_context(MessagesServer(script, **options))

        yield start
