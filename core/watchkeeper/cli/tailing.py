"""`wk watch` of other programs' logs without a terminal: what is watched, then a line for each thing that
happens."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from watchkeeper.cli.headless import EventPrinter, describe
from watchkeeper.cli.options import Opened, clean, reader_is_gone, say
from watchkeeper.records.wording import plural

LOOK_SECONDS = 0.2
RIPE_SECONDS = 0.3
"""How long a reply whose end is not told may still grow, before it is printed as it stands."""
INTERRUPTED_EXIT = 130

_NEW_CALLS = (
    "SELECT id, agent_id, turn, stop_reason, input_tokens + cache_read_tokens + cache_write_tokens AS"
    " prompt, output_tokens,"
    " usage_exact, cost_usd, started_at + latency_seconds AS at FROM model_calls WHERE session_id = ? AND id"
    " > ? ORDER BY id"
)


def print_log(path: Path, session_id: str, what: str, follower: subprocess.Popen[bytes]) -> int:
    """Print what happened and what happens in a followed session, until SIGINT or SIGTERM, or until nobody
    reads it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        printer = LogPrinter(path, session_id)
        printer.introduce(what)
        printer.start(from_start=True)
        try:
            while follower.poll() is None and not reader_is_gone():
                time.sleep(LOOK_SECONDS)
        finally:
            printer.finish()
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    finally:
        signal.signal(signal.SIGTERM, before)
    printer.tell_trouble()
    if reader_is_gone():
        return 0
    print(
        f"wk: the process that follows {clean(what, 200)} ended; `wk watch` once more goes on",
        file=sys.stderr,
    )
    return 1


class LogPrinter(EventPrinter):
    """Prints a followed session's events, and its replies with their tokens, as they are imported."""

    quiet = frozenset({"agent.idle", "agent.working", "task.pending"})

    def __init__(self, path: Path, session_id: str) -> None:
        super().__init__(path, session_id, as_json=False)
        self._call = 0
        self._ripening: dict[int, float] = {}
        """Replies that may still grow, and since when they are here."""
        self._others: set[str] = set()

    def introduce(self, what: str) -> None:
        """Say what is watched."""
        opened = Opened(self._path)
        try:
            row = opened.one(
                "SELECT origin, title, goal, workspace, (SELECT count(*) FROM agents WHERE session_id ="
                " s.id) AS agents, model_calls"
                " FROM sessions s WHERE id = ?",
                (self._session_id,),
            )
        finally:
            opened.connection.close()
        about = clean(row["title"] or row["goal"] or "", 80)
        say(f"session {self._session_id}  {row['origin']}  {about}".rstrip())
        size = f"{plural(row['agents'], 'agent')}, {plural(row['model_calls'], 'model call')} so far"
        place = f" in {clean(row['workspace'], 100)}" if row["workspace"] else ""
        say(f"{size}{place}; {clean(what, 200)} is followed (Ctrl+C ends this, not the session)")

    def _lines(self, opened: Opened) -> list[tuple[float, str, str, str]]:
        lines = [*super()._lines(opened), *self._replies(opened)]
        self._tell_others(opened)
        return sorted(lines, key=lambda line: line[0])

    def _replies(self, opened: Opened) -> list[tuple[float, str, str, str]]:
        rows = opened.all(_NEW_CALLS, (self._session_id, self._call))
        newest = {row["agent_id"]: row["id"] for row in rows}
        now, found = time.monotonic(), []
        for row in rows:
            since = self._ripening.setdefault(row["id"], now)
            growing = (
                row["stop_reason"] is None
                and newest[row["agent_id"]] == row["id"]
                and now - since < RIPE_SECONDS
            )
            if growing and not self._stop.is_set():
                break  # those after it wait as well: they are told in order
            self._ripening.pop(row["id"])
            self._call = row["id"]
            found.append((row["at"], row["agent_id"], "model.replied", self._reply(opened, row)))
        return found

    @staticmethod
    def _reply(opened: Opened, row: Any) -> str:
        tools = [
            each[0]
            for each in opened.all(
                "SELECT name FROM tool_calls WHERE agent_id = ? AND turn = ? ORDER BY position",
                (row["agent_id"], row["turn"]),
            )
        ]
        cost = "unpriced" if row["cost_usd"] is None else f"${row['cost_usd']:.4f}"
        text = f"turn {row['turn']}  {row['prompt']:,} tok in, {row['output_tokens']:,} out  {cost}"
        if not row["usage_exact"]:
            text += " (estimated)"
        called = ", ".join(clean(each, 40) for each in tools[:4]) + (
            f" and {len(tools) - 4} more" if len(tools) > 4 else ""
        )
        return f"{text}  → {called}" if called else text

    def _describe(self, kind: str, data: dict[str, Any]) -> str:
        if kind.startswith("tool."):
            return f"{clean(data.get('tool') or '?', 40)}  {data.get('seconds', 0):.1f} s  {clean(data.get('preview') or '', 120)}"
        return describe(kind, data)

    def _tell_others(self, opened: Opened) -> None:
        """Sessions that are live as well: each is named once."""
        live = opened.all(
            "SELECT id, title, goal FROM sessions WHERE status = 'running' AND origin != 'run' AND"
            " deleted_at IS NULL"
        )
        for row in live:
            if row["id"] not in self._others and row["id"] != self._session_id:
                self._others.add(row["id"])
                say(
                    f"session {row['id']} is live as well: {clean(row['title'] or row['goal'] or '', 80)} "
                    f" (wk watch {row['id']})"
                )
