"""The progress that a run prints: what keeps it from being read is said in one line, and ends nothing
else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.places import workspace_in

from watchkeeper.cli.headless import EventPrinter
from watchkeeper.cli.options import SessionHandle
from watchkeeper.records.errors import StoreUnusable
from watchkeeper.runtime.lifecycle import NewSession, create_session


@pytest.mark.parametrize("opened_before", [1, 2])
def test_a_database_that_cannot_be_read_any_more_ends_the_progress_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], opened_before: int
) -> None:
    path = tmp_path / "watchkeeper.db"
    session = create_session(path, NewSession("goal", workspace_in(tmp_path), "test/model"))
    opened = []

    class Failing(SessionHandle):
        def __init__(self, *given: Any) -> None:
            opened.append(self)
            if len(opened) > opened_before:
                raise StoreUnusable("disk I/O error; run `wk doctor`")
            super().__init__(*given)

        def all(self, *given: Any) -> list[Any]:
            raise StoreUnusable("disk I/O error; run `wk doctor`")

    monkeypatch.setattr("watchkeeper.cli.headless.SessionHandle", Failing)
    printer = EventPrinter(path, session, as_json=False)
    printer.start(from_start=True)
    printer.finish()
    printer.report_trouble()
    assert capsys.readouterr().err == "wk: progress output stopped: disk I/O error; run `wk doctor`\n"
