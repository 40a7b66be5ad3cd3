"""What the session's agents saved: a list, and the artifact chosen in it, rendered by its kind.

Artifacts are read when they are chosen. A pager gets the text made harmless; an editor and a saved file get the
bytes.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import ClassVar

from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import BindingType
from textual.widget import Widget

from watchkeeper.store.agent_snapshot import ArtifactFacts, session_artifacts
from watchkeeper.store.artifacts import get, ref_of
from watchkeeper.store.driver import Connection, Queries
from watchkeeper_tui import formatting
from watchkeeper_tui.actions import Action, bindings
from watchkeeper_tui.control import start_folder
from watchkeeper_tui.rendering.documents import LineCache, artifact_units, lazy
from watchkeeper_tui.sanitize import clip, sanitize, sanitize_text
from watchkeeper_tui.screens.base import ReadingScreen
from watchkeeper_tui.widgets.bars import CRAMPED
from watchkeeper_tui.widgets.rows import Cell, Column, PageView, Piece, RowView, set_title

MOST_BYTES = 2_000_000
"""Bytes of an artifact that are shown; all of it is saved and opened."""


class ArtifactList(RowView[ArtifactFacts]):
    """The newest of each name, the last saved first."""

    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("artifact", 16, flexible=True),
        Column("size", 11, right=True, drop=1),
        Column("agent", 24, drop=3),
        Column("saved", 12, right=True, drop=2),
    )
    HEADINGS = True
    MEASURED = True
    IDLE_SELECTION = True
    EMPTY = "no artifacts"

    def row_id(self, row: ArtifactFacts) -> str:
        return f"{row.kind}/{row.name}"

    def row_cells(self, row: ArtifactFacts) -> Sequence[Cell]:
        agent = self.watch_app.snapshot.agent(row.agent_id)
        size = f"{row.size:,} B" if row.size is not None else "deleted"
        again = f"  version {row.versions}" if row.versions > 1 else ""
        return (
            ((sanitize(row.name), "text"), (again, "muted")),
            ((size, "muted"),),
            ((sanitize(agent.full_label) if agent is not None else sanitize(row.agent_id or ""), "muted"),),
            ((formatting.when(row.created_at, self.watch_app.now()), "muted"),),
        )


class ArtifactsScreen(ReadingScreen):
    """Enter folds and unfolds; `t` shows the text as it is; `y` copies, `s` saves, `p` and `e` open a pager and
    an editor."""

    PLACE = "artifacts"

    VERTICAL_BREAKPOINTS = [(0, "-cramped"), (CRAMPED[1], "-low"), (20, "-roomy")]  # noqa: RUF012

    SCOPE = "artifacts"
    BINDINGS: ClassVar[list[BindingType]] = bindings("artifacts")

    def __init__(self, session_id: str, digest: str = "") -> None:
        """`digest`: the artifact to show first; empty for the last saved."""
        super().__init__()
        self._session_id, self._first = session_id, digest
        self._shown: ArtifactFacts | None = None
        self._data: bytes | None = None
        """The data of the artifact shown; None until it was read."""
        self._as_text = False
        self._toggled: frozenset[str] = frozenset()
        self._cache = LineCache()

    def body(self) -> ComposeResult:
        yield ArtifactList(id="artifacts", classes="pane")
        yield PageView(id="artifact", classes="pane")

    def on_mount(self) -> None:
        self.page.following = False
        self.page.focus()
        set_title(self.listed, [("Artifacts", "strong")], self.watch_app.palette)

    @property
    def listed(self) -> ArtifactList:
        return self.query_one(ArtifactList)

    @property
    def page(self) -> PageView:
        return self.query_one("#artifact", PageView)

    # Reading.

    def question(self) -> Callable[[Connection], list[ArtifactFacts]]:
        session_id = self._session_id
        return lambda connection: session_artifacts(connection, session_id)

    def arrived(self, found: list[ArtifactFacts]) -> None:
        self.set_class(not found, "-nothing")
        self.listed.set_rows(found)
        self.listed.refresh(layout=True)
        if self._shown is None and found:
            first = next((each for each in found if each.digest == self._first), found[0])
            self.listed.select(self.listed.row_id(first), tell=False)
            self._choose(first)

    def _choose(self, artifact: ArtifactFacts) -> None:
        if self._shown is not None and artifact.digest == self._shown.digest:
            return
        self._shown, self._data = artifact, None
        self._toggled, self._as_text, self._cache = frozenset(), False, LineCache()
        self.page.start(follows=False)

        def arrived(data: bytes | None) -> None:
            if artifact is self._shown and data is None:
                self.say("! the content of this artifact was deleted", "failed", seconds=12)
            elif artifact is self._shown:
                self._data = data
                self.redraw()

        self.ask(lambda connection: get(Queries(connection), ref_of(artifact.digest)), arrived)
        self.redraw()

    # Drawing.

    def redraw(self) -> None:
        """Make the units of the artifact for the page's width."""
        artifact = self._shown
        if artifact is None or not self.is_usable:
            return
        if self._data is not None:
            width = max(10, self.page.scrollable_content_region.width - 1)
            units = artifact_units(
                artifact.name, artifact.media_type or "", self._data[:MOST_BYTES], width, self._toggled,
                shown_as="" if self._as_text else None,
            )  # fmt: skip
            self.page.set_rows(lazy(units, self._cache))
            self.page.refresh()
        self.redraw_edges()

    def heading(self) -> tuple[Widget, Sequence[Piece]] | None:
        artifact, data = self._shown, self._data
        if artifact is None:
            return None
        pieces: list[Piece] = [(clip(sanitize(artifact.name), 60), "strong")]
        if data is not None:
            pieces.append((f"  {formatting.plural(len(data), 'byte')}", "muted"))
            if len(data) > MOST_BYTES:
                pieces.append((f"  first {MOST_BYTES:,} bytes shown", "waiting"))
        else:
            pieces.append(("  loading …", "muted"))
        if self._as_text:
            pieces.append(("  raw text", "accent"))
        return self.page, pieces

    def label_of(self, action: Action) -> str:
        return "Rendered" if action.id == "artifacts.text" and self._as_text else super().label_of(action)

    def why_not(self, action: Action) -> str:
        return "no artifact is open" if self._shown is None and action.id not in ("back", "help") else ""

    def on_page_view_resized(self, event: PageView.Resized) -> None:
        event.stop()
        self.redraw()

    # Choosing and folding.

    def on_row_view_selected(self, event: RowView.Selected) -> None:
        if event.view is self.listed and self.listed.selected is not None:
            self._choose(self.listed.selected)

    def on_row_view_opened(self, event: RowView.Opened) -> None:
        if event.view is self.listed:
            self.remove_class("-listing")
            self.page.focus()
            return
        line = self.page.selected
        if line is not None and line.key:
            self._toggled ^= {line.key}
            self.redraw()

    def action_open(self) -> None:
        self.page.action_open()

    def action_other(self) -> None:
        to_list = not self.listed.has_focus
        self.set_class(to_list, "-listing")
        (self.listed if to_list else self.page).focus()

    def step_without_search(self, step: int) -> None:
        self.listed.action_move(step)

    def action_text(self) -> None:
        self._as_text = not self._as_text
        self._cache = LineCache()
        self.page.start(follows=False)
        self.redraw()

    # Using it elsewhere.

    def action_copy(self) -> None:
        if self._data is None:
            return
        if b"\x00" in self._data[:8_000]:
            self.say("not a text file; s saves it", "waiting")
            return
        text = self._data.decode("utf-8", "replace")
        self.watch_app.copy_text(text)
        self.say(f"copied {len(text):,} characters", "done", seconds=3)

    def action_save(self) -> None:
        data, artifact = self._data, self._shown
        if data is None or artifact is None:
            return
        if self.app.is_web:  # the browser's machine is not this one
            self.app.deliver_binary(BytesIO(data), save_filename=file_name(artifact.name))
            return
        self.prompt.ask_line(
            [[("Save as", "strong"), (f"  in {sanitize(str(start_folder()))}", "muted")]],
            lambda typed: self._save(Path(typed.strip()).expanduser(), data),
            kind="save",
            value=file_name(artifact.name),
            enter="Save",
        )

    def _save(self, path: Path, data: bytes) -> None:
        def write() -> None:
            try:
                path.write_bytes(data)
            except OSError as error:
                self.say(f"✗ save failed: {self.trouble(error)}", "failed", seconds=12)
            else:
                self.say(f"✓ saved {sanitize(str(path))}  {len(data):,} bytes", "done", seconds=12)

        if path.exists():
            self.confirm([f"{clip(sanitize(str(path)), 100)} exists. Replace it?"], write)
        else:
            write()

    def action_pager(self) -> None:
        if self._data is not None and b"\x00" in self._data[:8_000]:
            self.say("not a text file; s saves it", "waiting")
        elif self._data is not None:
            text = sanitize_text(self._data.decode("utf-8", "replace"))
            self._run(os.environ.get("PAGER") or "less", text.encode())

    def action_editor(self) -> None:
        if self._data is not None:
            self._run(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi", self._data)
            self.say("edits do not change the artifact; s saves a copy", "muted")

    def _run(self, command: str, data: bytes) -> None:
        """Give the terminal to a program with a copy of the artifact, until it ends."""
        assert self._shown is not None
        if self.app.is_web:
            self.say("programs cannot run in the browser; s saves the artifact", "waiting")
            return
        with tempfile.TemporaryDirectory(prefix="watchkeeper-") as folder:
            path = Path(folder) / file_name(self._shown.name)
            path.write_bytes(data)
            try:
                with self.app.suspend():
                    subprocess.run([*shlex.split(command), str(path)], check=False)
            except (SuspendNotSupported, OSError, ValueError) as error:
                self.say(f"✗ {clip(sanitize(command), 60)}: {self.trouble(error)}", "failed", seconds=12)
        self.app.refresh()


def file_name(name: str) -> str:
    """A name for a file, from that of an artifact: no folder, and only characters that every shell takes."""
    return (
        re.sub(r"[^\w.+-]", "_", PurePosixPath(name.replace("\\", "/")).name, flags=re.ASCII).lstrip("-.")[
            -100:
        ]
        or "artifact"
    )
