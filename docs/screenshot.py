"""Save pictures of the dashboard as SVG, taken from the real app on a real database.

    python docs/screenshot.py DATABASE SESSION OUT.svg [--size 120x40] [--theme NAME] [--keys j,j,enter]

The app runs without a terminal, at a fixed size. `--keys` are pressed first, in order; SESSION may be
running.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path

from watchkeeper.store import database, sessions
from watchkeeper_tui.app import WatchkeeperApp

FONTS = "Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
BLANK = "&#160;"
_TEXT = re.compile(
    r'<text class="([^"]*)" x="([\d.]+)" y="([\d.]+)" textLength="([\d.]+)"([^>]*)>([^<]*)</text>'
)
_CHARACTER = 12.2
"""The width of one character in Textual's pictures."""


def portable(picture: str) -> str:
    """Textual's SVG so that every renderer shows the same: no fonts from the network, and no blanks that some
    swallow."""
    picture = re.sub(r"@font-face \{.*?\}\n?", "", picture, flags=re.DOTALL)
    picture = re.sub(r"font-family: (?:Fira Code|arial)[^;]*;", f"font-family: {FONTS};", picture)

    def without_blanks(found: re.Match[str]) -> str:
        kind, x, y, length, rest, text = found.groups()
        start, width = float(x), float(length)
        while text.startswith(BLANK):
            text, start, width = text.removeprefix(BLANK), start + _CHARACTER, width - _CHARACTER
        while text.endswith(BLANK):
            text, width = text.removesuffix(BLANK), width - _CHARACTER
        if not text:
            return ""
        return f'<text class="{kind}" x="{start:.1f}" y="{y}" textLength="{width:.1f}"{rest}>{text}</text>'

    return _TEXT.sub(without_blanks, picture)


async def take(path: Path, session: str, width: int, height: int, theme: str | None, keys: list[str]) -> str:
    """Open the dashboard on a session, press the keys, and return what is on the screen as SVG."""
    connection = database.open_readonly(path)
    try:
        session_id = sessions.find(connection, session)
    finally:
        connection.close()
    app = WatchkeeperApp(path, session_id, theme=theme)
    async with app.run_test(size=(width, height)) as pilot:
        while app.snapshot.session is None:
            await pilot.pause(0.1)
        # Two rates are shown that need a second of looking before they mean something.
        await pilot.pause(2.0)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.3)
        await pilot.pause(0.5)
        return portable(app.export_screenshot(title="watchkeeper"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Save a picture of the dashboard as SVG.")
    parser.add_argument("database", type=Path)
    parser.add_argument("session", help="an id, a unique prefix, or last")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="120x40", help="columns x rows (default: 120x40)")
    parser.add_argument("--theme", help="one of the themes by its name")
    parser.add_argument(
        "--keys", default="", help="keys to press first, by Textual's names, with commas between"
    )
    chosen = parser.parse_args()
    width, _, height = chosen.size.partition("x")
    keys = [key for key in chosen.keys.split(",") if key]
    picture = asyncio.run(
        take(chosen.database.absolute(), chosen.session, int(width), int(height), chosen.theme, keys)
    )
    chosen.out.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
