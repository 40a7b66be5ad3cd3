"""The JSON form: what it holds, and that it is the same again after a way through another database."""

from __future__ import annotations

import io
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.export.conftest import Made
from tests.core.export.conftest import export as export_
from tests.core.export.documents import Export, Make, full, imported, session_of
from tests.support.guide import agrees

from watchkeeper.records.redact import Redactor
from watchkeeper.store import artifacts, database
from watchkeeper.store.driver import Connection, Queries
from watchkeeper.store.schema import SESSIONS
from watchkeeper.transcripts.export import WRITERS
from watchkeeper.transcripts.export.document import EXPORTED, import_export

SECRET = "hunter2-hunter2"


def test_export_then_import_then_export_gives_the_same_document(demo, tmp_path, export):
    connection = database.open_readonly(demo)
    first = export(connection, session_of(connection)).text
    document = json.loads(first)
    assert document["compactions"]
    assert document["observations"]
    assert document["artifacts"]
    other = imported(tmp_path, first)
    assert export(other, session_of(other)).text == first


@settings(max_examples=15)
@given(texts=st.lists(st.text(st.characters(categories=None, exclude_categories=())), min_size=1, max_size=6))
def test_the_round_trip_holds_whatever_was_said(tmp_path: Path, texts: list[str]) -> None:
    for name in ("from.db", "other.db"):
        for part in tmp_path.glob(f"{name}*"):
            if part.is_file():
                part.unlink()
    one = Made(tmp_path / "from.db")
    agent = one.agent()
    for text in texts:
        one.say(agent, text, [{"type": "text", "text": text, text: [text, None, 1.5]}])
        one.fact(f"fact {text}")
    one.artifact("all", json.dumps(texts))
    one.done()
    first = export_(one.connection, one.session_id).text
    other = imported(tmp_path, first)
    assert export_(other, one.session_id).text == first
    one.connection.close()
    other.close()


def test_a_document_of_another_layout_is_read_as_well(made: Make, tmp_path: Path, export: Export) -> None:
    one, _ = full(made)
    first = json.loads(export(one.connection, one.session_id).text)
    other = imported(tmp_path, json.dumps(first, indent=3, sort_keys=True))
    assert json.loads(export(other, one.session_id).text) == first


def test_only_the_rows_of_the_session_are_in_its_document(made: Make, tmp_path: Path, export: Export) -> None:
    one, _ = full(made)
    other = made("another1", one.path)
    other.say(other.agent(), "not yours")
    other.fact("not yours either")
    other.artifact("theirs", "their artifact")
    other.done()
    assert "not yours" not in export(one.connection, one.session_id).text
    assert "their artifact" not in export(one.connection, one.session_id).text


def test_secrets_are_taken_out_everywhere_and_counted(made: Make, export: Export) -> None:
    one = made()
    planner = one.agent()
    one.say(
        planner,
        f"the password is {SECRET}",
        [{"type": "tool_use", "id": "t", "name": "bash", "input": {"x": [SECRET]}}],
    )
    one.compact(planner, 2, f"said {SECRET}", (1,))
    one.task(f"Use {SECRET}", instructions=f"log in with {SECRET}", result=SECRET, error=SECRET)
    one.fact(f"{SECRET} works", planner)
    one.artifact("notes", f"{SECRET}\n")
    one.done()
    for form in ("json", "md", "html"):
        found = export(one.connection, one.session_id, form, {"PASSWORD": SECRET})
        assert SECRET not in found.text, form
        assert "[redacted:PASSWORD]" in found.text
        assert found.redacted >= 6, form
        left = export(one.connection, one.session_id, form, redact=False)
        assert SECRET in left.text
        assert left.redacted is None


def test_an_artifact_without_its_secret_is_still_reached_by_every_reference(made, tmp_path, export):
    one = made()
    inner = one.artifact("inner", f"key {SECRET}")
    outer = one.artifact("outer", json.dumps({"see": inner, "deep": [SECRET]}), "application/json")
    one.say(one.agent(), f"read {outer}")
    one.done()
    text = export(one.connection, one.session_id, secrets={"PASSWORD": SECRET}).text
    assert inner not in text
    assert outer not in text
    other = imported(tmp_path, text)
    (content,) = other.execute("SELECT content FROM messages").fetchone()
    found = json.loads(artifacts.get(Queries(other), json.loads(content).removeprefix("read ")) or b"")
    assert found["deep"] == ["[redacted:PASSWORD]"]
    assert artifacts.get(Queries(other), found["see"]) == b"key [redacted:PASSWORD]"
    assert export(other, one.session_id, secrets={"PASSWORD": SECRET}).text == text


@pytest.mark.parametrize("form", ["json", "md", "html"])
def test_a_long_session_is_never_held_at_once(made: Make, tmp_path: Path, form: str) -> None:
    import tracemalloc

    small = made("small001", tmp_path / "small.db")
    small.done()
    WRITERS[form](
        small.connection, small.session_id, io.StringIO(), lambda: Redactor({})
    )  # loads what a writer needs
    one = made()
    planner = one.agent()
    for _ in range(12):
        one.say(planner, *("x" * 4_000 for _ in range(150)))
    one.done()
    path = tmp_path / "long"
    tracemalloc.start()
    with path.open("w", encoding="utf-8") as out:
        WRITERS[form](one.connection, one.session_id, out, lambda: Redactor({}))
    if form == "json":
        import_export(tmp_path / "other.db", path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 7_000_000
    assert peak < 3_000_000


def test_the_guide_lists_the_columns_of_the_document() -> None:
    lines = ["\n"]
    for name, table in (("session", SESSIONS), *((one.name, one) for one in EXPORTED)):
        columns = [f"`{column}`" + ("*" if column in table.json else "") for column in table.columns]
        lines.append(textwrap.fill(f"- **{name}**: {', '.join(columns)}", 118, subsequent_indent="  ") + "\n")
    lines.append("\nColumns with a star are JSON values of their own.\n\n")
    agrees("export-format.md", "columns of the document", "".join(lines))


def test_a_session_in_which_nothing_happened_yet_is_exported_in_every_form(made, tmp_path, export):
    one = made()
    one.done()
    for form in WRITERS:
        assert one.session_id in export(one.connection, one.session_id, form).text
    first = export(one.connection, one.session_id).text
    assert export(imported(tmp_path, first), one.session_id).text == first


def test_a_session_that_is_being_written_is_exported_as_of_one_moment(made, tmp_path, monkeypatch):
    from watchkeeper.cli.app import run
    from watchkeeper.transcripts import export

    one, planner = full(made)
    write = export.WRITERS["json"]

    def beside(connection: Connection, session_id: str, *rest: Any) -> Any:
        connection.execute("SELECT count(*) FROM messages").fetchone()
        one.connection.execute("BEGIN IMMEDIATE")
        one.say(planner, "written meanwhile")
        one.connection.execute("COMMIT")
        return write(connection, session_id, *rest)

    monkeypatch.setattr(export, "WRITERS", {"json": beside})
    monkeypatch.chdir(tmp_path)
    assert run(["export", "last", "--format", "json"]) == 0
    document = json.loads((tmp_path / f"{one.session_id}.json").read_text())
    assert "written meanwhile" not in json.dumps(document)
    planners = next(agent for agent in document["agents"] if agent["id"] == planner)
    assert planners["last_seq"] == sum(message["agent_id"] == planner for message in document["messages"])
