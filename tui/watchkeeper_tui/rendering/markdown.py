"""Markdown as lines of pieces. markdown-it-py parses; HTML stays text, and no link can be followed.

A link shows its address, so that no text hides where it leads. What Markdown leaves out (backslashes, marks
of emphasis) is whole in the text that is copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.cells import cell_len

from watchkeeper_tui.rendering.code import code_lines, harmless, language_named, wrap_line
from watchkeeper_tui.sanitize import sanitize
from watchkeeper_tui.widgets.rows import Line, Piece, pieces_width

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

LEAST_WIDTH = 8
"""Columns that a text keeps, however deep its list is nested."""
_BULLETS = ("•", "◦", "-")
_TASKS = {
    "[ ] ": ("◌ ", "pending"), "[x] ": ("✓ ", "done"), "[X] ": ("✓ ", "done"), "[~] ": ("● ", "working"), "[-] ": ("✗ ", "cancelled"),
}  # fmt: skip
_OPENS = {"strong_open": "strong", "em_open": "emphasis", "s_open": "faint", "link_open": "accent"}


def markdown_lines(text: str, width: int, *, reflow: bool = False) -> list[Line]:
    """The rows of a Markdown text, each at most `width` columns wide. With `reflow`, a single line break is
    a space, as in a document; otherwise it breaks the line, as in a chat."""
    width = max(LEAST_WIDTH, width)
    writer = _Writer(width, reflow)
    if reflow or _MARKS.search(_CODE.sub("x", text)):
        writer.blocks(_parser().parse(text if reflow else _HEADING_OF_LIST.sub(r"\1\n", text)))
    else:
        writer.paragraphs(text)
    return writer.lines


_HEADING_OF_LIST = re.compile(r"^( *(?:[-*+]|[0-9]{1,9}[.)]) .*\n)(?=[A-Za-z][^\n]*:$)", re.MULTILINE)
"""A line of a list before an unindented one that heads the next list. Markdown would take that for the item's own."""
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
"""A piece of code within one line of a paragraph."""
_MARKS = re.compile(
    r"[\\`*\[\]<>#|~&\t\f\v\r]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^ *(?:[-+=]|[0-9]{1,9}[.)])|^ {4}",
    re.MULTILINE,
)
"""What may mean something beside paragraphs and code. Most of what agents say has nothing of it, and the parser takes
ten times as long."""


@lru_cache(1)
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


@dataclass(slots=True)
class _Level:
    """A list item or a quotation that the present line is in."""

    first: Piece
    """Before its first line."""
    rest: Piece
    """Before its other lines, as wide."""
    is_begun: bool = False


@dataclass(slots=True)
class _List:
    number: int | None
    """The number of the next item; None in a list of bullets."""


@dataclass(slots=True)
class _Writer:
    width: int
    reflow: bool
    lines: list[Line] = field(default_factory=list)
    levels: list[_Level] = field(default_factory=list)
    lists: list[_List] = field(default_factory=list)
    _is_apart: bool = False
    """The next line comes after an empty one."""

    def paragraphs(self, text: str) -> None:
        """A text that is nothing but paragraphs with code in them, as the parser would have it."""
        for line in map(str.strip, text.split("\n")):
            if line:
                parts = enumerate(_CODE.split(line))
                self._put(
                    [(_code_words(part), "tool") if at % 2 else (part, "text") for at, part in parts if part]
                )
            else:
                self._apart()

    def blocks(self, tokens: Sequence[Token]) -> None:
        at = 0
        while at < len(tokens):
            token = tokens[at]
            match token.type:
                case "heading_open":
                    self._apart()
                    level = int(token.tag[1:])
                    role = "key" if level < 3 else "strong"
                    mark = ("#" * level + " ", "faint")
                    for number, line in enumerate(self._inline(tokens[at + 1], role)):
                        self._put(((mark if number == 0 else (" " * (level + 1), "faint")), *line))
                    at += 1
                case "paragraph_open":
                    if not token.hidden:
                        self._apart()
                    for line in self._inline(tokens[at + 1]):
                        self._put(line)
                    at += 1
                case "fence" | "code_block":
                    self._apart()
                    language = language_named((token.info.split() or [""])[0])
                    self._code(token.content, language)
                case "html_block":
                    self._apart()
                    self._code(token.content, "")
                case "hr":
                    self._apart()
                    self._put((("─" * max(1, self._room), "faint"),))
                case "bullet_list_open" | "ordered_list_open":
                    if not self.lists:
                        self._apart()
                    ordered = token.type == "ordered_list_open"
                    self.lists.append(_List(int(token.attrGet("start") or 1) if ordered else None))
                case "bullet_list_close" | "ordered_list_close":
                    self.lists.pop()
                    self._is_apart = self._is_apart or not self.lists
                case "list_item_open":
                    self._open(self._item(tokens, at))
                case "blockquote_open":
                    self._apart()
                    self._open(_Level(("▎ ", "muted"), ("▎ ", "muted")))
                case "list_item_close" | "blockquote_close":
                    self._close()
                case "table_open":
                    end = next(
                        place for place in range(at, len(tokens)) if tokens[place].type == "table_close"
                    )
                    self._apart()
                    self._table(tokens[at:end])
                    at = end
            at += 1

    # Lines.

    @property
    def _room(self) -> int:
        """Columns that are left behind the prefix of every line."""
        return max(1, self.width - sum(cell_len(level.rest[0]) for level in self.levels))

    def _apart(self) -> None:
        if self.lines and not (self.levels and not self.levels[-1].is_begun):
            self._is_apart = True

    def _put(self, line: Sequence[Piece]) -> None:
        if self._is_apart:
            self._is_apart = False
            self.lines.append(
                tuple(level.rest for level in self.levels if level.is_begun and level.rest[0].strip())
            )
        for row in wrap_line(harmless(line), self._room):
            before = [level.rest if level.is_begun else level.first for level in self.levels]
            for level in self.levels:
                level.is_begun = True
            self.lines.append((*before, *row))

    def _open(self, level: _Level) -> None:
        if self._room - cell_len(level.rest[0]) < LEAST_WIDTH:
            level = _Level(("", "text"), ("", "text"))  # too deep for the width
        self.levels.append(level)

    def _close(self) -> None:
        if not self.levels[-1].is_begun:
            self._put((("", "text"),))  # an item without a text
        self.levels.pop()

    def _item(self, tokens: Sequence[Token], at: int) -> _Level:
        mark, role = f"{_BULLETS[(len(self.lists) - 1) % len(_BULLETS)]} ", "muted"
        numbered = self.lists[-1]
        if numbered.number is not None:
            mark = f"{numbered.number}. "
            numbered.number += 1
        inline = tokens[at + 2] if at + 2 < len(tokens) else None
        if inline is not None and inline.type == "inline" and inline.children:
            first = inline.children[0]
            task = _TASKS.get(first.content[:4]) if first.type == "text" else None
            if task is not None:
                (mark, role), first.content = task, first.content[4:]
        return _Level((mark, role), (" " * len(mark), "text"))

    def _code(self, text: str, language: str) -> None:
        text = text.removesuffix("\n")
        room = max(LEAST_WIDTH // 2, self._room - 2)
        for line in code_lines(text, language):
            for row in wrap_line(line, room):
                self._put((("│ ", "faint"), *row))

    def _inline(self, token: Token, role: str = "text") -> list[Line]:
        """The lines of a paragraph, not yet broken."""
        lines: list[list[Piece]] = [[]]
        roles = [role]
        links: list[tuple[str, int, int]] = []
        for child in token.children or ():
            match child.type:
                case "text":
                    lines[-1].append((sanitize(child.content), roles[-1]))
                case "code_inline":
                    lines[-1].append((sanitize(child.content), "tool"))
                case "softbreak" if self.reflow:
                    lines[-1].append((" ", roles[-1]))
                case "softbreak" | "hardbreak":
                    lines.append([])
                case "image":
                    address = str(child.attrGet("src") or "")
                    lines[-1].append((f"[image: {sanitize(child.content)}] ", "muted"))
                    lines[-1].append((sanitize(address), "faint"))
                case "link_open":
                    links.append((str(child.attrGet("href") or ""), len(lines) - 1, len(lines[-1])))
                    roles.append("accent")
                case "link_close":
                    roles.pop()
                    address, line, place = links.pop()
                    words = "".join(text for text, _ in lines[line][place:]) if line == len(lines) - 1 else ""
                    if sanitize(address) not in (words, f"mailto:{words}"):
                        lines[-1].append((f" ({sanitize(address)})", "faint"))
                case "strong_open" | "strong_close" if child.markup == "__":
                    # In this field it is a name: `__init__`. Who means emphasis writes asterisks.
                    lines[-1].append((child.markup, roles[-1]))
                case kind if kind in _OPENS:
                    roles.append(_OPENS[kind])
                case "strong_close" | "em_close" | "s_close":
                    roles.pop()
                case _:
                    lines[-1].append((sanitize(child.content), roles[-1]))
        return [tuple(line) for line in lines]

    # Tables.

    def _table(self, tokens: Sequence[Token]) -> None:
        rows: list[list[Line]] = []
        for place, token in enumerate(tokens):
            if token.type == "tr_open":
                rows.append([])
            elif token.type in ("th_open", "td_open"):
                role = "strong" if token.type == "th_open" else "text"
                rows[-1].append(
                    tuple(piece for line in self._inline(tokens[place + 1], role) for piece in line)
                )
        for line in table_lines(rows, self._room):
            self._put(line)


def _code_words(text: str) -> str:
    """A piece of code without the spaces that set it apart from its marks."""
    return text[1:-1] if text[0] == text[-1] == " " and text.strip() else text


def table_lines(rows: Sequence[Sequence[Line]], width: int) -> Iterator[Line]:
    """Rows of cells in columns, the first row above a rule. Cells are broken where the table is too wide;
    with less than four columns for each, a row becomes one line."""
    if not rows:
        return
    count = max(len(row) for row in rows)
    spare = width - 3 * (count - 1)
    widths = [
        min(spare, max((pieces_width(row[at]) for row in rows if at < len(row)), default=0))
        for at in range(count)
    ]
    if spare < 4 * count:
        for row in rows:
            yield tuple(piece for cell in row for piece in (*cell, (" │ ", "faint")))[:-1] or (("", "text"),)
        return
    while sum(widths) > spare:
        widest = widths.index(max(widths))
        others = sorted(widths)[-2] if count > 1 else 0
        widths[widest] = max(others - 1, widths[widest] - (sum(widths) - spare), 4)
    for number, row in enumerate(rows):
        cells = [[*wrap_line(harmless(cell), size)] for cell, size in zip(row, widths, strict=False)]
        for parts in zip_longest(*cells, fillvalue=()):
            line: list[Piece] = []
            for at, size in enumerate(widths):
                part = parts[at] if at < len(parts) else ()
                if at:
                    line.append((" │ ", "faint"))
                line += part
                line.append((" " * max(0, size - pieces_width(part)), "text"))
            yield tuple(line)
        if number == 0:
            yield (("─┼─".join("─" * size for size in widths), "faint"),)
