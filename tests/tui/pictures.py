"""Pictures of screens: what Textual's own SVG export shows, made small and the same everywhere, beside those
agreed on.

`WATCHKEEPER_GOLDEN=1` writes them anew; look at what changed (`rsvg-convert -o X.png X.svg`) before
committing it. Not pytest-textual-snapshot: it takes one picture and compares once, so a busy machine that
paints late fails; its files are five times as large, and it tells a difference by pictures alone.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets import Input

FOLDER = Path(__file__).parent / "golden"
PATIENCE_SECONDS = 20.0
"""As long as a busy machine may need to paint the last change."""
NOTHING = '<svg xmlns="http://www.w3.org/2000/svg"></svg>\n'
"""What a screen that nobody agreed on yet is compared with."""
_CELL, _LINE = 12.2, 24.4
_FONT = "DejaVu Sans Mono,Menlo,Consolas,monospace"
_GROUND = re.compile(r'<rect fill="([^"]*)" x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)"')
_TEXT = re.compile(r'<text class="(r\d+)" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>')
_BLANKS = re.compile(" {2,}")
_SVG = "{http://www.w3.org/2000/svg}"


def compact(svg: str) -> str:
    """The picture without what differs from one export to the next and what a renderer does not need.

    Gone are the fonts from the network, the window around the screen, the random prefix of the classes, and
    blanks; grounds of one colour are one.
    """
    styles = re.findall(r"\.terminal-\d+-(r\d+) \{([^}]*)\}", svg)
    body = re.sub(r"terminal-\d+-(r\d+)", r"\1", svg[svg.index("-clip-terminal)") :])
    grounds = _merged([(fill, *map(float, place)) for fill, *place in _GROUND.findall(body)])
    width = max((x + wide for _, x, _, wide, _ in grounds), default=0)
    height = max((y + high for _, _, y, _, high in grounds), default=0)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * _CELL:.0f} {height * _LINE:.0f}">',
            f"<style>text{{font:20px {_FONT}}}",
            *(f".{name}{{{rule.strip().rstrip(';').replace(': ', ':')}}}" for name, rule in styles),
            f'</style><g transform="scale({_CELL} {_LINE})">',
            *(
                f'<rect fill="{fill}" x="{x}" y="{y}" width="{w}" height="{h}"/>'
                for fill, x, y, w, h in grounds
            ),
            "</g>",
            *filter(None, map(_words, _TEXT.findall(body))),
            "</svg>\n",
        ]
    )


def _merged(cells: list[tuple[str, float, float, float, float]]) -> list[tuple[str, int, int, int, int]]:
    """Grounds in columns and lines: neighbours of one colour in one, and lines that are alike in one."""
    lines: dict[int, list[list[int | str]]] = {}
    for fill, x, y, width, _ in cells:
        line = lines.setdefault(round((y - 1.5) / _LINE), [])
        column, columns = round(x / _CELL), round(width / _CELL)
        if line and line[-1][0] == fill and line[-1][1] + line[-1][2] == column:
            line[-1][2] += columns
        else:
            line.append([fill, column, columns])
    blocks: list[tuple[str, int, int, int, int]] = []
    open_blocks: dict[tuple[str, int, int], int] = {}
    for number in sorted(lines):
        still: dict[tuple[str, int, int], int] = {}
        for fill, column, columns in lines[number]:
            key = (fill, column, columns)
            place = open_blocks.get(key)
            if place is not None:
                of = blocks[place]
                blocks[place] = (*of[:4], of[4] + 1)
            else:
                place = len(blocks)
                blocks.append((fill, column, number, columns, 1))
            still[key] = place
        open_blocks = still
    return blocks


def _words(found: tuple[str, str, str, str]) -> str:
    """One run of characters of one look; nothing where it is blank."""
    kind, x, y, text = found
    text = text.replace("&#160;", " ")
    # Renderers make one blank of several.
    words = _BLANKS.sub(lambda blanks: "\N{NO-BREAK SPACE}" * len(blanks[0]), text.strip())
    if not words:
        return ""
    column = float(x) + _CELL * (len(unescape(text)) - len(unescape(text).lstrip()))
    return f'<text class="{kind}" x="{column:.1f}" y="{float(y):.0f}" textLength="{_CELL * cell_len(unescape(words)):.1f}">{words}</text>'


def lines_of(svg: str) -> list[str]:
    """The text of a compact picture, line by line; for reading, so that columns are right to half a
    character."""
    rows: dict[int, list[str]] = {}
    for element in ElementTree.fromstring(svg).iter(f"{_SVG}text"):
        row = rows.setdefault(round((float(element.get("y", 0)) - 20) / _LINE), [])
        column = round(float(element.get("x", 0)) / _CELL)
        row += [" "] * (column - len(row))
        text = unescape(element.text or "").replace("\N{NO-BREAK SPACE}", " ")
        row[column : column + len(text)] = text
    return ["".join(rows.get(number, [])) for number in range(max(rows, default=-1) + 1)]


def difference(agreed: str, shown: str) -> str:
    """What is different, to read: lines of text where these differ, else the colours of whichever words have
    others."""
    text = difflib.unified_diff(lines_of(agreed), lines_of(shown), "agreed", "shown", lineterm="", n=1)
    told = "\n".join(text)
    if told:
        return told
    before, after, none = _painted(agreed), _painted(shown), ("", "nothing")
    changed = [
        f"line {place[0]}, column {place[1]}, {after.get(place, before.get(place, none))[0]}:"
        f" {before.get(place, none)[1]} -> {after.get(place, none)[1]}"
        for place in sorted(before.keys() | after.keys())
        if before.get(place) != after.get(place)
    ]
    return "the text is the same, its looks are not:\n" + "\n".join(changed[:40])


def _painted(svg: str) -> dict[tuple[int, int, str], tuple[str, str]]:
    """Everything that is painted, by line and column: words with their looks, and the grounds they stand
    on."""
    rules = dict(re.findall(r"^\.(r\d+)\{(.*)\}$", svg, re.MULTILINE))
    found: dict[tuple[int, int, str], tuple[str, str]] = {}
    for element in ElementTree.fromstring(svg).iter():
        x, y = float(element.get("x", 0)), float(element.get("y", 0))
        if element.tag == f"{_SVG}text":
            place = (round((y - 20) / _LINE) + 1, round(x / _CELL) + 1, "words")
            found[place] = (repr(element.text), rules.get(element.get("class", ""), ""))
        elif element.tag == f"{_SVG}rect":
            size = f"{element.get('width')} x {element.get('height')}"
            found[int(y) + 1, int(x) + 1, "ground"] = ("ground", f"{element.get('fill')} {size}")
    return found


def picture_of(pilot: Pilot[int]) -> str:
    """The screen as it stands."""
    return compact(pilot.app.export_screenshot(title="watchkeeper", simplify=True))


async def assert_agreed(pilot: Pilot[int], name: str) -> None:
    """The screen looks as it was agreed, once it has been painted; fails with the difference in words."""
    for line in pilot.app.screen.query(Input):
        line.cursor_blink = False
    path = FOLDER / f"{name}-{pilot.app.size.width}x{pilot.app.size.height}.svg"
    if os.environ.get("WATCHKEEPER_GOLDEN"):
        await pilot.pause(1.0)
        path.write_text(picture_of(pilot), encoding="utf-8")
    agreed = path.read_text(encoding="utf-8") if path.exists() else NOTHING
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (shown := picture_of(pilot)) != agreed and time.monotonic() < deadline:
        await pilot.pause(0.05)
    assert shown == agreed, f"{path.name}: {difference(agreed, shown)}"
