"""Redaction: secrets are removed once, before anything reaches a model or the store."""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from operator import itemgetter
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from watchkeeper.records.secret_context import open_value, spans
from watchkeeper.records.secret_names import KINDS, Span, may_be_named
from watchkeeper.records.secret_search import CONFIRMING, TELLING
from watchkeeper.records.secret_shapes import (
    NUMBERED_LETTERS,
    PUBLIC_NAMES,
    SECRET_NAMES,
    SHAPES,
    URL,
    Groups,
    groups_in,
    literal,
)
from watchkeeper.records.secret_values import is_other_name, is_path, looks_random, named_secret
from watchkeeper.records.text import STYLE, lazily

LEAST_CHARACTERS = 8
"""A shorter value is no secret worth the name, and would be found inside common words."""

_LEVELS_OF_JSON = 3
_LEAST_ENCODED = 12
"""Bytes."""

MARK = re.compile(r"\[redacted:[A-Za-z0-9_.@/-]{1,100}\]")
"""What a `Redactor` writes in a secret's place."""
_NOT_IN_MARKS = re.compile(r"[^A-Za-z0-9_.@/-]")

_BEGINNING = 4
"""Characters of a known value that make the end of a text look like its beginning."""
_LAST_WORD = re.compile(r"[A-Za-z0-9_.+/=~-]{8,}")
_LONGEST_WORD = 2_000

_COMMON_VALUES = frozenset(
    {
        "disabled",
        "required",
        "optional",
        "password",
        "changeme",
        "anonymous",
        "undefined",
        "keychain",
        "redacted",
    }
)
_OPEN_URL = re.compile(r"""://[^\s/?#:@\"'<>\\`]{0,200}:[^\s/?#:@\"'<>\\`]{0,200}@?\Z""")
_URL_PASSWORD = re.compile(r"://[^\s/?#:@]{0,200}:([^\s/?#@]{8,200})@")

_RUN = re.compile(r"""[^"\\/&'+<=>`\x00-\x1f\x7f]+""")
_ASCII_RUN = re.compile(r"[ !#-%(-*,-.0-;?-\[\]-_a-~]+")
"""What no writer of JSON writes otherwise than as it is, or else by the numbers that `NUMBERED_LETTERS`
finds."""
_LEAST_RUN = 5

_BREAK = re.compile(r"(?:\s|\\{0,7}[\"'+|>#] ?){1,80}")
"""What may lie between two lines of wrapped base64, as it is or inside a quote or source code."""
_BREAK_BACKWARDS = re.compile(r"(?:\s| ?[\"'+|>#]\\{0,7}){1,80}")
_SHORTEST_LINE = 60
"""Characters of base64 in a line, at least: it is wrapped at 64 or 76."""

_SHORT, _MOST_CLEAN = 1_000, 1_000
"""Characters of a text that is remembered as clean, at most; and such texts."""

_LEFT_ALONE = frozenset({"signature", "encrypted_content", "encrypted_index"})
"""Fields that a provider checks byte for byte."""


class Redactor:
    """Replaces secrets with `[redacted:NAME]`.

    A secret is the value of a secret variable, what has the form of a provider's token, and what an
    assignment, a header, a cookie or an option says to be one. Applying it again changes nothing. `signature`
    fields and base64 data are left as they are.

    Args:
        environ: variables; those with the name of a secret are taken.
        secrets: name → value of what is known to be secret, whatever its name.
    """

    def __init__(self, environ: Mapping[str, str], secrets: Mapping[str, str] | None = None) -> None:
        self.count = 0
        """How many texts and kinds of secret were replaced so far."""
        names: dict[str, str] = {}
        for name, value in sorted(environ.items(), reverse=True):
            if SECRET_NAMES.search(name) and not PUBLIC_NAMES.search(name):
                names[value.strip()] = name
            elif (password := _URL_PASSWORD.search(value)) is not None:
                names[password[1]] = name
        names |= {value.strip(): name for name, value in (secrets or {}).items()}
        names = {
            value: _NOT_IN_MARKS.sub("_", name)[:100] for value, name in names.items() if _is_secret(value)
        }
        labels = " ".join(f"[redacted:{name}]" for name in (*names.values(), *_LABELS))
        # What occurs in a label itself would be replaced again and again.
        self._values = {
            form: name for value, name in names.items() for form in _forms(value) if form not in labels
        }
        encoded = {
            form: name for value, name in names.items() for form in _encoded(value) if form not in labels
        }
        self._wrapped = {form: name for form, name in encoded.items() if len(form) >= LEAST_CHARACTERS}
        longest_first = sorted({**self._values, **self._wrapped}, key=len, reverse=True)
        self._values |= self._wrapped
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        hints = {hint for form in self._values if form not in self._wrapped for hint in _hints_of(form)}
        hints |= {hint for form in self._wrapped for piece in _pieces(form) for hint in _hints_of(piece)}
        self._hints = sorted(hint.encode("utf-8", "replace") for hint in hints)
        self._groups: Groups | None = None
        self._clean: set[str] = set()
        """Short texts in which nothing was found, as the keys of a block, which come again and again."""

    def text(self, text: str) -> str:
        """The text without secrets; the very same object when it holds none."""
        if len(text) < LEAST_CHARACTERS or text in self._clean:
            return text
        # Again after each replacement: what stood right before a secret may have hidden where the next one
        # begins.
        while (found := self._groups_in(text.encode("utf-8", "replace"))) and (
            clean := self._once(text, found)
        ) != text:
            text = clean
        if len(text) <= _SHORT:
            if len(self._clean) >= _MOST_CLEAN:
                self._clean.clear()
            self._clean.add(text)
        return text

    def streamed(self, text: str) -> str:
        """A text that is still being written: without secrets, and without an end that may be the beginning
        of one."""
        text = self.text(text)
        end = len(text)
        for form in self._values:
            at = text.find(form[:_BEGINNING], max(0, len(text) - len(form) + 1))
            while at != -1 and at < end:
                if form.startswith(text[at:]):
                    end = at
                at = text.find(form[:_BEGINNING], at + 1)
        word = _LAST_WORD.match(text[:end][::-1][:_LONGEST_WORD])
        end -= len(word[0]) if word is not None else 0
        last = text[-_LONGEST_WORD:]
        open_url = _OPEN_URL.search(last)
        if open_url is not None:
            end = min(end, len(text) - len(open_url[0]))
        value = open_value(last)
        if value is not None:
            end = min(end, len(text) - len(last) + value)
        return text if end == len(text) else text[:end] + "…"

    def _once(self, text: str, groups: Collection[str]) -> str:
        """The text without what the rules find in any of its readings."""
        readings = _Readings(text)
        for reading in readings.all:
            if reading.plain != text:
                groups = {*groups, *self._groups_in(reading.plain.encode("utf-8", "replace"))}
        if self._known is not None:
            self.count += readings.replace(self._known_values)
            for form, name in self._wrapped.items():
                self.count += readings.replace(lambda plain: _wrapped_in(plain, form, name))  # noqa: B023
        for name, hint, expression in _shapes() if "shapes" in groups else ():
            if readings.replace(lambda plain: _shaped(name, hint, expression, plain)):  # noqa: B023
                self.count += 1
        self.count += readings.replace(lambda plain: spans(plain, self._groups_in, groups))
        return readings.text

    def _known_values(self, plain: str) -> Iterator[Span]:
        assert self._known is not None
        return (Span(*match.span(), self._values[match[0]]) for match in self._known.finditer(plain))

    def __call__(self, value: Any) -> Any:
        """Any JSON-like value (content, blocks, arguments) without secrets; what holds none is the same
        object."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            items = [self(item) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            if isinstance(value, list):
                return items
            return value._make(items) if hasattr(value, "_make") else tuple(items)
        return value

    @property
    def hints(self) -> tuple[bytes, ...]:
        """Bytes one of which is in whatever holds a value that is known to be secret, if no letter of it is
        written by number."""
        return tuple(self._hints)

    def suspects(self, data: bytes) -> bool:
        """Whether these bytes, a text or lines of JSON, may hold a secret: quick, and wrong only in saying
        yes."""
        return bool(self._groups_in(data))

    def _groups_in(self, data: bytes) -> Collection[str]:
        """What of all that tells of secrets is in a text: a group of `TELLING`, `shapes`, or `hints`."""
        if self._groups is None:
            hints = tuple(map(literal, self._hints))
            self._groups = groups_in(
                TELLING
                | {"shapes": _shape_patterns(), "styled": [_STYLE_IN_WORD]}
                | ({"hints": hints} if hints else {}),
                rare=("rules", "commands", "files", "shapes", "hints"),
                confirming=CONFIRMING,
            )
        found = self._groups(data)
        if "styled" in found:
            # A style may be inside a secret: `grep` colours a part of its lines.
            found = {*found, *self._groups(_STYLE_BYTES.sub(b"", data))} - {"styled"}
        return found

    def line(self, data: bytes) -> bytes:
        """A line of a log, most often of JSON, without secrets; the very same object when it holds none.

        Thorough, and slow: ask first whether it `suspects` one there.
        """
        text = data.decode("utf-8", "replace")
        try:
            value = json.loads(text)
            found = self(value)
            clean = text if found is value else json.dumps(found, ensure_ascii=False)
        except (ValueError, RecursionError):
            clean = self.text(text)
        return data if clean is text else clean.encode("utf-8", "replace")

    def _mapping(self, value: dict[Any, Any]) -> dict[Any, Any]:
        opaque = (
            _LEFT_ALONE | {"data"} if value.get("type") in ("base64", "redacted_thinking") else _LEFT_ALONE
        )
        is_kubernetes = value.get("kind") == "Secret"
        changed = False
        result: dict[Any, Any] = {}
        before: Any = None
        new: Any
        for key, old in value.items():
            new_key = self.text(key) if isinstance(key, str) else key
            if key in opaque and isinstance(old, str):
                new = old
            elif is_kubernetes and key in ("data", "stringData") and isinstance(old, dict):
                new = {
                    name: "[redacted:secret]" if isinstance(each, str) and each else each
                    for name, each in old.items()
                }
            elif (
                isinstance(old, str)
                and isinstance(key, str)
                and (kind := self._kind_of(key, old, before)) is not None
            ):
                new = f"[redacted:{kind}]"
                self.count += 1
            else:
                new = self(old)
            changed = changed or new is not old or new_key is not key
            result[new_key] = new
            before = old
        return result if changed else value

    def _kind_of(self, key: str, value: str, before: Any) -> str | None:
        """What kind of secret a value of an object is by its key, or by the name in the field before it."""
        name = before if key in ("value", "Value") and isinstance(before, str) else key
        if not may_be_named(name):
            return None
        lower = name.lower()
        if lower.endswith(("authorization", "cookie")):
            found = spans(f"{name}: {value}", self._groups_in)
            return found[0].label if len(found) == 1 and found[0].end == len(name) + 2 + len(value) else None
        return named_secret(name, value)


@cache
def _shape_patterns() -> tuple[str, ...]:
    tellings = (each for shape in SHAPES for each in shape.telling.split("\n"))
    return (URL, NUMBERED_LETTERS, *dict.fromkeys(tellings))


@cache
def _shapes() -> list[tuple[str, str, re.Pattern[str]]]:
    return [(shape.name, shape.hint, lazily(shape.expression, re.DOTALL)) for shape in SHAPES]


_LABELS = sorted({shape.name for shape in SHAPES} | KINDS)


def _shaped(name: str, hint: str, expression: re.Pattern[str], text: str) -> Iterator[Span]:
    """Where a text holds secrets of a form, without what the form keeps."""
    for match in expression.finditer(text) if hint in text else ():
        start = match.end("kept") if "kept" in expression.groupindex else match.start()
        if text.startswith("[redacted:", max(0, start - len("[redacted:"))):
            continue  # `://[redacted:url-token]@` has the form of a user and a password
        if _is_of_shape(name, match[0], text[start : match.end()]):
            yield Span(start, match.end(), name)


def _is_of_shape(name: str, found: str, secret: str) -> bool:
    """Whether what has a form, in all and without what it keeps, is a secret and not a word that looks like one."""
    if name == "api-key":
        # `sk-learn-and-its-many-friends` has the letters of a key, but not its randomness.
        return any(map(_is_random, re.split("[-_]", found)))
    if name == "prefixed-key":
        return _is_key_behind_prefix(found)
    if name in _RANDOM_SHAPES:
        return looks_random(found) and any(map(str.isdigit, found))
    if name == "url-token":
        return looks_random(found)
    if name == "slack-webhook":
        return True
    # `postgres://user:password@localhost`, as manuals have it
    return secret.lower() not in _COMMON_VALUES and not (name == "url-password" and found.endswith("%"))


_RANDOM_SHAPES = frozenset(
    {
        "twitter-token",
        "fauna-secret",
        "appsync-key",
        "fireworks-key",
        "crates-token",
        "facebook-token",
        "adafruit-key",
        "render-token",
        "voyage-key",
        "yandex-token",
        "gocardless-token",
        "telnyx-key",
    }
)


def _is_key_behind_prefix(token: str) -> bool:
    """Whether what follows `acme_api_` is random, and the prefix no name of an id."""
    match = _PREFIXED.match(token)
    if match is None:
        return False
    prefix, random = match[1], match[2]
    if prefix.rpartition("_")[2].endswith(("key", "token")) and is_other_name(prefix):
        return False
    if _UUID_OR_HASH.fullmatch(random):
        return prefix.lower().endswith(
            ("sk", "secret", "token", "pat", "secretkey", "secret_key", "secret-key")
        )
    return (
        looks_random(random)
        and any(map(str.isdigit, random))
        and any(map(str.islower, random))
        and any(map(str.isupper, random))
    )


_PREFIXED = re.compile(
    r"\A(.*[A-Za-z0-9])[_-]((?:[0-9a-f]{8}-[0-9a-f-]{27}|[A-Za-z0-9]{20,})[A-Za-z0-9_-]*)\Z"
)
_UUID_OR_HASH = re.compile(r"[0-9a-f-]{32,}")


def _is_random(part: str) -> bool:
    return len(part) >= 16 and any(map(str.isdigit, part))


def _is_secret(value: str) -> bool:
    if len(value) < LEAST_CHARACTERS or value.lower() in _COMMON_VALUES:
        return False
    if value.isdigit() and len(value) < 12:
        return False
    return not value.startswith("[redacted:") and not is_path(value)


def _forms(value: str) -> list[str]:
    """The forms of a value: plain, inside a JSON string (also JSON in JSON) whose other escapes are decoded, inside a
    URL, in HTML, and each long line of a value with several."""
    forms = {value}
    inner = value
    for _ in range(_LEVELS_OF_JSON):
        inner = inner.replace("\\", "\\\\").replace('"', '\\"')
        forms.add(inner)
    forms |= {
        quoted(value, safe=safe, errors="replace") for quoted in (quote, quote_plus) for safe in ("", "/")
    }
    entities = escape(value, quote=False)
    forms |= {
        entities,
        entities.replace('"', "&quot;"),
        escape(value),
        escape(value).replace("&#x27;", "&#39;"),
        escape(value).replace("&#x27;", "&apos;"),
    }
    if "\n" in value:
        forms |= {line.strip() for line in value.splitlines() if len(line.strip()) >= 20}
    return [form for form in forms if len(form) >= LEAST_CHARACTERS]


def _hints_of(form: str) -> set[str]:
    """Texts one of which is in every line of JSON that holds `form`, however its writer escapes, unless it
    has `NUMBERED_LETTERS`."""
    run = max(_ASCII_RUN.findall(form), key=len, default="")
    if len(run) < _LEAST_RUN:
        run = max(_RUN.findall(form), key=len, default="")
    numbers = {json.dumps(letter)[1:-1] for letter in run if not letter.isascii()}
    return {run, *numbers, *(number.upper().replace(r"\U", r"\u") for number in numbers)} - {""}


def _encoded(value: str) -> set[str]:
    """What of a value is the same in every base64 text that holds it, at each of the three ways in which it
    may lie there.

    `Authorization: Basic …`, a Kubernetes secret, `echo $TOKEN | base64`. A short value leaves too little to
    be known by.
    """
    data = value.encode("utf-8", "replace")
    if len(data) < _LEAST_ENCODED:
        return set()
    found = set()
    for before in range(3):
        text = base64.b64encode(b"\0" * before + data).decode()
        whole = text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        found |= {whole, whole.replace("+", "-").replace("/", "_")}
    return found


def _pieces(form: str) -> tuple[str, str]:
    """Two neighbouring parts of a base64 text, of which one is whole wherever the text is wrapped."""
    half = min(len(form), _SHORTEST_LINE) // 2
    return form[:half], form[half : 2 * half]


def _wrapped_in(text: str, form: str, name: str) -> Iterator[Span]:
    """Where a known value is in base64 that is wrapped at some column."""
    at = 0
    while (place := _wrapped_at(text, form, at)) is not None:
        yield Span(*place, name)
        at = place[1]


def _wrapped_at(text: str, form: str, begin: int) -> tuple[int, int] | None:
    """Where a base64 text that is broken into lines begins and ends, at or behind `begin`."""
    for offset, piece in zip((0, len(_pieces(form)[0])), _pieces(form), strict=True):
        at = text.find(piece, begin)
        while at != -1:
            start = _backwards(text, form[:offset], at)
            end = _forwards(text, form[offset:], at)
            if start is not None and end is not None:
                return start, end
            at = text.find(piece, at + 1)
    return None


def _forwards(text: str, form: str, at: int) -> int | None:
    """Where `form` ends if it begins at this place and continues after each break."""
    return _through(
        form, at, lambda place: text[place : place + 1], lambda place: _skipped(_BREAK.match(text, place))
    )


def _backwards(text: str, form: str, at: int) -> int | None:
    """Where `form` begins if it ends at this place, as `_forwards`."""
    backwards = text[max(0, at - len(form) * 3 - 400) : at][::-1]
    moved = _through(
        form[::-1],
        0,
        lambda place: backwards[place : place + 1],
        lambda place: _skipped(_BREAK_BACKWARDS.match(backwards, place)),
    )
    return None if moved is None else at - moved


def _skipped(match: re.Match[str] | None) -> int:
    return 0 if match is None else len(match[0])


def _through(form: str, at: int, letter: Callable[[int], str], skipped: Callable[[int], int]) -> int | None:
    for each in form:
        if letter(at) != each:
            # A `+` at the end of a line may belong to the break or to the base64: the shortest break that fits.
            step = next((step for step in range(1, skipped(at) + 1) if letter(at + step) == each), 0)
            if not step:
                return None
            at += step
        at += 1
    return at


# --- Readings: a text as the rules see it ---------------------------------------------------------------------
#
# Text inside JSON is full of escapes, and a terminal's output of styles. They are decoded here and nowhere else: the
# rules know none but the backslashes before quotes, which say to what string a quote belongs.

_ESCAPES = (
    # A style of a terminal, or the erasure beside one, as it is or as JSON and programs write it.
    rf"(?P<style>(?:(?<=\x1b)\[|(?<=\x9b)|(?<=\\)(?<!\\\\)\\*+(?:u001[bB]|u009[bB]|x1[bB]|033|e)\[){STYLE})"
    r"|(?P<moves>(?:(?<=\x1b)\[|(?<=\x9b))[0-?]{0,40}[ -/]{0,4}[@-~])"
    r"|(?<=\\)(?<!\\\\)(?P<slashes>\\*+)(?:u(?P<number>[0-9a-fA-F]{4})|(?P<letter>[bfnrt/]))"
)
_ESCAPE = re.compile(rf"[\\\x1b\x9b](?:{_ESCAPES})")
_ESCAPE_OR_QUOTE = re.compile(rf"[\\\x1b\x9b\"](?:(?P<quote>(?<=\")|(?<=\\)(?<!\\\\)\\*+\")|{_ESCAPES})")
_MAY_BE_ESCAPED = re.compile(r"[\\\x1b\x9b]")
_MAY_BE_STYLED = re.compile(r"[\x1b\x9b]|\\(?:u00[19][bB]|x1[bB]|033|e)\[")
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "/": "/"}
_JSON = re.compile(r"\s*[{\[].*[}\]]\s*\Z", re.DOTALL)
_STYLE_IN_WORD = (
    r"[A-Za-z0-9_.:+/@=~-](?:(?:\x1b|\\+(?:u001|x1)[bB])\[[0-9;]*[mK])+[A-Za-z0-9_.:+/@=~-]"  # for RE2
)
_STYLE_BYTES = re.compile(rf"(?:\x1b|(?<!\\)\\++(?:u001|x1)[bB])\[{STYLE}".encode())

_Decode = Callable[[re.Match[str]], str | None]
"""What is read for an escape; None: it stays."""


def _without_styles(match: re.Match[str]) -> str | None:
    return "" if match["style"] is not None else " " if match["moves"] is not None else None


def _decoded(match: re.Match[str]) -> str | None:
    if match["slashes"] is None:
        return _without_styles(match)
    slashes = 1 + len(match["slashes"])
    character = _LETTERS[match["letter"]] if match["letter"] is not None else chr(int(match["number"], 16))
    if character in '"\\':
        return "\\" * (2 * slashes - 1) + character
    # JSON in JSON doubles the backslashes; where a backslash was before the escape, there are three times as many.
    return character if slashes & (slashes - 1) == 0 else f"\\{character}"


def _apart(match: re.Match[str]) -> str | None:
    """As `_decoded`, but a style ends a word: it may be all that is between two."""
    return " " if match["style"] is not None else _decoded(match)


def _by_line(match: re.Match[str]) -> str | None:
    """As `_decoded`, but each string of JSON is on lines of its own."""
    return "\n" if match["quote"] is not None else _decoded(match)


@dataclass(frozen=True, slots=True)
class _Reading:
    """One reading of a text."""

    plain: str
    places: Sequence[tuple[int, int, int | None]] = ()
    """Where pieces of `plain` begin, where they begin in the text, and where an escape ends there."""

    @classmethod
    def of(cls, text: str, decode: _Decode, escapes: re.Pattern[str] = _ESCAPE) -> _Reading:
        places: list[tuple[int, int, int | None]] = []
        pieces: list[str] = []
        size = at = 0
        for match in escapes.finditer(text):
            piece = decode(match)
            if piece is None:
                continue
            for part, start, end in ((text[at : match.start()], at, None), (piece, *match.span())):
                if part:
                    places.append((size, start, end))
                    pieces.append(part)
                    size += len(part)
            at = match.end()
        places.append((size, at, None))
        return cls("".join([*pieces, text[at:]]), places) if at else cls(text)

    def in_text(self, span: Span) -> Span:
        """The same span in the text; an escape is in it as a whole."""
        if not self.places:
            return span
        piece, start, end = self._place(span.start)
        last_piece, last_start, last_end = self._place(span.end - 1)
        return Span(
            start if end is not None else start + span.start - piece,
            last_end if last_end is not None else last_start + span.end - last_piece,
            span.label,
        )

    def _place(self, at: int) -> tuple[int, int, int | None]:
        return self.places[bisect_right(self.places, at, key=itemgetter(0)) - 1]


class _Readings:
    """A text, and the readings in which the rules look for secrets."""

    def __init__(self, text: str) -> None:
        self._read(text)

    def _read(self, text: str) -> None:
        self.text = text
        self._escapes: list[tuple[int, int]] = []
        self.all = [_Reading(text)]
        """The first is the text as it is written, but for a terminal's styles: in it, a value in quotes goes on behind
        an escaped line break."""
        if _MAY_BE_ESCAPED.search(text) is not None:
            if _MAY_BE_STYLED.search(text) is not None:
                self.all = [_Reading.of(text, _without_styles), _Reading.of(text, _apart)]
            decoded = _Reading.of(text, _decoded)
            self.all.append(decoded)
            self._escapes = [(start, end) for _, start, end in decoded.places if end is not None]
            if _JSON.match(text) is not None:
                self.all.append(_Reading.of(text, _by_line, _ESCAPE_OR_QUOTE))
            self.all = list({reading.plain: reading for reading in self.all}.values())

    def _whole_escapes(self, span: Span) -> Span:
        """The span without the letter of an escape at its beginning, which the text as it is written shows as one of
        the word behind it; an escape at its end is in it as a whole."""
        return Span(self._outside_escape(span.start), self._outside_escape(span.end), span.label)

    def _outside_escape(self, at: int) -> int:
        """The place, or the end of the escape that it is in."""
        number = bisect_left(self._escapes, at, key=itemgetter(0)) - 1
        return max(at, self._escapes[number][1]) if number >= 0 else at

    def replace(self, rule: Callable[[str], Iterable[Span]]) -> int:
        """Put a mark in the place of what a rule finds in any reading; returns how many.

        Where it finds parts of one value in different readings, the mark takes the place of all of them.
        """
        found = sorted(
            self._whole_escapes(reading.in_text(span)) for reading in self.all for span in rule(reading.plain)
        )
        whole: list[Span] = []
        for span in found:
            if span.start >= span.end:
                continue
            if whole and span.start < whole[-1].end:
                whole[-1] = whole[-1]._replace(end=max(span.end, whole[-1].end))
            else:
                whole.append(span)
        if whole:
            parts: list[str] = []
            at = 0
            for start, end, label in whole:
                parts += [self.text[at:start], f"[redacted:{label}]"]
                at = end
            self._read("".join([*parts, self.text[at:]]))
        return len(whole)


# --- The secret values in a user's configuration: those for MCP servers, and the key that it names ---------

_SCHEME = re.compile(r"\A(?:Bearer|Basic|Token)\s+", re.IGNORECASE)
_ASSIGNED = re.compile(r"\A-{0,2}([A-Za-z][\w.-]*)\s*[=:]\s*(\S.*)\Z", re.DOTALL)
"""`--token=VALUE`, `TOKEN=VALUE`, `Authorization: Bearer VALUE`."""


def known_secrets(config: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Name → value, for a `Redactor`, of a configuration as its file holds it. Values of an odd shape are
    skipped."""
    found: dict[str, str] = {}
    for provider in ("anthropic", "openai", "openai-chat", "openai_chat"):
        named = _table(config.get(provider)).get("api_key_env")
        if isinstance(named, str) and environ.get(named):
            found[named] = environ[named]
    for name, server in _table(config.get("mcp_servers")).items():
        for what, value in _of_server(_table(server)):
            found[f"{name}.{what}"] = _SCHEME.sub("", value)
    return found


def _of_server(server: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in _texts(server.get("headers")):
        yield name, value
    for name, value in _texts(server.get("env")):
        if _is_secret_name(name):
            yield name, value
    args = server.get("args")
    before = ""
    for one in args if isinstance(args, list | tuple) else ():
        if not isinstance(one, str):
            continue
        assigned = _ASSIGNED.match(one)
        if assigned is not None and _is_secret_name(assigned[1]):
            yield assigned[1], assigned[2]
        elif (
            before.startswith("-")
            and "=" not in before
            and not one.startswith("-")
            and _is_secret_name(before)
        ):
            yield before.lstrip("-"), one
        before = one
    if isinstance(server.get("url"), str):
        yield from _of_url(server["url"])


def _of_url(url: str) -> Iterator[tuple[str, str]]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if parts.password:
        yield "password", unquote(parts.password)
    for name, value in parse_qsl(parts.query):
        if _is_secret_name(name):
            yield name, value


def _is_secret_name(name: str) -> bool:
    return bool(SECRET_NAMES.search(name) and not PUBLIC_NAMES.search(name))


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    return ((str(name), text) for name, text in _table(value).items() if isinstance(text, str))
