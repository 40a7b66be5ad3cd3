"""Counting: the same as tiktoken, without network, and never a crash."""

from __future__ import annotations

import base64
import gzip
import random
import struct
import subprocess
import sys
from typing import Any

import pytest

from watchkeeper.memory import tokens
from watchkeeper.memory.tokens import (
    MESSAGE_OVERHEAD,
    SLICE_CHARACTERS,
    Calibration,
    Calibrations,
    EncodingUnavailable,
    TiktokenCounter,
    as_counter,
    count_block,
    count_message,
    default_counter,
    o200k_encoding,
)

FIXED = {
    "": 0,
    "hello world": 2,
    "Hello, world!": 4,
    "antidisestablishmentarianism": 6,
    "def count(text: str) -> int:\n    return len(text)\n": 14,
    "你好，世界": 3,
    "🙂": 1,
    "   \n\n\t  x": 3,
    "<|endoftext|>": 7,
}
"""Counts on which tiktoken 0.14 and puretiktoken 0.2, written independently, agree."""


@pytest.mark.parametrize("text", FIXED)
def test_counts_equal_those_of_tiktoken(text: str) -> None:
    assert default_counter().count(text) == FIXED[text]
    assert len(o200k_encoding().encode_ordinary(text)) == FIXED[text]


def test_the_encoding_loads_without_network_and_not_before_it_is_needed() -> None:
    script = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "from watchkeeper.memory.context import ContextState\n"
        "from watchkeeper.memory.tokens import default_counter\n"
        "assert 'tiktoken' not in sys.modules\n"
        "assert default_counter().count('hello world') == 2\n"
    )
    subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        env={"PYTHONPATH": ":".join(sys.path), "TIKTOKEN_CACHE_DIR": "/nowhere"},
    )


def test_altered_ranks_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip, "decompress", lambda _data: b"IQ== 0\n")
    with pytest.raises(EncodingUnavailable, match="Reinstall"):
        tokens._ranks("o200k_base", tokens.O200K_SHA256)


def test_the_hash_is_the_one_that_tiktoken_demands() -> None:
    import inspect

    from tiktoken_ext import openai_public

    assert tokens.O200K_SHA256 in inspect.getsource(openai_public.o200k_base)


@pytest.mark.parametrize(
    "text",
    [" " * 1_000_000, "a" * 300_000, "\n" * 200_000, "\ud800 lone", "!" * 200_000],
    ids=["spaces", "letters", "lines", "surrogate", "marks"],
)
def test_pathological_texts_are_counted(text: str) -> None:
    assert 0 < default_counter().count(text) <= len(text.encode("utf-8", "replace")) + 4


def test_long_texts_are_counted_in_slices_that_change_little() -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 4_000
    exact = len(o200k_encoding().encode_ordinary(text))
    slices = -(-len(text) // SLICE_CHARACTERS)
    assert abs(default_counter().count(text) - exact) <= 2 * slices


def test_a_panic_of_the_tokenizer_falls_back_to_smaller_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    PanicException = type("PanicException", (BaseException,), {})

    class Panics:
        def encode_ordinary(self, text: str) -> list[int]:
            if len(text) > 1_000:
                raise PanicException("regex gave up")
            return [0] * len(text.split())

    monkeypatch.setattr(tokens, "o200k_encoding", lambda: Panics())
    assert TiktokenCounter().count("word " * 2_000) >= 2_000


def test_stopping_the_program_is_no_panic(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def encode_ordinary(self, text: str) -> list[int]:
            raise KeyboardInterrupt

    monkeypatch.setattr(tokens, "o200k_encoding", lambda: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        TiktokenCounter().count("x")


def test_a_tokenizer_may_be_a_callable_an_object_or_nothing() -> None:
    assert as_counter(len).count("four") == 4
    assert as_counter(None).count("hello world") == 2
    assert as_counter(TiktokenCounter()).count("hello world") == 2
    with pytest.raises(TypeError, match="tokenizer"):
        as_counter(12)  # type: ignore[arg-type]


def test_a_message_costs_its_blocks_and_a_fixed_overhead() -> None:
    counter = as_counter(len)
    content = [
        {"type": "text", "text": "hello"},
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}},
    ]
    assert count_message("assistant", content, counter) == MESSAGE_OVERHEAD + sum(
        count_block(b, counter) for b in content
    )
    assert count_message("user", "hello", counter) == MESSAGE_OVERHEAD + 5
    assert count_block(content[1], counter) == 2
    assert count_block(content[2], counter) >= len('{"path":"a"}') + len("read")


SIGNATURE = base64.b64encode(random.Random(1).randbytes(15_000)).decode()


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "", "signature": SIGNATURE},
        {"type": "thinking", "thinking": "word " * 1_000, "signature": SIGNATURE},
        {"type": "redacted_thinking", "data": SIGNATURE},
        {"type": "web_search_tool_result", "content": [{"title": "A page", "encrypted_content": SIGNATURE}]},
        {"type": "reasoning", "encrypted_content": SIGNATURE},
    ],
)
def test_opaque_data_is_counted_by_a_ratio_and_not_as_text(block: dict[str, Any]) -> None:
    as_text = default_counter().count(SIGNATURE)
    assert as_text > 12_000
    assert 3_900 < count_block(block, default_counter()) < 4_100


def test_thinking_counts_what_it_shows_where_its_signature_holds_less() -> None:
    block = {"type": "thinking", "thinking": "word " * 1_000, "signature": "sig"}
    assert count_block(block, default_counter()) == default_counter().count("word " * 1_000)


def test_a_picture_inside_an_unknown_block_costs_what_a_picture_costs() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": png(750, 1_000) + "A" * 400_000}
    block = {"type": "mcp_tool_result", "content": [{"type": "image", "source": source}]}
    assert 1_000 < count_block(block, default_counter()) < 1_100


def test_what_a_tool_returns_costs_the_same_as_text_or_as_a_list_of_texts() -> None:
    for counter in (default_counter(), as_counter(len)):
        text = "def f(x):\n    return x\n" * 20
        one = {"type": "tool_result", "tool_use_id": "t1", "content": text}
        other = {**one, "content": [{"type": "text", "text": text}]}
        assert count_block(one, counter) == count_block(other, counter) > counter.count(text)


def png(width: int, height: int) -> str:
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\0" * 20
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("width", "height", "expected"), [(750, 100, 100), (10, 10, 85), (8_000, 8_000, 1_600)]
)
def test_images_cost_by_their_size_within_bounds(width: int, height: int, expected: int) -> None:
    block = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": png(width, height)},
    }
    assert count_block(block, default_counter()) == expected


def test_images_whose_size_nobody_knows_cost_the_most() -> None:
    assert (
        count_block({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}, default_counter())
        == 1_600
    )
    broken = {"type": "image", "source": {"type": "base64", "data": "%%%"}}
    assert count_block(broken, default_counter()) == 1_600


def test_documents_cost_by_text_or_by_size() -> None:
    counter = as_counter(len)
    text = {"type": "document", "source": {"type": "text", "data": "x" * 50}}
    assert count_block(text, counter) == 50
    large = {"type": "document", "source": {"type": "base64", "data": "A" * 400_000}}
    assert count_block(large, counter) == 300_000 // 20


def test_blocks_of_unknown_types_are_counted_as_json() -> None:
    assert count_block({"type": "container_upload", "file_id": "f" * 40}, as_counter(len)) > 40


def test_calibration_follows_what_the_provider_reports_and_says_how_far_off_it_is() -> None:
    calibration = Calibration()
    for _ in range(30):
        calibration.observe(estimated_tokens=1_000, reported_tokens=1_200)
    assert calibration.ratio == pytest.approx(1.2, abs=0.01)
    assert calibration.error < 0.05
    assert calibration.predict(1_000) == pytest.approx(1_200, abs=10)


def test_calibration_is_clamped_and_ignores_tiny_calls() -> None:
    calibrations = Calibrations()
    calibrations.of("m").observe(estimated_tokens=10, reported_tokens=500)
    assert calibrations.of("m").ratio == 1.0
    calibrations.of("m").observe(estimated_tokens=1_000, reported_tokens=90_000)
    assert calibrations.of("m").ratio == 2.0
    assert calibrations.of("other").ratio == 1.0


def test_a_calibration_goes_on_from_the_calls_of_an_earlier_process() -> None:
    calls = [(1_000, 900 + 10 * number) for number in range(40)]
    whole = Calibration()
    for estimated, reported in [*calls, (1_000, 1_200)]:
        whole.observe(estimated_tokens=estimated, reported_tokens=reported)
    resumed = Calibrations({"m": calls, "n": []}.__getitem__)
    assert resumed.of("m").observe(estimated_tokens=1_000, reported_tokens=1_200) == pytest.approx(
        whole.ratio
    )
    assert resumed.of("n").ratio == 1.0
    assert resumed.of("m") is resumed.of("m")
