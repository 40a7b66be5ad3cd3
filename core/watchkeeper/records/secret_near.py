"""What looks like a secret near the name of one, or near the name of a service."""

from __future__ import annotations

import re
from collections.abc import Iterator

from watchkeeper.records.secret_names import LINE_END, TAKES_A_WORD, Span
from watchkeeper.records.secret_shapes import SERVICES, Sought
from watchkeeper.records.secret_values import (
    CAPITAL,
    DIGIT,
    HASH,
    SMALL_LETTER,
    UUID,
    is_chosen,
    is_other_name,
    is_placeholder,
    is_sentence,
    kind_by_name,
    looks_random,
)
from watchkeeper.records.text import lazily

NEAR_NAME = (
    "login|auth|authenticate|unlock|activate|nemonic|seed|Seed|asswords?|ASSWORD|asswd|hrase|mot de passe|ecret|ECRET|oken|OKEN"
    "|redentials?|(?:pi|th|te|ss|et|er|se|ng|nt)key|_key|_KEY|-key|(?:pi|PI|ss|et|te) (?:[Kk]ey|KEY)"
)
_NEAR = Sought(rf"(?:{NEAR_NAME})(?![A-Za-z])", rf"(?:{NEAR_NAME})(?:[^A-Za-z]|$)")
_NEAR_GAP = 60
_SEED = lazily(r"[^\n]{0,60}?[\"'`]([a-z]{3,8}(?: [a-z]{3,8}){11,23})\\{0,7}[\"'`]")
_NEAR_QUOTED = lazily(r"(?<=[\"'`])([^\s\"'`\\]{8,256})(?=\\{0,7}[\"'`])")
_NEAR_WORD = lazily(
    r"[\"'`*)\]]{0,3}(?:[ \t]{1,40}|[ \t]?:[ \t]{1,20})((?![A-Za-z-]+[.,:;]?(?:\s|\Z))[^\s\"'`\\,;(){}<>]{8,256})(?=[.]?(?:\s|\\|\"|\Z))"
)
_RANDOM_WORD = lazily(r"[A-Za-z0-9]{16,}")
_NAME_WORDS_BEFORE = lazily(r"[A-Za-z0-9_]*\Z")


def _is_near(kind: str, value: str) -> bool:
    """Whether a word behind a secret's name is one, whatever is between them."""
    if is_placeholder(value) or value.startswith("[redacted:"):
        return False
    if kind == "password" and is_chosen(value):
        return True
    word = _RANDOM_WORD.search(value)
    return (
        word is not None
        and len(value) >= 20
        and "/" not in value
        and CAPITAL.search(word[0]) is not None
        and SMALL_LETTER.search(word[0]) is not None
        and DIGIT.search(word[0]) is not None
        and looks_random(word[0])
    )


_CAPITAL_NAME = "ECRET|OKEN|ACCESS|PRIVATE|KEY"
FULL_NAME = f"{_CAPITAL_NAME}|ecret|oken|[Kk]ey"

_NAMED_NEXT = Sought(
    rf"(?:(?:{FULL_NAME})(?:[ \t]{{1,4}}|[ \t]{{0,2}}[=:][ \t]{{0,3}})|(?:{_CAPITAL_NAME})[.-])"
    r"(?P<value>(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{20,128})(?=[.,;]?(?:\s|\\|[\"'`]|\Z))",
    rf"(?:{FULL_NAME})[ \t]*[=: \t]|(?:{_CAPITAL_NAME})[.-]",
)
"""A name in full, and behind it a word that only a program writes: no capitals are needed."""

_NAME_BEFORE_WORD = lazily(r"(?:[A-Za-z0-9]{1,20} )?[A-Za-z0-9_.-]{0,20}\Z")
_KNOWN_KEY_END = lazily("(?:api|access|secret|private)[ _-]?key$", re.IGNORECASE)
_VERBS = frozenset({"login", "auth", "authenticate", "unlock", "activate"})
"""Subcommands that take a secret."""


def _is_made(name: str, value: str) -> bool:
    """Whether a word of letters and digits is random; behind `key` alone, digests, UUIDs and dates are keys of
    something else, and `AAAA` begins a public one."""
    is_plain = name.endswith("key") and not _KNOWN_KEY_END.search(name)
    if is_placeholder(value) or (
        is_plain and (not value.isalnum() or HASH.match(value) is not None or value.startswith("AAAA"))
    ):
        return False
    return UUID.match(value) is not None or looks_random(value.replace("-", ""))


def near_names(text: str) -> Iterator[Span]:
    """What looks like a secret behind the name of one, on its line: an argument of a call or a command that no rule
    knows, the next column of a listing."""
    for match in _NAMED_NEXT.finditer(text):
        begin, end = match.span("value")
        before = _NAME_BEFORE_WORD.search(text, max(0, match.start() - 40), match.start())
        name = f"{before[0] if before is not None else ''}{text[match.start() : begin]}".rstrip(" \t=:.-")
        if not is_other_name(name) and _is_made(name, match["value"]):
            yield Span(begin, end, kind_by_name(name) or "secret")
    for match in _NEAR.finditer(text):
        kind = "password" if match[0].lower().startswith(("assw", "hrase", "mot")) else "secret"
        if match[0] in ("nemonic", "hrase", "seed", "Seed"):
            if (seed := _SEED.match(text, match.end())) is not None and not is_sentence(seed[1].split()):
                yield Span(seed.start(1), seed.end(1), "password")
            continue
        if match[0] in ("oken", "_key") and is_other_name(
            _NAME_WORDS_BEFORE.search(text, max(0, match.start() - 30), match.end())[0]  # type: ignore[index]
        ):
            continue
        is_verb = match[0] in _VERBS
        word = _NEAR_WORD.match(text, match.end())
        if word is not None and (
            _is_near(kind, word[1])
            or (
                (HASH.match(word[1]) is not None or (is_verb and UUID.match(word[1]) is not None))
                and len(word[1]) in (32, 36, 40, 64)
                and looks_random(word[1].replace("-", ""))
                and text[match.end()] in " \t"
                and match[0].lower() != "ecret"
                and (
                    is_verb or TAKES_A_WORD.search(text, max(0, match.start() - 80), match.end()) is not None
                )
            )
        ):
            yield Span(word.start(1), word.end(1), kind)
        if is_verb:
            continue
        line = LINE_END.search(text, match.end(), match.end() + _NEAR_GAP)
        end = line.start() if line is not None else min(len(text), match.end() + _NEAR_GAP)
        for quoted in _NEAR_QUOTED.finditer(text, match.end(), min(len(text), end + 256)):
            if (
                quoted.start(1) <= end
                and "\n" not in text[match.end() : quoted.start()]
                and _is_near(kind, quoted[1])
            ):
                yield Span(quoted.start(1), quoted.end(1), kind)


SERVICE_NAMES = f"(?i:{'|'.join(sorted(SERVICES))})"
SERVICE_GAP = 44
"""Characters between the name of a service and its key, at most."""
_SERVICE = Sought(rf"(?:\A|[^A-Za-z]){SERVICE_NAMES}", rf"(?:^|[^A-Za-z]){SERVICE_NAMES}")
_WORD_BEGINS = lazily("(?<![A-Za-z0-9+/@#])[A-Za-z0-9]")
_SERVICE_VALUE = lazily(
    r"(?=[A-Za-z_-]*[0-9]|[A-Za-z]{20})[A-Za-z0-9][A-Za-z0-9_+/.=-]{11,2047}(?=[.,;]?(?:\s|\\|[\"'`)}\]<|,;&]|\Z))"
)
_BETWEEN = lazily(r"[A-Za-z0-9_.\s-]*\\{0,7}[\"'`]?\s*(?:=>|:=|->|[=:,>(|])?\s*\\{0,7}[\"'`({\[]*\Z")
"""What may be between a service's name and its key: a few words, a sign, a quote."""
_KEY_WORDS = lazily(
    r"key|token|secret|pass|pat\b|api|auth|access|private|credential|cred|bearer|pwd|(?<![a-z])pw(?![a-z])",
    re.IGNORECASE,
)
_KEY_PREFIX = lazily(
    r"(?i:(?:[a-z]{0,20}(?:key|token|secret|access|private|pat)|api)[-_.])+(?=[A-Za-z0-9]{4})"
)

_ID_WORDS = lazily(
    r"(?i:commit|sha|md5|hash|digest|checksum|integrity|etag|revision|version|branch|merge|tree|blob|uuid|guid|trace|span"
    r"|event|session|request|message|thread|issue|public|publish|fingerprint|image|build|release|tag|file|path|url|host"
    r"|user|name|folder|dir|project|org|account|tenant|workspace)|(?<![A-Za-z])id(?![a-z])|[a-z_-]I[dD](?![a-z])|_id(?![a-z])|(?<![a-z])ID(?![a-z])"
)
"""What makes an id, a digest or a path of what follows."""


def _is_services(gap: str, value: str) -> bool:
    """Whether a word behind a service's name, with this between them, is its key."""
    plain = value.strip("=-_.")
    if is_placeholder(value) or value.startswith("redacted") or "//" in value:
        return False
    last = max((match.end() for match in _KEY_WORDS.finditer(gap)), default=0)
    is_told = last > 0
    if _ID_WORDS.search(gap, last) or len(gap.split()) > (4 if is_told else 1):
        return False
    if UUID.match(plain):
        return True
    if (
        sum(part.isalpha() and len(part) >= 4 and not _is_unspoken(part) for part in re.split("[-_.]", plain))
        > 1
    ):
        return False  # a name of words
    letters = re.sub("[^A-Za-z0-9]", "", plain)
    digits = len(DIGIT.findall(plain))
    if HASH.match(plain):
        return len(plain) >= (20 if digits in (0, len(plain)) else 15 if is_told else 32) and (
            is_told or digits > 0
        )
    if not is_told:
        return len(plain) >= 20 and digits > 1 and looks_random(letters)
    if digits == 0 or len(plain) >= 20:
        return len(plain) >= 20 and (_is_unspoken(letters) or (digits > 1 and looks_random(letters)))
    return len(plain) >= 12 and digits > 1 and (looks_random(letters) or digits * 4 >= len(letters))


_CONSONANTS = lazily("[b-df-hj-np-tv-z]{5}", re.IGNORECASE)


def _is_unspoken(letters: str) -> bool:
    """Whether letters are at random, and no words: five consonants in a row, or capitals anywhere."""
    return _CONSONANTS.search(letters) is not None or looks_random(letters)


def of_services(text: str) -> Iterator[Span]:
    """A key without a form of its own behind the name of the service that it is for."""
    for match in _SERVICE.finditer(text):
        line = LINE_END.search(text, match.end(), match.end() + SERVICE_GAP)
        end = line.start() if line is not None else min(len(text), match.end() + SERVICE_GAP)
        at = match.end()
        while (begins := _WORD_BEGINS.search(text, at, end)) is not None:
            value = _SERVICE_VALUE.match(text, begins.start())
            prefix = _KEY_PREFIX.match(value[0]) if value is not None else None
            start = begins.start() + (prefix.end() if prefix is not None else 0)
            gap = text[match.end() : start]
            if _BETWEEN.match(gap) is None:
                break
            at = begins.end() if value is None else value.end()
            if value is not None and _is_services(gap, text[start:at]):
                yield Span(start, at, "key")
                break
