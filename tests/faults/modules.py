"""A folder of code that a survey has something to do with."""

from __future__ import annotations

from pathlib import Path


def write_modules(folder: Path, *parts: str, each: int, times: int = 1) -> Path:
    """In each part so many modules, each with its two lines so many times; returns the folder."""
    for part in parts:
        (folder / part).mkdir(parents=True)
        for number in range(each):
            (folder / part / f"module_{number}.py").write_text(
                f"# TODO: {part} {number}\nvalue = {number}\n" * times
            )
    return folder
