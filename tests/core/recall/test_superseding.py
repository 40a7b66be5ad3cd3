"""Which facts bring earlier ones up to date, and which only look like it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.store.facts import is_same, is_update


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("The proxy listens on port 8080", "The proxy now listens on port 8443."),
        ("The queue lives in src/queue.py", "The queue lives in src/jobs/queue.py"),
        ("The limit is 10 requests", "The limit is 20 requests"),
        ("The current version of the API is 1.4.2", "The version of the API is 1.5.0"),
        ("The release branch is called stable", "The release branch is called main"),
        ("The default branch is master", "The default branch is main"),
        ("The owner of the parser is Ann", "The owner of the parser is Bob"),
        ("The database is PostgreSQL", "The database is SQLite"),
        ("max_connections = 100", "max_connections = 250"),
        ("timeout: 30 s", "timeout: 60 s"),
        ("The suite takes 40 s", "The suite takes 55 s"),
        ("The repository has 120 tests", "The repository has 131 tests"),
        ("Prompt caching is on", "Prompt caching is off"),
        ("The docs are stored in docs/guide", "The docs are stored in docs/manual"),
        ("The API is at https://a.example/v1", "The API is at https://a.example/v2"),
        ("The timeout is set to 30", "The timeout is 60"),
        ("The build is pinned to commit 4f2a9c1", "The build is pinned to commit 77b01ce"),
    ],
)
def test_a_new_value_of_the_same_subject_is_an_update(old: str, new: str) -> None:
    assert is_update(old, new)
    assert is_update(new, old)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Step 2 is green", "Step 3 is green"),
        ("src/a.py has 20 lines", "src/b.py has 20 lines"),
        ("src/a.py has 20 lines", "src/b.py has 30 lines"),
        ("The parser depends on src/a.py", "The parser depends on src/b.py"),
        ("The parser imports 3 modules", "The lexer imports 4 modules"),
        ("The parser is slow", "The parser is written in Rust"),
        ("The parser is slow", "The parser is large"),
        ("Ann saw 3 whales", "Ann saw 4 whales"),
        ("whale sighting 1", "whale sighting 2"),
        ("The bug is in src/a.py, line 3", "The bug is in src/a.py, line 9"),
        ("The failure is in test 4", "The failure is in test 7"),
        ("The port is 8080 and 8443", "The port is 9000 and 9443"),
        ("The owner is not Ann", "The owner is Bob"),
        ("It is 8443", "It is 9000"),
        ("There are 3 services", "There are 4 regions"),
        ("The staging port is 8080", "The production port is 8443"),
        ("The port of the proxy is 8080", "The port of the cache is 8443"),
        ("Tests run with pytest", "Tests run with tox"),
        ("error: file a.py is missing", "error: file b.py is missing"),
        ("note: 3 files", "note: 4 files"),
        ("The limit is 10 requests", "The limit is 20 megabytes"),
        ("The lighthouse alpha is lit", "The lighthouse beta is lit"),
        ("main.py calls parse() in line 10", "main.py calls parse() in line 20"),
        ("One of the ports is 8080", "One of the ports is 8443"),
        ("The language is Python for scripts and tests", "The language is Rust for the core and tools"),
        ("name: Deploy to staging", "name: Run the tests"),
        ("The status is green", "The status is red"),
        ("Total: $350", "Total: $7,200"),
        ("", ""),
        ("is", "is"),
    ],
)
def test_facts_that_may_both_hold_are_no_update(old: str, new: str) -> None:
    assert not is_update(old, new)
    assert not is_update(new, old)


def test_the_same_words_but_for_articles_case_and_punctuation_are_the_same_fact() -> None:
    assert is_same("The gate opens at nine.", "gate now opens at nine!")
    assert is_same("Use `tabs`, not spaces", "use tabs not spaces")
    assert not is_same("The gate opens at nine", "The gate never opens at nine")
    assert not is_same("The gate opens at nine", "At nine the gate opens")
    assert not is_same("...", "!!!")


@given(st.text(), st.text())
def test_any_two_texts_can_be_compared_and_no_text_updates_itself(old: str, new: str) -> None:
    assert is_update(old, new) == is_update(new, old)
    assert not is_update(old, old)


WORDS = "parser proxy cache alpha beta port limit branch of the"


@given(
    subject=st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=4),
    other=st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=4),
    value=st.integers(0, 99),
)
def test_facts_of_different_subjects_never_supersede_each_other(
    subject: list[str], other: list[str], value: int
) -> None:
    first, second = f"{' '.join(subject)} is {value}", f"{' '.join(other)} is {value + 1}"
    if [word for word in subject if word != "the"] != [word for word in other if word != "the"]:
        assert not is_update(first, second)
