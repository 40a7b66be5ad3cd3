"""The forms that a session can be exported in, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TextIO

from watchkeeper.records.redact import Redactor
from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.export.document import write_json
from watchkeeper.transcripts.export.markdown import write_markdown
from watchkeeper.transcripts.export.page import write_page

Write = Callable[[Connection, str, TextIO, Callable[[], Redactor] | None], int | None]
"""Connection (in a read transaction), session id, where to, what takes secrets out (None leaves them in) →
how many."""

WRITERS: Mapping[str, Write] = {"md": write_markdown, "html": write_page, "json": write_json}
