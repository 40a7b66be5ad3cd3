"""Values that are assigned to the name of a secret: `password = …`, in any language and file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from watchkeeper.records.secret_names import (
    CODE_LINE,
    LINE_END,
    LONGEST_NAME,
    LONGEST_VALUE,
    NAME_BEFORE,
    NAMED,
    OPENS,
    ORDINARY,
    PAIR_COMMAND,
    PRINTED,
    QUOTE,
    SQL,
    TAKES_A_WORD,
    TALK,
    WORD_BEFORE,
    Span,
    kind_of,
)
from watchkeeper.records.secret_values import APP_PASSWORD, Judged, is_chosen, is_secret_value
from watchkeeper.records.text import lazily

_BARE = lazily(
    r"[A-Za-z0-9_+/.%~-]{128,4096}={0,2}(?![^\s\"'`,;&)}\]<|\\])|[^\s\"'`]{1,128}(?![^\s\"'`])|[^\s\"'`,;&=:)}\]<>|\\]{1,128}(?=[,;&)}\]<>|\\])"
)
"""A value without quotes: what is long is letters and digits, so that no text is read once for each name in
it."""
_ESCAPE = lazily(r"\\+(?:[nrtu\"'\\]|$)")
_INSIDE = lazily(r"[,;&)}\]|<>]")
_REST_OF_LINE = lazily(r"[ \t]*(?:#.*)?(?:\r?\n|\\*\"|\Z)")
_CELL_END = lazily(r"[ \t]*\|")
_CELL_BEFORE = lazily(
    r"(?:[^\s:]{1,60}:[0-9]{1,7}:)?[^\w|]{0,20}(?:[0-9]{1,7}(?:→|\t))?[^\w|]{0,20}(?:\||\Z)"
)
_CLOSING_TAG = lazily(r"\s{0,40}</")
_LINE_NUMBER = lazily(r":[0-9]{1,6}::\Z")

_LINE_BEFORE = lazily(
    r"(?:\A|\n|\\+\"|: ?\")(?:[^\s:\"']{1,100}[:-])?[ \t]*(?:[0-9]{1,7}(?:→|\t|[:"
    r"|-]))?[ \t]*[+>-]?[ \t]*(?:[-*] )?(?:\*{1,2}|<\w{1,8}>)?(?:- |export |set "
    r"|declare -x )?[ \t]*\Z"
)
"""The beginning of a line, also as `cat -n`, `grep -n` and `diff` print it."""

_SHELL_BEFORE = lazily(r"(?:\A|[\s;&|({,\"'`→=]|[0-9][:-])\Z")
_GETTER = lazily(
    r"(?i:get|has|is|find|show|input|by|label|prompt|ask|read|use|new|check|valid|verif|forgot|reset|hash|encrypt|gen|test|t\Z)|[A-Z][a-z]"
)
_SETTER = lazily(
    r"(?i:put|string|var|set|define|field|add|env|header|append|setdefault|property|export|insert|pair|entry)\w{0,20}\(\s{0,5}"
    r"(?:\\{0,7}\"String\\{0,7}\",\s?)?\\{0,7}[\"']?\Z"
)
"""Calls that take a name and its value."""
_TOLD = lazily(
    r"(?i:with|using|and|use|the|set|generated|temporary|temp|initial|default|random|new|one-time|root|admin|your"
    r"|bootstrap|my|our)[ \t]+(?:[a-z]+[ \t]+)?\Z|(?i:user|username|login|email)[:=]?[ ]\S{1,60}[ ](?:and |/ |, |with )?\Z"
)
"""What a program says before it names a password that it made."""


def _is_told(ahead: str) -> bool:
    """Whether a text ends with one of `_TOLD`, each of which ends with a space."""
    return ahead.endswith((" ", "\t")) and _TOLD.search(ahead) is not None


_PHRASE = lazily(r"[a-z]{2,12}(?: [a-z]{2,12}){3,24}(?=[ \t]*(?:\r?\n|\\*\"|\Z))")
_USER_TOLD = lazily(r"(?i:username|user|in as|account) \S{1,60} (?:and|with|using) \Z")
_REST_OF_WORD = lazily(r"[.,;]?(?:\s|\\*[\"'`]|\Z)")
_NEXT_ITEM = lazily(rf"{QUOTE},\s{{0,40}}(?={QUOTE})")
_NEXT_LINE_ITEM = lazily(rf"(?:{QUOTE})?\r?\n{PRINTED}?[ \t]{{0,60}}- (?=\S)")


def _is_settings(text: str, begin: int, end: int) -> bool:
    """Whether the lines around this place are none of a program."""
    lines = LINE_END.split(text[max(0, begin - 300) : begin])[-4:] if begin else []
    lines += LINE_END.split(text[end : end + 300])[:4]
    return not any(map(CODE_LINE.search, lines))


def assigned(text: str) -> Iterator[Span]:
    for match in NAMED.finditer(text):
        kind = kind_of(match)
        before = NAME_BEFORE.search(text, max(0, match.start() - LONGEST_NAME), match.start())
        begin = before.start() if before is not None else match.start()
        name = text[begin : match.start("separator")]
        separator = match["separator"]
        if (
            name.lower().rstrip(" 0123456789") in ("token", "tokens", "key", "phrase")
            and (word := WORD_BEFORE.search(text, max(0, begin - 24), begin)) is not None
        ):
            name = f"{word[0].strip()}_{name}"
        if (
            text.startswith("::", begin - 2) and _LINE_NUMBER.search(text, max(0, begin - 9), begin) is None
        ) or (separator == ":" and text.startswith(":", begin - 1)):
            continue  # a part of a longer name, as in `AWS::IAM::AccessKey` and `arn:aws:…:secret:name`
        at = match.end()
        found = _value(text, begin, name, kind, separator, at)
        while found is not None:
            yield Span(found[0], found[1], kind)
            follows = (
                _NEXT_ITEM if "[" in separator else _NEXT_LINE_ITEM if separator.endswith("- ") else None
            )
            item = follows.match(text, found[1]) if follows is not None else None
            found = _value(text, begin, name, kind, separator, item.end()) if item is not None else None


def _value(text: str, begin: int, name: str, kind: str, separator: str, at: int) -> tuple[int, int] | None:
    bare = separator.strip()
    if not bare:
        return _word_behind(text, begin, name, kind, at)
    opened = OPENS.match(text, at)
    if opened is not None:
        nested = OPENS.match(text, opened.end())
        if (
            nested is not None
            and nested.start(1) == opened.end()
            and (len(nested[1]) > len(opened[1]) or nested[1] not in opened[1])
        ):
            opened = nested  # a string in a string
        end = _closing(text, opened[1], opened.end())
        start, value = opened.end(), text[opened.end() : end]
        if value[:1].isspace() and not any(map(str.isspace, value.strip())):
            start += len(value) - len(value.lstrip())
            value = value.strip()
            end = start + len(value)
        is_line = (
            "=" in bare
            or ":" in bare
            or "alue" in bare
            or (bare.endswith(",") and name.isupper() and not separator.startswith(","))
            or bare == "-"
        )
        ahead = text[max(0, begin - 80) : begin]
        if re.search(" (?:is|was|to)\\b", separator):
            is_line = True
        if (
            bare == "{"
            or (bare == "(" and not _GETTER.match(name))
            or (bare.endswith(",") and _SETTER.search(ahead))
        ):
            is_line = True
        is_call = (bare == "(" or bare.endswith(",")) and not is_line
        takes_words = is_line and "==" not in bare
        judged = Judged(kind, name, is_quoted=True, is_line=is_line, is_call=is_call, takes_words=takes_words)
        return (start, end) if is_secret_value(value, judged) else None
    whole = _BARE.match(text, at)
    if whole is None:
        return None
    if (
        kind == "password"
        and (phrase := _PHRASE.match(text, at)) is not None
        and (
            re.search("hrase|nemonic", name)
            or (
                bare in ("=", ":")
                and _LINE_BEFORE.search(text, max(0, begin - 160), begin)
                and _is_settings(text, begin, phrase.end())
            )
        )
    ):
        return None if any(word in TALK for word in phrase[0].split()) else (at, phrase.end())
    if (
        kind == "password"
        and (app := APP_PASSWORD.match(text, at)) is not None
        and _REST_OF_LINE.match(text, app.end()) is not None
        and not any(word.lower() in TALK for word in app[0].split())
    ):
        return at, app.end()
    value = whole[0]
    if escape := _ESCAPE.search(value):
        value = value[: escape.start()]
    if bare.endswith(">") and "=" not in bare and ":" not in bare:
        inner = value.partition("</")[0]
        judged = Judged(kind, name, is_quoted=True, is_line=True, takes_words=True)
        closes = _CLOSING_TAG.match(text, at + len(inner)) is not None
        return (at, at + len(inner)) if closes and is_secret_value(inner, judged) else None
    ahead = text[max(0, begin - 160) : begin]
    is_variable = (
        bare == "="
        and not separator.startswith((" ", "\t"))
        and (name.isupper() or name.startswith("TF_VAR_"))
        and _SHELL_BEFORE.search(ahead) is not None
    )
    is_line = _REST_OF_LINE.match(text, at + len(value)) is not None and (
        "alue" in bare or _LINE_BEFORE.search(ahead[max(0, ahead.rfind("\n")) :]) is not None
    )
    if bare == ",":
        is_line = (
            _LINE_BEFORE.search(ahead) is not None and text[at + len(value) : at + len(value) + 1] != ")"
        )
        if not is_line:
            return None
    if bare.endswith("|"):
        is_line = is_line or (
            _CELL_BEFORE.match(LINE_END.split(ahead)[-1].rpartition('"')[2]) is not None
            and _CELL_END.match(text, at + len(value)) is not None
        )
    if re.search("[a-z(]", bare) or _is_told(ahead):
        is_line = is_line or (kind == "password" and _REST_OF_WORD.match(text, at + len(value)) is not None)
    is_option = bare in ("=", ":") and bare == separator and name.startswith("-")
    if not (is_variable or is_line) and (cut := _INSIDE.search(value)):
        value = value[: cut.start()]
    value = value.rstrip(",;)}]|&>") if not is_line else value
    end = at + len(value)
    is_pair = (
        bare == "=" == separator
        and not is_line
        and (PAIR_COMMAND.search(ahead) is not None or name.startswith("ansible_"))
    )
    judged = Judged(
        kind, name, is_quoted=False, is_line=is_variable or is_line or is_option or is_pair or bare == ":-"
    )
    if bare != ":-" and is_secret_value(value, judged):
        return at, end
    if (
        bare == "=" == separator
        and kind in ("password", "secret")
        and text[end : end + 1].isspace()
        and is_chosen(value)
    ):
        return at, end  # in a message
    if bare == ":-" or text.startswith("${", begin - 2):
        value = value.partition("}")[0]
        end = at + len(value)
        is_option = True
    if re.search("[a-z]", bare) and ":" not in bare and len(re.findall("[-_.]", value)) < 2:
        return None  # `the password is wrong`
    takes_words = (
        is_option
        or is_pair
        or (is_line and not re.search("==|[)|]", bare) and _is_settings(text, begin, end))
    )
    judged = judged._replace(takes_words=takes_words, is_quoted=is_option or is_pair)
    return (at, end) if takes_words and is_secret_value(value, judged) else None


def _word_behind(text: str, begin: int, name: str, kind: str, at: int) -> tuple[int, int] | None:
    """The value of `--password VALUE`, `ENV PASSWORD VALUE` and `WITH PASSWORD 'VALUE'`."""
    ahead = text[max(0, begin - 80) : begin + len(name)]
    opened = OPENS.match(text, at)
    takes = TAKES_A_WORD.search(ahead) is not None
    takes = takes or (kind == "password" and _USER_TOLD.search(text, max(0, begin - 90), begin) is not None)
    if (
        not takes
        and re.fullmatch(r"(?:[\w.-]*[_.-])?(?:password|passwd|pass|secret)", name.lower())
        and opened is None
    ):
        word = _BARE.match(text, at)
        takes = (
            word is not None
            and _LINE_BEFORE.search(text, max(0, begin - 160), begin) is not None
            and _REST_OF_LINE.match(text, word.end()) is not None
            and _is_settings(text, begin, word.end())
        )
    if (
        opened is not None
        and not takes
        and kind == "password"
        and _LINE_BEFORE.search(text, max(0, begin - 160), begin)
    ):
        takes = (
            _REST_OF_LINE.match(text, _closing(text, opened[1], opened.end()) + len(opened[1])) is not None
        )
    if opened is not None and not takes and kind == "password" and _is_told(text[max(0, begin - 40) : begin]):
        end = _closing(text, opened[1], opened.end())
        value = text[opened.end() : end]
        judged = Judged(kind, name, is_quoted=True, is_line=True)
        if any(map(str.isdigit, value)) and is_secret_value(value, judged):
            return opened.end(), end
    if not takes and not (
        opened is not None
        and opened[1] == "'"
        and kind == "password"
        and SQL.search(text, max(0, begin - 200), begin)
    ):
        return None
    if opened is not None:
        end = _closing(text, opened[1], opened.end())
        start = opened.end()
    else:
        whole = _BARE.match(text, at)
        if whole is None or whole[0].startswith("-"):
            return None
        start, end = at, at + len(whole[0])
        if escape := _ESCAPE.search(whole[0]):
            end = at + escape.start()
        end = start + len(text[start:end].rstrip(",;)|&"))
    if text[start:end].rstrip(".,\"'").lower() in ORDINARY:
        return None  # `set NAME instead`
    judged = Judged(kind, name, is_quoted=True, is_line=takes, takes_words=True)
    return (start, end) if is_secret_value(text[start:end], judged) else None


def _closing(text: str, quote: str, at: int) -> int:
    """Where a quoted value ends: before the same quote with as many backslashes, or where its line does."""
    limit = min(len(text), at + LONGEST_VALUE + 1)
    end = text.find(quote, at, limit)
    while end > at and text[end - 1] == "\\" and len(quote) == 1:
        end = text.find(quote, end + 1, limit)
    line = text.find("\n", at, limit if end == -1 else end)
    return line if line != -1 else limit if end == -1 else end


A_VALUE = rf"(?:({QUOTE})([^\"'`\\\n]{{6,512}})|([^\s\"'`,;}}<>\\]{{6,512}}))"
