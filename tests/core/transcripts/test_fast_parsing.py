"""Lines are parsed and written fast: what comes of it is what the slow way gives, of hostile lines too."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any, get_args, get_type_hints, is_typeddict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_core import from_json
from tests.core.transcripts.conftest import work

from watchkeeper.store.driver import decode, encode
from watchkeeper.store.imports import Rows
from watchkeeper.transcripts import claude, records
from watchkeeper.transcripts.claude import ClaudeReader

READ_AS = {
    "record": claude.Entry, "message": claude.LoggedMessage, "outcome": claude.ToolOutcomeFields, "answer": claude.ToolOutcomeFields, "news": claude.News,
    "detail": claude.Attachment, "usage": claude.Usage,
}  # fmt: skip
"""The names that the reader gives to the objects of a record."""

_STRANGE = ["", "\ud800", "\udfff\ud800", "\0", "\u2028é😀", '"\\/\b\f\n\r\t', "\ufeff", "x" * 300]
_TEXTS = st.sampled_from(_STRANGE) | st.text(max_size=8)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**30), max_value=10**30)
    | st.floats()
    | _TEXTS
    | st.sampled_from(
        ["user", "assistant", "progress", "system", "text", "tool_use", "tool_result", "claude-opus-4-6"]
    )
)


def _keys(kind: Any) -> st.SearchStrategy[str]:
    return st.sampled_from(sorted(get_type_hints(kind))) | _TEXTS


def _objects(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with fields of that kind, and others; of the right types, and of wrong ones."""
    fields = {name: _field(hint) for name, hint in get_type_hints(kind).items()}
    return st.tuples(
        st.fixed_dictionaries({}, optional=fields), st.dictionaries(_keys(kind), _VALUES, max_size=2)
    ).map(lambda both: both[0] | both[1])


def _field(hint: Any) -> st.SearchStrategy[Any]:
    inner = next((each for each in get_args(hint) if is_typeddict(each)), hint)
    return st.deferred(lambda: _objects(inner)) | _VALUES if is_typeddict(inner) else _VALUES


_VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_keys(claude.ToolOutcomeFields), inner, max_size=3)
    ),
    max_leaves=6,
)
_RECORDS = _objects(claude.Entry)
_LINES = st.builds(lambda value, plain: _bytes(value, plain), _RECORDS, st.booleans())
_DAMAGE = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.sampled_from([b"", b"\0", b"\xff", b"\r", b'"', b"{", b"}", b"\\u", b"9", b",", b"\xef\xbb\xbf"]),
    ),
    max_size=3,
)


def _bytes(value: Any, plain: bool) -> bytes:
    return json.dumps(value, ensure_ascii=plain, separators=(",", ":")).encode("utf-8", "surrogatepass")


def slowly(data: bytes) -> dict[str, Any] | None:
    """What stands in a line, by the parsers that pass over nothing."""
    try:
        value = from_json(data)
    except ValueError:
        try:
            value = records.bindable(json.loads(data.decode("utf-8", "replace").lstrip("\ufeff\0")))
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def of_shape(value: Any, kind: Any) -> Any:
    """Of an object, the fields of that kind."""
    if not isinstance(value, dict):
        return value
    found = {}
    for name, hint in get_type_hints(kind).items():
        inner = next((each for each in get_args(hint) if is_typeddict(each)), None)
        if name in value:
            found[name] = of_shape(value[name], inner) if inner is not None else value[name]
    return found


@given(_LINES, _DAMAGE)
@example(b'{"type":"user","type":"assistant","message":{"content":"a","content":["b"]}}', [])
@example(b'{"type":"user","toolUseResult":{"stdout":"\xff","agentId":"a"}}\r', [])
@example(b'\xef\xbb\xbf{"type":"user","uuid":"\\ud800"}', [])
@example(b'{"type":"user","toolUseResult":{"stdout":NaN},"message":{"usage":null,"content":"x"}}', [])
@example(b'{"type":"user","message":"text","data":[1],"attachment":"x","toolUseResult":["y",{"z":1}]}', [])
@example(b'{"t\\u0079pe":"user","message":{"\\u0063ontent":"\\u0000"}}', [])
@settings(max_examples=60)
def test_a_line_says_the_same_whether_all_of_it_is_parsed_or_what_is_read_of_it(data, damage):
    for place, put in damage:
        data = data[:place] + put + data[place + 1 :]
    fast, slow, whole = claude.parse_entry(data), slowly(data), records.parse(data)
    assert repr(whole) == repr(slow)
    if slow is None:
        assert fast is None
    else:
        assert repr(of_shape(fast, claude.Entry)) == repr(of_shape(slow, claude.Entry))


@given(st.lists(_LINES, min_size=1, max_size=4))
@example([b'{"type":"user","toolUseResult": {"stdout":"x"},"message":{"content":"y"}}'])
@example([b'{"type":"user","message":{"toolUseResult":{"a":1}},"toolUseResult":{"a":1}}'])
@example([b'{"toolUseResult":{"stdout":"x","task":{"id":1}},"type":"user","toolUseResult":[]}'])
@settings(max_examples=60)
def test_a_reader_finds_the_same_whether_a_line_is_parsed_fast_or_slowly(lines: list[bytes]) -> None:
    fast, slow = ClaudeReader("s"), ClaudeReader("s")
    for number, data in enumerate(lines, 1):
        found = fast.feed(number, data)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(claude, "parse_entry", slowly)
            assert repr(found) == repr(slow.feed(number, data))
    assert repr(fast.save()) == repr(slow.save())


def test_every_field_that_is_asked_for_is_parsed() -> None:
    asked = set()
    for path in Path(claude.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="get"),
                    args=[ast.Constant(value=str(field)), *_],
                ):
                    asked.add((name, field))
                case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(field))):
                    asked.add((name, field))
    wanted = {(name, field) for name, field in asked if name in READ_AS}
    assert len(wanted) > 50
    assert {(name, field) for name, field in wanted if field not in get_type_hints(READ_AS[name])} == set()


@pytest.mark.parametrize("depth", [150, 250, 900, 1_100, 100_000])
def test_a_record_however_deep_is_read_or_said_to_be_broken(depth: int) -> None:
    data = b'{"type":"user","uuid":"u","deep":' + b"[" * depth + b"]" * depth + b',"message":{"content":"x"}}'
    record = claude.parse_entry(data)
    assert record is None or record["message"]["content"] == "x"
    assert (record is not None) or depth > 900


@given(st.dictionaries(_TEXTS, _VALUES, max_size=4))
@example({"a": math.nan, "b": 10**400, "c": "\ud800", "d": 1e-9, "e": -0.0})
@settings(max_examples=60)
def test_what_is_written_is_what_the_store_would_write(value: dict[str, Any]) -> None:
    text, size = records.write(value)
    assert size == len(text.encode())
    assert repr(decode(text)) == repr(decode(encode(value)))


def test_the_driver_need_not_adapt_what_every_line_has(store, logs, monkeypatch):
    odd, seen, flush = set(), 0, Rows.flush

    def watched(self: Rows, *arguments: Any) -> None:
        nonlocal seen
        for name in ("messages", "tool_calls", "model_calls", "call_keys", "records", "events", "raw"):
            seen += len(self[name])
            odd.update((name, type(value)) for row in self[name] for value in row)
        flush(self, *arguments)

    monkeypatch.setattr(Rows, "flush", watched)
    log = work(turns=3)
    log.user("größer")
    log.add("mode", mode="plan")
    store.run(log.write(logs))
    assert seen > 10
    assert {(name, kind) for name, kind in odd if kind not in (str, int, float, bytearray)} == set()
    assert "größer" in store.one("SELECT content FROM messages ORDER BY id DESC LIMIT 1")
