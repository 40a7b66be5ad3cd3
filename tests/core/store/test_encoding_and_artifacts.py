"""Values and bytes come back as they were put, whatever they are."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.core.store.conftest import run

from watchkeeper.records.errors import StoreUnusable
from watchkeeper.records.messages import Elision, Message, Observation, ObservationKind, View
from watchkeeper.store import artifacts
from watchkeeper.store import messages as message_rows
from watchkeeper.store.driver import decode, encode, plain, sqlite3
from watchkeeper.store.transaction import SessionStore

TEXT = st.text(st.characters(codec=None), max_size=30)  # lone surrogates and NUL included
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
@example("\ud800 a lone surrogate \udfff")
@example({"\udc80": "a key"})
@example(2**4000)
def test_every_json_value_comes_back_from_the_database_as_it_was(value: Any) -> None:
    connection = sqlite3.connect(":memory:")
    text, valid = connection.execute("SELECT ?1, json_valid(?1)", (encode(value),)).fetchone()
    assert decode(text) == value
    assert valid or "\\ud" in text or "\\u0000" in text


def test_what_json_cannot_say_never_makes_invalid_json() -> None:
    value = {
        "a": [float("nan"), float("inf"), (-float("inf"), 1.5)],
        "big": 10**5000,
        "deep": {"x": float("nan")},
    }
    text = encode(value)
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": [None, None, [None, 1.5]],
        "big": hex(10**5000),
        "deep": {"x": None},
    }


def test_keys_that_are_no_strings_become_strings_and_no_json_value_is_refused() -> None:
    assert decode(encode({7: "a", None: "b", True: "c"})) == {"7": "a", "null": "b", "true": "c"}
    with pytest.raises(TypeError):
        encode({"raw": b"bytes"})


@given(TEXT)
def test_plain_text_can_always_be_bound_and_is_otherwise_the_same(text: str) -> None:
    made = plain(text)
    made.encode()
    assert len(made) == len(text)
    assert all(a == b or b == "\ufffd" for a, b in zip(text, made, strict=True))


def test_a_lone_surrogate_in_any_bound_text_loses_that_character_and_not_the_row(store: SessionStore) -> None:
    run(store, lambda tx: tx.execute("UPDATE agents SET name = ? WHERE id = 'a0'", ("caf\udce9",)))
    run(
        store,
        lambda tx: tx.executemany(
            "UPDATE agents SET name = ? WHERE id = ?", [("x\ud800", "a1"), ("y", "a2")]
        ),
    )
    names = [row[0] for row in store.all("SELECT name FROM agents ORDER BY id")]
    assert names == ["caf\ufffd", "x\ufffd", "y", "a"]


@settings(max_examples=50)
@given(
    data=st.binary(max_size=3000)
    | st.builds(lambda piece, times: piece * times, st.binary(max_size=40), st.integers(0, 200))
)
def test_bytes_come_back_from_the_artifact_store_as_they_were(data: bytes, store: SessionStore) -> None:
    ref = run(store, lambda tx: artifacts.put(tx, data))
    assert artifacts.get(store, ref) == data
    assert artifacts.digest_of(ref) == artifacts.digest(data)


def test_the_same_bytes_are_stored_once_however_often_they_are_put(store: SessionStore) -> None:
    refs = {run(store, lambda tx: artifacts.put(tx, b"same" * 300)) for _ in range(3)}
    assert len(refs) == 1
    assert store.one("SELECT count(*) FROM artifacts")[0] == 1


def test_artifacts_are_compressed_only_where_that_pays(store: SessionStore) -> None:
    cases = {b"short" * 10: "plain", b"again " * 500: "zlib", random.Random(1).randbytes(4000): "plain"}
    for data, encoding in cases.items():
        ref = run(store, lambda tx, data=data: artifacts.put(tx, data))
        row = store.one(
            "SELECT encoding, size, length(data) FROM artifacts WHERE digest = ?", (artifacts.digest_of(ref),)
        )
        assert (row[0], row[1]) == (encoding, len(data))
        assert row[2] < len(data) if encoding == "zlib" else row[2] == len(data)


def test_the_newest_output_of_a_name_wins_and_a_reference_means_itself(store: SessionStore) -> None:
    def save(data: bytes) -> str:
        about = {"name": "n", "media_type": "text/plain", "agent_id": "a0", "task_id": None}
        return str(run(store, lambda tx: artifacts.save_output(tx, data=data, **about)))

    first, second = save(b"one"), save(b"two")
    assert artifacts.resolve(store, store.session_id, "n") == second
    assert save(b"one") == first
    assert artifacts.resolve(store, store.session_id, "n") == first
    assert artifacts.resolve(store, store.session_id, second) == second
    assert artifacts.resolve(store, store.session_id, "other") is None
    assert artifacts.resolve(store, "another session", "n") is None
    assert artifacts.get(store, "artifact://sha256/" + "0" * 64) is None
    assert artifacts.get(store, "artifact://sha256/../../etc/passwd") is None


@pytest.mark.parametrize("data", [b"again " * 500, b"short"])
def test_an_artifact_that_was_damaged_in_the_file_is_told_and_never_returned(store, data):
    ref = run(store, lambda tx: artifacts.put(tx, data))
    run(store, lambda tx: tx.execute("UPDATE artifacts SET data = zeroblob(length(data))"))
    with pytest.raises(StoreUnusable, match="damaged"):
        artifacts.get(store, ref)


def test_messages_cannot_be_changed(store: SessionStore) -> None:
    run(store, lambda tx: message_rows.add_messages(tx, "a0", [Message(1, "user", "said", 1, 1, 1.0)]))
    for sql in ("UPDATE messages SET content = 'other'", "UPDATE messages SET seq = seq + 1"):
        with pytest.raises(sqlite3.IntegrityError, match="immutable"):
            run(store, lambda tx, sql=sql: tx.execute(sql))
    assert message_rows.load_messages(store, "a0")[0].content == "said"


BLOCKS = st.lists(st.dictionaries(TEXT, JSON, max_size=3), max_size=3)


@settings(max_examples=40)
@given(contents=st.lists(TEXT | BLOCKS, min_size=1, max_size=5))
def test_messages_observations_and_views_come_back_as_they_were(contents, store, fresh):
    agent_id = fresh()
    messages = [
        Message(seq, "user" if seq % 2 else "assistant", content, seq, seq * (seq + 1) // 2, float(seq))
        for seq, content in enumerate(contents, 1)
    ]
    digest, reflection = ObservationKind.DIGEST, ObservationKind.REFLECTION
    observations = [
        Observation(1, digest, "über\x00all", 3, (1, 1), (1,), provisional=True, created_at=1.0),
        Observation(7, reflection, "", 0, (1, len(contents)), (1, 2), level=2, replaces=(1,), created_at=2.0),
    ]
    elided = {1: Elision(1, 10, 20, f"message://{agent_id}/1", 30)}
    view = View(1, (observations[1], observations[0]), None, elided, None, "digest", 2.0)

    def write(tx: Any) -> None:
        message_rows.add_messages(tx, agent_id, messages)
        message_rows.add_observations(tx, agent_id, observations)
        message_rows.add_view(tx, agent_id, view, tokens=9)

    run(store, write)
    assert message_rows.load_messages(store, agent_id) == messages
    assert message_rows.load_view(store, agent_id, 1) == view
    assert message_rows.load_views(store, agent_id) == [view]
    assert message_rows.load_observations(store, agent_id, [7]) == [observations[1]]
    assert message_rows.load_view(store, agent_id, 2) is None


@pytest.fixture
def fresh() -> Callable[[], str]:
    """A new agent's id at each call."""
    count = iter(range(1_000_000))
    return lambda: f"agent-{next(count)}"
