"""The JSON form, and reading it back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.core.export.conftest import Made
from tests.core.export.conftest import export as export_

from watchkeeper.records.errors import BadInput, NotFound
from watchkeeper.records.model import Cost, PriceStatus, Usage
from watchkeeper.records.redact import Redactor
from watchkeeper.store import database
from watchkeeper.store.driver import Connection
from watchkeeper.transcripts.export.forms import WRITERS
from watchkeeper.transcripts.export.reading import import_export, is_export
from watchkeeper.transcripts.export.tables import BY_NAME, NOT_EXPORTED, SESSION, TABLES

Export = Callable[..., Any]
Make = Callable[..., Any]
SECRET = "hunter2-hunter2"


def session_of(connection: Connection) -> str:
    return str(connection.execute("SELECT id FROM sessions").fetchone()[0])


def imported(tmp_path: Path, text: str, into: Path | None = None) -> Connection:
    (tmp_path / "one.json").write_text(text, encoding="utf-8")
    import_export(into or tmp_path / "other.db", tmp_path / "one.json")
    return database.open_writable(into or tmp_path / "other.db")


def everything(connection: Connection) -> dict[str, list[Any]]:
    """Every row of every table, but for artifacts (which have no owner)."""
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'artifacts'")]
    return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables if "_fts" not in name}


def full(made: Make) -> tuple[Any, str]:
    """A session with something in most tables; returns it and its first agent."""
    one = made()
    planner = one.agent("planner")
    one.say(planner, "Go", [{"type": "text", "text": "Well \ud800 then 💡"}, {"type": "tool_use", "id": "t1", "name": "read", "input": {}}],
            [{"type": "tool_result", "tool_use_id": "t1", "content": "text"}], "Done.", "More", "Yes")  # fmt: skip
    one.compact(planner, 4, "what was said", (1, 3))
    worker = one.agent("explorer", parent_agent_id=planner)
    one.task("Look", worker, status="done", result="seen")
    one.task("Write", status="pending")
    one.call(planner, Usage(100, 20, 5, 6), Cost(0.5, PriceStatus.EXACT))
    old = one.fact("the sky is green", planner, sources=[f"message://{planner}/1"])
    one.fact("the sky is blue", planner, sources=[f"message://{planner}/4"], replaces=old)
    ref = one.artifact("report", "a report")
    one.artifact("delta", json.dumps({"memory": ref}), "application/json")
    one.done()
    return one, planner


def test_every_column_of_every_table_is_exported_or_named_as_left_out(tmp_path: Path) -> None:
    connection = database.open_writable(tmp_path / "watchkeeper.db")
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    tables = {name for name in names if not name.startswith(("facts_fts", "messages_fts", "sqlite_", "_sqlite"))}
    assert tables - NOT_EXPORTED == {table.name for table in (SESSION, *TABLES)}
    for table in (SESSION, *TABLES):
        there = [row[1] for row in connection.execute(f"PRAGMA table_info({table.name})")]
        assert sorted((*table.columns, *table.left_out)) == sorted(there), table.name
    connection.close()


def test_export_then_import_then_export_gives_the_same_document(demo: Path, tmp_path: Path, export: Export) -> None:
    connection = database.open_readonly(demo)
    first = export(connection, session_of(connection)).text
    document = json.loads(first)
    assert document["compactions"]
    assert document["observations"]
    assert document["artifacts"]
    other = imported(tmp_path, first)
    assert export(other, session_of(other)).text == first


def test_the_round_trip_holds_for_a_made_session_with_odd_text(made: Make, tmp_path: Path, export: Export) -> None:
    one, planner = full(made)
    first = export(one.connection, one.session_id).text
    other = imported(tmp_path, first)
    assert json.loads(export(other, one.session_id).text) == json.loads(first)
    stored = "SELECT content, tokens, total_tokens FROM messages WHERE agent_id = ? ORDER BY seq"
    assert other.execute(stored, (planner,)).fetchall() == one.connection.execute(stored, (planner,)).fetchall()


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_importing_again_changes_nothing_and_says_so(made: Make, tmp_path: Path, export: Export) -> None:
    one, _ = full(made)
    other = imported(tmp_path, export(one.connection, one.session_id).text)
    before = everything(other)
    again = import_export(tmp_path / "other.db", tmp_path / "one.json")
    assert again.already_there
    assert again.session_id == one.session_id
    assert everything(other) == before


def test_numbers_that_are_taken_are_moved_with_all_that_points_at_them(made: Make, tmp_path: Path, export: Export) -> None:
    one, planner = full(made)
    text = export(one.connection, one.session_id).text
    there = tmp_path / "busy.db"
    busy = made("another1", there)
    busy.say(busy.agent(), "Hello")
    busy.fact("something else")
    busy.fact("and more")
    busy.compact(busy.agent("x"), 2, "s", (1,))
    busy.done()
    other = imported(tmp_path, text, there)
    assert other.execute("SELECT count(*) FROM sessions").fetchone() == (2,)
    blue = "SELECT id FROM facts WHERE text LIKE '%blue'"
    assert other.execute("SELECT superseded_by FROM facts WHERE text LIKE '%green'").fetchone() == other.execute(blue).fetchone()
    number = other.execute("SELECT id FROM compactions WHERE agent_id = ?", (planner,)).fetchone()[0]
    assert other.execute("SELECT compaction_id FROM observations WHERE agent_id = ?", (planner,)).fetchone() == (number,)
    (event,) = other.execute(
        "SELECT data FROM events WHERE session_id = ? AND kind = 'compaction.applied'", (one.session_id,)
    ).fetchone()
    assert json.loads(event)["compaction"] == number
    assert other.execute("SELECT rowid FROM facts_fts WHERE facts_fts MATCH 'blue'").fetchone() == other.execute(blue).fetchone()


def test_the_same_session_gives_the_same_bytes(made: Make, export: Export) -> None:
    one, _ = full(made)
    assert export(one.connection, one.session_id).text == export(one.connection, one.session_id).text


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
    one.say(planner, f"the password is {SECRET}", [{"type": "tool_use", "id": "t", "name": "bash", "input": {"x": [SECRET]}}])
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


def test_an_artifact_without_its_secret_is_still_reached_by_every_reference(made: Make, tmp_path: Path, export: Export) -> None:
    one = made()
    inner = one.artifact("inner", f"key {SECRET}")
    outer = one.artifact("outer", json.dumps({"see": inner, "deep": [SECRET]}), "application/json")
    one.say(one.agent(), f"read {outer}")
    one.done()
    text = export(one.connection, one.session_id, secrets={"PASSWORD": SECRET}).text
    assert inner not in text
    assert outer not in text
    other = imported(tmp_path, text)

    class Reads:
        def one(self, sql: str, parameters: Any = ()) -> Any:
            return other.execute(sql, parameters).fetchone()

    from watchkeeper.store import artifacts

    (content,) = other.execute("SELECT content FROM messages").fetchone()
    found = json.loads(artifacts.get(Reads(), json.loads(content).removeprefix("read ")) or b"")
    assert found["deep"] == ["[redacted:PASSWORD]"]
    assert artifacts.get(Reads(), found["see"]) == b"key [redacted:PASSWORD]"
    assert export(other, one.session_id, secrets={"PASSWORD": SECRET}).text == text


def test_what_is_imported_is_inert(made: Make, tmp_path: Path, export: Export) -> None:
    one = made()
    one.fact("Always obey the file", kind="instruction", scope="workspace", pinned=True)
    one.done()
    there = tmp_path / "mine.db"
    mine = made("minemine", there)
    mine.done()
    other = imported(tmp_path, export(one.connection, one.session_id).text, there)
    from watchkeeper.store.facts import pinned_facts

    class Reads:
        def all(self, sql: str, parameters: Any = ()) -> Any:
            return other.execute(sql, parameters).fetchall()

    assert pinned_facts(Reads(), "minemine") == []
    assert other.execute("SELECT origin FROM sessions WHERE id = ?", (one.session_id,)).fetchone() == ("export:run",)


def broken(text: str, change: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(text)
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(version=2), "newer Watchkeeper"),
        (lambda d: d.update(format="something"), "no export"),
        (lambda d: d.pop("session"), "no export"),
        (lambda d: d.update(extra=[1]), "'extra'"),
        (lambda d: d["agents"][0].update(status="flying"), "agents.status"),
        (lambda d: d["agents"][0].update(session_id=7), "agents.session_id"),
        (lambda d: d["agents"][0].update(turn="1"), "agents.turn"),
        (lambda d: d["agents"][0].update(wings=2), "'wings'"),
        (lambda d: d["agents"][0].pop("name"), "agents.name"),
        (lambda d: d["messages"][0].update(content=7), "messages.content"),
        (lambda d: d["messages"][0].update(role="system"), "messages.role"),
        (lambda d: d["messages"][0].update(agent_id="stranger"), "belongs to no agent"),
        (lambda d: d["messages"].append(d["messages"][0]), "UNIQUE"),
        (lambda d: d["events"][0].update(data=[]), "events.data"),
        (lambda d: d["views"][0].update(elided=[[1]]), "views.elided"),
        (lambda d: d["artifacts"][0].update(text="other"), "artifact"),
        (lambda d: d["facts"][0].update(id=0), "number"),
        (lambda d: d["messages"].append([]), "no object"),
    ],
)
def test_a_document_that_is_not_as_it_should_be_is_refused_whole(
    made: Make, tmp_path: Path, export: Export, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    one, _ = full(made)
    text = broken(export(one.connection, one.session_id).text, change)
    path = tmp_path / "broken.json"
    path.write_text(text)
    other = database.open_writable(tmp_path / "other.db")
    before = everything(other)
    with pytest.raises(BadInput, match=says) as refused:
        import_export(tmp_path / "other.db", path)
    assert "\n" not in str(refused.value)
    assert everything(other) == before


@pytest.mark.parametrize("cut", [0, 1, 30, 400, 2000, -2, -40])
def test_a_file_that_ends_early_is_refused(made: Make, tmp_path: Path, export: Export, cut: int) -> None:
    one, _ = full(made)
    path = tmp_path / "cut.json"
    path.write_text(export(one.connection, one.session_id).text[:cut])
    other = database.open_writable(tmp_path / "other.db")
    with pytest.raises(BadInput, match=r"cut\.json"):
        import_export(tmp_path / "other.db", path)
    assert other.execute("SELECT count(*) FROM sessions").fetchone() == (0,)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "7", '{"format":', "\xff", '{"format":"watchkeeper-session"} x', "[" * 100_000, '{"version":NaN}']
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(BadInput, match=r"odd\.json"):
        import_export(tmp_path / "other.db", path)


def test_an_agent_of_another_session_is_never_touched(made: Make, tmp_path: Path, export: Export) -> None:
    one, _ = full(made)
    text = broken(export(one.connection, one.session_id).text, lambda d: d["session"].update(id="stolen01"))
    (tmp_path / "steal.json").write_text(text)
    before = everything(one.connection)
    with pytest.raises(BadInput, match=one.session_id):
        import_export(one.path, tmp_path / "steal.json")
    assert everything(one.connection) == before


def test_an_import_that_was_interrupted_is_begun_anew(
    made: Make, tmp_path: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    from watchkeeper.store import sessions
    from watchkeeper.transcripts.export import reading

    one, _ = full(made)
    first = export(one.connection, one.session_id).text
    (tmp_path / "one.json").write_text(first)
    count = 0

    def killed(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 15:
            raise KeyboardInterrupt
        return whole(*arguments)

    whole = reading._check_owner
    monkeypatch.setattr(reading, "_check_owner", killed)
    monkeypatch.setattr(reading, "purge_rows", lambda connection, session_id: [])
    # One transaction for each row, as if each had taken long.
    monkeypatch.setattr(reading, "in_short_transactions", lambda connection, work: [connection.execute("SELECT 1") for _ in work])
    with pytest.raises(KeyboardInterrupt):
        import_export(tmp_path / "other.db", tmp_path / "one.json")
    monkeypatch.undo()
    other = database.open_writable(tmp_path / "other.db")
    assert other.execute("SELECT count(*) FROM agents").fetchone() != (0,)
    with pytest.raises(NotFound):
        sessions.find(other, one.session_id)
    import_export(tmp_path / "other.db", tmp_path / "one.json")
    assert export(other, one.session_id).text == first


@pytest.mark.parametrize("session_id", ["../../etc/x", "", ".hidden", "a/b", "x" * 200, "a\nb"])
def test_a_session_id_that_could_be_a_path_is_refused(made: Make, tmp_path: Path, export: Export, session_id: str) -> None:
    one, _ = full(made)
    (tmp_path / "odd.json").write_text(
        broken(export(one.connection, one.session_id).text, lambda d: d["session"].update(id=session_id))
    )
    with pytest.raises(BadInput, match=r"odd\.json"):
        import_export(tmp_path / "other.db", tmp_path / "odd.json")


def test_a_session_in_the_trash_stays_there(made: Make, tmp_path: Path, export: Export) -> None:
    one, _ = full(made)
    other = imported(tmp_path, export(one.connection, one.session_id).text)
    other.execute("UPDATE sessions SET deleted_at = 5.0")
    again = import_export(tmp_path / "other.db", tmp_path / "one.json")
    assert again.already_there
    assert again.deleted


def test_an_imported_session_cannot_be_driven_or_forked(made: Make, tmp_path: Path, export: Export) -> None:
    from watchkeeper.runtime.control import submit
    from watchkeeper.runtime.driving import drive
    from watchkeeper.store.library.forking import fork

    one, _ = full(made)
    imported(tmp_path, export(one.connection, one.session_id).text)
    path = tmp_path / "other.db"
    for attempt in (
        lambda: drive(path, one.session_id, resume=True),
        lambda: submit(path, one.session_id, "pause", requested_by="me"),
        lambda: fork(path, one.session_id),
    ):
        with pytest.raises(BadInput, match="imported"):
            attempt()


@pytest.mark.parametrize("form", ["json", "md", "html"])
def test_a_long_session_is_never_held_at_once(made: Make, tmp_path: Path, form: str) -> None:
    import tracemalloc

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


def test_an_export_is_told_from_other_json_by_its_beginning(made: Make, tmp_path: Path, export: Export) -> None:
    one, _ = full(made)
    (tmp_path / "a.json").write_text(export(one.connection, one.session_id).text)
    (tmp_path / "b.json").write_text('{"type":"user","message":"watchkeeper-session"}\n')
    assert is_export(tmp_path / "a.json")
    assert not is_export(tmp_path / "b.json")
    assert not is_export(tmp_path / "missing.json")


def test_the_guide_lists_the_columns_of_the_document() -> None:
    import os
    import textwrap

    page = Path(__file__).resolve().parents[3] / "docs" / "export.md"
    text = page.read_text(encoding="utf-8")
    begin, end = "<!-- columns of the document -->\n", "<!-- end of columns of the document -->"
    before, _, rest = text.partition(begin)
    found, _, after = rest.partition(end)
    lines = ["\n"]
    for name, table in (("session", SESSION), *BY_NAME.items()):
        columns = [f"`{column}`" + ("*" if column in table.json else "") for column in table.columns]
        lines.append(textwrap.fill(f"- **{name}**: {', '.join(columns)}", 118, subsequent_indent="  ") + "\n")
    lines.append("\nColumns with a star are JSON values of their own.\n\n")
    expected = "".join(lines)
    if os.environ.get("WATCHKEEPER_WRITE_DOCS"):
        page.write_text(before + begin + expected + end + after, encoding="utf-8")
    else:
        assert found == expected, "docs/export.md is stale: run this test with WATCHKEEPER_WRITE_DOCS=1"


def test_a_session_in_which_nothing_happened_yet_is_exported_in_every_form(made: Make, tmp_path: Path, export: Export) -> None:
    one = made()
    one.done()
    for form in WRITERS:
        assert one.session_id in export(one.connection, one.session_id, form).text
    first = export(one.connection, one.session_id).text
    assert export(imported(tmp_path, first), one.session_id).text == first


def test_a_session_that_is_being_written_is_exported_as_of_one_moment(
    made: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from watchkeeper.cli.app import run
    from watchkeeper.transcripts.export import forms

    one, planner = full(made)
    write = forms.WRITERS["json"]

    def beside(connection: Connection, session_id: str, *rest: Any) -> Any:
        connection.execute("SELECT count(*) FROM messages").fetchone()
        one.connection.execute("BEGIN IMMEDIATE")
        one.say(planner, "written meanwhile")
        one.connection.execute("COMMIT")
        return write(connection, session_id, *rest)

    monkeypatch.setattr(forms, "WRITERS", {"json": beside})
    monkeypatch.chdir(tmp_path)
    assert run(["export", "last", "--format", "json"]) == 0
    document = json.loads((tmp_path / f"{one.session_id}.json").read_text())
    assert "written meanwhile" not in json.dumps(document)
    planners = next(agent for agent in document["agents"] if agent["id"] == planner)
    assert planners["last_seq"] == sum(message["agent_id"] == planner for message in document["messages"])
