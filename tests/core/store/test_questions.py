"""What a question shows: all of the input, as it is, with nothing hidden."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from watchkeeper.records.text import reveal
from watchkeeper.records.tool_inputs import digest_of, file_change
from watchkeeper.store.commands import sections_of, unified_diff


def test_a_command_is_shown_decoded_and_whole(tmp_path: Path) -> None:
    command = "cat <<'E' > x\n" + "line\n" * 2_000 + "E\nrm -rf build"
    (section, other), digest = sections_of("bash", {"command": command, "timeout_ms": 5}, tmp_path)
    assert (section.text, section.language) == (command, "bash")
    assert (other.title, other.text) == ("timeout_ms", "5")
    assert digest == ""


def test_every_argument_of_a_foreign_tool_is_shown(tmp_path: Path) -> None:
    sections, _ = sections_of("mcp__x__y", {"body": "two\nlines", "deep": {"a": [1, "ä"]}}, tmp_path)
    assert [(one.title, one.text) for one in sections] == [
        ("body", "two\nlines"),
        ("deep", '{\n  "a": [\n    1,\n    "ä"\n  ]\n}'),
    ]


@given(st.text())
def test_nothing_that_acts_or_hides_is_left_and_nothing_is_dropped(text: str) -> None:
    shown = reveal(text)
    assert not [
        one
        for one in shown
        if one != "\n" and (ord(one) < 32 or 0x7F <= ord(one) < 0xA0 or one in "\u202e\u2066\u200b\ufeff")
    ]
    assert shown.count("\n") == text.count("\n")
    assert len(shown) >= len(text)


@pytest.mark.parametrize(
    "odd",
    [
        "\x1b", "\r", "\x00", "\u202e", "\u2066", "\u200b", "\u00ad", "\U000e0041", "\u00a0", "\u3164",
        "\ufe0f", "\ud800",
    ],
)  # fmt: skip
def test_a_character_that_a_terminal_obeys_or_hides_is_named(odd: str) -> None:
    assert reveal(f"a{odd}b") == f"a<U+{ord(odd):04X}>b"


LINES = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=12).map("\n".join)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(LINES, LINES, st.booleans())
def test_a_difference_is_one_that_patch_applies(tmp_path_factory, before, after, coarse):
    if before == after or not before:
        return
    folder = tmp_path_factory.mktemp("diff")
    (folder / "f").write_text(before, newline="")
    with pytest.MonkeyPatch.context() as patched:
        if coarse:
            patched.setattr("watchkeeper.store.commands._MOST_COMPARISONS", 0)
        text = unified_diff(before, after, "f") + "\n"
    done = subprocess.run(
        ["patch", "-s", "-p0", "f"], input=text, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (text, done.stdout)
    found = (folder / "f").read_text() if (folder / "f").exists() else ""
    assert found == after


def test_a_difference_of_large_files_is_whole() -> None:
    before = "\n".join(f"old {number}" for number in range(40_000))
    after = "\n".join(f"new {number}" for number in range(40_000))
    text = unified_diff(before, after, "f")
    assert "-old 39999" in text
    assert "+new 39999" in text


def test_an_edit_that_will_fail_says_so_and_shows_its_texts(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a a")
    for arguments, why in (
        ({"file_path": "f", "old_string": "a", "new_string": "b"}, "2 times"),
        ({"file_path": "f", "old_string": "z", "new_string": "b"}, "does not contain"),
        ({"file_path": "../f", "old_string": "z", "new_string": "b"}, "outside the workspace"),
    ):
        sections, _ = sections_of("edit", arguments, tmp_path)
        assert why in sections[0].text
        assert {"z", "b"} & {one.text for one in sections}


def test_the_digest_is_that_of_one_file_with_one_content(tmp_path: Path) -> None:
    call: dict[str, Any] = {"file_path": "link", "content": "x"}

    def digest() -> str:
        return digest_of(tmp_path, "write", call)

    absent = digest()
    (tmp_path / "a").write_text("same")
    (tmp_path / "b").write_text("same")
    (tmp_path / "link").symlink_to("a")
    through_a = digest()
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("b")
    through_b = digest()
    (tmp_path / "b").write_text("other")
    changed = digest()
    assert len({absent, through_a, through_b, changed}) == 4
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("/etc/hostname")
    assert digest() == "refused"  # by the tool
    (tmp_path / "link").unlink()
    os.mkfifo(tmp_path / "link")
    assert digest() == "refused"
    assert file_change(tmp_path, "write", call).problem


def test_a_link_to_another_file_is_named_also_where_that_has_the_same_name(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("[core]\n")
    (tmp_path / "config").symlink_to(".git/config")
    (tmp_path / "deep").mkdir()
    for name, target in (
        ("config", ".git/config"),
        (".git/config", ""),
        ("deep/../config", ".git/config"),
        ("./deep/a", ""),
    ):
        (section, *_), _ = sections_of("write", {"file_path": name, "content": "x"}, tmp_path)
        assert section.title == f"change to {name}" + (f" (which is {tmp_path / target})" if target else "")
