"""Columns of tables whose names are a secret's, and names and values in two fields."""

from __future__ import annotations

import re
from collections.abc import Iterator

from watchkeeper.records.secret_assignments import A_VALUE
from watchkeeper.records.secret_names import (
    LINE_BREAK,
    PRINTED,
    PRINTED_HINT,
    QUOTE,
    SECRET_WORDS,
    Span,
    may_be_named,
)
from watchkeeper.records.secret_shapes import Sought, any_of, one_byte_each
from watchkeeper.records.secret_values import named_secret
from watchkeeper.records.text import lazily

_COLUMNS = lazily(
    rf"(?:(?:^|\n|\\?\")(?:{PRINTED})?(?=[^\n\\]{{0,300}}(?:assword|ecret|oken|[Kk]ey|pwd|PASSWORD"
    rf"|SECRET))([\w .@/\"-]{{0,40}}(?:[,;\t][\w .@/\"-]{{0,40}}){{1,15}})(?={LINE_BREAK}))"
    r"|(?i:insert)[ \t]+(?i:into)[ \t]+[\w.\"`\[\]]{1,80}[ \t]*\(([^()\n]{1,300})\)\s{0,5}(?i:values)\s{0,5}"
)
_CELLS = lazily(rf"{LINE_BREAK}([^\n\\]{{1,1000}})")
_TUPLE = lazily(r"(?:,\s{0,5})?\(([^()\n]{1,1000})\)")
_RULED = lazily(
    rf"(?:\A|(?<=\n)){PRINTED}?([^\n\\]{{0,200}}(?:assword|ecret|oken|[Kk]ey|PASSWORD|SECRET)[^\n\\]{{0,200}}){LINE_BREAK}"
    r"[|+ -]{0,3}-{3}[-|+: ]{0,300}(?=\r?\n|\\)"
)
_RULED_ROW = lazily(rf"{LINE_BREAK}([^\n\\]{{3,400}})")
_RULED_CELL = lazily(r"[^\s|](?:[^\s|]| (?![ |]))*")
_RULED_HINT = rf"(?:assword|ecret|oken|[Kk]ey|PASSWORD|SECRET)[^\n\\]*\r?\n{PRINTED_HINT}?[|+ -]{{0,3}}---"
_COLUMNS_HINTS = (
    rf"(?:^|\n|\"){PRINTED_HINT}?[\w .@/\",;\t?-]*(?:assword|ecret|oken|[Kk]ey|pwd|PASSWORD|SECRET)[\w .@/\",;\t?-]*(?:\r|\n|\\)",
    r"(?i:insert[ \t]+into)",
)


def _ruled(text: str) -> Iterator[Span]:
    at = 0
    while (
        match := _RULED.search(text, at)
    ) is not None:  # past the rows of the table before: each is read once
        names = [cell[0].strip().replace(" ", "_") for cell in _RULED_CELL.finditer(match[1])]
        at = match.end()
        for _ in range(200):
            row = _RULED_ROW.match(text, at)
            cells = list(_RULED_CELL.finditer(row[1])) if row is not None else []
            if row is None or len(cells) != len(names):
                break
            at = row.end()
            for name, cell in zip(names, cells, strict=True):
                kind = named_secret(name, cell[0]) if may_be_named(name) else None
                if kind is not None:
                    yield Span(row.start(1) + cell.start(), row.start(1) + cell.end(), kind)


_ALIGNED = lazily(
    rf"(?:\A|(?<=\n))({PRINTED})?((?:[A-Z][A-Z0-9_-]{{0,40}}(?: [A-Z0-9_-]{{1,40}}){{0,4}}[ ]{{2,40}}){{0,10}})"
    r"((?:API |ACCESS )?(?:TOKEN|PASSWORD|SECRET|APIKEY|KEY))"
    r"(?=[ ]{2,}[A-Z]|[ ]{0,40}\r?(?:\n|\Z))[^\n]{0,200}"
)
ALIGNED_HINT = r"(?:TOKEN|PASSWORD|SECRET|APIKEY) *(?:  [A-Z][A-Z0-9_ -]*)?(?:[\r\n]|\\+[nr])"


def _aligned(text: str) -> Iterator[Span]:
    """The column of a table that a command prints with spaces between its columns."""
    for head in _ALIGNED.finditer(text):
        at, column, name = head.end(), head.end(2) - head.start(2), head[3].replace(" ", "_")
        if not column and name != "PASSWORD":
            continue
        for _ in range(200):
            row = _RULED_ROW.match(text, at)
            if row is None or row[1][max(0, column - 1) : column].strip():
                break
            at, value = row.end(), row[1][column:].partition(" ")[0]
            if name != "KEY" and (kind := named_secret(name, value)) is not None:
                yield Span(row.start(1) + column, row.start(1) + column + len(value), kind)


def in_tables(text: str) -> Iterator[Span]:
    """The column of a table, a CSV file or an INSERT whose name is a secret's."""
    data = one_byte_each(text)
    if any_of([ALIGNED_HINT])(data):
        yield from _aligned(text)
    if any_of([_RULED_HINT])(data):
        yield from _ruled(text)
    at = 0 if any_of(_COLUMNS_HINTS)(data) else len(text)
    while (match := _COLUMNS.search(text, at)) is not None:
        at = match.end()
        group = 1 if match[1] is not None else 2
        sign = next((sign for sign in "\t;" if sign in match[group]), ",") if group == 1 else ","
        names = [name.strip(" \"`[]'\\") for name in match[group].split(sign)]
        if group == 1 and (len(set(names)) < len(names) or not all(names) or ", " in match[1]):
            continue  # code
        columns = [(at, name.replace(" ", "_")) for at, name in enumerate(names) if may_be_named(name)]
        row = _CELLS if group == 1 else _TUPLE
        for _ in range(200 if columns else 0):
            cells = row.match(text, at)
            if cells is None or cells[1].count(sign) != len(names) - 1:
                break
            at = cells.end()
            for column, name in columns:
                start = cells.start(1)
                for _ in range(column):
                    start = text.index(sign, start) + 1
                end = text.find(sign, start, cells.end(1))
                cell = text[start : cells.end(1) if end == -1 else end]
                value = cell.strip(" \r\"'\\")
                kind = named_secret(name, value)
                if kind is not None:
                    start += cell.index(value)
                    yield Span(start, start + len(value), kind)


_VALUE_FIRST = Sought(
    rf"[Vv]alue(?:{QUOTE})?[ \t]{{0,5}}[:=][ \t]{{0,5}}{A_VALUE}(?:{QUOTE})?[,;]?\s{{0,80}}(?:{QUOTE})?"
    rf"(?:name|key|Name|Key)(?:{QUOTE})?[ \t]{{0,5}}[:=][ \t]{{0,5}}(?:{QUOTE})?([A-Za-z][A-Za-z0-9_.:-]{{2,63}})",
    "[Vv]alue",
)

_NAME_FIRST = Sought(
    rf"(?:(?:\b[Nn]ame|\b[Kk]ey|\bKEY|\bNAME|(?:Parameter|Output)(?:Key|Name))(?:{QUOTE})?[ \t]{{0,5}}[:=][ \t]{{0,5}}(?:{QUOTE})?"
    rf"|<(?:name|key)>|\bvariable[ \t]+(?:{QUOTE})|{QUOTE}(?=[\w.-]{{3,63}}{QUOTE}\s?:\s?\{{))([A-Za-z/][A-Za-z0-9_.:/-]{{2,63}})",
    # Only where the name is a secret's.
    rf"(?:(?:[Nn]ame|[Kk]ey|KEY|NAME|(?:Parameter|Output)(?:Key|Name))(?:{QUOTE})?[ \t]*[:=][ \t]*(?:{QUOTE})?|<(?:name|key)>"
    rf"|variable[ \t]+{QUOTE}|{QUOTE})[A-Za-z0-9_.:/?-]*(?i:{SECRET_WORDS})",
)

_VALUE_NEXT = lazily(
    rf"(?:(?:\b[Vv]alue|(?:Parameter|Output)Value)|\bdefault|\bcontent|\bsecret_?[Ss]tring|\bVALUE"
    rf"|<string)(?:{QUOTE})?(?:[ \t]{{0,10}}[:=][ \t]{{0,5}}|>){A_VALUE}"
)
_FIELDS_APART = 300


def in_fields(text: str) -> Iterator[Span]:
    """Name and value in two fields, in any order: environment variables in lists, variables of Terraform."""
    for match in _VALUE_FIRST.finditer(text) if "alue" in text else ():
        yield from _of_field(match[4], match)
    for name in _NAME_FIRST.finditer(text):
        if may_be_named(name[1]):
            end = min(len(text), name.end() + _FIELDS_APART)
            value = _VALUE_NEXT.search(text, name.end(), end)
            if value is not None and _NAME_FIRST.expression.search(text, name.end(), value.start()) is None:
                yield from _of_field(name[1], value)


def _of_field(name: str, match: re.Match[str]) -> Iterator[Span]:
    group = 2 if match[2] is not None else 3
    kind = named_secret(name, match[group])
    if kind is not None:
        yield Span(match.start(group), match.end(group), kind)
