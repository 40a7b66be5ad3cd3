"""What screens and widgets may ask of the application.

The application imports the screens, and they import the widgets. This protocol is how both reach the application
without importing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from textual.message_pump import MessagePump

from watchkeeper.store.snapshot import EventFacts
from watchkeeper_tui.actions import UserKeys
from watchkeeper_tui.control import Control, ModelChoice, RunRequest
from watchkeeper_tui.reader import Reader
from watchkeeper_tui.settings import Layout, Settings
from watchkeeper_tui.snapshot import Snapshot
from watchkeeper_tui.theming import Palette


class WatchApp(Protocol):
    """The application, as its screens and widgets know it."""

    control: Control
    """What acts on the open session."""
    layout_kept: Layout
    """How the user left the dashboard."""

    @property
    def palette(self) -> Palette:
        """The styles of the theme in use."""
        ...

    @property
    def settings(self) -> Settings:
        """The user's settings."""
        ...

    @property
    def snapshot(self) -> Snapshot:
        """The newest reading of the open session."""
        ...

    @property
    def reader(self) -> Reader:
        """The thread that reads the database."""
        ...

    @property
    def database_path(self) -> Path:
        """The open database."""
        ...

    @property
    def now(self) -> Callable[[], float]:
        """Wall time in seconds."""
        ...

    @property
    def read_only(self) -> str:
        """Why nothing can be done to the open session; empty where it can."""
        ...

    user_keys: UserKeys
    """The keys that the user has set."""

    def key_for(self, name: str) -> str:
        """The key of an action, as the footer shows it; empty where it has none."""
        ...

    def look_at(self, agent_id: str | None) -> None:
        """Have the reader read this agent too."""
        ...

    def probe(self, session_id: str) -> int | None:
        """The process that drives a session, or None."""
        ...

    def hosts(self, session_ids: Iterable[str]) -> dict[str, int]:
        """The processes that drive these sessions."""
        ...

    def remember(self, **changes: Any) -> None:
        """Keep how the screen is laid out for the next time."""
        ...

    def choose_theme(self, name: str) -> tuple[str, str]:
        """Switch to a theme; returns what to say about it, and in which role."""
        ...

    def copy_text(self, text: str) -> None:
        """Put text on the clipboard."""
        ...

    def open_sessions(self, words: str) -> None:
        """Show the list of sessions."""
        ...

    def open_session(self, session_id: str, *, read_only: bool = False) -> None:
        """Show a session on the live screen; `read_only` refuses every action on it."""
        ...

    def load_session(self, name: str) -> None:
        """Open the session that `name` means, and resume it from its last step."""
        ...

    def open_event(
        self, session_id: str, event: EventFacts | int, *, then: Mapping[str, int] | None = None
    ) -> None:
        """Show what an event (or that of the number) is about: its call, message, compaction or artifact; else the event
        itself. `then`: in a replay, the last message of each agent; nothing can be done then."""
        ...

    def open_message(
        self, session_id: str, agent_id: str, seq: int, *, call_id: str = "", words: str = "", until: int = 0,
        observation: int | None = None,
    ) -> None:  # fmt: skip
        """Show a message, or a call in it, in its agent's transcript; or an observation and the messages behind it.

        `words` are marked. `until`: in a replay, the last message that there was; nothing can be done then.
        """
        ...

    def open_compaction(self, compaction_id: int, *, until: int = 0) -> None:
        """Show one pass in full, before and after. `until`: as for `open_message`."""
        ...

    def open_artifacts(self, digest: str = "", *, session_id: str = "") -> None:
        """Show what the agents of a session (by default the open one) saved; one artifact, if its digest is given."""
        ...

    def open_replay(self, session_id: str, *, moment: float | None = None) -> None:
        """Show a session as it was, step by step; from that moment on, or from its beginning."""
        ...

    def open_timeline(self, session_id: str, *, moment: float | None = None) -> None:
        """Show when each agent did what, with the cursor at that moment, or at the end."""
        ...

    def open_charts(self, title: str, agent_ids: Sequence[str]) -> None:
        """Show the calls of these agents over time."""
        ...

    def open_usage(self) -> None:
        """Show what all sessions used and cost."""
        ...

    def open_fleet(self, select: str = "") -> None:
        """Show several sessions at once, a row each; with one of them selected."""
        ...

    def open_start(
        self, *, goal: str = "", from_session: str | None = None, name: str = "", workspace: str = ""
    ) -> None:
        """Show the form that starts a run, or continues the session `from_session`, which is called `name`."""
        ...

    async def list_models(self, workspace: str) -> tuple[tuple[ModelChoice, ...], tuple[ModelChoice, ...]]:
        """The models that a run in this workspace can use, and those that its roles ask for."""
        ...

    async def start_run(self, request: RunRequest) -> tuple[str, str]:
        """Start a run in the background; returns its session, or an empty id and why not."""
        ...

    def leave(self, how: str) -> None:
        """End the dashboard; `pause` pauses the run first. Else `how` is handed to the caller that opened it."""
        ...


def watch_app(node: MessagePump) -> WatchApp:
    """The application that a screen or widget runs in."""
    return cast(WatchApp, node.app)
