"""What is found, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.memory.ranking import Document, Query, rank


def documents(*texts: str) -> list[Document]:
    return [Document(str(number), text, thread=str(number)) for number, text in enumerate(texts)]


def found(texts: list[Document], query: str, limit: int = 10) -> list[str]:
    return [hit.id for hit in rank(texts, query, limit)]


def test_common_words_of_a_question_find_nothing_by_themselves() -> None:
    texts = documents(
        "what is the point of it and where did you get it", "the parser fails on tabs", "we did the docs"
    )
    assert found(texts, "what did the parser do?") == ["1"]


def test_a_question_of_common_words_alone_is_still_answered() -> None:
    assert found(documents("to be or not to be", "nothing"), "to be or not") == ["0"]


def test_other_forms_of_a_word_are_found() -> None:
    assert found(documents("she was painting horses", "the sky"), "who painted a horse?") == ["0"]


def test_the_document_that_holds_more_of_the_query_comes_first() -> None:
    texts = documents(
        "deploy deploy deploy", "we deploy to staging on friday", "friday", "staging", "nothing at all"
    )
    assert found(texts, "deploy staging friday")[0] == "1"


def test_the_answer_beside_the_turn_that_holds_the_words_is_found_too() -> None:
    turns = [
        "hello there",
        "Which port does the proxy listen on?",
        "It is 8443.",
        "thanks",
        "bye now",
        "see you",
    ]
    texts = [Document(str(number), text) for number, text in enumerate(turns)]
    assert "2" in found(texts, "proxy port listen", 3)


def test_turns_of_different_threads_are_no_neighbours() -> None:
    texts = [
        Document("0", "Which port does the proxy use?", thread="a"),
        Document("1", "It is so.", thread="b"),
    ]
    assert found(texts, "proxy port") == ["0"]


@pytest.mark.parametrize(
    ("query", "literal"),
    [
        ("what happened to src/core/driver.py?", "we moved src/core/driver.py away"),
        ("who fixed E0308", "error[E0308]: mismatched types"),
        ("commit 4f2a9c1", "see 4f2a9c1d77 for it"),
        ("the function parse_retry_after", "call self.parse_retry_after(header)"),
        ("what costs 1.25", "it costs 1.25 a unit"),
        ('the words "not a git repository"', "fatal: not a git repository (or any parent)"),
    ],
)
def test_identifiers_of_the_query_are_found_character_by_character_and_come_first(
    query: str, literal: str
) -> None:
    words = [
        f"{query} core driver src py function words git error parse retry number {n}".replace("/", " ")
        for n in range(6)
    ]
    noise = [
        text.replace("E0308", "E 0308")
        .replace("_", " ")
        .replace("1.25", "1 25")
        .replace("4f2a9c1", "4f2a 9c1")
        for text in words
    ]
    noise = [
        text.replace('"', " ").replace("not a git repository", "not git a repository").replace(".py", " py")
        for text in noise
    ]
    assert found(documents(*noise, literal), query)[0] == "6"


def test_of_two_that_are_as_good_the_newer_one_comes_first() -> None:
    texts = [
        Document(name, "the build is green", at=at, thread=name)
        for name, at in (("old", 1.0), ("new", 9.0), ("mid", 5.0))
    ]
    assert found([*texts, *documents("other", "words", "here", "too")], "build green") == [
        "new",
        "mid",
        "old",
    ]


def test_a_question_for_a_time_prefers_what_names_one() -> None:
    texts = documents("the release went well", "the release went out last week", "x", "y", "z")
    assert found(texts, "When was the release?")[0] == "1"


def test_every_hit_says_why_it_was_found() -> None:
    (hit,) = rank(documents("the parser fails on tabs", "nothing", "more"), "parser tabs")
    assert hit.why == "holds parser, tab"
    assert hit.score > 0


def test_the_limit_holds() -> None:
    texts = documents(*["same words"] * 30)
    assert len(rank(texts, "words", 7)) == 7
    assert rank(texts, "words", 0) == []


@given(st.lists(st.text(), max_size=8), st.text())
def test_any_text_is_a_valid_query_of_any_documents(texts: list[str], query: str) -> None:
    hits = rank(documents(*texts), query)
    assert [hit.id for hit in hits] == [hit.id for hit in rank(documents(*texts), query)]
    assert len({hit.id for hit in hits}) == len(hits)
    assert all(hit.score > 0 for hit in hits)


@pytest.mark.parametrize(
    "query", ['" OR 1', "NEAR(a b)", "text:*", "\ud800", "\x00", "a" * 100_000, "(" * 500]
)
def test_no_query_is_read_as_search_syntax(query: str) -> None:
    rank(documents("a b", "c"), query)


def test_scripts_without_spaces_are_searched_by_their_characters() -> None:
    texts = documents("我昨天在北京买了一本书", "今天天气很好", "我们去上海旅行", "東京へ行きました")
    assert found(texts, "在哪里买书？")[0] == "0"
    assert found(texts, "上海") == ["2"]
    assert found(texts, "東京")[0] == "3"


def test_among_long_messages_the_short_one_about_it_comes_before_a_long_one_that_mentions_it() -> None:
    filler = " ".join(f"word{number}" for number in range(400))
    texts = documents(
        f"{filler} tabs and a parser {filler}",
        "the parser fails on tabs",
        *[f"{filler} other{n}" for n in range(8)],
    )
    assert found(texts, "parser tabs")[0] == "1"


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("high water mark", "highWaterMark"),
        ("high water mark", "HIGH_WATER_MARK"),
        ("how is the retry budget id made", "retry_budget_id"),
        ("get user by id", "getUserById"),
    ],
)
def test_an_identifier_is_found_by_its_words_before_texts_that_hold_them_apart(query: str, name: str) -> None:
    apart = [f"the {word} of {query.split()[0]}ness and {word} again" for word in query.split()] * 3
    texts = documents(*apart, f"def {name}(self):", *apart)
    assert found(texts, query)[0] == str(len(apart))


def test_an_identifier_of_common_words_is_found_whole() -> None:
    for query, name in (("is it ready", "isItReady"), ("what to do next", "what_to_do_next")):
        (hit, *_) = rank(documents(f"def {name}(self):", *["ready to go"] * 4, *["x", "y"]), query)
        assert f"'{'_'.join(query.split())}'" in hit.why


def test_a_long_document_is_as_good_as_its_best_passage() -> None:
    filler = "nothing of that sort is in here at all. " * 150
    scattered = f"budget {filler} retry {filler} exhausted"
    together = f"{filler} the retry budget is exhausted {filler}"
    texts = documents(scattered, together, *["some other long text. " * 150] * 6)
    (hit, *_) = rank(texts, "retry budget exhausted")
    assert hit.id == "1"
    assert "retry budget" in texts[1].text[hit.place :][:2_500]


def test_parts_of_a_document_count_by_their_weights() -> None:
    said = Document("said", "the harbour is closed", thread="a")
    brought = Document("brought", "the harbour is closed", thread="b", weights=((0, 0.5),))
    assert found([said, brought, *documents("x", "y", "z")], "harbour") == ["said", "brought"]


def test_neighbours_count_as_far_as_the_texts_follow_from_each_other() -> None:
    texts = [Document(str(at), text) for at, text in enumerate(["Which port?", "8443.", "bye", "x", "y"])]
    assert [hit.id for hit in rank(texts, "port", adjacency=1.0)] == ["0", "1"]
    assert [hit.id for hit in rank(texts, "port", adjacency=0.0)] == ["0"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("using", "use"), ("make", "making"), ("fix", "fixes"), ("coding", "code"), ("plans", "planned"),
        ("studying", "study"), ("configuration", "configured"), ("validates", "validation"),
    ],
)  # fmt: skip
def test_the_index_is_asked_for_every_form_of_a_word(asked: str, said: str) -> None:
    assert said in Query(asked).terms[0].forms
    assert all(form.startswith(Query(asked).terms[0].piece) for form in Query(asked).terms[0].forms)


def test_a_short_message_comes_before_a_long_one_no_more_than_its_words_earn() -> None:
    filler = " ".join(f"word{number}" for number in range(900))
    texts = documents(f"{filler} harbour pilots berth", "pilots", *[f"short note {n}" for n in range(30)])
    assert found(texts, "harbour pilots berth")[0] == "0"
