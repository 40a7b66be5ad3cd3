"""Long texts as lines that are made when they come in sight: the parts, the formats, and the window.

A text is cut into `Unit`s of a few thousand characters. `LazyLines` is the sequence of all their lines, of
which those near the window are rendered; other heights are estimates until then. The id of a line is the
name of its unit, a dot and a number; that of a unit's first line also the name, and that of a part that was
folded away its unit's. Lines hold the names of roles, not styles, so that a rendered unit serves every theme.
"""

from __future__ import annotations

import csv
import json
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, overload

from watchkeeper.records.text import plural
from watchkeeper_tui.rendering.code import (
    code_lines,
    diff_lines,
    harmless,
    language_of,
    plain_lines,
    wrap_line,
)
from watchkeeper_tui.rendering.markdown import markdown_lines
from watchkeeper_tui.sanitize import clip, sanitize, sanitize_text
from watchkeeper_tui.sanitize import width as cells_of
from watchkeeper_tui.widgets.rows import Line, PageLine, Piece, WindowedRows, clip_pieces, marked

CHUNK_CHARS = 2_000
"""Characters of a unit, where the text can be cut there."""
MOST_CHUNK_CHARS = 6_000
"""Characters at which a text is cut wherever it is: parsers and lexers take quadratic time of some texts."""
LINES_KEPT = 20_000
"""Lines that a cache keeps."""
_MOST_KEPT = 200_000
"""Heights, and cut texts, that a cache keeps."""
NUMBERED = "numbered "
_NUMBER = re.compile(r" *\d{1,7}(?:→|\t|: |\| ?)")


@dataclass(frozen=True, slots=True)
class Unit:
    """Lines that are rendered together."""

    name: str
    """Unique among the units of a page. After a `/`: a part of the unit named before it."""
    version: Hashable
    """Whatever else its lines depend on. Units of the same name and version have the same lines."""
    estimate: int
    """How many lines it may have."""
    render: Callable[[], Sequence[PageLine]]
    source: Callable[[], str] | None = None
    """The text that its lines show, where that takes far less time than to render them."""

    def may_hold(self, words: str) -> bool:
        """Whether a line of it may have the words, in lower case."""
        if self.source is None:
            return True
        text = self.source().casefold()
        return all(word in text for word in words.split())


class LineCache:
    """Rendered units, the most recently used ones, and what they were cut from."""

    def __init__(self) -> None:
        self.rendered = 0
        """Lines that were rendered so far."""
        self._kept: OrderedDict[tuple[str, Hashable], Sequence[PageLine]] = OrderedDict()
        self._heights: dict[tuple[str, Hashable], int] = {}
        self._units: dict[str, tuple[Hashable, list[Unit]]] = {}
        self._size = 0

    def units(self, name: str, version: Hashable, make: Callable[[], list[Unit]]) -> list[Unit]:
        """The units of `name`, made again only where the version is another one."""
        kept = self._units.get(name)
        if kept is None or kept[0] != version:
            if len(self._units) >= _MOST_KEPT:
                self._units.clear()
            kept = self._units[name] = (version, make())
        return kept[1]

    def height(self, unit: Unit) -> int | None:
        """How many lines the unit has, if it was ever rendered."""
        return self._heights.get((unit.name, unit.version))

    def lines(self, unit: Unit) -> Sequence[PageLine]:
        """The unit's lines, at least one."""
        key = (unit.name, unit.version)
        lines = self._kept.get(key)
        if lines is None:
            lines = unit.render() or (PageLine(f"{unit.name}.0", ()),)
            self.rendered += len(lines)
            self._size += len(lines)
            self._kept[key] = lines
            if len(self._heights) >= _MOST_KEPT:
                self._heights.clear()
            self._heights[key] = len(lines)
            while self._size > LINES_KEPT and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._size -= len(dropped)
        else:
            self._kept.move_to_end(key)
        return lines


_GROUP = 256
"""Units whose heights are added up together."""


class _Heights:
    """How high each unit is, and where it begins: a change costs the same however many there are."""

    def __init__(self, heights: Sequence[int]) -> None:
        self._groups = [list(heights[at : at + _GROUP]) for at in range(0, len(heights), _GROUP)]
        self._ends: list[list[int] | None] = [None] * len(self._groups)
        """Where the units of each group end within it; None: to be added up."""
        self._totals = [sum(group) for group in self._groups]
        self._tops = [0, *accumulate(self._totals)]
        """Where each group begins; then the end of all."""

    def __getitem__(self, at: int) -> int:
        return self._groups[at // _GROUP][at % _GROUP]

    def __setitem__(self, at: int, height: int) -> None:
        group, within = divmod(at, _GROUP)
        self._totals[group] += height - self._groups[group][within]
        self._groups[group][within], self._ends[group] = height, None
        self._tops = [0, *accumulate(self._totals)]

    @property
    def total(self) -> int:
        return self._tops[-1]

    def start(self, at: int) -> int:
        """Where a unit begins; of the number after the last one, the end."""
        group, within = divmod(at, _GROUP)
        return self._tops[group] + (self._ends_of(group)[within - 1] if within else 0)

    def at(self, line: int) -> int:
        """The unit that holds a line."""
        group = min(bisect_right(self._tops, line), len(self._groups)) - 1
        return group * _GROUP + bisect_right(self._ends_of(group), line - self._tops[group])

    def _ends_of(self, group: int) -> list[int]:
        ends = self._ends[group]
        if ends is None:
            ends = self._ends[group] = list(accumulate(self._groups[group]))
        return ends


class LazyLines(WindowedRows[PageLine]):
    """The lines of all units, in order. `settle` renders those about to be seen; until then a unit is as high
    as its estimate."""

    def __init__(self, units: Sequence[Unit], cache: LineCache) -> None:
        self.units = units
        self._cache = cache
        known = [cache.height(unit) for unit in units]
        self._exact = [height is not None for height in known]
        self._heights = _Heights(
            [height or max(1, unit.estimate) for height, unit in zip(known, units, strict=True)]
        )
        self._looked_at: tuple[int, Sequence[PageLine]] = (-1, ())
        """The unit that a line was asked of last: its neighbours are asked next."""

    def __len__(self) -> int:
        return self._heights.total

    @overload
    def __getitem__(self, index: int) -> PageLine: ...
    @overload
    def __getitem__(self, index: slice) -> list[PageLine]: ...
    def __getitem__(self, index: int | slice) -> PageLine | list[PageLine]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        index += len(self) if index < 0 else 0
        if self.units and index == len(self) - 1:
            return self._cache.lines(self.units[-1])[-1]
        if not 0 <= index < len(self):
            raise IndexError(index)
        at, offset = self._locate(index)
        if at != self._looked_at[0]:
            self._looked_at = (at, self._cache.lines(self.units[at]))
        lines = self._looked_at[1]
        return lines[min(offset, len(lines) - 1)]

    def settle(self, top: int, height: int, *, at_end: bool = False) -> int:
        if not self.units:
            return 0
        at, offset = (len(self.units), 0) if at_end else self._locate(max(0, min(top, len(self) - 1)))
        if not at_end:
            offset = min(offset, self._measure(at) - 1)
            below = self._measure(at) - offset
            for after in range(at + 1, len(self.units)):
                if below >= 2 * height:
                    break
                below += self._measure(after)
        above = offset
        for before in range(at - 1, -1, -1):
            if above >= (2 if at_end else 1) * height:
                break
            above += self._measure(before)
        last = max(0, len(self) - height)
        return last if at_end else min(last, self._start(at) + offset)

    def place_of(self, row_id: str) -> int | None:
        at = self._names.get(row_id)
        if at is not None:
            return self._start(at)
        name, _, number = row_id.rpartition(".")
        at = self._names.get(name)
        if at is not None and number.isdecimal() and int(number) < self._measure(at):
            return self._start(at) + int(number)
        at = self._names.get(name.partition("/")[0])
        return self._start(at) if at is not None else None

    def around(self, place: int, words: str, *, back: bool) -> tuple[Iterator[PageLine], Iterator[PageLine]]:
        if not self.units:
            return iter(()), iter(())
        known = min(place, len(self) - 1)
        at, offset = self._locate(known)
        offset += place - known
        whole = slice(None)
        before = [*((each, whole) for each in range(at)), (at, slice(offset))]
        after = [(at, slice(offset, None)), *((each, whole) for each in range(at + 1, len(self.units)))]
        if back:
            before, after = after[::-1], before[::-1]
        return self._lines_of(after, words, back=back), self._lines_of(before, words, back=back)

    def _lines_of(self, parts: Sequence[tuple[int, slice]], words: str, *, back: bool) -> Iterator[PageLine]:
        for at, part in parts:
            if self.units[at].may_hold(words):
                lines = self._cache.lines(self.units[at])[part]
                yield from reversed(lines) if back else lines

    @cached_property
    def _names(self) -> dict[str, int]:
        return {unit.name: at for at, unit in enumerate(self.units)}

    def _start(self, at: int) -> int:
        return self._heights.start(at)

    def _locate(self, index: int) -> tuple[int, int]:
        """The unit that holds a line, and the line's number in it."""
        at = self._heights.at(index)
        return at, index - self._start(at)

    def _measure(self, at: int) -> int:
        """The height of a unit, by rendering it if it is not known."""
        if not self._exact[at]:
            height = len(self._cache.lines(self.units[at]))
            self._exact[at] = True
            if height != self._heights[at]:
                self._heights[at] = height
        return self._heights[at]


def lazy(parts: Sequence[PageLine | Unit], cache: LineCache) -> Sequence[PageLine]:
    """The lines of a page that has both lines and units."""
    lines = [part for part in parts if isinstance(part, PageLine)]
    if len(lines) == len(parts):
        return lines
    return LazyLines([_line_unit(part) if isinstance(part, PageLine) else part for part in parts], cache)


def _line_unit(line: PageLine) -> Unit:
    return Unit(line.id, (line.pieces, line.key), 1, lambda: (line,))


# --- Texts --------------------------------------------------------------------------------------------------


def render_text(text: str, format: str, width: int, role: str = "text") -> list[Line]:
    """A hostile text as rows of at most `width` columns. `format`: `markdown`, `document` (Markdown whose
    single line breaks are spaces), `diff`, `hunk` (the inside of a difference), a language of
    `code.language_named`, the same after `numbered ` (each line has its number in the file), or empty for
    plain text in `role`."""
    text = sanitize_text(text)
    try:
        rows = list(_format(text, format, width, role))
    except Exception:  # a lexer or a parser failed on a hostile text: it is shown as it is
        rows = [row for line in plain_lines(text, role) for row in wrap_line(line, width)]
    return rows


def _format(text: str, format: str, width: int, role: str) -> Iterator[Line]:
    if format in ("markdown", "document"):
        yield from markdown_lines(text, width, reflow=format == "document")
        return
    lines: Iterator[Line]
    if format in ("diff", "hunk"):
        lines = diff_lines(text, is_inside=format == "hunk")
    elif format.startswith(NUMBERED):
        lines = _numbered_lines(text, format.removeprefix(NUMBERED))
    else:
        lines = code_lines(text, format) if format else plain_lines(text, role)
    for line in lines:
        yield from wrap_line(line, width)


def is_numbered(text: str) -> bool:
    """Whether the first lines of a text have their numbers before them, as tools write files."""
    lines = text.split("\n", 4)[:4]
    return bool(text) and all(_NUMBER.match(line) for line in lines if line)


def _numbered_lines(text: str, language: str) -> Iterator[Line]:
    found = [(_NUMBER.match(line), line) for line in text.split("\n")]
    code = "\n".join(line[match.end() :] if match else line for match, line in found)
    for (match, _), line in zip(found, code_lines(code, language), strict=True):
        number = match[0].rstrip("→\t|: ").strip() if match else ""
        yield harmless(((f"{number:>5} ", "faint"), *line))


def chunks(text: str, format: str) -> Iterator[tuple[str, str]]:
    """A text in parts that can be rendered one by one, each with its format: Markdown is cut between blocks
    where there is one, and a fence that is too long is closed and opened again."""
    part: list[str] = []
    size = 0
    fence = ""
    is_blank = False
    for line in text.split("\n"):
        for piece in _pieces(line):
            apart = is_blank and not fence and piece[:1] not in (" ", "\t", "")
            free = format not in ("markdown", "document") or apart
            if part and (size + len(piece) > MOST_CHUNK_CHARS or (free and size > CHUNK_CHARS)):
                yield "\n".join(part), format
                part, size = ([fence], len(fence)) if fence else ([], 0)
                if format == "diff" and not piece.startswith(("@@", "diff ", "--- ")):
                    format = "hunk"
                elif format == "hunk":
                    format = "diff"
            part.append(piece)
            size += len(piece) + 1
        if format in ("markdown", "document"):
            is_blank = not line.strip()
            fence = _fence_after(fence, line)
    yield "\n".join(part), format


def _pieces(line: str) -> Iterator[str]:
    """A line, cut after spaces where it is longer than a chunk."""
    while len(line) > MOST_CHUNK_CHARS // 2:
        cut = line.rfind(" ", 0, CHUNK_CHARS) + 1 or CHUNK_CHARS
        yield line[:cut]
        line = line[cut:]
    yield line


def _fence_after(fence: str, line: str) -> str:
    """The opening line of the fence that is open after this line; empty for none."""
    stripped = line.strip()
    mark = stripped[:1]
    if mark not in ("`", "~") or not stripped.startswith(mark * 3):
        return fence
    if not fence:
        return line if len(line) < 200 and "`" not in stripped.lstrip("`") else ""
    opened = fence.strip()
    length = len(opened) - len(opened.lstrip(opened[0]))
    closes = mark == opened[0] and stripped == mark * len(stripped) and len(stripped) >= length
    return "" if closes else fence


def text_units(
    name: str, text: str, format: str, width: int, *, role: str = "text", key: str = "", before: Piece = ("", "text"),
    words: Sequence[str] = (),
) -> list[Unit]:  # fmt: skip
    """The units `NAME/0`, `NAME/1`, … of a text, with `before` in front of the first row, and the words marked."""
    rest = (" " * cells_of(before[0]), "text")
    room = max(4, width - len(rest[0]))

    def unit(number: int, part: str, of: str) -> Unit:
        unit_name = f"{name}/{number}"

        def render() -> list[PageLine]:
            rows = [marked(row, words) for row in render_text(part, of, room, role)]
            if before[0]:
                rows = [(rest if number or at else before, *row) for at, row in enumerate(rows)]
            return [PageLine(f"{unit_name}.{at}", row, key, text) for at, row in enumerate(rows)]

        version = (width, of, role, tuple(words), hash(part), whole)
        return Unit(unit_name, version, estimate(part, room), render, lambda: part)

    whole = hash(text)
    return [unit(number, part, of) for number, (part, of) in enumerate(chunks(text, format))]


def estimate(text: str, width: int) -> int:
    """How many rows a text may take."""
    return 1 + text.count("\n") + len(text) // (2 * width)


# --- JSON as a tree -----------------------------------------------------------------------------------------

_MOST_OPEN = 200
"""Nodes that are shown before anything is unfolded."""
_NODES = 100
"""Nodes of a unit."""


@dataclass(frozen=True, slots=True)
class _Node:
    path: str
    depth: int
    name: str | None
    value: Any
    is_open: bool


def parse_json(text: str) -> tuple[Any] | None:
    """The value in a tuple; None where the text is no JSON that can be read."""
    try:
        return (json.loads(text),)
    except (ValueError, RecursionError):
        return None


def indented_json(text: str) -> str | None:
    """The same JSON with a value a line; None where the text is no JSON that can be read."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return None


def json_units(name: str, value: Any, width: int, toggled: frozenset[str], text: str) -> list[Unit]:
    """A tree of a parsed value: a node a line. Enter folds and unfolds an object, an array and a long text;
    its key is `NAME:PATH`, and `toggled` holds those that differ from the first view.
    `text` is copied from an object or an array, and the value from any other line."""
    nodes = list(_visible(name, value, toggled, _first_view(name, value)))

    def unit(number: int, part: list[_Node]) -> Unit:
        unit_name = f"{name}/{number}"

        def render() -> list[PageLine]:
            rows = [(node, row) for node in part for row in _node_rows(node, width)]
            return [
                PageLine(
                    f"{unit_name}.{at}",
                    row,
                    node.path if _folds(node.value) else "",
                    node.value if isinstance(node.value, str) else text,
                )
                for at, (node, row) in enumerate(rows)
            ]

        return Unit(unit_name, (width, tuple((node.path, node.is_open) for node in part)), len(part), render)

    return [unit(at // _NODES, nodes[at : at + _NODES]) for at in range(0, len(nodes), _NODES)]


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((str(key), each) for key, each in value.items())
    elif isinstance(value, list):
        yield from ((str(place), each) for place, each in enumerate(value))


def _folds(value: Any) -> bool:
    return (isinstance(value, (dict, list)) and bool(value)) or (isinstance(value, str) and len(value) > 60)


def _first_view(name: str, value: Any) -> frozenset[str]:
    """The containers that are open at first: level by level, while no more than `_MOST_OPEN` nodes show."""
    level, opened, shown = [(f"{name}:", value)], set[str](), 1
    while level:
        inner: list[tuple[str, Any]] = []
        for path, each in level:
            if not isinstance(each, (dict, list)) or shown + len(each) > _MOST_OPEN:
                continue
            opened.add(path)
            shown += len(each)
            inner += ((f"{path}/{key}", child) for key, child in _children(each))
        level = inner
    return frozenset(opened)


def _visible(name: str, value: Any, toggled: frozenset[str], opened: frozenset[str]) -> Iterator[_Node]:
    waiting: list[Iterator[tuple[str, int, str | None, Any]]] = [iter([(f"{name}:", 0, None, value)])]
    while waiting:
        found = next(waiting[-1], None)
        if found is None:
            waiting.pop()
            continue
        path, depth, label, each = found
        is_open = (path in opened) != (path in toggled)
        yield _Node(path, depth, label, each, is_open)
        if is_open and isinstance(each, (dict, list)):
            waiting.append(iter([(f"{path}/{key}", depth + 1, key, child) for key, child in _children(each)]))


def _node_rows(node: _Node, width: int) -> Iterator[Line]:
    value = node.value
    indent = "  " * min(node.depth, max(0, width // 4))
    glyph = ("▾ " if node.is_open else "▸ ") if _folds(value) else "  "
    head: list[Piece] = [(indent, "text"), (glyph, "muted")]
    if node.name is not None:
        head += [(clip(sanitize(node.name), max(4, width // 2)), "kind_facts"), (": ", "muted")]
    if isinstance(value, (dict, list)):
        braces = "{}" if isinstance(value, dict) else "[]"
        noun = "key" if isinstance(value, dict) else "item"
        said = (
            braces
            if not value
            else braces[0]
            if node.is_open
            else f"{braces[0]}…{braces[1]} {plural(len(value), noun)}"
        )
        yield tuple(clip_pieces([*head, (said, "muted")], width))
        return
    role = (
        "kind_messages"
        if isinstance(value, str)
        else "accent"
        if value is None or isinstance(value, bool)
        else "tokens"
    )
    if isinstance(value, str) and node.is_open:
        yield tuple(clip_pieces([*head, (plural(len(value), "character"), "muted")], width))
        before = ("  " * (min(node.depth, width // 4) + 2), "text")
        for row in islice(render_text(value, "", max(4, width - len(before[0])), role), 5_000):
            yield (before, *row)
        return
    text = json.dumps(value[:400] if isinstance(value, str) else value, ensure_ascii=False)
    yield tuple(clip_pieces(harmless([*head, (sanitize(text), role)]), width))


# --- Tables of values separated by commas or tabs -----------------------------------------------------------

_WIDEST = 40
_MOST_ROWS = 100_000


def csv_units(name: str, text: str, width: int, toggled: frozenset[str]) -> list[Unit]:
    """A table: the first line names its columns. Enter on a row shows it as one line for each column; its key
    is `NAME:ROW`."""
    rows = _csv_rows(text)
    heads = [sanitize(cell) for cell in rows[0]] if rows else []
    sample = rows[:200]
    widths = [
        max(
            1,
            min(
                _WIDEST,
                max((cells_of(sanitize(row[at][:200])) for row in sample if at < len(row)), default=1),
            ),
        )
        for at in range(len(heads))
    ]

    def cells(row: Sequence[str], role: str) -> Line:
        pieces: list[Piece] = []
        left = width
        for at, size in enumerate(widths):
            if left < min(size, 4) + 4 and at:
                pieces.append((f" +{len(widths) - at}", "faint"))  # columns that have no room
                break
            text = clip(sanitize(row[at][:400]) if at < len(row) else "", size)
            pieces += [(" │ ", "faint"), (text, role)] if at else [(text, role)]
            pieces.append((" " * (size - cells_of(text)), role))
            left -= size + 3
        return tuple(clip_pieces(harmless(pieces), width))

    def lines_of(number: int, row: Sequence[str]) -> Iterator[Line]:
        if number == 0:
            yield cells(row, "strong")
            yield (("─" * min(width, sum(widths) + 3 * (len(widths) - 1)), "faint"),)
            return
        yield cells(row, "text")
        if f"{name}:{number}" in toggled:
            for at, cell in enumerate(row):
                head = heads[at] if at < len(heads) else str(at + 1)
                for line in render_text(cell, "", max(4, width - 4)):
                    yield from wrap_line(harmless((("  ", "text"), (f"{head}: ", "muted"), *line)), width)
                    head = ""

    def unit(begin: int) -> Unit:
        part = rows[begin : begin + _NODES]
        unit_name = f"{name}/{begin // _NODES}"
        opened = frozenset(at for at in range(begin, begin + len(part)) if f"{name}:{at}" in toggled)

        def render() -> list[PageLine]:
            found = [
                (begin + at, row, line) for at, row in enumerate(part) for line in lines_of(begin + at, row)
            ]
            return [
                PageLine(f"{unit_name}.{place}", line, f"{name}:{at}" if at else "", "\t".join(row))
                for place, (at, row, line) in enumerate(found)
            ]

        def source() -> str:
            return "\n".join(" ".join([*heads, *row]) for row in part)

        return Unit(unit_name, (width, opened), len(part), render, source)

    return [unit(begin) for begin in range(0, len(rows), _NODES)]


def _csv_rows(text: str) -> list[list[str]]:
    first = text.partition("\n")[0]
    delimiter = max(",;\t|", key=first.count)
    try:
        # A quoted field may hold line breaks, which the reader keeps.
        lines = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").splitlines(keepends=True)
        return list(islice(csv.reader(lines, delimiter=delimiter), _MOST_ROWS))
    except csv.Error:
        return [[line] for line in text.split("\n")[:_MOST_ROWS]]


# --- Artifacts ----------------------------------------------------------------------------------------------


def artifact_format(name: str, media_type: str) -> str:
    """How an artifact is shown: `document`, `json`, `csv`, `image`, `diff`, a language, or empty for text."""
    end = name.rpartition(".")[2].lower()
    kind = media_type.partition(";")[0].strip().lower()
    if kind.startswith("image/") and kind != "image/svg+xml":
        return "image"
    if end in ("png", "jpg", "jpeg", "gif", "webp", "bmp", "ico", "tif", "tiff", "avif"):
        return "image"
    if end in ("csv", "tsv") or kind in ("text/csv", "text/tab-separated-values"):
        return "csv"
    if end in ("md", "markdown") or kind == "text/markdown":
        return "document"
    return language_of(name) or ("json" if kind == "application/json" else "")


def artifact_units(
    name: str,
    media_type: str,
    data: bytes,
    width: int,
    toggled: frozenset[str],
    *,
    shown_as: str | None = None,
) -> list[Unit]:
    """An artifact's bytes as units named `artifact/…`. `shown_as` is a format instead of the artifact's own;
    empty shows the text as it is."""
    format = artifact_format(name, media_type) if shown_as is None else shown_as
    if format == "image" or b"\x00" in data[:8_000]:
        return [_summary(name, media_type, data, width)]
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    if format == "json" and (parsed := parse_json(text)) is not None:
        return json_units("artifact", parsed[0], width, toggled, text)
    if format == "csv":
        return csv_units("artifact", text, width, toggled)
    return text_units("artifact", text, format, width)


def _summary(name: str, media_type: str, data: bytes, width: int) -> Unit:
    """What is shown of bytes that are no text."""
    size = image_size(data)
    said = [
        (("name  ", "muted"), (sanitize(name), "strong")),
        (("type  ", "muted"), (sanitize(media_type) or "unknown", "text")),
        (("size  ", "muted"), (plural(len(data), "byte"), "text")),
        *([(("image ", "muted"), (f"{size[0]:,} × {size[1]:,} pixels", "text"))] if size else []),
    ]
    rows = [row for line in said for row in wrap_line(harmless(line), width)]
    lines = [PageLine(f"artifact/0.{at}", row) for at, row in enumerate(rows)]
    return Unit("artifact/0", (name, len(data), width), len(lines), lambda: lines)


def image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height in pixels of a PNG, GIF or JPEG; None of anything else."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        return int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    at = 2 if data[:2] == b"\xff\xd8" else len(data)
    while at + 9 <= len(data) and data[at] == 0xFF:
        if 0xC0 <= data[at + 1] <= 0xCF and data[at + 1] not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
