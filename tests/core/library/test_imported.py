"""Sessions that other programs ran are kept like our own, never forked, and imported again once pruned."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.core.cli.conftest import Wk, _a_user_of_its_own, wk
from tests.core.transcripts.conftest import Log, call, text

__all__ = ["_a_user_of_its_own", "wk"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    written = Log()
    written.user("where is the ledger?")
    written.reply(text("I look."), call("Read", "toolu_1", file_path="/x"), id="msg_1", stop="tool_use")
    written.result("toolu_1", "the ledger is in the blue safe")
    written.reply(text("In the blue safe."), id="msg_2")
    return written.write(tmp_path / "logs")


def test_an_imported_session_is_named_deleted_restored_and_pruned(wk: Wk, log: Path) -> None:
    assert wk("import", log).code == 0
    (session,) = wk("sessions", "--json").json
    assert wk("edit", "last", "--title", "the ledger").code == 0
    assert wk("edit", "last", "--tag", "old").code == 0
    wk("delete", "last")
    assert wk("import", log).code == 0
    assert wk("sessions", "--json").json == []
    assert wk("delete", "--restore", "last").code == 0
    before = wk("show", "last", "--json").json
    assert wk("delete", "--prune", session["id"]).code == 0
    assert wk("sessions", "--json").json == []
    assert wk("import", log).code == 0
    again = wk("show", "last", "--json").json
    found = [agent["messages"] for agent in again["agents"]]
    assert found == [agent["messages"] for agent in before["agents"]]
    assert again["session"]["tokens"] == before["session"]["tokens"]
    assert (
        "blue safe" in wk("sessions", "--search", "ledger").out
        or wk("sessions", "--search", "safe", "--json").json
    )


def test_an_imported_session_is_not_forked(wk: Wk, log: Path) -> None:
    wk("import", log)
    said = wk("fork", "last")
    assert said.code == 2
    assert "was run by Claude Code; continue it with `wk run --from" in said.error
    assert len(wk("sessions", "--json").json) == 1


def test_nothing_of_a_finished_session_is_called_now(wk: Wk, tmp_path: Path) -> None:
    log = Log()
    log.user("Mend the ledger")
    todos = [{"content": "Look", "status": "completed"}, {"content": "Mend", "status": "in_progress"}]
    log.reply(call("TodoWrite", "t1", todos=todos), id="m1", stop="tool_use")
    log.result("t1", "Todos have been modified successfully.")
    wk("import", log.write(tmp_path / "logs"))
    shown = wk("show", "last").out
    assert "1 of 2 tasks done; stopped at: Mend (paused)" in shown
    assert "running" not in shown
