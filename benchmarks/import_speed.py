"""How fast logs of Claude Code are imported: parsed, folded and stored, on one core.

    python benchmarks/import_speed.py --megabytes 200 --core 0 [--recorded FOLDER] [--times 5]

Writes synthetic logs of that size (replies in blocks, tool calls with results that stand twice as in real
logs, plans, compactions, sub-agents in files of their own), or copies of recorded sessions with ids of their
own, imports them into a new database, and prints MB/s, the peak of memory and what a second import takes.
Pinned to one core with --core. On a machine that others use too, the best of several --times by processor
time tells most.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import random
import re
import resource
import shutil
import tempfile
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

WORDS = (
    "the cache writer returns a stale index when two sessions open one file and the lock is held by neither"
    " of them so that"
    " every reader sees half of a record until the next commit path module function test error value"
)


class Log:
    """One session's file, growing."""

    def __init__(self, path: Path, rng: random.Random, began: float, *, agent: str | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")
        self._rng = rng
        self._now = began
        self._agent = agent
        self._session = path.stem if agent is None else path.parent.parent.name
        self._last: str | None = None
        self.size = 0

    def text(self, words: int) -> str:
        return " ".join(self._rng.choices(WORDS.split(), k=words))

    def id(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    def write(self, kind: str, **about: Any) -> None:
        self._now += self._rng.uniform(0.2, 6.0)
        own = self.id()
        record: dict[str, Any] = {
            "parentUuid": self._last, "isSidechain": self._agent is not None, "userType": "external", "cwd": "/home/somebody/project",
            "sessionId": self._session, "version": "2.1.100", "gitBranch": "main", "type": kind, **about, "uuid": own,
            "timestamp": datetime.fromtimestamp(self._now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }  # fmt: skip
        if self._agent is not None:
            record["agentId"] = self._agent
        self._last = own
        self.size += self._file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def turn(self, name: str, arguments: dict[str, Any], words: int) -> None:
        """A reply in two blocks, and the result of its call."""
        call, message, request = (
            f"toolu_{self._rng.getrandbits(64):x}",
            f"msg_{self._rng.getrandbits(64):x}",
            f"req_{self._rng.getrandbits(64):x}",
        )
        usage = {
            "input_tokens": 5, "cache_creation_input_tokens": self._rng.randrange(4_000), "cache_read_input_tokens": self._rng.randrange(150_000),
            "output_tokens": self._rng.randrange(10, 900), "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        }  # fmt: skip
        for block in (
            {"type": "text", "text": self.text(30)},
            {"type": "tool_use", "id": call, "name": name, "input": arguments},
        ):
            self.write(
                "assistant", requestId=request,
                message={"model": "claude-opus-4-6", "id": message, "type": "message", "role": "assistant", "content": [block],
                         "stop_reason": "tool_use", "usage": usage},
            )  # fmt: skip
        said = self.text(words)
        self.write(
            "user", message={"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": said}]},
            toolUseResult={"stdout": said, "stderr": "", "interrupted": False},
        )  # fmt: skip

    def close(self) -> None:
        self._file.close()


def make_logs(folder: Path, megabytes: float, seed: int = 7) -> int:
    """Write about that many megabytes of logs; returns the bytes written."""
    rng = random.Random(seed)
    wanted, written, began = int(megabytes * 1e6), 0, 1_760_000_000.0
    while written < wanted:
        began += 20_000
        session = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        log = Log(folder / "projects" / "-home-somebody-project" / f"{session}.jsonl", rng, began)
        log.write("user", message={"role": "user", "content": log.text(60)})
        turns = rng.randrange(50, 600)
        for turn in range(turns):
            if turn % 40 == 5:
                todos = [{"content": log.text(6), "status": "pending", "activeForm": "x"} for _ in range(5)]
                log.turn("TodoWrite", {"todos": todos}, 20)
            elif turn % 150 == 149:
                log.write(
                    "system",
                    subtype="compact_boundary",
                    compactMetadata={"trigger": "auto", "preTokens": 160_000},
                )
                log.write("user", isCompactSummary=True, message={"role": "user", "content": log.text(2_000)})
            else:
                log.turn("Bash", {"command": log.text(12)}, rng.choice([20, 100, 300, 1_500]))
            if turn % 10 == 0:
                log.write("progress", data={"type": "bash_progress", "output": log.text(40)}, toolUseID="x")
        written += log.size
        log.close()
        if rng.random() < 0.3:
            agent = f"a{rng.getrandbits(60):x}"
            child = Log(
                folder
                / "projects"
                / "-home-somebody-project"
                / session
                / "subagents"
                / f"agent-{agent}.jsonl",
                rng,
                began + 50,
                agent=agent,
            )
            child.write("user", message={"role": "user", "content": child.text(80)})
            for _ in range(rng.randrange(5, 60)):
                child.turn("Grep", {"pattern": child.text(3)}, 200)
            written += child.size
            child.close()
    return written


_IDS = (
    re.compile(rb"([0-9a-f]{8})-[0-9a-f]{4}-([0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"),
    re.compile(rb"\b(msg_|req_|toolu_|call_|fc_|rs_)[A-Za-z0-9]{4}([A-Za-z0-9]{8,})"),
    re.compile(rb'("agentId":"|agent-)[0-9a-f]{4}([0-9a-f]{2,})'),
)


def copy_logs(recorded: Path, folder: Path, megabytes: float) -> int:
    """Copies of every recorded log, until there are that many megabytes; in each copy, four digits of every
    id are its own."""

    def marked(data: bytes) -> bytes:
        for ids, between in zip(_IDS, (b"-", b"", b""), strict=True):
            data = ids.sub(lambda match, sign=between: match[1] + sign + b"\0\0" + sign + match[2], data)  # type: ignore[misc]
        return data

    logs = [
        (marked(str(path.relative_to(recorded)).encode()), marked(path.read_bytes()))
        for path in sorted(recorded.rglob("*.json*"))
        if path.suffix == ".jsonl" or path.name.endswith(".meta.json")
    ]
    written, copy = 0, 0x1000
    while written < megabytes * 1e6:
        for name, data in logs:
            path = folder / str(copy) / name.replace(b"\0\0", b"%04x" % copy).decode()
            path.parent.mkdir(parents=True, exist_ok=True)
            written += path.write_bytes(data.replace(b"\0\0", b"%04x" % copy))
        copy += 1
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--core", type=int, help="pin to this core")
    parser.add_argument("--folder", type=Path, help="where logs and database are made, and left")
    parser.add_argument(
        "--recorded", type=Path, help="multiply the sessions of this folder instead of making some"
    )
    parser.add_argument(
        "--times", type=int, default=1, help="import so often, and tell of the quickest by processor time"
    )
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    from watchkeeper.models.registry import logged_price
    from watchkeeper.store.writer import Writer
    from watchkeeper.transcripts.importer import Importer

    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="import-speed-"))
    try:
        logs = folder / "logs"
        if not logs.exists() and arguments.recorded is not None:
            copy_logs(arguments.recorded, logs, arguments.megabytes)
        elif not logs.exists():
            make_logs(logs, arguments.megabytes)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        times: list[tuple[float, float]] = []
        for number in range(arguments.times):
            for name in ("", "-wal", "-shm"):
                (folder / f"imported.db{name}").unlink(missing_ok=True)
            writer = Writer(folder / "imported.db")
            importer = Importer(writer, pricing=logged_price)
            profiler = cProfile.Profile() if arguments.profile else None
            began, cpu = time.perf_counter(), time.process_time()
            report = profiler.runcall(importer.run, [logs]) if profiler is not None else importer.run([logs])
            times.append((time.process_time() - cpu, time.perf_counter() - began))
            if number < arguments.times - 1:
                importer.close()
                writer.close()
        cpu, took = min(times)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        size = report.bytes_read / 1e6
        print(report.line())
        print(
            f"{size:,.0f} MB in {took:.2f} s: {size / took:.0f} MB/s (by processor time {size / cpu:.0f}"
            " MB/s)"
        )
        print(
            f"{report.lines / took:,.0f} records/s; memory {before / 1024:.0f} MiB before, at most"
            f" {peak / 1024:.0f} MiB"
        )
        began = time.perf_counter()
        Importer(writer).run([logs])
        print(f"again, nothing new: {(time.perf_counter() - began) * 1000:.0f} ms")
        importer.close()
        writer.close()
        print(f"database: {(folder / 'imported.db').stat().st_size / 1e6:,.0f} MB")
        if profiler is not None:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
