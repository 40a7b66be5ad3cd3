"""Secrets that are known by what is written around them: the engine that applies the rules to a text.

Such a value has no form of its own, so that its name says that it is secret, and the value must look like
one: `password: str`, `token = get_token()` and `API_KEY=${API_KEY}` name no secret. `spans` finds them in any
text; `secret_values` judges a value, `secret_rules` is the table.

All expressions are bounded or advance with each step, so that a text takes time in proportion to its length.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from functools import cache

from watchkeeper.records.secret_assignments import assigned
from watchkeeper.records.secret_names import GAP, HEADER_SIGN, LINE_BREAK, NAMED, OPENS, PRINTED, QUOTE, Span
from watchkeeper.records.secret_near import near_names, of_services
from watchkeeper.records.secret_rules import COMMANDS, RULES, Rule
from watchkeeper.records.secret_shapes import Groups, Search, any_of
from watchkeeper.records.secret_tables import in_fields, in_tables
from watchkeeper.records.secret_values import (
    CODE,
    UUID,
    is_basic,
    is_chosen,
    is_cookie,
    is_given,
    is_placeholder,
    looks_random,
    plausible,
)
from watchkeeper.records.text import lazily

_AUTHORIZATION = lazily(
    rf"(?:[Aa]uthorization|AUTHORIZATION){HEADER_SIGN}(?:([A-Za-z][A-Za-z0-9-]{{1,20}})[ \t]{{1,3}})?([A-Za-z0-9._~+/=:@!-]{{8,4096}})"
)
COOKIE = lazily(
    rf"(?:(?:[Cc]ookies?|COOKIES?){HEADER_SIGN}|--cookie[ =](?:{QUOTE})?|(?<= )-b[ =]?{QUOTE})(?=[^\s=\"';]{{1,64}}=)"
)
_COOKIE_DICT = lazily(rf"[Cc]ookies?(?:{QUOTE})?[ \t]{{0,5}}[:=][ \t]{{0,5}}\{{([^{{}}]{{1,4000}})\}}")
_COOKIE_ITEM = lazily(
    rf"({QUOTE})([^\s\"'`\\]{{1,64}}){QUOTE}\s{{0,5}}:\s{{0,5}}{QUOTE}([^\s\"'\\]{{8,4096}})"
)
_PAIR = lazily(r"([^\s=\"';,\\]{1,64})=([^\s\"';,\\]{1,4096})(?:;[ \t]*)?")
_USER = lazily(
    rf"(?<=[\s\"'\\,\[])(?:-(?:[sSkLi][A-Za-z]{{0,5}})?[ua]|--user|--proxy-user|-U|--?auth|--(?:\w+-)?creds"
    rf"|--basic-auth)[\"',=\s]{{0,5}}(?:{QUOTE})?([^\s:\"'=\\]{{0,100}}):(?:{QUOTE})?([^\s\"'\\]{{4,256}})"
)
_LONGEST_COMMAND = 2_000
_HTTP_CLIENT = lazily(r"\b(?:curl|wget|https?|xhs?|httpie|ab|siege|java|hey|ngrok|etcdctl|skopeo|oras|wrk)\b")
_COMMAND = lazily(
    r"(?<![A-Za-z0-9])(?:"
    + "|".join(rf"(?P<c{number}>{names})" for number, (names, _, _) in enumerate(COMMANDS))
    + r")(?=[ \t])"
)
_OPTIONS_OF_ONE = 3
"""Secrets that one command may take."""
_GIVEN = r"(\\{0,7}[\"']?)([^\s\"'\\]{4,256})"
_TAKEN_BY = [
    lazily(r"[ \t]*?" + option.replace("…", r"[^\n]{0,300}?[ \t]") + _GIVEN) for _, option, _ in COMMANDS
]
_NEXT_COMMAND = lazily("[|;&]")
_SECRET_PAIRS = lazily(
    r"\b(?:(?:fly|flyctl|doppler|supabase|wrangler|encore) secrets? (?:set|put|import)|(?:kubectl|oc)\b[^\n]{0,80} create secret"
    r"|vault (?:kv (?:put|patch)|write))[ \t]([^\n]{1,2000})"
)
_SECRET_PAIR = lazily(rf"(?<![^\s=\"'])((?!--)[\w./-]{{1,64}})=(?:{QUOTE})?([^\s\"'\\]{{6,512}})")

_PUBLIC_PAIRS = frozenset(
    {
        "username",
        "user",
        "host",
        "url",
        "path",
        "ttl",
        "policies",
        "policy",
        "type",
        "namespace",
        "email",
        "server",
    }
)

_LONGEST_MANIFEST = 4_000
_KUBERNETES = lazily(r"\\*[\"']?kind\\*[\"']?[ \t]*:[ \t]*\\*[\"']?[Ss]ecret\b")
_DATA_LINES = lazily(
    rf"(?:^|\n)(?:{PRINTED})?([ \t]*)(?:data|stringData):[ \t]*((?:{LINE_BREAK}\1[ \t]+(?:[\w.-]+:|#)[ \t]*[^\n\\]*)+)"
)
_DATA_LINE = lazily(rf"{LINE_BREAK}[ \t]+[\w.-]+:[ \t]*[\"']?([^\s\"'\\]{{6,4096}})")
_DATA_OBJECT = lazily(r"\\*[\"'](?:data|stringData)\\*[\"'][ \t]*:\s*\{([^{}]{1,20000})\}")
_DATA_ITEM = lazily(r"\\*[\"'][\w.-]+\\*[\"']\s*:\s*\\*[\"']([^\"'\\]{6,4096})")


@cache
def compiled_rules() -> list[tuple[Search, re.Pattern[str], Rule]]:
    return [(any_of(rule.near.split("\n")), re.compile(rule.expression), rule) for rule in RULES]


def _by_rules(text: str) -> Iterator[Span]:
    data = text.encode("utf-8", "replace")
    for is_near, expression, rule in compiled_rules():
        for match in expression.finditer(text) if is_near(data) else ():
            group = match.lastindex or 0
            if rule.check(match[group]):
                yield Span(*match.span(group), rule.mask)


def _in_headers(text: str) -> Iterator[Span]:
    for match in _AUTHORIZATION.finditer(text):
        value = match[2]
        if is_placeholder(value) or value.startswith("redacted"):
            continue
        known = match[1] is not None and match[1].lower() in (
            "basic",
            "bearer",
            "token",
            "apikey",
            "bot",
            "digest",
            "key",
            "ssws",
            "geniekey",
        )
        digit = any(map(str.isdigit, value))
        if (
            is_basic(value)
            or looks_random(value)
            or (known and digit and (not CODE.match(value) or value.isalnum()))
        ):
            yield Span(match.start(2), match.end(2), "authorization")
    for match in COOKIE.finditer(text):
        at = match.end()
        while (pair := _PAIR.match(text, at)) is not None:
            name, value = pair[1], pair[2]
            at = pair.end()
            if is_cookie(name, value):
                yield Span(pair.start(2), pair.end(2), "cookie")
    for jar in _COOKIE_DICT.finditer(text):
        for item in _COOKIE_ITEM.finditer(text, jar.start(1), jar.end(1)):
            if is_cookie(item[2], item[3]):
                yield Span(item.start(3), item.end(3), "cookie")


def _in_commands(text: str) -> Iterator[Span]:
    clients: list[int] | None = None
    for match in _USER.finditer(text):
        value = match[2]
        if clients is None:
            clients = [client.start() for client in _HTTP_CLIENT.finditer(text)]
        nearest = bisect_left(clients, match.start())
        near = (
            "auth" in match[0]
            or "creds" in match[0]
            or (nearest > 0 and match.start() - clients[nearest - 1] <= _LONGEST_COMMAND)
        )
        if near and not is_placeholder(value) and not value.startswith(("//", "[redacted:")):
            yield Span(match.start(2), match.end(2), "password")
    for match in _COMMAND.finditer(text):
        number = int(str(match.lastgroup)[1:])
        option = _TAKEN_BY[number].match(text, match.end())
        if option is None and number + 1 < len(COMMANDS) and COMMANDS[number][0] == COMMANDS[number + 1][0]:
            option = _TAKEN_BY[number + 1].match(text, match.end())
        for _ in range(_OPTIONS_OF_ONE):
            if option is None or option[2].startswith("-"):
                break
            if plausible(option[2]) or (
                is_given(option[2]) and _NEXT_COMMAND.search(text, match.end(), option.start(2)) is None
            ):
                yield Span(option.start(2), option.end(2), "password")
            repeats = COMMANDS[number][1].startswith("…")  # `keytool -storepass VALUE -keypass VALUE`
            option = _TAKEN_BY[number].match(text, option.end()) if repeats else None
    for match in _SECRET_PAIRS.finditer(text):
        for pair in _SECRET_PAIR.finditer(text, match.start(1), match.end(1)):
            if pair[1].lower() not in _PUBLIC_PAIRS and is_given(pair[2]) and not pair[2].startswith("@"):
                yield Span(pair.start(2), pair.end(2), "secret")


def _in_manifests(text: str) -> Iterator[Span]:
    done = 0
    for match in _KUBERNETES.finditer(text):
        if match.end() > done:
            start, done = (
                max(done, match.start() - _LONGEST_MANIFEST),
                min(len(text), match.end() + _LONGEST_MANIFEST),
            )
            yield from _kubernetes(text, start, done)


def _kubernetes(text: str, start: int, end: int) -> Iterator[Span]:
    for block in _DATA_LINES.finditer(text, start, end):
        for line in _DATA_LINE.finditer(text, block.start(2), block.end(2)):
            if not is_placeholder(line[1]):
                yield Span(line.start(1), line.end(1), "secret")
    for block in _DATA_OBJECT.finditer(text, start, end):
        for item in _DATA_ITEM.finditer(text, block.start(1), block.end(1)):
            if not is_placeholder(item[1]):
                yield Span(item.start(1), item.end(1), "secret")


def spans(text: str, groups_in: Groups, groups: Collection[str] | None = None) -> list[Span]:
    """Every secret of the text that is known by what is around it, in order; none overlaps another.

    Args:
        groups_in: names the groups of `TELLING`, perhaps among others, of which one is found in a text.
        groups: those of this text, where they are known.
    """
    found: list[Span] = []
    end = 0
    plain = text.replace("│", "|").replace("┃", "|").replace("\0", "\n")
    if groups is None or plain != text:
        groups = groups_in(plain.encode("utf-8", "replace"))
    text = plain
    sources: dict[Callable[[str], Iterator[Span]], set[str]] = {
        _by_rules: {"rules"},
        in_tables: {"names"},
        assigned: {"names", "settings"},
        in_fields: {"names", "fields"},
        _in_headers: {"headers"},
        _in_commands: {"commands"},
        _in_manifests: {"files"},
        near_names: {"near"},
        of_services: {"services", "near", "names"},
    }
    for span in sorted(
        span
        for source, tellings in sources.items()
        if not tellings.isdisjoint(groups)
        for span in source(text)
    ):
        if span.start >= end and not text.startswith("[redacted:", span.start):
            found.append(_whole(text, span))
            end = found[-1].end
    return _with_repeats(text, found) if found else found


_LINE_ENDS = r"(?=[ \t]*(?:[\r\n\\\"'`]|\Z))"
_MORE_BASE64 = lazily(
    rf"={{0,2}}(?:(?:{LINE_BREAK}[ \t]{{0,40}}[A-Za-z0-9+/]{{40,128}}{_LINE_ENDS}){{1,400}}"
    rf"(?:{LINE_BREAK}[ \t]{{0,40}}[A-Za-z0-9+/]{{1,128}}={{0,2}}{_LINE_ENDS})?"
    rf"|{LINE_BREAK}[ \t]{{0,40}}(?=[A-Za-z+/]{{0,128}}[0-9=])[A-Za-z0-9+/]{{4,128}}(?:==?|(?<=[A-Za-z0-9+/]{{16}})){_LINE_ENDS})"
)
_MIXED = r"(?=\S{0,60}[0-9])(?=\S{0,60}[A-Z])"
_MORE_QUOTED = lazily(
    rf"{QUOTE}(?:\s?(?:\+|\.\.?)(?:\s|\\{{1,7}}[nr]){{0,40}}[bruf]?{QUOTE}(?=[^\s\"'`]{{0,60}}[0-9])[^\s\"'`\\]{{4,512}}"
    rf"|\r?\n[ \t]{{0,60}}[bruf]?{QUOTE}{_MIXED}(?=[^\s\"'`]{{0,60}}[a-z])[A-Za-z0-9+/=_-]{{12,512}})(?={QUOTE})"
)
"""`"…" + "…"`, and strings under each other."""
_MORE_ESCAPED = lazily(
    r"(?:\\{1,2}[=:#!\"'][^\s\"'`\\]{1,256})+|\\\r?\n[ \t]{0,8}[A-Za-z0-9+/=_.-]{8,512}(?=\s|\\|[\"'`]|\Z)"
)
"""An escaped sign inside the value, or a line that goes on behind a backslash."""
_BASE64_LINE = lazily(r"[A-Za-z0-9+/]{60,8192}\Z")


def _whole(text: str, span: Span) -> Span:
    """The span to the end of a value that goes on: on further lines of base64, in further strings, behind an
    escaped sign."""
    start, end, label = span
    more: re.Match[str] | None = None
    if _BASE64_LINE.match(text[start:end]):
        more = _MORE_BASE64.match(text, end)
    is_quoted = text[start - 1 : start] in ("'", '"', "`")
    while is_quoted and (joined := _MORE_QUOTED.match(text, end)) is not None:
        end = joined.end()
    if text[start - 2 : start - 1] != "\\" and (
        not is_quoted or text[end + 1 : end + 2] == text[start - 1 : start]
    ):
        more = more or _MORE_ESCAPED.match(text, end)
    return Span(start, more.end() if more is not None else end, label)


_IN_A_WORD = lazily("[A-Za-z0-9_-]")
_MOST_REPEATED = 50
"""Different values that are looked for in the rest of a text."""


def _with_repeats(text: str, found: list[Span]) -> list[Span]:
    """The spans, and wherever else in the text the same random values stand, without a name."""
    values: dict[str, str] = {}
    for span in found:
        value = text[span.start : span.end]
        if len(value) >= 12 and len(values) < _MOST_REPEATED and _is_random_value(value):
            values[value] = span.label
    taken = {span.start for span in found}
    more = []
    for value, label in values.items():
        at = text.find(value)
        while at != -1:
            end = at + len(value)
            if (
                at not in taken
                and not _IN_A_WORD.match(text[at - 1 : at])
                and not _IN_A_WORD.match(text[end : end + 1])
            ):
                more.append(Span(at, end, label))
            at = text.find(value, end)
    if not more:
        return found
    kept: list[Span] = []
    for span in sorted(found + more, key=lambda one: (one.start, -one.end)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return kept


def _is_random_value(value: str) -> bool:
    return any(map(str.isdigit, value)) and (
        looks_random(value) or UUID.match(value) is not None or is_chosen(value)
    )


_OPENING = lazily(
    rf"(?:[Aa]uthorization|AUTHORIZATION){HEADER_SIGN}(?:[A-Za-z][A-Za-z0-9-]{{1,20}}[ \t]{{1,3}})?|[Bb]asic[ \t]"
    rf"|(?:-u|-U|-user|-proxy-user)[\"',=\s]{{1,4}}(?:{QUOTE})?[^\s:\"'=\\]{{1,100}}:|[ \t]-[paPw][ \t]*(?=\S)"
    rf"|password{GAP}|pass:|(?:by|BY)[ \t]{{1,5}}(?={QUOTE})"
)


def open_value(text: str) -> int | None:
    """Where a value begins that goes on to the end of this text, if what is written next may belong to it."""
    starts = [match.end() for match in NAMED.finditer(text) if match["separator"].strip()]
    starts += [match.end() for match in COOKIE.finditer(text)] + [
        match.end() for match in _OPENING.finditer(text)
    ]
    for start in sorted(starts):
        opened = OPENS.match(text, start)
        if opened is not None and opened[1] not in text[opened.end() :] and "\n" not in text[start:]:
            return start
        if opened is None and not any(map(str.isspace, text[start:])):
            return start
    return None
