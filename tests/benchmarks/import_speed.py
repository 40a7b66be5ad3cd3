"""How fast logs of Claude Code are imported: parsed, folded and stored, on one core.

    python tests/benchmarks/import_speed.py --megabytes 200 --core 0

Writes synthetic logs of that size (replies in blocks, tool calls with results that stand twice as in real logs, plans,
compactions, sub-agents in files of their own), imports them into a new database, and prints MB/s, the peak of memory and
what a second import takes. Pinned to one core with --core.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import tempfile
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

WORDS = (
    "the cache writer returns a stale index when two sessions open one file and the lock is held by neither of them so that"
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
                log.write("system", subtype="compact_boundary", compactMetadata={"trigger": "auto", "preTokens": 160_000})
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
                folder / "projects" / "-home-somebody-project" / session / "subagents" / f"agent-{agent}.jsonl",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--core", type=int, help="pin to this core")
    parser.add_argument("--folder", type=Path, help="where logs and database are made, and left")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    from watchkeeper.cli.pricing import list_pricing
    from watchkeeper.store.writer import Writer
    from watchkeeper.transcripts.importer import Importer

    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="import-speed-"))
    try:
        logs = folder / "logs"
        if not logs.exists():
            make_logs(logs, arguments.megabytes)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for name in ("", "-wal", "-shm"):
            (folder / f"imported.db{name}").unlink(missing_ok=True)
        writer = Writer(folder / "imported.db")
        importer = Importer(writer, pricing=list_pricing())
        import_logs = importer.run
        if arguments.profile:
            import cProfile

            profiler = cProfile.Profile()
            import_logs = lambda places: profiler.runcall(importer.run, places)  # noqa: E731
        began, cpu = time.perf_counter(), time.process_time()
        report = import_logs([logs])
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        size = report.bytes_read / 1e6
        print(report.line())
        print(f"{size:,.0f} MB in {took:.2f} s: {size / took:.0f} MB/s (by processor time {size / cpu:.0f} MB/s)")
        print(f"{report.lines / took:,.0f} records/s; memory {before / 1024:.0f} MiB before, at most {peak / 1024:.0f} MiB")
        began = time.perf_counter()
        Importer(writer).run([logs])
        print(f"again, nothing new: {(time.perf_counter() - began) * 1000:.0f} ms")
        importer.close()
        writer.close()
        print(f"database: {(folder / 'imported.db').stat().st_size / 1e6:,.0f} MB")
        if arguments.profile:
            import pstats

            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
