"""What a search of messages finds, indexed or not, and what it says of what it did not look at."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from tests.core.search.conftest import STYLED, STYLED_WORDS, Library

from watchkeeper.records.errors import BadInput
from watchkeeper.store.engine import index_of
from watchkeeper.store.search.messages import Stopped, parse_filters, search, search_by_session
from watchkeeper.store.search.words import HEAD_CHARACTERS, TAIL_CHARACTERS


@pytest.fixture(params=["indexed", "not indexed"])
def ready(request: pytest.FixtureRequest, library: Library) -> Callable[[], None]:
    """Brings the index up to date, or leaves it: what is found must not depend on it."""

    def prepare() -> None:
        if request.param == "indexed":
            assert index_of(library.connection).index_until(seconds=60)
            assert index_of(library.connection).unindexed() == 0

    return prepare


def seqs(library: Library, text: str, **options: object) -> list[int]:
    found = search(library.connection, text, deadline_seconds=60, **options)  # type: ignore[arg-type]
    assert found.complete
    return [hit.seq for hit in found.hits]


def test_every_kind_of_text_is_found_and_no_image(library: Library, ready: Callable[[], None]) -> None:
    agent = library.session("s1")
    library.say(agent, "plain Granite")
    library.say(
        agent,
        [
            {"type": "text", "text": "basalt"},
            {"type": "thinking", "thinking": "perhaps slate", "signature": "marl"},
        ],
    )
    library.say(
        agent,
        [
            {
                "type": "tool_use",
                "id": "toolu_gneiss",
                "name": "read",
                "input": {"path": "quartz/x", "deep": [{"a": "onyx"}]},
            }
        ],
    )
    library.say(agent, [{"type": "tool_result", "tool_use_id": "t", "content": "opal"}])
    library.say(
        agent, [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "jade"}]}]
    )
    library.say(agent, [{"type": "image", "source": {"type": "base64", "data": "pearl"}}])
    library.say(agent, [{"type": "document", "source": {"type": "text", "data": "topaz"}}])
    library.say(agent, [{"type": "from_the_future", "text": "amber"}])
    ready()
    words = ["granite", "basalt", "slate", "quartz", "onyx", "opal", "jade", "topaz", "amber"]
    assert [seqs(library, word) for word in words] == [[1], [2], [2], [3], [3], [4], [5], [7], [8]]
    for word in ("marl", "gneiss", "pearl", "type", "thinking", "s1"):
        assert seqs(library, word) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("MIGRATE", [2, 1]), ("migrate billing", [1]), ("billing migrate", [1]), ("zurich", [3]),
        ("Zürich", [3]), ("mig", [2, 1]), ("mi", []), ("mig billing", []), ('"billing tables"', [1]),
        ('"tables billing"', []), ('"billing table', [1]), ("schema.py", [4]), ("store/schema.py", [4]),
        ("schema.pyx", []), ("schema_py", [4]), ("is", [4, 3]), ("-> migrate", [2, 1]), ("--", []),
        ('"', []), ("", []), ("データ", [5]), ("タベ", [5]), ("ス", [5]), ("テス", []), ("ベーデー", []),
        ("x OR migrate", []), ("migrate NOT billing", []), ("migrate*", [2, 1]), ("text:migrate", []),
        ("NEAR(migrate billing)", []), ("a100%sure", []),
    ],
)  # fmt: skip
def test_what_a_typed_text_finds(library, ready, text, found):
    agent = library.session("s1")
    library.say(agent, "Migrate the billing tables")
    library.say(agent, "migrate\nnothing")
    library.say(agent, "the ledger is in ZÜRICH")
    library.say(agent, "see store/schema.py, it is there")
    library.say(agent, "これはデータベースです")
    ready()
    assert seqs(library, text) == found


def test_the_whole_word_alone_is_found_when_no_prefix_is_wanted(library, ready):
    agent = library.session("s1")
    library.say(agent, "errors")
    library.say(agent, "error")
    ready()
    assert seqs(library, "error", prefix=False) == [2]
    assert seqs(library, '"error"') == [2]
    assert seqs(library, "error") == [2, 1]


def test_the_newest_come_first_and_the_limit_is_said(library: Library, ready: Callable[[], None]) -> None:
    agent = library.session("s1")
    for _ in range(10):
        library.say(agent, "kraken")
    ready()
    found = search(library.connection, "kraken", limit=4, deadline_seconds=60)
    assert [hit.seq for hit in found.hits] == [10, 9, 8, 7]
    assert found.stopped is Stopped.LIMIT
    assert not found.complete
    assert search(library.connection, "kraken", limit=10, deadline_seconds=60).complete


def test_ranked_the_best_come_first(library: Library, ready: Callable[[], None]) -> None:
    agent = library.session("s1")
    library.say(agent, "kraken kraken kraken")
    library.say(agent, "kraken " + "and much else besides " * 40)
    library.say(agent, "nothing")
    ready()
    assert seqs(library, "kraken") == [2, 1]
    assert seqs(library, "kraken", ranked=True) == [1, 2]


def test_each_session_is_found_by_its_newest_message(library: Library, ready: Callable[[], None]) -> None:
    one, other, third = library.session("s1"), library.session("s2"), library.session("s3")
    for agent in (one, other, one, one):
        library.say(agent, "kraken")
    library.say(third, "nothing")
    ready()
    found = search_by_session(library.connection, "kraken", deadline_seconds=60)
    assert [(hit.session_id, hit.seq) for hit in found.hits] == [("s1", 3), ("s2", 1)]
    assert found.complete
    assert (
        search_by_session(library.connection, "kraken", limit=1, deadline_seconds=60).stopped is Stopped.LIMIT
    )


def test_a_snippet_shows_the_words_in_their_context(library: Library, ready: Callable[[], None]) -> None:
    agent = library.session("s1")
    library.say(
        agent, "x" * 50 + " lorem" * 100 + "\nthe ledger for Zürich is in\tthe blue safe " + "ipsum " * 100
    )
    ready()
    (hit,) = search(library.connection, "zurich saf", deadline_seconds=60).hits
    text = "".join(piece.text for piece in hit.snippet)
    assert "the ledger for Zürich is in the blue safe ipsum" in text
    assert [piece.text for piece in hit.snippet if piece.found] == ["Zürich", "safe"]
    assert text.startswith("…")
    assert text.endswith("…")
    assert len(text) < 200
    assert (hit.session_id, hit.agent_id, hit.seq, hit.role) == ("s1", agent, 1, "assistant")


def test_of_a_giant_message_head_and_tail_are_found(library: Library, ready: Callable[[], None]) -> None:
    agent = library.session("s1")
    filler = "lorem " * ((HEAD_CHARACTERS + TAIL_CHARACTERS) // 6)
    library.say(agent, f"kraken {filler} squid {filler} whale")
    ready()
    assert seqs(library, "kraken") == [1]
    assert seqs(library, "whale") == [1]
    assert seqs(library, "squid") == []


@pytest.mark.parametrize("typed", STYLED_WORDS)
def test_words_are_found_behind_and_inside_colours(
    library: Library, ready: Callable[[], None], typed: str
) -> None:
    library.say(
        library.session("s1"), [{"type": "tool_result", "tool_use_id": "t", "content": STYLED}], "user"
    )
    ready()
    assert seqs(library, typed) == seqs(library, typed, ranked=True) == [1]
    (hit,) = search_by_session(library.connection, typed, deadline_seconds=60).hits
    assert any(piece.found for piece in hit.snippet)
    assert "\x1b" not in "".join(piece.text for piece in hit.snippet)


def test_colours_are_no_words(library: Library, ready: Callable[[], None]) -> None:
    library.say(library.session("s1"), "\x1b[31mred\x1b[39m")
    ready()
    assert seqs(library, "31mred") == seqs(library, "39m") == []


def test_long_runs_of_base64_are_no_words(library: Library, ready: Callable[[], None]) -> None:
    agent = library.session("s1")
    library.say(agent, "before " + "kraken" * 200 + " after " + "a" * 64)
    ready()
    assert seqs(library, "kraken") == []
    assert seqs(library, "before after") == [1]
    assert seqs(library, "a" * 64) == [1]


def test_odd_texts_are_indexed_and_found(library: Library, ready: Callable[[], None]) -> None:
    agent = library.session("s1")
    library.say(agent, "lone \ud800 surrogate\x00kraken")
    library.say(agent, [])
    library.say(agent, [None, 7, {"type": 3, "text": {"not": "text"}}, {"type": "tool_use", "input": None}])
    ready()
    assert seqs(library, "kraken") == [1]
    assert seqs(library, "surrogate") == [1]
    assert seqs(library, "\ud800") == []


def test_a_search_stops_at_its_deadline_and_says_so(library: Library, ready: Callable[[], None]) -> None:
    agent = library.session("s1")
    for _ in range(1000):
        library.say(agent, "kraken squid")
    ready()
    ticks = count()
    found = search(
        library.connection,
        '"squid kraken"',
        limit=2000,
        deadline_seconds=30,
        monotonic=lambda: float(next(ticks)),
    )
    assert found.stopped is Stopped.DEADLINE
    assert not found.complete


def test_a_search_ends_when_somebody_types_on(library: Library, ready: Callable[[], None]) -> None:
    agent = library.session("s1")
    for _ in range(1000):
        library.say(agent, "kraken")
    ready()
    asked = count()
    found = search(
        library.connection, "kraken", limit=2000, deadline_seconds=60, cancelled=lambda: next(asked) > 20
    )
    assert found.stopped is Stopped.CANCELLED
    assert 0 < len(found.hits) < 1000
    # Nothing of it stays on the connection.
    assert search(library.connection, "kraken", limit=2000, deadline_seconds=60).complete


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("state:bogus", "running, paused"), ("STATE:bogus", "running, paused"), ("state:", "needs a value"),
        ("cost>abc", "USD"), ("cost>", "USD"), ("cost>=1", "USD"), ("cost:1", "USD"),
        ("since:yesterday", "2026-11-01"), ("before:2026-13-01", "2026-11-01"),
        ("status:paused", "did you mean state?"), ("tags:x", "did you mean tag?"), ("state=done", "state:paused"),
        ("since>2026-11-01", "since:2026-11-01"), ("model=", "model:x"), ("compacted:yes", "no value"),
    ],
)  # fmt: skip
def test_a_filter_that_means_nothing_is_one_line_that_says_what_is_possible(typed: str, names: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_filters(f"ledger {typed} audit")
    assert names in str(refused.value)
    assert str(refused.value).startswith(typed)
    assert "\n" not in str(refused.value)
    assert parse_filters(f'ledger "{typed}" audit').words == ("ledger", typed, "audit")


@pytest.mark.parametrize("typed", ["cost > 1", "Cost >1", "state = done", "state :done"])
def test_a_filter_that_was_typed_with_blanks_is_not_taken_for_words(typed: str) -> None:
    with pytest.raises(BadInput, match="cannot contain spaces"):
        parse_filters(f"ledger {typed}")
    assert len(parse_filters(f'"{typed}"').words) == 1


@pytest.mark.parametrize(
    "typed",
    ["https://example.org", "schema.py:12", "a>b", "x<=y", "std::vector", "message://a/1", "TODO:", "10:30"],
)
def test_what_only_looks_a_little_like_a_filter_is_searched_for(typed: str) -> None:
    assert parse_filters(typed).words == (typed,)


@pytest.mark.parametrize(
    "typed",
    [
        "state:live", "state:paused", "state:deleted", "cost>1", "cost<$0.5", "since:2026-11-01",
        "compacted", "user:ann", "id:a",
    ],
)  # fmt: skip
def test_filters_that_mean_something_are_no_words(typed: str) -> None:
    assert parse_filters(typed).words == ()
