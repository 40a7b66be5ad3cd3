"""The commands that the how-to pages show, run after a demo that has ended."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from tests.core.cli.conftest import Wk
from tests.support.guide import DOCS

NOT_RUN = "<!-- not run: "


def shown(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(rf"({NOT_RUN}[^\n]*\n)?```sh\n(.*?)```", text, re.DOTALL)
    return [
        line
        for skipped, block in blocks
        if not skipped
        for line in block.splitlines()
        if line.startswith("wk ")
    ]


def how_to_pages() -> list[str]:
    sections = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    (groups,) = (section["How to"] for section in sections if "How to" in section)
    return [page for group in groups for pages in group.values() for page in pages]


LACKS = re.compile(
    "needs a key|no model is set|no (pending )?question '|no grant |is already done|the session has ended|is running; cancel it|"
    "the session is already done|no [A-Z][a-zA-Z ]* logs in|no such file or folder|there is no folder|no folder |no such folder|does not match any session|no task '|no session '|"
    "[Nn]othing to (undo|redo)|No compaction of this context started|no database at|has no turn|has no event|no longer fits"
)
"""What a command may say that an ended demo lacks: a key, a question, a task or session of that name, a file."""
SKIPPED = (
    "wk watch claude",  # goes on until it is interrupted: the test of the tutorial runs it
    'wk run "Find dead code"',  # asks a server, again and again
)


@pytest.mark.parametrize("page", [page for page in how_to_pages() if shown(page)])
def test_each_command_of_a_how_to_page_runs(
    page: str, demo: Path, wk: Wk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    bad: list[tuple[int, str, str]] = []
    for line in shown(page):
        if line.startswith(SKIPPED):
            continue
        said = wk(*shlex.split(line.replace("SESSION", "last").replace("TASK", "src"), comments=True)[1:])
        if said.code and not LACKS.search(said.err):
            bad.append((said.code, line, said.err))
    assert not bad, bad
