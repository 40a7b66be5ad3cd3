"""Exporting a session: the command line does it, in a process of its own, beside the dashboard."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.records.process_secrets import handed_over
from watchkeeper.store.user_secrets import config_text

FORMS = {"h": ("html", "a web page"), "m": ("md", "Markdown"), "j": ("json", "JSON, everything")}
"""By key: the form's name, which is the file's ending too, and what people call it."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What came of it: the file, or why there is none."""

    path: str
    bytes: int
    redacted: int | None
    """How many secrets were taken out."""
    problem: str = ""


def free_name(folder: Path, session_id: str, form: str) -> Path:
    """A name that no file has: `SESSION.html`, `SESSION-2.html`, …"""
    path, number = folder / f"{session_id}.{form}", 1
    while os.path.lexists(path):
        number += 1
        path = folder / f"{session_id}-{number}.{form}"
    return path


async def export(database_path: Path, session_id: str, form: str, folder: Path) -> Exported:
    """Run `wk export` and wait for its end. It never takes the place of a file."""
    path = free_name(folder, session_id, form)
    with handed_over(config_text()) as handover:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "watchkeeper", "export", session_id, "--format", form, "--output", str(path), "--json",
            "--db", str(database_path),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=handover.environment, pass_fds=handover.descriptors,
        )  # fmt: skip
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        lines = err.decode("utf-8", "replace").strip().splitlines()
        return Exported(
            str(path), 0, None, lines[-1].removeprefix("wk: ") if lines else f"exit code {process.returncode}"
        )
    report = json.loads(out.decode("utf-8", "replace").strip().splitlines()[-1])
    return Exported(str(report["path"]), int(report["bytes"]), report.get("redacted"))
