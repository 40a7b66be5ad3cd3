"""Redaction: secrets are removed once, before anything reaches a model or the store."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from html import escape
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from watchkeeper.records import secret_context
from watchkeeper.records.secret_context import (
    CONFIRMING,
    TELLING,
    is_other_name,
    is_path,
    looks_random,
    may_be_named,
    named_secret,
    open_value,
    spans,
)
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
from watchkeeper.records.text import lazily

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

_BREAK = re.compile(r"(?:\s|\\+[rnt]|[\"'+|>#] ?){1,80}")
"""What may lie between two lines of wrapped base64, as it is or inside JSON, a quote or source code."""
_BREAK_BACKWARDS = re.compile(r"(?:\s|[rnt]\\+| ?[\"'+|>#]){1,80}")
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
        if self._known is not None:
            text, found = self._known.subn(lambda match: f"[redacted:{self._values[match[0]]}]", text)
            self.count += found
            text = self._unwrapped(text)
        for _, hint, expression, replacement in _shapes() if "shapes" in groups else ():
            if hint in text and (replaced := expression.sub(replacement, text)) != text:
                text = replaced
                self.count += 1
        parts: list[str] = []
        at = 0
        for start, end, kind in spans(text, self._groups_in, groups):
            parts += [text[at:start], f"[redacted:{kind}]"]
            at = end
            self.count += 1
        return "".join([*parts, text[at:]]) if parts else text

    def _unwrapped(self, text: str) -> str:
        """Without known values in base64 that is wrapped at some column."""
        for form, name in self._wrapped.items():
            at = 0
            while (place := _wrapped_at(text, form, at)) is not None:
                start, at = place[0], place[0] + len(name) + len("[redacted:]")
                text = f"{text[:start]}[redacted:{name}]{text[place[1] :]}"
                self.count += 1
        return text

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
                TELLING | {"shapes": _shape_patterns()} | ({"hints": hints} if hints else {}),
                rare=("places", "commands", "files", "shapes", "hints"),
                confirming=CONFIRMING,
            )
        return self._groups(data)

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
def _shapes() -> list[tuple[str, str, re.Pattern[str], Callable[[re.Match[str]], str]]]:
    return [
        (shape.name, shape.hint, lazily(shape.expression, re.DOTALL), _label(shape.name)) for shape in SHAPES
    ]


_LABELS = sorted({shape.name for shape in SHAPES} | secret_context.KINDS)


def _label(name: str) -> Callable[[re.Match[str]], str]:
    mark = f"[redacted:{name}]"
    if name == "api-key":
        # `sk-learn-and-its-many-friends` has the letters of a key, but not its randomness.
        return lambda match: mark if any(map(_is_random, re.split("[-_]", match[0]))) else match[0]
    if name == "prefixed-key":
        return lambda match: mark if _is_key_behind_prefix(match[0]) else match[0]
    if name in (
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
    ):
        return lambda match: mark if looks_random(match[0]) and any(map(str.isdigit, match[0])) else match[0]
    if name == "url-token":
        return lambda match: f"://{mark}" if looks_random(match[0]) else match[0]
    if name == "slack-webhook":
        return lambda match: mark

    def replaced(match: re.Match[str]) -> str:
        kept = str(match.groupdict().get("kept") or "")
        if match[0][len(kept) :].lower() in _COMMON_VALUES or (
            name == "url-password" and match[0].endswith("%")
        ):
            return match[0]  # `postgres://user:password@localhost`, as manuals have it
        return kept + mark

    return replaced


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
    """The forms of a value: plain, inside a JSON string (also JSON in JSON), inside a URL, and each long line
    of a value with several."""
    forms = {value, json.dumps(value, ensure_ascii=False)[1:-1]}
    inner = value
    for _ in range(_LEVELS_OF_JSON):
        inner = json.dumps(inner)[1:-1]
        forms |= {inner, inner.replace("/", "\\/")}
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
