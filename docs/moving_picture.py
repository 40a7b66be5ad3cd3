"""Make the README's moving picture: the demo, killed with `kill -9` and resumed, as one animated SVG.

    python docs/moving_picture.py OUT.svg [--size 110x30]

It runs the real program in a folder of its own and takes each picture from the real dashboard, as `docs/screenshot.py`
does. Takes about a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from screenshot import portable

from watchkeeper.store import database, sessions
from watchkeeper_tui.app import WatchkeeperApp

WINDOW_TOKENS = "8000"
_CLASS = re.compile(r"terminal-(\d+)")
_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


class Recorder:
    """A run of the demo, and the pictures taken of it, each with its caption and the seconds that it is shown."""

    def __init__(self, folder: Path, width: int, height: int) -> None:
        self._database = folder / "demo.db"
        self._size = (width, height)
        self._environment = os.environ | {
            "HOME": str(folder),
            "WATCHKEEPER_CONFIG_DIR": str(folder / "config"),
        }
        self.frames: list[tuple[str, str, float]] = []

    def wk(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command; its output is not needed."""
        command = [sys.executable, "-m", "watchkeeper", *arguments, "--db", str(self._database), "--headless"]
        return subprocess.Popen(
            command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    async def until_there(self) -> None:
        """Wait until the demo has a session."""
        while not self._database.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.2)
        await asyncio.sleep(1.0)

    async def take(self, caption: str, seconds: float, *keys: str) -> None:
        """Open the dashboard, press the keys, and keep the picture."""
        connection = database.open_readonly(self._database)
        session = sessions.find(connection, "last")
        connection.close()
        app = WatchkeeperApp(self._database, session)
        async with app.run_test(size=self._size) as pilot:
            while app.snapshot.session is None:
                await pilot.pause(0.1)
            await pilot.pause(1.5)
            for key in keys:
                await pilot.press(key)
                await pilot.pause(0.4)
            await pilot.pause(0.4)
            self.frames.append((portable(app.export_screenshot(title=caption)), caption, seconds))


async def record(width: int, height: int) -> list[tuple[str, str, float]]:
    """The story: it works, it is killed, it carries on from the same step, and the timeline shows all of it."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder), width, height)
        package = str(Path(database.__file__).parents[1])
        demo = recorder.wk("demo", "--workspace", package, "--context-tokens", WINDOW_TOKENS)
        await recorder.until_there()
        await asyncio.sleep(14)
        await recorder.take("wk demo", 2.5)
        demo.send_signal(signal.SIGKILL)
        demo.wait()
        await asyncio.sleep(3)
        await recorder.take("kill -9", 3.0)
        resumed = recorder.wk("resume", "last")
        await asyncio.sleep(8)
        await recorder.take("wk resume last", 2.5)
        await asyncio.to_thread(resumed.wait)
        await recorder.take("done: every task once", 2.5)
        await recorder.take("4 enter: what the last compaction replaced", 3.5, "4", "G", "enter")
        await recorder.take("t: the timeline, with the kill and the resume", 4.5, "t")
        return recorder.frames


def animated(frames: list[tuple[str, str, float]]) -> str:
    """One SVG that shows the pictures one after the other, for ever. Without animation, the last one is on top."""
    found = _SIZE.search(frames[0][0])
    assert found is not None
    whole = sum(seconds for _, _, seconds in frames)
    rules, groups, begins = [], [], 0.0
    for number, (picture, caption, seconds) in enumerate(frames):
        first, last = 100 * begins / whole, 100 * (begins + seconds) / whole
        begins += seconds
        rules.append(
            f"@keyframes f{number} {{ 0%, {first:.2f}% {{ visibility: hidden; }}"
            f" {first + 0.01:.2f}%, {last:.2f}% {{ visibility: visible; }} {last + 0.01:.2f}%, 100% {{ visibility: hidden; }} }}"
            f" .f{number} {{ animation: f{number} {whole:.1f}s step-end infinite; }}"
        )
        inner = _CLASS.sub(f"p{number}", picture[picture.index("<svg") :])
        groups.append(f'<g class="f{number}"><title>{caption}</title>{inner}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {found[1]} {found[2]}">'
        f"<style>{' '.join(rules)}</style>{''.join(groups)}</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the README's moving picture.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="110x30", help="columns x rows (default: 110x30)")
    chosen = parser.parse_args()
    width, _, height = chosen.size.partition("x")
    chosen.out.write_text(animated(asyncio.run(record(int(width), int(height)))), encoding="utf-8")


if __name__ == "__main__":
    main()
