"""Texts of models, tools and files as lines: what is shown, that it is harmless, and that it is made only
when it comes in sight."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.tui.conftest import Desk, shows, text_of, until
from tests.tui.fake_store import insert
from tests.tui.hostile import ATTACKS, judge

from watchkeeper.store.agent_snapshot import StoredMessage, ToolCallFacts
from watchkeeper_tui.pages.transcript import Item, ItemState, item_units, items_of
from watchkeeper_tui.reader import fold_message
from watchkeeper_tui.rendering.code import language_named, language_of
from watchkeeper_tui.rendering.documents import (
    LazyLines,
    LineCache,
    Unit,
    artifact_units,
    chunks,
    render_text,
    text_units,
)
from watchkeeper_tui.sanitize import sanitize, sanitize_text
from watchkeeper_tui.snapshot import TranscriptBlock
from watchkeeper_tui.theming import ROLES
from watchkeeper_tui.widgets.agent import AgentPane
from watchkeeper_tui.widgets.rows import Line, PageLine

FORMATS = [
    "", "markdown", "document", "diff", "hunk", "python", "bash", "json", "html", "yaml", "numbered python",
]  # fmt: skip
TEXTS = [attack.decode("utf-8", "surrogateescape") for attack in ATTACKS]
fragments = st.lists(
    st.sampled_from(
        [
            "\x1b[2J",
            "\x9b",
            "\u202e",
            "\u200b",
            "a\u0301\u0301\u0301",
            "**",
            "_",
            "`",
            "```",
            "\n",
            "\n\n",
            "- ",
            "> ",
            "1. ",
            "# ",
            "|",
            "|-|-|\n",
            "[x](",
            ")",
            "![",
            "&#27;",
            "&#x202e;",
            "&nbsp;",
            "&ZeroWidthSpace;",
            "\\",
            "<b>",
            "[@click=app.quit]",
            "漢字",
            "👩\u200d👩",
            "\t",
            "    ",
            "word ",
            "@@ -1,2 +1,2 @@\n",
            "+",
            "-",
            "'",
            '"',
            "1\t",
            "\u0301\u0301\u0301",
            "\r",
            "\x85",
        ]
    ),
    max_size=40,
).map("".join)


def words_of(line: Line) -> str:
    return "".join(text for text, _ in line)


def shown(units: list[Unit], cache: LineCache | None = None) -> list[str]:
    """All lines of the units."""
    lines = LazyLines(units, cache or LineCache())
    lines.settle(0, 1 << 30)
    return [words_of(line.pieces) for line in lines]


def units_of(item: Item, state: ItemState) -> list[Unit]:
    return item_units(item, state, LineCache())


def is_harmless(line: Line, width: int) -> None:
    text = words_of(line)
    assert sanitize(text) == text
    assert judge(text) == []
    assert cell_len(text) <= width, text
    assert {role for _, role in line} <= set(ROLES)


# --- Hostile text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_no_format_lets_a_known_attack_act_hide_or_leave_its_columns(format: str) -> None:
    for text in TEXTS:
        for part, of in chunks(text[:9_000], format):
            for line in render_text(part, of, 40):
                is_harmless(line, 40)


@settings(max_examples=60, deadline=None)
@given(fragments, st.sampled_from(FORMATS), st.integers(8, 60))
def test_nor_any_mixture_of_marks_and_attacks(text: str, format: str, width: int) -> None:
    for line in render_text(text, format, width):
        is_harmless(line, width)


@settings(max_examples=40, deadline=None)
@given(fragments, fragments)
def test_nor_does_a_message_or_an_artifact_of_any_kind(text: str, other: str) -> None:
    content: list[dict[str, Any]] = [
        {"type": "text", "text": text},
        {"type": "thinking", "thinking": text},
        {"type": "tool_use", "id": "1", "name": text, "input": {text: [text, {other: text}]}},
        {"type": "tool_use", "id": "2", "name": "Edit", "input": {"file_path": text, "old_string": text, "new_string": other}},
        {"type": "tool_use", "id": "3", "name": "x", "input": {"todos": [{"content": text, "status": other}]}},
        {"type": "tool_use", "id": "4", "name": "x", "input": {"command": text, "cmd": other}},
        {"type": "tool_result", "tool_use_id": "1", "content": json.dumps({text: other}), "is_error": False},
        {"type": "tool_result", "tool_use_id": "4", "content": [{"type": text}], "is_error": True},
        {"type": text},
    ]  # fmt: skip
    items = items_of(fold_message(StoredMessage(1, "user", json.dumps(content), 1, 1, 0.0, 9), {}))
    units = [unit for item in items for unfolded in (False, True) for unit in units_of(item, ItemState(50, unfolded, words=("word",)))]  # fmt: skip
    units += artifact_units(
        text, other, json.dumps({text: [other, {text: other * 9}]}).encode(), 50, frozenset(), shown_as="json"
    )
    units += artifact_units(
        text, other, f"{text},{other}\n{other},{text}".encode("utf-8", "replace"), 50,
        frozenset({"artifact:1"}), shown_as="csv",
    )  # fmt: skip
    units += artifact_units(text, other, b"\x00", 50, frozenset())
    for unit in units:
        for line in unit.render():
            is_harmless(line.pieces, 50)


@settings(max_examples=60, deadline=None)
@given(fragments, st.sampled_from(["", "diff", "python", "bash", "json"]))
def test_code_and_differences_are_shown_whole(text: str, format: str) -> None:
    wanted = "\n".join(line.expandtabs(4) for line in sanitize_text(text).split("\n"))
    rows = "".join(words_of(line) for line in render_text(text, format, 30))
    # Combining marks that meet where a tab was are cut by the last look at a line.
    assert rows == "".join(map(sanitize, wanted.split("\n")))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["word " * 90, "x" * 5_000, "```", "", "- a", "  b", "+c", "@@ -1 +1 @@"]), max_size=60).map("\n".join), st.sampled_from(["", "diff", "document"]))  # fmt: skip
def test_cutting_a_text_into_chunks_loses_nothing_but_opens_fences_again(text: str, format: str) -> None:
    parts = [part for part, _ in chunks(text, format)]
    assert all(len(part) <= 9_000 for part in parts)
    assert "".join(parts).replace("\n", "").replace("```", "") == text.replace("\n", "").replace("```", "")


_PLAIN = ["a", "snake_case", "é", "漢字", "`", "`x y`", "` z `", " ", "  ", "   ", "\n", "\n\n", "1", "1. ", "- ", "+", "=", "-", "!", "_",
          "http://x.y/z", "(", ")", "'", ";", ":", "@", "%", "."]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(_PLAIN), max_size=12).map("".join).filter(lambda text: "```" not in text),
    st.integers(8, 40),
)
def test_a_text_without_marks_looks_the_same_beside_one_with_marks(text: str, width: int) -> None:
    def roles(rows: list[Line]) -> list[list[tuple[str, str]]]:
        return [[(each, role) for piece, role in row for each in piece] for row in rows]

    alone = roles(render_text(text, "markdown", width))
    beside = roles(render_text(f"{text}\n\n&amp;", "markdown", width))
    assert beside[: len(alone)] == alone
    assert beside[len(alone) :] in ([[("&", "text")]], [[], [("&", "text")]])


def test_a_language_is_named_by_a_table_and_never_by_the_text() -> None:
    assert [language_named(name) for name in ("Py", "c++", "sh", "../../etc", "brainfuck", "")] == [
        "python", "cpp", "bash", "", "", "",
    ]  # fmt: skip
    assert [language_of(path) for path in ("a/b.tsx", "Dockerfile", "C:\\x\\y.rs", "x", "/")] == [
        "typescript", "docker", "rust", "", "",
    ]  # fmt: skip


# --- Markdown -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "rows"), [
    ("# A *b*\ntext", ["# A b", "", "text"]),
    ("one\ntwo  \nthree", ["one", "two", "three"]),
    ("- a\n- b\n  1. c\n  2. d\n\nend", ["• a", "• b", "  1. c", "  2. d", "", "end"]),
    ("- [ ] open\n- [x] done\n- [~] now", ["◌ open", "✓ done", "● now"]),
    ("> a\n>\n> b", ["▎ a", "▎ ", "▎ b"]),
    ("a\n\n> b", ["a", "", "▎ b"]),
    ("```py\nx = 1\n```", ["│ x = 1"]),
    ("[a](http://b.c) <http://d.e> ![f](g)", ["a (http://b.c) http://d.e [image: f] g"]),
    ("| a | b |\n|---|---|\n| 1 | `2` |", ["a │ b", "──┼──", "1 │ 2"]),
    ("<script>x</script>\n\n---", ["<script>x</script>", "", "─" * 40]),
    ("a " * 30, ["a " * 20, ("a " * 10).rstrip()]),
    ("foo_bar_baz *.py 2 * 3 * 4", ["foo_bar_baz *.py 2 * 3 * 4"]),
    ("**see** a/__init__.py, `b/__x__.py`, __main__", ["see a/__init__.py, b/__x__.py, __main__"]),
    ("Goals:\n- a\nFiles:\n- b\n  c", ["Goals:", "", "• a", "", "Files:", "", "• b", "  c"]),
])  # fmt: skip
def test_markdown_looks_as_it_means(text: str, rows: list[str]) -> None:
    assert [
        words_of(line).rstrip() if set(words_of(line)) != {"▎", " "} else words_of(line)
        for line in render_text(text, "markdown", 40)
    ] == [row.rstrip() if row != "▎ " else row for row in rows]


def test_code_is_coloured_by_roles_and_what_joins_commands_stands_out() -> None:
    (python,) = render_text("def f(): return 'a'  # b", "python", 60)
    assert {("def", "accent"), ("f", "tool"), ("'a'", "kind_messages"), ("# b", "muted")} <= set(python)
    (shell,) = render_text("rm -rf x && ls", "bash", 60)
    assert ("&&", "waiting") in shell


def test_a_removed_line_that_looks_like_a_header_is_a_removed_line() -> None:
    text = "--- a\n+++ b\n@@ -1,2 +1,2 @@\n--- x\n+++ y\n same\ndiff --git a b"
    roles = [line[0][1] for line in render_text(text, "diff", 60)]
    assert roles == ["strong", "strong", "accent", "failed", "done", "text", "strong"]


# --- A transcript's items -----------------------------------------------------------------------------------


def folded(*blocks: dict[str, Any], state: ItemState | None = None) -> list[str]:
    messages = [
        StoredMessage(seq, "assistant", json.dumps([block]), 0, 0, 100.0 + 3 * seq, 9)
        for seq, block in enumerate(blocks, 1)
    ]
    names: dict[str, str] = {}
    items = items_of(block for message in messages for block in fold_message(message, names))
    return shown([unit for item in items for unit in units_of(item, state or ItemState(60))])


def call(name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "c", "name": name, "input": given}


def result(text: Any, *, is_error: bool = False) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c", "content": text, "is_error": is_error}


def test_a_call_and_its_result_are_one_item_with_its_state_and_duration() -> None:
    lines = folded(call("Bash", command="pytest -q"), result("1\n2\n3\n4\n5"))
    assert lines[0].startswith("→ Bash  pytest -q  ✓ 3.0s  #1")
    assert lines[1:4] == ["  ← 1", "    2", "    3"]
    assert "2 more lines, Enter unfolds" in lines[4]
    assert folded(call("Bash", command="x"), result("no", is_error=True))[0].startswith(
        "→ Bash  x  ✗ failed 3.0s"
    )
    running = ToolCallFacts("c", "Bash", "running", False, 10.0, None)
    assert (
        "● running 12s" in folded(call("Bash", command="x"), state=ItemState(60, call=running, now=22.0))[0]
    )
    assert (
        "the background process stopped"
        in folded(call("Bash", command="x"), state=ItemState(60, call=running, is_stopped=True))[0]
    )
    assert len(folded(result("alone"))) == 2


@pytest.mark.parametrize(
    ("status", "began", "drawn"),
    [
        ("cancelled", None, "× not run"), ("cancelled", 10.0, "× cancelled"), ("denied", None, "✗ denied"),
        ("unknown", 10.0, "? outcome unknown"), ("pending", None, "◌ waiting to run"), ("done", 10.0, "✓"),
        ("held back", 10.0, "? held back"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("answered", [False, True])
def test_only_a_call_that_is_done_has_a_tick_and_an_unknown_state_is_its_own_word(
    status: str, began: float | None, drawn: str, answered: bool
) -> None:
    state = ItemState(80, call=ToolCallFacts("c", "Bash", status, False, began, None))
    said = [call("Bash", command="x"), *([result("said")] if answered else [])]
    head = folded(*said, state=state)[0]
    assert f"  {drawn}" in head
    assert ("✓" in head) is (status == "done")


@pytest.mark.parametrize("given", [
    {"file_path": "/a/b.py", "old_string": "x = 1\nsame", "new_string": "x = 2\nsame"},
    {"filePath": "/a/b.py", "oldString": "x = 1\nsame", "newString": "x = 2\nsame"},
    {"file_path": "/a/b.py", "edits": [{"old_string": "x = 1\nsame", "new_string": "x = 2\nsame"}]},
    {"path": "/a/b.py", "input": "*** Begin Patch\n*** Update File: /a/b.py\n-x = 1\n+x = 2\n*** End Patch"},
    {"changes": [{"path": "/a/b.py", "diff": "-x = 1\n+x = 2"}]},
])  # fmt: skip
def test_every_programs_edit_is_a_difference(given: dict[str, Any]) -> None:
    lines = folded(call("Edit", **given), result("The file was changed."))
    assert "+1 -1" in lines[0]
    assert {"  -x = 1", "  +x = 2"} <= set(lines) | {f"  {line.strip()}" for line in lines}
    assert not any("The file was changed." in line for line in lines)


def test_a_file_that_is_written_is_added_lines_and_a_failed_edit_says_why() -> None:
    assert "  +hello" in folded(call("Write", file_path="/a", content="hello\nworld\n"))
    assert "+2 -0" in folded(call("Write", file_path="/a", content="hello\nworld\n"))[0]
    assert any(
        "not found" in line
        for line in folded(call("Edit", old_string="a", new_string="b"), result("not found", is_error=True))
    )


@pytest.mark.parametrize(("name", "text"), [("todos", "content"), ("plan", "step")])
def test_a_list_of_things_to_do_is_a_checklist(name: str, text: str) -> None:
    steps = [
        {text: "one", "status": "completed"},
        {text: "two", "status": "in_progress"},
        {text: "three", "status": "pending"},
    ]
    assert folded(call("TodoWrite", **{name: steps}))[1:4] == ["  ✓ one", "  ● two", "  ◌ three"]


def test_a_file_that_is_read_is_code_beside_its_numbers() -> None:
    items = items_of(
        block
        for seq, part in enumerate(
            (call("Read", file_path="/a.py"), result("     1→import os\n     2→x = 'y'")), 1
        )
        for block in fold_message(StoredMessage(seq, "user", json.dumps([part]), 0, 0, 0.0, 9), {})
    )
    rows = [row for unit in units_of(items[0], ItemState(60, is_unfolded=True)) for row in unit.render()]
    assert list(rows[-2].pieces[1:3]) == [("    1 ", "faint"), ("import", "accent")]
    assert ("'y'", "kind_messages") in rows[-1].pieces


def test_thinking_is_dimmed_and_folded() -> None:
    (item,) = items_of(
        fold_message(
            StoredMessage(
                1, "assistant", json.dumps([{"type": "thinking", "thinking": "a\nb\nc\nd"}]), 0, 0, 0.0, 9
            ),
            {},
        )
    )
    rows = [row for unit in units_of(item, ItemState(60)) for row in unit.render()]
    assert [row.pieces[-1][1] for row in rows[1:3]] == ["thinking", "thinking"]
    assert "2 more lines" in words_of(rows[3].pieces)
    assert len(shown(units_of(item, ItemState(60, is_unfolded=True)))) == 5


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"type": "thinking", "thinking": "", "signature": "c2VhbA=="}, "(hidden by the provider)"),
        ({"type": "redacted_thinking", "data": "c2VhbA=="}, "(redacted)"),
    ],
)
def test_thinking_that_is_not_shown_says_so(block: dict[str, str], said: str) -> None:
    (item,) = items_of(fold_message(StoredMessage(1, "assistant", json.dumps([block]), 0, 0, 0.0, 9), {}))
    assert said in str(shown(units_of(item, ItemState(60))))


def test_what_is_searched_is_marked_in_every_format() -> None:
    lines = [
        row
        for unit in _said("Find **the Word** here", ItemState(60, words=("word",)))
        for row in unit.render()
    ]
    assert ("Word", "match") in lines[1].pieces


def _said(text: str, state: ItemState) -> list[Unit]:
    return units_of(
        items_of(fold_message(StoredMessage(1, "user", json.dumps(text), 0, 0, 0.0, 9), {}))[0], state
    )


# --- Only what comes in sight -------------------------------------------------------------------------------

HEIGHT = 50


def test_a_transcript_of_100_000_messages_renders_what_is_in_sight() -> None:
    cache = LineCache()
    units = []
    for seq in range(1, 100_001):
        said = TranscriptBlock(f"{seq}.0", seq, "assistant", "assistant", f"**{seq}**\n\n- a\n- b", 0, 0.0)
        units += units_of(Item(said), ItemState(80))
    lines = LazyLines(units, cache)
    top = lines.settle(0, HEIGHT, at_end=True)
    assert cache.rendered <= 3 * HEIGHT
    assert words_of(lines[-1].pieces) == "  • b"
    for _ in range(20):  # page up
        before, frame = lines[top].id, cache.rendered
        top = lines.settle(top, HEIGHT)
        assert lines[top].id == before
        top = lines.settle(top - HEIGHT, HEIGHT)
        assert cache.rendered - frame <= 3 * HEIGHT
    frame = cache.rendered
    lines.settle(len(lines) // 3, HEIGHT)
    assert cache.rendered - frame <= 4 * HEIGHT
    assert lines.place_of("77.0.0") is not None


def test_a_message_of_1_mb_renders_what_is_in_sight_folded_and_unfolded() -> None:
    text = "\n\n".join(
        f"## Part {number}\n\n{'word ' * 60}\n\n```python\nx = {number}\n```" for number in range(3_000)
    )
    assert len(text) > 1_000_000
    cache = LineCache()
    folded_lines = LazyLines(_said(text, ItemState(80)), cache)
    folded_lines.settle(0, HEIGHT)
    assert cache.rendered <= 20
    lines = LazyLines(_said(text, ItemState(80, is_unfolded=True)), cache)
    top = 0
    for _ in range(10):
        frame = cache.rendered
        top = lines.settle(top + HEIGHT, HEIGHT)
        assert cache.rendered - frame <= 6 * HEIGHT
    lines.settle(len(lines), HEIGHT)
    assert words_of(lines[-1].pieces) == "  │ x = 2999"


def test_what_was_rendered_is_not_rendered_again_for_the_same_width() -> None:
    cache = LineCache()
    first = shown(_said("a **b**\n\n- c", ItemState(60)), cache)
    made = cache.rendered
    assert shown(_said("a **b**\n\n- c", ItemState(60)), cache) == first
    assert cache.rendered == made
    shown(_said("a **b**\n\n- c", ItemState(61)), cache)
    assert cache.rendered == 2 * made


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40), st.sampled_from([1, 1, 1, 12]), st.lists(st.integers(0, 2_000), max_size=8), st.integers(1, 12))  # fmt: skip
def test_estimates_never_move_what_is_in_sight_and_end_exact(sizes, times, tops, height):
    sizes = sizes * times

    def unit(number: int, guess: int, size: int) -> Unit:
        return Unit(
            str(number),
            0,
            guess,
            lambda: [PageLine(f"{number}.{at}", ((f"{number}.{at}", "text"),)) for at in range(size)],
        )

    lines = LazyLines([unit(number, guess, size) for number, (guess, size) in enumerate(sizes)], LineCache())
    every = [f"{number}.{at}" for number, (_, size) in enumerate(sizes) for at in range(size)]
    for top in tops:
        top = lines.settle(top, height)
        window = [lines[at].id for at in range(top, min(top + height, len(lines)))]
        assert window == every[every.index(window[0]) :][: len(window)]  # no line twice, none left out
        assert [lines.place_of(each) for each in window] == list(range(top, top + len(window)))
        again = lines.settle(top, height)
        assert lines[again].id == window[0]
    lines.settle(0, 1 << 30)
    assert [line.id for line in lines] == every


# --- Artifacts ----------------------------------------------------------------------------------------------


def test_json_is_a_tree_that_folds() -> None:
    value = {"name": "a", "steps": [1, None, {"deep": True}], "empty": {}}
    data = json.dumps(value).encode()
    whole = shown(artifact_units("x.json", "", data, 60, frozenset()))
    assert whole == [
        "▾ {", '    name: "a"', "  ▾ steps: [", "      0: 1", "      1: null", "    ▾ 2: {",
        "        deep: true", "    empty: {}",
    ]  # fmt: skip
    (unit,) = artifact_units("x.json", "", data, 60, frozenset())
    key = unit.render()[2].key
    assert shown(artifact_units("x.json", "", data, 60, frozenset({key})))[2:] == [
        "  ▸ steps: […] 3 items",
        "    empty: {}",
    ]
    assert shown(artifact_units("x.json", "", b"[" * 100_000, 60, frozenset()))[0].startswith("[[[")
    large = json.dumps([{"id": number} for number in range(5_000)]).encode()
    assert shown(artifact_units("x.json", "", large, 60, frozenset())) == ["▸ […] 5,000 items"]


def test_csv_is_a_table_and_a_row_unfolds() -> None:
    data = b'name,note\nfirst,"two\nlines"\nsecond,x\n'
    assert shown(artifact_units("x.csv", "", data, 60, frozenset())) == [
        "name   │ note     ", "───────┼──────────".replace("┼", "─"), "first  │ two lines", "second │ x        ",
    ]  # fmt: skip
    opened = shown(artifact_units("x.csv", "text/csv", data, 60, frozenset({"artifact:1"})))
    assert opened[3:6] == ["  name: first", "  note: two", "  : lines"]


def test_an_image_is_its_name_type_and_size() -> None:
    data = b"\x89PNG\r\n\x1a\n" + b"\0" * 8 + (640).to_bytes(4, "big") + (480).to_bytes(4, "big")
    assert shown(artifact_units("a.png", "image/png", data, 60, frozenset())) == [
        "name  a.png", "type  image/png", "size  24 bytes", "image 640 × 480 pixels",
    ]  # fmt: skip


def test_an_artifact_is_shown_by_its_name_or_type_and_any_as_text() -> None:
    text = b"# Title\nsome\nwords"
    assert shown(artifact_units("SURVEY.md", "text/plain", text, 60, frozenset())) == [
        "# Title",
        "",
        "some words",
    ]
    assert shown(artifact_units("SURVEY.md", "text/plain", text, 60, frozenset(), shown_as="")) == [
        "# Title",
        "some",
        "words",
    ]
    assert len(text_units("x", "a\n" * 10_000, "", 60)) > 5


# --- The artifact viewer ------------------------------------------------------------------------------------


def save(
    desk: Desk, name: str, data: bytes, media_type: str = "text/plain", agent: str = "explorer1"
) -> None:
    connection = desk.session.connection
    digest = hashlib.sha256(data).hexdigest()
    insert(
        connection, "artifacts", digest=digest, size=len(data), encoding="plain", media_type=media_type,
        data=data, created_at=1.0,
    )  # fmt: skip
    insert(
        connection, "outputs", session_id=desk.session.id, agent_id=agent, name=name, kind="artifact", digest=digest,
        created_at=desk.session.now,
    )  # fmt: skip


async def test_the_end_of_a_run_names_its_result_and_enter_opens_it(desk: Desk) -> None:
    save(desk, "notes.json", b'{"a": [1, 2]}')
    save(desk, "SURVEY.md", b"# The survey\n\n- **one**")
    desk.session.set(status="done", ended_at=desk.time)
    desk.session.connection.execute("UPDATE agents SET status = 'done', ended_at = ?", (desk.time,))
    async with desk.shown("Enter opens SURVEY.md") as pilot:
        await pilot.press("g", "enter")
        await shows(pilot, "# The survey", "• one")
        await pilot.press("t")
        await shows(pilot, "- **one**")
        await pilot.press("y", "n")
        assert pilot.app.clipboard == "# The survey\n\n- **one**"
        await shows(pilot, "▾ a: [")
        await pilot.press("down", "enter")
        await shows(pilot, "▸ a: […] 2 items")
        await pilot.press("escape")
        await shows(pilot, "1 Plan")
        rows = text_of(pilot).splitlines()
        await pilot.click(offset=(10, next(y for y, row in enumerate(rows) if "▾ planner" in row)), times=2)
        await shows(pilot, "• one")
        await pilot.press("escape")  # it was opened once
        await shows(pilot, "1 Plan")


async def test_an_artifact_is_opened_from_its_agents_tab_saved_and_paged(desk, tmp_path, monkeypatch):
    text = b"a\x1b[2J\xe2\x80\xae" + b"\n| x |"
    save(desk, "../out.txt", text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAGER", f"cp -t {tmp_path}")
    app = desk.app()
    monkeypatch.setattr(app, "suspend", contextlib.nullcontext)
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, "explorer-1")
        app.screen.agent_pane.open_page("Artifacts")  # type: ignore[attr-defined]
        await pilot.press("3")
        await shows(pilot, "../out.txt")
        await pilot.press("g", "down", "enter")
        await shows(pilot, "a·")
        await pilot.press("p")
        assert (tmp_path / "out.txt").read_bytes() == sanitize_text(text.decode()).encode()
        await pilot.press("s", *["backspace"] * 7, *"copy", "enter")
        await until(pilot, lambda: (tmp_path / "copy").is_file())
        assert (tmp_path / "copy").read_bytes() == text
        await pilot.press("s", *["backspace"] * 7, *"copy", "enter")
        await shows(pilot, "Replace it?")


async def test_a_search_in_a_transcript_keeps_its_context_and_n_goes_on(desk: Desk) -> None:
    async with desk.shown("explorer-1", without="reading") as pilot:
        await pilot.press("3", "right", "slash", *"python", "enter")
        await shows(pilot, "Thirty files of Python")
        assert "start with the folder" in text_of(pilot)  # another message stays
        pane = pilot.app.screen.query_one(AgentPane)
        selected = []
        for key in ("n", "N", "left_curly_bracket"):
            await pilot.press(key)
            assert pane.page.selected is not None
            selected.append(pane.page.selected.key)
        assert selected[:2] == ["4.0", "4.0"]
        assert selected[2].startswith(("2.", "3."))


def test_the_filter_of_a_transcript_finds_words_across_colours() -> None:
    block = TranscriptBlock("1.0", 1, "text", "user", "\x1b[31mFAIL\x1b[39m src/\x1b[1mqueueworker", 1, 1.0)
    assert Item(block).holds("fail src/queueworker")
