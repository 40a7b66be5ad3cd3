"""Writing commands, beside the event loop. What became of each is read from the `commands` table like all
else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from watchkeeper.records.errors import WatchkeeperError

if TYPE_CHECKING:
    from watchkeeper_tui.prompt_preview import PromptPreview
    from watchkeeper_tui.targets import Request


class Control(Protocol):
    """What the dashboard may do to a run."""

    def submit(
        self,
        session_id: str,
        kind: str,
        *,
        agent_id: str | None,
        task_id: str | None,
        payload: dict[str, Any],
    ) -> int:
        """Queue a command; returns its id."""
        ...

    def start_host(self, session_id: str, *, resume: bool, once: int | None) -> int | None:
        """Start a host where none lives; returns its pid."""
        ...

    async def preview(self, session_id: str, request: Request) -> PromptPreview | None:
        """The prompt that a command would lead to; None where it changes none. Changes nothing."""
        ...


class ReadOnlyControl:
    """Refuses everything: the session is only looked at."""

    def submit(
        self,
        session_id: str,
        kind: str,
        *,
        agent_id: str | None,
        task_id: str | None,
        payload: dict[str, Any],
    ) -> int:
        raise ReadOnly

    def start_host(self, session_id: str, *, resume: bool, once: int | None) -> int | None:
        raise ReadOnly

    async def preview(self, session_id: str, request: Request) -> PromptPreview | None:
        raise ReadOnly


class ReadOnly(WatchkeeperError):
    """The user tried to control a session that is open read-only."""

    def __init__(self) -> None:
        super().__init__("the session is open read-only; press s, then Enter opens it to act on it")


class StoreControl:
    """The real one. `submit` and `start_host` block for milliseconds, so they are made from a worker thread."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def submit(
        self,
        session_id: str,
        kind: str,
        *,
        agent_id: str | None,
        task_id: str | None,
        payload: dict[str, Any],
    ) -> int:
        import getpass

        from watchkeeper.runtime.control import submit

        try:
            who = f"{getpass.getuser()} (dashboard)"
        except (KeyError, OSError):  # a user without a name
            who = "dashboard"
        return submit(
            self._path,
            session_id,
            kind,
            agent_id=agent_id,
            task_id=task_id,
            payload=payload,
            requested_by=who,
        )

    def start_host(self, session_id: str, *, resume: bool, once: int | None) -> int | None:
        from watchkeeper.runtime.control import start_host

        return start_host(
            self._path,
            session_id,
            resume=resume,
            once=once,
            environment=f"this dashboard (pid {os.getpid()})",
        )

    async def preview(self, session_id: str, request: Request) -> PromptPreview | None:
        from watchkeeper_tui.prompt_preview import preview

        return await preview(self._path, session_id, request)
