"""Exporting: the run that is shown, as one file, written by the command line in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from watchkeeper_tui import formatting
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.screens.base import WatchScreen

if TYPE_CHECKING:
    _Base = WatchScreen
else:
    _Base = object

NOTICE_SECONDS = 30.0


class Exporting(_Base):
    """A screen that can export the session it shows."""

    def export_session(self, session_id: str, form: str) -> None:
        """Begin to export, as `form` (`html` where nothing was typed), into the folder where the dashboard
        was started."""
        from watchkeeper_tui.exporting import FORMS

        known = [name for name, _ in FORMS.values()]
        form = form or "html"
        if form not in known:
            self.say(f"/export takes {', '.join(known[:-1])} or {known[-1]}", "failed")
            return
        self.say(f"exporting {sanitize(session_id)} as {form} …", "muted", seconds=600)
        self.run_worker(self._export(session_id, form), exit_on_error=False, group="export")

    async def _export(self, session_id: str, form: str) -> None:
        from watchkeeper_tui.exporting import export

        try:
            done = await export(self.watch_app.database_path, session_id, form, Path.cwd())
            problem = done.problem
        except (OSError, ValueError, KeyError) as error:
            problem = str(error)
        if self._closing:
            return
        if problem:
            self.say(f"✗ not exported: {self.trouble(problem)}", "failed", seconds=NOTICE_SECONDS)
            return
        took = f", {formatting.plural(done.redacted, 'secret')} taken out" if done.redacted else ""
        path = Path(done.path)
        said = f"✓ {sanitize(path.name)}  {done.bytes:,} bytes{took}  in {sanitize(str(path.parent))}"
        self.say(said, "done", seconds=NOTICE_SECONDS)
