"""The sentences that the program can show, in one file for a reviewer, and the words that they do without."""

from __future__ import annotations

import os
import re

import pytest
from tests.strings import LISTED, is_text, listed, strings_of

AVOIDED = re.compile(
    r"\b(begun|nobody|somebody|foretold|anew|for good|goes on|go on|carries on|carry on|takes? away|let go|lets go|"
    r"takes? back|stands? (?!for)|lives|told|tells|in place of|(?<!there )(?<!There )(is|are|was) no (?!longer|more)|none found)\b",
    re.IGNORECASE,
)
"""Words and turns that a native technical writer would not use for what the program means by them."""


def test_the_file_for_review_lists_every_sentence() -> None:
    text = listed()
    if os.environ.get("WATCHKEEPER_GOLDEN"):
        LISTED.write_text(text, encoding="utf-8")
    assert LISTED.read_text(encoding="utf-8") == text, (
        "look at the difference, then run with WATCHKEEPER_GOLDEN=1"
    )


def test_no_sentence_uses_a_word_to_avoid() -> None:
    found = [line for line in listed().splitlines() if not line.startswith("## ") and AVOIDED.search(line)]
    assert found == []


def test_a_module_s_sentences_are_listed_and_its_code_is_not() -> None:
    source = '''"""A docstring of this module."""
SQL = "SELECT id, name FROM agents WHERE id = ?"
COLUMNS = "id, session_id, created_at"
PATTERN = r"(a|b)\\s+ two words"
def say(name):
    """Another docstring of it."""
    return f"the file {name} is missing;\\n" "choose another"
'''
    assert list(strings_of(source)) == ["the file {…} is missing;\\nchoose another"]


@pytest.mark.parametrize(
    "string", ["two words", "model_calls", "a.b c.d", "", "body { color: red; } p { margin: 0; }"]
)
def test_what_is_no_sentence_is_left_out(string: str) -> None:
    assert not is_text(string)
