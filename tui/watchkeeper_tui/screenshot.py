"""A screenshot of the real dashboard on a real database, for the documentation: no terminal needed.

`python -m watchkeeper_tui.screenshot DATABASE SESSION OUT.svg [--size 120x40] [--theme NAME] [--press j --press 3]`
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

WAIT_SECONDS = 10.0


async def take(database: Path, session: str, *, size: tuple[int, int], theme: str | None, keys: list[str]) -> str:
    """Open the session, press the keys; returns what is on the screen as SVG.

    Raises:
        TimeoutError: nothing could be read in time.
    """
    from watchkeeper_tui.app import WatchkeeperApp

    app = WatchkeeperApp(database, session, theme=theme)
    async with app.run_test(size=size) as pilot:
        deadline = time.monotonic() + WAIT_SECONDS
        while app.snapshot.session is None:
            if time.monotonic() > deadline:
                raise TimeoutError(app.snapshot.problem or f"{database} was not read within {WAIT_SECONDS:.0f} s")
            await pilot.pause(0.05)
        await pilot.pause(0.5)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(0.3)
        await pilot.pause(0.5)
        return app.export_screenshot(title="watchkeeper")


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m watchkeeper_tui.screenshot", description="Save the dashboard as SVG.")
    parser.add_argument("database", type=Path)
    parser.add_argument("session", help="a session's id")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="120x40", help="columns and rows")
    parser.add_argument("--theme")
    parser.add_argument("--press", action="append", default=[], metavar="KEY", help="a key to press first; may be repeated")
    given = parser.parse_args(arguments)
    columns, _, rows = given.size.partition("x")
    try:
        size = (int(columns), int(rows))
        svg = asyncio.run(take(given.database, given.session, size=size, theme=given.theme, keys=given.press))
        given.out.write_text(svg, encoding="utf-8")
    except (TimeoutError, ValueError, OSError) as error:
        print(f"no screenshot: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
